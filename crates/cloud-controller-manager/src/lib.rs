//! The cloud loops: what a cluster asks of the place that its machines live in, on a provider trait.
//!
//! Reading order: [`provider`] (what a place can be asked), `service` (load balancers), `node` and `node_lifecycle`
//! (machines), `route` (pod ranges), then [`local`], the provider for machines of one's own. Providers' calls are
//! idempotent and happen while a controller gathers its view; which call is made, and what the API is told about its
//! outcome, are pure functions.

mod args;
mod kinds;
pub mod local;
mod manager;
mod node;
mod node_lifecycle;
pub mod provider;
mod route;
mod service;

pub use args::{CloudControllerManagerArgs, StartError, run};
pub use controller_runtime::program::Selection;
pub use kinds::{Node, Service};
pub use manager::{Config, Manager, names, start};
pub use service::NAME as SERVICE_CONTROLLER;
