//! What a pod worker knows that neither the pod nor the runtime tells: attempts under way, failures, back-offs and
//! probe results. The plan reads it; only the worker changes it.

use std::collections::HashMap;
use std::time::Duration;

use cri::{ContainerStatus, PodSandboxState, PodSandboxStatus};
use jiff::Timestamp;

use crate::backoff::Backoff;
use crate::pod::Container;
use crate::probes::Probes;
use crate::resize::Actuated;

/// What the runtime holds of one pod.
#[derive(Debug, Clone, Default)]
pub struct RuntimeView {
    /// Newest first.
    pub sandboxes: Vec<PodSandboxStatus>,
    /// Newest first.
    pub containers: Vec<ContainerStatus>,
}

impl RuntimeView {
    /// The newest sandbox, if it can be used.
    pub fn ready_sandbox(&self) -> Option<&PodSandboxStatus> {
        self.sandboxes.first().filter(|sandbox| sandbox.state == PodSandboxState::Ready)
    }

    /// The newest container of this name in a sandbox.
    pub fn in_sandbox(&self, sandbox: &str, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|one| one.metadata.name == name && one.pod_sandbox_id == sandbox)
    }

    /// The containers of this name in any sandbox, newest first.
    pub fn of_name<'a, 'n>(
        &'a self,
        name: &'n str,
    ) -> impl Iterator<Item = &'a ContainerStatus> + use<'a, 'n> {
        self.containers.iter().filter(move |one| one.metadata.name == name)
    }

    /// The newest container of this name.
    pub fn newest<'a>(&'a self, name: &str) -> Option<&'a ContainerStatus> {
        self.of_name(name).next()
    }

    pub fn by_id(&self, id: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|one| one.id == id)
    }

    pub fn sort(&mut self) {
        self.sandboxes.sort_by_key(|one| std::cmp::Reverse((one.created_at, one.metadata.attempt)));
        self.containers.sort_by_key(|one| std::cmp::Reverse((one.metadata.attempt, one.created_at)));
    }
}

/// Something that is tried, is under way, or failed and waits for its next try.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Attempt {
    #[default]
    Never,
    Running,
    Done,
    Failed {
        message: String,
        retry_at: Timestamp,
    },
}

impl Attempt {
    /// Whether it may be started now.
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self {
            Self::Never => true,
            Self::Failed { retry_at, .. } => *retry_at <= now,
            Self::Running | Self::Done => false,
        }
    }

    pub fn retry_at(&self) -> Option<Timestamp> {
        match self {
            Self::Failed { retry_at, .. } => Some(*retry_at),
            _ => None,
        }
    }
}

/// Why a container waits, as its status shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    pub reason: &'static str,
    pub message: String,
}

/// A kill that a probe asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Condemned {
    pub container_id: String,
    pub message: String,
    pub grace_seconds: Option<i64>,
}

#[derive(Debug, Default)]
pub struct ContainerMemory {
    /// Why the last start failed, until one succeeds.
    pub waiting: Option<Waiting>,
    /// No start before this.
    pub retry_at: Option<Timestamp>,
    /// Delay between restarts of a crashing container.
    pub crashes: Backoff,
    /// Delay between pulls of a missing image.
    pub pulls: Backoff,
    /// The exit for which the current crash back-off was announced.
    pub announced: Option<String>,
    pub condemned: Option<Condemned>,
    /// The container that a resize restarts, whatever its policy says of how it ends.
    pub resize_restart: Option<String>,
    pub probes: Probes,
    /// What the waiting reason turns into, and when.
    pub relabel: Option<(Timestamp, Waiting)>,
}

#[derive(Debug, Default)]
pub struct Memory {
    pub volumes: Attempt,
    pub sandbox: Attempt,
    pub sandbox_backoff: Backoff,
    pub volume_backoff: Backoff,
    pub containers: HashMap<String, ContainerMemory>,
    /// The container that is being started; starts are in order, one at a time.
    pub starting: Option<String>,
    /// Containers being killed and when SIGKILL comes.
    pub killing: HashMap<String, Timestamp>,
    /// Sandboxes and containers being stopped or removed.
    pub removing: HashMap<String, Attempt>,
    /// The addresses the pod had, for when the sandbox is gone.
    pub addresses: Vec<std::net::IpAddr>,
    pub start_time: Option<Timestamp>,
    /// What runs with which resources.
    pub actuated: Actuated,
    /// The last try to bring running containers to what the pod was given.
    pub resize: Attempt,
    pub resize_backoff: Backoff,
    /// Why the resize under way is not made yet.
    pub resize_error: Option<String>,
    /// Whether a resize was under way when last looked.
    pub resizing: bool,
    /// When the pod reached the state that ends it.
    pub finished: bool,
}

impl Memory {
    /// Whether a running container counts as started: its hook is done and its startup probe succeeded.
    pub fn started(&self, container: &Container) -> bool {
        let hook_runs = self.starting.as_deref() == Some(&container.name);
        !hook_runs
            && match self.containers.get(&container.name) {
                Some(memory) => memory.probes.started(container),
                None => container.startup_probe.is_none(),
            }
    }

    /// Whether this container is started again because a resize ended it.
    pub fn restarts_for_resize(&self, one: &ContainerStatus) -> bool {
        let memory = self.containers.get(&one.metadata.name);
        memory.is_some_and(|memory| memory.resize_restart.as_deref() == Some(one.id.as_str()))
    }

    pub fn container(&mut self, name: &str) -> &mut ContainerMemory {
        self.containers.entry(name.to_owned()).or_default()
    }
}

/// What shall become of the pod.
#[derive(Debug, Clone, PartialEq)]
pub enum Intent {
    Run,
    /// Stop everything with this much grace.
    Stop {
        grace: Duration,
        /// The phase and reason that the pod ends with, where it is not its containers that decide.
        verdict: Option<Verdict>,
    },
}

/// A decision of the node about a pod: rejected, out of time, evicted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    pub reason: String,
    pub message: String,
    /// Less grace than the pod asks for.
    pub grace: Option<Duration>,
    /// Whether the pod is disturbed for the node's or for others' sake, which a condition tells.
    pub disruption: bool,
}

/// A time as CRI tells it.
pub fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| Timestamp::from_nanosecond(nanoseconds.into()).ok()).flatten()
}
