//! What DNS reads of Services, EndpointSlices and Namespaces.

use client::service::{file_by_service, nullable, service_of};
use client::{Key, Metadata, Projection};
use serde::Deserialize;

pub use client::service::{BY_SERVICE, Protocol};

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

impl Projection for Namespace {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}
