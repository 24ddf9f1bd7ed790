//! The pod's user namespace: root in the pod is nobody on the host.
//!
//! The shim makes it with the pod's network, IPC and UTS namespaces inside, so that they belong to the pod's root, and joins
//! those but not the user namespace itself: it stays the host's root, as who mounts and moves into groups must be. A
//! container's process enters it last, just before it takes its identity.
//!
//! On disk the ids are the container's: layers and volumes are seen through idmapped mounts. Only a container's own writable
//! layer holds the host's ids, because overlayfs writes there as the host's root.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::thread::LinkNameSpaceType;

use super::Failure;
use crate::spec::IdRange;
use crate::sys::{self, MountAttributes, Side};

/// A user namespace and what it maps.
pub struct Users {
    pub range: IdRange,
    namespace: OwnedFd,
}

impl Users {
    /// Makes the namespace, with those of `flags` in it, and joins the latter.
    pub fn make(range: IdRange, flags: libc::c_int) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new("make the pod's user namespace", error);
        let (wait, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|error| failed(error.into()))?;
        let holder = match sys::clone_process(libc::CLONE_NEWUSER | flags).map_err(failed)? {
            Side::Parent(pid) => pid,
            Side::Child => {
                drop(go);
                let _ = rustix::io::read(&wait, &mut [0_u8; 1]); // until the parent lets go, or is gone
                sys::exit_now(0)
            }
        };
        let made = Self::take_from(holder, range, flags).map_err(failed);
        drop(go);
        let _ = sys::wait_for(holder); // it cannot be gone before
        made
    }

    fn take_from(holder: sys::Pid, range: IdRange, flags: libc::c_int) -> io::Result<Self> {
        let map = |file: &str, first: u32| {
            fs::write(format!("/proc/{holder}/{file}"), format!("0 {first} {}", range.length))
        };
        map("uid_map", range.uid)?;
        map("gid_map", range.gid)?;
        let open = |name: &str| File::open(format!("/proc/{holder}/ns/{name}"));
        let kinds = [
            ("net", libc::CLONE_NEWNET, LinkNameSpaceType::Network),
            ("ipc", libc::CLONE_NEWIPC, LinkNameSpaceType::InterProcessCommunication),
            ("uts", libc::CLONE_NEWUTS, LinkNameSpaceType::HostNameAndNISDomainName),
        ];
        for (name, flag, kind) in kinds {
            if flags & flag != 0 {
                rustix::thread::move_into_link_name_space(open(name)?.as_fd(), Some(kind))?;
            }
        }
        Ok(Self { range, namespace: open("user")?.into() })
    }

    /// Puts this process into the namespace, where it is mighty and outside of it nobody.
    pub fn enter(&self) -> Result<(), Failure> {
        rustix::thread::move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::User))
            .map_err(|error| Failure::new("enter the pod's user namespace", error))
    }

    /// Shows a detached mount with the pod's ids: what is the root's on disk is the pod's root's.
    pub fn map_mount(&self, mount: BorrowedFd<'_>, path: &Path) -> Result<(), Failure> {
        let attributes = MountAttributes {
            set: libc::MOUNT_ATTR_IDMAP,
            user_namespace: Some(self.namespace.as_raw_fd()),
            recursive: true,
            ..Default::default()
        };
        sys::mount_setattr(mount, attributes).map_err(|error| {
            let doing =
                format!("map the ids of (does its filesystem have idmapped mounts?) {}", path.display());
            Failure::new(&doing, error)
        })
    }
}

/// What an id of the pod is on the host.
pub fn on_host(users: Option<&Users>, uid: u32, gid: u32) -> (u32, u32) {
    users.map_or((uid, gid), |users| {
        (users.range.uid.saturating_add(uid), users.range.gid.saturating_add(gid))
    })
}
