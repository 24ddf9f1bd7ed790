//! LimitRanges and ResourceQuotas.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value};

use crate::{Change, Column, Definition, Rules};

/// Bounds and defaults for the resources of pods, containers and claims.
pub fn limit_range() -> Definition {
    Definition::namespaced("", "v1", "LimitRange", "limitranges")
        .create_on_update()
        .short(&["limits"])
        .columns(vec![Column::created_at()])
        .rules(LimitRange)
}

/// How much a namespace may use.
pub fn resource_quota() -> Definition {
    Definition::namespaced("", "v1", "ResourceQuota", "resourcequotas")
        .answers_with_object()
        .short(&["quota"])
        .status()
        .columns(vec![
            Column::new("Request", |quota, _| usage(quota, |name| !name.starts_with("limits.")).into()),
            Column::new("Limit", |quota, _| usage(quota, |name| name.starts_with("limits.")).into()),
            Column::age(),
        ])
        .rules(ResourceQuota)
}

fn usage(quota: &Value, wanted: fn(&str) -> bool) -> String {
    let empty = Map::new();
    let hard = get(quota, "status.hard").and_then(Value::as_object).unwrap_or(&empty);
    let used = get(quota, "status.used").and_then(Value::as_object).unwrap_or(&empty);
    let mut names: Vec<&String> = hard.keys().filter(|name| wanted(name)).collect();
    names.sort();
    let text = |map: &Map<String, Value>, name: &String| match map.get(name).and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => "0".into(),
    };
    let parts: Vec<String> =
        names.iter().map(|name| format!("{name}: {}/{}", text(used, name), text(hard, name))).collect();
    parts.join(", ")
}

fn amount(list: &Value, name: &str) -> Option<Quantity> {
    list.get(name)?.as_str()?.parse().ok()
}

struct LimitRange;

