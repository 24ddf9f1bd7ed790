//! Which schemas a custom resource may have: structural ones, and of JSON Schema only what a server can keep.
//!
//! Two passes as upstream has them. The first looks at the structure: every part says its type, and what stands below
//! `allOf`, `anyOf`, `oneOf` and `not` only restricts. The second looks at each keyword.

use apimachinery::{
    field::{Path, Problem, Problems},
    meta::{get_list, get_str},
    schema::structural,
};
use serde_json::{Map, Value};

/// Where in a schema a part stands.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

const TYPES: &[&str] = &["array", "boolean", "integer", "number", "object", "string"];
const AT_ROOT: &[&str] = &[
    "type",
    "description",
    "format",
    "title",
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "required",
    "items",
    "properties",
    "externalDocs",
    "example",
    "$schema",
    "id",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Checks the schema of one version.
pub fn validate(schema: &Value, path: &Path<'_>, problems: &mut Problems) {
    if schema["nullable"] == true {
        problems.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
    }
    let mut structure = Problems::new();
    invariants(schema, Level::Root, path, &mut structure);
    completeness(schema, schema, path, path, &mut structure);
    let mut sorted: Vec<Problem> = structure.into_iter().collect();
    sorted.sort_by_key(ToString::to_string);
    let structural = sorted.is_empty();
    sorted.into_iter().for_each(|problem| problems.push(problem));
    if structural {
        defaults(schema, path, problems);
    }
    keywords(schema, Place { root: true, ..Place::default() }, path, problems);
}

/// With a status subresource little may stand at the root.
pub fn validate_root_for_status(schema: &Value, path: &Path<'_>, problems: &mut Problems) {
    let fields = schema.as_object().into_iter().flat_map(Map::keys);
    if fields.into_iter().any(|name| !AT_ROOT.contains(&name.as_str())) {
        let allowed = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
        let why = format!(
            "only {allowed} fields are allowed at the root of the schema if the status subresource is enabled"
        );
        problems.invalid(path, schema.clone(), why);
    }
}

fn is_set(schema: &Value, field: &str) -> bool {
    match schema.get(field) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    }
}

fn parts<'a>(schema: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    schema.get(field).and_then(Value::as_object).into_iter().flatten()
}

