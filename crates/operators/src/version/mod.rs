//! The cluster-version-operator.
//!
//! ```text
//! release image ─► payload (what is in it) ─► include (what is for this cluster) ─► graph (in which order)
//!                                                                                        │
//!                        ClusterVersion status ◄─ progress ◄─ apply: merge, delete, wait ◄┘
//! ```

pub mod graph;
pub mod include;
pub mod manifest;
pub mod merge;
pub mod payload;
