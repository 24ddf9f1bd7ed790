//! What a CRD rule may cost at worst, from the sizes that its schema allows.
//!
//! The model is upstream's, whose numbers decide which rules may be written: a cost for each step, a size for each value. A size is
//! known from a literal, from what a function makes, or from the place in the schema that a value was read from; what is not known
//! is taken to be as large as anything can be. [`decl`] knows the schema, [`calls`] the functions; here are the expressions.

mod calls;
mod decl;

use std::sync::Arc;

use serde_json::Value;

use crate::ast::{Expr, Fold, Kind, Literal};
use crate::env::Program;
use crate::schema;
use crate::types::Type;
use decl::Decl;
pub use decl::{children, occurrences};

/// Going over a letter costs a tenth.
const LETTER: f64 = 0.1;
/// A new list.
const LIST: u64 = 10;
/// A new map.
const MAP: u64 = 30;
/// A new object.
const OBJECT: u64 = 40;

/// How many letters or elements a value has, at least and at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    min: u64,
    max: u64,
}

impl Size {
    const UNKNOWN: Size = Size { min: 0, max: u64::MAX };

    fn exactly(size: u64) -> Self {
        Self { min: size, max: size }
    }

    fn up_to(max: u64) -> Self {
        Self { min: 0, max }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn add(self, other: Self) -> Self {
        Self { min: self.min.saturating_add(other.min), max: self.max.saturating_add(other.max) }
    }

    fn times(self, other: Self) -> Self {
        Self { min: self.min.saturating_mul(other.min), max: self.max.saturating_mul(other.max) }
    }
}

/// So much of something, rounded up.
fn part(count: u64, factor: f64) -> u64 {
    let product = (count as f64 * factor).ceil();
    if product >= u64::MAX as f64 { u64::MAX } else { product as u64 }
}

/// Where in the schema a value was read from.
#[derive(Clone, Copy, Debug)]
enum Place<'s> {
    /// It was not read, but made.
    Nowhere,
    /// Here.
    At(Decl<'s>),
    /// Somewhere that the schema does not describe.
    Unknown,
}

/// How large the elements of a list or map are, where that is known of the container itself.
#[derive(Clone, Copy, Debug)]
struct Entries {
    list: bool,
    key: Size,
    value: Size,
}

impl Entries {
    fn union(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = (one?, other?);
        let (key, value) = (one.key.union(other.key), one.value.union(other.value));
        Some(Self { list: one.list, key, value })
    }
}

/// What is known of the value of an expression.
#[derive(Clone, Debug)]
struct Node<'s> {
    kind: Type,
    place: Place<'s>,
    size: Option<Size>,
    entries: Option<Entries>,
    /// The value of a whole number that stands in the rule.
    number: Option<i64>,
}

impl Node<'_> {
    fn or_unknown(&self) -> Size {
        self.size.unwrap_or(Size::UNKNOWN)
    }
}

/// What running a rule on a value of this schema may cost. `resource`: the schema is that of a whole resource.
pub fn estimate(program: &Program, schema: &Value, resource: bool) -> u64 {
    let resource = resource || schema["x-kubernetes-embedded-resource"] == true;
    let kind = schema::from_openapi(schema, resource).unwrap_or(Type::Dyn);
    let root = Decl::Schema(schema, resource);
    Estimator { root, kind, locals: Vec::new() }.walk(program.root()).0
}

struct Estimator<'s> {
    root: Decl<'s>,
    kind: Type,
    locals: Vec<Node<'s>>,
}

/// Whether values of a type all have the size of one.
fn is_scalar(kind: &Type) -> bool {
    match kind {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => true,
        Type::Optional(inner) => is_scalar(inner),
        _ => false,
    }
}

fn sum(costs: impl IntoIterator<Item = u64>) -> u64 {
    costs.into_iter().fold(0, u64::saturating_add)
}

impl<'s> Estimator<'s> {
    /// A value read from a place, or made by a function that does not say how large it is.
    fn node(&self, kind: Type, place: Place<'s>, otherwise: Option<Size>) -> Node<'s> {
        let size = match place {
            Place::At(decl) => Some(Size::up_to(decl.most())),
            _ if is_scalar(&kind) => Some(Size::exactly(1)),
            _ => otherwise,
        };
        Node { kind, place, size, entries: None, number: None }
    }

    fn made(&self, kind: Type, size: Option<Size>) -> Node<'s> {
        let size = size.or_else(|| is_scalar(&kind).then_some(Size::exactly(1)));
        Node { kind, place: Place::Nowhere, size, entries: None, number: None }
    }

