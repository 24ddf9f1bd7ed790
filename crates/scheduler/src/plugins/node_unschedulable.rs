//! Rejects cordoned nodes, unless the pod tolerates that.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};
use crate::types::Taint;

pub struct NodeUnschedulable;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }
}

impl Filter for NodeUnschedulable {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        if !node.node.spec.unschedulable {
            return Verdict::Fits;
        }
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            value: "".into(),
            effect: "NoSchedule".into(),
        };
        if pod.pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(&cordon)) {
            Verdict::Fits
        } else {
            Verdict::Never("node(s) were unschedulable".into())
        }
    }
}
