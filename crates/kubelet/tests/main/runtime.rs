//! A container runtime in memory: containers are records that tests make exit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cri::*;
use futures::FutureExt;
use tokio::sync::broadcast;

#[derive(Default)]
struct State {
    sandboxes: HashMap<String, PodSandboxStatus>,
    containers: HashMap<String, ContainerStatus>,
    calls: Vec<String>,
    next: u32,
    missing_images: Vec<String>,
}

pub struct FakeRuntime {
    state: Mutex<State>,
    events: broadcast::Sender<ContainerEvent>,
}

fn now() -> i64 {
    jiff::Timestamp::now().as_nanosecond() as i64
}

impl FakeRuntime {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), events: broadcast::channel(1024).0 })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was called that changes something, in order.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    pub fn forget_image(&self, image: &str) {
        self.lock().missing_images.push(image.into());
    }

    pub fn provide_image(&self, image: &str) {
        self.lock().missing_images.retain(|missing| missing != image);
    }

    /// The running container of this name.
    pub fn running(&self, name: &str) -> Option<ContainerStatus> {
        let state = self.lock();
        let found = state
            .containers
            .values()
            .find(|one| one.metadata.name == name && one.state == ContainerState::Running);
        found.cloned()
    }

    pub fn config_of(&self, name: &str) -> Option<ContainerStatus> {
        self.lock().containers.values().find(|one| one.metadata.name == name).cloned()
    }

    pub fn sandbox_count(&self) -> usize {
        self.lock().sandboxes.len()
    }

    /// Makes a running container exit.
    pub fn exit(&self, name: &str, code: i32) {
        let id = self.running(name).expect("it runs").id;
        self.end(&id, code);
    }

    fn end(&self, id: &str, code: i32) {
        if let Some(one) = self.lock().containers.get_mut(id)
            && one.state == ContainerState::Running
        {
            one.state = ContainerState::Exited;
            one.exit_code = code;
            one.finished_at = now();
        }
        self.tell(id, ContainerEventType::Stopped);
    }

    fn tell(&self, id: &str, event_type: ContainerEventType) {
        let state = self.lock();
        let sandbox = state.containers.get(id).map_or(id, |one| &one.pod_sandbox_id).to_owned();
        let event = ContainerEvent {
            container_id: id.into(),
            event_type,
            created_at: now(),
            pod_sandbox_status: state.sandboxes.get(&sandbox).cloned(),
            containers_statuses: state
                .containers
                .values()
                .filter(|one| one.pod_sandbox_id == sandbox)
                .cloned()
                .collect(),
        };
        drop(state);
        let _ = self.events.send(event);
    }
}

fn done<'a, T: Send + 'a>(result: Result<T>) -> BoxFuture<'a, Result<T>> {
    std::future::ready(result).boxed()
}

