//! Horizontal autoscaling, in its two versions: v2 is stored, v1 is a view of it.

use apimachinery::{
    field::{Path, Problems},
    meta::{MetaMut, get, get_list, get_str, set},
    names,
    quantity::Quantity,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Rules, checks,
    core::resource_names,
    defaults::{Constant, apply},
    definition::Conversion,
};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    let base = |version: &'static str| {
        Definition::namespaced("autoscaling", version, "HorizontalPodAutoscaler", "horizontalpodautoscalers")
            .short(&["hpa"])
            .categories(&["all"])
            .status()
            .columns(columns())
    };
    vec![
        base("v2").rules(Autoscaler),
        base("v1")
            .stored_as("autoscaling", "v2", Conversion { to_storage, from_storage })
            .rules(OldAutoscaler),
    ]
}

fn columns() -> Vec<Column> {
    vec![
        Column::new("Reference", |object, _| {
            format!(
                "{}/{}",
                get_str(object, "spec.scaleTargetRef.kind"),
                get_str(object, "spec.scaleTargetRef.name")
            )
            .into()
        }),
        Column::new("Targets", |object, _| targets(object).into()),
        Column::new("MinPods", |object, _| match get(object, "spec.minReplicas") {
            Some(number) => number.to_string().into(),
            None => "<unset>".into(),
        }),
        Column::count("MaxPods", "spec.maxReplicas"),
        Column::count("Replicas", "status.currentReplicas"),
        Column::age(),
    ]
}

fn targets(object: &Value) -> String {
    if let Some(percent) = get(object, "spec.targetCPUUtilizationPercentage") {
        let current = get(object, "status.currentCPUUtilizationPercentage");
        let current = current.map_or("<unknown>".into(), |value| format!("{value}%"));
        return format!("cpu: {current}/{percent}%");
    }
    let metrics = get_list(object, "spec.metrics");
    if metrics.is_empty() {
        return "<none>".into();
    }
    let current = get_list(object, "status.currentMetrics");
    let texts: Vec<String> = metrics
        .iter()
        .take(2)
        .enumerate()
        .map(|(index, metric)| metric_text(metric, current.get(index)))
        .collect();
    match metrics.len().saturating_sub(2) {
        0 => texts.join(", "),
        more => format!("{} + {more} more...", texts.join(", ")),
    }
}

fn metric_text(metric: &Value, current: Option<&Value>) -> String {
    let (field, label) = match get_str(metric, "type") {
        "Resource" => ("resource", format!("{}: ", get_str(metric, "resource.name"))),
        "ContainerResource" => {
            ("containerResource", format!("{}: ", get_str(metric, "containerResource.name")))
        }
        "Pods" => ("pods", String::new()),
        "Object" => ("object", String::new()),
        _ => ("external", String::new()),
    };
    let now = |name: &str| current.and_then(|current| get(current, &format!("{field}.current.{name}")));
    let text = |value: Option<&Value>, suffix: &str| match value {
        Some(Value::String(text)) => format!("{text}{suffix}"),
        Some(value) => format!("{value}{suffix}"),
        None => "<unknown>".into(),
    };
    let target = &metric[field]["target"];
    if let Some(percent) = target.get("averageUtilization") {
        return format!("{label}{}/{percent}%", text(now("averageUtilization"), "%"));
    }
    if let Some(value) = target.get("averageValue") {
        let suffix = if field == "resource" || field == "pods" { "" } else { " (avg)" };
        return format!(
            "{label}{}/{}{suffix}",
            text(now("averageValue"), ""),
            value.as_str().unwrap_or_default()
        );
    }
    format!("{label}{}/{}", text(now("value"), ""), get_str(target, "value"))
}

struct Autoscaler;

impl Rules for Autoscaler {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, &[("spec.minReplicas", Constant::Number(1))]);
        if object["spec"].is_object() && get_list(object, "spec.metrics").is_empty() {
            object["spec"]["metrics"] = json!([default_metric()]);
        }
        if object["spec"].get("behavior").is_some() {
            behavior(&mut object["spec"]["behavior"]);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            status_counts(change, problems);
            return;
        }
        validate(&change.new["spec"], change.old.map(|old| &old["spec"]), problems);
    }
}

fn status_counts(change: &Change<'_>, problems: &mut Problems) {
    let path = Path::new("status");
    for field in ["currentReplicas", "desiredReplicas"] {
        checks::non_negative(&change.new["status"], field, &path, problems);
    }
}

