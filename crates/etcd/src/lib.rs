//! The store: what etcd is to Kubernetes, embedded.
//!
//! - [`store`] is the contract that the API server codes against.
//! - [`engine`] is the store in process: decides, applies, publishes.
//! - [`mvcc`] holds its data structures, without threads or files; [`mutation`] the steps by which they change.

pub mod engine;
mod local_watch;
pub mod mutation;
pub mod mvcc;
pub mod store;

pub use engine::{Config, Etcd, OpenError, open};
pub use store::{
    Committed, Event, EventKind, KeyValue, ListOptions, Listing, Precondition, ProgressRequester, Revision,
    Store, StoreError, Watch, WatchMessage,
};
