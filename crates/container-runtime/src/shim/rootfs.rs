//! A container's root filesystem, made inside its own mount namespace.
//!
//! Nothing here is visible on the host and nothing needs to be undone: when the last process of the container
//! ends, the kernel drops the namespace with every mount in it.
//!
//! Devices are governed by mount flags rather than by a device cgroup: every filesystem in an unprivileged
//! container is `nodev`, and the allowed devices are bind mounts of the host's nodes. A node that a container
//! makes for itself (CAP_MKNOD is in the default set) opens nothing. This is the same on cgroup v1 and v2 and
//! needs no BPF program.
//!
//! Paths of the container are resolved with `RESOLVE_IN_ROOT`, so a symbolic link in an image can not lead a
//! mount out of the root. /proc, /sys and /dev may not be links at all: what protects them is mounted on top of them by
//! name, and a volume could come between the name and the place. For the same reason no volume may be mounted in /proc.
//! What is bound from the host (/dev/null over masked files, the devices) is opened on the host and checked.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};

use super::Failure;
use super::users::{self, Users};
use crate::spec::{self, ContainerSpec, Propagation, Source};
use crate::sys::{self, MountAttributes};
use cgroups::Cgroups;

/// Devices that every container has.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// The group of terminals, by old custom.
const TTY_GROUP: u32 = 5;

/// How many links that lead nowhere are followed to make what they name.
const MAX_LINKS: usize = 40;

/// Symbolic links that every container has in /dev.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Makes the root of `spec` the root of this process, which is alone in a new mount namespace. `shm` is what the
/// pod shares as /dev/shm.
pub fn enter(spec: &ContainerSpec, shm: &Path, users: Option<&Users>) -> Result<(), Failure> {
    // Cloned first, while the mounts still have the host's propagation: a shared one stays a peer of the host's.
    let volumes =
        spec.mounts.iter().map(|mount| clone_source(spec, mount, users)).collect::<Result<Vec<_>, _>>()?;
    rustix::mount::mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|error| Failure::new("separate the mounts from the host's", error))?;

    let target = spec.root.snapshot.join("root");
    mount_overlay(spec, &target, users)?;
    let root = Tree { fd: open_path(&target)?, owner: users.map(|users| (users.range.uid, users.range.gid)) };
    mount_kernel_filesystems(spec, &root)?;
    mount_devices(spec, &root, shm, users)?;
    for (mount, volume) in spec.mounts.iter().zip(volumes) {
        attach_volume(&root, mount, volume)?;
    }
    if !spec.privileged {
        for path in &spec.readonly_paths {
            root.cover_with_itself_readonly(path)?;
        }
        for path in &spec.masked_paths {
            root.hide(path)?;
        }
    }
    root.create_directory(&spec.process.cwd)
        .map_err(|error| Failure::at("create", &spec.process.cwd, error))?;
    change_root(&target)?;
    if spec.root.readonly {
        let root = open_path("/")?;
        let attributes = MountAttributes { set: libc::MOUNT_ATTR_RDONLY, ..Default::default() };
        sys::mount_setattr(root.as_fd(), attributes)
            .map_err(|error| Failure::new("make the root read-only", error))?;
    }
    Ok(())
}

/// Leaves this process with an empty, read-only root.
pub fn enter_empty(scratch: &Path) -> Result<(), Failure> {
    rustix::mount::mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(|error| Failure::new("separate the mounts from the host's", error))?;
    mount(
        "tmpfs",
        scratch,
        MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RDONLY,
        "size=4k",
    )?;
    change_root(scratch)
}

fn mount_overlay(spec: &ContainerSpec, target: &Path, users: Option<&Users>) -> Result<(), Failure> {
    for directory in ["upper", "work", "root"] {
        let path = spec.root.snapshot.join(directory);
        fs::create_dir_all(&path).map_err(|error| Failure::at("create", &path, error))?;
    }
    // `volatile`: a container's writable layer is never mounted again, so nothing of it need reach the disk. Without
    // it, the end of each container would write out everything that the host has in its cache.
    copy_root_attributes(spec, users).map_err(|error| Failure::at("prepare", &spec.root.snapshot, error))?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={},volatile",
        spec.root.lower.join(":"),
        spec.root.snapshot.join("upper").display(),
        spec.root.snapshot.join("work").display()
    );
    let flags = if spec.privileged { MountFlags::empty() } else { MountFlags::NODEV };
    enter_layers(spec, users)?;
    let mounted = mount("overlay", target, flags, &options);
    rustix::process::chdir("/").map_err(|error| Failure::new("enter /", error))?;
    mounted
}

