//! The control groups of machines, in every hierarchy of the host: `kelson/CLUSTER/MACHINE`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where hierarchies are mounted, with their controllers; version 2 has none in its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    root: PathBuf,
    controllers: Option<Vec<String>>,
}

/// The hierarchies of this host.
pub fn hierarchies() -> Vec<Hierarchy> {
    read_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

fn read_mounts(text: &str) -> Vec<Hierarchy> {
    let mut out: Vec<Hierarchy> = Vec::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let Some(root) = left.split(' ').nth(4).map(PathBuf::from) else { continue };
        let mut right = right.split(' ');
        let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
        let controllers = match kind {
            Some("cgroup2") => None,
            Some("cgroup") => {
                Some(options.split(',').filter(|option| *option != "rw").map(str::to_owned).collect())
            }
            _ => continue,
        };
        // The same hierarchy may be mounted twice; one is enough.
        if !out.iter().any(|known| known.controllers == controllers) {
            out.push(Hierarchy { root, controllers });
        }
    }
    out
}

/// A group, in all hierarchies.
#[derive(Debug, Clone)]
pub struct Group {
    hierarchies: Vec<Hierarchy>,
    path: PathBuf,
}

impl Group {
    /// Of a cluster, or of one of its machines.
    pub fn new(cluster: &str, machine: Option<&str>) -> Self {
        let mut path = Path::new("kelson").join(cluster);
        path.extend(machine);
        Self { hierarchies: hierarchies(), path }
    }

    fn directories(&self) -> impl Iterator<Item = (&Hierarchy, PathBuf)> {
        self.hierarchies.iter().map(|hierarchy| (hierarchy, hierarchy.root.join(&self.path)))
    }

    /// Makes the group with its parents.
    pub fn create(&self) -> io::Result<()> {
        for (hierarchy, directory) in self.directories() {
            fs::create_dir_all(&directory)?;
            match &hierarchy.controllers {
                // Controllers are handed down level by level; those that cannot be are not limited.
                None => {
                    let mut level = hierarchy.root.clone();
                    for part in &self.path {
                        let names = fs::read_to_string(level.join("cgroup.controllers")).unwrap_or_default();
                        for name in names.split_whitespace() {
                            let _ = fs::write(level.join("cgroup.subtree_control"), format!("+{name}"));
                        }
                        level.push(part);
                    }
                }
                Some(names) if names.iter().any(|name| name == "cpuset") => {
                    fill_cpuset(&hierarchy.root, &self.path)?
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Moves this process into the group.
    pub fn join(&self) -> io::Result<()> {
        for (_, directory) in self.directories() {
            fs::write(directory.join("cgroup.procs"), "0")?;
        }
        Ok(())
    }

    /// Limits what the machine uses. Zero is no limit.
    pub fn limit(&self, memory_mib: u64, cpus: u64) -> io::Result<()> {
        let here = std::thread::available_parallelism().map_or(u64::MAX, |count| count.get() as u64);
        for (hierarchy, directory) in self.directories() {
            let has = |name: &str| {
                hierarchy.controllers.as_ref().is_some_and(|names| names.iter().any(|n| n == name))
            };
            if memory_mib > 0 {
                let bytes = (memory_mib << 20).to_string();
                if has("memory") {
                    fs::write(directory.join("memory.limit_in_bytes"), &bytes)?;
                } else if hierarchy.controllers.is_none() && directory.join("memory.max").exists() {
                    fs::write(directory.join("memory.max"), &bytes)?;
                }
            }
            // More processors than there are need no limit.
            if cpus > 0 && cpus < here {
                if has("cpu") {
                    fs::write(directory.join("cpu.cfs_quota_us"), (cpus * 100_000).to_string())?;
                } else if hierarchy.controllers.is_none() && directory.join("cpu.max").exists() {
                    fs::write(directory.join("cpu.max"), format!("{} 100000", cpus * 100_000))?;
                }
            }
        }
        Ok(())
    }

    /// Removes the group with all below it. Groups with processes in them stay, and are named.
    pub fn remove(&self) -> io::Result<()> {
        for (hierarchy, directory) in self.directories() {
            remove_below(&directory)?;
            // The parent of all goes with the last cluster.
            let _ = fs::remove_dir(hierarchy.root.join("kelson"));
        }
        Ok(())
    }
}

/// A new cpuset group has no processors; it takes its parent's.
fn fill_cpuset(root: &Path, path: &Path) -> io::Result<()> {
    let mut level = root.to_owned();
    for part in path {
        let parent = level.clone();
        level.push(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if fs::read_to_string(level.join(file)).is_ok_and(|text| text.trim().is_empty()) {
                fs::write(level.join(file), fs::read_to_string(parent.join(file))?)?;
            }
        }
    }
    Ok(())
}

fn remove_below(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path())?;
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_counts_once() {
        let text = "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                    31 23 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                    32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    33 23 0:28 / /other rw - cgroup2 cgroup2 rw\n\
                    34 23 0:29 / /tmp rw - tmpfs tmpfs rw\n";
        let found = read_mounts(text);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].controllers, Some(vec!["cpu".to_owned(), "cpuacct".to_owned()]));
        assert_eq!(found[2].controllers, None);
    }
}
