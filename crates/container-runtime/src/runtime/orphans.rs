//! What a death can leave behind, found by what it is rather than by what is recorded of it: shims that nobody knows, mounts
//! in directories of the state, processes in control groups.
//!
//! A shim is known by its command line, `<program> shim <directory>`, which it has from exec to its end; so have its
//! children until they become a container's program, and by then they are in the container's group.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal};
use tracing::warn;

/// Ends every shim that serves in `directory` or below, and waits until they are gone. False when one is still there
/// at the deadline.
pub fn end_shims(program: &Path, directory: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let found = shims(program, directory);
        if found.is_empty() {
            return true;
        }
        for (pid, process) in found {
            warn!(pid = pid.as_raw_nonzero(), directory = %directory.display(), "ending a pod's shim that nobody knows");
            let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL); // gone: as wished
            if !wait_for_end(&process, deadline) {
                return false;
            }
        }
    }
}

/// Waits for the end of a process that may be anyone's child.
fn wait_for_end(process: &OwnedFd, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut fds, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            outcome => return matches!(outcome, Ok(count) if count > 0),
        }
    }
}

fn shims(program: &Path, directory: &Path) -> Vec<(Pid, OwnedFd)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        if !is_shim(pid, program, directory) {
            continue;
        }
        // Looked at again with a hold on the process: the number may have changed hands in between.
        if let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty())
            && is_shim(pid, program, directory)
        {
            found.push((pid, process));
        }
    }
    found
}

fn is_shim(pid: Pid, program: &Path, directory: &Path) -> bool {
    // A zombie has no command line.
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let (name, role, place) = (words.next(), words.next(), words.next());
    let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()));
    let same_program = name.map(path).is_some_and(|name| name.file_name() == program.file_name());
    same_program
        && role == Some(&b"shim"[..])
        && place.map(path).is_some_and(|place| place.starts_with(directory))
}

/// Unmounts everything in and below a directory, the latest mount first. What is busy goes when its last user does.
pub fn unmount_below(directory: &Path) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(); // without /proc nothing is mounted by us
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let below: Vec<PathBuf> = points.filter(|point| point.starts_with(directory)).collect();
    for point in below.iter().rev() {
        if let Err(error) = rustix::mount::unmount(point, UnmountFlags::DETACH) {
            warn!(path = %point.display(), %error, "cannot unmount");
        }
    }
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    while let [first, rest @ ..] = bytes {
        let octal =
            rest.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                bytes = &rest[3..];
            }
            None => {
                plain.push(*first);
                bytes = rest;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

/// Removes a directory with all in it, `last` after everything else: as long as that is there, the rest is not forgotten.
pub fn remove_with_last(directory: &Path, last: &str) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().as_bytes() != last.as_bytes() {
            crate::image::store::remove_any(&entry.path())?;
        }
    }
    super::remove_directory(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c\12"), Path::new("/a b\\c\\12"));
    }

    #[test]
    fn the_last_file_goes_last() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("pod");
        fs::create_dir_all(directory.join("inner/deep")).unwrap();
        fs::write(directory.join("record"), "x").unwrap();
        remove_with_last(&directory, "record").unwrap();
        assert!(!directory.exists());
        remove_with_last(&directory, "record").unwrap();
    }
}
