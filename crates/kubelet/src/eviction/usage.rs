//! How much there is and who uses it, measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::rank::{Disk, Usage};
use super::thresholds::{Observation, Observations, Signal};
use crate::beneath::Dir;
use crate::host::Host;
use crate::machine;
use crate::pod::Pod;

/// Entries that one tree is counted for; what is larger is large enough.
const MOST_ENTRIES: u64 = 2_000_000;

/// What is left of everything that can run short.
pub fn observe(root: &Path, images: Option<&Path>) -> Observations {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut all = Observations::new();
    let meminfo = text("/proc/meminfo");
    if let Some(available) = machine::memory_available(&meminfo) {
        let capacity = machine::memory_total(&meminfo);
        all.insert(Signal::MemoryAvailable, Observation { available, capacity });
    }
    let disks = [
        (Some(root), Signal::NodefsAvailable, Signal::NodefsInodesFree),
        (images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
    ];
    for (path, bytes, inodes) in disks {
        let Some(disk) = path.and_then(|path| rustix::fs::statvfs(path).ok()) else { continue };
        let size = disk.f_frsize;
        all.insert(bytes, Observation { available: disk.f_bavail * size, capacity: disk.f_blocks * size });
        // Some file systems do not count inodes, and so never run out of them.
        if disk.f_files > 0 {
            all.insert(inodes, Observation { available: disk.f_favail, capacity: disk.f_files });
        }
    }
    // "0.00 0.00 0.00 1/234 5678": the fourth word is running/existing.
    let loadavg = text("/proc/loadavg");
    let used = loadavg.split_whitespace().nth(3).and_then(|word| word.split('/').nth(1)?.parse::<u64>().ok());
    let most = |path: &str| text(path).trim().parse::<u64>().ok();
    let capacity = [most("/proc/sys/kernel/pid_max"), most("/proc/sys/kernel/threads-max")];
    if let (Some(used), Some(capacity)) = (used, capacity.into_iter().flatten().min()) {
        let available = capacity.saturating_sub(used);
        all.insert(Signal::PidAvailable, Observation { available, capacity });
    }
    all
}

/// What a pod uses of memory, processes and disk. Blocking where volumes are large.
pub fn of_pod(host: &Host, pod: &Pod, stats: Option<&cri::PodSandboxStats>) -> Usage {
    let mut usage = Usage::default();
    if let Some(stats) = stats {
        usage.memory = stats.memory.working_set_bytes.unwrap_or(0);
        usage.processes = stats.process.process_count.unwrap_or(0);
    }
    let logs = host.log_directory(pod);
    usage.logs = disk_use(&logs);
    for (_, container) in pod.containers() {
        let name = &container.name;
        let of = |one: &&cri::ContainerStats| one.attributes.metadata.name == *name;
        let stats = stats.and_then(|stats| stats.containers.iter().find(of));
        let layer = stats.and_then(|one| one.writable_layer.as_ref());
        let layer = layer
            .map_or(Disk::default(), |layer| Disk { bytes: layer.used_bytes, inodes: layer.inodes_used });
        usage.layers = usage.layers.and(layer);
        let memory = stats.and_then(|one| one.memory.working_set_bytes).unwrap_or(0);
        usage.containers.insert(name.clone(), (memory, layer.and(disk_use(&logs.join(name)))));
    }
    let volumes = host.volumes.pod_dir(&pod.metadata.uid).join("volumes/kubernetes.io~empty-dir");
    for volume in &pod.spec.volumes {
        // What is in memory counts as memory, and is limited by the file system itself.
        if volume.empty_dir.as_ref().is_some_and(|dir| dir.medium.is_empty()) {
            usage.volumes.insert(volume.name.clone(), disk_use(&volumes.join(&volume.name)));
        }
    }
    usage
}

/// What a directory takes on its disk. Nothing is followed, nothing on another disk is counted, and a file with several names
/// is counted once.
pub fn disk_use(root: &Path) -> Disk {
    let mut sum = Disk::default();
    let Ok(top) = Dir::trusted(root) else { return sum };
    let Ok(device) = top.stat().map(|stat| stat.st_dev) else { return sum };
    let mut linked = BTreeSet::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let opened = if path.as_os_str().is_empty() { Dir::trusted(root) } else { top.open_here(&path) };
        // Gone meanwhile, or replaced by something else.
        let Ok(dir) = opened else { continue };
        let Ok(names) = dir.names() else { continue };
        for name in names {
            let Ok(stat) = dir.look_at(&name) else { continue };
            if stat.st_dev != device || stat.st_nlink > 1 && !linked.insert(stat.st_ino) {
                continue;
            }
            sum.bytes = sum.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
            sum.inodes += 1;
            if sum.inodes >= MOST_ENTRIES {
                return sum;
            }
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
                left.push(path.join(name));
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_directory_takes_is_counted_once_and_only_there() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("large"), vec![1; 1 << 20]).unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), vec![1; 65_536]).unwrap();
        std::fs::hard_link(dir.path().join("a/b/file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("link")).unwrap();
        let found = disk_use(dir.path());
        assert!((65_536..200_000).contains(&found.bytes), "{found:?}");
        assert_eq!(found.inodes, 4);
        assert_eq!(disk_use(&dir.path().join("none")), Disk::default());
        let seen = observe(dir.path(), Some(dir.path()));
        assert!(seen.contains_key(&Signal::MemoryAvailable) && seen.contains_key(&Signal::PidAvailable));
        assert_eq!(seen[&Signal::NodefsAvailable].capacity, seen[&Signal::ImagefsAvailable].capacity);
    }
}
