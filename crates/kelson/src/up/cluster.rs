//! The components of one cluster, started in order and stopped in the opposite one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use apiserver::config::{Advertise, KeyPair, RequestHeaderConfig};
use apiserver::{ApiServer, UserInfo};
use cloud_controller_manager::local::{BalancerConfig, Local, LocalConfig, Pool, Range};
use cloud_controller_manager::{SERVICE_CONTROLLER, Selection};
use ipnet::IpNet;
use jiff::SignedDuration;
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use tracing::warn;

use super::checklist::Checklist;
use super::place::{Place, Wish};
use super::{Farewell, Layout, UpArgs, addons, preflight, safety, transport};
use crate::node::{self, Node};

pub const DOMAIN: &str = "cluster.local";

/// How long a certificate lives that the controllers sign, as upstream has it.
const SIGNED_FOR: SignedDuration = SignedDuration::from_hours(24 * 365);
/// How long each stage of a stop may take.
const STAGE_DEADLINE: Duration = Duration::from_secs(10);

/// A running cluster.
pub struct Cluster {
    pki: ClusterPki,
    api: SocketAddr,
    node: Option<Node>,
    /// One group per stage, in the order in which they stop.
    controllers: Tasks,
    server: Tasks,
    store: Tasks,
}

impl Cluster {
    /// Starts everything; what is told as done works.
    pub async fn start(args: &UpArgs, layout: &Layout, list: &Checklist) -> anyhow::Result<Self> {
        let wants_node = !args.control_plane_only;
        if wants_node {
            preflight::node(super::is_root())?;
        }
        let listener = preflight::bind(args.bind)?;
        let api = listener.local_addr().context("the API's socket has no address")?;
        let place = Place::ensure(layout, Wish { pods: args.pod_cidr, services: args.service_cidr })?;
        let ranges = place.ranges;
        let (controllers, server, store_tasks) = (Tasks::new(), Tasks::new(), Tasks::new());

        let network = if wants_node {
            let step = list.begin("pod network");
            let network = node::open_network(layout, &place)?;
            step.done(format!("{} on {}", ranges.first_node(), place.names.bridge));
            Some(network)
        } else {
            None
        };
        let gateway = network.as_ref().map(|network| network.gateway());
        let node_name = node::name();
        let node_ip = node::primary_address()
            .or(gateway)
            .or_else(node::first_address)
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));

        let step = list.begin("certificates");
        let spec = ClusterSpec {
            node_name: node_name.clone(),
            node_ips: vec![node_ip],
            service_ips: vec![ranges.api().into()],
            api_sans: api_names(api.ip(), gateway),
            cluster_domain: DOMAIN.to_owned(),
            algorithm: Algorithm::default(),
        };
        let pki = ClusterPki::ensure(&layout.pki(), &spec).context("cannot make the certificates")?;
        step.done(match pki.made().len() {
            0 => "all valid".to_owned(),
            made => format!("{made} made"),
        });

        let step = list.begin("store");
        let config = etcd::Config { data_dir: Some(layout.store()), ..etcd::Config::default() };
        let store = etcd::open(config, &store_tasks).context("cannot open the store")?;
        step.done("");

        let step = list.begin("api server");
        let mut listeners = vec![listener];
        // Pods reach the API on the bridge; what listens there is not reachable from other machines.
        let inside = gateway.filter(|gateway| !api.ip().is_unspecified() && *gateway != api.ip());
        if let Some(gateway) = inside {
            listeners.push(preflight::bind(SocketAddr::new(gateway, api.port()))?);
        }
        // As upstream: an address that pods of other machines cannot use is not published; any other of this machine is.
        let public = !api.ip().is_unspecified() && !api.ip().is_loopback();
        let advertise = gateway.unwrap_or(if public { api.ip() } else { node_ip });
        let mut config = api_config(store, listeners, &pki, SocketAddr::new(advertise, api.port()))?;
        config.service_cidrs = vec![IpNet::V4(ranges.services)];
        config.audit = if args.no_audit { None } else { Some(safety::audit(layout)?) };
        config.encryption = safety::encryption(&layout.secrets_key(), !args.no_secret_encryption)?;
        let server_handle = ApiServer::start(config, &server).await.context("cannot start the API server")?;
        let own = transport::client(&server_handle, UserInfo::loopback(), "kelson");
        addons::apply(&own).await?;
        step.done(format!("https://{api}"));

        let step = list.begin("controllers");
        let clients = {
            let server = server_handle.clone();
            move |account: &str| match account {
                "" => {
                    let identity = UserInfo::new("system:kube-controller-manager", &[]);
                    transport::client(&server, identity, "kube-controller-manager")
                }
                account => {
                    let identity = UserInfo::service_account("kube-system", account);
                    // Upstream's controllers all write under the name of their program.
                    transport::client(&server, identity, "kube-controller-manager")
                }
            }
        };
        let manager = controller_manager::Config {
            cluster_cidrs: vec![ranges.pods.to_string()],
            node_cidr_masks: vec![ranges.node_prefix()],
            root_ca: Some(pki.pair(names::SERVER_CA)?.certificate_pem().into()),
            signers: Some(controller_manager::Signers::one(
                Arc::new(pki.pair(names::CLIENT_CA)?.clone()),
                SIGNED_FOR,
            )),
            token_key: Some(pki.service_account().clone()),
            local_volumes: Some(
                controller_manager::LocalVolumes::under(layout.volumes().display().to_string())
                    .on(node_name.clone()),
            ),
            ..controller_manager::Config::new(Arc::new(clients))
        };
        controller_manager::start(&manager, &controllers);
        if !args.load_balancer_pool.is_empty() {
            let announce = wants_node.then(|| place.names.bridge.clone());
            let provider = Arc::new(Local::new(balancers(&args.load_balancer_pool, announce)));
            // Only addresses are asked for; what machines are is told by a provider that knows them, if there is one.
            let only = Selection::new([SERVICE_CONTROLLER.to_owned()]);
            let cloud = cloud_controller_manager::Config {
                controllers: only,
                ..cloud_controller_manager::Config::new(manager.client_for.clone(), provider)
            };
            cloud_controller_manager::start(&cloud, &controllers);
        }
        step.done("");

        let step = list.begin("scheduler");
        let identity = UserInfo::new("system:kube-scheduler", &[]);
        let client = transport::client(&server_handle, identity, "kube-scheduler");
        scheduler::start(scheduler::Config::new(client), &controllers);
        step.done("");

        let node = match network {
            Some(network) => {
                let context = node::Context {
                    layout: layout.clone(),
                    place: place.clone(),
                    name: node_name,
                    address: node_ip,
                    pki: &pki,
                    clients: &|identity, agent| transport::client(&server_handle, identity, agent),
                };
                let step = list.begin("metrics api");
                let identity = UserInfo::service_account("kube-system", "metrics-server");
                let metrics = metrics_server::Config {
                    client: transport::client(&server_handle, identity, "metrics-server"),
                    listen: SocketAddr::new(network.gateway(), 0),
                    front_proxy_ca: pki.pair(names::FRONT_PROXY_CA)?.certificate_pem().into_bytes(),
                    server_name: addons::METRICS_NAME.to_owned(),
                };
                let metrics = metrics_server::start(metrics, &controllers).await;
                addons::publish_metrics(&own, &metrics.context("cannot serve the metrics API")?).await?;
                step.done("");
                Some(Node::start(context, network, list).await?)
            }
            None => None,
        };
        Ok(Self { pki, api, node, controllers, server, store: store_tasks })
    }

    pub fn api_address(&self) -> SocketAddr {
        self.api
    }

    pub fn node_name(&self) -> Option<&str> {
        self.node.as_ref().map(Node::name)
    }

    /// Writes the admin's kubeconfig where it belongs and where the user wants it; returns the latter.
    pub fn write_kubeconfigs(&self, layout: &Layout, wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
        let ip = if self.api.ip().is_unspecified() { Ipv4Addr::LOCALHOST.into() } else { self.api.ip() };
        let server = format!("https://{}", SocketAddr::new(ip, self.api.port()));
        let kubeconfig = self.pki.kubeconfig(names::ADMIN, "kelson", &server)?;
        let own = layout.kubeconfig();
        for path in std::iter::once(own.as_path()).chain(wanted) {
            kubeconfig.write(path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(wanted.map_or(own, Path::to_owned))
    }

    /// Stops from the outside in: who makes work first, who keeps it last.
    pub(super) async fn stop(self, farewell: Farewell) {
        if let Some(node) = self.node {
            node.stop(farewell == Farewell::WithPods).await;
        }
        for (stage, tasks) in
            [("controllers", self.controllers), ("api server", self.server), ("store", self.store)]
        {
            let late = tasks.drain(STAGE_DEADLINE).await;
            if !late.is_empty() {
                warn!(stage, tasks = ?late, "did not stop in time");
            }
        }
    }
}

/// A pool of addresses for LoadBalancer Services. The pod network's own device holds those in use, so that this machine
/// takes packets to them, and they go with it.
fn balancers(addresses: &[Range], announce: Option<String>) -> LocalConfig {
    let pool = Pool { addresses: addresses.to_vec(), ..Pool::default() };
    LocalConfig { load_balancers: BalancerConfig { pools: vec![pool], announce }, ..LocalConfig::default() }
}

/// Every name and address under which the API is reached, beyond the cluster's own.
fn api_names(bind: IpAddr, gateway: Option<IpAddr>) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string(), "::1".to_owned()];
    names.extend(gateway.map(|gateway| gateway.to_string()));
    if !bind.is_unspecified() && !bind.is_loopback() {
        names.push(bind.to_string());
    }
    names
}

