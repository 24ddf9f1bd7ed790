//! Field owners: what each write records in `metadata.managedFields`.

use apimachinery::apply::{self, Manager};
use apimachinery::decode::{self, FieldValidation};
use apimachinery::meta::{self, MetaMut};
use apimachinery::status::Status;
use serde_json::Value;

use crate::context::Context;
use crate::registry::Resource;
use crate::verbs::patch::complete;

/// Runs `with` as the manager of a request. What another end point writes is not owned through this one.
fn manager<T>(resource: &Resource, name: &str, subresource: &str, with: impl FnOnce(&Manager<'_>) -> T) -> T {
    let ignored: &[&str] = match subresource {
        "status" => &["spec"],
        _ if resource.definition.subresource("status").is_some() => &["status"],
        _ => &[],
    };
    with(&Manager {
        name,
        api_version: &resource.api_version,
        subresource,
        now: crate::clock::now(),
        ignored,
    })
}

/// Records the creator as owner of everything.
pub fn created(object: &mut Value, resource: &Resource, name: &str) {
    manager(resource, name, "", |own| {
        apply::update_managed_fields(None, object, &resource.definition.schema, own)
    });
}

/// Records who owns the fields that an update changed.
pub fn updated(new: &mut Value, old: &Value, resource: &Resource, name: &str, subresource: &str) {
    manager(resource, name, subresource, |own| {
        apply::update_managed_fields(Some(old), new, &resource.definition.schema, own);
    });
}

/// The object after a server-side apply.
pub fn apply(
    context: &Context,
    old: Option<&Value>,
    applied: &Value,
    name: &str,
    subresource: &str,
    force: bool,
) -> Result<Value, Status> {
    let resource = &context.resource;
    let config = complete(context, applied);
    let schema = &resource.definition.schema;
    let mut result = manager(resource, name, subresource, |own| {
        apply::apply(old, &config, schema, own, force).map_err(|error| error.to_status())
    })?;
    // A configuration is kept as it was sent while owners are found; the object is as any other writer's would be.
    let books = result.metadata_mut().shift_remove("managedFields");
    let options = decode::Options::new(FieldValidation::Ignore);
    let decoded = decode::changed(result, old.unwrap_or(&Value::Null), schema, options)
        .map_err(|error| Status::bad_request(format!("error decoding the applied object: {error}")))?;
    let mut result = decoded.value;
    if let Some(books) = books {
        result.put_meta("managedFields", books);
    }
    Ok(result)
}

/// Whether an update changes nothing that is worth a write.
pub fn is_unchanged(new: &Value, old: &Value) -> bool {
    meta::same(new, old)
}
