//! Claims, volumes and classes as the scheduler sees them, with the bindings that it has assumed.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use client::{Key, Labels, Metadata, Projection};
use controller_runtime::Selector;
use serde::Deserialize;

use crate::types::{NodeSelector, Pod, ResourceList};

/// A class with this provisioner never makes volumes; it only delays binding.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Claim {
    pub metadata: Metadata,
    pub spec: ClaimSpec,
    pub status: ClaimStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    pub phase: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSpec {
    pub volume_name: Box<str>,
    pub storage_class_name: Option<Box<str>>,
    pub access_modes: Vec<Box<str>>,
    pub volume_mode: Box<str>,
    pub resources: ClaimResources,
    pub selector: Option<Selector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    pub requests: ResourceList,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub metadata: Metadata,
    pub spec: VolumeSpec,
    pub status: VolumeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeSpec {
    pub capacity: ResourceList,
    pub storage_class_name: Box<str>,
    pub access_modes: Vec<Box<str>>,
    pub volume_mode: Box<str>,
    pub claim_ref: Option<ClaimRef>,
    pub node_affinity: Option<VolumeNodeAffinity>,
    pub csi: Option<Csi>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Csi {
    pub driver: Box<str>,
    pub volume_handle: Box<str>,
}

/// The drivers on a node, with how many volumes each can attach there.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    pub metadata: Metadata,
    pub spec: CsiNodeSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    pub drivers: Vec<NodeDriver>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeDriver {
    pub name: Box<str>,
    pub allocatable: Option<Attachable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachable {
    pub count: Option<i64>,
}

/// Whether a driver says how much room it has left.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiDriver {
    pub metadata: Metadata,
    pub spec: CsiDriverSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiDriverSpec {
    pub storage_capacity: bool,
}

/// Room for new volumes of a class on some nodes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Capacity {
    pub metadata: Metadata,
    pub storage_class_name: Box<str>,
    pub node_topology: Selector,
    pub capacity: Option<Quantity>,
    pub maximum_volume_size: Option<Quantity>,
}

/// A volume on its way to, or at, a node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Attachment {
    pub metadata: Metadata,
    pub spec: AttachmentSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSpec {
    pub attacher: Box<str>,
    pub node_name: Box<str>,
    pub source: AttachmentSource,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AttachmentSource {
    pub persistent_volume_name: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    pub phase: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ClaimRef {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeNodeAffinity {
    pub required: Option<NodeSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Class {
    pub metadata: Metadata,
    pub provisioner: Box<str>,
    pub volume_binding_mode: Box<str>,
    pub allowed_topologies: Vec<Topology>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Topology {
    pub match_label_expressions: Vec<TopologyLabel>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TopologyLabel {
    pub key: Box<str>,
    pub values: Vec<Box<str>>,
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
projections!(Claim, Volume, Class, CsiNode, CsiDriver, Capacity, Attachment);

impl Class {
    pub fn waits_for_consumer(&self) -> bool {
        &*self.volume_binding_mode == "WaitForFirstConsumer"
    }

    pub fn provisions(&self) -> bool {
        &*self.provisioner != NO_PROVISIONER
    }
}

/// What is known of storage.
#[derive(Clone, Debug, Default)]
pub struct Storage {
    pub claims: HashMap<Key, Arc<Claim>>,
    pub volumes: HashMap<Box<str>, Arc<Volume>>,
    pub classes: HashMap<Box<str>, Arc<Class>>,
    pub csi_nodes: HashMap<Box<str>, Arc<CsiNode>>,
    pub csi_drivers: HashMap<Box<str>, Arc<CsiDriver>>,
    pub capacities: HashMap<Key, Arc<Capacity>>,
    pub attachments: HashMap<Box<str>, Arc<Attachment>>,
    /// Volumes promised to a claim by a cycle whose writes the API has not shown yet.
    promised: HashMap<Box<str>, Key>,
}

/// A claim of a pod, and how it stands.
#[derive(Debug)]
pub enum Standing {
    Missing {
        name: Box<str>,
        /// Somebody is about to make it.
        ephemeral: bool,
    },
    Terminating {
        name: Box<str>,
    },
    /// A claim has the name of an ephemeral volume, but belongs to another.
    NotOwned {
        name: Box<str>,
    },
    /// Nobody bound it yet and it does not wait for a pod.
    Unbound,
    Bound {
        claim: Arc<Claim>,
        volume: Option<Arc<Volume>>,
    },
    /// It is bound to whatever the pod's node offers.
    Waiting {
        claim: Arc<Claim>,
        class: Arc<Class>,
    },
}

/// What is done to make a claim's volume come true on the chosen node.
#[derive(Clone, Debug, PartialEq)]
pub enum Binding {
    /// Bind this volume.
    Volume { claim: Key, volume: Box<str> },
    /// Have one made on the node.
    Provision { claim: Key },
}

impl Storage {
    /// The claims that a pod uses, generic ephemeral ones included.
    pub fn standings(&self, pod: &Pod) -> Vec<Standing> {
        let ephemeral: Vec<Box<str>> = pod
            .spec
            .volumes
            .iter()
            .filter(|volume| volume.claim.is_none() && volume.ephemeral.is_some())
            .map(|volume| format!("{}-{}", pod.metadata.name, volume.name).into())
            .collect();
        let standing = |name: std::borrow::Cow<'_, str>| {
            let claim = self.claims.get(&Key::new(&pod.metadata.namespace, &name));
            let owned = |claim: &Arc<Claim>| {
                claim.metadata.controller().is_some_and(|owner| owner.uid == pod.metadata.uid)
            };
            // A claim of that name that someone else made is not the pod's ephemeral volume.
            let name: Box<str> = name.as_ref().into();
            if ephemeral.contains(&name) {
                match claim {
                    None => return Standing::Missing { name, ephemeral: true },
                    Some(claim) if !owned(claim) => return Standing::NotOwned { name },
                    Some(_) => {}
                }
            }
            self.standing(&pod.metadata.namespace, name)
        };
        pod.claim_names().map(standing).collect()
    }

    /// Whether a driver that tells its free space has enough for a claim on a node.
    pub fn has_room(&self, claim: &Claim, class: &Class, labels: &Labels) -> bool {
        let Some(wanted) = claim.spec.resources.requests.get("storage") else { return true };
        let driver = self.csi_drivers.get(&class.provisioner);
        if !driver.is_some_and(|driver| driver.spec.storage_capacity) {
            return true;
        }
        self.capacities.values().any(|capacity| {
            let largest = capacity.maximum_volume_size.or(capacity.capacity);
            capacity.storage_class_name == class.metadata.name
                && largest.is_some_and(|largest| largest >= wanted)
                && capacity.node_topology.matches(labels)
        })
    }

    /// The driver and the identity of a claim's volume; for one that is still to be made, the claim's.
    pub fn driver_of(&self, claim: &Claim) -> Option<(Box<str>, String)> {
        if let Some(volume) = self.volumes.get(&claim.spec.volume_name) {
            let csi = volume.spec.csi.as_ref()?;
            return Some((csi.driver.clone(), csi.volume_handle.to_string()));
        }
        let class = self.classes.get(claim.spec.storage_class_name.as_ref()?)?;
        Some((class.provisioner.clone(), format!("claim {}", claim.metadata.key())))
    }

    fn standing(&self, namespace: &str, name: Box<str>) -> Standing {
        let Some(claim) = self.claims.get(&Key::new(namespace, &name)) else {
            return Standing::Missing { name, ephemeral: false };
        };
        if claim.metadata.is_terminating() {
            return Standing::Terminating { name };
        }
        if !claim.spec.volume_name.is_empty() {
            let volume = self.volumes.get(&claim.spec.volume_name).cloned();
            return Standing::Bound { claim: claim.clone(), volume };
        }
        let class = claim.spec.storage_class_name.as_ref().and_then(|name| self.classes.get(name));
        match class.filter(|class| class.waits_for_consumer()) {
            Some(class) => Standing::Waiting { claim: claim.clone(), class: class.clone() },
            None => Standing::Unbound,
        }
    }

    /// The smallest free volume that satisfies a claim and suits the node.
    pub fn match_volume(
        &self,
        claim: &Claim,
        taken: &[Box<str>],
        suits: impl Fn(&Volume) -> bool,
    ) -> Option<Box<str>> {
        let wanted = claim.spec.resources.requests.get("storage").unwrap_or_else(|| Quantity::new(0));
        let size = |volume: &Volume| volume.spec.capacity.get("storage").unwrap_or_else(|| Quantity::new(0));
        let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
        let fits = |volume: &&Arc<Volume>| {
            let name = &volume.metadata.name;
            let is_promised = self.promised.get(name).is_some_and(|key| *key != claim.metadata.key());
            let is_free = match &volume.spec.claim_ref {
                None => &*volume.status.phase == "Available" || volume.status.phase.is_empty(),
                // Reserved for this claim by its maker.
                Some(owner) => {
                    *owner.namespace == *claim.metadata.namespace
                        && owner.name == claim.metadata.name
                        && (owner.uid.is_empty() || owner.uid == claim.metadata.uid)
                }
            };
            is_free
                && !is_promised
                && !taken.contains(name)
                && !volume.metadata.is_terminating()
                && *volume.spec.storage_class_name == *class
                && mode(&volume.spec.volume_mode) == mode(&claim.spec.volume_mode)
                && claim.spec.access_modes.iter().all(|mode| volume.spec.access_modes.contains(mode))
                && size(volume) >= wanted
                && claim
                    .spec
                    .selector
                    .as_ref()
                    .is_none_or(|selector| selector.matches(&volume.metadata.labels))
                && suits(volume)
        };
        let matching = self.volumes.values().filter(fits);
        matching
            .min_by_key(|volume| (size(volume), volume.metadata.name.clone()))
            .map(|volume| volume.metadata.name.clone())
    }

    pub fn promise(&mut self, bindings: &[Binding]) {
        for binding in bindings {
            if let Binding::Volume { claim, volume } = binding {
                self.promised.insert(volume.clone(), claim.clone());
            }
        }
    }

    /// The API shows the binding, or it failed: the promise is no longer needed.
    pub fn release(&mut self, bindings: &[Binding]) {
        for binding in bindings {
            if let Binding::Volume { volume, .. } = binding {
                self.promised.remove(volume);
            }
        }
    }
}

/// Volumes are file systems unless they say otherwise.
fn mode(mode: &str) -> &str {
    if mode.is_empty() { "Filesystem" } else { mode }
}
