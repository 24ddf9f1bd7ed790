//! Which endpoints serve a Service port on this node: pure choice by readiness, place and hints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::types::{Endpoint, EndpointSlice, ServicePort};

/// The node from which traffic is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place<'a> {
    pub node: &'a str,
    pub zone: Option<&'a str>,
}

/// The endpoints of one port for one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// For the traffic policy `Cluster`.
    pub cluster: BTreeSet<SocketAddr>,
    /// For the traffic policy `Local`.
    pub local: BTreeSet<SocketAddr>,
}

struct Candidate<'a> {
    address: SocketAddr,
    endpoint: &'a Endpoint,
    is_local: bool,
}

impl Candidate<'_> {
    fn is_ready(&self) -> bool {
        // Absent means unknown, which counts as ready.
        self.endpoint.conditions.ready.unwrap_or(true)
    }

    /// Shutting down, but still answering: better than nobody.
    fn is_last_resort(&self) -> bool {
        self.endpoint.conditions.serving.unwrap_or(false)
            && self.endpoint.conditions.terminating.unwrap_or(false)
    }
}

/// Sorts out who gets traffic of `port`.
pub fn choose<'a>(
    port: &ServicePort,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    is_v4: bool,
    place: Place<'_>,
) -> Pools {
    let mut candidates = Vec::new();
    for slice in slices {
        let matching = slice.ports.iter().find(|candidate| {
            candidate.name.as_deref().unwrap_or("") == &*port.name
                && candidate.protocol.unwrap_or_default() == port.protocol
        });
        let Some(number) = matching.and_then(|candidate| candidate.port) else { continue };
        for endpoint in &slice.endpoints {
            // All addresses of an endpoint are the same endpoint; the first stands for it.
            let Some(address) = endpoint.addresses.first().and_then(|text| text.parse::<IpAddr>().ok())
            else {
                continue;
            };
            if address.is_ipv4() == is_v4 {
                let is_local = endpoint.node_name.as_deref() == Some(place.node);
                candidates.push(Candidate { address: SocketAddr::new(address, number), endpoint, is_local });
            }
        }
    }
    let local = usable(candidates.iter().filter(|candidate| candidate.is_local));
    let everywhere = usable(candidates.iter());
    let hinted = hinted(&everywhere, place);
    let addresses = |pool: &[&Candidate<'_>]| pool.iter().map(|candidate| candidate.address).collect();
    Pools { cluster: addresses(&hinted), local: addresses(&local) }
}

/// The ready ones; if there is none, those that finish their last requests.
fn usable<'a, 'b: 'a>(candidates: impl Iterator<Item = &'a Candidate<'b>> + Clone) -> Vec<&'a Candidate<'b>> {
    let ready: Vec<_> = candidates.clone().filter(|candidate| candidate.is_ready()).collect();
    if ready.is_empty() { candidates.filter(|candidate| candidate.is_last_resort()).collect() } else { ready }
}

/// Those that the hints give to this node, else to this zone; all, if hints are incomplete or would leave nobody.
fn hinted<'a, 'b>(pool: &[&'a Candidate<'b>], place: Place<'_>) -> Vec<&'a Candidate<'b>> {
    let complete =
        |has: fn(&Candidate<'_>) -> bool| !pool.is_empty() && pool.iter().all(|candidate| has(candidate));
    if complete(|candidate| !candidate.endpoint.hints.for_nodes.is_empty()) {
        let for_node = |candidate: &&&Candidate<'_>| {
            candidate.endpoint.hints.for_nodes.iter().any(|node| *node.name == *place.node)
        };
        let near: Vec<_> = pool.iter().filter(for_node).copied().collect();
        if !near.is_empty() {
            return near;
        }
    }
    if let Some(zone) = place.zone
        && complete(|candidate| !candidate.endpoint.hints.for_zones.is_empty())
    {
        let for_zone = |candidate: &&&Candidate<'_>| {
            candidate.endpoint.hints.for_zones.iter().any(|named| *named.name == *zone)
        };
        let near: Vec<_> = pool.iter().filter(for_zone).copied().collect();
        if !near.is_empty() {
            return near;
        }
    }
    pool.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pools(endpoints: Value, zone: Option<&str>) -> (Vec<String>, Vec<String>) {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "ports": [{"name": "web", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 53}],
            "endpoints": endpoints,
        }))
        .unwrap();
        let port = ServicePort { name: "web".into(), port: 80, ..ServicePort::default() };
        let chosen = choose(&port, [&slice].into_iter(), true, Place { node: "here", zone });
        let text = |pool: BTreeSet<SocketAddr>| pool.iter().map(ToString::to_string).collect();
        (text(chosen.cluster), text(chosen.local))
    }

    #[test]
    fn ready_endpoints_serve_and_terminating_ones_only_in_need() {
        let ending = json!({"ready": false, "serving": true, "terminating": true});
        let (cluster, local) = pools(
            json!([
                {"addresses": ["10.0.0.1"], "nodeName": "here", "conditions": ending},
                {"addresses": ["10.0.0.2"], "nodeName": "there", "conditions": {"ready": true}},
                {"addresses": ["10.0.0.3"], "nodeName": "here", "conditions": {"ready": false}},
                {"addresses": ["fd00::1"], "nodeName": "here"},
            ]),
            None,
        );
        assert_eq!(cluster, ["10.0.0.2:8080"]);
        assert_eq!(local, ["10.0.0.1:8080"], "the only local one that still answers");
        let unknown = pools(json!([{"addresses": ["10.0.0.4"]}]), None);
        assert_eq!(unknown.0, ["10.0.0.4:8080"], "no condition counts as ready");
    }

    #[test]
    fn hints_narrow_the_choice_unless_they_leave_nobody() {
        let in_zone =
            |ip: &str, zone: &str| json!({"addresses": [ip], "hints": {"forZones": [{"name": zone}]}});
        let two = json!([in_zone("10.0.0.1", "a"), in_zone("10.0.0.2", "b")]);
        assert_eq!(pools(two.clone(), Some("a")).0, ["10.0.0.1:8080"]);
        assert_eq!(pools(two.clone(), Some("c")).0.len(), 2);
        assert_eq!(pools(two, None).0.len(), 2);
        let partial = json!([in_zone("10.0.0.1", "a"), {"addresses": ["10.0.0.2"]}]);
        assert_eq!(pools(partial, Some("a")).0.len(), 2);
        let nodes = json!([
            {"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "here"}]}},
            {"addresses": ["10.0.0.2"], "hints": {"forNodes": [{"name": "there"}]}},
        ]);
        assert_eq!(pools(nodes, None).0, ["10.0.0.1:8080"]);
    }
}
