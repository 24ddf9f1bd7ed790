//! Pods: the one kind that nearly every controller reads.

use std::ops::Deref;

use client::{Labels, Shared, Short, Word};
use controller_runtime::Meta;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use super::{Condition, IntOrString, condition, kind};

/// A Pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: PodSpec,
    /// What is.
    pub status: PodStatus,
}

kind!(Pod, PODS, owned true,
    keep |name| name.starts_with("batch.kubernetes.io/") || name == "controller.kubernetes.io/pod-deletion-cost",
    index |pod, add| if !pod.spec.node_name.is_empty() { add("node", &pod.spec.node_name) });

/// Of `spec`: what is the pod's own, and what it has in common with its siblings.
#[derive(Clone, Debug, Default)]
pub struct PodSpec {
    /// The node it is bound to.
    pub node_name: Word,
    /// Its name in DNS.
    pub hostname: Box<str>,
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
        let (node_name, hostname) =
            (std::mem::take(&mut shape.node_name), std::mem::take(&mut shape.hostname));
        Ok(Self { node_name, hostname, shape: Shared::new(shape) })
    }
}

/// Of `spec`: what pods that were made from one template share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodShape {
    /// Only to be read; then they move to [`PodSpec`].
    node_name: Word,
    hostname: Box<str>,
    /// The Service that its DNS name is under.
    pub subdomain: Box<str>,
    /// `Always`, `OnFailure` or `Never`.
    pub restart_policy: Box<str>,
    /// Uses the node's network.
    pub host_network: bool,
    /// Grace at deletion.
    pub termination_grace_period_seconds: Option<i64>,
    /// Time after which it is killed.
    pub active_deadline_seconds: Option<i64>,
    /// Tolerations.
    pub tolerations: Vec<Toleration>,
    /// Containers.
    pub containers: Vec<Container>,
    /// Init containers.
    pub init_containers: Vec<Container>,
    /// Overhead of its runtime class.
    pub overhead: Labels,
    /// Resources of the whole pod.
    pub resources: Resources,
    /// Priority class.
    pub priority_class_name: Box<str>,
    /// Volumes that come from claims.
    pub volumes: Vec<Volume>,
    /// Dynamic resources.
    pub resource_claims: Vec<PodResourceClaim>,
    /// What keeps it from being scheduled.
    pub scheduling_gates: Vec<Gate>,
    /// The only node that its affinity allows, as daemon pods have it.
    pub affinity: Pinned,
}

/// The node that an affinity names, if it names one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pinned(pub Option<Box<str>>);

impl<'de> Deserialize<'de> for Pinned {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let value = Option::<serde_json::Value>::deserialize(input)?.unwrap_or_default();
        let terms =
            value.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
        let fields = terms.and_then(|terms| terms.get(0)?.get("matchFields")?.as_array());
        let name = fields.into_iter().flatten().find(|field| field["key"] == "metadata.name");
        Ok(Self(name.and_then(|field| field["values"].get(0)?.as_str()).map(Box::from)))
    }
}

/// A scheduling gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Gate {
    /// Its name.
    pub name: Box<str>,
}

/// Of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    pub name: Box<str>,
    /// Declared ports.
    pub ports: Vec<ContainerPort>,
    /// Requests and limits.
    pub resources: Resources,
    /// `Always` makes an init container a sidecar.
    pub restart_policy: Option<Box<str>>,
}

/// A declared port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name.
    pub name: Box<str>,
    /// Number.
    pub container_port: i64,
    /// Number on the host.
    pub host_port: i64,
    /// Protocol, TCP if empty.
    pub protocol: Box<str>,
}

/// Requests and limits, as quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// What is set aside.
    pub requests: Labels,
    /// What is allowed.
    pub limits: Labels,
}

/// Of a volume: only the sources that controllers follow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Name in the pod.
    pub name: Box<str>,
    /// A claim of the namespace.
    pub persistent_volume_claim: Option<ClaimSource>,
    /// A claim made for the pod.
    pub ephemeral: Option<Ephemeral>,
    /// A Secret.
    pub secret: Option<SecretSource>,
}

/// The Secret that a volume shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretSource {
    /// Its name.
    pub secret_name: Box<str>,
}

/// The claim that a volume uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSource {
    /// The claim's name.
    pub claim_name: Box<str>,
}

