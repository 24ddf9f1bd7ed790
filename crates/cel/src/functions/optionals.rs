//! Optional values.

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::Val;

/// The functions.
pub const TABLE: &[Entry] = &[
    ("optional.of", of, &["(A)->optional(A)"]),
    ("optional.ofNonZeroValue", of_non_zero, &["(A)->optional(A)"]),
    ("optional.none", none, &["()->optional(A)"]),
    ("hasValue", has_value, &["optional(A).()->bool"]),
    ("value", value, &["optional(A).()->A"]),
    ("or", or, &["optional(A).(optional(A))->optional(A)"]),
    ("orValue", or_value, &["optional(A).(A)->A"]),
];

fn of<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    args.first().cloned().map(Val::some).ok_or(Error::NoOverload)
}

fn of_non_zero<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let inner = args.first().ok_or(Error::NoOverload)?;
    let zero = match inner {
        Val::Null | Val::Optional(None) => true,
        Val::Bool(value) => !value,
        Val::Int(value) => *value == 0,
        Val::Uint(value) => *value == 0,
        Val::Double(value) => *value == 0.0,
        Val::Duration(nanos) => *nanos == 0,
        Val::Text(_) | Val::Bytes(_) | Val::List(_) | Val::Map(_) => inner.size() == 0,
        _ => false,
    };
    Ok(if zero { Val::Optional(None) } else { Val::some(inner.clone()) })
}

fn none<'a>(_: &mut Run<'_>, _: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Optional(None))
}

fn has_value<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Optional(inner)] => Ok(Val::Bool(inner.is_some())),
        _ => Err(Error::NoOverload),
    }
}

fn value<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Optional(inner)] => inner.as_deref().cloned().ok_or(Error::Nothing),
        _ => Err(Error::NoOverload),
    }
}

fn or<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Optional(None), other] => Ok(other.clone()),
        [own @ Val::Optional(Some(_)), _] => Ok(own.clone()),
        _ => Err(Error::NoOverload),
    }
}

fn or_value<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Optional(None), other] => Ok(other.clone()),
        [Val::Optional(Some(inner)), _] => Ok((**inner).clone()),
        _ => Err(Error::NoOverload),
    }
}
