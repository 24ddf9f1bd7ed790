//! Links and routes: the gateway device that all pods share, and the wire of each pod.
//!
//! A pod's wire is a veth pair. The host's end has no address; a route for exactly the pod's address leads to it. The
//! pod's end has the address alone (no subnet), a route to the gateway and a default route through it, so that pods
//! never talk past the host. Both ends know the other's hardware address for good: no ARP, no broadcast.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use cni::Bandwidth;
use ipnet::IpNet;
use netlink::route::{Ipv4Setting, Kind, Link, Mac, NewLink, Route, Routing, Target};
use rustix::io::Errno;

use crate::{Config, INTERFACE, Lease, NetworkError};

/// How the names of all hosts' ends begin.
pub const PREFIX: &str = "kpod";
/// The hardware address of every host's end; each is alone on its wire.
const HOST_MAC: Mac = [0xee; 6];
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";
const LOOPBACK: u32 = 1;

/// The smallest packet size among the links that lead out of the host, at most Ethernet's.
pub fn host_mtu(routing: &Routing, bridge: &str) -> Result<u32, NetworkError> {
    let links = routing.links().map_err(NetworkError::kernel("links cannot be listed"))?;
    let leads_out = |link: &&Link| {
        link.up
            && link.mac.is_some_and(|mac| mac != [0; 6])
            && link.name != bridge
            && !link.name.starts_with(PREFIX)
    };
    Ok(links.iter().filter(leads_out).map(|link| link.mtu).min().unwrap_or(1500).clamp(1280, 1500))
}

/// Lets the host pass packets on.
pub fn enable_forwarding() -> Result<(), NetworkError> {
    if fs::read_to_string(FORWARDING).is_ok_and(|value| value.trim() == "1") {
        return Ok(());
    }
    fs::write(FORWARDING, "1").map_err(|source| NetworkError::Forwarding { path: FORWARDING, source })
}

/// Refuses ranges in which the host itself has an address. A wider network around the range is no reason: only neighbours
/// inside the range become invisible, and few networks of that size are full.
pub fn check_ranges(routing: &Routing, config: &Config) -> Result<(), NetworkError> {
    let fail = NetworkError::kernel("addresses cannot be listed");
    let (links, addresses) = match (routing.links(), routing.addresses()) {
        (Ok(links), Ok(addresses)) => (links, addresses),
        (Err(error), _) | (_, Err(error)) => return Err(fail(error)),
    };
    for range in [Some(config.pod_cidr), config.service_cidr].into_iter().flatten() {
        for (index, address) in &addresses {
            let device = links.iter().find(|link| link.index == *index).map_or("", |link| link.name.as_str());
            if range.contains(&address.addr()) && device != config.bridge {
                let (address, device) = (*address, device.to_owned());
                return Err(NetworkError::Overlap { range, address, device });
            }
        }
    }
    Ok(())
}

/// Makes the device that holds the gateway address, and the routes that hold without any pod.
pub fn set_up_gateway(
    routing: &Routing,
    config: &Config,
    gateway: IpAddr,
    mtu: u32,
) -> Result<(), NetworkError> {
    let explain = |source: netlink::Error| match source.errno() {
        Some(Errno::OPNOTSUPP) => NetworkError::Missing {
            feature: "bridge devices",
            remedy: "load the module (modprobe bridge) or use a kernel with CONFIG_BRIDGE",
            source,
        },
        Some(Errno::PERM | Errno::ACCESS) => NetworkError::NotPermitted { source },
        _ => NetworkError::Kernel { doing: "gateway device cannot be made", source },
    };
    let link = match routing.link(&config.bridge).map_err(explain)? {
        Some(link) if link.kind.as_deref() == Some("bridge") => link,
        Some(_) => return Err(NetworkError::Occupied { name: config.bridge.clone() }),
        None => {
            let new = NewLink { name: &config.bridge, kind: Kind::Bridge, mac: None, mtu };
            netlink::if_absent(routing.create(&new)).map_err(explain)?;
            let made = routing.link(&config.bridge).map_err(explain)?;
            made.ok_or_else(|| NetworkError::Occupied { name: config.bridge.clone() })?
        }
    };
    routing.set_up(link.index, &[(Ipv4Setting::SendRedirects, 0)]).map_err(explain)?;
    routing.add_address(link.index, IpNet::from(gateway)).map_err(explain)?;
    // Without this, packets to a pod that is gone would leave through the host's default route and might come back.
    let nowhere = Route { to: config.pod_cidr.trunc(), target: Target::Unreachable, source: None };
    routing.set_route(&nowhere).map_err(explain)?;
    if let Some(services) = config.service_cidr {
        let target = Target::Link { index: link.index };
        let route = Route { to: services.trunc(), target, source: Some(gateway) };
        routing.set_route(&route).map_err(explain)?;
    }
    Ok(())
}

