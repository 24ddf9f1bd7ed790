//! Spreads pods evenly over topology domains.
//!
//! A hard constraint rejects nodes in domains that would then hold `maxSkew` more matching pods than the emptiest
//! eligible domain; a soft one scores the fuller domains lower. Pods without constraints of their own get the
//! configured ones (upstream's soft defaults over hosts and zones if nothing is configured), over the pods that
//! their Services and controllers select.

use std::sync::Arc;

use client::Labels;
use controller_runtime::Selector;
use serde::Deserialize;
use serde_json::Value;

use super::{ArgsError, decode_args, node_affinity, taint_toleration};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, MAX_SCORE, Plugin, PreFilter, PreScore, Prepared, Score, Verdict};
use crate::terms::Term;
use crate::topology::{Domain, EACH_NODE, NOWHERE};
use crate::types::{Node, Pod, SpreadConstraint};

const HOSTNAME: &str = "kubernetes.io/hostname";
const HARD: &str = "DoNotSchedule";
const SOFT: &str = "ScheduleAnyway";

/// What the configuration says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    default_constraints: Vec<SpreadConstraint>,
    defaulting_type: String,
}

pub struct PodTopologySpread {
    defaults: Vec<SpreadConstraint>,
    /// The defaults are upstream's own: then nodes without a zone still count for spreading over hosts.
    system_defaults: bool,
}

impl Default for PodTopologySpread {
    fn default() -> Self {
        let soft = |key: &str, max_skew| SpreadConstraint {
            max_skew,
            topology_key: key.into(),
            when_unsatisfiable: SOFT.into(),
            ..SpreadConstraint::default()
        };
        Self {
            defaults: vec![soft(HOSTNAME, 3), soft("topology.kubernetes.io/zone", 5)],
            system_defaults: true,
        }
    }
}

impl PodTopologySpread {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        let args: Args = decode_args(args)?;
        match &*args.defaulting_type {
            "" | "System" if args.default_constraints.is_empty() => return Ok(Arc::new(Self::default())),
            "" | "System" => {
                return Err(ArgsError::new(
                    "defaultingType",
                    "Invalid value: \"System\": when .defaultConstraints are not empty",
                ));
            }
            "List" => {}
            other => {
                return Err(ArgsError::new(
                    "defaultingType",
                    format!("Unsupported value: {other:?}: supported values: \"List\", \"System\""),
                ));
            }
        }
        for (index, constraint) in args.default_constraints.iter().enumerate() {
            let wrong = |part: &str, text: String| {
                Err(ArgsError::new(format!("defaultConstraints[{index}].{part}"), text))
            };
            if constraint.max_skew <= 0 {
                return wrong(
                    "maxSkew",
                    format!("Invalid value: {}: not in valid range (0, inf)", constraint.max_skew),
                );
            }
            if constraint.topology_key.is_empty() {
                return wrong("topologyKey", "Required value: can not be empty".into());
            }
            if ![HARD, SOFT].contains(&&*constraint.when_unsatisfiable) {
                let text = format!(
                    "Unsupported value: {:?}: supported values: \"DoNotSchedule\", \"ScheduleAnyway\"",
                    constraint.when_unsatisfiable
                );
                return wrong("whenUnsatisfiable", text);
            }
            if !constraint.label_selector.is_nothing() {
                return wrong(
                    "labelSelector",
                    "Forbidden: constraint must not define a selector, as they deduced for each pod".into(),
                );
            }
        }
        Ok(Arc::new(Self { defaults: args.default_constraints, system_defaults: false }))
    }

    /// The pod's constraints of one kind, or the defaults, with the selectors of the pods they count.
    fn constraints(&self, pod: &Pod, kind: &str, cache: &Cache) -> Vec<(SpreadConstraint, Selector)> {
        let named = &pod.spec.topology_spread_constraints;
        let of_kind = |constraint: &&SpreadConstraint| &*constraint.when_unsatisfiable == kind;
        if !named.is_empty() {
            let labels = &pod.metadata.labels;
            let chosen = named.iter().filter(of_kind);
            return chosen.map(|constraint| (constraint.clone(), selector(constraint, labels))).collect();
        }
        let mut defaults = self.defaults.iter().filter(of_kind).peekable();
        if defaults.peek().is_none() {
            return Vec::new();
        }
        let Some(selector) = cache.workloads.selector_for(pod) else { return Vec::new() };
        defaults.map(|constraint| (constraint.clone(), selector.clone())).collect()
    }
}

