//! Keeps claims while pods use them, volumes while claims are bound to them, and classes of attributes while either
//! names them; makes the claims of ephemeral volumes.

use std::sync::Arc;

use client::{Error, ListOptions, resources};
use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Plan, merge};
use futures::future::BoxFuture;
use serde_json::json;

use crate::kinds::{PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttributesClass};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const CLASS_FINALIZER: &str = "kubernetes.io/vac-protection";

/// What a guarded object's stay depends on.
pub struct View<K> {
    object: Arc<K>,
    finalizer: &'static str,
    in_use: bool,
}

/// Adds the finalizer while the object lives, takes it away when it is to go and nobody uses it.
fn guard<K: Kind>(view: &View<K>) -> Plan {
    let mut plan = Plan::default();
    let meta = view.object.meta();
    let guarded = meta.has_finalizer(view.finalizer);
    if !meta.is_terminating() && !guarded {
        plan.update(&*view.object, json!({"metadata": {"finalizers": meta.finalizers_with(view.finalizer)}}));
    } else if meta.is_terminating() && guarded && !view.in_use {
        plan.update(
            &*view.object,
            json!({"metadata": {"finalizers": meta.finalizers_without(view.finalizer)}}),
        );
    }
    plan
}

/// Only a pod that has a node uses its claims: kubelets start none whose claim is going.
fn uses(pod: &Pod, claim: &str) -> bool {
    let is_placed = !pod.spec.node_name.is_empty();
    is_placed && !pod.is_finished() && pod.claim_names().iter().any(|name| name == claim)
}

/// Guards claims.
pub fn of_claims() -> Controller {
    let gather =
        |context: Context| -> BoxFuture<'static, Result<Option<View<PersistentVolumeClaim>>, Error>> {
            Box::pin(async move {
                let Some(object) = context.object::<PersistentVolumeClaim>() else { return Ok(None) };
                let (namespace, name) = (&object.metadata.namespace, &object.metadata.name);
                let cached = context.caches.of::<Pod>().in_namespace(namespace);
                let mut in_use = cached.iter().any(|pod| uses(pod, name));
                // A cache that lags does not know of the pod that was placed a moment ago.
                if object.metadata.is_terminating()
                    && object.metadata.has_finalizer(CLAIM_FINALIZER)
                    && !in_use
                {
                    let pods = context.reader.api(&resources::PODS).within(namespace);
                    in_use = pods
                        .list::<Pod>(&ListOptions::default())
                        .await?
                        .items
                        .iter()
                        .any(|pod| uses(pod, name));
                }
                Ok(Some(View { object, finalizer: CLAIM_FINALIZER, in_use }))
            })
        };
    Controller::reading("persistentvolumeclaim-protection-controller", gather, guard)
        .acting_as("pvc-protection-controller")
        .for_kind::<PersistentVolumeClaim>()
        .watching::<Pod>(|caches, change| {
            let ended = change.new.as_ref().is_none_or(|pod| pod.is_finished());
            if !ended {
                return Vec::new();
            }
            let pod = change.latest();
            let keys = pod.claim_names().into_iter().map(|name| Key::new(&pod.metadata.namespace, &name));
            let claims = caches.of::<PersistentVolumeClaim>();
            keys.filter(|key| claims.get(key).is_some_and(|claim| claim.metadata.is_terminating())).collect()
        })
}

/// Guards volumes.
pub fn of_volumes() -> Controller {
    let gather = |context: &Context| {
        let object = context.object::<PersistentVolume>()?;
        let in_use = &*object.status.phase == "Bound";
        Some(View { object, finalizer: VOLUME_FINALIZER, in_use })
    };
    Controller::new("persistentvolume-protection-controller", gather, guard)
        .acting_as("pv-protection-controller")
        .for_kind::<PersistentVolume>()
}

/// Guards classes of volume attributes.
pub fn of_classes() -> Controller {
    let gather = |context: &Context| {
        let object = context.object::<VolumeAttributesClass>()?;
        let named = |class: &Option<Box<str>>| class.as_deref() == Some(&*object.metadata.name);
        let claims = context.caches.of::<PersistentVolumeClaim>().list();
        let volumes = context.caches.of::<PersistentVolume>().list();
        let in_use = claims.iter().any(|claim| named(&claim.spec.volume_attributes_class_name))
            || volumes.iter().any(|volume| named(&volume.spec.volume_attributes_class_name));
        Some(View { object, finalizer: CLASS_FINALIZER, in_use })
    };
    let keys = |class: Option<&str>| class.map(Key::cluster).into_iter().collect::<Vec<_>>();
    Controller::new("volumeattributesclass-protection-controller", gather, guard)
        .acting_as("volumeattributesclass-protection-controller")
        .for_kind::<VolumeAttributesClass>()
        .watching::<PersistentVolumeClaim>(move |_, change| {
            keys(change.old.as_ref().and_then(|claim| claim.spec.volume_attributes_class_name.as_deref()))
        })
        .watching::<PersistentVolume>(move |_, change| {
            keys(change.old.as_ref().and_then(|volume| volume.spec.volume_attributes_class_name.as_deref()))
        })
}

/// What a pod's ephemeral claims depend on.
pub struct Ephemeral {
    pod: Arc<Pod>,
    /// The claims that have the names of its volumes.
    claims: Vec<Arc<PersistentVolumeClaim>>,
}

