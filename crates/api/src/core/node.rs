//! Nodes.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
};
use serde_json::Value;

use crate::{Change, Column, Definition, Effect, MetaCheck, Rules, Subresource, print};

/// A machine that runs pods.
pub fn definition() -> Definition {
    let mut definition = Definition::cluster("", "v1", "Node", "nodes")
        .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
        .short(&["no"])
        .stored_at("/registry/minions")
        .with(Subresource::Proxy)
        .status()
        .label_or("spec.unschedulable", "false")
        .effects(&[Effect::Connect])
        .gated(&["spec.configSource", "status.config"])
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
            Some(first) if one.is_empty() => node["spec"]["podCIDR"] = first,
            first if !one.is_empty() && first != Some(one.as_str().into()) => {
                node["spec"]["podCIDRs"] = Value::Array(vec![one.into()]);
            }
            _ => {}
        }
        let Some(status) = node.get_mut("status").and_then(Value::as_object_mut) else { return };
        if !status.contains_key("allocatable")
            && let Some(capacity) = status.get("capacity").cloned()
        {
            status.insert("allocatable".into(), capacity);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        match get_str(change.new, "spec.externalID") {
            "" => Vec::new(),
            _ => vec!["spec.externalID: this field is deprecated, and is unused by Kubernetes".into()],
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let node = change.new;
        let spec = Path::new("spec");
        // Upstream looks for taints in the metadata.
        taints(get_list(node, "spec.taints"), &Path::new("metadata").child("taints"), problems);
        if let Some(capacity) = node["status"]["nodeInfo"]["swap"]["capacity"].as_i64()
            && capacity <= 0
        {
            // This is where upstream says that it is.
            let at = Path::new("metadata");
            let at = at.child("nodeSwapStatus");
            problems.invalid(&at.child("capacity"), capacity, "must be greater than zero");
        }
        let cidrs = get_list(node, "spec.podCIDRs");
        for (index, cidr) in cidrs.iter().enumerate() {
            let text = cidr.as_str().unwrap_or_default();
            problems.invalid_each(&spec.child("podCIDRs").index(index), text, names::is_cidr(text));
        }
        let families: Vec<bool> =
            cidrs.iter().map(|cidr| cidr.as_str().unwrap_or_default().contains(':')).collect();
        if cidrs.len() > 2 || (cidrs.len() == 2 && families[0] == families[1]) {
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
                super::resource_names::amount(name, value, &path.child(name), problems);
            }
        }
        features(get_list(node, "status.declaredFeatures"), problems);
        if let Some(old) = change.old {
            let addresses = get_list(node, "status.addresses");
            let list = Path::new("status.addresses");
            for (index, address) in addresses.iter().enumerate() {
                if addresses[..index].contains(address) {
                    let shown = serde_json::json!({"Type": address["type"], "Address": address["address"]});
                    problems.duplicate(&list.index(index), shown);
                }
            }
            let before = get(old, "spec.podCIDRs");
            if before.is_some() && before != get(node, "spec.podCIDRs") {
                problems.forbidden(
                    &spec.child("podCIDRs"),
                    "node updates may not change podCIDR except from \"\" to valid",
                );
            }
            let (before, after) = (get_str(old, "spec.providerID"), get_str(node, "spec.providerID"));
            if !before.is_empty() && before != after {
                problems.forbidden(
                    &spec.child("providerID"),
                    "node updates may not change providerID except from \"\" to valid",
                );
            }
            // Judged as those of a node, and again as those of a changed one.
            taints(get_list(node, "spec.taints"), &Path::new("metadata").child("taints"), problems);
            if change.differs("spec.externalID") {
                problems.forbidden(&spec.child("externalID"), "may not be updated");
            }
        }
    }
}

/// What a kubelet says it can do: `Feature` or `Feature/part`, sorted.
fn features(features: &[Value], problems: &mut Problems) {
    let path = Path::new("status");
    let path = path.child("declaredFeatures");
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.split('/').all(|part| {
                part.starts_with(|first: char| first.is_ascii_alphabetic())
                    && part.chars().all(|c| c.is_ascii_alphanumeric())
            })
    };
    for (index, feature) in features.iter().enumerate() {
        let name = feature.as_str().unwrap_or_default();
        if !is_name(name) {
            let why = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments \
                 separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            problems.invalid(&path.index(index), name, why);
        }
        match features.get(index + 1).and_then(Value::as_str) {
            Some(next) if next == name => problems.duplicate(&path.index(index + 1), next),
            Some(next) if next < name => {
                problems.invalid(&path.index(index + 1), next, "list must be sorted alphabetically");
            }
            _ => {}
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
            other => problems.not_one_of(
                &path.child("effect"),
                other,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
            ),
        }
        if seen.contains(&(key, effect)) {
            problems.push(apimachinery::field::Problem {
                kind: apimachinery::field::ProblemKind::Duplicate,
                path: path.to_string(),
                value: Some(serde_json::json!({
                    "Key": key, "Value": value, "Effect": effect, "TimeAdded": taint.get("timeAdded"),
                })),
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
