//! `adm release`: makes releases, shows them, takes them apart and copies them.
//!
//! `remote` reads and writes images of registries, `layer` the archives in them; `new` puts a release together, `info` reads
//! one and writes about it, `extract` and `mirror` carry it elsewhere. What a release consists of is `release`'s business.

mod cli;
pub mod extract;
pub mod info;
pub mod layer;
pub mod mirror;
pub mod new;
pub mod remote;

pub use cli::{AdmArgs, Builtin};
pub use remote::AdmError;
