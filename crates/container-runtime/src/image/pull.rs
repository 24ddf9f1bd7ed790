//! Images from registries: `resolve → configuration → layers, fetched side by side and unpacked as they arrive → record`.
//!
//! A layer is fetched into a file of a workspace and unpacked while it grows, into a directory of the same workspace. Both of
//! its digests are checked before the directory moves to its place, so nothing of a lying registry is ever mounted. The
//! workspace holds a lease on the layers that are there already. Equal pulls at the same time are one pull.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use cri::{AuthConfig, Keyring};
use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use futures::{StreamExt, TryStreamExt};
use ring::digest::{Context, SHA256};
use thiserror::Error;
use tracing::{debug, info};

use super::growing::{self, Growing};
use super::import::{Hashed, decompress};
use super::manifest::{self, Descriptor, Document, Manifest, ManifestError};
use super::registry::{Answer, Ask, Http, Limits, Registries, RegistryError, Repository, accepted};
use super::store::{format_digest, layer_name, sha256};
use super::{ImageConfig, ImageError, ImageRecord, Reference, Store, architecture, unpack};

/// How deep indexes may be nested.
const DEPTH: usize = 3;

/// Why an image could not be pulled.
#[derive(Debug, Error)]
pub enum PullError {
    #[error("failed to resolve reference {image:?}")]
    Registry {
        image: String,
        #[source]
        source: RegistryError,
    },
    #[error("failed to use image {image:?}")]
    Manifest {
        image: String,
        #[source]
        source: ManifestError,
    },
    #[error("{what} should have digest {expected} but has {actual}")]
    Digest { what: &'static str, expected: String, actual: String },
    #[error("{what} should have {expected} bytes but has {actual}")]
    Size { what: String, expected: u64, actual: u64 },
    #[error("failed to fetch {what}")]
    Fetch {
        what: String,
        #[source]
        source: RegistryError,
    },
    #[error("the configuration of the image cannot be used: {0}")]
    Config(String),
    #[error("layer {digest} cannot be unpacked")]
    Unpack {
        digest: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] ImageError),
    #[error("the pull was given up")]
    GivenUp,
}

impl PullError {
    /// Whether the registry was not there, which the kubelet reports by a reason of its own.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Registry { source, .. } | Self::Fetch { source, .. } => source.is_unavailable(),
            _ => false,
        }
    }
}

type Result<T> = std::result::Result<T, PullError>;
type Pull = BoxFuture<'static, std::result::Result<ImageRecord, Arc<PullError>>>;

/// What to do besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PullOptions {
    /// Keeps the compressed layers, so that the image can be pushed elsewhere as it is.
    pub keep_layers: bool,
}

/// Pulls into one store.
pub struct Puller {
    inner: Arc<Inner>,
    running: Mutex<HashMap<String, WeakShared<Pull>>>,
}

struct Inner {
    store: Store,
    registries: Registries,
    http: Arc<Http>,
}

impl Puller {
    pub fn new(store: Store, registries: Registries, limits: Limits) -> Self {
        let http = Arc::new(Http::new(registries.certificates.clone(), limits));
        Self { inner: Arc::new(Inner { store, registries, http }), running: Mutex::default() }
    }

    /// Makes the image present as its registry has it now. Joins a pull of the same image with the same credentials.
    pub async fn pull(
        &self,
        reference: &Reference,
        auth: Option<&AuthConfig>,
        options: PullOptions,
    ) -> std::result::Result<ImageRecord, Arc<PullError>> {
        let key = pull_key(reference, auth, options);
        let pull = {
            let mut running = self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            running.retain(|_, pull| pull.upgrade().is_some_and(|pull| pull.peek().is_none()));
            match running.get(&key).and_then(WeakShared::upgrade) {
                Some(pull) => pull,
                None => {
                    let (inner, reference, auth) = (self.inner.clone(), reference.clone(), auth.cloned());
                    let work = async move { inner.pull(&reference, auth, options).await.map_err(Arc::new) };
                    let pull: Shared<Pull> = work.boxed().shared();
                    running.extend(pull.downgrade().map(|weak| (key, weak)));
                    pull
                }
            }
        };
        pull.await
    }
}

/// What makes two pulls the same. Digested, because there are secrets in it.
fn pull_key(reference: &Reference, auth: Option<&AuthConfig>, options: PullOptions) -> String {
    let secrets = auth
        .map(|auth| [&auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token]);
    sha256(format!("{reference} {secrets:?} {options:?}").as_bytes())
}

