//! One task per pod: keeps what the runtime does in line with what the pod asks for.
//!
//! The loop: look (runtime view), decide ([`crate::plan`], pure), start the actions, tell (status), wait for whatever
//! comes first: a new version of the pod, an event of the runtime, the end of an action, a timer. Actions run beside the
//! loop as futures that the worker owns, so a long pull or grace period never keeps it from hearing news. An idle pod
//! costs its memory and nothing else.
//!
//! What stays true: a container is only ever touched by its pod's worker; the API object is deleted only after
//! everything has stopped and the final status was accepted; a worker that is dropped leaves its containers running.

mod begin;
mod finish;
mod tell;
mod time;
mod work;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::{DeleteOptions, Patch, resources};
use cri::{ContainerFilter, ContainerState, LinuxContainerResources, PodSandboxFilter, PodSandboxStatus};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Stop;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::backoff::{self, Backoff};
use crate::handlers::{self, HandlerError, Target};
use crate::host::SharedHost;
use crate::plan::{self, Action, Cause, Plan};
use crate::pod::{Pod, ResourceRequirements, Role};
use crate::probes::{Effect, Kind};
use crate::resize::{self, Change, Pending};
use crate::start::{self, Failure, Request};
use crate::state::{Attempt, Condemned, Intent, Memory, RuntimeView, Verdict, Waiting, timestamp};
use crate::status::{self, Computed, NodeFacts, StatusView};
use crate::volumes::{self, MountedVolumes, SetUpError, Watching};
use crate::{hooks, labels, messages, resources as amounts};
use time::{go_duration, later, sooner, until, whole_second};
use work::{addresses, kill, probe, read_runtime, resize_pod, run_sandbox};

const SANDBOX_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const VOLUME_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
const STATUS_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
const RESIZE_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// How long a failed pull is shown as such before it is shown as waiting for the next.
const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);
/// The runtime could not be asked: look again after this.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(2);

/// What the pod's sources say about it now.
#[derive(Clone)]
pub struct Order {
    pub pod: Arc<Pod>,
    /// Its source no longer has it.
    pub removed: bool,
    /// For a static pod: the uid of its mirror in the API.
    pub mirror: Option<String>,
    /// The node's reason not to run it, or to end it.
    pub verdict: Option<Verdict>,
    /// A resize that waits for room; `pod` has what was given before.
    pub pending: Option<Pending>,
    /// Whether the pod was ever given other resources than it began with.
    pub resized: bool,
}

/// What a worker makes known to others.
#[derive(Clone, Default)]
pub struct Report {
    pub pod: Option<Arc<Pod>>,
    pub status: Option<Arc<Computed>>,
    /// Ids of the containers by name, newest first.
    pub containers: Vec<(String, String, ContainerState)>,
    pub sandbox: Option<String>,
    pub log_paths: HashMap<String, PathBuf>,
    pub finished: bool,
}

enum Done {
    Mounted(Result<MountedVolumes, SetUpError>),
    Sandbox { values: LinuxContainerResources, result: cri::Result<String> },
    Started { name: String, resources: ResourceRequirements, result: Result<String, Failure> },
    Resized { pod: Arc<Pod>, change: Change, result: Result<(), String> },
    Killed { id: String, result: cri::Result<()> },
    Removed { id: String, result: cri::Result<()> },
    Probed { name: String, id: String, kind: Kind, result: Result<(), HandlerError> },
    StatusSent { status: Arc<Computed>, result: Result<Value, client::Error> },
    Deleted(Result<Value, client::Error>),
}

pub struct Worker {
    host: SharedHost,
    orders: watch::Receiver<Order>,
    report: watch::Sender<Report>,
    order: Order,
    intent: Intent,
    runtime: RuntimeView,
    memory: Memory,
    mounted: Arc<MountedVolumes>,
    /// Volumes are being brought up to date while the pod runs on.
    refreshing: bool,
    /// Something of the runtime changed.
    runtime_changed: Arc<Notify>,
    /// A ConfigMap or Secret of the pod changed.
    objects_changed: Arc<Notify>,
    watching: Vec<(volumes::ObjectKind, String, Watching)>,
    actions: FuturesUnordered<BoxFuture<'static, Done>>,
    kills: HashMap<String, watch::Sender<Timestamp>>,
    messages: messages::Messages,
    computed: Option<Arc<Computed>>,
    sent: Option<Value>,
    sending: bool,
    send_backoff: Backoff,
    send_after: Option<Timestamp>,
    deleting: bool,
}

