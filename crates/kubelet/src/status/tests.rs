use super::*;
use crate::resize::Pending;
use crate::state::{Attempt, Verdict, Waiting};
use cri::{ContainerMetadata, PodSandboxState, PodSandboxStatus};
use std::time::Duration;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 3}, "spec": spec,
    }))
    .unwrap()
}

fn container(name: &str, attempt: u32, state: ContainerState, code: i32) -> ContainerStatus {
    ContainerStatus {
        id: format!("{name}{attempt}"),
        pod_sandbox_id: "s".into(),
        metadata: ContainerMetadata { name: name.into(), attempt },
        state,
        exit_code: code,
        started_at: at(1).as_nanosecond() as i64,
        finished_at: at(2).as_nanosecond() as i64,
        image_ref: "sha256:1".into(),
        annotations: [(crate::labels::RESTART_COUNT.to_owned(), attempt.to_string())].into(),
        ..ContainerStatus::default()
    }
}

struct Case {
    pod: Pod,
    intent: Intent,
    runtime: RuntimeView,
    memory: Memory,
    completed: bool,
    pending: Option<Pending>,
}

impl Case {
    fn new(spec: Value, containers: Vec<ContainerStatus>) -> Self {
        let sandbox =
            PodSandboxStatus { id: "s".into(), state: PodSandboxState::Ready, ..PodSandboxStatus::default() };
        let mut runtime = RuntimeView { sandboxes: vec![sandbox], containers };
        runtime.sort();
        let memory = Memory {
            volumes: Attempt::Done,
            addresses: vec!["10.0.0.5".parse().unwrap()],
            start_time: Some(at(0)),
            ..Memory::default()
        };
        Self { pod: pod(spec), intent: Intent::Run, runtime, memory, completed: false, pending: None }
    }

    fn compute(&self) -> Computed {
        compute(&StatusView {
            pod: &self.pod,
            intent: &self.intent,
            runtime: &self.runtime,
            memory: &self.memory,
            completed: self.completed,
            pending: self.pending.as_ref(),
            resized: false,
            node: NodeFacts { addresses: &["192.0.2.1".parse().unwrap()], runtime_name: "kelson" },
            conditions: &[],
            now: at(9),
        })
    }
}

fn one(spec_of_container: Value) -> Value {
    json!({"containers": [spec_of_container]})
}

