//! From bytes to objects: one pass that parses, checks types, prunes what the schema does not know, finds
//! duplicates, and normalises as a round trip through upstream's Go types would.
//!
//! JSON, YAML and already parsed values go through the same visitor, driven by the schema. Values of CRDs keep
//! wrong types (those are reported by validation, with a field path) and zero values.

use std::{borrow::Cow, fmt, fmt::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use thiserror::Error;

use crate::{
    meta::same,
    quantity,
    schema::{Field, Kind, Node, Scalar, Schema, SchemaOr, is_zero},
    time,
};

/// The deepest nesting that is accepted.
pub const MAX_DEPTH: usize = 128;
/// The largest request body that upstream takes.
pub const MAX_BYTES: usize = 3 * 1024 * 1024;

/// What to do with unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and say so.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

impl FieldValidation {
    /// The value of the `fieldValidation` query parameter.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// How to decode.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Unknown and duplicate fields.
    pub validation: FieldValidation,
    /// Drop zero values and fill in the fields that Go always writes. Off for apply configurations, where
    /// what was sent is what is owned.
    pub normalise: bool,
    /// How a value of the wrong type is told.
    pub words: Words,
}

impl Options {
    /// Normalising, with the given field validation.
    pub fn new(validation: FieldValidation) -> Self {
        Self { validation, normalise: true, words: Words::Parsing }
    }

    /// What was sent stays as it is.
    pub fn verbatim(validation: FieldValidation) -> Self {
        Self { normalise: false, ..Self::new(validation) }
    }
}

/// Which of upstream's two readers complains about a value of the wrong type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// The one of JSON text.
    Parsing,
    /// The one that makes an object of a map again, after a strategic merge patch.
    Restoring,
}

/// A decoded object.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The object.
    pub value: Value,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// Why bytes are not an object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Not JSON or not YAML.
    #[error("{0}")]
    Syntax(String),
    /// A value of the wrong type, in Go's words.
    #[error("{0}")]
    Type(String),
    /// Unknown or duplicate fields under strict validation.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
}

/// Decodes JSON.
pub fn json(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    json_with(bytes, schema.node(), Options::new(validation))
}

/// Decodes YAML (or JSON, which is YAML).
pub fn yaml(bytes: &[u8], schema: &Schema, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    yaml_with(bytes, schema.node(), Options::new(validation))
}

/// Checks and normalises a value that is already parsed, for instance the result of a patch.
pub fn value(value: Value, schema: &Schema, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    value_with(value, schema.node(), Options::new(validation))
}

/// Decodes JSON with options.
pub fn json_with(bytes: &[u8], node: Node<'_>, options: Options) -> Result<Decoded, DecodeError> {
    let mut context = Context::new(node, options);
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let result = Seed { context: &mut context, node }.deserialize(&mut parser);
    let result = result.and_then(|value| parser.end().map(|()| value));
    context.finish(result.map_err(|err| json_error(bytes, &err)))
}

/// Decodes YAML with options.
pub fn yaml_with(bytes: &[u8], node: Node<'_>, options: Options) -> Result<Decoded, DecodeError> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| DecodeError::Syntax("error converting YAML to JSON: yaml: invalid UTF-8".into()))?;
    if is_too_deep(bytes) {
        return Err(DecodeError::Syntax("error converting YAML to JSON: yaml: exceeded max depth".into()));
    }
    let mut context = Context::new(node, options);
    let result =
        Seed { context: &mut context, node }.deserialize(serde_yaml_ng::Deserializer::from_str(text));
    let duplicates = context.duplicates.len();
    context.duplicate_lines = (0..duplicates).filter_map(|skip| duplicate_line(text, skip)).collect();
    context.finish(result.map_err(|err| format!("error converting YAML to JSON: yaml: {err}")))
}

