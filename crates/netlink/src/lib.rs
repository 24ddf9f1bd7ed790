//! The kernel's network configuration over netlink sockets: links, addresses, routes, neighbours, nftables and
//! conntrack. This is the only place that speaks netlink; pod-network and kube-proxy build on it.
//!
//! The path: a request is a [`message::Message`] (fixed header, then attributes), sent by a [`Socket`] that waits for
//! the kernel's answer. [`route`] knows the words of `NETLINK_ROUTE`, [`nft`] those of nftables, where one
//! [`nft::Batch`] is one atomic transaction. Calls block, but the kernel answers within the system call's time.
//!
//! A socket belongs to the network namespace of the thread that opened it, for ever: [`Socket::open_in`] reaches a
//! pod's namespace without moving the caller, and [`netns`] runs a closure inside one.

pub mod conntrack;
pub mod message;
pub mod netns;
pub mod nft;
pub mod route;
mod socket;

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

pub use socket::{Protocol, Socket};

/// Why a request to the kernel's network configuration failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The socket could not be opened or set up.
    #[error("netlink socket for {protocol} cannot be opened")]
    Open {
        protocol: &'static str,
        #[source]
        source: io::Error,
    },
    /// Bytes could not be moved to or from the kernel.
    #[error("netlink {operation} could not be sent or answered")]
    Transport {
        operation: String,
        #[source]
        source: io::Error,
    },
    /// The kernel said no.
    #[error("kernel refused to {operation}")]
    Refused {
        operation: String,
        #[source]
        source: io::Error,
    },
    /// The kernel's answer does not have the form it should have.
    #[error("kernel answered {operation} with a message that cannot be read")]
    Malformed { operation: String },
    /// A name is longer than the kernel allows or holds a zero byte.
    #[error("interface name {name:?} is not one the kernel accepts")]
    BadName { name: String },
    /// A network namespace could not be entered or made.
    #[error("network namespace {path} cannot be entered")]
    Namespace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn refused(operation: impl Into<String>, errno: Errno) -> Self {
        Self::Refused { operation: operation.into(), source: errno.into() }
    }

    /// The kernel's error number, if the kernel answered.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// Whether the kernel said that the thing is not there.
    pub fn is_missing(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::NOENT | Errno::NODEV | Errno::SRCH | Errno::NXIO | Errno::ADDRNOTAVAIL)
        )
    }

    /// Whether the kernel said that the thing is there already.
    pub fn is_present(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }
}

/// Turns "it was not there" into success: what removal wants.
pub fn if_present(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_missing() => Ok(()),
        other => other,
    }
}

/// Turns "it is there already" into success: what idempotent creation wants.
pub fn if_absent(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_present() => Ok(()),
        other => other,
    }
}
