//! The two services of a runtime behind a socket: containerd, CRI-O, or our own `container-runtime`.
//!
//! Each method is one call; streams are dialled ([`crate::dial`]). A runtime without events is listed every second, and
//! what changed between two lists is told as if it had been an event.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cri::wire::{self, IMAGE_SERVICE, RUNTIME_SERVICE};
use cri::*;
use futures::{FutureExt, StreamExt};
use grpc::channel::Channel;
use grpc::status::{Status, code};
use lifecycle::Tasks;
use prost::Message;
use tracing::{debug, info};

use crate::dial::{self, Streams};

/// What most calls may take (upstream's `runtimeRequestTimeout`).
const LIMIT: Duration = Duration::from_secs(120);
/// A sandbox may have to wait for its network.
const SANDBOX_LIMIT: Duration = Duration::from_secs(240);
/// A pull is ended by whoever waits for it, not by the clock.
const PULL_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// How often a runtime without events is looked at.
const RELIST: Duration = Duration::from_secs(1);
/// A stream of events that was not refused by then is one.
const REFUSAL: Duration = Duration::from_secs(1);

/// A client of one socket, or of two where images are elsewhere.
#[derive(Clone)]
pub struct Remote {
    runtime: Arc<Channel>,
    images: Arc<Channel>,
    tasks: Tasks,
}

/// The path in `unix:///run/containerd/containerd.sock`.
pub fn socket(endpoint: &str) -> Option<&Path> {
    let path = endpoint.strip_prefix("unix://").unwrap_or(endpoint);
    path.starts_with('/').then(|| Path::new(path))
}

fn error(method: &'static str, kind: &'static str, id: &str, status: Status) -> Error {
    match status.code {
        code::NOT_FOUND => Error::NotFound { kind, id: id.to_owned() },
        code::UNIMPLEMENTED => Error::Unsupported(method),
        code::DEADLINE_EXCEEDED => Error::DeadlineExceeded { doing: method.to_owned(), limit: LIMIT },
        code::INVALID_ARGUMENT => Error::invalid(kind, status.message.into_owned()),
        _ => Error::failed(method, format!("rpc error: code = {} desc = {}", status.code, status.message)),
    }
}

/// An answer that says what cannot be meant.
fn bad(method: &'static str) -> impl Fn(wire::convert::BadMessage) -> Error {
    move |problem| Error::failed(method, problem)
}

fn missing(method: &'static str) -> Error {
    Error::failed(method, "the answer has no object in it")
}

fn all<T, U>(method: &'static str, list: Vec<T>) -> Result<Vec<U>>
where
    U: TryFrom<T, Error = wire::convert::BadMessage>,
{
    list.into_iter().map(|one| one.try_into().map_err(bad(method))).collect()
}

/// Whole seconds, at least one where there is any time at all.
fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs_f64().ceil() as u64).unwrap_or(i64::MAX)
}

impl Remote {
    /// A client; nothing is connected yet.
    pub fn new(runtime: &Path, images: &Path, tasks: &Tasks) -> Self {
        let channel = |path| Arc::new(Channel::new(path, tasks));
        Self { runtime: channel(runtime), images: channel(images), tasks: tasks.clone() }
    }

    async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        of: (&'static str, &str),
        request: impl Message,
        limit: Duration,
    ) -> Result<A> {
        let path = format!("{RUNTIME_SERVICE}{method}");
        self.runtime.call(&path, &request, limit).await.map_err(|status| error(method, of.0, of.1, status))
    }

    async fn image_call<A: Message + Default>(
        &self,
        method: &'static str,
        image: &str,
        request: impl Message,
        limit: Duration,
    ) -> std::result::Result<A, Status> {
        debug!(method, image, "call");
        self.images.call(&format!("{IMAGE_SERVICE}{method}"), &request, limit).await
    }

    async fn sandboxes(&self, filter: &PodSandboxFilter) -> Result<Vec<PodSandbox>> {
        let request = wire::ListPodSandboxRequest { filter: Some(filter.clone().into()) };
        let answer: wire::ListPodSandboxResponse =
            self.call("ListPodSandbox", ("sandbox", ""), request, LIMIT).await?;
        all("ListPodSandbox", answer.items)
    }

