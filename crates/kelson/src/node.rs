//! The node of a one-machine cluster: pod network and its policies, container runtime, kubelet, Service rules and DNS.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use apiserver::UserInfo;
use client::Client;
use container_runtime::Runtime;
use cri::RuntimeService;
use ipnet::{IpNet, Ipv4Net};
use kube_proxy::NodePortAddresses;
use lifecycle::Tasks;
use pki::ClusterPki;
use pki::table::names;
use pod_network::PodNetwork;
use rustix::mount::UnmountFlags;
use tracing::{error, warn};

use crate::up::checklist::Checklist;
use crate::up::cluster::DOMAIN;
use crate::up::place::{self, Place};
use crate::up::{Clients, Layout};

const DNS_PORT: u16 = 53;
/// How long pods may take to end when the cluster does.
const POD_DEADLINE: Duration = Duration::from_secs(30);
const STAGE_DEADLINE: Duration = Duration::from_secs(10);
/// A node that is not ready by then will not be; its log says why.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// What the node is told by the rest of the cluster.
pub struct Context<'a> {
    pub layout: Layout,
    pub place: Place,
    pub name: String,
    pub address: IpAddr,
    pub pki: &'a ClusterPki,
    pub clients: Clients<'a>,
}

/// A running node.
pub struct Node {
    name: String,
    runtime: Arc<Runtime>,
    tasks: Tasks,
}

/// The machine's name as Kubernetes wants it.
pub fn name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    let valid = |letter: char| if letter.is_ascii_alphanumeric() || letter == '.' { letter } else { '-' };
    let name: String = name.chars().map(valid).collect();
    let name = name.trim_matches(['-', '.']);
    if name.is_empty() { "kelson".to_owned() } else { name.to_owned() }
}

/// The address that this machine would use to speak to others, if it could; nothing is sent.
pub fn primary_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // An address reserved for documentation: only the routing table is asked.
    socket.connect((std::net::Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    Some(address).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
}

/// Any address that others might know this machine by: one without a route to others may still have one.
pub fn first_address() -> Option<IpAddr> {
    let addresses = netlink::route::Routing::open().ok()?.addresses().ok()?;
    let usable = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
    };
    let mut all: Vec<IpAddr> = addresses.into_iter().map(|(_, net)| net.addr()).filter(usable).collect();
    all.sort_by_key(IpAddr::is_ipv6);
    all.into_iter().next()
}

fn network_config(layout: &Layout, place: &Place) -> pod_network::Config {
    pod_network::Config {
        bridge: place.names.bridge.clone(),
        pod_cidr: IpNet::V4(place.ranges.first_node()),
        cluster_cidr: IpNet::V4(place.ranges.pods),
        service_cidr: Some(IpNet::V4(place.ranges.services)),
        state_dir: layout.network(),
        mtu: None,
    }
}

pub fn open_network(layout: &Layout, place: &Place) -> anyhow::Result<Arc<PodNetwork>> {
    PodNetwork::open(network_config(layout, place)).context("cannot set up the pod network")
}

/// What policies have in common on this node.
fn policy_frame(place: &Place) -> network_policy::Frame {
    let ranges = vec![IpNet::V4(place.ranges.first_node())];
    network_policy::Frame { table: place.names.policy_table.clone(), ranges }
}

async fn open_runtime(
    layout: &Layout,
    place: &Place,
    network: Arc<dyn cni::Network>,
) -> anyhow::Result<Arc<Runtime>> {
    let config = container_runtime::Config {
        root_dir: layout.images(),
        state_dir: layout.runtime(),
        cgroup_root: place.names.cgroup.clone(),
        network,
        shim_exe: std::env::current_exe().context("cannot find the kelson binary")?,
        version: crate::images::VERSION.to_owned(),
        additions: crate::images::built_in()?,
        registries: Default::default(),
    };
    Runtime::open(config).await.context("cannot start the container runtime")
}

