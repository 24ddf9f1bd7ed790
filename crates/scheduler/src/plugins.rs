//! The plugins, one file each, and the default profile made of them.

mod image_locality;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources;
mod node_unschedulable;
mod scheduling_gates;
mod taint_toleration;

use crate::framework::Framework;

/// Upstream's default plugins, order and weights, as far as they are here.
pub fn default_framework() -> Framework {
    Framework {
        pre_enqueue: vec![Box::new(scheduling_gates::SchedulingGates)],
        filters: vec![
            Box::new(node_unschedulable::NodeUnschedulable),
            Box::new(node_name::NodeName),
            Box::new(taint_toleration::TaintToleration),
            Box::new(node_affinity::NodeAffinity),
            Box::new(node_ports::NodePorts),
            Box::new(node_resources::Fit),
        ],
        scores: vec![
            (Box::new(taint_toleration::TaintToleration), 3),
            (Box::new(node_affinity::NodeAffinity), 2),
            (Box::new(node_resources::Fit), 1),
            (Box::new(node_resources::BalancedAllocation), 1),
            (Box::new(image_locality::ImageLocality), 1),
        ],
        percentage_of_nodes_to_score: 0,
    }
}
