//! The Kubernetes protobuf codec, driven by schemas.
//!
//! Objects travel in an envelope: the magic `k8s\0`, then a `runtime.Unknown` message with apiVersion, kind and
//! the object's own bytes. Fields that Go inlines are nested messages on the wire; see [`crate::schema::Inline`].
//! Decoding yields the same normal form as [`crate::decode`]; encoding takes it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::{
    decode::MAX_DEPTH,
    quantity,
    schema::{Field, Kind, List, Node, Opaque, Scalar, Schema, SchemaOr, is_zero},
    time,
};

/// First bytes of every enveloped object.
pub const MAGIC: &[u8; 4] = b"k8s\0";
/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Why bytes are not a protobuf object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtobufError {
    /// No magic prefix.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Magic,
    /// Ends inside a field.
    #[error("unexpected EOF")]
    Truncated,
    /// A field has another wire type than the schema says.
    #[error("proto: wrong wireType = {found} for field {field}")]
    WireType {
        /// field
        field: String,
        /// what was found
        found: u8,
    },
    /// Text that is not UTF-8.
    #[error("proto: field {0} contains invalid UTF-8")]
    Utf8(String),
    /// A group, or a field number of zero.
    #[error("proto: illegal tag {0}")]
    Tag(u64),
    /// Embedded JSON that does not parse.
    #[error("field {0} holds JSON that does not parse")]
    Json(String),
    /// A quantity that does not parse.
    #[error("{0}")]
    Quantity(#[from] quantity::QuantityError),
    /// Too deeply nested.
    #[error("exceeded max depth of {MAX_DEPTH}")]
    Depth,
}

/// An opened envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// apiVersion.
    pub api_version: &'a str,
    /// kind.
    pub kind: &'a str,
    /// The object's bytes.
    pub raw: &'a [u8],
    /// Media type of the bytes when it is not protobuf.
    pub content_type: &'a str,
}

/// Opens an envelope.
pub fn unwrap(bytes: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let body = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::Magic)?;
    let mut envelope = Envelope { api_version: "", kind: "", raw: &[], content_type: "" };
    let mut reader = Reader { bytes: body };
    while let Some((tag, wire)) = reader.key()? {
        match (tag, wire) {
            (1, 2) => {
                let mut inner = Reader { bytes: reader.chunk()? };
                while let Some((tag, wire)) = inner.key()? {
                    match (tag, wire) {
                        (1, 2) => envelope.api_version = inner.text("apiVersion")?,
                        (2, 2) => envelope.kind = inner.text("kind")?,
                        _ => inner.skip(wire)?,
                    }
                }
            }
            (2, 2) => envelope.raw = reader.chunk()?,
            (4, 2) => envelope.content_type = reader.text("contentType")?,
            _ => reader.skip(wire)?,
        }
    }
    Ok(envelope)
}

/// Puts encoded bytes of an object in an envelope.
pub fn wrap(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + api_version.len() + kind.len() + 24);
    wrap_into(&mut out, api_version, kind, raw);
    out
}

/// Appends an envelope to a buffer.
pub fn wrap_into(out: &mut Vec<u8>, api_version: &str, kind: &str, raw: &[u8]) {
    out.extend_from_slice(MAGIC);
    message(out, 1, |out| {
        chunk(out, 1, api_version.as_bytes());
        chunk(out, 2, kind.as_bytes());
    });
    chunk(out, 2, raw);
    chunk(out, 3, b"");
    chunk(out, 4, b"");
}

/// Decodes an enveloped object; apiVersion and kind come from the envelope.
pub fn decode(bytes: &[u8], schema: &Schema) -> Result<Value, ProtobufError> {
    let envelope = unwrap(bytes)?;
    if envelope.content_type.starts_with("application/json") {
        return serde_json::from_slice(envelope.raw).map_err(|_| ProtobufError::Json("raw".into()));
    }
    let mut map = Map::new();
    if !envelope.kind.is_empty() {
        map.insert("kind".into(), envelope.kind.into());
    }
    if !envelope.api_version.is_empty() {
        map.insert("apiVersion".into(), envelope.api_version.into());
    }
    decode_into(envelope.raw, schema.node(), &mut map, 0)?;
    Ok(Value::Object(map))
}

/// Decodes the bytes of an object without an envelope.
pub fn decode_raw(bytes: &[u8], node: Node<'_>) -> Result<Value, ProtobufError> {
    let mut map = Map::new();
    decode_into(bytes, node, &mut map, 0)?;
    Ok(Value::Object(map))
}

