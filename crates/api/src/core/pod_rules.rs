//! Rules of Pods, and of what may change in them.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str, same, set},
    names,
};
use serde_json::Value;

use super::pod_spec::{self, Home};
use crate::{Change, go_form};

/// Marks what a kubelet shows of its static pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Checks a pod write.
pub fn validate(change: &Change<'_>, problems: &mut Problems) {
    let pod = change.new;
    let spec = Path::new("spec");
    if let Some(why) = change.old.and_then(|old| refusal(old, change.subresource)) {
        // Nothing else is told, and the place is what upstream makes of no name.
        *problems = Problems::new();
        problems.forbidden(&Path::new("[]"), why);
        return;
    }
    match (change.old, change.subresource) {
        (None, _) => {
            pod_spec::validate_spec(&pod["spec"], None, Home::Pod, &spec, problems);
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
        (Some(old), "status") => {
            annotations(pod, old, problems);
            super::pod_status::validate(pod, old, problems);
        }
        (Some(old), "ephemeralcontainers") => {
            pod_spec::validate_spec(&pod["spec"], Some(&old["spec"]), Home::Pod, &spec, problems);
            ephemeral_update(pod, old, problems);
        }
        (Some(old), "resize") => {
            pod_spec::validate_spec(&pod["spec"], Some(&old["spec"]), Home::Pod, &spec, problems);
            super::pod_resize::validate(pod, old, problems);
        }
        // What did not change was judged when it was written.
        (Some(old), _) if same(&pod["spec"], &old["spec"]) => annotations(pod, old, problems),
        (Some(old), _) => {
            pod_spec::validate_spec(&pod["spec"], Some(&old["spec"]), Home::Pod, &spec, problems);
            annotations(pod, old, problems);
            update(pod, old, problems);
        }
    }
}

/// Why some pods cannot be written in part at all.
fn refusal(old: &Value, subresource: &str) -> Option<&'static str> {
    let mirrored = old.annotation(MIRROR).is_some();
    match subresource {
        "resize" if mirrored => Some("static pods cannot be resized"),
        "resize" if get_str(old, "spec.os.name") == "windows" => Some("windows pods cannot be resized"),
        "ephemeralcontainers" if mirrored => Some("static pods do not support ephemeral containers"),
        _ => None,
    }
}

/// Static pods (mirrored here by their kubelet) may not refer to API objects.
fn mirror(pod: &Value, problems: &mut Problems) {
    if pod.annotation(MIRROR).is_none() {
        return;
    }
    if get_str(pod, "spec.nodeName").is_empty() {
        let path = Path::new("metadata");
        let path = path.child("annotations");
        problems.invalid(&path.key(MIRROR), "", "must set spec.nodeName if mirror pod annotation is set");
    }
}

fn update(pod: &Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    for list in ["containers", "initContainers"] {
        let at = spec.child(list);
        let containers = get_list(&pod["spec"], list);
        if containers.len() != get_list(&old["spec"], list).len() {
            problems.forbidden(&at, "pod updates may not add or remove containers");
            return;
        }
        for (index, container) in containers.iter().enumerate() {
            let (at, image) = (at.index(index), get_str(container, "image"));
            if image.is_empty() {
                problems.required(&at.child("image"), "");
            } else if image.trim() != image {
                problems.invalid(&at.child("image"), image, "must not have leading or trailing whitespace");
            }
        }
    }
    let seconds = |pod: &Value| pod["spec"]["activeDeadlineSeconds"].as_i64();
    let path = spec.child("activeDeadlineSeconds");
    match (seconds(pod), seconds(old)) {
        (Some(after), _) if !(0..=i64::from(i32::MAX)).contains(&after) => {
            problems.invalid(&path, after, names::inclusive_range(0, i64::from(i32::MAX)));
            return;
        }
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
        let name = get_str(gate, "name");
        if !gates.iter().any(|gate| get_str(gate, "name") == name) {
            problems.forbidden(
                &list.index(index).child("name"),
                format!("only deletion is allowed, but found new scheduling gate '{name}'"),
            );
        }
    }
    let gated = !gates.is_empty();
    if gated {
        placement(pod, old, problems);
    }
    let masked = masked(pod, old, gated);
    if !same(&masked, &old["spec"]) {
        let shown = |spec: &Value| go_form::shown(spec, "PodSpec");
        let difference = crate::difference::lines(&shown(&old["spec"]), &shown(&masked));
        problems.forbidden(
            &spec,
            format!(
                "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
                 `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
                 `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n{difference}"
            ),
        );
    }
}

