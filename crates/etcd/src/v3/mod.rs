//! The etcd v3 API over gRPC, directly on h2.
//!
//! [`server`] accepts connections and serves each in one task on one thread (`shards`): requests are answered by futures of that task, so answers
//! that become ready together leave in one write. [`service`] knows the methods, [`kv`] and [`auth`] decide without I/O,
//! [`watch`], [`concurrency`] and [`maintenance`] are the streaming and waiting ones. [`frame`] is gRPC's framing,
//! [`messages`] the wire format, [`status`] the errors. [`cluster`] knows the members. `http` and `metrics` answer plain HTTP.

pub mod auth;
mod authority;
pub mod cluster;
pub mod concurrency;
pub mod downgrade;
pub mod frame;
pub mod gather;
mod http;
pub mod kv;
pub mod maintenance;
pub mod messages;
mod metrics;
pub mod server;
pub mod service;
mod shards;
pub mod status;
pub mod watch;
