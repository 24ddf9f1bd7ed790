//! Keeps pods near to, or away from, other pods.
//!
//! Three rules reject a node: a placed pod wants pods like this one kept out of the domain; this pod wants others
//! kept out and they are there; this pod needs others and they are not there. The first pod of a group that needs
//! its own kind may go anywhere. Wishes of both sides add up to the score.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{ArgsError, decode_args};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, PreFilter, PreScore, Prepared, Score, Verdict};
use crate::terms::{Demand, Term};
use crate::topology::NOWHERE;
use crate::types::Pod;

/// What the configuration says.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    /// What a placed pod's *required* affinity adds to the score of a matching newcomer.
    hard_pod_affinity_weight: i64,
    /// Leaves the wishes of placed pods aside for pods that have none themselves.
    ignore_preferred_terms_of_existing_pods: bool,
}

impl Default for Args {
    fn default() -> Self {
        Self { hard_pod_affinity_weight: 1, ignore_preferred_terms_of_existing_pods: false }
    }
}

#[derive(Default)]
pub struct InterPodAffinity {
    args: Args,
}

impl InterPodAffinity {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let args: Args = decode_args(args)?;
        if !(0..=100).contains(&args.hard_pod_affinity_weight) {
            return Err(ArgsError::new(
                "hardPodAffinityWeight",
                format!("Invalid value: {}: not in valid range [0, 100]", args.hard_pod_affinity_weight),
            ));
        }
        Ok(Arc::new(Self { args }))
    }
}

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }
    fn wakes_on(&self) -> Events {
        Events::POD.and(Events::NODE).and(Events::NAMESPACE)
    }
    /// A pod that came helps if it is wanted near; one that left, if it was to be kept away from, either way.
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        let near = |other: &Pod| {
            let terms = Term::of_required_affinity(&pod.spec.affinity.pod_affinity.required, pod);
            terms.iter().any(|term| term.could_match(other))
        };
        let away = |one: &Pod, other: &Pod| {
            let terms = one.spec.affinity.pod_anti_affinity.required.iter();
            terms.map(|term| Term::of_affinity(term, one)).any(|term| term.could_match(other))
        };
        match event {
            ClusterEvent::PodPlaced(other) => near(other),
            ClusterEvent::PodGone(other) => away(pod, other) || away(other, pod),
            ClusterEvent::PodChanged { old, new } => {
                near(new) && !near(old) || away(pod, old) || away(old, pod)
            }
            _ => true,
        }
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
}

/// What holds for one pod during one cycle: numbers of counts and demands in the cache.
struct Rules {
    near: Vec<usize>,
    away: Vec<usize>,
    /// Demands of placed pods that keep this pod out.
    keep_out: Vec<usize>,
    /// The pod matches its own terms: where nobody else does, it is the first of its group.
    matches_itself: bool,
}

impl Rules {
    /// Whether nobody in the whole cluster matches the terms, those who are imagined included.
    fn first_of_group(&self, node: &NodeInfo, cache: &Cache) -> bool {
        let nobody = |number: &usize| {
            let count = cache.counted(*number);
            count.total() + imagined(count.term(), node, cache) == 0
        };
        self.matches_itself && self.near.iter().all(nobody)
    }
}

/// How many pods of a term are imagined on a node, or imagined away.
fn imagined(term: &Term, node: &NodeInfo, cache: &Cache) -> i64 {
    let matching = node.imagined.iter().filter(|(placed, _)| term.matches(&placed.pod, cache.namespaces()));
    matching.map(|(_, amount)| amount).sum()
}

/// Wishes of the pod and of the placed pods, with their weights.
struct Wishes {
    own: Vec<(usize, i64)>,
    held: Vec<(usize, i64)>,
}

/// How many matching pods are in the node's domain, with those that are imagined; `None` without a domain.
fn in_domain(number: usize, node: &NodeInfo, cache: &Cache) -> Option<i64> {
    let count = cache.counted(number);
    let domain = cache.topology(count.topology()).of_node(node.at);
    if domain == NOWHERE {
        return None;
    }
    Some(count.in_domain(domain) + imagined(count.term(), node, cache))
}

impl PreFilter for InterPodAffinity {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let affinity = &pod.pod.spec.affinity;
        let near_terms = Term::of_required_affinity(&affinity.pod_affinity.required, &pod.pod);
        let near: Vec<usize> = near_terms.iter().map(|term| cache.count(term)).collect();
        let away_terms =
            affinity.pod_anti_affinity.required.iter().map(|term| Term::of_affinity(term, &pod.pod));
        let away: Vec<usize> = away_terms.map(|term| cache.count(&term)).collect();
        let namespaces = cache.namespaces();
        let held = cache.terms().held_for(&pod.pod.metadata.namespace);
        let keep_out: Vec<usize> = held
            .filter(|(_, held)| held.demand == Demand::KeepOut && held.term.matches(&pod.pod, namespaces))
            .map(|(number, _)| number)
            .collect();
        // Nominated pods may hold demands that no placed pod has.
        let nominated = cache.has_nominated_demands();
        if near.is_empty() && away.is_empty() && keep_out.is_empty() && !nominated {
            return Prepared::Skip;
        }
        let matches_itself = near_terms.iter().all(|term| term.matches(&pod.pod, namespaces));
        cycle.keep(Rules { near, away, keep_out, matches_itself });
        Prepared::Check
    }
}

