//! `kelson kube-controller-manager`, with upstream's flags.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::{ArgAction, Args};
use client::Client;
use controller_runtime::program::{Identities, ProgramArgs, ProgramError, Selection, Status, go_duration};
use jiff::SignedDuration;
use lifecycle::Stop;
use pki::{Pair, PkiError, PrivateKey};
use thiserror::Error;
use tracing::warn;

use crate::certificates::Signers;
use crate::local_volumes::LocalVolumes;
use crate::manager::{Config, Manager, names, start};

const PORT: u16 = 10257;

/// Runs the controllers.
#[derive(Args, Clone, Debug)]
pub struct KubeControllerManagerArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    /// Controllers to run: names, `*` for all that run by default, `-name` to leave one out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Act as one service account per controller
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub use_service_account_credentials: bool,
    /// Give nodes ranges of pod addresses
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allocate_node_cidrs: bool,
    /// Ranges of pod addresses, one per family
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<String>,
    /// Size of a node's range in single-stack clusters
    #[arg(long)]
    pub node_cidr_mask_size: Option<u8>,
    /// Size of a node's IPv4 range
    #[arg(long)]
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// Size of a node's IPv6 range
    #[arg(long)]
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// Ranges of Service addresses
    #[arg(long, value_delimiter = ',')]
    pub service_cluster_ip_range: Vec<String>,
    /// The authority that pods verify the API server with
    #[arg(long)]
    pub root_ca_file: Option<PathBuf>,
    /// Signs service account tokens
    #[arg(long)]
    pub service_account_private_key_file: Option<PathBuf>,
    /// Signs certificate requests
    #[arg(long)]
    pub cluster_signing_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub cluster_signing_key_file: Option<PathBuf>,
    /// The longest life of a signed certificate
    #[arg(long, default_value = "8760h0m0s", value_parser = go_duration)]
    pub cluster_signing_duration: Duration,
    /// How long a running node may be silent
    #[arg(long, default_value = "50s", value_parser = go_duration)]
    pub node_monitor_grace_period: Duration,
    /// How long a starting node may be silent
    #[arg(long, default_value = "1m0s", value_parser = go_duration)]
    pub node_startup_grace_period: Duration,
    /// How long a token in a Secret of old may be unused before it ends
    #[arg(long, default_value = "8760h0m0s", value_parser = go_duration)]
    pub legacy_service_account_token_clean_up_period: Duration,
    /// Never take a mounted volume from a node that only does not answer
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_force_detach_on_timeout: bool,
    /// Taken for compatibility: attachments are compared when something changes, not at intervals
    #[arg(long, value_parser = go_duration)]
    pub attach_detach_reconcile_sync_period: Option<Duration>,
    /// Taken for compatibility, as --attach-detach-reconcile-sync-period
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_attach_detach_reconcile_sync: bool,
    /// Nodes per second that are emptied in a zone that is well
    #[arg(long, default_value_t = 0.1)]
    pub node_eviction_rate: f32,
    /// The same in a large zone where much is down
    #[arg(long, default_value_t = 0.01)]
    pub secondary_node_eviction_rate: f32,
    /// The part of a zone's nodes that must be silent for that
    #[arg(long, default_value_t = 0.55)]
    pub unhealthy_zone_threshold: f32,
    /// Zones up to this size are not emptied at all while much is down
    #[arg(long, default_value_t = 50)]
    pub large_cluster_size_threshold: usize,
    #[command(flatten)]
    pub concurrency: crate::concurrency::Concurrency,
    /// Taken for compatibility: nodes are judged when they change, not at intervals
    #[arg(long, default_value = "5s", value_parser = go_duration)]
    pub node_monitor_period: Duration,
    /// Finished pods that may stay; 0 for all
    #[arg(long, default_value_t = 12_500)]
    pub terminated_pod_gc_threshold: usize,
    /// Endpoints per slice
    #[arg(long, default_value_t = 100)]
    pub max_endpoints_per_slice: usize,
    /// The interval at which autoscalers look at metrics
    #[arg(long, default_value = "15s", value_parser = go_duration)]
    pub horizontal_pod_autoscaler_sync_period: Duration,
    /// How long an autoscaler remembers recommendations before it shrinks
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// The ratio within which an autoscaler does nothing
    #[arg(long, default_value_t = 0.1)]
    pub horizontal_pod_autoscaler_tolerance: f64,
    /// How long after its start a pod's use of CPU counts only if it was ready all along
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after its start a pod may first become ready
    #[arg(long, default_value = "30s", value_parser = go_duration)]
    pub horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// The cluster's name
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Where node volumes of the built-in StorageClass are
    #[arg(long, default_value = "/var/lib/kelson/volumes")]
    pub local_volume_directory: String,
    /// The node that this program runs on: directories of its volumes are removed with them
    #[arg(long)]
    pub local_volume_node: Option<String>,
    /// Taken for compatibility: cloud loops run in cloud-controller-manager
    #[arg(long)]
    pub cloud_provider: Option<String>,
    /// Taken for compatibility: the interval of listing namespaces anew, which is not done
    #[arg(long, value_parser = go_duration)]
    pub namespace_sync_period: Option<Duration>,
    /// Taken for compatibility: quotas are counted when something changes
    #[arg(long, value_parser = go_duration)]
    pub resource_quota_sync_period: Option<Duration>,
    /// Taken for compatibility: claims are bound when something changes
    #[arg(long, value_parser = go_duration)]
    pub pvclaimbinder_sync_period: Option<Duration>,
    /// Taken for compatibility: nothing is listed anew at intervals
    #[arg(long, value_parser = go_duration)]
    pub min_resync_period: Option<Duration>,
    /// Taken for compatibility: controllers start together
    #[arg(long, value_parser = go_duration)]
    pub controller_start_interval: Option<Duration>,
    /// Taken for compatibility: nothing is profiled
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub profiling: bool,
    /// Taken for compatibility
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Taken for compatibility
    #[arg(long)]
    pub flex_volume_plugin_dir: Option<PathBuf>,
}

