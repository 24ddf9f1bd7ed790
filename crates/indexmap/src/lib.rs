//! Maps that keep the order of their keys, and are plain lists as long as they are short.
//!
//! This takes the place of the field's `indexmap` below `serde_json` (whose objects are such maps), `h2` and the YAML
//! parser, with as much of its interface as those use. Objects of an API have few keys each: looking through them
//! is cheaper than hashing, one block of memory is cheaper than two, and a JSON value is 32 bytes in place of 72.
//! See `docs/decisions/0009-short-maps.md`.
//!
//! What must stay true: keys are unique; a map with more than [`SHORT`] entries has an index, so that nobody makes us
//! quadratic by sending many keys; the index knows the position of every entry.

mod index;
mod iterators;
pub mod map;

pub use equivalent::Equivalent;
pub use map::IndexMap;

/// Maps of up to this many entries are looked through.
const SHORT: usize = 16;
