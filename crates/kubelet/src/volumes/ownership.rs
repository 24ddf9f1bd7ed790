//! fsGroup: gives a volume's files to a group, so that a pod that does not run as root can use them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use super::VolumeError;

const WRITABLE: u32 = 0o660;
const READABLE: u32 = 0o440;
const EXECUTABLE: u32 = 0o110;
const SET_GROUP: u32 = 0o2000;

/// Gives everything below `path` to the group; nothing to do without one.
pub fn apply(path: &Path, group: Option<i64>, read_only: bool) -> Result<(), VolumeError> {
    let Some(group) = group.and_then(|group| u32::try_from(group).ok()) else { return Ok(()) };
    let metadata =
        fs::symlink_metadata(path).map_err(|source| VolumeError::io("cannot look at", path, source))?;
    if metadata.gid() != group {
        lchown(path, None, Some(group))
            .map_err(|source| VolumeError::io("cannot change the group of", path, source))?;
    }
    if metadata.is_symlink() {
        return Ok(());
    }
    let mut mode = metadata.mode() | if read_only { READABLE } else { WRITABLE };
    if metadata.is_dir() {
        mode |= EXECUTABLE | SET_GROUP;
    }
    if mode != metadata.mode() {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(|source| VolumeError::io("cannot set the mode of", path, source))?;
    }
    if metadata.is_dir() {
        let entries = fs::read_dir(path).map_err(|source| VolumeError::io("cannot list", path, source))?;
        for entry in entries.flatten() {
            apply(&entry.path(), Some(i64::from(group)), read_only)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_gets_everything_and_new_files_inherit_it() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "x").unwrap();
        fs::set_permissions(root.path().join("f"), fs::Permissions::from_mode(0o600)).unwrap();
        // Our own group, so that the test needs no privilege.
        let group = fs::metadata(root.path()).unwrap().gid();
        apply(root.path(), Some(i64::from(group)), false).unwrap();
        assert_eq!(fs::metadata(root.path().join("f")).unwrap().mode() & 0o777, 0o660);
        assert_eq!(fs::metadata(root.path()).unwrap().mode() & 0o2070, 0o2070);
    }
}
