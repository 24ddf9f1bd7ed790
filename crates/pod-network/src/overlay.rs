//! Pods of other nodes, over VXLAN: one device per node, and per peer a route, a neighbour and a forwarding entry.
//!
//! Everything about a peer follows from its Node: the tunnel's hardware address is made of the peer's gateway address, so nodes
//! need not tell each other anything. The kernel's routes on the device are the record of what is set; a restart compares and
//! changes only what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ::client::resources::NODES;
use ::client::{Client, Informer, ListOptions, Metadata, Projection};
use ipnet::IpNet;
use lifecycle::{Stop, Tasks};
use netlink::route::{Ipv4Setting, Kind, NewLink, Route, Routing, Target};
use rustix::io::Errno;
use serde::Deserialize;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::device::pod_mac;
use crate::{NetworkError, PodNetwork, lease};

/// What the tunnel's headers take from each packet.
pub const OVERHEAD: u32 = 50;
/// The device's usual name.
pub const DEVICE: &str = "kelson-vx";
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// This node's end of the tunnels.
#[derive(Clone, Debug)]
pub struct Config {
    pub device: String,
    /// This node's address among the nodes.
    pub node_address: IpAddr,
    /// The network's number; all nodes of a cluster have the same.
    pub id: u32,
    pub port: u16,
}

impl Config {
    pub fn new(node_address: IpAddr) -> Self {
        Self { device: DEVICE.to_owned(), node_address, id: 4096, port: 4789 }
    }
}

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pod_cidr: IpNet,
    /// The node's address among the nodes.
    pub address: IpAddr,
}

/// Makes the device, or adopts it.
pub(crate) fn set_up(
    routing: &Routing,
    config: &Config,
    gateway: IpAddr,
    mtu: u32,
) -> Result<(), NetworkError> {
    let explain = |source: netlink::Error| match source.errno() {
        Some(Errno::OPNOTSUPP) => NetworkError::Missing {
            feature: "VXLAN devices",
            remedy: "load the module (modprobe vxlan) or use a kernel with CONFIG_VXLAN",
            source,
        },
        _ => NetworkError::Kernel { doing: "overlay device cannot be made", source },
    };
    let mac = Some(pod_mac(gateway));
    let found = routing.link(&config.device).map_err(explain)?;
    let fits = found.as_ref().is_some_and(|link| link.kind.as_deref() == Some("vxlan") && link.mac == mac);
    if !fits {
        if found.is_some() {
            routing.delete_link(&config.device).map_err(explain)?;
        }
        let kind = Kind::Vxlan { id: config.id, port: config.port, local: config.node_address };
        routing.create(&NewLink { name: &config.device, kind, mac, mtu }).map_err(explain)?;
    }
    let index = index(routing, config)?;
    routing.set_up(index, &[(Ipv4Setting::Forwarding, 1), (Ipv4Setting::SendRedirects, 0)]).map_err(explain)
}

/// Makes the kernel's routes over the device those of the peers.
pub(crate) fn set_peers(
    routing: &Routing,
    config: &Config,
    gateway: IpAddr,
    peers: &[Peer],
) -> Result<(), NetworkError> {
    let fail = |source| NetworkError::Kernel { doing: "route to another node cannot be set", source };
    let index = index(routing, config)?;
    let wanted: BTreeSet<IpNet> = peers.iter().map(|peer| peer.pod_cidr.trunc()).collect();
    let routes = routing.routes().map_err(fail)?;
    for stale in routes.iter().filter(|route| route.index == Some(index) && !wanted.contains(&route.to)) {
        netlink::if_present(routing.delete_route(stale.to)).map_err(fail)?;
        if let Some(far) = lease::gateway(stale.to) {
            netlink::if_present(routing.delete_neighbour(index, far)).map_err(fail)?;
            netlink::if_present(routing.delete_forwarding(index, pod_mac(far))).map_err(fail)?;
        }
    }
    for peer in peers {
        let Some(far) = lease::gateway(peer.pod_cidr) else { continue };
        // The way is there before packets are sent on it.
        routing.set_forwarding(index, pod_mac(far), peer.address).map_err(fail)?;
        routing.set_neighbour(index, far, pod_mac(far)).map_err(fail)?;
        let target = Target::Via { gateway: far, index };
        let route = Route { to: peer.pod_cidr.trunc(), target, source: Some(gateway) };
        routing.set_route(&route).map_err(fail)?;
    }
    Ok(())
}

