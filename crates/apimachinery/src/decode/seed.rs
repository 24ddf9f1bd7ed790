//! The visitor: what a parser finds, taken as the schema says.

use std::{borrow::Cow, fmt};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Context, MAX_DEPTH, Step};
use crate::{
    golang, quantity,
    schema::{Kind, Node, Scalar, Schema, SchemaOr},
    time,
};

/// Decodes one value of one type. Yields `None` for null.
pub(super) struct Seed<'c, 'a> {
    pub(super) context: &'c mut Context<'a>,
    pub(super) node: Node<'a>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Option<Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Seed<'_, '_> {
    fn refuse<E: de::Error>(self, found: &str) -> E {
        // Go reads this one by hand, and tells so.
        if let Kind::SchemaOr(SchemaOr::Bool, _) = self.node.kind() {
            return E::custom(self.context.fail("boolean or JSON schema expected".into()));
        }
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
            Kind::Scalar(Scalar::Bytes) if STANDARD.decode(text.as_bytes()).is_ok() => Ok(None),
            Kind::Scalar(Scalar::Bytes) => match golang::base64(&text) {
                Ok(bytes) => Ok(Some(STANDARD.encode(bytes))),
                Err(at) => Err(format!("illegal base64 data at input byte {at}")),
            },
            Kind::Scalar(Scalar::Quantity) => quantity::canonical(&text).map_err(|err| err.to_string()),
            Kind::Scalar(Scalar::Time) => time::canonical_seconds(&text),
            Kind::Scalar(Scalar::MicroTime) => time::canonical_micros(&text),
            Kind::Scalar(Scalar::Duration) => match time::parse_duration(&text) {
                Some(nanos) => Ok(Some(time::format_duration(nanos))),
                None => Err(format!("time: invalid duration {text:?}")),
            },
            // Neither a schema nor a list of them: Go takes it for nothing.
            Kind::SchemaOr(SchemaOr::Array, _) => return Ok(None),
            // The same for one that stands in a map, and stays there.
            Kind::SchemaOr(SchemaOr::Strings, _) => return Ok(Some(Value::Object(serde_json::Map::new()))),
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
            // Go reads these by hand, and does not look for fields that it does not know.
            Kind::SchemaOr(_, schema) => {
                let notes = seed.context.notes.len();
                let object = Seed { node: node.at(*schema), context: &mut *seed.context }.object(map)?;
                seed.context.notes.truncate(notes);
                object
            }
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
pub(super) fn null_element(node: Node<'_>, custom: bool) -> Value {
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
        while let Some(key) = map.next_key::<String>()? {
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
                    let kept_null = || context.custom && keeps_null(node.at(field.node));
                    let value = value.or_else(|| kept_null().then_some(Value::Null));
                    match value.filter(|value| !context.leaves_out(field, node, value)) {
                        Some(value) => drop(out.insert(field.name.to_string(), value)),
                        // The last value counts, also if it is not written.
                        None if twice => drop(out.shift_remove(field.name.as_ref())),
                        None => {}
                    }
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
}
