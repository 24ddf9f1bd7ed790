//! Shares a Service's endpoints among zones in proportion to their CPUs, so that traffic can stay in its zone without
//! overloading anyone: what `service.kubernetes.io/topology-mode: Auto` asks for.
//!
//! An endpoint keeps the zone that it serves as long as that works out; only as many are moved as the shares want.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;

use crate::kinds::{Endpoint, Hints, Named, Node, Service};

/// How much more than its share an endpoint may get.
const OVERLOAD: f64 = 0.2;
const ZONE: &str = "topology.kubernetes.io/zone";
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Allocatable thousandths of CPUs by zone; nothing if that is not known of every node.
pub type ZoneCpu = Option<BTreeMap<Box<str>, i64>>;

/// Whether a Service asks for it.
pub fn is_wanted(service: &Service) -> bool {
    let mode = service.metadata.annotation("service.kubernetes.io/topology-mode");
    let mode = mode.or_else(|| service.metadata.annotation("service.kubernetes.io/topology-aware-hints"));
    matches!(mode, Some("Auto" | "auto"))
}

/// What of a node the shares depend on: zone and CPU, of those that count.
pub fn share_of(node: &Node) -> Option<(Box<str>, i64)> {
    if EXCLUDED.iter().any(|label| node.metadata.label(label).is_some()) || !node.is_ready() {
        return None;
    }
    let cpu = node.status.allocatable.get("cpu").and_then(|text| text.parse::<Quantity>().ok());
    Some((node.metadata.label(ZONE).unwrap_or("").into(), cpu.map_or(0, Quantity::millis)))
}

/// The CPUs of the zones.
pub fn zone_cpu<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> ZoneCpu {
    let mut zones: BTreeMap<Box<str>, i64> = BTreeMap::new();
    for (zone, cpu) in nodes.into_iter().filter_map(share_of) {
        if zone.is_empty() || cpu <= 0 {
            return None;
        }
        *zones.entry(zone).or_default() += cpu;
    }
    Some(zones).filter(|zones| !zones.is_empty())
}

/// Gives every ready endpoint the zone that should use it. `before` tells which one it was. The error says why the
/// endpoints cannot be shared; then none has a hint.
pub fn share(
    endpoints: &mut [&mut Endpoint],
    before: impl Fn(&Endpoint) -> Option<Box<str>>,
    zones: &ZoneCpu,
) -> Result<(), String> {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let mut ready: Vec<&mut &mut Endpoint> =
        endpoints.iter_mut().filter(|endpoint| endpoint.conditions.ready == Some(true)).collect();
    let shares = shares(ready.len(), zones)?;
    let mut serves: Vec<Box<str>> = Vec::with_capacity(ready.len());
    for endpoint in &ready {
        let Some(own) = endpoint.zone.clone().filter(|zone| !zone.is_empty()) else {
            return Err("One or more endpoints do not have a zone specified".to_owned());
        };
        serves.push(before(endpoint).filter(|zone| shares.contains_key(zone)).unwrap_or(own));
    }
    let mut counts: BTreeMap<Box<str>, f64> = BTreeMap::new();
    for zone in &serves {
        *counts.entry(zone.clone()).or_default() += 1.0;
    }
    while let Some((giving, receiving)) = next_move(&shares, &counts) {
        // An endpoint that comes home moves first.
        let candidates = || (0..serves.len()).filter(|index| serves[*index] == giving);
        let home = candidates().find(|index| ready[*index].zone.as_ref() == Some(&receiving));
        let Some(index) = home.or_else(|| candidates().next()) else { break };
        serves[index] = receiving.clone();
        *counts.entry(giving).or_default() -= 1.0;
        *counts.entry(receiving).or_default() += 1.0;
    }
    for (endpoint, zone) in ready.iter_mut().zip(serves) {
        endpoint.hints = Some(Hints { for_zones: vec![Named { name: zone }], for_nodes: Vec::new() });
    }
    Ok(())
}

/// How many endpoints each zone should have.
fn shares(endpoints: usize, zones: &ZoneCpu) -> Result<BTreeMap<Box<str>, f64>, String> {
    let Some(zones) = zones else {
        let text =
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
        return Err(text.to_owned());
    };
    if zones.len() < 2 {
        return Err("Nodes only ready in one zone".to_owned());
    }
    if zones.len() > endpoints {
        let counts = format!("({endpoints} endpoints, {} zones)", zones.len());
        return Err(format!("Insufficient number of endpoints {counts}"));
    }
    let total: i64 = zones.values().sum();
    let mut least = 0.0;
    let mut shares = BTreeMap::new();
    for (zone, cpu) in zones {
        let desired = *cpu as f64 / total as f64 * endpoints as f64;
        let minimum = (desired / (1.0 + OVERLOAD)).ceil();
        least += minimum;
        shares.insert(zone.clone(), desired.max(minimum));
    }
    if least > endpoints as f64 {
        let text =
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold";
        return Err(format!("{text} ({endpoints} endpoints, {} zones)", zones.len()));
    }
    Ok(shares)
}

