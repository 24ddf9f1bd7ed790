//! What can go wrong with keys, certificates and the files that hold them.

use std::path::PathBuf;

use thiserror::Error;

/// An error of this crate; fields name the object, the sentence comes last.
#[derive(Debug, Error)]
pub enum PkiError {
    /// The text is not PEM.
    #[error("PEM is malformed: {0}")]
    Pem(&'static str),
    /// A block of another type was expected.
    #[error("no {wanted} block found")]
    NoBlock {
        /// The label looked for.
        wanted: &'static str,
    },
    /// A private or public key is not one that this crate knows.
    #[error("key cannot be used: {0}")]
    Key(&'static str),
    /// DER content did not parse.
    #[error("{what} does not parse: {reason}")]
    Parse {
        /// Which structure.
        what: &'static str,
        /// The parser's word.
        reason: String,
    },
    /// The request's own signature is wrong.
    #[error("the request is not signed by the key in it")]
    RequestSignature,
    /// Something in a request has no meaning to this signer.
    #[error("the request asks for {0}, which is not signed")]
    Unsupported(String),
    /// A key usage name that Kubernetes does not have.
    #[error("key usage {0:?} is unknown")]
    Usage(String),
    /// The table of certificates names something that is not there.
    #[error("certificate {certificate} refers to {reference}, which is not known")]
    Table {
        /// The row.
        certificate: String,
        /// What it refers to.
        reference: String,
    },
    /// The certificate asked for is not part of this PKI.
    #[error("there is no certificate {0} here")]
    Unknown(String),
    /// A kubeconfig lacks something or contradicts itself.
    #[error("kubeconfig {place} is unusable: {reason}")]
    Kubeconfig {
        /// File or context.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// YAML did not parse.
    #[error("kubeconfig does not parse")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// A file could not be read or written.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// read, write, create…
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: std::io::Error,
    },
    /// The machine's random source failed.
    #[error("the system's random source failed")]
    Random,
}
