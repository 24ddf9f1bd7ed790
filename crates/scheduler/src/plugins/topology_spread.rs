//! Spreads pods evenly over topology domains.
//!
//! A hard constraint rejects nodes in domains that would then hold `maxSkew` more matching pods than the emptiest
//! eligible domain; a soft one scores the fuller domains lower. Pods without constraints of their own get
//! upstream's soft defaults, over hosts and zones, if their labels say which workload they are of.

use std::collections::HashMap;
use std::sync::Arc;

use client::Labels;
use controller_runtime::Selector;

use super::{node_affinity, taint_toleration};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, Score, Verdict, WakeUp};
use crate::terms::{Count, Term};
use crate::types::SpreadConstraint;

pub struct PodTopologySpread;

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }
}

/// A constraint with the pods it counts.
struct Spread {
    constraint: SpreadConstraint,
    term: Term,
    counts: Counts,
    /// Whether the pod itself will count.
    counts_itself: bool,
    /// Matching pods in the emptiest eligible domain.
    least: i64,
}

/// Matching pods by domain: the shared count if every node is eligible, an own one otherwise.
enum Counts {
    All(Arc<Count>),
    Eligible(HashMap<Box<str>, i64>),
}

impl Counts {
    /// `None` for a domain without an eligible node.
    fn get(&self, value: &str) -> Option<i64> {
        match self {
            Self::All(count) => Some(count.in_domain(value)),
            Self::Eligible(by_value) => by_value.get(value).copied(),
        }
    }
}

struct Hard(Vec<Spread>);
struct Soft(Vec<Spread>);

/// Adds what `matchLabelKeys` asks for: the same values as the pod's own.
fn selector(constraint: &SpreadConstraint, labels: &Labels) -> Selector {
    let own = constraint.match_label_keys.iter().filter_map(|key| Some((&**key, labels.get(key)?)));
    let own: Labels = own.collect();
    if own.is_empty() { constraint.label_selector.clone() } else { constraint.label_selector.and(&own) }
}

/// Whether a node counts for a constraint: it has the keys, and the pod could be there as far as policies say.
fn eligible(constraint: &SpreadConstraint, pod: &PlacedPod, node: &NodeInfo) -> bool {
    let honours_affinity = &*constraint.node_affinity_policy != "Ignore";
    let honours_taints = &*constraint.node_taints_policy == "Honor";
    node.labels().get(&constraint.topology_key).is_some()
        && (!honours_affinity || node_affinity::matches(&pod.pod, &node.node))
        && (!honours_taints || taint_toleration::tolerates(pod, node))
}

fn spread(constraint: &SpreadConstraint, pod: &PlacedPod, cache: &mut Cache) -> Spread {
    let selector = selector(constraint, &pod.pod.metadata.labels);
    let term = Term::of_spread(&constraint.topology_key, &pod.pod.metadata.namespace, &selector);
    let counts_itself = term.matches(&pod.pod, cache.namespaces());
    let picky = &*constraint.node_taints_policy == "Honor"
        || &*constraint.node_affinity_policy != "Ignore" && node_affinity::is_asked_for(&pod.pod);
    let (counts, least, domains) = if picky {
        let mut by_value: HashMap<Box<str>, i64> = HashMap::new();
        for node in cache.nodes().iter().filter(|node| eligible(constraint, pod, node)) {
            let Some(value) = node.labels().get(&constraint.topology_key) else { continue };
            let matching = node.pods.iter().filter(|placed| term.matches(&placed.pod, cache.namespaces()));
            *by_value.entry(value.into()).or_insert(0) += matching.count() as i64;
        }
        let least = by_value.values().copied().min().unwrap_or(0);
        let domains = by_value.len();
        (Counts::Eligible(by_value), least, domains)
    } else {
        let count = cache.count(&term);
        let domains = cache.domains(&constraint.topology_key);
        let least = domains.keys().map(|value| count.in_domain(value)).min().unwrap_or(0);
        (Counts::All(count), least, domains.len())
    };
    // Fewer domains than asked for: the missing ones count as empty.
    let least = if (domains as i64) < constraint.min_domains.unwrap_or(1) { 0 } else { least };
    Spread { constraint: constraint.clone(), term, counts, counts_itself, least }
}

