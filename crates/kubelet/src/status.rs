//! The status of a pod, computed from what the runtime holds and what the worker remembers. Pure.
//!
//! The words (phases, reasons, sentences of conditions) are upstream's: people and programs match on them.

use std::net::IpAddr;

use cri::{ContainerState, ContainerStatus};
use jiff::{Timestamp, Unit};
use serde_json::{Map, Value, json};

use crate::plan::restarts;
use crate::pod::{Condition, Container, OldContainerStatus, Pod, Role};
use crate::resize::{self, Pending};
use crate::state::{Intent, Memory, RuntimeView, timestamp};
use crate::{qos, resources};

/// Where the pod runs.
pub struct NodeFacts<'a> {
    pub addresses: &'a [IpAddr],
    /// Prefix of container ids: `kelson://…`.
    pub runtime_name: &'a str,
}

pub struct StatusView<'a> {
    pub pod: &'a Pod,
    pub intent: &'a Intent,
    pub runtime: &'a RuntimeView,
    pub memory: &'a Memory,
    /// Whether the pod will never run again.
    pub completed: bool,
    /// A resize that waits for room.
    pub pending: Option<&'a Pending>,
    /// Whether the pod was ever given other resources than it began with.
    pub resized: bool,
    pub node: NodeFacts<'a>,
    /// Conditions as last written, for their transition times.
    pub conditions: &'a [Condition],
    pub now: Timestamp,
}

/// The status and what others want to know of it without reading it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Computed {
    pub status: Value,
    /// The same with nulls where something written before has to go.
    pub patch: Value,
    pub phase: &'static str,
    pub conditions: Vec<Condition>,
}

/// Seconds, as the API writes times.
pub fn seconds(at: Timestamp) -> String {
    at.round(Unit::Second).unwrap_or(at).to_string()
}

struct One {
    role: Role,
    name: String,
    value: Value,
    running: bool,
    waiting: bool,
    has_terminated_before: bool,
    exited: Option<i32>,
    /// It ended badly and is not started again.
    failed: bool,
    ready: bool,
    started: bool,
}

pub fn compute(view: &StatusView<'_>) -> Computed {
    let pod = view.pod;
    let all: Vec<One> =
        pod.containers().map(|(role, container)| container_status(view, role, container)).collect();
    let verdict = match view.intent {
        Intent::Stop { verdict: Some(verdict), .. } => Some(verdict),
        _ => None,
    };
    // It has failed only once nothing of it runs: whoever counts failed pods would start another beside it.
    let runs = all.iter().any(|one| one.running) && !view.memory.finished;
    let phase = if verdict.is_some() && !runs { "Failed" } else { phase(view, &all) };
    let conditions = conditions(view, &all, phase);
    let list = |wanted: &dyn Fn(Role) -> bool| -> Vec<&Value> {
        all.iter().filter(|one| wanted(one.role)).map(|one| &one.value).collect()
    };
    let hosts: Vec<Value> = view.node.addresses.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
    let addresses: Vec<IpAddr> =
        if pod.spec.host_network { view.node.addresses.to_vec() } else { view.memory.addresses.clone() };
    let mut status = Map::new();
    status.insert("observedGeneration".into(), json!(pod.metadata.generation));
    status.insert("phase".into(), json!(phase));
    status.insert(
        "conditions".into(),
        json!(conditions.iter().map(|one| condition_value(view, one)).collect::<Vec<_>>()),
    );
    let (reason, message) =
        verdict.map_or((Value::Null, Value::Null), |verdict| (json!(verdict.reason), json!(verdict.message)));
    status.insert("reason".into(), reason);
    status.insert("message".into(), message);
    if let Some(host) = view.node.addresses.first() {
        status.insert("hostIP".into(), json!(host.to_string()));
        status.insert("hostIPs".into(), json!(hosts));
    }
    if let Some(first) = addresses.first() {
        status.insert("podIP".into(), json!(first.to_string()));
        let all: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
        status.insert("podIPs".into(), json!(all));
    }
    if let Some(start) = view.memory.start_time {
        status.insert("startTime".into(), json!(seconds(start)));
    }
    if !pod.spec.init_containers.is_empty() {
        let init = list(&|role| matches!(role, Role::Init | Role::Sidecar));
        status.insert("initContainerStatuses".into(), json!(init));
    }
    status.insert("containerStatuses".into(), json!(list(&|role| role == Role::App)));
    if !pod.spec.ephemeral_containers.is_empty() {
        status.insert("ephemeralContainerStatuses".into(), json!(list(&|role| role == Role::Ephemeral)));
    }
    status.insert("qosClass".into(), json!(qos::class(pod).as_str()));
    let mut patch = Value::Object(status);
    let mut status = patch.clone();
    client::drop_nulls(&mut status);
    if let Some(list) = patch["conditions"].as_array_mut() {
        list.extend(ended_conditions(view, &conditions));
    }
    Computed { status, patch, phase, conditions }
}

