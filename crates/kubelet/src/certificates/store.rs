//! A certificate with its key on disk, with upstream's file names:
//!
//! ```text
//! kubelet-client-2026-01-02-15-04-05.pem   chain and key, one file per certificate
//! kubelet-client-current.pem               link to the one in use
//! kubelet-client.key.tmp                   the key of a request that is under way: a restart goes on with it
//! ```

use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use pki::{Certificate, PkiError, PrivateKey, San, files};

/// A certificate and its key.
#[derive(Clone)]
pub struct Identity {
    /// Chain, then key.
    pub pem: Vec<u8>,
    pub certificate: Certificate,
    /// Which part of the life is over when it is replaced: as upstream, between 70 and 90 percent.
    spread: f64,
}

impl Identity {
    /// Puts a signed certificate and its key together; they must belong to each other.
    pub fn new(chain: &[u8], key: &PrivateKey) -> Result<Self, PkiError> {
        let certificate = Certificate::from_pem(chain)?;
        if certificate.public_key().spki() != key.public().spki() {
            let reason = "it is for another key".to_owned();
            return Err(PkiError::Parse { what: "signed certificate", reason });
        }
        let mut pem = chain.to_vec();
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        pem.extend(key.to_pem().into_bytes());
        Ok(Self { pem, certificate, spread: spread() })
    }

    fn from_pem(pem: Vec<u8>) -> Result<Self, PkiError> {
        let key = PrivateKey::from_pem(&key_part(&pem))?;
        let certificate = Certificate::from_pem(&pem)?;
        if certificate.public_key().spki() != key.public().spki() {
            let reason = "certificate and key do not belong together".to_owned();
            return Err(PkiError::Parse { what: "certificate file", reason });
        }
        Ok(Self { pem, certificate, spread: spread() })
    }

    pub fn is_valid(&self) -> bool {
        self.certificate.is_valid_at(Timestamp::now())
    }

    /// Whether it speaks for exactly these names and addresses.
    pub fn is_for(&self, wanted: &[San]) -> bool {
        wanted.iter().all(|one| self.certificate.sans.contains(one))
            && self.certificate.sans.iter().all(|one| wanted.contains(one))
    }

    /// When to ask for the next one.
    pub fn rotate_at(&self) -> Timestamp {
        let (start, end) = (self.certificate.not_before, self.certificate.not_after);
        let life = end.duration_since(start).as_secs_f64();
        let part = SignedDuration::try_from_secs_f64(life * self.spread).unwrap_or(SignedDuration::ZERO);
        start.checked_add(part).unwrap_or(end)
    }
}

/// From the first line of the key on; the reader of keys takes one section only.
fn key_part(pem: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(pem);
    let is_key = |part: &&str| part.contains("PRIVATE KEY-----");
    let start =
        text.match_indices("-----BEGIN ").find(|(at, _)| is_key(&&text[*at..text.len().min(at + 40)]));
    start.map_or_else(Vec::new, |(at, _)| text[at..].as_bytes().to_vec())
}

fn spread() -> f64 {
    let mut bytes = [0_u8; 2];
    // Without randomness all nodes rotate at the same share of their own lives, which differ anyway.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    0.7 + 0.2 * f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}

/// Where the certificates of one purpose are.
#[derive(Clone)]
pub struct Store {
    directory: PathBuf,
    name: &'static str,
}

impl Store {
    /// `name` is `kubelet-client` or `kubelet-server`.
    pub fn new(directory: &Path, name: &'static str) -> Self {
        Self { directory: directory.to_owned(), name }
    }

    pub fn current_path(&self) -> PathBuf {
        self.directory.join(format!("{}-current.pem", self.name))
    }

    /// The one in use, if there is one.
    pub fn current(&self) -> Result<Option<Identity>, PkiError> {
        files::read_if_present(&self.current_path())?.map(Identity::from_pem).transpose()
    }

    /// Writes a certificate and makes it the one in use, in one step for every reader.
    pub fn keep(&self, identity: &Identity) -> Result<(), PkiError> {
        files::create_private_dir(&self.directory)?;
        let time = Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let file = format!("{}-{time}.pem", self.name);
        files::write_durably(&self.directory.join(&file), &identity.pem, 0o600)?;
        let failed = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| PkiError::File { operation, path, source }
        };
        let next = self.directory.join(format!("{}-updated.pem", self.name));
        match std::fs::remove_file(&next) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove", &next)(error));
            }
            _ => {}
        }
        std::os::unix::fs::symlink(&file, &next).map_err(failed("link", &next))?;
        std::fs::rename(&next, self.current_path()).map_err(failed("rename", &next))?;
        match std::fs::remove_file(self.pending()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed("remove", &self.pending())(error))
            }
            _ => Ok(()),
        }
    }

    fn pending(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.name))
    }

    /// The key of the request that is under way, made now if there is none. A restart goes on with the same request.
    pub fn pending_key(&self) -> Result<PrivateKey, PkiError> {
        files::create_private_dir(&self.directory)?;
        if let Some(pem) = files::read_if_present(&self.pending())?
            && let Ok(key) = PrivateKey::from_pem(&pem)
        {
            return Ok(key);
        }
        let key = PrivateKey::generate(pki::Algorithm::default())?;
        files::write_durably(&self.pending(), key.to_pem().as_bytes(), 0o600)?;
        Ok(key)
    }

    /// Forgets the key of a request that was denied: the next one is another.
    pub fn drop_pending(&self) {
        // It is there or not; what matters is that the next request finds none.
        let _ = std::fs::remove_file(self.pending());
    }
}