/// Encodes an object with its envelope.
pub fn encode(value: &Value, schema: &Schema) -> Vec<u8> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    wrap(text("apiVersion"), text("kind"), &encode_raw(value, schema.node()))
}

/// Encodes an object without an envelope.
pub fn encode_raw(value: &Value, node: Node<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    if let Value::Object(map) = value {
        encode_object(&mut out, map, node);
    }
    out
}

/// Encodes a list whose items are already encoded without envelopes.
pub fn encode_list<'a>(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    list_meta: Node<'_>,
    items: impl Iterator<Item = &'a [u8]>,
) -> Vec<u8> {
    let mut raw = Vec::new();
    let metadata = encode_raw(metadata, list_meta);
    chunk(&mut raw, 1, &metadata);
    for item in items {
        chunk(&mut raw, 2, item);
    }
    wrap(api_version, kind, &raw)
}

/// One frame of a watch stream: four bytes of length, then the event; `object` is enveloped.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    chunk(&mut out, 1, event.as_bytes());
    message(&mut out, 2, |out| chunk(out, 1, object));
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut value = 0u64;
        for (index, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * index as u32).min(63);
            if byte & 0x80 == 0 {
                self.bytes = &self.bytes[index + 1..];
                return Ok(value);
            }
        }
        Err(ProtobufError::Truncated)
    }

    /// The next field number and wire type, `None` at the end.
    fn key(&mut self) -> Result<Option<(u64, u8)>, ProtobufError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        if key >> 3 == 0 {
            return Err(ProtobufError::Tag(key >> 3));
        }
        Ok(Some((key >> 3, (key & 7) as u8)))
    }

    fn chunk(&mut self) -> Result<&'a [u8], ProtobufError> {
        let length = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
        if length > self.bytes.len() {
            return Err(ProtobufError::Truncated);
        }
        let (chunk, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        Ok(chunk)
    }

    fn text(&mut self, field: &str) -> Result<&'a str, ProtobufError> {
        std::str::from_utf8(self.chunk()?).map_err(|_| ProtobufError::Utf8(field.into()))
    }

    fn fixed(&mut self, width: usize) -> Result<&'a [u8], ProtobufError> {
        if self.bytes.len() < width {
            return Err(ProtobufError::Truncated);
        }
        let (fixed, rest) = self.bytes.split_at(width);
        self.bytes = rest;
        Ok(fixed)
    }

    fn skip(&mut self, wire: u8) -> Result<(), ProtobufError> {
        match wire {
            0 => self.varint().map(|_| ()),
            1 => self.fixed(8).map(|_| ()),
            2 => self.chunk().map(|_| ()),
            5 => self.fixed(4).map(|_| ()),
            other => Err(ProtobufError::Tag(u64::from(other))),
        }
    }
}

fn decode_into(
    bytes: &[u8],
    node: Node<'_>,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    decode_level(bytes, node, 0, out, depth)?;
    node.add_zeroes(out, false);
    Ok(())
}

/// One message: the object itself (`via` 0) or one of its inlined messages.
fn decode_level(
    bytes: &[u8],
    node: Node<'_>,
    via: u8,
    out: &mut Map<String, Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::Depth);
    }
    let Kind::Object(object) = node.kind() else { return Ok(()) };
    let fields = node.fields();
    let mut reader = Reader { bytes };
    while let Some((tag, wire)) = reader.key()? {
        let found = fields.iter().find(|field| u64::from(field.tag) == tag && field.via == via);
        let Some(field) = found else {
            let inline =
                object.inlines.iter().position(|inline| u64::from(inline.tag) == tag && inline.via == via);
            match inline {
                Some(index) if wire == 2 => {
                    decode_level(reader.chunk()?, node, index as u8 + 1, out, depth + 1)?;
                }
                _ => reader.skip(wire)?,
            }
            continue;
        };
        let child = node.at(field.node);
        match child.kind() {
            Kind::List(list) if !list.wrapped => {
                let items = child.at(list.items);
                let slot = entry(out, &field.name, || Value::Array(Vec::new()));
                let Value::Array(elements) = slot else { continue };
                decode_elements(&mut reader, wire, items, &field.name, elements, depth)?;
            }
            Kind::Map { value, .. } => {
                if wire != 2 {
                    return Err(ProtobufError::WireType { field: field.name.to_string(), found: wire });
                }
                let (key, element) = decode_entry(reader.chunk()?, child.at(*value), &field.name, depth)?;
                if let Value::Object(map) = entry(out, &field.name, || Value::Object(Map::new())) {
                    map.insert(key, element);
                }
            }
            Kind::Object(_) => {
                if wire != 2 {
                    return Err(ProtobufError::WireType { field: field.name.to_string(), found: wire });
                }
                let chunk = reader.chunk()?;
                if let Value::Object(map) = entry(out, &field.name, || Value::Object(Map::new())) {
                    decode_into(chunk, child, map, depth + 1)?;
                }
            }
            _ => {
                let value = decode_value(&mut reader, wire, child, &field.name, depth)?;
                match value {
                    Some(value) if field.pointer || field.always || !is_zero(&value) => {
                        out.insert(field.name.to_string(), value);
                    }
                    _ => {}
                }
            }
        }
    }
    Ok(())
}

