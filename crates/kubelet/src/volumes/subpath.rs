//! subPath: a file or directory inside a volume, made if it is missing, never outside it.
//!
//! This only prepares and checks. What is mounted is resolved again by the runtime, beneath the volume, at the moment
//! of mounting: a pod that shares the volume may have put a link there in between.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum SubPathError {
    #[error("subPath {0:?} must be a relative path without '..'")]
    Form(String),
    #[error("subPath {sub_path:?} leads out of the volume")]
    Escapes { sub_path: String },
    #[error("failed to create subPath directory for volumeMount {mount:?} of container {container:?}")]
    Create { mount: String, container: String, source: io::Error },
}

/// Makes `sub_path` in a volume unless it is there. Symbolic links are followed, but only inside the volume.
pub fn prepare(volume: &Path, sub_path: &str, mount: &str, container: &str) -> Result<(), SubPathError> {
    let relative = Path::new(sub_path);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !plain {
        return Err(SubPathError::Form(sub_path.to_owned()));
    }
    make(volume, relative).map_err(|error| match error {
        Errno::XDEV => SubPathError::Escapes { sub_path: sub_path.to_owned() },
        error => SubPathError::Create {
            mount: mount.to_owned(),
            container: container.to_owned(),
            source: error.into(),
        },
    })
}

/// Binds `sub_path` of a volume to a place of the kubelet's own, for a runtime that takes a path for what it is. What is
/// bound is what was resolved beneath the volume, whatever a pod puts there afterwards.
pub fn bind(volume: &Path, sub_path: &str, place: &Path) -> io::Result<()> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let found = open(&root, Path::new(sub_path))?;
    let is_dir = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_dir();
    if let Some(parent) = place.parent() {
        std::fs::create_dir_all(parent)?;
    }
    // The bind of an earlier container of this name.
    while rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH).is_ok() {}
    match is_dir {
        true => std::fs::create_dir_all(place)?,
        false => drop(std::fs::File::options().create(true).append(true).open(place)?),
    }
    let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&found));
    Ok(rustix::mount::mount_bind(source, place)?)
}

fn make(volume: &Path, relative: &Path) -> rustix::io::Result<()> {
    let root = rustix::fs::open(volume, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if open(&root, relative).is_ok() {
        return Ok(());
    }
    // As upstream: directories that are made here have the mode of the volume's own.
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&root)?.st_mode & 0o7777);
    let mut so_far = PathBuf::from(".");
    for part in relative.components() {
        let Component::Normal(name) = part else { continue };
        let parent = open(&root, &so_far)?;
        so_far.push(name);
        match open(&root, &so_far) {
            Ok(_) => {}
            Err(Errno::NOENT) => {
                rustix::fs::mkdirat(&parent, name, mode)?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let made = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
                rustix::fs::fchmod(&made, mode)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn open(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn paths_stay_inside_and_missing_ones_are_made() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir(&volume).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o2770)).unwrap();
        let at = |sub_path: &str| prepare(&volume, sub_path, "m", "c");
        at("a/b").unwrap();
        assert_eq!(fs::metadata(volume.join("a/b")).unwrap().permissions().mode() & 0o7777, 0o2770);
        symlink("a", volume.join("in")).unwrap();
        at("in/c").unwrap();
        assert!(volume.join("a/c").is_dir());
        for target in ["/etc", "../..", "a/../../.."] {
            let link = volume.join("out");
            symlink(target, &link).unwrap();
            for sub_path in ["out", "out/passwd", "out/new"] {
                assert!(matches!(at(sub_path), Err(SubPathError::Escapes { .. })), "{target} {sub_path}");
            }
            fs::remove_file(link).unwrap();
        }
        symlink("nowhere", volume.join("dangling")).unwrap();
        assert!(matches!(at("dangling"), Err(SubPathError::Create { .. })));
        fs::write(volume.join("file"), "").unwrap();
        at("file").unwrap();
        assert!(matches!(at("file/below"), Err(SubPathError::Create { .. })));
        assert!(matches!(at("../x"), Err(SubPathError::Form(_))));
        assert!(matches!(at("/x"), Err(SubPathError::Form(_))));
    }
}