/// Adds what `matchLabelKeys` asks for: the same values as the pod's own.
fn selector(constraint: &SpreadConstraint, labels: &Labels) -> Selector {
    let own = constraint.match_label_keys.iter().filter_map(|key| Some((&**key, labels.get(key)?)));
    let own: Labels = own.collect();
    if own.is_empty() { constraint.label_selector.clone() } else { constraint.label_selector.and(&own) }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        "PodTopologySpread"
    }
    fn wakes_on(&self) -> Events {
        Events::POD.and(Events::NODE)
    }
    /// Only pods that some constraint counts change anything, and nodes that have the keys.
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        let constraints = &pod.spec.topology_spread_constraints;
        if constraints.is_empty() {
            return true;
        }
        let counts = |other: &Pod| {
            other.metadata.namespace == pod.metadata.namespace
                && constraints.iter().any(|constraint| {
                    selector(constraint, &pod.metadata.labels).matches(&other.metadata.labels)
                })
        };
        let has_keys = |node: &Node| {
            constraints.iter().all(|constraint| node.metadata.labels.get(&constraint.topology_key).is_some())
        };
        match event {
            ClusterEvent::PodPlaced(other) | ClusterEvent::PodGone(other) => counts(other),
            ClusterEvent::PodChanged { old, new } => counts(old) != counts(new),
            ClusterEvent::NodeAdded(node) => has_keys(node),
            ClusterEvent::NodeChanged { old, new } => has_keys(old) || has_keys(new),
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

/// A constraint with the pods it counts.
struct Spread {
    constraint: SpreadConstraint,
    term: Term,
    topology: usize,
    counts: Counts,
    /// Whether the pod itself will count.
    counts_itself: bool,
    /// Matching pods in the emptiest eligible domain, and in the next.
    least: i64,
    second_least: i64,
    /// How much a matching pod weighs in the score.
    weight: f64,
}

/// Matching pods by domain: the shared count if every node is eligible, an own one otherwise.
enum Counts {
    All(usize),
    /// `None` for domains without an eligible node.
    Eligible(Vec<Option<i64>>),
}

impl Spread {
    fn in_domain(&self, domain: Domain, cache: &Cache) -> i64 {
        match &self.counts {
            Counts::All(number) => cache.counted(*number).in_domain(domain),
            Counts::Eligible(by_domain) => by_domain.get(domain as usize).copied().flatten().unwrap_or(0),
        }
    }

    fn domain_of(&self, node: &NodeInfo, cache: &Cache) -> Domain {
        cache.topology(self.topology).of_node(node.at)
    }
}

/// Whether a node counts for a constraint, as far as its policies say.
fn eligible(constraint: &SpreadConstraint, pod: &Pod, node: &Node) -> bool {
    let honours_affinity = &*constraint.node_affinity_policy != "Ignore";
    let honours_taints = &*constraint.node_taints_policy == "Honor";
    (!honours_affinity || node_affinity::matches(pod, node))
        && (!honours_taints || taint_toleration::tolerates(pod, node))
}

fn is_picky(constraint: &SpreadConstraint, pod: &Pod, cache: &Cache) -> bool {
    &*constraint.node_affinity_policy != "Ignore" && node_affinity::is_asked_for(pod)
        || &*constraint.node_taints_policy == "Honor"
            && cache.nodes().iter().any(|node| !taint_toleration::tolerates(pod, &node.node))
}

/// Prepares constraints; with `all_keys`, only nodes that have the keys of all of them count.
fn spreads(
    constraints: Vec<(SpreadConstraint, Selector)>,
    pod: &Pod,
    cache: &mut Cache,
    all_keys: bool,
) -> Vec<Spread> {
    let topologies: Vec<usize> =
        constraints.iter().map(|(constraint, _)| cache.topology_number(&constraint.topology_key)).collect();
    let partial = all_keys && topologies.iter().any(|number| !cache.topology(*number).is_complete());
    let mut all = Vec::with_capacity(constraints.len());
    for ((constraint, selector), topology) in constraints.into_iter().zip(&topologies) {
        let term = Term::of_spread(&constraint.topology_key, &pod.metadata.namespace, &selector);
        let counts_itself = term.matches(pod, cache.namespaces());
        let counts = if partial || is_picky(&constraint, pod, cache) {
            let by_node = cache.count(&term.over(EACH_NODE));
            let by_node = cache.counted(by_node);
            let (domains, hosts) = (cache.topology(*topology), cache.topology(by_node.topology()));
            let mut counts = vec![None; domains.width()];
            for node in cache.nodes() {
                let has_keys = |number: &usize| cache.topology(*number).of_node(node.at) != NOWHERE;
                let domain = domains.of_node(node.at);
                let counts_here = domain != NOWHERE
                    && (!all_keys || topologies.iter().all(has_keys))
                    && eligible(&constraint, pod, &node.node);
                if counts_here {
                    *counts[domain as usize].get_or_insert(0) += by_node.in_domain(hosts.of_node(node.at));
                }
            }
            Counts::Eligible(counts)
        } else {
            Counts::All(cache.count(&term))
        };
        let mut spread = Spread {
            constraint,
            term,
            topology: *topology,
            counts,
            counts_itself,
            least: i64::MAX,
            second_least: i64::MAX,
            weight: 0.0,
        };
        spread.find_least(cache);
        all.push(spread);
    }
    all
}

impl Spread {
    fn find_least(&mut self, cache: &Cache) {
        let (mut least, mut second, mut domains) = (i64::MAX, i64::MAX, 0i64);
        let mut see = |count: i64| {
            domains += 1;
            if count < least {
                (least, second) = (count, least);
            } else {
                second = second.min(count);
            }
        };
        match &self.counts {
            Counts::All(number) => {
                let count = cache.counted(*number);
                cache.topology(self.topology).domains().for_each(|domain| see(count.in_domain(domain)));
            }
            Counts::Eligible(by_domain) => by_domain.iter().flatten().for_each(|count| see(*count)),
        }
        // Fewer domains than asked for: the missing ones count as empty.
        if domains < self.constraint.min_domains.unwrap_or(1) {
            (least, second) = (0, 0);
        }
        (self.least, self.second_least) = (least, second);
    }
}

struct Hard(Vec<Spread>);
struct Soft {
    spreads: Vec<Spread>,
    /// Nodes without all keys get no score, unless the constraints are upstream's defaults.
    all_keys: bool,
    /// The places of the feasible nodes, in the order in which they are scored.
    ignored: Vec<bool>,
}

impl PreFilter for PodTopologySpread {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let constraints = self.constraints(&pod.pod, HARD, cache);
        if constraints.is_empty() {
            return Prepared::Skip;
        }
        let spreads = spreads(constraints, &pod.pod, cache, true);
        cycle.keep(Hard(spreads));
        Prepared::Check
    }
}

