//! One Service's share of the table: chains, elements of the shared sets, and affinity memories. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use client::Key;
use ipnet::IpNet;
use netlink::nft::{Address, Chain, Data, Expr, Family, Rule, Set, Value, Verdict, types};
use sha2::{Digest, Sha256};

use crate::endpoints::{self, Place, Pools};
use crate::skeleton::{self, REJECT, SetName, in_range, is_local, mark, octets, words};
use crate::types::{EndpointSlice, Service, ServicePort, Transport};

/// How long a client stays with its endpoint when the Service does not say.
const DEFAULT_AFFINITY: u32 = 10_800;
const LOCAL: &str = "Local";

/// What all Services' plans depend on.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    pub family: Family,
    pub place: Place<'a>,
    /// Addresses of pods; traffic to cluster addresses from elsewhere gets the node's address.
    pub cluster_cidr: Option<IpNet>,
    pub masquerade_all: bool,
}

/// A Service's share of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    pub chains: BTreeMap<String, Chain>,
    /// For Services with affinity: their endpoints by number, and each endpoint's clients.
    pub sets: BTreeMap<String, Set>,
    pub elements: BTreeMap<(SetName, Vec<u8>), Value>,
    /// What connection tracking should know of the Service's UDP ports.
    pub udp: Vec<UdpPort>,
    /// For a load balancer that keeps to nodes with endpoints.
    pub check: Option<NodeCheck>,
}

/// A port on which a load balancer asks whether this node has endpoints of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCheck {
    pub port: u16,
    pub local_endpoints: usize,
}

/// A UDP port of a Service and who serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpPort {
    pub fronts: BTreeSet<SocketAddr>,
    pub node_port: u16,
    pub endpoints: BTreeSet<SocketAddr>,
}

/// Plans one Service with its slices; empty if the proxy has nothing to do for it in this family.
pub fn plan(service: &Service, slices: &[impl AsRef<EndpointSlice>], context: &Context<'_>) -> Fragment {
    let mut fragment = Fragment::default();
    if !service.is_proxied() {
        return fragment;
    }
    let is_v4 = context.family == Family::Ip;
    let of_family = |addresses: Vec<IpAddr>| -> Vec<IpAddr> {
        addresses.into_iter().filter(|address| address.is_ipv4() == is_v4).collect()
    };
    let fronts = Fronts {
        cluster: of_family(service.cluster_addresses()),
        external: of_family(service.external_addresses()),
        balancer: of_family(service.balancer_addresses()),
    };
    if fronts.cluster.is_empty() {
        return fragment;
    }
    for address in &fronts.cluster {
        fragment.elements.insert((SetName::ClusterIps, octets(*address)), Value::None);
    }
    let mut local = BTreeSet::new();
    for port in &service.spec.ports {
        let pools = endpoints::choose(port, slices.iter().map(AsRef::as_ref), is_v4, context.place);
        local.extend(pools.local.iter().map(SocketAddr::ip));
        PortPlan::new(service, port, context, &pools, &fronts).write(&mut fragment);
    }
    let spec = &service.spec;
    if spec.health_check_node_port != 0 && &*spec.external_traffic_policy == LOCAL {
        fragment.check = Some(NodeCheck { port: spec.health_check_node_port, local_endpoints: local.len() });
    }
    fragment
}

/// The addresses under which a Service is known.
struct Fronts {
    cluster: Vec<IpAddr>,
    external: Vec<IpAddr>,
    balancer: Vec<IpAddr>,
}

struct PortPlan<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    context: &'a Context<'a>,
    pools: &'a Pools,
    fronts: &'a Fronts,
    /// `HASH-namespace/name/protocol/port`, the end of all its names.
    label: String,
}

impl<'a> PortPlan<'a> {
    fn new(
        service: &'a Service,
        port: &'a ServicePort,
        context: &'a Context<'a>,
        pools: &'a Pools,
        fronts: &'a Fronts,
    ) -> Self {
        let Key { namespace, name } = service.metadata.key();
        let path = format!("{namespace}/{name}/{}/{}", port.protocol.name(), port.name);
        let [a, b, c, d, ..] = digest(&path);
        let readable: String = path.chars().take(80).collect();
        let label = format!("{a:02x}{b:02x}{c:02x}{d:02x}-{readable}");
        Self { service, port, context, pools, fronts, label }
    }

