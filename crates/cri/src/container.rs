//! Containers: what they shall be, what they are, and what happens to them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::image::ImageSpec;
use crate::linux::{IdMapping, LinuxContainerConfig, LinuxContainerResources};
use crate::sandbox::PodSandboxStatus;
use crate::signal::Signal;

/// How mounts travel between host and container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountPropagation {
    /// Not at all (`rprivate`).
    #[default]
    Private,
    /// Later mounts of the host appear in the container (`rslave`).
    HostToContainer,
    /// Both ways (`rshared`).
    Bidirectional,
}

/// A file or directory of the host, or an image, inside a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mount {
    /// Where, in the container.
    pub container_path: PathBuf,
    /// What, on the host. Created as a directory when it does not exist. Empty with `image`.
    pub host_path: PathBuf,
    /// A path below `host_path`, which is there. The runtime resolves it when it mounts, and never leaves `host_path` by
    /// it: processes of pods may change what lies below meanwhile. Not part of CRI v1, where the kubelet has to bind
    /// what it resolved to a path of its own first.
    pub host_sub_path: PathBuf,
    /// Read-only.
    pub readonly: bool,
    /// Relabel for SELinux.
    pub selinux_relabel: bool,
    /// Propagation.
    pub propagation: MountPropagation,
    /// User ids for an idmapped mount.
    pub uid_mappings: Vec<IdMapping>,
    /// Group ids for an idmapped mount.
    pub gid_mappings: Vec<IdMapping>,
    /// Read-only including the mounts below it.
    pub recursive_read_only: bool,
    /// An image whose root is mounted instead of a host path.
    pub image: Option<ImageSpec>,
    /// A directory inside that image.
    pub image_sub_path: String,
}

/// A device of the host inside a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Where, in the container.
    pub container_path: PathBuf,
    /// What, on the host.
    pub host_path: PathBuf,
    /// cgroup permissions, a subset of `rwm`.
    pub permissions: String,
}

/// One environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// Its name.
    pub key: String,
    /// Its value; bytes, as environment values may be.
    pub value: Bytes,
}

/// Which of a pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerMetadata {
    /// Its name in the pod.
    pub name: String,
    /// How many containers of this name the pod had before: the restart count.
    pub attempt: u32,
}

/// What a container shall be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerConfig {
    /// Which container of the pod.
    pub metadata: ContainerMetadata,
    /// Its image, which must be present.
    pub image: ImageSpec,
    /// Replaces the image's entry point when not empty, and then its default arguments too.
    pub command: Vec<String>,
    /// Replaces the image's default arguments when not empty.
    pub args: Vec<String>,
    /// Replaces the image's working directory when not empty.
    pub working_dir: String,
    /// Added to the image's environment.
    pub envs: Vec<KeyValue>,
    /// Volumes and files.
    pub mounts: Vec<Mount>,
    /// Devices.
    pub devices: Vec<Device>,
    /// For finding it again; opaque to the runtime.
    pub labels: BTreeMap<String, String>,
    /// Opaque to the runtime.
    pub annotations: BTreeMap<String, String>,
    /// The log file, relative to the sandbox's log directory. No log is written when empty.
    pub log_path: PathBuf,
    /// Keep a stdin that attach can write to.
    pub stdin: bool,
    /// Close it after the first attach.
    pub stdin_once: bool,
    /// Run on a pseudo terminal.
    pub tty: bool,
    /// Limits and security.
    pub linux: LinuxContainerConfig,
    /// Sent first to stop it; the image's, or SIGTERM, when `None`.
    pub stop_signal: Option<Signal>,
}

/// Where a container is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Prepared, never run.
    Created,
    /// Its main process runs.
    Running,
    /// Its main process ended.
    Exited,
    /// It cannot be told.
    #[default]
    Unknown,
}

/// One container in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: String,
    /// Its sandbox.
    pub pod_sandbox_id: String,
    /// Which container of the pod.
    pub metadata: ContainerMetadata,
    /// As asked for.
    pub image: ImageSpec,
    /// The reference that was resolved, by digest where there is one.
    pub image_ref: String,
    /// The image's id.
    pub image_id: String,
    /// Where it is in its life.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: i64,
    /// From its config.
    pub labels: BTreeMap<String, String>,
    /// From its config.
    pub annotations: BTreeMap<String, String>,
}

/// Which containers to list; empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerFilter {
    /// An id or a unique prefix of one.
    pub id: Option<String>,
    /// Only in this state.
    pub state: Option<ContainerState>,
    /// Only of this sandbox.
    pub pod_sandbox_id: Option<String>,
    /// All of these labels with these values.
    pub label_selector: BTreeMap<String, String>,
}

/// The user that a container's first process has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerUser {
    /// User id.
    pub uid: i64,
    /// Group id.
    pub gid: i64,
    /// All further groups.
    pub supplemental_groups: Vec<i64>,
}

/// One container in full.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Its id.
    pub id: String,
    /// Its sandbox. Not in CRI's message, but always known.
    pub pod_sandbox_id: String,
    /// Which container of the pod.
    pub metadata: ContainerMetadata,
    /// Where it is in its life.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: i64,
    /// When its process started.
    pub started_at: i64,
    /// When its process ended.
    pub finished_at: i64,
    /// How it ended; 128 + n for signal n.
    pub exit_code: i32,
    /// As asked for.
    pub image: ImageSpec,
    /// The reference that was resolved, by digest where there is one.
    pub image_ref: String,
    /// The image's id.
    pub image_id: String,
    /// `Completed`, `Error`, `OOMKilled`, `StartError`, `ContainerStatusUnknown`; empty before the end.
    pub reason: String,
    /// A sentence on the reason.
    pub message: String,
    /// From its config.
    pub labels: BTreeMap<String, String>,
    /// From its config.
    pub annotations: BTreeMap<String, String>,
    /// From its config.
    pub mounts: Vec<Mount>,
    /// Absolute path of its log.
    pub log_path: PathBuf,
    /// Its limits as last set.
    pub resources: LinuxContainerResources,
    /// The user it was started with.
    pub user: Option<ContainerUser>,
    /// The signal that stops it.
    pub stop_signal: Signal,
    /// Id of its first process on the host, when it runs and the runtime tells.
    pub pid: Option<u32>,
}

/// What a command run in a container left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// Its standard output, up to 16 MiB.
    pub stdout: Bytes,
    /// Its standard error, up to 16 MiB.
    pub stderr: Bytes,
    /// Its exit code; 128 + n for signal n.
    pub exit_code: i32,
}

/// What happened to a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerEventType {
    /// It was created.
    Created,
    /// Its process runs.
    Started,
    /// Its process ended.
    Stopped,
    /// It was removed.
    Deleted,
}

/// One event, with the state of the whole pod just after it.
#[derive(Clone, Debug)]
pub struct ContainerEvent {
    /// The container; the sandbox's own id for events of the sandbox.
    pub container_id: String,
    /// What happened.
    pub event_type: ContainerEventType,
    /// When.
    pub created_at: i64,
    /// The sandbox; `None` once it is removed.
    pub pod_sandbox_status: Option<PodSandboxStatus>,
    /// All containers of the sandbox.
    pub containers_statuses: Vec<ContainerStatus>,
}
