//! How many pods match a term in each topology domain, kept up to date instead of counted anew.
//!
//! Pods of one workload ask the same question of the cluster again and again: how many pods like these are in
//! each zone, on each node? The first to ask makes a [`Count`]; from then on every placed or removed pod updates
//! it, so that a cycle costs a look-up per node and not a walk over all pods. The same goes the other way round
//! for what placed pods demand of newcomers ([`Held`]). Terms that name their namespaces are filed under them, so
//! that a pod meets only the terms that can mean it.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use client::Labels;
use controller_runtime::Selector;

use crate::cache::PlacedPod;
use crate::topology::{Domain, NOWHERE, Topology};
use crate::types::{Pod, PodAffinityTerm};

/// The most questions that are kept answered at once; the longest unasked goes first.
const MOST_COUNTS: usize = 512;

/// The labels of each namespace.
pub type Namespaces = HashMap<Box<str>, Labels>;

/// Which pods are meant.
#[derive(Clone, Debug)]
struct Matcher {
    namespaces: Vec<Box<str>>,
    namespace_selector: Selector,
    selector: Selector,
}

impl Matcher {
    fn of_affinity(term: &PodAffinityTerm, owner: &Pod) -> Self {
        let mut namespaces = term.namespaces.clone();
        if namespaces.is_empty() && term.namespace_selector.is_nothing() {
            namespaces.push((*owner.metadata.namespace).into());
        }
        namespaces.sort();
        Self {
            namespaces,
            namespace_selector: term.namespace_selector.clone(),
            selector: selector(term, &owner.metadata.labels),
        }
    }

    fn names(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|name| **name == *namespace)
    }

    fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        let namespace = &*pod.metadata.namespace;
        let in_namespace = self.names(namespace)
            || !self.namespace_selector.is_nothing()
                && (self.namespace_selector.is_everything()
                    || namespaces
                        .get(namespace)
                        .is_some_and(|labels| self.namespace_selector.matches(labels)));
        in_namespace && self.selector.matches(&pod.metadata.labels)
    }

    fn write(&self, into: &mut String) {
        let query = |selector: &Selector| {
            if selector.is_nothing() { "-".to_owned() } else { selector.to_query() }
        };
        for part in [&self.namespaces.join(","), &query(&self.namespace_selector), &query(&self.selector)] {
            into.push('|');
            into.push_str(part);
        }
    }
}

/// The term's selector with the pod's own values of `matchLabelKeys`. The API server merges them into the selector
/// when the pod is created; a pod that came another way is treated the same.
fn selector(term: &PodAffinityTerm, labels: &Labels) -> Selector {
    if term.match_label_keys.is_empty() && term.mismatch_label_keys.is_empty()
        || term.label_selector.is_nothing()
    {
        return term.label_selector.clone();
    }
    let own = |keys: &[Box<str>]| -> Labels {
        keys.iter().filter_map(|key| Some((&**key, labels.get(key)?))).collect()
    };
    term.label_selector.and(&own(&term.match_label_keys)).and_not(&own(&term.mismatch_label_keys))
}

/// Which pods a term speaks of, and in what kind of domain.
#[derive(Clone, Debug)]
pub struct Term {
    pub topology_key: Box<str>,
    /// A pod is meant that matches all of these; nearly always there is one.
    matchers: Vec<Matcher>,
    /// Spreading looks past pods that are on their way out; affinity does not.
    skips_terminating: bool,
    /// The same text for terms that mean the same.
    pub identity: Arc<str>,
}

impl PartialEq for Term {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

impl Eq for Term {}

impl Hash for Term {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.hash(state);
    }
}

impl Term {
    /// A term of a pod's affinity; without namespaces it speaks of the pod's own.
    pub fn of_affinity(term: &PodAffinityTerm, owner: &Pod) -> Self {
        Self::new(&term.topology_key, vec![Matcher::of_affinity(term, owner)], false)
    }

    /// The terms of a pod's required affinity: each in its own kind of domain, but all of pods that match all of
    /// them, as upstream has it.
    pub fn of_required_affinity(terms: &[PodAffinityTerm], owner: &Pod) -> Vec<Self> {
        let matchers: Vec<Matcher> = terms.iter().map(|term| Matcher::of_affinity(term, owner)).collect();
        terms.iter().map(|term| Self::new(&term.topology_key, matchers.clone(), false)).collect()
    }

    /// Pods of one namespace, spread over domains.
    pub fn of_spread(topology_key: &str, namespace: &str, selector: &Selector) -> Self {
        let matcher = Matcher {
            namespaces: vec![namespace.into()],
            namespace_selector: Selector::default(),
            selector: selector.clone(),
        };
        Self::new(topology_key, vec![matcher], true)
    }

