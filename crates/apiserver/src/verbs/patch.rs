//! PATCH in its four forms. A patch is applied to the object as it is, inside of the compare-and-swap.

use std::sync::{Arc, LazyLock};

use api::Subresource;
use apimachinery::apply::Configuration;
use apimachinery::apply::scale::SCALE;
use apimachinery::decode::{self, DecodeError, Decoded, FieldValidation, Words};
use apimachinery::golang;
use apimachinery::meta::{self, Meta};
use apimachinery::patch::{self, PatchError};
use apimachinery::schema::{Arena, Field, Kind, List, ListType, Object, Opaque, Scalar, Schema};
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;

use super::create::read_body;
use super::update::scale_schema;
use crate::body::Body;
use crate::codec;
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
    /// What strict reading has to say of the patch itself.
    strict: Vec<String>,
    validation: FieldValidation,
}

impl Patch {
    /// Reads what was sent. Only done when there is an object to patch, or an apply that may make one.
    fn parse(form: Form, validation: FieldValidation, bytes: &Bytes) -> Result<Self, Status> {
        let strictly = validation != FieldValidation::Ignore;
        let refuse = |error: DecodeError| {
            let prefix = match form {
                Form::Strategic => "",
                _ if strictly => "error decoding patch: ",
                _ => "",
            };
            Status::bad_request(format!("{prefix}{error}"))
        };
        // Repeated fields are collected as warnings, and judged with those of the object.
        let read = if strictly { FieldValidation::Warn } else { FieldValidation::Ignore };
        let decoded = match form {
            Form::Apply => decode_configuration(bytes, read).map_err(|error| {
                let step = match error {
                    DecodeError::Yaml(_) => "error converting YAML to JSON: ",
                    _ => "",
                };
                Status::bad_request(format!("error decoding YAML: {step}{error}"))
            })?,
            Form::Json if strictly => {
                let read = decode::json_with(bytes, OPERATIONS.node(), decode::Options::verbatim(read));
                let warnings = read.map_err(refuse)?.warnings;
                let plain = decode::Options::verbatim(FieldValidation::Ignore);
                let decoded = decode::json_with(bytes, Schema::any().node(), plain).map_err(refuse)?;
                Decoded {
                    warnings: warnings.iter().map(|one| format!("json patch {one}")).collect(),
                    ..decoded
                }
            }
            _ => decode::json_with(bytes, Schema::any().node(), decode::Options::verbatim(read))
                .map_err(refuse)?,
        };
        let is_map = decoded.value.is_object() || decoded.value.is_null();
        if !is_map && (form == Form::Apply || form == Form::Merge && strictly) {
            let found = golang::json_type(&decoded.value);
            let prefix = match form {
                Form::Apply => "error decoding YAML: error unmarshaling JSON: while decoding JSON",
                _ => "error decoding patch",
            };
            return Err(Status::bad_request(format!(
                "{prefix}: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
            )));
        }
        Ok(Self { form, body: decoded.value, strict: decoded.warnings, validation })
    }

