//! Makes room for a pod by choosing less important ones to leave.
//!
//! On each node where that could help, all less important pods are imagined away; then as many as possible are
//! taken back, those first whose loss would break a disruption budget, and the more important before the less.
//! Who cannot be taken back is a victim. Among the nodes, the one is chosen whose victims matter least. Nothing
//! is done here: the result is a value, and the driver carries it out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Metadata, Projection};
use controller_runtime::Selector;
use jiff::Timestamp;
use serde::Deserialize;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Fit, Framework};
use crate::types::Pod;

/// At least this many nodes, or a tenth of all, are tried before choosing among those that would do.
const FEWEST_CANDIDATES: usize = 100;

/// What is read of a disruption budget.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Budget {
    pub metadata: Metadata,
    pub spec: BudgetSpec,
    pub status: BudgetStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct BudgetSpec {
    pub selector: Selector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BudgetStatus {
    pub disruptions_allowed: i64,
    /// Pods that are already on their way out by the budget's leave.
    pub disrupted_pods: BTreeMap<Box<str>, serde::de::IgnoredAny>,
}

impl Projection for Budget {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Who leaves which node.
#[derive(Debug)]
pub struct Preemption {
    pub node: Box<str>,
    pub victims: Vec<Arc<Pod>>,
}

/// Why preemption is no way out, per node, in upstream's words.
pub type Reasons = BTreeMap<&'static str, usize>;

/// Finds the node on which making room costs least.
pub fn find(
    framework: &Framework,
    cycle: &Cycle,
    pod: &PlacedPod,
    cache: &Cache,
    budgets: &[Arc<Budget>],
    start: usize,
) -> Result<Preemption, Reasons> {
    let total = cache.nodes().len();
    let enough = FEWEST_CANDIDATES.max(total / 10);
    let mut reasons = Reasons::new();
    let mut candidates = Vec::new();
    for offset in 0..total {
        let node = &cache.nodes()[(start + offset) % total];
        let outcome = match framework.fit(cycle, pod, node) {
            Fit::Never => Err("Preemption is not helpful for scheduling"),
            Fit::Fits | Fit::Refused => victims_on(framework, cycle, pod, node, budgets),
        };
        match outcome {
            Ok(candidate) => candidates.push(candidate),
            Err(reason) => *reasons.entry(reason).or_insert(0) += 1,
        }
        if candidates.len() >= enough {
            break;
        }
    }
    let cheapest = candidates.into_iter().min_by_key(Candidate::cost);
    cheapest.map(|candidate| Preemption { node: candidate.node, victims: candidate.victims }).ok_or(reasons)
}

struct Candidate {
    node: Box<str>,
    victims: Vec<Arc<Pod>>,
    broken_budgets: usize,
}

impl Candidate {
    /// What the choice costs, most telling first: budgets broken, the most important victim, all their
    /// importance, their number; and of equals the one whose most important victim is the youngest.
    fn cost(&self) -> (usize, i32, i64, usize, Reverse<Option<Timestamp>>) {
        let priorities = || self.victims.iter().map(|victim| victim.spec.priority);
        let highest = priorities().max().unwrap_or(i32::MIN);
        // Shifted so that more victims never cost less when priorities are negative.
        let sum = priorities().map(|priority| i64::from(priority) + i64::from(i32::MAX) + 1).sum();
        let important = self.victims.iter().filter(|victim| victim.spec.priority == highest);
        let oldest = important.filter_map(|victim| victim.status.start_time).min();
        (self.broken_budgets, highest, sum, self.victims.len(), Reverse(oldest))
    }
}

fn victims_on(
    framework: &Framework,
    cycle: &Cycle,
    pod: &PlacedPod,
    node: &NodeInfo,
    budgets: &[Arc<Budget>],
) -> Result<Candidate, &'static str> {
    let less_important = |placed: &Arc<PlacedPod>| placed.pod.spec.priority < pod.pod.spec.priority;
    let mut candidates: Vec<Arc<PlacedPod>> =
        node.pods.iter().filter(|placed| less_important(placed)).cloned().collect();
    if candidates.is_empty() {
        return Err("No preemption victims found for incoming pod");
    }
    candidates.sort_by_key(|placed| importance(&placed.pod));
    let mut imagined = node.clone();
    for candidate in &candidates {
        imagined.imagine_away(&candidate.pod.metadata.uid);
    }
    if framework.fit(cycle, pod, &imagined) != Fit::Fits {
        return Err("No preemption victims found for incoming pod");
    }
    let (protected, free): (Vec<_>, Vec<_>) = split_by_budget(candidates, budgets);
    let mut victims = Vec::new();
    let mut broken_budgets = 0;
    for (candidate, is_protected) in protected
        .into_iter()
        .map(|placed| (placed, true))
        .chain(free.into_iter().map(|placed| (placed, false)))
    {
        imagined.take_back(&candidate);
        if framework.fit(cycle, pod, &imagined) != Fit::Fits {
            imagined.imagine_away(&candidate.pod.metadata.uid);
            broken_budgets += usize::from(is_protected);
            victims.push(candidate.pod.clone());
        }
    }
    if victims.is_empty() {
        return Err("No preemption victims found for incoming pod");
    }
    Ok(Candidate { node: node.name().into(), victims, broken_budgets })
}

/// The most important first: by priority, then by age.
fn importance(pod: &Pod) -> (Reverse<i32>, Option<Timestamp>) {
    (Reverse(pod.spec.priority), pod.status.start_time)
}

/// Which of these would break a budget if all before them in the list were gone, too.
fn split_by_budget(
    pods: Vec<Arc<PlacedPod>>,
    budgets: &[Arc<Budget>],
) -> (Vec<Arc<PlacedPod>>, Vec<Arc<PlacedPod>>) {
    let mut allowed: Vec<i64> = budgets.iter().map(|budget| budget.status.disruptions_allowed).collect();
    pods.into_iter().partition(|placed| {
        let meta = &placed.pod.metadata;
        let mut breaks = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let covers = budget.metadata.namespace == meta.namespace
                && !budget.spec.selector.is_everything()
                && budget.spec.selector.matches(&meta.labels)
                && !budget.status.disrupted_pods.contains_key(&meta.name);
            if covers {
                *allowed -= 1;
                breaks |= *allowed < 0;
            }
        }
        breaks
    })
}