    /// A step down. A path that begins nowhere is one of a single step, which upstream takes for the beginning.
    fn below(&self, place: Place<'s>, step: impl FnOnce(Decl<'s>) -> Option<Decl<'s>>) -> Place<'s> {
        match place {
            Place::Nowhere => Place::At(self.root),
            Place::At(decl) => step(decl).map_or(Place::Unknown, Place::At),
            Place::Unknown => Place::Unknown,
        }
    }

    fn walk(&mut self, expr: &Expr) -> (u64, Node<'s>) {
        match &expr.kind {
            Kind::Literal(literal) => (0, self.literal(literal)),
            // Upstream judges what is written, not what is left of it when it runs.
            Kind::Constant { written, .. } => self.walk(written),
            Kind::Local(place) => {
                let known = self.locals.get(*place).cloned();
                (1, known.unwrap_or_else(|| self.made(Type::Dyn, None)))
            }
            Kind::Global(_) => (1, self.node(self.kind.clone(), Place::At(self.root), None)),
            Kind::Type(kind) => {
                (1, self.node(Type::Meta(Arc::new(kind.clone())), Place::At(self.root), None))
            }
            Kind::Name(_) => (1, self.made(Type::Dyn, None)),
            Kind::Select { operand, field, test, optional } => self.select(operand, field, *test, *optional),
            Kind::Index { operand, key, optional } => self.index(operand, key, *optional),
            Kind::Call { name, args, member, function } => {
                let walked: Vec<(u64, Node<'s>)> = args.iter().map(|arg| self.walk(arg)).collect();
                let costs = sum(walked.iter().map(|(cost, _)| *cost));
                let nodes: Vec<Node<'s>> = walked.into_iter().map(|(_, node)| node).collect();
                let (own, node) = self.call(name, *member, *function, nodes);
                (costs.saturating_add(own), node)
            }
            Kind::And(parts) | Kind::Or(parts) => {
                let cost = sum(parts.iter().map(|one| self.walk(one).0));
                (cost, self.made(Type::Bool, None))
            }
            Kind::If(parts) => {
                let condition = self.walk(&parts[0]).0;
                let (yes, one) = self.walk(&parts[1]);
                let (no, other) = self.walk(&parts[2]);
                let size = one.or_unknown().union(other.or_unknown());
                let entries = Entries::union(one.entries, other.entries);
                let kind = if one.kind == other.kind { one.kind } else { Type::Dyn };
                (condition.saturating_add(yes.max(no)), Node { entries, ..self.made(kind, Some(size)) })
            }
            Kind::List(items) => self.list(items.iter().map(|item| &item.value)),
            Kind::Map(items) => self.map(items.iter().map(|item| (&item.key, &item.value))),
            Kind::Object { name, fields } => {
                let cost = sum(fields.iter().map(|field| self.walk(&field.value).0));
                (cost.saturating_add(OBJECT), self.made(Type::named(name), None))
            }
            Kind::Fold { fold, range, variables, filter, body } => {
                self.fold(*fold, range, variables.len(), filter.as_deref(), body)
            }
            Kind::Bind { value, body, .. } => {
                let (cost, node) = self.walk(value);
                self.locals.push(node);
                let (more, result) = self.walk(body);
                self.locals.pop();
                (sum([LIST, cost, more]), Node { place: Place::Nowhere, ..result })
            }
            Kind::OptionalMap { operand, body, flat, .. } => {
                let (cost, node) = self.walk(operand);
                let inner = match &node.kind {
                    Type::Optional(inner) => (**inner).clone(),
                    _ => Type::Dyn,
                };
                self.locals.push(self.made(inner, None));
                let (more, result) = self.walk(body);
                self.locals.pop();
                // Asked whether it holds something, bound to what it holds, and perhaps wrapped again.
                let kind = if *flat { result.kind } else { Type::optional(result.kind) };
                let own = [1, LIST, 1, u64::from(!flat)];
                (sum([cost, cost, more]).saturating_add(sum(own)), self.made(kind, Some(Size::UNKNOWN)))
            }
        }
    }

    fn literal(&self, literal: &Literal) -> Node<'s> {
        let (kind, size) = match literal {
            Literal::Text(text) => (Type::String, text.chars().count() as u64),
            Literal::Bytes(bytes) => (Type::Bytes, bytes.len() as u64),
            Literal::Null => (Type::Null, 1),
            Literal::Bool(_) => (Type::Bool, 1),
            Literal::Int(_) => (Type::Int, 1),
            Literal::Uint(_) => (Type::Uint, 1),
            Literal::Double(_) => (Type::Double, 1),
        };
        let number = if let Literal::Int(number) = literal { Some(*number) } else { None };
        Node { number, ..self.made(kind, Some(Size::exactly(size))) }
    }

