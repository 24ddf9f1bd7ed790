//! hostPath: a file or directory of the host, checked or made as its type asks.

use std::fs;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use cri::BoxFuture;

use super::{Context, Mounted, VolumeError};
use crate::pod::HostPath;

pub struct Source<'v>(pub &'v HostPath);

impl super::Source for Source<'_> {
    fn set_up<'a>(&'a self, _context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            check(Path::new(&self.0.path), self.0.r#type.as_deref().unwrap_or(""))?;
            Ok(Mounted::at(self.0.path.clone().into()))
        })
    }
}

fn check(path: &Path, kind: &str) -> Result<(), VolumeError> {
    let io = |source| VolumeError::io("cannot create", path, source);
    let is = |test: fn(&fs::FileType) -> bool| fs::metadata(path).is_ok_and(|found| test(&found.file_type()));
    let mismatch = |wanted| Err(VolumeError::HostPathType { path: path.display().to_string(), wanted });
    match kind {
        "" => {}
        "DirectoryOrCreate" => {
            if !path.exists() {
                fs::create_dir_all(path).map_err(io)?;
            }
            if !is(fs::FileType::is_dir) {
                return mismatch("a directory");
            }
        }
        "Directory" if !is(fs::FileType::is_dir) => return mismatch("a directory"),
        "FileOrCreate" => {
            if !path.exists() {
                fs::OpenOptions::new().create(true).append(true).mode(0o644).open(path).map_err(io)?;
            }
            if !is(fs::FileType::is_file) {
                return mismatch("a file");
            }
        }
        "File" if !is(fs::FileType::is_file) => return mismatch("a file"),
        "Socket" if !is(FileTypeExt::is_socket) => return mismatch("a socket"),
        "CharDevice" if !is(FileTypeExt::is_char_device) => return mismatch("a character device"),
        "BlockDevice" if !is(FileTypeExt::is_block_device) => return mismatch("a block device"),
        "Directory" | "File" | "Socket" | "CharDevice" | "BlockDevice" => {}
        other => return Err(VolumeError::UnknownHostPathType(other.to_owned())),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_checked_and_made() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        check(&at("d"), "DirectoryOrCreate").unwrap();
        check(&at("f"), "FileOrCreate").unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("s")).unwrap();
        for (name, kind, good) in [
            ("d", "Directory", true),
            ("d", "File", false),
            ("f", "File", true),
            ("f", "DirectoryOrCreate", false),
            ("s", "Socket", true),
            ("f", "Socket", false),
            ("none", "File", false),
            ("none", "", true),
            ("d", "Nonsense", false),
        ] {
            assert_eq!(check(&at(name), kind).is_ok(), good, "{name} {kind}");
        }
        check(Path::new("/dev/null"), "CharDevice").unwrap();
    }
}
