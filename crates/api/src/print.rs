//! Small texts that several kinds' columns share.

use apimachinery::meta::{get, get_list, get_str};
use serde_json::{Map, Value};

/// `a=b,c=d` sorted, or `<none>`.
pub fn labels(map: Option<&Map<String, Value>>) -> String {
    let mut pairs: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() {
        return "<none>".into();
    }
    pairs.sort();
    pairs.join(",")
}

/// A label selector object in its string form, or `<none>`.
pub fn selector(value: Option<&Value>) -> String {
    let Some(value) = value else { return "<none>".into() };
    match apimachinery::selector::LabelSelector::from_object(value) {
        Ok(selector) if selector.requirements().is_empty() => "<none>".into(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".into(),
    }
}

/// Names of the containers of a pod template at a path.
pub fn containers(object: &Value, path: &str) -> Value {
    join(get_list(object, path).iter().map(|container| get_str(container, "name"))).into()
}

/// Images of the containers of a pod template at a path.
pub fn images(object: &Value, path: &str) -> Value {
    join(get_list(object, path).iter().map(|container| get_str(container, "image"))).into()
}

/// Texts joined by commas.
pub fn join<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.collect::<Vec<_>>().join(",")
}

/// Text, or a word for its absence.
pub fn or<'a>(text: &'a str, absent: &'a str) -> &'a str {
    if text.is_empty() { absent } else { text }
}

/// Whether a condition of a type is True.
pub fn has_condition(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

/// A condition of a type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    get_list(object, "status.conditions").iter().find(|condition| condition["type"] == kind)
}

/// A count at a path.
pub fn count(object: &Value, path: &str) -> i64 {
    get(object, path).and_then(Value::as_i64).unwrap_or(0)
}

/// `ReadWriteOnce` and friends in their short forms.
pub fn access_modes(modes: &[Value]) -> String {
    let short = |mode: &Value| match mode.as_str().unwrap_or_default() {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        _ => "",
    };
    let mut seen: Vec<&str> = Vec::new();
    for mode in ["RWO", "ROX", "RWX", "RWOP"] {
        if modes.iter().any(|have| short(have) == mode) {
            seen.push(mode);
        }
    }
    seen.join(",")
}
