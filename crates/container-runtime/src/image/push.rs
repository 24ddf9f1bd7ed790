//! Images to registries: blobs that are missing there, then the manifest.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use cri::{AuthConfig, Keyring};
use futures::{StreamExt, TryStreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Method, Uri};
use thiserror::Error;

use super::Reference;
use super::bundle::Bundle;
use super::registry::auth::encode;
use super::registry::{Ask, Http, Limits, Payload, Registries, RegistryError, Repository, resolve};

/// Why an image could not be pushed.
#[derive(Debug, Error)]
pub enum PushError {
    #[error("cannot push {what} to {image}")]
    Registry {
        image: String,
        what: String,
        #[source]
        source: RegistryError,
    },
    #[error("{image}: the registry says nowhere to send a blob to")]
    NoPlace { image: String },
    #[error("{image} names a digest, but what is pushed has {digest}")]
    Digest { image: String, digest: String },
    #[error("cannot read {path}")]
    Read {
        path: std::path::PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Pushes a bundle under a name.
pub async fn push(
    bundle: &Bundle,
    reference: &Reference,
    registries: &Registries,
    limits: Limits,
    auth: Option<AuthConfig>,
    keyring: &Keyring,
) -> Result<String, PushError> {
    let image = reference.to_string();
    let failed = |what: &str| {
        let (image, what) = (image.clone(), what.to_owned());
        move |source| PushError::Registry { image, what, source }
    };
    if reference.digest.as_ref().is_some_and(|digest| *digest != bundle.digest) {
        return Err(PushError::Digest { image, digest: bundle.digest.clone() });
    }
    let sources = registries.sources(reference).map_err(|error| failed("it")(error.into()))?;
    // What is written goes to the registry itself, never to a mirror, which comes before it.
    let Some(source) = sources.last() else { return Err(PushError::NoPlace { image }) };
    let known = keyring.lookup(&format!("{}/{}", source.host, source.repository));
    let auth = auth.or_else(|| known.first().map(|auth| (*auth).clone()));
    let http = Arc::new(Http::new(registries.certificates.clone(), limits));
    let parallel = http.limits.parallel.max(1);
    let repository = Repository::new(http, source, auth, "pull,push");
    let config = (bundle.config_descriptor.digest.clone(), Payload::Bytes(bundle.config.clone().into()));
    let mut blobs = vec![config];
    for layer in &bundle.layers {
        blobs.push((layer.descriptor.digest.clone(), Payload::File(layer.path.clone())));
    }
    futures::stream::iter(blobs)
        .map(|(digest, payload)| {
            let repository = &repository;
            let image = &image;
            let failed = failed(&format!("blob {digest}"));
            async move { upload(repository, &digest, payload, image).await.map_err(|error| error.or(failed)) }
        })
        .buffer_unordered(parallel)
        .try_collect::<Vec<()>>()
        .await?;
    let name = reference.digest.clone().or(reference.tag.clone()).unwrap_or_else(|| bundle.digest.clone());
    let mut headers = HeaderMap::new();
    if let Ok(kind) = HeaderValue::from_str(&bundle.media_type) {
        headers.insert(CONTENT_TYPE, kind);
    }
    let body = Payload::Bytes(Bytes::from(bundle.manifest.clone()));
    let ask = Ask { method: Method::PUT, headers, body, ..Ask::get("the manifest") };
    repository.ask(&format!("manifests/{name}"), ask).await.map_err(failed("the manifest"))?;
    Ok(bundle.digest.clone())
}

enum Failure {
    Registry(RegistryError),
    Other(PushError),
}

impl Failure {
    fn or(self, named: impl FnOnce(RegistryError) -> PushError) -> PushError {
        match self {
            Self::Registry(error) => named(error),
            Self::Other(error) => error,
        }
    }
}

async fn upload(repository: &Repository, digest: &str, payload: Payload, image: &str) -> Result<(), Failure> {
    let head = Ask { method: Method::HEAD, ..Ask::get(format!("blob {digest}")) };
    match repository.ask(&format!("blobs/{digest}"), head).await {
        Ok(_) => return Ok(()),
        Err(RegistryError::NotFound { .. }) => {}
        Err(error) => return Err(Failure::Registry(error)),
    }
    let start = Ask { method: Method::POST, ..Ask::get("an upload") };
    let answer = repository.ask("blobs/uploads/", start).await.map_err(Failure::Registry)?;
    let no_place = || Failure::Other(PushError::NoPlace { image: image.to_owned() });
    let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(no_place)?;
    let home: Uri = repository.home().parse().map_err(|_| no_place())?;
    let place = resolve(&home, location).ok_or_else(no_place)?.to_string();
    let joint = if place.contains('?') { '&' } else { '?' };
    let size = payload.size().map_err(|source| {
        let path = payload.path();
        Failure::Other(PushError::Read { path, source })
    })?;
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    let put = Ask { method: Method::PUT, headers, body: payload, ..Ask::get(format!("blob {digest}")) };
    repository
        .ask_url(&format!("{place}{joint}digest={}", encode(digest)), put)
        .await
        .map(drop)
        .map_err(Failure::Registry)
}