fn invariants(schema: &Value, level: Level, path: &Path<'_>, problems: &mut Problems) {
    let kind = get_str(schema, "type");
    match schema.get("items") {
        None if kind == "array" => problems.required(&path.child("items"), "must be specified"),
        Some(items) if items.is_object() => {
            invariants(items, Level::Item, &path.child("items"), problems);
        }
        _ => {}
    }
    let list = path.child("properties");
    for (name, property) in parts(schema, "properties") {
        invariants(property, Level::Field, &list.key(name), problems);
    }
    let more = schema.get("additionalProperties").filter(|more| !more.is_null());
    if let Some(more) = more {
        let at = path.child("additionalProperties");
        if level == Level::Root {
            problems.forbidden(&at, "must not be used at the root");
        }
        if more.is_object() {
            invariants(more, Level::Field, &at, problems);
        }
    }
    let (free, either, embedded) = (
        schema["x-kubernetes-preserve-unknown-fields"] == true,
        schema["x-kubernetes-int-or-string"] == true,
        schema["x-kubernetes-embedded-resource"] == true,
    );
    for (given, field) in
        [(free, "x-kubernetes-preserve-unknown-fields"), (embedded, "x-kubernetes-embedded-resource")]
    {
        if either && given {
            problems.invalid(&path.child(field), true, "must be false if x-kubernetes-int-or-string is true");
        }
    }
    restrictions(schema, level, path, problems);
    if embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        typed(kind, why, path, problems);
    } else if kind.is_empty() && !either && !free {
        let place = match level {
            Level::Root => "at the root",
            Level::Item => "for specified array items",
            Level::Field => "for specified object fields",
        };
        problems.required(&path.child("type"), format!("must not be empty {place}"));
    }
    if embedded && more.is_some() {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        problems.forbidden(&path.child("additionalProperties"), why);
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        problems.invalid(&path.child("type"), kind, "must be object at the root");
    }
    if level == Level::Root || embedded {
        for (field, wanted) in [("kind", "string"), ("apiVersion", "string"), ("metadata", "object")] {
            if let Some(property) = schema["properties"].get(field)
                && get_str(property, "type") != wanted
            {
                let at = list.key(field);
                let kind = get_str(property, "type");
                problems.invalid(&at.child("type"), kind, format!("must be {wanted}"));
            }
        }
    }
    if level == Level::Root
        && let Some(metadata) = schema["properties"].get("metadata")
    {
        let only_names =
            parts(metadata, "properties").all(|(name, _)| name == "name" || name == "generateName");
        let more = metadata.as_object().into_iter().flat_map(Map::keys);
        let plain = more.into_iter().all(|field| matches!(field.as_str(), "type" | "properties" | "default"));
        if !only_names || !plain {
            problems.forbidden(
                &list.key("metadata"),
                "must not specify anything other than name and generateName, but metadata is implicitly specified",
            );
        }
    }
    if embedded && !free && parts(schema, "properties").next().is_none() {
        problems.required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

fn typed(kind: &str, why: &str, path: &Path<'_>, problems: &mut Problems) {
    match kind {
        "" => problems.required(&path.child("type"), why),
        _ => problems.invalid(&path.child("type"), kind, why),
    }
}

/// What a value has to fulfil beyond its type.
fn restrictions(schema: &Value, level: Level, path: &Path<'_>, problems: &mut Problems) {
    let either = serde_json::json!([{"type": "integer"}, {"type": "string"}]);
    let usual = |schema: &Value| schema.get("anyOf") == Some(&either);
    for (field, skip) in [("anyOf", usual(schema)), ("allOf", false), ("oneOf", false)] {
        let list = path.child(field);
        for (index, part) in get_list(schema, field).iter().enumerate().filter(|_| !skip) {
            // An integer or a string may be said in this one way.
            let is_usual = field == "allOf" && index == 0 && usual(part);
            nested(part, is_usual, level, &list.index(index), problems);
        }
    }
    if let Some(part) = schema.get("not").filter(|part| part.is_object()) {
        nested(part, false, level, &path.child("not"), problems);
    }
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Err(error) = regex_lite::Regex::new(pattern)
    {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        problems.invalid(&path.child("pattern"), pattern, why);
    }
}

/// Below `allOf` and the like nothing is described, only restricted.
fn nested(schema: &Value, is_usual: bool, level: Level, path: &Path<'_>, problems: &mut Problems) {
    const FORBIDDEN: &[(&str, &str)] = &[
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
        ("x-kubernetes-preserve-unknown-fields", "false"),
        ("x-kubernetes-embedded-resource", "false"),
        ("x-kubernetes-int-or-string", "false"),
        ("x-kubernetes-list-map-keys", "empty"),
        ("x-kubernetes-list-type", "undefined"),
        ("x-kubernetes-map-type", "undefined"),
        ("x-kubernetes-validations", "empty"),
    ];
    if !is_usual {
        restrictions(schema, level, path, problems);
    }
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        nested(items, false, level, &path.child("items"), problems);
    }
    let list = path.child("properties");
    for (name, property) in parts(schema, "properties") {
        nested(property, false, Level::Field, &list.key(name), problems);
    }
    for (field, wanted) in FORBIDDEN {
        if is_set(schema, field) {
            problems.forbidden(&path.child(field), format!("must be {wanted} to be structural"));
        }
    }
    if schema["properties"].get("metadata").is_some() {
        problems.forbidden(&list.key("metadata"), "must not be specified in a nested context");
    }
}

/// What a restriction speaks of has to be described, too.
fn completeness(schema: &Value, restricted: &Value, path: &Path<'_>, at: &Path<'_>, problems: &mut Problems) {
    for field in ["allOf", "anyOf", "oneOf"] {
        let list = at.child(field);
        for (index, part) in get_list(restricted, field).iter().enumerate() {
            described(schema, part, path, &list.index(index), problems);
        }
    }
    if let Some(part) = restricted.get("not").filter(|part| part.is_object()) {
        described(schema, part, path, &at.child("not"), problems);
    }
    if std::ptr::eq(schema, restricted) {
        let list = path.child("properties");
        for (name, property) in parts(schema, "properties") {
            let path = list.key(name);
            completeness(property, property, &path, &path, problems);
        }
        for field in ["items", "additionalProperties"] {
            if let Some(part) = schema.get(field).filter(|part| part.is_object()) {
                let path = path.child(field);
                completeness(part, part, &path, &path, problems);
            }
        }
    }
}