    fn select(&mut self, operand: &Expr, field: &str, test: bool, optional: bool) -> (u64, Node<'s>) {
        let (cost, inner) = self.walk(operand);
        if test {
            return (cost, self.made(Type::Bool, None));
        }
        let (holder, wraps) = match &inner.kind {
            Type::Optional(content) => ((**content).clone(), true),
            other => (other.clone(), optional),
        };
        let kind = match &holder {
            Type::Object(object) => object.fields.get(field).cloned().unwrap_or(Type::Dyn),
            Type::Map(_, value) => (**value).clone(),
            _ => Type::Dyn,
        };
        let kind = if wraps && !matches!(kind, Type::Optional(_)) { Type::optional(kind) } else { kind };
        if optional {
            return (cost.saturating_add(1), self.made(kind, None));
        }
        let own = u64::from(matches!(inner.kind, Type::Map(..) | Type::Object(_) | Type::Param(_)));
        let place = self.below(inner.place, |decl| decl.field(field));
        (cost.saturating_add(own), self.node(kind, place, None))
    }

    fn index(&mut self, operand: &Expr, key: &Expr, optional: bool) -> (u64, Node<'s>) {
        let (cost, inner) = self.walk(operand);
        let cost = sum([cost, self.walk(key).0, 1]);
        let kind = match &inner.kind {
            Type::List(item) => (**item).clone(),
            Type::Map(_, value) => (**value).clone(),
            _ => Type::Dyn,
        };
        if optional || matches!(inner.kind, Type::Optional(_)) {
            return (cost, self.made(Type::optional(kind), None));
        }
        let place = self.below(inner.place, Decl::items);
        let mut node = self.node(kind, place, None);
        node.size = inner.entries.map(|entries| entries.value).or(node.size);
        (cost, node)
    }

