//! Certificates and keys from files, as both ends need them.

mod reload;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use thiserror::Error;

use self::reload::Reloaded;

/// Why TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read or is no PEM.
    #[error("cannot read {what} from {}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The key does not fit the certificate, or a certificate is malformed.
    #[error("the certificates cannot be used")]
    Rustls(#[from] rustls::Error),
    /// A flag is not enough by itself.
    #[error("--{flag} needs --{needed}")]
    Needs {
        /// Which.
        flag: &'static str,
        /// What is missing.
        needed: &'static str,
    },
    /// A cipher suite is not known.
    #[error("--cipher-suites {name}: not supported; there are {known}")]
    Suite {
        /// Which.
        name: String,
        /// Those that are.
        known: String,
    },
    /// A version is not known.
    #[error("TLS versions {0}: there are TLS1.2 or TLS1.3")]
    Version(String),
    /// No certificate could be made.
    #[error("cannot make a certificate")]
    Make(#[from] pki::PkiError),
    /// A certificate could not be stored.
    #[error("cannot write {}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Client certificates cannot be checked with these authorities.
    #[error("the certificate authority cannot be used to check clients")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|source| TlsError::File { what: "certificates", path: path.to_owned(), source })
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| TlsError::File {
        what: "a private key",
        path: path.to_owned(),
        source,
    })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What all listeners of a server have in common.
pub struct Policy<'a> {
    /// The names of the cipher suites of TLS 1.2 to offer; none is all. Those of TLS 1.3 cannot be chosen, as in Go.
    pub suites: &'a [String],
    /// The oldest version.
    pub oldest: &'a str,
    /// The newest version; empty is the newest there is.
    pub newest: &'a str,
    /// Where certificates that are made here are kept.
    pub data_dir: &'a Path,
    /// What they are made for.
    pub hosts: &'a [&'a str],
    /// For how many years.
    pub years: u16,
}

/// How one kind of listener is secured, by the flags that say so.
pub struct Listener<'a> {
    /// The names of the flags for the first four, for messages.
    pub flags: [&'static str; 4],
    /// The certificate.
    pub cert: Option<&'a Path>,
    /// Its key.
    pub key: Option<&'a Path>,
    /// Whether clients must have certificates.
    pub ask_clients: bool,
    /// The authority of theirs.
    pub authority: Option<&'a Path>,
    /// Which of them have been revoked.
    pub revoked: Option<&'a Path>,
    /// Host names of which theirs must have one; none is any.
    pub hostnames: &'a [String],
    /// Make a certificate, and keep it under this name.
    pub automatic: Option<&'static str>,
}

/// A listener's TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    /// For rustls.
    pub config: Arc<ServerConfig>,
    /// Host names of which a client's certificate must have one; none is any.
    pub hostnames: Arc<[String]>,
}

impl ServerTls {
    /// Whether a client with this certificate may come in.
    pub fn admits(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        self.hostnames.is_empty()
            || certificate.is_some_and(|der| names_of(der).iter().any(|name| self.hostnames.contains(name)))
    }
}

/// The host names in a certificate.
fn names_of(der: &[u8]) -> Vec<String> {
    use x509_parser::extensions::GeneralName;
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(der) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let names = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

/// A suite's name as Go and the standards have it.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    format!("{:?}", suite.suite()).replace("TLS13_", "TLS_")
}