fn default_metric() -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}})
}

fn behavior(behavior: &mut Value) {
    let defaults = [
        (
            "scaleUp",
            json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
            {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]}),
        ),
        (
            "scaleDown",
            json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]}),
        ),
    ];
    let Some(map) = behavior.as_object_mut() else { return };
    for (name, default) in defaults {
        let rules = map.entry(name).or_insert_with(|| json!({}));
        for (field, value) in default.as_object().into_iter().flatten() {
            if let Some(rules) = rules.as_object_mut() {
                rules.entry(field.clone()).or_insert_with(|| value.clone());
            }
        }
    }
}

/// What can be scaled has a group, but for ReplicationControllers. What an update does not touch is let be.
fn api_version(target: &Value, old: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    let version = get_str(target, "apiVersion");
    let same = |old: &Value| {
        ["apiVersion", "kind"].iter().all(|field| get_str(old, field) == get_str(target, field))
    };
    if old.is_some_and(same) {
        return;
    }
    let at = path.child("apiVersion");
    if version.matches('/').count() > 1 {
        problems.invalid(&at, version, format!("unexpected GroupVersion string: {version}"));
    } else if !version.contains('/') && get_str(target, "kind") != "ReplicationController" {
        problems.invalid(&at, version, "apiVersion must specify API group");
    }
}

