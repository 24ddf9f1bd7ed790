use serde_json::{Value, json};

use super::*;
use crate::plugins;

fn node(name: &str, extra: Value) -> Arc<NodeInfo> {
    let mut value = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
    });
    merge(&mut value, extra);
    Arc::new(NodeInfo::of(serde_json::from_value(value).unwrap()))
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
        serde_json::from_value(json!({"metadata": {"name": "p", "uid": "p"}, "spec": spec})).unwrap(),
    ))
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}]})
}

fn schedule(nodes: &[Arc<NodeInfo>], spec: Value) -> Result<String, String> {
    let snapshot = Snapshot { nodes: nodes.to_vec() };
    plugins::default_framework()
        .schedule(&pod(spec), &snapshot, 0)
        .map(|decision| decision.node.to_string())
        .map_err(|failure| failure.to_string())
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
    let mut busy = NodeInfo::clone(&node("a", json!({})));
    busy.place(Arc::new(pod(asking("3"))));
    assert_eq!(schedule(&[Arc::new(busy), node("b", json!({}))], asking("500m")).unwrap(), "b");
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
    let mut taken = NodeInfo::clone(&node("a", json!({})));
    taken.place(Arc::new(pod(port("127.0.0.1", "TCP"))));
    let taken = [Arc::new(taken)];
    assert!(schedule(&taken, port("127.0.0.2", "TCP")).is_ok());
    assert!(schedule(&taken, port("", "UDP")).is_ok());
    assert_eq!(
        schedule(&taken, port("0.0.0.0", "TCP")).unwrap_err(),
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
