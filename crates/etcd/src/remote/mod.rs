//! The store on any etcd v3, over gRPC.
//!
//! [`channel`] keeps one connection to one of several endpoints and goes on to the next when it fails, [`store`] says the
//! trait's operations in etcd's messages, [`watch`] resumes a watch at the revision it had reached. [`members`] asks for and changes the members.

pub mod channel;
pub mod members;
pub mod store;
mod watch;

pub use channel::{Channel, RemoteConfig, RemoteError};
pub use members::Members;
pub use store::{Remote, connect};
