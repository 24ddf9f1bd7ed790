//! Starts processes in containers: the first one, exec'd ones, and the pause process.
//!
//! `parent: clone → join cgroup → "go"` · `child: wait for "go" → namespaces → root → report terminal → exec`.
//! The two talk over a socket pair that exec closes: end of file is success, a message is a failure.
//!
//! A child enters another process namespace because the shim switches its own *for children* around the clone;
//! so each child is a direct child of the shim, and its id is the host's.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::LinkNameSpaceType;
use serde::{Deserialize, Serialize};

use super::process::{self, Streams};
use super::users::Users;
use super::{Failure, note, protocol, rootfs};
use crate::spec::{ContainerSpec, Process};
use crate::sys::{self, Pid, Side};
use cgroups::Cgroups;

/// A process that runs.
pub struct Launched {
    pub pid: Pid,
    /// The other end of its terminal.
    pub terminal: Option<OwnedFd>,
}

/// What a child tells its parent before exec.
#[derive(Serialize, Deserialize)]
enum Word {
    /// A terminal comes along.
    Terminal,
    /// Could not be done, but we go on.
    Warning(String),
    /// The end of the attempt.
    Failed(String),
}

/// What the parent tells the child.
#[derive(Serialize, Deserialize)]
struct Go;

/// Which process namespace a new process gets.
pub enum Processes<'a> {
    /// A new one, of which it is the first process.
    New,
    /// The shim's, which is the host's.
    Host,
    /// That of an existing process.
    Of(BorrowedFd<'a>),
}

/// Runs a container's first process.
pub fn container(
    spec: &ContainerSpec,
    shm: &Path,
    users: Option<&Users>,
    processes: &Processes<'_>,
    streams: Option<Streams>,
    cgroups: &Cgroups,
) -> Result<Launched, String> {
    let own_cgroup_view = matches!(cgroups, Cgroups::V2(_));
    let setup = |talk: &Talk| {
        if own_cgroup_view {
            // The container sees its own group as the root of the hierarchy.
            sys::unshare(libc::CLONE_NEWCGROUP)
                .map_err(|error| Failure::new("make a cgroup namespace", error))?;
        }
        talk.warn(process::adjust_oom_score(&spec.process));
        rootfs::enter(spec, shm, users)?;
        let streams = take_streams(talk, &spec.process, streams)?;
        if spec.process.terminal {
            process::bind_console(&streams).map_err(|error| Failure::new("bind /dev/console", error))?;
        }
        Ok(streams)
    };
    launch(libc::CLONE_NEWNS, processes, &spec.cgroup, cgroups, |talk| match setup(talk) {
        Ok(streams) => process::become_program(&spec.process, users, streams, talk.number()),
        Err(failure) => failure,
    })
}

/// Runs a further process in the container whose first process is `init`.
pub fn exec(
    spec: &ContainerSpec,
    process: &Process,
    users: Option<&Users>,
    init: Pid,
    processes: &Processes<'_>,
    streams: Option<Streams>,
    cgroups: &Cgroups,
) -> Result<Launched, String> {
    let namespace = |name: &str| {
        let path = format!("/proc/{init}/ns/{name}");
        File::open(&path).map_err(|error| Failure::at("open", Path::new(&path), error).to_string())
    };
    let mounts = namespace("mnt")?;
    let cgroup = matches!(cgroups, Cgroups::V2(_)).then(|| namespace("cgroup")).transpose()?;
    let setup = |talk: &Talk| {
        talk.warn(process::adjust_oom_score(process));
        let enter = |file: &File, kind| {
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind))
                .map_err(|error| Failure::new("enter the container", error))
        };
        if let Some(cgroup) = &cgroup {
            enter(cgroup, LinkNameSpaceType::ControlGroup)?;
        }
        enter(&mounts, LinkNameSpaceType::Mount)?;
        take_streams(talk, process, streams)
    };
    launch(0, processes, &spec.cgroup, cgroups, |talk| match setup(talk) {
        Ok(streams) => process::become_program(process, users, streams, talk.number()),
        Err(failure) => failure,
    })
}

