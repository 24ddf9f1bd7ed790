//! Small JSON files that appear whole or not at all.
//!
//! They describe processes of this boot, so they are written with rename but without fsync: a crash of the
//! machine ends what they describe.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value`, replacing what is there in one step.
pub fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write_bytes(path, &serde_json::to_vec(value)?)
}

/// Writes `bytes`, replacing what is there in one step.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    // Specs hold what pods are told in secret.
    let mut file =
        fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    fs::rename(&temporary, path)
}

/// Makes a directory, with its parents, that nobody else may enter; one that is there becomes so.
pub fn make_private(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

/// Reads a value; the error names the file.
pub fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let bytes = fs::read(path).map_err(named)?;
    serde_json::from_slice(&bytes).map_err(|error| named(error.into()))
}

/// Reads a value that may not have been written.
pub fn read_if_there<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match read(path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// When a process started, in clock ticks since boot: with its id, an identity that is never used again.
pub fn start_ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses and may contain anything; the start time is field 22.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Nanoseconds since the epoch.
pub fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}
