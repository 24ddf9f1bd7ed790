use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;

fn service(spec: Json) -> Service {
    let mut spec = spec;
    let defaults = json!({"type": "ClusterIP", "clusterIP": "172.30.0.7", "clusterIPs": ["172.30.0.7"],
        "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]});
    for (name, value) in defaults.as_object().unwrap() {
        spec.as_object_mut().unwrap().entry(name.clone()).or_insert_with(|| value.clone());
    }
    let status = spec.as_object_mut().unwrap().shift_remove("status").unwrap_or(json!({}));
    let metadata = json!({"name": "web", "namespace": "shop"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

fn slices(endpoints: &[(&str, &str)]) -> Vec<Arc<EndpointSlice>> {
    let endpoints: Vec<Json> = endpoints
        .iter()
        .map(|(ip, node)| json!({"addresses": [ip], "nodeName": node, "conditions": {"ready": true}}))
        .collect();
    let slice = json!({"ports": [{"name": "web", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints});
    vec![Arc::new(serde_json::from_value(slice).unwrap())]
}

fn plan_here(spec: Json, endpoints: &[(&str, &str)]) -> Fragment {
    let context = Context {
        family: Family::Ip,
        place: Place { node: "here", zone: None },
        cluster_cidr: Some("10.128.0.0/14".parse().unwrap()),
        masquerade_all: false,
    };
    plan(&service(spec), &slices(endpoints), &context)
}

/// The verdicts of a set, by the readable part of the key's port and the chain's kind.
fn verdicts(fragment: &Fragment, set: SetName) -> Vec<String> {
    let of_set = fragment.elements.iter().filter(|((name, _), _)| *name == set);
    let text = of_set.map(|((_, key), value)| {
        let port = u16::from_be_bytes([key[key.len() - 4], key[key.len() - 3]]);
        let front =
            if key.len() == 12 { format!("{}.{}.{}.{}", key[0], key[1], key[2], key[3]) } else { "*".into() };
        let verdict = match value {
            Value::Verdict(Verdict::Goto(chain)) => chain.split('-').next().unwrap_or("").to_owned(),
            Value::Verdict(verdict) => format!("{verdict:?}"),
            other => format!("{other:?}"),
        };
        format!("{front}:{port} {verdict}")
    });
    text.collect()
}

#[test]
fn a_cluster_address_leads_to_all_endpoints() {
    let fragment = plan_here(json!({}), &[("10.128.0.2", "here"), ("10.128.2.2", "there")]);
    assert_eq!(verdicts(&fragment, SetName::ServiceIps), ["172.30.0.7:80 service"]);
    let targets = fragment.elements.keys().filter(|(set, _)| matches!(set, SetName::Endpoints(_))).count();
    assert_eq!((targets, fragment.sets.len()), (2, 0));
    assert_eq!(fragment.chains.len(), 1);
    let rules = &fragment.chains.values().next().unwrap().rules;
    assert!(rules.last().unwrap().iter().any(|step| matches!(step, Expr::Random { modulus: 2, .. })));
}

#[test]
fn without_endpoints_packets_are_refused() {
    let node_port =
        json!({"ports": [{"name": "web", "port": 80, "nodePort": 30080}], "externalIPs": ["192.0.2.1"]});
    let fragment = plan_here(node_port, &[]);
    assert!(fragment.chains.is_empty());
    assert_eq!(
        verdicts(&fragment, SetName::NoEndpointServices),
        ["172.30.0.7:80 reject", "192.0.2.1:80 reject"]
    );
    assert_eq!(verdicts(&fragment, SetName::NoEndpointNodePorts), ["*:30080 reject"]);
}

#[test]
fn local_policies_use_local_endpoints_and_are_silent_without() {
    let spec = json!({
        "ports": [{"name": "web", "port": 80, "nodePort": 30080}],
        "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}, {"ip": "192.0.2.10", "ipMode": "Proxy"}]}},
    });
    let with = plan_here(spec.clone(), &[("10.128.0.2", "here"), ("10.128.2.2", "there")]);
    assert_eq!(verdicts(&with, SetName::ServiceIps), ["172.30.0.7:80 local", "192.0.2.9:80 external"]);
    assert_eq!(verdicts(&with, SetName::NodePorts), ["*:30080 external"]);
    assert!(verdicts(&with, SetName::NoEndpointServices).is_empty());
    let without = plan_here(spec, &[("10.128.2.2", "there")]);
    assert_eq!(verdicts(&without, SetName::NoEndpointServices), ["172.30.0.7:80 Drop", "192.0.2.9:80 Drop"]);
    assert_eq!(verdicts(&without, SetName::NoEndpointNodePorts), ["*:30080 Drop"]);
    assert_eq!(verdicts(&without, SetName::NodePorts), ["*:30080 external"], "pods still reach the others");
}

#[test]
fn source_ranges_guard_the_balancers_address_only() {
    let spec = json!({
        "loadBalancerSourceRanges": ["198.51.100.0/24", "2001:db8::/32"],
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}},
    });
    let fragment = plan_here(spec, &[("10.128.0.2", "here")]);
    assert_eq!(verdicts(&fragment, SetName::Firewall), ["192.0.2.9:80 firewall"]);
    let (_, chain) = fragment.chains.iter().find(|(name, _)| name.starts_with("firewall-")).unwrap();
    assert_eq!(chain.rules.len(), 2, "one range of this family, then the drop");
}

#[test]
fn affinity_keeps_a_memory_with_the_services_timeout() {
    let spec =
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}});
    let fragment = plan_here(spec, &[("10.128.0.2", "here"), ("10.128.0.3", "here")]);
    let timeouts: Vec<_> = fragment.sets.values().filter_map(|set| set.timeout).collect();
    assert_eq!(timeouts, [Duration::from_secs(60); 2], "one memory per endpoint");
    let (_, chain) = fragment.chains.iter().find(|(name, _)| name.starts_with("service-")).unwrap();
    assert_eq!(chain.rules.len(), 4, "foreign sources, two that are known, a new one");
}

#[test]
fn services_of_others_and_without_addresses_are_left_alone() {
    for spec in [
        json!({"type": "ExternalName", "clusterIP": "", "clusterIPs": []}),
        json!({"clusterIP": "None", "clusterIPs": ["None"]}),
        json!({"clusterIP": "fd00::7", "clusterIPs": ["fd00::7"]}),
    ] {
        assert_eq!(plan_here(spec.clone(), &[("10.128.0.2", "here")]), Fragment::default(), "{spec}");
    }
}
