//! Finds devices for a pod's resource claims on a node, and allocates and reserves them before the pod is bound.

use std::collections::HashSet;
use std::sync::Arc;

use client::{Key, Patch, resources};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::matches_selector;
use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::devices::allocation::{DeviceId, allocate, taken};
use crate::devices::{AllocatedDevice, AllocatedDevices, Allocation, Devices, ResourceClaim, claim_names};
use crate::events::{ClusterEvent, Events};
use crate::framework::{
    Cycle, Filter, Plugin, PreBind, PreEnqueue, PreFilter, Prepared, Reasons, Reserve, Verdict,
};
use crate::handle::Handle;
use crate::types::{NodeSelector, Pod};

/// No claim has more users than this.
const MOST_USERS: usize = 256;
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }
    fn wakes_on(&self) -> Events {
        let devices = Events::RESOURCE_CLAIM.and(Events::RESOURCE_SLICE).and(Events::DEVICE_CLASS);
        devices.and(Events::NODE).and(Events::POD_GONE)
    }
    fn may_help(&self, pod: &Pod, event: &ClusterEvent) -> bool {
        match event {
            // Its own claim changed, or another's devices became free.
            ClusterEvent::ResourceClaimChanged { old, new } => {
                let own = |claim: &Arc<ResourceClaim>| {
                    claim.metadata.namespace == pod.metadata.namespace
                        && claim_names(pod).any(|(_, name)| name == Some(&claim.metadata.name))
                };
                let allocated = |claim: &Option<Arc<ResourceClaim>>| {
                    claim.as_ref().is_some_and(|claim| claim.status.allocation.is_some())
                };
                new.as_ref().is_some_and(own) || allocated(old) && !allocated(new)
            }
            ClusterEvent::PodGone(gone) => !gone.spec.resource_claims.is_empty(),
            ClusterEvent::NodeChanged { old, new } => old.metadata.labels != new.metadata.labels,
            _ => true,
        }
    }
    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        Some(self)
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        Some(self)
    }
}

/// The pod's claims and the devices that are not to be had.
struct Claims {
    claims: Vec<Arc<ResourceClaim>>,
    taken: HashSet<DeviceId>,
}

/// What was allocated for the chosen node: claim, devices, and the selector of nodes that reach them.
struct Chosen(Vec<(Arc<ResourceClaim>, Option<(Vec<AllocatedDevice>, Value)>)>);

/// The objects of the pod's claims, or why they cannot be used yet.
fn find_claims(pod: &Pod, devices: &Devices) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let namespace = &pod.metadata.namespace;
    let mut claims = Vec::new();
    for (name, object) in claim_names(pod) {
        let object = object.ok_or_else(|| format!("waiting for dynamic resource controller to create the resourceclaim from template for {name:?}"))?;
        let claim = devices.claims.get(&Key::new(namespace, object));
        let claim = claim.ok_or_else(|| format!("resourceclaim {namespace}/{object} not found"))?;
        if claim.metadata.is_terminating() {
            return Err(format!("resourceclaim {object:?} is being deleted"));
        }
        let generated = pod
            .spec
            .resource_claims
            .iter()
            .any(|wanted| *wanted.name == *name && wanted.resource_claim_template_name.is_some());
        let owned = claim.metadata.controller().is_some_and(|owner| owner.uid == pod.metadata.uid);
        if generated && !owned {
            return Err(format!(
                "ResourceClaim {namespace}/{object} was not created for pod {namespace}/{} (pod is not owner)",
                pod.metadata.name
            ));
        }
        claims.push(claim.clone());
    }
    Ok(claims)
}

impl PreEnqueue for DynamicResources {
    fn holds_back(&self, pod: &Pod, cache: &Cache) -> Option<Reasons> {
        if pod.spec.resource_claims.is_empty() {
            return None;
        }
        find_claims(pod, &cache.devices).err().map(Reasons::from)
    }
}

impl PreFilter for DynamicResources {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared {
        if pod.pod.spec.resource_claims.is_empty() {
            return Prepared::Skip;
        }
        let claims = match find_claims(&pod.pod, &cache.devices) {
            Ok(claims) if claims.is_empty() => return Prepared::Skip,
            Ok(claims) => claims,
            Err(reason) => return Prepared::Never(reason.into()),
        };
        for claim in &claims {
            let full = claim.status.reserved_for.len() >= MOST_USERS && !claim.is_reserved_for(&pod.pod);
            if full {
                return Prepared::Never("resourceclaim in use".into());
            }
            if claim.status.allocation.is_none() && cache.devices.promised.contains_key(&claim.metadata.key())
            {
                let text =
                    format!("resourceclaim {} is in the process of being allocated", claim.metadata.name);
                return Prepared::Never(text.into());
            }
            for request in &claim.spec.devices.requests {
                for asked in request.exactly.iter().chain(&request.first_available) {
                    if claim.status.allocation.is_none()
                        && !cache.devices.classes.contains_key(&asked.device_class_name)
                    {
                        let text = format!(
                            "request {}: device class {} does not exist",
                            request.name, asked.device_class_name
                        );
                        return Prepared::Never(text.into());
                    }
                }
            }
        }
        let taken = taken(&cache.devices);
        cycle.keep(Claims { claims, taken });
        Prepared::Check
    }
}