impl Rules for LimitRange {
    fn set_defaults(&self, range: &mut Value) {
        let Some(Value::Array(limits)) = range.get_mut("spec").and_then(|spec| spec.get_mut("limits")) else {
            return;
        };
        for item in limits.iter_mut().filter(|item| item["type"] == "Container") {
            fill(item, "max", "default");
            fill(item, "default", "defaultRequest");
            fill(item, "min", "defaultRequest");
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let spec = Path::new("spec");
        let list = spec.child("limits");
        let mut kinds: Vec<&str> = Vec::new();
        for (index, item) in get_list(change.new, "spec.limits").iter().enumerate() {
            let path = list.index(index);
            let kind = get_str(item, "type");
            problems.invalid_each(&path.child("type"), kind, names::is_qualified_name(kind));
            if kinds.contains(&kind) {
                problems.duplicate(&path.child("type"), kind);
            }
            kinds.push(kind);
            limit_item(item, kind, &path, problems);
        }
    }
}

/// Copies the amounts that the target lacks.
fn fill(item: &mut Value, from: &str, to: &str) {
    let Some(source) = item.get(from).and_then(Value::as_object).cloned() else { return };
    let Some(map) = item.as_object_mut() else { return };
    let target = apimachinery::meta::entry_map(map, to);
    for (name, value) in source {
        target.entry(name).or_insert(value);
    }
}

fn limit_item(item: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let mut names: Vec<&String> = Vec::new();
    for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
        let list = path.child(field);
        for name in item[field].as_object().into_iter().flat_map(Map::keys) {
            resource_name(name, &list.key(name), problems);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    if kind == "Pod" {
        for field in ["default", "defaultRequest"] {
            if item.get(field).is_some() {
                problems.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
            }
        }
    }
    if kind == "PersistentVolumeClaim"
        && amount(&item["min"], "storage").is_none()
        && amount(&item["max"], "storage").is_none()
    {
        problems.required(
            &path.child("limits"),
            "either minimum or maximum storage value is required, but neither was provided",
        );
    }
    for name in names {
        let at = |field: &str| amount(&item[field], name);
        let (min, max, default, request, ratio) =
            (at("min"), at("max"), at("default"), at("defaultRequest"), at("maxLimitRequestRatio"));
        let mut compare = |low: Option<Quantity>, high: Option<Quantity>, field: &str, text: &str| {
            if let (Some(low), Some(high)) = (low, high)
                && low > high
            {
                let list = path.child(field);
                let shown = at_text(item, field, name);
                problems.invalid(
                    &list.key(name),
                    shown,
                    text.replace("LOW", &low.to_string()).replace("HIGH", &high.to_string()),
                );
            }
        };
        compare(min, max, "min", "min value LOW is greater than max value HIGH");
        compare(min, request, "defaultRequest", "min value LOW is greater than default request value HIGH");
        compare(request, max, "defaultRequest", "default request value LOW is greater than max value HIGH");
        compare(
            request,
            default,
            "defaultRequest",
            "default request value LOW is greater than default limit value HIGH",
        );
        compare(min, default, "default", "min value LOW is greater than default value HIGH");
        compare(default, max, "default", "default value LOW is greater than max value HIGH");
        if ratio.is_some_and(|ratio| ratio < Quantity::new(1)) {
            let list = path.child("maxLimitRequestRatio");
            let shown = at_text(item, "maxLimitRequestRatio", name);
            problems.invalid(&list.key(name), shown.as_str(), format!("ratio {shown} is less than 1"));
        }
    }
}

fn at_text(item: &Value, field: &str, name: &str) -> String {
    item[field][name].as_str().unwrap_or_default().to_owned()
}

/// A resource name: qualified, and known when it has no prefix.
pub fn resource_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    let complaints = names::is_qualified_name(name);
    if !complaints.is_empty() {
        problems.invalid_each(path, name, complaints);
        return;
    }
    if !name.contains('/') && !is_standard_resource(name) {
        problems.invalid(path, name, "must be a standard resource type or fully qualified");
    }
}

/// Names that need no prefix.
pub fn is_standard_resource(name: &str) -> bool {
    let known = [
        "cpu",
        "memory",
        "storage",
        "ephemeral-storage",
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
        "requests.cpu",
        "requests.memory",
        "requests.storage",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    known.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
        || name.starts_with("count/")
}

struct ResourceQuota;

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

impl Rules for ResourceQuota {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let quota = change.new;
        for part in ["spec", "status"] {
            let path = Path::new(part);
            for list in ["hard", "used"] {
                let path = path.child(list);
                for (name, value) in quota[part][list].as_object().into_iter().flatten() {
                    let path = path.key(name);
                    resource_name(name, &path, problems);
                    let text = value.as_str().unwrap_or_default();
                    match text.parse::<Quantity>() {
                        Ok(quantity) if quantity.sign() < 0 => {
                            problems.invalid(&path, text, "must be greater than or equal to 0");
                        }
                        Ok(quantity) if is_count(name) && !quantity.is_whole() => {
                            problems.invalid(&path, text, "must be an integer");
                        }
                        _ => {}
                    }
                }
            }
        }
        scopes(quota, problems);
        if change.old.is_some() && (change.differs("spec.scopes") || change.differs("spec.scopeSelector")) {
            let scopes = get(quota, "spec.scopes").cloned().unwrap_or_default();
            problems.invalid(&Path::new("spec").child("scopes"), scopes, crate::metadata::IMMUTABLE);
        }
    }
}

fn is_count(name: &str) -> bool {
    name.starts_with("count/")
        || [
            "pods",
            "services",
            "replicationcontrollers",
            "resourcequotas",
            "secrets",
            "configmaps",
            "persistentvolumeclaims",
        ]
        .contains(&name)
        || name.starts_with("services.")
}

fn scopes(quota: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    let scopes: Vec<&str> = get_list(quota, "spec.scopes").iter().filter_map(Value::as_str).collect();
    let shown = get(quota, "spec.scopes").cloned().unwrap_or_default();
    let path = spec.child("scopes");
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            problems.invalid(&path, shown.clone(), "unsupported scope");
        }
    }
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&a) && scopes.contains(&b) {
            problems.invalid(&path, shown.clone(), "conflicting scopes");
        }
    }
    let list = spec.child("scopeSelector.matchExpressions");
    for (index, expression) in get_list(quota, "spec.scopeSelector.matchExpressions").iter().enumerate() {
        let path = list.index(index);
        let name = get_str(expression, "scopeName");
        if !SCOPES.contains(&name) {
            problems.invalid(&path.child("scopeName"), name, "unsupported scope");
        }
        let values = get_list(expression, "values");
        match get_str(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                problems.required(
                    &path.child("values"),
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                );
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => problems.invalid(
                &path.child("values"),
                Value::Array(values.to_vec()),
                "must be no value when `operator` is 'Exists' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
}