/// The complaint of upstream's reader of maps.
fn not_restored(found: &str, node: Node<'_>) -> String {
    let found = match found {
        "object" => "map",
        "array" => "slice",
        number if number.starts_with("number") => {
            if number.contains('.') {
                "float64"
            } else {
                "int64"
            }
        }
        other => other,
    };
    match node.kind() {
        Kind::Map { .. } => format!("cannot restore map from {found}"),
        Kind::List(_) | Kind::Scalar(Scalar::Bytes) => format!("cannot restore slice from {found}"),
        Kind::Object(_) => format!("cannot restore struct from: {found}"),
        _ => {
            let found = match found {
                "map" => "map[string]interface {}",
                "slice" => "[]interface {}",
                scalar => scalar,
            };
            format!("cannot convert {found} to {}", node.go_type())
        }
    }
}

/// Whether lists and maps are opened one within the other so often that only an attacker writes them. The parser's
/// time grows with the square of the depth, long before it looks at any limit. Text that merely contains brackets
/// is counted too; none has ten thousand more of the opening ones.
fn is_too_deep(bytes: &[u8]) -> bool {
    const MOST: usize = 10_000;
    let (mut open, mut marks) = (0_usize, 0_usize);
    let mut previous = b' ';
    for &byte in bytes {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        // `- - - x` opens a list with every dash; a ruler of dashes does not.
        match byte {
            b' ' if matches!(previous, b'-' | b'?') => marks += 1,
            b' ' | b'-' | b'?' => {}
            _ => marks = 0,
        }
        if open > MOST || marks > MOST {
            return true;
        }
        previous = byte;
    }
    false
}

/// Checks and normalises a parsed value with options.
pub fn value_with(value: Value, node: Node<'_>, options: Options) -> Result<Decoded, DecodeError> {
    let mut context = Context::new(node, options);
    let result = Seed { context: &mut context, node }.deserialize(value);
    context.finish(result.map_err(|err| err.to_string()))
}

/// Checks and normalises an object that was made from one that is in order, for instance by a patch: only what differs from
/// that one is looked at. Objects of CRDs are looked at as a whole, since their schema may have changed.
pub fn changed(
    value: Value,
    from: &Value,
    schema: &Schema,
    options: Options,
) -> Result<Decoded, DecodeError> {
    let node = schema.node();
    if node.arena().custom || !options.normalise {
        return value_with(value, node, options);
    }
    let mut context = Context::new(node, options);
    let mut value = value;
    let result = changed_part(&mut value, Some(from), node, &mut context);
    context.finish(result.map(|known| known.then_some(value)).map_err(|err| err.to_string()))
}

/// Parses YAML or JSON into a value without any schema.
pub fn parse_yaml(bytes: &[u8]) -> Result<Value, DecodeError> {
    let schema = Schema::any();
    yaml_with(bytes, schema.node(), Options::verbatim(FieldValidation::Ignore)).map(|decoded| decoded.value)
}

fn json_error(bytes: &[u8], err: &serde_json::Error) -> String {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return "unexpected end of JSON input".into();
    }
    match err.classify() {
        serde_json::error::Category::Eof => "unexpected end of JSON input".into(),
        _ => format!("invalid JSON: {err}"),
    }
}

/// A step of the path to where decoding is.
enum Step<'a> {
    Field(Cow<'a, str>),
    /// A key of a map, which Go's complaints leave out.
    Key(Cow<'a, str>),
    Index(usize),
}

struct Context<'a> {
    options: Options,
    custom: bool,
    path: Vec<Step<'a>>,
    /// Go's name of the struct that holds the field being decoded.
    owner: &'a str,
    notes: Vec<String>,
    duplicates: Vec<String>,
    duplicate_lines: Vec<String>,
    problem: Option<String>,
    /// Below an opaque value nothing is unknown, only duplicates are looked for.
    depth: usize,
}

impl<'a> Context<'a> {
    fn new(node: Node<'a>, options: Options) -> Self {
        Self {
            options,
            custom: node.arena().custom,
            path: Vec::new(),
            owner: "",
            notes: Vec::new(),
            duplicates: Vec::new(),
            duplicate_lines: Vec::new(),
            problem: None,
            depth: 0,
        }
    }

