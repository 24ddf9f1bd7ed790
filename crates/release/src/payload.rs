//! What is in a release image: an image stream that pins every component, the release's metadata, and the objects of all
//! operators with the placeholders in them resolved.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::{Captures, Regex};
use semver::Version;
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::components::{self, DISPLAY_NAMES_LABEL, OPERATOR_LABEL, VERSIONS_LABEL};

/// The list of images, in a component's `/manifests` and in a release's `/release-manifests`.
pub const REFERENCES: &str = "image-references";
/// What the release says of itself.
pub const METADATA: &str = "release-metadata";
/// The directory of both in a release image.
pub const DIRECTORY: &str = "release-manifests";
/// The annotation of a release of this binary that lists the components whose programs do not exist.
pub const MISSING: &str = "kelson.local/missing-components";
/// Labels of images that become annotations of their tags.
const CARRIED: [&str; 4] = [
    "io.openshift.build.commit.id",
    "io.openshift.build.source-location",
    VERSIONS_LABEL,
    DISPLAY_NAMES_LABEL,
];

/// A file: its name and what is in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl File {
    pub fn new(name: impl Into<String>, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), bytes: bytes.into() }
    }
}

/// A component as it goes into a release.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// Its name in the image stream.
    pub tag: String,
    /// Where its image is pulled from.
    pub image: String,
    /// The labels of its image.
    pub labels: BTreeMap<String, String>,
    /// What is below `/manifests` in its image.
    pub manifests: Vec<File>,
}

/// What is said of the release as a whole.
#[derive(Clone, Debug)]
pub struct About {
    /// Its version.
    pub name: String,
    /// When it was made; nothing where that shall not matter.
    pub created: Option<String>,
    /// Versions from which one may come here.
    pub previous: Vec<String>,
    /// Versions to which one may go on.
    pub next: Vec<String>,
    /// Anything else.
    pub metadata: Map<String, Value>,
    /// Annotations of the image stream.
    pub annotations: BTreeMap<String, String>,
    /// Leave names alone that stand for images which the release does not have.
    pub allow_missing_images: bool,
    /// Take files that cannot be read as YAML.
    pub skip_manifest_check: bool,
}

impl About {
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            created: None,
            previous: Vec::new(),
            next: Vec::new(),
            metadata: Map::new(),
            annotations: BTreeMap::new(),
            allow_missing_images: false,
            skip_manifest_check: false,
        }
    }
}

/// Why no release can be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ReleaseError {
    #[error("--name must be a semantic version: {0}")]
    Name(String),
    #[error("operator {operator:?} contained an invalid image-references file: {reason}")]
    References { operator: String, reason: String },
    #[error("{file}: {reason}")]
    Version { file: String, reason: String },
    #[error("these manifests are not valid: {0}")]
    Manifests(String),
    #[error("two components are called {0}")]
    Twice(String),
}

/// A release's files and what they were made from.
#[derive(Clone, Debug)]
pub struct Payload {
    /// `image-references`.
    pub references: Value,
    /// `release-metadata`.
    pub metadata: Value,
    /// Everything in the directory, those two first.
    pub files: Vec<File>,
    /// Components whose objects are in it.
    pub operators: Vec<String>,
}

impl Payload {
    /// Makes a release of these components. The order in which they come does not matter.
    pub fn assemble(about: &About, inputs: &[Input]) -> Result<Self, ReleaseError> {
        let version = Version::parse(&about.name).map_err(|error| ReleaseError::Name(error.to_string()))?;
        let mut inputs: Vec<&Input> = inputs.iter().collect();
        inputs.sort_by(|one, other| one.tag.cmp(&other.tag));
        if let Some(pair) = inputs.windows(2).find(|pair| pair[0].tag == pair[1].tag) {
            return Err(ReleaseError::Twice(pair[0].tag.clone()));
        }
        let references = image_stream(about, &inputs);
        let metadata = metadata(about);
        let pretty = |value: &Value| serde_json::to_vec_pretty(value).unwrap_or_default(); // a Value has a form
        let mut files =
            vec![File::new(REFERENCES, pretty(&references)), File::new(METADATA, pretty(&metadata))];
        let mut operators = Vec::new();
        let mut taken: BTreeMap<String, usize> = BTreeMap::new();
        let mut invalid = Vec::new();
        for input in &inputs {
            if input.manifests.is_empty() || !input.labels.contains_key(OPERATOR_LABEL) {
                continue;
            }
            let transform = Transform::of(input, &inputs, about, &version)?;
            let mut own: Vec<&File> = input.manifests.iter().collect();
            own.sort();
            for file in own {
                if file.name == REFERENCES {
                    continue;
                }
                if !about.skip_manifest_check
                    && let Err(reason) = check(file)
                {
                    invalid.push(format!("{}/{}: {reason}", input.tag, file.name));
                }
                let bytes = transform.apply(&file.bytes).map_err(|reason| ReleaseError::Version {
                    file: format!("{}/{}", input.tag, file.name),
                    reason,
                })?;
                files.push(File::new(place(&input.tag, &file.name, &mut taken), bytes));
            }
            operators.push(input.tag.clone());
        }
        if !invalid.is_empty() {
            return Err(ReleaseError::Manifests(invalid.join("; ")));
        }
        Ok(Self { references, metadata, files, operators })
    }

