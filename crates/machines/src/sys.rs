//! The few calls for which there is no safe wrapper, each with the rule that makes it sound.
//!
//! Everything unsafe of this crate is in this file.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::thread::UnshareFlags;

/// Moves the calling thread into new namespaces. Not for `FILES`, which would part the descriptor table.
pub fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the hazard that the function warns of is about FILES, which is not among the flags.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// What a process gets between fork and exec.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Preparation {
    /// Away from the terminal of whoever starts it.
    pub new_session: bool,
    /// `cgroup.procs` files to join.
    pub groups: Vec<std::ffi::CString>,
    pub limits: Vec<(i32, u64, u64)>,
    pub umask: u32,
    pub nice: Option<i32>,
    pub oom_score_adjust: Option<i32>,
    /// uid, gid and supplementary groups.
    pub identity: Option<(u32, u32, Vec<u32>)>,
}

/// Arranges for the preparation to happen in the child. Everything it needs is allocated here, before the fork.
pub fn prepare(command: &mut Command, preparation: Preparation) {
    let score = preparation.oom_score_adjust.map(|score| score.to_string());
    // SAFETY: between fork and exec only system calls are made, on memory that was allocated before the fork.
    unsafe { command.pre_exec(move || in_child(&preparation, score.as_deref())) };
}

unsafe fn write_file(path: &std::ffi::CStr, text: &[u8]) -> io::Result<()> {
    // SAFETY: the path is terminated; the buffer is as long as said; the descriptor is closed once.
    unsafe {
        let fd = check(libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?;
        let written = libc::write(fd, text.as_ptr().cast(), text.len());
        let outcome = if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        libc::close(fd);
        outcome
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn in_child(preparation: &Preparation, score: Option<&str>) -> io::Result<()> {
    // SAFETY: system calls on plain numbers and on buffers that outlive them.
    unsafe {
        if preparation.new_session {
            libc::setsid();
        }
        for group in &preparation.groups {
            write_file(group, b"0")?;
        }
        if let Some(score) = score {
            write_file(c"/proc/self/oom_score_adj", score.as_bytes())?;
        }
        for (resource, soft, hard) in &preparation.limits {
            let mut limit = libc::rlimit { rlim_cur: *soft, rlim_max: *hard };
            let set = check(libc::setrlimit(*resource as _, &raw const limit));
            // Where more is not allowed, as much as is: as systemd does.
            if set.is_err_and(|error| error.raw_os_error() == Some(libc::EPERM)) {
                let mut allowed = limit;
                check(libc::getrlimit(*resource as _, &raw mut allowed))?;
                limit.rlim_cur = limit.rlim_cur.min(allowed.rlim_max);
                limit.rlim_max = limit.rlim_max.min(allowed.rlim_max);
                check(libc::setrlimit(*resource as _, &raw const limit))?;
            }
        }
        libc::umask(preparation.umask);
        if let Some(nice) = preparation.nice {
            check(libc::setpriority(libc::PRIO_PROCESS, 0, nice))?;
        }
        // What init blocks or ignores is nothing to its children.
        let mut empty = std::mem::zeroed();
        libc::sigemptyset(&raw mut empty);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if let Some((uid, gid, groups)) = &preparation.identity {
            check(libc::setgroups(groups.len(), groups.as_ptr()))?;
            check(libc::setgid(*gid))?;
            check(libc::setuid(*uid))?;
        }
    }
    Ok(())
}

/// Sends a signal to one process, or with -1 to all that this one may signal. One that is gone is success.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    match check(unsafe { libc::kill(pid, signal) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// The signals with which a machine is asked to go down, as systemd has them.
pub fn poweroff_signal() -> i32 {
    libc::SIGRTMIN() + 4
}

/// See [`poweroff_signal`].
pub fn reboot_signal() -> i32 {
    libc::SIGRTMIN() + 5
}
