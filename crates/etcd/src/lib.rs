//! The store: what etcd is to Kubernetes, embedded.
//!
//! - [`store`] is the contract that the API server codes against.
//! - [`local`] is the store in process, on [`engine`], which decides, applies and publishes.
//! - [`log`] makes it durable, on a [`disk`].
//! - [`mvcc`] holds its data structures, without threads or files; [`mutation`] the steps by which they change.

pub mod disk;
pub mod engine;
pub mod local;
mod local_watch;
pub mod log;
pub mod mutation;
pub mod mvcc;
pub mod store;

pub use engine::{Config, OpenError, open};
pub use local::Etcd;
pub use store::{
    Committed, Event, EventKind, KeyValue, ListOptions, Listing, Precondition, ProgressRequester, Revision,
    Store, StoreError, Watch, WatchMessage,
};
