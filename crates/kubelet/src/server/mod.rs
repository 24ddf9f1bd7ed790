//! The kubelet's HTTPS server: what the API server and monitoring ask of a node.
//!
//! Path of a request: TLS (client certificate, if any) → [`auth`] → one of the handlers. Only HTTP/1.1 is spoken, because
//! exec, attach and port-forward upgrade the connection.

mod auth;
mod endpoints;
pub(crate) mod log_reader;
mod logs;
mod query;
mod stats;
mod strangers;
mod streams;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use lifecycle::{Stop, Tasks};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use crate::config::Config;
use crate::host::SharedHost;
use crate::pods::Pods;
use auth::{Auth, Identity};
use strangers::{Strangers, Visit};

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;
pub(crate) type Answer = Response<Body>;

#[derive(Debug, Error)]
pub enum ServerError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("a listen address without a serving certificate")]
    NoCertificate,
    #[error("the serving certificate or its key is not valid PEM")]
    Pem(#[source] rustls::pki_types::pem::Error),
    #[error("the serving certificate cannot be used")]
    Tls(#[source] rustls::Error),
    #[error("the client CA cannot be used")]
    ClientCa(#[source] rustls::server::VerifierBuilderError),
    #[error("the client CA holds a certificate that cannot be used")]
    ClientCaCertificate(#[source] rustls::Error),
}

/// How long a client may take for TLS, and for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEAD: Duration = Duration::from_secs(30);
/// The longest head of a request.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

struct Server {
    host: SharedHost,
    pods: Arc<Pods>,
    auth: Auth,
    tasks: Tasks,
    strangers: Arc<Strangers>,
}

/// Binds and serves; answers with the address, or nothing if none is configured.
pub async fn start(
    host: &SharedHost,
    pods: &Arc<Pods>,
    tasks: &Tasks,
) -> Result<Option<SocketAddr>, ServerError> {
    let Some(address) = host.config.listen else { return Ok(None) };
    let acceptor = TlsAcceptor::from(Arc::new(tls(&host.config)?));
    let listen = |source| ServerError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(listen)?;
    let bound = listener.local_addr().map_err(listen)?;
    let server = Arc::new(Server {
        host: host.clone(),
        pods: pods.clone(),
        auth: Auth::new(host.clone()),
        tasks: tasks.clone(),
        strangers: Arc::default(),
    });
    info!(address = %bound, "serving");
    tasks.spawn("kubelet/server", |stop| async move {
        while let Some(accepted) = stop.or(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    let Some(visit) = server.strangers.enter(peer.ip()) else {
                        debug!(%peer, "too many connections that have not said who they are");
                        continue;
                    };
                    let (server, acceptor) = (server.clone(), acceptor.clone());
                    let tasks = server.tasks.clone();
                    tasks.spawn("kubelet/connection", |stop| async move {
                        if let Err(error) = connection(server, acceptor, stream, visit, stop).await {
                            debug!(%peer, %error, "connection ended");
                        }
                    });
                }
                Err(error) => {
                    // Out of descriptors: the next accept fails at once too, so wait for some to be closed.
                    warn!(%error, "cannot accept");
                    stop.or(tokio::time::sleep(std::time::Duration::from_millis(200))).await;
                }
            }
        }
    });
    Ok(Some(bound))
}

fn tls(config: &Config) -> Result<rustls::ServerConfig, ServerError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificates = |pem: &[u8]| {
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(ServerError::Pem)
    };
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(ServerError::Tls)?;
    let builder = match &config.client_ca_pem {
        Some(pem) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(ServerError::ClientCaCertificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(ServerError::ClientCa)?;
            builder.with_client_cert_verifier(verifier)
        }
        None => builder.with_no_client_auth(),
    };
    if let Some(resolver) = &config.serving_resolver {
        let mut tls = builder.with_cert_resolver(resolver.clone());
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        return Ok(tls);
    }
    let serving = config.serving.as_ref().ok_or(ServerError::NoCertificate)?;
    let key = PrivateKeyDer::from_pem_slice(&serving.key_pem).map_err(ServerError::Pem)?;
    let mut tls =
        builder.with_single_cert(certificates(&serving.chain_pem)?, key).map_err(ServerError::Tls)?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    visit: Visit,
    stop: Stop,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Streams of keystrokes: each is worth a packet.
    stream.set_nodelay(true)?;
    let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream));
    let stream = handshake.await??;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first()).cloned();
    let identity = certificate.and_then(|certificate| Identity::of_certificate(&certificate));
    let visit = Arc::new(Mutex::new(Some(visit)));
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, identity, visit) = (server.clone(), identity.clone(), visit.clone());
        async move { Ok::<_, std::convert::Infallible>(server.answer(request, identity, &visit).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    match stop.or(connection).await {
        Some(result) => Ok(result?),
        None => Ok(()),
    }
}

impl Server {
    async fn answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        identity: Option<Identity>,
        visit: &Mutex<Option<Visit>>,
    ) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Err(refusal) = self.auth.check(request.headers(), identity, &method, &path).await {
            return text(refusal.0, refusal.1);
        }
        // Who is allowed something is no stranger, however long the connection lasts.
        visit.lock().unwrap_or_else(PoisonError::into_inner).take();
        if !is_method_of(&method, &path, request.headers()) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match parts.as_slice() {
            ["healthz"] | ["healthz", "ping"] => text(StatusCode::OK, "ok"),
            ["pods"] => endpoints::pods(&self.pods),
            ["runningpods"] => endpoints::running_pods(&self.pods),
            ["configz"] => endpoints::configz(&self.host.config),
            ["containerLogs", namespace, pod, container] => {
                logs::serve(&self.pods, namespace, pod, container, request.uri().query().unwrap_or(""))
            }
            ["exec" | "attach", ..] | ["portForward", ..] => {
                let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                streams::serve(self.host.clone(), &self.pods, &self.tasks, parts, request).await
            }
            ["run", namespace, pod, container] => {
                let query = query::parse(request.uri().query().unwrap_or(""));
                endpoints::run(&self.host, &self.pods, namespace, pod, container, &query).await
            }
            ["stats", "summary"] => stats::summary(&self.host, &self.pods).await,
            ["metrics"] => stats::metrics(&self.pods),
            ["metrics", "resource"] => stats::resource_metrics(&self.host, &self.pods).await,
            ["metrics", "cadvisor"] => stats::cadvisor_metrics(&self.host, &self.pods).await,
            ["metrics", "probes"] => text(StatusCode::OK, ""),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }
}

/// Whether the path has this method. A command is a POST, or the GET that opens a WebSocket.
fn is_method_of(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    let websocket = headers
        .get(header::UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
    match path.trim_matches('/').split('/').next().unwrap_or("") {
        "run" => method == Method::POST,
        "exec" | "attach" | "portForward" => method == Method::POST || method == Method::GET && websocket,
        _ => method == Method::GET || method == Method::HEAD,
    }
}

pub(crate) fn text(code: StatusCode, body: impl Into<Bytes>) -> Answer {
    typed(code, "text/plain; charset=utf-8", body)
}

pub(crate) fn json(value: &serde_json::Value) -> Answer {
    typed(StatusCode::OK, "application/json", value.to_string())
}

pub(crate) fn typed(code: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(full(body));
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    answer
}

pub(crate) fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}
