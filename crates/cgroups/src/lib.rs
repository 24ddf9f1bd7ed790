//! cgroups of version 1 and 2: create, limit, join, measure, kill, remove. For the runtime and its shims, and for a kubelet
//! whose runtime is another program.
//!
//! A path here is relative to the root of the hierarchy and means the same group in every controller. What the
//! host does not let us do is a warning, not an error: a container without its limit is better than no container
//! on a host with odd cgroups. The warnings go to whoever logs (the runtime, or the shim's own log).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cri::LinuxContainerResources;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

/// Controllers that we use when they are there.
const CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "memory", "pids", "cpuset", "hugetlb"];

/// Where the hierarchies are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// One hierarchy for all controllers.
    V2(PathBuf),
    /// A hierarchy per controller, by its name.
    V1(BTreeMap<String, PathBuf>),
    /// None is mounted.
    Absent,
}

/// cgroup limits; `None` leaves the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Weight in cgroup v1's scale.
    pub cpu_shares: Option<u64>,
    /// Microseconds per period; negative for no limit.
    pub cpu_quota: Option<i64>,
    /// Microseconds.
    pub cpu_period: Option<u64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// Memory and swap, bytes.
    pub memory_swap: Option<i64>,
    /// Processes.
    pub pids: Option<i64>,
    /// CPUs.
    pub cpuset_cpus: Option<String>,
    /// Memory nodes.
    pub cpuset_mems: Option<String>,
    /// Bytes of huge pages, by size as the kernel writes it (`2MB`).
    pub hugepages: BTreeMap<String, u64>,
    /// Files of cgroup v2.
    pub unified: BTreeMap<String, String>,
}

impl Limits {
    /// Zero means "not set" in CRI.
    pub fn of(resources: &LinuxContainerResources) -> Self {
        let positive = |value: i64| u64::try_from(value).ok().filter(|value| *value > 0);
        let set = |value: i64| Some(value).filter(|value| *value != 0);
        let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
        Self {
            cpu_shares: positive(resources.cpu_shares),
            cpu_quota: set(resources.cpu_quota),
            cpu_period: positive(resources.cpu_period),
            memory: set(resources.memory_limit_in_bytes),
            memory_swap: set(resources.memory_swap_limit_in_bytes),
            pids: set(resources.pids_limit),
            cpuset_cpus: text(&resources.cpuset_cpus),
            cpuset_mems: text(&resources.cpuset_mems),
            // Nothing of what the host does not have anyway needs no limit.
            hugepages: resources
                .hugepage_limits
                .iter()
                .filter(|limit| limit.limit > 0)
                .map(|limit| (limit.page_size.clone(), limit.limit))
                .collect(),
            unified: resources.unified.clone(),
        }
    }
}

/// What could not be done, for the log.
pub type Warnings = Vec<String>;

/// What a group uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory: Option<u64>,
    pub working_set: Option<u64>,
    pub anonymous: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    pub memory_limit: Option<u64>,
    pub processes: Option<u64>,
}

impl Cgroups {
    /// What this host has.
    pub fn detect() -> Self {
        match fs::read_to_string("/proc/self/mountinfo") {
            Ok(text) => Self::from_mountinfo(&text),
            Err(_) => Self::Absent, // no /proc: nothing else will work either, and that is reported elsewhere
        }
    }

    /// Version 1 wins where both are mounted with controllers: a controller lives in one hierarchy only.
    fn from_mountinfo(text: &str) -> Self {
        let mut v1 = BTreeMap::new();
        let mut v2 = None;
        for line in text.lines() {
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let Some(mount_point) = left.split(' ').nth(4) else { continue };
            let mut right = right.split(' ');
            let (kind, options) = (right.next(), right.nth(1).unwrap_or_default());
            match kind {
                Some("cgroup2") => v2 = v2.or(Some(PathBuf::from(mount_point))),
                Some("cgroup") => {
                    for name in options.split(',').filter(|name| CONTROLLERS.contains(name)) {
                        v1.entry(name.to_owned()).or_insert_with(|| PathBuf::from(mount_point));
                    }
                }
                _ => {}
            }
        }
        match v2 {
            _ if v1.contains_key("memory") || v1.contains_key("cpu") => Self::V1(v1),
            Some(mount_point) => Self::V2(mount_point),
            None => Self::Absent,
        }
    }

