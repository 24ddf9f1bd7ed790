//! The data structures of the store, without threads, clocks or files.
//!
//! [`keyspace`] holds every key with its history, [`lease`] the leases and what hangs on them, [`hub`] hands
//! published changes to the watches, [`range`] says which keys a request means.

pub mod hub;
pub mod keyspace;
pub mod lease;
pub mod range;
