//! CustomResourceDefinitions: kinds that users declare.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
};
use serde_json::{Value, json};

use super::{approval, schema_rules};
use crate::admissionregistration::{client_config, review_versions};
use crate::custom::rules::Costs;
use crate::{
    Change, Column, Definition, Effect, Rules, checks,
    defaults::{Constant, apply},
    print,
};

/// A kind that a user declares.
pub fn definition() -> Definition {
    Definition::cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .any_finalizers()
        .versioned_updates()
        .short(&["crd", "crds"])
        .categories(&["api-extensions"])
        .status()
        .generation()
        .effects(&[Effect::ServeCustomResources])
        .columns(vec![Column::created_at()])
        .rules(Crd)
}

/// Formats that values are held to; others say nothing. Dashes do not count.
const FORMATS: &[&str] = &[
    "bsonobjectid",
    "byte",
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hexcolor",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "k8slongname",
    "k8sshortname",
    "mac",
    "password",
    "rgbcolor",
    "ssn",
    "uri",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
];

/// The formats in a schema that nobody knows, in the order in which they stand there.
fn unknown_formats(schema: &Value, out: &mut Vec<String>) {
    let format = get_str(schema, "format");
    let known = match get_str(schema, "type") {
        "" | "string" => FORMATS.contains(&format.replace('-', "").as_str()),
        "integer" => matches!(format, "int32" | "int64"),
        "number" => matches!(format, "float" | "double"),
        _ => false,
    };
    if !format.is_empty() && !known {
        out.push(format.to_owned());
    }
    let below = ["items", "additionalProperties", "not"].iter().filter_map(|field| schema.get(*field));
    let lists = ["allOf", "anyOf", "oneOf"].iter().flat_map(|field| get_list(schema, field));
    let properties =
        schema.get("properties").and_then(Value::as_object).into_iter().flat_map(|map| map.values());
    for part in below.chain(lists).chain(properties).filter(|part| part.is_object()) {
        unknown_formats(part, out);
    }
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

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let formats = |crd: &Value| {
            let mut out = Vec::new();
            for version in get_list(crd, "spec.versions") {
                get(version, "schema.openAPIV3Schema")
                    .into_iter()
                    .for_each(|open| unknown_formats(open, &mut out));
            }
            out
        };
        let before = change.old.map(formats).unwrap_or_default();
        let new = formats(change.new).into_iter().filter(|format| !before.contains(format));
        new.map(|format| format!("unrecognized format {}", apimachinery::field::go_quote(&format))).collect()
    }

    fn prepare_create(&self, crd: &mut Value) {
        let stored = get_list(crd, "spec.versions").iter().find(|version| version["storage"] == true);
        let stored: Vec<Value> = stored.map(|version| version["name"].clone()).into_iter().collect();
        crd["status"] = json!({"acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
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
        if change.subresource != "status" {
            if change.old.is_none() {
                name_fits(change.new, problems);
            }
            let before = change.old.map_or(&[][..], |old| get_list(old, "spec.versions"));
            // A schema that was accepted before is not refused for what its rules cost.
            let costs = |version: &Value| {
                let same = |old: &Value| old["name"] == version["name"] && old["schema"] == version["schema"];
                if before.iter().any(same) { Costs::Total } else { Costs::All }
            };
            validate_spec(change.new, &costs, problems);
        }
        match change.old {
            Some(old) => update(change, old, problems),
            None => stored_versions(change.new, problems),
        }
        if change.subresource != "status" {
            approval::validate(change.new, change.old, problems);
        }
    }
}

/// What cannot change, and what the status has to agree with.
fn update(change: &Change<'_>, old: &Value, problems: &mut Problems) {
    let crd = change.new;
    if change.subresource != "status" {
        if print::has_condition(old, "Established") {
            for field in ["spec.scope", "spec.names.kind"] {
                checks::immutable(crd, old, field, problems);
            }
        }
        for field in ["spec.group", "spec.names.plural"] {
            checks::immutable(crd, old, field, problems);
        }
    }
    let status = Path::new("status");
    let given: serde_json::Map<String, Value> = crd["status"]["acceptedNames"]
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| **value != "")
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    name_syntax(&Value::Object(given), &status.child("acceptedNames"), problems);
    if change.subresource != "status" {
        stored_versions(crd, problems);
    }
}

