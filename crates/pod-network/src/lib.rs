//! The pod network of one node: every pod has an address of the node's range and is reached by routing.
//!
//! The path of a pod: [`lease`] gives it an address and writes that down, [`device`] makes a veth pair whose outer end
//! stays on the host with a route to exactly this address, [`rules`] translates host ports and hides pod addresses
//! from the world outside the cluster. The gateway address lives on a bridge device without ports: pods are not
//! bridged, so every packet passes the host's routing and connection tracking, and Services work the same whether or not
//! the kernel filters bridged frames.
//!
//! What must stay true: an address is held by at most one pod; a lease is on disk before the address is used; a process
//! that dies leaves a working network, and the next one finds the same leases, links and rules and goes on.

pub mod agent;
mod device;
mod firewall;
mod install;
mod lease;
mod nodes;
pub mod overlay;
pub mod plugin;
mod rules;
mod socket;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use cni::{Attachment, BoxFuture, Network, PodRef};
use ipnet::IpNet;
use netlink::nft::Nftables;
use netlink::route::Routing;
use thiserror::Error;
use tracing::{info, warn};

pub use lease::Lease;
use lease::{LeaseError, Leases};

/// The pod's side of its link.
const INTERFACE: &str = "eth0";

/// Where and with which addresses the network works.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device that holds the gateway address; also the name of the nftables table.
    pub bridge: String,
    /// This node's share of the cluster's pod addresses. Its first address is the gateway.
    pub pod_cidr: IpNet,
    /// All pods' addresses; traffic that leaves this range gets the node's address.
    pub cluster_cidr: IpNet,
    /// Service addresses: the host gets a route for them, so that its own programs reach Services even on a machine
    /// without a default route.
    pub service_cidr: Option<IpNet>,
    /// Where leases are kept.
    pub state_dir: PathBuf,
    /// Largest packet; by default that of the host's links, at most 1500, less what an overlay needs.
    pub mtu: Option<u32>,
}

