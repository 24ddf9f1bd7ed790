//! Small checks that the rules of many kinds share, in upstream's words.

use apimachinery::{
    field::{Path, Problems},
    meta::get,
    names,
};
use serde_json::{Map, Value};

/// "must be greater than or equal to 0"
pub const NEGATIVE: &str = "must be greater than or equal to 0";

/// Text must be one of a few words; absence is a problem of its own when it is required.
pub fn one_of(
    value: &Value,
    field: &str,
    required: bool,
    allowed: &[&str],
    path: &Path<'_>,
    problems: &mut Problems,
) {
    match value.get(field).and_then(Value::as_str) {
        None | Some("") if required => problems.required(&path.child(field), ""),
        // Decoding drops empty words, but for those behind a pointer: these were meant.
        Some(text) if !allowed.contains(&text) => problems.not_supported(&path.child(field), text, allowed),
        _ => {}
    }
}

/// The same, where upstream names the words in an order of its own.
pub fn one_of_ordered(
    value: &Value,
    field: &str,
    required: bool,
    allowed: &[&str],
    path: &Path<'_>,
    problems: &mut Problems,
) {
    match value.get(field).and_then(Value::as_str) {
        None | Some("") if required => problems.required(&path.child(field), ""),
        Some(text) if !allowed.contains(&text) => problems.not_one_of(&path.child(field), text, allowed),
        _ => {}
    }
}

/// Text must be there.
pub fn required(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) -> bool {
    let present = value.get(field).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    if !present {
        problems.required(&path.child(field), "");
    }
    present
}

/// A number, when given, is not below zero.
pub fn non_negative(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    if let Some(number) = value.get(field).and_then(Value::as_i64)
        && number < 0
    {
        problems.invalid(&path.child(field), number, NEGATIVE);
    }
}

/// A number, when given, is in a range.
pub fn in_range(value: &Value, field: &str, low: i64, high: i64, path: &Path<'_>, problems: &mut Problems) {
    if let Some(number) = value.get(field).and_then(Value::as_i64)
        && !(low..=high).contains(&number)
    {
        problems.invalid(&path.child(field), number, names::inclusive_range(low, high));
    }
}

/// Text, when given, has a syntax. Empty text that is there stands behind a pointer and was meant.
pub fn syntax(
    value: &Value,
    field: &str,
    check: fn(&str) -> Vec<String>,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    if let Some(text) = value.get(field).and_then(Value::as_str) {
        problems.invalid_each(&path.child(field), text, check(text));
    }
}

/// Text is there and has a syntax.
pub fn required_syntax(
    value: &Value,
    field: &str,
    check: fn(&str) -> Vec<String>,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    if required(value, field, path, problems) {
        syntax(value, field, check, path, problems);
    }
}

/// A field never changes after creation.
pub fn immutable(new: &Value, old: &Value, dotted: &str, problems: &mut Problems) {
    let (after, before) = (get(new, dotted), get(old, dotted));
    if after != before {
        let shown = after.cloned().unwrap_or_default();
        problems.invalid(&Path::new(dotted), shown, crate::metadata::IMMUTABLE);
    }
}

/// A port number or a port name.
pub fn port_or_name(port: &Value, path: &Path<'_>, problems: &mut Problems) {
    match port {
        Value::Number(number) => {
            let number = number.as_i64().unwrap_or(0);
            for complaint in names::is_port_number(number) {
                problems.invalid(path, number, complaint);
            }
        }
        Value::String(text) => problems.invalid_each(path, text, names::is_port_name(text)),
        _ => problems.invalid(path, 0, names::inclusive_range(1, 65535)),
    }
}

/// A count or a percentage; both non-negative. Returns the percentage, for further bounds.
pub fn count_or_percent(value: &Value, path: &Path<'_>, problems: &mut Problems) -> Option<i64> {
    match value {
        Value::Number(number) => {
            let number = number.as_i64().unwrap_or(0);
            if number < 0 {
                problems.invalid(path, number, NEGATIVE);
            }
            None
        }
        Value::String(text) => {
            let complaints = names::is_percent(text);
            if complaints.is_empty() {
                return text.trim_end_matches('%').parse().ok();
            }
            problems.invalid_each(path, text, complaints);
            None
        }
        _ => None,
    }
}

/// A percentage does not go over 100.
pub fn at_most_100_percent(value: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Value::String(text) = value
        && names::is_percent(text).is_empty()
        && text.trim_end_matches('%').parse::<u64>().is_ok_and(|percent| percent > 100)
    {
        problems.invalid(path, text.as_str(), "must not be greater than 100%");
    }
}

/// Whether a count or percentage is zero.
pub fn is_zero_amount(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::String(text)) => text.trim_end_matches('%').parse::<i64>() == Ok(0),
        _ => false,
    }
}

/// Labels map of a value at a key.
pub fn map<'a>(value: &'a Value, field: &str) -> Option<&'a Map<String, Value>> {
    value.get(field).and_then(Value::as_object)
}