/// The versions that objects may be stored in are all among those of the spec.
fn stored_versions(crd: &Value, problems: &mut Problems) {
    let status = Path::new("status");
    let list = status.child("storedVersions");
    let stored = get_list(crd, "status.storedVersions");
    if stored.is_empty() {
        problems.invalid(&list, Value::Null, "must have at least one stored version");
        return;
    }
    let shown = || Value::from(stored);
    let versions = get_list(crd, "spec.versions");
    for (index, version) in versions.iter().enumerate() {
        // A name that comes again is not looked for again, and so not found.
        let again = versions[..index].iter().any(|other| other["name"] == version["name"]);
        if version["storage"] == true && (again || !stored.contains(&version["name"])) {
            let name = get_str(version, "name");
            problems.invalid(&list, shown(), format!("must have the storage version {name}"));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let name = name.as_str().unwrap_or_default();
            problems.invalid(
                &list.index(index),
                name,
                format!("missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"),
            );
        }
    }
}

/// The name says the plural and the group.
fn name_fits(crd: &Value, problems: &mut Problems) {
    let spec = &crd["spec"];
    let (group, plural) = (get_str(spec, "group"), get_str(spec, "names.plural"));
    let wanted = format!("{plural}.{group}");
    for (field, name) in [("generateName", crd.generate_name()), ("name", crd.name())] {
        if !name.is_empty() && name != wanted {
            let why = "must be spec.names.plural+\".\"+spec.group";
            problems.invalid(&Path::new("metadata").child(field), name, why);
        }
    }
}

/// Checks a CRD that is stored, and is served whatever its rules cost.
pub fn validate(crd: &Value, problems: &mut Problems) {
    name_fits(crd, problems);
    validate_spec(crd, &|_| Costs::None, problems);
}

fn validate_spec(crd: &Value, costs: &dyn Fn(&Value) -> Costs, problems: &mut Problems) {
    let path = Path::new("spec");
    let spec = &crd["spec"];
    let group = get_str(spec, "group");
    if group.is_empty() {
        problems.required(&path.child("group"), "");
    } else {
        let complaints = names::is_dns1123_subdomain(group);
        if complaints.is_empty() && group.split('.').count() < 2 {
            problems.invalid(&path.child("group"), group, "should be a domain with at least one dot");
        }
        joined(&path.child("group"), group, complaints, problems);
    }
    checks::one_of(spec, "scope", true, &["Cluster", "Namespaced"], &path, problems);
    if spec["preserveUnknownFields"] == true {
        problems.invalid(
            &path.child("preserveUnknownFields"),
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        );
    }
    versions(spec, costs, &path, problems);
    names_of(&spec["names"], &path.child("names"), problems);
    conversion(&spec["conversion"], &path.child("conversion"), problems);
}

fn names_of(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if get_str(value, field).is_empty() {
            problems.required(&path.child(field), "");
        }
    }
    name_syntax(value, path, problems);
}

