//! Values that are known before anything runs: lists and maps of literals, conversions of literals. As upstream does, they are made
//! once per program and cost nothing when it runs, so a run must not copy them either: it looks at them where they are.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;

use crate::ast::{Expr, Kind, Literal};
use crate::functions::Run;
use crate::value::{Bytes, Key, List, Map, Val, whole};

/// A known value.
#[derive(Debug, Clone)]
pub enum Constant {
    /// Written as such.
    Plain(Literal),
    /// a moment
    Timestamp(Timestamp),
    /// nanoseconds
    Duration(i64),
    /// a list
    List(ConstantList),
    /// a map
    Map(ConstantMap),
}

/// A list of known values.
#[derive(Debug, Clone)]
pub struct ConstantList {
    items: Vec<Constant>,
    members: Option<Members>,
}

/// A map of known values.
#[derive(Debug, Clone)]
pub struct ConstantMap {
    entries: Vec<(Constant, Constant)>,
    bools: HashMap<bool, usize>,
    numbers: HashMap<i128, usize>,
    texts: HashMap<String, usize>,
}

/// What is in a list, to be asked for without a search. Numbers are there in all types that they can have.
#[derive(Debug, Clone, Default)]
struct Members {
    bools: HashSet<bool>,
    numbers: HashSet<i128>,
    doubles: HashSet<u64>,
    texts: HashSet<String>,
}

impl Constant {
    /// The value.
    pub fn value(&self) -> Val<'_> {
        match self {
            Constant::Plain(literal) => plain(literal),
            Constant::Timestamp(moment) => Val::Timestamp(*moment),
            Constant::Duration(nanos) => Val::Duration(*nanos),
            Constant::List(list) => Val::List(List::Constant(list)),
            Constant::Map(map) => Val::Map(Map::Constant(map)),
        }
    }

    fn from_value(value: &Val<'_>) -> Option<Self> {
        Some(match value {
            Val::Null => Constant::Plain(Literal::Null),
            Val::Bool(value) => Constant::Plain(Literal::Bool(*value)),
            Val::Int(value) => Constant::Plain(Literal::Int(*value)),
            Val::Uint(value) => Constant::Plain(Literal::Uint(*value)),
            Val::Double(value) => Constant::Plain(Literal::Double(*value)),
            Val::Text(text) => Constant::Plain(Literal::Text(text.to_string())),
            Val::Bytes(bytes) => Constant::Plain(Literal::Bytes(bytes.read().into_owned())),
            Val::Timestamp(moment) => Constant::Timestamp(*moment),
            Val::Duration(nanos) => Constant::Duration(*nanos),
            _ => return None,
        })
    }
}

/// The value of a literal.
pub fn plain(literal: &Literal) -> Val<'_> {
    match literal {
        Literal::Null => Val::Null,
        Literal::Bool(value) => Val::Bool(*value),
        Literal::Int(value) => Val::Int(*value),
        Literal::Uint(value) => Val::Uint(*value),
        Literal::Double(value) => Val::Double(*value),
        Literal::Text(text) => Val::from(text.as_str()),
        Literal::Bytes(bytes) => Val::Bytes(Bytes::Borrowed(bytes)),
    }
}

/// Zero has no sign here.
fn bits(number: f64) -> u64 {
    (number + 0.0).to_bits()
}

impl Members {
    /// Only of booleans, numbers and text, as upstream.
    fn of(items: &[Constant]) -> Option<Self> {
        let mut members = Self::default();
        for item in items {
            let Constant::Plain(literal) = item else { return None };
            match literal {
                Literal::Bool(value) => {
                    members.bools.insert(*value);
                }
                Literal::Int(value) => {
                    members.numbers.insert(i128::from(*value));
                    members.doubles.insert(bits(*value as f64));
                }
                Literal::Uint(value) => {
                    members.numbers.insert(i128::from(*value));
                    members.doubles.insert(bits(*value as f64));
                }
                Literal::Double(value) => {
                    members.numbers.extend(whole(*value));
                    members.doubles.insert(bits(*value));
                }
                Literal::Text(text) => {
                    members.texts.insert(text.clone());
                }
                Literal::Null | Literal::Bytes(_) => return None,
            }
        }
        Some(members)
    }

    fn contain(&self, value: &Val<'_>) -> bool {
        match value {
            Val::Bool(value) => self.bools.contains(value),
            Val::Int(number) => self.numbers.contains(&i128::from(*number)),
            Val::Uint(number) => self.numbers.contains(&i128::from(*number)),
            Val::Double(number) => !number.is_nan() && self.doubles.contains(&bits(*number)),
            Val::Text(text) => self.texts.contains(&**text),
            _ => false,
        }
    }
}

