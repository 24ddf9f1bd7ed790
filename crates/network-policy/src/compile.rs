//! From API objects to a [`Model`]: who is isolated, and what policies allow. Pure.
//!
//! A pod that at least one policy selects for a direction is isolated in it, and may do what any of them allows. Pods with the
//! same policies share a group, and equal selections share a set, so the work per packet depends neither on the number of
//! pods nor on that of policies that do not concern it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use client::{Key, Labels, Word};
use ipnet::IpNet;
use sha2::{Digest, Sha256};

use crate::model::{Allow, Block, Group, Model, Peers, Ports, number};
use crate::types::{
    Direction, IpBlock, Namespace, NetworkPolicy, Peer, Pod, PolicyPort, PolicyRule, PortId, Protocol,
};

/// A pod's link on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub addresses: Vec<IpAddr>,
}

/// The cluster as this node knows it.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub node: &'a str,
    pub policies: &'a [Arc<NetworkPolicy>],
    pub pods: &'a [Arc<Pod>],
    pub namespaces: &'a [Arc<Namespace>],
    pub attached: &'a [Attached],
}

/// What this node enforces.
pub fn compile(view: &View<'_>) -> Model {
    let mut compiler = Compiler::new(view);
    for link in view.attached {
        compiler.attach(link);
    }
    compiler.model
}

/// Pods that no selector tells apart.
#[derive(Default)]
struct Kin<'a> {
    pods: Vec<(&'a Pod, Vec<IpAddr>)>,
}

struct Compiler<'a> {
    by_key: HashMap<(&'a str, &'a str), &'a Arc<Pod>>,
    kin: HashMap<(&'a Word, &'a Labels), Kin<'a>>,
    namespaces: HashMap<&'a str, &'a Labels>,
    policies: HashMap<&'a str, Vec<&'a NetworkPolicy>>,
    model: Model,
}

impl<'a> Compiler<'a> {
    fn new(view: &'a View<'a>) -> Self {
        let mut policies: HashMap<&str, Vec<&NetworkPolicy>> = HashMap::new();
        for policy in view.policies {
            policies.entry(&policy.metadata.namespace).or_default().push(policy);
        }
        let by_key: HashMap<_, _> =
            view.pods.iter().map(|pod| ((&*pod.metadata.namespace, &*pod.metadata.name), pod)).collect();
        let mut links: HashMap<(&str, &str), Vec<IpAddr>> = HashMap::new();
        for link in view.attached {
            let key = (link.namespace.as_str(), link.name.as_str());
            if by_key.get(&key).is_some_and(|pod| pod.is(&link.uid)) {
                links.entry(key).or_default().extend(&link.addresses);
            }
        }
        let mut kin: HashMap<_, Kin<'_>> = HashMap::new();
        for pod in view.pods.iter().filter(|pod| !pod.spec.host_network) {
            // What is on this node is known better here than in the API, which learns of addresses later.
            let addresses: Vec<IpAddr> = match &*pod.spec.node_name == view.node {
                true => links.remove(&(&*pod.metadata.namespace, &*pod.metadata.name)).unwrap_or_default(),
                false => pod.addresses().collect(),
            };
            if !addresses.is_empty() {
                let key = (&pod.metadata.namespace, &pod.metadata.labels);
                kin.entry(key).or_default().pods.push((pod, addresses));
            }
        }
        let namespaces =
            view.namespaces.iter().map(|one| (&*one.metadata.name, &one.metadata.labels)).collect();
        Self { by_key, kin, namespaces, policies, model: Model::default() }
    }

    fn attach(&mut self, link: &Attached) {
        // A pod that the API does not know has no labels to select it by: it stays shut.
        let key = (link.namespace.as_str(), link.name.as_str());
        let Some(pod) = self.by_key.get(&key).copied().filter(|pod| pod.is(&link.uid)) else { return };
        self.model.admitted.extend(&link.addresses);
        for direction in [Direction::Ingress, Direction::Egress] {
            let all = self.policies.get(key.0).map(Vec::as_slice).unwrap_or_default();
            let isolating = |policy: &&&NetworkPolicy| {
                policy.spec.isolates(direction) && policy.spec.pod_selector.selects(&pod.metadata.labels)
            };
            let policies: Vec<&NetworkPolicy> = all.iter().filter(isolating).copied().collect();
            if policies.is_empty() {
                continue;
            }
            let group = self.group(direction, pod, &policies);
            let isolated = match direction {
                Direction::Ingress => &mut self.model.ingress,
                Direction::Egress => &mut self.model.egress,
            };
            isolated.extend(link.addresses.iter().map(|address| (*address, group.clone())));
        }
    }

