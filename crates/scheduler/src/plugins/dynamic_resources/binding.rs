//! Writes allocations and reservations of devices, and waits until the devices are ready.

use std::sync::Arc;
use std::time::Duration;

use client::{Key, Patch, resources};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::extended::Realised;
use super::{Chosen, DynamicResources};
use crate::devices::{AllocatedDevice, DeviceToleration, Readiness, ResourceClaim};
use crate::framework::{Cycle, PreBind, Reasons};
use crate::handle::{Handle, News};
use crate::types::{Pod, Toleration};

/// How long to wait until the cache shows what was written.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

impl PreBind for DynamicResources {
    fn pre_bind<'a>(
        &'a self,
        cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<(), Reasons>> {
        Box::pin(async move {
            let Some(Chosen(chosen)) = cycle.get::<Chosen>() else { return Ok(()) };
            let realised = cycle.get::<Realised>();
            let mut keys = Vec::new();
            for (claim, devices) in chosen {
                let key = claim.metadata.key();
                if devices.is_none() && claim.is_reserved_for(pod) {
                    keys.push(key);
                    continue;
                }
                let made_up = realised.filter(|realised| Arc::ptr_eq(&realised.made_up.claim, claim));
                let written = match made_up {
                    Some(realised) => realise(realised, devices.as_ref(), pod, handle).await,
                    None => write(claim, devices.as_ref(), pod, handle).await.map(|()| key.clone()),
                };
                let written = written.map_err(|error| {
                    Reasons::from(format!("claim {}: {}", claim.metadata.name, telemetry::chain(&error)))
                })?;
                if devices.is_some() {
                    // The promise is kept until the cache shows the allocation, so that no device is given twice.
                    let shown = handle.until(|cache| {
                        let allocated = |claim: &Arc<ResourceClaim>| claim.status.allocation.is_some();
                        cache.devices.claims.get(&written).is_some_and(allocated).then_some(())
                    });
                    let _ = tokio::time::timeout(LONGEST_WAIT, shown).await;
                    handle.with_cache(|cache| cache.devices.promised.remove(&key));
                }
                keys.push(written);
            }
            self.wait_for_devices(keys, pod, node, handle).await
        })
    }

    fn takes_time(&self, cycle: &Cycle, pod: &Pod) -> bool {
        let Some(Chosen(chosen)) = cycle.get::<Chosen>() else { return false };
        chosen.iter().any(|(claim, devices)| devices.is_some() || !claim.is_reserved_for(pod))
    }
}

impl DynamicResources {
    /// Some devices have to be attached to the node first; their drivers say when.
    async fn wait_for_devices(
        &self,
        mut keys: Vec<Key>,
        pod: &Pod,
        node: &str,
        handle: &Handle,
    ) -> Result<(), Reasons> {
        handle.with_cache(|cache| {
            let claims = &cache.devices.claims;
            keys.retain(|key| claims.get(key).is_some_and(|claim| claim.has_binding_conditions()));
        });
        if keys.is_empty() {
            return Ok(());
        }
        let message = format!("waiting for binding conditions for device on node {node}");
        let reason = "BindingConditionsPending";
        let news = News { warning: false, reason, action: "Scheduling", message, related: None };
        handle.record(pod, &pod.spec.scheduler_name, news);
        let ready = handle.until(|cache| {
            for key in &keys {
                let Some(claim) = cache.devices.claims.get(key) else {
                    return Some(Err(format!("resourceclaim {key} not found").into()));
                };
                match claim.readiness() {
                    Readiness::Ready => {}
                    Readiness::Pending => return None,
                    Readiness::Failed(why) => return Some(Err(why.into())),
                }
            }
            Some(Ok(()))
        });
        match tokio::time::timeout(self.binding_timeout, ready).await {
            Ok(outcome) => outcome,
            Err(_) => Err("device binding timeout: context deadline exceeded".into()),
        }
    }
}

/// Makes a made-up claim real, with its devices, and tells the pod's kubelet of it.
async fn realise(
    realised: &Realised,
    devices: Option<&(Vec<AllocatedDevice>, Value)>,
    pod: &Pod,
    handle: &Handle,
) -> Result<Key, client::Error> {
    let made = realised.made_up.create(pod, handle).await?;
    let written = async {
        write(&made, devices, pod, handle).await?;
        realised.made_up.tell(&made.metadata.name, pod, handle).await
    };
    match written.await {
        Ok(()) => Ok(made.metadata.key()),
        Err(error) => {
            super::extended::discard(Arc::new(made), handle.clone()).await;
            Err(error)
        }
    }
}