fn entry<'a>(out: &'a mut Map<String, Value>, name: &str, make: impl FnOnce() -> Value) -> &'a mut Value {
    if !out.contains_key(name) {
        out.insert(name.to_owned(), make());
    }
    &mut out[name]
}

fn decode_elements(
    reader: &mut Reader<'_>,
    wire: u8,
    items: Node<'_>,
    field: &str,
    elements: &mut Vec<Value>,
    depth: usize,
) -> Result<(), ProtobufError> {
    let numeric = matches!(items.kind(), Kind::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool));
    if numeric && wire == 2 {
        let mut packed = Reader { bytes: reader.chunk()? };
        while !packed.bytes.is_empty() {
            elements.extend(decode_value(&mut packed, 0, items, field, depth)?);
        }
        return Ok(());
    }
    elements.push(decode_value(reader, wire, items, field, depth)?.unwrap_or(Value::Null));
    Ok(())
}

fn decode_entry(
    bytes: &[u8],
    value: Node<'_>,
    field: &str,
    depth: usize,
) -> Result<(String, Value), ProtobufError> {
    let mut reader = Reader { bytes };
    let mut key = String::new();
    let mut element = None;
    while let Some((tag, wire)) = reader.key()? {
        match tag {
            1 if wire == 2 => key = reader.text(field)?.to_owned(),
            2 => element = decode_value(&mut reader, wire, value, field, depth)?,
            _ => reader.skip(wire)?,
        }
    }
    let element = element.unwrap_or_else(|| match value.kind() {
        Kind::Scalar(Scalar::Quantity) => Value::from("0"),
        Kind::Scalar(Scalar::Int32 | Scalar::Int64) => Value::from(0),
        Kind::Scalar(Scalar::Bool) => Value::from(false),
        Kind::Object(_) | Kind::Map { .. } => Value::Object(Map::new()),
        Kind::List(_) => Value::Array(Vec::new()),
        _ => Value::from(""),
    });
    Ok((key, element))
}

