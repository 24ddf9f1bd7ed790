//! Discovery: which groups, versions and resources there are, in the old form and in the aggregated one. Both are
//! printed from the registry.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::codec;
use crate::negotiate::Format;
use crate::registry::{Resource, Table};

/// The media type of the aggregated form.
pub fn aggregated_type(format: Format) -> &'static str {
    match format {
        Format::Json => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Format::Yaml => "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        Format::Protobuf => {
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        }
    }
}

/// `GET /api`
pub fn api_versions(advertised: Option<&str>) -> Value {
    let mut addresses = Vec::new();
    if let Some(address) = advertised {
        addresses.push(json!({"clientCIDR": "0.0.0.0/0", "serverAddress": address}));
    }
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses})
}

fn group_value(group: &str, versions: &[String]) -> Value {
    let one = |version: &String| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({
        "name": group,
        "versions": versions.iter().map(one).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(one),
    })
}

/// `GET /apis`
pub fn groups(table: &Table) -> Value {
    let groups: Vec<Value> = table
        .groups
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_value(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `GET /apis/GROUP`
pub fn group(table: &Table, name: &str) -> Option<Value> {
    let (group, versions) = table.groups.iter().find(|(own, _)| own == name && !own.is_empty())?;
    let mut value = group_value(group, versions);
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    Some(value)
}

/// `GET /apis/GROUP/VERSION`
pub fn resources(table: &Table, group: &str, version: &str) -> Option<Value> {
    let found = table.of_version(group, version);
    if found.is_empty() {
        return None;
    }
    let mut list = Vec::new();
    for resource in found {
        list.push(resource_value(resource));
        let mut subresources: Vec<Value> = resource
            .definition
            .subresources
            .iter()
            .map(|subresource| {
                let mut value = json!({
                    "name": format!("{}/{}", resource.plural(), subresource.name()),
                    "singularName": "",
                    "namespaced": resource.is_namespaced(),
                });
                match subresource.kind() {
                    Some(kind) => {
                        value["group"] = json!(kind.group);
                        value["version"] = json!(kind.version);
                        value["kind"] = json!(kind.kind);
                        if kind.group == group && kind.version == version {
                            value
                                .as_object_mut()
                                .map(|map| (map.shift_remove("group"), map.shift_remove("version")));
                        }
                    }
                    None => value["kind"] = json!(subresource_kind(resource, subresource.name())),
                }
                value["verbs"] = json!(subresource.verbs().words());
                value
            })
            .collect();
        subresources.sort_by(|one, two| one["name"].as_str().cmp(&two["name"].as_str()));
        list.extend(subresources);
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut value = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list});
    if !group.is_empty() {
        value["apiVersion"] = json!("v1");
    }
    Some(value)
}

/// The kind that a subresource answers with when it has none of its own.
fn subresource_kind(resource: &Resource, name: &str) -> String {
    match (resource.plural(), name) {
        ("pods", "proxy") => "PodProxyOptions".to_owned(),
        ("services", "proxy") => "ServiceProxyOptions".to_owned(),
        ("nodes", "proxy") => "NodeProxyOptions".to_owned(),
        _ => resource.kind().to_owned(),
    }
}

fn resource_value(resource: &Resource) -> Value {
    let names = &resource.definition.names;
    let mut value = json!({
        "name": names.plural,
        "singularName": names.singular,
        "namespaced": resource.is_namespaced(),
        "kind": names.kind,
        "verbs": resource.definition.verbs.words(),
    });
    if !names.short_names.is_empty() {
        value["shortNames"] = json!(names.short_names);
    }
    if !names.categories.is_empty() {
        value["categories"] = json!(names.categories);
    }
    if resource.definition.is_stored() && resource.plural() != "componentstatuses" {
        value["storageVersionHash"] = json!(storage_hash(resource));
    }
    value
}

/// A word that changes when the stored version does.
fn storage_hash(resource: &Resource) -> String {
    use base64::Engine;
    use sha2::Digest;
    let storage = &resource.definition.storage;
    // Upstream writes some kinds in a version that it no longer serves, or not by default.
    let version = match resource.kind() {
        "CustomResourceDefinition" | "MutatingAdmissionPolicy" | "MutatingAdmissionPolicyBinding" => {
            "v1beta1"
        }
        _ => storage.version.as_ref(),
    };
    let text = format!("{}/{version}/{}", storage.group, resource.kind());
    base64::engine::general_purpose::STANDARD.encode(&sha2::Sha256::digest(text)[..8])
}

/// The aggregated form of `/api` (only the core group) or `/apis` (all others).
pub fn aggregated(table: &Table, core: bool) -> Value {
    let items: Vec<Value> = table
        .groups
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        table.of_version(group, version).into_iter().map(aggregated_resource).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({});
            if !group.is_empty() {
                metadata["name"] = json!(group);
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items})
}

/// Encodes the aggregated form.
pub fn encode_aggregated(list: &Value, format: Format) -> Result<Bytes, Status> {
    if format != Format::Protobuf {
        return codec::encode(list, format, false, None);
    }
    let mut raw = BytesMut::new();
    put_message(list, LIST, &mut raw);
    Ok(codec::envelope(&[&raw], list["apiVersion"].as_str(), list["kind"].as_str()))
}