    /// Whether Go would not write a field of a struct with this value.
    fn leaves_out(&self, field: &Field, node: Node<'_>, value: &Value) -> bool {
        let by_value_struct = match node.at(field.node).kind() {
            Kind::Object(_) | Kind::Opaque(_) => true,
            Kind::List(_) | Kind::Map { .. } => false,
            _ => field.always,
        };
        self.options.normalise && !self.custom && !field.pointer && !by_value_struct && is_zero(value)
    }

    fn path_to(&self, last: &str) -> String {
        let mut out = String::new();
        for step in &self.path {
            match step {
                Step::Field(name) | Step::Key(name) if out.is_empty() => out.push_str(name),
                Step::Field(name) | Step::Key(name) => {
                    out.push('.');
                    out.push_str(name);
                }
                Step::Index(index) => {
                    let _infallible = write!(out, "[{index}]");
                }
            }
        }
        if !last.is_empty() {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(last);
        }
        out
    }

    fn note_unknown(&mut self, name: &str) {
        if self.options.validation != FieldValidation::Ignore && self.notes.len() < 100 {
            let text = format!("unknown field \"{}\"", self.path_to(name));
            self.notes.push(text);
        }
    }

    fn note_duplicate(&mut self, name: &str) {
        if self.options.validation != FieldValidation::Ignore && self.duplicates.len() < 100 {
            let text = format!("duplicate field \"{}\"", self.path_to(name));
            self.duplicates.push(text.clone());
            self.notes.push(text);
        }
    }

    /// Go's complaint about a value of the wrong type.
    fn mismatch(&mut self, found: &str, node: Node<'_>) -> String {
        let fields: Vec<&str> = self
            .path
            .iter()
            .filter_map(|step| match step {
                Step::Field(name) => Some(name.as_ref()),
                Step::Key(_) | Step::Index(_) => None,
            })
            .collect();
        let text = if self.options.words == Words::Restoring {
            not_restored(found, node)
        } else if fields.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {}", node.go_type())
        } else {
            format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {}",
                self.owner,
                fields.join("."),
                node.go_type()
            )
        };
        self.problem.get_or_insert_with(|| text.clone());
        text
    }

    fn fail(&mut self, text: String) -> String {
        self.problem.get_or_insert_with(|| text.clone());
        text
    }

    fn finish(self, result: Result<Option<Value>, String>) -> Result<Decoded, DecodeError> {
        let value = match result {
            Ok(value) => value.unwrap_or(Value::Null),
            Err(text) => {
                return Err(match self.problem {
                    Some(problem) => DecodeError::Type(problem),
                    None => DecodeError::Syntax(text),
                });
            }
        };
        // In the order of the text; of YAML, repetitions are told first and by line.
        let mut notes = self.notes;
        let strict = self.options.validation == FieldValidation::Strict;
        if !self.duplicate_lines.is_empty() {
            notes.retain(|note| !self.duplicates.contains(note));
            let lines = if strict {
                vec![format!("yaml: unmarshal errors:\n  {}", self.duplicate_lines.join("\n  "))]
            } else {
                self.duplicate_lines
            };
            notes.splice(0..0, lines);
        }
        if strict && !notes.is_empty() {
            return Err(DecodeError::Strict(notes));
        }
        Ok(Decoded { value, warnings: notes })
    }
}

