//! A certificate and its key that follow their files: who replaces them need not restart anything. As with etcd, each new connection gets what the files have
//! by then; connections that are there stay. What cannot be used (a key that does not fit yet, half a file) is said once, and the one before goes on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{TlsError, certificates, private_key};

/// What tells a file from the one that was there before: when it was written, and which it is.
type Stamp = [Option<(SystemTime, u64, u64)>; 2];

/// A certificate and its key.
pub struct Reloaded {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    current: Mutex<(Stamp, Arc<CertifiedKey>)>,
}

impl fmt::Debug for Reloaded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Reloaded").field("cert", &self.cert).field("key", &self.key).finish()
    }
}

fn stamp(path: &Path) -> Option<(SystemTime, u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.ino(), data.len()))
}

fn load(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, TlsError> {
    Ok(Arc::new(CertifiedKey::from_der(certificates(cert)?, private_key(key)?, provider)?))
}

impl Reloaded {
    /// As the files are now.
    pub fn new(cert: &Path, key: &Path, provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let stamp = [stamp(cert), stamp(key)];
        let current = Mutex::new((stamp, load(cert, key, &provider)?));
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), provider, current })
    }

    fn now(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = [stamp(&self.cert), stamp(&self.key)];
        if found != current.0 {
            current.0 = found;
            match load(&self.cert, &self.key, &self.provider) {
                Ok(loaded) => {
                    tracing::info!(file = %self.cert.display(), "the certificate was replaced");
                    current.1 = loaded;
                }
                Err(error) => {
                    let error = telemetry::chain(&error).to_string();
                    tracing::warn!(file = %self.cert.display(), %error, "the new certificate cannot be used: the one before goes on");
                }
            }
        }
        current.1.clone()
    }
}

impl ResolvesServerCert for Reloaded {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

impl ResolvesClientCert for Reloaded {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str) -> pki::Pair {
        let now = jiff::Timestamp::now();
        let request = pki::Request {
            subject: pki::Subject::new(name, &[]),
            sans: vec![pki::San::parse("localhost")],
            usages: pki::Usages::peer(),
            is_ca: false,
            not_before: now - jiff::SignedDuration::from_mins(5),
            not_after: now + jiff::SignedDuration::from_hours(1),
        };
        let private = pki::PrivateKey::generate(pki::Algorithm::EcdsaP256).expect("a key");
        let pair = pki::Pair::self_signed(&request, Arc::new(private)).expect("a certificate");
        std::fs::write(directory.join("key.new"), pair.key_pem()).expect("write");
        std::fs::rename(directory.join("key.new"), directory.join("key")).expect("rename");
        pair
    }

    fn replace_certificate(directory: &Path, text: &str) {
        std::fs::write(directory.join("cert.new"), text).expect("write");
        std::fs::rename(directory.join("cert.new"), directory.join("cert")).expect("rename");
    }

    #[test]
    fn a_replaced_certificate_is_used_once_its_key_fits() {
        let directory = tempfile::tempdir().expect("directory");
        let first = write(directory.path(), "first");
        replace_certificate(directory.path(), &first.certificate_pem());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let cert = directory.path().join("cert");
        let reloaded = Reloaded::new(&cert, &directory.path().join("key"), provider).expect("usable");
        let before = reloaded.now().cert.clone();
        // The key comes first: it does not fit to the certificate that is there.
        let second = write(directory.path(), "second");
        assert_eq!(reloaded.now().cert, before);
        replace_certificate(directory.path(), "not a certificate");
        assert_eq!(reloaded.now().cert, before);
        replace_certificate(directory.path(), &second.certificate_pem());
        assert_ne!(reloaded.now().cert, before, "the new certificate is not used");
        std::fs::remove_file(&cert).expect("remove");
        assert_ne!(reloaded.now().cert, before, "a certificate that is gone for a moment is forgotten");
    }
}
