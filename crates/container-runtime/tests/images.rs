//! Images from archives: formats, compression, deletions, links, attacks, garbage.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use container_runtime::image::import::import;
use container_runtime::image::store::{ImageError, sha256};
use container_runtime::image::{Store, cli};
use cri::{ImageService, RuntimeService};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::fixture::Fixture;

crate::tests![
    all_formats_give_the_same_image,
    deletions_and_opaque_directories_hide_what_is_below,
    owners_modes_links_and_devices_survive,
    an_archive_cannot_write_outside,
    broken_archives_are_refused,
    layers_are_shared_and_collected,
    the_command_imports_lists_and_removes,
    an_imported_image_runs,
    built_in_images_follow_the_binary,
];

/// One entry of a layer.
pub enum Entry<'a> {
    File(&'a str, &'a str),
    Directory(&'a str, u32),
    Link(&'a str, &'a str),
    HardLink(&'a str, &'a str),
    Fifo(&'a str),
    /// Major and minor number.
    Device(&'a str, u32, u32),
}
use Entry::{Directory, Fifo, File, HardLink, Link};

/// Pause, demo and the components.
const BUILT_IN: usize = 2;

pub fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    for entry in entries {
        let mut header = Header::new_gnu();
        header.set_mtime(1_000_000);
        header.set_mode(0o640);
        header.set_uid(12);
        header.set_gid(34);
        let (path, data, kind) = match entry {
            File(path, text) => (path, *text, EntryType::Regular),
            Directory(path, mode) => {
                header.set_mode(*mode);
                (path, "", EntryType::Directory)
            }
            Link(path, _) => (path, "", EntryType::Symlink),
            HardLink(path, _) => (path, "", EntryType::Link),
            Fifo(path) => (path, "", EntryType::Fifo),
            Entry::Device(path, major, minor) => {
                header.set_device_major(*major).unwrap();
                header.set_device_minor(*minor).unwrap();
                (path, "", EntryType::Char)
            }
        };
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        // Written raw, so that paths that the library would refuse get through.
        let name = &mut header.as_old_mut().name;
        name[..path.len()].copy_from_slice(path.as_bytes());
        if let Link(_, target) | HardLink(_, target) = entry {
            header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        }
        header.set_cksum();
        tar.append(&header, data.as_bytes()).unwrap();
    }
    tar.into_inner().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

pub fn image_config(layers: &[Vec<u8>], run: Value) -> Vec<u8> {
    let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    let config = json!({
        "architecture": container_runtime::image::architecture(), "os": "linux",
        "config": run, "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    config.to_string().into_bytes()
}

pub type Files = BTreeMap<String, Vec<u8>>;

pub fn docker_archive(layers: &[Vec<u8>], run: Value, tags: &[&str]) -> Files {
    let config = image_config(layers, run);
    let mut files = Files::new();
    let mut names = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        names.push(format!("{index}/layer.tar"));
        files.insert(names[index].clone(), layer.clone());
    }
    files.insert("config.json".into(), config);
    let manifest = json!([{"Config": "config.json", "RepoTags": tags, "Layers": names}]);
    files.insert("manifest.json".into(), manifest.to_string().into_bytes());
    files
}

pub fn oci_layout(layers: &[Vec<u8>], run: Value, name: &str, compress: fn(&[u8]) -> Vec<u8>) -> Files {
    let mut files = Files::new();
    let mut put = |bytes: Vec<u8>| {
        let digest = sha256(&bytes);
        files.insert(format!("blobs/{}", digest.replace(':', "/")), bytes);
        digest
    };
    let config = put(image_config(layers, run));
    let layers: Vec<Value> = layers
        .iter()
        .map(|layer| json!({"mediaType": "x", "digest": put(compress(layer)), "size": 1}))
        .collect();
    let manifest = json!({"schemaVersion": 2, "config": {"mediaType": "x", "digest": config, "size": 1}, "layers": layers});
    let manifest = put(manifest.to_string().into_bytes());
    let other = json!({"mediaType": "x", "digest": sha256(b"absent"), "size": 1, "platform": {"os": "linux", "architecture": "s390x"}});
    let platform = json!({"os": "linux", "architecture": container_runtime::image::architecture()});
    let list = json!({"manifests": [other, {"mediaType": "x", "digest": manifest, "size": 1, "platform": platform}]});
    let list = put(list.to_string().into_bytes());
    let index = json!({"manifests": [
        {"mediaType": "x", "digest": list, "size": 1, "annotations": {"org.opencontainers.image.ref.name": name}},
    ]});
    files.insert("index.json".into(), index.to_string().into_bytes());
    files.insert("oci-layout".into(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec());
    files
}

pub fn write_tar(directory: &Path, name: &str, files: &Files, compress: bool) -> PathBuf {
    let mut tar = Builder::new(Vec::new());
    // Backwards: what comes first in an archive must not matter.
    for (path, bytes) in files.iter().rev() {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, &bytes[..]).unwrap();
    }
    let bytes = tar.into_inner().unwrap();
    let path = directory.join(name);
    std::fs::write(&path, if compress { gzip(&bytes) } else { bytes }).unwrap();
    path
}

pub fn write_directory(directory: &Path, name: &str, files: &Files) -> PathBuf {
    let root = directory.join(name);
    for (path, bytes) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    root
}

pub fn place(fixture: &Fixture) -> &Path {
    fixture.directory.path()
}

pub fn store(fixture: &Fixture) -> &Store {
    fixture.runtime.images()
}

async fn all_formats_give_the_same_image(fixture: &Fixture) {
    let layers = [layer(&[Directory("etc", 0o755), File("etc/a", "one")]), layer(&[File("etc/b", "two")])];
    let run =
        json!({"Env": ["A=1"], "Entrypoint": null, "Cmd": ["/x"], "User": "1:2", "StopSignal": "SIGQUIT"});
    let place = place(fixture);
    let docker = docker_archive(&layers, run.clone(), &["app:docker"]);
    let archives = [
        (write_tar(place, "docker.tar", &docker, false), "docker.io/library/app:docker"),
        (write_tar(place, "docker.tar.gz", &docker, true), "docker.io/library/app:docker"),
        (
            write_tar(place, "oci.tar", &oci_layout(&layers, run.clone(), "app:oci", gzip), false),
            "docker.io/library/app:oci",
        ),
        (
            write_directory(place, "oci", &oci_layout(&layers, run.clone(), "app:dir", zstd)),
            "docker.io/library/app:dir",
        ),
        (
            write_directory(place, "plain", &oci_layout(&layers, run, "app:plain", <[u8]>::to_vec)),
            "docker.io/library/app:plain",
        ),
    ];
    let mut ids = Vec::new();
    for (path, name) in archives {
        let imported = import(store(fixture), &path, None)
            .unwrap_or_else(|error| panic!("{}: {}", path.display(), telemetry::chain(&error)));
        assert!(imported[0].tags.contains(name), "{:?}", imported[0].tags);
        ids.push(imported[0].id.clone());
    }
    ids.dedup();
    assert_eq!(ids.len(), 1);
    let image = store(fixture).find("app:oci").unwrap().unwrap();
    assert_eq!((image.tags.len(), image.layers.len(), image.config.cmd[0].as_str()), (4, 2, "/x"));
    assert_eq!(image.config.entrypoint, Vec::<String>::new());
    let by_digest = image.digests.first().unwrap();
    assert_eq!(store(fixture).find(by_digest).unwrap().unwrap().id, image.id);
    let status = fixture.runtime.image_status(&"app:oci".into()).await.unwrap().unwrap();
    assert_eq!((status.uid, status.size), (Some(1), 6));
}

async fn deletions_and_opaque_directories_hide_what_is_below(fixture: &Fixture) {
    let layers = [
        layer(&[
            Directory("d", 0o711),
            File("d/deleted", "x"),
            File("d/stays", "x"),
            Directory("o", 0o755),
            File("o/hidden", "x"),
            File("was-file", "x"),
        ]),
        // The parents are not mentioned: they keep the mode they have below.
        layer(&[
            File("d/.wh.deleted", ""),
            File("o/.wh..wh..opq", ""),
            File("o/new", "x"),
            Directory("was-file", 0o755),
        ]),
        layer(&[File("d/deep/er/file", "x")]),
    ];
    let path = write_tar(place(fixture), "a.tar", &docker_archive(&layers, json!({}), &["app:1"]), false);
    import(store(fixture), &path, None).unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.mounts = vec![cri::Mount {
        image: Some("app:1".into()),
        container_path: "/image".into(),
        ..Default::default()
    }];
    let (_, id) = fixture.run(&config).await;
    assert_eq!(fixture.exec(&id, &["ls", "/image/d"]).await.1, "deep\nstays\n");
    assert_eq!(fixture.exec(&id, &["ls", "/image/o"]).await.1, "new\n");
    assert!(fixture.exec(&id, &["stat", "/image/was-file"]).await.1.contains("directory"));
    assert!(fixture.exec(&id, &["stat", "/image/d"]).await.1.starts_with("/image/d directory 0711 12:34"));
}

async fn owners_modes_links_and_devices_survive(fixture: &Fixture) {
    let layers = [
        layer(&[
            File("file", "text"),
            Link("link", "/absolute"),
            HardLink("hard", "file"),
            Fifo("fifo"),
            File("set", "x"),
        ]),
        layer(&[HardLink("later", "file"), File("file", "changed")]),
    ];
    let path = write_tar(place(fixture), "a.tar", &docker_archive(&layers, json!({}), &["app:1"]), false);
    let image = import(store(fixture), &path, None).unwrap().remove(0);
    use std::os::unix::fs::MetadataExt;
    let root = store(fixture).layers().join(&image.layers[0]);
    let meta = std::fs::metadata(root.join("file")).unwrap();
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o7777, meta.mtime(), meta.nlink()),
        (12, 34, 0o640, 1_000_000, 2)
    );
    assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("/absolute"));
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(
        &std::fs::metadata(root.join("fifo")).unwrap().file_type()
    ));
    let above = store(fixture).layers().join(&image.layers[1]);
    assert_eq!(
        std::fs::read_to_string(above.join("later")).unwrap(),
        "text",
        "a link to a file of a layer below"
    );
    let text = store(fixture).read_file(&image.layers, Path::new("file")).unwrap();
    assert_eq!(text.as_deref(), Some("changed"));
}

