//! One request to one server: connections, TLS by the administrator's certificates, deadlines.
//!
//! HTTP/1.1, a connection per layer: layers are few and large, and streams of one connection would share its window.
//! Finished connections are kept for the next request to the same server.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client::{any_server, system_roots};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// What a request carries.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// How much is believed and how long is waited.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a manifest or an index.
    pub manifest: u64,
    /// Bytes of an image configuration.
    pub config: u64,
    /// Layers of an image: overlayfs stacks no more.
    pub layers: usize,
    /// Bytes of all compressed layers of an image.
    pub total: u64,
    /// For a connection, with the search for the name and the handshake.
    pub connect: Duration,
    /// Until a server begins to answer.
    pub answer: Duration,
    /// In every such time `progress_bytes` have to arrive.
    pub progress: Duration,
    pub progress_bytes: u64,
    /// Layers of one image that are fetched at once.
    pub parallel: usize,
    /// How often a layer is asked for again where it broke off.
    pub retries: u32,
    /// The pause before the first of these, doubled each time.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            manifest: 4 << 20,
            config: 8 << 20,
            layers: 500,
            total: 256 << 30,
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            progress: Duration::from_secs(60),
            progress_bytes: 64 << 10,
            parallel: 4,
            retries: 4,
            pause: Duration::from_millis(250),
        }
    }
}

/// Why a request had no answer.
#[derive(Debug, Error)]
pub enum HttpError {
    #[error("{0:?} is not a URL that can be asked")]
    Url(String),
    #[error("cannot reach {server}")]
    Connect {
        server: String,
        #[source]
        source: io::Error,
    },
    #[error("{server} did not answer within {limit:?}")]
    Silent { server: String, limit: Duration },
    #[error("the connection to {server} broke")]
    Broken {
        server: String,
        #[source]
        source: hyper::Error,
    },
    #[error("{server} sent fewer than {bytes} bytes in {limit:?}")]
    Slow { server: String, bytes: u64, limit: Duration },
    #[error("{server} sent more than {limit} bytes")]
    TooLarge { server: String, limit: u64 },
    #[error("the certificates in {path} cannot be used")]
    Certificates {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl HttpError {
    /// Whether the server was not there at all, rather than answering badly.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::Silent { .. })
    }
}

/// Scheme, host and port: to whom a secret may be shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub https: bool,
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Of an absolute URL.
    pub fn of(uri: &Uri) -> Option<Self> {
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        Some(Self { https, host: uri.host()?.to_ascii_lowercase(), port })
    }

