//! The operators: controllers that keep a cluster as its release and its configuration describe it.
//!
//! `library` is what they share; `version` is the cluster-version-operator, which applies a release image and moves the cluster to the next one.

pub mod dns;
pub mod etcd;
pub mod kube_apiserver;
pub mod kube_controller_manager;
pub mod kube_scheduler;
pub mod library;
pub mod machine_approver;
pub mod network;
pub mod version;