/// A claim made for the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ephemeral {
    /// Metadata and spec of the claim.
    pub volume_claim_template: Option<controller_runtime::Raw>,
}

/// A dynamic resource that the pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodResourceClaim {
    /// Name in the pod.
    pub name: Box<str>,
    /// An existing claim.
    pub resource_claim_name: Option<Box<str>>,
    /// A template to make a claim from.
    pub resource_claim_template_name: Option<Box<str>>,
}

/// A toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Taint key; empty with `Exists` tolerates all.
    pub key: Box<str>,
    /// `Equal` (or empty) or `Exists`.
    pub operator: Box<str>,
    /// Taint value.
    pub value: Box<str>,
    /// Taint effect; empty tolerates all effects.
    pub effect: Box<str>,
    /// For how long.
    pub toleration_seconds: Option<i64>,
}

impl Toleration {
    /// Whether a taint is tolerated.
    pub fn tolerates(&self, taint: &super::Taint) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        (self.effect.is_empty() || self.effect == taint.effect)
            && (self.key.is_empty() || self.key == taint.key)
            && match &*self.operator {
                "Exists" => true,
                "" | "Equal" => self.value == taint.value,
                "Lt" => number(&taint.value).zip(number(&self.value)).is_some_and(|(taint, own)| taint < own),
                "Gt" => number(&taint.value).zip(number(&self.value)).is_some_and(|(taint, own)| taint > own),
                _ => false,
            }
    }
}

/// Of `status`.
#[derive(Clone, Debug, Default)]
pub struct PodStatus {
    /// Phase.
    pub phase: Word,
    /// Conditions, without their texts and times.
    pub conditions: Shared<Box<[Told]>>,
    /// When the condition `Ready` last turned.
    pub turned_ready: Option<Timestamp>,
    /// First address.
    pub pod_ip: Short,
    /// The addresses beside it.
    pub more_ips: Box<[Short]>,
    /// When the kubelet took it.
    pub start_time: Option<Timestamp>,
    /// States of the containers that ended or began anew; there is nothing to tell of the others.
    pub container_statuses: Box<[ContainerStatus]>,
    /// The same of the init containers.
    pub init_container_statuses: Box<[ContainerStatus]>,
    /// Claims made for it.
    pub resource_claim_statuses: Box<[PodClaimStatus]>,
}

impl<'de> Deserialize<'de> for PodStatus {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Flat {
            phase: Word,
            conditions: Vec<PodCondition>,
            #[serde(rename = "podIP")]
            pod_ip: Short,
            #[serde(rename = "podIPs")]
            pod_ips: Vec<PodIp>,
            start_time: Option<Timestamp>,
            container_statuses: Vec<ContainerStatus>,
            init_container_statuses: Vec<ContainerStatus>,
            resource_claim_statuses: Box<[PodClaimStatus]>,
        }
        let flat = Flat::deserialize(input)?;
        let ready = flat.conditions.iter().find(|condition| &*condition.told.kind == "Ready");
        let turned_ready = ready.and_then(|ready| ready.last_transition_time);
        let conditions = flat.conditions.into_iter().map(|condition| condition.told).collect();
        let telling = |statuses: Vec<ContainerStatus>| {
            statuses
                .into_iter()
                .filter(|status| status.restart_count != 0 || status.terminated.is_some())
                .collect()
        };
        Ok(Self {
            phase: flat.phase,
            conditions: Shared::new(conditions),
            turned_ready,
            more_ips: flat.pod_ips.into_iter().map(|one| one.ip).filter(|ip| *ip != flat.pod_ip).collect(),
            pod_ip: flat.pod_ip,
            start_time: flat.start_time,
            container_statuses: telling(flat.container_statuses),
            init_container_statuses: telling(flat.init_container_statuses),
            resource_claim_statuses: flat.resource_claim_statuses,
        })
    }
}

/// A claim made for a pod.
#[derive(Clone, Debug, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaimStatus {
    /// Name in the pod.
    pub name: Box<str>,
    /// The claim; nothing if none is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<Box<str>>,
}

/// An address, only to be read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: Short,
}

/// A condition, only to be read; then it is taken apart.
#[derive(Default)]
struct PodCondition {
    told: Told,
    last_transition_time: Option<Timestamp>,
}

