//! Moves objects in and decisions out: informers feed the cache and the queue, one loop runs the cycles,
//! bindings and reports go out concurrently.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use client::{Change, Client, DeleteOptions, Informer, ListOptions, Metadata, Patch, resources};
use controller_runtime::{Event, Recorder, Reference, system_clock, time};
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, watch};
use tracing::{debug, info, warn};

use crate::cache::{Cache, PlacedPod};
use crate::config::{Profile, Settings};
use crate::framework::{Failure, Framework, WakeUp};
use crate::metrics::{Metrics, Outcome};
use crate::plugins::volume_binding;
use crate::preemption::{self, Budget, Preemption, Reasons};
use crate::queue::{Queue, Waiting};
use crate::storage::{Binding, Claim, Class, Storage, Volume};
use crate::types::{Namespace, Node, Pod};

/// How long a pod's volumes may take to be bound.
const VOLUME_DEADLINE: Duration = Duration::from_secs(600);
/// How many bindings and reports may be on their way at once.
const WRITES_IN_FLIGHT: usize = 128;

/// What a scheduler needs to run.
pub struct Config {
    pub client: Client,
    pub settings: Settings,
    pub metrics: Arc<Metrics>,
}

impl Config {
    /// Upstream's default profile.
    pub fn new(client: Client) -> Self {
        Self { client, settings: Settings::default(), metrics: Arc::default() }
    }
}

/// A running scheduler.
struct Scheduler {
    config: Config,
    state: Mutex<State>,
    work: Notify,
    writes: Arc<Semaphore>,
    events: Recorder,
    budgets: Informer<Budget>,
    claims: Informer<Claim>,
    /// Counts changes of storage, for those who wait for one.
    storage_changes: watch::Sender<u64>,
    tasks: Tasks,
}

struct State {
    cache: Cache,
    queue: Queue,
    /// Where the next cycle starts among the nodes.
    rotation: usize,
}

impl State {
    /// What has to be bound for the pod's volumes on the chosen node; the filter has seen that it can be.
    fn bindings(&self, pod: &Pod, node: &str) -> Vec<Binding> {
        let storage = self.cache.storage();
        let Some(node) = self.cache.node(node) else { return Vec::new() };
        volume_binding::bindings(&storage.standings(pod), storage, &node.node).unwrap_or_default()
    }
}

