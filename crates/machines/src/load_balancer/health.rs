//! Asking servers for their health.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use thiserror::Error;
use tokio::net::TcpStream;
use tracing::info;

use super::Server;
use super::config::Check;

/// Why a server is not well.
#[derive(Debug, Error)]
pub enum CheckError {
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("no answer")]
    Http(#[source] hyper::Error),
    #[error("answered {0}")]
    Status(http::StatusCode),
    #[error("did not answer in time")]
    Timeout,
    #[error("the check cannot be asked")]
    Request(#[from] http::Error),
}

/// Accepts any certificate: a check sends nothing that is secret and believes nothing but a status.
#[derive(Debug)]
struct AnyCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Asks.
#[derive(Debug, Clone)]
pub struct Checker {
    tls: Arc<rustls::ClientConfig>,
}

impl Checker {
    pub fn new() -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { tls: Arc::new(tls) })
    }

    async fn ask(&self, server: &Server, check: &Check) -> Result<(), CheckError> {
        let address = server.config.address;
        let stream = TcpStream::connect(address).await.map_err(CheckError::Connect)?;
        match check {
            Check::Connect => Ok(()),
            Check::Http { tls: false, path, status } => get(stream, path, *status).await,
            Check::Http { tls: true, path, status } => {
                let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
                let name = ServerName::IpAddress(address.ip().into());
                let stream = connector.connect(name, stream).await.map_err(CheckError::Connect)?;
                get(stream, path, *status).await
            }
        }
    }
}

async fn get<S>(stream: S, path: &str, wanted: u16) -> Result<(), CheckError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(CheckError::Http)?;
    let request = http::Request::get(path)
        .header(http::header::HOST, "localhost")
        .header(http::header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = async { sender.send_request(request).await.map_err(CheckError::Http) };
    tokio::pin!(answer, connection);
    let answer = tokio::select! {
        answer = &mut answer => answer?,
        // The connection may end with the answer in hand.
        _ = &mut connection => answer.await?,
    };
    if answer.status().as_u16() == wanted { Ok(()) } else { Err(CheckError::Status(answer.status())) }
}

/// Counts answers towards a change of mind.
#[derive(Debug, Default)]
pub struct Count {
    well: u32,
    ill: u32,
}

impl Count {
    /// Whether the server is well after one more answer. The very first decides at once.
    pub fn after(&mut self, was_up: bool, first: bool, ok: bool, rise: u32, fall: u32) -> bool {
        (self.well, self.ill) = if ok { (self.well + 1, 0) } else { (0, self.ill + 1) };
        match (was_up, ok) {
            (true, false) => !(first || self.ill >= fall),
            (false, true) => self.well >= rise,
            (state, _) => state,
        }
    }
}

/// Asks a server at intervals and writes down how it is.
pub async fn watch(name: &str, server: &Server, check: &Check, checker: &Checker, limit: Duration) {
    let mut count = Count::default();
    let mut first = true;
    loop {
        let limit = limit.min(server.config.interval.max(Duration::from_secs(1)));
        let outcome = match tokio::time::timeout(limit, checker.ask(server, check)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(CheckError::Timeout),
        };
        let was_up = *server.up.borrow();
        let is_up = count.after(was_up, first, outcome.is_ok(), server.config.rise, server.config.fall);
        first = false;
        let text = match &outcome {
            Ok(()) => "ok".to_owned(),
            Err(error) => telemetry::chain(error).to_string(),
        };
        text.clone_into(&mut server.last.write().unwrap_or_else(PoisonError::into_inner));
        if is_up != was_up {
            info!(server = name, up = is_up, check = text, "a server changed");
            server.up.send_replace(is_up);
        }
        tokio::time::sleep(server.config.interval).await;
    }
}
