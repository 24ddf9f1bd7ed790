//! Removes pods that nobody else will: too many finished ones, those of vanished or broken nodes, and those that were
//! deleted before they ever got a node.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use controller_runtime::{Context, Controller, Key, PatchForm, Plan};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::kinds::{Node, Pod, Taint};

/// A node that vanished may only be late in our view.
const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What is looked at: all pods, since the limit is one for all.
pub struct View {
    /// All pods.
    pub pods: Vec<Arc<Pod>>,
    /// All nodes.
    pub nodes: Vec<Arc<Node>>,
    /// Since when nodes that pods name are missing.
    pub missing: HashMap<Box<str>, Timestamp>,
    /// How many finished pods may stay.
    pub threshold: usize,
    /// The time.
    pub now: Timestamp,
}

/// Decides on all pods.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let nodes: HashSet<&str> = view.nodes.iter().map(|node| &*node.metadata.name).collect();
    let broken: HashSet<&str> = view
        .nodes
        .iter()
        .filter(|node| !node.is_ready() && node.spec.taints.iter().any(is_out_of_service))
        .map(|node| &*node.metadata.name)
        .collect();
    let mut finished: Vec<&Arc<Pod>> = Vec::new();
    for pod in &view.pods {
        let node = &*pod.spec.node_name;
        if node.is_empty() {
            if pod.metadata.is_terminating() && pod.spec.scheduling_gates.is_empty() {
                remove(pod, None, view.now, &mut plan);
            }
        } else if !nodes.contains(node) {
            let since = view.missing.get(node).copied().unwrap_or(view.now);
            let due = since.checked_add(QUARANTINE).unwrap_or(since);
            if due > view.now {
                plan.look_again(due);
            } else {
                remove(pod, Some(("DeletionByPodGC", "PodGC: node no longer exists")), view.now, &mut plan);
            }
        } else if broken.contains(node) && pod.metadata.is_terminating() {
            remove(pod, Some(("DeletionByPodGC", "PodGC: node is out of service")), view.now, &mut plan);
        }
        if pod.is_finished() && !pod.metadata.is_terminating() {
            finished.push(pod);
        }
    }
    if view.threshold > 0 && finished.len() > view.threshold {
        finished.sort_by_key(|pod| (pod.metadata.created(), pod.metadata.name.clone()));
        for pod in &finished[..finished.len() - view.threshold] {
            plan.delete(&***pod).grace(0);
        }
    }
    plan
}

fn is_out_of_service(taint: &Taint) -> bool {
    &*taint.key == OUT_OF_SERVICE
}

/// Marks a pod that did not finish as failed by disruption, then removes it.
fn remove(pod: &Pod, why: Option<(&str, &str)>, now: Timestamp, plan: &mut Plan) {
    if !pod.is_finished() {
        let mut status = json!({"phase": "Failed"});
        if let Some((reason, message)) = why {
            status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": reason,
                "message": message, "lastTransitionTime": controller_runtime::time(now)}]);
        }
        let resource = <Pod as controller_runtime::Kind>::RESOURCE;
        plan.patch_meta(
            &resource,
            &pod.metadata,
            Some("status"),
            PatchForm::Strategic,
            json!({"status": status}),
        )
        .tolerant();
    }
    plan.then().delete(pod).grace(0);
}

/// One key stands for all pods.
fn everything() -> Vec<Key> {
    vec![Key::cluster("pods")]
}

