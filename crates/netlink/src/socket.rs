//! A netlink socket: send one request, wait for its acknowledgement, or collect a dump.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, netlink, recv, send, socket_with,
};

use crate::message::{self, Message, NLM_F_ACK, NLM_F_DUMP, NLMSG_DONE, NLMSG_ERROR, Received};
use crate::{Error, netns};

/// The kernel answers at once; a socket without an answer for this long is broken.
const ANSWER: Duration = Duration::from_secs(10);
/// Dumps arrive in pieces of at most this size.
const READ: usize = 64 << 10;

/// Which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours.
    Route,
    /// nftables and conntrack.
    Netfilter,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Route => "routes and links",
            Self::Netfilter => "netfilter",
        }
    }
}

/// A connection to the kernel for one network namespace. Not shared between threads: one request at a time.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    sequence: Cell<u32>,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        let fail = |errno: Errno| Error::Open { protocol: protocol.name(), source: errno.into() };
        let number = match protocol {
            Protocol::Route => None,
            Protocol::Netfilter => Some(netlink::NETFILTER),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, number)
            .map_err(fail)?;
        bind(&fd, &netlink::SocketAddrNetlink::new(0, 0)).map_err(fail)?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER)).map_err(fail)?;
        Ok(Self { fd, sequence: Cell::new(0) })
    }

    /// Opens a socket in the network namespace that `path` names.
    pub fn open_in(path: &Path, protocol: Protocol) -> Result<Self, Error> {
        netns::within(path, || Self::open(protocol))?
    }

    /// Sends a request and waits until the kernel acknowledged or refused it.
    pub fn request(&self, operation: &str, mut request: Message) -> Result<(), Error> {
        request.flags |= NLM_F_ACK;
        let sequence = self.send(operation, &[request])?;
        self.receive(operation, |message| {
            Ok(match Outcome::of(message, operation)? {
                Outcome::Acknowledged if message.sequence == sequence => Step::Done,
                Outcome::Refused(errno) if message.sequence == sequence => {
                    return Err(Error::refused(operation, errno));
                }
                _ => Step::More,
            })
        })
    }

    /// Sends a dump request and gives every item's body to `each`. An interrupted dump is asked for again by the
    /// caller's next look; callers here only read what they own.
    pub fn dump(
        &self,
        operation: &str,
        mut request: Message,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Error> {
        request.flags |= NLM_F_DUMP;
        let sequence = self.send(operation, &[request])?;
        self.receive(operation, |message| {
            if message.sequence != sequence {
                return Ok(Step::More);
            }
            match Outcome::of(message, operation)? {
                Outcome::Item => each(message.body),
                Outcome::Refused(errno) => return Err(Error::refused(operation, errno)),
                Outcome::Done | Outcome::Acknowledged => return Ok(Step::Done),
            }
            Ok(Step::More)
        })
    }

    /// Sends a request for one thing; `None` if the kernel does not have it.
    pub fn get<T>(
        &self,
        operation: &str,
        mut request: Message,
        mut read: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        request.flags |= NLM_F_ACK;
        let sequence = self.send(operation, &[request])?;
        let mut found = None;
        self.receive(operation, |message| {
            if message.sequence != sequence {
                return Ok(Step::More);
            }
            match Outcome::of(message, operation)? {
                Outcome::Item => found = read(message.body),
                Outcome::Done | Outcome::Acknowledged => return Ok(Step::Done),
                Outcome::Refused(errno) => {
                    let error = Error::refused(operation, errno);
                    return if error.is_missing() { Ok(Step::Done) } else { Err(error) };
                }
            }
            Ok(Step::More)
        })?;
        Ok(found)
    }

    /// Sends messages as one datagram; the last one must ask for an acknowledgement. Returns the index of the
    /// first message that the kernel refused, with its reason.
    pub fn transact(&self, operation: &str, batch: &[Message]) -> Result<Result<(), (usize, Errno)>, Error> {
        let last = self.send(operation, batch)?;
        let first = last.wrapping_sub(batch.len() as u32).wrapping_add(1);
        let mut refused: Option<(usize, Errno)> = None;
        self.receive(operation, |message| {
            let index = message.sequence.wrapping_sub(first) as usize;
            if index >= batch.len() {
                return Ok(Step::More);
            }
            if let Outcome::Refused(errno) = Outcome::of(message, operation)?
                && refused.is_none_or(|(earlier, _)| index < earlier)
            {
                refused = Some((index, errno));
            }
            // A refusal of the batch's frame comes alone; otherwise the answer to the message that asked for one
            // is the last.
            let asked = batch[index].flags & NLM_F_ACK != 0;
            Ok(if asked || index == 0 { Step::Done } else { Step::More })
        })?;
        Ok(refused.map_or(Ok(()), Err))
    }

    /// Sends messages as one datagram and returns the sequence number of the last.
    fn send(&self, operation: &str, messages: &[Message]) -> Result<u32, Error> {
        let mut bytes = Vec::with_capacity(messages.iter().map(|message| message.body.len() + 16).sum());
        for message in messages {
            self.sequence.set(self.sequence.get().wrapping_add(1));
            message.write(self.sequence.get(), &mut bytes);
        }
        let fail = |errno: Errno| Error::Transport { operation: operation.to_owned(), source: errno.into() };
        self.fit(bytes.len()).map_err(fail)?;
        loop {
            match send(&self.fd, &bytes, SendFlags::empty()) {
                Ok(_) => return Ok(self.sequence.get()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(fail(errno)),
            }
        }
    }

    /// A transaction is one datagram and must fit into the send buffer, answers into the receive buffer.
    fn fit(&self, length: usize) -> rustix::io::Result<()> {
        if length < 64 << 10 {
            return Ok(());
        }
        let wanted = length * 2 + (64 << 10);
        if sockopt::socket_send_buffer_size(&self.fd)? < wanted
            && sockopt::set_socket_send_buffer_size_force(&self.fd, wanted).is_err()
        {
            sockopt::set_socket_send_buffer_size(&self.fd, wanted)?;
        }
        if sockopt::set_socket_recv_buffer_size_force(&self.fd, 1 << 20).is_err() {
            sockopt::set_socket_recv_buffer_size(&self.fd, 1 << 20)?;
        }
        Ok(())
    }

    fn receive(
        &self,
        operation: &str,
        mut handle: impl FnMut(Received<'_>) -> Result<Step, Error>,
    ) -> Result<(), Error> {
        let mut buffer = vec![0u8; READ];
        loop {
            let length = match recv(&self.fd, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    let source = match errno {
                        Errno::AGAIN => io::Error::from(io::ErrorKind::TimedOut),
                        other => other.into(),
                    };
                    return Err(Error::Transport { operation: operation.to_owned(), source });
                }
            };
            for message in message::messages(&buffer[..length]) {
                if let Step::Done = handle(message)? {
                    return Ok(());
                }
            }
        }
    }
}

enum Step {
    More,
    Done,
}

/// What a received message says about the request.
enum Outcome {
    Item,
    Done,
    Acknowledged,
    Refused(Errno),
}

impl Outcome {
    fn of(message: Received<'_>, operation: &str) -> Result<Self, Error> {
        match message.kind {
            NLMSG_ERROR | NLMSG_DONE => {
                let code = message::ne_i32(message.body, 0).unwrap_or(0);
                Ok(match (message.kind, code) {
                    (NLMSG_DONE, 0) => Self::Done,
                    (_, 0) => Self::Acknowledged,
                    (_, code) if code < 0 => Self::Refused(Errno::from_raw_os_error(code.wrapping_neg())),
                    _ => return Err(Error::Malformed { operation: operation.to_owned() }),
                })
            }
            _ => Ok(Self::Item),
        }
    }
}
