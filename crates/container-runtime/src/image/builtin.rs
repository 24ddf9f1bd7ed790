//! The images that come with the binary, made of the binary: `kelson.local/pause` and `kelson.local/demo`.
//!
//! Both stand on one layer that holds nothing but a hard link to the running executable, so they cost neither
//! disk nor time. Where the store is on another filesystem the executable is cloned, or copied once per build.
//! That layer is named by what identifies the file (device, inode, size, time), not by a hash of its tens of
//! megabytes: nobody ever sees it as an archive.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::store::{ImageError, ImageRecord, Store, layer_name, make_directory, sha256};
use super::{ImageConfig, RootFs, RunConfig, architecture};

/// Where the built-in images are "from".
pub const REGISTRY: &str = "kelson.local";
/// The name of the executable in the images.
const PROGRAM: &str = "kelson";

/// Makes the built-in images from `executable`, unless they are there already. `version` tags the pause image.
pub fn ensure(store: &Store, executable: &Path, version: &str) -> Result<Vec<ImageRecord>, ImageError> {
    let meta = fs::metadata(executable).map_err(ImageError::disk("look at", executable))?;
    let identity = (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
    let binary_id = sha256(format!("{PROGRAM} {version} {identity:?}").as_bytes());
    let demo_id = sha256(format!("demo files of {binary_id}").as_bytes());
    let binary = layer_name(None, &binary_id);
    let demo = layer_name(Some(&binary), &demo_id);

    let images = [
        Builtin {
            tags: vec![format!("{REGISTRY}/pause:{version}"), format!("{REGISTRY}/pause:latest")],
            layers: vec![(binary_id.clone(), binary.clone())],
            config: RunConfig {
                entrypoint: command(&["pause"]),
                user: "65535:65535".into(),
                ..base_config()
            },
        },
        Builtin {
            tags: vec![format!("{REGISTRY}/demo:{version}"), format!("{REGISTRY}/demo:latest")],
            layers: vec![(binary_id, binary.clone()), (demo_id, demo.clone())],
            config: RunConfig { entrypoint: command(&["demo"]), cmd: vec!["serve".into()], ..base_config() },
        },
    ];
    let present = store.list()?;
    let is_there = |image: &Builtin| {
        let layers: Vec<&str> = image.layers.iter().map(|(_, name)| name.as_str()).collect();
        present
            .iter()
            .find(|have| have.layers == layers && image.tags.iter().all(|tag| have.tags.contains(tag)))
    };
    if let (Some(pause), Some(demo)) = (is_there(&images[0]), is_there(&images[1])) {
        return Ok(vec![pause.clone(), demo.clone()]);
    }
    let lock = store.lock(true)?;
    if !store.has_layer(&binary) {
        make_layer(store, &binary, |directory| place_executable(executable, &directory.join(PROGRAM)))?;
    }
    if !store.has_layer(&demo) {
        make_layer(store, &demo, fill_demo_layer)?;
    }
    let added: Result<_, _> =
        images.into_iter().map(|image| store.add(image.record(store, meta.size())?, &lock)).collect();
    store.collect(lock)?; // of an older build
    added
}

struct Builtin {
    tags: Vec<String>,
    /// Digest and directory, bottom first.
    layers: Vec<(String, String)>,
    config: RunConfig,
}

impl Builtin {
    fn record(self, store: &Store, size: u64) -> Result<ImageRecord, ImageError> {
        let (diff_ids, layers) = self.layers.into_iter().unzip();
        let config = ImageConfig {
            architecture: architecture().into(),
            os: "linux".into(),
            config: self.config,
            rootfs: RootFs { r#type: "layers".into(), diff_ids },
        };
        let bytes = serde_json::to_vec(&config).map_err(|error| ImageError::Disk {
            doing: "encode",
            path: "image configuration".into(),
            source: error.into(),
        })?;
        Ok(ImageRecord {
            id: store.put_blob(&bytes)?,
            tags: self.tags.into_iter().collect(),
            digests: Default::default(),
            size,
            layers,
            config: config.config,
            pinned: true,
        })
    }
}

fn command(args: &[&str]) -> Vec<String> {
    [&format!("/{PROGRAM}")[..]].iter().chain(args).map(ToString::to_string).collect()
}

fn base_config() -> RunConfig {
    RunConfig { env: vec![format!("PATH={}", crate::plan::DEFAULT_PATH)], ..Default::default() }
}

fn make_layer(
    store: &Store,
    name: &str,
    fill: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), ImageError> {
    let scratch = store.scratch();
    make_directory(&scratch, 0o755)
        .and_then(|()| fill(&scratch))
        .map_err(ImageError::disk("make the built-in layer in", &scratch))?;
    store.put_layer(&scratch, name)
}

/// Hard link, else clone, else copy. A link must not make the file executable by less than all, as it may be in a
/// private directory with a private mode; then it is a copy.
fn place_executable(executable: &Path, target: &Path) -> io::Result<()> {
    let open_to_all = fs::metadata(executable)?.permissions().mode() & 0o555 == 0o555;
    if open_to_all && fs::hard_link(executable, target).is_ok() {
        return Ok(());
    }
    let (source, copy) = (File::open(executable)?, File::create(target)?);
    if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
        io::copy(&mut &source, &mut &copy)?;
    }
    copy.set_permissions(fs::Permissions::from_mode(0o755))
}

fn fill_demo_layer(directory: &Path) -> io::Result<()> {
    for (name, mode) in [("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("root", 0o700), ("home", 0o755)] {
        make_directory(&directory.join(name), mode)?;
    }
    for applet in crate::demo::APPLETS {
        symlink(format!("/{PROGRAM}"), directory.join("bin").join(applet))?;
    }
    let passwd = "root:x:0:0:root:/root:/bin/false\ndemo:x:1000:1000:demo:/home:/bin/false\n\
                  nobody:x:65534:65534:nobody:/:/bin/false\n";
    fs::write(directory.join("etc/passwd"), passwd)?;
    fs::write(directory.join("etc/group"), "root:x:0:\ndemo:x:1000:\nstaff:x:50:demo\nnogroup:x:65534:\n")?;
    fs::write(directory.join("etc/nsswitch.conf"), "hosts: files dns\n")
}