fn matches(
    labels: &std::collections::BTreeMap<String, String>,
    selector: &std::collections::BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The values that are set.
fn changed(values: &LinuxContainerResources) -> String {
    let all = [
        ("memory", values.memory_limit_in_bytes),
        ("quota", values.cpu_quota),
        ("shares", values.cpu_shares),
    ];
    let set: Vec<String> =
        all.iter().filter(|(_, value)| *value != 0).map(|(name, value)| format!("{name}={value}")).collect();
    set.join(" ")
}

fn not_found(kind: &'static str, id: &str) -> Error {
    Error::NotFound { kind, id: id.into() }
}

impl RuntimeService for FakeRuntime {
    fn version(&self) -> BoxFuture<'_, Result<VersionInfo>> {
        done(Ok(VersionInfo {
            runtime_name: "fake".into(),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus>> {
        done(Ok(RuntimeStatus::default()))
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a PodSandboxConfig) -> BoxFuture<'a, Result<String>> {
        let mut state = self.lock();
        state.next += 1;
        let id = format!("sandbox{}", state.next);
        state.calls.push(format!("run {}", config.metadata.name));
        let status = PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata.clone(),
            state: PodSandboxState::Ready,
            created_at: now(),
            network: PodSandboxNetworkStatus { ip: "127.0.0.1".parse().ok(), ..Default::default() },
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            ..Default::default()
        };
        state.sandboxes.insert(id.clone(), status);
        drop(state);
        self.tell(&id, ContainerEventType::Started);
        done(Ok(id))
    }

    fn stop_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<()>> {
        let mut state = self.lock();
        state.calls.push("stop sandbox".into());
        if let Some(sandbox) = state.sandboxes.get_mut(id) {
            sandbox.state = PodSandboxState::NotReady;
        }
        done(Ok(()))
    }

    fn remove_pod_sandbox<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<()>> {
        let mut state = self.lock();
        state.calls.push("remove sandbox".into());
        state.sandboxes.remove(id);
        state.containers.retain(|_, one| one.pod_sandbox_id != id);
        done(Ok(()))
    }

    fn pod_sandbox_status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<PodSandboxStatus>> {
        done(self.lock().sandboxes.get(id).cloned().ok_or_else(|| not_found("sandbox", id)))
    }

    fn list_pod_sandboxes<'a>(
        &'a self,
        filter: &'a PodSandboxFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandbox>>> {
        let state = self.lock();
        let found = state.sandboxes.values().filter(|one| matches(&one.labels, &filter.label_selector));
        done(Ok(found
            .map(|one| PodSandbox {
                id: one.id.clone(),
                metadata: one.metadata.clone(),
                state: one.state,
                created_at: one.created_at,
                labels: one.labels.clone(),
                ..Default::default()
            })
            .collect()))
    }

    fn create_container<'a>(
        &'a self,
        sandbox: &'a str,
        config: &'a ContainerConfig,
        _: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        let mut state = self.lock();
        state.next += 1;
        let id = format!("container{}", state.next);
        state.calls.push(format!("create {} {}", config.metadata.name, config.metadata.attempt));
        let envs: Vec<String> = config
            .envs
            .iter()
            .map(|one| format!("{}={}", one.key, String::from_utf8_lossy(&one.value)))
            .collect();
        let status = ContainerStatus {
            id: id.clone(),
            pod_sandbox_id: sandbox.into(),
            metadata: config.metadata.clone(),
            state: ContainerState::Created,
            created_at: now(),
            image: config.image.clone(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            mounts: config.mounts.clone(),
            // The fake has no log; the field carries the environment to the tests.
            message: String::new(),
            log_path: envs.join("\n").into(),
            ..Default::default()
        };
        state.containers.insert(id.clone(), status);
        done(Ok(id))
    }

    fn start_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<()>> {
        let mut state = self.lock();
        let Some(one) = state.containers.get_mut(id) else { return done(Err(not_found("container", id))) };
        one.state = ContainerState::Running;
        one.started_at = now();
        drop(state);
        self.tell(id, ContainerEventType::Started);
        done(Ok(()))
    }

    fn stop_container<'a>(&'a self, id: &'a str, timeout: Duration) -> BoxFuture<'a, Result<()>> {
        let name = self.lock().containers.get(id).map(|one| one.metadata.name.clone()).unwrap_or_default();
        self.lock().calls.push(format!("stop {name} {}s", timeout.as_secs_f64().ceil()));
        self.end(id, 143);
        done(Ok(()))
    }

    fn remove_container<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<()>> {
        self.lock().containers.remove(id);
        done(Ok(()))
    }

    fn list_containers<'a>(&'a self, filter: &'a ContainerFilter) -> BoxFuture<'a, Result<Vec<Container>>> {
        let state = self.lock();
        let found = state.containers.values().filter(|one| matches(&one.labels, &filter.label_selector));
        done(Ok(found.map(|one| Container { id: one.id.clone(), ..Default::default() }).collect()))
    }

    fn container_status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<ContainerStatus>> {
        done(self.lock().containers.get(id).cloned().ok_or_else(|| not_found("container", id)))
    }

    fn update_container_resources<'a>(
        &'a self,
        id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        let mut state = self.lock();
        let Some(one) = state.containers.get(id) else { return done(Err(not_found("container", id))) };
        let call = format!("update {} {}", one.metadata.name, changed(resources));
        state.calls.push(call);
        done(Ok(()))
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        _: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        self.lock().calls.push(format!("update pod {}", changed(resources)));
        done(Ok(()))
    }

    /// `true` succeeds, everything else fails with its own words.
    fn exec_sync<'a>(
        &'a self,
        _: &'a str,
        command: &'a [String],
        _: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>> {
        self.lock().calls.push(format!("exec {}", command.join(" ")));
        let exit_code = i32::from(command[0] != "true");
        done(Ok(ExecOutput { stdout: command.join(" ").into(), exit_code, ..Default::default() }))
    }

    fn exec<'a>(&'a self, _: &'a str, _: &'a [String], _: ExecOptions) -> BoxFuture<'a, Result<Session>> {
        done(Err(Error::Unsupported("exec")))
    }

    fn attach<'a>(&'a self, _: &'a str, _: AttachOptions) -> BoxFuture<'a, Result<Session>> {
        done(Err(Error::Unsupported("attach")))
    }

    fn port_forward<'a>(&'a self, _: &'a str, _: u16) -> BoxFuture<'a, Result<Duplex>> {
        done(Err(Error::Unsupported("port_forward")))
    }

    fn container_stats<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<ContainerStats>> {
        done(Err(Error::Unsupported("stats")))
    }

    fn list_container_stats<'a>(
        &'a self,
        _: &'a ContainerStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<ContainerStats>>> {
        done(Ok(Vec::new()))
    }

    fn pod_sandbox_stats<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<PodSandboxStats>> {
        done(Err(Error::Unsupported("stats")))
    }

    fn list_pod_sandbox_stats<'a>(
        &'a self,
        _: &'a PodSandboxStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandboxStats>>> {
        done(Ok(Vec::new()))
    }

    fn reopen_container_log<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<()>> {
        done(Ok(()))
    }

    fn update_pod_cidr<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<()>> {
        done(Ok(()))
    }

    fn events(&self) -> BoxFuture<'_, Result<BoxStream<'static, ContainerEvent>>> {
        let receiver = self.events.subscribe();
        let stream = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.ok().map(|event| (event, receiver))
        });
        done(Ok(Box::pin(stream)))
    }
}

impl ImageService for FakeRuntime {
    fn list_images<'a>(&'a self, _: &'a ImageFilter) -> BoxFuture<'a, Result<Vec<Image>>> {
        done(Ok(Vec::new()))
    }

    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<Option<Image>>> {
        let missing = self.lock().missing_images.contains(&image.image);
        done(Ok((!missing).then(|| Image { id: "sha256:1".into(), ..Default::default() })))
    }

    fn pull_image<'a>(
        &'a self,
        image: &'a ImageSpec,
        _: Option<&'a AuthConfig>,
        _: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        self.lock().calls.push(format!("pull {}", image.image));
        if self.lock().missing_images.contains(&image.image) {
            return done(Err(Error::ImagePull {
                image: image.image.clone(),
                reason: "no such image".into(),
            }));
        }
        done(Ok("sha256:1".into()))
    }

    fn remove_image<'a>(&'a self, _: &'a ImageSpec) -> BoxFuture<'a, Result<()>> {
        done(Ok(()))
    }

    fn image_fs_info(&self) -> BoxFuture<'_, Result<ImageFsInfo>> {
        done(Ok(ImageFsInfo::default()))
    }
}
