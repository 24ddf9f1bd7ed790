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
        load_balancer_status(service, change.old.unwrap_or(&Value::Null), problems);
        return;
    }
    if let Some(old) = change.old {
        update(service, old, problems);
    }
    let path = Path::new("spec");
    let spec = &service["spec"];
    let kind = get_str(spec, "type");
    let headless = get_str(spec, "clusterIP") == "None";
    let ports = get_list(spec, "ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        problems.required(&path.child("ports"), "");
    }
    by_type(spec, kind, headless, &path, problems);
    port_list(spec, &path, problems);
    if let Some(labels) = spec.get("selector").and_then(Value::as_object) {
        selector::validate_labels(labels, &path.child("selector"), problems);
    }
    affinity(spec, &path, problems);
    addresses(spec, kind, &path, problems);
    checks::one_of(
        spec,
        "type",
        true,
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        &path,
        problems,
    );
    port_duplicates(spec, kind, &path, problems);
    // Upstream writes this field so, and no other.
    let list = path.child("LoadBalancerSourceRanges");
    let ranges = get_list(spec, "loadBalancerSourceRanges");
    if !ranges.is_empty() && kind != "LoadBalancer" {
        problems.forbidden(&list, "may only be used when `type` is 'LoadBalancer'");
    }
    for (index, range) in ranges.iter().enumerate() {
        let text = range.as_str().unwrap_or_default().trim();
        problems.invalid_each(&list.index(index), text, names::is_cidr(text));
    }
    if kind != "LoadBalancer" && spec.get("allocateLoadBalancerNodePorts").is_some() {
        problems.forbidden(
            &path.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        );
    }
    load_balancer_class(spec, kind, &path, problems);
    traffic(spec, kind, &path, problems);
}

