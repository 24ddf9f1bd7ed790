//! What this machine's kernel is told: addresses on an interface, so that the machine takes packets to them and its
//! neighbours find them, and routes to pod ranges.

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::route::{self, ListedRoute, Routing, Target};

use crate::provider::{CloudError, Route};

fn open() -> Result<Routing, CloudError> {
    Routing::open().map_err(|error| CloudError::caused("the kernel's network cannot be reached", error))
}

fn index(routing: &Routing, interface: &str) -> Result<u32, CloudError> {
    let failed = |error| CloudError::caused(format!("interface {interface} cannot be looked at"), error);
    let link = routing.link(interface).map_err(failed)?;
    link.map(|link| link.index).ok_or_else(|| CloudError::new(format!("there is no interface {interface}")))
}

/// Gives an interface exactly the wanted ones of the addresses that are ours to give.
pub fn announce(
    interface: &str,
    wanted: &HashSet<IpAddr>,
    is_ours: impl Fn(IpAddr) -> bool,
) -> Result<(), CloudError> {
    let routing = open()?;
    let index = index(&routing, interface)?;
    let present = routing
        .addresses()
        .map_err(|error| CloudError::caused(format!("addresses of {interface} cannot be listed"), error))?;
    let (add, remove) = difference(index, &present, wanted, is_ours);
    for address in add {
        routing
            .add_address(index, IpNet::from(address))
            .map_err(|error| CloudError::caused(format!("{address} cannot be put on {interface}"), error))?;
    }
    for address in remove {
        take(&routing, interface, index, address)?;
    }
    Ok(())
}

/// Addresses to add to and to remove from a link. Those with a subnet are the administrator's.
fn difference(
    index: u32,
    present: &[(u32, IpNet)],
    wanted: &HashSet<IpAddr>,
    is_ours: impl Fn(IpAddr) -> bool,
) -> (Vec<IpAddr>, Vec<IpAddr>) {
    let alone = |net: &IpNet| net.prefix_len() == net.max_prefix_len();
    let have: HashSet<IpAddr> = present.iter().map(|(_, net)| net.addr()).collect();
    let add = wanted.iter().copied().filter(|ip| is_ours(*ip) && !have.contains(ip)).collect();
    let stale = present.iter().filter(|(own, net)| *own == index && alone(net)).map(|(_, net)| net.addr());
    (add, stale.filter(|ip| is_ours(*ip) && !wanted.contains(ip)).collect())
}

/// Takes an address from an interface; no error if it does not have it.
pub fn withdraw(interface: &str, address: IpAddr) -> Result<(), CloudError> {
    let routing = open()?;
    let index = index(&routing, interface)?;
    take(&routing, interface, index, address)
}

fn take(routing: &Routing, interface: &str, index: u32, address: IpAddr) -> Result<(), CloudError> {
    netlink::if_present(routing.delete_address(index, IpNet::from(address)))
        .map_err(|error| CloudError::caused(format!("{address} cannot be taken from {interface}"), error))
}

/// The routes through an interface that programs made.
pub fn routes(interface: &str) -> Result<Vec<Route>, CloudError> {
    let routing = open()?;
    let index = index(&routing, interface)?;
    let listed = routing.routes().map_err(|error| CloudError::caused("routes cannot be listed", error))?;
    let route = |own: &ListedRoute| Route {
        to: own.to.to_string().into(),
        via: own.gateway.map(|gateway| gateway.to_string().into()),
    };
    Ok(listed.iter().filter(|own| own.index == Some(index)).map(route).collect())
}

/// Makes a route through an interface.
pub fn add_route(interface: &str, wanted: &Route) -> Result<(), CloudError> {
    let wrong = || CloudError::new(format!("{wanted:?} is not a route"));
    let to: IpNet = wanted.to.parse().map_err(|_| wrong())?;
    let gateway: IpAddr = wanted.via.as_deref().and_then(|via| via.parse().ok()).ok_or_else(wrong)?;
    let routing = open()?;
    let index = index(&routing, interface)?;
    let new = route::Route { to, target: Target::Via { gateway, index }, source: None };
    routing.set_route(&new).map_err(|error| CloudError::caused(format!("no route to {to}"), error))
}

/// Removes a route; no error if it is gone.
pub fn remove_route(route: &Route) -> Result<(), CloudError> {
    let to: IpNet = route.to.parse().map_err(|_| CloudError::new(format!("{route:?} is not a route")))?;
    netlink::if_present(open()?.delete_route(to))
        .map_err(|error| CloudError::caused(format!("the route to {to} cannot be removed"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_addresses_are_touched() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let present = [
            (1, net("192.0.2.1/32")),
            (1, net("192.0.2.2/32")),
            (1, net("192.0.2.3/24")),
            (2, net("192.0.2.4/32")),
            (1, net("203.0.113.1/32")),
        ];
        let wanted = HashSet::from([ip("192.0.2.1"), ip("192.0.2.9")]);
        let pool = net("192.0.2.0/24");
        let (add, remove) = difference(1, &present, &wanted, |ip| pool.contains(&ip));
        assert_eq!((add, remove), (vec![ip("192.0.2.9")], vec![ip("192.0.2.2")]));
    }

    #[test]
    fn an_interface_gets_and_loses_addresses() {
        if !testing::root() {
            return;
        }
        let outcome = netlink::netns::fresh(|| {
            let routing = Routing::open().unwrap();
            let index = index(&routing, "lo").unwrap();
            let addresses = || -> Vec<String> {
                let listed = routing.addresses().unwrap();
                let own =
                    listed.iter().filter(|(own, _)| *own == index).map(|(_, net)| net.addr().to_string());
                own.filter(|address| address.starts_with("192.")).collect()
            };
            let ip = |text: &str| text.parse::<IpAddr>().unwrap();
            announce("lo", &HashSet::from([ip("192.0.2.1"), ip("192.0.2.2")]), |_| true).unwrap();
            assert_eq!(addresses().len(), 2);
            announce("lo", &HashSet::from([ip("192.0.2.2")]), |ip| !ip.is_loopback()).unwrap();
            assert_eq!(addresses(), ["192.0.2.2"]);
            withdraw("lo", ip("192.0.2.2")).unwrap();
            withdraw("lo", ip("192.0.2.2")).unwrap();
            assert!(addresses().is_empty());
            assert!(announce("none", &HashSet::new(), |_| true).is_err());
        });
        outcome.expect("a network namespace");
    }
}
