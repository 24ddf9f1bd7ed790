//! Images from files: docker-archive, oci-archive and OCI layout, as a tar file (plain or gzip) or a directory.
//!
//! `open → manifests → layers → store`. Whatever the form, an archive is a set of named files; a manifest says
//! which of them are an image's configuration and layers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;
use ring::digest::{Context, SHA256};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::store::{Guard, ImageError, ImageRecord, Store, format_digest, layer_name, sha256};
use super::{ImageConfig, Reference, architecture, unpack};

type Result<T> = std::result::Result<T, ImageError>;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Manifests and configurations beyond this are not believed.
const MAX_DOCUMENT: u64 = 8 << 20;

/// What a compressed layer or archive may expand to. Program text reaches a ratio of 10; the best that gzip can do, with
/// zeros, is 1032.
const EXPANSION: Expansion = Expansion { bytes: 64 << 30, ratio: 200, always: 1 << 30 };
/// Files in an archive of images.
const MAX_FILES: usize = 1 << 16;
/// Indexes within indexes.
const MAX_DEPTH: usize = 4;

/// One image found in an archive.
#[derive(Debug)]
struct Found {
    names: Vec<String>,
    /// Of the manifest, where it has one.
    digest: Option<String>,
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

/// An index has manifests, a manifest has a configuration and layers; both forms come under either media type.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// Imports every image of an archive. `tag` replaces the names in it and is then needed for one that has none.
pub fn import(store: &Store, path: &Path, tag: Option<&str>) -> Result<Vec<ImageRecord>> {
    let tag = tag.map(Reference::parse).transpose()?;
    // Shared with other imports and with pods being made; keeps collections away from what is in progress.
    let working = store.lock(false)?;
    let archive = Archive::open(store, path)?;
    let bad = |reason: String| ImageError::Archive { path: path.to_path_buf(), reason };
    let mut found = archive.images(path)?;
    match (&tag, found.as_mut_slice()) {
        (_, []) => return Err(bad(format!("it has no image for linux/{}", architecture()))),
        (Some(tag), [one]) => one.names = vec![tag.to_string()],
        (Some(_), many) => return Err(bad(format!("it has {} images, so one tag does not fit", many.len()))),
        (None, many) if many.iter().any(|image| image.names.is_empty()) => {
            return Err(bad("an image in it has no name: give one with --tag".into()));
        }
        (None, _) => {}
    }
    let unpacked =
        found.iter().map(|image| unpack_image(store, &archive, image, path)).collect::<Result<Vec<_>>>()?;
    drop(working);
    let lock = store.lock(true)?;
    unpacked.into_iter().map(|image| record(store, image, path, &lock)).collect()
}

/// Unpacks what is missing of an image; gives its record-to-be and its configuration as it came.
fn unpack_image(
    store: &Store,
    archive: &Archive,
    found: &Found,
    path: &Path,
) -> Result<(ImageRecord, Vec<u8>)> {
    let bad = |reason: String| ImageError::Archive { path: path.to_path_buf(), reason };
    let bytes = archive.read(&found.config, path)?;
    let config: ImageConfig =
        serde_json::from_slice(&bytes).map_err(|error| bad(format!("{}: {error}", found.config)))?;
    if config.rootfs.diff_ids.len() != found.layers.len() {
        let (said, listed) = (config.rootfs.diff_ids.len(), found.layers.len());
        return Err(bad(format!("its configuration speaks of {said} layers, its manifest of {listed}")));
    }
    if !config.architecture.is_empty() && config.architecture != architecture() {
        return Err(bad(format!("it is for {}, this machine is {}", config.architecture, architecture())));
    }
    let mut layers: Vec<String> = Vec::new();
    let mut size = 0;
    for (file, diff_id) in found.layers.iter().zip(&config.rootfs.diff_ids) {
        let name = layer_name(layers.last().map(String::as_str), diff_id);
        size += match layer_size(store, &name) {
            Some(size) => size,
            None => {
                let below: Vec<PathBuf> = layers.iter().rev().map(|name| store.layers().join(name)).collect();
                import_layer(store, archive.open_file(file, path)?, file, diff_id, &name, &below)?
            }
        };
        layers.push(name);
    }
    let references =
        found.names.iter().map(|name| Reference::parse(name)).collect::<std::result::Result<Vec<_>, _>>()?;
    let image = ImageRecord {
        id: sha256(&bytes),
        tags: references.iter().filter_map(Reference::tagged).collect(),
        digests: references
            .iter()
            .filter_map(|reference| Some(format!("{}@{}", reference.name, found.digest.as_ref()?)))
            .collect(),
        size,
        layers,
        config: config.config,
        pinned: false,
    };
    Ok((image, bytes))
}

fn record(
    store: &Store,
    (image, config): (ImageRecord, Vec<u8>),
    path: &Path,
    lock: &Guard,
) -> Result<ImageRecord> {
    if image.layers.iter().any(|name| !store.has_layer(name)) {
        let reason = "another process removed images meanwhile: import again".to_owned();
        return Err(ImageError::Archive { path: path.to_path_buf(), reason });
    }
    store.put_blob(&config)?;
    store.add(image, lock)
}

/// The bytes of a layer that is there already.
fn layer_size(store: &Store, name: &str) -> Option<u64> {
    let path = store.layers().join(name);
    path.is_dir().then(|| super::store::disk_use(&path).bytes)
}

fn import_layer(
    store: &Store,
    layer: impl Read,
    file: &str,
    diff_id: &str,
    name: &str,
    below: &[PathBuf],
) -> Result<u64> {
    let scratch = store.scratch();
    let unpacked =
        super::store::make_directory(&scratch, 0o755).map_err(ImageError::disk("create", &scratch)).and_then(
            |()| {
                let mut hashed = Hashed {
                    inner: decompress(layer).map_err(ImageError::disk("read", Path::new(file)))?,
                    context: Context::new(&SHA256),
                };
                let size = unpack::unpack(&mut hashed, &scratch, below).map_err(|source| {
                    ImageError::Disk { doing: "unpack layer", path: file.into(), source }
                })?;
                let actual = format_digest(hashed.context.finish().as_ref());
                if actual != diff_id {
                    return Err(ImageError::Digest {
                        what: format!("layer {file}"),
                        expected: diff_id.to_owned(),
                        actual,
                    });
                }
                Ok(size)
            },
        );
    match unpacked {
        Ok(size) => store.put_layer(&scratch, name).map(|()| size),
        Err(error) => {
            let _ = super::store::remove_any(&scratch); // the next collection gets it
            Err(error)
        }
    }
}

/// A reader that also hashes.
pub(super) struct Hashed<R> {
    inner: R,
    context: Context,
}

impl<R> Hashed<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, context: Context::new(&SHA256) }
    }

    /// The digest of all that was read.
    pub(super) fn finish(self) -> String {
        format_digest(self.context.finish().as_ref())
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.context.update(&buffer[..count]);
        Ok(count)
    }
}