impl Filter for PodTopologySpread {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(Hard(spreads)) = cycle.get::<Hard>() else { return Verdict::Fits };
        for spread in spreads {
            let domain = spread.domain_of(node, cache);
            if domain == NOWHERE {
                return Verdict::never(
                    "node(s) didn't match pod topology spread constraints (missing required label)",
                );
            }
            let before = spread.in_domain(domain, cache);
            let imagined = node.imagined.iter();
            let imagined =
                imagined.filter(|(placed, _)| spread.term.matches(&placed.pod, cache.namespaces()));
            let here = before + imagined.map(|(_, amount)| amount).sum::<i64>();
            // What is imagined may change which domain is the emptiest.
            let others = if before == spread.least { spread.second_least } else { spread.least };
            let least = if here == before { spread.least } else { others.min(here) };
            if here + i64::from(spread.counts_itself) - least > spread.constraint.max_skew {
                return Verdict::refused("node(s) didn't match pod topology spread constraints");
            }
        }
        Verdict::Fits
    }
}

impl PreScore for PodTopologySpread {
    fn pre_score(&self, cycle: &mut Cycle, pod: &PlacedPod, feasible: &[usize], cache: &mut Cache) -> bool {
        let constraints = self.constraints(&pod.pod, SOFT, cache);
        if constraints.is_empty() {
            return false;
        }
        let all_keys = !pod.pod.spec.topology_spread_constraints.is_empty() || !self.system_defaults;
        let mut spreads = spreads(constraints, &pod.pod, cache, all_keys);
        let lacks_key =
            |at: usize| spreads.iter().any(|spread| cache.topology(spread.topology).of_node(at) == NOWHERE);
        let ignored: Vec<bool> = feasible.iter().map(|at| all_keys && lacks_key(*at)).collect();
        for spread in &mut spreads {
            let topology = cache.topology(spread.topology);
            let scored =
                || feasible.iter().zip(&ignored).filter(|(_, ignored)| !**ignored).map(|(at, _)| *at);
            let size = if &*spread.constraint.topology_key == HOSTNAME {
                scored().count()
            } else {
                let mut seen = vec![false; topology.width() + 1];
                // Nodes without the key share one nameless domain, as upstream counts.
                let place =
                    |domain: Domain| if domain == NOWHERE { topology.width() } else { domain as usize };
                scored().for_each(|at| seen[place(topology.of_node(at))] = true);
                seen.iter().filter(|seen| **seen).count()
            };
            spread.weight = ((size + 2) as f64).ln();
        }
        cycle.keep(Soft { spreads, all_keys, ignored });
        true
    }
}

impl Score for PodTopologySpread {
    /// The fuller the domains, the higher; many domains weigh more, as an even spread over them says more.
    fn score(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> i64 {
        let Some(soft) = cycle.get::<Soft>() else { return 0 };
        let mut sum = 0.0;
        for spread in &soft.spreads {
            let domain = spread.domain_of(node, cache);
            if domain == NOWHERE {
                if soft.all_keys {
                    return 0;
                }
                continue;
            }
            let count = spread.in_domain(domain, cache);
            sum += count as f64 * spread.weight + (spread.constraint.max_skew - 1) as f64;
        }
        sum.round() as i64
    }

    fn normalize(&self, cycle: &Cycle, scores: &mut [i64]) {
        let Some(soft) = cycle.get::<Soft>() else { return };
        let counted =
            || scores.iter().zip(&soft.ignored).filter(|(_, ignored)| !**ignored).map(|(score, _)| *score);
        let (least, most) = (counted().min().unwrap_or(0), counted().max().unwrap_or(0));
        for (score, ignored) in scores.iter_mut().zip(&soft.ignored) {
            *score = match (*ignored, most) {
                (true, _) => 0,
                (false, 0) => MAX_SCORE,
                (false, _) => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }
}