/// Conditions that stand in the object only while they hold: a merge has to be told that they are gone.
fn ended_conditions(view: &StatusView<'_>, now: &[Condition]) -> Vec<Value> {
    let holds = |kind: &str, list: &[Condition]| list.iter().any(|one| one.r#type == kind);
    ["PodResizePending", "PodResizeInProgress"]
        .into_iter()
        .filter(|kind| {
            !holds(kind, now) && (holds(kind, view.conditions) || holds(kind, &view.pod.status.conditions))
        })
        .map(|kind| json!({"$patch": "delete", "type": kind}))
        .collect()
}

fn condition_value(view: &StatusView<'_>, condition: &Condition) -> Value {
    let mut value = json!({
        "type": condition.r#type,
        "observedGeneration": view.pod.metadata.generation,
        "status": condition.status,
        "lastTransitionTime": condition.last_transition_time.map(seconds),
    });
    // A merge leaves what it does not name, so a reason that was written and is gone has to be named.
    let known: Vec<&Condition> = view.conditions.iter().chain(&view.pod.status.conditions).collect();
    let was = |field: fn(&Condition) -> &String| {
        known.iter().any(|old| old.r#type == condition.r#type && !field(old).is_empty())
    };
    if !condition.reason.is_empty() {
        value["reason"] = json!(condition.reason);
    } else if was(|old| &old.reason) {
        value["reason"] = Value::Null;
    }
    if !condition.message.is_empty() {
        value["message"] = json!(condition.message);
    } else if was(|old| &old.message) {
        value["message"] = Value::Null;
    }
    value
}

/// Whether every init container did its part, so that app containers may start.
fn is_initialized(view: &StatusView<'_>) -> bool {
    let app_seen =
        view.pod.spec.containers.iter().any(|container| view.runtime.newest(&container.name).is_some());
    app_seen || incomplete_init(view).is_empty()
}

fn incomplete_init<'a>(view: &StatusView<'a>) -> Vec<&'a str> {
    view.pod
        .containers()
        .filter(|(role, _)| matches!(role, Role::Init | Role::Sidecar))
        .filter(|(role, container)| {
            let newest = view.runtime.newest(&container.name);
            match role {
                Role::Init => {
                    !newest.is_some_and(|one| one.state == ContainerState::Exited && one.exit_code == 0)
                }
                _ => !newest.is_some_and(|one| {
                    one.state == ContainerState::Exited && view.completed
                        || one.state == ContainerState::Running && view.memory.started(container)
                }),
            }
        })
        .map(|(_, container)| container.name.as_str())
        .collect()
}

