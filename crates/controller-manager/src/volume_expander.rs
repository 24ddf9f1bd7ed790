//! Has volumes of bound claims made larger: directories of the class `local` by saying so, all others by whoever drives
//! them, which an event tells.

use std::sync::Arc;

use apimachinery::quantity::Quantity;
use controller_runtime::{Change, Context, Controller, Key, Plan};

use crate::kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass};
use crate::local_volumes::LocalVolumes;

/// What one claim's size depends on.
pub struct View {
    claim: Arc<PersistentVolumeClaim>,
    volume: Arc<PersistentVolume>,
    class: Option<Arc<StorageClass>>,
    /// Makes volumes on nodes.
    local: Option<LocalVolumes>,
}

fn asked(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    claim.spec.resources.requests.get("storage")?.parse().ok()
}

fn told(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    claim.status.capacity.get("storage")?.parse().ok()
}

/// Decides on one claim.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let (claim, volume) = (&*view.claim, &*view.volume);
    if let Some(local) = view.local.as_ref().filter(|local| local.made(volume)) {
        local.expand(claim, volume, view.class.as_deref(), &mut plan);
    } else if matches!((asked(claim), told(claim)), (Some(asked), Some(told)) if asked > told) {
        plan.event(claim, "ExternalExpanding", "waiting for an external controller to expand this PVC");
    }
    plan
}

/// Claims that ask for more than before, or that are larger than before.
fn grown(change: &Change<PersistentVolumeClaim>) -> bool {
    match (&change.old, &change.new) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => {
            asked(new) > asked(old) || told(new) > told(old) || old.status.phase != new.status.phase
        }
    }
}

/// The controller.
pub fn controller(local: Option<LocalVolumes>) -> Controller {
    let gather = move |context: &Context| {
        let claim =
            context.object::<PersistentVolumeClaim>().filter(|claim| &*claim.status.phase == "Bound")?;
        let volume = context.caches.of::<PersistentVolume>().get(&Key::cluster(&claim.spec.volume_name))?;
        let own = volume.spec.claim_ref.as_ref()?;
        let class = context.caches.of::<StorageClass>().get(&Key::cluster(claim.class()));
        (own.uid == claim.metadata.uid).then(|| View { local: local.clone(), claim, volume, class })
    };
    let ours = |change: &Change<PersistentVolume>| {
        let own = change.new.as_ref().and_then(|volume| volume.spec.claim_ref.clone());
        own.map(|own| Key::new(&own.namespace, &own.name)).into_iter().collect::<Vec<_>>()
    };
    Controller::new("persistentvolume-expander-controller", gather, reconcile)
        .acting_as("expand-controller")
        .events_from("volume_expand")
        .watching::<PersistentVolumeClaim>(
            |_, change| if grown(change) { vec![change.key()] } else { Vec::new() },
        )
        // A directory's volume is written first and its claim when that is seen.
        .watching::<PersistentVolume>(move |_, change| {
            let capacity = |volume: &Option<Arc<PersistentVolume>>| {
                volume.as_ref().map(|volume| volume.spec.capacity.clone())
            };
            if capacity(&change.old) == capacity(&change.new) { Vec::new() } else { ours(change) }
        })
        .reading_kind::<StorageClass>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use crate::volume_binder::PROVISIONED_BY;
    use serde_json::json;

    fn plan(asked: &str, told: &str, capacity: &str, by: &str, allowed: bool) -> Plan {
        let local = LocalVolumes::under("/data");
        reconcile(&View {
            claim: Arc::new(object(json!({"metadata":{"name":"c","namespace":"n","uid":"c1"},
                "spec":{"resources":{"requests":{"storage":asked}},"volumeName":"v"},
                "status":{"phase":"Bound","capacity":{"storage":told}}}))),
            volume: Arc::new(object(json!({"metadata":{"name":"v","annotations":{PROVISIONED_BY:by}},
                "spec":{"capacity":{"storage":capacity},"claimRef":{"uid":"c1"}}}))),
            class: Some(Arc::new(object(
                json!({"metadata":{"name":"local"},"allowVolumeExpansion":allowed}),
            ))),
            local: Some(local),
        })
    }

    #[test]
    fn directories_grow_here_and_other_volumes_elsewhere() {
        let own = LocalVolumes::under("/data").provisioner;
        let first = plan("2Gi", "1Gi", "1Gi", &own, true);
        assert_eq!(first.changes()[0].1["spec"]["capacity"]["storage"], "2Gi");
        let second = plan("2Gi", "1Gi", "2Gi", &own, true);
        assert_eq!(second.status_change().unwrap()["capacity"]["storage"], "2Gi");
        assert!(plan("2Gi", "2Gi", "2Gi", &own, true).is_empty());
        assert!(plan("2Gi", "1Gi", "1Gi", &own, false).is_empty(), "the class does not let it");
        let other = plan("2Gi", "1Gi", "1Gi", "csi.example.com", true);
        assert_eq!((other.changes().len(), &*other.events()[0].reason), (0, "ExternalExpanding"));
        assert!(plan("1Gi", "1Gi", "1Gi", "csi.example.com", true).is_empty());
    }
}
