//! Manifests and indexes: what they may say, and which image of an index is for this machine. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::reference::is_digest;

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_SCHEMA_1: &str = "application/vnd.docker.distribution.manifest.v1";
/// Layers that are archives of files, whatever their compression. What comes after is not read.
const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
    "application/vnd.docker.container.image.rootfs.diff",
    "application/x-tar",
];

/// A document of a registry that is no image for us.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ManifestError {
    #[error("the manifest is not JSON of the expected form: {0}")]
    Json(String),
    #[error("the manifest is of type {0:?}, which is not supported")]
    Type(String),
    #[error("{0:?} is not a digest")]
    Digest(String),
    #[error("a part of the image has the impossible size {0}")]
    Size(i64),
    #[error("the image has {count} layers, more than {limit}")]
    Layers { count: usize, limit: usize },
    #[error("the image has {size} bytes, more than {limit}")]
    Total { size: u64, limit: u64 },
    #[error("a layer is of type {0:?}, which is not supported")]
    LayerType(String),
    #[error("no match for platform in manifest: it has {present}, this machine is {wanted}")]
    Platform { wanted: String, present: String },
}

/// What a document refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    #[serde(default)]
    pub size: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: &str, size: u64) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: digest.to_owned(),
            size: i64::try_from(size).unwrap_or(i64::MAX),
            ..Self::default()
        }
    }

    fn check(&self) -> Result<u64, ManifestError> {
        if !is_digest(&self.digest) {
            return Err(ManifestError::Digest(self.digest.chars().take(100).collect()));
        }
        u64::try_from(self.size).map_err(|_| ManifestError::Size(self.size))
    }

    /// Its size; zero where the document lies.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.size).unwrap_or(0)
    }
}

/// A machine in the words of indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Raw {
    schema_version: i64,
    media_type: String,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

/// A manifest as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: i64,
    pub media_type: String,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// What a registry's document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Image(Manifest),
    Index(Vec<Descriptor>),
}

/// Reads a document. `content_type` is what the registry called it; the document's own word counts more.
pub fn parse(bytes: &[u8], content_type: &str) -> Result<Document, ManifestError> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| ManifestError::Json(error.to_string()))?;
    let kind = match raw.media_type.as_str() {
        "" => content_type.split(';').next().unwrap_or_default().trim(),
        own => own,
    };
    if kind.starts_with(DOCKER_SCHEMA_1) || raw.schema_version == 1 {
        return Err(ManifestError::Type(DOCKER_SCHEMA_1.to_owned()));
    }
    let is_list = matches!(kind, OCI_INDEX | DOCKER_LIST);
    let is_image = matches!(kind, OCI_MANIFEST | DOCKER_MANIFEST);
    match (raw.config, raw.layers, raw.manifests) {
        // A document that is both was made to be read as either by different readers (CVE-2021-41190).
        (Some(_), _, Some(_)) | (_, Some(_), Some(_)) => {
            Err(ManifestError::Json("it is both an image and an index".into()))
        }
        (None, None, Some(manifests)) if !is_image => {
            manifests.iter().try_for_each(|inner| inner.check().map(drop))?;
            Ok(Document::Index(manifests))
        }
        (Some(config), Some(layers), None) if !is_list => {
            config.check()?;
            let media_type = if kind == DOCKER_MANIFEST { DOCKER_MANIFEST } else { OCI_MANIFEST };
            let manifest = Manifest { schema_version: 2, media_type: media_type.to_owned(), config, layers };
            Ok(Document::Image(manifest))
        }
        _ => Err(ManifestError::Type(kind.chars().take(100).collect())),
    }
}

impl Manifest {
    /// Judges it before anything else of it is fetched.
    pub fn check(&self, max_layers: usize, max_total: u64) -> Result<(), ManifestError> {
        if ![OCI_CONFIG, DOCKER_CONFIG, ""].contains(&self.config.media_type.as_str()) {
            return Err(ManifestError::Type(self.config.media_type.chars().take(100).collect()));
        }
        if self.layers.len() > max_layers {
            return Err(ManifestError::Layers { count: self.layers.len(), limit: max_layers });
        }
        let mut total: u64 = 0;
        for layer in &self.layers {
            total = total.saturating_add(layer.check()?);
            let kind = layer.media_type.as_str();
            if !kind.is_empty()
                && (!LAYERS.iter().any(|known| kind.starts_with(known)) || kind.ends_with("+encrypted"))
            {
                return Err(ManifestError::LayerType(kind.chars().take(100).collect()));
            }
        }
        match total > max_total {
            true => Err(ManifestError::Total { size: total, limit: max_total }),
            false => Ok(()),
        }
    }
}

