//! Images on disk.
//!
//! ```text
//! <root>/lock                   shared by readers that go on to use a layer, exclusive for changes
//! <root>/images/<hex>.json      one ImageRecord per image, named by the digest of its configuration
//! <root>/blobs/sha256/<hex>     configurations and manifests as they came; layers too, where somebody wants them back
//! <root>/layers/<short>/        one unpacked layer, named by its chain: the digest of it and all below
//! <root>/snapshots/<container>/ the writable layer of a container, and layers.json: the layers under it
//! <root>/tmp/                   everything starts here and is renamed into place
//! <root>/tmp/<id>/{lock,needs}  of a pull: while its lock is held the layers that it needs are not removed
//! ```
//!
//! Two processes may work on the same root: `kelson image import` beside a running `kelson up`. So nothing is
//! cached, every change is a rename under the lock, and a layer is removed only when neither a record nor a
//! snapshot names it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::manifest::{self, Document, Manifest};
use super::reference::{BadReference, is_digest};
use super::view::View;
use super::{Reference, RunConfig};
use crate::{records, sys};

/// A text file of an image beyond this is not read: /etc/passwd of a large site has 100 KiB.
const MAX_TEXT: u64 = 4 << 20;

/// Why an image could not be handled.
#[derive(Debug, Error)]
pub enum ImageError {
    /// No such image.
    #[error("image {0} is not present")]
    Absent(String),
    /// Not a name of an image.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// The archive is not what it claims to be.
    #[error("{path} is not a usable image archive: {reason}")]
    Archive { path: PathBuf, reason: String },
    /// Content does not have the digest under which it was announced.
    #[error("{what} should have digest {expected} but has {actual}")]
    Digest { what: String, expected: String, actual: String },
    /// The disk refused.
    #[error("cannot {doing} {path}")]
    Disk {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    pub(crate) fn disk(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Disk { doing, path: path.to_path_buf(), source }
    }
}

type Result<T> = std::result::Result<T, ImageError>;

/// What is known of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Digest of its configuration.
    pub id: String,
    /// Its names with tags.
    pub tags: BTreeSet<String>,
    /// Its names with manifest digests.
    pub digests: BTreeSet<String>,
    /// Bytes of its layers.
    pub size: u64,
    /// Its layers' directories, bottom first.
    pub layers: Vec<String>,
    /// How to run it.
    pub config: RunConfig,
    /// Not to be removed by garbage collection.
    pub pinned: bool,
}

impl ImageRecord {
    /// The best name for a status: by digest, else by tag, else the id.
    pub fn resolved_name(&self) -> &str {
        self.digests.first().or(self.tags.first()).unwrap_or(&self.id)
    }
}

impl ImageRecord {
    /// Takes one name away. A name by digest takes all names of that repository.
    fn lose(&mut self, reference: &Reference) {
        match &reference.digest {
            Some(_) => {
                self.tags.retain(|tag| tag.rsplit_once(':').is_none_or(|(name, _)| name != reference.name))
            }
            None => drop(self.tags.remove(&reference.to_string())),
        }
    }
}

/// Whether the text is (the beginning of) the image's id rather than one of its names.
fn names_by_id(image: &ImageRecord, text: &str) -> bool {
    is_digest(text) || image.id.trim_start_matches("sha256:").starts_with(text)
}

/// The layers that a container stands on, kept beside its writable layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    pub image: String,
    pub layers: Vec<String>,
}

const LOCK: &str = "lock";
const NEEDS: &str = "needs";

/// A directory of work in progress. While it lives, a collection leaves it and the layers that it needs alone.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    _lock: File,
}

impl Workspace {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = remove_any(&self.path); // the next collection gets it
    }
}

/// A manifest as it came.
#[derive(Clone, Debug)]
pub struct Kept {
    pub digest: String,
    pub bytes: Vec<u8>,
    pub manifest: Manifest,
}

