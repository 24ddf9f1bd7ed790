//! ConfigMaps, Secrets and ServiceAccounts.

use apimachinery::{
    field::{Path, Problems},
    meta::get_str,
    names,
};
use serde_json::{Map, Value};

use crate::{
    Change, Column, Definition, Effect, Rules, Subresource,
    defaults::{Constant, apply},
    metadata::IMMUTABLE,
};

/// The largest total of keys and values, as upstream has it.
const MAX_BYTES: usize = 1024 * 1024;

/// Plain configuration.
pub fn config_map() -> Definition {
    Definition::namespaced("", "v1", "ConfigMap", "configmaps")
        .short(&["cm"])
        .columns(vec![
            Column::new("Data", |object, _| (entries(object, "data") + entries(object, "binaryData")).into()),
            Column::age(),
        ])
        .rules(ConfigMap)
}

/// Configuration that is not for every eye.
pub fn secret() -> Definition {
    Definition::namespaced("", "v1", "Secret", "secrets")
        .label("type")
        .columns(vec![
            Column::path("Type", "type"),
            Column::new("Data", |object, _| entries(object, "data").into()),
            Column::age(),
        ])
        .rules(Secret)
}

/// An identity for pods.
pub fn service_account() -> Definition {
    Definition::namespaced("", "v1", "ServiceAccount", "serviceaccounts")
        .answers_with_object()
        .short(&["sa"])
        .with(Subresource::Token)
        .effects(&[Effect::IssueToken])
        .columns(vec![Column::age()])
}

fn entries(object: &Value, field: &str) -> usize {
    object.get(field).and_then(Value::as_object).map_or(0, Map::len)
}

fn base64_size(value: &Value) -> usize {
    let text = value.as_str().unwrap_or_default();
    text.len() / 4 * 3 - text.bytes().rev().take_while(|c| *c == b'=').count()
}

fn keys(map: Option<&Map<String, Value>>, path: &Path<'_>, problems: &mut Problems) {
    for key in map.into_iter().flat_map(Map::keys) {
        problems.invalid_each(&path.key(key), key, names::is_config_map_key(key));
    }
}

fn immutable(change: &Change<'_>, fields: &[&str], problems: &mut Problems) {
    let Some(old) = change.old else { return };
    if old["immutable"] != true {
        return;
    }
    if change.new["immutable"] != true {
        problems.forbidden(&Path::new("immutable"), "field is immutable when `immutable` is set");
    }
    for field in fields {
        if old.get(field) != change.new.get(field) {
            problems.forbidden(&Path::new(field), "field is immutable when `immutable` is set");
        }
    }
}

struct ConfigMap;

impl Rules for ConfigMap {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let data = change.new.get("data").and_then(Value::as_object);
        let binary = change.new.get("binaryData").and_then(Value::as_object);
        keys(data, &Path::new("data"), problems);
        keys(binary, &Path::new("binaryData"), problems);
        for key in binary.into_iter().flat_map(Map::keys) {
            if data.is_some_and(|data| data.contains_key(key)) {
                let path = Path::new("data");
                problems.invalid(&path.key(key), key.as_str(), "duplicate of key present in binaryData");
            }
        }
        let mut total: usize =
            data.into_iter().flatten().map(|(_, value)| value.as_str().map_or(0, str::len)).sum();
        total += binary.into_iter().flatten().map(|(_, value)| base64_size(value)).sum::<usize>();
        if total > MAX_BYTES {
            problems.too_long(&Path::ROOT, MAX_BYTES);
        }
        immutable(change, &["data", "binaryData"], problems);
    }
}

struct Secret;

impl Rules for Secret {
    fn set_defaults(&self, secret: &mut Value) {
        apply(secret, &[("type", Constant::Text("Opaque"))]);
        merge_string_data(secret);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let secret = change.new;
        let data = secret.get("data").and_then(Value::as_object);
        let path = Path::new("data");
        keys(data, &path, problems);
        let total: usize = data.into_iter().flatten().map(|(_, value)| base64_size(value)).sum();
        if total > MAX_BYTES {
            problems.too_long(&path, MAX_BYTES);
        }
        let has = |key: &str| data.is_some_and(|data| data.contains_key(key));
        let mut need = |key: &str| {
            if !has(key) {
                problems.required(&path.key(key), "");
            }
        };
        match get_str(secret, "type") {
            "kubernetes.io/dockercfg" => need(".dockercfg"),
            "kubernetes.io/dockerconfigjson" => need(".dockerconfigjson"),
            "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
            "kubernetes.io/tls" => {
                need("tls.crt");
                need("tls.key");
            }
            "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
                problems.required(&path.key("username"), "");
                problems.required(&path.key("password"), "");
            }
            "kubernetes.io/service-account-token" => {
                let name = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"].as_str();
                if name.unwrap_or_default().is_empty() {
                    let path = Path::new("metadata");
                    let path = path.child("annotations");
                    problems.required(&path.key("kubernetes.io/service-account.name"), "");
                }
            }
            _ => {}
        }
        if let Some(old) = change.old
            && get_str(old, "type") != get_str(secret, "type")
        {
            problems.invalid(&Path::new("type"), get_str(secret, "type"), IMMUTABLE);
        }
        immutable(change, &["data"], problems);
    }
}

/// `stringData` is a way to write `data`; it is never stored.
fn merge_string_data(secret: &mut Value) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let Some(map) = secret.as_object_mut() else { return };
    let Some(Value::Object(plain)) = map.shift_remove("stringData") else { return };
    let data = apimachinery::meta::entry_map(map, "data");
    for (key, value) in plain {
        data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
    }
}
