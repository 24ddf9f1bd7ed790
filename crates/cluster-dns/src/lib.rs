//! The cluster's DNS server: Services and pods by name, the rest of the world through the host's resolvers.
//!
//! The path of a question: [`server`] receives it, [`wire`] reads it, [`answer`] finds the records in the [`zone`] (pure), or
//! [`forward`] asks a resolver of the host. The path of a change: informers note which Service is affected, its entry in the
//! zone is made anew. The server answers from memory and never asks the API server while a client waits.
//!
//! What must stay true: before the caches are complete, a name's absence is a failure and not an answer; nothing that a
//! client sends makes the server panic, loop or grow without bound.

mod answer;
pub mod corefile;
mod forward;
mod observed;
pub mod program;
mod publish;
mod server;
mod types;
pub mod wire;
mod zone;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::resources::{ENDPOINT_SLICES, NAMESPACES, SERVICES};
use client::{Client, Informer, Key, ListOptions};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Notify, watch};
use tracing::{info, warn};

use corefile::{Forward, Policy, Upstream};
use forward::{Forwarder, Forwarders};
pub use observed::Observed;
use server::Server;
use types::{BY_SERVICE, EndpointSlice, Namespace, Service};
use zone::{Entry, Zone};

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// How the server works.
#[derive(Clone)]
pub struct Config {
    /// Addresses for UDP and TCP. The first with an address that pods can reach stands in the EndpointSlice.
    pub listen: Vec<SocketAddr>,
    /// The cluster's domain: `cluster.local`.
    pub domain: String,
    /// Resolvers for other names; by default those of the host's `/etc/resolv.conf`.
    pub upstreams: Option<Vec<SocketAddr>>,
    pub client: Client,
    /// Keeps the Service `kube-system/kube-dns` with this address, and its EndpointSlice.
    pub publish: Option<IpAddr>,
    /// Who is asked about which zone, now and after every change; then `upstreams` means nothing.
    pub forwards: Option<watch::Receiver<Arc<Vec<Forward>>>>,
    /// Every question is logged.
    pub log: bool,
    /// Where the server can be seen.
    pub observed: Arc<Observed>,
}

impl Config {
    /// The server of a cluster's domain on these addresses, with the host's resolvers for other names.
    pub fn new(listen: Vec<SocketAddr>, domain: impl Into<String>, client: Client) -> Self {
        Self {
            listen,
            domain: domain.into(),
            upstreams: None,
            client,
            publish: None,
            forwards: None,
            log: false,
            observed: Arc::default(),
        }
    }
}

/// Why the server could not start.
#[derive(Debug, Error)]
pub enum Error {
    #[error("cannot listen on {address} for DNS: is another DNS server running there?")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
}

/// Answers questions until the stop. Fails only at the start.
pub async fn run(config: Config, stop: Stop) -> Result<(), Error> {
    let mut sockets = Vec::new();
    for address in &config.listen {
        let fail = |source| Error::Listen { address: *address, source };
        let tcp = TcpListener::bind(address).await.map_err(fail)?;
        // Port 0 is the tests' wish for any port; both protocols share it.
        let bound = tcp.local_addr().map_err(fail)?;
        sockets.push((bound, UdpSocket::bind(bound).await.map_err(fail)?, tcp));
    }
    let listen: Vec<SocketAddr> = sockets.iter().map(|(address, ..)| *address).collect();
    let ourselves: Vec<IpAddr> = listen.iter().map(SocketAddr::ip).chain(config.publish).collect();
    let observed = config.observed.clone();
    let forwarders = match &config.forwards {
        Some(forwards) => forwarders(&forwards.borrow(), &ourselves, &observed),
        None => {
            let upstreams = config.upstreams.unwrap_or_else(|| upstreams_of(RESOLV_CONF, &ourselves));
            info!(?upstreams, "names outside the cluster are asked for there");
            let all = Forwarder::new(upstreams, Policy::Sequential, forward::CACHE, observed.clone());
            Forwarders(vec![(String::new(), all)])
        }
    };
    info!(?listen, domain = %config.domain, "cluster DNS ready");

    let tasks = Tasks::under(&stop);
    let server = Server::new(Zone::new(&config.domain), forwarders, observed.clone(), config.log);
    if let Some(mut forwards) = config.forwards.clone() {
        let server = server.clone();
        tasks.spawn("dns/forwards", move |stop| async move {
            while let Some(Ok(())) = stop.or(forwards.changed()).await {
                server.set_forwarders(self::forwarders(&forwards.borrow_and_update(), &ourselves, &observed));
                info!("resolvers for names outside the cluster changed");
            }
        });
    }
    for (address, udp, tcp) in sockets {
        let (udp_server, tcp_server, inner) = (server.clone(), server.clone(), tasks.clone());
        tasks.spawn(format!("dns/udp/{address}"), move |stop| async move {
            stop.or(udp_server.serve_udp(udp, inner)).await;
        });
        let inner = tasks.clone();
        tasks.spawn(format!("dns/tcp/{address}"), move |stop| async move {
            stop.or(tcp_server.serve_tcp(tcp, inner)).await;
        });
    }
    if let Some(cluster_ip) = config.publish {
        let client = config.client.clone();
        tasks.keep("dns/publish", move |stop| {
            publish::publish(client.clone(), cluster_ip, listen.clone(), stop)
        });
    }
    follow(&config.client, &server, &tasks, &stop).await;
    tasks.drain(Duration::from_secs(5)).await;
    Ok(())
}

