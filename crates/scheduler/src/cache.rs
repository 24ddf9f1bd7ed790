//! Nodes with the pods on them, assumed ones included.
//!
//! A cycle reads the cache in place, under the scheduler's lock: there is nothing to copy, and nothing changes
//! under it. Nodes lie densely in a vector so that a cycle is a walk over memory.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use client::{Labels, Shared, Word};

use crate::devices::Devices;
use crate::preemption::Budget;
use crate::resources::Resources;
use crate::storage::Storage;
use crate::terms::{Count, Demand, Namespaces, Term, Terms};
use crate::topology::Topology;
use crate::types::{Node, Pod, PodAffinityTerm, Port, PreferredPods};
use crate::workloads::Workloads;

/// A node and what is used of it.
#[derive(Debug)]
pub struct NodeInfo {
    pub node: Arc<Node>,
    /// Its place among [`Cache::nodes`].
    pub at: usize,
    pub allocatable: Resources,
    pub requested: Resources,
    pub requested_for_scoring: Resources,
    pub pods: Vec<Arc<PlacedPod>>,
    /// How many of its pods take host ports.
    pub with_ports: usize,
    /// Pods that are only imagined to be here (+1) or gone (−1) while preemption looks for room or nominated pods
    /// are honoured; counts over domains know nothing of that.
    pub imagined: Vec<(Arc<PlacedPod>, i64)>,
}

impl Clone for NodeInfo {
    fn clone(&self) -> Self {
        Self {
            node: self.node.clone(),
            at: self.at,
            allocatable: self.allocatable.clone(),
            requested: self.requested.clone(),
            requested_for_scoring: self.requested_for_scoring.clone(),
            pods: self.pods.clone(),
            with_ports: self.with_ports,
            imagined: self.imagined.clone(),
        }
    }

    /// Preemption looks at hundreds of nodes in a row; the vectors are used again.
    fn clone_from(&mut self, other: &Self) {
        self.node.clone_from(&other.node);
        self.at = other.at;
        self.allocatable.clone_from(&other.allocatable);
        self.requested.clone_from(&other.requested);
        self.requested_for_scoring.clone_from(&other.requested_for_scoring);
        self.pods.clone_from(&other.pods);
        self.with_ports = other.with_ports;
        self.imagined.clone_from(&other.imagined);
    }
}

/// A pod with what the plugins ask of it again and again worked out once.
#[derive(Debug)]
pub struct PlacedPod {
    pub pod: Arc<Pod>,
    asks: Shared<Asks>,
}

/// What was worked out for a pod. Nearly always its siblings have the same.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Asks {
    pub requests: Resources,
    pub requests_for_scoring: Resources,
    pub host_ports: Vec<Port>,
    /// What it demands of other pods, once it is placed.
    pub demands: Vec<(Term, Demand)>,
}

impl PlacedPod {
    pub fn new(pod: Arc<Pod>) -> Self {
        let asks = Asks {
            requests: Resources::of_pod(&pod),
            requests_for_scoring: Resources::of_pod_for_scoring(&pod),
            host_ports: crate::plugins::host_ports(&pod),
            demands: demands(&pod),
        };
        Self { pod, asks: Shared::new(asks) }
    }

    pub fn uid(&self) -> &str {
        &self.pod.metadata.uid
    }
}

impl Deref for PlacedPod {
    type Target = Asks;

    fn deref(&self) -> &Asks {
        &self.asks
    }
}

fn demands(pod: &Pod) -> Vec<(Term, Demand)> {
    let (near, away) = (&pod.spec.affinity.pod_affinity, &pod.spec.affinity.pod_anti_affinity);
    let required = |terms: &[PodAffinityTerm], demand| {
        terms.iter().map(|term| (Term::of_affinity(term, pod), demand)).collect::<Vec<_>>()
    };
    let wishes = |terms: &[PreferredPods], sign: i64| {
        let wish = |wish: &PreferredPods| {
            (Term::of_affinity(&wish.pod_affinity_term, pod), Demand::Wish(sign * wish.weight))
        };
        terms.iter().map(wish).collect::<Vec<_>>()
    };
    let mut all = required(&away.required, Demand::KeepOut);
    all.extend(required(&near.required, Demand::Needs));
    all.extend(wishes(&near.preferred, 1));
    all.extend(wishes(&away.preferred, -1));
    all
}

