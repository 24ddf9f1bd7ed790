//! A registry: the OCI distribution protocol over a directory.
//!
//! ```text
//! request ─► route (what is asked of which repository) ─► auth (may they) ─► server (the verbs) ─► store (the directory)
//! ```
//!
//! `route` and `auth`'s decisions are pure. Nothing that was sent counts before its digest was checked; everything that is
//! sent is bounded; a name that could leave the directory is no name.

pub mod auth;
mod cli;
mod error;
pub mod route;
pub mod server;
pub mod store;

pub use cli::{RegistryArgs, RegistryCommandError};