    /// The group of pods with these policies and, where ports are named, the same meaning of the names.
    fn group(&mut self, direction: Direction, pod: &Pod, policies: &[&NetworkPolicy]) -> String {
        let mut label = String::new();
        for policy in policies {
            label += &format!("{}/{}\n", policy.metadata.namespace, policy.metadata.name);
            let ports = policy.spec.ingress.iter().flat_map(|rule| &rule.ports);
            for port in ports.filter(|_| direction == Direction::Ingress) {
                if let Some(PortId::Name(name)) = &port.port {
                    label += &format!("{name} {:?}\n", pod.named_port(name, port.protocol));
                }
            }
        }
        let prefix = if direction == Direction::Ingress { "in" } else { "out" };
        let name = named(prefix, &label);
        if !self.model.groups.contains_key(&name) {
            let mut allows = Vec::new();
            for policy in policies {
                for rule in policy.spec.rules(direction) {
                    self.rule(direction, pod, policy, rule, &mut allows);
                }
            }
            self.model.groups.insert(name.clone(), Group { direction, allows });
        }
        name
    }

    fn rule(
        &mut self,
        direction: Direction,
        pod: &Pod,
        policy: &NetworkPolicy,
        rule: &PolicyRule,
        allows: &mut Vec<Allow>,
    ) {
        let namespace = &*policy.metadata.namespace;
        let mut peers = Vec::new();
        if rule.peers.is_empty() {
            peers.push(Peers::Anyone);
        } else {
            peers.extend(self.selected(namespace, &rule.peers).map(Peers::Pods));
            peers.extend(self.blocks(&rule.peers).map(Peers::Blocks));
        }
        for ports in self.ports(direction, pod, &rule.ports) {
            allows.extend(peers.iter().cloned().map(|peers| Allow::Peers { peers, ports: ports.clone() }));
        }
        if direction == Direction::Egress {
            for port in &rule.ports {
                if let Some(PortId::Name(name)) = &port.port {
                    allows.push(Allow::Targets(self.targets(namespace, rule, name, port.protocol)));
                }
            }
        }
    }

    /// The set of pods that any of the peers selects; `None` if no peer selects pods.
    fn selected(&mut self, namespace: &str, peers: &[Peer]) -> Option<String> {
        let mut label = format!("{namespace}\n");
        for peer in peers.iter().filter(|peer| selects_pods(peer)) {
            let text = |selector: &Option<_>| selector.as_ref().map(crate::types::Selector::text);
            label += &format!("{:?} {:?}\n", text(&peer.namespace_selector), text(&peer.pod_selector));
        }
        if !peers.iter().any(selects_pods) {
            return None;
        }
        let name = named("pods", &label);
        if !self.model.pods.contains_key(&name) {
            let members =
                self.peer_pods(namespace, peers).flat_map(|(_, addresses)| addresses.iter().copied());
            let members: BTreeSet<IpAddr> = members.collect();
            self.model.pods.insert(name.clone(), members);
        }
        Some(name)
    }

