//! Services.

use apimachinery::{
    field::Problems,
    meta::{get, get_list, get_str},
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Effect, Rules, Subresource,
    defaults::{Constant, Default, apply},
    print,
};

/// A stable name and address for a set of pods.
pub fn definition() -> Definition {
    Definition::namespaced("", "v1", "Service", "services")
        .answers_with_object()
        .create_on_update()
        .short(&["svc"])
        .categories(&["all"])
        .stored_at("/registry/services/specs")
        .with(Subresource::Proxy)
        .status()
        .named(apimachinery::names::is_dns1123_label)
        .label("spec.clusterIP")
        .label("spec.type")
        .effects(&[Effect::AllocateServiceAddresses, Effect::Connect])
        .columns(vec![
            Column::path("Type", "spec.type"),
            Column::new("Cluster-IP", |service, _| {
                let first = get_list(service, "spec.clusterIPs").first().and_then(Value::as_str);
                print::or(first.unwrap_or(get_str(service, "spec.clusterIP")), "<none>").into()
            }),
            Column::new("External-IP", |service, _| external_ip(service).into()),
            Column::new("Port(s)", |service, _| ports(service).into()),
            Column::age(),
            Column::new("Selector", |service, _| {
                print::labels(get(service, "spec.selector").and_then(Value::as_object)).into()
            })
            .wide(),
        ])
        .rules(Service)
}

struct Service;

const DEFAULTS: &[Default] = &[
    ("spec.sessionAffinity", Constant::Text("None")),
    ("spec.type", Constant::Text("ClusterIP")),
    ("spec.ports.*.protocol", Constant::Text("TCP")),
];

impl Rules for Service {
    fn set_defaults(&self, service: &mut Value) {
        apply(service, DEFAULTS);
        let kind = get_str(service, "spec.type").to_owned();
        let external = get(service, "spec.externalIPs").is_some();
        let Some(spec) = service.get_mut("spec") else { return };
        let Some(map) = spec.as_object_mut() else { return };
        if map.get("sessionAffinity").is_some_and(|affinity| affinity == "ClientIP") {
            let given =
                map.get("sessionAffinityConfig").and_then(|config| get(config, "clientIP.timeoutSeconds"));
            if given.is_none() {
                map.insert("sessionAffinityConfig".into(), json!({"clientIP": {"timeoutSeconds": 10800}}));
            }
        } else {
            map.shift_remove("sessionAffinityConfig");
        }
        let reachable = kind == "NodePort" || kind == "LoadBalancer" || kind == "ClusterIP" && external;
        if reachable && !map.contains_key("externalTrafficPolicy") {
            map.insert("externalTrafficPolicy".into(), "Cluster".into());
        }
        // Nothing inside the cluster is reached by an alias. A wrong word stays, to be told.
        if kind == "ExternalName" {
            if map.get("internalTrafficPolicy").is_some_and(|policy| policy == "Cluster" || policy == "Local")
            {
                map.shift_remove("internalTrafficPolicy");
            }
        } else if !map.contains_key("internalTrafficPolicy") {
            map.insert("internalTrafficPolicy".into(), "Cluster".into());
        }
        if kind == "LoadBalancer" && !map.contains_key("allocateLoadBalancerNodePorts") {
            map.insert("allocateLoadBalancerNodePorts".into(), true.into());
        }
        if let Some(Value::Array(ports)) = map.get_mut("ports") {
            for port in ports {
                let target = port.get("targetPort");
                if target.is_none_or(|target| target == 0 || target == "") {
                    port["targetPort"] = port["port"].clone();
                }
            }
        }
        if kind == "LoadBalancer"
            && let Some(Value::Array(ingress)) = service
                .get_mut("status")
                .and_then(|status| status.get_mut("loadBalancer")?.get_mut("ingress"))
        {
            for entry in ingress {
                if entry.get("ip").is_some() && entry.get("ipMode").is_none() {
                    entry["ipMode"] = "VIP".into();
                }
            }
        }
    }

