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

/// Checks `spec.selector` and `spec.template` together.
pub fn selector_and_template(object: &Value, kind: &str, word: &str, problems: &mut Problems) {
    let path = Path::new("spec");
    let spec = &object["spec"];
    let at = path.child("selector");
    let wanted = spec.get("selector").filter(|wanted| !wanted.is_null());
    match wanted {
        None => problems.required(&at, ""),
        Some(wanted) => {
            selector::validate_object(wanted, &at, problems);
            if is_empty(wanted) {
                problems.invalid(&at, wanted.clone(), format!("empty selector is invalid for {word}"));
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
    if let (Some(Err(_)), Some(wanted)) = (&selector, wanted) {
        problems.invalid(&at, wanted.clone(), "invalid label selector");
    }
    let mismatch = match &selector {
        None => true,
        Some(Ok(selector)) => !wanted.is_some_and(is_empty) && !selector.matches(labels),
        Some(Err(_)) => false,
    };
    if mismatch {
        let shown = labels.cloned().map(Value::Object).unwrap_or_default();
        let meta = path.child("metadata");
        problems.invalid(&meta.child("labels"), shown, "`selector` does not match template `labels`");
    }
    pod_spec::validate_template(template, &path, problems);
    if kind != "Job" {
        let spec = path.child("spec");
        let policy = apimachinery::meta::get_str(template, "spec.restartPolicy");
        if !policy.is_empty() && policy != "Always" {
            problems.not_supported(&spec.child("restartPolicy"), policy, &["Always"]);
        }
        if template["spec"].get("activeDeadlineSeconds").is_some() {
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

/// Checks the usual counts of a status.
pub fn status_counts(object: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    let status = &object["status"];
    for (field, value) in status.as_object().into_iter().flatten() {
        if value.is_number() {
            checks::non_negative(status, field, &path, problems);
        }
    }
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    for field in
        ["readyReplicas", "availableReplicas", "updatedReplicas", "fullyLabeledReplicas", "currentReplicas"]
    {
        if number(field) > number("replicas") && status.get("replicas").is_some() {
            problems.invalid(&path.child(field), number(field), "cannot be greater than status.replicas");
        }
    }
    if number("availableReplicas") > number("readyReplicas") {
        problems.invalid(
            &path.child("availableReplicas"),
            number("availableReplicas"),
            "cannot be greater than readyReplicas",
        );
    }
}

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

/// Warnings of the template.
pub fn warnings(change: &crate::Change<'_>) -> Vec<String> {
    pod_spec::warnings::of_change(change, "/spec/template/spec", "spec.template.spec")
}
