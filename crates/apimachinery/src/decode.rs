//! From bytes to objects: one pass that parses, checks types, prunes what the schema does not know, finds
//! duplicates, and normalises as a round trip through upstream's Go types would.
//!
//! JSON, YAML (which is made JSON first) and already parsed values go through the same visitor, driven by the
//! schema. Values of CRDs keep wrong types (those are reported by validation, with a field path) and zero values.

mod seed;
mod syntax;

use std::{borrow::Cow, fmt::Write as _};

use serde::de::DeserializeSeed;
use serde_json::Value;
use thiserror::Error;

use crate::{
    meta::same,
    schema::{Field, Kind, Node, Scalar, Schema, is_zero},
    yaml,
};

use seed::{Seed, null_element};

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
    /// Not JSON.
    #[error("{0}")]
    Syntax(String),
    /// Not YAML, or nothing that JSON could say.
    #[error("{0}")]
    Yaml(String),
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
    if let (Err(err), Some(problem)) = (&result, &mut context.problem) {
        number_as_written(problem, bytes, err.line(), err.column());
    }
    context.finish(result.map_err(|err| json_error(bytes, &err)))
}

/// Decodes YAML with options: it is made JSON first, and read as that.
pub fn yaml_with(bytes: &[u8], node: Node<'_>, options: Options) -> Result<Decoded, DecodeError> {
    let made = yaml::to_json(bytes).map_err(DecodeError::Yaml)?;
    let mut repeated = made.repeated;
    if options.validation == FieldValidation::Ignore {
        repeated.clear();
    }
    let strict = options.validation == FieldValidation::Strict;
    if strict && !repeated.is_empty() {
        repeated = vec![format!("yaml: unmarshal errors:\n  {}", repeated.join("\n  "))];
    }
    // Repetitions are told before anything else.
    match json_with(made.text.as_bytes(), node, options) {
        Ok(_) if strict && !repeated.is_empty() => Err(DecodeError::Strict(repeated)),
        Ok(decoded) => {
            Ok(Decoded { warnings: repeated.into_iter().chain(decoded.warnings).collect(), ..decoded })
        }
        Err(DecodeError::Strict(notes)) => Err(DecodeError::Strict([repeated, notes].concat())),
        Err(other) => Err(other),
    }
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

/// A number that no integer holds is told as it stands in the text, not as it was read.
fn number_as_written(problem: &mut String, bytes: &[u8], line: usize, column: usize) {
    const HEAD: &str = "json: cannot unmarshal number ";
    let Some((shown, rest)) = problem.strip_prefix(HEAD).and_then(|text| text.split_once(' ')) else {
        return;
    };
    let before: usize =
        bytes.split(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(|l| l.len() + 1).sum();
    let end = (before + column).min(bytes.len());
    let is_part = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
    let len = bytes[..end].iter().rev().take_while(|byte| is_part(byte)).count();
    let written = String::from_utf8_lossy(&bytes[end - len..end]);
    if written.parse::<f64>().ok() == shown.parse().ok() && len > 0 {
        *problem = format!("{HEAD}{written} {rest}");
    }
}

fn json_error(bytes: &[u8], err: &serde_json::Error) -> String {
    syntax::complaint(bytes).unwrap_or_else(|| format!("invalid JSON: {err}"))
}

/// A step of the path to where decoding is.
enum Step<'a> {
    Field(Cow<'a, str>),
    /// A key of a map, which Go's complaints leave out.
    Key(Cow<'a, str>),
    Index(usize),
}

struct Context<'a> {
    root: Node<'a>,
    options: Options,
    custom: bool,
    path: Vec<Step<'a>>,
    /// Go's name of the struct that holds the field being decoded.
    owner: &'a str,
    notes: Vec<String>,
    problem: Option<String>,
    /// Below an opaque value nothing is unknown, only duplicates are looked for.
    depth: usize,
}

impl<'a> Context<'a> {
    fn new(node: Node<'a>, options: Options) -> Self {
        Self {
            root: node,
            options,
            custom: node.arena().custom,
            path: Vec::new(),
            owner: "",
            notes: Vec::new(),
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
        // Who sends no owners at all wants them forgotten.
        if field.name == "managedFields" && value.is_array() {
            return false;
        }
        // The metadata of a custom object is a Go type too.
        let custom = self.custom && node.object().is_none_or(|object| object.definition.is_empty());
        self.options.normalise && !custom && !field.pointer && !by_value_struct && is_zero(value)
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
        if self.options.validation != FieldValidation::Ignore && self.notes.len() < 100 {
            let text = format!("duplicate field \"{}\"", self.path_to(name));
            self.notes.push(text);
        }
    }

    /// The fields down to where decoding is, with the structs that Go embeds between them, and what Go calls the type of
    /// the last one if the schema does not say it.
    fn go_path(&self) -> (Vec<&str>, Option<String>) {
        let (mut node, mut fields, mut named) = (Some(self.root), Vec::new(), None::<String>);
        for step in &self.path {
            match step {
                Step::Field(name) => {
                    let definition =
                        node.and_then(|node| node.object()).map_or("", |object| &object.definition);
                    let (own, embedded) = self.root.arena().go_field(definition, name);
                    fields.extend(embedded);
                    fields.push(name.as_ref());
                    named = own.map(str::to_owned);
                    node = node.and_then(|node| node.child(name));
                }
                Step::Key(name) => {
                    named =
                        named.and_then(|own| Some(own.strip_prefix("map[")?.split_once(']')?.1.to_owned()));
                    node = node.and_then(|node| node.child(name));
                }
                Step::Index(_) => {
                    named = named.and_then(|own| Some(own.strip_prefix("[]")?.to_owned()));
                    node = node.and_then(|node| match node.kind() {
                        Kind::List(list) => Some(node.at(list.items)),
                        _ => None,
                    });
                }
            }
        }
        (fields, named)
    }

    /// Go's complaint about a value of the wrong type.
    fn mismatch(&mut self, found: &str, node: Node<'_>) -> String {
        let (fields, named) = self.go_path();
        let kind = named.unwrap_or_else(|| match node.kind() {
            // Times read a text first, and ports a number.
            Kind::Scalar(Scalar::Time | Scalar::MicroTime) => "string".into(),
            Kind::Scalar(Scalar::IntOrString) if found.starts_with("number") => "int32".into(),
            _ => node.go_type(),
        });
        let text = if self.options.words == Words::Restoring {
            not_restored(found, node)
        } else if fields.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {}", node.go_type())
        } else {
            format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {}",
                self.owner,
                fields.join("."),
                kind
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
        // In the order of the text.
        let notes = self.notes;
        let strict = self.options.validation == FieldValidation::Strict;
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
            // In one go, since they come in the map's order: each removal by itself would move up everything behind it.
            let mut gone = gone.iter().peekable();
            map.retain(|name, _| gone.next_if(|next| *next == name).is_none());
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

#[cfg(test)]
mod tests;
