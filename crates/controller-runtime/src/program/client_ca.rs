//! Who signs the certificates of those who ask: the file that was named, or what the API server tells.
//!
//! Without `--client-ca-file` the API server is asked for what it verifies clients with itself, as upstream's programs do:
//! it stands in a ConfigMap, and may change while the program runs.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use client::{Client, resources};
use lifecycle::Tasks;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use serde_json::Value;
use tracing::debug;

use super::serve::ServeError;

/// Where the API server tells whom it trusts.
const TOLD_IN: &str = "extension-apiserver-authentication";
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// While nothing was heard yet.
const LOOK_SOON: Duration = Duration::from_secs(2);

/// Verifies clients with an authority that may be told later, or anew.
#[derive(Debug)]
pub struct ToldAuthority {
    provider: Arc<CryptoProvider>,
    present: RwLock<Option<(Vec<u8>, Arc<dyn ClientCertVerifier>)>>,
}

/// A verifier with these roots.
pub fn verifier(
    pem: &[u8],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, ServeError> {
    let mut roots = RootCertStore::empty();
    for certificate in pki::pem::certificates(pem)? {
        roots.add(certificate)?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    Ok(builder.allow_unauthenticated().build()?)
}

impl ToldAuthority {
    pub fn new(provider: Arc<CryptoProvider>) -> Arc<Self> {
        Arc::new(Self { provider, present: RwLock::default() })
    }

    /// Asks the API server now and again.
    pub fn follow(self: &Arc<Self>, client: Client, tasks: &Tasks) {
        let own = self.clone();
        tasks.spawn("client-ca", move |stop| async move {
            loop {
                let api = client.api(&resources::CONFIG_MAPS).within("kube-system");
                match api.find::<Value>(TOLD_IN).await {
                    Ok(Some(told)) => {
                        own.set(told["data"]["client-ca-file"].as_str().unwrap_or_default().as_bytes());
                    }
                    Ok(None) => own.set(b""),
                    Err(error) => debug!(error = %telemetry::chain(&error), "the client CA is not told"),
                }
                let wait = if own.present().is_some() { LOOK_AGAIN } else { LOOK_SOON };
                if stop.or(tokio::time::sleep(wait)).await.is_none() {
                    return;
                }
            }
        });
    }

    /// Trusts these from now on, or nobody.
    pub fn set(&self, pem: &[u8]) {
        let mut present = self.present.write().unwrap_or_else(PoisonError::into_inner);
        if present.as_ref().is_some_and(|(known, _)| known == pem) {
            return;
        }
        match verifier(pem, &self.provider) {
            Ok(new) => *present = Some((pem.to_vec(), new)),
            Err(error) if pem.is_empty() => {
                debug!(%error, "no client CA is told");
                *present = None;
            }
            Err(error) => debug!(%error, "the client CA that was told cannot be used"),
        }
    }

    fn present(&self) -> Option<Arc<dyn ClientCertVerifier>> {
        let present = self.present.read().unwrap_or_else(PoisonError::into_inner);
        present.as_ref().map(|(_, verifier)| verifier.clone())
    }
}

impl ClientCertVerifier for ToldAuthority {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match self.present() {
            Some(verifier) => verifier.verify_client_cert(end, intermediates, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pki::{Algorithm, Pair, PrivateKey, Request, Subject, Usages};

    fn pair(name: &str, signer: Option<&Pair>) -> Pair {
        let now = jiff::Timestamp::now();
        let request = Request {
            subject: Subject::new(name, &[]),
            sans: Vec::new(),
            usages: if signer.is_some() { Usages::peer() } else { Usages::authority() },
            is_ca: signer.is_none(),
            not_before: now - jiff::SignedDuration::from_hours(1),
            not_after: now + jiff::SignedDuration::from_hours(1),
        };
        let key = Arc::new(PrivateKey::generate(Algorithm::EcdsaP256).unwrap());
        match signer {
            None => Pair::self_signed(&request, key).unwrap(),
            Some(signer) => {
                let certificate = signer.sign(&request, &key.public()).unwrap();
                Pair { certificate, key }
            }
        }
    }

    #[test]
    fn who_is_told_later_is_trusted_then() {
        let authority = ToldAuthority::new(Arc::new(rustls::crypto::ring::default_provider()));
        let (ca, other) = (pair("ca", None), pair("other", None));
        let end = pair("admin", Some(&ca)).certificate.to_der();
        let trusted = || authority.verify_client_cert(&end, &[], UnixTime::now()).is_ok();
        assert!(!trusted(), "nothing was told yet");
        authority.set(ca.certificate_pem().as_bytes());
        assert!(trusted());
        authority.set(other.certificate_pem().as_bytes());
        assert!(!trusted());
    }
}
