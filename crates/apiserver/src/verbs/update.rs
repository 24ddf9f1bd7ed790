//! PUT of an object or of one of its parts.

use api::{ScalePaths, Subresource};
use apimachinery::apply::scale::{self, Place};
use apimachinery::meta::{self, Meta};
use apimachinery::selector::LabelSelector;
use apimachinery::status::Status;
use apimachinery::table::{self, TableColumn};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::create::{decode_as, decode_own, read_body};
use crate::body::Body;
use crate::cache::entry::Entry;
use crate::context::Context;
use crate::managed;
use crate::negotiate::Shape;
use crate::respond;
use crate::server::ApiServer;
use crate::store::{WriteOptions, one_of_each_owner, wrong_name, wrong_namespace};

impl ApiServer {
    /// Replaces an object, or the part of it that the subresource shows.
    pub async fn update(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        let bytes = read_body(body).await?;
        if let Some(Subresource::Scale(paths)) =
            context.resource.definition.subresource(&context.info.subresource)
        {
            let schema = scale_schema()?;
            let scale = decode_as(context, &bytes, "autoscaling/v1", "Scale", &schema)?;
            check_name(context, &scale)?;
            return self.write_scale(context, paths, false, &mut |_| Ok(scale.clone())).await;
        }
        let decode = || {
            let mut object = decode_own(context, &bytes)?;
            one_of_each_owner(context, &mut object, "");
            Ok(object)
        };
        let object = decode()?;
        check_name(context, &object)?;
        let options = WriteOptions::of(context)?;
        let create = context.resource.definition.create_on_update && options.subresource.is_empty();
        let mut first = Some(object);
        // Who has to try again decodes again; nearly nobody does.
        let mut make = |_: Option<&Value>| first.take().map_or_else(decode, Ok);
        let written = self.update_object(context, &options, create, &mut make).await?;
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let entry = self.shown(&context.resource, written.entry).await?;
        respond::object(context, code, &entry)
    }

    /// The scale of an object.
    pub async fn get_scale(&self, context: &Context, paths: &ScalePaths) -> Result<Response<Body>, Status> {
        let entry = self
            .entry(&context.resource, &context.info.namespace, &context.info.name)
            .await?
            .ok_or_else(|| context.not_found())?;
        let entry = self.shown(&context.resource, entry).await?;
        answer_scale(context, paths, &entry)
    }

    /// Writes the scale that `make` makes from the present one. What is applied brings its owners.
    pub async fn write_scale(
        &self,
        context: &Context,
        paths: &ScalePaths,
        applied: bool,
        make: &mut (dyn FnMut(&Value) -> Result<Value, Status> + Send),
    ) -> Result<Response<Body>, Status> {
        // Owners are those of the scale, not what the object as a whole would show.
        let options = WriteOptions { applied: true, ..WriteOptions::of(context)? };
        let schema = scale_schema()?;
        let place = Place { api_version: &context.resource.api_version, replicas: &paths.spec_replicas };
        let written = self
            .update_object(context, &options, false, &mut |old| {
                let old = old.ok_or_else(|| context.not_found())?;
                let books = old.metadata().and_then(|metadata| metadata.get("managedFields"));
                let mut before = scale_of(old, paths);
                scale::show(books, &place, &mut before);
                let mut scale = make(&before)?;
                if !applied {
                    managed::scaled(&mut scale, &before, &schema, &options.manager);
                }
                if !scale.namespace().is_empty() && scale.namespace() != context.info.namespace {
                    return Err(wrong_namespace());
                }
                if !["", old.uid()].contains(&scale.uid()) {
                    let why = format!(
                        "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                        scale.uid(),
                        old.uid()
                    );
                    let plural = format!("{}/scale", context.resource.plural());
                    return Err(Status::conflict(context.resource.group(), &plural, old.name(), &why));
                }
                if !scale.resource_version().is_empty() && scale.resource_version() != old.resource_version()
                {
                    let resource = &context.resource;
                    return Err(Status::modified(resource.group(), resource.plural(), old.name()));
                }
                let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                if replicas < 0 {
                    let mut problems = apimachinery::field::Problems::new();
                    let spec = apimachinery::field::Path::new("spec");
                    problems.invalid(&spec.child("replicas"), replicas, "must be greater than or equal to 0");
                    return Err(Status::invalid("autoscaling", "Scale", old.name(), &problems));
                }
                let mut new = old.clone();
                meta::set(&mut new, &paths.spec_replicas, Value::from(replicas));
                let owners = scale.metadata().and_then(|metadata| metadata.get("managedFields"));
                scale::take(books, &place, owners, &mut new);
                Ok(new)
            })
            .await?;
        let entry = self.shown(&context.resource, written.entry).await?;
        answer_scale(context, paths, &entry)
    }
}