impl Filter for InterPodAffinity {
    fn filter(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(rules) = cycle.get::<Rules>() else { return Verdict::Fits };
        for number in &rules.near {
            match in_domain(*number, node, cache) {
                Some(1..) => {}
                Some(_) if rules.first_of_group(node, cache) => {}
                _ => return Verdict::never("node(s) didn't match pod affinity rules"),
            }
        }
        if rules.away.iter().any(|number| in_domain(*number, node, cache).is_some_and(|found| found > 0)) {
            return Verdict::refused("node(s) didn't match pod anti-affinity rules");
        }
        let kept_out = rules.keep_out.iter().any(|number| {
            let Some(held) = cache.terms().held(*number) else { return false };
            let domain = cache.topology(held.topology()).of_node(node.at);
            if domain == NOWHERE {
                return false;
            }
            let holds = |placed: &PlacedPod| {
                placed
                    .demands
                    .iter()
                    .any(|(term, demand)| *demand == Demand::KeepOut && term.identity == held.term.identity)
            };
            let imagined = node.imagined.iter().filter(|(placed, _)| holds(placed)).map(|(_, amount)| amount);
            held.in_domain(domain) + imagined.sum::<i64>() > 0
        });
        // Pods imagined here may keep this one out with demands that nobody holds yet.
        let imagined_out = node.imagined.iter().filter(|(_, amount)| *amount > 0).any(|(placed, _)| {
            placed.demands.iter().any(|(term, demand)| {
                *demand == Demand::KeepOut
                    && node.labels().get(&term.topology_key).is_some()
                    && term.matches(&pod.pod, cache.namespaces())
            })
        });
        if kept_out || imagined_out {
            return Verdict::refused("node(s) didn't satisfy existing pods anti-affinity rules");
        }
        Verdict::Fits
    }
}

impl PreScore for InterPodAffinity {
    fn pre_score(&self, cycle: &mut Cycle, pod: &PlacedPod, _feasible: &[usize], cache: &mut Cache) -> bool {
        let affinity = &pod.pod.spec.affinity;
        let sides = [(&affinity.pod_affinity.preferred, 1), (&affinity.pod_anti_affinity.preferred, -1)];
        let mut own = Vec::new();
        for (wishes, sign) in sides {
            for wish in wishes {
                let term = Term::of_affinity(&wish.pod_affinity_term, &pod.pod);
                own.push((cache.count(&term), sign * wish.weight));
            }
        }
        if own.is_empty() && self.args.ignore_preferred_terms_of_existing_pods {
            return false;
        }
        let weight = |demand: Demand| match demand {
            Demand::KeepOut => 0,
            Demand::Wish(weight) => weight,
            Demand::Needs => self.args.hard_pod_affinity_weight,
        };
        let namespaces = cache.namespaces();
        let held = cache.terms().held_for(&pod.pod.metadata.namespace);
        let held = held.map(|(number, held)| (number, weight(held.demand), held));
        let held: Vec<(usize, i64)> = held
            .filter(|(_, weight, held)| *weight != 0 && held.term.matches(&pod.pod, namespaces))
            .map(|(number, weight, _)| (number, weight))
            .collect();
        own.retain(|(number, _)| cache.counted(*number).total() > 0);
        let any = !(own.is_empty() && held.is_empty());
        cycle.keep(Wishes { own, held });
        any
    }
}

impl Score for InterPodAffinity {
    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> i64 {
        let Some(wishes) = cycle.get::<Wishes>() else { return 0 };
        let mut sum = 0;
        for (number, weight) in &wishes.own {
            let count = cache.counted(*number);
            sum += weight * count.in_domain(cache.topology(count.topology()).of_node(node.at));
        }
        for (number, weight) in &wishes.held {
            if let Some(held) = cache.terms().held(*number) {
                sum += weight * held.in_domain(cache.topology(held.topology()).of_node(node.at));
            }
        }
        sum
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        let (Some(&lowest), Some(&highest)) = (scores.iter().min(), scores.iter().max()) else { return };
        let range = highest - lowest;
        for score in scores {
            *score = if range == 0 {
                0
            } else {
                (MAX_SCORE as f64 * ((*score - lowest) as f64 / range as f64)) as i64
            };
        }
    }
}
