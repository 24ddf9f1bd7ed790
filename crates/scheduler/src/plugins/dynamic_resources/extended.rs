//! Extended resources that a device class stands for: on nodes that do not offer them themselves, a claim is made up
//! for the pod, and made real when the pod is bound.

use std::sync::Arc;

use client::{DeleteOptions, Patch, resources};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tracing::warn;

use crate::cache::{NodeInfo, PlacedPod};
use crate::devices::{DeviceClaim, Devices, Exactly, Request, ResourceClaim};
use crate::handle::Handle;
use crate::types::{Container, Pod};

const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";

/// The pod's resources that a class stands for, with the class, sorted by name.
pub struct Extended(Vec<(Box<str>, Box<str>)>);

/// Which request serves which container's resource.
#[derive(Debug, PartialEq)]
pub struct Mapping {
    container: Box<str>,
    resource: Box<str>,
    request: Box<str>,
}

/// A claim that exists only in this cycle.
pub struct MadeUp {
    pub claim: Arc<ResourceClaim>,
    pub mappings: Vec<Mapping>,
}

/// The names of claims that were made real for a pod begin so.
fn prefix(pod: &Pod) -> String {
    format!("{}-extended-resources-", pod.metadata.name)
}

/// The claim that an earlier attempt made real for the pod.
pub fn left_behind(pod: &Pod, devices: &Devices) -> Option<Arc<ResourceClaim>> {
    let mine = |claim: &&Arc<ResourceClaim>| {
        claim.metadata.namespace == pod.metadata.namespace
            && claim.metadata.controller().is_some_and(|owner| owner.uid == pod.metadata.uid)
            && claim.metadata.name.starts_with(&prefix(pod))
    };
    devices.claims.values().find(mine).cloned()
}

impl Extended {
    pub fn of(pod: &PlacedPod, devices: &Devices) -> Option<Self> {
        let mut backed: Vec<(Box<str>, Box<str>)> = Vec::new();
        for (name, amount) in &pod.requests.others {
            if *amount > 0
                && let Some(class) = devices.class_for(name)
            {
                backed.push((name.clone(), class.metadata.name.clone()));
            }
        }
        backed.sort();
        (!backed.is_empty()).then_some(Self(backed))
    }

    /// The claim for what the node does not offer itself; `None` if that is nothing.
    pub fn on(&self, pod: &Pod, node: &NodeInfo) -> Option<MadeUp> {
        let offered = |name: &str| node.allocatable.others.get(name).is_some_and(|amount| *amount > 0);
        let (mut requests, mut mappings) = (Vec::new(), Vec::new());
        for (resource, class) in self.0.iter().filter(|(resource, _)| !offered(resource)) {
            self::requests(pod, resource, class, &mut requests, &mut mappings);
        }
        if requests.is_empty() {
            return None;
        }
        requests.sort_by(|one, other| one.name.cmp(&other.name));
        let mut claim = ResourceClaim::default();
        claim.metadata.namespace = pod.metadata.namespace.clone();
        // No object can have this name, so promises made for it meet nobody else's.
        claim.metadata.name = format!("<extended-resources> {}", pod.metadata.uid).into();
        claim.spec.devices = DeviceClaim { requests, ..DeviceClaim::default() };
        Some(MadeUp { claim: Arc::new(claim), mappings })
    }
}

/// What the containers ask for of one resource. Init containers that end use what later containers get, and together
/// no more beyond that than the most demanding of them.
fn requests(pod: &Pod, resource: &str, class: &str, all: &mut Vec<Request>, mappings: &mut Vec<Mapping>) {
    let (inits, spec) = (pod.spec.init_containers.len(), &pod.spec);
    let containers: Vec<&Container> = spec.init_containers.iter().chain(&spec.containers).collect();
    let ends = |index: usize| index < inits && &*containers[index].restart_policy != "Always";
    let asked = |index: usize| containers[index].resources.requests.get(resource).map_or(0, |it| it.value());
    let name = |index: usize| -> Box<str> {
        let place = containers[index].resources.requests.keys().position(|key| key == resource);
        format!("container-{index}-request-{}", place.unwrap_or(0)).into()
    };
    let map = |index: usize, request: &str| Mapping {
        container: containers[index].name.clone(),
        resource: resource.into(),
        request: request.into(),
    };
    let lasting: Vec<usize> =
        (0..containers.len()).filter(|index| !ends(*index) && asked(*index) > 0).collect();
    mappings.extend(lasting.iter().map(|index| map(*index, &name(*index))));
    let mut most: Option<(i64, Box<str>)> = None;
    let mut needing_more = Vec::new();
    for index in (0..containers.len()).filter(|index| ends(*index) && asked(*index) > 0) {
        let mut missing = asked(index);
        for later in lasting.iter().filter(|later| **later > index) {
            if missing <= 0 {
                break;
            }
            missing -= asked(*later);
            mappings.push(map(index, &name(*later)));
        }
        if missing > 0 {
            needing_more.push(index);
            if most.as_ref().is_none_or(|(count, _)| *count < missing) {
                most = Some((missing, name(index)));
            }
        }
    }
    let mut add = |name: Box<str>, count: i64| {
        let exactly = Exactly {
            device_class_name: class.into(),
            allocation_mode: "ExactCount".into(),
            count,
            ..Exactly::default()
        };
        all.push(Request { name, exactly: Some(exactly), first_available: Vec::new() });
    };
    if let Some((count, shared)) = most {
        mappings.extend(needing_more.into_iter().map(|index| map(index, &shared)));
        add(shared, count);
    }
    for index in lasting {
        add(name(index), asked(index));
    }
}

