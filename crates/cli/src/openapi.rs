//! The server's schemas, fetched by group and version and kept on disk by their hash.

use std::fs;

use serde_json::Value;

use crate::error::{CliError, message};
use crate::session::discovery::ApiResource;
use crate::session::{Ask, Session};

/// The document of one group and version.
pub struct Document {
    content: Value,
}

/// A place in a document.
#[derive(Clone, Copy)]
pub struct Schema<'a> {
    pub document: &'a Value,
    /// The field as its owner declares it, with what it says beside a reference.
    pub declared: &'a Value,
    /// What it refers to.
    pub node: &'a Value,
}

/// Fetches the document that describes a resource; `None` where the server has none.
pub async fn document(session: &Session, resource: &ApiResource) -> Result<Option<Document>, CliError> {
    let key =
        format!("{}/{}", if resource.group.is_empty() { "api" } else { "apis" }, resource.api_version());
    by_key(session, &key).await
}

pub async fn by_key(session: &Session, key: &str) -> Result<Option<Document>, CliError> {
    let index = match session.json(Ask::get("/openapi/v3")).await {
        Ok(index) => index,
        Err(error) if error.is_not_found() || error.is_forbidden() => return Ok(None),
        Err(error) => return Err(error),
    };
    let Some(url) = index["paths"][key]["serverRelativeURL"].as_str() else { return Ok(None) };
    let hash = url.split_once("hash=").map(|(_, hash)| hash.split('&').next().unwrap_or_default());
    let is_plain = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let file =
        hash.filter(is_plain).map(|hash| session.cache_dir().join("openapi-v3").join(format!("{hash}.json")));
    if let Some(text) = file.as_ref().and_then(|file| fs::read(file).ok())
        && let Ok(content) = serde_json::from_slice(&text)
    {
        return Ok(Some(Document { content }));
    }
    let text = session.text(Ask::get(url)).await?;
    let content =
        serde_json::from_slice(&text).map_err(|error| message(format!("{url} is not JSON: {error}")))?;
    if let Some(file) = file {
        // A cache that cannot be written only costs time.
        let _ = fs::create_dir_all(file.parent().unwrap_or(&file)).and_then(|()| {
            let fresh = file.with_extension(format!("{}", std::process::id()));
            fs::write(&fresh, &text)?;
            fs::rename(&fresh, &file)
        });
    }
    Ok(Some(Document { content }))
}

impl Document {
    /// The schema of a kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<Schema<'_>> {
        let schemas = self.content["components"]["schemas"].as_object()?;
        let is_it =
            |entry: &Value| entry["group"] == group && entry["version"] == version && entry["kind"] == kind;
        let found = schemas.values().find(|schema| {
            schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_it))
        })?;
        Some(Schema { document: &self.content, declared: found, node: found })
    }
}

impl<'a> Schema<'a> {
    /// Follows references, plain or wrapped in `allOf`.
    fn at(document: &'a Value, declared: &'a Value) -> Self {
        let mut node = declared;
        for _ in 0..16 {
            let reference =
                node["$ref"].as_str().or_else(|| match node["allOf"].as_array().map(Vec::as_slice) {
                    Some([one]) => one["$ref"].as_str(),
                    _ => None,
                });
            let Some(name) = reference.and_then(|path| path.strip_prefix("#/components/schemas/")) else {
                break;
            };
            node = &document["components"]["schemas"][name];
        }
        Self { document, declared, node }
    }

    pub fn field(self, name: &str) -> Option<Self> {
        let found = self.node["properties"]
            .get(name)
            .or_else(|| self.node.get("additionalProperties").filter(|schema| schema.is_object()))?;
        Some(Self::at(self.document, found))
    }

    pub fn items(self) -> Option<Self> {
        let found = self.node.get("items").filter(|schema| schema.is_object())?;
        Some(Self::at(self.document, found))
    }

    pub fn values(self) -> Option<Self> {
        let found = self.node.get("additionalProperties").filter(|schema| schema.is_object())?;
        Some(Self::at(self.document, found))
    }

    /// The names of its fields, sorted.
    pub fn fields(self) -> Vec<&'a str> {
        let mut names: Vec<&str> = self.node["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str())
            .collect();
        names.sort_unstable();
        names
    }

    /// Something that stands beside the reference or behind it.
    fn word(self, name: &str) -> Option<&'a str> {
        self.declared[name].as_str().or_else(|| self.node[name].as_str())
    }

    pub fn merge_key(self) -> Option<&'a str> {
        self.word("x-kubernetes-patch-merge-key")
    }

    pub fn has_strategy(self, strategy: &str) -> bool {
        let own = self.word("x-kubernetes-patch-strategy").unwrap_or_default();
        own.split(',').any(|word| word == strategy)
    }

    pub fn description(self) -> &'a str {
        let own = self.declared["description"].as_str().unwrap_or_default();
        if own.is_empty() { self.node["description"].as_str().unwrap_or_default() } else { own }
    }

    pub fn is_required(self, name: &str) -> bool {
        self.node["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name))
    }
}
