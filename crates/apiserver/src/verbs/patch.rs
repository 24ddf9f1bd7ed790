//! PATCH in its four forms. A patch is applied to the object as it is, inside of the compare-and-swap.

use api::Subresource;
use apimachinery::decode::{self, DecodeError, Decoded, FieldValidation, Words};
use apimachinery::meta::{self, Meta, MetaMut};
use apimachinery::patch::{self, PatchError};
use apimachinery::schema::Schema;
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

use super::create::read_body;
use super::update::scale_schema;
use crate::body::Body;
use crate::context::Context;
use crate::managed;
use crate::negotiate;
use crate::options;
use crate::respond;
use crate::server::ApiServer;
use crate::store::WriteOptions;

/// The forms of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Json,
    Merge,
    Strategic,
    Apply,
}

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn form(context: &Context) -> Result<Form, Status> {
    let custom = context.resource.definition.custom && !matches!(context.info.subresource.as_str(), "scale");
    match negotiate::content_type(&context.headers).as_str() {
        JSON => Ok(Form::Json),
        MERGE => Ok(Form::Merge),
        STRATEGIC if !custom => Ok(Form::Strategic),
        APPLY => Ok(Form::Apply),
        _ => Err(Status::unsupported_patch()),
    }
}

/// A patch, parsed once and applied as often as needed.
struct Patch {
    form: Form,
    body: Value,
    validation: FieldValidation,
}

impl Patch {
    fn parse(context: &Context, bytes: &Bytes) -> Result<Self, Status> {
        let form = form(context)?;
        let validation = context.field_validation()?;
        let body = match form {
            Form::Apply => {
                let decoded = decode_configuration(bytes, validation)
                    .map_err(|error| Status::bad_request(format!("error decoding YAML: {error}")))?;
                warn(context, decoded.warnings);
                decoded.value
            }
            _ => {
                let options = decode::Options::verbatim(validation);
                let decoded =
                    decode::json_with(bytes, Schema::any().node(), options).map_err(|error| match error {
                        DecodeError::Strict(_) => not_an_object(&String::from_utf8_lossy(bytes), &error),
                        _ => Status::bad_request(format!("error decoding patch: {error}")),
                    })?;
                warn(context, decoded.warnings);
                decoded.value
            }
        };
        Ok(Self { form, body, validation })
    }

    /// The object after a JSON, merge or strategic patch, checked against its schema.
    fn apply(&self, context: &Context, old: &Value, schema: &Schema) -> Result<Value, Status> {
        // Who owns which field is mostly of no interest to a patch, and half of what there would be to copy and check.
        let base = || if self.is_about_owners() { old.clone() } else { meta::without(old, "managedFields") };
        let patch = |base: Value| match self.form {
            Form::Json => patch::json_patch(base, &self.body),
            Form::Merge => patch::merge_patch(base, &self.body),
            Form::Strategic => patch::strategic_merge_patch(base, &self.body, schema),
            Form::Apply => Err(PatchError::Malformed("apply is no plain patch".to_owned())),
        };
        let patched = patch(base()).map_err(|error| refuse(self.form, &error))?;
        for field in ["apiVersion", "kind"] {
            if patched[field] != old[field] {
                let (kind, version) = (&patched["kind"], &patched["apiVersion"]);
                let why = format!(
                    "no kind {kind} is registered for version {version} among those that are patched here"
                );
                return Err(not_an_object(&patched.to_string(), &why));
            }
        }
        let words = if self.form == Form::Strategic { Words::Restoring } else { Words::Parsing };
        let options = decode::Options { words, ..decode::Options::new(self.validation) };
        let decoded = decode::changed(patched, old, schema, options).map_err(|error| {
            let shown = match (self.form, patch(base())) {
                (Form::Json | Form::Merge, Ok(mut patched)) => {
                    if let Some(books) = old.metadata().and_then(|meta| meta.get("managedFields"))
                        && patched["metadata"].is_object()
                    {
                        patched["metadata"]["managedFields"] = books.clone();
                    }
                    sorted(patched).to_string()
                }
                _ => go_syntax(&self.body),
            };
            not_an_object(&shown, &error)
        })?;
        warn(context, decoded.warnings);
        // Owners that were left out above stay as they are recorded.
        Ok(decoded.value)
    }

    /// Whether it may change, or look at, the record of field owners.
    fn is_about_owners(&self) -> bool {
        match self.form {
            Form::Json | Form::Apply => true,
            Form::Merge | Form::Strategic => match self.body.get("metadata") {
                None => self.body.get("$patch").is_some(),
                Some(Value::Object(metadata)) => {
                    metadata.keys().any(|key| key == "managedFields" || key.starts_with('$'))
                }
                Some(_) => true,
            },
        }
    }
}