/// A made-up claim whose devices are chosen.
pub struct Realised {
    pub made_up: MadeUp,
}

impl MadeUp {
    /// Makes the claim an object of the pod's.
    pub async fn create(&self, pod: &Pod, handle: &Handle) -> Result<ResourceClaim, client::Error> {
        let meta = &pod.metadata;
        let request = |request: &Request| {
            let asked = request.exactly.as_ref();
            let (class, count) = asked.map_or(("", 0), |asked| (&*asked.device_class_name, asked.count));
            let exactly = json!({"deviceClassName": class, "allocationMode": "ExactCount", "count": count});
            json!({"name": request.name, "exactly": exactly})
        };
        let requests: Vec<Value> = self.claim.spec.devices.requests.iter().map(request).collect();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid, "controller": true});
        let object = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {
                "generateName": prefix(pod), "namespace": meta.namespace, "ownerReferences": [owner],
                "annotations": {ANNOTATION: "true"},
            },
            "spec": {"devices": {"requests": requests}},
        });
        handle.client.api(&resources::RESOURCE_CLAIMS).within(&meta.namespace).create(&object).await
    }

    /// Tells the kubelet which devices are for which container.
    pub async fn tell(&self, claim: &str, pod: &Pod, handle: &Handle) -> Result<(), client::Error> {
        let mapping = |it: &Mapping| json!({"containerName": it.container, "resourceName": it.resource, "requestName": it.request});
        let mappings: Vec<Value> = self.mappings.iter().map(mapping).collect();
        let status = json!({"resourceClaimName": claim, "requestMappings": mappings});
        let patch = json!({"status": {"extendedResourceClaimStatus": status}});
        let api = handle.client.api(&resources::PODS).within(&pod.metadata.namespace);
        api.patch_sub::<IgnoredAny>(&pod.metadata.name, "status", Patch::Merge(&patch)).await.map(drop)
    }
}

/// Deletes a claim that was made real in vain.
pub async fn discard(claim: Arc<ResourceClaim>, handle: Handle) {
    let meta = &claim.metadata;
    let api = handle.client.api(&resources::RESOURCE_CLAIMS).within(&meta.namespace);
    let work = async {
        let free = json!({"metadata": {"finalizers": null}});
        let idle = json!({"status": {"allocation": null, "reservedFor": null}});
        api.patch_sub::<IgnoredAny>(&meta.name, "status", Patch::Merge(&idle)).await?;
        api.patch::<IgnoredAny>(&meta.name, Patch::Merge(&free)).await?;
        api.delete(&meta.name, &DeleteOptions::of_uid(&*meta.uid)).await.map(drop)
    };
    let outcome: Result<(), client::Error> = work.await;
    if let Err(error) = outcome
        && !error.is_not_found()
    {
        warn!(claim = %meta.key(), error = %telemetry::chain(&error), "cannot delete a claim for extended resources");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_containers_use_what_later_ones_get() {
        let asks = |name: &str, count: i64| json!({"name": name, "resources": {"requests": {"cpu": "1", "x/gpu": count.to_string()}}});
        let mut sidecar = asks("side", 1);
        sidecar["restartPolicy"] = "Always".into();
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [asks("small", 2), sidecar, asks("large", 5), asks("tiny", 1)],
            "containers": [asks("main", 2), {"name": "none"}],
        }}))
        .unwrap();
        let (mut all, mut mappings) = (Vec::new(), Vec::new());
        requests(&pod, "x/gpu", "gpu", &mut all, &mut mappings);
        let counts: Vec<(&str, i64)> =
            all.iter().map(|it| (&*it.name, it.exactly.as_ref().unwrap().count)).collect();
        assert_eq!(
            counts,
            [("container-2-request-1", 3), ("container-1-request-1", 1), ("container-4-request-1", 2)]
        );
        let of = |container: &str| -> Vec<&str> {
            mappings.iter().filter(|it| &*it.container == container).map(|it| &*it.request).collect()
        };
        assert_eq!(of("small"), ["container-1-request-1", "container-4-request-1"]);
        assert_eq!(of("large"), ["container-4-request-1", "container-2-request-1"]);
        assert_eq!(of("tiny"), ["container-4-request-1"]);
        assert_eq!((of("side"), of("main")), (vec!["container-1-request-1"], vec!["container-4-request-1"]));
    }
}