/// One value of any type. `None` is a zero time.
fn decode_value(
    reader: &mut Reader<'_>,
    wire: u8,
    node: Node<'_>,
    field: &str,
    depth: usize,
) -> Result<Option<Value>, ProtobufError> {
    let expect = |wanted: u8| {
        if wire == wanted {
            Ok(())
        } else {
            Err(ProtobufError::WireType { field: field.to_owned(), found: wire })
        }
    };
    let json = |bytes: &[u8]| -> Result<Option<Value>, ProtobufError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(bytes).map(Some).map_err(|_| ProtobufError::Json(field.to_owned()))
    };
    Ok(match node.kind() {
        Kind::Scalar(Scalar::Int32 | Scalar::Int64) => {
            expect(0)?;
            Some(Value::from(reader.varint()? as i64))
        }
        Kind::Scalar(Scalar::Bool) => {
            expect(0)?;
            Some(Value::Bool(reader.varint()? != 0))
        }
        Kind::Scalar(Scalar::Float) => {
            expect(1)?;
            let mut bits = [0; 8];
            bits.copy_from_slice(reader.fixed(8)?);
            let float = f64::from_le_bytes(bits);
            // Whole numbers print without a fraction, as Go does.
            if float.fract() == 0.0 && float.abs() < 1e15 {
                Some(Value::from(float as i64))
            } else {
                Number::from_f64(float).map(Value::Number)
            }
        }
        Kind::Scalar(Scalar::String) => {
            expect(2)?;
            Some(Value::String(reader.text(field)?.to_owned()))
        }
        Kind::Scalar(Scalar::Bytes) => {
            expect(2)?;
            Some(Value::String(STANDARD.encode(reader.chunk()?)))
        }
        Kind::Scalar(Scalar::Quantity) => {
            expect(2)?;
            let mut inner = Reader { bytes: reader.chunk()? };
            let mut text = "0";
            while let Some((tag, wire)) = inner.key()? {
                match (tag, wire) {
                    (1, 2) => text = inner.text(field)?,
                    _ => inner.skip(wire)?,
                }
            }
            let text = if text.is_empty() { "0" } else { text };
            Some(Value::String(quantity::canonical(text)?.unwrap_or_else(|| text.to_owned())))
        }
        Kind::Scalar(Scalar::IntOrString) => {
            expect(2)?;
            let mut inner = Reader { bytes: reader.chunk()? };
            let (mut kind, mut number, mut text) = (0, 0, "");
            while let Some((tag, wire)) = inner.key()? {
                match (tag, wire) {
                    (1, 0) => kind = inner.varint()?,
                    (2, 0) => number = inner.varint()? as i64,
                    (3, 2) => text = inner.text(field)?,
                    _ => inner.skip(wire)?,
                }
            }
            Some(if kind == 1 { text.into() } else { number.into() })
        }
        Kind::Scalar(kind @ (Scalar::Time | Scalar::MicroTime)) => {
            expect(2)?;
            let chunk = reader.chunk()?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let mut inner = Reader { bytes: chunk };
            let (mut seconds, mut nanos) = (0i64, 0i32);
            while let Some((tag, wire)) = inner.key()? {
                match (tag, wire) {
                    (1, 0) => seconds = inner.varint()? as i64,
                    (2, 0) => nanos = inner.varint()? as i32,
                    _ => inner.skip(wire)?,
                }
            }
            let print = if *kind == Scalar::Time { time::seconds } else { time::micros };
            jiff::Timestamp::new(seconds, nanos).ok().map(|at| print(at).into())
        }
        Kind::Scalar(Scalar::Duration) => {
            expect(2)?;
            let mut inner = Reader { bytes: reader.chunk()? };
            let mut nanos = 0;
            while let Some((tag, wire)) = inner.key()? {
                match (tag, wire) {
                    (1, 0) => nanos = inner.varint()? as i64,
                    _ => inner.skip(wire)?,
                }
            }
            Some(time::format_duration(nanos).into())
        }
        Kind::Opaque(_) => {
            expect(2)?;
            let mut inner = Reader { bytes: reader.chunk()? };
            let mut raw: &[u8] = &[];
            while let Some((tag, wire)) = inner.key()? {
                match (tag, wire) {
                    (1, 2) => raw = inner.chunk()?,
                    _ => inner.skip(wire)?,
                }
            }
            json(raw)?
        }
        Kind::List(list) => {
            expect(2)?;
            Some(Value::Array(decode_wrapped(reader.chunk()?, node, list, field, depth)?))
        }
        Kind::Object(_) => {
            expect(2)?;
            let mut map = Map::new();
            decode_into(reader.chunk()?, node, &mut map, depth + 1)?;
            Some(Value::Object(map))
        }
        Kind::Map { .. } => {
            reader.skip(wire)?;
            None
        }
        Kind::SchemaOr(or, schema) => {
            expect(2)?;
            Some(decode_schema_or(reader.chunk()?, *or, node.at(*schema), field, depth)?)
        }
    })
}

fn decode_wrapped(
    bytes: &[u8],
    node: Node<'_>,
    list: &List,
    field: &str,
    depth: usize,
) -> Result<Vec<Value>, ProtobufError> {
    let mut inner = Reader { bytes };
    let mut out = Vec::new();
    while let Some((tag, wire)) = inner.key()? {
        match tag {
            1 => decode_elements(&mut inner, wire, node.at(list.items), field, &mut out, depth)?,
            _ => inner.skip(wire)?,
        }
    }
    Ok(out)
}