    fn write(&self, fragment: &mut Fragment) {
        let spec = &self.service.spec;
        let cluster_chain = format!("service-{}", self.label);
        let local_chain = format!("local-{}", self.label);
        let external_chain = format!("external-{}", self.label);
        let internal_local = &*spec.internal_traffic_policy == LOCAL;
        let external_local = &*spec.external_traffic_policy == LOCAL;
        let is_external =
            !self.fronts.external.is_empty() || !self.fronts.balancer.is_empty() || self.port.node_port != 0;
        let needs_local = internal_local || is_external && external_local;

        if !self.pools.cluster.is_empty() {
            let mut rules = vec![];
            rules.extend(self.masquerade_foreign());
            rules.extend(self.balance(fragment, "cluster", &self.pools.cluster));
            fragment.chains.insert(cluster_chain.clone(), Chain { base: None, rules });
        }
        if needs_local && !self.pools.local.is_empty() {
            let rules = self.balance(fragment, "local", &self.pools.local);
            fragment.chains.insert(local_chain.clone(), Chain { base: None, rules });
        }
        if is_external && !self.pools.cluster.is_empty() {
            let rules = self.external_rules(external_local, &cluster_chain, &local_chain);
            fragment.chains.insert(external_chain.clone(), Chain { base: None, rules });
        }

        let has =
            |local: bool| if local { !self.pools.local.is_empty() } else { !self.pools.cluster.is_empty() };
        // With endpoints elsewhere only, a `Local` policy is silent, so that a balancer tries another node.
        let refusal = if self.pools.cluster.is_empty() && self.pools.local.is_empty() {
            Verdict::Goto(REJECT.to_owned())
        } else {
            Verdict::Drop
        };
        let inner = if internal_local { &local_chain } else { &cluster_chain };
        for address in &self.fronts.cluster {
            if has(internal_local) {
                self.add(fragment, SetName::ServiceIps, Some(*address), Verdict::Goto(inner.clone()));
            } else {
                self.add(fragment, SetName::NoEndpointServices, Some(*address), refusal.clone());
            }
        }
        let outer = self.fronts.external.iter().chain(&self.fronts.balancer).map(|address| Some(*address));
        let node_port = (self.port.node_port != 0).then_some(None);
        for address in outer.chain(node_port) {
            let (serving, refusing) = match address {
                Some(_) => (SetName::ServiceIps, SetName::NoEndpointServices),
                None => (SetName::NodePorts, SetName::NoEndpointNodePorts),
            };
            if has(false) {
                self.add(fragment, serving, address, Verdict::Goto(external_chain.clone()));
            }
            if !has(external_local) {
                self.add(fragment, refusing, address, refusal.clone());
            }
        }
        self.write_firewall(fragment);
        for endpoint in self.pools.cluster.iter().chain(&self.pools.local) {
            let itself = [octets(endpoint.ip()), octets(endpoint.ip())].concat();
            fragment.elements.insert((SetName::Hairpin, itself), Value::None);
        }
        if self.port.protocol == Transport::Udp {
            fragment.udp.push(self.udp());
        }
    }

    /// Cluster addresses are for pods; others get the node's address, or the endpoint's answer would go astray.
    fn masquerade_foreign(&self) -> Option<Rule> {
        if self.context.masquerade_all {
            return Some(mark());
        }
        let range = self.context.cluster_cidr.filter(|range| range.addr().is_ipv4() == self.is_v4())?;
        let mut rule = in_range(self.context.family, Address::Source, range, false);
        rule.extend(mark());
        Some(rule)
    }

    fn external_rules(&self, local: bool, cluster_chain: &str, local_chain: &str) -> Vec<Rule> {
        let goto = |chain: &str| Expr::Verdict(Verdict::Goto(chain.to_owned()));
        if !local {
            let mut rule = mark();
            rule.push(goto(cluster_chain));
            return vec![rule];
        }
        // The policy is for traffic from outside: pods and the node itself are inside.
        let mut rules = Vec::new();
        if let Some(range) = self.context.cluster_cidr.filter(|range| range.addr().is_ipv4() == self.is_v4())
        {
            let mut from_pods = in_range(self.context.family, Address::Source, range, true);
            from_pods.push(goto(cluster_chain));
            rules.push(from_pods);
        }
        let mut from_node = is_local(Address::Source);
        from_node.extend(mark());
        from_node.push(goto(cluster_chain));
        rules.push(from_node);
        if !self.pools.local.is_empty() {
            rules.push(vec![goto(local_chain)]);
        }
        rules
    }

    /// Rules that choose one of the pool's endpoints by a random number.
    fn balance(&self, fragment: &mut Fragment, kind: &str, pool: &BTreeSet<SocketAddr>) -> Vec<Rule> {
        if &*self.service.spec.session_affinity == "ClientIP" {
            return self.balance_with_memory(fragment, kind, pool);
        }
        let family = self.context.family;
        let id = digest(&[kind, &self.label].concat());
        let set = SetName::Endpoints(id[0] % 16);
        for (number, endpoint) in (0u32..).zip(pool) {
            let key = [&id[..], &number.to_ne_bytes()].concat();
            fragment.elements.insert((set, key), Value::Bytes(target(*endpoint)));
        }
        vec![vec![
            // Word by word: the `nft` program cannot show longer numbers.
            Expr::Load { to: 0, value: id[..4].to_vec() },
            Expr::Load { to: 1, value: id[4..].to_vec() },
            Expr::Random { modulus: pool.len() as u32, to: 2 },
            Expr::Map { set: set.name().to_owned(), key: 0, to: 8 },
            Expr::DestinationNat { family, address: 8, port: Some(8 + words(family)) },
        ]]
    }

