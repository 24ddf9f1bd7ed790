//! Strategic merge patch: a merge that knows which lists are maps in disguise.
//!
//! The schema says how each field is merged (`patchStrategy`, `patchMergeKey`); directives inside the patch
//! override it: `$patch`, `$retainKeys`, `$deleteFromPrimitiveList/<list>` and `$setElementOrder/<list>`.
//! Elements of a merged list that the patch names come in the patch's order, the others stay where they were
//! relative to their old neighbours.

use serde_json::{Map, Value};

use super::{PatchError, failed, malformed};
use crate::golang;
use crate::schema::{Kind, Node, PatchStrategy, Schema};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const SET_ORDER: &str = "$setElementOrder/";

/// Applies a strategic merge patch to an object of this schema.
pub fn strategic_merge_patch(object: Value, patch: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let patch = match patch {
        Value::Null => return Ok(object),
        Value::Object(patch) => patch,
        other => {
            let found = golang::json_type(other);
            return malformed(format!(
                "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            ));
        }
    };
    let original = match object {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    Ok(Value::Object(merge_map(original, patch, Some(schema.node()))?))
}

/// How one field is merged.
#[derive(Clone, Copy)]
struct Field<'a> {
    node: Option<Node<'a>>,
    strategy: PatchStrategy,
    merge_key: Option<&'a str>,
}

fn field<'a>(parent: Option<Node<'a>>, name: &str) -> Field<'a> {
    let declared = parent.and_then(|parent| parent.field(name));
    let node = parent.and_then(|parent| parent.child(name));
    let merge_key = match node.map(Node::kind) {
        Some(Kind::List(list)) => list.merge_key.as_deref(),
        _ => None,
    };
    Field { node, strategy: declared.map(|field| field.patch).unwrap_or_default(), merge_key }
}

fn merge_map(
    mut original: Map<String, Value>,
    patch: &Map<String, Value>,
    node: Option<Node<'_>>,
) -> Result<Map<String, Value>, PatchError> {
    match patch.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
        None => {}
        Some("replace") => return Ok(without(patch, PATCH)),
        Some("delete") => return Ok(Map::new()),
        Some(_) => return unknown_directive(patch),
    }
    retain_keys(&mut original, patch)?;
    for (key, value) in patch {
        if let Some(name) = key.strip_prefix(SET_ORDER) {
            merge_ordered(&mut original, name, patch.get(name), value, field(node, name))?;
        }
    }
    let mut gone = Vec::new();
    for (key, value) in patch {
        if key == RETAIN_KEYS || key.starts_with(SET_ORDER) {
            continue;
        }
        if let Some(name) = key.strip_prefix(DELETE_FROM) {
            if let (Some(Value::Array(list)), Value::Array(doomed)) = (original.get_mut(name), value) {
                list.retain(|item| !doomed.contains(item));
            }
            continue;
        }
        if patch.contains_key(&format!("{SET_ORDER}{key}")) {
            continue; // merged above, together with its order
        }
        if value.is_null() {
            gone.push(key.as_str());
            continue;
        }
        let field = field(node, key);
        let merged = match (original.get_mut(key).map(Value::take), value) {
            (Some(Value::Object(old)), Value::Object(new)) if !field.strategy.replace => {
                Some(Value::Object(merge_map(old, new, field.node)?))
            }
            (Some(Value::Array(old)), Value::Array(new)) if field.strategy.merge => {
                Some(Value::Array(merge_list(old, new, field)?))
            }
            (Some(Value::Object(_)), Value::Object(_)) | (Some(Value::Array(_)), Value::Array(_)) => {
                Some(value.clone())
            }
            _ => plain(value),
        };
        match merged {
            Some(merged) => {
                original.insert(key.clone(), merged);
            }
            None => gone.push(key.as_str()),
        }
    }
    // All at once: each removal by itself would move up everything behind it.
    if !gone.is_empty() {
        gone.sort_unstable();
        original.retain(|key, _| gone.binary_search(&key.as_str()).is_err());
    }
    Ok(original)
}

