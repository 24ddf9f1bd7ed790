//! `kelson cloud-controller-manager`, with upstream's flags.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::{ArgAction, Args};
use client::Client;
use controller_runtime::program::{Identities, ProgramArgs, ProgramError, Selection, Status, go_duration};
use ipnet::IpNet;
use jiff::SignedDuration;
use lifecycle::Stop;
use thiserror::Error;
use tracing::warn;

use crate::local::{Local, LocalError};
use crate::manager::{Config, Manager, names, start};
use crate::provider::Provider;

const NAME: &str = "cloud-controller-manager";
const PORT: u16 = 10258;
/// Upstream's older names of the loops.
const ALIASES: [(&str, &str); 4] = [
    ("cloud-node", crate::node::NAME),
    ("cloud-node-lifecycle", crate::node_lifecycle::NAME),
    ("service", crate::service::NAME),
    ("route", crate::route::NAME),
];

/// Runs the cloud loops.
#[derive(Args, Clone, Debug)]
pub struct CloudControllerManagerArgs {
    #[command(flatten)]
    pub program: ProgramArgs,
    /// The place that the cluster runs in; `local` is the one there is
    #[arg(long)]
    pub cloud_provider: String,
    /// The provider's configuration
    #[arg(long)]
    pub cloud_config: Option<PathBuf>,
    /// Loops to run: names, `*` for all, `-name` to leave one out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Act as one service account per loop
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub use_service_account_credentials: bool,
    /// Whether nodes have ranges of pod addresses that could be routed
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allocate_node_cidrs: bool,
    /// Route those ranges; needs --allocate-node-cidrs and --cluster-cidr
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub configure_cloud_routes: bool,
    /// Ranges of pod addresses, one per family
    #[arg(long, value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNet>,
    /// How often routes are compared
    #[arg(long, default_value = "10s", value_parser = go_duration)]
    pub route_reconciliation_period: Duration,
    /// How often machines of nodes that are not ready are looked at
    #[arg(long, default_value = "5s", value_parser = go_duration)]
    pub node_monitor_period: Duration,
    /// How often machines are looked at
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub node_status_update_frequency: Duration,
    /// Services that are worked on at once
    #[arg(long, default_value_t = 1)]
    pub concurrent_service_syncs: usize,
    /// Nodes that are worked on at once
    #[arg(long, default_value_t = 1)]
    pub concurrent_node_syncs: usize,
    /// The cluster's name
    #[arg(long, default_value = "kubernetes")]
    pub cluster_name: String,
    /// Taken for compatibility: there is one kind
    #[arg(long, default_value = "RangeAllocator", value_parser = ["RangeAllocator"])]
    pub cidr_allocator_type: String,
    /// Taken for compatibility: machines of one's own carry no tags
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allow_untagged_cloud: bool,
    /// Taken for compatibility: nothing is listed anew at intervals
    #[arg(long, value_parser = go_duration)]
    pub min_resync_period: Option<Duration>,
    /// Taken for compatibility
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Taken for compatibility: nothing is profiled
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub profiling: bool,
}

/// Cloud loops that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("{name:?} is not a cloud provider that is built in; there is local")]
    Provider { name: String },
    #[error("the configuration of the provider cannot be used")]
    Local(#[from] LocalError),
    #[error("{names:?} are not names of controllers")]
    Unknown { names: Vec<String> },
    #[error("--allocate-node-cidrs needs --cluster-cidr")]
    Ranges,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Metrics of loops that may not run yet.
#[derive(Default)]
struct Metrics(OnceLock<Manager>);

impl Status for Metrics {
    fn metrics(&self) -> String {
        self.0.get().map(Manager::metrics).unwrap_or_default()
    }
}

impl CloudControllerManagerArgs {
    /// What the flags mean, given how to make clients.
    pub fn config(
        &self,
        client_for: Arc<dyn Fn(&str) -> Client + Send + Sync>,
    ) -> Result<Config, StartError> {
        let newer = |word: &String| {
            let (minus, name) = word.strip_prefix('-').map_or(("", &**word), |name| ("-", name));
            let name = ALIASES.iter().find(|(older, _)| *older == name).map_or(name, |(_, newer)| newer);
            format!("{minus}{name}")
        };
        let controllers = Selection::new(self.controllers.iter().map(newer));
        let unknown: Vec<String> = controllers.unknown(&names()).into_iter().map(str::to_owned).collect();
        if !unknown.is_empty() {
            return Err(StartError::Unknown { names: unknown });
        }
        let provider: Arc<dyn Provider> = match &*self.cloud_provider {
            "local" => Arc::new(Local::open(self.cloud_config.as_deref())?),
            other => return Err(StartError::Provider { name: other.to_owned() }),
        };
        if self.allocate_node_cidrs && self.cluster_cidr.is_empty() {
            return Err(StartError::Ranges);
        }
        let routed = self.allocate_node_cidrs && self.configure_cloud_routes;
        let span = |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let defaults = Config::new(client_for, provider);
        Ok(Config {
            controllers,
            routed_cidrs: if routed { self.cluster_cidr.clone() } else { Vec::new() },
            status_frequency: span(self.node_status_update_frequency),
            monitor_period: span(self.node_monitor_period),
            route_period: span(self.route_reconciliation_period),
            service_workers: self.concurrent_service_syncs,
            node_workers: self.concurrent_node_syncs,
            ..defaults
        })
    }
}

/// Runs until the stop, or until another one leads.
pub async fn run(args: CloudControllerManagerArgs, stop: &Stop) -> Result<(), StartError> {
    let program = args.program.complete(NAME, PORT)?;
    let own = program.client.clone();
    let identities = if args.use_service_account_credentials {
        Some(Identities::new(NAME, own.clone(), args.program.https()?))
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
                warn!("the cloud loops run already");
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
        args: CloudControllerManagerArgs,
    }

    fn config(words: &[&str]) -> Result<Config, StartError> {
        let line = Line::try_parse_from(std::iter::once("ccm").chain(words.iter().copied()))
            .expect("flags are known");
        line.args.config(Arc::new(|_: &str| unreachable!("no client is made")))
    }

    #[test]
    fn upstreams_flags_are_understood() {
        let config = config(&[
            "--cloud-provider=local",
            "--controllers=*,-route",
            "--allocate-node-cidrs",
            "--cluster-cidr=10.128.0.0/14",
            "--node-status-update-frequency=1m",
            "--leader-elect=false",
        ])
        .unwrap();
        assert!(!config.controllers.includes(crate::route::NAME, true), "older names are known");
        assert!(config.controllers.includes(crate::service::NAME, true));
        assert_eq!(config.status_frequency.as_secs(), 60);
        assert_eq!(config.routed_cidrs.len(), 1);
    }

    #[test]
    fn nonsense_is_refused() {
        let fails = |words: &[&str]| config(words).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(fails(&["--cloud-provider=moon"]).contains("moon"));
        assert!(fails(&["--cloud-provider=local", "--controllers=nope"]).contains("nope"));
        assert!(fails(&["--cloud-provider=local", "--allocate-node-cidrs"]).contains("--cluster-cidr"));
    }
}
