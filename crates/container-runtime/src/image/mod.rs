//! Images: names, the store on disk, ways in.
//!
//! Path of an image: [`import`] reads an archive, [`unpack`] turns each layer into a directory that overlayfs can
//! stack, [`store`] keeps records and layers; [`builtin`] makes the images of this very binary. [`pull`] is the second
//! way in, from a [`registry`], ending in the same [`store::Store::add`].

pub mod build;
pub mod builtin;
pub mod bundle;
pub mod cli;
mod containerfile;
pub mod export;
mod growing;
pub mod import;
pub mod manifest;
pub mod pack;
pub mod pull;
pub mod push;
pub mod reference;
pub mod registry;
pub mod store;
pub mod unpack;
mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use reference::Reference;
pub use store::{ImageError, ImageRecord, Store};

/// What an image says about running it: the part of the OCI image configuration that we use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RunConfig {
    #[serde(deserialize_with = "null_is_empty")]
    pub user: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_empty")]
    pub working_dir: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub stop_signal: String,
    #[serde(deserialize_with = "null_is_empty", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// An OCI image configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    pub architecture: String,
    pub os: String,
    pub config: RunConfig,
    pub rootfs: RootFs,
}

/// The layers of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RootFs {
    pub r#type: String,
    /// Digests of the uncompressed layers, bottom first.
    pub diff_ids: Vec<String>,
}

/// Docker writes `null` for an empty list.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// This machine in the words of image manifests.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
