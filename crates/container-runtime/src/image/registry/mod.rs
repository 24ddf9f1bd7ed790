//! Talking to registries: the OCI distribution protocol.
//!
//! `config` says where to ask, `http` carries one request, `auth` answers challenges, [`Repository`] is one repository of
//! one registry with both. What comes from there is hostile: everything is bounded, and nothing counts before its digest.

pub mod auth;
pub mod config;
pub mod http;
mod repository;

pub use auth::AuthError;
pub use config::{ConfigError, Registries, Source};
pub use http::{Http, HttpError, Limits};
pub use repository::{Answer, Ask, Payload, RegistryError, Repository, accepted, resolve};
