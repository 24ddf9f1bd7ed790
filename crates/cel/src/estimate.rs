//! What a CRD rule may cost at worst, from the sizes that its schema allows.
//!
//! A rough upper bound that grows with the sizes as the real cost does: its purpose is to refuse rules that go over
//! unbounded lists inside of unbounded lists before anybody stores an object.

use serde_json::Value;

use crate::ast::{Expr, Fold, Kind, Literal};
use crate::env::Program;

/// The largest request: what is not bounded is bounded by it.
const REQUEST: u64 = 3 * 1024 * 1024;

/// What is known of a value: its schema and how large it can be.
#[derive(Clone, Copy)]
struct Shape<'s> {
    schema: Option<&'s Value>,
    size: u64,
}

const SMALL: Shape<'static> = Shape { schema: None, size: 1 };

/// The least that a value of a schema takes in a request.
fn least(schema: &Value) -> u64 {
    match schema["type"].as_str().unwrap_or_default() {
        "string" => 2,
        "boolean" => 4,
        "array" => 2,
        "object" => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            2 + required.map(|name| name.len() as u64 + 4 + least(&schema["properties"][name])).sum::<u64>()
        }
        _ => 1,
    }
}

/// The most letters or elements that a value of a schema has.
pub fn most(schema: &Value) -> u64 {
    let bound = |name: &str| schema[name].as_u64();
    match schema["type"].as_str().unwrap_or_default() {
        "string" => match schema["enum"].as_array() {
            Some(values) => {
                values.iter().filter_map(Value::as_str).map(|text| text.len() as u64).max().unwrap_or(1)
            }
            None => match schema["format"].as_str() {
                Some("date-time" | "date" | "duration" | "uuid" | "ipv4" | "ipv6" | "cidr") => 64,
                _ => bound("maxLength").unwrap_or(REQUEST - 2),
            },
        },
        "array" => bound("maxItems").unwrap_or_else(|| REQUEST / (least(&schema["items"]) + 1)),
        "object" => match schema.get("additionalProperties") {
            Some(values) => bound("maxProperties").unwrap_or_else(|| REQUEST / (least(values) + 4)),
            None => schema["properties"].as_object().map_or(1, |fields| fields.len() as u64),
        },
        _ if schema["x-kubernetes-int-or-string"] == true => bound("maxLength").unwrap_or(REQUEST - 2),
        _ => 1,
    }
}

/// What running a rule on a value of this schema may cost.
pub fn estimate(program: &Program, schema: &Value) -> u64 {
    let own = Shape { schema: Some(schema), size: most(schema) };
    Estimator { own, locals: Vec::new() }.walk(program.root()).0
}

struct Estimator<'s> {
    own: Shape<'s>,
    locals: Vec<Shape<'s>>,
}

fn of(schema: Option<&Value>) -> Shape<'_> {
    Shape { schema, size: schema.map_or(1, most) }
}

