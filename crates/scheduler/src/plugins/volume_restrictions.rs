//! Keeps a claim with access mode `ReadWriteOncePod` to one pod, and a disk that bears one writer to one node's pod.

use client::Key;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreFilter, Prepared, Verdict};
use crate::storage::Standing;
use crate::types::{Disk, Pod, PodVolume};

pub struct VolumeRestrictions;

impl Plugin for VolumeRestrictions {
    fn name(&self) -> &'static str {
        "VolumeRestrictions"
    }
    fn wakes_on(&self) -> Events {
        Events::POD_GONE.and(Events::CLAIM).and(Events::NODE_ADDED)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::PodGone(gone) => {
                gone.metadata.namespace == pod.metadata.namespace
                    && gone.claim_names().any(|freed| pod.claim_names().any(|wanted| wanted == freed))
                    || pod
                        .spec
                        .volumes
                        .iter()
                        .any(|one| gone.spec.volumes.iter().any(|other| conflict(one, other)))
            }
            ClusterEvent::ClaimChanged { new, .. } => {
                new.metadata.namespace == pod.metadata.namespace
                    && pod.claim_names().any(|name| *name == *new.metadata.name)
            }
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

/// The exclusive claims of the pod, and whether it uses disks of the older kinds.
struct Exclusive {
    claims: Vec<Key>,
    disks: bool,
}

fn has_disk(volume: &PodVolume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.iscsi.is_some()
        || volume.rbd.is_some()
}

/// Whether two volumes are one disk that cannot be attached for both.
fn conflict(one: &PodVolume, other: &PodVolume) -> bool {
    fn pair<'a>(one: &'a Option<Box<Disk>>, other: &'a Option<Box<Disk>>) -> Option<(&'a Disk, &'a Disk)> {
        Some((one.as_deref()?, other.as_deref()?))
    }
    let written = |one: &Disk, other: &Disk| !(one.read_only && other.read_only);
    pair(&one.gce_persistent_disk, &other.gce_persistent_disk)
        .is_some_and(|(a, b)| a.pd_name == b.pd_name && written(a, b))
        || pair(&one.aws_elastic_block_store, &other.aws_elastic_block_store)
            .is_some_and(|(a, b)| a.volume_id == b.volume_id)
        || pair(&one.iscsi, &other.iscsi).is_some_and(|(a, b)| a.iqn == b.iqn && written(a, b))
        || pair(&one.rbd, &other.rbd).is_some_and(|(a, b)| {
            let pool = |disk: &Disk| if disk.pool.is_empty() { "rbd".into() } else { disk.pool.clone() };
            a.monitors.iter().any(|monitor| b.monitors.contains(monitor))
                && pool(a) == pool(b)
                && a.image == b.image
                && written(a, b)
        })
}

fn uses(pod: &Pod, claims: &[Key]) -> bool {
    pod.claim_names().any(|name| {
        claims.iter().any(|claim| claim.namespace == pod.metadata.namespace && *claim.name == *name)
    })
}

impl PreFilter for VolumeRestrictions {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let mut claims = Vec::new();
        for standing in cache.storage.standings(&pod.pod) {
            match standing {
                Standing::Missing { name, ephemeral: false } => {
                    return Prepared::Never(format!("persistentvolumeclaim \"{name}\" not found").into());
                }
                Standing::Bound { claim, .. } | Standing::Waiting { claim, .. }
                    if claim.spec.access_modes.iter().any(|mode| &**mode == "ReadWriteOncePod") =>
                {
                    claims.push(claim.metadata.key());
                }
                _ => {}
            }
        }
        let disks = pod.pod.spec.volumes.iter().any(has_disk);
        if claims.is_empty() && !disks {
            return Prepared::Skip;
        }
        cycle.keep(Exclusive { claims, disks });
        Prepared::Check
    }
}

impl Filter for VolumeRestrictions {
    fn filter(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(exclusive) = cycle.get::<Exclusive>() else { return Verdict::Fits };
        if exclusive.disks {
            let mine = || pod.pod.spec.volumes.iter().filter(|volume| has_disk(volume));
            let theirs = node.pods.iter().flat_map(|placed| &placed.pod.spec.volumes);
            if theirs.into_iter().any(|other| mine().any(|one| conflict(one, other))) {
                return Verdict::refused("node(s) had no available disk");
            }
        }
        if exclusive.claims.is_empty() {
            return Verdict::Fits;
        }
        // The claim may be used on any node; only where it is used can its user be made to leave.
        let here = node.pods.iter().any(|placed| uses(&placed.pod, &exclusive.claims));
        let gone =
            |uid: &str| node.imagined.iter().any(|(placed, amount)| *amount < 0 && placed.uid() == uid);
        let elsewhere = || {
            cache.nodes().iter().any(|other| {
                other.pods.iter().any(|placed| uses(&placed.pod, &exclusive.claims) && !gone(placed.uid()))
            })
        };
        if here || elsewhere() {
            return Verdict::refused(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
            );
        }
        Verdict::Fits
    }
}
