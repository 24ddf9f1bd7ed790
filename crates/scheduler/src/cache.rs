//! Nodes with the pods on them, assumed ones included.
//!
//! A cycle reads the cache in place, under the scheduler's lock: there is nothing to copy, and nothing changes
//! under it. Nodes lie densely in a vector so that a cycle is a walk over memory.

use std::collections::HashMap;
use std::sync::Arc;

use client::Labels;

use crate::resources::Resources;
use crate::storage::Storage;
use crate::terms::{Count, Demand, Namespaces, Term, Terms};
use crate::types::{Node, Pod, Port};

/// A node and what is used of it.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    pub node: Arc<Node>,
    pub allocatable: Resources,
    pub requested: Resources,
    pub requested_for_scoring: Resources,
    pub pods: Vec<Arc<PlacedPod>>,
    /// Pods that are imagined away, while preemption looks for room; counts over domains still contain them.
    pub imagined_away: Vec<Arc<PlacedPod>>,
}

/// A pod with what the plugins ask of it again and again worked out once.
#[derive(Debug)]
pub struct PlacedPod {
    pub pod: Arc<Pod>,
    pub requests: Resources,
    pub requests_for_scoring: Resources,
    pub host_ports: Vec<Port>,
    /// What it demands of other pods, once it is placed.
    pub demands: Vec<(Term, Demand)>,
}

impl PlacedPod {
    pub fn new(pod: Arc<Pod>) -> Self {
        let requests = Resources::of_pod(&pod);
        let requests_for_scoring = Resources::of_pod_for_scoring(&pod);
        let host_ports = crate::plugins::host_ports(&pod);
        let demands = demands(&pod);
        Self { pod, requests, requests_for_scoring, host_ports, demands }
    }
}

