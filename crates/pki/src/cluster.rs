//! The PKI of one directory: what is there and fits stays, what is missing, changed or old is made.
//!
//! Invariants: a second [`ClusterPki::ensure`] returns the same keys; an authority's key is never replaced (that
//! would cut off everyone who trusts it), so one that cannot be read is an error and not a reason to make another;
//! the key is written before its certificate, so that a crash between the two is mended by the next run.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::cert::{Certificate, Pair, Request};
use crate::key::{Algorithm, PrivateKey};
use crate::kubeconfig::Kubeconfig;
use crate::table::{self, CertSpec, Facts, Role, Rotation, names};
use crate::{PkiError, files};

/// What the certificates of a one-machine cluster depend on.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    /// The machine's node name.
    pub node_name: String,
    /// Its addresses.
    pub node_ips: Vec<IpAddr>,
    /// Addresses of the `kubernetes` Service.
    pub service_ips: Vec<IpAddr>,
    /// Further names and addresses by which the API server is reached.
    pub api_sans: Vec<String>,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The kind of key to make; existing keys stay.
    pub algorithm: Algorithm,
}

impl ClusterSpec {
    /// Values of the placeholders in [`table::LOCAL`].
    pub fn facts(&self) -> Facts {
        Facts::default()
            .with("node", [&self.node_name])
            .with("node_ips", &self.node_ips)
            .with("service_ips", &self.service_ips)
            .with("api_sans", &self.api_sans)
            .with("domain", [&self.cluster_domain])
    }
}

/// Every key pair of a cluster, in memory, as its files have it.
#[derive(Debug)]
pub struct ClusterPki {
    dir: PathBuf,
    pairs: BTreeMap<&'static str, Pair>,
    service_account: Arc<PrivateKey>,
    made: Vec<&'static str>,
}

impl ClusterPki {
    /// Loads, makes and renews until the directory holds all that `spec` asks for.
    pub fn ensure(dir: &Path, spec: &ClusterSpec) -> Result<Self, PkiError> {
        Self::ensure_at(dir, spec, Timestamp::now())
    }

    /// As [`Self::ensure`], at a given time.
    pub fn ensure_at(dir: &Path, spec: &ClusterSpec, now: Timestamp) -> Result<Self, PkiError> {
        files::create_private_dir(dir)?;
        let facts = spec.facts();
        let mut pairs: BTreeMap<&'static str, Pair> = BTreeMap::new();
        let mut made = Vec::new();
        for row in table::LOCAL {
            let request = row.request(&facts, now)?;
            let signer = match row.signer {
                None => None,
                Some(name) => Some(pairs.get(name).ok_or_else(|| PkiError::Table {
                    certificate: row.name.to_owned(),
                    reference: name.to_owned(),
                })?),
            };
            let found = load(dir, row)?;
            let pair = match choose(row, &request, signer, found, now) {
                Choice::Keep(pair) => *pair,
                Choice::Make(key) => {
                    let key = key.map_or_else(|| PrivateKey::generate(spec.algorithm).map(Arc::new), Ok)?;
                    let pair = match signer {
                        None => Pair::self_signed(&request, key)?,
                        Some(signer) => signer.issue(&request, key)?,
                    };
                    // Everyone believes an authority: its loss cannot be mended, a leaf's can.
                    let write = if row.role == Role::Authority { files::write_durably } else { files::write };
                    write(&key_path(dir, row.name), pair.key_pem().as_bytes(), files::SECRET)?;
                    write(
                        &certificate_path(dir, row.name),
                        pair.certificate_pem().as_bytes(),
                        files::SECRET,
                    )?;
                    made.push(row.name);
                    pair
                }
            };
            pairs.insert(row.name, pair);
        }
        let service_account = ensure_service_account(dir, spec.algorithm, &mut made)?;
        Ok(Self { dir: dir.to_owned(), pairs, service_account, made })
    }

    /// A pair by its row's name; see [`table::names`].
    pub fn pair(&self, name: &str) -> Result<&Pair, PkiError> {
        self.pairs.get(name).ok_or_else(|| PkiError::Unknown(name.to_owned()))
    }

    /// The key that signs service account tokens.
    pub fn service_account(&self) -> &Arc<PrivateKey> {
        &self.service_account
    }

    /// What this run had to make, for the log.
    pub fn made(&self) -> &[&'static str] {
        &self.made
    }

