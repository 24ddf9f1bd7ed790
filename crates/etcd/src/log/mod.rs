//! The write-ahead log: the truth from which the state is rebuilt.
//!
//! [`codec`] turns mutations into bytes and back, [`segment`] frames them into checksummed batches, [`torn`] tells
//! unfinished writes from damage, [`recovery`] reads snapshot and log at start-up, [`journal`] holds what waits to be written, [`writer`] is the thread that makes it
//! durable.

pub mod codec;
#[doc(hidden)]
pub mod feed;
pub mod journal;
pub mod recovery;
pub mod segment;
pub mod snapshot;
pub mod torn;
pub mod writer;

use std::path::PathBuf;

use thiserror::Error;

/// What is wrong with stored data.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Damage {
    /// A checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The bytes are not of the form that this program writes.
    #[error("not readable as a {0}")]
    Malformed(&'static str),
    /// A different format.
    #[error("format version {found}, this program reads version {expected}")]
    Version {
        /// What the file says.
        found: u32,
        /// What this program writes.
        expected: u32,
    },
    /// Records are missing.
    #[error("record {found} where record {expected} should be")]
    Gap {
        /// The record expected.
        expected: u64,
        /// The record found.
        found: u64,
    },
    /// The file ends too early.
    #[error("the file is cut short")]
    Short,
}

/// Stored data that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{} is damaged at offset {offset}", file.display())]
pub struct Corruption {
    /// Which file.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// How.
    #[source]
    pub damage: Damage,
}
