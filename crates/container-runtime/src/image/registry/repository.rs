//! One repository of one registry: requests with credentials, redirects, errors in the registry's words.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cri::AuthConfig;
use futures::{StreamExt, TryStreamExt};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RANGE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use thiserror::Error;

use super::auth::{self, AuthError, Challenge};
use super::http::{Body, Connection, Download, Http, HttpError, Origin};
use super::{ConfigError, Source};

/// Hosts of which blobs may be on a third.
const REDIRECTS: usize = 5;
/// Bytes of a token's answer, or of an error's words.
const SMALL: u64 = 1 << 20;
/// Bytes that are read of a file at once.
const CHUNK: usize = 256 << 10;
/// Bytes of an error's words that are shown.
const SHOWN: usize = 300;

/// Why a registry could not be used.
#[derive(Debug, Error)]
pub enum RegistryError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error("{what}: not found")]
    NotFound { what: String },
    #[error("{server} refuses {what}: {status}{message}")]
    Denied { server: String, what: String, status: StatusCode, message: String },
    #[error("{server} asks to wait: {status}{message}")]
    Busy { server: String, status: StatusCode, message: String },
    #[error("unexpected answer of {server} to {what}: {status}{message}")]
    Status { server: String, what: String, status: StatusCode, message: String },
    #[error("{server} redirects {what} {reason}")]
    Redirect { server: String, what: String, reason: &'static str },
}

impl RegistryError {
    /// Whether another try may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Http(error) => !matches!(
                error,
                HttpError::Url(_) | HttpError::Certificates { .. } | HttpError::TooLarge { .. }
            ),
            Self::Busy { .. } => true,
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }

    /// Whether the registry was not there.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Http(error) => error.is_unreachable(),
            Self::Status { status, .. } => status.is_server_error(),
            _ => false,
        }
    }
}

type Result<T> = std::result::Result<T, RegistryError>;

/// An answer whose body is still to be read.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Download,
    pub server: String,
}

/// What a request carries; it can be sent again.
#[derive(Clone)]
pub enum Payload {
    Bytes(Bytes),
    File(PathBuf),
}

impl Payload {
    pub fn size(&self) -> io::Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::File(path) => Ok(std::fs::metadata(path)?.len()),
        }
    }

    /// Where it is, for errors.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Bytes(_) => PathBuf::new(),
            Self::File(path) => path.clone(),
        }
    }

    fn body(&self) -> Body {
        match self {
            Self::Bytes(bytes) => body(bytes.clone()),
            Self::File(path) => file_body(path.clone()),
        }
    }
}

/// A file, read as it is sent.
fn file_body(path: PathBuf) -> Body {
    let opened = async move { tokio::fs::File::open(path).await };
    let chunks = futures::stream::once(opened).flat_map(|opened| match opened {
        Ok(file) => tokio_util::io::ReaderStream::with_capacity(file, CHUNK).left_stream(),
        Err(error) => futures::stream::once(std::future::ready(Err(error))).right_stream(),
    });
    BodyExt::boxed_unsync(http_body_util::StreamBody::new(chunks.map_ok(http_body::Frame::data)))
}

/// What to send.
#[derive(Clone)]
pub struct Ask {
    pub method: Method,
    pub headers: HeaderMap,
    pub body: Payload,
    /// For errors: "manifest 1.2 of library/nginx".
    pub what: String,
}

impl Ask {
    pub fn get(what: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            headers: HeaderMap::new(),
            body: Payload::Bytes(Bytes::new()),
            what: what.into(),
        }
    }

    /// Only from this byte on.
    pub fn from_byte(mut self, offset: u64) -> Self {
        if offset > 0
            && let Ok(range) = HeaderValue::try_from(format!("bytes={offset}-"))
        {
            self.headers.insert(RANGE, range);
        }
        self
    }
}

/// A repository to read from, or to write to.
pub struct Repository {
    http: Arc<Http>,
    /// Host and port.
    pub host: String,
    /// Its name there.
    pub name: String,
    insecure: bool,
    auth: Option<AuthConfig>,
    /// "pull" or "pull,push".
    actions: &'static str,
    /// The header that worked last.
    authorization: Mutex<Option<HeaderValue>>,
    /// Which scheme answered: an insecure registry may be one of both.
    plain: Mutex<Option<bool>>,
}

impl Repository {
    pub fn new(http: Arc<Http>, source: &Source, auth: Option<AuthConfig>, actions: &'static str) -> Self {
        let host = match source.host.as_str() {
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            host => host,
        };
        Self {
            http,
            host: host.to_owned(),
            name: source.repository.clone(),
            insecure: source.insecure,
            auth,
            actions,
            authorization: Mutex::default(),
            plain: Mutex::default(),
        }
    }

    pub fn http(&self) -> &Http {
        &self.http
    }

