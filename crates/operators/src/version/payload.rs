//! What a release image contains: its metadata, its image references and every object of its components.
//!
//! ```text
//! <root>/release-manifests/release-metadata     version and the versions before it
//! <root>/release-manifests/image-references     an ImageStream: component → image, pinned by digest
//! <root>/release-manifests/0000_NN_component_…  objects
//! <root>/manifests/                             the operator's own objects, with placeholders
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE;
use semver::Version;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use tracing::debug;

use super::include::Criteria;
use super::manifest::{self, Manifest, ManifestError, ObjectId};

const OWN: &str = "manifests";
const RELEASE: &str = "release-manifests";
const METADATA: &str = "release-metadata";
const REFERENCES: &str = "image-references";
/// A file of a release is an object or a few; whatever is larger is not one.
const LARGEST_FILE: u64 = 16 << 20;
const MOST_FILES: usize = 20_000;

/// A release, read and judged.
#[derive(Clone, Debug)]
pub struct Payload {
    pub version: Version,
    /// The release image itself.
    pub image: String,
    pub url: String,
    pub channels: Vec<String>,
    /// Component → image.
    pub images: BTreeMap<String, String>,
    /// A short name of the contents, as ClusterVersion's `status.versionHash`.
    pub hash: String,
    /// The objects that belong into the cluster, in the order of their files.
    pub manifests: Vec<Manifest>,
}

/// A directory that cannot be a release.
#[derive(Debug, Error)]
pub enum PayloadError {
    #[error("{path} cannot be read", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} has {size} bytes; a file of a release has at most {LARGEST_FILE}", path = path.display())]
    TooLarge { path: PathBuf, size: u64 },
    #[error("{path} has more than {MOST_FILES} files", path = path.display())]
    TooMany { path: PathBuf },
    #[error("{METADATA} cannot be used: {reason}")]
    Metadata { reason: String },
    #[error("{REFERENCES} cannot be used: {reason}")]
    References { reason: String },
    #[error("version from {REFERENCES} ({references}) differs from {METADATA} ({metadata})")]
    Versions { references: String, metadata: String },
    /// Everything that is wrong with the objects, told at once.
    #[error("the manifests cannot be used: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Manifests(Vec<FileError>),
}

/// What is wrong with one file.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("{file}: {source}")]
    Parse { file: String, source: ManifestError },
    #[error("{file}: unknown placeholder {placeholder}")]
    Placeholder { file: String, placeholder: String },
    #[error("{file}: {kind} {namespace}/{name} is also in {other}", kind = id.kind, namespace = id.namespace, name = id.name)]
    Duplicate { file: String, other: String, id: ObjectId },
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    version: String,
    #[serde(default)]
    metadata: BTreeMap<String, Value>,
}

impl Metadata {
    fn parsed_version(&self) -> Result<Version, PayloadError> {
        Version::parse(&self.version).map_err(|error| PayloadError::Metadata {
            reason: format!("version {:?} is not a semantic version: {error}", self.version),
        })
    }
}

impl Payload {
    /// The version of the release below `root`, which decides about its feature gates.
    pub fn version_below(root: &Path) -> Result<Version, PayloadError> {
        read_metadata(&read(&root.join(RELEASE).join(METADATA))?)?.parsed_version()
    }

