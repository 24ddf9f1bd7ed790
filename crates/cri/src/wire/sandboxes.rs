//! Sandboxes: the calls of their life, and what they are made of.

use super::{
    ContainerStatus, Int64Value, LinuxContainerResources, NamespaceOption, SeLinuxOption, SecurityProfile,
};

messages! {
    /// Makes one.
    RunPodSandboxRequest { 1 config: one(PodSandboxConfig), 2 runtime_handler: text }
    /// It runs.
    RunPodSandboxResponse { 1 pod_sandbox_id: text }
    /// Ends all that runs in it.
    StopPodSandboxRequest { 1 pod_sandbox_id: text }
    /// Ended.
    StopPodSandboxResponse {}
    /// Takes it away.
    RemovePodSandboxRequest { 1 pod_sandbox_id: text }
    /// Gone.
    RemovePodSandboxResponse {}
    /// Asks how it is.
    PodSandboxStatusRequest { 1 pod_sandbox_id: text, 2 verbose: bool }
    /// How it is. The last two fields only of runtimes with events.
    PodSandboxStatusResponse {
        1 status: one(PodSandboxStatus), 2 info: map,
        3 containers_statuses: many(ContainerStatus), 4 timestamp: int64,
    }
    /// Asks which there are.
    ListPodSandboxRequest { 1 filter: one(PodSandboxFilter) }
    /// Those there are.
    ListPodSandboxResponse { 1 items: many(PodSandbox) }
    /// The same, answered in parts.
    StreamPodSandboxesRequest { 1 filter: one(PodSandboxFilter) }
    /// A part.
    StreamPodSandboxesResponse { 1 pod_sandboxes: many(PodSandbox) }

    /// Tells what its containers and the sandbox itself may take together from now on.
    UpdatePodSandboxResourcesRequest {
        1 pod_sandbox_id: text, 2 overhead: one(LinuxContainerResources), 3 resources: one(LinuxContainerResources),
    }
    /// Told.
    UpdatePodSandboxResourcesResponse {}

    /// Which ones are meant.
    PodSandboxFilter { 1 id: text, 2 state: one(PodSandboxStateValue), 3 label_selector: map }
    /// 0 ready, 1 not.
    PodSandboxStateValue { 1 state: int32 }
    /// One in a list.
    PodSandbox {
        1 id: text, 2 metadata: one(PodSandboxMetadata), 3 state: int32, 4 created_at: int64,
        5 labels: map, 6 annotations: map, 7 runtime_handler: text,
    }
    /// One in full.
    PodSandboxStatus {
        1 id: text, 2 metadata: one(PodSandboxMetadata), 3 state: int32, 4 created_at: int64,
        5 network: one(PodSandboxNetworkStatus), 6 linux: one(LinuxPodSandboxStatus),
        7 labels: map, 8 annotations: map, 9 runtime_handler: text,
    }
    /// Its addresses.
    PodSandboxNetworkStatus { 1 ip: text, 2 additional_ips: many(PodIp) }
    /// A further address.
    PodIp { 1 ip: text }
    /// What only Linux has.
    LinuxPodSandboxStatus { 1 namespaces: one(Namespace) }
    /// Which namespaces it shares.
    Namespace { 2 options: one(NamespaceOption) }

    /// Whose sandbox.
    PodSandboxMetadata { 1 name: text, 2 uid: text, 3 namespace: text, 4 attempt: uint32 }
    /// What it shall be.
    PodSandboxConfig {
        1 metadata: one(PodSandboxMetadata), 2 hostname: text, 3 log_directory: text,
        4 dns_config: one(DnsConfig), 5 port_mappings: many(PortMapping), 6 labels: map, 7 annotations: map,
        8 linux: one(LinuxPodSandboxConfig), 9 windows: one(Windows),
    }
    /// What only Linux has.
    LinuxPodSandboxConfig {
        1 cgroup_parent: text, 2 security_context: one(LinuxSandboxSecurityContext), 3 sysctls: map,
        4 overhead: one(LinuxContainerResources), 5 resources: one(LinuxContainerResources),
    }
    /// What only Windows has: that it is there is all that matters here.
    Windows {}
    /// Lines of resolv.conf.
    DnsConfig { 1 servers: texts, 2 searches: texts, 3 options: texts }
    /// A port of the host that leads to the pod; 0 TCP, 1 UDP, 2 SCTP.
    PortMapping { 1 protocol: int32, 2 container_port: int32, 3 host_port: int32, 4 host_ip: text }
    /// Identity and profiles of the sandbox's own process.
    LinuxSandboxSecurityContext {
        1 namespace_options: one(NamespaceOption), 2 selinux_options: one(SeLinuxOption),
        3 run_as_user: one(Int64Value), 8 run_as_group: one(Int64Value),
        5 supplemental_groups: int64s, 11 supplemental_groups_policy: int32,
        4 readonly_rootfs: bool, 6 privileged: bool,
        9 seccomp: one(SecurityProfile), 7 seccomp_profile_path: text, 10 apparmor: one(SecurityProfile),
    }
}
