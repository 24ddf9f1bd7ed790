//! Runs checked expressions, and counts what it costs.

use std::collections::HashSet;
use std::rc::Rc;

use crate::ast::{Element, Expr, Fold, Kind};
use crate::constant;
use crate::env::Program;
use crate::error::Error;
use crate::functions::price::{self, Price};
use crate::functions::{Function, Outcome, Run, lists};
use crate::value::{Authorizer, ITEM, Key, List, Map, Val};

/// Where variables get their values.
pub trait Activation<'a> {
    /// The value of a declared variable, by its index. May run other expressions, on the same account.
    fn get(&self, index: usize, run: &mut Run<'_>) -> Outcome<'a>;
}

impl<'a> Activation<'a> for &[Val<'a>] {
    fn get(&self, index: usize, _: &mut Run<'_>) -> Outcome<'a> {
        <[Val<'a>]>::get(self, index).cloned().ok_or_else(|| Error::NoSuchKey(format!("variable {index}")))
    }
}

/// One call costs at most this, as upstream.
pub const CALL_LIMIT: u64 = 1_000_000;
/// All expressions of one policy or one object cost at most this.
pub const TOTAL_LIMIT: u64 = 10_000_000;

/// So many bytes may be made beside those that are paid for, by all expressions together that share a budget.
const ROOM: usize = 100_000_000;
/// A value has at most this much in it. Nobody could pay for going over more, but lists of the same lists grow to it in a few steps.
const HEAVIEST: u64 = 10_000_000;

/// What has been spent and may be spent by several expressions together.
pub struct Budget {
    left: u64,
    room: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(TOTAL_LIMIT)
    }
}

impl Budget {
    /// A budget.
    pub fn new(limit: u64) -> Self {
        Self { left: limit, room: ROOM }
    }

    /// Leaves nothing, so that nothing else runs.
    pub fn spend_all(&mut self) {
        self.left = 0;
    }

    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }
}

impl Program {
    /// Runs the expression.
    pub fn run<'a>(
        &'a self,
        activation: &dyn Activation<'a>,
        authorizer: Option<&dyn Authorizer>,
        budget: &mut Budget,
    ) -> Outcome<'a> {
        let mut run = Run::new(CALL_LIMIT.min(budget.left), budget.room, authorizer);
        let outcome = self.run_within(activation, &mut run);
        budget.left = budget.left.saturating_sub(run.cost);
        budget.room = run.room();
        outcome
    }

    /// Runs the expression on the account of another one.
    pub fn run_within<'a>(&'a self, activation: &dyn Activation<'a>, run: &mut Run<'_>) -> Outcome<'a> {
        Machine { activation, run, locals: Vec::new() }.eval(&self.root)
    }
}

struct Machine<'a, 'm, 'r> {
    activation: &'m dyn Activation<'a>,
    run: &'m mut Run<'r>,
    locals: Vec<Val<'a>>,
}