    fn url(&self, plain: bool, path: &str) -> String {
        let scheme = if plain { "http" } else { "https" };
        match path.starts_with("/v2/") {
            true => format!("{scheme}://{}{path}", self.host),
            false => format!("{scheme}://{}/v2/{}/{path}", self.host, self.name),
        }
    }

    /// Sends a request for something below the repository (`manifests/latest`) and follows where it leads.
    pub async fn ask(&self, path: &str, ask: Ask) -> Result<Answer> {
        let known = *lock(&self.plain);
        if let Some(plain) = known.or((!self.insecure).then_some(false)) {
            return self.ask_url(&self.url(plain, path), ask).await;
        }
        // As others do with a registry that may be insecure: TLS first, then without.
        match self.ask_url(&self.url(false, path), ask.clone()).await {
            Err(RegistryError::Http(HttpError::Connect { .. } | HttpError::Broken { .. })) => {
                let answer = self.ask_url(&self.url(true, path), ask).await?;
                *lock(&self.plain) = Some(true);
                Ok(answer)
            }
            other => {
                if other.is_ok() {
                    *lock(&self.plain) = Some(false);
                }
                other
            }
        }
    }

    /// Sends a request to a URL that the registry gave, or that is its own.
    pub async fn ask_url(&self, url: &str, ask: Ask) -> Result<Answer> {
        let mut answer = self.try_url(url, &ask).await?;
        if let Some(challenge) = answer.challenge.take() {
            let header = self.answer_challenge(challenge, &answer.server).await?;
            let Some(header) = header else { return Err(answer.denied(self, &ask.what).await) };
            *lock(&self.authorization) = Some(header);
            answer = self.try_url(url, &ask).await?;
        }
        answer.checked(self, &ask.what).await
    }

