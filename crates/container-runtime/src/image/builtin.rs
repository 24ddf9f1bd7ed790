//! The images that come with the binary, made of the binary: `kelson.local/pause`, `kelson.local/demo`, and whatever else the
//! binary says that it is ([`Additions`]), so that pods can run it without a registry.
//!
//! All stand on one layer that holds nothing but a hard link to the running executable, so they cost neither
//! disk nor time. Where the store is on another filesystem the executable is cloned, or copied once per build.
//! That layer is named by the build id that the linker put into the file, not by a hash of its tens of megabytes: the same
//! build has the same digests on every machine. (A file without one is known by device, inode, size and time.)

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::store::{ImageError, ImageRecord, Store, layer_name, make_directory, sha256};
use super::{ImageConfig, RootFs, RunConfig, architecture};

/// Where the built-in images are "from".
pub const REGISTRY: &str = "kelson.local";
/// The name of the executable in the images.
pub const PROGRAM: &str = "kelson";

/// Images beside the runtime's own, made of the same binary.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Names that the executable answers to: every added image has a link of each in /usr/bin.
    pub programs: Vec<String>,
    pub images: Vec<Addition>,
}

/// One such image.
#[derive(Clone, Debug, Default)]
pub struct Addition {
    pub name: String,
    pub entrypoint: Vec<String>,
    pub labels: BTreeMap<String, String>,
    /// Files above the links, layer by layer: path and content. Images that begin with the same layers share them.
    pub layers: Vec<Vec<(String, Vec<u8>)>>,
}

