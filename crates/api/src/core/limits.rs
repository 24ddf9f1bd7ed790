//! LimitRanges and ResourceQuotas.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, MetaMut, get, get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value, json};

use super::resource_names;
use crate::{Change, Column, Definition, MetaCheck, Rules};

/// Bounds and defaults for the resources of pods, containers and claims.
pub fn limit_range() -> Definition {
    Definition::namespaced("", "v1", "LimitRange", "limitranges")
        .checks_update(&[MetaCheck::Whole])
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

    /// Without a name it gets one that nobody else has.
    fn prepare_create(&self, range: &mut Value) {
        if range.name().is_empty() && range.generate_name().is_empty() {
            let uid = range.uid().to_owned();
            range.set_meta("name", &uid);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let spec = Path::new("spec");
        let list = spec.child("limits");
        let mut kinds: Vec<&str> = Vec::new();
        for (index, item) in get_list(change.new, "spec.limits").iter().enumerate() {
            let path = list.index(index);
            let kind = get_str(item, "type");
            let complaints = names::is_qualified_name(kind);
            let known = ["Pod", "Container", "PersistentVolumeClaim"].contains(&kind) || kind.contains('/');
            if complaints.is_empty() && !known {
                let why = "must be a standard limit type or fully qualified";
                problems.invalid(&path.child("type"), kind, why);
            }
            problems.invalid_each(&path.child("type"), kind, complaints);
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
    let mut named = |field: &str, problems: &mut Problems| {
        let list = path.child(field);
        for name in item[field].as_object().into_iter().flat_map(Map::keys) {
            match kind {
                "Pod" | "Container" => resource_names::validate_container(name, &list.key(name), problems),
                _ => resource_names::validate(name, &list.key(name), problems),
            }
            if !names.contains(&name) {
                names.push(name);
            }
        }
    };
    named("max", problems);
    named("min", problems);
    for field in ["default", "defaultRequest"] {
        if kind != "Pod" {
            named(field, problems);
        } else if item.get(field).is_some() {
            problems.forbidden(&path.child(field), "may not be specified when `type` is 'Pod'");
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
    named("maxLimitRequestRatio", problems);
    for name in names {
        let at = |field: &str| amount(&item[field], name);
        let (min, max, default, request, ratio) =
            (at("min"), at("max"), at("default"), at("defaultRequest"), at("maxLimitRequestRatio"));
        let (default, request) = if kind == "Pod" { (None, None) } else { (default, request) };
        // The value that is shown is not always the one that the path names.
        let mut compare = |low: Option<Quantity>, high: Option<Quantity>, field: &str, text: &str| {
            if let (Some(low), Some(high)) = (low, high)
                && low > high
            {
                let list = path.child(field);
                let shown = match field {
                    "default" if text.starts_with("min") => at_text(item, "min", name),
                    "default" => at_text(item, "max", name),
                    _ => at_text(item, field, name),
                };
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
        if let (Some(ratio), Some(min), Some(max)) = (ratio, min, max)
            && ratio.as_f64() > max.as_f64() / min.as_f64()
        {
            let list = path.child("maxLimitRequestRatio");
            let shown = at_text(item, "maxLimitRequestRatio", name);
            let limit = max.as_f64() / min.as_f64();
            let detail = format!("ratio {shown} is greater than max/min = {limit:.6}");
            problems.invalid(&list.key(name), shown, detail);
        }
        if let (Some(default), Some(request)) = (default, request)
            && default != request
            && !resource_names::may_overcommit(name)
        {
            let list = path.child("defaultRequest");
            let detail =
                format!("default value {default} must equal to defaultRequest value {request} in {name}");
            problems.invalid(&list.key(name), at_text(item, "defaultRequest", name), detail);
        }
    }
}

fn at_text(item: &Value, field: &str, name: &str) -> String {
    item[field][name].as_str().unwrap_or_default().to_owned()
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
                    resource_names::validate_quota(name, &path, problems);
                    resource_names::amount(name, value, &path, problems);
                }
            }
        }
        scopes(quota, problems);
        // Which pods are counted does not change; in which order that is said may.
        let named = |quota: &Value| {
            let mut scopes = get_list(quota, "spec.scopes").to_vec();
            scopes.sort_by_key(Value::to_string);
            scopes.dedup();
            scopes
        };
        if change.old.is_some_and(|old| named(old) != named(quota)) {
            let scopes = get(quota, "spec.scopes").cloned().unwrap_or_default();
            problems.invalid(&Path::new("spec").child("scopes"), scopes, crate::metadata::IMMUTABLE);
        }
    }
}

/// Whether pods (or claims) in a scope use such a resource at all.
fn scope_fits(scope: &str, resource: &str) -> bool {
    let compute = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => matches!(resource, "persistentvolumeclaims" | "requests.storage"),
        scope if SCOPES.contains(&scope) => resource == "pods" || compute.contains(&resource),
        _ => true,
    }
}

fn scopes(quota: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    let scopes: Vec<&str> = get_list(quota, "spec.scopes").iter().filter_map(Value::as_str).collect();
    let shown = get(quota, "spec.scopes").cloned().unwrap_or_default();
    let path = spec.child("scopes");
    let mut bounded: Vec<&String> =
        quota["spec"]["hard"].as_object().into_iter().flat_map(Map::keys).collect();
    bounded.retain(|name| resource_names::is_quota(name));
    bounded.sort();
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            problems.invalid(&path, shown.clone(), "unsupported scope");
        }
        for _ in bounded.iter().filter(|name| !scope_fits(scope, name)) {
            problems.invalid(&path, shown.clone(), "unsupported scope applied to resource");
        }
    }
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if scopes.contains(&a) && scopes.contains(&b) {
            problems.invalid(&path, shown.clone(), "conflicting scopes");
        }
    }
    // Which of the expressions it is, is not said.
    let path = spec.child("scopeSelector.matchExpressions");
    let expressions = get_list(quota, "spec.scopeSelector.matchExpressions");
    for expression in expressions {
        let name = get_str(expression, "scopeName");
        let operator = get_str(expression, "operator");
        if !SCOPES.contains(&name) {
            problems.invalid(&path.child("scopeName"), name, "unsupported scope");
        }
        for _ in bounded.iter().filter(|resource| !scope_fits(name, resource)) {
            let shown = json!({"MatchExpressions": expressions.iter().map(shown_scope).collect::<Vec<_>>()});
            problems.invalid(&path, shown, "unsupported scope applied to resource");
        }
        if SCOPES.contains(&name)
            && !matches!(name, "PriorityClass" | "VolumeAttributesClass")
            && operator != "Exists"
        {
            problems.invalid(
                &path.child("operator"),
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                 ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort \
                 or ResourceQuotaScopeCrossNamespacePodAffinity",
            );
        }
        let values = get_list(expression, "values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                problems.required(
                    &path.child("values"),
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
                );
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => problems.invalid(
                &path.child("values"),
                Value::Array(values.to_vec()),
                "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
    }
    let has = |name: &str| expressions.iter().any(|expression| get_str(expression, "scopeName") == name);
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if has(a) && has(b) {
            problems.invalid(&path, shown.clone(), "conflicting scopes");
        }
    }
}

fn shown_scope(expression: &Value) -> Value {
    json!({
        "ScopeName": get_str(expression, "scopeName"),
        "Operator": get_str(expression, "operator"),
        "Values": expression.get("values"),
    })
}