impl Filter for PodTopologySpread {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::PodGone, WakeUp::PodPlaced, WakeUp::NodeChanged]
    }

    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) {
        let constraints = pod.pod.spec.topology_spread_constraints.iter();
        let hard = constraints.filter(|constraint| &*constraint.when_unsatisfiable == "DoNotSchedule");
        let hard: Vec<Spread> = hard.map(|constraint| spread(constraint, pod, cache)).collect();
        if !hard.is_empty() {
            cycle.keep(Hard(hard));
        }
    }

    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let Some(Hard(spreads)) = cycle.get::<Hard>() else { return Verdict::Fits };
        for spread in spreads {
            let Some(value) = node.labels().get(&spread.constraint.topology_key) else {
                let missing = "node(s) didn't match pod topology spread constraints (missing required label)";
                return Verdict::Never(missing.into());
            };
            let away = node.imagined_away.iter();
            let away = away.filter(|placed| spread.term.matches(&placed.pod, &HashMap::new())).count() as i64;
            let here = spread.counts.get(value).unwrap_or(0) - away;
            let least = spread.least.min(here);
            if here + i64::from(spread.counts_itself) - least > spread.constraint.max_skew {
                return Verdict::Refused(vec!["node(s) didn't match pod topology spread constraints".into()]);
            }
        }
        Verdict::Fits
    }
}

/// Upstream's default constraints, for pods that name none.
fn defaults(pod: &PlacedPod) -> Vec<SpreadConstraint> {
    // Which workload a pod belongs to is told by its controller's labels; the commonest ones are enough here.
    let labels = &pod.pod.metadata.labels;
    let telling = ["pod-template-hash", "controller-revision-hash", "app", "app.kubernetes.io/name"];
    let own: Labels = telling.iter().filter_map(|key| Some((*key, labels.get(key)?))).collect();
    if own.is_empty() || pod.pod.metadata.controller().is_none() {
        return Vec::new();
    }
    [("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5)]
        .map(|(key, max_skew)| SpreadConstraint {
            max_skew,
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Selector::of_labels(&own),
            ..SpreadConstraint::default()
        })
        .into()
}

impl Score for PodTopologySpread {
    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, _feasible: &[usize], cache: &mut Cache) {
        let named = &pod.pod.spec.topology_spread_constraints;
        let soft: Vec<SpreadConstraint> = if named.is_empty() {
            defaults(pod)
        } else {
            let soft = named.iter().filter(|constraint| &*constraint.when_unsatisfiable == "ScheduleAnyway");
            soft.cloned().collect()
        };
        let soft: Vec<Spread> = soft.iter().map(|constraint| spread(constraint, pod, cache)).collect();
        cycle.keep(Soft(soft));
    }

    /// The fuller the domains, the higher; many domains weigh more, as an even spread over them says more.
    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let Some(Soft(spreads)) = cycle.get::<Soft>() else { return 0 };
        let crowd = spreads.iter().map(|spread| {
            let value = node.labels().get(&spread.constraint.topology_key);
            let count = value.and_then(|value| spread.counts.get(value));
            count.map_or(0.0, |count| count as f64 + (spread.constraint.max_skew - 1) as f64)
        });
        (crowd.sum::<f64>() * 100.0).round() as i64
    }

    fn normalize(&self, cycle: &Cycle, scores: &mut [i64]) {
        if cycle.get::<Soft>().is_none_or(|soft| soft.0.is_empty()) {
            scores.fill(0);
            return;
        }
        let (Some(&least), Some(&most)) = (scores.iter().min(), scores.iter().max()) else { return };
        for score in scores {
            *score = if most == 0 { MAX_SCORE } else { MAX_SCORE * (most + least - *score) / most };
        }
    }
}
