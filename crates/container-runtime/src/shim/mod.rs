//! The shim: one small process per pod that owns the pod's containers.
//!
//! It is the parent of every process of the pod, holds the pod's namespaces by living in them, writes the
//! containers' logs, and records how they ended. The runtime asks it for things over a socket ([`protocol`]) and
//! may die and come back meanwhile; containers do not notice.
//!
//! Path: [`main`] makes the namespaces, binds the socket and detaches; [`server`] is the event loop;
//! [`container`] is what it knows of one container; [`launch`] forks, [`rootfs`] and [`process`] are the
//! child's way to exec; [`log`] formats output.
//!
//! What must stay true: a single thread (children are made by plain fork), no async runtime, and no state that is
//! not also on disk or in the kernel.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::MountFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::spec::{SandboxSpec, files};
use crate::sys::{self, Side};
use cgroups::Cgroups;
use users::Users;

mod container;
mod launch;
mod log;
mod process;
pub mod protocol;
mod rootfs;
mod server;
mod users;

/// What was tried and what the system said.
#[derive(Debug)]
pub struct Failure {
    doing: String,
    error: io::Error,
}

impl Failure {
    fn new(doing: &str, error: impl Into<io::Error>) -> Self {
        Self { doing: doing.to_owned(), error: error.into() }
    }

    fn at(doing: &str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self { doing: format!("{doing} {}", path.display()), error: error.into() }
    }

    /// The same failure, told of another path: the one that the user knows.
    fn about(self, path: &Path) -> Self {
        let doing = self.doing.split(" /proc/self/fd").next().unwrap_or_default().to_owned();
        Self { doing: format!("{doing} {}", path.display()), error: self.error }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.doing, self.error)
    }
}

/// Writes to the shim's own log, which is its standard error.
fn note(message: &str) {
    let _ = writeln!(io::stderr(), "{:.3} {message}", jiff::Timestamp::now()); // nowhere to complain
}

/// The hidden command `shim DIR`, where `DIR` is a sandbox's state directory. Returns once the shim serves in the
/// background, having printed its process id; what goes wrong before is on standard error.
pub fn main(directory: &Path) -> ExitCode {
    match start(directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "{failure}"); // the reader is gone: so is the wish for a shim
            ExitCode::FAILURE
        }
    }
}

fn start(directory: &Path) -> Result<(), Failure> {
    // Nothing in a container may look into the shim or into what it forks, before that has become the container's program.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(|error| Failure::new("protect the shim's memory", error))?;
    // Whatever we were started with, mount points and logs are made for others to enter and read.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let _ = rustix::thread::set_name(c"kelson-shim"); // for people who look at processes
    // Who asked for a sandbox and died would not find it again if it were finished later. A forked child does not
    // inherit this: once the shim serves, it stays.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| Failure::new("follow the parent", error))?;
    if is_orphan() {
        return Err(Failure::new("serve", io::Error::other("whoever asked for it is gone")));
    }
    let spec = read_spec(directory)?;
    let cgroups = Cgroups::detect();
    for warning in cgroups.create(&spec.cgroup) {
        note(&warning);
    }
    let users = make_namespaces(&spec, directory)?;
    let listener = listen(directory)?;
    match sys::clone_process(0).map_err(|error| Failure::new("detach", error))? {
        Side::Parent(pid) => {
            let _ = writeln!(io::stdout(), "{pid}"); // the reader is gone: the shim is found by its socket
            Ok(())
        }
        Side::Child => {
            let code = match serve(spec, users, directory, cgroups, listener) {
                Ok(()) => 0,
                Err(failure) => {
                    note(&failure.to_string());
                    1
                }
            };
            sys::exit_now(code)
        }
    }
}

