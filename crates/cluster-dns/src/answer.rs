//! The answer to a question about the cluster, by the Kubernetes DNS specification 1.1.0. Pure.
//!
//! A name that exists without records of the asked type is answered with nothing but the zone's `SOA`; a name that does
//! not exist with `NXDOMAIN` and the `SOA`. Questions about other domains are not answered here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::types::Port;
use crate::wire::{Code, Data, Question, Record, Response, kind};
use crate::zone::{Entry, Zone};

const VERSION: &str = "1.1.0";
/// Endpoints come and go; resolvers should ask again soon.
const TTL: u32 = 5;
/// An alias may lead to an alias, but not for ever.
const MOST_ALIASES: usize = 8;

/// Answers what the cluster knows; `None` for names that are someone else's.
pub fn answer(question: &Question, zone: &Zone) -> Option<Response> {
    if let Some(address) = reverse_address(&question.name) {
        return reverse(question, address, zone);
    }
    let inside = relative(&question.name, zone)?;
    let mut response = Response { authoritative: true, ..Response::default() };
    match find(&question.name, inside, zone) {
        None => response.code = Code::NoSuchName,
        Some(records) => {
            let wanted = |record: &Record| question.kind == kind::ANY || record.data.kind() == question.kind;
            match records.first() {
                Some(Record { data: Data::Cname(target), .. }) if question.kind != kind::CNAME => {
                    response.answers.push(records[0].clone());
                    follow(target, question.kind, zone, &mut response.answers);
                }
                _ => response.answers = records.into_iter().filter(wanted).collect(),
            }
        }
    }
    for record in &response.answers {
        if let Data::Srv { target, .. } = &record.data
            && let Some(found) = relative(target, zone).and_then(|inside| find(target, inside, zone))
        {
            let addresses =
                found.into_iter().filter(|record| matches!(record.data, Data::A(_) | Data::Aaaa(_)));
            for address in addresses {
                if !response.additional.contains(&address) {
                    response.additional.push(address);
                }
            }
        }
    }
    if response.answers.is_empty() {
        response.authority.push(soa(zone));
    }
    Some(response)
}

/// The name that an answer leads to outside the zone, if its last record is an alias.
pub fn open_alias<'a>(response: &'a Response, zone: &Zone) -> Option<&'a str> {
    match response.answers.last() {
        Some(Record { data: Data::Cname(target), .. }) if relative(target, zone).is_none() => Some(target),
        _ => None,
    }
}

fn follow(target: &str, kind: u16, zone: &Zone, answers: &mut Vec<Record>) {
    let mut target = target.to_owned();
    for _ in 0..MOST_ALIASES {
        let Some(found) = relative(&target, zone).and_then(|inside| find(&target, inside, zone)) else {
            return;
        };
        match found.first() {
            Some(alias @ Record { data: Data::Cname(next), .. }) => {
                target = next.clone();
                answers.push(alias.clone());
            }
            _ => return answers.extend(found.into_iter().filter(|record| record.data.kind() == kind)),
        }
    }
}

/// The part of a name before the zone's domain; `None` outside.
fn relative<'a>(name: &'a str, zone: &Zone) -> Option<&'a str> {
    let before = name.strip_suffix(zone.domain.as_str())?;
    if before.is_empty() { Some(before) } else { before.strip_suffix('.') }
}

/// All records of a name in the zone; `None` if the name does not exist.
fn find(name: &str, inside: &str, zone: &Zone) -> Option<Vec<Record>> {
    let record = |data| Record { name: name.to_owned(), ttl: TTL, data };
    let labels: Vec<&str> = if inside.is_empty() { Vec::new() } else { inside.split('.').collect() };
    match labels.as_slice() {
        [] => Some(vec![soa(zone), record(Data::Ns(format!("ns.dns.{}", zone.domain)))]),
        ["dns-version"] => Some(vec![record(Data::Txt(VERSION.to_owned()))]),
        ["dns" | "svc" | "pod"] => Some(Vec::new()),
        ["ns", "dns"] => {
            // The zone's own server is reached as the Service of that name; without it the name is only a name.
            match zone.get("kube-system", "kube-dns") {
                Some(Entry::Cluster { addresses, .. }) => {
                    Some(addresses.iter().map(|a| record(host(*a))).collect())
                }
                _ => Some(Vec::new()),
            }
        }
        [namespace, "svc" | "pod"] => zone.has_namespace(namespace).then(Vec::new),
        [address, namespace, "pod"] if zone.has_namespace(namespace) => {
            Some(vec![record(host(pod_address(address)?))])
        }
        [rest @ .., service, namespace, "svc"] => {
            let owner = zone.service_name(namespace, service);
            service_records(rest, &owner, zone.get(namespace, service)?, record)
        }
        _ => None,
    }
}

