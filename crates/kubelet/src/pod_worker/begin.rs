//! Starting actions: each becomes a future that the worker owns, and is noted as under way.

use super::*;

impl Worker {
    pub(super) fn begin(&mut self, action: Action, now: Timestamp) {
        let host = self.host.clone();
        let pod = self.order.pod.clone();
        match action {
            Action::Mount => {
                self.memory.volumes = Attempt::Running;
                self.begin_mount();
            }
            Action::RunSandbox { attempt } => {
                self.memory.sandbox = Attempt::Running;
                self.actions.push(Box::pin(async move {
                    let values = amounts::of_pod(&pod);
                    Done::Sandbox { values, result: run_sandbox(&host, &pod, attempt).await }
                }));
            }
            Action::Resize { sandbox, change } => {
                self.memory.resize = Attempt::Running;
                self.actions.push(Box::pin(async move {
                    let result = resize_pod(&host, &pod, &sandbox, &change).await;
                    Done::Resized { pod, change, result }
                }));
            }
            Action::Start { name, role, attempt, sandbox } => {
                self.begin_start(name, role, attempt, sandbox, now)
            }
            Action::Kill { id, name, cause, grace } => self.begin_kill(id, name, cause, grace, now),
            Action::StopSandbox { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.stop_pod_sandbox(&id).await;
                    Done::Removed { id, result }
                }));
            }
            Action::RemoveSandbox { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.remove_pod_sandbox(&id).await;
                    Done::Removed { id, result }
                }));
            }
            Action::RemoveContainer { id } => {
                self.memory.removing.insert(id.clone(), Attempt::Running);
                let log = self.runtime.by_id(&id).map(|one| one.log_path.clone());
                self.actions.push(Box::pin(async move {
                    let result = host.config.runtime.remove_container(&id).await;
                    if let (Ok(()), Some(log)) = (&result, log) {
                        // The log of a container that is forgotten; rotated away already if it is not there.
                        let _ = std::fs::remove_file(log);
                    }
                    Done::Removed { id, result }
                }));
            }
            Action::Finish => {
                self.memory.finished = true;
                self.watching.clear();
                if let Err(error) = host.volumes.unmount(&pod.metadata.uid) {
                    warn!(pod = %pod.key(), error = %telemetry::chain(&error), "cannot remove the pod's volumes");
                }
            }
            Action::AnnounceBackOff { name, exit } => {
                let Some((role, container)) = pod.container(&name) else { return };
                let memory = self.memory.container(&name);
                let delay = go_duration(memory.crashes.delay());
                memory.announced = Some(exit);
                memory.waiting = Some(Waiting {
                    reason: "CrashLoopBackOff",
                    message: format!(
                        "back-off {delay} restarting failed container={name} pod={}",
                        pod.full_name()
                    ),
                });
                let message =
                    format!("Back-off restarting failed container {name} in pod {}", pod.full_name());
                host.events.container(&pod, role, container, true, "BackOff", message);
            }
        }
    }

    pub(super) fn begin_mount(&mut self) -> bool {
        let (host, pod) = (self.host.clone(), self.order.pod.clone());
        let ips = self.memory.addresses.clone();
        self.actions.push(Box::pin(async move {
            let facts = host.facts(&pod, &ips);
            Done::Mounted(host.volumes.set_up(&pod, &facts, Timestamp::now()).await)
        }));
        true
    }

    pub(super) fn begin_start(
        &mut self,
        name: String,
        role: Role,
        attempt: u32,
        sandbox: String,
        now: Timestamp,
    ) {
        let last = self.runtime.newest(&name);
        let crashed = last
            .filter(|last| last.state == ContainerState::Exited)
            .and_then(|last| timestamp(last.finished_at));
        let target = self.order.pod.container(&name).and_then(|(_, container)| {
            let target = self.runtime.newest(&container.target_container_name)?;
            (target.state == ContainerState::Running).then(|| target.id.clone())
        });
        let memory = self.memory.container(&name);
        memory.retry_at = None;
        memory.condemned = None;
        memory.resize_restart = None;
        if let Some(finished) = crashed {
            memory.crashes.next(finished, now, backoff::FIRST, backoff::LONGEST);
        }
        self.memory.starting = Some(name.clone());
        let sandbox_attempt = self.runtime.ready_sandbox().map_or(0, |one| one.metadata.attempt);
        let request = Request {
            pod: self.order.pod.clone(),
            name: name.clone(),
            role,
            attempt,
            sandbox,
            sandbox_attempt,
            pod_ips: self.memory.addresses.clone(),
            volumes: self.mounted.clone(),
            target,
        };
        let host = self.host.clone();
        let has_hook = request
            .pod
            .container(&name)
            .is_some_and(|(_, container)| container.lifecycle.post_start.is_some());
        let changed = self.runtime_changed.clone();
        self.actions.push(Box::pin(async move {
            let running = |_: &str| {
                // Without a hook the start ends right away, and with it comes the next look.
                if has_hook {
                    changed.notify_one();
                }
            };
            let result = start::start(&host, &request, &running).await;
            let resources = request.pod.container(&name).map(|(_, container)| container.resources.clone());
            Done::Started { name, resources: resources.unwrap_or_default(), result }
        }));
    }

    pub(super) fn begin_kill(
        &mut self,
        id: String,
        name: String,
        cause: Cause,
        grace: Duration,
        now: Timestamp,
    ) {
        let deadline = SignedDuration::try_from(grace).ok().and_then(|grace| now.checked_add(grace).ok());
        let deadline = deadline.unwrap_or(Timestamp::MAX);
        self.memory.killing.insert(id.clone(), deadline);
        if let Some(known) = self.kills.get(&id) {
            // It is being killed already: only the end comes sooner.
            known.send_replace(deadline);
            return;
        }
        if cause == Cause::Resize {
            self.memory.container(&name).resize_restart = Some(id.clone());
        }
        let (sender, deadlines) = watch::channel(deadline);
        self.kills.insert(id.clone(), sender);
        let (host, pod) = (self.host.clone(), self.order.pod.clone());
        let ips = self.memory.addresses.clone();
        if let Some((role, container)) = pod.container(&name) {
            let message = match &cause {
                Cause::PodStops => format!("Stopping container {name}"),
                Cause::SandboxChanged => format!("Stopping container {name}: pod sandbox changed"),
                Cause::SpecChanged => format!("Container {name} definition changed"),
                Cause::Probe(text) => text.clone(),
                Cause::Resize => format!("Container {name} resize requires restart"),
                Cause::Unknown => format!("Container {name} is in an unknown state"),
            };
            host.events.container(&pod, role, container, false, "Killing", message);
        }
        self.actions.push(Box::pin(async move {
            let result = kill(&host, &pod, &name, &id, &ips, deadlines).await;
            Done::Killed { id, result }
        }));
    }

    pub(super) fn begin_probes(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        let pod = self.order.pod.clone();
        let stopping = self.intent != Intent::Run;
        let Some(sandbox) = self.runtime.ready_sandbox().map(|one| one.id.clone()) else { return };
        for (role, container) in pod.containers() {
            if !matches!(role, Role::App | Role::Sidecar)
                || self.memory.starting.as_deref() == Some(&container.name)
            {
                continue;
            }
            let Some(here) = self.runtime.in_sandbox(&sandbox, &container.name) else { continue };
            if here.state != ContainerState::Running || self.memory.killing.contains_key(&here.id) {
                continue;
            }
            let (id, started_at) = (here.id.clone(), timestamp(here.started_at).unwrap_or(now));
            let ip = if pod.spec.host_network {
                self.host.config.node_ips.first().copied()
            } else {
                self.memory.addresses.first().copied()
            };
            let memory = self.memory.container(&container.name);
            let (due, next) = memory.probes.due(container, started_at, stopping, now);
            sooner(wake, next);
            for kind in due {
                memory.probes.begin(kind, container, now);
                let (host, pod, id, name) =
                    (self.host.clone(), pod.clone(), id.clone(), container.name.clone());
                self.actions.push(Box::pin(async move {
                    let result = probe(&host, &pod, &name, &id, kind, ip).await;
                    Done::Probed { name, id, kind, result }
                }));
            }
        }
    }

    pub(super) fn refresh_volumes(&mut self, now: Timestamp, wake: &mut Option<Timestamp>) {
        if self.memory.volumes != Attempt::Done || self.intent != Intent::Run || self.refreshing {
            return;
        }
        match self.mounted.values().filter_map(|one| one.refresh_at).min() {
            Some(at) if at <= now => self.refreshing = self.begin_mount(),
            at => sooner(wake, at),
        }
    }
}
