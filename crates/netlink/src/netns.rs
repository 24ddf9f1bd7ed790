//! Work inside a network namespace. Namespaces belong to threads, so each entry is a short-lived thread of its own:
//! the caller never moves, and nothing has to be moved back when the work fails.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::Error;

/// Runs `work` on a thread inside the namespace that `path` names (a bind mount, or `/proc/PID/ns/net`).
pub fn within<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    let fail = |source: std::io::Error| Error::Namespace { path: path.to_owned(), source };
    let namespace = File::open(path).map_err(fail)?;
    on_thread(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| fail(errno.into()))?;
        Ok(work())
    })
}

/// Runs `work` on a thread inside a network namespace that did not exist before and ends with the last thread,
/// socket or mount that uses it.
pub fn fresh<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Error> {
    on_thread(move || {
        unshare_network()?;
        Ok(work())
    })
}

/// Moves the calling thread into a new network namespace. Threads that it starts later are in it too.
pub fn unshare_network() -> Result<(), Error> {
    // SAFETY: only NEWNET is unshared; the hazard that the function warns of is about FILES.
    #[allow(unsafe_code)]
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
        .map_err(|errno| Error::Namespace { path: "(new)".into(), source: errno.into() })
}

fn on_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
