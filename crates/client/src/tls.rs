//! What a TLS client trusts and how it shows who it is.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::HttpsError;

/// Whom a client believes.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// Servers with a certificate of one of these, in PEM.
    Authorities(&'a [u8]),
    /// Servers with a certificate of one that this machine trusts.
    System,
    /// Whoever answers: the peer is not known, only the traffic is hidden.
    Anyone,
}

/// The settings of a client that speaks one protocol (`h2`, `http/1.1`); `identity` is a chain and its key, in PEM.
pub fn tls_client(
    trust: Trust<'_>,
    identity: Option<(&[u8], &[u8])>,
    protocol: &str,
) -> Result<ClientConfig, HttpsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(HttpsError::Tls)?;
    let builder = match trust {
        Trust::Authorities(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, "certificate authority")? {
                roots.add(certificate).map_err(HttpsError::Tls)?;
            }
            builder.with_root_certificates(roots)
        }
        Trust::System => builder.with_root_certificates(system_roots()),
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(any_server(provider)),
    };
    let mut tls = match identity {
        Some((chain, key)) => {
            let chain = certificates(chain, "client certificate")?;
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|source| HttpsError::Pem { what: "client key", source })?;
            builder.with_client_auth_cert(chain, key).map_err(HttpsError::Tls)?
        }
        None => builder.with_no_client_auth(),
    };
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    Ok(tls)
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, HttpsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| HttpsError::Pem { what, source })?;
    if found.is_empty() { Err(HttpsError::Empty { what }) } else { Ok(found) }
}

/// The roots that this machine trusts, for servers whose authority nobody named. None where the machine has none.
pub fn system_roots() -> RootCertStore {
    let mut store = RootCertStore::empty();
    for path in
        ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"]
    {
        if let Ok(pem) = std::fs::read(path) {
            store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
            break;
        }
    }
    store
}

/// Believes whoever holds the key of the certificate that it shows.
pub fn any_server(provider: Arc<CryptoProvider>) -> Arc<dyn ServerCertVerifier> {
    Arc::new(AnyServer { provider })
}

#[derive(Debug)]
struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
