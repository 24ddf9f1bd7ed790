//! A validated config as Rust values. What this crate does not apply (disks, filesystems) stays JSON.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A config.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Config {
    /// The header.
    pub ignition: Header,
    /// Kernel arguments to have and not to have.
    #[serde(skip_serializing_if = "is_default")]
    pub kernel_arguments: KernelArguments,
    /// Users and groups.
    #[serde(skip_serializing_if = "is_default")]
    pub passwd: Passwd,
    /// Files and what carries them.
    #[serde(skip_serializing_if = "is_default")]
    pub storage: Storage,
    /// Units.
    #[serde(skip_serializing_if = "is_default")]
    pub systemd: Systemd,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Version, further configs, trust.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Header {
    /// `3.x.0`.
    pub version: String,
    /// Configs to fetch.
    #[serde(skip_serializing_if = "is_default")]
    pub config: References,
    /// Proxy for fetching.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<Value>,
    /// Authorities for fetching.
    #[serde(skip_serializing_if = "is_default")]
    pub security: Security,
    /// Limits for fetching.
    #[serde(skip_serializing_if = "is_default")]
    pub timeouts: Timeouts,
}

/// Configs to fetch.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct References {
    /// Laid over this one, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub merge: Vec<Resource>,
    /// Used instead of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace: Option<Resource>,
}

/// Trust.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Security {
    /// For HTTPS.
    pub tls: Tls,
}

/// Trust for HTTPS.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// Authorities besides the system's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificate_authorities: Vec<Resource>,
}

/// Limits, in seconds; 0 waits for ever.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// For the headers of one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_response_headers: Option<u64>,
    /// For everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_total: Option<u64>,
}

/// Content that lies somewhere.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Resource {
    /// URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Empty or `gzip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// Headers of the request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http_headers: Vec<HttpHeader>,
    /// What the content must be.
    #[serde(skip_serializing_if = "is_default")]
    pub verification: Verification,
}

/// An HTTP header.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value; none removes a parent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What content must be.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Verification {
    /// `sha256-…` or `sha512-…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl Resource {
    /// Content held in the URL itself.
    pub fn inline(content: &[u8]) -> Self {
        Self { source: Some(crate::encode_data_url(content)), ..Self::default() }
    }

    /// Content elsewhere.
    pub fn at(url: &str) -> Self {
        Self { source: Some(url.to_owned()), ..Self::default() }
    }
}

/// Arguments of the kernel.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KernelArguments {
    /// To have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub should_exist: Vec<String>,
    /// Not to have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub should_not_exist: Vec<String>,
}

/// Users and groups.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Passwd {
    /// Users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<User>,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct User {
    /// Login.
    pub name: String,
    /// As in /etc/shadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<String>,
    /// Lines of authorized_keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ssh_authorized_keys: Vec<String>,
    /// Number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Full name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gecos: Option<String>,
    /// Home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_dir: Option<String>,
    /// Whether home is left unmade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_create_home: Option<bool>,
    /// First group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_group: Option<String>,
    /// Further groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whether no group of the same name is made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_user_group: Option<bool>,
    /// Whether lastlog is left alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_log_init: Option<bool>,
    /// Shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Whether to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
    /// Whether a system user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// As in /etc/gshadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<String>,
    /// Whether to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
    /// Whether a system group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
}

/// Files and what carries them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storage {
    /// Kept as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Value>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub raid: Vec<Value>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub luks: Vec<Value>,
    /// Kept as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Value>,
    /// Directories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<Directory>,
    /// Files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// Links.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// Who owns a node of the file system.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Owner {
    /// By number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// By name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct File {
    /// Where.
    pub path: String,
    /// Whether something there goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// What.
    #[serde(skip_serializing_if = "is_default")]
    pub contents: Resource,
    /// What comes after.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append: Vec<Resource>,
    /// Permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Owner.
    #[serde(skip_serializing_if = "is_default")]
    pub user: Owner,
    /// Owning group.
    #[serde(skip_serializing_if = "is_default")]
    pub group: Owner,
}

impl File {
    /// A file with its content inside the config; it replaces what is there.
    pub fn inline(path: &str, mode: u32, content: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            overwrite: Some(true),
            contents: Resource::inline(content),
            mode: Some(mode),
            ..Self::default()
        }
    }
}

/// A directory.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Directory {
    /// Where.
    pub path: String,
    /// Whether something there goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Permissions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Owner.
    #[serde(skip_serializing_if = "is_default")]
    pub user: Owner,
    /// Owning group.
    #[serde(skip_serializing_if = "is_default")]
    pub group: Owner,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Link {
    /// Where.
    pub path: String,
    /// To what.
    pub target: String,
    /// Whether a hard one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard: Option<bool>,
    /// Whether something there goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overwrite: Option<bool>,
    /// Owner.
    #[serde(skip_serializing_if = "is_default")]
    pub user: Owner,
    /// Owning group.
    #[serde(skip_serializing_if = "is_default")]
    pub group: Owner,
}

/// Units.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Systemd {
    /// Units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<Unit>,
}

/// A unit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Unit {
    /// With its suffix.
    pub name: String,
    /// Whether it starts at boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Whether it can never start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<bool>,
    /// Its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<String>,
    /// Additions to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dropins: Vec<Dropin>,
}

/// An addition to a unit.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Dropin {
    /// With its suffix.
    pub name: String,
    /// Its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<String>,
}
