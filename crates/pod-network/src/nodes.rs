//! What the Node objects say of the pod network: who has which range, and where it is reached.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ::client::{Metadata, Projection};
use ipnet::IpNet;
use serde::Deserialize;

use crate::overlay::Peer;

/// What the pod network reads of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    pub metadata: Metadata,
    spec: NodeSpec,
    status: NodeStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<Box<str>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeStatus {
    addresses: Vec<NodeAddress>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct NodeAddress {
    #[serde(rename = "type")]
    kind: Box<str>,
    address: Box<str>,
}

impl Projection for Node {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
}

impl Node {
    /// The node's share of pod addresses: its first range that can be used here.
    pub fn pod_cidr(&self) -> Option<IpNet> {
        self.spec
            .pod_cidrs
            .iter()
            .filter_map(|text| text.parse().ok())
            .find(|net: &IpNet| net.addr().is_ipv4())
    }

    /// Whether it was given ranges, none of which can be used here.
    pub fn has_other_ranges(&self) -> bool {
        !self.spec.pod_cidrs.is_empty() && self.pod_cidr().is_none()
    }

    /// The node's address among the nodes.
    pub fn address(&self) -> Option<IpAddr> {
        let internal = self.status.addresses.iter().filter(|address| &*address.kind == "InternalIP");
        internal.filter_map(|address| address.address.parse().ok()).find(IpAddr::is_ipv4)
    }

    /// As others see it.
    pub fn peer(&self) -> Option<Peer> {
        Some(Peer { pod_cidr: self.pod_cidr()?, address: self.address()? })
    }
}

/// The peers among the nodes: all but this one. Of two nodes that claim one range, the first by name has it.
pub fn peers<'a>(nodes: impl Iterator<Item = &'a Node>, me: &str) -> Vec<Peer> {
    let others = nodes.filter(|node| &*node.metadata.name != me);
    let mut by_range = BTreeMap::new();
    for peer in others.filter_map(Node::peer) {
        by_range.entry(peer.pod_cidr.trunc()).or_insert(peer);
    }
    by_range.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn peers_are_the_other_nodes_that_have_a_range_and_an_address() {
        let node = |name: &str, range: &str, ip: Option<&str>| -> Node {
            let addresses =
                ip.map(|ip| json!({"type": "InternalIP", "address": ip})).into_iter().collect::<Vec<_>>();
            let spec = json!({"podCIDR": range, "podCIDRs": if range.is_empty() { vec![] } else { vec!["fd01::/64", range] }});
            let status = json!({"addresses": addresses});
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status}))
                .unwrap()
        };
        let nodes = [
            node("a", "10.128.0.0/23", Some("192.168.7.1")),
            node("b", "10.128.2.0/23", Some("192.168.7.2")),
            node("c", "10.128.4.0/23", None),
            node("d", "", Some("192.168.7.4")),
            node("e", "10.128.2.0/23", Some("192.168.7.5")),
        ];
        let found = peers(nodes.iter(), "a");
        let expected =
            Peer { pod_cidr: "10.128.2.0/23".parse().unwrap(), address: "192.168.7.2".parse().unwrap() };
        assert_eq!(found, [expected]);
    }
}
