//! Pod sandboxes: the namespaces, network and cgroup that a pod's containers share.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::linux::{LinuxPodSandboxConfig, NamespaceOption};

/// Who the runtime is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionInfo {
    /// The name shown in a node's `containerRuntimeVersion`, before `://`.
    pub runtime_name: String,
    /// The runtime's own version.
    pub runtime_version: String,
    /// The CRI version spoken: `v1`.
    pub runtime_api_version: String,
}

/// One readiness condition of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeCondition {
    /// `RuntimeReady` or `NetworkReady`.
    pub r#type: String,
    /// Whether it holds.
    pub status: bool,
    /// A one-word reason when it does not.
    pub reason: String,
    /// The sentence for people.
    pub message: String,
}

/// Whether the runtime can take pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStatus {
    /// The conditions, each type once.
    pub conditions: Vec<RuntimeCondition>,
    /// Whether pods can have user namespaces of their own, with the default handler.
    pub user_namespaces: bool,
}

impl RuntimeStatus {
    /// The condition of this type.
    pub fn condition(&self, r#type: &str) -> Option<&RuntimeCondition> {
        self.conditions.iter().find(|condition| condition.r#type == r#type)
    }
}

/// Contents of a pod's resolv.conf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DnsConfig {
    /// `nameserver` lines.
    pub servers: Vec<String>,
    /// The `search` line.
    pub searches: Vec<String>,
    /// The `options` line.
    pub options: Vec<String>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// The pod's port.
    pub container_port: u16,
    /// The host's port; 0 for none.
    pub host_port: u16,
    /// The host address to listen on; all when empty.
    pub host_ip: String,
}

/// Which pod a sandbox is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodSandboxMetadata {
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// How many sandboxes this pod had before.
    pub attempt: u32,
}

/// What a sandbox shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodSandboxConfig {
    /// Which pod it is for.
    pub metadata: PodSandboxMetadata,
    /// The pod's host name; empty with the host's network.
    pub hostname: String,
    /// Directory of the containers' log files.
    pub log_directory: PathBuf,
    /// resolv.conf; the host's own when `None`.
    pub dns_config: Option<DnsConfig>,
    /// Host ports.
    pub port_mappings: Vec<PortMapping>,
    /// For finding it again; opaque to the runtime.
    pub labels: BTreeMap<String, String>,
    /// Opaque to the runtime, but for bandwidth hints to the network.
    pub annotations: BTreeMap<String, String>,
    /// Namespaces, security, cgroup.
    pub linux: LinuxPodSandboxConfig,
    /// The RuntimeClass handler; empty for the default.
    pub runtime_handler: String,
}

/// Whether containers can be added to a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodSandboxState {
    /// Its processes and network are there.
    Ready,
    /// Stopped, or something of it died.
    #[default]
    NotReady,
}

/// The addresses of a pod, first the primary one. Empty with the host's network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PodSandboxNetworkStatus {
    /// The primary address.
    pub ip: Option<IpAddr>,
    /// Further addresses (dual stack).
    pub additional_ips: Vec<IpAddr>,
}

/// One sandbox in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandboxStatus {
    /// Its id.
    pub id: String,
    /// Which pod it is for.
    pub metadata: PodSandboxMetadata,
    /// Whether it can be used.
    pub state: PodSandboxState,
    /// When it was made.
    pub created_at: i64,
    /// Addresses.
    pub network: PodSandboxNetworkStatus,
    /// Which namespaces it shares with what.
    pub namespaces: NamespaceOption,
    /// From its config.
    pub labels: BTreeMap<String, String>,
    /// From its config.
    pub annotations: BTreeMap<String, String>,
    /// From its config.
    pub runtime_handler: String,
    /// Id of the sandbox's holder process on the host, when it runs and the runtime tells.
    pub pid: Option<u32>,
}

/// One sandbox in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandbox {
    /// Its id.
    pub id: String,
    /// Which pod it is for.
    pub metadata: PodSandboxMetadata,
    /// Whether it can be used.
    pub state: PodSandboxState,
    /// When it was made.
    pub created_at: i64,
    /// From its config.
    pub labels: BTreeMap<String, String>,
    /// From its config.
    pub annotations: BTreeMap<String, String>,
    /// From its config.
    pub runtime_handler: String,
}

/// Which sandboxes to list; empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandboxFilter {
    /// An id or a unique prefix of one.
    pub id: Option<String>,
    /// Only in this state.
    pub state: Option<PodSandboxState>,
    /// All of these labels with these values.
    pub label_selector: BTreeMap<String, String>,
}
