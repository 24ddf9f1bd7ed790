//! The two services on a socket: CRI v1 over gRPC, for whoever speaks it (upstream's kubelet, crictl).
//!
//! Each method is one arm: read the request, call the trait, write the answer. Exec, attach and port-forward answer with a
//! URL; [`Streams`] makes it and serves what is behind it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use grpc::frame::framed;
use grpc::server::{Answer, Service};
use grpc::status::{self, Status, code};
use prost::Message;

use crate::wire;
use crate::wire::convert::BadMessage;
use crate::wire::{IMAGE_SERVICE, RUNTIME_SERVICE};
use crate::{AttachOptions, Error, ExecOptions, ImageService, PodSandboxConfig, RuntimeService};

/// Makes URLs at which streams can be had, once each.
pub trait Streams: Send + Sync {
    /// Of a command.
    fn exec(&self, container_id: &str, command: &[String], options: ExecOptions) -> Result<String, Error>;
    /// Of a container's own streams.
    fn attach(&self, container_id: &str, options: AttachOptions, tty: bool) -> Result<String, Error>;
    /// Of ports of a pod.
    fn port_forward(&self, sandbox_id: &str, ports: &[u16]) -> Result<String, Error>;
}

/// What is served.
#[derive(Clone)]
pub struct CriServer {
    /// Pods and containers.
    pub runtime: Arc<dyn RuntimeService>,
    /// Images.
    pub images: Arc<dyn ImageService>,
    /// Streams.
    pub streams: Arc<dyn Streams>,
}

impl From<BadMessage> for Status {
    fn from(error: BadMessage) -> Self {
        let code = match error {
            BadMessage::Unsupported(_) => code::UNIMPLEMENTED,
            _ => code::INVALID_ARGUMENT,
        };
        Self::new(code, error.to_string())
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NotFound { .. } => code::NOT_FOUND,
            Error::InvalidArgument { .. } => code::INVALID_ARGUMENT,
            Error::FailedPrecondition { .. } => code::FAILED_PRECONDITION,
            Error::DeadlineExceeded { .. } => code::DEADLINE_EXCEEDED,
            Error::Unsupported(_) => code::UNIMPLEMENTED,
            _ => code::UNKNOWN,
        };
        // Upstream's kubelet knows it by its first word.
        let word =
            if matches!(error, Error::RegistryUnavailable { .. }) { "RegistryUnavailable: " } else { "" };
        let mut text = format!("{word}{error}");
        let mut source = std::error::Error::source(&error);
        while let Some(inner) = source {
            text.push_str(&format!(": {inner}"));
            source = inner.source();
        }
        Self::new(code, text)
    }
}

impl Service for CriServer {
    fn call(&self, path: &str, request: Bytes) -> BoxFuture<'static, Result<Answer, Status>> {
        let (server, path) = (self.clone(), path.to_owned());
        Box::pin(async move {
            if let Some(method) = path.strip_prefix(RUNTIME_SERVICE) {
                server.runtime_call(method, request).await
            } else if let Some(method) = path.strip_prefix(IMAGE_SERVICE) {
                server.image_call(method, request).await
            } else {
                Err(status::UNKNOWN_METHOD)
            }
        })
    }
}

fn read<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|_| status::MALFORMED)
}

fn one(message: impl Message) -> Result<Answer, Status> {
    Ok(Answer::One(framed(&message)))
}

/// Messages of a list, in one answer each: streams of lists exist for lists that are too long for one message.
fn many<T: Send + 'static, M: Message + 'static>(
    list: Vec<T>,
    wrap: impl Fn(Vec<T>) -> M,
) -> Result<Answer, Status> {
    const PART: usize = 256;
    let mut parts = Vec::new();
    let mut list = list.into_iter().peekable();
    while list.peek().is_some() {
        parts.push(Ok(framed(&wrap(list.by_ref().take(PART).collect()))));
    }
    Ok(Answer::Many(futures::stream::iter(parts).boxed()))
}

fn list<T, U: From<T>>(items: Vec<T>) -> Vec<U> {
    items.into_iter().map(Into::into).collect()
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or(0))
}

fn needed<T>(message: Option<T>, what: &'static str) -> Result<T, Status> {
    message.ok_or(BadMessage::Missing(what)).map_err(Into::into)
}

