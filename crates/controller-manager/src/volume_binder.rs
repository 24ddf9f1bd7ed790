//! Binds PersistentVolumeClaims to PersistentVolumes, has volumes made where none fits, and gives released ones back.
//!
//! A bond has two ends that are written one after the other: first the volume names the claim (by uid), then the claim
//! names the volume. A bond that was begun is always finished, never undone, so it does not matter where a crash comes.

use std::sync::Arc;

use apimachinery::quantity::Quantity;
use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Labels, Plan};
use futures::future::BoxFuture;
use serde_json::json;

use crate::kinds::{ClaimRef, PersistentVolume, PersistentVolumeClaim, StorageClass, labels_json};
use crate::local_volumes::LocalVolumes;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_US: &str = "pv.kubernetes.io/bound-by-controller";
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// What one claim may depend on.
pub struct View {
    /// The claim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// The volume that it names, if that exists.
    pub bound: Option<Arc<PersistentVolume>>,
    /// Volumes that could be bound.
    pub volumes: Vec<Arc<PersistentVolume>>,
    /// Its class.
    pub class: Option<Arc<StorageClass>>,
    /// The default class.
    pub default_class: Option<Arc<StorageClass>>,
    /// Makes volumes on nodes.
    pub local: Option<LocalVolumes>,
}

impl PersistentVolume {
    fn is_for(&self, claim: &PersistentVolumeClaim) -> bool {
        self.spec.claim_ref.as_ref().is_some_and(|own| {
            own.name == claim.metadata.name
                && *own.namespace == *claim.metadata.namespace
                && (own.uid.is_empty() || own.uid == claim.metadata.uid)
        })
    }

    fn storage(&self) -> Quantity {
        self.spec
            .capacity
            .get("storage")
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| Quantity::new(0))
    }
}

impl PersistentVolumeClaim {
    fn storage(&self) -> Quantity {
        let text = self.spec.resources.requests.get("storage");
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| Quantity::new(0))
    }

    pub(crate) fn class(&self) -> &str {
        let old = self.metadata.annotation("volume.beta.kubernetes.io/storage-class");
        old.or(self.spec.storage_class_name.as_deref()).unwrap_or("")
    }
}

/// Decides on one claim.
pub fn reconcile(view: &View) -> Plan {
    let claim = &*view.claim;
    let mut plan = Plan::default();
    if !claim.spec.volume_name.is_empty() {
        keep_bond(view, &mut plan);
        return plan;
    }
    if claim.metadata.is_terminating() {
        return plan;
    }
    if let Some(default) = view.default_class.as_ref().filter(|_| claim.spec.storage_class_name.is_none()) {
        // The claim is older than the default class, or admission did not know it yet.
        plan.update(claim, json!({"spec": {"storageClassName": default.metadata.name}}));
        return plan;
    }
    let waits = view
        .class
        .as_ref()
        .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
    let placed = claim.metadata.annotation(SELECTED_NODE).is_some();
    let kept = view.volumes.iter().find(|volume| volume.is_for(claim));
    let found = kept.or_else(|| if waits { None } else { best(view) });
    match found {
        Some(volume) => bind(claim, volume, &mut plan),
        None if waits && !placed => {
            pend(claim, &mut plan);
            let text = "waiting for first consumer to be created before binding";
            plan.event(claim, "WaitForFirstConsumer", text);
        }
        None => match &view.class {
            Some(class) => provision(view, class, &mut plan),
            None => {
                pend(claim, &mut plan);
                let name = claim.class();
                if name.is_empty() {
                    let text = "no persistent volumes available for this claim and no storage class is set";
                    plan.event(claim, "FailedBinding", text);
                } else {
                    let text = format!("storageclass.storage.k8s.io \"{name}\" not found");
                    plan.warn(claim, "ProvisioningFailed", text);
                }
            }
        },
    }
    plan
}

