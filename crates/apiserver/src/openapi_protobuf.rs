//! The OpenAPI documents in protobuf, for clients that ask for
//! `application/com.github.proto-openapi.spec.v2.v1.0+protobuf`, or for that of v3.
//!
//! The printed JSON is walked along a table of gnostic's messages: each field of JSON has a tag and a shape. Maps
//! become lists of named values, `x-` fields become named extensions with YAML text, as gnostic has it. What a message
//! does not know is left out.

mod v2;
mod v3;

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
    /// A message, or where it is.
    Either(Message),
    /// Repeated such.
    Eithers(Message),
    /// `{name: message}` of such.
    NamedEither(Message),
    /// One schema, or where it is, in a message that could hold several.
    ItemsEither,
    /// A schema, where one is, or a truth.
    AdditionalEither,
    /// Status codes to responses, with a place of its own for those of all other codes.
    ResponsesEither,
    /// A number, a truth or a text; what is none of them is only said to be there.
    Default,
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
    Info3,
    PathItem3,
    Operation3,
    Schema3,
    Response3,
    Parameter3,
    RequestBody3,
    MediaType3,
    Components3,
    SecurityScheme3,
}

type Field = (&'static str, u32, Shape);

impl Message {
    /// Its fields, and the tag of its extensions.
    fn fields(self) -> (&'static [Field], u32) {
        match self {
            Message::Info => (v2::INFO, 7),
            Message::PathItem => (v2::PATH_ITEM, 10),
            Message::Operation => (v2::OPERATION, 13),
            Message::Schema => (v2::SCHEMA, 31),
            Message::Response => (v2::RESPONSE, 5),
            Message::Primitive => (v2::PRIMITIVE, 18),
            Message::SecurityDefinition => (v2::SECURITY, 5),
            Message::Info3 => (v3::INFO, 7),
            Message::PathItem3 => (v3::PATH_ITEM, 14),
            Message::Operation3 => (v3::OPERATION, 13),
            Message::Schema3 => (v3::SCHEMA, 36),
            Message::Response3 => (v3::RESPONSE, 5),
            Message::Parameter3 => (v3::PARAMETER, 14),
            Message::RequestBody3 => (v3::REQUEST_BODY, 4),
            Message::MediaType3 => (v3::MEDIA_TYPE, 5),
            Message::Components3 => (v3::COMPONENTS, 10),
            Message::SecurityScheme3 => (v3::SECURITY_SCHEME, 9),
        }
    }
}

/// Encodes a printed document of version 2.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let Some(map) = document.as_object() else { return out };
    write_fields(map, v2::DOCUMENT, 16, &mut out);
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

/// Encodes a printed document of version 3.
pub fn encode_v3(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(map) = document.as_object() {
        write_fields(map, v3::DOCUMENT, 9, &mut out);
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
        // What is empty is not written.
        Shape::Text => {
            value.as_str().filter(|word| !word.is_empty()).into_iter().for_each(|word| text(tag, word, out));
        }
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
        Shape::Either(kind) => nested(tag, out, |out| either(value, kind, out)),
        Shape::Eithers(kind) => {
            list().iter().for_each(|one| nested(tag, out, |out| either(one, kind, out)));
        }
        Shape::NamedEither(kind) => nested(tag, out, |out| {
            object().for_each(|(name, one)| named(1, name, out, |out| either(one, kind, out)));
        }),
        Shape::ItemsEither => nested(tag, out, |out| {
            nested(1, out, |out| either(value, Message::Schema3, out));
        }),
        Shape::AdditionalEither => nested(tag, out, |out| match value {
            Value::Bool(allowed) => {
                key(2, 0, out);
                out.push(u8::from(*allowed));
            }
            schema => nested(1, out, |out| either(schema, Message::Schema3, out)),
        }),
        Shape::ResponsesEither => nested(tag, out, |out| {
            for (name, one) in object() {
                match name.as_str() {
                    "default" => nested(1, out, |out| either(one, Message::Response3, out)),
                    code => named(2, code, out, |out| either(one, Message::Response3, out)),
                }
            }
        }),
        Shape::Default => nested(tag, out, |out| match value {
            Value::Number(number) => {
                key(1, 1, out);
                out.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_le_bytes());
            }
            Value::Bool(value) => {
                key(2, 0, out);
                out.push(u8::from(*value));
            }
            Value::String(word) => text(3, word, out),
            _ => {}
        }),
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

/// A message, or where it is.
fn either(value: &Value, kind: Message, out: &mut Vec<u8>) {
    match value.get("$ref").and_then(Value::as_str) {
        Some(reference) => nested(2, out, |out| {
            text(1, reference, out);
            let other = |name: &str| value.get(name).unwrap_or(&Value::Null);
            write(other("summary"), 2, Shape::Text, out);
            write(other("description"), 3, Shape::Text, out);
        }),
        None => nested(1, out, |out| message(value, kind, out)),
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
        Some("body") => nested(1, out, |out| write_fields(map, v2::BODY_PARAMETER, 6, out)),
        Some("query") => {
            nested(2, out, |out| nested(3, out, |out| write_fields(map, v2::QUERY_PARAMETER, 23, out)));
        }
        Some("header") => {
            nested(2, out, |out| nested(1, out, |out| write_fields(map, v2::PATH_PARAMETER, 22, out)));
        }
        _ => nested(2, out, |out| nested(4, out, |out| write_fields(map, v2::PATH_PARAMETER, 22, out))),
    }
}

/// A value as YAML text.
fn any(value: &Value, out: &mut Vec<u8>) {
    text(2, &apimachinery::yaml::write(value), out);
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
    fn a_document_of_version_3_has_gnostics_bytes() {
        let schema = json!({"type": "object", "properties": {"a": {"$ref": "#/x"}, "b": {"default": {}},
            "c": {"default": 1, "items": {"type": "y"}}}, "additionalProperties": true, "description": ""});
        let document = json!({"openapi": "3.0.0", "components": {"schemas": {"S": schema}}});
        let own = encode_v3(&document);
        assert_eq!(own[..7], *b"\x0a\x053.0.0");
        let has = |part: &[u8]| own.windows(part.len()).any(|at| at == part);
        assert!(
            has(b"\xca\x01\x06object") && has(b"\x82\x02\x02\x10\x01") && has(b"\x12\x05\x0a\x03#/x"),
            "{own:x?}"
        );
        // b: a default that is only there; c: a number, and the schema of its items.
        assert!(has(b"\x0a\x01b\x12\x05\x0a\x03\x8a\x02\x00"), "{own:x?}");
        assert!(
            has(b"\xf2\x01\x08\x0a\x06\x0a\x04\xca\x01\x01y\x8a\x02\x09\x09\0\0\0\0\0\0\xf0\x3f"),
            "{own:x?}"
        );
        assert!(!has(b"\x92\x02\x00"), "an empty description is not written");
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
