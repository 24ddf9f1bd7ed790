//! Taking the ends of actions: what they change in the worker's memory, and what is told about them.

use super::*;

impl Worker {
    pub(super) fn relabel(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        let pod = self.order.pod.clone();
        for (name, memory) in &mut self.memory.containers {
            match &memory.relabel {
                Some((at, waiting)) if *at <= now => {
                    if let Some((role, container)) = pod.container(name) {
                        let message = format!("Back-off pulling image {:?}", container.image);
                        self.host.events.container(&pod, role, container, false, "BackOff", message);
                        self.host.events.container(
                            &pod,
                            role,
                            container,
                            true,
                            "Failed",
                            "Error: ImagePullBackOff",
                        );
                    }
                    memory.waiting = Some(waiting.clone());
                    memory.relabel = None;
                }
                Some((at, _)) => sooner(wake, Some(*at)),
                None => {}
            }
        }
    }

    /// Takes the end of an action. True when the runtime has to be looked at.
    pub(super) fn finish(&mut self, done: Done) -> bool {
        let now = Timestamp::now();
        let pod = self.order.pod.clone();
        match done {
            Done::Mounted(Ok(mounted)) => {
                self.mounted = Arc::new(mounted);
                self.memory.volumes = Attempt::Done;
                self.refreshing = false;
                false
            }
            Done::Mounted(Err(error)) => {
                let refreshing = std::mem::take(&mut self.refreshing);
                let text = format!(
                    "MountVolume.SetUp failed for volume {:?} : {}",
                    error.volume,
                    telemetry::chain(&error.source)
                );
                self.host.events.pod(&pod, true, "FailedMount", text.clone());
                self.memory.volume_backoff.next(now, now, VOLUME_RETRY.0, VOLUME_RETRY.1);
                let retry_at = later(now, self.memory.volume_backoff.delay());
                if refreshing {
                    // What is there stays in use; the next try comes with the next change or with the timer below.
                    let mut mounted = (*self.mounted).clone();
                    if let Some(one) = mounted.get_mut(&error.volume) {
                        one.refresh_at = Some(retry_at);
                    }
                    self.mounted = Arc::new(mounted);
                } else {
                    self.memory.volumes = Attempt::Failed { message: text, retry_at };
                }
                false
            }
            Done::Sandbox { values, result: Ok(id) } => {
                info!(pod = %pod.key(), sandbox = id, "sandbox runs");
                self.memory.sandbox = Attempt::Done;
                self.memory.actuated.pod = Some(values);
                true
            }
            Done::Sandbox { result: Err(error), .. } => {
                let text = telemetry::chain(&error).to_string();
                warn!(pod = %pod.key(), error = text, "cannot run the sandbox");
                self.host.events.pod(
                    &pod,
                    true,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {text}"),
                );
                self.memory.sandbox_backoff.next(now, now, SANDBOX_RETRY.0, SANDBOX_RETRY.1);
                let retry_at = later(now, self.memory.sandbox_backoff.delay());
                self.memory.sandbox = Attempt::Failed { message: text, retry_at };
                true
            }
            Done::Resized { pod, change, result } => {
                self.note_resize(&pod, &change, result, now);
                true
            }
            Done::Started { name, resources, result } => {
                self.memory.starting = None;
                let id = match &result {
                    Ok(id) => Some(id),
                    Err(failure) => failure.kill.as_ref(),
                };
                if let Some(id) = id {
                    self.memory.actuated.containers.insert(id.clone(), resources);
                }
                self.note_start(&name, result, now);
                true
            }
            Done::Killed { id, result } => {
                self.kills.remove(&id);
                self.memory.killing.remove(&id);
                if let Err(error) = result {
                    warn!(pod = %pod.key(), container = id, error = %telemetry::chain(&error), "cannot kill the container");
                    self.host.events.pod(
                        &pod,
                        true,
                        "FailedKillPod",
                        format!("error killing pod: {}", telemetry::chain(&error)),
                    );
                    // Tried again by the plan, but not at once.
                    self.memory.killing.insert(id.clone(), later(now, Duration::from_secs(5)));
                    self.actions.push(Box::pin(async move {
                        tokio::time::sleep(Duration::from_secs(5)).await;
                        Done::Killed { id, result: Ok(()) }
                    }));
                }
                true
            }
            Done::Removed { id, result } => {
                if id.is_empty() {
                    return false;
                }
                if let Err(error) = &result {
                    warn!(pod = %pod.key(), id, error = %telemetry::chain(error), "cannot stop or remove");
                }
                // Even after success the plan waits a little before it asks again, should the runtime not agree.
                let pause = Duration::from_secs(if result.is_ok() { 1 } else { 5 });
                let message =
                    result.err().map(|error| telemetry::chain(&error).to_string()).unwrap_or_default();
                self.memory.removing.insert(id, Attempt::Failed { message, retry_at: later(now, pause) });
                true
            }
            Done::Probed { name, id, kind, result } => {
                self.note_probe(&name, &id, kind, result);
                false
            }
            Done::StatusSent { status, result } => {
                self.sending = false;
                self.note_sent(&status, result, now);
                false
            }
            Done::Deleted(result) => {
                match result {
                    Err(error) if !error.is_not_found() && !error.is_conflict() => {
                        warn!(pod = %pod.key(), error = %telemetry::chain(&error), "cannot delete the pod's object");
                        self.deleting = false;
                        self.send_backoff.next(now, now, STATUS_RETRY.0, STATUS_RETRY.1);
                        self.send_after = Some(later(now, self.send_backoff.delay()));
                    }
                    // The watch will tell that it is gone.
                    _ => debug!(pod = %pod.key(), "the pod's object is deleted"),
                }
                false
            }
        }
    }

