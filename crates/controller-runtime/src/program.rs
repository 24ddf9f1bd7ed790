//! The frame of a control-plane program: its common flags, its API client, its election, its secure port.
//!
//! kube-scheduler, kube-controller-manager and their like differ in what they do while they lead; everything around
//! that is here, once, with upstream's flag names and defaults.

mod accepted;
mod client_ca;
mod identity;
mod loops;
mod selection;
mod serve;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use client::{Client, Https, HttpsConfig, HttpsError};
use lifecycle::{Stop, Tasks};
use pki::{Kubeconfig, PkiError};
use thiserror::Error;
use tracing::{info, warn};

use crate::leader::{Election, LeaderElection};
use crate::runtime::system_clock;
pub use accepted::AcceptedArgs;
pub use identity::Identities;
pub use loops::{ClientFor, LoopArgs};
pub use selection::Selection;
pub use serve::ServeError;

/// Flags that every control-plane program takes.
#[derive(Args, Clone, Debug)]
pub struct ProgramArgs {
    /// How to reach the API server; without it the identity of the surrounding pod is used
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The API server's address, instead of the kubeconfig's
    #[arg(long)]
    pub master: Option<String>,
    /// Wait to be elected before doing anything
    #[arg(long, default_value = "true", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long others wait for a silent leader
    #[arg(long, default_value = "15s", value_parser = go_duration)]
    pub leader_elect_lease_duration: Duration,
    /// How long a leader tries to renew before it gives up
    #[arg(long, default_value = "10s", value_parser = go_duration)]
    pub leader_elect_renew_deadline: Duration,
    /// The pause between attempts
    #[arg(long, default_value = "2s", value_parser = go_duration)]
    pub leader_elect_retry_period: Duration,
    /// The kind of lock; only leases are supported
    #[arg(long, default_value = "leases", value_parser = ["leases"])]
    pub leader_elect_resource_lock: String,
    /// The lease's name [default: the program's]
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// The lease's namespace
    #[arg(long, default_value = "kube-system")]
    pub leader_elect_resource_namespace: String,
    /// Where health and metrics are served
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port for that; 0 serves nothing [default: the program's]
    #[arg(long)]
    pub secure_port: Option<u16>,
    /// The serving certificate; without it one is made for this run
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Who signs client certificates
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// The lowest version of TLS that is spoken
    #[arg(long, default_value = "VersionTLS12", value_parser = ["VersionTLS12", "VersionTLS13"])]
    pub tls_min_version: String,
    /// The cipher suites that are spoken, by their IANA names; all that are safe if none is named
    #[arg(long, value_delimiter = ',')]
    pub tls_cipher_suites: Vec<String>,
    /// Refused: there is one serving certificate
    #[arg(long, value_parser = no_sni)]
    pub tls_sni_cert_key: Vec<String>,
    /// Do not speak HTTP/2 on the secure port
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub disable_http2_serving: bool,
    /// Let the port be shared with other processes
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub permit_port_sharing: bool,
    /// Let the address be used again at once
    #[arg(long, default_value = "false", action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub permit_address_sharing: bool,
    /// Paths of the secure port that are for everyone; a star at the end stands for the rest
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    pub authorization_always_allow_paths: Vec<String>,
    /// How long loops may take to stop
    #[arg(long, default_value = "10s", value_parser = go_duration)]
    pub controller_shutdown_timeout: Duration,
    #[command(flatten)]
    pub accepted: AcceptedArgs,
    /// How much to log, from 0 to 10
    #[arg(short, long = "v", default_value_t = 2)]
    pub verbosity: u8,
}

/// A program that cannot start.
#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("the kubeconfig {path} cannot be used", path = path.display())]
    Kubeconfig { path: PathBuf, source: PkiError },
    #[error("{names:?} are not names of controllers")]
    Unknown { names: Vec<String> },
    #[error("the API server cannot be addressed")]
    Https(#[from] HttpsError),
    #[error("health and metrics cannot be served")]
    Serve(#[from] ServeError),
}

/// What a program offers on its secure port.
pub trait Status: Send + Sync + 'static {
    /// Lines in the Prometheus text format.
    fn metrics(&self) -> String;
}

/// A control-plane program, ready to run.
pub struct Program {
    pub client: Client,
    election: Option<LeaderElection>,
    serving: Option<serve::Serving>,
    patience: Duration,
}

impl ProgramArgs {
    /// Logs as these flags say; call it before anything else.
    pub fn start_logging(&self) {
        telemetry::log_to_stderr(match self.verbosity {
            0..=3 => "info",
            4..=5 => "debug",
            _ => "trace",
        });
    }

