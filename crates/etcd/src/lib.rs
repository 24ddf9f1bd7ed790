//! The store: what etcd is to Kubernetes, embedded.
//!
//! - [`store`] is the contract that the API server codes against.
//! - [`local`] is the store in process, on [`engine`], which decides, applies and publishes.
//! - [`log`] makes it durable, on a [`disk`].
//! - [`v3`] serves it as etcd's gRPC API.
//! - [`replication`] keeps a second server's copy up to date.
//! - [`remote`] is the same contract on any etcd v3.
//! - [`command`] is `etcd` as a program: [`flags`], listening, auto-[`compactor`]; [`backup`] saves and restores; [`bench`] measures.
//! - [`robustness`] runs several members under faults and checks what clients were told.
//! - [`ctl`] is `etcdctl` and `etcdutl`.
//! - [`mvcc`] holds its data structures, without threads or files; [`mutation`] the steps by which they change.

// What the unit tests share with those outside names the crate as they do.
#[cfg(test)]
extern crate self as etcd;

mod alarm;
pub mod backup;
pub mod bench;
mod bolt;
pub mod command;
pub mod compactor;
mod config_file;
pub mod counters;
pub mod ctl;
pub mod disk;
pub mod engine;
pub mod flags;
pub mod local;
mod local_watch;
pub mod log;
mod mapping;
pub mod mutation;
pub mod mvcc;
mod passive;
pub mod raft;
pub mod remote;
pub mod replication;
pub mod robustness;
pub mod store;
pub mod tls;
pub mod v3;

pub use command::{EtcdArgs, run};
pub use engine::{Config, OpenError, open};
pub use local::Etcd;
pub use store::{
    Committed, Event, EventKind, KeyValue, ListOptions, Listing, Precondition, ProgressRequester, Revision,
    Store, StoreError, Watch, WatchMessage, WatchSource,
};