/// A new value, unless there is too much in it.
fn bounded(value: Val<'_>) -> Outcome<'_> {
    if value.weight() > HEAVIEST { Err(Error::CostLimit) } else { Ok(value) }
}

impl<'a> Machine<'a, '_, '_> {
    fn eval(&mut self, expr: &'a Expr) -> Outcome<'a> {
        match &expr.kind {
            Kind::Literal(value) => Ok(constant::plain(value)),
            Kind::Constant { value, .. } => Ok(value.value()),
            Kind::Local(place) => {
                self.run.charge(1)?;
                self.locals.get(*place).cloned().ok_or(Error::NoOverload)
            }
            Kind::Global(index) => {
                self.run.charge(1)?;
                self.activation.get(*index, self.run)
            }
            Kind::Name(name) => Err(Error::NoSuchKey(name.clone())),
            Kind::Type(kind) => Ok(Val::Type(kind.clone())),
            Kind::Select { operand, field, test, optional } => {
                let inner = self.eval(operand)?;
                if !test {
                    self.step(operand)?;
                }
                select(inner, field, *test, *optional)
            }
            Kind::Index { operand, key, optional } => {
                let inner = self.eval(operand)?;
                let key = self.eval_free(key)?;
                self.step(operand)?;
                index(inner, &key, *optional)
            }
            Kind::Call { args, function, .. } => {
                let function = function.ok_or(Error::NoOverload)?;
                let price = if is_done_before(function.price, args) { Price::Free } else { function.price };
                self.call(args, function, price)
            }
            Kind::And(parts) => self.logic(parts, false),
            Kind::Or(parts) => self.logic(parts, true),
            Kind::If(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Val::Bool(true) => self.eval_free(yes),
                    Val::Bool(false) => self.eval_free(no),
                    _ => Err(Error::NoOverload),
                }
            }
            Kind::List(items) => {
                self.run.charge(10)?;
                self.run.allow(items.len().saturating_mul(ITEM))?;
                let mut out = Vec::with_capacity(items.len());
                for item in items {
                    out.extend(self.element(item)?);
                }
                bounded(out.into())
            }
            Kind::Map(items) => self.map(items),
            Kind::Object { name, fields } => {
                self.run.charge(40)?;
                self.run.allow(fields.len().saturating_mul(2 * ITEM))?;
                let mut out: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(fields.len());
                for field in fields {
                    if let Some(value) = self.element(field)? {
                        out.push((Val::from(field.key.as_str()), value));
                    }
                }
                bounded(Val::Map(Map::object(name, out)))
            }
            Kind::Fold { fold, range, variables, filter, body } => {
                let range = self.eval(range)?;
                self.fold(*fold, range, variables.len(), filter.as_deref(), body)
            }
            Kind::Bind { value, body, .. } => {
                let value = self.eval(value)?;
                self.with(&[value], body)
            }
            Kind::OptionalMap { operand, body, flat, .. } => {
                let before = self.run.cost;
                let inner = self.eval(operand)?;
                let spent = self.run.cost.saturating_sub(before);
                self.optional_map(inner, body, *flat, spent)
            }
        }
    }

    fn map(&mut self, items: &'a [Element<Expr>]) -> Outcome<'a> {
        self.run.charge(30)?;
        self.run.allow(items.len().saturating_mul(2 * ITEM))?;
        let mut out: Vec<(Val<'a>, Val<'a>)> = Vec::with_capacity(items.len());
        let mut seen = HashSet::with_capacity(items.len());
        for item in items {
            let key = self.eval(&item.key)?;
            if !matches!(key, Val::Text(_) | Val::Int(_) | Val::Uint(_) | Val::Bool(_)) {
                return Err(Error::invalid("unsupported key type"));
            }
            if Key::of(&key).is_some_and(|key| seen.contains(&key)) {
                return Err(Error::invalid("Failed with repeated key"));
            }
            if let Some(value) = self.element(item)? {
                seen.extend(Key::of(&key));
                out.push((key, value));
            }
        }
        bounded(Val::Map(Map::made(out)))
    }

    /// Asked whether it holds something, read a second time for what it holds, and perhaps wrapped again.
    fn optional_map(&mut self, inner: Val<'a>, body: &'a Expr, flat: bool, spent: u64) -> Outcome<'a> {
        match inner {
            Val::Optional(None) => {
                self.run.charge(2)?;
                Ok(Val::Optional(None))
            }
            Val::Optional(Some(inner)) => {
                self.run.charge(spent.saturating_add(if flat { 2 } else { 3 }))?;
                let value = self.with(&[(*inner).clone()], body)?;
                Ok(if flat { value } else { Val::some(value) })
            }
            _ => Err(Error::NoOverload),
        }
    }

    /// A step down from a value. One that was not read but made costs as much as a name before that.
    fn step(&mut self, operand: &Expr) -> Result<(), Error> {
        let read = matches!(
            operand.kind,
            Kind::Local(_) | Kind::Global(_) | Kind::Select { .. } | Kind::Index { .. }
        );
        self.run.charge(if read { 1 } else { 2 })
    }

    /// A value in a place where the name that a path begins with is free.
    fn eval_free(&mut self, expr: &'a Expr) -> Outcome<'a> {
        let outcome = self.eval(expr);
        if is_path(expr) {
            self.run.cost = self.run.cost.saturating_sub(1);
        }
        outcome
    }

    fn call(&mut self, args: &'a [Expr], function: &Function, price: Price) -> Outcome<'a> {
        match args {
            [one] => {
                let one = self.eval(one)?;
                self.paid(&[one], function, price)
            }
            [one, two] => {
                let pair = [self.eval(one)?, self.eval(two)?];
                self.paid(&pair, function, price)
            }
            many => {
                let many = many.iter().map(|arg| self.eval(arg)).collect::<Result<Vec<_>, _>>()?;
                self.paid(&many, function, price)
            }
        }
    }

    fn paid(&mut self, args: &[Val<'a>], function: &Function, price: Price) -> Outcome<'a> {
        price.charge(self.run, args)?;
        bounded((function.body)(self.run, args)?)
    }

    /// An element of a literal; `None` for an optional one that holds nothing.
    fn element<K>(&mut self, element: &'a Element<K>) -> Result<Option<Val<'a>>, Error> {
        let value = self.eval(&element.value)?;
        match (element.optional, value) {
            (false, value) => Ok(Some(value)),
            (true, Val::Optional(inner)) => Ok(inner.as_deref().cloned()),
            (true, _) => Err(Error::NoOverload),
        }
    }

    /// `&&` and `||`: a part that decides hides the errors of the others.
    fn logic(&mut self, parts: &'a [Expr], decides: bool) -> Outcome<'a> {
        let mut failed = None;
        for part in parts {
            match self.eval(part) {
                Ok(Val::Bool(value)) if value == decides => return Ok(Val::Bool(decides)),
                Ok(Val::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Error::NoOverload)),
                Err(Error::CostLimit) => return Err(Error::CostLimit),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(Val::Bool(!decides)), Err)
    }

    fn with(&mut self, values: &[Val<'a>], body: &'a Expr) -> Outcome<'a> {
        let depth = self.locals.len();
        self.locals.extend_from_slice(values);
        let outcome = self.eval(body);
        self.locals.truncate(depth);
        outcome
    }

    fn fold(
        &mut self,
        fold: Fold,
        range: Val<'a>,
        variables: usize,
        filter: Option<&'a Expr>,
        body: &'a Expr,
    ) -> Outcome<'a> {
        // What it costs is what the macro, written out, would.
        let mut items: Vec<Val<'a>> = Vec::new();
        let mut entries: Vec<(Val<'a>, Val<'a>)> = Vec::new();
        let mut seen = HashSet::new();
        let mut held = 0_u64;
        let mut failed = None;
        let mut decided = false;
        for turn in turns(&range, variables)? {
            // Whether to go on is asked before each turn.
            match fold {
                Fold::All => self.run.charge(2)?,
                Fold::Exists => self.run.charge(3)?,
                _ => {}
            }
            if decided {
                break;
            }
            let turn = turn?;
            let element = &turn[..variables.min(turn.len())];
            if let Some(filter) = filter {
                match self.with(element, filter)? {
                    Val::Bool(true) => {}
                    Val::Bool(false) => continue,
                    _ => return Err(Error::NoOverload),
                }
            }
            let outcome = self.with(element, body);
            let chosen = matches!(outcome, Ok(Val::Bool(true)));
            // What was gathered so far is looked at and added to.
            self.run.charge(match fold {
                Fold::All | Fold::Exists => 1,
                Fold::ExistsOne => {
                    if chosen {
                        2
                    } else {
                        0
                    }
                }
                Fold::Filter => {
                    if chosen {
                        13
                    } else {
                        0
                    }
                }
                Fold::Map | Fold::TransformList | Fold::SortBy => 12,
                Fold::TransformMap => 3,
                Fold::TransformMapEntry => 2,
            })?;
            let [first, _] = turn;
            match fold {
                Fold::All | Fold::Exists => match outcome {
                    Ok(Val::Bool(value)) if value == (fold == Fold::Exists) => decided = true,
                    Ok(Val::Bool(_)) => {}
                    Ok(_) => failed = failed.or(Some(Error::NoOverload)),
                    Err(Error::CostLimit) => return Err(Error::CostLimit),
                    Err(error) => failed = failed.or(Some(error)),
                },
                Fold::ExistsOne => match outcome? {
                    Val::Bool(value) => held += u64::from(value),
                    _ => return Err(Error::NoOverload),
                },
                Fold::Filter => match outcome? {
                    Val::Bool(true) => items.push(first),
                    Val::Bool(false) => {}
                    _ => return Err(Error::NoOverload),
                },
                Fold::Map | Fold::TransformList => items.push(outcome?),
                Fold::TransformMap => entries.push((first, outcome?)),
                Fold::SortBy => entries.push((outcome?, first)),
                Fold::TransformMapEntry => match outcome? {
                    Val::Map(map) => {
                        for key in map.keys() {
                            self.run.allow(2 * ITEM)?;
                            if Key::of(&key).is_some_and(|key| !seen.insert(key)) {
                                return Err(Error::invalid("insert failed: key already exists"));
                            }
                            let value = map.get(&key)?.unwrap_or(Val::Null);
                            entries.push((key, value));
                        }
                    }
                    _ => return Err(Error::NoOverload),
                },
            }
        }
        self.run.charge(match fold {
            Fold::ExistsOne => 2,
            // The range is given a name, and asked for by it twice.
            Fold::SortBy => 3,
            _ => 1,
        })?;
        match fold {
            Fold::All | Fold::Exists if decided => Ok(Val::Bool(fold == Fold::Exists)),
            Fold::All | Fold::Exists => failed.map_or(Ok(Val::Bool(fold == Fold::All)), Err),
            Fold::ExistsOne => Ok(Val::Bool(held == 1)),
            Fold::Filter | Fold::Map | Fold::TransformList => bounded(items.into()),
            Fold::TransformMap | Fold::TransformMapEntry => bounded(Val::Map(Map::made(entries))),
            Fold::SortBy => {
                self.run.charge(price::all_with_all(entries.len(), entries.first().map(|(key, _)| key)))?;
                bounded(lists::sorted(entries)?)
            }
        }
    }
}

/// Whether a call is one of those that upstream does not make any more when an expression runs: conversions of what is known, and
/// looking for something in a known set.
fn is_done_before(price: Price, args: &[Expr]) -> bool {
    match (price, args) {
        (price, [only]) if price.is_conversion() => constant::of(only).is_some(),
        (Price::Sought, [_, among]) => {
            matches!(constant::of(among), Some(Val::List(List::Constant(list))) if list.is_set())
        }
        _ => false,
    }
}

/// Whether a value is read from a variable, step by step.
fn is_path(expr: &Expr) -> bool {
    match &expr.kind {
        Kind::Local(_) | Kind::Global(_) => true,
        Kind::Select { operand, test: false, .. } | Kind::Index { operand, .. } => is_path(operand),
        _ => false,
    }
}

/// What a comprehension has in its variables, turn after turn.
type Turns<'t, 'a> = Box<dyn Iterator<Item = Result<[Val<'a>; 2], Error>> + 't>;

/// What a comprehension goes through. Nothing is made before its turn, which is when it is paid for.
fn turns<'t, 'a>(range: &'t Val<'a>, variables: usize) -> Result<Turns<'t, 'a>, Error> {
    let two = variables == 2;
    Ok(match range {
        Val::List(list) => Box::new(list.iter().enumerate().map(move |(index, item)| {
            let item = item?;
            Ok(if two { [Val::Int(index as i64), item] } else { [item, Val::Null] })
        })),
        Val::Map(map) => Box::new(map.keys().into_iter().map(move |key| {
            let value = if two { map.get(&key)? } else { None };
            Ok([key, value.unwrap_or(Val::Null)])
        })),
        _ => return Err(Error::NoOverload),
    })
}

fn select<'a>(inner: Val<'a>, field: &str, test: bool, optional: bool) -> Outcome<'a> {
    match inner {
        Val::Map(map) => {
            let found = map.field(field)?;
            if test {
                return Ok(Val::Bool(found.is_some()));
            }
            match (found, optional) {
                (Some(value), true) => Ok(Val::some(value)),
                (None, true) => Ok(Val::Optional(None)),
                (Some(value), false) => Ok(value),
                (None, false) => Err(Error::NoSuchKey(field.to_owned())),
            }
        }
        Val::Optional(None) if test => Ok(Val::Bool(false)),
        Val::Optional(None) => Ok(Val::Optional(None)),
        Val::Optional(Some(inner)) => {
            let found = select((*inner).clone(), field, test, !test)?;
            // What is optional inside of an optional is one optional.
            Ok(match found {
                Val::Optional(Some(content)) => match &*content {
                    already @ Val::Optional(_) => already.clone(),
                    _ => Val::Optional(Some(content)),
                },
                other => other,
            })
        }
        Val::Null if optional => Ok(Val::Optional(None)),
        _ => Err(Error::NoOverload),
    }
}

fn index<'a>(inner: Val<'a>, key: &Val<'a>, optional: bool) -> Outcome<'a> {
    let found = match &inner {
        Val::List(list) => match at(list, key)? {
            Ok(value) => Some(value),
            Err(_) if optional => None,
            Err(index) => return Err(Error::Index(index)),
        },
        Val::Map(map) => {
            let found = map.get(key)?;
            if found.is_none() && !optional {
                let shown = match key {
                    Val::Text(text) => text.to_string(),
                    // Nobody knows how long those are.
                    Val::List(_) | Val::Map(_) | Val::Optional(_) => key.kind().to_string(),
                    other => format!("{other:?}"),
                };
                return Err(Error::NoSuchKey(shown));
            }
            found
        }
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(content)) => return index((**content).clone(), key, true),
        Val::Null if optional => None,
        _ => return Err(Error::NoOverload),
    };
    match (found, optional) {
        (Some(value), false) => Ok(value),
        (found, _) => Ok(Val::Optional(found.map(Rc::new))),
    }
}

/// An item, or the index that is out of bounds.
fn at<'a>(list: &List<'a>, key: &Val<'a>) -> Result<Result<Val<'a>, i64>, Error> {
    let wanted = match key {
        Val::Int(index) => *index,
        Val::Uint(index) => i64::try_from(*index).unwrap_or(i64::MAX),
        Val::Double(index) if index.fract() == 0.0 => *index as i64,
        _ => return Err(Error::NoOverload),
    };
    match usize::try_from(wanted) {
        Ok(index) if index < list.len() => Ok(Ok(list.get(index)?)),
        _ => Ok(Err(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Env;

    /// What upstream's server spends on one object, measured by how much more it lets a rule spend.
    #[test]
    fn rules_spend_what_they_do_upstream() {
        let schema = include_str!("estimate/costs.txt").lines().next().expect("a schema");
        let schema: serde_json::Value = serde_json::from_str(schema).expect("JSON");
        let kind = crate::schema::from_openapi(&schema, false).expect("a type");
        let mut lines = include_str!("spent.txt").lines();
        let object: serde_json::Value = serde_json::from_str(lines.next().expect("an object")).expect("JSON");
        let mut wrong = Vec::new();
        for line in lines {
            let (want, rule) = line.split_once('\t').expect("a cost and a rule");
            let program = Env::new().with("self", kind.clone()).compile(rule).expect("compiles");
            let values = [Val::typed(&object, &kind).expect("a value")];
            let mut budget = Budget::default();
            let outcome = program.run(&&values[..], None, &mut budget);
            let spent = TOTAL_LIMIT - budget.left;
            if want.parse() != Ok(spent) || outcome.is_err() {
                wrong.push(format!("{want} and not {spent}: {rule} {:?}", outcome.err()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// What a rule gives with `self` as text, and what it spends. There is less room than there is otherwise, to be faster at its end.
    fn spent(rule: &str, text: &str) -> (Result<String, Error>, u64) {
        let env = Env::new().with("self", crate::types::Type::String);
        let program = env.compile(rule).unwrap_or_else(|issues| panic!("{rule}: {issues}"));
        let values = [Val::from(text)];
        let mut budget = Budget { room: 10_000_000, ..Budget::default() };
        let outcome = program.run(&&values[..], None, &mut budget).map(|value| format!("{value:?}"));
        (outcome, TOTAL_LIMIT - budget.left)
    }

    /// What a call makes may be large beyond what it costs.
    #[test]
    fn nothing_is_made_that_nobody_could_look_at() {
        let text = "x".repeat(100_000);
        let again = |start: &str, step: &str, end: &str| format!("{start}{}{end}", step.repeat(40));
        let many = |what: &str| format!("lists.range(10000).map(x, {what}).size() > 0");
        let numbers = vec!["1"; 20_000].join(",");
        for rule in [
            "self.replace('', self).size() > 0".to_owned(),
            "lists.range(1000000).map(x, self).join(self).size() > 0".to_owned(),
            "lists.range(80000).map(x, self).join().size() > 0".to_owned(),
            "lists.range(100000000000).size() > 0".to_owned(),
            // lists of the same lists, long or deep
            again("[[1]]", ".map(a, a + a)", ".size() > 0"),
            again("[[1]]", ".map(a, [a, a])", ".map(a, a == a).size() > 0"),
            again("[[]]", ".map(a, [a, a])", ".flatten(100).size() > 0"),
            again("[{}]", ".map(a, {'a': a, 'b': a})", ".map(a, a == a).size() > 0"),
            "cel.bind(l, lists.range(3000), l.map(x, l)).flatten().size() > 0".to_owned(),
            again("[[]]", ".map(a, [a, a])", ".flatten(100).size() > 0").replacen(".map(a, [a, a])", "", 18),
            // what is shown
            many("'%s%s'.format([self, self])"),
            "'%s'.format([lists.range(10000).map(x, self)]).size() > 0".to_owned(),
            "'%s'.format([{'a': lists.range(10000).map(x, self)}]).size() > 0".to_owned(),
            "'%s'.format([optional.of(lists.range(10000).map(x, self))]).size() > 0".to_owned(),
            many("'%x'.format([self])"),
            many("'%.99f%.99f%.99f%.99f%.99f'.format([1e300, 1e300, 1e300, 1e300, 1e300])"),
            // many times something that costs little
            many("'x'.replace('', self)"),
            many("self.findAll('')"),
            many("'abcdefghij'.split('')").replace("10000", "60000"),
            "cel.bind(u, url('/' + self), lists.range(10000).map(x, u.getEscapedPath())).size() > 0"
                .to_owned(),
            "cel.bind(u, url('/?' + self), lists.range(10000).map(x, u.getQuery())).size() > 0".to_owned(),
            many(&format!("[x, {numbers}]")),
        ] {
            let (outcome, _) = spent(&rule, &text);
            assert!(
                matches!(outcome, Err(Error::CostLimit)),
                "{}: {outcome:?}",
                &rule[..rule.len().min(100)]
            );
        }
    }

    #[test]
    fn what_is_made_once_takes_no_room_again() {
        let numbers = (0..15_000).map(|number: u32| number.to_string()).collect::<Vec<_>>().join(",");
        let texts = (0..8_000).map(|number: u32| format!("'{number}'")).collect::<Vec<_>>().join(",");
        let long = "x".repeat(90_000);
        for rule in [
            format!("lists.range(50000).map(x, [{numbers}]).size() > 0"),
            format!("lists.range(50000).all(x, x < 15000 || !(x in [{numbers}]))"),
            format!("lists.range(50000).all(x, !('8000' in [{texts}]))"),
            format!("lists.range(50000).all(x, {{'a': [{texts}]}}.a[7] == '7')"),
            format!("lists.range(50000).map(x, b'{long}').size() > 0"),
            format!("lists.range(50000).map(x, bytes('{long}')).size() > 0"),
            format!("lists.range(50000).map(x, string(b'{long}')).size() > 0"),
            "cel.bind(l, lists.range(100000), l.slice(0, 20000).all(x, l.first().value() == 0 && l.last().value() > x))"
                .to_owned(),
            "cel.bind(l, lists.range(100000), l.slice(0, 10000).all(x, l.slice(x, x + 1).size() == 1))".to_owned(),
            "cel.bind(l, lists.range(100000), l.slice(0, 50000).all(x, (l + l).size() > x))".to_owned(),
            "cel.bind(m, lists.range(50000).transformMap(i, v, v), m.all(k, m[k] == k))".to_owned(),
        ] {
            let (outcome, _) = spent(&rule, "");
            assert_eq!(outcome.as_deref(), Ok("true"), "{}", &rule[..rule.len().min(100)]);
        }
    }

    /// Asking a set is free; where upstream makes none, a list is searched, and paid for.
    #[test]
    fn looking_for_something_in_a_constant_costs_what_it_takes() {
        let table = [
            ("self in ['a', 'b']", "true", 1),
            ("self in ['a', string(b'b')]", "true", 1),
            ("self in ['c']", "false", 1),
            ("self in [self, 'c']", "true", 14),
            ("self in ['a'] + ['b']", "true", 4),
            ("dyn(self) in [dyn(null), dyn('b')]", "true", 4),
            ("bytes(self) in [b'a', b'b', b'c']", "true", 5),
            ("[self] in [['a'], ['b']]", "true", 13),
            ("dyn(2) in [1, 2]", "true", 0),
            ("dyn(2u) in [1, 2]", "true", 0),
            ("dyn(2.0) in [1, 2]", "true", 0),
            ("dyn(2) in [1.5, 2.0]", "true", 0),
            ("dyn(-0.0) in [0]", "true", 0),
            ("dyn(1.5) in [1, 2]", "false", 0),
            ("0.0 / 0.0 in [0.0 / 0.0]", "false", 13),
            ("double('NaN') in [double('NaN')]", "false", 0),
            ("dyn(true) in [dyn(true), dyn(1)]", "true", 0),
        ];
        for (rule, wanted, cost) in table {
            assert_eq!(spent(rule, "b"), (Ok(wanted.to_owned()), cost), "{rule}");
        }
    }

    #[test]
    fn what_is_kept_once_is_not_written_a_thousand_times() {
        let object = serde_json::json!({"text": "x".repeat(100_000), "list": vec![0; 10_000]});
        for rule in
            ["self.text", "self.list", "self", "[self.text]", "{'a': self.list}", "optional.of(self.list)"]
        {
            let rule = format!("lists.range(10000).map(x, {rule})");
            let program = Env::new().with("self", crate::types::Type::Dyn).compile(&rule).expect("compiles");
            let values = [Val::json(&object)];
            let value = program.run(&&values[..], None, &mut Budget::default()).expect("is small");
            assert_eq!(value.to_json(), Err(Error::CostLimit), "{rule}");
        }
    }
}
