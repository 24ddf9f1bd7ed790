//! Serving TLS: certificates that can be replaced while running, client certificates asked for but not demanded.
//!
//! The handshake proves that the client holds the key of the certificate it shows. Whether that certificate
//! means anything is decided by authentication, so that a stranger's certificate ends in a 401 and not in a
//! broken connection.

use std::sync::{Arc, RwLock};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};

use crate::old_certificates;
use crate::own_authority::OwnAuthority;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The text holds no certificate.
    #[error("no certificate in {what}")]
    NoCertificate {
        /// Which input.
        what: &'static str,
    },
    /// The text is no PEM.
    #[error("cannot read {what}")]
    Pem {
        /// Which input.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A flag about TLS.
    #[error("--{flag}: {value:?} is not supported")]
    Flag {
        /// Which one.
        flag: &'static str,
        /// What it says.
        value: String,
    },
    /// rustls refuses it.
    #[error("cannot use {what}")]
    Rustls {
        /// Which input.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// No verifier could be built of the CA.
    #[error("cannot verify clients with {what}")]
    Verifier {
        /// Which input.
        what: &'static str,
        /// Why.
        #[source]
        source: rustls::server::VerifierBuilderError,
    },
}

/// Reads every certificate of a PEM text.
pub fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { what, source })?;
    if found.is_empty() { Err(TlsError::NoCertificate { what }) } else { Ok(found) }
}

/// The roots of a CA bundle.
pub fn roots(pem: &[u8], what: &'static str) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem, what)? {
        store.add(certificate).map_err(|source| TlsError::Rustls { what, source })?;
    }
    Ok(store)
}

/// A certificate with its key, ready to sign.
pub fn certified_key(certificate: &[u8], key: &[u8], what: &'static str) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(certificate, what)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| TlsError::Pem { what, source })?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|source| TlsError::Rustls { what, source })
}

/// The cryptography used everywhere.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The serving certificates; replaced as a whole by a reload.
#[derive(Debug)]
pub struct ServingCertificates {
    current: RwLock<Arc<CertifiedKey>>,
    by_name: RwLock<Vec<(String, Arc<CertifiedKey>)>>,
}

impl ServingCertificates {
    /// Serves `certificate` for every name.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let current = Arc::new(certified_key(certificate, key, "the serving certificate")?);
        Ok(Self { current: RwLock::new(current), by_name: RwLock::default() })
    }

    /// Serves another certificate from the next handshake on.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let next = Arc::new(certified_key(certificate, key, "the serving certificate")?);
        *self.current.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = next;
        Ok(())
    }

    /// Serves `certificate` to clients that ask for `name` (`*.domain` covers one label).
    pub fn add_named(&self, name: &str, certificate: &[u8], key: &[u8]) -> Result<(), TlsError> {
        let key = Arc::new(certified_key(certificate, key, "a named serving certificate")?);
        self.by_name
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .push((name.to_ascii_lowercase(), key));
        Ok(())
    }
}

impl ResolvesServerCert for ServingCertificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(name) = hello.server_name() {
            let named = self.by_name.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            let wildcard = name.split_once('.').map(|(_, domain)| format!("*.{domain}"));
            let found = named.iter().find(|(own, _)| own == name || Some(own) == wildcard.as_ref());
            if let Some((_, key)) = found {
                return Some(key.clone());
            }
        }
        Some(self.current.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone())
    }
}

/// Asks for a certificate and takes any whose key the client holds.
#[derive(Debug)]
struct AskForCertificate {
    provider: Arc<CryptoProvider>,
    hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for AskForCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion()) // the chain is judged by authn::x509
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        if old_certificates::is_first_version(certificate) {
            return old_certificates::verify_handshake(message, certificate, signature, algorithms);
        }
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        if old_certificates::is_first_version(certificate) {
            return old_certificates::verify_handshake(message, certificate, signature, algorithms);
        }
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Which TLS is spoken with clients.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Nothing older than 1.3.
    only_13: bool,
    /// Only these suites; all that are safe if empty.
    suites: Vec<rustls::CipherSuite>,
    /// Only these key exchanges; all that are safe if empty.
    curves: Vec<rustls::NamedGroup>,
}

