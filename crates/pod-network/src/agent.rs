//! The pod network of a node as a program: what the network operator's DaemonSet runs on every node.
//!
//! It waits until its Node has a range of pod addresses, makes the network of it, serves the CNI plug-in on a socket, follows
//! the other Nodes, and only then puts the plug-in and its configuration where the runtime finds them. When it ends, the
//! network stays; the next one finds leases, links and routes and goes on.

use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::client::resources::NODES;
use ::client::{Client, Https, HttpsConfig, HttpsError, Informer, ListOptions};
use clap::{Args, Subcommand};
use cni::{Network, PodRef};
use ipnet::IpNet;
use lifecycle::{Stop, Tasks};
use netlink::route::Routing;
use pki::{Kubeconfig, PkiError};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::sync::{Notify, Semaphore};
use tracing::{debug, info, warn};

use crate::nodes::{Node, peers};
use crate::overlay::{self, OVERHEAD};
use crate::socket::{self, Answer, Request};
use crate::{Config, NetworkError, PodNetwork, install};

const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How many pods are connected at a time; the runtime's others wait.
const MOST_REQUESTS: usize = 32;
const DRAIN: Duration = Duration::from_secs(5);
/// Smaller packets than these no network of today has, and IPv6 may not.
const SMALLEST_MTU: u32 = 1280;
/// How often it says what it waits for.
const REMINDER: Duration = Duration::from_secs(30);

/// Connects the pods of a node with each other and with those of other nodes.
#[derive(Args, Debug)]
pub struct PodNetworkArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes this node's pod network, keeps it, and puts its CNI configuration in place
    Agent(Box<AgentArgs>),
    /// Asks the agent of this node whether pods can be connected
    Status {
        /// Where the agent listens
        #[arg(long, default_value = SOCKET)]
        socket: PathBuf,
    },
}

const SOCKET: &str = "/run/kelson-pod-network/cni.sock";

/// How the agent works.
#[derive(Args, Clone, Debug)]
pub struct AgentArgs {
    /// This node's name
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// How to reach the API server; without it as the pod's service account
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// All pods' addresses
    #[arg(long)]
    pub cluster_cidr: IpNet,
    /// Service addresses
    #[arg(long)]
    pub service_cidr: Option<IpNet>,
    /// The device with the gateway's address
    #[arg(long, default_value = "kelson0")]
    pub bridge: String,
    /// Largest packet of pods [default: that of the link with the node's address, less what the tunnel needs]
    #[arg(long)]
    pub mtu: Option<u32>,
    /// Reach nodes on the same network by plain routes, without the tunnel
    #[arg(long)]
    pub direct_routing: bool,
    /// The tunnel's network identifier, the same on all nodes
    #[arg(long, default_value_t = 4096)]
    pub vxlan_id: u32,
    /// The tunnel's UDP port, the same on all nodes
    #[arg(long, default_value_t = 4789)]
    pub vxlan_port: u16,
    /// Where leases are kept
    #[arg(long, default_value = "/var/lib/kelson-pod-network")]
    pub state_dir: PathBuf,
    /// Where the plug-in finds the agent
    #[arg(long, default_value = SOCKET)]
    pub socket: PathBuf,
    /// Where the runtime looks for CNI configurations
    #[arg(long, default_value = "/host/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,
    /// Where the runtime looks for CNI plug-ins
    #[arg(long, default_value = "/host/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,
    /// The configuration's file name; the runtime takes the first by name
    #[arg(long, default_value = "10-kelson.conflist")]
    pub cni_conf_name: String,
}

/// Why the agent could not start, or had to end.
#[derive(Debug, Error)]
pub enum AgentError {
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        path: PathBuf,
        #[source]
        source: PkiError,
    },
    #[error("cannot reach the API server")]
    Https(#[from] HttpsError),
    #[error("node {node} has pod ranges, but none of IPv4: only IPv4 pod networks are made")]
    Family { node: String },
    #[error("this machine has no link with the address {address} of node {node}")]
    NoLink { node: String, address: IpAddr },
    #[error("packets of {mtu} bytes are too small for a pod network: at least {SMALLEST_MTU} are needed")]
    Mtu { mtu: u32 },
    #[error("the pod range of node {node} is {new} now, it was {old}: starting anew")]
    RangeChanged { node: String, old: IpNet, new: IpNet },
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot {doing} {path}")]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("pods cannot be connected: {0}")]
    NotReady(String),
}

