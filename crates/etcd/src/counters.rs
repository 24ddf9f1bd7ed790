//! What the engine counts for `/metrics`. Counting is relaxed: each number is right, two of them may be a moment apart.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Several more.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// One fewer, for what is counted while it lasts.
    pub fn decrement(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long something took, by classes.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    classes: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Classes with these upper bounds in seconds, and one above.
    pub fn new(bounds: &'static [f64]) -> Self {
        let classes = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, classes, nanoseconds: AtomicU64::new(0) }
    }

    /// Counts one.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let class = self.bounds.partition_point(|bound| *bound < seconds);
        self.classes[class].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Upper bounds with how many were at most that long, the last one without bound; and the sum in seconds.
    pub fn read(&self) -> (Vec<(Option<f64>, u64)>, f64) {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        let mut total = 0;
        let cumulated = bounds.zip(&self.classes).map(|(bound, class)| {
            total += class.load(Ordering::Relaxed);
            (bound, total)
        });
        (cumulated.collect(), self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9)
    }
}

/// A millisecond, doubled thirteen times: etcd's classes for disks.
pub const DISK: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192];

/// What the engine counts.
#[derive(Debug)]
pub struct Counters {
    /// Keys put.
    pub puts: Counter,
    /// Keys deleted.
    pub deletes: Counter,
    /// Ranges read.
    pub ranges: Counter,
    /// Transactions.
    pub transactions: Counter,
    /// Writes that failed after they were decided.
    pub failed: Counter,
    /// Leases granted.
    pub leases_granted: Counter,
    /// Leases revoked, expired ones included.
    pub leases_revoked: Counter,
    /// Leases kept alive.
    pub leases_renewed: Counter,
    /// Leases expired.
    pub leases_expired: Counter,
    /// Bytes written to the log.
    pub log_bytes: Counter,
    /// How long fdatasync of the log took.
    pub sync: Histogram,
    /// How long a batch took from its writing until it was visible.
    pub commit: Histogram,
    /// How long snapshots took.
    pub snapshot: Histogram,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            puts: Counter::default(),
            deletes: Counter::default(),
            ranges: Counter::default(),
            transactions: Counter::default(),
            failed: Counter::default(),
            leases_granted: Counter::default(),
            leases_revoked: Counter::default(),
            leases_renewed: Counter::default(),
            leases_expired: Counter::default(),
            log_bytes: Counter::default(),
            sync: Histogram::new(DISK),
            commit: Histogram::new(DISK),
            snapshot: Histogram::new(DISK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_at_most_and_sums_up() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for millis in [100, 500, 700, 3000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let (classes, sum) = histogram.read();
        assert_eq!(classes, [(Some(0.5), 2), (Some(1.0), 3), (None, 4)]);
        assert!((sum - 4.3).abs() < 1e-9);
    }
}