fn load_balancer_class(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    if kind == "LoadBalancer" {
        checks::syntax(spec, "loadBalancerClass", names::is_qualified_name, path, problems);
    } else if spec.get("loadBalancerClass").is_some() {
        problems
            .forbidden(&path.child("loadBalancerClass"), "may only be used when `type` is 'LoadBalancer'");
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
    if external && get_str(spec, "type") == "ExternalName" {
        out.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".into());
    }
    if !get_str(spec, "externalName").is_empty() && get_str(spec, "type") != "ExternalName" {
        out.push("spec.externalName is ignored when spec.type is not \"ExternalName\"".into());
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

fn port_list(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let ports = get_list(spec, "ports");
    let list = path.child("ports");
    let mut seen_names: Vec<&str> = Vec::new();
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
    }
}

fn port_duplicates(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("ports");
    let ports: Vec<(i64, i64, &str)> = get_list(spec, "ports")
        .iter()
        .map(|port| {
            let number = |field: &str| port[field].as_i64().unwrap_or(0);
            (number("port"), number("nodePort"), get_str(port, "protocol"))
        })
        .collect();
    for (index, (_, node_port, _)) in ports.iter().enumerate() {
        if *node_port != 0 && kind == "ClusterIP" {
            let at = list.index(index);
            problems.forbidden(&at.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
        }
    }
    for (index, (_, node_port, protocol)) in ports.iter().enumerate() {
        if *node_port != 0 && ports[..index].iter().any(|have| have.1 == *node_port && have.2 == *protocol) {
            let at = list.index(index);
            problems.duplicate(&at.child("nodePort"), *node_port);
        }
    }
    for (index, (number, _, protocol)) in ports.iter().enumerate() {
        if ports[..index].iter().any(|have| have.0 == *number && have.2 == *protocol) {
            let shown = serde_json::json!({
                "Name": "", "Protocol": protocol, "AppProtocol": null, "Port": number, "TargetPort": 0, "NodePort": 0,
            });
            problems.duplicate(&list.index(index), shown);
        }
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

fn addresses(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    if kind != "ExternalName" {
        cluster_addresses(spec, path, problems);
    }
    let list = path.child("externalIPs");
    for (index, address) in get_list(spec, "externalIPs").iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        let complaints = names::is_ip(text);
        if complaints.is_empty() {
            endpoint_ip(text, &list.index(index), problems);
        }
        problems.invalid_each(&list.index(index), text, complaints);
    }
}

/// Addresses and families that do not fit together.
pub fn cluster_addresses(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let ip = get_str(spec, "clusterIP");
    let ips = get_list(spec, "clusterIPs");
    let shown = || Value::Array(ips.to_vec());
    let at = path.child("clusterIPs");
    match (ip.is_empty(), ips.first()) {
        (false, None) => problems.required(&at, ""),
        (false, Some(first)) if first != ip => {
            problems.invalid(&at, shown(), "first value must match `clusterIP`");
        }
        (true, Some(_)) => {
            problems.invalid(&at, shown(), "must be empty when `clusterIP` is not specified");
        }
        _ => {}
    }
    families(spec, path, problems);
    let before = problems.len();
    for (index, address) in ips.iter().enumerate() {
        let text = address.as_str().unwrap_or_default();
        if index == 0 && text == "None" {
            if ips.len() > 1 {
                problems.invalid(&at, shown(), "'None' must be the first and only value");
            }
            continue;
        }
        problems.invalid_each(&at.index(index), text, names::is_ip(text));
    }
    let good = problems.len() == before;
    if ips.len() > 2 {
        problems.invalid(&at, shown(), "may only hold up to 2 values");
    }
    if !good {
        return;
    }
    let is_six = |address: &Value| address.as_str().unwrap_or_default().contains(':');
    let sixes = ips.iter().filter(|address| is_six(address)).count();
    if ips.len() > 1 && (sixes == 0 || sixes == ips.len()) {
        problems.invalid(&at, shown(), "may specify no more than one IP for each IP family");
    }
    for (index, (address, family)) in ips.iter().zip(get_list(spec, "ipFamilies")).enumerate() {
        let expected = if family == "IPv6" { "IPv6" } else { "IPv4" };
        if ip != "None"
            && ["IPv4", "IPv6"].iter().any(|known| family == known)
            && is_six(address) != (expected == "IPv6")
        {
            let why = format!("expected an {expected} value as indicated by `ipFamilies[{index}]`");
            problems.invalid(&at.index(index), address.clone(), why);
        }
    }
}

fn families(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
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
    checks::one_of(
        spec,
        "ipFamilyPolicy",
        false,
        &["PreferDualStack", "RequireDualStack", "SingleStack"],
        path,
        problems,
    );
}

fn traffic(spec: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let policy = get_str(spec, "externalTrafficPolicy");
    let outside = kind == "NodePort"
        || kind == "LoadBalancer"
        || (kind == "ClusterIP" && !get_list(spec, "externalIPs").is_empty());
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
    let at = path.child("healthCheckNodePort");
    if health != 0 && !(kind == "LoadBalancer" && policy == "Local") {
        problems.invalid(
            &at,
            health,
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        );
    } else if health != 0 {
        for complaint in names::is_port_number(health) {
            problems.invalid(&at, health, complaint);
        }
    }
    let at = path.child("internalTrafficPolicy");
    match spec.get("internalTrafficPolicy").and_then(Value::as_str) {
        None if ["ClusterIP", "NodePort", "LoadBalancer"].contains(&kind) => problems.required(&at, ""),
        None | Some("Cluster" | "Local") => {}
        Some(other) => problems.not_supported(&at, other, &["Cluster", "Local"]),
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
    // The first address stays as long as the type has one, and none stays none.
    let headless = |service: &Value| get_str(service, "spec.clusterIP") == "None";
    let both_headless = headless(service) && headless(old);
    if kind != "ExternalName" && before != "ExternalName" && !had.is_empty() && !both_headless {
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
    // Judged as part of the change, and again as part of the whole.
    load_balancer_class(&service["spec"], kind, &path, problems);
    let health = |service: &Value| get(service, "spec.healthCheckNodePort").cloned();
    let needs = |service: &Value| {
        get_str(service, "spec.type") == "LoadBalancer"
            && get_str(service, "spec.externalTrafficPolicy") == "Local"
    };
    if needs(service) && needs(old) && health(old).is_some() && health(service) != health(old) {
        problems.forbidden(&path.child("healthCheckNodePort"), "field is immutable");
    }
}

fn load_balancer_status(service: &Value, old: &Value, problems: &mut Problems) {
    const INGRESS: &str = "status.loadBalancer.ingress";
    let list = Path::new(INGRESS);
    let ingress = get_list(service, INGRESS);
    if !ingress.is_empty() && get_str(service, "spec.type") != "LoadBalancer" {
        problems.forbidden(&list, "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    for (index, entry) in ingress.iter().enumerate() {
        let at = list.index(index);
        let at = at.child("ipMode");
        match (get_str(entry, "ip").is_empty(), entry.get("ipMode").and_then(Value::as_str)) {
            (false, None) => problems.required(&at, "must be specified when `ip` is set"),
            (true, Some(_)) => problems.forbidden(&at, "may not be specified when `ip` is not set"),
            (false, Some(mode)) if !["Proxy", "VIP"].contains(&mode) => {
                problems.not_supported(&at, mode, &["Proxy", "VIP"]);
            }
            _ => {}
        }
    }
    checks::load_balancer(service, old, problems);
}