/// Where a pod that still waits behind a gate may run: that becomes narrower, never wider.
fn placement(pod: &Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    let selector =
        |pod: &Value| get(pod, "spec.nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
    let (after, before) = (selector(pod), selector(old));
    if before.iter().any(|(key, value)| after.get(key) != Some(value)) {
        problems.invalid(
            &spec.child("nodeSelector"),
            if after.is_empty() { Value::Null } else { crate::checks::sorted(&after) },
            "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        );
    }
    const TERMS: &str =
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let (after, before) = (get_list(&pod["spec"], TERMS), get_list(&old["spec"], TERMS));
    let path = spec.child(TERMS);
    if !before.is_empty() && before.len() != after.len() {
        let shown = if after.is_empty() { Value::Null } else { Value::from(after) };
        let shown = go_form::shown_or_null(Some(&shown), "NodeSelectorTerm");
        problems.invalid(
            &path,
            shown,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        );
        return;
    }
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        let lists =
            ["matchExpressions", "matchFields"].map(|name| (get_list(before, name), get_list(after, name)));
        let was_empty = lists.iter().all(|(before, _)| before.is_empty());
        let grew_from_nothing = was_empty && lists.iter().any(|(_, after)| !after.is_empty());
        if grew_from_nothing || lists.iter().any(|(before, after)| !after.starts_with(before)) {
            problems.invalid(
                &path.index(index),
                go_form::shown(after, "NodeSelectorTerm"),
                "only additions are allowed (no mutations or deletions)",
            );
        }
    }
}

/// The new spec with what may change as it was.
fn masked(pod: &Value, old: &Value, gated: bool) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    let before = &old["spec"];
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, before) in containers.zip(get_list(before, list)) {
            keep(container, before, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        keep(&mut spec, before, field);
    }
    let grace = |spec: &Value| spec["terminationGracePeriodSeconds"].as_i64();
    if grace(before).is_some_and(|seconds| seconds < 0) && grace(&spec) == Some(1) {
        keep(&mut spec, before, "terminationGracePeriodSeconds");
    }
    if gated {
        keep(&mut spec, before, "nodeSelector");
        if let Some(affinity) = get(before, "affinity.nodeAffinity") {
            set(&mut spec, "affinity.nodeAffinity", affinity.clone());
        } else if let Some(affinity) = spec.get_mut("affinity") {
            keep(affinity, &Value::Null, "nodeAffinity");
            if before.get("affinity").is_none() && affinity.as_object().is_some_and(serde_json::Map::is_empty)
            {
                keep(&mut spec, before, "affinity");
            }
        }
    }
    spec
}

/// Takes a field over from the old value, or removes it.
fn keep(new: &mut Value, old: &Value, field: &str) {
    crate::prepare::copy_field(new, old, field);
}

fn tolerations(pod: &Value, old: &Value, problems: &mut Problems) {
    let bare = |toleration: &Value| {
        let mut toleration = toleration.clone();
        keep(&mut toleration, &Value::Null, "tolerationSeconds");
        toleration
    };
    let after: Vec<Value> = get_list(pod, "spec.tolerations").iter().map(bare).collect();
    if get_list(old, "spec.tolerations").iter().any(|toleration| !after.contains(&bare(toleration))) {
        problems.forbidden(
            &Path::new("spec").child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
        return;
    }
    let path = Path::new("spec");
    let kept = pod_spec::Kept::of(Some(&old["spec"]));
    let list = get_list(pod, "spec.tolerations");
    pod_spec::affinity::tolerations(list, kept, &path.child("tolerations"), problems);
}

/// What the annotations of a pod promise is settled when it is made.
fn annotations(pod: &Value, old: &Value, problems: &mut Problems) {
    const ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
    let told = |key: &str| match key {
        MIRROR => Some("mirror pod annotation"),
        _ => key.starts_with(ARMOR).then_some("AppArmor annotations"),
    };
    let path = Path::new("metadata");
    let path = path.child("annotations");
    let none = serde_json::Map::new();
    let (after, before) = (pod.annotations().unwrap_or(&none), old.annotations().unwrap_or(&none));
    for (key, value) in before {
        if let Some(what) = told(key).filter(|_| after.get(key) != Some(value)) {
            problems.forbidden(&path.key(key), format!("may not remove or update {what}"));
        }
    }
    for key in after.keys().filter(|key| !before.contains_key(*key)) {
        if let Some(what) = told(key) {
            problems.forbidden(&path.key(key), format!("may not add {what}"));
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
            Some(container) if !same(container, before) => {
                let shown = |container: &Value| go_form::shown(container, "EphemeralContainer");
                let difference = crate::difference::lines(&shown(before), &shown(container));
                problems.forbidden(
                    &path,
                    format!("existing ephemeral containers {name:?} may not be changed\n{difference}"),
                );
            }
            Some(_) => {}
        }
    }
}
