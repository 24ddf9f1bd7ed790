//! What the workloads of this group share: a selector, a template and counts.

use apimachinery::{
    field::{Path, Problems},
    meta::get,
    selector::{self, LabelSelector},
};
use serde_json::Value;

use crate::{
    Column, checks,
    core::pod_spec::{self, set_template_defaults},
    print,
};

/// Defaults of `spec.template.spec`.
pub fn template_defaults(object: &mut Value) {
    if let Some(spec) = object.get_mut("spec").and_then(|spec| spec.get_mut("template")?.get_mut("spec")) {
        set_template_defaults(spec);
    }
}

/// Checks `spec.selector` and `spec.template` together; `old` is the stored object, if there is one.
pub fn selector_and_template(
    object: &Value,
    old: Option<&Value>,
    kind: &str,
    word: &str,
    problems: &mut Problems,
) {
    let path = Path::new("spec");
    let spec = &object["spec"];
    let at = path.child("selector");
    let wanted = spec.get("selector").filter(|wanted| !wanted.is_null());
    match wanted {
        // A DaemonSet without one is told that nothing matches.
        None if kind == "DaemonSet" => {}
        None => problems.required(&at, ""),
        Some(wanted) => {
            selector::validate_object(wanted, &at, problems);
            if is_empty(wanted) {
                let shown = crate::go_form::shown(wanted, "LabelSelector");
                problems.invalid(&at, shown, format!("empty selector is invalid for {word}"));
            }
        }
    }
    let path = path.child("template");
    let Some(template) = spec.get("template") else {
        problems.required(&path, "");
        return;
    };
    let labels = get(template, "metadata.labels").and_then(Value::as_object);
    // Without a selector nothing matches.
    let selector = wanted.map(LabelSelector::from_object);
    if let (Some(Err(_)), Some(wanted)) = (&selector, wanted)
        && kind != "DaemonSet"
    {
        let why = if kind == "StatefulSet" { "" } else { "invalid label selector" };
        problems.invalid(&at, crate::go_form::shown(wanted, "LabelSelector"), why);
    }
    let mismatch = match &selector {
        None => true,
        Some(Ok(selector)) => !wanted.is_some_and(is_empty) && !selector.matches(labels),
        Some(Err(_)) => false,
    };
    if mismatch {
        let shown = labels.map(checks::sorted).unwrap_or_default();
        let meta = path.child("metadata");
        problems.invalid(&meta.child("labels"), shown, "`selector` does not match template `labels`");
    }
    if let (Some(labels), "StatefulSet") = (labels, kind) {
        // Upstream judges these twice.
        selector::validate_labels(labels, &path.child("labels"), problems);
    }
    let before = old.map(|old| &old["spec"]["template"]);
    pod_spec::validate_template(template, before, &path, problems);
    if kind != "Job" {
        let spec = path.child("spec");
        let policy = apimachinery::meta::get_str(template, "spec.restartPolicy");
        if !policy.is_empty() && policy != "Always" {
            problems.not_supported(&spec.child("restartPolicy"), policy, &["Always"]);
        }
        if template["spec"].get("activeDeadlineSeconds").is_some() {
            // Deployments are judged as the ReplicaSets that they make.
            let kind = if kind == "Deployment" { "ReplicaSet" } else { kind };
            problems.forbidden(
                &spec.child("activeDeadlineSeconds"),
                format!("activeDeadlineSeconds in {kind} is not Supported"),
            );
        }
    }
}

fn is_empty(selector: &Value) -> bool {
    let none = |field: &str| match selector.get(field) {
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        _ => true,
    };
    none("matchLabels") && none("matchExpressions")
}

/// Checks the usual counts of a spec.
pub fn counts(object: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        checks::non_negative(&object["spec"], field, &path, problems);
    }
}

/// The counts of a status: none is below zero, none exceeds the replicas, and collisions only become more.
pub fn status_counts(change: &crate::Change<'_>, fields: &[&str], problems: &mut Problems) {
    let path = Path::new("status");
    let status = &change.new["status"];
    for field in fields {
        checks::non_negative(status, field, &path, problems);
    }
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    for field in fields.iter().filter(|field| BOUNDED.contains(field)) {
        if number(field) > number("replicas") {
            problems.invalid(&path.child(field), number(field), "cannot be greater than status.replicas");
        }
    }
    if fields.contains(&"availableReplicas") && number("availableReplicas") > number("readyReplicas") {
        let than = if fields.contains(&"currentReplicas") { "status.readyReplicas" } else { "readyReplicas" };
        problems.invalid(
            &path.child("availableReplicas"),
            number("availableReplicas"),
            format!("cannot be greater than {than}"),
        );
    }
    let before = change.old.and_then(|old| old["status"]["collisionCount"].as_i64());
    if fields.contains(&"collisionCount") && before.is_some_and(|before| number("collisionCount") < before) {
        problems.invalid(&path.child("collisionCount"), number("collisionCount"), "cannot be decremented");
    }
}

/// What ReplicaSets and ReplicationControllers count.
pub const REPLICA_COUNTS: &[&str] = &[
    "replicas",
    "fullyLabeledReplicas",
    "readyReplicas",
    "availableReplicas",
    "observedGeneration",
    "terminatingReplicas",
];

const BOUNDED: [&str; 5] =
    ["fullyLabeledReplicas", "currentReplicas", "updatedReplicas", "readyReplicas", "availableReplicas"];

/// The wide columns that tell what runs.
pub fn wide_columns(with_selector: bool) -> Vec<Column> {
    let mut out = vec![
        Column::new("Containers", |object, _| print::containers(object, "spec.template.spec.containers"))
            .wide(),
        Column::new("Images", |object, _| print::images(object, "spec.template.spec.containers")).wide(),
    ];
    if with_selector {
        out.push(
            Column::new("Selector", |object, _| print::selector(get(object, "spec.selector")).into()).wide(),
        );
    }
    out
}

/// Warnings of the name, which pods and their hosts bear.
pub fn name_warnings(change: &crate::Change<'_>) -> Vec<String> {
    pod_spec::warnings::of_name(change, pod_spec::warnings::OF_PODS)
}

/// Warnings of the template.
pub fn warnings(change: &crate::Change<'_>) -> Vec<String> {
    pod_spec::warnings::of_change(change, "/spec/template/spec", "spec.template.spec")
}