/// The smallest free volume that will do.
fn best(view: &View) -> Option<&Arc<PersistentVolume>> {
    let claim = &*view.claim;
    let fits = |volume: &&Arc<PersistentVolume>| {
        let spec = &volume.spec;
        let mode = |mode: &Option<Box<str>>| mode.as_deref().unwrap_or("Filesystem").to_owned();
        spec.claim_ref.is_none()
            && !volume.metadata.is_terminating()
            && *spec.storage_class_name == *claim.class()
            && mode(&spec.volume_mode) == mode(&claim.spec.volume_mode)
            && claim.spec.access_modes.iter().all(|wanted| spec.access_modes.contains(wanted))
            && claim.spec.selector.as_ref().is_none_or(|selector| selector.matches(&volume.metadata.labels))
            && volume.storage() >= claim.storage()
    };
    view.volumes
        .iter()
        .filter(fits)
        .min_by(|a, b| a.storage().cmp(&b.storage()).then_with(|| a.metadata.name.cmp(&b.metadata.name)))
}

fn bind(claim: &PersistentVolumeClaim, volume: &PersistentVolume, plan: &mut Plan) {
    let full = volume.spec.claim_ref.as_ref().is_some_and(|own| own.uid == claim.metadata.uid);
    if !full {
        let mut change = json!({"spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid}}});
        if volume.spec.claim_ref.is_none() {
            change["metadata"]["annotations"] = json!({BOUND_BY_US: "yes"});
        }
        plan.update(volume, change);
        plan.then();
    }
    let mut annotations = json!({BIND_COMPLETED: "yes"});
    if claim.spec.volume_name.is_empty() {
        // Who names a volume in a claim binds it by hand.
        annotations[BOUND_BY_US] = json!("yes");
    }
    plan.update(
        claim,
        json!({"metadata": {"annotations": annotations}, "spec": {"volumeName": volume.metadata.name}}),
    );
}

fn keep_bond(view: &View, plan: &mut Plan) {
    let claim = &*view.claim;
    let Some(volume) = &view.bound else {
        if claim.metadata.annotation(BIND_COMPLETED).is_none() {
            // Named by the user; the volume may still come.
            return pend(claim, plan);
        }
        if &*claim.status.phase != "Lost" {
            plan.set_status(claim, json!({"phase": "Lost", "accessModes": null, "capacity": null}));
            let text = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            plan.warn(claim, "ClaimLost", text);
        }
        return;
    };
    match &volume.spec.claim_ref {
        None => return bind(claim, volume, plan),
        Some(own) if own.uid == claim.metadata.uid => {}
        Some(_) if volume.is_for(claim) => return bind(claim, volume, plan),
        Some(_) if claim.metadata.annotation(BIND_COMPLETED).is_some() => {
            if &*claim.status.phase != "Lost" {
                plan.set_status(claim, json!({"phase": "Lost", "accessModes": null, "capacity": null}));
                let text = "Two claims are bound to the same volume, this one is bound incorrectly";
                plan.warn(claim, "ClaimMisbound", text);
            }
            return;
        }
        Some(_) => return pend(claim, plan),
    }
    if claim.metadata.annotation(BIND_COMPLETED).is_none() {
        plan.update(claim, json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}}));
        return;
    }
    let modes_match = claim.status.access_modes == volume.spec.access_modes;
    if &*claim.status.phase != "Bound" || !modes_match || claim.status.capacity.is_empty() {
        let capacity: Labels = volume.spec.capacity.iter().filter(|(name, _)| *name == "storage").collect();
        plan.set_status(
            claim,
            json!({"phase": "Bound", "accessModes": volume.spec.access_modes,
            "capacity": labels_json(&capacity)}),
        );
    }
}

fn pend(claim: &PersistentVolumeClaim, plan: &mut Plan) {
    if &*claim.status.phase != "Pending" {
        plan.set_status(claim, json!({"phase": "Pending"}));
    }
}