fn forwarders(forwards: &[Forward], ourselves: &[IpAddr], observed: &Arc<Observed>) -> Forwarders {
    let forwarder = |forward: &Forward| {
        let resolvers = |upstream: &Upstream| match upstream {
            Upstream::Address(address) => vec![*address],
            Upstream::File(path) => upstreams_of(path, ourselves),
        };
        let upstreams: Vec<SocketAddr> = forward.upstreams.iter().flat_map(resolvers).collect();
        info!(zone = forward.zone, ?upstreams, "names are asked for there");
        let forwarder = Forwarder::new(upstreams, forward.policy, forward.cache, observed.clone());
        (forward.zone.clone(), forwarder)
    };
    Forwarders(forwards.iter().map(forwarder).collect())
}

fn upstreams_of(path: &str, ourselves: &[IpAddr]) -> Vec<SocketAddr> {
    match std::fs::read_to_string(path) {
        Ok(text) => forward::upstreams(&text, ourselves),
        Err(error) => {
            warn!(%error, path, "no resolvers for names outside the cluster");
            Vec::new()
        }
    }
}

#[derive(Default)]
struct Notes {
    dirty: Mutex<HashSet<Key>>,
    bell: Notify,
}

impl Notes {
    fn note(&self, keys: impl IntoIterator<Item = Key>) {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner).extend(keys);
        self.bell.notify_one();
    }
}

/// Keeps the zone in step with the API server.
async fn follow(client: &Client, server: &Arc<Server>, tasks: &Tasks, stop: &Stop) {
    let all = ListOptions::default;
    let services = Informer::<Service>::start(client, &SERVICES, "", all(), tasks);
    let slices = Informer::<EndpointSlice>::start(client, &ENDPOINT_SLICES, "", all(), tasks);
    let namespaces = Informer::<Namespace>::start(client, &NAMESPACES, "", all(), tasks);
    let notes = Arc::new(Notes::default());
    let noted = notes.clone();
    services.on_change(move |change| noted.note([change.key()]));
    let noted = notes.clone();
    slices.on_change(move |change| {
        // A slice may change its Service; both are affected.
        noted.note([&change.old, &change.new].into_iter().flatten().filter_map(|slice| slice.service()));
    });
    let known = server.clone();
    namespaces.on_change(move |change| {
        let mut zone = known.zone.write().unwrap_or_else(PoisonError::into_inner);
        zone.set_namespace(&change.latest().metadata.name, change.new.is_some());
    });
    let update = || {
        let dirty = std::mem::take(&mut *notes.dirty.lock().unwrap_or_else(PoisonError::into_inner));
        for key in dirty {
            let slices = slices.indexed(BY_SERVICE, &key.to_string());
            let entry = services.get(&key).and_then(|service| Entry::of(&service, &slices));
            server.zone.write().unwrap_or_else(PoisonError::into_inner).set(&key, entry);
        }
    };
    let synced = async {
        services.synced().await;
        slices.synced().await;
        namespaces.synced().await;
    };
    if stop.or(synced).await.is_none() {
        return;
    }
    update();
    server.observed.complete();
    while stop.or(notes.bell.notified()).await.is_some() {
        update();
    }
}
