mod situations;

use serde_json::{Value, json};

use std::sync::Arc;

use super::*;
use crate::plugins;
use crate::types::Node;

fn node(name: &str, extra: Value) -> Arc<Node> {
    let mut value = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    merge(&mut value, extra);
    Arc::new(serde_json::from_value(value).unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn pod(spec: Value) -> PlacedPod {
    PlacedPod::new(Arc::new(
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "p", "namespace": "n", "labels": {"app": "web"}}, "spec": spec})).unwrap(),
    ))
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]})
}

fn schedule(nodes: &[Arc<Node>], spec: Value) -> Result<String, String> {
    schedule_among(nodes, &[], spec)
}

/// Schedules a pod where others (labels, node, spec) are already.
fn schedule_among(
    nodes: &[Arc<Node>],
    others: &[(&str, &str, Value)],
    spec: Value,
) -> Result<String, String> {
    plugins::default_framework()
        .schedule(&pod(spec), &mut cache_with(nodes, others), 0)
        .map(|decision| decision.node.to_string())
        .map_err(|failure| failure.to_string())
}

fn cache_with(nodes: &[Arc<Node>], others: &[(&str, &str, Value)]) -> Cache {
    let mut cache = Cache::default();
    for node in nodes {
        cache.set_node(node.clone());
    }
    for (number, (app, node, spec)) in others.iter().enumerate() {
        let uid = number.to_string();
        let mut spec = spec.clone();
        spec["nodeName"] = (*node).into();
        let value = json!({"metadata": {"name": uid, "uid": uid, "namespace": "n", "labels": {"app": app}}, "spec": spec});
        cache.set_pod(Arc::new(serde_json::from_value(value).unwrap()));
    }
    cache
}

#[test]
fn reasons_are_counted_over_the_nodes() {
    let nodes = [
        node("a", json!({"spec": {"unschedulable": true}})),
        node("b", json!({})),
        node("c", json!({"spec": {"taints": [{"key": "gpu", "value": "x", "effect": "NoSchedule"}]}})),
    ];
    assert_eq!(
        schedule(&nodes, asking("5")).unwrap_err(),
        "0/3 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."
    );
    assert_eq!(schedule(&[], asking("1")).unwrap_err(), "no nodes available to schedule pods");
}

#[test]
fn the_emptier_node_is_preferred() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    assert_eq!(schedule_among(&nodes, &[("x", "a", asking("3"))], asking("500m")).unwrap(), "b");
}