    fn new(topology_key: &str, matchers: Vec<Matcher>, skips_terminating: bool) -> Self {
        let mut identity = topology_key.to_owned();
        for matcher in &matchers {
            matcher.write(&mut identity);
        }
        identity.push(if skips_terminating { 's' } else { 'a' });
        Self { topology_key: topology_key.into(), matchers, skips_terminating, identity: identity.into() }
    }

    /// The same pods, in another kind of domain.
    pub fn over(&self, topology_key: &str) -> Self {
        Self::new(topology_key, self.matchers.clone(), self.skips_terminating)
    }

    pub fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        !(self.skips_terminating && pod.metadata.is_terminating())
            && self.matchers.iter().all(|matcher| matcher.matches(pod, namespaces))
    }

    /// Whether a pod may be meant, when the labels of namespaces are not at hand.
    pub fn could_match(&self, pod: &Pod) -> bool {
        self.matchers.iter().all(|matcher| {
            (matcher.names(&pod.metadata.namespace) || !matcher.namespace_selector.is_nothing())
                && matcher.selector.matches(&pod.metadata.labels)
        })
    }

    /// The namespaces of the pods that can be meant; `None` if a selector chooses them.
    fn named_namespaces(&self) -> Option<&[Box<str>]> {
        let first = self.matchers.first()?;
        first.namespace_selector.is_nothing().then_some(&first.namespaces)
    }
}

/// Pods that match a term, by domain.
#[derive(Debug)]
pub struct Count {
    term: Term,
    topology: usize,
    by_domain: Vec<i32>,
    total: i64,
    asked: u64,
}

impl Count {
    pub fn in_domain(&self, domain: Domain) -> i64 {
        self.by_domain.get(domain as usize).map_or(0, |count| i64::from(*count))
    }

    /// All matching pods on nodes that have the topology key.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// Where in [`Terms::topology`] the domains are.
    pub fn topology(&self) -> usize {
        self.topology
    }

    pub fn term(&self) -> &Term {
        &self.term
    }
}

fn add(by_domain: &mut Vec<i32>, domain: Domain, amount: i32) {
    if domain as usize >= by_domain.len() {
        by_domain.resize(domain as usize + 1, 0);
    }
    by_domain[domain as usize] += amount;
}

/// What placed pods demand or wish of newcomers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Demand {
    /// No matching pod may come into the domain.
    KeepOut,
    /// Matching pods are drawn here (or pushed away) with this weight.
    Wish(i64),
    /// Matching pods had to be here; newcomers like them are mildly drawn, too.
    Needs,
}

/// One demand and where its holders are.
#[derive(Debug)]
pub struct Held {
    pub term: Term,
    pub demand: Demand,
    topology: usize,
    by_domain: Vec<i32>,
    holders: i64,
}

impl Held {
    pub fn in_domain(&self, domain: Domain) -> i64 {
        self.by_domain.get(domain as usize).map_or(0, |count| i64::from(*count))
    }

    pub fn topology(&self) -> usize {
        self.topology
    }
}

/// Numbers of things, filed by the namespaces of the pods they can mean.
#[derive(Debug, Default)]
struct Files {
    by_namespace: HashMap<Box<str>, Vec<usize>>,
    anywhere: Vec<usize>,
}

impl Files {
    fn insert(&mut self, term: &Term, number: usize) {
        match term.named_namespaces() {
            Some(names) => {
                for name in names {
                    self.by_namespace.entry(name.clone()).or_default().push(number);
                }
            }
            None => self.anywhere.push(number),
        }
    }

    fn remove(&mut self, term: &Term, number: usize) {
        match term.named_namespaces() {
            Some(names) => {
                for name in names {
                    if let Some(list) = self.by_namespace.get_mut(name) {
                        list.retain(|other| *other != number);
                        if list.is_empty() {
                            self.by_namespace.remove(name);
                        }
                    }
                }
            }
            None => self.anywhere.retain(|other| *other != number),
        }
    }

    fn of<'a>(&'a self, namespace: &str) -> impl Iterator<Item = usize> + 'a {
        self.by_namespace.get(namespace).into_iter().flatten().chain(&self.anywhere).copied()
    }
}

/// All counts and demands, and the topologies they are over.
#[derive(Debug, Default)]
pub struct Terms {
    topologies: Vec<Topology>,
    topology_numbers: HashMap<Box<str>, usize>,
    counts: Vec<Option<Count>>,
    counts_by_identity: HashMap<Arc<str>, usize>,
    count_files: Files,
    held: Vec<Option<Held>>,
    held_by_identity: HashMap<(Arc<str>, Demand), usize>,
    held_files: Files,
    clock: u64,
}

impl Terms {
    pub fn topology(&self, number: usize) -> &Topology {
        &self.topologies[number]
    }

    pub fn topologies_mut(&mut self) -> &mut [Topology] {
        &mut self.topologies
    }

