//! The plugins, one file each, and the default profile made of them.

mod image_locality;
mod inter_pod_affinity;
mod node_affinity;
mod node_name;
mod node_ports;
mod node_resources;
mod node_unschedulable;
mod scheduling_gates;
mod taint_toleration;
mod topology_spread;
pub mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use crate::framework::Framework;

pub use node_ports::host_ports;

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
            Box::new(volume_restrictions::VolumeRestrictions),
            Box::new(volume_binding::VolumeBinding),
            Box::new(volume_zone::VolumeZone),
            Box::new(topology_spread::PodTopologySpread),
            Box::new(inter_pod_affinity::InterPodAffinity),
        ],
        scores: vec![
            (Box::new(taint_toleration::TaintToleration), 3),
            (Box::new(node_affinity::NodeAffinity), 2),
            (Box::new(topology_spread::PodTopologySpread), 2),
            (Box::new(inter_pod_affinity::InterPodAffinity), 2),
            (Box::new(node_resources::Fit), 1),
            (Box::new(node_resources::BalancedAllocation), 1),
            (Box::new(image_locality::ImageLocality), 1),
        ],
        percentage_of_nodes_to_score: 0,
    }
}
