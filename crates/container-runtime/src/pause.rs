//! The process that does nothing: number 1 of a pod's shared process namespace, and the entry point of the pause
//! image.
//!
//! As number 1 it inherits the orphans of the pod's containers and must reap them.

use std::io;
use std::process::ExitCode;

use crate::sys;

/// Waits for SIGTERM or SIGINT, reaping children meanwhile. Ends the process.
pub fn run() -> ExitCode {
    loop {
        match sys::wait_signal(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]) {
            Ok(libc::SIGCHLD) => while sys::reap().is_some() {},
            Ok(_) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        }
    }
}

/// As [`run`], for a forked process that must end without exit handlers. Returns only if it can not wait.
pub(crate) fn hold() -> io::Error {
    loop {
        match sys::wait_signal(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]) {
            Ok(libc::SIGCHLD) => while sys::reap().is_some() {},
            Ok(_) => sys::exit_now(0),
            Err(error) => return error,
        }
    }
}
