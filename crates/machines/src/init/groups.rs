//! Control groups of units: who belongs to a unit, however often it forked.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

const ROOT: &str = "/sys/fs/cgroup";

/// The hierarchies in which units have groups.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// Where processes are counted; empty on a host without control groups.
    roots: Vec<PathBuf>,
}

impl Groups {
    /// Finds the hierarchies and moves init out of the way of those that want their root empty.
    pub fn prepare() -> Self {
        let root = PathBuf::from(ROOT);
        let mut roots = Vec::new();
        if root.join("cgroup.controllers").exists() {
            roots.push(root.clone());
        } else {
            roots.extend(
                ["systemd", "pids"]
                    .iter()
                    .map(|name| root.join(name))
                    .filter(|path| path.join("cgroup.procs").exists()),
            );
        }
        for root in &roots {
            let scope = root.join("init.scope");
            // Without its own group init stays in the root, which costs version 2 its limits and nothing else.
            if fs::create_dir_all(&scope).is_ok() {
                let _ = fs::write(scope.join("cgroup.procs"), "1");
            }
        }
        if let Ok(controllers) = fs::read_to_string(root.join("cgroup.controllers")) {
            for path in [root.clone(), root.join("system.slice")] {
                let _ = fs::create_dir_all(&path);
                for name in controllers.split_whitespace() {
                    let _ = fs::write(path.join("cgroup.subtree_control"), format!("+{name}"));
                }
            }
        }
        Self { roots }
    }

    fn directories(&self, unit: &str) -> impl Iterator<Item = PathBuf> {
        self.roots.iter().map(move |root| root.join("system.slice").join(unit))
    }

    /// Makes the groups of a unit and gives the files by which a process joins them.
    pub fn create(&self, unit: &str, tasks_max: Option<u64>) -> Vec<CString> {
        let mut out = Vec::new();
        for directory in self.directories(unit) {
            if fs::create_dir_all(&directory).is_err() {
                continue;
            }
            if let Some(most) = tasks_max {
                // Only one of the hierarchies has this file.
                let _ = fs::write(directory.join("pids.max"), most.to_string());
            }
            out.extend(CString::new(directory.join("cgroup.procs").as_os_str().as_encoded_bytes()));
        }
        out
    }

    /// The processes of a unit.
    pub fn processes(&self, unit: &str) -> Vec<i32> {
        let mut out = Vec::new();
        let mut pending: Vec<PathBuf> = self.directories(unit).take(1).collect();
        while let Some(directory) = pending.pop() {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            out.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
            let below = fs::read_dir(&directory).into_iter().flatten().flatten();
            pending.extend(
                below
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path()),
            );
        }
        // Processes of other PID namespaces show as 0.
        out.retain(|pid| *pid > 0);
        out
    }

    /// Removes a unit's groups; those with processes in them stay.
    pub fn remove(&self, unit: &str) {
        for directory in self.directories(unit) {
            let _ = fs::remove_dir(&directory);
        }
    }
}
