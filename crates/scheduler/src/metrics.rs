//! What the scheduler counts, under upstream's names.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the histogram's buckets, in seconds: upstream's, 1 ms doubling to about 16 s.
const BUCKETS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

/// Counters of one scheduler.
#[derive(Debug, Default)]
pub struct Metrics {
    attempts: [Attempts; 3],
    preemptions: AtomicU64,
}

#[derive(Debug, Default)]
struct Attempts {
    count: AtomicU64,
    microseconds: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len()],
}

impl Metrics {
    pub fn attempted(&self, outcome: Outcome, took: Duration) {
        let attempts = &self.attempts[outcome as usize];
        attempts.count.fetch_add(1, Relaxed);
        attempts.microseconds.fetch_add(took.as_micros() as u64, Relaxed);
        for (bucket, bound) in attempts.buckets.iter().zip(BUCKETS) {
            bucket.fetch_add(u64::from(took.as_secs_f64() <= bound), Relaxed);
        }
    }

    pub fn preempted(&self, victims: usize) {
        self.preemptions.fetch_add(victims as u64, Relaxed);
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "# TYPE scheduler_schedule_attempts_total counter")?;
        let results = ["scheduled", "unschedulable", "error"];
        let labels = |result: &str| format!("profile=\"default-scheduler\",result=\"{result}\"");
        for (attempts, result) in self.attempts.iter().zip(results) {
            let count = attempts.count.load(Relaxed);
            writeln!(out, "scheduler_schedule_attempts_total{{{}}} {count}", labels(result))?;
        }
        writeln!(out, "# TYPE scheduler_scheduling_attempt_duration_seconds histogram")?;
        let name = "scheduler_scheduling_attempt_duration_seconds";
        for (attempts, result) in self.attempts.iter().zip(results) {
            let (labels, count) = (labels(result), attempts.count.load(Relaxed));
            for (bucket, bound) in attempts.buckets.iter().zip(BUCKETS) {
                writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {}", bucket.load(Relaxed))?;
            }
            writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
            let seconds = attempts.microseconds.load(Relaxed) as f64 / 1e6;
            writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {count}")?;
        }
        writeln!(out, "# TYPE scheduler_preemption_victims_total counter")?;
        writeln!(out, "scheduler_preemption_victims_total {}", self.preemptions.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_counted_once_and_in_its_buckets() {
        let metrics = Metrics::default();
        metrics.attempted(Outcome::Scheduled, Duration::from_millis(3));
        let text = metrics.to_string();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.002\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.004\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