/// Reads an apply configuration of any shape: what the schema does not declare is told by apply itself, with its path.
///
/// Clients mostly send JSON, which is YAML too but ten times quicker to read as what it is. Whatever is remarkable
/// about it is left to the YAML reader, whose words upstream uses.
fn decode_configuration(bytes: &[u8], validation: FieldValidation) -> Result<Decoded, DecodeError> {
    let (schema, options) = (Schema::any(), decode::Options::verbatim(validation));
    if bytes.first() == Some(&b'{')
        && let Ok(decoded) = decode::json_with(bytes, schema.node(), options)
        && decoded.warnings.is_empty()
    {
        return Ok(decoded);
    }
    decode::yaml_with(bytes, schema.node(), options)
}

/// 422 for a patch that makes something else of the object than its kind.
fn not_an_object(shown: &str, why: &dyn std::fmt::Display) -> Status {
    let mut problems = apimachinery::field::Problems::new();
    problems.invalid(&apimachinery::field::Path::new("patch"), shown, why.to_string());
    Status::invalid("", "", "", &problems)
}

/// A value as Go prints it, which is how upstream shows a strategic merge patch that it refuses.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_syntax).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            let shown: Vec<_> =
                keys.into_iter().map(|(key, value)| format!("{key}:{}", go_syntax(value))).collect();
            format!("map[{}]", shown.join(" "))
        }
    }
}

fn refuse(form: Form, error: &PatchError) -> Status {
    match error {
        PatchError::Malformed(text) if form != Form::Json => Status::bad_request(text.clone()),
        PatchError::Malformed(_) | PatchError::DoesNotApply(_) => {
            let text = "the server rejected our request due to an error in our request";
            let mut status = Status::failure(Reason::Invalid, text);
            status.details = Some(Box::default());
            tracing::debug!(%error, "a patch does not apply");
            status
        }
        PatchError::TooLarge(_) => Status::too_large(error),
    }
}

impl ApiServer {
    /// Patches an object, or the part of it that the subresource shows.
    pub async fn patch(&self, context: &Context, body: Body) -> Result<Response<Body>, Status> {
        options::check(context, form(context)? == Form::Apply)?;
        let bytes = read_body(body).await?;
        let patch = Patch::parse(context, &bytes)?;
        let mut options = WriteOptions::of(context)?;
        if let Some(Subresource::Scale(paths)) =
            context.resource.definition.subresource(&context.info.subresource)
        {
            let schema = scale_schema()?;
            if patch.form == Form::Apply {
                return Err(Status::unsupported_patch());
            }
            return self.write_scale(context, paths, &mut |old| patch.apply(context, old, &schema)).await;
        }
        let schema = &context.resource.definition.schema;
        let written = if patch.form == Form::Apply {
            self.check_apply(context, &patch.body)?;
            let force = context.query.flag("force");
            options.applied = true;
            let create = options.subresource.is_empty();
            self.update_object(context, &options, create, &mut |old| {
                managed::apply(context, old, &patch.body, &options.manager, &options.subresource, force)
            })
            .await?
        } else {
            self.update_object(context, &options, false, &mut |old| {
                let old = old.ok_or_else(|| context.not_found())?;
                patch.apply(context, old, schema)
            })
            .await?
        };
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        respond::object(context, code, &written.entry)
    }

    fn check_apply(&self, context: &Context, body: &Value) -> Result<(), Status> {
        let resource = &context.resource;
        if body["apiVersion"] != resource.api_version.as_str() || body["kind"] != resource.kind() {
            let version = body["apiVersion"].as_str().unwrap_or_default();
            let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            let kind = body["kind"].as_str().unwrap_or_default();
            return Err(Status::bad_request(format!("invalid object type: {version}, Kind={kind}")));
        }
        if body.name() != context.info.name && !body.name().is_empty() {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                body.name(),
                context.info.name
            )));
        }
        if body.metadata().is_some_and(|metadata| metadata.contains_key("managedFields")) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        Ok(())
    }
}

/// Fills in what an applied object may leave to the URL.
pub fn complete(context: &Context, body: &Value) -> Value {
    let mut body = body.clone();
    if body.name().is_empty() {
        body.set_meta("name", &context.info.name);
    }
    if context.resource.is_namespaced() && body.namespace().is_empty() {
        body.set_meta("namespace", &context.info.namespace);
    }
    body
}
/// The value with its fields in order, as Go writes maps.
pub(crate) fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<(String, Value)> = map.into_iter().collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            fields.into_iter().map(|(name, value)| (name, sorted(value))).collect()
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

/// Passes warnings on. A patched object is read in the order of its fields' names.
fn warn(context: &Context, mut warnings: Vec<String>) {
    warnings.sort();
    warnings.into_iter().for_each(|warning| context.warn(warning));
}