/// Brings one value in order where it differs from an earlier one. False for null.
fn changed_part<'a>(
    value: &mut Value,
    from: Option<&Value>,
    node: Node<'a>,
    context: &mut Context<'a>,
) -> Result<bool, serde_json::Error> {
    match (node.kind(), &mut *value, from) {
        (Kind::Object(object), Value::Object(map), Some(Value::Object(from)))
            if object.additional.is_none() && !object.preserve_unknown =>
        {
            let owner = std::mem::replace(&mut context.owner, &object.name);
            let mut gone: Vec<String> = Vec::new();
            for (name, value) in map.iter_mut() {
                let from = from.get(name);
                if from.is_some_and(|from| same(from, value)) {
                    continue;
                }
                let Some(field) = node.field(name) else {
                    context.note_unknown(name);
                    gone.push(name.clone());
                    continue;
                };
                context.path.push(Step::Field(Cow::Borrowed(field.name.as_ref())));
                let known = changed_part(value, from, node.at(field.node), context)?;
                context.path.pop();
                if !known || context.leaves_out(field, node, value) {
                    gone.push(name.clone());
                }
            }
            gone.iter().for_each(|name| drop(map.shift_remove(name)));
            node.add_zeroes(map, false);
            context.owner = owner;
        }
        (Kind::Map { value: below, .. }, Value::Object(map), Some(Value::Object(from))) => {
            for (key, value) in map.iter_mut() {
                let (from, below) = (from.get(key), node.at(*below));
                if from.is_some_and(|from| same(from, value)) {
                    continue;
                }
                context.path.push(Step::Key(Cow::Owned(key.clone())));
                if !changed_part(value, from, below, context)? {
                    *value = null_element(below, false);
                }
                context.path.pop();
            }
        }
        (Kind::List(list), Value::Array(items), Some(Value::Array(from))) => {
            for (index, value) in items.iter_mut().enumerate() {
                let (from, below) = (from.get(index), node.at(list.items));
                if from.is_some_and(|from| same(from, value)) {
                    continue;
                }
                context.path.push(Step::Index(index));
                if !changed_part(value, from, below, context)? {
                    *value = null_element(below, false);
                }
                context.path.pop();
            }
        }
        (_, value, _) => {
            context.depth = context.path.len();
            let decoded = Seed { context, node }.deserialize(value.take())?;
            let known = decoded.is_some();
            *value = decoded.unwrap_or_default();
            return Ok(known);
        }
    }
    Ok(true)
}

/// Decodes one value of one type. Yields `None` for null.
struct Seed<'c, 'a> {
    context: &'c mut Context<'a>,
    node: Node<'a>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Seed<'_, '_> {
    fn refuse<E: de::Error>(self, found: &str) -> E {
        E::custom(self.context.mismatch(found, self.node))
    }

    fn number<E: de::Error>(self, number: Number) -> Result<Option<Value>, E> {
        let custom = self.context.custom;
        match self.node.kind() {
            Kind::Scalar(Scalar::Int32 | Scalar::IntOrString) if !custom => match number.as_i64() {
                Some(n) if i32::try_from(n).is_ok() => Ok(Some(Value::Number(number))),
                _ => Err(self.refuse(&format!("number {number}"))),
            },
            Kind::Scalar(Scalar::Int64) if !custom => match number.as_i64() {
                Some(_) => Ok(Some(Value::Number(number))),
                None => Err(self.refuse(&format!("number {number}"))),
            },
            Kind::Scalar(Scalar::Quantity) if !custom => self.text(Cow::Owned(number.to_string())),
            Kind::Scalar(Scalar::Float) | Kind::Opaque(_) => Ok(Some(Value::Number(number))),
            _ if custom => Ok(Some(Value::Number(number))),
            _ => Err(self.refuse("number")),
        }
    }

