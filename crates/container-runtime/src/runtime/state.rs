//! What is known of sandboxes and containers, and how CRI words it. No I/O.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use cni::Attachment;
use cri::{
    ContainerConfig, ContainerFilter, ContainerState, ContainerStatus, ContainerUser,
    LinuxContainerResources, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxNetworkStatus,
    PodSandboxState, PodSandboxStatus, Signal,
};
use serde::{Deserialize, Serialize};

use crate::spec::{Exit, Run};

/// How far a sandbox got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Being made; found so after a crash, it is undone.
    Creating,
    /// Its shim and network are there.
    Ready,
    /// Taken down, not yet removed.
    Stopped,
}

/// A sandbox on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: String,
    pub config: PodSandboxConfig,
    pub created_at: i64,
    pub phase: Phase,
    pub attachment: Attachment,
    /// The pod's group, parent of the containers'.
    pub cgroup_parent: String,
}

/// A container on disk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: String,
    pub sandbox_id: String,
    pub config: ContainerConfig,
    pub image_id: String,
    pub image_ref: String,
    pub created_at: i64,
    pub user: ContainerUser,
    pub stop_signal: Signal,
    pub cgroup: String,
    pub log_path: Option<PathBuf>,
    pub resources: LinuxContainerResources,
}

/// A sandbox in memory.
pub struct Sandbox {
    pub record: SandboxRecord,
    /// The shim that is connected.
    pub shim: Option<Shim>,
}

/// A shim that serves.
#[derive(Clone)]
pub struct Shim {
    pub pid: i32,
    /// Its network namespace, open: valid however the ids of processes are used again.
    pub network: Arc<OwnedFd>,
}

/// A container in memory.
pub struct Container {
    pub record: ContainerRecord,
    pub run: Option<Run>,
    pub exit: Option<Exit>,
    /// CPU time at a time, for the rate.
    pub last_cpu: Option<(i64, u64)>,
}

/// Everything.
#[derive(Default)]
pub struct State {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, Container>,
}

impl State {
    pub fn of_sandbox<'a>(&'a self, sandbox: &'a str) -> impl Iterator<Item = &'a Container> {
        self.containers.values().filter(move |container| container.record.sandbox_id == sandbox)
    }

    pub fn sandbox(&self, id: &str) -> cri::Result<&Sandbox> {
        self.sandboxes.get(id).ok_or_else(|| cri::Error::NotFound { kind: "sandbox", id: id.to_owned() })
    }

    pub fn container(&self, id: &str) -> cri::Result<&Container> {
        self.containers.get(id).ok_or_else(|| cri::Error::NotFound { kind: "container", id: id.to_owned() })
    }

    /// A container that runs, with its sandbox's id.
    pub fn running(&self, id: &str) -> cri::Result<&Container> {
        let container = self.container(id)?;
        match container.state() {
            ContainerState::Running => Ok(container),
            _ => Err(cri::Error::FailedPrecondition {
                kind: "container",
                id: id.to_owned(),
                state: "not running".into(),
            }),
        }
    }
}

impl Sandbox {
    pub fn state(&self) -> PodSandboxState {
        match (self.record.phase, &self.shim) {
            (Phase::Ready, Some(_)) => PodSandboxState::Ready,
            _ => PodSandboxState::NotReady,
        }
    }

    pub fn status(&self) -> PodSandboxStatus {
        let SandboxRecord { id, config, created_at, attachment, .. } = &self.record;
        let mut addresses = attachment.addresses.iter().copied();
        PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: self.state(),
            created_at: *created_at,
            network: PodSandboxNetworkStatus { ip: addresses.next(), additional_ips: addresses.collect() },
            namespaces: config.linux.security_context.namespace_options.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            runtime_handler: config.runtime_handler.clone(),
            pid: self.shim.as_ref().and_then(|shim| u32::try_from(shim.pid).ok()),
        }
    }

    pub fn listed(&self) -> PodSandbox {
        let status = self.status();
        PodSandbox {
            id: status.id,
            metadata: status.metadata,
            state: status.state,
            created_at: status.created_at,
            labels: status.labels,
            annotations: status.annotations,
            runtime_handler: status.runtime_handler,
        }
    }

    pub fn matches(&self, filter: &PodSandboxFilter) -> bool {
        filter.id.as_ref().is_none_or(|id| self.record.id.starts_with(id.as_str()))
            && filter.state.is_none_or(|state| self.state() == state)
            && selects(&filter.label_selector, &self.record.config.labels)
    }
}

impl Container {
    pub fn new(record: ContainerRecord) -> Self {
        Self { record, run: None, exit: None, last_cpu: None }
    }

    pub fn state(&self) -> ContainerState {
        match (&self.run, &self.exit) {
            (_, Some(_)) => ContainerState::Exited,
            (Some(_), None) => ContainerState::Running,
            (None, None) => ContainerState::Created,
        }
    }

    pub fn status(&self) -> ContainerStatus {
        let record = &self.record;
        let exit = self.exit.as_ref();
        ContainerStatus {
            id: record.id.clone(),
            pod_sandbox_id: record.sandbox_id.clone(),
            metadata: record.config.metadata.clone(),
            state: self.state(),
            created_at: record.created_at,
            started_at: self.run.as_ref().map_or(0, |run| run.started_at),
            finished_at: exit.map_or(0, |exit| exit.finished_at),
            exit_code: exit.map_or(0, |exit| exit.code),
            image: record.config.image.clone(),
            image_ref: record.image_ref.clone(),
            image_id: record.image_id.clone(),
            reason: exit.map(|exit| exit.reason.clone()).unwrap_or_default(),
            message: exit.map(|exit| exit.message.clone()).unwrap_or_default(),
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
            mounts: record.config.mounts.clone(),
            log_path: record.log_path.clone().unwrap_or_default(),
            resources: record.resources.clone(),
            user: Some(record.user.clone()),
            stop_signal: record.stop_signal,
            pid: self.pid().and_then(|pid| u32::try_from(pid).ok()),
        }
    }

    /// The first process, while it runs.
    pub fn pid(&self) -> Option<i32> {
        self.run.as_ref().filter(|_| self.exit.is_none()).map(|run| run.pid)
    }

    pub fn listed(&self) -> cri::Container {
        let record = &self.record;
        cri::Container {
            id: record.id.clone(),
            pod_sandbox_id: record.sandbox_id.clone(),
            metadata: record.config.metadata.clone(),
            image: record.config.image.clone(),
            image_ref: record.image_ref.clone(),
            image_id: record.image_id.clone(),
            state: self.state(),
            created_at: record.created_at,
            labels: record.config.labels.clone(),
            annotations: record.config.annotations.clone(),
        }
    }

    pub fn matches(&self, filter: &ContainerFilter) -> bool {
        filter.id.as_ref().is_none_or(|id| self.record.id.starts_with(id.as_str()))
            && filter.state.is_none_or(|state| self.state() == state)
            && filter.pod_sandbox_id.as_ref().is_none_or(|id| self.record.sandbox_id == *id)
            && selects(&filter.label_selector, &self.record.config.labels)
    }
}

/// Whether the labels have every wanted value.
pub fn selects(wanted: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
