//! Messages whose shape differs: statuses, statistics, filters, events.

use super::{BadMessage, Wire, all, signal_from_wire, signal_to_wire};
use crate::container::ContainerEventType;
use crate::wire;
use crate::{
    ContainerEvent, ContainerFilter, ContainerState, ContainerStatsFilter, ContainerStatus, ContainerUser,
    FilesystemUsage, PodSandboxFilter, PodSandboxNetworkStatus, PodSandboxState, PodSandboxStats,
    PodSandboxStatsFilter, PodSandboxStatus,
};

fn filled(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

impl From<PodSandboxStatus> for wire::PodSandboxStatus {
    fn from(value: PodSandboxStatus) -> Self {
        let PodSandboxNetworkStatus { ip, additional_ips } = value.network;
        let text = |ip: std::net::IpAddr| ip.to_string();
        Self {
            id: value.id,
            metadata: Some(value.metadata.into()),
            state: value.state.into_wire(),
            created_at: value.created_at,
            network: Some(wire::PodSandboxNetworkStatus {
                ip: ip.map(text).unwrap_or_default(),
                additional_ips: additional_ips.into_iter().map(|ip| wire::PodIp { ip: text(ip) }).collect(),
            }),
            linux: Some(wire::LinuxPodSandboxStatus {
                namespaces: Some(wire::Namespace { options: Some(value.namespaces.into()) }),
            }),
            labels: value.labels,
            annotations: value.annotations,
            runtime_handler: value.runtime_handler,
        }
    }
}

impl TryFrom<wire::PodSandboxStatus> for PodSandboxStatus {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxStatus) -> Result<Self, BadMessage> {
        let network = value.network.unwrap_or_default();
        let options =
            value.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
        Ok(Self {
            id: value.id,
            metadata: value.metadata.unwrap_or_default().try_into()?,
            state: PodSandboxState::from_wire(value.state)?,
            created_at: value.created_at,
            network: PodSandboxNetworkStatus {
                ip: network.ip.parse().ok(),
                additional_ips: network.additional_ips.iter().filter_map(|one| one.ip.parse().ok()).collect(),
            },
            namespaces: options.unwrap_or_default().try_into()?,
            labels: value.labels,
            annotations: value.annotations,
            runtime_handler: value.runtime_handler,
            pid: None,
        })
    }
}

impl From<ContainerStatus> for wire::ContainerStatus {
    fn from(value: ContainerStatus) -> Self {
        Self {
            id: value.id,
            metadata: Some(value.metadata.into()),
            state: value.state.into_wire(),
            created_at: value.created_at,
            started_at: value.started_at,
            finished_at: value.finished_at,
            exit_code: value.exit_code,
            image: Some(value.image.into()),
            image_ref: value.image_ref,
            reason: value.reason,
            message: value.message,
            labels: value.labels,
            annotations: value.annotations,
            mounts: value.mounts.into_iter().map(Into::into).collect(),
            log_path: value.log_path.to_string_lossy().into_owned(),
            resources: Some(wire::ContainerResources {
                linux: Some(value.resources.into()),
                ..Default::default()
            }),
            image_id: value.image_id,
            user: value.user.map(|user| wire::ContainerUser {
                linux: Some(wire::LinuxContainerUser {
                    uid: user.uid,
                    gid: user.gid,
                    supplemental_groups: user.supplemental_groups,
                }),
            }),
            stop_signal: signal_to_wire(Some(value.stop_signal)),
        }
    }
}

impl TryFrom<wire::ContainerStatus> for ContainerStatus {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerStatus) -> Result<Self, BadMessage> {
        Ok(Self {
            id: value.id,
            pod_sandbox_id: String::new(), // the wire does not say it
            metadata: value.metadata.unwrap_or_default().try_into()?,
            state: ContainerState::from_wire(value.state)?,
            created_at: value.created_at,
            started_at: value.started_at,
            finished_at: value.finished_at,
            exit_code: value.exit_code,
            image: value.image.unwrap_or_default().try_into()?,
            image_ref: value.image_ref,
            image_id: value.image_id,
            reason: value.reason,
            message: value.message,
            labels: value.labels,
            annotations: value.annotations,
            mounts: all(value.mounts)?,
            log_path: value.log_path.into(),
            resources: value
                .resources
                .and_then(|resources| resources.linux)
                .unwrap_or_default()
                .try_into()?,
            user: value.user.and_then(|user| user.linux).map(|user| ContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: user.supplemental_groups,
            }),
            stop_signal: signal_from_wire(value.stop_signal)?.unwrap_or_default(),
            pid: None,
        })
    }
}

impl From<FilesystemUsage> for wire::FilesystemUsage {
    fn from(value: FilesystemUsage) -> Self {
        Self {
            timestamp: value.timestamp,
            fs_id: Some(wire::FilesystemIdentifier {
                mountpoint: value.mountpoint.to_string_lossy().into_owned(),
            }),
            used_bytes: Some(wire::UInt64Value { value: value.used_bytes }),
            inodes_used: Some(wire::UInt64Value { value: value.inodes_used }),
        }
    }
}

