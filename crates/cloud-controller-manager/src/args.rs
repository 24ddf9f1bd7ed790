//! `kelson cloud-controller-manager`, with upstream's flags.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use controller_runtime::program::{ClientFor, LoopArgs, ProgramError, go_duration};
use ipnet::IpNet;
use jiff::SignedDuration;
use lifecycle::{Stop, Tasks};
use thiserror::Error;

use crate::local::{Local, LocalError};
use crate::manager::{Config, names, start};
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
    pub loops: LoopArgs,
    /// The place that the cluster runs in; `local` is the one there is
    #[arg(long)]
    pub cloud_provider: String,
    /// The provider's configuration
    #[arg(long)]
    pub cloud_config: Option<PathBuf>,
    /// How often machines are looked at
    #[arg(long, default_value = "5m0s", value_parser = go_duration)]
    pub node_status_update_frequency: Duration,
    /// Nodes that are worked on at once
    #[arg(long, default_value_t = 1)]
    pub concurrent_node_syncs: usize,
    /// Taken for compatibility: addresses of nodes are compared when machines are looked at
    #[arg(long, value_parser = go_duration)]
    pub node_sync_period: Option<Duration>,
    /// Refused: the provider has no webhooks
    #[arg(long, value_delimiter = ',', value_parser = no_webhooks)]
    pub webhooks: Vec<String>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_bind_address: Option<std::net::IpAddr>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_secure_port: Option<u16>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_cert_dir: Option<PathBuf>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_tls_cert_file: Option<PathBuf>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_tls_private_key_file: Option<PathBuf>,
    /// Taken for compatibility, as --webhooks
    #[arg(long, value_delimiter = ',')]
    pub webhook_tls_cipher_suites: Vec<String>,
    /// Taken for compatibility, as --webhooks
    #[arg(long, value_delimiter = ',')]
    pub webhook_tls_curve_preferences: Vec<String>,
    /// Taken for compatibility, as --webhooks
    #[arg(long)]
    pub webhook_tls_min_version: Option<String>,
    /// Taken for compatibility: nodes' statuses are looked at as they change
    #[arg(long)]
    pub concurrent_node_status_updates: Option<usize>,
    /// Taken for compatibility: machines of one's own carry no tags
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub allow_untagged_cloud: bool,
}

fn no_webhooks(text: &str) -> Result<String, String> {
    match text {
        "" | "-*" => Ok(text.to_owned()),
        _ => Err("the provider that is built in has no webhooks".to_owned()),
    }
}

/// Cloud loops that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("{name:?} is not a cloud provider that is built in; there is local")]
    Provider { name: String },
    #[error("the configuration of the provider cannot be used")]
    Local(#[from] LocalError),
    #[error("{text:?} is not a range of addresses")]
    Range { text: String, source: ipnet::AddrParseError },
    #[error("--allocate-node-cidrs needs --cluster-cidr")]
    Ranges,
    #[error(transparent)]
    Program(#[from] ProgramError),
}

impl CloudControllerManagerArgs {
    /// What the flags mean, given how to make clients.
    pub fn config(&self, client_for: ClientFor) -> Result<Config, StartError> {
        let controllers = self.loops.selection(&names(), &ALIASES)?;
        let provider: Arc<dyn Provider> = match &*self.cloud_provider {
            "local" => Arc::new(Local::open(self.cloud_config.as_deref())?),
            other => return Err(StartError::Provider { name: other.to_owned() }),
        };
        let loops = &self.loops;
        if loops.allocate_node_cidrs && loops.cluster_cidr.is_empty() {
            return Err(StartError::Ranges);
        }
        let range =
            |text: &String| text.parse().map_err(|source| StartError::Range { text: text.clone(), source });
        let ranges: Vec<IpNet> = loops.cluster_cidr.iter().map(range).collect::<Result<_, _>>()?;
        let routed = loops.allocate_node_cidrs && loops.configure_cloud_routes;
        let span = |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let defaults = Config::new(client_for, provider);
        Ok(Config {
            controllers,
            routed_cidrs: if routed { ranges } else { Vec::new() },
            status_frequency: span(self.node_status_update_frequency),
            monitor_period: span(loops.node_monitor_period),
            route_period: span(loops.route_reconciliation_period),
            service_workers: loops.concurrent_service_syncs,
            node_workers: self.concurrent_node_syncs,
            ..defaults
        })
    }
}

/// Runs until the stop, or until another one leads.
pub async fn run(args: CloudControllerManagerArgs, stop: &Stop) -> Result<(), StartError> {
    let prepare = |client_for: ClientFor| {
        let config = args.config(client_for)?;
        Ok(move |tasks: &Tasks| start(&config, tasks))
    };
    args.loops.run(NAME, PORT, stop, prepare).await
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

    /// Every flag that upstream's program has, each with a value that it takes there.
    #[test]
    fn every_flag_of_upstream_is_taken_or_refused_with_a_sentence() {
        for line in include_str!("args/flags.txt").lines().filter(|line| !line.is_empty()) {
            let (flag, refusal) =
                line.split_once(" ! ").map_or((line, None), |(flag, why)| (flag, Some(why)));
            let words = ["ccm", "--cloud-provider=local", flag];
            let words = if flag.starts_with("--cloud-provider") { &words[..2] } else { &words[..] };
            match (Line::try_parse_from(words).map_err(|error| error.to_string()), refusal) {
                (Ok(_), None) => {}
                (Err(said), Some(why)) => assert!(said.contains(why), "{flag}: {said}"),
                (Ok(_), Some(_)) => panic!("{flag} is taken, though the table says that it is refused"),
                (Err(said), None) => panic!("{flag}: {said}"),
            }
        }
    }
}
