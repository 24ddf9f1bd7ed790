//! The part of the table that is the same for every set of Services: base chains, sets, and small rule builders.
//!
//! ```text
//! prerouting, output  ─► services ─► service-ips / service-nodeports ─► a chain per Service port ─► DNAT
//! before that         ─► firewall: source ranges of load balancers
//! after that          ─► endpoints-check: what was not translated but should have been is refused
//! postrouting         ─► masquerade what is marked, and what returns to its sender
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::nft::{
    Address, Base, Chain, ChainKind, CtKey, Data, Expr, Family, Hook, MetaKey, PRIORITY_DSTNAT,
    PRIORITY_SRCNAT, Rule, STATE_NEW, STATUS_DST_NAT, Set, TYPE_LOCAL, Table, Verdict, types,
};

use crate::types::Transport;

/// Upstream's name too: whichever proxy starts takes over from the other.
pub const TABLE: &str = "kube-proxy";
/// The mark of packets whose source must become the node's address.
const MASQUERADE_MARK: u32 = 0x4000;
/// The chain that refuses packets; plain `reject` is a word of the `nft` language.
pub const REJECT: &str = "reject-chain";

/// The sets that all Services share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetName {
    /// address . protocol . port → what to do.
    ServiceIps,
    /// protocol . port → what to do.
    NodePorts,
    NoEndpointServices,
    NoEndpointNodePorts,
    /// address . protocol . port → source check, before translation.
    Firewall,
    /// pool . number → address . port. Sixteen maps share the pools: for each new element the kernel goes through all rules that
    /// use its map (one map would cost the product), and for each map that a rule names through the table's list of maps (a map
    /// per Service would cost their square).
    Endpoints(u8),
    /// Every cluster address: ports of it that no Service has are refused.
    ClusterIps,
    /// address . address of endpoints: who calls itself.
    Hairpin,
}

impl SetName {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let single = [
            Self::ServiceIps,
            Self::NodePorts,
            Self::NoEndpointServices,
            Self::NoEndpointNodePorts,
            Self::Firewall,
            Self::ClusterIps,
            Self::Hairpin,
        ];
        single.into_iter().chain((0..16).map(Self::Endpoints))
    }

    pub fn name(self) -> &'static str {
        const SHARDS: [&str; 16] = [
            "endpoints-0",
            "endpoints-1",
            "endpoints-2",
            "endpoints-3",
            "endpoints-4",
            "endpoints-5",
            "endpoints-6",
            "endpoints-7",
            "endpoints-8",
            "endpoints-9",
            "endpoints-a",
            "endpoints-b",
            "endpoints-c",
            "endpoints-d",
            "endpoints-e",
            "endpoints-f",
        ];
        match self {
            Self::ServiceIps => "service-ips",
            Self::NodePorts => "service-nodeports",
            Self::NoEndpointServices => "no-endpoint-services",
            Self::NoEndpointNodePorts => "no-endpoint-nodeports",
            Self::Firewall => "firewall-ips",
            Self::ClusterIps => "cluster-ips",
            Self::Hairpin => "hairpin",
            Self::Endpoints(shard) => SHARDS[usize::from(shard % 16)],
        }
    }

    /// The set, empty.
    pub fn shape(self, family: Family) -> Set {
        let address = if family == Family::Ip { types::IPV4 } else { types::IPV6 };
        let target = Data::Bytes {
            length: u32::from(words(family)) * 4 + 4,
            types: types::concat(&[address, types::PORT]),
        };
        // A pool's own number takes two words.
        let (fields, data): (&[u32], Data) = match self {
            Self::Endpoints(_) => (&[types::NUMBER, types::NUMBER, types::NUMBER], target),
            Self::ServiceIps | Self::NoEndpointServices | Self::Firewall => {
                (&[address, types::PROTOCOL, types::PORT], Data::Verdict)
            }
            Self::NodePorts | Self::NoEndpointNodePorts => (&[types::PROTOCOL, types::PORT], Data::Verdict),
            Self::ClusterIps => (&[address], Data::None),
            Self::Hairpin => (&[address, address], Data::None),
        };
        let length = |field: &u32| if *field == types::IPV6 { 16 } else { 4 };
        Set {
            key_length: fields.iter().map(length).sum(),
            key_types: types::concat(fields),
            data,
            timeout: None,
            ranges: false,
            elements: BTreeMap::new(),
        }
    }
}

