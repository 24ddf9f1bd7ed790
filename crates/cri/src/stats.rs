//! Resource use. `None` is "not known on this host", never zero.

use std::collections::BTreeMap;

use crate::container::ContainerMetadata;
use crate::image::FilesystemUsage;
use crate::sandbox::PodSandboxMetadata;

/// Which containers to measure; empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStatsFilter {
    /// Only this container.
    pub id: Option<String>,
    /// Only of this sandbox.
    pub pod_sandbox_id: Option<String>,
    /// All of these labels with these values.
    pub label_selector: BTreeMap<String, String>,
}

/// Which pods to measure; empty fields match all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandboxStatsFilter {
    /// Only this sandbox.
    pub id: Option<String>,
    /// All of these labels with these values.
    pub label_selector: BTreeMap<String, String>,
}

/// Which container was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in Container
pub struct ContainerAttributes {
    pub id: String,
    pub metadata: ContainerMetadata,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// CPU use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// When measured.
    pub timestamp: i64,
    /// CPU time since the start, in nanoseconds.
    pub usage_core_nano_seconds: Option<u64>,
    /// Current rate, in billionths of a core.
    pub usage_nano_cores: Option<u64>,
}

/// Memory use in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// When measured.
    pub timestamp: i64,
    /// Usage without inactive file pages.
    pub working_set_bytes: Option<u64>,
    /// Limit less working set, where there is a limit.
    pub available_bytes: Option<u64>,
    /// All memory charged.
    pub usage_bytes: Option<u64>,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page faults.
    pub page_faults: Option<u64>,
    /// Page faults that read from disk.
    pub major_page_faults: Option<u64>,
}

/// Swap use in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SwapUsage {
    /// When measured.
    pub timestamp: i64,
    /// Left below the limit.
    pub swap_available_bytes: Option<u64>,
    /// Used.
    pub swap_usage_bytes: Option<u64>,
}

/// Resource use of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStats {
    /// Which container.
    pub attributes: ContainerAttributes,
    /// CPU.
    pub cpu: CpuUsage,
    /// Memory.
    pub memory: MemoryUsage,
    /// Its writable layer.
    pub writable_layer: Option<FilesystemUsage>,
    /// Swap.
    pub swap: Option<SwapUsage>,
}

/// Which pod was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // as in PodSandbox
pub struct PodSandboxAttributes {
    pub id: String,
    pub metadata: PodSandboxMetadata,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// Counters of one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the kernel's counters
pub struct NetworkInterfaceUsage {
    pub name: String,
    pub rx_bytes: Option<u64>,
    pub rx_errors: Option<u64>,
    pub tx_bytes: Option<u64>,
    pub tx_errors: Option<u64>,
}

/// Network use of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkUsage {
    /// When measured.
    pub timestamp: i64,
    /// The interface with the default route.
    pub default_interface: NetworkInterfaceUsage,
    /// All others but loopback.
    pub interfaces: Vec<NetworkInterfaceUsage>,
}

/// Processes of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// When measured.
    pub timestamp: i64,
    /// How many.
    pub process_count: Option<u64>,
}

/// Resource use of one pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSandboxStats {
    /// Which pod.
    pub attributes: PodSandboxAttributes,
    /// CPU of the whole pod.
    pub cpu: CpuUsage,
    /// Memory of the whole pod.
    pub memory: MemoryUsage,
    /// Network; `None` with the host's.
    pub network: Option<NetworkUsage>,
    /// Processes.
    pub process: ProcessUsage,
    /// Its running containers.
    pub containers: Vec<ContainerStats>,
}
