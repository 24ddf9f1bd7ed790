//! `kelson container-runtime`: the runtime as a program of its own, for any kubelet that speaks CRI v1.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use container_runtime::Runtime;
use container_runtime::image::registry::Registries;
use cri::server::CriServer;
use cri_streaming::urls::Urls;
use ipnet::IpNet;
use lifecycle::{Stop, Tasks};
use pod_network::PodNetwork;
use tracing::{info, warn};

const DRAIN: Duration = Duration::from_secs(10);

/// Runs the container runtime alone, as a CRI v1 server.
#[derive(Debug, Args)]
pub struct ContainerRuntimeArgs {
    /// The socket to serve, as a kubelet's --container-runtime-endpoint names it
    #[arg(long, default_value = "unix:///run/kelson/cri.sock")]
    listen: String,
    /// Where images and containers are kept
    #[arg(long, default_value = "/var/lib/kelson/containers")]
    root_dir: PathBuf,
    /// Where what describes the running pods is kept
    #[arg(long, default_value = "/run/kelson/containers")]
    state_dir: PathBuf,
    /// The cgroup below which everything is put
    #[arg(long, default_value = "")]
    cgroup_root: String,
    /// Where the pod network is configured: the first usable CNI configuration by name
    #[arg(long, default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Where the CNI plug-ins are that the configuration names
    #[arg(long, value_delimiter = ',', default_value = "/opt/cni/bin")]
    cni_bin_dir: Vec<PathBuf>,
    /// The pod addresses of this node, for the built-in network in the place of CNI plug-ins
    #[arg(long)]
    pod_cidr: Option<IpNet>,
    /// All pods' addresses, if not only those of this node
    #[arg(long, requires = "pod_cidr")]
    cluster_cidr: Option<IpNet>,
    /// The name of the device with the gateway's address
    #[arg(long, default_value = "kelson-cri0", requires = "pod_cidr")]
    bridge: String,
}

impl ContainerRuntimeArgs {
    fn network(&self) -> anyhow::Result<Arc<dyn cni::Network>> {
        let Some(pod_cidr) = self.pod_cidr else {
            return Ok(Arc::new(cni::Plugins::new(cni::PluginsConfig {
                conf_dir: self.cni_conf_dir.clone(),
                bin_dirs: self.cni_bin_dir.clone(),
                cache_dir: self.state_dir.join("cni"),
            })));
        };
        if matches!(pod_cidr.addr(), IpAddr::V6(_)) {
            bail!("--pod-cidr {pod_cidr}: only IPv4 is supported");
        }
        let network = PodNetwork::open(pod_network::Config {
            bridge: self.bridge.clone(),
            pod_cidr,
            cluster_cidr: self.cluster_cidr.unwrap_or(pod_cidr),
            service_cidr: None,
            state_dir: self.state_dir.join("network"),
            mtu: None,
        });
        Ok(network.context("cannot set up the pod network")?)
    }

    pub async fn run(self, stop: Stop) -> anyhow::Result<()> {
        let Some(socket) = self.listen.strip_prefix("unix://").map(PathBuf::from) else {
            bail!("--listen {}: only unix:// is supported", self.listen);
        };
        let network = self.network()?;
        let runtime = Runtime::open(container_runtime::Config {
            root_dir: self.root_dir,
            state_dir: self.state_dir.join("pods"),
            cgroup_root: self.cgroup_root,
            network,
            shim_exe: std::env::current_exe().context("cannot find the kelson binary")?,
            version: crate::images::VERSION.to_owned(),
            additions: crate::images::built_in()?,
            registries: Registries::default(),
        })
        .await
        .context("cannot start the container runtime")?;
        let tasks = Tasks::under(&stop);
        let streams = Urls::start(runtime.clone(), &tasks).await.context("cannot listen for streams")?;
        if let Some(directory) = socket.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let listener = grpc::server::bind(&socket)
            .await
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let server = Arc::new(CriServer { runtime: runtime.clone(), images: runtime.clone(), streams });
        info!(socket = %socket.display(), "serving CRI v1");
        grpc::server::serve(listener, server, tasks.clone(), stop).await;
        let late = tasks.drain(DRAIN).await;
        if !late.is_empty() {
            warn!(tasks = ?late, "did not stop in time");
        }
        // Pods stay: a restart of the runtime is no reason to end them.
        runtime.close().await;
        Ok(())
    }
}
