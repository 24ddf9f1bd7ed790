//! Rules of Services.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names, selector,
};
use serde_json::Value;

use super::endpoints::endpoint_ip;
use crate::{Change, checks};

/// Checks a Service write.
pub fn validate(change: &Change<'_>, problems: &mut Problems) {
    let service = change.new;
    if change.subresource == "status" {
        load_balancer_status(service, problems);
        return;
    }
    let path = Path::new("spec");
    let spec = &service["spec"];
    let kind = get_str(spec, "type");
    let headless = get_str(spec, "clusterIP") == "None";
    checks::one_of(
        spec,
        "type",
        true,
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        &path,
        problems,
    );
    let ports = get_list(spec, "ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        problems.required(&path.child("ports"), "");
    }
    by_type(spec, kind, headless, &path, problems);
    port_list(spec, kind, &path, problems);
    if let Some(labels) = spec.get("selector").and_then(Value::as_object) {
        selector::validate_labels(labels, &path.child("selector"), problems);
    }
    affinity(spec, &path, problems);
    addresses(spec, &path, problems);
    traffic(spec, kind, &path, problems);
    let list = path.child("loadBalancerSourceRanges");
    for (index, range) in get_list(spec, "loadBalancerSourceRanges").iter().enumerate() {
        let text = range.as_str().unwrap_or_default().trim();
        if kind != "LoadBalancer" {
            problems.forbidden(&list, "may only be used when `type` is 'LoadBalancer'");
            break;
        }
        problems.invalid_each(&list.index(index), text, names::is_cidr(text));
    }
    if kind != "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts").is_some() {
        problems.forbidden(
            &path.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        );
    }
    if spec.get("loadBalancerClass").is_some() {
        if kind != "LoadBalancer" {
            problems.forbidden(
                &path.child("loadBalancerClass"),
                "may only be used when `type` is 'LoadBalancer'",
            );
        }
        checks::syntax(spec, "loadBalancerClass", names::is_qualified_name, &path, problems);
    }
    if let Some(old) = change.old {
        update(service, old, problems);
    }
}

/// What a Service says in vain, or should say in other words.
pub fn warnings(spec: &Value) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let headless = get_str(spec, "clusterIP") == "None";
    let external = !get_list(spec, "externalIPs").is_empty();
    if headless {
        let ignored = [
            ("loadBalancerIP", !get_str(spec, "loadBalancerIP").is_empty()),
            ("externalIPs", external),
            ("SessionAffinity", get_str(spec, "sessionAffinity") != "None"),
        ];
        let ignored = ignored.iter().filter(|(_, given)| *given);
        out.extend(ignored.map(|(field, _)| format!("spec.{field} is ignored for headless services")));
    } else if external && get_str(spec, "type") != "ExternalName" {
        out.push("spec.externalIPs is deprecated and may no longer be implemented in some clusters".into());
    }
    if get_str(spec, "trafficDistribution") == "PreferClose" {
        let newer = "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        out.push(newer.into());
    }
    out
}

fn by_type(spec: &Value, kind: &str, headless: bool, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("clusterIPs");
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            problems.invalid(&list.index(0), "None", format!("may not be set to 'None' for {kind} services"));
        }
        "ExternalName" => {
            if !get_list(spec, "clusterIPs").is_empty() || !get_str(spec, "clusterIP").is_empty() {
                problems.forbidden(&list, "may not be set for ExternalName services");
            }
            for field in ["ipFamilies", "ipFamilyPolicy"] {
                if spec.get(field).is_some() {
                    problems.forbidden(&path.child(field), "may not be set for ExternalName services");
                }
            }
            let name = get_str(spec, "externalName").trim_end_matches('.');
            if name.is_empty() {
                problems.required(&path.child("externalName"), "");
            } else {
                problems.invalid_each(&path.child("externalName"), name, names::is_dns1123_subdomain(name));
            }
        }
        _ => {}
    }
}

fn port_list(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let ports = get_list(spec, "ports");
    let list = path.child("ports");
    let mut seen_names: Vec<&str> = Vec::new();
    let mut seen: Vec<(i64, &str)> = Vec::new();
    let mut node_ports: Vec<(i64, &str)> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                problems.required(&at.child("name"), "");
            }
        } else {
            problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
            if seen_names.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
            seen_names.push(name);
        }
        let number = port["port"].as_i64().unwrap_or(0);
        for complaint in names::is_port_number(number) {
            problems.invalid(&at.child("port"), number, complaint);
        }
        checks::one_of(port, "protocol", true, &["SCTP", "TCP", "UDP"], &at, problems);
        if let Some(target) = port.get("targetPort") {
            checks::port_or_name(target, &at.child("targetPort"), problems);
        }
        checks::syntax(port, "appProtocol", names::is_qualified_name, &at, problems);
        let protocol = get_str(port, "protocol");
        let node_port = port["nodePort"].as_i64().unwrap_or(0);
        if node_port != 0 {
            if kind == "ClusterIP" {
                problems.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
            }
            if node_ports.contains(&(node_port, protocol)) {
                problems.duplicate(&at.child("nodePort"), node_port);
            }
            node_ports.push((node_port, protocol));
        }
        if seen.contains(&(number, protocol)) {
            problems.duplicate(&at, serde_json::json!({"port": number, "protocol": protocol}));
        }
        seen.push((number, protocol));
    }
}

