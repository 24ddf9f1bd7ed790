//! Facts about the machine: its size, its ids, and how much of it pods may have.

use std::fs;
use std::path::Path;

use crate::config::Config;
use crate::eviction::Signal;

/// Read once at the start; a machine does not change under a running kubelet.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub cpus: i64,
    pub memory: u64,
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
    pub architecture: &'static str,
    /// Huge pages by size in bytes: the reserved amount in bytes.
    pub hugepages: Vec<(u64, u64)>,
}

impl Machine {
    pub fn read() -> Self {
        let line =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let machine_id = line("/etc/machine-id");
        let system_uuid = line("/sys/class/dmi/id/product_uuid");
        Self {
            cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as i64),
            memory: memory_total(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
            machine_id,
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image: pretty_name(&os_release),
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            },
            hugepages: hugepages(Path::new("/sys/kernel/mm/hugepages")),
        }
    }

    /// Milli-cores for pods.
    pub fn allocatable_cpu(&self, config: &Config) -> i64 {
        (self.cpus * 1000 - config.reserved_cpu_millis).max(0)
    }

    /// Bytes for pods, less what is kept free before pods are evicted.
    pub fn allocatable_memory(&self, config: &Config) -> i64 {
        let kept_free = config.eviction.hard(Signal::MemoryAvailable, self.memory);
        (self.memory as i64 - config.reserved_memory - kept_free as i64).max(0)
    }
}

/// All memory, in bytes.
pub fn memory_total(meminfo: &str) -> u64 {
    let kilobytes = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Memory that can be used without swapping, in bytes.
pub fn memory_available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(rest.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn pretty_name(os_release: &str) -> String {
    os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .unwrap_or_else(|| "Linux".into())
}

fn hugepages(dir: &Path) -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut sizes: Vec<(u64, u64)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kilobytes: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
            let count: u64 =
                fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
            Some((kilobytes * 1024, count * kilobytes * 1024))
        })
        .collect();
    sizes.sort();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(memory_total("MemTotal:       16 kB\nMemFree: 1 kB\n"), 16384);
        assert_eq!(memory_available("MemTotal: 16 kB\nMemAvailable:   2 kB\n"), Some(2048));
        assert_eq!(pretty_name("NAME=x\nPRETTY_NAME=\"Debian 13\"\n"), "Debian 13");
        assert!(Machine::read().cpus >= 1);
    }
}
