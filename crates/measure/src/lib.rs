//! The frame of every benchmark: latencies and their percentiles, what processes cost, and one table of figures.
//!
//! A benchmark makes [`Figure`]s and hands each to a [`Report`], which prints a line as soon as it is known (as
//! Markdown, for `docs/benchmarks.md`) or everything at the end as JSON. What a server costs is read from outside,
//! through [`Processes`]; the clock of the kernel ticks a hundred times a second, so runs shorter than a second say
//! little about CPU time.

#![warn(missing_docs)]

mod process;
mod report;

pub use process::Processes;
pub use report::{Figure, Form, Report};

use std::time::Duration;

/// How long each of many things took.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    micros: Vec<u32>,
}

impl Latencies {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one.
    pub fn push(&mut self, took: Duration) {
        self.micros.push(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
    }

    /// Adds those of another client.
    pub fn extend(&mut self, other: &Self) {
        self.micros.extend_from_slice(&other.micros);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.micros.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.micros.is_empty()
    }

    /// The time within which each of these shares of all things was done (0.5: the median), in microseconds.
    /// Nothing if nothing was done.
    pub fn percentiles<const N: usize>(&self, shares: [f64; N]) -> Option<[u32; N]> {
        if self.is_empty() {
            return None;
        }
        let mut sorted = self.micros.clone();
        sorted.sort_unstable();
        Some(shares.map(|share| {
            let rank = (sorted.len() as f64 * share).ceil() as usize;
            sorted[rank.clamp(1, sorted.len()) - 1]
        }))
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut all = Self::new();
        times.into_iter().for_each(|took| all.push(took));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_time_that_was_measured() {
        let times: Latencies = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(times.percentiles([0.0, 0.5, 0.99, 1.0]), Some([1, 100, 198, 200]));
        let one: Latencies = [Duration::from_millis(7)].into_iter().collect();
        assert_eq!(one.percentiles([0.5, 0.999]), Some([7000, 7000]));
        assert_eq!(Latencies::new().percentiles([0.5]), None);
    }
}
