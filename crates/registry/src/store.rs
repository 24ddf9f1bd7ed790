//! The directory.
//!
//! ```text
//! <root>/lock                                 held by whoever serves or collects
//! <root>/blobs/sha256/<hex>                   content, once
//! <root>/repositories/<name>/_blobs/<hex>     the repository has this blob
//! <root>/repositories/<name>/_manifests/<hex> the repository has this manifest; the file says its media type
//! <root>/repositories/<name>/_tags/<tag>      the digest that the tag stands for
//! <root>/uploads/<id>                         content on its way; gone after a restart
//! ```
//!
//! No part of a repository's name begins with `_`, so names and these directories are never mixed up. Every file is
//! written beside its place and renamed into it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::FlockOperation;
use serde_json::Value;
use thiserror::Error;

use crate::route::{Digest, Reference};

/// Repositories are not nested deeper than a name is long.
const MAX_DEPTH: usize = 128;

/// Why the directory cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("cannot {doing} {path}", path = path.display())]
    Disk { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is in use by another registry", path = path.display())]
    InUse { path: PathBuf },
}

/// A manifest as it was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub digest: Digest,
    pub media_type: String,
    pub bytes: Vec<u8>,
}

/// What a collection removed, or would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Repository and digest.
    pub manifests: Vec<(String, Digest)>,
    pub blobs: Vec<Digest>,
    pub bytes: u64,
}

/// A registry's directory, locked.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    _lock: File,
}

