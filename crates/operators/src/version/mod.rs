//! The cluster-version-operator.
//!
//! ```text
//! release image ─► payload (what is in it) ─► include (what is for this cluster) ─► graph (in which order)
//!                                                                                        │
//!                 ClusterVersion's status ◄─ sync (how far) ◄─ apply: merge, delete, wait ◄┘
//! ```
//!
//! Everything but `apply`, `sync`'s driver and `operator` is a pure function of values.

pub mod apply;
mod args;
pub mod cluster_version;
pub mod failure;
pub mod graph;
mod health;
pub mod include;
pub mod manifest;
pub mod merge;
mod operator;
pub mod payload;
pub mod sync;

pub use args::{ClusterVersionOperatorArgs, ClusterVersionOperatorError};

/// What a release is applied for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The cluster never had one: everything at once, and as fast as it goes.
    Initializing,
    /// From another release to this one: run level by run level.
    Updating,
    /// The cluster has it already: what was changed is restored.
    Reconciling,
}
