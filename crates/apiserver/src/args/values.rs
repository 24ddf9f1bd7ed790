//! What flags say in words: files, pairs of them, durations and ranges, and why they cannot be used.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::settings;
use crate::admission::configuration::ConfigurationError;
use crate::config::KeyPair;
use crate::config_files;
use crate::proxy::tunnel::EgressError;
use crate::server::StartError;
use crate::tls;

/// Why the flags do not make a server.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// A file.
    #[error("cannot read {} (--{flag})", path.display())]
    Read {
        /// Which flag.
        flag: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A flag's value.
    #[error("--{flag}: {why}")]
    Value {
        /// Which flag.
        flag: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The listener.
    #[error("cannot listen on {address}:{port}")]
    Listen {
        /// Address.
        address: IpAddr,
        /// Port.
        port: u16,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A configuration file.
    #[error("the file of --{flag} cannot be used")]
    File {
        /// Which flag.
        flag: &'static str,
        /// What is wrong.
        #[source]
        source: config_files::FileError,
    },
    /// TLS.
    #[error("TLS cannot be set up")]
    Tls(#[from] tls::TlsError),
    /// A certificate of its own.
    #[error("no serving certificate can be made in {} (--cert-dir)", path.display())]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: pki::PkiError,
    },
    /// The ways to others.
    #[error("the file of --egress-selector-config-file cannot be used")]
    Egress(#[from] EgressError),
    /// What plug-ins are told.
    #[error("the file of --admission-control-config-file cannot be used")]
    Admission(#[from] ConfigurationError),
    /// etcd.
    #[error("etcd cannot be used")]
    Etcd(#[from] etcd::remote::RemoteError),
    /// The server itself.
    #[error("the API server did not start")]
    Start(#[from] StartError),
}

pub(super) fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, ArgsError> {
    std::fs::read(path).map_err(|source| ArgsError::Read { flag, path: path.to_owned(), source })
}

pub(super) fn read_text(flag: &'static str, path: &Path) -> Result<String, ArgsError> {
    Ok(String::from_utf8_lossy(&read(flag, path)?).into_owned())
}

pub(super) fn maybe(flag: &'static str, path: Option<&PathBuf>) -> Result<Option<Vec<u8>>, ArgsError> {
    path.map(|path| read(flag, path)).transpose()
}

pub(super) fn pair(
    flag: &'static str,
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> Result<Option<KeyPair>, ArgsError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            Ok(Some(KeyPair { certificate: read(flag, certificate)?, key: read(flag, key)? }))
        }
        (None, None) => Ok(None),
        _ => Err(ArgsError::Value { flag, why: "certificate and key go together".to_owned() }),
    }
}

pub(super) fn node_ports(text: &str) -> Result<(u16, u16), ArgsError> {
    let wrong = || ArgsError::Value {
        flag: "service-node-port-range",
        why: format!("{text:?} is not of the form 30000-32767"),
    };
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last && first > 0 => Ok((first, last)),
        _ => Err(wrong()),
    }
}

/// A duration as Go programs write it.
pub(super) fn duration(flag: &'static str, text: &str) -> Result<Duration, ArgsError> {
    settings::go_duration(text).map_err(|why| ArgsError::Value { flag, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_modes_are_read() {
        assert_eq!(node_ports("30000-32767").unwrap(), (30000, 32767));
        assert!(node_ports("5").is_err() && node_ports("9-1").is_err());
        assert_eq!(duration("event-ttl", "1h0m0s").unwrap().as_secs(), 3600);
        assert!(duration("event-ttl", "-1s").is_err() && duration("event-ttl", "soon").is_err());
    }
}
