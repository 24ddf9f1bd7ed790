use super::*;
use crate::backoff::{FIRST, LONGEST};
use crate::state::Condemned;
use cri::{ContainerMetadata, PodSandboxMetadata, PodSandboxStatus};
use serde_json::{Value, json};

const GRACE: Duration = Duration::from_secs(30);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(10_000 + second).unwrap()
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}))
        .unwrap()
}

fn app() -> Pod {
    pod(json!({"containers": [{"name": "a", "image": "x"}]}))
}

fn sandbox(id: &str, attempt: u32, state: PodSandboxState) -> PodSandboxStatus {
    PodSandboxStatus {
        id: id.into(),
        metadata: PodSandboxMetadata { attempt, ..PodSandboxMetadata::default() },
        state,
        created_at: i64::from(attempt) + 1,
        ..PodSandboxStatus::default()
    }
}

fn container(pod: &Pod, name: &str, attempt: u32, state: ContainerState) -> ContainerStatus {
    let hash = pod.container(name).map(|(_, container)| container.hash()).unwrap_or_default();
    ContainerStatus {
        id: format!("{name}{attempt}"),
        pod_sandbox_id: "s0".into(),
        metadata: ContainerMetadata { name: name.into(), attempt },
        state,
        created_at: i64::from(attempt) + 1,
        finished_at: at(0).as_nanosecond() as i64,
        annotations: [(crate::labels::HASH.to_owned(), hash)].into(),
        ..ContainerStatus::default()
    }
}

fn exited(pod: &Pod, name: &str, attempt: u32, code: i32) -> ContainerStatus {
    ContainerStatus { exit_code: code, ..container(pod, name, attempt, ContainerState::Exited) }
}

/// A pod with a ready sandbox and volumes, and these containers.
fn up(containers: Vec<ContainerStatus>) -> (RuntimeView, Memory) {
    let mut runtime = RuntimeView { sandboxes: vec![sandbox("s0", 0, PodSandboxState::Ready)], containers };
    runtime.sort();
    (runtime, Memory { volumes: Attempt::Done, sandbox: Attempt::Done, ..Memory::default() })
}

fn decide(pod: &Pod, runtime: &RuntimeView, memory: &Memory, now: Timestamp) -> Plan {
    plan(&View { pod, intent: &Intent::Run, runtime, memory, resized: false, now })
}

fn stop_plan(pod: &Pod, runtime: &RuntimeView, memory: &Memory) -> Plan {
    let intent = Intent::Stop { grace: GRACE, verdict: None };
    plan(&View { pod, intent: &intent, runtime, memory, resized: false, now: at(0) })
}

/// The actions in short: what and on whom.
fn short(plan: &Plan) -> Vec<String> {
    plan.actions
        .iter()
        .map(|action| match action {
            Action::Mount => "mount".into(),
            Action::RunSandbox { attempt } => format!("sandbox {attempt}"),
            Action::Start { name, attempt, .. } => format!("start {name} {attempt}"),
            Action::Kill { id, .. } => format!("kill {id}"),
            Action::Resize { change, .. } => format!("resize {}", change.updated.len()),
            Action::StopSandbox { id } => format!("stop {id}"),
            Action::RemoveContainer { id } => format!("remove {id}"),
            Action::RemoveSandbox { id } => format!("remove {id}"),
            Action::Finish => "finish".into(),
            Action::AnnounceBackOff { name, .. } => format!("announce {name}"),
        })
        .collect()
}

#[test]
fn a_new_pod_gets_volumes_and_sandbox_at_the_same_time() {
    let plan = decide(&app(), &RuntimeView::default(), &Memory::default(), at(0));
    assert_eq!(short(&plan), ["mount", "sandbox 0"]);
}

#[test]
fn nothing_is_started_twice() {
    let memory = Memory { volumes: Attempt::Running, sandbox: Attempt::Running, ..Memory::default() };
    assert_eq!(short(&decide(&app(), &RuntimeView::default(), &memory, at(0))), [""; 0]);
    let (runtime, mut memory) = up(vec![]);
    memory.starting = Some("a".into());
    assert_eq!(short(&decide(&app(), &runtime, &memory, at(0))), [""; 0]);
}

