//! Files that appear whole or not at all.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::PkiError;

/// Mode of secrets.
pub const SECRET: u32 = 0o600;
/// Mode of what everyone may read.
pub const PUBLIC: u32 = 0o644;

/// Writes beside the target and renames over it, so that a reader or a crash never sees half a file.
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    replace(path, content, mode, false)
}

/// As [`write`], and the content is on the disk before the name is: for what cannot be made again.
pub fn write_durably(path: &Path, content: &[u8], mode: u32) -> Result<(), PkiError> {
    replace(path, content, mode, true)
}

fn replace(path: &Path, content: &[u8], mode: u32, durably: bool) -> Result<(), PkiError> {
    let fail = |operation| move |source| PkiError::File { operation, path: path.to_owned(), source };
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(parent).map_err(fail("create"))?;
    // The temporary file is born 0600; a wider mode is set only on what is public.
    file.as_file().set_permissions(fs::Permissions::from_mode(mode)).map_err(fail("set the mode of"))?;
    file.write_all(content).map_err(fail("write"))?;
    if durably {
        file.as_file().sync_data().map_err(fail("write"))?;
    }
    file.persist(path).map_err(|error| fail("write")(error.error))?;
    Ok(())
}

/// Reads a file that may not be there: absence is `None`, anything else that fails is an error.
pub fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, PkiError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { operation: "read", path: path.to_owned(), source }),
    }
}

/// Makes a directory that only its owner may enter.
pub fn create_private_dir(path: &Path) -> Result<(), PkiError> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| PkiError::File {
        operation: "create",
        path: path.to_owned(),
        source,
    })
}