fn condition<'a>(computed: &'a Computed, kind: &str) -> (&'a str, &'a str, &'a str) {
    let found = computed.conditions.iter().find(|one| one.r#type == kind).unwrap();
    (&found.status, &found.reason, &found.message)
}

#[test]
fn a_running_pod_is_ready_with_its_addresses() {
    let case = Case::new(
        one(json!({"name": "a", "image": "x"})),
        vec![container("a", 0, ContainerState::Running, 0)],
    );
    let computed = case.compute();
    let status = &computed.status;
    assert_eq!(computed.phase, "Running");
    assert_eq!(condition(&computed, "Ready").0, "True");
    assert_eq!((status["podIP"].as_str(), status["hostIP"].as_str()), (Some("10.0.0.5"), Some("192.0.2.1")));
    assert_eq!(status["observedGeneration"], 3);
    assert_eq!(status["qosClass"], "BestEffort");
    let shown = &status["containerStatuses"][0];
    assert_eq!(shown["containerID"], "kelson://a0");
    assert_eq!((shown["ready"].as_bool(), shown["started"].as_bool()), (Some(true), Some(true)));
    assert_eq!(shown["state"]["running"]["startedAt"], "1970-01-12T13:46:41Z");
    assert_eq!(shown["lastState"], json!({}));
}

#[test]
fn phases_follow_the_containers() {
    use ContainerState::{Exited, Running};
    let two = |policy: &str| json!({"restartPolicy": policy, "containers": [{"name": "a"}, {"name": "b"}]});
    let c = container;
    for (policy, containers, completed, wanted) in [
        ("Always", vec![], false, "Pending"),
        ("Always", vec![c("a", 0, Running, 0)], false, "Pending"),
        ("Always", vec![c("a", 0, Running, 0), c("b", 0, Running, 0)], false, "Running"),
        ("Always", vec![c("a", 0, Running, 0), c("b", 0, Exited, 1)], false, "Running"),
        ("Always", vec![c("a", 0, Exited, 0), c("b", 0, Exited, 0)], false, "Running"),
        ("OnFailure", vec![c("a", 0, Exited, 0), c("b", 0, Exited, 1)], false, "Running"),
        ("Never", vec![c("a", 0, Exited, 0), c("b", 0, Exited, 0)], true, "Succeeded"),
        ("Never", vec![c("a", 0, Exited, 0), c("b", 0, Exited, 1)], true, "Failed"),
    ] {
        let mut case = Case::new(two(policy), containers.clone());
        case.completed = completed;
        assert_eq!(case.compute().phase, wanted, "{policy} {containers:?}");
    }
}

#[test]
fn a_finished_phase_is_never_taken_back() {
    let mut case = Case::new(one(json!({"name": "a"})), vec![]);
    case.pod.status.phase = "Succeeded".into();
    assert_eq!(case.compute().phase, "Succeeded");
}

#[test]
fn a_crash_loop_shows_why_it_waits_and_how_it_ended() {
    let mut case = Case::new(one(json!({"name": "a"})), vec![container("a", 2, ContainerState::Exited, 7)]);
    case.memory.container("a").waiting =
        Some(Waiting { reason: "CrashLoopBackOff", message: "back-off 20s".into() });
    let computed = case.compute();
    let shown = &computed.status["containerStatuses"][0];
    assert_eq!(shown["state"]["waiting"]["reason"], "CrashLoopBackOff");
    assert_eq!(shown["lastState"]["terminated"]["exitCode"], 7);
    assert_eq!(shown["restartCount"], 2);
    assert_eq!(computed.phase, "Running");
    assert_eq!(
        condition(&computed, "ContainersReady"),
        ("False", "ContainersNotReady", "containers with unready status: [a]")
    );
}

#[test]
fn the_last_state_is_that_of_the_container_before() {
    let case = Case::new(
        one(json!({"name": "a"})),
        vec![container("a", 0, ContainerState::Exited, 1), container("a", 1, ContainerState::Running, 0)],
    );
    let computed = case.compute();
    let shown = &computed.status["containerStatuses"][0];
    assert_eq!(shown["lastState"]["terminated"]["containerID"], "kelson://a0");
    assert_eq!(shown["lastState"]["terminated"]["reason"], "Error");
    assert_eq!(shown["restartCount"], 1);
}

#[test]
fn an_unready_probe_makes_an_unready_pod() {
    let mut case = Case::new(
        one(json!({"name": "a", "readinessProbe": {}})),
        vec![container("a", 0, ContainerState::Running, 0)],
    );
    case.memory.container("a").probes.follow("a0", None);
    assert_eq!(condition(&case.compute(), "Ready").0, "False");
    let container = case.pod.spec.containers[0].clone();
    case.memory.container("a").probes.record(crate::probes::Kind::Readiness, "a0", &container, true);
    assert_eq!(condition(&case.compute(), "Ready").0, "True");
}

#[test]
fn readiness_gates_are_asked() {
    let spec = json!({"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "lb.io/ok"}]});
    let mut case = Case::new(spec, vec![container("a", 0, ContainerState::Running, 0)]);
    let computed = case.compute();
    assert_eq!(condition(&computed, "Ready").1, "ReadinessGatesNotReady");
    assert_eq!(condition(&computed, "ContainersReady").0, "True");
    case.pod.status.conditions =
        vec![Condition { r#type: "lb.io/ok".into(), status: "True".into(), ..Condition::default() }];
    assert_eq!(condition(&case.compute(), "Ready").0, "True");
}

#[test]
fn init_containers_hold_the_pod_pending() {
    let spec = json!({"initContainers": [{"name": "i"}], "containers": [{"name": "a"}]});
    let case = Case::new(spec.clone(), vec![container("i", 0, ContainerState::Running, 0)]);
    let computed = case.compute();
    assert_eq!(computed.phase, "Pending");
    assert_eq!(
        condition(&computed, "Initialized"),
        ("False", "ContainersNotInitialized", "containers with incomplete status: [i]")
    );
    assert_eq!(computed.status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    let case = Case::new(spec, vec![container("i", 0, ContainerState::Exited, 0)]);
    let computed = case.compute();
    assert_eq!(condition(&computed, "Initialized").0, "True");
    assert_eq!(computed.status["initContainerStatuses"][0]["ready"], true);
    assert_eq!(computed.status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
}

/// As upstream's: also of init containers that wait for their turn.
#[test]
fn a_waiting_init_container_says_that_the_pod_initializes() {
    let spec = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]});
    let computed = Case::new(spec, vec![container("i", 0, ContainerState::Exited, 1)]).compute();
    let waiting = &computed.status["initContainerStatuses"][1]["state"]["waiting"];
    assert_eq!(waiting["reason"], "PodInitializing");
    let spec = json!({"containers": [{"name": "a"}]});
    let computed = Case::new(spec, vec![]).compute();
    let waiting = &computed.status["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "ContainerCreating");
}

/// The status tells apart what a pod was given and what its containers run with.
#[test]
fn a_resize_is_claimed_once_it_is_made() {
    let asks = |memory: &str| {
        json!({"containers": [{"name": "a", "resources": {
            "requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": memory}}}]})
    };
    let mut running = container("a", 0, ContainerState::Running, 0);
    running.pod_sandbox_id = "s".into();
    running.resources = cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 100_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    };
    let resizes = |computed: &Computed| -> Vec<String> {
        let found = computed.conditions.iter().filter(|one| one.r#type.starts_with("PodResize"));
        found.map(|one| format!("{} {} {}", one.r#type, one.status, one.reason)).collect()
    };
    let computed = Case::new(asks("64Mi"), vec![running.clone()]).compute();
    let shown = &computed.status["containerStatuses"][0];
    assert_eq!(shown["resources"]["limits"]["memory"], "64Mi");
    assert_eq!(resizes(&computed), [""; 0]);

    let mut case = Case::new(asks("128Mi"), vec![running]);
    let computed = case.compute();
    let shown = &computed.status["containerStatuses"][0];
    assert_eq!(shown["resources"]["limits"]["memory"], "67108864");
    assert_eq!(shown["allocatedResources"]["cpu"], "500m");
    assert_eq!(resizes(&computed), ["PodResizeInProgress True "]);
    case.memory.resize_error = Some("no".into());
    case.pending = Some(Pending { reason: "Deferred", message: "later".into() });
    assert_eq!(
        resizes(&case.compute()),
        ["PodResizePending True Deferred", "PodResizeInProgress True Error"]
    );

    // Made: what was told before has to go.
    case.pending = None;
    case.pod.status.conditions = case.compute().conditions;
    case.memory
        .actuated
        .containers
        .insert(case.runtime.containers[0].id.clone(), case.pod.spec.containers[0].resources.clone());
    let computed = case.compute();
    assert_eq!(computed.status["containerStatuses"][0]["resources"]["limits"]["memory"], "128Mi");
    assert_eq!(resizes(&computed), [""; 0]);
    let gone = json!({"$patch": "delete", "type": "PodResizeInProgress"});
    assert!(computed.patch["conditions"].as_array().unwrap().contains(&gone), "{:#}", computed.patch);
}

#[test]
fn a_verdict_fails_the_pod_with_its_words() {
    let mut case = Case::new(one(json!({"name": "a"})), vec![]);
    let verdict = Verdict {
        reason: "Evicted".into(),
        message: "no room".into(),
        disruption: true,
        ..Verdict::default()
    };
    case.intent = Intent::Stop { grace: Duration::ZERO, verdict: Some(verdict) };
    case.completed = true;
    let computed = case.compute();
    assert_eq!((computed.phase, computed.status["reason"].as_str()), ("Failed", Some("Evicted")));
    assert_eq!(condition(&computed, "Ready").1, "PodFailed");
    assert_eq!(condition(&computed, "DisruptionTarget"), ("True", "TerminationByKubelet", "no room"));
    // Not before its last container ended: who counts failed pods would start another beside it.
    case.runtime.containers = vec![container("a", 0, ContainerState::Running, 0)];
    assert_eq!(case.compute().phase, "Running");
}

#[test]
fn a_pod_that_is_being_deleted_stays_running_until_it_stopped() {
    let mut case = Case::new(one(json!({"name": "a"})), vec![container("a", 0, ContainerState::Exited, 0)]);
    case.intent = Intent::Stop { grace: Duration::ZERO, verdict: None };
    case.completed = true;
    assert_eq!(case.compute().phase, "Running");
    case.memory.finished = true;
    assert_eq!(case.compute().phase, "Succeeded");
}

#[test]
fn transition_times_are_kept() {
    let case = Case::new(one(json!({"name": "a"})), vec![container("a", 0, ContainerState::Running, 0)]);
    let before = case.compute().conditions;
    let after = compute(&StatusView {
        pod: &case.pod,
        intent: &case.intent,
        runtime: &case.runtime,
        memory: &case.memory,
        completed: false,
        pending: None,
        resized: false,
        node: NodeFacts { addresses: &[], runtime_name: "kelson" },
        conditions: &before,
        now: at(99),
    });
    assert_eq!(after.conditions, before);
}