/// How a field of `apidiscovery.k8s.io/v2` travels. These kinds are never stored and have no schema.
enum Shape {
    /// Written even if it is empty.
    Text,
    Texts,
    Message(&'static [Field]),
    Messages(&'static [Field]),
    /// That of any object.
    Metadata,
}

type Field = (&'static str, u32, Shape);

const LIST: &[Field] =
    &[("metadata", 1, Shape::Message(LIST_METADATA)), ("items", 2, Shape::Messages(GROUP))];
const LIST_METADATA: &[Field] =
    &[("selfLink", 1, Shape::Text), ("resourceVersion", 2, Shape::Text), ("continue", 3, Shape::Text)];
const GROUP: &[Field] = &[("metadata", 1, Shape::Metadata), ("versions", 2, Shape::Messages(VERSION))];
const VERSION: &[Field] = &[
    ("version", 1, Shape::Text),
    ("resources", 2, Shape::Messages(RESOURCE)),
    ("freshness", 3, Shape::Text),
];
const RESOURCE: &[Field] = &[
    ("resource", 1, Shape::Text),
    ("responseKind", 2, Shape::Message(KIND)),
    ("scope", 3, Shape::Text),
    ("singularResource", 4, Shape::Text),
    ("verbs", 5, Shape::Texts),
    ("shortNames", 6, Shape::Texts),
    ("categories", 7, Shape::Texts),
    ("subresources", 8, Shape::Messages(SUBRESOURCE)),
];
const SUBRESOURCE: &[Field] = &[
    ("subresource", 1, Shape::Text),
    ("responseKind", 2, Shape::Message(KIND)),
    ("acceptedTypes", 3, Shape::Messages(KIND)),
    ("verbs", 4, Shape::Texts),
];
const KIND: &[Field] = &[("group", 1, Shape::Text), ("version", 2, Shape::Text), ("kind", 3, Shape::Text)];

fn put_message(value: &Value, fields: &[Field], out: &mut BytesMut) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for (name, tag, shape) in fields {
        let own = value.get(*name).unwrap_or(&Value::Null);
        let list = own.as_array().map(Vec::as_slice).unwrap_or_default();
        let mut put = |value: &Value, fields: &[Field]| {
            let mut inner = BytesMut::new();
            put_message(value, fields, &mut inner);
            codec::put_field(out, *tag, &inner);
        };
        match shape {
            Shape::Message(_) if own.is_null() => {}
            Shape::Message(fields) => put(own, fields),
            Shape::Messages(fields) => list.iter().for_each(|one| put(one, fields)),
            Shape::Text => codec::put_field(out, *tag, text(own).as_bytes()),
            Shape::Texts => list.iter().for_each(|one| codec::put_field(out, *tag, text(one).as_bytes())),
            Shape::Metadata => {
                let schema = api::schemas::schemas().get("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
                let raw = schema.map(|schema| codec::protobuf_raw(own, &schema)).unwrap_or_default();
                codec::put_field(out, *tag, &raw);
            }
        }
    }
}

fn aggregated_resource(resource: &Arc<Resource>) -> Value {
    let names = &resource.definition.names;
    // What is not said is that of the list; only custom resources say it again.
    let kind = |group: &str, version: &str, kind: &str| {
        let same = group == names.group && version == names.version && !resource.definition.custom;
        let (group, version) = if same { ("", "") } else { (group, version) };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut value = json!({
        "resource": names.plural,
        "responseKind": kind(&names.group, &names.version, &names.kind),
        "scope": if resource.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": names.singular,
        "verbs": resource.definition.verbs.words(),
    });
    if !names.short_names.is_empty() {
        value["shortNames"] = json!(names.short_names);
    }
    if !names.categories.is_empty() {
        value["categories"] = json!(names.categories);
    }
    let mut subresources: Vec<Value> = resource
        .definition
        .subresources
        .iter()
        .map(|subresource| {
            let response = match subresource.kind() {
                Some(own) => kind(own.group, own.version, own.kind),
                None => kind(&names.group, &names.version, &subresource_kind(resource, subresource.name())),
            };
            json!({"subresource": subresource.name(), "responseKind": response, "verbs": subresource.verbs().words()})
        })
        .collect();
    subresources.sort_by(|one, two| one["subresource"].as_str().cmp(&two["subresource"].as_str()));
    if !subresources.is_empty() {
        value["subresources"] = json!(subresources);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aggregated_form_travels_in_protobuf_as_go_writes_it() {
        let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": [{"metadata": {"name": "g"}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
                {"resource": "xs", "responseKind": {"group": "", "version": "", "kind": "X"}, "scope": "Cluster",
                 "singularResource": "x", "verbs": ["get"]}]}]}]});
        let bytes = encode_aggregated(&list, Format::Protobuf).unwrap();
        let has = |part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
        assert!(
            bytes.starts_with(b"k8s\0\x0a\x2f\x0a\x16apidiscovery.k8s.io/v2\x12\x15APIGroupDiscoveryList")
        );
        assert!(has(b"\x0a\x06\x0a\x00\x12\x00\x1a\x00"), "the list's metadata");
        let resource = b"\x0a\x02xs\x12\x07\x0a\x00\x12\x00\x1a\x01X\x1a\x07Cluster\x22\x01x\x2a\x03get";
        assert!(has(resource), "{bytes:x?}");
        assert!(has(b"\x1a\x07Current"));
        assert!(
            encode_aggregated(&list, Format::Yaml)
                .unwrap()
                .starts_with(b"apiVersion: apidiscovery.k8s.io/v2\n")
        );
    }
}
