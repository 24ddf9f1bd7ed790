//! The types that expressions are checked with, and how one fits another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A type.
#[derive(Debug, Clone)]
pub enum Type {
    /// Anything; judged when the expression runs.
    Dyn,
    /// `null`
    Null,
    /// true or false
    Bool,
    /// 64-bit integer
    Int,
    /// 64-bit integer without sign
    Uint,
    /// floating point
    Double,
    /// text
    String,
    /// bytes
    Bytes,
    /// a moment
    Timestamp,
    /// a span of time
    Duration,
    /// list of one type
    List(Arc<Type>),
    /// map from one type to another
    Map(Arc<Type>, Arc<Type>),
    /// something or nothing
    Optional(Arc<Type>),
    /// a type as a value
    Meta(Arc<Type>),
    /// declared fields
    Object(Arc<ObjectType>),
    /// a type that only functions look into, such as `net.IP`
    Opaque(&'static str),
    /// a type parameter: of a signature before it is used, of the checker after
    Param(u32),
    /// what could not be checked; fits everything so that one mistake is told once
    Error,
}

/// A type with fields.
#[derive(Debug)]
pub struct ObjectType {
    /// Its name.
    pub name: String,
    /// Types of the fields, by JSON name.
    pub fields: BTreeMap<String, Type>,
    /// Any field may be read: nothing is known about it.
    pub open: bool,
    /// Fields may also be named as JSON has them, reserved words included.
    pub raw_names: bool,
}

impl PartialEq for Type {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => a == b,
            (Type::Meta(_), Type::Meta(_)) => true,
            (Type::Map(a, b), Type::Map(c, d)) => a == c && b == d,
            (Type::Object(a), Type::Object(b)) => Arc::ptr_eq(a, b) || a.name == b.name,
            (Type::Opaque(a), Type::Opaque(b)) => a == b,
            (Type::Param(a), Type::Param(b)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}

impl Type {
    /// A list.
    pub fn list(item: Type) -> Type {
        Type::List(Arc::new(item))
    }

    /// A map with text keys.
    pub fn map(value: Type) -> Type {
        Type::Map(Arc::new(Type::String), Arc::new(value))
    }

    /// An optional.
    pub fn optional(inner: Type) -> Type {
        Type::Optional(Arc::new(inner))
    }

    /// A type with these fields.
    pub fn object(name: &str, fields: &[(&str, Type)]) -> Type {
        Type::Object(Arc::new(ObjectType {
            name: name.to_owned(),
            fields: fields.iter().map(|(name, kind)| ((*name).to_owned(), kind.clone())).collect(),
            open: false,
            raw_names: true,
        }))
    }

    /// A type of which only the name is known.
    pub fn named(name: &str) -> Type {
        Type::Object(Arc::new(ObjectType {
            name: name.to_owned(),
            fields: BTreeMap::new(),
            open: true,
            raw_names: true,
        }))
    }

    /// The type that a word of the language names.
    pub fn by_name(name: &str) -> Option<Type> {
        Some(match name {
            "bool" => Type::Bool,
            "int" => Type::Int,
            "uint" => Type::Uint,
            "double" => Type::Double,
            "string" => Type::String,
            "bytes" => Type::Bytes,
            "dyn" => Type::Dyn,
            "null_type" => Type::Null,
            "list" => Type::list(Type::Dyn),
            "map" => Type::Map(Arc::new(Type::Dyn), Arc::new(Type::Dyn)),
            "type" => Type::Meta(Arc::new(Type::Dyn)),
            "google.protobuf.Timestamp" => Type::Timestamp,
            "google.protobuf.Duration" => Type::Duration,
            "optional_type" => Type::optional(Type::Dyn),
            _ => return OPAQUE.iter().find(|own| **own == name).map(|own| Type::Opaque(own)),
        })
    }