fn service_records(
    labels: &[&str],
    owner: &str,
    entry: &Entry,
    record: impl Fn(Data) -> Record,
) -> Option<Vec<Record>> {
    let targets = targets(owner, entry);
    match (labels, entry) {
        ([], Entry::External { name }) => Some(vec![record(Data::Cname(name.clone()))]),
        ([], _) => {
            let mut records: Vec<Record> = Vec::new();
            for target in &targets {
                records.extend(target.addresses.iter().map(|address| record(host(*address))));
            }
            let named = |port: &&Port| !port.name.is_empty();
            let services = targets.iter().flat_map(|t| t.ports.iter().filter(named).map(|port| t.srv(port)));
            records.extend(services.map(record));
            Some(records)
        }
        ([protocol], _) if protocol.starts_with('_') => {
            let exists = targets.iter().flat_map(|t| t.ports).any(|port| is_protocol(port, protocol));
            exists.then(Vec::new)
        }
        ([label], Entry::Headless { endpoints }) => {
            let of_label = endpoints.iter().filter(|endpoint| endpoint.label == *label);
            let records: Vec<Record> = of_label.map(|endpoint| record(host(endpoint.address))).collect();
            (!records.is_empty()).then_some(records)
        }
        ([name, protocol], _) => {
            let matches = |port: &&Port| {
                !port.name.is_empty()
                    && name.strip_prefix('_') == Some(&*port.name)
                    && is_protocol(port, protocol)
            };
            let services =
                targets.iter().flat_map(|t| t.ports.iter().filter(matches).map(|port| t.srv(port)));
            let records: Vec<Record> = services.map(record).collect();
            (!records.is_empty()).then_some(records)
        }
        _ => None,
    }
}

fn is_protocol(port: &Port, label: &str) -> bool {
    label.strip_prefix('_') == Some(port.protocol.name())
}

/// Something with a name, addresses and ports behind a Service.
struct Target<'a> {
    name: String,
    addresses: Vec<IpAddr>,
    ports: &'a [Port],
    weight: u16,
}

impl Target<'_> {
    fn srv(&self, port: &Port) -> Data {
        Data::Srv { priority: 0, weight: self.weight, port: port.port, target: self.name.clone() }
    }
}

fn targets<'a>(owner: &str, entry: &'a Entry) -> Vec<Target<'a>> {
    match entry {
        Entry::Cluster { addresses, ports } => {
            vec![Target { name: owner.to_owned(), addresses: addresses.clone(), ports, weight: 100 }]
        }
        Entry::Headless { endpoints } => {
            let weight = (100 / endpoints.len().max(1)).max(1) as u16;
            let target = |endpoint: &'a crate::zone::Endpoint| Target {
                name: format!("{}.{owner}", endpoint.label),
                addresses: vec![endpoint.address],
                ports: &endpoint.ports,
                weight,
            };
            endpoints.iter().map(target).collect()
        }
        Entry::External { .. } => Vec::new(),
    }
}

/// Addresses that the cluster does not know may be known elsewhere.
fn reverse(question: &Question, address: IpAddr, zone: &Zone) -> Option<Response> {
    let record =
        |name: &String| Record { name: question.name.clone(), ttl: TTL, data: Data::Ptr(name.clone()) };
    let names: Vec<Record> = zone.names_of(address).map(record).collect();
    if names.is_empty() {
        return None;
    }
    let is_wanted = matches!(question.kind, kind::PTR | kind::ANY);
    let (answers, authority) = if is_wanted { (names, Vec::new()) } else { (Vec::new(), vec![soa(zone)]) };
    Some(Response { authoritative: true, answers, authority, ..Response::default() })
}

/// The address that a name under `in-addr.arpa` or `ip6.arpa` is about.
fn reverse_address(name: &str) -> Option<IpAddr> {
    if let Some(digits) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<u8> = digits.split('.').rev().map(str::parse).collect::<Result<_, _>>().ok()?;
        return Some(Ipv4Addr::from(<[u8; 4]>::try_from(octets).ok()?).into());
    }
    let digits = name.strip_suffix(".ip6.arpa")?;
    let nibbles: Vec<u128> = digits
        .split('.')
        .map(|digit| u128::from_str_radix(digit, 16).ok().filter(|n| *n < 16))
        .collect::<Option<_>>()?;
    if nibbles.len() != 32 {
        return None;
    }
    let number = nibbles.iter().rev().fold(0u128, |all, nibble| all << 4 | nibble);
    Some(Ipv6Addr::from(number).into())
}

/// The address in a pod's name; pods are not looked up, the name itself says the address.
fn pod_address(label: &str) -> Option<IpAddr> {
    let v4: Option<Ipv4Addr> = label.replace('-', ".").parse().ok();
    v4.map(IpAddr::from).or_else(|| label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::from))
}

fn host(address: IpAddr) -> Data {
    match address {
        IpAddr::V4(v4) => Data::A(v4),
        IpAddr::V6(v6) => Data::Aaaa(v6),
    }
}

fn soa(zone: &Zone) -> Record {
    let data = Data::Soa {
        server: format!("ns.dns.{}", zone.domain),
        mailbox: format!("hostmaster.{}", zone.domain),
        serial: zone.serial,
        minimum: TTL,
    };
    Record { name: zone.domain.clone(), ttl: TTL, data }
}

#[cfg(test)]
mod tests;
