//! CRD structural schemas: from their OpenAPI form into the arena, their defaults and their value rules.
//!
//! [`build`] makes the same nodes as built-in kinds have, with [`Rules`] beside them. [`set_defaults`] and
//! [`validate`] walk a value along them. Rules written in CEL
//! (`x-kubernetes-validations`) are another crate's.

use regex_lite::Regex;
use serde_json::{Map, Value};

use super::{Arena, Field, Kind, List, ListType, Name, Node, NodeId, Object, Opaque, Scalar, Schema};
use crate::{
    field::{Path, Problem, ProblemKind, Problems, go_quote},
    names, time,
};

/// What a CRD schema says about values beyond their type.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// Default, applied when the field is absent.
    pub default: Option<Value>,
    /// null is a value.
    pub nullable: bool,
    /// Unknown fields are kept.
    pub preserve: bool,
    /// Declared JSON type, for messages; empty when any is allowed.
    pub kind: &'static str,
    /// Allowed values.
    pub allowed: Vec<Value>,
    /// Regular expression and its source.
    pub pattern: Option<(Regex, String)>,
    /// Named format.
    pub format: Option<String>,
    /// Bounds of numbers.
    pub minimum: Option<f64>,
    /// Bounds of numbers.
    pub maximum: Option<f64>,
    /// The bound itself is excluded.
    pub exclusive_minimum: bool,
    /// The bound itself is excluded.
    pub exclusive_maximum: bool,
    /// Values are multiples of this.
    pub multiple_of: Option<f64>,
    /// Bounds of text length.
    pub min_length: Option<u64>,
    /// Bounds of text length.
    pub max_length: Option<u64>,
    /// Bounds of list length.
    pub min_items: Option<u64>,
    /// Bounds of list length.
    pub max_items: Option<u64>,
    /// Elements differ.
    pub unique_items: bool,
    /// Bounds of map size.
    pub min_properties: Option<u64>,
    /// Bounds of map size.
    pub max_properties: Option<u64>,
    /// Fields that have to be there though they are not described here: alternatives often say no more than that.
    pub required: Vec<String>,
    /// Must all hold.
    pub all_of: Vec<NodeId>,
    /// One must hold.
    pub any_of: Vec<NodeId>,
    /// Exactly one must hold.
    pub one_of: Vec<NodeId>,
    /// Must not hold.
    pub not: Option<NodeId>,
}

/// Builds the schema of a custom resource from `openAPIV3Schema`. `object_meta` is the built-in metadata type.
pub fn build(schema: &Value, object_meta: Node<'_>) -> Schema {
    let mut builder = Builder { arena: Arena { custom: true, ..Arena::default() }, meta: None, object_meta };
    let root = builder.node(schema, true);
    Schema::new(std::sync::Arc::new(builder.arena), root)
}

struct Builder<'a> {
    arena: Arena,
    meta: Option<NodeId>,
    object_meta: Node<'a>,
}

fn flag(schema: &Value, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

fn text<'a>(schema: &'a Value, name: &str) -> &'a str {
    schema.get(name).and_then(Value::as_str).unwrap_or_default()
}