/// Runs the process that holds the pod's process namespace: as nobody, in an empty root, reaping orphans.
pub fn pause(
    scratch: &Path,
    group: &str,
    users: Option<&Users>,
    cgroups: &Cgroups,
) -> Result<Launched, String> {
    launch(libc::CLONE_NEWNS, &Processes::New, group, cgroups, |talk| {
        let ready = rootfs::enter_empty(scratch)
            .and_then(|()| users.map_or(Ok(()), Users::enter))
            .and_then(|()| process::renounce_everything());
        match ready {
            Ok(()) => {
                talk.hang_up();
                sys::close_from(3);
                Failure::new("hold the process namespace", crate::pause::hold())
            }
            Err(failure) => failure,
        }
    })
}

fn take_streams(talk: &Talk, process: &Process, streams: Option<Streams>) -> Result<Streams, Failure> {
    if process.terminal {
        let (streams, master) = Streams::terminal()?;
        talk.say(&Word::Terminal, &[master.as_fd()]);
        return Ok(streams);
    }
    streams.ok_or_else(|| Failure::new("connect the streams", io::Error::from(io::ErrorKind::InvalidInput)))
}

/// The child's end of the conversation.
struct Talk(Option<OwnedFd>);

impl Talk {
    fn say(&self, word: &Word, fds: &[BorrowedFd<'_>]) {
        if let Some(socket) = &self.0 {
            // A parent that is gone does not listen; then there is nobody to tell.
            let _ = protocol::send(socket, word, fds);
        }
    }

    fn number(&self) -> Option<RawFd> {
        self.0.as_ref().map(OwnedFd::as_raw_fd)
    }

    fn warn(&self, warning: Option<String>) {
        if let Some(warning) = warning {
            self.say(&Word::Warning(warning), &[]);
        }
    }

    /// The child runs as it should, without an exec that would say so.
    fn hang_up(&mut self) {
        self.0 = None;
    }
}

/// Clones a child that waits until it is in its cgroup and then does `child`, which returns only if it failed.
fn launch(
    flags: libc::c_int,
    processes: &Processes<'_>,
    group: &str,
    cgroups: &Cgroups,
    child: impl FnOnce(&mut Talk) -> Failure,
) -> Result<Launched, String> {
    let failed = |doing: &str, error: io::Error| Failure::new(doing, error).to_string();
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed("make a socket pair", error.into()))?;
    let side = clone_into(flags, processes).map_err(|error| failed("make a process", error))?;
    let pid = match side {
        Side::Parent(pid) => pid,
        Side::Child => {
            drop(ours);
            let mut talk = Talk(Some(theirs));
            // No word from the parent: it failed, or it is gone.
            let may_go = matches!(talk.0.as_ref().map(protocol::receive::<Go>), Some(Ok(Some(_))));
            if may_go {
                let failure = child(&mut talk);
                talk.say(&Word::Failed(failure.to_string()), &[]);
            }
            sys::exit_now(127);
        }
    };
    drop(theirs);
    for warning in cgroups.join(group, pid) {
        note(&warning);
    }
    let outcome = converse(&ours);
    if outcome.is_err() {
        // It is about to exit by itself, or lost its tongue; waiting here keeps it out of the reaper's hands.
        let _ = sys::kill(pid, libc::SIGKILL);
        let _ = sys::wait_for(pid);
    }
    outcome.map(|terminal| Launched { pid, terminal })
}

/// The parent's part: let the child go, and listen until it runs or gives up.
fn converse(socket: &OwnedFd) -> Result<Option<OwnedFd>, String> {
    let mut terminal = None;
    protocol::send(socket, &Go, &[]).map_err(|error| format!("the new process ended at once: {error}"))?;
    loop {
        match protocol::receive::<Word>(socket)
            .map_err(|error| format!("cannot hear the new process: {error}"))?
        {
            None => return Ok(terminal),
            Some((Word::Terminal, mut fds)) => terminal = fds.pop(),
            Some((Word::Warning(warning), _)) => note(&warning),
            Some((Word::Failed(reason), _)) => return Err(reason),
        }
    }
}

/// Clones into the chosen process namespace.
fn clone_into(flags: libc::c_int, processes: &Processes<'_>) -> io::Result<Side> {
    let target = match processes {
        Processes::New => return sys::clone_process(flags | libc::CLONE_NEWPID),
        Processes::Host => return sys::clone_process(flags),
        Processes::Of(target) => target,
    };
    let own = File::open("/proc/self/ns/pid")?;
    rustix::thread::move_into_link_name_space(target.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    let side = sys::clone_process(flags);
    if !matches!(side, Ok(Side::Child)) {
        rustix::thread::move_into_link_name_space(own.as_fd(), Some(LinkNameSpaceType::ProcessID))?;
    }
    side
}
