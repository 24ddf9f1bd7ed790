//! What the actions do: calls of the runtime and of handlers, free of the worker's memory.

use super::*;

pub(super) fn addresses(sandbox: &PodSandboxStatus) -> Vec<std::net::IpAddr> {
    sandbox.network.ip.into_iter().chain(sandbox.network.additional_ips.iter().copied()).collect()
}

pub(super) async fn read_runtime(
    host: &SharedHost,
    uid: &str,
    messages: &mut messages::Messages,
) -> cri::Result<RuntimeView> {
    let runtime = host.config.runtime.as_ref();
    let selector = labels::selector(uid);
    let mut view = RuntimeView::default();
    let filter = PodSandboxFilter { label_selector: selector.clone(), ..PodSandboxFilter::default() };
    for sandbox in runtime.list_pod_sandboxes(&filter).await? {
        match runtime.pod_sandbox_status(&sandbox.id).await {
            Ok(status) => view.sandboxes.push(status),
            // Removed between the two calls.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let filter = ContainerFilter { label_selector: selector, ..ContainerFilter::default() };
    for container in runtime.list_containers(&filter).await? {
        match runtime.container_status(&container.id).await {
            Ok(mut status) => {
                if status.state == ContainerState::Exited {
                    messages.fill(&mut status, &host.volumes.pod_dir(uid));
                }
                view.containers.push(status);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    messages.keep_only(&view);
    view.sort();
    Ok(view)
}

pub(super) async fn run_sandbox(host: &SharedHost, pod: &Pod, attempt: u32) -> cri::Result<String> {
    let mut config = host.sandbox_config(pod, attempt);
    config.linux.security_context.namespace_options.userns_options = host
        .users(pod)
        .map_err(|error| cri::Error::failed("allocating ids for the pod's user namespace", error))?;
    if let Some(name) = &pod.spec.runtime_class_name {
        let classes = host.config.client.api(&resources::RUNTIME_CLASSES);
        let class: Value = classes
            .get(name)
            .await
            .map_err(|error| cri::Error::failed(format!("reading RuntimeClass {name:?}"), error))?;
        config.runtime_handler = class["handler"].as_str().unwrap_or_default().to_owned();
    }
    std::fs::create_dir_all(&config.log_directory)
        .map_err(|error| cri::Error::failed(format!("making {}", config.log_directory.display()), error))?;
    host.config.runtime.run_pod_sandbox(&config).await
}

/// Runs the preStop hook and stops the container, all before the deadline, which may move closer meanwhile.
pub(super) async fn kill(
    host: &SharedHost,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    ips: &[std::net::IpAddr],
    mut deadlines: watch::Receiver<Timestamp>,
) -> cri::Result<()> {
    let runtime = host.config.runtime.as_ref();
    let left = |deadline: Timestamp| until(deadline, Timestamp::now());
    let deadline = *deadlines.borrow_and_update();
    let first = async {
        if let Some((role, container)) = pod.container(name)
            && let Some(hook) = &container.lifecycle.pre_stop
        {
            let work = hooks::run(host, hook, pod, container, id, ips);
            if let Ok(Err(error)) = tokio::time::timeout(left(deadline), work).await {
                debug!(pod = %pod.key(), container = name, %error, "preStop hook failed");
                host.events.container(pod, role, container, true, "FailedPreStopHook", "PreStopHook failed");
            }
        }
        runtime.stop_container(id, left(deadline).max(Duration::from_secs(2))).await
    };
    let mut work: BoxFuture<'_, cri::Result<()>> = Box::pin(first);
    loop {
        // A stop that is given up for one with less time only waited for the process to end.
        tokio::select! {
            result = &mut work => return result,
            Ok(()) = deadlines.changed() => {
                let deadline = *deadlines.borrow_and_update();
                work = runtime.stop_container(id, left(deadline));
            }
        }
    }
}

pub(super) async fn probe(
    host: &SharedHost,
    pod: &Arc<Pod>,
    name: &str,
    id: &str,
    kind: Kind,
    pod_ip: Option<std::net::IpAddr>,
) -> Result<(), HandlerError> {
    let (_, container) = pod.container(name).ok_or(HandlerError::Empty)?;
    let probe = kind.of(container).ok_or(HandlerError::Empty)?;
    let timeout = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64);
    handlers::run(host, &probe.handler, &Target { container, container_id: id, pod_ip, timeout }).await
}
