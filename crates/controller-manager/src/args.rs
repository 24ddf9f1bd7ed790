//! `kelson kube-controller-manager`, with upstream's flags.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use controller_runtime::program::{ClientFor, LoopArgs, ProgramError, go_duration};
use jiff::SignedDuration;
use lifecycle::{Stop, Tasks};
use pki::{PkiError, PrivateKey};
use thiserror::Error;

use crate::local_volumes::LocalVolumes;
use crate::manager::{ALIASES, Config, known, start};

const PORT: u16 = 10257;

/// Runs the controllers.
#[derive(Args, Clone, Debug)]
pub struct KubeControllerManagerArgs {
    #[command(flatten)]
    pub loops: LoopArgs,
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
    #[command(flatten)]
    pub signing: crate::signing_args::SigningArgs,
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
    /// Finished pods that may stay; 0 for all
    #[arg(long, default_value_t = 12_500)]
    pub terminated_pod_gc_threshold: usize,
    /// Endpoints per slice
    #[arg(long, default_value_t = 100)]
    pub max_endpoints_per_slice: usize,
    /// After how long quotas are counted anew though nothing was seen to change
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub resource_quota_sync_period: Duration,
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
    /// Where node volumes of the built-in StorageClass are
    #[arg(long, default_value = "/var/lib/kelson/volumes")]
    pub local_volume_directory: String,
    /// The node that this program runs on: directories of its volumes are removed with them
    #[arg(long)]
    pub local_volume_node: Option<String>,
    /// Whether the built-in StorageClass makes volumes
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_dynamic_provisioning: bool,
    /// Whether what has lost its owners is collected
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub enable_garbage_collector: bool,
    /// Addresses per subset that mirrored slices take
    #[arg(long, default_value_t = 1000)]
    pub mirroring_max_endpoints_per_subset: usize,
    #[command(flatten)]
    pub compatibility: crate::compatibility::CompatibilityArgs,
}

/// A controller manager that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no usable certificate or key", path = path.display())]
    Pki { path: PathBuf, source: PkiError },
    #[error("--{flag}-cert-file and --{flag}-key-file go together")]
    HalfSigner { flag: &'static str },
    #[error("--cluster-signing-cert-file is for all signers: it does not go with files for single ones")]
    BothSigners,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, StartError> {
    std::fs::read(path).map_err(|source| StartError::Read { path: path.to_owned(), source })
}

impl KubeControllerManagerArgs {
    /// What the flags mean, given how to make clients.
    pub fn config(&self, client_for: ClientFor) -> Result<Config, StartError> {
        let mut controllers = self.loops.selection(&known(), &ALIASES)?;
        if !self.enable_garbage_collector {
            controllers = controllers.without("garbage-collector-controller");
        }
        let signers = self.signing.signers(self.cluster_signing_duration)?;
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
            cluster_cidrs: if self.loops.allocate_node_cidrs {
                self.loops.cluster_cidr.clone()
            } else {
                Vec::new()
            },
            node_cidr_masks: self.loops.cluster_cidr.iter().map(mask).collect(),
            root_ca,
            signers,
            token_key,
            local_volumes: self.enable_dynamic_provisioning.then(|| LocalVolumes {
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
            mirrored_endpoints: self.mirroring_max_endpoints_per_subset,
            quota_recount: seconds(self.resource_quota_sync_period),
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
    let prepare = |client_for: ClientFor| {
        let mut config = args.config(client_for)?;
        if config.root_ca.is_none() {
            // As upstream: what this program itself verifies the API server with is what pods need.
            let own = args.loops.program.https()?.ca_pem;
            config.root_ca = (!own.is_empty()).then(|| String::from_utf8_lossy(&own).into());
        }
        Ok(move |tasks: &Tasks| start(&config, tasks))
    };
    args.loops.run("kube-controller-manager", PORT, stop, prepare).await
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
            "--controllers=*,-job,bootstrapsigner,tokencleaner,-selinux-warning-controller",
            "--allocate-node-cidrs=true",
            "--cluster-cidr=10.128.0.0/14,fd01::/48",
            "--node-cidr-mask-size-ipv4=23",
            "--node-monitor-grace-period=40s",
            "--leader-elect=false",
            "--use-service-account-credentials",
            "--concurrent-deployment-syncs=20",
            "--concurrent-rc-syncs=7",
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
        let fails = |words: &[&str]| config(words).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(fails(&["--controllers=nope"]).contains("nope"));
        assert!(fails(&["--cluster-signing-key-file=/x"]).contains("go together"));
        let half = "--cluster-signing-kubelet-serving-cert-file=/x";
        assert!(fails(&[half]).contains("cluster-signing-kubelet-serving-key-file"));
        let strange = Line::try_parse_from(["kcm", "--no-such-flag"]).err().map(|error| error.to_string());
        assert!(strange.is_some_and(|text| text.contains("--no-such-flag")));
    }

    /// Every flag that upstream's program has, each with a value that it takes there.
    #[test]
    fn every_flag_of_upstream_is_taken_or_refused_with_a_sentence() {
        let taken = include_str!("args/flags.txt");
        for line in taken.lines().filter(|line| !line.is_empty()) {
            let (flag, refusal) =
                line.split_once(" ! ").map_or((line, None), |(flag, why)| (flag, Some(why)));
            let parsed = Line::try_parse_from(["kcm", flag]).map_err(|error| error.to_string());
            match (parsed, refusal) {
                (Ok(_), None) => {}
                (Err(said), Some(why)) => assert!(said.contains(why), "{flag}: {said}"),
                (Ok(_), Some(_)) => panic!("{flag} is taken, though the table says that it is refused"),
                (Err(said), None) => panic!("{flag}: {said}"),
            }
        }
    }
}