    fn prepare_create(&self, service: &mut Value) {
        // The first of the list and the older single field are the same thing.
        let one = get_str(service, "spec.clusterIP").to_owned();
        if !one.is_empty() && get_list(service, "spec.clusterIPs").is_empty() {
            service["spec"]["clusterIPs"] = json!([one]);
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        if subresource.is_empty() {
            keep_allocations(new, old);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        super::service_rules::validate(change, problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        super::service_rules::warnings(&change.new["spec"])
    }
}

/// What the server assigned is kept when the client leaves it out, as long as the type still needs it.
fn keep_allocations(new: &mut Value, old: &Value) {
    let needs_ip = |service: &Value| get_str(service, "spec.type") != "ExternalName";
    if needs_ip(new) && needs_ip(old) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let absent = new["spec"].get(field).is_none();
            if absent
                && let Some(value) = old["spec"].get(field)
                && (field != "clusterIPs" || new["spec"].get("clusterIP") == old["spec"].get("clusterIP"))
            {
                new["spec"][field] = value.clone();
            }
        }
    }
    // Who changes the one address and leaves the list as it was means both.
    if new["spec"]["clusterIP"] != old["spec"]["clusterIP"]
        && !get_str(new, "spec.clusterIP").is_empty()
        && new["spec"].get("clusterIPs").is_none_or(|list| Some(list) == old["spec"].get("clusterIPs"))
    {
        new["spec"]["clusterIPs"] = Value::Array(vec![new["spec"]["clusterIP"].clone()]);
    }
    let needs_ports = |service: &Value| {
        let kind = get_str(service, "spec.type");
        kind == "NodePort" || kind == "LoadBalancer"
    };
    if needs_ports(new) && needs_ports(old) {
        let old_ports = get_list(old, "spec.ports");
        if let Some(Value::Array(ports)) = new["spec"].get_mut("ports") {
            let used: Vec<Value> = ports.iter().filter_map(|port| port.get("nodePort").cloned()).collect();
            for port in ports {
                let same = |other: &&Value| {
                    other.get("protocol") == port.get("protocol") && other.get("port") == port.get("port")
                };
                if port.get("nodePort").is_none()
                    && let Some(number) = old_ports.iter().find(same).and_then(|other| other.get("nodePort"))
                    && !used.contains(number)
                {
                    port["nodePort"] = number.clone();
                }
            }
        }
        if get_str(new, "spec.externalTrafficPolicy") == "Local"
            && new["spec"].get("healthCheckNodePort").is_none()
            && let Some(port) = old["spec"].get("healthCheckNodePort")
        {
            new["spec"]["healthCheckNodePort"] = port.clone();
        }
    }
    // A type change drops what the new type does not have.
    let kind = get_str(new, "spec.type").to_owned();
    let old_kind = get_str(old, "spec.type");
    let Some(spec) = new["spec"].as_object_mut() else { return };
    let has_ports = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
    if has_ports(old_kind)
        && !has_ports(&kind)
        && let Some(Value::Array(ports)) = spec.get_mut("ports")
    {
        let old_ports = get_list(old, "spec.ports");
        for port in ports {
            let unchanged = old_ports.iter().any(|other| other.get("nodePort") == port.get("nodePort"));
            if let (true, Some(map)) = (unchanged, port.as_object_mut()) {
                map.shift_remove("nodePort");
            }
        }
    }
    let reachable = |kind: &str, external: Option<&Value>| match kind {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => external.and_then(Value::as_array).is_some_and(|list| !list.is_empty()),
        _ => false,
    };
    if reachable(old_kind, old["spec"].get("externalIPs"))
        && !reachable(&kind, spec.get("externalIPs"))
        && spec.get("externalTrafficPolicy") == old["spec"].get("externalTrafficPolicy")
    {
        spec.shift_remove("externalTrafficPolicy");
    }
    if kind == "ExternalName" && old_kind != "ExternalName" {
        for field in ["clusterIP", "clusterIPs"] {
            if spec.get(field) == old["spec"].get(field) {
                spec.shift_remove(field);
            }
        }
        for field in ["ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy", "externalTrafficPolicy"] {
            if spec.get(field) == old["spec"].get(field) {
                spec.shift_remove(field);
            }
        }
    }
    let local = spec.get("externalTrafficPolicy").is_some_and(|policy| policy == "Local");
    if !(kind == "LoadBalancer" && local)
        && spec.get("healthCheckNodePort") == old["spec"].get("healthCheckNodePort")
    {
        spec.shift_remove("healthCheckNodePort");
    }
    if kind != "LoadBalancer" && old_kind == "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if spec.get(field) == old["spec"].get(field) {
                spec.shift_remove(field);
            }
        }
        if let Some(status) = new.get_mut("status").and_then(Value::as_object_mut) {
            status.insert("loadBalancer".into(), json!({}));
        }
    }
}

fn external_ip(service: &Value) -> String {
    let external = get_list(service, "spec.externalIPs").iter().filter_map(Value::as_str);
    let mut list: Vec<&str> = Vec::new();
    match get_str(service, "spec.type") {
        "ExternalName" => return get_str(service, "spec.externalName").into(),
        "LoadBalancer" => {
            let mut addresses: Vec<&str> = get_list(service, "status.loadBalancer.ingress")
                .iter()
                .map(|ingress| print::or(get_str(ingress, "ip"), get_str(ingress, "hostname")))
                .collect();
            addresses.sort_unstable();
            list.extend(addresses);
            list.extend(external);
            if list.is_empty() {
                return "<pending>".into();
            }
        }
        _ => {
            list.extend(external);
            if list.is_empty() {
                return "<none>".into();
            }
        }
    }
    list.join(",")
}

fn ports(service: &Value) -> String {
    let list = get_list(service, "spec.ports");
    if list.is_empty() {
        return "<none>".into();
    }
    let texts = list.iter().map(|port| {
        let protocol = get_str(port, "protocol");
        match port["nodePort"].as_i64() {
            Some(node) if node > 0 => format!("{}:{node}/{protocol}", port["port"]),
            _ => format!("{}/{protocol}", port["port"]),
        }
    });
    texts.collect::<Vec<_>>().join(",")
}
