//! Arithmetic, comparison, membership.

use std::cmp::Ordering;

use jiff::{SignedDuration, Timestamp};

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{Bytes, List, Val};

const ORDERED: &[&str] = &[
    "(bool,bool)->bool",
    "(int,int)->bool",
    "(int,double)->bool",
    "(int,uint)->bool",
    "(uint,uint)->bool",
    "(uint,double)->bool",
    "(uint,int)->bool",
    "(double,double)->bool",
    "(double,int)->bool",
    "(double,uint)->bool",
    "(string,string)->bool",
    "(bytes,bytes)->bool",
    "(timestamp,timestamp)->bool",
    "(duration,duration)->bool",
];

/// The operators.
pub const TABLE: &[Entry] = &[
    (
        "_+_",
        add,
        &[
            "(int,int)->int",
            "(uint,uint)->uint",
            "(double,double)->double",
            "(string,string)->string",
            "(bytes,bytes)->bytes",
            "(list(A),list(A))->list(A)",
            "(timestamp,duration)->timestamp",
            "(duration,timestamp)->timestamp",
            "(duration,duration)->duration",
        ],
    ),
    (
        "_-_",
        subtract,
        &[
            "(int,int)->int",
            "(uint,uint)->uint",
            "(double,double)->double",
            "(timestamp,timestamp)->duration",
            "(timestamp,duration)->timestamp",
            "(duration,duration)->duration",
        ],
    ),
    ("_*_", multiply, &["(int,int)->int", "(uint,uint)->uint", "(double,double)->double"]),
    ("_/_", divide, &["(int,int)->int", "(uint,uint)->uint", "(double,double)->double"]),
    ("_%_", remainder, &["(int,int)->int", "(uint,uint)->uint"]),
    ("-_", negate, &["(int)->int", "(double)->double"]),
    ("!_", not, &["(bool)->bool"]),
    ("_==_", equal, &["(A,A)->bool"]),
    ("_!=_", unequal, &["(A,A)->bool"]),
    ("_<_", less, ORDERED),
    ("_<=_", less_or_equal, ORDERED),
    ("_>_", greater, ORDERED),
    ("_>=_", greater_or_equal, ORDERED),
    ("@in", contained, &["(A,list(A))->bool", "(A,map(A,B))->bool"]),
];

fn moment(at: &Timestamp, nanos: i64) -> Result<Timestamp, Error> {
    at.checked_add(SignedDuration::from_nanos(nanos)).map_err(|_| Error::invalid("timestamp overflow"))
}

fn add<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [Val::Int(a), Val::Int(b)] => Val::Int(a.checked_add(*b).ok_or(Error::Overflow)?),
        [Val::Uint(a), Val::Uint(b)] => Val::Uint(a.checked_add(*b).ok_or(Error::Overflow)?),
        [Val::Double(a), Val::Double(b)] => Val::Double(a + b),
        [Val::Text(a), Val::Text(b)] => format!("{}{}", &**a, &**b).into(),
        [Val::Bytes(a), Val::Bytes(b)] => Val::Bytes(Bytes::Shared([a.read(), b.read()].concat().into())),
        [Val::List(a), Val::List(b)] => Val::List(List::add(run, a, b)?),
        [Val::Timestamp(at), Val::Duration(span)] | [Val::Duration(span), Val::Timestamp(at)] => {
            Val::Timestamp(moment(at, *span)?)
        }
        [Val::Duration(a), Val::Duration(b)] => Val::Duration(a.checked_add(*b).ok_or(Error::Overflow)?),
        _ => return Err(Error::NoOverload),
    })
}