    /// The directories of a group, each once.
    fn directories(&self, group: &str) -> Vec<PathBuf> {
        let group = group.trim_start_matches('/');
        match self {
            Self::V2(root) => vec![root.join(group)],
            Self::V1(roots) => {
                let mut all: Vec<PathBuf> = roots
                    .iter()
                    .filter(|(name, _)| *name != "cpuset")
                    .map(|(_, root)| root.join(group))
                    .collect();
                all.sort();
                all.dedup();
                all
            }
            Self::Absent => Vec::new(),
        }
    }

    /// The directory in which `controller`'s files of a group are.
    pub fn directory(&self, controller: &str, group: &str) -> Option<PathBuf> {
        let group = group.trim_start_matches('/');
        match self {
            Self::V2(root) => Some(root.join(group)),
            Self::V1(roots) => roots.get(controller).map(|root| root.join(group)),
            Self::Absent => None,
        }
    }

    /// Makes a group and its parents, with the controllers handed down to it.
    pub fn create(&self, group: &str) -> Warnings {
        let mut warnings = Warnings::new();
        if *self == Self::Absent {
            warnings.push("no cgroup hierarchy is mounted: no limits and no statistics".into());
        }
        for directory in self.directories(group) {
            if let Err(error) = fs::create_dir_all(&directory) {
                warnings.push(format!("cannot create cgroup {}: {error}", directory.display()));
            }
        }
        if let Self::V2(root) = self {
            hand_down_controllers(root, group);
        }
        warnings
    }

    /// Sets the limits that are given.
    pub fn apply(&self, group: &str, limits: &Limits) -> Warnings {
        // By file: a file may be written twice, and then the second time counts.
        let mut warnings = BTreeMap::new();
        let mut set = |controller: &str, file: &str, value: String| {
            let written = match self.directory(controller, group) {
                Some(directory) => fs::write(directory.join(file), &value),
                None => Err(io::Error::new(io::ErrorKind::NotFound, format!("no {controller} cgroup"))),
            };
            match written {
                Ok(()) => drop(warnings.remove(file)),
                Err(error) => {
                    let warning = format!("cannot set {file} of cgroup {group} to {value}: {error}");
                    warnings.insert(file.to_owned(), warning);
                }
            }
        };
        match self {
            Self::V2(_) => {
                for (file, value) in settings_v2(limits) {
                    set("", &file, value);
                }
            }
            Self::V1(roots) => {
                let wants_cpuset = limits.cpuset_cpus.is_some() || limits.cpuset_mems.is_some();
                if let Some(root) = roots.get("cpuset").filter(|_| wants_cpuset) {
                    inherit_cpuset(root, group);
                }
                for (controller, file, value) in settings_v1(limits) {
                    set(controller, &file, value);
                }
            }
            Self::Absent => {} // said when the group was to be created
        }
        warnings.into_values().collect()
    }

    /// Moves a process into a group.
    pub fn join(&self, group: &str, pid: i32) -> Warnings {
        let mut directories = self.directories(group);
        // The cpuset group exists only where limits asked for it.
        if let Self::V1(roots) = self {
            let cpuset = roots.get("cpuset").map(|root| root.join(group.trim_start_matches('/')));
            directories.extend(cpuset.filter(|directory| directory.is_dir()));
        }
        let mut warnings = Warnings::new();
        for directory in directories {
            if let Err(error) = fs::write(directory.join("cgroup.procs"), pid.to_string()) {
                warnings
                    .push(format!("cannot move process {pid} into cgroup {}: {error}", directory.display()));
            }
        }
        warnings
    }

