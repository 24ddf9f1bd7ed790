//! Which address a Service gets: the one that it has, the one that it asks for, or the lowest that is free.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};
use thiserror::Error;

use crate::kinds::Service;

/// Names the pool that a Service wants its address from.
const POOL: &str = "load-balancer.kelson.io/pool";

/// Addresses to give.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Pool {
    /// For Services that want this pool and no other.
    pub name: String,
    /// `192.0.2.0/28` or `192.0.2.5-192.0.2.9`.
    pub addresses: Vec<Range>,
    /// Only for Services that name the pool or one of its addresses.
    pub on_request: bool,
}

impl Pool {
    /// Whether an address is of this pool.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|range| range.contains(address))
    }
}

/// Addresses that follow each other, all of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: u128,
    last: u128,
    is_v6: bool,
}

/// A text that names no range, or a wish that cannot be fulfilled.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PoolError {
    #[error("{text:?} is neither a range such as 192.0.2.0/28 nor one such as 192.0.2.5-192.0.2.9")]
    Range { text: String },
    #[error("loadBalancerIP {wanted:?} is not an address of a pool")]
    Outside { wanted: String },
    #[error("loadBalancerIP {wanted} is in use by service {owner}")]
    Taken { wanted: IpAddr, owner: String },
    #[error("there is no pool {name:?}")]
    NoPool { name: String },
    #[error("no address is free in the pools of {families}")]
    Exhausted { families: String },
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

impl Range {
    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv6() == self.is_v6 && (self.first..=self.last).contains(&number(address))
    }

    fn address(&self, number: u128) -> IpAddr {
        if self.is_v6 {
            IpAddr::V6(Ipv6Addr::from(number))
        } else {
            // The numbers of an IPv4 range are those of IPv4 addresses.
            IpAddr::V4(Ipv4Addr::from(u32::try_from(number).unwrap_or(u32::MAX)))
        }
    }

    /// The lowest address that is not taken.
    fn lowest(&self, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let mut number = self.first;
        loop {
            let address = self.address(number);
            if !taken(address) {
                return Some(address);
            }
            if number >= self.last {
                return None;
            }
            number += 1;
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.address(self.first), self.address(self.last))
    }
}

impl FromStr for Range {
    type Err = PoolError;