impl NodeInfo {
    fn of(node: Arc<Node>, at: usize) -> Self {
        let allocatable = Resources::from_list(&node.status.allocatable);
        Self {
            node,
            at,
            allocatable,
            requested: Resources::default(),
            requested_for_scoring: Resources::default(),
            pods: Vec::new(),
            with_ports: 0,
            imagined: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.node.metadata.name
    }

    pub fn labels(&self) -> &Labels {
        &self.node.metadata.labels
    }

    fn place(&mut self, pod: Arc<PlacedPod>) {
        self.requested.add(&pod.requests);
        self.requested_for_scoring.add(&pod.requests_for_scoring);
        self.with_ports += usize::from(!pod.host_ports.is_empty());
        self.pods.push(pod);
    }

    fn remove(&mut self, uid: &str) -> Option<Arc<PlacedPod>> {
        // Who goes is often who came last: preemption tries pods one by one.
        let index = self.pods.iter().rposition(|placed| placed.uid() == uid)?;
        let gone = self.pods.swap_remove(index);
        self.requested.subtract(&gone.requests);
        self.requested_for_scoring.subtract(&gone.requests_for_scoring);
        self.with_ports -= usize::from(!gone.host_ports.is_empty());
        Some(gone)
    }

    /// Looks at the node as if a pod were on it.
    pub fn imagine(&mut self, pod: &Arc<PlacedPod>) {
        self.place(pod.clone());
        self.imagined.push((pod.clone(), 1));
    }

    /// Looks at the node as if a pod of it were gone.
    pub fn imagine_away(&mut self, uid: &str) {
        if let Some(gone) = self.remove(uid) {
            self.imagined.push((gone, -1));
        }
    }

    /// The opposite of [`NodeInfo::imagine_away`].
    pub fn take_back(&mut self, pod: &Arc<PlacedPod>) {
        self.imagined.retain(|(gone, _)| !Arc::ptr_eq(gone, pod));
        self.place(pod.clone());
    }
}

/// The scheduler's picture of the cluster.
#[derive(Debug, Default)]
pub struct Cache {
    nodes: Vec<NodeInfo>,
    index: HashMap<Box<str>, usize>,
    /// Pods whose node is not known, or no longer.
    stray: HashMap<Box<str>, Vec<Arc<PlacedPod>>>,
    /// Where each pod is, by uid, and whether that is only assumed.
    placements: HashSet<Placement>,
    /// How many of them are only assumed.
    assumed: usize,
    namespaces: Namespaces,
    terms: Terms,
    /// On how many nodes each image is.
    images: HashMap<Box<str>, usize>,
    /// Pods for which room was made on a node that they do not have yet.
    nominated: HashMap<Box<str>, Vec<Arc<PlacedPod>>>,
    pub storage: Storage,
    pub devices: Devices,
    pub workloads: Workloads,
    pub budgets: HashMap<client::Key, Arc<Budget>>,
}

/// Found by its pod's uid, which lies in the pod.
#[derive(Debug)]
struct Placement {
    pod: Arc<Pod>,
    node: Word,
    assumed: bool,
}

impl Borrow<str> for Placement {
    fn borrow(&self) -> &str {
        &self.pod.metadata.uid
    }
}

impl Hash for Placement {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pod.metadata.uid.hash(state);
    }
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        self.pod.metadata.uid == other.pod.metadata.uid
    }
}

impl Eq for Placement {}

