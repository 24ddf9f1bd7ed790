//! One object of a release, and how the documents of a file become such objects.

use apimachinery::decode;
use serde_json::Value;
use thiserror::Error;

/// What tells one object from another, whatever its version.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

/// An object as the release has it.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The file it came from, without its directory.
    pub file: String,
    pub version: String,
    pub id: ObjectId,
    pub object: Value,
}

#[derive(Debug, Error)]
pub enum ManifestError {
    #[error("document {index} is neither YAML nor JSON: {reason}")]
    Syntax { index: usize, reason: String },
    #[error("document {index} lacks {field}")]
    Incomplete { index: usize, field: &'static str },
}

/// The objects of a file, in the order of its documents. Lists are taken apart; empty documents are passed over.
pub fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Manifest>, ManifestError> {
    let mut found = Vec::new();
    for (index, document) in documents(bytes).enumerate() {
        let object = decode::parse_yaml(document)
            .map_err(|error| ManifestError::Syntax { index, reason: error.to_string() })?;
        if object.is_null() {
            continue;
        }
        match object["kind"].as_str() {
            Some(kind) if kind.ends_with("List") && object["items"].is_array() => {
                for item in object["items"].as_array().into_iter().flatten() {
                    found.push(Manifest::of(file, index, item.clone())?);
                }
            }
            _ => found.push(Manifest::of(file, index, object)?),
        }
    }
    Ok(found)
}

/// The documents between lines that begin with `---`.
fn documents(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut starts = vec![0];
    let mut ends = Vec::new();
    let mut line = 0;
    while line < bytes.len() {
        let next =
            bytes[line..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| line + at + 1);
        let text = &bytes[line..next];
        if text.starts_with(b"---") && text[3..].first().is_none_or(u8::is_ascii_whitespace) {
            ends.push(line);
            starts.push(next);
        }
        line = next;
    }
    ends.push(bytes.len());
    starts.into_iter().zip(ends).map(|(start, end)| &bytes[start..end])
}

impl Manifest {
    /// An object with its names taken out of it.
    pub fn of(file: &str, index: usize, object: Value) -> Result<Self, ManifestError> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let require = |value: String, field| match value.is_empty() {
            true => Err(ManifestError::Incomplete { index, field }),
            false => Ok(value),
        };
        let api_version = require(text(&object["apiVersion"]), "apiVersion")?;
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let id = ObjectId {
            group: group.to_owned(),
            kind: require(text(&object["kind"]), "kind")?,
            namespace: text(&object["metadata"]["namespace"]),
            name: require(text(&object["metadata"]["name"]), "metadata.name")?,
        };
        Ok(Self { file: file.to_owned(), version: version.to_owned(), id, object })
    }

    /// An annotation of the object.
    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.object["metadata"]["annotations"][name].as_str()
    }

    /// How messages name it: `deployment "openshift-dns/dns"`.
    pub fn title(&self) -> String {
        let kind = self.id.kind.to_lowercase();
        match self.id.namespace.is_empty() {
            true => format!("{kind} \"{}\"", self.id.name),
            false => format!("{kind} \"{}/{}\"", self.id.namespace, self.id.name),
        }
    }

    pub fn is(&self, group: &str, kind: &str) -> bool {
        self.id.group == group && self.id.kind == kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_lists_and_gaps_become_objects_in_order() {
        let text = b"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n# nothing\n--- \napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: a}}\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: c, namespace: a}}\n";
        let titles: Vec<String> = parse("f", text).unwrap().iter().map(Manifest::title).collect();
        assert_eq!(titles, ["namespace \"a\"", "configmap \"a/b\"", "deployment \"a/c\""]);
    }

    #[test]
    fn a_block_of_text_with_dashes_is_one_document() {
        let text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: |\n    ---x\n    y\n";
        assert_eq!(parse("f", text).unwrap().len(), 1);
    }

    #[test]
    fn what_has_no_name_or_kind_is_refused() {
        assert!(matches!(
            parse("f", b"apiVersion: v1\nkind: Pod\n"),
            Err(ManifestError::Incomplete { field: "metadata.name", .. })
        ));
        assert!(matches!(
            parse("f", b"kind: Pod\nmetadata: {name: a}"),
            Err(ManifestError::Incomplete { field: "apiVersion", .. })
        ));
        assert!(matches!(parse("f", b"a: [\n"), Err(ManifestError::Syntax { index: 0, .. })));
    }
}