impl Limits {
    /// Reads the flags `--tls-min-version`, `--tls-cipher-suites` and `--tls-curve-preferences`. Older versions than 1.2 are not spoken, and
    /// of TLS 1.2 only suites with forward secrecy and authenticated encryption are.
    pub fn parse(min_version: &str, suites: &[String], curves: &[u16]) -> Result<Self, TlsError> {
        let only_13 = match min_version {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => false,
            "VersionTLS13" => true,
            other => return Err(TlsError::Flag { flag: "tls-min-version", value: other.to_owned() }),
        };
        let provider = provider();
        let known = &provider.cipher_suites;
        let mut wanted = Vec::new();
        for name in suites {
            // The IANA names of TLS 1.3 suites do not say TLS13; rustls's do.
            let plain = name.replacen("TLS13_", "TLS_", 1);
            let found = known.iter().map(|suite| suite.suite()).find(|suite| {
                let own = suite.as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1);
                own == plain || own == format!("{plain}_SHA256")
            });
            let found =
                found.ok_or_else(|| TlsError::Flag { flag: "tls-cipher-suites", value: name.clone() })?;
            wanted.push(found);
        }
        // A list of what is allowed: what of it is not spoken is left out, as long as something stays.
        let spoken = provider.kx_groups.iter().map(|group| group.name());
        let allowed: Vec<_> = spoken.filter(|group| curves.contains(&u16::from(*group))).collect();
        if allowed.is_empty() && !curves.is_empty() {
            let value = curves.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
            return Err(TlsError::Flag { flag: "tls-curve-preferences", value });
        }
        Ok(Self { only_13, suites: wanted, curves: allowed })
    }
}

/// The DNS names and addresses in a certificate, for which it is served.
pub fn names(pem: &[u8], what: &'static str) -> Result<Vec<String>, TlsError> {
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
    let chain = certificates(pem, what)?;
    let Some(own) = chain.first() else { return Err(TlsError::NoCertificate { what }) };
    let Ok((_, parsed)) = X509Certificate::from_der(own) else {
        return Err(TlsError::NoCertificate { what });
    };
    let names = parsed.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
    Ok(names
        .into_iter()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_owned()),
            _ => None,
        })
        .collect())
}

/// The server side of every listener. `hints` are the CAs that clients are told about.
pub fn server_config(
    certificates: Arc<ServingCertificates>,
    hints: Vec<DistinguishedName>,
    limits: &Limits,
    http2: bool,
) -> Result<rustls::ServerConfig, TlsError> {
    let mut own = rustls::crypto::ring::default_provider();
    if !limits.suites.is_empty() {
        // Suites of TLS 1.3 cannot be chosen, as with Go's programs.
        own.cipher_suites.retain(|suite| {
            suite.version() == &rustls::version::TLS13 || limits.suites.contains(&suite.suite())
        });
    }
    if !limits.curves.is_empty() {
        own.kx_groups.retain(|group| limits.curves.contains(&group.name()));
    }
    let provider = Arc::new(own);
    let versions: &[&rustls::SupportedProtocolVersion] =
        if limits.only_13 { &[&rustls::version::TLS13] } else { rustls::ALL_VERSIONS };
    let verifier = Arc::new(AskForCertificate { provider: provider.clone(), hints });
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|source| TlsError::Rustls { what: "the protocol versions", source })?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if !http2 {
        config.alpn_protocols.remove(0);
    }
    Ok(config)
}

/// Judges client certificates by one CA bundle.
#[derive(Debug)]
pub struct ClientJudge {
    usual: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
}

impl ClientJudge {
    /// Reads the bundle.
    pub fn new(pem: &[u8], what: &'static str) -> Result<Self, TlsError> {
        let usual = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem, what)?), provider())
            .build()
            .map_err(|source| TlsError::Verifier { what, source })?;
        Ok(Self { usual, authorities: certificates(pem, what)? })
    }

    /// Whether a certificate is a client's, good now, and signed by one of the bundle.
    pub fn judge(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        let now = UnixTime::now();
        match self.usual.verify_client_cert(own, intermediates, now) {
            Err(_) if old_certificates::is_vouched_for(own, &self.authorities, now) => Ok(()),
            usual => usual.map(|_| ()),
        }
    }
}

/// The client side towards servers signed by `roots`, showing `identity` if there is one.
pub fn client_config(
    roots: RootCertStore,
    identity: Option<CertifiedKey>,
) -> Result<rustls::ClientConfig, TlsError> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|source| TlsError::Rustls { what: "the protocol versions", source })?;
    let builder = match OwnAuthority::new(roots) {
        Ok(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
        Err(nobody) => builder.with_root_certificates(nobody),
    };
    Ok(match identity {
        Some(key) => builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key))),
        None => builder.with_no_client_auth(),
    })
}

/// The client side towards a server whose certificate is not judged (kubelets with self-made certificates, proxied pods).
pub fn unverified_client_config(identity: Option<CertifiedKey>) -> Result<rustls::ClientConfig, TlsError> {
    let mut config = client_config(RootCertStore::empty(), identity)?;
    config.dangerous().set_certificate_verifier(client::any_server(provider()));
    Ok(config)
}
