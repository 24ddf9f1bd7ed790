//! Metrics with labels: a series for each set of values that was seen.
//!
//! Series are found by what the caller borrows, under a read lock: only the first one of its values allocates.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use super::clean;
use super::histogram::Histogram;
use super::page::Page;

/// What a series is made of.
pub trait Series {
    /// As the page calls it.
    const KIND: &'static str;

    /// Its lines.
    fn write(&self, page: &mut Page, name: &str, labels: &str);
}

impl Series for AtomicU64 {
    const KIND: &'static str = "counter";

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.line(name, labels, self.load(Ordering::Relaxed));
    }
}

impl Series for AtomicI64 {
    const KIND: &'static str = "gauge";

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.line(name, labels, self.load(Ordering::Relaxed));
    }
}

impl Series for Histogram {
    const KIND: &'static str = "histogram";

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        self.print(page, name, labels);
    }
}

type Make<S, const N: usize> = Box<dyn Fn([&str; N]) -> S + Send + Sync>;

struct One<S, const N: usize> {
    values: [Box<str>; N],
    series: Arc<S>,
}

/// See the module.
pub struct Family<S, const N: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; N],
    make: Make<S, N>,
    hasher: RandomState,
    /// By the hash of the values; those that share one stand together.
    series: RwLock<HashMap<u64, Vec<One<S, N>>>>,
}

impl<S, const N: usize> Family<S, N> {
    /// Empty. What `make` is given are the values of a new series.
    pub fn new(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        make: impl Fn([&str; N]) -> S + Send + Sync + 'static,
    ) -> Self {
        let (hasher, series) = (RandomState::new(), RwLock::default());
        Self { name, help, labels, make: Box::new(make), hasher, series }
    }

    fn found(&self, all: &HashMap<u64, Vec<One<S, N>>>, hash: u64, values: [&str; N]) -> Option<Arc<S>> {
        let same = |one: &&One<S, N>| one.values.iter().zip(values).all(|(own, other)| **own == *other);
        all.get(&hash)?.iter().find(same).map(|one| one.series.clone())
    }

    /// The series with these values, which are in the order of the labels, if there is one.
    pub fn find(&self, values: [&str; N]) -> Option<Arc<S>> {
        let all = self.series.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        self.found(&all, self.hasher.hash_one(values), values)
    }

    /// The series with these values, which are in the order of the labels.
    pub fn of(&self, values: [&str; N]) -> Arc<S> {
        if let Some(found) = self.find(values) {
            return found;
        }
        let hash = self.hasher.hash_one(values);
        let mut all = self.series.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Another may have been quicker.
        if let Some(found) = self.found(&all, hash, values) {
            return found;
        }
        let series = Arc::new((self.make)(values));
        all.entry(hash).or_default().push(One { values: values.map(Into::into), series: series.clone() });
        series
    }

    /// All series with their labels as they are written, sorted by values.
    pub fn all(&self) -> Vec<(String, Arc<S>)> {
        let all = self.series.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut sorted: Vec<&One<S, N>> = all.values().flatten().collect();
        sorted.sort_by(|one, two| one.values.cmp(&two.values));
        let written = |one: &One<S, N>| {
            let labels = self.labels.iter().zip(&one.values);
            let labels: Vec<String> =
                labels.map(|(label, value)| format!("{label}=\"{}\"", clean(value))).collect();
            (labels.join(","), one.series.clone())
        };
        sorted.into_iter().map(written).collect()
    }
}

impl<S: Series, const N: usize> Family<S, N> {
    /// Everything.
    pub fn print(&self, page: &mut Page) {
        page.head(self.name, S::KIND, self.help);
        for (labels, series) in self.all() {
            series.write(page, self.name, &labels);
        }
    }
}

/// A number that only grows.
pub type Counters<const N: usize> = Family<AtomicU64, N>;
/// A number of now.
pub type Gauges<const N: usize> = Family<AtomicI64, N>;
/// Numbers in buckets.
pub type Histograms<const N: usize> = Family<Histogram, N>;

impl<const N: usize> Counters<N> {
    /// Nothing counted yet.
    pub fn counters(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self::new(name, help, labels, |_| AtomicU64::default())
    }

    /// One more.
    pub fn count(&self, values: [&str; N]) {
        self.of(values).fetch_add(1, Ordering::Relaxed);
    }
}

impl<const N: usize> Gauges<N> {
    /// Nothing there yet.
    pub fn gauges(name: &'static str, help: &'static str, labels: [&'static str; N]) -> Self {
        Self::new(name, help, labels, |_| AtomicI64::default())
    }

    /// One more, for as long as the guard is kept.
    pub fn hold(&self, values: [&str; N]) -> Holding {
        let gauge = self.of(values);
        gauge.fetch_add(1, Ordering::Relaxed);
        Holding(gauge)
    }
}

/// Counted while it is there.
pub struct Holding(Arc<AtomicI64>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<const N: usize> Histograms<N> {
    /// Nothing seen yet.
    pub fn histograms(
        name: &'static str,
        help: &'static str,
        labels: [&'static str; N],
        bounds: &'static [f64],
    ) -> Self {
        Self::new(name, help, labels, move |_| Histogram::new(bounds))
    }

    /// Counts a time.
    pub fn time(&self, values: [&str; N], took: Duration) {
        self.of(values).time(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_made_once_for_its_values() {
        let counters = Counters::counters("c_total", "Things.", ["a", "b"]);
        counters.count(["2", "y"]);
        counters.count(["1", "\"x"]);
        counters.count(["2", "y"]);
        assert!(Arc::ptr_eq(&counters.of(["2", "y"]), &counters.of(["2", "y"])));
        let gauges = Gauges::gauges("g", "Now.", ["a"]);
        let held = gauges.hold(["z"]);
        drop(gauges.hold(["z"]));
        let histograms = Histograms::histograms("h", "Times.", [], &[1.0]);
        histograms.time([], Duration::from_millis(500));
        let mut page = Page::default();
        counters.print(&mut page);
        gauges.print(&mut page);
        histograms.print(&mut page);
        drop(held);
        let lines: Vec<&str> = page.text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines,
            [
                "c_total{a=\"1\",b=\"x\"} 1",
                "c_total{a=\"2\",b=\"y\"} 2",
                "g{a=\"z\"} 1",
                "h_bucket{le=\"1\"} 1",
                "h_bucket{le=\"+Inf\"} 1",
                "h_sum 0.5",
                "h_count 1",
            ]
        );
        assert!(page.text.contains("# TYPE g gauge"));
    }
}
