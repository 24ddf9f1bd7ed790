//! Resource use of containers and pods, from their cgroups.

use std::fs;

use cri::{
    ContainerAttributes, ContainerStats, ContainerStatsFilter, CpuUsage, FilesystemUsage, MemoryUsage,
    NetworkInterfaceUsage, NetworkUsage, PodSandboxAttributes, PodSandboxState, PodSandboxStats,
    PodSandboxStatsFilter, ProcessUsage,
};

use super::Runtime;
use super::state::{Container, selects};
use crate::image::store::disk_use;
use crate::records;
use cgroups::Usage;

/// The interface that pods have.
const INTERFACE: &str = "eth0";

impl Runtime {
    pub(super) fn measure_container(&self, id: &str) -> cri::Result<ContainerStats> {
        let (attributes, cgroup) = {
            let state = self.state();
            let Container { record, .. } = state.container(id)?;
            let attributes = ContainerAttributes {
                id: id.to_owned(),
                metadata: record.config.metadata.clone(),
                labels: record.config.labels.clone(),
                annotations: record.config.annotations.clone(),
            };
            (attributes, record.cgroup.clone())
        };
        let usage = self.cgroups.usage(&cgroup);
        let now = records::now();
        let rate = usage.cpu_nanoseconds.and_then(|cpu| {
            let mut state = self.state();
            let last = state.containers.get_mut(id)?.last_cpu.replace((now, cpu))?;
            rate_of(last, (now, cpu))
        });
        let upper = self.store.snapshot(id).join("upper");
        let written = disk_use(&upper);
        Ok(ContainerStats {
            attributes,
            cpu: CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: usage.cpu_nanoseconds,
                usage_nano_cores: rate,
            },
            memory: memory(&usage, now),
            writable_layer: Some(FilesystemUsage {
                timestamp: now,
                mountpoint: upper,
                used_bytes: written.bytes,
                inodes_used: written.inodes,
            }),
            swap: None,
        })
    }

    pub(super) fn measure_containers(
        &self,
        filter: &ContainerStatsFilter,
    ) -> cri::Result<Vec<ContainerStats>> {
        let ids: Vec<String> = {
            let state = self.state();
            let matches = |container: &&Container| {
                container.pid().is_some()
                    && filter.id.as_ref().is_none_or(|id| container.record.id.starts_with(id.as_str()))
                    && filter.pod_sandbox_id.as_ref().is_none_or(|id| container.record.sandbox_id == *id)
                    && selects(&filter.label_selector, &container.record.config.labels)
            };
            state.containers.values().filter(matches).map(|container| container.record.id.clone()).collect()
        };
        // Removed while we measure: no longer of interest.
        Ok(ids.iter().filter_map(|id| self.measure_container(id).ok()).collect())
    }

    pub(super) fn measure_sandbox(&self, id: &str) -> cri::Result<PodSandboxStats> {
        let (attributes, cgroup, pid) = {
            let state = self.state();
            let sandbox = state.sandbox(id)?;
            let config = &sandbox.record.config;
            let attributes = PodSandboxAttributes {
                id: id.to_owned(),
                metadata: config.metadata.clone(),
                labels: config.labels.clone(),
                annotations: config.annotations.clone(),
            };
            let own_network =
                config.linux.security_context.namespace_options.network != cri::NamespaceMode::Node;
            let pid = sandbox.shim.as_ref().map(|shim| shim.pid).filter(|_| own_network);
            (attributes, sandbox.record.cgroup_parent.clone(), pid)
        };
        let usage = self.cgroups.usage(&cgroup);
        let now = records::now();
        let containers = self.measure_containers(&ContainerStatsFilter {
            pod_sandbox_id: Some(id.to_owned()),
            ..Default::default()
        })?;
        let rates: Vec<u64> =
            containers.iter().filter_map(|container| container.cpu.usage_nano_cores).collect();
        Ok(PodSandboxStats {
            attributes,
            cpu: CpuUsage {
                timestamp: now,
                usage_core_nano_seconds: usage.cpu_nanoseconds,
                usage_nano_cores: (!rates.is_empty()).then(|| rates.iter().sum()),
            },
            memory: memory(&usage, now),
            network: pid
                .and_then(|pid| network(&fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?, now)),
            process: ProcessUsage { timestamp: now, process_count: usage.processes },
            containers,
        })
    }

    pub(super) fn measure_sandboxes(
        &self,
        filter: &PodSandboxStatsFilter,
    ) -> cri::Result<Vec<PodSandboxStats>> {
        let ids: Vec<String> = {
            let state = self.state();
            let matching = state.sandboxes.values().filter(|sandbox| {
                sandbox.state() == PodSandboxState::Ready
                    && filter.id.as_ref().is_none_or(|id| sandbox.record.id.starts_with(id.as_str()))
                    && selects(&filter.label_selector, &sandbox.record.config.labels)
            });
            matching.map(|sandbox| sandbox.record.id.clone()).collect()
        };
        Ok(ids.iter().filter_map(|id| self.measure_sandbox(id).ok()).collect())
    }
}

