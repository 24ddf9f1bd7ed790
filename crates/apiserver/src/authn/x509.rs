//! Client certificates: the common name is the user, the organizations are the groups.

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::user::UserInfo;

/// The relative distinguished name under which a certificate carries a user's uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

/// Judges certificates by one CA.
#[derive(Clone, Debug)]
pub struct CertificateAuthenticator {
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Why a certificate was not taken.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Not signed by the CA, expired, or not for clients.
    #[error("x509: certificate is not valid")]
    Untrusted(#[source] rustls::Error),
    /// Not readable.
    #[error("x509: certificate is malformed")]
    Malformed,
}

impl CertificateAuthenticator {
    /// Takes what `verifier` takes.
    pub fn new(verifier: Arc<dyn ClientCertVerifier>) -> Self {
        Self { verifier }
    }

    /// The user of a chain whose first certificate is the client's own.
    pub fn authenticate(&self, chain: &[CertificateDer<'_>]) -> Result<Option<UserInfo>, CertificateError> {
        let Some((own, intermediates)) = chain.split_first() else { return Ok(None) };
        self.verifier
            .verify_client_cert(own, intermediates, UnixTime::now())
            .map_err(CertificateError::Untrusted)?;
        user_of(own).map(Some)
    }
}

/// Reads the subject. An empty common name is no user.
pub fn user_of(certificate: &CertificateDer<'_>) -> Result<UserInfo, CertificateError> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::Malformed)?;
    let subject = parsed.subject();
    let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
    if name.is_empty() {
        return Err(CertificateError::Malformed);
    }
    let groups: Vec<&str> = subject.iter_organization().filter_map(|group| group.as_str().ok()).collect();
    let mut user = UserInfo::new(name, &groups);
    for attribute in subject.iter_attributes() {
        if attribute.attr_type().to_id_string() == UID_ATTRIBUTE
            && let Ok(uid) = attribute.as_str()
        {
            user.uid = uid.to_owned();
        }
    }
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={}", digest(certificate))],
    );
    Ok(user)
}

fn digest(certificate: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    sha2::Sha256::digest(certificate).iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}"); // writing to a String cannot fail
        out
    })
}
