//! The shim's event loop: children that end, containers that write, the runtime that asks.
//!
//! One `poll` over everything. Requests are answered at once; only the launch of a process waits, for the child
//! to reach its exec.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags};
use rustix::mount::UnmountFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::container::{Container, Stream};
use super::launch::{self, Launched, Processes};
use super::process::Streams;
use super::protocol::{self, Known, Reply, Request};
use super::users::Users;
use super::{Failure, container, note};
use crate::records;
use crate::spec::{Exit, PidNamespace, Process, Run, SandboxSpec, files};
use crate::sys::{self, Pid};
use cgroups::Cgroups;

/// Read at once from a container's output.
const BUFFER: usize = 32 * 1024;

/// The exit code of a container that never ran, as containerd reports it.
const NEVER_RAN: i32 = 128;

/// What a connection is used for.
enum Role {
    /// Nothing asked yet, or all answered.
    Asking,
    /// Told of every start and end.
    Subscriber,
    /// Waits for the end of a command.
    Exec(Pid),
}

struct Connection {
    socket: OwnedFd,
    role: Role,
    /// All was said; dropped at the end of the round, so that indices stay valid within one.
    over: bool,
}

/// The state of the shim.
pub struct Server {
    spec: SandboxSpec,
    users: Option<Users>,
    directory: PathBuf,
    cgroups: Cgroups,
    listener: OwnedFd,
    signals: OwnedFd,
    containers: BTreeMap<String, Container>,
    connections: Vec<Connection>,
    pause: Option<Pid>,
    stopping: bool,
    buffer: Vec<u8>,
}

/// What became ready.
enum Ready {
    Listener,
    Signals,
    Connection(usize),
    Output(String, Stream),
    Taps(String),
}

impl Server {
    pub fn new(
        spec: SandboxSpec,
        users: Option<Users>,
        directory: PathBuf,
        cgroups: Cgroups,
        listener: OwnedFd,
        signals: OwnedFd,
    ) -> Result<Self, Failure> {
        let mut server = Self {
            spec,
            users,
            directory,
            cgroups,
            listener,
            signals,
            containers: BTreeMap::new(),
            connections: Vec::new(),
            pause: None,
            stopping: false,
            buffer: vec![0; BUFFER],
        };
        if server.spec.shared_pid {
            server.start_pause()?;
        }
        Ok(server)
    }

    fn start_pause(&mut self) -> Result<(), Failure> {
        let scratch = self.directory.join("empty");
        std::fs::create_dir_all(&scratch).map_err(|error| Failure::at("create", &scratch, error))?;
        let launched = launch::pause(&scratch, &self.spec.cgroup, self.users.as_ref(), &self.cgroups)
            .map_err(|reason| Failure::new("start the pause process", io::Error::other(reason)))?;
        self.pause = Some(launched.pid);
        Ok(())
    }

    /// Serves until told to shut down and everything has ended.
    pub fn run(mut self) -> Result<(), Failure> {
        loop {
            for ready in self.wait()? {
                match ready {
                    Ready::Listener => self.accept(),
                    Ready::Signals => self.reap(),
                    Ready::Connection(index) => self.hear(index),
                    Ready::Output(id, stream) => self.pump(&id, stream),
                    Ready::Taps(id) => {
                        if let Some(container) = self.containers.get_mut(&id) {
                            container.flush_taps();
                        }
                    }
                }
            }
            self.connections.retain(|connection| !connection.over);
            if self.stopping && !self.containers.values().any(is_running) {
                return self.finish();
            }
        }
    }

