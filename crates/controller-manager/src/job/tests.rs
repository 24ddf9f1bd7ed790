use super::*;
use crate::testing::{now, object, pod};

fn job(more: Value) -> Job {
    let mut value = json!({"metadata":{"name":"j","namespace":"n","uid":"j1","resourceVersion":"5"},
        "spec":{"parallelism":2,"completions":3,"backoffLimit":2,"selector":{"matchLabels":{"app":"web"}},
            "template":{"metadata":{"labels":{"app":"web"}},"spec":{"restartPolicy":"Never","containers":[{"name":"c"}]}}},
        "status":{"startTime":"2026-01-01T11:00:00Z"}});
    controller_runtime::merge(&mut value, &more);
    object(value)
}

fn of(name: &str, phase: &str, more: Value) -> Arc<Pod> {
    let mut value = json!({"metadata":{"finalizers":[FINALIZER]},"spec":{"restartPolicy":"Never"},"status":{"phase":phase,
        "containerStatuses":[{"name":"c","state":{"terminated":{"exitCode":1,"finishedAt":"2026-01-01T11:30:00Z"}}}]}});
    controller_runtime::merge(&mut value, &more);
    Arc::new(pod(name, value))
}

fn plan(job: Job, pods: Vec<Arc<Pod>>) -> Plan {
    reconcile(&View { job: Arc::new(job), pods: Claims { mine: pods, ..Claims::default() }, now: now() })
}

fn status(plan: &Plan) -> Value {
    let found = plan.changes().into_iter().find(|(_, change)| change.get("status").is_some());
    found.map(|(_, change)| change["status"].clone()).unwrap_or_default()
}

fn freed(plan: &Plan) -> Vec<&str> {
    let is_freed = |change: &Value| change["metadata"].get("$deleteFromPrimitiveList/finalizers").is_some();
    plan.changes().into_iter().filter(|(_, change)| is_freed(change)).map(|(name, _)| name).collect()
}

#[test]
fn pods_are_made_up_to_the_parallelism_and_what_is_left_to_do() {
    let made = plan(job(json!({})), vec![]);
    assert_eq!(made.creates().len(), 2);
    assert_eq!(made.creates()[0]["metadata"]["finalizers"], json!([FINALIZER]));
    let nearly = plan(job(json!({"status":{"succeeded":2}})), vec![]);
    assert_eq!(nearly.creates().len(), 1);
}

#[test]
fn an_end_is_noted_before_the_finalizer_goes_and_counted_after() {
    let first = plan(job(json!({})), vec![of("a", "Succeeded", json!({}))]);
    assert_eq!(status(&first)["uncountedTerminatedPods"]["succeeded"], json!(["a"]));
    assert_eq!(freed(&first), ["a"]);
    let stages: Vec<usize> = first.stages().iter().map(Vec::len).collect();
    assert_eq!(stages[..2], [1, 1], "the status is written before the finalizer goes");

    let noted = json!({"status":{"uncountedTerminatedPods":{"succeeded":["a"]}}});
    let second = plan(job(noted), vec![of("a", "Succeeded", json!({"metadata":{"finalizers":[]}}))]);
    assert_eq!(status(&second)["succeeded"], 1);
    assert_eq!(status(&second)["uncountedTerminatedPods"], json!({"succeeded":null}));
}

#[test]
fn a_job_completes_in_two_steps() {
    let done = job(json!({"status":{"succeeded":2}}));
    let first = plan(done, vec![of("a", "Succeeded", json!({}))]);
    let conditions = status(&first)["conditions"].clone();
    assert_eq!(
        (&conditions[0]["type"], conditions.as_array().unwrap().len()),
        (&json!("SuccessCriteriaMet"), 1)
    );

    let announced =
        job(json!({"status":{"succeeded":2,"uncountedTerminatedPods":{"succeeded":["a"]},"conditions":[
        {"type":"SuccessCriteriaMet","status":"True","reason":"CompletionsReached","message":"m"}]}}));
    let second = plan(announced, vec![of("a", "Succeeded", json!({"metadata":{"finalizers":[]}}))]);
    assert_eq!(status(&second)["conditions"][1]["type"], "Complete");
    assert_eq!(status(&second)["completionTime"], "2026-01-01T12:00:00Z");
    assert_eq!(second.events()[0].reason, "Completed");
}

#[test]
fn too_many_failures_end_the_job_and_its_pods() {
    let failing = job(json!({"status":{"failed":2}}));
    let running = of("r", "Running", json!({"status":{"containerStatuses":[]}}));
    let ended = plan(failing, vec![of("a", "Failed", json!({})), running]);
    assert_eq!(status(&ended)["conditions"][0]["reason"], "BackoffLimitExceeded");
    assert_eq!(ended.deletes(), ["r"]);
    assert!(ended.creates().is_empty());
}

