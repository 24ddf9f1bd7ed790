//! Matches nodes against a pod's node selector and node affinity, and against what the configuration adds.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{ArgsError, decode_args};
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{
    Cycle, Filter, Plugin, PreFilter, PreScore, Prepared, Score, Verdict, normalize_by_largest,
};
use crate::types::{self, Node, NodeSelector, NodeSelectorTerm, Pod, Requirement};

/// What the configuration says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    /// Holds for every pod of the profile beside its own affinity.
    added_affinity: types::NodeAffinity,
}

pub struct NodeAffinity {
    added: types::NodeAffinity,
}

impl NodeAffinity {
    pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, ArgsError> {
        Ok(Arc::new(Self { added: decode_args::<Args>(args)?.added_affinity }))
    }

    fn allows(&self, node: &Node) -> bool {
        self.added.required.as_ref().is_none_or(|selector| matches_selector(selector, node))
    }
}

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }
    fn wakes_on(&self) -> Events {
        Events::NODE
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        let fits = |node: &Node| self.allows(node) && matches(pod, node);
        match event {
            ClusterEvent::NodeAdded(node) => fits(node),
            ClusterEvent::NodeChanged { old, new } => !fits(old) && fits(new),
            _ => false,
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

impl PreFilter for NodeAffinity {
    fn pre_filter(&self, _cycle: &mut Cycle, pod: &PlacedPod, _cache: &mut Cache) -> Prepared {
        if !is_asked_for(&pod.pod) && self.added.required.is_none() {
            return Prepared::Skip;
        }
        match named_nodes(&pod.pod) {
            Some(names) if names.is_empty() => Prepared::never_conflict(),
            Some(names) => Prepared::Only(names),
            None => Prepared::Check,
        }
    }
}

impl Prepared {
    fn never_conflict() -> Self {
        Self::Never("pod affinity terms conflict".into())
    }
}

/// The only nodes that the pod's required terms allow by name; `None` if some term names none.
fn named_nodes(pod: &Pod) -> Option<HashSet<Box<str>>> {
    let required = pod.spec.affinity.node_affinity.required.as_ref()?;
    let mut all = HashSet::new();
    for term in &required.node_selector_terms {
        let mut by_term: Option<HashSet<Box<str>>> = None;
        let names = |wish: &&Requirement| &*wish.key == "metadata.name" && &*wish.operator == "In";
        for wish in term.match_fields.iter().filter(names) {
            let listed: HashSet<Box<str>> = wish.values.iter().cloned().collect();
            by_term = Some(match by_term {
                Some(before) => before.intersection(&listed).cloned().collect(),
                None => listed,
            });
        }
        // One term that names no node may match any; then all terms together restrict nothing by name.
        all.extend(by_term?);
    }
    Some(all)
}

impl Filter for NodeAffinity {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        if !self.allows(&node.node) {
            Verdict::never("node(s) didn't match scheduler-enforced node affinity")
        } else if matches(&pod.pod, &node.node) {
            Verdict::Fits
        } else {
            Verdict::never("node(s) didn't match Pod's node affinity/selector")
        }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(
        &self,
        _cycle: &mut Cycle,
        pod: &PlacedPod,
        _feasible: &[usize],
        _cache: &mut Cache,
    ) -> bool {
        !(self.added.preferred.is_empty() && pod.pod.spec.affinity.node_affinity.preferred.is_empty())
    }
}

impl Score for NodeAffinity {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        let node = &*node.node;
        let preferred = self.added.preferred.iter().chain(&pod.pod.spec.affinity.node_affinity.preferred);
        preferred.filter(|wish| matches_term(&wish.preference, node)).map(|wish| wish.weight).sum()
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        normalize_by_largest(scores, false);
    }
}

/// Whether the pod says anything about nodes.
pub fn is_asked_for(pod: &Pod) -> bool {
    !pod.spec.node_selector.is_empty() || pod.spec.affinity.node_affinity.required.is_some()
}

/// Whether a node is what the pod requires.
pub fn matches(pod: &Pod, node: &Node) -> bool {
    let labels = &node.metadata.labels;
    let selected = pod.spec.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
    let required = pod.spec.affinity.node_affinity.required.as_ref();
    selected && required.is_none_or(|selector| matches_selector(selector, node))
}

/// Whether a node matches one of a selector's terms.
pub fn matches_selector(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| matches_term(term, node))
}

/// A term without any requirement matches nothing, as upstream has it.
fn matches_term(term: &NodeSelectorTerm, node: &Node) -> bool {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    let labels = &node.metadata.labels;
    let by_label = term.match_expressions.iter().all(|wish| matches_value(wish, labels.get(&wish.key)));
    let field = |key: &str| (key == "metadata.name").then_some(&*node.metadata.name);
    by_label && term.match_fields.iter().all(|wish| matches_value(wish, field(&wish.key)))
}

fn matches_value(wish: &Requirement, value: Option<&str>) -> bool {
    let listed = |value: &str| wish.values.iter().any(|listed| &**listed == value);
    let numbers = || {
        let bound = wish.values.first()?.parse::<i64>().ok()?;
        Some((value?.parse::<i64>().ok()?, bound))
    };
    match &*wish.operator {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers().is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_follow_upstreams_table() {
        let wish = |operator: &str, values: &[&str]| Requirement {
            key: "k".into(),
            operator: operator.into(),
            values: values.iter().map(|value| (*value).into()).collect(),
        };
        for (operator, values, value, expected) in [
            ("In", &["a", "b"][..], Some("a"), true),
            ("In", &["a"], None, false),
            ("NotIn", &["a"], Some("a"), false),
            ("NotIn", &["a"], None, true),
            ("Exists", &[], Some(""), true),
            ("DoesNotExist", &[], Some(""), false),
            ("Gt", &["5"], Some("6"), true),
            ("Gt", &["5"], Some("x"), false),
            ("Lt", &["5"], Some("4"), true),
            ("Lt", &["5"], None, false),
            ("Near", &["5"], Some("5"), false),
        ] {
            assert_eq!(
                matches_value(&wish(operator, values), value),
                expected,
                "{operator} {values:?} {value:?}"
            );
        }
    }
}