fn decode_schema_or(
    bytes: &[u8],
    or: SchemaOr,
    schema: Node<'_>,
    field: &str,
    depth: usize,
) -> Result<Value, ProtobufError> {
    let schema_tag = if or == SchemaOr::Bool { 2 } else { 1 };
    let mut reader = Reader { bytes };
    let mut found: Option<Value> = None;
    let mut list: Vec<Value> = Vec::new();
    let mut allows = false;
    while let Some((tag, wire)) = reader.key()? {
        if tag == schema_tag && wire == 2 {
            let mut map = Map::new();
            decode_into(reader.chunk()?, schema, &mut map, depth + 1)?;
            found = Some(Value::Object(map));
        } else if or == SchemaOr::Bool && tag == 1 && wire == 0 {
            allows = reader.varint()? != 0;
        } else if tag == 2 && wire == 2 {
            match or {
                SchemaOr::Array => {
                    let mut map = Map::new();
                    decode_into(reader.chunk()?, schema, &mut map, depth + 1)?;
                    list.push(Value::Object(map));
                }
                _ => list.push(reader.text(field)?.into()),
            }
        } else {
            reader.skip(wire)?;
        }
    }
    Ok(match (or, found) {
        (_, Some(value)) => value,
        (SchemaOr::Bool, None) => Value::Bool(allows),
        (_, None) => Value::Array(list),
    })
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn key(out: &mut Vec<u8>, tag: u16, wire: u8) {
    varint(out, u64::from(tag) << 3 | u64::from(wire));
}

fn chunk(out: &mut Vec<u8>, tag: u16, bytes: &[u8]) {
    key(out, tag, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a nested message in place: one byte is kept for the length, and more are made when they are needed.
fn message(out: &mut Vec<u8>, tag: u16, write: impl FnOnce(&mut Vec<u8>)) {
    key(out, tag, 2);
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(5);
    varint(&mut prefix, length as u64);
    out.splice(at..=at, prefix);
}

fn encode_object(out: &mut Vec<u8>, map: &Map<String, Value>, node: Node<'_>) {
    encode_level(out, map, node, 0);
}

/// What a message has beside repeated fields.
enum Part<'a> {
    Field(&'a Field),
    Inline(u8),
}

/// One message, with its fields in the order of their tags. As Go's generated code does, what is no pointer is written
/// even if it is zero.
fn encode_level(out: &mut Vec<u8>, map: &Map<String, Value>, node: Node<'_>, via: u8) {
    let Some(object) = node.object() else { return };
    let fields = node.fields().iter().filter(|field| field.tag != 0 && field.via == via);
    let mut parts: Vec<(u16, Part<'_>)> = fields.map(|field| (field.tag, Part::Field(field))).collect();
    let inlines = object.inlines.iter().enumerate().filter(|(_, inline)| inline.via == via);
    parts.extend(inlines.map(|(index, inline)| (inline.tag, Part::Inline(index as u8 + 1))));
    parts.sort_unstable_by_key(|(tag, _)| *tag);
    for (tag, part) in parts {
        match part {
            Part::Inline(index) => message(out, tag, |out| encode_level(out, map, node, index)),
            Part::Field(field) => match map.get(field.name.as_ref()) {
                None | Some(Value::Null) => encode_zero(out, field, node.at(field.node)),
                Some(value) => encode_field(out, tag, value, node.at(field.node)),
            },
        }
    }
}

/// The zero value of a field that is no pointer.
fn encode_zero(out: &mut Vec<u8>, field: &Field, node: Node<'_>) {
    if field.pointer {
        return;
    }
    match node.kind() {
        Kind::Scalar(Scalar::Bytes | Scalar::Duration) => {}
        Kind::Scalar(Scalar::Time | Scalar::MicroTime) => chunk(out, field.tag, b""),
        Kind::Scalar(scalar) => encode_scalar(out, field.tag, &scalar.zero(), *scalar),
        Kind::Object(_) if field.always => {
            message(out, field.tag, |out| encode_object(out, &Map::new(), node))
        }
        Kind::Opaque(Opaque::RawExtension | Opaque::Json) if field.always => chunk(out, field.tag, b""),
        _ => {}
    }
}

fn encode_field(out: &mut Vec<u8>, tag: u16, value: &Value, node: Node<'_>) {
    if value.is_null() {
        return;
    }
    match (node.kind(), value) {
        (Kind::List(list), Value::Array(elements)) if list.wrapped => {
            message(out, tag, |out| {
                for element in elements {
                    encode_field(out, 1, element, node.at(list.items));
                }
            });
        }
        (Kind::List(list), Value::Array(elements)) => {
            for element in elements {
                encode_field(out, tag, element, node.at(list.items));
            }
        }
        (Kind::Map { value: inner, .. }, Value::Object(map)) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by_key(|(name, _)| *name);
            for (name, element) in entries {
                message(out, tag, |out| {
                    chunk(out, 1, name.as_bytes());
                    encode_field(out, 2, element, node.at(*inner));
                });
            }
        }
        (Kind::Object(_), Value::Object(map)) => message(out, tag, |out| encode_object(out, map, node)),
        (Kind::Opaque(Opaque::Any), _) => {}
        (Kind::Opaque(_), value) => {
            let text = value.to_string();
            message(out, tag, |out| chunk(out, 1, text.as_bytes()));
        }
        (Kind::SchemaOr(or, schema), value) => encode_schema_or(out, tag, value, *or, node.at(*schema)),
        (Kind::Scalar(scalar), value) => encode_scalar(out, tag, value, *scalar),
        _ => {}
    }
}

fn encode_schema_or(out: &mut Vec<u8>, tag: u16, value: &Value, or: SchemaOr, schema: Node<'_>) {
    let schema_tag = if or == SchemaOr::Bool { 2 } else { 1 };
    message(out, tag, |out| match value {
        Value::Object(map) => {
            if or == SchemaOr::Bool {
                key(out, 1, 0);
                out.push(1);
            }
            message(out, schema_tag, |out| encode_object(out, map, schema));
        }
        Value::Bool(allows) => {
            key(out, 1, 0);
            out.push(u8::from(*allows));
        }
        Value::Array(list) => {
            for element in list {
                match element {
                    Value::Object(map) => message(out, 2, |out| encode_object(out, map, schema)),
                    Value::String(text) => chunk(out, 2, text.as_bytes()),
                    _ => {}
                }
            }
        }
        _ => {}
    });
}

fn encode_scalar(out: &mut Vec<u8>, tag: u16, value: &Value, scalar: Scalar) {
    match (scalar, value) {
        (Scalar::String, Value::String(text)) => chunk(out, tag, text.as_bytes()),
        (Scalar::Int32 | Scalar::Int64, Value::Number(number)) => {
            key(out, tag, 0);
            varint(out, number.as_i64().unwrap_or(0) as u64);
        }
        (Scalar::Bool, Value::Bool(value)) => {
            key(out, tag, 0);
            out.push(u8::from(*value));
        }
        (Scalar::Float, Value::Number(number)) => {
            key(out, tag, 1);
            out.extend_from_slice(&number.as_f64().unwrap_or(0.0).to_le_bytes());
        }
        (Scalar::Bytes, Value::String(text)) => {
            // Not base64: refused by decoding of JSON; empty is the mild answer for what is already stored.
            chunk(out, tag, &STANDARD.decode(text).unwrap_or_default());
        }
        (Scalar::Quantity, Value::String(text)) => message(out, tag, |out| chunk(out, 1, text.as_bytes())),
        (Scalar::Quantity, Value::Number(number)) => {
            message(out, tag, |out| chunk(out, 1, number.to_string().as_bytes()));
        }
        (Scalar::IntOrString, Value::String(text)) => message(out, tag, |out| {
            key(out, 1, 0);
            out.push(1);
            key(out, 2, 0);
            out.push(0);
            chunk(out, 3, text.as_bytes());
        }),
        (Scalar::IntOrString, Value::Number(number)) => message(out, tag, |out| {
            key(out, 1, 0);
            out.push(0);
            key(out, 2, 0);
            varint(out, number.as_i64().unwrap_or(0) as u64);
            chunk(out, 3, b"");
        }),
        (Scalar::Time | Scalar::MicroTime, Value::String(text)) => {
            if let Some(at) = time::parse(text) {
                message(out, tag, |out| {
                    key(out, 1, 0);
                    let floor = at.as_nanosecond().div_euclid(1_000_000_000);
                    varint(out, floor as i64 as u64);
                    key(out, 2, 0);
                    varint(out, at.as_nanosecond().rem_euclid(1_000_000_000) as u64);
                });
            }
        }
        (Scalar::Duration, Value::String(text)) => {
            if let Some(nanos) = time::parse_duration(text) {
                message(out, tag, |out| {
                    key(out, 1, 0);
                    varint(out, nanos as u64);
                });
            }
        }
        _ => {}
    }
}
