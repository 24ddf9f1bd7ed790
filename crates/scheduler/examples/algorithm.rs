//! The scheduling algorithm alone, on a snapshot of many nodes: pods per second, without an API server.
//!
//! `cargo run --release -p scheduler --example algorithm -- [nodes] [pods]`

use std::sync::Arc;
use std::time::Instant;

use scheduler::framework::Remedy;
use scheduler::{Cache, Node, PlacedPod, Pod, plugins};
use serde_json::{Value, json};

fn node(number: usize) -> Arc<Node> {
    let name = format!("node-{number}");
    let value = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", number % 10)}},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    });
    Arc::new(serde_json::from_value(value).expect("a node"))
}

fn pod(number: usize, app: &str, more: &Value, cpu: &str, priority: i32) -> Arc<Pod> {
    let mut value = json!({
        "metadata": {"name": format!("{app}-{number}"), "uid": format!("{app}-{number}"), "namespace": "bench",
            "labels": {"app": app}},
        "spec": {"priority": priority, "containers": [{"image": "pause", "resources": {"requests": {"cpu": cpu, "memory": "500Mi"}}}]},
    });
    for (key, part) in more.as_object().into_iter().flatten() {
        value["spec"][key] = part.clone();
    }
    Arc::new(serde_json::from_value(value).expect("a pod"))
}

fn term(key: &str) -> Value {
    json!([{"labelSelector": {"matchLabels": {"app": "bench"}}, "topologyKey": key}])
}

fn main() {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let nodes = args.next().unwrap_or(5000);
    let pods = args.next().unwrap_or(2000);
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let scenarios = [
        ("basic", json!({}), 270),
        (
            "anti-affinity",
            json!({"affinity": {"podAntiAffinity": {required: term("kubernetes.io/hostname")}}}),
            60,
        ),
        (
            "affinity",
            json!({"affinity": {"podAffinity": {required: term("topology.kubernetes.io/zone")}}}),
            35,
        ),
        (
            "spread",
            json!({"topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "bench"}}}]}),
            85,
        ),
    ];
    println!("{nodes} nodes, {pods} pods each");
    for (name, more, threshold) in scenarios {
        let framework = plugins::default_framework();
        let mut cache = Cache::default();
        (0..nodes).for_each(|number| cache.set_node(node(number)));
        let (mut start, mut failed) = (0, 0);
        let wanted: Vec<Arc<Pod>> = (0..pods).map(|number| pod(number, "bench", &more, "100m", 0)).collect();
        let began = Instant::now();
        for pod in wanted {
            let placed = Arc::new(PlacedPod::new(pod));
            match framework.schedule(&placed, &mut cache, start) {
                Ok(decision) => {
                    start = (start + decision.evaluated) % nodes;
                    cache.assume(placed, &decision.node);
                }
                Err(_) => failed += 1,
            }
        }
        tell(name, pods, failed, began, threshold);
    }
    preemption(nodes, pods.min(nodes));
}

/// Every node is full of four unimportant pods; each important one makes room and comes in.
fn preemption(nodes: usize, pods: usize) {
    let framework = plugins::default_framework();
    let mut cache = Cache::default();
    for number in 0..nodes {
        cache.set_node(node(number));
        for slot in 0..4 {
            let low = pod(number * 4 + slot, "low", &json!({}), "900m", 0);
            cache.assume(Arc::new(PlacedPod::new(low)), &format!("node-{number}"));
        }
    }
    let wanted: Vec<Arc<Pod>> = (0..pods).map(|number| pod(number, "high", &json!({}), "3", 10)).collect();
    let (mut start, mut failed) = (0, 0);
    let began = Instant::now();
    for pod in wanted {
        let placed = Arc::new(PlacedPod::new(pod));
        let Err(refused) = framework.find(&placed, &mut cache, start) else { continue };
        let (mut failure, cycle) = *refused;
        start = (start + 1) % nodes;
        match framework.remedy(&cycle, &placed, &mut failure, &mut cache, start) {
            Some(Remedy::Preempt(found)) => {
                found.victims.iter().for_each(|victim| cache.remove_pod(&victim.metadata.uid));
                cache.assume(placed, &found.node);
            }
            _ => failed += 1,
        }
    }
    tell("preemption", pods, failed, began, 160);
}

fn tell(name: &str, pods: usize, failed: usize, began: Instant, threshold: usize) {
    let seconds = began.elapsed().as_secs_f64();
    let rate = pods as f64 / seconds;
    println!(
        "{name:15} {rate:10.0} pods/s  ({failed} failed; upstream's threshold {threshold}, ten times is {})",
        threshold * 10
    );
}
