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

use crate::framework::{Filter, Framework, PreEnqueue, Score};
use image_locality::ImageLocality;
use inter_pod_affinity::InterPodAffinity;
use node_affinity::NodeAffinity;
use node_name::NodeName;
use node_ports::NodePorts;
use node_resources::{BalancedAllocation, Fit};
use node_unschedulable::NodeUnschedulable;
use scheduling_gates::SchedulingGates;
use taint_toleration::TaintToleration;
use topology_spread::PodTopologySpread;
use volume_binding::VolumeBinding;
use volume_restrictions::VolumeRestrictions;
use volume_zone::VolumeZone;

pub use node_ports::host_ports;

/// A plugin by name: at which points it works, and what its score weighs unless the configuration says otherwise.
pub struct Entry {
    pub name: &'static str,
    pub weight: i64,
    pub pre_enqueue: Option<fn() -> Box<dyn PreEnqueue>>,
    pub filter: Option<fn() -> Box<dyn Filter>>,
    pub score: Option<fn() -> Box<dyn Score>>,
}

const NOWHERE: Entry = Entry { name: "", weight: 1, pre_enqueue: None, filter: None, score: None };

/// Every plugin, in upstream's default order and with its default weights.
pub const ALL: &[Entry] = &[
    Entry { name: "SchedulingGates", pre_enqueue: Some(|| Box::new(SchedulingGates)), ..NOWHERE },
    Entry { name: "NodeUnschedulable", filter: Some(|| Box::new(NodeUnschedulable)), ..NOWHERE },
    Entry { name: "NodeName", filter: Some(|| Box::new(NodeName)), ..NOWHERE },
    Entry {
        name: "TaintToleration",
        weight: 3,
        filter: Some(|| Box::new(TaintToleration)),
        score: Some(|| Box::new(TaintToleration)),
        ..NOWHERE
    },
    Entry {
        name: "NodeAffinity",
        weight: 2,
        filter: Some(|| Box::new(NodeAffinity)),
        score: Some(|| Box::new(NodeAffinity)),
        ..NOWHERE
    },
    Entry { name: "NodePorts", filter: Some(|| Box::new(NodePorts)), ..NOWHERE },
    Entry {
        name: "NodeResourcesFit",
        filter: Some(|| Box::new(Fit)),
        score: Some(|| Box::new(Fit)),
        ..NOWHERE
    },
    Entry { name: "VolumeRestrictions", filter: Some(|| Box::new(VolumeRestrictions)), ..NOWHERE },
    Entry { name: "VolumeBinding", filter: Some(|| Box::new(VolumeBinding)), ..NOWHERE },
    Entry { name: "VolumeZone", filter: Some(|| Box::new(VolumeZone)), ..NOWHERE },
    Entry {
        name: "PodTopologySpread",
        weight: 2,
        filter: Some(|| Box::new(PodTopologySpread)),
        score: Some(|| Box::new(PodTopologySpread)),
        ..NOWHERE
    },
    Entry {
        name: "InterPodAffinity",
        weight: 2,
        filter: Some(|| Box::new(InterPodAffinity)),
        score: Some(|| Box::new(InterPodAffinity)),
        ..NOWHERE
    },
    Entry {
        name: "NodeResourcesBalancedAllocation",
        score: Some(|| Box::new(BalancedAllocation)),
        ..NOWHERE
    },
    Entry { name: "ImageLocality", score: Some(|| Box::new(ImageLocality)), ..NOWHERE },
];

/// All plugins with their default weights.
pub fn default_framework() -> Framework {
    Framework {
        pre_enqueue: ALL.iter().filter_map(|entry| Some(entry.pre_enqueue?())).collect(),
        filters: ALL.iter().filter_map(|entry| Some(entry.filter?())).collect(),
        scores: ALL.iter().filter_map(|entry| Some((entry.score?(), entry.weight))).collect(),
        percentage_of_nodes_to_score: 0,
    }
}
