//! The verbs.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::TryStreamExt;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use ring::digest::{Context, SHA256};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio_util::io::ReaderStream;

use crate::auth::{self, Access, Auth, Verdict};
use crate::error::Refusal;
use crate::route::{self, Digest, Reference, Route, parameter};
use crate::store::{Manifest, Store, subject};

/// An answer's body.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;
type Answer = Result<Response<Body>, Refusal>;

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const UPLOAD: HeaderName = HeaderName::from_static("docker-upload-uuid");
/// Repositories of one page of the catalog, unless asked otherwise, and at most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// What callers may cost.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a manifest.
    pub manifest: usize,
    /// Bytes of a blob.
    pub blob: u64,
    /// Uploads at once.
    pub uploads: usize,
    /// How long an upload that nobody goes on with is kept.
    pub idle: Duration,
    /// How long a caller may send nothing.
    pub silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            manifest: 4 << 20,
            blob: 20 << 30,
            uploads: 1000,
            idle: Duration::from_secs(3600),
            silence: Duration::from_secs(60),
        }
    }
}

struct Upload {
    name: String,
    size: u64,
    hash: Context,
}

struct Session {
    touched: Instant,
    upload: Arc<tokio::sync::Mutex<Upload>>,
}

/// A registry.
pub struct Registry {
    store: Arc<Store>,
    auth: Arc<Auth>,
    limits: Limits,
    /// Nothing may be changed.
    read_only: bool,
    /// What the caller is told to speak: https or http.
    scheme: &'static str,
    uploads: Mutex<HashMap<String, Session>>,
}

impl Registry {
    pub fn new(store: Store, auth: Auth, limits: Limits, read_only: bool, scheme: &'static str) -> Self {
        let (store, auth) = (Arc::new(store), Arc::new(auth));
        Self { store, auth, limits, read_only, scheme, uploads: Mutex::default() }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let head = request.method() == Method::HEAD;
        let mut answer = match self.answer(request).await {
            Ok(answer) => answer,
            Err(refusal) => {
                let mut answer = Response::new(full(refusal.body()));
                *answer.status_mut() = refusal.status;
                let json = HeaderValue::from_static("application/json; charset=utf-8");
                answer.headers_mut().insert(header::CONTENT_TYPE, json);
                if let Some(how) = refusal.detail["challenge"].as_str() {
                    set(answer.headers_mut(), header::WWW_AUTHENTICATE, how);
                    *answer.body_mut() = full(Refusal { detail: Value::Null, ..refusal }.body());
                }
                answer
            }
        };
        let version = HeaderName::from_static("docker-distribution-api-version");
        answer.headers_mut().insert(version, HeaderValue::from_static("registry/2.0"));
        if head {
            *answer.body_mut() = full(Vec::new());
        }
        answer
    }

