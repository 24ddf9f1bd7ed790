//! gRPC's framing, which other components share.

pub use grpc::frame::*;
