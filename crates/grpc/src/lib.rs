//! gRPC on h2, as much as the components need: framing and statuses, and both ends of a Unix socket.
//!
//! [`frame`] cuts messages out of streams and answers calls; [`server`] accepts connections and hands each call to a
//! [`server::Service`]; [`channel`] is the client. Messages are prost's; what is above (etcd's protocol, CRI) has its own crate.

#![warn(missing_docs)]

pub mod channel;
pub mod frame;
pub mod server;
pub mod status;

pub use status::Status;