    /// Where a row's certificate lies.
    pub fn certificate_path(&self, name: &str) -> PathBuf {
        certificate_path(&self.dir, name)
    }

    /// Where a row's key lies.
    pub fn key_path(&self, name: &str) -> PathBuf {
        key_path(&self.dir, name)
    }

    /// When the next leaf has to be renewed: `ensure` at that time would make something.
    pub fn next_renewal(&self) -> Timestamp {
        self.pairs.values().map(|pair| renewal_time(&pair.certificate)).min().unwrap_or(Timestamp::MAX)
    }

    /// A kubeconfig that speaks as the row's subject to `server`.
    pub fn kubeconfig(&self, name: &str, cluster: &str, server: &str) -> Result<Kubeconfig, PkiError> {
        let pair = self.pair(name)?;
        let ca = self.pair(names::SERVER_CA)?.certificate_pem();
        Ok(Kubeconfig::with_certificate(cluster, server, ca.as_bytes(), name, pair))
    }
}

fn certificate_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.crt"))
}

fn key_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.key"))
}

/// What was found of one row: nothing, a key whose certificate is missing, or both.
enum Found {
    Nothing,
    Key(Arc<PrivateKey>),
    Pair(Box<Pair>),
}

fn load(dir: &Path, row: &CertSpec) -> Result<Found, PkiError> {
    let certificate = files::read_if_present(&certificate_path(dir, row.name))?;
    let key = files::read_if_present(&key_path(dir, row.name))?;
    let found = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            Pair::from_pem(&certificate, &key).map(|pair| Found::Pair(Box::new(pair)))
        }
        (None, Some(key)) => PrivateKey::from_pem(&key).map(|key| Found::Key(Arc::new(key))),
        (Some(_), None) if row.role == Role::Authority => {
            Err(PkiError::Key("an authority's certificate is here without its key"))
        }
        (_, None) => Ok(Found::Nothing),
    };
    match found {
        Err(_) if row.role != Role::Authority => Ok(Found::Nothing),
        other => other,
    }
}

enum Choice {
    Keep(Box<Pair>),
    /// Make a certificate, for this key if there is one.
    Make(Option<Arc<PrivateKey>>),
}

/// Decides from the files and the row alone.
fn choose(row: &CertSpec, wanted: &Request, signer: Option<&Pair>, found: Found, now: Timestamp) -> Choice {
    let pair = match found {
        Found::Nothing => return Choice::Make(None),
        Found::Key(key) => return Choice::Make(Some(key)),
        Found::Pair(pair) => pair,
    };
    let have = &pair.certificate;
    let signer_certificate = signer.map_or(have, |signer| &signer.certificate);
    let same_words = have.subject == wanted.subject
        && have.sans == wanted.sans
        && have.usages == wanted.usages
        && have.is_ca == wanted.is_ca;
    if now >= renewal_time(have) && row.rotation == Rotation::Renew {
        return Choice::Make(None);
    }
    let fresh = now >= have.not_before && now < renewal_time(have);
    if same_words && fresh && have.is_signed_by(signer_certificate) {
        return Choice::Keep(pair);
    }
    Choice::Make(Some(pair.key))
}

/// Four fifths of the lifetime: early enough that a machine which sleeps for a month wakes with valid certificates.
fn renewal_time(certificate: &Certificate) -> Timestamp {
    let lifetime: SignedDuration = certificate.not_after.duration_since(certificate.not_before);
    certificate.not_after - lifetime / 5
}

fn ensure_service_account(
    dir: &Path,
    algorithm: Algorithm,
    made: &mut Vec<&'static str>,
) -> Result<Arc<PrivateKey>, PkiError> {
    let path = key_path(dir, names::SERVICE_ACCOUNT);
    let public_path = dir.join(format!("{}.pub", names::SERVICE_ACCOUNT));
    let key = match files::read_if_present(&path)? {
        Some(text) => PrivateKey::from_pem(&text)?,
        None => {
            let key = PrivateKey::generate(algorithm)?;
            files::write_durably(&path, key.to_pem().as_bytes(), files::SECRET)?;
            made.push(names::SERVICE_ACCOUNT);
            key
        }
    };
    let public = key.public().to_pem();
    if files::read_if_present(&public_path)?.as_deref() != Some(public.as_bytes()) {
        files::write(&public_path, public.as_bytes(), files::SECRET)?;
    }
    Ok(Arc::new(key))
}

#[cfg(test)]
mod tests;