    /// As certificates' directories and people name it.
    pub fn server(&self) -> String {
        match (self.https, self.port) {
            (true, 443) | (false, 80) => self.host.clone(),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

/// The client.
#[derive(Debug)]
pub struct Http {
    pub limits: Limits,
    certificates: Vec<PathBuf>,
    idle: Mutex<HashMap<(Origin, bool), Vec<SendRequest<Body>>>>,
    drivers: Tasks,
}

/// How many idle connections to a server are kept.
const IDLE: usize = 8;

impl Http {
    pub fn new(certificates: Vec<PathBuf>, limits: Limits) -> Self {
        Self { limits, certificates, idle: Mutex::default(), drivers: Tasks::new() }
    }

    /// Sends a request with an absolute URL. `insecure` believes any certificate.
    pub async fn send(
        &self,
        mut request: Request<Body>,
        insecure: bool,
    ) -> Result<(Response<Incoming>, Connection), HttpError> {
        let bad = |request: &Request<Body>| HttpError::Url(request.uri().to_string());
        let origin = Origin::of(request.uri()).ok_or_else(|| bad(&request))?;
        let server = origin.server();
        let host = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let host = HeaderValue::try_from(host.unwrap_or_default()).map_err(|_| bad(&request))?;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        *request.uri_mut() = Uri::try_from(path).map_err(|_| bad(&request))?;
        request.headers_mut().insert(header::HOST, host);
        request.headers_mut().insert(
            header::USER_AGENT,
            HeaderValue::from_static(concat!("kelson/", env!("CARGO_PKG_VERSION"))),
        );
        let key = (origin, insecure);
        let mut sender = match self.reuse(&key).await {
            Some(sender) => sender,
            None => tokio::time::timeout(self.limits.connect, self.connect(&key.0, insecure))
                .await
                .map_err(|_| HttpError::Silent { server: server.clone(), limit: self.limits.connect })??,
        };
        // What is sent counts too: a second for every 128 KiB.
        let sent = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        let sent: u64 = sent.and_then(|text| text.parse().ok()).unwrap_or(0);
        let limit = self.limits.answer + Duration::from_secs(sent >> 17);
        let answer = tokio::time::timeout(limit, sender.send_request(request))
            .await
            .map_err(|_| HttpError::Silent { server: server.clone(), limit })?
            .map_err(|source| HttpError::Broken { server: server.clone(), source })?;
        Ok((answer, Connection { key, sender, server }))
    }

    async fn reuse(&self, key: &(Origin, bool)) -> Option<SendRequest<Body>> {
        loop {
            let mut sender = self.lock().get_mut(key)?.pop()?;
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Origin, bool), Vec<SendRequest<Body>>>> {
        self.idle.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Gives a connection back whose answer was read to its end.
    pub fn finish(&self, connection: Connection) {
        let mut idle = self.lock();
        let kept = idle.entry(connection.key).or_default();
        kept.retain(|sender| !sender.is_closed());
        if kept.len() < IDLE && !connection.sender.is_closed() {
            kept.push(connection.sender);
        }
    }

    async fn connect(&self, origin: &Origin, insecure: bool) -> Result<SendRequest<Body>, HttpError> {
        let failed = |source| HttpError::Connect { server: origin.server(), source };
        let host = origin.host.trim_matches(['[', ']']);
        let stream = match host.parse() {
            Ok(ip) => TcpStream::connect(SocketAddr::new(ip, origin.port)).await,
            Err(_) => TcpStream::connect((host, origin.port)).await,
        }
        .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let broken = |source| HttpError::Broken { server: origin.server(), source };
        if !origin.https {
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
            self.drive(connection);
            return Ok(sender);
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(io::Error::other(error)))?;
        let tls = self.tls(&origin.server(), insecure)?;
        let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await.map_err(failed)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        self.drive(connection);
        Ok(sender)
    }

    fn drive<C>(&self, connection: C)
    where
        C: Future<Output = hyper::Result<()>> + Send + 'static,
    {
        // Its error is the request's too, where somebody hears it.
        self.drivers.spawn("registry/connection", |stop| async move { drop(stop.or(connection).await) });
    }

    /// Trust and identity for a server: the machine's authorities, and what `certs.d` adds for it.
    fn tls(&self, server: &str, insecure: bool) -> Result<rustls::ClientConfig, HttpError> {
        let mut roots = system_roots();
        let mut identity = None;
        for directory in &self.certificates {
            let path = directory.join(server);
            let unusable = |source| HttpError::Certificates { path: path.clone(), source };
            let found = Certificates::read(&path).map_err(unusable)?;
            for authority in found.authorities {
                roots.add(authority).map_err(|error| unusable(io::Error::other(error)))?;
            }
            identity = identity.or(found.identity);
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let unusable =
            |error| HttpError::Certificates { path: server.into(), source: io::Error::other(error) };
        let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match insecure {
            true => builder.dangerous().with_custom_certificate_verifier(any_server(provider)),
            false => builder.with_root_certificates(roots),
        };
        let mut config = match identity {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// A connection in use.
pub struct Connection {
    key: (Origin, bool),
    sender: SendRequest<Body>,
    pub server: String,
}

/// One directory of `certs.d`.
#[derive(Default)]
struct Certificates {
    authorities: Vec<CertificateDer<'static>>,
    identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
}

impl Certificates {
    fn read(directory: &Path) -> io::Result<Self> {
        let mut found = Self::default();
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
            Err(error) => return Err(error),
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        let named = |path: &Path, error: String| io::Error::other(format!("{}: {error}", path.display()));
        for path in paths {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("crt") => found.authorities.extend(chain(&path)?),
                Some("cert") => {
                    let key = path.with_extension("key");
                    let key = PrivateKeyDer::from_pem_slice(&std::fs::read(&key).map_err(|error| {
                        named(&path, format!("its key {} cannot be read: {error}", key.display()))
                    })?)
                    .map_err(|error| named(&key, error.to_string()))?;
                    found.identity = Some((chain(&path)?, key));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

fn chain(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let pem = std::fs::read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(io::Error::other(format!("{} holds no certificates in PEM", path.display()))),
    }
}

/// An answer's body, read with the limits' pace.
pub struct Download {
    body: Incoming,
    connection: Option<Connection>,
    window: tokio::time::Instant,
    in_window: u64,
}

impl Download {
    pub fn new(body: Incoming, connection: Connection) -> Self {
        Self { body, connection: Some(connection), window: tokio::time::Instant::now(), in_window: 0 }
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self, http: &Http) -> Result<Option<Bytes>, HttpError> {
        let Some(connection) = &self.connection else { return Ok(None) };
        let (limit, bytes) = (http.limits.progress, http.limits.progress_bytes);
        loop {
            let deadline = self.window + limit;
            let frame = match tokio::time::timeout_at(deadline, self.body.frame()).await {
                Ok(frame) => frame,
                Err(_) if self.in_window >= bytes => {
                    (self.window, self.in_window) = (deadline, 0);
                    continue;
                }
                Err(_) => {
                    return Err(HttpError::Slow { server: connection.server.clone(), bytes, limit });
                }
            };
            match frame {
                None => {
                    if let Some(connection) = self.connection.take() {
                        http.finish(connection);
                    }
                    return Ok(None);
                }
                Some(Err(source)) => {
                    return Err(HttpError::Broken { server: connection.server.clone(), source });
                }
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.in_window += data.len() as u64;
                    if tokio::time::Instant::now() >= deadline && self.in_window >= bytes {
                        (self.window, self.in_window) = (tokio::time::Instant::now(), 0);
                    }
                    return Ok(Some(data));
                }
            }
        }
    }

    /// All of it, if it is no more than `limit`.
    pub async fn all(mut self, http: &Http, limit: u64) -> Result<Vec<u8>, HttpError> {
        let server = self.connection.as_ref().map(|connection| connection.server.clone()).unwrap_or_default();
        let mut all = Vec::new();
        while let Some(bytes) = self.next(http).await? {
            if (all.len() + bytes.len()) as u64 > limit {
                return Err(HttpError::TooLarge { server, limit });
            }
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}