/// Holds the store's lock until dropped.
pub struct Guard(#[allow(dead_code)] File); // held for its drop

/// The images under one root directory.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// Opens the store, making its directories where they are missing.
    pub fn open(root: &Path) -> Result<Self> {
        // Layers hold other people's set-user programs: not for the users of this host.
        records::make_private(root).map_err(ImageError::disk("create", root))?;
        for name in ["images", "blobs/sha256", "layers", "snapshots", "tmp"] {
            let path = root.join(name);
            fs::create_dir_all(&path).map_err(ImageError::disk("create", &path))?;
        }
        Ok(Self { root: root.to_path_buf() })
    }

    /// The directory of the layers.
    pub fn layers(&self) -> PathBuf {
        self.root.join("layers")
    }

    /// The directory of one container's writable layer.
    pub fn snapshot(&self, container: &str) -> PathBuf {
        self.root.join("snapshots").join(container)
    }

    /// A new path for work in progress.
    pub fn scratch(&self) -> PathBuf {
        self.root.join("tmp").join(crate::new_id())
    }

    /// Keeps layers from being removed (shared), or everyone else away (exclusive).
    pub fn lock(&self, exclusive: bool) -> Result<Guard> {
        let path = self.root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(ImageError::disk("open", &path))?;
        sys::lock_file(&file, exclusive).map_err(ImageError::disk("lock", &path))?;
        Ok(Guard(file))
    }

    /// All images, by id.
    pub fn list(&self) -> Result<Vec<ImageRecord>> {
        let path = self.root.join("images");
        let mut all = Vec::new();
        for entry in fs::read_dir(&path).map_err(ImageError::disk("list", &path))? {
            let path = entry.map_err(ImageError::disk("list", &path))?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match records::read_if_there(&path) {
                    Ok(record) => all.extend(record), // removed since it was listed: not there
                    // A power loss may leave an empty file. The image is gone, not the node.
                    Err(error)
                        if error.kind() == io::ErrorKind::InvalidData
                            || error.kind() == io::ErrorKind::UnexpectedEof =>
                    {
                        tracing::warn!(%error, "an image's record cannot be read; it counts as absent");
                    }
                    Err(error) => return Err(ImageError::disk("read", &path)(error)),
                }
            }
        }
        all.sort_by(|a: &ImageRecord, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// One image by id, a unique beginning of an id, or a reference.
    pub fn find(&self, text: &str) -> Result<Option<ImageRecord>> {
        Ok(select(&self.list()?, text)?.cloned())
    }

    fn record_path(&self, id: &str) -> PathBuf {
        self.root.join("images").join(format!("{}.json", id.trim_start_matches("sha256:")))
    }

    /// Keeps a small blob under its digest.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<String> {
        let digest = sha256(bytes);
        let path = self.root.join("blobs/sha256").join(digest.trim_start_matches("sha256:"));
        if !path.exists() {
            records::write_bytes(&path, bytes).map_err(ImageError::disk("write", &path))?;
        }
        Ok(digest)
    }

    /// Where a blob is, or would be.
    pub fn blob_path(&self, digest: &str) -> PathBuf {
        self.root.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// A small blob, checked; `None` where it is not kept.
    pub fn blob(&self, digest: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.blob_path(digest)).ok()?;
        (sha256(&bytes) == digest).then_some(bytes)
    }

    /// A directory for long work, and a lease on layers that it stands on. Gone when dropped.
    pub fn workspace(&self, layers: &[String]) -> Result<Workspace> {
        // Under the shared lock, so that no collection sees it half made.
        let _lock = self.lock(false)?;
        let path = self.scratch();
        make_directory(&path, 0o700).map_err(ImageError::disk("create", &path))?;
        let file = path.join(LOCK);
        let lock = File::create(&file).map_err(ImageError::disk("create", &file))?;
        sys::lock_file(&lock, true).map_err(ImageError::disk("lock", &file))?;
        let needs = path.join(NEEDS);
        records::write(&needs, &layers).map_err(ImageError::disk("write", &needs))?;
        Ok(Workspace { path, _lock: lock })
    }

    /// The workspaces whose owners live, and the layers that they need.
    fn leases(&self) -> Result<(BTreeSet<String>, Vec<String>)> {
        let (mut held, mut needed) = (BTreeSet::new(), Vec::new());
        let directory = self.root.join("tmp");
        for name in names(&directory)? {
            let Ok(lock) = File::open(directory.join(&name).join(LOCK)) else { continue };
            if rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err() {
                let needs: Option<Vec<String>> =
                    records::read_if_there(&directory.join(&name).join(NEEDS)).unwrap_or_default();
                needed.extend(needs.unwrap_or_default());
                held.insert(name);
            }
        }
        Ok((held, needed))
    }

    /// The manifest of an image and all that it names, where every part of it is still here as it came.
    pub fn kept(&self, image: &ImageRecord) -> Option<Kept> {
        self.manifests(image).into_iter().find(|kept| {
            let layers = &kept.manifest.layers;
            layers.iter().all(|layer| self.blob_path(&layer.digest).is_file())
                && self.blob_path(&image.id).is_file()
        })
    }

    /// The manifests of an image that are here, found through indexes too.
    fn manifests(&self, image: &ImageRecord) -> Vec<Kept> {
        let mut found = Vec::new();
        let mut open: Vec<String> =
            image.digests.iter().filter_map(|name| Some(name.split_once('@')?.1.to_owned())).collect();
        let mut seen = BTreeSet::new();
        while let Some(digest) = open.pop() {
            if !seen.insert(digest.clone()) {
                continue;
            }
            let Some(bytes) = self.blob(&digest) else { continue };
            match manifest::parse(&bytes, "") {
                Ok(Document::Index(inner)) => open.extend(inner.into_iter().map(|inner| inner.digest)),
                Ok(Document::Image(manifest)) if manifest.config.digest == image.id => {
                    found.push(Kept { digest, bytes, manifest });
                }
                _ => {}
            }
        }
        found
    }

    /// Whether a layer is there.
    pub fn has_layer(&self, name: &str) -> bool {
        self.layers().join(name).is_dir()
    }

    /// Moves a finished directory to its place among the layers. Someone else's equal layer is as good.
    pub fn put_layer(&self, scratch: &Path, name: &str) -> Result<()> {
        let place = self.layers().join(name);
        match fs::rename(scratch, &place) {
            Err(_) if place.is_dir() => {
                fs::remove_dir_all(scratch).map_err(ImageError::disk("remove", scratch))
            }
            other => other.map_err(ImageError::disk("create", &place)),
        }
    }

    /// Adds an image, or more names of one; takes the names from whatever image had them. Call with the exclusive
    /// lock, with the layers in place.
    pub fn add(&self, mut image: ImageRecord, _lock: &Guard) -> Result<ImageRecord> {
        for mut other in self.list()? {
            if other.id == image.id {
                image.tags.append(&mut other.tags);
                image.digests.append(&mut other.digests);
            } else if other.tags.iter().any(|tag| image.tags.contains(tag)) {
                other.tags.retain(|tag| !image.tags.contains(tag));
                // A built-in image that lost its name was replaced by a newer build of us.
                other.pinned &= !other.tags.is_empty();
                self.save(&other)?;
                if other.tags.is_empty() && other.digests.is_empty() {
                    self.forget(&other)?;
                }
            }
        }
        self.save(&image)?;
        Ok(image)
    }

    fn save(&self, image: &ImageRecord) -> Result<()> {
        let path = self.record_path(&image.id);
        records::write(&path, image).map_err(ImageError::disk("write", &path))
    }

    fn forget(&self, image: &ImageRecord) -> Result<()> {
        let path = self.record_path(&image.id);
        fs::remove_file(&path).map_err(ImageError::disk("remove", &path))
    }

    /// Removes a name, and the image with its last name; an id removes the image with all names. Layers that
    /// nothing needs any more go too. Absent is `None`.
    pub fn remove(&self, text: &str) -> Result<Option<ImageRecord>> {
        let lock = self.lock(true)?;
        let Some(mut image) = self.find(text)? else { return Ok(None) };
        let removed = image.clone();
        match Reference::parse(text) {
            Ok(reference) if !names_by_id(&image, text) => image.lose(&reference),
            _ => image.tags.clear(),
        }
        if image.tags.is_empty() {
            self.forget(&image)?;
        } else {
            self.save(&image)?;
        }
        self.collect(lock)?;
        Ok(Some(removed))
    }

    /// Removes layers, blobs and work in progress that nothing refers to. Needs the exclusive lock, but only to move
    /// things out of the way; the slow part is done without.
    pub fn collect(&self, lock: Guard) -> Result<()> {
        let images = self.list()?;
        let mut needed: BTreeSet<String> = images.iter().flat_map(|image| image.layers.clone()).collect();
        for name in names(&self.root.join("snapshots"))? {
            let path = self.snapshot(&name).join("layers.json");
            let record: Option<SnapshotRecord> =
                records::read_if_there(&path).map_err(ImageError::disk("read", &path))?;
            needed.extend(record.unwrap_or_default().layers);
        }
        let (held, leased) = self.leases()?;
        needed.extend(leased);
        for name in names(&self.layers())?.into_iter().filter(|name| !needed.contains(name)) {
            // First away, then apart: a crash in between leaves no half a layer.
            let (path, scratch) = (self.layers().join(&name), self.scratch());
            fs::rename(&path, &scratch).map_err(ImageError::disk("remove", &path))?;
        }
        let mut blobs: BTreeSet<String> = images.iter().map(|image| image.id.clone()).collect();
        for image in &images {
            blobs.extend(image.digests.iter().filter_map(|name| Some(name.split_once('@')?.1.to_owned())));
            for kept in self.manifests(image) {
                blobs.insert(kept.digest);
                blobs.extend(kept.manifest.layers.into_iter().map(|layer| layer.digest));
            }
        }
        let directory = self.root.join("blobs/sha256");
        for name in names(&directory)? {
            if !blobs.contains(&format!("sha256:{name}")) {
                let path = directory.join(&name);
                fs::remove_file(&path).map_err(ImageError::disk("remove", &path))?;
            }
        }
        // Under the lock only those with a lease have work in progress; the rest is left over.
        let scratch = self.root.join("tmp");
        let rubbish: Vec<String> = names(&scratch)?.into_iter().filter(|name| !held.contains(name)).collect();
        drop(lock);
        for name in rubbish {
            let path = scratch.join(name);
            remove_any(&path).map_err(ImageError::disk("remove", &path))?;
        }
        Ok(())
    }

    /// Reads a small file of an image without mounting it; `None` where there is no regular one. Links are followed inside
    /// the image.
    pub fn read_file(&self, layers: &[String], path: &Path) -> Result<Option<String>> {
        let directories: Vec<PathBuf> = layers.iter().rev().map(|name| self.layers().join(name)).collect();
        let bytes = View::open(&directories).and_then(|view| view.read(path, MAX_TEXT));
        let bytes = bytes.map_err(ImageError::disk("read in the image", path))?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

/// The image that a text means.
fn select<'a>(images: &'a [ImageRecord], text: &str) -> Result<Option<&'a ImageRecord>> {
    if is_digest(text) {
        return Ok(images.iter().find(|image| image.id == text));
    }
    let is_hex = text.len() >= 12 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex {
        let mut found =
            images.iter().filter(|image| image.id.trim_start_matches("sha256:").starts_with(text));
        if let (Some(image), None) = (found.next(), found.next()) {
            return Ok(Some(image));
        }
    }
    let reference = Reference::parse(text)?;
    Ok(match &reference.digest {
        Some(digest) => {
            let name = format!("{}@{digest}", reference.name);
            images.iter().find(|image| image.digests.contains(&name))
        }
        None => {
            let name = reference.to_string();
            images.iter().find(|image| image.tags.contains(&name))
        }
    })
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).map_err(ImageError::disk("list", directory))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Makes a directory with exactly this mode.
pub(super) fn make_directory(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Removes a file or a directory with all in it.
pub fn remove_any(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Bytes and inodes below a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskUse {
    pub bytes: u64,
    pub inodes: u64,
}

/// What a directory holds. What vanishes while counting does not count.
pub fn disk_use(directory: &Path) -> DiskUse {
    let mut total = DiskUse::default();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        total.inodes += 1;
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            let below = disk_use(&entry.path());
            total.bytes += below.bytes;
            total.inodes += below.inodes;
        } else {
            total.bytes += meta.len();
        }
    }
    total
}

