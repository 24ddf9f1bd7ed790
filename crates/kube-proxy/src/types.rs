//! What kube-proxy reads of Services, EndpointSlices and its Node.

use std::net::IpAddr;

use client::service::{file_by_service, nullable, service_of};
use client::{Key, Metadata, Projection};
use serde::Deserialize;

pub use client::service::{BY_SERVICE, Protocol as Transport};

/// Services with this label belong to another proxy.
pub const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Services with this label ask to be left alone.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
    pub status: ServiceStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: Box<str>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Box<str>,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<Box<str>>,
    #[serde(rename = "externalIPs")]
    pub external_ips: Vec<Box<str>>,
    pub ports: Vec<ServicePort>,
    pub session_affinity: Box<str>,
    pub session_affinity_config: AffinityConfig,
    pub external_traffic_policy: Box<str>,
    pub internal_traffic_policy: Box<str>,
    pub load_balancer_source_ranges: Vec<Box<str>>,
    pub health_check_node_port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    pub name: Box<str>,
    pub protocol: Transport,
    pub port: u16,
    pub node_port: u16,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AffinityConfig {
    #[serde(rename = "clientIP")]
    pub client_ip: ClientIp,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIp {
    pub timeout_seconds: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub load_balancer: LoadBalancer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    pub ingress: Vec<Ingress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ingress {
    pub ip: Box<str>,
    pub ip_mode: Box<str>,
}

impl Service {
    /// Whether this proxy has anything to do for the Service.
    pub fn is_proxied(&self) -> bool {
        &*self.spec.kind != "ExternalName"
            && !matches!(&*self.spec.cluster_ip, "" | "None")
            && self.metadata.labels.get(PROXY_NAME).is_none()
            && self.metadata.labels.get(HEADLESS).is_none()
    }

    pub fn cluster_addresses(&self) -> Vec<IpAddr> {
        if self.spec.cluster_ips.is_empty() {
            self.spec.cluster_ip.parse().into_iter().collect()
        } else {
            addresses(&self.spec.cluster_ips)
        }
    }

    pub fn external_addresses(&self) -> Vec<IpAddr> {
        addresses(&self.spec.external_ips)
    }

    /// Load balancer addresses whose packets arrive here unchanged; a balancer in proxy mode keeps its own.
    pub fn balancer_addresses(&self) -> Vec<IpAddr> {
        let direct = self.status.load_balancer.ingress.iter().filter(|ingress| &*ingress.ip_mode != "Proxy");
        direct.filter_map(|ingress| ingress.ip.parse().ok()).collect()
    }
}

fn addresses(texts: &[Box<str>]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointPort {
    pub name: Option<Box<str>>,
    pub protocol: Option<Transport>,
    pub port: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    pub addresses: Vec<Box<str>>,
    pub conditions: Conditions,
    pub node_name: Option<Box<str>>,
    pub hints: Hints,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    pub for_zones: Vec<Named>,
    pub for_nodes: Vec<Named>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Named {
    pub name: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Metadata,
    pub status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    pub addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    #[serde(rename = "type")]
    pub kind: Box<str>,
    pub address: Box<str>,
}

impl Node {
    pub fn zone(&self) -> Option<&str> {
        self.metadata.labels.get(ZONE)
    }

    /// The addresses under which the node is known inside the cluster.
    pub fn internal_addresses(&self) -> Vec<IpAddr> {
        let internal = self.status.addresses.iter().filter(|address| &*address.kind == "InternalIP");
        internal.filter_map(|address| address.address.parse().ok()).collect()
    }
}

impl EndpointSlice {
    /// The Service that the slice belongs to.
    pub fn service(&self) -> Option<Key> {
        service_of(&self.metadata)
    }
}

impl Projection for Service {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Projection for EndpointSlice {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn indices(&self, add: &mut dyn FnMut(&'static str, &str)) {
        file_by_service(&self.metadata, add);
    }
}

impl Projection for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
