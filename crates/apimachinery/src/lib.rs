//! The machinery below every kind: schemas and the things that walk them, metadata, names, selectors, quantities,
//! patches, server-side apply, `Status`.
//!
//! Objects are `serde_json::Value`s. Everything here is a pure function of its arguments: no I/O, no async, no clock.
//! A write goes `decode` → (hooks of the kind) → `patch` or `apply` → `decode::value` again → encode.
#![warn(missing_docs)]

pub mod apply;
pub mod decode;
pub mod field;
pub mod golang;
pub mod meta;
pub mod names;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod table;
pub mod time;
pub mod yaml;