impl Policy<'_> {
    fn provider(&self) -> Result<Arc<CryptoProvider>, TlsError> {
        let mut provider = rustls::crypto::ring::default_provider();
        let given: Vec<&str> =
            self.suites.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
        if given.is_empty() {
            return Ok(Arc::new(provider));
        }
        let known: Vec<String> = provider.cipher_suites.iter().map(suite_name).collect();
        // Go also knows the ChaCha suites by a shorter name.
        let same = |given: &str, known: &str| given == known || known.strip_suffix("_SHA256") == Some(given);
        if let Some(unknown) = given.iter().find(|name| !known.iter().any(|known| same(name, known))) {
            return Err(TlsError::Suite { name: (*unknown).to_owned(), known: known.join(", ") });
        }
        provider.cipher_suites.retain(|suite| {
            suite.tls13().is_some() || given.iter().any(|name| same(name, &suite_name(suite)))
        });
        Ok(Arc::new(provider))
    }

    fn versions(&self) -> Result<Vec<&'static SupportedProtocolVersion>, TlsError> {
        let number = |text: &str, default: u8| match text {
            "" => Ok(default),
            "TLS1.2" => Ok(2),
            "TLS1.3" => Ok(3),
            other => Err(TlsError::Version(other.to_owned())),
        };
        let (oldest, newest) = (number(self.oldest, 2)?, number(self.newest, 3)?);
        let all = [(2, &rustls::version::TLS12), (3, &rustls::version::TLS13)];
        let chosen: Vec<_> = all.iter().filter(|(is, _)| (oldest..=newest).contains(is)).collect();
        if chosen.is_empty() {
            return Err(TlsError::Version(format!("{} to {}", self.oldest, self.newest)));
        }
        Ok(chosen.into_iter().map(|(_, version)| *version).collect())
    }

    /// A certificate of our own, made once and kept.
    fn automatic(&self, name: &str) -> Result<(PathBuf, PathBuf), TlsError> {
        let directory = self.data_dir.join("fixtures").join(name);
        let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        if cert.exists() && key.exists() {
            return Ok((cert, key));
        }
        let now = jiff::Timestamp::now();
        let mut sans =
            vec![pki::San::parse("localhost"), pki::San::parse("127.0.0.1"), pki::San::parse("::1")];
        for host in self.hosts.iter().map(|host| pki::San::parse(host)) {
            if !sans.contains(&host) {
                sans.push(host);
            }
        }
        let request = pki::Request {
            subject: pki::Subject::new("etcd", &[]),
            sans,
            usages: pki::Usages::peer(),
            is_ca: false,
            not_before: now - jiff::SignedDuration::from_mins(5),
            not_after: now + jiff::SignedDuration::from_hours(24 * 365 * i64::from(self.years.max(1))),
        };
        let private = Arc::new(pki::PrivateKey::generate(pki::Algorithm::EcdsaP256)?);
        let pair = pki::Pair::self_signed(&request, private)?;
        let write = |path: &Path, text: String, mode: u32| {
            use std::io::Write;
            use std::os::unix::fs::OpenOptionsExt;
            let opened =
                std::fs::OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(path);
            opened
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|source| TlsError::Write { path: path.to_owned(), source })
        };
        std::fs::create_dir_all(&directory)
            .map_err(|source| TlsError::Write { path: directory.clone(), source })?;
        write(&key, pair.key_pem(), 0o600)?;
        write(&cert, pair.certificate_pem(), 0o644)?;
        Ok((cert, key))
    }
}

impl Listener<'_> {
    /// The TLS to listen with, or `None` if the flags ask for none.
    pub fn complete(&self, policy: &Policy<'_>) -> Result<Option<ServerTls>, TlsError> {
        let [cert_flag, key_flag, ask_flag, authority_flag] = self.flags;
        let needs = |flag, needed| Err(TlsError::Needs { flag, needed });
        let (cert, key) = match (self.cert, self.key, self.automatic) {
            (Some(cert), Some(key), _) => (cert.to_owned(), key.to_owned()),
            (Some(_), None, _) => return needs(cert_flag, key_flag),
            (None, Some(_), _) => return needs(key_flag, cert_flag),
            (None, None, None) => return Ok(None),
            (None, None, Some(name)) => {
                // What is wrong with the policy is said before anything is written.
                policy.provider()?;
                policy.versions()?;
                policy.automatic(name)?
            }
        };
        if self.ask_clients && self.authority.is_none() {
            return needs(ask_flag, authority_flag);
        }
        let authority = self.authority.filter(|_| self.ask_clients);
        if !self.hostnames.is_empty() && authority.is_none() {
            return needs("client-cert-allowed-hostname", ask_flag);
        }
        let builder = ServerConfig::builder_with_provider(policy.provider()?)
            .with_protocol_versions(&policy.versions()?)?;
        let builder = match authority {
            Some(path) => {
                let roots = Arc::new(roots(path)?);
                let mut verifier = WebPkiClientVerifier::builder_with_provider(roots, policy.provider()?);
                if let Some(path) = self.revoked {
                    let lists = CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect);
                    let lists: Vec<_> = lists.map_err(|source| TlsError::File {
                        what: "revoked certificates",
                        path: path.to_owned(),
                        source,
                    })?;
                    verifier = verifier.with_crls(lists).allow_unknown_revocation_status();
                }
                builder.with_client_cert_verifier(verifier.build()?)
            }
            None => builder.with_no_client_auth(),
        };
        let own = Reloaded::new(&cert, &key, policy.provider()?)?;
        let mut config = builder.with_cert_resolver(Arc::new(own));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Some(ServerTls { config: Arc::new(config), hostnames: self.hostnames.into() }))
    }
}

/// A client's side from what stands in files elsewhere: authorities, and its own certificate and key.
pub fn client_from_pem(ca: &[u8], cert: &[u8], key: &[u8]) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in pki::pem::certificates(ca)? {
        roots.add(certificate)?;
    }
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let key = pki::PrivateKey::from_pem(key)?.to_der();
    let mut config =
        builder.with_root_certificates(roots).with_client_auth_cert(pki::pem::certificates(cert)?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// A client's side: the authority to trust, and its own certificate and key if it has them.
pub fn client(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.with_root_certificates(roots(ca)?);
    let mut config = match own {
        Some((cert, key)) => {
            builder.with_client_cert_resolver(Arc::new(Reloaded::new(cert, key, provider())?))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