    /// Reads the release below `root`; `image` is where it came from. `criteria` say which objects belong here.
    pub fn load(root: &Path, image: &str, criteria: &Criteria) -> Result<Self, PayloadError> {
        let release = root.join(RELEASE);
        let metadata = read_metadata(&read(&release.join(METADATA))?)?;
        let version = metadata.parsed_version()?;
        let (name, images) = read_references(&read(&release.join(REFERENCES))?)?;
        if name != metadata.version {
            return Err(PayloadError::Versions { references: name, metadata: metadata.version });
        }
        let text = |name: &str| metadata.metadata.get(name).and_then(Value::as_str).unwrap_or_default();
        let mut channels: Vec<String> = text("io.openshift.upgrades.graph.release.channels")
            .split(',')
            .filter(|channel| !channel.is_empty())
            .map(str::to_owned)
            .collect();
        channels.sort_unstable();
        let criteria = Criteria { major_version: Some(version.major), ..criteria.clone() };
        let templates =
            Templates { image, profile: criteria.profile.as_deref().unwrap_or_default(), images: &images };

        let mut problems = Vec::new();
        let mut manifests = objects(&root.join(OWN), Some(&templates), &mut problems)?;
        manifests.extend(objects(&release, None, &mut problems)?);
        manifests.retain(|manifest| match criteria.include(manifest) {
            Ok(()) => true,
            Err(reason) => {
                debug!(file = manifest.file, object = manifest.title(), %reason, "not for this cluster");
                false
            }
        });
        duplicates(&manifests, &mut problems);
        if !problems.is_empty() {
            return Err(PayloadError::Manifests(problems));
        }
        let url = text("url").to_owned();
        let hash = hash(&manifests);
        Ok(Self { version, image: image.to_owned(), url, channels, images, hash, manifests })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PayloadError> {
    let fail = |source| PayloadError::Read { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(fail)?.len();
    if size > LARGEST_FILE {
        return Err(PayloadError::TooLarge { path: path.to_owned(), size });
    }
    std::fs::read(path).map_err(fail)
}

fn read_metadata(bytes: &[u8]) -> Result<Metadata, PayloadError> {
    let fail = |reason| PayloadError::Metadata { reason };
    let metadata: Metadata = serde_json::from_slice(bytes).map_err(|error| fail(error.to_string()))?;
    match metadata.kind.as_str() {
        "cincinnati-metadata-v0" if metadata.version.is_empty() => Err(fail("it has no version".to_owned())),
        "cincinnati-metadata-v0" => Ok(metadata),
        other => Err(fail(format!("its kind is {other:?}, not cincinnati-metadata-v0"))),
    }
}

/// The version that the references are for, and the image of each component.
fn read_references(bytes: &[u8]) -> Result<(String, BTreeMap<String, String>), PayloadError> {
    #[derive(Deserialize)]
    struct ImageStream {
        kind: String,
        #[serde(rename = "apiVersion")]
        api_version: String,
        metadata: Named,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    #[derive(Deserialize, Default)]
    struct Spec {
        #[serde(default)]
        tags: Vec<Tag>,
    }
    #[derive(Deserialize)]
    struct Tag {
        name: String,
        from: Option<From>,
    }
    #[derive(Deserialize)]
    struct From {
        kind: String,
        name: String,
    }
    let fail = |reason| PayloadError::References { reason };
    let stream: ImageStream = serde_json::from_slice(bytes).map_err(|error| fail(error.to_string()))?;
    if (stream.kind.as_str(), stream.api_version.as_str()) != ("ImageStream", "image.openshift.io/v1") {
        return Err(fail(format!("it is a {} {}, not an ImageStream", stream.api_version, stream.kind)));
    }
    let images = stream.spec.tags.into_iter().filter_map(|tag| {
        let from = tag.from.filter(|from| from.kind == "DockerImage")?;
        Some((tag.name, from.name))
    });
    Ok((stream.metadata.name, images.collect()))
}

/// What stands in for placeholders of the operator's own objects.
struct Templates<'a> {
    image: &'a str,
    profile: &'a str,
    images: &'a BTreeMap<String, String>,
}

impl Templates<'_> {
    /// Fills in `{{.ReleaseImage}}`, `{{.ClusterProfile}}` and `{{.Images.component}}`; the first other one is an error.
    fn render(&self, text: &str) -> Result<String, String> {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("{{") {
            out.push_str(&rest[..start]);
            let length = rest[start..].find("}}").ok_or_else(|| "{{ without an end".to_owned())? + 2;
            let placeholder = &rest[start..start + length];
            let value = match placeholder[2..length - 2].trim() {
                ".ReleaseImage" => Some(self.image),
                ".ClusterProfile" => Some(self.profile),
                other => {
                    other.strip_prefix(".Images.").and_then(|name| self.images.get(name)).map(String::as_str)
                }
            };
            out.push_str(value.ok_or_else(|| placeholder.to_owned())?);
            rest = &rest[start + length..];
        }
        out.push_str(rest);
        Ok(out)
    }
}

/// The objects of a directory, sorted by file. What cannot be read at all ends it; what cannot be understood is
/// collected.
fn objects(
    directory: &Path,
    templates: Option<&Templates<'_>>,
    problems: &mut Vec<FileError>,
) -> Result<Vec<Manifest>, PayloadError> {
    let fail = |source| PayloadError::Read { path: directory.to_owned(), source };
    let mut files = BTreeSet::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let path = entry.path();
        let known =
            path.extension().is_some_and(|kind| ["yaml", "yml", "json"].iter().any(|known| kind == *known));
        if known && entry.file_type().map_err(fail)?.is_file() {
            files.insert(path);
        }
        if files.len() > MOST_FILES {
            return Err(PayloadError::TooMany { path: directory.to_owned() });
        }
    }
    let mut found = Vec::new();
    for path in files {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut bytes = read(&path)?;
        if let Some(templates) = templates {
            match templates.render(&String::from_utf8_lossy(&bytes)) {
                Ok(text) => bytes = text.into_bytes(),
                Err(placeholder) => {
                    problems.push(FileError::Placeholder { file, placeholder });
                    continue;
                }
            }
        }
        match manifest::parse(&file, &bytes) {
            Ok(manifests) => found.extend(manifests),
            Err(source) => problems.push(FileError::Parse { file, source }),
        }
    }
    Ok(found)
}

fn duplicates(manifests: &[Manifest], problems: &mut Vec<FileError>) {
    let mut seen: BTreeMap<&ObjectId, &str> = BTreeMap::new();
    for manifest in manifests {
        if let Some(other) = seen.insert(&manifest.id, &manifest.file) {
            let (file, other) = (manifest.file.clone(), other.to_owned());
            problems.push(FileError::Duplicate { file, other, id: manifest.id.clone() });
        }
    }
}

/// FNV-64 over the objects as Go would write them.
fn hash(manifests: &[Manifest]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for manifest in manifests {
        for byte in go_json(&manifest.object).bytes() {
            hash = hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte);
        }
    }
    URL_SAFE.encode(hash.to_be_bytes())
}

