//! Reading and changing `metadata` of a dynamic object.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::time;

/// Read access to the metadata that every stored object has. Missing text reads as "".
pub trait Meta {
    /// The metadata map, when there is one.
    fn metadata(&self) -> Option<&Map<String, Value>>;

    /// A text field of the metadata.
    fn meta_str(&self, field: &str) -> &str {
        self.metadata().and_then(|meta| meta.get(field)).and_then(Value::as_str).unwrap_or_default()
    }
    /// `metadata.name`
    fn name(&self) -> &str {
        self.meta_str("name")
    }
    /// `metadata.generateName`
    fn generate_name(&self) -> &str {
        self.meta_str("generateName")
    }
    /// `metadata.namespace`
    fn namespace(&self) -> &str {
        self.meta_str("namespace")
    }
    /// `metadata.uid`
    fn uid(&self) -> &str {
        self.meta_str("uid")
    }
    /// `metadata.resourceVersion`
    fn resource_version(&self) -> &str {
        self.meta_str("resourceVersion")
    }
    /// `metadata.generation`
    fn generation(&self) -> i64 {
        self.metadata().and_then(|meta| meta.get("generation")).and_then(Value::as_i64).unwrap_or(0)
    }
    /// `metadata.labels`
    fn labels(&self) -> Option<&Map<String, Value>> {
        self.metadata()?.get("labels")?.as_object()
    }
    /// `metadata.annotations`
    fn annotations(&self) -> Option<&Map<String, Value>> {
        self.metadata()?.get("annotations")?.as_object()
    }
    /// One label.
    fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key)?.as_str()
    }
    /// One annotation.
    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations()?.get(key)?.as_str()
    }
    /// `metadata.finalizers`
    fn finalizers(&self) -> Vec<&str> {
        let list = self.metadata().and_then(|meta| meta.get("finalizers")).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).collect()
    }
    /// `metadata.ownerReferences`
    fn owner_references(&self) -> &[Value] {
        let list = self.metadata().and_then(|meta| meta.get("ownerReferences")).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }
    /// The owner that is the controller.
    fn controller(&self) -> Option<&Value> {
        self.owner_references().iter().find(|owner| owner["controller"] == true)
    }
    /// `metadata.creationTimestamp`
    fn created(&self) -> Option<Timestamp> {
        time::parse(self.meta_str("creationTimestamp"))
    }
    /// `metadata.deletionTimestamp`
    fn deleted(&self) -> Option<Timestamp> {
        time::parse(self.meta_str("deletionTimestamp"))
    }
    /// Whether deletion has begun.
    fn is_terminating(&self) -> bool {
        !self.meta_str("deletionTimestamp").is_empty()
    }
    /// `metadata.managedFields`
    fn managed_fields(&self) -> &[Value] {
        let list = self.metadata().and_then(|meta| meta.get("managedFields")).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }
}

impl Meta for Value {
    fn metadata(&self) -> Option<&Map<String, Value>> {
        self.get("metadata")?.as_object()
    }
}

/// Write access to the metadata.
pub trait MetaMut {
    /// The metadata map, made when absent. The object itself becomes a map when it was not.
    fn metadata_mut(&mut self) -> &mut Map<String, Value>;

    /// Sets a field, or removes it when the text is empty.
    fn set_meta(&mut self, field: &str, text: &str) {
        let metadata = self.metadata_mut();
        if text.is_empty() {
            metadata.shift_remove(field);
        } else {
            metadata.insert(field.into(), text.into());
        }
    }

    /// Removes a field and returns it.
    fn take_meta(&mut self, field: &str) -> Option<Value> {
        self.metadata_mut().shift_remove(field)
    }

    /// Sets any field.
    fn put_meta(&mut self, field: &str, value: Value) {
        self.metadata_mut().insert(field.into(), value);
    }

    /// Sets a label.
    fn set_label(&mut self, key: &str, value: &str) {
        entry_map(self.metadata_mut(), "labels").insert(key.into(), value.into());
    }

    /// Sets an annotation.
    fn set_annotation(&mut self, key: &str, value: &str) {
        entry_map(self.metadata_mut(), "annotations").insert(key.into(), value.into());
    }

