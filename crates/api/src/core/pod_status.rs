//! Rules of the status of Pods, as kubelets and controllers write it.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{checks, metadata::IMMUTABLE};

/// Checks a write of the status.
pub fn validate(pod: &Value, old: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    let status = &pod["status"];
    conditions(status, &path, problems);
    nominated(pod, old, &path, problems);
    if status["observedGeneration"].as_i64().is_some_and(|generation| generation < 0) {
        let shown = status["observedGeneration"].clone();
        problems.invalid(&path.child("observedGeneration"), shown, "must be a non-negative integer");
    }
    let class = get_str(status, "qosClass");
    if class != get_str(old, "status.qosClass") {
        problems.invalid(&path.child("qosClass"), class, IMMUTABLE);
    }
    for (list, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        transitions(pod, old, list, containers, problems);
    }
    claims(pod, &path, problems);
    extended_claim(pod, &path, problems);
    addresses(pod, old, "podIPs", problems);
    host_addresses(pod, old, problems);
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        users(pod, list, &path, problems);
    }
    for (list, containers) in [
        ("containerStatuses", "containers"),
        ("initContainerStatuses", "initContainers"),
        ("ephemeralContainerStatuses", ""),
    ] {
        devices(pod, list, containers, &path, problems);
    }
}

fn conditions(status: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("conditions");
    for (index, condition) in get_list(status, "conditions").iter().enumerate() {
        let at = list.index(index);
        if condition["observedGeneration"].as_i64().is_some_and(|generation| generation < 0) {
            let shown = condition["observedGeneration"].clone();
            problems.invalid(&at.child("observedGeneration"), shown, "must be a non-negative integer");
        }
        let kind = get_str(condition, "type");
        if !["PodScheduled", "Ready", "Initialized"].contains(&kind) {
            problems.invalid_each(&at.child("Type"), kind, names::is_qualified_name(kind));
        }
    }
}

/// The node that a pod waits for, while it has none.
fn nominated(pod: &Value, old: &Value, path: &Path<'_>, problems: &mut Problems) {
    let nominated = get_str(pod, "status.nominatedNodeName");
    if nominated.is_empty() || nominated == get_str(old, "status.nominatedNodeName") {
        return;
    }
    let at = path.child("nominatedNodeName");
    problems.invalid_each(&at, nominated, names::is_dns1123_subdomain(nominated));
    if !get_str(old, "spec.nodeName").is_empty() {
        problems.forbidden(&at, "may not be set on pods that are already bound to a node");
    }
}

