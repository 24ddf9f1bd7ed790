//! Nodes with the pods on them, assumed ones included, and snapshots of all that for a cycle.
//!
//! A snapshot is a vector of shared `NodeInfo`s: taking one copies pointers, and a change to a node copies that
//! node alone, and only if a snapshot still holds it.

use std::collections::HashMap;
use std::sync::Arc;

use client::Key;

use crate::resources::Resources;
use crate::types::{Node, Pod};

/// A node and what is used of it.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    /// `None` while only pods of the node are known: it was deleted, or its pods were seen first.
    pub node: Option<Arc<Node>>,
    pub allocatable: Resources,
    pub requested: Resources,
    pub requested_for_scoring: Resources,
    pub pods: Vec<Arc<PlacedPod>>,
}

/// A pod on a node, with what the plugins ask of it again and again worked out once.
#[derive(Debug)]
pub struct PlacedPod {
    pub pod: Arc<Pod>,
    pub requests: Resources,
    pub requests_for_scoring: Resources,
}

impl PlacedPod {
    pub fn new(pod: Arc<Pod>) -> Self {
        let requests = Resources::of_pod(&pod);
        let requests_for_scoring = Resources::of_pod_for_scoring(&pod);
        Self { pod, requests, requests_for_scoring }
    }
}

impl NodeInfo {
    pub fn of(node: Node) -> Self {
        let allocatable = Resources::from_list(&node.status.allocatable);
        Self { node: Some(Arc::new(node)), allocatable, ..Self::default() }
    }

    pub fn name(&self) -> &str {
        self.node.as_ref().map_or("", |node| &node.metadata.name)
    }

    pub fn place(&mut self, pod: Arc<PlacedPod>) {
        self.requested.add(&pod.requests);
        self.requested_for_scoring.add(&pod.requests_for_scoring);
        self.pods.push(pod);
    }

    fn remove(&mut self, uid: &str) -> bool {
        let Some(index) = self.pods.iter().position(|placed| &*placed.pod.metadata.uid == uid) else {
            return false;
        };
        let gone = self.pods.swap_remove(index);
        self.requested.subtract(&gone.requests);
        self.requested_for_scoring.subtract(&gone.requests_for_scoring);
        true
    }
}

/// All schedulable nodes at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub nodes: Vec<Arc<NodeInfo>>,
}

/// The scheduler's picture of the cluster.
#[derive(Debug, Default)]
pub struct Cache {
    nodes: HashMap<Box<str>, Arc<NodeInfo>>,
    /// Where each pod was placed, by uid, and whether that is only assumed.
    placements: HashMap<Box<str>, Placement>,
    /// Rebuilt when the set of nodes changes; otherwise only entries are replaced.
    order: Vec<Box<str>>,
}

#[derive(Debug)]
struct Placement {
    node: Box<str>,
    assumed: bool,
    key: Key,
}

impl Cache {
    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone();
        let info = Arc::make_mut(self.nodes.entry(name).or_default());
        info.allocatable = Resources::from_list(&node.status.allocatable);
        let known = info.node.replace(node).is_some();
        if !known {
            self.reorder();
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        if let Some(info) = self.nodes.get_mut(name) {
            if info.pods.is_empty() {
                self.nodes.remove(name);
            } else {
                Arc::make_mut(info).node = None;
            }
        }
        self.reorder();
    }

    fn reorder(&mut self) {
        self.order =
            self.nodes.iter().filter(|(_, info)| info.node.is_some()).map(|(name, _)| name.clone()).collect();
        self.order.sort();
    }

    /// Counts a pod where the API says it is. This confirms an assumption, or corrects it.
    pub fn set_pod(&mut self, pod: Arc<Pod>) {
        self.remove_pod(&pod.metadata.uid);
        if !pod.is_finished() {
            let node = pod.spec.node_name.clone();
            self.place(&node, pod, false);
        }
    }

    /// Counts a pod on a node before the API knows.
    pub fn assume(&mut self, pod: Arc<Pod>, node: &str) {
        self.remove_pod(&pod.metadata.uid);
        self.place(node, pod, true);
    }

    /// Takes an assumption back, unless the API has confirmed it meanwhile.
    pub fn forget(&mut self, uid: &str) {
        if self.placements.get(uid).is_some_and(|placement| placement.assumed) {
            self.remove_pod(uid);
        }
    }

    fn place(&mut self, node: &str, pod: Arc<Pod>, assumed: bool) {
        let placement = Placement { node: node.into(), assumed, key: pod.metadata.key() };
        self.placements.insert(pod.metadata.uid.clone(), placement);
        Arc::make_mut(self.nodes.entry(node.into()).or_default()).place(Arc::new(PlacedPod::new(pod)));
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let Some(placement) = self.placements.remove(uid) else { return };
        let Some(info) = self.nodes.get_mut(&placement.node) else { return };
        let removed = Arc::make_mut(info).remove(uid);
        debug_assert!(removed, "pod {} was counted on its node", placement.key);
        if info.node.is_none() && info.pods.is_empty() {
            self.nodes.remove(&placement.node);
        }
    }

    pub fn is_placed(&self, uid: &str) -> bool {
        self.placements.contains_key(uid)
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot { nodes: self.order.iter().filter_map(|name| self.nodes.get(name).cloned()).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str) -> Arc<Node> {
        let value =
            json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "pods": "10"}}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn pod(uid: &str, node: &str, phase: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": uid, "uid": uid},
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn used(cache: &Cache) -> Vec<(String, i64)> {
        let nodes = cache.snapshot().nodes;
        nodes.iter().map(|info| (info.name().to_owned(), info.requested.milli_cpu)).collect()
    }

    #[test]
    fn an_assumed_pod_counts_until_forgotten_but_a_confirmed_one_stays() {
        let mut cache = Cache::default();
        cache.set_node(node("a"));
        cache.assume(pod("p", "", "Pending"), "a");
        assert_eq!(used(&cache), [("a".into(), 1000)]);
        cache.forget("p");
        assert_eq!(used(&cache), [("a".into(), 0)]);
        cache.assume(pod("p", "", "Pending"), "a");
        cache.set_pod(pod("p", "a", "Running"));
        cache.forget("p");
        assert_eq!(used(&cache), [("a".into(), 1000)]);
    }

    #[test]
    fn a_finished_pod_frees_its_node() {
        let mut cache = Cache::default();
        cache.set_node(node("a"));
        cache.set_pod(pod("p", "a", "Running"));
        cache.set_pod(pod("p", "a", "Succeeded"));
        assert_eq!(used(&cache), [("a".into(), 0)]);
    }

    #[test]
    fn pods_seen_before_their_node_are_counted_when_it_comes() {
        let mut cache = Cache::default();
        cache.set_pod(pod("p", "a", "Running"));
        assert!(cache.snapshot().nodes.is_empty());
        cache.set_node(node("a"));
        assert_eq!(used(&cache), [("a".into(), 1000)]);
        cache.remove_node("a");
        assert!(cache.snapshot().nodes.is_empty());
        cache.remove_pod("p");
        assert!(cache.nodes.is_empty(), "nothing is kept of a node that is gone with its pods");
    }

    #[test]
    fn a_snapshot_does_not_change_under_its_reader() {
        let mut cache = Cache::default();
        cache.set_node(node("a"));
        let before = cache.snapshot();
        cache.set_pod(pod("p", "a", "Running"));
        assert_eq!(before.nodes[0].requested.milli_cpu, 0);
    }
}
