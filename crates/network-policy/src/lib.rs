//! NetworkPolicy on one node, by nftables.
//!
//! The path of a change: informers ring a bell ([`Policies`]), [`compile`] turns objects into a [`model::Model`], [`table`]
//! turns that into rules, and the difference to the rules last written is one kernel transaction. Everything up to the
//! transaction is pure.
//!
//! What must stay true: a pod sends and receives nothing through this node before its rules are in force ([`Guard`]);
//! rules stay when the process dies, and the next one replaces them in one step once it knows the cluster; what a
//! packet costs does not depend on the number of pods; a connection that is no longer allowed ends.
//!
//! What it leaves to others: addresses and links (a `cni::Network`), Services (kube-proxy translates before policies look).

pub mod compile;
mod guard;
pub mod model;
mod sync;
pub mod table;
pub mod types;

pub use compile::Attached;
pub use guard::Guard;
pub use sync::{Config, Error, Policies, end_forbidden, remove_rules};
pub use table::Frame;