/// The zone with most to give and the one that lacks most, while moving an endpoint makes it better.
fn next_move(
    shares: &BTreeMap<Box<str>, f64>,
    counts: &BTreeMap<Box<str>, f64>,
) -> Option<(Box<str>, Box<str>)> {
    let has = |zone: &str| counts.get(zone).copied().unwrap_or(0.0);
    // A zone without nodes keeps nothing.
    let surplus = |zone: &str| has(zone) - shares.get(zone).copied().unwrap_or(0.0);
    let giving = counts.keys().max_by(|a, b| surplus(a).total_cmp(&surplus(b)))?;
    let receiving = shares.keys().min_by(|a, b| surplus(a).total_cmp(&surplus(b)))?;
    let (give, lack) = (surplus(giving), -surplus(receiving));
    let pays = give >= 0.5 && lack >= 0.5 && (give >= 1.0 || lack >= 1.0);
    pays.then(|| (giving.clone(), receiving.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::EndpointConditions;

    fn endpoints(zones: &[&str]) -> Vec<Endpoint> {
        let one = |(number, zone): (usize, &&str)| Endpoint {
            addresses: vec![format!("10.0.0.{number}").into()],
            zone: Some((**zone).into()),
            conditions: EndpointConditions { ready: Some(true), ..EndpointConditions::default() },
            ..Endpoint::default()
        };
        zones.iter().enumerate().map(one).collect()
    }

    fn cpu(zones: &[(&str, i64)]) -> ZoneCpu {
        Some(zones.iter().map(|(zone, cpu)| ((*zone).into(), *cpu)).collect())
    }

    fn shared(zones: &[&str], cpus: &ZoneCpu) -> Result<Vec<String>, String> {
        let mut all = endpoints(zones);
        share(&mut all.iter_mut().collect::<Vec<_>>(), |_| None, cpus)?;
        let hint = |endpoint: &Endpoint| endpoint.hints.as_ref().unwrap().for_zones[0].name.to_string();
        let first: Vec<String> = all.iter().map(hint).collect();
        let before = |endpoint: &Endpoint| {
            all.iter()
                .find(|old| old.addresses == endpoint.addresses)?
                .hints
                .as_ref()
                .map(|h| h.for_zones[0].name.clone())
        };
        let mut again = endpoints(zones);
        share(&mut again.iter_mut().collect::<Vec<_>>(), before, cpus)?;
        assert_eq!(again.iter().map(hint).collect::<Vec<_>>(), first, "asked again, nothing moves");
        Ok(first)
    }

    #[test]
    fn endpoints_are_shared_by_cpu() {
        let even = cpu(&[("a", 4000), ("b", 4000)]);
        assert_eq!(shared(&["a", "b"], &even).unwrap(), ["a", "b"]);
        assert_eq!(shared(&["a", "a", "a", "b"], &even).unwrap(), ["b", "a", "a", "b"]);
        assert_eq!(shared(&["a", "a", "x", "x"], &even).unwrap(), ["a", "a", "b", "b"], "x has no nodes");
        let three = cpu(&[("a", 6000), ("b", 2000)]);
        assert_eq!(shared(&["a", "b", "b", "b"], &three).unwrap(), ["a", "a", "a", "b"]);
    }

    #[test]
    fn what_cannot_be_shared_says_why() {
        let even = cpu(&[("a", 4000), ("b", 4000)]);
        let cases = [
            (vec!["a"], even.clone(), "Insufficient number of endpoints (1 endpoints, 2 zones)"),
            (vec!["a", "b"], None, "Insufficient Node information"),
            (vec!["a", "b"], cpu(&[("a", 1000)]), "Nodes only ready in one zone"),
            (vec!["a", ""], even.clone(), "One or more endpoints do not have a zone"),
            (vec!["a", "b", "b"], cpu(&[("a", 4000), ("b", 4000), ("c", 1)]), "Unable to allocate minimum"),
            (vec!["a", "a", "a"], even, "Unable to allocate minimum required endpoints"),
        ];
        for (zones, cpus, text) in cases {
            let error = shared(&zones, &cpus).expect_err("it cannot be shared");
            assert!(error.starts_with(text), "{zones:?}: {error}");
        }
    }

    #[test]
    fn nodes_that_do_not_count_do_not_spoil_it() {
        let node = |labels: serde_json::Value, ready: &str, cpu: &str| -> Node {
            crate::testing::object(serde_json::json!({"metadata":{"name":"a","labels":labels},
                "status":{"conditions":[{"type":"Ready","status":ready}],"allocatable":{"cpu":cpu}}}))
        };
        let zone = |zone: &str| serde_json::json!({ZONE: zone});
        let control = serde_json::json!({"node-role.kubernetes.io/control-plane":""});
        let good =
            [node(zone("a"), "True", "4"), node(zone("a"), "True", "500m"), node(zone("b"), "True", "2")];
        let odd = [node(control, "True", "4"), node(zone("c"), "False", "4")];
        assert_eq!(zone_cpu(good.iter().chain(&odd)), cpu(&[("a", 4500), ("b", 2000)]));
        let lost = node(serde_json::json!({}), "True", "4");
        assert_eq!(zone_cpu(good.iter().chain([&lost])), None);
    }
}