fn affinity(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::one_of(spec, "sessionAffinity", true, &["ClientIP", "None"], path, problems);
    match (get_str(spec, "sessionAffinity"), spec.get("sessionAffinityConfig")) {
        ("ClientIP", Some(config)) => {
            let seconds = get(config, "clientIP.timeoutSeconds").and_then(Value::as_i64).unwrap_or(0);
            if !(1..=86400).contains(&seconds) {
                let config = path.child("sessionAffinityConfig");
                let client = config.child("clientIP");
                problems.invalid(
                    &client.child("timeoutSeconds"),
                    seconds,
                    "must be greater than 0 and less than 86400",
                );
            }
        }
        ("None", Some(_)) => problems
            .forbidden(&path.child("sessionAffinityConfig"), "must not be set when session affinity is None"),
        _ => {}
    }
}

fn addresses(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let ip = get_str(spec, "clusterIP");
    let ips = get_list(spec, "clusterIPs");
    if let Some(first) = ips.first()
        && first != ip
    {
        let shown = Value::Array(ips.to_vec());
        problems.invalid(&path.child("clusterIPs"), shown, "first value must match `clusterIP`");
    }
    let list = path.child("clusterIPs");
    for (index, address) in ips.iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        if text == "None" {
            if ips.len() > 1 {
                let shown = Value::Array(ips.to_vec());
                problems.invalid(&list, shown, "'None' must be the first and only value");
            }
            continue;
        }
        problems.invalid_each(&list.index(index), text, names::is_ip(text));
    }
    if ips.is_empty() && !ip.is_empty() && ip != "None" {
        problems.invalid_each(&path.child("clusterIP"), ip, names::is_ip(ip));
    }
    let list = path.child("externalIPs");
    for (index, address) in get_list(spec, "externalIPs").iter().enumerate() {
        endpoint_ip(address.as_str().unwrap_or_default(), &list.index(index), problems);
    }
    checks::one_of(
        spec,
        "ipFamilyPolicy",
        false,
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
        path,
        problems,
    );
    let list = path.child("ipFamilies");
    let families = get_list(spec, "ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let text = family.as_str().unwrap_or_default();
        if !["IPv4", "IPv6"].contains(&text) {
            problems.not_supported(&list.index(index), text, &["IPv4", "IPv6"]);
        }
        if families[..index].contains(family) {
            problems.duplicate(&list.index(index), text);
        }
    }
}

fn traffic(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let policy = get_str(spec, "externalTrafficPolicy");
    let outside = kind == "NodePort" || kind == "LoadBalancer" || !get_list(spec, "externalIPs").is_empty();
    if !outside {
        if !policy.is_empty() {
            problems.invalid(
                &path.child("externalTrafficPolicy"),
                policy,
                "may only be set for externally-accessible services",
            );
        }
    } else {
        checks::one_of(spec, "externalTrafficPolicy", true, &["Cluster", "Local"], path, problems);
    }
    let health = spec["healthCheckNodePort"].as_i64().unwrap_or(0);
    if health != 0 && !(kind == "LoadBalancer" && policy == "Local") {
        problems.invalid(
            &path.child("healthCheckNodePort"),
            health,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    }
    if kind != "ExternalName" {
        checks::one_of(spec, "internalTrafficPolicy", true, &["Cluster", "Local"], path, problems);
    }
    checks::one_of_ordered(
        spec,
        "trafficDistribution",
        false,
        &["PreferClose", "PreferSameZone", "PreferSameNode"],
        path,
        problems,
    );
}

fn update(service: &Value, old: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    let (kind, before) = (get_str(service, "spec.type"), get_str(old, "spec.type"));
    let had = get_list(old, "spec.clusterIPs");
    // The first address stays as long as the type has one.
    if kind != "ExternalName" && before != "ExternalName" && !had.is_empty() {
        let has = get_list(service, "spec.clusterIPs");
        let list = path.child("clusterIPs");
        if has.is_empty() {
            problems.invalid(&list.index(0), Value::Array(Vec::new()), "primary clusterIP can not be unset");
        }
        // A second address may come or go, the first one not; what stays stays the same.
        let kept = if has.len() == had.len() { has.len() } else { has.len().min(1) };
        for index in (0..kept).filter(|&index| has[index] != had[index]) {
            problems.invalid(&list.index(index), Value::Array(has.to_vec()), "may not change once set");
        }
    }
    let class = |service: &Value| get(service, "spec.loadBalancerClass").cloned();
    if kind == "LoadBalancer" && before == "LoadBalancer" && class(service) != class(old) {
        problems.invalid(
            &path.child("loadBalancerClass"),
            class(service).unwrap_or_default(),
            "may not change once set",
        );
    }
    let health = |service: &Value| get(service, "spec.healthCheckNodePort").cloned();
    let needs = |service: &Value| {
        get_str(service, "spec.type") == "LoadBalancer"
            && get_str(service, "spec.externalTrafficPolicy") == "Local"
    };
    if needs(service) && needs(old) && health(old).is_some() && health(service) != health(old) {
        problems.forbidden(&path.child("healthCheckNodePort"), "field is immutable");
    }
}

fn load_balancer_status(service: &Value, problems: &mut Problems) {
    let status = Path::new("status");
    let balancer = status.child("loadBalancer");
    let list = balancer.child("ingress");
    let ingress = get_list(service, "status.loadBalancer.ingress");
    if !ingress.is_empty() && get_str(service, "spec.type") != "LoadBalancer" {
        problems.forbidden(&list, "may only be used when `spec.type` is \"LoadBalancer\"");
        return;
    }
    for (index, entry) in ingress.iter().enumerate() {
        let at = list.index(index);
        checks::syntax(entry, "ip", names::is_ip, &at, problems);
        if get_str(entry, "ip").is_empty() && entry.get("ipMode").is_some() {
            problems.forbidden(&at.child("ipMode"), "may not be specified when `ip` is not set");
        }
        checks::syntax(entry, "hostname", names::is_dns1123_subdomain, &at, problems);
    }
}
