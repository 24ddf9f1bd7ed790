//! What the scheduler reads of pods and nodes, and nothing more.

use std::fmt;
use std::ops::Deref;

use apimachinery::quantity::Quantity;
use client::{Labels, Metadata, Projection, Shared, Word};
use controller_runtime::Selector;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Quantities by resource name, as a sorted slice: a tree's smallest node would be many times as large.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResourceList(Box<[(Box<str>, Quantity)]>);

impl ResourceList {
    pub fn get(&self, name: &str) -> Option<Quantity> {
        let index = self.0.binary_search_by(|(key, _)| (**key).cmp(name)).ok()?;
        Some(self.0[index].1)
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }
}

impl<'de> Deserialize<'de> for ResourceList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = ResourceList;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map of quantities")
            }

            fn visit_unit<E>(self) -> Result<ResourceList, E> {
                Ok(ResourceList::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ResourceList, A::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(0));
                while let Some(pair) = map.next_entry::<Box<str>, Quantity>()? {
                    pairs.push(pair);
                }
                pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
                Ok(ResourceList(pairs.into()))
            }
        }
        deserializer.deserialize_any(Pairs)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

/// What is the pod's own, and what it has in common with its siblings.
#[derive(Debug, Default)]
pub struct PodSpec {
    pub node_name: Word,
    shape: Shared<PodShape>,
}

impl Deref for PodSpec {
    type Target = PodShape;

    fn deref(&self) -> &PodShape {
        &self.shape
    }
}

impl<'de> Deserialize<'de> for PodSpec {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let mut shape = PodShape::deserialize(input)?;
        let node_name = std::mem::take(&mut shape.node_name);
        if !node_name.is_empty() {
            shape.shrink();
        }
        Ok(Self { node_name, shape: Shared::new(shape) })
    }
}

/// What pods that were made from one template share.
#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodShape {
    /// Only to be read; then it moves to [`PodSpec`].
    node_name: Word,
    pub scheduler_name: Box<str>,
    pub priority: i32,
    pub node_selector: Labels,
    pub affinity: Affinity,
    pub tolerations: Vec<Toleration>,
    pub scheduling_gates: Vec<SchedulingGate>,
    pub containers: Vec<Container>,
    pub init_containers: Vec<Container>,
    pub overhead: ResourceList,
    pub resources: Requirements,
    pub host_network: bool,
    pub topology_spread_constraints: Vec<SpreadConstraint>,
    pub preemption_policy: Box<str>,
    pub volumes: Vec<PodVolume>,
    pub resource_claims: Vec<PodResourceClaim>,
}

/// A volume, as far as it is a claim or a disk that tolerates no second writer.
#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolume {
    pub name: Box<str>,
    #[serde(rename = "persistentVolumeClaim")]
    pub claim: Option<ClaimSource>,
    pub ephemeral: Option<Present>,
    pub gce_persistent_disk: Option<Box<Disk>>,
    pub aws_elastic_block_store: Option<Box<Disk>>,
    pub iscsi: Option<Box<Disk>>,
    pub rbd: Option<Box<Disk>>,
}

/// Something whose presence is all that matters.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(input).map(|_| Self)
    }
}

impl PodVolume {
    /// Whether others have to heed the volume at all.
    fn may_clash(&self) -> bool {
        self.claim.is_some()
            || self.ephemeral.is_some()
            || self.gce_persistent_disk.is_some()
            || self.aws_elastic_block_store.is_some()
            || self.iscsi.is_some()
            || self.rbd.is_some()
    }
}

/// What identifies a disk of the older in-tree kinds; each uses some of the fields.
#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Disk {
    pub pd_name: Box<str>,
    #[serde(rename = "volumeID")]
    pub volume_id: Box<str>,
    pub iqn: Box<str>,
    pub monitors: Vec<Box<str>>,
    pub pool: Box<str>,
    pub image: Box<str>,
    pub read_only: bool,
}

/// A claim for devices, named or made from a template.
#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodResourceClaim {
    pub name: Box<str>,
    pub resource_claim_name: Option<Box<str>>,
    pub resource_claim_template_name: Option<Box<str>>,
}

