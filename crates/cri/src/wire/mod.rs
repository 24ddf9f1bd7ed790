//! The CRI on the wire: protobuf messages, and the way between them and this crate's own types, both ways.
//!
//! What the wire can say wrongly (an unknown enum value, a port that is none, an address that is none) is refused where a
//! request is read, and read as the default where it is an answer that is merely shown.

pub mod convert;
#[allow(missing_docs, clippy::all)]
pub mod r#gen;

/// The methods' prefix of both services.
pub const RUNTIME_SERVICE: &str = "/runtime.v1.RuntimeService/";
/// See [`RUNTIME_SERVICE`].
pub const IMAGE_SERVICE: &str = "/runtime.v1.ImageService/";
