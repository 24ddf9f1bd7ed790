//! Rejects every node but the one that the pod asks for by name.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::Events;
use crate::framework::{Cycle, Filter, Plugin, Verdict};

pub struct NodeName;

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }
    fn wakes_on(&self) -> Events {
        Events::NODE_ADDED
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for NodeName {
    fn filter(&self, _cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        let wanted = &*pod.pod.spec.node_name;
        if wanted.is_empty() || wanted == node.name() {
            Verdict::Fits
        } else {
            Verdict::never("node(s) didn't match the requested node name")
        }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}
