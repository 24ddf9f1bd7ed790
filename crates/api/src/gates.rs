//! Fields behind feature gates that v1.36 keeps closed.
//!
//! They are part of the schema, and what a client writes there is dropped before anybody judges it. An update keeps
//! them where the stored object has them already: it was written while the gate was open.

use serde_json::Value;

/// What of a pod spec is closed.
pub const POD: &[&str] = &[
    "schedulingGroup",
    "containers.*.lifecycle.stopSignal",
    "initContainers.*.lifecycle.stopSignal",
    "ephemeralContainers.*.lifecycle.stopSignal",
    "volumes.*.projected.sources.*.clusterTrustBundle",
    "volumes.*.projected.sources.*.podCertificate",
];

/// Removes what stands at dotted paths, `*` being every entry of a list or map, unless the old object has it.
pub fn drop_closed(paths: &[String], new: &mut Value, old: Option<&Value>) {
    for path in paths {
        let steps: Vec<&str> = path.split('.').collect();
        if !old.is_some_and(|old| has(old, &steps)) {
            remove(new, &steps);
        }
    }
}

fn has(value: &Value, steps: &[&str]) -> bool {
    match (steps, value) {
        ([], _) => !value.is_null(),
        (["*", rest @ ..], Value::Array(list)) => list.iter().any(|entry| has(entry, rest)),
        (["*", rest @ ..], Value::Object(map)) => map.values().any(|entry| has(entry, rest)),
        ([name, rest @ ..], Value::Object(map)) => map.get(*name).is_some_and(|below| has(below, rest)),
        _ => false,
    }
}

fn remove(value: &mut Value, steps: &[&str]) {
    match (steps, value) {
        ([last], Value::Object(map)) => {
            map.shift_remove(*last);
        }
        (["*", rest @ ..], Value::Array(list)) => list.iter_mut().for_each(|entry| remove(entry, rest)),
        (["*", rest @ ..], Value::Object(map)) => map.values_mut().for_each(|entry| remove(entry, rest)),
        ([name, rest @ ..], Value::Object(map)) => {
            if let Some(below) = map.get_mut(*name) {
                remove(below, rest);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn closed_fields_go_unless_they_are_stored() {
        let paths = ["a.*.b".to_owned(), "c".to_owned()];
        let object = json!({"a": [{"b": 1, "d": 2}, {"d": 3}], "c": {}});
        let mut new = object.clone();
        drop_closed(&paths, &mut new, None);
        assert_eq!(new, json!({"a": [{"d": 2}, {"d": 3}]}));
        let mut new = object.clone();
        drop_closed(&paths, &mut new, Some(&json!({"a": [{"b": 7}]})));
        assert_eq!(new, json!({"a": [{"b": 1, "d": 2}, {"d": 3}]}));
    }
}
