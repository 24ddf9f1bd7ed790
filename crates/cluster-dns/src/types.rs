//! What DNS reads of Services, EndpointSlices and Namespaces.

use client::{Key, Metadata, Projection};
use serde::{Deserialize, Deserializer};

/// The label by which a slice names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The index of slices by namespace and Service.
pub const BY_SERVICE: &str = "service";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub metadata: Metadata,
    pub spec: ServiceSpec,
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
    pub external_name: Box<str>,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Port {
    #[serde(deserialize_with = "nullable")]
    pub name: Box<str>,
    pub protocol: Protocol,
    #[serde(deserialize_with = "nullable")]
    pub port: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Protocol {
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
    #[serde(rename = "SCTP")]
    Sctp,
}

impl Protocol {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct EndpointSlice {
    pub metadata: Metadata,
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<Port>,
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    pub addresses: Vec<Box<str>>,
    pub hostname: Option<Box<str>>,
    pub conditions: Conditions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    /// True also for a Service that publishes addresses before they are ready: its controller says so.
    pub ready: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    pub metadata: Metadata,
}

impl EndpointSlice {
    /// The Service that the slice belongs to.
    pub fn service(&self) -> Option<Key> {
        self.metadata.labels.get(SERVICE_NAME).map(|name| Key::new(&self.metadata.namespace, name))
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
        if let Some(service) = self.service() {
            add(BY_SERVICE, &service.to_string());
        }
    }
}

impl Projection for Namespace {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

/// Absent values are sometimes written as `null`.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