/// What shapes the shared part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub table: String,
    pub family: Family,
    /// Local addresses in these ranges answer on node ports.
    pub node_port_ranges: Vec<IpNet>,
}

/// The table without any Service.
pub fn skeleton(frame: &Frame) -> Table {
    let family = frame.family;
    let mut table = Table::new(family, frame.table.clone());
    for set in SetName::all() {
        table.sets.insert(set.name().to_owned(), set.shape(family));
    }
    let mut add = |name: &str, base: Option<(ChainKind, Hook, i32)>, rules: Vec<Rule>| {
        let base = base.map(|(kind, hook, priority)| Base { kind, hook, priority });
        table.chains.insert(name.to_owned(), Chain { base, rules });
    };
    let jump = |chain: &str| Expr::Verdict(Verdict::Jump(chain.to_owned()));
    let node_ports = |set: SetName| {
        let ranges =
            frame.node_port_ranges.iter().filter(|range| range.addr().is_ipv4() == (family == Family::Ip));
        ranges.map(move |range| node_port_rule(family, *range, set)).collect::<Vec<_>>()
    };

    let mut services = vec![service_rule(family, SetName::ServiceIps)];
    services.extend(node_ports(SetName::NodePorts));
    add("services", None, services);
    add(
        "nat-prerouting",
        Some((ChainKind::Nat, Hook::Prerouting, PRIORITY_DSTNAT)),
        vec![vec![jump("services")]],
    );
    add("nat-output", Some((ChainKind::Nat, Hook::Output, PRIORITY_DSTNAT)), vec![vec![jump("services")]]);
    add(
        "nat-postrouting",
        Some((ChainKind::Nat, Hook::Postrouting, PRIORITY_SRCNAT)),
        vec![masquerade_marked(), masquerade_hairpin(family)],
    );

    let mut check = vec![service_rule(family, SetName::NoEndpointServices)];
    check.extend(node_ports(SetName::NoEndpointNodePorts));
    check.push(vec![
        Expr::Address { family, which: Address::Destination, to: 0 },
        Expr::In { set: SetName::ClusterIps.name().to_owned(), key: 0 },
        Expr::Verdict(Verdict::Goto(REJECT.to_owned())),
    ]);
    add("endpoints-check", None, check);
    let only_new = |chain: &str| {
        vec![vec![
            Expr::Ct { key: CtKey::State, to: 0 },
            Expr::Bits { reg: 0, mask: STATE_NEW.to_ne_bytes().to_vec(), xor: vec![0; 4] },
            Expr::NotEqual { reg: 0, value: vec![0; 4] },
            jump(chain),
        ]]
    };
    let after = PRIORITY_DSTNAT + 10;
    add("filter-prerouting", Some((ChainKind::Filter, Hook::Prerouting, after)), only_new("endpoints-check"));
    add("filter-output", Some((ChainKind::Filter, Hook::Output, after)), only_new("endpoints-check"));
    let before = PRIORITY_DSTNAT - 10;
    add("firewall", None, vec![service_rule(family, SetName::Firewall)]);
    add("firewall-prerouting", Some((ChainKind::Filter, Hook::Prerouting, before)), only_new("firewall"));
    add("firewall-output", Some((ChainKind::Filter, Hook::Output, before)), only_new("firewall"));
    let tcp = vec![
        Expr::Meta { key: MetaKey::Protocol, to: 0 },
        Expr::Equal { reg: 0, value: vec![Transport::Tcp.number()] },
        Expr::RejectReset,
    ];
    add(REJECT, None, vec![tcp, vec![Expr::RejectPort { family }]]);
    table
}