impl PodNetworkArgs {
    /// Runs the command. `guard` makes of the network what pods are connected by.
    pub async fn run(self, stop: Stop, guard: impl Guard) -> Result<(), AgentError> {
        match self.command {
            Command::Agent(args) => {
                telemetry::log_to_stderr("info");
                let config = match &args.kubeconfig {
                    Some(path) => {
                        let read = Kubeconfig::load(path);
                        let read =
                            read.map_err(|source| AgentError::Kubeconfig { path: path.clone(), source })?;
                        HttpsConfig::from_kubeconfig(&read, None)?
                    }
                    None => HttpsConfig::in_cluster()?,
                };
                run(*args, Client::new(Https::new(config)?, "pod-network"), stop, guard).await
            }
            Command::Status { socket } => match socket::ask(&socket, &Request::Status, None) {
                Ok(Answer::Done) => Ok(()),
                Ok(Answer::Failed { message, .. }) => Err(AgentError::NotReady(message)),
                Ok(other) => Err(AgentError::NotReady(format!("the agent answers {other:?}"))),
                Err(source) => Err(AgentError::File { doing: "ask the agent on", path: socket, source }),
            },
        }
    }
}

/// What stands between pods and the network, such as policies; made by whoever knows both.
pub trait Guard: FnOnce(Guarded<'_>) -> Arc<dyn Network> + Send {}

impl<F: FnOnce(Guarded<'_>) -> Arc<dyn Network> + Send> Guard for F {}

/// What a guard is made of.
pub struct Guarded<'a> {
    pub network: Arc<PodNetwork>,
    pub args: &'a AgentArgs,
    pub pod_cidr: IpNet,
    pub client: Client,
    pub tasks: &'a Tasks,
}

/// Runs the agent until the stop.
pub async fn run(args: AgentArgs, client: Client, stop: Stop, guard: impl Guard) -> Result<(), AgentError> {
    let tasks = Tasks::under(&stop);
    let outcome = work(&args, client, &tasks, &stop, guard).await;
    let late = tasks.drain(DRAIN).await;
    if !late.is_empty() {
        warn!(tasks = ?late, "did not stop in time");
    }
    outcome
}

async fn work(
    args: &AgentArgs,
    client: Client,
    tasks: &Tasks,
    stop: &Stop,
    guard: impl Guard,
) -> Result<(), AgentError> {
    let nodes = Informer::<Node>::start(&client, &NODES, "", ListOptions::default(), tasks);
    let bell = Arc::new(Notify::new());
    let ring = bell.clone();
    nodes.on_change(move |change| {
        let peer = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| node.peer());
        if peer(&change.old) != peer(&change.new) {
            ring.notify_one();
        }
    });
    if stop.or(nodes.synced()).await.is_none() {
        return Ok(());
    }
    let Some(own) = stop.or(own_node(&nodes, &args.node_name, &bell)).await else { return Ok(()) };
    let own = own?;
    let network = blocking(args, own.clone(), open).await?;
    let listener = listen(&args.socket)?;
    let guarded = guard(Guarded { network: network.clone(), args, pod_cidr: own.pod_cidr, client, tasks });
    let served = Served { network: network.clone(), guarded };
    let conversations = tasks.clone();
    tasks.spawn("pod-network/cni", move |stop| async move {
        stop.or(serve(listener, served, conversations)).await;
    });
    let mut is_installed = false;
    loop {
        let all = nodes.list();
        let now =
            all.iter().find(|node| *node.metadata.name == *args.node_name).and_then(|node| node.pod_cidr());
        if let Some(new) = now.filter(|new| *new != own.pod_cidr) {
            return Err(AgentError::RangeChanged { node: args.node_name.clone(), old: own.pod_cidr, new });
        }
        let wanted = peers(all.iter().map(AsRef::as_ref), &args.node_name);
        let count = wanted.len();
        let target = network.clone();
        let outcome = tokio::task::spawn_blocking(move || target.set_peers(&wanted)).await;
        let failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(telemetry::chain(&error).to_string()),
            Err(error) => Some(error.to_string()),
        };
        if failure.is_none() && !is_installed {
            blocking(args, own.clone(), |args, _| install_all(args)).await?;
            is_installed = true;
        }
        let wait = async {
            match failure {
                None => {
                    info!(peers = count, "pod network is in step");
                    bell.notified().await;
                }
                Some(error) => {
                    warn!(error, "routes to other nodes cannot be changed, will retry");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        };
        if stop.or(wait).await.is_none() {
            return Ok(());
        }
    }
}

/// What the agent needs to know of its own Node.
#[derive(Clone, Debug)]
struct Own {
    pod_cidr: IpNet,
    address: IpAddr,
}

/// Waits until the own Node has a range and an address.
async fn own_node(nodes: &Informer<Node>, name: &str, bell: &Notify) -> Result<Own, AgentError> {
    loop {
        let node = nodes.list().into_iter().find(|node| *node.metadata.name == *name);
        let missing = match &node {
            None => "there is no such node",
            Some(node) if node.has_other_ranges() => {
                return Err(AgentError::Family { node: name.to_owned() });
            }
            Some(node) => match (node.pod_cidr(), node.address()) {
                (Some(pod_cidr), Some(address)) => return Ok(Own { pod_cidr, address }),
                (None, _) => "it has no spec.podCIDRs",
                (_, None) => "it has no InternalIP",
            },
        };
        info!(node = name, missing, "waiting for the node's range of pod addresses");
        let _ = tokio::time::timeout(REMINDER, bell.notified()).await; // a reminder is as good as a change
    }
}

/// Does what may wait for the kernel or the disk where it holds nobody up.
async fn blocking<T: Send + 'static>(
    args: &AgentArgs,
    own: Own,
    work: impl FnOnce(&AgentArgs, &Own) -> Result<T, AgentError> + Send + 'static,
) -> Result<T, AgentError> {
    let args = args.clone();
    let outcome = tokio::task::spawn_blocking(move || work(&args, &own)).await;
    outcome.unwrap_or_else(|error| Err(AgentError::NotReady(error.to_string())))
}

