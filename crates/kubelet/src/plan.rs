//! What to do next for a pod, as a value.
//!
//! [`plan`] looks at the pod, at what the runtime holds of it and at what the worker remembers, and returns the
//! actions that can be started now. It performs nothing and reads no clock, so every rule of a pod's life is a line in
//! the table of tests below. The worker starts the actions, notes them as under way, and plans again whenever one ends.
//!
//! What stays true: no action is returned that is already under way; a container is started only in the newest, ready
//! sandbox with all volumes there; starts happen one at a time in the order of the spec; a sandbox is stopped only
//! after its containers.

use std::time::Duration;

use cri::{ContainerState, ContainerStatus, PodSandboxState};
use jiff::{SignedDuration, Timestamp};

use crate::pod::{Container, Pod, RestartPolicy, Role};
use crate::resize::{self, Change};
use crate::state::{Attempt, Intent, Memory, RuntimeView, timestamp};

/// SIGKILL never follows SIGTERM faster than this.
const SHORTEST_GRACE: Duration = Duration::from_secs(2);
/// Dead containers kept per name: the last one, for its log and its status.
const DEAD_KEPT: usize = 1;

#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Make the volumes.
    Mount,
    RunSandbox {
        attempt: u32,
    },
    Start {
        name: String,
        role: Role,
        attempt: u32,
        sandbox: String,
    },
    Kill {
        id: String,
        name: String,
        cause: Cause,
        grace: Duration,
    },
    /// Bring running containers and the pod's cgroup to what the pod was given.
    Resize {
        sandbox: String,
        change: Change,
    },
    StopSandbox {
        id: String,
    },
    RemoveContainer {
        id: String,
    },
    RemoveSandbox {
        id: String,
    },
    /// Everything has stopped and the pod will not run again.
    Finish,
    /// Tell that a container waits out its back-off.
    AnnounceBackOff {
        name: String,
        exit: String,
    },
}

/// Why a container is killed.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// The pod ends.
    PodStops,
    /// Its sandbox died under it.
    SandboxChanged,
    /// Another image or definition.
    SpecChanged,
    /// A probe said so; the sentence says which.
    Probe(String),
    /// Its new resources need another start.
    Resize,
    /// A state that cannot be told.
    Unknown,
}

/// Actions, and when to plan again if nothing happens before.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub wake_at: Option<Timestamp>,
    /// The pod will never run again, though something of it may still be stopping.
    pub completed: bool,
}

impl Plan {
    fn wake(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
        }
    }
}

pub struct View<'a> {
    pub pod: &'a Pod,
    pub intent: &'a Intent,
    pub runtime: &'a RuntimeView,
    pub memory: &'a Memory,
    /// Whether the pod was ever given other resources than it began with.
    pub resized: bool,
    pub now: Timestamp,
}

pub fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    match view.intent {
        Intent::Run => run(view, &mut plan),
        Intent::Stop { grace, .. } => {
            plan.completed = true;
            stop(view, *grace, &mut plan);
        }
    }
    collect_garbage(view, &mut plan);
    plan
}

fn run(view: &View<'_>, plan: &mut Plan) {
    let memory = view.memory;
    if is_complete(view) {
        plan.completed = true;
        return stop(view, Duration::from_secs(view.pod.grace_seconds().max(0) as u64), plan);
    }
    if memory.volumes.is_due(view.now) {
        plan.actions.push(Action::Mount);
    }
    plan.wake(memory.volumes.retry_at());
    let Some(sandbox) = view.runtime.ready_sandbox() else {
        return renew_sandbox(view, plan);
    };
    let sandbox = sandbox.id.as_str();
    kill_strays(view, sandbox, plan);
    kill_condemned(view, sandbox, plan);
    resize(view, sandbox, plan);
    if memory.volumes != Attempt::Done {
        return;
    }
    let mut starts = Starts { view, sandbox, plan, taken: memory.starting.is_some() };
    for container in &view.pod.spec.ephemeral_containers {
        // Ephemeral containers run once, in whatever sandbox there is.
        if view.runtime.newest(&container.name).is_none() {
            starts.consider(container, Role::Ephemeral);
        }
    }
    if initialize(&mut starts) {
        for container in &view.pod.spec.containers {
            starts.consider(container, Role::App);
        }
    }
}

