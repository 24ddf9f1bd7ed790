//! The runtime over a socket, as another kubelet sees it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use cri::server::CriServer;
use cri::{ContainerEventType, ExecOptions, ImageService, ImageSpec, RuntimeService, wire};
use cri_streaming::remote::Remote;
use cri_streaming::urls::Urls;
use futures::StreamExt;
use grpc::channel::Channel;
use grpc::status::code;
use lifecycle::Tasks;
use tokio::io::AsyncReadExt;

use crate::fixture::Fixture;

crate::tests![
    a_pods_life_over_the_socket,
    streams_are_had_at_urls_that_work_once,
    the_client_of_a_kubelet_sees_what_the_runtime_has,
    bad_requests_have_their_codes
];

const LIMIT: Duration = Duration::from_secs(20);

struct Client {
    channel: Channel,
    tasks: Tasks,
}

impl Client {
    async fn start(fixture: &Fixture) -> Self {
        let tasks = Tasks::new();
        let socket = fixture.directory.path().join("cri.sock");
        let listener = grpc::server::bind(&socket).await.unwrap();
        let runtime = fixture.runtime.clone();
        let streams = Urls::start(runtime.clone(), &tasks).await.unwrap();
        let server = Arc::new(CriServer { runtime: runtime.clone(), images: runtime, streams });
        let calls = tasks.clone();
        tasks.spawn("server", |stop| grpc::server::serve(listener, server, calls, stop));
        assert!(grpc::server::bind(&socket).await.is_err(), "a socket that is answered is not taken over");
        Self { channel: Channel::new(&socket, &tasks), tasks }
    }

    async fn call<A: prost::Message + Default>(
        &self,
        method: &str,
        request: impl prost::Message,
    ) -> Result<A, grpc::Status> {
        let service =
            if method.contains("Image") { cri::wire::IMAGE_SERVICE } else { cri::wire::RUNTIME_SERVICE };
        self.channel.call(&format!("{service}{method}"), &request, LIMIT).await
    }

    async fn running(&self, fixture: &Fixture, args: &[&str]) -> (String, String) {
        let sandbox: wire::PodSandboxConfig = fixture.sandbox_config("pod").into();
        let request = wire::RunPodSandboxRequest { config: Some(sandbox.clone()), ..Default::default() };
        let run: wire::RunPodSandboxResponse = self.call("RunPodSandbox", request).await.unwrap();
        let request = wire::CreateContainerRequest {
            pod_sandbox_id: run.pod_sandbox_id.clone(),
            config: Some(fixture.container_config(args).into()),
            sandbox_config: Some(sandbox),
        };
        let created: wire::CreateContainerResponse = self.call("CreateContainer", request).await.unwrap();
        let request = wire::StartContainerRequest { container_id: created.container_id.clone() };
        let _: wire::StartContainerResponse = self.call("StartContainer", request).await.unwrap();
        (run.pod_sandbox_id, created.container_id)
    }
}