/// Billionths of a core between two readings of (time, CPU time).
fn rate_of(old: (i64, u64), new: (i64, u64)) -> Option<u64> {
    let elapsed = u64::try_from(new.0 - old.0).ok().filter(|elapsed| *elapsed > 0)?;
    let spent = new.1.checked_sub(old.1)?;
    u64::try_from(u128::from(spent) * 1_000_000_000 / u128::from(elapsed)).ok()
}

fn memory(usage: &Usage, now: i64) -> MemoryUsage {
    let available = usage.memory_limit.zip(usage.working_set).map(|(limit, used)| limit.saturating_sub(used));
    MemoryUsage {
        timestamp: now,
        working_set_bytes: usage.working_set,
        available_bytes: available,
        usage_bytes: usage.memory,
        rss_bytes: usage.anonymous,
        page_faults: usage.page_faults,
        major_page_faults: usage.major_page_faults,
    }
}

/// Reads /proc/net/dev: a name, a colon, eight numbers received, eight sent.
fn network(text: &str, now: i64) -> Option<NetworkUsage> {
    let mut interfaces: Vec<NetworkInterfaceUsage> = text
        .lines()
        .filter_map(|line| {
            let (name, numbers) = line.split_once(':')?;
            let numbers: Vec<u64> =
                numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect();
            Some(NetworkInterfaceUsage {
                name: name.trim().to_owned(),
                rx_bytes: numbers.first().copied(),
                rx_errors: numbers.get(2).copied(),
                tx_bytes: numbers.get(8).copied(),
                tx_errors: numbers.get(10).copied(),
            })
        })
        .filter(|interface| interface.name != "lo")
        .collect();
    let default = interfaces.iter().position(|interface| interface.name == INTERFACE)?;
    Some(NetworkUsage { timestamp: now, default_interface: interfaces.remove(default), interfaces })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_come_from_two_readings() {
        assert_eq!(rate_of((0, 0), (2_000_000_000, 1_000_000_000)), Some(500_000_000));
        assert_eq!(rate_of((5, 0), (5, 10)), None);
        assert_eq!(rate_of((0, 10), (5, 0)), None);
    }

    #[test]
    fn counters_of_the_pods_interface_are_found() {
        let text = "Inter-|   Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 100 2 3 0 0 0 0 0 200 4 5 0 0 0 0 0\n";
        let usage = network(text, 1).unwrap();
        let eth0 = usage.default_interface;
        assert_eq!(
            (eth0.rx_bytes, eth0.rx_errors, eth0.tx_bytes, eth0.tx_errors),
            (Some(100), Some(3), Some(200), Some(5))
        );
        assert!(usage.interfaces.is_empty());
        assert!(network("", 1).is_none());
    }
}