fn without(map: &Map<String, Value>, name: &str) -> Map<String, Value> {
    map.iter().filter(|(key, _)| *key != name).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn list_of(value: &Value) -> Result<&Vec<Value>, PatchError> {
    match value {
        Value::Array(list) => Ok(list),
        other => {
            let found = golang::type_name(other);
            failed(format!("expected a []interface {{}}, but received a {found}"))
        }
    }
}

fn unknown_directive<T>(patch: &Map<String, Value>) -> Result<T, PatchError> {
    let directive = match &patch[PATCH] {
        Value::String(text) => text.clone(),
        other => format!("%!s({}={})", golang::type_name(other), golang::plain(other)),
    };
    let map = golang::plain(&Value::Object(patch.clone()));
    failed(format!("unknown patch type: {directive} in map: {map}"))
}

fn no_merge_key<T>(item: &Value, key: &str) -> Result<T, PatchError> {
    failed(format!("map: {} does not contain declared merge key: {key}", golang::plain(item)))
}

/// Removes what the patch does not retain; everything that it sets must be retained.
fn retain_keys(original: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), PatchError> {
    let Some(retained) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    const BAD: &str = "invalid patch format of retainKeys";
    let Value::Array(retained) = retained else { return malformed(BAD) };
    let kept = |key: &str| retained.iter().any(|name| name.as_str() == Some(key));
    let mut set = patch.iter().filter(|(key, value)| !is_directive(key) && !value.is_null());
    if set.any(|(key, _)| !kept(key)) {
        return malformed(BAD);
    }
    original.retain(|key, _| kept(key));
    Ok(())
}

/// A patch value as it is stored where there was nothing: without fields that are null. `None`: not at all, which goes
/// for every object with a `$patch`, whatever it says: there is nothing that it could be carried out on. Other directives
/// stay, and are fields that nobody knows.
fn plain(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) => {
            if map.contains_key(PATCH) {
                return None;
            }
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.filter_map(|(key, value)| Some((key.clone(), plain(value)?))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().filter_map(plain).collect()),
        scalar => scalar.clone(),
    })
}

fn is_directive(key: &str) -> bool {
    key == RETAIN_KEYS || key.starts_with(DELETE_FROM) || key.starts_with(SET_ORDER)
}

/// Merges a list whose final order the patch spells out.
fn merge_ordered(
    original: &mut Map<String, Value>,
    name: &str,
    patch: Option<&Value>,
    order: &Value,
    field: Field<'_>,
) -> Result<(), PatchError> {
    let order = list_of(order)?;
    let before = match original.get_mut(name).map(Value::take) {
        Some(Value::Array(list)) => Some(list),
        Some(other) => {
            let found = golang::type_name(&other);
            return failed(format!("expected a []interface {{}}, but received a {found}"));
        }
        None => None,
    };
    let after = match patch {
        Some(Value::Null) => {
            original.shift_remove(name);
            return Ok(());
        }
        Some(patch) => Some(list_of(patch)?),
        None => None,
    };
    if let Some(after) = after {
        check_order(after, order, field.merge_key)?;
    }
    let server_order = before.clone().unwrap_or_default();
    let merged = match (before, after) {
        (None, None) => {
            original.shift_remove(name);
            return Ok(());
        }
        (Some(before), None) => before,
        (None, Some(after)) => match plain(&Value::Array(after.clone())) {
            Some(Value::Array(list)) => list,
            _ => Vec::new(),
        },
        (Some(before), Some(after)) if field.strategy.merge => merge_list(before, after, field)?,
        (Some(_), Some(after)) => after.clone(),
    };
    let ordered = in_order(merged, order, &server_order, field.merge_key);
    original.insert(name.to_owned(), Value::Array(ordered));
    Ok(())
}

/// Elements of the patch's list must be named by the order, and in that order.
fn check_order(list: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if list.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut named = order.iter();
    for item in list.iter().filter(|item| item.get(PATCH).is_none()) {
        loop {
            let Some(wanted) = named.next() else {
                let (list, order) =
                    (golang::plain(&Value::from(list.to_vec())), golang::plain(&Value::from(order.to_vec())));
                return failed(format!(
                    "The order in patch list:\n{list}\n doesn't match $setElementOrder list:\n{order}\n"
                ));
            };
            if let Some(key) = key
                && let Some(keyless) = [item, wanted].into_iter().find(|one| one.get(key).is_none())
            {
                return no_merge_key(keyless, key);
            }
            if same_element(item, wanted, key) {
                break;
            }
        }
    }
    Ok(())
}