/// Has a volume made: by ourselves if the class says so, else by whoever follows the annotation.
fn provision(view: &View, class: &StorageClass, plan: &mut Plan) {
    let claim = &*view.claim;
    pend(claim, plan);
    if let Some(local) = view.local.as_ref().filter(|local| *local.provisioner == *class.provisioner) {
        return local.provision(claim, class, claim.metadata.annotation(SELECTED_NODE), plan);
    }
    if &*class.provisioner == "kubernetes.io/no-provisioner" {
        return;
    }
    if claim.metadata.annotation(PROVISIONER) != Some(&class.provisioner) {
        let provisioner = &class.provisioner;
        plan.update(
            claim,
            json!({"metadata": {"annotations": {PROVISIONER: provisioner, PROVISIONER_BETA: provisioner}}}),
        );
        // The status follows when the write is seen.
        return;
    }
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
         registered.",
        class.provisioner
    );
    plan.event(claim, "ExternalProvisioning", text);
}

fn gather(context: &Context, local: Option<&LocalVolumes>) -> Option<View> {
    let claim = context.object::<PersistentVolumeClaim>()?;
    let volumes = context.caches.of::<PersistentVolume>();
    let classes = context.caches.of::<StorageClass>();
    let bound = volumes.get(&Key::cluster(&claim.spec.volume_name));
    let class = classes.get(&Key::cluster(claim.class()));
    let unbound = claim.spec.volume_name.is_empty();
    let mut defaults = classes.list();
    defaults.retain(|class| class.metadata.annotation(DEFAULT_CLASS) == Some("true"));
    defaults.sort_by_key(|class| std::cmp::Reverse((class.metadata.created(), class.metadata.name.clone())));
    Some(View {
        bound,
        volumes: if unbound { volumes.list() } else { Vec::new() },
        class,
        default_class: defaults.into_iter().next(),
        local: local.cloned(),
        claim,
    })
}

/// Claims that a volume's change may concern: the one that it names, or all that wait.
fn of_volume(caches: &Caches, change: &Change<PersistentVolume>) -> Vec<Key> {
    let named = |claim: &ClaimRef| Key::new(&claim.namespace, &claim.name);
    let mut keys: Vec<Key> = change
        .old
        .iter()
        .chain(change.new.iter())
        .filter_map(|v| v.spec.claim_ref.as_ref().map(named))
        .collect();
    if change.new.as_ref().is_some_and(|volume| volume.spec.claim_ref.is_none()) {
        let waiting = caches.of::<PersistentVolumeClaim>().list();
        keys.extend(
            waiting.iter().filter(|claim| claim.spec.volume_name.is_empty()).map(|claim| claim.key()),
        );
    }
    keys.dedup();
    keys
}

fn of_class(caches: &Caches, change: &Change<StorageClass>) -> Vec<Key> {
    if change.new.is_none() {
        return Vec::new();
    }
    let waiting = caches.of::<PersistentVolumeClaim>().list();
    waiting.iter().filter(|claim| claim.spec.volume_name.is_empty()).map(|claim| claim.key()).collect()
}

/// What one volume's phase depends on.
pub struct VolumeView {
    volume: Arc<PersistentVolume>,
    claim: Option<Arc<PersistentVolumeClaim>>,
    /// Whether its storage is gone, where that is ours to remove and it was tried.
    removed: Option<Result<(), String>>,
}

fn phase_of(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> &'static str {
    match &volume.spec.claim_ref {
        None => "Available",
        Some(own) if own.uid.is_empty() => "Available",
        Some(own) if claim.is_some_and(|claim| claim.metadata.uid == own.uid) => "Bound",
        Some(_) => "Released",
    }
}

