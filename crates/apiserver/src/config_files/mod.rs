//! The configuration files behind `--authentication-config` and `--authorization-config`.
//!
//! Both are upstream's documents, in any of their versions. A field that is not known is refused by name instead of
//! being left out: a rule that is not applied would let strangers in. Expressions are compiled here, once.

mod authentication;
mod authorization;

pub use authentication::{AuthenticationFile, authentication};
pub use authorization::authorization;

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Not YAML, or not in the right form.
    #[error("it is malformed")]
    Malformed(#[from] serde_yaml_ng::Error),
    /// Another kind of document.
    #[error("it is of kind {found:?} and version {version:?}, wanted is {wanted} of apiserver.config.k8s.io")]
    Kind {
        /// What is wanted.
        wanted: &'static str,
        /// What was found.
        found: String,
        /// In which version.
        version: String,
    },
    /// A field.
    #[error("{path}: {why}")]
    Field {
        /// Which one.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A file that it names.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// The versions of the documents; they read alike.
const VERSIONS: [&str; 3] =
    ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1", "apiserver.config.k8s.io/v1alpha1"];

fn wrong(path: impl Into<String>, why: impl Into<String>) -> FileError {
    FileError::Field { path: path.into(), why: why.into() }
}

fn document<T: DeserializeOwned>(text: &str, wanted: &'static str) -> Result<T, FileError> {
    let value: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
    let field = |name: &str| value.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
    let (found, version) = (field("kind"), field("apiVersion"));
    if found != wanted || !VERSIONS.contains(&version.as_str()) {
        return Err(FileError::Kind { wanted, found, version });
    }
    Ok(serde_yaml_ng::from_value(value)?)
}
