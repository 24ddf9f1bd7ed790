//! The few system calls for which there is no safe wrapper, each with the rule that makes it sound.
//!
//! Everything unsafe of this crate is in this file.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A process id as the kernel counts them.
pub type Pid = i32;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which side of [`clone_process`] this is.
pub enum Side {
    /// In the new process.
    Child,
    /// In the caller, with the id of the new process.
    Parent(Pid),
}

/// Forks, putting the child into the new namespaces named by `flags` (`CLONE_NEW*`).
///
/// Sound only in a process with a single thread: otherwise the child could inherit a locked allocator. The shim
/// is single-threaded by construction; debug builds check it.
pub fn clone_process(flags: libc::c_int) -> io::Result<Side> {
    debug_assert_eq!(std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1), 1);
    // SAFETY: without CLONE_VM and with a null stack this is fork(2); null for the rest is what fork passes.
    let pid = unsafe { libc::syscall(libc::SYS_clone, (flags | libc::SIGCHLD) as libc::c_long, 0, 0, 0, 0) };
    match check(pid)? {
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid as Pid)),
    }
}

/// Ends this process without running exit handlers, as a forked child must.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Replaces the process image. Returns only on error.
pub fn execve(path: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both arrays are null-terminated and outlive the call.
    unsafe { libc::execve(path.as_ptr(), args.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

/// Attributes for [`mount_setattr`].
#[derive(Clone, Copy, Default)]
pub struct MountAttributes {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// `MS_PRIVATE`, `MS_SLAVE` or `MS_SHARED`; 0 leaves the propagation.
    pub propagation: u64,
    /// For the whole tree below.
    pub recursive: bool,
    /// The user namespace whose ids the mount shows, with `MOUNT_ATTR_IDMAP`.
    pub user_namespace: Option<RawFd>,
}

/// Changes the attributes of the mount that `mount` is open on.
pub fn mount_setattr(mount: BorrowedFd<'_>, attributes: MountAttributes) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: attributes.set,
        attr_clr: 0,
        propagation: attributes.propagation,
        userns_fd: attributes.user_namespace.and_then(|fd| u64::try_from(fd).ok()).unwrap_or(0),
    };
    let flags = libc::AT_EMPTY_PATH | if attributes.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a terminated empty string, and the size is that of the struct passed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    check(result).map(drop)
}

/// Blocks the signals and gives a descriptor that becomes readable when one of them is pending.
pub fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    let set = signal_set(signals);
    // SAFETY: the set was initialised by signal_set; a new descriptor is owned by nobody else.
    unsafe {
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Blocks the signals and waits for one of them.
pub fn wait_signal(signals: &[i32]) -> io::Result<i32> {
    let set = signal_set(signals);
    let mut got = 0;
    // SAFETY: the set was initialised; `got` is valid for the write.
    unsafe {
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()).into())?;
        match libc::sigwait(&raw const set, &raw mut got) {
            0 => Ok(got),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Gives every signal its default action and unblocks all, for a process about to run someone else's program.
pub fn reset_signals() {
    // SAFETY: SIG_DFL installs no handler; failures (SIGKILL, SIGSTOP, reserved ones) are expected and harmless.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut empty = std::mem::zeroed();
        libc::sigemptyset(&raw mut empty);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
    }
}

/// Ignores a signal.
pub fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the whole set before it is read.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Makes `number` a copy of `fd`, surviving exec.
pub fn duplicate_to(fd: BorrowedFd<'_>, number: i32) -> io::Result<()> {
    // SAFETY: dup2 onto 0..=2, which no owned descriptor of this process holds; dup2 onto itself keeps
    // close-on-exec, so that case clears the flag.
    unsafe {
        if fd.as_raw_fd() == number {
            check(libc::fcntl(number, libc::F_SETFD, 0).into()).map(drop)
        } else {
            check(libc::dup2(fd.as_raw_fd(), number).into()).map(drop)
        }
    }
}

/// Sends a signal; a process that is gone is success.
pub fn kill(pid: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: takes plain numbers.
    match check(unsafe { libc::kill(pid, signal) }.into()) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// A child that ended: its id, and its exit code (128 + n for signal n).
pub fn reap() -> Option<(Pid, i32)> {
    let mut status = 0;
    // SAFETY: `status` is valid for the write.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then(|| (pid, exit_code(status)))
}

/// Waits for one child.
pub fn wait_for(pid: Pid) -> io::Result<i32> {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for the write.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }.into()) {
            Ok(_) => return Ok(exit_code(status)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn exit_code(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Brings the loopback interface of the current network namespace up.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: ifreq is plain data; the name is shorter than the field; the socket is closed by its owner.
    unsafe {
        let socket = check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).into())?;
        let socket = OwnedFd::from_raw_fd(socket as i32);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (slot, byte) in request.ifr_name.iter_mut().zip(b"lo") {
            *slot = *byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request).into()).map(drop)
    }
}

/// Sets the window size of a terminal.
pub fn set_terminal_size(terminal: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the ioctl reads one winsize.
    let result = unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    check(result.into()).map(drop)
}

/// Takes an advisory lock on the whole file and waits for it.
pub fn lock_file(file: impl AsFd, exclusive: bool) -> io::Result<()> {
    let operation = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    loop {
        // SAFETY: takes plain numbers.
        match check(unsafe { libc::flock(file.as_fd().as_raw_fd(), operation) }.into()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// Installs a seccomp filter on this thread.
pub fn install_seccomp(program: &[libc::sock_filter], flags: u32) -> io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program, which outlives the call, and does not write to it.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter) };
    check(result).map(drop)
}

/// Closes every descriptor from `first` on. For a forked process that will never use nor drop their owners.
pub fn close_from(first: u32) {
    // SAFETY: takes plain numbers. The caller promises above; a failure leaves descriptors open, no more.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Closes every descriptor from `first` on but `keep`. For a forked process that will never use nor drop their owners.
pub fn close_from_but(first: u32, keep: Option<RawFd>) {
    let Some(keep) = keep.and_then(|keep| u32::try_from(keep).ok()).filter(|keep| *keep >= first) else {
        return close_from(first);
    };
    if keep > first {
        // SAFETY: as close_from.
        unsafe { libc::syscall(libc::SYS_close_range, first, keep - 1, 0) };
    }
    close_from(keep + 1);
}

/// Blocks signals in this thread and in those that it starts.
pub fn block_signals(signals: &[i32]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: the set was initialised.
    check(unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) }.into())
        .map(drop)
}

/// Moves this thread into new namespaces (`CLONE_NEW*`; not `CLONE_FILES`, which would part the descriptor table).
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes plain numbers; namespaces do not affect memory.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// Does `work` with these ids for files, and with no privilege over the files of others.
pub fn with_file_ids<T>(uid: u32, gid: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: these take plain numbers, change this thread only, and cannot fail for who may use any id.
    let set = |uid: u32, gid: u32| unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
    };
    set(uid, gid);
    let outcome = work();
    set(0, 0);
    outcome
}

/// Watches a descriptor for readiness.
pub fn watch(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays the same open descriptor for as long as the AsyncFd holds it.
    Ok(unsafe { tokio::io::unix::AsyncFd::register(fd) }?)
}
