//! What a runtime asks of the pod network: connect a pod's network namespace, disconnect it, look whether it is
//! still connected.
//!
//! The runtime makes the namespace and removes it; the network puts an interface with addresses and routes into
//! it. All calls are idempotent: `add` for an attached sandbox answers with the same attachment, `del` of an
//! unknown one is success. Implemented by `pod-network` in the same process, and by [`Plugins`] with programs that a
//! directory's configuration names; [`HostOnly`] is the network of a node without one.

#![warn(missing_docs)]

mod answer;
pub mod conf;
pub mod exec;
mod plugins;

use std::collections::HashSet;
use std::error::Error as StdError;
use std::future::Future;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use plugins::{Plugins, PluginsConfig};

/// A boxed future, so that [`Network`] is dyn-compatible.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The result of every call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the network could not do it.
#[derive(Debug, Error)]
pub enum Error {
    /// No free address is left in the node's range.
    #[error("no free pod address in {range}")]
    Exhausted {
        /// The node's pod address range.
        range: String,
    },
    /// The request itself is wrong.
    #[error("{what} is invalid: {reason}")]
    Invalid {
        /// The field.
        what: String,
        /// Why.
        reason: String,
    },
    /// A host port is taken by another pod.
    #[error("host port {port} is taken by sandbox {sandbox_id}")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who has it.
        sandbox_id: String,
    },
    /// The network is not ready (yet).
    #[error("pod network is not ready: {reason}")]
    NotReady {
        /// What is missing.
        reason: String,
    },
    /// A plug-in refused, in the words of other runtimes.
    #[error("plugin type={plugin:?} name={network:?} failed ({command}): {message}")]
    Plugin {
        /// The program.
        plugin: String,
        /// The network.
        network: String,
        /// What was asked of it.
        command: String,
        /// Its code, of the protocol's or its own; 0 if it gave none.
        code: u32,
        /// What it said.
        message: String,
    },
    /// The kernel or the disk refused.
    #[error("{doing} failed")]
    Failed {
        /// The operation and its object.
        doing: String,
        /// The cause.
        #[source]
        source: Box<dyn StdError + Send + Sync + 'static>,
    },
}

impl Error {
    /// An operation that failed for a cause below.
    pub fn failed(
        doing: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync + 'static>>,
    ) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// UDP.
    #[serde(rename = "UDP")]
    Udp,
    /// SCTP.
    #[serde(rename = "SCTP")]
    Sctp,
}

/// A port of the host that leads into the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// The pod's port.
    pub container_port: u16,
    /// The host's port, never 0.
    pub host_port: u16,
    /// The host address to listen on; all when `None`.
    pub host_ip: Option<IpAddr>,
}

/// Limits in bits per second, from the annotations `kubernetes.io/ingress-bandwidth` and `…/egress-bandwidth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Towards the pod.
    pub ingress: Option<u64>,
    /// From the pod.
    pub egress: Option<u64>,
}

/// The pod to connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    /// The key of the attachment.
    pub sandbox_id: String,
    /// A file that is the pod's network namespace. May be gone when `del` is called.
    pub netns: PathBuf,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// Host ports that lead into the pod.
    pub host_ports: Vec<PortMapping>,
    /// Limits.
    pub bandwidth: Bandwidth,
}

/// What the pod got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// The pod's addresses, first the primary one.
    pub addresses: Vec<IpAddr>,
    /// Where its default route leads.
    pub gateway: Option<IpAddr>,
    /// The interface in the pod: `eth0`.
    pub interface: String,
}

/// Connects pods.
pub trait Network: Send + Sync {
    /// Puts an interface into the pod's namespace, or answers with the one that is there.
    fn add<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Attachment>>;

    /// Takes the interface away and frees the addresses.
    fn del<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<()>>;

    /// The attachment as it is now, repaired where something outside the pod (rules, routes) was lost; `None` when
    /// the pod is not attached. Called for every adopted sandbox after a restart.
    fn check<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<Attachment>>>;

    /// [`Error::NotReady`] until pods can be connected. The node's `NetworkReady` condition.
    fn status(&self) -> BoxFuture<'_, Result<()>>;

    /// Disconnects every pod that is not among the living. To be called with the runtime's full list, before new pods
    /// are made.
    fn gc<'a>(&'a self, _live: &'a HashSet<String>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// The network of a node that has none: pods get a namespace with loopback only.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostOnly;

impl Network for HostOnly {
    fn add<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async { Ok(Attachment::default()) })
    }

    fn del<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn check<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Option<Attachment>>> {
        Box::pin(async { Ok(Some(Attachment::default())) })
    }

    fn status(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}

/// The network of a node whose network nobody has set up yet: only pods on the host's network can run.
#[derive(Clone, Debug)]
pub struct NotReady {
    /// What is missing.
    pub reason: String,
}

impl Network for NotReady {
    fn add<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async { Err(Error::NotReady { reason: self.reason.clone() }) })
    }

    fn del<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn check<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Option<Attachment>>> {
        Box::pin(async { Err(Error::NotReady { reason: self.reason.clone() }) })
    }

    fn status(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Err(Error::NotReady { reason: self.reason.clone() }) })
    }
}
