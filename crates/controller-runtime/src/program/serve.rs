//! The secure port: health for everyone, metrics for whom the API server lets read them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use client::{Client, resources};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Tasks;
use pki::{Algorithm, Certificate, Pair, PkiError, PrivateKey, Subject, Usages};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{ProgramArgs, Status};

/// How long a certificate lives that was made for one run.
const OWN_CERTIFICATE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// A port that cannot be opened.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the serving certificate cannot be used")]
    Certificate(#[from] PkiError),
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    #[error("the client CA cannot be used")]
    ClientCa(#[from] rustls::server::VerifierBuilderError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A secure port, not yet open.
pub struct Serving {
    address: SocketAddr,
    tls: TlsAcceptor,
    client: Client,
}

fn read(path: &Path) -> Result<Vec<u8>, ServeError> {
    std::fs::read(path).map_err(|source| ServeError::Read { path: path.to_owned(), source })
}

impl Serving {
    pub fn new(args: &ProgramArgs, address: SocketAddr, client: Client) -> Result<Self, ServeError> {
        let (chain, key) = match (&args.tls_cert_file, &args.tls_private_key_file) {
            (Some(certificate), Some(key)) => {
                (pki::pem::certificates(&read(certificate)?)?, PrivateKey::from_pem(&read(key)?)?.to_der())
            }
            _ => {
                let own = own_certificate()?;
                (vec![own.certificate.to_der()], own.key.to_der())
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = match &args.client_ca_file {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in pki::pem::certificates(&read(path)?)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .allow_unauthenticated()
                    .build()?;
                builder.with_client_cert_verifier(verifier)
            }
            None => builder.with_no_client_auth(),
        };
        let mut tls = builder.with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { address, tls: TlsAcceptor::from(Arc::new(tls)), client })
    }

    /// Opens the port; it closes with the tasks.
    pub async fn start(self, status: Arc<dyn Status>, tasks: &Tasks) -> Result<(), ServeError> {
        let listener = TcpListener::bind(self.address)
            .await
            .map_err(|source| ServeError::Listen { address: self.address, source })?;
        let connections = tasks.clone();
        tasks.spawn("secure-port", |stop| async move {
            while let Some(accepted) = stop.or(listener.accept()).await {
                // A failed accept concerns that connection only.
                let Ok((stream, _)) = accepted else { continue };
                let (tls, status, client) = (self.tls.clone(), status.clone(), self.client.clone());
                connections.spawn("secure-port/connection", |stop| async move {
                    let serve = async {
                        let stream = tls.accept(stream).await?;
                        let peer = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                        let user = peer.and_then(|der| Certificate::from_der(der.to_vec()).ok());
                        let user = user.map(|certificate| certificate.subject);
                        let answer = service_fn(|request| {
                            let (status, client, user) = (status.clone(), client.clone(), user.clone());
                            async move { Ok::<_, Infallible>(answer(request, &*status, &client, user).await) }
                        });
                        auto::Builder::new(TokioExecutor::new())
                            .serve_connection(TokioIo::new(stream), answer)
                            .await
                    };
                    if let Some(Err(error)) = stop.or(serve).await {
                        debug!(%error, "connection ended");
                    }
                });
            }
        });
        Ok(())
    }
}

fn own_certificate() -> Result<Pair, PkiError> {
    let now = Timestamp::now();
    let request = pki::Request {
        subject: Subject::new("localhost", &[]),
        sans: vec![pki::San::parse("localhost"), pki::San::parse("127.0.0.1"), pki::San::parse("::1")],
        usages: Usages::server(),
        is_ca: false,
        not_before: now - SignedDuration::from_hours(1),
        not_after: now + OWN_CERTIFICATE,
    };
    Pair::self_signed(&request, Arc::new(PrivateKey::generate(Algorithm::default())?))
}

async fn answer(
    request: Request<Incoming>,
    status: &dyn Status,
    client: &Client,
    user: Option<Subject>,
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    match path {
        "/healthz" | "/livez" | "/readyz" => text(StatusCode::OK, "ok"),
        "/metrics" => match user {
            None => text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Some(user) if may_read(client, &user, path).await => text(StatusCode::OK, status.metrics()),
            Some(user) => {
                let refusal = format!("Forbidden: {:?} may not get {path:?}", user.common_name);
                text(StatusCode::FORBIDDEN, refusal)
            }
        },
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response
}

/// The API server decides; if it cannot be asked, nobody may.
async fn may_read(client: &Client, user: &Subject, path: &str) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": user.common_name, "groups": user.organizations,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        },
    });
    let answer = client.api(&resources::SUBJECT_ACCESS_REVIEWS).create::<Value>(&review).await;
    answer.is_ok_and(|review| review["status"]["allowed"] == true)
}
