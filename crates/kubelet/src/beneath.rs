//! Directories as descriptors: what a pod can write below is never named by a path of the host.
//!
//! Every name is resolved beneath the directory that is held open, without following links. A pod that replaces a
//! directory by a link (of a volume that it can write, or of one that it reached by other means) makes a call fail; it
//! never makes the kubelet, which is root, read, write or delete somewhere else.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// How many names of a directory are held in memory at once: a pod may have made millions.
const BATCH: usize = 1024;

const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// An open directory.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    /// Opens a directory whose whole path is ours.
    pub fn trusted(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// The name by which system calls that know only paths reach this very directory.
    pub fn through(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }

    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// A directory below this one, also on another mount.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        self.open_with(path.as_ref(), BENEATH)
    }

    /// A directory below this one, on the same mount.
    pub fn open_here(&self, path: impl AsRef<Path>) -> io::Result<Self> {
        self.open_with(path.as_ref(), BENEATH | ResolveFlags::NO_XDEV)
    }

    fn open_with(&self, path: &Path, resolve: ResolveFlags) -> io::Result<Self> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat2(&self.0, path, flags, Mode::empty(), resolve)?))
    }

    /// Whether something is mounted on a directory here.
    pub fn is_mount_point(&self, name: impl AsRef<Path>) -> io::Result<bool> {
        match self.open_here(name) {
            Ok(_) => Ok(false),
            Err(error) if error.raw_os_error() == Some(Errno::XDEV.raw_os_error()) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Opens a directory and its parents below this one; those that are missing are made with `mode`.
    pub fn ensure(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
        let mut here = self.open("")?;
        for component in path.as_ref().components() {
            let Component::Normal(name) = component else { return Err(io::ErrorKind::InvalidInput.into()) };
            here = match rustix::fs::mkdirat(&here.0, name, Mode::from_raw_mode(mode)) {
                Ok(()) => {
                    let made = here.open(name)?;
                    made.set_mode(mode)?;
                    made
                }
                Err(Errno::EXIST) => here.open(name)?,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(here)
    }

    /// Makes a directory that appears with its final mode and group, or opens the one that is there.
    pub fn make_whole(&self, name: &str, mode: u32, group: Option<u32>) -> io::Result<Self> {
        match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        let stage = format!("{name}~new");
        self.remove(&stage)?;
        let made = self.ensure(&stage, 0o700)?;
        made.set_group(group)?;
        made.set_mode(mode)?;
        rustix::fs::renameat_with(&self.0, &stage, &self.0, name, RenameFlags::NOREPLACE)?;
        Ok(made)
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    pub fn set_group(&self, group: Option<u32>) -> io::Result<()> {
        match group {
            Some(group) => Ok(rustix::fs::fchown(&self.0, None, Some(Gid::from_raw(group)))?),
            None => Ok(()),
        }
    }

    /// What stands under a name here; a link is seen as a link.
    pub fn look_at(&self, name: impl AsRef<Path>) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Writes a new file, which must not exist.
    pub fn create_file(&self, name: &OsStr, data: &[u8], owner: &Owner) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat2(&self.0, name, flags, Mode::from_raw_mode(0o600), BENEATH)?;
        let mut file = File::from(fd);
        file.write_all(data)?;
        owner.give(&file)
    }

    /// Makes a file hold this, in place if there is one. What is no regular file is removed first.
    pub fn write_file(&self, name: &OsStr, data: &[u8], owner: &Owner) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if let Ok(fd) = rustix::fs::openat2(&self.0, name, flags, Mode::empty(), BENEATH) {
            let mut file = File::from(fd);
            if file.metadata()?.is_file() {
                file.set_len(0)?;
                file.write_all(data)?;
                return owner.give(&file);
            }
        }
        self.remove(name)?;
        self.create_file(name, data, owner)
    }

    /// Opens a regular file below this directory. Nothing else is opened: a FIFO would wait, a device would act.
    pub fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat2(&self.0, path.as_ref(), flags, Mode::empty(), BENEATH)?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        }
    }

    /// A whole file, if it is no longer than `limit`.
    pub fn read_file(&self, path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        self.open_file(path)?.take(limit + 1).read_to_end(&mut data)?;
        match data.len() as u64 > limit {
            true => Err(io::ErrorKind::FileTooLarge.into()),
            false => Ok(data),
        }
    }

    pub fn read_link(&self, name: &str) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.0, name, Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()).into())
    }

    pub fn link(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, &self.0, name)?)
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    /// All names here.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        self.names_up_to(usize::MAX)
    }

    /// Some of the names here; none once there are none.
    pub fn some_names(&self) -> io::Result<Vec<OsString>> {
        self.names_up_to(BATCH)
    }

    fn names_up_to(&self, most: usize) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
                if names.len() == most {
                    break;
                }
            }
        }
        Ok(names)
    }

    /// Removes a file, link or directory with all below it. A mount in the way is an error.
    pub fn remove(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let name = name.as_ref();
        if self.remove_simple(name)? {
            return Ok(());
        }
        self.open_here(name)?.clear()?;
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes everything in this directory.
    ///
    /// Directories within directories are moved up here before they are emptied, so that a tree of any depth
    /// needs two descriptors and no path that is too long for the kernel.
    pub fn clear(&self) -> io::Result<()> {
        let mut fresh = 0_u64;
        loop {
            let names = self.some_names()?;
            if names.is_empty() {
                return Ok(());
            }
            for name in &names {
                if self.remove_simple(name.as_ref())? {
                    continue;
                }
                let child = self.open_here(name)?;
                loop {
                    let inner = child.some_names()?;
                    if inner.is_empty() {
                        break;
                    }
                    for name in &inner {
                        if !child.remove_simple(name.as_ref())? {
                            child.lift(name, self, &mut fresh)?;
                        }
                    }
                }
                rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR)?;
            }
        }
    }

    fn lift(&self, name: &OsStr, to: &Self, fresh: &mut u64) -> io::Result<()> {
        loop {
            *fresh += 1;
            let target = format!("~{fresh}");
            match rustix::fs::renameat_with(&self.0, name, &to.0, target, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Removes what is no directory, or an empty one. False if it is a full one.
    fn remove_simple(&self, name: &Path) -> io::Result<bool> {
        match rustix::fs::unlinkat(&self.0, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Unmounts everything that is mounted below this directory, the deepest first.
    pub fn unmount_below(&self) -> io::Result<()> {
        let own = std::fs::read_link(self.through())?;
        for point in mounts_below(&std::fs::read("/proc/self/mountinfo")?, &own) {
            let parent = self.open(point.parent().unwrap_or(Path::new("")))?;
            let Some(name) = point.file_name() else { continue };
            rustix::mount::unmount(
                parent.through().join(name),
                UnmountFlags::DETACH | UnmountFlags::NOFOLLOW,
            )?;
        }
        Ok(())
    }
}

/// The mount points below a directory, relative to it, in the order in which they can be unmounted.
fn mounts_below(table: &[u8], dir: &Path) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4))
        .map(|point| PathBuf::from(OsString::from_vec(unescape(point))))
        .filter_map(|point| point.strip_prefix(dir).map(Path::to_owned).ok())
        .filter(|point| !point.as_os_str().is_empty())
        .collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    points
}

/// The kernel writes blanks, tabs, newlines and backslashes as a backslash and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                out.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8) | (digit - b'0')));
                rest = &tail[3..];
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Whose a file is, and who may do what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mode: u32,
}

