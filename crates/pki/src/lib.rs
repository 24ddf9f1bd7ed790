//! Keys, certificates and kubeconfigs: made from one table, kept in files, rotated, and signed on request.
//!
//! Reading order: [`table`] says which certificates a cluster has and why; [`cluster`] makes and keeps them;
//! [`cert`], [`csr`] and [`key`] are the machinery; [`kubeconfig`] is how programs are told who they are.
//! Nothing here knows the network or the API; the clock comes in as a parameter wherever it decides something.

pub mod cert;
pub mod cluster;
pub mod csr;
mod der;
mod error;
pub mod files;
pub mod key;
pub mod kubeconfig;
pub mod pem;
pub mod table;
pub mod usage;
pub mod verify;

pub use cert::{Certificate, Pair, Request, San, Subject};
pub use cluster::{ClusterPki, ClusterSpec};
pub use csr::Csr;
pub use error::PkiError;
pub use key::{Algorithm, Jwk, PrivateKey, PublicKey};
pub use kubeconfig::Kubeconfig;
pub use table::{CertSpec, Facts};
pub use usage::Usages;
