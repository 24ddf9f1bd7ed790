//! Client certificates: the common name is the user, the organizations are the groups.

use std::sync::{Arc, Mutex};

use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::ClientJudge;
use crate::user::UserInfo;

/// The relative distinguished name under which a certificate carries a user's uid.
const UID_ATTRIBUTE: &str = "1.3.6.1.4.1.57683.2";

/// Judges certificates by one CA.
#[derive(Clone, Debug)]
pub struct CertificateAuthenticator {
    judge: Arc<ClientJudge>,
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
    /// Takes what `judge` takes.
    pub fn new(judge: ClientJudge) -> Self {
        Self { judge: Arc::new(judge) }
    }

    /// The user of a chain whose first certificate is the client's own.
    pub fn authenticate(&self, chain: &[CertificateDer<'_>]) -> Result<Option<UserInfo>, CertificateError> {
        let Some((own, intermediates)) = chain.split_first() else { return Ok(None) };
        self.judge.judge(own, intermediates).map_err(CertificateError::Untrusted)?;
        user_of(own).map(Some)
    }

    /// The same for a connection that has asked before: its certificate is verified once a minute, and when the
    /// CA was replaced or the certificate has ended. `finish` completes the user, once. The other answer is how many
    /// seconds the certificate is still good.
    pub fn authenticate_again(
        &self,
        chain: &[CertificateDer<'_>],
        verdict: &Verdict,
        finish: impl FnOnce(UserInfo) -> UserInfo,
    ) -> Result<Option<(Arc<UserInfo>, u64)>, CertificateError> {
        let now = UnixTime::now().as_secs();
        let mut known = verdict.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = &*known
            && now < known.until
            && Arc::ptr_eq(&known.judge, &self.judge)
        {
            return Ok(Some((known.user.clone(), known.ends.saturating_sub(now))));
        }
        *known = None;
        let (Some(user), Some(own)) = (self.authenticate(chain)?, chain.first()) else { return Ok(None) };
        let user = Arc::new(finish(user));
        let ends = ends(own).unwrap_or(now);
        let until = ends.min(now + VERDICT_SECONDS);
        *known = Some(Known { judge: self.judge.clone(), until, ends, user: user.clone() });
        Ok(Some((user, ends.saturating_sub(now))))
    }
}

/// How long a verdict on a connection's certificate stands.
const VERDICT_SECONDS: u64 = 60;

/// What the certificate of a connection was found to mean.
#[derive(Debug, Default)]
pub struct Verdict(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    judge: Arc<ClientJudge>,
    /// Seconds since 1970.
    until: u64,
    /// The last second in which the certificate is good.
    ends: u64,
    user: Arc<UserInfo>,
}

/// The last second in which a certificate is good.
fn ends(certificate: &CertificateDer<'_>) -> Option<u64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    u64::try_from(parsed.validity().not_after.timestamp()).ok()
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
    let mut uids = subject.iter_attributes().filter(|own| own.attr_type().to_id_string() == UID_ATTRIBUTE);
    if let Some(uid) = uids.next() {
        user.uid = uid.as_str().unwrap_or_default().to_owned();
        if user.uid.is_empty() || uids.next().is_some() {
            return Err(CertificateError::Malformed);
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
