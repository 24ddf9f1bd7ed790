//! Claims for devices, and the devices that drivers offer in slices.

pub mod allocation;
mod capacity;
mod readiness;
mod selector;

pub use readiness::Readiness;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use client::{Key, Metadata, Projection};
use serde::Deserialize;
use serde_json::Value;

use crate::types::{Condition, NodeSelector, Pod, Toleration};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub metadata: Metadata,
    pub spec: ResourceClaimSpec,
    pub status: ResourceClaimStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceClaimSpec {
    pub devices: DeviceClaim,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    pub requests: Vec<Request>,
    pub constraints: Vec<Constraint>,
    /// Passed on to the drivers unread.
    pub config: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Request {
    pub name: Box<str>,
    pub exactly: Option<Exactly>,
    /// Alternatives, the best first.
    pub first_available: Vec<Exactly>,
}

/// What is asked for; as an alternative it has a name of its own.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exactly {
    pub name: Box<str>,
    pub device_class_name: Box<str>,
    pub selectors: Vec<DeviceSelector>,
    /// `ExactCount` or `All`.
    pub allocation_mode: Box<str>,
    pub count: i64,
    pub admin_access: bool,
    pub tolerations: Vec<DeviceToleration>,
    pub capacity: CapacityRequirements,
}

/// A toleration as claims write it; how long it holds is for others to heed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceToleration {
    #[serde(flatten)]
    pub toleration: Toleration,
    pub toleration_seconds: Option<i64>,
}

/// How much of a device's capacities is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CapacityRequirements {
    pub requests: BTreeMap<Box<str>, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceSelector {
    pub cel: Option<CelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CelSelector {
    pub expression: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Constraint {
    /// The requests it holds for; empty means all.
    pub requests: Vec<Box<str>>,
    pub match_attribute: Option<Box<str>>,
    pub distinct_attribute: Option<Box<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    pub allocation: Option<Allocation>,
    pub reserved_for: Vec<Consumer>,
    /// What drivers say of the allocated devices.
    pub devices: Vec<DeviceStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DeviceStatus {
    pub driver: Box<str>,
    pub pool: Box<str>,
    pub device: Box<str>,
    #[serde(rename = "shareID")]
    pub share_id: Option<Box<str>>,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Allocation {
    pub devices: AllocatedDevices,
    pub node_selector: Option<NodeSelector>,
    pub allocation_timestamp: Option<jiff::Timestamp>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocatedDevices {
    pub results: Vec<AllocatedDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AllocatedDevice {
    pub request: Box<str>,
    pub driver: Box<str>,
    pub pool: Box<str>,
    pub device: Box<str>,
    pub admin_access: bool,
    pub tolerations: Vec<DeviceToleration>,
    /// Conditions that must hold before the pod may be bound, and those after which it must not.
    pub binding_conditions: Vec<Box<str>>,
    pub binding_failure_conditions: Vec<Box<str>>,
    /// Set where several allocations share the device: which share this is, and what it takes.
    #[serde(rename = "shareID")]
    pub share_id: Option<Box<str>>,
    pub consumed_capacity: BTreeMap<Box<str>, Quantity>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Consumer {
    pub resource: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    pub metadata: Metadata,
    pub spec: ResourceSliceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceSliceSpec {
    pub driver: Box<str>,
    pub pool: Pool,
    #[serde(flatten)]
    pub nodes: Nodes,
    pub per_device_node_selection: bool,
    pub devices: Vec<Device>,
    pub shared_counters: Vec<CounterSet>,
}

/// Where devices can be used.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Nodes {
    pub node_name: Option<Box<str>>,
    pub all_nodes: Option<bool>,
    pub node_selector: Option<NodeSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Pool {
    pub name: Box<str>,
    pub generation: i64,
    pub resource_slice_count: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Device {
    pub name: Box<str>,
    pub attributes: Value,
    pub capacity: Value,
    pub consumes_counters: Vec<CounterSet>,
    pub taints: Vec<crate::types::Taint>,
    #[serde(flatten)]
    pub nodes: Nodes,
    /// Once allocated, the claim belongs to the node even if others could reach the device.
    pub binds_to_node: bool,
    pub binding_conditions: Vec<Box<str>>,
    pub binding_failure_conditions: Vec<Box<str>>,
    pub allow_multiple_allocations: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CounterSet {
    /// Its name where it is offered, and the name of the offered one where it is used.
    pub name: Box<str>,
    pub counter_set: Box<str>,
    pub counters: BTreeMap<Box<str>, Counter>,
}

#[derive(Debug, Deserialize)]
pub struct Counter {
    pub value: Quantity,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClass {
    pub metadata: Metadata,
    pub spec: DeviceClassSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeviceClassSpec {
    pub selectors: Vec<DeviceSelector>,
    pub config: Vec<Value>,
    /// The resource by which pods may ask for such devices without a claim.
    #[serde(rename = "extendedResourceName")]
    pub extended_resource_name: Option<Box<str>>,
}

macro_rules! projections {
    ($($kind:ty),*) => {
        $(impl Projection for $kind {
            fn metadata(&self) -> &Metadata {
                &self.metadata
            }
        })*
    };
}
projections!(ResourceClaim, ResourceSlice, DeviceClass);

impl ResourceClaim {
    pub fn is_reserved_for(&self, pod: &Pod) -> bool {
        self.status.reserved_for.iter().any(|consumer| consumer.uid == pod.metadata.uid)
    }
}

/// Resources with this prefix bear the name of a class.
const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";

/// What is known of devices.
#[derive(Debug, Default)]
pub struct Devices {
    pub claims: HashMap<Key, Arc<ResourceClaim>>,
    pub slices: HashMap<Box<str>, Arc<ResourceSlice>>,
    pub classes: HashMap<Box<str>, Arc<DeviceClass>>,
    /// Allocations of cycles whose writes the API has not shown yet, by claim.
    pub promised: HashMap<Key, Allocation>,
    pub(crate) compiler: selector::Compiler,
}

impl Devices {
    /// The class that stands for an extended resource: it says so, or the resource bears its name. Of several that say
    /// so the newest counts.
    pub fn class_for(&self, resource: &str) -> Option<&Arc<DeviceClass>> {
        if let Some(class) = resource.strip_prefix(IMPLICIT) {
            return self.classes.get(class);
        }
        let says = |class: &&Arc<DeviceClass>| class.spec.extended_resource_name.as_deref() == Some(resource);
        let age = |class: &&Arc<DeviceClass>| {
            (class.metadata.creation_timestamp, std::cmp::Reverse(class.metadata.name.clone()))
        };
        self.classes.values().filter(says).max_by_key(age)
    }
}

/// A claim of a pod: its name there, and its object's; `None` if its template's object is not made yet.
pub fn claim_names(pod: &Pod) -> impl Iterator<Item = (&str, Option<&str>)> {
    pod.spec.resource_claims.iter().filter_map(|claim| {
        if let Some(name) = &claim.resource_claim_name {
            return Some((&*claim.name, Some(&**name)));
        }
        let made = pod.status.resource_claim_statuses.iter().find(|status| status.name == claim.name);
        match made {
            // Nothing had to be made for this template.
            Some(status) if status.resource_claim_name.is_none() => None,
            made => Some((&*claim.name, made.and_then(|status| status.resource_claim_name.as_deref()))),
        }
    })
}