    /// One request with its redirects. A challenge is only reported if it came from the server that was asked.
    async fn try_url(&self, url: &str, ask: &Ask) -> Result<Raw> {
        let mut url: Uri = url.parse().map_err(|_| HttpError::Url(url.to_owned()))?;
        let first = Origin::of(&url).ok_or_else(|| HttpError::Url(url.to_string()))?;
        let ours = first.server().eq_ignore_ascii_case(&self.server());
        for _ in 0..=REDIRECTS {
            let origin = Origin::of(&url).ok_or_else(|| HttpError::Url(url.to_string()))?;
            let at_home = ours && origin == first;
            let mut request = Request::builder().method(ask.method.clone()).uri(url.clone());
            if let Some(headers) = request.headers_mut() {
                headers.extend(ask.headers.clone());
                if at_home && let Some(header) = lock(&self.authorization).clone() {
                    headers.insert(AUTHORIZATION, header);
                }
            }
            let request = request.body(ask.body.body()).map_err(|_| HttpError::Url(url.to_string()))?;
            let (response, connection) = self.http.send(request, self.insecure && at_home).await?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
                return Ok(Raw::new(response, connection, at_home));
            }
            let server = connection.server.clone();
            let refuse =
                |reason| RegistryError::Redirect { server: server.clone(), what: ask.what.clone(), reason };
            if ask.method != Method::GET && ask.method != Method::HEAD {
                return Err(refuse("although something is to be written"));
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|text| resolve(&url, text)).ok_or_else(|| refuse("nowhere"))?;
            if url.scheme_str() == Some("https") && next.scheme_str() == Some("http") && !self.insecure {
                return Err(refuse("from a secure to an insecure place"));
            }
            url = next;
        }
        Err(RegistryError::Redirect {
            server: self.host.clone(),
            what: ask.what.clone(),
            reason: "again and again",
        })
    }

    /// The registry's own URL.
    pub fn home(&self) -> String {
        self.url(lock(&self.plain).unwrap_or(false), "/v2/")
    }

    /// The registry as [`Origin::server`] writes it.
    fn server(&self) -> String {
        let own: Option<Uri> = self.home().parse().ok();
        own.and_then(|uri| Origin::of(&uri)).map_or_else(|| self.host.clone(), |origin| origin.server())
    }

    /// The header that the registry wants to see; `None` if there are no credentials for it.
    async fn answer_challenge(&self, challenge: Challenge, server: &str) -> Result<Option<HeaderValue>> {
        let auth = self.auth.as_ref().filter(|auth| !auth.is_empty());
        if let Some(auth) = auth.filter(|auth| !auth.registry_token.is_empty()) {
            return Ok(Some(auth::secret_header(&format!("Bearer {}", auth.registry_token))?));
        }
        let (realm, service, scope) = match &challenge {
            Challenge::Basic => return Ok(auth.and_then(auth::basic_header).transpose()?),
            Challenge::Bearer { realm, service, scope } => (realm, service, scope),
        };
        let wanted = format!("repository:{}:{}", self.name, self.actions);
        let request = auth::token_request((realm, service, scope), &wanted, auth, !self.insecure)?;
        let mut builder = Request::builder().uri(&request.url);
        if request.basic
            && let Some(header) = auth.and_then(auth::basic_header)
        {
            builder = builder.header(AUTHORIZATION, header?);
        }
        let body = match request.form {
            Some(form) => {
                builder =
                    builder.method(Method::POST).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
                body(form.into())
            }
            None => body(Bytes::new()),
        };
        let bad_url = |_| HttpError::Url(request.url.clone());
        let same = request
            .url
            .parse::<Uri>()
            .ok()
            .and_then(|uri| Origin::of(&uri))
            .is_some_and(|origin| origin.server() == server);
        let (response, connection) =
            self.http.send(builder.body(body).map_err(bad_url)?, self.insecure && same).await?;
        let raw = Raw::new(response, connection, false);
        let answer = raw.checked(self, &format!("a token for {}", self.name)).await?;
        let bytes = answer.body.all(&self.http, SMALL).await?;
        Ok(Some(auth::token_in(&bytes, realm)?))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn body(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

/// Where a redirect leads: absolute, or relative to the server.
pub fn resolve(from: &Uri, location: &str) -> Option<Uri> {
    let uri: Uri = location.parse().ok()?;
    if uri.scheme().is_some() {
        return Origin::of(&uri).map(|_| uri);
    }
    if !location.starts_with('/') || location.starts_with("//") {
        return None;
    }
    format!("{}://{}{location}", from.scheme_str()?, from.authority()?).parse().ok()
}

/// An answer before it was judged.
struct Raw {
    status: StatusCode,
    headers: HeaderMap,
    body: Download,
    server: String,
    challenge: Option<Challenge>,
}

impl Raw {
    fn new(response: Response<Incoming>, connection: Connection, at_home: bool) -> Self {
        let (parts, body) = response.into_parts();
        let challenges: Vec<&str> =
            parts.headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
        let challenge = match at_home && parts.status == StatusCode::UNAUTHORIZED {
            true => auth::choose(&challenges).ok(),
            false => None,
        };
        Self {
            status: parts.status,
            headers: parts.headers,
            server: connection.server.clone(),
            body: Download::new(body, connection),
            challenge,
        }
    }

    async fn checked(self, repository: &Repository, what: &str) -> Result<Answer> {
        if self.status.is_success() {
            return Ok(Answer {
                status: self.status,
                headers: self.headers,
                body: self.body,
                server: self.server,
            });
        }
        Err(self.denied(repository, what).await)
    }

    async fn denied(self, repository: &Repository, what: &str) -> RegistryError {
        let Self { status, server, body, .. } = self;
        let said = body.all(&repository.http, SMALL).await.unwrap_or_default(); // only for the message
        let (what, message) = (what.to_owned(), message_in(&said));
        match status {
            StatusCode::NOT_FOUND => RegistryError::NotFound { what },
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                RegistryError::Denied { server, what, status, message }
            }
            StatusCode::TOO_MANY_REQUESTS => RegistryError::Busy { server, status, message },
            status => RegistryError::Status { server, what, status, message },
        }
    }
}

/// The registry's own explanation, where it is one; printable and short.
fn message_in(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        #[serde(default)]
        errors: Vec<One>,
        #[serde(default)]
        details: String,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let Ok(said) = serde_json::from_slice::<Errors>(bytes) else { return String::new() };
    let words = match said.errors.first() {
        Some(first) => format!("{}: {}", first.code.to_lowercase(), first.message),
        None if said.details.is_empty() => return String::new(),
        None => said.details,
    };
    let clean: String = words.chars().filter(|c| !c.is_control()).take(SHOWN).collect();
    format!(" ({clean})")
}

/// The media types that are understood, for `Accept`.
pub fn accepted() -> HeaderMap {
    let types = [
        super::super::manifest::OCI_INDEX,
        super::super::manifest::OCI_MANIFEST,
        super::super::manifest::DOCKER_LIST,
        super::super::manifest::DOCKER_MANIFEST,
    ];
    types.iter().map(|kind| (ACCEPT, HeaderValue::from_static(kind))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_absolute_or_of_the_same_server() {
        let from: Uri = "https://r.example:5000/v2/a/blobs/x".parse().unwrap();
        let to = |text| resolve(&from, text).map(|uri| uri.to_string());
        assert_eq!(to("/elsewhere?q=1").as_deref(), Some("https://r.example:5000/elsewhere?q=1"));
        assert_eq!(to("https://cdn.example/x").as_deref(), Some("https://cdn.example/x"));
        for bad in ["", "relative", "//cdn.example/x", "ftp://x/y", "https://user:pw@x/y", "https://"] {
            assert_eq!(to(bad), None, "{bad}");
        }
    }

    #[test]
    fn words_of_errors_are_short_and_printable() {
        let text =
            format!(r#"{{"errors":[{{"code":"DENIED","message":"a\u001b[31m{}"}}]}}"#, "x".repeat(999));
        let message = message_in(text.as_bytes());
        assert!(
            message.starts_with(" (denied: a[31mx") && message.len() < 320 && !message.contains('\u{1b}')
        );
        assert_eq!(message_in(b"<html>"), "");
    }
}
