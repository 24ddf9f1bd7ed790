//! The listener that the API server's aggregation speaks to.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use client::Client;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use lifecycle::Tasks;
use pki::{Algorithm, Pair, PkiError, PrivateKey, Subject, Usages};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::answer::{Question, Refusal, answer, question};
use crate::samples::Samples;

/// How long the serving certificate lives, which is made for one run.
const LIFE: SignedDuration = SignedDuration::from_hours(24 * 365);

/// What the server needs.
pub struct Config {
    /// Reads pods and nodes, and kubelets through the node proxy.
    pub client: Client,
    /// Where it listens; port 0 for any.
    pub listen: SocketAddr,
    /// Who signs the certificate of the API server that may ask, in PEM.
    pub front_proxy_ca: Vec<u8>,
    /// The host name under which the API server calls, `<service>.<namespace>.svc`.
    pub server_name: String,
}

/// A server that cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the serving certificate cannot be made")]
    Certificate(#[from] PkiError),
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    #[error("the authority of the front proxy cannot be used")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
}

/// A running server.
pub struct Server {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its certificate is verified with, in PEM.
    pub ca: String,
}

/// Starts listening; it ends with the tasks.
pub async fn start(config: Config, tasks: &Tasks) -> Result<Server, StartError> {
    let own = certificate(&config.server_name)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in pki::pem::certificates(&config.front_proxy_ca)? {
        roots.add(certificate)?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.certificate.to_der()], own.key.to_der())?;
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(tls));
    let failed = |source| StartError::Listen { address: config.listen, source };
    let listener = TcpListener::bind(config.listen).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let samples = Arc::new(Samples::new(config.client.clone()));
    let (client, connections) = (config.client, tasks.clone());
    tasks.spawn("metrics-server", |stop| async move {
        while let Some(accepted) = stop.or(listener.accept()).await {
            // A failed accept concerns that connection only.
            let Ok((stream, _)) = accepted else { continue };
            let (tls, client, samples) = (tls.clone(), client.clone(), samples.clone());
            connections.spawn("metrics-server/connection", |stop| async move {
                let serve = async {
                    let stream = match tls.accept(stream).await {
                        Ok(stream) => stream,
                        Err(error) => return debug!(%error, "connection refused"),
                    };
                    let reply = service_fn(|request| {
                        let (client, samples) = (client.clone(), samples.clone());
                        async move { Ok::<_, Infallible>(reply(&request, &client, &samples).await) }
                    });
                    if let Err(error) =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), reply).await
                    {
                        debug!(%error, "connection ended");
                    }
                };
                stop.or(serve).await;
            });
        }
    });
    Ok(Server { address, ca: own.certificate_pem() })
}

fn certificate(name: &str) -> Result<Pair, PkiError> {
    let now = Timestamp::now();
    let request = pki::Request {
        subject: Subject::new(name, &[]),
        sans: vec![pki::San::parse(name)],
        usages: Usages::server(),
        is_ca: false,
        not_before: now - SignedDuration::from_hours(1),
        not_after: now + LIFE,
    };
    Pair::self_signed(&request, Arc::new(PrivateKey::generate(Algorithm::default())?))
}

async fn reply(request: &Request<Incoming>, client: &Client, samples: &Samples) -> Response<Full<Bytes>> {
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "metrics can only be read".into());
    }
    let uri = request.uri();
    let Some(asked) = question(uri.path(), uri.query().unwrap_or("")) else {
        return refuse(
            StatusCode::NOT_FOUND,
            "NotFound",
            "the server could not find the requested resource".into(),
        );
    };
    if asked == Question::Health {
        return Response::new(Full::new(Bytes::from_static(b"ok")));
    }
    match answer(asked, client, samples).await {
        Ok(found) => json_response(StatusCode::OK, &found),
        Err(Refusal::Missing(plural, name)) => {
            refuse(StatusCode::NOT_FOUND, "NotFound", format!("{plural}.metrics.k8s.io \"{name}\" not found"))
        }
        Err(Refusal::Api(error)) => {
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", telemetry::chain(&error).to_string())
        }
    }
}

fn refuse(code: StatusCode, reason: &str, message: String) -> Response<Full<Bytes>> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()});
    json_response(code, &status)
}

fn json_response(code: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