impl Builder<'_> {
    fn metadata(&mut self) -> NodeId {
        if let Some(id) = self.meta {
            return id;
        }
        let id = self.arena.import(self.object_meta);
        self.meta = Some(id);
        id
    }

    fn field(&self, name: &str, node: NodeId, required: bool) -> Field {
        Field { required, pointer: true, ..Field::new(name.to_owned(), node) }
    }

    fn node(&mut self, schema: &Value, is_object_root: bool) -> NodeId {
        let embedded = is_object_root || flag(schema, "x-kubernetes-embedded-resource");
        let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
        let kind = match text(schema, "type") {
            _ if flag(schema, "x-kubernetes-int-or-string") => Kind::Scalar(Scalar::IntOrString),
            "string" => Kind::Scalar(Scalar::String),
            "integer" => Kind::Scalar(Scalar::Int64),
            "number" => Kind::Scalar(Scalar::Float),
            "boolean" => Kind::Scalar(Scalar::Bool),
            "array" => {
                let items = match schema.get("items") {
                    Some(items) => self.node(items, false),
                    None => self.arena.add(Kind::Opaque(Opaque::Any)),
                };
                let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let keys = keys
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(|key| Name::Owned(key.to_owned()));
                let list_type = match text(schema, "x-kubernetes-list-type") {
                    "set" => ListType::Set,
                    "map" => ListType::Map(keys.collect()),
                    _ => ListType::Atomic,
                };
                Kind::List(List { items, list_type, merge_key: None, wrapped: false })
            }
            _ if schema.get("properties").is_some() || embedded => {
                let more = schema.get("additionalProperties") == Some(&Value::Bool(true));
                self.object(schema, embedded, preserve || more)
            }
            "object" => match schema.get("additionalProperties") {
                Some(Value::Bool(false)) | None if !preserve => self.object(schema, embedded, preserve),
                Some(values @ Value::Object(_)) => {
                    let value = self.node(values, false);
                    let atomic = text(schema, "x-kubernetes-map-type") == "atomic";
                    Kind::Map { value, atomic }
                }
                _ => self.object(schema, embedded, true),
            },
            _ => Kind::Opaque(Opaque::Any),
        };
        let id = self.arena.add(kind);
        let rules = self.rules(schema, preserve);
        self.arena.set_rules(id, rules);
        id
    }

    fn object(&mut self, schema: &Value, embedded: bool, preserve: bool) -> Kind {
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut fields = Vec::new();
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let special = embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
            if special {
                continue;
            }
            let node = self.node(property, false);
            fields.push(self.field(name, node, required.contains(&name.as_str())));
        }
        if embedded {
            let plain = self.arena.add(Kind::Scalar(Scalar::String));
            let meta = self.metadata();
            fields.push(self.field("apiVersion", plain, false));
            fields.push(self.field("kind", plain, false));
            fields.push(self.field("metadata", meta, false));
        }
        let fields = self.arena.add_fields(fields);
        Kind::Object(Object {
            name: Name::Borrowed(""),
            definition: Name::Borrowed(""),
            fields,
            inlines: Vec::new(),
            additional: None,
            preserve_unknown: preserve,
            embedded,
            atomic: text(schema, "x-kubernetes-map-type") == "atomic",
        })
    }

    fn rules(&mut self, schema: &Value, preserve: bool) -> Rules {
        let number = |name: &str| schema.get(name).and_then(Value::as_f64);
        let count = |name: &str| schema.get(name).and_then(Value::as_u64);
        let list = |name: &str| schema.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
        let all = |builder: &mut Self, name: &str| -> Vec<NodeId> {
            list(name).iter().map(|part| builder.node(part, false)).collect()
        };
        let pattern = text(schema, "pattern");
        let described = schema.get("properties").and_then(Value::as_object);
        let required = list("required");
        let required = required.iter().filter_map(Value::as_str);
        let required = required.filter(|name| described.is_none_or(|fields| !fields.contains_key(*name)));
        Rules {
            required: required.map(str::to_owned).collect(),
            default: schema.get("default").cloned(),
            nullable: flag(schema, "nullable"),
            preserve,
            kind: match text(schema, "type") {
                "string" => "string",
                "integer" => "integer",
                "number" => "number",
                "boolean" => "boolean",
                "array" => "array",
                "object" => "object",
                _ => "",
            },
            allowed: list("enum"),
            pattern: Regex::new(pattern)
                .ok()
                .filter(|_| !pattern.is_empty())
                .map(|re| (re, pattern.to_owned())),
            format: schema.get("format").and_then(Value::as_str).map(str::to_owned),
            minimum: number("minimum"),
            maximum: number("maximum"),
            exclusive_minimum: flag(schema, "exclusiveMinimum"),
            exclusive_maximum: flag(schema, "exclusiveMaximum"),
            multiple_of: number("multipleOf"),
            min_length: count("minLength"),
            max_length: count("maxLength"),
            min_items: count("minItems"),
            max_items: count("maxItems"),
            unique_items: flag(schema, "uniqueItems"),
            min_properties: count("minProperties"),
            max_properties: count("maxProperties"),
            all_of: all(self, "allOf"),
            any_of: all(self, "anyOf"),
            one_of: all(self, "oneOf"),
            not: schema.get("not").map(|part| self.node(part, false)),
        }
    }
}