    fn wait(&self) -> Result<Vec<Ready>, Failure> {
        let mut ready = vec![Ready::Listener, Ready::Signals];
        let mut fds =
            vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        for (index, connection) in self.connections.iter().enumerate() {
            ready.push(Ready::Connection(index));
            fds.push(PollFd::new(&connection.socket, PollFlags::IN));
        }
        for (id, container) in &self.containers {
            for output in container.outputs.iter().filter(|output| container.wants(output)) {
                ready.push(Ready::Output(id.clone(), output.stream));
                fds.push(PollFd::new(&output.fd, PollFlags::IN));
            }
            for tap in &container.taps {
                ready.push(Ready::Taps(id.clone()));
                fds.push(PollFd::new(
                    &tap.fd,
                    if tap.is_behind() { PollFlags::OUT } else { PollFlags::empty() },
                ));
            }
        }
        loop {
            match rustix::event::poll(&mut fds, None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::new("wait for events", error)),
            }
        }
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        Ok(ready
            .into_iter()
            .zip(happened)
            .filter(|(_, happened)| *happened)
            .map(|(ready, _)| ready)
            .collect())
    }

    fn accept(&mut self) {
        while let Ok(socket) =
            rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
        {
            self.connections.push(Connection { socket, role: Role::Asking, over: false });
        }
    }

    fn hear(&mut self, index: usize) {
        let received = protocol::receive::<Request>(&self.connections[index].socket);
        match received {
            Ok(Some((request, fds))) => self.answer(index, request, fds),
            Ok(None) => self.connections[index].over = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                note(&format!("cannot understand a request: {error}"));
                self.connections[index].over = true;
            }
        }
    }

    fn answer(&mut self, index: usize, request: Request, fds: Vec<OwnedFd>) {
        let outcome = match request {
            Request::Subscribe => {
                self.connections[index].role = Role::Subscriber;
                let containers = self.containers.iter().map(|(id, container)| Known {
                    id: id.clone(),
                    run: container.run.clone(),
                    exit: container.exit.clone(),
                });
                let reply =
                    Reply::Snapshot { pid: std::process::id() as Pid, containers: containers.collect() };
                File::open("/proc/self/ns/net")
                    .map(|network| (reply, Some(network.into())))
                    .map_err(|error| format!("cannot open the network namespace: {error}"))
            }
            Request::Start { id } => self.start(&id).map(|reply| (reply, None)),
            Request::Exec { id, args, terminal, stdin, stdout, stderr } => {
                let wanted = [stdin, stdout, stderr];
                self.exec(&id, args, terminal, wanted, fds).map(|launched| {
                    self.connections[index].role = Role::Exec(launched.pid);
                    (Reply::Execed { pid: launched.pid }, launched.terminal)
                })
            }
            Request::KillExec => {
                if let Role::Exec(pid) = self.connections[index].role {
                    let _ = sys::kill(pid, libc::SIGKILL); // our unreaped child: the id is still its own
                }
                return;
            }
            Request::Signal { id, signal } => self.signal(&id, signal).map(|()| (Reply::Done, None)),
            Request::Attach { id, stdin, stdout, stderr } => self.attach(&id, stdin, [stdout, stderr], fds),
            Request::ReopenLog { id } => self.running(&id).and_then(|container| {
                container.reopen_log().map_err(|error| format!("cannot open the log again: {error}"))?;
                Ok((Reply::Done, None))
            }),
            Request::Forget { id } => {
                if self.containers.get(&id).is_some_and(is_running) {
                    Err(format!("container {id} still runs"))
                } else {
                    self.containers.remove(&id);
                    Ok((Reply::Done, None))
                }
            }
            Request::Socket { ipv6 } => make_socket(ipv6).map(|socket| (Reply::Done, Some(socket))),
            Request::Shutdown => {
                self.shut_down();
                Ok((Reply::Done, None))
            }
        };
        let (reply, fd) = outcome.unwrap_or_else(|reason| (Reply::Failed { reason }, None));
        let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
        if protocol::send(&self.connections[index].socket, &reply, &fds).is_err() {
            self.connections[index].over = true;
        }
    }

    fn start(&mut self, id: &str) -> Result<Reply, String> {
        if self.stopping {
            return Err("the sandbox is being stopped".into());
        }
        if self.containers.contains_key(id) {
            return Err(format!("container {id} was started before"));
        }
        let mut container = Container::load(container::directory(&self.directory, id))?;
        match self.launch(&mut container).and_then(|launched| record_start(&mut container, launched)) {
            Ok(run) => {
                self.containers.insert(id.to_owned(), container);
                self.tell(&Reply::Started { id: id.to_owned(), run: run.clone() });
                Ok(Reply::Started { id: id.to_owned(), run })
            }
            Err(reason) => {
                self.cgroups.remove(&container.spec.cgroup);
                let exit = Exit {
                    code: NEVER_RAN,
                    finished_at: records::now(),
                    reason: "StartError".into(),
                    message: reason.clone(),
                };
                let recorded = container.ended(exit.clone(), &mut self.buffer).map(drop);
                recorded.map_err(|error| format!("{reason}; and cannot record it: {error}"))?;
                self.containers.insert(id.to_owned(), container);
                self.tell(&Reply::Exited { id: id.to_owned(), exit });
                Err(reason)
            }
        }
    }

    fn launch(&self, container: &mut Container) -> Result<Launched, String> {
        let streams = container.make_streams().map_err(|error| format!("cannot make pipes: {error}"))?;
        let spec = &container.spec;
        let shm = if self.spec.own_ipc { self.directory.join(files::SHM) } else { PathBuf::from("/dev/shm") };
        for warning in self
            .cgroups
            .create(&spec.cgroup)
            .into_iter()
            .chain(self.cgroups.apply(&spec.cgroup, &spec.limits))
        {
            note(&format!("container {}: {warning}", spec.id));
        }
        let namespace = self.process_namespace(&spec.pid)?;
        let processes = match (&spec.pid, &namespace) {
            (_, Some(file)) => Processes::Of(file.as_fd()),
            (PidNamespace::Host, None) => Processes::Host,
            (_, None) => Processes::New,
        };
        launch::container(spec, &shm, self.users.as_ref(), &processes, streams, &self.cgroups)
    }

    /// The process namespace to join, if it is one that exists apart from the host's.
    fn process_namespace(&self, pid: &PidNamespace) -> Result<Option<File>, String> {
        let holder = match pid {
            PidNamespace::Own | PidNamespace::Host => return Ok(None),
            PidNamespace::Pod => self.pause.ok_or("the pod has no shared process namespace")?,
            PidNamespace::Container(id) => self.pid_of(id)?,
        };
        File::open(format!("/proc/{holder}/ns/pid"))
            .map(Some)
            .map_err(|error| format!("cannot open the process namespace: {error}"))
    }

    fn pid_of(&self, id: &str) -> Result<Pid, String> {
        let container = self.containers.get(id).filter(|container| is_running(container));
        let run = container.and_then(|container| container.run.as_ref());
        run.map(|run| run.pid).ok_or_else(|| format!("container {id} is not running"))
    }

    fn running(&mut self, id: &str) -> Result<&mut Container, String> {
        let container = self.containers.get_mut(id).filter(|container| is_running(container));
        container.ok_or_else(|| format!("container {id} is not running"))
    }

    fn exec(
        &self,
        id: &str,
        args: Vec<String>,
        terminal: bool,
        wanted: [bool; 3],
        fds: Vec<OwnedFd>,
    ) -> Result<Launched, String> {
        let init = self.pid_of(id)?;
        let spec = &self.containers[id].spec;
        if args.is_empty() {
            return Err("no command given".into());
        }
        let process = Process { args, terminal, ..spec.process.clone() };
        let mut fds = fds.into_iter();
        let mut stream = |wanted: bool| match wanted {
            true => fds.next().ok_or_else(|| "a stream is missing".to_owned()),
            false => File::options()
                .read(true)
                .write(true)
                .open("/dev/null")
                .map(OwnedFd::from)
                .map_err(|error| format!("cannot open /dev/null: {error}")),
        };
        let streams = match terminal {
            true => None,
            false => Some(Streams([stream(wanted[0])?, stream(wanted[1])?, stream(wanted[2])?])),
        };
        let namespace =
            File::open(format!("/proc/{init}/ns/pid")).map_err(|error| format!("cannot enter: {error}"))?;
        let processes = match spec.pid {
            PidNamespace::Host => Processes::Host,
            _ => Processes::Of(namespace.as_fd()),
        };
        launch::exec(spec, &process, self.users.as_ref(), init, &processes, streams, &self.cgroups)
    }

    fn signal(&self, id: &str, signal: i32) -> Result<(), String> {
        let pid = self.pid_of(id)?;
        sys::kill(pid, signal).map_err(|error| format!("cannot signal container {id}: {error}"))
    }

    fn attach(
        &mut self,
        id: &str,
        stdin: bool,
        outputs: [bool; 2],
        fds: Vec<OwnedFd>,
    ) -> Result<(Reply, Option<OwnedFd>), String> {
        let failed = |error: io::Error| format!("cannot attach: {error}");
        let container = self.running(id)?;
        let terminal = container.terminal.is_some();
        let mut fds = fds.into_iter();
        for (wanted, stream) in outputs.into_iter().zip([Stream::Stdout, Stream::Stderr]) {
            if wanted {
                let fd = fds.next().ok_or("a stream is missing")?;
                container.tap(stream, fd).map_err(failed)?;
            }
        }
        let input = match (&container.terminal, &container.stdin) {
            // Also without stdin: it is the handle for resizing.
            (Some(terminal), _) => Some(terminal.try_clone().map_err(failed)?),
            (None, Some(_)) if stdin && container.spec.stdin_once => container.stdin.take(),
            (None, Some(pipe)) if stdin => Some(pipe.try_clone().map_err(failed)?),
            (None, None) if stdin => return Err(format!("container {id} has no stdin")),
            _ => None,
        };
        Ok((Reply::Attached { terminal }, input))
    }

    fn pump(&mut self, id: &str, stream: Stream) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some(index) = container.outputs.iter().position(|output| output.stream == stream) else { return };
        container.pump(index, &mut self.buffer);
    }

    fn reap(&mut self) {
        let mut scratch = [0_u8; 1024];
        while matches!(rustix::io::read(&self.signals, &mut scratch), Ok(count) if count > 0) {}
        while let Some((pid, code)) = sys::reap() {
            self.ended(pid, code);
        }
    }

    fn ended(&mut self, pid: Pid, code: i32) {
        let is_it = |container: &Container| {
            is_running(container) && container.run.as_ref().is_some_and(|run| run.pid == pid)
        };
        let id = self.containers.iter().find(|(_, container)| is_it(container)).map(|(id, _)| id.clone());
        if let Some(id) = id {
            self.container_ended(&id, code);
            return;
        }
        for connection in &mut self.connections {
            if matches!(connection.role, Role::Exec(exec) if exec == pid) {
                let _ = protocol::send(&connection.socket, &Reply::ExecExited { code }, &[]); // asker gone
                connection.over = true;
            }
        }
        if self.pause == Some(pid) {
            self.pause = None;
        }
    }

    fn container_ended(&mut self, id: &str, code: i32) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let group = container.spec.cgroup.clone();
        let starved = code != 0 && self.cgroups.oom_kills(&group) > 0;
        if container.spec.pid != PidNamespace::Own {
            // In its own namespace the kernel ended the rest with the first process; elsewhere we must.
            self.cgroups.kill(&group);
        }
        let reason = match code {
            _ if starved => "OOMKilled",
            0 => "Completed",
            _ => "Error",
        };
        let exit =
            Exit { code, finished_at: records::now(), reason: reason.to_owned(), message: String::new() };
        if let Err(error) = container.ended(exit.clone(), &mut self.buffer) {
            note(&format!("cannot record the end of container {id}: {error}"));
            container.exit = Some(exit.clone());
        }
        self.cgroups.remove(&group);
        self.tell(&Reply::Exited { id: id.to_owned(), exit });
    }

    /// A subscriber that does not keep up loses its connection; it will ask for a snapshot.
    fn tell(&mut self, event: &Reply) {
        for connection in
            self.connections.iter_mut().filter(|connection| matches!(connection.role, Role::Subscriber))
        {
            if protocol::send(&connection.socket, event, &[]).is_err() {
                connection.over = true;
            }
        }
    }

    fn shut_down(&mut self) {
        self.stopping = true;
        for container in self.containers.values().filter(|container| is_running(container)) {
            if let Some(run) = &container.run {
                let _ = sys::kill(run.pid, libc::SIGKILL); // our unreaped child: the id is still its own
            }
        }
    }

    fn finish(self) -> Result<(), Failure> {
        // The pause process, commands that still run, and orphans that came to us.
        let children = format!("/proc/self/task/{}/children", std::process::id());
        for child in std::fs::read_to_string(children).unwrap_or_default().split_whitespace() {
            if let Ok(pid) = child.parse() {
                let _ = sys::kill(pid, libc::SIGKILL); // our unreaped child: the id is still its own
            }
        }
        if self.spec.own_ipc {
            let _ = rustix::mount::unmount(self.directory.join(files::SHM), UnmountFlags::DETACH);
        }
        let _ = std::fs::remove_file(self.directory.join(files::SOCKET)); // its absence says: ended as asked
        Ok(())
    }
}

/// A container whose start can not be written down would be lost to the next runtime, so it does not run.
fn record_start(container: &mut Container, launched: Launched) -> Result<Run, String> {
    match container.started(launched.pid, launched.terminal, records::now()) {
        Ok(run) => Ok(run.clone()),
        Err(error) => {
            let _ = sys::kill(launched.pid, libc::SIGKILL); // our unreaped child: the id is still its own
            Err(format!("cannot record the start: {error}"))
        }
    }
}

fn is_running(container: &Container) -> bool {
    container.run.is_some() && container.exit.is_none()
}

fn make_socket(ipv6: bool) -> Result<OwnedFd, String> {
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
        .map_err(|error| format!("cannot make a socket: {error}"))
}