/// An image as a registry describes it.
struct Resolved {
    repository: Repository,
    /// Digest of what the reference names: an index or a manifest.
    digest: String,
    manifest: Manifest,
    /// The documents on the way, as they came.
    documents: Vec<Vec<u8>>,
}

enum Lookup {
    Present(Box<ImageRecord>),
    Found(Box<Resolved>),
}

impl Inner {
    async fn pull(
        &self,
        reference: &Reference,
        auth: Option<AuthConfig>,
        options: PullOptions,
    ) -> Result<ImageRecord> {
        let failed = |source| PullError::Registry { image: reference.to_string(), source };
        let sources = self.registries.sources(reference).map_err(|error| failed(error.into()))?;
        let own = self.own_credentials();
        let mut last = None;
        for source in sources {
            let known = |keyring: &Keyring| {
                keyring
                    .lookup(&format!("{}/{}", source.host, source.repository))
                    .first()
                    .map(|a| (*a).clone())
            };
            let auth = if source.mirror { None } else { auth.clone() };
            let auth = auth.or_else(|| known(&own));
            let repository = Repository::new(self.http.clone(), &source, auth, "pull");
            debug!(image = %reference, host = repository.host, "asking for the manifest");
            match self.resolve(repository, reference, options).await {
                Ok(Lookup::Present(image)) => return Ok(*image),
                Ok(Lookup::Found(found)) => match self.fetch(reference, *found, options).await {
                    Ok(image) => return Ok(image),
                    Err(error) if source.mirror => last = Some(error),
                    Err(error) => return Err(error),
                },
                Err(error) => last = Some(error),
            }
            if let Some(error) = &last {
                debug!(image = %reference, error = %telemetry::chain(error), "no image from here");
            }
        }
        Err(last.unwrap_or(PullError::GivenUp))
    }

    fn own_credentials(&self) -> Keyring {
        let mut keyring = Keyring::default();
        let Some(path) = &self.registries.auth_file else { return keyring };
        if let Ok(text) = fs::read(path)
            && let Err(error) = keyring.add_config(&text)
        {
            tracing::warn!(path = %path.display(), %error, "the node's registry credentials cannot be read");
        }
        keyring
    }

    /// Finds the manifest for this machine, or that the image is here as the registry has it.
    async fn resolve(
        &self,
        repository: Repository,
        reference: &Reference,
        options: PullOptions,
    ) -> Result<Lookup> {
        let image = reference.to_string();
        let failed = |source| PullError::Registry { image: image.clone(), source };
        let name = reference.digest.as_deref().or(reference.tag.as_deref()).unwrap_or("latest");
        // A HEAD is not counted against the rate limits of the big registries.
        let known = match &reference.digest {
            Some(digest) => Some(digest.clone()),
            None => {
                let mut ask = Ask::get(image.clone());
                ask.method = http::Method::HEAD;
                ask.headers = accepted();
                let answer = repository.ask(&format!("manifests/{name}"), ask).await.map_err(failed)?;
                content_digest(&answer)
            }
        };
        if let Some(digest) = &known
            && let Some(present) = self.present(reference, digest, options).await?
        {
            return Ok(Lookup::Present(Box::new(present)));
        }
        let (mut bytes, mut kind, server_digest) =
            self.document(&repository, name, &image).await.map_err(failed)?;
        let digest = sha256(&bytes);
        // The tag may have moved since; the digest that was asked for may not.
        for expected in reference.digest.iter().chain(&server_digest) {
            check_digest("the manifest", expected, &digest)?;
        }
        let unusable = |source| PullError::Manifest { image: image.clone(), source };
        let mut documents = Vec::new();
        for _ in 0..=DEPTH {
            let document = manifest::parse(&bytes, &kind).map_err(unusable)?;
            documents.push(std::mem::take(&mut bytes));
            match document {
                Document::Image(manifest) => {
                    let limits = &self.http.limits;
                    manifest.check(limits.layers, limits.total).map_err(unusable)?;
                    let found = Resolved { repository, digest, manifest, documents };
                    return Ok(Lookup::Found(Box::new(found)));
                }
                Document::Index(inner) => {
                    let chosen = manifest::choose(&inner, architecture()).map_err(unusable)?;
                    let expected = chosen.digest.clone();
                    (bytes, kind, _) = self.document(&repository, &expected, &image).await.map_err(failed)?;
                    check_digest("a manifest of the index", &expected, &sha256(&bytes))?;
                }
            }
        }
        Err(unusable(ManifestError::Json("indexes are nested too deeply".into())))
    }