async fn an_archive_cannot_write_outside(fixture: &Fixture) {
    let victim = place(fixture).join("victim");
    std::fs::create_dir(&victim).unwrap();
    let target = victim.to_string_lossy();
    // A link to a directory of the host, then a file through it: it lands inside, under the same path.
    let sneaky = [layer(&[
        Directory(target.trim_start_matches('/'), 0o755),
        Link("out", &target),
        File("out/file", "x"),
    ])];
    let path = write_tar(place(fixture), "a.tar", &docker_archive(&sneaky, json!({}), &["app:1"]), false);
    import(store(fixture), &path, None).unwrap();
    assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 0);

    for bad in [
        layer(&[File("../up", "x")]),
        layer(&[HardLink("h", "../../../etc/passwd")]),
        layer(&[File(".wh.", "")]),
    ] {
        let path = write_tar(place(fixture), "b.tar", &docker_archive(&[bad], json!({}), &["app:2"]), false);
        assert!(import(store(fixture), &path, None).is_err());
    }
    let mut files = docker_archive(&sneaky, json!({}), &["app:3"]);
    files.insert(
        "manifest.json".into(),
        br#"[{"Config":"../../etc/passwd","RepoTags":["x:1"],"Layers":[]}]"#.to_vec(),
    );
    let path = write_directory(place(fixture), "c", &files);
    assert!(import(store(fixture), &path, None).is_err());
}