/// Whether a volume's storage is to be removed.
fn is_to_go(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> bool {
    phase_of(volume, claim) == "Released"
        && &*volume.spec.persistent_volume_reclaim_policy == "Delete"
        && !volume.metadata.is_terminating()
}

fn reconcile_volume(view: &VolumeView) -> Plan {
    let volume = &*view.volume;
    let mut plan = Plan::default();
    let mut phase = phase_of(volume, view.claim.as_deref());
    match &view.removed {
        Some(Ok(())) => {
            plan.delete(volume);
        }
        Some(Err(why)) => {
            phase = "Failed";
            plan.warn(volume, "VolumeFailedDelete", why.clone());
            plan.retry(why.clone());
        }
        None => {}
    }
    if *volume.status.phase != *phase {
        plan.set_status(volume, json!({"phase": phase}));
    }
    plan
}

/// Removes a directory and what is in it; one that was never made is gone, too.
async fn remove(directory: Option<String>) -> Result<(), String> {
    let Some(directory) = directory else { return Ok(()) };
    match tokio::fs::remove_dir_all(&directory).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {directory}: {error}"))
        }
        _ => Ok(()),
    }
}

/// The controllers of claims and of volumes.
pub fn controllers(local: Option<LocalVolumes>) -> [Controller; 2] {
    let for_volumes = local.clone();
    let claims = Controller::new(
        "persistentvolume-binder-controller",
        move |context| gather(context, local.as_ref()),
        reconcile,
    )
    .acting_as("persistent-volume-binder")
    .events_from("persistentvolume-controller")
    .for_kind::<PersistentVolumeClaim>()
    .watching::<PersistentVolume>(of_volume)
    .watching::<StorageClass>(of_class);
    let gather_volume = move |context: Context| -> BoxFuture<'static, _> {
        let local = for_volumes.clone();
        Box::pin(async move {
            let Some(volume) = context.object::<PersistentVolume>() else { return Ok(None) };
            let claim = volume.spec.claim_ref.as_ref().and_then(|own| {
                context.caches.of::<PersistentVolumeClaim>().get(&Key::new(&own.namespace, &own.name))
            });
            let ours = local.filter(|local| local.made(&volume) && is_to_go(&volume, claim.as_deref()));
            let removed = match ours {
                None => None,
                Some(local) => Some(remove(local.directory_here(&volume)).await),
            };
            Ok(Some(VolumeView { volume, claim, removed }))
        })
    };
    let volumes = Controller::reading("persistentvolume-phase-controller", gather_volume, reconcile_volume)
        .acting_as("persistent-volume-binder")
        .events_from("persistentvolume-controller")
        .for_kind::<PersistentVolume>()
        .watching::<PersistentVolumeClaim>(|_, change| {
            let name = &change.latest().spec.volume_name;
            if name.is_empty() { Vec::new() } else { vec![Key::cluster(name)] }
        });
    [claims, volumes]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;
    use serde_json::Value;

    fn claim(more: Value) -> Arc<PersistentVolumeClaim> {
        let mut value = json!({"metadata":{"name":"c","namespace":"n","uid":"c1"},"spec":{"accessModes":["ReadWriteOnce"],
            "storageClassName":"","resources":{"requests":{"storage":"5Gi"}}},"status":{"phase":"Pending"}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(object(value))
    }

    fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        let mut value = json!({"metadata":{"name":name,"uid":name},"spec":{"capacity":{"storage":size},
            "accessModes":["ReadWriteOnce","ReadOnlyMany"],"persistentVolumeReclaimPolicy":"Delete"}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(object(value))
    }

    fn view(claim: Arc<PersistentVolumeClaim>, volumes: Vec<Arc<PersistentVolume>>) -> View {
        let bound = volumes.iter().find(|volume| volume.metadata.name == claim.spec.volume_name).cloned();
        View { claim, bound, volumes, class: None, default_class: None, local: None }
    }

    fn class(mode: &str, provisioner: &str) -> Arc<StorageClass> {
        Arc::new(object(
            json!({"metadata":{"name":"fast"},"provisioner":provisioner,"volumeBindingMode":mode}),
        ))
    }

    #[test]
    fn the_smallest_volume_that_fits_is_bound_from_both_ends() {
        let volumes = vec![
            volume("big", "10Gi", json!({})),
            volume("right", "5Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("taken", "5Gi", json!({"spec":{"claimRef":{"namespace":"n","name":"other","uid":"x"}}})),
        ];
        let plan = reconcile(&view(claim(json!({})), volumes));
        let changes = plan.changes();
        assert_eq!((changes[0].0, &changes[0].1["spec"]["claimRef"]["uid"]), ("right", &json!("c1")));
        assert_eq!((changes[1].0, &changes[1].1["spec"]["volumeName"]), ("c", &json!("right")));
        assert_eq!(plan.stages().len(), 2);
    }

    #[test]
    fn a_volume_kept_for_the_claim_goes_before_a_better_one() {
        let kept = volume("kept", "50Gi", json!({"spec":{"claimRef":{"namespace":"n","name":"c"}}}));
        let plan = reconcile(&view(claim(json!({})), vec![volume("right", "5Gi", json!({})), kept]));
        assert_eq!(plan.changes()[0].0, "kept");
    }

    #[test]
    fn classes_decide_when_and_by_whom_a_volume_is_made() {
        let classy = || claim(json!({"spec":{"storageClassName":"fast"}}));
        let mut waiting = view(classy(), vec![]);
        waiting.class = Some(class("WaitForFirstConsumer", "csi.example"));
        assert_eq!(reconcile(&waiting).events()[0].reason, "WaitForFirstConsumer");
        let mut immediate = view(classy(), vec![]);
        immediate.class = Some(class("Immediate", "csi.example"));
        assert_eq!(
            reconcile(&immediate).changes()[0].1["metadata"]["annotations"][PROVISIONER],
            "csi.example"
        );
        assert_eq!(reconcile(&view(claim(json!({})), vec![])).events()[0].reason, "FailedBinding");
    }

    #[test]
    fn a_bound_claim_tells_what_it_got_and_a_lost_one_that_it_lost() {
        let bound =
            || claim(json!({"metadata":{"annotations":{BIND_COMPLETED:"yes"}},"spec":{"volumeName":"v"}}));
        let own = volume("v", "7Gi", json!({"spec":{"claimRef":{"namespace":"n","name":"c","uid":"c1"}}}));
        let status = reconcile(&view(bound(), vec![own])).status_change().unwrap().clone();
        assert_eq!((&status["phase"], &status["capacity"]), (&json!("Bound"), &json!({"storage":"7Gi"})));
        let lost = reconcile(&view(bound(), vec![]));
        assert_eq!(
            (&lost.status_change().unwrap()["phase"], &*lost.events()[0].reason),
            (&json!("Lost"), "ClaimLost")
        );
    }

    #[test]
    fn a_volume_tells_whose_it_is() {
        let phase = |claim_ref: Value, claim: Option<Arc<PersistentVolumeClaim>>| {
            let volume = volume("v", "1Gi", json!({"spec":{"claimRef":claim_ref}}));
            let plan = reconcile_volume(&VolumeView { volume, claim, removed: None });
            plan.status_change().unwrap()["phase"].clone()
        };
        let own = || json!({"namespace":"n","name":"c","uid":"c1"});
        assert_eq!(phase(Value::Null, None), "Available");
        assert_eq!(phase(own(), Some(claim(json!({})))), "Bound");
        assert_eq!(phase(own(), None), "Released");
        assert_eq!(phase(own(), Some(claim(json!({"metadata":{"uid":"c2"}})))), "Released");
    }

    #[test]
    fn a_volume_goes_after_its_storage() {
        let released =
            || volume("v", "1Gi", json!({"spec":{"claimRef":{"namespace":"n","name":"c","uid":"c1"}}}));
        let plan = |removed| reconcile_volume(&VolumeView { volume: released(), claim: None, removed });
        assert_eq!(plan(Some(Ok(()))).deletes(), ["v"]);
        let failed = plan(Some(Err("busy".into())));
        assert!(failed.deletes().is_empty() && failed.failure().is_some());
        assert_eq!(failed.status_change().unwrap()["phase"], "Failed");
        assert!(plan(None).deletes().is_empty());
        let bound = claim(json!({}));
        assert!(is_to_go(&released(), None) && !is_to_go(&released(), Some(&bound)));
    }
}
