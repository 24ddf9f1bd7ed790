//! Rejects nodes outside the zone or region that a bound volume is labelled with.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreFilter, Prepared, Verdict};
use crate::storage::Standing;
use crate::types::Pod;

const LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

pub struct VolumeZone;

impl Plugin for VolumeZone {
    fn name(&self) -> &'static str {
        "VolumeZone"
    }
    fn wakes_on(&self) -> Events {
        Events::CLAIM.and(Events::VOLUME).and(Events::CLASS).and(Events::NODE)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::ClaimChanged { new, .. } => {
                new.metadata.namespace == pod.metadata.namespace
                    && pod.claim_names().any(|name| *name == *new.metadata.name)
            }
            ClusterEvent::NodeChanged { old, new } => old.metadata.labels != new.metadata.labels,
            _ => true,
        }
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

/// Label and the values that the volumes allow.
struct Zones(Vec<(&'static str, Vec<String>)>);

impl PreFilter for VolumeZone {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let mut zones = Vec::new();
        for standing in cache.storage.standings(&pod.pod) {
            let Standing::Bound { volume: Some(volume), .. } = standing else { continue };
            for label in LABELS {
                if let Some(value) = volume.metadata.labels.get(label) {
                    // A volume in several zones lists them with double underscores between.
                    zones.push((label, value.split("__").map(str::to_owned).collect()));
                }
            }
        }
        if zones.is_empty() {
            return Prepared::Skip;
        }
        cycle.keep(Zones(zones));
        Prepared::Check
    }
}

impl Filter for VolumeZone {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        let Some(Zones(zones)) = cycle.get::<Zones>() else { return Verdict::Fits };
        if !LABELS.iter().any(|label| node.labels().get(label).is_some()) {
            return Verdict::Fits;
        }
        let fits = zones.iter().all(|(label, values)| {
            let value = node.labels().get(label).or_else(|| node.labels().get(other_name(label)));
            value.is_some_and(|value| values.iter().any(|zone| zone == value))
        });
        if fits { Verdict::Fits } else { Verdict::never("node(s) had no available volume zone") }
    }

    fn heeds_pods(&self) -> bool {
        false
    }
}

/// Volumes and nodes may be labelled in the old way and the new.
fn other_name(label: &str) -> &'static str {
    match LABELS.iter().position(|known| *known == label) {
        Some(index) => LABELS[(index + 2) % 4],
        None => "",
    }
}
