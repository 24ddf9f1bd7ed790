use super::*;
use crate::testing::{now, object};

fn template(image: &str) -> Value {
    json!({"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c","image":image}]}})
}

fn deployment(replicas: i64, more: Value) -> Deployment {
    let mut value = json!({"metadata":{"name":"web","namespace":"n","uid":"d1","generation":1,"resourceVersion":"9",
            "annotations":{REVISION:"1"}},
        "spec":{"replicas":replicas,"selector":{"matchLabels":{"app":"web"}},"template":template("v2"),
            "strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":"25%","maxUnavailable":"25%"}},
            "revisionHistoryLimit":10,"progressDeadlineSeconds":600}});
    controller_runtime::merge(&mut value, &more);
    object(value)
}

/// A ReplicaSet of `size` pods of which `available` serve.
fn set(name: &str, image: &str, revision: i64, size: i64, available: i64, desired: i64) -> Arc<ReplicaSet> {
    let mut template = template(image);
    template["metadata"]["labels"][HASH_LABEL] = json!(name);
    Arc::new(object(json!({"metadata":{"name":name,"namespace":"n","uid":name,
            "creationTimestamp":format!("2026-01-01T00:00:{revision:02}Z"),
            "annotations":{REVISION:revision.to_string(),DESIRED_REPLICAS:desired.to_string(),
                MAX_REPLICAS:(desired + (desired + 3) / 4).to_string()}},
        "spec":{"replicas":size,"selector":{"matchLabels":{"app":"web"}},"template":template},
        "status":{"replicas":size,"readyReplicas":available,"availableReplicas":available}})))
}

fn view(deployment: Deployment, sets: Vec<Arc<ReplicaSet>>) -> View {
    View {
        deployment: Arc::new(deployment),
        sets: Claims { mine: sets, ..Claims::default() },
        pods: Vec::new(),
        namesake: None,
        failure: None,
        now: now(),
    }
}

fn sizes(plan: &Plan) -> Vec<(String, i64)> {
    let sized =
        |(name, change): (&str, &Value)| Some((name.to_owned(), change["spec"]["replicas"].as_i64()?));
    plan.changes().into_iter().filter_map(sized).collect()
}

#[test]
fn the_first_replica_set_gets_all_replicas() {
    let plan = reconcile(&view(deployment(3, json!({})), vec![]));
    let created = plan.creates();
    assert_eq!(created.len(), 1);
    assert_eq!(created[0]["spec"]["replicas"], 3);
    assert_eq!(created[0]["metadata"]["annotations"][REVISION], "1");
    let hash = &created[0]["metadata"]["labels"][HASH_LABEL];
    assert_eq!(created[0]["metadata"]["name"], format!("web-{}", hash.as_str().unwrap()));
    assert_eq!(&created[0]["spec"]["selector"]["matchLabels"][HASH_LABEL], hash);
    assert_eq!(&created[0]["spec"]["template"]["metadata"]["labels"][HASH_LABEL], hash);
    assert_eq!(plan.status_change().unwrap()["conditions"][1]["reason"], "NewReplicaSetCreated");
}

#[test]
fn a_new_template_starts_within_the_surge() {
    let plan = reconcile(&view(deployment(10, json!({})), vec![set("old", "v1", 1, 10, 10, 10)]));
    assert_eq!(plan.creates()[0]["spec"]["replicas"], 3, "25% of 10, rounded up");
    assert_eq!(plan.creates()[0]["metadata"]["annotations"][REVISION], "2");
}

#[test]
fn a_status_of_before_the_last_change_of_size_takes_no_pods_away() {
    let roll = |stale: &str| {
        let sets = [("old", "v1", 1, 8), ("new", "v2", 2, 5)].map(|(name, image, revision, size)| {
            let mut set = (*set(name, image, revision, size, size, 10)).clone();
            // These are of generation 0.
            set.status.observed_generation = if name == stale { -1 } else { 0 };
            Arc::new(set)
        });
        let deployment = deployment(10, json!({"metadata":{"annotations":{REVISION:"2"}}}));
        sizes(&reconcile(&view(deployment, sets.into())))
    };
    assert_eq!(roll("none"), [("old".to_owned(), 3)]);
    assert_eq!(roll("old"), [], "how many of its pods are left is not known");
    assert_eq!(roll("new"), [], "13 pods of which 8 must be available and 5 may not be");
}

