//! Finds a node for every pod that has none.
//!
//! ```text
//! informers ─► Cache (nodes, their pods, assumed pods)  ─┐
//!           └► Queue (active · backoff · unschedulable)  ─┴► cycle: filter → score → assume ─► bind (concurrently)
//! ```
//!
//! A cycle is a pure function of a pod and the cache ([`framework::Framework::schedule`]); the driver in
//! [`driver`] only moves objects in and decisions out. A chosen node is *assumed* in the cache at once, so the
//! next cycle sees it, and forgotten again if the binding fails. A pod that fits nowhere may push out less
//! important ones ([`preemption`]).

mod args;
pub mod bench;
mod cache;
pub mod config;
mod devices;
mod driver;
mod events;
mod extender;
pub mod framework;
mod handle;
mod metrics;
pub mod plugins;
mod preemption;
mod queue;
mod resources;
mod storage;
mod terms;
mod topology;
mod types;
mod workloads;

pub use args::{KubeSchedulerArgs, StartError, run};
pub use cache::{Cache, NodeInfo, PlacedPod};
pub use driver::{Config, start};
pub use events::{ClusterEvent, Events};
pub use handle::{Handle, News};
pub use metrics::Metrics;
pub use preemption::{Budget, Preemption};
pub use resources::Resources;
pub use types::{Node, Pod};
