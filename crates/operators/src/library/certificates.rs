//! Certificates that operators keep: signers come from the installation, what they sign is made and renewed here.
//!
//! A certificate is made anew when it is past four fifths of its life, when its signer is another one, or when it should
//! say something else. What is fine stays as it is, whoever made it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use pki::cert::{BACKDATE, Request, San};
use pki::{Algorithm, Certificate, Pair, PkiError, PrivateKey, Subject, Usages};
use serde_json::{Value, json};
use thiserror::Error;

const NOT_BEFORE: &str = "auth.openshift.io/certificate-not-before";
const NOT_AFTER: &str = "auth.openshift.io/certificate-not-after";
const ISSUER: &str = "auth.openshift.io/certificate-issuer";
const HOSTNAMES: &str = "auth.openshift.io/certificate-hostnames";

/// Why a certificate cannot be kept.
#[derive(Debug, Error)]
pub enum CertificateError {
    #[error("secret {0} is missing")]
    NoSigner(String),
    #[error("secret {secret} holds no usable certificate and key")]
    Unusable { secret: String, source: PkiError },
    #[error("secret {0} holds no key {1:?}")]
    NoKey(String, &'static str),
    #[error("a certificate cannot be made")]
    Make(#[from] PkiError),
}

/// What a certificate says.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: Vec<String>,
    pub usages: Usages,
    pub days: i64,
}

impl Wanted {
    pub fn client(common_name: &str, organizations: &[&str], days: i64) -> Self {
        let organizations = organizations.iter().map(|text| (*text).to_owned()).collect();
        Self {
            common_name: common_name.to_owned(),
            organizations,
            names: Vec::new(),
            usages: Usages::client(),
            days,
        }
    }

    pub fn server(common_name: &str, names: Vec<String>, days: i64) -> Self {
        Self {
            common_name: common_name.to_owned(),
            organizations: Vec::new(),
            names,
            usages: Usages::server(),
            days,
        }
    }

    /// Shown by those who are server and client to each other.
    pub fn peer(common_name: &str, names: Vec<String>, days: i64) -> Self {
        Self { usages: Usages::peer(), ..Self::server(common_name, names, days) }
    }

    fn request(&self, now: Timestamp) -> Request {
        let organizations: Vec<&str> = self.organizations.iter().map(String::as_str).collect();
        let mut sans: Vec<San> = Vec::new();
        for san in self.names.iter().map(|text| San::parse(text)) {
            if !sans.contains(&san) {
                sans.push(san);
            }
        }
        Request {
            subject: Subject::new(&self.common_name, &organizations),
            sans,
            usages: self.usages.clone(),
            is_ca: false,
            not_before: now - BACKDATE,
            not_after: now + SignedDuration::from_hours(24 * self.days),
        }
    }
}

/// The decoded value of a Secret's key.
pub fn secret_bytes(secret: &Value, key: &str) -> Option<Vec<u8>> {
    STANDARD.decode(secret["data"][key].as_str()?).ok()
}

/// The pair of a Secret of type `kubernetes.io/tls`.
pub fn pair_of(secret: Option<&Value>, name: &str) -> Result<Pair, CertificateError> {
    let secret = secret.ok_or_else(|| CertificateError::NoSigner(name.to_owned()))?;
    let bytes = |key: &'static str| {
        secret_bytes(secret, key).ok_or_else(|| CertificateError::NoKey(name.to_owned(), key))
    };
    Pair::from_pem(&bytes("tls.crt")?, &bytes("tls.key")?)
        .map_err(|source| CertificateError::Unusable { secret: name.to_owned(), source })
}

/// Whether a certificate still serves.
fn serves(have: &Certificate, signer: &Certificate, request: &Request, now: Timestamp) -> bool {
    let life = have.not_after.duration_since(have.not_before);
    let refresh = have.not_before + life * 4 / 5;
    have.subject == request.subject
        && have.sans == request.sans
        && have.usages == request.usages
        && have.is_signed_by(signer)
        && now < refresh
        && have.not_before <= now
}

/// The pair that a Secret should hold, and whether it is a new one.
pub fn keep(
    secret: Option<&Value>,
    signer: &Pair,
    wanted: &Wanted,
    now: Timestamp,
) -> Result<(Pair, bool), CertificateError> {
    let request = wanted.request(now);
    if let Ok(have) = pair_of(secret, "")
        && serves(&have.certificate, &signer.certificate, &request, now)
    {
        return Ok((have, false));
    }
    let key = PrivateKey::generate(Algorithm::EcdsaP256)?;
    Ok((signer.issue(&request, key.into())?, true))
}

