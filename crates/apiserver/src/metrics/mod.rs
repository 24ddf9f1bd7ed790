//! Counters under upstream's names, printed in the text form that Prometheus reads.

mod page;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::reload::Reloads;

/// Verb, group, version, resource, subresource.
pub type Labels = (&'static str, String, String, String, String);

/// Upper bounds of the duration buckets in seconds.
const BUCKETS: [f64; 10] = [0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 1.0, 5.0, 30.0];

#[derive(Default)]
struct Histogram {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

/// Requests of one sort.
#[derive(Default)]
struct Served {
    by_code: BTreeMap<u16, u64>,
    durations: Histogram,
}

type Counters = BTreeMap<Labels, Served>;

/// What the server counts.
#[derive(Default)]
pub struct Metrics {
    counters: Mutex<Counters>,
    reading: AtomicI64,
    writing: AtomicI64,
    /// Of the authentication file.
    pub authentication_reloads: Reloads,
    /// Of the authorization file.
    pub authorization_reloads: Reloads,
    /// Of the encryption file.
    pub encryption_reloads: Reloads,
}

/// A request in flight; dropping it ends that.
pub struct InFlight<'a>(&'a AtomicI64);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    /// Counts a request in flight.
    pub fn enter(&self, read_only: bool) -> InFlight<'_> {
        let gauge = if read_only { &self.reading } else { &self.writing };
        gauge.fetch_add(1, Ordering::Relaxed);
        InFlight(gauge)
    }

    /// How many requests are being answered.
    pub fn in_flight(&self) -> i64 {
        self.reading.load(Ordering::Relaxed) + self.writing.load(Ordering::Relaxed)
    }

    /// Counts a finished request.
    pub fn finish(&self, labels: &Labels, code: u16, took: Duration) {
        let mut counters = self.counters.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Strangers may ask for any path; what was not served is counted together.
        let stranger;
        let labels = if code == 404 || code == 401 || code == 403 {
            stranger = (labels.0, String::new(), String::new(), String::new(), String::new());
            &stranger
        } else {
            labels
        };
        if !counters.contains_key(labels) {
            counters.insert(labels.clone(), Served::default());
        }
        let Some(served) = counters.get_mut(labels) else { return };
        if labels.0 != "watch" {
            let histogram = &mut served.durations;
            let seconds = took.as_secs_f64();
            histogram.count += 1;
            histogram.sum += seconds;
            if let Some(bucket) = BUCKETS.iter().position(|bound| seconds <= *bound) {
                histogram.buckets[bucket] += 1;
            }
        }
        *served.by_code.entry(code).or_default() += 1;
    }

    /// The text form.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(16 << 10);
        let counters = self.counters.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes everything
        };
        let text = |(verb, group, version, resource, subresource): &Labels| {
            let scope = if resource.is_empty() { "" } else { "resource" };
            format!(
                "component=\"apiserver\",group=\"{}\",resource=\"{}\",scope=\"{scope}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
                clean(group),
                clean(resource),
                clean(subresource),
                verb.to_ascii_uppercase(),
                clean(version)
            )
        };
        head(
            &mut out,
            "apiserver_request_total",
            "counter",
            "Requests by verb, resource and HTTP status code.",
        );
        for (labels, served) in &*counters {
            for (code, count) in &served.by_code {
                let _ = writeln!(out, "apiserver_request_total{{code=\"{code}\",{}}} {count}", text(labels));
            }
        }
        let name = "apiserver_request_duration_seconds";
        head(&mut out, name, "histogram", "Time until the answer began, by verb and resource.");
        for (labels, served) in counters.iter().filter(|(_, served)| served.durations.count > 0) {
            let (labels, histogram) = (text(labels), &served.durations);
            let mut below = 0;
            for (bound, count) in BUCKETS.iter().zip(histogram.buckets) {
                below += count;
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
            }
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", histogram.count);
            let _ = writeln!(out, "{name}_sum{{{labels}}} {}", histogram.sum);
            let _ = writeln!(out, "{name}_count{{{labels}}} {}", histogram.count);
        }
        drop(counters);
        head(&mut out, "apiserver_current_inflight_requests", "gauge", "Requests being answered now.");
        for (kind, gauge) in [("readOnly", &self.reading), ("mutating", &self.writing)] {
            let value = gauge.load(Ordering::Relaxed);
            let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {value}");
        }
        out
    }
}

pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !matches!(letter, '"' | '\\' | '\n')).take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_code_and_duration() {
        let metrics = Metrics::default();
        let labels = ("get", String::new(), "v1".to_owned(), "pods".to_owned(), String::new());
        metrics.finish(&labels, 200, Duration::from_millis(30));
        metrics.finish(&labels, 200, Duration::from_millis(1));
        let in_flight = metrics.enter(true);
        let text = metrics.text();
        assert!(
            text.contains(
                "apiserver_request_total{code=\"200\",component=\"apiserver\",group=\"\",resource=\"pods\""
            ),
            "{text}"
        );
        assert!(text.contains("le=\"0.005\"} 1\n"), "{text}");
        assert!(text.contains("le=\"0.05\"} 2\n"), "{text}");
        assert!(text.contains("inflight_requests{request_kind=\"readOnly\"} 1"), "{text}");
        drop(in_flight);
    }
}
