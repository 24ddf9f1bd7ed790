//! Strategic merge patches: differences that know which lists are merged, and by which key.

use serde_json::{Map, Value, json};

use crate::openapi::Schema;

/// Which half of a difference is wanted.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    /// Additions and changes.
    Changes,
    Deletions,
}

/// What `modified` adds and changes in `current`, and what it no longer has of `original`.
pub fn three_way(original: &Value, modified: &Value, current: &Value, schema: Option<Schema<'_>>) -> Value {
    let empty = Map::new();
    let map = |value| -> &Map<String, Value> { Value::as_object(value).unwrap_or(&empty) };
    let changes = maps(map(current), map(modified), schema, Half::Changes, false);
    let mut patch = maps(map(original), map(modified), schema, Half::Deletions, false);
    overlay(&mut patch, changes, schema);
    Value::Object(patch)
}

fn maps(
    from: &Map<String, Value>,
    to: &Map<String, Value>,
    schema: Option<Schema<'_>>,
    half: Half,
    retain_keys: bool,
) -> Map<String, Value> {
    let mut patch = Map::new();
    for (name, value) in to {
        let field = schema.and_then(|schema| schema.field(name));
        match from.get(name) {
            None if half != Half::Deletions => {
                patch.insert(name.clone(), value.clone());
            }
            None => {}
            Some(old) => one(name, old, value, field, half, &mut patch),
        }
    }
    if half != Half::Changes {
        for name in from.keys().filter(|name| !to.contains_key(*name)) {
            patch.insert(name.clone(), Value::Null);
        }
    }
    if retain_keys {
        let lost = from.keys().any(|name| !to.contains_key(name));
        if lost || !patch.is_empty() {
            let mut names: Vec<&String> = to.keys().collect();
            names.sort();
            patch.insert("$retainKeys".to_owned(), json!(names));
        }
    }
    patch
}

fn one(
    name: &str,
    old: &Value,
    new: &Value,
    field: Option<Schema<'_>>,
    half: Half,
    patch: &mut Map<String, Value>,
) {
    let strategy = |word: &str| field.is_some_and(|field| field.has_strategy(word));
    match (old, new) {
        (Value::Object(from), Value::Object(to)) if !strategy("replace") => {
            let inner = maps(from, to, field, half, strategy("retainKeys") && half != Half::Deletions);
            if !inner.is_empty() {
                patch.insert(name.to_owned(), Value::Object(inner));
            }
        }
        (Value::Array(from), Value::Array(to)) if strategy("merge") => {
            lists(name, from, to, field, half, patch);
        }
        _ => {
            if half != Half::Deletions && old != new {
                patch.insert(name.to_owned(), new.clone());
            }
        }
    }
}

fn lists(
    name: &str,
    from: &[Value],
    to: &[Value],
    field: Option<Schema<'_>>,
    half: Half,
    patch: &mut Map<String, Value>,
) {
    let is_map = |list: &[Value]| list.iter().all(Value::is_object);
    let key = field.and_then(Schema::merge_key).filter(|_| is_map(from) && is_map(to));
    let Some(key) = key else {
        scalars(name, from, to, half, patch);
        return;
    };
    let items = field.and_then(Schema::items);
    let by = |list: &[Value], wanted: &Value| list.iter().find(|item| item[key] == *wanted).cloned();
    let mut changed = Vec::new();
    for item in to {
        match by(from, &item[key]) {
            None if half != Half::Deletions => changed.push(item.clone()),
            None => {}
            Some(old) => {
                let empty = Map::new();
                let (old, new) =
                    (old.as_object().unwrap_or(&empty).clone(), item.as_object().unwrap_or(&empty));
                let mut inner = maps(&old, new, items, half, false);
                if !inner.is_empty() {
                    inner.insert(key.to_owned(), item[key].clone());
                    changed.push(Value::Object(inner));
                }
            }
        }
    }
    if half != Half::Changes {
        for item in from.iter().filter(|item| by(to, &item[key]).is_none()) {
            changed.push(json!({key: item[key], "$patch": "delete"}));
        }
    }
    let same_order = from.len() == to.len() && from.iter().zip(to).all(|(a, b)| a[key] == b[key]);
    let ordered = match half {
        Half::Deletions => !changed.is_empty(),
        Half::Changes => !changed.is_empty() || !same_order,
    };
    if ordered && !to.is_empty() {
        let order: Vec<Value> = to.iter().map(|item| json!({key: item[key]})).collect();
        patch.insert(format!("$setElementOrder/{name}"), Value::Array(order));
    }
    if !changed.is_empty() {
        patch.insert(name.to_owned(), Value::Array(changed));
    }
}

fn scalars(name: &str, from: &[Value], to: &[Value], half: Half, patch: &mut Map<String, Value>) {
    let added: Vec<Value> = to.iter().filter(|item| !from.contains(item)).cloned().collect();
    let removed: Vec<Value> = from.iter().filter(|item| !to.contains(item)).cloned().collect();
    let (adds, removes) =
        (half != Half::Deletions && !added.is_empty(), half != Half::Changes && !removed.is_empty());
    if adds {
        patch.insert(name.to_owned(), Value::Array(added));
    }
    if removes {
        patch.insert(format!("$deleteFromPrimitiveList/{name}"), Value::Array(removed));
    }
    let same = from == to;
    if (adds || removes || (half != Half::Deletions && !same)) && !to.is_empty() {
        patch.insert(format!("$setElementOrder/{name}"), Value::Array(to.to_vec()));
    }
}

