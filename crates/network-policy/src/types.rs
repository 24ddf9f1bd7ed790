//! What policies read of NetworkPolicies, Pods and Namespaces.

use std::net::IpAddr;
use std::sync::Arc;

use apimachinery::selector::LabelSelector;
pub use client::service::Protocol;
use client::service::nullable;
use client::{Labels, Metadata, Projection, Word};
use serde::{Deserialize, Deserializer};

/// A label selector, parsed once.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector(Arc<LabelSelector>);

impl Default for Selector {
    fn default() -> Self {
        Self(Arc::new(LabelSelector::everything()))
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(input)?;
        // The API server refuses selectors that cannot be read; what got here all the same selects nothing.
        Ok(Self(Arc::new(LabelSelector::from_object(&value).unwrap_or_else(|_| LabelSelector::nothing()))))
    }
}

impl Selector {
    /// Whether it selects an object with these labels.
    pub fn selects(&self, labels: &Labels) -> bool {
        self.0.matches_with(|key| labels.get(key))
    }

    /// The same text for the same selector.
    pub fn text(&self) -> String {
        format!("{:?}", self.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NetworkPolicy {
    pub metadata: Metadata,
    pub spec: PolicySpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicySpec {
    #[serde(deserialize_with = "nullable")]
    pub pod_selector: Selector,
    #[serde(deserialize_with = "nullable")]
    pub policy_types: Vec<Box<str>>,
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<PolicyRule>,
    #[serde(deserialize_with = "nullable")]
    pub egress: Vec<PolicyRule>,
}

/// Which way packets go, as seen from the pod that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Ingress,
    Egress,
}

impl PolicySpec {
    /// Whether the policy isolates its pods in this direction.
    pub fn isolates(&self, direction: Direction) -> bool {
        let named = |name: &str| self.policy_types.iter().any(|kind| &**kind == name);
        match (self.policy_types.is_empty(), direction) {
            (true, Direction::Ingress) => true,
            (true, Direction::Egress) => !self.egress.is_empty(),
            (false, Direction::Ingress) => named("Ingress"),
            (false, Direction::Egress) => named("Egress"),
        }
    }

    pub fn rules(&self, direction: Direction) -> &[PolicyRule] {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }
}

/// A rule of either direction.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PolicyRule {
    #[serde(alias = "from", alias = "to", deserialize_with = "nullable")]
    pub peers: Vec<Peer>,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<PolicyPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Peer {
    pub pod_selector: Option<Selector>,
    pub namespace_selector: Option<Selector>,
    pub ip_block: Option<IpBlock>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct IpBlock {
    pub cidr: Box<str>,
    #[serde(deserialize_with = "nullable")]
    pub except: Vec<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyPort {
    #[serde(deserialize_with = "nullable")]
    pub protocol: Protocol,
    pub port: Option<PortId>,
    pub end_port: Option<i64>,
}

/// A port's number or name.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PortId {
    Number(i64),
    Name(Box<str>),
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Metadata,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: Word,
    pub host_network: bool,
    #[serde(deserialize_with = "nullable")]
    pub containers: Vec<Container>,
    #[serde(deserialize_with = "nullable")]
    pub init_containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    pub restart_policy: Word,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ContainerPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    pub name: Word,
    pub container_port: u16,
    #[serde(deserialize_with = "nullable")]
    pub protocol: Protocol,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    pub phase: Word,
    #[serde(rename = "podIPs", deserialize_with = "nullable")]
    pub pod_ips: Vec<PodIp>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: Box<str>,
}

impl Pod {
    /// The number behind the name of a port, where a container or sidecar has it.
    pub fn named_port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        let sidecars = self.spec.init_containers.iter().filter(|one| &*one.restart_policy == "Always");
        let mut ports = self.spec.containers.iter().chain(sidecars).flat_map(|container| &container.ports);
        let port = ports.find(|port| &*port.name == name && port.protocol == protocol)?;
        Some(port.container_port)
    }

    /// The addresses that its status tells, while it runs.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let is_over = matches!(&*self.status.phase, "Succeeded" | "Failed");
        let ips = self.status.pod_ips.iter().filter(move |_| !is_over);
        ips.filter_map(|one| one.ip.parse().ok())
    }

    /// Whether a sandbox made for the pod `uid` is this one's. The kubelet knows a static pod by another uid than the API.
    pub fn is(&self, uid: &str) -> bool {
        &*self.metadata.uid == uid || self.metadata.controller().is_some_and(|owner| &*owner.kind == "Node")
    }
}

impl Projection for NetworkPolicy {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Projection for Namespace {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Projection for Pod {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