    /// Adds a finalizer unless it is there.
    fn add_finalizer(&mut self, name: &str) {
        let list = self.metadata_mut().entry("finalizers").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list
            && !list.iter().any(|have| have == name)
        {
            list.push(name.into());
        }
    }

    /// Removes a finalizer; the list goes when it is empty.
    fn remove_finalizer(&mut self, name: &str) -> bool {
        let metadata = self.metadata_mut();
        let Some(Value::Array(list)) = metadata.get_mut("finalizers") else { return false };
        let before = list.len();
        list.retain(|have| have != name);
        let removed = list.len() != before;
        if list.is_empty() {
            metadata.shift_remove("finalizers");
        }
        removed
    }
}

/// The map below a key, made when absent or of another type.
pub fn entry_map<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let slot = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(inner) => inner,
        _ => unreachable!("just made an object"),
    }
}

impl MetaMut for Value {
    fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        if !self.is_object() {
            *self = Value::Object(Map::new());
        }
        match self {
            Value::Object(map) => entry_map(map, "metadata"),
            _ => unreachable!("just made an object"),
        }
    }
}

/// Whether two values are equal. As `==`, but two versions of an object mostly have their fields in the same order, and then
/// nothing is looked up.
pub fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|((key, value), (place, beside))| {
                    let beside = if key == place { Some(beside) } else { other.get(key) };
                    beside.is_some_and(|beside| same(value, beside))
                })
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (one, other) => one == other,
    }
}

/// A copy of an object without one field of its metadata.
pub fn without(object: &Value, field: &str) -> Value {
    let Value::Object(map) = object else { return object.clone() };
    let copy = |(key, value): (&String, &Value)| match value {
        Value::Object(metadata) if key == "metadata" => {
            let rest = metadata.iter().filter(|(key, _)| *key != field);
            (key.clone(), Value::Object(rest.map(|(key, value)| (key.clone(), value.clone())).collect()))
        }
        other => (key.clone(), other.clone()),
    };
    Value::Object(map.iter().map(copy).collect())
}

/// The value at a dotted path (`spec.template.spec`); no list steps.
pub fn get<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name)).filter(|value| !value.is_null())
}

/// Text at a dotted path, "" when absent.
pub fn get_str<'a>(value: &'a Value, path: &str) -> &'a str {
    get(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// Integer at a dotted path.
pub fn get_int(value: &Value, path: &str) -> Option<i64> {
    get(value, path)?.as_i64()
}

/// List at a dotted path, empty when absent.
pub fn get_list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    get(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets the value at a dotted path, making the maps on the way.
pub fn set(value: &mut Value, path: &str, new: Value) {
    let mut at = value;
    for name in path.split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = match at {
            Value::Object(map) => map.entry(name).or_insert(Value::Null),
            _ => unreachable!("just made an object"),
        };
    }
    *at = new;
}

/// Removes the value at a dotted path and returns it.
pub fn remove(value: &mut Value, path: &str) -> Option<Value> {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut at = value;
    if !parent.is_empty() {
        for name in parent.split('.') {
            at = at.get_mut(name)?;
        }
    }
    at.as_object_mut()?.shift_remove(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_does_not_make_a_difference_but_everything_else_does() {
        let value = json!({"a": 1, "b": {"c": [1, {"d": null}], "e": "x"}});
        for (other, wanted) in [
            (json!({"a": 1, "b": {"c": [1, {"d": null}], "e": "x"}}), true),
            (json!({"b": {"e": "x", "c": [1, {"d": null}]}, "a": 1}), true),
            (json!({"a": 1, "b": {"c": [1, {"d": null}], "f": "x"}}), false),
            (json!({"a": 1, "b": {"c": [1, {}], "e": "x"}}), false),
            (json!({"a": 1, "b": {"c": [{"d": null}, 1], "e": "x"}}), false),
            (json!({"a": 1.5, "b": {"c": [1, {"d": null}], "e": "x"}}), false),
            (json!({"a": 1}), false),
            (json!([1]), false),
        ] {
            assert_eq!(same(&value, &other), wanted, "{other}");
            assert_eq!(value == other, wanted);
        }
    }
}
