//! What the actions do: calls of the runtime and of handlers, free of the worker's memory.

use crate::resize::Shrink;

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
                if status.pod_sandbox_id.is_empty() {
                    // Not in CRI's message, but in its lists.
                    status.pod_sandbox_id.clone_from(&container.pod_sandbox_id);
                }
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
    if let Some(groups) = &host.groups {
        groups.make(pod, host.config.pod_pids_limit);
    }
    host.config.runtime.run_pod_sandbox(&config).await
}

/// Makes the steps of a resize, unless memory that is in use would be taken away.
pub(super) async fn resize_pod(
    host: &SharedHost,
    pod: &Pod,
    sandbox: &str,
    change: &Change,
) -> Result<(), String> {
    let runtime = host.config.runtime.as_ref();
    if !change.checks.is_empty() {
        let stats = runtime.pod_sandbox_stats(sandbox).await;
        let stats =
            stats.map_err(|error| format!("unable to read memory usage: {}", telemetry::chain(&error)))?;
        let problems: Vec<String> = change.checks.iter().filter_map(|one| below_usage(one, &stats)).collect();
        if !problems.is_empty() {
            let all = match problems.as_slice() {
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            return Err(format!("cannot decrease memory limits: {all}"));
        }
    }
    for step in &change.steps {
        let told = match &step.container {
            Some((_, id)) => runtime.update_container_resources(id, &step.values).await,
            None => runtime.update_pod_sandbox_resources(sandbox, &step.values).await,
        };
        let mut result = told.map_err(|error| telemetry::chain(&error).to_string());
        if let (Ok(()), None, Some(groups)) = (&result, &step.container, &host.groups) {
            result = groups.change(pod, &step.values);
        }
        if !step.lenient {
            result?;
        }
    }
    Ok(())
}

/// Why a memory limit cannot shrink to what is asked for.
fn below_usage(shrink: &Shrink, stats: &cri::PodSandboxStats) -> Option<String> {
    let limit = shrink.limit;
    let (what, memory) = match &shrink.container {
        None => ("pod".to_owned(), Some(&stats.memory)),
        Some((name, id)) => {
            let of = stats.containers.iter().find(|one| one.attributes.id == *id);
            (format!("container {name:?}"), of.map(|one| &one.memory))
        }
    };
    match memory.and_then(|memory| memory.usage_bytes) {
        None => Some(format!("missing {what} memory usage")),
        Some(used) if used >= u64::try_from(limit).unwrap_or(0) => {
            Some(format!("attempting to set {what} memory limit ({limit}) below current usage ({used})"))
        }
        Some(_) => None,
    }
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