    /// The release of the binary itself, of images that come with it.
    pub fn built_in(version: &str) -> Result<Self, ReleaseError> {
        let inputs: Vec<Input> = components::present()
            .map(|component| Input {
                tag: component.name.to_owned(),
                image: format!("{}/{}:{version}", components::REGISTRY, component.name),
                labels: component.labels(),
                manifests: component.manifests(),
            })
            .collect();
        Self::assemble(&About { annotations: missing(), ..About::new(version) }, &inputs)
    }
}

/// What a release of this binary says of the components that it lacks.
pub fn missing() -> BTreeMap<String, String> {
    let names: Vec<&str> = components::missing().collect();
    if names.is_empty() { BTreeMap::new() } else { [(MISSING.to_owned(), names.join(","))].into() }
}

/// The file's name in the release: in the order of all where it says one, else in the middle.
fn place(operator: &str, name: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let wanted = match name.starts_with("0000_") {
        true => name.to_owned(),
        false => format!("0000_50_{operator}_{name}"),
    };
    let count = taken.entry(wanted.clone()).or_default();
    *count += 1;
    if *count == 1 {
        return wanted;
    }
    let (stem, extension) = wanted.rsplit_once('.').map_or((&wanted[..], ""), |(stem, kind)| (stem, kind));
    let dot = if extension.is_empty() { "" } else { "." };
    format!("{stem}_{count}{dot}{extension}")
}