impl ConstantList {
    fn new(items: Vec<Constant>) -> Self {
        let members = Members::of(&items);
        Self { items, members }
    }

    /// The items.
    pub fn items(&self) -> &[Constant] {
        &self.items
    }

    /// Whether it can be asked for a value without a search. Asking is free then.
    pub fn is_set(&self) -> bool {
        self.members.is_some()
    }

    /// Whether a value is in it; `None` if that takes a search.
    pub fn contains(&self, value: &Val<'_>) -> Option<bool> {
        self.members.as_ref().map(|members| members.contain(value))
    }
}

impl ConstantMap {
    /// `None` if it cannot be made, because of a key: then it fails whenever it is asked for.
    fn new(entries: Vec<(Constant, Constant)>) -> Option<Self> {
        let (mut bools, mut numbers, mut texts) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (place, (key, _)) in entries.iter().enumerate() {
            let Constant::Plain(key) = key else { return None };
            let before = match key {
                Literal::Bool(value) => bools.insert(*value, place),
                Literal::Int(value) => numbers.insert(i128::from(*value), place),
                Literal::Uint(value) => numbers.insert(i128::from(*value), place),
                Literal::Text(text) => texts.insert(text.clone(), place),
                Literal::Null | Literal::Double(_) | Literal::Bytes(_) => return None,
            };
            if before.is_some() {
                return None;
            }
        }
        Some(Self { entries, bools, numbers, texts })
    }

    /// The entries.
    pub fn entries(&self) -> &[(Constant, Constant)] {
        &self.entries
    }

    /// A field.
    pub fn field(&self, name: &str) -> Option<Val<'_>> {
        self.at(self.texts.get(name))
    }

    /// The value of a key.
    pub fn get(&self, key: &Key<'_>) -> Option<Val<'_>> {
        match key {
            Key::Bool(value) => self.at(self.bools.get(value)),
            Key::Number(number) => self.at(self.numbers.get(number)),
            Key::Text(text) => self.field(text),
        }
    }

    fn at(&self, place: Option<&usize>) -> Option<Val<'_>> {
        self.entries.get(*place?).map(|(_, value)| value.value())
    }
}

/// Replaces what is known by its value, from the leaves up.
pub fn settle(expr: &mut Expr) {
    expr.below_mut(&mut settle);
    if let Some(value) = known(expr) {
        let written = std::mem::replace(expr, Expr::new(0, Kind::Literal(Literal::Null)));
        *expr = Expr {
            at: written.at,
            kind: Kind::Constant { written: Box::new(written), value: Box::new(value) },
        };
    }
}

fn known(expr: &mut Expr) -> Option<Constant> {
    match &mut expr.kind {
        Kind::List(items) if items.iter().all(|item| !item.optional && of(&item.value).is_some()) => {
            let items = items.iter_mut().map(|item| taken(&mut item.value)).collect();
            Some(Constant::List(ConstantList::new(items)))
        }
        Kind::Map(items)
            if items
                .iter()
                .all(|item| !item.optional && of(&item.key).is_some() && of(&item.value).is_some()) =>
        {
            let entries = items.iter_mut().map(|item| (taken(&mut item.key), taken(&mut item.value)));
            ConstantMap::new(entries.collect()).map(Constant::Map)
        }
        Kind::Call { args, function: Some(function), .. } if function.price.is_conversion() => {
            let [only] = args.as_slice() else { return None };
            // What cannot be converted fails when it runs.
            let converted = (function.body)(&mut Run::new(0, 0, None), &[of(only)?]).ok()?;
            Constant::from_value(&converted)
        }
        _ => None,
    }
}

/// The value of an expression that is known. It moves to what it is a part of, so that nothing is kept once per level.
fn taken(expr: &mut Expr) -> Constant {
    match std::mem::replace(&mut expr.kind, Kind::Literal(Literal::Null)) {
        Kind::Constant { written, value } => {
            expr.kind = written.kind;
            *value
        }
        Kind::Literal(literal) => {
            expr.kind = Kind::Literal(literal.clone());
            Constant::Plain(literal)
        }
        other => {
            expr.kind = other;
            Constant::Plain(Literal::Null)
        }
    }
}

/// The value of an expression, if it is known.
pub fn of(expr: &Expr) -> Option<Val<'_>> {
    match &expr.kind {
        Kind::Literal(literal) => Some(plain(literal)),
        Kind::Constant { value, .. } => Some(value.value()),
        _ => None,
    }
}