#[test]
fn required_affinity_excludes_and_preferred_affinity_attracts() {
    let nodes = [
        node("a", json!({})),
        node("b", json!({"metadata": {"labels": {"disk": "ssd"}}})),
        node("c", json!({})),
    ];
    let term = json!({"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]});
    let mut required = asking("1");
    required["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({"nodeSelectorTerms": [term]});
    assert_eq!(schedule(&nodes, required).unwrap(), "b");
    let mut preferred = asking("1");
    preferred["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] =
        json!([{"weight": 1, "preference": term}]);
    assert_eq!(schedule(&nodes, preferred).unwrap(), "b");
    let mut selector = asking("1");
    selector["nodeSelector"] = json!({"disk": "hdd"});
    assert_eq!(
        schedule(&nodes, selector).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    );
}

#[test]
fn host_ports_clash_by_protocol_and_address() {
    let port = |ip: &str, protocol: &str| json!({"containers": [{"ports": [{"hostPort": 80, "hostIP": ip, "protocol": protocol}]}]});
    let nodes = [node("a", json!({}))];
    let taken = [("x", "a", port("127.0.0.1", "TCP"))];
    assert!(schedule_among(&nodes, &taken, port("127.0.0.2", "TCP")).is_ok());
    assert!(schedule_among(&nodes, &taken, port("", "UDP")).is_ok());
    assert_eq!(
        schedule_among(&nodes, &taken, port("0.0.0.0", "TCP")).unwrap_err(),
        "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."
    );
}

#[test]
fn a_full_node_names_everything_that_is_short() {
    let small = node("a", json!({"status": {"allocatable": {"cpu": "1", "memory": "1Mi", "pods": "0"}}}));
    let spec = json!({"containers": [{"resources": {"requests": {"cpu": "2", "memory": "2Mi", "example.com/gpu": "1"}}}]});
    assert_eq!(
        schedule(&[small], spec).unwrap_err(),
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient example.com/gpu, 1 Insufficient memory, 1 Too many pods."
    );
}

#[test]
fn in_a_large_cluster_only_a_share_is_looked_at() {
    let framework = plugins::default_framework();
    let found: Vec<usize> = [50, 100, 1000, 5000, 10_000].map(|total| framework.nodes_to_find(total)).into();
    assert_eq!(found, [50, 100, 420, 500, 500]);
}

fn zones() -> [Arc<Node>; 3] {
    [("a", "x"), ("b", "x"), ("c", "y")]
        .map(|(name, zone)| node(name, json!({"metadata": {"labels": {"zone": zone}}})))
}

/// Pods of an app, as affinity terms name them.
fn term(app: &str) -> Value {
    json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"})
}

fn with(mut spec: Value, path: &str, value: Value) -> Value {
    let keys: Vec<&str> = path.split('.').collect();
    let mut at = &mut spec;
    for key in keys {
        at = &mut at[key];
    }
    *at = value;
    spec
}

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[test]
fn required_affinity_goes_where_the_others_are() {
    let near = with(asking("1"), &format!("affinity.podAffinity.{REQUIRED}"), json!([term("db")]));
    assert_eq!(
        schedule(&zones(), near.clone()).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    );
    assert_eq!(schedule_among(&zones(), &[("db", "c", asking("1"))], near).unwrap(), "c");
    let own_kind = with(asking("1"), &format!("affinity.podAffinity.{REQUIRED}"), json!([term("web")]));
    assert!(schedule(&zones(), own_kind.clone()).is_ok(), "the first of its group may go anywhere");
    assert_eq!(schedule_among(&zones(), &[("web", "c", asking("1"))], own_kind).unwrap(), "c");
}

#[test]
fn anti_affinity_holds_both_ways() {
    let away = with(asking("1"), &format!("affinity.podAntiAffinity.{REQUIRED}"), json!([term("web")]));
    assert_eq!(schedule_among(&zones(), &[("web", "a", asking("1"))], away.clone()).unwrap(), "c");
    assert_eq!(
        schedule_among(&zones(), &[("db", "c", away.clone())], asking("1")).map(|node| node != "c"),
        Ok(true)
    );
    let everywhere = [("web", "a", asking("1")), ("web", "c", asking("1"))];
    assert_eq!(
        schedule_among(&zones(), &everywhere, away.clone()).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    );
    let holders = [("db", "a", away.clone()), ("db", "c", away)];
    assert_eq!(
        schedule_among(&zones(), &holders, asking("1")).unwrap_err(),
        "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    );
}

#[test]
fn wishes_of_both_sides_count() {
    let wish = |side: &str, app: &str| {
        let wishes = json!([{"weight": 100, "podAffinityTerm": term(app)}]);
        with(asking("100m"), &format!("affinity.{side}.{PREFERRED}"), wishes)
    };
    assert_eq!(
        schedule_among(&zones(), &[("db", "c", asking("1"))], wish("podAffinity", "db")).unwrap(),
        "c"
    );
    assert_eq!(
        schedule_among(&zones(), &[("db", "a", asking("1"))], wish("podAntiAffinity", "db")).unwrap(),
        "c"
    );
    assert_eq!(
        schedule_among(&zones(), &[("db", "c", wish("podAffinity", "web"))], asking("100m")).unwrap(),
        "c"
    );
}

#[test]
fn hard_spreading_fills_the_emptiest_domain() {
    let spread = |extra: Value| {
        let mut constraint = json!({
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "web"}},
        });
        merge(&mut constraint, extra);
        with(asking("100m"), "topologySpreadConstraints", json!([constraint]))
    };
    let one = [("web", "a", asking("1"))];
    assert_eq!(schedule_among(&zones(), &one, spread(json!({}))).unwrap(), "c");
    let mut only_x = spread(json!({}));
    only_x["nodeSelector"] = json!({"zone": "x"});
    assert!(schedule_among(&zones(), &one, only_x.clone()).is_ok(), "other zones are not eligible");
    only_x["topologySpreadConstraints"][0]["nodeAffinityPolicy"] = "Ignore".into();
    assert!(schedule_among(&zones(), &one, only_x).unwrap_err().contains("topology spread"));
    let two_domains_wanted = spread(json!({"minDomains": 3}));
    let both = [("web", "a", asking("1")), ("web", "c", asking("1"))];
    assert!(schedule_among(&zones(), &both, spread(json!({}))).is_ok());
    assert!(schedule_among(&zones(), &both, two_domains_wanted).is_err(), "a third domain counts as empty");
}

#[test]
fn soft_spreading_prefers_the_emptier_domain() {
    let spec = with(
        asking("100m"),
        "topologySpreadConstraints",
        json!([{
            "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"app": "web"}},
        }]),
    );
    let others = [("web", "a", asking("100m")), ("web", "b", asking("100m"))];
    assert_eq!(schedule_among(&zones(), &others, spec).unwrap(), "c");
}

/// Victims and node of a preemption, or why there is none.
fn preempt(
    nodes: &[Arc<Node>],
    others: &[(&str, &str, Value)],
    budgets: &[Value],
    spec: Value,
) -> Result<(String, Vec<String>), String> {
    let mut cache = cache_with(nodes, others);
    for budget in budgets {
        let budget: crate::Budget = serde_json::from_value(budget.clone()).unwrap();
        cache.budgets.insert(budget.metadata.key(), Arc::new(budget));
    }
    let framework = plugins::default_framework();
    let pod = pod(spec);
    let Err(refused) = framework.find(&pod, &mut cache, 0) else { panic!("the pod fits") };
    let (mut failure, cycle) = *refused;
    let help = framework.remedy(&cycle, &pod, &mut failure, &mut cache, 0, false);
    match help.preempt.first() {
        Some(found) => {
            let mut victims: Vec<String> =
                found.victims.iter().map(|victim| victim.metadata.name.to_string()).collect();
            victims.sort();
            Ok((found.node.to_string(), victims))
        }
        None => Err(failure.remedy),
    }
}

fn ranked(cpu: &str, priority: i32) -> Value {
    with(asking(cpu), "priority", priority.into())
}

#[test]
fn as_few_and_as_unimportant_pods_as_possible_leave() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    let others = [
        ("x", "a", ranked("2", 5)),
        ("x", "a", ranked("2", 1)),
        ("x", "b", ranked("2", 5)),
        ("x", "b", ranked("2", 5)),
    ];
    assert_eq!(preempt(&nodes, &others, &[], ranked("2", 10)), Ok(("a".into(), vec!["1".into()])));
    assert_eq!(
        preempt(&nodes, &others, &[], ranked("4", 10)),
        Ok(("a".into(), vec!["0".into(), "1".into()]))
    );
    assert_eq!(
        preempt(&nodes, &others, &[], ranked("2", 1)),
        Err("no new claims to deallocate, preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.".into())
    );
    let elsewhere = with(ranked("1", 10), "nodeSelector", json!({"no": "where"}));
    assert_eq!(
        preempt(&nodes, &others, &[], elsewhere),
        Err("no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.".into())
    );
}

#[test]
fn a_disruption_budget_is_broken_only_without_another_way() {
    let nodes = [node("a", json!({})), node("b", json!({}))];
    let others = [("guarded", "a", ranked("4", 1)), ("free", "b", ranked("4", 2))];
    let budget = json!({
        "metadata": {"name": "b", "namespace": "n"},
        "spec": {"selector": {"matchLabels": {"app": "guarded"}}}, "status": {"disruptionsAllowed": 0},
    });
    assert_eq!(preempt(&nodes, &others, &[], ranked("1", 10)).unwrap().0, "a");
    assert_eq!(preempt(&nodes, &others, std::slice::from_ref(&budget), ranked("1", 10)).unwrap().0, "b");
    assert_eq!(preempt(&nodes[..1], &others[..1], &[budget], ranked("1", 10)).unwrap().0, "a");
}

#[test]
fn victims_of_anti_affinity_leave_too() {
    let away = with(ranked("1", 10), &format!("affinity.podAntiAffinity.{REQUIRED}"), json!([term("db")]));
    let others = [("db", "c", ranked("1", 1))];
    assert_eq!(preempt(&zones()[2..], &others, &[], away), Ok(("c".into(), vec!["0".into()])));
}

#[test]
fn room_that_was_made_is_kept_for_whom_it_was_made() {
    let nodes = [node("a", json!({}))];
    let mut cache = cache_with(&nodes, &[]);
    cache.nominate(&pod(ranked("3", 10)).pod, Some("a"));
    let framework = plugins::default_framework();
    let other = |priority| {
        let value = json!({"metadata": {"uid": "other", "namespace": "n"}, "spec": ranked("2", priority)});
        PlacedPod::new(Arc::new(serde_json::from_value(value).unwrap()))
    };
    assert!(framework.schedule(&other(1), &mut cache, 0).is_err());
    assert!(framework.schedule(&other(11), &mut cache, 0).is_ok());
    assert!(framework.schedule(&pod(ranked("3", 10)), &mut cache, 0).is_ok());
}

fn claim(name: &str, class: &str, bound: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "n"},
        "spec": {"storageClassName": class, "volumeName": bound, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn volume(name: &str, size: &str, zone: &str) -> Value {
    let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]);
    json!({
        "metadata": {"name": name}, "status": {"phase": "Available"},
        "spec": {"capacity": {"storage": size}, "storageClassName": "late", "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}},
    })
}

#[test]
fn a_pod_goes_where_its_volumes_can_be() {
    use client::Key;
    let run = |claims: &[Value], volumes: &[Value], provisioner: &str| {
        let mut cache = cache_with(&zones(), &[]);
        let storage = &mut cache.storage;
        for value in claims {
            let name = value["metadata"]["name"].as_str().unwrap();
            storage
                .claims
                .insert(Key::new("n", name), Arc::new(serde_json::from_value(value.clone()).unwrap()));
        }
        for value in volumes {
            let name = value["metadata"]["name"].as_str().unwrap();
            storage.volumes.insert(name.into(), Arc::new(serde_json::from_value(value.clone()).unwrap()));
        }
        let class = json!({"provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
        storage.classes.insert("late".into(), Arc::new(serde_json::from_value(class).unwrap()));
        let spec =
            with(asking("1"), "volumes", json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]));
        let decision = plugins::default_framework().schedule(&pod(spec), &mut cache, 0);
        decision.map(|decision| decision.node.to_string()).map_err(|failure| failure.to_string())
    };
    let none = "kubernetes.io/no-provisioner";
    let missing = run(&[], &[], none).unwrap_err();
    assert_eq!(missing, "0/3 nodes are available: persistentvolumeclaim \"c\" not found.");
    let unbound = run(&[claim("c", "early", "")], &[], none).unwrap_err();
    assert_eq!(unbound, "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.");
    assert_eq!(run(&[claim("c", "late", "pv")], &[volume("pv", "1Gi", "y")], none).unwrap(), "c");
    let free = [volume("small", "1Mi", "x"), volume("right", "2Gi", "y")];
    assert_eq!(run(&[claim("c", "late", "")], &free, none).unwrap(), "c");
    let nothing = run(&[claim("c", "late", "")], &free[..1], none).unwrap_err();
    assert_eq!(
        nothing,
        "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind."
    );
    assert!(run(&[claim("c", "late", "")], &[], "example.com/maker").is_ok(), "one will be made");
}

#[test]
fn calls_are_counted_and_one_cycle_in_ten_is_timed() {
    let framework = plugins::default_framework();
    let nodes = [
        node("closed", json!({"spec": {"unschedulable": true}})),
        node("a", json!({})),
        node("b", json!({})),
    ];
    let mut cache = cache_with(&nodes, &[]);
    for _ in 0..11 {
        let spec = json!({"containers": [
            {"resources": {"requests": {"cpu": "1"}}, "ports": [{"containerPort": 80, "hostPort": 80}]},
        ]});
        framework.schedule(&pod(spec), &mut cache, 0).unwrap();
    }
    let book = framework.measures.lock();
    let asked = |point: Point, plugin: &str| {
        let found = book.asked[&point].iter().find(|(name, _)| *name == plugin);
        found.map_or(0, |(_, times)| *times)
    };
    assert_eq!(asked(Point::PreFilter, "NodePorts"), 11);
    assert_eq!(asked(Point::PreFilter, "InterPodAffinity"), 0, "it has nothing to look at");
    assert_eq!(asked(Point::Filter, "NodeUnschedulable"), 33);
    assert_eq!(asked(Point::Filter, "NodeResourcesFit"), 22, "the closed node was refused before");
    assert_eq!(asked(Point::Score, "NodeResourcesFit"), 22);
    for point in [Point::PreFilter, Point::Filter, Point::PreScore, Point::Score] {
        assert_eq!(book.points[&(point, Code::Success)].count(), 11, "{point:?}");
    }
    let timed = |plugin, point, code| book.plugins.get(&(plugin, point, code)).map_or(0, |it| it.count());
    assert_eq!(timed("NodePorts", Point::PreFilter, Code::Success), 2);
    assert_eq!(timed("InterPodAffinity", Point::PreFilter, Code::Skip), 2);
    assert_eq!(timed("NodeUnschedulable", Point::Filter, Code::Never), 2);
    assert_eq!(timed("NodeResourcesFit", Point::Score, Code::Success), 2);
}