fn check(file: &File) -> Result<(), String> {
    use serde::Deserialize;
    if ![".yaml", ".yml", ".json"].iter().any(|kind| file.name.ends_with(kind)) {
        return Ok(());
    }
    for document in serde_yaml_ng::Deserializer::from_slice(&file.bytes) {
        Value::deserialize(document).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn image_stream(about: &About, inputs: &[&Input]) -> Value {
    let tags: Vec<Value> = inputs
        .iter()
        .map(|input| {
            let carried: Map<String, Value> = CARRIED
                .iter()
                .map(|name| ((*name).to_owned(), json!(input.labels.get(*name).map_or("", String::as_str))))
                .filter(|(name, value)| value != "" || name.starts_with("io.openshift.build.co"))
                .collect();
            json!({
                "name": input.tag, "annotations": carried,
                "from": {"kind": "DockerImage", "name": input.image},
                "generation": null, "importPolicy": {}, "referencePolicy": {"type": ""},
            })
        })
        .collect();
    let mut metadata = json!({"name": about.name, "creationTimestamp": about.created});
    if !about.annotations.is_empty() {
        metadata["annotations"] = json!(about.annotations);
    }
    json!({
        "kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": metadata,
        "spec": {"lookupPolicy": {"local": false}, "tags": tags}, "status": {"dockerImageRepository": ""},
    })
}

fn metadata(about: &About) -> Value {
    let mut metadata =
        json!({"kind": "cincinnati-metadata-v0", "version": about.name, "previous": about.previous});
    if !about.next.is_empty() {
        metadata["next"] = json!(about.next);
    }
    if !about.metadata.is_empty() {
        metadata["metadata"] = Value::Object(about.metadata.clone());
    }
    metadata
}

/// The image stream's tags: name and image.
pub fn tags(stream: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let tags = stream["spec"]["tags"].as_array().into_iter().flatten();
    tags.filter(|tag| tag["from"]["kind"] == "DockerImage")
        .map(|tag| (text(&tag["name"]), text(&tag["from"]["name"])))
        .collect()
}

/// `name=version,…` as a map. Builds of versions do not count.
pub fn component_versions(label: &str) -> Result<BTreeMap<String, String>, String> {
    let mut versions = BTreeMap::new();
    for pair in label.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, version) =
            pair.split_once('=').ok_or_else(|| format!("the version pair {pair:?} must be NAME=VERSION"))?;
        if name.len() < 2 {
            return Err(format!("the version name {name:?} must be at least 2 characters"));
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        if !name.bytes().all(|byte| plain(byte) || byte == b'-')
            || name.starts_with('-')
            || name.ends_with('-')
        {
            return Err(format!(
                "the version name {name:?} must only be ASCII alphanumerics and internal hyphens"
            ));
        }
        let mut version = Version::parse(version).map_err(|error| {
            format!("the version pair {pair:?} must have a valid semantic version: {error}")
        })?;
        version.build = semver::BuildMetadata::EMPTY;
        versions.insert(name.to_owned(), version.to_string());
    }
    Ok(versions)
}

/// How the placeholders of one operator's objects are replaced.
struct Transform {
    images: Option<(Regex, BTreeMap<String, String>)>,
    versions: Regex,
    release: String,
    known: BTreeMap<String, String>,
    /// Parts of which more than one image claims to have the version.
    ambiguous: BTreeMap<String, BTreeSet<String>>,
}

impl Transform {
    fn of(input: &Input, all: &[&Input], about: &About, version: &Version) -> Result<Self, ReleaseError> {
        let bad = |reason: String| ReleaseError::References { operator: input.tag.clone(), reason };
        let mut images = BTreeMap::new();
        let (mut known, mut claims) = (BTreeMap::new(), BTreeMap::<String, BTreeSet<String>>::new());
        if let Some(file) = input.manifests.iter().find(|file| file.name == REFERENCES) {
            let stream: Value =
                serde_yaml_ng::from_slice(&file.bytes).map_err(|error| bad(error.to_string()))?;
            if stream["kind"] != "ImageStream" || stream["apiVersion"] != "image.openshift.io/v1" {
                return Err(bad("unrecognized image-references in release payload".to_owned()));
            }
            for (tag, repository) in tags(&stream) {
                if repository.is_empty() {
                    return Err(bad(format!("no from.name for the tag {tag}")));
                }
                let Some(target) = all.iter().find(|input| input.tag == tag) else {
                    if about.allow_missing_images {
                        continue;
                    }
                    return Err(bad(format!("no input image tag named {tag:?}")));
                };
                if images.insert(repository.clone(), target.image.clone()).is_some() {
                    return Err(bad(format!(
                        "the source repository {repository:?} was defined more than once"
                    )));
                }
                let label = target.labels.get(VERSIONS_LABEL).map_or("", String::as_str);
                for (part, version) in component_versions(label).map_err(bad)? {
                    claims.entry(part.clone()).or_default().insert(tag.clone());
                    known.insert(part, version);
                }
            }
        }
        let mut release = version.clone();
        release.build = semver::BuildMetadata::EMPTY;
        Ok(Self {
            images: match images.is_empty() {
                true => None,
                false => {
                    Some((image_pattern(images.keys()).map_err(|error| bad(error.to_string()))?, images))
                }
            },
            versions: Regex::new(r"(\W|^)0\.0\.1-snapshot([a-z0-9\-]*)")
                .map_err(|error| bad(error.to_string()))?,
            release: release.to_string(),
            known,
            ambiguous: claims.into_iter().filter(|(_, tags)| tags.len() > 1).collect(),
        })
    }

    fn apply(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        // What is no text has no placeholders.
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(bytes.to_vec()) };
        let text = match &self.images {
            None => text.to_owned(),
            Some((pattern, images)) => pattern
                .replace_all(text, |found: &Captures<'_>| {
                    format!("{}{}{}", &found[1], images.get(&found[2]).map_or("", String::as_str), &found[4])
                })
                .into_owned(),
        };
        let mut unknown = BTreeSet::new();
        let mut conflicts = BTreeSet::new();
        let text = self.versions.replace_all(&text, |found: &Captures<'_>| {
            let value = match &found[2] {
                "" => Some(&self.release),
                part => match part.strip_prefix('-') {
                    // A longer word that only begins like a placeholder.
                    None => None,
                    Some(part) if self.ambiguous.contains_key(part) => {
                        conflicts.insert(part.to_owned());
                        None
                    }
                    Some(part) => {
                        let version = self.known.get(part);
                        if version.is_none() {
                            unknown.insert(part.to_owned());
                        }
                        version
                    }
                },
            };
            match value {
                Some(value) => format!("{}{value}", &found[1]),
                None => found[0].to_owned(),
            }
        });
        let text = text.into_owned();
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
        match (unknown.len(), conflicts.first()) {
            (0, None) => Ok(text.into_bytes()),
            (0, Some(part)) => Err(format!(
                "the version for {part:?} is inconsistent across the referenced images: {}",
                list(&self.ambiguous[part])
            )),
            (1, _) if unknown.contains("") => Err("empty version references are not allowed".to_owned()),
            (1, _) => Err(format!("unknown version reference {:?}", list(&unknown))),
            _ => Err(format!("unknown version references: {}", list(&unknown))),
        }
    }
}