impl Owner {
    pub fn root(mode: u32) -> Self {
        Self { mode, ..Self::default() }
    }

    fn give(&self, file: &File) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            rustix::fs::fchown(file, self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw))?;
        }
        // After the owner: a change of owner may take bits of the mode away.
        Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?)
    }

    pub fn is_of(&self, stat: &Stat) -> bool {
        stat.st_mode & 0o7777 == self.mode & 0o7777
            && self.uid.is_none_or(|uid| uid == stat.st_uid)
            && self.gid.is_none_or(|gid| gid == stat.st_gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_never_followed() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        symlink(outside.path(), root.path().join("d")).unwrap();
        symlink(outside.path().join("kept"), root.path().join("f")).unwrap();
        let dir = Dir::trusted(root.path()).unwrap();
        assert!(dir.open("d").is_err());
        assert!(dir.ensure("d/e", 0o700).is_err());
        assert!(dir.open_file("f").is_err());
        assert!(dir.open_file("d/kept").is_err());
        dir.write_file("f".as_ref(), b"new", &Owner::root(0o600)).unwrap();
        assert_eq!(dir.read_file("f", 10).unwrap(), b"new");
        dir.remove("d").unwrap();
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "x");
    }

    #[test]
    fn special_and_long_files_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::trusted(root.path()).unwrap();
        rustix::fs::mknodat(&dir.0, "fifo", rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        // Opening a FIFO nobody writes to would wait for ever.
        assert!(dir.open_file("fifo").is_err());
        dir.create_file("long".as_ref(), &[0; 11], &Owner::root(0o600)).unwrap();
        assert!(dir.read_file("long", 10).is_err());
        assert_eq!(dir.read_file("long", 11).unwrap().len(), 11);
    }

    #[test]
    fn a_tree_of_any_depth_and_width_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::trusted(root.path()).unwrap();
        // Deeper than a path can be long and than a process may have files open; a name that the removal uses itself.
        let mut here = dir.ensure("tree/~1/~2", 0o700).unwrap();
        for _ in 0..1200 {
            here = here.ensure("deeper", 0o700).unwrap();
        }
        for number in 0..2 * BATCH {
            here.create_file(format!("{number}").as_ref(), b"", &Owner::root(0o600)).unwrap();
        }
        drop(here);
        dir.remove("tree").unwrap();
        assert!(dir.some_names().unwrap().is_empty());
    }

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        let table = b"1 1 0:1 / / rw - x x rw\n2 1 0:2 / /a/b\\040c rw - x x rw\n\
                      3 1 0:2 / /a/b\\040c/d rw - x x rw\n4 1 0:2 / /ab rw - x x rw\n5 1 0:2 / /a rw - x x rw\n";
        let found = mounts_below(table, Path::new("/a"));
        assert_eq!(found, [PathBuf::from("b c/d"), PathBuf::from("b c")]);
    }

    #[test]
    fn what_is_mounted_is_unmounted_before_it_is_removed() {
        if !testing::root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::trusted(root.path()).unwrap();
        let inner = dir.ensure("pod/volume", 0o700).unwrap();
        rustix::mount::mount("tmpfs", inner.through(), "tmpfs", rustix::mount::MountFlags::empty(), None)
            .unwrap();
        let pod = dir.open("pod").unwrap();
        assert!(pod.is_mount_point("volume").unwrap());
        assert!(dir.remove("pod").is_err(), "a mount is not entered");
        pod.unmount_below().unwrap();
        assert!(!pod.is_mount_point("volume").unwrap());
        dir.remove("pod").unwrap();
    }
}