/// Starts scheduling; it goes on until the tasks stop.
pub fn start(config: Config, tasks: &Tasks) {
    fn all<P: client::Projection>(
        config: &Config,
        resource: &client::Resource,
        tasks: &Tasks,
    ) -> Informer<P> {
        Informer::start(&config.client, resource, "", ListOptions::default(), tasks)
    }
    // Finished pods use nothing, so they are not even cached.
    let unfinished = ListOptions::fields("status.phase!=Succeeded,status.phase!=Failed");
    let pods = Informer::<Pod>::start(&config.client, &resources::PODS, "", unfinished, tasks);
    let nodes = all::<Node>(&config, &resources::NODES, tasks);
    let namespaces = all::<Namespace>(&config, &resources::NAMESPACES, tasks);
    let claims = all::<Claim>(&config, &resources::PERSISTENT_VOLUME_CLAIMS, tasks);
    let volumes = all::<Volume>(&config, &resources::PERSISTENT_VOLUMES, tasks);
    let classes = all::<Class>(&config, &resources::STORAGE_CLASSES, tasks);
    let scheduler = Arc::new(Scheduler {
        budgets: all(&config, &resources::POD_DISRUPTION_BUDGETS, tasks),
        claims: claims.clone(),
        storage_changes: watch::Sender::new(0),
        events: Recorder::start(config.client.clone(), "default-scheduler", system_clock(), tasks),
        state: Mutex::new(State {
            cache: Cache::default(),
            queue: Queue::new(config.settings.initial_backoff_seconds, config.settings.max_backoff_seconds),
            rotation: 0,
        }),
        config,
        work: Notify::new(),
        writes: Arc::new(Semaphore::new(WRITES_IN_FLIGHT)),
        tasks: tasks.clone(),
    });
    let on_node = scheduler.clone();
    nodes.on_change(move |change| on_node.node_changed(change));
    let on_namespace = scheduler.clone();
    namespaces.on_change(move |change| {
        let labels = change.new.as_ref().map(|namespace| namespace.metadata.labels.clone());
        on_namespace.lock().cache.set_namespace(&change.key().name, labels);
    });
    let on_claim = scheduler.clone();
    claims.on_change(move |change| {
        on_claim.storage_changed(|storage| match &change.new {
            Some(claim) => drop(storage.claims.insert(change.key(), claim.clone())),
            None => drop(storage.claims.remove(&change.key())),
        });
    });
    let on_volume = scheduler.clone();
    volumes.on_change(move |change| {
        on_volume.storage_changed(|storage| match &change.new {
            Some(volume) => drop(storage.volumes.insert(change.key().name, volume.clone())),
            None => drop(storage.volumes.remove(&change.key().name)),
        });
    });
    let on_class = scheduler.clone();
    classes.on_change(move |change| {
        on_class.storage_changed(|storage| match &change.new {
            Some(class) => drop(storage.classes.insert(change.key().name, class.clone())),
            None => drop(storage.classes.remove(&change.key().name)),
        });
    });
    let on_pod = scheduler.clone();
    pods.on_change(move |change| on_pod.pod_changed(change));
    tasks.keep("scheduler", move |stop| {
        let (scheduler, pods, nodes, namespaces) =
            (scheduler.clone(), pods.clone(), nodes.clone(), namespaces.clone());
        let (claims, volumes, classes) = (claims.clone(), volumes.clone(), classes.clone());
        async move {
            // Deciding before the caches are filled would overcommit nodes.
            let filled = async {
                tokio::join!(pods.synced(), nodes.synced(), namespaces.synced());
                tokio::join!(claims.synced(), volumes.synced(), classes.synced());
            };
            if stop.or(filled).await.is_some() {
                scheduler.run(&stop).await;
            }
        }
    });
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The profile that a pod asks for; pods that ask for none of ours are someone else's.
    fn profile(&self, pod: &Pod) -> Option<&Profile> {
        self.config
            .settings
            .profiles
            .iter()
            .find(|profile| *profile.scheduler_name == *pod.spec.scheduler_name)
    }

    fn node_changed(&self, change: &Change<Node>) {
        let mut state = self.lock();
        match &change.new {
            Some(node) => {
                state.cache.set_node(node.clone());
                if change.old.as_ref().is_none_or(|old| offers_changed(old, node)) {
                    state.queue.wake(WakeUp::NodeChanged, Timestamp::now());
                    self.work.notify_one();
                }
            }
            None => state.cache.remove_node(&change.key().name),
        }
    }

    fn pod_changed(&self, change: &Change<Pod>) {
        let mut state = self.lock();
        let now = Timestamp::now();
        let pod = change.latest();
        let uid = &pod.metadata.uid;
        if change.new.is_none() || !pod.spec.node_name.is_empty() {
            state.cache.nominate(pod.clone(), None);
        }
        if change.new.is_none() {
            state.queue.remove(uid);
            if state.cache.is_placed(uid) {
                state.cache.remove_pod(uid);
                state.queue.wake(WakeUp::PodGone, now);
            }
        } else if !pod.spec.node_name.is_empty() {
            state.queue.remove(uid);
            state.cache.set_pod(pod.clone());
            // A pod that others want to be near to may just have come.
            if change.old.as_ref().is_none_or(|old| old.spec.node_name.is_empty()) {
                state.queue.wake(WakeUp::PodPlaced, now);
            }
        } else if pod.metadata.is_terminating() {
            state.queue.remove(uid);
        } else if let Some(profile) = self.profile(pod)
            && !state.cache.is_placed(uid)
        {
            state.queue.set(pod.clone(), profile.framework.holds_back(pod));
        }
        self.work.notify_one();
    }

    async fn run(self: &Arc<Self>, stop: &Stop) {
        while !stop.is_requested() {
            if self.cycle() {
                // Cycles are pure computation; between them others get their turn.
                tokio::task::yield_now().await;
                continue;
            }
            let deadline = self.lock().queue.next_deadline();
            let pause = match deadline {
                Some(at) => at.duration_since(Timestamp::now()).try_into().unwrap_or(Duration::ZERO),
                None => Duration::from_secs(3600),
            };
            // Both are safe to abandon: a notification is kept, and the deadline is computed again.
            let _ = stop.or(tokio::time::timeout(pause, self.work.notified())).await;
        }
    }

    /// Tries one pod; false when there is none to try.
    fn cycle(self: &Arc<Self>) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(waiting) = state.queue.pop(Timestamp::now()) else { return false };
        let Some(profile) = self.profile(&waiting.pod) else {
            state.queue.remove(&waiting.pod.metadata.uid);
            return true;
        };
        let began = Instant::now();
        let placed = PlacedPod::new(waiting.pod.clone());
        match profile.framework.schedule(&placed, &mut state.cache, state.rotation) {
            Ok(decision) => {
                self.config.metrics.attempted(Outcome::Scheduled, began.elapsed());
                debug!(pod = %waiting.pod.metadata.key(), node = %decision.node, feasible = decision.feasible, "chose a node");
                state.rotation = (state.rotation + decision.evaluated) % state.cache.nodes().len().max(1);
                let bindings = state.bindings(&waiting.pod, &decision.node);
                state.cache.storage_mut().promise(&bindings);
                state.cache.assume(waiting.pod.clone(), &decision.node);
                drop(guard);
                self.in_background("scheduler/bind", move |scheduler| async move {
                    scheduler.bind(&waiting, &decision.node, &bindings).await;
                });
            }
            Err(mut failure) => {
                self.config.metrics.attempted(Outcome::Unschedulable, began.elapsed());
                let uid = waiting.pod.metadata.uid.clone();
                state.queue.failed(&uid, failure.wakes_on.clone(), Timestamp::now());
                match self.make_room(&profile.framework, &placed, state) {
                    Ok(Some(preemption)) => {
                        state.cache.nominate(waiting.pod.clone(), Some(&preemption.node));
                        let pod = waiting.pod.clone();
                        self.in_background("scheduler/preempt", move |scheduler| async move {
                            scheduler.preempt(&pod, &preemption).await;
                        });
                    }
                    Ok(None) => {}
                    Err(reasons) => failure.preemption = reasons,
                }
                drop(guard);
                self.in_background("scheduler/report", move |scheduler| async move {
                    scheduler.report(&waiting.pod, &failure).await;
                });
            }
        }
        true
    }

    /// Whether others can be made to leave for this pod; `None` if it may not ask, or has asked already.
    fn make_room(
        &self,
        framework: &Framework,
        pod: &PlacedPod,
        state: &mut State,
    ) -> Result<Option<Preemption>, Reasons> {
        if &*pod.pod.spec.preemption_policy == "Never" {
            let nodes = state.cache.nodes().len();
            return Err(Reasons::from([("Preemption is not helpful for scheduling", nodes)]));
        }
        let waits = |name: &str| {
            let node = state.cache.nodes().iter().find(|node| node.name() == name);
            node.is_some_and(|node| {
                node.pods.iter().any(|placed| {
                    placed.pod.metadata.is_terminating() && placed.pod.spec.priority < pod.pod.spec.priority
                })
            })
        };
        if waits(&pod.pod.status.nominated_node_name) {
            return Ok(None);
        }
        let cycle = framework.begin(pod, &mut state.cache);
        let budgets = self.budgets.list();
        preemption::find(framework, &cycle, pod, &state.cache, &budgets, state.rotation).map(Some)
    }

    /// Sends the victims away and keeps their room for the pod.
    async fn preempt(&self, pod: &Pod, preemption: &Preemption) {
        let meta = &pod.metadata;
        self.config.metrics.preempted(preemption.victims.len());
        info!(pod = %meta.key(), node = %preemption.node, victims = preemption.victims.len(), "preempting");
        let nominated = json!({"status": {"nominatedNodeName": preemption.node}});
        let api = self.config.client.api(&resources::PODS).within(&meta.namespace);
        if let Err(error) = api.patch_sub::<Value>(&meta.name, "status", Patch::Merge(&nominated)).await {
            warn!(pod = %meta.key(), error = %telemetry::chain(&error), "cannot nominate a node");
        }
        for victim in &preemption.victims {
            if let Err(error) = self.evict(pod, victim, &preemption.node).await
                && !error.is_not_found()
                && !error.is_conflict()
            {
                warn!(pod = %victim.metadata.key(), error = %telemetry::chain(&error), "cannot preempt");
            }
        }
    }

    async fn evict(&self, pod: &Pod, victim: &Pod, node: &str) -> Result<(), client::Error> {
        let meta = &victim.metadata;
        let api = self.config.client.api(&resources::PODS).within(&meta.namespace);
        let condition = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", pod.spec.scheduler_name),
            "observedGeneration": meta.generation, "lastTransitionTime": time(Timestamp::now()),
        }]}});
        api.patch_sub::<Value>(&meta.name, "status", Patch::Strategic(&condition)).await?;
        api.delete(&meta.name, &DeleteOptions::of_uid(&*meta.uid)).await?;
        self.record(
            meta,
            false,
            "Preempted",
            format!("Preempted by pod {} on node {node}", pod.metadata.uid),
        );
        Ok(())
    }

    fn in_background<F>(
        self: &Arc<Self>,
        name: &'static str,
        work: impl FnOnce(Arc<Self>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let scheduler = self.clone();
        self.tasks.spawn(name, |_| async move {
            // The semaphore is never closed, so a permit always comes.
            let _permit = scheduler.writes.clone().acquire_owned().await;
            work(scheduler.clone()).await;
        });
    }

    async fn bind(&self, waiting: &Waiting, node: &str, bindings: &[Binding]) {
        let pod = &waiting.pod;
        let meta = &pod.metadata;
        let volumes = self.bind_volumes(node, bindings).await;
        self.lock().cache.storage_mut().release(bindings);
        if let Err(reason) = volumes {
            self.record(meta, true, "FailedScheduling", reason);
            let mut state = self.lock();
            state.cache.forget(&meta.uid);
            state.queue.retry(&meta.uid, Timestamp::now());
            self.work.notify_one();
            return;
        }
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let api = self.config.client.api(&resources::PODS).within(&meta.namespace);
        match api.create_sub::<Value>(&meta.name, "binding", &binding).await {
            Ok(_) => {
                info!(pod = %meta.key(), node, "bound");
                self.lock().queue.remove(&meta.uid);
                let message = format!("Successfully assigned {} to {node}", meta.key());
                self.record(meta, false, "Scheduled", message);
            }
            Err(error) => {
                let mut state = self.lock();
                state.cache.forget(&meta.uid);
                if error.is_not_found() {
                    state.queue.remove(&meta.uid);
                    return;
                }
                warn!(pod = %meta.key(), node, error = %telemetry::chain(&error), "binding failed");
                self.config.metrics.attempted(Outcome::Error, Duration::ZERO);
                state.queue.retry(&meta.uid, Timestamp::now());
                self.work.notify_one();
            }
        }
    }

    /// Binds or orders the volumes and waits until all are bound.
    async fn bind_volumes(&self, node: &str, bindings: &[Binding]) -> Result<(), String> {
        let told = |error: client::Error| format!("binding volumes: {}", telemetry::chain(&error));
        for binding in bindings {
            match binding {
                Binding::Volume { claim, volume } => {
                    let claim = self.claims.get(claim).ok_or("binding volumes: the claim is gone")?;
                    let patch = json!({"spec": {"claimRef": {
                        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "uid": claim.metadata.uid,
                        "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                    }}});
                    let api = self.config.client.api(&resources::PERSISTENT_VOLUMES);
                    api.patch::<Value>(volume, Patch::Merge(&patch)).await.map_err(told)?;
                }
                Binding::Provision { claim } => {
                    let chosen =
                        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}});
                    let api = self.config.client.api(&resources::PERSISTENT_VOLUME_CLAIMS);
                    let api = api.within(&claim.namespace);
                    api.patch::<Value>(&claim.name, Patch::Merge(&chosen)).await.map_err(told)?;
                }
            }
        }
        let bound = async {
            for binding in bindings {
                let (Binding::Volume { claim, .. } | Binding::Provision { claim }) = binding;
                let mut changes = self.storage_changes.subscribe();
                let is_bound =
                    || self.claims.get(claim).is_none_or(|claim| !claim.spec.volume_name.is_empty());
                while !is_bound() && changes.changed().await.is_ok() {}
            }
        };
        let timed_out = || "binding volumes: context deadline exceeded".to_owned();
        tokio::time::timeout(VOLUME_DEADLINE, bound).await.map_err(|_| timed_out())
    }

    fn storage_changed(&self, change: impl FnOnce(&mut Storage)) {
        let mut state = self.lock();
        change(state.cache.storage_mut());
        state.queue.wake(WakeUp::StorageChanged, Timestamp::now());
        drop(state);
        self.storage_changes.send_modify(|count| *count += 1);
        self.work.notify_one();
    }

    fn record(&self, pod: &Metadata, warning: bool, reason: &str, message: String) {
        let about = Reference {
            api_version: resources::PODS.api_version(),
            kind: resources::PODS.kind.to_string(),
            key: pod.key(),
            uid: pod.uid.clone(),
            revision: pod.resource_version.clone(),
        };
        self.events.record(Event { about, warning, reason: reason.to_owned(), message });
    }

    /// Tells the user why the pod waits; once per reason.
    async fn report(&self, pod: &Pod, failure: &Failure) {
        let meta = &pod.metadata;
        let message = failure.to_string();
        self.record(meta, true, "FailedScheduling", message.clone());
        let known = pod.status.conditions.iter().any(|condition| {
            &*condition.r#type == "PodScheduled"
                && &*condition.status == "False"
                && *condition.message == *message
        });
        if known {
            return;
        }
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "observedGeneration": meta.generation,
            "lastProbeTime": null, "lastTransitionTime": time(Timestamp::now()),
        });
        let patch = json!({"status": {"conditions": [condition]}});
        let api = self.config.client.api(&resources::PODS).within(&meta.namespace);
        match api.patch_sub::<Value>(&meta.name, "status", Patch::Strategic(&patch)).await {
            Err(error) if !error.is_not_found() => {
                warn!(pod = %meta.key(), error = %telemetry::chain(&error), "cannot report why the pod waits");
            }
            _ => {}
        }
    }
}

/// Whether a node offers something else than before; heartbeats do not count.
fn offers_changed(old: &Node, new: &Node) -> bool {
    old.metadata.labels != new.metadata.labels
        || old.spec != new.spec
        || old.status.allocatable != new.status.allocatable
}
