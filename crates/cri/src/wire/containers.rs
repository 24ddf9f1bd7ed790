//! Containers: the calls of their life, what they are made of, and ways to talk with their processes.

use super::{
    Capability, IdMapping, ImageSpec, Int64Value, LinuxContainerResources, NamespaceOption, PodSandboxConfig,
    SeLinuxOption, SecurityProfile, Windows,
};

messages! {
    /// Makes one.
    CreateContainerRequest {
        1 pod_sandbox_id: text, 2 config: one(ContainerConfig), 3 sandbox_config: one(PodSandboxConfig),
    }
    /// It is there.
    CreateContainerResponse { 1 container_id: text }
    /// Runs it.
    StartContainerRequest { 1 container_id: text }
    /// It runs.
    StartContainerResponse {}
    /// Ends it, by force after so many seconds.
    StopContainerRequest { 1 container_id: text, 2 timeout: int64 }
    /// Ended.
    StopContainerResponse {}
    /// Takes it away.
    RemoveContainerRequest { 1 container_id: text }
    /// Gone.
    RemoveContainerResponse {}
    /// Asks how it is.
    ContainerStatusRequest { 1 container_id: text, 2 verbose: bool }
    /// How it is.
    ContainerStatusResponse { 1 status: one(ContainerStatus), 2 info: map }
    /// Asks which there are.
    ListContainersRequest { 1 filter: one(ContainerFilter) }
    /// Those there are.
    ListContainersResponse { 1 containers: many(Container) }
    /// The same, answered in parts.
    StreamContainersRequest { 1 filter: one(ContainerFilter) }
    /// A part.
    StreamContainersResponse { 1 containers: many(Container) }
    /// Changes its limits.
    UpdateContainerResourcesRequest {
        1 container_id: text, 2 linux: one(LinuxContainerResources), 3 windows: one(Windows), 4 annotations: map,
    }
    /// Changed.
    UpdateContainerResourcesResponse {}
    /// Opens its log's file again.
    ReopenContainerLogRequest { 1 container_id: text }
    /// Opened.
    ReopenContainerLogResponse {}

    /// Runs a command to its end, for so many seconds at most.
    ExecSyncRequest { 1 container_id: text, 2 cmd: texts, 3 timeout: int64 }
    /// What it said, and how it ended.
    ExecSyncResponse { 1 stdout: bytes, 2 stderr: bytes, 3 exit_code: int32 }
    /// Runs a command to talk with.
    ExecRequest { 1 container_id: text, 2 cmd: texts, 3 tty: bool, 4 stdin: bool, 5 stdout: bool, 6 stderr: bool }
    /// Where to.
    ExecResponse { 1 url: text }
    /// Talks with the container's own process.
    AttachRequest { 1 container_id: text, 2 stdin: bool, 3 tty: bool, 4 stdout: bool, 5 stderr: bool }
    /// Where to.
    AttachResponse { 1 url: text }
    /// Talks with ports of a pod.
    PortForwardRequest { 1 pod_sandbox_id: text, 2 port: int32s }
    /// Where to.
    PortForwardResponse { 1 url: text }

    /// Which ones are meant.
    ContainerFilter { 1 id: text, 2 state: one(ContainerStateValue), 3 pod_sandbox_id: text, 4 label_selector: map }
    /// 0 created, 1 running, 2 exited, 3 unknown.
    ContainerStateValue { 1 state: int32 }
    /// One in a list.
    Container {
        1 id: text, 2 pod_sandbox_id: text, 3 metadata: one(ContainerMetadata), 4 image: one(ImageSpec),
        5 image_ref: text, 10 image_id: text, 6 state: int32, 7 created_at: int64, 8 labels: map,
        9 annotations: map,
    }
    /// One in full.
    ContainerStatus {
        1 id: text, 2 metadata: one(ContainerMetadata), 3 state: int32,
        4 created_at: int64, 5 started_at: int64, 6 finished_at: int64,
        7 exit_code: int32, 10 reason: text, 11 message: text,
        8 image: one(ImageSpec), 9 image_ref: text, 17 image_id: text,
        12 labels: map, 13 annotations: map, 14 mounts: many(Mount), 15 log_path: text,
        16 resources: one(ContainerResources), 18 user: one(ContainerUser), 19 stop_signal: int32,
    }
    /// Limits as they are.
    ContainerResources { 1 linux: one(LinuxContainerResources), 2 windows: one(Windows) }
    /// Whom it runs as.
    ContainerUser { 1 linux: one(LinuxContainerUser) }
    /// In numbers.
    LinuxContainerUser { 1 uid: int64, 2 gid: int64, 3 supplemental_groups: int64s }

    /// Which container of its pod.
    ContainerMetadata { 1 name: text, 2 attempt: uint32 }
    /// What it shall be.
    ContainerConfig {
        1 metadata: one(ContainerMetadata), 2 image: one(ImageSpec),
        3 command: texts, 4 args: texts, 5 working_dir: text, 6 envs: many(KeyValue),
        7 mounts: many(Mount), 8 devices: many(Device), 17 cdi_devices: many(CdiDevice),
        9 labels: map, 10 annotations: map, 11 log_path: text,
        12 stdin: bool, 13 stdin_once: bool, 14 tty: bool, 18 stop_signal: int32,
        15 linux: one(LinuxContainerConfig), 16 windows: one(Windows),
    }
    /// An environment variable.
    KeyValue { 1 key: text, 2 value: bytes }
    /// Something of the host, or an image, in the container; propagation 0 private, 1 from the host, 2 both ways.
    Mount {
        1 container_path: text, 2 host_path: text, 9 image: one(ImageSpec), 10 image_sub_path: text,
        3 readonly: bool, 8 recursive_read_only: bool, 4 selinux_relabel: bool, 5 propagation: int32,
        6 uid_mappings: many(IdMapping), 7 gid_mappings: many(IdMapping),
    }
    /// A device node.
    Device { 1 container_path: text, 2 host_path: text, 3 permissions: text }
    /// A device by the name that its vendor gave it.
    CdiDevice { 1 name: text }
    /// What only Linux has.
    LinuxContainerConfig {
        1 resources: one(LinuxContainerResources), 2 security_context: one(LinuxContainerSecurityContext),
    }
    /// Identity and profiles of its process.
    LinuxContainerSecurityContext {
        5 run_as_user: one(Int64Value), 12 run_as_group: one(Int64Value), 6 run_as_username: text,
        8 supplemental_groups: int64s, 17 supplemental_groups_policy: int32,
        1 capabilities: one(Capability), 2 privileged: bool, 11 no_new_privs: bool, 7 readonly_rootfs: bool,
        3 namespace_options: one(NamespaceOption), 4 selinux_options: one(SeLinuxOption),
        15 seccomp: one(SecurityProfile), 10 seccomp_profile_path: text,
        16 apparmor: one(SecurityProfile), 9 apparmor_profile: text,
        13 masked_paths: texts, 14 readonly_paths: texts,
    }
}