fn name_syntax(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    for field in ["plural", "singular", "kind", "listKind"] {
        let text = get_str(value, field);
        if text.is_empty() {
            continue;
        }
        // Kinds are CamelCase but otherwise labels.
        let mixed = field == "kind" || field == "listKind";
        let lower = if mixed { text.to_lowercase() } else { text.to_owned() };
        let before = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
        let complaints = names::is_dns1035_label(&lower);
        if !complaints.is_empty() {
            problems.invalid(&path.child(field), text, format!("{before}{}", complaints.join(",")));
        }
    }
    for field in ["shortNames", "categories"] {
        let list = path.child(field);
        for (index, name) in get_list(value, field).iter().enumerate() {
            let text = name.as_str().unwrap_or_default();
            joined(&list.index(index), text, names::is_dns1035_label(text), problems);
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

/// What a version says of its own, or all of them together.
const PARTS: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];

/// Complaints of one value in one text.
fn joined(path: &Path<'_>, value: &str, complaints: Vec<String>, problems: &mut Problems) {
    if !complaints.is_empty() {
        problems.invalid(path, value, complaints.join(","));
    }
}

fn versions(spec: &Value, costs: &dyn Fn(&Value) -> Costs, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("versions");
    let versions = get_list(spec, "versions");
    // What all versions have in common is told of where upstream keeps it: once, in the spec.
    let shared = |field: &str| versions.iter().all(|version| version.get(field) == versions[0].get(field));
    let [schemas, parts, columns, fields] = PARTS.map(shared);
    for (index, version) in versions.iter().enumerate() {
        if get(version, "schema.openAPIV3Schema").is_none() {
            problems.required(&list.index(index).child("schema").child("openAPIV3Schema"), "");
        }
    }
    let mut once = Problems::new();
    for (index, version) in versions.iter().enumerate() {
        let at = list.index(index);
        let name = get_str(version, "name");
        joined(&at.child("name"), name, names::is_dns1035_label(name), problems);
        deprecation(version, &at, problems);
        let open = get(version, "schema.openAPIV3Schema");
        let (mut rest, mut unused) = (Problems::new(), Problems::new());
        // Where the problems of a part go, and below what.
        let common = |is_shared: bool| is_shared && index > 0;
        let (place, word) = if schemas { (path, "validation") } else { (&at, "schema") };
        let out = if common(schemas) {
            &mut unused
        } else if schemas {
            &mut once
        } else {
            &mut rest
        };
        if let Some(open) = open {
            let place = place.child(word);
            one_schema(
                open,
                get(version, "subresources.status").is_some(),
                costs(version),
                &place.child("openAPIV3Schema"),
                out,
            );
        }
        let place = if parts { path } else { &at };
        let out = if common(parts) {
            &mut unused
        } else if parts {
            &mut once
        } else {
            &mut rest
        };
        subresources(version, place, out);
        let place = if columns { path } else { &at };
        let out = if common(columns) {
            &mut unused
        } else if columns {
            &mut once
        } else {
            &mut rest
        };
        printer_columns(version, &place.child("additionalPrinterColumns"), out);
        let place = if fields { path } else { &at };
        let out = if common(fields) {
            &mut unused
        } else if fields {
            &mut once
        } else {
            &mut rest
        };
        selectable_fields(version, open, &place.child("selectableFields"), out);
        rest.into_iter().for_each(|problem| problems.push(problem));
    }
    let shown = || match spec.get("versions") {
        None => Value::Null,
        Some(versions) => {
            let mut versions = versions.clone();
            for version in versions.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                for (field, shared) in PARTS.into_iter().zip([schemas, parts, columns, fields]) {
                    if shared {
                        version.shift_remove(field);
                    }
                }
            }
            crate::go_form::shown(&versions, "apiextensions.CustomResourceDefinitionVersion")
        }
    };
    let names_list: Vec<&str> = versions.iter().map(|version| get_str(version, "name")).collect();
    if names_list.iter().enumerate().any(|(index, name)| names_list[..index].contains(name)) {
        problems.invalid(&list, shown(), "must contain unique version names");
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        problems.invalid(&list, shown(), "must have exactly one version marked as storage version");
    }
    // The first version has a field of its own in the types of the past.
    if let Some(first) = names_list.first().filter(|first| !first.is_empty()) {
        joined(&path.child("version"), first, names::is_dns1035_label(first), problems);
    }
    once.into_iter().for_each(|problem| problems.push(problem));
}

fn one_schema(open: &Value, has_status: bool, costs: Costs, path: &Path<'_>, problems: &mut Problems) {
    let before = problems.len();
    if has_status {
        schema_rules::validate_root_for_status(open, path, problems);
    }
    schema_rules::validate(open, path, problems);
    if problems.len() == before {
        crate::custom::rules::check(open, &path.to_string(), costs, problems);
    }
}

fn deprecation(version: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(text) = version.get("deprecationWarning").and_then(Value::as_str) else { return };
    let mut refuse = |why: &str| problems.invalid(&path.child("deprecationWarning"), text, why);
    if version["deprecated"] != true {
        refuse("can only be set for deprecated versions");
    }
    if text.is_empty() {
        refuse("must not be an empty string");
    }
    if text.len() > 256 {
        refuse("must be <= 256 characters long");
    }
    if text.contains(char::is_control) {
        refuse("must not contain control characters");
    }
}

fn printer_columns(version: &Value, path: &Path<'_>, problems: &mut Problems) {
    const TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
    const FORMATS: &[&str] = &["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for (number, column) in get_list(version, "additionalPrinterColumns").iter().enumerate() {
        let at = path.index(number);
        checks::required(column, "name", &at, problems);
        let kind = get_str(column, "type");
        let types = format!("must be one of {}", TYPES.join(","));
        if kind.is_empty() {
            problems.required(&at.child("type"), types);
        } else if !TYPES.contains(&kind) {
            problems.invalid(&at.child("type"), kind, types);
        }
        let format = get_str(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            problems.invalid(&at.child("format"), format, format!("must be one of {}", FORMATS.join(",")));
        }
        let text = get_str(column, "jsonPath");
        if text.is_empty() {
            problems.required(&at.child("JSONPath"), "");
        } else {
            simple_path(text, &at.child("JSONPath"), problems);
        }
    }
}

fn selectable_fields(version: &Value, open: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    let fields = get_list(version, "selectableFields");
    let Some(open) = open else {
        if !fields.is_empty() {
            let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
            problems.invalid(path, "", why);
        }
        return;
    };
    let mut seen: Vec<&str> = Vec::new();
    for (number, field) in fields.iter().enumerate() {
        let place = path.index(number);
        let at = place.child("jsonPath");
        let text = get_str(field, "jsonPath");
        if text.is_empty() {
            problems.required(&at, "");
            continue;
        }
        let Some(found) = crate::custom::rules::field_at(text, open) else {
            problems.invalid(&at, text, "is an invalid path: does not refer to a valid field");
            continue;
        };
        if !["string", "boolean", "integer"].contains(&get_str(found, "type")) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            problems.invalid(&at, text, why);
        }
        if seen.contains(&text) {
            problems.duplicate(&at, text);
        }
        seen.push(text);
    }
    if seen.len() > 8 {
        problems.too_many(path, seen.len(), 8);
    }
}

