//! Figures of containers and pods.

use super::{ContainerMetadata, PodSandboxMetadata, UInt64Value, Windows};

messages! {
    /// Asks for one container's.
    ContainerStatsRequest { 1 container_id: text }
    /// One container's.
    ContainerStatsResponse { 1 stats: one(ContainerStats) }
    /// Asks for many containers'.
    ListContainerStatsRequest { 1 filter: one(ContainerStatsFilter) }
    /// Many containers'.
    ListContainerStatsResponse { 1 stats: many(ContainerStats) }
    /// The same, answered in parts.
    StreamContainerStatsRequest { 1 filter: one(ContainerStatsFilter) }
    /// A part.
    StreamContainerStatsResponse { 1 container_stats: many(ContainerStats) }
    /// Which ones are meant.
    ContainerStatsFilter { 1 id: text, 2 pod_sandbox_id: text, 3 label_selector: map }
    /// Whose figures.
    ContainerAttributes { 1 id: text, 2 metadata: one(ContainerMetadata), 3 labels: map, 4 annotations: map }
    /// A container's figures.
    ContainerStats {
        1 attributes: one(ContainerAttributes), 2 cpu: one(CpuUsage), 3 memory: one(MemoryUsage),
        5 swap: one(SwapUsage), 4 writable_layer: one(FilesystemUsage), 6 io: one(IoUsage),
    }

    /// Asks for one pod's.
    PodSandboxStatsRequest { 1 pod_sandbox_id: text }
    /// One pod's.
    PodSandboxStatsResponse { 1 stats: one(PodSandboxStats) }
    /// Asks for many pods'.
    ListPodSandboxStatsRequest { 1 filter: one(PodSandboxStatsFilter) }
    /// Many pods'.
    ListPodSandboxStatsResponse { 1 stats: many(PodSandboxStats) }
    /// The same, answered in parts.
    StreamPodSandboxStatsRequest { 1 filter: one(PodSandboxStatsFilter) }
    /// A part.
    StreamPodSandboxStatsResponse { 1 pod_sandbox_stats: many(PodSandboxStats) }
    /// Which ones are meant.
    PodSandboxStatsFilter { 1 id: text, 2 label_selector: map }
    /// Whose figures.
    PodSandboxAttributes { 1 id: text, 2 metadata: one(PodSandboxMetadata), 3 labels: map, 4 annotations: map }
    /// A pod's figures.
    PodSandboxStats {
        1 attributes: one(PodSandboxAttributes), 2 linux: one(LinuxPodSandboxStats), 3 windows: one(Windows),
    }
    /// On Linux.
    LinuxPodSandboxStats {
        1 cpu: one(CpuUsage), 2 memory: one(MemoryUsage), 3 network: one(NetworkUsage),
        4 process: one(ProcessUsage), 5 containers: many(ContainerStats), 6 io: one(IoUsage),
    }

    /// Processor time.
    CpuUsage {
        1 timestamp: int64, 2 usage_core_nano_seconds: one(UInt64Value), 3 usage_nano_cores: one(UInt64Value),
        4 psi: one(PsiStats),
    }
    /// Memory.
    MemoryUsage {
        1 timestamp: int64, 2 working_set_bytes: one(UInt64Value), 3 available_bytes: one(UInt64Value),
        4 usage_bytes: one(UInt64Value), 5 rss_bytes: one(UInt64Value), 6 page_faults: one(UInt64Value),
        7 major_page_faults: one(UInt64Value), 8 psi: one(PsiStats),
    }
    /// Swap.
    SwapUsage {
        1 timestamp: int64, 2 swap_available_bytes: one(UInt64Value), 3 swap_usage_bytes: one(UInt64Value),
    }
    /// Input and output.
    IoUsage { 1 timestamp: int64, 2 psi: one(PsiStats) }
    /// How long tasks waited for a resource: all of them, and some of them.
    PsiStats { 1 full: one(PsiData), 2 some: one(PsiData) }
    /// In total, and as shares over three windows.
    PsiData { 1 total: uint64, 2 avg10: double, 3 avg60: double, 4 avg300: double }
    /// Number of processes.
    ProcessUsage { 1 timestamp: int64, 2 process_count: one(UInt64Value) }
    /// Bytes through the pod's interfaces.
    NetworkUsage {
        1 timestamp: int64, 2 default_interface: one(NetworkInterfaceUsage),
        3 interfaces: many(NetworkInterfaceUsage),
    }
    /// Through one of them.
    NetworkInterfaceUsage {
        1 name: text, 2 rx_bytes: one(UInt64Value), 3 rx_errors: one(UInt64Value),
        4 tx_bytes: one(UInt64Value), 5 tx_errors: one(UInt64Value),
    }
    /// Disk.
    FilesystemUsage {
        1 timestamp: int64, 2 fs_id: one(FilesystemIdentifier), 3 used_bytes: one(UInt64Value),
        4 inodes_used: one(UInt64Value),
    }
    /// Which disk.
    FilesystemIdentifier { 1 mountpoint: text }

    /// No descriptions of further figures: this runtime has none.
    ListMetricDescriptorsResponse {}
    /// Nor figures.
    ListPodSandboxMetricsResponse {}
}
