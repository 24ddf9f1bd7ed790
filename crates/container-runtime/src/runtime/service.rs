//! The runtime service: each call of CRI, handed to the module that does it.

use std::time::Duration;

use cri::{
    AttachOptions, BoxFuture, BoxStream, Container, ContainerConfig, ContainerEvent, ContainerFilter,
    ContainerStats, ContainerStatsFilter, ContainerStatus, Duplex, ExecOptions, ExecOutput,
    LinuxContainerResources, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxStats,
    PodSandboxStatsFilter, PodSandboxStatus, Result, RuntimeCondition, RuntimeService, RuntimeStatus,
    Session, VersionInfo,
};

use super::Runtime;
use crate::client;
use crate::shim::protocol::Request;

/// Whether the kernel has user namespaces, lets somebody make one, and can show every file system that pods have with other
/// ids (tmpfs since 6.3).
fn has_user_namespaces() -> bool {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let mut parts =
        release.split(|one: char| !one.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let allowed = read("/proc/sys/user/max_user_namespaces").trim().parse::<u64>().unwrap_or(0) > 0;
    version >= (6, 3) && allowed && std::path::Path::new("/proc/self/ns/user").exists()
}

impl RuntimeService for Runtime {
    fn version(&self) -> BoxFuture<'_, Result<VersionInfo>> {
        Box::pin(async {
            Ok(VersionInfo {
                runtime_name: "kelson".into(),
                runtime_version: self.config.version.clone(),
                runtime_api_version: "v1".into(),
            })
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus>> {
        Box::pin(async {
            let network = self.config.network.status().await;
            let network = RuntimeCondition {
                r#type: "NetworkReady".into(),
                status: network.is_ok(),
                reason: if network.is_ok() { String::new() } else { "NetworkPluginNotReady".into() },
                message: network.err().map(network_problem).unwrap_or_default(),
            };
            let runtime =
                RuntimeCondition { r#type: "RuntimeReady".into(), status: true, ..Default::default() };
            Ok(RuntimeStatus { conditions: vec![runtime, network], user_namespaces: has_user_namespaces() })
        })
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a PodSandboxConfig) -> BoxFuture<'a, Result<String>> {
        Box::pin(self.run_sandbox(config))
    }

    fn stop_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.stop_sandbox(sandbox_id))
    }

    fn remove_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove_sandbox(sandbox_id))
    }

    fn pod_sandbox_status<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStatus>> {
        Box::pin(async move { Ok(self.state().sandbox(sandbox_id)?.status()) })
    }

    fn list_pod_sandboxes<'a>(
        &'a self,
        filter: &'a PodSandboxFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandbox>>> {
        Box::pin(async move {
            let state = self.state();
            let matching = state.sandboxes.values().filter(|sandbox| sandbox.matches(filter));
            Ok(matching.map(super::state::Sandbox::listed).collect())
        })
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        let (sandbox_id, config, sandbox_config) =
            (sandbox_id.to_owned(), config.clone(), sandbox_config.clone());
        self.blocking(move |runtime| runtime.create(&sandbox_id, &config, &sandbox_config))
    }

    fn start_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.start(container_id))
    }

    fn stop_container<'a>(&'a self, container_id: &'a str, timeout: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.stop(container_id, timeout))
    }

    fn remove_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove(container_id))
    }

    fn list_containers<'a>(&'a self, filter: &'a ContainerFilter) -> BoxFuture<'a, Result<Vec<Container>>> {
        Box::pin(async move {
            let state = self.state();
            let matching = state.containers.values().filter(|container| container.matches(filter));
            Ok(matching.map(super::state::Container::listed).collect())
        })
    }

    fn container_status<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStatus>> {
        Box::pin(async move { Ok(self.state().container(container_id)?.status()) })
    }

    fn update_container_resources<'a>(
        &'a self,
        container_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.update_resources(container_id, resources) })
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        sandbox_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.update_sandbox_resources(sandbox_id, resources) })
    }

    fn exec_sync<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>> {
        Box::pin(self.exec_and_collect(container_id, command, timeout))
    }

    fn exec<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        options: ExecOptions,
    ) -> BoxFuture<'a, Result<Session>> {
        Box::pin(async move { Ok(self.exec_session(container_id, command, options).await?.0) })
    }

    fn attach<'a>(&'a self, container_id: &'a str, options: AttachOptions) -> BoxFuture<'a, Result<Session>> {
        Box::pin(self.attach_session(container_id, options))
    }

    fn port_forward<'a>(&'a self, sandbox_id: &'a str, port: u16) -> BoxFuture<'a, Result<Duplex>> {
        Box::pin(self.connect_port(sandbox_id, port))
    }

    fn container_stats<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStats>> {
        let id = container_id.to_owned();
        self.blocking(move |runtime| runtime.measure_container(&id))
    }

    fn list_container_stats<'a>(
        &'a self,
        filter: &'a ContainerStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<ContainerStats>>> {
        let filter = filter.clone();
        self.blocking(move |runtime| runtime.measure_containers(&filter))
    }

    fn pod_sandbox_stats<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStats>> {
        let id = sandbox_id.to_owned();
        self.blocking(move |runtime| runtime.measure_sandbox(&id))
    }

    fn list_pod_sandbox_stats<'a>(
        &'a self,
        filter: &'a PodSandboxStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandboxStats>>> {
        let filter = filter.clone();
        self.blocking(move |runtime| runtime.measure_sandboxes(&filter))
    }

    fn reopen_container_log<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let sandbox = self.state().running(container_id)?.record.sandbox_id.clone();
            let request = Request::ReopenLog { id: container_id.to_owned() };
            client::ask(&self.sandbox_directory(&sandbox), &request).await.map_err(|error| {
                cri::Error::failed(format!("opening the log of container {container_id} again"), error)
            })?;
            Ok(())
        })
    }

    /// The network learns the range from the API server; there is nothing to pass on.
    fn update_pod_cidr<'a>(&'a self, _pod_cidr: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn events(&self) -> BoxFuture<'_, Result<BoxStream<'static, ContainerEvent>>> {
        Box::pin(async {
            let receiver = self.events.subscribe();
            // An error is the end of the stream: lagged or closed, either way the subscriber must list.
            let stream = futures::stream::unfold(receiver, |mut receiver| async {
                receiver.recv().await.ok().map(|event| (event, receiver))
            });
            Ok(Box::pin(stream) as BoxStream<'static, ContainerEvent>)
        })
    }
}

/// In the words of other runtimes, which the node's condition repeats.
fn network_problem(error: cni::Error) -> String {
    let reason = match error {
        cni::Error::NotReady { reason } => reason,
        other => telemetry::chain(&other).to_string(),
    };
    format!("Network plugin returns error: {reason}")
}
