//! Expressions as trees. The parser makes them, the checker resolves their names in place, the evaluator walks them.

use crate::constant::Constant;
use crate::functions::Function;
use crate::types::Type;

/// A literal.
#[derive(Debug, Clone, PartialEq)]
pub enum Literal {
    /// `null`
    Null,
    /// `true`
    Bool(bool),
    /// `1`
    Int(i64),
    /// `1u`
    Uint(u64),
    /// `1.0`
    Double(f64),
    /// `'a'`
    Text(String),
    /// `b'a'`
    Bytes(Vec<u8>),
}

/// What a comprehension macro does with its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// True for every element.
    All,
    /// True for one at least.
    Exists,
    /// True for exactly one.
    ExistsOne,
    /// A list of what the body gives.
    Map,
    /// The elements for which the body holds.
    Filter,
    /// A list from a two-variable body.
    TransformList,
    /// A map with the same keys.
    TransformMap,
    /// A map from single-entry maps.
    TransformMapEntry,
    /// The elements in the order of what the body gives.
    SortBy,
}

/// A node and where it stands in the source.
#[derive(Debug, Clone)]
pub struct Expr {
    /// Byte offset of the token that errors point at.
    pub at: u32,
    /// What it is.
    pub kind: Kind,
}

/// An element of a list, map or object literal; `optional` ones (`?x`) are left out when they hold nothing.
#[derive(Debug, Clone)]
pub struct Element<K> {
    /// Key or field name.
    pub key: K,
    /// The value.
    pub value: Expr,
    /// Written with a question mark.
    pub optional: bool,
}

/// What a node is.
#[derive(Debug, Clone)]
pub enum Kind {
    /// A literal.
    Literal(Literal),
    /// A list, map or conversion whose value is known before anything runs.
    Constant {
        /// As it is in the source.
        written: Box<Expr>,
        /// What it gives.
        value: Box<Constant>,
    },
    /// A name that the checker has not seen yet.
    Name(String),
    /// A variable of a macro, by its place on the stack.
    Local(usize),
    /// A declared variable, by its index in the environment.
    Global(usize),
    /// A type as a value.
    Type(Type),
    /// `a.b`, `a.?b`, `has(a.b)`
    Select {
        /// What is looked into.
        operand: Box<Expr>,
        /// The field; after checking the JSON name.
        field: String,
        /// Only whether it is there.
        test: bool,
        /// Gives an optional.
        optional: bool,
    },
    /// `a[b]`, `a[?b]`
    Index {
        /// What is looked into.
        operand: Box<Expr>,
        /// The key.
        key: Box<Expr>,
        /// Gives an optional.
        optional: bool,
    },
    /// A function or operator; a receiver is the first argument.
    Call {
        /// Its name, operators as `_+_`.
        name: String,
        /// Written as `a.f(b)`.
        member: bool,
        /// Arguments.
        args: Vec<Expr>,
        /// What it is, set by the checker.
        function: Option<&'static Function>,
    },
    /// `a && b && c`
    And(Vec<Expr>),
    /// `a || b || c`
    Or(Vec<Expr>),
    /// `a ? b : c`
    If(Box<[Expr; 3]>),
    /// `[a, ?b]`
    List(Vec<Element<()>>),
    /// `{a: b}`
    Map(Vec<Element<Expr>>),
    /// `Object.spec{a: b}`
    Object {
        /// The type's name.
        name: String,
        /// Its fields.
        fields: Vec<Element<String>>,
    },
    /// A comprehension.
    Fold {
        /// Which.
        fold: Fold,
        /// What is gone through.
        range: Box<Expr>,
        /// One variable or two.
        variables: Vec<String>,
        /// Which elements take part.
        filter: Option<Box<Expr>>,
        /// What is asked of each.
        body: Box<Expr>,
    },
    /// `cel.bind(name, value, body)`
    Bind {
        /// The name.
        name: String,
        /// Its value.
        value: Box<Expr>,
        /// Where it holds.
        body: Box<Expr>,
    },
    /// `optional.optMap(name, body)` and `optFlatMap`
    OptionalMap {
        /// The optional.
        operand: Box<Expr>,
        /// Name of its content.
        name: String,
        /// What is made of it.
        body: Box<Expr>,
        /// The body itself gives an optional.
        flat: bool,
    },
}

impl Expr {
    /// A node.
    pub fn new(at: usize, kind: Kind) -> Self {
        Self { at: at as u32, kind }
    }

    /// Calls `visit` for the node and everything below it.
    pub fn walk<'e>(&'e self, visit: &mut dyn FnMut(&'e Expr)) {
        visit(self);
        match &self.kind {
            Kind::Literal(_) | Kind::Name(_) | Kind::Local(_) | Kind::Global(_) | Kind::Type(_) => {}
            Kind::Constant { written, .. } => written.walk(visit),
            Kind::Select { operand, .. } => operand.walk(visit),
            Kind::Index { operand, key, .. } => {
                operand.walk(visit);
                key.walk(visit);
            }
            Kind::Call { args, .. } => args.iter().for_each(|arg| arg.walk(visit)),
            Kind::And(parts) | Kind::Or(parts) => parts.iter().for_each(|part| part.walk(visit)),
            Kind::If(parts) => parts.iter().for_each(|part| part.walk(visit)),
            Kind::List(items) => items.iter().for_each(|item| item.value.walk(visit)),
            Kind::Map(items) => items.iter().for_each(|item| {
                item.key.walk(visit);
                item.value.walk(visit);
            }),
            Kind::Object { fields, .. } => fields.iter().for_each(|field| field.value.walk(visit)),
            Kind::Fold { range, filter, body, .. } => {
                range.walk(visit);
                if let Some(filter) = filter {
                    filter.walk(visit);
                }
                body.walk(visit);
            }
            Kind::Bind { value, body, .. } => {
                value.walk(visit);
                body.walk(visit);
            }
            Kind::OptionalMap { operand, body, .. } => {
                operand.walk(visit);
                body.walk(visit);
            }
        }
    }

    /// Calls `visit` for what is directly below the node.
    pub(crate) fn below_mut(&mut self, visit: &mut dyn FnMut(&mut Expr)) {
        match &mut self.kind {
            Kind::Literal(_) | Kind::Name(_) | Kind::Local(_) | Kind::Global(_) | Kind::Type(_) => {}
            Kind::Constant { written, .. } => visit(written),
            Kind::Select { operand, .. } => visit(operand),
            Kind::Index { operand, key, .. } => {
                visit(operand);
                visit(key);
            }
            Kind::Call { args, .. } => args.iter_mut().for_each(visit),
            Kind::And(parts) | Kind::Or(parts) => parts.iter_mut().for_each(visit),
            Kind::If(parts) => parts.iter_mut().for_each(visit),
            Kind::List(items) => items.iter_mut().for_each(|item| visit(&mut item.value)),
            Kind::Map(items) => items.iter_mut().for_each(|item| {
                visit(&mut item.key);
                visit(&mut item.value);
            }),
            Kind::Object { fields, .. } => fields.iter_mut().for_each(|field| visit(&mut field.value)),
            Kind::Fold { range, filter, body, .. } => {
                visit(range);
                if let Some(filter) = filter {
                    visit(filter);
                }
                visit(body);
            }
            Kind::Bind { value, body, .. } => {
                visit(value);
                visit(body);
            }
            Kind::OptionalMap { operand, body, .. } => {
                visit(operand);
                visit(body);
            }
        }
    }
}