/// The body of a PUT says whom it means, and means the one in the path; its namespace is looked at first.
fn check_name(context: &Context, object: &Value) -> Result<(), Status> {
    let (namespace, name) = (context.info.namespace.as_str(), context.info.name.as_str());
    if context.resource.is_namespaced() && !object.namespace().is_empty() && object.namespace() != namespace {
        return Err(wrong_namespace());
    }
    match object.name() {
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        own if own != name => Err(wrong_name(own, name)),
        _ => Ok(()),
    }
}

/// The shape of Scale.
pub fn scale_schema() -> Result<apimachinery::schema::Schema, Status> {
    api::schemas::schemas()
        .get("io.k8s.api.autoscaling.v1.Scale")
        .ok_or_else(|| Status::internal("the Scale kind is not known"))
}

/// The scale that an object shows.
pub fn scale_of(object: &Value, paths: &ScalePaths) -> Value {
    let mut metadata = json!({
        "name": object.name(),
        "uid": object.uid(),
        "resourceVersion": object.resource_version(),
        "creationTimestamp": object.meta_str("creationTimestamp"),
    });
    if !object.namespace().is_empty() {
        metadata["namespace"] = json!(object.namespace());
    }
    let number = |path: &str| meta::get_int(object, path).unwrap_or(0);
    let mut spec = json!({});
    if number(&paths.spec_replicas) != 0 {
        spec["replicas"] = json!(number(&paths.spec_replicas));
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": spec, "status": {"replicas": number(&paths.status_replicas)},
    });
    let selector = match meta::get(object, &paths.selector) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(map))
            if map.contains_key("matchLabels") || map.contains_key("matchExpressions") =>
        {
            LabelSelector::from_object(&Value::Object(map.clone()))
                .map(|own| own.to_string())
                .unwrap_or_default()
        }
        Some(Value::Object(map)) => LabelSelector::from_map(map).to_string(),
        _ => String::new(),
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = Value::String(selector);
    }
    scale
}

fn answer_scale(context: &Context, paths: &ScalePaths, entry: &Entry) -> Result<Response<Body>, Status> {
    let scale = scale_of(&context.resource.parse(entry), paths);
    let accepted = &context.accepted;
    let shown = match accepted.shape {
        Shape::Object => None,
        Shape::Metadata => Some(table::partial_metadata(&scale)),
        Shape::Table => Some(scale_table(context, &scale)),
    };
    if let Some(shown) = shown {
        let shown = respond::in_version(accepted, shown);
        return respond::value(StatusCode::OK, &shown, accepted, None);
    }
    respond::value(StatusCode::OK, &scale, &context.accepted, Some(&scale_schema()?))
}

/// A scale as `kubectl get --subresource=scale` shows it.
fn scale_table(context: &Context, scale: &Value) -> Value {
    let column = |name: &str, kind: &str, format: &str, description: &str| TableColumn {
        name: name.to_owned(),
        kind: kind.to_owned(),
        format: format.to_owned(),
        description: description.to_owned(),
        priority: 0,
    };
    let columns = [
        column("Name", "string", "name", "Name must be unique within a namespace."),
        column("Desired", "integer", "", "Number of desired replicas."),
        column("Available", "integer", "", "Number of observed replicas."),
        column("Age", "string", "", "Time since the object was created."),
    ];
    let replicas = |part: &str| scale[part]["replicas"].as_i64().unwrap_or(0);
    let age = api::columns::age(scale.meta_str("creationTimestamp"), crate::clock::now());
    let cells = vec![scale.name().into(), replicas("spec").into(), replicas("status").into(), age.into()];
    let object = match context.query.get("includeObject").unwrap_or("Metadata") {
        "None" => None,
        "Object" => Some(scale.clone()),
        _ => Some(table::partial_metadata(scale)),
    };
    let metadata = json!({"resourceVersion": scale.resource_version()});
    table::table(metadata, &columns, vec![table::row(cells, object)])
}
