//! Keeps pods off nodes whose taints they do not tolerate, and prefers nodes with fewer soft taints.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Score, Verdict, WakeUp, normalize_by_largest};
use crate::types::Taint;

pub struct TaintToleration;

impl Plugin for TaintToleration {
    fn name(&self) -> &'static str {
        "TaintToleration"
    }
}

fn untolerated<'a>(
    pod: &'a PlacedPod,
    node: &'a NodeInfo,
    effects: &'a [&str],
) -> impl Iterator<Item = &'a Taint> {
    let taints = node.node.spec.taints.iter();
    taints
        .filter(|taint| effects.contains(&&*taint.effect))
        .filter(|taint| !pod.pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
}

/// Whether no hard taint keeps the pod off the node.
pub fn tolerates(pod: &PlacedPod, node: &NodeInfo) -> bool {
    untolerated(pod, node, &["NoSchedule", "NoExecute"]).next().is_none()
}

impl Filter for TaintToleration {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        if tolerates(pod, node) {
            Verdict::Fits
        } else {
            Verdict::Never("node(s) had untolerated taint(s)".into())
        }
    }
}

impl Score for TaintToleration {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        untolerated(pod, node, &["PreferNoSchedule"]).count() as i64
    }

    fn normalize(&self, _cycle: &Cycle, scores: &mut [i64]) {
        normalize_by_largest(scores, true);
    }
}