    async fn containers(&self, filter: &ContainerFilter) -> Result<Vec<Container>> {
        let request = wire::ListContainersRequest { filter: Some(filter.clone().into()) };
        let answer: wire::ListContainersResponse =
            self.call("ListContainers", ("container", ""), request, LIMIT).await?;
        all("ListContainers", answer.containers)
    }

    /// Everything by id, with its sandbox and its state.
    async fn everything(&self) -> Result<HashMap<String, Known>> {
        let mut known = HashMap::new();
        for one in self.sandboxes(&PodSandboxFilter::default()).await? {
            let state = if one.state == PodSandboxState::Ready {
                ContainerState::Running
            } else {
                ContainerState::Exited
            };
            known.insert(one.id, Known { uid: one.metadata.uid.clone(), state });
        }
        for one in self.containers(&ContainerFilter::default()).await? {
            let uid = known.get(&one.pod_sandbox_id).map(|of| of.uid.clone()).unwrap_or_default();
            known.insert(one.id, Known { uid, state: one.state });
        }
        Ok(known)
    }

    /// Events made of lists.
    fn relist(&self) -> BoxStream<'static, ContainerEvent> {
        info!("the runtime has no events: it is listed every second");
        let start = (self.clone(), None::<HashMap<String, Known>>);
        let lists = futures::stream::unfold(start, |(remote, before)| async move {
            if before.is_some() {
                tokio::time::sleep(RELIST).await;
            }
            // A runtime that cannot be asked ends the stream; whoever subscribes again begins anew.
            let now = remote.everything().await.ok()?;
            let events = before.map(|before| changes(&before, &now)).unwrap_or_default();
            Some((futures::stream::iter(events), (remote, Some(now))))
        });
        lists.flatten().boxed()
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Known {
    uid: String,
    state: ContainerState,
}

/// What happened between two lists.
fn changes(before: &HashMap<String, Known>, now: &HashMap<String, Known>) -> Vec<ContainerEvent> {
    let event = |id: &str, known: &Known, event_type| {
        let metadata = PodSandboxMetadata { uid: known.uid.clone(), ..PodSandboxMetadata::default() };
        let of = PodSandboxStatus { metadata, ..PodSandboxStatus::default() };
        ContainerEvent {
            container_id: id.to_owned(),
            event_type,
            created_at: 0,
            pod_sandbox_status: (!known.uid.is_empty()).then_some(of),
            containers_statuses: Vec::new(),
        }
    };
    let mut events = Vec::new();
    for (id, known) in now {
        let kind = match (before.get(id).map(|old| old.state), known.state) {
            (Some(old), new) if old == new => continue,
            (_, ContainerState::Created) => ContainerEventType::Created,
            (_, ContainerState::Running) => ContainerEventType::Started,
            (_, ContainerState::Exited | ContainerState::Unknown) => ContainerEventType::Stopped,
        };
        events.push(event(id, known, kind));
    }
    let gone = before.iter().filter(|(id, _)| !now.contains_key(*id));
    events.extend(gone.map(|(id, known)| event(id, known, ContainerEventType::Deleted)));
    events
}

impl RuntimeService for Remote {
    fn version(&self) -> BoxFuture<'_, Result<VersionInfo>> {
        Box::pin(async move {
            let request = wire::VersionRequest { version: "0.1.0".into() };
            let answer: wire::VersionResponse = self.call("Version", ("runtime", ""), request, LIMIT).await?;
            Ok(VersionInfo {
                runtime_name: answer.runtime_name,
                runtime_version: answer.runtime_version,
                runtime_api_version: answer.runtime_api_version,
            })
        })
    }