    fn text<E: de::Error>(self, text: Cow<'_, str>) -> Result<Option<Value>, E> {
        let keep = |text: Cow<'_, str>| Ok(Some(Value::String(text.into_owned())));
        if self.context.custom {
            return keep(text);
        }
        let replaced = match self.node.kind() {
            Kind::Scalar(Scalar::String | Scalar::IntOrString) | Kind::Opaque(_) => Ok(None),
            Kind::Scalar(Scalar::Bytes) => match STANDARD.decode(text.as_bytes()) {
                Ok(_) => Ok(None),
                Err(
                    base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _),
                ) => Err(format!("illegal base64 data at input byte {at}")),
                Err(_) => Err(format!("illegal base64 data at input byte {}", text.len())),
            },
            Kind::Scalar(Scalar::Quantity) => quantity::canonical(&text).map_err(|err| err.to_string()),
            Kind::Scalar(Scalar::Time) => time::canonical_seconds(&text),
            Kind::Scalar(Scalar::MicroTime) => time::canonical_micros(&text),
            Kind::Scalar(Scalar::Duration) => match time::parse_duration(&text) {
                Some(nanos) => Ok(Some(time::format_duration(nanos))),
                None => Err(format!("time: invalid duration {text:?}")),
            },
            _ => return Err(self.refuse("string")),
        };
        match replaced {
            Ok(None) => keep(text),
            Ok(Some(text)) => Ok(Some(Value::String(text))),
            Err(problem) => Err(E::custom(self.context.fail(problem))),
        }
    }

    fn enter<E: de::Error>(&mut self) -> Result<(), E> {
        self.context.depth += 1;
        if self.context.depth > MAX_DEPTH {
            return Err(E::custom(self.context.fail(format!("exceeded max depth of {MAX_DEPTH}"))));
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.node.go_type())
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        match self.node.kind() {
            Kind::Scalar(Scalar::Bool) | Kind::Opaque(_) | Kind::SchemaOr(SchemaOr::Bool, _) => {
                Ok(Some(Value::Bool(value)))
            }
            _ if self.context.custom => Ok(Some(Value::Bool(value))),
            _ => Err(self.refuse("bool")),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        self.number(value.into())
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        match Number::from_f64(value) {
            Some(number) => self.number(number),
            None => Err(self.refuse("number")),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        self.text(Cow::Borrowed(value))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Self::Value, E> {
        self.text(Cow::Owned(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Self::Value, A::Error> {
        let items = match self.node.kind() {
            Kind::List(list) => self.node.at(list.items),
            Kind::SchemaOr(SchemaOr::Array, schema) => self.node.at(*schema),
            Kind::Opaque(_) | Kind::SchemaOr(SchemaOr::Strings, _) => self.node,
            _ if self.context.custom => self.node,
            _ => return Err(self.refuse("array")),
        };
        // Inside an opaque or mistyped value the node stays the same and accepts everything.
        let plain = matches!(self.node.kind(), Kind::SchemaOr(SchemaOr::Strings, _));
        self.enter()?;
        let mut out = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(64));
        loop {
            self.context.path.push(Step::Index(out.len()));
            let element = if plain {
                seq.next_element::<Value>()?.map(Some)
            } else {
                seq.next_element_seed(Seed { context: &mut *self.context, node: items })?
            };
            self.context.path.pop();
            match element {
                None => break,
                Some(Some(value)) => out.push(value),
                Some(None) => out.push(null_element(items, self.context.custom)),
            }
        }
        self.context.depth -= 1;
        Ok(Some(Value::Array(out)))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, map: A) -> Result<Self::Value, A::Error> {
        self.enter()?;
        let Seed { context, node } = self;
        let seed = Seed { context: &mut *context, node };
        let value = match node.kind() {
            Kind::Object(_) => seed.object(map)?,
            Kind::SchemaOr(_, schema) => Seed { node: node.at(*schema), ..seed }.object(map)?,
            Kind::Map { value, .. } => seed.free_map(map, node.at(*value))?,
            Kind::Opaque(_) => seed.free_map(map, node)?,
            _ if seed.context.custom => seed.free_map(map, node)?,
            _ => return Err(seed.refuse("object")),
        };
        context.depth -= 1;
        Ok(Some(Value::Object(value)))
    }
}

/// What null means as a list element or map value: Go's zero value; opaque values keep it.
fn null_element(node: Node<'_>, custom: bool) -> Value {
    if custom {
        return Value::Null;
    }
    match node.kind() {
        Kind::Object(_) | Kind::Map { .. } => Value::Object(Map::new()),
        Kind::List(_) => Value::Array(Vec::new()),
        Kind::Scalar(scalar) => scalar.zero(),
        Kind::Opaque(_) | Kind::SchemaOr(..) => Value::Null,
    }
}

impl<'a> Seed<'_, 'a> {
    fn free_map<'de, A: MapAccess<'de>>(
        self,
        mut map: A,
        value: Node<'a>,
    ) -> Result<Map<String, Value>, A::Error> {
        let mut out = Map::new();
        let opaque = matches!(value.kind(), Kind::Opaque(_)) || self.context.custom;
        while let Some(key) = map.next_key_seed(FreeKey)? {
            if !out.is_empty() && out.contains_key(key.as_str()) {
                self.context.note_duplicate(&key);
            }
            self.context.path.push(Step::Key(Cow::Owned(key)));
            let element = map.next_value_seed(Seed { context: &mut *self.context, node: value })?;
            let Some(Step::Key(key)) = self.context.path.pop() else { continue };
            let element = match element {
                Some(value) => value,
                None if opaque => Value::Null,
                None => null_element(value, false),
            };
            out.insert(key.into_owned(), element);
        }
        Ok(out)
    }

    fn object<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Map<String, Value>, A::Error> {
        let Seed { context, node } = self;
        let Kind::Object(object) = node.kind() else { return Ok(Map::new()) };
        let fields = node.fields();
        let owner = std::mem::replace(&mut context.owner, &object.name);
        // Most objects have more than three fields; a map that grows is made twice.
        let mut out = Map::with_capacity(if fields.len() > 3 { 7 } else { fields.len() });
        let mut seen: u128 = 0;
        while let Some(key) = map.next_key_seed(Key { node })? {
            match key {
                Found::Field(index) => {
                    let field = &fields[index];
                    let twice = if index < 128 {
                        let bit = 1u128 << index;
                        let twice = seen & bit != 0;
                        seen |= bit;
                        twice
                    } else {
                        out.contains_key(field.name.as_ref())
                    };
                    if twice {
                        context.note_duplicate(&field.name);
                    }
                    context.path.push(Step::Field(Cow::Borrowed(field.name.as_ref())));
                    let value =
                        map.next_value_seed(Seed { context: &mut *context, node: node.at(field.node) })?;
                    context.path.pop();
                    let value = match value {
                        Some(value) => value,
                        None if context.custom && keeps_null(node.at(field.node)) => Value::Null,
                        None => {
                            if twice {
                                out.shift_remove(field.name.as_ref());
                            }
                            continue;
                        }
                    };
                    if context.leaves_out(field, node, &value) {
                        continue;
                    }
                    out.insert(field.name.to_string(), value);
                }
                Found::Other(name) => {
                    let free = object.additional.map(|id| node.at(id));
                    if free.is_none() && !object.preserve_unknown {
                        context.note_unknown(&name);
                        map.next_value::<de::IgnoredAny>()?;
                        continue;
                    }
                    if out.contains_key(&name) {
                        context.note_duplicate(&name);
                    }
                    let value = match free {
                        Some(node) => {
                            context.path.push(Step::Field(Cow::Owned(name.clone())));
                            let value = map.next_value_seed(Seed { context: &mut *context, node })?;
                            context.path.pop();
                            value.unwrap_or(Value::Null)
                        }
                        None => {
                            // Kept as it is, but duplicates inside are still told.
                            context.path.push(Step::Field(Cow::Owned(name.clone())));
                            let value =
                                map.next_value_seed(Seed { context: &mut *context, node: any_node() })?;
                            context.path.pop();
                            value.unwrap_or(Value::Null)
                        }
                    };
                    out.insert(name, value);
                }
            }
        }
        if context.options.normalise && !context.custom {
            node.add_zeroes(&mut out, false);
        }
        context.owner = owner;
        Ok(out)
    }
}

fn any_node() -> Node<'static> {
    static ANY: std::sync::OnceLock<Schema> = std::sync::OnceLock::new();
    ANY.get_or_init(Schema::any).node()
}

fn keeps_null(node: Node<'_>) -> bool {
    matches!(node.kind(), Kind::Opaque(_))
        || node.rules().is_some_and(|rules| rules.nullable || rules.preserve)
}

/// A key of a struct: looked up without allocating when it is known.
struct Key<'a> {
    node: Node<'a>,
}

enum Found {
    Field(usize),
    Other(String),
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = Found;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = Found;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }
    fn visit_str<E: de::Error>(self, name: &str) -> Result<Found, E> {
        Ok(match self.node.field_index(name) {
            Some(index) => Found::Field(index),
            None => Found::Other(name.to_owned()),
        })
    }
    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Found, E> {
        self.visit_str(if value { "true" } else { "false" })
    }
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Found, E> {
        self.visit_str(&value.to_string())
    }
    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Found, E> {
        self.visit_str(&value.to_string())
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Found, E> {
        self.visit_str(&value.to_string())
    }
    fn visit_unit<E: de::Error>(self) -> Result<Found, E> {
        self.visit_str("null")
    }
}

/// A key of a map. YAML allows scalars of any type; they become text as in upstream.
struct FreeKey;

impl<'de> DeserializeSeed<'de> for FreeKey {
    type Value = String;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for FreeKey {
    type Value = String;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map key")
    }
    fn visit_str<E: de::Error>(self, key: &str) -> Result<String, E> {
        Ok(key.to_owned())
    }
    fn visit_string<E: de::Error>(self, key: String) -> Result<String, E> {
        Ok(key)
    }
    fn visit_bool<E: de::Error>(self, key: bool) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_i64<E: de::Error>(self, key: i64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_u64<E: de::Error>(self, key: u64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_f64<E: de::Error>(self, key: f64) -> Result<String, E> {
        Ok(key.to_string())
    }
    fn visit_unit<E: de::Error>(self) -> Result<String, E> {
        Ok("null".into())
    }
}

/// Upstream's text about the n-th duplicate key of a YAML document, with its line.
fn duplicate_line(text: &str, skip: usize) -> Option<String> {
    let left = std::cell::Cell::new(skip);
    let err =
        DuplicateFinder { left: &left }.deserialize(serde_yaml_ng::Deserializer::from_str(text)).err()?;
    let line = err.location()?.line();
    let message = err.to_string();
    let start = message.find('\u{1}')?;
    let end = start + 1 + message[start + 1..].find('\u{1}')?;
    Some(format!("line {line}: key {:?} already set in map", &message[start + 1..end]))
}

#[derive(Clone, Copy)]
struct DuplicateFinder<'c> {
    left: &'c std::cell::Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for DuplicateFinder<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DuplicateFinder<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = Vec::new();
        while map.next_key_seed(UniqueKey { seen: &mut seen, left: self.left })?.is_some() {
            map.next_value_seed(self)?;
        }
        Ok(())
    }
}

struct UniqueKey<'c> {
    seen: &'c mut Vec<String>,
    left: &'c std::cell::Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for UniqueKey<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for UniqueKey<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map key")
    }
    fn visit_str<E: de::Error>(self, key: &str) -> Result<(), E> {
        if self.seen.iter().any(|have| have == key) {
            if self.left.get() == 0 {
                return Err(E::custom(format!("\u{1}{key}\u{1}")));
            }
            self.left.set(self.left.get() - 1);
        } else {
            self.seen.push(key.to_owned());
        }
        Ok(())
    }
    fn visit_bool<E: de::Error>(self, key: bool) -> Result<(), E> {
        self.visit_str(if key { "true" } else { "false" })
    }
    fn visit_i64<E: de::Error>(self, key: i64) -> Result<(), E> {
        self.visit_str(&key.to_string())
    }
    fn visit_u64<E: de::Error>(self, key: u64) -> Result<(), E> {
        self.visit_str(&key.to_string())
    }
    fn visit_f64<E: de::Error>(self, key: f64) -> Result<(), E> {
        self.visit_str(&key.to_string())
    }
    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.visit_str("null")
    }
}