/// Goes where the layers are; in a user namespace, to a mount that shows them with the pod's ids. It is in nobody's way: it
/// goes with the old root.
fn enter_layers(spec: &ContainerSpec, users: Option<&Users>) -> Result<(), Failure> {
    let mut place = spec.root.layers.clone();
    if let Some(users) = users {
        let layers = clone_tree(&place, false)?;
        users.map_mount(layers.as_fd(), &place)?;
        place = spec.root.snapshot.join("lower");
        fs::create_dir_all(&place).map_err(|error| Failure::at("create", &place, error))?;
        move_onto(layers.as_fd(), &open_path(&place)?, &place)?;
    }
    rustix::process::chdir(&place).map_err(|error| Failure::at("enter", &place, error))
}

/// The root directory of an overlay is its topmost one, so the writable layer must look like the image's.
fn copy_root_attributes(spec: &ContainerSpec, users: Option<&Users>) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Some(top) = spec.root.lower.first() else { return Ok(()) };
    let (seen, upper) = (fs::metadata(spec.root.layers.join(top))?, spec.root.snapshot.join("upper"));
    let (uid, gid) = users::on_host(users, seen.uid(), seen.gid());
    std::os::unix::fs::chown(&upper, Some(uid), Some(gid))?;
    fs::set_permissions(upper, seen.permissions())
}

fn mount_kernel_filesystems(spec: &ContainerSpec, root: &Tree) -> Result<(), Failure> {
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    for directory in ["/proc", "/sys", "/dev"] {
        root.refuse_link(Path::new(directory))?;
    }
    root.mount("proc", Path::new("/proc"), safe, "")?;
    let sys_flags = if spec.privileged { safe } else { safe | MountFlags::RDONLY };
    // A host may forbid a new sysfs (when its own has something mounted over it); its own, read-only, will do.
    if root.mount("sysfs", Path::new("/sys"), sys_flags, "").is_err() {
        let tree = clone_tree("/sys", true)?;
        let set = if spec.privileged { 0 } else { libc::MOUNT_ATTR_RDONLY };
        sys::mount_setattr(tree.as_fd(), MountAttributes { set, recursive: true, ..Default::default() })
            .map_err(|error| Failure::new("make /sys read-only", error))?;
        return root.attach(tree.as_fd(), Path::new("/sys"), true);
    }
    // The container's own groups at /sys/fs/cgroup, if the host has any.
    match Cgroups::detect() {
        Cgroups::V2(_) => {
            let _ = root.mount("cgroup2", Path::new("/sys/fs/cgroup"), sys_flags, "");
        }
        groups @ Cgroups::V1(_) => show_groups(spec, root, &groups)?,
        Cgroups::Absent => {}
    }
    Ok(())
}

/// The container's own group of each hierarchy of version 1, where programs look for their limits. Never a hierarchy's
/// root: that is where a release agent can be set.
fn show_groups(spec: &ContainerSpec, root: &Tree, groups: &Cgroups) -> Result<(), Failure> {
    let Cgroups::V1(controllers) = groups else { return Ok(()) };
    let place = Path::new("/sys/fs/cgroup");
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    root.mount("tmpfs", place, safe, "mode=755,size=64k")?;
    let closed = if spec.privileged { 0 } else { libc::MOUNT_ATTR_RDONLY };
    let set = closed | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOEXEC;
    for controller in controllers.keys() {
        let Some(group) = groups.directory(controller, &spec.cgroup).filter(|group| group.is_dir()) else {
            continue;
        };
        let tree = clone_tree(&group, false)?;
        sys::mount_setattr(tree.as_fd(), MountAttributes { set, ..Default::default() })
            .map_err(|error| Failure::at("prepare the mount of", &group, error))?;
        root.attach(tree.as_fd(), &place.join(controller), true)?;
    }
    let top = root.get(place).map_err(|error| Failure::at("open", place, error))?;
    sys::mount_setattr(top.as_fd(), MountAttributes { set: closed, ..Default::default() })
        .map_err(|error| Failure::at("protect", place, error))
}

