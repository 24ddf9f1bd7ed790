//! Which cloud loops there are, which run, and with what.

use std::sync::Arc;

use controller_runtime::program::{ClientFor, Selection, Status};
use controller_runtime::{Clock, Controller, Runtime, system_clock};
use ipnet::IpNet;
use jiff::SignedDuration;
use lifecycle::Tasks;
use tracing::{info, warn};

use crate::provider::Provider;
use crate::{node, node_lifecycle, route, service};

/// Everything that the loops need to know.
#[derive(Clone)]
pub struct Config {
    /// Makes the client of a service account in `kube-system`; the empty name means the program's own identity.
    pub client_for: ClientFor,
    /// The place.
    pub provider: Arc<dyn Provider>,
    /// Which loops run.
    pub controllers: Selection,
    /// The clock.
    pub clock: Clock,
    /// The cluster's pod ranges; routes are kept only if there are some.
    pub routed_cidrs: Vec<IpNet>,
    /// How often machines are looked at.
    pub status_frequency: SignedDuration,
    /// How often machines of silent nodes are looked at.
    pub monitor_period: SignedDuration,
    /// How often routes are looked at.
    pub route_period: SignedDuration,
    /// How many Services are worked on at once.
    pub service_workers: usize,
    /// How many nodes are worked on at once.
    pub node_workers: usize,
}

impl Config {
    /// Upstream's defaults.
    pub fn new(client_for: ClientFor, provider: Arc<dyn Provider>) -> Self {
        Self {
            client_for,
            provider,
            controllers: Selection::default(),
            clock: system_clock(),
            routed_cidrs: Vec::new(),
            status_frequency: SignedDuration::from_mins(5),
            monitor_period: SignedDuration::from_secs(5),
            route_period: SignedDuration::from_secs(10),
            service_workers: 1,
            node_workers: 1,
        }
    }
}

/// Makes a loop, or none if the provider has nothing for it.
type Make = fn(&Config) -> Option<Controller>;

/// All loops.
const ALL: &[(&str, Make)] = &[
    (node::NAME, |config| {
        config.provider.instances()?;
        Some(node::controller(config.provider.clone(), config.status_frequency, config.node_workers))
    }),
    (node_lifecycle::NAME, |config| {
        config.provider.instances()?;
        Some(node_lifecycle::controller(config.provider.clone(), config.monitor_period))
    }),
    (service::NAME, |config| {
        config.provider.load_balancers()?;
        Some(service::controller(config.provider.clone(), config.service_workers))
    }),
    (route::NAME, |config| {
        if config.routed_cidrs.is_empty() {
            return None;
        }
        if config.provider.routes().is_none() {
            warn!(provider = config.provider.name(), "the provider has no routes to configure");
            return None;
        }
        Some(route::controller(config.provider.clone(), config.routed_cidrs.clone(), config.route_period))
    }),
];

/// The names of all loops.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// The running loops.
pub struct Manager {
    runtime: Runtime,
}

/// Starts the chosen loops on `tasks`. They stop with it.
pub fn start(config: &Config, tasks: &Tasks) -> Manager {
    let clients = config.client_for.clone();
    let runtime = Runtime::new(clients(""), clients, config.clock.clone(), tasks);
    for (name, make) in ALL {
        if config.controllers.includes(name, true)
            && let Some(controller) = make(config)
        {
            runtime.start(controller);
        }
    }
    info!(provider = config.provider.name(), controllers = ?runtime.names(), "cloud loops started");
    Manager { runtime }
}

impl Status for Manager {
    fn metrics(&self) -> String {
        self.runtime.metrics()
    }
}