impl CriServer {
    async fn runtime_call(&self, method: &str, bytes: Bytes) -> Result<Answer, Status> {
        let runtime = self.runtime.as_ref();
        match method {
            "Version" => {
                let version = runtime.version().await?;
                one(wire::VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: version.runtime_name,
                    runtime_version: version.runtime_version,
                    runtime_api_version: version.runtime_api_version,
                })
            }
            "Status" => {
                let status = runtime.status().await?;
                let user_namespaces = status.user_namespaces;
                one(wire::StatusResponse {
                    status: Some(status.into()),
                    runtime_handlers: vec![wire::RuntimeHandler {
                        name: String::new(),
                        features: Some(wire::RuntimeHandlerFeatures {
                            recursive_read_only_mounts: true,
                            user_namespaces,
                        }),
                    }],
                    features: Some(wire::RuntimeFeatures {
                        supplemental_groups_policy: true,
                        ..Default::default()
                    }),
                    ..Default::default()
                })
            }
            "RuntimeConfig" => one(wire::RuntimeConfigResponse {
                linux: Some(wire::LinuxRuntimeConfiguration {
                    cgroup_driver: wire::CgroupDriver::Cgroupfs as i32,
                }),
            }),
            "UpdateRuntimeConfig" => {
                let request: wire::UpdateRuntimeConfigRequest = read(bytes)?;
                let config = request.runtime_config.and_then(|config| config.network_config);
                runtime.update_pod_cidr(&config.unwrap_or_default().pod_cidr).await?;
                one(wire::UpdateRuntimeConfigResponse {})
            }
            "RunPodSandbox" => {
                let request: wire::RunPodSandboxRequest = read(bytes)?;
                let config = needed(request.config, "config")?;
                if config.windows.is_some() {
                    return Err(BadMessage::Unsupported("windows").into());
                }
                let mut config: PodSandboxConfig = config.try_into()?;
                config.runtime_handler = request.runtime_handler;
                one(wire::RunPodSandboxResponse { pod_sandbox_id: runtime.run_pod_sandbox(&config).await? })
            }
            "StopPodSandbox" => {
                let request: wire::StopPodSandboxRequest = read(bytes)?;
                runtime.stop_pod_sandbox(&request.pod_sandbox_id).await?;
                one(wire::StopPodSandboxResponse {})
            }
            "RemovePodSandbox" => {
                let request: wire::RemovePodSandboxRequest = read(bytes)?;
                runtime.remove_pod_sandbox(&request.pod_sandbox_id).await?;
                one(wire::RemovePodSandboxResponse {})
            }
            "PodSandboxStatus" => {
                let request: wire::PodSandboxStatusRequest = read(bytes)?;
                let status = runtime.pod_sandbox_status(&request.pod_sandbox_id).await?;
                let info = match (request.verbose, status.pid) {
                    (true, Some(pid)) => [("info".to_owned(), format!("{{\"pid\":{pid}}}"))].into(),
                    _ => Default::default(),
                };
                let filter =
                    crate::ContainerFilter { pod_sandbox_id: Some(status.id.clone()), ..Default::default() };
                let mut statuses = Vec::new();
                for container in runtime.list_containers(&filter).await? {
                    // Gone since it was listed: not there.
                    statuses.extend(runtime.container_status(&container.id).await.ok());
                }
                one(wire::PodSandboxStatusResponse {
                    status: Some(status.into()),
                    info,
                    containers_statuses: list(statuses),
                    timestamp: now(),
                })
            }
            "ListPodSandbox" => {
                let request: wire::ListPodSandboxRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().try_into()?;
                one(wire::ListPodSandboxResponse { items: list(runtime.list_pod_sandboxes(&filter).await?) })
            }
            "StreamPodSandboxes" => {
                let request: wire::StreamPodSandboxesRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().try_into()?;
                many(list(runtime.list_pod_sandboxes(&filter).await?), |pod_sandboxes| {
                    wire::StreamPodSandboxesResponse { pod_sandboxes }
                })
            }
            "UpdatePodSandboxResources" => {
                let request: wire::UpdatePodSandboxResourcesRequest = read(bytes)?;
                // The resources hold the overhead already; it is told apart for runtimes that keep it elsewhere.
                let resources = needed(request.resources, "resources")?.try_into()?;
                runtime.update_pod_sandbox_resources(&request.pod_sandbox_id, &resources).await?;
                one(wire::UpdatePodSandboxResourcesResponse {})
            }
            "GetContainerEvents" => {
                let events = runtime.events().await?;
                let messages = events.map(|event| Ok(framed(&wire::ContainerEventResponse::from(event))));
                Ok(Answer::Many(messages.boxed()))
            }
            _ => self.container_call(method, bytes).await,
        }
    }

    async fn container_call(&self, method: &str, bytes: Bytes) -> Result<Answer, Status> {
        let runtime = self.runtime.as_ref();
        match method {
            "CreateContainer" => {
                let request: wire::CreateContainerRequest = read(bytes)?;
                let config = needed(request.config, "config")?;
                if !config.cdi_devices.is_empty() {
                    return Err(BadMessage::Unsupported("cdi_devices").into());
                }
                let config = config.try_into()?;
                let sandbox = request.sandbox_config.unwrap_or_default().try_into()?;
                let id = runtime.create_container(&request.pod_sandbox_id, &config, &sandbox).await?;
                one(wire::CreateContainerResponse { container_id: id })
            }
            "StartContainer" => {
                let request: wire::StartContainerRequest = read(bytes)?;
                runtime.start_container(&request.container_id).await?;
                one(wire::StartContainerResponse {})
            }
            "StopContainer" => {
                let request: wire::StopContainerRequest = read(bytes)?;
                runtime.stop_container(&request.container_id, seconds(request.timeout)).await?;
                one(wire::StopContainerResponse {})
            }
            "RemoveContainer" => {
                let request: wire::RemoveContainerRequest = read(bytes)?;
                runtime.remove_container(&request.container_id).await?;
                one(wire::RemoveContainerResponse {})
            }
            "ListContainers" => {
                let request: wire::ListContainersRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().try_into()?;
                one(wire::ListContainersResponse {
                    containers: list(runtime.list_containers(&filter).await?),
                })
            }
            "StreamContainers" => {
                let request: wire::StreamContainersRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().try_into()?;
                many(list(runtime.list_containers(&filter).await?), |containers| {
                    wire::StreamContainersResponse { containers }
                })
            }
            "ContainerStatus" => {
                let request: wire::ContainerStatusRequest = read(bytes)?;
                let status = runtime.container_status(&request.container_id).await?;
                let info = match (request.verbose, status.pid) {
                    (true, Some(pid)) => {
                        let text = format!("{{\"sandboxID\":{:?},\"pid\":{pid}}}", status.pod_sandbox_id);
                        [("info".to_owned(), text)].into()
                    }
                    _ => Default::default(),
                };
                one(wire::ContainerStatusResponse { status: Some(status.into()), info })
            }
            "UpdateContainerResources" => {
                let request: wire::UpdateContainerResourcesRequest = read(bytes)?;
                let resources = needed(request.linux, "linux")?.try_into()?;
                runtime.update_container_resources(&request.container_id, &resources).await?;
                one(wire::UpdateContainerResourcesResponse {})
            }
            "ReopenContainerLog" => {
                let request: wire::ReopenContainerLogRequest = read(bytes)?;
                runtime.reopen_container_log(&request.container_id).await?;
                one(wire::ReopenContainerLogResponse {})
            }
            "ExecSync" => {
                let request: wire::ExecSyncRequest = read(bytes)?;
                let output =
                    runtime.exec_sync(&request.container_id, &request.cmd, seconds(request.timeout)).await?;
                one(wire::ExecSyncResponse {
                    stdout: output.stdout.into(),
                    stderr: output.stderr.into(),
                    exit_code: output.exit_code,
                })
            }
            "Exec" => {
                let request: wire::ExecRequest = read(bytes)?;
                let wire::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = request;
                runtime.container_status(&container_id).await?;
                let options = ExecOptions { tty, stdin, stdout, stderr };
                one(wire::ExecResponse { url: self.streams.exec(&container_id, &cmd, options)? })
            }
            "Attach" => {
                let request: wire::AttachRequest = read(bytes)?;
                let wire::AttachRequest { container_id, stdin, tty, stdout, stderr } = request;
                runtime.container_status(&container_id).await?;
                let options = AttachOptions { stdin, stdout, stderr };
                one(wire::AttachResponse { url: self.streams.attach(&container_id, options, tty)? })
            }
            "PortForward" => {
                let request: wire::PortForwardRequest = read(bytes)?;
                runtime.pod_sandbox_status(&request.pod_sandbox_id).await?;
                let port = |number: &i32| {
                    u16::try_from(*number).map_err(|_| BadMessage::Number { what: "port", number: *number })
                };
                let ports = request.port.iter().map(port).collect::<Result<Vec<u16>, _>>()?;
                one(wire::PortForwardResponse {
                    url: self.streams.port_forward(&request.pod_sandbox_id, &ports)?,
                })
            }
            _ => self.stats_call(method, bytes).await,
        }
    }

    async fn stats_call(&self, method: &str, bytes: Bytes) -> Result<Answer, Status> {
        let runtime = self.runtime.as_ref();
        match method {
            "ContainerStats" => {
                let request: wire::ContainerStatsRequest = read(bytes)?;
                let stats = runtime.container_stats(&request.container_id).await?;
                one(wire::ContainerStatsResponse { stats: Some(stats.into()) })
            }
            "ListContainerStats" => {
                let request: wire::ListContainerStatsRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().into();
                one(wire::ListContainerStatsResponse {
                    stats: list(runtime.list_container_stats(&filter).await?),
                })
            }
            "StreamContainerStats" => {
                let request: wire::StreamContainerStatsRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().into();
                many(list(runtime.list_container_stats(&filter).await?), |container_stats| {
                    wire::StreamContainerStatsResponse { container_stats }
                })
            }
            "PodSandboxStats" => {
                let request: wire::PodSandboxStatsRequest = read(bytes)?;
                let stats = runtime.pod_sandbox_stats(&request.pod_sandbox_id).await?;
                one(wire::PodSandboxStatsResponse { stats: Some(stats.into()) })
            }
            "ListPodSandboxStats" => {
                let request: wire::ListPodSandboxStatsRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().into();
                one(wire::ListPodSandboxStatsResponse {
                    stats: list(runtime.list_pod_sandbox_stats(&filter).await?),
                })
            }
            "StreamPodSandboxStats" => {
                let request: wire::StreamPodSandboxStatsRequest = read(bytes)?;
                let filter = request.filter.unwrap_or_default().into();
                many(list(runtime.list_pod_sandbox_stats(&filter).await?), |pod_sandbox_stats| {
                    wire::StreamPodSandboxStatsResponse { pod_sandbox_stats }
                })
            }
            "ListMetricDescriptors" => one(wire::ListMetricDescriptorsResponse::default()),
            "ListPodSandboxMetrics" => one(wire::ListPodSandboxMetricsResponse::default()),
            "CheckpointContainer" => {
                Err(Status::new(code::UNIMPLEMENTED, "method CheckpointContainer not implemented"))
            }
            _ => Err(status::UNKNOWN_METHOD),
        }
    }

    async fn image_call(&self, method: &str, bytes: Bytes) -> Result<Answer, Status> {
        let images = self.images.as_ref();
        match method {
            "ListImages" => {
                let request: wire::ListImagesRequest = read(bytes)?;
                let image = request.filter.and_then(|filter| filter.image).unwrap_or_default().try_into()?;
                let found = images.list_images(&crate::ImageFilter { image }).await?;
                one(wire::ListImagesResponse { images: list(found) })
            }
            "StreamImages" => {
                let request: wire::StreamImagesRequest = read(bytes)?;
                let image = request.filter.and_then(|filter| filter.image).unwrap_or_default().try_into()?;
                let found = images.list_images(&crate::ImageFilter { image }).await?;
                many(list(found), |images| wire::StreamImagesResponse { images })
            }
            "ImageStatus" => {
                let request: wire::ImageStatusRequest = read(bytes)?;
                let spec = needed(request.image, "image")?.try_into()?;
                let image = images.image_status(&spec).await?.map(Into::into);
                one(wire::ImageStatusResponse { image, ..Default::default() })
            }
            "PullImage" => {
                let request: wire::PullImageRequest = read(bytes)?;
                let spec = needed(request.image, "image")?.try_into()?;
                let auth: Option<crate::AuthConfig> = request.auth.map(TryInto::try_into).transpose()?;
                let sandbox = request.sandbox_config.unwrap_or_default().try_into()?;
                let image_ref = images.pull_image(&spec, auth.as_ref(), &sandbox).await?;
                one(wire::PullImageResponse { image_ref })
            }
            "RemoveImage" => {
                let request: wire::RemoveImageRequest = read(bytes)?;
                let spec = needed(request.image, "image")?.try_into()?;
                images.remove_image(&spec).await?;
                one(wire::RemoveImageResponse {})
            }
            "ImageFsInfo" => {
                let info = images.image_fs_info().await?;
                one(wire::ImageFsInfoResponse {
                    image_filesystems: list(info.image_filesystems),
                    container_filesystems: list(info.container_filesystems),
                })
            }
            _ => Err(status::UNKNOWN_METHOD),
        }
    }
}

/// Nanoseconds since the epoch.
fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
