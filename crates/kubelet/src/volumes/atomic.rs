//! Writes a set of files so that readers see all of the old or all of the new ones.
//!
//! The files live in a directory with a fresh name; `..data` is a symbolic link to it, and each top-level name is a link
//! through `..data`. An update makes a new directory and replaces the one link by rename. The layout is upstream's:
//! programs watch `..data`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Component, Path};

use super::VolumeError;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Owner, where it is not root.
    pub uid: Option<u32>,
}

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, File>;

/// Whether a path stays inside the volume and out of the way of the links.
pub fn is_safe(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Makes the directory hold exactly these files. Returns whether anything changed.
pub fn write(dir: &Path, payload: &Payload) -> Result<bool, VolumeError> {
    if let Some(path) = payload.keys().find(|path| !is_safe(path)) {
        return Err(VolumeError::Path(path.clone()));
    }
    let fail = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| VolumeError::Io { doing, path, source }
    };
    fs::create_dir_all(dir).map_err(fail("cannot create", dir))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777))
        .map_err(fail("cannot set the mode of", dir))?;
    let link = dir.join(DATA);
    let current = fs::read_link(&link).ok();
    if let Some(current) = &current
        && is_same(&dir.join(current), payload)
    {
        return Ok(false);
    }
    let name = fresh_name(dir);
    let stage = dir.join(&name);
    fs::create_dir(&stage).map_err(fail("cannot create", &stage))?;
    fs::set_permissions(&stage, fs::Permissions::from_mode(0o755))
        .map_err(fail("cannot set the mode of", &stage))?;
    for (path, file) in payload {
        let target = stage.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(fail("cannot create", parent))?;
        }
        fs::write(&target, &file.data).map_err(fail("cannot write", &target))?;
        fs::set_permissions(&target, fs::Permissions::from_mode(file.mode))
            .map_err(fail("cannot set the mode of", &target))?;
        if let Some(uid) = file.uid {
            std::os::unix::fs::chown(&target, Some(uid), None)
                .map_err(fail("cannot change the owner of", &target))?;
        }
    }
    let swap = dir.join(NEW_DATA);
    // A link left by a crash between the two steps below.
    let _ = fs::remove_file(&swap);
    symlink(&name, &swap).map_err(fail("cannot link", &swap))?;
    fs::rename(&swap, &link).map_err(fail("cannot replace", &link))?;
    link_names(dir, payload)?;
    if let Some(old) = current {
        // The new files are in place; an old directory that cannot be removed is only waste.
        let _ = fs::remove_dir_all(dir.join(old));
    }
    Ok(true)
}

/// A name that was never used in this directory, in upstream's form of a time.
fn fresh_name(dir: &Path) -> String {
    let base = jiff::Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.").to_string();
    (0..).map(|number| format!("{base}{number}")).find(|name| !dir.join(name).exists()).unwrap_or(base)
}

fn is_same(dir: &Path, payload: &Payload) -> bool {
    let mut files = 0;
    let mut pending = vec![dir.to_owned()];
    while let Some(next) = pending.pop() {
        let Ok(entries) = fs::read_dir(&next) else { return false };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            } else {
                files += 1;
            }
        }
    }
    files == payload.len()
        && payload.iter().all(|(path, file)| {
            let path = dir.join(path);
            fs::read(&path).is_ok_and(|data| data == file.data)
                && fs::metadata(&path)
                    .is_ok_and(|metadata| metadata.permissions().mode() & 0o777 == file.mode & 0o777)
        })
}

/// Links each top-level name through `..data` and removes links to names that are gone.
fn link_names(dir: &Path, payload: &Payload) -> Result<(), VolumeError> {
    let tops: std::collections::BTreeSet<&str> =
        payload.keys().map(|path| path.split('/').next().unwrap_or(path)).collect();
    for top in &tops {
        let link = dir.join(top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(top), &link)
                .map_err(|source| VolumeError::io("cannot link", &link, source))?;
        }
    }
    let entries = fs::read_dir(dir).map_err(|source| VolumeError::io("cannot list", dir, source))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if !name.starts_with("..") && !tops.contains(name) {
            // Only links that an earlier payload made stand here.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| {
                (path.to_string(), File { data: data.as_bytes().to_vec(), mode: 0o640, uid: None })
            })
            .collect()
    }

    #[test]
    fn files_appear_change_and_go_together() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("v");
        assert!(write(&dir, &payload(&[("a", "1"), ("sub/b", "2")])).unwrap());
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(dir.join("sub/b")).unwrap(), "2");
        assert_eq!(fs::metadata(dir.join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        let first = fs::read_link(dir.join(DATA)).unwrap();
        assert!(!write(&dir, &payload(&[("a", "1"), ("sub/b", "2")])).unwrap(), "nothing changed");
        assert!(write(&dir, &payload(&[("a", "3")])).unwrap());
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("sub").exists() && !dir.join(&first).exists());
        assert!(fs::symlink_metadata(dir.join("a")).unwrap().is_symlink());
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x", "", "..data"] {
            assert!(write(root.path(), &payload(&[(path, "x")])).is_err(), "{path}");
        }
    }
}
