//! The node agent: runs the pods that the API server binds to this node, and those of a directory, on a container
//! runtime behind the CRI seam.
//!
//! ```text
//! api watch ─┐
//! manifests ─┴► pods ──► pod_worker ──► plan (pure) ──► actions: volumes · sandbox · start · kill · probes
//!                            ▲  └──► status (pure) ──► API server
//!    runtime events ─────────┘
//! node: registration, status, lease          server: logs, exec, attach, port-forward, stats
//! ```
//!
//! Reading order: [`pod`], [`plan`], [`status`], [`pod_worker`], [`start`], [`volumes`], [`pods`], [`node`], [`server`].
//!
//! What stays true: what runs in the runtime is the truth and survives us; a restart adopts it by labels and changes
//! nothing. A server that cannot be reached stops no container. Deciding is pure; only workers act, each on its own pod.

pub mod admission;
pub mod args;

mod backoff;
mod beneath;
mod certificates;
mod config;
mod dns;
mod downward;
mod environment;
mod events;
pub mod eviction;
mod groups;
mod handlers;
mod healthz;
mod hooks;
mod host;
mod images;
mod inotify;
mod labels;
mod log_rotation;
mod machine;
mod messages;
pub mod node;
pub mod plan;
pub mod pod;
mod pod_worker;
mod pods;
mod probes;
mod qos;
mod quantity;
mod resize;
mod resources;
mod security;
pub mod server;
mod standalone;
mod start;
pub mod state;
mod static_pods;
pub mod status;
mod userns;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use client::{Informer, ListOptions};
use controller_runtime::Recorder;
use lifecycle::Tasks;
use thiserror::Error;
use tokio::sync::watch;
use tracing::info;

pub use args::{ArgsError, KubeletArgs, Settings};
pub use config::{Authorization, Config, ServingCertificate, Taint};
pub use images::{ImageSettings, Verification};
pub use pods::Pods;
pub use static_pods::{ManifestError, parse as parse_static_pod};

use events::Events;
use host::Host;
use machine::Machine;
use node::{Known, NodeStatus};
use volumes::{Objects, Volumes};

/// Why a kubelet does not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot create {path}")]
    Directory {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the container runtime does not answer")]
    Runtime(#[source] cri::Error),
    #[error("cannot serve healthz on {address}")]
    Healthz {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Server(#[from] server::ServerError),
}

/// A running kubelet.
pub struct Kubelet {
    known: watch::Receiver<Known>,
    pods: Arc<Pods>,
    address: Option<std::net::SocketAddr>,
}

impl Kubelet {
    /// Resolves once the API server has the node as Ready.
    pub async fn ready(&self) {
        // The sender lives as long as the node's task; if it is gone, nobody waits for readiness any more.
        let _ = self.known.clone().wait_for(|known| known.ready).await;
    }

    /// Where the HTTPS server listens.
    pub fn address(&self) -> Option<std::net::SocketAddr> {
        self.address
    }

    /// The node's pods.
    pub fn pods(&self) -> &Arc<Pods> {
        &self.pods
    }
}

/// Starts a kubelet; everything it does runs on `tasks` and ends with it, the pods excepted.
pub async fn start(config: Config, tasks: &Tasks) -> Result<Kubelet, StartError> {
    for path in [&config.root_dir, &config.pod_logs_dir] {
        std::fs::create_dir_all(path)
            .map_err(|source| StartError::Directory { path: path.clone(), source })?;
    }
    if let Some(certificates) = config.certificates.clone() {
        certificates.start(tasks);
    }
    let version = config.runtime.version().await.map_err(StartError::Runtime)?;
    let client = config.client.clone();
    let recorder = Recorder::start(client.clone(), "kubelet", controller_runtime::system_clock(), tasks)
        .on_host(config.node_name.clone());
    let objects = Arc::new(Objects::new(client.clone(), tasks.clone()));
    let services = (!config.standalone)
        .then(|| Informer::start(&client, &client::resources::SERVICES, "", ListOptions::default(), tasks));
    let host = Arc::new(Host {
        machine: Machine::read(),
        groups: config.pod_cgroups.as_deref().map(groups::PodGroups::new),
        runtime_name: version.runtime_name.clone(),
        volumes: Volumes::new(&config.root_dir, client.clone(), objects),
        events: Events::new(recorder),
        images: images::Images::new(config.images.clone(), &config.image_settings, config.root_dir.clone()),
        services,
        config,
    });

    let (pressures, short) = watch::channel(Vec::new());
    let (node, views, known) = NodeStatus::new(host.clone(), &version, short.clone());
    let pods = Pods::new(host.clone(), tasks.clone(), views, short);
    healthz::start(&host, tasks).await?;
    if host.config.standalone {
        info!("standalone: no API server, only the pods of manifests");
    } else {
        tasks.spawn("kubelet/node", |stop| node.run(stop));
        let (host, known) = (host.clone(), known.clone());
        tasks.spawn("kubelet/lease", |stop| node::renew(host, known, stop));
    }
    {
        let pods = pods.clone();
        tasks.keep("kubelet/runtime-events", move |stop| pods.clone().follow_runtime(stop));
    }
    {
        let (host, pods) = (host.clone(), pods.clone());
        tasks.keep("kubelet/log-rotation", move |stop| log_rotation::run(host.clone(), pods.clone(), stop));
    }
    {
        let (host, pods) = (host.clone(), pods.clone());
        tasks.keep("kubelet/image-gc", move |stop| images::collect::run(host.clone(), pods.clone(), stop));
    }
    {
        let (host, pods) = (host.clone(), pods.clone());
        tasks.keep("kubelet/eviction", move |stop| {
            eviction::run(host.clone(), pods.clone(), pressures.clone(), stop)
        });
    }
    let listener = server::start(&host, &pods, tasks).await?;
    let mut sources_known = true;
    if let Some(dir) = host.config.static_pod_path.clone() {
        let (host, pods) = (host.clone(), pods.clone());
        let mut found = static_pods::Known::new();
        sources_known = static_pods::load(&host, &pods, &dir, &mut found);
        tasks.spawn("kubelet/static-pods", |stop| static_pods::follow(host, pods, dir, found, stop));
    }
    if host.config.standalone {
        pods.sources_are_known();
        if sources_known {
            pods.remove_orphans().await;
        }
        return Ok(Kubelet { known, pods, address: listener });
    }
    if host.config.static_pod_path.is_some() {
        let (host, pods, known) = (host.clone(), pods.clone(), known.clone());
        tasks.spawn("kubelet/mirrors", move |stop| {
            let uid = async move || node::uid_of(known.clone()).await;
            static_pods::mirror(host, pods, uid, stop)
        });
    }
    {
        let (host, pods) = (host.clone(), pods.clone());
        tasks.spawn("kubelet/pods", |stop| async move {
            // Variables of services are set when a container starts: better a moment later than without them.
            if let Some(services) = &host.services
                && stop.or(tokio::time::timeout(Duration::from_secs(5), services.synced())).await.is_none()
            {
                return;
            }
            let informer = pods.follow_api();
            if stop.or(informer.synced()).await.is_none() {
                return;
            }
            pods.sources_are_known();
            if sources_known {
                pods.remove_orphans().await;
            }
        });
    }
    Ok(Kubelet { known, pods, address: listener })
}