    fn from_str(text: &str) -> Result<Self, PoolError> {
        let wrong = || PoolError::Range { text: text.to_owned() };
        if let Some((first, last)) = text.split_once('-') {
            let (first, last): (IpAddr, IpAddr) =
                (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
            if first.is_ipv6() != last.is_ipv6() || number(first) > number(last) {
                return Err(wrong());
            }
            return Ok(Self { first: number(first), last: number(last), is_v6: first.is_ipv6() });
        }
        let network: IpNet = match text.parse::<IpAddr>() {
            Ok(address) => address.into(),
            Err(_) => text.parse().map_err(|_| wrong())?,
        };
        let (mut first, mut last) = (number(network.network()), number(network.broadcast()));
        let is_v6 = matches!(network, IpNet::V6(_));
        // The ends of a subnet have meanings of their own.
        if !is_v6 && network.prefix_len() < 31 {
            (first, last) = (first + 1, last - 1);
        }
        Ok(Self { first, last, is_v6 })
    }
}

impl<'de> Deserialize<'de> for Range {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = String::deserialize(input)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The addresses that a Service's status shows.
pub fn addresses_of(service: &Service) -> Vec<IpAddr> {
    service.status.load_balancer.ingress.iter().filter_map(|ingress| ingress.ip.parse().ok()).collect()
}

/// The addresses that statuses show, with their owners; of two, the older Service.
pub fn in_use(all: &[Arc<Service>]) -> HashMap<IpAddr, Arc<Service>> {
    let mut used: HashMap<IpAddr, Arc<Service>> = HashMap::new();
    let age = |service: &Service| (service.metadata.created(), service.metadata.uid.clone());
    for service in all {
        for address in addresses_of(service) {
            let owner = used.entry(address).or_insert_with(|| service.clone());
            if age(service) < age(owner) {
                *owner = service.clone();
            }
        }
    }
    used
}

/// The addresses of a Service, one per family that it has and a pool offers.
pub fn assign(
    pools: &[Pool],
    service: &Service,
    taken: &HashMap<IpAddr, Arc<Service>>,
) -> Result<Vec<IpAddr>, PoolError> {
    let wanted_pool = service.metadata.annotation(POOL);
    if let Some(name) = wanted_pool.filter(|name| !pools.iter().any(|pool| pool.name == **name)) {
        return Err(PoolError::NoPool { name: name.to_owned() });
    }
    let open = |pool: &&Pool| wanted_pool.map_or(!pool.on_request, |name| pool.name == name);
    let others =
        |address: IpAddr| taken.get(&address).filter(|owner| owner.metadata.uid != service.metadata.uid);
    let wanted = wanted_address(pools, service, others)?;
    let given = &service.spec.ip_families;
    let families: Vec<&str> =
        if given.is_empty() { vec!["IPv4"] } else { given.iter().map(|family| &**family).collect() };
    let mut addresses = Vec::new();
    for family in &families {
        let is_v6 = *family == "IPv6";
        let kept = || {
            let may_stay = |address: &IpAddr| {
                address.is_ipv6() == is_v6
                    && others(*address).is_none()
                    && pools.iter().filter(open).any(|pool| pool.contains(*address))
            };
            addresses_of(service).into_iter().find(may_stay)
        };
        // What was given since the start but is shown by no status yet.
        let noted = || {
            let own = taken.iter().filter(|(_, owner)| owner.metadata.uid == service.metadata.uid);
            let fits = |address: &IpAddr| {
                address.is_ipv6() == is_v6 && pools.iter().filter(open).any(|pool| pool.contains(*address))
            };
            own.map(|(address, _)| *address).filter(fits).min()
        };
        let free = || {
            let ranges = pools.iter().filter(open).flat_map(|pool| &pool.addresses);
            ranges
                .filter(|range| range.is_v6 == is_v6)
                .find_map(|range| range.lowest(|ip| taken.contains_key(&ip)))
        };
        let found = wanted.filter(|ip| ip.is_ipv6() == is_v6).or_else(kept).or_else(noted).or_else(free);
        addresses.extend(found);
    }
    if addresses.is_empty() {
        return Err(PoolError::Exhausted { families: families.join(" and ") });
    }
    Ok(addresses)
}

fn wanted_address<'a>(
    pools: &[Pool],
    service: &Service,
    others: impl Fn(IpAddr) -> Option<&'a Arc<Service>>,
) -> Result<Option<IpAddr>, PoolError> {
    let text = &*service.spec.load_balancer_ip;
    if text.is_empty() {
        return Ok(None);
    }
    let outside = || PoolError::Outside { wanted: text.to_owned() };
    let wanted: IpAddr = text.parse().map_err(|_| outside())?;
    if !pools.iter().any(|pool| pool.contains(wanted)) {
        return Err(outside());
    }
    match others(wanted) {
        Some(owner) => Err(PoolError::Taken { wanted, owner: owner.metadata.key().to_string() }),
        None => Ok(Some(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(name: &str, more: Value) -> Arc<Service> {
        let mut value =
            json!({"metadata":{"name":name,"namespace":"n","uid":name},"spec":{"type":"LoadBalancer"}});
        controller_runtime::merge(&mut value, &more);
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn shown(ip: &str) -> Value {
        json!({"status":{"loadBalancer":{"ingress":[{"ip":ip}]}}})
    }

    fn pools() -> Vec<Pool> {
        serde_yaml_ng::from_str(
            "[{name: a, addresses: [192.0.2.0/29, 'fd00::10-fd00::1f']},
              {name: b, addresses: [198.51.100.7], onRequest: true}]",
        )
        .unwrap()
    }

    fn given(service: &Service, all: &[Arc<Service>]) -> Result<Vec<String>, PoolError> {
        let found = assign(&pools(), service, &in_use(all))?;
        Ok(found.iter().map(IpAddr::to_string).collect())
    }

    #[test]
    fn ranges_are_read() {
        let ends = |text: &str| {
            let range: Range = text.parse().unwrap();
            (range.address(range.first).to_string(), range.address(range.last).to_string())
        };
        assert_eq!(ends("192.0.2.0/29"), ("192.0.2.1".into(), "192.0.2.6".into()));
        assert_eq!(ends("192.0.2.4/31"), ("192.0.2.4".into(), "192.0.2.5".into()));
        assert_eq!(ends("192.0.2.9"), ("192.0.2.9".into(), "192.0.2.9".into()));
        assert_eq!(ends("192.0.2.9 - 192.0.2.12").1, "192.0.2.12");
        assert_eq!(ends("fd00::/64").1, "fd00::ffff:ffff:ffff:ffff");
        for wrong in ["", "x", "192.0.2.9-192.0.2.1", "192.0.2.1-fd00::1", "192.0.2.0/40"] {
            assert!(wrong.parse::<Range>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn who_gets_which_address() {
        let asks = |ip: &str| service("s", json!({"spec":{"loadBalancerIP":ip}}));
        let dual = json!({"spec":{"ipFamilies":["IPv6","IPv4"]}});
        let taken = [service("other", shown("192.0.2.1"))];
        let cases: [(&str, Arc<Service>, &[Arc<Service>], Result<Vec<&str>, &str>); 9] = [
            ("the lowest free one", service("s", json!({})), &taken, Ok(vec!["192.0.2.2"])),
            ("the one it has", service("s", shown("192.0.2.5")), &taken, Ok(vec!["192.0.2.5"])),
            ("not one of no pool", service("s", shown("203.0.113.1")), &[], Ok(vec!["192.0.2.1"])),
            ("the one it asks for", asks("192.0.2.6"), &taken, Ok(vec!["192.0.2.6"])),
            ("also of a pool on request", asks("198.51.100.7"), &taken, Ok(vec!["198.51.100.7"])),
            ("not a taken one", asks("192.0.2.1"), &taken, Err("in use by service n/other")),
            ("not one of nobody", asks("203.0.113.1"), &[], Err("not an address of a pool")),
            ("of both families", service("s", dual), &[], Ok(vec!["fd00::10", "192.0.2.1"])),
            (
                "of the pool it names",
                service("s", json!({"metadata":{"annotations":{POOL:"b"}}})),
                &[],
                Ok(vec!["198.51.100.7"]),
            ),
        ];
        for (name, service, all, wanted) in cases {
            match (given(&service, all), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted, "{name}"),
                (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{name}: {error}"),
                (found, wanted) => panic!("{name}: {found:?} instead of {wanted:?}"),
            }
        }
    }

    #[test]
    fn of_two_with_the_same_address_the_older_keeps_it() {
        let born = |name: &str, at: &str| {
            let mut more = shown("192.0.2.3");
            more["metadata"]["creationTimestamp"] = json!(at);
            service(name, more)
        };
        let all = [born("new", "2026-01-02T00:00:00Z"), born("old", "2026-01-01T00:00:00Z")];
        assert_eq!(given(&all[1], &all), Ok(vec!["192.0.2.3".into()]));
        assert_eq!(given(&all[0], &all), Ok(vec!["192.0.2.1".into()]));
    }
}
