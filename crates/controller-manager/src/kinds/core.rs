//! Namespaces, nodes, service accounts, config maps, secrets, and what volumes are made of.

use std::collections::BTreeMap;

use client::Labels;
use controller_runtime::{Meta, Raw, Selector};
use jiff::Timestamp;
use serde::Deserialize;

use super::{Condition, kind, none};

/// A Namespace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: NamespaceSpec,
    /// What is.
    pub status: NamespaceStatus,
}
kind!(Namespace, NAMESPACES, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceSpec {
    /// What must happen before it may go.
    pub finalizers: Vec<Box<str>>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NamespaceStatus {
    /// `Active` or `Terminating`.
    pub phase: Box<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A ServiceAccount.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    /// Metadata.
    pub metadata: Meta,
    /// Secrets that were made for it.
    pub secrets: Vec<super::Named>,
}
kind!(ServiceAccount, SERVICE_ACCOUNTS, keep none);

/// A ConfigMap. Only the published root certificate's content is kept: others' can be large and nobody reads them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "WholeConfigMap")]
pub struct ConfigMap {
    /// Metadata.
    pub metadata: Meta,
    /// Text entries, of the maps that controllers read.
    pub data: BTreeMap<Box<str>, Box<str>>,
}
kind!(ConfigMap, CONFIG_MAPS, keep none);

#[derive(Deserialize, Default)]
#[serde(default)]
struct WholeConfigMap {
    metadata: Meta,
    data: Option<BTreeMap<Box<str>, Box<str>>>,
}

impl From<WholeConfigMap> for ConfigMap {
    fn from(whole: WholeConfigMap) -> Self {
        let read = ["kube-root-ca.crt", "cluster-info", crate::legacy_tokens::TRACKING]
            .contains(&&*whole.metadata.name);
        let data = if read { whole.data.unwrap_or_default() } else { BTreeMap::new() };
        Self { metadata: whole.metadata, data }
    }
}

/// A Secret. Only bootstrap tokens keep their content.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "WholeSecret")]
pub struct Secret {
    /// Metadata.
    pub metadata: Meta,
    /// Its type.
    pub kind: Box<str>,
    /// Base64 entries, of bootstrap tokens.
    pub data: BTreeMap<Box<str>, Box<str>>,
    /// Whether a token is present, of service account tokens.
    pub has_token: bool,
}
kind!(Secret, SECRETS, keep | name | name.starts_with("kubernetes.io/service-account"));

#[derive(Deserialize, Default)]
#[serde(default)]
struct WholeSecret {
    metadata: Meta,
    #[serde(rename = "type")]
    kind: Box<str>,
    data: Option<BTreeMap<Box<str>, Box<str>>>,
}

impl From<WholeSecret> for Secret {
    fn from(whole: WholeSecret) -> Self {
        let has_token = whole.data.as_ref().is_some_and(|data| data.contains_key("token"));
        let read = &*whole.kind == "bootstrap.kubernetes.io/token";
        let data = if read { whole.data.unwrap_or_default() } else { BTreeMap::new() };
        Self { metadata: whole.metadata, kind: whole.kind, data, has_token }
    }
}

/// A Node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: NodeSpec,
    /// What is.
    pub status: NodeStatus,
}
kind!(Node, NODES);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// First pod address range.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Box<str>,
    /// All pod address ranges.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<Box<str>>,
    /// Taints.
    pub taints: Vec<Taint>,
    /// Cordoned.
    pub unschedulable: bool,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key.
    pub key: Box<str>,
    /// Value.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub value: Box<str>,
    /// Effect.
    pub effect: Box<str>,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Timestamp>,
}

impl Taint {
    /// A taint without value.
    pub fn new(key: &str, effect: &str) -> Self {
        Self { key: key.into(), effect: effect.into(), ..Self::default() }
    }

    /// Whether both mean the same, whatever the value.
    pub fn is_like(&self, other: &Self) -> bool {
        self.key == other.key && self.effect == other.effect
    }
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Addresses.
    pub addresses: Vec<NodeAddress>,
    /// What pods can use.
    pub allocatable: Labels,
    /// Volumes that are mounted, or may be.
    pub volumes_in_use: Vec<Box<str>>,
    /// Volumes that are attached.
    pub volumes_attached: Vec<AttachedVolume>,
}

