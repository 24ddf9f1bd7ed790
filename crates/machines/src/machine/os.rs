//! The operating system of a machine: a read-only tree made from this binary. Programs are links to it; what must be
//! writable (`/etc`, `/var`) is not part of it, and what people expect to be writable leads to `/var`.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::Path;

/// Names under which the binary is other programs.
const PROGRAMS: &[&str] = &["init", "systemctl", "journalctl", "reboot", "poweroff", "kubectl", "oc"];

const LINKS: &[(&str, &str)] = &[
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("usr/sbin", "bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib"),
    ("usr/lib64", "lib"),
    ("usr/local", "../var/usrlocal"),
    ("opt", "var/opt"),
    ("home", "var/home"),
    ("root", "var/roothome"),
    ("srv", "var/srv"),
    ("mnt", "var/mnt"),
    ("usr/etc/os-release", "../usr/lib/os-release"),
];

const DIRECTORIES: &[&str] = &[
    "dev",
    "etc",
    "proc",
    "run",
    "sys",
    "tmp",
    "var",
    "usr/bin",
    "usr/lib/modules",
    "usr/lib/systemd/system",
    "usr/lib/systemd/system-preset",
    "usr/etc/ssl/certs",
    "usr/etc/systemd/system",
    "usr/etc/kubernetes",
];

const FILES: &[(&str, &str, u32)] = &[
    (
        "usr/lib/os-release",
        concat!(
            "NAME=\"Kelson OS\"\nID=kelson\nVERSION_ID=",
            env!("CARGO_PKG_VERSION"),
            "\nPRETTY_NAME=\"Kelson OS ",
            env!("CARGO_PKG_VERSION"),
            "\"\n"
        ),
        0o644,
    ),
    ("usr/lib/systemd/system-preset/99-default-disable.preset", "disable *\n", 0o644),
    (
        "usr/etc/passwd",
        "root:x:0:0:root:/root:/usr/bin/nologin\nnobody:x:65534:65534::/:/usr/bin/nologin\n",
        0o644,
    ),
    ("usr/etc/group", "root:x:0:\nnobody:x:65534:\n", 0o644),
    ("usr/etc/shadow", "root:*::0:99999:7:::\n", 0o600),
    (
        "usr/etc/hosts",
        "127.0.0.1 localhost localhost.localdomain\n::1 localhost localhost.localdomain\n",
        0o644,
    ),
    ("usr/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n", 0o644),
];

/// Points that units gather around, each with what it comes after.
const TARGETS: &[(&str, &str)] = &[
    ("sysinit", ""),
    (
        "basic",
        "Requires=sysinit.target\nAfter=sysinit.target timers.target paths.target sockets.target\nWants=timers.target\n",
    ),
    ("timers", ""),
    ("paths", ""),
    ("sockets", ""),
    ("local-fs", ""),
    ("remote-fs", ""),
    ("network-pre", ""),
    // The machine has its address before it boots.
    ("network", "After=network-pre.target\n"),
    ("network-online", "After=network.target\n"),
    ("nss-lookup", ""),
    ("time-sync", ""),
    ("ignition-complete", ""),
    ("ignition-firstboot-complete", ""),
    (
        "multi-user",
        "Requires=basic.target\nAfter=basic.target network-online.target\nWants=network-online.target\n",
    ),
    ("default", "Requires=multi-user.target\nAfter=multi-user.target\n"),
    ("shutdown", ""),
];

/// Makes the tree from a program, if it is not there yet.
pub fn build(root: &Path, program: &Path) -> io::Result<()> {
    if root.join(".complete").exists() {
        return Ok(());
    }
    // What an interrupted run left is begun again.
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for directory in DIRECTORIES {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(root.join(directory))?;
    }
    for (path, target) in LINKS {
        symlink(target, root.join(path))?;
    }
    for (path, text, mode) in FILES {
        fs::write(root.join(path), text)?;
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(*mode))?;
    }
    for (name, text) in TARGETS {
        // The first and the last of all come before what every unit depends on.
        let bare = if matches!(*name, "sysinit" | "shutdown") { "DefaultDependencies=no\n" } else { "" };
        let text = format!("[Unit]\nDescription={name}\n{bare}{text}");
        fs::write(root.join(format!("usr/lib/systemd/system/{name}.target")), text)?;
    }
    let binary = root.join("usr/bin/kelson");
    fs::copy(program, &binary)?;
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))?;
    for name in PROGRAMS {
        symlink("kelson", root.join("usr/bin").join(name))?;
    }
    fs::write(root.join(".complete"), "")
}

/// Copies what a fresh `/etc` holds.
pub fn fill_etc(root: &Path, etc: &Path) -> io::Result<()> {
    copy_tree(&root.join("usr/etc"), etc)
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, target) = (entry.file_type()?, to.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::load::Loader;
    use crate::unit::{Specifiers, transaction};

    #[test]
    fn the_tree_is_made_once_and_its_targets_start() {
        let parent = tempfile::tempdir().unwrap();
        let (root, program) = (parent.path().join("os"), parent.path().join("program"));
        fs::write(&program, "x").unwrap();
        build(&root, &program).unwrap();
        fs::remove_file(&program).unwrap();
        build(&root, &program).unwrap();
        assert_eq!(fs::read_to_string(root.join("usr/sbin/init")).unwrap(), "x");
        let loader = Loader::new(&root, Specifiers::default());
        let plan =
            transaction::start("default.target", &mut |name| loader.load(name).map_err(|e| e.to_string()));
        let plan = plan.unwrap();
        assert!(plan.jobs.contains_key("network-online.target"), "{plan:?}");
        let etc = parent.path().join("etc");
        fill_etc(&root, &etc).unwrap();
        assert_eq!(fs::metadata(etc.join("shadow")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