    /// Reads a type of a signature: `list(A)`, `map(string, int)`, `net.IP`. Single capitals are parameters.
    pub fn parse(text: &str) -> Type {
        let text = text.trim();
        if let [letter @ b'A'..=b'Z'] = text.as_bytes() {
            return Type::Param(u32::from(letter - b'A'));
        }
        if let Some((head, rest)) = text.split_once('(') {
            let inner = rest.strip_suffix(')').unwrap_or(rest);
            return match head {
                "list" => Type::list(Type::parse(inner)),
                "optional" => Type::optional(Type::parse(inner)),
                "map" => {
                    let (key, value) = inner.split_once(',').unwrap_or(("dyn", "dyn"));
                    Type::Map(Arc::new(Type::parse(key)), Arc::new(Type::parse(value)))
                }
                _ => Type::Error,
            };
        }
        match text {
            "timestamp" => Type::Timestamp,
            "duration" => Type::Duration,
            "null" => Type::Null,
            _ => Type::by_name(text).unwrap_or(Type::Error),
        }
    }
}

/// Types that only functions look into.
pub const OPAQUE: [&str; 12] = [
    "kubernetes.URL",
    "kubernetes.Quantity",
    "kubernetes.Semver",
    "kubernetes.NamedFormat",
    "net.IP",
    "net.CIDR",
    "kubernetes.authorization.Authorizer",
    "kubernetes.authorization.PathCheck",
    "kubernetes.authorization.GroupCheck",
    "kubernetes.authorization.ResourceCheck",
    "kubernetes.authorization.Decision",
    "kubernetes.DRASemver",
];

impl fmt::Display for Type {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Type::Dyn => "dyn",
            Type::Null => "null_type",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Uint => "uint",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::Timestamp => "timestamp",
            Type::Duration => "duration",
            Type::List(item) => return write!(out, "list({item})"),
            Type::Map(key, value) => return write!(out, "map({key}, {value})"),
            Type::Optional(inner) => return write!(out, "optional_type({inner})"),
            Type::Meta(inner) => return write!(out, "type({inner})"),
            Type::Object(object) => &object.name,
            Type::Opaque(name) => name,
            Type::Param(_) => "dyn",
            Type::Error => "!error!",
        };
        out.write_str(word)
    }
}

/// What is known of type parameters.
#[derive(Debug, Clone, Default)]
pub struct Bindings {
    bound: Vec<Option<Type>>,
}

impl Bindings {
    /// A new parameter.
    pub fn fresh(&mut self) -> Type {
        self.bound.push(None);
        Type::Param(self.bound.len() as u32 - 1)
    }

    /// How many there are, to go back to with [`Bindings::forget`].
    pub fn snapshot(&self) -> Vec<Option<Type>> {
        self.bound.clone()
    }

    /// Takes back what was learnt since.
    pub fn restore(&mut self, snapshot: Vec<Option<Type>>) {
        self.bound = snapshot;
    }

    /// The type with everything known filled in; what is not known is `dyn`.
    pub fn resolve(&self, kind: &Type) -> Type {
        match kind {
            Type::Param(index) => match self.bound.get(*index as usize) {
                Some(Some(known)) => self.resolve(known),
                _ => Type::Dyn,
            },
            Type::List(item) => Type::list(self.resolve(item)),
            Type::Map(key, value) => Type::Map(Arc::new(self.resolve(key)), Arc::new(self.resolve(value))),
            Type::Optional(inner) => Type::optional(self.resolve(inner)),
            other => other.clone(),
        }
    }

    fn known(&self, kind: &Type) -> Type {
        match kind {
            Type::Param(index) => match self.bound.get(*index as usize) {
                Some(Some(known)) => self.known(known),
                _ => kind.clone(),
            },
            other => other.clone(),
        }
    }

    /// Whether a value of type `from` may stand where `to` is wanted; learns parameters.
    pub fn fits(&mut self, from: &Type, to: &Type) -> bool {
        let (from, to) = (self.known(from), self.known(to));
        match (&from, &to) {
            (Type::Param(a), Type::Param(b)) if a == b => true,
            (_, Type::Param(index)) => self.learn(*index, from),
            (Type::Param(index), _) => self.learn(*index, to),
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, Type::Object(_) | Type::Opaque(_) | Type::Timestamp | Type::Duration)
            | (Type::Object(_) | Type::Opaque(_) | Type::Timestamp | Type::Duration, Type::Null) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.fits(a, b),
            (Type::Map(a, b), Type::Map(c, d)) => self.fits(a, c) && self.fits(b, d),
            _ => from == to,
        }
    }

    fn learn(&mut self, index: u32, kind: Type) -> bool {
        if mentions(&kind, index) {
            return false;
        }
        if let Some(slot) = self.bound.get_mut(index as usize) {
            *slot = Some(kind);
        }
        true
    }
}

fn mentions(kind: &Type, index: u32) -> bool {
    match kind {
        Type::Param(own) => *own == index,
        Type::List(inner) | Type::Optional(inner) => mentions(inner, index),
        Type::Map(key, value) => mentions(key, index) || mentions(value, index),
        _ => false,
    }
}