#[test]
fn a_rolling_update_moves_within_its_bounds() {
    let cases = [
        // (new size, new available, old size, old available) -> sizes that change
        ((3, 0, 10, 10), vec![("old", 8)]),
        ((3, 3, 8, 8), vec![("new", 5)]),
        ((5, 3, 8, 8), vec![("old", 5)]),
        ((10, 10, 3, 3), vec![("old", 0)]),
        ((5, 0, 8, 8), vec![]),
        // Old pods that do not serve go before those that do.
        ((3, 0, 10, 8), vec![("old", 8)]),
        // A set that was just told to shrink still counts the pods that it is about to delete.
        ((5, 5, 8, 10), vec![("old", 3)]),
    ];
    for ((new, new_available, old, old_available), wanted) in cases {
        let sets =
            vec![set("old", "v1", 1, old, old_available, 10), set("new", "v2", 2, new, new_available, 10)];
        let plan = reconcile(&view(deployment(10, json!({"metadata":{"annotations":{REVISION:"2"}}})), sets));
        let wanted: Vec<(String, i64)> =
            wanted.into_iter().map(|(name, size)| (name.to_owned(), size)).collect();
        assert_eq!(sizes(&plan), wanted, "new {new}/{new_available}, old {old}/{old_available}");
    }
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let recreate = json!({"metadata":{"annotations":{REVISION:"1"}},"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}});
    let plan = reconcile(&view(deployment(3, recreate.clone()), vec![set("old", "v1", 1, 3, 3, 3)]));
    assert_eq!((sizes(&plan), plan.creates().len()), (vec![("old".to_owned(), 0)], 0));

    let mut waiting = view(deployment(3, recreate.clone()), vec![set("old", "v1", 1, 0, 0, 3)]);
    waiting.pods = vec![Arc::new(crate::testing::pod(
        "p",
        json!({"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z",
        "ownerReferences":[{"uid":"old","controller":true}]},"status":{"phase":"Running"}}),
    ))];
    assert!(reconcile(&waiting).writes().next().is_none());

    let plan = reconcile(&view(deployment(3, recreate), vec![set("old", "v1", 1, 0, 0, 3)]));
    assert_eq!(plan.creates()[0]["spec"]["replicas"], 3);
}

#[test]
fn scaling_during_a_rollout_is_proportional() {
    let sets = vec![set("old", "v1", 1, 8, 8, 10), set("new", "v2", 2, 5, 5, 10)];
    let plan = reconcile(&view(deployment(20, json!({"metadata":{"annotations":{REVISION:"2"}}})), sets));
    // 13 of at most 13 before; at most 25 now.
    assert_eq!(sizes(&plan), [("old".to_owned(), 15), ("new".to_owned(), 10)]);
}

#[test]
fn going_back_takes_the_old_replica_set_and_notes_its_history() {
    let sets = vec![set("a", "v2", 1, 0, 0, 3), set("b", "v1", 2, 3, 3, 3)];
    let plan = reconcile(&view(deployment(3, json!({"metadata":{"annotations":{REVISION:"2"}}})), sets));
    let (name, change) = plan.changes()[0];
    assert_eq!(name, "a");
    assert_eq!(change["metadata"]["annotations"], json!({REVISION:"3", REVISION_HISTORY:"1"}));
}

#[test]
fn a_finished_rollout_is_told_and_old_sets_beyond_the_limit_go() {
    let limit = json!({"metadata":{"annotations":{REVISION:"4"}},"spec":{"revisionHistoryLimit":1}});
    let sets = vec![
        set("a", "v0", 1, 0, 0, 3),
        set("b", "v1", 2, 0, 0, 3),
        set("c", "v3", 3, 0, 0, 3),
        set("new", "v2", 4, 3, 3, 3),
    ];
    let plan = reconcile(&view(deployment(3, limit), sets));
    assert_eq!(plan.deletes(), ["a", "b"]);
    let conditions = plan.status_change().unwrap()["conditions"].as_array().unwrap().clone();
    assert_eq!(conditions[0]["reason"], "MinimumReplicasAvailable");
    assert_eq!(conditions[1]["reason"], "NewReplicaSetAvailable");
    assert_eq!(conditions[1]["message"], "ReplicaSet \"new\" has successfully progressed.");
}

#[test]
fn a_stuck_rollout_times_out() {
    let stuck = |since: &str| {
        deployment(
            3,
            json!({"status":{"observedGeneration":1,"replicas":3,"updatedReplicas":3,"unavailableReplicas":3,
            "terminatingReplicas":0,"conditions":[
            {"type":"Available","status":"False","reason":"MinimumReplicasUnavailable"},
            {"type":"Progressing","status":"True","reason":"ReplicaSetUpdated","lastUpdateTime":since}]}}),
        )
    };
    let plan = reconcile(&view(stuck("2026-01-01T11:49:00Z"), vec![set("new", "v2", 1, 3, 0, 3)]));
    assert_eq!(plan.status_change().unwrap()["conditions"][1]["reason"], "ProgressDeadlineExceeded");
    let plan = reconcile(&view(stuck("2026-01-01T11:55:00Z"), vec![set("new", "v2", 1, 3, 0, 3)]));
    assert!(plan.status().is_none());
    assert_eq!(plan.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:05:01Z"));
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let paused = json!({"spec":{"paused":true}});
    let plan = reconcile(&view(deployment(5, paused), vec![set("old", "v1", 1, 3, 3, 3)]));
    assert_eq!(sizes(&plan), [("old".to_owned(), 5)]);
    assert!(plan.creates().is_empty());
    assert_eq!(plan.status_change().unwrap()["conditions"][1]["reason"], "DeploymentPaused");
}

#[test]
fn a_taken_name_makes_the_next_one_differ() {
    let mut view = view(deployment(3, json!({})), vec![]);
    view.namesake = Some(set("other", "v9", 1, 0, 0, 0));
    let plan = reconcile(&view);
    assert!(plan.creates().is_empty());
    assert_eq!(plan.changes()[0].1["status"]["collisionCount"], 1);
}
