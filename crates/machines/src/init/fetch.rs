//! Fetching what an ignition file refers to: HTTP and HTTPS, with the file's own authorities, until it answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use ignition::{Config, Resource};
use lifecycle::Tasks;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Why content was not to be had.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum FetchError {
    #[error("{0:?} is not an address that can be fetched")]
    Url(String),
    #[error("cannot read a certificate authority")]
    Resource(#[from] ignition::ResourceError),
    #[error("a certificate authority is not a certificate")]
    Authority(#[source] rustls::pki_types::pem::Error),
    #[error("a certificate authority cannot be trusted")]
    Root(#[source] rustls::Error),
    #[error("cannot connect to {0}")]
    Connect(String, #[source] std::io::Error),
    #[error("{0} gave no answer")]
    Http(String, #[source] hyper::Error),
    #[error("{0} broke off")]
    Body(String, #[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("{url} answered {status}")]
    Status { url: String, status: http::StatusCode },
    #[error("{url} did not answer within {seconds} s")]
    Timeout { url: String, seconds: u64 },
    #[error("the fetching itself failed")]
    Runtime(#[source] std::io::Error),
    #[error("the request cannot be made")]
    Request(#[from] http::Error),
}

const LARGEST: usize = 64 << 20;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const ACCEPT: &str = "application/vnd.coreos.ignition+json;version=3.4.0, */*;q=0.1";

/// Fetches, with trust in the authorities of one config.
pub struct Fetcher {
    tls: Arc<rustls::ClientConfig>,
    header_timeout: Duration,
    total: Option<Duration>,
}

impl Fetcher {
    /// Trusts the system's authorities and those that the config lists.
    pub fn new(config: &Config) -> Result<Self, FetchError> {
        let mut roots = rustls::RootCertStore::empty();
        if let Ok(pem) = std::fs::read("/etc/ssl/certs/ca-certificates.crt") {
            let known = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
            roots.add_parsable_certificates(known);
        }
        let mut nothing = |_: &Resource| Err("authorities are given as data".into());
        for authority in &config.ignition.security.tls.certificate_authorities {
            let pem = ignition::read_resource(authority, &mut nothing)?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                roots.add(certificate.map_err(FetchError::Authority)?).map_err(FetchError::Root)?;
            }
        }
        let timeouts = &config.ignition.timeouts;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(FetchError::Root)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            tls: Arc::new(tls),
            header_timeout: Duration::from_secs(timeouts.http_response_headers.unwrap_or(10)),
            total: timeouts.http_total.filter(|total| *total > 0).map(Duration::from_secs),
        })
    }

    /// Brings the content, trying again until it is there or the config's patience ends. `wait` hears what it waits for.
    pub fn fetch(
        &mut self,
        resource: &Resource,
        wait: &mut dyn FnMut(&str),
    ) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        let url = resource.source.clone().unwrap_or_default();
        // A runtime of its own, gone with its helper threads when this returns: init has one thread again then.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(FetchError::Runtime)?;
        let outcome = runtime.block_on(async {
            let end = self.total.map(|total| Instant::now() + total);
            let mut pause = FIRST_PAUSE;
            let mut last = String::new();
            loop {
                let error = match self.once(&url, resource).await {
                    Ok(content) => return Ok(content),
                    Err(error) if !is_transient(&error) => return Err(error),
                    Err(error) => error,
                };
                if end.is_some_and(|end| Instant::now() >= end) {
                    return Err(error);
                }
                let text = format!("waiting for {url}: {}", telemetry::chain(&error));
                if text != last {
                    wait(&text);
                    last = text;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
        runtime.shutdown_background();
        Ok(outcome?)
    }

    async fn once(&self, url: &str, resource: &Resource) -> Result<Vec<u8>, FetchError> {
        let bad = || FetchError::Url(url.to_owned());
        let uri: http::Uri = url.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let whole = tokio::time::timeout(self.header_timeout.max(Duration::from_secs(30)), async {
            let connect = |error| FetchError::Connect(format!("{host}:{port}"), error);
            let stream = TcpStream::connect((host.as_str(), port)).await.map_err(connect)?;
            if secure {
                let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
                let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
                let stream = connector.connect(name, stream).await.map_err(connect)?;
                self.exchange(url, &uri, resource, stream).await
            } else {
                self.exchange(url, &uri, resource, stream).await
            }
        });
        let late =
            |_| FetchError::Timeout { url: url.to_owned(), seconds: self.header_timeout.as_secs().max(30) };
        whole.await.map_err(late)?
    }

    async fn exchange<S>(
        &self,
        url: &str,
        uri: &http::Uri,
        resource: &Resource,
        stream: S,
    ) -> Result<Vec<u8>, FetchError>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let fail = |error| FetchError::Http(url.to_owned(), error);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(fail)?;
        let tasks = Tasks::new();
        tasks.spawn("fetch", |_| async move {
            // What broke the connection shows in the answer too.
            let _ = connection.await;
        });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = http::Request::get(path)
            .header(http::header::HOST, uri.authority().map_or("", |authority| authority.as_str()))
            .header(http::header::ACCEPT, ACCEPT)
            .header(
                http::header::USER_AGENT,
                concat!("Ignition/2.20.0 (kelson ", env!("CARGO_PKG_VERSION"), ")"),
            );
        for header in &resource.http_headers {
            if let Some(value) = &header.value {
                request = request.header(&header.name, value);
            }
        }
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await.map_err(fail)?;
        if !answer.status().is_success() {
            return Err(FetchError::Status { url: url.to_owned(), status: answer.status() });
        }
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| FetchError::Body(url.to_owned(), error))?;
        Ok(body.to_bytes().to_vec())
    }
}

/// Whether trying again may help: anything but an answer that says what is asked for does not exist.
fn is_transient(error: &FetchError) -> bool {
    match error {
        FetchError::Status { status, .. } => {
            status.is_server_error() || matches!(status.as_u16(), 404 | 408 | 410 | 429)
        }
        FetchError::Url(_) | FetchError::Authority(_) | FetchError::Root(_) | FetchError::Request(_) => false,
        _ => true,
    }
}