impl<'s> Estimator<'s> {
    fn walk(&mut self, expr: &Expr) -> (u64, Shape<'s>) {
        match &expr.kind {
            Kind::Literal(Literal::Text(text)) => (0, Shape { schema: None, size: text.len() as u64 }),
            Kind::Literal(_) | Kind::Type(_) | Kind::Name(_) => (0, SMALL),
            Kind::Local(place) => (1, self.locals.get(*place).copied().unwrap_or(SMALL)),
            Kind::Global(_) => (1, self.own),
            Kind::Select { operand, field, .. } => {
                let (cost, inner) = self.walk(operand);
                let below = inner.schema.and_then(|schema| {
                    schema["properties"].get(field).or_else(|| schema.get("additionalProperties"))
                });
                (cost.saturating_add(1), of(below))
            }
            Kind::Index { operand, key, .. } => {
                let (cost, inner) = self.walk(operand);
                let (more, _) = self.walk(key);
                let below = inner
                    .schema
                    .and_then(|schema| schema.get("items").or_else(|| schema.get("additionalProperties")));
                (cost.saturating_add(more).saturating_add(1), of(below))
            }
            Kind::Call { name, args, .. } => self.call(name, args),
            Kind::And(parts) | Kind::Or(parts) => (self.sum(parts.iter()), SMALL),
            Kind::If(parts) => {
                let (condition, _) = self.walk(&parts[0]);
                let (yes, one) = self.walk(&parts[1]);
                let (no, other) = self.walk(&parts[2]);
                let shape = if one.size >= other.size { one } else { other };
                (condition.saturating_add(yes.max(no)).saturating_add(1), shape)
            }
            Kind::List(items) => {
                let cost = self.sum(items.iter().map(|item| &item.value));
                (cost.saturating_add(10), Shape { schema: None, size: items.len() as u64 })
            }
            Kind::Map(items) => {
                let cost = self.sum(items.iter().flat_map(|item| [&item.key, &item.value]));
                (cost.saturating_add(30), Shape { schema: None, size: items.len() as u64 })
            }
            Kind::Object { fields, .. } => (self.sum(fields.iter().map(|field| &field.value)) + 40, SMALL),
            Kind::Fold { fold, range, variables, filter, body } => {
                let (cost, whole) = self.walk(range);
                let schema = whole.schema;
                let items = schema.and_then(|schema| schema.get("items"));
                let values = schema.and_then(|schema| schema.get("additionalProperties"));
                let key = Shape { schema: None, size: REQUEST / whole.size.max(1) };
                let element = match (items, values, variables.len()) {
                    (Some(_), _, 1) => vec![of(items)],
                    (Some(_), _, _) => vec![SMALL, of(items)],
                    (_, Some(_), 1) => vec![key],
                    (_, Some(_), _) => vec![key, of(values)],
                    _ => vec![SMALL; variables.len()],
                };
                let count = element.len();
                self.locals.extend(element);
                let mut turn = filter.as_ref().map_or(0, |filter| self.walk(filter).0);
                turn = turn.saturating_add(self.walk(body).0).saturating_add(1);
                self.locals.truncate(self.locals.len() - count);
                let shape = match fold {
                    Fold::All | Fold::Exists | Fold::ExistsOne => SMALL,
                    Fold::Filter | Fold::SortBy => whole,
                    _ => Shape { schema: None, size: whole.size },
                };
                (cost.saturating_add(turn.saturating_mul(whole.size)), shape)
            }
            Kind::Bind { value, body, .. } | Kind::OptionalMap { operand: value, body, .. } => {
                let (cost, shape) = self.walk(value);
                self.locals.push(shape);
                let (more, result) = self.walk(body);
                self.locals.pop();
                (cost.saturating_add(more), result)
            }
        }
    }

    fn sum<'e>(&mut self, parts: impl Iterator<Item = &'e Expr>) -> u64 {
        parts.fold(1, |total, part| total.saturating_add(self.walk(part).0))
    }

    fn call(&mut self, name: &str, args: &[Expr]) -> (u64, Shape<'s>) {
        let walked: Vec<(u64, Shape<'s>)> = args.iter().map(|arg| self.walk(arg)).collect();
        let base = walked.iter().fold(1_u64, |total, (cost, _)| total.saturating_add(*cost));
        let size = |index: usize| walked.get(index).map_or(1, |(_, shape)| shape.size);
        let (first, second) = (size(0), size(1));
        let pass = |size: u64| size.div_ceil(10);
        let plain = Shape { schema: None, size: first };
        let (own, shape) = match name {
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => (pass(first.min(second)), SMALL),
            "_+_" => (
                pass(first.saturating_add(second)),
                Shape { schema: None, size: first.saturating_add(second) },
            ),
            "@in" => (second, SMALL),
            "contains" => (pass(first).saturating_mul(pass(second).max(1)), SMALL),
            "startsWith" | "endsWith" => (pass(second), SMALL),
            "matches" | "find" => (pass(first).saturating_mul(second.div_ceil(4).max(1)), plain),
            "findAll" | "split" | "replace" | "lowerAscii" | "upperAscii" | "trim" | "substring" | "join"
            | "format" | "url" | "isURL" | "string" | "bytes" => (pass(first), plain),
            "isSorted" | "sum" | "min" | "max" | "indexOf" | "lastIndexOf" | "sort" | "reverse" | "slice"
            | "flatten" => (first, plain),
            "distinct" => (first.saturating_mul(first), plain),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => (first.saturating_mul(second), SMALL),
            "orValue" | "value" | "or" => (0, walked.first().map_or(SMALL, |(_, shape)| *shape)),
            _ => (0, SMALL),
        };
        (base.saturating_add(own), shape)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Env, schema};

    #[test]
    fn unbounded_loops_in_loops_are_dear_and_bounds_make_them_cheap() {
        let cost = |bounds: bool, rule: &str| {
            let mut schema = json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "string"}}}});
            if bounds {
                schema["properties"]["l"]["maxItems"] = json!(10);
                schema["properties"]["l"]["items"]["maxLength"] = json!(20);
            }
            let kind = schema::from_openapi(&schema, false).expect("a type");
            let program = Env::new().with("self", kind).compile(rule).expect("compiles");
            estimate(&program, &schema)
        };
        let nested = "self.l.all(a, self.l.all(b, a == b))";
        assert!(cost(false, nested) > 1_000_000_000);
        assert!(cost(true, nested) < 2000);
        assert!(cost(true, "self.l.size() > 1") < 10);
    }
}
