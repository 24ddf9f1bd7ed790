//! A cluster of the real API server, three nodes, and a manager that can die and come back.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apiserver::config::KeyPair;
use apiserver::{ApiServer, UserInfo};
use client::{Client, Informer, ListOptions, Patch, Resource, resources};
use controller_manager::{Config, LocalVolumes};
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::actors::{Actors, NODES, Pod};
use super::faults::{self, Faults};
use super::invariants::Watchdog;
use super::random::Random;

pub const NAMESPACE: &str = "sim";
/// A manager that dies does so within so many writes.
const LIFE: u64 = 60;

pub struct Cluster {
    pub admin: Client,
    pub faults: Arc<Faults>,
    pub random: Random,
    pub watchdog: Watchdog,
    pub pods: Informer<Pod>,
    pub deaths: u32,
    config: Config,
    manager: Tasks,
    others: Tasks,
}

struct Keys {
    serving: KeyPair,
    accounts: Vec<u8>,
    authority: String,
}

/// Made once: keys take longer to make than a cluster.
fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = ClusterSpec {
            node_name: "local".into(),
            node_ips: vec!["127.0.0.1".parse().expect("an address")],
            service_ips: vec!["10.0.0.1".parse().expect("an address")],
            api_sans: vec!["localhost".into()],
            cluster_domain: "cluster.local".into(),
            algorithm: Algorithm::EcdsaP256,
        };
        let pki = ClusterPki::ensure(dir.path(), &spec).expect("keys");
        let pair = pki.pair(names::APISERVER).expect("a pair");
        Keys {
            serving: KeyPair {
                certificate: pair.certificate_pem().into_bytes(),
                key: pair.key_pem().into_bytes(),
            },
            accounts: pki.service_account().to_pem().into_bytes(),
            authority: pki.pair(names::SERVER_CA).expect("a pair").certificate_pem(),
        }
    })
}

impl Cluster {
    pub async fn start(seed: u64) -> Self {
        let (random, others) = (Random::new(seed), Tasks::new());
        let store = etcd::open(etcd::Config::default(), &others).expect("a store in memory");
        let mut config = apiserver::Config::new(store, keys().serving.clone());
        config.service_accounts.signing_key = Some(keys().accounts.clone());
        let server = ApiServer::start(config, &others).await.expect("an API server");
        let admin = faults::clean(&server, UserInfo::loopback(), "admin");
        let faults = Faults::new(random.clone());
        let clients = {
            let (server, faults) = (server.clone(), faults.clone());
            Arc::new(move |account: &str| match account {
                "" => {
                    let manager = UserInfo::new("system:kube-controller-manager", &[]);
                    faults::faulty(&server, manager, "manager", &faults)
                }
                account => faults::faulty(
                    &server,
                    UserInfo::service_account("kube-system", account),
                    account,
                    &faults,
                ),
            })
        };
        let config = Config {
            clock: Arc::new(apiserver::clock::now),
            cluster_cidrs: vec!["10.128.0.0/14".into()],
            node_cidr_masks: vec![23],
            root_ca: Some(keys().authority.as_str().into()),
            local_volumes: Some(LocalVolumes::under("/volumes")),
            ..Config::new(clients)
        };
        let pods = Actors::start(&admin, &random, &others);
        let watchdog = Watchdog::default();
        watchdog.follow(&pods);
        let all = ListOptions::default();
        watchdog.follow_sets(&Informer::start(&admin, &resources::REPLICA_SETS, "", all, &others));
        let manager = Tasks::new();
        let own = Self { admin, faults, random, watchdog, pods, deaths: 0, config, manager, others };
        for node in NODES {
            own.create(&resources::NODES, &node_object(node)).await;
        }
        own.create(&resources::NAMESPACES, &json!({"metadata": {"name": NAMESPACE}})).await;
        own.create(
            &resources::STORAGE_CLASSES,
            &json!({
                "metadata": {"name": "local"}, "provisioner": "kelson.local/directory", "reclaimPolicy": "Delete",
                "volumeBindingMode": "WaitForFirstConsumer",
            }),
        )
        .await;
        controller_manager::start(&own.config, &own.manager);
        own
    }

