//! The driver: follows the API, keeps the kernel's rules in step, and lets a pod in once its rules are there.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::resources::{NAMESPACES, NETWORK_POLICIES, PODS};
use client::{Client, Informer, Key, ListOptions};
use lifecycle::{Stop, Tasks};
use netlink::conntrack;
use netlink::nft::{Family, Nftables, Table};
use netlink::route::Routing;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tracing::{debug, info, warn};

use crate::compile::{Attached, View, compile, key};
use crate::model::{Connection, Model};
use crate::table::{Frame, table};
use crate::types::{Namespace, NetworkPolicy, Pod};

/// Someone else may remove our rules (a firewall that is loaded anew does); this is how soon they come back.
const LOOK_AFTER: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Changes within this time share a transaction.
const GATHER: Duration = Duration::from_millis(2);
/// How long a new pod waits to be known; the kubelet tries again later.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long policies may take from a list to the cache.
const CATCH_UP: Duration = Duration::from_secs(2);

/// How policies are enforced on a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The Node that this is.
    pub node_name: String,
    /// What the rules have in common.
    pub frame: Frame,
}

/// Why a pod's rules are not in force.
#[derive(Debug, Error)]
pub enum Error {
    /// The caches have never been filled.
    #[error("network policies are not known yet: the API server has not answered")]
    NotSynced,
    /// The pod's labels decide which policies it has.
    #[error("pod {pod} is not known yet: the API server has not told of it")]
    UnknownPod {
        /// Namespace and name.
        pod: Key,
    },
    /// The kernel refused.
    #[error("network policy rules cannot be written")]
    Kernel(#[source] netlink::Error),
    /// Our own fault.
    #[error("writing network policy rules panicked")]
    Panicked,
}

/// The policies of one node. Clones are the same.
#[derive(Clone)]
pub struct Policies(Arc<Inner>);

struct Inner {
    config: Config,
    client: Client,
    policies: Informer<NetworkPolicy>,
    pods: Informer<Pod>,
    namespaces: Informer<Namespace>,
    attached: Mutex<BTreeMap<String, Attached>>,
    /// Held for the whole of a write.
    written: Mutex<Written>,
    synced: watch::Sender<bool>,
    bell: Notify,
}

/// What the kernel has.
#[derive(Default)]
struct Written {
    model: Model,
    tables: BTreeMap<Family, Table>,
    /// The state of all rules of the host when ours were last known to be whole.
    seen: Option<u32>,
}

impl Policies {
    /// Follows the API; `attached` are the pods that are connected already, by sandbox. The rules that an earlier process
    /// left stay in force until the first list is complete.
    pub fn start(
        config: Config,
        client: Client,
        attached: BTreeMap<String, Attached>,
        tasks: &Tasks,
    ) -> Self {
        let all = ListOptions::default;
        let inner = Inner {
            policies: Informer::start(&client, &NETWORK_POLICIES, "", all(), tasks),
            pods: Informer::start(&client, &PODS, "", all(), tasks),
            namespaces: Informer::start(&client, &NAMESPACES, "", all(), tasks),
            config,
            client,
            attached: Mutex::new(attached),
            written: Mutex::default(),
            synced: watch::Sender::new(false),
            bell: Notify::new(),
        };
        let policies = Self(Arc::new(inner));
        policies.listen();
        let follower = policies.clone();
        tasks.keep("network-policy", move |stop| {
            let follower = follower.clone();
            async move { follower.follow(&stop).await }
        });
        policies
    }

    fn listen(&self) {
        // The informers are the inner's own: a strong reference from their handlers would keep both alive for ever.
        let weak = || Arc::downgrade(&self.0);
        let inner = weak();
        self.0.policies.on_change(move |change| {
            let spec = |policy: &Option<Arc<NetworkPolicy>>| policy.as_ref().map(|one| one.spec.clone());
            if spec(&change.old) != spec(&change.new) {
                ring(&inner);
            }
        });
        let inner = weak();
        self.0.namespaces.on_change(move |change| {
            let labels = |one: &Option<Arc<Namespace>>| one.as_ref().map(|one| one.metadata.labels.clone());
            if labels(&change.old) != labels(&change.new) {
                ring(&inner);
            }
        });
        let inner = weak();
        self.0.pods.on_change(move |change| {
            let what_counts = |pod: &Option<Arc<Pod>>| {
                let pod = pod.as_ref()?;
                let addresses: Vec<IpAddr> = pod.addresses().collect();
                Some((pod.metadata.uid.clone(), pod.metadata.labels.clone(), pod.spec.clone(), addresses))
            };
            if what_counts(&change.old) != what_counts(&change.new) {
                ring(&inner);
            }
        });
    }

