//! Deletes pods that do not tolerate a `NoExecute` taint of their node, at once or when their patience ends.

use std::sync::Arc;

use controller_runtime::{Change, Context, Controller, Key, Kind, PatchForm, Plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::{Node, Pod, Taint};

/// What one pod's stay depends on.
pub struct View {
    /// The pod.
    pub pod: Arc<Pod>,
    /// The node's `NoExecute` taints.
    pub taints: Vec<Taint>,
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
    match patience(view) {
        Patience::Endless => {}
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
            let text = format!("Marking for deletion Pod {}/{}", pod.metadata.namespace, pod.metadata.name);
            plan.event(pod, "TaintManagerEviction", text);
        }
    }
    plan
}

enum Patience {
    Endless,
    Until(Timestamp),
}

/// The shortest patience over all taints; a taint that is tolerated several times counts with the shortest time.
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
        let since = taint.time_added.unwrap_or(view.now);
        let end = since.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX);
        until = Some(until.map_or(end, |earlier| earlier.min(end)));
    }
    until.map_or(Patience::Endless, Patience::Until)
}

fn no_execute(node: &Node) -> Vec<Taint> {
    node.spec.taints.iter().filter(|taint| &*taint.effect == "NoExecute").cloned().collect()
}

fn gather(context: &Context) -> Option<View> {
    let pod = context.object::<Pod>()?;
    let node = context.caches.of::<Node>().get(&Key::cluster(&pod.spec.node_name))?;
    let taints = no_execute(&node);
    Some(View { pod, taints, now: context.now })
}

/// A pod matters once it is on a node with such taints.
fn of_pod(caches: &controller_runtime::Caches, change: &Change<Pod>) -> Vec<Key> {
    let Some(pod) = change.new.as_ref().filter(|pod| !pod.spec.node_name.is_empty()) else {
        return Vec::new();
    };
    let fresh = change.old.as_ref().is_none_or(|old| {
        old.spec.node_name != pod.spec.node_name || old.spec.tolerations.len() != pod.spec.tolerations.len()
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

    fn plan(tolerations: Value, taints: Value) -> Plan {
        let pod = Arc::new(pod("p", json!({"spec":{"nodeName":"a","tolerations":tolerations}})));
        reconcile(&View { pod, taints: object(taints), now: now() })
    }

    #[test]
    fn patience_decides() {
        let taint = json!([{"key":"k","effect":"NoExecute","timeAdded":"2026-01-01T11:59:00Z"}]);
        let tolerate = |seconds: Value| json!([{"key":"k","operator":"Exists","effect":"NoExecute","tolerationSeconds":seconds}]);
        assert_eq!(plan(json!([]), taint.clone()).deletes(), ["p"]);
        assert!(plan(json!([]), json!([])).is_empty());
        assert!(plan(tolerate(Value::Null), taint.clone()).is_empty());
        let waiting = plan(tolerate(json!(300)), taint.clone());
        assert_eq!(waiting.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:04:00Z"));
        assert_eq!(plan(tolerate(json!(30)), taint.clone()).deletes(), ["p"]);
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
