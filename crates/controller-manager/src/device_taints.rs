//! Deletes pods whose devices got a `NoExecute` taint that their claims do not tolerate, at once or when their patience
//! ends. Taints of rules (`DeviceTaintRule`, off by default upstream) are not looked at.

use std::sync::Arc;

use client::resources;
use controller_runtime::{Caches, Change, Context, Controller, Key, Meta, PatchForm, Plan};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::housekeeping::{AllocatedDevice, ResourceClaim};
use crate::kinds::{Pod, Taint, kind, none};
use crate::taint_eviction::{NO_EXECUTE, Patience, Waiting};

/// A ResourceSlice, as far as its devices are tainted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    metadata: Meta,
    spec: SliceSpec,
}
kind!(ResourceSlice, RESOURCE_SLICES, keep none, index |slice, add| add("pool", &slice.spec.place()));

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct SliceSpec {
    driver: Box<str>,
    pool: Pool,
    #[serde(deserialize_with = "tainted_only")]
    devices: Vec<Device>,
}

impl SliceSpec {
    fn place(&self) -> String {
        place(&self.driver, &self.pool.name)
    }
}

/// Names a pool among all of them.
pub fn place(driver: &str, pool: &str) -> String {
    format!("{driver}/{pool}")
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Pool {
    name: Box<str>,
    generation: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Device {
    name: Box<str>,
    taints: Vec<Taint>,
}

/// Only what evicts is worth memory: there may be many devices, and few are tainted.
fn tainted_only<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Device>, D::Error> {
    let mut devices = Option::<Vec<Device>>::deserialize(from)?.unwrap_or_default();
    for device in &mut devices {
        device.taints.retain(|taint| &*taint.effect == NO_EXECUTE);
    }
    devices.retain(|device| !device.taints.is_empty());
    Ok(devices)
}

/// What one pod's stay depends on.
pub struct View {
    pod: Arc<Pod>,
    /// The pod's devices that are tainted, with the taints.
    tainted: Vec<(AllocatedDevice, Vec<Taint>)>,
    /// Whether its end was near before.
    waited: bool,
    now: Timestamp,
}

/// Decides on one pod.
fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let pod = &*view.pod;
    match patience(&view.tainted, view.now) {
        _ if pod.metadata.is_terminating() => {}
        Patience::Endless if view.waited => {
            plan.event(pod, "DeviceTaintManagerEviction", "Cancelling deletion");
        }
        Patience::Endless => {}
        Patience::Until(at) if at > view.now => {
            plan.look_again(at);
        }
        Patience::Until(_) => {
            let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByDeviceTaintManager",
                "message": "Device Taint manager: deleting due to NoExecute taint",
                "lastTransitionTime": controller_runtime::time(view.now)});
            let body = json!({"status": {"conditions": [condition]}});
            plan.patch_meta(&resources::PODS, &pod.metadata, Some("status"), PatchForm::Strategic, body)
                .tolerant();
            plan.then();
            plan.delete(pod);
            plan.event(pod, "DeviceTaintManagerEviction", "Marking for deletion");
        }
    }
    plan
}

/// When the first taint drives the pod away. As upstream has it, only tolerations that name `NoExecute` count.
fn patience(tainted: &[(AllocatedDevice, Vec<Taint>)], now: Timestamp) -> Patience {
    let ends = tainted.iter().flat_map(|(device, taints)| taints.iter().map(move |taint| (device, taint)));
    let ends = ends.filter_map(|(device, taint)| {
        let since = taint.time_added.unwrap_or(now);
        let fitting =
            device.tolerations.iter().filter(|own| &*own.effect == NO_EXECUTE && own.tolerates(taint));
        let times: Vec<Option<i64>> = fitting.map(|toleration| toleration.toleration_seconds).collect();
        if times.contains(&None) {
            return None;
        }
        let seconds = times.into_iter().flatten().min().unwrap_or(0).max(0);
        Some(since.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX))
    });
    ends.min().map_or(Patience::Endless, Patience::Until)
}

/// The taints of a device, as the newest generation of its pool has them.
fn taints(caches: &Caches, device: &AllocatedDevice) -> Vec<Taint> {
    let slices = caches.of::<ResourceSlice>().indexed("pool", &place(&device.driver, &device.pool));
    let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
    let current = slices.iter().filter(|slice| Some(slice.spec.pool.generation) == newest);
    let mut found =
        current.flat_map(|slice| slice.spec.devices.iter().filter(|own| own.name == device.device));
    found.next().map(|device| device.taints.clone()).unwrap_or_default()
}

