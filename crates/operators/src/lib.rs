//! The operators: controllers that keep a cluster as its release and its configuration describe it.
//!
//! `library` is what they share; `version` is the cluster-version-operator, which applies a release image and moves the cluster to the next one.

pub mod library;
pub mod version;