fn validate(spec: &Value, old: Option<&Value>, problems: &mut Problems) {
    let path = Path::new("spec");
    let min = spec["minReplicas"].as_i64();
    if min.is_some_and(|min| min < 1) {
        problems.invalid(&path.child("minReplicas"), min.unwrap_or(0), "must be greater than or equal to 1");
    }
    match spec["maxReplicas"].as_i64().unwrap_or(0) {
        0 => problems.required(&path.child("maxReplicas"), "must be set and greater than 0"),
        max if max < 1 => {
            problems.invalid(&path.child("maxReplicas"), max, "must be greater than or equal to 1")
        }
        _ => {}
    }
    let max = spec["maxReplicas"].as_i64().unwrap_or(0);
    if min.is_some_and(|min| max < min) {
        let why = "must be greater than or equal to `minReplicas`";
        problems.invalid(&path.child("maxReplicas"), max, why);
    }
    let at = path.child("scaleTargetRef");
    for field in ["kind", "name"] {
        checks::required_syntax(&spec["scaleTargetRef"], field, names::is_path_segment_name, &at, problems);
    }
    api_version(&spec["scaleTargetRef"], old.map(|old| &old["scaleTargetRef"]), &at, problems);
    let list = path.child("metrics");
    for (index, metric) in get_list(spec, "metrics").iter().enumerate() {
        metric_rules(metric, &list.index(index), problems);
    }
    let to_zero = |metric: &Value| ["Object", "External"].iter().any(|kind| metric["type"] == *kind);
    if min == Some(0) && !get_list(spec, "metrics").iter().any(to_zero) {
        problems.forbidden(
            &list,
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    for name in ["scaleUp", "scaleDown"] {
        let Some(rules) = spec.get("behavior").and_then(|behavior| behavior.get(name)) else { continue };
        let at = path.child("behavior");
        scaling_rules(rules, &at.child(name), problems);
    }
}

fn scaling_rules(rules: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Some(seconds) = rules["stabilizationWindowSeconds"].as_i64() {
        if seconds < 0 {
            problems.invalid(
                &path.child("stabilizationWindowSeconds"),
                seconds,
                "must be greater than or equal to zero",
            );
        } else if seconds > 3600 {
            problems.invalid(
                &path.child("stabilizationWindowSeconds"),
                seconds,
                "must be less than or equal to 3600",
            );
        }
    }
    checks::one_of(rules, "selectPolicy", false, &["Disabled", "Max", "Min"], path, problems);
    let list = path.child("policies");
    let policies = get_list(rules, "policies");
    if policies.is_empty() {
        problems.required(&list, "must specify at least one Policy");
    }
    for (index, policy) in policies.iter().enumerate() {
        let at = list.index(index);
        let kind = get_str(policy, "type");
        if !["Pods", "Percent"].contains(&kind) {
            problems.not_supported(&at.child("type"), kind, &["Percent", "Pods"]);
        }
        for field in ["value", "periodSeconds"] {
            let number = policy[field].as_i64().unwrap_or(0);
            if number <= 0 {
                problems.invalid(&at.child(field), number, "must be greater than zero");
            }
        }
        if policy["periodSeconds"].as_i64().is_some_and(|seconds| seconds > 1800) {
            problems.invalid(
                &at.child("periodSeconds"),
                policy["periodSeconds"].clone(),
                "must be less than or equal to 1800",
            );
        }
    }
    let tolerance = get_str(rules, "tolerance");
    if tolerance.parse::<Quantity>().is_ok_and(|tolerance| tolerance.sign() < 0) {
        problems.invalid(&path.child("tolerance"), tolerance, checks::NEGATIVE);
    }
}

fn metric_rules(metric: &Value, path: &Path<'_>, problems: &mut Problems) {
    const KINDS: [&str; 5] = ["ContainerResource", "External", "Object", "Pods", "Resource"];
    let fields = [
        ("Object", "object"),
        ("External", "external"),
        ("Pods", "pods"),
        ("Resource", "resource"),
        ("ContainerResource", "containerResource"),
    ];
    let kind = get_str(metric, "type");
    if kind.is_empty() {
        problems.required(&path.child("type"), "must specify a metric source type");
    }
    if !KINDS.contains(&kind) {
        problems.not_supported(&path.child("type"), kind, &KINDS);
    }
    // Of several sources only the first is looked at closely.
    let given: Vec<&str> =
        fields.iter().map(|(_, field)| *field).filter(|field| metric.get(field).is_some()).collect();
    if let Some(field) = given.first() {
        source(field, &metric[*field], &path.child(field), problems);
    }
    let expected = fields.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    match expected {
        Some(field) if metric.get(field).is_none() => {
            problems.required(&path.child(field), "must populate information for the given metric source");
        }
        Some(_) => {}
        None => problems.not_supported(&path.child("type"), kind, &KINDS),
    }
    if given.len() != 1 {
        for field in given.into_iter().filter(|field| Some(*field) != expected) {
            problems.forbidden(&path.child(field), "must populate the given metric source only");
        }
    }
}

fn source(field: &str, source: &Value, at: &Path<'_>, problems: &mut Problems) {
    if field == "object" {
        let at = at.child("describedObject");
        let object = &source["describedObject"];
        for part in ["kind", "name"] {
            checks::required_syntax(object, part, names::is_path_segment_name, &at, problems);
        }
        if get_str(object, "apiVersion").matches('/').count() > 1 {
            let version = get_str(object, "apiVersion");
            let why = format!("unexpected GroupVersion string: {version}");
            problems.invalid(&at.child("apiVersion"), version, why);
        }
    }
    if matches!(field, "pods" | "object" | "external") {
        let path = at.child("metric");
        if get_str(source, "metric.name").is_empty() {
            problems.required(&path.child("name"), "must specify a metric name");
        } else {
            checks::syntax(&source["metric"], "name", names::is_path_segment_name, &path, problems);
        }
    } else if get_str(source, "name").is_empty() {
        problems.required(&at.child("name"), "must specify a resource name");
    } else if field == "containerResource" {
        resource_names::validate_container(get_str(source, "name"), &at.child("name"), problems);
    }
    if field == "containerResource" {
        if get_str(source, "container").is_empty() {
            problems.required(&at.child("container"), "must specify a container");
        } else {
            checks::syntax(source, "container", names::is_dns1123_label, at, problems);
        }
    }
    let path = at.child("target");
    let target = &source["target"];
    metric_target(target, &path, problems);
    let has = |field: &str| target.get(field).is_some();
    match field {
        "resource" | "containerResource" => {
            if !has("averageUtilization") && !has("averageValue") {
                problems.required(
                    &path.child("averageUtilization"),
                    "must set either a target raw value or a target utilization",
                );
            } else if has("averageUtilization") && has("averageValue") {
                problems.forbidden(
                    &path.child("averageValue"),
                    "may not set both a target raw value and a target utilization",
                );
            }
        }
        "pods" if !has("averageValue") => {
            problems.required(&path.child("averageValue"), "must specify a positive target averageValue");
        }
        "object" if !has("value") && !has("averageValue") => {
            problems.required(&path.child("averageValue"), "must set either a target value or averageValue");
        }
        "external" if !has("value") && !has("averageValue") => problems.required(
            &path.child("averageValue"),
            "must set either a target value for metric or a per-pod target",
        ),
        "external" if has("value") && has("averageValue") => problems.forbidden(
            &path.child("value"),
            "may not set both a target value for metric and a per-pod target",
        ),
        _ => {}
    }
}

fn metric_target(target: &Value, path: &Path<'_>, problems: &mut Problems) {
    let kind = get_str(target, "type");
    if kind.is_empty() {
        problems.required(&path.child("type"), "must specify a metric target type");
    }
    if !["Utilization", "Value", "AverageValue"].contains(&kind) {
        let why = "must be either Utilization, Value, or AverageValue";
        problems.invalid(&path.child("type"), kind, why);
    }
    for field in ["value", "averageValue"] {
        let amount = target.get(field).and_then(Value::as_str).and_then(|text| text.parse::<Quantity>().ok());
        if amount.is_some_and(|amount| amount.sign() != 1) {
            problems.invalid(&path.child(field), target[field].clone(), "must be positive");
        }
    }
    if target["averageUtilization"].as_i64().is_some_and(|percent| percent < 1) {
        problems.invalid(
            &path.child("averageUtilization"),
            target["averageUtilization"].clone(),
            "must be greater than 0",
        );
    }
}

struct OldAutoscaler;

impl Rules for OldAutoscaler {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, &[("spec.minReplicas", Constant::Number(1))]);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            status_counts(change, problems);
            return;
        }
        let mut newer = change.new.clone();
        to_storage(&mut newer);
        validate(&newer["spec"], change.old.map(|old| &old["spec"]), problems);
    }
}

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

