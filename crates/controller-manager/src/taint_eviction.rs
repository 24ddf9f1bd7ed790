//! Deletes pods that do not tolerate a `NoExecute` taint of their node, at once or when their patience ends.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Change, Context, Controller, Key, Kind, PatchForm, Plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::{Node, Pod, Taint};

/// The effect that drives pods away.
pub const NO_EXECUTE: &str = "NoExecute";

/// The pods that wait for their end, and since when: what these controllers remember, because no object says it.
#[derive(Default)]
pub struct Waiting(Mutex<HashMap<Key, (Box<str>, Timestamp)>>);

impl Waiting {
    /// Since when a pod has waited.
    pub fn since(&self, key: &Key, uid: &str) -> Option<Timestamp> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(own, _)| &**own == uid).map(|(_, since)| *since)
    }

    /// Notes whether a pod waits now, and tells since when it has waited before.
    pub fn note(&self, key: &Key, uid: &str, waits: bool, now: Timestamp) -> Option<Timestamp> {
        let before = self.since(key, uid);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waits {
            known.insert(key.clone(), (uid.into(), before.unwrap_or(now)));
        } else {
            known.remove(key);
        }
        before
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// What one pod's stay depends on.
pub struct View {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The node's `NoExecute` taints.
    pub taints: Vec<Taint>,
    /// Since when it has waited for its end.
    pub waiting: Option<Timestamp>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one pod.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let pod = &*view.pod;
    if pod.metadata.is_terminating() {
        return plan;
    }
    let name = format!("Pod {}/{}", pod.metadata.namespace, pod.metadata.name);
    match patience(view) {
        Patience::Endless => {
            if view.waiting.is_some() {
                plan.event(pod, "TaintManagerEviction", format!("Cancelling deletion of {name}"));
            }
        }
        Patience::Until(at) if at > view.now => {
            plan.look_again(at);
        }
        Patience::Until(_) => {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": controller_runtime::time(view.now)});
            if !pod.is_finished() {
                let body = json!({"status": {"conditions": [condition]}});
                plan.patch_meta(&Pod::RESOURCE, &pod.metadata, Some("status"), PatchForm::Strategic, body)
                    .tolerant();
                plan.then();
            }
            plan.delete(pod);
            plan.event(pod, "TaintManagerEviction", format!("Marking for deletion {name}"));
        }
    }
    plan
}

/// How long a pod may stay.
pub enum Patience {
    /// Nothing drives it away.
    Endless,
    /// Until then.
    Until(Timestamp),
}

/// The shortest patience over all taints; a taint that is tolerated several times counts with the shortest time. It is
/// counted from when the pod was first seen beside the taints, as upstream does: most taints do not say since when they
/// are there, and a pod may have come later.
fn patience(view: &View) -> Patience {
    let mut until: Option<Timestamp> = None;
    for taint in &view.taints {
        let fitting: Vec<_> =
            view.pod.spec.tolerations.iter().filter(|toleration| toleration.tolerates(taint)).collect();
        if fitting.is_empty() {
            return Patience::Until(view.now);
        }
        let Some(seconds) = fitting.iter().filter_map(|toleration| toleration.toleration_seconds).min()
        else {
            continue;
        };
        let since = view.waiting.unwrap_or(view.now);
        let end = since.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX);
        until = Some(until.map_or(end, |earlier| earlier.min(end)));
    }
    until.map_or(Patience::Endless, Patience::Until)
}

fn no_execute(node: &Node) -> Vec<Taint> {
    node.spec.taints.iter().filter(|taint| &*taint.effect == NO_EXECUTE).cloned().collect()
}

/// A pod matters once it is on a node with such taints.
fn of_pod(caches: &controller_runtime::Caches, change: &Change<Pod>) -> Vec<Key> {
    let pod = change.latest();
    if pod.spec.node_name.is_empty() {
        return Vec::new();
    }
    let gone = change.new.is_none();
    let fresh = gone
        || change.old.as_ref().is_none_or(|old| {
            old.spec.node_name != pod.spec.node_name
                || old.spec.tolerations.len() != pod.spec.tolerations.len()
        });
    let tainted = || {
        caches
            .of::<Node>()
            .get(&Key::cluster(&pod.spec.node_name))
            .is_some_and(|node| !no_execute(&node).is_empty())
    };
    if fresh && tainted() { vec![change.key()] } else { Vec::new() }
}

