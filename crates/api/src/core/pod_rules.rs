//! Rules of Pods, and of what may change in them.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str, same},
    names,
};
use serde_json::Value;

use super::pod_spec;
use crate::Change;

/// Checks a pod write.
pub fn validate(change: &Change<'_>, problems: &mut Problems) {
    let pod = change.new;
    let spec = Path::new("spec");
    match (change.old, change.subresource) {
        (None, _) => {
            pod_spec::validate_spec(&pod["spec"], &spec, problems);
            mirror(pod, problems);
            if pod["spec"].get("ephemeralContainers").is_some() {
                problems.forbidden(&spec.child("ephemeralContainers"), "cannot be set on create");
            }
            let gated = !get_list(pod, "spec.schedulingGates").is_empty();
            if gated && !get_str(pod, "spec.nodeName").is_empty() {
                problems.forbidden(
                    &spec.child("nodeName"),
                    "cannot be set until all schedulingGates have been cleared",
                );
            }
        }
        // The only change is the node, and who binds has checked it.
        (Some(_), "binding") => {}
        (Some(old), "status") => status(pod, old, problems),
        (Some(old), "ephemeralcontainers") => {
            pod_spec::validate_spec(&pod["spec"], &spec, problems);
            ephemeral_update(pod, old, problems);
        }
        (Some(old), "resize") => {
            pod_spec::validate_spec(&pod["spec"], &spec, problems);
            resize(pod, old, problems);
        }
        // What did not change was judged when it was written.
        (Some(old), _) if same(&pod["spec"], &old["spec"]) => {}
        (Some(old), _) => {
            pod_spec::validate_spec(&pod["spec"], &spec, problems);
            update(pod, old, problems);
        }
    }
}

/// Static pods (mirrored here by their kubelet) may not refer to API objects.
fn mirror(pod: &Value, problems: &mut Problems) {
    if pod.annotation("kubernetes.io/config.mirror").is_none() {
        return;
    }
    if get_str(pod, "spec.nodeName").is_empty() {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        problems.invalid(
            &path.key("kubernetes.io/config.mirror"),
            "",
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
}

fn update(pod: &Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    for list in ["containers", "initContainers"] {
        if get_list(&pod["spec"], list).len() != get_list(&old["spec"], list).len() {
            problems.forbidden(&spec.child(list), "pod updates may not add or remove containers");
            return;
        }
    }
    let (after, before) =
        (pod["spec"]["activeDeadlineSeconds"].as_i64(), old["spec"]["activeDeadlineSeconds"].as_i64());
    let path = spec.child("activeDeadlineSeconds");
    match (after, before) {
        (Some(after), Some(before)) if before < after => {
            problems.invalid(&path, after, "must be less than or equal to previous value");
            return;
        }
        (None, Some(_)) => {
            problems.invalid(&path, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
    tolerations(pod, old, problems);
    let gates = get_list(old, "spec.schedulingGates");
    let list = spec.child("schedulingGates");
    for (index, gate) in get_list(pod, "spec.schedulingGates").iter().enumerate() {
        if !gates.contains(gate) {
            let name = get_str(gate, "name");
            problems.forbidden(
                &list.index(index).child("name"),
                format!("only deletion is allowed, but found new scheduling gate '{name}'"),
            );
        }
    }
    let gated = !gates.is_empty();
    if !same(&mask(pod, gated), &mask(old, gated)) {
        problems.forbidden(
            &spec,
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
             `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
             `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        );
    }
    if gated {
        let empty = serde_json::Map::new();
        let selector = |pod: &'_ Value| {
            get(pod, "spec.nodeSelector").and_then(Value::as_object).cloned().unwrap_or(empty.clone())
        };
        let (after, before) = (selector(pod), selector(old));
        let path = spec.child("nodeSelector");
        for (key, value) in before {
            if after.get(&key) != Some(&value) {
                let shown = after.get(&key).cloned().unwrap_or_default();
                problems.invalid(&path, shown, "only additions are allowed to nodeSelector when podIsGated");
            }
        }
    }
}

/// The spec without what may change.
fn mask(pod: &Value, gated: bool) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(map) = container.as_object_mut() {
                map.shift_remove("image");
            }
        }
    }
    if let Some(map) = spec.as_object_mut() {
        for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
            map.shift_remove(field);
        }
        if map
            .get("terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|seconds| seconds <= 1)
        {
            map.shift_remove("terminationGracePeriodSeconds");
        }
        if gated {
            map.shift_remove("nodeSelector");
            if let Some(affinity) = map.get_mut("affinity").and_then(Value::as_object_mut) {
                affinity.shift_remove("nodeAffinity");
            }
            if map.get("affinity").and_then(Value::as_object).is_some_and(serde_json::Map::is_empty) {
                map.shift_remove("affinity");
            }
        }
    }
    spec
}

fn tolerations(pod: &Value, old: &Value, problems: &mut Problems) {
    let bare = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Some(map) = toleration.as_object_mut() {
            map.shift_remove("tolerationSeconds");
        }
        toleration
    };
    let after: Vec<Value> = get_list(pod, "spec.tolerations").iter().map(bare).collect();
    for toleration in get_list(old, "spec.tolerations") {
        if !after.contains(&bare(toleration)) {
            problems.forbidden(
                &Path::new("spec").child("tolerations"),
                "existing toleration can not be modified except its tolerationSeconds",
            );
            return;
        }
    }
}

