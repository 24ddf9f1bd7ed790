//! Which controllers there are, which run, and with what.

use std::collections::HashMap;
use std::sync::Arc;

use controller_runtime::program::{ClientFor, Selection, Status};
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
    pub client_for: ClientFor,
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
    /// How many endpoints of a subset are mirrored.
    pub mirrored_endpoints: usize,
    /// After how long quotas are counted anew though nothing was seen to change.
    pub quota_recount: SignedDuration,
}

impl Config {
    /// Upstream's defaults over these clients.
    pub fn new(client_for: ClientFor) -> Self {
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
            mirrored_endpoints: 1000,
            quota_recount: SignedDuration::from_mins(5),
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
    ("persistentvolume-expander-controller", true, |config, _| {
        vec![crate::volume_expander::controller(config.local_volumes.clone())]
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
    ("endpointslice-mirroring-controller", true, |config, _| {
        vec![crate::endpoint_slice_mirroring::controller(config.mirrored_endpoints)]
    }),
    ("resourcequota-controller", true, |config, _| {
        vec![crate::resource_quota::controller(config.quota_recount)]
    }),
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
    ("device-taint-eviction-controller", true, |_, _| vec![crate::device_taints::controller()]),
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

/// Older names of controllers, which upstream still takes.
pub(crate) const ALIASES: [(&str, &str); 42] = [
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("cloud-node-lifecycle", "cloud-node-lifecycle-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resource-claim-controller", "resourceclaim-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("route", "node-route-controller"),
    ("service", "service-lb-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("storage-version-gc", "storageversion-garbage-collector-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

/// Upstream's controllers that are not here: for kinds that are switched off by default there, for clouds (which have a
/// program of their own), for SELinux. Their names may be said, but nothing runs for them.
const ELSEWHERE: [&str; 10] = [
    "cloud-node-lifecycle-controller",
    "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    "node-route-controller",
    "podcertificaterequest-cleaner-controller",
    "podgroup-protection-controller",
    "resourcepoolstatusrequest-controller",
    "selinux-warning-controller",
    "service-lb-controller",
    "storage-version-migrator-controller",
    "storageversion-garbage-collector-controller",
];

/// All names that `--controllers` takes.
pub(crate) fn known() -> Vec<&'static str> {
    ALL.iter().map(|(name, _, _)| *name).chain(ELSEWHERE).collect()
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

impl Status for Manager {
    fn metrics(&self) -> String {
        self.runtime.metrics()
    }
}

impl Manager {
    /// What a controller would do now about an object.
    pub async fn explain(&self, controller: &str, key: &Key) -> Option<Result<String, client::Error>> {
        self.runtime.explain(controller, key).await
    }

    /// Whether nothing is queued, running or due later.
    pub fn is_idle(&self) -> bool {
        self.runtime.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_names_mean_controllers_that_are_known() {
        let known = known();
        for (older, name) in ALIASES {
            assert!(known.contains(&name) && !known.contains(&older), "{older}");
        }
    }
}
