//! etcd's configuration file (`--config-file`): the same names as the flags, but for TLS and sockets, which have sections.
//!
//! The file is turned into flags and these are read as always, so that there is one place that knows what they mean. As with etcd, other flags
//! and the environment do not count then. What is unknown is refused.

use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{Args, Command, FromArgMatches};
use serde_yaml_ng::Value;
use thiserror::Error;

use crate::flags::ServerArgs;

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
pub enum ConfigFileError {
    /// It cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is no YAML.
    #[error("the configuration file {} is not YAML", path.display())]
    Syntax {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_yaml_ng::Error,
    },
    /// An entry makes no sense.
    #[error("the configuration file {}: {entry}: {problem}", path.display())]
    Entry {
        /// Which.
        path: PathBuf,
        /// Where.
        entry: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// What it says is not taken as flags.
    #[error("the configuration file {} cannot be used", path.display())]
    Flags {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: clap::Error,
    },
}

/// The entries of a section and the flags that they are.
const CLIENT_SECURITY: &[(&str, &str)] = &[
    ("cert-file", "cert-file"),
    ("key-file", "key-file"),
    ("client-cert-file", "client-cert-file"),
    ("client-key-file", "client-key-file"),
    ("client-cert-auth", "client-cert-auth"),
    ("trusted-ca-file", "trusted-ca-file"),
    ("auto-tls", "auto-tls"),
    ("allowed-hostname", "client-cert-allowed-hostname"),
];
const PEER_SECURITY: &[(&str, &str)] = &[
    ("cert-file", "peer-cert-file"),
    ("key-file", "peer-key-file"),
    ("client-cert-file", "peer-client-cert-file"),
    ("client-key-file", "peer-client-key-file"),
    ("client-cert-auth", "peer-client-cert-auth"),
    ("trusted-ca-file", "peer-trusted-ca-file"),
    ("auto-tls", "peer-auto-tls"),
    ("allowed-cn", "peer-cert-allowed-cn"),
    ("allowed-hostname", "peer-cert-allowed-hostname"),
    ("skip-client-san-verification", "peer-skip-client-san-verification"),
];
const SOCKETS: &[(&str, &str)] =
    &[("reuse-port", "socket-reuse-port"), ("reuse-address", "socket-reuse-address")];

/// Honoured durations; in a file a plain number is one in nanoseconds.
const DURATIONS: &[&str] =
    &["grpc-keepalive-interval", "grpc-keepalive-timeout", "watch-progress-notify-interval"];

/// The flags that a file stands for.
pub fn read(path: &Path) -> Result<ServerArgs, ConfigFileError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigFileError::Read { path: path.to_owned(), source })?;
    let flags = flags(&text, path)?;
    // Said by the file alone.
    let command = ServerArgs::augment_args(Command::new("etcd").no_binary_name(true))
        .mut_args(|arg| arg.env(Resettable::Reset));
    command
        .try_get_matches_from(flags)
        .and_then(|matches| ServerArgs::from_arg_matches(&matches))
        .map_err(|source| ConfigFileError::Flags { path: path.to_owned(), source })
}

