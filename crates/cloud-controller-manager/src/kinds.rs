//! The projections of nodes and Services that the cloud loops read.

use controller_runtime::Meta;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::provider::{Address, Ingress};

macro_rules! kind {
    ($type:ident, $resource:ident, keep $keep:expr) => {
        impl client::Projection for $type {
            fn metadata(&self) -> &client::Metadata {
                self.metadata.base()
            }

            fn shrink(&mut self) {
                let keep: fn(&str) -> bool = $keep;
                self.metadata.keep_annotations(keep);
            }
        }

        impl controller_runtime::Kind for $type {
            const RESOURCE: client::Resource = client::resources::$resource;

            fn meta(&self) -> &Meta {
                &self.metadata
            }
        }
    };
}

/// Annotations by which a node tells about its machine, where no file does.
pub const MACHINE: &str = "machine.kelson.io/";
/// The address that the kubelet was told to use.
pub const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

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
kind!(Node, NODES, keep | name | name.starts_with(MACHINE) || name == PROVIDED_IP);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpec {
    /// The provider's name for the machine.
    #[serde(rename = "providerID")]
    pub provider_id: Box<str>,
    /// Pod address ranges.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<Box<str>>,
    /// Taints.
    pub taints: Vec<Taint>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
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

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Addresses.
    pub addresses: Vec<Address>,
}

/// A condition of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// What is told.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// `True`, `False` or `Unknown`.
    pub status: Box<str>,
}

impl Node {
    /// Whether a condition says this.
    pub fn says(&self, kind: &str, status: &str) -> bool {
        self.status
            .conditions
            .iter()
            .any(|condition| *condition.kind == *kind && *condition.status == *status)
    }

    /// Whether it has a taint of this key.
    pub fn has_taint(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| *taint.key == *key)
    }

    /// Its taints but those of this key.
    pub fn taints_without(&self, key: &str) -> Vec<&Taint> {
        self.spec.taints.iter().filter(|taint| *taint.key != *key).collect()
    }
}

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ServiceSpec,
    /// What is.
    pub status: ServiceStatus,
}
kind!(Service, SERVICES, keep | name | name != "kubectl.kubernetes.io/last-applied-configuration");

/// Of `spec`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// Who serves it, if not the cluster's own provider.
    pub load_balancer_class: Option<Box<str>>,
    /// The address that is wanted.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Box<str>,
    /// Who may use it.
    pub load_balancer_source_ranges: Vec<Box<str>>,
    /// Address families.
    pub ip_families: Vec<Box<str>>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// `Cluster` or `Local`.
    pub external_traffic_policy: Box<str>,
    /// Where its health is told.
    pub health_check_node_port: i64,
    /// `None` or `ClientIP`.
    pub session_affinity: Box<str>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Box<str>,
    /// Number.
    pub port: i64,
    /// The port of every node.
    pub node_port: i64,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceStatus {
    /// Where it is reached from outside.
    pub load_balancer: LoadBalancerStatus,
}

/// Of `status.loadBalancer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Addresses.
    pub ingress: Vec<Ingress>,
}

impl Service {
    /// Whether the cluster's own provider is asked for a load balancer.
    pub fn wants_load_balancer(&self) -> bool {
        &*self.spec.kind == "LoadBalancer" && self.spec.load_balancer_class.is_none()
    }
}