    fn status(&self) -> BoxFuture<'_, Result<RuntimeStatus>> {
        Box::pin(async move {
            let request = wire::StatusRequest::default();
            let answer: wire::StatusResponse = self.call("Status", ("runtime", ""), request, LIMIT).await?;
            let handler = answer.runtime_handlers.iter().find(|one| one.name.is_empty());
            let features = handler.and_then(|one| one.features.as_ref());
            let user_namespaces = features.is_some_and(|features| features.user_namespaces);
            let status: RuntimeStatus =
                answer.status.ok_or_else(|| missing("Status"))?.try_into().map_err(bad("Status"))?;
            Ok(RuntimeStatus { user_namespaces, ..status })
        })
    }

    fn run_pod_sandbox<'a>(&'a self, config: &'a PodSandboxConfig) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let request = wire::RunPodSandboxRequest {
                config: Some(config.clone().into()),
                runtime_handler: config.runtime_handler.clone(),
            };
            let of = ("sandbox", config.metadata.name.as_str());
            let answer: wire::RunPodSandboxResponse =
                self.call("RunPodSandbox", of, request, SANDBOX_LIMIT).await?;
            Ok(answer.pod_sandbox_id)
        })
    }

    fn stop_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::StopPodSandboxRequest { pod_sandbox_id: sandbox_id.to_owned() };
            let answer: Result<wire::StopPodSandboxResponse> =
                self.call("StopPodSandbox", ("sandbox", sandbox_id), request, LIMIT).await;
            absent_is_done(answer)
        })
    }

    fn remove_pod_sandbox<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // Other runtimes refuse to remove what was not stopped.
            self.stop_pod_sandbox(sandbox_id).await?;
            let request = wire::RemovePodSandboxRequest { pod_sandbox_id: sandbox_id.to_owned() };
            let answer: Result<wire::RemovePodSandboxResponse> =
                self.call("RemovePodSandbox", ("sandbox", sandbox_id), request, LIMIT).await;
            absent_is_done(answer)
        })
    }

    fn pod_sandbox_status<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStatus>> {
        Box::pin(async move {
            let request =
                wire::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.to_owned(), verbose: false };
            let answer: wire::PodSandboxStatusResponse =
                self.call("PodSandboxStatus", ("sandbox", sandbox_id), request, LIMIT).await?;
            answer
                .status
                .ok_or_else(|| missing("PodSandboxStatus"))?
                .try_into()
                .map_err(bad("PodSandboxStatus"))
        })
    }

    fn list_pod_sandboxes<'a>(
        &'a self,
        filter: &'a PodSandboxFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandbox>>> {
        Box::pin(self.sandboxes(filter))
    }

    fn create_container<'a>(
        &'a self,
        sandbox_id: &'a str,
        config: &'a ContainerConfig,
        sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let request = wire::CreateContainerRequest {
                pod_sandbox_id: sandbox_id.to_owned(),
                config: Some(config.clone().into()),
                sandbox_config: Some(sandbox_config.clone().into()),
            };
            let answer: wire::CreateContainerResponse =
                self.call("CreateContainer", ("sandbox", sandbox_id), request, LIMIT).await?;
            Ok(answer.container_id)
        })
    }

    fn start_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::StartContainerRequest { container_id: container_id.to_owned() };
            let answer: Result<wire::StartContainerResponse> =
                self.call("StartContainer", ("container", container_id), request, LIMIT).await;
            answer.map(drop)
        })
    }

    fn stop_container<'a>(&'a self, container_id: &'a str, timeout: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::StopContainerRequest {
                container_id: container_id.to_owned(),
                timeout: seconds(timeout),
            };
            let limit = timeout.saturating_add(LIMIT);
            let answer: Result<wire::StopContainerResponse> =
                self.call("StopContainer", ("container", container_id), request, limit).await;
            absent_is_done(answer)
        })
    }

    fn remove_container<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::RemoveContainerRequest { container_id: container_id.to_owned() };
            let answer: Result<wire::RemoveContainerResponse> =
                self.call("RemoveContainer", ("container", container_id), request, LIMIT).await;
            absent_is_done(answer)
        })
    }

    fn list_containers<'a>(&'a self, filter: &'a ContainerFilter) -> BoxFuture<'a, Result<Vec<Container>>> {
        Box::pin(self.containers(filter))
    }

    fn container_status<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStatus>> {
        Box::pin(async move {
            let request =
                wire::ContainerStatusRequest { container_id: container_id.to_owned(), verbose: false };
            let answer: wire::ContainerStatusResponse =
                self.call("ContainerStatus", ("container", container_id), request, LIMIT).await?;
            answer
                .status
                .ok_or_else(|| missing("ContainerStatus"))?
                .try_into()
                .map_err(bad("ContainerStatus"))
        })
    }

    fn update_container_resources<'a>(
        &'a self,
        container_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::UpdateContainerResourcesRequest {
                container_id: container_id.to_owned(),
                linux: Some(resources.clone().into()),
                ..Default::default()
            };
            let answer: Result<wire::UpdateContainerResourcesResponse> =
                self.call("UpdateContainerResources", ("container", container_id), request, LIMIT).await;
            answer.map(drop)
        })
    }

    fn update_pod_sandbox_resources<'a>(
        &'a self,
        sandbox_id: &'a str,
        resources: &'a LinuxContainerResources,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::UpdatePodSandboxResourcesRequest {
                pod_sandbox_id: sandbox_id.to_owned(),
                overhead: None,
                resources: Some(resources.clone().into()),
            };
            let answer: Result<wire::UpdatePodSandboxResourcesResponse> =
                self.call("UpdatePodSandboxResources", ("sandbox", sandbox_id), request, LIMIT).await;
            match answer {
                // Older runtimes need not be told: the kubelet has set the pod's cgroup itself.
                Err(Error::Unsupported(_)) => Ok(()),
                other => other.map(drop),
            }
        })
    }

    fn exec_sync<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutput>> {
        Box::pin(async move {
            let request = wire::ExecSyncRequest {
                container_id: container_id.to_owned(),
                cmd: command.to_vec(),
                timeout: seconds(timeout),
            };
            let limit = if timeout.is_zero() { PULL_LIMIT } else { timeout.saturating_add(LIMIT) };
            let answer: wire::ExecSyncResponse =
                self.call("ExecSync", ("container", container_id), request, limit).await?;
            Ok(ExecOutput {
                stdout: answer.stdout.into(),
                stderr: answer.stderr.into(),
                exit_code: answer.exit_code,
            })
        })
    }

    fn exec<'a>(
        &'a self,
        container_id: &'a str,
        command: &'a [String],
        options: ExecOptions,
    ) -> BoxFuture<'a, Result<Session>> {
        Box::pin(async move {
            let ExecOptions { tty, stdin, stdout, stderr } = options;
            let request = wire::ExecRequest {
                container_id: container_id.to_owned(),
                cmd: command.to_vec(),
                tty,
                stdin,
                stdout,
                stderr: stderr && !tty,
            };
            let answer: wire::ExecResponse =
                self.call("Exec", ("container", container_id), request, LIMIT).await?;
            let streams = Streams { stdin, stdout, stderr, tty };
            dial::session(&answer.url, streams, &self.tasks)
                .await
                .map_err(|error| Error::failed("Exec", error))
        })
    }

    fn attach<'a>(&'a self, container_id: &'a str, options: AttachOptions) -> BoxFuture<'a, Result<Session>> {
        Box::pin(async move {
            // Whether there is a terminal is the container's own setting, which the kubelet's labels keep for us.
            let status = self.container_status(container_id).await?;
            let tty = status.annotations.get(TTY_ANNOTATION).is_some_and(|text| text == "true");
            let AttachOptions { stdin, stdout, stderr } = options;
            let request = wire::AttachRequest {
                container_id: container_id.to_owned(),
                stdin,
                tty,
                stdout,
                stderr: stderr && !tty,
            };
            let answer: wire::AttachResponse =
                self.call("Attach", ("container", container_id), request, LIMIT).await?;
            let streams = Streams { stdin, stdout, stderr, tty };
            let session = dial::session(&answer.url, streams, &self.tasks).await;
            session.map_err(|error| Error::failed("Attach", error))
        })
    }

    fn port_forward<'a>(&'a self, sandbox_id: &'a str, port: u16) -> BoxFuture<'a, Result<Duplex>> {
        Box::pin(async move {
            let request =
                wire::PortForwardRequest { pod_sandbox_id: sandbox_id.to_owned(), port: vec![port.into()] };
            let answer: wire::PortForwardResponse =
                self.call("PortForward", ("sandbox", sandbox_id), request, LIMIT).await?;
            dial::port(&answer.url, port, &self.tasks)
                .await
                .map_err(|error| Error::failed("PortForward", error))
        })
    }

    fn container_stats<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<ContainerStats>> {
        Box::pin(async move {
            let request = wire::ContainerStatsRequest { container_id: container_id.to_owned() };
            let answer: wire::ContainerStatsResponse =
                self.call("ContainerStats", ("container", container_id), request, LIMIT).await?;
            answer.stats.ok_or_else(|| missing("ContainerStats"))?.try_into().map_err(bad("ContainerStats"))
        })
    }

    fn list_container_stats<'a>(
        &'a self,
        filter: &'a ContainerStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<ContainerStats>>> {
        Box::pin(async move {
            let request = wire::ListContainerStatsRequest { filter: Some(filter.clone().into()) };
            let answer: wire::ListContainerStatsResponse =
                self.call("ListContainerStats", ("container", ""), request, LIMIT).await?;
            all("ListContainerStats", answer.stats)
        })
    }

    fn pod_sandbox_stats<'a>(&'a self, sandbox_id: &'a str) -> BoxFuture<'a, Result<PodSandboxStats>> {
        Box::pin(async move {
            let request = wire::PodSandboxStatsRequest { pod_sandbox_id: sandbox_id.to_owned() };
            let answer: wire::PodSandboxStatsResponse =
                self.call("PodSandboxStats", ("sandbox", sandbox_id), request, LIMIT).await?;
            answer.stats.ok_or_else(|| missing("PodSandboxStats"))?.try_into().map_err(bad("PodSandboxStats"))
        })
    }

    fn list_pod_sandbox_stats<'a>(
        &'a self,
        filter: &'a PodSandboxStatsFilter,
    ) -> BoxFuture<'a, Result<Vec<PodSandboxStats>>> {
        Box::pin(async move {
            let request = wire::ListPodSandboxStatsRequest { filter: Some(filter.clone().into()) };
            let answer: wire::ListPodSandboxStatsResponse =
                self.call("ListPodSandboxStats", ("sandbox", ""), request, LIMIT).await?;
            all("ListPodSandboxStats", answer.stats)
        })
    }

    fn reopen_container_log<'a>(&'a self, container_id: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::ReopenContainerLogRequest { container_id: container_id.to_owned() };
            let answer: Result<wire::ReopenContainerLogResponse> =
                self.call("ReopenContainerLog", ("container", container_id), request, LIMIT).await;
            answer.map(drop)
        })
    }

    fn update_pod_cidr<'a>(&'a self, pod_cidr: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let network_config = Some(wire::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
            let request = wire::UpdateRuntimeConfigRequest {
                runtime_config: Some(wire::RuntimeConfig { network_config }),
            };
            let answer: Result<wire::UpdateRuntimeConfigResponse> =
                self.call("UpdateRuntimeConfig", ("runtime", ""), request, LIMIT).await;
            answer.map(drop)
        })
    }

    fn events(&self) -> BoxFuture<'_, Result<BoxStream<'static, ContainerEvent>>> {
        Box::pin(async move {
            let channel = self.runtime.clone();
            let mut opening = Box::pin(async move {
                let path = format!("{RUNTIME_SERVICE}GetContainerEvents");
                channel.stream(&path, &wire::GetEventsRequest {}).await
            });
            // A server may keep silent until its first event; a refusal comes at once.
            let messages = match tokio::time::timeout(REFUSAL, &mut opening).await {
                Ok(Err(status)) if status.code == code::UNIMPLEMENTED => return Ok(self.relist()),
                Ok(Err(status)) => return Err(error("GetContainerEvents", "runtime", "", status)),
                Ok(Ok(messages)) => futures::future::ready(Ok(messages)).left_future(),
                Err(_) => opening.right_future(),
            };
            let events = futures::stream::once(messages).flat_map(|opened| match opened {
                Ok(messages) => futures::stream::unfold(messages, |mut messages| async move {
                    let event = messages.next::<wire::ContainerEventResponse>().await.ok()??;
                    Some((ContainerEvent::try_from(event).ok(), messages))
                })
                .filter_map(futures::future::ready)
                .boxed(),
                Err(_) => futures::stream::empty().boxed(),
            });
            Ok(events.boxed())
        })
    }
}

