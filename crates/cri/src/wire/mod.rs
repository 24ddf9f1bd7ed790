//! The CRI on the wire: protobuf messages, and the way between them and this crate's own types, both ways.
//!
//! The messages are declared by subject, a line per field with its number; only those that either end of ours reads or
//! writes. A field that no message here has is skipped by whoever reads it, as protobuf has it, so a message says all
//! fields of the protocol that could change what is asked for, also those that are then refused.
//!
//! What the wire can say wrongly (an unknown enum value, a port that is none, an address that is none) is refused where a
//! request is read, and read as the default where it is an answer that is merely shown.

#[macro_use]
mod declare;

mod containers;
pub mod convert;
mod images;
mod runtime;
mod sandboxes;
mod security;
mod stats;

pub use containers::*;
pub use images::*;
pub use runtime::*;
pub use sandboxes::*;
pub use security::*;
pub use stats::*;

/// The methods' prefix of both services.
pub const RUNTIME_SERVICE: &str = "/runtime.v1.RuntimeService/";
/// See [`RUNTIME_SERVICE`].
pub const IMAGE_SERVICE: &str = "/runtime.v1.ImageService/";
