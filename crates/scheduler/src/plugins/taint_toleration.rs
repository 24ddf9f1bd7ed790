//! Keeps pods off nodes whose taints they do not tolerate, and prefers nodes with fewer soft taints.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreScore, Score, Verdict, normalize_by_largest};
use crate::types::{Node, Pod, Taint};

pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }
    fn wakes_on(&self) -> Events {
        Events::NODE
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => tolerates(pod, node),
            ClusterEvent::NodeChanged { old, new } => !tolerates(pod, old) && tolerates(pod, new),
            _ => false,
        }
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

fn is_hard(taint: &Taint) -> bool {
    matches!(&*taint.effect, "NoSchedule" | "NoExecute")
}

fn is_soft(taint: &Taint) -> bool {
    &*taint.effect == "PreferNoSchedule"
}

fn is_tolerated(pod: &Pod, taint: &Taint) -> bool {
    pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

/// Whether no hard taint keeps the pod off the node.
pub fn tolerates(pod: &Pod, node: &Node) -> bool {
    node.spec.taints.iter().filter(|taint| is_hard(taint)).all(|taint| is_tolerated(pod, taint))
}

impl Filter for TaintToleration {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        if tolerates(&pod.pod, &node.node) {
            Verdict::Fits
        } else {
            Verdict::never("node(s) had untolerated taint(s)")
        }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}

impl PreScore for TaintToleration {
    /// Without soft taints every node would get the same.
    fn pre_score(&self, _cycle: &mut Cycle, _pod: &PlacedPod, feasible: &[usize], cache: &mut Cache) -> bool {
        feasible.iter().any(|at| cache.nodes()[*at].node.spec.taints.iter().any(is_soft))
    }
}

impl Score for TaintToleration {
    /// Only tolerations for that effect, or for all, make a soft taint count as tolerated.
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        let soft = node.node.spec.taints.iter().filter(|taint| is_soft(taint));
        soft.filter(|taint| !is_tolerated(&pod.pod, taint)).count() as i64
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        normalize_by_largest(scores, true);
    }
}
