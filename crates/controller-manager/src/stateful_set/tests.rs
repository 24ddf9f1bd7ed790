use super::*;
use crate::testing::{now, object, pod};

fn set(replicas: i64, more: Value) -> StatefulSet {
    let mut value = json!({"metadata":{"name":"db","namespace":"n","uid":"s1","generation":1},
        "spec":{"replicas":replicas,"serviceName":"db","podManagementPolicy":"OrderedReady",
            "selector":{"matchLabels":{"app":"web"}},"updateStrategy":{"type":"RollingUpdate"},
            "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"v1"}]}}}});
    controller_runtime::merge(&mut value, &more);
    object(value)
}

fn revision(set: &StatefulSet, name: &str, number: i64) -> Arc<ControllerRevision> {
    Arc::new(object(json!({"metadata":{"name":name,"namespace":"n","uid":name},
        "data":revisions::record(&set.spec.template),"revision":number})))
}

fn member(ordinal: i64, revision: &str, ready: bool) -> Arc<Pod> {
    let name = format!("db-{ordinal}");
    let condition = json!({"type":"Ready","status":if ready { "True" } else { "False" },"lastTransitionTime":"2026-01-01T00:00:00Z"});
    Arc::new(pod(
        &name,
        json!({"metadata":{"labels":{REVISION_LABEL:revision,"statefulset.kubernetes.io/pod-name":name}},
        "status":{"phase":"Running","conditions":[condition]}}),
    ))
}

fn plan(set: StatefulSet, pods: Vec<Arc<Pod>>) -> Plan {
    let history = vec![revision(&set, "db-r1", 1)];
    plan_with(set, pods, history)
}

fn plan_with(set: StatefulSet, pods: Vec<Arc<Pod>>, history: Vec<Arc<ControllerRevision>>) -> Plan {
    reconcile(&View {
        set: Arc::new(set),
        pods: Claims { mine: pods, ..Claims::default() },
        history,
        annotations: None,
        claims: HashMap::new(),
        now: now(),
    })
}

fn created(plan: &Plan) -> Vec<&str> {
    plan.creates().iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn the_template_is_recorded_first() {
    let plan = plan_with(set(1, json!({})), vec![], vec![]);
    assert_eq!(plan.creates()[0]["kind"], "ControllerRevision");
    assert_eq!(plan.creates()[0]["revision"], 1);
}

#[test]
fn pods_come_one_after_the_other() {
    assert_eq!(created(&plan(set(3, json!({})), vec![])), ["db-0"]);
    assert!(created(&plan(set(3, json!({})), vec![member(0, "db-r1", false)])).is_empty());
    assert_eq!(created(&plan(set(3, json!({})), vec![member(0, "db-r1", true)])), ["db-1"]);
    let parallel = json!({"spec":{"podManagementPolicy":"Parallel"}});
    assert_eq!(created(&plan(set(3, parallel), vec![])), ["db-0", "db-1", "db-2"]);
}

#[test]
fn a_pod_has_its_name_and_storage() {
    let claims = json!({"spec":{"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"]}}],
        "ordinals":{"start":5}}});
    let plan = plan(set(1, claims), vec![]);
    assert_eq!(created(&plan), ["data-db-5", "db-5"]);
    let pod = plan.creates()[1];
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("db-5"), &json!("db")));
    assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "data-db-5");
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "5");
    assert_eq!(pod["metadata"]["generateName"], "db-");
}

#[test]
fn the_last_goes_first_and_only_while_the_others_are_well() {
    let pods = |ready| vec![member(0, "db-r1", ready), member(1, "db-r1", true), member(2, "db-r1", true)];
    assert_eq!(plan(set(1, json!({})), pods(true)).deletes(), ["db-2"]);
    assert!(plan(set(1, json!({})), pods(false)).deletes().is_empty());
}

#[test]
fn updates_go_from_the_last_down_to_the_partition() {
    let rolling = |partition: i64| {
        let mut new = set(
            3,
            json!({"spec":{"updateStrategy":{"rollingUpdate":{"partition":partition}}},
            "status":{"currentRevision":"db-r1"}}),
        );
        let old = revision(&new, "db-r1", 1);
        new.spec.template = Raw::from(
            &json!({"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":"v2"}]}}),
        );
        let history = vec![old, revision(&new, "db-r2", 2)];
        (new, history)
    };
    let (new, history) = rolling(0);
    let pods = vec![member(0, "db-r1", true), member(1, "db-r1", true), member(2, "db-r1", true)];
    assert_eq!(plan_with(new.clone(), pods.clone(), history.clone()).deletes(), ["db-2"]);
    let half = vec![member(0, "db-r1", true), member(1, "db-r1", true), member(2, "db-r2", false)];
    assert!(plan_with(new.clone(), half, history.clone()).deletes().is_empty(), "waits for the new one");
    let half = vec![member(0, "db-r1", true), member(1, "db-r1", true), member(2, "db-r2", true)];
    assert_eq!(plan_with(new, half.clone(), history).deletes(), ["db-1"]);
    let (new, history) = rolling(2);
    assert!(plan_with(new.clone(), half, history.clone()).deletes().is_empty());
    // Below the partition a lost pod comes back with the old template.
    let lost = plan_with(new, vec![member(1, "db-r1", true), member(2, "db-r2", true)], history);
    assert_eq!(lost.creates()[0]["spec"]["containers"][0]["image"], "v1");
}

#[test]
fn a_finished_update_is_told() {
    let status = plan(set(1, json!({})), vec![member(0, "db-r1", true)]).status_change().unwrap().clone();
    assert_eq!(status["currentRevision"], "db-r1");
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"], &status["updatedReplicas"]),
        (&json!(1), &json!(1), &json!(1))
    );
}

#[test]
fn a_failed_pod_is_replaced() {
    let mut failed = (*member(0, "db-r1", false)).clone();
    failed.status.phase = "Failed".into();
    let plan = plan(set(2, json!({})), vec![Arc::new(failed)]);
    assert_eq!(plan.deletes(), ["db-0"]);
    assert_eq!(plan.events()[0].reason, "RecreatingFailedPod");
}
