//! Images of registries.

use std::collections::HashMap;
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clap::Args;
use container_runtime::image::manifest::{self, Descriptor, Document, Manifest, ManifestError};
use container_runtime::image::reference::BadReference;
use container_runtime::image::registry::auth::encode;
use container_runtime::image::registry::{
    Ask, Http, Limits, Payload, Registries, RegistryError, Repository, accepted, resolve,
};
use container_runtime::image::store::sha256;
use container_runtime::image::{Reference, architecture};
use cri::Keyring;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use release::{File, ReleaseError};
use serde_json::Value;
use thiserror::Error;

use crate::layer::{self, Changes};

/// How to reach registries.
#[derive(Args, Clone, Debug, Default)]
pub struct RemoteArgs {
    /// Credentials in Docker's form
    #[arg(short = 'a', long, value_name = "FILE", env = "REGISTRY_AUTH_FILE")]
    pub registry_config: Option<PathBuf>,
    /// Certificates of registries are not checked, and plain HTTP will do
    #[arg(long)]
    pub insecure: bool,
    /// The directory with certificates of registries, as /etc/containers/certs.d
    #[arg(long, value_name = "DIRECTORY")]
    pub cert_dir: Option<PathBuf>,
}

/// Why a release could not be handled.
#[derive(Debug, Error)]
pub enum AdmError {
    #[error(transparent)]
    Reference(#[from] BadReference),
    #[error("unable to read image {image}")]
    Pull { image: String, source: RegistryError },
    #[error("unable to push to {image}")]
    Push { image: String, source: RegistryError },
    #[error("unable to read image {image}")]
    Manifest { image: String, source: ManifestError },
    #[error("{image}: {what} should have digest {expected} but has {actual}")]
    Digest { image: String, what: String, expected: String, actual: String },
    #[error("{image}: {reason}")]
    Unusable { image: String, reason: String },
    #[error("cannot {doing} {path}", path = path.display())]
    Disk { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the credentials in {path} cannot be read: {reason}", path = path.display())]
    Credentials { path: PathBuf, reason: String },
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// A request that makes no sense, in the words of the command.
    #[error("{0}")]
    Usage(String),
    #[error("the answer cannot be written")]
    Output(#[from] std::io::Error),
}

/// Registries, as far as this command may use them.
pub struct Remote {
    http: Arc<Http>,
    registries: Registries,
    keyring: Keyring,
    insecure: bool,
    /// What was read of layers already: components share most of them.
    layers: Mutex<HashMap<(String, String), Arc<Changes>>>,
}

/// An image, without its layers.
#[derive(Clone)]
pub struct Image {
    /// The name that it was asked for by.
    pub reference: Reference,
    /// The digest of its own manifest.
    pub digest: String,
    /// The digest of the list that it was chosen from.
    pub list_digest: Option<String>,
    /// Every document on the way to it, the list first: type, digest, content.
    pub documents: Vec<(String, String, Vec<u8>)>,
    pub manifest: Manifest,
    pub config: Value,
    pub config_bytes: Vec<u8>,
    repository: Arc<Repository>,
}

impl Image {
    /// Its name by digest, as a release pins it.
    pub fn pinned(&self) -> String {
        format!("{}@{}", self.reference.name, self.list_digest.as_ref().unwrap_or(&self.digest))
    }

    /// Its labels.
    pub fn labels(&self) -> std::collections::BTreeMap<String, String> {
        let labels = self.config["config"]["Labels"].as_object().into_iter().flatten();
        labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    }
}

impl Remote {
    pub fn new(args: &RemoteArgs) -> Result<Self, AdmError> {
        let mut registries = Registries::default();
        if let Some(directory) = &args.cert_dir {
            registries.certificates = vec![directory.clone()];
        }
        let mut keyring = Keyring::default();
        if let Some(path) = &args.registry_config {
            let text = std::fs::read(path).map_err(|source| AdmError::Disk {
                doing: "read",
                path: path.clone(),
                source,
            })?;
            keyring
                .add_config(&text)
                .map_err(|error| AdmError::Credentials { path: path.clone(), reason: error.to_string() })?;
        }
        let http = Arc::new(Http::new(registries.certificates.clone(), Limits::default()));
        Ok(Self { http, registries, keyring, insecure: args.insecure, layers: Mutex::default() })
    }

    /// The places of an image, the registry itself last.
    fn repositories(
        &self,
        reference: &Reference,
        actions: &'static str,
    ) -> Result<Vec<Repository>, RegistryError> {
        let mut sources = self.registries.sources(reference)?;
        for source in &mut sources {
            source.insecure |= self.insecure;
        }
        let one = |source: &container_runtime::image::registry::Source| {
            let known = self.keyring.lookup(&format!("{}/{}", source.host, source.repository));
            let auth = known.first().map(|auth| (*auth).clone());
            Repository::new(self.http.clone(), source, auth, actions)
        };
        Ok(sources.iter().map(one).collect())
    }

    /// Where an image is written to.
    pub fn target(&self, reference: &Reference) -> Result<Repository, AdmError> {
        let failed = |source| AdmError::Push { image: reference.to_string(), source };
        let mut all = self.repositories(reference, "pull,push").map_err(failed)?;
        all.pop().ok_or_else(|| failed(RegistryError::NotFound { what: "a place to push to".to_owned() }))
    }

    /// Finds an image; of a list the one for this machine.
    pub async fn image(&self, text: &str) -> Result<Image, AdmError> {
        let reference = Reference::parse(text)?;
        let failed = |source| AdmError::Pull { image: text.to_owned(), source };
        let mut last = None;
        for repository in self.repositories(&reference, "pull").map_err(failed)? {
            match self.image_at(&reference, text, Arc::new(repository)).await {
                Ok(image) => return Ok(image),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| failed(RegistryError::NotFound { what: text.to_owned() })))
    }

    async fn image_at(
        &self,
        reference: &Reference,
        text: &str,
        repository: Arc<Repository>,
    ) -> Result<Image, AdmError> {
        let failed = |source| AdmError::Pull { image: text.to_owned(), source };
        let unusable = |source| AdmError::Manifest { image: text.to_owned(), source };
        let tag = reference.tag.as_deref().unwrap_or("latest");
        let mut name = reference.digest.clone().unwrap_or_else(|| tag.to_owned());
        let mut documents = Vec::new();
        let manifest = loop {
            let ask = Ask { headers: accepted(), ..Ask::get(text) };
            let answer = repository.ask(&format!("manifests/{name}"), ask).await.map_err(failed)?;
            let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            let kind = kind.unwrap_or_default().to_owned();
            let bytes = answer.body.all(&self.http, self.http.limits.manifest).await;
            let bytes = bytes.map_err(|error| failed(error.into()))?;
            let digest = sha256(&bytes);
            if name.starts_with("sha256:") && name != digest {
                let what = "the manifest".to_owned();
                return Err(AdmError::Digest {
                    image: text.to_owned(),
                    what,
                    expected: name,
                    actual: digest,
                });
            }
            let parsed = manifest::parse(&bytes, &kind).map_err(unusable)?;
            documents.push((kind, digest, bytes));
            match parsed {
                Document::Image(manifest) => break manifest,
                Document::Index(list) if documents.len() < 3 => {
                    name = manifest::choose(&list, architecture()).map_err(unusable)?.digest.clone();
                }
                Document::Index(_) => {
                    let reason = "indexes are nested too deeply".to_owned();
                    return Err(unusable(ManifestError::Json(reason)));
                }
            }
        };
        let limits = &self.http.limits;
        manifest.check(limits.layers, limits.total).map_err(unusable)?;
        let config_bytes = self.blob(&repository, text, &manifest.config, limits.config).await?;
        let config = serde_json::from_slice(&config_bytes).map_err(|error| AdmError::Unusable {
            image: text.to_owned(),
            reason: format!("its configuration is not JSON: {error}"),
        })?;
        let digest = documents.last().map(|(_, digest, _)| digest.clone()).unwrap_or_default();
        let list_digest = documents.first().map(|(_, digest, _)| digest.clone()).filter(|own| *own != digest);
        Ok(Image {
            reference: reference.clone(),
            digest,
            list_digest,
            documents,
            manifest,
            config,
            config_bytes,
            repository,
        })
    }

    async fn blob(
        &self,
        repository: &Repository,
        image: &str,
        descriptor: &Descriptor,
        limit: u64,
    ) -> Result<Vec<u8>, AdmError> {
        let digest = &descriptor.digest;
        let failed = |source| AdmError::Pull { image: image.to_owned(), source };
        let ask = Ask::get(format!("blob {digest}"));
        let answer = repository.ask(&format!("blobs/{digest}"), ask).await.map_err(failed)?;
        let bytes = answer.body.all(&self.http, limit).await.map_err(|error| failed(error.into()))?;
        match sha256(&bytes) {
            actual if actual == *digest => Ok(bytes),
            actual => Err(AdmError::Digest {
                image: image.to_owned(),
                what: "a blob".to_owned(),
                expected: digest.clone(),
                actual,
            }),
        }
    }

    /// A layer, in a file that is gone once it is dropped.
    async fn fetch_layer(&self, image: &Image, descriptor: &Descriptor) -> Result<std::fs::File, AdmError> {
        let text = image.reference.to_string();
        let failed = |source| AdmError::Pull { image: text.clone(), source };
        let disk = |source| AdmError::Disk { doing: "write", path: std::env::temp_dir(), source };
        let mut file = tempfile::tempfile().map_err(disk)?;
        let mut hash = Hash::default();
        let ask = Ask::get(format!("layer {}", descriptor.digest));
        let mut answer =
            image.repository.ask(&format!("blobs/{}", descriptor.digest), ask).await.map_err(failed)?;
        let mut size = 0;
        while let Some(chunk) = answer.body.next(&self.http).await.map_err(|error| failed(error.into()))? {
            size += chunk.len() as u64;
            if size > descriptor.bytes() {
                let reason = format!("the layer {} is larger than it says", descriptor.digest);
                return Err(AdmError::Unusable { image: text, reason });
            }
            hash.0.update(&chunk);
            file.write_all(&chunk).map_err(disk)?;
        }
        let actual = hash.finish();
        if actual != descriptor.digest {
            let (what, expected) = ("a layer".to_owned(), descriptor.digest.clone());
            return Err(AdmError::Digest { image: text, what, expected, actual });
        }
        file.rewind().map_err(disk)?;
        Ok(file)
    }

    async fn changes(
        &self,
        image: &Image,
        descriptor: &Descriptor,
        directory: &str,
    ) -> Result<Arc<Changes>, AdmError> {
        let key = (descriptor.digest.clone(), directory.to_owned());
        let known = self.layers.lock().ok().and_then(|layers| layers.get(&key).cloned());
        if let Some(known) = known {
            return Ok(known);
        }
        let file = self.fetch_layer(image, descriptor).await?;
        let changes = layer::read(file, directory).map_err(|error| AdmError::Unusable {
            image: image.reference.to_string(),
            reason: format!("the layer {} cannot be read: {error}", descriptor.digest),
        })?;
        let changes = Arc::new(changes);
        if let Ok(mut layers) = self.layers.lock() {
            layers.insert(key, changes.clone());
        }
        Ok(changes)
    }

    /// What an image has directly in a directory. With `last`, only what its last layer puts there, if it does: a release's
    /// files are in that one.
    pub async fn files(&self, image: &Image, directory: &str, last: bool) -> Result<Vec<File>, AdmError> {
        if last && let Some(top) = image.manifest.layers.last() {
            let files = layer::stack([&*self.changes(image, top, directory).await?]);
            if !files.is_empty() {
                return Ok(files);
            }
        }
        let mut layers = Vec::new();
        for descriptor in &image.manifest.layers {
            layers.push(self.changes(image, descriptor, directory).await?);
        }
        Ok(layer::stack(layers.iter().map(|changes| &**changes)))
    }

    /// Puts a blob into a repository, unless it has it.
    pub async fn put_blob(
        &self,
        to: &Repository,
        image: &str,
        digest: &str,
        body: Payload,
    ) -> Result<(), AdmError> {
        let failed = |source| AdmError::Push { image: image.to_owned(), source };
        if self.has_blob(to, image, digest).await? {
            return Ok(());
        }
        let place = self.start(to, image, None).await?;
        let Some(place) = place else { return Ok(()) };
        let joint = if place.contains('?') { '&' } else { '?' };
        let size =
            body.size().map_err(|source| AdmError::Disk { doing: "read", path: body.path(), source })?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
        let put = Ask { method: Method::PUT, headers, body, ..Ask::get(format!("blob {digest}")) };
        to.ask_url(&format!("{place}{joint}digest={}", encode(digest)), put).await.map(drop).map_err(failed)
    }

    async fn has_blob(&self, to: &Repository, image: &str, digest: &str) -> Result<bool, AdmError> {
        let head = Ask { method: Method::HEAD, ..Ask::get(format!("blob {digest}")) };
        match to.ask(&format!("blobs/{digest}"), head).await {
            Ok(_) => Ok(true),
            Err(RegistryError::NotFound { .. }) => Ok(false),
            Err(source) => Err(AdmError::Push { image: image.to_owned(), source }),
        }
    }

    /// Begins an upload; nothing where the blob was mounted from another repository instead.
    async fn start(
        &self,
        to: &Repository,
        image: &str,
        mount: Option<(&str, &str)>,
    ) -> Result<Option<String>, AdmError> {
        let failed = |source| AdmError::Push { image: image.to_owned(), source };
        let query = mount.map_or(String::new(), |(digest, from)| {
            format!("?mount={}&from={}", encode(digest), encode(from))
        });
        let ask = Ask { method: Method::POST, ..Ask::get("an upload") };
        let answer = to.ask(&format!("blobs/uploads/{query}"), ask).await.map_err(failed)?;
        if answer.status == StatusCode::CREATED {
            return Ok(None);
        }
        let nowhere = || failed(RegistryError::NotFound { what: "a place for a blob".to_owned() });
        let location =
            answer.headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(nowhere)?;
        let home: Uri = to.home().parse().map_err(|_| nowhere())?;
        Ok(Some(resolve(&home, location).ok_or_else(nowhere)?.to_string()))
    }

    /// Copies a blob of an image: mounted where both are of one registry, else carried.
    pub async fn copy_blob(
        &self,
        from: &Image,
        descriptor: &Descriptor,
        to: &Repository,
        image: &str,
    ) -> Result<(), AdmError> {
        let digest = &descriptor.digest;
        if self.has_blob(to, image, digest).await? {
            return Ok(());
        }
        if from.repository.host == to.host
            && self.start(to, image, Some((digest, &from.repository.name))).await?.is_none()
        {
            return Ok(());
        }
        if *digest == from.manifest.config.digest {
            let body = Payload::Bytes(Bytes::from(from.config_bytes.clone()));
            return self.put_blob(to, image, digest, body).await;
        }
        // Only files can be sent again when a connection breaks.
        let disk = |source| AdmError::Disk { doing: "write", path: std::env::temp_dir(), source };
        let mut fetched = self.fetch_layer(from, descriptor).await?;
        let mut file = tempfile::NamedTempFile::new().map_err(disk)?;
        std::io::copy(&mut fetched, &mut file).map_err(disk)?;
        self.put_blob(to, image, digest, Payload::File(file.path().to_owned())).await
    }

    /// Puts a manifest.
    pub async fn put_manifest(
        &self,
        to: &Repository,
        image: &str,
        name: &str,
        kind: &str,
        bytes: Vec<u8>,
    ) -> Result<(), AdmError> {
        let mut headers = HeaderMap::new();
        if let Ok(kind) = HeaderValue::from_str(kind) {
            headers.insert(CONTENT_TYPE, kind);
        }
        let body = Payload::Bytes(Bytes::from(bytes));
        let ask = Ask { method: Method::PUT, headers, body, ..Ask::get("the manifest") };
        let put = to.ask(&format!("manifests/{name}"), ask).await;
        put.map(drop).map_err(|source| AdmError::Push { image: image.to_owned(), source })
    }

    /// Copies an image to the byte. Of a list only the image for this machine can be had, so lists are refused.
    pub async fn copy(&self, from: &Image, to: &Reference) -> Result<(), AdmError> {
        if from.list_digest.is_some() {
            let reason = "it is a list of images for several machines, which is not copied".to_owned();
            return Err(AdmError::Unusable { image: from.reference.to_string(), reason });
        }
        let (target, text) = (self.target(to)?, to.to_string());
        for descriptor in from.manifest.layers.iter().chain([&from.manifest.config]) {
            self.copy_blob(from, descriptor, &target, &text).await?;
        }
        let Some((kind, digest, bytes)) = from.documents.last() else { return Ok(()) };
        let name = to.tag.clone().unwrap_or_else(|| digest.clone());
        self.put_manifest(&target, &text, &name, kind, bytes.clone()).await
    }
}

/// A digest in the making.
struct Hash(ring::digest::Context);

impl Default for Hash {
    fn default() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }
}

impl Hash {
    fn finish(self) -> String {
        let hex: String = self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    }
}
