//! Maps and objects.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use serde_json::Value as Json;

use super::{Text, Val};
use crate::constant::ConstantMap;
use crate::error::Error;
use crate::types::Type;

/// From so many entries on, keys are not looked for one by one.
const MANY: usize = 16;

/// A map or an object.
#[derive(Clone)]
pub enum Map<'a> {
    /// JSON with its type.
    Json(&'a serde_json::Map<String, Json>, &'a Type),
    /// Written in the source.
    Constant(&'a ConstantMap),
    /// Made by the expression.
    Entries(Rc<Entries<'a>>),
    /// An object literal: type name and fields.
    Object(&'a str, Rc<Entries<'a>>),
}

/// What is in a map that an expression made.
pub struct Entries<'a> {
    list: Vec<(Val<'a>, Val<'a>)>,
    /// Where a key is; only if there are many.
    places: Option<HashMap<Key<'a>, usize>>,
    weight: u64,
}

/// A key of a map. Numbers of all types are the same key if they are the same number.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// true or false
    Bool(bool),
    /// a whole number
    Number(i128),
    /// text
    Text(Text<'a>),
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl Hash for Text<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<'a> Key<'a> {
    /// The key that a value is, if it can be one.
    pub fn of(value: &Val<'a>) -> Option<Self> {
        match value {
            Val::Bool(value) => Some(Key::Bool(*value)),
            Val::Int(number) => Some(Key::Number(i128::from(*number))),
            Val::Uint(number) => Some(Key::Number(i128::from(*number))),
            Val::Double(number) => whole(*number).map(Key::Number),
            Val::Text(text) => Some(Key::Text(text.clone())),
            _ => None,
        }
    }

    fn is(&self, value: &Val<'a>) -> bool {
        match (self, value) {
            (Key::Text(own), Val::Text(text)) => own == text,
            (Key::Text(_), _) | (_, Val::Text(_)) => false,
            _ => Key::of(value).is_some_and(|key| key == *self),
        }
    }
}

/// The whole number that is this number, if there is one among those of 64 bits.
pub fn whole(number: f64) -> Option<i128> {
    (number.fract() == 0.0 && number.abs() < 18_446_744_073_709_551_616.0).then_some(number as i128)
}

impl<'a> Entries<'a> {
    fn new(list: Vec<(Val<'a>, Val<'a>)>) -> Rc<Self> {
        let weight = list.iter().fold(1, |sum: u64, (_, value)| sum.saturating_add(value.weight()));
        let places = (list.len() >= MANY).then(|| {
            // The first of equal ones counts, so it comes last.
            let keys = list.iter().enumerate().rev();
            keys.filter_map(|(place, (key, _))| Some((Key::of(key)?, place))).collect()
        });
        Rc::new(Self { list, places, weight })
    }

    fn get(&self, key: &Key<'_>) -> Option<&Val<'a>> {
        let place = match &self.places {
            Some(places) => *places.get(key)?,
            None => self.list.iter().position(|(own, _)| key.is(own))?,
        };
        self.list.get(place).map(|(_, value)| value)
    }
}

impl<'a> Map<'a> {
    /// A map of these entries, whose keys differ.
    pub fn made(entries: Vec<(Val<'a>, Val<'a>)>) -> Self {
        Map::Entries(Entries::new(entries))
    }

    /// An object with these fields.
    pub fn object(name: &'a str, fields: Vec<(Val<'a>, Val<'a>)>) -> Self {
        Map::Object(name, Entries::new(fields))
    }

    /// See [`Val::weight`].
    pub(super) fn weight(&self) -> u64 {
        match self {
            Map::Json(..) | Map::Constant(_) => 1,
            Map::Entries(entries) | Map::Object(_, entries) => entries.weight,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        match self {
            Map::Json(map, _) => map.len(),
            Map::Constant(map) => map.entries().len(),
            Map::Entries(entries) | Map::Object(_, entries) => entries.list.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A field.
    pub fn field(&self, name: &str) -> Result<Option<Val<'a>>, Error> {
        match self {
            Map::Json(map, kind) => {
                let Some(json) = map.get(name) else { return Ok(None) };
                match kind {
                    Type::Object(object) => match object.fields.get(name) {
                        Some(kind) => Val::typed(json, kind).map(Some),
                        None => Ok(Some(Val::json(json))),
                    },
                    Type::Map(_, value) => Val::typed(json, value).map(Some),
                    _ => Ok(Some(Val::json(json))),
                }
            }
            Map::Constant(map) => Ok(map.field(name)),
            Map::Entries(entries) | Map::Object(_, entries) => {
                Ok(entries.get(&Key::Text(Text::Borrowed(name))).cloned())
            }
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &Val<'a>) -> Result<Option<Val<'a>>, Error> {
        if let Val::Text(name) = key {
            return self.field(name);
        }
        Ok(match self {
            Map::Json(..) => None,
            Map::Constant(map) => Key::of(key).and_then(|key| map.get(&key)),
            Map::Entries(entries) | Map::Object(_, entries) => {
                Key::of(key).and_then(|key| entries.get(&key)).cloned()
            }
        })
    }

    /// All keys.
    pub fn keys(&self) -> Vec<Val<'a>> {
        match self {
            Map::Json(map, _) => map.keys().map(|key| Val::Text(Text::Borrowed(key))).collect(),
            Map::Constant(map) => map.entries().iter().map(|(key, _)| key.value()).collect(),
            Map::Entries(entries) | Map::Object(_, entries) => {
                entries.list.iter().map(|(key, _)| key.clone()).collect()
            }
        }
    }
}
