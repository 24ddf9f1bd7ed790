//! Small HTTP calls of the server itself: to webhooks, token issuers, aggregated servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request};
use lifecycle::Tasks;
use serde_json::Value;

use crate::body::{Body, ReadError};
use crate::metrics::calls::{CALLS, Call};
use crate::proxy::{Backend, ProxyError, Reach};
use crate::tls;

/// Answers larger than this are refused.
const ANSWER_LIMIT: usize = 8 << 20;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The URL is not one that can be called.
    #[error("{0:?} is not an http or https URL")]
    Url(String),
    /// The server could not be reached.
    #[error(transparent)]
    Reach(#[from] ProxyError),
    /// No answer in time. The words are those that Go programs print.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    /// The answer was no success.
    #[error("the server answered {code}: {body}")]
    Code {
        /// HTTP status.
        code: u16,
        /// The start of the body.
        body: String,
    },
    /// The answer did not arrive.
    #[error("the answer did not arrive")]
    Read(#[from] ReadError),
    /// The answer is no JSON.
    #[error("the answer is not JSON")]
    Json(#[from] serde_json::Error),
}

/// A URL cut into what a connection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Whether TLS is spoken.
    pub secure: bool,
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path and query.
    pub path: String,
}

impl Target {
    /// Cuts `https://host:port/path`.
    pub fn parse(url: &str) -> Result<Self, CallError> {
        let uri: http::Uri = url.parse().map_err(|_| CallError::Url(url.to_owned()))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(CallError::Url(url.to_owned())),
        };
        let host = uri.host().ok_or_else(|| CallError::Url(url.to_owned()))?;
        Ok(Self {
            secure,
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            path: uri.path_and_query().map_or("/".to_owned(), |path| path.as_str().to_owned()),
        })
    }

    /// The backend of it.
    pub fn backend(&self, tls: Arc<rustls::ClientConfig>) -> Backend {
        Backend {
            host: self.host.clone(),
            port: self.port,
            tls: self.secure.then_some(tls),
            server_name: None,
            reach: Reach::default(),
        }
    }
}

/// A server that is asked questions in JSON.
pub struct Webhook {
    /// The server.
    pub backend: Backend,
    /// Its path.
    pub path: String,
    /// What it knows this server by, in the form of an `Authorization` header.
    pub credentials: Option<String>,
    /// Owns the connections.
    pub tasks: Tasks,
}

impl Webhook {
    /// The server that a kubeconfig names.
    pub fn from_kubeconfig(text: &str, tasks: &Tasks) -> Result<Self, WebhookError> {
        let access = pki::Kubeconfig::parse(text).and_then(|config| config.access(None))?;
        let target = Target::parse(&access.server)?;
        let identity = match (&access.client_certificate, &access.client_key) {
            (Some(certificate), Some(key)) => {
                Some(tls::certified_key(certificate, key, "the webhook client certificate")?)
            }
            _ => None,
        };
        let client = match &access.certificate_authority {
            _ if access.insecure_skip_tls_verify => tls::unverified_client_config(identity)?,
            Some(ca) => tls::client_config(tls::roots(ca, "the webhook CA")?, identity)?,
            None => tls::client_config(client::system_roots(), identity)?,
        };
        let mut backend = target.backend(Arc::new(client));
        backend.server_name = access.tls_server_name.clone();
        let credentials = match (&access.token, &access.basic) {
            (Some(token), _) => Some(format!("Bearer {token}")),
            (None, Some((user, password))) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
            (None, None) => None,
        };
        Ok(Self { backend, path: target.path, credentials, tasks: tasks.clone() })
    }

    /// Asks and reads the answer.
    pub async fn call(&self, question: &Value, at_most: Duration) -> Result<Value, CallError> {
        let credentials = self.credentials.as_deref();
        ask(&self.backend, &self.path, Some(question), credentials, at_most, &self.tasks).await
    }
}

impl Webhook {
    /// Sends JSON; what is answered does not matter.
    pub async fn post(&self, body: Bytes, at_most: Duration) -> Result<(), CallError> {
        let credentials = self.credentials.as_deref();
        send(&self.backend, &self.path, Some(body), credentials, at_most, &self.tasks).await.map(drop)
    }
}

/// Why a webhook's kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The file.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] pki::PkiError),
    /// The server's address.
    #[error("the server cannot be addressed")]
    Address(#[from] CallError),
    /// Certificates.
    #[error("TLS cannot be set up")]
    Tls(#[from] tls::TlsError),
}

/// Calls `path` of a backend with JSON, or without a body, and reads the JSON answer.
pub async fn json(
    backend: &Backend,
    path: &str,
    body: Option<&Value>,
    at_most: Duration,
    tasks: &Tasks,
) -> Result<Value, CallError> {
    ask(backend, path, body, None, at_most, tasks).await
}

async fn ask(
    backend: &Backend,
    path: &str,
    body: Option<&Value>,
    credentials: Option<&str>,
    at_most: Duration,
    tasks: &Tasks,
) -> Result<Value, CallError> {
    let body = body.map(|body| Bytes::from(body.to_string()));
    Ok(serde_json::from_slice(&send(backend, path, body, credentials, at_most, tasks).await?)?)
}

async fn send(
    backend: &Backend,
    path: &str,
    body: Option<Bytes>,
    credentials: Option<&str>,
    at_most: Duration,
    tasks: &Tasks,
) -> Result<Bytes, CallError> {
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let (host, sent) = (backend.authority(), body.as_ref().map_or(0, Bytes::len));
    let counted = Call { host: &host, method: method.as_str(), sent, began: Instant::now() };
    let mut request = Request::builder().method(method.clone()).uri(path);
    if let Some(credentials) = credentials {
        request = request.header(AUTHORIZATION, credentials);
    }
    let request = request
        .header(HOST, backend.authority())
        .header(ACCEPT, "application/json")
        .header(CONTENT_TYPE, "application/json")
        .body(body.map_or(Body::Empty, Body::from))
        .map_err(|_| CallError::Url(path.to_owned()))?;
    let call = async {
        let answer = backend.send(request, tasks).await?;
        let code = answer.status();
        let bytes = answer.into_body().read(ANSWER_LIMIT).await?;
        CALLS.answered(&counted, code.as_str(), bytes.len());
        if !code.is_success() {
            let body = String::from_utf8_lossy(&bytes[..bytes.len().min(512)]).into_owned();
            return Err(CallError::Code { code: code.as_u16(), body });
        }
        Ok(bytes)
    };
    let outcome = tokio::time::timeout(at_most, call).await.unwrap_or(Err(CallError::Timeout));
    if matches!(outcome, Err(CallError::Reach(_) | CallError::Timeout)) {
        CALLS.failed(&counted);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_cut() {
        let target = Target::parse("https://[::1]:8443/a/b?c=d").unwrap();
        assert_eq!(
            (target.secure, target.host.as_str(), target.port, target.path.as_str()),
            (true, "::1", 8443, "/a/b?c=d")
        );
        assert_eq!(Target::parse("http://x").unwrap().port, 80);
        assert!(Target::parse("ftp://x").is_err());
        assert!(Target::parse("not a url").is_err());
    }
}