/// Puts one patch over another.
fn overlay(patch: &mut Map<String, Value>, more: Map<String, Value>, schema: Option<Schema<'_>>) {
    for (name, value) in more {
        let field = schema.and_then(|schema| schema.field(&name));
        match (patch.get_mut(&name), value) {
            (Some(Value::Object(inner)), Value::Object(value)) => overlay(inner, value, field),
            (Some(Value::Array(inner)), Value::Array(value)) if !name.starts_with('$') => {
                let Some(key) = field.and_then(Schema::merge_key) else {
                    inner.extend(value);
                    continue;
                };
                let items = field.and_then(Schema::items);
                for item in value {
                    match (inner.iter_mut().find(|known| known[key] == item[key]), item) {
                        (Some(Value::Object(known)), Value::Object(item)) => overlay(known, item, items),
                        (Some(known), item) => *known = item,
                        (None, item) => inner.push(item),
                    }
                }
            }
            (_, value) => {
                patch.insert(name, value);
            }
        }
    }
}

/// The object as a patch leaves it, without asking a server.
pub fn apply(object: Value, patch: &Value, schema: Option<Schema<'_>>) -> Value {
    let (Value::Object(mut object), Some(patch)) = (object, patch.as_object()) else { return patch.clone() };
    if patch.get("$patch").is_some_and(|word| word == "replace") {
        let kept = patch.iter().filter(|(name, _)| *name != "$patch");
        return Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect());
    }
    if let Some(names) = patch.get("$retainKeys").and_then(Value::as_array) {
        object.retain(|name, _| names.iter().any(|kept| kept == name.as_str()));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(items)), Some(gone)) = (object.get_mut(list), value.as_array()) {
                items.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if name.starts_with('$') {
            continue;
        }
        if value.is_null() {
            object.shift_remove(name);
            continue;
        }
        let field = schema.and_then(|schema| schema.field(name));
        let merged = match (object.get_mut(name).map(Value::take), value) {
            (Some(old @ Value::Object(_)), Value::Object(_)) => apply(old, value, field),
            (Some(Value::Array(old)), Value::Array(new))
                if field.is_some_and(|field| field.has_strategy("merge")) =>
            {
                merge_lists(old, new, field)
            }
            (None, Value::Object(_)) => apply(Value::Object(Map::new()), value, field),
            _ => value.clone(),
        };
        object.insert(name.clone(), merged);
    }
    Value::Object(object)
}

fn merge_lists(mut old: Vec<Value>, new: &[Value], field: Option<Schema<'_>>) -> Value {
    let items = field.and_then(Schema::items);
    let Some(key) = field.and_then(Schema::merge_key) else {
        for item in new {
            if !old.contains(item) {
                old.push(item.clone());
            }
        }
        return Value::Array(old);
    };
    for item in new {
        let place = old.iter().position(|known| known[key] == item[key]);
        match (place, item["$patch"].as_str()) {
            (Some(place), Some("delete")) => {
                old.remove(place);
            }
            (None, Some("delete")) => {}
            (Some(place), _) => old[place] = apply(old[place].take(), item, items),
            (None, _) => old.push(item.clone()),
        }
    }
    Value::Array(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        json!({"components": {"schemas": {"Pod": {"properties": {
            "spec": {"properties": {
                "containers": {"x-kubernetes-patch-merge-key": "name", "x-kubernetes-patch-strategy": "merge",
                    "items": {"properties": {"name": {}, "image": {}}}},
                "finalizers": {"x-kubernetes-patch-strategy": "merge", "items": {"type": "string"}},
                "args": {"items": {}},
                "strategy": {"x-kubernetes-patch-strategy": "retainKeys", "properties": {"type": {}, "rolling": {}}}}}}}}}})
    }

    #[test]
    fn lists_with_a_key_are_merged_and_others_replaced() {
        let document = document();
        let node = &document["components"]["schemas"]["Pod"];
        let schema = Schema { document: &document, declared: node, node };
        let original = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "gone"}], "args": [1], "finalizers": ["x", "y"]}});
        let modified = json!({"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "b"}], "args": [2], "finalizers": ["x"], "strategy": {"type": "R"}}});
        let current = json!({"spec": {"containers": [{"name": "a", "image": "1", "d": 1}, {"name": "gone"}], "args": [1], "finalizers": ["x", "y", "z"], "strategy": {"type": "S", "rolling": {}}}});
        assert_eq!(
            three_way(&original, &modified, &current, Some(schema)),
            json!({"spec": {
                "containers": [{"name": "gone", "$patch": "delete"}, {"name": "a", "image": "2"}, {"name": "b"}],
                "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                "args": [2],
                "$deleteFromPrimitiveList/finalizers": ["y"],
                "$setElementOrder/finalizers": ["x"],
                "strategy": {"type": "R", "$retainKeys": ["type"]}}})
        );
        assert_eq!(three_way(&current, &current, &current, Some(schema)), json!({}));
    }
}