impl Store {
    /// Opens the directory, making it where it is missing. What was on its way is dropped.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let disk = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        for name in ["blobs/sha256", "repositories", "uploads"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(disk("create", &path))?;
        }
        let path = root.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(disk("open", &path))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse { path: root.to_owned() }),
            Err(error) => return Err(disk("lock", &path)(error.into())),
        }
        let uploads = root.join("uploads");
        for entry in fs::read_dir(&uploads).map_err(disk("list", &uploads))?.flatten() {
            fs::remove_file(entry.path()).map_err(disk("remove", &entry.path()))?;
        }
        Ok(Self { root: root.to_owned(), _lock: lock })
    }

    fn repository(&self, name: &str) -> PathBuf {
        self.root.join("repositories").join(name)
    }

    /// Where a blob is, or would be.
    pub fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.hex())
    }

    pub fn upload_path(&self, id: &str) -> PathBuf {
        self.root.join("uploads").join(id)
    }

    /// A name for something new.
    pub fn new_id() -> io::Result<String> {
        let mut id = [0; 16];
        SystemRandom::new().fill(&mut id).map_err(|_| io::Error::other("no random numbers"))?;
        Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether anything was pushed to the repository.
    pub fn has_repository(&self, name: &str) -> bool {
        self.repository(name).join("_manifests").is_dir()
    }

    /// Whether the repository has the blob.
    pub fn has_blob(&self, name: &str, digest: &Digest) -> bool {
        self.repository(name).join("_blobs").join(digest.hex()).is_file() && self.blob_path(digest).is_file()
    }

    /// Lets a repository have a blob that is there.
    pub fn link_blob(&self, name: &str, digest: &Digest) -> io::Result<()> {
        self.write(&self.repository(name).join("_blobs").join(digest.hex()), b"")
    }

    /// Takes an upload, whose digest was checked, as a blob of the repository.
    pub fn take_upload(&self, name: &str, id: &str, digest: &Digest) -> io::Result<()> {
        let path = self.upload_path(id);
        File::open(&path)?.sync_all()?;
        fs::rename(&path, self.blob_path(digest))?;
        self.link_blob(name, digest)
    }

    /// Writes beside the place, then into it.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let scratch = self.upload_path(&Self::new_id()?);
        let mut file = File::create(&scratch)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&scratch, path)
    }

    /// The manifest that a tag or a digest stands for.
    pub fn manifest(&self, name: &str, reference: &Reference) -> io::Result<Option<Manifest>> {
        let digest = match reference {
            Reference::Digest(digest) => digest.clone(),
            Reference::Tag(tag) => {
                let Some(text) = read(&self.repository(name).join("_tags").join(tag))? else {
                    return Ok(None);
                };
                let Some(digest) = Digest::parse(String::from_utf8_lossy(&text).trim()) else {
                    return Ok(None);
                };
                digest
            }
        };
        let link = self.repository(name).join("_manifests").join(digest.hex());
        let (Some(kind), Some(bytes)) = (read(&link)?, read(&self.blob_path(&digest))?) else {
            return Ok(None);
        };
        Ok(Some(Manifest { digest, media_type: String::from_utf8_lossy(&kind).into_owned(), bytes }))
    }

    /// Keeps a manifest, under a tag too if there is one.
    pub fn put_manifest(&self, name: &str, manifest: &Manifest, tag: Option<&str>) -> io::Result<()> {
        self.write(&self.blob_path(&manifest.digest), &manifest.bytes)?;
        let repository = self.repository(name);
        let link = repository.join("_manifests").join(manifest.digest.hex());
        self.write(&link, manifest.media_type.as_bytes())?;
        match tag {
            Some(tag) => self.write(&repository.join("_tags").join(tag), manifest.digest.as_str().as_bytes()),
            None => Ok(()),
        }
    }

    /// Forgets a tag, or a manifest with all its tags. Whether it was there.
    pub fn delete_manifest(&self, name: &str, reference: &Reference) -> io::Result<bool> {
        let repository = self.repository(name);
        match reference {
            Reference::Tag(tag) => remove(&repository.join("_tags").join(tag)),
            Reference::Digest(digest) => {
                for tag in self.tags(name)? {
                    let path = repository.join("_tags").join(tag);
                    if read(&path)?.is_some_and(|text| text == digest.as_str().as_bytes()) {
                        remove(&path)?;
                    }
                }
                remove(&repository.join("_manifests").join(digest.hex()))
            }
        }
    }

    /// Takes a blob from a repository. The content goes with the next collection. Whether it was there.
    pub fn delete_blob(&self, name: &str, digest: &Digest) -> io::Result<bool> {
        remove(&self.repository(name).join("_blobs").join(digest.hex()))
    }

    /// The tags of a repository, sorted.
    pub fn tags(&self, name: &str) -> io::Result<Vec<String>> {
        names(&self.repository(name).join("_tags"))
    }

    /// The manifests of a repository.
    pub fn manifests(&self, name: &str) -> io::Result<Vec<Digest>> {
        let all = names(&self.repository(name).join("_manifests"))?;
        Ok(all.iter().filter_map(|hex| Digest::parse(&format!("sha256:{hex}"))).collect())
    }

    /// All repositories, sorted.
    pub fn catalog(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut open = vec![(String::new(), 0)];
        while let Some((name, depth)) = open.pop() {
            for inner in names(&self.repository(&name))? {
                if inner == "_manifests" {
                    found.push(name.clone());
                } else if !inner.starts_with('_') && depth < MAX_DEPTH {
                    let below = if name.is_empty() { inner } else { format!("{name}/{inner}") };
                    open.push((below, depth + 1));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes content that no manifest needs; with `untagged` also manifests that no tag leads to. With `dry`, only says so.
    pub fn collect(&self, untagged: bool, dry: bool) -> io::Result<Collected> {
        let mut done = Collected::default();
        let mut needed = BTreeSet::new();
        for name in self.catalog()? {
            let all = self.manifests(&name)?;
            let mut roots: Vec<Digest> = Vec::new();
            if untagged {
                for tag in self.tags(&name)? {
                    let manifest = self.manifest(&name, &Reference::Tag(tag))?;
                    roots.extend(manifest.map(|manifest| manifest.digest));
                }
            } else {
                roots.clone_from(&all);
            }
            let mut kept: BTreeSet<Digest> = BTreeSet::new();
            while let Some(digest) = roots.pop() {
                if !kept.insert(digest.clone()) {
                    continue;
                }
                let Some(manifest) = self.manifest(&name, &Reference::Digest(digest))? else { continue };
                let mentioned = mentioned(&manifest.bytes);
                roots.extend(mentioned.iter().filter(|digest| all.contains(digest)).cloned());
                needed.extend(mentioned);
                // What describes a manifest stays as long as that does.
                if untagged {
                    roots.extend(
                        self.referrers(&name, &manifest.digest)?.into_iter().map(|other| other.digest),
                    );
                }
            }
            for digest in all.into_iter().filter(|digest| !kept.contains(digest)) {
                if !dry {
                    self.delete_manifest(&name, &Reference::Digest(digest.clone()))?;
                }
                done.manifests.push((name.clone(), digest));
            }
            needed.append(&mut kept);
        }
        for hex in names(&self.root.join("blobs/sha256"))? {
            let Some(digest) = Digest::parse(&format!("sha256:{hex}")) else { continue };
            if needed.contains(&digest) {
                continue;
            }
            let path = self.blob_path(&digest);
            done.bytes += fs::metadata(&path).map(|meta| meta.len()).unwrap_or_default();
            if !dry {
                remove(&path)?;
            }
            done.blobs.push(digest);
        }
        if !dry {
            self.drop_empty_links()?;
        }
        Ok(done)
    }

    /// Links to blobs that are gone.
    fn drop_empty_links(&self) -> io::Result<()> {
        for name in self.catalog()? {
            let directory = self.repository(&name).join("_blobs");
            for hex in names(&directory)? {
                let gone = Digest::parse(&format!("sha256:{hex}"))
                    .is_none_or(|digest| !self.blob_path(&digest).is_file());
                if gone {
                    remove(&directory.join(hex))?;
                }
            }
        }
        Ok(())
    }

    /// The manifests of a repository that describe another one.
    pub fn referrers(&self, name: &str, digest: &Digest) -> io::Result<Vec<Manifest>> {
        let mut found = Vec::new();
        for other in self.manifests(name)? {
            if let Some(manifest) = self.manifest(name, &Reference::Digest(other))?
                && subject(&manifest.bytes).as_ref() == Some(digest)
            {
                found.push(manifest);
            }
        }
        Ok(found)
    }
}

/// What a manifest is about, if that is another one.
pub fn subject(bytes: &[u8]) -> Option<Digest> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    Digest::parse(value["subject"]["digest"].as_str()?)
}

/// Every digest that a manifest names.
fn mentioned(bytes: &[u8]) -> Vec<Digest> {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return Vec::new() };
    let digest = |value: &Value| Digest::parse(value["digest"].as_str()?);
    let list =
        |name: &str| value[name].as_array().into_iter().flatten().filter_map(digest).collect::<Vec<_>>();
    let mut all: Vec<Digest> = digest(&value["config"]).into_iter().collect();
    all.extend(list("layers"));
    all.extend(list("manifests"));
    all
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What is in a directory, sorted; nothing where there is none.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut all = Vec::new();
    for entry in entries {
        all.extend(entry?.file_name().into_string());
    }
    all.sort();
    Ok(all)
}