impl Worker {
    pub fn new(
        host: SharedHost,
        orders: watch::Receiver<Order>,
        runtime_changed: Arc<Notify>,
    ) -> (Self, watch::Receiver<Report>) {
        let order = orders.borrow().clone();
        let (report, reports) = watch::channel(Report::default());
        let worker = Self {
            host,
            orders,
            report,
            order,
            intent: Intent::Run,
            runtime: RuntimeView::default(),
            memory: Memory::default(),
            mounted: Arc::default(),
            refreshing: false,
            runtime_changed,
            objects_changed: Arc::new(Notify::new()),
            watching: Vec::new(),
            actions: FuturesUnordered::new(),
            kills: HashMap::new(),
            messages: messages::Messages::default(),
            computed: None,
            sent: None,
            sending: false,
            send_backoff: Backoff::default(),
            send_after: None,
            deleting: false,
        };
        (worker, reports)
    }

    /// Runs until the pod is gone from its source and from the node.
    pub async fn run(mut self, stop: Stop) {
        self.memory.start_time =
            Some(self.order.pod.status.start_time.unwrap_or_else(|| whole_second(Timestamp::now())));
        self.take_order();
        self.look().await;
        loop {
            let now = Timestamp::now();
            self.enforce_deadline(now);
            let mut wake = None;
            let plan = self.decide(now, &mut wake);
            for action in plan.actions {
                self.begin(action, now);
            }
            self.note_resizing();
            self.begin_probes(now, &mut wake);
            self.refresh_volumes(now, &mut wake);
            self.relabel(now, &mut wake);
            self.tell(plan.completed, now, &mut wake);
            if self.is_over() {
                return self.clean_up().await;
            }
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep(until(at, Timestamp::now())).await,
                    None => std::future::pending().await,
                }
            };
            // Every branch only takes note; nothing is lost when another one wins.
            tokio::select! {
                () = stop.requested() => return,
                changed = self.orders.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let order = self.orders.borrow_and_update().clone();
                    if order.mirror != self.order.mirror {
                        // Another mirror knows nothing of what its predecessor was told.
                        self.sent = None;
                    }
                    self.order = order;
                    self.take_order();
                }
                () = self.runtime_changed.notified() => self.look().await,
                () = self.objects_changed.notified() => self.retry_now(),
                Some(done) = self.actions.next(), if !self.actions.is_empty() => {
                    if self.finish(done) {
                        self.look().await;
                    }
                }
                () = sleep => {}
            }
        }
    }

    fn take_order(&mut self) {
        let pod = &self.order.pod;
        let grace = Duration::from_secs(pod.grace_seconds().max(0) as u64);
        let ended = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
        let ends = self.order.removed || pod.metadata.deletion_timestamp.is_some() || ended;
        match &mut self.intent {
            Intent::Run => {
                if let Some(verdict) = self.order.verdict.clone() {
                    let grace = verdict.grace.map_or(grace, |less| less.min(grace));
                    self.intent = Intent::Stop { grace, verdict: Some(verdict) };
                } else if ends {
                    self.intent = Intent::Stop { grace, verdict: None };
                }
            }
            // Once ending, always ending; only the grace may shrink.
            Intent::Stop { grace: known, .. } => *known = (*known).min(grace),
        }
        if self.intent == Intent::Run {
            self.follow_objects();
        } else {
            self.watching.clear();
        }
        if self.memory.volumes == Attempt::Done && self.intent == Intent::Run {
            // Labels and annotations may have changed, which downward API files show.
            self.refreshing = self.refreshing || self.begin_mount();
        }
    }

    /// Follows the objects that this version of the pod refers to, and no others.
    fn follow_objects(&mut self) {
        let pod = self.order.pod.clone();
        let wanted = volumes::references(&pod);
        self.watching.retain(|(kind, name, _)| wanted.contains(&(*kind, name.clone())));
        for (kind, name) in wanted {
            if !self.watching.iter().any(|(known, of, _)| *known == kind && *of == name) {
                let objects = &self.host.volumes.objects;
                let watching = objects.follow(kind, &pod.metadata.namespace, &name, &self.objects_changed);
                self.watching.push((kind, name, watching));
            }
        }
    }

    /// Something that a failed try may have waited for has changed.
    fn retry_now(&mut self) {
        if let Attempt::Failed { .. } = self.memory.volumes {
            self.memory.volumes = Attempt::Never;
        } else if self.memory.volumes == Attempt::Done && self.intent == Intent::Run && !self.refreshing {
            self.refreshing = self.begin_mount();
        }
        for memory in self.memory.containers.values_mut() {
            if memory.waiting.as_ref().is_some_and(|waiting| waiting.reason == "CreateContainerConfigError") {
                memory.retry_at = None;
            }
        }
    }

    fn enforce_deadline(&mut self, now: Timestamp) {
        if let (Intent::Run, Some(at)) = (&self.intent, self.deadline())
            && at <= now
        {
            let grace = Duration::from_secs(self.order.pod.grace_seconds().max(0) as u64);
            let message = "Pod was active on the node longer than the specified deadline";
            self.host.events.pod(&self.order.pod, false, "DeadlineExceeded", message);
            let verdict =
                Verdict { reason: "DeadlineExceeded".into(), message: message.into(), ..Verdict::default() };
            self.intent = Intent::Stop { grace, verdict: Some(verdict) };
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.order.pod.spec.active_deadline_seconds?;
        self.memory.start_time?.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    fn decide(&self, now: Timestamp, wake: &mut Option<Timestamp>) -> Plan {
        let plan = plan::plan(&plan::View {
            pod: &self.order.pod,
            intent: &self.intent,
            runtime: &self.runtime,
            memory: &self.memory,
            resized: self.order.resized,
            now,
        });
        sooner(wake, plan.wake_at);
        if self.intent == Intent::Run {
            sooner(wake, self.deadline());
        }
        if !plan.actions.is_empty() {
            debug!(pod = %self.order.pod.key(), actions = ?plan.actions, "plan");
        }
        plan
    }

    /// Reads what the runtime holds of this pod.
    async fn look(&mut self) {
        match read_runtime(&self.host, &self.order.pod.metadata.uid, &mut self.messages).await {
            Ok(view) => {
                self.runtime = view;
                self.note_view();
            }
            Err(error) => {
                warn!(pod = %self.order.pod.key(), error = %telemetry::chain(&error), "cannot read the pod from the runtime");
                let again = self.runtime_changed.clone();
                // Looks again even if no event comes.
                self.actions.push(Box::pin(async move {
                    tokio::time::sleep(LOOK_AGAIN.unsigned_abs()).await;
                    again.notify_one();
                    Done::Removed { id: String::new(), result: Ok(()) }
                }));
            }
        }
    }

    fn note_view(&mut self) {
        if let Some(sandbox) = self.runtime.ready_sandbox() {
            let ips = addresses(sandbox);
            if !ips.is_empty() {
                self.memory.addresses = ips;
            }
        } else if self.memory.addresses.is_empty() {
            self.memory.addresses = self.runtime.sandboxes.first().map(addresses).unwrap_or_default();
        }
        let pod = self.order.pod.clone();
        for (_, container) in pod.containers() {
            let Some(newest) = self.runtime.newest(&container.name) else { continue };
            if newest.state != ContainerState::Running {
                continue;
            }
            let old = pod
                .status
                .container_statuses
                .iter()
                .chain(&pod.status.init_container_statuses)
                .find(|old| old.name == container.name);
            let id = newest.id.clone();
            self.memory.container(&container.name).probes.follow(&id, old);
        }
        // What is gone from the runtime needs no memory of its end.
        self.memory.actuated.containers.retain(|id, _| self.runtime.by_id(id).is_some());
        let (kept, runtime) = (&mut self.memory.removing, &self.runtime);
        kept.retain(|id, _| runtime.by_id(id).is_some() || runtime.sandboxes.iter().any(|one| one.id == *id));
    }

    /// Tells when a resize came to its end.
    fn note_resizing(&mut self) {
        let pod = &self.order.pod;
        let now = self.intent == Intent::Run
            && resize::is_in_progress(pod, &self.runtime, &self.memory, self.order.resized);
        if self.memory.resizing && !now && self.intent == Intent::Run {
            self.memory.resize_error = None;
            let message = format!("Pod resize completed: {}", resize::summary(pod, ""));
            self.host.events.pod(pod, false, "ResizeCompleted", message);
        }
        self.memory.resizing = now;
    }

    fn is_over(&self) -> bool {
        self.order.removed && self.memory.finished && self.memory.starting.is_none()
    }

    /// The pod is gone: nothing of it stays on the node.
    async fn clean_up(self) {
        let pod = &self.order.pod;
        for sandbox in &self.runtime.sandboxes {
            if let Err(error) = self.host.config.runtime.remove_pod_sandbox(&sandbox.id).await {
                warn!(pod = %pod.key(), sandbox = sandbox.id, error = %telemetry::chain(&error), "cannot remove the sandbox");
            }
        }
        if let Some(groups) = &self.host.groups {
            groups.remove(&pod.metadata.uid);
        }
        if let Err(error) = self.host.volumes.tear_down(&pod.metadata.uid) {
            warn!(pod = %pod.key(), error = %telemetry::chain(&error), "cannot remove the pod's directory");
        }
        let logs = self.host.log_directory(pod);
        if let Err(error) = std::fs::remove_dir_all(&logs)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(pod = %pod.key(), %error, "cannot remove the pod's logs");
        }
        info!(pod = %pod.key(), "pod is gone");
    }
}
