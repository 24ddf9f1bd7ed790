//! ConfigMaps, Secrets and ServiceAccounts.

use apimachinery::{
    field::{Path, Problems},
    meta::get_str,
    names,
};
use serde_json::{Map, Value};

use crate::{
    Change, Column, Definition, Effect, MetaCheck, Rules, Subresource,
    defaults::{Constant, apply},
    metadata::IMMUTABLE,
};

/// The largest total of keys and values, as upstream has it.
const MAX_BYTES: usize = 1024 * 1024;

/// Plain configuration.
pub fn config_map() -> Definition {
    Definition::namespaced("", "v1", "ConfigMap", "configmaps")
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
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
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
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
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
        .answers_with_object()
        .short(&["sa"])
        .with(Subresource::Token)
        .effects(&[Effect::IssueToken])
        .columns(vec![Column::age()])
        .rules(ServiceAccount)
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
        immutable(change, &["data", "binaryData"], problems);
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
    }
}

fn decoded(value: &Value) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

/// What container runtimes read as JSON has to be an object of it; the complaint shows nothing of the content.
fn json_content(content: Option<Vec<u8>>, path: &Path<'_>, problems: &mut Problems) {
    let Some(content) = content else {
        problems.required(path, "");
        return;
    };
    let why = match serde_json::from_slice::<Value>(&content) {
        Ok(Value::Object(_) | Value::Null) => return,
        Ok(other) => {
            let kind = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Number(_) => "number",
                _ => "bool",
            };
            format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}")
        }
        Err(err) if err.is_eof() => "unexpected end of JSON input".to_owned(),
        Err(_) => {
            let text = String::from_utf8_lossy(&content);
            match text.trim_start().chars().next() {
                Some(first) if !"{[\"".contains(first) => {
                    format!("invalid character {first:?} looking for beginning of value")
                }
                _ => "invalid JSON".to_owned(),
            }
        }
    };
    problems.invalid(path, "<secret contents redacted>", why);
}

struct ServiceAccount;

impl Rules for ServiceAccount {
    fn prepare_create(&self, account: &mut Value) {
        only_names(account);
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value, _subresource: &str) {
        only_names(new);
    }
}

/// Of a secret that pods of the account may use only the name counts.
fn only_names(account: &mut Value) {
    let secrets = account.get_mut("secrets").and_then(Value::as_array_mut);
    for secret in secrets.into_iter().flatten().filter_map(Value::as_object_mut) {
        secret.retain(|field, _| field == "name");
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
        if let Some(old) = change.old
            && get_str(old, "type") != get_str(secret, "type")
        {
            problems.invalid(&Path::new("type"), get_str(secret, "type"), IMMUTABLE);
        }
        immutable(change, &["data"], problems);
        let data = secret.get("data").and_then(Value::as_object);
        let path = Path::new("data");
        keys(data, &path, problems);
        let total: usize = data.into_iter().flatten().map(|(_, value)| base64_size(value)).sum();
        if total > MAX_BYTES {
            problems.too_long(&path, MAX_BYTES);
        }
        let has = |key: &str| data.is_some_and(|data| data.contains_key(key));
        let content = |key: &str| data.and_then(|data| data.get(key)).map(decoded);
        match get_str(secret, "type") {
            "kubernetes.io/dockercfg" => {
                json_content(content(".dockercfg"), &path.key(".dockercfg"), problems)
            }
            "kubernetes.io/dockerconfigjson" => {
                json_content(content(".dockerconfigjson"), &path.key(".dockerconfigjson"), problems);
            }
            "kubernetes.io/ssh-auth" if content("ssh-privatekey").is_none_or(|key| key.is_empty()) => {
                problems.required(&path.key("ssh-privatekey"), "");
            }
            "kubernetes.io/tls" => {
                for key in ["tls.crt", "tls.key"].into_iter().filter(|key| !has(key)) {
                    problems.required(&path.key(key), "");
                }
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
