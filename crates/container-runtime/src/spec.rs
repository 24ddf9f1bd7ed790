//! What the shim is told: a sandbox and its containers, completely decided.
//!
//! The runtime makes these values with pure functions ([`crate::plan`]); the shim carries them out and decides
//! nothing. They are written as JSON beside the sandbox, so a spec is also the answer to "what was run here?".

use std::collections::BTreeMap;
use std::path::PathBuf;

use cgroups::Limits;
use serde::{Deserialize, Serialize};

use crate::caps::CapabilitySets;

/// Files in a sandbox's state directory.
pub mod files {
    /// [`super::SandboxSpec`], written by the runtime.
    pub const SANDBOX: &str = "shim.json";
    /// The control socket.
    pub const SOCKET: &str = "shim.sock";
    /// What the shim has to say, mostly nothing.
    pub const SHIM_LOG: &str = "shim.log";
    /// [`super::ContainerSpec`] in a container's directory, written by the runtime.
    pub const SPEC: &str = "spec.json";
    /// [`super::Run`] in a container's directory, written by the shim.
    pub const RUN: &str = "run.json";
    /// [`super::Exit`] in a container's directory, written by the shim; by the runtime when the shim is gone.
    pub const EXIT: &str = "exit.json";
    /// The tmpfs that the pod's containers share as /dev/shm.
    pub const SHM: &str = "shm";
}

/// A sandbox: the namespaces that the shim makes for itself, and so for every container it forks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Its id.
    pub id: String,
    /// A network namespace of its own.
    pub own_network: bool,
    /// An IPC namespace (and /dev/shm) of its own.
    pub own_ipc: bool,
    /// A process namespace shared by the containers, held by a pause process.
    pub shared_pid: bool,
    /// The host name, in a UTS namespace of its own; the host's when `None`.
    pub hostname: Option<String>,
    /// Sysctls to write once the namespaces exist, by dotted name.
    pub sysctls: BTreeMap<String, String>,
    /// The cgroup of the shim itself.
    pub cgroup: String,
    /// A user namespace of its own; the host's when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<IdRange>,
}

/// The ids of the host that a pod's ids from 0 on are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// First user id.
    pub uid: u32,
    /// First group id.
    pub gid: u32,
    /// How many.
    pub length: u32,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSpec {
    /// Its id.
    pub id: String,
    /// The root filesystem.
    pub root: Root,
    /// What to run.
    pub process: Process,
    /// Whose process namespace.
    pub pid: PidNamespace,
    /// Volumes and files, in mount order.
    pub mounts: Vec<Mount>,
    /// Devices beyond the standard ones.
    pub devices: Vec<Device>,
    /// All devices of the host, writable /sys, nothing masked.
    pub privileged: bool,
    /// Paths hidden from the container.
    pub masked_paths: Vec<PathBuf>,
    /// Paths made read-only.
    pub readonly_paths: Vec<PathBuf>,
    /// Its cgroup.
    pub cgroup: String,
    /// Its limits.
    pub limits: Limits,
    /// Where its output goes.
    pub log: Option<PathBuf>,
    /// A stdin that attach can write to.
    pub stdin: bool,
    /// Close it after the first attach.
    pub stdin_once: bool,
}

/// An overlay of image layers under a writable one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Root {
    /// The directory that `lower` is relative to: short names keep long stacks within a mount's option page.
    pub layers: PathBuf,
    /// Layers, topmost first.
    pub lower: Vec<String>,
    /// Writable layer, `upper` and `work` in it, and `root`, the mount point.
    pub snapshot: PathBuf,
    /// Mount it read-only.
    pub readonly: bool,
}

/// A process of the container: its first, or an exec'd one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Program and arguments, never empty.
    pub args: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// Absolute; made if it does not exist.
    pub cwd: PathBuf,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// Capabilities.
    pub capabilities: CapabilitySets,
    /// Gain nothing by exec.
    pub no_new_privs: bool,
    /// Filter system calls by the default profile.
    pub seccomp: bool,
    /// Filter them by this instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seccomp_filter: Option<crate::seccomp::Filter>,
    /// Wished for; a refusal is logged and tolerated.
    pub oom_score_adj: Option<i32>,
    /// Run on a pseudo terminal.
    pub terminal: bool,
}

/// Whose processes a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PidNamespace {
    /// Its own; its first process is number 1.
    Own,
    /// The pod's, held by the pause process.
    Pod,
    /// The host's.
    Host,
    /// Another container's.
    Container(String),
}

/// How mounts travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Propagation {
    Private,
    Slave,
    Shared,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A path of the host.
    Host(PathBuf),
    /// A directory of an image: layers as in [`Root`], topmost first, and the path in it.
    Image { lower: Vec<String>, path: PathBuf },
}

/// A file or directory inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// What.
    pub source: Source,
    /// What of a source on the host: a path below it, resolved when it is mounted, without leaving it.
    #[serde(default)]
    pub sub_path: PathBuf,
    /// Where, in the container.
    pub target: PathBuf,
    /// Read-only.
    pub readonly: bool,
    /// Read-only including the mounts below it.
    pub recursive_readonly: bool,
    /// Propagation.
    pub propagation: Propagation,
    /// Seen with the ids of the pod's user namespace.
    #[serde(default)]
    pub idmapped: bool,
}

/// A device of the host inside the container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// On the host.
    pub source: PathBuf,
    /// In the container.
    pub target: PathBuf,
}

/// A container that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Its first process, as the host counts.
    pub pid: i32,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
    /// The process's start time in clock ticks since boot: with the pid, an identity.
    pub start_ticks: u64,
}

/// A container that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// 128 + n for signal n.
    pub code: i32,
    /// Nanoseconds since the epoch.
    pub finished_at: i64,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `Unknown`.
    pub reason: String,
    /// A sentence on the reason.
    pub message: String,
}