/// Undoes compression, which is recognised by its first bytes: media types lie. What comes out is bounded by
/// [`EXPANSION`].
pub fn decompress<'a>(source: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    decompress_within(source, EXPANSION)
}

fn decompress_within<'a>(source: impl Read + 'a, limits: Expansion) -> io::Result<Box<dyn Read + 'a>> {
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { inner: source, taken: taken.clone() };
    let mut source = BufReader::with_capacity(64 * 1024, counted);
    let start = io::BufRead::fill_buf(&mut source)?;
    let inner: Box<dyn Read + 'a> = if start.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(source))
    } else if start.starts_with(&ZSTD) {
        Box::new(ruzstd::decoding::StreamingDecoder::new(source).map_err(io::Error::other)?)
    } else {
        Box::new(source)
    };
    Ok(Box::new(Expanded { inner, taken, given: 0, limits }))
}

/// How much decompression may give.
#[derive(Clone, Copy)]
struct Expansion {
    /// At most.
    bytes: u64,
    /// For each byte taken, once it is more than `always`.
    ratio: u64,
    /// Whatever was taken: small archives of mostly zeros are harmless.
    always: u64,
}

/// A reader that counts.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}

/// What a decompressor gives, as long as it is in proportion to what it took.
struct Expanded<'a> {
    inner: Box<dyn Read + 'a>,
    taken: Rc<Cell<u64>>,
    given: u64,
    limits: Expansion,
}

impl Read for Expanded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.given += count as u64;
        let Expansion { bytes, ratio, always } = self.limits;
        let in_proportion = self.given <= always || self.given <= self.taken.get().saturating_mul(ratio);
        if self.given > bytes || !in_proportion {
            let reason = format!("it expands to more than {} bytes, which is out of proportion", self.given);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(count)
    }
}

/// The files of an archive.
enum Archive {
    Directory(OwnedFd),
    Tar { file: File, entries: BTreeMap<String, Place> },
}

/// Where a file of a tar archive is.
enum Place {
    At {
        offset: u64,
        size: u64,
    },
    /// Old Docker archives say "the same as that one".
    Link(String),
}