async fn a_pods_life_over_the_socket(fixture: &Fixture) {
    let client = Client::start(fixture).await;
    let version: wire::VersionResponse =
        client.call("Version", wire::VersionRequest::default()).await.unwrap();
    assert_eq!((version.runtime_name.as_str(), version.runtime_api_version.as_str()), ("kelson", "v1"));
    let status: wire::StatusResponse = client.call("Status", wire::StatusRequest::default()).await.unwrap();
    let conditions = status.status.unwrap().conditions;
    assert!(conditions.iter().any(|one| one.r#type == "RuntimeReady" && one.status), "{conditions:?}");

    let path = format!("{}GetContainerEvents", cri::wire::RUNTIME_SERVICE);
    let mut events = client.channel.stream(&path, &wire::GetEventsRequest {}).await.unwrap();
    let (sandbox, container) = client.running(fixture, &["sleep", "infinity"]).await;
    let started = loop {
        let event: wire::ContainerEventResponse =
            tokio::time::timeout(LIMIT, events.next()).await.unwrap().unwrap().unwrap();
        if event.container_id == container && event.container_event_type == 1 {
            break event;
        }
    };
    assert_eq!(started.pod_sandbox_status.unwrap().id, sandbox);

    let request = wire::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: true };
    let status: wire::PodSandboxStatusResponse = client.call("PodSandboxStatus", request).await.unwrap();
    assert!(status.info["info"].contains("pid"), "{:?}", status.info);
    assert_eq!(status.containers_statuses[0].id, container);
    let request = wire::ExecSyncRequest {
        container_id: container.clone(),
        cmd: vec!["/kelson".into(), "demo".into(), "echo".into(), "hello".into()],
        timeout: 10,
    };
    let output: wire::ExecSyncResponse = client.call("ExecSync", request).await.unwrap();
    assert_eq!((output.exit_code, &output.stdout[..]), (0, &b"hello\n"[..]));
    let request = wire::ContainerStatsRequest { container_id: container.clone() };
    let stats: wire::ContainerStatsResponse = client.call("ContainerStats", request).await.unwrap();
    assert_eq!(stats.stats.unwrap().attributes.unwrap().id, container);
    let request = wire::UpdateContainerResourcesRequest {
        container_id: container.clone(),
        linux: Some(wire::LinuxContainerResources { cpu_shares: 512, ..Default::default() }),
        ..Default::default()
    };
    let _: wire::UpdateContainerResourcesResponse =
        client.call("UpdateContainerResources", request).await.unwrap();
    let request = wire::ReopenContainerLogRequest { container_id: container.clone() };
    let _: wire::ReopenContainerLogResponse = client.call("ReopenContainerLog", request).await.unwrap();

    let images: wire::ListImagesResponse =
        client.call("ListImages", wire::ListImagesRequest::default()).await.unwrap();
    assert!(
        images.images.iter().any(|image| image.repo_tags.contains(&"kelson.local/demo:latest".to_owned()))
    );
    let info: wire::ImageFsInfoResponse =
        client.call("ImageFsInfo", wire::ImageFsInfoRequest {}).await.unwrap();
    assert_eq!(info.image_filesystems.len(), 1);

    let request = wire::StopContainerRequest { container_id: container.clone(), timeout: 0 };
    let _: wire::StopContainerResponse = client.call("StopContainer", request).await.unwrap();
    let request = wire::ContainerStatusRequest { container_id: container, verbose: false };
    let status: wire::ContainerStatusResponse = client.call("ContainerStatus", request).await.unwrap();
    assert_eq!((status.status.as_ref().unwrap().state, status.status.unwrap().exit_code), (2, 137));
    let request = wire::RemovePodSandboxRequest { pod_sandbox_id: sandbox };
    let _: wire::RemovePodSandboxResponse = client.call("RemovePodSandbox", request).await.unwrap();
    let list: wire::ListPodSandboxResponse =
        client.call("ListPodSandbox", wire::ListPodSandboxRequest::default()).await.unwrap();
    assert!(list.items.is_empty());
    client.tasks.drain(LIMIT).await;
}

async fn streams_are_had_at_urls_that_work_once(fixture: &Fixture) {
    let client = Client::start(fixture).await;
    let (_, container) = client.running(fixture, &["sleep", "infinity"]).await;
    let request = wire::ExecRequest {
        container_id: container,
        cmd: vec!["/kelson".into(), "demo".into(), "echo".into(), "hello".into()],
        stdout: true,
        ..Default::default()
    };
    let exec: wire::ExecResponse = client.call("Exec", request).await.unwrap();
    let url = exec.url.strip_prefix("http://").unwrap().to_owned();
    let ask = move || {
        let (address, path) = url.split_once('/').unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = format!(
            "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut all = Vec::new();
        let mut part = [0; 4096];
        loop {
            let count = stream.read(&mut part).unwrap_or(0);
            all.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&all).into_owned();
            if count == 0 || text.contains("Success") || text.contains("not found") {
                return text;
            }
        }
    };
    let again = ask.clone();
    let first = tokio::task::spawn_blocking(ask).await.unwrap();
    assert!(first.starts_with("HTTP/1.1 101") && first.contains("hello"), "{first}");
    let second = tokio::task::spawn_blocking(again).await.unwrap();
    assert!(second.starts_with("HTTP/1.1 404"), "{second}");
    client.tasks.drain(LIMIT).await;
}

/// The same traits over the socket, with streams dialled.
async fn the_client_of_a_kubelet_sees_what_the_runtime_has(fixture: &Fixture) {
    let client = Client::start(fixture).await;
    let socket = fixture.directory.path().join("cri.sock");
    let remote = Remote::new(&socket, &socket, &client.tasks);
    assert_eq!(remote.version().await.unwrap(), fixture.runtime.version().await.unwrap());
    assert_eq!(remote.status().await.unwrap(), fixture.runtime.status().await.unwrap());
    let mut events = remote.events().await.unwrap();
    let sandbox_config = fixture.sandbox_config("pod");
    let sandbox = remote.run_pod_sandbox(&sandbox_config).await.unwrap();
    let mut config = fixture.container_config(&["sleep", "infinity"]);
    config.linux.resources.memory_limit_in_bytes = 64 << 20;
    let container = remote.create_container(&sandbox, &config, &sandbox_config).await.unwrap();
    remote.start_container(&container).await.unwrap();
    let started = async {
        while let Some(event) = events.next().await {
            if event.container_id == container && event.event_type == ContainerEventType::Started {
                return event.pod_sandbox_status.unwrap().id;
            }
        }
        panic!("the events ended");
    };
    assert_eq!(tokio::time::timeout(LIMIT, started).await.unwrap(), sandbox);
    let (far, near) = (
        remote.container_status(&container).await.unwrap(),
        fixture.runtime.container_status(&container).await.unwrap(),
    );
    assert_eq!((far.state, far.started_at, &far.resources), (near.state, near.started_at, &near.resources));

    let words =
        |list: &[&str]| ["/kelson", "demo"].iter().chain(list).map(ToString::to_string).collect::<Vec<_>>();
    let output = remote.exec_sync(&container, &words(&["echo", "hello"]), LIMIT).await.unwrap();
    assert_eq!(&output.stdout[..], b"hello\n");
    let streams = ExecOptions { stdout: true, stderr: true, ..Default::default() };
    let mut session = remote.exec(&container, &words(&["echo", "streamed"]), streams).await.unwrap();
    let mut text = String::new();
    let mut stdout = session.stdout.take().unwrap();
    tokio::time::timeout(LIMIT, stdout.read_to_string(&mut text)).await.unwrap().unwrap();
    assert_eq!((text.as_str(), session.exit.await.unwrap()), ("streamed\n", 0));
    let session = remote.exec(&container, &words(&["fail", "7"]), streams).await.unwrap();
    assert_eq!(tokio::time::timeout(LIMIT, session.exit).await.unwrap().unwrap(), 7);

    let change = cri::LinuxContainerResources { memory_limit_in_bytes: 128 << 20, ..Default::default() };
    remote.update_pod_sandbox_resources(&sandbox, &change).await.unwrap();
    let stats = remote.pod_sandbox_stats(&sandbox).await.unwrap();
    assert_eq!(stats.containers[0].attributes.id, container);
    assert!(remote.image_status(&ImageSpec::from("kelson.local/demo")).await.unwrap().is_some());
    assert!(remote.image_status(&ImageSpec::from("kelson.local/none")).await.unwrap().is_none());
    remote.stop_container("none", Duration::ZERO).await.unwrap();
    remote.stop_container(&container, Duration::ZERO).await.unwrap();
    assert_eq!(remote.container_status(&container).await.unwrap().exit_code, 137);
    assert!(remote.container_status("none").await.unwrap_err().is_not_found());
    remote.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(remote.list_pod_sandboxes(&Default::default()).await.unwrap().is_empty());
    client.tasks.drain(LIMIT).await;
}

async fn bad_requests_have_their_codes(fixture: &Fixture) {
    let client = Client::start(fixture).await;
    let request = wire::ContainerStatusRequest { container_id: "none".into(), verbose: false };
    let error = client.call::<wire::ContainerStatusResponse>("ContainerStatus", request).await.unwrap_err();
    assert_eq!(error.code, code::NOT_FOUND);
    let error = client
        .call::<wire::RunPodSandboxResponse>("RunPodSandbox", wire::RunPodSandboxRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code, code::INVALID_ARGUMENT);
    let error = client
        .call::<wire::VersionResponse>("NoSuchMethod", wire::VersionRequest::default())
        .await
        .unwrap_err();
    assert_eq!(error.code, code::UNIMPLEMENTED);
    let request = wire::StartContainerRequest::default();
    let error =
        client.call::<wire::StartContainerResponse>("CheckpointContainer", request).await.unwrap_err();
    assert_eq!(error.code, code::UNIMPLEMENTED);
    let request = wire::StopContainerRequest { container_id: "none".into(), timeout: 0 };
    let _: wire::StopContainerResponse = client.call("StopContainer", request).await.unwrap();
    client.tasks.drain(LIMIT).await;
}
