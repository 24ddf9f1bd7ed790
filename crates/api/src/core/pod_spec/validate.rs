//! Rules of a pod spec as a whole.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names, selector,
};
use serde_json::Value;

use super::{Kept, affinity, containers, env, os, resources, security, volumes};
use crate::{checks, core::volume_sources};

/// Where a pod spec stands: templates may be laxer, and always were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// In a Pod.
    Pod,
    /// In the template of something that makes Pods.
    Template,
}

/// Checks a pod spec; `old` is the stored one, if there is one.
pub fn validate_spec(
    spec: &Value,
    old: Option<&Value>,
    home: Home,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    let kept = Kept::of(old);
    // Below zero means no grace at all; pods say so in their own words before they are judged.
    if spec.get("terminationGracePeriodSeconds").is_none() {
        problems.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let sources = match home {
        Home::Pod => volume_sources::POD,
        Home::Template => volume_sources::TEMPLATE,
    };
    let volume_names =
        volumes::validate(get_list(spec, "volumes"), sources, &path.child("volumes"), problems);
    claims(spec, path, problems);
    let pod = containers::Pod { spec, volumes: volume_names, kept };
    containers::validate(&pod, path, problems);
    if spec.get("resources").is_some() {
        resources::of_pod(spec, &claim_names(spec), kept, &path.child("resources"), problems);
    }
    host_network(spec, path, problems);
    checks::one_of_ordered(spec, "restartPolicy", true, &["Always", "OnFailure", "Never"], path, problems);
    checks::one_of_ordered(
        spec,
        "dnsPolicy",
        true,
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        path,
        problems,
    );
    if let Some(labels) = spec.get("nodeSelector").and_then(Value::as_object) {
        selector::validate_labels(labels, &path.child("nodeSelector"), problems);
    }
    if let Some(context) = spec.get("securityContext") {
        security::pod(context, spec, kept, &path.child("securityContext"), problems);
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let context = path.child("securityContext");
        problems.invalid(
            &context.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if let Some(value) = spec.get("affinity") {
        affinity::validate(value, &path.child("affinity"), problems);
    }
    dns_config(spec, path, problems);
    gates(spec, path, problems);
    affinity::spread(
        get_list(spec, "topologySpreadConstraints"),
        &path.child("topologySpreadConstraints"),
        problems,
    );
    os::host_processes(spec, path, problems);
    host_users(spec, path, problems);
    hostname_override(spec, path, problems);
    checks::syntax(spec, "serviceAccountName", names::is_dns1123_subdomain, path, problems);
    checks::syntax(spec, "nodeName", names::is_dns1123_subdomain, path, problems);
    checks::in_range(spec, "activeDeadlineSeconds", 1, i64::from(i32::MAX), path, problems);
    checks::syntax(spec, "hostname", names::is_dns1123_label, path, problems);
    checks::syntax(spec, "subdomain", names::is_dns1123_label, path, problems);
    affinity::tolerations(get_list(spec, "tolerations"), kept, &path.child("tolerations"), problems);
    host_aliases(spec, path, problems);
    checks::syntax(spec, "priorityClassName", names::is_dns1123_subdomain, path, problems);
    checks::syntax(spec, "runtimeClassName", names::is_dns1123_subdomain, path, problems);
    let policies = ["PreemptLowerPriority", "Never"];
    let given = spec.get("preemptionPolicy").is_some();
    checks::one_of_ordered(spec, "preemptionPolicy", given, &policies, path, problems);
    if let Some(overhead) = spec.get("overhead") {
        let wrapped = serde_json::json!({"limits": overhead});
        resources::validate(&wrapped, &[], kept, &path.child("overhead"), problems);
    }
    os::validate(spec, path, problems);
    env::files(spec, path, problems);
    if home == Home::Pod {
        only_in_pods(spec, path, problems);
    }
}

/// What a template may say, but no pod.
fn only_in_pods(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    if get_str(spec, "serviceAccountName").is_empty() {
        let list = path.child("volumes");
        for (index, volume) in get_list(spec, "volumes").iter().enumerate() {
            let at = list.index(index);
            let at = at.child("projected");
            let sources = at.child("sources");
            for (number, source) in get_list(volume, "projected.sources").iter().enumerate() {
                if source.get("serviceAccountToken").is_some() {
                    problems.forbidden(
                        &sources.index(number).child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let at = path.child(list);
        for (index, container) in get_list(spec, list).iter().enumerate() {
            containers::no_space_around_image(container, &at.index(index), problems);
        }
    }
}

/// Conditions that a pod waits for before it is ready, or before it is scheduled.
fn gates(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("readinessGates");
    for (index, gate) in get_list(spec, "readinessGates").iter().enumerate() {
        let at = list.index(index);
        let kind = get_str(gate, "conditionType");
        problems.invalid_each(&at.child("conditionType"), kind, names::is_qualified_name(kind));
    }
    let list = path.child("schedulingGates");
    let mut seen = Vec::new();
    for (index, gate) in get_list(spec, "schedulingGates").iter().enumerate() {
        let name = get_str(gate, "name");
        problems.invalid_each(&list.index(index), name, names::is_qualified_name(name));
        if seen.contains(&name) {
            problems.duplicate(&list.index(index), name);
        }
        seen.push(name);
    }
}

fn host_aliases(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("hostAliases");
    for (index, alias) in get_list(spec, "hostAliases").iter().enumerate() {
        let at = list.index(index);
        let ip = get_str(alias, "ip");
        problems.invalid_each(&at.child("ip"), ip, names::is_ip(ip));
        let hosts = at.child("hostnames");
        for (number, host) in get_list(alias, "hostnames").iter().enumerate() {
            let host = host.as_str().unwrap_or_default();
            problems.invalid_each(&hosts.index(number), host, names::is_dns1123_subdomain(host));
        }
    }
}

/// A name that replaces the one that the kernel would have, so nothing else may say what that is.
fn hostname_override(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(name) = spec.get("hostnameOverride").and_then(Value::as_str) else { return };
    let at = path.child("hostnameOverride");
    if spec["setHostnameAsFQDN"] == true {
        problems.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec["hostNetwork"] == true {
        problems.forbidden(&at, "may not be specified when hostNetwork is true");
    }
    if name.len() > 64 {
        problems.too_long(&at, 64);
    }
    problems.invalid_each(&at, name, names::is_dns1123_subdomain(name));
}

/// What the pod calls its resource claims.
pub fn claim_names(spec: &Value) -> Vec<&str> {
    let names = get_list(spec, "resourceClaims").iter().map(|claim| get_str(claim, "name"));
    names.filter(|name| !name.is_empty()).collect()
}

fn claims(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("resourceClaims");
    let mut seen = Vec::new();
    for (index, claim) in get_list(spec, "resourceClaims").iter().enumerate() {
        let at = list.index(index);
        let name = get_str(claim, "name");
        if name.is_empty() {
            problems.required(&at.child("name"), "");
        } else if seen.contains(&name) {
            problems.duplicate(&at.child("name"), name);
        } else {
            problems.invalid_each(&at.child("name"), name, names::is_dns1123_label(name));
        }
        seen.push(name);
        match (claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")) {
            (Some(_), Some(_)) => problems.invalid(
                &at,
                crate::go_form::shown(claim, "PodResourceClaim"),
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            ),
            (None, None) => problems.invalid(
                &at,
                crate::go_form::shown(claim, "PodResourceClaim"),
                "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ),
            _ => {}
        }
        for field in ["resourceClaimName", "resourceClaimTemplateName"] {
            checks::syntax(claim, field, names::is_dns1123_subdomain, &at, problems);
        }
    }
}

fn host_network(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    if spec["hostNetwork"] != true {
        return;
    }
    for list in ["containers", "initContainers"] {
        let list_path = path.child(list);
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let at = list_path.index(index);
            let ports = at.child("ports");
            for (number, port) in get_list(container, "ports").iter().enumerate() {
                let (host, inside) = (port["hostPort"].as_i64(), port["containerPort"].as_i64());
                if host.is_some_and(|host| host != 0) && host != inside {
                    problems.invalid(
                        &ports.index(number).child("hostPort"),
                        host.unwrap_or(0),
                        "must match `containerPort` when `hostNetwork` is true",
                    );
                }
            }
        }
    }
}

fn host_users(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    if spec["hostUsers"] != false {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec[field] == true {
            problems.forbidden(&path.child(shown), "when `hostUsers` is false");
        }
    }
}

fn dns_config(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("dnsConfig");
    let config = spec.get("dnsConfig");
    if get_str(spec, "dnsPolicy") == "None" {
        match config {
            None => {
                problems.required(&at, "must provide `dnsConfig` when `dnsPolicy` is None");
                return;
            }
            Some(config) if get_list(config, "nameservers").is_empty() => {
                problems.required(
                    &at.child("nameservers"),
                    "must provide at least one DNS nameserver when `dnsPolicy` is None",
                );
                return;
            }
            Some(_) => {}
        }
    }
    let Some(config) = config else { return };
    let servers = get_list(config, "nameservers");
    if servers.len() > 3 {
        problems.invalid(
            &at.child("nameservers"),
            Value::Array(servers.to_vec()),
            "must not have more than 3 nameservers",
        );
    }
    let list = at.child("nameservers");
    for (index, server) in servers.iter().enumerate() {
        let text = server.as_str().unwrap_or_default();
        problems.invalid_each(&list.index(index), text, names::is_ip(text));
    }
    let searches = get_list(config, "searches");
    if searches.len() > 32 {
        problems.invalid(
            &at.child("searches"),
            Value::Array(searches.to_vec()),
            "must not have more than 32 search paths",
        );
    }
    let list = at.child("searches");
    for (index, search) in searches.iter().enumerate() {
        // A single dot is the root; underscores are for service records.
        let text = search.as_str().unwrap_or_default();
        let text = if text == "." { text } else { text.strip_suffix('.').unwrap_or(text) };
        if text != "." {
            problems.invalid_each(
                &list.index(index),
                text,
                names::is_dns1123_subdomain_with_underscore(text),
            );
        }
    }
    let list = at.child("options");
    for (index, option) in get_list(config, "options").iter().enumerate() {
        if get_str(option, "name").is_empty() {
            problems.required(&list.index(index), "must not be empty");
        }
    }
}