    /// The pods that any of the peers selects by labels.
    fn peer_pods<'s>(
        &'s self,
        namespace: &'s str,
        peers: &'s [Peer],
    ) -> impl Iterator<Item = &'s (&'a Pod, Vec<IpAddr>)> + use<'s, 'a> {
        let selects = move |peer: &Peer, home: &str, labels: &Labels| {
            let in_place = match &peer.namespace_selector {
                Some(selector) => self.namespaces.get(home).is_some_and(|labels| selector.selects(labels)),
                None => home == namespace,
            };
            selects_pods(peer)
                && in_place
                && peer.pod_selector.as_ref().is_none_or(|selector| selector.selects(labels))
        };
        let kin = self
            .kin
            .iter()
            .filter(move |((home, labels), _)| peers.iter().any(|peer| selects(peer, home, labels)));
        kin.flat_map(|(_, kin)| &kin.pods)
    }

    /// The set of addresses that any of the peers names by range; `None` if no peer does.
    fn blocks(&mut self, peers: &[Peer]) -> Option<String> {
        let named_blocks: Vec<&IpBlock> = peers.iter().filter_map(|peer| peer.ip_block.as_ref()).collect();
        if named_blocks.is_empty() {
            return None;
        }
        let ranges = union(named_blocks.into_iter().flat_map(pieces).collect());
        let name = named("blocks", &format!("{ranges:?}"));
        self.model.blocks.entry(name.clone()).or_insert(ranges);
        Some(name)
    }

    /// The numbered ports of a rule. Names mean what they mean in the pod that is entered.
    fn ports(&mut self, direction: Direction, pod: &Pod, ports: &[PolicyPort]) -> Vec<Ports> {
        if ports.is_empty() {
            return vec![Ports::Anything];
        }
        let mut by_protocol: BTreeMap<Protocol, Vec<(u16, u16)>> = BTreeMap::new();
        for port in ports {
            let range = match &port.port {
                None => Some((0, u16::MAX)),
                Some(PortId::Number(first)) => {
                    let last = port.end_port.unwrap_or(*first);
                    u16::try_from(*first)
                        .ok()
                        .zip(u16::try_from(last).ok())
                        .filter(|(first, last)| first <= last)
                }
                Some(PortId::Name(name)) if direction == Direction::Ingress => {
                    pod.named_port(name, port.protocol).map(|number| (number, number))
                }
                Some(PortId::Name(_)) => None,
            };
            by_protocol.entry(port.protocol).or_default().extend(range);
        }
        let mut found = Vec::new();
        for (protocol, ranges) in by_protocol {
            match joined(ranges).as_slice() {
                [] => {}
                [(0, u16::MAX)] => found.push(Ports::All(protocol)),
                [(first, last)] => found.push(Ports::Range(protocol, *first, *last)),
                many => {
                    let name = named("ports", &format!("{many:?}"));
                    self.model.ports.entry(name.clone()).or_insert_with(|| many.to_vec());
                    found.push(Ports::Set(protocol, name));
                }
            }
        }
        found
    }

    /// The set of destinations of a rule that have a port of this name.
    fn targets(&mut self, namespace: &str, rule: &PolicyRule, port: &str, protocol: Protocol) -> String {
        let blocks =
            union(rule.peers.iter().filter_map(|peer| peer.ip_block.as_ref()).flat_map(pieces).collect());
        let selectors = self.selected(namespace, &rule.peers);
        let label =
            format!("{namespace}\n{selectors:?}\n{blocks:?}\n{}\n{port} {protocol:?}", rule.peers.len());
        let name = named("targets", &label);
        if self.model.targets.contains_key(&name) {
            return name;
        }
        let in_blocks = |address: &IpAddr| {
            let (is_v4, number) = number(*address);
            blocks.iter().any(|one| one.is_v4 == is_v4 && (one.first..=one.last).contains(&number))
        };
        let mut members = BTreeSet::new();
        let mut add = |pod: &Pod, address: IpAddr| {
            members.extend(pod.named_port(port, protocol).map(|number| (address, protocol, number)));
        };
        for (pod, addresses) in self.kin.values().flat_map(|kin| &kin.pods) {
            for address in addresses.iter().filter(|one| rule.peers.is_empty() || in_blocks(one)) {
                add(pod, *address);
            }
        }
        for (pod, addresses) in self.peer_pods(namespace, &rule.peers) {
            for address in addresses {
                add(pod, *address);
            }
        }
        self.model.targets.insert(name.clone(), members);
        name
    }
}

/// A peer without any of its three fields names nobody.
fn selects_pods(peer: &Peer) -> bool {
    peer.ip_block.is_none() && (peer.pod_selector.is_some() || peer.namespace_selector.is_some())
}

/// The parts of a block that its exceptions leave.
fn pieces(block: &IpBlock) -> Vec<Block> {
    let Ok(cidr) = block.cidr.parse::<IpNet>() else { return Vec::new() };
    let mut parts = vec![range(cidr)];
    for except in block.except.iter().filter_map(|text| text.parse::<IpNet>().ok()) {
        let hole = range(except);
        let left = |part: Block| {
            let mut rest = Vec::new();
            if part.is_v4 != hole.is_v4 || hole.last < part.first || hole.first > part.last {
                rest.push(part);
                return rest;
            }
            if hole.first > part.first {
                rest.push(Block { last: hole.first - 1, ..part });
            }
            if hole.last < part.last {
                rest.push(Block { first: hole.last + 1, ..part });
            }
            rest
        };
        parts = parts.into_iter().flat_map(left).collect();
    }
    parts
}

fn range(net: IpNet) -> Block {
    let (is_v4, first) = number(net.network());
    let (_, last) = number(net.broadcast());
    Block { is_v4, first, last }
}

/// The same addresses as ranges that neither overlap nor touch.
fn union(mut blocks: Vec<Block>) -> Vec<Block> {
    blocks.sort();
    let mut all: Vec<Block> = Vec::new();
    for block in blocks {
        match all.last_mut() {
            Some(end) if end.is_v4 == block.is_v4 && block.first <= end.last.saturating_add(1) => {
                end.last = end.last.max(block.last);
            }
            _ => all.push(block),
        }
    }
    all
}

/// The same ports as ranges that neither overlap nor touch.
fn joined(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut all: Vec<(u16, u16)> = Vec::new();
    for (first, last) in ranges {
        match all.last_mut() {
            Some(end) if first <= end.1.saturating_add(1) => end.1 = end.1.max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

/// A name that stands for a longer text. Cryptographic, since tenants choose the texts.
fn named(prefix: &str, text: &str) -> String {
    let hash = Sha256::digest(text);
    hash[..8].iter().fold(format!("{prefix}-"), |name, byte| format!("{name}{byte:02x}"))
}

/// The key of a link's pod.
pub fn key(link: &Attached) -> Key {
    Key::new(&link.namespace, &link.name)
}

#[cfg(test)]
mod tests;