fn make_claims(view: &Ephemeral) -> Plan {
    let mut plan = Plan::default();
    let pod = &*view.pod;
    if pod.metadata.is_terminating() || pod.is_finished() {
        return plan;
    }
    for volume in &pod.spec.volumes {
        let Some(template) = volume.ephemeral.as_ref().and_then(|own| own.volume_claim_template.as_ref())
        else {
            continue;
        };
        let name = format!("{}-{}", pod.metadata.name, volume.name);
        if let Some(claim) = view.claims.iter().find(|claim| *claim.metadata.name == *name) {
            if !claim.metadata.is_controlled_by(&pod.metadata.uid) {
                let text =
                    format!("PVC {name} was not created for pod {} (pod is not owner)", pod.metadata.key());
                plan.warn(pod, "FailedEphemeralVolume", text.clone());
                plan.retry(text);
            }
            continue;
        }
        let mut claim = template.value();
        merge(
            &mut claim,
            &json!({"metadata": {"name": name, "namespace": pod.metadata.namespace,
            "ownerReferences": [pod.controller_ref()]}}),
        );
        plan.create(&PersistentVolumeClaim::RESOURCE, claim).tolerant();
    }
    plan
}

/// Makes the claims of pods' ephemeral volumes.
pub fn ephemeral() -> Controller {
    let names = |pod: &Pod| pod.spec.volumes.iter().any(|volume| volume.ephemeral.is_some());
    let gather = move |context: &Context| {
        let pod = context.object::<Pod>()?;
        let cache = context.caches.of::<PersistentVolumeClaim>();
        let key = |name: String| Key::new(&pod.metadata.namespace, &name);
        let claims = pod.claim_names().into_iter().filter_map(|name| cache.get(&key(name))).collect();
        Some(Ephemeral { pod, claims })
    };
    Controller::new("ephemeral-volume-controller", gather, make_claims)
        .acting_as("ephemeral-volume-controller")
        .events_from("ephemeral_volume")
        .watching::<Pod>(move |_, change| match &change.new {
            Some(pod) if change.old.is_none() && names(pod) => vec![change.key()],
            _ => Vec::new(),
        })
        .watching::<PersistentVolumeClaim>(of_lost_claim)
}

/// A claim that vanishes under its pod is made again.
fn of_lost_claim(caches: &Caches, change: &Change<PersistentVolumeClaim>) -> Vec<Key> {
    let metadata = &change.latest().metadata;
    let owner = metadata.controller().filter(|owner| change.new.is_none() && &*owner.kind == "Pod");
    let key = owner.map(|owner| Key::new(&metadata.namespace, &owner.name));
    key.into_iter().filter(|key| caches.of::<Pod>().get(key).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{object, pod};

    #[test]
    fn what_is_in_use_stays() {
        let claim = |terminating: bool, guarded: bool| -> Arc<PersistentVolumeClaim> {
            let finalizers = if guarded { json!([CLAIM_FINALIZER, "x"]) } else { json!(["x"]) };
            let at = if terminating { json!("2026-01-01T00:00:00Z") } else { json!(null) };
            Arc::new(object(json!({"metadata":{"name":"c","finalizers":finalizers,"deletionTimestamp":at}})))
        };
        let plan = |terminating, guarded, in_use| {
            guard(&View { object: claim(terminating, guarded), finalizer: CLAIM_FINALIZER, in_use })
        };
        assert_eq!(
            plan(false, false, false).changes()[0].1["metadata"]["finalizers"],
            json!(["x", CLAIM_FINALIZER])
        );
        assert!(plan(false, true, true).is_empty());
        assert!(plan(true, true, true).is_empty());
        assert_eq!(plan(true, true, false).changes()[0].1["metadata"]["finalizers"], json!(["x"]));
    }

    #[test]
    fn only_placed_pods_that_run_use_a_claim() {
        let user = |node: &str, phase: &str| {
            let volumes = json!([{"name":"v","persistentVolumeClaim":{"claimName":"c"}}]);
            pod("p", json!({"spec":{"nodeName":node,"volumes":volumes},"status":{"phase":phase}}))
        };
        assert!(uses(&user("n", "Running"), "c") && !uses(&user("n", "Running"), "d"));
        assert!(!uses(&user("", "Pending"), "c") && !uses(&user("n", "Succeeded"), "c"));
    }

    #[test]
    fn ephemeral_volumes_get_claims_of_their_own() {
        let owner = Arc::new(pod(
            "p",
            json!({"spec":{"volumes":[{"name":"v","ephemeral":{"volumeClaimTemplate":{"spec":{"accessModes":["ReadWriteOnce"]}}}}]}}),
        ));
        let plan = make_claims(&Ephemeral { pod: owner.clone(), claims: vec![] });
        assert_eq!(plan.creates()[0]["metadata"]["name"], "p-v");
        assert_eq!(plan.creates()[0]["metadata"]["ownerReferences"][0]["uid"], "p");
        let foreign = Arc::new(object(json!({"metadata":{"name":"p-v"}})));
        assert!(make_claims(&Ephemeral { pod: owner, claims: vec![foreign] }).failure().is_some());
    }
}
