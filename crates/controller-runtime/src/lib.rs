//! The one driver of all controllers: views, plans, queues, and the executor of plans.
//!
//! ```text
//! informer ──► trigger ──► Queue ──► gather (Context → view) ──► reconcile (view → Plan) ──► Executor ──► API server
//!                            ▲                                                                   │
//!                            └────────────── back-off, look again at …, caches caught up ◄───────┘
//! ```
//!
//! A controller is two functions and a list of triggers; it contains no loop, no sleep and no client. What must stay
//! true: a key is worked on by one worker at a time; it is looked at again only when the caches show the controller's
//! own last writes to it; an error or panic in one key never stops another; nothing runs while nothing changes.

mod caches;
mod controller;
mod executor;
mod leader;
mod meta;
mod metrics;
mod pace;
mod plan;
pub mod program;
mod queue;
mod recorder;
mod runtime;
mod selector;

pub use caches::{Caches, Expect, MetaListener};
pub use client::{Change, Key, Labels, OwnerReference, Projection, Propagation, Resource};
pub use controller::{Context, Controller};
pub use executor::Failure;
pub use leader::{Election, LeaderElection};
pub use meta::{Described, Kind, Meta, Raw, index_by_controller, micro_time, time};
pub use pace::Pace;
pub use plan::{Announce, Event, PatchForm, Plan, Reference, Verb, Write, difference, merge};
pub use recorder::{Doing, Recorder};
pub use runtime::{Clock, Runtime, system_clock};
pub use selector::Selector;