/// A controller manager that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no usable certificate or key", path = path.display())]
    Pki { path: PathBuf, source: PkiError },
    #[error("{names:?} are not names of controllers")]
    Unknown { names: Vec<String> },
    #[error("--cluster-signing-cert-file and --cluster-signing-key-file go together")]
    HalfSigner,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Metrics of a manager that may not run yet.
#[derive(Default)]
struct Metrics(OnceLock<Manager>);

impl Status for Metrics {
    fn metrics(&self) -> String {
        self.0.get().map(Manager::metrics).unwrap_or_default()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, StartError> {
    std::fs::read(path).map_err(|source| StartError::Read { path: path.to_owned(), source })
}

impl KubeControllerManagerArgs {
    /// What the flags mean, given how to make clients.
    pub fn config(
        &self,
        client_for: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    ) -> Result<Config, StartError> {
        let controllers = Selection::new(self.controllers.iter().cloned());
        let unknown: Vec<String> = controllers.unknown(&names()).into_iter().map(str::to_owned).collect();
        if !unknown.is_empty() {
            return Err(StartError::Unknown { names: unknown });
        }
        let signers = match (&self.cluster_signing_cert_file, &self.cluster_signing_key_file) {
            (None, None) => None,
            (Some(certificate), Some(key)) => {
                let pair = Pair::from_pem(&read(certificate)?, &read(key)?);
                let authority =
                    Arc::new(pair.map_err(|source| StartError::Pki { path: certificate.clone(), source })?);
                let duration =
                    SignedDuration::try_from(self.cluster_signing_duration).unwrap_or(SignedDuration::MAX);
                Some(Signers { authority, duration })
            }
            _ => return Err(StartError::HalfSigner),
        };
        let root_ca = match &self.root_ca_file {
            None => None,
            Some(path) => Some(String::from_utf8_lossy(&read(path)?).into_owned().into()),
        };
        let token_key = match &self.service_account_private_key_file {
            None => None,
            Some(path) => {
                let key = PrivateKey::from_pem(&read(path)?);
                Some(Arc::new(key.map_err(|source| StartError::Pki { path: path.clone(), source })?))
            }
        };
        let seconds = |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let mask = |cidr: &String| {
            let own = if cidr.contains(':') {
                self.node_cidr_mask_size_ipv6
            } else {
                self.node_cidr_mask_size_ipv4
            };
            own.or(self.node_cidr_mask_size).unwrap_or(if cidr.contains(':') { 64 } else { 24 })
        };
        let defaults = Config::new(client_for);
        Ok(Config {
            controllers,
            cluster_cidrs: if self.allocate_node_cidrs { self.cluster_cidr.clone() } else { Vec::new() },
            node_cidr_masks: self.cluster_cidr.iter().map(mask).collect(),
            root_ca,
            signers,
            token_key,
            local_volumes: Some(LocalVolumes {
                host: self.local_volume_node.clone(),
                ..LocalVolumes::under(&self.local_volume_directory)
            }),
            node_grace: crate::Grace {
                running: seconds(self.node_monitor_grace_period),
                startup: seconds(self.node_startup_grace_period),
            },
            unused_tokens: seconds(self.legacy_service_account_token_clean_up_period),
            forced_detach: if self.disable_force_detach_on_timeout {
                crate::Forcing { after: None }
            } else {
                crate::Forcing::default()
            },
            eviction_rates: crate::EvictionRates {
                usual: self.node_eviction_rate,
                reduced: self.secondary_node_eviction_rate,
                unhealthy: self.unhealthy_zone_threshold,
                small: self.large_cluster_size_threshold,
            },
            workers: self.concurrency.workers(),
            finished_pods: self.terminated_pod_gc_threshold,
            endpoints_per_slice: self.max_endpoints_per_slice,
            autoscaling: crate::Autoscaling {
                period: seconds(self.horizontal_pod_autoscaler_sync_period),
                stabilization: seconds(self.horizontal_pod_autoscaler_downscale_stabilization),
                tolerance: self.horizontal_pod_autoscaler_tolerance,
                cpu_start: seconds(self.horizontal_pod_autoscaler_cpu_initialization_period),
                first_ready: seconds(self.horizontal_pod_autoscaler_initial_readiness_delay),
            },
            ..defaults
        })
    }
}

/// Runs until the stop, or until another one leads.
pub async fn run(args: KubeControllerManagerArgs, stop: &Stop) -> Result<(), StartError> {
    let program = args.program.complete("kube-controller-manager", PORT)?;
    let own = program.client.clone();
    let identities = if args.use_service_account_credentials {
        Some(Identities::new("kube-controller-manager", own.clone(), args.program.https()?))
    } else {
        None
    };
    let client_for = move |name: &str| match (&identities, name) {
        (Some(identities), name) if !name.is_empty() => identities.client(name),
        _ => own.clone(),
    };
    let config = args.config(Arc::new(client_for))?;
    let metrics = Arc::new(Metrics::default());
    let status = metrics.clone();
    program
        .run(stop, status, |_, tasks| async move {
            if metrics.0.set(start(&config, &tasks)).is_err() {
                warn!("the controllers run already");
            }
        })
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: KubeControllerManagerArgs,
    }

    fn config(words: &[&str]) -> Result<Config, StartError> {
        let line = Line::try_parse_from(std::iter::once("kcm").chain(words.iter().copied()))
            .expect("flags are known");
        line.args.config(Arc::new(|_: &str| unreachable!("no client is made")))
    }

    #[test]
    fn upstreams_flags_are_understood() {
        let config = config(&[
            "--controllers=*,-job-controller,bootstrap-signer-controller",
            "--allocate-node-cidrs=true",
            "--cluster-cidr=10.128.0.0/14,fd01::/48",
            "--node-cidr-mask-size-ipv4=23",
            "--node-monitor-grace-period=40s",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--concurrent-deployment-syncs=20",
            "--concurrent_rc_syncs=7",
            "--node-eviction-rate=0.5",
        ])
        .unwrap();
        assert_eq!(config.workers.get("deployment-controller"), Some(&20));
        assert_eq!(config.workers.get("replicationcontroller-controller"), Some(&7));
        assert_eq!(config.workers.len(), 2);
        assert_eq!(config.eviction_rates.usual, 0.5);
        assert!(!config.controllers.includes("job-controller", true));
        assert!(config.controllers.includes("bootstrap-signer-controller", false));
        assert_eq!(config.node_cidr_masks, [23, 64]);
        assert_eq!(config.node_grace.running.as_secs(), 40);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(matches!(config(&["--controllers=nope"]), Err(StartError::Unknown { .. })));
        assert!(matches!(config(&["--cluster-signing-key-file=/x"]), Err(StartError::HalfSigner)));
        let strange = Line::try_parse_from(["kcm", "--no-such-flag"]).err().map(|error| error.to_string());
        assert!(strange.is_some_and(|text| text.contains("--no-such-flag")));
    }
}
