//! How calls fail.

use std::borrow::Cow;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct Status {
    /// The gRPC code.
    pub code: u16,
    /// The text.
    pub message: Cow<'static, str>,
}

impl Status {
    /// A failure with a text of its own.
    pub fn new(code: u16, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }
}

/// gRPC's codes, as far as they are used.
#[allow(missing_docs)] // the protocol's names
pub mod code {
    pub const CANCELED: u16 = 1;
    pub const UNKNOWN: u16 = 2;
    pub const INVALID_ARGUMENT: u16 = 3;
    pub const DEADLINE_EXCEEDED: u16 = 4;
    pub const NOT_FOUND: u16 = 5;
    pub const ALREADY_EXISTS: u16 = 6;
    pub const PERMISSION_DENIED: u16 = 7;
    pub const RESOURCE_EXHAUSTED: u16 = 8;
    pub const FAILED_PRECONDITION: u16 = 9;
    pub const OUT_OF_RANGE: u16 = 11;
    pub const UNIMPLEMENTED: u16 = 12;
    pub const UNAVAILABLE: u16 = 14;
    pub const DATA_LOSS: u16 = 15;
    pub const UNAUTHENTICATED: u16 = 16;
}

/// No such method.
pub const UNKNOWN_METHOD: Status =
    Status { code: code::UNIMPLEMENTED, message: Cow::Borrowed("unknown service or method") };
/// Compression was never offered.
pub const COMPRESSED: Status =
    Status { code: code::UNIMPLEMENTED, message: Cow::Borrowed("compressed messages are not supported") };
/// Not the message that the method takes.
pub const MALFORMED: Status =
    Status { code: code::INVALID_ARGUMENT, message: Cow::Borrowed("the request cannot be decoded") };
