//! A [`Model`] as nftables rules. Pure.
//!
//! ```text
//! forward ─► answers and errors of connections that exist: pass
//!         ─► a pod whose policies are not known yet, at either end: drop
//!         ─► a pod that calls itself by a Service: pass
//!         ─► TCP of an isolated pod that is no beginning: drop (its connection was ended)
//!         ─► source in `egress`:       a chain per group that returns for what is allowed and drops the rest
//!         ─► destination in `ingress`: the same
//! ```
//!
//! Only forwarded packets are looked at: what a pod's own node sends to it (probes) or gets from it is always allowed, as
//! upstream has it. Destinations are translated before and sources after, so a policy sees pods, not Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use netlink::nft::{
    Address, Base, Chain, ChainKind, CtKey, Data, Expr, Family, Hook, MetaKey, PRIORITY_FILTER, Rule,
    STATE_ESTABLISHED, STATE_RELATED, Set, Table, Value, Verdict, types,
};

use crate::model::{Allow, Model, Peers, Ports};
use crate::types::{Direction, Protocol};

const ADMITTED: &str = "admitted";
const ITSELF: &str = "itself";
const ISOLATED: &str = "isolated";
const INGRESS: &str = "ingress";
const EGRESS: &str = "egress";
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// What is the same for every model of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The table's name.
    pub table: String,
    /// The node's pod addresses. The pod network sees to it that a pod sends with its own.
    pub ranges: Vec<IpNet>,
}

/// The rules of one address family.
pub fn table(frame: &Frame, model: &Model, family: Family) -> Table {
    let writer = Writer { family, is_v4: family == Family::Ip };
    let mut table = Table::new(family, frame.table.clone());
    writer.sets(model, &mut table);
    let forward = Base { kind: ChainKind::Filter, hook: Hook::Forward, priority: PRIORITY_FILTER };
    let rules = writer.forward(frame);
    table.chains.insert("forward".to_owned(), Chain { base: Some(forward), rules });
    for (name, group) in &model.groups {
        let mut rules: Vec<Rule> =
            group.allows.iter().map(|allow| writer.allow(group.direction, allow)).collect();
        rules.push(vec![Expr::Counter, Expr::Verdict(Verdict::Drop)]);
        table.chains.insert(name.clone(), Chain { base: None, rules });
    }
    table
}

struct Writer {
    family: Family,
    is_v4: bool,
}

impl Writer {
    fn words(&self) -> u8 {
        if self.is_v4 { 1 } else { 4 }
    }

    fn address_type(&self) -> u32 {
        if self.is_v4 { types::IPV4 } else { types::IPV6 }
    }

    fn address_set(&self, data: Data, elements: BTreeMap<Vec<u8>, Value>) -> Set {
        let key_length = u32::from(self.words()) * 4;
        Set { key_length, key_types: self.address_type(), data, timeout: None, ranges: false, elements }
    }

