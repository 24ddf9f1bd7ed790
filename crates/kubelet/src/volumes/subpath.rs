//! subPath: a file or directory inside a volume, made if it is missing, never outside it.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Error)]
pub enum SubPathError {
    #[error("subPath {0:?} must be a relative path without '..'")]
    Form(String),
    #[error("subPath {sub_path:?} leads out of the volume")]
    Escapes { sub_path: String },
    #[error("failed to create subPath directory for volumeMount {mount:?}")]
    Create { mount: String, source: io::Error },
}

/// The host path of `sub_path` in a volume. Symbolic links are followed, but only inside the volume.
pub fn resolve(volume: &Path, sub_path: &str, mount: &str) -> Result<PathBuf, SubPathError> {
    let relative = Path::new(sub_path);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !plain {
        return Err(SubPathError::Form(sub_path.to_owned()));
    }
    let create = |source| SubPathError::Create { mount: mount.to_owned(), source };
    let root = fs::canonicalize(volume).map_err(create)?;
    let mut here = root.clone();
    for part in relative.components() {
        let Component::Normal(name) = part else { continue };
        let next = here.join(name);
        here = match fs::canonicalize(&next) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&next).is_err() => {
                fs::create_dir(&next).map_err(create)?;
                let mode = fs::metadata(&here).map_err(create)?.permissions();
                fs::set_permissions(&next, mode).map_err(create)?;
                next
            }
            Err(error) => return Err(create(error)),
        };
        if !here.starts_with(&root) {
            return Err(SubPathError::Escapes { sub_path: sub_path.to_owned() });
        }
    }
    Ok(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside_and_missing_ones_are_made() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir(&volume).unwrap();
        assert!(resolve(&volume, "a/b", "m").unwrap().is_dir());
        std::os::unix::fs::symlink("a", volume.join("in")).unwrap();
        assert!(resolve(&volume, "in/b", "m").unwrap().ends_with("v/a/b"));
        std::os::unix::fs::symlink("/etc", volume.join("out")).unwrap();
        assert!(matches!(resolve(&volume, "out/passwd", "m"), Err(SubPathError::Escapes { .. })));
        assert!(matches!(resolve(&volume, "../x", "m"), Err(SubPathError::Form(_))));
        assert!(matches!(resolve(&volume, "/x", "m"), Err(SubPathError::Form(_))));
    }
}
