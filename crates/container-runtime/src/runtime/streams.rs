//! Exec, attach and port-forward: live endpoints over descriptors that the shim hands out.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use cri::{AttachOptions, Duplex, ExecOptions, ExecOutput, Reader, Session, TerminalSize};
use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::Runtime;
use super::state::State;
use crate::client::{self, Connection};
use crate::shim::protocol::{Reply, Request};
use crate::sys;

/// The most that exec_sync keeps of a stream.
const MAX_OUTPUT: usize = 16 << 20;
/// How long exec_sync waits for the output of what a command left running.
const DRAIN: Duration = Duration::from_secs(2);

impl Runtime {
    pub(super) async fn exec_session(
        &self,
        id: &str,
        command: &[String],
        options: ExecOptions,
    ) -> cri::Result<(Session, Arc<Connection>)> {
        if command.is_empty() {
            return Err(cri::Error::invalid("the command", "it is empty"));
        }
        let failed = |error: io::Error| {
            cri::Error::failed(format!("running {:?} in container {id}", command[0]), error)
        };
        let sandbox = self.state().running(id)?.record.sandbox_id.clone();
        let connection = Arc::new(Connection::open(&self.sandbox_directory(&sandbox)).map_err(failed)?);
        let plain = |wanted: bool| wanted && !options.tty;
        let request = Request::Exec {
            id: id.to_owned(),
            args: command.to_vec(),
            terminal: options.tty,
            stdin: plain(options.stdin),
            stdout: plain(options.stdout),
            stderr: plain(options.stderr),
        };
        let mut ends = Ends::default();
        let mut session = Session {
            stdin: if plain(options.stdin) { Some(Box::pin(ends.writer().map_err(failed)?)) } else { None },
            stdout: if plain(options.stdout) { Some(Box::pin(ends.reader().map_err(failed)?)) } else { None },
            stderr: if plain(options.stderr) { Some(Box::pin(ends.reader().map_err(failed)?)) } else { None },
            resize: None,
            exit: exec_exit(connection.clone()),
        };
        let fds: Vec<_> = ends.theirs.iter().map(AsFd::as_fd).collect();
        let (_, mut received) = connection.ask(&request, &fds).await.map_err(failed)?;
        if options.tty {
            let master = received.pop().ok_or_else(|| failed(io::Error::other("no terminal came")))?;
            let terminal = Arc::new(Terminal::new(master).map_err(failed)?);
            session.stdin = options.stdin.then(|| Box::pin(TerminalEnd(terminal.clone())) as cri::Writer);
            session.stdout = Some(Box::pin(TerminalEnd(terminal.clone())));
            session.resize = Some(self.resizer(terminal));
        }
        Ok((session, connection))
    }

    /// Applies the sizes that are sent to it until the sender is dropped.
    fn resizer(&self, terminal: Arc<Terminal>) -> mpsc::Sender<TerminalSize> {
        let (sender, mut sizes) = mpsc::channel::<TerminalSize>(4);
        self.tasks.spawn("terminal-size", move |stop| async move {
            while let Some(Some(size)) = stop.or(sizes.recv()).await {
                let _ = sys::set_terminal_size(terminal.0.get_ref(), size.width, size.height); // it was closed
            }
        });
        sender
    }

