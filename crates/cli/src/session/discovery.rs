//! What the server serves: asked once, kept on disk for some hours as kubectl keeps it, and asked again when something is missing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Session;
use crate::error::{CliError, message};

const FRESH: Duration = Duration::from_secs(6 * 3600);
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
     application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// A resource as discovery describes it.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ApiResource {
    pub group: String,
    pub version: String,
    /// The plural.
    pub name: String,
    pub singular: String,
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    #[serde(default)]
    pub short: Vec<String>,
    #[serde(default)]
    pub categories: Vec<String>,
    #[serde(default)]
    pub subresources: Vec<String>,
}

impl ApiResource {
    pub fn api_version(&self) -> String {
        group_version(&self.group, &self.version)
    }

    /// `deployments.apps`.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.name.clone() } else { format!("{}.{}", self.name, self.group) }
    }

    /// The path of the collection, an object in it, or an object's subresource.
    pub fn path(&self, namespace: &str, name: &str, subresource: &str) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let mut path = format!("{root}{}", self.api_version());
        if self.namespaced && !namespace.is_empty() {
            path.push_str(&format!("/namespaces/{}", super::escape(namespace)));
        }
        path.push_str(&format!("/{}", self.name));
        for part in [name, subresource].into_iter().filter(|part| !part.is_empty()) {
            path.push_str(&format!("/{}", super::escape(part)));
        }
        path
    }
}

pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// A group and its versions, the preferred one first.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
    /// Versions whose server does not answer.
    #[serde(default)]
    pub stale: Vec<String>,
}

/// Everything, in the server's order.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Discovery {
    pub groups: Vec<Group>,
    pub resources: Vec<ApiResource>,
}

impl Discovery {
    /// The resources of each group's preferred version.
    pub fn preferred(&self) -> Vec<&ApiResource> {
        let mut found: Vec<&ApiResource> = Vec::new();
        for resource in &self.resources {
            let known =
                found.iter().any(|known| known.group == resource.group && known.name == resource.name);
            if !known {
                found.push(resource);
            }
        }
        found
    }
}

/// From disk if that is fresh enough, otherwise from the server.
pub async fn discover(session: &Session, fresh: bool) -> Result<Discovery, CliError> {
    let file = cache_file(session)?;
    if !fresh && let Some(known) = read_cache(&file) {
        return Ok(known);
    }
    let found = ask(session).await?;
    // A cache that cannot be written only costs time.
    let _ = write_cache(&file, &found);
    Ok(found)
}

fn cache_file(session: &Session) -> Result<PathBuf, CliError> {
    let host = session.transport()?.url();
    let host = host.split_once("://").map_or(host.as_str(), |(_, rest)| rest);
    let safe: String = host
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' })
        .collect();
    Ok(session.cache_dir().join("discovery").join(safe).join("aggregated.json"))
}

fn read_cache(file: &Path) -> Option<Discovery> {
    let age = fs::metadata(file).ok()?.modified().ok()?.elapsed().ok()?;
    if age > FRESH {
        return None;
    }
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn write_cache(file: &Path, found: &Discovery) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let fresh = directory.join(format!(".aggregated.{}", std::process::id()));
    fs::write(&fresh, serde_json::to_vec(found)?)?;
    fs::rename(fresh, file)
}

async fn ask(session: &Session) -> Result<Discovery, CliError> {
    let mut found = Discovery::default();
    let (core, groups) =
        futures::join!(session.get_as("/api", AGGREGATED), session.get_as("/apis", AGGREGATED));
    for (answer, root) in [(core?, "/api"), (groups?, "/apis")] {
        if answer["kind"] == "APIGroupDiscoveryList" {
            for group in answer["items"].as_array().into_iter().flatten() {
                aggregated(group, &mut found);
            }
        } else {
            unaggregated(session, &answer, root, &mut found).await?;
        }
    }
    Ok(found)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

fn aggregated(group: &Value, found: &mut Discovery) {
    let name = text(&group["metadata"]["name"]);
    let (mut versions, mut stale) = (Vec::new(), Vec::new());
    for version in group["versions"].as_array().into_iter().flatten() {
        let word = text(&version["version"]);
        if version["freshness"] == "Stale" {
            stale.push(word.clone());
        }
        for resource in version["resources"].as_array().into_iter().flatten() {
            found.resources.push(ApiResource {
                group: name.clone(),
                version: word.clone(),
                name: text(&resource["resource"]),
                singular: text(&resource["singularResource"]),
                kind: text(&resource["responseKind"]["kind"]),
                namespaced: resource["scope"] == "Namespaced",
                verbs: texts(&resource["verbs"]),
                short: texts(&resource["shortNames"]),
                categories: texts(&resource["categories"]),
                subresources: resource["subresources"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|sub| text(&sub["subresource"]))
                    .collect(),
            });
        }
        versions.push(word);
    }
    found.groups.push(Group { name, versions, stale });
}

/// The older form: a list of groups, and a document for each version.
async fn unaggregated(
    session: &Session,
    answer: &Value,
    root: &str,
    found: &mut Discovery,
) -> Result<(), CliError> {
    let groups: Vec<Group> = if answer["kind"] == "APIVersions" {
        vec![Group { name: String::new(), versions: texts(&answer["versions"]), stale: Vec::new() }]
    } else {
        let groups = answer["groups"].as_array();
        let groups = groups.ok_or_else(|| message(format!("{root} is not a discovery document")))?;
        groups
            .iter()
            .map(|group| {
                let preferred = text(&group["preferredVersion"]["version"]);
                let mut versions: Vec<String> =
                    group["versions"].as_array().into_iter().flatten().map(|v| text(&v["version"])).collect();
                versions.sort_by_key(|version| *version != preferred);
                Group { name: text(&group["name"]), versions, stale: Vec::new() }
            })
            .collect()
    };
    for mut group in groups {
        for version in group.versions.clone() {
            let path = format!("{root}/{}", group_version(&group.name, &version));
            let Ok(list) = session.get_as(&path, "application/json").await else {
                group.stale.push(version);
                continue;
            };
            let mut read: Vec<ApiResource> = Vec::new();
            for resource in list["resources"].as_array().into_iter().flatten() {
                let name = text(&resource["name"]);
                if let Some((parent, subresource)) = name.split_once('/') {
                    if let Some(parent) = read.iter_mut().find(|known| known.name == parent) {
                        parent.subresources.push(subresource.to_owned());
                    }
                    continue;
                }
                read.push(ApiResource {
                    group: resource["group"].as_str().unwrap_or(&group.name).to_owned(),
                    version: resource["version"].as_str().unwrap_or(&version).to_owned(),
                    singular: text(&resource["singularName"]),
                    kind: text(&resource["kind"]),
                    namespaced: resource["namespaced"] == true,
                    verbs: texts(&resource["verbs"]),
                    short: texts(&resource["shortNames"]),
                    categories: texts(&resource["categories"]),
                    subresources: Vec::new(),
                    name,
                });
            }
            found.resources.append(&mut read);
        }
        found.groups.push(group);
    }
    Ok(())
}
