//! What the work queues count, printed under upstream's metric names.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The counters of one work queue.
pub struct QueueMetrics {
    name: &'static str,
    depth: AtomicU64,
    adds: AtomicU64,
    retries: AtomicU64,
    held: AtomicU64,
    waited: Histogram,
    worked: Histogram,
}

impl QueueMetrics {
    /// Counters at zero.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            depth: AtomicU64::new(0),
            adds: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            held: AtomicU64::new(0),
            waited: Histogram::default(),
            worked: Histogram::default(),
        }
    }

    pub(crate) fn added(&self, depth: usize) {
        self.adds.fetch_add(1, Ordering::Relaxed);
        self.depth.store(depth as u64, Ordering::Relaxed);
    }

    pub(crate) fn taken(&self, depth: usize, waited: Duration) {
        self.depth.store(depth as u64, Ordering::Relaxed);
        self.waited.observe(waited);
    }

    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn held(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn done(&self, took: Duration) {
        self.worked.observe(took);
    }
}

/// Upper bounds of the buckets in nanoseconds: 10 ns to 10 s in powers of ten, as client-go's queues have them.
const BOUNDS: [u64; 10] =
    [10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    nanos: AtomicU64,
}

impl Histogram {
    fn observe(&self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = BOUNDS.iter().position(|bound| nanos <= *bound) {
            self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn print(&self, out: &mut String, metric: &str, name: &str) {
        let mut sum = 0;
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            sum += bucket.load(Ordering::Relaxed);
            let bound = bound as f64 / 1e9;
            let _ = writeln!(out, "{metric}_bucket{{name=\"{name}\",le=\"{bound:e}\"}} {sum}");
        }
        let count = self.count.load(Ordering::Relaxed);
        let total = self.nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(out, "{metric}_bucket{{name=\"{name}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(out, "{metric}_sum{{name=\"{name}\"}} {total}");
        let _ = writeln!(out, "{metric}_count{{name=\"{name}\"}} {count}");
    }
}

/// Prints the counters of all queues in the Prometheus text format. Writing to a string cannot fail.
pub fn print<'a>(queues: impl Iterator<Item = &'a QueueMetrics> + Clone) -> String {
    let mut out = String::new();
    let plain = [
        ("workqueue_depth", "gauge", "Current depth of workqueue"),
        ("workqueue_adds_total", "counter", "Total number of adds handled by workqueue"),
        ("workqueue_retries_total", "counter", "Total number of retries handled by workqueue"),
        (
            "kelson_workqueue_held_total",
            "counter",
            "Runs whose writes had to wait, because they were undone at once",
        ),
    ];
    for (metric, kind, help) in plain {
        let _ = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
        for queue in queues.clone() {
            let value = match metric {
                "workqueue_depth" => &queue.depth,
                "workqueue_adds_total" => &queue.adds,
                "kelson_workqueue_held_total" => &queue.held,
                _ => &queue.retries,
            };
            let _ = writeln!(out, "{metric}{{name=\"{}\"}} {}", queue.name, value.load(Ordering::Relaxed));
        }
    }
    let timed = [
        (
            "workqueue_queue_duration_seconds",
            "Time in seconds an item stays in workqueue before being requested",
        ),
        ("workqueue_work_duration_seconds", "Time in seconds processing an item from workqueue takes"),
    ];
    for (metric, help) in timed {
        let _ = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} histogram");
        for queue in queues.clone() {
            let histogram =
                if metric == "workqueue_queue_duration_seconds" { &queue.waited } else { &queue.worked };
            histogram.print(&mut out, metric, queue.name);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_carry_upstreams_names() {
        let metrics = QueueMetrics::new("replicaset");
        metrics.added(3);
        metrics.taken(2, Duration::from_micros(5));
        metrics.taken(2, Duration::from_millis(5));
        let text = print([&metrics].into_iter());
        assert!(text.contains("workqueue_depth{name=\"replicaset\"} 2\n"), "{text}");
        assert!(
            text.contains("workqueue_queue_duration_seconds_bucket{name=\"replicaset\",le=\"1e-5\"} 1\n")
        );
        assert!(text.contains("workqueue_queue_duration_seconds_bucket{name=\"replicaset\",le=\"1e1\"} 2\n"));
        assert!(text.contains("workqueue_queue_duration_seconds_count{name=\"replicaset\"} 2\n"));
    }
}