async fn broken_archives_are_refused(fixture: &Fixture) {
    let layers = [layer(&[File("a", "x")])];
    let good = || docker_archive(&layers, json!({}), &["app:1"]);
    let damage: [(&str, fn(&mut Files)); 6] = [
        ("digest", |files| drop(files.insert("0/layer.tar".into(), layer(&[File("a", "y")])))),
        ("missing", |files| drop(files.remove("0/layer.tar"))),
        ("neither", |files| drop(files.remove("manifest.json"))),
        ("config.json", |files| drop(files.insert("config.json".into(), b"{".to_vec()))),
        ("name", |files| {
            let manifest = br#"[{"Config":"config.json","RepoTags":null,"Layers":["0/layer.tar"]}]"#;
            files.insert("manifest.json".into(), manifest.to_vec());
        }),
        ("layers", |files| {
            let manifest = br#"[{"Config":"config.json","RepoTags":["a:1"],"Layers":[]}]"#;
            files.insert("manifest.json".into(), manifest.to_vec());
        }),
    ];
    for (word, damage) in damage {
        let mut files = good();
        damage(&mut files);
        let path = write_tar(place(fixture), "a.tar", &files, false);
        let error = import(store(fixture), &path, None).unwrap_err();
        assert!(telemetry::chain(&error).to_string().contains(word), "{word}: {}", telemetry::chain(&error));
    }
    for (bytes, word) in [(&b"no archive"[..], "tar"), (&b"\x1f\x8bbroken"[..], "decompress")] {
        let path = place(fixture).join("b.tar");
        std::fs::write(&path, bytes).unwrap();
        let error = import(store(fixture), &path, None).unwrap_err();
        assert!(telemetry::chain(&error).to_string().contains(word), "{}", telemetry::chain(&error));
    }
    let path = write_tar(place(fixture), "a.tar", &good(), false);
    assert!(matches!(import(store(fixture), &path, Some("Bad Name")), Err(ImageError::Reference(_))));
    assert!(import(store(fixture), Path::new("/no/such/file"), None).is_err());
    // Only what came with the binary is there, and nothing half done.
    assert_eq!(store(fixture).list().unwrap().len(), BUILT_IN);
}

