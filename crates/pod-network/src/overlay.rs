//! Pods of other nodes, over VXLAN: one device per node, and per peer a route, a neighbour and a forwarding entry.
//!
//! Everything about a peer follows from its Node: the tunnel's hardware address is made of the peer's gateway address, so nodes
//! need not tell each other anything. The kernel's routes on the device are the record of what is set; a restart compares and
//! changes only what differs. Nodes on one network can be reached by plain routes instead; such a route is known by its
//! destination, which lies in the cluster's range.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::route::{Ipv4Setting, Kind, NewLink, Route, Routing, Target};
use rustix::io::Errno;

use crate::device::pod_mac;
use crate::{NetworkError, lease};

/// What the tunnel's headers take from each packet.
pub const OVERHEAD: u32 = 50;
/// The device's usual name.
pub const DEVICE: &str = "kelson-vx";

/// This node's end of the tunnels.
#[derive(Clone, Debug)]
pub struct Config {
    pub device: String,
    /// This node's address among the nodes.
    pub node_address: IpAddr,
    /// The network's number; all nodes of a cluster have the same.
    pub id: u32,
    pub port: u16,
    /// Peers on a network of this node are reached by routes, without the tunnel.
    pub direct_routing: bool,
}

impl Config {
    pub fn new(node_address: IpAddr) -> Self {
        Self { device: DEVICE.to_owned(), node_address, id: 4096, port: 4789, direct_routing: false }
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

/// Makes the kernel's routes into the cluster's range those of the peers.
pub(crate) fn set_peers(
    routing: &Routing,
    config: &Config,
    ranges: (IpNet, IpNet),
    gateway: IpAddr,
    peers: &[Peer],
) -> Result<(), NetworkError> {
    let fail = |source| NetworkError::Kernel { doing: "route to another node cannot be set", source };
    let (cluster_cidr, own) = ranges;
    let index = index(routing, config)?;
    let links = if config.direct_routing { routing.addresses().map_err(fail)? } else { Vec::new() };
    // The link on which a peer is a neighbour.
    let neighbour = |peer: &Peer| {
        let on_link = |(_, net): &&(u32, IpNet)| net.contains(&peer.address) && net.addr() != peer.address;
        links.iter().find(on_link).map(|(index, _)| *index)
    };
    let wanted: BTreeMap<IpNet, Option<u32>> =
        peers.iter().map(|peer| (peer.pod_cidr.trunc(), neighbour(peer))).collect();
    let is_ours = |to: &IpNet| cluster_cidr.contains(to) && !own.contains(to);
    for route in routing.routes().map_err(fail)? {
        let is_over_device = route.index == Some(index);
        let is_direct = !is_over_device && route.gateway.is_some() && is_ours(&route.to);
        let is_stale = (is_over_device || is_direct) && !wanted.contains_key(&route.to);
        if is_stale {
            netlink::if_present(routing.delete_route(route.to)).map_err(fail)?;
        }
        let uses_tunnel = wanted.get(&route.to).is_some_and(Option::is_none);
        if is_over_device
            && !uses_tunnel
            && let Some(far) = lease::gateway(route.to)
        {
            netlink::if_present(routing.delete_neighbour(index, far)).map_err(fail)?;
            netlink::if_present(routing.delete_forwarding(index, pod_mac(far))).map_err(fail)?;
        }
    }
    for peer in peers {
        let Some(far) = lease::gateway(peer.pod_cidr) else { continue };
        let to = peer.pod_cidr.trunc();
        let route = match wanted.get(&to).copied().flatten() {
            // With the node's own address: answers come back the same way.
            Some(link) => {
                Route { to, target: Target::Via { gateway: peer.address, index: link }, source: None }
            }
            None => {
                // The way is there before packets are sent on it.
                routing.set_forwarding(index, pod_mac(far), peer.address).map_err(fail)?;
                routing.set_neighbour(index, far, pod_mac(far)).map_err(fail)?;
                Route { to, target: Target::Via { gateway: far, index }, source: Some(gateway) }
            }
        };
        routing.set_route(&route).map_err(fail)?;
    }
    Ok(())
}

fn index(routing: &Routing, config: &Config) -> Result<u32, NetworkError> {
    let fail = |source| NetworkError::Kernel { doing: "overlay device cannot be seen", source };
    let link = routing.link(&config.device).map_err(fail)?;
    link.map(|link| link.index).ok_or_else(|| fail(crate::device::missing(&config.device)))
}
