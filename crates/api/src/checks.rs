//! Small checks that the rules of many kinds share, in upstream's words.

use std::num::IntErrorKind;

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

/// The same for a word behind a pointer: an empty one is there, and is none of those that are known.
pub fn one_of_given(value: &Value, field: &str, allowed: &[&str], path: &Path<'_>, problems: &mut Problems) {
    match value.get(field).and_then(Value::as_str) {
        None => problems.required(&path.child(field), ""),
        Some(text) if !allowed.contains(&text) => problems.not_supported(&path.child(field), text, allowed),
        Some(_) => {}
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

/// Conditions of the common kind.
pub fn conditions(owner: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("conditions");
    let conditions = apimachinery::meta::get_list(owner, "conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let at = list.index(index);
        let text = |field: &str| apimachinery::meta::get_str(condition, field);
        if conditions[..index].iter().any(|other| other["type"] == condition["type"]) {
            problems.duplicate(&at.child("type"), text("type"));
        }
        problems.invalid_each(&at.child("type"), text("type"), names::is_qualified_name(text("type")));
        let words = ["False", "True", "Unknown"];
        if !words.contains(&text("status")) {
            problems.not_supported(&at.child("status"), text("status"), &words);
        }
        if condition["observedGeneration"].as_i64().is_some_and(|generation| generation < 0) {
            let shown = condition["observedGeneration"].clone();
            problems.invalid(&at.child("observedGeneration"), shown, "must be greater than or equal to zero");
        }
        if text("lastTransitionTime").is_empty() {
            problems.required(&at.child("lastTransitionTime"), "");
        }
        let reason = text("reason");
        if reason.is_empty() {
            problems.required(&at.child("reason"), "");
        } else {
            if !is_condition_reason(reason) {
                problems.invalid(&at.child("reason"), reason, "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')");
            }
            if reason.len() > 1024 {
                problems.too_long(&at.child("reason"), 1024);
            }
        }
        if text("message").len() > 32 * 1024 {
            problems.too_long(&at.child("message"), 32 * 1024);
        }
    }
}

fn is_condition_reason(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(word)
        && text.chars().all(|c| word(c) || c == ',' || c == ':')
}

/// The addresses under which something is reached from outside. Those that were there already are not judged again.
pub fn load_balancer(new: &Value, old: &Value, problems: &mut Problems) {
    use apimachinery::meta::{get_list, get_str};
    const INGRESS: &str = "status.loadBalancer.ingress";
    let list = Path::new(INGRESS);
    for (index, entry) in get_list(new, INGRESS).iter().enumerate() {
        let at = list.index(index);
        let (ip, host) = (get_str(entry, "ip"), get_str(entry, "hostname"));
        if !ip.is_empty() && !get_list(old, INGRESS).iter().any(|known| get_str(known, "ip") == ip) {
            problems.invalid_each(&at.child("ip"), ip, names::is_ip(ip));
        }
        if !host.is_empty() {
            problems.invalid_each(&at.child("hostname"), host, names::is_dns1123_subdomain(host));
            if host.parse::<std::net::IpAddr>().is_ok() {
                problems.invalid(&at.child("hostname"), host, "must be a DNS name, not an IP address");
            }
        }
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

/// The same for a struct, which is shown as Go has it.
pub fn immutable_struct(new: &Value, old: &Value, dotted: &str, kind: &str, problems: &mut Problems) {
    let (after, before) = (get(new, dotted), get(old, dotted));
    if after != before {
        let shown = crate::go_form::shown_or_null(after, kind);
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
        // Digits that are no number are too many of them.
        && text.trim_end_matches('%').parse::<u64>().map_or(true, |percent| percent > 100)
    {
        problems.invalid(path, text.as_str(), "must not be greater than 100%");
    }
}

/// Whether a count or percentage is zero.
pub fn is_zero_amount(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Number(number)) => number.as_i64() == Some(0),
        Some(Value::String(text)) if names::is_percent(text).is_empty() => {
            text.trim_end_matches('%').bytes().all(|digit| digit == b'0')
        }
        // What is no percentage is refused for that; a number counts as what it says all the same, and other text as
        // none.
        Some(Value::String(text)) => match text.parse::<i64>() {
            Ok(number) => number == 0,
            Err(error) => !matches!(error.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow),
        },
        _ => false,
    }
}

/// `example.com/name`
pub fn domain_path(text: &str, path: &Path<'_>, problems: &mut Problems) {
    if text.is_empty() {
        problems.required(path, "");
        return;
    }
    match text.split_once('/') {
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            problems.invalid_each(path, domain, names::is_dns1123_subdomain(domain));
            if !rest.chars().all(|c| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c)) {
                let why = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
                problems.invalid(path, rest, why);
            }
        }
        _ => problems.invalid(path, text, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
}

/// A map as Go shows it: by its keys.
pub fn sorted(map: &Map<String, Value>) -> Value {
    Value::Object(sorted_entries(map))
}

/// The entries of a map by their keys; those of nothing are none.
pub fn sorted_map(map: Option<&Value>) -> Map<String, Value> {
    map.and_then(Value::as_object).map(sorted_entries).unwrap_or_default()
}

fn sorted_entries(map: &Map<String, Value>) -> Map<String, Value> {
    let mut map = map.clone();
    map.sort_keys();
    map
}

/// Labels map of a value at a key.
pub fn map<'a>(value: &'a Value, field: &str) -> Option<&'a Map<String, Value>> {
    value.get(field).and_then(Value::as_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn amounts_in_text_count_as_what_they_say() {
        for zero in [json!(0), json!("0"), json!("0%"), json!("000%"), json!("ten"), json!("")] {
            assert!(is_zero_amount(Some(&zero)), "{zero}");
        }
        for some in [json!(1), json!("5"), json!("-5"), json!("1%"), json!("99999999999999999999")] {
            assert!(!is_zero_amount(Some(&some)), "{some}");
        }
        let mut problems = Problems::new();
        at_most_100_percent(&json!("99999999999999999999%"), &Path::ROOT, &mut problems);
        assert_eq!(problems.len(), 1);
    }
}
