//! The type checker: resolves names in place and says what does not fit.
//!
//! Variables of macros become places on a stack, declared variables indices, functions pointers, so that running an
//! expression looks nothing up by name. What is `dyn` is judged when it runs.

use std::sync::Arc;

use crate::ast::{Expr, Fold, Kind, Literal};
use crate::env::Env;
use crate::functions::{self, Function};
use crate::issue::Issue;
use crate::parser::qualified;
use crate::types::{Bindings, Type};

/// Checks an expression against an environment; the type of what it gives.
pub fn check(expr: &mut Expr, env: &Env) -> Result<Type, Vec<Issue>> {
    let mut checker = Checker { env, bindings: Bindings::default(), locals: Vec::new(), issues: Vec::new() };
    let kind = checker.expr(expr);
    let kind = checker.bindings.resolve(&kind);
    if checker.issues.is_empty() { Ok(kind) } else { Err(checker.issues) }
}

struct Checker<'e> {
    env: &'e Env,
    bindings: Bindings,
    locals: Vec<(String, Type)>,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn issue(&mut self, at: u32, message: String) -> Type {
        self.issues.push(Issue::new(at as usize, message));
        Type::Error
    }

    fn known(&self, kind: &Type) -> Type {
        self.bindings.resolve(kind)
    }

    fn expr(&mut self, expr: &mut Expr) -> Type {
        let at = expr.at;
        if let Some(resolved) = self.variable(expr) {
            return resolved;
        }
        match &mut expr.kind {
            Kind::Literal(literal) => match literal {
                Literal::Null => Type::Null,
                Literal::Bool(_) => Type::Bool,
                Literal::Int(_) => Type::Int,
                Literal::Uint(_) => Type::Uint,
                Literal::Double(_) => Type::Double,
                Literal::Text(_) => Type::String,
                Literal::Bytes(_) => Type::Bytes,
            },
            Kind::Name(name) => {
                let message = format!("undeclared reference to '{name}' (in container '')");
                self.issue(at, message)
            }
            Kind::Constant { written, .. } => self.expr(written),
            Kind::Local(_) | Kind::Global(_) | Kind::Type(_) => Type::Dyn,
            Kind::Select { operand, field, test, optional } => {
                let inner = self.expr(operand);
                let (test, optional) = (*test, *optional);
                self.select(at, inner, field, test, optional)
            }
            Kind::Index { operand, key, optional } => {
                let inner = self.expr(operand);
                let key = self.expr(key);
                let optional = *optional;
                self.index(at, &inner, &key, optional)
            }
            Kind::Call { .. } => self.call(expr),
            Kind::And(parts) => self.logic(at, parts, "_&&_"),
            Kind::Or(parts) => self.logic(at, parts, "_||_"),
            Kind::If(parts) => {
                let [condition, yes, no] = &mut **parts;
                let (condition, yes, no) = (self.expr(condition), self.expr(yes), self.expr(no));
                let snapshot = self.bindings.snapshot();
                if self.bindings.fits(&condition, &Type::Bool) && self.bindings.fits(&no, &yes) {
                    let (yes, no) = (self.known(&yes), self.known(&no));
                    return if yes == no { yes } else { more_general(yes, no) };
                }
                self.bindings.restore(snapshot);
                self.no_overload(at, "_?_:_", &[condition, yes, no])
            }
            Kind::List(items) => {
                let item = self.bindings.fresh();
                for element in items.iter_mut() {
                    let place = element.value.at;
                    let mut kind = self.expr(&mut element.value);
                    if element.optional {
                        kind = self.unwrapped(place, kind);
                    }
                    self.same(place, &kind, &item);
                }
                Type::list(item)
            }
            Kind::Map(items) => {
                let (key, value) = (self.bindings.fresh(), self.bindings.fresh());
                for element in items.iter_mut() {
                    let place = element.key.at;
                    let own = self.expr(&mut element.key);
                    self.same(place, &own, &key);
                    let place = element.value.at;
                    let mut own = self.expr(&mut element.value);
                    if element.optional {
                        own = self.unwrapped(place, own);
                    }
                    self.same(place, &own, &value);
                }
                Type::Map(Arc::new(key), Arc::new(value))
            }
            Kind::Object { name, fields } => {
                let name = name.clone();
                let Some(kind) = self.env.object_type(&name) else {
                    let message = format!("undeclared reference to '{name}' (in container '')");
                    return self.issue(at, message);
                };
                for field in fields.iter_mut() {
                    let place = field.value.at;
                    let mut own = self.expr(&mut field.value);
                    if field.optional {
                        own = self.unwrapped(place, own);
                    }
                    let Type::Object(object) = &kind else { continue };
                    match object.field(&field.key) {
                        None => {
                            let message = format!("undefined field '{}'", field.key);
                            self.issue(place, message);
                        }
                        Some((json, wanted)) => {
                            field.key = json;
                            if !self.bindings.fits(&own, &wanted) {
                                let own = self.known(&own);
                                let message = format!(
                                    "expected type of field '{}' is '{wanted}' but provided type is '{own}'",
                                    field.key
                                );
                                self.issue(place, message);
                            }
                        }
                    }
                }
                kind
            }
            Kind::Fold { .. } => self.fold(expr),
            Kind::Bind { name, value, body } => {
                let kind = self.expr(value);
                self.locals.push((name.clone(), kind));
                let result = self.expr(body);
                self.locals.pop();
                result
            }
            Kind::OptionalMap { operand, name, body, flat } => {
                let place = operand.at;
                let kind = self.expr(operand);
                let inner = self.unwrapped(place, kind);
                self.locals.push((name.clone(), inner));
                let result = self.expr(body);
                self.locals.pop();
                if *flat {
                    let inner = self.unwrapped(at, result);
                    Type::optional(inner)
                } else {
                    Type::optional(result)
                }
            }
        }
    }

    /// Elements of one literal have one type.
    fn same(&mut self, at: u32, kind: &Type, wanted: &Type) {
        if !self.bindings.fits(kind, wanted) {
            let (kind, wanted) = (self.known(kind), self.known(wanted));
            self.issue(at, format!("expected type '{wanted}' but found '{kind}'"));
        }
    }

    /// The type inside of an optional.
    fn unwrapped(&mut self, at: u32, kind: Type) -> Type {
        match self.known(&kind) {
            Type::Optional(inner) => (*inner).clone(),
            Type::Dyn | Type::Error => Type::Dyn,
            other => self.issue(at, format!("expected type 'optional_type(dyn)' but found '{other}'")),
        }
    }

    /// Names: variables of macros first, then the longest declared name, then types.
    fn variable(&mut self, expr: &mut Expr) -> Option<Type> {
        let mut probe = expr.clone();
        let test = if let Kind::Select { test, .. } = &mut probe.kind { std::mem::take(test) } else { false };
        let name = qualified(&probe)?;
        let first = name.split('.').next().unwrap_or_default();
        if let Some(place) = self.locals.iter().rposition(|(own, _)| own == first) {
            if first.len() == name.len() {
                expr.kind = Kind::Local(place);
                return Some(self.locals[place].1.clone());
            }
            return None;
        }
        if let Some((index, kind)) = self.env.variable(&name) {
            expr.kind = if test { Kind::Literal(Literal::Bool(true)) } else { Kind::Global(index) };
            return Some(if test { Type::Bool } else { kind });
        }
        if test {
            return None;
        }
        let kind = Type::by_name(&name)?;
        expr.kind = Kind::Type(kind.clone());
        Some(Type::Meta(Arc::new(kind)))
    }

    fn select(&mut self, at: u32, inner: Type, field: &mut String, test: bool, optional: bool) -> Type {
        let mut inner = self.known(&inner);
        let mut wraps = optional;
        if let Type::Optional(content) = &inner {
            inner = (**content).clone();
            wraps = true;
        }
        let kind = match &inner {
            Type::Dyn | Type::Error => Type::Dyn,
            Type::Map(key, value) => {
                if !matches!(**key, Type::String | Type::Dyn) {
                    return self.issue(at, format!("type '{inner}' does not support field selection"));
                }
                (**value).clone()
            }
            Type::Object(object) => match object.field(field) {
                Some((json, kind)) => {
                    *field = json;
                    kind
                }
                None => {
                    let message = format!("undefined field '{field}'");
                    return self.issue(at, message);
                }
            },
            other => {
                let message = format!("type '{other}' does not support field selection");
                return self.issue(at, message);
            }
        };
        match (test, wraps) {
            (true, _) => Type::Bool,
            (false, true) => match kind {
                already @ Type::Optional(_) => already,
                kind => Type::optional(kind),
            },
            (false, false) => kind,
        }
    }

    fn index(&mut self, at: u32, inner: &Type, key: &Type, optional: bool) -> Type {
        let whole = self.known(inner);
        let (content, wraps) = match &whole {
            Type::Optional(content) => ((**content).clone(), true),
            other => (other.clone(), optional),
        };
        let found = match &content {
            Type::Dyn | Type::Error => Some(Type::Dyn),
            Type::List(item) => {
                let fits = matches!(
                    self.known(key),
                    Type::Int | Type::Uint | Type::Double | Type::Dyn | Type::Error
                );
                fits.then(|| (**item).clone())
            }
            Type::Map(own, value) => self.bindings.fits(key, own).then(|| (**value).clone()),
            _ => None,
        };
        match found {
            None => {
                let name = if optional { "_[?_]" } else { "_[_]" };
                self.no_overload(at, name, &[whole, key.clone()])
            }
            Some(kind) if wraps => Type::optional(kind),
            Some(kind) => kind,
        }
    }

    fn logic(&mut self, at: u32, parts: &mut [Expr], name: &str) -> Type {
        let kinds: Vec<Type> = parts.iter_mut().map(|part| self.expr(part)).collect();
        for pair in kinds.windows(2) {
            if !pair.iter().all(|kind| self.bindings.fits(kind, &Type::Bool)) {
                return self.no_overload(at, name, pair);
            }
        }
        Type::Bool
    }

    fn no_overload(&mut self, at: u32, name: &str, kinds: &[Type]) -> Type {
        let kinds: Vec<Type> = kinds.iter().map(|kind| self.known(kind)).collect();
        if kinds.iter().any(|kind| matches!(kind, Type::Error)) {
            return Type::Error; // told already
        }
        let shown: Vec<String> = kinds.iter().map(Type::to_string).collect();
        self.issue(at, format!("found no matching overload for '{name}' applied to '({})'", shown.join(", ")))
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let at = expr.at;
        let Kind::Call { name, member, args, function } = &mut expr.kind else { return Type::Error };
        if *member
            && let Some(space) = args.first().and_then(qualified)
            && let Some(found) = functions::find(&format!("{space}.{name}"))
            && !self.locals.iter().any(|(own, _)| *own == space)
        {
            *name = found.name.to_owned();
            *member = false;
            args.remove(0);
        }
        let (name, member) = (name.clone(), *member);
        let mixed = name == "format";
        let kinds: Vec<Type> = args
            .iter_mut()
            .map(|arg| match &mut arg.kind {
                // What is formatted may be of many types.
                Kind::List(items) if mixed => {
                    items.iter_mut().for_each(|item| {
                        self.expr(&mut item.value);
                    });
                    Type::list(Type::Dyn)
                }
                _ => self.expr(arg),
            })
            .collect();
        let Some(found) = functions::find(&name).filter(|_| self.env.offers(&name)) else {
            return self.issue(at, format!("undeclared reference to '{name}' (in container '')"));
        };
        *function = Some(found);
        if let Some(message) = bad_literal(&name, args) {
            return self.issue(at, message);
        }
        self.overload(at, found, member, &kinds)
    }

    fn overload(&mut self, at: u32, function: &Function, member: bool, kinds: &[Type]) -> Type {
        let mut result: Option<Type> = None;
        let mut several = false;
        let start = self.bindings.snapshot();
        let mut learnt = None;
        for signature in &function.signatures {
            if signature.member != member || signature.params.len() != kinds.len() {
                continue;
            }
            self.bindings.restore(start.clone());
            let mut fresh: Vec<(u32, Type)> = Vec::new();
            let params: Vec<Type> =
                signature.params.iter().map(|kind| self.instance(kind, &mut fresh)).collect();
            let outcome = self.instance(&signature.result, &mut fresh);
            if !kinds.iter().zip(&params).all(|(kind, param)| self.bindings.fits(kind, param)) {
                continue;
            }
            if learnt.is_none() {
                learnt = Some(self.bindings.snapshot());
            }
            match &result {
                None => result = Some(outcome),
                Some(own) => {
                    several = true;
                    if self.known(own) != self.known(&outcome) {
                        result = Some(Type::Dyn);
                    }
                }
            }
        }
        let Some(result) = result else {
            self.bindings.restore(start);
            return self.no_overload(at, function.name, kinds);
        };
        // With one fitting signature its parameters are learnt; with several nothing is certain.
        self.bindings.restore(if several { start } else { learnt.unwrap_or(start) });
        result
    }

    /// A signature's type with parameters of its own.
    fn instance(&mut self, kind: &Type, fresh: &mut Vec<(u32, Type)>) -> Type {
        match kind {
            Type::Param(index) => {
                if let Some((_, known)) = fresh.iter().find(|(own, _)| own == index) {
                    return known.clone();
                }
                let new = self.bindings.fresh();
                fresh.push((*index, new.clone()));
                new
            }
            Type::List(item) => Type::list(self.instance(item, fresh)),
            Type::Optional(inner) => Type::optional(self.instance(inner, fresh)),
            Type::Map(key, value) => {
                Type::Map(Arc::new(self.instance(key, fresh)), Arc::new(self.instance(value, fresh)))
            }
            other => other.clone(),
        }
    }

    fn fold(&mut self, expr: &mut Expr) -> Type {
        let Kind::Fold { fold, range, variables, filter, body } = &mut expr.kind else { return Type::Error };
        let place = range.at;
        let kind = self.expr(range);
        let whole = self.known(&kind);
        let two = variables.len() == 2;
        let (first, second) = match &whole {
            Type::List(item) if two => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Dyn),
            Type::Map(key, value) => ((**key).clone(), (**value).clone()),
            Type::Dyn | Type::Error => (Type::Dyn, Type::Dyn),
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(place, message);
                (Type::Error, Type::Error)
            }
        };
        let kinds = [first.clone(), second];
        let count = variables.len();
        for (name, kind) in variables.iter().zip(kinds) {
            self.locals.push((name.clone(), kind));
        }
        if let Some(filter) = filter {
            let at = filter.at;
            let kind = self.expr(filter);
            self.same(at, &kind, &Type::Bool);
        }
        let at = body.at;
        let inner = self.expr(body);
        self.locals.truncate(self.locals.len() - count);
        match fold {
            Fold::All | Fold::Exists | Fold::ExistsOne => {
                self.same(at, &inner, &Type::Bool);
                Type::Bool
            }
            Fold::Filter => {
                self.same(at, &inner, &Type::Bool);
                Type::list(first)
            }
            Fold::Map | Fold::TransformList => Type::list(inner),
            Fold::TransformMap => {
                let key = match whole {
                    Type::List(_) => Type::Int,
                    Type::Map(key, _) => (*key).clone(),
                    _ => Type::Dyn,
                };
                Type::Map(Arc::new(key), Arc::new(inner))
            }
            Fold::TransformMapEntry => match self.known(&inner) {
                map @ Type::Map(..) => map,
                Type::Dyn | Type::Error => Type::Map(Arc::new(Type::Dyn), Arc::new(Type::Dyn)),
                other => self.issue(at, format!("expected type 'map(dyn, dyn)' but found '{other}'")),
            },
            Fold::SortBy => Type::list(first),
        }
    }
}

/// Literals that can be judged before anything runs: moments, spans, regular expressions.
fn bad_literal(name: &str, args: &[Expr]) -> Option<String> {
    let text = |index: usize| match args.get(index).map(|arg| &arg.kind) {
        Some(Kind::Literal(Literal::Text(text))) => Some(text.as_str()),
        _ => None,
    };
    match name {
        "duration" if apimachinery::time::parse_duration(text(0)?).is_none() => {
            Some("invalid duration argument".to_owned())
        }
        "timestamp" if apimachinery::time::parse(text(0)?).is_none() => {
            Some("invalid timestamp argument".to_owned())
        }
        "matches" | "find" | "findAll" if functions::regex(text(1)?).is_err() => {
            Some("invalid matches argument".to_owned())
        }
        _ => None,
    }
}

/// Of two types that fit each other, the one that says less.
fn more_general(one: Type, other: Type) -> Type {
    match (&one, &other) {
        (Type::Null, _) => other,
        (_, Type::Null) => one,
        (Type::List(_), Type::List(_))
        | (Type::Map(..), Type::Map(..))
        | (Type::Optional(_), Type::Optional(_)) => one,
        _ => Type::Dyn,
    }
}
