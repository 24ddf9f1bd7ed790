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
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::client_ca::{self, ToldAuthority};
use super::{ProgramArgs, Status};

/// How long a certificate lives that was made for one run.
const OWN_CERTIFICATE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Connections that may wait to be taken.
const BACKLOG: u32 = 128;

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
    #[error("{name:?} is not a cipher suite that is spoken")]
    CipherSuite { name: String },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A secure port, not yet open.
pub struct Serving {
    address: SocketAddr,
    tls: TlsAcceptor,
    client: Client,
    /// Learns who signs client certificates, if no file says it.
    told: Option<Arc<ToldAuthority>>,
    /// Paths for everyone.
    open: Arc<[String]>,
    /// Whether other processes may listen here too.
    shared: bool,
    /// Metrics that are not shown.
    disabled: Vec<String>,
}

/// A status without some of its metrics.
struct Without {
    status: Arc<dyn Status>,
    disabled: Vec<String>,
}

impl Status for Without {
    fn metrics(&self) -> String {
        let text = self.status.metrics();
        if self.disabled.is_empty() {
            return text;
        }
        let kept =
            text.split_inclusive('\n').filter(|line| !self.disabled.iter().any(|name| is_of(line, name)));
        kept.collect()
    }
}

/// Whether a line in the Prometheus text format is of this metric: a comment about it, its value or a part of it.
fn is_of(line: &str, metric: &str) -> bool {
    let line = line.strip_prefix("# TYPE ").or_else(|| line.strip_prefix("# HELP ")).unwrap_or(line);
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    let part = name.strip_prefix(metric);
    part.is_some_and(|part| matches!(part, "" | "_bucket" | "_sum" | "_count"))
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
        let provider = Arc::new(provider(&args.tls_cipher_suites)?);
        let versions: &[&rustls::SupportedProtocolVersion] = match &*args.tls_min_version {
            "VersionTLS13" => &[&rustls::version::TLS13],
            _ => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let builder =
            rustls::ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions)?;
        let (verifier, told): (Arc<dyn ClientCertVerifier>, _) = match &args.client_ca_file {
            Some(path) => (client_ca::verifier(&read(path)?, &provider)?, None),
            None => {
                let told = ToldAuthority::new(provider);
                (told.clone(), Some(told))
            }
        };
        let builder = builder.with_client_cert_verifier(verifier);
        let mut tls = builder.with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        if !args.disable_http2_serving {
            tls.alpn_protocols.insert(0, b"h2".to_vec());
        }
        let open = args.authorization_always_allow_paths.clone().into();
        let shared = args.permit_port_sharing;
        let disabled = args.accepted.disabled_metrics.clone();
        Ok(Self { address, tls: TlsAcceptor::from(Arc::new(tls)), client, told, open, shared, disabled })
    }

    fn listen(&self) -> std::io::Result<TcpListener> {
        let socket = match self.address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(self.shared)?;
        socket.bind(self.address)?;
        socket.listen(BACKLOG)
    }

    /// Opens the port; it closes with the tasks.
    pub async fn start(self, status: Arc<dyn Status>, tasks: &Tasks) -> Result<(), ServeError> {
        let listener =
            self.listen().map_err(|source| ServeError::Listen { address: self.address, source })?;
        let status: Arc<dyn Status> = Arc::new(Without { status, disabled: self.disabled.clone() });
        if let Some(told) = &self.told {
            told.follow(self.client.clone(), tasks);
        }
        let connections = tasks.clone();
        tasks.spawn("secure-port", |stop| async move {
            while let Some(accepted) = stop.or(listener.accept()).await {
                // A failed accept concerns that connection only.
                let Ok((stream, _)) = accepted else { continue };
                let (tls, status, client) = (self.tls.clone(), status.clone(), self.client.clone());
                let open = self.open.clone();
                connections.spawn("secure-port/connection", |stop| async move {
                    let serve = async {
                        let stream = tls.accept(stream).await?;
                        let peer = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                        let user = peer.and_then(|der| Certificate::from_der(der.to_vec()).ok());
                        let user = user.map(|certificate| certificate.subject);
                        let answer = service_fn(|request| {
                            let (status, client, user) = (status.clone(), client.clone(), user.clone());
                            let open = open.clone();
                            async move {
                                Ok::<_, Infallible>(answer(request, &*status, &client, user, &open).await)
                            }
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

/// The cipher suites that were named, or all.
fn provider(names: &[String]) -> Result<rustls::crypto::CryptoProvider, ServeError> {
    let mut provider = rustls::crypto::ring::default_provider();
    if names.is_empty() {
        return Ok(provider);
    }
    // rustls spells those of TLS 1.3 with their version in front.
    let iana =
        |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
    let known: Vec<String> = provider.cipher_suites.iter().map(iana).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        return Err(ServeError::CipherSuite { name: name.clone() });
    }
    // As with upstream, those of TLS 1.3 cannot be chosen.
    provider.cipher_suites.retain(|suite| suite.tls13().is_some() || names.contains(&iana(suite)));
    Ok(provider)
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
    certificate: Option<Subject>,
    open: &[String],
) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !is_open(open, path) {
        let user = match bearer(&request) {
            Some(token) => user_of(client, token).await,
            None => Some(match certificate {
                Some(own) => User { name: own.common_name, groups: own.organizations },
                None => User {
                    name: "system:anonymous".to_owned(),
                    groups: vec!["system:unauthenticated".to_owned()],
                },
            }),
        };
        let Some(user) = user else { return text(StatusCode::UNAUTHORIZED, "Unauthorized") };
        if !may_read(client, &user, path).await {
            let refusal = format!("forbidden: User {:?} cannot get path {path:?}", user.name);
            return text(StatusCode::FORBIDDEN, refusal);
        }
    }
    match path {
        "/healthz" | "/livez" | "/readyz" => text(StatusCode::OK, "ok"),
        "/metrics" => text(StatusCode::OK, status.metrics()),
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// Whether a path is for everyone.
fn is_open(open: &[String], path: &str) -> bool {
    open.iter().any(|own| match own.strip_suffix('*') {
        Some(begin) => path.starts_with(begin),
        None => own == path,
    })
}

/// Who asks.
struct User {
    name: String,
    groups: Vec<String>,
}

fn bearer(request: &Request<Incoming>) -> Option<&str> {
    let value = request.headers().get(http::header::AUTHORIZATION)?.to_str().ok()?;
    value.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty())
}

/// The user of a token, as the API server knows it.
async fn user_of(client: &Client, token: &str) -> Option<User> {
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer: Value = client.post_path(path, &review).await.ok()?;
    let status = &answer["status"];
    let name = status["user"]["username"].as_str().filter(|_| status["authenticated"] == true)?.to_owned();
    let groups = status["user"]["groups"].as_array().into_iter().flatten();
    Some(User { name, groups: groups.filter_map(|group| group.as_str().map(str::to_owned)).collect() })
}

fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    response
}

/// The API server decides; if it cannot be asked, nobody may.
async fn may_read(client: &Client, user: &User, path: &str) -> bool {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {
            "user": user.name, "groups": user.groups,
            "nonResourceAttributes": {"path": path, "verb": "get"},
        },
    });
    let answer = client.api(&resources::SUBJECT_ACCESS_REVIEWS).create::<Value>(&review).await;
    answer.is_ok_and(|review| review["status"]["allowed"] == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_for_everyone_may_end_in_a_star() {
        let open = ["/healthz".to_owned(), "/metrics/*".to_owned()];
        for (path, wanted) in
            [("/healthz", true), ("/healthz/log", false), ("/metrics", false), ("/metrics/slis", true)]
        {
            assert_eq!(is_open(&open, path), wanted, "{path}");
        }
    }

    struct Fixed;

    impl Status for Fixed {
        fn metrics(&self) -> String {
            "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_sum 1\na_count 1\n# TYPE a_x gauge\na_x{x=\"a\"} 2\n"
                .to_owned()
        }
    }

    #[test]
    fn disabled_metrics_are_not_shown() {
        let shown = |names: &[&str]| {
            let disabled = names.iter().map(|&name| name.to_owned()).collect();
            Without { status: Arc::new(Fixed), disabled }.metrics()
        };
        assert_eq!(shown(&["a"]), "# TYPE a_x gauge\na_x{x=\"a\"} 2\n");
        assert!(!shown(&["a_x"]).contains("a_x") && shown(&["a_x"]).contains("a_bucket"));
        assert_eq!(shown(&[]), Fixed.metrics());
    }

    #[test]
    fn named_cipher_suites_are_the_only_older_ones() {
        let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned();
        let chosen = provider(std::slice::from_ref(&one)).unwrap();
        assert_eq!(chosen.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count(), 1);
        assert!(chosen.cipher_suites.iter().any(|suite| suite.tls13().is_some()));
        assert!(provider(&["TLS_RSA_WITH_RC4_128_SHA".to_owned()]).is_err());
    }
}
