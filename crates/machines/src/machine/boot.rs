//! Booting: namespaces, mounts, the cable to the switch, and then PID 1.
//!
//! All of it happens on a thread of its own, which moves into each namespace and ends: the monitor itself stays where
//! it is. The PID namespace comes last, because a thread that has asked for one can no longer start threads.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{FileType, Mode, makedev, mknodat};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::thread::UnshareFlags;
use thiserror::Error;

use super::{Machine, Place, cgroup, os};
use crate::switch::{Switch, SwitchError};
use crate::sys;

/// Why a machine did not boot.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum BootError {
    #[error("cannot {operation} {}", path.display())]
    Io {
        operation: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make the machine's namespaces")]
    Namespaces(#[source] io::Error),
    #[error("cannot connect the machine to its switch")]
    Switch(#[from] SwitchError),
    #[error("cannot put the machine into its control group")]
    Group(#[source] io::Error),
    #[error("cannot start the machine's first process")]
    Init(#[source] io::Error),
}

fn at<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BootError + 'a {
    move |source| BootError::Io { operation, path: path.to_owned(), source }
}

fn errno_at<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(rustix::io::Errno) -> BootError + 'a {
    move |errno| BootError::Io { operation, path: path.to_owned(), source: errno.into() }
}

/// What a boot needs to know besides the machine.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The cluster's id.
    pub cluster: String,
    /// The tree of the operating system.
    pub os: PathBuf,
}

/// Boots a machine; the child is its PID 1.
pub fn boot(place: &Place, machine: &Machine, around: &Surroundings) -> Result<Child, BootError> {
    prepare_disks(place, machine, around)?;
    let group = cgroup::Group::new(&around.cluster, Some(&machine.name));
    group.create().and_then(|()| group.limit(machine.memory_mib, machine.cpus)).map_err(BootError::Group)?;
    // The namespace's root is the group of whoever makes it, so the monitor goes there for a moment.
    group.join().map_err(BootError::Group)?;
    let outcome =
        std::thread::scope(|scope| match scope.spawn(|| on_thread(place, machine, around)).join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        });
    let monitors = cgroup::Group::new(&around.cluster, Some("monitors"));
    monitors.create().and_then(|()| monitors.join()).map_err(BootError::Group)?;
    outcome
}

/// `/etc` and `/var` are fresh until an ignition file was applied to the end: a first boot that was interrupted begins
/// again from nothing.
fn prepare_disks(place: &Place, machine: &Machine, around: &Surroundings) -> Result<(), BootError> {
    let (etc, var, shared) =
        (place.path().join("etc"), place.path().join("var"), place.path().join("shared"));
    if !etc.join(".ignition-result.json").exists() {
        for path in [&etc, &var] {
            match fs::remove_dir_all(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at("clear", path)(error));
                }
                _ => {}
            }
        }
        os::fill_etc(&around.os, &etc).map_err(at("fill", &etc))?;
        let mut resolver: String =
            machine.nameservers.iter().map(|server| format!("nameserver {server}\n")).collect();
        if !machine.search.is_empty() {
            resolver.push_str(&format!("search {}\n", machine.search.join(" ")));
        }
        let path = etc.join("resolv.conf");
        fs::write(&path, resolver).map_err(at("write", &path))?;
    }
    for path in [&var, &shared] {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(path).map_err(at("make", path))?;
    }
    let status = shared.join("status.json");
    match fs::remove_file(&status) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at("remove", &status)(error)),
        _ => Ok(()),
    }
}

fn on_thread(place: &Place, machine: &Machine, around: &Surroundings) -> Result<Child, BootError> {
    let flags = UnshareFlags::NEWNS
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWCGROUP
        | UnshareFlags::FS;
    sys::unshare(flags).map_err(BootError::Namespaces)?;
    Switch::of(&around.cluster).plug(&machine.name, machine.mac(), &machine.addresses, &machine.gateways)?;
    rustix::system::sethostname(machine.name.as_bytes())
        .map_err(|errno| BootError::Namespaces(errno.into()))?;
    let console = open_console(place)?;
    let errors = console.try_clone().map_err(at("open", &place.console()))?;
    mount_root(place, around)?;
    sys::unshare(UnshareFlags::NEWPID).map_err(BootError::Namespaces)?;
    Command::new("/usr/bin/init")
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin")
        .env("container", "kelson")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(console)
        .stderr(errors)
        .spawn()
        .map_err(BootError::Init)
}

