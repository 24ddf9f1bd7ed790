//! What a kubelet asks of a container runtime: the traits and plain types between the two.
//!
//! The shapes follow the Container Runtime Interface v1 field by field, so that the same traits can be
//! implemented by the in-process runtime (the default) and by a client of a containerd or CRI-O socket.
//! Reading order: [`RuntimeService`] and [`ImageService`] here, then [`sandbox`], [`container`], [`linux`],
//! [`image`], [`stats`], [`stream`].
//!
//! What differs from the protobuf, and why:
//! - Times are nanoseconds since the Unix epoch (`i64`), 0 for "not yet", as on the wire.
//! - A message that means the same when absent and when default is not an `Option` here.
//! - `exec`, `attach` and `port_forward` answer with live endpoints ([`stream`]) instead of a URL: the kubelet
//!   serves the streaming protocols itself. A socket client dials the URL and returns the same endpoints.
//! - [`RuntimeService::events`] is mandatory: the kubelet never polls by relisting. A subscriber first
//!   subscribes, then lists, so that nothing falls in between. A client of a runtime without events makes them of lists.
//!
//! Both traits are dyn-compatible; the futures are boxed and borrow their arguments.

#![warn(missing_docs)]

use std::time::Duration;

pub use futures::future::BoxFuture;
pub use futures::stream::BoxStream;

pub mod container;
pub mod credentials;
mod error;
pub mod image;
pub mod linux;
pub mod sandbox;
pub mod server;
pub mod signal;
pub mod stats;
pub mod stream;
pub mod wire;

pub use container::{
    Container, ContainerConfig, ContainerEvent, ContainerEventType, ContainerFilter, ContainerMetadata,
    ContainerState, ContainerStatus, ContainerUser, Device, ExecOutput, KeyValue, Mount, MountPropagation,
};
pub use credentials::Keyring;
pub use error::{BoxError, Error, Result};
pub use image::{AuthConfig, FilesystemUsage, Image, ImageFilter, ImageFsInfo, ImageSpec};
pub use linux::{
    Capability, HugepageLimit, IdMapping, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode,
    NamespaceOption, ProfileType, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy, UserNamespace,
};
pub use sandbox::{
    DnsConfig, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata, PodSandboxNetworkStatus,
    PodSandboxState, PodSandboxStatus, PortMapping, Protocol, RuntimeCondition, RuntimeStatus, VersionInfo,
};
pub use signal::Signal;
pub use stats::{
    ContainerAttributes, ContainerStats, ContainerStatsFilter, CpuUsage, MemoryUsage, NetworkInterfaceUsage,
    NetworkUsage, PodSandboxAttributes, PodSandboxStats, PodSandboxStatsFilter, ProcessUsage, SwapUsage,
};
pub use stream::{AttachOptions, Duplex, ExecOptions, Reader, Session, TerminalSize, Writer};

/// Pods and containers.
///
/// All calls that end something (`stop_*`, `remove_*`) are idempotent: an absent object is success. All others
/// answer [`Error::NotFound`] for an unknown id.
pub trait RuntimeService: Send + Sync {
    /// Name and versions of the runtime.
    fn version(&self) -> BoxFuture<'_, Result<VersionInfo>>;

    /// Whether the runtime and the network can take pods: the conditions `RuntimeReady` and `NetworkReady`.
    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus>>;

    /// Creates and starts a pod's sandbox: its namespaces, its network, its cgroup. Answers with its id. When it
    /// fails, nothing is left behind.
    fn run_pod_sandbox<'a>(&'a self, config: &'a PodSandboxConfig) -> BoxFuture<'a, Result<String>>;

    /// Kills every container of the sandbox, then takes the sandbox and its network down.
    fn stop_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Removes the sandbox with every container of it, running or not.
    fn remove_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// State, addresses and namespaces of one sandbox.
    fn pod_sandbox_status<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStatus>>;

    /// The sandboxes that match, ready or not.
    fn list_pod_sandboxes<'a>(
        &'a self,
        filter: &'a PodSandboxFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandbox>>>;