/// No usable sandbox: end what is left in the old ones, then make a new one.
fn renew_sandbox(view: &View<'_>, plan: &mut Plan) {
    let memory = view.memory;
    let mut quiet = true;
    for container in live(view.runtime) {
        quiet = false;
        kill(view, plan, container, Cause::SandboxChanged, SHORTEST_GRACE);
    }
    for sandbox in &view.runtime.sandboxes {
        // A sandbox that is not ready may still hold network and cgroup; it is removed once a newer one exists.
        if sandbox.state == PodSandboxState::Ready {
            quiet = false;
            stop_sandbox(view, plan, &sandbox.id);
        }
    }
    plan.wake(memory.sandbox.retry_at());
    let due = memory.sandbox.is_due(view.now) || memory.sandbox == Attempt::Done;
    if quiet && due {
        let attempt = view.runtime.sandboxes.first().map_or(0, |newest| newest.metadata.attempt + 1);
        plan.actions.push(Action::RunSandbox { attempt });
    }
}

/// Whether the pod ran to its end: nothing of it will be started again.
fn is_complete(view: &View<'_>) -> bool {
    if view.memory.starting.is_some() {
        return false;
    }
    let pod = view.pod;
    let init_failed = pod.containers().filter(|(role, _)| *role == Role::Init).any(|(role, container)| {
        view.runtime.newest(&container.name).is_some_and(|one| {
            one.state == ContainerState::Exited && one.exit_code != 0 && !restarts(pod, container, role, one)
        })
    });
    if init_failed {
        return true;
    }
    !pod.spec.containers.is_empty()
        && pod.spec.containers.iter().all(|container| {
            view.runtime.newest(&container.name).is_some_and(|one| {
                one.state == ContainerState::Exited
                    && !restarts(pod, container, Role::App, one)
                    && !view.memory.restarts_for_resize(one)
            })
        })
}

/// Whether an exited container is started again.
pub fn restarts(pod: &Pod, container: &Container, role: Role, last: &ContainerStatus) -> bool {
    let policy = match role {
        Role::Ephemeral => RestartPolicy::Never,
        Role::Sidecar => RestartPolicy::Always,
        Role::Init => match container.restart_policy.unwrap_or(pod.spec.restart_policy) {
            RestartPolicy::Always => RestartPolicy::OnFailure,
            policy => policy,
        },
        Role::App => container.restart_policy.unwrap_or(pod.spec.restart_policy),
    };
    match last.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited if has_restart_rule(container, role, last.exit_code) => true,
        ContainerState::Exited => match policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => last.exit_code != 0,
            RestartPolicy::Never => false,
        },
    }
}

/// Whether a rule of the container restarts it after this exit. An init container that succeeded did its part.
fn has_restart_rule(container: &Container, role: Role, exit_code: i32) -> bool {
    matches!(role, Role::App | Role::Init)
        && !(role == Role::Init && exit_code == 0)
        && container
            .restart_policy_rules
            .iter()
            .find(|rule| rule.matches(exit_code))
            .is_some_and(|rule| rule.action == "Restart")
}

/// The starts that are possible now. Only the first one is made; the rest wait for the next plan.
struct Starts<'v, 'p> {
    view: &'v View<'v>,
    sandbox: &'v str,
    plan: &'p mut Plan,
    taken: bool,
}

impl Starts<'_, '_> {
    fn consider(&mut self, container: &Container, role: Role) {
        let view = self.view;
        let here = view.runtime.in_sandbox(self.sandbox, &container.name);
        if let Some(here) = here
            && !restarts(view.pod, container, role, here)
            && !(here.state == ContainerState::Exited && view.memory.restarts_for_resize(here))
        {
            return;
        }
        if here.is_none()
            && role == Role::App
            && let Some(before) = view.runtime.newest(&container.name)
            && !restarts(view.pod, container, role, before)
            && before.state == ContainerState::Exited
        {
            // It ran to its end in a sandbox that is gone.
            return;
        }
        let memory = view.memory.containers.get(&container.name);
        if let Some(retry_at) = memory.and_then(|memory| memory.retry_at).filter(|at| *at > view.now) {
            return self.plan.wake(Some(retry_at));
        }
        let last = view.runtime.newest(&container.name);
        if let Some(last) = last.filter(|last| last.state == ContainerState::Exited)
            && let Some(finished) = timestamp(last.finished_at)
            && let Some(until) = memory.and_then(|memory| memory.crashes.until(finished))
            && until > view.now
        {
            self.plan.wake(Some(until));
            if memory.is_none_or(|memory| memory.announced.as_deref() != Some(last.id.as_str())) {
                self.plan
                    .actions
                    .push(Action::AnnounceBackOff { name: container.name.clone(), exit: last.id.clone() });
            }
            return;
        }
        if self.taken {
            return;
        }
        self.taken = true;
        self.plan.actions.push(Action::Start {
            name: container.name.clone(),
            role,
            attempt: next_attempt(view, container),
            sandbox: self.sandbox.to_owned(),
        });
    }
}

