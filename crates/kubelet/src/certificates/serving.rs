//! The serving certificate of the moment. Until there is one no handshake succeeds: nobody is told a name that nobody
//! vouches for.

use std::fmt;
use std::sync::{Arc, RwLock};

use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::CertificateError;
use super::store::Identity;

#[derive(Default)]
pub struct Serving {
    current: RwLock<Option<(Arc<CertifiedKey>, Timestamp)>>,
}

impl fmt::Debug for Serving {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Serving(secret)")
    }
}

impl Serving {
    /// Shown from the next handshake on.
    pub fn set(&self, identity: &Identity) -> Result<(), CertificateError> {
        let bad = |reason: String| pki::PkiError::Parse { what: "serving certificate", reason };
        let chain = CertificateDer::pem_slice_iter(&identity.pem).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| bad(error.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(&identity.pem).map_err(|error| bad(error.to_string()))?;
        let key =
            rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| bad(error.to_string()))?;
        let next = Some((Arc::new(CertifiedKey::new(chain, key)), identity.rotate_at()));
        *self.current.write().unwrap_or_else(std::sync::PoisonError::into_inner) = next;
        Ok(())
    }

    /// When the one in use is to be replaced; none without one.
    pub fn rotate_at(&self) -> Option<Timestamp> {
        self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).as_ref().map(|(_, at)| *at)
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let current = self.current.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        current.as_ref().map(|(key, _)| key.clone())
    }
}
