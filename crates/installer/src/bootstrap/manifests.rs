//! Creating everything of a directory, in rounds: what cannot be created yet (its kind, its namespace) is tried again
//! in the next one. What is there already stays as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::Client;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;

use super::{BootstrapError, at, error_text};

const PAUSE: Duration = Duration::from_millis(300);

/// An object with the file that it is from.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Manifest {
    pub path: PathBuf,
    pub object: Value,
}

impl Manifest {
    fn text(&self, field: &str) -> &str {
        self.object["metadata"][field].as_str().unwrap_or_default()
    }

    /// For people.
    pub fn describe(&self) -> String {
        let kind = self.object["kind"].as_str().unwrap_or_default();
        let (namespace, name) = (self.text("namespace"), self.text("name"));
        let name = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
        format!("{kind} {name}")
    }
}

/// Reads all objects of a directory, files in the order of their names. A directory that is not there has none.
pub fn read(directory: &Path) -> Result<Vec<Manifest>, BootstrapError> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at("read", directory)(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(at("read", directory))?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if matches!(extension, "yaml" | "yml" | "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut out = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(at("read", &path))?;
        out.extend(parse(&path, &text)?);
    }
    Ok(out)
}

fn parse(path: &Path, text: &str) -> Result<Vec<Manifest>, BootstrapError> {
    let bad = |reason: String| BootstrapError::Manifest { path: path.to_owned(), reason };
    let mut out = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(text) {
        let object = Value::deserialize(document).map_err(|error| bad(error.to_string()))?;
        match object {
            Value::Null => {}
            list if list["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
                && list["items"].is_array() =>
            {
                let items = list["items"].as_array().cloned().unwrap_or_default();
                out.extend(items.into_iter().map(|object| Manifest { path: path.to_owned(), object }));
            }
            object if object["kind"].is_string() && object["apiVersion"].is_string() => {
                out.push(Manifest { path: path.to_owned(), object });
            }
            _ => return Err(bad("each document must have apiVersion and kind".to_owned())),
        }
    }
    Ok(out)
}

/// Which paths kinds have, by apiVersion; read again when a kind is missing.
#[derive(Debug, Default)]
pub struct Kinds {
    known: BTreeMap<String, Vec<Value>>,
}

impl Kinds {
    /// The collection that an object belongs to; none if its kind is not served yet.
    pub async fn path(&mut self, client: &Client, object: &Value) -> Result<Option<String>, client::Error> {
        let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
        let base = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
        if !self.known.contains_key(&version) {
            let list = match client.get_path::<Value>(&base).await {
                Ok(answer) => answer["resources"].as_array().cloned().unwrap_or_default(),
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            };
            self.known.insert(version.clone(), list);
        }
        let found = collection(&base, &self.known[&version], object);
        if found.is_none() {
            // Perhaps it is served a moment later.
            self.known.remove(&version);
        }
        Ok(found)
    }
}

fn collection(base: &str, resources: &[Value], object: &Value) -> Option<String> {
    let resource = resources.iter().find(|resource| {
        resource["kind"] == object["kind"]
            && resource["name"].as_str().is_some_and(|name| !name.contains('/'))
    })?;
    let plural = resource["name"].as_str()?;
    let namespace = object["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    Some(match resource["namespaced"] == Value::Bool(true) {
        true => format!("{base}/namespaces/{}/{plural}", namespace.unwrap_or("default")),
        false => format!("{base}/{plural}"),
    })
}

/// Creates all objects or says which could not be, and why.
pub async fn create_all(
    client: &Client,
    manifests: &[Manifest],
    limit: Duration,
) -> Result<(), BootstrapError> {
    let end = Instant::now() + limit;
    let mut left: Vec<&Manifest> = manifests.iter().collect();
    let mut kinds = Kinds::default();
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let mut failed = Vec::new();
        for manifest in left {
            let name = manifest.describe();
            match create(client, &mut kinds, manifest).await {
                Ok(true) => println!("created {name}"),
                Ok(false) => println!("{name} is there already"),
                Err(reason) => {
                    if said.get(&name) != Some(&reason) {
                        println!("{name} cannot be created yet: {reason}");
                        said.insert(name, reason);
                    }
                    failed.push(manifest);
                }
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        if Instant::now() >= end {
            let seen: Vec<String> = failed
                .iter()
                .take(10)
                .map(|manifest| {
                    let name = manifest.describe();
                    format!("{name}: {}", said.get(&name).map(String::as_str).unwrap_or_default())
                })
                .collect();
            let what = format!("{} of {} objects could not be created", failed.len(), manifests.len());
            return Err(BootstrapError::Late { what, limit, seen: seen.join("; ") });
        }
        left = failed;
        tokio::time::sleep(PAUSE).await;
    }
}

/// `Ok(false)`: it was there.
async fn create(client: &Client, kinds: &mut Kinds, manifest: &Manifest) -> Result<bool, String> {
    let path = kinds.path(client, &manifest.object).await.map_err(|error| error_text(&error))?;
    let Some(path) = path else {
        let object = &manifest.object;
        let (kind, version) =
            (object["kind"].as_str().unwrap_or_default(), object["apiVersion"].as_str().unwrap_or_default());
        return Err(format!("no matches for kind {kind:?} in version {version:?}"));
    };
    match client.post_path::<Value>(&path, &manifest.object).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_already_exists() => Ok(false),
        Err(error) => Err(error_text(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_find_their_collections() {
        let resources = [
            json!({"name": "pods/status", "kind": "Pod", "namespaced": true}),
            json!({"name": "pods", "kind": "Pod", "namespaced": true}),
            json!({"name": "nodes", "kind": "Node", "namespaced": false}),
        ];
        let path = |object: Value| collection("/api/v1", &resources, &object);
        let pod = json!({"kind": "Pod", "metadata": {"namespace": "a"}});
        assert_eq!(path(pod).unwrap(), "/api/v1/namespaces/a/pods");
        assert_eq!(path(json!({"kind": "Pod"})).unwrap(), "/api/v1/namespaces/default/pods");
        assert_eq!(path(json!({"kind": "Node"})).unwrap(), "/api/v1/nodes");
        assert_eq!(path(json!({"kind": "Other"})), None);
    }

    #[test]
    fn files_are_read_in_order_and_lists_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write(
            "b.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: n}\n---\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: c}}\n",
        );
        write("a.json", r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}"#);
        write("note.txt", "not one");
        let read = read(directory.path()).unwrap();
        let names: Vec<String> = read.iter().map(Manifest::describe).collect();
        assert_eq!(names, ["Namespace n", "ConfigMap n/b", "Secret c"]);
        write("z.yaml", "a: b\n");
        assert!(matches!(super::read(directory.path()), Err(BootstrapError::Manifest { .. })));
    }
}
