//! What "an object like this" means.

use serde_json::Value;

/// Whether a value has all that is asked for: objects may have more fields, lists more elements. `null` asks for absence,
/// a text that begins with `~` for what follows in it, `*` for anything, `{~count: 2}` for that many elements or fields.
pub fn matches(like: &Value, found: &Value) -> bool {
    match (like, found) {
        (Value::Null, found) => found.is_null(),
        (Value::String(like), found) if like == "*" => !found.is_null(),
        (Value::String(like), Value::String(found)) => match like.strip_prefix('~') {
            Some(part) => found.contains(part),
            None => like == found,
        },
        (Value::Object(like), found) => like.iter().all(|(key, like)| match (key.as_str(), found) {
            ("~count", Value::Array(found)) => like.as_u64() == Some(found.len() as u64),
            ("~count", Value::Object(found)) => like.as_u64() == Some(found.len() as u64),
            ("~count", Value::Null) => like.as_u64() == Some(0),
            ("~all", Value::Array(found)) => found.iter().all(|found| matches(like, found)),
            ("~has", Value::Array(found)) => found.iter().any(|found| matches(like, found)),
            _ => matches(like, &found[key]),
        }),
        (Value::Array(like), Value::Array(found)) => {
            like.iter().all(|like| found.iter().any(|found| matches(like, found)))
        }
        (like, found) => like == found,
    }
}

#[test]
fn patterns_ask_for_parts() {
    let found = serde_json::json!({"a": {"b": 1, "c": "long text"}, "l": [{"x": 1}, {"x": 2}]});
    for (like, expected) in [
        ("{}", true),
        (r#"{"a": {"b": 1}}"#, true),
        (r#"{"a": {"b": 2}}"#, false),
        (r#"{"a": {"c": "~text"}}"#, true),
        (r#"{"a": {"c": "text"}}"#, false),
        (r#"{"a": {"d": null}}"#, true),
        (r#"{"a": {"d": "*"}}"#, false),
        (r#"{"l": [{"x": 2}]}"#, true),
        (r#"{"l": [{"x": 3}]}"#, false),
        (r#"{"l": {"~count": 2}}"#, true),
        (r#"{"l": {"~count": 2, "~has": {"x": 1}}}"#, true),
        (r#"{"l": {"~all": {"x": 1}}}"#, false),
        (r#"{"none": {"~count": 0}}"#, true),
    ] {
        let like: Value = serde_json::from_str(like).unwrap();
        assert_eq!(matches(&like, &found), expected, "{like}");
    }
}