    /// Prepares a container in a sandbox without running it. Answers with its id.
    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>>;

    /// Runs a created container. An entry point that cannot be executed is an error here, and the container is
    /// then exited with code 128 and reason `StartError`.
    fn start_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Sends the stop signal and, after `timeout`, SIGKILL. Returns once the container has exited; zero kills at
    /// once.
    fn stop_container<'a>(&'a self, container_id: &'a str, timeout: Duration) -> BoxFuture<'a, Result<()>>;

    /// Removes a container, killing it first if it runs. Its log file stays.
    fn remove_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// The containers that match, in any state.
    fn list_containers<'a>(&'a self, filter: &'a ContainerFilter) -> BoxFuture<'a, Result<Vec<Container>>>;

    /// State, times, exit code and settings of one container.
    fn container_status<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStatus>>;

    /// Changes the cgroup limits of a created or running container. Zero values leave a limit as it is.
    fn update_container_resources<'a>(
        &'a self,
        container_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>>;

    /// Changes the limits of a sandbox's own cgroup, in which those of its containers are. Zero values leave a limit as
    /// it is.
    fn update_pod_sandbox_resources<'a>(
        &'a self,
        sandbox_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>>;

    /// Runs a command in a running container and collects its output, up to 16 MiB of each stream; what exceeds
    /// that is discarded. A zero timeout means none; a passed one kills the command and is
    /// [`Error::DeadlineExceeded`].
    fn exec_sync<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>>;

    /// Runs a command in a running container with live streams.
    fn exec<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        options: ExecOptions,
    ) -> BoxFuture<'a, Result<Session>>;

    /// Connects to the streams of a running container's main process, from now on: earlier output is in the log.
    fn attach<'a>(&'a self, container_id: &'a str, options: AttachOptions) -> BoxFuture<'a, Result<Session>>;

    /// Opens one TCP connection to `port` on the loopback address inside the sandbox's network namespace. A
    /// port-forward session calls this once per connection.
    fn port_forward<'a>(&'a self, sandbox_id: &'a str, port: u16) -> BoxFuture<'a, Result<Duplex>>;

    /// CPU and memory use of one container.
    fn container_stats<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStats>>;

    /// CPU and memory use of the running containers that match.
    fn list_container_stats<'a>(
        &'a self,
        filter: &'a ContainerStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<ContainerStats>>>;

    /// Resource use of one pod, with its containers.
    fn pod_sandbox_stats<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStats>>;

    /// Resource use of the ready pods that match.
    fn list_pod_sandbox_stats<'a>(
        &'a self,
        filter: &'a PodSandboxStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandboxStats>>>;

    /// Makes the writer of a running container's log open the log path again, after the kubelet renamed the file.
    fn reopen_container_log<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Tells the network the pod address range of this node, where the network learns it that way.
    fn update_pod_cidr<'a>(&'a self, pod_cidr: &'a str) -> BoxFuture<'a, Result<()>>;

    /// Container lifecycle events from now on. The stream ends when the subscriber fell too far behind or the
    /// runtime went away: subscribe again and list.
    fn events(&self) -> BoxFuture<'_, Result<BoxStream<'static, ContainerEvent>>>;
}

/// Images on this node.
pub trait ImageService: Send + Sync {
    /// The images that are present.
    fn list_images<'a>(&'a self, filter: &'a ImageFilter) -> BoxFuture<'a, Result<Vec<Image>>>;

    /// One image by tag, digest reference or id; `None` when it is not present.
    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<Option<Image>>>;

    /// Makes the image present and answers with its id. [`Error::ImagePull`] when that cannot be done.
    fn pull_image<'a>(
        &'a self,
        image: &'a ImageSpec,
        auth: Option<&'a AuthConfig>,
        sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>>;

    /// Removes an image by tag, digest reference or id. Absent is success.
    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<()>>;

    /// Disk use of images and of containers' writable layers.
    fn image_fs_info(&self) -> BoxFuture<'_, Result<ImageFsInfo>>;
}