/// The claims that a pod uses.
fn claims(caches: &Caches, pod: &Pod) -> Vec<Arc<ResourceClaim>> {
    let name = |claim: &crate::kinds::PodResourceClaim| {
        let made = || pod.status.resource_claim_statuses.iter().find(|status| status.name == claim.name);
        claim.resource_claim_name.clone().or_else(|| made().and_then(|made| made.resource_claim_name.clone()))
    };
    let names = pod.spec.resource_claims.iter().filter_map(name);
    let found =
        names.filter_map(|name| caches.of::<ResourceClaim>().get(&Key::new(&pod.metadata.namespace, &name)));
    found.filter(|claim| claim.is_reserved_for(&pod.metadata.uid)).collect()
}

fn bound_with_claims(pod: &Pod) -> bool {
    !pod.spec.node_name.is_empty() && !pod.spec.resource_claims.is_empty()
}

/// The controller.
pub fn controller() -> Controller {
    let waiting = Waiting::default();
    let gather = move |context: &Context| {
        let pod = context.object::<Pod>().filter(|pod| bound_with_claims(pod));
        let Some(pod) = pod else {
            waiting.forget(&context.key);
            return None;
        };
        let used = claims(&context.caches, &pod);
        let devices = used.iter().flat_map(|claim| claim.devices().iter().cloned());
        let tainted: Vec<_> =
            devices.map(|device| (device.clone(), taints(&context.caches, &device))).collect();
        let waits = matches!(patience(&tainted, context.now), Patience::Until(at) if at > context.now);
        let waited = waiting.note(&context.key, &pod.metadata.uid, waits, context.now).is_some();
        Some(View { pod, tainted, waited, now: context.now })
    };
    Controller::new("device-taint-eviction-controller", gather, reconcile)
        .acting_as("device-taint-eviction-controller")
        .events_from("device-taint-eviction-controller")
        .watching::<Pod>(|_, change: &Change<Pod>| {
            let pod = change.latest();
            let fresh = change.old.as_ref().is_none_or(|old| !bound_with_claims(old)) || change.new.is_none();
            if bound_with_claims(pod) && fresh { vec![change.key()] } else { Vec::new() }
        })
        .watching::<ResourceClaim>(|_, change| change.latest().consumers())
        .watching::<ResourceSlice>(|caches, change: &Change<ResourceSlice>| {
            let evicts = |slice: &Option<Arc<ResourceSlice>>| {
                slice.as_ref().map(|slice| slice.spec.clone()).filter(|spec| !spec.devices.is_empty())
            };
            let (old, new) = (evicts(&change.old), evicts(&change.new));
            if old == new {
                return Vec::new();
            }
            let place = change.latest().spec.place();
            let used = caches.of::<ResourceClaim>().indexed("pool", &place);
            used.iter().flat_map(|claim| claim.consumers()).collect()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};
    use serde_json::Value;

    fn plan(tolerations: Value, added: &str, waited: bool) -> Plan {
        let device = object(json!({"driver": "d", "pool": "p", "device": "x", "tolerations": tolerations}));
        let taint = if added.is_empty() {
            Vec::new()
        } else {
            object(json!([{"key": "k", "effect": "NoExecute", "timeAdded": added}]))
        };
        let pod = Arc::new(pod("p", json!({"spec": {"nodeName": "a"}})));
        reconcile(&View { pod, tainted: vec![(device, taint)], waited, now: now() })
    }

    #[test]
    fn patience_of_claims_decides() {
        let minute_ago = "2026-01-01T11:59:00Z";
        let tolerate = |effect: &str, seconds: Value| json!([{"key": "k", "operator": "Exists", "effect": effect, "tolerationSeconds": seconds}]);
        assert_eq!(plan(json!([]), minute_ago, false).deletes(), ["p"]);
        assert_eq!(plan(tolerate("NoSchedule", Value::Null), minute_ago, false).deletes(), ["p"]);
        assert!(plan(tolerate("NoExecute", Value::Null), minute_ago, false).is_empty());
        assert_eq!(plan(tolerate("NoExecute", json!(30)), minute_ago, false).deletes(), ["p"]);
        let waiting = plan(tolerate("NoExecute", json!(300)), minute_ago, false);
        assert_eq!(waiting.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:04:00Z"));
        assert!(plan(json!([]), "", false).is_empty());
        assert_eq!(plan(json!([]), "", true).events()[0].message, "Cancelling deletion");
    }

    #[test]
    fn only_tainted_devices_are_kept() {
        let slice: ResourceSlice =
            object(json!({"spec": {"driver": "d", "pool": {"name": "p", "generation": 2},
            "devices": [{"name": "a"}, {"name": "b", "taints": [{"key": "k", "effect": "NoSchedule"}]},
                        {"name": "c", "taints": [{"key": "k", "effect": "NoExecute"}]}]}}));
        assert_eq!(slice.spec.devices.len(), 1);
        assert_eq!(slice.spec.place(), "d/p");
    }
}
