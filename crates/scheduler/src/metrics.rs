//! What the scheduler counts, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::queue::Sizes;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

/// A histogram over buckets that double from `first`.
#[derive(Debug)]
struct Histogram {
    first: f64,
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(first: f64, buckets: usize) -> Self {
        Self { first, buckets: vec![0; buckets], count: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        let mut bound = self.first;
        for bucket in &mut self.buckets {
            *bucket += u64::from(value <= bound);
            bound *= 2.0;
        }
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut bound = self.first;
        for bucket in &self.buckets {
            // Sums of powers of two of a decimal print with a tail; six digits are enough.
            let text = format!("{:.6}", bound);
            let text = text.trim_end_matches('0').trim_end_matches('.');
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{text}\"}} {bucket}");
            bound *= 2.0;
        }
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {}", self.sum, self.count);
    }
}

#[derive(Debug)]
struct Counts {
    attempts: BTreeMap<(String, Outcome), Histogram>,
    algorithm: Histogram,
    /// From when the scheduler saw a pod until it was bound, by attempts (capped, as upstream does).
    to_bound: BTreeMap<u32, Histogram>,
    tries: Histogram,
    victims: Histogram,
    preemptions: u64,
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

/// How large everything is at the moment.
#[derive(Debug, Default)]
pub struct Standing {
    pub queue: Sizes,
    pub nodes: usize,
    pub pods: usize,
    pub assumed: usize,
    /// How many pods each plugin of each profile refuses or holds back.
    pub refused: BTreeMap<(&'static str, &'static str), usize>,
}

type Look = Box<dyn Fn() -> Standing + Send + Sync>;

/// Counters of one scheduler; what can be looked up is looked up when someone asks.
pub struct Metrics {
    counts: Mutex<Counts>,
    look: OnceLock<Look>,
}

impl Default for Metrics {
    fn default() -> Self {
        let counts = Counts {
            attempts: BTreeMap::new(),
            algorithm: Histogram::new(0.001, 15),
            to_bound: BTreeMap::new(),
            tries: Histogram::new(1.0, 5),
            victims: Histogram::new(1.0, 7),
            preemptions: 0,
            incoming: BTreeMap::new(),
        };
        Self { counts: Mutex::new(counts), look: OnceLock::new() }
    }
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attempted(&self, profile: &str, outcome: Outcome, took: Duration) {
        let mut counts = self.lock();
        if outcome != Outcome::Error {
            counts.algorithm.observe(took.as_secs_f64());
        }
        let key = (profile.to_owned(), outcome);
        counts.attempts.entry(key).or_insert_with(|| Histogram::new(0.001, 15)).observe(took.as_secs_f64());
    }

    pub fn bound(&self, attempts: u32, took: Duration) {
        let mut counts = self.lock();
        counts.tries.observe(f64::from(attempts));
        let histogram = counts.to_bound.entry(attempts.min(16)).or_insert_with(|| Histogram::new(0.01, 20));
        histogram.observe(took.as_secs_f64());
    }

    pub fn preempted(&self, victims: usize) {
        let mut counts = self.lock();
        counts.preemptions += 1;
        counts.victims.observe(victims as f64);
    }

    pub fn queued(&self, event: &'static str, queue: &'static str) {
        *self.lock().incoming.entry((event, queue)).or_insert(0) += 1;
    }

    /// Says where to look things up; only the first one is heard.
    pub fn look_up(&self, look: impl Fn() -> Standing + Send + Sync + 'static) {
        let _ = self.look.set(Box::new(look));
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = self.look.get().map(|look| look()).unwrap_or_default();
        let counts = self.lock();
        let mut text = String::new();
        text.push_str("# TYPE scheduler_schedule_attempts_total counter\n");
        for ((profile, outcome), histogram) in &counts.attempts {
            let labels = format!("profile=\"{profile}\",result=\"{}\"", outcome.label());
            writeln!(text, "scheduler_schedule_attempts_total{{{labels}}} {}", histogram.count)?;
        }
        text.push_str("# TYPE scheduler_scheduling_attempt_duration_seconds histogram\n");
        for ((profile, outcome), histogram) in &counts.attempts {
            let labels = format!("profile=\"{profile}\",result=\"{}\"", outcome.label());
            histogram.write(&mut text, "scheduler_scheduling_attempt_duration_seconds", &labels);
        }
        text.push_str("# TYPE scheduler_scheduling_algorithm_duration_seconds histogram\n");
        counts.algorithm.write(&mut text, "scheduler_scheduling_algorithm_duration_seconds", "");
        text.push_str("# TYPE scheduler_pod_scheduling_sli_duration_seconds histogram\n");
        for (attempts, histogram) in &counts.to_bound {
            let attempts = if *attempts >= 16 { "16+".to_owned() } else { attempts.to_string() };
            let labels = format!("attempts=\"{attempts}\"");
            histogram.write(&mut text, "scheduler_pod_scheduling_sli_duration_seconds", &labels);
        }
        text.push_str("# TYPE scheduler_pod_scheduling_attempts histogram\n");
        counts.tries.write(&mut text, "scheduler_pod_scheduling_attempts", "");
        text.push_str("# TYPE scheduler_preemption_victims histogram\n");
        counts.victims.write(&mut text, "scheduler_preemption_victims", "");
        writeln!(text, "# TYPE scheduler_preemption_attempts_total counter")?;
        writeln!(text, "scheduler_preemption_attempts_total {}", counts.preemptions)?;
        text.push_str("# TYPE scheduler_queue_incoming_pods_total counter\n");
        for ((event, queue), count) in &counts.incoming {
            writeln!(
                text,
                "scheduler_queue_incoming_pods_total{{event=\"{event}\",queue=\"{queue}\"}} {count}"
            )?;
        }
        let Sizes { active, backoff, unschedulable, gated } = standing.queue;
        text.push_str("# TYPE scheduler_pending_pods gauge\n");
        for (queue, size) in
            [("active", active), ("backoff", backoff), ("unschedulable", unschedulable), ("gated", gated)]
        {
            writeln!(text, "scheduler_pending_pods{{queue=\"{queue}\"}} {size}")?;
        }
        text.push_str("# TYPE scheduler_unschedulable_pods gauge\n");
        for ((profile, plugin), count) in &standing.refused {
            writeln!(
                text,
                "scheduler_unschedulable_pods{{plugin=\"{plugin}\",profile=\"{profile}\"}} {count}"
            )?;
        }
        text.push_str("# TYPE scheduler_cache_size gauge\n");
        let Standing { nodes, pods, assumed, .. } = standing;
        for (kind, size) in [("assumed_pods", assumed), ("nodes", nodes), ("pods", pods)] {
            writeln!(text, "scheduler_cache_size{{type=\"{kind}\"}} {size}")?;
        }
        out.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_counted_once_and_in_its_buckets() {
        let metrics = Metrics::default();
        metrics.attempted("default-scheduler", Outcome::Scheduled, Duration::from_millis(3));
        metrics.bound(1, Duration::from_millis(15));
        metrics.look_up(|| Standing {
            queue: Sizes { active: 2, ..Sizes::default() },
            nodes: 5,
            refused: [(("default-scheduler", "NodePorts"), 3)].into(),
            ..Standing::default()
        });
        let text = metrics.to_string();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.002\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.004\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"0.02\"} 1",
            "scheduler_pending_pods{queue=\"active\"} 2",
            "scheduler_cache_size{type=\"nodes\"} 5",
            "scheduler_unschedulable_pods{plugin=\"NodePorts\",profile=\"default-scheduler\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
