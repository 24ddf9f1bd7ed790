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
    let taints = node.node.iter().flat_map(|node| &node.spec.taints);
    taints
        .filter(|taint| effects.contains(&&*taint.effect))
        .filter(|taint| !pod.pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
}

impl Filter for TaintToleration {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        match untolerated(pod, node, &["NoSchedule", "NoExecute"]).next() {
            None => Verdict::Fits,
            Some(_) => Verdict::Never("node(s) had untolerated taint(s)".into()),
        }
    }
}

impl Score for TaintToleration {
    fn score(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> i64 {
        untolerated(pod, node, &["PreferNoSchedule"]).count() as i64
    }

    fn normalize(&self, scores: &mut [i64]) {
        normalize_by_largest(scores, true);
    }
}
