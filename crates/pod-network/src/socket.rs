//! Between the plug-in and the agent: one request per connection, on a socket that only root reaches.
//!
//! The plug-in sees the pod's namespace as a path that means nothing in the agent's container, so it sends the descriptor. Then
//! it sends the request as JSON and closes its side; the answer is JSON, too. Calls block and are bounded in size and time.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cni::{Attachment, PodRef};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize};

/// A request or an answer is a page of text.
const LARGEST: u64 = 1 << 20;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the plug-in asks.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Connect this pod; its namespace is the descriptor that comes along.
    Add(PodRef),
    /// Disconnect it.
    Del(PodRef),
    /// Is it connected?
    Check(PodRef),
    /// Can pods be connected?
    Status,
    /// These are all sandboxes there are.
    Gc(Vec<String>),
}

/// What the agent answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The pod has this, on this link of the host.
    Attached { attachment: Attachment, link: String },
    /// It is not connected.
    Detached,
    /// It is so.
    Done,
    /// It is not so; `code` is one of the CNI protocol's.
    Failed { code: u32, message: String },
}

/// Asks the agent.
pub fn ask(path: &Path, request: &Request, netns: Option<OwnedFd>) -> io::Result<Answer> {
    let stream = UnixStream::connect(path)?;
    limit(&stream)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = netns.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    // Descriptors travel with bytes: one that says nothing.
    rustix::net::sendmsg(&stream, &[IoSlice::new(b" ")], &mut control, SendFlags::NOSIGNAL)?;
    (&stream).write_all(&serde_json::to_vec(request)?)?;
    stream.shutdown(Shutdown::Write)?;
    let mut bytes = Vec::new();
    (&stream).take(LARGEST).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the agent ended before it answered"));
    }
    Ok(serde_json::from_slice(&bytes)?)
}

/// Reads a request with the descriptor that may come along.
pub fn receive(stream: &UnixStream) -> io::Result<(Request, Option<OwnedFd>)> {
    stream.set_nonblocking(false)?;
    limit(stream)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut first = [0; 1];
    let received = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut first)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut netns = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            netns = fds.into_iter().next();
        }
    }
    let mut bytes = Vec::new();
    stream.take(LARGEST).read_to_end(&mut bytes)?;
    Ok((serde_json::from_slice(&bytes)?, netns))
}

/// Sends the answer.
pub fn answer(mut stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    stream.write_all(&serde_json::to_vec(answer)?)
}

fn limit(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}