    /// The patch, read when it is first needed.
    fn once<'a>(
        parsed: &'a mut Option<Self>,
        form: Form,
        validation: FieldValidation,
        bytes: &Bytes,
    ) -> Result<&'a mut Self, Status> {
        match parsed {
            Some(patch) => Ok(patch),
            None => Ok(parsed.insert(Self::parse(form, validation, bytes)?)),
        }
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
        let mut patched = patch(base()).map_err(|error| refuse(&error))?;
        let shown = || match (self.form, patch(base())) {
            (Form::Json | Form::Merge, Ok(mut patched)) => {
                if let Some(books) = old.metadata().and_then(|meta| meta.get("managedFields"))
                    && patched["metadata"].is_object()
                {
                    patched["metadata"]["managedFields"] = books.clone();
                }
                sorted(patched).to_string()
            }
            _ => golang::plain(&self.body),
        };
        if let Some(why) = self.retype(&mut patched, old, schema)? {
            return Err(not_an_object(&shown(), &why));
        }
        let words = if self.form == Form::Strategic { Words::Restoring } else { Words::Parsing };
        // Complaints about the patch come before those about what it makes.
        let read =
            if self.validation == FieldValidation::Ignore { self.validation } else { FieldValidation::Warn };
        let options = decode::Options { words, ..decode::Options::new(read) };
        let decoded = decode::changed(patched, old, schema, options)
            .map_err(|error| not_an_object(&shown(), &error))?;
        let mut complaints = decoded.warnings;
        complaints.sort();
        let complaints: Vec<String> = self.strict.iter().cloned().chain(complaints).collect();
        if self.validation == FieldValidation::Strict && !complaints.is_empty() {
            return Err(not_an_object(&shown(), &DecodeError::Strict(complaints)));
        }
        complaints.into_iter().for_each(|complaint| context.warn(complaint));
        // Owners that were left out above stay as they are recorded.
        check_name(context, &decoded.value)?;
        Ok(decoded.value)
    }

    /// Sees to it that the patched object is of the kind that it was. Returns why it cannot be.
    fn retype(&self, patched: &mut Value, old: &Value, schema: &Schema) -> Result<Option<String>, Status> {
        let Some(map) = patched.as_object_mut() else {
            let found = golang::json_type(patched);
            let wanted = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
            return Ok(Some(format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go value of type {wanted}"
            )));
        };
        let own = |field: &str| old[field].as_str().unwrap_or_default();
        if self.form == Form::Strategic {
            // It is made of a map into the type that it had; what the map says of that is not looked at.
            for field in ["kind", "apiVersion"] {
                map.insert(field.to_owned(), old[field].clone());
            }
            return Ok(None);
        }
        for field in ["apiVersion", "kind"] {
            if let Some(other @ (Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_))) =
                map.get(field)
            {
                let found = golang::json_type(other);
                return Ok(Some(format!(
                    "couldn't get version/kind; json parse error: json: cannot unmarshal {found} into Go struct field .{field} of type string"
                )));
            }
        }
        let given = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (given("apiVersion"), given("kind"));
        if schema.node().arena().custom {
            return match (version.as_str(), kind.as_str()) {
                (_, "") => Ok(Some(format!("Object 'Kind' is missing in '{}'", sorted(patched.clone())))),
                ("", _) => Err(Status::internal(
                    "Object 'apiVersion' is missing in 'object has no apiVersion field'",
                )),
                (version, kind) if version == own("apiVersion") && kind == own("kind") => Ok(None),
                (version, kind) => {
                    let mut problems = apimachinery::field::Problems::new();
                    for (field, given) in [("kind", kind), ("apiVersion", version)] {
                        if given != own(field) {
                            let path = apimachinery::field::Path::new(field);
                            problems.invalid(&path, given, format!("must be {}", own(field)));
                        }
                    }
                    let group = version.split_once('/').map_or("", |(group, _)| group);
                    Err(Status::invalid(group, kind, old.name(), &problems))
                }
            };
        }
        if version.is_empty() {
            // Without a version it is read as the internal type, none of whose fields have these names.
            return Err(nameless(old.name()));
        }
        if kind.is_empty() {
            map.insert("kind".to_owned(), old["kind"].clone());
        } else if version != own("apiVersion") || kind != own("kind") {
            return Ok(Some(codec::unknown_conversion(&version, &kind, own("apiVersion"), own("kind"))));
        }
        Ok(None)
    }

    /// Fields that an apply configuration says twice are warned of, or refused.
    fn tell_repeated(&self, context: &Context) -> Result<(), Status> {
        if self.validation == FieldValidation::Strict && !self.strict.is_empty() {
            let lines = self.strict.join("\n  ");
            return Err(Status::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  {lines}"
            )));
        }
        self.strict.iter().for_each(|warning| context.warn(warning.clone()));
        Ok(())
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

/// 400 for an object that has lost its name.
fn nameless(name: &str) -> Status {
    Status::bad_request(format!(
        "the name of the object ({name} based on URL) was undeterminable: name must be provided"
    ))
}

/// What was patched must still be, and what was applied must be, what the URL says.
fn check_name(context: &Context, object: &Value) -> Result<(), Status> {
    let (namespace, name) = (&context.info.namespace, &context.info.name);
    if context.resource.is_namespaced() && !["", namespace].contains(&object.namespace()) {
        return Err(crate::store::wrong_namespace());
    }
    match object.name() {
        "" => Err(nameless(name)),
        own if own != name => Err(crate::store::wrong_name(own, name)),
        _ => Ok(()),
    }
}

