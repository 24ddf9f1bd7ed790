//! Rejects nodes outside the zone or region that a bound volume is labelled with.

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};
use crate::storage::Standing;

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
}

/// Label and the values that the volumes allow.
struct Zones(Vec<(&'static str, Vec<String>)>);

impl Filter for VolumeZone {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::StorageChanged, WakeUp::NodeChanged]
    }

    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) {
        let mut zones = Vec::new();
        for standing in cache.storage().standings(&pod.pod) {
            let Standing::Bound { volume: Some(volume), .. } = standing else { continue };
            for label in LABELS {
                if let Some(value) = volume.metadata.labels.get(label) {
                    // A volume in several zones lists them with double underscores between.
                    zones.push((label, value.split("__").map(str::to_owned).collect()));
                }
            }
        }
        if !zones.is_empty() {
            cycle.keep(Zones(zones));
        }
    }

    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let Some(Zones(zones)) = cycle.get::<Zones>() else { return Verdict::Fits };
        if !LABELS.iter().any(|label| node.labels().get(label).is_some()) {
            return Verdict::Fits;
        }
        let fits = zones.iter().all(|(label, values)| {
            node.labels().get(label).is_some_and(|value| values.iter().any(|zone| zone == value))
        });
        if fits { Verdict::Fits } else { Verdict::Never("node(s) had no available volume zone".into()) }
    }
}
