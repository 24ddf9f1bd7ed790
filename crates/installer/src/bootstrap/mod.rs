//! What the bootstrap machine does besides running pods: gives the API every manifest, approves machines that join, and
//! says when it is no longer needed. Units call these commands directly, so a machine needs no shell.
//!
//! Each can be stopped at any instant and run again: what is done leaves a mark in the asset directory.

pub mod approve;
pub mod bootkube;
pub mod cause;
pub mod cluster_bootstrap;
pub mod manifests;
pub mod node_ip;
pub mod progress;
pub mod records;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use client::{Client, Https, HttpsConfig};
use thiserror::Error;
use tokio::time::Instant;

/// Why a command of the bootstrap machine failed.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum BootstrapError {
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot {operation} {}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} is not a manifest: {reason}", path.display())]
    Manifest { path: PathBuf, reason: String },
    #[error("{what}: not within {} s; last seen: {seen}", limit.as_secs())]
    Late { what: String, limit: Duration, seen: String },
    #[error("no interface has {0}; check nodes.yaml and the network of this machine")]
    NoAddress(std::net::IpAddr),
    #[error("{name} cannot be resolved: {reason}")]
    Name { name: String, reason: String },
    #[error("{0:?} is not NAMESPACE/NAME")]
    RequiredPod(String),
}

fn at<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> BootstrapError + 'a {
    move |source| BootstrapError::Io { operation, path: path.to_owned(), source }
}

/// Where the API is and where the assets are.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Who asks the API
    #[arg(long, env = "KUBECONFIG", default_value = "/etc/kubernetes/kubeconfigs/localhost.kubeconfig")]
    pub kubeconfig: PathBuf,
    /// Manifests, and marks of what is done
    #[arg(long, env = "ASSET_DIR", default_value = "/opt/openshift")]
    pub asset_dir: PathBuf,
}

impl MachineArgs {
    /// A client of the API.
    pub fn client(&self, agent: &'static str) -> Result<Client, BootstrapError> {
        connect(&self.kubeconfig, agent)
    }

    fn is_done(&self) -> bool {
        self.asset_dir.join(".bootkube.done").exists()
    }
}

/// A client for a kubeconfig.
pub fn connect(path: &Path, agent: &'static str) -> Result<Client, BootstrapError> {
    let fail = |source: Box<dyn std::error::Error + Send + Sync>| BootstrapError::Kubeconfig {
        path: path.to_owned(),
        source,
    };
    let kubeconfig = pki::Kubeconfig::load(path).map_err(|error| fail(error.into()))?;
    let config = HttpsConfig::from_kubeconfig(&kubeconfig, None).map_err(|error| fail(error.into()))?;
    Ok(Client::new(Https::new(config).map_err(|error| fail(error.into()))?, agent))
}

/// What the bootstrap machine's units run
#[derive(Debug, Args)]
pub struct BootstrapArgs {
    #[command(subcommand)]
    command: BootstrapCommand,
}

#[derive(Debug, Subcommand)]
enum BootstrapCommand {
    /// Brings the control plane from this machine to the masters
    Bootkube(bootkube::BootkubeArgs),
    /// Approves what kubelets ask for until the cluster stands
    ApproveCsr(MachineArgs),
    /// Says, through a ConfigMap, when the masters carry the cluster
    Progress(progress::ProgressArgs),
}

impl BootstrapArgs {
    /// Does it.
    pub async fn run(self) -> Result<(), BootstrapError> {
        match self.command {
            BootstrapCommand::Bootkube(args) => args.run().await,
            BootstrapCommand::ApproveCsr(args) => approve::run(&args).await,
            BootstrapCommand::Progress(args) => args.run().await,
        }
    }
}

/// Asks again and again until there is an answer; what is seen meanwhile is said whenever it changes.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut ask: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, BootstrapError> {
    let end = Instant::now() + limit;
    let mut last = String::new();
    loop {
        let seen = match ask().await {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if seen != last {
            println!("{what}: {seen}");
            last = seen;
        }
        if Instant::now() >= end {
            return Err(BootstrapError::Late { what: what.to_owned(), limit, seen: last });
        }
        tokio::time::sleep(pause).await;
    }
}

/// Waits until the API says that it is ready.
pub async fn wait_for_api(client: &Client, limit: Duration) -> Result<(), BootstrapError> {
    until("waiting for the API server", limit, Duration::from_millis(250), async || {
        let request = http::Request::get("/readyz").body(bytes::Bytes::new());
        let request = request.map_err(|error| error.to_string())?;
        match client.raw(request).await {
            Ok(answer) if answer.status().is_success() => Ok(()),
            Ok(answer) => Err(format!("/readyz answers {}", answer.status())),
            Err(error) => Err(error_text(&error)),
        }
    })
    .await
}

/// An error with its causes.
pub fn error_text(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        out.push_str(&format!(": {source}"));
        next = source.source();
    }
    out
}