    /// Resolves files and defaults. `name` is the program's, also of its lease.
    pub fn complete(&self, name: &str, default_port: u16) -> Result<Program, ProgramError> {
        let client = Client::new(Https::new(self.https()?)?, name.to_owned());
        let election = self.leader_elect.then(|| LeaderElection {
            client: client.clone(),
            namespace: self.leader_elect_resource_namespace.clone(),
            name: self.leader_elect_resource_name.clone().unwrap_or_else(|| name.to_owned()),
            identity: identity(),
            lease_duration: self.leader_elect_lease_duration,
            renew_deadline: self.leader_elect_renew_deadline,
            retry_period: self.leader_elect_retry_period,
            clock: system_clock(),
        });
        let port = self.secure_port.unwrap_or(default_port);
        let serving = match port {
            0 => None,
            port => {
                Some(serve::Serving::new(self, SocketAddr::new(self.bind_address, port), client.clone())?)
            }
        };
        Ok(Program { client, election, serving, patience: self.controller_shutdown_timeout })
    }

    /// Where the API server is and who this program is to it.
    pub fn https(&self) -> Result<HttpsConfig, ProgramError> {
        let mut config = https(self.kubeconfig.as_deref())?;
        if let Some(master) = &self.master {
            config.server.clone_from(master);
        }
        Ok(config)
    }
}

/// Where the API server is by a kubeconfig, or by the identity of the surrounding pod.
pub fn https(kubeconfig: Option<&Path>) -> Result<HttpsConfig, ProgramError> {
    let Some(path) = kubeconfig else { return Ok(HttpsConfig::in_cluster()?) };
    let read = Kubeconfig::load(path);
    let kubeconfig = read.map_err(|source| ProgramError::Kubeconfig { path: path.to_owned(), source })?;
    Ok(HttpsConfig::from_kubeconfig(&kubeconfig, None)?)
}

/// The host's name and something that no other candidate has.
fn identity() -> String {
    use std::hash::{BuildHasher, RandomState};
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{:016x}", host.trim(), RandomState::new().hash_one(std::process::id()))
}

impl Program {
    /// Serves health and metrics, waits to be elected, and runs `lead` until the stop or until the lease is lost.
    pub async fn run<F>(
        self,
        stop: &Stop,
        status: Arc<dyn Status>,
        lead: impl FnOnce(Client, Tasks) -> F,
    ) -> Result<(), ProgramError>
    where
        F: Future<Output = ()>,
    {
        let servers = Tasks::under(stop);
        if let Some(serving) = self.serving {
            serving.start(status, &servers).await?;
        }
        let (client, patience) = (self.client.clone(), self.patience);
        let work = |term: Stop| async move {
            let tasks = Tasks::under(&term);
            lead(client, tasks.clone()).await;
            term.requested().await;
            let late = tasks.drain(patience).await;
            if !late.is_empty() {
                warn!(tasks = ?late, "did not stop in time");
            }
        };
        match self.election {
            Some(election) => {
                if election.run(stop, work).await == Election::Lost {
                    info!("lost the lease, ending; whoever supervises this starts it again as a candidate");
                }
            }
            None => work(stop.child()).await,
        }
        servers.drain(patience).await;
        Ok(())
    }
}

fn no_sni(_: &str) -> Result<String, String> {
    Err("the secure port has one certificate: --tls-cert-file".to_owned())
}

/// Go's duration text: `1h15m`, `300ms`, `1.5s`.
pub fn go_duration(text: &str) -> Result<Duration, String> {
    let mut total = 0f64;
    let mut rest = text;
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    while !rest.is_empty() {
        let digits =
            rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit_end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(format!("{text:?} is not a duration such as 15s or 1m30s")),
        };
        let number: f64 =
            number.parse().map_err(|_| format!("{text:?} is not a duration such as 15s or 1m30s"))?;
        total += number * seconds;
        rest = next;
    }
    if text.is_empty() {
        return Err("a duration is missing".to_owned());
    }
    Duration::try_from_secs_f64(total).map_err(|_| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, millis) in
            [("15s", 15_000), ("1m30s", 90_000), ("300ms", 300), ("1.5h", 5_400_000), ("0", 0)]
        {
            assert_eq!(go_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "15", "s", "1x", "-1s", "99999999999999999999h"] {
            assert!(go_duration(text).is_err(), "{text}");
        }
    }
}
