//! CustomResourceDefinitions: kinds that users declare.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Effect, Rules, checks,
    defaults::{Constant, apply},
};

/// A kind that a user declares.
pub fn definition() -> Definition {
    Definition::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .versioned_updates()
        .short(&["crd", "crds"])
        .categories(&["api-extensions"])
        .status()
        .generation()
        .effects(&[Effect::ServeCustomResources])
        .columns(vec![Column::created_at()])
        .rules(Crd)
}

struct Crd;

impl Rules for Crd {
    fn set_defaults(&self, crd: &mut Value) {
        if !crd["spec"].is_object() {
            return;
        }
        let kind = get_str(crd, "spec.names.kind").to_owned();
        if let Some(names) = crd["spec"].get_mut("names").and_then(Value::as_object_mut)
            && !kind.is_empty()
        {
            names.entry("singular").or_insert_with(|| kind.to_lowercase().into());
            names.entry("listKind").or_insert_with(|| format!("{kind}List").into());
        }
        apply(
            crd,
            &[
                ("spec.conversion", Constant::Empty),
                ("spec.conversion.strategy", Constant::Text("None")),
                ("spec.conversion.webhook.clientConfig.service.port", Constant::Number(443)),
            ],
        );
    }

    fn prepare_create(&self, crd: &mut Value) {
        let stored = get_list(crd, "spec.versions").iter().find(|version| version["storage"] == true);
        let stored: Vec<Value> = stored.map(|version| version["name"].clone()).into_iter().collect();
        crd["status"] =
            json!({"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value, subresource: &str) {
        // A version that becomes the stored one is remembered until someone migrates away from it.
        if !subresource.is_empty() {
            return;
        }
        let stored = get_list(new, "spec.versions").iter().find(|version| version["storage"] == true);
        let Some(name) = stored.map(|version| version["name"].clone()) else { return };
        if let Some(Value::Array(list)) =
            new.get_mut("status").and_then(|status| status.get_mut("storedVersions"))
            && !list.contains(&name)
        {
            list.push(name);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            if get_list(change.new, "status.storedVersions").is_empty() {
                problems.required(
                    &Path::new("status").child("storedVersions"),
                    "must have at least one stored version",
                );
            }
            return;
        }
        validate(change.new, problems);
        if let Some(old) = change.old {
            for field in ["spec.group", "spec.names.kind", "spec.scope", "spec.names.plural"] {
                checks::immutable(change.new, old, field, problems);
            }
            let path = Path::new("status");
            let list = path.child("storedVersions");
            for (index, stored) in get_list(old, "status.storedVersions").iter().enumerate() {
                let still =
                    get_list(change.new, "spec.versions").iter().any(|version| version["name"] == *stored);
                if !still {
                    problems.invalid(
                        &list.index(index),
                        stored.clone(),
                        "missing from spec.versions; previous storage versions must remain in spec.versions until persisted objects have been migrated",
                    );
                }
            }
        }
    }
}

/// Checks a CRD.
pub fn validate(crd: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    let spec = &crd["spec"];
    let (group, plural) = (get_str(spec, "group"), get_str(spec, "names.plural"));
    let wanted = format!("{plural}.{group}");
    if crd.name() != wanted {
        problems.invalid(
            &Path::new("metadata").child("name"),
            crd.name(),
            "must be spec.names.plural+\".\"+spec.group",
        );
    }
    if group.is_empty() {
        problems.required(&path.child("group"), "");
    } else {
        problems.invalid_each(&path.child("group"), group, names::is_dns1123_subdomain(group));
        if group.split('.').count() < 2 {
            problems.invalid(&path.child("group"), group, "should be a domain with at least one dot");
        }
    }
    checks::one_of(spec, "scope", true, &["Cluster", "Namespaced"], &path, problems);
    names_of(&spec["names"], &path.child("names"), problems);
    versions(spec, &path, problems);
    conversion(&spec["conversion"], &path.child("conversion"), problems);
}

fn names_of(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let text = get_str(value, field);
        if text.is_empty() {
            problems.required(&path.child(field), "");
            continue;
        }
        // Kinds are CamelCase but otherwise labels.
        let lower =
            if field == "kind" || field == "listKind" { text.to_lowercase() } else { text.to_owned() };
        problems.invalid_each(&path.child(field), text, names::is_dns1035_label(&lower));
    }
    for field in ["shortNames", "categories"] {
        let list = path.child(field);
        for (index, name) in get_list(value, field).iter().enumerate() {
            let text = name.as_str().unwrap_or_default();
            problems.invalid_each(&list.index(index), text, names::is_dns1035_label(text));
        }
    }
    if !get_str(value, "kind").is_empty() && get_str(value, "kind") == get_str(value, "listKind") {
        problems.invalid(
            &path.child("listKind"),
            get_str(value, "listKind"),
            "kind and listKind may not be the same",
        );
    }
}

fn versions(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("versions");
    let versions = get_list(spec, "versions");
    let shown = || Value::Array(versions.iter().map(|version| version["name"].clone()).collect());
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        problems.invalid(&list, shown(), "must have exactly one version marked as storage version");
    }
    let names_list: Vec<&str> = versions.iter().map(|version| get_str(version, "name")).collect();
    if names_list.iter().enumerate().any(|(index, name)| names_list[..index].contains(name)) {
        problems.invalid(&list, shown(), "must contain unique version names");
    }
    for (index, version) in versions.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(version, "name");
        problems.invalid_each(&at.child("name"), name, names::is_dns1035_label(name));
        let schema_path = at.child("schema");
        let schema_path = schema_path.child("openAPIV3Schema");
        match get(version, "schema.openAPIV3Schema") {
            None => problems.required(&schema_path, "schemas are required"),
            Some(schema) => {
                if get_str(schema, "type") != "object" {
                    let text = get_str(schema, "type");
                    if text.is_empty() {
                        problems.required(&schema_path.child("type"), "must not be empty at the root");
                    } else {
                        problems.invalid(&schema_path.child("type"), text, "must be object at the root");
                    }
                }
                let before = problems.len();
                structural(schema, &schema_path, problems);
                if problems.len() == before {
                    crate::custom::rules::check(schema, &schema_path.to_string(), problems);
                }
            }
        }
        subresources(version, &at, problems);
        let columns = at.child("additionalPrinterColumns");
        for (number, column) in get_list(version, "additionalPrinterColumns").iter().enumerate() {
            let at = columns.index(number);
            checks::required(column, "name", &at, problems);
            checks::one_of(
                column,
                "type",
                true,
                &["boolean", "date", "integer", "number", "string"],
                &at,
                problems,
            );
            json_path(column, "jsonPath", &at, problems);
        }
        let fields = at.child("selectableFields");
        for (number, field) in get_list(version, "selectableFields").iter().enumerate() {
            json_path(field, "jsonPath", &fields.index(number), problems);
        }
    }
}

