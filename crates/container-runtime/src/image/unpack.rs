//! A layer archive becomes a directory for overlayfs.
//!
//! Deletions (`.wh.name`) become character devices 0:0, opaque directories get the overlay's attribute. Every name is resolved
//! on descriptors inside the directory, whatever links the archive contains, and the last component is never followed.
//! Parents that the archive does not mention take their mode and owner from the layers below, where the directory
//! is visible already.
//!
//! An archive is hostile: what it may cost is bounded by [`Limits`], and attributes that mean something to the host's
//! overlayfs or security modules are dropped.
//!
//! A name that comes twice is the last one, except that a directory stays and a deletion speaks of the layers below only.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use tar::{Archive, Entry, EntryType};

use super::view::{Found, MAX_LINKS, OPAQUE_ATTRIBUTE, View, components, is_whiteout, open_name, through};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// What AUFS keeps for itself; other runtimes pass over it too.
const AUFS: &[u8] = b".wh..wh.";
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// What a layer may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of all files, holes included.
    pub bytes: u64,
    /// Files, directories, links and deletions.
    pub entries: u64,
    /// Bytes of the headers of one entry: long names, attributes, the map of a sparse file.
    pub headers: u64,
    /// Bytes of a name.
    pub name: usize,
}

impl Limits {
    /// Beyond any layer that is known to be used, and within what a node survives.
    pub const DEFAULT: Self = Self { bytes: 64 << 30, entries: 4 << 20, headers: 1 << 20, name: 4096 };
}

/// Unpacks an uncompressed layer into `target`, an empty directory. `below` are the layers under it, topmost
/// first. Gives the number of bytes in its files.
pub fn unpack(layer: impl Read, target: &Path, below: &[PathBuf]) -> io::Result<u64> {
    unpack_within(layer, target, below, &Limits::DEFAULT)
}

/// [`unpack`] with other limits than the default ones.
pub fn unpack_within(layer: impl Read, target: &Path, below: &[PathBuf], limits: &Limits) -> io::Result<u64> {
    let root = rustix::fs::open(target, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let writer = Writer { root, below: View::open(below)?, hidden: Default::default() };
    let allowance = Allowance::default();
    let mut archive = Archive::new(Rationed { inner: layer, allowance: allowance.clone() });
    let (mut size, mut count) = (0_u64, 0_u64);
    // Directories get their times last: filling them changes these.
    let mut directories = Vec::new();
    let mut entries = archive.entries()?;
    loop {
        // Nothing is left of the previous entry, so all that is read until the next one is known is headers.
        allowance.set(limits.headers);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        allowance.lift();
        let path = clean(&entry.path()?, limits)?;
        size = size.saturating_add(entry.size());
        count += 1;
        if size > limits.bytes || count > limits.entries {
            return Err(refused(format!("{}: the layer is too large", path.display())));
        }
        if entry.header().entry_type() == EntryType::Directory {
            directories.push((path.clone(), modified(&entry)?));
        }
        writer.write(&mut entry, &path, limits).map_err(|error| named(&path, error))?;
        io::copy(&mut entry, &mut io::sink())?;
    }
    allowance.lift();
    for (path, mtime) in directories.into_iter().rev() {
        // A later entry may have replaced it.
        if let Ok(directory) = writer.open(&path) {
            set_times(&directory, "", mtime).map_err(|error| named(&path, error))?;
        }
    }
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink())?; // padding counts for the digest
    Ok(size)
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn refused(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

/// How many bytes may be read before somebody says more.
#[derive(Clone, Default)]
pub(super) struct Allowance(Rc<Cell<Option<u64>>>);

impl Allowance {
    pub fn set(&self, bytes: u64) {
        self.0.set(Some(bytes));
    }

    pub fn lift(&self) {
        self.0.set(None);
    }
}

/// A reader that stops at its allowance: the archive library reads extended headers into memory, however large they
/// say that they are.
pub(super) struct Rationed<R> {
    pub inner: R,
    pub allowance: Allowance,
}

impl<R: Read> Read for Rationed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(left) = self.allowance.0.get() {
            let left = left
                .checked_sub(count as u64)
                .ok_or_else(|| refused("the headers of an entry are too large"))?;
            self.allowance.0.set(Some(left));
        }
        Ok(count)
    }
}