/// The digest of some bytes, as images write it.
pub fn sha256(bytes: &[u8]) -> String {
    format_digest(digest(&SHA256, bytes).as_ref())
}

pub(super) fn format_digest(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::from("sha256:"), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a String takes everything
        text
    })
}

/// The directory name of a layer with digest `diff_id` on top of `below`. Short, so that a mount's options hold
/// many; long enough to be unique.
pub fn layer_name(below: Option<&str>, diff_id: &str) -> String {
    let chain = match below {
        Some(below) => sha256(format!("{below} {diff_id}").as_bytes()),
        None => sha256(diff_id.as_bytes()),
    };
    chain["sha256:".len()..][..24].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(hex: char, tags: &[&str]) -> ImageRecord {
        ImageRecord {
            id: format!("sha256:{}", hex.to_string().repeat(64)),
            tags: tags.iter().map(ToString::to_string).collect(),
            digests: BTreeSet::new(),
            size: 0,
            layers: vec![format!("layer-{hex}")],
            config: RunConfig::default(),
            pinned: false,
        }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        (directory, store)
    }

    #[test]
    fn a_name_belongs_to_the_image_that_took_it_last() {
        let (_directory, store) = store();
        let lock = store.lock(true).unwrap();
        store.add(image('a', &["x.io/app:1", "x.io/app:2"]), &lock).unwrap();
        store.add(image('b', &["x.io/app:1"]), &lock).unwrap();
        assert!(store.find("x.io/app:1").unwrap().unwrap().id.contains("bbbb"));
        assert!(store.find("x.io/app:2").unwrap().unwrap().id.contains("aaaa"));
        assert!(store.find("x.io/app").unwrap().is_none());
        assert!(store.find(&"a".repeat(12)).unwrap().is_some());
        assert!(store.find("Not A Name").is_err());
    }

    #[test]
    fn layers_go_when_neither_image_nor_container_needs_them() {
        let (_directory, store) = store();
        for hex in ['a', 'b'] {
            fs::create_dir(store.layers().join(format!("layer-{hex}"))).unwrap();
        }
        let lock = store.lock(true).unwrap();
        store.add(image('a', &["x.io/a:1"]), &lock).unwrap();
        store.add(image('b', &["x.io/b:1"]), &lock).unwrap();
        drop(lock);
        fs::create_dir(store.snapshot("c1")).unwrap();
        let record = SnapshotRecord { image: "b".into(), layers: vec!["layer-b".into()] };
        records::write(&store.snapshot("c1").join("layers.json"), &record).unwrap();

        assert!(store.remove("x.io/a:1").unwrap().is_some());
        assert!(store.remove("x.io/b:1").unwrap().is_some());
        assert!(store.remove("x.io/b:1").unwrap().is_none());
        assert!(!store.has_layer("layer-a"));
        assert!(store.has_layer("layer-b"));
    }
}
