//! Which controllers there are, which run, and with what.

use std::collections::HashMap;
use std::sync::Arc;

use client::Client;
use controller_runtime::program::Selection;
use controller_runtime::{Clock, Controller, Key, Runtime, system_clock};
use jiff::SignedDuration;
use lifecycle::Tasks;
use pki::PrivateKey;
use tracing::info;

use crate::attach_detach::Forcing;
use crate::autoscaler::Autoscaling;
use crate::certificates::Signers;
use crate::local_volumes::LocalVolumes;
use crate::node_ipam::Range;
use crate::node_lifecycle::{EvictionRates, Grace};
use crate::service_account_tokens::Tokens;

/// Everything that the controllers need to know.
#[derive(Clone)]
pub struct Config {
    /// Makes the client of a service account in `kube-system`; the empty name means the manager's own identity.
    pub client_for: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    /// Which controllers run.
    pub controllers: Selection,
    /// The clock.
    pub clock: Clock,
    /// Ranges of pod addresses, one per family; empty if nodes get theirs from elsewhere.
    pub cluster_cidrs: Vec<String>,
    /// The size of a node's part of each range.
    pub node_cidr_masks: Vec<u8>,
    /// The certificate authority that pods verify the API server with, in PEM.
    pub root_ca: Option<Arc<str>>,
    /// Who signs approved certificate requests; nobody if absent.
    pub signers: Option<Signers>,
    /// Signs tokens in Secrets; nobody if absent.
    pub token_key: Option<Arc<PrivateKey>>,
    /// How autoscalers behave.
    pub autoscaling: Autoscaling,
    /// Makes volumes on nodes, for the StorageClasses that name its provisioner.
    pub local_volumes: Option<LocalVolumes>,
    /// How long a node may be silent.
    pub node_grace: Grace,
    /// How long a token of old may be unused.
    pub unused_tokens: SignedDuration,
    /// When volumes are taken from nodes that do not answer.
    pub forced_detach: Forcing,
    /// How fast silent nodes are emptied.
    pub eviction_rates: EvictionRates,
    /// How many keys of a controller are worked on at once, where that is not its own number.
    pub workers: HashMap<&'static str, usize>,
    /// How many finished pods may stay.
    pub finished_pods: usize,
    /// How many endpoints a slice may have.
    pub endpoints_per_slice: usize,
}

impl Config {
    /// Upstream's defaults over these clients.
    pub fn new(client_for: Arc<dyn Fn(&str) -> Client + Send + Sync>) -> Self {
        Self {
            client_for,
            controllers: Selection::default(),
            clock: system_clock(),
            cluster_cidrs: Vec::new(),
            node_cidr_masks: Vec::new(),
            root_ca: None,
            signers: None,
            token_key: None,
            autoscaling: Autoscaling::default(),
            local_volumes: None,
            node_grace: Grace::default(),
            unused_tokens: SignedDuration::from_hours(24 * 365),
            forced_detach: Forcing::default(),
            eviction_rates: EvictionRates::default(),
            workers: HashMap::new(),
            finished_pods: 12_500,
            endpoints_per_slice: 100,
        }
    }
}

/// Makes a controller, or none if its configuration is missing.
type Make = fn(&Config, &Tasks) -> Vec<Controller>;