fn container_status(view: &StatusView<'_>, role: Role, container: &Container) -> One {
    let mut history = view.runtime.of_name(&container.name);
    let newest = history.next();
    let previous = history.next();
    let memory = view.memory.containers.get(&container.name);
    let old = old_status(view.pod, &container.name);
    let runtime_name = view.node.runtime_name;
    let waiting_for = |reason: &str, message: &str| {
        let mut state = json!({"waiting": {"reason": reason}});
        if !message.is_empty() {
            state["waiting"]["message"] = json!(message);
        }
        state
    };
    // As upstream: of all containers of a pod that has init containers.
    let has_init = !view.pod.spec.init_containers.is_empty();
    let default_wait = || waiting_for(if has_init { "PodInitializing" } else { "ContainerCreating" }, "");
    let mut last_state = match previous {
        Some(previous) => terminated(previous, runtime_name),
        None => old.map(|old| old.last_state.clone()).filter(Value::is_object).unwrap_or_else(|| json!({})),
    };
    let explained = memory.and_then(|memory| memory.waiting.as_ref());
    let mut exited = None;
    let state = match newest {
        None => match (explained, old.filter(|old| !old.container_id.is_empty())) {
            (Some(waiting), _) => waiting_for(waiting.reason, &waiting.message),
            (None, Some(old)) if old.state.get("terminated").is_some() => {
                exited = old.state["terminated"]["exitCode"].as_i64().map(|code| code as i32);
                last_state = old.last_state.clone();
                old.state.clone()
            }
            (None, Some(old)) if view.completed => {
                // It ran once and the runtime has forgotten it: nobody knows how it ended.
                exited = Some(137);
                last_state = json!({});
                json!({"terminated": {
                    "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": null, "finishedAt": null,
                    "message": "The container could not be located when the pod was terminated",
                    "containerID": old.container_id,
                }})
            }
            _ if view.completed && view.memory.starting.is_none() => default_wait(),
            _ => default_wait(),
        },
        Some(one) => match one.state {
            ContainerState::Running => {
                let at = timestamp(one.started_at).unwrap_or(view.now);
                json!({"running": {"startedAt": seconds(at)}})
            }
            ContainerState::Exited => {
                let again = !view.completed && restarts(view.pod, container, role, one);
                match explained.filter(|_| again) {
                    Some(waiting) => {
                        last_state = terminated(one, runtime_name);
                        waiting_for(waiting.reason, &waiting.message)
                    }
                    None => {
                        exited = Some(one.exit_code);
                        terminated(one, runtime_name)
                    }
                }
            }
            ContainerState::Created | ContainerState::Unknown => match explained {
                Some(waiting) => waiting_for(waiting.reason, &waiting.message),
                None => default_wait(),
            },
        },
    };
    let failed = exited.is_some_and(|exit_code| {
        let ended =
            ContainerStatus { state: ContainerState::Exited, exit_code, ..ContainerStatus::default() };
        exit_code != 0 && !restarts(view.pod, container, role, &ended)
    });
    let running = state.get("running").is_some();
    let begun = running && (matches!(role, Role::Init | Role::Ephemeral) || view.memory.started(container));
    let ready = match role {
        Role::Init => exited == Some(0),
        Role::Ephemeral => false,
        Role::App | Role::Sidecar => {
            begun
                && memory.map_or(container.readiness_probe.is_none(), |memory| memory.probes.ready(container))
                || role == Role::Sidecar && view.completed && exited == Some(0)
        }
    };
    let waiting = state.get("waiting").is_some();
    let mut value = json!({
        "name": container.name,
        "state": state,
        "lastState": last_state,
        "ready": ready,
        "restartCount": restart_count(newest, old),
        "image": newest.map(|one| one.image.user_specified_image.as_str()).filter(|image| !image.is_empty())
            .unwrap_or(&container.image),
        "imageID": newest.map(image_id).unwrap_or_default(),
        "started": begun,
    });
    if role == Role::Init {
        value["started"] = json!(running);
    }
    if let Some(one) = newest {
        value["containerID"] = json!(format!("{runtime_name}://{}", one.id));
    } else if let Some(old) = old.filter(|old| !old.container_id.is_empty()) {
        value["containerID"] = json!(old.container_id);
    }
    let runs_with = newest
        .filter(|_| running && matches!(role, Role::App | Role::Sidecar))
        .and_then(|one| resize::actual(container, one, &view.memory.actuated));
    if role != Role::Ephemeral {
        let runs_with = runs_with.as_ref().unwrap_or(&container.resources);
        resources::add_to_status(&mut value, &container.resources, runs_with, running);
    }
    if !container.volume_mounts.is_empty() {
        value["volumeMounts"] = container.volume_mounts.iter().map(mount_status).collect();
    }
    if let Some(user) = newest.and_then(|one| one.user.as_ref()) {
        value["user"] = json!({"linux": {
            "uid": user.uid, "gid": user.gid, "supplementalGroups": user.supplemental_groups,
        }});
    }
    One {
        role,
        name: container.name.clone(),
        running,
        waiting,
        has_terminated_before: value["lastState"].get("terminated").is_some(),
        exited,
        failed,
        ready,
        started: begun,
        value,
    }
}

