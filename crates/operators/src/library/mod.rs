//! What operators share.
//!
//! ```text
//! changes ─► driver ─► Operator::sync (reads, decides) ─► Round (a value) ─► driver: objects, then the status
//!                                                            │
//!                          operator CR's conditions ◄────────┴──► ClusterOperator: their union, versions
//! ```
//!
//! An operator is a table ([`driver::About`]), and functions from what was read to a [`driver::Round`]. What must stay
//! true: each round begins with what the API server says now; it writes the status only after the objects it tells of;
//! an operator that was killed at any write finds the same way on from what it left.

pub mod certificates;
pub mod cluster_operator;
pub mod conditions;
pub mod config;
pub mod driver;
pub mod mapper;
pub mod operand;
pub mod program;
pub mod restore;
pub mod static_pod;
pub mod workload;
