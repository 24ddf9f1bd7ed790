//! The Ignition config format, 3.0 to 3.4: parse, validate, merge, apply.
//!
//! One declaration of the format ([`schema`]) drives unknown-key warnings, type errors, version checks and merging.
//! [`parse`] gives a [`Config`] and a [`Report`]; [`merge`] lays a child over a parent by the specification's rules;
//! [`resolve`] follows `ignition.config`; [`apply`] writes files, links, users and units below a root directory.
//! Nothing here fetches anything: whoever resolves a config brings the function that does.

pub mod apply;
mod data_url;
mod merge;
mod resolve;
mod resource;
pub mod schema;
pub mod types;
mod validate;

pub use data_url::{DataUrlError, decode as decode_data_url, encode as encode_data_url};
pub use merge::{merge, merge_values};
pub use resolve::{ResolveError, resolve};
pub use resource::{ResourceError, read as read_resource, sha512_hash};
pub use types::{Config, Directory, File, Link, Resource, Unit, User};
pub use validate::{Entry, Report, Severity, validate};

use thiserror::Error;

/// Why a text is not a config.
#[derive(Debug, Error)]
pub enum ParseError {
    /// Nothing there.
    #[error("the config is empty")]
    Empty,
    /// Not JSON.
    #[error("the config is not JSON")]
    Json(#[from] serde_json::Error),
    /// The rules are broken; the report says which.
    #[error("the config is invalid: {0}")]
    Invalid(Report),
}

/// Reads and validates a config. Warnings come back with it; any error refuses it.
pub fn parse(text: &[u8]) -> Result<(Config, Report), ParseError> {
    if text.iter().all(u8::is_ascii_whitespace) {
        return Err(ParseError::Empty);
    }
    let value: serde_json::Value = serde_json::from_slice(text)?;
    let report = validate(&value);
    if report.has_errors() {
        return Err(ParseError::Invalid(report));
    }
    Ok((serde_json::from_value(value)?, report))
}