fn described(schema: &Value, part: &Value, path: &Path<'_>, at: &Path<'_>, problems: &mut Problems) {
    completeness(schema, part, path, at, problems);
    if let Some(items) = part.get("items").filter(|items| items.is_object()) {
        let (path, at) = (path.child("items"), at.child("items"));
        match schema.get("items") {
            Some(own) => described(own, items, &path, &at, problems),
            None => problems.required(&path, format!("because it is defined in {at}")),
        }
    }
    let (list, there) = (path.child("properties"), at.child("properties"));
    for (name, property) in parts(part, "properties") {
        let (path, at) = (list.key(name), there.key(name));
        match schema["properties"].get(name) {
            Some(own) => described(own, property, &path, &at, problems),
            None => problems.required(&path, format!("because it is defined in {at}")),
        }
    }
}

/// Defaults are values that the schema allows.
fn defaults(schema: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Some(value) = schema.get("default") {
        let at = path.child("default");
        let nullable = value.is_null() && schema["nullable"] == true;
        if !nullable {
            // As a field of something: only a resource itself needs a kind.
            let outer = serde_json::json!({"type": "object", "properties": {"value": schema}});
            let outer = structural::build(&outer, crate::schemas::object_meta().node());
            let mut found = Problems::new();
            if let Some(own) = outer.node().child("value") {
                structural::validate(value, own, &at, &mut found);
            }
            // The value has no name where it is judged.
            let named = format!("{at} in body");
            for mut problem in found {
                problem.detail = problem.detail.replace(&named, " in body");
                problems.push(problem);
            }
        }
    }
    let list = path.child("properties");
    for (name, property) in parts(schema, "properties") {
        defaults(property, &list.key(name), problems);
    }
    for field in ["items", "additionalProperties"] {
        if let Some(part) = schema.get(field).filter(|part| part.is_object()) {
            defaults(part, &path.child(field), problems);
        }
    }
}

/// What is known of a part's surroundings.
#[derive(Clone, Copy, Default)]
struct Place {
    root: bool,
    /// Below the metadata of a resource.
    metadata: bool,
}

/// Keywords that a server does not support.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("id", "id is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("$ref", "$ref is not supported"),
];