fn subtract<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [Val::Int(a), Val::Int(b)] => Val::Int(a.checked_sub(*b).ok_or(Error::Overflow)?),
        [Val::Uint(a), Val::Uint(b)] => Val::Uint(a.checked_sub(*b).ok_or(Error::Overflow)?),
        [Val::Double(a), Val::Double(b)] => Val::Double(a - b),
        [Val::Timestamp(a), Val::Timestamp(b)] => {
            let span = a.duration_since(*b).as_nanos();
            Val::Duration(i64::try_from(span).map_err(|_| Error::Overflow)?)
        }
        [Val::Timestamp(at), Val::Duration(span)] => {
            Val::Timestamp(moment(at, span.checked_neg().ok_or(Error::Overflow)?)?)
        }
        [Val::Duration(a), Val::Duration(b)] => Val::Duration(a.checked_sub(*b).ok_or(Error::Overflow)?),
        _ => return Err(Error::NoOverload),
    })
}

fn multiply<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [Val::Int(a), Val::Int(b)] => Val::Int(a.checked_mul(*b).ok_or(Error::Overflow)?),
        [Val::Uint(a), Val::Uint(b)] => Val::Uint(a.checked_mul(*b).ok_or(Error::Overflow)?),
        [Val::Double(a), Val::Double(b)] => Val::Double(a * b),
        _ => return Err(Error::NoOverload),
    })
}

fn divide<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => return Err(Error::DivisionByZero),
        [Val::Int(a), Val::Int(b)] => Val::Int(a.checked_div(*b).ok_or(Error::Overflow)?),
        [Val::Uint(a), Val::Uint(b)] => Val::Uint(a / b),
        [Val::Double(a), Val::Double(b)] => Val::Double(a / b),
        _ => return Err(Error::NoOverload),
    })
}

fn remainder<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)] => return Err(Error::ModulusByZero),
        [Val::Int(a), Val::Int(b)] => Val::Int(a.checked_rem(*b).ok_or(Error::Overflow)?),
        [Val::Uint(a), Val::Uint(b)] => Val::Uint(a % b),
        _ => return Err(Error::NoOverload),
    })
}

fn negate<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Int(a)] => Ok(Val::Int(a.checked_neg().ok_or(Error::Overflow)?)),
        [Val::Double(a)] => Ok(Val::Double(-a)),
        _ => Err(Error::NoOverload),
    }
}

fn not<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Bool(a)] => Ok(Val::Bool(!a)),
        _ => Err(Error::NoOverload),
    }
}

fn same(args: &[Val<'_>]) -> Result<bool, Error> {
    let [a, b] = args else { return Err(Error::NoOverload) };
    Ok(a.equals(b))
}

fn equal<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    same(args).map(Val::Bool)
}

fn unequal<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    same(args).map(|same| Val::Bool(!same))
}

/// The order of two values; NaN has none but is comparable.
fn order<'a>(args: &[Val<'a>], holds: fn(Ordering) -> bool) -> Outcome<'a> {
    let [a, b] = args else { return Err(Error::NoOverload) };
    match a.compare(b) {
        Some(order) => Ok(Val::Bool(holds(order))),
        None if matches!(a, Val::Double(_)) || matches!(b, Val::Double(_)) => {
            let numbers = [a, b].iter().all(|one| matches!(one, Val::Double(_) | Val::Int(_) | Val::Uint(_)));
            if numbers { Ok(Val::Bool(false)) } else { Err(Error::NoOverload) }
        }
        None => Err(Error::NoOverload),
    }
}

fn less<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    order(args, Ordering::is_lt)
}

fn less_or_equal<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    order(args, Ordering::is_le)
}

fn greater<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    order(args, Ordering::is_gt)
}

fn greater_or_equal<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    order(args, Ordering::is_ge)
}

fn contained<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [item, Val::List(list)] => {
            if let List::Constant(list) = list
                && let Some(found) = list.contains(item)
            {
                return Ok(Val::Bool(found));
            }
            for own in list {
                if own?.equals(item) {
                    return Ok(Val::Bool(true));
                }
            }
            Ok(Val::Bool(false))
        }
        [key, Val::Map(map)] => Ok(Val::Bool(map.get(key)?.is_some())),
        _ => Err(Error::NoOverload),
    }
}