async fn layers_are_shared_and_collected(fixture: &Fixture) {
    let shared = layer(&[File("shared", "x")]);
    let count = || std::fs::read_dir(store(fixture).layers()).unwrap().count();
    let before = count();
    for name in ["app:1", "app:2"] {
        let layers = [shared.clone(), layer(&[File("own", name)])];
        let path = write_tar(place(fixture), "a.tar", &docker_archive(&layers, json!({}), &[name]), false);
        import(store(fixture), &path, None).unwrap();
    }
    assert_eq!(count(), before + 3);
    fixture.runtime.remove_image(&"app:1".into()).await.unwrap();
    assert_eq!(count(), before + 2);
    fixture.runtime.remove_image(&"app:1".into()).await.unwrap();
    // In use by a container: the layers stay, the name goes.
    let sandbox = fixture.sandbox().await;
    let mut config = fixture.container_config(&["x"]);
    config.image = "app:2".into();
    config.command = vec!["/own".into()];
    let id =
        fixture.runtime.create_container(&sandbox, &config, &fixture.sandbox_config("pod")).await.unwrap();
    fixture.runtime.remove_image(&"app:2".into()).await.unwrap();
    assert_eq!(count(), before + 2);
    assert!(fixture.runtime.image_status(&"app:2".into()).await.unwrap().is_none());
    fixture.runtime.remove_container(&id).await.unwrap();
    let lock = store(fixture).lock(true).unwrap();
    store(fixture).collect(lock).unwrap();
    assert_eq!(count(), before);
}

async fn the_command_imports_lists_and_removes(fixture: &Fixture) {
    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        image: cli::ImageArgs,
    }
    let run = |words: &[&str]| {
        let cli = <Cli as clap::Parser>::try_parse_from([&["image"], words].concat()).unwrap();
        let mut out = Vec::new();
        let outcome = cli.image.run(&place(fixture).join("root"), &mut out);
        outcome
            .map(|()| String::from_utf8(out).unwrap())
            .map_err(|error| telemetry::chain(&error).to_string())
    };
    let layers = [layer(&[File("a", "x")])];
    let path = write_tar(place(fixture), "a.tar", &docker_archive(&layers, json!({}), &["app:1"]), false);
    let text = run(&["import", path.to_str().unwrap(), "--tag", "example.com/mine"]).unwrap();
    assert!(text.contains("example.com/mine:latest") && !text.contains("app:1"), "{text}");
    let text = run(&["list"]).unwrap();
    assert!(
        text.starts_with("IMAGE")
            && text.contains("example.com/mine:latest")
            && text.contains("kelson.local/demo:latest"),
        "{text}"
    );
    let json: Value = serde_json::from_str(&run(&["list", "-o", "json"]).unwrap()).unwrap();
    assert_eq!(json.as_array().unwrap().len(), BUILT_IN + 1);
    assert!(run(&["remove", "example.com/mine"]).unwrap().contains("removed"));
    assert!(run(&["remove", "example.com/mine"]).unwrap_err().contains("not present"));
}

