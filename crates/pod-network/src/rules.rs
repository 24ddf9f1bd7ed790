//! The node's nftables table for pods: host ports, and the node's address for traffic that leaves the cluster.
//!
//! A pure function of the configuration and the leases.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cni::Protocol;
use ipnet::IpNet;
use netlink::nft::{
    Address, Base, Chain, ChainKind, CtKey, Data, Expr, Family, Hook, MetaKey, PRIORITY_DSTNAT,
    PRIORITY_SRCNAT, Rule, STATUS_DST_NAT, Set, TYPE_LOCAL, Table, Value, Verdict, types,
};
use rustix::io::Errno;

use crate::device::PREFIX;
use crate::lease::gateway;
use crate::overlay::DEVICE as OVERLAY;
use crate::{Config, Lease, NetworkError};

/// Before everything else.
const PRIORITY_RAW: i32 = -300;

/// The table for these leases.
pub fn table<'a>(config: &Config, leases: impl Iterator<Item = &'a Lease>) -> Table {
    let family = family(config.pod_cidr);
    let mut table = Table::new(family, config.bridge.clone());
    let mut any = BTreeMap::new();
    let mut by_address = BTreeMap::new();
    let mut hairpin = BTreeMap::new();
    let mut links = BTreeMap::new();
    let mut sources = BTreeMap::new();
    for lease in leases {
        let link = link_key(&lease.link);
        sources.insert([link.clone(), octets(lease.address)].concat(), Value::None);
        links.insert(link, Value::None);
        for port in &lease.host_ports {
            let target = Value::Bytes([octets(lease.address), padded(port.container_port)].concat());
            let service = [protocol(port.protocol).to_vec(), padded(port.host_port)].concat();
            match port.host_ip.filter(|ip| !ip.is_unspecified()) {
                Some(ip) if ip.is_ipv4() != lease.address.is_ipv4() => continue,
                Some(ip) => by_address.insert([octets(ip), service].concat(), target),
                None => any.insert(service, target),
            };
            hairpin.insert([octets(lease.address), octets(lease.address)].concat(), Value::None);
        }
    }
    let words = if family == Family::Ip { 1 } else { 4 };
    let address_type = if family == Family::Ip { types::IPV4 } else { types::IPV6 };
    let target =
        Data::Bytes { length: u32::from(words) * 4 + 4, types: types::concat(&[address_type, types::PORT]) };
    let mut add_set = |name: &str, key_words: u8, fields: &[u32], data: Data, elements| {
        let key_types = types::concat(fields);
        let key_length = u32::from(key_words) * 4;
        let set = Set { key_length, key_types, data, timeout: None, ranges: false, elements };
        table.sets.insert(name.to_owned(), set);
    };
    add_set("host-ports", 2, &[types::PROTOCOL, types::PORT], target, any);
    let fields = [address_type, types::PROTOCOL, types::PORT];
    add_set("host-address-ports", words + 2, &fields, target, by_address);
    add_set("links", 4, &[types::LINK], Data::None, links);
    add_set("sources", 4 + words, &[types::LINK, address_type], Data::None, sources);
    add_set("hairpin", 2 * words, &[address_type, address_type], Data::None, hairpin);

    let mut add_chain = |name: &str, base: Option<(ChainKind, Hook, i32)>, rules| {
        let base = base.map(|(kind, hook, priority)| Base { kind, hook, priority });
        table.chains.insert(name.to_owned(), Chain { base, rules });
    };
    let jump = || vec![vec![Expr::Verdict(Verdict::Jump("host-ports".to_owned()))]];
    add_chain("host-ports", None, host_port_rules(family, words));
    add_chain("nat-prerouting", Some((ChainKind::Nat, Hook::Prerouting, PRIORITY_DSTNAT)), jump());
    add_chain("nat-output", Some((ChainKind::Nat, Hook::Output, PRIORITY_DSTNAT)), jump());
    let leaving = postrouting_rules(config, family, words);
    add_chain("nat-postrouting", Some((ChainKind::Nat, Hook::Postrouting, PRIORITY_SRCNAT)), leaving);
    let mut guard: Vec<Rule> = gateway_guard(config, family).into_iter().collect();
    if family == Family::Ip {
        guard.push(loopback_guard());
    }
    guard.push(source_guard(family));
    add_chain("guard", Some((ChainKind::Filter, Hook::Prerouting, PRIORITY_RAW)), guard);
    table
}

fn host_port_rules(family: Family, words: u8) -> Vec<Rule> {
    let translate = || Expr::DestinationNat { family, address: 8, port: Some(8 + words) };
    let by_address = vec![
        Expr::Address { family, which: Address::Destination, to: 0 },
        Expr::Meta { key: MetaKey::Protocol, to: words },
        Expr::DestinationPort { to: words + 1 },
        Expr::Map { set: "host-address-ports".to_owned(), key: 0, to: 8 },
        translate(),
    ];
    let any = vec![
        Expr::AddressType { which: Address::Destination, to: 0 },
        Expr::Equal { reg: 0, value: TYPE_LOCAL.to_ne_bytes().to_vec() },
        Expr::Meta { key: MetaKey::Protocol, to: 0 },
        Expr::DestinationPort { to: 1 },
        Expr::Map { set: "host-ports".to_owned(), key: 0, to: 8 },
        translate(),
    ];
    vec![by_address, any]
}

