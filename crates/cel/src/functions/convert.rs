//! From one type to another.

use apimachinery::time;
use jiff::Timestamp;

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::types::Type;
use crate::value::{Bytes, Map, Opaque, Val};

/// The conversions.
pub const TABLE: &[Entry] = &[
    (
        "int",
        int,
        &[
            "(int)->int",
            "(uint)->int",
            "(double)->int",
            "(string)->int",
            "(timestamp)->int",
            "(duration)->int",
        ],
    ),
    ("uint", uint, &["(uint)->uint", "(int)->uint", "(double)->uint", "(string)->uint"]),
    ("double", double, &["(double)->double", "(int)->double", "(uint)->double", "(string)->double"]),
    (
        "string",
        string,
        &[
            "(string)->string",
            "(bool)->string",
            "(bytes)->string",
            "(double)->string",
            "(duration)->string",
            "(int)->string",
            "(timestamp)->string",
            "(uint)->string",
            "(net.IP)->string",
            "(net.CIDR)->string",
        ],
    ),
    ("bytes", bytes, &["(bytes)->bytes", "(string)->bytes"]),
    ("bool", boolean, &["(bool)->bool", "(string)->bool"]),
    ("timestamp", timestamp, &["(timestamp)->timestamp", "(int)->timestamp", "(string)->timestamp"]),
    ("duration", duration, &["(duration)->duration", "(int)->duration", "(string)->duration"]),
    ("dyn", dynamic, &["(A)->dyn"]),
    ("type", type_of, &["(A)->type"]),
];

fn bad<T>(text: &str, kind: &str) -> Result<T, Error> {
    Err(Error::invalid(format!("type conversion error from 'string' to '{kind}': {text:?}")))
}

fn int<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Int(match args {
        [Val::Int(value)] => *value,
        [Val::Uint(value)] => i64::try_from(*value).map_err(|_| Error::Overflow)?,
        [Val::Double(value)] if value.abs() < 9.2e18 => *value as i64,
        [Val::Double(_)] => return Err(Error::Overflow),
        [Val::Text(text)] => match text.parse() {
            Ok(value) => value,
            Err(_) => return bad(text, "int"),
        },
        [Val::Timestamp(at)] => at.as_second(),
        [Val::Duration(nanos)] => *nanos,
        _ => return Err(Error::NoOverload),
    }))
}

fn uint<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Uint(match args {
        [Val::Uint(value)] => *value,
        [Val::Int(value)] => u64::try_from(*value).map_err(|_| Error::Overflow)?,
        [Val::Double(value)] if (0.0..1.8e19).contains(value) => *value as u64,
        [Val::Double(_)] => return Err(Error::Overflow),
        [Val::Text(text)] => match text.parse() {
            Ok(value) => value,
            Err(_) => return bad(text, "uint"),
        },
        _ => return Err(Error::NoOverload),
    }))
}

fn double<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Double(match args {
        [Val::Double(value)] => *value,
        [Val::Int(value)] => *value as f64,
        [Val::Uint(value)] => *value as f64,
        [Val::Text(text)] => match text.parse() {
            Ok(value) => value,
            Err(_) => return bad(text, "double"),
        },
        _ => return Err(Error::NoOverload),
    }))
}

/// A number as Go prints it with `%g`-like brevity.
pub fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    if value != 0.0 && (value.abs() >= 1e21 || value.abs() < 1e-4) {
        let text = format!("{value:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{value}")
}

fn duration_text(nanos: i64) -> String {
    let text = format!("{}", nanos as f64 / 1e9);
    format!("{text}s")
}

fn string<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(match args {
        [text @ Val::Text(_)] => text.clone(),
        [Val::Bool(value)] => value.to_string().into(),
        [Val::Int(value)] => value.to_string().into(),
        [Val::Uint(value)] => value.to_string().into(),
        [Val::Double(value)] => double_text(*value).into(),
        [Val::Bytes(bytes)] => match std::str::from_utf8(&bytes.read()) {
            Ok(text) => text.to_owned().into(),
            Err(_) => return Err(Error::invalid("invalid UTF-8 in bytes, cannot convert to string")),
        },
        [Val::Timestamp(at)] => at.to_string().into(),
        [Val::Duration(nanos)] => duration_text(*nanos).into(),
        [Val::Opaque(opaque)] => match &**opaque {
            Opaque::Ip(ip) => ip.to_string().into(),
            Opaque::Cidr(ip, length) => format!("{ip}/{length}").into(),
            _ => return Err(Error::NoOverload),
        },
        _ => return Err(Error::NoOverload),
    })
}

fn bytes<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [value @ Val::Bytes(_)] => Ok(value.clone()),
        [Val::Text(text)] => Ok(Val::Bytes(Bytes::Shared(text.as_bytes().into()))),
        _ => Err(Error::NoOverload),
    }
}

fn boolean<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [value @ Val::Bool(_)] => Ok(value.clone()),
        [Val::Text(text)] => match &**text {
            "1" | "t" | "true" | "TRUE" | "True" | "T" => Ok(Val::Bool(true)),
            "0" | "f" | "false" | "FALSE" | "False" | "F" => Ok(Val::Bool(false)),
            other => bad(other, "bool"),
        },
        _ => Err(Error::NoOverload),
    }
}

fn timestamp<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Timestamp(match args {
        [Val::Timestamp(at)] => *at,
        [Val::Int(seconds)] => {
            Timestamp::from_second(*seconds).map_err(|_| Error::invalid("timestamp out of range"))?
        }
        [Val::Text(text)] => match time::parse(text) {
            Some(at) => at,
            None => return bad(text, "google.protobuf.Timestamp"),
        },
        _ => return Err(Error::NoOverload),
    }))
}

fn duration<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Duration(match args {
        [Val::Duration(nanos) | Val::Int(nanos)] => *nanos,
        [Val::Text(text)] => match time::parse_duration(text) {
            Some(nanos) => nanos,
            None => return bad(text, "google.protobuf.Duration"),
        },
        _ => return Err(Error::NoOverload),
    }))
}

fn dynamic<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    args.first().cloned().ok_or(Error::NoOverload)
}

fn type_of<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let value = args.first().ok_or(Error::NoOverload)?;
    if let Val::Map(Map::Object(name, _)) = value {
        run.allow(name.len())?;
    }
    Ok(Val::Type(match value.kind() {
        Type::Meta(_) => Type::by_name("type").unwrap_or(Type::Dyn),
        other => other,
    }))
}
