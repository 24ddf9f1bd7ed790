//! All pods of this node: merges what the sources want and gives each pod its worker.
//!
//! Sources are the API server (pods bound to this node) and the directory of static pods; the mirror of a static pod is
//! not run, it only receives its status. What the runtime holds of pods that no source knows is ended and removed, but
//! not before the API server was asked: a server that cannot be reached disturbs nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{Informer, ListOptions, Projection, resources};
use cri::{ContainerEvent, PodSandboxFilter};
use futures::StreamExt;
use jiff::Timestamp;
use lifecycle::{Stop, Tasks};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::admission::{self, NodeView};
use crate::config::Taint;
use crate::eviction::Pressure;
use crate::host::SharedHost;
use crate::pod::{Metadata, Pod, PodSpec, PodStatus};
use crate::pod_worker::{Order, Report, Worker};
use crate::resize::{self, Allocation, Pending};
use crate::state::Verdict;
use crate::{qos, resources as amounts};

/// Every worker looks at the runtime again after this long, should an event have been lost.
const SAFETY_RELIST: Duration = Duration::from_secs(300);
const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// A pod as the informer keeps it.
pub struct ApiPod {
    metadata: client::Metadata,
    pod: Arc<Pod>,
}

impl<'de> Deserialize<'de> for ApiPod {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Holder {
            metadata: client::Metadata,
        }
        let raw = Box::<RawValue>::deserialize(input)?;
        let holder: Holder = serde_json::from_str(raw.get()).map_err(serde::de::Error::custom)?;
        let pod = Pod::from_raw(raw).map_err(serde::de::Error::custom)?;
        Ok(Self { metadata: holder.metadata, pod: Arc::new(pod) })
    }
}

impl Projection for ApiPod {
    fn metadata(&self) -> &client::Metadata {
        &self.metadata
    }
}

/// The Node object as admission sees it.
#[derive(Debug, Deserialize)]
pub struct NodeObject {
    metadata: client::Metadata,
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<NodeTaint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeTaint {
    key: String,
    value: String,
    effect: String,
}

impl Projection for NodeObject {
    fn metadata(&self) -> &client::Metadata {
        &self.metadata
    }
}

struct Entry {
    orders: watch::Sender<Order>,
    reports: watch::Receiver<Report>,
    changed: Arc<Notify>,
}

/// What a pod was given, and what it asks for.
struct Given {
    allocation: Allocation,
    asked: Arc<Pod>,
    pending: Option<Pending>,
    /// Since when, and of which generation.
    pending_since: Option<(Timestamp, i64)>,
}

#[derive(Default)]
struct State {
    /// By uid.
    workers: HashMap<String, Entry>,
    /// Uids of mirrors by namespace/name.
    mirrors: HashMap<String, Arc<Pod>>,
    /// Pods that are judged again by the Node object as the API server has it now, by uid.
    judged_again: HashMap<String, (Arc<Pod>, bool)>,
    /// What each pod was given, by uid.
    given: HashMap<String, Given>,
    /// Whether all sources have told what they have: only then is it known what room there is.
    sources_known: bool,
    /// New versions of static pods whose old version has not ended, by namespace/name.
    waiting: HashMap<String, Arc<Pod>>,
}

/// The node's pods.
pub struct Pods {
    host: SharedHost,
    tasks: Tasks,
    state: Mutex<State>,
    node: watch::Receiver<NodeView>,
    /// The Node object, where there is an API server: its labels and taints are others' to change.
    object: Option<Informer<NodeObject>>,
    /// What the node is short of.
    pressures: watch::Receiver<Vec<Pressure>>,
    /// Told when static pods or their mirrors change.
    pub mirrors_changed: Notify,
}

impl Pods {
    pub fn new(
        host: SharedHost,
        tasks: Tasks,
        node: watch::Receiver<NodeView>,
        pressures: watch::Receiver<Vec<Pressure>>,
    ) -> Arc<Self> {
        let which = ListOptions::fields(format!("metadata.name={}", host.config.node_name));
        let object = (!host.config.standalone)
            .then(|| Informer::start(&host.config.client, &resources::NODES, "", which, &tasks));
        Arc::new(Self {
            host,
            tasks,
            state: Mutex::default(),
            node,
            object,
            pressures,
            mirrors_changed: Notify::new(),
        })
    }