/// Why the network could not be opened or removed.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The kernel lacks something.
    #[error("the kernel has no {feature}: {remedy}")]
    Missing {
        feature: &'static str,
        remedy: &'static str,
        #[source]
        source: netlink::Error,
    },
    /// Not root.
    #[error("network devices need root (CAP_NET_ADMIN): run as root, or with --control-plane-only")]
    NotPermitted {
        #[source]
        source: netlink::Error,
    },
    /// The address range cannot work.
    #[error("pod range {range} is too small: it needs a gateway and at least one pod address")]
    Range { range: IpNet },
    /// The host itself lives in a range that is meant for pods or Services.
    #[error("range {range} overlaps the address {address} of device {device}: choose another range")]
    Overlap { range: IpNet, address: IpNet, device: String },
    /// Another kind of device has the gateway's name.
    #[error("device {name} exists and is no bridge: remove it or choose another name")]
    Occupied { name: String },
    /// The kernel refused.
    #[error("{doing}")]
    Kernel {
        doing: &'static str,
        #[source]
        source: netlink::Error,
    },
    /// Forwarding is off and cannot be turned on.
    #[error("packet forwarding is off and {path} cannot be written")]
    Forwarding {
        path: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Leases cannot be read or written.
    #[error(transparent)]
    Lease(#[from] LeaseError),
}

impl NetworkError {
    fn kernel(doing: &'static str) -> impl FnOnce(netlink::Error) -> Self {
        move |source| Self::Kernel { doing, source }
    }
}

/// The network of this node. Implements [`cni::Network`].
#[derive(Debug)]
pub struct PodNetwork(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: Config,
    overlay: Option<overlay::Config>,
    gateway: IpAddr,
    mtu: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    leases: Leases,
    /// The rules as last written; `None` when the kernel's are in doubt.
    written: Option<netlink::nft::Table>,
    /// Chains of other firewalls that were complained of.
    told: BTreeSet<String>,
}

impl PodNetwork {
    /// Reads the leases, makes the gateway device and the rules, or adopts those that are there.
    pub fn open(config: Config) -> Result<Arc<Self>, NetworkError> {
        Self::open_joined(config, None)
    }

    /// The same on a node that reaches others by an overlay; see [`agent`].
    pub fn open_joined(config: Config, overlay: Option<overlay::Config>) -> Result<Arc<Self>, NetworkError> {
        let routing = open_routing()?;
        let inner = Inner::load(config, overlay, &routing)?;
        inner.set_up(&routing)?;
        info!(bridge = %inner.config.bridge, range = %inner.config.pod_cidr, mtu = inner.mtu, "pod network ready");
        Ok(Arc::new(Self(Arc::new(inner))))
    }

    /// Removes what an earlier process made with this configuration, without starting anything.
    pub fn remove(config: Config, overlay: Option<overlay::Config>) -> Result<(), NetworkError> {
        Inner::load(config, overlay, &open_routing()?)?.purge()
    }

    /// The address through which pods reach the host and the world.
    pub fn gateway(&self) -> IpAddr {
        self.0.gateway
    }

    /// Every pod that has an address.
    pub fn leases(&self) -> Vec<Lease> {
        self.0.leases()
    }

    /// Frees the addresses of sandboxes that are not in `live`. To be called with the runtime's full list.
    pub fn reclaim(&self, live: &HashSet<String>) -> Result<usize, NetworkError> {
        let leaked: Vec<Lease> =
            self.leases().into_iter().filter(|lease| !live.contains(&lease.sandbox_id)).collect();
        for lease in &leaked {
            info!(sandbox = %lease.sandbox_id, address = %lease.address, "reclaiming the address of a lost pod");
            self.0.detach(&lease.sandbox_id)?;
        }
        Ok(leaked.len())
    }

    /// Makes these the nodes that the overlay reaches, and no others.
    pub fn set_peers(&self, peers: &[overlay::Peer]) -> Result<(), NetworkError> {
        let Some(config) = &self.0.overlay else { return Ok(()) };
        let ranges = (self.0.config.cluster_cidr, self.0.config.pod_cidr);
        overlay::set_peers(&open_routing()?, config, ranges, self.0.gateway, peers)
    }

    /// Removes every link, route and rule that this network made, and the leases.
    pub fn purge(&self) -> Result<(), NetworkError> {
        self.0.purge()
    }

    /// Runs `work` where it may wait for the kernel: removing a link takes tens of milliseconds. The blocking pool's
    /// threads are children of the runtime's, so they are in the same network namespace.
    async fn blocking<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Inner) -> cni::Result<T> + Send + 'static,
    ) -> cni::Result<T> {
        let inner = self.0.clone();
        let outcome = tokio::task::spawn_blocking(move || work(&inner)).await;
        outcome.unwrap_or_else(|error| Err(cni::Error::failed(doing, error)))
    }
}

fn open_routing() -> Result<Routing, NetworkError> {
    Routing::open().map_err(NetworkError::kernel("network devices cannot be looked at"))
}

impl Inner {
    fn load(
        config: Config,
        overlay: Option<overlay::Config>,
        routing: &Routing,
    ) -> Result<Self, NetworkError> {
        let gateway =
            lease::gateway(config.pod_cidr).ok_or(NetworkError::Range { range: config.pod_cidr })?;
        let leases = Leases::load(&config.state_dir.join("leases"), config.pod_cidr)?;
        let mtu = match config.mtu {
            Some(mtu) => mtu,
            None => {
                let room = if overlay.is_some() { overlay::OVERHEAD } else { 0 };
                device::host_mtu(routing, &config.bridge)? - room
            }
        };
        Ok(Self {
            config,
            overlay,
            gateway,
            mtu,
            state: Mutex::new(State { leases, written: None, told: BTreeSet::new() }),
        })
    }

    fn leases(&self) -> Vec<Lease> {
        self.lock().leases.iter().cloned().collect()
    }