impl<R: Seek> Seek for Rationed<R> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// A path relative to the root, without `.` and leading `/`. A path with `..` is refused.
fn clean(path: &Path, limits: &Limits) -> io::Result<PathBuf> {
    if path.as_os_str().len() > limits.name {
        return Err(refused("a name is too long"));
    }
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => return Err(refused(format!("{} leads upwards", path.display()))),
            _ => {}
        }
    }
    Ok(clean)
}

struct Writer {
    root: OwnedFd,
    below: View,
    /// Names that this layer deletes, as device and inode of their directory and the name: what it has under such
    /// a name hides everything below.
    hidden: std::cell::RefCell<HashSet<(u64, u64, OsString)>>,
}

impl Writer {
    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)?)
    }

    /// Opens a directory, making it and its parents as they are in the layers below. A link on the way is followed inside
    /// of the layer, and where it leads nowhere the directory that it names is made.
    fn open_or_make(&self, path: &Path) -> io::Result<OwnedFd> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match self.open(path) {
            // What is no directory may be a deletion, which gives way.
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
            other => return other,
        }
        let mut pending: VecDeque<OsString> = components(path).collect();
        let mut here = self.open(Path::new(""))?;
        let mut names = PathBuf::new();
        let mut links = 0;
        while let Some(name) = pending.pop_front() {
            if name == ".." {
                if names.pop() {
                    here = open_directory(&here, OsStr::new(".."))?; // nobody else moves things here
                }
                continue;
            }
            let found = open_name(&here, &name)?.filter(|found| !is_whiteout(&found.stat));
            match found {
                Some(found) if found.kind().is_symlink() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = found.link_target()?;
                    if target.is_absolute() {
                        (here, names) = (self.open(Path::new(""))?, PathBuf::new());
                    }
                    let parts: Vec<OsString> = components(&target).collect();
                    parts.into_iter().rev().for_each(|part| pending.push_front(part));
                    continue;
                }
                Some(_) => {}
                None => self.make_parent(&here, &name, &names.join(&name))?,
            }
            here = open_directory(&here, &name)?;
            names.push(name);
        }
        Ok(here)
    }

    fn make_parent(&self, parent: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<()> {
        self.make_directory(parent, name, Mode::from_raw_mode(0o755))?;
        let seen = self.below.find(path, false)?;
        if let Some(seen) = seen.filter(|seen| seen.kind().is_dir() && !self.is_hidden(parent, name)) {
            set_owner(parent, name, seen.stat.st_uid, seen.stat.st_gid)?;
            let mode = Mode::from_raw_mode(seen.stat.st_mode & 0o7777);
            rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Makes a directory where there is none. One that this layer also deletes hides what is below.
    fn make_directory(&self, parent: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<()> {
        replace(parent, name, true)?;
        match rustix::fs::mkdirat(parent, name, mode) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
        if self.is_hidden(parent, name) {
            make_opaque(&open_directory(parent, name)?)?;
        }
        Ok(())
    }

    fn hide(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let stat = rustix::fs::fstat(parent)?;
        self.hidden.borrow_mut().insert((stat.st_dev, stat.st_ino, name.to_owned()));
        match open_name(parent, name)? {
            Some(found) if found.kind().is_dir() => make_opaque(&open_directory(parent, name)?),
            Some(_) => Ok(()), // what this layer has there hides what is below
            None => Ok(rustix::fs::mknodat(parent, name, FileType::CharacterDevice, Mode::empty(), 0)?),
        }
    }

    fn is_hidden(&self, parent: &OwnedFd, name: &OsStr) -> bool {
        let hidden = self.hidden.borrow();
        !hidden.is_empty()
            && rustix::fs::fstat(parent)
                .is_ok_and(|stat| hidden.contains(&(stat.st_dev, stat.st_ino, name.to_owned())))
    }

    fn write(&self, entry: &mut Entry<'_, impl Read>, path: &Path, limits: &Limits) -> io::Result<()> {
        let Some(name) = path.file_name() else {
            // The root itself.
            if entry.header().entry_type() == EntryType::Directory {
                let root = self.open(path)?;
                let (uid, gid) = owner(entry)?;
                rustix::fs::fchown(&root, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
                rustix::fs::fchmod(&root, mode(entry)?)?;
            }
            return Ok(());
        };
        let parent = self.open_or_make(path.parent().unwrap_or(Path::new("")))?;
        let bytes = name.as_bytes();
        if bytes == OPAQUE {
            return make_opaque(&parent);
        }
        if bytes.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT) {
            if matches!(hidden, [] | [b'.'] | [b'.', b'.']) {
                return Err(refused("a deletion of nothing"));
            }
            return self.hide(&parent, OsStr::from_bytes(hidden));
        }
        self.write_file(entry, &parent, name, limits)
    }

    fn write_file(
        &self,
        entry: &mut Entry<'_, impl Read>,
        parent: &OwnedFd,
        name: &OsStr,
        limits: &Limits,
    ) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let attributes = extended_attributes(entry)?;
        let mode = mode(entry)?;
        match kind {
            EntryType::Directory => self.make_directory(parent, name, mode)?,
            EntryType::Symlink => {
                let target = entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?.into_owned();
                replace(parent, name, false)?;
                rustix::fs::symlinkat(target, parent, name)?;
            }
            EntryType::Link => {
                let target = clean(&entry.link_name()?.ok_or(io::ErrorKind::InvalidData)?, limits)?;
                return self.link(&target, parent, name);
            }
            EntryType::Char | EntryType::Block => {
                let kind =
                    if kind == EntryType::Char { FileType::CharacterDevice } else { FileType::BlockDevice };
                let (major, minor) = (entry.header().device_major()?, entry.header().device_minor()?);
                let device = rustix::fs::makedev(major.unwrap_or(0), minor.unwrap_or(0));
                replace(parent, name, false)?;
                rustix::fs::mknodat(parent, name, kind, mode, device)?;
            }
            EntryType::Fifo => {
                replace(parent, name, false)?;
                rustix::fs::mknodat(parent, name, FileType::Fifo, mode, 0)?;
            }
            _ if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() => {
                replace(parent, name, false)?;
                let mut file = create(parent, name, mode)?;
                match kind.is_gnu_sparse() {
                    true => copy_with_holes(entry, &mut file)?,
                    false => drop(io::copy(entry, &mut file)?),
                }
            }
            _ => return Ok(()), // headers of the format itself
        }
        let (uid, gid) = owner(entry)?;
        set_owner(parent, name, uid, gid)?;
        if kind != EntryType::Symlink {
            // Again: owners clear the set-user bits, and our umask had its say.
            rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
        }
        for (key, value) in attributes {
            let file = Path::new(&through(parent)).join(name);
            // A filesystem without such attributes, or a security module that keeps its own.
            let _ = rustix::fs::lsetxattr(&file, key, &value, XattrFlags::empty());
        }
        set_times(parent, name, modified(entry)?)
    }

    /// A hard link within the layer, or a copy of what a layer below has. Neither follows a link.
    fn link(&self, target: &Path, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no {}", target.display()));
        let target_name = target.file_name().ok_or_else(missing)?;
        let directory = match self.open(target.parent().unwrap_or(Path::new(""))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other?),
        };
        if let Some(directory) = directory
            && let Some(found) = open_name(&directory, target_name)?
        {
            let (here, there) = (rustix::fs::fstat(parent)?, rustix::fs::fstat(&directory)?);
            if is_whiteout(&found.stat) {
                return Err(missing());
            }
            if (here.st_ino, here.st_dev, name) == (there.st_ino, there.st_dev, target_name) {
                return Ok(()); // a link to itself
            }
            replace(parent, name, false)?;
            return Ok(rustix::fs::linkat(&directory, target_name, parent, name, AtFlags::empty())?);
        }
        let found = self.below.find(target, false)?.ok_or_else(missing)?;
        replace(parent, name, false)?;
        copy(&found, parent, name)
    }
}

/// Makes under `name` what was found in another layer.
fn copy(found: &Found, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    let (kind, stat) = (found.kind(), &found.stat);
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    match kind {
        FileType::RegularFile => drop(io::copy(&mut found.open()?, &mut create(parent, name, mode)?)?),
        FileType::Symlink => rustix::fs::symlinkat(found.link_target()?, parent, name)?,
        FileType::Directory => return Err(refused("a hard link to a directory")),
        kind => rustix::fs::mknodat(parent, name, kind, mode, stat.st_rdev)?,
    }
    set_owner(parent, name, stat.st_uid, stat.st_gid)?;
    if kind != FileType::Symlink {
        rustix::fs::chmodat(parent, name, mode, AtFlags::empty())?;
    }
    set_times(parent, name, u64::try_from(stat.st_mtime).unwrap_or(0))
}

fn create(parent: &OwnedFd, name: &OsStr, mode: Mode) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(parent, name, flags, mode)?))
}

