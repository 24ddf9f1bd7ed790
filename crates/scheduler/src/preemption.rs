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
use serde_json::Value;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::Events;
use crate::framework::{Cycle, Failure, Filters, Fit, Hopeless, Plugin, PostFilter, Reasons, Remedy};
use crate::plugins::{ArgsError, decode_args};
use crate::types::Pod;

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

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
#[derive(Clone, Debug)]
pub struct Preemption {
    pub node: Box<str>,
    /// The most important first.
    pub victims: Vec<Arc<Pod>>,
    pub broken_budgets: usize,
}

/// What the configuration says.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    min_candidate_nodes_percentage: i64,
    min_candidate_nodes_absolute: i64,
}

impl Default for Args {
    fn default() -> Self {
        Self { min_candidate_nodes_percentage: 10, min_candidate_nodes_absolute: 100 }
    }
}

/// Makes less important pods leave.
#[derive(Default)]
pub struct DefaultPreemption {
    args: Args,
}

impl DefaultPreemption {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let args: Args = decode_args(args)?;
        let (percentage, absolute) = (args.min_candidate_nodes_percentage, args.min_candidate_nodes_absolute);
        if !(0..=100).contains(&percentage) {
            let text = format!("Invalid value: {percentage}: not in valid range [0, 100]");
            return Err(ArgsError::new("minCandidateNodesPercentage", text));
        }
        if absolute < 0 {
            let text = format!("Invalid value: {absolute}: not in valid range [0, inf)");
            return Err(ArgsError::new("minCandidateNodesAbsolute", text));
        }
        if percentage == 0 && absolute == 0 {
            let text = "Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute";
            return Err(ArgsError::new("minCandidateNodesPercentage", text));
        }
        Ok(Arc::new(Self { args }))
    }

    fn enough(&self, nodes: usize) -> usize {
        let share = nodes * self.args.min_candidate_nodes_percentage as usize / 100;
        share.max(self.args.min_candidate_nodes_absolute as usize).min(nodes)
    }
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }
    fn wakes_on(&self) -> Events {
        Events::POD_GONE
    }
    fn post_filter(&self) -> Option<&dyn PostFilter> {
        Some(self)
    }
}

impl PostFilter for DefaultPreemption {
    fn post_filter(&self, hopeless: &Hopeless<'_>, cache: &mut Cache) -> Remedy {
        let told = |reason: &str| Remedy::None(format!("preemption: {reason}"));
        match ineligible(hopeless, cache) {
            Some(reason) => told(reason),
            None => match self.find(hopeless, cache) {
                Ok(candidates) => Remedy::Preempt(candidates),
                Err(failure) => told(&failure.to_string()),
            },
        }
    }
}

