//! Counters under upstream's names, printed in the text form that Prometheus reads.

pub mod chain;
pub mod histogram;
pub mod page;
mod process;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use self::chain::ChainMetrics;
use self::histogram::{ANSWER_BYTES, BODY_BYTES, Histogram, REQUEST_SECONDS};
use self::page::Page;
use crate::reload::Reloads;

/// Verb, group, version, resource, subresource.
pub type Labels = (&'static str, String, String, String, String);

/// Requests of one sort.
struct Served {
    by_code: BTreeMap<u16, u64>,
    durations: Histogram,
    /// Without what was spent waiting for a seat.
    own_durations: Histogram,
    /// Of what is read.
    answers: Option<Histogram>,
    /// Of what is written.
    bodies: Option<Histogram>,
}

impl Served {
    fn new(verb: &str) -> Self {
        let reads = matches!(verb, "get" | "list");
        let writes = matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection");
        Self {
            by_code: BTreeMap::new(),
            durations: Histogram::new(REQUEST_SECONDS),
            own_durations: Histogram::new(REQUEST_SECONDS),
            answers: reads.then(|| Histogram::new(ANSWER_BYTES)),
            bodies: writes.then(|| Histogram::new(BODY_BYTES)),
        }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finished {
    /// HTTP status.
    pub code: u16,
    /// How long it took,
    pub took: Duration,
    /// and how much of it was waiting for a seat.
    pub waited: Duration,
    /// Bytes that were sent, as far as the request said.
    pub received: Option<u64>,
    /// Bytes of the answer, if it is no stream.
    pub answered: Option<u64>,
}

type Counters = BTreeMap<Labels, Served>;

/// What the server counts.
#[derive(Default)]
pub struct Metrics {
    counters: Mutex<Counters>,
    reading: AtomicI64,
    writing: AtomicI64,
    /// On the way of a request.
    pub chain: ChainMetrics,
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
    pub fn finish(&self, labels: &Labels, done: &Finished) {
        let code = done.code;
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
            counters.insert(labels.clone(), Served::new(labels.0));
        }
        let Some(served) = counters.get_mut(labels) else { return };
        if labels.0 != "watch" {
            served.durations.time(done.took);
            served.own_durations.time(done.took.saturating_sub(done.waited));
        }
        if let (Some(histogram), Some(bytes)) = (&served.answers, done.answered) {
            histogram.observe(bytes as f64);
        }
        if let (Some(histogram), Some(bytes)) = (&served.bodies, done.received) {
            histogram.observe(bytes as f64);
        }
        *served.by_code.entry(code).or_default() += 1;
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        let counters = self.counters.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let name = "apiserver_request_total";
        page.head(name, "counter", "Requests by verb, resource and HTTP status code.");
        for (labels, served) in &*counters {
            for (code, count) in &served.by_code {
                page.line(name, &format!("code=\"{code}\",{}", written(labels, true)), count);
            }
        }
        let sorts: [(&str, &str, bool, fn(&Served) -> Option<&Histogram>); 3] = [
            ("apiserver_request_duration_seconds", "Time until the answer began.", true, |own| {
                Some(&own.durations)
            }),
            (
                "apiserver_request_sli_duration_seconds",
                "The same without waiting for a seat.",
                false,
                |own| Some(&own.own_durations),
            ),
            ("apiserver_response_sizes", "Bytes of answers.", false, |own| own.answers.as_ref()),
        ];
        for (name, help, dry_run, pick) in sorts {
            page.head(name, "histogram", help);
            for (labels, served) in &*counters {
                if let Some(histogram) = pick(served).filter(|histogram| histogram.count() > 0) {
                    histogram.print(page, name, &written(labels, dry_run));
                }
            }
        }
        let name = "apiserver_request_body_size_bytes";
        page.head(name, "histogram", "Bytes of bodies that were sent.");
        for (labels, served) in &*counters {
            if let Some(histogram) = served.bodies.as_ref().filter(|histogram| histogram.count() > 0) {
                let (verb, group, _, resource, subresource) = labels;
                let slash = if subresource.is_empty() { "" } else { "/" };
                let own = format!(
                    "group=\"{}\",resource=\"{}{slash}{}\",verb=\"{verb}\"",
                    clean(group),
                    clean(resource),
                    clean(subresource)
                );
                histogram.print(page, name, &own);
            }
        }
        drop(counters);
        let kinds = [("readOnly", &self.reading), ("mutating", &self.writing)];
        page.many(
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests being answered now.",
            kinds.map(|(kind, gauge)| (format!("request_kind=\"{kind}\""), gauge.load(Ordering::Relaxed))),
        );
        self.chain.print(page);
    }
}

/// Labels as upstream has them.
fn written(labels: &Labels, dry_run: bool) -> String {
    let (verb, group, version, resource, subresource) = labels;
    let scope = if resource.is_empty() { "" } else { "resource" };
    let dry_run = if dry_run { "dry_run=\"\"," } else { "" };
    format!(
        "component=\"apiserver\",{dry_run}group=\"{}\",resource=\"{}\",scope=\"{scope}\",subresource=\"{}\",verb=\"{}\",version=\"{}\"",
        clean(group),
        clean(resource),
        clean(subresource),
        verb.to_ascii_uppercase(),
        clean(version)
    )
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
        let done = |millis: u64| Finished {
            code: 200,
            took: Duration::from_millis(millis),
            waited: Duration::from_millis(millis / 2),
            received: None,
            answered: Some(2000),
        };
        metrics.finish(&labels, &done(30));
        metrics.finish(&labels, &done(1));
        let write = ("create", String::new(), "v1".to_owned(), "pods".to_owned(), String::new());
        metrics.finish(&write, &Finished { received: Some(60_000), ..done(1) });
        let in_flight = metrics.enter(true);
        let mut page = Page::default();
        metrics.print(&mut page);
        for line in [
            "apiserver_request_total{code=\"200\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\"",
            "request_duration_seconds_bucket{component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\",le=\"0.005\"} 1\n",
            "sli_duration_seconds_bucket{component=\"apiserver\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\",le=\"0.025\"} 2\n",
            "request_body_size_bytes_bucket{group=\"\",resource=\"pods\",verb=\"create\",le=\"150000\"} 1\n",
            "response_sizes_sum{component=\"apiserver\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"} 4000\n",
            "inflight_requests{request_kind=\"readOnly\"} 1",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
        drop(in_flight);
    }
}