    pub(super) async fn exec_and_collect(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> cri::Result<ExecOutput> {
        let options = ExecOptions { stdout: true, stderr: true, ..Default::default() };
        let (session, connection) = self.exec_session(id, command, options).await?;
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let work = async {
            let reading = async {
                tokio::join!(collect(session.stdout, &mut stdout), collect(session.stderr, &mut stderr))
            };
            tokio::pin!(reading);
            let mut exit = session.exit;
            tokio::select! {
                // All output is there; the end is near.
                _ = &mut reading => exit.await,
                code = &mut exit => {
                    // Something it started may keep the streams open; what is written by now has come soon.
                    let _ = tokio::time::timeout(DRAIN, &mut reading).await;
                    code
                }
            }
        };
        let code = match timeout.is_zero() {
            true => work.await,
            false => match tokio::time::timeout(timeout, work).await {
                Ok(code) => code,
                Err(_) => {
                    let _ = connection.send(&Request::KillExec, &[]).await; // shim gone, command gone
                    return Err(cri::Error::DeadlineExceeded {
                        doing: format!("command {:?}", command.join(" ")),
                        limit: timeout,
                    });
                }
            },
        };
        Ok(ExecOutput { stdout: Bytes::from(stdout), stderr: Bytes::from(stderr), exit_code: code? })
    }

    pub(super) async fn attach_session(&self, id: &str, options: AttachOptions) -> cri::Result<Session> {
        let failed = |error: io::Error| cri::Error::failed(format!("attaching to container {id}"), error);
        let (sandbox, on_terminal) = {
            let state = self.state();
            let record = &state.running(id)?.record;
            (record.sandbox_id.clone(), record.config.tty)
        };
        let wants_stderr = options.stderr && !on_terminal;
        let mut ends = Ends::default();
        let stdout: Option<Reader> = match options.stdout {
            true => Some(Box::pin(ends.reader().map_err(failed)?)),
            false => None,
        };
        let stderr: Option<Reader> = match wants_stderr {
            true => Some(Box::pin(ends.reader().map_err(failed)?)),
            false => None,
        };
        let request = Request::Attach {
            id: id.to_owned(),
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: wants_stderr,
        };
        let connection = Connection::open(&self.sandbox_directory(&sandbox)).map_err(failed)?;
        let fds: Vec<_> = ends.theirs.iter().map(AsFd::as_fd).collect();
        let (reply, mut received) = connection.ask(&request, &fds).await.map_err(failed)?;
        let mut session =
            Session { stdin: None, stdout, stderr, resize: None, exit: self.container_exit(id) };
        match (reply, received.pop()) {
            (Reply::Attached { terminal: true }, Some(master)) => {
                let terminal = Arc::new(Terminal::new(master).map_err(failed)?);
                session.stdin = options.stdin.then(|| Box::pin(TerminalEnd(terminal.clone())) as cri::Writer);
                session.resize = Some(self.resizer(terminal));
            }
            (_, Some(input)) => {
                rustix::fs::fcntl_setfl(&input, OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
                let sender = pipe::Sender::from_owned_fd(input).map_err(failed)?;
                session.stdin = Some(Box::pin(Input(Some(sender))));
            }
            _ => {}
        }
        Ok(session)
    }

    /// Resolves to the exit code of a container.
    fn container_exit(&self, id: &str) -> cri::BoxFuture<'static, cri::Result<i32>> {
        let (runtime, id) = (self.handle(), id.to_owned());
        Box::pin(async move {
            let runtime = runtime
                .ok_or_else(|| cri::Error::failed("waiting for the container", "the runtime is closing"))?;
            let ended =
                |state: &State| state.containers.get(&id).is_none_or(|container| container.exit.is_some());
            while !runtime.wait_until(Duration::from_secs(3600), ended).await {}
            let state = runtime.state();
            let container = state.container(&id)?;
            Ok(container.exit.as_ref().map_or(0, |exit| exit.code))
        })
    }

    pub(super) async fn connect_port(&self, sandbox: &str, port: u16) -> cri::Result<Duplex> {
        self.state().sandbox(sandbox)?;
        let failed = |error: io::Error| {
            cri::Error::failed(format!("connecting to port {port} of sandbox {sandbox}"), error)
        };
        let directory = self.sandbox_directory(sandbox);
        let mut reason = None;
        for address in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
            let request = Request::Socket { ipv6: address.is_ipv6() };
            let (_, mut fds) = client::ask(&directory, &request).await.map_err(failed)?;
            let Some(socket) = fds.pop() else { continue };
            // Not connected yet, but a stream to the type system: the conversion only moves the descriptor.
            let socket = tokio::net::TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
            match socket.connect((address, port).into()).await {
                Ok(stream) => return Ok(Box::pin(stream)),
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(failed(reason.unwrap_or_else(|| io::Error::other("no socket came"))))
    }
}

fn exec_exit(connection: Arc<Connection>) -> cri::BoxFuture<'static, cri::Result<i32>> {
    Box::pin(async move {
        match connection.receive().await {
            Ok(Some((Reply::ExecExited { code }, _))) => Ok(code),
            Ok(_) => Err(cri::Error::failed("waiting for the command", "the pod's shim has ended")),
            Err(error) => Err(cri::Error::failed("waiting for the command", error)),
        }
    })
}

async fn collect(stream: Option<Reader>, output: &mut Vec<u8>) {
    let Some(mut stream) = stream else { return };
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        let room = MAX_OUTPUT - output.len();
        output.extend_from_slice(&buffer[..count.min(room)]);
    }
}

/// The process's ends of pipes, to be sent away and then closed here.
#[derive(Default)]
struct Ends {
    theirs: Vec<OwnedFd>,
}

impl Ends {
    fn pair(&mut self, we_read: bool) -> io::Result<OwnedFd> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (ours, theirs) = if we_read { (read, write) } else { (write, read) };
        rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
        self.theirs.push(theirs);
        Ok(ours)
    }

    fn reader(&mut self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd(self.pair(true)?)
    }

    fn writer(&mut self) -> io::Result<Input> {
        pipe::Sender::from_owned_fd(self.pair(false)?).map(|sender| Input(Some(sender)))
    }
}

/// The end of a pipe that is closed by shutting it down: tokio's own stays open until it is dropped, and the process
/// would wait for more input.
struct Input(Option<pipe::Sender>);

impl Input {
    fn sender(self: Pin<&mut Self>) -> io::Result<Pin<&mut pipe::Sender>> {
        let sender = self.get_mut().0.as_mut();
        sender.map(Pin::new).ok_or_else(|| io::Error::new(io::ErrorKind::BrokenPipe, "the input was closed"))
    }
}

impl AsyncWrite for Input {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sender()?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(())) // a pipe has no buffer on this side
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().0 = None;
        Poll::Ready(Ok(()))
    }
}

/// The outer end of a pseudo terminal.
struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&master, OFlags::NONBLOCK)?;
        sys::watch(master).map(Self)
    }
}

/// A handle for reading from and writing to a terminal.
struct TerminalEnd(Arc<Terminal>);

impl AsyncRead for TerminalEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let terminal = &self.0.0;
        loop {
            let mut ready = ready!(terminal.poll_read_ready(context))?;
            let read = ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), buffer.initialize_unfilled())?));
            match read {
                Ok(Ok(count)) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                // The last user of the terminal is gone.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::EIO) => return Poll::Ready(Ok(())),
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for TerminalEnd {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let terminal = &self.0.0;
        loop {
            let mut ready = ready!(terminal.poll_write_ready(context))?;
            if let Ok(written) = ready.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                return Poll::Ready(written);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// A terminal has no half-close; the end of input is a character that the user types.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
