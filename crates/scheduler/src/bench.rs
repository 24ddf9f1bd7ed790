//! Measures the scheduling algorithm alone, on a snapshot of many nodes: pods per second, without an API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{Cache, Node, PlacedPod, Pod, plugins};

/// How quickly nodes were found for the pods of one scenario.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub scenario: &'static str,
    pub pods: usize,
    /// Pods for which there was no node; more than none means that the snapshot was too small.
    pub failed: usize,
    pub took: Duration,
    /// Pods per second below which upstream's own benchmark counts as failed.
    pub threshold: usize,
}

impl Measured {
    pub fn rate(&self) -> f64 {
        self.pods as f64 / self.took.as_secs_f64()
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (failed, threshold) = (self.failed, self.threshold);
        write!(
            out,
            "{:15} {:10.0} pods/s  ({failed} failed; upstream's threshold {threshold}, ten times is {})",
            self.scenario,
            self.rate(),
            threshold * 10
        )
    }
}

/// Finds nodes for `pods` pods of each scenario, on a fresh snapshot for each, and tells of each when it is done.
pub fn algorithm(nodes: usize, pods: usize, mut tell: impl FnMut(Measured)) {
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
    for (scenario, more, threshold) in scenarios {
        let (failed, took) = placement(nodes, pods, &more);
        tell(Measured { scenario, pods, failed, took, threshold });
    }
    let pods = pods.min(nodes);
    let (failed, took) = preemption(nodes, pods);
    tell(Measured { scenario: "preemption", pods, failed, took, threshold: 160 });
}

fn placement(nodes: usize, pods: usize, more: &Value) -> (usize, Duration) {
    let framework = plugins::default_framework();
    let mut cache = Cache::default();
    (0..nodes).for_each(|number| cache.set_node(node(number)));
    let (mut start, mut failed) = (0, 0);
    let wanted: Vec<Arc<Pod>> = (0..pods).map(|number| pod(number, "bench", more, "100m", 0)).collect();
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
    (failed, began.elapsed())
}

/// Every node is full of four unimportant pods; each important one makes room and comes in.
fn preemption(nodes: usize, pods: usize) -> (usize, Duration) {
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
        let help = framework.remedy(&cycle, &placed, &mut failure, &mut cache, start, false);
        match help.preempt.first() {
            Some(found) => {
                found.victims.iter().for_each(|victim| cache.remove_pod(&victim.metadata.uid));
                cache.assume(placed, &found.node);
            }
            None => failed += 1,
        }
    }
    (failed, began.elapsed())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_finds_nodes() {
        let mut seen = Vec::new();
        algorithm(20, 10, |measured| {
            assert_eq!(measured.failed, 0, "{measured}");
            seen.push(measured.scenario);
        });
        assert_eq!(seen, ["basic", "anti-affinity", "affinity", "spread", "preemption"]);
    }
}