/// What a condition says: without its texts, which no controller reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    /// What is told.
    pub kind: Word,
    /// `True`, `False` or `Unknown`.
    pub status: Word,
}

impl<'de> Deserialize<'de> for PodCondition {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Flat {
            #[serde(rename = "type")]
            kind: Word,
            status: Word,
            last_transition_time: Option<Timestamp>,
        }
        let Flat { kind, status, last_transition_time } = Flat::deserialize(input)?;
        Ok(Self { told: Told { kind, status }, last_transition_time })
    }
}

/// Of a container's state.
#[derive(Clone, Debug, Default)]
pub struct ContainerStatus {
    /// Name.
    pub name: Box<str>,
    /// Restarts.
    pub restart_count: i64,
    /// How it ended, if it did.
    pub terminated: Option<Terminated>,
}

impl<'de> Deserialize<'de> for ContainerStatus {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Flat {
            name: Box<str>,
            restart_count: i64,
            state: State,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct State {
            terminated: Option<Terminated>,
        }
        let Flat { name, restart_count, state } = Flat::deserialize(input)?;
        Ok(Self { name, restart_count, terminated: state.terminated })
    }
}

/// How a container ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    /// Exit code.
    pub exit_code: i64,
    /// When.
    pub finished_at: Option<Timestamp>,
}

impl Pod {
    /// The node that it runs on or is made for.
    pub fn node(&self) -> Option<&str> {
        if self.spec.node_name.is_empty() {
            self.spec.affinity.0.as_deref()
        } else {
            Some(&self.spec.node_name)
        }
    }

    /// Whether all containers ended for good.
    pub fn is_finished(&self) -> bool {
        matches!(&*self.status.phase, "Succeeded" | "Failed")
    }

    /// Whether it counts for its controller: not finished, not being deleted.
    pub fn is_active(&self) -> bool {
        !self.is_finished() && !self.metadata.is_terminating()
    }

    /// A condition.
    pub fn condition(&self, name: &str) -> Option<&Told> {
        self.status.conditions.iter().find(|condition| *condition.kind == *name)
    }

    /// Since when the pod is ready.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.condition("Ready").filter(|condition| &*condition.status == "True")?;
        Some(self.status.turned_ready.unwrap_or(Timestamp::UNIX_EPOCH))
    }

    /// Whether it is ready.
    pub fn is_ready(&self) -> bool {
        self.ready_since().is_some()
    }

    /// When it becomes available: ready for long enough. Nothing if it is not ready.
    pub fn available_at(&self, min_ready_seconds: i64) -> Option<Timestamp> {
        let since = self.ready_since()?;
        since.checked_add(jiff::SignedDuration::from_secs(min_ready_seconds)).ok()
    }

    /// Whether it is ready for long enough.
    pub fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.available_at(min_ready_seconds).is_some_and(|at| min_ready_seconds == 0 || at <= now)
    }

    /// Names of the claims that it uses, including those made for it.
    pub fn claim_names(&self) -> Vec<String> {
        self.spec
            .volumes
            .iter()
            .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(claim), _) => Some(claim.claim_name.to_string()),
                (None, Some(_)) => Some(format!("{}-{}", self.metadata.name, volume.name)),
                (None, None) => None,
            })
            .collect()
    }

    /// The restarts of all containers.
    pub fn restarts(&self) -> i64 {
        let all = self.status.container_statuses.iter().chain(&self.status.init_container_statuses);
        all.map(|status| status.restart_count).sum()
    }

    /// The number of a container port that a Service's target port means.
    pub fn port_number(&self, target: &IntOrString, protocol: &str) -> Option<i64> {
        let name = match target {
            IntOrString::Int(number) => return Some(*number),
            IntOrString::Text(name) => name,
        };
        let sidecars = self
            .spec
            .init_containers
            .iter()
            .filter(|container| container.restart_policy.as_deref() == Some("Always"));
        self.spec
            .containers
            .iter()
            .chain(sidecars)
            .flat_map(|container| &container.ports)
            .find(|port| {
                let own = if port.protocol.is_empty() { "TCP" } else { &*port.protocol };
                port.name == *name && own == protocol
            })
            .map(|port| port.container_port)
    }
}

/// A pod condition of other kinds' form.
pub fn is_condition_true(conditions: &[Condition], kind: &str) -> bool {
    condition(conditions, kind).is_some_and(Condition::is_true)
}