#[test]
fn a_container_waits_for_volumes() {
    let (runtime, mut memory) = up(vec![]);
    memory.volumes = Attempt::Running;
    assert_eq!(short(&decide(&app(), &runtime, &memory, at(0))), [""; 0]);
    memory.volumes = Attempt::Failed { message: String::new(), retry_at: at(5) };
    let plan = decide(&app(), &runtime, &memory, at(0));
    assert_eq!((short(&plan), plan.wake_at), (vec![], Some(at(5))));
    assert_eq!(short(&decide(&app(), &runtime, &memory, at(5))), ["mount"]);
}

#[test]
fn containers_start_one_after_the_other() {
    let pod = pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    let (runtime, memory) = up(vec![]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start a 0"]);
    let (runtime, memory) = up(vec![container(&pod, "a", 0, ContainerState::Running)]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start b 0"]);
}

#[test]
fn a_container_that_waits_does_not_hold_up_the_next() {
    let pod = pod(json!({"containers": [{"name": "a"}, {"name": "b"}]}));
    let (runtime, mut memory) = up(vec![]);
    memory.container("a").retry_at = Some(at(7));
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert_eq!((short(&plan), plan.wake_at), (vec!["start b 0".to_owned()], Some(at(7))));
}

#[test]
fn restart_policy_decides_what_happens_to_the_exited() {
    for (policy, code, wanted, completed) in [
        ("Always", 0, vec!["start a 1"], false),
        ("Always", 1, vec!["start a 1"], false),
        ("OnFailure", 0, vec!["stop s0"], true),
        ("OnFailure", 1, vec!["start a 1"], false),
        ("Never", 0, vec!["stop s0"], true),
        ("Never", 1, vec!["stop s0"], true),
    ] {
        let pod = pod(json!({"restartPolicy": policy, "containers": [{"name": "a"}]}));
        let (runtime, memory) = up(vec![exited(&pod, "a", 0, code)]);
        let plan = decide(&pod, &runtime, &memory, at(0));
        assert_eq!(
            (short(&plan), plan.completed),
            (wanted.iter().map(ToString::to_string).collect(), completed),
            "{policy} {code}"
        );
    }
}

#[test]
fn a_crashing_container_waits_out_its_back_off() {
    let pod = app();
    let (runtime, mut memory) = up(vec![exited(&pod, "a", 3, 1)]);
    memory.container("a").crashes.next(at(-1), at(-1), FIRST, LONGEST);
    let plan = decide(&pod, &runtime, &memory, at(1));
    assert_eq!((short(&plan), plan.wake_at), (vec!["announce a".to_owned()], Some(at(10))));
    memory.container("a").announced = Some("a3".into());
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(1))), [""; 0], "told once");
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(10))), ["start a 4"]);
}

#[test]
fn rules_of_a_container_come_before_its_policy() {
    let rule = |operator: &str, value: i32| json!([{"action": "Restart", "exitCodes": {"operator": operator, "values": [value]}}]);
    for (own, rules, code, again) in [
        (json!("Never"), rule("In", 42), 42, true),
        (json!("Never"), rule("In", 42), 1, false),
        (json!("Never"), rule("NotIn", 42), 1, true),
        (json!("OnFailure"), rule("In", 42), 1, true),
        (json!("OnFailure"), rule("In", 42), 0, false),
        (json!("Never"), json!([]), 1, false),
        // The container's own policy stands above the pod's.
        (json!("Always"), json!([]), 0, true),
    ] {
        let app = json!({"name": "a", "restartPolicy": own, "restartPolicyRules": rules});
        let pod = pod(json!({"restartPolicy": "Never", "containers": [app]}));
        let last = exited(&pod, "a", 0, code);
        assert_eq!(restarts(&pod, &pod.spec.containers[0], Role::App, &last), again, "{app} {code}");
    }
    // An init container that may not restart ends the pod, though the others would.
    let init = json!({"name": "i", "restartPolicy": "Never", "restartPolicyRules": rule("In", 42)});
    let pod = pod(json!({"initContainers": [init], "containers": [{"name": "a"}]}));
    for (code, completed) in [(42, false), (1, true), (0, false)] {
        let (runtime, memory) = up(vec![exited(&pod, "i", 0, code)]);
        assert_eq!(decide(&pod, &runtime, &memory, at(60)).completed, completed, "{code}");
    }
}

