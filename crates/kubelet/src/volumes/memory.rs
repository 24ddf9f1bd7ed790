//! Volumes in memory: a tmpfs on a directory of the pod.
//!
//! A mount that is found is kept: the kubelet may die and come back while pods use it. After a reboot the directory is
//! there without its mount, and gets a new one.

use std::ffi::CString;
use std::io;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::beneath::Dir;

/// What the root of the tmpfs is like.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub mode: u32,
    pub group: Option<u32>,
    /// Bytes; the kernel's default (half of the memory) without one.
    pub size: Option<i64>,
}

/// The tmpfs on the directory `name`, which is made and mounted unless it is there.
pub fn ensure(parent: &Dir, name: &str, shape: Shape) -> io::Result<Dir> {
    parent.ensure(name, 0o700)?;
    if !parent.is_mount_point(name)? {
        let target = parent.open_here(name)?;
        // What lies on the disk would only be covered.
        target.clear()?;
        mount(&target, shape)?;
    }
    parent.open(name)
}

fn mount(target: &Dir, shape: Shape) -> io::Result<()> {
    let mut options = format!("mode={:o}", shape.mode);
    if let Some(group) = shape.group {
        options += &format!(",gid={group}");
    }
    if let Some(size) = shape.size.filter(|size| *size > 0) {
        options += &format!(",size={size}");
    }
    let mount = |options: String| {
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("tmpfs", target.through(), "tmpfs", flags, Some(options.as_c_str()))
    };
    // Kernels before 6.4 cannot keep it out of the swap.
    match mount(format!("{options},noswap")) {
        Err(Errno::INVAL) => Ok(mount(options)?),
        other => Ok(other?),
    }
}
