//! Laying a child config over its parent, by the rules that [`schema`](crate::schema) declares.
//!
//! Objects merge key by key; a child's value wins; lists follow their rule. Files, directories and links share one
//! space of paths, so a child's link replaces a parent's file.

use serde_json::{Map, Value};

use crate::schema::{self, Merge, SHARED_PATHS, Shape};
use crate::types::Config;

/// The result of laying `child` over `parent`. The newer of the two versions stays.
pub fn merge(parent: &Config, child: &Config) -> Result<Config, serde_json::Error> {
    serde_json::from_value(merge_values(serde_json::to_value(parent)?, &serde_json::to_value(child)?))
}

/// As [`merge`], on JSON.
pub fn merge_values(mut parent: Value, child: &Value) -> Value {
    drop_replaced_paths(&mut parent, child);
    let version = newer(version(&parent), version(child));
    let mut merged = merge_shape(parent, child, &schema::CONFIG);
    if let (Some(version), Some(header)) = (version, merged.get_mut("ignition")) {
        header["version"] = Value::String(version);
    }
    merged
}

fn version(config: &Value) -> Option<String> {
    config.get("ignition")?.get("version")?.as_str().map(str::to_owned)
}

fn newer(a: Option<String>, b: Option<String>) -> Option<String> {
    let number = |text: &String| -> Vec<u64> { text.split('.').filter_map(|p| p.parse().ok()).collect() };
    match (a, b) {
        (Some(a), Some(b)) => Some(if number(&a) >= number(&b) { a } else { b }),
        (a, b) => a.or(b),
    }
}

fn drop_replaced_paths(parent: &mut Value, child: &Value) {
    let Some(child) = child.get("storage") else { return };
    let Some(storage) = parent.get_mut("storage").and_then(Value::as_object_mut) else { return };
    for kind in SHARED_PATHS {
        let elsewhere: Vec<&Value> = SHARED_PATHS
            .iter()
            .filter(|other| other != &kind)
            .filter_map(|other| child.get(other)?.as_array())
            .flatten()
            .filter_map(|node| node.get("path"))
            .collect();
        if let Some(list) = storage.get_mut(*kind).and_then(Value::as_array_mut) {
            list.retain(|node| node.get("path").is_none_or(|path| !elsewhere.contains(&path)));
        }
    }
}

fn merge_shape(parent: Value, child: &Value, shape: &Shape) -> Value {
    match (shape, parent, child) {
        (_, parent, Value::Null) => parent,
        (Shape::Object(fields), Value::Object(parent), Value::Object(child)) => {
            Value::Object(merge_object(parent, child, fields))
        }
        (Shape::List(element, rule), Value::Array(parent), Value::Array(child)) => {
            Value::Array(merge_list(parent, child, element, *rule))
        }
        (_, _, child) => child.clone(),
    }
}

fn merge_object(
    mut parent: Map<String, Value>,
    child: &Map<String, Value>,
    fields: &[schema::Field],
) -> Map<String, Value> {
    for (name, value) in child {
        let merged = match (fields.iter().find(|field| field.name == name), parent.get_mut(name)) {
            (Some(field), Some(existing)) => merge_shape(existing.take(), value, &field.shape),
            _ => value.clone(),
        };
        parent.insert(name.clone(), merged);
    }
    parent
}

fn merge_list(mut parent: Vec<Value>, child: &[Value], element: &Shape, rule: Merge) -> Vec<Value> {
    for value in child {
        if is_headers(element) && value.get("value").is_none_or(Value::is_null) {
            // A header without value takes a parent's away.
            parent.retain(|header| header.get("name") != value.get("name"));
            continue;
        }
        match rule {
            Merge::Append => parent.push(value.clone()),
            Merge::Unique if parent.contains(value) => {}
            Merge::Unique => parent.push(value.clone()),
            Merge::Key(keys) => match parent.iter_mut().find(|existing| same_key(existing, value, keys)) {
                Some(existing) => *existing = merge_shape(existing.take(), value, element),
                None => parent.push(value.clone()),
            },
        }
    }
    parent
}

fn is_headers(element: &Shape) -> bool {
    matches!(element, Shape::Object(fields) if fields.len() == 2 && fields[1].name == "value")
}

fn same_key(a: &Value, b: &Value, keys: &[&str]) -> bool {
    keys.iter()
        .find_map(|key| match (a.get(key), b.get(key)) {
            // Partition 0 means "the next free one" and names nothing.
            (Some(a), Some(b)) if a.as_i64() != Some(0) => Some(a == b),
            _ => None,
        })
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_list_follows_its_rule() {
        let parent = json!({
            "ignition": {"version": "3.1.0"},
            "storage": {
                "files": [{"path": "/a", "mode": 420, "contents": {"source": "data:,1"}, "append": [{"source": "data:,x"}]},
                          {"path": "/l"}],
                "directories": [{"path": "/d", "mode": 493}],
            },
            "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k1", "k2"], "shell": "/bin/sh"}]},
            "systemd": {"units": [{"name": "a.service", "contents": "old", "dropins": [{"name": "1.conf", "contents": "p"}]}]},
        });
        let child = json!({
            "ignition": {"version": "3.2.0"},
            "storage": {
                "files": [{"path": "/a", "contents": {"source": "data:,2"}, "append": [{"source": "data:,y"}]},
                          {"path": "/b"}],
                "links": [{"path": "/l", "target": "/a"}],
            },
            "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k2", "k3"]}, {"name": "new"}]},
            "systemd": {"units": [{"name": "a.service", "enabled": true, "dropins": [{"name": "2.conf"}]}]},
        });
        assert_eq!(
            merge_values(parent, &child),
            json!({
                "ignition": {"version": "3.2.0"},
                "storage": {
                    "files": [{"path": "/a", "mode": 420, "contents": {"source": "data:,2"},
                               "append": [{"source": "data:,x"}, {"source": "data:,y"}]},
                              {"path": "/b"}],
                    "directories": [{"path": "/d", "mode": 493}],
                    "links": [{"path": "/l", "target": "/a"}],
                },
                "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k1", "k2", "k3"], "shell": "/bin/sh"},
                                     {"name": "new"}]},
                "systemd": {"units": [{"name": "a.service", "contents": "old", "enabled": true,
                             "dropins": [{"name": "1.conf", "contents": "p"}, {"name": "2.conf"}]}]},
            })
        );
    }

    #[test]
    fn null_keeps_the_parent_and_a_header_without_value_goes() {
        let parent = json!({"storage": {"files": [{"path": "/a", "mode": 1, "contents":
            {"source": "http://x", "httpHeaders": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}}]}});
        let child = json!({"storage": {"files": [{"path": "/a", "mode": null, "contents":
            {"httpHeaders": [{"name": "A", "value": null}]}}]}});
        let merged = merge_values(parent, &child);
        let file = &merged["storage"]["files"][0];
        assert_eq!(file["mode"], 1);
        assert_eq!(file["contents"]["httpHeaders"], json!([{"name": "B", "value": "2"}]));
    }

    #[test]
    fn merging_is_associative_for_what_the_installer_writes() {
        let config = |path: &str, unit: &str| {
            json!({"ignition": {"version": "3.2.0"}, "storage": {"files": [{"path": path}, {"path": "/same", "mode": unit.len()}]},
                   "systemd": {"units": [{"name": unit}]}})
        };
        let (a, b, c) = (config("/a", "a.x"), config("/b", "bb.x"), config("/c", "ccc.x"));
        let left = merge_values(merge_values(a.clone(), &b), &c);
        let right = merge_values(a, &merge_values(b, &c));
        assert_eq!(left, right);
    }
}