fn demands(pod: &Pod) -> Vec<(Term, Demand)> {
    let (near, away) = (&pod.spec.affinity.pod_affinity, &pod.spec.affinity.pod_anti_affinity);
    let required = |terms: &[crate::types::PodAffinityTerm], demand| {
        terms.iter().map(|term| (Term::of_affinity(term, pod), demand)).collect::<Vec<_>>()
    };
    let wishes = |terms: &[crate::types::PreferredPods], sign: i64| {
        let wish = |wish: &crate::types::PreferredPods| {
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
    pub fn of(node: Arc<Node>) -> Self {
        let allocatable = Resources::from_list(&node.status.allocatable);
        Self {
            node,
            allocatable,
            requested: Resources::default(),
            requested_for_scoring: Resources::default(),
            pods: Vec::new(),
            imagined_away: Vec::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.node.metadata.name
    }

    pub fn labels(&self) -> &Labels {
        &self.node.metadata.labels
    }

    pub fn place(&mut self, pod: Arc<PlacedPod>) {
        self.requested.add(&pod.requests);
        self.requested_for_scoring.add(&pod.requests_for_scoring);
        self.pods.push(pod);
    }

    /// Looks at the node as if a pod of it were gone.
    pub fn imagine_away(&mut self, uid: &str) {
        if let Some(gone) = self.remove(uid) {
            self.imagined_away.push(gone);
        }
    }

    /// The opposite of [`NodeInfo::imagine_away`].
    pub fn take_back(&mut self, pod: &Arc<PlacedPod>) {
        self.imagined_away.retain(|gone| !Arc::ptr_eq(gone, pod));
        self.place(pod.clone());
    }

    fn remove(&mut self, uid: &str) -> Option<Arc<PlacedPod>> {
        let index = self.pods.iter().position(|placed| &*placed.pod.metadata.uid == uid)?;
        let gone = self.pods.swap_remove(index);
        self.requested.subtract(&gone.requests);
        self.requested_for_scoring.subtract(&gone.requests_for_scoring);
        Some(gone)
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
    placements: HashMap<Box<str>, Placement>,
    namespaces: Namespaces,
    terms: Terms,
    storage: Arc<Storage>,
    /// Pods for which room was made on a node that they do not have yet.
    nominated: HashMap<Box<str>, Vec<Arc<PlacedPod>>>,
    /// How many nodes have each value of the topology keys that were asked for.
    domains: HashMap<Box<str>, HashMap<Box<str>, usize>>,
}

#[derive(Debug)]
struct Placement {
    node: Box<str>,
    assumed: bool,
}

impl Cache {
    pub fn nodes(&self) -> &[NodeInfo] {
        &self.nodes
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        let name = node.metadata.name.clone();
        match self.index.get(&name) {
            Some(&at) => {
                if self.nodes[at].labels() != &node.metadata.labels {
                    self.domains.clear();
                    if !self.nodes[at].pods.is_empty() {
                        let pods = self.nodes[at].pods.clone();
                        self.recount(&pods, at, -1);
                        self.nodes[at].node = node.clone();
                        self.recount(&pods, at, 1);
                    }
                }
                let info = &mut self.nodes[at];
                info.allocatable = Resources::from_list(&node.status.allocatable);
                info.node = node;
            }
            None => {
                self.domains.clear();
                self.index.insert(name.clone(), self.nodes.len());
                self.nodes.push(NodeInfo::of(node));
                let at = self.nodes.len() - 1;
                for pod in self.stray.remove(&name).unwrap_or_default() {
                    self.recount(std::slice::from_ref(&pod), at, 1);
                    self.nodes[at].place(pod);
                }
            }
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        let Some(at) = self.index.remove(name) else { return };
        self.domains.clear();
        let pods = std::mem::take(&mut self.nodes[at].pods);
        self.recount(&pods, at, -1);
        self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            self.index.insert(moved.name().into(), at);
        }
        if !pods.is_empty() {
            self.stray.insert(name.into(), pods);
        }
    }

    fn recount(&mut self, pods: &[Arc<PlacedPod>], at: usize, amount: i64) {
        for placed in pods {
            self.terms.moved(placed, self.nodes[at].labels(), &self.namespaces, amount);
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
        self.placements.insert(pod.metadata.uid.clone(), Placement { node: node.into(), assumed });
        let placed = Arc::new(PlacedPod::new(pod));
        match self.index.get(node) {
            Some(&at) => {
                self.recount(std::slice::from_ref(&placed), at, 1);
                self.nodes[at].place(placed);
            }
            None => self.stray.entry(node.into()).or_default().push(placed),
        }
    }

    pub fn remove_pod(&mut self, uid: &str) {
        let Some(placement) = self.placements.remove(uid) else { return };
        match self.index.get(&placement.node) {
            Some(&at) => {
                if let Some(gone) = self.nodes[at].remove(uid) {
                    self.recount(&[gone], at, -1);
                }
            }
            None => {
                if let Some(pods) = self.stray.get_mut(&placement.node) {
                    pods.retain(|placed| &*placed.pod.metadata.uid != uid);
                    if pods.is_empty() {
                        self.stray.remove(&placement.node);
                    }
                }
            }
        }
    }

    /// Keeps the room on a node that was made for a pod; without a node the claim is given up.
    pub fn nominate(&mut self, pod: Arc<Pod>, node: Option<&str>) {
        let uid = pod.metadata.uid.clone();
        self.nominated.retain(|_, pods| {
            pods.retain(|placed| placed.pod.metadata.uid != uid);
            !pods.is_empty()
        });
        if let Some(node) = node {
            self.nominated.entry(node.into()).or_default().push(Arc::new(PlacedPod::new(pod)));
        }
    }

    /// The node as a pod sees it that must leave room for the nominated ones before it; `None`: as it is.
    pub fn with_nominated(&self, node: &NodeInfo, pod: &Pod) -> Option<NodeInfo> {
        let nominated = self.nominated.get(node.name())?;
        let before = |placed: &&Arc<PlacedPod>| {
            placed.pod.spec.priority >= pod.spec.priority && placed.pod.metadata.uid != pod.metadata.uid
        };
        let mut info: Option<NodeInfo> = None;
        for placed in nominated.iter().filter(before) {
            info.get_or_insert_with(|| node.clone()).place(placed.clone());
        }
        info
    }

    pub fn is_placed(&self, uid: &str) -> bool {
        self.placements.contains_key(uid)
    }

    /// How many pods match a term in each domain.
    pub fn count(&mut self, term: &Term) -> Arc<Count> {
        let walk =
            self.nodes.iter().flat_map(|info| info.pods.iter().map(|placed| (&**placed, info.labels())));
        self.terms.count(term, &self.namespaces, walk)
    }

    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Cycles hold the storage only while they run, so this copies nothing.
    pub fn storage_mut(&mut self) -> &mut Storage {
        Arc::make_mut(&mut self.storage)
    }

    pub fn node(&self, name: &str) -> Option<&NodeInfo> {
        self.index.get(name).map(|at| &self.nodes[*at])
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The values of a topology key, with how many nodes have each.
    pub fn domains(&mut self, topology_key: &str) -> &HashMap<Box<str>, usize> {
        let nodes = &self.nodes;
        self.domains.entry(topology_key.into()).or_insert_with(|| {
            let mut values: HashMap<Box<str>, usize> = HashMap::new();
            for info in nodes {
                if let Some(value) = info.labels().get(topology_key) {
                    *values.entry(value.into()).or_insert(0) += 1;
                }
            }
            values
        })
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

    fn used(cache: &Cache) -> Vec<(String, i64)> {
        cache.nodes().iter().map(|info| (info.name().to_owned(), info.requested.milli_cpu)).collect()
    }

    #[test]
    fn an_assumed_pod_counts_until_forgotten_but_a_confirmed_one_stays() {
        let mut cache = Cache::default();
        cache.set_node(node("a", "z"));
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
            let count = cache.count(&term);
            (count.in_domain("x"), count.in_domain("y"), count.total())
        };
        assert_eq!(counted(&mut cache), (1, 0, 1));
        cache.assume(pod("2", "", "Pending"), "b");
        assert_eq!(counted(&mut cache), (1, 1, 2));
        cache.set_node(node("a", "y"));
        assert_eq!(counted(&mut cache), (0, 2, 2));
        cache.remove_pod("1");
        cache.remove_node("b");
        assert_eq!(counted(&mut cache), (0, 0, 0));
    }
}