    async fn document(
        &self,
        repository: &Repository,
        name: &str,
        image: &str,
    ) -> std::result::Result<(Vec<u8>, String, Option<String>), RegistryError> {
        let ask = Ask { headers: accepted(), ..Ask::get(image) };
        let answer = repository.ask(&format!("manifests/{name}"), ask).await?;
        let digest = content_digest(&answer);
        let kind = answer.headers.get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        let bytes = answer.body.all(&self.http, self.http.limits.manifest).await?;
        Ok((bytes, kind, digest))
    }

    /// The image with this manifest, if it is here in full; it gets the tag.
    async fn present(
        &self,
        reference: &Reference,
        digest: &str,
        options: PullOptions,
    ) -> Result<Option<ImageRecord>> {
        let name = format!("{}@{digest}", reference.name);
        let (store, tag) = (self.store.clone(), reference.tagged());
        blocking(move || {
            let lock = store.lock(true)?;
            let found = store.list()?.into_iter().find(|image| image.digests.contains(&name));
            let whole = |image: &ImageRecord| {
                image.layers.iter().all(|layer| store.has_layer(layer))
                    && (!options.keep_layers || store.kept(image).is_some())
            };
            let Some(mut image) = found.filter(whole) else { return Ok(None) };
            image.tags.extend(tag);
            Ok(Some(store.add(image, &lock)?))
        })
        .await
    }