/// Matches the name of one of the repositories with whatever tag or digest, not as a part of another name.
fn image_pattern<'a>(repositories: impl Iterator<Item = &'a String>) -> Result<Regex, regex_lite::Error> {
    let mut names: Vec<String> = repositories.map(|name| regex_lite::escape(name)).collect();
    // Of two that begin alike the longer one must be tried first.
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    Regex::new(&format!(
        r#"([\W]|^)({})(:[\w][\w.-]{{0,127}}|@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{{2,}})?([\s"']|$)"#,
        names.join("|")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(tag: &str, manifests: &[(&str, &str)]) -> Input {
        Input {
            tag: tag.to_owned(),
            image: format!("example.com/{tag}@sha256:{}", "a".repeat(64)),
            labels: [(OPERATOR_LABEL.to_owned(), "true".to_owned())].into(),
            manifests: manifests.iter().map(|(name, text)| File::new(*name, *text)).collect(),
        }
    }

    fn kube() -> Input {
        Input {
            tag: "hyperkube".to_owned(),
            image: "example.com/hyperkube@sha256:bb".to_owned(),
            labels: [(VERSIONS_LABEL.to_owned(), "kubernetes=1.36.0+build".to_owned())].into(),
            manifests: Vec::new(),
        }
    }

    const NAMES_HYPERKUBE: &str = r#"{"kind":"ImageStream","apiVersion":"image.openshift.io/v1",
        "spec":{"tags":[{"name":"hyperkube","from":{"kind":"DockerImage","name":"registry/hyperkube"}}]}}"#;

    fn text<'a>(payload: &'a Payload, name: &str) -> &'a str {
        let file = payload.files.iter().find(|file| file.name == name);
        std::str::from_utf8(&file.unwrap_or_else(|| panic!("no {name}")).bytes).unwrap()
    }

    #[test]
    fn placeholders_are_resolved() {
        let object = "image: registry/hyperkube:v4.0\nother: registry/hyperkube-more:v4.0\n\
                      versions: [\"0.0.1-snapshot\", 0.0.1-snapshot-kubernetes, 10.0.1-snapshotted]\n";
        let dns = operator(
            "dns",
            &[("0000_70_dns_01.yaml", object), (REFERENCES, NAMES_HYPERKUBE), ("b.yaml", "{}")],
        );
        let payload = Payload::assemble(&About::new("4.1.0+b"), &[dns, kube()]).unwrap();
        assert_eq!(
            text(&payload, "0000_70_dns_01.yaml"),
            "image: example.com/hyperkube@sha256:bb\nother: registry/hyperkube-more:v4.0\n\
             versions: [\"4.1.0\", 1.36.0, 10.0.1-snapshotted]\n"
        );
        assert_eq!(text(&payload, "0000_50_dns_b.yaml"), "{}");
        assert_eq!(payload.operators, ["dns"]);
        assert_eq!(payload.references["metadata"]["name"], "4.1.0+b");
        assert_eq!(tags(&payload.references)[1].1, "example.com/hyperkube@sha256:bb");
    }

    #[test]
    fn what_cannot_be_resolved_is_refused() {
        let refused =
            |inputs: &[Input]| Payload::assemble(&About::new("4.1.0"), inputs).unwrap_err().to_string();
        let names = [(REFERENCES, NAMES_HYPERKUBE), ("a.yaml", "{}")];
        assert_eq!(
            refused(&[operator("dns", &names)]),
            "operator \"dns\" contained an invalid image-references file: no input image tag named \"hyperkube\""
        );
        assert_eq!(
            refused(&[operator("dns", &[("a.yaml", "v: 0.0.1-snapshot-etcd")])]),
            "dns/a.yaml: unknown version reference \"etcd\""
        );
        assert!(refused(&[operator("dns", &[("a.yaml", "a: [")])]).contains("dns/a.yaml: "));
        assert_eq!(refused(&[kube(), kube()]), "two components are called hyperkube");
        assert!(Payload::assemble(&About::new("latest"), &[]).is_err());
    }

    #[test]
    fn files_of_the_same_name_are_kept_apart() {
        let (one, two) =
            (operator("a", &[("0000_10_x.yaml", "1")]), operator("b", &[("0000_10_x.yaml", "2")]));
        let payload = Payload::assemble(&About::new("1.0.0"), &[two, one]).unwrap();
        assert_eq!((text(&payload, "0000_10_x.yaml"), text(&payload, "0000_10_x_2.yaml")), ("1", "2"));
    }

    #[test]
    fn the_built_in_release_is_whole_and_always_the_same() {
        let payload = Payload::built_in("0.1.0").unwrap();
        assert_eq!(payload.files, Payload::built_in("0.1.0").unwrap().files);
        for file in &payload.files[2..] {
            let text = std::str::from_utf8(&file.bytes).unwrap();
            assert!(!text.contains("0.0.1-snapshot"), "{}", file.name);
            assert!(file.name.starts_with("0000_"), "{}", file.name);
        }
        assert!(tags(&payload.references).iter().any(|(tag, _)| tag == "pod"));
    }
}