fn keywords(schema: &Value, place: Place, path: &Path<'_>, problems: &mut Problems) {
    let kind = get_str(schema, "type");
    if !kind.is_empty() && !TYPES.contains(&kind) {
        problems.not_supported(&path.child("type"), kind, TYPES);
    }
    for (field, why) in UNSUPPORTED {
        let given = schema.get(*field).is_some_and(|value| !value.is_null() && value != "");
        let empty = schema[*field].as_object().is_some_and(Map::is_empty);
        if given && (!empty || *field == "additionalItems") {
            problems.forbidden(&path.child(field), *why);
        }
    }
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        problems.forbidden(&path.child("type"), why);
    }
    if schema["items"].is_array() {
        problems.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    if !get_str(schema, "$schema").is_empty() {
        problems.invalid(path, "", "OpenAPIV3Schema 'schema' is not supported");
    }
    if place.metadata && schema["x-kubernetes-embedded-resource"] == true {
        problems.forbidden(
            &path.child("x-kubernetes-embedded-resource"),
            "must not be used inside of resource meta",
        );
    }
    if schema["uniqueItems"] == true {
        problems.forbidden(
            &path.child("uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        );
    }
    children(schema, place, path, problems);
    if schema["x-kubernetes-preserve-unknown-fields"] == false {
        problems.invalid(
            &path.child("x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        );
    }
    if let Some(map) = schema.get("x-kubernetes-map-type").and_then(Value::as_str) {
        if kind != "object" {
            typed(kind, "must be object if x-kubernetes-map-type is specified", path, problems);
        }
        if !["atomic", "granular"].contains(&map) {
            problems.not_supported(&path.child("x-kubernetes-map-type"), map, &["atomic", "granular"]);
        }
    }
    lists(schema, kind, path, problems);
}

fn children(schema: &Value, place: Place, path: &Path<'_>, problems: &mut Problems) {
    let below = Place { root: false, ..place };
    match schema.get("additionalProperties") {
        None | Some(Value::Null) => {}
        Some(more) => {
            let at = path.child("additionalProperties");
            if parts(schema, "properties").next().is_some() && *more != true {
                problems.forbidden(&at, "additionalProperties and properties are mutual exclusive");
            }
            if more.is_object() {
                keywords(more, below, &at, problems);
            }
        }
    }
    let list = path.child("properties");
    let resource = place.root || schema["x-kubernetes-embedded-resource"] == true;
    for (name, property) in parts(schema, "properties") {
        let metadata = resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        let at = list.key(name);
        if metadata && place.root && property.get("default").is_some() {
            problems.forbidden(&at.child("default"), format!("must not be set in top-level {name}"));
        }
        keywords(property, Place { root: false, metadata: place.metadata || metadata }, &at, problems);
    }
    if let Some(part) = schema.get("not").filter(|part| part.is_object()) {
        keywords(part, below, &path.child("not"), problems);
    }
    for field in ["allOf", "oneOf", "anyOf"] {
        let list = path.child(field);
        for (index, part) in get_list(schema, field).iter().enumerate() {
            keywords(part, below, &list.index(index), problems);
        }
    }
    if let Some(items) = schema.get("items").filter(|items| items.is_object()) {
        keywords(items, below, &path.child("items"), problems);
    }
}

fn lists(schema: &Value, kind: &str, path: &Path<'_>, problems: &mut Problems) {
    let list = schema.get("x-kubernetes-list-type").and_then(Value::as_str);
    let keys = get_list(schema, "x-kubernetes-list-map-keys");
    let (list_at, keys_at) = (path.child("x-kubernetes-list-type"), path.child("x-kubernetes-list-map-keys"));
    let items_at = path.child("items");
    let items = schema.get("items").filter(|items| items.is_object());
    let item_kind = items.map_or("", |items| get_str(items, "type"));
    if list.is_some() && kind != "array" {
        typed(kind, "must be array if x-kubernetes-list-type is specified", path, problems);
    } else if list == Some("set") {
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        let own = |field: &str| items.map_or("", |items| get_str(items, field));
        if item_kind == "array" && !["", "atomic"].contains(&own("x-kubernetes-list-type")) {
            let at = items_at.child("x-kubernetes-list-type");
            problems.invalid(&at, own("x-kubernetes-list-type"), why);
        } else if item_kind == "object" && own("x-kubernetes-map-type") != "atomic" {
            problems.invalid(&items_at.child("x-kubernetes-map-type"), Value::Null, why);
        }
    }
    if let Some(list) = list.filter(|list| !["atomic", "set", "map"].contains(list)) {
        problems.not_one_of(&list_at, list, &["atomic", "set", "map"]);
    }
    if !keys.is_empty() && list != Some("map") {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        match list {
            None => problems.required(&list_at, why),
            Some(list) => problems.invalid(&list_at, list, why),
        }
    }
    if list != Some("map") {
        return;
    }
    if keys.is_empty() {
        problems.required(&keys_at, "must not be empty if x-kubernetes-list-type is map");
    }
    let Some(items) = items else {
        problems.required(&items_at, "must have a schema if x-kubernetes-list-type is map");
        return;
    };
    if item_kind != "object" {
        let why = "must be object if parent array's x-kubernetes-list-type is map";
        problems.invalid(&items_at.child("type"), item_kind, why);
        return;
    }
    let properties = items_at.child("properties");
    for (index, key) in keys.iter().enumerate() {
        let name = key.as_str().unwrap_or_default();
        match items["properties"].get(name) {
            Some(property) if ["array", "object"].contains(&get_str(property, "type")) => {
                let at = properties.key(name);
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                problems.invalid(&at.child("type"), item_kind, why);
            }
            Some(property) => {
                let required = get_list(items, "required").contains(key);
                let at = properties.key(name);
                if !required && property.get("default").is_none() {
                    problems.required(
                        &at.child("default"),
                        "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
                    );
                }
                if property["nullable"] == true {
                    problems.forbidden(
                        &at.child("nullable"),
                        "this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
                    );
                }
            }
            None => {
                problems.invalid(&keys_at, Value::from(keys), "entries must all be names of item properties")
            }
        }
        if keys[..index].contains(key) {
            problems.invalid(&keys_at, Value::from(keys), "must not contain duplicate entries");
        }
    }
}