    fn list<'e>(&mut self, items: impl Iterator<Item = &'e Expr>) -> (u64, Node<'s>) {
        let walked: Vec<(u64, Node<'s>)> = items.map(|item| self.walk(item)).collect();
        let cost = sum(walked.iter().map(|(cost, _)| *cost)).saturating_add(LIST);
        let sizes = walked.iter().map(|(_, node)| node.or_unknown());
        let value = sizes.reduce(Size::union).unwrap_or(Size::exactly(0));
        let same = walked.windows(2).all(|pair| pair[0].1.kind == pair[1].1.kind);
        let kind = walked.first().filter(|_| same).map_or(Type::Dyn, |(_, node)| node.kind.clone());
        let node = self.made(Type::list(kind), Some(Size::exactly(walked.len() as u64)));
        (cost, Node { entries: Some(Entries { list: true, key: Size::exactly(1), value }), ..node })
    }

    fn map<'e>(&mut self, items: impl Iterator<Item = (&'e Expr, &'e Expr)>) -> (u64, Node<'s>) {
        let (mut cost, mut count) = (MAP, 0);
        let (mut key, mut value): (Option<Size>, Option<Size>) = (None, None);
        let (mut key_kind, mut value_kind) = (Type::Dyn, Type::Dyn);
        for (name, content) in items {
            let (first, own) = self.walk(name);
            let (second, inner) = self.walk(content);
            cost = sum([cost, first, second]);
            key = Some(key.map_or(own.or_unknown(), |key| key.union(own.or_unknown())));
            value = Some(value.map_or(inner.or_unknown(), |value| value.union(inner.or_unknown())));
            if count == 0 {
                (key_kind, value_kind) = (own.kind, inner.kind);
            } else if value_kind != inner.kind {
                value_kind = Type::Dyn;
            }
            count += 1;
        }
        let none = Size::exactly(0);
        let entries = Entries { list: false, key: key.unwrap_or(none), value: value.unwrap_or(none) };
        let kind = Type::Map(Arc::new(key_kind), Arc::new(value_kind));
        (cost, Node { entries: Some(entries), ..self.made(kind, Some(Size::exactly(count))) })
    }

    /// The variables of a comprehension over a range.
    fn variables(&self, range: &Node<'s>, count: usize) -> Vec<Node<'s>> {
        let list = range.entries.map_or(matches!(range.kind, Type::List(_)), |entries| entries.list);
        let (key, value) = match &range.kind {
            Type::List(item) => (Type::Int, (**item).clone()),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            _ => (Type::Dyn, Type::Dyn),
        };
        let first = range.entries.map(|entries| entries.key);
        let second = range.entries.map(|entries| entries.value);
        let item = |kind: Type| self.node(kind, self.below(range.place, Decl::items), second);
        let index = |kind: Type| {
            let place = self.below(range.place, |decl| if list { None } else { decl.keys() });
            self.node(kind, place, first)
        };
        match (count, list) {
            (1, true) => vec![item(value)],
            (1, false) => vec![index(key)],
            _ => vec![index(key), item(value)],
        }
    }

    /// A loop, in the steps that its macro is written in: what it begins with, what each turn asks before it goes on, what it
    /// does, and what is made of the outcome.
    fn fold(
        &mut self,
        fold: Fold,
        range: &Expr,
        variables: usize,
        filter: Option<&Expr>,
        body: &Expr,
    ) -> (u64, Node<'s>) {
        let (cost, whole) = self.walk(range);
        let element = self.variables(&whole, variables);
        let shown = element.first().cloned();
        self.locals.extend(element.iter().cloned());
        let chosen = filter.map(|filter| self.walk(filter).0);
        let (inner, result) = self.walk(body);
        self.locals.truncate(self.locals.len() - element.len());
        let count = whole.or_unknown();
        let turns = |each: u64| count.max.saturating_mul(each);
        let filtered = |each: u64| chosen.map_or(each, |filter| filter.saturating_add(each.max(1)));
        let list = |kind: Type, value: Size| Node {
            entries: Some(Entries { list: true, key: Size::exactly(1), value: Size { min: 0, ..value } }),
            ..self.made(Type::list(kind), Some(count))
        };
        match fold {
            Fold::All => (sum([cost, 1, turns(inner.saturating_add(3))]), self.made(Type::Bool, None)),
            Fold::Exists => (sum([cost, 1, turns(inner.saturating_add(4))]), self.made(Type::Bool, None)),
            Fold::ExistsOne => (sum([cost, 2, turns(inner.saturating_add(2))]), self.made(Type::Bool, None)),
            Fold::Filter => {
                let shown = shown.unwrap_or_else(|| self.made(Type::Dyn, None));
                let node = list(shown.kind.clone(), shown.or_unknown());
                (sum([cost, LIST, 1, turns(inner.saturating_add(13))]), node)
            }
            Fold::Map | Fold::TransformList => {
                let node = list(result.kind.clone(), result.or_unknown());
                (sum([cost, LIST, 1, turns(filtered(inner.saturating_add(12)))]), node)
            }
            Fold::TransformMap | Fold::TransformMapEntry => {
                let step = if fold == Fold::TransformMap { 3 } else { 2 };
                let kind = match (fold, &result.kind) {
                    (Fold::TransformMapEntry, map @ Type::Map(..)) => map.clone(),
                    _ => {
                        let key = shown.map_or(Type::Dyn, |node| node.kind);
                        Type::Map(Arc::new(key), Arc::new(result.kind.clone()))
                    }
                };
                let cost = sum([cost, MAP, 1, turns(filtered(inner.saturating_add(step)))]);
                (cost, self.made(kind, Some(count)))
            }
            Fold::SortBy => {
                // The keys are a list of their own, made by a map over a name that the range is bound to.
                let keys = sum([1, LIST, 1, turns(inner.saturating_add(12))]);
                let (own, _) = calls::sorting(&result.kind, count);
                (sum([LIST, cost, 1, keys, own]), self.made(whole.kind, Some(count.times(count))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Env;

    fn cost(schema: &Value, rule: &str) -> u64 {
        let kind = schema::from_openapi(schema, false).expect("a type");
        let program = Env::new().with("self", kind).compile(rule).expect("compiles");
        estimate(&program, schema, false)
    }

    /// What upstream's server finds, measured by its complaints.
    #[test]
    fn costs_are_those_of_upstream() {
        let mut lines = include_str!("costs.txt").lines();
        let schema: Value = serde_json::from_str(lines.next().expect("a schema")).expect("JSON");
        let mut wrong = Vec::new();
        for line in lines {
            let (want, rule) = line.split_once('\t').expect("a cost and a rule");
            let found = cost(&schema, rule);
            // Beyond a hundred times the limit nobody says how much it is.
            let same = if want == "huge" {
                found > 1_000_000_000
            } else {
                near(found, want.parse().expect("a number"))
            };
            if !same {
                wrong.push(format!("{want} and not {found}: {rule}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Large ones are known to six digits.
    fn near(found: u64, want: u64) -> bool {
        found.abs_diff(want) <= want / 500_000
    }

    #[test]
    fn unbounded_loops_in_loops_are_dear_and_bounds_make_them_cheap() {
        let schema = |bounds: bool| {
            let mut schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}}});
            if bounds {
                schema["properties"]["l"]["maxItems"] = json!(10);
                schema["properties"]["l"]["items"]["maxLength"] = json!(20);
            }
            schema
        };
        let nested = "self.l.all(a, self.l.all(b, a == b))";
        assert!(cost(&schema(false), nested) > 1_000_000_000);
        assert!(cost(&schema(true), nested) < 3000);
        assert!(cost(&schema(true), "self.l.size() > 1") < 10);
    }
}
