//! Other resources for the containers of a pod that lives.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str, same},
};
use serde_json::{Map, Value};

use super::pod_spec::qos;
use crate::{
    StatusKeeps,
    prepare::{copy_field, keep_metadata},
};

const MUTABLE: [&str; 2] = ["cpu", "memory"];

/// Leaves of a wish only what it may say: resources and resize policies of the same containers in the same order. A wish
/// for other containers is left as it is, for the rules to refuse.
pub fn prepare(pod: &mut Value, old: &Value) {
    let lists = ["containers", "initContainers"];
    let count = |pod: &Value, list: &str| get_list(&pod["spec"], list).len();
    if lists.iter().any(|list| count(pod, list) != count(old, list)) {
        return;
    }
    let mut spec = old["spec"].clone();
    for list in lists {
        let wanted = get_list(&pod["spec"], list);
        let kept = get_list(&old["spec"], list);
        let renamed = wanted.iter().zip(kept).any(|(wanted, kept)| wanted["name"] != kept["name"]);
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for (container, wanted) in containers.iter_mut().zip(wanted) {
            if renamed {
                *container = wanted.clone();
            } else {
                copy_field(container, wanted, "resources");
                copy_field(container, wanted, "resizePolicy");
            }
        }
    }
    copy_field(&mut spec, &pod["spec"], "resources");
    pod["spec"] = spec;
    keep_metadata(pod, old, StatusKeeps::Metadata.fields());
}

/// Checks a resize.
pub fn validate(pod: &Value, old: &Value, problems: &mut Problems) {
    let found = problems.len();
    let spec = Path::new("spec");
    let class =
        get(old, "status.qosClass").and_then(Value::as_str).unwrap_or_else(|| qos::class(&old["spec"]));
    if qos::class(&pod["spec"]) != class {
        let shown = get_str(pod, "status.qosClass");
        problems.invalid(&spec, shown, "Pod QOS Class may not change as a result of resizing");
    }
    let running = get_list(old, "status.containerStatuses")
        .iter()
        .find(|status| get(status, "state.running").is_some());
    if running.is_some_and(|status| status.get("resources").is_none()) {
        problems.forbidden(&spec, "Pod running on node without support for resize");
    }
    let mut trial = pod["spec"].clone();
    let level = |pod: &Value| {
        !amounts(&pod["spec"], "requests").is_empty() || !amounts(&pod["spec"], "limits").is_empty()
    };
    if level(old) || level(pod) {
        whole_pod(&mut trial, &old["spec"], problems);
    }
    if !same_containers(pod, old, problems) {
        return;
    }
    for list in ["initContainers", "containers"] {
        let list_path = spec.child(list);
        for (index, (after, before)) in
            get_list(&pod["spec"], list).iter().zip(get_list(&old["spec"], list)).enumerate()
        {
            let at = list_path.index(index);
            let at = at.child("resources");
            for kind in ["requests", "limits"] {
                if removes(after, before, kind) {
                    problems.forbidden(&at.child(kind), format!("resource {kind} cannot be removed"));
                }
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let list_path = spec.child(list);
        let Some(Value::Array(containers)) = trial.get_mut(list) else { continue };
        for (index, (after, before)) in containers.iter_mut().zip(get_list(&old["spec"], list)).enumerate() {
            let modified = !same_container(after, before);
            mask(after, before);
            if same_container(after, before) {
                *after = before.clone();
            } else if list == "containers" {
                problems.forbidden(&spec, "only cpu and memory resources are mutable");
            } else {
                problems.forbidden(
                    &list_path.index(index),
                    "only cpu and memory resources for init or sidecar containers are mutable",
                );
            }
            let restarts = get_list(after, "resizePolicy")
                .iter()
                .any(|policy| policy["restartPolicy"] == "RestartContainer");
            if list == "initContainers" && modified && after["restartPolicy"] != "Always" && restarts {
                problems.forbidden(
                    &list_path.index(index),
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
                );
            }
        }
    }
    if problems.len() == found && !same(&trial, &old["spec"]) {
        problems.forbidden(&spec, "only cpu and memory resources are mutable");
    }
}

/// Resources of the pod as a whole.
fn whole_pod(trial: &mut Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    let path = spec.child("resources");
    if old.get("resources").is_some() && trial.get("resources").is_none() {
        problems.forbidden(&path, "pod-level resources cannot be removed");
        return;
    }
    for kind in ["requests", "limits"] {
        if removes(trial, old, kind) {
            problems.forbidden(&path.child(kind), format!("pod-level resource {kind} cannot be removed"));
        }
    }
    let claims = trial["resources"].get("claims").cloned();
    mask(trial, old);
    if let Some(claims) = claims {
        trial["resources"]["claims"] = claims;
    }
    if same_resources(trial, old) {
        copy_field(trial, old, "resources");
    } else {
        problems.forbidden(&spec, "only cpu and memory resources are mutable at pod-level");
    }
}

fn same_containers(pod: &Value, old: &Value, problems: &mut Problems) -> bool {
    let spec = Path::new("spec");
    let found = problems.len();
    for list in ["containers", "initContainers"] {
        let path = spec.child(list);
        let (after, before) = (get_list(&pod["spec"], list), get_list(&old["spec"], list));
        if after.len() != before.len() {
            problems.forbidden(&path, format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (index, (after, before)) in after.iter().zip(before).enumerate() {
            if after["name"] != before["name"] {
                problems.forbidden(
                    &path.index(index).child("name"),
                    format!("{list} may not be renamed or reordered on resize"),
                );
            }
        }
    }
    problems.len() == found
}

fn amounts(owner: &Value, kind: &str) -> Map<String, Value> {
    owner
        .get("resources")
        .and_then(|resources| resources.get(kind))
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default()
}

fn removes(after: &Value, before: &Value, kind: &str) -> bool {
    let after = amounts(after, kind);
    amounts(before, kind).keys().any(|name| !after.contains_key(name))
}

/// Puts the old amounts of what may change in the place of the new ones.
fn mask(after: &mut Value, before: &Value) {
    let mut resources = Map::new();
    for kind in ["limits", "requests"] {
        let old = amounts(before, kind);
        let mut masked = amounts(after, kind);
        for name in MUTABLE {
            match old.get(name) {
                Some(amount) => {
                    masked.insert(name.into(), amount.clone());
                }
                None => {
                    masked.shift_remove(name);
                }
            }
        }
        if !masked.is_empty() {
            resources.insert(kind.into(), Value::Object(masked));
        }
    }
    if let Some(map) = after.as_object_mut() {
        map.insert("resources".into(), Value::Object(resources));
    }
}

fn same_resources(after: &Value, before: &Value) -> bool {
    let claims = |owner: &Value| get_list(owner, "resources.claims").to_vec();
    amounts(after, "limits") == amounts(before, "limits")
        && amounts(after, "requests") == amounts(before, "requests")
        && claims(after) == claims(before)
}

fn same_container(after: &Value, before: &Value) -> bool {
    let bare = |container: &Value| {
        let mut container = container.clone();
        copy_field(&mut container, &Value::Null, "resources");
        container
    };
    same_resources(after, before) && same(&bare(after), &bare(before))
}
