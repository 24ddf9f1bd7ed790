//! Whether the two halves of a `kubernetes.io/tls` Secret belong together. A Secret that does not is stored all the
//! same; its writer is warned in the words that upstream's clients know.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::{Error as TlsError, InconsistentKeys};
use serde_json::Value;

use crate::tls;

/// What is wrong with the key pair of a Secret that should have one. Keys and certificates that cannot be read here
/// (a curve that nobody here signs with) are not called wrong.
pub fn problem(secret: &Value) -> Option<String> {
    if secret["type"] != "kubernetes.io/tls" {
        return None;
    }
    let part = |name: &str| STANDARD.decode(secret["data"][name].as_str()?).ok();
    // A part that is missing is refused elsewhere.
    let (certificate, key) = (part("tls.crt")?, part("tls.key")?);
    match tls::certified_key(&certificate, &key, "secret") {
        Err(tls::TlsError::NoCertificate { .. }) if has(&certificate, b"PRIVATE KEY-----") => Some(
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; \
             PEM inputs may have been switched"
                .to_owned(),
        ),
        Err(tls::TlsError::NoCertificate { .. }) => {
            Some("tls: failed to find any PEM data in certificate input".to_owned())
        }
        Err(tls::TlsError::Rustls {
            source: TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch),
            ..
        }) => Some("tls: private key does not match public key".to_owned()),
        Err(_) if matches!(PrivateKeyDer::from_pem_slice(&key), Err(PemError::NoItemsFound)) => {
            let found = has(&key, b"-----BEGIN CERTIFICATE-----");
            Some(if found {
                "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
            } else {
                "tls: failed to find any PEM data in key input".to_owned()
            })
        }
        _ => None,
    }
}

fn has(text: &[u8], wanted: &[u8]) -> bool {
    memchr::memmem::find(text, wanted).is_some()
}
