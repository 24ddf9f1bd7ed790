//! The last steps of a new process: streams, terminal, identity, privileges, exec.
//!
//! Runs in a forked child that already has the container's root and namespaces. The order matters: descriptors
//! while still root, and all others closed before anything of the container is looked at; the filter before privileges
//! go unless it needs none; exec last. Until exec the child is not dumpable, as the shim is not, so nothing in the
//! container can look into it.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::{Gid, Uid};
use rustix::pty::OpenptFlags;
use rustix::thread::CapabilitySet;

use super::Failure;
use super::users::{self, Users};
use crate::caps::{Capabilities, CapabilitySets};
use crate::seccomp::{self, Filter};
use crate::spec::Process;
use crate::sys;

const DEVPTS: u64 = 0x1cd1;

/// Opens the container's own /dev/pts/ptmx. The container may have put something else there: that is not followed, not
/// waited for, and refused.
fn open_multiplexer() -> Result<OwnedFd, Failure> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
    let failed = |error: rustix::io::Errno| Failure::new("open a terminal", error);
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let master = rustix::fs::openat2(CWD, "/dev/pts/ptmx", flags, Mode::empty(), resolve).map_err(failed)?;
    let (stat, filesystem) =
        (rustix::fs::fstat(&master).map_err(failed)?, rustix::fs::fstatfs(&master).map_err(failed)?);
    let is_char = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
    if !is_char || stat.st_rdev != rustix::fs::makedev(5, 2) || filesystem.f_type as u64 != DEVPTS {
        let reason = io::Error::other("/dev/pts/ptmx is not a multiplexer of terminals");
        return Err(Failure::new("open a terminal", reason));
    }
    rustix::fs::fcntl_setfl(&master, OFlags::RDWR).map_err(failed)?;
    Ok(master)
}

/// What becomes descriptors 0, 1 and 2.
pub struct Streams(pub [OwnedFd; 3]);

impl Streams {
    /// Opens a terminal of the container's own devpts. Gives the streams and the other end of the terminal.
    pub fn terminal() -> Result<(Self, OwnedFd), Failure> {
        let failed = |error: rustix::io::Errno| Failure::new("open a terminal", error);
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = open_multiplexer()?;
        rustix::pty::unlockpt(&master).map_err(failed)?;
        let peer = || rustix::pty::ioctl_tiocgptpeer(&master, flags).map_err(failed);
        Ok((Self([peer()?, peer()?, peer()?]), master))
    }
}

/// Asks for an oom_score_adj. Lowering needs CAP_SYS_RESOURCE, which this host may not have given us.
pub fn adjust_oom_score(process: &Process) -> Option<String> {
    let score = process.oom_score_adj?;
    fs::write("/proc/self/oom_score_adj", score.to_string())
        .err()
        .map(|error| format!("cannot set oom_score_adj to {score}: {error}"))
}

/// Becomes the program. Returns only if that fails. Of the open descriptors only the streams and `keep` stay, the latter
/// until exec.
pub fn become_program(
    process: &Process,
    users: Option<&Users>,
    streams: Streams,
    keep: Option<RawFd>,
) -> Failure {
    match prepare(process, users, streams, keep) {
        Ok((program, args, env)) => {
            Failure::new("run", sys::execve(&program, &args, &env)).about(Path::new(&process.args[0]))
        }
        Err(failure) => failure,
    }
}

type Command = (CString, Vec<CString>, Vec<CString>);

fn prepare(
    process: &Process,
    users: Option<&Users>,
    streams: Streams,
    keep: Option<RawFd>,
) -> Result<Command, Failure> {
    let Streams([stdin, stdout, stderr]) = &streams;
    let strings = |list: &[String]| {
        list.iter().map(|text| CString::new(text.as_bytes())).collect::<Result<Vec<_>, _>>()
    };
    let args =
        strings(&process.args).map_err(|error| Failure::new("use the arguments", io::Error::from(error)))?;
    let mut env =
        strings(&process.env).map_err(|error| Failure::new("use the environment", io::Error::from(error)))?;
    if process.terminal && !process.env.iter().any(|entry| entry.starts_with("TERM=")) {
        env.push(c"TERM=xterm".to_owned());
    }

    rustix::process::setsid().map_err(|error| Failure::new("start a session", error))?;
    if process.terminal {
        rustix::process::ioctl_tiocsctty(stdin).map_err(|error| Failure::new("take the terminal", error))?;
    }
    for (fd, number) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
        give_to_user(fd, users::on_host(users, process.uid, 0).0);
        sys::duplicate_to(fd.as_fd(), number).map_err(|error| Failure::new("connect the streams", error))?;
    }
    std::mem::forget(streams); // closed with all the others
    users.map_or(Ok(()), Users::enter)?;
    // Before a path of the container is followed: /proc/self/fd must not lead anywhere.
    sys::close_from_but(3, keep);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    sys::reset_signals();

    let filter = filter(process)?;
    // Without no_new_privs a filter needs CAP_SYS_ADMIN, which is about to go.
    let early = filter.as_ref().filter(|_| !process.no_new_privs);
    if let Some(filter) = early {
        filter.install().map_err(|error| Failure::new("install the seccomp filter", error))?;
    }
    set_identity(process)?;
    rustix::process::chdir(&process.cwd)
        .map_err(|error| Failure::at("enter the working directory", &process.cwd, error))?;
    check_working_directory(&process.cwd)?;
    let program = find_program(process)?;
    if process.no_new_privs {
        rustix::thread::set_no_new_privs(true).map_err(|error| Failure::new("set no_new_privs", error))?;
        if let Some(filter) = &filter {
            filter.install().map_err(|error| Failure::new("install the seccomp filter", error))?;
        }
    }
    Ok((program, args, env))
}

