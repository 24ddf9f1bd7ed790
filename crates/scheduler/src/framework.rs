//! The extension points of a scheduling cycle, and the cycle itself.
//!
//! A cycle reads the cache in place. What a plugin works out once per cycle it keeps in the [`Cycle`] under a type of
//! its own. The framework that is tested is the framework that runs.

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::types::Pod;

/// The best score that a plugin gives a node.
pub const MAX_SCORE: i64 = 100;
/// Below this many nodes all are looked at; above, the share shrinks with the cluster.
const ALWAYS_LOOK_AT: usize = 100;

/// A change in the cluster that may help a pod that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WakeUp {
    /// A node came or changed its labels, taints, allocatable amounts or schedulability.
    NodeChanged,
    /// A pod on a node ended, went away or asks for less.
    PodGone,
    /// A pod came to a node, or its labels changed.
    PodPlaced,
    /// A claim, volume or class came or changed.
    StorageChanged,
}

/// What a filter says of a pod and a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Fits,
    /// Not now; removing pods from the node may help.
    Refused(Vec<Cow<'static, str>>),
    /// Not on this node, whatever happens to its pods.
    Never(Cow<'static, str>),
}

/// Scratch data of one cycle, one value per type.
#[derive(Default)]
pub struct Cycle(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl Cycle {
    pub fn keep<T: Any + Send + Sync>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

/// A part of the scheduler with a name.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;
}

/// Holds a pod back before it is tried at all.
pub trait PreEnqueue: Plugin {
    fn holds_back(&self, pod: &Pod) -> bool;
}

/// Says which nodes can take a pod.
pub trait Filter: Plugin {
    /// The changes after which a pod that this plugin refused is worth another try.
    fn wakes_on(&self) -> &'static [WakeUp];

    /// Called once per cycle, before the first [`Filter::filter`].
    fn prepare(&self, _cycle: &mut Cycle, _pod: &PlacedPod, _cache: &mut Cache) {}

    fn filter(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict;
}

/// Prefers some of the nodes that can take a pod.
pub trait Score: Plugin {
    /// Called once per cycle with the nodes that are left, as positions in the cache.
    fn prepare(&self, _cycle: &mut Cycle, _pod: &PlacedPod, _feasible: &[usize], _cache: &mut Cache) {}

    /// The higher the better, on any scale that [`Score::normalize`] brings to 0..=[`MAX_SCORE`].
    fn score(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64;

    fn normalize(&self, _cycle: &Cycle, _scores: &mut [i64]) {}
}

/// Brings scores to 0..=[`MAX_SCORE`] by the largest; with `reverse`, less is better.
pub fn normalize_by_largest(scores: &mut [i64], reverse: bool) {
    let largest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if largest == 0 { 0 } else { *score * MAX_SCORE / largest };
        if reverse {
            *score = MAX_SCORE - *score;
        }
    }
}

/// Whether a node can take a pod, without the reasons.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    Fits,
    Refused,
    Never,
}

/// A pod's new home.
#[derive(Debug, PartialEq)]
pub struct Decision {
    pub node: Box<str>,
    /// How many nodes were looked at, and how many could have taken the pod.
    pub evaluated: usize,
    pub feasible: usize,
}

/// Why no node can take a pod.
#[derive(Debug, Default, PartialEq)]
pub struct Failure {
    pub nodes: usize,
    pub reasons: BTreeMap<String, usize>,
    pub wakes_on: Vec<WakeUp>,
    /// Why making room is no way out either, per node.
    pub preemption: BTreeMap<&'static str, usize>,
}

impl std::fmt::Display for Failure {
    /// As upstream says it: `0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu.`
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.nodes == 0 {
            return out.write_str("no nodes available to schedule pods");
        }
        let list = |counts: Vec<(&str, usize)>| {
            let mut parts: Vec<String> =
                counts.into_iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            parts.sort();
            format!("0/{} nodes are available: {}.", self.nodes, parts.join(", "))
        };
        out.write_str(&list(self.reasons.iter().map(|(reason, count)| (reason.as_str(), *count)).collect()))?;
        if !self.preemption.is_empty() {
            let counts = self.preemption.iter().map(|(reason, count)| (*reason, *count)).collect();
            write!(out, " preemption: {}", list(counts))?;
        }
        Ok(())
    }
}

/// The plugins of one profile, in order, and the cycle over them.
#[derive(Default)]
pub struct Framework {
    pub pre_enqueue: Vec<Box<dyn PreEnqueue>>,
    pub filters: Vec<Box<dyn Filter>>,
    pub scores: Vec<(Box<dyn Score>, i64)>,
    /// 0 means: adapt to the size of the cluster.
    pub percentage_of_nodes_to_score: usize,
}

impl Framework {
    pub fn holds_back(&self, pod: &Pod) -> bool {
        self.pre_enqueue.iter().any(|plugin| plugin.holds_back(pod))
    }

    /// Chooses a node. `start` is where to begin among the nodes (it spreads the work when not all are looked
    /// at, and the choice among equals); the caller moves it on from cycle to cycle.
    pub fn schedule(&self, pod: &PlacedPod, cache: &mut Cache, start: usize) -> Result<Decision, Failure> {
        let total = cache.nodes().len();
        let mut failure = Failure { nodes: total, ..Failure::default() };
        let mut cycle = self.begin(pod, cache);
        let wanted = self.nodes_to_find(total);
        let mut feasible = Vec::new();
        let mut evaluated = 0;
        for offset in 0..total {
            let at = (start + offset) % total;
            evaluated += 1;
            let node = &cache.nodes()[at];
            let fits = match cache.with_nominated(node, &pod.pod) {
                // Room that was made for a more important pod is not free, though that pod is not there yet.
                Some(kept) if !self.fits(&cycle, pod, &kept, &mut failure) => false,
                _ => self.fits(&cycle, pod, node, &mut failure),
            };
            if fits {
                feasible.push(at);
                if feasible.len() == wanted {
                    break;
                }
            }
        }
        let best = match feasible.len() {
            0 => return Err(failure),
            1 => feasible[0],
            _ => self.best(&mut cycle, pod, &feasible, cache),
        };
        Ok(Decision { node: cache.nodes()[best].name().into(), evaluated, feasible: feasible.len() })
    }

    /// What the filters work out once for a pod.
    pub fn begin(&self, pod: &PlacedPod, cache: &mut Cache) -> Cycle {
        let mut cycle = Cycle::default();
        for filter in &self.filters {
            filter.prepare(&mut cycle, pod, cache);
        }
        cycle
    }

    /// Whether a node can take a pod; reasons left aside.
    pub fn fit(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Fit {
        for filter in &self.filters {
            match filter.filter(cycle, pod, node) {
                Verdict::Fits => {}
                Verdict::Refused(_) => return Fit::Refused,
                Verdict::Never(_) => return Fit::Never,
            }
        }
        Fit::Fits
    }

    fn fits(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, failure: &mut Failure) -> bool {
        for filter in &self.filters {
            let reasons = match filter.filter(cycle, pod, node) {
                Verdict::Fits => continue,
                Verdict::Refused(reasons) => reasons,
                Verdict::Never(reason) => vec![reason],
            };
            for reason in reasons {
                *failure.reasons.entry(reason.into_owned()).or_insert(0) += 1;
            }
            for wake in filter.wakes_on() {
                if !failure.wakes_on.contains(wake) {
                    failure.wakes_on.push(*wake);
                }
            }
            return false;
        }
        true
    }

    /// The node with the highest weighted sum; the first among equals, whose order rotates.
    fn best(&self, cycle: &mut Cycle, pod: &PlacedPod, feasible: &[usize], cache: &mut Cache) -> usize {
        let mut totals = vec![0i64; feasible.len()];
        let mut scores = vec![0i64; feasible.len()];
        for (plugin, weight) in &self.scores {
            plugin.prepare(cycle, pod, feasible, cache);
            for (score, at) in scores.iter_mut().zip(feasible) {
                *score = plugin.score(cycle, pod, &cache.nodes()[*at]);
            }
            plugin.normalize(cycle, &mut scores);
            for (total, score) in totals.iter_mut().zip(&scores) {
                *total += score * weight;
            }
        }
        let highest = totals.iter().copied().max().unwrap_or(0);
        let winner = totals.iter().position(|total| *total == highest).unwrap_or(0);
        feasible[winner]
    }

    fn nodes_to_find(&self, total: usize) -> usize {
        if total < ALWAYS_LOOK_AT {
            return total;
        }
        let percentage = match self.percentage_of_nodes_to_score {
            0 => 50usize.saturating_sub(total / 125).max(5),
            fixed => fixed.min(100),
        };
        (total * percentage / 100).max(ALWAYS_LOOK_AT)
    }
}

#[cfg(test)]
mod tests;
