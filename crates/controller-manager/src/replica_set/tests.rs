use super::*;
use crate::testing::{now, object, pod};

fn set(replicas: i64) -> Arc<ReplicaSet> {
    Arc::new(object(
        json!({"metadata":{"name":"web","namespace":"n","uid":"s1","generation":2,"resourceVersion":"7"},
        "spec":{"replicas":replicas,"selector":{"matchLabels":{"app":"web"}},
            "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c"}]}}}}),
    ))
}

fn view(set: Arc<ReplicaSet>, pods: Vec<Pod>) -> View<ReplicaSet> {
    let mine = pods.into_iter().map(Arc::new).collect();
    View { set, pods: Claims { mine, ..Claims::default() }, crowd: HashMap::new(), failure: None, now: now() }
}

fn ready(name: &str) -> Pod {
    pod(
        name,
        json!({"spec":{"nodeName":"a"},"status":{"phase":"Running","conditions":[
        {"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}),
    )
}

#[test]
fn missing_pods_are_created_from_the_template() {
    let plan = reconcile(&view(set(3), vec![ready("a")]));
    let created = plan.creates();
    assert_eq!(created.len(), 2);
    assert_eq!(created[0]["metadata"]["generateName"], "web-");
    assert_eq!(created[0]["metadata"]["labels"]["app"], "web");
    assert_eq!(created[0]["metadata"]["ownerReferences"][0]["uid"], "s1");
    assert_eq!(created[0]["spec"]["containers"][0]["name"], "c");
}

#[test]
fn scaling_down_removes_the_unready_pod_first() {
    let plan = reconcile(&view(set(1), vec![ready("a"), pod("b", json!({"status":{"phase":"Pending"}}))]));
    assert_eq!(plan.deletes(), ["b"]);
}

#[test]
fn finished_and_terminating_pods_do_not_count() {
    let gone = pod("t", json!({"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"}}));
    let failed = pod("f", json!({"status":{"phase":"Failed"}}));
    let plan = reconcile(&view(set(2), vec![ready("a"), gone, failed]));
    assert_eq!(plan.creates().len(), 1);
    let status = plan.status_change().unwrap();
    assert_eq!(status["replicas"], 1);
    assert_eq!(status["terminatingReplicas"], 1);
}

#[test]
fn a_set_being_deleted_only_reports() {
    let mut set = (*set(3)).clone();
    set.metadata =
        object(json!({"name":"web","namespace":"n","uid":"s1","deletionTimestamp":"2026-01-01T00:00:00Z"}));
    let plan = reconcile(&view(Arc::new(set), vec![ready("a")]));
    assert!(plan.writes().next().is_none());
    assert_eq!(plan.status_change().unwrap()["replicas"], 1);
}

#[test]
fn a_refused_create_shows_in_the_status() {
    let mut view = view(set(3), vec![]);
    view.failure =
        Some(Arc::new(Failure { reason: "FailedCreate", message: "quota".into(), is_conflict: false }));
    let status = reconcile(&view).status_change().unwrap().clone();
    assert_eq!(status["conditions"][0]["type"], "ReplicaFailure");
    assert_eq!(status["conditions"][0]["message"], "quota");
}

#[test]
fn availability_is_looked_at_again_when_it_is_due() {
    let mut set = (*set(1)).clone();
    set.spec.min_ready_seconds = 60;
    let young = pod(
        "a",
        json!({"status":{"phase":"Running","conditions":[
        {"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T11:59:30Z"}]}}),
    );
    let plan = reconcile(&view(Arc::new(set), vec![young]));
    assert_eq!(plan.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:00:30Z"));
    assert!(plan.status_change().unwrap().get("availableReplicas").is_none());
}

#[test]
fn a_settled_set_needs_nothing() {
    let mut set = (*set(1)).clone();
    set.status = ReplicaSetStatus {
        replicas: 1,
        fully_labeled_replicas: 1,
        ready_replicas: 1,
        available_replicas: 1,
        terminating_replicas: Some(0),
        observed_generation: 2,
        conditions: vec![],
    };
    assert!(reconcile(&view(Arc::new(set), vec![ready("a")])).is_empty());
}