/// The filter of the spec, or the default one where it is only named.
fn filter(process: &Process) -> Result<Option<Filter>, Failure> {
    match &process.seccomp_filter {
        Some(filter) => Ok(Some(filter.clone())),
        None if !process.seccomp => Ok(None),
        None => Filter::of(&seccomp::default_profile(process.capabilities.bounding))
            .map(Some)
            .map_err(|error| Failure::new("make the seccomp filter", io::Error::other(error))),
    }
}

/// The kernel says of a directory outside of the root that it is unreachable.
fn check_working_directory(path: &Path) -> Result<(), Failure> {
    let here = rustix::process::getcwd(Vec::new())
        .map_err(|error| Failure::at("enter the working directory", path, error))?;
    match here.as_bytes().first() {
        Some(b'/') => Ok(()),
        _ => {
            let reason = io::Error::other("it is outside of the container");
            Err(Failure::at("enter the working directory", path, reason))
        }
    }
}

/// Lets the container's user open /dev/stdout and the like again by name. Only what was made for this process.
fn give_to_user(fd: &OwnedFd, uid: u32) {
    let Ok(stat) = rustix::fs::fstat(fd) else { return };
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let is_terminal = kind.is_char_device() && rustix::termios::isatty(fd);
    if kind.is_fifo() || is_terminal {
        // A refusal costs only the reopening by name.
        let _ = rustix::fs::fchown(fd, Some(rustix::fs::Uid::from_raw(uid)), None);
    }
}

fn set_identity(process: &Process) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::new("change the user", error);
    restrict_bounding_set(process.capabilities.bounding)?;
    rustix::thread::set_keep_capabilities(true).map_err(failed)?;
    let groups: Vec<Gid> = process.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(failed)?;
    let (uid, gid) = (Uid::from_raw(process.uid), Gid::from_raw(process.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    rustix::thread::set_keep_capabilities(false).map_err(failed)?;
    set_capabilities(&process.capabilities)
}

fn restrict_bounding_set(allowed: Capabilities) -> Result<(), Failure> {
    for number in 0..64_u32 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match rustix::thread::capability_is_in_bounding_set(capability) {
            Ok(true) if !allowed.has(number as usize) => {
                rustix::thread::remove_capability_from_bounding_set(capability)
                    .map_err(|error| Failure::new("drop capabilities", error))?;
            }
            Ok(_) => {}
            Err(_) => break, // beyond the kernel's last capability
        }
    }
    Ok(())
}

/// What the host did not give us can not be given on.
fn set_capabilities(sets: &CapabilitySets) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::new("set capabilities", error);
    let held = rustix::thread::capabilities(None).map_err(failed)?.permitted;
    let wanted = CapabilitySet::from_bits_retain(sets.bounding.0) & held;
    let ambient = CapabilitySet::from_bits_retain(sets.ambient.0) & held;
    let sets = rustix::thread::CapabilitySets { effective: wanted, permitted: wanted, inheritable: ambient };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    for capability in ambient.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true).map_err(failed)?;
    }
    Ok(())
}

/// Finds the program as a shell would: by path, or in the container's PATH.
fn find_program(process: &Process) -> Result<CString, Failure> {
    let name = &process.args[0];
    let program = |path: &Path| {
        CString::new(path.as_os_str().as_bytes()).map_err(|error| Failure::new("run", io::Error::from(error)))
    };
    if name.contains('/') {
        return program(Path::new(name));
    }
    let search =
        process.env.iter().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or(crate::plan::DEFAULT_PATH);
    let mut refused = false;
    for directory in search.split(':').filter(|directory| !directory.is_empty()) {
        let candidate = Path::new(directory).join(name);
        match rustix::fs::access(&candidate, rustix::fs::Access::EXEC_OK) {
            Ok(()) if candidate.is_file() => return program(&candidate),
            Err(rustix::io::Errno::ACCESS) => refused = true,
            _ => {}
        }
    }
    let error = io::Error::from_raw_os_error(if refused { libc::EACCES } else { libc::ENOENT });
    Err(Failure::new(&format!("find executable file {name:?} in $PATH"), error))
}

/// Binds the container's terminal to /dev/console, which some programs insist on: to the file of that name, not to where
/// a link in its place may lead.
pub fn bind_console(streams: &Streams) -> io::Result<()> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
    use rustix::mount::{MoveMountFlags, OpenTreeFlags};
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let terminal = rustix::mount::open_tree(&streams.0[0], "", flags)?;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let console =
        rustix::fs::openat2(CWD, "/dev/console", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(&terminal, "", &console, "", flags)?)
}

/// Gives up every privilege for good, as the pause process does.
pub fn renounce_everything() -> Result<(), Failure> {
    const NOBODY: u32 = 65_535;
    restrict_bounding_set(Capabilities::default())?;
    let failed = |error: rustix::io::Errno| Failure::new("give up privileges", error);
    rustix::thread::set_thread_groups(&[]).map_err(failed)?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(failed)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(failed)?;
    rustix::thread::set_no_new_privs(true).map_err(failed)
}