fn take_annotation(object: &mut Value, key: &str) -> Option<Value> {
    let annotations = object.metadata_mut().get_mut("annotations")?.as_object_mut()?;
    let text = annotations.shift_remove(key)?;
    serde_json::from_str(text.as_str()?).ok()
}

fn to_storage(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v2".into();
    let mut metrics: Vec<Value> = match take_annotation(object, METRICS) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    if let Some(behavior) = take_annotation(object, BEHAVIOR) {
        set(object, "spec.behavior", behavior);
    }
    let percent = apimachinery::meta::remove(object, "spec.targetCPUUtilizationPercentage");
    if let Some(percent) = percent {
        let mut metric = default_metric();
        metric["resource"]["target"]["averageUtilization"] = percent;
        metrics.insert(0, metric);
    }
    if metrics.is_empty() && object["spec"].is_object() {
        metrics.push(default_metric());
    }
    if object["spec"].is_object() {
        object["spec"]["metrics"] = metrics.into();
    }
    if let Some(current) = apimachinery::meta::remove(object, "status.currentCPUUtilizationPercentage") {
        let metric = json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": current}}});
        set(object, "status.currentMetrics", json!([metric]));
    }
}

fn from_storage(object: &mut Value) {
    object["apiVersion"] = "autoscaling/v1".into();
    let metrics = apimachinery::meta::remove(object, "spec.metrics");
    let mut rest = Vec::new();
    for metric in metrics.as_ref().and_then(Value::as_array).into_iter().flatten() {
        let percent = get(metric, "resource.target.averageUtilization");
        if get_str(metric, "resource.name") == "cpu" && percent.is_some() {
            set(object, "spec.targetCPUUtilizationPercentage", percent.cloned().unwrap_or_default());
        } else {
            rest.push(metric.clone());
        }
    }
    if !rest.is_empty() {
        object.set_annotation(METRICS, &Value::Array(rest).to_string());
    }
    if let Some(behavior) = apimachinery::meta::remove(object, "spec.behavior") {
        object.set_annotation(BEHAVIOR, &behavior.to_string());
    }
    let current = apimachinery::meta::remove(object, "status.currentMetrics");
    for metric in current.as_ref().and_then(Value::as_array).into_iter().flatten() {
        if get_str(metric, "resource.name") == "cpu"
            && let Some(percent) = get(metric, "resource.current.averageUtilization")
        {
            set(object, "status.currentCPUUtilizationPercentage", percent.clone());
        }
    }
    apimachinery::meta::remove(object, "status.conditions");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v1_is_a_view_of_v2() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "metadata": {"name": "a"},
            "spec": {"maxReplicas": 5, "targetCPUUtilizationPercentage": 60}});
        let mut object = v1.clone();
        to_storage(&mut object);
        assert_eq!(object["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
        assert_eq!(object["spec"].get("targetCPUUtilizationPercentage"), None);
        from_storage(&mut object);
        assert_eq!(object, v1);
    }
}
