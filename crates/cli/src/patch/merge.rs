//! JSON merge patches: the difference of two objects, and of three.

use serde_json::{Map, Value};

/// The merge patch that turns `from` into `to`.
pub fn diff(from: &Value, to: &Value) -> Value {
    let (Some(from), Some(to)) = (from.as_object(), to.as_object()) else { return to.clone() };
    let mut patch = Map::new();
    for (name, value) in to {
        match from.get(name) {
            None => {
                patch.insert(name.clone(), value.clone());
            }
            Some(old) if old == value => {}
            Some(old) if old.is_object() && value.is_object() => {
                let inner = diff(old, value);
                if inner.as_object().is_some_and(|map| !map.is_empty()) {
                    patch.insert(name.clone(), inner);
                }
            }
            Some(_) => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in from.keys().filter(|name| !to.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// What `modified` adds and changes in `current`, and what it no longer has of `original`.
pub fn three_way(original: &Value, modified: &Value, current: &Value) -> Value {
    let mut patch = keep(diff(current, modified), false).unwrap_or_else(|| Value::Object(Map::new()));
    if let Some(deletions) = keep(diff(original, modified), true) {
        overlay(&mut patch, deletions);
    }
    // A null of `modified` itself is a deletion too, but only of what is there.
    patch
}

/// Only the nulls of a patch, or everything but them.
fn keep(patch: Value, nulls: bool) -> Option<Value> {
    match patch {
        Value::Null => nulls.then_some(Value::Null),
        Value::Object(map) if !map.is_empty() => {
            let kept: Map<String, Value> =
                map.into_iter().filter_map(|(name, value)| Some((name, keep(value, nulls)?))).collect();
            if kept.is_empty() { None } else { Some(Value::Object(kept)) }
        }
        other => (!nulls).then_some(other),
    }
}

fn overlay(patch: &mut Value, more: Value) {
    match (patch, more) {
        (Value::Object(patch), Value::Object(more)) => {
            for (name, value) in more {
                match patch.get_mut(&name) {
                    Some(inner) if inner.is_object() && value.is_object() => overlay(inner, value),
                    Some(_) => {}
                    None => {
                        patch.insert(name, value);
                    }
                }
            }
        }
        (patch, more) => *patch = more,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn three_objects_make_a_patch() {
        let original = json!({"a": 1, "gone": {"x": 1}, "m": {"k": "v", "old": 1}});
        let modified = json!({"a": 2, "m": {"k": "v"}, "new": {}});
        let current = json!({"a": 1, "gone": {"x": 1}, "m": {"k": "v", "old": 1, "server": 1}, "status": {}});
        assert_eq!(
            three_way(&original, &modified, &current),
            json!({"a": 2, "new": {}, "gone": null, "m": {"old": null}})
        );
        assert_eq!(three_way(&modified, &modified, &modified), json!({}));
    }
}
