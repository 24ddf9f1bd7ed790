//! `kelson up`: a whole cluster in this process.
//!
//! [`preflight`] looks before anything is made, [`cluster`] starts the components in order, [`checklist`] shows
//! it, and this file decides what the process does until it is told to stop. How it stops depends on who asks:
//! Ctrl-C ends the cluster with its pods; SIGTERM (a service manager, an upgrade) ends only this process and
//! leaves the pods running for the next `up` to adopt, as a crash would.

mod addons;
pub mod checklist;
pub mod cluster;
mod detach;
mod layout;
pub mod place;
mod preflight;
mod safety;
mod transport;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::instance::{Claim, Instance};
use checklist::{Checklist, Progress};
use cluster::Cluster;
pub use layout::Layout;
pub use transport::Clients;

/// Where a cluster's data is; the same flag for every command that works on it.
#[derive(Args, Clone, Debug)]
pub struct DataDir {
    /// Where the cluster keeps its data [default: /var/lib/kelson, or ~/.local/share/kelson without root]
    #[arg(long, env = "KELSON_DATA_DIR", global = true)]
    data_dir: Option<PathBuf>,
}

impl DataDir {
    pub fn layout(&self) -> Layout {
        let home = std::env::home_dir();
        let root = self.data_dir.clone().unwrap_or_else(|| Layout::default_root(is_root(), home));
        Layout::new(std::path::absolute(&root).unwrap_or(root))
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Starts a cluster and runs it until it is stopped.
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    #[command(flatten)]
    data: DataDir,
    /// Where the API is served
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "IP:PORT")]
    bind: SocketAddr,
    /// Also write the admin kubeconfig to this file
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Addresses for Services of type LoadBalancer: `192.0.2.0/28` or `192.0.2.5-192.0.2.9`; may be given more than once
    #[arg(long, value_name = "RANGE", value_delimiter = ',')]
    load_balancer_pool: Vec<cloud_controller_manager::local::Range>,
    /// Addresses of pods, chosen when the cluster is made [default: 10.128.0.0/14, or the next that this host does not use]
    #[arg(long, value_name = "CIDR")]
    pod_cidr: Option<ipnet::Ipv4Net>,
    /// Addresses of Services, chosen when the cluster is made [default: 172.30.0.0/16, or the next that this host does not use]
    #[arg(long, value_name = "CIDR")]
    service_cidr: Option<ipnet::Ipv4Net>,
    /// Run no node: only store, API server, controllers and scheduler. Needs no root
    #[arg(long)]
    control_plane_only: bool,
    /// Keep no account of who did what (audit/audit.log in the data directory)
    #[arg(long)]
    no_audit: bool,
    /// Store Secrets as they are, not encrypted with the key in the data directory
    #[arg(long)]
    no_secret_encryption: bool,
    /// Return as soon as the cluster is ready and leave it running
    #[arg(long)]
    detach: bool,
    /// What to log, such as `info` or `warn,kubelet=debug`
    #[arg(long, env = "KELSON_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
    /// Tell the progress as JSON lines, for the parent of a detached start
    #[arg(long, hide = true)]
    report: bool,
}

/// Why the process was asked to end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Farewell {
    /// The user is done with the cluster: its pods end too.
    WithPods,
    /// Only this process ends; the pods go on.
    LeavePods,
}

impl UpArgs {
    pub fn run(self) -> anyhow::Result<()> {
        let layout = self.data.layout();
        if self.detach {
            return detach::start(&self, &layout);
        }
        let list = if self.report { Checklist::Json } else { Checklist::for_stdout() };
        let outcome = self.run_here(&layout, &list);
        if let Err(error) = &outcome {
            list.tell(&Progress::Failed { message: format!("{error:#}") });
        }
        outcome
    }

    fn run_here(&self, layout: &Layout, list: &Checklist) -> anyhow::Result<()> {
        let claim = Claim::take(layout)?;
        telemetry::log_to_file(&layout.log(), &self.log)
            .with_context(|| format!("cannot write the log {}", layout.log().display()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .context("cannot start the asynchronous runtime")?;
        runtime.block_on(self.serve(layout, &claim, list))
    }

    async fn serve(&self, layout: &Layout, claim: &Claim, list: &Checklist) -> anyhow::Result<()> {
        let began = Instant::now();
        // Asked for before anything starts, so that a signal during the start is not lost.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let cluster = Cluster::start(self, layout, list);
        let cluster = tokio::select! {
            started = cluster => started?,
            // What was started so far ends with the process, like after a crash; the next start goes on from there.
            _ = interrupt.recv() => anyhow::bail!("interrupted"),
            _ = terminate.recv() => anyhow::bail!("terminated"),
        };
        let kubeconfig = cluster.write_kubeconfigs(layout, self.kubeconfig.as_deref())?;
        claim.announce(&Instance {
            pid: rustix::process::getpid().as_raw_nonzero().get(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: jiff::Timestamp::now(),
            api: cluster.api_address(),
            kubeconfig: kubeconfig.clone(),
            node: cluster.node_name().map(str::to_owned),
        })?;
        info!(took = ?began.elapsed(), "cluster is up");
        list.tell(&Progress::Ready { kubeconfig: kubeconfig.display().to_string(), took: began.elapsed() });
        let farewell = tokio::select! {
            _ = interrupt.recv() => Farewell::WithPods,
            _ = terminate.recv() => Farewell::LeavePods,
            never = crate::memory::settle() => match never {},
        };
        tokio::select! {
            () = cluster.stop(farewell) => Ok(()),
            _ = interrupt.recv() => anyhow::bail!("interrupted again while stopping; the next start adopts what still runs"),
        }
    }
}