impl Filter for DynamicResources {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict {
        let Some(Claims { claims, taken }) = cycle.get::<Claims>() else { return Verdict::Fits };
        let usable = |selector: &NodeSelector| matches_selector(selector, &node.node);
        for claim in claims {
            let allocation = claim.status.allocation.as_ref();
            if allocation
                .and_then(|allocation| allocation.node_selector.as_ref())
                .is_some_and(|it| !usable(it))
            {
                return Verdict::never("resourceclaim not available on the node");
            }
        }
        let open = open(claims);
        if open.is_empty() {
            return Verdict::Fits;
        }
        match allocate(&open, &node.node, &cache.devices, taken) {
            Ok(Some(_)) => Verdict::Fits,
            Ok(None) => Verdict::never("cannot allocate all claims"),
            Err(reason) => Verdict::never(reason),
        }
    }
}

fn open(claims: &[Arc<ResourceClaim>]) -> Vec<&ResourceClaim> {
    claims.iter().filter(|claim| claim.status.allocation.is_none()).map(|claim| &**claim).collect()
}

impl Reserve for DynamicResources {
    fn reserve(
        &self,
        cycle: &mut Cycle,
        _pod: &PlacedPod,
        node: &str,
        cache: &mut Cache,
    ) -> Result<(), Reasons> {
        let Some(Claims { claims, taken }) = cycle.get::<Claims>() else { return Ok(()) };
        let info = cache.node(node).ok_or("the chosen node is gone")?;
        let found = allocate(&open(claims), &info.node, &cache.devices, taken)?;
        let mut found = found.ok_or("cannot allocate all claims")?.into_iter();
        let mut chosen = Vec::new();
        for claim in claims {
            let devices = match &claim.status.allocation {
                Some(_) => None,
                None => found.next().map(|results| {
                    let selector = node_selector(&results, &cache.devices, node);
                    (results, selector)
                }),
            };
            chosen.push((claim.clone(), devices));
        }
        for (claim, devices) in &chosen {
            if let Some((results, _)) = devices {
                let devices = AllocatedDevices { results: results.clone() };
                cache
                    .devices
                    .promised
                    .insert(claim.metadata.key(), Allocation { devices, node_selector: None });
            }
        }
        cycle.keep(Chosen(chosen));
        Ok(())
    }

    fn unreserve(&self, cycle: &Cycle, _pod: &Pod, _node: &str, cache: &mut Cache) {
        let Some(Chosen(chosen)) = cycle.get::<Chosen>() else { return };
        for (claim, devices) in chosen {
            if devices.is_some() {
                cache.devices.promised.remove(&claim.metadata.key());
            }
        }
    }
}

/// The nodes from which all devices can be reached: one if any device is local to it, else whatever the slices say.
fn node_selector(results: &[AllocatedDevice], devices: &Devices, node: &str) -> Value {
    let mut terms: Vec<Value> = Vec::new();
    for result in results {
        let slice = devices.slices.values().map(|slice| &slice.spec).find(|slice| {
            slice.driver == result.driver
                && slice.pool.name == result.pool
                && slice.devices.iter().any(|device| device.name == result.device)
        });
        let Some(slice) = slice else { continue };
        let device = slice.devices.iter().find(|device| device.name == result.device);
        let nodes = match device {
            Some(device) if slice.per_device_node_selection => &device.nodes,
            _ => &slice.nodes,
        };
        if nodes.all_nodes == Some(true) {
            continue;
        }
        if let (None, Some(selector)) = (&nodes.node_name, &nodes.node_selector)
            && let [term] = &selector.node_selector_terms[..]
        {
            let written = |wishes: &[crate::types::Requirement]| -> Vec<Value> {
                wishes
                    .iter()
                    .map(|wish| json!({"key": wish.key, "operator": wish.operator, "values": wish.values}))
                    .collect()
            };
            let term = json!({"matchExpressions": written(&term.match_expressions), "matchFields": written(&term.match_fields)});
            if !terms.contains(&term) {
                terms.push(term);
            }
            continue;
        }
        return json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]});
    }
    match terms.len() {
        0 => Value::Null,
        1 => json!({"nodeSelectorTerms": terms}),
        // Terms are alternatives; several that must hold together are narrowed to the node at hand.
        _ => json!({"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": [node]}]}]}),
    }
}

impl PreBind for DynamicResources {
    fn pre_bind<'a>(
        &'a self,
        cycle: &'a Cycle,
        pod: &'a Pod,
        _node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<(), Reasons>> {
        Box::pin(async move {
            let Some(Chosen(chosen)) = cycle.get::<Chosen>() else { return Ok(()) };
            for (claim, devices) in chosen {
                write(claim, devices.as_ref(), pod, handle).await.map_err(|error| {
                    Reasons::from(format!("claim {}: {}", claim.metadata.name, telemetry::chain(&error)))
                })?;
                if devices.is_some() {
                    // The promise is kept until the cache shows the allocation, so that no device is given twice.
                    let key = claim.metadata.key();
                    let shown = handle.until(|cache| {
                        let claim = cache.devices.claims.get(&key);
                        claim.is_none_or(|claim| claim.status.allocation.is_some()).then_some(())
                    });
                    let _ = tokio::time::timeout(std::time::Duration::from_secs(30), shown).await;
                    handle.with_cache(|cache| cache.devices.promised.remove(&key));
                }
            }
            Ok(())
        })
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
    value
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

/// Upstream's arguments; the search is bounded by steps instead of time, so these change nothing but are checked.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Args {
    filter_timeout: Option<String>,
    binding_timeout: Option<String>,
}

pub fn from_args(args: &Value) -> Result<Arc<dyn Plugin>, super::ArgsError> {
    let args: Args = super::decode_args(args)?;
    for (field, value) in [("filterTimeout", args.filter_timeout), ("bindingTimeout", args.binding_timeout)] {
        if let Some(Err(error)) = value.map(|value| controller_runtime::program::go_duration(&value)) {
            return Err(super::ArgsError::new(field, error));
        }
    }
    Ok(Arc::new(DynamicResources))
}
