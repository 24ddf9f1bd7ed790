//! Images that try to read, write or use up what is the host's.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use container_runtime::image::import::import;
use container_runtime::image::unpack::{Limits, unpack, unpack_within};
use cri::RuntimeService;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::fixture::Fixture;
use crate::images::Entry::{self, Device, Directory, Fifo, File, HardLink, Link};
use crate::images::{docker_archive, layer, oci_layout, place, store, write_directory, write_tar};

crate::tests![
    a_hard_link_never_follows_a_link,
    deletions_stay_in_their_directory,
    links_to_nowhere_lead_inside,
    names_that_come_twice_are_well_defined,
    attributes_of_the_host_are_dropped,
    costs_are_bounded,
    a_layout_on_disk_cannot_point_elsewhere,
    accounts_are_read_inside_the_image,
];

/// Imports an image of these layers; gives the directories of the layers, bottom first.
fn unpacked(fixture: &Fixture, layers: &[&[Entry<'_>]]) -> Result<Vec<PathBuf>, String> {
    let layers: Vec<Vec<u8>> = layers.iter().map(|entries| layer(entries)).collect();
    let files = docker_archive(&layers, json!({}), &["app:1"]);
    let path = write_tar(place(fixture), "a.tar", &files, false);
    let images = import(store(fixture), &path, None).map_err(|error| telemetry::chain(&error).to_string())?;
    Ok(images[0].layers.iter().map(|name| store(fixture).layers().join(name)).collect())
}

async fn a_hard_link_never_follows_a_link(fixture: &Fixture) {
    let secret = place(fixture).join("secret");
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("key"), "of the host").unwrap();
    std::fs::set_permissions(secret.join("key"), PermissionsExt::from_mode(0o600)).unwrap();
    let (directory, key) = (secret.to_string_lossy(), secret.join("key").to_string_lossy().into_owned());
    // To a link of the same layer, to one of the layer below, and through a directory that is a link.
    let bottom: &[Entry<'_>] = &[Link("key", &key), Link("directory", &directory), HardLink("same", "key")];
    let layers = unpacked(fixture, &[bottom, &[HardLink("later", "key")]]).unwrap();
    for copy in [layers[0].join("same"), layers[1].join("later")] {
        assert_eq!(std::fs::read_link(copy).unwrap(), Path::new(&key), "the link itself is linked");
    }
    for through in ["directory/key", "key/x"] {
        let error = unpacked(fixture, &[bottom, &[HardLink("stolen", through)]]).unwrap_err();
        assert!(error.contains("no "), "{error}");
        assert!(unpacked(fixture, &[&[Link("directory", &directory), HardLink("stolen", through)]]).is_err());
    }
}

async fn deletions_stay_in_their_directory(fixture: &Fixture) {
    for name in [".wh.", ".wh..", ".wh...", "d/.wh...", "d/.wh.."] {
        let error = unpacked(fixture, &[&[File(name, "")]]).unwrap_err();
        assert!(error.contains("deletion of nothing"), "{name}: {error}");
    }
    let victim = place(fixture).join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "x").unwrap();
    let target = victim.to_string_lossy();
    let layers = unpacked(
        fixture,
        &[
            &[Link("out", &target)],
            &[Link("out", &target), File("out/.wh.file", ""), File("out/.wh..wh..opq", "")],
        ],
    )
    .unwrap();
    assert!(victim.join("file").is_file());
    let inside = layers[1].join(target.trim_start_matches('/'));
    assert!(std::fs::symlink_metadata(inside.join("file")).unwrap().file_type().is_char_device());
}

async fn links_to_nowhere_lead_inside(fixture: &Fixture) {
    let victim = place(fixture).join("victim");
    let target = victim.to_string_lossy();
    let entries =
        [Link("a", "b/../../../../../b"), Link("b", &target), File("a/file", "x"), Device("a/disk", 8, 0)];
    let layers = unpacked(fixture, &[&entries]).unwrap();
    assert!(!victim.exists());
    let inside = layers[0].join("b");
    assert_eq!(std::fs::read_link(&inside).unwrap(), victim, "it stays a link");
    let made = layers[0].join(target.trim_start_matches('/'));
    assert!(made.join("file").is_file());
    assert!(std::fs::metadata(made.join("disk")).unwrap().file_type().is_char_device());
    assert!(unpacked(fixture, &[&[Link("a", "b"), Link("b", "a"), File("a/file", "x")]]).is_err());
}

async fn names_that_come_twice_are_well_defined(fixture: &Fixture) {
    let victim = place(fixture).join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "host").unwrap();
    let key = victim.join("file").to_string_lossy().into_owned();
    let below: &[Entry<'_>] = &[Directory("d", 0o755), File("d/old", "x"), File("gone", "x")];
    let entries = [
        Link("file", &key),
        File("file", "second"), // replaces the link, does not write through it
        Directory("tree", 0o755),
        File("tree/inner", "x"),
        Link("tree", &victim.to_string_lossy()), // replaces the whole directory
        File("d/new", "x"),
        File(".wh.d", ""), // hides what is below, not what this layer has
        File(".wh.gone", ""),
        File("gone/again", "x"),
        HardLink("same", "same2"),
    ];
    let layers = unpacked(fixture, &[below, &entries[..9]]).unwrap();
    assert_eq!(std::fs::read_to_string(victim.join("file")).unwrap(), "host");
    assert_eq!(std::fs::read_to_string(layers[1].join("file")).unwrap(), "second");
    assert_eq!(std::fs::read_link(layers[1].join("tree")).unwrap(), victim);
    assert!(layers[1].join("d/new").is_file());
    assert!(unpacked(fixture, &[below, &entries]).is_err(), "a link to what is not there");
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.mounts = vec![cri::Mount {
        image: Some("app:1".into()),
        container_path: "/image".into(),
        ..Default::default()
    }];
    let (_, id) = fixture.run(&config).await;
    assert_eq!(fixture.exec(&id, &["ls", "/image/d"]).await.1, "new\n");
    assert_eq!(fixture.exec(&id, &["ls", "/image/gone"]).await.1, "again\n");
}

/// A layer of one file that has extended headers.
fn extended(records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut tar = Builder::new(Vec::new());
    tar.append_pax_extensions(records.iter().copied()).unwrap();
    let mut header = Header::new_ustar();
    header.set_path("file").unwrap();
    header.set_size(0);
    header.set_cksum();
    tar.append(&header, &b""[..]).unwrap();
    tar.into_inner().unwrap()
}

async fn attributes_of_the_host_are_dropped(fixture: &Fixture) {
    let target = place(fixture).join("target");
    std::fs::create_dir(&target).unwrap();
    let names =
        ["trusted.overlay.redirect", "trusted.x", "security.selinux", "security.ima", "user.overlay.opaque"];
    let mut records: Vec<(String, &[u8])> =
        names.iter().map(|name| (format!("SCHILY.xattr.{name}"), &b"value"[..])).collect();
    // Version 2 of a file capability, cap_net_raw.
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    records.push(("SCHILY.xattr.security.capability".into(), &capability));
    let records: Vec<(&str, &[u8])> = records.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    unpack(&extended(&records)[..], &target, &[]).unwrap();
    let mut value = [0_u8; 64];
    let mut has = |name: &str| rustix::fs::lgetxattr(target.join("file"), name, &mut value[..]).is_ok();
    assert!(names.iter().all(|name| !has(name)));
    assert!(has("security.capability"));
}

async fn costs_are_bounded(fixture: &Fixture) {
    let target = place(fixture).join("target");
    std::fs::create_dir(&target).unwrap();
    let limits = Limits { bytes: 100, entries: 3, headers: 8192, name: 64 };
    let refuses = |archive: &[u8], word: &str| {
        let error = unpack_within(archive, &target, &[], &limits).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    unpack_within(&layer(&[File("a", "x"), File("b", "x")])[..], &target, &[], &limits).unwrap();
    refuses(&layer(&[File("a", ""), File("b", ""), File("c", ""), File("d", "")]), "too large");
    refuses(&layer(&[File("a", &"x".repeat(60)), File("b", &"x".repeat(60))]), "too large");
    refuses(&layer(&[File(&"n".repeat(70), "")]), "too long");
    let many = vec![b'x'; 10_000];
    refuses(&extended(&[("SCHILY.xattr.user.many", &many)]), "headers");
    // A long name that says it has a gigabyte.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(1 << 20, b'n');
    refuses(&archive, "headers");
    // A sparse file that says it has four gigabytes.
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_size(0);
    let sparse = header.as_gnu_mut().unwrap();
    sparse.set_real_size(1 << 32);
    sparse.sparse[0].offset[..11].copy_from_slice(b"40000000000");
    sparse.sparse[0].numbytes[..11].copy_from_slice(b"00000000000");
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.resize(2048, 0);
    refuses(&archive, "too large");
}

async fn a_layout_on_disk_cannot_point_elsewhere(fixture: &Fixture) {
    let layers = [layer(&[File("a", "x")])];
    let files = oci_layout(&layers, json!({}), "app:1", <[u8]>::to_vec);
    let root = write_directory(place(fixture), "oci", &files);
    import(store(fixture), &root, None).unwrap();
    let (index, elsewhere) = (root.join("index.json"), place(fixture).join("index.json"));
    std::fs::rename(&index, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &index).unwrap();
    assert!(import(store(fixture), &root, None).is_err());
    std::fs::remove_file(&index).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &index, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(import(store(fixture), &root, None).is_err(), "and does not wait for a writer");
}

async fn accounts_are_read_inside_the_image(fixture: &Fixture) {
    let outside = place(fixture).join("passwd");
    std::fs::write(&outside, "spy:x:4242:4242::/:/x\n").unwrap();
    let target = outside.to_string_lossy();
    let binary = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let mut program = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_size(binary.len() as u64);
    header.set_mode(0o755);
    program.append_data(&mut header, "id", &binary[..]).unwrap();
    let program = program.into_inner().unwrap();
    let sandbox = fixture.sandbox().await;
    let create = async |entries: &[Entry<'_>], user: &str| {
        let run = json!({"Entrypoint": ["/id"], "User": user});
        let files = docker_archive(&[program.clone(), layer(entries)], run, &["app:1"]);
        import(store(fixture), &write_tar(place(fixture), "a.tar", &files, false), None).unwrap();
        let mut config = fixture.container_config(&[]);
        config.image = "app:1".into();
        let created =
            fixture.runtime.create_container(&sandbox, &config, &fixture.sandbox_config("pod")).await;
        created.map_err(|error| telemetry::chain(&error).to_string())
    };
    let inside = [File("real/passwd", "spy:x:77:77::/:/x\n"), Link("etc", "../../../real")];
    let id = create(&inside, "spy").await.unwrap();
    let user = fixture.runtime.container_status(&id).await.unwrap().user;
    assert_eq!(user.unwrap().uid, 77, "a link inside the image is followed");
    for hostile in [Link("etc/passwd", &target), Fifo("etc/passwd"), Device("etc/passwd", 1, 5)] {
        let entries = [hostile];
        assert!(create(&entries, "spy").await.unwrap_err().contains("not in the image's"));
        create(&entries, "1000").await.unwrap();
    }
    let large = "x".repeat(5 << 20);
    assert!(create(&[File("etc/passwd", &large)], "0").await.unwrap_err().contains("larger than"));
}