    async fn follow(&self, stop: &Stop) {
        let synced = async {
            self.0.policies.synced().await;
            self.0.namespaces.synced().await;
            self.0.pods.synced().await;
        };
        if stop.or(synced).await.is_none() {
            return;
        }
        let mut is_look = false;
        loop {
            let pause = match self.apply(is_look).await {
                Ok(()) => {
                    self.0.synced.send_replace(true);
                    LOOK_AFTER
                }
                Err(error) => {
                    warn!(error = %telemetry::chain(&error), "network policies are out of step, will retry");
                    RETRY_AFTER
                }
            };
            let next = async {
                // Dropping the wait loses nothing: the bell keeps its ring.
                let rang = tokio::time::timeout(pause, self.0.bell.notified()).await.is_ok();
                if rang {
                    tokio::time::sleep(GATHER).await;
                }
                rang
            };
            match stop.or(next).await {
                Some(rang) => is_look = !rang,
                None => return,
            }
        }
    }

    /// Resolves once the rules are those of the cluster as it is now, not of an earlier process.
    pub async fn ready(&self) -> Result<(), Error> {
        let mut synced = self.0.synced.subscribe();
        let known = tokio::time::timeout(PATIENCE, synced.wait_for(|synced| *synced)).await;
        // The sender is in `self`, so waiting itself cannot fail.
        known.map(drop).map_err(|_| Error::NotSynced)
    }

    /// Puts a connected pod's rules in force and lets it in. Its packets are dropped until then.
    pub async fn admit(&self, sandbox_id: &str, pod: Attached) -> Result<(), Error> {
        self.ready().await?;
        let key = key(&pod);
        let seen = self.0.pods.until(&key, |found| found.is_some_and(|found| found.is(&pod.uid)));
        let seen = tokio::time::timeout(PATIENCE, seen).await;
        seen.map_err(|_| Error::UnknownPod { pod: key.clone() })?;
        self.catch_up(&key.namespace).await;
        self.attached().insert(sandbox_id.to_owned(), pod);
        self.apply(false).await
    }

    /// A policy that was made before the pod holds from its first packet, though the cache may not have it yet.
    async fn catch_up(&self, namespace: &str) {
        let api = self.0.client.api(&NETWORK_POLICIES).within(namespace);
        let listed = match api.list::<NetworkPolicy>(&ListOptions::default()).await {
            Ok(listed) => listed,
            // Without the API server what is known goes on to hold.
            Err(error) => {
                debug!(error = %telemetry::chain(&error), namespace, "policies cannot be listed for a new pod");
                return;
            }
        };
        let wait = async {
            for policy in &listed.items {
                let revision = policy.metadata.revision();
                let has_it = |found: Option<&NetworkPolicy>| {
                    found.is_some_and(|found| found.metadata.revision() >= revision)
                };
                self.0.policies.until(&policy.metadata.key(), has_it).await;
            }
        };
        // One that is removed meanwhile may never appear.
        if tokio::time::timeout(CATCH_UP, wait).await.is_err() {
            debug!(namespace, "a policy was listed but does not appear in the cache");
        }
    }

    /// Forgets a pod that is disconnected. Its address is nobody's until another pod is let in with it.
    pub async fn release(&self, sandbox_id: &str) -> Result<(), Error> {
        let was_there = self.attached().remove(sandbox_id).is_some();
        if was_there && *self.0.synced.borrow() { self.apply(false).await } else { Ok(()) }
    }

    /// Forgets all sandboxes but these.
    pub fn retain(&self, live: &HashSet<String>) {
        self.attached().retain(|sandbox_id, _| live.contains(sandbox_id));
        self.0.bell.notify_one();
    }

    /// Brings the kernel in step with the caches; a look also finds what others changed.
    async fn apply(&self, is_look: bool) -> Result<(), Error> {
        let policies = self.clone();
        // The blocking pool's threads are children of this one, so they share its network namespace.
        match tokio::task::spawn_blocking(move || policies.write(is_look)).await {
            Ok(outcome) => outcome.map_err(Error::Kernel),
            Err(_) => Err(Error::Panicked),
        }
    }