fn api_config(
    store: Arc<etcd::Etcd>,
    listeners: Vec<std::net::TcpListener>,
    pki: &ClusterPki,
    advertise: SocketAddr,
) -> anyhow::Result<apiserver::Config> {
    let pair = |name: &str| -> anyhow::Result<KeyPair> {
        let pair = pki.pair(name)?;
        Ok(KeyPair { certificate: pair.certificate_pem().into_bytes(), key: pair.key_pem().into_bytes() })
    };
    let ca = |name: &str| -> anyhow::Result<Vec<u8>> { Ok(pki.pair(name)?.certificate_pem().into_bytes()) };
    let header = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut config = apiserver::Config::new(store, pair(names::APISERVER)?);
    config.listeners = listeners;
    config.client_ca = Some(ca(names::CLIENT_CA)?);
    config.request_header = Some(RequestHeaderConfig {
        ca: ca(names::FRONT_PROXY_CA)?,
        allowed_names: header(&["front-proxy-client"]),
        username_headers: header(&["X-Remote-User"]),
        uid_headers: header(&["X-Remote-Uid"]),
        group_headers: header(&["X-Remote-Group"]),
        extra_prefixes: header(&["X-Remote-Extra-"]),
    });
    config.proxy_client = Some(pair(names::FRONT_PROXY_CLIENT)?);
    config.service_accounts.signing_key = Some(pki.service_account().to_pem().into_bytes());
    config.service_accounts.verifying_keys = vec![pki.service_account().public().to_pem().into_bytes()];
    config.kubelet.client = Some(pair(names::APISERVER_KUBELET_CLIENT)?);
    config.kubelet.ca = Some(ca(names::SERVER_CA)?);
    // Endpoints may not be of the loopback: where there is nothing else, the Service has none.
    let address = Some(advertise.ip()).filter(|address| !address.is_loopback());
    config.advertise = address.map(|address| Advertise { address, port: advertise.port() });
    Ok(config)
}