impl TryFrom<wire::FilesystemUsage> for FilesystemUsage {
    type Error = BadMessage;

    fn try_from(value: wire::FilesystemUsage) -> Result<Self, BadMessage> {
        let number = |boxed: Option<wire::UInt64Value>| boxed.map_or(0, |boxed| boxed.value);
        Ok(Self {
            timestamp: value.timestamp,
            mountpoint: value.fs_id.unwrap_or_default().mountpoint.into(),
            used_bytes: number(value.used_bytes),
            inodes_used: number(value.inodes_used),
        })
    }
}

impl From<PodSandboxStats> for wire::PodSandboxStats {
    fn from(value: PodSandboxStats) -> Self {
        Self {
            attributes: Some(value.attributes.into()),
            linux: Some(wire::LinuxPodSandboxStats {
                cpu: Some(value.cpu.into()),
                memory: Some(value.memory.into()),
                network: value.network.map(Into::into),
                process: Some(value.process.into()),
                containers: value.containers.into_iter().map(Into::into).collect(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }
}

impl TryFrom<wire::PodSandboxStats> for PodSandboxStats {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxStats) -> Result<Self, BadMessage> {
        let linux = value.linux.unwrap_or_default();
        Ok(Self {
            attributes: value.attributes.unwrap_or_default().try_into()?,
            cpu: linux.cpu.unwrap_or_default().try_into()?,
            memory: linux.memory.unwrap_or_default().try_into()?,
            network: linux.network.map(TryInto::try_into).transpose()?,
            process: linux.process.unwrap_or_default().try_into()?,
            containers: all(linux.containers)?,
        })
    }
}

impl From<ContainerEvent> for wire::ContainerEventResponse {
    fn from(value: ContainerEvent) -> Self {
        Self {
            container_id: value.container_id,
            container_event_type: value.event_type.into_wire(),
            created_at: value.created_at,
            pod_sandbox_status: value.pod_sandbox_status.map(Into::into),
            containers_statuses: value.containers_statuses.into_iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<wire::ContainerEventResponse> for ContainerEvent {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerEventResponse) -> Result<Self, BadMessage> {
        Ok(Self {
            container_id: value.container_id,
            event_type: ContainerEventType::from_wire(value.container_event_type)?,
            created_at: value.created_at,
            pod_sandbox_status: value.pod_sandbox_status.map(TryInto::try_into).transpose()?,
            containers_statuses: all(value.containers_statuses)?,
        })
    }
}

impl TryFrom<wire::PodSandboxFilter> for PodSandboxFilter {
    type Error = BadMessage;

    fn try_from(value: wire::PodSandboxFilter) -> Result<Self, BadMessage> {
        let state = value.state.map(|state| PodSandboxState::from_wire(state.state)).transpose()?;
        Ok(Self { id: filled(value.id), state, label_selector: value.label_selector })
    }
}

impl From<PodSandboxFilter> for wire::PodSandboxFilter {
    fn from(value: PodSandboxFilter) -> Self {
        Self {
            id: value.id.unwrap_or_default(),
            state: value.state.map(|state| wire::PodSandboxStateValue { state: state.into_wire() }),
            label_selector: value.label_selector,
        }
    }
}

impl TryFrom<wire::ContainerFilter> for ContainerFilter {
    type Error = BadMessage;

    fn try_from(value: wire::ContainerFilter) -> Result<Self, BadMessage> {
        Ok(Self {
            id: filled(value.id),
            state: value.state.map(|state| ContainerState::from_wire(state.state)).transpose()?,
            pod_sandbox_id: filled(value.pod_sandbox_id),
            label_selector: value.label_selector,
        })
    }
}

impl From<ContainerFilter> for wire::ContainerFilter {
    fn from(value: ContainerFilter) -> Self {
        Self {
            id: value.id.unwrap_or_default(),
            state: value.state.map(|state| wire::ContainerStateValue { state: state.into_wire() }),
            pod_sandbox_id: value.pod_sandbox_id.unwrap_or_default(),
            label_selector: value.label_selector,
        }
    }
}

impl From<wire::ContainerStatsFilter> for ContainerStatsFilter {
    fn from(value: wire::ContainerStatsFilter) -> Self {
        Self {
            id: filled(value.id),
            pod_sandbox_id: filled(value.pod_sandbox_id),
            label_selector: value.label_selector,
        }
    }
}

impl From<ContainerStatsFilter> for wire::ContainerStatsFilter {
    fn from(value: ContainerStatsFilter) -> Self {
        Self {
            id: value.id.unwrap_or_default(),
            pod_sandbox_id: value.pod_sandbox_id.unwrap_or_default(),
            label_selector: value.label_selector,
        }
    }
}

impl From<wire::PodSandboxStatsFilter> for PodSandboxStatsFilter {
    fn from(value: wire::PodSandboxStatsFilter) -> Self {
        Self { id: filled(value.id), label_selector: value.label_selector }
    }
}

impl From<PodSandboxStatsFilter> for wire::PodSandboxStatsFilter {
    fn from(value: PodSandboxStatsFilter) -> Self {
        Self { id: value.id.unwrap_or_default(), label_selector: value.label_selector }
    }
}