impl Cache {
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone();
        match self.index.get(&name) {
            Some(&at) => self.change_node(at, node),
            None => {
                let at = self.nodes.len();
                self.index.insert(name.clone(), at);
                self.count_images(&node, 1);
                for topology in self.terms.topologies_mut() {
                    topology.push(&name, &node.metadata.labels);
                }
                self.nodes.push(NodeInfo::of(node, at));
                for pod in self.stray.remove(&name).unwrap_or_default() {
                    self.recount(std::slice::from_ref(&pod), at, 1);
                    self.nodes[at].place(pod);
                }
            }
        }
    }

    fn change_node(&mut self, at: usize, node: Arc<Node>) {
        let before = self.nodes[at].node.clone();
        if before.status.images != node.status.images {
            self.count_images(&before, -1);
            self.count_images(&node, 1);
        }
        if before.metadata.labels != node.metadata.labels {
            let pods = self.nodes[at].pods.clone();
            self.recount(&pods, at, -1);
            for topology in self.terms.topologies_mut() {
                topology.relabel(at, &node.metadata.name, &node.metadata.labels);
            }
            self.recount(&pods, at, 1);
        }
        if before.status.allocatable != node.status.allocatable {
            self.nodes[at].allocatable = Resources::from_list(&node.status.allocatable);
        }
        self.nodes[at].node = node;
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(at) = self.index.remove(name) else { return };
        let pods = std::mem::take(&mut self.nodes[at].pods);
        self.recount(&pods, at, -1);
        for topology in self.terms.topologies_mut() {
            topology.swap_remove(at);
        }
        let gone = self.nodes.swap_remove(at);
        self.count_images(&gone.node, -1);
        if let Some(moved) = self.nodes.get_mut(at) {
            moved.at = at;
            self.index.insert(moved.node.metadata.name.clone(), at);
        }
        if !pods.is_empty() {
            self.stray.insert(name.into(), pods);
        }
    }

    fn count_images(&mut self, node: &Node, amount: isize) {
        for name in node.status.images.iter().flat_map(|image| &image.names) {
            let count = self.images.entry(name.clone()).or_insert(0);
            *count = count.saturating_add_signed(amount);
            if *count == 0 {
                self.images.remove(name);
            }
        }
    }

    /// On how many nodes an image is.
    pub fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or(0)
    }

    fn recount(&mut self, pods: &[Arc<PlacedPod>], at: usize, amount: i32) {
        for placed in pods {
            for (term, _) in &placed.demands {
                self.topology_number(&term.topology_key);
            }
            self.terms.moved(placed, at, &self.namespaces, amount);
        }
    }

    pub fn set_namespace(&mut self, name: &str, labels: Option<Labels>) {
        let changed = match labels {
            Some(labels) => self.namespaces.insert(name.into(), labels.clone()) != Some(labels),
            None => self.namespaces.remove(name).is_some(),
        };
        if changed {
            self.terms.forget_counts();
        }
    }

    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Counts a pod where the API says it is. This confirms an assumption, or corrects it.
    pub fn set_pod(&mut self, pod: Arc<Pod>) {
        if self.confirm(&pod) {
            return;
        }
        self.remove_pod(&pod.metadata.uid);
        if !pod.is_finished() {
            let node = pod.spec.node_name.clone();
            self.place(&node, Arc::new(PlacedPod::new(pod)), false);
        }
    }

    /// Nearly every pod comes back from the API as it was assumed: then nothing has to be counted again.
    fn confirm(&mut self, pod: &Arc<Pod>) -> bool {
        let Some(placement) = self.placements.get(&*pod.metadata.uid) else { return false };
        if placement.node != pod.spec.node_name || pod.is_finished() {
            return false;
        }
        let Some(&at) = self.index.get(&*placement.node) else { return false };
        let mine = |placed: &&mut Arc<PlacedPod>| placed.uid() == &*pod.metadata.uid;
        let Some(placed) = self.nodes[at].pods.iter_mut().find(mine) else { return false };
        let (old, new) = (&placed.pod.metadata, &pod.metadata);
        // Binding raises the generation once; anything else in the specification does, too.
        let same_spec = old.generation == new.generation
            || placement.assumed
                && placed.pod.spec.node_name.is_empty()
                && old.generation + 1 == new.generation;
        if !same_spec || old.labels != new.labels || old.is_terminating() != new.is_terminating() {
            return false;
        }
        // What was worked out for the pod stays. While somebody else looks at it, it is made anew instead.
        let Some(placed) = Arc::get_mut(placed) else { return false };
        placed.pod = pod.clone();
        self.assumed -= usize::from(placement.assumed);
        let node = placement.node.clone();
        self.placements.replace(Placement { pod: pod.clone(), node, assumed: false });
        true
    }

    /// Counts a pod on a node before the API knows.
    pub fn assume(&mut self, pod: Arc<PlacedPod>, node: &str) {
        self.remove_pod(pod.uid());
        self.place(node, pod, true);
    }

    /// Takes an assumption back, unless the API has confirmed it meanwhile.
    pub fn forget(&mut self, uid: &str) {
        if self.placements.get(uid).is_some_and(|placement| placement.assumed) {
            self.remove_pod(uid);
        }
    }

    fn place(&mut self, node: &str, placed: Arc<PlacedPod>, assumed: bool) {
        self.assumed += usize::from(assumed);
        self.placements.replace(Placement { pod: placed.pod.clone(), node: node.into(), assumed });
        match self.index.get(node) {
            Some(&at) => {
                self.recount(std::slice::from_ref(&placed), at, 1);
                self.nodes[at].place(placed);
            }
            None => self.stray.entry(node.into()).or_default().push(placed),
        }
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let Some(placement) = self.placements.take(uid) else { return };
        self.assumed -= usize::from(placement.assumed);
        match self.index.get(&*placement.node) {
            Some(&at) => {
                if let Some(gone) = self.nodes[at].remove(uid) {
                    self.recount(&[gone], at, -1);
                }
            }
            None => {
                if let Some(pods) = self.stray.get_mut(&*placement.node) {
                    pods.retain(|placed| placed.uid() != uid);
                    if pods.is_empty() {
                        self.stray.remove(&*placement.node);
                    }
                }
            }
        }
    }

    /// Keeps the room on a node that was made for a pod; without a node the claim is given up.
    pub fn nominate(&mut self, pod: &Arc<Pod>, node: Option<&str>) {
        if !self.nominated.is_empty() {
            let uid = &pod.metadata.uid;
            self.nominated.retain(|_, pods| {
                pods.retain(|placed| placed.pod.metadata.uid != *uid);
                !pods.is_empty()
            });
        }
        if let Some(node) = node {
            let placed = Arc::new(PlacedPod::new(pod.clone()));
            self.nominated.entry(node.into()).or_default().push(placed);
        }
    }

    /// Whether some pod for which room was made demands anything of others.
    pub fn has_nominated_demands(&self) -> bool {
        self.nominated.values().flatten().any(|placed| !placed.demands.is_empty())
    }

    /// Pods for which room was made on a node.
    pub fn nominated(&self, node: &str) -> &[Arc<PlacedPod>] {
        self.nominated.get(node).map_or(&[], |pods| pods)
    }

    /// The node as a pod sees it that must leave room for the nominated ones before it; `None`: as it is.
    pub fn with_nominated(&self, node: &NodeInfo, pod: &Pod) -> Option<NodeInfo> {
        if self.nominated.is_empty() {
            return None;
        }
        let nominated = self.nominated.get(node.name())?;
        let before = |placed: &&Arc<PlacedPod>| {
            placed.pod.spec.priority >= pod.spec.priority && placed.pod.metadata.uid != pod.metadata.uid
        };
        let mut info: Option<NodeInfo> = None;
        for placed in nominated.iter().filter(before) {
            info.get_or_insert_with(|| node.clone()).imagine(placed);
        }
        info
    }

    pub fn is_placed(&self, uid: &str) -> bool {
        self.placements.contains(uid)
    }

    /// How many pods are counted on nodes.
    pub fn placed(&self) -> usize {
        self.placements.len()
    }

    /// How many of the placed pods the API has not confirmed yet.
    pub fn assumed(&self) -> usize {
        self.assumed
    }

    /// The number of a topology key, for [`Cache::topology`].
    pub fn topology_number(&mut self, key: &str) -> usize {
        let nodes = self.nodes.iter().map(|info| (info.name(), info.labels()));
        self.terms.topology_number(key, nodes)
    }

    pub fn topology(&self, number: usize) -> &Topology {
        self.terms.topology(number)
    }

    /// The number of the count of a term's pods by domain, for [`Cache::counted`]; made if nobody asked before.
    pub fn count(&mut self, term: &Term) -> usize {
        if let Some(number) = self.terms.find_count(term) {
            return number;
        }
        let topology = self.topology_number(&term.topology_key);
        let walk = self.nodes.iter().flat_map(|info| info.pods.iter().map(|placed| (info.at, &**placed)));
        self.terms.make_count(term, topology, &self.namespaces, walk)
    }

    pub fn counted(&self, number: usize) -> &Count {
        self.terms.count(number)
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.index.get(name).map(|at| &self.nodes[*at])
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, zone: &str) -> Arc<Node> {
        let value = json!({
            "metadata": {"name": name, "labels": {"zone": zone}},
            "status": {"allocatable": {"cpu": "4", "pods": "10"}},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn pod(uid: &str, node: &str, phase: &str) -> Arc<Pod> {
        let value = json!({
            "metadata": {"name": uid, "uid": uid, "namespace": "n", "labels": {"app": "a"}},
            "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": phase},
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn placed(uid: &str) -> Arc<PlacedPod> {
        Arc::new(PlacedPod::new(pod(uid, "", "Pending")))
    }

    fn used(cache: &Cache) -> Vec<(String, i64)> {
        cache.nodes().iter().map(|info| (info.name().to_owned(), info.requested.milli_cpu)).collect()
    }

    #[test]
    fn an_assumed_pod_counts_until_forgotten_but_a_confirmed_one_stays() {
        let mut cache = Cache::default();
        cache.set_node(node("a", "z"));
        cache.assume(placed("p"), "a");
        assert_eq!(used(&cache), [("a".into(), 1000)]);
        cache.forget("p");
        assert_eq!(used(&cache), [("a".into(), 0)]);
        cache.assume(placed("p"), "a");
        assert_eq!(cache.assumed(), 1);
        cache.set_pod(pod("p", "a", "Running"));
        assert_eq!(cache.assumed(), 0);
        cache.forget("p");
        assert_eq!(used(&cache), [("a".into(), 1000)]);
    }

    #[test]
    fn a_finished_pod_frees_its_node() {
        let mut cache = Cache::default();
        cache.set_node(node("a", "z"));
        cache.set_pod(pod("p", "a", "Running"));
        cache.set_pod(pod("p", "a", "Succeeded"));
        assert_eq!(used(&cache), [("a".into(), 0)]);
    }

    #[test]
    fn pods_seen_before_their_node_are_counted_when_it_comes() {
        let mut cache = Cache::default();
        cache.set_pod(pod("p", "a", "Running"));
        assert!(cache.nodes().is_empty());
        cache.set_node(node("a", "z"));
        assert_eq!(used(&cache), [("a".into(), 1000)]);
        cache.remove_node("a");
        assert!(cache.nodes().is_empty());
        cache.remove_pod("p");
        assert!(cache.stray.is_empty(), "nothing is kept of a node that is gone with its pods");
    }

    #[test]
    fn counts_follow_pods_and_labels() {
        let mut cache = Cache::default();
        cache.set_node(node("a", "x"));
        cache.set_node(node("b", "y"));
        cache.set_pod(pod("1", "a", "Running"));
        let selector = serde_json::from_value(json!({"matchLabels": {"app": "a"}})).unwrap();
        let term = Term::of_spread("zone", "n", &selector);
        let counted = |cache: &mut Cache| {
            let number = cache.count(&term);
            let count = cache.counted(number);
            let zones = cache.topology(count.topology());
            let on = |name: &str| cache.node(name).map(|info| count.in_domain(zones.of_node(info.at)));
            (on("a"), on("b"), count.total())
        };
        assert_eq!(counted(&mut cache), (Some(1), Some(0), 1));
        cache.assume(placed("2"), "b");
        assert_eq!(counted(&mut cache), (Some(1), Some(1), 2));
        cache.set_node(node("a", "y"));
        assert_eq!(counted(&mut cache), (Some(2), Some(2), 2));
        cache.remove_pod("1");
        cache.remove_node("b");
        assert_eq!(counted(&mut cache), (Some(0), None, 0));
    }

    #[test]
    fn a_confirmed_pod_that_changed_is_counted_anew() {
        let mut cache = Cache::default();
        cache.set_node(node("a", "x"));
        cache.assume(placed("p"), "a");
        let mut resized = json!({
            "metadata": {"name": "p", "uid": "p", "namespace": "n", "generation": 7},
            "spec": {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "3"}}}]},
        });
        cache.set_pod(Arc::new(serde_json::from_value(resized.clone()).unwrap()));
        assert_eq!(used(&cache), [("a".into(), 3000)]);
        resized["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        cache.set_pod(Arc::new(serde_json::from_value(resized).unwrap()));
        assert!(cache.nodes()[0].pods[0].pod.metadata.is_terminating());
    }
}