/// All controllers, in the order in which they start, and whether they run by default. The garbage collector is last:
/// it listens to the caches of the others.
const ALL: &[(&str, bool, Make)] = &[
    ("namespace-controller", true, |_, _| vec![crate::namespace::controller()]),
    ("serviceaccount-controller", true, |_, _| vec![crate::service_account::controller()]),
    ("root-ca-certificate-publisher-controller", true, |config, _| {
        config.root_ca.iter().map(|pem| crate::root_ca::controller(pem.clone())).collect()
    }),
    ("replicaset-controller", true, |_, _| vec![crate::replica_set::controller()]),
    ("replicationcontroller-controller", true, |_, _| vec![crate::replica_set::replication_controller()]),
    ("deployment-controller", true, |_, _| vec![crate::deployment::controller()]),
    ("daemonset-controller", true, |_, _| vec![crate::daemon_set::controller()]),
    ("disruption-controller", true, |_, _| vec![crate::disruption::controller()]),
    ("clusterrole-aggregation-controller", true, |_, _| vec![crate::cluster_role_aggregation::controller()]),
    ("validatingadmissionpolicy-status-controller", true, |_, _| vec![crate::policy_status::controller()]),
    ("persistentvolume-binder-controller", true, |config, _| {
        crate::volume_binder::controllers(config.local_volumes.clone()).into()
    }),
    ("persistentvolume-attach-detach-controller", true, |config, _| {
        vec![crate::attach_detach::controller(config.forced_detach)]
    }),
    ("persistentvolumeclaim-protection-controller", true, |_, _| vec![crate::volume_protection::of_claims()]),
    ("persistentvolume-protection-controller", true, |_, _| vec![crate::volume_protection::of_volumes()]),
    (
        "volumeattributesclass-protection-controller",
        true,
        |_, _| vec![crate::volume_protection::of_classes()],
    ),
    ("ephemeral-volume-controller", true, |_, _| vec![crate::volume_protection::ephemeral()]),
    ("certificatesigningrequest-approving-controller", true, |_, _| vec![crate::certificates::approving()]),
    ("certificatesigningrequest-signing-controller", true, |config, _| {
        config.signers.iter().map(|signers| crate::certificates::signing(signers.clone())).collect()
    }),
    ("certificatesigningrequest-cleaner-controller", true, |_, _| vec![crate::certificates::cleaning()]),
    ("bootstrap-signer-controller", false, |_, _| vec![crate::bootstrap_tokens::signer()]),
    ("token-cleaner-controller", false, |_, _| vec![crate::bootstrap_tokens::cleaner()]),
    ("endpointslice-mirroring-controller", true, |_, _| vec![crate::endpoint_slice_mirroring::controller()]),
    ("resourcequota-controller", true, |_, _| vec![crate::resource_quota::controller()]),
    ("horizontal-pod-autoscaler-controller", true, |config, _| {
        vec![crate::autoscaler::controller(config.autoscaling)]
    }),
    ("serviceaccount-token-controller", true, |config, _| {
        let tokens = |key: &Arc<PrivateKey>| Tokens { key: key.clone(), root_ca: config.root_ca.clone() };
        config.token_key.iter().map(|key| crate::service_account_tokens::controller(tokens(key))).collect()
    }),
    ("legacy-serviceaccount-token-cleaner-controller", true, |config, _| {
        vec![crate::legacy_tokens::controller(config.unused_tokens)]
    }),
    ("service-cidr-controller", true, |_, _| vec![crate::housekeeping::service_cidrs()]),
    ("service-ip-repair-controller", true, |_, _| vec![crate::housekeeping::addresses()]),
    ("kube-apiserver-lease-garbage-collector", true, |_, _| vec![crate::housekeeping::leases()]),
    ("ttl-controller", true, |_, _| vec![crate::housekeeping::ttl()]),
    ("resourceclaim-controller", true, |_, _| {
        vec![crate::housekeeping::pod_claims(), crate::housekeeping::claim_release()]
    }),
    ("statefulset-controller", true, |_, _| vec![crate::stateful_set::controller()]),
    ("job-controller", true, |_, _| crate::job::controllers().into()),
    ("cronjob-controller", true, |_, _| vec![crate::cron_job::controller()]),
    ("ttl-after-finished-controller", true, |_, _| vec![crate::ttl_after_finished::controller()]),
    ("endpoints-controller", true, |_, _| vec![crate::endpoints::controller()]),
    ("endpointslice-controller", true, |config, _| {
        vec![crate::endpoint_slice::controller(config.endpoints_per_slice)]
    }),
    ("node-lifecycle-controller", true, |config, _| {
        vec![crate::node_lifecycle::controller(config.node_grace, config.eviction_rates)]
    }),
    ("node-ipam-controller", true, |config, _| {
        let ranges = ranges(config);
        if ranges.is_empty() { Vec::new() } else { vec![crate::node_ipam::controller(ranges)] }
    }),
    ("taint-eviction-controller", true, |_, _| vec![crate::taint_eviction::controller()]),
    ("pod-garbage-collector-controller", true, |config, _| {
        vec![crate::pod_gc::controller(config.finished_pods)]
    }),
    ("garbage-collector-controller", true, |_, tasks| crate::garbage_collector::controllers(tasks).into()),
];

fn ranges(config: &Config) -> Vec<Range> {
    config
        .cluster_cidrs
        .iter()
        .enumerate()
        .filter_map(|(index, cidr)| {
            let default = if cidr.contains(':') { 64 } else { 24 };
            Range::new(cidr, config.node_cidr_masks.get(index).copied().unwrap_or(default))
        })
        .collect()
}

/// The names of all controllers.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _, _)| *name).collect()
}

/// The running controllers.
pub struct Manager {
    runtime: Runtime,
}

/// Starts the chosen controllers on `tasks`. They stop with it.
pub fn start(config: &Config, tasks: &Tasks) -> Manager {
    let clients = config.client_for.clone();
    let shared = clients("");
    let runtime = Runtime::new(shared, clients, config.clock.clone(), tasks);
    for (name, by_default, make) in ALL {
        if config.controllers.includes(name, *by_default) {
            for controller in make(config, tasks) {
                runtime.start(match config.workers.get(name) {
                    Some(workers) => controller.workers(*workers),
                    None => controller,
                });
            }
        }
    }
    info!(controllers = runtime.names().len(), "controllers started");
    Manager { runtime }
}

impl Manager {
    /// The work queues' metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.runtime.metrics()
    }

    /// What a controller would do now about an object.
    pub async fn explain(&self, controller: &str, key: &Key) -> Option<Result<String, client::Error>> {
        self.runtime.explain(controller, key).await
    }

    /// Whether nothing is queued, running or due later.
    pub fn is_idle(&self) -> bool {
        self.runtime.is_idle()
    }
}