fn flags(text: &str, path: &Path) -> Result<Vec<String>, ConfigFileError> {
    let syntax = |source| ConfigFileError::Syntax { path: path.to_owned(), source };
    let wrong = |entry: &str, problem| ConfigFileError::Entry {
        path: path.to_owned(),
        entry: entry.to_owned(),
        problem,
    };
    let entries = match serde_yaml_ng::from_str(text).map_err(syntax)? {
        Value::Mapping(entries) => entries,
        Value::Null => return Ok(Vec::new()),
        _ => return Err(wrong("", "must be a mapping")),
    };
    let mut flags = Vec::new();
    for (name, value) in &entries {
        let name = name.as_str().ok_or_else(|| wrong("", "names must be text"))?;
        let section = match name {
            "client-transport-security" => Some(CLIENT_SECURITY),
            "peer-transport-security" => Some(PEER_SECURITY),
            "socket-options" => Some(SOCKETS),
            _ => None,
        };
        match (section, value) {
            (Some(known), Value::Mapping(entries)) => {
                for (inner, value) in entries {
                    let inner = inner.as_str().unwrap_or_default();
                    let found = known.iter().find(|(entry, _)| *entry == inner);
                    let (_, flag) =
                        found.ok_or_else(|| wrong(&format!("{name}.{inner}"), "is not known here"))?;
                    flags.extend(flag_of(flag, value).ok_or_else(|| wrong(flag, "must be a plain value"))?);
                }
            }
            (Some(_), Value::Null) => {}
            (Some(_), _) => return Err(wrong(name, "must be a mapping")),
            (None, value) => {
                flags.extend(flag_of(name, value).ok_or_else(|| wrong(name, "must be a plain value"))?)
            }
        }
    }
    Ok(flags)
}

/// One entry as a flag, or as none if it says nothing; `None` if it is no value of a flag.
fn flag_of(name: &str, value: &Value) -> Option<Option<String>> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let value = match value {
        Value::Null => return Some(None),
        Value::Number(nanoseconds) if DURATIONS.contains(&name) => {
            format!("{}ms", nanoseconds.as_u64()? / 1_000_000)
        }
        Value::Sequence(items) => items.iter().map(text).collect::<Option<Vec<_>>>()?.join(","),
        value => text(value)?,
    };
    Some(Some(format!("--{name}={value}")).filter(|_| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_its_flags_would_be() {
        let text = "
name: one
data-dir:
heartbeat-interval: 100
listen-client-urls: http://127.0.0.1:1,http://127.0.0.1:2
cors:
discovery: ''
log-outputs: [stderr]
cipher-suites: [A, B]
grpc-keepalive-timeout: 20000000000
force-new-cluster: false
client-transport-security:
  cert-file: /c
  client-cert-auth: true
  trusted-ca-file:
peer-transport-security:
  cert-file: /p
  allowed-hostname: [x, y]
socket-options:
  reuse-port: true
";
        let expected = [
            "--name=one",
            "--heartbeat-interval=100",
            "--listen-client-urls=http://127.0.0.1:1,http://127.0.0.1:2",
            "--log-outputs=stderr",
            "--cipher-suites=A,B",
            "--grpc-keepalive-timeout=20000ms",
            "--force-new-cluster=false",
            "--cert-file=/c",
            "--client-cert-auth=true",
            "--peer-cert-file=/p",
            "--peer-cert-allowed-hostname=x,y",
            "--socket-reuse-port=true",
        ];
        assert_eq!(flags(text, Path::new("f")).expect("readable"), expected);
        assert_eq!(flags("", Path::new("f")).expect("readable"), Vec::<String>::new());
        for (text, problem) in [
            ("name: {a: b}", "name: must be a plain value"),
            ("client-transport-security: {nope: 1}", "client-transport-security.nope: is not known here"),
            ("[1]", "must be a mapping"),
            ("a: b: c", "is not YAML"),
        ] {
            let error = flags(text, Path::new("f")).expect_err("refused").to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn what_a_file_says_is_refused_as_the_flag_is() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("etcd.yaml");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("write");
            let args = read(&path).map_err(|error| telemetry::chain(&error).to_string())?;
            args.complete().map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(read("name: one\nproxy: 'off'\nsnapshot-count: 10000\n"), Ok(()));
        for (text, problem) in [
            ("no-such-thing: 1", "no-such-thing"),
            ("unsafe-no-fsync: true", "--unsafe-no-fsync true: what is acknowledged is on the disk"),
            ("proxy: 'on'", "there is no proxy"),
            ("listen-client-urls: nowhere", "must be http://"),
        ] {
            let error = read(text).expect_err("refused");
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