fn open(args: &AgentArgs, own: &Own) -> Result<Arc<PodNetwork>, AgentError> {
    let mtu = match args.mtu {
        Some(mtu) => mtu,
        None => path_mtu(&args.node_name, own.address)?.saturating_sub(OVERHEAD),
    };
    if mtu < SMALLEST_MTU {
        return Err(AgentError::Mtu { mtu });
    }
    let config = Config {
        bridge: args.bridge.clone(),
        pod_cidr: own.pod_cidr,
        cluster_cidr: args.cluster_cidr,
        service_cidr: args.service_cidr,
        state_dir: args.state_dir.clone(),
        mtu: Some(mtu),
    };
    let tunnel = overlay::Config {
        id: args.vxlan_id,
        port: args.vxlan_port,
        direct_routing: args.direct_routing,
        ..overlay::Config::new(own.address)
    };
    Ok(PodNetwork::open_joined(config, Some(tunnel))?)
}

/// The largest packet of the link that has the node's address.
fn path_mtu(node: &str, address: IpAddr) -> Result<u32, AgentError> {
    let look = |source| NetworkError::Kernel { doing: "links cannot be listed", source };
    let routing = Routing::open().map_err(look)?;
    let addresses = routing.addresses().map_err(look)?;
    let index = addresses.iter().find(|(_, net)| net.addr() == address).map(|(index, _)| *index);
    let links = routing.links().map_err(look)?;
    let link = links.iter().find(|link| Some(link.index) == index);
    link.map(|link| link.mtu).ok_or_else(|| AgentError::NoLink { node: node.to_owned(), address })
}