/// One more than any earlier container of this name had, in the runtime or in the last written status.
fn next_attempt(view: &View<'_>, container: &Container) -> u32 {
    let known = view.runtime.of_name(&container.name).map(|one| one.metadata.attempt + 1).max();
    let status = &view.pod.status;
    let written = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .find(|old| old.name == container.name && !old.container_id.is_empty())
        .map(|old| old.restart_count + 1);
    known.or(written).unwrap_or(0)
}

/// Starts the next init container. True once app containers may run.
fn initialize(starts: &mut Starts<'_, '_>) -> bool {
    let view = starts.view;
    let app_was_here = view
        .pod
        .spec
        .containers
        .iter()
        .any(|container| view.runtime.in_sandbox(starts.sandbox, &container.name).is_some());
    for (role, container) in
        view.pod.containers().filter(|(role, _)| matches!(role, Role::Init | Role::Sidecar))
    {
        let here = view.runtime.in_sandbox(starts.sandbox, &container.name);
        if app_was_here {
            if role == Role::Sidecar {
                starts.consider(container, role);
            }
            continue;
        }
        match (role, here.map(|one| (one.state, one.exit_code))) {
            (Role::Init, Some((ContainerState::Exited, 0))) => {}
            (Role::Sidecar, Some((ContainerState::Running, _))) => {
                if !view.memory.started(container) {
                    return false;
                }
            }
            (_, Some((ContainerState::Running, _))) => return false,
            _ => {
                starts.consider(container, role);
                return false;
            }
        }
    }
    true
}

/// Containers that run in an older sandbox or stand in no list of the spec.
fn kill_strays(view: &View<'_>, sandbox: &str, plan: &mut Plan) {
    for container in live(view.runtime) {
        if container.pod_sandbox_id != sandbox {
            kill(view, plan, container, Cause::SandboxChanged, SHORTEST_GRACE);
        }
    }
    for old in view.runtime.sandboxes.iter().skip(1).filter(|old| old.state == PodSandboxState::Ready) {
        if live(view.runtime).all(|container| container.pod_sandbox_id != old.id) {
            stop_sandbox(view, plan, &old.id);
        }
    }
}

/// Containers whose definition changed or that a probe gave up on. They are started again by a later plan.
fn kill_condemned(view: &View<'_>, sandbox: &str, plan: &mut Plan) {
    for (role, container) in view.pod.containers() {
        let Some(here) = view.runtime.in_sandbox(sandbox, &container.name) else { continue };
        if here.state == ContainerState::Unknown {
            kill(view, plan, here, Cause::Unknown, SHORTEST_GRACE);
            continue;
        }
        if here.state != ContainerState::Running {
            continue;
        }
        let grace = Duration::from_secs(view.pod.grace_seconds().max(0) as u64);
        let hash = here.annotations.get(crate::labels::HASH);
        if role != Role::Ephemeral && hash.is_some_and(|hash| *hash != container.hash()) {
            kill(view, plan, here, Cause::SpecChanged, grace);
            continue;
        }
        let condemned =
            view.memory.containers.get(&container.name).and_then(|memory| memory.condemned.as_ref());
        if let Some(condemned) = condemned.filter(|condemned| condemned.container_id == here.id) {
            let grace =
                condemned.grace_seconds.map_or(grace, |seconds| Duration::from_secs(seconds.max(0) as u64));
            kill(view, plan, here, Cause::Probe(condemned.message.clone()), grace);
        }
    }
}

/// What the pod was given anew. Containers are killed here where their policy says so; the rest is one action.
fn resize(view: &View<'_>, sandbox: &str, plan: &mut Plan) {
    let memory = view.memory;
    let change = resize::change(view.pod, sandbox, view.runtime, &memory.actuated, view.resized);
    let grace = Duration::from_secs(view.pod.grace_seconds().max(0) as u64);
    for (id, _) in &change.restarts {
        if let Some(here) = view.runtime.by_id(id) {
            kill(view, plan, here, Cause::Resize, grace);
        }
    }
    if change.has_no_action() {
        return;
    }
    plan.wake(memory.resize.retry_at());
    if memory.resize.is_due(view.now) || memory.resize == Attempt::Done {
        plan.actions.push(Action::Resize { sandbox: sandbox.to_owned(), change });
    }
}

