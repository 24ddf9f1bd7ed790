//! Rejects cordoned nodes, unless the pod tolerates that.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, Verdict};
use crate::types::{Pod, Taint};

pub struct NodeUnschedulable;

fn tolerates_cordon(pod: &Pod) -> bool {
    let cordon = Taint {
        key: "node.kubernetes.io/unschedulable".into(),
        value: "".into(),
        effect: "NoSchedule".into(),
    };
    pod.spec.tolerations.iter().any(|toleration| toleration.tolerates(&cordon))
}

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }
    fn wakes_on(&self) -> Events {
        Events::NODE
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::NodeAdded(node) => !node.spec.unschedulable || tolerates_cordon(pod),
            ClusterEvent::NodeChanged { old, new } => old.spec.unschedulable && !new.spec.unschedulable,
            _ => false,
        }
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for NodeUnschedulable {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        if !node.node.spec.unschedulable || tolerates_cordon(&pod.pod) {
            Verdict::Fits
        } else {
            Verdict::never("node(s) were unschedulable")
        }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}