/// A Secret with a pair, for a round to write.
pub fn tls_secret(namespace: &str, name: &str, pair: &Pair) -> Value {
    let certificate = &pair.certificate;
    let hostnames: Vec<String> = certificate.sans.iter().map(ToString::to_string).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {
            "name": name, "namespace": namespace,
            "annotations": {
                NOT_BEFORE: certificate.not_before.to_string(),
                NOT_AFTER: certificate.not_after.to_string(),
                ISSUER: certificate.issuer.common_name,
                HOSTNAMES: hostnames.join(","),
            },
        },
        "data": {
            "tls.crt": STANDARD.encode(pair.certificate_pem()),
            "tls.key": STANDARD.encode(pair.key_pem()),
        },
    })
}

/// A Secret of any content.
pub fn secret(namespace: &str, name: &str, data: &[(String, Vec<u8>)]) -> Value {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, value)| (key.clone(), json!(STANDARD.encode(value)))).collect();
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "namespace": namespace}, "data": data,
    })
}

/// A ConfigMap.
pub fn config_map(namespace: &str, name: &str, data: &[(&str, String)]) -> Value {
    let data: serde_json::Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace}, "data": data,
    })
}

/// One text of the certificates of several: each once, those that have ended left out.
pub fn bundle(parts: &[&[u8]], now: Timestamp) -> String {
    let mut seen: Vec<String> = Vec::new();
    for part in parts {
        for certificate in Certificate::bundle_from_pem(part).unwrap_or_default() {
            let text = certificate.to_pem();
            if certificate.not_after > now && !seen.contains(&text) {
                seen.push(text);
            }
        }
    }
    seen.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(now: Timestamp) -> Pair {
        let request = Request {
            subject: Subject::new("etcd-signer", &[]),
            sans: Vec::new(),
            usages: Usages::authority(),
            is_ca: true,
            not_before: now - SignedDuration::from_hours(1),
            not_after: now + SignedDuration::from_hours(24 * 3650),
        };
        let key = PrivateKey::generate(Algorithm::EcdsaP256).unwrap();
        Pair::self_signed(&request, key.into()).unwrap()
    }

    #[test]
    fn a_certificate_stays_while_it_serves_and_is_renewed_for_each_reason() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (own, other) = (signer(now), signer(now));
        let wanted = Wanted::peer("system:etcd-peer:etcd", vec!["localhost".into(), "10.0.0.1".into()], 100);
        let (made, new) = keep(None, &own, &wanted, now).unwrap();
        assert!(new);
        let secret = tls_secret("openshift-etcd", "etcd-peer-a", &made);
        assert_eq!(secret["metadata"]["annotations"][ISSUER], "etcd-signer");
        let later = |days: i64| now + SignedDuration::from_hours(24 * days);
        let (kept, new) = keep(Some(&secret), &own, &wanted, later(79)).unwrap();
        assert!(!new && kept.certificate_pem() == made.certificate_pem());
        assert!(keep(Some(&secret), &own, &wanted, later(81)).unwrap().1, "past four fifths");
        assert!(keep(Some(&secret), &other, &wanted, now).unwrap().1, "another signer");
        let renamed = Wanted { names: vec!["localhost".into()], ..wanted.clone() };
        assert!(keep(Some(&secret), &own, &renamed, now).unwrap().1, "other names");
        let broken = json!({"data": {"tls.crt": "AAAA", "tls.key": "AAAA"}});
        assert!(keep(Some(&broken), &own, &wanted, now).unwrap().1, "what cannot be read is replaced");
        assert!(pair_of(None, "etcd-signer").is_err());
    }

    #[test]
    fn a_bundle_holds_each_once_and_none_that_has_ended() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (one, other) = (signer(now).certificate_pem(), signer(now).certificate_pem());
        let text = bundle(&[one.as_bytes(), other.as_bytes(), one.as_bytes(), b"junk"], now);
        assert_eq!(text, format!("{one}{other}"));
        assert_eq!(bundle(&[one.as_bytes()], now + SignedDuration::from_hours(24 * 4000)), "");
    }
}
