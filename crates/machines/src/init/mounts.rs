//! What init mounts itself: /proc, which must be of its own PID namespace, /sys, and the control groups.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::Path;

use rustix::mount::{MountFlags, mount};
use thiserror::Error;

/// Why the machine has no files of the kernel.
#[derive(Debug, Error)]
#[error("cannot mount {what} on {target}")]
pub struct MountError {
    what: String,
    target: String,
    #[source]
    source: io::Error,
}

fn mount_one(what: &str, target: &str, kind: &str, flags: MountFlags, data: &str) -> Result<(), MountError> {
    let fail = |source: io::Error| MountError { what: what.to_owned(), target: target.to_owned(), source };
    let data = std::ffi::CString::new(data).map_err(|error| fail(error.into()))?;
    let data = (!data.is_empty()).then_some(data.as_c_str());
    mount(what, target, kind, flags, data).map_err(|errno| fail(errno.into()))
}

/// Mounts /proc, /sys and /sys/fs/cgroup.
pub fn mount_kernel_files() -> Result<(), MountError> {
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV;
    mount_one("proc", "/proc", "proc", flags, "")?;
    mount_one("sysfs", "/sys", "sysfs", flags, "")?;
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let hierarchies = hierarchies(&own);
    match hierarchies.as_slice() {
        [] => Ok(()),
        [Hierarchy { options: None, .. }] => mount_one("cgroup2", "/sys/fs/cgroup", "cgroup2", flags, ""),
        several => {
            mount_one(
                "tmpfs",
                "/sys/fs/cgroup",
                "tmpfs",
                MountFlags::NOSUID | MountFlags::NODEV,
                "mode=755",
            )?;
            for hierarchy in several {
                let target = format!("/sys/fs/cgroup/{}", hierarchy.name);
                fs::create_dir(&target).map_err(|source| MountError {
                    what: "directory".to_owned(),
                    target: target.clone(),
                    source,
                })?;
                match &hierarchy.options {
                    Some(options) => mount_one("cgroup", &target, "cgroup", flags, options)?,
                    None => mount_one("cgroup2", &target, "cgroup2", flags, "")?,
                }
            }
            Ok(())
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    name: String,
    /// None: version 2.
    options: Option<String>,
}

/// Reads /proc/self/cgroup: one line per hierarchy, of which version 2 has no controllers.
fn hierarchies(text: &str) -> Vec<Hierarchy> {
    text.lines()
        .filter_map(|line| line.split(':').nth(1))
        .map(|controllers| match controllers {
            "" => Hierarchy { name: "unified".to_owned(), options: None },
            named => Hierarchy {
                name: named.trim_start_matches("name=").to_owned(),
                options: Some(named.to_owned()),
            },
        })
        .collect()
}

/// The files by which a process on the machine joins a group, given how the host counts its hierarchies.
pub fn group_files(own: &str, group: &str) -> Vec<String> {
    let hierarchies = hierarchies(own);
    match hierarchies.as_slice() {
        [Hierarchy { options: None, .. }] => vec![format!("/sys/fs/cgroup/{group}/cgroup.procs")],
        several => {
            let path = |one: &Hierarchy| format!("/sys/fs/cgroup/{}/{group}/cgroup.procs", one.name);
            several.iter().map(path).collect()
        }
    }
}

/// Directories on /run and /var that programs expect, and links that make writable what the image leaves out.
pub fn make_directories() -> io::Result<()> {
    for (path, mode) in [
        ("/run/lock", 0o755),
        ("/run/systemd/notify", 0o711),
        ("/run/systemd/system", 0o755),
        ("/var/home", 0o755),
        ("/var/lib", 0o755),
        ("/var/log", 0o755),
        ("/var/cache", 0o755),
        ("/var/mnt", 0o755),
        ("/var/opt", 0o755),
        ("/var/roothome", 0o700),
        ("/var/srv", 0o755),
        ("/var/tmp", 0o1777),
        ("/var/usrlocal/bin", 0o755),
    ] {
        fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    }
    fs::set_permissions("/var/tmp", std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    for (path, target) in [("/var/run", "/run"), ("/var/usrlocal/bin/kelson", "/usr/bin/kelson")] {
        if !Path::new(path).is_symlink() && !Path::new(path).exists() {
            symlink(target, path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read_as_they_are_mounted() {
        let mixed = "9:name=systemd:/\n5:cpu,cpuacct:/x\n0::/\n";
        let found = hierarchies(mixed);
        assert_eq!(found[0], Hierarchy { name: "systemd".into(), options: Some("name=systemd".into()) });
        assert_eq!(found[1], Hierarchy { name: "cpu,cpuacct".into(), options: Some("cpu,cpuacct".into()) });
        assert_eq!(found[2].options, None);
        assert_eq!(hierarchies("0::/a\n"), [Hierarchy { name: "unified".into(), options: None }]);
    }
}
