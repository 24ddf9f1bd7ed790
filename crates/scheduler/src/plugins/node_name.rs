//! Rejects every node but the one that the pod asks for by name.

use crate::cache::{NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }
}

impl Filter for NodeName {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::NodeChanged]
    }

    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let wanted = &*pod.pod.spec.node_name;
        if wanted.is_empty() || wanted == node.name() {
            Verdict::Fits
        } else {
            Verdict::Never("node(s) didn't match the requested node name".into())
        }
    }
}
