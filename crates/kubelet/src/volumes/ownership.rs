//! fsGroup: gives a volume's files to a group, so that a pod that does not run as root can use them.
//!
//! Other pods may use the volume at the same time, so files are changed by descriptor: a directory that becomes a link
//! meanwhile leads nowhere.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags};

use super::VolumeError;

const WRITABLE: u32 = 0o660;
const EXECUTABLE: u32 = 0o110;
const SET_GROUP: u32 = 0o2000;

/// Gives everything below `path` to the group. With `only_on_mismatch` (`fsGroupChangePolicy: OnRootMismatch`) nothing is
/// done where the root of the volume has the group already.
pub fn apply(path: &Path, group: u32, only_on_mismatch: bool) -> Result<(), VolumeError> {
    let fail = |source| VolumeError::io("cannot change the group of", path, source);
    let root = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| fail(error.into()))?;
    if only_on_mismatch && is_given(&root, group).map_err(fail)? {
        return Ok(());
    }
    let mut pending = vec![PathBuf::from(".")];
    while let Some(next) = pending.pop() {
        match give(&root, &next, group, &mut pending) {
            // Gone, or replaced by a link, since it was listed.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => {}
            other => {
                other.map_err(|error| VolumeError::io("cannot change the group of", &next, error.into()))?
            }
        }
    }
    Ok(())
}

fn is_given(root: &OwnedFd, group: u32) -> io::Result<bool> {
    let stat = rustix::fs::fstat(root)?;
    let wanted = WRITABLE | EXECUTABLE | SET_GROUP;
    Ok(stat.st_gid == group && stat.st_mode & wanted == wanted)
}

fn give(root: &OwnedFd, path: &Path, group: u32, pending: &mut Vec<PathBuf>) -> rustix::io::Result<()> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?;
    let stat = rustix::fs::fstat(&file)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if stat.st_gid != group {
        let at = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&file, "", None, Some(Gid::from_raw(group)), at)?;
    }
    if kind.is_symlink() {
        return Ok(());
    }
    let through = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mode = stat.st_mode | WRITABLE | if kind.is_dir() { EXECUTABLE | SET_GROUP } else { 0 };
    // A change of group may have taken bits away, so it is always set.
    rustix::fs::chmod(&through, Mode::from_raw_mode(mode & 0o7777))?;
    if kind.is_dir() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)?;
        for entry in rustix::fs::Dir::read_from(&open)? {
            let entry = entry?;
            let name = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
            let name: &std::ffi::OsStr = name;
            if name != "." && name != ".." {
                pending.push(path.join(name));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn the_group_gets_everything_and_new_files_inherit_it() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let kept = outside.path().join("kept");
        for path in [root.path().join("f"), kept.clone()] {
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        std::os::unix::fs::symlink(outside.path(), root.path().join("link")).unwrap();
        // Our own group, so that the test needs no privilege.
        let group = fs::metadata(root.path()).unwrap().gid();
        apply(root.path(), group, false).unwrap();
        assert_eq!(fs::metadata(root.path().join("f")).unwrap().mode() & 0o777, 0o660);
        assert_eq!(fs::metadata(root.path()).unwrap().mode() & 0o2070, 0o2070);
        assert_eq!(fs::metadata(kept).unwrap().mode() & 0o777, 0o600, "a link is not followed");
        fs::set_permissions(root.path().join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        apply(root.path(), group, true).unwrap();
        assert_eq!(fs::metadata(root.path().join("f")).unwrap().mode() & 0o777, 0o600, "the root matches");
    }
}