/// An entry of a node's `status.volumesAttached`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    /// `kubernetes.io/csi/<driver>^<handle>`.
    pub name: Box<str>,
    /// Empty: CSI drivers find devices themselves.
    pub device_path: Box<str>,
}

/// An address of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP` and so on.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// The address.
    pub address: Box<str>,
}

impl Node {
    /// A condition.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        super::condition(&self.status.conditions, kind)
    }

    /// Whether it is ready.
    pub fn is_ready(&self) -> bool {
        self.condition("Ready").is_some_and(Condition::is_true)
    }
}

/// A Lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// Metadata.
    pub metadata: Meta,
    /// What it says.
    pub spec: LeaseSpec,
}
kind!(Lease, LEASES, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Who holds it.
    pub holder_identity: Option<Box<str>>,
    /// How long it is valid.
    pub lease_duration_seconds: Option<i64>,
    /// The last renewal.
    pub renew_time: Option<Timestamp>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ClaimSpec,
    /// What is.
    pub status: ClaimStatus,
}
kind!(PersistentVolumeClaim, PERSISTENT_VOLUME_CLAIMS, owned true,
    keep |name| name.contains("kubernetes.io/") && name != "kubectl.kubernetes.io/last-applied-configuration");

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// How it may be mounted.
    pub access_modes: Vec<Box<str>>,
    /// Which volumes will do.
    pub selector: Option<Selector>,
    /// How much is wanted.
    pub resources: super::Resources,
    /// The volume that it is bound to.
    pub volume_name: Box<str>,
    /// The class; nothing for the default one, empty for none.
    pub storage_class_name: Option<Box<str>>,
    /// The class of its mutable attributes.
    pub volume_attributes_class_name: Option<Box<str>>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<Box<str>>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// `Pending`, `Bound` or `Lost`.
    pub phase: Box<str>,
    /// How much there is.
    pub capacity: Labels,
    /// How it may be mounted.
    pub access_modes: Vec<Box<str>>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: VolumeSpec,
    /// What is.
    pub status: VolumeStatus,
}
kind!(
    PersistentVolume,
    PERSISTENT_VOLUMES,
    keep | name | name.contains("kubernetes.io/")
        && name != "kubectl.kubernetes.io/last-applied-configuration"
);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    /// How large it is.
    pub capacity: Labels,
    /// How it may be mounted.
    pub access_modes: Vec<Box<str>>,
    /// The claim that it is bound to or kept for.
    pub claim_ref: Option<ClaimRef>,
    /// `Retain`, `Delete` or `Recycle`.
    pub persistent_volume_reclaim_policy: Box<str>,
    /// The class.
    pub storage_class_name: Box<str>,
    /// The class of its mutable attributes.
    pub volume_attributes_class_name: Option<Box<str>>,
    /// `Filesystem` or `Block`.
    pub volume_mode: Option<Box<str>>,
    /// Where it can be used.
    pub node_affinity: Option<Raw>,
    /// A CSI volume.
    pub csi: Option<CsiSource>,
    /// A directory of one node.
    pub local: Option<LocalSource>,
    /// A directory of any node.
    pub host_path: Option<LocalSource>,
}

/// A CSI volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// The driver.
    pub driver: Box<str>,
    /// The driver's name for the volume.
    pub volume_handle: Box<str>,
}

/// A directory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LocalSource {
    /// Its path.
    pub path: Box<str>,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRef {
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
    /// Identity; empty while a volume is only kept for a claim of that name.
    pub uid: Box<str>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// `Available`, `Bound`, `Released` or `Failed`.
    pub phase: Box<str>,
}

/// A StorageClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StorageClass {
    /// Metadata.
    pub metadata: Meta,
    /// Who makes volumes.
    pub provisioner: Box<str>,
    /// For that one.
    pub parameters: Labels,
    /// What becomes of volumes.
    pub reclaim_policy: Option<Box<str>>,
    /// `Immediate` or `WaitForFirstConsumer`.
    pub volume_binding_mode: Option<Box<str>>,
    /// Whether claims can grow.
    pub allow_volume_expansion: Option<bool>,
    /// How volumes are mounted.
    pub mount_options: Vec<Box<str>>,
}
kind!(StorageClass, STORAGE_CLASSES, keep | name | name.ends_with("is-default-class"));

/// A VolumeAttributesClass; only that it is there matters here.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub metadata: Meta,
}
kind!(VolumeAttributesClass, VOLUME_ATTRIBUTES_CLASSES, keep | _name | false);