    fn write(&self, is_look: bool) -> Result<(), netlink::Error> {
        let mut written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        let attached: Vec<Attached> = self.attached().values().cloned().collect();
        let view = View {
            node: &self.0.config.node_name,
            policies: &self.0.policies.list(),
            pods: &self.0.pods.list(),
            namespaces: &self.0.namespaces.list(),
            attached: &attached,
        };
        let model = compile(&view);
        let nftables = Nftables::open()?;
        if is_look {
            written.look(&nftables)?;
        }
        for family in [Family::Ip, Family::Ip6] {
            self.write_family(&nftables, family, &model, &mut written)?;
        }
        let tightened = may_tighten(&written.model, &model);
        written.model = model;
        if tightened {
            // The rules are in force; connections that should be over are only noticed later if this fails.
            if let Err(error) = end_forbidden(&written.model) {
                warn!(error = %telemetry::chain(&error), "forbidden connections could not be ended");
            }
        }
        Ok(())
    }

    fn write_family(
        &self,
        nftables: &Nftables,
        family: Family,
        model: &Model,
        written: &mut Written,
    ) -> Result<(), netlink::Error> {
        let frame = &self.0.config.frame;
        // A host without IPv6 must not fail for a table that would be empty.
        let is_v4 = family == Family::Ip;
        let is_used = is_v4
            || frame.ranges.iter().any(|range| range.addr().is_ipv6())
            || model.admitted.iter().any(IpAddr::is_ipv6);
        let is_there = nftables.tables(family)?.contains(&frame.table);
        let old = written.tables.remove(&family).filter(|_| is_there);
        if !is_used {
            return if is_there {
                nftables.commit(&Table::new(family, &frame.table).remove())
            } else {
                Ok(())
            };
        }
        let new = table(frame, model, family);
        if let Some(old) = old {
            match nftables.commit(&new.update(&old)) {
                Ok(()) => {
                    written.tables.insert(family, new);
                    return Ok(());
                }
                Err(error) => {
                    warn!(error = %telemetry::chain(&error), "network policy rules differ, replacing them")
                }
            }
        }
        nftables.commit(&new.replace())?;
        info!(
            ?family,
            groups = model.groups.len(),
            pods = model.admitted.len(),
            "network policy rules written"
        );
        written.tables.insert(family, new);
        Ok(())
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<String, Attached>> {
        self.0.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Written {
    /// Forgets tables that others changed, so that they are written anew.
    fn look(&mut self, nftables: &Nftables) -> Result<(), netlink::Error> {
        let now = nftables.generation()?;
        if now == self.seen {
            return Ok(());
        }
        let families: Vec<Family> = self.tables.keys().copied().collect();
        for family in families {
            if let Some(table) = self.tables.remove(&family)
                && nftables.holds(&table)?
            {
                self.tables.insert(family, table);
            }
        }
        self.seen = now;
        Ok(())
    }
}

fn ring(inner: &std::sync::Weak<Inner>) {
    if let Some(inner) = inner.upgrade() {
        inner.bell.notify_one();
    }
}

/// Whether connections that were allowed before may be forbidden now.
fn may_tighten(old: &Model, new: &Model) -> bool {
    let isolated = |model: &Model| (model.ingress.clone(), model.egress.clone(), model.groups.clone());
    let lost =
        old.pods.iter().any(|(name, before)| new.pods.get(name).is_some_and(|now| !now.is_superset(before)));
    let moved = old
        .targets
        .iter()
        .any(|(name, before)| new.targets.get(name).is_some_and(|now| !now.is_superset(before)));
    isolated(old) != isolated(new) || lost || moved
}

/// Ends connections that no policy allows any more: without its entry in the kernel's table, a connection's next packet is
/// judged anew. Returns how many.
pub fn end_forbidden(model: &Model) -> Result<usize, netlink::Error> {
    if model.ingress.is_empty() && model.egress.is_empty() {
        return Ok(0);
    }
    let own: Vec<IpAddr> = Routing::open()?.addresses()?.into_iter().map(|(_, net)| net.addr()).collect();
    let ended = conntrack::forget_any(|flow| {
        let connection = Connection {
            source: flow.source,
            destination: flow.answering.0,
            protocol: flow.protocol,
            port: flow.answering.1,
        };
        model.concerns(&connection)
            && !own.contains(&connection.source)
            && !own.contains(&connection.destination)
            && !model.permits(&connection)
    })?;
    if ended > 0 {
        info!(ended, "connections ended that policies no longer allow");
    }
    Ok(ended)
}

/// Removes the rules of every family.
pub fn remove_rules(table: &str) -> Result<(), netlink::Error> {
    let nftables = Nftables::open()?;
    for family in [Family::Ip, Family::Ip6] {
        if nftables.tables(family)?.iter().any(|name| name == table) {
            nftables.commit(&Table::new(family, table).remove())?;
        }
    }
    Ok(())
}
