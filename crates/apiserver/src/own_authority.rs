//! Judges servers as usual, and believes one whose certificate is itself a root, as Go programs do: what
//! `openssl req -x509` makes is its own authority, which the usual judge takes for no server's.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, RootCertStore};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::provider;

/// See the module.
#[derive(Debug)]
pub struct OwnAuthority {
    usual: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
}

impl OwnAuthority {
    /// Gives the roots back if there are none that anybody could be judged by.
    pub fn new(roots: RootCertStore) -> Result<Self, RootCertStore> {
        let roots = Arc::new(roots);
        match WebPkiServerVerifier::builder_with_provider(roots.clone(), provider()).build() {
            Ok(usual) => Ok(Self { usual, roots }),
            Err(_) => Err(Arc::unwrap_or_clone(roots)),
        }
    }

    /// Whether a certificate is a root, good now, and for servers.
    fn is_trusted(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
        let mut alone = RootCertStore::empty();
        let known = alone.add(certificate.clone().into_owned()).is_ok()
            && alone.roots.iter().all(|own| self.roots.roots.contains(own));
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return false };
        let (begin, end) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let good_now = i64::try_from(now.as_secs()).is_ok_and(|now| (begin..=end).contains(&now));
        let usage = parsed.extended_key_usage().ok().flatten();
        known && good_now && usage.is_none_or(|usage| usage.value.server_auth || usage.value.any)
    }
}

impl ServerCertVerifier for OwnAuthority {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let usual = self.usual.verify_server_cert(certificate, chain, name, ocsp, now);
        match usual {
            Err(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(_)))
                if self.is_trusted(certificate, now) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            usual => usual,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{certificates, roots};

    /// Made by `openssl req -x509 -newkey ec -subj /CN=hook -addext subjectAltName=DNS:hook.example.com`.
    const OWN: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBkzCCATigAwIBAgIUcFwvYztEdvPcyYUG48Lcxva8NLwwCgYIKoZIzj0EAwIw\n\
        DzENMAsGA1UEAwwEaG9vazAgFw0yNjExMTYxMTA4NDVaGA8yMTI2MTAyMzExMDg0\n\
        NVowDzENMAsGA1UEAwwEaG9vazBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNNX\n\
        6dSH7DJmMQemjl43OJfssKunBNIsL3cC8Lj7yj5wt2k2/UvykvTEQX1wQ1Rg3JXn\n\
        6ptE7vXGaiizg7LwY2KjcDBuMB0GA1UdDgQWBBTDAcBAjhQdKxJDDS/nd9uUlkxB\n\
        nDAfBgNVHSMEGDAWgBTDAcBAjhQdKxJDDS/nd9uUlkxBnDAPBgNVHRMBAf8EBTAD\n\
        AQH/MBsGA1UdEQQUMBKCEGhvb2suZXhhbXBsZS5jb20wCgYIKoZIzj0EAwIDSQAw\n\
        RgIhAO8oThMdHfuvfb9DIOlNfFJtjXaZAMjAxb2EzxWpWfuyAiEAnTLlwrRJNaf/\n\
        ZCMjV2zFl7QU6Gos3vynvvHUc82u88o=\n\
        -----END CERTIFICATE-----\n";
    const OTHER: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBkjCCATigAwIBAgIULs4r+o5tot/yYP/Y3YvH2gBceQIwCgYIKoZIzj0EAwIw\n\
        DzENMAsGA1UEAwwEaG9vazAgFw0yNjExMTYxMTA4NDVaGA8yMTI2MTAyMzExMDg0\n\
        NVowDzENMAsGA1UEAwwEaG9vazBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNrL\n\
        8RBF7xknNpfZHxyDUkxve5yfyfAH9KAiJrEYfIVuO8zjgY5ToY9ZlqByu9l4ML85\n\
        AzxP3hmDjdvmKFdpz06jcDBuMB0GA1UdDgQWBBQDUxsdPE+87zHXHkGXFlfSHSTY\n\
        WDAfBgNVHSMEGDAWgBQDUxsdPE+87zHXHkGXFlfSHSTYWDAPBgNVHRMBAf8EBTAD\n\
        AQH/MBsGA1UdEQQUMBKCEGhvb2suZXhhbXBsZS5jb20wCgYIKoZIzj0EAwIDSAAw\n\
        RQIhAKJQnEuP0X+NpeSDDmnVKs7AAGhqxa9Ooyxpxvo9K+y+AiAHn7sBNsIIeZKg\n\
        NWNP12T+/l6gMO9Yas0YaCEwEDY5jg==\n\
        -----END CERTIFICATE-----\n";

    #[test]
    fn a_certificate_that_is_its_own_authority_is_believed_where_it_is_a_root() {
        let one = |pem: &str| certificates(pem.as_bytes(), "a test's").unwrap().remove(0);
        let judge = OwnAuthority::new(roots(OWN.as_bytes(), "a test's").unwrap()).unwrap();
        let second = |seconds: u64| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let verify = |pem: &str, name: &'static str, now: u64| {
            let name = ServerName::try_from(name).unwrap();
            judge.verify_server_cert(&one(pem), &[], &name, &[], second(now)).is_ok()
        };
        let now = 2_000_000_000;
        assert!(verify(OWN, "hook.example.com", now));
        assert!(!verify(OWN, "other.example.com", now), "another name");
        assert!(!verify(OWN, "hook.example.com", 1000), "not good yet");
        assert!(!verify(OTHER, "hook.example.com", now), "no root");
        assert!(OwnAuthority::new(RootCertStore::empty()).is_err());
    }
}
