//! Numbers sorted into buckets, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::page::Page;

/// Upstream's bounds for requests, in seconds.
pub const REQUEST_SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Upstream's bounds for what users are promised.
pub const SLI_SECONDS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// For waiting until the cache is as new as the store.
pub const WAIT_SECONDS: &[f64] = &[0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];
/// For what takes less time.
pub const SHORT_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// For admission.
pub const ADMISSION_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
/// For encryption: five microseconds, doubled.
pub const CIPHER_SECONDS: &[f64] = &[
    0.000_005, 0.000_01, 0.000_02, 0.000_04, 0.000_08, 0.000_16, 0.000_32, 0.000_64, 0.001_28, 0.002_56,
    0.005_12, 0.010_24, 0.020_48, 0.040_96, 0.081_92,
];
/// For admission webhooks.
pub const WEBHOOK_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Of conversion webhooks.
pub const CONVERSION_SECONDS: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
/// From a millisecond to a quarter of a minute, each twice the one before.
pub const DOUBLING_SECONDS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// For the expressions of policies.
pub const POLICY_SECONDS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];
/// For steps on a request's way.
pub const FILTER_SECONDS: &[f64] =
    &[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0];
/// For waits and runs of flows.
pub const FLOW_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
/// For answers, in bytes.
pub const ANSWER_BYTES: &[f64] =
    &[1000.0, 10_000.0, 100_000.0, 1_000_000.0, 10_000_000.0, 100_000_000.0, 1_000_000_000.0];
/// For events of watches, in bytes.
pub const EVENT_BYTES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0];
/// For the first events of a watch, in seconds.
pub const WATCH_LIST_SECONDS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
/// For calls to other servers.
pub const CALL_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// For what goes there and comes back, in bytes.
pub const CALL_BYTES: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
/// For bodies, in bytes.
pub const BODY_BYTES: &[f64] = &[
    50_000.0,
    150_000.0,
    250_000.0,
    350_000.0,
    450_000.0,
    550_000.0,
    650_000.0,
    750_000.0,
    850_000.0,
    950_000.0,
    1_050_000.0,
    1_150_000.0,
    1_250_000.0,
    1_350_000.0,
    1_450_000.0,
    1_550_000.0,
    1_650_000.0,
    1_750_000.0,
    1_850_000.0,
    1_950_000.0,
    2_050_000.0,
    2_150_000.0,
    2_250_000.0,
    2_350_000.0,
    2_450_000.0,
    2_550_000.0,
    2_650_000.0,
    2_750_000.0,
    2_850_000.0,
    2_950_000.0,
    3_050_000.0,
];

/// Bounds of the time that a client certificate is still good, in seconds.
pub const CERTIFICATE_SECONDS: &[f64] = &[
    0.0,
    1_800.0,
    3_600.0,
    7_200.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];

/// See the module.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is beyond them.
    buckets: Box<[AtomicU64]>,
    /// In millionths.
    sum: AtomicU64,
}

impl Histogram {
    /// An empty one.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Counts a number.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    /// Counts what somebody has sorted into these bounds already.
    pub fn add(&self, buckets: &[u64], sum: f64) {
        for (own, more) in self.buckets.iter().zip(buckets).filter(|(_, more)| **more > 0) {
            own.fetch_add(*more, Ordering::Relaxed);
        }
        self.sum.fetch_add((sum * 1e6) as u64, Ordering::Relaxed);
    }

    /// Counts a time.
    pub fn time(&self, took: Duration) {
        self.observe(took.as_secs_f64());
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The lines of it; `labels` are `a="b"` or nothing.
    pub fn print(&self, page: &mut Page, name: &str, labels: &str) {
        let buckets: Vec<u64> = self.buckets.iter().map(|own| own.load(Ordering::Relaxed)).collect();
        let sum = self.sum.load(Ordering::Relaxed) as f64 / 1e6;
        page.buckets(name, labels, self.bounds, &buckets, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fall_into_their_buckets() {
        let histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.observe(value));
        let mut page = Page::default();
        histogram.print(&mut page, "h", "a=\"b\"");
        for line in [
            "h_bucket{a=\"b\",le=\"1\"} 2",
            "le=\"2\"} 3",
            "le=\"+Inf\"} 4",
            "h_sum{a=\"b\"} 12",
            "h_count{a=\"b\"} 4",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
    }
}
