//! The driver: notes what changed, plans it, commits it, and puts the table back if someone removed it.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::resources::{ENDPOINT_SLICES, NODES, SERVICES};
use client::{Client, Informer, Key, ListOptions};
use ipnet::IpNet;
use lifecycle::{Stop, Tasks};
use netlink::conntrack;
use netlink::nft::{Family, Nftables};
use tokio::sync::Notify;
use tracing::{debug, info, warn};

use crate::endpoints::Place;
use crate::health::Health;
use crate::node_check::NodeChecks;
use crate::plan::{Context, Fragment, UdpPort, plan};
use crate::ruleset::Ruleset;
use crate::skeleton::Frame;
use crate::types::{BY_SERVICE, EndpointSlice, HEADLESS, Node, PROXY_NAME, Service, Transport};
use crate::{Config, NodePortAddresses};

const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What changed since the last look.
#[derive(Debug, Default)]
struct Dirty {
    services: HashSet<Key>,
    node: bool,
}

#[derive(Debug, Default)]
struct Notes {
    dirty: Mutex<Dirty>,
    bell: Notify,
}

impl Notes {
    fn note(&self, change: impl FnOnce(&mut Dirty)) {
        change(&mut self.dirty.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.notify_one();
    }

    fn take(&self) -> Dirty {
        std::mem::take(&mut self.dirty.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub struct Proxy {
    config: Config,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<Node>,
    notes: Arc<Notes>,
    health: Health,
    kernel: Option<Kernel>,
    checks: NodeChecks,
}

/// What is written, or to be written, and the way there. Moves to a blocking thread for each commit.
struct Kernel {
    nftables: Nftables,
    table: String,
    rulesets: Vec<(Family, Ruleset)>,
    /// The kernel's tables are those last committed.
    in_step: bool,
    /// The state of all rules of the host when ours were last known to be whole.
    seen: Option<u32>,
}

impl Kernel {
    fn new(nftables: Nftables, table: &str) -> Self {
        Self { nftables, table: table.to_owned(), rulesets: Vec::new(), in_step: false, seen: None }
    }
}

impl Proxy {
    pub fn start(config: Config, client: &Client, tasks: &Tasks, health: Health, nftables: Nftables) -> Self {
        let foreign = || ListOptions::labels(format!("!{PROXY_NAME},!{HEADLESS}"));
        let me = ListOptions::fields(format!("metadata.name={}", config.node_name));
        let services = Informer::<Service>::start(client, &SERVICES, "", foreign(), tasks);
        let slices = Informer::<EndpointSlice>::start(client, &ENDPOINT_SLICES, "", foreign(), tasks);
        let nodes = Informer::<Node>::start(client, &NODES, "", me, tasks);
        let notes = Arc::new(Notes::default());
        let (noted, counted) = (notes.clone(), health.clone());
        services.on_change(move |change| {
            counted.service_changed();
            let key = change.key();
            noted.note(|dirty| {
                dirty.services.insert(key);
            });
        });
        let (noted, counted) = (notes.clone(), health.clone());
        slices.on_change(move |change| {
            counted.endpoints_changed();
            // A slice may change its Service; both are affected.
            let keys = [&change.old, &change.new].into_iter().flatten().filter_map(|slice| slice.service());
            noted.note(|dirty| dirty.services.extend(keys));
        });
        let noted = notes.clone();
        nodes.on_change(move |change| {
            let what_counts = |node: &Option<Arc<Node>>| {
                node.as_ref().map(|node| (node.zone().map(str::to_owned), node.internal_addresses()))
            };
            // The heartbeat changes the Node all the time.
            if what_counts(&change.old) != what_counts(&change.new) {
                noted.note(|dirty| dirty.node = true);
            }
        });
        let kernel = Some(Kernel::new(nftables, &config.table));
        let checks = NodeChecks::new(tasks.clone());
        Self { config, services, slices, nodes, notes, health, kernel, checks }
    }

    pub async fn run(mut self, stop: &Stop) {
        let synced = async {
            self.services.synced().await;
            self.slices.synced().await;
            self.nodes.synced().await;
        };
        if stop.or(synced).await.is_none() {
            return;
        }
        self.notes.take();
        let mut dirty = Dirty { services: HashSet::new(), node: true };
        let (mut is_look, mut looked) = (false, Instant::now());
        loop {
            let started = Instant::now();
            let pause = if self.sync(dirty, is_look).await { self.config.sync_period } else { RETRY_AFTER };
            if is_look {
                looked = Instant::now();
            }
            let next = async {
                // Dropping either wait loses nothing: the bell keeps its ring, the notes stay.
                let _ = tokio::time::timeout(pause, self.notes.bell.notified()).await;
                tokio::time::sleep(self.config.min_sync_period.saturating_sub(started.elapsed())).await;
            };
            if stop.or(next).await.is_none() {
                return;
            }
            dirty = self.notes.take();
            // However busy it is: what someone else removed comes back.
            is_look = looked.elapsed() >= self.config.sync_period;
        }
    }

    /// Brings the kernel in step with the caches; `false` if it has to be tried again.
    async fn sync(&mut self, dirty: Dirty, is_look: bool) -> bool {
        let Some(mut kernel) = self.kernel.take() else { return self.reopen() };
        let started = Instant::now();
        if is_look {
            let looked = tokio::task::spawn_blocking(move || {
                kernel.look();
                kernel
            });
            kernel = match looked.await {
                Ok(kernel) => kernel,
                Err(error) => {
                    warn!(%error, "looking at service rules panicked, starting over");
                    return self.reopen();
                }
            };
        }
        let udp = self.replan(&mut kernel, dirty);
        let work = move || {
            let outcome = kernel.commit();
            let forgotten = if outcome.is_ok() { forget_stale(&udp) } else { 0 };
            (kernel, outcome, forgotten)
        };
        // The blocking pool's threads are children of this one, so they share its network namespace.
        let (kernel, outcome, forgotten) = match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => {
                warn!(%error, "writing service rules panicked, starting over");
                return self.reopen();
            }
        };
        if outcome.is_ok() {
            // One family speaks for the node: a Service's check has one port.
            let first = kernel.rulesets.iter().flat_map(|(_, ruleset)| ruleset.checks());
            self.checks.update(first).await;
        }
        self.health.forgot(forgotten);
        self.kernel = Some(kernel);
        match outcome {
            Ok(changes) => {
                self.health.synced(started.elapsed(), changes, self.services.len());
                true
            }
            Err(error) => {
                self.health.failed();
                warn!(error = %telemetry::chain(&error), "service rules cannot be written, will retry");
                false
            }
        }
    }

    /// Begins anew with everything still to be written; `false`, since it is.
    fn reopen(&mut self) -> bool {
        match Nftables::open() {
            Ok(nftables) => self.kernel = Some(Kernel::new(nftables, &self.config.table)),
            Err(error) => warn!(error = %telemetry::chain(&error), "nftables cannot be opened"),
        }
        self.notes.note(|dirty| dirty.node = true);
        false
    }

    /// Plans what is dirty; everything if the node changed. Returns UDP ports whose connections may be stale.
    fn replan(&self, kernel: &mut Kernel, dirty: Dirty) -> Vec<UdpPort> {
        let node = self.nodes.get(&Key::cluster(&self.config.node_name));
        let mut keys = dirty.services;
        if dirty.node || kernel.rulesets.is_empty() {
            let frame = |family| Frame {
                table: self.config.table.clone(),
                family,
                node_port_ranges: self.node_port_ranges(node.as_deref()),
            };
            let families = [Family::Ip, Family::Ip6];
            kernel.rulesets = families.map(|family| (family, Ruleset::new(&frame(family)))).into();
            kernel.in_step = false;
            keys = self.services.list().iter().map(|service| service.metadata.key()).collect();
        }
        let mut udp = Vec::new();
        for (family, ruleset) in &mut kernel.rulesets {
            let context = Context {
                family: *family,
                place: Place { node: &self.config.node_name, zone: node.as_deref().and_then(Node::zone) },
                cluster_cidr: self.config.cluster_cidr,
                masquerade_all: self.config.masquerade_all,
            };
            for key in &keys {
                let fragment = match self.services.get(key) {
                    Some(service) => {
                        let slices = self.slices.indexed(BY_SERVICE, &key.to_string());
                        plan(&service, &slices, &context)
                    }
                    None => Fragment::default(),
                };
                udp.extend(ruleset.set(key, fragment));
            }
        }
        udp
    }

    fn node_port_ranges(&self, node: Option<&Node>) -> Vec<IpNet> {
        match &self.config.node_ports {
            NodePortAddresses::Ranges(ranges) => ranges.clone(),
            NodePortAddresses::Primary => {
                node.map(Node::internal_addresses).unwrap_or_default().into_iter().map(IpNet::from).collect()
            }
        }
    }
}

impl Kernel {
    /// Looks whether others left our tables alone, if they changed anything at all.
    fn look(&mut self) {
        let now = self.nftables.generation().ok().flatten();
        if !self.in_step || now.is_some() && now == self.seen {
            return;
        }
        for (family, ruleset) in &mut self.rulesets {
            let is_absent = ruleset.is_empty() && *family == Family::Ip6;
            if !is_absent && !self.nftables.holds(&ruleset.table()).unwrap_or(false) {
                warn!(?family, "service rules were changed by someone else, putting them back");
                self.in_step = false;
            }
        }
        self.seen = now.filter(|_| self.in_step);
    }

    /// Writes what changed, or everything when in doubt. Returns the number of changes.
    fn commit(&mut self) -> Result<usize, netlink::Error> {
        let outcome = self.write();
        // After a failure nobody knows what is missing; the next attempt writes everything.
        self.in_step = outcome.is_ok();
        outcome
    }

    fn write(&mut self) -> Result<usize, netlink::Error> {
        let mut written = 0;
        for (family, ruleset) in &mut self.rulesets {
            let change = ruleset.take_change();
            let names = self.nftables.tables(*family)?;
            let is_there = names.contains(&self.table);
            if self.in_step && (is_there || ruleset.is_empty() && *family == Family::Ip6) {
                match self.nftables.commit(&change) {
                    Ok(()) => {
                        written += change.len();
                        continue;
                    }
                    Err(error) => {
                        warn!(error = %telemetry::chain(&error), "service rules differ, replacing them")
                    }
                }
            }
            // A host without IPv6 must not fail for a table that would be empty.
            let batch = match (*family, ruleset.is_empty(), is_there) {
                (Family::Ip6, true, false) => continue,
                (Family::Ip6, true, true) => ruleset.table().remove(),
                _ => ruleset.table().replace(),
            };
            self.nftables.commit(&batch)?;
            written += batch.len();
            info!(?family, services = ruleset.keys().len(), "service rules written");
        }
        debug!(changes = written, "service rules are in step");
        Ok(written)
    }
}

/// Forgets UDP connections to endpoints that no longer serve: such clients never notice by themselves.
fn forget_stale(ports: &[UdpPort]) -> usize {
    if ports.is_empty() {
        return 0;
    }
    let current: BTreeSet<SocketAddr> =
        ports.iter().flat_map(|port| port.endpoints.iter().copied()).collect();
    let outcome = conntrack::forget(Transport::Udp.number(), |flow| {
        let original = SocketAddr::new(flow.original.0, flow.original.1);
        let answering = SocketAddr::new(flow.answering.0, flow.answering.1);
        let is_ours = ports.iter().any(|port| {
            port.fronts.contains(&original) || port.node_port != 0 && port.node_port == original.port()
        });
        is_ours && !current.contains(&answering)
    });
    match outcome {
        Ok(count) => {
            debug!(count, "stale UDP connections forgotten");
            count
        }
        Err(error) => {
            debug!(error = %telemetry::chain(&error), "connections cannot be looked at");
            0
        }
    }
}