/// The controller; `threshold` finished pods may stay.
pub fn controller(threshold: usize) -> Controller {
    let seen_missing: Mutex<HashMap<Box<str>, Timestamp>> = Mutex::default();
    let gather = move |context: &Context| {
        let (pods, nodes) = (context.caches.of::<Pod>().list(), context.caches.of::<Node>().list());
        let present: HashSet<&str> = nodes.iter().map(|node| &*node.metadata.name).collect();
        let absent: HashSet<&str> = pods
            .iter()
            .map(|pod| &*pod.spec.node_name)
            .filter(|node| !node.is_empty() && !present.contains(node))
            .collect();
        let mut missing = seen_missing.lock().unwrap_or_else(PoisonError::into_inner);
        missing.retain(|node, _| absent.contains(&**node));
        for node in absent {
            missing.entry(node.into()).or_insert(context.now);
        }
        let missing = missing.clone();
        Some(View { pods, nodes, missing, threshold, now: context.now })
    };
    Controller::new("pod-garbage-collector-controller", gather, reconcile)
        .acting_as("pod-garbage-collector")
        .workers(1)
        .watching::<Pod>(move |caches, change| {
            let Some(pod) = &change.new else { return Vec::new() };
            let unbound = pod.spec.node_name.is_empty() && pod.metadata.is_terminating();
            let was_finished = change.old.as_ref().is_some_and(|old| old.is_finished());
            let lost = || {
                !pod.spec.node_name.is_empty()
                    && change.old.is_none()
                    && caches.of::<Node>().get(&Key::cluster(&pod.spec.node_name)).is_none()
            };
            let too_many = pod.is_finished() && !was_finished && threshold < caches.of::<Pod>().len();
            if unbound || too_many || lost() { everything() } else { Vec::new() }
        })
        .watching::<Node>(|_, change| {
            let taints = |node: &Arc<Node>| node.spec.taints.iter().any(is_out_of_service);
            let served = change.old.as_ref().is_some_and(|node| !taints(node));
            let broke = served && change.new.as_ref().is_some_and(taints);
            if change.new.is_none() || broke { everything() } else { Vec::new() }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn plan(pods: Vec<Pod>, nodes: Vec<Value>, threshold: usize) -> Plan {
        let nodes = nodes.into_iter().map(|node| Arc::new(object(node))).collect();
        let since: Timestamp = "2026-01-01T11:00:00Z".parse().unwrap();
        let missing = [("gone".into(), since), ("new".into(), now())].into_iter().collect();
        reconcile(&View {
            pods: pods.into_iter().map(Arc::new).collect(),
            nodes,
            missing,
            threshold,
            now: now(),
        })
    }

    #[test]
    fn pods_of_vanished_nodes_fail_and_go() {
        let lost = pod(
            "a",
            json!({"spec":{"nodeName":"gone"},"status":{"phase":"Running","startTime":"2026-01-01T11:00:00Z"}}),
        );
        let kept = pod("b", json!({"spec":{"nodeName":"here"},"status":{"phase":"Running"}}));
        let plan = plan(vec![lost, kept], vec![json!({"metadata":{"name":"here"}})], 100);
        assert_eq!(plan.deletes(), ["a"]);
        assert_eq!(plan.changes()[0].1["status"]["conditions"][0]["reason"], "DeletionByPodGC");
    }

    #[test]
    fn a_node_that_just_vanished_may_come_back() {
        let fresh =
            pod("a", json!({"spec":{"nodeName":"new"},"status":{"startTime":"2026-01-01T11:59:50Z"}}));
        let plan = plan(vec![fresh], vec![], 100);
        assert!(plan.deletes().is_empty());
        assert_eq!(plan.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:00:40Z"));
    }

    #[test]
    fn the_oldest_finished_pods_go_first() {
        let done = |name: &str, at: &str| {
            pod(
                name,
                json!({"metadata":{"creationTimestamp":at},"spec":{"nodeName":"here"},"status":{"phase":"Failed"}}),
            )
        };
        let pods = vec![
            done("c", "2026-01-01T03:00:00Z"),
            done("a", "2026-01-01T01:00:00Z"),
            done("b", "2026-01-01T02:00:00Z"),
        ];
        assert_eq!(plan(pods, vec![json!({"metadata":{"name":"here"}})], 1).deletes(), ["a", "b"]);
    }

    #[test]
    fn an_unbound_pod_that_was_deleted_goes_at_once() {
        let unbound = pod("a", json!({"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}));
        assert_eq!(plan(vec![unbound], vec![], 100).deletes(), ["a"]);
    }
}
