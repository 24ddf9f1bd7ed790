//! Archives: what an image has below a directory, and a layer that is always the same for the same files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::Path;

use container_runtime::image::import::decompress;
use container_runtime::image::store::sha256;
use flate2::Compression;
use flate2::write::GzEncoder;
use release::File;
use tar::{Builder, EntryType, Header};

/// A file of a release is an object or a few; whatever is larger is not one.
const LARGEST_FILE: u64 = 16 << 20;
const MOST_FILES: usize = 20_000;

/// What a layer does to a directory.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    files: BTreeMap<String, Vec<u8>>,
    /// Names that are gone.
    removed: BTreeSet<String>,
    /// Everything below is hidden.
    opaque: bool,
}

/// Reads what an archive, compressed or not, has directly in a directory.
pub fn read(archive: impl Read, directory: &str) -> io::Result<Changes> {
    let mut changes = Changes::default();
    let mut tar = tar::Archive::new(decompress(archive)?);
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = entry.path_bytes().into_owned();
        let path = String::from_utf8_lossy(&path).into_owned();
        let path = path.trim_start_matches("./").trim_matches('/');
        if path == format!(".wh.{directory}") {
            changes.opaque = true;
            continue;
        }
        let Some(name) = path.strip_prefix(directory).and_then(|rest| rest.strip_prefix('/')) else {
            continue;
        };
        if name.is_empty() || name.contains('/') {
            continue;
        }
        if name == ".wh..wh..opq" {
            changes.opaque = true;
        } else if let Some(gone) = name.strip_prefix(".wh.") {
            changes.removed.insert(gone.to_owned());
        } else if entry.header().entry_type() == EntryType::Regular {
            if entry.size() > LARGEST_FILE || changes.files.len() >= MOST_FILES {
                return Err(io::Error::other(format!("{path} is more than a release may have")));
            }
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            changes.files.insert(name.to_owned(), bytes);
        }
    }
    Ok(changes)
}

/// What is in the directory after all layers, bottom first.
pub fn stack<'a>(layers: impl IntoIterator<Item = &'a Changes>) -> Vec<File> {
    let mut all: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for layer in layers {
        if layer.opaque {
            all.clear();
        }
        all.retain(|name, _| !layer.removed.contains(name));
        all.extend(layer.files.clone());
    }
    all.into_iter().map(|(name, bytes)| File { name, bytes }).collect()
}

/// A finished layer.
#[derive(Clone, Debug)]
pub struct Layer {
    pub bytes: Vec<u8>,
    pub digest: String,
    pub diff_id: String,
}

/// One thing in a layer.
pub enum Entry<'a> {
    Directory { path: &'a str, mode: u32 },
    File { path: String, mode: u32, bytes: &'a [u8] },
    Link { path: String, target: &'a str },
}

/// Packs a layer. Nothing in it but what is given: no owner, no time of its own.
pub fn pack<'a>(entries: impl IntoIterator<Item = Entry<'a>>, time: u64) -> io::Result<Layer> {
    let mut tar = Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        match entry {
            Entry::Directory { path, mode } => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(mode);
                tar.append_data(&mut header, path, io::empty())?;
            }
            Entry::File { path, mode, bytes } => {
                header.set_mode(mode);
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, bytes)?;
            }
            Entry::Link { path, target } => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                tar.append_link(&mut header, path, target)?;
            }
        }
    }
    let archive = tar.into_inner()?;
    let diff_id = sha256(&archive);
    let mut gzip = GzEncoder::new(Vec::with_capacity(archive.len() / 2), Compression::fast());
    gzip.write_all(&archive)?;
    let bytes = gzip.finish()?;
    Ok(Layer { digest: sha256(&bytes), diff_id, bytes })
}

/// Packs files of one directory.
pub fn pack_files(directory: &str, files: &[File], time: u64) -> io::Result<Layer> {
    let entries = files.iter().map(|file| Entry::File {
        path: format!("{directory}/{}", file.name),
        mode: 0o444,
        bytes: &file.bytes,
    });
    pack(std::iter::once(Entry::Directory { path: directory, mode: 0o777 }).chain(entries), time)
}

/// Writes files into a directory, which is made.
pub fn write_files(directory: &Path, files: &[File]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    for file in files {
        // Names come out of somebody's archive.
        if file.name.contains('/') || matches!(file.name.as_str(), "" | "." | "..") {
            return Err(io::Error::other(format!("{:?} is not the name of a file", file.name)));
        }
        std::fs::write(directory.join(&file.name), &file.bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> File {
        File::new(name, text)
    }

    #[test]
    fn the_same_files_make_the_same_layer_and_come_out_again() {
        let files = [file("a.yaml", "1"), file("b.yaml", "2")];
        let layer = pack_files("manifests", &files, 7).unwrap();
        assert_eq!(layer.digest, pack_files("manifests", &files, 7).unwrap().digest);
        assert_eq!(stack([&read(&layer.bytes[..], "manifests").unwrap()]), files);
        assert!(stack([&read(&layer.bytes[..], "release-manifests").unwrap()]).is_empty());
    }

    #[test]
    fn upper_layers_replace_and_remove() {
        let lower = pack_files("manifests", &[file("a", "1"), file("b", "2"), file("c", "3")], 0).unwrap();
        let upper = pack_files("manifests", &[file("b", "new"), file(".wh.c", "")], 0).unwrap();
        let opaque = pack_files("manifests", &[file(".wh..wh..opq", ""), file("d", "4")], 0).unwrap();
        let layers: Vec<Changes> =
            [lower, upper, opaque].iter().map(|layer| read(&layer.bytes[..], "manifests").unwrap()).collect();
        assert_eq!(stack(&layers[..2]), [file("a", "1"), file("b", "new")]);
        assert_eq!(stack(&layers), [file("d", "4")]);
    }

    #[test]
    fn nothing_is_written_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["..", "../x", "", "a/b"] {
            assert!(write_files(directory.path(), &[file(name, "")]).is_err(), "{name:?}");
        }
    }
}