/// Makes the built-in images from `executable`, unless they are there already. `version` tags them, beside `latest`.
pub fn ensure(
    store: &Store,
    executable: &Path,
    version: &str,
    additions: &Additions,
) -> Result<Vec<ImageRecord>, ImageError> {
    let look = |source| ImageError::disk("look at", executable)(source);
    let meta = fs::metadata(executable).map_err(look)?;
    let binary_id = match build_id(&File::open(executable).map_err(look)?) {
        Some(id) => sha256(format!("{PROGRAM} {version} build {id}").as_bytes()),
        None => {
            let identity = (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
            sha256(format!("{PROGRAM} {version} {identity:?}").as_bytes())
        }
    };
    let demo_id = sha256(format!("demo files of {binary_id}").as_bytes());
    let links_id = sha256(format!("links {:?} of {binary_id}", additions.programs).as_bytes());
    let binary = layer_name(None, &binary_id);
    let demo = layer_name(Some(&binary), &demo_id);
    let links = layer_name(Some(&binary), &links_id);

    let tags = |names: &[&str]| {
        let tag = |name: &&str| [format!("{REGISTRY}/{name}:{version}"), format!("{REGISTRY}/{name}:latest")];
        names.iter().flat_map(tag).collect::<Vec<String>>()
    };
    let base = (binary_id, binary.clone());
    let mut images = vec![
        Builtin {
            // What an installation calls `pod` is the same thing.
            tags: tags(&["pause", "pod"]),
            layers: vec![base.clone()],
            config: pause(),
        },
        Builtin {
            tags: tags(&["demo"]),
            layers: vec![base.clone(), (demo_id, demo.clone())],
            config: RunConfig { entrypoint: command(&["demo"]), cmd: vec!["serve".into()], ..base_config() },
        },
    ];
    let mut filled: BTreeMap<String, &Vec<(String, Vec<u8>)>> = BTreeMap::new();
    for addition in &additions.images {
        let mut layers = vec![base.clone(), (links_id.clone(), links.clone())];
        for files in &addition.layers {
            let id = sha256(format!("files {}", digest_of(files)).as_bytes());
            let name = layer_name(layers.last().map(|(_, below)| below.as_str()), &id);
            filled.insert(name.clone(), files);
            layers.push((id, name));
        }
        images.push(Builtin {
            tags: tags(&[&addition.name]),
            layers,
            config: RunConfig {
                entrypoint: addition.entrypoint.clone(),
                labels: addition.labels.clone(),
                ..base_config()
            },
        });
    }
    let present = store.list()?;
    let is_there = |image: &Builtin| {
        let layers: Vec<&str> = image.layers.iter().map(|(_, name)| name.as_str()).collect();
        present
            .iter()
            .find(|have| have.layers == layers && image.tags.iter().all(|tag| have.tags.contains(tag)))
            .cloned()
    };
    if let Some(all) = images.iter().map(is_there).collect() {
        return Ok(all);
    }
    let lock = store.lock(true)?;
    if !store.has_layer(&binary) {
        make_layer(store, &binary, |directory| place_executable(executable, &directory.join(PROGRAM)))?;
    }
    if !store.has_layer(&demo) {
        make_layer(store, &demo, fill_demo_layer)?;
    }
    if !additions.images.is_empty() && !store.has_layer(&links) {
        make_layer(store, &links, |directory| fill_links_layer(directory, &additions.programs))?;
    }
    for (name, files) in filled {
        if !store.has_layer(&name) {
            make_layer(store, &name, |directory| fill_files_layer(directory, files))?;
        }
    }
    let added: Result<_, _> =
        images.into_iter().map(|image| store.add(image.record(store, meta.size())?, &lock)).collect();
    store.collect(lock)?; // of an older build
    added
}

/// The build id of an ELF file of 64 bits in this machine's byte order, if the linker put one in.
fn build_id(file: &File) -> Option<String> {
    const SEGMENT_NOTE: u32 = 4;
    const NOTE_BUILD_ID: u32 = 3;
    /// Notes are a few hundred bytes; whatever claims to be more is not looked at.
    const LARGEST: usize = 64 << 10;
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |bytes: &[u8], at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let read = |at: u64, size: usize| {
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    };
    let header = read(0, 64)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return None;
    }
    let (table, size, count) = (long(&header, 32)?, half(&header, 54)?, half(&header, 56)?);
    for index in 0..u64::from(count) {
        let segment = read(table.checked_add(index * u64::from(size))?, 56)?;
        let (start, length) = (long(&segment, 8)?, usize::try_from(long(&segment, 32)?).ok()?);
        if word(&segment, 0)? != SEGMENT_NOTE || length > LARGEST {
            continue;
        }
        let notes = read(start, length)?;
        let mut at = 0;
        while let (Some(name_size), Some(size), Some(kind)) =
            (word(&notes, at), word(&notes, at + 4), word(&notes, at + 8))
        {
            let padded = |size: u32| (size as usize).next_multiple_of(4);
            let (name, content) = (at + 12, at + 12 + padded(name_size));
            if kind == NOTE_BUILD_ID && notes.get(name..name + 4) == Some(b"GNU\0") {
                let id = notes.get(content..content + size as usize)?;
                return Some(id.iter().map(|byte| format!("{byte:02x}")).collect());
            }
            at = content + padded(size);
        }
    }
    None
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

/// How the pause image is run.
pub fn pause() -> RunConfig {
    RunConfig { entrypoint: command(&["pause"]), user: "65535:65535".into(), ..base_config() }
}

/// What all of these images have in common.
pub fn base_config() -> RunConfig {
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

/// A name of some files.
fn digest_of(files: &[(String, Vec<u8>)]) -> String {
    let all: Vec<String> = files.iter().map(|(path, bytes)| format!("{path} {}", sha256(bytes))).collect();
    sha256(all.join("\n").as_bytes())
}

/// Files, with the directories that they are in.
fn fill_files_layer(directory: &Path, files: &[(String, Vec<u8>)]) -> io::Result<()> {
    for (path, bytes) in files {
        let inside = super::pack::inside(path);
        let mut place = directory.to_path_buf();
        for part in inside.parent().into_iter().flat_map(Path::components) {
            place.push(part);
            match make_directory(&place, 0o755) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        fs::write(directory.join(inside), bytes)?;
    }
    Ok(())
}

/// Links of all names, and the few files that programs look for.
pub fn fill_links_layer(directory: &Path, programs: &[String]) -> io::Result<()> {
    for (name, mode) in [("usr", 0o755), ("usr/bin", 0o755), ("etc", 0o755), ("tmp", 0o1777), ("var", 0o755)]
    {
        make_directory(&directory.join(name), mode)?;
    }
    for name in programs {
        symlink(format!("/{PROGRAM}"), directory.join("usr/bin").join(name))?;
    }
    fs::write(
        directory.join("etc/passwd"),
        "root:x:0:0:root:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    )?;
    fs::write(directory.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    fs::write(directory.join("etc/nsswitch.conf"), "hosts: files dns\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linkers_id_is_found() {
        let own = File::open("/proc/self/exe").unwrap();
        let id = build_id(&own).expect("test binaries are linked with a build id");
        assert!(id.len() >= 16 && id.bytes().all(|letter| letter.is_ascii_hexdigit()), "{id}");
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(build_id(file.as_file()), None);
        fs::write(
            file.path(),
            b"\x7fELF\x02 and then nonsense that goes on for more than sixty-four bytes, far more",
        )
        .unwrap();
        assert_eq!(build_id(file.as_file()), None);
    }
}