    /// The same for clients that stay with their endpoint: each endpoint has a chain, and a set of the clients that it had.
    fn balance_with_memory(
        &self,
        fragment: &mut Fragment,
        kind: &str,
        pool: &BTreeSet<SocketAddr>,
    ) -> Vec<Rule> {
        let name = format!("{kind}-endpoints-{}", self.label);
        let family = self.context.family;
        let client = Expr::Address { family, which: Address::Source, to: 0 };
        let mut rules = Vec::new();
        let mut ways = Vec::new();
        for endpoint in pool {
            let way = readable(*endpoint);
            let chain = format!("endpoint-{}__{way}", self.label);
            let memory = format!("affinity-{}__{way}", self.label);
            let serve = vec![
                client.clone(),
                Expr::Remember { set: memory.clone(), key: 0 },
                Expr::Load { to: 8, value: octets(endpoint.ip()) },
                Expr::Load { to: 8 + words(family), value: endpoint.port().to_be_bytes().to_vec() },
                Expr::DestinationNat { family, address: 8, port: Some(8 + words(family)) },
            ];
            fragment.chains.insert(chain.clone(), Chain { base: None, rules: vec![serve] });
            fragment.sets.insert(memory.clone(), self.affinity_memory());
            let go = Verdict::Goto(chain);
            rules.push(vec![client.clone(), Expr::In { set: memory, key: 0 }, Expr::Verdict(go.clone())]);
            ways.push(Value::Verdict(go));
        }
        fragment.sets.insert(name.clone(), numbered(Data::Verdict, ways.into_iter()));
        rules.push(vec![
            Expr::Random { modulus: pool.len() as u32, to: 0 },
            Expr::VerdictMap { set: name, key: 0 },
        ]);
        rules
    }

    fn affinity_memory(&self) -> Set {
        let seconds = self.service.spec.session_affinity_config.client_ip.timeout_seconds;
        let address = if self.is_v4() { types::IPV4 } else { types::IPV6 };
        let length = u32::from(words(self.context.family)) * 4;
        Set {
            key_length: length,
            key_types: address,
            data: Data::None,
            timeout: Some(Duration::from_secs(seconds.unwrap_or(DEFAULT_AFFINITY).into())),
            ranges: false,
            elements: BTreeMap::new(),
        }
    }

    /// Only listed sources may use the balancer's address.
    fn write_firewall(&self, fragment: &mut Fragment) {
        let ranges = &self.service.spec.load_balancer_source_ranges;
        if ranges.is_empty() || self.fronts.balancer.is_empty() {
            return;
        }
        let parsed = ranges.iter().filter_map(|text| text.trim().parse::<IpNet>().ok());
        let mut rules: Vec<Rule> = parsed
            .filter(|range| range.addr().is_ipv4() == self.is_v4())
            .map(|range| {
                let mut rule = in_range(self.context.family, Address::Source, range, true);
                rule.push(Expr::Verdict(Verdict::Return));
                rule
            })
            .collect();
        rules.push(vec![Expr::Verdict(Verdict::Drop)]);
        let chain = format!("firewall-{}", self.label);
        for address in &self.fronts.balancer {
            self.add(fragment, SetName::Firewall, Some(*address), Verdict::Goto(chain.clone()));
        }
        fragment.chains.insert(chain, Chain { base: None, rules });
    }

    fn udp(&self) -> UdpPort {
        let fronts = self.fronts.cluster.iter().chain(&self.fronts.external).chain(&self.fronts.balancer);
        UdpPort {
            fronts: fronts.map(|address| SocketAddr::new(*address, self.port.port)).collect(),
            node_port: self.port.node_port,
            endpoints: self.pools.cluster.union(&self.pools.local).copied().collect(),
        }
    }

    /// Files the port under an address, or under its node port.
    fn add(&self, fragment: &mut Fragment, set: SetName, address: Option<IpAddr>, verdict: Verdict) {
        let number = if address.is_some() { self.port.port } else { self.port.node_port };
        let mut key = address.map(octets).unwrap_or_default();
        key.extend([self.port.protocol.number(), 0, 0, 0]);
        key.extend(padded(number));
        fragment.elements.insert((set, key), Value::Verdict(verdict));
    }

    fn is_v4(&self) -> bool {
        self.context.family == Family::Ip
    }
}

/// A map from 0, 1, 2… to the values.
fn numbered(data: Data, values: impl Iterator<Item = Value>) -> Set {
    let elements = (0u32..).map(|number| number.to_ne_bytes().to_vec()).zip(values).collect();
    Set { key_length: 4, key_types: types::NUMBER, data, timeout: None, ranges: false, elements }
}

/// An endpoint as part of a name. The `nft` program, by which upstream's proxy takes over, reads no colon in names.
fn readable(endpoint: SocketAddr) -> String {
    format!("{}/{}", endpoint.ip().to_string().replace(':', "."), endpoint.port())
}

fn target(endpoint: SocketAddr) -> Vec<u8> {
    let mut bytes = skeleton::octets(endpoint.ip());
    bytes.extend(padded(endpoint.port()));
    bytes
}

fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// Stands for a longer text in names and maps. Cryptographic, since tenants choose the texts.
fn digest(text: &str) -> [u8; 8] {
    let hash = Sha256::digest(text);
    std::array::from_fn(|index| hash[index])
}

#[cfg(test)]
mod tests;
