//! Watches over nodes: notices those that stopped reporting, and turns conditions into taints.
//!
//! A node reports by renewing its lease or by its own heartbeats. When it was last heard of is taken by our clock, at
//! the moment the report was seen, so that a node with a wrong clock is judged fairly.

mod zones;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, PatchForm, Plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

pub use self::zones::EvictionRates;
use self::zones::{Eviction, Health, Turns};
use crate::kinds::{Condition, Lease, Node, Pod, Taint, whole_second};

const LEASES: &str = "kube-node-lease";
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// How conditions show as taints: condition, its status, taint.
const SIGNS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// What the kubelet reports and falls silent with it.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// How long a node may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// Once it has reported.
    pub running: SignedDuration,
    /// Before its first report.
    pub startup: SignedDuration,
}

impl Default for Grace {
    fn default() -> Self {
        Self { running: SignedDuration::from_secs(50), startup: SignedDuration::from_secs(60) }
    }
}

/// What one node's state depends on.
pub struct View {
    /// The node.
    pub node: Arc<Node>,
    /// Whether it was not known before.
    pub is_new: bool,
    /// When it was last heard of.
    pub heard: Timestamp,
    /// Whether it may be emptied.
    eviction: Eviction,
    /// The node's pods.
    pub pods: Vec<Arc<Pod>>,
    /// How long it may be silent.
    pub grace: Grace,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one node.
pub fn reconcile(view: &View) -> Plan {
    let node = &*view.node;
    let mut plan = Plan::default();
    if view.is_new {
        let name = &node.metadata.name;
        plan.event(
            node,
            "RegisteredNode",
            format!("Node {name} event: Registered Node {name} in Controller"),
        );
        // Told before anything is written: others write to a new node too, and a conflict would drop the event.
        plan.look_again(view.now);
        return plan;
    }
    let ready = node.condition("Ready");
    let grace = if ready.is_some() { view.grace.running } else { view.grace.startup };
    let due = view.heard.checked_add(grace).unwrap_or(view.now);
    let silent = due < view.now;
    if silent && ready.is_none_or(|ready| &*ready.status != "Unknown") {
        let conditions = fallen_silent(node, view.now);
        plan.patch_meta(
            &Node::RESOURCE,
            &node.metadata,
            Some("status"),
            PatchForm::Strategic,
            json!({"status": {"conditions": conditions}}),
        );
        if ready.is_some_and(Condition::is_true) {
            not_ready(view, &mut plan);
        }
        return plan;
    }
    if !silent {
        plan.look_again(due.checked_add(SignedDuration::from_secs(1)).unwrap_or(due));
    }
    if let Eviction::At(turn) = view.eviction {
        plan.look_again(turn);
    }
    let taints = wanted_taints(view);
    if taints != node.spec.taints {
        // Strategic merging would only ever add taints, so the list is replaced, and only as it was seen.
        plan.update(node, json!({"spec": {"taints": taints}}));
    }
    if let Some(ready) = ready.filter(|ready| &*ready.status == "False") {
        // Who became ready on a node that was not so already is believed: the control plane of a new machine runs before
        // its network does.
        pods_not_ready(view, ready.last_transition_time, &mut plan);
    }
    plan
}

fn fallen_silent(node: &Node, now: Timestamp) -> Vec<Condition> {
    let unknown = |kind: &&str| match node.condition(kind) {
        Some(old) if &*old.status == "Unknown" => None,
        Some(old) => {
            let mut new = Condition::new(
                kind,
                "Unknown",
                "NodeStatusUnknown",
                "Kubelet stopped posting node status.",
                now,
            );
            new.last_heartbeat_time = old.last_heartbeat_time;
            Some(new)
        }
        None => {
            let text = "Kubelet never posted node status.";
            let mut new = Condition::new(kind, "Unknown", "NodeStatusNeverUpdated", text, now);
            new.last_heartbeat_time = Some(whole_second(node.metadata.created()));
            Some(new)
        }
    };
    // Merging takes the order of what is merged in: it is the node's own, and what it never told comes last.
    let told = |kind: &str| node.status.conditions.iter().position(|own| *own.kind == *kind);
    let mut kinds = REPORTED;
    kinds.sort_by_key(|kind| told(kind).unwrap_or(usize::MAX));
    kinds.iter().filter_map(unknown).collect()
}

fn not_ready(view: &View, plan: &mut Plan) {
    let name = &view.node.metadata.name;
    plan.event(&*view.node, "NodeNotReady", format!("Node {name} status is now: NodeNotReady"));
    pods_not_ready(view, None, plan);
}

/// Pods of a silent node must not get traffic, whatever their last report said; of one that tells of itself, those that
/// were ready before it was not.
fn pods_not_ready(view: &View, before: Option<Timestamp>, plan: &mut Plan) {
    let counts = |since: Timestamp| before.is_none_or(|before| since < before);
    for pod in view.pods.iter().filter(|pod| pod.ready_since().is_some_and(counts)) {
        let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": controller_runtime::time(view.now)});
        plan.patch_meta(
            &Pod::RESOURCE,
            &pod.metadata,
            Some("status"),
            PatchForm::Strategic,
            json!({"status": {"conditions": [condition]}}),
        )
        .tolerant();
        plan.warn(&**pod, "NodeNotReady", "Node is not ready");
    }
}

/// Whether a taint drives pods away because their node is silent.
fn is_emptying(taint: &Taint) -> bool {
    &*taint.effect == "NoExecute" && matches!(&*taint.key, NOT_READY | UNREACHABLE)
}

/// The zone of a node, with its region.
fn zone_of(node: &Node) -> String {
    let label = |name: &str| node.metadata.label(name).unwrap_or("");
    format!("{}/{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

/// The health of all zones.
fn health<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> HashMap<String, Health> {
    let mut zones: HashMap<String, Health> = HashMap::new();
    for node in nodes {
        let zone = zones.entry(zone_of(node)).or_default();
        *(if node.is_ready() { &mut zone.up } else { &mut zone.down }) += 1;
    }
    zones
}

/// Whether a node that is not ready may be emptied now.
fn eviction(
    node: &Node,
    all: impl FnOnce() -> Vec<Arc<Node>>,
    rates: &EvictionRates,
    turns: &mut Turns,
    now: Timestamp,
) -> Eviction {
    let name = &node.metadata.name;
    if node.is_ready() {
        turns.done(name);
        return Eviction::Never;
    }
    let zones = health(all().iter().map(|node| &**node));
    if zones.values().all(|zone| zone.up == 0) {
        turns.done(name);
        return Eviction::TakenBack;
    }
    if node.spec.taints.iter().any(is_emptying) {
        turns.done(name);
        return Eviction::Never;
    }
    let zone = zone_of(node);
    let rate = rates.rate(zones.get(&zone).copied().unwrap_or_default(), true);
    turns.ask(&zone, name, rate, now)
}

/// The node's taints with ours brought up to date; others' stay as they are, in their order.
fn wanted_taints(view: &View) -> Vec<Taint> {
    let node = &*view.node;
    let shows =
        |kind: &str, status: &str| node.condition(kind).is_some_and(|condition| *condition.status == *status);
    let mut ours: Vec<Taint> = SIGNS
        .iter()
        .filter(|(kind, status, _)| shows(kind, status))
        .map(|(_, _, taint)| Taint::new(taint, "NoSchedule"))
        .collect();
    if node.spec.unschedulable {
        ours.push(Taint::new(UNSCHEDULABLE, "NoSchedule"));
    }
    // One that is being emptied stays so when it goes from one kind of silence to the other.
    let begun = node.spec.taints.iter().any(is_emptying);
    let may = match view.eviction {
        Eviction::Now => true,
        Eviction::At(_) | Eviction::Never => begun,
        Eviction::TakenBack => false,
    };
    for (key, status) in [(NOT_READY, "False"), (UNREACHABLE, "Unknown")] {
        if may && shows("Ready", status) {
            ours.push(Taint::new(key, "NoExecute"));
        }
    }
    let is_managed = |taint: &Taint| match &*taint.effect {
        "NoSchedule" => &*taint.key == UNSCHEDULABLE || SIGNS.iter().any(|(_, _, key)| *taint.key == **key),
        "NoExecute" => is_emptying(taint),
        _ => false,
    };
    let mut taints: Vec<Taint> = node
        .spec
        .taints
        .iter()
        .filter(|taint| !is_managed(taint) || ours.iter().any(|own| own.is_like(taint)))
        .cloned()
        .collect();
    for own in ours {
        if !taints.iter().any(|taint| taint.is_like(&own)) {
            taints.push(Taint { time_added: Some(whole_second(view.now)), ..own });
        }
    }
    taints
}

/// The last report of a node that was seen, and when.
type Heard = HashMap<Box<str>, (Option<Timestamp>, Option<Timestamp>, Timestamp)>;

/// Whether a node may be emptied depends on how the others are.
fn of_readiness(caches: &Caches, change: &Change<Node>) -> Vec<Key> {
    let ready = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.is_ready());
    if ready(&change.old) == ready(&change.new) {
        return Vec::new();
    }
    let nodes = caches.of::<Node>().list();
    nodes.iter().filter(|node| !node.is_ready()).map(|node| node.key()).collect()
}

/// The controller.
pub fn controller(grace: Grace, rates: EvictionRates) -> Controller {
    let heard: Mutex<Heard> = Mutex::default();
    let turns: Mutex<Turns> = Mutex::default();
    let gather = move |context: &Context| {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(node) = context.object::<Node>() else {
            heard.remove(&context.key.name);
            return None;
        };
        let name = &node.metadata.name;
        let lease =
            context.caches.of::<Lease>().get(&Key::new(LEASES, name)).and_then(|lease| lease.spec.renew_time);
        let beat = node.condition("Ready").and_then(|ready| ready.last_heartbeat_time);
        let created = node.metadata.created();
        let is_new = !heard.contains_key(name);
        let report = heard.entry(name.clone()).or_insert_with(|| {
            // A node that never reported is as old as it is; any other is heard of now for the first time.
            let since = if lease.is_none() && beat.is_none() { created } else { context.now };
            (lease, beat, since)
        });
        if (report.0, report.1) != (lease, beat) {
            *report = (lease, beat, context.now);
        }
        let at = report.2;
        // Leases are renewed all the time, and all nodes matter only to one that is not ready.
        let all = || context.caches.of::<Node>().list();
        let mut turns = turns.lock().unwrap_or_else(PoisonError::into_inner);
        let eviction = eviction(&node, all, &rates, &mut turns, context.now);
        let pods = if node.is_ready() && at.checked_add(grace.running).is_ok_and(|due| due >= context.now) {
            Vec::new()
        } else {
            context.caches.of::<Pod>().indexed("node", name)
        };
        Some(View { node, is_new, heard: at, eviction, pods, grace, now: context.now })
    };
    Controller::new("node-lifecycle-controller", gather, reconcile)
        .acting_as("node-controller")
        .for_kind::<Node>()
        .watching::<Node>(of_readiness)
        .watching::<Lease>(|_, change| {
            let metadata = &change.latest().metadata;
            if &*metadata.namespace == LEASES { vec![Key::cluster(&metadata.name)] } else { Vec::new() }
        })
        .reading_kind::<Pod>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn view(node: Value, silent_seconds: i64) -> View {
        View {
            node: Arc::new(object(node)),
            is_new: false,
            heard: now().checked_sub(SignedDuration::from_secs(silent_seconds)).unwrap(),
            eviction: Eviction::Now,
            pods: Vec::new(),
            grace: Grace::default(),
            now: now(),
        }
    }

    fn node(ready: &str, taints: Value) -> Value {
        json!({"metadata":{"name":"a"},"spec":{"taints":taints},"status":{"conditions":[{"type":"Ready","status":ready}]}})
    }

    fn taints(plan: &Plan) -> Vec<String> {
        let change = plan.changes()[0].1["spec"]["taints"].as_array().unwrap().clone();
        change
            .iter()
            .map(|t| format!("{}:{}", t["key"].as_str().unwrap(), t["effect"].as_str().unwrap()))
            .collect()
    }

    #[test]
    fn a_silent_node_becomes_unknown_and_its_pods_unready() {
        let mut view = view(node("True", json!([])), 51);
        view.pods =
            vec![Arc::new(pod("p", json!({"status":{"conditions":[{"type":"Ready","status":"True"}]}})))];
        let plan = reconcile(&view);
        let conditions = &plan.changes()[0].1["status"]["conditions"];
        assert_eq!(
            (&conditions[0]["status"], &conditions[0]["reason"]),
            (&json!("Unknown"), &json!("NodeStatusUnknown"))
        );
        assert_eq!(conditions[1]["reason"], "NodeStatusNeverUpdated");
        assert_eq!(plan.changes()[1].0, "p");
        let reasons: Vec<&str> = plan.events().iter().map(|event| &*event.reason).collect();
        assert_eq!(reasons, ["NodeNotReady", "NodeNotReady"]);
    }

    #[test]
    fn what_a_silent_node_told_keeps_its_order() {
        let told = json!({"metadata":{"name":"a"},"status":{"conditions":[
            {"type":"DiskPressure","status":"False"},{"type":"Ready","status":"True"}]}});
        let first = reconcile(&View { is_new: true, ..view(told.clone(), 100) });
        assert_eq!((&*first.events()[0].reason, first.changes().len()), ("RegisteredNode", 0));
        let plan = reconcile(&view(told, 100));
        let kinds: Vec<&Value> = plan.changes()[0].1["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| &one["type"])
            .collect();
        assert_eq!(kinds, ["DiskPressure", "Ready", "MemoryPressure", "PIDPressure"]);
    }

    #[test]
    fn a_heard_node_is_looked_at_again_when_its_grace_ends() {
        let plan = reconcile(&view(node("True", json!([])), 20));
        assert!(plan.is_empty());
        assert_eq!(plan.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:00:31Z"));
    }

    #[test]
    fn only_pods_that_were_ready_before_their_node_was_not_are_doubted() {
        let at = |second: u32| format!("2026-01-01T11:59:{second:02}Z");
        let mut unready = node(
            "False",
            json!([{"key":NOT_READY,"effect":"NoSchedule"},{"key":NOT_READY,"effect":"NoExecute"}]),
        );
        unready["status"]["conditions"][0]["lastTransitionTime"] = json!(at(30));
        let mut view = view(unready, 0);
        let ready = |name: &str, since: u32| {
            let condition = json!({"type":"Ready","status":"True","lastTransitionTime":at(since)});
            Arc::new(pod(name, json!({"status":{"conditions":[condition]}})))
        };
        view.pods = vec![ready("earlier", 20), ready("later", 40)];
        let doubted: Vec<String> =
            reconcile(&view).changes().iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(doubted, ["earlier"]);
    }

    #[test]
    fn conditions_show_as_taints_and_others_taints_stay() {
        let foreign = json!({"key":"gpu","value":"yes","effect":"NoSchedule"});
        let plan = reconcile(&view(node("False", json!([foreign])), 0));
        assert_eq!(
            taints(&plan),
            [
                "gpu:NoSchedule",
                "node.kubernetes.io/not-ready:NoSchedule",
                "node.kubernetes.io/not-ready:NoExecute"
            ]
        );
        let stale =
            json!([{"key":NOT_READY,"effect":"NoSchedule"},{"key":NOT_READY,"effect":"NoExecute"},foreign]);
        assert_eq!(taints(&reconcile(&view(node("True", stale), 0))), ["gpu:NoSchedule"]);
    }

    #[test]
    fn a_cordoned_node_is_tainted_and_an_uncordoned_one_not() {
        let mut cordoned = node("True", json!([]));
        cordoned["spec"]["unschedulable"] = json!(true);
        assert_eq!(taints(&reconcile(&view(cordoned, 0))), ["node.kubernetes.io/unschedulable:NoSchedule"]);
        let tainted = json!([{"key":UNSCHEDULABLE,"effect":"NoSchedule"}]);
        assert!(taints(&reconcile(&view(node("True", tainted), 0))).is_empty());
    }

    #[test]
    fn a_node_waits_for_its_turn_to_be_emptied() {
        let turn = now().checked_add(SignedDuration::from_secs(10)).unwrap();
        let mut view = view(node("Unknown", json!([])), 100);
        view.eviction = Eviction::At(turn);
        let plan = reconcile(&view);
        assert_eq!(taints(&plan), ["node.kubernetes.io/unreachable:NoSchedule"]);
        assert_eq!(plan.requeue_at, Some(turn));
        let begun = json!([{"key":NOT_READY,"effect":"NoExecute"}]);
        let mut view = self::view(node("Unknown", begun), 100);
        view.eviction = Eviction::Never;
        assert_eq!(
            taints(&reconcile(&view)),
            ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"],
            "what was begun goes on"
        );
    }

    #[test]
    fn turns_are_asked_for_only_where_they_matter() {
        let make = |name: &str, ready: &str, taints: Value| -> Arc<Node> {
            let mut value = node(ready, taints);
            value["metadata"]["name"] = json!(name);
            Arc::new(object(value))
        };
        let nodes =
            [make("a", "Unknown", json!([])), make("b", "Unknown", json!([])), make("c", "True", json!([]))];
        let (rates, mut turns) = (EvictionRates::default(), Turns::default());
        let mut ask =
            |node: &Node, nodes: &[Arc<Node>]| eviction(node, || nodes.to_vec(), &rates, &mut turns, now());
        assert_eq!(ask(&nodes[2], &nodes), Eviction::Never);
        assert_eq!(ask(&nodes[0], &nodes), Eviction::Now);
        assert!(matches!(ask(&nodes[1], &nodes), Eviction::At(_)));
        assert_eq!(ask(&nodes[1], &nodes[..2]), Eviction::TakenBack);
    }

    #[test]
    fn nothing_is_evicted_when_no_node_is_ready() {
        let mut view = view(node("Unknown", json!([])), 100);
        view.eviction = Eviction::TakenBack;
        assert_eq!(taints(&reconcile(&view)), ["node.kubernetes.io/unreachable:NoSchedule"]);
    }
}
