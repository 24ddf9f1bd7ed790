//! Messages that correspond field by field.

use super::{BadMessage, Wire, all, port, signal_from_wire, signal_to_wire};
use crate::wire;
use crate::{
    ContainerState, MountPropagation, NamespaceMode, PodSandboxState, ProfileType, Protocol,
    SupplementalGroupsPolicy,
};

impl From<crate::DnsConfig> for wire::DnsConfig {
    fn from(value: crate::DnsConfig) -> Self {
        Self { servers: value.servers, searches: value.searches, options: value.options }
    }
}

impl TryFrom<wire::DnsConfig> for crate::DnsConfig {
    type Error = BadMessage;

    fn try_from(value: wire::DnsConfig) -> Result<Self, BadMessage> {
        Ok(Self { servers: value.servers, searches: value.searches, options: value.options })
    }
}

impl From<crate::PortMapping> for wire::PortMapping {
    fn from(value: crate::PortMapping) -> Self {
        Self {
            protocol: value.protocol.into_wire(),
            container_port: value.container_port.into(),
            host_port: value.host_port.into(),
            host_ip: value.host_ip,
        }
    }
}

impl TryFrom<wire::PortMapping> for crate::PortMapping {
    type Error = BadMessage;

    fn try_from(value: wire::PortMapping) -> Result<Self, BadMessage> {
        Ok(Self {
            protocol: Protocol::from_wire(value.protocol)?,
            container_port: port(value.container_port)?,
            host_port: port(value.host_port)?,
            host_ip: value.host_ip,
        })
    }
}

impl From<crate::Mount> for wire::Mount {
    fn from(value: crate::Mount) -> Self {
        Self {
            container_path: value.container_path.to_string_lossy().into_owned(),
            host_path: value.host_path.to_string_lossy().into_owned(),
            readonly: value.readonly,
            selinux_relabel: value.selinux_relabel,
            propagation: value.propagation.into_wire(),
            uid_mappings: value.uid_mappings.into_iter().map(Into::into).collect(),
            gid_mappings: value.gid_mappings.into_iter().map(Into::into).collect(),
            recursive_read_only: value.recursive_read_only,
            image: value.image.map(Into::into),
            image_sub_path: value.image_sub_path,
        }
    }
}

impl TryFrom<wire::Mount> for crate::Mount {
    type Error = BadMessage;

    fn try_from(value: wire::Mount) -> Result<Self, BadMessage> {
        Ok(Self {
            container_path: value.container_path.into(),
            host_path: value.host_path.into(),
            readonly: value.readonly,
            selinux_relabel: value.selinux_relabel,
            propagation: MountPropagation::from_wire(value.propagation)?,
            uid_mappings: all(value.uid_mappings)?,
            gid_mappings: all(value.gid_mappings)?,
            recursive_read_only: value.recursive_read_only,
            image: value.image.map(TryInto::try_into).transpose()?,
            image_sub_path: value.image_sub_path,
            ..Default::default()
        })
    }
}

impl From<crate::IdMapping> for wire::IdMapping {
    fn from(value: crate::IdMapping) -> Self {
        Self { host_id: value.host_id, container_id: value.container_id, length: value.length }
    }
}

impl TryFrom<wire::IdMapping> for crate::IdMapping {
    type Error = BadMessage;

    fn try_from(value: wire::IdMapping) -> Result<Self, BadMessage> {
        Ok(Self { host_id: value.host_id, container_id: value.container_id, length: value.length })
    }
}