#[test]
fn restart_counts_survive_forgotten_containers() {
    let mut pod = app();
    pod.status = serde_json::from_value(json!({"containerStatuses": [
        {"name": "a", "restartCount": 4, "containerID": "kelson://old"}]}))
    .unwrap();
    let (runtime, memory) = up(vec![]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start a 5"]);
}

#[test]
fn init_containers_run_in_order_and_to_success() {
    let pod = pod(json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]}));
    let done = |name| exited(&pod, name, 0, 0);
    for (containers, wanted) in [
        (vec![], "start i 0"),
        (vec![container(&pod, "i", 0, ContainerState::Running)], ""),
        (vec![done("i")], "start j 0"),
        (vec![exited(&pod, "i", 0, 1)], "start i 1"),
        (vec![done("i"), container(&pod, "j", 0, ContainerState::Running)], ""),
        (vec![done("i"), done("j")], "start a 0"),
        (vec![done("i"), done("j"), container(&pod, "a", 0, ContainerState::Running)], ""),
    ] {
        let (runtime, memory) = up(containers);
        assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))).join(","), wanted);
    }
}

#[test]
fn a_failed_init_container_ends_a_pod_that_never_restarts() {
    let pod = pod(
        json!({"restartPolicy": "Never", "initContainers": [{"name": "i"}], "containers": [{"name": "a"}]}),
    );
    let (runtime, memory) = up(vec![exited(&pod, "i", 0, 1)]);
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert_eq!((short(&plan), plan.completed), (vec!["stop s0".to_owned()], true));
}

#[test]
fn a_sidecar_has_to_be_started_but_not_finished() {
    let pod = pod(json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always", "startupProbe": {}}, {"name": "i"}],
        "containers": [{"name": "a"}],
    }));
    let (runtime, mut memory) = up(vec![container(&pod, "s", 0, ContainerState::Running)]);
    memory.container("s").probes.follow("s0", None);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), [""; 0], "not started");
    let (_, sidecar) = pod.container("s").unwrap();
    memory.container("s").probes.record(crate::probes::Kind::Startup, "s0", sidecar, true);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start i 0"]);
}

#[test]
fn a_sidecar_comes_back_while_the_app_runs() {
    let pod = pod(json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}],
    }));
    let (runtime, memory) =
        up(vec![exited(&pod, "s", 0, 0), container(&pod, "a", 0, ContainerState::Running)]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start s 1"]);
}

#[test]
fn a_finished_pod_stops_its_sidecars_then_its_sandbox() {
    let pod = pod(json!({
        "restartPolicy": "Never",
        "initContainers": [{"name": "s", "restartPolicy": "Always"}, {"name": "t", "restartPolicy": "Always"}],
        "containers": [{"name": "a"}],
    }));
    let sidecars =
        |s, t| vec![exited(&pod, "a", 0, 0), container(&pod, "s", 0, s), container(&pod, "t", 0, t)];
    let (runtime, memory) = up(sidecars(ContainerState::Running, ContainerState::Running));
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert_eq!((short(&plan), plan.completed), (vec!["kill t0".to_owned()], true), "the last one first");
    let (runtime, memory) = up(sidecars(ContainerState::Running, ContainerState::Exited));
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["kill s0"]);
    let (runtime, memory) = up(sidecars(ContainerState::Exited, ContainerState::Exited));
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["stop s0"]);
}

#[test]
fn an_ephemeral_container_starts_beside_the_others_and_never_again() {
    let pod = pod(json!({"containers": [{"name": "a"}], "ephemeralContainers": [{"name": "e"}]}));
    let running = container(&pod, "a", 0, ContainerState::Running);
    let (runtime, memory) = up(vec![running.clone()]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start e 0"]);
    let (runtime, memory) = up(vec![running, exited(&pod, "e", 0, 1)]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), [""; 0]);
}

#[test]
fn a_changed_image_replaces_the_container() {
    let old = app();
    let (runtime, memory) = up(vec![container(&old, "a", 0, ContainerState::Running)]);
    let new = pod(json!({"containers": [{"name": "a", "image": "y"}]}));
    let plan = decide(&new, &runtime, &memory, at(0));
    assert!(matches!(&plan.actions[..], [Action::Kill { cause: Cause::SpecChanged, .. }]), "{plan:?}");
}