    /// The processes of a group itself.
    pub fn processes(&self, group: &str) -> Vec<i32> {
        let Some(directory) =
            self.directory("pids", group).or_else(|| self.directories(group).into_iter().next())
        else {
            return Vec::new();
        };
        let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default(); // no group, no processes
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Kills every process of a group. Processes forked meanwhile are found by asking again until none is left.
    pub fn kill(&self, group: &str) {
        if let Self::V2(root) = self
            && fs::write(root.join(group.trim_start_matches('/')).join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        for _ in 0..16 {
            let processes = self.processes(group);
            if processes.is_empty() {
                return;
            }
            for pid in processes {
                // Gone or a zombie is what we want.
                let _ = Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
            }
        }
    }

    /// Removes a group with the groups below it. Says whether nothing of it is left; a process that is still
    /// dying keeps it alive for a moment.
    pub fn remove(&self, group: &str) -> bool {
        let mut directories = self.directories(group);
        if let Self::V1(roots) = self {
            directories.extend(roots.get("cpuset").map(|root| root.join(group.trim_start_matches('/'))));
        }
        directories.iter().all(|directory| remove_tree(directory).is_ok())
    }

    /// Removes a group that has neither processes nor groups in it.
    pub fn remove_if_empty(&self, group: &str) {
        for directory in self.directories(group) {
            let _ = fs::remove_dir(directory); // in use, or never made
        }
    }

    /// How many processes of the group the kernel killed for want of memory.
    pub fn oom_kills(&self, group: &str) -> u64 {
        let Some(directory) = self.directory("memory", group) else { return 0 };
        let file = if matches!(self, Self::V2(_)) { "memory.events" } else { "memory.oom_control" };
        keyed(&directory.join(file)).get("oom_kill").copied().unwrap_or(0)
    }

    /// What the group uses now.
    pub fn usage(&self, group: &str) -> Usage {
        let number = |controller: &str, file: &str| {
            let text = fs::read_to_string(self.directory(controller, group)?.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        let table = |controller: &str, file: &str| {
            self.directory(controller, group)
                .map(|directory| keyed(&directory.join(file)))
                .unwrap_or_default()
        };
        let memory_stat = table("memory", "memory.stat");
        let stat = |name: &str| memory_stat.get(name).copied();
        let v2 = matches!(self, Self::V2(_));
        let memory = number("memory", if v2 { "memory.current" } else { "memory.usage_in_bytes" });
        let inactive = stat(if v2 { "inactive_file" } else { "total_inactive_file" });
        Usage {
            cpu_nanoseconds: if v2 {
                table("cpu", "cpu.stat").get("usage_usec").map(|usec| usec * 1000)
            } else {
                number("cpuacct", "cpuacct.usage")
            },
            memory,
            working_set: memory.map(|memory| memory.saturating_sub(inactive.unwrap_or(0))),
            anonymous: stat(if v2 { "anon" } else { "total_rss" }),
            page_faults: stat(if v2 { "pgfault" } else { "total_pgfault" }),
            major_page_faults: stat(if v2 { "pgmajfault" } else { "total_pgmajfault" }),
            memory_limit: number("memory", if v2 { "memory.max" } else { "memory.limit_in_bytes" })
                .filter(|limit| *limit < 1 << 60), // version 1 says "none" with a number near 2^63
            processes: number("pids", "pids.current"),
        }
    }
}

/// The files of version 2, in the order in which they are written.
fn settings_v2(limits: &Limits) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut set = |file: &str, value: Option<String>| all.extend(value.map(|value| (file.to_owned(), value)));
    let maximum = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
    set("cpu.weight", limits.cpu_shares.map(|shares| weight_of_shares(shares).to_string()));
    set(
        "cpu.max",
        limits.cpu_quota.map(|quota| format!("{} {}", maximum(quota), limits.cpu_period.unwrap_or(100_000))),
    );
    set("memory.max", limits.memory.map(maximum));
    let swap =
        limits.memory_swap.map(|both| if both < 0 { -1 } else { (both - limits.memory.unwrap_or(0)).max(0) });
    set("memory.swap.max", swap.map(maximum));
    set("pids.max", limits.pids.map(maximum));
    set("cpuset.cpus", limits.cpuset_cpus.clone());
    set("cpuset.mems", limits.cpuset_mems.clone());
    for (size, limit) in &limits.hugepages {
        set(&format!("hugetlb.{size}.max"), Some(limit.to_string()));
    }
    all.extend(limits.unified.clone());
    all
}

/// The files of version 1, in the order in which they are written. The memory limit comes twice around that of
/// memory and swap, because the kernel wants the first never above the second, and we may go up or down.
fn settings_v1(limits: &Limits) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    let mut set = |controller, file: &str, value: Option<String>| {
        all.extend(value.map(|value| (controller, file.to_owned(), value)));
    };
    set("cpu", "cpu.shares", limits.cpu_shares.map(|shares| shares.to_string()));
    set("cpu", "cpu.cfs_period_us", limits.cpu_period.map(|period| period.to_string()));
    set("cpu", "cpu.cfs_quota_us", limits.cpu_quota.map(|quota| quota.to_string()));
    set("memory", "memory.limit_in_bytes", limits.memory.map(|bytes| bytes.to_string()));
    set("memory", "memory.memsw.limit_in_bytes", limits.memory_swap.map(|bytes| bytes.to_string()));
    let again = limits.memory.filter(|_| limits.memory_swap.is_some());
    set("memory", "memory.limit_in_bytes", again.map(|bytes| bytes.to_string()));
    let maximum = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
    set("pids", "pids.max", limits.pids.map(maximum));
    set("cpuset", "cpuset.cpus", limits.cpuset_cpus.clone());
    set("cpuset", "cpuset.mems", limits.cpuset_mems.clone());
    for (size, limit) in &limits.hugepages {
        set("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), Some(limit.to_string()));
    }
    all
}

/// Version 1's shares (2 to 262144, 1024 normal) as version 2's weight (1 to 10000, 100 normal). A quadratic in
/// the logarithm meets all three points; a straight line would give a normal container weight 39.
fn weight_of_shares(shares: u64) -> u64 {
    let exponent = (shares.clamp(2, 262_144) as f64).log2();
    let weight = 10_f64.powf((exponent * exponent + 125.0 * exponent) / 612.0 - 7.0 / 34.0);
    (weight.ceil() as u64).clamp(1, 10_000)
}

/// Enables our controllers in every ancestor of `group`. Refusals show when a limit is set.
fn hand_down_controllers(root: &Path, group: &str) {
    let mut directory = root.to_path_buf();
    for part in group.trim_start_matches('/').split('/') {
        let available = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
        let enabled = fs::read_to_string(directory.join("cgroup.subtree_control")).unwrap_or_default();
        for controller in available.split_whitespace().filter(|name| CONTROLLERS.contains(name)) {
            if !enabled.split_whitespace().any(|name| name == controller) {
                let _ = fs::write(directory.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        directory.push(part);
    }
}

/// A new cpuset group of version 1 has no CPUs and accepts no process until it is given some.
fn inherit_cpuset(root: &Path, group: &str) {
    let mut directory = root.to_path_buf();
    for part in group.trim_start_matches('/').split('/') {
        let parent = directory.clone();
        directory.push(part);
        let _ = fs::create_dir(&directory); // usually there already; otherwise setting the limit warns
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let own = fs::read_to_string(directory.join(file)).unwrap_or_default();
            if own.trim().is_empty() {
                let inherited = fs::read_to_string(parent.join(file)).unwrap_or_default();
                let _ = fs::write(directory.join(file), inherited.trim());
            }
        }
    }
}

/// Lines of `name number`.
fn keyed(path: &Path) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default(); // not there: nothing known
    text.lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_holds_the_controllers_is_used() {
        let v2 = "25 1 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(Cgroups::from_mountinfo(v2), Cgroups::V2("/sys/fs/cgroup".into()));
        let hybrid = "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 1 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 1 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      33 1 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let Cgroups::V1(roots) = Cgroups::from_mountinfo(hybrid) else { panic!("not version 1") };
        assert_eq!(roots.keys().collect::<Vec<_>>(), ["cpu", "cpuacct", "memory"]);
        assert_eq!(Cgroups::V1(roots).directories("/a/b").len(), 2);
        assert_eq!(Cgroups::from_mountinfo("1 1 0:1 / / rw - ext4 /dev/a rw"), Cgroups::Absent);
    }

    #[test]
    fn shares_become_weights_with_the_same_normal() {
        for (shares, weight) in [(0, 1), (2, 1), (1024, 100), (262_144, 10_000), (u64::MAX, 10_000)] {
            assert_eq!(weight_of_shares(shares), weight, "{shares}");
        }
    }

    #[test]
    fn limits_become_files_of_each_version() {
        let limits = Limits {
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory: Some(64 << 20),
            memory_swap: Some(64 << 20),
            pids: Some(-1),
            ..Default::default()
        };
        let v2: Vec<String> =
            settings_v2(&limits).iter().map(|(file, value)| format!("{file}={value}")).collect();
        assert_eq!(v2, ["cpu.max=50000 100000", "memory.max=67108864", "memory.swap.max=0", "pids.max=max"]);
        let v1: Vec<String> = settings_v1(&limits).into_iter().map(|(_, file, _)| file).collect();
        let memory = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.limit_in_bytes"];
        assert_eq!(v1, [&["cpu.cfs_period_us", "cpu.cfs_quota_us"], &memory[..], &["pids.max"]].concat());
    }
}
