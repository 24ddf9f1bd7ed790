//! What this node enforces, as plain values: which addresses are isolated, and what may reach them all the same.
//!
//! [`crate::compile`] makes a model of API objects, [`crate::table`] writes it as nftables rules, and
//! [`Model::permits`] answers for a connection that exists already. The three say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::types::{Direction, Protocol};

/// The policies of all pods on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Addresses of this node's pods whose policies are known. Others neither send nor receive.
    pub admitted: BTreeSet<IpAddr>,
    /// The group of an isolated address, by direction.
    pub ingress: BTreeMap<IpAddr, String>,
    pub egress: BTreeMap<IpAddr, String>,
    /// What pods with the same policies are allowed.
    pub groups: BTreeMap<String, Group>,
    /// Addresses of selected pods.
    pub pods: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Address ranges, in order and apart.
    pub blocks: BTreeMap<String, Vec<Block>>,
    /// Port ranges, in order and apart.
    pub ports: BTreeMap<String, Vec<(u16, u16)>>,
    /// Addresses with the port that a name means there.
    pub targets: BTreeMap<String, BTreeSet<(IpAddr, Protocol, u16)>>,
}

/// The allowances of one direction for pods that have the same policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub direction: Direction,
    pub allows: Vec<Allow>,
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// These peers at these ports.
    Peers { peers: Peers, ports: Ports },
    /// Destinations in a set of [`Model::targets`].
    Targets(String),
}

/// The other end of an allowed connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    Anyone,
    /// A set of [`Model::pods`].
    Pods(String),
    /// A set of [`Model::blocks`].
    Blocks(String),
}

/// Where an allowed connection leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Any packet, of protocols without ports too.
    Anything,
    /// Any port of a protocol.
    All(Protocol),
    /// From the first to the last.
    Range(Protocol, u16, u16),
    /// A set of [`Model::ports`].
    Set(Protocol, String),
}

/// A range of addresses of one family, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    pub is_v4: bool,
    pub first: u128,
    pub last: u128,
}

impl Block {
    fn contains(&self, address: IpAddr) -> bool {
        let (is_v4, number) = number(address);
        self.is_v4 == is_v4 && (self.first..=self.last).contains(&number)
    }
}

/// An address as a number, and whether it is of IPv4.
pub fn number(address: IpAddr) -> (bool, u128) {
    match address {
        IpAddr::V4(v4) => (true, u32::from(v4).into()),
        IpAddr::V6(v6) => (false, v6.into()),
    }
}

/// A connection as the rules see its first packet: after the destination was translated, before the source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: u8,
    pub port: u16,
}

impl Model {
    /// Whether an end of the connection is isolated at all.
    pub fn concerns(&self, connection: &Connection) -> bool {
        [connection.source, connection.destination]
            .iter()
            .any(|end| self.ingress.contains_key(end) || self.egress.contains_key(end))
    }

    /// Whether the connection may be.
    pub fn permits(&self, connection: &Connection) -> bool {
        let may = |group: Option<&String>, peer| {
            let Some(group) = group.and_then(|name| self.groups.get(name)) else { return true };
            group.allows.iter().any(|allow| self.matches(allow, peer, connection))
        };
        // A pod always reaches itself.
        connection.source == connection.destination
            || may(self.egress.get(&connection.source), connection.destination)
                && may(self.ingress.get(&connection.destination), connection.source)
    }

    fn matches(&self, allow: &Allow, peer: IpAddr, connection: &Connection) -> bool {
        let port = connection.port;
        let is = |protocol: Protocol| protocol.number() == connection.protocol;
        match allow {
            Allow::Targets(set) => self.targets.get(set).is_some_and(|targets| {
                targets.iter().any(|target| target.0 == peer && is(target.1) && target.2 == port)
            }),
            Allow::Peers { peers, ports } => {
                let from = match peers {
                    Peers::Anyone => true,
                    Peers::Pods(set) => self.pods.get(set).is_some_and(|pods| pods.contains(&peer)),
                    Peers::Blocks(set) => {
                        self.blocks.get(set).is_some_and(|blocks| blocks.iter().any(|one| one.contains(peer)))
                    }
                };
                let to = match ports {
                    Ports::Anything => true,
                    Ports::All(protocol) => is(*protocol),
                    Ports::Range(protocol, first, last) => is(*protocol) && (*first..=*last).contains(&port),
                    Ports::Set(protocol, set) => {
                        let ranges = self.ports.get(set).map(Vec::as_slice).unwrap_or_default();
                        is(*protocol) && ranges.iter().any(|(first, last)| (*first..=*last).contains(&port))
                    }
                };
                from && to
            }
        }
    }
}
