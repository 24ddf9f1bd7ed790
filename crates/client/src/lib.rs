//! The one client of all components: requests, watches and caches.
//!
//! ```text
//! Api ──► Client ──► Transport ─┬─ a function call into the API server   (same process)
//!                               └─ HTTPS, one HTTP/2 connection           (`Https`)
//! Informer = list + watch + a map of projections
//! ```
//!
//! A component reads objects as *projections*: small serde structs with a [`Metadata`] and only the fields it
//! uses. What it passes through stays a `serde_json::Value`. The client names no kind beyond the constants in
//! [`resources`]; any [`Resource`] works.

mod api;
mod error;
mod https;
mod informer;
mod metadata;
mod read;
mod resource;
mod shared;
mod text;
mod tls;
mod transport;
mod watch;

pub mod resources;
pub mod service;

pub use api::{
    Api, Client, DeleteOptions, List, ListMetadata, ListOptions, Patch, Preconditions, Propagation,
};
pub use error::Error;
pub use https::{Credentials, Endpoint, Https, HttpsConfig, HttpsError};
pub use informer::{Change, Informer, Informers};
pub use metadata::{Key, Labels, Metadata, OwnerReference, Owners, Projection};
pub use read::{drop_nulls, read};
pub use resource::Resource;
pub use shared::Shared;
pub use text::{Short, Word};
pub use tls::{Trust, any_server, system_roots, tls_client};
pub use transport::{Body, Transport, TransportError, full_body};
pub use watch::{Encoded, WatchEvent, WatchStream};
