//! Why an expression gave no value.

use thiserror::Error;

/// A failure while an expression runs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// A map or object does not have it.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// A function does not take these.
    #[error("no such overload")]
    NoOverload,
    /// A list is not that long.
    #[error("index out of bounds: {0}")]
    Index(i64),
    /// Division by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// Remainder of a division by zero.
    #[error("modulus by zero")]
    ModulusByZero,
    /// Too large for the type.
    #[error("integer overflow")]
    Overflow,
    /// The optional is empty.
    #[error("optional.none() dereference")]
    Nothing,
    /// It took more than it may.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// A value is not what it should be.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// A value is not what it should be.
    pub fn invalid(text: impl Into<String>) -> Self {
        Error::Invalid(text.into())
    }
}