fn install_all(args: &AgentArgs) -> Result<(), AgentError> {
    let file = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| AgentError::File { doing, path, source }
    };
    install::plugin(&args.cni_bin_dir).map_err(file("put the plug-in into", &args.cni_bin_dir))?;
    install::configuration(&args.cni_conf_dir, &args.cni_conf_name, &args.socket)
        .map_err(file("write the CNI configuration to", &args.cni_conf_dir))?;
    info!(directory = %args.cni_conf_dir.display(), "CNI configuration is in place");
    Ok(())
}

/// A socket in a directory that only root may enter.
fn listen(path: &Path) -> Result<UnixListener, AgentError> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    let failed = |source| AgentError::File { doing: "listen on", path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {} // of the agent before this one
    }
    UnixListener::bind(path).map_err(failed)
}

/// The network, and what stands before it.
#[derive(Clone)]
struct Served {
    network: Arc<PodNetwork>,
    guarded: Arc<dyn Network>,
}

async fn serve(listener: UnixListener, network: Served, tasks: Tasks) {
    let room = Arc::new(Semaphore::new(MOST_REQUESTS));
    loop {
        // Never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "cannot accept a plug-in's connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let network = network.clone();
        // A plug-in that was cut off asks again; what was done for it stays and is found.
        tasks.spawn("pod-network/request", move |_| async move {
            let _permit = permit;
            let Ok(stream) = stream.into_std() else { return };
            if let Err(error) = converse(stream, &network).await {
                debug!(%error, "a plug-in left before it had its answer");
            }
        });
    }
}

async fn converse(stream: UnixStream, network: &Served) -> std::io::Result<()> {
    let (stream, request, netns) = tokio::task::spawn_blocking(move || {
        let (request, netns) = socket::receive(&stream)?;
        Ok::<_, std::io::Error>((stream, request, netns))
    })
    .await
    .map_err(std::io::Error::other)??;
    let at = netns.as_ref().map(|fd| PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())));
    let answer = decide(network, request, at).await;
    tokio::task::spawn_blocking(move || socket::answer(&stream, &answer))
        .await
        .map_err(std::io::Error::other)?
}

async fn decide(served: &Served, request: Request, netns: Option<PathBuf>) -> Answer {
    let network = &served.guarded;
    let with = |pod: PodRef| PodRef { netns: netns.clone().unwrap_or_default(), ..pod };
    let failed = |error: cni::Error| {
        let code = match &error {
            cni::Error::NotReady { .. } => 50,
            cni::Error::Invalid { .. } => 4,
            cni::Error::Exhausted { .. } => 11,
            _ => 100,
        };
        Answer::Failed { code, message: telemetry::chain(&error).to_string() }
    };
    let attached = |id: &str, attachment| {
        let lease = served.network.leases().into_iter().find(|lease| lease.sandbox_id == id);
        Answer::Attached { attachment, link: lease.map(|lease| lease.link).unwrap_or_default() }
    };
    match request {
        Request::Add(_) if netns.is_none() => {
            Answer::Failed { code: 4, message: "the pod's network namespace is missing".to_owned() }
        }
        Request::Add(pod) => {
            let id = pod.sandbox_id.clone();
            match network.add(&with(pod)).await {
                Ok(attachment) => attached(&id, attachment),
                Err(error) => failed(error),
            }
        }
        Request::Del(pod) => network.del(&pod).await.map_or_else(failed, |()| Answer::Done),
        Request::Check(pod) => match network.check(&pod).await {
            Ok(Some(attachment)) => attached(&pod.sandbox_id, attachment),
            Ok(None) => Answer::Detached,
            Err(error) => failed(error),
        },
        Request::Status => network.status().await.map_or_else(failed, |()| Answer::Done),
        Request::Gc(live) => {
            let live = live.into_iter().collect();
            network.gc(&live).await.map_or_else(failed, |()| Answer::Done)
        }
    }
}