/// Which claim was made for a pod's template.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    pub name: Box<str>,
    pub resource_claim_name: Option<Box<str>>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSource {
    pub claim_name: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SpreadConstraint {
    pub max_skew: i64,
    pub topology_key: Box<str>,
    pub when_unsatisfiable: Box<str>,
    pub label_selector: Selector,
    pub min_domains: Option<i64>,
    pub node_affinity_policy: Box<str>,
    pub node_taints_policy: Box<str>,
    pub match_label_keys: Vec<Box<str>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: Word,
    pub start_time: Option<jiff::Timestamp>,
    pub nominated_node_name: Word,
    pub conditions: Vec<Condition>,
    pub resource_claim_statuses: Vec<ResourceClaimStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    pub r#type: Box<str>,
    pub status: Box<str>,
    pub reason: Box<str>,
    pub message: Box<str>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct SchedulingGate {
    pub name: Box<str>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub name: Box<str>,
    pub image: Box<str>,
    pub resources: Requirements,
    pub ports: Vec<Port>,
    /// `Always` makes an init container a sidecar, which counts beside the containers.
    pub restart_policy: Box<str>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Requirements {
    pub requests: ResourceList,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Port {
    #[serde(rename = "hostIP")]
    pub host_ip: Box<str>,
    pub host_port: u16,
    pub protocol: Box<str>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    pub node_affinity: NodeAffinity,
    pub pod_affinity: PodAffinity,
    pub pod_anti_affinity: PodAffinity,
}

/// Pods to be near to, or away from.
#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PodAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Vec<PodAffinityTerm>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<PreferredPods>,
}

#[derive(Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PreferredPods {
    pub weight: i64,
    pub pod_affinity_term: PodAffinityTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodAffinityTerm {
    pub label_selector: Selector,
    pub namespaces: Vec<Box<str>>,
    /// Absent and empty differ: an empty one means all namespaces.
    pub namespace_selector: Selector,
    pub topology_key: Box<str>,
    pub match_label_keys: Vec<Box<str>>,
    pub mismatch_label_keys: Vec<Box<str>>,
}

/// What is read of a namespace: its labels, for namespace selectors.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Metadata,
}

impl Projection for Namespace {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<PreferredNodes>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelector {
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct PreferredNodes {
    pub weight: i64,
    pub preference: NodeSelectorTerm,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<Requirement>,
    pub match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Requirement {
    pub key: Box<str>,
    pub operator: Box<str>,
    pub values: Vec<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Toleration {
    pub key: Box<str>,
    pub operator: Box<str>,
    pub value: Box<str>,
    pub effect: Box<str>,
}

impl Toleration {
    /// An empty key with `Exists` tolerates everything; an empty effect means all effects.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        if !self.effect.is_empty() && self.effect != taint.effect {
            return false;
        }
        if !self.key.is_empty() && self.key != taint.key {
            return false;
        }
        match &*self.operator {
            "Exists" => true,
            "" | "Equal" => self.value == taint.value && !self.key.is_empty(),
            "Lt" | "Gt" => match (taint.value.parse::<i64>(), self.value.parse::<i64>()) {
                (Ok(taint), Ok(bound)) if &*self.operator == "Lt" => taint < bound,
                (Ok(taint), Ok(bound)) => taint > bound,
                _ => false,
            },
            _ => false,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: Box<str>,
    pub value: Box<str>,
    pub effect: Box<str>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Metadata,
    pub spec: NodeSpec,
    pub status: NodeStatus,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    pub unschedulable: bool,
    pub taints: Vec<Taint>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub allocatable: ResourceList,
    pub images: Vec<Image>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Image {
    pub names: Vec<Box<str>>,
    pub size_bytes: i64,
}

impl Projection for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn shrink(&mut self) {
        self.metadata.finalizers = Vec::new();
        let heeded =
            |condition: &Condition| matches!(&*condition.r#type, "PodScheduled" | "DisruptionTarget");
        self.status.conditions.retain(heeded);
        self.status.conditions.shrink_to_fit();
        if self.spec.node_name.is_empty() {
            return;
        }
        self.status.conditions.retain(|condition| &*condition.r#type == "DisruptionTarget");
        self.status.conditions.shrink_to_fit();
        self.metadata.owner_references = Default::default();
    }
}

impl PodShape {
    /// Most pods are placed, and of those only what others have to heed is of interest.
    fn shrink(&mut self) {
        self.tolerations = Vec::new();
        self.node_selector = Labels::default();
        self.affinity.node_affinity = NodeAffinity::default();
        self.topology_spread_constraints = Vec::new();
        for container in self.containers.iter_mut().chain(&mut self.init_containers) {
            (container.name, container.image) = Default::default();
            container.ports.retain(|port| port.host_port != 0);
            container.ports.shrink_to_fit();
        }
        self.volumes.retain(PodVolume::may_clash);
        self.volumes.shrink_to_fit();
    }
}

impl Projection for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Pod {
    /// The names of the volume claims that the pod uses, those of generic ephemeral volumes included.
    pub fn claim_names(&self) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
        self.spec.volumes.iter().filter_map(|volume| match (&volume.claim, &volume.ephemeral) {
            (Some(claim), _) => Some((&*claim.claim_name).into()),
            (None, Some(_)) => Some(format!("{}-{}", self.metadata.name, volume.name).into()),
            (None, None) => None,
        })
    }

    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| &*condition.r#type == kind)
    }

    /// Whether the pod still uses what it asked for.
    pub fn is_finished(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_placed_pod_keeps_only_what_others_heed() {
        let pod = |node: &str| {
            let mut pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": {"app": "a"}, "finalizers": ["f"]},
                "spec": {
                    "nodeName": node, "tolerations": [{"key": "t"}], "nodeSelector": {"a": "b"},
                    "containers": [{"image": "i", "resources": {"requests": {"memory": "1Gi", "cpu": "2"}},
                        "ports": [{"hostPort": 80}, {"containerPort": 81}]}],
                    "volumes": [{"name": "x", "emptyDir": {}}, {"name": "y", "persistentVolumeClaim": {"claimName": "c"}}],
                },
                "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True"}]},
            }))
            .unwrap();
            pod.shrink();
            pod
        };
        let (waiting, placed) = (pod(""), pod("n"));
        assert_eq!((waiting.spec.tolerations.len(), placed.spec.tolerations.len()), (1, 0));
        assert_eq!((waiting.status.conditions.len(), placed.status.conditions.len()), (2, 1));
        assert_eq!((waiting.spec.volumes.len(), placed.spec.volumes.len()), (2, 1));
        assert_eq!(placed.spec.containers[0].ports.len(), 1);
        let asked = &placed.spec.containers[0].resources.requests;
        assert_eq!((asked.get("cpu"), asked.get("gpu")), (Some(Quantity::new(2)), None));
        assert_eq!(asked.keys().collect::<Vec<_>>(), ["cpu", "memory"]);
    }

    fn tolerates(toleration: (&str, &str, &str, &str), taint: (&str, &str, &str)) -> bool {
        let (key, operator, value, effect) = toleration;
        let toleration = Toleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
        };
        toleration.tolerates(&Taint { key: taint.0.into(), value: taint.1.into(), effect: taint.2.into() })
    }

    #[test]
    fn tolerations_follow_upstreams_table() {
        assert!(tolerates(("", "Exists", "", ""), ("a", "x", "NoSchedule")));
        assert!(tolerates(("a", "", "x", ""), ("a", "x", "NoSchedule")));
        assert!(tolerates(("a", "Exists", "", "NoSchedule"), ("a", "x", "NoSchedule")));
        assert!(!tolerates(("a", "Equal", "y", ""), ("a", "x", "NoSchedule")));
        assert!(!tolerates(("a", "Exists", "", "NoExecute"), ("a", "x", "NoSchedule")));
        assert!(!tolerates(("b", "Exists", "", ""), ("a", "x", "NoSchedule")));
        assert!(tolerates(("a", "Gt", "5", ""), ("a", "7", "NoSchedule")));
        assert!(!tolerates(("a", "Lt", "5", ""), ("a", "7", "NoSchedule")));
    }
}