impl Archive {
    fn open(store: &Store, path: &Path) -> Result<Self> {
        let meta = fs::metadata(path).map_err(ImageError::disk("open", path))?;
        if meta.is_dir() {
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            let directory = rustix::fs::open(path, flags, Mode::empty());
            return Ok(Self::Directory(
                directory.map_err(|error| ImageError::disk("open", path)(error.into()))?,
            ));
        }
        let mut file = File::open(path).map_err(ImageError::disk("open", path))?;
        let mut start = [0; 4];
        let count = file.read(&mut start).map_err(ImageError::disk("read", path))?;
        file.rewind().map_err(ImageError::disk("read", path))?;
        if start[..count].starts_with(&GZIP) || start[..count] == ZSTD {
            file = expand(store, file, path)?;
        }
        let entries = index(&file).map_err(|error| ImageError::Archive {
            path: path.to_path_buf(),
            reason: format!("not a tar file: {error}"),
        })?;
        Ok(Self::Tar { file, entries })
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(root) => open_beneath(root, name).is_ok(),
            Self::Tar { entries, .. } => entries.contains_key(name),
        }
    }

    fn open_file(&self, name: &str, path: &Path) -> Result<Box<dyn Read + '_>> {
        let missing =
            || ImageError::Archive { path: path.to_path_buf(), reason: format!("{name} is missing in it") };
        if Path::new(name).components().any(|part| matches!(part, std::path::Component::ParentDir)) {
            return Err(missing());
        }
        match self {
            Self::Directory(root) => match open_beneath(root, name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
                other => Ok(Box::new(other.map_err(ImageError::disk("open", Path::new(name)))?)),
            },
            Self::Tar { file, entries } => {
                let mut place = entries.get(name);
                if let Some(Place::Link(target)) = place {
                    place = entries.get(target);
                }
                let Some(Place::At { offset, size }) = place else { return Err(missing()) };
                Ok(Box::new(Section { file, offset: *offset, left: *size }))
            }
        }
    }

    fn read(&self, name: &str, path: &Path) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = self.open_file(name, path)?.take(MAX_DOCUMENT);
        file.read_to_end(&mut bytes).map_err(ImageError::disk("read", path))?;
        Ok(bytes)
    }

    fn document<T: DeserializeOwned>(&self, name: &str, path: &Path) -> Result<T> {
        serde_json::from_slice(&self.read(name, path)?).map_err(|error| ImageError::Archive {
            path: path.to_path_buf(),
            reason: format!("{name}: {error}"),
        })
    }

    /// A blob of an OCI layout, checked.
    fn blob(&self, digest: &str, path: &Path) -> Result<Vec<u8>> {
        let bytes = self.read(&blob_name(digest), path)?;
        let actual = sha256(&bytes);
        match actual == digest {
            true => Ok(bytes),
            false => Err(ImageError::Digest { what: "a blob".into(), expected: digest.to_owned(), actual }),
        }
    }

    /// The images in it.
    fn images(&self, path: &Path) -> Result<Vec<Found>> {
        let docker = match self.has("manifest.json") {
            true => self.docker_images(path)?,
            false => Vec::new(),
        };
        if !self.has("index.json") {
            if docker.is_empty() {
                let reason = "it has neither index.json nor manifest.json".into();
                return Err(ImageError::Archive { path: path.to_path_buf(), reason });
            }
            return Ok(docker);
        }
        // Newer Docker writes both; the index has the digests, the other may have the names.
        let index: Document = self.document("index.json", path)?;
        let mut found = Vec::new();
        for descriptor in index.manifests {
            let names = names_of(&descriptor);
            let Some((digest, document)) = self.resolve(&descriptor, path, MAX_DEPTH)? else { continue };
            let Some(config) = document.config else { continue };
            let config = blob_name(&config.digest);
            let names = match docker.iter().find(|image| image.config == config) {
                Some(image) if names.is_empty() => image.names.clone(),
                _ => names,
            };
            let layers = document.layers.iter().map(|layer| blob_name(&layer.digest)).collect();
            found.push(Found { names, digest: Some(digest), config, layers });
        }
        Ok(found)
    }

    fn docker_images(&self, path: &Path) -> Result<Vec<Found>> {
        let manifests: Vec<DockerManifest> = self.document("manifest.json", path)?;
        let found = manifests.into_iter().map(|manifest| Found {
            names: manifest.repo_tags.unwrap_or_default(),
            digest: None,
            config: manifest.config,
            layers: manifest.layers,
        });
        Ok(found.collect())
    }

    /// Follows indexes down to the manifest for this machine.
    fn resolve(
        &self,
        descriptor: &Descriptor,
        path: &Path,
        depth: usize,
    ) -> Result<Option<(String, Document)>> {
        if descriptor.platform.as_ref().is_some_and(|p| p.os != "linux" || p.architecture != architecture()) {
            return Ok(None);
        }
        let bytes = self.blob(&descriptor.digest, path)?;
        let document: Document = serde_json::from_slice(&bytes).map_err(|error| ImageError::Archive {
            path: path.to_path_buf(),
            reason: format!("manifest {} ({}): {error}", descriptor.digest, descriptor.media_type),
        })?;
        if document.config.is_some() {
            return Ok(Some((descriptor.digest.clone(), document)));
        }
        let Some(depth) = depth.checked_sub(1) else {
            let reason = format!("more than {MAX_DEPTH} indexes within each other");
            return Err(ImageError::Archive { path: path.to_path_buf(), reason });
        };
        for inner in document.manifests.iter().filter(|inner| inner.platform.is_some()) {
            if let Some(found) = self.resolve(inner, path, depth)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Opens a regular file of a layout on disk. A link must not make us read, hash or unpack what is elsewhere.
fn open_beneath(root: &OwnedFd, name: &str) -> io::Result<File> {
    let name = name.trim_start_matches('/');
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(rustix::fs::openat2(root, name, flags, Mode::empty(), resolve)?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")),
    }
}

/// The names that an index gives to a manifest. A bare tag is no name.
fn names_of(descriptor: &Descriptor) -> Vec<String> {
    let annotation = |key: &str| descriptor.annotations.get(key).cloned();
    let full = annotation("io.containerd.image.name");
    let reference = annotation("org.opencontainers.image.ref.name").filter(|name| name.contains(['/', ':']));
    full.or(reference).into_iter().collect()
}

fn blob_name(digest: &str) -> String {
    format!("blobs/{}", digest.replacen(':', "/", 1))
}

/// Writes the decompressed archive to a nameless file of the store: an archive is read in more than one order.
fn expand(store: &Store, file: File, path: &Path) -> Result<File> {
    let scratch = store.scratch();
    let expanded = (|| {
        let mut target = File::options().create_new(true).read(true).write(true).open(&scratch)?;
        fs::remove_file(&scratch)?;
        io::copy(&mut decompress(file)?, &mut target)?;
        target.flush()?;
        target.rewind()?;
        Ok(target)
    })();
    expanded.map_err(ImageError::disk("decompress", path))
}

fn index(file: &File) -> io::Result<BTreeMap<String, Place>> {
    let mut entries = BTreeMap::new();
    let allowance = unpack::Allowance::default();
    let mut archive = tar::Archive::new(unpack::Rationed { inner: file, allowance: allowance.clone() });
    // Data is passed over by seeking, so all that is read is headers.
    allowance.set(unpack::Limits::DEFAULT.headers);
    for entry in archive.entries_with_seek()? {
        let entry = entry?;
        allowance.set(unpack::Limits::DEFAULT.headers);
        if entries.len() == MAX_FILES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {MAX_FILES} files")));
        }
        let path = entry.path()?.into_owned();
        let name = path.to_string_lossy().trim_start_matches("./").to_owned();
        let place = match entry.link_name()? {
            Some(target) => {
                let parent = path.parent().unwrap_or(Path::new(""));
                Place::Link(normalize(&parent.join(target)))
            }
            None => Place::At { offset: entry.raw_file_position(), size: entry.size() },
        };
        entries.insert(name, place);
    }
    Ok(entries)
}

fn normalize(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.to_str().unwrap_or_default().split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// A part of a file, read at its own pace.
struct Section<'a> {
    file: &'a File,
    offset: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = std::os::unix::fs::FileExt::read_at(self.file, &mut buffer[..wanted], self.offset)?;
        self.offset += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_expands_out_of_proportion_is_refused() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&vec![0; 1 << 20]).unwrap();
        let bomb = encoder.finish().unwrap();
        let expand = |limits| {
            let mut reader = decompress_within(&bomb[..], limits).unwrap();
            io::copy(&mut reader, &mut io::sink())
        };
        let generous = Expansion { bytes: 1 << 20, ratio: 2000, always: 0 };
        assert_eq!(expand(generous).unwrap(), 1 << 20);
        assert_eq!(expand(Expansion { ratio: 10, always: 1 << 20, ..generous }).unwrap(), 1 << 20);
        for limits in [
            Expansion { ratio: 10, ..generous },
            Expansion { ratio: 10, always: 1000, ..generous },
            Expansion { bytes: 1000, ..generous },
        ] {
            assert_eq!(expand(limits).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