fn mount_status(mount: &crate::pod::VolumeMount) -> Value {
    let mut value = json!({"name": mount.name, "mountPath": mount.mount_path});
    if mount.read_only {
        value["readOnly"] = json!(true);
        value["recursiveReadOnly"] = json!(match mount.recursive_read_only.as_deref() {
            Some("Enabled" | "IfPossible") => "Enabled",
            _ => "Disabled",
        });
    }
    value
}

fn restart_count(newest: Option<&ContainerStatus>, old: Option<&OldContainerStatus>) -> u32 {
    let now = newest.map(|one| {
        one.annotations
            .get(crate::labels::RESTART_COUNT)
            .and_then(|count| count.parse().ok())
            .unwrap_or(one.metadata.attempt)
    });
    now.unwrap_or(0).max(old.map_or(0, |old| old.restart_count))
}

fn image_id(one: &ContainerStatus) -> String {
    if one.image_ref.is_empty() { one.image_id.clone() } else { one.image_ref.clone() }
}

fn old_status<'a>(pod: &'a Pod, name: &str) -> Option<&'a OldContainerStatus> {
    let status = &pod.status;
    status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses)
        .find(|old| old.name == name)
}

fn terminated(one: &ContainerStatus, runtime_name: &str) -> Value {
    let time = |at| timestamp(at).map(seconds);
    let reason = match (one.reason.as_str(), one.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let mut value = json!({
        "exitCode": one.exit_code,
        "reason": reason,
        "startedAt": time(one.started_at),
        "finishedAt": time(one.finished_at),
        "containerID": format!("{runtime_name}://{}", one.id),
    });
    if !one.message.is_empty() {
        value["message"] = json!(one.message);
    }
    json!({ "terminated": value })
}

fn phase(view: &StatusView<'_>, all: &[One]) -> &'static str {
    let pod = view.pod;
    // A phase that ended stays: the API server refuses to take it back, and so do we.
    match pod.status.phase.as_str() {
        "Succeeded" => return "Succeeded",
        "Failed" => return "Failed",
        _ => {}
    }
    let init_failed = all.iter().any(|one| one.role == Role::Init && one.failed);
    if init_failed {
        return "Failed";
    }
    let apps = || all.iter().filter(|one| one.role == Role::App);
    let initialized = is_initialized(view);
    if !initialized && !view.completed {
        return "Pending";
    }
    let running = apps().filter(|one| one.running).count();
    let stopped =
        apps().filter(|one| one.exited.is_some() || one.waiting && one.has_terminated_before).count();
    let succeeded = apps().filter(|one| one.exited == Some(0)).count();
    let unknown = apps().count() - running - stopped;
    if view.completed && running == 0 {
        let sidecar_runs = all.iter().any(|one| one.role == Role::Sidecar && one.running);
        let stopping = matches!(view.intent, Intent::Stop { .. });
        if sidecar_runs && !stopping {
            return "Running";
        }
        if !stopping || view.memory.finished {
            return if stopped > 0 && stopped == succeeded && unknown == 0 { "Succeeded" } else { "Failed" };
        }
        return if stopped > 0 { "Running" } else { "Pending" };
    }
    if unknown > 0 {
        return "Pending";
    }
    if running > 0 || stopped > 0 { "Running" } else { "Pending" }
}

fn conditions(view: &StatusView<'_>, all: &[One], phase: &str) -> Vec<Condition> {
    let pod = view.pod;
    let mut out = Vec::new();
    let mut add = |kind: &str, holds: bool, reason: &str, message: String| {
        let status = if holds { "True" } else { "False" };
        let known = view.conditions.iter().chain(&pod.status.conditions).find(|old| old.r#type == kind);
        let since = known.filter(|old| old.status == status).and_then(|old| old.last_transition_time);
        out.push(Condition {
            r#type: kind.into(),
            status: status.into(),
            last_transition_time: Some(since.unwrap_or(view.now)),
            reason: reason.into(),
            message,
        });
    };
    let sandbox = view.runtime.ready_sandbox().is_some();
    add("PodReadyToStartContainers", sandbox && !view.memory.finished, "", String::new());

    let incomplete = incomplete_init(view);
    let app_seen = all.iter().any(|one| {
        one.role == Role::App && (one.running || one.exited.is_some() || one.has_terminated_before)
    });
    if phase == "Succeeded" {
        add("Initialized", true, "PodCompleted", String::new());
    } else if incomplete.is_empty() || app_seen {
        add("Initialized", true, "", String::new());
    } else {
        let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
        add("Initialized", false, "ContainersNotInitialized", message);
    }

    let unready: Vec<&str> = all
        .iter()
        .filter(|one| matches!(one.role, Role::App | Role::Sidecar) && !(one.ready && one.started))
        .map(|one| one.name.as_str())
        .collect();
    let (containers_ready, reason, message) = match phase {
        "Succeeded" => (false, "PodCompleted", String::new()),
        "Failed" => (false, "PodFailed", String::new()),
        _ if unready.is_empty() => (true, "", String::new()),
        _ => {
            (false, "ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
        }
    };
    let gates = gate_problems(pod);
    if !containers_ready {
        add("Ready", false, reason, message.clone());
    } else if gates.is_empty() {
        add("Ready", true, "", String::new());
    } else {
        add("Ready", false, "ReadinessGatesNotReady", gates.join(", "));
    }
    add("ContainersReady", containers_ready, reason, message);
    add("PodScheduled", true, "", String::new());
    if let Intent::Stop { verdict: Some(verdict), .. } = view.intent
        && verdict.disruption
    {
        add("DisruptionTarget", true, "TerminationByKubelet", verdict.message.clone());
    }
    if let Some(pending) = view.pending {
        add("PodResizePending", true, pending.reason, pending.message.clone());
    }
    if *view.intent == Intent::Run && resize::is_in_progress(pod, view.runtime, view.memory, view.resized) {
        match &view.memory.resize_error {
            Some(problem) => add("PodResizeInProgress", true, "Error", problem.clone()),
            None => add("PodResizeInProgress", true, "", String::new()),
        }
    }
    out
}

fn gate_problems(pod: &Pod) -> Vec<String> {
    let mut problems = Vec::new();
    for gate in &pod.spec.readiness_gates {
        let name = &gate.condition_type;
        match pod.status.conditions.iter().find(|one| one.r#type == *name) {
            None => problems
                .push(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
            Some(one) if one.status != "True" => problems.push(format!(
                "the status of pod readiness gate {name:?} is not \"True\", but {}",
                one.status
            )),
            Some(_) => {}
        }
    }
    problems
}

#[cfg(test)]
mod tests;