/// Removes the named links, all other pod links that lead into the pod range, the routes and the gateway device.
pub fn remove_all(routing: &Routing, config: &Config, names: &[String]) -> Result<(), NetworkError> {
    let fail = |source| NetworkError::Kernel { doing: "pod network cannot be removed", source };
    let routes = routing.routes().map_err(fail)?;
    let ours = |link: &Link| {
        names.contains(&link.name)
            || link.name.starts_with(PREFIX)
                && routes.iter().any(|route| {
                    route.index == Some(link.index) && config.pod_cidr.contains(&route.to.addr())
                })
    };
    let mut outcome = Ok(());
    let mut attempt = |tried: Result<(), netlink::Error>| {
        if let (Ok(()), Err(error)) = (&outcome, netlink::if_present(tried)) {
            outcome = Err(fail(error));
        }
    };
    for link in routing.links().map_err(fail)?.iter().filter(|link| ours(link)) {
        attempt(routing.delete_link(&link.name));
    }
    let shared = [Some(config.pod_cidr), config.service_cidr];
    for range in shared.into_iter().flatten() {
        attempt(routing.delete_route(range.trunc()));
    }
    attempt(routing.delete_link(&config.bridge));
    outcome
}

/// Leads packets for the pod to its wire again; `false` if it has none, or one that was never finished: the host's end
/// comes up last but for the route.
pub fn restore_route(routing: &Routing, lease: &Lease, gateway: IpAddr) -> Result<bool, netlink::Error> {
    let Some(link) = routing.link(&lease.link)?.filter(|link| link.up) else { return Ok(false) };
    route_to_pod(routing, lease, link.index, gateway)?;
    Ok(true)
}

/// Leads packets for the pod to its wire.
fn route_to_pod(routing: &Routing, lease: &Lease, index: u32, gateway: IpAddr) -> Result<(), netlink::Error> {
    routing.set_neighbour(index, lease.address, pod_mac(lease.address))?;
    let to = IpNet::from(lease.address);
    routing.set_route(&Route { to, target: Target::Link { index }, source: Some(gateway) })
}

/// One pod's connection to the host.
pub struct Wire<'a> {
    pub lease: &'a Lease,
    pub gateway: IpAddr,
    pub mtu: u32,
    pub netns: &'a Path,
    pub bandwidth: Bandwidth,
}

impl Wire<'_> {
    /// Makes the wire, or completes one that an interrupted attempt left.
    pub fn connect(&self, host: &Routing) -> Result<(), netlink::Error> {
        let pod = Routing::open_in(self.netns)?;
        let name = self.lease.link.as_str();
        let inner = match (host.link(name)?, pod.link(INTERFACE)?) {
            (Some(_), Some(inner)) => inner,
            (outer, _) => {
                if outer.is_some() {
                    netlink::if_present(host.delete_link(name))?;
                }
                self.create(host)?;
                pod.link(INTERFACE)?.ok_or_else(|| missing(INTERFACE))?
            }
        };
        let outer = host.link(name)?.ok_or_else(|| missing(name))?;
        self.set_up_pod(&pod, inner.index)?;
        host.set_up(
            outer.index,
            &[
                (Ipv4Setting::Forwarding, 1),
                // The host sends a pod's packet back through the link it came from when the pod calls itself by a
                // Service; that is no reason to tell it of a better way.
                (Ipv4Setting::SendRedirects, 0),
                // A pod sends with its own address or not at all.
                (Ipv4Setting::RpFilter, 1),
                // Connections of the host's programs to 127.0.0.1:hostPort are translated to the pod.
                (Ipv4Setting::RouteLocalnet, 1),
            ],
        )?;
        // Each end can only hold back what it sends: the host's what goes to the pod, the pod's what comes from it.
        if let Some(rate) = self.bandwidth.ingress {
            host.limit(outer.index, rate)?;
        }
        if let Some(rate) = self.bandwidth.egress {
            pod.limit(inner.index, rate)?;
        }
        route_to_pod(host, self.lease, outer.index, self.gateway)
    }

    fn create(&self, host: &Routing) -> Result<(), netlink::Error> {
        let kind = Kind::Veth { peer: INTERFACE, peer_mac: pod_mac(self.lease.address), netns: self.netns };
        host.create(&NewLink { name: &self.lease.link, kind, mac: Some(HOST_MAC), mtu: self.mtu })
    }

    fn set_up_pod(&self, pod: &Routing, index: u32) -> Result<(), netlink::Error> {
        pod.set_up(LOOPBACK, &[])?;
        pod.set_up(index, &[])?;
        pod.add_address(index, IpNet::from(self.lease.address))?;
        pod.set_neighbour(index, self.gateway, HOST_MAC)?;
        let gateway = IpNet::from(self.gateway);
        pod.set_route(&Route { to: gateway, target: Target::Link { index }, source: None })?;
        let everywhere = default_route(self.gateway);
        pod.set_route(&Route {
            to: everywhere,
            target: Target::Via { gateway: self.gateway, index },
            source: None,
        })
    }
}

pub fn missing(name: &str) -> netlink::Error {
    let source = std::io::Error::from(Errno::NODEV);
    netlink::Error::Refused { operation: format!("find link {name}"), source }
}

fn default_route(gateway: IpAddr) -> IpNet {
    match gateway {
        IpAddr::V4(_) => IpNet::V4(ipnet::Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(ipnet::Ipv6Net::default()),
    }
}

/// A hardware address made of the pod's address: unique where addresses are.
pub fn pod_mac(address: IpAddr) -> Mac {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x0a, 0x58, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [0x0a, 0x59, a, b, c, d]
        }
    }
}
