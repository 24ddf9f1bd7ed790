//! The OpenAPI v2 document in protobuf, for clients that ask for
//! `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`.
//!
//! The printed JSON is walked along a table of gnostic's messages: each field of JSON has a tag and a shape. Maps
//! become lists of named values, `x-` fields become named extensions with YAML text, as gnostic has it. What a message
//! does not know is left out.

use serde_json::{Map, Value};

/// How a field travels.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Bool,
    Int,
    Double,
    /// Repeated text.
    Texts,
    /// A message.
    One(Message),
    /// Repeated messages.
    Many(Message),
    /// `{name: message}` as a message that repeats name and message.
    Named(Message),
    /// Any value: a message with its YAML.
    Any,
    /// Repeated such.
    Anys,
    /// One text or several in a message of their own.
    TypeItem,
    /// One schema in a message that could hold several.
    Items,
    /// A schema or a truth.
    AdditionalProperties,
    /// Status codes to responses, side by side with extensions.
    Responses,
    /// Parameters, each in its kind of envelope.
    Parameters,
    /// `[{name: [text]}]`.
    Requirements,
}

#[derive(Clone, Copy, PartialEq)]
enum Message {
    Info,
    PathItem,
    Operation,
    Schema,
    Response,
    Primitive,
    SecurityDefinition,
}