    /// Every step is tried, whatever became of the others; the first that failed is told.
    fn purge(&self) -> Result<(), NetworkError> {
        let mut state = self.lock();
        let routing = open_routing()?;
        let names: Vec<String> = state.leases.iter().map(|lease| lease.link.clone()).collect();
        let links = device::remove_all(&routing, &self.config, &names);
        let overlay = self.overlay.as_ref().map_or(Ok(()), |config| {
            netlink::if_present(routing.delete_link(&config.device))
                .map_err(NetworkError::kernel("overlay device cannot be removed"))
        });
        let rules = self.remove_rules();
        state.written = None;
        links.and(overlay).and(rules)?;
        Ok(state.leases.remove_all()?)
    }

    fn remove_rules(&self) -> Result<(), NetworkError> {
        let nftables = Nftables::open().map_err(NetworkError::kernel("nftables cannot be reached"))?;
        let table = rules::table(&self.config, std::iter::empty());
        let removed = nftables.commit(&table.remove());
        // Another cluster of this host may need them still.
        let others = open_routing()?.links().map_err(NetworkError::kernel("links cannot be listed"))?;
        let is_last = !others.iter().any(|link| link.name.starts_with(device::PREFIX));
        let retracted = if is_last { firewall::retract(&nftables, table.family) } else { Ok(()) };
        removed.and(retracted).map_err(NetworkError::kernel("pod network rules cannot be removed"))
    }

    /// Makes what all pods share. Does nothing to what is as it should be.
    fn set_up(&self, routing: &Routing) -> Result<(), NetworkError> {
        device::check_ranges(routing, &self.config)?;
        device::enable_forwarding()?;
        device::set_up_gateway(routing, &self.config, self.gateway, self.mtu)?;
        if let Some(config) = &self.overlay {
            overlay::set_up(routing, config, self.gateway, self.mtu)?;
        }
        self.pass_firewalls(&Nftables::open().map_err(rules::explain)?)?;
        let mut state = self.lock();
        // The kernel drops routes whose source address goes, so a lost gateway takes the pods' routes along.
        for lease in state.leases.iter() {
            // One pod's wire, broken or half made, is no reason to have no network. Who adopts the pod makes it whole.
            if let Err(error) = device::restore_route(routing, lease, self.gateway) {
                warn!(sandbox = %lease.sandbox_id, address = %lease.address, %error, "route to a pod cannot be set");
            }
        }
        self.write_rules(&mut state)
    }

    /// Lets pod traffic through other firewalls of this host, as far as that is possible.
    fn pass_firewalls(&self, nftables: &Nftables) -> Result<(), NetworkError> {
        let told = &mut self.lock().told;
        firewall::pass(nftables, rules::family(self.config.pod_cidr), &self.config.bridge, told)
            .map_err(NetworkError::kernel("other firewalls of this host cannot be looked at"))
    }

    fn write_rules(&self, state: &mut State) -> Result<(), NetworkError> {
        let table = rules::table(&self.config, state.leases.iter());
        if state.written.as_ref() == Some(&table) {
            return Ok(());
        }
        let nftables = Nftables::open().map_err(rules::explain)?;
        let incremental = state.written.take().map(|old| nftables.commit(&table.update(&old)));
        if !matches!(incremental, Some(Ok(()))) {
            nftables.commit(&table.replace()).map_err(rules::explain)?;
        }
        state.written = Some(table);
        Ok(())
    }

    fn attach(&self, pod: &PodRef) -> cni::Result<Attachment> {
        let (lease, is_new) = {
            let mut state = self.lock();
            state.leases.check_ports(&pod.sandbox_id, &pod.host_ports)?;
            state.leases.take(pod)?
        };
        let made = self.connect(pod, &lease);
        if made.is_err()
            && is_new
            && let Err(error) = self.detach(&pod.sandbox_id)
        {
            warn!(sandbox = %pod.sandbox_id, error = %error, "half-made attachment stays until it is reclaimed");
        }
        made.map(|()| self.attachment(&lease))
    }

    fn connect(&self, pod: &PodRef, lease: &Lease) -> cni::Result<()> {
        let doing = || format!("connecting pod {}/{}", pod.namespace, pod.name);
        let routing = Routing::open().map_err(|error| cni::Error::failed(doing(), error))?;
        let wire = device::Wire {
            lease,
            gateway: self.gateway,
            mtu: self.mtu,
            netns: &pod.netns,
            bandwidth: pod.bandwidth,
        };
        // The rules first: a link without them would take any source address.
        self.write_rules(&mut self.lock()).map_err(|error| cni::Error::failed(doing(), error))?;
        wire.connect(&routing).map_err(|error| cni::Error::failed(doing(), error))
    }