/// Sets the defaults of absent fields, from the outside in.
pub fn set_defaults(value: &mut Value, node: Node<'_>) {
    match value {
        Value::Object(map) => {
            for field in node.fields() {
                let child = node.at(field.node);
                let Some(default) = child.rules().and_then(|rules| rules.default.as_ref()) else { continue };
                let nullable = child.rules().is_some_and(|rules| rules.nullable);
                match map.get(field.name.as_ref()) {
                    None => {
                        map.insert(field.name.to_string(), default.clone());
                    }
                    Some(Value::Null) if !nullable => {
                        map.insert(field.name.to_string(), default.clone());
                    }
                    Some(_) => {}
                }
            }
            for (name, below) in map {
                if let Some(child) = node.child(name) {
                    set_defaults(below, child);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = node.items() {
                list.iter_mut().for_each(|item| set_defaults(item, items));
            }
        }
        _ => {}
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Says what is wrong with a custom resource, field by field.
pub fn validate(value: &Value, node: Node<'_>, path: &Path<'_>, problems: &mut Problems) {
    if let Some(rules) = node.rules() {
        if value.is_null() && (rules.nullable || rules.kind.is_empty()) {
            return;
        }
        if !check_type(value, node, rules, path, problems) {
            return;
        }
        check_rules(value, rules, path, problems);
        check_logic(value, node, rules, path, problems);
    }
    match value {
        Value::Object(map) => check_object(map, node, path, problems),
        Value::Array(list) => check_list(list, node, path, problems),
        _ => {}
    }
}

fn check_type(
    value: &Value,
    node: Node<'_>,
    rules: &Rules,
    path: &Path<'_>,
    problems: &mut Problems,
) -> bool {
    let found = json_type(value);
    let fits = match node.kind() {
        Kind::Scalar(Scalar::IntOrString) => matches!(found, "integer" | "string"),
        _ => match rules.kind {
            "" => true,
            "number" => matches!(found, "number" | "integer"),
            "integer" => found == "integer" || value.as_f64().is_some_and(|number| number.fract() == 0.0),
            kind => kind == found,
        },
    };
    if !fits {
        let wanted = if rules.kind.is_empty() { "integer,string" } else { rules.kind };
        problems.push(Problem {
            kind: ProblemKind::TypeInvalid,
            path: path.to_string(),
            value: Some(found.into()),
            detail: format!("{path} in body must be of type {wanted}: {}", go_quote(found)),
        });
    }
    fits
}

fn check_rules(value: &Value, rules: &Rules, path: &Path<'_>, problems: &mut Problems) {
    let mut bad = |detail: String| problems.invalid(path, value.clone(), format!("{path} in body {detail}"));
    if let Some(number) = value.as_f64() {
        if let Some(bound) = rules.minimum {
            if rules.exclusive_minimum && number <= bound {
                bad(format!("should be greater than {bound}"));
            } else if number < bound {
                bad(format!("should be greater than or equal to {bound}"));
            }
        }
        if let Some(bound) = rules.maximum {
            if rules.exclusive_maximum && number >= bound {
                bad(format!("should be less than {bound}"));
            } else if number > bound {
                bad(format!("should be less than or equal to {bound}"));
            }
        }
        if let Some(step) = rules.multiple_of
            && (number / step).fract() != 0.0
        {
            bad(format!("should be a multiple of {step}"));
        }
    }
    if let Value::String(text) = value {
        let length = text.chars().count() as u64;
        if rules.min_length.is_some_and(|min| length < min) {
            bad(format!("should be at least {} chars long", rules.min_length.unwrap_or(0)));
        } else if let Some((regex, source)) = &rules.pattern
            && !regex.is_match(text)
        {
            bad(format!("should match '{source}'"));
        }
        if let Some(format) = &rules.format
            && !has_format(text, format)
        {
            bad(format!("must be of type {format}: {}", go_quote(text)));
        }
        if rules.max_length.is_some_and(|max| length > max) {
            problems.too_long(path, rules.max_length.unwrap_or(0) as usize);
        }
    }
    let size = match value {
        Value::Array(list) => Some((list.len() as u64, rules.min_items, rules.max_items, "items")),
        Value::Object(map) => {
            Some((map.len() as u64, rules.min_properties, rules.max_properties, "properties"))
        }
        _ => None,
    };
    if let Some((size, min, max, word)) = size {
        if min.is_some_and(|min| size < min) {
            let text = format!("{path} in body should have at least {} {word}", min.unwrap_or(0));
            problems.invalid(path, size, text);
        }
        if max.is_some_and(|max| size > max) {
            problems.too_many(path, size as usize, max.unwrap_or(0) as usize);
        }
    }
    if rules.unique_items
        && let Value::Array(list) = value
        && list.iter().enumerate().any(|(index, item)| list[..index].contains(item))
    {
        problems.invalid(path, value.clone(), format!("{path} in body shouldn't contain duplicates"));
    }
    if !rules.allowed.is_empty() && !rules.allowed.contains(value) {
        let texts: Vec<String> = rules
            .allowed
            .iter()
            .map(|allowed| match allowed {
                Value::String(text) => go_quote(text),
                other => go_quote(&other.to_string()),
            })
            .collect();
        problems.push(Problem {
            kind: ProblemKind::NotSupported,
            path: path.to_string(),
            value: Some(value.clone()),
            detail: format!("supported values: {}", texts.join(", ")),
        });
    }
}

fn holds(value: &Value, node: Node<'_>) -> bool {
    let mut problems = Problems::new();
    validate(value, node, &Path::ROOT, &mut problems);
    problems.is_empty()
}

fn check_logic(value: &Value, node: Node<'_>, rules: &Rules, path: &Path<'_>, problems: &mut Problems) {
    for part in &rules.all_of {
        validate(value, node.at(*part), path, problems);
    }
    let matching = |list: &[NodeId]| list.iter().filter(|part| holds(value, node.at(**part))).count();
    if !rules.any_of.is_empty() && matching(&rules.any_of) == 0 {
        problems.invalid(
            path,
            value.clone(),
            format!("{path} in body must validate at least one schema (anyOf)"),
        );
    }
    if !rules.one_of.is_empty() {
        match matching(&rules.one_of) {
            1 => {}
            0 => problems.invalid(
                path,
                value.clone(),
                format!("{path} in body must validate one and only one schema (oneOf). Found none valid"),
            ),
            found => problems.invalid(
                path,
                value.clone(),
                format!("{path} in body must validate one and only one schema (oneOf). Found {found} valid alternatives"),
            ),
        }
    }
    if rules.not.is_some_and(|part| holds(value, node.at(part))) {
        problems.invalid(path, value.clone(), format!("{path} in body must not validate the schema (not)"));
    }
}

fn check_object(map: &Map<String, Value>, node: Node<'_>, path: &Path<'_>, problems: &mut Problems) {
    for field in node.fields() {
        if field.required && !map.contains_key(field.name.as_ref()) {
            problems.required(&path.child(&field.name), "");
        }
    }
    for name in node.rules().into_iter().flat_map(|rules| &rules.required) {
        if !map.contains_key(name) {
            problems.required(&path.child(name), "");
        }
    }
    // A resource inside of another one says what it is.
    let embedded = node.object().is_some_and(|object| object.embedded) && !path.to_string().is_empty();
    for name in ["apiVersion", "kind"].into_iter().filter(|_| embedded) {
        match map.get(name) {
            None => problems.required(&path.child(name), ""),
            Some(text) if text == "" => problems.invalid(&path.child(name), "", "must not be empty"),
            Some(_) => {}
        }
    }
    for (name, below) in map {
        // Metadata is checked by its own rules.
        let own = node.object().is_some_and(|object| object.embedded) && name == "metadata";
        if own {
            continue;
        }
        if let Some(child) = node.child(name) {
            validate(below, child, &path.child(name), problems);
        }
    }
}

fn check_list(list: &[Value], node: Node<'_>, path: &Path<'_>, problems: &mut Problems) {
    let Kind::List(declared) = node.kind() else { return };
    let items = node.at(declared.items);
    let mut seen: Vec<Value> = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let at = path.index(index);
        validate(item, items, &at, problems);
        let key = match &declared.list_type {
            ListType::Atomic => continue,
            ListType::Set => item.clone(),
            ListType::Map(keys) => {
                let pairs =
                    keys.iter().filter_map(|key| Some((key.to_string(), item.get(key.as_ref())?.clone())));
                Value::Object(pairs.collect())
            }
        };
        if seen.contains(&key) {
            problems.duplicate(&at, key.clone());
        }
        seen.push(key);
    }
}

fn has_format(text: &str, format: &str) -> bool {
    match format {
        "date-time" | "datetime" => time::parse(text).is_some(),
        "date" => text.len() == 10 && time::parse(&format!("{text}T00:00:00Z")).is_some(),
        "duration" => time::parse_duration(text).is_some(),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "cidr" => text.split_once('/').is_some_and(|(ip, length)| {
            names::parse_ip_sloppy(ip).is_some() && length.parse::<u8>().is_ok_and(|length| length <= 128)
        }),
        "byte" => {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            STANDARD.decode(text).is_ok()
        }
        "uuid" | "uuid3" | "uuid4" | "uuid5" => {
            let parts: Vec<&str> = text.split('-').collect();
            let hex = |part: &&str| part.bytes().all(|c| c.is_ascii_hexdigit());
            parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(hex)
        }
        "hostname" => names::looks_like_subdomain(&text.to_lowercase()),
        "email" => text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        "uri" => text.split_once(':').is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.bytes().all(|c| c.is_ascii_alphanumeric() || b"+-.".contains(&c))
        }),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decode::{self, FieldValidation};

    fn schema() -> Schema {
        let mut arena = Arena::default();
        let text = arena.add(Kind::Scalar(Scalar::String));
        let field = Field { tag: 1, ..Field::new("name", text) };
        let fields = arena.add_fields(vec![field]);
        let meta = arena.add(Kind::Object(Object {
            name: "ObjectMeta".into(),
            definition: "".into(),
            fields,
            inlines: Vec::new(),
            additional: None,
            preserve_unknown: false,
            embedded: false,
            atomic: false,
        }));
        build(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "required": ["size"], "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "mood": {"type": "string", "enum": ["good", "bad"], "default": "good"},
                "code": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 4},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "port": {"x-kubernetes-int-or-string": true},
                "list": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}},
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
                "either": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}}}}}),
            arena.node(meta),
        )
    }

    fn problems(spec: Value) -> Vec<String> {
        let schema = schema();
        let mut problems = Problems::new();
        validate(
            &json!({"metadata": {"name": "a"}, "spec": spec}),
            schema.node(),
            &Path::ROOT,
            &mut problems,
        );
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_are_judged_in_upstreams_words() {
        assert_eq!(problems(json!({"size": 1, "port": "http"})), [""; 0]);
        assert_eq!(problems(json!({"size": 1, "either": {"a": ""}})), [""; 0]);
        assert_eq!(problems(json!({"size": 1, "either": {}})).len(), 1);
        let table: &[(Value, &str)] = &[
            (json!({}), "spec.size: Required value"),
            (
                json!({"size": 0}),
                "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
            ),
            (
                json!({"size": "x"}),
                "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
            ),
            (
                json!({"size": 1, "mood": "odd"}),
                "spec.mood: Unsupported value: \"odd\": supported values: \"good\", \"bad\"",
            ),
            (
                json!({"size": 1, "code": "A"}),
                "spec.code: Invalid value: \"A\": spec.code in body should match '^[a-z]+$'",
            ),
            (json!({"size": 1, "code": "abcde"}), "spec.code: Too long: may not be more than 4 bytes"),
            (
                json!({"size": 1, "list": [{"name": "a"}, {"name": "a"}]}),
                "spec.list[1]: Duplicate value: {\"name\":\"a\"}",
            ),
            (
                json!({"size": 1, "either": {"a": "", "b": ""}}),
                "spec.either: Invalid value: {\"a\":\"\",\"b\":\"\"}: spec.either in body must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ),
        ];
        for (spec, want) in table {
            assert_eq!(problems(spec.clone()), [*want], "{spec}");
        }
    }

    #[test]
    fn unknown_fields_go_and_defaults_come() {
        let schema = schema();
        let text = br#"{"metadata":{"name":"a"},"spec":{"size":1,"nope":1,"free":{"x":null}}}"#;
        let mut decoded = decode::json(text, &schema, FieldValidation::Warn).expect("decodes");
        assert_eq!(decoded.warnings, ["unknown field \"spec.nope\""]);
        set_defaults(&mut decoded.value, schema.node());
        assert_eq!(
            decoded.value,
            json!({"metadata": {"name": "a"}, "spec": {"size": 1, "free": {"x": null}, "mood": "good"}})
        );
    }
}
