//! A layer archive becomes a directory for overlayfs.
//!
//! Deletions (`.wh.name`) become character devices 0:0, opaque directories get the overlay's attribute. Paths are
//! resolved inside the directory only, whatever links the archive contains. Parents that the archive does not
//! mention take their mode and owner from the layers below, where the directory is visible already.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use tar::{Archive, Entry, EntryType};

const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";
const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// Unpacks an uncompressed layer into `target`, an empty directory. `below` are the layers under it, topmost
/// first. Gives the number of bytes in its files.
pub fn unpack(layer: impl Read, target: &Path, below: &[PathBuf]) -> io::Result<u64> {
    let root = rustix::fs::open(target, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let writer = Writer { root, below };
    let mut archive = Archive::new(layer);
    let mut size = 0;
    // Directories get their times last: filling them changes these.
    let mut directories = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = clean(&entry.path()?)?;
        size += entry.size();
        if entry.header().entry_type() == EntryType::Directory {
            directories.push((path.clone(), entry.header().mtime()?));
        }
        writer.write(&mut entry, &path).map_err(|error| named(&path, error))?;
    }
    for (path, mtime) in directories.into_iter().rev() {
        let directory = writer.open(&path).map_err(|error| named(&path, error))?;
        set_times(&directory, "", mtime)?;
    }
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink())?; // padding counts for the digest
    Ok(size)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// A path relative to the root, without `.` and leading `/`. A path with `..` is refused.
fn clean(path: &Path) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} leads upwards", path.display()),
                ));
            }
            _ => {}
        }
    }
    Ok(clean)
}

/// Whether a directory hides the same one in the layers below.
pub fn is_opaque(directory: &Path) -> bool {
    let mut value = [0_u8; 1];
    matches!(rustix::fs::lgetxattr(directory, OPAQUE_ATTRIBUTE, &mut value[..]), Ok(1) if value == *b"y")
}

struct Writer<'a> {
    root: OwnedFd,
    below: &'a [PathBuf],
}