async fn an_imported_image_runs(fixture: &Fixture) {
    // The program is the demo's own, from the binary layer; the image brings users and settings.
    let binary = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut tar = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(binary.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    tar.append_data(&mut header, "usr/bin/env", &binary[..]).unwrap();
    let layers = [tar.into_inner().unwrap(), layer(&[File("etc/passwd", "app:x:77:88::/srv:/x\n")])];
    let run = json!({"Entrypoint": ["env"], "Env": ["FROM=image"], "User": "app", "WorkingDir": "/srv"});
    let path = write_directory(place(fixture), "oci", &oci_layout(&layers, run, "example.com/app:1", gzip));
    import(store(fixture), &path, None).unwrap();
    let mut config = fixture.container_config(&[]);
    config.image = "example.com/app:1".into();
    let (status, log) = fixture.outcome(&config).await;
    assert_eq!(status.exit_code, 0, "{log}");
    assert!(log.contains("FROM=image\n") && log.contains("HOME=/srv\n"), "{log}");
    assert_eq!(status.user.unwrap().uid, 77);
    assert!(status.image_ref.starts_with("example.com/app@sha256:"), "{}", status.image_ref);
}

async fn built_in_images_follow_the_binary(fixture: &Fixture) {
    use container_runtime::image::builtin::{self, Addition, Additions};
    let file = |path: &str, text: &str| (path.to_owned(), text.as_bytes().to_vec());
    let manifests = vec![file("manifests/a.yaml", "a"), file("manifests/b/c.yaml", "c")];
    let image = |name: &str, layers: &[&Vec<(String, Vec<u8>)>]| Addition {
        name: name.into(),
        entrypoint: vec!["/usr/bin/program".into()],
        labels: [("one".to_owned(), "two".to_owned())].into(),
        layers: layers.iter().map(|files| (*files).clone()).collect(),
    };
    let more = Additions {
        programs: vec!["program".into()],
        images: vec![
            image("plain", &[]),
            image("operator", &[&manifests]),
            image("release", &[&manifests, &vec![file("release/x", "x")]]),
        ],
    };
    let (one, two) = (place(fixture).join("one"), place(fixture).join("two"));
    std::fs::write(&one, "first build").unwrap();
    std::fs::write(&two, "second build").unwrap();
    let root = place(fixture).join("other");
    let store = Store::open(&root).unwrap();
    let count = || std::fs::read_dir(store.layers()).unwrap().count();
    let first = builtin::ensure(&store, &one, "1.0", &more).unwrap();
    // The binary, the demo's files, the links, the manifests, and what the last one adds.
    assert_eq!((store.list().unwrap().len(), count()), (BUILT_IN + 3, 5));
    let release = store.find("kelson.local/release:1.0").unwrap().unwrap();
    assert_eq!(release.config.labels["one"], "two");
    let read = |path: &str| store.read_file(&release.layers, std::path::Path::new(path)).unwrap();
    assert_eq!(
        (read("/manifests/b/c.yaml").as_deref(), read("/release/x").as_deref()),
        (Some("c"), Some("x"))
    );
    assert_eq!(store.find("kelson.local/pod:1.0").unwrap().unwrap().id, first[0].id);
    assert_eq!(builtin::ensure(&store, &one, "1.0", &more).unwrap()[1].id, first[1].id);
    let second = builtin::ensure(&store, &two, "1.1", &Additions::default()).unwrap();
    assert_ne!(first[1].id, second[1].id);
    assert!(second[0].tags.contains("kelson.local/pause:1.1"));
    assert_eq!(store.find("kelson.local/demo").unwrap().unwrap().id, second[1].id);
}
