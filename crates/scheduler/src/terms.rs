//! How many pods match a term in each topology domain, kept up to date instead of counted anew.
//!
//! Pods of one workload ask the same question of the cluster again and again: how many pods like these are in
//! each zone, on each node? The first to ask makes a [`Count`]; from then on every placed or removed pod updates
//! it, so that a cycle costs a look-up per node and not a walk over all pods. The same goes the other way round
//! for what placed pods demand of newcomers ([`Held`]).

use std::collections::HashMap;
use std::sync::Arc;

use client::Labels;
use controller_runtime::Selector;

use crate::cache::PlacedPod;
use crate::types::{Pod, PodAffinityTerm};

/// The most questions that are kept answered at once; the longest unasked goes first.
const MOST_COUNTS: usize = 512;

/// Which pods a term speaks of, and in what kind of domain.
#[derive(Clone, Debug)]
pub struct Term {
    pub topology_key: Box<str>,
    namespaces: Vec<Box<str>>,
    namespace_selector: Selector,
    selector: Selector,
    /// Spreading looks past pods that are on their way out; affinity does not.
    skips_terminating: bool,
    /// The same text for terms that mean the same.
    pub identity: Arc<str>,
}

impl Term {
    /// A term of a pod's affinity; without namespaces it speaks of the pod's own.
    pub fn of_affinity(term: &PodAffinityTerm, owner: &Pod) -> Self {
        let mut namespaces = term.namespaces.clone();
        if namespaces.is_empty() && term.namespace_selector.is_nothing() {
            namespaces.push(owner.metadata.namespace.clone());
        }
        namespaces.sort();
        Self::new(&term.topology_key, namespaces, &term.namespace_selector, &term.label_selector, false)
    }

    /// Pods of one namespace, spread over domains.
    pub fn of_spread(topology_key: &str, namespace: &str, selector: &Selector) -> Self {
        Self::new(topology_key, vec![namespace.into()], &Selector::default(), selector, true)
    }

    fn new(
        topology_key: &str,
        namespaces: Vec<Box<str>>,
        namespace_selector: &Selector,
        selector: &Selector,
        skips_terminating: bool,
    ) -> Self {
        let identity = format!(
            "{topology_key}|{}|{}|{}|{skips_terminating}",
            namespaces.join(","),
            if namespace_selector.is_nothing() { "-".to_owned() } else { namespace_selector.to_query() },
            if selector.is_nothing() { "-".to_owned() } else { selector.to_query() },
        );
        Self {
            topology_key: topology_key.into(),
            namespaces,
            namespace_selector: namespace_selector.clone(),
            selector: selector.clone(),
            skips_terminating,
            identity: identity.into(),
        }
    }

    pub fn matches(&self, pod: &Pod, namespaces: &Namespaces) -> bool {
        if self.skips_terminating && pod.metadata.is_terminating() {
            return false;
        }
        let namespace = &pod.metadata.namespace;
        let in_namespace = self.namespaces.contains(namespace)
            || !self.namespace_selector.is_nothing()
                && (self.namespace_selector.is_everything()
                    || namespaces
                        .get(namespace)
                        .is_some_and(|labels| self.namespace_selector.matches(labels)));
        in_namespace && self.selector.matches(&pod.metadata.labels)
    }
}

/// The labels of each namespace.
pub type Namespaces = HashMap<Box<str>, Labels>;

/// Pods that match a term, by the value of its topology key on their node.
#[derive(Clone, Debug)]
pub struct Count {
    term: Term,
    by_value: HashMap<Box<str>, i64>,
    total: i64,
    asked: u64,
}

impl Count {
    pub fn in_domain(&self, value: &str) -> i64 {
        self.by_value.get(value).copied().unwrap_or(0)
    }

    /// All matching pods on nodes that have the topology key.
    pub fn total(&self) -> i64 {
        self.total
    }

    fn add(&mut self, value: &str, amount: i64) {
        self.total += amount;
        add(&mut self.by_value, value, amount);
    }
}

fn add(by_value: &mut HashMap<Box<str>, i64>, value: &str, amount: i64) {
    match by_value.get_mut(value) {
        Some(count) => {
            *count += amount;
            if *count == 0 {
                by_value.remove(value);
            }
        }
        None if amount != 0 => {
            by_value.insert(value.into(), amount);
        }
        None => {}
    }
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
#[derive(Clone, Debug)]
pub struct Held {
    pub term: Term,
    pub demand: Demand,
    by_value: HashMap<Box<str>, i64>,
}

impl Held {
    pub fn holders(&self, value: &str) -> i64 {
        self.by_value.get(value).copied().unwrap_or(0)
    }
}

/// All counts and demands of the cluster.
#[derive(Debug, Default)]
pub struct Terms {
    counts: HashMap<Arc<str>, Arc<Count>>,
    held: HashMap<(Arc<str>, Demand), Held>,
    clock: u64,
}

impl Terms {
    /// A pod came to a node with these labels (`amount` 1), or left it (-1).
    pub fn moved(&mut self, placed: &PlacedPod, labels: &Labels, namespaces: &Namespaces, amount: i64) {
        for count in self.counts.values_mut() {
            // Nobody holds a count between cycles, so this copies nothing.
            let count = Arc::make_mut(count);
            if let Some(value) = labels.get(&count.term.topology_key)
                && count.term.matches(&placed.pod, namespaces)
            {
                count.add(value, amount);
            }
        }
        for (term, demand) in &placed.demands {
            let Some(value) = labels.get(&term.topology_key) else { continue };
            let key = (term.identity.clone(), *demand);
            let held = self.held.entry(key.clone()).or_insert_with(|| Held {
                term: term.clone(),
                demand: *demand,
                by_value: HashMap::new(),
            });
            add(&mut held.by_value, value, amount);
            if held.by_value.is_empty() {
                self.held.remove(&key);
            }
        }
    }

    /// Labels of a namespace or of a node with pods changed: what was counted no longer holds.
    pub fn forget_counts(&mut self) {
        self.counts.clear();
    }

    /// The count for a term, made with `walk` over all placed pods if nobody asked before.
    pub fn count<'a>(
        &mut self,
        term: &Term,
        namespaces: &Namespaces,
        walk: impl IntoIterator<Item = (&'a PlacedPod, &'a Labels)>,
    ) -> Arc<Count> {
        self.clock += 1;
        if !self.counts.contains_key(&term.identity) {
            if self.counts.len() >= MOST_COUNTS
                && let Some(oldest) = self.counts.values().min_by_key(|count| count.asked)
            {
                let oldest = oldest.term.identity.clone();
                self.counts.remove(&oldest);
            }
            let mut count = Count { term: term.clone(), by_value: HashMap::new(), total: 0, asked: 0 };
            for (placed, labels) in walk {
                if let Some(value) = labels.get(&term.topology_key)
                    && term.matches(&placed.pod, namespaces)
                {
                    count.add(value, 1);
                }
            }
            self.counts.insert(term.identity.clone(), Arc::new(count));
        }
        let count = self.counts.get_mut(&term.identity).expect("it was just made");
        Arc::make_mut(count).asked = self.clock;
        count.clone()
    }

    pub fn held(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }
}
