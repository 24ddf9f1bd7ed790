//! From OpenAPI schemas to types: what `self` is in a CRD rule, what `object` is while a policy is type-checked.
//!
//! CRD schemas are read as JSON, because rules see what the author declared (formats, sizes). Built-in kinds come from
//! their schema graph. Names that CEL cannot write are escaped: `namespace` is `__namespace__`, `a-b` is `a__dash__b`.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::schema::{Kind, Node, Scalar};
use serde_json::Value;

use crate::parser::is_reserved;
use crate::types::{ObjectType, Type};

/// The name by which an expression reads a field; `None` if it cannot.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
        return None;
    }
    if is_reserved(name) {
        return Some(format!("__{name}__"));
    }
    if !name.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"_.-/".contains(&letter)) {
        return None;
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(letter) = rest.chars().next() {
        let (word, width) = match letter {
            '_' if rest.starts_with("__") => ("__underscores__", 2),
            '.' => ("__dot__", 1),
            '-' => ("__dash__", 1),
            '/' => ("__slash__", 1),
            _ => {
                out.push(letter);
                rest = &rest[1..];
                continue;
            }
        };
        out.push_str(word);
        rest = &rest[width..];
    }
    Some(out)
}

/// The field that an escaped name reads.
pub fn unescape(name: &str) -> String {
    if let Some(word) = name.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"))
        && is_reserved(word)
    {
        return word.to_owned();
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    'outer: while !rest.is_empty() {
        for (word, letter) in
            [("__underscores__", "__"), ("__dot__", "."), ("__dash__", "-"), ("__slash__", "/")]
        {
            if let Some(tail) = rest.strip_prefix(word) {
                out.push_str(letter);
                rest = tail;
                continue 'outer;
            }
        }
        let width = rest.chars().next().map_or(1, char::len_utf8);
        out.push_str(&rest[..width]);
        rest = &rest[width..];
    }
    out
}

impl ObjectType {
    /// The JSON name and type of a field, by the name that an expression uses.
    pub fn field(&self, written: &str) -> Option<(String, Type)> {
        let name = unescape(written);
        if let Some(kind) = self.fields.get(&name)
            && escape(&name).as_deref() == Some(written)
        {
            return Some((name, kind.clone()));
        }
        if self.raw_names
            && let Some(kind) = self.fields.get(written)
        {
            return Some((written.to_owned(), kind.clone()));
        }
        self.open.then(|| (written.to_owned(), Type::Dyn))
    }
}

/// The type of what a CRD schema describes; `None` where rules may not look. `root` is a resource of its own.
pub fn from_openapi(schema: &Value, root: bool) -> Option<Type> {
    build(schema, root, "selfType")
}

fn build(schema: &Value, root: bool, name: &str) -> Option<Type> {
    if schema["x-kubernetes-int-or-string"] == true {
        return Some(Type::Dyn);
    }
    let root = root || schema["x-kubernetes-embedded-resource"] == true;
    match schema["type"].as_str().unwrap_or_default() {
        "array" => Some(Type::list(build(schema.get("items")?, false, &format!("{name}.@idx"))?)),
        "object" => {
            if let Some(values @ Value::Object(_)) = schema.get("additionalProperties") {
                return Some(Type::map(build(values, false, &format!("{name}.@elem"))?));
            }
            let mut fields = BTreeMap::new();
            for (property, below) in schema["properties"].as_object().into_iter().flatten() {
                if let Some(kind) = build(below, false, &format!("{name}.{property}")) {
                    fields.insert(property.clone(), kind);
                }
            }
            if root {
                fields.insert("apiVersion".to_owned(), Type::String);
                fields.insert("kind".to_owned(), Type::String);
                let mut metadata = BTreeMap::new();
                for field in ["name", "generateName"] {
                    metadata.insert(field.to_owned(), Type::String);
                }
                let kind = ObjectType {
                    name: format!("{name}.metadata"),
                    fields: metadata,
                    open: false,
                    raw_names: false,
                };
                fields.insert("metadata".to_owned(), Type::Object(Arc::new(kind)));
            }
            let kind = ObjectType { name: name.to_owned(), fields, open: false, raw_names: false };
            Some(Type::Object(Arc::new(kind)))
        }
        "string" => Some(match schema["format"].as_str().unwrap_or_default() {
            "byte" => Type::Bytes,
            "duration" => Type::Duration,
            "date" | "date-time" => Type::Timestamp,
            _ => Type::String,
        }),
        "boolean" => Some(Type::Bool),
        "number" => Some(Type::Double),
        "integer" => Some(Type::Int),
        _ => None,
    }
}

/// The type of a kind, from its schema graph. Recursive parts are `dyn`.
pub fn from_node(node: Node<'_>) -> Type {
    let mut seen = Vec::new();
    let mut known = BTreeMap::new();
    of_node(node, &mut seen, &mut known)
}

fn of_node(node: Node<'_>, above: &mut Vec<u32>, known: &mut BTreeMap<u32, Type>) -> Type {
    if let Some(kind) = known.get(&node.id()) {
        return kind.clone();
    }
    if above.contains(&node.id()) || above.len() > 40 {
        return Type::Dyn;
    }
    above.push(node.id());
    let kind = match node.kind() {
        Kind::Object(object) if object.preserve_unknown && node.fields().is_empty() => Type::Dyn,
        Kind::Object(object) => {
            let fields = node.fields().iter();
            let fields = fields
                .map(|field| (field.name.to_string(), of_node(node.at(field.node), above, known)))
                .collect();
            let name = if object.definition.is_empty() { "object" } else { &object.definition };
            let kind =
                ObjectType { name: name.to_owned(), fields, open: object.preserve_unknown, raw_names: true };
            Type::Object(Arc::new(kind))
        }
        Kind::Map { value, .. } => Type::map(of_node(node.at(*value), above, known)),
        Kind::List(list) => Type::list(of_node(node.at(list.items), above, known)),
        Kind::Scalar(scalar) => match scalar {
            Scalar::String | Scalar::Quantity => Type::String,
            Scalar::Int32 | Scalar::Int64 => Type::Int,
            Scalar::Float => Type::Double,
            Scalar::Bool => Type::Bool,
            Scalar::Bytes => Type::Bytes,
            Scalar::IntOrString => Type::Dyn,
            Scalar::Time | Scalar::MicroTime => Type::Timestamp,
            Scalar::Duration => Type::String,
        },
        Kind::Opaque(_) | Kind::SchemaOr(..) => Type::Dyn,
    };
    above.pop();
    known.insert(node.id(), kind.clone());
    kind
}