fn mount_devices(
    spec: &ContainerSpec,
    root: &Tree,
    shm: &Path,
    users: Option<&Users>,
) -> Result<(), Failure> {
    let nodev = if spec.privileged { MountFlags::empty() } else { MountFlags::NODEV };
    let dev = Path::new("/dev");
    let (uid, gid) = users::on_host(users, 0, 0);
    let options = format!("mode=755,size=64m,uid={uid},gid={gid}");
    root.mount("tmpfs", dev, MountFlags::NOSUID | nodev, &options)?;
    let pts = format!("newinstance,ptmxmode=0666,mode=0620,gid={}", users::on_host(users, 0, TTY_GROUP).1);
    root.mount("devpts", &dev.join("pts"), MountFlags::NOSUID | MountFlags::NOEXEC, &pts)?;
    let safe = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    root.mount("mqueue", &dev.join("mqueue"), safe, "")?;
    root.attach(clone_tree(shm, false)?.as_fd(), &dev.join("shm"), true)?;

    let directory = root.get(dev).map_err(|error| Failure::at("open", dev, error))?;
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &directory, name)
            .map_err(|error| Failure::at("link", &dev.join(name), error))?;
    }
    let mut devices: Vec<(PathBuf, PathBuf)> =
        DEVICES.iter().map(|name| (dev.join(name), dev.join(name))).collect();
    if spec.privileged {
        devices = host_devices(dev);
    }
    devices.extend(spec.devices.iter().map(|device| (device.source.clone(), device.target.clone())));
    for (source, target) in devices {
        let tree = clone_tree(&source, false)?;
        root.attach(tree.as_fd(), &target, kind_of(&tree, &source)?.is_dir())?;
    }
    if spec.process.terminal {
        root.create_file(&dev.join("console")).map_err(|error| Failure::new("create /dev/console", error))?;
    }
    Ok(())
}

/// Every device node of the host, but for terminals, which the container has of its own.
fn host_devices(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && !["pts", "shm", "mqueue", "fd"].iter().any(|name| path.ends_with(name)) {
            found.extend(host_devices(&path));
        } else if (kind.is_char_device() || kind.is_block_device())
            && !["console", "ptmx"].iter().any(|name| path.ends_with(name))
        {
            found.push((path.clone(), path));
        }
    }
    found
}

/// A detached copy of what a volume mounts, with its final attributes.
fn clone_source(
    spec: &ContainerSpec,
    mount: &spec::Mount,
    users: Option<&Users>,
) -> Result<OwnedFd, Failure> {
    let tree = match &mount.source {
        Source::Host(path) if mount.sub_path.as_os_str().is_empty() => clone_tree(path, true)?,
        Source::Host(path) => clone_below(path, &mount.sub_path)?,
        Source::Image { lower, path } => clone_image(spec, lower, path, users)?,
    };
    if let Some(users) = users.filter(|_| mount.idmapped) {
        users.map_mount(tree.as_fd(), &mount.target)?;
    }
    let nodev = if spec.privileged { 0 } else { libc::MOUNT_ATTR_NODEV };
    let readonly = if mount.readonly { libc::MOUNT_ATTR_RDONLY } else { 0 };
    let propagation = match mount.propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::Slave => libc::MS_SLAVE,
        Propagation::Shared => libc::MS_SHARED,
    };
    let change = |set, propagation, recursive| {
        sys::mount_setattr(
            tree.as_fd(),
            MountAttributes { set, propagation, recursive, ..Default::default() },
        )
        .map_err(|error| Failure::at("prepare the mount of", &mount.target, error))
    };
    change(nodev, propagation, true)?;
    change(readonly, 0, mount.recursive_readonly)?;
    Ok(tree)
}