    /// The node as it is now, with what others wrote into its object.
    fn node_view(&self, object: Option<&NodeObject>) -> NodeView {
        let mut view = self.node.borrow().clone();
        let known = self
            .object
            .as_ref()
            .and_then(|object| object.get(&client::Key::new("", &self.host.config.node_name)));
        if let Some(object) = object.or(known.as_deref()) {
            let text = |(key, value): (&str, &str)| (key.to_string(), value.to_string());
            view.labels = object.metadata.labels.iter().map(text).collect();
            let taint = |one: &NodeTaint| Taint {
                key: one.key.clone(),
                value: one.value.clone(),
                effect: one.effect.clone(),
            };
            view.taints = object.spec.taints.iter().map(taint).collect();
        }
        view.pressures.clone_from(&self.pressures.borrow());
        view.has_selinux = std::path::Path::new("/sys/fs/selinux/enforce").exists();
        view.has_apparmor = std::fs::read("/sys/module/apparmor/parameters/enabled")
            .is_ok_and(|text| text.first() == Some(&b'Y'));
        view
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the API server's pods of this node.
    pub fn follow_api(self: &Arc<Self>) -> Informer<ApiPod> {
        let which = ListOptions::fields(format!("spec.nodeName={}", self.host.config.node_name));
        let informer =
            Informer::<ApiPod>::start(&self.host.config.client, &resources::PODS, "", which, &self.tasks);
        let pods = self.clone();
        informer.on_change(move |change| {
            let (pod, removed) = match (&change.new, &change.old) {
                (Some(new), old) => {
                    // A pod deleted and made again under its name between two looks.
                    if let Some(old) = old.as_ref().filter(|old| old.pod.metadata.uid != new.pod.metadata.uid)
                    {
                        pods.take(old.pod.clone(), true);
                    }
                    (new, false)
                }
                (None, Some(old)) => (old, true),
                (None, None) => return,
            };
            pods.take(pod.pod.clone(), removed);
        });
        informer
    }

    /// Takes a pod of the API server, new or changed or gone.
    fn take(self: &Arc<Self>, pod: Arc<Pod>, removed: bool) {
        if pod.is_mirror() {
            let mut state = self.lock();
            let key = pod.key();
            if removed {
                state.mirrors.remove(&key);
            } else {
                state.mirrors.insert(key.clone(), pod.clone());
            }
            for entry in state.workers.values() {
                let is_static = |order: &Order| order.pod.is_static() && order.pod.key() == key;
                entry.orders.send_if_modified(|order| {
                    let mirror = (!removed).then(|| pod.metadata.uid.clone());
                    let changed = is_static(order) && order.mirror != mirror;
                    if changed {
                        order.mirror = mirror;
                    }
                    changed
                });
            }
            drop(state);
            self.mirrors_changed.notify_one();
            return;
        }
        self.order(pod, removed);
    }

    /// Gives a pod's worker its new order, starting the worker if need be.
    pub fn order(self: &Arc<Self>, pod: Arc<Pod>, removed: bool) {
        let mut state = self.lock();
        let uid = pod.metadata.uid.clone();
        if state.workers.contains_key(&uid) {
            self.renew_order(&mut state, &uid, pod, removed);
            return self.retry_resizes(&mut state);
        }
        if let Some(pending) = state.judged_again.get_mut(&uid) {
            *pending = (pod, pending.1 || removed);
            return;
        }
        if pod.is_static() && self.waits_for_its_old_version(&mut state, &pod, removed) {
            return;
        }
        let judged = removed || pod.status.phase != "Pending" && !pod.status.phase.is_empty();
        if !judged && let Err(verdict) = self.judge(&mut state, &pod, None) {
            if verdict.reason == "NodeAffinity" {
                // The scheduler may have seen a label that has not reached us.
                state.judged_again.insert(uid.clone(), (pod, false));
                drop(state);
                return self.judge_again(uid);
            }
            return self.begin(&mut state, pod, removed, Some(verdict));
        }
        self.begin(&mut state, pod, removed, None);
    }

    /// Gives a worker the pod as it may have it: with the resources that there is room for.
    fn renew_order(&self, state: &mut State, uid: &str, asked: Arc<Pod>, removed: bool) {
        let (pod, pending, resized) = self.allocate(state, uid, asked);
        if let Some(entry) = state.workers.get(uid) {
            entry.orders.send_modify(|order| {
                (order.pod, order.pending, order.resized) = (pod, pending, resized);
                order.removed |= removed;
            });
        }
    }

    /// What the pod gets of what it asks for now: all, if there is room, or what it had.
    fn allocate(&self, state: &mut State, uid: &str, asked: Arc<Pod>) -> (Arc<Pod>, Option<Pending>, bool) {
        let Some(given) = state.given.get_mut(uid) else { return (asked, None, false) };
        given.asked = asked.clone();
        if given.allocation.is_of(&asked) {
            (given.pending, given.pending_since) = (None, None);
            return (asked, None, given.allocation.resized);
        }
        let ending = asked.metadata.deletion_timestamp.is_some()
            || matches!(asked.status.phase.as_str(), "Succeeded" | "Failed");
        if ending || !state.sources_known {
            let pod = Arc::new(given.allocation.apply(&asked));
            return (pod, given.pending.clone(), given.allocation.resized);
        }
        let others: Vec<Arc<Pod>> = state
            .workers
            .iter()
            .filter(|(other, _)| *other != uid)
            .filter_map(|(_, entry)| active_pod(entry))
            .collect();
        let verdict = admission::resize(&asked, &others, &self.node_view(None));
        // Found above.
        let Some(given) = state.given.get_mut(uid) else { return (asked, None, false) };
        match verdict {
            Ok(()) => {
                given.allocation = Allocation { resized: true, ..Allocation::of(&asked) };
                (given.pending, given.pending_since) = (None, None);
                if let Err(error) = given.allocation.write(&self.host.volumes.pod_dir(uid)) {
                    warn!(pod = %asked.key(), %error, "cannot write down what the pod was given");
                }
                let message = format!("Pod resize started: {}", resize::summary(&asked, ""));
                self.host.events.pod(&asked, false, "ResizeStarted", message);
                (asked, None, true)
            }
            Err(pending) => {
                let generation = asked.metadata.generation;
                let same_reason = given.pending.as_ref().is_some_and(|old| old.reason == pending.reason);
                if !same_reason || given.pending_since.is_none_or(|(_, of)| of != generation) {
                    let reason = format!("Resize{}", pending.reason);
                    let text = resize::summary(&asked, &pending.message);
                    let message = format!("Pod resize {}: {text}", pending.reason);
                    self.host.events.pod(&asked, true, &reason, message);
                    given.pending_since = Some((Timestamp::now(), generation));
                }
                given.pending = Some(pending.clone());
                (Arc::new(given.allocation.apply(&asked)), Some(pending), given.allocation.resized)
            }
        }
    }

    /// Looks again at the resizes that wait: those that ask for no more first, then the important, then the old.
    fn retry_resizes(&self, state: &mut State) {
        let mut waiting: Vec<(bool, i32, u8, Option<Timestamp>, String)> = state
            .given
            .iter()
            .filter(|(_, given)| !given.allocation.is_of(&given.asked))
            .map(|(uid, given)| {
                let now = given.allocation.apply(&given.asked);
                let more = ["cpu", "memory"]
                    .into_iter()
                    .any(|name| amounts::requested(&given.asked, name) > amounts::requested(&now, name));
                let class = u8::from(qos::class(&given.asked) != qos::Class::Guaranteed);
                let priority = given.asked.spec.priority.unwrap_or(0);
                (more, -priority, class, given.pending_since.map(|(since, _)| since), uid.clone())
            })
            .collect();
        waiting.sort();
        for (.., uid) in waiting {
            if let Some(asked) = state.given.get(&uid).map(|given| given.asked.clone()) {
                self.renew_order(state, &uid, asked, false);
            }
        }
    }

    /// All sources have told what they have.
    pub fn sources_are_known(&self) {
        let mut state = self.lock();
        state.sources_known = true;
        self.retry_resizes(&mut state);
    }

    /// Whether an earlier version of this static pod is still ending. The new one is begun after it: it may want the same
    /// ports and files.
    fn waits_for_its_old_version(&self, state: &mut State, pod: &Arc<Pod>, removed: bool) -> bool {
        let key = pod.key();
        if removed {
            if state.waiting.get(&key).is_some_and(|other| other.metadata.uid == pod.metadata.uid) {
                state.waiting.remove(&key);
                return true;
            }
            return false;
        }
        let old = state.workers.values().any(|entry| {
            let order = entry.orders.borrow();
            order.pod.is_static() && order.pod.key() == key
        });
        if old {
            state.waiting.insert(key, pod.clone());
        }
        old
    }

    /// Whether the pod may run; a critical one may end others first.
    fn judge(&self, state: &mut State, pod: &Arc<Pod>, object: Option<&NodeObject>) -> Result<(), Verdict> {
        let others: Vec<Arc<Pod>> = state.workers.values().filter_map(active_pod).collect();
        let node = self.node_view(object);
        let refused = match admission::admit(pod, &others, &node) {
            Err(verdict) if verdict.reason.starts_with("OutOf") && admission::is_critical(pod) => verdict,
            other => return other,
        };
        for victim in admission::victims(pod, &others, &node).ok_or(refused)? {
            let Some(entry) = state.workers.get(&victim.metadata.uid) else { continue };
            let message = "Preempted in order to admit critical pod";
            info!(pod = %victim.key(), critical = %pod.key(), "pod is preempted");
            self.host.events.pod(&victim, true, "Preempting", message);
            let verdict = Verdict {
                reason: "Preempting".into(),
                message: message.into(),
                disruption: true,
                ..Verdict::default()
            };
            entry.orders.send_modify(|order| order.verdict = Some(verdict));
        }
        Ok(())
    }

    /// Asks the API server for the Node object before a pod is refused for the node's labels.
    fn judge_again(self: &Arc<Self>, uid: String) {
        let pods = self.clone();
        self.tasks.spawn(format!("admission/{uid}"), |stop| async move {
            let api = pods.host.config.client.api(&resources::NODES);
            let object = stop.or(api.get::<NodeObject>(&pods.host.config.node_name)).await;
            let mut state = pods.lock();
            let Some((pod, removed)) = state.judged_again.remove(&uid) else { return };
            let verdict = match (removed, object) {
                (true, _) => None,
                (false, Some(Ok(object))) => pods.judge(&mut state, &pod, Some(&object)).err(),
                (false, _) => pods.judge(&mut state, &pod, None).err(),
            };
            pods.begin(&mut state, pod, removed, verdict);
        });
    }

    fn begin(self: &Arc<Self>, state: &mut State, pod: Arc<Pod>, removed: bool, verdict: Option<Verdict>) {
        let uid = pod.metadata.uid.clone();
        if removed && !self.host.volumes.pod_dir(&uid).exists() {
            // It ended and was cleaned up before; nothing of it is here.
            return;
        }
        if let Some(verdict) = &verdict {
            info!(pod = %pod.key(), reason = verdict.reason, "pod is not admitted");
            self.host.events.pod(&pod, true, &verdict.reason, verdict.message.clone());
        }
        let mirror = state.mirrors.get(&pod.key()).map(|mirror| mirror.metadata.uid.clone());
        if !removed && verdict.is_none() {
            let pod_dir = self.host.volumes.pod_dir(&uid);
            let allocation = Allocation::read(&pod_dir).unwrap_or_else(|| {
                let first = Allocation::of(&pod);
                if let Err(error) = first.write(&pod_dir) {
                    warn!(pod = %pod.key(), %error, "cannot write down what the pod was given");
                }
                first
            });
            let given = Given { allocation, asked: pod.clone(), pending: None, pending_since: None };
            state.given.insert(uid.clone(), given);
        }
        let (pod, pending, resized) = self.allocate(state, &uid, pod);
        let order = Order { pod, removed, mirror, verdict, pending, resized };
        self.start_worker(state, uid, order);
    }

    fn start_worker(self: &Arc<Self>, state: &mut State, uid: String, order: Order) {
        let key = order.pod.key();
        let name = format!("pod/{key}");
        let changed = Arc::new(Notify::new());
        let (orders, receiver) = watch::channel(order);
        let (worker, reports) = Worker::new(self.host.clone(), receiver, changed.clone());
        state.workers.insert(uid.clone(), Entry { orders, reports, changed });
        let pods = self.clone();
        self.tasks.spawn(name, |stop| async move {
            worker.run(stop.clone()).await;
            if !stop.is_requested() {
                let next = {
                    let mut state = pods.lock();
                    state.workers.remove(&uid);
                    state.given.remove(&uid);
                    pods.retry_resizes(&mut state);
                    state.waiting.remove(&key)
                };
                if let Some(next) = next {
                    pods.order(next, false);
                }
                pods.mirrors_changed.notify_one();
            }
        });
    }

    /// Ends what the runtime or the disk holds of pods that no source knows. Call once the sources are known.
    pub async fn remove_orphans(self: &Arc<Self>) {
        let sandboxes = match self.host.config.runtime.list_pod_sandboxes(&PodSandboxFilter::default()).await
        {
            Ok(sandboxes) => sandboxes,
            Err(error) => return warn!(error = %telemetry::chain(&error), "cannot list sandboxes"),
        };
        let mut state = self.lock();
        for sandbox in &sandboxes {
            let of = &sandbox.metadata;
            if of.uid.is_empty() || state.workers.contains_key(&of.uid) {
                continue;
            }
            info!(
                pod = format!("{}/{}", of.namespace, of.name),
                sandbox = sandbox.id,
                "pod is gone, ending what runs of it"
            );
            let metadata = Metadata {
                name: of.name.clone(),
                namespace: of.namespace.clone(),
                uid: of.uid.clone(),
                ..Metadata::default()
            };
            let pod = Pod { metadata, spec: PodSpec::default(), status: PodStatus::default(), raw: None };
            let order = Order {
                pod: Arc::new(pod),
                removed: true,
                mirror: None,
                verdict: None,
                pending: None,
                resized: false,
            };
            self.start_worker(&mut state, of.uid.clone(), order);
        }
        for uid in self.host.volumes.pods_on_disk() {
            if !state.workers.contains_key(&uid)
                && let Err(error) = self.host.volumes.tear_down(&uid)
            {
                warn!(uid, error = %telemetry::chain(&error), "cannot remove what a pod left");
            }
        }
    }

    /// Wakes workers on events of the runtime, and all of them now and then.
    pub async fn follow_runtime(self: Arc<Self>, stop: Stop) {
        while !stop.is_requested() {
            match self.host.config.runtime.events().await {
                Ok(mut events) => {
                    // Whatever happened before the subscription is seen by looking once.
                    self.wake_all();
                    loop {
                        match stop.or(tokio::time::timeout(SAFETY_RELIST, events.next())).await {
                            None => return,
                            Some(Ok(Some(event))) => self.wake(&event),
                            Some(Ok(None)) => break,
                            Some(Err(_)) => self.wake_all(),
                        }
                    }
                    debug!("the runtime's events ended, subscribing again");
                }
                Err(error) => {
                    warn!(error = %telemetry::chain(&error), "cannot subscribe to the runtime's events")
                }
            }
            stop.or(tokio::time::sleep(RESUBSCRIBE)).await;
        }
    }

    fn wake(&self, event: &ContainerEvent) {
        let of_sandbox = event.pod_sandbox_status.as_ref().map(|sandbox| sandbox.metadata.uid.as_str());
        let of_container = || {
            event
                .containers_statuses
                .first()
                .and_then(|one| one.labels.get(crate::labels::POD_UID))
                .map(String::as_str)
        };
        let state = self.lock();
        match of_sandbox.or_else(of_container) {
            Some(uid) => {
                if let Some(entry) = state.workers.get(uid) {
                    entry.changed.notify_one();
                }
            }
            None => {
                let id = &event.container_id;
                for entry in state.workers.values() {
                    let report = entry.reports.borrow();
                    if report.sandbox.as_ref() == Some(id)
                        || report.containers.iter().any(|(_, known, _)| known == id)
                    {
                        entry.changed.notify_one();
                    }
                }
            }
        }
    }

    fn wake_all(&self) {
        for entry in self.lock().workers.values() {
            entry.changed.notify_one();
        }
    }

    /// The pods that run or shall run here.
    pub fn active(&self) -> Vec<Arc<Pod>> {
        self.lock().workers.values().filter_map(active_pod).collect()
    }

    /// Ends a pod by a decision of the node. False if it is ending already.
    pub fn end(&self, uid: &str, verdict: Verdict) -> bool {
        let state = self.lock();
        let Some(entry) = state.workers.get(uid).filter(|entry| active_pod(entry).is_some()) else {
            return false;
        };
        entry.orders.send_modify(|order| order.verdict = Some(verdict));
        true
    }

    /// Whether nothing of a pod runs any more.
    pub fn has_ended(&self, uid: &str) -> bool {
        self.lock().workers.get(uid).is_none_or(|entry| entry.reports.borrow().finished)
    }

    /// What every worker last reported.
    pub fn reports(&self) -> Vec<Report> {
        self.lock().workers.values().map(|entry| entry.reports.borrow().clone()).collect()
    }

    /// The reports of the pod of this name; of several (one ending, one new) the one that is not ending.
    pub fn find(&self, namespace: &str, name: &str, uid: Option<&str>) -> Option<watch::Receiver<Report>> {
        let state = self.lock();
        let mut found: Vec<watch::Receiver<Report>> = state
            .workers
            .values()
            .filter_map(|entry| {
                let order = entry.orders.borrow();
                let metadata = &order.pod.metadata;
                let mirrored =
                    uid.is_none_or(|uid| metadata.uid == uid || order.mirror.as_deref() == Some(uid));
                (metadata.namespace == namespace && metadata.name == name && mirrored)
                    .then(|| entry.reports.clone())
            })
            .collect();
        found.sort_by_key(|report| report.borrow().finished);
        found.into_iter().next()
    }

    /// The static pods that run, and the mirrors that the API server has.
    pub fn static_pods(&self) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
        let state = self.lock();
        let running = state.workers.values().filter_map(|entry| {
            let order = entry.orders.borrow();
            (order.pod.is_static() && !order.removed).then(|| order.pod.clone())
        });
        (running.collect(), state.mirrors.values().cloned().collect())
    }
}

fn active_pod(entry: &Entry) -> Option<Arc<Pod>> {
    let order = entry.orders.borrow();
    let ended =
        entry.reports.borrow().finished || matches!(order.pod.status.phase.as_str(), "Succeeded" | "Failed");
    (!ended && order.verdict.is_none()).then(|| order.pod.clone())
}
