//! One task per pod: keeps what the runtime does in line with what the pod asks for.
//!
//! The loop: look (runtime view), decide ([`crate::plan`], pure), start the actions, tell (status), wait for whatever
//! comes first: a new version of the pod, an event of the runtime, the end of an action, a timer. Actions run beside the
//! loop as futures that the worker owns, so a long pull or grace period never keeps it from hearing news. An idle pod
//! costs its memory and nothing else.
//!
//! What stays true: a container is only ever touched by its pod's worker; the API object is deleted only after
//! everything has stopped and the final status was accepted; a worker that is dropped leaves its containers running.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use client::{DeleteOptions, Patch, resources};
use cri::{ContainerFilter, ContainerState, PodSandboxFilter, PodSandboxStatus};
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
use crate::pod::{Pod, Role};
use crate::probes::{Effect, Kind};
use crate::start::{self, Failure, Request};
use crate::state::{Attempt, Condemned, Intent, Memory, RuntimeView, Verdict, Waiting, timestamp};
use crate::status::{self, Computed, NodeFacts, StatusView};
use crate::volumes::{self, MountedVolumes, SetUpError, Watching};
use crate::{hooks, labels, messages};

const SANDBOX_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const VOLUME_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
const STATUS_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
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
    Sandbox(cri::Result<String>),
    Started { name: String, result: Result<String, Failure> },
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
            let verdict = Verdict { reason: "DeadlineExceeded".into(), message: message.into() };
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
        let (kept, runtime) = (&mut self.memory.removing, &self.runtime);
        kept.retain(|id, _| runtime.by_id(id).is_some() || runtime.sandboxes.iter().any(|one| one.id == *id));
    }

    fn begin(&mut self, action: Action, now: Timestamp) {
        let host = self.host.clone();
        let pod = self.order.pod.clone();
        match action {
            Action::Mount => {
                self.memory.volumes = Attempt::Running;
                self.begin_mount();
            }
            Action::RunSandbox { attempt } => {
                self.memory.sandbox = Attempt::Running;
                self.actions
                    .push(Box::pin(async move { Done::Sandbox(run_sandbox(&host, &pod, attempt).await) }));
            }
            Action::Start { name, role, attempt, sandbox } => {
                self.begin_start(name, role, attempt, sandbox, now)
            }
            Action::Kill { id, name, cause, grace } => self.begin_kill(id, name, cause, grace, now),
            Action::StopSandbox { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.stop_pod_sandbox(&id).await;
                    Done::Removed { id, result }
                }));
            }
            Action::RemoveSandbox { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.remove_pod_sandbox(&id).await;
                    Done::Removed { id, result }
                }));
            }
            Action::RemoveContainer { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                let log = self.runtime.by_id(&id).map(|one| one.log_path.clone());
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.remove_container(&id).await;
                    if let (Ok(()), Some(log)) = (&result, log) {
                        // The log of a container that is forgotten; rotated away already if it is not there.
                        let _ = std::fs::remove_file(log);
                    }
                    Done::Removed { id, result }
                }));
            }
            Action::Finish => {
                self.memory.finished = true;
                self.watching.clear();
                if let Err(error) = host.volumes.unmount(&pod.metadata.uid) {
                    warn!(pod = %pod.key(), error = %telemetry::chain(&error), "cannot remove the pod's volumes");
                }
            }
            Action::AnnounceBackOff { name, exit } => {
                let Some((role, container)) = pod.container(&name) else { return };
                let memory = self.memory.container(&name);
                let delay = jiff_seconds(memory.crashes.delay());
                memory.announced = Some(exit);
                memory.waiting = Some(Waiting {
                    reason: "CrashLoopBackOff",
                    message: format!(
                        "back-off {delay} restarting failed container={name} pod={}",
                        pod.full_name()
                    ),
                });
                let message =
                    format!("Back-off restarting failed container {name} in pod {}", pod.full_name());
                host.events.container(&pod, role, container, true, "BackOff", message);
            }
        }
    }

    fn begin_mount(&mut self) -> bool {
        let (host, pod) = (self.host.clone(), self.order.pod.clone());
        let ips = self.memory.addresses.clone();
        self.actions.push(Box::pin(async move {
            let facts = host.facts(&pod, &ips);
            Done::Mounted(host.volumes.set_up(&pod, &facts, Timestamp::now()).await)
        }));
        true
    }

    fn begin_start(&mut self, name: String, role: Role, attempt: u32, sandbox: String, now: Timestamp) {
        let last = self.runtime.newest(&name);
        let crashed = last
            .filter(|last| last.state == ContainerState::Exited)
            .and_then(|last| timestamp(last.finished_at));
        let target = self.order.pod.container(&name).and_then(|(_, container)| {
            let target = self.runtime.newest(&container.target_container_name)?;
            (target.state == ContainerState::Running).then(|| target.id.clone())
        });
        let memory = self.memory.container(&name);
        memory.retry_at = None;
        memory.condemned = None;
        if let Some(finished) = crashed {
            memory.crashes.next(finished, now, backoff::FIRST, backoff::LONGEST);
        }
        self.memory.starting = Some(name.clone());
        let sandbox_attempt = self.runtime.ready_sandbox().map_or(0, |one| one.metadata.attempt);
        let request = Request {
            pod: self.order.pod.clone(),
            name: name.clone(),
            role,
            attempt,
            sandbox,
            sandbox_attempt,
            pod_ips: self.memory.addresses.clone(),
            volumes: self.mounted.clone(),
            target,
        };
        let host = self.host.clone();
        let has_hook = request
            .pod
            .container(&name)
            .is_some_and(|(_, container)| container.lifecycle.post_start.is_some());
        let changed = self.runtime_changed.clone();
        self.actions.push(Box::pin(async move {
            let running = |_: &str| {
                // Without a hook the start ends right away, and with it comes the next look.
                if has_hook {
                    changed.notify_one();
                }
            };
            let result = start::start(&host, &request, &running).await;
            Done::Started { name, result }
        }));
    }

    fn begin_kill(&mut self, id: String, name: String, cause: Cause, grace: Duration, now: Timestamp) {
        let deadline = SignedDuration::try_from(grace).ok().and_then(|grace| now.checked_add(grace).ok());
        let deadline = deadline.unwrap_or(Timestamp::MAX);
        self.memory.killing.insert(id.clone(), deadline);
        if let Some(known) = self.kills.get(&id) {
            // It is being killed already: only the end comes sooner.
            known.send_replace(deadline);
            return;
        }
        let (sender, deadlines) = watch::channel(deadline);
        self.kills.insert(id.clone(), sender);
        let (host, pod) = (self.host.clone(), self.order.pod.clone());
        let ips = self.memory.addresses.clone();
        if let Some((role, container)) = pod.container(&name) {
            let message = match &cause {
                Cause::PodStops => format!("Stopping container {name}"),
                Cause::SandboxChanged => format!("Stopping container {name}: pod sandbox changed"),
                Cause::SpecChanged => format!("Container {name} definition changed"),
                Cause::Probe(text) => text.clone(),
                Cause::Unknown => format!("Container {name} is in an unknown state"),
            };
            host.events.container(&pod, role, container, false, "Killing", message);
        }
        self.actions.push(Box::pin(async move {
            let result = kill(&host, &pod, &name, &id, &ips, deadlines).await;
            Done::Killed { id, result }
        }));
    }

    fn begin_probes(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        let pod = self.order.pod.clone();
        let stopping = self.intent != Intent::Run;
        let Some(sandbox) = self.runtime.ready_sandbox().map(|one| one.id.clone()) else { return };
        for (role, container) in pod.containers() {
            if !matches!(role, Role::App | Role::Sidecar)
                || self.memory.starting.as_deref() == Some(&container.name)
            {
                continue;
            }
            let Some(here) = self.runtime.in_sandbox(&sandbox, &container.name) else { continue };
            if here.state != ContainerState::Running || self.memory.killing.contains_key(&here.id) {
                continue;
            }
            let (id, started_at) = (here.id.clone(), timestamp(here.started_at).unwrap_or(now));
            let ip = if pod.spec.host_network {
                self.host.config.node_ips.first().copied()
            } else {
                self.memory.addresses.first().copied()
            };
            let memory = self.memory.container(&container.name);
            let (due, next) = memory.probes.due(container, started_at, stopping, now);
            sooner(wake, next);
            for kind in due {
                memory.probes.begin(kind, container, now);
                let (host, pod, id, name) =
                    (self.host.clone(), pod.clone(), id.clone(), container.name.clone());
                self.actions.push(Box::pin(async move {
                    let result = probe(&host, &pod, &name, &id, kind, ip).await;
                    Done::Probed { name, id, kind, result }
                }));
            }
        }
    }

    fn refresh_volumes(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        if self.memory.volumes != Attempt::Done || self.intent != Intent::Run || self.refreshing {
            return;
        }
        match self.mounted.values().filter_map(|one| one.refresh_at).min() {
            Some(at) if at <= now => self.refreshing = self.begin_mount(),
            at => sooner(wake, at),
        }
    }

    fn relabel(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        let pod = self.order.pod.clone();
        for (name, memory) in &mut self.memory.containers {
            match &memory.relabel {
                Some((at, waiting)) if *at <= now => {
                    if let Some((role, container)) = pod.container(name) {
                        let message = format!("Back-off pulling image {:?}", container.image);
                        self.host.events.container(&pod, role, container, false, "BackOff", message);
                        self.host.events.container(
                            &pod,
                            role,
                            container,
                            true,
                            "Failed",
                            "Error: ImagePullBackOff",
                        );
                    }
                    memory.waiting = Some(waiting.clone());
                    memory.relabel = None;
                }
                Some((at, _)) => sooner(wake, Some(*at)),
                None => {}
            }
        }
    }

    /// Takes the end of an action. True when the runtime has to be looked at.
    fn finish(&mut self, done: Done) -> bool {
        let now = Timestamp::now();
        let pod = self.order.pod.clone();
        match done {
            Done::Mounted(Ok(mounted)) => {
                self.mounted = Arc::new(mounted);
                self.memory.volumes = Attempt::Done;
                self.refreshing = false;
                false
            }
            Done::Mounted(Err(error)) => {
                let refreshing = std::mem::take(&mut self.refreshing);
                let text = format!(
                    "MountVolume.SetUp failed for volume {:?} : {}",
                    error.volume,
                    telemetry::chain(&error.source)
                );
                self.host.events.pod(&pod, true, "FailedMount", text.clone());
                self.memory.volume_backoff.next(now, now, VOLUME_RETRY.0, VOLUME_RETRY.1);
                let retry_at = later(now, self.memory.volume_backoff.delay());
                if refreshing {
                    // What is there stays in use; the next try comes with the next change or with the timer below.
                    let mut mounted = (*self.mounted).clone();
                    if let Some(one) = mounted.get_mut(&error.volume) {
                        one.refresh_at = Some(retry_at);
                    }
                    self.mounted = Arc::new(mounted);
                } else {
                    self.memory.volumes = Attempt::Failed { message: text, retry_at };
                }
                false
            }
            Done::Sandbox(Ok(id)) => {
                info!(pod = %pod.key(), sandbox = id, "sandbox runs");
                self.memory.sandbox = Attempt::Done;
                true
            }
            Done::Sandbox(Err(error)) => {
                let text = telemetry::chain(&error).to_string();
                warn!(pod = %pod.key(), error = text, "cannot run the sandbox");
                self.host.events.pod(
                    &pod,
                    true,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {text}"),
                );
                self.memory.sandbox_backoff.next(now, now, SANDBOX_RETRY.0, SANDBOX_RETRY.1);
                let retry_at = later(now, self.memory.sandbox_backoff.delay());
                self.memory.sandbox = Attempt::Failed { message: text, retry_at };
                true
            }
            Done::Started { name, result } => {
                self.memory.starting = None;
                self.note_start(&name, result, now);
                true
            }
            Done::Killed { id, result } => {
                self.kills.remove(&id);
                self.memory.killing.remove(&id);
                if let Err(error) = result {
                    warn!(pod = %pod.key(), container = id, error = %telemetry::chain(&error), "cannot kill the container");
                    self.host.events.pod(
                        &pod,
                        true,
                        "FailedKillPod",
                        format!("error killing pod: {}", telemetry::chain(&error)),
                    );
                    // Tried again by the plan, but not at once.
                    self.memory.killing.insert(id.clone(), later(now, Duration::from_secs(5)));
                    self.actions.push(Box::pin(async move {
                        tokio::time::sleep(Duration::from_secs(5)).await;
                        Done::Killed { id, result: Ok(()) }
                    }));
                }
                true
            }
            Done::Removed { id, result } => {
                if id.is_empty() {
                    return false;
                }
                if let Err(error) = &result {
                    warn!(pod = %pod.key(), id, error = %telemetry::chain(error), "cannot stop or remove");
                }
                // Even after success the plan waits a little before it asks again, should the runtime not agree.
                let pause = Duration::from_secs(if result.is_ok() { 1 } else { 5 });
                let message =
                    result.err().map(|error| telemetry::chain(&error).to_string()).unwrap_or_default();
                self.memory.removing.insert(id, Attempt::Failed { message, retry_at: later(now, pause) });
                true
            }
            Done::Probed { name, id, kind, result } => {
                self.note_probe(&name, &id, kind, result);
                false
            }
            Done::StatusSent { status, result } => {
                self.sending = false;
                self.note_sent(&status, result, now);
                false
            }
            Done::Deleted(result) => {
                match result {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => {
                        warn!(pod = %pod.key(), error = %telemetry::chain(&error), "cannot delete the pod's object");
                        self.deleting = false;
                        self.send_backoff.next(now, now, STATUS_RETRY.0, STATUS_RETRY.1);
                        self.send_after = Some(later(now, self.send_backoff.delay()));
                    }
                    // The watch will tell that it is gone.
                    _ => debug!(pod = %pod.key(), "the pod's object is deleted"),
                }
                false
            }
        }
    }

    fn note_start(&mut self, name: &str, result: Result<String, Failure>, now: Timestamp) {
        let memory = self.memory.container(name);
        match result {
            Ok(_) => {
                memory.waiting = None;
                memory.relabel = None;
                memory.announced = None;
                memory.pulls = Backoff::default();
            }
            Err(failure) => {
                debug!(
                    container = name,
                    reason = failure.waiting.reason,
                    message = failure.waiting.message,
                    "start failed"
                );
                let slower = if failure.image { &mut memory.pulls } else { &mut memory.crashes };
                slower.next(now, now, backoff::FIRST, backoff::LONGEST);
                let delay = slower.delay();
                memory.retry_at = Some(later(now, delay));
                if failure.waiting.reason == "ErrImagePull"
                    && let Ok(at) = now.checked_add(PULL_ERROR_SHOWN)
                {
                    let image = self.order.pod.container(name).map(|(_, container)| container.image.as_str());
                    let message = format!(
                        "Back-off pulling image {:?}: ErrImagePull: {}",
                        image.unwrap_or_default(),
                        failure.waiting.message
                    );
                    memory.relabel = Some((at, Waiting { reason: "ImagePullBackOff", message }));
                }
                memory.waiting = Some(failure.waiting);
                if let Some(id) = failure.kill {
                    memory.condemned = Some(Condemned {
                        container_id: id,
                        message: "FailedPostStartHook".into(),
                        grace_seconds: None,
                    });
                }
            }
        }
    }

    fn note_probe(&mut self, name: &str, id: &str, kind: Kind, result: Result<(), HandlerError>) {
        let pod = self.order.pod.clone();
        let Some((role, container)) = pod.container(name) else { return };
        let alive = self.runtime.by_id(id).is_some_and(|one| one.state == ContainerState::Running)
            && !self.memory.killing.contains_key(id);
        if !alive {
            self.memory.container(name).probes.abandon(kind, id);
            return;
        }
        if let Err(error) = &result {
            let title = kind.title();
            let message = match error {
                HandlerError::Failed(text) => format!("{title} probe failed: {text}"),
                HandlerError::TimedOut { .. } => format!("{title} probe failed: {error}"),
                other => format!(
                    "{title} probe errored and resulted in unknown state: {}",
                    telemetry::chain(other)
                ),
            };
            self.host.events.container(&pod, role, container, true, "Unhealthy", message);
        }
        let memory = self.memory.container(name);
        if memory.probes.record(kind, id, container, result.is_ok()) == Effect::Condemned {
            let grace_seconds = kind.of(container).and_then(|probe| probe.termination_grace_period_seconds);
            let message = match kind {
                Kind::Startup => format!("Container {name} failed startup probe, will be restarted"),
                _ => format!("Container {name} failed liveness probe, will be restarted"),
            };
            memory.condemned = Some(Condemned { container_id: id.to_owned(), message, grace_seconds });
        }
    }

    /// Computes the status, reports it, and sends it if it is new.
    fn tell(&mut self, completed: bool, now: Timestamp, wake: &mut Option<Timestamp>) {
        let conditions = self.computed.as_ref().map(|known| known.conditions.clone()).unwrap_or_default();
        let computed = status::compute(&StatusView {
            pod: &self.order.pod,
            intent: &self.intent,
            runtime: &self.runtime,
            memory: &self.memory,
            completed,
            node: NodeFacts { addresses: &self.host.config.node_ips, runtime_name: &self.host.runtime_name },
            conditions: &conditions,
            now: whole_second(now),
        });
        let computed = match &self.computed {
            Some(known) if known.status == computed.status => known.clone(),
            _ => Arc::new(computed),
        };
        self.computed = Some(computed.clone());
        self.report.send_replace(self.make_report(&computed));
        if self.order.removed || self.sending {
            return;
        }
        if let Some(at) = self.send_after.filter(|at| *at > now) {
            return sooner(wake, Some(at));
        }
        if self.sent.as_ref() != Some(&computed.status) {
            return self.begin_send(computed);
        }
        let deleted = self.order.pod.metadata.deletion_timestamp.is_some() && !self.order.pod.is_static();
        if deleted && self.memory.finished && !self.deleting {
            self.deleting = true;
            let (host, pod) = (self.host.clone(), self.order.pod.clone());
            self.actions.push(Box::pin(async move {
                let options = DeleteOptions::of_uid(&pod.metadata.uid).grace(0);
                let api = host.config.client.api(&resources::PODS).within(&pod.metadata.namespace);
                Done::Deleted(api.delete(&pod.metadata.name, &options).await)
            }));
        }
    }

    fn begin_send(&mut self, computed: Arc<Computed>) {
        let pod = self.order.pod.clone();
        let uid = match (pod.is_static(), &self.order.mirror) {
            (false, _) => pod.metadata.uid.clone(),
            (true, Some(mirror)) => mirror.clone(),
            // Nobody to tell yet: the mirror is made when the API server is there.
            (true, None) => return,
        };
        self.sending = true;
        let host = self.host.clone();
        self.actions.push(Box::pin(async move {
            let patch = json!({"metadata": {"uid": uid}, "status": computed.patch});
            let api = host.config.client.api(&resources::PODS).within(&pod.metadata.namespace);
            let result = api.patch_sub(&pod.metadata.name, "status", Patch::Strategic(&patch)).await;
            Done::StatusSent { status: computed, result }
        }));
    }

    fn note_sent(&mut self, status: &Computed, result: Result<Value, client::Error>, now: Timestamp) {
        match result {
            Ok(_) => {
                self.sent = Some(status.status.clone());
                self.send_backoff = Backoff::default();
                self.send_after = None;
            }
            Err(error) if error.is_not_found() || error.is_conflict() => {
                // Gone, or another pod of the same name: there is nobody to tell. The watch will say which.
                self.sent = Some(status.status.clone());
            }
            Err(error) => {
                warn!(pod = %self.order.pod.key(), error = %telemetry::chain(&error), "cannot write the pod's status");
                self.send_backoff.next(now, now, STATUS_RETRY.0, STATUS_RETRY.1);
                self.send_after = Some(later(now, self.send_backoff.delay()));
            }
        }
    }

    fn make_report(&self, computed: &Arc<Computed>) -> Report {
        let of = |one: &cri::ContainerStatus| (one.metadata.name.clone(), one.id.clone(), one.state);
        Report {
            pod: Some(self.order.pod.clone()),
            status: Some(computed.clone()),
            containers: self.runtime.containers.iter().map(of).collect(),
            sandbox: self.runtime.ready_sandbox().map(|one| one.id.clone()),
            log_paths: self
                .runtime
                .containers
                .iter()
                .map(|one| (one.id.clone(), one.log_path.clone()))
                .collect(),
            finished: self.memory.finished,
        }
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

fn addresses(sandbox: &PodSandboxStatus) -> Vec<std::net::IpAddr> {
    sandbox.network.ip.into_iter().chain(sandbox.network.additional_ips.iter().copied()).collect()
}

async fn read_runtime(
    host: &SharedHost,
    uid: &str,
    messages: &mut messages::Messages,
) -> cri::Result<RuntimeView> {
    let runtime = host.config.runtime.as_ref();
    let selector = labels::selector(uid);
    let mut view = RuntimeView::default();
    let filter = PodSandboxFilter { label_selector: selector.clone(), ..PodSandboxFilter::default() };
    for sandbox in runtime.list_pod_sandboxes(&filter).await? {
        match runtime.pod_sandbox_status(&sandbox.id).await {
            Ok(status) => view.sandboxes.push(status),
            // Removed between the two calls.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let filter = ContainerFilter { label_selector: selector, ..ContainerFilter::default() };
    for container in runtime.list_containers(&filter).await? {
        match runtime.container_status(&container.id).await {
            Ok(mut status) => {
                if status.state == ContainerState::Exited {
                    messages.fill(&mut status);
                }
                view.containers.push(status);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    messages.keep_only(&view);
    view.sort();
    Ok(view)
}

async fn run_sandbox(host: &SharedHost, pod: &Pod, attempt: u32) -> cri::Result<String> {
    let mut config = host.sandbox_config(pod, attempt);
    if let Some(name) = &pod.spec.runtime_class_name {
        let classes = host.config.client.api(&resources::RUNTIME_CLASSES);
        let class: Value = classes
            .get(name)
            .await
            .map_err(|error| cri::Error::failed(format!("reading RuntimeClass {name:?}"), error))?;
        config.runtime_handler = class["handler"].as_str().unwrap_or_default().to_owned();
    }
    std::fs::create_dir_all(&config.log_directory)
        .map_err(|error| cri::Error::failed(format!("making {}", config.log_directory.display()), error))?;
    host.config.runtime.run_pod_sandbox(&config).await
}

/// Runs the preStop hook and stops the container, all before the deadline, which may move closer meanwhile.
async fn kill(
    host: &SharedHost,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    ips: &[std::net::IpAddr],
    mut deadlines: watch::Receiver<Timestamp>,
) -> cri::Result<()> {
    let runtime = host.config.runtime.as_ref();
    let left = |deadline: Timestamp| until(deadline, Timestamp::now());
    let deadline = *deadlines.borrow_and_update();
    let first = async {
        if let Some((role, container)) = pod.container(name)
            && let Some(hook) = &container.lifecycle.pre_stop
        {
            let work = hooks::run(host, hook, pod, container, id, ips);
            if let Ok(Err(error)) = tokio::time::timeout(left(deadline), work).await {
                debug!(pod = %pod.key(), container = name, %error, "preStop hook failed");
                host.events.container(pod, role, container, true, "FailedPreStopHook", "PreStopHook failed");
            }
        }
        runtime.stop_container(id, left(deadline).max(Duration::from_secs(2))).await
    };
    let mut work: BoxFuture<'_, cri::Result<()>> = Box::pin(first);
    loop {
        // A stop that is given up for one with less time only waited for the process to end.
        tokio::select! {
            result = &mut work => return result,
            Ok(()) = deadlines.changed() => {
                let deadline = *deadlines.borrow_and_update();
                work = runtime.stop_container(id, left(deadline));
            }
        }
    }
}

async fn probe(
    host: &SharedHost,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    kind: Kind,
    pod_ip: Option<std::net::IpAddr>,
) -> Result<(), HandlerError> {
    let (_, container) = pod.container(name).ok_or(HandlerError::Empty)?;
    let probe = kind.of(container).ok_or(HandlerError::Empty)?;
    let timeout = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64);
    handlers::run(host, &probe.handler, &Target { container, container_id: id, pod_ip, timeout }).await
}

fn sooner(wake: &mut Option<Timestamp>, at: Option<Timestamp>) {
    if let Some(at) = at {
        *wake = Some(wake.map_or(at, |known| known.min(at)));
    }
}

fn later(now: Timestamp, delay: Duration) -> Timestamp {
    SignedDuration::try_from(delay)
        .ok()
        .and_then(|delay| now.checked_add(delay).ok())
        .unwrap_or(Timestamp::MAX)
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// `10s`, `1m20s`, `5m0s`, as Go prints durations.
fn jiff_seconds(delay: Duration) -> String {
    let seconds = delay.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}
