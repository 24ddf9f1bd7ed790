//! The roles and bindings that every cluster starts with, as objects. The table is `default_policy.txt`.

use serde_json::{Value, json};

const TABLE: &str = include_str!("default_policy.txt");
const GROUP: &str = "rbac.authorization.k8s.io";

/// One default object and where it lives.
#[derive(Clone, Debug)]
pub struct DefaultObject {
    /// The plural resource.
    pub resource: &'static str,
    /// Empty for cluster-scoped ones.
    pub namespace: String,
    /// The object as it would be posted.
    pub object: Value,
}

/// Every default role and binding.
pub fn objects() -> Vec<DefaultObject> {
    let mut found: Vec<DefaultObject> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[0] {
            "role" if !line.starts_with(' ') => found.push(role(&words[1..])),
            "bind" if !line.starts_with(' ') => found.push(binding(&words[1..])),
            _ => {
                if let Some(last) = found.last_mut() {
                    add_line(&mut last.object, &words);
                }
            }
        }
    }
    found
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
    })
}

fn role(words: &[&str]) -> DefaultObject {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": metadata(words[0]), "rules": [],
    });
    let mut namespace = String::new();
    for pair in words[1..].chunks_exact(2) {
        match pair[0] {
            "in" => {
                namespace = pair[1].to_owned();
                object["kind"] = json!("Role");
                object["metadata"]["namespace"] = json!(pair[1]);
            }
            "label" => object["metadata"]["labels"][format!("{GROUP}/{}", pair[1])] = json!("true"),
            _ => {
                object["aggregationRule"] = json!({
                    "clusterRoleSelectors": [{"matchLabels": {(format!("{GROUP}/{}", pair[1])): "true"}}],
                });
            }
        }
    }
    let resource = if namespace.is_empty() { "clusterroles" } else { "roles" };
    DefaultObject { resource, namespace, object }
}

fn binding(words: &[&str]) -> DefaultObject {
    let (namespace, reference) = match words[1] {
        "in" => (words[2].to_owned(), &words[4..]),
        _ => (String::new(), &words[2..]),
    };
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata(words[0]),
        "roleRef": {"apiGroup": GROUP, "kind": reference[0], "name": reference[1]},
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = json!(namespace);
    }
    let resource = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
    DefaultObject { resource, namespace, object }
}

fn add_line(object: &mut Value, words: &[&str]) {
    let list = |text: &str| -> Vec<String> {
        text.split(',').map(|word| if word == "core" { String::new() } else { word.to_owned() }).collect()
    };
    let (field, entry) = match words {
        ["account", name] => {
            let (namespace, name) = name.split_once('/').unwrap_or(("kube-system", name));
            ("subjects", json!({"kind": "ServiceAccount", "name": name, "namespace": namespace}))
        }
        ["user", name] => ("subjects", json!({"apiGroup": GROUP, "kind": "User", "name": name})),
        ["group", name] => ("subjects", json!({"apiGroup": GROUP, "kind": "Group", "name": name})),
        [verbs, "urls", paths] => ("rules", json!({"verbs": list(verbs), "nonResourceURLs": list(paths)})),
        [verbs, groups, resources] => {
            ("rules", json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}))
        }
        [verbs, groups, resources, names] => (
            "rules",
            json!({"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources), "resourceNames": list(names)}),
        ),
        _ => return,
    };
    match &mut object[field] {
        Value::Array(entries) => entries.push(entry),
        other => *other = json!([entry]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_whole() {
        let objects = objects();
        assert!(objects.len() > 120, "{}", objects.len());
        let lines = TABLE.lines().filter(|line| line.starts_with("    ")).count();
        let entries: usize = objects
            .iter()
            .map(|one| {
                let count = |field: &str| one.object[field].as_array().map_or(0, Vec::len);
                count("rules") + count("subjects")
            })
            .sum();
        assert_eq!(entries, lines);
        let admin = objects.iter().find(|one| one.object["metadata"]["name"] == "cluster-admin").unwrap();
        assert_eq!(admin.object["rules"][0]["apiGroups"][0], "*");
        let reader = objects
            .iter()
            .find(|one| one.object["metadata"]["name"] == "extension-apiserver-authentication-reader")
            .unwrap();
        assert_eq!((reader.resource, reader.namespace.as_str()), ("roles", "kube-system"));
    }
}