/// Writes allocation and reservation; a claim that changed meanwhile is read again, unless someone else allocated it.
async fn write(
    claim: &ResourceClaim,
    devices: Option<&(Vec<AllocatedDevice>, Value)>,
    pod: &Pod,
    handle: &Handle,
) -> Result<(), client::Error> {
    let meta = &claim.metadata;
    let api = handle.client.api(&resources::RESOURCE_CLAIMS).within(&meta.namespace);
    let mut object: Value = api.get(&meta.name).await?;
    let has_finalizer = object["metadata"]["finalizers"]
        .as_array()
        .is_some_and(|all| all.iter().any(|finalizer| finalizer == FINALIZER));
    if devices.is_some() && !has_finalizer {
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.push(FINALIZER.into());
        let version = object["metadata"]["resourceVersion"].clone();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        object = api.patch(&meta.name, Patch::Merge(&patch)).await?;
    }
    if let Some((results, selector)) = devices {
        let config = class_config(claim, handle);
        let results: Vec<Value> = results.iter().map(result).collect();
        let mut allocation = json!({"devices": {"results": results}, "allocationTimestamp": controller_runtime::time(Timestamp::now())});
        if !config.is_empty() {
            allocation["devices"]["config"] = Value::Array(config);
        }
        if !selector.is_null() {
            allocation["nodeSelector"] = selector.clone();
        }
        object["status"]["allocation"] = allocation;
    }
    if !claim.is_reserved_for(pod) {
        let consumer = json!({"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid});
        match object["status"]["reservedFor"].as_array_mut() {
            Some(list) => list.push(consumer),
            None => object["status"]["reservedFor"] = json!([consumer]),
        }
    }
    // The object carries the version that was read: a write in between makes this one fail, and the pod is tried again.
    api.replace_sub::<IgnoredAny>(&meta.name, "status", &object).await.map(drop)
}

fn result(device: &AllocatedDevice) -> Value {
    let mut value = json!({
        "request": device.request, "driver": device.driver, "pool": device.pool, "device": device.device,
    });
    if device.admin_access {
        value["adminAccess"] = true.into();
    }
    if !device.tolerations.is_empty() {
        value["tolerations"] = device.tolerations.iter().map(toleration).collect();
    }
    for (field, names) in [
        ("bindingConditions", &device.binding_conditions),
        ("bindingFailureConditions", &device.binding_failure_conditions),
    ] {
        if !names.is_empty() {
            value[field] = json!(names);
        }
    }
    if device.share_id.is_some() {
        value["shareID"] = share_id().into();
        value["consumedCapacity"] = json!(device.consumed_capacity);
    }
    value
}

fn toleration(it: &DeviceToleration) -> Value {
    let Toleration { key, operator, value, effect } = &it.toleration;
    let mut written = json!({});
    for (field, text) in [("key", key), ("operator", operator), ("value", value), ("effect", effect)] {
        if !text.is_empty() {
            written[field] = json!(text);
        }
    }
    if let Some(seconds) = it.toleration_seconds {
        written["tolerationSeconds"] = seconds.into();
    }
    written
}

/// An identity that no other share has.
fn share_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(Timestamp::now().as_nanosecond());
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48) & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}

/// What classes and the claim have to say to the drivers, classes first.
fn class_config(claim: &ResourceClaim, handle: &Handle) -> Vec<Value> {
    let devices = &claim.spec.devices;
    let mut all = Vec::new();
    handle.with_cache(|cache| {
        for request in &devices.requests {
            for asked in request.exactly.iter().chain(&request.first_available) {
                let class = cache.devices.classes.get(&asked.device_class_name);
                for config in class.iter().flat_map(|class| &class.spec.config) {
                    let mut config = config.clone();
                    config["source"] = "FromClass".into();
                    config["requests"] = json!([request.name]);
                    all.push(config);
                }
            }
        }
    });
    for config in &devices.config {
        let mut config = config.clone();
        config["source"] = "FromClaim".into();
        all.push(config);
    }
    all
}