/// Whether the parent died before we could ask to be told of it: our standard input is a pipe that it keeps open.
fn is_orphan() -> bool {
    let stdin = io::stdin();
    let mut fds = [rustix::event::PollFd::new(&stdin, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut fds, Some(&now)); // then nothing is known, and nothing is told
    fds[0].revents().contains(rustix::event::PollFlags::HUP)
}

fn read_spec(directory: &Path) -> Result<SandboxSpec, Failure> {
    let path = directory.join(files::SANDBOX);
    let bytes = fs::read(&path).map_err(|error| Failure::at("read", &path, error))?;
    serde_json::from_slice(&bytes).map_err(|error| Failure::at("understand", &path, error))
}

/// Puts this process, and so its children, into the pod's namespaces.
fn make_namespaces(spec: &SandboxSpec, directory: &Path) -> Result<Option<Users>, Failure> {
    let chosen = [
        (spec.own_network, libc::CLONE_NEWNET),
        (spec.own_ipc, libc::CLONE_NEWIPC),
        (spec.hostname.is_some(), libc::CLONE_NEWUTS),
    ];
    let flags = chosen.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, flag)| flags | flag);
    let users = spec.users.map(|range| Users::make(range, flags)).transpose()?;
    if users.is_none() {
        sys::unshare(flags).map_err(|error| Failure::new("make the pod's namespaces", error))?;
    }
    if spec.own_network {
        sys::loopback_up().map_err(|error| Failure::new("bring the loopback interface up", error))?;
    }
    if let Some(hostname) = &spec.hostname {
        rustix::system::sethostname(hostname.as_bytes())
            .map_err(|error| Failure::new(&format!("set the host name to {hostname:?}"), error))?;
    }
    for (name, value) in &spec.sysctls {
        let path = Path::new("/proc/sys").join(name.replace('.', "/"));
        set_sysctl(&path, value).map_err(|error| Failure::new(&format!("set sysctl {name}"), error))?;
    }
    if spec.own_ipc {
        let shm = directory.join(files::SHM);
        fs::create_dir_all(&shm).map_err(|error| Failure::at("create", &shm, error))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let (uid, gid) = users::on_host(users.as_ref(), 0, 0);
        let options = CString::new(format!("mode=1777,size=64m,uid={uid},gid={gid}"))
            .map_err(|error| Failure::at("mount tmpfs on", &shm, io::Error::from(error)))?;
        rustix::mount::mount("shm", &shm, "tmpfs", flags, &*options)
            .map_err(|error| Failure::at("mount tmpfs on", &shm, error))?;
    }
    Ok(users)
}

/// Writes a file of /proc/sys, making sure that it is one.
fn set_sysctl(path: &Path, value: &str) -> io::Result<()> {
    const PROC: u64 = 0x9fa0;
    let mut file = File::options().write(true).open(path)?;
    match rustix::fs::fstatfs(&file)?.f_type as u64 {
        PROC => file.write_all(value.as_bytes()),
        _ => Err(io::Error::other("/proc/sys is not the kernel's")),
    }
}

/// An address for a socket in `directory`, however long its path: addresses hold 107 bytes only. The descriptor
/// must live as long as the address is used.
pub(crate) fn socket_address(directory: &Path) -> io::Result<(SocketAddrUnix, File)> {
    let handle = File::open(directory)?;
    let path = format!("/proc/self/fd/{}/{}", handle.as_raw_fd(), files::SOCKET);
    Ok((SocketAddrUnix::new(path)?, handle))
}

fn listen(directory: &Path) -> Result<OwnedFd, Failure> {
    let failed = |error: io::Error| Failure::at("listen in", directory, error);
    let (address, _handle) = socket_address(directory).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|error| failed(error.into()))?;
    // Who may speak to a shim may do anything with the pod.
    let usual = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(usual);
    bound.map_err(|error| failed(error.into()))?;
    rustix::net::listen(&socket, 16).map_err(|error| failed(error.into()))?;
    Ok(socket)
}

fn serve(
    spec: SandboxSpec,
    users: Option<Users>,
    directory: &Path,
    cgroups: Cgroups,
    listener: OwnedFd,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new("detach", error);
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    // Orphans of containers in the host's process namespace come to us rather than to init.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|error| failed(error.into()))?;
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGPIPE] {
        sys::ignore_signal(signal);
    }
    // Containers set their own; without CAP_SYS_RESOURCE the shim stays as likely to be killed as anyone.
    let _ = fs::write("/proc/self/oom_score_adj", "-998");
    let signals = sys::signal_fd(&[libc::SIGCHLD]).map_err(failed)?;
    redirect_streams(directory).map_err(failed)?;
    rustix::process::chdir("/").map_err(|error| failed(error.into()))?;
    for warning in cgroups.join(&spec.cgroup, std::process::id() as sys::Pid) {
        note(&warning);
    }
    server::Server::new(spec, users, PathBuf::from(directory), cgroups, listener, signals)?.run()
}

fn redirect_streams(directory: &Path) -> io::Result<()> {
    let null = OwnedFd::from(File::options().read(true).write(true).open("/dev/null")?);
    let log = File::options().create(true).append(true).mode(0o600).open(directory.join(files::SHIM_LOG))?;
    let log = OwnedFd::from(log);
    use std::os::fd::AsFd;
    sys::duplicate_to(null.as_fd(), 0)?;
    sys::duplicate_to(null.as_fd(), 1)?;
    sys::duplicate_to(log.as_fd(), 2)
}
