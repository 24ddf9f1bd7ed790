//! Releases: which components there are, what their images contain, and the payload that pins them together.
//!
//! ```text
//! components (the table) ─► component::manifests (what is in each image's /manifests)
//!                                   │  placeholders: image names, versions
//! images that run each component ─► payload: image-references, release-metadata, 0000_NN_component_*  ─► release image
//! ```
//!
//! Everything here is a function of values; images are made and moved by those who call it.

pub mod components;
pub mod crds;
pub mod payload;

pub use components::{COMPONENTS, Component};
pub use payload::{File, Payload, ReleaseError};
