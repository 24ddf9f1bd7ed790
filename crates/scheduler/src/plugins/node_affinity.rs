//! Matches nodes against a pod's node selector and node affinity.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Score, Verdict, WakeUp, normalize_by_largest};
use crate::types::{Node, NodeSelector, NodeSelectorTerm, Pod, Requirement};

pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }
}

impl Filter for NodeAffinity {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        if matches(&pod.pod, &node.node) {
            Verdict::Fits
        } else {
            Verdict::Never("node(s) didn't match Pod's node affinity/selector".into())
        }
    }
}

impl Score for NodeAffinity {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        let node = &*node.node;
        let preferred = &pod.pod.spec.affinity.node_affinity.preferred;
        preferred.iter().filter(|wish| matches_term(&wish.preference, node)).map(|wish| wish.weight).sum()
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
