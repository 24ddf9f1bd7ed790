//! The format itself, as data: every key, its type, the version that brought it, and how lists merge.

/// How a child's list meets its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The child's elements follow.
    Append,
    /// The child's elements follow unless they are there already.
    Unique,
    /// Elements with the same value in the first of these fields that both have are one element.
    Key(&'static [&'static str]),
}

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// A JSON object with these fields.
    Object(&'static [Field]),
    /// A JSON array.
    List(&'static Shape, Merge),
    /// A string.
    Text,
    /// An integer.
    Number,
    /// true or false.
    Flag,
}

/// A key of an object.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub shape: Shape,
    /// The minor version of spec 3 that brought it.
    pub since: u64,
}

use Merge::{Append, Key, Unique};
use Shape::{Flag, List, Number, Object, Text};

const fn field(name: &'static str, shape: Shape) -> Field {
    Field { name, shape, since: 0 }
}

const fn since(minor: u64, name: &'static str, shape: Shape) -> Field {
    Field { name, shape, since: minor }
}

const TEXTS: Shape = List(&Text, Append);
const UNIQUE_TEXTS: Shape = List(&Text, Unique);
const OWNER: Shape = Object(&[field("id", Number), field("name", Text)]);
const HEADERS: Shape = List(&Object(&[field("name", Text), field("value", Text)]), Key(&["name"]));
const RESOURCE: Shape = Object(&[
    field("source", Text),
    field("compression", Text),
    since(1, "httpHeaders", HEADERS),
    field("verification", Object(&[field("hash", Text)])),
]);

const IGNITION: Shape = Object(&[
    field("version", Text),
    field("config", Object(&[field("merge", List(&RESOURCE, Append)), field("replace", RESOURCE)])),
    field("timeouts", Object(&[field("httpResponseHeaders", Number), field("httpTotal", Number)])),
    field(
        "security",
        Object(&[field(
            "tls",
            Object(&[field("certificateAuthorities", List(&RESOURCE, Key(&["source"])))]),
        )]),
    ),
    since(
        1,
        "proxy",
        Object(&[field("httpProxy", Text), field("httpsProxy", Text), field("noProxy", UNIQUE_TEXTS)]),
    ),
]);

const PARTITION: Shape = Object(&[
    field("label", Text),
    field("number", Number),
    field("sizeMiB", Number),
    field("startMiB", Number),
    field("typeGuid", Text),
    field("guid", Text),
    field("wipePartitionEntry", Flag),
    field("shouldExist", Flag),
    since(1, "resize", Flag),
]);

const DISK: Shape = Object(&[
    field("device", Text),
    field("wipeTable", Flag),
    field("partitions", List(&PARTITION, Key(&["number", "label"]))),
]);

const RAID: Shape = Object(&[
    field("name", Text),
    field("level", Text),
    field("devices", UNIQUE_TEXTS),
    field("spares", Number),
    field("options", TEXTS),
]);

const FILESYSTEM: Shape = Object(&[
    field("device", Text),
    field("format", Text),
    field("path", Text),
    field("wipeFilesystem", Flag),
    field("label", Text),
    field("uuid", Text),
    field("options", TEXTS),
    since(1, "mountOptions", TEXTS),
]);

const FILE: Shape = Object(&[
    field("path", Text),
    field("overwrite", Flag),
    field("contents", RESOURCE),
    field("append", List(&RESOURCE, Append)),
    field("mode", Number),
    field("user", OWNER),
    field("group", OWNER),
]);

const DIRECTORY: Shape = Object(&[
    field("path", Text),
    field("overwrite", Flag),
    field("mode", Number),
    field("user", OWNER),
    field("group", OWNER),
]);

const LINK: Shape = Object(&[
    field("path", Text),
    field("overwrite", Flag),
    field("target", Text),
    field("hard", Flag),
    field("user", OWNER),
    field("group", OWNER),
]);

const TANG: Shape = Object(&[field("url", Text), field("thumbprint", Text), since(4, "advertisement", Text)]);

const LUKS: Shape = Object(&[
    field("name", Text),
    field("device", Text),
    field("label", Text),
    field("uuid", Text),
    field("keyFile", RESOURCE),
    field("options", TEXTS),
    since(4, "openOptions", TEXTS),
    since(4, "discard", Flag),
    field("wipeVolume", Flag),
    field(
        "clevis",
        Object(&[
            field("tpm2", Flag),
            field("threshold", Number),
            field("tang", List(&TANG, Key(&["url"]))),
            field(
                "custom",
                Object(&[field("pin", Text), field("config", Text), field("needsNetwork", Flag)]),
            ),
        ]),
    ),
]);

const USER: Shape = Object(&[
    field("name", Text),
    field("passwordHash", Text),
    field("sshAuthorizedKeys", UNIQUE_TEXTS),
    field("uid", Number),
    field("gecos", Text),
    field("homeDir", Text),
    field("noCreateHome", Flag),
    field("primaryGroup", Text),
    field("groups", UNIQUE_TEXTS),
    field("noUserGroup", Flag),
    field("noLogInit", Flag),
    field("shell", Text),
    since(2, "shouldExist", Flag),
    field("system", Flag),
]);

const GROUP: Shape = Object(&[
    field("name", Text),
    field("gid", Number),
    field("passwordHash", Text),
    since(2, "shouldExist", Flag),
    field("system", Flag),
]);

const UNIT: Shape = Object(&[
    field("name", Text),
    field("enabled", Flag),
    field("mask", Flag),
    field("contents", Text),
    field("dropins", List(&Object(&[field("name", Text), field("contents", Text)]), Key(&["name"]))),
]);

/// A whole config.
pub const CONFIG: Shape = Object(&[
    field("ignition", IGNITION),
    since(
        3,
        "kernelArguments",
        Object(&[field("shouldExist", UNIQUE_TEXTS), field("shouldNotExist", UNIQUE_TEXTS)]),
    ),
    field(
        "storage",
        Object(&[
            field("disks", List(&DISK, Key(&["device"]))),
            field("raid", List(&RAID, Key(&["name"]))),
            since(2, "luks", List(&LUKS, Key(&["name"]))),
            field("filesystems", List(&FILESYSTEM, Key(&["path", "device"]))),
            field("files", List(&FILE, Key(&["path"]))),
            field("directories", List(&DIRECTORY, Key(&["path"]))),
            field("links", List(&LINK, Key(&["path"]))),
        ]),
    ),
    field("systemd", Object(&[field("units", List(&UNIT, Key(&["name"])))])),
    field(
        "passwd",
        Object(&[field("users", List(&USER, Key(&["name"]))), field("groups", List(&GROUP, Key(&["name"])))]),
    ),
]);

/// Lists under `storage` that share one space of paths: what a child declares replaces another type at that path.
pub const SHARED_PATHS: &[&str] = &["files", "directories", "links"];

/// The newest minor version known here.
pub const NEWEST_MINOR: u64 = 4;