#[test]
fn a_probe_that_gave_up_kills_with_its_own_grace() {
    let pod = app();
    let (runtime, mut memory) = up(vec![container(&pod, "a", 0, ContainerState::Running)]);
    let condemned = Condemned { container_id: "a0".into(), message: "dead".into(), grace_seconds: Some(5) };
    memory.container("a").condemned = Some(condemned);
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert_eq!(
        plan.actions,
        [Action::Kill {
            id: "a0".into(),
            name: "a".into(),
            cause: Cause::Probe("dead".into()),
            grace: Duration::from_secs(5)
        }]
    );
    memory.killing.insert("a0".into(), at(5));
    assert_eq!(decide(&pod, &runtime, &memory, at(1)).actions, [], "it is being killed");
}

#[test]
fn a_dead_sandbox_is_replaced_after_its_containers_ended() {
    let pod = app();
    let mut runtime = RuntimeView {
        sandboxes: vec![sandbox("s0", 0, PodSandboxState::NotReady)],
        containers: vec![container(&pod, "a", 0, ContainerState::Running)],
    };
    let memory = Memory { volumes: Attempt::Done, sandbox: Attempt::Done, ..Memory::default() };
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["kill a0"]);
    runtime.containers[0].state = ContainerState::Exited;
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["sandbox 1"]);
}

#[test]
fn containers_start_again_in_a_new_sandbox_and_the_old_one_goes() {
    let pod = app();
    let mut runtime = RuntimeView {
        sandboxes: vec![
            sandbox("s0", 0, PodSandboxState::NotReady),
            sandbox("s1", 1, PodSandboxState::Ready),
        ],
        containers: vec![exited(&pod, "a", 0, 137)],
    };
    runtime.sort();
    let memory = Memory { volumes: Attempt::Done, sandbox: Attempt::Done, ..Memory::default() };
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["start a 1"], "the log is kept until then");
    let mut next = container(&pod, "a", 1, ContainerState::Running);
    next.pod_sandbox_id = "s1".into();
    runtime.containers.push(next);
    runtime.sort();
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["remove s0"]);
}

#[test]
fn a_sandbox_that_failed_is_tried_again_later() {
    let memory = Memory {
        volumes: Attempt::Done,
        sandbox: Attempt::Failed { message: String::new(), retry_at: at(3) },
        ..Memory::default()
    };
    let plan = decide(&app(), &RuntimeView::default(), &memory, at(0));
    assert_eq!((short(&plan), plan.wake_at), (vec![], Some(at(3))));
    assert_eq!(short(&decide(&app(), &RuntimeView::default(), &memory, at(3))), ["sandbox 0"]);
}

#[test]
fn an_adopted_pod_is_left_as_it_is() {
    let pod = app();
    let (runtime, memory) = up(vec![container(&pod, "a", 2, ContainerState::Running)]);
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert_eq!(plan, Plan::default());
}

#[test]
fn stopping_kills_then_stops_then_finishes() {
    let pod = app();
    let (runtime, mut memory) = up(vec![container(&pod, "a", 0, ContainerState::Running)]);
    let plan = stop_plan(&pod, &runtime, &memory);
    assert!(
        matches!(&plan.actions[..], [Action::Kill { cause: Cause::PodStops, grace: GRACE, .. }]),
        "{plan:?}"
    );
    memory.killing.insert("a0".into(), at(30));
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), [""; 0]);
    let (mut runtime, memory) = up(vec![exited(&pod, "a", 0, 143)]);
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), ["stop s0"]);
    runtime.sandboxes[0].state = PodSandboxState::NotReady;
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), ["finish"]);
    let memory = Memory { finished: true, ..memory };
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), [""; 0]);
}

#[test]
fn less_grace_makes_the_kill_come_sooner() {
    let pod = app();
    let (runtime, mut memory) = up(vec![container(&pod, "a", 0, ContainerState::Running)]);
    memory.killing.insert("a0".into(), at(60));
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), ["kill a0"]);
}

