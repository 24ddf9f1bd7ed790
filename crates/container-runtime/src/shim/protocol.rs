//! The words between runtime and shim: one JSON message per packet of a sequenced-packet Unix socket, with file
//! descriptors attached where a stream is handed over.
//!
//! A connection carries one request. `Subscribe` and `Exec` keep it open for what follows. Because descriptors
//! travel, exec'd processes, terminals and forwarded ports are connected to the runtime directly, and the
//! shim copies nothing but the output of the containers' main processes.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::spec::{Exit, Run};

/// The longest message. Longer command lines are refused before they are sent.
pub const MAX_MESSAGE: usize = 128 * 1024;

/// The most descriptors in a message.
const MAX_FDS: usize = 4;

/// What the runtime asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Answers with [`Reply::Snapshot`] and then with every [`Reply::Started`] and [`Reply::Exited`].
    Subscribe,
    /// Runs a container whose spec is on disk. Answers with `Started` or `Failed`.
    Start { id: String },
    /// Runs a command in a container. Attached: stdin, stdout, stderr, as far as named here and not on a terminal.
    /// Answers with `Execed` (with the terminal's descriptor, if any), later with `ExecExited`.
    Exec { id: String, args: Vec<String>, terminal: bool, stdin: bool, stdout: bool, stderr: bool },
    /// On the connection of an `Exec`: kill the command.
    KillExec,
    /// Signals the first process of a container. Answers with `Done`.
    Signal { id: String, signal: i32 },
    /// Sends a copy of the container's output, from now on, to the attached descriptors: stdout, stderr, as far as
    /// named. Answers with `Attached`, with the container's stdin if asked for.
    Attach { id: String, stdin: bool, stdout: bool, stderr: bool },
    /// Opens the log file again. Answers with `Done`.
    ReopenLog { id: String },
    /// Forgets an exited container. Answers with `Done`.
    Forget { id: String },
    /// Makes a TCP socket in the sandbox's network namespace. Answers with `Done` and the socket.
    Socket { ipv6: bool },
    /// Kills all containers, records their ends, and ends the shim.
    Shutdown,
}

/// What the shim answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done as asked.
    Done,
    /// Every container it knows, and its own process id; its network namespace comes along.
    Snapshot { pid: i32, containers: Vec<Known> },
    /// A container runs.
    Started { id: String, run: Run },
    /// A container ended.
    Exited { id: String, exit: Exit },
    /// A command runs.
    Execed { pid: i32 },
    /// The command ended.
    ExecExited { code: i32 },
    /// Attached; whether the descriptor that came along is a terminal.
    Attached { terminal: bool },
    /// It could not be done.
    Failed { reason: String },
}

/// One container in a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Known {
    pub id: String,
    pub run: Option<Run>,
    pub exit: Option<Exit>,
}

/// Sends one message. `WouldBlock` on a non-blocking socket that is full.
pub fn send(socket: impl AsFd, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the command line is too long"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    // Most messages are short, and the shim should stay small: look at the length first.
    let length = match rustix::net::recv(&socket, &mut [0_u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC) {
        Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
        Ok((_, length)) => length,
        Err(error) => return Err(error.into()),
    };
    if length > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    let mut bytes = vec![0_u8; length];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket.as_fd(), &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
}
