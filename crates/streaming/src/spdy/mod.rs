//! SPDY/3.1 as Kubernetes speaks it: many byte streams with headers on one connection.
//!
//! [`frame`] is the codec, [`session`] the multiplexer. Kubernetes' own peer (spdystream) neither sends nor
//! obeys flow-control windows, so windows are accepted and ignored; back-pressure is the connection's.

mod dictionary;
mod frame;
mod inflate;
mod session;

pub use frame::{Codec, Frame, Headers, SpdyError};
pub use session::{Session, Stream};