/// A change of a node's taints concerns all of its pods.
fn of_node(caches: &controller_runtime::Caches, change: &Change<Node>) -> Vec<Key> {
    let Some(node) = &change.new else { return Vec::new() };
    let before = change.old.as_ref().map(|node| no_execute(node)).unwrap_or_default();
    if before == no_execute(node) {
        return Vec::new();
    }
    caches.of::<Pod>().indexed("node", &node.metadata.name).iter().map(|pod| pod.key()).collect()
}

/// The controller.
pub fn controller() -> Controller {
    let waiting = Waiting::default();
    let gather = move |context: &Context| {
        let Some(pod) = context.object::<Pod>() else {
            waiting.forget(&context.key);
            return None;
        };
        let node = context.caches.of::<Node>().get(&Key::cluster(&pod.spec.node_name))?;
        let before = waiting.since(&context.key, &pod.metadata.uid);
        let view = View { taints: no_execute(&node), waiting: before, now: context.now, pod };
        let waits = matches!(patience(&view), Patience::Until(at) if at > view.now);
        waiting.note(&context.key, &view.pod.metadata.uid, waits, view.now);
        Some(view)
    };
    Controller::new("taint-eviction-controller", gather, reconcile)
        .acting_as("node-controller")
        .events_from("taint-eviction-controller")
        .watching::<Pod>(of_pod)
        .watching::<Node>(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn plan_of_waiting(tolerations: Value, taints: Value, waiting: Option<&str>) -> Plan {
        let pod = Arc::new(pod("p", json!({"spec":{"nodeName":"a","tolerations":tolerations}})));
        let waiting = waiting.map(|text| text.parse().unwrap());
        reconcile(&View { pod, taints: object(taints), waiting, now: now() })
    }

    fn plan(tolerations: Value, taints: Value) -> Plan {
        plan_of_waiting(tolerations, taints, None)
    }

    #[test]
    fn patience_decides() {
        let taint = json!([{"key":"k","effect":"NoExecute","timeAdded":"2026-01-01T11:59:00Z"}]);
        let tolerate = |seconds: Value| json!([{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":seconds}]);
        assert_eq!(plan(json!([]), taint.clone()).deletes(), ["p"]);
        assert!(plan(json!([]), json!([])).is_empty());
        assert!(plan(tolerate(Value::Null), taint.clone()).is_empty());
        // Patience begins when the two are first seen together, whether or not the taint says since when it is there.
        let minute_ago = Some("2026-01-01T11:59:00Z");
        for taint in [taint.clone(), json!([{"key":"k","effect":"NoExecute"}])] {
            let fresh = plan(tolerate(json!(300)), taint.clone());
            assert_eq!(fresh.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:05:00Z"));
            let waiting = plan_of_waiting(tolerate(json!(300)), taint.clone(), minute_ago);
            assert_eq!(waiting.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:04:00Z"));
            assert_eq!(plan_of_waiting(tolerate(json!(30)), taint, minute_ago).deletes(), ["p"]);
        }
        let cancelled = plan_of_waiting(tolerate(json!(300)), json!([]), minute_ago);
        assert_eq!(cancelled.events()[0].message, "Cancelling deletion of Pod n/p");
        assert!(cancelled.deletes().is_empty());
        assert_eq!(plan(json!([{"operator":"Exists"}]), taint).deletes().len(), 0);
    }

    #[test]
    fn the_shortest_patience_counts() {
        let taints = json!([{"key":"a","effect":"NoExecute","timeAdded":"2026-01-01T12:00:00Z"},
                            {"key":"b","effect":"NoExecute","timeAdded":"2026-01-01T12:00:00Z"}]);
        let tolerations = json!([{"key":"a","operator":"Exists","tolerationSeconds":60},
                                 {"key":"b","operator":"Exists","tolerationSeconds":10}]);
        let at = plan(tolerations, taints).requeue_at.unwrap().to_string();
        assert_eq!(at, "2026-01-01T12:00:10Z");
    }
}
