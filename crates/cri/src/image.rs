//! Images: references, what is present, how to fetch.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A reference to an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageSpec {
    /// Tag reference, digest reference or id.
    pub image: String,
    /// Opaque.
    pub annotations: BTreeMap<String, String>,
    /// The reference in the pod's own spec.
    pub user_specified_image: String,
    /// The RuntimeClass handler it is for.
    pub runtime_handler: String,
}

impl From<&str> for ImageSpec {
    fn from(image: &str) -> Self {
        Self { image: image.to_owned(), ..Self::default() }
    }
}

/// An image that is present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Digest of its config: `sha256:…`.
    pub id: String,
    /// Its names with tags.
    pub repo_tags: Vec<String>,
    /// Its names with manifest digests.
    pub repo_digests: Vec<String>,
    /// Bytes on disk.
    pub size: u64,
    /// The user it runs as, when numeric.
    pub uid: Option<i64>,
    /// The user it runs as, when a name.
    pub username: String,
    /// Whether garbage collection must leave it alone.
    pub pinned: bool,
}

/// Which images to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFilter {
    /// Only the image that this reference means; all when empty.
    pub image: ImageSpec,
}

/// Credentials for one registry. Prints nothing secret.
#[derive(Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of a docker config.json entry
pub struct AuthConfig {
    pub username: String,
    pub password: String,
    pub auth: String,
    pub server_address: String,
    pub identity_token: String,
    pub registry_token: String,
}

impl AuthConfig {
    /// Whether it says nothing at all.
    pub fn is_empty(&self) -> bool {
        [&self.username, &self.password, &self.auth, &self.identity_token, &self.registry_token]
            .iter()
            .all(|field| field.is_empty())
    }

    /// Name and password, however they were given.
    pub fn basic(&self) -> Option<(String, String)> {
        match self.username.is_empty() && self.password.is_empty() {
            true => crate::credentials::decode_basic(&self.auth),
            false => Some((self.username.clone(), self.password.clone())),
        }
    }
}

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

/// Use of one filesystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// When measured.
    pub timestamp: i64,
    /// A directory on it.
    pub mountpoint: PathBuf,
    /// Bytes used by the subject (images, or writable layers), not by the whole filesystem.
    pub used_bytes: u64,
    /// Inodes used by the subject.
    pub inodes_used: u64,
}

/// Disk use of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFsInfo {
    /// Images.
    pub image_filesystems: Vec<FilesystemUsage>,
    /// Writable layers of containers.
    pub container_filesystems: Vec<FilesystemUsage>,
}