    fn members<'a>(&self, addresses: impl Iterator<Item = &'a IpAddr>) -> BTreeMap<Vec<u8>, Value> {
        let ours = addresses.filter(|address| address.is_ipv4() == self.is_v4);
        ours.map(|address| (octets(*address), Value::None)).collect()
    }

    fn sets(&self, model: &Model, table: &mut Table) {
        let mut add = |name: &str, set: Set| {
            table.sets.insert(name.to_owned(), set);
        };
        let isolated: BTreeSet<IpAddr> = model.ingress.keys().chain(model.egress.keys()).copied().collect();
        let itself = isolated.iter().filter(|address| address.is_ipv4() == self.is_v4);
        let itself = itself.map(|address| ([octets(*address), octets(*address)].concat(), Value::None));
        let pair = Set {
            key_length: u32::from(self.words()) * 8,
            key_types: types::concat(&[self.address_type(), self.address_type()]),
            ..self.address_set(Data::None, itself.collect())
        };
        add(ADMITTED, self.address_set(Data::None, self.members(model.admitted.iter())));
        add(ISOLATED, self.address_set(Data::None, self.members(isolated.iter())));
        add(ITSELF, pair);
        for (name, groups) in [(INGRESS, &model.ingress), (EGRESS, &model.egress)] {
            let ours = groups.iter().filter(|(address, _)| address.is_ipv4() == self.is_v4);
            let jump = |group: &String| Value::Verdict(Verdict::Jump(group.clone()));
            let elements = ours.map(|(address, group)| (octets(*address), jump(group)));
            add(name, self.address_set(Data::Verdict, elements.collect()));
        }
        for (name, pods) in &model.pods {
            add(name, self.address_set(Data::None, self.members(pods.iter())));
        }
        for (name, blocks) in &model.blocks {
            let ours = blocks.iter().filter(|block| block.is_v4 == self.is_v4);
            let bytes = |number: u128| {
                let all = number.to_be_bytes();
                if self.is_v4 { all[12..].to_vec() } else { all.to_vec() }
            };
            let highest = if self.is_v4 { u128::from(u32::MAX) } else { u128::MAX };
            let mut elements = BTreeMap::new();
            for block in ours {
                elements.insert(bytes(block.first), Value::None);
                if block.last < highest {
                    elements.insert(bytes(block.last + 1), Value::End);
                }
            }
            add(name, Set { ranges: true, ..self.address_set(Data::None, elements) });
        }
        for (name, ranges) in &model.ports {
            let mut elements = BTreeMap::new();
            for (first, last) in ranges {
                elements.insert(first.to_be_bytes().to_vec(), Value::None);
                if let Some(end) = last.checked_add(1) {
                    elements.insert(end.to_be_bytes().to_vec(), Value::End);
                }
            }
            let set = Set { key_length: 2, key_types: types::PORT, ..self.address_set(Data::None, elements) };
            add(name, Set { ranges: true, ..set });
        }
        for (name, targets) in &model.targets {
            let ours = targets.iter().filter(|(address, ..)| address.is_ipv4() == self.is_v4);
            let key = |(address, protocol, port): &(IpAddr, Protocol, u16)| {
                let [high, low] = port.to_be_bytes();
                let rest = [protocol.number(), 0, 0, 0, high, low, 0, 0];
                ([octets(*address).as_slice(), &rest].concat(), Value::None)
            };
            let set = Set {
                key_length: u32::from(self.words()) * 4 + 8,
                key_types: types::concat(&[self.address_type(), types::PROTOCOL, types::PORT]),
                ..self.address_set(Data::None, ours.map(key).collect())
            };
            add(name, set);
        }
    }

    fn forward(&self, frame: &Frame) -> Vec<Rule> {
        let known = (STATE_ESTABLISHED | STATE_RELATED).to_ne_bytes().to_vec();
        let mut rules = vec![vec![
            Expr::Ct { key: CtKey::State, to: 0 },
            Expr::Bits { reg: 0, mask: known, xor: vec![0; 4] },
            Expr::NotEqual { reg: 0, value: vec![0; 4] },
            Expr::Verdict(Verdict::Accept),
        ]];
        for range in frame.ranges.iter().filter(|range| range.addr().is_ipv4() == self.is_v4) {
            let mask = octets(range.netmask());
            let xor = vec![0; mask.len()];
            for which in [Address::Source, Address::Destination] {
                rules.push(vec![
                    self.address(which),
                    Expr::Bits { reg: 0, mask: mask.clone(), xor: xor.clone() },
                    Expr::Equal { reg: 0, value: octets(range.network()) },
                    self.address(which),
                    Expr::NotIn { set: ADMITTED.to_owned(), key: 0 },
                    Expr::Verdict(Verdict::Drop),
                ]);
            }
        }
        rules.push(vec![
            self.address(Address::Source),
            Expr::Address { family: self.family, which: Address::Destination, to: self.words() },
            Expr::In { set: ITSELF.to_owned(), key: 0 },
            Expr::Verdict(Verdict::Accept),
        ]);
        for which in [Address::Source, Address::Destination] {
            rules.push(vec![
                Expr::Meta { key: MetaKey::Protocol, to: 0 },
                Expr::Equal { reg: 0, value: vec![Protocol::Tcp.number()] },
                Expr::TcpFlags { to: 0 },
                Expr::Bits { reg: 0, mask: vec![SYN | ACK], xor: vec![0] },
                Expr::NotEqual { reg: 0, value: vec![SYN] },
                self.address(which),
                Expr::In { set: ISOLATED.to_owned(), key: 0 },
                Expr::Verdict(Verdict::Drop),
            ]);
        }
        for (which, map) in [(Address::Source, EGRESS), (Address::Destination, INGRESS)] {
            rules.push(vec![self.address(which), Expr::VerdictMap { set: map.to_owned(), key: 0 }]);
        }
        rules
    }

    fn address(&self, which: Address) -> Expr {
        Expr::Address { family: self.family, which, to: 0 }
    }

    fn allow(&self, direction: Direction, allow: &Allow) -> Rule {
        let far = match direction {
            Direction::Ingress => Address::Source,
            Direction::Egress => Address::Destination,
        };
        let mut rule = Vec::new();
        match allow {
            Allow::Targets(set) => {
                let words = self.words();
                rule.extend([
                    self.address(far),
                    Expr::Meta { key: MetaKey::Protocol, to: words },
                    Expr::DestinationPort { to: words + 1 },
                    Expr::In { set: set.clone(), key: 0 },
                ]);
            }
            Allow::Peers { peers, ports } => {
                if let Peers::Pods(set) | Peers::Blocks(set) = peers {
                    rule.extend([self.address(far), Expr::In { set: set.clone(), key: 0 }]);
                }
                port_rule(ports, &mut rule);
            }
        }
        rule.push(Expr::Verdict(Verdict::Return));
        rule
    }
}

fn port_rule(ports: &Ports, rule: &mut Rule) {
    let (Ports::All(protocol) | Ports::Range(protocol, ..) | Ports::Set(protocol, _)) = ports else { return };
    rule.push(Expr::Meta { key: MetaKey::Protocol, to: 0 });
    rule.push(Expr::Equal { reg: 0, value: vec![protocol.number()] });
    match ports {
        Ports::Anything | Ports::All(_) => {}
        Ports::Range(_, first, last) => {
            let (from, to) = (first.to_be_bytes().to_vec(), last.to_be_bytes().to_vec());
            rule.push(Expr::DestinationPort { to: 0 });
            rule.push(if first == last {
                Expr::Equal { reg: 0, value: from }
            } else {
                Expr::Between { reg: 0, from, to }
            });
        }
        Ports::Set(_, set) => {
            rule.push(Expr::DestinationPort { to: 0 });
            rule.push(Expr::In { set: set.clone(), key: 0 });
        }
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}