fn postrouting_rules(config: &Config, family: Family, words: u8) -> Vec<Rule> {
    let translated = || {
        let bit = STATUS_DST_NAT.to_ne_bytes().to_vec();
        vec![
            Expr::Ct { key: CtKey::Status, to: 0 },
            Expr::Bits { reg: 0, mask: bit, xor: vec![0; 4] },
            Expr::NotEqual { reg: 0, value: vec![0; 4] },
        ]
    };
    // A pod that calls itself by its host port must see another address than its own.
    let mut hairpin = translated();
    hairpin.extend([
        Expr::Address { family, which: Address::Source, to: 0 },
        Expr::Address { family, which: Address::Destination, to: words },
        Expr::In { set: "hairpin".to_owned(), key: 0 },
        Expr::Masquerade,
    ]);
    let mut leaving = in_range(family, Address::Source, config.pod_cidr, true);
    leaving.extend(in_range(family, Address::Destination, config.cluster_cidr, false));
    leaving.push(Expr::Masquerade);
    let mut rules = vec![hairpin, leaving];
    if family == Family::Ip {
        // A pod cannot answer to 127.0.0.1.
        let mut loopback = translated();
        loopback.extend(in_range(family, Address::Source, LOOPBACK, true));
        loopback.extend(in_range(family, Address::Destination, LOOPBACK, false));
        loopback.push(Expr::Masquerade);
        rules.push(loopback);
    }
    rules
}

const LOOPBACK: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(127, 0, 0, 0), 8));

/// What is bound to a loopback address is for this machine. Links of pods route such addresses for the sake of host ports, and
/// other programs let other links do so: neither a pod nor a neighbour may use that (CVE-2020-8558).
fn loopback_guard() -> Rule {
    let mut rule = came_by_other_than(&["lo"]);
    rule.extend(in_range(Family::Ip, Address::Destination, LOOPBACK, true));
    rule.push(Expr::Verdict(Verdict::Drop));
    rule
}

/// What is bound to the gateway's address is for this machine and the cluster's pods. The kernel takes packets for any of its
/// addresses on any link, so a neighbour that sends them here would reach it.
fn gateway_guard(config: &Config, family: Family) -> Option<Rule> {
    let mut rule = came_by_other_than(&["lo", OVERLAY]);
    for prefix in [PREFIX, config.bridge.as_str()] {
        rule.push(Expr::Meta { key: MetaKey::InputName, to: 0 });
        rule.push(Expr::NotEqual { reg: 0, value: prefix.as_bytes().to_vec() });
    }
    rule.extend(in_range(family, Address::Destination, IpNet::from(gateway(config.pod_cidr)?), true));
    rule.push(Expr::Verdict(Verdict::Drop));
    Some(rule)
}

/// A pod sends with its own address or not at all. The kernel's own check (`rp_filter`) knows only IPv4, and is as weak as the
/// weakest setting of the host.
fn source_guard(family: Family) -> Rule {
    vec![
        Expr::Meta { key: MetaKey::InputName, to: 0 },
        Expr::In { set: "links".to_owned(), key: 0 },
        Expr::Address { family, which: Address::Source, to: 4 },
        Expr::NotIn { set: "sources".to_owned(), key: 0 },
        Expr::Verdict(Verdict::Drop),
    ]
}

/// A link's name as the kernel compares it.
fn link_key(name: &str) -> Vec<u8> {
    let mut key = name.as_bytes().to_vec();
    key.resize(16, 0);
    key
}

/// Goes on if the packet came by a link that has none of these names.
fn came_by_other_than(names: &[&str]) -> Rule {
    let differs = |name: &&str| {
        let value = [name.as_bytes(), &[0]].concat();
        [Expr::Meta { key: MetaKey::InputName, to: 0 }, Expr::NotEqual { reg: 0, value }]
    };
    names.iter().flat_map(differs).collect()
}

/// Goes on if the address is in the range, or is not.
fn in_range(family: Family, which: Address, range: IpNet, inside: bool) -> Rule {
    let value = octets(range.network());
    let xor = vec![0; value.len()];
    let compare = if inside { Expr::Equal { reg: 0, value } } else { Expr::NotEqual { reg: 0, value } };
    vec![
        Expr::Address { family, which, to: 0 },
        Expr::Bits { reg: 0, mask: octets(range.netmask()), xor },
        compare,
    ]
}

/// The table family for an address range.
pub fn family(range: IpNet) -> Family {
    if range.addr().is_ipv4() { Family::Ip } else { Family::Ip6 }
}

/// Says what is missing when the kernel refuses rules.
pub fn explain(source: netlink::Error) -> NetworkError {
    let socket = match &source {
        netlink::Error::Open { source, .. } => Errno::from_io_error(source),
        _ => None,
    };
    match source.errno().or(socket) {
        Some(Errno::PERM | Errno::ACCESS) => NetworkError::NotPermitted { source },
        Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::NOENT | Errno::INVAL) => {
            NetworkError::Missing {
                feature: "nftables with NAT",
                remedy: "load the modules (modprobe nf_tables nft_nat nft_masq nft_fib_ipv4) or use a kernel with \
                     CONFIG_NF_TABLES and CONFIG_NFT_NAT",
                source,
            }
        }
        _ => NetworkError::Kernel { doing: "pod network rules cannot be written", source },
    }
}

fn protocol(protocol: Protocol) -> [u8; 4] {
    let number = match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    };
    [number, 0, 0, 0]
}

fn padded(port: u16) -> Vec<u8> {
    let [high, low] = port.to_be_bytes();
    vec![high, low, 0, 0]
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
