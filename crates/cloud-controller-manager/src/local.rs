//! The provider for machines of one's own: load balancers are addresses from pools, machines are described by files or
//! by their nodes' annotations, routes are those of the machine that this program runs on.
//!
//! Nothing is kept beside the API: which address a Service has stands in its status, so a restart forgets nothing.

mod machines;
mod network;
mod pools;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use thiserror::Error;

use crate::kinds::{Node, Service};
use crate::provider::{
    Answer, CloudError, Ingress, Instance, Instances, LoadBalancers, Provider, Route, Routes,
};
pub use pools::{Pool, PoolError, Range};

/// The configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Addresses for Services of type LoadBalancer; none are given if there are none.
    pub load_balancers: BalancerConfig,
    /// The directory with a file per machine; without it nodes' annotations tell, and no machine is ever gone.
    pub machines: Option<PathBuf>,
    /// The interface of this machine through which nodes are reached, to route pod ranges there.
    pub routes: Option<String>,
}

/// Of `loadBalancers`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BalancerConfig {
    /// Where addresses come from.
    pub pools: Vec<Pool>,
    /// The interface of this machine that gets the addresses, so that neighbours and the machine itself find them.
    pub announce: Option<String>,
}

/// A configuration that cannot be used.
#[derive(Debug, Error)]
pub enum LocalError {
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a configuration of the provider local", path = path.display())]
    Parse { path: PathBuf, source: serde_yaml_ng::Error },
}

/// The provider.
pub struct Local {
    config: LocalConfig,
    /// Addresses given since the start, by Service: a status may not show them yet.
    given: Mutex<HashMap<Box<str>, Vec<IpAddr>>>,
}

impl Local {
    /// Reads the configuration; without a file there are no addresses to give.
    pub fn open(path: Option<&Path>) -> Result<Self, LocalError> {
        let Some(path) = path else { return Ok(Self::new(LocalConfig::default())) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| LocalError::Read { path: path.to_owned(), source })?;
        let config = serde_yaml_ng::from_str(&text)
            .map_err(|source| LocalError::Parse { path: path.to_owned(), source })?;
        Ok(Self::new(config))
    }

    /// With a configuration.
    pub fn new(config: LocalConfig) -> Self {
        Self { config, given: Mutex::default() }
    }

    fn ensure_addresses(&self, service: &Service, all: &[Arc<Service>]) -> Result<Vec<Ingress>, CloudError> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let present: HashSet<&str> = all.iter().map(|other| &*other.metadata.uid).collect();
        given.retain(|uid, _| present.contains(&**uid));
        let mut taken = pools::in_use(all);
        for other in all {
            for address in given.get(&other.metadata.uid).into_iter().flatten() {
                taken.entry(*address).or_insert_with(|| other.clone());
            }
        }
        let pools = &self.config.load_balancers.pools;
        let addresses =
            pools::assign(pools, service, &taken).map_err(|error| CloudError::new(error.to_string()))?;
        given.insert(service.metadata.uid.clone(), addresses.clone());
        let mut announced: HashSet<IpAddr> = taken
            .iter()
            .filter(|(_, owner)| owner.metadata.uid != service.metadata.uid)
            .map(|(address, _)| *address)
            .collect();
        announced.extend(&addresses);
        self.announce(&announced)?;
        let vip = |address: &IpAddr| Ingress {
            ip: address.to_string().into(),
            ip_mode: Some("VIP".into()),
            ..Ingress::default()
        };
        Ok(addresses.iter().map(vip).collect())
    }

    fn release(&self, service: &Service) -> Result<bool, CloudError> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let mut addresses = pools::addresses_of(service);
        addresses.extend(given.remove(&service.metadata.uid).into_iter().flatten());
        if let Some(interface) = &self.config.load_balancers.announce {
            for address in &addresses {
                let still_used = given.values().flatten().any(|other| other == address);
                let is_ours = self.config.load_balancers.pools.iter().any(|pool| pool.contains(*address));
                if is_ours && !still_used {
                    network::withdraw(interface, *address)?;
                }
            }
        }
        Ok(!addresses.is_empty())
    }

    fn announce(&self, wanted: &HashSet<IpAddr>) -> Result<(), CloudError> {
        let config = &self.config.load_balancers;
        let Some(interface) = &config.announce else { return Ok(()) };
        network::announce(interface, wanted, |address| config.pools.iter().any(|pool| pool.contains(address)))
    }
}

impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn load_balancers(&self) -> Option<&dyn LoadBalancers> {
        (!self.config.load_balancers.pools.is_empty()).then_some(self)
    }

    fn routes(&self) -> Option<&dyn Routes> {
        self.config.routes.as_ref().map(|_| self as &dyn Routes)
    }
}

impl Instances for Local {
    fn instance<'a>(&'a self, node: &'a Node) -> Answer<'a, Option<Instance>> {
        Box::pin(async move {
            match &self.config.machines {
                Some(directory) => machines::from_file(directory, node).await,
                None => machines::from_annotations(node).map(Some),
            }
        })
    }
}

impl LoadBalancers for Local {
    fn ensure<'a>(
        &'a self,
        service: &'a Service,
        all: &'a [Arc<Service>],
        _nodes: &'a [Arc<Node>],
    ) -> Answer<'a, Vec<Ingress>> {
        Box::pin(std::future::ready(self.ensure_addresses(service, all)))
    }

    /// Every node serves every address, whichever takes the traffic.
    fn update<'a>(&'a self, _service: &'a Service, _nodes: &'a [Arc<Node>]) -> Answer<'a, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn delete<'a>(&'a self, service: &'a Service) -> Answer<'a, bool> {
        Box::pin(std::future::ready(self.release(service)))
    }
}

impl Routes for Local {
    fn list(&self) -> Answer<'_, Vec<Route>> {
        Box::pin(std::future::ready(network::routes(self.config.routes.as_deref().unwrap_or_default())))
    }

    fn create<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        let interface = self.config.routes.as_deref().unwrap_or_default();
        Box::pin(std::future::ready(network::add_route(interface, route)))
    }

    fn delete<'a>(&'a self, route: &'a Route) -> Answer<'a, ()> {
        Box::pin(std::future::ready(network::remove_route(route)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(name: &str, more: Value) -> Arc<Service> {
        let mut value =
            json!({"metadata":{"name":name,"namespace":"n","uid":name},"spec":{"type":"LoadBalancer"}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn local(pool: &str) -> Local {
        let text = format!("loadBalancers: {{pools: [{{addresses: [{pool}]}}]}}");
        Local::new(serde_yaml_ng::from_str(&text).unwrap())
    }

    #[test]
    fn an_address_stays_given_while_no_status_shows_it() {
        let local = local("192.0.2.1-192.0.2.2");
        let all = [service("a", json!({})), service("b", json!({})), service("c", json!({}))];
        let ip = |service: &Service| {
            local
                .ensure_addresses(service, &all)
                .map(|found| found[0].ip.to_string())
                .map_err(|e| e.to_string())
        };
        assert_eq!(ip(&all[0]).as_deref(), Ok("192.0.2.1"));
        assert_eq!(ip(&all[1]).as_deref(), Ok("192.0.2.2"));
        assert_eq!(ip(&all[0]).as_deref(), Ok("192.0.2.1"), "asked again");
        assert!(ip(&all[2]).unwrap_err().contains("no address is free"));
        assert!(local.release(&all[1]).unwrap());
        assert_eq!(ip(&all[2]).as_deref(), Ok("192.0.2.2"));
        assert!(!local.release(&all[1]).unwrap(), "nothing left to release");
    }

    #[test]
    fn after_a_restart_statuses_tell_what_is_taken() {
        let local = local("192.0.2.0/29");
        let shown = json!({"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}});
        let all = [service("new", json!({})), service("old", shown)];
        assert_eq!(&*local.ensure_addresses(&all[0], &all).unwrap()[0].ip, "192.0.2.2");
        assert_eq!(&*local.ensure_addresses(&all[1], &all).unwrap()[0].ip, "192.0.2.1");
    }

    #[test]
    fn a_configuration_with_unknown_words_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cloud.yaml");
        std::fs::write(&path, "loadBalancers: {pool: []}").unwrap();
        assert!(matches!(Local::open(Some(&path)), Err(LocalError::Parse { .. })));
        assert!(matches!(Local::open(Some(&directory.path().join("none"))), Err(LocalError::Read { .. })));
        assert!(Local::open(None).unwrap().load_balancers().is_none());
    }
}
