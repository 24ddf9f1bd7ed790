//! Linux settings of sandboxes and containers: namespaces, users, capabilities, profiles, cgroup limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Whose namespace a container uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceMode {
    /// The pod's, shared by its containers.
    #[default]
    Pod,
    /// One of its own.
    Container,
    /// The host's.
    Node,
    /// That of another container, named by `target_id`.
    Target,
}

/// Namespaces that a pod may choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamespaceOption {
    /// Network: `Pod` or `Node`.
    pub network: NamespaceMode,
    /// Processes. The proto's zero value is `Pod`; the kubelet sends `Container` for ordinary pods.
    pub pid: NamespaceMode,
    /// System V IPC and POSIX queues: `Pod` or `Node`.
    pub ipc: NamespaceMode,
    /// The container whose process namespace is joined with `pid: Target`.
    pub target_id: String,
    /// User namespace; the host's when `None`.
    pub userns_options: Option<UserNamespace>,
}

/// A user namespace for the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserNamespace {
    /// `Pod` or `Node`.
    pub mode: NamespaceMode,
    /// User ids.
    pub uids: Vec<IdMapping>,
    /// Group ids.
    pub gids: Vec<IdMapping>,
}

/// A range of ids inside and outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMapping {
    /// First id on the host.
    pub host_id: u32,
    /// First id in the container.
    pub container_id: u32,
    /// How many.
    pub length: u32,
}

/// Whether groups of the image's /etc/group are added to the ones asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SupplementalGroupsPolicy {
    /// Yes.
    #[default]
    Merge,
    /// No.
    Strict,
}

/// Where a seccomp or AppArmor profile comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProfileType {
    /// The runtime's own.
    RuntimeDefault,
    /// None.
    #[default]
    Unconfined,
    /// A file or a loaded profile named by `localhost_ref`.
    Localhost,
}

/// A seccomp or AppArmor profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecurityProfile {
    /// Its kind.
    pub profile_type: ProfileType,
    /// Absolute path of the seccomp file, or name of the AppArmor profile.
    pub localhost_ref: String,
}

/// An SELinux label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // the four parts of a label
pub struct SeLinuxOption {
    pub user: String,
    pub role: String,
    pub r#type: String,
    pub level: String,
}

/// Security settings of the sandbox itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxSandboxSecurityContext {
    /// Namespaces.
    pub namespace_options: NamespaceOption,
    /// SELinux label.
    pub selinux_options: Option<SeLinuxOption>,
    /// User of the sandbox's holder process.
    pub run_as_user: Option<i64>,
    /// Its group.
    pub run_as_group: Option<i64>,
    /// Read-only root for the holder.
    pub readonly_rootfs: bool,
    /// Its further groups.
    pub supplemental_groups: Vec<i64>,
    /// See the type.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Whether a container of the pod may be privileged.
    pub privileged: bool,
    /// seccomp profile.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile.
    pub apparmor: Option<SecurityProfile>,
}

/// Linux part of a sandbox's config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxPodSandboxConfig {
    /// The cgroup under which the pod's containers are put, relative to the hierarchy's root, in cgroupfs style:
    /// `/kubepods/burstable/pod<uid>`. The runtime's own parent when empty.
    pub cgroup_parent: String,
    /// Namespaces and security.
    pub security_context: LinuxSandboxSecurityContext,
    /// Sysctls of the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// What the pod costs beyond its containers.
    pub overhead: Option<LinuxContainerResources>,
    /// Sum of the containers' resources.
    pub resources: Option<LinuxContainerResources>,
}

/// Limits of huge pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugepageLimit {
    /// `2MB`, `1GB`.
    pub page_size: String,
    /// In bytes.
    pub limit: u64,
}

/// cgroup limits. Zero or empty: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxContainerResources {
    /// CFS period in microseconds.
    pub cpu_period: i64,
    /// CFS quota in microseconds per period; negative for none.
    pub cpu_quota: i64,
    /// Relative weight in cgroup v1's scale (1024 is one core).
    pub cpu_shares: i64,
    /// Memory limit in bytes.
    pub memory_limit_in_bytes: i64,
    /// oom_score_adj of the container's first process.
    pub oom_score_adj: i64,
    /// CPUs allowed.
    pub cpuset_cpus: String,
    /// Memory nodes allowed.
    pub cpuset_mems: String,
    /// Huge page limits.
    pub hugepage_limits: Vec<HugepageLimit>,
    /// Files of cgroup v2 with their contents.
    pub unified: BTreeMap<String, String>,
    /// Memory and swap together, in bytes.
    pub memory_swap_limit_in_bytes: i64,
    /// Number of processes. Not part of CRI v1, where the pod's cgroup carries it.
    pub pids_limit: i64,
}

/// Capabilities to add and drop; `ALL` is understood; names with or without `CAP_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capability {
    /// Added to the default set.
    pub add_capabilities: Vec<String>,
    /// Removed, unless also added by name.
    pub drop_capabilities: Vec<String>,
    /// Added and made ambient.
    pub add_ambient_capabilities: Vec<String>,
}

/// Security settings of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxContainerSecurityContext {
    /// Capabilities; ignored when privileged.
    pub capabilities: Capability,
    /// All capabilities, all devices, nothing masked.
    pub privileged: bool,
    /// Namespaces.
    pub namespace_options: NamespaceOption,
    /// SELinux label.
    pub selinux_options: Option<SeLinuxOption>,
    /// User id; the image's user when neither this nor the name is given.
    pub run_as_user: Option<i64>,
    /// Group id; needs a user.
    pub run_as_group: Option<i64>,
    /// User name, looked up in the image.
    pub run_as_username: String,
    /// Mount the root read-only.
    pub readonly_rootfs: bool,
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// See the type.
    pub supplemental_groups_policy: SupplementalGroupsPolicy,
    /// Set no_new_privs.
    pub no_new_privs: bool,
    /// Paths to hide. The kubelet sends the default list or none (`procMount: Unmasked`).
    pub masked_paths: Vec<String>,
    /// Paths to make read-only.
    pub readonly_paths: Vec<String>,
    /// seccomp profile; none when absent.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile; none when absent.
    pub apparmor: Option<SecurityProfile>,
}

/// Linux part of a container's config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinuxContainerConfig {
    /// cgroup limits.
    pub resources: LinuxContainerResources,
    /// Users, capabilities, profiles.
    pub security_context: LinuxContainerSecurityContext,
}
