//! Counts of values below bounds that grow by a factor.

use std::fmt::Write as _;
use std::time::Duration;

/// The first bound, the factor from one to the next, and how many there are.
#[derive(Clone, Copy, Debug)]
pub struct Bounds(f64, f64, usize);

impl Bounds {
    /// Attempts, and waits for a permission.
    pub const ATTEMPT: Self = Self(0.001, 2.0, 15);
    /// From the queue to the node.
    pub const TO_BOUND: Self = Self(0.01, 2.0, 20);
    pub const POINT: Self = Self(0.0001, 2.0, 12);
    pub const PLUGIN: Self = Self(0.00001, 1.5, 20);
    pub const TRIES: Self = Self(1.0, 2.0, 5);
    pub const VICTIMS: Self = Self(1.0, 2.0, 7);

    fn iter(self) -> impl Iterator<Item = f64> {
        std::iter::successors(Some(self.0), move |bound| Some(bound * self.1)).take(self.2)
    }
}

#[derive(Debug)]
pub struct Histogram {
    bounds: Bounds,
    /// How many values are in each bucket alone; they are summed when someone asks.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, buckets: vec![0; bounds.2], count: 0, sum: 0.0 }
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        if let Some(place) = self.bounds.iter().position(|bound| value <= bound) {
            self.buckets[place] += 1;
        }
    }

    /// Takes in what another one of the same bounds has seen.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        for (own, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += more;
        }
    }

    pub fn took(&mut self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            below += bucket;
            // Powers of a decimal print with a tail; nine digits are enough.
            let text = format!("{bound:.9}");
            let text = text.trim_end_matches('0').trim_end_matches('.');
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{text}\"}} {below}");
        }
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", self.count);
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "{name}_sum{labels} {}\n{name}_count{labels} {}", self.sum, self.count);
    }
}