/// A copy of what lies at `sub_path` of a volume. Links are followed as far as they stay in the volume: processes that
/// share it can move and replace anything below `root` at any time.
fn clone_below(root: &Path, sub_path: &Path) -> Result<OwnedFd, Failure> {
    let volume = open_path(root)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let open =
        || rustix::fs::openat2(&volume, sub_path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    // The kernel asks for another try when something was renamed beside a `..` of a link.
    let inside = (0..16).map(|_| open()).find(|found| !matches!(found, Err(rustix::io::Errno::AGAIN)));
    let inside = inside.unwrap_or(Err(rustix::io::Errno::AGAIN));
    let inside = inside.map_err(|error| Failure::at("find in the volume", sub_path, error))?;
    rustix::mount::open_tree(
        &inside,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE,
    )
    .map_err(|error| Failure::at("prepare the mount of", sub_path, error))
}

/// A read-only view of a directory of an image. The overlay wants two layers, so an empty one joins a single.
fn clone_image(
    spec: &ContainerSpec,
    lower: &[String],
    path: &Path,
    users: Option<&Users>,
) -> Result<OwnedFd, Failure> {
    let target = spec.root.snapshot.join("image");
    let empty = spec.root.snapshot.join("empty");
    for directory in [&target, &empty] {
        fs::create_dir_all(directory).map_err(|error| Failure::at("create", directory, error))?;
    }
    enter_layers(spec, users)?;
    let options = format!("lowerdir={}:{}", lower.join(":"), empty.display());
    mount("overlay", &target, MountFlags::RDONLY | MountFlags::NODEV, &options)?;
    let root = open_path(&target)?;
    let inside = Tree::resolve(root.as_fd(), path, OFlags::PATH)
        .map_err(|error| Failure::at("find in the image", path, error))?;
    let tree = rustix::mount::open_tree(
        &inside,
        "",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
    )
    .map_err(|error| Failure::at("copy the mount of", path, error))?;
    rustix::mount::unmount(&target, UnmountFlags::DETACH)
        .map_err(|error| Failure::at("unmount", &target, error))?;
    Ok(tree)
}

fn attach_volume(root: &Tree, mount: &spec::Mount, volume: OwnedFd) -> Result<(), Failure> {
    let is_directory = kind_of(&volume, &mount.target)?.is_dir();
    let target = root.target(&mount.target, is_directory)?;
    // Programs and we ourselves trust what /proc says.
    let another_proc = mount.target == Path::new("/proc") && is_on(&volume, PROC)?;
    if is_on(&target, PROC)? && !another_proc {
        let reason = io::Error::new(io::ErrorKind::PermissionDenied, "it is inside /proc");
        return Err(Failure::at("mount on", &mount.target, reason));
    }
    move_onto(volume.as_fd(), &target, &mount.target)
}

const PROC: u64 = 0x9fa0;

/// Whether a file is on a filesystem of this kind.
fn is_on(fd: &OwnedFd, magic: u64) -> Result<bool, Failure> {
    let stat = rustix::fs::fstatfs(fd).map_err(|error| Failure::new("look at a filesystem", error))?;
    Ok(stat.f_type as u64 == magic)
}

fn kind_of(fd: &OwnedFd, path: &Path) -> Result<rustix::fs::FileType, Failure> {
    let stat = rustix::fs::fstat(fd).map_err(|error| Failure::at("look at", path, error))?;
    Ok(rustix::fs::FileType::from_raw_mode(stat.st_mode))
}

fn move_onto(mount: BorrowedFd<'_>, target: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", target, "", flags)
        .map_err(|error| Failure::at("mount on", path, error))
}

/// A detached copy of the host's /dev/null, which is the null device and nothing else.
fn null_device() -> Result<OwnedFd, Failure> {
    let null = clone_tree("/dev/null", false)?;
    let stat = rustix::fs::fstat(&null).map_err(|error| Failure::new("look at /dev/null", error))?;
    let is_char = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device();
    match is_char && stat.st_rdev == rustix::fs::makedev(1, 3) {
        true => Ok(null),
        false => Err(Failure::new("use /dev/null", io::Error::other("it is not the null device"))),
    }
}

/// Makes `target`, a mount point, the root, and lets go of everything else. The trick of pivoting a directory
/// onto itself stacks the old root above the new one, from where it is detached without needing a place.
fn change_root(target: &Path) -> Result<(), Failure> {
    rustix::process::chdir(target).map_err(|error| Failure::at("enter", target, error))?;
    rustix::process::pivot_root(".", ".").map_err(|error| Failure::new("change the root", error))?;
    rustix::mount::unmount(".", UnmountFlags::DETACH)
        .map_err(|error| Failure::new("leave the old root", error))?;
    rustix::process::chdir("/").map_err(|error| Failure::new("enter the new root", error))
}

fn mount(kind: &str, target: &Path, flags: MountFlags, options: &str) -> Result<(), Failure> {
    let options = std::ffi::CString::new(options)
        .map_err(|error| Failure::at("mount", target, std::io::Error::from(error)))?;
    rustix::mount::mount(kind, target, kind, flags, &*options)
        .map_err(|error| Failure::at(&format!("mount {kind} on"), target, error))
}

fn open_path(path: impl AsRef<Path>) -> Result<OwnedFd, Failure> {
    rustix::fs::open(path.as_ref(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Failure::at("open", path.as_ref(), error))
}

fn clone_tree(path: impl AsRef<Path>, recursive: bool) -> Result<OwnedFd, Failure> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(CWD, path.as_ref(), flags)
        .map_err(|error| Failure::at("prepare the mount of", path.as_ref(), error))
}

/// The container's root while it is put together.
struct Tree {
    fd: OwnedFd,
    /// To whom what is made in it belongs, if not to the host's root.
    owner: Option<(u32, u32)>,
}

impl Tree {
    fn resolve(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let relative = path.strip_prefix("/").unwrap_or(path);
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        Ok(rustix::fs::openat2(
            root,
            relative,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        )?)
    }

    fn get(&self, path: &Path) -> io::Result<OwnedFd> {
        Self::resolve(self.fd.as_fd(), path, OFlags::PATH)
    }

    /// Makes a directory with its parents, and opens it. Where a link leads nowhere, what it names is made.
    fn create_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut path = path.to_path_buf();
        for _ in 0..MAX_LINKS {
            match self.get(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
            if let Some(elsewhere) = self.make_directories(&path)? {
                path = elsewhere;
            }
        }
        Err(rustix::io::Errno::LOOP.into())
    }

    /// Makes what is missing of a path, or says where it goes on behind a link that leads nowhere.
    fn make_directories(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let mut so_far = PathBuf::new();
        let mut rest = path.components();
        while let Some(component) = rest.next() {
            match component {
                Component::Normal(name) => {
                    let parent = self.get(&so_far)?;
                    match self.make(&parent, name, |parent, name| {
                        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))
                    }) {
                        Ok(()) => {}
                        Err(rustix::io::Errno::EXIST) => {
                            if let Some(target) = self.dangling(&parent, &so_far, name)? {
                                return Ok(Some(target.join(rest.as_path())));
                            }
                        }
                        Err(error) => return Err(error.into()),
                    }
                    so_far.push(name);
                }
                Component::ParentDir => so_far.push(".."),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Makes something that is the container's root's. In an idmapped volume our own ids have no meaning, so there it is
    /// made with those of the container's root.
    fn make(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        make: impl Fn(&OwnedFd, &OsStr) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        let made = make(parent, name);
        let Some((uid, gid)) = self.owner else { return made };
        match made {
            Ok(()) => {
                let (uid, gid) = (rustix::fs::Uid::from_raw(uid), rustix::fs::Gid::from_raw(gid));
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)
            }
            Err(rustix::io::Errno::OVERFLOW) => sys::with_file_ids(uid, gid, || make(parent, name)),
            refused => refused,
        }
    }

    /// Where a link in `directory` leads, if there is nothing there.
    fn dangling(&self, parent: &OwnedFd, directory: &Path, name: &OsStr) -> io::Result<Option<PathBuf>> {
        match self.get(&directory.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return Ok(None),
        }
        let target = match rustix::fs::readlinkat(parent, name, Vec::new()) {
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => return Ok(None),
            other => PathBuf::from(OsStr::from_bytes(other?.as_bytes())),
        };
        Ok(Some(directory.join(target)))
    }

    /// Makes an empty file with its parents unless there is one, and opens it.
    fn create_file(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut path = path.to_path_buf();
        for _ in 0..MAX_LINKS {
            match self.get(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
            let directory = path.parent().unwrap_or(Path::new("/"));
            let parent = self.create_directory(directory)?;
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            match self.make(&parent, name, |parent, name| {
                rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o644)).map(drop)
            }) {
                Ok(()) => {}
                Err(rustix::io::Errno::EXIST) => {
                    if let Some(target) = self.dangling(&parent, directory, name)? {
                        path = target;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(rustix::io::Errno::LOOP.into())
    }

    fn mount(&self, kind: &str, path: &Path, flags: MountFlags, options: &str) -> Result<(), Failure> {
        let target = self.create_directory(path).map_err(|error| Failure::at("create", path, error))?;
        // Through the descriptor, so that a link in the image does not choose another place.
        let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&target));
        mount(kind, Path::new(&through), flags, options).map_err(|failure| failure.about(path))
    }

    /// Opens what is to be mounted on, making it where it is missing.
    fn target(&self, path: &Path, is_directory: bool) -> Result<OwnedFd, Failure> {
        let target = if is_directory { self.create_directory(path) } else { self.create_file(path) };
        target.map_err(|error| Failure::at("create", path, error))
    }

    fn attach(&self, mount: BorrowedFd<'_>, path: &Path, is_directory: bool) -> Result<(), Failure> {
        move_onto(mount, &self.target(path, is_directory)?, path)
    }

    /// An image's own /proc, /sys or /dev is a directory, if there is any.
    fn refuse_link(&self, path: &Path) -> Result<(), Failure> {
        let name = path.strip_prefix("/").unwrap_or(path);
        let stat = rustix::fs::statat(&self.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode)) {
            Ok(rustix::fs::FileType::Directory) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Ok(_) => {
                let reason = io::Error::new(io::ErrorKind::NotADirectory, "the image has no directory there");
                Err(Failure::at("mount on", path, reason))
            }
            Err(error) => Err(Failure::at("look at", path, error)),
        }
    }

    /// Opens what is to be protected, if it is there. What is said of /proc is meant for the kernel's own.
    fn get_protected(&self, path: &Path) -> Result<Option<OwnedFd>, Failure> {
        let there = match self.get(path) {
            // A path that does not exist needs no protection.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                return Ok(None);
            }
            other => other.map_err(|error| Failure::at("open", path, error))?,
        };
        if path.starts_with("/proc") && !is_on(&there, PROC)? {
            let reason = io::Error::other("it is not what the kernel has there");
            return Err(Failure::at("protect", path, reason));
        }
        Ok(Some(there))
    }

    fn cover_with_itself_readonly(&self, path: &Path) -> Result<(), Failure> {
        let Some(there) = self.get_protected(path)? else { return Ok(()) };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH
            | OpenTreeFlags::AT_RECURSIVE;
        let tree = rustix::mount::open_tree(&there, "", flags)
            .map_err(|error| Failure::at("protect", path, error))?;
        let attributes =
            MountAttributes { set: libc::MOUNT_ATTR_RDONLY, recursive: true, ..Default::default() };
        sys::mount_setattr(tree.as_fd(), attributes).map_err(|error| Failure::at("protect", path, error))?;
        move_onto(tree.as_fd(), &there, path)
    }

    /// Files are covered by /dev/null, directories by an empty read-only one.
    fn hide(&self, path: &Path) -> Result<(), Failure> {
        let Some(there) = self.get_protected(path)? else { return Ok(()) };
        if kind_of(&there, path)?.is_dir() {
            let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&there));
            let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
            mount("tmpfs", Path::new(&through), flags, "size=4k,mode=755")
                .map_err(|failure| failure.about(path))
        } else {
            move_onto(null_device()?.as_fd(), &there, path)
        }
    }
}