fn json_path(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    let text = get_str(value, field);
    if text.is_empty() {
        problems.required(&path.child(field), "");
    } else if !text.starts_with('.') {
        problems.invalid(&path.child(field), text, "must be a simple json path starting with .");
    }
}

fn subresources(version: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(scale) = get(version, "subresources.scale") else { return };
    let at = path.child("subresources");
    let at = at.child("scale");
    for (field, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let text = get_str(scale, field);
        if text.is_empty() {
            problems.required(&at.child(field), "");
        } else if !text.starts_with(prefix) {
            let parent = prefix.trim_end_matches('.');
            problems.invalid(&at.child(field), text, format!("should be a json path under {parent}"));
        }
    }
    let selector = get_str(scale, "labelSelectorPath");
    if !selector.is_empty() && !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
        problems.invalid(
            &at.child("labelSelectorPath"),
            selector,
            "should be a json path under either .spec or .status",
        );
    }
}

/// Every part of a schema says its type, lists say how they merge.
fn structural(schema: &Value, path: &Path<'_>, problems: &mut Problems) {
    let kind = get_str(schema, "type");
    let free = schema["x-kubernetes-preserve-unknown-fields"] == true
        || schema["x-kubernetes-int-or-string"] == true;
    if kind.is_empty() && !free {
        problems.required(&path.child("type"), "must not be empty for specified object fields");
    }
    if !kind.is_empty() && !["string", "integer", "number", "boolean", "array", "object"].contains(&kind) {
        problems.not_supported(
            &path.child("type"),
            kind,
            &["array", "boolean", "integer", "number", "object", "string"],
        );
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && regex_lite::Regex::new(pattern).is_err()
    {
        problems.invalid(&path.child("pattern"), pattern, "must be a valid regular expression");
    }
    if schema["uniqueItems"] == true {
        problems.forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    if schema["additionalProperties"] == false {
        problems
            .forbidden(&path.child("additionalProperties"), "additionalProperties cannot be set to false");
    }
    let has_properties = schema["properties"].as_object().is_some_and(|properties| !properties.is_empty());
    if has_properties && schema.get("additionalProperties").is_some_and(|more| more != true) {
        problems.forbidden(
            &path.child("additionalProperties"),
            "additionalProperties and properties are mutual exclusive",
        );
    }
    list_type(schema, path, problems);
    let list = path.child("properties");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        structural(property, &list.key(name), problems);
    }
    if kind == "array" {
        match schema.get("items") {
            None => problems.required(&path.child("items"), "must be specified"),
            Some(items) if items.is_object() => structural(items, &path.child("items"), problems),
            Some(_) => {
                problems.forbidden(&path.child("items"), "items must be a schema object and not an array")
            }
        }
    }
    if schema["additionalProperties"].is_object() {
        structural(&schema["additionalProperties"], &path.child("additionalProperties"), problems);
    }
}

fn list_type(schema: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(kind) = schema.get("x-kubernetes-list-type").and_then(Value::as_str) else { return };
    let at = path.child("x-kubernetes-list-type");
    if !["atomic", "map", "set"].contains(&kind) {
        problems.not_supported(&at, kind, &["atomic", "map", "set"]);
    }
    let keys = get_list(schema, "x-kubernetes-list-map-keys");
    let at = path.child("x-kubernetes-list-map-keys");
    if kind == "map" && keys.is_empty() {
        problems.required(&at, "must not be empty if x-kubernetes-list-type is map");
    }
    if kind != "map" && !keys.is_empty() {
        problems
            .forbidden(&at, "x-kubernetes-list-map-keys must be empty unless x-kubernetes-list-type is map");
    }
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        if schema["items"]["properties"].get(name).is_none() {
            problems.invalid(&at.index(index), name, "entries must all be names of item properties");
        }
    }
}

fn conversion(conversion: &Value, path: &Path<'_>, problems: &mut Problems) {
    let strategy = get_str(conversion, "strategy");
    match (strategy, conversion.get("webhook")) {
        ("None" | "", Some(_)) => problems
            .forbidden(&path.child("webhook"), "should not be set when strategy is not set to Webhook"),
        ("None" | "", None) => {}
        ("Webhook", None) => problems.required(
            &path.child("webhook").child("clientConfig"),
            "required when strategy is set to Webhook",
        ),
        ("Webhook", Some(webhook)) => {
            let at = path.child("webhook");
            if get_list(webhook, "conversionReviewVersions").is_empty() {
                problems.required(&at.child("conversionReviewVersions"), "");
            }
            crate::admissionregistration::client_config(
                &webhook["clientConfig"],
                &at.child("clientConfig"),
                problems,
            );
        }
        (other, _) => problems.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
}