/// A container that ended for good stays ended.
fn transitions(pod: &Value, old: &Value, list: &str, containers: &str, problems: &mut Problems) {
    let spec = &old["spec"];
    let restarts_all =
        ["containers", "initContainers"].iter().flat_map(|list| get_list(spec, list)).any(|container| {
            get_list(container, "restartPolicyRules")
                .iter()
                .any(|rule| rule["action"] == "RestartAllContainers")
        });
    if restarts_all && !containers.is_empty() {
        return;
    }
    let path = Path::new("status");
    let path = path.child(list);
    for (index, before) in get_list(&old["status"], list).iter().enumerate() {
        let Some(ended) = get(before, "state.terminated") else { continue };
        let after = get_list(&pod["status"], list).iter().find(|after| after["name"] == before["name"]);
        if after.is_none_or(|after| get(after, "state.terminated").is_some()) {
            continue;
        }
        let container =
            get_list(spec, containers).iter().find(|container| container["name"] == before["name"]);
        let code = ended["exitCode"].as_i64().unwrap_or(0);
        if !container.is_some_and(|container| restarts(container, spec, code)) {
            problems.forbidden(
                &path.index(index).child("state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

/// Whether a container that ended with a code is to be started again.
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    let by = |policy: &str| match policy {
        "Never" => false,
        "OnFailure" => code != 0,
        _ => true,
    };
    let Some(own) = container.get("restartPolicy").and_then(Value::as_str) else {
        return by(get_str(spec, "restartPolicy"));
    };
    let matches = |rule: &&Value| {
        let named = get_list(rule, "exitCodes.values").iter().any(|value| *value == code);
        match get_str(rule, "exitCodes.operator") {
            "In" => named,
            "NotIn" => !named,
            _ => false,
        }
    };
    get_list(container, "restartPolicyRules")
        .iter()
        .find(matches)
        .is_some_and(|rule| rule["action"] == "Restart")
        || by(own)
}

fn claims(pod: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("resourceClaimStatuses");
    let statuses = get_list(pod, "status.resourceClaimStatuses");
    for (index, status) in statuses.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(status, "name");
        if !get_list(pod, "spec.resourceClaims").iter().any(|claim| get_str(claim, "name") == name) {
            problems.invalid(
                &at.child("name"),
                name,
                "must match the name of an entry in `spec.resourceClaims`",
            );
        }
        if statuses[..index].iter().any(|status| get_str(status, "name") == name) {
            problems.duplicate(&at.child("name"), name);
        }
        checks::syntax(status, "resourceClaimName", names::is_dns1123_subdomain, &at, problems);
    }
}

fn extended_claim(pod: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(status) = get(pod, "status.extendedResourceClaimStatus") else { return };
    let path = path.child("extendedResourceClaimStatus");
    let list = path.child("requestMappings");
    let mappings = get_list(status, "requestMappings");
    if mappings.is_empty() {
        problems.required(&list, "at least one request mapping is required");
    }
    for (index, mapping) in mappings.iter().enumerate() {
        let at = list.index(index);
        let (name, resource) = (get_str(mapping, "containerName"), get_str(mapping, "resourceName"));
        let containers =
            ["containers", "initContainers"].iter().flat_map(|list| get_list(&pod["spec"], list));
        match containers.into_iter().find(|container| get_str(container, "name") == name) {
            Some(container) if container["resources"]["requests"].get(resource).is_some() => {}
            Some(_) => problems.invalid(
                &at.child("resourceName"),
                resource,
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or spec.containers.resources.requests",
            ),
            None => problems.invalid(
                &at.child("containerName"),
                name,
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ),
        }
        let request = get_str(mapping, "requestName");
        problems.invalid_each(&path.child("requestName"), request, names::is_dns1123_label(request));
        if mappings[..index].contains(mapping) {
            for (field, value) in
                [("containerName", name), ("resourceName", resource), ("requestName", request)]
            {
                problems.duplicate(&at.child(field), value);
            }
        }
    }
    checks::required_syntax(status, "resourceClaimName", names::is_dns1123_subdomain, &path, problems);
}

fn host_addresses(pod: &Value, old: &Value, problems: &mut Problems) {
    let Some(first) = get_list(pod, "status.hostIPs").first().map(|first| get_str(first, "ip")) else {
        return;
    };
    if get_str(pod, "status.hostIP") != first {
        let path = Path::new("status.hostIPs");
        problems.invalid(&path.index(0).child("ip"), first, "must be equal to `hostIP`");
    }
    addresses(pod, old, "hostIPs", problems);
}

/// One address of each family. Those that were there already are not judged again.
fn addresses(pod: &Value, old: &Value, field: &str, problems: &mut Problems) {
    let status = Path::new("status");
    let list = status.child(field);
    let known = get_list(&old["status"], field);
    let entries = get_list(&pod["status"], field);
    let mut families = Vec::new();
    let mut broken = None;
    for (index, entry) in entries.iter().enumerate() {
        let ip = get_str(entry, "ip");
        if !known.iter().any(|known| get_str(known, "ip") == ip) {
            problems.invalid_each(&list.index(index), ip, names::is_ip(ip));
        }
        match ip.parse::<std::net::IpAddr>() {
            Ok(address) => families.push(address.is_ipv6()),
            Err(_) => broken = broken.or(Some(ip)),
        }
    }
    if entries.len() < 2 {
        return;
    }
    if let Some(ip) = broken {
        problems
            .internal(&list, format!("failed to check for dual stack with error:invalid IP string: {ip}"));
    }
    if broken.is_some() || entries.len() > 2 || families[0] == families[1] {
        let shown: Vec<Value> =
            entries.iter().map(|entry| serde_json::json!({"IP": get_str(entry, "ip")})).collect();
        problems.invalid(&list, Value::Array(shown), "may specify no more than one IP for each IP family");
    }
}

fn users(pod: &Value, list: &str, path: &Path<'_>, problems: &mut Problems) {
    let list_path = path.child(list);
    let windows = get_str(pod, "spec.os.name") == "windows";
    for (index, status) in get_list(&pod["status"], list).iter().enumerate() {
        let Some(user) = get(status, "user.linux") else { continue };
        let at = list_path.index(index);
        let at = at.child("user");
        let at = at.child("linux");
        if windows {
            problems.forbidden(&at, "cannot be set for a windows pod");
            continue;
        }
        let most = i64::from(i32::MAX);
        checks::in_range(user, "uid", 0, most, &at, problems);
        checks::in_range(user, "gid", 0, most, &at, problems);
        let groups = at.child("supplementalGroups");
        for (number, group) in get_list(user, "supplementalGroups").iter().enumerate() {
            if !group.as_i64().is_some_and(|group| (0..=most).contains(&group)) {
                problems.invalid(&groups.index(number), group.clone(), names::inclusive_range(0, most));
            }
        }
    }
}

/// How the devices of a container are.
fn devices(pod: &Value, list: &str, containers: &str, path: &Path<'_>, problems: &mut Problems) {
    let list_path = path.child(list);
    for (index, status) in get_list(&pod["status"], list).iter().enumerate() {
        let at = list_path.index(index);
        let at = at.child("allocatedResourcesStatus");
        let allocated = get_list(status, "allocatedResourcesStatus");
        if containers.is_empty() && !allocated.is_empty() {
            problems.forbidden(&at, "must not be specified in container status");
            continue;
        }
        let container =
            get_list(&pod["spec"], containers).iter().find(|container| container["name"] == status["name"]);
        for (number, entry) in allocated.iter().enumerate() {
            let at = at.index(number);
            if let Some(container) = container {
                named(entry, container, &at, problems);
            }
            let resources = get_list(entry, "resources");
            let list = at.child("resources");
            for (number, resource) in resources.iter().enumerate() {
                let at = list.index(number);
                let health = get_str(resource, "health");
                let words = ["Healthy", "Unhealthy", "Unknown"];
                if !words.contains(&health) {
                    problems.not_supported(&at.child("health"), health, &words);
                }
                let id = get_str(resource, "resourceID");
                if resources[..number].iter().any(|other| get_str(other, "resourceID") == id) {
                    problems.duplicate(&at.child("resourceID"), id);
                }
            }
        }
    }
}

fn named(entry: &Value, container: &Value, at: &Path<'_>, problems: &mut Problems) {
    let name = get_str(entry, "name");
    let (known, why) = if name.starts_with("claim:") {
        let known = get_list(container, "resources.claims").iter().any(|claim| {
            let own = format!("claim:{}", get_str(claim, "name"));
            match get_str(claim, "request") {
                "" => own == name,
                request => format!("{own}/{request}") == name,
            }
        });
        (
            known,
            "must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
        )
    } else {
        (
            container["resources"]["requests"].get(name).is_some(),
            "must match one of the container's resource requests",
        )
    };
    if !known {
        problems.invalid(&at.child("name"), name, why);
    }
}
