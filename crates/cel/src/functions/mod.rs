//! The library: every function and operator with its signatures, which the checker uses, and what it does.
//!
//! One table per subject; an entry is a name, a Rust function and the signatures in a small notation: `string.(int) ->
//! string` has a receiver, `(int) -> string` has none, single capitals are type parameters. A function looks at the
//! values it gets and answers [`Error::NoOverload`] when it does not take them, which happens only with `dyn`.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use crate::error::Error;
use crate::types::Type;
use crate::value::{Authorizer, Val};
use price::Price;

pub mod authorizer;
pub mod convert;
pub mod formats;
pub mod lists;
pub mod net;
pub mod operators;
pub mod optionals;
pub mod price;
pub mod quantity;
pub mod semver;
pub mod strings;
pub mod time;
pub mod url;

/// What a function may use beside its arguments.
pub struct Run<'r> {
    /// What has been spent.
    pub cost: u64,
    /// What may be spent.
    pub limit: u64,
    /// How many bytes may still be made that nobody pays for.
    room: usize,
    /// Answers checks of permissions.
    pub authorizer: Option<&'r dyn Authorizer>,
}

impl<'r> Run<'r> {
    pub(crate) fn new(limit: u64, room: usize, authorizer: Option<&'r dyn Authorizer>) -> Self {
        Self { cost: 0, limit, room, authorizer }
    }

    /// How many bytes may still be made that nobody pays for.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Spends.
    pub fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > self.limit { Err(Error::CostLimit) } else { Ok(()) }
    }

    /// Takes room for bytes that are about to be made. Where upstream's cost does not say how much a call makes, this bounds it, alone
    /// and together with all others, as any of them may be kept.
    pub fn allow(&mut self, bytes: usize) -> Result<(), Error> {
        self.room = self.room.checked_sub(bytes).ok_or(Error::CostLimit)?;
        Ok(())
    }
}

/// Text that grows as far as a run allows.
pub(crate) struct Growing<'m, 'r> {
    text: String,
    run: &'m mut Run<'r>,
}

impl<'m, 'r> Growing<'m, 'r> {
    pub(crate) fn new(run: &'m mut Run<'r>) -> Self {
        Self { text: String::new(), run }
    }

    pub(crate) fn push(&mut self, part: &str) -> Result<(), Error> {
        self.run.allow(part.len())?;
        self.text.push_str(part);
        Ok(())
    }

    /// With `format_args!`.
    pub(crate) fn add(&mut self, parts: fmt::Arguments<'_>) -> Result<(), Error> {
        // Writing fails only where the run does not allow it.
        fmt::Write::write_fmt(self, parts).map_err(|_| Error::CostLimit)
    }

    /// Another one beside it.
    pub(crate) fn other(&mut self) -> Growing<'_, 'r> {
        Growing::new(self.run)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

impl fmt::Write for Growing<'_, '_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.push(part).map_err(|_| fmt::Error)
    }
}

/// What a function gives.
pub type Outcome<'a> = Result<Val<'a>, Error>;
/// How a function is called; the receiver is the first argument.
pub type Body = for<'a> fn(&mut Run<'_>, &[Val<'a>]) -> Outcome<'a>;
/// A line of a table.
pub type Entry = (&'static str, Body, &'static [&'static str]);

/// One way to call a function.
#[derive(Debug)]
pub struct Signature {
    /// Called on a receiver.
    pub member: bool,
    /// Types of the arguments, the receiver first.
    pub params: Vec<Type>,
    /// Type of the outcome.
    pub result: Type,
}

/// A function.
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub body: Body,
    /// What it costs.
    pub price: Price,
    /// How it may be called.
    pub signatures: Vec<Signature>,
}

impl fmt::Debug for Function {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

const TABLES: [&[Entry]; 11] = [
    operators::TABLE,
    convert::TABLE,
    strings::TABLE,
    time::TABLE,
    lists::TABLE,
    optionals::TABLE,
    net::TABLE,
    url::TABLE,
    quantity::TABLE,
    semver::TABLE,
    formats::TABLE,
];

/// The function of a name.
pub fn find(name: &str) -> Option<&'static Function> {
    static ALL: OnceLock<HashMap<&'static str, Function>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let entries = TABLES.iter().copied().chain([authorizer::TABLE]).flatten();
        entries
            .map(|(name, body, signatures)| {
                let signatures = signatures.iter().map(|text| signature(text)).collect();
                (*name, Function { name, body: *body, price: Price::of(name), signatures })
            })
            .collect()
    });
    all.get(name)
}

fn signature(text: &str) -> Signature {
    let (call, result) = text.split_once("->").unwrap_or((text, "dyn"));
    let call = call.trim();
    let (receiver, args) = match call.split_once(".(") {
        Some((receiver, args)) => (Some(receiver), args),
        None => (None, call.trim_start_matches('(')),
    };
    let args = args.strip_suffix(')').unwrap_or(args);
    let mut params: Vec<Type> = receiver.map(Type::parse).into_iter().collect();
    params.extend(split_types(args).into_iter().map(Type::parse));
    Signature { member: receiver.is_some(), params, result: Type::parse(result) }
}

/// Splits at the commas outside of parentheses.
fn split_types(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

/// A regular expression: linear time, bounded size.
pub(crate) fn regex(pattern: &str) -> Result<regex_lite::Regex, Error> {
    regex_lite::RegexBuilder::new(pattern)
        .size_limit(1 << 20)
        .build()
        .map_err(|error| Error::invalid(format!("error parsing regexp: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_readable() {
        for (name, _, signatures) in TABLES.iter().copied().chain([authorizer::TABLE]).flatten() {
            for text in *signatures {
                let read = signature(text);
                let bad = read.params.iter().chain([&read.result]).any(|kind| matches!(kind, Type::Error));
                assert!(!bad, "{name}: {text}");
            }
        }
    }
}
