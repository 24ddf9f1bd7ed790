//! The runtime's side of the conversation with a shim.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;

use crate::shim::protocol::{self, Reply, Request};
use crate::shim::socket_address;
use crate::sys;

/// One connection to a shim.
pub struct Connection {
    socket: AsyncFd<OwnedFd>,
}

/// A reply with the descriptors that came along.
pub type Answer = (Reply, Vec<OwnedFd>);

impl Connection {
    /// Connects to the shim that serves in `directory`. Refused or not found: there is none.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let (address, _handle) = socket_address(directory)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &address)?;
        Ok(Self { socket: sys::watch(socket)? })
    }

    /// Sends a request.
    pub async fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(outcome) = ready.try_io(|socket| protocol::send(socket.get_ref(), request, fds)) {
                return outcome;
            }
        }
    }

    /// The next reply; `None` when the shim closed the connection.
    pub async fn receive(&self) -> io::Result<Option<Answer>> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(outcome) = ready.try_io(|socket| protocol::receive(socket.get_ref())) {
                return outcome;
            }
        }
    }

    /// Sends a request and waits for its answer. A refusal of the shim is an error with its reason.
    pub async fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<Answer> {
        self.send(request, fds).await?;
        match self.receive().await? {
            Some((Reply::Failed { reason }, _)) => Err(io::Error::other(reason)),
            Some(answer) => Ok(answer),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the pod's shim has ended")),
        }
    }
}

/// One question on a connection of its own.
pub async fn ask(directory: &Path, request: &Request) -> io::Result<Answer> {
    Connection::open(directory)?.ask(request, &[]).await
}
