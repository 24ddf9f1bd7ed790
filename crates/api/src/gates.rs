//! Fields behind feature gates that v1.36 keeps closed.
//!
//! They are part of the schema, and what a client writes there is dropped before anybody judges it. An update keeps
//! them where the stored object has them already: it was written while the gate was open.

use serde_json::Value;

/// What of a pod spec is closed.
pub const POD: &[&str] = &[
    "schedulingGroup",
    "containers|initContainers|ephemeralContainers.*.lifecycle?.stopSignal",
    "volumes.*.projected.sources.*.clusterTrustBundle",
    "volumes.*.projected.sources.*.podCertificate",
];

/// Removes what stands at dotted paths, unless the old object has it somewhere at the path. In a path `*` is every entry
/// of a list or map, `a|b` is two fields behind one gate, and what is called `a?` goes too when nothing else is in it.
pub fn drop_closed(paths: &[String], new: &mut Value, old: Option<&Value>) {
    for path in paths {
        let steps: Vec<&str> = path.split('.').collect();
        if !old.is_some_and(|old| has(old, &steps)) {
            remove(new, &steps);
        }
    }
}

fn fields(step: &str) -> impl Iterator<Item = &str> {
    step.trim_end_matches('?').split('|')
}

fn has(value: &Value, steps: &[&str]) -> bool {
    match (steps, value) {
        ([], _) => !value.is_null(),
        (["*", rest @ ..], Value::Array(list)) => list.iter().any(|entry| has(entry, rest)),
        (["*", rest @ ..], Value::Object(map)) => map.values().any(|entry| has(entry, rest)),
        ([step, rest @ ..], Value::Object(map)) => {
            fields(step).any(|name| map.get(name).is_some_and(|below| has(below, rest)))
        }
        _ => false,
    }
}

/// Returns whether anything was there.
fn remove(value: &mut Value, steps: &[&str]) -> bool {
    let mut removed = false;
    match (steps, value) {
        ([last], Value::Object(map)) => {
            for name in fields(last) {
                removed |= map.shift_remove(name).is_some();
            }
        }
        (["*", rest @ ..], Value::Array(list)) => {
            for entry in list {
                removed |= remove(entry, rest);
            }
        }
        (["*", rest @ ..], Value::Object(map)) => {
            for entry in map.values_mut() {
                removed |= remove(entry, rest);
            }
        }
        ([step, rest @ ..], Value::Object(map)) => {
            for name in fields(step) {
                let Some(below) = map.get_mut(name) else { continue };
                let here = remove(below, rest);
                if here && step.ends_with('?') && below.as_object().is_some_and(serde_json::Map::is_empty) {
                    map.shift_remove(name);
                }
                removed |= here;
            }
        }
        _ => {}
    }
    removed
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

    #[test]
    fn what_only_held_a_closed_field_goes_with_it() {
        let paths = ["a|b.*.c?.d".to_owned()];
        let object =
            json!({"a": [{"c": {"d": 1}}, {"c": {"d": 1, "e": 2}}], "b": [{"c": {"d": 1}}, {"c": {}}]});
        let mut new = object.clone();
        drop_closed(&paths, &mut new, None);
        assert_eq!(new, json!({"a": [{}, {"c": {"e": 2}}], "b": [{}, {"c": {}}]}));
        // Whoever has it in one of the lists keeps it in all.
        let mut new = object.clone();
        drop_closed(&paths, &mut new, Some(&json!({"b": [{"c": {"d": 7}}]})));
        assert_eq!(new, object);
    }

    #[test]
    fn pods_lose_what_is_closed() {
        let kinds = crate::builtins();
        let pod = kinds.iter().find(|kind| kind.names.kind == "Pod").expect("there are pods");
        let old = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"lifecycle": {"preStop": {}}}]}, "status": {}});
        let mut new = old.clone();
        new["status"] = json!({
            "containerStatuses": [{"volumeMounts": [{"name": "v", "volumeStatus": {"image": {}}}]}],
            "nodeAllocatableResourceClaimStatuses": [{"resourceClaimName": "r"}],
        });
        pod.prepare_update(&mut new, &old, "status");
        assert_eq!(new["status"], json!({"containerStatuses": [{"volumeMounts": [{"name": "v"}]}]}));
        let mut new = old.clone();
        new["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGTERM"});
        pod.prepare_update(&mut new, &old, "");
        assert_eq!(new["spec"]["containers"], json!([{}]));
    }
}
