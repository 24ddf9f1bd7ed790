use super::*;
use crate::testing::{now, object, pod};
use replicas::{Measured, Sample, propose};

fn pods(count: usize) -> Vec<Arc<Pod>> {
    let make = |index: usize| {
        Arc::new(pod(
            &format!("p{index}"),
            json!({"spec":{"containers":[{"name":"c","resources":{"requests":{"cpu":"1"}}}]},
            "status":{"phase":"Running","startTime":"2026-01-01T00:00:00Z","conditions":[
                {"type":"Ready","status":"True","lastTransitionTime":"2026-01-01T00:00:10Z"}]}}),
        ))
    };
    (0..count).map(make).collect()
}

fn samples(values: &[i64]) -> Measured {
    let sample =
        |value: &i64| Sample { value: *value, at: Some(now()), window: SignedDuration::from_secs(60) };
    Measured::PerPod(
        values.iter().enumerate().map(|(index, value)| (format!("p{index}").into(), sample(value))).collect(),
    )
}

fn cpu(percent: i64) -> Value {
    json!({"type":"Resource","resource":{"name":"cpu","target":{"type":"Utilization","averageUtilization":percent}}})
}

fn size(metric: &Value, measured: &Measured, count: usize) -> i64 {
    propose(metric, measured, &pods(count), count as i64, &Autoscaling::default(), now()).unwrap().replicas
}

#[test]
fn utilization_sets_the_size() {
    assert_eq!(size(&cpu(50), &samples(&[1000, 1000, 1000]), 3), 6);
    assert_eq!(size(&cpu(50), &samples(&[100, 100, 100, 100]), 4), 1);
    assert_eq!(size(&cpu(50), &samples(&[520, 510, 500]), 3), 3, "within the tolerance");
    // One pod tells nothing: it is assumed to be idle when growing and busy when shrinking.
    assert_eq!(size(&cpu(50), &samples(&[1000, 1000]), 3), 4);
    assert_eq!(size(&cpu(50), &samples(&[100, 100]), 3), 3);
}

#[test]
fn other_metrics_set_the_size_too() {
    let external =
        json!({"type":"External","external":{"metric":{"name":"queue"},"target":{"averageValue":"10"}}});
    assert_eq!(size(&external, &Measured::Total(75_000), 3), 8);
    let object = json!({"type":"Object","object":{"metric":{"name":"rps"},"describedObject":{"kind":"Service","name":"s"},"target":{"value":"100"}}});
    assert_eq!(size(&object, &Measured::Total(200_000), 3), 6);
    let per_pod = json!({"type":"Pods","pods":{"metric":{"name":"rps"},"target":{"averageValue":"10"}}});
    assert_eq!(size(&per_pod, &samples(&[20_000, 20_000]), 2), 4);
}

fn view(current: i64, proposals: Vec<i64>, more: Value) -> View {
    let mut value = json!({"metadata":{"name":"h","namespace":"n","uid":"h1","generation":1},"spec":{"minReplicas":1,"maxReplicas":10,
        "scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"web"},"metrics":[]}});
    controller_runtime::merge(&mut value, &more);
    let proposal = |replicas: i64| Ok(Proposal { replicas, about: "cpu resource".into(), status: json!({}) });
    View {
        hpa: Arc::new(object(value)),
        scale: Ok(Scale {
            resource: Some(client::resources::DEPLOYMENTS),
            replicas: current,
            object: json!({"kind": "Scale", "spec": {"replicas": current}}),
        }),
        proposals: proposals.into_iter().map(proposal).collect(),
        history: History::default(),
        settings: Autoscaling::default(),
        failure: None,
        now: now(),
    }
}

fn new_size(view: &View) -> Option<i64> {
    let (plan, _) = decide(view);
    plan.writes().find_map(|write| match &write.verb {
        Verb::Replace(body) => body["spec"]["replicas"].as_i64(),
        _ => None,
    })
}

#[test]
fn the_largest_proposal_wins_within_the_bounds() {
    assert_eq!(new_size(&view(3, vec![4, 5], json!({}))), Some(5));
    assert_eq!(new_size(&view(9, vec![40], json!({}))), Some(10));
    assert_eq!(new_size(&view(3, vec![3], json!({}))), None);
    assert_eq!(
        new_size(&view(2, vec![40], json!({"spec":{"maxReplicas":100}}))),
        Some(6),
        "at most four more at once"
    );
    let slow = json!({"spec":{"behavior":{"scaleDown":{"stabilizationWindowSeconds":0,"policies":[{"type":"Pods","value":1,"periodSeconds":60}]}}}});
    assert_eq!(new_size(&view(5, vec![1], slow)), Some(4));
}

#[test]
fn shrinking_waits_for_recent_recommendations_to_agree() {
    let mut view = view(5, vec![2], json!({}));
    view.history.remember(now() - SignedDuration::from_secs(60), Some(4), 5, None);
    assert_eq!(new_size(&view), Some(4));
}

#[test]
fn a_missing_metric_never_shrinks() {
    let mut view = view(5, vec![2], json!({}));
    view.proposals.push(Err(("FailedGetResourceMetric", "down".into())));
    let (plan, _) = decide(&view);
    assert!(plan.writes().next().is_none());
    assert_eq!(plan.status_change().unwrap()["conditions"][1]["reason"], "FailedGetResourceMetric");
}

#[test]
fn a_size_that_the_target_did_not_get_is_not_claimed() {
    let mut view = view(3, vec![5], json!({"status":{"currentReplicas":3,"desiredReplicas":3}}));
    let why = Failure { reason: FAILED, message: "the server stumbled".into(), is_conflict: false };
    view.failure = Some(Arc::new(why));
    let (plan, _) = decide(&view);
    let status = plan.status_change().unwrap();
    assert_eq!((status.get("lastScaleTime"), status.get("desiredReplicas")), (None, None));
    let able = &status["conditions"][0];
    assert_eq!((&able["status"], &able["reason"]), (&json!("False"), &json!("FailedUpdateScale")));
    assert_eq!(
        able["message"],
        "the HPA controller was unable to update the target scale: the server stumbled"
    );
}

#[test]
fn only_changes_that_came_about_count_against_the_rate() {
    let tried = |seen: i64| {
        let mut view = view(3, vec![10], json!({"spec":{"maxReplicas":100}}));
        view.history.remember(now(), Some(10), 3, Some(7));
        view.history.settle(seen);
        new_size(&view)
    };
    assert_eq!(tried(3), Some(7), "it failed and is tried again");
    assert_eq!(tried(7), None, "four more were had within this period");
}