impl From<crate::UserNamespace> for wire::UserNamespace {
    fn from(value: crate::UserNamespace) -> Self {
        Self {
            mode: value.mode.into_wire(),
            uids: value.uids.into_iter().map(Into::into).collect(),
            gids: value.gids.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::UserNamespace> for crate::UserNamespace {
    type Error = BadMessage;

    fn try_from(value: wire::UserNamespace) -> Result<Self, BadMessage> {
        Ok(Self {
            mode: NamespaceMode::from_wire(value.mode)?,
            uids: all(value.uids)?,
            gids: all(value.gids)?,
        })
    }
}

impl From<crate::NamespaceOption> for wire::NamespaceOption {
    fn from(value: crate::NamespaceOption) -> Self {
        Self {
            network: value.network.into_wire(),
            pid: value.pid.into_wire(),
            ipc: value.ipc.into_wire(),
            target_id: value.target_id,
            userns_options: value.userns_options.map(Into::into),
        }
    }
}

impl TryFrom<wire::NamespaceOption> for crate::NamespaceOption {
    type Error = BadMessage;

    fn try_from(value: wire::NamespaceOption) -> Result<Self, BadMessage> {
        Ok(Self {
            network: NamespaceMode::from_wire(value.network)?,
            pid: NamespaceMode::from_wire(value.pid)?,
            ipc: NamespaceMode::from_wire(value.ipc)?,
            target_id: value.target_id,
            userns_options: value.userns_options.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<crate::LinuxSandboxSecurityContext> for wire::LinuxSandboxSecurityContext {
    fn from(value: crate::LinuxSandboxSecurityContext) -> Self {
        Self {
            namespace_options: Some(value.namespace_options.into()),
            selinux_options: value.selinux_options.map(Into::into),
            run_as_user: value.run_as_user.map(|value| wire::Int64Value { value }),
            run_as_group: value.run_as_group.map(|value| wire::Int64Value { value }),
            readonly_rootfs: value.readonly_rootfs,
            supplemental_groups: value.supplemental_groups,
            supplemental_groups_policy: value.supplemental_groups_policy.into_wire(),
            privileged: value.privileged,
            seccomp: value.seccomp.map(Into::into),
            apparmor: value.apparmor.map(Into::into),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::LinuxSandboxSecurityContext> for crate::LinuxSandboxSecurityContext {
    type Error = BadMessage;

    fn try_from(value: wire::LinuxSandboxSecurityContext) -> Result<Self, BadMessage> {
        Ok(Self {
            namespace_options: value.namespace_options.unwrap_or_default().try_into()?,
            selinux_options: value.selinux_options.map(TryInto::try_into).transpose()?,
            run_as_user: value.run_as_user.map(|boxed| boxed.value),
            run_as_group: value.run_as_group.map(|boxed| boxed.value),
            readonly_rootfs: value.readonly_rootfs,
            supplemental_groups: value.supplemental_groups,
            supplemental_groups_policy: SupplementalGroupsPolicy::from_wire(
                value.supplemental_groups_policy,
            )?,
            privileged: value.privileged,
            seccomp: value.seccomp.map(TryInto::try_into).transpose()?,
            apparmor: value.apparmor.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<crate::SecurityProfile> for wire::SecurityProfile {
    fn from(value: crate::SecurityProfile) -> Self {
        Self { profile_type: value.profile_type.into_wire(), localhost_ref: value.localhost_ref }
    }
}

impl TryFrom<wire::SecurityProfile> for crate::SecurityProfile {
    type Error = BadMessage;

    fn try_from(value: wire::SecurityProfile) -> Result<Self, BadMessage> {
        Ok(Self {
            profile_type: ProfileType::from_wire(value.profile_type)?,
            localhost_ref: value.localhost_ref,
        })
    }
}

impl From<crate::LinuxPodSandboxConfig> for wire::LinuxPodSandboxConfig {
    fn from(value: crate::LinuxPodSandboxConfig) -> Self {
        Self {
            cgroup_parent: value.cgroup_parent,
            security_context: Some(value.security_context.into()),
            sysctls: value.sysctls,
            overhead: value.overhead.map(Into::into),
            resources: value.resources.map(Into::into),
        }
    }
}

impl TryFrom<wire::LinuxPodSandboxConfig> for crate::LinuxPodSandboxConfig {
    type Error = BadMessage;

    fn try_from(value: wire::LinuxPodSandboxConfig) -> Result<Self, BadMessage> {
        Ok(Self {
            cgroup_parent: value.cgroup_parent,
            security_context: value.security_context.unwrap_or_default().try_into()?,
            sysctls: value.sysctls,
            overhead: value.overhead.map(TryInto::try_into).transpose()?,
            resources: value.resources.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<crate::PodSandboxMetadata> for wire::PodSandboxMetadata {
    fn from(value: crate::PodSandboxMetadata) -> Self {
        Self { name: value.name, uid: value.uid, namespace: value.namespace, attempt: value.attempt }
    }
}

impl TryFrom<wire::PodSandboxMetadata> for crate::PodSandboxMetadata {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxMetadata) -> Result<Self, BadMessage> {
        Ok(Self { name: value.name, uid: value.uid, namespace: value.namespace, attempt: value.attempt })
    }
}

impl From<crate::PodSandboxConfig> for wire::PodSandboxConfig {
    fn from(value: crate::PodSandboxConfig) -> Self {
        Self {
            metadata: Some(value.metadata.into()),
            hostname: value.hostname,
            log_directory: value.log_directory.to_string_lossy().into_owned(),
            dns_config: value.dns_config.map(Into::into),
            port_mappings: value.port_mappings.into_iter().map(Into::into).collect(),
            labels: value.labels,
            annotations: value.annotations,
            linux: Some(value.linux.into()),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::PodSandboxConfig> for crate::PodSandboxConfig {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxConfig) -> Result<Self, BadMessage> {
        Ok(Self {
            metadata: value.metadata.unwrap_or_default().try_into()?,
            hostname: value.hostname,
            log_directory: value.log_directory.into(),
            dns_config: value.dns_config.map(TryInto::try_into).transpose()?,
            port_mappings: all(value.port_mappings)?,
            labels: value.labels,
            annotations: value.annotations,
            linux: value.linux.unwrap_or_default().try_into()?,
            ..Default::default()
        })
    }
}

impl From<crate::PodSandbox> for wire::PodSandbox {
    fn from(value: crate::PodSandbox) -> Self {
        Self {
            id: value.id,
            metadata: Some(value.metadata.into()),
            state: value.state.into_wire(),
            created_at: value.created_at,
            labels: value.labels,
            annotations: value.annotations,
            runtime_handler: value.runtime_handler,
        }
    }
}

impl TryFrom<wire::PodSandbox> for crate::PodSandbox {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandbox) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            metadata: value.metadata.unwrap_or_default().try_into()?,
            state: PodSandboxState::from_wire(value.state)?,
            created_at: value.created_at,
            labels: value.labels,
            annotations: value.annotations,
            runtime_handler: value.runtime_handler,
        })
    }
}

impl From<crate::ImageSpec> for wire::ImageSpec {
    fn from(value: crate::ImageSpec) -> Self {
        Self {
            image: value.image,
            annotations: value.annotations,
            user_specified_image: value.user_specified_image,
            runtime_handler: value.runtime_handler,
            ..Default::default()
        }
    }
}

impl TryFrom<wire::ImageSpec> for crate::ImageSpec {
    type Error = BadMessage;

    fn try_from(value: wire::ImageSpec) -> Result<Self, BadMessage> {
        Ok(Self {
            image: value.image,
            annotations: value.annotations,
            user_specified_image: value.user_specified_image,
            runtime_handler: value.runtime_handler,
        })
    }
}

impl From<crate::KeyValue> for wire::KeyValue {
    fn from(value: crate::KeyValue) -> Self {
        Self { key: value.key, value: value.value.to_vec() }
    }
}

impl TryFrom<wire::KeyValue> for crate::KeyValue {
    type Error = BadMessage;

    fn try_from(value: wire::KeyValue) -> Result<Self, BadMessage> {
        Ok(Self { key: value.key, value: value.value.into() })
    }
}

impl From<crate::LinuxContainerResources> for wire::LinuxContainerResources {
    fn from(value: crate::LinuxContainerResources) -> Self {
        Self {
            cpu_period: value.cpu_period,
            cpu_quota: value.cpu_quota,
            cpu_shares: value.cpu_shares,
            memory_limit_in_bytes: value.memory_limit_in_bytes,
            oom_score_adj: value.oom_score_adj,
            cpuset_cpus: value.cpuset_cpus,
            cpuset_mems: value.cpuset_mems,
            hugepage_limits: value.hugepage_limits.into_iter().map(Into::into).collect(),
            unified: value.unified,
            memory_swap_limit_in_bytes: value.memory_swap_limit_in_bytes,
        }
    }
}

impl TryFrom<wire::LinuxContainerResources> for crate::LinuxContainerResources {
    type Error = BadMessage;

    fn try_from(value: wire::LinuxContainerResources) -> Result<Self, BadMessage> {
        Ok(Self {
            cpu_period: value.cpu_period,
            cpu_quota: value.cpu_quota,
            cpu_shares: value.cpu_shares,
            memory_limit_in_bytes: value.memory_limit_in_bytes,
            oom_score_adj: value.oom_score_adj,
            cpuset_cpus: value.cpuset_cpus,
            cpuset_mems: value.cpuset_mems,
            hugepage_limits: all(value.hugepage_limits)?,
            unified: value.unified,
            memory_swap_limit_in_bytes: value.memory_swap_limit_in_bytes,
            ..Default::default()
        })
    }
}

impl From<crate::HugepageLimit> for wire::HugepageLimit {
    fn from(value: crate::HugepageLimit) -> Self {
        Self { page_size: value.page_size, limit: value.limit }
    }
}

impl TryFrom<wire::HugepageLimit> for crate::HugepageLimit {
    type Error = BadMessage;

    fn try_from(value: wire::HugepageLimit) -> Result<Self, BadMessage> {
        Ok(Self { page_size: value.page_size, limit: value.limit })
    }
}

impl From<crate::SeLinuxOption> for wire::SeLinuxOption {
    fn from(value: crate::SeLinuxOption) -> Self {
        Self { user: value.user, role: value.role, r#type: value.r#type, level: value.level }
    }
}

impl TryFrom<wire::SeLinuxOption> for crate::SeLinuxOption {
    type Error = BadMessage;

    fn try_from(value: wire::SeLinuxOption) -> Result<Self, BadMessage> {
        Ok(Self { user: value.user, role: value.role, r#type: value.r#type, level: value.level })
    }
}

impl From<crate::Capability> for wire::Capability {
    fn from(value: crate::Capability) -> Self {
        Self {
            add_capabilities: value.add_capabilities,
            drop_capabilities: value.drop_capabilities,
            add_ambient_capabilities: value.add_ambient_capabilities,
        }
    }
}

impl TryFrom<wire::Capability> for crate::Capability {
    type Error = BadMessage;

    fn try_from(value: wire::Capability) -> Result<Self, BadMessage> {
        Ok(Self {
            add_capabilities: value.add_capabilities,
            drop_capabilities: value.drop_capabilities,
            add_ambient_capabilities: value.add_ambient_capabilities,
        })
    }
}

impl From<crate::LinuxContainerSecurityContext> for wire::LinuxContainerSecurityContext {
    fn from(value: crate::LinuxContainerSecurityContext) -> Self {
        Self {
            capabilities: Some(value.capabilities.into()),
            privileged: value.privileged,
            namespace_options: Some(value.namespace_options.into()),
            selinux_options: value.selinux_options.map(Into::into),
            run_as_user: value.run_as_user.map(|value| wire::Int64Value { value }),
            run_as_group: value.run_as_group.map(|value| wire::Int64Value { value }),
            run_as_username: value.run_as_username,
            readonly_rootfs: value.readonly_rootfs,
            supplemental_groups: value.supplemental_groups,
            supplemental_groups_policy: value.supplemental_groups_policy.into_wire(),
            no_new_privs: value.no_new_privs,
            masked_paths: value.masked_paths,
            readonly_paths: value.readonly_paths,
            seccomp: value.seccomp.map(Into::into),
            apparmor: value.apparmor.map(Into::into),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::LinuxContainerSecurityContext> for crate::LinuxContainerSecurityContext {
    type Error = BadMessage;

    fn try_from(value: wire::LinuxContainerSecurityContext) -> Result<Self, BadMessage> {
        Ok(Self {
            capabilities: value.capabilities.unwrap_or_default().try_into()?,
            privileged: value.privileged,
            namespace_options: value.namespace_options.unwrap_or_default().try_into()?,
            selinux_options: value.selinux_options.map(TryInto::try_into).transpose()?,
            run_as_user: value.run_as_user.map(|boxed| boxed.value),
            run_as_group: value.run_as_group.map(|boxed| boxed.value),
            run_as_username: value.run_as_username,
            readonly_rootfs: value.readonly_rootfs,
            supplemental_groups: value.supplemental_groups,
            supplemental_groups_policy: SupplementalGroupsPolicy::from_wire(
                value.supplemental_groups_policy,
            )?,
            no_new_privs: value.no_new_privs,
            masked_paths: value.masked_paths,
            readonly_paths: value.readonly_paths,
            seccomp: value.seccomp.map(TryInto::try_into).transpose()?,
            apparmor: value.apparmor.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<crate::LinuxContainerConfig> for wire::LinuxContainerConfig {
    fn from(value: crate::LinuxContainerConfig) -> Self {
        Self {
            resources: Some(value.resources.into()),
            security_context: Some(value.security_context.into()),
        }
    }
}

impl TryFrom<wire::LinuxContainerConfig> for crate::LinuxContainerConfig {
    type Error = BadMessage;

    fn try_from(value: wire::LinuxContainerConfig) -> Result<Self, BadMessage> {
        Ok(Self {
            resources: value.resources.unwrap_or_default().try_into()?,
            security_context: value.security_context.unwrap_or_default().try_into()?,
        })
    }
}

impl From<crate::ContainerMetadata> for wire::ContainerMetadata {
    fn from(value: crate::ContainerMetadata) -> Self {
        Self { name: value.name, attempt: value.attempt }
    }
}

impl TryFrom<wire::ContainerMetadata> for crate::ContainerMetadata {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerMetadata) -> Result<Self, BadMessage> {
        Ok(Self { name: value.name, attempt: value.attempt })
    }
}

impl From<crate::Device> for wire::Device {
    fn from(value: crate::Device) -> Self {
        Self {
            container_path: value.container_path.to_string_lossy().into_owned(),
            host_path: value.host_path.to_string_lossy().into_owned(),
            permissions: value.permissions,
        }
    }
}

impl TryFrom<wire::Device> for crate::Device {
    type Error = BadMessage;

    fn try_from(value: wire::Device) -> Result<Self, BadMessage> {
        Ok(Self {
            container_path: value.container_path.into(),
            host_path: value.host_path.into(),
            permissions: value.permissions,
        })
    }
}

impl From<crate::ContainerConfig> for wire::ContainerConfig {
    fn from(value: crate::ContainerConfig) -> Self {
        Self {
            metadata: Some(value.metadata.into()),
            image: Some(value.image.into()),
            command: value.command,
            args: value.args,
            working_dir: value.working_dir,
            envs: value.envs.into_iter().map(Into::into).collect(),
            mounts: value.mounts.into_iter().map(Into::into).collect(),
            devices: value.devices.into_iter().map(Into::into).collect(),
            labels: value.labels,
            annotations: value.annotations,
            log_path: value.log_path.to_string_lossy().into_owned(),
            stdin: value.stdin,
            stdin_once: value.stdin_once,
            tty: value.tty,
            linux: Some(value.linux.into()),
            stop_signal: signal_to_wire(value.stop_signal),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::ContainerConfig> for crate::ContainerConfig {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerConfig) -> Result<Self, BadMessage> {
        Ok(Self {
            metadata: value.metadata.unwrap_or_default().try_into()?,
            image: value.image.unwrap_or_default().try_into()?,
            command: value.command,
            args: value.args,
            working_dir: value.working_dir,
            envs: all(value.envs)?,
            mounts: all(value.mounts)?,
            devices: all(value.devices)?,
            labels: value.labels,
            annotations: value.annotations,
            log_path: value.log_path.into(),
            stdin: value.stdin,
            stdin_once: value.stdin_once,
            tty: value.tty,
            linux: value.linux.unwrap_or_default().try_into()?,
            stop_signal: signal_from_wire(value.stop_signal)?,
        })
    }
}

impl From<crate::Container> for wire::Container {
    fn from(value: crate::Container) -> Self {
        Self {
            id: value.id,
            pod_sandbox_id: value.pod_sandbox_id,
            metadata: Some(value.metadata.into()),
            image: Some(value.image.into()),
            image_ref: value.image_ref,
            state: value.state.into_wire(),
            created_at: value.created_at,
            labels: value.labels,
            annotations: value.annotations,
            image_id: value.image_id,
        }
    }
}

impl TryFrom<wire::Container> for crate::Container {
    type Error = BadMessage;

    fn try_from(value: wire::Container) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            pod_sandbox_id: value.pod_sandbox_id,
            metadata: value.metadata.unwrap_or_default().try_into()?,
            image: value.image.unwrap_or_default().try_into()?,
            image_ref: value.image_ref,
            image_id: value.image_id,
            state: ContainerState::from_wire(value.state)?,
            created_at: value.created_at,
            labels: value.labels,
            annotations: value.annotations,
        })
    }
}

impl From<crate::Image> for wire::Image {
    fn from(value: crate::Image) -> Self {
        Self {
            id: value.id,
            repo_tags: value.repo_tags,
            repo_digests: value.repo_digests,
            size: value.size,
            uid: value.uid.map(|value| wire::Int64Value { value }),
            username: value.username,
            pinned: value.pinned,
            ..Default::default()
        }
    }
}

impl TryFrom<wire::Image> for crate::Image {
    type Error = BadMessage;

    fn try_from(value: wire::Image) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            repo_tags: value.repo_tags,
            repo_digests: value.repo_digests,
            size: value.size,
            uid: value.uid.map(|boxed| boxed.value),
            username: value.username,
            pinned: value.pinned,
        })
    }
}

impl From<crate::AuthConfig> for wire::AuthConfig {
    fn from(value: crate::AuthConfig) -> Self {
        Self {
            username: value.username,
            password: value.password,
            auth: value.auth,
            server_address: value.server_address,
            identity_token: value.identity_token,
            registry_token: value.registry_token,
        }
    }
}

impl TryFrom<wire::AuthConfig> for crate::AuthConfig {
    type Error = BadMessage;

    fn try_from(value: wire::AuthConfig) -> Result<Self, BadMessage> {
        Ok(Self {
            username: value.username,
            password: value.password,
            auth: value.auth,
            server_address: value.server_address,
            identity_token: value.identity_token,
            registry_token: value.registry_token,
        })
    }
}

impl From<crate::RuntimeCondition> for wire::RuntimeCondition {
    fn from(value: crate::RuntimeCondition) -> Self {
        Self { r#type: value.r#type, status: value.status, reason: value.reason, message: value.message }
    }
}

impl TryFrom<wire::RuntimeCondition> for crate::RuntimeCondition {
    type Error = BadMessage;

    fn try_from(value: wire::RuntimeCondition) -> Result<Self, BadMessage> {
        Ok(Self { r#type: value.r#type, status: value.status, reason: value.reason, message: value.message })
    }
}

impl From<crate::RuntimeStatus> for wire::RuntimeStatus {
    fn from(value: crate::RuntimeStatus) -> Self {
        Self { conditions: value.conditions.into_iter().map(Into::into).collect() }
    }
}

impl TryFrom<wire::RuntimeStatus> for crate::RuntimeStatus {
    type Error = BadMessage;

    fn try_from(value: wire::RuntimeStatus) -> Result<Self, BadMessage> {
        Ok(Self { conditions: all(value.conditions)?, ..Default::default() })
    }
}

impl From<crate::ContainerAttributes> for wire::ContainerAttributes {
    fn from(value: crate::ContainerAttributes) -> Self {
        Self {
            id: value.id,
            metadata: Some(value.metadata.into()),
            labels: value.labels,
            annotations: value.annotations,
        }
    }
}

impl TryFrom<wire::ContainerAttributes> for crate::ContainerAttributes {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerAttributes) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            metadata: value.metadata.unwrap_or_default().try_into()?,
            labels: value.labels,
            annotations: value.annotations,
        })
    }
}

impl From<crate::ContainerStats> for wire::ContainerStats {
    fn from(value: crate::ContainerStats) -> Self {
        Self {
            attributes: Some(value.attributes.into()),
            cpu: Some(value.cpu.into()),
            memory: Some(value.memory.into()),
            writable_layer: value.writable_layer.map(Into::into),
            swap: value.swap.map(Into::into),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::ContainerStats> for crate::ContainerStats {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerStats) -> Result<Self, BadMessage> {
        Ok(Self {
            attributes: value.attributes.unwrap_or_default().try_into()?,
            cpu: value.cpu.unwrap_or_default().try_into()?,
            memory: value.memory.unwrap_or_default().try_into()?,
            writable_layer: value.writable_layer.map(TryInto::try_into).transpose()?,
            swap: value.swap.map(TryInto::try_into).transpose()?,
        })
    }
}

impl From<crate::CpuUsage> for wire::CpuUsage {
    fn from(value: crate::CpuUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            usage_core_nano_seconds: value.usage_core_nano_seconds.map(|value| wire::UInt64Value { value }),
            usage_nano_cores: value.usage_nano_cores.map(|value| wire::UInt64Value { value }),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::CpuUsage> for crate::CpuUsage {
    type Error = BadMessage;

    fn try_from(value: wire::CpuUsage) -> Result<Self, BadMessage> {
        Ok(Self {
            timestamp: value.timestamp,
            usage_core_nano_seconds: value.usage_core_nano_seconds.map(|boxed| boxed.value),
            usage_nano_cores: value.usage_nano_cores.map(|boxed| boxed.value),
        })
    }
}

impl From<crate::MemoryUsage> for wire::MemoryUsage {
    fn from(value: crate::MemoryUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            working_set_bytes: value.working_set_bytes.map(|value| wire::UInt64Value { value }),
            available_bytes: value.available_bytes.map(|value| wire::UInt64Value { value }),
            usage_bytes: value.usage_bytes.map(|value| wire::UInt64Value { value }),
            rss_bytes: value.rss_bytes.map(|value| wire::UInt64Value { value }),
            page_faults: value.page_faults.map(|value| wire::UInt64Value { value }),
            major_page_faults: value.major_page_faults.map(|value| wire::UInt64Value { value }),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::MemoryUsage> for crate::MemoryUsage {
    type Error = BadMessage;

    fn try_from(value: wire::MemoryUsage) -> Result<Self, BadMessage> {
        Ok(Self {
            timestamp: value.timestamp,
            working_set_bytes: value.working_set_bytes.map(|boxed| boxed.value),
            available_bytes: value.available_bytes.map(|boxed| boxed.value),
            usage_bytes: value.usage_bytes.map(|boxed| boxed.value),
            rss_bytes: value.rss_bytes.map(|boxed| boxed.value),
            page_faults: value.page_faults.map(|boxed| boxed.value),
            major_page_faults: value.major_page_faults.map(|boxed| boxed.value),
        })
    }
}

impl From<crate::SwapUsage> for wire::SwapUsage {
    fn from(value: crate::SwapUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            swap_available_bytes: value.swap_available_bytes.map(|value| wire::UInt64Value { value }),
            swap_usage_bytes: value.swap_usage_bytes.map(|value| wire::UInt64Value { value }),
        }
    }
}

impl TryFrom<wire::SwapUsage> for crate::SwapUsage {
    type Error = BadMessage;

    fn try_from(value: wire::SwapUsage) -> Result<Self, BadMessage> {
        Ok(Self {
            timestamp: value.timestamp,
            swap_available_bytes: value.swap_available_bytes.map(|boxed| boxed.value),
            swap_usage_bytes: value.swap_usage_bytes.map(|boxed| boxed.value),
        })
    }
}

impl From<crate::NetworkInterfaceUsage> for wire::NetworkInterfaceUsage {
    fn from(value: crate::NetworkInterfaceUsage) -> Self {
        Self {
            name: value.name,
            rx_bytes: value.rx_bytes.map(|value| wire::UInt64Value { value }),
            rx_errors: value.rx_errors.map(|value| wire::UInt64Value { value }),
            tx_bytes: value.tx_bytes.map(|value| wire::UInt64Value { value }),
            tx_errors: value.tx_errors.map(|value| wire::UInt64Value { value }),
        }
    }
}

impl TryFrom<wire::NetworkInterfaceUsage> for crate::NetworkInterfaceUsage {
    type Error = BadMessage;

    fn try_from(value: wire::NetworkInterfaceUsage) -> Result<Self, BadMessage> {
        Ok(Self {
            name: value.name,
            rx_bytes: value.rx_bytes.map(|boxed| boxed.value),
            rx_errors: value.rx_errors.map(|boxed| boxed.value),
            tx_bytes: value.tx_bytes.map(|boxed| boxed.value),
            tx_errors: value.tx_errors.map(|boxed| boxed.value),
        })
    }
}

impl From<crate::NetworkUsage> for wire::NetworkUsage {
    fn from(value: crate::NetworkUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            default_interface: Some(value.default_interface.into()),
            interfaces: value.interfaces.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::NetworkUsage> for crate::NetworkUsage {
    type Error = BadMessage;

    fn try_from(value: wire::NetworkUsage) -> Result<Self, BadMessage> {
        Ok(Self {
            timestamp: value.timestamp,
            default_interface: value.default_interface.unwrap_or_default().try_into()?,
            interfaces: all(value.interfaces)?,
        })
    }
}

impl From<crate::ProcessUsage> for wire::ProcessUsage {
    fn from(value: crate::ProcessUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            process_count: value.process_count.map(|value| wire::UInt64Value { value }),
        }
    }
}

impl TryFrom<wire::ProcessUsage> for crate::ProcessUsage {
    type Error = BadMessage;

    fn try_from(value: wire::ProcessUsage) -> Result<Self, BadMessage> {
        Ok(Self { timestamp: value.timestamp, process_count: value.process_count.map(|boxed| boxed.value) })
    }
}

impl From<crate::PodSandboxAttributes> for wire::PodSandboxAttributes {
    fn from(value: crate::PodSandboxAttributes) -> Self {
        Self {
            id: value.id,
            metadata: Some(value.metadata.into()),
            labels: value.labels,
            annotations: value.annotations,
        }
    }
}

impl TryFrom<wire::PodSandboxAttributes> for crate::PodSandboxAttributes {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxAttributes) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            metadata: value.metadata.unwrap_or_default().try_into()?,
            labels: value.labels,
            annotations: value.annotations,
        })
    }
}