type Field = (&'static str, u32, Shape);

const DOCUMENT: &[Field] = &[
    ("swagger", 1, Shape::Text),
    ("info", 2, Shape::One(Message::Info)),
    ("consumes", 6, Shape::Texts),
    ("produces", 7, Shape::Texts),
    ("definitions", 9, Shape::Named(Message::Schema)),
    ("security", 12, Shape::Requirements),
    ("securityDefinitions", 13, Shape::Named(Message::SecurityDefinition)),
];
const INFO: &[Field] =
    &[("title", 1, Shape::Text), ("version", 2, Shape::Text), ("description", 3, Shape::Text)];
const PATH_ITEM: &[Field] = &[
    ("get", 2, Shape::One(Message::Operation)),
    ("put", 3, Shape::One(Message::Operation)),
    ("post", 4, Shape::One(Message::Operation)),
    ("delete", 5, Shape::One(Message::Operation)),
    ("options", 6, Shape::One(Message::Operation)),
    ("head", 7, Shape::One(Message::Operation)),
    ("patch", 8, Shape::One(Message::Operation)),
    ("parameters", 9, Shape::Parameters),
];
const OPERATION: &[Field] = &[
    ("tags", 1, Shape::Texts),
    ("summary", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("operationId", 5, Shape::Text),
    ("produces", 6, Shape::Texts),
    ("consumes", 7, Shape::Texts),
    ("parameters", 8, Shape::Parameters),
    ("responses", 9, Shape::Responses),
    ("schemes", 10, Shape::Texts),
    ("deprecated", 11, Shape::Bool),
];
const SCHEMA: &[Field] = &[
    ("$ref", 1, Shape::Text),
    ("format", 2, Shape::Text),
    ("title", 3, Shape::Text),
    ("description", 4, Shape::Text),
    ("default", 5, Shape::Any),
    ("multipleOf", 6, Shape::Double),
    ("maximum", 7, Shape::Double),
    ("exclusiveMaximum", 8, Shape::Bool),
    ("minimum", 9, Shape::Double),
    ("exclusiveMinimum", 10, Shape::Bool),
    ("maxLength", 11, Shape::Int),
    ("minLength", 12, Shape::Int),
    ("pattern", 13, Shape::Text),
    ("maxItems", 14, Shape::Int),
    ("minItems", 15, Shape::Int),
    ("uniqueItems", 16, Shape::Bool),
    ("maxProperties", 17, Shape::Int),
    ("minProperties", 18, Shape::Int),
    ("required", 19, Shape::Texts),
    ("enum", 20, Shape::Anys),
    ("additionalProperties", 21, Shape::AdditionalProperties),
    ("type", 22, Shape::TypeItem),
    ("items", 23, Shape::Items),
    ("allOf", 24, Shape::Many(Message::Schema)),
    ("properties", 25, Shape::Named(Message::Schema)),
    ("discriminator", 26, Shape::Text),
    ("readOnly", 27, Shape::Bool),
    ("example", 30, Shape::Any),
];
const RESPONSE: &[Field] = &[("description", 1, Shape::Text)];
const PRIMITIVE: &[Field] = &[("type", 1, Shape::Text), ("format", 2, Shape::Text)];
const SECURITY: &[Field] = &[
    ("type", 1, Shape::Text),
    ("name", 2, Shape::Text),
    ("in", 3, Shape::Text),
    ("description", 4, Shape::Text),
];
/// A parameter in the body.
const BODY_PARAMETER: &[Field] = &[
    ("description", 1, Shape::Text),
    ("name", 2, Shape::Text),
    ("in", 3, Shape::Text),
    ("required", 4, Shape::Bool),
    ("schema", 5, Shape::One(Message::Schema)),
];
/// A parameter in the query.
const QUERY_PARAMETER: &[Field] = &[
    ("required", 1, Shape::Bool),
    ("in", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("name", 4, Shape::Text),
    ("type", 6, Shape::Text),
    ("format", 7, Shape::Text),
    ("items", 8, Shape::One(Message::Primitive)),
    ("default", 10, Shape::Any),
    ("uniqueItems", 20, Shape::Bool),
];
/// A parameter in the path or in a header.
const PATH_PARAMETER: &[Field] = &[
    ("required", 1, Shape::Bool),
    ("in", 2, Shape::Text),
    ("description", 3, Shape::Text),
    ("name", 4, Shape::Text),
    ("type", 5, Shape::Text),
    ("format", 6, Shape::Text),
    ("items", 7, Shape::One(Message::Primitive)),
    ("default", 9, Shape::Any),
    ("uniqueItems", 19, Shape::Bool),
];

impl Message {
    /// Its fields, and the tag of its extensions.
    fn fields(self) -> (&'static [Field], u32) {
        match self {
            Message::Info => (INFO, 7),
            Message::PathItem => (PATH_ITEM, 10),
            Message::Operation => (OPERATION, 13),
            Message::Schema => (SCHEMA, 31),
            Message::Response => (RESPONSE, 5),
            Message::Primitive => (PRIMITIVE, 18),
            Message::SecurityDefinition => (SECURITY, 5),
        }
    }
}

/// Encodes a printed document.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(map) = document.as_object() else { return out };
    write_fields(map, DOCUMENT, 16, &mut out);
    if let Some(paths) = map.get("paths").and_then(Value::as_object) {
        nested(8, &mut out, |out| {
            for (name, item) in paths {
                named(2, name, out, |out| message(item, Message::PathItem, out));
            }
        });
    }
    if let Some(parameters) = map.get("parameters").and_then(Value::as_object) {
        nested(10, &mut out, |out| {
            for (name, own) in parameters {
                named(1, name, out, |out| placed(own, out));
            }
        });
    }
    out
}

fn message(value: &Value, kind: Message, out: &mut Vec<u8>) {
    let Some(map) = value.as_object() else { return };
    let (fields, extensions) = kind.fields();
    match kind {
        Message::Response => {
            write_fields(map, fields, extensions, out);
            if let Some(schema) = map.get("schema") {
                nested(2, out, |out| nested(1, out, |out| message(schema, Message::Schema, out)));
            }
        }
        // Of the kinds of authentication, only keys in headers are told.
        Message::SecurityDefinition => nested(2, out, |out| write_fields(map, fields, extensions, out)),
        _ => write_fields(map, fields, extensions, out),
    }
}

fn write_fields(map: &Map<String, Value>, fields: &[Field], extensions: u32, out: &mut Vec<u8>) {
    for (name, tag, shape) in fields {
        if let Some(value) = map.get(*name).filter(|value| !value.is_null()) {
            write(value, *tag, *shape, out);
        }
    }
    for (name, value) in map.iter().filter(|(name, _)| name.starts_with("x-")) {
        named(extensions, name, out, |out| any(value, out));
    }
}

fn write(value: &Value, tag: u32, shape: Shape, out: &mut Vec<u8>) {
    let list = || value.as_array().map(Vec::as_slice).unwrap_or_default();
    let object = || value.as_object().into_iter().flatten();
    match shape {
        Shape::Text => text(tag, value.as_str().unwrap_or_default(), out),
        Shape::Bool => {
            if value == true {
                key(tag, 0, out);
                out.push(1);
            }
        }
        Shape::Int => {
            key(tag, 0, out);
            varint(value.as_i64().unwrap_or(0) as u64, out);
        }
        Shape::Double => {
            key(tag, 1, out);
            out.extend_from_slice(&value.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        Shape::Texts => list().iter().for_each(|one| text(tag, one.as_str().unwrap_or_default(), out)),
        Shape::One(kind) => nested(tag, out, |out| message(value, kind, out)),
        Shape::Many(kind) => list().iter().for_each(|one| nested(tag, out, |out| message(one, kind, out))),
        Shape::Named(kind) => nested(tag, out, |out| {
            object().for_each(|(name, one)| named(1, name, out, |out| message(one, kind, out)));
        }),
        Shape::Any => nested(tag, out, |out| any(value, out)),
        Shape::Anys => list().iter().for_each(|one| nested(tag, out, |out| any(one, out))),
        Shape::TypeItem => nested(tag, out, |out| match value {
            Value::Array(several) => {
                several.iter().for_each(|one| text(1, one.as_str().unwrap_or_default(), out))
            }
            one => text(1, one.as_str().unwrap_or_default(), out),
        }),
        Shape::Items => nested(tag, out, |out| nested(1, out, |out| message(value, Message::Schema, out))),
        Shape::AdditionalProperties => nested(tag, out, |out| match value {
            Value::Bool(allowed) => {
                key(2, 0, out);
                out.push(u8::from(*allowed));
            }
            schema => nested(1, out, |out| message(schema, Message::Schema, out)),
        }),
        Shape::Responses => nested(tag, out, |out| {
            for (name, one) in object() {
                named(1, name, out, |out| nested(1, out, |out| message(one, Message::Response, out)));
            }
        }),
        Shape::Parameters => list().iter().for_each(|one| nested(tag, out, |out| parameter(one, out))),
        Shape::Requirements => {
            for one in list() {
                nested(tag, out, |out| {
                    for (name, texts) in one.as_object().into_iter().flatten() {
                        named(1, name, out, |out| write(texts, 1, Shape::Texts, out));
                    }
                });
            }
        }
    }
}

/// A parameter of an operation: itself, or where it is.
fn parameter(value: &Value, out: &mut Vec<u8>) {
    let Some(map) = value.as_object() else { return };
    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
        return nested(2, out, |out| text(1, reference, out));
    }
    nested(1, out, |out| placed(value, out));
}

/// A parameter in the envelope of its place.
fn placed(value: &Value, out: &mut Vec<u8>) {
    let Some(map) = value.as_object() else { return };
    match map.get("in").and_then(Value::as_str) {
        Some("body") => nested(1, out, |out| write_fields(map, BODY_PARAMETER, 6, out)),
        Some("query") => {
            nested(2, out, |out| nested(3, out, |out| write_fields(map, QUERY_PARAMETER, 23, out)));
        }
        Some("header") => {
            nested(2, out, |out| nested(1, out, |out| write_fields(map, PATH_PARAMETER, 22, out)));
        }
        _ => nested(2, out, |out| nested(4, out, |out| write_fields(map, PATH_PARAMETER, 22, out))),
    }
}

/// A value as YAML text; compact JSON is YAML.
fn any(value: &Value, out: &mut Vec<u8>) {
    let shown = match value {
        // A bare word reads better, and as the same, where YAML allows one.
        Value::String(word)
            if !word.is_empty()
                && word.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-')
                && !matches!(
                    word.as_str(),
                    "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n" | "-"
                ) =>
        {
            word.clone()
        }
        other => other.to_string(),
    };
    text(2, &format!("{shown}\n"), out);
}

fn named(tag: u32, name: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    nested(tag, out, |out| {
        text(1, name, out);
        nested(2, out, write);
    });
}

fn nested(tag: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    key(tag, 2, out);
    varint(inner.len() as u64, out);
    out.extend_from_slice(&inner);
}

fn text(tag: u32, value: &str, out: &mut Vec<u8>) {
    key(tag, 2, out);
    varint(value.len() as u64, out);
    out.extend_from_slice(value.as_bytes());
}

fn key(tag: u32, wire: u8, out: &mut Vec<u8>) {
    varint(u64::from(tag) << 3 | u64::from(wire), out);
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_has_gnostics_bytes() {
        // swagger "2.0"; definitions with one schema "A" of type object with an extension.
        let document = json!({"swagger": "2.0", "definitions": {"A": {"type": "object", "x-k": true}}});
        let schema: &[u8] = b"\xb2\x01\x08\x0a\x06object\xfa\x01\x0e\x0a\x03x-k\x12\x07\x12\x05true\n";
        let mut expected = b"\x0a\x032.0\x4a".to_vec();
        expected.push(schema.len() as u8 + 7);
        expected.extend_from_slice(&[0x0a, schema.len() as u8 + 5, 0x0a, 1, b'A', 0x12, schema.len() as u8]);
        expected.extend_from_slice(schema);
        assert_eq!(encode(&document), expected);
    }

    #[test]
    fn parameters_stand_in_the_envelope_of_their_place() {
        let of = |value: Value| {
            let mut out = Vec::new();
            parameter(&value, &mut out);
            out
        };
        assert_eq!(of(json!({"in": "query", "name": "q"}))[..4], [0x0a, 14, 0x12, 12]);
        assert_eq!(of(json!({"in": "query", "name": "q"}))[4], 0x1a);
        assert_eq!(of(json!({"in": "path", "name": "q"}))[4], 0x22);
        assert_eq!(of(json!({"$ref": "#/x"})), b"\x12\x05\x0a\x03#/x");
    }
}
