//! What an expression works on. JSON is looked at where it lies; only what an expression makes is owned.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use apimachinery::quantity::Quantity;
use apimachinery::time;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use jiff::Timestamp;
use serde_json::Value as Json;

use crate::error::Error;
use crate::functions::semver::Semver;
use crate::functions::url::Url;
use crate::types::Type;

mod list;
mod map;

pub use list::{ITEM, List};
pub use map::{Entries, Key, Map, whole};

/// A value becomes JSON only up to this many bytes: what stands in it many times is there once, but would be written many times.
const JSON_LIMIT: usize = 100_000_000;

/// Text that is borrowed from JSON or from the source, or made by the expression.
#[derive(Clone)]
pub enum Text<'a> {
    /// Somewhere else.
    Borrowed(&'a str),
    /// Here.
    Shared(Rc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

/// Bytes.
#[derive(Clone)]
pub enum Bytes<'a> {
    /// Somewhere else.
    Borrowed(&'a [u8]),
    /// Base64 of JSON, known to be right. It is decoded where it is looked at: reading a field costs too little to keep a copy.
    Encoded(&'a str),
    /// Here.
    Shared(Rc<[u8]>),
}

impl Bytes<'_> {
    /// The bytes.
    pub fn read(&self) -> Cow<'_, [u8]> {
        match self {
            Bytes::Borrowed(bytes) => Cow::Borrowed(bytes),
            Bytes::Encoded(text) => Cow::Owned(BASE64.decode(text).unwrap_or_default()),
            Bytes::Shared(bytes) => Cow::Borrowed(bytes),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Bytes::Borrowed(bytes) => bytes.len(),
            Bytes::Encoded(text) => {
                let padding = text.bytes().rev().take_while(|letter| *letter == b'=').count();
                (text.len() / 4 * 3).saturating_sub(padding)
            }
            Bytes::Shared(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Answers `authorizer` checks.
pub trait Authorizer {
    /// Whether `check` is allowed, and why; an error says why it could not be decided.
    fn check(&self, check: &Check) -> Result<(bool, String), String>;
}

/// A question to the authorizer, as the expression builds it up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Check {
    /// Namespace and name of the service account that is asked for instead of the requesting user.
    pub service_account: Option<(String, String)>,
    /// The URL path, for checks of paths.
    pub path: Option<String>,
    /// API group.
    pub group: String,
    /// Plural resource.
    pub resource: String,
    /// Subresource.
    pub subresource: String,
    /// Namespace.
    pub namespace: String,
    /// Object name.
    pub name: String,
    /// Field selector.
    pub field_selector: String,
    /// Label selector.
    pub label_selector: String,
    /// Verb.
    pub verb: String,
}

impl Check {
    /// How many bytes of text are in it.
    pub(crate) fn len(&self) -> usize {
        let account = self.service_account.iter().flat_map(|(namespace, name)| [namespace, name]);
        let parts = [
            &self.group,
            &self.resource,
            &self.subresource,
            &self.namespace,
            &self.name,
            &self.field_selector,
            &self.label_selector,
            &self.verb,
        ];
        account.chain(&self.path).chain(parts).map(String::len).sum()
    }
}

/// A value that only functions look into.
#[derive(Clone)]
pub enum Opaque {
    /// A URL.
    Url(Url),
    /// A quantity.
    Quantity(Quantity),
    /// A version.
    Semver(Semver),
    /// An address.
    Ip(IpAddr),
    /// A range of addresses.
    Cidr(IpAddr, u8),
    /// A named format.
    Format(&'static str),
    /// The authorizer, or a question to it on its way.
    Check(&'static str, Check),
    /// What the authorizer said.
    Decision {
        /// Yes or no.
        allowed: bool,
        /// Why.
        reason: String,
        /// What went wrong.
        error: String,
    },
}

/// A value.
#[derive(Clone)]
pub enum Val<'a> {
    /// nothing
    Null,
    /// true or false
    Bool(bool),
    /// integer
    Int(i64),
    /// integer without sign
    Uint(u64),
    /// floating point
    Double(f64),
    /// text
    Text(Text<'a>),
    /// bytes
    Bytes(Bytes<'a>),
    /// a moment
    Timestamp(Timestamp),
    /// nanoseconds
    Duration(i64),
    /// a list
    List(List<'a>),
    /// a map or object
    Map(Map<'a>),
    /// a type
    Type(Type),
    /// something or nothing
    Optional(Option<Rc<Val<'a>>>),
    /// something only functions look into
    Opaque(Rc<Opaque>),
}

/// The type of values nobody declared.
pub static DYN: Type = Type::Dyn;

impl From<bool> for Val<'_> {
    fn from(value: bool) -> Self {
        Val::Bool(value)
    }
}

impl From<i64> for Val<'_> {
    fn from(value: i64) -> Self {
        Val::Int(value)
    }
}

impl From<String> for Val<'_> {
    fn from(value: String) -> Self {
        Val::Text(Text::Shared(value.into()))
    }
}

impl<'a> From<&'a str> for Val<'a> {
    fn from(value: &'a str) -> Self {
        Val::Text(Text::Borrowed(value))
    }
}

impl<'a> From<Vec<Val<'a>>> for Val<'a> {
    fn from(items: Vec<Val<'a>>) -> Self {
        Val::List(items.into())
    }
}

impl<'a> Val<'a> {
    /// JSON as a value of undeclared type.
    pub fn json(json: &'a Json) -> Val<'a> {
        match json {
            Json::Null => Val::Null,
            Json::Bool(value) => Val::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Val::Int(value),
                (None, Some(value)) => Val::Uint(value),
                _ => Val::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => Val::Text(Text::Borrowed(text)),
            Json::Array(items) => Val::List(List::Json(items, &DYN)),
            Json::Object(map) => Val::Map(Map::Json(map, &DYN)),
        }
    }

    /// JSON as a value of a declared type: formats become moments, spans and bytes.
    pub fn typed(json: &'a Json, kind: &'a Type) -> Result<Val<'a>, Error> {
        Ok(match (json, kind) {
            (Json::Array(items), Type::List(item)) => Val::List(List::Json(items, item)),
            (Json::Object(map), Type::Map(..) | Type::Object(_)) => Val::Map(Map::Json(map, kind)),
            (Json::Number(number), Type::Double) => Val::Double(number.as_f64().unwrap_or(f64::NAN)),
            (Json::Number(number), Type::Int) => match number.as_i64() {
                Some(value) => Val::Int(value),
                None => Val::Int(number.as_f64().unwrap_or_default() as i64),
            },
            (Json::String(text), Type::Timestamp) => {
                let moment = time::parse(text).or_else(|| time::parse(&format!("{text}T00:00:00Z")));
                Val::Timestamp(moment.ok_or_else(|| Error::invalid(format!("invalid date-time {text:?}")))?)
            }
            (Json::String(text), Type::Duration) => Val::Duration(
                time::parse_duration(text)
                    .ok_or_else(|| Error::invalid(format!("invalid duration {text:?}")))?,
            ),
            (Json::String(text), Type::Bytes) => {
                BASE64.decode(text).map_err(|_| Error::invalid("invalid base64 text".to_owned()))?;
                Val::Bytes(Bytes::Encoded(text))
            }
            (json, _) => Val::json(json),
        })
    }

    /// An opaque value.
    pub fn opaque(value: Opaque) -> Val<'a> {
        Val::Opaque(Rc::new(value))
    }

    /// Something.
    pub fn some(value: Val<'a>) -> Val<'a> {
        Val::Optional(Some(Rc::new(value)))
    }

    /// Its type.
    pub fn kind(&self) -> Type {
        match self {
            Val::Null => Type::Null,
            Val::Bool(_) => Type::Bool,
            Val::Int(_) => Type::Int,
            Val::Uint(_) => Type::Uint,
            Val::Double(_) => Type::Double,
            Val::Text(_) => Type::String,
            Val::Bytes(_) => Type::Bytes,
            Val::Timestamp(_) => Type::Timestamp,
            Val::Duration(_) => Type::Duration,
            Val::List(_) => Type::list(Type::Dyn),
            Val::Map(Map::Object(name, _)) => Type::named(name),
            Val::Map(Map::Json(_, kind @ Type::Object(_))) => (*kind).clone(),
            Val::Map(_) => Type::Map(Arc::new(Type::Dyn), Arc::new(Type::Dyn)),
            Val::Type(_) => Type::Meta(Arc::new(Type::Dyn)),
            Val::Optional(_) => Type::optional(Type::Dyn),
            Val::Opaque(opaque) => Type::Opaque(match &**opaque {
                Opaque::Url(_) => "kubernetes.URL",
                Opaque::Quantity(_) => "kubernetes.Quantity",
                Opaque::Semver(_) => "kubernetes.Semver",
                Opaque::Ip(_) => "net.IP",
                Opaque::Cidr(..) => "net.CIDR",
                Opaque::Format(_) => "kubernetes.NamedFormat",
                Opaque::Check(name, _) => name,
                Opaque::Decision { .. } => "kubernetes.authorization.Decision",
            }),
        }
    }

    /// Two values are the same. Numbers are compared as numbers, whatever their types.
    pub fn equals(&self, other: &Val<'a>) -> bool {
        match (self, other) {
            (Val::Null, Val::Null) => true,
            (Val::Bool(a), Val::Bool(b)) => a == b,
            (Val::Int(_) | Val::Uint(_) | Val::Double(_), Val::Int(_) | Val::Uint(_) | Val::Double(_)) => {
                self.compare(other) == Some(Ordering::Equal)
            }
            (Val::Text(a), Val::Text(b)) => **a == **b,
            (Val::Bytes(a), Val::Bytes(b)) => a.read() == b.read(),
            (Val::Timestamp(a), Val::Timestamp(b)) => a == b,
            (Val::Duration(a), Val::Duration(b)) => a == b,
            (Val::List(a), Val::List(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(one, two)| same(one, two))
            }
            (Val::Map(a), Val::Map(b)) => {
                a.len() == b.len()
                    && a.keys().iter().all(|key| match (a.get(key), b.get(key)) {
                        (Ok(Some(a)), Ok(Some(b))) => a.equals(&b),
                        _ => false,
                    })
            }
            (Val::Type(a), Val::Type(b)) => a == b,
            (Val::Optional(a), Val::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.equals(b),
                (None, None) => true,
                _ => false,
            },
            (Val::Opaque(a), Val::Opaque(b)) => match (&**a, &**b) {
                (Opaque::Url(a), Opaque::Url(b)) => a == b,
                (Opaque::Quantity(a), Opaque::Quantity(b)) => a.minus(*b).is_zero(),
                (Opaque::Semver(a), Opaque::Semver(b)) => a.cmp(b) == Ordering::Equal,
                (Opaque::Ip(a), Opaque::Ip(b)) => a == b,
                (Opaque::Cidr(a, c), Opaque::Cidr(b, d)) => a == b && c == d,
                (Opaque::Format(a), Opaque::Format(b)) => a == b,
                _ => false,
            },
            _ => false,
        }
    }

    /// The order of two values, where there is one.
    pub fn compare(&self, other: &Val<'a>) -> Option<Ordering> {
        match (self, other) {
            (Val::Int(a), Val::Int(b)) => Some(a.cmp(b)),
            (Val::Uint(a), Val::Uint(b)) => Some(a.cmp(b)),
            (Val::Int(a), Val::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Val::Uint(a), Val::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
            (Val::Double(a), Val::Double(b)) => a.partial_cmp(b),
            (Val::Double(a), Val::Int(b)) => a.partial_cmp(&(*b as f64)),
            (Val::Int(a), Val::Double(b)) => (*a as f64).partial_cmp(b),
            (Val::Double(a), Val::Uint(b)) => a.partial_cmp(&(*b as f64)),
            (Val::Uint(a), Val::Double(b)) => (*a as f64).partial_cmp(b),
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
            (Val::Text(a), Val::Text(b)) => Some((**a).cmp(&**b)),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.read().cmp(&b.read())),
            (Val::Timestamp(a), Val::Timestamp(b)) => Some(a.cmp(b)),
            (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }

    /// How large it is to look at: letters, bytes or elements.
    pub fn size(&self) -> u64 {
        match self {
            Val::Text(text) => text.len() as u64,
            Val::Bytes(bytes) => bytes.len() as u64,
            Val::List(list) => list.len() as u64,
            Val::Map(map) => map.len() as u64,
            _ => 1,
        }
    }

    /// How many values an expression put into it, all the way down; what it was given counts as one. What stands there twice counts
    /// twice, because whoever goes over the value meets it twice.
    pub fn weight(&self) -> u64 {
        match self {
            Val::List(list) => list.weight(),
            Val::Map(map) => map.weight(),
            Val::Optional(Some(inner)) => inner.weight(),
            _ => 1,
        }
    }

    /// As JSON. Moments, spans and bytes become text as JSON has them.
    pub fn to_json(&self) -> Result<Json, Error> {
        let mut room = JSON_LIMIT;
        self.json_within(&mut room)
    }

    fn json_within(&self, room: &mut usize) -> Result<Json, Error> {
        let text = |text: String, room: &mut usize| {
            take(room, text.len())?;
            Ok(Json::String(text))
        };
        take(room, ITEM)?;
        match self {
            Val::Null => Ok(Json::Null),
            Val::Bool(value) => Ok(Json::Bool(*value)),
            Val::Int(value) => Ok(Json::from(*value)),
            Val::Uint(value) => Ok(Json::from(*value)),
            Val::Double(value) => Ok(Json::from(*value)),
            Val::Text(own) => text(own.to_string(), room),
            Val::Bytes(bytes) => text(BASE64.encode(bytes.read()), room),
            Val::Timestamp(moment) => text(moment.to_string(), room),
            Val::Duration(nanos) => text(time::format_duration(*nanos), room),
            Val::List(List::Json(items, _)) => {
                items.iter().map(|item| copied(item, room)).collect::<Result<_, _>>().map(Json::Array)
            }
            Val::List(list) => {
                list.iter().map(|item| item?.json_within(room)).collect::<Result<_, _>>().map(Json::Array)
            }
            Val::Map(Map::Json(map, _)) => copied_map(map, room),
            Val::Map(map) => {
                let mut out = serde_json::Map::new();
                for key in map.keys() {
                    let Val::Text(name) = &key else {
                        return Err(Error::invalid(format!("a key of type {} is not text", key.kind())));
                    };
                    take(room, name.len())?;
                    let value = map.field(name)?.unwrap_or(Val::Null);
                    out.insert(name.to_string(), value.json_within(room)?);
                }
                Ok(Json::Object(out))
            }
            Val::Optional(Some(inner)) => inner.json_within(room),
            Val::Opaque(opaque) => match &**opaque {
                Opaque::Quantity(quantity) => text(quantity.to_string(), room),
                Opaque::Ip(ip) => text(ip.to_string(), room),
                Opaque::Cidr(ip, length) => text(format!("{ip}/{length}"), room),
                _ => Err(Error::invalid(format!("unsupported type {}", self.kind()))),
            },
            Val::Optional(None) | Val::Type(_) => {
                Err(Error::invalid(format!("unsupported type {}", self.kind())))
            }
        }
    }
}

fn take(room: &mut usize, size: usize) -> Result<(), Error> {
    *room = room.checked_sub(size).ok_or(Error::CostLimit)?;
    Ok(())
}

fn copied(json: &Json, room: &mut usize) -> Result<Json, Error> {
    take(room, ITEM)?;
    match json {
        Json::String(text) => take(room, text.len()).map(|()| json.clone()),
        Json::Array(items) => {
            items.iter().map(|item| copied(item, room)).collect::<Result<_, _>>().map(Json::Array)
        }
        Json::Object(map) => copied_map(map, room),
        small => Ok(small.clone()),
    }
}

fn copied_map(map: &serde_json::Map<String, Json>, room: &mut usize) -> Result<Json, Error> {
    let mut out = serde_json::Map::new();
    for (key, value) in map {
        take(room, key.len())?;
        out.insert(key.clone(), copied(value, room)?);
    }
    Ok(Json::Object(out))
}

fn same<'a>(one: Result<Val<'a>, Error>, two: Result<Val<'a>, Error>) -> bool {
    matches!((one, two), (Ok(one), Ok(two)) if one.equals(&two))
}

impl fmt::Debug for Val<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Val::Type(kind) => write!(out, "{kind}"),
            Val::Optional(None) => out.write_str("optional.none()"),
            Val::Optional(Some(inner)) => write!(out, "optional.of({inner:?})"),
            Val::Uint(value) => write!(out, "{value}u"),
            Val::Double(value) => write!(out, "{value:?}"),
            Val::Bytes(bytes) => write!(out, "b{:?}", String::from_utf8_lossy(&bytes.read())),
            Val::Timestamp(moment) => write!(out, "timestamp({moment})"),
            Val::Duration(nanos) => write!(out, "duration({})", time::format_duration(*nanos)),
            Val::List(list) => out.debug_list().entries(list.iter().flatten()).finish(),
            Val::Map(map) => {
                let entries = map.keys().into_iter().map(|key| (key.clone(), map.get(&key).ok().flatten()));
                out.debug_map().entries(entries.filter_map(|(key, value)| Some((key, value?)))).finish()
            }
            other => match other.to_json() {
                Ok(json) => write!(out, "{json}"),
                Err(_) => write!(out, "{}", other.kind()),
            },
        }
    }
}