/// JSON with sorted keys and without characters that a browser might take for markup.
fn go_json(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let fields: BTreeMap<&String, Value> =
                    map.iter().map(|(key, inner)| (key, sorted(inner))).collect();
                Value::Object(fields.into_iter().map(|(key, inner)| (key.clone(), inner)).collect())
            }
            Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
            other => other.clone(),
        }
    }
    let mut out = String::new();
    for character in sorted(value).to_string().chars() {
        match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", character as u32))
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "include.release.openshift.io/self-managed-high-availability: \"true\"";

    fn release(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for inner in [OWN, RELEASE] {
            std::fs::create_dir(directory.path().join(inner)).unwrap();
        }
        let metadata = r#"{"kind": "cincinnati-metadata-v0", "version": "4.18.0",
            "metadata": {"url": "https://example.com", "io.openshift.upgrades.graph.release.channels": "stable-4.18,fast-4.18"}}"#;
        let references = r#"{"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": {"name": "4.18.0"},
            "spec": {"tags": [{"name": "etcd", "from": {"kind": "DockerImage", "name": "example.com/etcd@sha256:0"}}]}}"#;
        let fixed = [
            ("release-manifests/release-metadata", metadata),
            ("release-manifests/image-references", references),
        ];
        for (name, text) in fixed.iter().chain(files) {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    fn object(name: &str) -> String {
        format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, annotations: {{{PROFILE}}}}}}}")
    }

    fn load(files: &[(&str, &str)]) -> Result<Payload, PayloadError> {
        let criteria = Criteria {
            profile: Some(super::super::include::DEFAULT_PROFILE.to_owned()),
            ..Criteria::default()
        };
        Payload::load(release(files).path(), "example.com/release@sha256:1", &criteria)
    }

    #[test]
    fn a_release_is_read_with_its_own_objects_first() {
        let own = object("own").replace("own,", "'{{.ReleaseImage}}-{{ .Images.etcd }}',");
        let payload = load(&[
            ("release-manifests/0000_20_b_1.yaml", &object("second")),
            ("release-manifests/0000_10_a_1.json", &object("first")),
            ("release-manifests/readme.txt", "not an object"),
            (
                "release-manifests/0000_10_a_2.yaml",
                "{apiVersion: v1, kind: Namespace, metadata: {name: elsewhere}}",
            ),
            ("manifests/0000_00_cvo_1.yaml", &own),
        ])
        .unwrap();
        let names: Vec<&str> = payload.manifests.iter().map(|manifest| manifest.id.name.as_str()).collect();
        assert_eq!(names, ["example.com/release@sha256:1-example.com/etcd@sha256:0", "first", "second"]);
        assert_eq!(payload.channels, ["fast-4.18", "stable-4.18"]);
        assert_eq!(payload.images["etcd"], "example.com/etcd@sha256:0");
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once() {
        let error = load(&[
            ("release-manifests/0000_10_a_1.yaml", &object("same")),
            ("release-manifests/0000_10_a_2.yaml", &object("same")),
            ("release-manifests/0000_10_a_3.yaml", "kind: [\n"),
            ("manifests/own.yaml", "name: {{.Unheard}}"),
        ])
        .unwrap_err();
        let PayloadError::Manifests(problems) = error else { panic!("{error}") };
        assert!(
            matches!(&problems[0], FileError::Placeholder { placeholder, .. } if placeholder == "{{.Unheard}}")
        );
        assert!(matches!(&problems[1], FileError::Parse { file, .. } if file == "0000_10_a_3.yaml"));
        assert!(matches!(&problems[2], FileError::Duplicate { other, .. } if other == "0000_10_a_1.yaml"));
    }

    #[test]
    fn versions_must_agree() {
        let other = r#"{"kind": "cincinnati-metadata-v0", "version": "4.18.1"}"#;
        assert!(matches!(
            load(&[("release-manifests/release-metadata", other)]),
            Err(PayloadError::Versions { .. })
        ));
        for bad in [
            r#"{"kind": "x", "version": "4.18.0"}"#,
            r#"{"kind": "cincinnati-metadata-v0", "version": "four"}"#,
            "{",
        ] {
            assert!(matches!(
                load(&[("release-manifests/release-metadata", bad)]),
                Err(PayloadError::Metadata { .. })
            ));
        }
        assert!(matches!(
            load(&[(
                "release-manifests/image-references",
                r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"}}"#
            )]),
            Err(PayloadError::References { .. })
        ));
    }

    #[test]
    fn the_hash_is_of_the_contents_alone() {
        let one = load(&[("release-manifests/0000_10_a_1.yaml", &object("a"))]).unwrap().hash;
        let renamed = load(&[("release-manifests/0000_10_b_1.yaml", &object("a"))]).unwrap().hash;
        let other = load(&[("release-manifests/0000_10_a_1.yaml", &object("b"))]).unwrap().hash;
        assert_eq!(one, renamed);
        assert_ne!(one, other);
    }
}