/// The shape of a JSON patch.
static OPERATIONS: LazyLock<Schema> = LazyLock::new(|| {
    let mut arena = Arena::default();
    let any = arena.add(Kind::Opaque(Opaque::Any));
    let text = arena.add(Kind::Scalar(Scalar::String));
    let fields = arena.add_fields(vec![
        Field::new("op", text),
        Field::new("path", text),
        Field::new("from", text),
        Field::new("value", any),
    ]);
    let operation = arena.add(Kind::Object(Object {
        name: "jsonPatchOp".into(),
        definition: "handlers.jsonPatchOp".into(),
        fields,
        inlines: Vec::new(),
        additional: None,
        preserve_unknown: false,
        embedded: false,
        atomic: false,
    }));
    let list = arena.add(Kind::List(List {
        items: operation,
        list_type: ListType::Atomic,
        merge_key: None,
        wrapped: false,
    }));
    Schema::new(Arc::new(arena), list)
});

fn refuse(error: &PatchError) -> Status {
    match error {
        PatchError::Malformed(text) => Status::bad_request(text.clone()),
        PatchError::Failed(text) => Status::failure(Reason::Unknown, text.clone()),
        PatchError::DoesNotApply(_) => {
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
        let form = form(context)?;
        options::check(context, form == Form::Apply)?;
        let bytes = read_body(body).await?;
        let validation = context.field_validation()?;
        let mut parsed = None;
        let mut options = WriteOptions::of(context)?;
        if let Some(Subresource::Scale(paths)) =
            context.resource.definition.subresource(&context.info.subresource)
        {
            let schema = scale_schema()?;
            let (applied, force) = (form == Form::Apply, context.query.flag("force"));
            let mut config = None;
            let mut make = |old: &Value| {
                let patch = Patch::once(&mut parsed, form, validation, &bytes)?;
                if !applied {
                    return patch.apply(context, old, &schema);
                }
                let config = match &mut config {
                    Some(config) => config,
                    None => config.insert(configuration((SCALE, "Scale"), &schema, patch.body.take())?),
                };
                let made = managed::apply_scale(old, config, &schema, &options.manager, force)?;
                patch.tell_repeated(context)?;
                check_name(context, &made)?;
                Ok(made)
            };
            return self.write_scale(context, paths, applied, &mut make).await;
        }
        let schema = &context.resource.definition.schema;
        let own = (context.resource.api_version.as_str(), context.resource.kind());
        let written = if form == Form::Apply {
            let force = context.query.flag("force");
            options.applied = true;
            let create = options.subresource.is_empty();
            let (manager, subresource) = (options.manager.clone(), options.subresource.clone());
            let mut config = None;
            self.update_object(context, &options, create, &mut |old| {
                let patch = Patch::once(&mut parsed, form, validation, &bytes)?;
                // Judged after the object was found, and once however often others are quicker.
                let config = match &mut config {
                    Some(config) => config,
                    None => config.insert(configuration(own, schema, patch.body.take())?),
                };
                let made = managed::apply(context, old, config, &manager, &subresource, force)?;
                patch.tell_repeated(context)?;
                if old.is_none() && !made.uid().is_empty() {
                    let why = format!(
                        "uid mismatch: the provided object specified uid {}, and no existing object was found",
                        made.uid()
                    );
                    let resource = &context.resource;
                    return Err(Status::conflict(resource.group(), resource.plural(), &context.info.name, &why));
                }
                check_name(context, &made)?;
                Ok(made)
            })
            .await?
        } else {
            self.update_object(context, &options, false, &mut |old| {
                let old = old.ok_or_else(|| context.not_found())?;
                Patch::once(&mut parsed, form, validation, &bytes)?.apply(context, old, schema)
            })
            .await?
        };
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        let entry = self.shown(&context.resource, written.entry).await?;
        respond::object(context, code, &entry)
    }
}

/// A configuration that is known to fit its kind.
fn configuration(
    (own_version, own_kind): (&str, &str),
    schema: &Schema,
    body: Value,
) -> Result<Configuration, Status> {
    if body["apiVersion"] != own_version || body["kind"] != own_kind {
        let version = body["apiVersion"].as_str().unwrap_or_default();
        let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
        let kind = body["kind"].as_str().unwrap_or_default();
        return Err(Status::bad_request(format!("invalid object type: {version}, Kind={kind}")));
    }
    if body.metadata().is_some_and(|metadata| metadata.contains_key("managedFields")) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    Configuration::new(body, schema).map_err(|error| error.to_status())
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
