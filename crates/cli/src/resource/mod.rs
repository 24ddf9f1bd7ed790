//! The objects that a command is about: chosen by arguments, files and selectors, then fetched.
//!
//! ```text
//! Selection ──► plan (pure) ──► Vec<Wanted> ──► Info, Info, …
//! ```

pub mod files;
mod select;

use serde_json::Value;

use crate::error::{CliError, message};
use crate::session::discovery::ApiResource;
use crate::session::{Ask, Session};
pub use files::FileFlags;
pub use select::{Selection, Wanted};

/// One object, or the list of a collection.
#[derive(Clone, Debug)]
pub struct Info {
    pub resource: ApiResource,
    pub namespace: String,
    pub name: String,
    /// As the server or the file has it.
    pub object: Value,
    /// The file it came from, or nothing.
    pub source: String,
}

impl Info {
    pub fn path(&self) -> String {
        self.resource.path(&self.namespace, &self.name, "")
    }

    pub fn subresource(&self, subresource: &str) -> String {
        self.resource.path(&self.namespace, &self.name, subresource)
    }

    /// `deployments/web`, as messages about resources have it.
    pub fn object_name(&self) -> String {
        format!("{}/{}", self.resource.name, self.name)
    }

    pub async fn fetch(&self, session: &Session) -> Result<Value, CliError> {
        session.json(Ask::get(self.path())).await
    }
}

/// The name of an object.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

pub fn namespace_of(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Whether a value is a list of objects.
pub fn is_list(object: &Value) -> bool {
    object["items"].is_array() && object["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
}

/// The objects of a list, each saying its kind, which lists leave out; or the object itself.
pub fn items(object: Value) -> Vec<Value> {
    if !is_list(&object) {
        return vec![object];
    }
    let api_version = object["apiVersion"].clone();
    let kind = object["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
    let Value::Object(mut map) = object else { return Vec::new() };
    let Some(Value::Array(items)) = map.shift_remove("items") else { return Vec::new() };
    items
        .into_iter()
        .map(|mut item| {
            if item.is_object() && item["kind"].is_null() && !kind.is_empty() {
                item["kind"] = kind.clone().into();
                item["apiVersion"] = api_version.clone();
            }
            item
        })
        .collect()
}

/// The objects of a selection, one by one; lists are taken apart.
pub async fn fetch_all(
    session: &Session,
    wanted: Vec<Wanted>,
) -> Result<(Vec<Info>, Vec<CliError>), CliError> {
    let (mut infos, mut errors) = (Vec::new(), Vec::new());
    for wanted in wanted {
        match wanted.fetch(session, None, &[]).await {
            Ok(found) => infos.extend(found),
            Err(error) => errors.push(error),
        }
    }
    let mut flat = Vec::new();
    for info in infos {
        if !is_list(&info.object) {
            flat.push(info);
            continue;
        }
        let Info { resource, object, source, .. } = info;
        for object in items(object) {
            flat.push(Info {
                namespace: namespace_of(&object).to_owned(),
                name: name_of(&object).to_owned(),
                resource: resource.clone(),
                source: source.clone(),
                object,
            });
        }
    }
    Ok((flat, errors))
}

/// Exactly one object.
pub async fn fetch_one(session: &Session, selection: Selection) -> Result<Info, CliError> {
    let wanted = selection.plan(session).await?;
    let (mut infos, errors) = fetch_all(session, wanted).await?;
    CliError::all(errors)?;
    match infos.len() {
        1 => Ok(infos.remove(0)),
        0 => Err(message("no objects were selected")),
        count => Err(message(format!("one object is expected, and {count} were selected"))),
    }
}
