//! Services and where their traffic goes.

use client::Labels;
use controller_runtime::Meta;
use serde::{Deserialize, Serialize};

use super::{Condition, IntOrString, kind, none};

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
kind!(
    Service,
    SERVICES,
    keep | name | name.starts_with("service.kubernetes.io/") || name.starts_with("endpoints.kubernetes.io/")
);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    /// Labels of the pods behind it; none if it has no selector.
    pub selector: Option<Labels>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// First address, `None` if headless.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Box<str>,
    /// All addresses.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<Box<str>>,
    /// Address families.
    pub ip_families: Vec<Box<str>>,
    /// Whether pods count before they are ready.
    pub publish_not_ready_addresses: bool,
    /// Which endpoints are preferred.
    pub traffic_distribution: Option<Box<str>>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePort {
    /// Name.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Box<str>,
    /// Its application protocol.
    pub app_protocol: Option<Box<str>>,
    /// Number.
    pub port: i64,
    /// Where it leads.
    pub target_port: Option<IntOrString>,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceStatus {
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// An Endpoints object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Endpoints {
    /// Metadata.
    pub metadata: Meta,
    /// Where traffic goes.
    pub subsets: Vec<EndpointSubset>,
}
kind!(Endpoints, ENDPOINTS, keep | name | name.starts_with("endpoints.kubernetes.io/"));

/// Addresses that have the same ports.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSubset {
    /// Ready ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<EndpointAddress>,
    /// Others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_ready_addresses: Vec<EndpointAddress>,
    /// Ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<EndpointPort>,
}

/// One address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointAddress {
    /// The address.
    pub ip: Box<str>,
    /// Its name in DNS.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub hostname: Box<str>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
    /// What it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
}

/// What an address belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetRef {
    /// Kind.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: Box<str>,
    /// Namespace.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub namespace: Box<str>,
    /// Name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Box<str>,
    /// Identity.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub uid: Box<str>,
}

/// A port of endpoints, in both APIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPort {
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// Number; nothing means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i64>,
    /// Protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Box<str>>,
    /// Application protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Box<str>>,
}

/// An EndpointSlice.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointSlice {
    /// Metadata.
    pub metadata: Meta,
    /// `IPv4`, `IPv6` or `FQDN`.
    pub address_type: Box<str>,
    /// Where traffic goes.
    pub endpoints: Vec<Endpoint>,
    /// Ports of all of them.
    pub ports: Vec<EndpointPort>,
}
kind!(EndpointSlice, ENDPOINT_SLICES, owned true, keep |name| name.starts_with("endpoints.kubernetes.io/"),
index |slice, add| if let Some(service) = slice.metadata.label("kubernetes.io/service-name") {
    add("service", &format!("{}/{service}", slice.metadata.namespace));
});

/// One endpoint of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    /// Addresses.
    pub addresses: Vec<Box<str>>,
    /// State.
    pub conditions: EndpointConditions,
    /// Name in DNS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Box<str>>,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<TargetRef>,
    /// Where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<Box<str>>,
    /// In which zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<Box<str>>,
    /// Who should use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
}

/// State of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Takes traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Could take traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    /// Is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

/// Who should use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hints {
    /// Zones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Named>,
    /// Nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Named>,
}

/// A name in an object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Named {
    /// The name.
    pub name: Box<str>,
}

/// A PodDisruptionBudget's neighbour in the network group: a ServiceCIDR.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: ServiceCidrSpec,
    /// What is.
    pub status: ServiceStatus,
}
kind!(ServiceCidr, SERVICE_CIDRS, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// Ranges.
    pub cidrs: Vec<Box<str>>,
}

/// An IPAddress.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IpAddress {
    /// Metadata; the name is the address.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: IpAddressSpec,
}
kind!(IpAddress, IP_ADDRESSES, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IpAddressSpec {
    /// Who uses it.
    pub parent_ref: Option<ParentRef>,
}

/// Who uses an address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ParentRef {
    /// Group.
    pub group: Box<str>,
    /// Plural.
    pub resource: Box<str>,
    /// Namespace.
    pub namespace: Box<str>,
    /// Name.
    pub name: Box<str>,
}