fn merge_list(original: Vec<Value>, patch: &[Value], field: Field<'_>) -> Result<Vec<Value>, PatchError> {
    let items = field.node.and_then(Node::items);
    let Some(first) = original.iter().chain(patch).next() else { return Ok(original) };
    if first.is_array() {
        return Err(PatchError::DoesNotApply("lists of lists are not supported".to_owned()));
    }
    for list in [&original[..], patch] {
        if list.iter().any(|item| golang::type_name(item) != golang::type_name(first)) {
            let list = golang::plain(&Value::from(list.to_vec()));
            return failed(format!("list element types are not identical: {list}"));
        }
    }
    if !first.is_object() {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        for item in original.iter().chain(patch) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        return Ok(in_order(merged, patch, &original, None));
    }
    let Some(key) = field.merge_key else {
        return failed("cannot merge lists without merge key for this field");
    };
    let server_order = original.clone();
    let (mut merged, patch) = obey_elements(original, patch, key)?;
    for item in &patch {
        let (Value::Object(change), Some(identity)) = (item, item.get(key)) else {
            return no_merge_key(item, key);
        };
        match merged.iter_mut().find(|old| old.get(key) == Some(identity)) {
            Some(old) => {
                let before = std::mem::take(old).as_object().cloned().unwrap_or_default();
                *old = Value::Object(merge_map(before, change, items)?);
            }
            None => merged.push(item.clone()),
        }
    }
    Ok(in_order(merged, &patch, &server_order, Some(key)))
}

/// Carries out the directives that are elements: deletions, and a replacement of the whole list.
fn obey_elements(
    mut original: Vec<Value>,
    patch: &[Value],
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut rest = Vec::with_capacity(patch.len());
    let mut replace = false;
    for item in patch {
        match item.get(PATCH).map(|directive| directive.as_str().unwrap_or_default()) {
            None => rest.push(item.clone()),
            Some("delete") => {
                let Some(identity) = item.get(key) else {
                    return no_merge_key(item, key);
                };
                original.retain(|old| old.get(key) != Some(identity));
            }
            Some("replace") => replace = true,
            Some("merge") => return failed("merging lists cannot yet be specified in the patch"),
            Some(_) => return unknown_directive(item.as_object().unwrap_or(&Map::new())),
        }
    }
    if replace {
        return Ok((rest, Vec::new()));
    }
    Ok((original, rest))
}

fn same_element(one: &Value, other: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => one.get(key).is_some() && one.get(key) == other.get(key),
        None => one == other,
    }
}

/// Orders a merged list: elements that `wanted` names in its order, the others in the server's, interleaved by
/// where they stood on the server; where that says nothing, the named ones come first.
fn in_order(merged: Vec<Value>, wanted: &[Value], server: &[Value], key: Option<&str>) -> Vec<Value> {
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same_element(item, other, key));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(wanted, item).is_some());
    named.sort_by_key(|item| place(wanted, item));
    others.sort_by_key(|item| place(server, item).unwrap_or(usize::MAX));
    let mut result = Vec::with_capacity(named.len() + others.len());
    let mut named = named.into_iter().peekable();
    for other in others {
        while let Some(next) = named.peek() {
            let other_first =
                matches!((place(server, &other), place(server, next)), (Some(o), Some(n)) if o < n);
            if other_first {
                break;
            }
            result.extend(named.next());
        }
        result.push(other);
    }
    result.extend(named);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_a_directive_is_dropped_where_there_was_nothing() {
        for (patch, want) in [
            (json!({"a": {"$patch": "dance", "b": 1}}), None),
            (json!({"a": {"$patch": "replace", "b": 1}}), None),
            (json!({"a": {"b": {"$patch": "dance", "c": 1}, "d": null, "e": 2}}), Some(json!({"e": 2}))),
            (json!({"a": [{"$patch": "dance", "b": 1}, {"b": 2}]}), Some(json!([{"b": 2}]))),
        ] {
            let Value::Object(patch) = patch else { unreachable!("a table of objects") };
            assert_eq!(merge_map(Map::new(), &patch, None).unwrap().get("a"), want.as_ref());
        }
    }
}