#[test]
fn sidecars_outlive_the_app_while_stopping() {
    let pod = pod(json!({
        "initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}],
    }));
    let running = |name| container(&pod, name, 0, ContainerState::Running);
    let (runtime, memory) = up(vec![running("s"), running("a")]);
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), ["kill a0"]);
    let (runtime, memory) = up(vec![running("s"), exited(&pod, "a", 0, 0)]);
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), ["kill s0"]);
}

#[test]
fn a_start_under_way_is_waited_for() {
    let pod = app();
    let (runtime, mut memory) = up(vec![]);
    memory.starting = Some("a".into());
    assert_eq!(short(&stop_plan(&pod, &runtime, &memory)), [""; 0]);
}

#[test]
fn a_pod_that_never_ran_finishes_at_once() {
    assert_eq!(short(&stop_plan(&app(), &RuntimeView::default(), &Memory::default())), ["finish"]);
}

#[test]
fn the_kill_of_a_forced_deletion_still_asks_first() {
    let pod = app();
    let (runtime, memory) = up(vec![container(&pod, "a", 0, ContainerState::Running)]);
    let intent = Intent::Stop { grace: Duration::ZERO, verdict: None };
    let plan = plan(&View {
        pod: &pod,
        intent: &intent,
        runtime: &runtime,
        memory: &memory,
        resized: false,
        now: at(0),
    });
    assert!(matches!(&plan.actions[..], [Action::Kill { grace: SHORTEST_GRACE, .. }]), "{plan:?}");
}

#[test]
fn only_the_last_dead_container_of_a_name_is_kept() {
    let pod = app();
    let (runtime, memory) = up(vec![
        exited(&pod, "a", 0, 1),
        exited(&pod, "a", 1, 1),
        exited(&pod, "a", 2, 1),
        container(&pod, "a", 3, ContainerState::Running),
    ]);
    assert_eq!(short(&decide(&pod, &runtime, &memory, at(0))), ["remove a1", "remove a0"]);
}

#[test]
fn a_container_of_an_unknown_state_is_killed_first() {
    let pod = app();
    let (runtime, memory) = up(vec![container(&pod, "a", 0, ContainerState::Unknown)]);
    let plan = decide(&pod, &runtime, &memory, at(0));
    assert!(short(&plan).contains(&"kill a0".to_owned()), "{plan:?}");
}

#[test]
fn what_runs_with_less_than_it_was_given_is_resized_and_restarted_where_it_must_be() {
    let asks = |memory: &str, policy: &str| {
        pod(
            json!({"restartPolicy": "OnFailure", "containers": [{"name": "a", "resources": {"limits": {"memory": memory}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]}]}),
        )
    };
    let (runtime, mut memory) = up(vec![container(&asks("1Mi", ""), "a", 0, ContainerState::Running)]);
    let before = asks("1Mi", "").spec.containers[0].resources.clone();
    memory.actuated.containers.insert(runtime.containers[0].id.clone(), before);
    assert_eq!(short(&decide(&asks("1Mi", "NotRequired"), &runtime, &memory, at(0))), [""; 0]);
    assert_eq!(short(&decide(&asks("2Mi", "NotRequired"), &runtime, &memory, at(0))), ["resize 1"]);
    memory.resize = Attempt::Failed { message: String::new(), retry_at: at(5) };
    let plan = decide(&asks("2Mi", "NotRequired"), &runtime, &memory, at(0));
    assert_eq!((short(&plan).len(), plan.wake_at), (0, Some(at(5))));
    let plan = decide(&asks("2Mi", "RestartContainer"), &runtime, &memory, at(0));
    assert!(matches!(&plan.actions[..], [Action::Kill { cause: Cause::Resize, .. }]), "{:?}", plan.actions);
    // It is started again even where its policy would leave it ended.
    let (ended, mut memory) = up(vec![exited(&asks("1Mi", ""), "a", 0, 0)]);
    assert!(decide(&asks("2Mi", "RestartContainer"), &ended, &memory, at(0)).completed);
    memory.container("a").resize_restart = Some(ended.containers[0].id.clone());
    assert_eq!(short(&decide(&asks("2Mi", "RestartContainer"), &ended, &memory, at(0))), ["start a 1"]);
}