fn open_console(place: &Place) -> Result<fs::File, BootError> {
    let path = place.console();
    // One boot's console is kept besides the running one's.
    let _ = fs::rename(&path, path.with_extension("log.1"));
    fs::OpenOptions::new().create(true).append(true).open(&path).map_err(at("open", &path))
}

fn mount_root(place: &Place, around: &Surroundings) -> Result<(), BootError> {
    let root = around.os.as_path();
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(errno_at("make private", Path::new("/")))?;
    mount_bind(root, root).map_err(errno_at("mount", root))?;
    mount_remount(root, MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV, c"")
        .map_err(errno_at("make read-only", root))?;
    for name in ["etc", "var"] {
        let target = root.join(name);
        mount_bind(place.path().join(name), &target).map_err(errno_at("mount", &target))?;
    }
    let temporary = |name: &str, flags: MountFlags, options: &std::ffi::CStr| {
        let target = root.join(name);
        mount("tmpfs", &target, "tmpfs", flags | MountFlags::NOSUID, options)
            .map_err(errno_at("mount", &target))
    };
    temporary("dev", MountFlags::NOEXEC, c"mode=755")?;
    temporary("run", MountFlags::NODEV, c"mode=755")?;
    temporary("tmp", MountFlags::NODEV, c"mode=1777")?;
    fill_dev(&root.join("dev"))?;
    let shared = root.join("run/machine");
    fs::create_dir(&shared).map_err(at("make", &shared))?;
    mount_bind(place.path().join("shared"), &shared).map_err(errno_at("mount", &shared))?;
    if place.ignition().exists() && !place.path().join("etc/.ignition-result.json").exists() {
        let directory = root.join("run/ignition");
        fs::DirBuilder::new().mode(0o700).create(&directory).map_err(at("make", &directory))?;
        let target = directory.join("user.ign");
        fs::copy(place.ignition(), &target).map_err(at("write", &target))?;
    }
    std::env::set_current_dir(root).map_err(at("enter", root))?;
    // Old and new root change places on the same point, and the old one goes.
    rustix::process::pivot_root(".", ".").map_err(errno_at("make the root", root))?;
    unmount(".", UnmountFlags::DETACH).map_err(errno_at("leave the old root of", root))?;
    std::env::set_current_dir("/").map_err(at("enter", Path::new("/")))
}

const DEVICES: &[(&str, u32, u32)] = &[
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
    ("kmsg", 1, 11),
    ("fuse", 10, 229),
];

fn fill_dev(dev: &Path) -> Result<(), BootError> {
    // The mode given is the mode wanted.
    let mask = rustix::process::umask(Mode::empty());
    let made = make_devices(dev);
    rustix::process::umask(mask);
    made?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        let path = dev.join(name);
        symlink(target, &path).map_err(at("make", &path))?;
    }
    for (name, kind, options) in [
        ("pts", "devpts", c"newinstance,ptmxmode=0666,mode=620"),
        ("shm", "tmpfs", c"mode=1777"),
        ("mqueue", "mqueue", c""),
    ] {
        let path = dev.join(name);
        fs::create_dir(&path).map_err(at("make", &path))?;
        let options = (!options.is_empty()).then_some(options);
        mount(kind, &path, kind, MountFlags::NOSUID | MountFlags::NOEXEC, options)
            .map_err(errno_at("mount", &path))?;
    }
    Ok(())
}

fn make_devices(dev: &Path) -> Result<(), BootError> {
    let net = dev.join("net");
    fs::create_dir(&net).map_err(at("make", &net))?;
    let tunnel = ("net/tun", 10, 200);
    for (name, major, minor) in DEVICES.iter().copied().chain([tunnel]) {
        let path = dev.join(name);
        let mode = Mode::from_raw_mode(if name == "kmsg" { 0o600 } else { 0o666 });
        mknodat(rustix::fs::CWD, &path, FileType::CharacterDevice, mode, makedev(major, minor))
            .map_err(errno_at("make", &path))?;
    }
    Ok(())
}