fn index(routing: &Routing, config: &Config) -> Result<u32, NetworkError> {
    let fail = |source| NetworkError::Kernel { doing: "overlay device cannot be seen", source };
    let link = routing.link(&config.device).map_err(fail)?;
    link.map(|link| link.index).ok_or_else(|| fail(crate::device::missing(&config.device)))
}

/// What the overlay reads of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "podCIDR")]
    pod_cidr: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeAddress {
    #[serde(rename = "type")]
    kind: Box<str>,
    address: Box<str>,
}

impl Projection for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Node {
    fn peer(&self) -> Option<Peer> {
        let internal = self.status.addresses.iter().find(|address| &*address.kind == "InternalIP")?;
        Some(Peer { pod_cidr: self.spec.pod_cidr.parse().ok()?, address: internal.address.parse().ok()? })
    }
}

/// The peers among the nodes: all but this one. Of two nodes that claim one range, the first by name has it.
fn peers<'a>(nodes: impl Iterator<Item = &'a Node>, me: &str) -> Vec<Peer> {
    let others = nodes.filter(|node| &*node.metadata.name != me);
    let mut by_range = BTreeMap::new();
    for peer in others.filter_map(Node::peer) {
        by_range.entry(peer.pod_cidr.trunc()).or_insert(peer);
    }
    by_range.into_values().collect()
}

/// Keeps the overlay in step with the Nodes until the stop.
pub async fn follow(network: Arc<PodNetwork>, client: Client, node_name: String, stop: Stop) {
    let tasks = Tasks::under(&stop);
    let nodes = Informer::<Node>::start(&client, &NODES, "", ListOptions::default(), &tasks);
    let bell = Arc::new(Notify::new());
    let ring = bell.clone();
    nodes.on_change(move |change| {
        let peer = |node: &Option<Arc<Node>>| node.as_ref().and_then(|node| node.peer());
        if peer(&change.old) != peer(&change.new) {
            ring.notify_one();
        }
    });
    if stop.or(nodes.synced()).await.is_none() {
        return;
    }
    loop {
        let all = nodes.list();
        let wanted = peers(all.iter().map(AsRef::as_ref), &node_name);
        let count = wanted.len();
        let target = network.clone();
        let outcome = tokio::task::spawn_blocking(move || target.set_peers(&wanted)).await;
        let wait = async {
            match outcome {
                Ok(Ok(())) => {
                    info!(peers = count, "overlay is in step");
                    bell.notified().await;
                }
                Ok(Err(error)) => {
                    warn!(error = %telemetry::chain(&error), "overlay cannot be changed, will retry");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                Err(error) => {
                    warn!(%error, "changing the overlay panicked, will retry");
                    tokio::time::sleep(RETRY_AFTER).await;
                }
            }
        };
        if stop.or(wait).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn peers_are_the_other_nodes_that_have_a_range_and_an_address() {
        let node = |name: &str, range: &str, ip: Option<&str>| -> Node {
            let addresses =
                ip.map(|ip| json!({"type": "InternalIP", "address": ip})).into_iter().collect::<Vec<_>>();
            let spec = json!({"podCIDR": range});
            let status = json!({"addresses": addresses});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status}))
                .unwrap()
        };
        let nodes = [
            node("a", "10.128.0.0/23", Some("192.168.7.1")),
            node("b", "10.128.2.0/23", Some("192.168.7.2")),
            node("c", "10.128.4.0/23", None),
            node("d", "", Some("192.168.7.4")),
            node("e", "10.128.2.0/23", Some("192.168.7.5")),
        ];
        let found = peers(nodes.iter(), "a");
        let expected =
            Peer { pod_cidr: "10.128.2.0/23".parse().unwrap(), address: "192.168.7.2".parse().unwrap() };
        assert_eq!(found, [expected]);
    }
}
