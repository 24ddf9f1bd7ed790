//! What the place that a cluster runs in can be asked.
//!
//! A provider offers what it has: machines, load balancers, routes. Every call may be made again at any time and then
//! changes nothing. "There is no such thing" and "could not find out" are different answers: absence is `Ok(None)`.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::kinds::{Node, Service};

/// What a provider could not do.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct CloudError {
    /// What was tried, on what.
    pub message: String,
    /// Why it failed.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl CloudError {
    /// A refusal of the provider itself.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// A failure below it.
    pub fn caused(
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { message: message.into(), source: Some(source.into()) }
    }
}

/// The answer of a provider.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, CloudError>>;

/// A place with machines.
pub trait Provider: Send + Sync + 'static {
    /// Its name, as `--cloud-provider` has it.
    fn name(&self) -> &'static str;

    /// Its machines.
    fn instances(&self) -> Option<&dyn Instances> {
        None
    }

    /// Its load balancers.
    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        None
    }

    /// Its routes.
    fn routes(&self) -> Option<&dyn Routes> {
        None
    }
}

/// Machines.
pub trait Instances: Send + Sync {
    /// The machine of a node; nothing if it is gone for good.
    fn instance<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<Instance>>;
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Instance {
    /// `<provider>://<machine>`.
    #[serde(rename = "providerID")]
    pub provider_id: String,
    /// Its size.
    pub instance_type: String,
    /// The part of the place that fails as one.
    pub zone: String,
    /// The place.
    pub region: String,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// More labels for its node.
    pub labels: BTreeMap<String, String>,
    /// Whether it exists but is off.
    pub shut_down: bool,
}

/// An address of a machine, as in a node's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Address {
    /// `InternalIP`, `ExternalIP`, `Hostname`, `InternalDNS` or `ExternalDNS`.
    #[serde(rename = "type")]
    pub kind: Box<str>,
    /// The address.
    pub address: Box<str>,
}

/// Load balancers.
pub trait LoadBalancers: Send + Sync {
    /// Makes or adapts the load balancer of a Service. `all` are the cluster's Services, `nodes` those to send traffic to.
    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        all: &'a [Arc<Service>],
        nodes: &'a [Arc<Node>],
    ) -> Answer<'a, Vec<Ingress>>;

    /// Tells an existing load balancer that other nodes take the traffic.
    fn update<'a>(&'a self, service: &'a Service, nodes: &'a [Arc<Node>]) -> Answer<'a, ()>;

    /// Removes the load balancer of a Service; whether there was one.
    fn delete<'a>(&'a self, service: &'a Service) -> Answer<'a, bool>;
}

/// Where a load balancer is reached, as in a Service's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Ingress {
    /// By address.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub ip: Box<str>,
    /// By name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub hostname: Box<str>,
    /// `VIP` if nodes see packets to the address, `Proxy` if they are sent to nodes' own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_mode: Option<Box<str>>,
}

/// Routes.
pub trait Routes: Send + Sync {
    /// The routes that this provider made.
    fn list(&self) -> Answer<'_, Vec<Route>>;

    /// Makes a route.
    fn create<'a>(&'a self, route: &'a Route) -> Answer<'a, ()>;

    /// Removes a route.
    fn delete<'a>(&'a self, route: &'a Route) -> Answer<'a, ()>;
}

/// A route to the pods of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The pods' range.
    pub to: Box<str>,
    /// The address of the node behind which they are; nothing leads nowhere.
    pub via: Option<Box<str>>,
}
