//! CustomResourceDefinitions in the form of `v1beta1`: not served any more, but what upstream's API server stores.
//!
//! What all versions have in common stands there once, at the top of the spec; columns spell their path in capitals, and
//! the webhook's parts stand beside the strategy.

use serde_json::{Map, Value, json};

/// The API version of the old form.
pub const API_VERSION: &str = "apiextensions.k8s.io/v1beta1";

/// Turns the old form into that of `v1`, with the defaults that the old one had.
pub fn into_v1(crd: &mut Value) {
    crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
    if let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) {
        spec_into_v1(spec);
    }
    let stored = crd.pointer("/status/storedVersions").and_then(Value::as_array);
    if stored.is_none_or(Vec::is_empty) {
        let versions = crd.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
        let names = versions.filter(|one| one["storage"] == true).take(1).map(|one| one["name"].clone());
        let names: Vec<Value> = names.collect();
        crd["status"]["storedVersions"] = Value::Array(names);
    }
}

fn spec_into_v1(spec: &mut Map<String, Value>) {
    let version = spec.shift_remove("version").unwrap_or_default();
    if spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty) && version.is_string() {
        spec.insert("versions".into(), json!([{"name": version, "served": true, "storage": true}]));
    }
    names_into_v1(spec);
    let common = [
        ("subresources", spec.shift_remove("subresources")),
        ("schema", spec.shift_remove("validation")),
        ("additionalPrinterColumns", spec.shift_remove("additionalPrinterColumns")),
        ("selectableFields", spec.shift_remove("selectableFields")),
    ];
    for one in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(one) = one.as_object_mut() else { continue };
        for (field, value) in &common {
            if let Some(value) = value.as_ref().filter(|value| !value.is_null()) {
                one.insert((*field).into(), value.clone());
            }
        }
        let columns = one.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(path) = column.shift_remove("JSONPath") {
                column.insert("jsonPath".into(), path);
            }
        }
    }
    conversion_into_v1(spec);
    match spec.get("preserveUnknownFields") {
        None | Some(Value::Null) => {
            spec.insert("preserveUnknownFields".into(), json!(true));
        }
        // Where nothing unknown is kept, the newer form does not speak of it.
        Some(Value::Bool(false)) => {
            spec.shift_remove("preserveUnknownFields");
        }
        Some(_) => {}
    }
}

fn names_into_v1(spec: &mut Map<String, Value>) {
    let absent = |value: Option<&Value>| value.and_then(Value::as_str).is_none_or(str::is_empty);
    if absent(spec.get("scope")) {
        spec.insert("scope".into(), json!("Namespaced"));
    }
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if absent(names.get("singular")) {
            names.insert("singular".into(), json!(kind.to_lowercase()));
        }
        if absent(names.get("listKind")) && !kind.is_empty() {
            names.insert("listKind".into(), json!(format!("{kind}List")));
        }
    }
}

fn conversion_into_v1(spec: &mut Map<String, Value>) {
    let conversion = spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    let Some(conversion) = conversion.as_object_mut() else { return };
    let client = conversion.shift_remove("webhookClientConfig");
    let mut versions = conversion.shift_remove("conversionReviewVersions");
    if conversion.get("strategy").is_some_and(|strategy| strategy == "Webhook") && versions.is_none() {
        versions = Some(json!(["v1beta1"]));
    }
    if client.is_none() && versions.is_none() {
        return;
    }
    let mut webhook = Map::new();
    if let Some(mut client) = client {
        if client["service"].is_object() && client["service"]["port"].is_null() {
            client["service"]["port"] = json!(443);
        }
        webhook.insert("clientConfig".into(), client);
    }
    if let Some(versions) = versions {
        webhook.insert("conversionReviewVersions".into(), versions);
    }
    conversion.insert("webhook".into(), Value::Object(webhook));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_upstream_stores_is_read() {
        let schema =
            json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}});
        let mut stored = json!({
            "kind": "CustomResourceDefinition", "apiVersion": API_VERSION, "metadata": {"name": "shirts.example.com"},
            "spec": {
                "group": "example.com", "version": "v1", "scope": "Namespaced",
                "names": {"plural": "shirts", "singular": "shirt", "kind": "Shirt", "listKind": "ShirtList"},
                "validation": schema, "subresources": {"status": {}},
                "versions": [{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true, "storage": false}],
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "JSONPath": ".spec.size"}],
                "conversion": {"strategy": "Webhook", "webhookClientConfig": {"service": {"name": "s", "namespace": "n"}},
                    "conversionReviewVersions": ["v1"]},
                "preserveUnknownFields": false,
            },
            "status": {"conditions": [], "acceptedNames": {"plural": "shirts", "kind": "Shirt"}, "storedVersions": ["v1"]},
        });
        into_v1(&mut stored);
        let version = |name: &str, storage: bool| {
            json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}}, "schema": schema,
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]})
        };
        assert_eq!(
            stored["spec"],
            json!({
                "group": "example.com", "scope": "Namespaced",
                "names": {"plural": "shirts", "singular": "shirt", "kind": "Shirt", "listKind": "ShirtList"},
                "versions": [version("v1", true), version("v2", false)],
                "conversion": {"strategy": "Webhook", "webhook": {
                    "clientConfig": {"service": {"name": "s", "namespace": "n", "port": 443}},
                    "conversionReviewVersions": ["v1"]}},
            })
        );
    }

    #[test]
    fn what_was_left_out_long_ago_has_its_old_meaning() {
        let mut old = json!({"apiVersion": API_VERSION, "kind": "CustomResourceDefinition", "metadata": {"name": "a.b"},
            "spec": {"group": "b", "version": "v1", "names": {"plural": "a", "kind": "A"}}});
        into_v1(&mut old);
        assert_eq!(old["spec"]["versions"], json!([{"name": "v1", "served": true, "storage": true}]));
        assert_eq!(old["spec"]["names"]["singular"], "a");
        assert_eq!(old["spec"]["preserveUnknownFields"], true);
        assert_eq!(old["status"]["storedVersions"], json!(["v1"]));
    }
}