/// What is zero in a sparse file takes no disk.
fn copy_with_holes(source: &mut impl Read, file: &mut File) -> io::Result<()> {
    let mut block = vec![0_u8; 64 << 10];
    let mut length = 0_u64;
    loop {
        let count = source.read(&mut block)?;
        if count == 0 {
            return file.set_len(length);
        }
        length += count as u64;
        match block[..count].iter().all(|byte| *byte == 0) {
            true => file.seek_relative(count as i64)?,
            false => file.write_all(&block[..count])?,
        }
    }
}

fn open_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?)
}

fn make_opaque(directory: &OwnedFd) -> io::Result<()> {
    Ok(rustix::fs::fsetxattr(directory, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?)
}

fn mode(entry: &Entry<'_, impl Read>) -> io::Result<Mode> {
    let header = entry.header();
    let mode = or_zero(header.mode().map(u64::from), &header.as_old().mode)?;
    Ok(Mode::from_raw_mode(mode as u32 & 0o7777))
}

fn owner(entry: &Entry<'_, impl Read>) -> io::Result<(u32, u32)> {
    let header = entry.header();
    let number = |value: u64| u32::try_from(value).map_err(|_| refused("an owner is out of range"));
    let (uid, gid) =
        (or_zero(header.uid(), &header.as_old().uid)?, or_zero(header.gid(), &header.as_old().gid)?);
    Ok((number(uid)?, number(gid)?))
}

fn modified(entry: &Entry<'_, impl Read>) -> io::Result<u64> {
    or_zero(entry.header().mtime(), &entry.header().as_old().mtime)
}

/// A field that is left empty means zero to other readers of archives.
fn or_zero(value: io::Result<u64>, field: &[u8]) -> io::Result<u64> {
    match value {
        Err(_) if field.iter().all(|byte| matches!(byte, 0 | b' ')) => Ok(0),
        value => value,
    }
}

/// Attributes that belong to the file. The others command the host's overlayfs (`trusted.*`, `user.overlay.*`) or its
/// security modules.
fn is_harmless(attribute: &str) -> bool {
    attribute == "security.capability"
        || attribute.starts_with("system.posix_acl_")
        || (attribute.starts_with("user.") && !attribute.starts_with("user.overlay."))
}

fn extended_attributes(entry: &mut Entry<'_, impl Read>) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        let name = extension.key().ok().and_then(|key| key.strip_prefix(XATTR_PREFIX));
        if let Some(name) = name.filter(|name| is_harmless(name)) {
            all.push((name.to_owned(), extension.value_bytes().to_vec()));
        }
    }
    Ok(all)
}

/// Makes room for an entry: a later one replaces an earlier one of the same name. A directory may stay if the new
/// one is a directory too.
fn replace(parent: &OwnedFd, name: &OsStr, keep_directory: bool) -> io::Result<()> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
            if keep_directory {
                return Ok(());
            }
            fs::remove_dir_all(Path::new(&through(parent)).join(name))
        }
        Ok(_) => Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?),
    }
}

fn set_owner(parent: &OwnedFd, name: &OsStr, uid: u32, gid: u32) -> io::Result<()> {
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
