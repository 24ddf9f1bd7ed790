//! Objects as upstream's API server stores them: protobuf in an envelope, where ours are JSON. They are read as they are, and
//! from their next write on are what `--storage-media-type` says.

use std::sync::Arc;

use api::apiextensions::v1beta1;
use apimachinery::protobuf;
use bytes::Bytes;

use crate::cache::Open;
use crate::cache::entry::encode_for_store;
use crate::cache::sparse;
use crate::registry::Resource;

/// Reads stored bytes of a resource, whoever wrote them. `sealed` is what undoes encryption.
pub fn opener(resource: &Arc<Resource>, sealed: Option<Open>) -> Open {
    let resource = resource.clone();
    Arc::new(move |key, value| {
        let plain = match &sealed {
            Some(open) => open(key, value)?,
            None => value,
        };
        if plain.starts_with(protobuf::MAGIC) {
            read(&resource, &plain)
        } else if is_definition(&resource) {
            read_definition(plain)
        } else {
            Ok(plain)
        }
    })
}

fn is_definition(resource: &Resource) -> bool {
    resource.group() == "apiextensions.k8s.io" && resource.kind() == "CustomResourceDefinition"
}

/// A CRD as upstream stores it: in the form of `v1beta1`, which is shorter.
fn read_definition(json: Bytes) -> Result<Bytes, String> {
    let version = sparse::read(&json, &["apiVersion"]).map_err(|error| error.to_string())?;
    if version["apiVersion"] != v1beta1::API_VERSION {
        return Ok(json);
    }
    let mut object = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
    v1beta1::into_v1(&mut object);
    Ok(encode_for_store(&object))
}

fn read(resource: &Resource, bytes: &[u8]) -> Result<Bytes, String> {
    let envelope = protobuf::unwrap(bytes).map_err(|error| telemetry::chain(&error).to_string())?;
    let definition = &resource.definition;
    let own = envelope.api_version == resource.api_version;
    // Several versions of a kind share a place; each knows how it is written. One that is not served any more is
    // read as the one that is.
    let other = if own { None } else { builtin(envelope.api_version, envelope.kind) };
    let definition = other.as_ref().unwrap_or(definition);
    let mut object =
        protobuf::decode(bytes, &definition.schema).map_err(|error| telemetry::chain(&error).to_string())?;
    object["apiVersion"] = definition.names.api_version().into();
    object["kind"] = resource.kind().into();
    definition.set_defaults(&mut object);
    Ok(encode_for_store(&object))
}

/// The stored form of an object in protobuf. Custom kinds have none, and stay what they are.
pub fn write(resource: &Resource, json: &Bytes) -> Bytes {
    let definition = &resource.definition;
    let object: serde_json::Value = match serde_json::from_slice(json) {
        Ok(object) if !definition.custom => object,
        _ => return json.clone(),
    };
    let version = object["apiVersion"].as_str().unwrap_or_default();
    if version == resource.api_version {
        return protobuf::encode(&object, &definition.schema).into();
    }
    match builtin(version, resource.kind()) {
        Some(other) => protobuf::encode(&object, &other.schema).into(),
        None => json.clone(),
    }
}

fn builtin(api_version: &str, kind: &str) -> Option<api::Definition> {
    api::builtins().into_iter().find(|one| one.names.kind == kind && one.names.api_version() == api_version)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_upstream_stored_is_read() {
        let definition = builtin("v1", "ConfigMap").expect("a built-in kind");
        let schema = definition.schema.clone();
        let resource = Arc::new(Resource::new(definition));
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "namespace": "n"}, "data": {"k": "v"}});
        let stored = Bytes::from(protobuf::encode(&object, &schema));
        let opened = opener(&resource, None)(b"/registry/configmaps/n/a", stored).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&opened).unwrap(), object);
        let json = Bytes::from(object.to_string());
        assert_eq!(write(&resource, &json), protobuf::encode(&object, &schema));
        let json = Bytes::from_static(b"{}");
        assert_eq!(opener(&resource, None)(b"k", json.clone()).unwrap(), json);
        let broken = Bytes::from_static(b"k8s\0\xff\xff");
        assert!(opener(&resource, None)(b"k", broken).is_err());
    }
}