    fn detach(&self, sandbox_id: &str) -> Result<(), NetworkError> {
        let routing = open_routing()?;
        netlink::if_present(routing.delete_link(&lease::link_name(sandbox_id)))
            .map_err(NetworkError::kernel("pod link cannot be removed"))?;
        let mut state = self.lock();
        // The address is free only once nothing routes or translates to it any more.
        if let Some(lease) = state.leases.get(sandbox_id).cloned() {
            state.leases.hide(sandbox_id);
            let written = self.write_rules(&mut state);
            state.leases.release(&lease)?;
            written?;
        }
        Ok(())
    }

    fn verify(&self, pod: &PodRef) -> cni::Result<Option<Attachment>> {
        let Some(lease) = self.lock().leases.get(&pod.sandbox_id).cloned() else { return Ok(None) };
        let doing = || format!("looking at the link of pod {}/{}", pod.namespace, pod.name);
        let routing = Routing::open().map_err(|error| cni::Error::failed(doing(), error))?;
        let is_there = device::restore_route(&routing, &lease, self.gateway)
            .map_err(|error| cni::Error::failed(doing(), error))?;
        Ok(is_there.then(|| self.attachment(&lease)))
    }

    /// Looks whether the shared parts are there and puts back what is not.
    fn ready(&self) -> Result<(), NetworkError> {
        let routing = open_routing()?;
        let device = routing
            .link(&self.config.bridge)
            .map_err(NetworkError::kernel("gateway device cannot be seen"))?;
        let nftables = Nftables::open().map_err(rules::explain)?;
        let family = rules::family(self.config.pod_cidr);
        let has_rules = nftables.tables(family).map_err(rules::explain)?.contains(&self.config.bridge);
        self.pass_firewalls(&nftables)?;
        if !has_rules {
            self.lock().written = None;
        }
        if !has_rules || !device.is_some_and(|link| link.up) {
            warn!(bridge = %self.config.bridge, "pod network was removed from outside, putting it back");
            self.set_up(&routing)?;
        }
        Ok(())
    }

    fn attachment(&self, lease: &Lease) -> Attachment {
        Attachment {
            addresses: vec![lease.address],
            gateway: Some(self.gateway),
            interface: INTERFACE.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Network for PodNetwork {
    fn add<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<Attachment>> {
        let pod = pod.clone();
        Box::pin(self.blocking("connecting a pod", move |network| network.attach(&pod)))
    }

    fn del<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<()>> {
        let sandbox_id = pod.sandbox_id.clone();
        Box::pin(self.blocking("disconnecting a pod", move |network| {
            let doing = || format!("disconnecting sandbox {sandbox_id}");
            network.detach(&sandbox_id).map_err(|error| cni::Error::failed(doing(), error))
        }))
    }

    fn check<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, cni::Result<Option<Attachment>>> {
        let pod = pod.clone();
        Box::pin(self.blocking("looking at a pod's link", move |network| network.verify(&pod)))
    }

    fn status(&self) -> BoxFuture<'_, cni::Result<()>> {
        Box::pin(self.blocking("looking at the pod network", |network| {
            let reason = |error| telemetry::chain(&error).to_string();
            network.ready().map_err(|error: NetworkError| cni::Error::NotReady { reason: reason(error) })
        }))
    }

    fn gc<'a>(&'a self, live: &'a HashSet<String>) -> BoxFuture<'a, cni::Result<()>> {
        let (network, live) = (Self(self.0.clone()), live.clone());
        Box::pin(self.blocking("freeing the addresses of pods that are gone", move |_| {
            let failed = |error| cni::Error::failed("freeing the addresses of pods that are gone", error);
            network.reclaim(&live).map(drop).map_err(failed)
        }))
    }
}

/// Host ports that are taken, by protocol, port and host address.
type Ports = BTreeMap<(u8, u16, Option<IpAddr>), String>;
