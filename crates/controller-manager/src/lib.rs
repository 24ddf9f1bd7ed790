//! The controller manager: one module per controller, each a view, a pure `reconcile` and a list of triggers.
//!
//! Reading order: `kinds` (what is cached), `claims` and `pods` (what the workload controllers share), then any
//! controller; `manager` lists them all and starts those that were chosen. How to add one:
//! `docs/guides/controllers.md`.

mod args;
mod attach_detach;
mod autoscaler;
mod bootstrap_tokens;
mod certificates;
mod claims;
mod cluster_role_aggregation;
mod compatibility;
mod concurrency;
mod cron_job;
mod daemon_set;
mod deployment;
mod device_taints;
mod discovery;
mod disruption;
mod endpoint_slice;
mod endpoint_slice_mirroring;
mod endpoints;
mod garbage_collector;
mod housekeeping;
mod job;
pub mod kinds;
mod legacy_tokens;
mod local_volumes;
mod manager;
mod namespace;
mod node_ipam;
mod node_lifecycle;
mod pod_gc;
mod pods;
mod policy_status;
mod replica_set;
mod resource_quota;
mod revisions;
mod root_ca;
mod service_account;
mod service_account_tokens;
mod signing_args;
#[cfg(test)]
mod simulation;
mod stateful_set;
mod taint_eviction;
#[cfg(test)]
mod testing;
mod ttl_after_finished;
mod volume_binder;
mod volume_expander;
mod volume_protection;

pub use args::{KubeControllerManagerArgs, StartError, run};
pub use attach_detach::Forcing;
pub use autoscaler::Autoscaling;
pub use certificates::Signers;
pub use controller_runtime::program::Selection;
pub use local_volumes::LocalVolumes;
pub use manager::{Config, Manager, names, start};
pub use node_ipam::Range;
pub use node_lifecycle::{EvictionRates, Grace};