    /// Fetches and unpacks what is missing of an image, and records it.
    async fn fetch(
        &self,
        reference: &Reference,
        found: Resolved,
        options: PullOptions,
    ) -> Result<ImageRecord> {
        let Resolved { repository, digest, manifest, documents } = found;
        let config_bytes = self.config(&repository, &manifest).await?;
        let config = read_config(&config_bytes, &manifest)?;
        let mut names: Vec<String> = Vec::new();
        for diff_id in &config.rootfs.diff_ids {
            names.push(layer_name(names.last().map(String::as_str), diff_id));
        }
        let work = {
            let (store, names) = (self.store.clone(), names.clone());
            Arc::new(blocking(move || Ok(store.workspace(&names)?)).await?)
        };
        info!(image = %reference, layers = names.len(), "pulling image");
        let mut jobs = Vec::new();
        let mut downloads = Vec::new();
        for (index, layer) in manifest.layers.iter().enumerate() {
            let name = &names[index];
            let fetch = !self.store.has_layer(name)
                || (options.keep_layers && !self.store.blob_path(&layer.digest).exists());
            if !fetch {
                continue;
            }
            let (writer, reader) = growing::file(&work.path().join(format!("{index}.blob")))
                .map_err(ImageError::disk("create", work.path()))?;
            downloads.push((layer.clone(), writer));
            jobs.push(Job {
                reader,
                digest: layer.digest.clone(),
                diff_id: config.rootfs.diff_ids[index].clone(),
                name: name.clone(),
                below: names[..index].iter().rev().cloned().collect(),
            });
        }
        let unpacking = {
            let (store, work) = (self.store.clone(), work.clone());
            let unpacked = tokio::task::spawn_blocking(move || unpack_all(&store, work.path(), jobs));
            async { unpacked.await.unwrap_or(Err(PullError::GivenUp)) } // it panicked, or we are stopping
        };
        let fetching = futures::stream::iter(downloads)
            .map(|(layer, writer)| self.layer(&repository, layer, writer))
            .buffer_unordered(self.http.limits.parallel.max(1))
            .try_collect::<Vec<()>>();
        // The unpacker hears of a failed download only that it ended: the download's own error says more.
        let (fetched, unpacked) = futures::future::join(fetching, unpacking).await;
        match (fetched, unpacked) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(_), Ok(sizes)) => {
                let image = Finished {
                    reference: reference.clone(),
                    digest,
                    manifest,
                    documents,
                    config,
                    config_bytes,
                    names,
                };
                let store = self.store.clone();
                let image = blocking(move || image.record(&store, &work, &sizes, options)).await?;
                info!(image = %reference, id = image.id, "pulled image");
                Ok(image)
            }
        }
    }

    async fn config(&self, repository: &Repository, manifest: &Manifest) -> Result<Vec<u8>> {
        let digest = &manifest.config.digest;
        let what = format!("configuration {digest}");
        let failed = |source| PullError::Fetch { what: what.clone(), source };
        let answer = repository.ask(&format!("blobs/{digest}"), Ask::get(&*what)).await.map_err(failed)?;
        let bytes = answer.body.all(&self.http, self.http.limits.config).await;
        let bytes = bytes.map_err(|error| failed(error.into()))?;
        check_digest("the configuration", digest, &sha256(&bytes))?;
        Ok(bytes)
    }

    /// Fetches a layer into its file, going on where a connection broke.
    async fn layer(
        &self,
        repository: &Repository,
        layer: Descriptor,
        mut writer: growing::Writer,
    ) -> Result<()> {
        let what = format!("layer {}", layer.digest);
        let mut context = Context::new(&SHA256);
        let mut tries = 0;
        loop {
            let before = writer.written();
            let attempt = self.part(repository, &layer, &what, &mut writer, &mut context).await;
            let source = match attempt {
                Ok(()) => break,
                Err(PullError::Fetch { source, .. }) if source.is_passing() => source,
                Err(error) => return Err(error),
            };
            // What brought something may try as often as it likes.
            tries = if writer.written() > before + (1 << 20) { 1 } else { tries + 1 };
            if tries > self.http.limits.retries {
                return Err(PullError::Fetch { what, source });
            }
            debug!(layer = layer.digest, error = %telemetry::chain(&source), "trying again");
            tokio::time::sleep(self.http.limits.pause * 2_u32.saturating_pow(tries - 1).min(64)).await;
        }
        check_digest("a layer", &layer.digest, &format_digest(context.finish().as_ref()))?;
        writer.finish();
        Ok(())
    }

    async fn part(
        &self,
        repository: &Repository,
        layer: &Descriptor,
        what: &str,
        writer: &mut growing::Writer,
        context: &mut Context,
    ) -> Result<()> {
        let failed = |source| PullError::Fetch { what: what.to_owned(), source };
        let expected = layer.bytes();
        let start = writer.written();
        if start == expected && expected > 0 {
            return Ok(());
        }
        let ask = Ask::get(what).from_byte(start);
        let mut answer = repository.ask(&format!("blobs/{}", layer.digest), ask).await.map_err(failed)?;
        // Who does not know ranges starts again: what is here already is skipped.
        let mut skip = if answer.status == http::StatusCode::PARTIAL_CONTENT { 0 } else { start };
        let mut batch: Vec<bytes::Bytes> = Vec::new();
        let mut batched: usize = 0;
        loop {
            let next = answer.body.next(&self.http).await;
            let (bytes, end) = match next {
                Ok(Some(bytes)) => (bytes, None),
                Ok(None) => (bytes::Bytes::new(), Some(Ok(()))),
                Err(error) => (bytes::Bytes::new(), Some(Err(failed(error.into())))),
            };
            let skipped = skip.min(bytes.len() as u64);
            skip -= skipped;
            let bytes = bytes.slice(skipped as usize..);
            let total = writer.written() + (batched + bytes.len()) as u64;
            if total > expected {
                return Err(PullError::Size { what: what.to_owned(), expected, actual: total });
            }
            batched += bytes.len();
            batch.push(bytes);
            if batched >= BATCH || (end.is_some() && batched > 0) {
                batched = 0;
                for bytes in &batch {
                    context.update(bytes);
                }
                writer
                    .write(std::mem::take(&mut batch))
                    .await
                    .map_err(ImageError::disk("write", Path::new(what)))?;
            }
            match end {
                None => {}
                Some(Err(error)) => return Err(error),
                Some(Ok(())) if writer.written() == expected => return Ok(()),
                Some(Ok(())) => {
                    let actual = writer.written();
                    return Err(PullError::Size { what: what.to_owned(), expected, actual });
                }
            }
        }
    }
}

/// Runs what waits for locks and disks where it holds nobody up.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PullError::GivenUp))
}

/// Bytes of a layer that are written at once.
const BATCH: usize = 1 << 20;

/// One layer to unpack.
struct Job {
    reader: Growing,
    digest: String,
    diff_id: String,
    name: String,
    /// The layers under it, topmost first.
    below: Vec<String>,
}