    /// What a resize made is what runs now; what it could not make is tried again.
    fn note_resize(&mut self, pod: &Arc<Pod>, change: &Change, result: Result<(), String>, now: Timestamp) {
        match result {
            Ok(()) => {
                self.memory.resize = Attempt::Done;
                self.memory.resize_backoff = Backoff::default();
                self.memory.actuated.pod = Some(amounts::of_pod(pod));
                for (name, id) in &change.updated {
                    if let Some((_, container)) = pod.container(name) {
                        self.memory.actuated.containers.insert(id.clone(), container.resources.clone());
                    }
                }
            }
            Err(text) => {
                warn!(pod = %pod.key(), error = text, "cannot resize the pod");
                let told = matches!(&self.memory.resize_error, Some(known) if *known == text);
                if !told {
                    let message = format!("Pod resize error: {}", resize::summary(pod, &text));
                    self.host.events.pod(pod, true, "ResizeError", message);
                }
                self.memory.resize_backoff.next(now, now, RESIZE_RETRY.0, RESIZE_RETRY.1);
                let retry_at = later(now, self.memory.resize_backoff.delay());
                self.memory.resize_error = Some(text.clone());
                self.memory.resize = Attempt::Failed { message: text, retry_at };
            }
        }
    }

    pub(super) fn note_start(&mut self, name: &str, result: Result<String, Failure>, now: Timestamp) {
        let memory = self.memory.container(name);
        match result {
            Ok(_) => {
                memory.waiting = None;
                memory.relabel = None;
                memory.announced = None;
                memory.pulls = Backoff::default();
            }
            Err(failure) => {
                debug!(
                    container = name,
                    reason = failure.waiting.reason,
                    message = failure.waiting.message,
                    "start failed"
                );
                let slower = if failure.image { &mut memory.pulls } else { &mut memory.crashes };
                slower.next(now, now, backoff::FIRST, backoff::LONGEST);
                let delay = slower.delay();
                memory.retry_at = Some(later(now, delay));
                if ["ErrImagePull", "RegistryUnavailable"].contains(&failure.waiting.reason)
                    && let Ok(at) = now.checked_add(PULL_ERROR_SHOWN)
                {
                    let image = self.order.pod.container(name).map(|(_, container)| container.image.as_str());
                    let message = format!(
                        "Back-off pulling image {:?}: {}: {}",
                        image.unwrap_or_default(),
                        failure.waiting.reason,
                        failure.waiting.message
                    );
                    memory.relabel = Some((at, Waiting { reason: "ImagePullBackOff", message }));
                }
                memory.waiting = Some(failure.waiting);
                if let Some(id) = failure.kill {
                    memory.condemned = Some(Condemned {
                        container_id: id,
                        message: "FailedPostStartHook".into(),
                        grace_seconds: None,
                    });
                }
            }
        }
    }

    pub(super) fn note_probe(&mut self, name: &str, id: &str, kind: Kind, result: Result<(), HandlerError>) {
        let pod = self.order.pod.clone();
        let Some((role, container)) = pod.container(name) else { return };
        let alive = self.runtime.by_id(id).is_some_and(|one| one.state == ContainerState::Running)
            && !self.memory.killing.contains_key(id);
        if !alive {
            self.memory.container(name).probes.abandon(kind, id);
            return;
        }
        if let Err(error) = &result {
            let title = kind.title();
            let message = match error {
                HandlerError::Failed(text) => format!("{title} probe failed: {text}"),
                HandlerError::TimedOut { .. } => format!("{title} probe failed: {error}"),
                other => format!(
                    "{title} probe errored and resulted in unknown state: {}",
                    telemetry::chain(other)
                ),
            };
            self.host.events.container(&pod, role, container, true, "Unhealthy", message);
        }
        let memory = self.memory.container(name);
        if memory.probes.record(kind, id, container, result.is_ok()) == Effect::Condemned {
            let grace_seconds = kind.of(container).and_then(|probe| probe.termination_grace_period_seconds);
            let message = match kind {
                Kind::Startup => format!("Container {name} failed startup probe, will be restarted"),
                _ => format!("Container {name} failed liveness probe, will be restarted"),
            };
            memory.condemned = Some(Condemned { container_id: id.to_owned(), message, grace_seconds });
        }
    }
}