/// Ends the pod: app containers first, then sidecars from the last to the first, then the sandbox.
fn stop(view: &View<'_>, grace: Duration, plan: &mut Plan) {
    // A start under way is waited for: only then is it known what there is to kill.
    if view.memory.starting.is_some() || view.memory.sandbox == Attempt::Running {
        return;
    }
    let sidecars: Vec<&str> = view
        .pod
        .containers()
        .filter(|(role, _)| *role == Role::Sidecar)
        .map(|(_, container)| container.name.as_str())
        .collect();
    let mut running = false;
    for container in live(view.runtime).filter(|one| !sidecars.contains(&one.metadata.name.as_str())) {
        running = true;
        kill(view, plan, container, Cause::PodStops, grace);
    }
    for name in sidecars.iter().rev() {
        for container in live(view.runtime).filter(|one| one.metadata.name == *name) {
            if !running || view.memory.killing.contains_key(&container.id) {
                kill(view, plan, container, Cause::PodStops, grace);
            }
            running = true;
        }
    }
    if running {
        return;
    }
    let mut standing = false;
    for sandbox in view.runtime.sandboxes.iter().filter(|one| one.state == PodSandboxState::Ready) {
        standing = true;
        stop_sandbox(view, plan, &sandbox.id);
    }
    if !standing && !view.memory.finished {
        plan.actions.push(Action::Finish);
    }
}

/// Removes old sandboxes with what is in them, and dead containers beyond the last of each name.
fn collect_garbage(view: &View<'_>, plan: &mut Plan) {
    let newest = view.runtime.sandboxes.first().map(|one| one.id.as_str());
    for sandbox in view.runtime.sandboxes.iter().skip(1) {
        let needed = live(view.runtime).any(|one| one.pod_sandbox_id == sandbox.id)
            || view.runtime.containers.iter().any(|one| {
                // The last of its name is kept for its log until a newer one exists.
                one.pod_sandbox_id == sandbox.id
                    && view.runtime.newest(&one.metadata.name).is_some_and(|last| last.id == one.id)
            });
        if sandbox.state == PodSandboxState::NotReady && !needed {
            remove(view, plan, &sandbox.id, Action::RemoveSandbox { id: sandbox.id.clone() });
        }
    }
    let mut dead: std::collections::HashMap<&str, usize> = Default::default();
    for container in &view.runtime.containers {
        if matches!(container.state, ContainerState::Running) {
            continue;
        }
        let is_newest =
            view.runtime.newest(&container.metadata.name).is_some_and(|newest| newest.id == container.id);
        let kept = dead.entry(&container.metadata.name).or_default();
        if is_newest {
            // The newest one is the container's state, not its past.
            continue;
        }
        *kept += 1;
        if *kept > DEAD_KEPT && Some(container.pod_sandbox_id.as_str()) == newest {
            remove(view, plan, &container.id, Action::RemoveContainer { id: container.id.clone() });
        }
    }
}

fn live(runtime: &RuntimeView) -> impl Iterator<Item = &ContainerStatus> {
    runtime
        .containers
        .iter()
        .filter(|one| matches!(one.state, ContainerState::Running | ContainerState::Unknown))
}

fn kill(view: &View<'_>, plan: &mut Plan, container: &ContainerStatus, cause: Cause, grace: Duration) {
    let grace = grace.max(SHORTEST_GRACE);
    let deadline = SignedDuration::try_from(grace).ok().and_then(|grace| view.now.checked_add(grace).ok());
    let sooner = match (view.memory.killing.get(&container.id), deadline) {
        (Some(known), Some(deadline)) => deadline < *known,
        (Some(_), None) => false,
        (None, _) => true,
    };
    if sooner {
        let (id, name) = (container.id.clone(), container.metadata.name.clone());
        plan.actions.push(Action::Kill { id, name, cause, grace });
    }
}

fn stop_sandbox(view: &View<'_>, plan: &mut Plan, id: &str) {
    remove(view, plan, id, Action::StopSandbox { id: id.to_owned() });
}

fn remove(view: &View<'_>, plan: &mut Plan, id: &str, action: Action) {
    let attempt = view.memory.removing.get(id).unwrap_or(&Attempt::Never);
    plan.wake(attempt.retry_at());
    if attempt.is_due(view.now) || *attempt == Attempt::Done {
        plan.actions.push(action);
    }
}

#[cfg(test)]
mod tests;