    /// The number of a key's topology, made from `nodes` if nobody asked before.
    pub fn topology_number<'a>(
        &mut self,
        key: &str,
        nodes: impl Iterator<Item = (&'a str, &'a Labels)>,
    ) -> usize {
        if let Some(number) = self.topology_numbers.get(key) {
            return *number;
        }
        self.topologies.push(Topology::new(key, nodes));
        self.topology_numbers.insert(key.into(), self.topologies.len() - 1);
        self.topologies.len() - 1
    }

    /// A pod came to the node at this place, or (`amount` −1) left it. The topologies of its demands must exist.
    pub fn moved(&mut self, placed: &PlacedPod, at: usize, namespaces: &Namespaces, amount: i32) {
        for number in self.count_files.of(&placed.pod.metadata.namespace) {
            let Some(count) = &mut self.counts[number] else { continue };
            let domain = self.topologies[count.topology].of_node(at);
            if domain != NOWHERE && count.term.matches(&placed.pod, namespaces) {
                add(&mut count.by_domain, domain, amount);
                count.total += i64::from(amount);
            }
        }
        for (term, demand) in &placed.demands {
            let Some(topology) = self.topology_numbers.get(&term.topology_key).copied() else { continue };
            let domain = self.topologies[topology].of_node(at);
            if domain == NOWHERE {
                continue;
            }
            let key = (term.identity.clone(), *demand);
            let number = match self.held_by_identity.get(&key) {
                Some(number) => *number,
                None => self.hold(term, *demand, topology),
            };
            let Some(held) = &mut self.held[number] else { continue };
            add(&mut held.by_domain, domain, amount);
            held.holders += i64::from(amount);
            if held.holders == 0 {
                self.held_files.remove(term, number);
                self.held_by_identity.remove(&key);
                self.held[number] = None;
            }
        }
    }

    fn hold(&mut self, term: &Term, demand: Demand, topology: usize) -> usize {
        let held = Held { term: term.clone(), demand, topology, by_domain: Vec::new(), holders: 0 };
        let number = free_place(&mut self.held);
        self.held[number] = Some(held);
        self.held_by_identity.insert((term.identity.clone(), demand), number);
        self.held_files.insert(term, number);
        number
    }

    /// Labels of a namespace changed: what was counted no longer holds.
    pub fn forget_counts(&mut self) {
        self.counts.clear();
        self.counts_by_identity.clear();
        self.count_files = Files::default();
    }

    /// The number of the count for a term, if somebody asked for it before.
    pub fn find_count(&mut self, term: &Term) -> Option<usize> {
        self.clock += 1;
        let number = *self.counts_by_identity.get(&term.identity)?;
        self.counts[number].as_mut()?.asked = self.clock;
        Some(number)
    }

    /// Counts a term's pods with one walk over all placed ones; the topology must exist.
    pub fn make_count<'a>(
        &mut self,
        term: &Term,
        topology: usize,
        namespaces: &Namespaces,
        walk: impl Iterator<Item = (usize, &'a PlacedPod)>,
    ) -> usize {
        if self.counts_by_identity.len() >= MOST_COUNTS {
            let oldest = self
                .counts
                .iter()
                .enumerate()
                .filter_map(|(number, count)| count.as_ref().map(|count| (count.asked, number)));
            if let Some((_, number)) = oldest.min()
                && let Some(count) = self.counts[number].take()
            {
                self.counts_by_identity.remove(&count.term.identity);
                self.count_files.remove(&count.term, number);
            }
        }
        let mut count =
            Count { term: term.clone(), topology, by_domain: Vec::new(), total: 0, asked: self.clock };
        for (at, placed) in walk {
            let domain = self.topologies[topology].of_node(at);
            if domain != NOWHERE && term.matches(&placed.pod, namespaces) {
                add(&mut count.by_domain, domain, 1);
                count.total += 1;
            }
        }
        let number = free_place(&mut self.counts);
        self.count_files.insert(term, number);
        self.counts_by_identity.insert(term.identity.clone(), number);
        self.counts[number] = Some(count);
        number
    }

    /// A count that was asked for in this cycle.
    pub fn count(&self, number: usize) -> &Count {
        self.counts[number].as_ref().expect("counts of the running cycle are not forgotten")
    }

    /// Demands that may mean a pod of this namespace, with their numbers.
    pub fn held_for<'a>(&'a self, namespace: &str) -> impl Iterator<Item = (usize, &'a Held)> {
        self.held_files.of(namespace).filter_map(|number| Some((number, self.held[number].as_ref()?)))
    }

    pub fn held(&self, number: usize) -> Option<&Held> {
        self.held.get(number)?.as_ref()
    }
}

fn free_place<T>(places: &mut Vec<Option<T>>) -> usize {
    places.iter().position(Option::is_none).unwrap_or_else(|| {
        places.push(None);
        places.len() - 1
    })
}
