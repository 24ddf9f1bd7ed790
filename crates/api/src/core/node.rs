//! Nodes.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names, quantity,
};
use serde_json::Value;

use crate::{Change, Column, Definition, Effect, Rules, Subresource, print};

/// A machine that runs pods.
pub fn definition() -> Definition {
    let mut definition = Definition::cluster("", "v1", "Node", "nodes")
        .short(&["no"])
        .stored_at("/registry/minions")
        .with(Subresource::Proxy)
        .status()
        .label_or("spec.unschedulable", "false")
        .effects(&[Effect::Connect])
        .columns(vec![
            Column::new("Status", |node, _| status(node).into()),
            Column::new("Roles", |node, _| roles(node).into()),
            Column::age(),
            Column::path("Version", "status.nodeInfo.kubeletVersion"),
            Column::new("Internal-IP", |node, _| address(node, "InternalIP").into()).wide(),
            Column::new("External-IP", |node, _| address(node, "ExternalIP").into()).wide(),
            Column::new("OS-Image", |node, _| {
                print::or(get_str(node, "status.nodeInfo.osImage"), "<unknown>").into()
            })
            .wide(),
            Column::new("Kernel-Version", |node, _| kernel(node).into()).wide(),
            Column::new("Container-Runtime", |node, _| {
                print::or(get_str(node, "status.nodeInfo.containerRuntimeVersion"), "<unknown>").into()
            })
            .wide(),
        ])
        .rules(Node);
    definition.created_with_status = true;
    definition
}

struct Node;

impl Rules for Node {
    fn set_defaults(&self, node: &mut Value) {
        // The first of the list and the older single field are the same thing.
        let one = get_str(node, "spec.podCIDR").to_owned();
        let first = get_list(node, "spec.podCIDRs").first().cloned();
        match first {
            None if !one.is_empty() => node["spec"]["podCIDRs"] = Value::Array(vec![one.into()]),
            Some(first) if one.is_empty() => node["spec"]["podCIDR"] = first,
            _ => {}
        }
        let Some(status) = node.get_mut("status").and_then(Value::as_object_mut) else { return };
        if !status.contains_key("allocatable")
            && let Some(capacity) = status.get("capacity").cloned()
        {
            status.insert("allocatable".into(), capacity);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let node = change.new;
        let spec = Path::new("spec");
        taints(get_list(node, "spec.taints"), &spec.child("taints"), problems);
        let cidrs = get_list(node, "spec.podCIDRs");
        for (index, cidr) in cidrs.iter().enumerate() {
            let text = cidr.as_str().unwrap_or_default();
            problems.invalid_each(&spec.child("podCIDRs").index(index), text, names::is_cidr(text));
        }
        if cidrs.len() > 2 {
            problems.invalid(
                &spec.child("podCIDRs"),
                Value::Array(cidrs.to_vec()),
                "may specify no more than one CIDR for each IP family",
            );
        }
        for list in ["capacity", "allocatable"] {
            let path = Path::new("status");
            let path = path.child(list);
            let resources = get(&node["status"], list).and_then(Value::as_object);
            for (name, value) in resources.into_iter().flatten() {
                let text = value.as_str().unwrap_or_default();
                if text.parse::<quantity::Quantity>().is_ok_and(|quantity| quantity.sign() < 0) {
                    problems.invalid(&path.key(name), text, "must be greater than or equal to 0");
                }
            }
        }
        if let Some(old) = change.old {
            let (before, after) = (get_str(old, "spec.providerID"), get_str(node, "spec.providerID"));
            if !before.is_empty() && before != after {
                problems.forbidden(
                    &spec.child("providerID"),
                    "node updates may not change providerID except from \"\" to valid",
                );
            }
            let before = get(old, "spec.podCIDRs");
            if before.is_some() && before != get(node, "spec.podCIDRs") {
                problems.forbidden(
                    &spec.child("podCIDRs"),
                    "node updates may not change podCIDR except from \"\" to valid",
                );
            }
        }
    }
}

fn taints(taints: &[Value], path: &Path<'_>, problems: &mut Problems) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        let (key, effect) = (get_str(taint, "key"), get_str(taint, "effect"));
        problems.invalid_each(&path.child("key"), key, names::is_qualified_name(key));
        let value = get_str(taint, "value");
        let complaints = names::is_label_value(value);
        if !complaints.is_empty() {
            problems.invalid(&path.child("value"), value, complaints.join(";"));
        }
        match effect {
            "NoSchedule" | "PreferNoSchedule" | "NoExecute" => {}
            "" => problems.required(&path.child("effect"), ""),
            other => problems.not_supported(
                &path.child("effect"),
                other,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ),
        }
        if seen.contains(&(key, effect)) {
            problems.push(apimachinery::field::Problem {
                kind: apimachinery::field::ProblemKind::Duplicate,
                path: path.to_string(),
                value: Some(taint.clone()),
                detail: "taints must be unique by key and effect pair".into(),
            });
        }
        seen.push((key, effect));
    }
}

fn status(node: &Value) -> String {
    let mut words = vec![match print::condition(node, "Ready") {
        Some(ready) if ready["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node["spec"]["unschedulable"] == true {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

fn roles(node: &Value) -> String {
    let mut roles: Vec<&str> = node
        .labels()
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" => value.as_str(),
            _ => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".into() } else { roles.join(",") }
}

fn address(node: &Value, kind: &str) -> String {
    let addresses = get_list(node, "status.addresses");
    let found = addresses.iter().find(|address| address["type"] == kind);
    found.map_or("<none>", |address| get_str(address, "address")).into()
}

fn kernel(node: &Value) -> String {
    let version = print::or(get_str(node, "status.nodeInfo.kernelVersion"), "<unknown>");
    match get_str(node, "status.nodeInfo.architecture") {
        "" => version.into(),
        arch => format!("{version} ({arch})"),
    }
}
