//! What a call costs when it runs. The numbers are upstream's: they decide when a rule or policy has run for too long.
//!
//! Most calls are paid for before they are made, by their arguments; [`Price::Own`] are functions that spend themselves, because
//! what they cost is what they make.

use super::Run;
use crate::error::Error;
use crate::value::{Opaque, Val};

/// A new list, and the call that makes it.
pub const LISTED: u64 = 11;

/// How a function is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Price {
    /// Nothing.
    Free,
    /// One, whatever it is called with.
    One,
    /// Going once over the first argument.
    Pass,
    /// Going over the first argument and making something as large.
    TwoPasses,
    /// A conversion: going over bytes, one for anything else. A literal is converted beforehand.
    FromBytes,
    /// The same for text.
    FromText,
    /// A conversion that costs one.
    Converted,
    /// An address: text has to be read.
    Address,
    /// The text times the length of a pattern.
    Matched,
    /// The text times the part that is looked for.
    Found,
    /// Comparing two values: the smaller one.
    Compared,
    /// Ordering two values: the smaller one if they are text.
    Ordered,
    /// Both arguments if they are text.
    Added,
    /// The list that is looked through.
    Sought,
    /// Everything that is in the first argument.
    Traversed,
    /// A new list as large as the first argument, so many times over as the second says.
    Listed,
    /// A new list, made by comparing all with all.
    Sorted,
    /// All of one list with all of the other, so many times.
    Sets(u64),
    /// A label or field selector that is read.
    Selector,
    /// What the function says.
    Own,
}

impl Price {
    /// The price of a function.
    pub fn of(name: &str) -> Self {
        match name {
            "url" | "lowerAscii" | "upperAscii" | "substring" | "trim" | "jsonpatch.escapeKey" => Price::Pass,
            "startsWith" | "endsWith" | "strings.quote" | "format" => Price::Pass,
            "cidr" | "isIP" | "isCIDR" | "quantity" | "isQuantity" | "semver" | "isSemver" => Price::Pass,
            "replace" | "split" | "ip.isCanonical" => Price::TwoPasses,
            "string" => Price::FromBytes,
            "bytes" => Price::FromText,
            "bool" | "double" | "duration" | "dyn" | "int" | "timestamp" | "type" | "uint" => {
                Price::Converted
            }
            "ip" => Price::Address,
            "or" | "orValue" => Price::Free,
            "matches" | "find" | "findAll" => Price::Matched,
            "contains" => Price::Found,
            "_==_" | "_!=_" => Price::Compared,
            "_<_" | "_<=_" | "_>_" | "_>=_" => Price::Ordered,
            "_+_" => Price::Added,
            "@in" => Price::Sought,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => Price::Traversed,
            "flatten" | "reverse" => Price::Listed,
            "sort" | "distinct" => Price::Sorted,
            "sets.contains" | "sets.intersects" => Price::Sets(1),
            "sets.equivalent" => Price::Sets(2),
            "fieldSelector" | "labelSelector" => Price::Selector,
            "join" | "slice" | "lists.range" | "validate" | "check" | "containsIP" | "containsCIDR" => {
                Price::Own
            }
            _ => Price::One,
        }
    }

    /// Whether it is that of a conversion, which upstream makes beforehand if it can.
    pub fn is_conversion(self) -> bool {
        matches!(self, Price::FromBytes | Price::FromText | Price::Converted)
    }

    /// What is paid before a call.
    pub fn charge(self, run: &mut Run<'_>, args: &[Val<'_>]) -> Result<(), Error> {
        let size = |index: usize| args.get(index).map_or(0, size);
        let pass = |size: u64| size.div_ceil(10);
        let smaller = || pass(size(0).min(size(1)));
        run.charge(match (self, args) {
            (Price::Own | Price::Free, _) => 0,
            (Price::Pass, _) => pass(size(0)),
            (Price::TwoPasses, _) => size(0).saturating_mul(2).div_ceil(10),
            (Price::FromBytes, [Val::Bytes(_)]) => pass(size(0)),
            (Price::FromText | Price::Address, [Val::Text(_)]) => pass(size(0)),
            (Price::Matched, _) => pass(size(0) + 1).saturating_mul(size(1).div_ceil(4)),
            (Price::Found, _) => pass(size(0)).saturating_mul(pass(size(1))),
            (Price::Compared, _) => smaller(),
            (Price::Ordered, [Val::Text(_) | Val::Bytes(_), _]) => smaller(),
            (Price::Added, [Val::Text(_) | Val::Bytes(_), _]) => pass(size(0).saturating_add(size(1))),
            (Price::Sought, [_, Val::List(list)]) => list.len() as u64,
            (Price::Traversed, [first, ..]) => traversal(first)?,
            (Price::Listed, [_, Val::Int(depth)]) => {
                size(0).saturating_mul(u64::try_from(*depth).unwrap_or(0)).saturating_add(LISTED)
            }
            (Price::Listed, _) => size(0).saturating_add(LISTED),
            (Price::Sorted, [Val::List(list), ..]) => {
                let first = if list.is_empty() { None } else { Some(list.get(0)?) };
                all_with_all(list.len(), first.as_ref())
            }
            (Price::Sets(times), _) => {
                size(0).saturating_mul(size(1)).saturating_mul(times).saturating_add(1)
            }
            (Price::Selector, _) => {
                let requirements = size(1).div_ceil(2).saturating_mul(50);
                (LISTED - 1).saturating_add(pass(size(1))).saturating_add(requirements)
            }
            _ => 1,
        })
    }
}

/// Comparing all of a list with all of it, and the list that is made.
pub fn all_with_all(count: usize, first: Option<&Val<'_>>) -> u64 {
    let pairs = (count as u64).saturating_mul(count as u64);
    let tenths = if matches!(first, Some(Val::Text(_) | Val::Bytes(_))) { 21 } else { 20 };
    (pairs.saturating_mul(tenths) / 10).saturating_add(LISTED)
}

/// How many letters or elements a value has.
pub fn size(value: &Val<'_>) -> u64 {
    match value {
        Val::Text(text) => text.chars().count() as u64,
        Val::Optional(Some(inner)) => size(inner),
        other => other.size(),
    }
}

/// What going through everything in a value costs.
fn traversal(value: &Val<'_>) -> Result<u64, Error> {
    Ok(match value {
        Val::Text(_) | Val::Bytes(_) => value.size() / 10,
        Val::List(list) => {
            let mut cost = 0_u64;
            for item in list {
                cost = cost.saturating_add(traversal(&item?)?);
            }
            cost
        }
        _ => 1,
    })
}

/// The bytes that an address or the prefix of a range has.
pub fn address(value: &Opaque) -> u64 {
    match value {
        Opaque::Ip(ip) => {
            if ip.is_ipv4() {
                4
            } else {
                16
            }
        }
        Opaque::Cidr(_, length) => u64::from(*length).div_ceil(8),
        _ => 1,
    }
}