fn service_rule(family: Family, set: SetName) -> Rule {
    let words = words(family);
    vec![
        Expr::Address { family, which: Address::Destination, to: 0 },
        Expr::Meta { key: MetaKey::Protocol, to: words },
        Expr::DestinationPort { to: words + 1 },
        Expr::VerdictMap { set: set.name().to_owned(), key: 0 },
    ]
}

fn node_port_rule(family: Family, range: IpNet, set: SetName) -> Rule {
    let mut rule = is_local(Address::Destination);
    rule.extend(in_range(family, Address::Destination, range, true));
    rule.extend([
        Expr::Meta { key: MetaKey::Protocol, to: 0 },
        Expr::DestinationPort { to: 1 },
        Expr::VerdictMap { set: set.name().to_owned(), key: 0 },
    ]);
    rule
}

fn masquerade_marked() -> Rule {
    let bit = MASQUERADE_MARK.to_ne_bytes().to_vec();
    let others = (!MASQUERADE_MARK).to_ne_bytes().to_vec();
    vec![
        Expr::Meta { key: MetaKey::Mark, to: 0 },
        Expr::Bits { reg: 0, mask: bit, xor: vec![0; 4] },
        Expr::NotEqual { reg: 0, value: vec![0; 4] },
        // The packet may pass here again, inside a tunnel: it must not be masked twice.
        Expr::Meta { key: MetaKey::Mark, to: 0 },
        Expr::Bits { reg: 0, mask: others, xor: vec![0; 4] },
        Expr::SetMark { from: 0 },
        Expr::Masquerade,
    ]
}

fn masquerade_hairpin(family: Family) -> Rule {
    vec![
        Expr::Ct { key: CtKey::Status, to: 0 },
        Expr::Bits { reg: 0, mask: STATUS_DST_NAT.to_ne_bytes().to_vec(), xor: vec![0; 4] },
        Expr::NotEqual { reg: 0, value: vec![0; 4] },
        Expr::Address { family, which: Address::Source, to: 0 },
        Expr::Address { family, which: Address::Destination, to: words(family) },
        Expr::In { set: SetName::Hairpin.name().to_owned(), key: 0 },
        Expr::Masquerade,
    ]
}

/// Marks the packet, so that its source becomes the node's address on the way out.
pub fn mark() -> Rule {
    vec![
        Expr::Meta { key: MetaKey::Mark, to: 0 },
        Expr::Bits {
            reg: 0,
            mask: (!MASQUERADE_MARK).to_ne_bytes().to_vec(),
            xor: MASQUERADE_MARK.to_ne_bytes().to_vec(),
        },
        Expr::SetMark { from: 0 },
    ]
}

/// Goes on if the address belongs to this host.
pub fn is_local(which: Address) -> Rule {
    vec![Expr::AddressType { which, to: 0 }, Expr::Equal { reg: 0, value: TYPE_LOCAL.to_ne_bytes().to_vec() }]
}

/// Goes on if the address is in the range, or is not.
pub fn in_range(family: Family, which: Address, range: IpNet, inside: bool) -> Rule {
    if range.prefix_len() == 0 && inside {
        return Vec::new();
    }
    let value = octets(range.network());
    let xor = vec![0; value.len()];
    let compare = if inside { Expr::Equal { reg: 0, value } } else { Expr::NotEqual { reg: 0, value } };
    let mask = octets(range.netmask());
    vec![Expr::Address { family, which, to: 0 }, Expr::Bits { reg: 0, mask, xor }, compare]
}

/// How many registers an address takes.
pub fn words(family: Family) -> u8 {
    if family == Family::Ip { 1 } else { 4 }
}

pub fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
