//! Keeps a claim with access mode `ReadWriteOncePod` to one pod.

use std::collections::HashSet;

use client::Key;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::framework::{Cycle, Filter, Plugin, Verdict, WakeUp};
use crate::storage::Standing;

pub struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }
}

/// The exclusive claims of the pod.
struct Exclusive(HashSet<Key>);

impl Filter for VolumeRestrictions {
    fn wakes_on(&self) -> &'static [WakeUp] {
        &[WakeUp::PodGone, WakeUp::StorageChanged]
    }

    fn prepare(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) {
        let exclusive =
            cache.storage().standings(&pod.pod).into_iter().filter_map(|standing| match standing {
                Standing::Bound { claim, .. } | Standing::Waiting { claim, .. } => Some(claim),
                _ => None,
            });
        let exclusive: HashSet<Key> = exclusive
            .filter(|claim| claim.spec.access_modes.iter().any(|mode| &**mode == "ReadWriteOncePod"))
            .map(|claim| claim.metadata.key())
            .collect();
        if !exclusive.is_empty() {
            cycle.keep(Exclusive(exclusive));
        }
    }

    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo) -> Verdict {
        let Some(Exclusive(claims)) = cycle.get::<Exclusive>() else { return Verdict::Fits };
        let uses = |placed: &PlacedPod| {
            let names = placed.pod.spec.volumes.iter().filter_map(|volume| volume.claim.as_ref());
            names
                .map(|claim| Key::new(&placed.pod.metadata.namespace, &claim.claim_name))
                .any(|key| claims.contains(&key))
        };
        if node.pods.iter().any(|placed| uses(placed)) {
            let reason = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
            return Verdict::Refused(vec![reason.into()]);
        }
        Verdict::Fits
    }
}