/// Why a pod may not make others leave: it does not want to, or those it sent away are still going.
fn ineligible(hopeless: &Hopeless<'_>, cache: &Cache) -> Option<&'static str> {
    let pod = &hopeless.pod.pod;
    if &*pod.spec.preemption_policy == "Never" {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = cache.node(&pod.status.nominated_node_name)?;
    if hopeless.fits.get(node.at) == Some(&Fit::Never) {
        return None;
    }
    let leaving = |placed: &Arc<PlacedPod>| {
        let target = placed.pod.condition("DisruptionTarget");
        placed.pod.spec.priority < pod.spec.priority
            && placed.pod.metadata.is_terminating()
            && target.is_some_and(|it| &*it.status == "True" && &*it.reason == "PreemptionByScheduler")
    };
    let waits = node.pods.iter().any(leaving);
    waits.then_some("not eligible due to a terminating pod on the nominated node.")
}

impl DefaultPreemption {
    /// Finds the node on which making room costs least; it comes first, and the others only if all are wanted.
    fn find(&self, hopeless: &Hopeless<'_>, cache: &Cache) -> Result<Vec<Preemption>, Failure> {
        let Hopeless { framework, cycle, pod, fits, start, every_candidate } = hopeless;
        let total = cache.nodes().len();
        let helpful = fits.iter().filter(|fit| **fit == Fit::Refused).count();
        let enough = self.enough(helpful);
        let filters = framework.filters(cycle);
        let of_pods = filters.of_pods();
        let mut failure = Failure { nodes: total, ..Failure::default() };
        let mut tried = 0;
        let mut best: Option<(Cost, Preemption)> = None;
        let mut others = Vec::new();
        let mut found = 0;
        let mut unbroken = false;
        let mut scratch: Option<NodeInfo> = None;
        for offset in 0..total {
            let node = &cache.nodes()[(start + offset) % total];
            if fits.get(node.at) != Some(&Fit::Refused) {
                continue;
            }
            tried += 1;
            let imagined = match &mut scratch {
                Some(scratch) => {
                    scratch.clone_from(node);
                    scratch
                }
                none => none.insert(node.clone()),
            };
            match victims_on([&filters, &of_pods], cycle, pod, node, imagined, cache) {
                Ok(candidate) => {
                    found += 1;
                    unbroken |= candidate.broken_budgets == 0;
                    let cost = candidate.cost();
                    let dearer = if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                        best.replace((cost, candidate)).map(|(_, before)| before)
                    } else {
                        Some(candidate)
                    };
                    others.extend(dearer.filter(|_| *every_candidate));
                }
                Err(reasons) => failure.count(&reasons, 1),
            }
            if found >= enough && unbroken {
                break;
            }
        }
        match best {
            Some((_, cheapest)) => {
                others.insert(0, cheapest);
                Ok(others)
            }
            None => {
                if tried < total {
                    failure.count(&"Preemption is not helpful for scheduling".into(), total - tried);
                }
                Err(failure)
            }
        }
    }
}

/// What the choice costs, most telling first: budgets broken, the most important victim, all their importance,
/// their number; and of equals the one whose most important victim is the youngest.
type Cost = (usize, i32, i64, usize, Reverse<Option<Timestamp>>);

impl Preemption {
    fn cost(&self) -> Cost {
        let priorities = || self.victims.iter().map(|victim| victim.spec.priority);
        let highest = priorities().max().unwrap_or(i32::MIN);
        // Shifted so that more victims never cost less when priorities are negative.
        let sum = priorities().map(|priority| i64::from(priority) + i64::from(i32::MAX) + 1).sum();
        let important = self.victims.iter().filter(|victim| victim.spec.priority == highest);
        let oldest = important.filter_map(|victim| victim.status.start_time).min();
        (self.broken_budgets, highest, sum, self.victims.len(), Reverse(oldest))
    }
}

/// The candidate that costs least.
pub fn cheapest(candidates: Vec<Preemption>) -> Option<Preemption> {
    candidates.into_iter().min_by_key(Preemption::cost)
}

/// Who has to leave a node; `imagined` is a copy of it to try things on.
fn victims_on(
    [filters, of_pods]: [&Filters<'_>; 2],
    cycle: &Cycle,
    pod: &PlacedPod,
    node: &NodeInfo,
    imagined: &mut NodeInfo,
    cache: &Cache,
) -> Result<Preemption, Reasons> {
    let less_important = |placed: &&Arc<PlacedPod>| placed.pod.spec.priority < pod.pod.spec.priority;
    let mut candidates: Vec<&Arc<PlacedPod>> = node.pods.iter().filter(less_important).collect();
    if candidates.is_empty() {
        return Err(NO_VICTIMS.into());
    }
    for nominated in cache.nominated(node.name()) {
        // Room that was made for someone more important is not this pod's to take.
        if nominated.pod.spec.priority >= pod.pod.spec.priority && nominated.uid() != pod.uid() {
            imagined.imagine(nominated);
        }
    }
    candidates.sort_by_key(|placed| importance(&placed.pod));
    for candidate in &candidates {
        imagined.imagine_away(candidate.uid());
    }
    if let Some(reasons) = filters.refusal(cycle, pod, imagined, cache) {
        return Err(reasons);
    }
    let (protected, free): (Vec<_>, Vec<_>) = split_by_budget(candidates, cache);
    let mut victims = Vec::new();
    let mut broken_budgets = 0;
    let protected = protected.into_iter().map(|placed| (placed, true));
    for (candidate, is_protected) in protected.chain(free.into_iter().map(|placed| (placed, false))) {
        imagined.take_back(candidate);
        if of_pods.fit(cycle, pod, imagined, cache) != Fit::Fits {
            imagined.imagine_away(candidate.uid());
            broken_budgets += usize::from(is_protected);
            victims.push(candidate.pod.clone());
        }
    }
    if victims.is_empty() {
        return Err(NO_VICTIMS.into());
    }
    if broken_budgets > 0 {
        victims.sort_by_key(|victim| importance(victim));
    }
    Ok(Preemption { node: node.name().into(), victims, broken_budgets })
}

/// The most important first: by priority, then by age.
fn importance(pod: &Pod) -> (Reverse<i32>, Option<Timestamp>) {
    (Reverse(pod.spec.priority), pod.status.start_time)
}

/// Which of these would break a budget if all before them in the list were gone, too.
fn split_by_budget<'a>(
    pods: Vec<&'a Arc<PlacedPod>>,
    cache: &Cache,
) -> (Vec<&'a Arc<PlacedPod>>, Vec<&'a Arc<PlacedPod>>) {
    if cache.budgets.is_empty() {
        return (Vec::new(), pods);
    }
    let budgets: Vec<&Arc<Budget>> = cache.budgets.values().collect();
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