/// A path like `.spec.replicas`. Returns whether it is one.
fn simple_path(text: &str, path: &Path<'_>, problems: &mut Problems) -> bool {
    let simple = text.starts_with('.');
    if !simple {
        problems.invalid(path, text, "must be a simple json path starting with .");
    }
    simple
}

fn subresources(version: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(scale) = get(version, "subresources.scale") else { return };
    let at = path.child("subresources");
    let at = at.child("scale");
    for (field, prefix) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
        let text = get_str(scale, field);
        if text.is_empty() {
            problems.required(&at.child(field), "");
        } else if simple_path(text, &at.child(field), problems) && !text.starts_with(prefix) {
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

fn conversion(conversion: &Value, path: &Path<'_>, problems: &mut Problems) {
    let strategy = get_str(conversion, "strategy");
    if strategy.is_empty() {
        problems.required(&path.child("strategy"), "");
    }
    match (strategy, conversion.get("webhook")) {
        ("None" | "", Some(webhook)) => {
            let why = "should not be set when strategy is not set to Webhook";
            if webhook.get("clientConfig").is_some() {
                problems.forbidden(&path.child("webhookClientConfig"), why);
            }
            if !get_list(webhook, "conversionReviewVersions").is_empty() {
                problems.forbidden(&path.child("conversionReviewVersions"), why);
            }
        }
        ("None" | "", None) => {}
        ("Webhook", webhook) => {
            let at = path.child("webhookClientConfig");
            match webhook.and_then(|webhook| webhook.get("clientConfig")) {
                None => problems.required(&at, "required when strategy is set to Webhook"),
                Some(config) => client_config(config, &at, problems),
            }
            let versions = webhook.map(|webhook| get_list(webhook, "conversionReviewVersions"));
            let at = path.child("conversionReviewVersions");
            review_versions(versions.unwrap_or_default(), "", &at, problems);
        }
        (other, _) => problems.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
}