fn status(pod: &Value, old: &Value, problems: &mut Problems) {
    if get_str(pod, "spec.nodeName") != get_str(old, "spec.nodeName") {
        problems.forbidden(&Path::new("status").child("nodeName"), "may not be changed directly");
    }
    let path = Path::new("status");
    let nominated = get_str(pod, "status.nominatedNodeName");
    if !nominated.is_empty() {
        problems.invalid_each(
            &path.child("nominatedNodeName"),
            nominated,
            names::is_dns1123_subdomain(nominated),
        );
    }
    if pod["status"]["observedGeneration"].as_i64().is_some_and(|generation| generation < 0) {
        problems.invalid(
            &path.child("observedGeneration"),
            pod["status"]["observedGeneration"].clone(),
            "must be a non-negative integer",
        );
    }
    let list = path.child("podIPs");
    let mut families = Vec::new();
    for (index, entry) in get_list(pod, "status.podIPs").iter().enumerate() {
        let ip = get_str(entry, "ip");
        problems.invalid_each(&list.index(index), ip, names::is_ip(ip));
        families.push(ip.contains(':'));
    }
    if families.len() > 2 || families.len() == 2 && families[0] == families[1] {
        problems.invalid(
            &list,
            get(pod, "status.podIPs").cloned().unwrap_or_default(),
            "may specify no more than one IP for each IP family",
        );
    }
    if get_str(pod, "spec.restartPolicy") == "Never" {
        transitions(pod, old, &path, problems);
    }
}

/// A container that ended for good stays ended.
fn transitions(pod: &Value, old: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("containerStatuses");
    let statuses = get_list(pod, "status.containerStatuses");
    for before in get_list(old, "status.containerStatuses") {
        if get(before, "state.terminated").is_none() {
            continue;
        }
        let name = get_str(before, "name");
        let has_rules = get_list(&pod["spec"], "containers")
            .iter()
            .any(|container| container["name"] == name && container.get("restartPolicy").is_some());
        for (index, after) in statuses.iter().enumerate() {
            if after["name"] == name && get(after, "state.terminated").is_none() && !has_rules {
                problems.forbidden(
                    &list.index(index).child("state"),
                    "may not be transitioned to non-terminated state",
                );
            }
        }
    }
}

fn ephemeral_update(pod: &Value, old: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    let path = path.child("ephemeralContainers");
    let after = get_list(pod, "spec.ephemeralContainers");
    for before in get_list(old, "spec.ephemeralContainers") {
        let name = get_str(before, "name");
        match after.iter().find(|container| container["name"] == name) {
            None => problems
                .forbidden(&path, format!("existing ephemeral containers {name:?} may not be removed\n")),
            Some(container) if container != before => {
                problems
                    .forbidden(&path, format!("existing ephemeral containers {name:?} may not be changed\n"));
            }
            Some(_) => {}
        }
    }
}

fn resize(pod: &Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    if pod_spec::qos::class(&pod["spec"]) != pod_spec::qos::class(&old["spec"]) {
        let class = pod_spec::qos::class(&pod["spec"]);
        problems.invalid(&spec, class, "Pod QOS Class may not change as a result of resizing");
    }
    for list in ["containers", "initContainers"] {
        let list_path = spec.child(list);
        let containers = get_list(&pod["spec"], list).iter().zip(get_list(&old["spec"], list));
        for (index, (after, before)) in containers.enumerate() {
            let at = list_path.index(index);
            let at = at.child("resources");
            for kind in ["requests", "limits"] {
                let amounts =
                    |container: &Value| container["resources"][kind].as_object().cloned().unwrap_or_default();
                let (after, before) = (amounts(after), amounts(before));
                if ["cpu", "memory"]
                    .iter()
                    .any(|name| before.contains_key(*name) && !after.contains_key(*name))
                {
                    problems.forbidden(&at.child(kind), format!("resource {kind} cannot be removed"));
                }
                let other = |map: serde_json::Map<String, Value>| {
                    map.into_iter().filter(|(name, _)| name != "cpu" && name != "memory").collect::<Vec<_>>()
                };
                if other(after) != other(before) {
                    problems.forbidden(&spec, "only cpu and memory resources are mutable");
                }
            }
        }
    }
}