#[test]
fn failures_slow_the_next_pods_down() {
    let fresh = json!({"status":{"containerStatuses":[{"name":"c","state":{"terminated":{"exitCode":1,"finishedAt":"2026-01-01T11:59:55Z"}}}]}});
    let waiting = plan(job(json!({"spec":{"backoffLimit":6}})), vec![of("a", "Failed", fresh)]);
    assert!(waiting.creates().is_empty());
    assert_eq!(waiting.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:00:05Z"));
}

#[test]
fn a_suspended_job_runs_nothing_and_says_so() {
    let running = of("r", "Running", json!({"status":{"containerStatuses":[]}}));
    let paused = plan(job(json!({"spec":{"suspend":true}})), vec![running]);
    assert_eq!(
        (freed(&paused), paused.deletes()),
        (vec!["r"], vec!["r"]),
        "it did not fail: nobody counts it"
    );
    assert_eq!(status(&paused)["conditions"][0]["reason"], "JobSuspended");
    assert_eq!(status(&paused)["startTime"], Value::Null);
    assert_eq!(paused.events()[0].reason, "Suspended");
}

#[test]
fn the_deadline_ends_the_job() {
    let late = plan(job(json!({"spec":{"activeDeadlineSeconds":60}})), vec![]);
    assert_eq!(status(&late)["conditions"][0]["reason"], "DeadlineExceeded");
    let early = plan(job(json!({"spec":{"activeDeadlineSeconds":7200}})), vec![]);
    assert_eq!(early.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T13:00:00Z"));
}

#[test]
fn a_failure_policy_decides() {
    let with = |action: &str| {
        job(json!({"spec":{"podFailurePolicy":{"rules":[
            {"action":action,"onExitCodes":{"operator":"In","values":[1]}}]}}}))
    };
    let failed = plan(with("FailJob"), vec![of("a", "Failed", json!({}))]);
    assert_eq!(
        status(&failed)["conditions"][0]["message"],
        "Container c for pod n/a failed with exit code 1 matching FailJob rule at index 0"
    );
    let ignored = plan(with("Ignore"), vec![of("a", "Failed", json!({}))]);
    assert!(status(&ignored)["uncountedTerminatedPods"]["failed"].is_null());
    assert_eq!(freed(&ignored), ["a"]);
}

fn indexed(name: &str, index: i64, phase: &str, failures: i64) -> Arc<Pod> {
    of(
        name,
        phase,
        json!({"metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":index.to_string(),
        "batch.kubernetes.io/job-index-failure-count":failures.to_string()}}}),
    )
}

#[test]
fn indexes_are_handed_out_in_order_and_remembered() {
    let job = job(json!({"spec":{"completionMode":"Indexed","parallelism":3}}));
    let step = plan(job, vec![indexed("a", 1, "Succeeded", 0)]);
    assert_eq!(status(&step)["completedIndexes"], "1");
    let names: Vec<&Value> = step.creates().iter().map(|pod| &pod["metadata"]["generateName"]).collect();
    assert_eq!(names, ["j-0-", "j-2-"]);
    assert_eq!(step.creates()[0]["spec"]["hostname"], "j-0");
    assert_eq!(step.creates()[0]["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
}

#[test]
fn an_index_fails_after_its_own_limit_and_passes_its_count_on() {
    let per_index = json!({"spec":{"completionMode":"Indexed","parallelism":3,"backoffLimit":100,"backoffLimitPerIndex":1}});
    let step = plan(job(per_index.clone()), vec![indexed("a", 0, "Failed", 0)]);
    assert_eq!(
        step.creates()[0]["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"],
        "1"
    );
    assert!(freed(&step).is_empty(), "the failed pod stays until its successor exists");
    let step = plan(job(per_index), vec![indexed("a", 0, "Failed", 1)]);
    assert_eq!(status(&step)["failedIndexes"], "0");
    assert_eq!(step.creates().len(), 2);
}

#[test]
fn a_success_policy_ends_the_job_early() {
    let early = job(
        json!({"spec":{"completionMode":"Indexed","successPolicy":{"rules":[{"succeededIndexes":"0","succeededCount":1}]}}}),
    );
    let done = plan(early, vec![indexed("a", 0, "Succeeded", 0), indexed("b", 1, "Running", 0)]);
    assert_eq!(status(&done)["conditions"][0]["reason"], "SuccessPolicy");
    assert_eq!(done.deletes(), ["b"]);
    assert!(freed(&done).contains(&"b"), "it did not fail: nobody counts it");
}

#[test]
fn the_end_of_a_pod_is_told_by_containers_readiness_or_deletion() {
    let ended =
        |minute: u32| json!({"state":{"terminated":{"finishedAt":format!("2026-01-01T00:0{minute}:00Z")}}});
    let unready = json!([{"type":"Ready","status":"False","lastTransitionTime":"2026-01-01T00:05:00Z"}]);
    let deleted = json!({"deletionTimestamp":"2026-01-01T00:07:30Z","deletionGracePeriodSeconds":30});
    for (name, more, minute) in [
        (
            "all containers",
            json!({"status":{"containerStatuses":[ended(2), ended(1)],"conditions":unready}}),
            2,
        ),
        ("readiness comes before deletion", json!({"metadata":deleted,"status":{"conditions":unready}}), 5),
        ("deletion, without its grace", json!({"metadata":deleted}), 7),
        ("nothing", json!({}), 0),
    ] {
        let expected: Timestamp = format!("2026-01-01T00:0{minute}:00Z").parse().unwrap();
        assert_eq!(crate::testing::pod("p", more).finished_at(), expected, "{name}");
    }
}
