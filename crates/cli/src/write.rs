//! Writes: what goes with every create, update, patch and delete.

use http::Method;
use serde_json::Value;

use crate::error::CliError;
use crate::flags::DryRun;
use crate::print::json::compact;
use crate::resource::Info;
use crate::session::{Ask, Session};

pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const MERGE: &str = "application/merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";

/// Under which name, how strictly, and whether only to try.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub manager: String,
    pub dry_run: DryRun,
    /// `Strict`, `Warn` or `Ignore`; empty: the server's own choice.
    pub validation: String,
    pub force: bool,
}

impl Options {
    pub fn new(manager: &str, dry_run: DryRun) -> Self {
        Self { manager: manager.to_owned(), dry_run, ..Self::default() }
    }

    fn on(&self, ask: Ask) -> Ask {
        let ask =
            ask.query_some("fieldManager", &self.manager).query_some("fieldValidation", &self.validation);
        let ask = if self.force { ask.query("force", "true") } else { ask };
        if self.dry_run == DryRun::Server { ask.query("dryRun", "All") } else { ask }
    }
}

pub async fn create(session: &Session, info: &Info, options: &Options) -> Result<Value, CliError> {
    let path = info.resource.path(&info.namespace, "", "");
    session.json(options.on(Ask::new(Method::POST, path).json(&info.object))).await
}

pub async fn replace(
    session: &Session,
    info: &Info,
    subresource: &str,
    options: &Options,
) -> Result<Value, CliError> {
    let ask = Ask::new(Method::PUT, info.subresource(subresource)).json(&info.object);
    session.json(options.on(ask)).await
}

pub async fn patch(
    session: &Session,
    info: &Info,
    subresource: &str,
    kind: &'static str,
    patch: &Value,
    options: &Options,
) -> Result<Value, CliError> {
    patch_bytes(session, info, subresource, kind, compact(patch), options).await
}

/// A patch as its author wrote it.
pub async fn patch_bytes(
    session: &Session,
    info: &Info,
    subresource: &str,
    kind: &'static str,
    patch: impl Into<bytes::Bytes>,
    options: &Options,
) -> Result<Value, CliError> {
    let ask = Ask::new(Method::PATCH, info.subresource(subresource)).body(kind, patch);
    session.json(options.on(ask)).await
}

/// The annotation that remembers what was applied: the object without it.
pub fn last_applied(object: &Value) -> String {
    let mut object = object.clone();
    if !object["metadata"]["annotations"].is_object() {
        object["metadata"]["annotations"] = serde_json::json!({});
    }
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.shift_remove(LAST_APPLIED);
    }
    format!("{}\n", compact(&object))
}

/// The object as a file has it, for an annotation that is set by hand.
pub fn as_in_file(object: &Value) -> String {
    let mut object = object.clone();
    if let Some(annotations) = object["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove(LAST_APPLIED);
    }
    format!("{}\n", compact(&object))
}

/// Writes the annotation into the object.
pub fn remember(object: &mut Value) {
    let text = last_applied(object);
    object["metadata"]["annotations"][LAST_APPLIED] = text.into();
}

pub fn has_last_applied(object: &Value) -> bool {
    object["metadata"]["annotations"].get(LAST_APPLIED).is_some()
}
