//! Configuration of operands: what is usual, what was observed, what someone insists on, in this order.

use serde_json::{Map, Value};

/// What one observer found, or why it found nothing. Then what was known before stays.
pub struct Observation {
    /// Where in the configuration it belongs.
    pub path: &'static [&'static str],
    pub found: Result<Option<Value>, String>,
}

/// The observed configuration: each observer's part is its own, and an error in one leaves the others alone.
pub fn observed(before: &Value, observations: Vec<Observation>) -> (Value, Vec<String>) {
    let mut config = Value::Object(Map::new());
    let mut errors = Vec::new();
    for observation in observations {
        let found = match observation.found {
            Ok(found) => found,
            Err(error) => {
                errors.push(error);
                at(before, observation.path).cloned()
            }
        };
        if let Some(found) = found {
            put(&mut config, observation.path, found);
        }
    }
    (config, errors)
}

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

fn put(value: &mut Value, path: &[&str], found: Value) {
    let mut place = value;
    for key in path {
        place = &mut place[*key];
    }
    *place = found;
}

/// Maps are merged, anything else is replaced by what comes later.
pub fn merged(parts: &[&Value]) -> Value {
    let mut whole = Value::Object(Map::new());
    for part in parts {
        lay_over(&mut whole, part);
    }
    whole
}

fn lay_over(below: &mut Value, above: &Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                lay_over(below.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (_, Value::Null) => {}
        (below, above) => *below = above.clone(),
    }
}

/// The flags that a map of lists of values stands for. An empty list takes a flag away.
pub fn flags(arguments: &Value) -> Vec<String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut all: Vec<String> = Vec::new();
    for (name, values) in arguments.as_object().into_iter().flatten() {
        match values {
            Value::Array(values) => {
                all.extend(values.iter().map(|value| format!("--{name}={}", text(value))))
            }
            value => all.push(format!("--{name}={}", text(value))),
        }
    }
    all.sort();
    all
}

/// Of the operator's own resource, what is not acted on: how much is logged.
pub const LOG_LEVELS: &[&str] = &["/logLevel", "/operatorLogLevel"];

/// A sentence for each field that the schema takes, that someone has set, and that nothing here acts on: silence would let them
/// believe that it has an effect. Defaults are no wish.
pub fn refused(object: &str, spec: &Value, fields: &[&str]) -> Vec<String> {
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !matches!(text.as_str(), "" | "Normal" | "identity"),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0),
        Value::Bool(true) => true,
    };
    fields
        .iter()
        .filter(|field| spec.pointer(field).is_some_and(is_set))
        .map(|field| {
            let field = field.replace('/', ".");
            format!("{object}: spec{field} is not acted on by this release: take it out")
        })
        .collect()
}

/// The texts of a list.
pub fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_observer_that_fails_keeps_what_was_known_and_the_others_go_on() {
        let before = json!({"a": {"x": [1]}, "b": [2]});
        let (config, errors) = observed(
            &before,
            vec![
                Observation { path: &["a", "x"], found: Err("a is missing".into()) },
                Observation { path: &["b"], found: Ok(Some(json!([3]))) },
                Observation { path: &["c"], found: Ok(None) },
            ],
        );
        assert_eq!(config, json!({"a": {"x": [1]}, "b": [3]}));
        assert_eq!(errors, ["a is missing"]);
    }

    #[test]
    fn a_wish_without_effect_is_refused_and_a_default_is_not() {
        let spec = json!({"logLevel": "Normal", "operatorLogLevel": "Debug", "encryption": {"type": "aescbc"},
            "servingCerts": {"namedCertificates": []}});
        let fields =
            ["/logLevel", "/operatorLogLevel", "/encryption/type", "/servingCerts/namedCertificates", "/x"];
        assert_eq!(
            refused("things/cluster", &spec, &fields),
            [
                "things/cluster: spec.operatorLogLevel is not acted on by this release: take it out",
                "things/cluster: spec.encryption.type is not acted on by this release: take it out",
            ]
        );
    }

    #[test]
    fn later_parts_win_and_become_flags() {
        let config = merged(&[
            &json!({"args": {"v": ["2"], "gone": ["x"], "keys": ["a"]}}),
            &json!({"args": {"keys": ["a", "b"], "gone": []}}),
            &Value::Null,
        ]);
        assert_eq!(flags(&config["args"]), ["--keys=a", "--keys=b", "--v=2"]);
    }
}