/// Variants that run here, the best first.
fn variants(architecture: &str) -> &'static [&'static str] {
    match architecture {
        "arm64" => &["v8", ""],
        "amd64" => &["", "v1"],
        _ => &[""],
    }
}

/// The image of an index for a machine with this architecture, of Linux.
pub fn choose<'a>(manifests: &'a [Descriptor], architecture: &str) -> Result<&'a Descriptor, ManifestError> {
    let fits = |variant: &&str| {
        manifests.iter().find(|inner| {
            inner.platform.as_ref().is_some_and(|platform| {
                platform.os == "linux"
                    && platform.architecture == architecture
                    && platform.variant == **variant
            })
        })
    };
    if let Some(found) = variants(architecture).iter().find_map(fits) {
        return Ok(found);
    }
    // An index of one image that says nothing of machines: its configuration will.
    if let [only] = manifests
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let present: Vec<String> = manifests
        .iter()
        .filter_map(|inner| inner.platform.as_ref())
        .take(16)
        .map(|platform| format!("{}/{}", platform.os, platform.architecture))
        .collect();
    let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
    let present = present.chars().filter(|c| !c.is_control()).take(400).collect();
    Err(ManifestError::Platform { wanted: format!("linux/{architecture}"), present })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(hex: char) -> String {
        format!("sha256:{}", hex.to_string().repeat(64))
    }

    fn at(hex: char, os: &str, architecture: &str, variant: &str) -> Descriptor {
        let platform = Platform { os: os.into(), architecture: architecture.into(), variant: variant.into() };
        Descriptor { platform: Some(platform), ..Descriptor::new("", &digest(hex), 1) }
    }

    #[test]
    fn the_image_for_this_machine_is_chosen() {
        let all = [
            at('a', "windows", "amd64", ""),
            at('b', "linux", "amd64", "v3"),
            at('c', "linux", "arm64", "v8"),
            at('d', "linux", "amd64", ""),
        ];
        assert_eq!(choose(&all, "amd64").unwrap().digest, digest('d'));
        assert_eq!(choose(&all, "arm64").unwrap().digest, digest('c'));
        let error = choose(&all, "s390x").unwrap_err().to_string();
        assert!(error.contains("linux/s390x") && error.contains("windows/amd64"), "{error}");
        assert!(choose(&[], "amd64").is_err());
    }

    #[test]
    fn absurd_documents_are_refused() {
        let part = |size: i64| json!({"mediaType": "", "digest": digest('a'), "size": size});
        let image = |layers: serde_json::Value| {
            json!({"schemaVersion": 2, "config": part(1), "layers": layers}).to_string()
        };
        let judge = |text: &str| match parse(text.as_bytes(), OCI_MANIFEST)? {
            Document::Image(manifest) => manifest.check(3, 100),
            Document::Index(_) => Ok(()),
        };
        assert_eq!(judge(&image(json!([part(1)]))), Ok(()));
        let bad = [
            image(json!([part(-1)])),
            image(json!([part(1), part(1), part(1), part(1)])),
            image(json!([part(60), part(60)])),
            image(json!([part(i64::MAX), part(i64::MAX)])),
            image(json!([{"mediaType": "x/wasm", "digest": digest('a'), "size": 1}])),
            image(json!([{"mediaType": "", "digest": "sha256:../../x", "size": 1}])),
            json!({"config": part(1), "layers": [], "manifests": []}).to_string(),
            json!({"schemaVersion": 1, "fsLayers": []}).to_string(),
            json!({"manifests": []}).to_string(),
            "[]".into(),
            "{}".into(),
            "".into(),
            format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000)),
        ];
        for text in bad {
            assert!(judge(&text).is_err(), "{}", &text[..text.len().min(200)]);
        }
    }
}