impl Node {
    /// Starts everything that a node is and waits until the API says that it is Ready.
    pub async fn start(
        context: Context<'_>,
        network: Arc<PodNetwork>,
        list: &Checklist,
    ) -> anyhow::Result<Self> {
        let tasks = Tasks::new();
        let gateway = network.gateway();

        let frame = policy_frame(&context.place);
        let config = network_policy::Config { node_name: context.name.clone(), frame };
        let identity = UserInfo::service_account("kube-system", "network-policy");
        let client = (context.clients)(identity, "network-policy");
        let policies =
            network_policy::Policies::start(config, client, crate::pod_network::attached(&network), &tasks);

        let step = list.begin("container runtime");
        let guarded = Arc::new(network_policy::Guard::new(policies.clone(), network.clone()));
        let runtime = open_runtime(&context.layout, &context.place, guarded).await?;
        let pods =
            runtime.list_pod_sandboxes(&Default::default()).await.context("cannot list running pods")?;
        step.done(if pods.is_empty() { String::new() } else { format!("{} pods adopted", pods.len()) });

        let step = list.begin("service proxy");
        let proxy = kube_proxy::Config {
            table: context.place.names.service_table.clone(),
            cluster_cidr: Some(IpNet::V4(context.place.ranges.pods)),
            // Every address of the machine, loopback too: its user says `curl localhost:30080`.
            node_ports: NodePortAddresses::Ranges(vec![IpNet::V4(Ipv4Net::default())]),
            ..kube_proxy::Config::new(&context.name)
        };
        let client = (context.clients)(UserInfo::new("system:kube-proxy", &[]), "kube-proxy");
        tasks.spawn("kube-proxy", |stop| async move {
            if let Err(failure) = kube_proxy::run(proxy, client, stop).await {
                error!(error = %telemetry::chain(&failure), "the service proxy does not run");
            }
        });
        step.done("nftables");

        let step = list.begin("cluster dns");
        let client = (context.clients)(UserInfo::service_account("kube-system", "coredns"), "cluster-dns");
        let listen = vec![SocketAddr::new(gateway, DNS_PORT)];
        let dns = cluster_dns::Config {
            publish: Some(context.place.ranges.dns().into()),
            ..cluster_dns::Config::new(listen, DOMAIN, client)
        };
        tasks.spawn("cluster-dns", |stop| async move {
            if let Err(failure) = cluster_dns::run(dns, stop).await {
                error!(error = %telemetry::chain(&failure), "the cluster DNS does not run");
            }
        });
        step.done(context.place.ranges.dns().to_string());

        let step = list.begin("kubelet");
        let identity = UserInfo::new(format!("system:node:{}", context.name), &["system:nodes"]);
        let client = (context.clients)(identity, "kubelet");
        let config = kubelet_config(&context, client, runtime.clone())?;
        let kubelet = kubelet::start(config, &tasks).await.context("cannot start the kubelet")?;
        step.done(String::new());

        let step = list.begin("node ready");
        tokio::time::timeout(READY_DEADLINE, kubelet.ready()).await.with_context(|| {
            format!(
                "the node did not become ready within {} s; the log {} says why",
                READY_DEADLINE.as_secs(),
                context.layout.log().display()
            )
        })?;
        step.done(context.name.clone());
        Ok(Self { name: context.name, runtime, tasks })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Stops the node's components; with `pods`, what runs on it too.
    pub async fn stop(self, pods: bool) {
        let late = self.tasks.drain(STAGE_DEADLINE).await;
        if !late.is_empty() {
            warn!(tasks = ?late, "did not stop in time");
        }
        if pods && let Err(failure) = stop_all(&self.runtime).await {
            warn!(error = %telemetry::chain(&failure), "not all pods could be stopped");
        }
        self.runtime.close().await;
    }
}

fn kubelet_config(
    context: &Context<'_>,
    client: Client,
    runtime: Arc<Runtime>,
) -> anyhow::Result<kubelet::Config> {
    let serving = context.pki.pair(names::KUBELET_SERVING)?;
    let client_ca = context.pki.pair(names::CLIENT_CA)?.certificate_pem().into_bytes();
    let root = context.layout.kubelet();
    let mut config =
        kubelet::Config::new(&context.name, context.address, client, runtime.clone(), runtime, root);
    // The disk is the user's, not the node's: a tenth of it may be more than the whole cluster ever needs.
    for threshold in &mut config.eviction.thresholds {
        if threshold.signal.pressure() == kubelet::eviction::Pressure::Disk {
            threshold.below = kubelet::eviction::Amount::Share(1000);
        }
    }
    config.pod_logs_dir = context.layout.pod_logs();
    config.static_pod_path = Some(context.layout.static_pods());
    config.cluster_dns = vec![context.place.ranges.dns().to_string()];
    config.cluster_domain = DOMAIN.to_owned();
    config.pod_cidr = Some(context.place.ranges.first_node().to_string());
    config.listen = Some(SocketAddr::new(context.address, place::kubelet_port(context.address)?));
    config.serving = Some(kubelet::ServingCertificate {
        chain_pem: serving.certificate_pem().into_bytes(),
        key_pem: serving.key_pem().into_bytes(),
    });
    config.client_ca_pem = Some(client_ca);
    Ok(config)
}

async fn stop_all(runtime: &Arc<Runtime>) -> cri::Result<usize> {
    let sandboxes = runtime.list_pod_sandboxes(&Default::default()).await?;
    let mut stops = tokio::task::JoinSet::new();
    for sandbox in &sandboxes {
        let (runtime, id) = (runtime.clone(), sandbox.id.clone());
        stops.spawn(async move {
            let containers = cri::ContainerFilter { pod_sandbox_id: Some(id.clone()), ..Default::default() };
            for container in runtime.list_containers(&containers).await? {
                runtime.stop_container(&container.id, POD_DEADLINE).await?;
            }
            runtime.stop_pod_sandbox(&id).await?;
            runtime.remove_pod_sandbox(&id).await
        });
    }
    while let Some(stopped) = stops.join_next().await {
        if let Ok(outcome) = stopped {
            outcome?;
        }
    }
    Ok(sandboxes.len())
}

/// Stops what an earlier process left running; returns how many pods that were.
pub async fn stop_pods(layout: &Layout) -> anyhow::Result<usize> {
    if !crate::up::is_root() || !layout.runtime().exists() {
        return Ok(0);
    }
    let place = Place::kept(layout)?;
    let runtime = open_runtime(layout, &place, open_network(layout, &place)?).await?;
    let stopped = stop_all(&runtime).await.context("cannot stop all pods")?;
    runtime.close().await;
    Ok(stopped)
}

/// Removes every interface, rule, mount, process and control group that the node made, whatever state they are in. Each
/// step is tried even if another failed; the first failure is told.
pub async fn purge(layout: &Layout) -> anyhow::Result<()> {
    if !crate::up::is_root() || !(layout.network().exists() || layout.runtime().exists()) {
        return Ok(());
    }
    let place = Place::kept(layout)?;
    let containers = purge_containers(layout, &place).await.context("cannot remove the containers");
    let volumes = unmount_below(layout.root()).context("cannot unmount volumes");
    let rules =
        kube_proxy::remove_rules(&place.names.service_table).context("cannot remove the Service rules");
    let policies = network_policy::remove_rules(&place.names.policy_table)
        .context("cannot remove the network policy rules");
    let network =
        PodNetwork::remove(network_config(layout, &place), None).context("cannot remove the pod network");
    containers.and(volumes).and(rules).and(policies).and(network)
}

async fn purge_containers(layout: &Layout, place: &Place) -> anyhow::Result<()> {
    // A network that cannot be opened is removed all the same, with the links of the pods.
    let network: Arc<dyn cni::Network> = match open_network(layout, place) {
        Ok(network) => network,
        Err(failure) => {
            warn!(error = format!("{failure:#}"), "removing the containers without the pod network");
            Arc::new(cni::HostOnly)
        }
    };
    let runtime = open_runtime(layout, place, network).await?;
    let purged = runtime.purge().await;
    runtime.close().await;
    Ok(purged?)
}

/// Unmounts everything below a directory, the latest mount first.
fn unmount_below(root: &Path) -> std::io::Result<()> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    // Paths have their blanks escaped; a data directory with blanks in its path is told apart all the same.
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut below: Vec<PathBuf> = points.map(PathBuf::from).filter(|point| point.starts_with(root)).collect();
    below.reverse();
    let mut outcome = Ok(());
    for point in below {
        match rustix::mount::unmount(&point, UnmountFlags::DETACH) {
            // Gone with a mount above it.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => outcome = outcome.and(Err(error.into())),
        }
    }
    outcome
}

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
    }
}