/// Unpacks layers one after the other, as they arrive; gives their sizes. Each is a directory `<name>` of the workspace.
fn unpack_all(store: &Store, work: &Path, jobs: Vec<Job>) -> Result<HashMap<String, u64>> {
    let mut sizes = HashMap::new();
    for mut job in jobs {
        if store.has_layer(&job.name) || sizes.contains_key(&job.name) {
            // Fetched to be kept only; it is whole when its reader ends.
            job.reader.wait().map_err(|source| PullError::Unpack { digest: job.digest, source })?;
            continue;
        }
        let place = |name: &String| match sizes.contains_key(name) {
            true => work.join(name),
            false => store.layers().join(name),
        };
        let below: Vec<PathBuf> = job.below.iter().map(place).collect();
        let target = work.join(&job.name);
        super::store::make_directory(&target, 0o755).map_err(ImageError::disk("create", &target))?;
        let broken = |source| PullError::Unpack { digest: job.digest.clone(), source };
        let mut hashed = Hashed::new(decompress(&mut job.reader).map_err(broken)?);
        let size = unpack::unpack(&mut hashed, &target, &below).map_err(broken)?;
        let actual = hashed.finish();
        check_digest("an unpacked layer", &job.diff_id, &actual)?;
        // The compressed form may have more at its end than its content needs.
        job.reader.wait().map_err(|source| PullError::Unpack { digest: job.digest, source })?;
        sizes.insert(job.name, size);
    }
    Ok(sizes)
}

fn check_digest(what: &'static str, expected: &str, actual: &str) -> Result<()> {
    match expected == actual {
        true => Ok(()),
        false => Err(PullError::Digest { what, expected: expected.to_owned(), actual: actual.to_owned() }),
    }
}

fn content_digest(answer: &Answer) -> Option<String> {
    let value = answer.headers.get("docker-content-digest")?.to_str().ok()?;
    super::reference::is_digest(value).then(|| value.to_owned())
}

fn read_config(bytes: &[u8], manifest: &Manifest) -> Result<ImageConfig> {
    let bad = |reason: String| PullError::Config(reason);
    let config: ImageConfig = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
    let (said, listed) = (config.rootfs.diff_ids.len(), manifest.layers.len());
    if said != listed {
        return Err(bad(format!("it speaks of {said} layers, the manifest of {listed}")));
    }
    if !config.rootfs.diff_ids.iter().all(|id| super::reference::is_digest(id)) {
        return Err(bad("a layer in it has no digest".into()));
    }
    if !config.os.is_empty() && config.os != "linux" {
        return Err(bad(format!("it is for {:?}", config.os)));
    }
    if !config.architecture.is_empty() && config.architecture != architecture() {
        return Err(bad(format!("it is for {:?}, this machine is {}", config.architecture, architecture())));
    }
    Ok(config)
}

/// An image of which everything is here.
struct Finished {
    reference: Reference,
    digest: String,
    manifest: Manifest,
    documents: Vec<Vec<u8>>,
    config: ImageConfig,
    config_bytes: Vec<u8>,
    names: Vec<String>,
}

impl Finished {
    fn record(
        self,
        store: &Store,
        work: &super::store::Workspace,
        sizes: &HashMap<String, u64>,
        options: PullOptions,
    ) -> Result<ImageRecord> {
        let lock = store.lock(true)?;
        let mut size = 0;
        for (index, name) in self.names.iter().enumerate() {
            let unpacked = work.path().join(name);
            if unpacked.is_dir() {
                store.put_layer(&unpacked, name)?;
            }
            size += match sizes.get(name) {
                Some(size) => *size,
                None => super::store::disk_use(&store.layers().join(name)).bytes,
            };
            let blob = work.path().join(format!("{index}.blob"));
            if options.keep_layers && blob.exists() {
                let place = store.blob_path(&self.manifest.layers[index].digest);
                fs::rename(&blob, &place).map_err(ImageError::disk("create", &place))?;
            }
        }
        store.put_blob(&self.config_bytes)?;
        for document in &self.documents {
            store.put_blob(document)?;
        }
        let image = ImageRecord {
            id: self.manifest.config.digest.clone(),
            tags: self.reference.tagged().into_iter().collect(),
            digests: BTreeSet::from([format!("{}@{}", self.reference.name, self.digest)]),
            size,
            layers: self.names,
            config: self.config.config,
            pinned: false,
        };
        Ok(store.add(image, &lock)?)
    }
}