/// Where the kubelet writes that a container has a terminal.
pub const TTY_ANNOTATION: &str = "io.kubernetes.container.tty";

fn absent_is_done<T>(answer: Result<T>) -> Result<()> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}

impl ImageService for Remote {
    fn list_images<'a>(&'a self, filter: &'a ImageFilter) -> BoxFuture<'a, Result<Vec<Image>>> {
        Box::pin(async move {
            let image = (!filter.image.image.is_empty()).then(|| filter.image.clone().into());
            let request = wire::ListImagesRequest { filter: Some(wire::ImageFilter { image }) };
            let answer: wire::ListImagesResponse = self
                .image_call("ListImages", "", request, LIMIT)
                .await
                .map_err(|status| error("ListImages", "image", "", status))?;
            all("ListImages", answer.images)
        })
    }

    fn image_status<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<Option<Image>>> {
        Box::pin(async move {
            let request = wire::ImageStatusRequest { image: Some(image.clone().into()), verbose: false };
            let answer: wire::ImageStatusResponse = self
                .image_call("ImageStatus", &image.image, request, LIMIT)
                .await
                .map_err(|status| error("ImageStatus", "image", &image.image, status))?;
            answer.image.map(|image| image.try_into().map_err(bad("ImageStatus"))).transpose()
        })
    }

