//! emptyDir: a directory that lives as long as the pod, on disk or in memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cri::BoxFuture;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{Context, Mounted, VolumeError, ownership};
use crate::pod::{EmptyDir, Quantity};

pub static DEFAULT: &EmptyDir = &EmptyDir { medium: String::new(), size_limit: None };

pub struct Source<'v>(pub &'v EmptyDir);

impl super::Source for Source<'_> {
    fn set_up<'a>(&'a self, context: &'a Context<'a>) -> BoxFuture<'a, Result<Mounted, VolumeError>> {
        Box::pin(async move {
            let dir = context.directory("empty-dir");
            let fresh = !dir.exists();
            fs::create_dir_all(&dir).map_err(|source| VolumeError::io("cannot create", &dir, source))?;
            match self.0.medium.as_str() {
                "" => {}
                "Memory" => mount_memory(&dir, self.0.size_limit.as_ref())?,
                other => return Err(VolumeError::Medium(other.to_owned())),
            }
            if fresh {
                fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))
                    .map_err(|source| VolumeError::io("cannot set the mode of", &dir, source))?;
                ownership::apply(&dir, context.pod.spec.security_context.fs_group, false)?;
            }
            Ok(Mounted::at(dir))
        })
    }
}

fn mount_memory(dir: &Path, limit: Option<&Quantity>) -> Result<(), VolumeError> {
    if is_mount_point(dir) {
        return Ok(());
    }
    let mut options = String::from("mode=0777");
    if let Some(limit) = limit {
        let bytes = limit.value().ok_or_else(|| VolumeError::Size { name: limit.0.clone() })?;
        if bytes > 0 {
            options.push_str(&format!(",size={bytes}"));
        }
    }
    let options = std::ffi::CString::new(options).unwrap_or_default();
    rustix::mount::mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(options.as_c_str()))
        .map_err(|source| VolumeError::io("cannot mount memory at", dir, source.into()))
}

fn is_mount_point(dir: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(own), Some(Ok(parent))) = (fs::metadata(dir), dir.parent().map(fs::metadata)) else {
        return false;
    };
    own.dev() != parent.dev()
}

/// Unmounts everything that is mounted below a directory, the deepest first.
pub fn unmount_below(dir: &Path) -> Result<(), VolumeError> {
    let table = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|source| VolumeError::io("cannot read", Path::new("/proc/self/mountinfo"), source))?;
    let mut points: Vec<String> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        // The kernel writes blanks and backslashes in octal.
        .map(|point| point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
        .filter(|point| Path::new(point).starts_with(dir))
        .collect();
    points.sort_by_key(|point| std::cmp::Reverse(point.len()));
    for point in points {
        rustix::mount::unmount(&point, UnmountFlags::DETACH)
            .map_err(|source| VolumeError::io("cannot unmount", Path::new(&point), source.into()))?;
    }
    Ok(())
}
