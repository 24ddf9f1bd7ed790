//! A layer's directory becomes an archive again: the reverse of `unpack`, for images whose archives were not kept.
//!
//! The result is a layer with the same files but, as archives of the same files differ, with a digest of its own.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{Context, SHA256};
use tar::{Builder, EntryType, Header};

use super::store::format_digest;

const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";
/// Attributes that belong to the files. Those of security modules and of the overlay belong to this host.
const ATTRIBUTES: [&str; 2] = ["user.", "security.capability"];
/// Bytes of the attributes of one file.
const ATTRIBUTE_ROOM: usize = 64 << 10;

/// A finished archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Digest of the archive.
    pub diff_id: String,
    /// Digest of its compressed form.
    pub digest: String,
    /// Bytes of its compressed form.
    pub size: u64,
}

/// Whose files they are to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ownership {
    /// Instead of the files' own.
    pub owner: Option<(u64, u64)>,
    pub mode: Option<u32>,
    /// When they were changed, for archives that shall not depend on it.
    pub time: Option<u64>,
}

/// An archive in the making: written, hashed, compressed, hashed again.
pub struct Packer {
    tar: Builder<Hashing<GzEncoder<Hashing<File>>>>,
    links: HashMap<(u64, u64), PathBuf>,
}

impl Packer {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = Hashing::new(File::create(path)?);
        let tar = Builder::new(Hashing::new(GzEncoder::new(file, Compression::fast())));
        Ok(Self { tar, links: HashMap::new() })
    }

    /// Adds a directory's content, or a single file, under a name. `layer` says that it is a layer as overlayfs has it.
    pub fn add(&mut self, from: &Path, name: &Path, ownership: Ownership, layer: bool) -> io::Result<()> {
        let meta = fs::symlink_metadata(from)?;
        if !meta.is_dir() {
            return self.entry(from, name, &meta, ownership, layer);
        }
        if !name.as_os_str().is_empty() {
            self.entry(from, name, &meta, ownership, layer)?;
        }
        if layer && is_opaque(from) {
            self.empty(&name.join(".wh..wh..opq"))?;
        }
        let mut names: Vec<OsString> = fs::read_dir(from)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        names.sort();
        names.iter().try_for_each(|inner| self.add(&from.join(inner), &name.join(inner), ownership, layer))
    }

    fn empty(&mut self, name: &Path) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(0);
        header.set_size(0);
        self.tar.append_data(&mut header, name, io::empty())
    }

    fn entry(
        &mut self,
        from: &Path,
        name: &Path,
        meta: &fs::Metadata,
        ownership: Ownership,
        layer: bool,
    ) -> io::Result<()> {
        let kind = meta.file_type();
        if layer && kind.is_char_device() && meta.rdev() == 0 {
            let hidden = name.file_name().unwrap_or_default();
            let mut white = OsString::from_vec(b".wh.".to_vec());
            white.push(hidden);
            return self.empty(&name.with_file_name(white));
        }
        let mut header = Header::new_gnu();
        header.set_mtime(ownership.time.unwrap_or_else(|| u64::try_from(meta.mtime()).unwrap_or(0)));
        header.set_mode(match ownership.mode {
            Some(mode) if !kind.is_symlink() => mode,
            _ => meta.mode() & 0o7777,
        });
        let (uid, gid) = ownership.owner.unwrap_or((meta.uid().into(), meta.gid().into()));
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_size(0);
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            return self.tar.append_link(&mut header, name, fs::read_link(from)?);
        }
        if kind.is_file() && meta.nlink() > 1 {
            let first = self.links.entry((meta.dev(), meta.ino())).or_insert_with(|| name.to_owned());
            if first != name {
                header.set_entry_type(EntryType::Link);
                let first = first.clone();
                return self.tar.append_link(&mut header, name, first);
            }
        }
        self.attributes(from)?;
        if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
        } else if kind.is_fifo() {
            header.set_entry_type(EntryType::Fifo);
        } else if kind.is_char_device() || kind.is_block_device() {
            let is_char = kind.is_char_device();
            header.set_entry_type(if is_char { EntryType::Char } else { EntryType::Block });
            header.set_device_major(rustix::fs::major(meta.rdev()))?;
            header.set_device_minor(rustix::fs::minor(meta.rdev()))?;
        } else if kind.is_file() {
            header.set_size(meta.len());
            // It may have been replaced since it was looked at.
            let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
            let file = File::options().read(true).custom_flags(flags).open(from)?;
            let mut data = file.take(meta.len()).chain(io::repeat(0)).take(meta.len());
            return self.tar.append_data(&mut header, name, &mut data);
        } else {
            return Ok(()); // a socket: it means nothing without its process
        }
        self.tar.append_data(&mut header, name, io::empty())
    }

    fn attributes(&mut self, from: &Path) -> io::Result<()> {
        let mut room = vec![0; ATTRIBUTE_ROOM];
        // A filesystem without attributes has none to write down.
        let Ok(length) = rustix::fs::llistxattr(from, &mut room[..]) else { return Ok(()) };
        let mut found = Vec::new();
        for name in room[..length].split(|byte| *byte == 0) {
            let Ok(name) = std::str::from_utf8(name) else { continue };
            if !ATTRIBUTES.iter().any(|kept| name.starts_with(kept)) {
                continue;
            }
            let mut value = vec![0; ATTRIBUTE_ROOM];
            if let Ok(length) = rustix::fs::lgetxattr(from, name, &mut value[..]) {
                value.truncate(length);
                found.push((format!("SCHILY.xattr.{name}"), value));
            }
        }
        match found.is_empty() {
            true => Ok(()),
            false => {
                self.tar.append_pax_extensions(found.iter().map(|(key, value)| (key.as_str(), &value[..])))
            }
        }
    }

    /// Writes the end of the archive.
    pub fn finish(self) -> io::Result<Packed> {
        let archive = self.tar.into_inner()?;
        let diff_id = format_digest(archive.context.finish().as_ref());
        let mut file = archive.inner.finish()?;
        file.inner.flush()?;
        let digest = format_digest(file.context.finish().as_ref());
        Ok(Packed { diff_id, digest, size: file.count })
    }
}

/// Packs a layer of the store.
pub fn pack_layer(directory: &Path, target: &Path) -> io::Result<Packed> {
    let mut packer = Packer::create(target)?;
    packer.add(directory, Path::new(""), Ownership::default(), true)?;
    packer.finish()
}

fn is_opaque(directory: &Path) -> bool {
    let mut value = [0_u8; 1];
    matches!(rustix::fs::lgetxattr(directory, OPAQUE_ATTRIBUTE, &mut value[..]), Ok(1) if value == *b"y")
}

/// A path inside an archive: relative, without `.` and `..`.
pub fn inside(path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.as_bytes().split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(clean.pop()),
            part => clean.push(OsStr::from_bytes(part)),
        }
    }
    clean
}

/// A writer that also hashes and counts.
struct Hashing<W> {
    inner: W,
    context: Context,
    count: u64,
}

impl<W> Hashing<W> {
    fn new(inner: W) -> Self {
        Self { inner, context: Context::new(&SHA256), count: 0 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.context.update(&bytes[..count]);
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