    fn pull_image<'a>(
        &'a self,
        image: &'a ImageSpec,
        auth: Option<&'a AuthConfig>,
        sandbox_config: &'a PodSandboxConfig,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let request = wire::PullImageRequest {
                image: Some(image.clone().into()),
                auth: auth.cloned().map(Into::into),
                sandbox_config: Some(sandbox_config.clone().into()),
            };
            let answer: std::result::Result<wire::PullImageResponse, Status> =
                self.image_call("PullImage", &image.image, request, PULL_LIMIT).await;
            match answer {
                Ok(answer) => Ok(answer.image_ref),
                Err(status) => {
                    let (image, reason) = (image.image.clone(), status.message.into_owned());
                    // Known by its first word, on both sides.
                    if reason.starts_with("RegistryUnavailable") {
                        return Err(Error::RegistryUnavailable { image, reason });
                    }
                    Err(Error::ImagePull { image, reason })
                }
            }
        })
    }

    fn remove_image<'a>(&'a self, image: &'a ImageSpec) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let request = wire::RemoveImageRequest { image: Some(image.clone().into()) };
            let answer: std::result::Result<wire::RemoveImageResponse, Status> =
                self.image_call("RemoveImage", &image.image, request, LIMIT).await;
            absent_is_done(answer.map_err(|status| error("RemoveImage", "image", &image.image, status)))
        })
    }

    fn image_fs_info(&self) -> BoxFuture<'_, Result<ImageFsInfo>> {
        Box::pin(async move {
            let answer: wire::ImageFsInfoResponse = self
                .image_call("ImageFsInfo", "", wire::ImageFsInfoRequest {}, LIMIT)
                .await
                .map_err(|status| error("ImageFsInfo", "image", "", status))?;
            Ok(ImageFsInfo {
                image_filesystems: all("ImageFsInfo", answer.image_filesystems)?,
                container_filesystems: all("ImageFsInfo", answer.container_filesystems)?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_between_two_lists_is_told_once() {
        let known = |uid: &str, state| Known { uid: uid.into(), state };
        let before: HashMap<String, Known> = [
            ("same".to_owned(), known("u", ContainerState::Running)),
            ("ends".to_owned(), known("u", ContainerState::Running)),
            ("gone".to_owned(), known("v", ContainerState::Exited)),
        ]
        .into();
        let now: HashMap<String, Known> = [
            ("same".to_owned(), known("u", ContainerState::Running)),
            ("ends".to_owned(), known("u", ContainerState::Exited)),
            ("new".to_owned(), known("w", ContainerState::Running)),
        ]
        .into();
        let mut told: Vec<String> = changes(&before, &now)
            .into_iter()
            .map(|event| {
                let uid = event.pod_sandbox_status.unwrap().metadata.uid;
                format!("{} {:?} of {uid}", event.container_id, event.event_type)
            })
            .collect();
        told.sort();
        assert_eq!(told, ["ends Stopped of u", "gone Deleted of v", "new Started of w"]);
        assert!(changes(&now, &now).is_empty());
    }

    #[test]
    fn an_endpoint_is_a_path() {
        assert_eq!(socket("unix:///run/x.sock"), Some(Path::new("/run/x.sock")));
        assert_eq!(socket("/run/x.sock"), Some(Path::new("/run/x.sock")));
        assert_eq!((socket("tcp://x"), socket("npipe://x")), (None, None));
    }
}
