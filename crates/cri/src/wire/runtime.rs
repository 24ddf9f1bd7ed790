//! The runtime itself: who it is, how it is, what it can do, and what it tells of containers as it happens.

use super::{ContainerStatus, PodSandboxStatus};

messages! {
    /// Asks who is there.
    VersionRequest { 1 version: text }
    /// Who is there.
    VersionResponse {
        1 version: text, 2 runtime_name: text, 3 runtime_version: text, 4 runtime_api_version: text,
    }

    /// Asks whether pods can be taken.
    StatusRequest { 1 verbose: bool }
    /// Whether pods can be taken, and with which features.
    StatusResponse {
        1 status: one(RuntimeStatus), 2 info: map, 3 runtime_handlers: many(RuntimeHandler),
        4 features: one(RuntimeFeatures),
    }
    /// All conditions.
    RuntimeStatus { 1 conditions: many(RuntimeCondition) }
    /// One condition.
    RuntimeCondition { 1 r#type: text, 2 status: bool, 3 reason: text, 4 message: text }
    /// What runs containers of a class.
    RuntimeHandler { 1 name: text, 2 features: one(RuntimeHandlerFeatures) }
    /// What it can do.
    RuntimeHandlerFeatures { 1 recursive_read_only_mounts: bool, 2 user_namespaces: bool }
    /// What does not depend on the handler.
    RuntimeFeatures { 1 supplemental_groups_policy: bool, 2 user_namespaces_host_network: bool }

    /// Asks how the runtime is set up.
    RuntimeConfigRequest {}
    /// How it is set up.
    RuntimeConfigResponse { 1 linux: one(LinuxRuntimeConfiguration) }
    /// The cgroup driver: 0 systemd, 1 cgroupfs.
    LinuxRuntimeConfiguration { 1 cgroup_driver: int32 }

    /// Tells the runtime what only the cluster knows.
    UpdateRuntimeConfigRequest { 1 runtime_config: one(RuntimeConfig) }
    /// Done.
    UpdateRuntimeConfigResponse {}
    /// What the cluster knows.
    RuntimeConfig { 1 network_config: one(NetworkConfig) }
    /// The node's range of pod addresses.
    NetworkConfig { 1 pod_cidr: text }

    /// Asks for all that happens from now on.
    GetEventsRequest {}
    /// Something happened.
    ContainerEventResponse {
        1 container_id: text, 2 container_event_type: int32, 3 created_at: int64,
        4 pod_sandbox_status: one(PodSandboxStatus), 5 containers_statuses: many(ContainerStatus),
    }
}

/// Who makes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CgroupDriver {
    /// systemd, over D-Bus.
    Systemd = 0,
    /// Whoever needs them, in the file system.
    Cgroupfs = 1,
}
