//! Keeps pods near to, or away from, other pods.
//!
//! Three rules reject a node: a placed pod wants pods like this one kept out of the domain; this pod wants others
//! kept out and they are there; this pod needs others and they are not there. The first pod of a group that needs
//! its own kind may go anywhere. Wishes of both sides add up to the score.

use std::sync::Arc;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, Score, Verdict, WakeUp};
use crate::terms::{Count, Demand, Held, Namespaces, Term};

/// What a placed pod's *required* affinity adds to the score of a matching newcomer.
const HARD_AFFINITY_WEIGHT: i64 = 1;

pub struct InterPodAffinity;

impl Plugin for InterPodAffinity {
    fn name(&self) -> &'static str {
        "InterPodAffinity"
    }
}

/// What holds for one pod during one cycle.
struct Rules {
    near: Vec<(Term, Arc<Count>)>,
    away: Vec<(Term, Arc<Count>)>,
    /// Terms of placed pods that keep this pod out.
    keep_out: Vec<Held>,
    /// Nobody matches all terms yet, but the pod itself does: it is the first of its group.
    first_of_group: bool,
    namespaces: Namespaces,
}

/// Wishes of the pod and of the placed pods, with their weights.
struct Wishes {
    own: Vec<(Term, i64, Arc<Count>)>,
    held: Vec<(Held, i64)>,
}

fn counted(
    terms: &[crate::types::PodAffinityTerm],
    pod: &PlacedPod,
    cache: &mut Cache,
) -> Vec<(Term, Arc<Count>)> {
    let terms = terms.iter().map(|term| Term::of_affinity(term, &pod.pod));
    terms.map(|term| (term.clone(), cache.count(&term))).collect()
}

/// How many matching pods are in the node's domain, without those that are imagined away.
fn in_domain(term: &Term, count: &Count, node: &NodeInfo, namespaces: &Namespaces) -> Option<i64> {
    let value = node.labels().get(&term.topology_key)?;
    let away = node.imagined_away.iter().filter(|placed| term.matches(&placed.pod, namespaces)).count();
    Some(count.in_domain(value) - away as i64)
}

impl Filter for InterPodAffinity {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::PodGone, WakeUp::PodPlaced, WakeUp::NodeChanged]
    }

    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) {
        let affinity = &pod.pod.spec.affinity;
        let near = counted(&affinity.pod_affinity.required, pod, cache);
        let away = counted(&affinity.pod_anti_affinity.required, pod, cache);
        let namespaces = cache.namespaces();
        let keeps_out =
            |held: &&Held| held.demand == Demand::KeepOut && held.term.matches(&pod.pod, namespaces);
        let keep_out: Vec<Held> = cache.terms().held().filter(keeps_out).cloned().collect();
        if near.is_empty() && away.is_empty() && keep_out.is_empty() {
            return;
        }
        let first_of_group = near.iter().all(|(_, count)| count.total() == 0)
            && near.iter().all(|(term, _)| term.matches(&pod.pod, namespaces));
        let namespaces = namespaces.clone();
        cycle.keep(Rules { near, away, keep_out, first_of_group, namespaces });
    }

    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let Some(rules) = cycle.get::<Rules>() else { return Verdict::Fits };
        let count = |term: &Term, count: &Count| in_domain(term, count, node, &rules.namespaces);
        for (term, matching) in &rules.near {
            match count(term, matching) {
                Some(1..) => {}
                Some(_) if rules.first_of_group => {}
                _ => return Verdict::Never("node(s) didn't match pod affinity rules".into()),
            }
        }
        if rules.away.iter().any(|(term, matching)| count(term, matching).is_some_and(|found| found > 0)) {
            return Verdict::Refused(vec!["node(s) didn't match pod anti-affinity rules".into()]);
        }
        let kept_out = rules.keep_out.iter().any(|held| {
            let Some(value) = node.labels().get(&held.term.topology_key) else { return false };
            let holds = |placed: &PlacedPod| {
                placed
                    .demands
                    .iter()
                    .any(|(term, demand)| *demand == Demand::KeepOut && term.identity == held.term.identity)
            };
            let away = node.imagined_away.iter().filter(|placed| holds(placed)).count();
            held.holders(value) - away as i64 > 0
        });
        if kept_out {
            return Verdict::Refused(vec!["node(s) didn't satisfy existing pods anti-affinity rules".into()]);
        }
        Verdict::Fits
    }
}

impl Score for InterPodAffinity {
    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, _feasible: &[usize], cache: &mut Cache) {
        let affinity = &pod.pod.spec.affinity;
        let sides = [(&affinity.pod_affinity.preferred, 1), (&affinity.pod_anti_affinity.preferred, -1)];
        let mut own = Vec::new();
        for (wishes, sign) in sides {
            for wish in wishes {
                let term = Term::of_affinity(&wish.pod_affinity_term, &pod.pod);
                let count = cache.count(&term);
                own.push((term, sign * wish.weight, count));
            }
        }
        let weight = |held: &Held| match held.demand {
            Demand::KeepOut => None,
            Demand::Wish(weight) => Some(weight),
            Demand::Needs => Some(HARD_AFFINITY_WEIGHT),
        };
        let namespaces = cache.namespaces();
        let held = cache.terms().held().filter_map(|held| Some((held, weight(held)?)));
        let held = held.filter(|(held, _)| held.term.matches(&pod.pod, namespaces));
        let held: Vec<(Held, i64)> = held.map(|(held, weight)| (held.clone(), weight)).collect();
        cycle.keep(Wishes { own, held });
    }

    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let Some(wishes) = cycle.get::<Wishes>() else { return 0 };
        let value = |term: &Term| node.labels().get(&term.topology_key);
        let own = wishes
            .own
            .iter()
            .filter_map(|(term, weight, count)| Some(weight * count.in_domain(value(term)?)));
        let held =
            wishes.held.iter().filter_map(|(held, weight)| Some(weight * held.holders(value(&held.term)?)));
        own.chain(held).sum()
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        let (Some(&lowest), Some(&highest)) = (scores.iter().min(), scores.iter().max()) else { return };
        for score in scores {
            *score = if highest == lowest { 0 } else { MAX_SCORE * (*score - lowest) / (highest - lowest) };
        }
    }
}