    async fn answer<B>(&self, request: Request<B>) -> Answer
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let (method, query) = (parts.method.clone(), parts.uri.query());
        let route = match route::route(parts.uri.path()) {
            Some(route) => route?,
            None => return Err(Refusal::new(StatusCode::NOT_FOUND, "UNSUPPORTED", "404 page not found")),
        };
        if route == Route::Token {
            return self.token(&parts.headers, query).await;
        }
        self.admit(&parts.headers, route.access(&method)).await?;
        let changes = !matches!(method, Method::GET | Method::HEAD);
        if changes && self.read_only {
            return Err(Refusal::unsupported());
        }
        let read = matches!(method, Method::GET | Method::HEAD);
        match (route, &method) {
            (Route::Base, _) if read => Ok(json_answer(&json!({}))),
            (Route::Catalog, _) if read => self.catalog(query).await,
            (Route::Tags { name }, _) if read => self.tags(&name, query).await,
            (Route::Referrers { name, digest }, _) if read => self.referrers(name, digest, query).await,
            (Route::Manifest { name, reference }, _) if read => {
                self.get_manifest(name, reference, &parts.headers).await
            }
            (Route::Manifest { name, reference }, &Method::PUT) => {
                self.put_manifest(name, reference, &parts.headers, body).await
            }
            (Route::Manifest { name, reference }, &Method::DELETE) => {
                let shown = reference.to_string();
                let gone =
                    self.on_disk("remove", move |store| store.delete_manifest(&name, &reference)).await?;
                if gone { accepted() } else { Err(Refusal::unknown_manifest(&shown)) }
            }
            (Route::Blob { name, digest }, _) if read => {
                self.get_blob(&name, &digest, &parts.headers, method == Method::HEAD).await
            }
            (Route::Blob { name, digest }, &Method::DELETE) => {
                let shown = digest.to_string();
                let gone = self.on_disk("remove", move |store| store.delete_blob(&name, &digest)).await?;
                if gone { accepted() } else { Err(Refusal::unknown_blob(&shown)) }
            }
            (Route::Uploads { name }, &Method::POST) => self.start(name, query, &parts.headers, body).await,
            (Route::Upload { name, id }, &Method::PATCH) => {
                let upload = self.upload(&name, &id)?;
                let mut upload = upload.lock().await;
                self.append(&id, &mut upload, &parts.headers, body).await?;
                Ok(progress(StatusCode::ACCEPTED, &name, &id, upload.size))
            }
            (Route::Upload { name, id }, &Method::PUT) => {
                let digest = wanted_digest(query)?;
                self.finish(&name, &id, &digest, &parts.headers, body).await
            }
            (Route::Upload { name, id }, _) if read => {
                let upload = self.upload(&name, &id)?;
                let size = upload.lock().await.size;
                Ok(progress(StatusCode::NO_CONTENT, &name, &id, size))
            }
            (Route::Upload { name, id }, &Method::DELETE) => {
                self.upload(&name, &id)?;
                self.forget(&id);
                Ok(empty(StatusCode::NO_CONTENT))
            }
            _ => Err(Refusal::unsupported()),
        }
    }

    /// Disk work away from the tasks that serve.
    async fn on_disk<T: Send + 'static>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let store = self.store.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(done) => done.map_err(|error| Refusal::disk(doing, &error)),
            Err(_) => Err(Refusal::disk(doing, &io::Error::other("the work was given up"))),
        }
    }

    async fn judge(&self, headers: &HeaderMap, wanted: Option<(&str, &'static str)>) -> Verdict {
        if matches!(*self.auth, Auth::Open) {
            return Verdict::Allowed;
        }
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let host = text(header::HOST).unwrap_or_else(|| "localhost".to_owned());
        let (own, shown) = (format!("{}://{host}", self.scheme), text(header::AUTHORIZATION));
        let wanted = wanted.map(|(name, action)| (name.to_owned(), action));
        let auth = self.auth.clone();
        // Checking a password is slow.
        let judged = tokio::task::spawn_blocking(move || {
            let wanted = wanted.as_ref().map(|(name, action)| (name.as_str(), *action));
            auth.judge(shown.as_deref(), wanted, &own, now())
        });
        judged.await.unwrap_or(Verdict::Challenge { how: String::new(), denied: true })
    }

    async fn admit(&self, headers: &HeaderMap, wanted: Option<(&str, &'static str)>) -> Result<(), Refusal> {
        match self.judge(headers, wanted).await {
            Verdict::Allowed => Ok(()),
            Verdict::Challenge { how, .. } => {
                let status = StatusCode::UNAUTHORIZED;
                Err(Refusal::new(status, "UNAUTHORIZED", "authentication required")
                    .with(json!({"challenge": how})))
            }
        }
    }

    /// A token for whoever knows a password.
    async fn token(&self, headers: &HeaderMap, query: Option<&str>) -> Answer {
        let Auth::Token(..) = *self.auth else {
            return Err(Refusal::new(StatusCode::NOT_FOUND, "UNSUPPORTED", "404 page not found"));
        };
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let denied = || {
            Refusal::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required")
                .with(json!({"challenge": "Basic realm=\"Registry Realm\""}))
        };
        let (user, password) = auth::basic(shown).ok_or_else(denied)?;
        let access: Vec<Access> = auth::scopes(query);
        let auth = self.auth.clone();
        let token = tokio::task::spawn_blocking(move || match &*auth {
            Auth::Token(users, signer) if users.check(&user, &password) => {
                Some(signer.issue(&user, access, now()))
            }
            _ => None,
        });
        let token = token.await.ok().flatten().ok_or_else(denied)?;
        Ok(json_answer(&json!({"token": token, "access_token": token, "expires_in": 300})))
    }

    async fn catalog(&self, query: Option<&str>) -> Answer {
        let all = self.on_disk("list", |store| store.catalog()).await?;
        let (page, next) = paged(all, query, Some(PAGE))?;
        let mut answer = json_answer(&json!({"repositories": page}));
        if let Some((last, count)) = next {
            set(answer.headers_mut(), header::LINK, &link("/v2/_catalog", &last, count));
        }
        Ok(answer)
    }

    async fn tags(&self, name: &str, query: Option<&str>) -> Answer {
        let own = name.to_owned();
        let all = self.on_disk("list", move |store| match store.has_repository(&own) {
            true => store.tags(&own).map(Some),
            false => Ok(None),
        });
        let all = all.await?.ok_or_else(|| Refusal::unknown_name(name))?;
        let (page, next) = paged(all, query, None)?;
        let mut answer = json_answer(&json!({"name": name, "tags": page}));
        if let Some((last, count)) = next {
            set(answer.headers_mut(), header::LINK, &link(&format!("/v2/{name}/tags/list"), &last, count));
        }
        Ok(answer)
    }

    async fn referrers(&self, name: String, digest: Digest, query: Option<&str>) -> Answer {
        let found = self.on_disk("list", move |store| store.referrers(&name, &digest)).await?;
        let wanted = parameter(query, "artifactType");
        let manifests: Vec<Value> = found
            .iter()
            .map(|manifest| {
                let value: Value = serde_json::from_slice(&manifest.bytes).unwrap_or_default();
                let kind = value["artifactType"].as_str().or(value["config"]["mediaType"].as_str());
                json!({
                    "mediaType": manifest.media_type, "digest": manifest.digest.as_str(),
                    "size": manifest.bytes.len(), "artifactType": kind, "annotations": value["annotations"],
                })
            })
            .filter(|one| wanted.as_deref().is_none_or(|wanted| one["artifactType"] == wanted))
            .collect();
        let kind = "application/vnd.oci.image.index.v1+json";
        let mut answer = json_answer(&json!({"schemaVersion": 2, "mediaType": kind, "manifests": manifests}));
        set(answer.headers_mut(), header::CONTENT_TYPE, kind);
        if wanted.is_some() {
            set(answer.headers_mut(), HeaderName::from_static("oci-filters-applied"), "artifactType");
        }
        Ok(answer)
    }

    async fn get_manifest(&self, name: String, reference: Reference, headers: &HeaderMap) -> Answer {
        let shown = reference.to_string();
        let found = self.on_disk("read", move |store| store.manifest(&name, &reference)).await?;
        let manifest = found.ok_or_else(|| Refusal::unknown_manifest(&shown))?;
        let mut answer = if is_known(headers, &manifest.digest) {
            empty(StatusCode::NOT_MODIFIED)
        } else {
            let size = manifest.bytes.len();
            let mut answer = Response::new(full(manifest.bytes));
            set(answer.headers_mut(), header::CONTENT_TYPE, &manifest.media_type);
            set(answer.headers_mut(), header::CONTENT_LENGTH, &size.to_string());
            answer
        };
        named(answer.headers_mut(), &manifest.digest);
        Ok(answer)
    }

    async fn put_manifest<B>(
        &self,
        name: String,
        reference: Reference,
        headers: &HeaderMap,
        body: B,
    ) -> Answer
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let bytes = self.small(body).await?;
        let invalid = |reason: String| {
            Refusal::new(StatusCode::BAD_REQUEST, "MANIFEST_INVALID", "manifest invalid").with(json!(reason))
        };
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
        if value["schemaVersion"] != 2 {
            return Err(invalid("schemaVersion must be 2".to_owned()));
        }
        let sent = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let own = value["mediaType"].as_str().unwrap_or_default();
        let media_type =
            if sent.is_empty() { own } else { sent.split(';').next().unwrap_or_default().trim() };
        if media_type.is_empty() {
            return Err(invalid("neither Content-Type nor mediaType says what it is".to_owned()));
        }
        if !own.is_empty() && own != media_type {
            return Err(invalid(format!("it says that it is {own}, and was sent as {media_type}")));
        }
        let digest = Digest::of(&bytes);
        let tag = match &reference {
            Reference::Digest(wanted) if *wanted != digest => {
                return Err(Refusal::digest(format!("the manifest has {digest}")));
            }
            Reference::Digest(_) => None,
            Reference::Tag(tag) => Some(tag.clone()),
        };
        let about = subject(&bytes);
        let manifest = Manifest { digest: digest.clone(), media_type: media_type.to_owned(), bytes };
        let own = name.clone();
        let missing = self.on_disk("write", move |store| {
            let missing = missing(store, &own, &value)?;
            if missing.is_empty() {
                store.put_manifest(&own, &manifest, tag.as_deref())?;
            }
            Ok(missing)
        });
        let missing = missing.await?;
        if !missing.is_empty() {
            let status = StatusCode::BAD_REQUEST;
            return Err(Refusal::new(status, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry")
                .with(json!({"digest": missing})));
        }
        let mut answer = empty(StatusCode::CREATED);
        set(answer.headers_mut(), header::LOCATION, &format!("/v2/{name}/manifests/{digest}"));
        set(answer.headers_mut(), DIGEST, digest.as_str());
        if let Some(about) = about {
            set(answer.headers_mut(), HeaderName::from_static("oci-subject"), about.as_str());
        }
        Ok(answer)
    }

    async fn small<B>(&self, body: B) -> Result<Vec<u8>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let mut bytes = Vec::new();
        let mut body = body;
        while let Some(chunk) = self.chunk(&mut body).await? {
            if bytes.len() + chunk.len() > self.limits.manifest {
                let status = StatusCode::PAYLOAD_TOO_LARGE;
                return Err(Refusal::new(status, "SIZE_INVALID", "the manifest is too large"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The next bytes of a body; a caller that stops sending is not waited for.
    async fn chunk<B>(&self, body: &mut B) -> Result<Option<Bytes>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        loop {
            let broken = |reason: String| {
                Refusal::new(StatusCode::BAD_REQUEST, "BLOB_UPLOAD_INVALID", "blob upload invalid")
                    .with(json!(reason))
            };
            let frame = tokio::time::timeout(self.limits.silence, body.frame()).await;
            match frame.map_err(|_| broken("nothing was sent for too long".to_owned()))? {
                None => return Ok(None),
                Some(Err(error)) => return Err(broken(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    async fn get_blob(&self, name: &str, digest: &Digest, headers: &HeaderMap, head: bool) -> Answer {
        if !self.store.has_blob(name, digest) {
            return Err(Refusal::unknown_blob(digest.as_str()));
        }
        if is_known(headers, digest) {
            let mut answer = empty(StatusCode::NOT_MODIFIED);
            named(answer.headers_mut(), digest);
            return Ok(answer);
        }
        let failed = |error: io::Error| Refusal::disk("read", &error);
        let mut file = tokio::fs::File::open(self.store.blob_path(digest)).await.map_err(failed)?;
        let size = file.metadata().await.map_err(failed)?.len();
        let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
        let (status, start, length) = match range.map(|text| wanted_range(text, size)) {
            None | Some(Range::Unknown) => (StatusCode::OK, 0, size),
            Some(Range::Part { start, length }) => (StatusCode::PARTIAL_CONTENT, start, length),
            Some(Range::Outside) => {
                let mut answer = empty(StatusCode::RANGE_NOT_SATISFIABLE);
                set(answer.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
                return Ok(answer);
            }
        };
        let mut answer = if head {
            empty(status)
        } else {
            file.seek(io::SeekFrom::Start(start)).await.map_err(failed)?;
            let stream = ReaderStream::with_capacity(file.take(length), 256 << 10);
            let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(stream.map_ok(Frame::data))));
            *answer.status_mut() = status;
            answer
        };
        let out = answer.headers_mut();
        named(out, digest);
        set(out, header::CONTENT_TYPE, "application/octet-stream");
        set(out, header::CONTENT_LENGTH, &length.to_string());
        set(out, header::ACCEPT_RANGES, "bytes");
        set(out, header::CACHE_CONTROL, "max-age=31536000");
        if status == StatusCode::PARTIAL_CONTENT {
            let last = start + length.saturating_sub(1);
            set(out, header::CONTENT_RANGE, &format!("bytes {start}-{last}/{size}"));
        }
        Ok(answer)
    }

    async fn start<B>(&self, name: String, query: Option<&str>, headers: &HeaderMap, body: B) -> Answer
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        if let Some(text) = parameter(query, "mount") {
            let digest =
                Digest::parse(&text).ok_or_else(|| Refusal::digest("it must be sha256: and 64 digits"))?;
            let from = parameter(query, "from").filter(|from| route::is_name(from));
            if let Some(from) = from
                && self.store.has_blob(&from, &digest)
                && self.judge(headers, Some((&from, "pull"))).await == Verdict::Allowed
            {
                let (own, linked) = (name.clone(), digest.clone());
                self.on_disk("write", move |store| store.link_blob(&own, &linked)).await?;
                return Ok(created(&name, &digest));
            }
        }
        let id = Store::new_id().map_err(|error| Refusal::disk("begin", &error))?;
        {
            let Ok(mut uploads) = self.uploads.lock() else { return Err(Refusal::unsupported()) };
            let idle = self.limits.idle;
            let old: Vec<String> = uploads
                .iter()
                .filter(|(_, session)| session.touched.elapsed() > idle)
                .map(|(id, _)| id.clone())
                .collect();
            for id in old {
                uploads.remove(&id);
                let _ = std::fs::remove_file(self.store.upload_path(&id)); // or the next start does
            }
            if uploads.len() >= self.limits.uploads {
                let status = StatusCode::TOO_MANY_REQUESTS;
                return Err(Refusal::new(status, "TOOMANYREQUESTS", "too many uploads at once"));
            }
            let upload = Upload { name: name.clone(), size: 0, hash: Context::new(&SHA256) };
            let upload = Arc::new(tokio::sync::Mutex::new(upload));
            uploads.insert(id.clone(), Session { touched: Instant::now(), upload });
        }
        tokio::fs::File::create(self.store.upload_path(&id))
            .await
            .map_err(|error| Refusal::disk("begin", &error))?;
        match parameter(query, "digest") {
            None => Ok(progress(StatusCode::ACCEPTED, &name, &id, 0)),
            Some(_) => {
                let digest = wanted_digest(query).inspect_err(|_| self.forget(&id))?;
                self.finish(&name, &id, &digest, headers, body).await.inspect_err(|_| self.forget(&id))
            }
        }
    }

    /// An upload of this repository.
    fn upload(&self, name: &str, id: &str) -> Result<Arc<tokio::sync::Mutex<Upload>>, Refusal> {
        let mut uploads = self.uploads.lock().map_err(|_| Refusal::unknown_upload())?;
        let session = uploads.get_mut(id).ok_or_else(Refusal::unknown_upload)?;
        session.touched = Instant::now();
        let upload = session.upload.clone();
        // Only held for a moment by those that go on with it; then it is in use, and of the same repository or not ours.
        match upload.try_lock() {
            Ok(inner) if inner.name != name => Err(Refusal::unknown_upload()),
            Ok(_) => Ok(upload.clone()),
            Err(_) => {
                let status = StatusCode::CONFLICT;
                Err(Refusal::new(status, "BLOB_UPLOAD_INVALID", "the upload is being written to"))
            }
        }
    }

    fn forget(&self, id: &str) {
        if let Ok(mut uploads) = self.uploads.lock() {
            uploads.remove(id);
        }
        let _ = std::fs::remove_file(self.store.upload_path(id)); // or the next start does
    }

    /// Adds a body to an upload. What arrived before it broke is kept.
    async fn append<B>(
        &self,
        id: &str,
        upload: &mut Upload,
        headers: &HeaderMap,
        mut body: B,
    ) -> Result<(), Refusal>
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let range = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
        if let Some(range) = range {
            let range = range.trim_start_matches("bytes ");
            let start = range.split('-').next().and_then(|start| start.trim().parse::<u64>().ok());
            if start != Some(upload.size) {
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                return Err(Refusal::new(status, "RANGE_INVALID", "invalid content range")
                    .with(json!({"expected": upload.size})));
            }
        }
        let failed = |error: io::Error| Refusal::disk("write", &error);
        let path = self.store.upload_path(id);
        let mut file = tokio::fs::File::options().append(true).open(path).await.map_err(failed)?;
        let outcome = loop {
            match self.chunk(&mut body).await {
                Ok(None) => break Ok(()),
                Err(refusal) => break Err(refusal),
                Ok(Some(data)) => {
                    if upload.size + data.len() as u64 > self.limits.blob {
                        let status = StatusCode::PAYLOAD_TOO_LARGE;
                        break Err(Refusal::new(status, "SIZE_INVALID", "the blob is too large"));
                    }
                    file.write_all(&data).await.map_err(failed)?;
                    upload.hash.update(&data);
                    upload.size += data.len() as u64;
                }
            }
        };
        file.flush().await.map_err(failed)?;
        outcome
    }

    /// Adds the last body and takes the whole as a blob, if it is what was announced.
    async fn finish<B>(&self, name: &str, id: &str, digest: &Digest, headers: &HeaderMap, body: B) -> Answer
    where
        B: HttpBody<Data = Bytes> + Unpin,
        B::Error: std::fmt::Display,
    {
        let upload = self.upload(name, id)?;
        let mut upload = upload.lock().await;
        self.append(id, &mut upload, headers, body).await?;
        let actual = Digest::finish(upload.hash.clone().finish().as_ref());
        if actual != *digest {
            self.forget(id);
            return Err(Refusal::digest(format!("the content has {actual}")));
        }
        let (own, place, taken) = (name.to_owned(), id.to_owned(), digest.clone());
        self.on_disk("write", move |store| store.take_upload(&own, &place, &taken)).await?;
        self.forget(id);
        Ok(created(name, digest))
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn wanted_digest(query: Option<&str>) -> Result<Digest, Refusal> {
    let text = parameter(query, "digest").unwrap_or_default();
    Digest::parse(&text).ok_or_else(|| Refusal::digest("it must be sha256: and 64 digits"))
}

/// What a manifest names and the repository does not have. Layers that say where else they are need not be here.
fn missing(store: &Store, name: &str, manifest: &Value) -> io::Result<Vec<String>> {
    let mut missing = Vec::new();
    let list = |field: &str| manifest[field].as_array().into_iter().flatten().collect::<Vec<_>>();
    let elsewhere = |one: &&Value| !one["urls"].as_array().is_none_or(Vec::is_empty);
    let mut blobs: Vec<&Value> = list("layers").into_iter().filter(|one| !elsewhere(one)).collect();
    blobs.extend(manifest.get("config"));
    for one in blobs {
        let text = one["digest"].as_str().unwrap_or_default();
        if !Digest::parse(text).is_some_and(|digest| store.has_blob(name, &digest)) {
            missing.push(text.to_owned());
        }
    }
    for one in list("manifests") {
        let text = one["digest"].as_str().unwrap_or_default();
        let found = match Digest::parse(text) {
            Some(digest) => store.manifest(name, &Reference::Digest(digest))?.is_some(),
            None => false,
        };
        if !found {
            missing.push(text.to_owned());
        }
    }
    Ok(missing)
}

/// The page that is asked for, and where the next one begins.
fn paged(
    all: Vec<String>,
    query: Option<&str>,
    usual: Option<usize>,
) -> Result<(Vec<String>, Option<(String, usize)>), Refusal> {
    let asked = match parameter(query, "n") {
        None => usual,
        Some(text) => Some(text.parse::<usize>().map_err(|_| {
            Refusal::new(
                StatusCode::BAD_REQUEST,
                "PAGINATION_NUMBER_INVALID",
                "invalid number of results requested",
            )
            .with(json!({"n": text.chars().take(20).collect::<String>()}))
        })?),
    };
    let last = parameter(query, "last").unwrap_or_default();
    let rest = all.into_iter().filter(|name| *name > last);
    let Some(count) = asked.map(|count| count.min(LARGEST_PAGE)) else { return Ok((rest.collect(), None)) };
    let mut page: Vec<String> = rest.take(count + 1).collect();
    let more = page.len() > count;
    page.truncate(count);
    let next = if more { page.last().cloned().map(|last| (last, count)) } else { None };
    Ok((page, next))
}

fn link(path: &str, last: &str, count: usize) -> String {
    format!("<{path}?last={}&n={count}>; rel=\"next\"", last.replace('/', "%2F"))
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// Not one that is understood: the whole is as good.
    Unknown,
    Part {
        start: u64,
        length: u64,
    },
    Outside,
}

fn wanted_range(text: &str, size: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Unknown;
    };
    let number = |text: &str| text.trim().parse::<u64>();
    let (start, end) = match (first.trim(), last.trim()) {
        ("", count) => match number(count) {
            Ok(0) => return Range::Outside,
            Ok(count) => (size.saturating_sub(count), size),
            Err(_) => return Range::Unknown,
        },
        (start, "") => match number(start) {
            Ok(start) => (start, size),
            Err(_) => return Range::Unknown,
        },
        (start, last) => match (number(start), number(last)) {
            (Ok(start), Ok(last)) if start <= last => (start, last.saturating_add(1).min(size)),
            _ => return Range::Unknown,
        },
    };
    if start >= size { Range::Outside } else { Range::Part { start, length: end - start } }
}

/// Whether the caller has it already.
fn is_known(headers: &HeaderMap, digest: &Digest) -> bool {
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    known.is_some_and(|text| text.split(',').any(|one| one.trim().trim_matches('"') == digest.as_str()))
}

fn full(bytes: Vec<u8>) -> Body {
    UnsyncBoxBody::new(Full::new(Bytes::from(bytes)).map_err(|never| match never {}))
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // What cannot stand in a header was refused before.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn named(headers: &mut HeaderMap, digest: &Digest) {
    set(headers, DIGEST, digest.as_str());
    set(headers, header::ETAG, &format!("\"{digest}\""));
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut answer = Response::new(full(Vec::new()));
    *answer.status_mut() = status;
    answer
}

fn accepted() -> Answer {
    Ok(empty(StatusCode::ACCEPTED))
}

fn json_answer(value: &Value) -> Response<Body> {
    let mut answer = Response::new(full(value.to_string().into_bytes()));
    set(answer.headers_mut(), header::CONTENT_TYPE, "application/json; charset=utf-8");
    answer
}

fn created(name: &str, digest: &Digest) -> Response<Body> {
    let mut answer = empty(StatusCode::CREATED);
    set(answer.headers_mut(), header::LOCATION, &format!("/v2/{name}/blobs/{digest}"));
    set(answer.headers_mut(), DIGEST, digest.as_str());
    answer
}

fn progress(status: StatusCode, name: &str, id: &str, size: u64) -> Response<Body> {
    let mut answer = empty(status);
    let out = answer.headers_mut();
    set(out, header::LOCATION, &format!("/v2/{name}/blobs/uploads/{id}"));
    set(out, header::RANGE, &format!("0-{}", size.saturating_sub(1)));
    set(out, UPLOAD, id);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside() {
        let part = |start, length| Range::Part { start, length };
        assert_eq!(wanted_range("bytes=0-3", 10), part(0, 4));
        assert_eq!(wanted_range("bytes=8-", 10), part(8, 2));
        assert_eq!(wanted_range("bytes=8-99", 10), part(8, 2));
        assert_eq!(wanted_range("bytes=-3", 10), part(7, 3));
        assert_eq!(wanted_range("bytes=-30", 10), part(0, 10));
        assert_eq!(wanted_range("bytes=10-", 10), Range::Outside);
        assert_eq!(wanted_range("bytes=0-18446744073709551615", 10), part(0, 10));
        for text in ["bytes=5-3", "bytes=a-b", "lines=1-2", "bytes=1", "bytes=0-1,4-5"] {
            assert_eq!(wanted_range(text, 10), Range::Unknown, "{text}");
        }
        assert_eq!(wanted_range("bytes=0-0", 0), Range::Outside);
    }
}