    pub async fn stop(self) -> Result<(), String> {
        let mut left = self.manager.drain(Duration::from_secs(5)).await;
        left.extend(self.others.drain(Duration::from_secs(5)).await);
        if left.is_empty() { Ok(()) } else { Err(format!("still running at the end: {left:?}")) }
    }

    /// Everything goes wrong from now on, or nothing does any more.
    pub fn trouble(&self, active: bool) {
        self.faults.set(active);
        if active {
            self.faults.die_within(LIFE);
        }
    }

    /// The manager's tasks are dropped wherever they are; a new one knows nothing.
    async fn die(&mut self) {
        self.manager.drain(Duration::from_secs(5)).await;
        self.manager = Tasks::new();
        self.deaths += 1;
        tracing::info!(deaths = self.deaths, writes = self.faults.writes(), "the manager died");
        controller_manager::start(&self.config, &self.manager);
        if self.faults.is_active() {
            self.faults.die_within(LIFE);
        }
    }

    /// Lets time pass.
    pub async fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = Instant::now() + time;
        let faults = self.faults.clone();
        while tokio::time::timeout_at(end, faults.death.notified()).await.is_ok() {
            self.die().await;
        }
        match self.watchdog.breaches().first() {
            None => Ok(()),
            Some(first) => Err(format!("{first}\nlast writes:\n{}", self.faults.log())),
        }
    }

    /// Lets time pass until `look` has no complaints.
    pub async fn until<F>(&mut self, limit: Duration, look: impl Fn(Client) -> F) -> Result<(), String>
    where
        F: Future<Output = Result<(), String>>,
    {
        let end = Instant::now() + limit;
        // Looking is what costs most here; who takes long is looked at less often.
        let mut pause = Duration::from_secs(1);
        loop {
            self.pass(pause).await?;
            pause = (pause * 2).min(Duration::from_secs(60));
            match look(self.admin.clone()).await {
                Ok(()) => return Ok(()),
                Err(why) if Instant::now() > end => {
                    return Err(format!("{why} after {limit:?}\nlast writes:\n{}", self.faults.log()));
                }
                Err(_) => {}
            }
        }
    }

    /// Nothing is written for a long time.
    pub async fn assert_quiet(&mut self, time: Duration) -> Result<(), String> {
        // Timers that were set during the trouble may still be due, such as the last back-off.
        self.pass(Duration::from_secs(120)).await?;
        let before = self.faults.writes();
        self.pass(time).await?;
        match self.faults.writes() - before {
            0 => Ok(()),
            more => Err(format!("{more} writes though nothing changed\nlast writes:\n{}", self.faults.log())),
        }
    }

    pub async fn create(&self, resource: &Resource, object: &Value) {
        let mut object = object.clone();
        object["apiVersion"] = json!(resource.api_version());
        object["kind"] = json!(resource.kind);
        let api = self.admin.api(resource).within(NAMESPACE);
        api.create::<Value>(&object).await.unwrap_or_else(|error| panic!("create {resource}: {error}"));
    }

    pub async fn patch(&self, resource: &Resource, name: &str, change: &Value) {
        let api = self.admin.api(resource).within(NAMESPACE);
        let patched = api.patch::<Value>(name, Patch::Merge(change)).await;
        patched.unwrap_or_else(|error| panic!("patch {resource} {name}: {error}"));
    }
}

fn node_object(name: &str) -> Value {
    let time = apiserver::clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "500"});
    json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True",
            "reason": "KubeletReady", "lastHeartbeatTime": time, "lastTransitionTime": time}]},
    })
}

/// The objects of a resource in the namespace, by name.
pub async fn list(client: &Client, resource: &Resource) -> BTreeMap<String, Value> {
    let all = client.api(resource).within(NAMESPACE).list::<Value>(&ListOptions::default()).await;
    let items = all.unwrap_or_else(|error| panic!("list {resource}: {error}")).items;
    items.into_iter().map(|item| (item["metadata"]["name"].as_str().unwrap_or("").to_owned(), item)).collect()
}
