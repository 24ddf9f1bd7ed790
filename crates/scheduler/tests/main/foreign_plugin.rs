//! A plugin that is not of the scheduler's crate works at the points it names.

use std::cmp::Ordering;
use std::sync::Arc;

use scheduler::framework::{
    Cycle, Filter, Plugin, PreEnqueue, PreFilter, PreScore, Prepared, QueueSort, Queued, Reasons, Reserve,
    Score, Verdict,
};
use scheduler::plugins::Registry;
use scheduler::{Cache, Node, NodeInfo, PlacedPod, Pod, config};
use serde_json::json;

/// Allows only nodes whose name begins with a letter, prefers the last, and sorts the queue by name.
struct Foreign;

struct Letter(char);

impl Plugin for Foreign {
    fn name(&self) -> &'static str {
        "Foreign"
    }
    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        Some(self)
    }
    fn queue_sort(&self) -> Option<&dyn QueueSort> {
        Some(self)
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }
    fn score(&self) -> Option<&dyn Score> {
        Some(self)
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

impl PreEnqueue for Foreign {
    fn holds_back(&self, pod: &Pod, _cache: &Cache) -> Option<Reasons> {
        pod.metadata.labels.get("hold").map(|_| "held".into())
    }
}

impl QueueSort for Foreign {
    fn compare(&self, one: Queued<'_>, other: Queued<'_>) -> Ordering {
        one.pod.metadata.name.cmp(&other.pod.metadata.name)
    }
}

impl PreFilter for Foreign {
    fn pre_filter(&self, cycle: &mut Cycle, _pod: &PlacedPod, _cache: &mut Cache) -> Prepared {
        cycle.keep(Letter('b'));
        Prepared::Check
    }
}

impl Filter for Foreign {
    fn filter(&self, cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> Verdict {
        match cycle.get::<Letter>() {
            Some(letter) if node.name().starts_with(letter.0) => Verdict::Fits,
            _ => Verdict::never("node(s) had the wrong letter"),
        }
    }
}

impl PreScore for Foreign {
    fn pre_score(&self, _: &mut Cycle, _: &PlacedPod, _: &[usize], _: &mut Cache) -> bool {
        true
    }
}

impl Score for Foreign {
    fn score(&self, _cycle: &Cycle, _pod: &PlacedPod, node: &NodeInfo, _cache: &Cache) -> i64 {
        i64::from(node.name().ends_with('2')) * 100
    }
}

impl Reserve for Foreign {
    fn reserve(&self, _: &mut Cycle, _: &PlacedPod, node: &str, _: &mut Cache) -> Result<(), Reasons> {
        if node == "b2" { Err("taken".into()) } else { Ok(()) }
    }
    fn unreserve(&self, _: &Cycle, _: &Pod, _: &str, _: &mut Cache) {}
}

fn framework() -> scheduler::framework::Framework {
    let registry = Registry::default().with("Foreign", Arc::new(|_| Ok(Arc::new(Foreign))));
    let text = "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    multiPoint: {enabled: [{name: Foreign, weight: 50}]}
    queueSort: {disabled: [{name: PrioritySort}]}
";
    let mut settings = config::build(&config::read(text).unwrap(), &registry).unwrap();
    settings.profiles.remove(0).framework
}

fn cluster() -> Cache {
    let mut cache = Cache::default();
    for name in ["a1", "b1", "b2"] {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}},
        }))
        .unwrap();
        cache.set_node(Arc::new(node));
    }
    cache
}

fn pod(name: &str, labels: serde_json::Value) -> Arc<Pod> {
    let value =
        json!({"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {"containers": [{}]}});
    Arc::new(serde_json::from_value(value).unwrap())
}

#[test]
fn a_plugin_of_another_crate_filters_scores_holds_back_sorts_and_reserves() {
    let (framework, mut cache) = (framework(), cluster());
    let placed = PlacedPod::new(pod("p", json!({})));
    let decision = framework.schedule(&placed, &mut cache, 0).unwrap();
    assert_eq!((&*decision.node, decision.feasible), ("b2", 2));
    assert!(framework.holds_back(&pod("p", json!({"hold": ""})), &cache).is_some());
    let since = jiff::Timestamp::UNIX_EPOCH;
    let (one, other) = (pod("a", json!({})), pod("b", json!({})));
    let order = framework.compare(Queued { pod: &one, since }, Queued { pod: &other, since });
    assert_eq!(order, Ordering::Less);
    let refused = framework.reserve(&mut Cycle::default(), &placed, "b2", &mut cache).unwrap_err();
    assert_eq!((refused.0, refused.1.to_string()), ("Foreign", "taken".into()));
    assert!(framework.reserve(&mut Cycle::default(), &placed, "b1", &mut cache).is_ok());
}
