//! Rejects nodes on which a driver could not attach the pod's volumes beside those that are there.

use std::collections::{HashMap, HashSet};

use client::Key;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::framework::{Cycle, Filter, Plugin, PreFilter, Prepared, Verdict};
use crate::types::Pod;

pub struct NodeVolumeLimits;

impl Plugin for NodeVolumeLimits {
    fn name(&self) -> &'static str {
        "NodeVolumeLimits"
    }
    fn wakes_on(&self) -> Events {
        Events::CSI_NODE.and(Events::POD_GONE).and(Events::CLAIM).and(Events::DETACHED)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            ClusterEvent::PodGone(gone) => gone.claim_names().next().is_some(),
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

/// Drivers and the identities of their volumes.
type Volumes = HashSet<(Box<str>, String)>;

struct Wanted(Volumes);

fn volumes_of(pod: &Pod, cache: &Cache) -> Volumes {
    let claims = pod
        .claim_names()
        .filter_map(|name| cache.storage.claims.get(&Key::new(&pod.metadata.namespace, &name)));
    claims.filter_map(|claim| cache.storage.driver_of(claim)).collect()
}

impl PreFilter for NodeVolumeLimits {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        let wanted = volumes_of(&pod.pod, cache);
        if wanted.is_empty() {
            return Prepared::Skip;
        }
        cycle.keep(Wanted(wanted));
        Prepared::Check
    }
}

impl Filter for NodeVolumeLimits {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(Wanted(wanted)) = cycle.get::<Wanted>() else { return Verdict::Fits };
        let Some(csi_node) = cache.storage.csi_nodes.get(node.name()) else { return Verdict::Fits };
        let limits: HashMap<&str, i64> = csi_node
            .spec
            .drivers
            .iter()
            .filter_map(|driver| Some((&*driver.name, driver.allocatable.as_ref()?.count?)))
            .collect();
        if !wanted.iter().any(|(driver, _)| limits.contains_key(&**driver)) {
            return Verdict::Fits;
        }
        let mut there: Volumes = node.pods.iter().flat_map(|placed| volumes_of(&placed.pod, cache)).collect();
        for attachment in cache.storage.attachments.values() {
            if *attachment.spec.node_name == *node.name() {
                let volume = cache.storage.volumes.get(&attachment.spec.source.persistent_volume_name);
                if let Some(csi) = volume.and_then(|volume| volume.spec.csi.as_ref()) {
                    there.insert((csi.driver.clone(), csi.volume_handle.to_string()));
                }
            }
        }
        let on = |volumes: &Volumes, driver: &str| {
            volumes.iter().filter(|(its, _)| **its == *driver).count() as i64
        };
        let new: Volumes = wanted.difference(&there).cloned().collect();
        let full = limits
            .iter()
            .any(|(driver, limit)| on(&new, driver) > 0 && on(&there, driver) + on(&new, driver) > *limit);
        if full { Verdict::refused("node(s) exceed max volume count") } else { Verdict::Fits }
    }
}