impl Writer<'_> {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
    }

    /// Opens a directory, making it and its parents as they are in the layers below.
    fn open_or_make(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let parent = self.open_or_make(path.parent().unwrap_or(Path::new("")))?;
        let name = path.file_name().ok_or(io::ErrorKind::InvalidData)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
        let seen = self.below.iter().find_map(|layer| fs::symlink_metadata(layer.join(path)).ok());
        if let Some(seen) = seen.filter(fs::Metadata::is_dir) {
            set_owner(&parent, name.as_bytes(), seen.uid(), seen.gid())?;
            rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(seen.mode() & 0o7777), AtFlags::empty())?;
        }
        self.open(path)
    }

    fn write(&self, entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
        let Some(name) = path.file_name() else {
            // The root itself.
            rustix::fs::fchmod(self.open(path)?, mode(entry)?)?;
            return Ok(());
        };
        let parent = self.open_or_make(path.parent().unwrap_or(Path::new("")))?;
        let text = name.to_string_lossy();
        if text == OPAQUE {
            rustix::fs::fsetxattr(&parent, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?;
            return Ok(());
        }
        if let Some(hidden) = text.strip_prefix(WHITEOUT) {
            if hidden.is_empty() || hidden.contains('/') || hidden == "." || hidden == ".." {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a deletion of nothing"));
            }
            replace(&parent, hidden.as_bytes(), false)?;
            rustix::fs::mknodat(&parent, hidden, FileType::CharacterDevice, Mode::empty(), 0)?;
            return Ok(());
        }
        self.write_file(entry, &parent, name.as_bytes())
    }

    fn write_file(&self, entry: &mut Entry<'_, impl Read>, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let attributes = extended_attributes(entry)?;
        replace(parent, name, kind == EntryType::Directory)?;
        let mode = mode(entry)?;
        match kind {
            EntryType::Directory => match rustix::fs::mkdirat(parent, name, mode) {
                Err(rustix::io::Errno::EXIST) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            },
            EntryType::Symlink => {
                let target = entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?.into_owned();
                rustix::fs::symlinkat(target, parent, name)?;
            }
            EntryType::Link => {
                let target = clean(&entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?)?;
                return self.link(&target, parent, name);
            }
            EntryType::Char | EntryType::Block => {
                let kind =
                    if kind == EntryType::Char { FileType::CharacterDevice } else { FileType::BlockDevice };
                let (major, minor) = (entry.header().device_major()?, entry.header().device_minor()?);
                let device = rustix::fs::makedev(major.unwrap_or(0), minor.unwrap_or(0));
                rustix::fs::mknodat(parent, name, kind, mode, device)?;
            }
            EntryType::Fifo => rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0)?,
            _ if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let mut file = File::from(rustix::fs::openat(parent, name, flags, mode)?);
                io::copy(entry, &mut file)?;
            }
            _ => return Ok(()), // headers of the format itself
        }
        let number = |value: io::Result<u64>| {
            value.and_then(|value| u32::try_from(value).map_err(|_| io::ErrorKind::InvalidData.into()))
        };
        set_owner(parent, name, number(entry.header().uid())?, number(entry.header().gid())?)?;
        if kind != EntryType::Symlink {
            // Again: owners clear the set-user bits, and our umask had its say.
            rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
        }
        for (key, value) in attributes {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(parent));
            let file = Path::new(&path).join(std::ffi::OsStr::from_bytes(name));
            // A filesystem without such attributes, or a security module that keeps its own.
            let _ = rustix::fs::lsetxattr(&file, key, &value, XattrFlags::empty());
        }
        set_times(parent, std::ffi::OsStr::from_bytes(name), entry.header().mtime()?)
    }

    /// A hard link within the layer, or a copy of a file of a layer below.
    fn link(&self, target: &Path, parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
        let directory = self.open_or_make(target.parent().unwrap_or(Path::new("")))?;
        let file_name = target.file_name().ok_or(io::ErrorKind::InvalidData)?;
        match rustix::fs::linkat(&directory, file_name, parent, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let source = self.below.iter().map(|layer| layer.join(target)).find(|path| path.is_file());
        let source = source
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no {}", target.display())))?;
        let meta = fs::metadata(&source)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(meta.mode() & 0o7777);
        let mut copy = File::from(rustix::fs::openat(parent, name, flags, mode)?);
        io::copy(&mut File::open(&source)?, &mut copy)?;
        set_owner(parent, name, meta.uid(), meta.gid())?;
        rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
        Ok(())
    }
}

fn mode(entry: &Entry<'_, impl Read>) -> io::Result<Mode> {
    Ok(Mode::from_raw_mode(entry.header().mode()? & 0o7777))
}

fn extended_attributes(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        if let Some(name) = extension.key().ok().and_then(|key| key.strip_prefix(XATTR_PREFIX)) {
            all.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(all)
}

/// Makes room for an entry: a later one replaces an earlier one of the same name. A directory may stay if the new
/// one is a directory too.
fn replace(parent: &OwnedFd, name: &[u8], keep_directory: bool) -> io::Result<()> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
            if keep_directory {
                return Ok(());
            }
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(parent));
            fs::remove_dir_all(Path::new(&path).join(std::ffi::OsStr::from_bytes(name)))
        }
        Ok(_) => Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?),
    }
}

fn set_owner(parent: &OwnedFd, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(rustix::fs::chownat(parent, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn set_times(directory: impl AsFd, name: impl AsRef<Path>, mtime: u64) -> io::Result<()> {
    let time = Timespec { tv_sec: i64::try_from(mtime).unwrap_or(0), tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    if name.as_ref().as_os_str().is_empty() {
        return Ok(rustix::fs::futimens(directory, &times)?);
    }
    Ok(rustix::fs::utimensat(directory, name.as_ref(), &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
