//! Field owners: what each write records in `metadata.managedFields`.

use api::StatusKeeps;
use apimachinery::apply::scale::SCALE;
use apimachinery::apply::{self, Configuration, Manager, Versions};
use apimachinery::decode::{self, FieldValidation, Words};
use apimachinery::meta::{self, MetaMut};
use apimachinery::schema::Schema;
use apimachinery::status::Status;
use serde_json::Value;

use crate::context::Context;
use crate::conversion::Books;
use crate::registry::Resource;

/// Runs `with` as the manager of a request. What another end point writes is not owned through this one.
fn manager<T>(
    resource: &Resource,
    name: &str,
    subresource: &str,
    books: &Books,
    with: impl FnOnce(&Manager<'_>) -> T,
) -> T {
    let ignored = untouched(resource, subresource);
    let find = |object: &Value, version: &str| books.find(resource.converter.as_ref()?, object, version);
    with(&Manager {
        versions: resource.converter.is_some().then_some(Versions(&find)),
        name,
        api_version: &resource.api_version,
        subresource,
        now: crate::clock::now(),
        ignored,
    })
}

/// What cannot be written through an end point, and is owned by nobody for having sent it there.
fn untouched(resource: &Resource, subresource: &str) -> &'static [&'static str] {
    const ALL_BUT_STATUS: &[&str] = &["spec", "metadata"];
    const SIGNING: (&str, &str) = ("certificates.k8s.io", "certificatesigningrequests");
    match (subresource, (resource.group(), resource.plural())) {
        ("", SIGNING) => &["spec", "status"],
        ("status", SIGNING) => &["spec", "status.conditions"],
        ("approval", SIGNING) => &["spec", "status.certificate"],
        ("status", ("", "pods")) => &["spec", "metadata.deletionTimestamp", "metadata.ownerReferences"],
        ("resize" | "ephemeralcontainers", ("", "pods")) => &[],
        (
            "status",
            ("apiregistration.k8s.io", "apiservices") | ("apiextensions.k8s.io", "customresourcedefinitions"),
        ) => ALL_BUT_STATUS,
        ("status", _) if resource.definition.custom => ALL_BUT_STATUS,
        ("status", _) => match resource.definition.status_keeps {
            StatusKeeps::Metadata => ALL_BUT_STATUS,
            StatusKeeps::Labels => &["spec", "metadata.labels"],
            StatusKeeps::Nothing => &["spec"],
        },
        _ if resource.definition.subresource("status").is_some() => &["status"],
        _ => &[],
    }
}

/// Records the creator as owner of everything.
pub fn created(object: &mut Value, resource: &Resource, name: &str) {
    manager(resource, name, "", &Books::default(), |own| {
        apply::update_managed_fields(None, object, &resource.definition.schema, own)
    });
}

/// Records who owns the fields that an update changed.
///
/// Where nobody kept books so far, an update does not begin to.
pub fn updated(context: &Context, new: &mut Value, old: &Value, name: &str, subresource: &str) {
    let resource = &context.resource;
    let kept =
        |object: &Value| object["metadata"]["managedFields"].as_array().is_some_and(|list| !list.is_empty());
    if !kept(old) && !kept(new) {
        new.metadata_mut().shift_remove("managedFields");
        return;
    }
    manager(resource, name, subresource, &context.books, |own| {
        apply::update_managed_fields(Some(old), new, &resource.definition.schema, own);
    });
}

/// The object after a server-side apply.
pub fn apply(
    context: &Context,
    old: Option<&Value>,
    config: &Configuration,
    name: &str,
    subresource: &str,
    force: bool,
) -> Result<Value, Status> {
    let resource = &context.resource;
    let schema = &resource.definition.schema;
    let result = manager(resource, name, subresource, &context.books, |own| {
        apply::apply(old, config, schema, own, force).map_err(|error| error.to_status())
    })?;
    readable(result, old, config, schema, (&resource.api_version, resource.kind()))
}

/// A configuration is kept as it was sent while owners are found; the object is as any other writer's would be.
fn readable(
    mut result: Value,
    old: Option<&Value>,
    config: &Configuration,
    schema: &Schema,
    (version, kind): (&str, &str),
) -> Result<Value, Status> {
    let books = result.metadata_mut().shift_remove("managedFields");
    let options =
        decode::Options { words: Words::Restoring, ..decode::Options::new(FieldValidation::Ignore) };
    let decoded = decode::changed(result, old.unwrap_or(&Value::Null), schema, options).map_err(|error| {
        let kind = format!("{version}, Kind={kind}");
        config.unreadable(format!("unable to convert unstructured object to {kind}: {error}")).to_status()
    })?;
    let mut result = decoded.value;
    if let Some(books) = books {
        result.put_meta("managedFields", books);
    }
    Ok(result)
}

/// Who writes a scale.
fn scaler(name: &str) -> Manager<'_> {
    let now = crate::clock::now();
    Manager { name, api_version: SCALE, subresource: "scale", now, ignored: &[], versions: None }
}

/// The scale after a server-side apply.
pub fn apply_scale(
    old: &Value,
    config: &Configuration,
    schema: &Schema,
    name: &str,
    force: bool,
) -> Result<Value, Status> {
    let result = apply::apply(Some(old), config, schema, &scaler(name), force);
    readable(result.map_err(|error| error.to_status())?, Some(old), config, schema, (SCALE, "Scale"))
}

/// Records who owns the scale after another write.
pub fn scaled(new: &mut Value, old: &Value, schema: &Schema, name: &str) {
    apply::update_managed_fields(Some(old), new, schema, &scaler(name));
}

/// Whether an update changes nothing that is worth a write.
pub fn is_unchanged(new: &Value, old: &Value) -> bool {
    meta::same(new, old)
}

#[cfg(test)]
mod tests {
    use api::Definition;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_custom_kind_has_not_the_rules_of_a_built_in_one_of_the_same_name() {
        for plural in ["pods", "certificatesigningrequests"] {
            let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
            let mut crd = json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": "Own"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema}}]}});
            let builtin =
                api::builtins().into_iter().find(|kind| kind.names.kind == "CustomResourceDefinition");
            builtin.expect("CRDs are built in").set_defaults(&mut crd);
            let own = Resource::new(Definition::from_crd(&crd).expect("a valid CRD").remove(0));
            assert_eq!(untouched(&own, "status"), ["spec", "metadata"], "{plural}");
            assert_eq!(untouched(&own, ""), ["status"], "{plural}");
        }
        let pods =
            api::builtins().into_iter().find(|kind| kind.names.kind == "Pod").expect("pods are built in");
        assert_eq!(untouched(&Resource::new(pods), "resize"), [""; 0]);
    }
}
