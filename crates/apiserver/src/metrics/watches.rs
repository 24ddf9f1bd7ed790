//! Watches: their events, and how they begin.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::family::{Counters, Family, Histograms};
use super::histogram::{EVENT_BYTES, Histogram, WATCH_LIST_SECONDS};
use super::page::Page;
use super::requests::scope;
use crate::request_info::RequestInfo;

/// The events of a resource's watches.
pub struct Events {
    count: AtomicU64,
    bytes: Histogram,
}

/// See the module.
pub struct Watches {
    events: Family<Events, 3>,
    first: Counters<2>,
    lists: Histograms<4>,
}

impl Default for Watches {
    fn default() -> Self {
        let make = |_: [&str; 3]| Events { count: AtomicU64::new(0), bytes: Histogram::new(EVENT_BYTES) };
        Self {
            events: Family::new("", "", ["group", "resource", "version"], make),
            first: Counters::counters(
                "apiserver_init_events_total",
                "Events that watches began with.",
                ["group", "resource"],
            ),
            lists: Histograms::histograms(
                "apiserver_watch_list_duration_seconds",
                "How long watches took that begin with everything, until all of it was out.",
                ["group", "resource", "scope", "version"],
                WATCH_LIST_SECONDS,
            ),
        }
    }
}

impl Watches {
    /// Where the events of a watch are counted.
    pub fn of(&self, info: &RequestInfo) -> Arc<Events> {
        self.events.of([&info.group, &info.resource, &info.version])
    }

    /// A watch began with so many events.
    pub fn began(&self, info: &RequestInfo, events: usize) {
        self.first.of([&info.group, &info.resource]).fetch_add(events as u64, Ordering::Relaxed);
    }

    /// A watch that begins with everything and says when that is out: where its time goes, and from when on.
    pub fn listing(&self, info: &RequestInfo) -> (Arc<Histogram>, Instant) {
        (self.lists.of([&info.group, &info.resource, scope(info), &info.version]), Instant::now())
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        let all = self.events.all();
        let counts = all.iter().map(|(labels, own)| (labels.clone(), own.count.load(Ordering::Relaxed)));
        page.many("apiserver_watch_events_total", "counter", "Events that were sent to watchers.", counts);
        let name = "apiserver_watch_events_sizes";
        page.head(name, "histogram", "Bytes of those events.");
        all.iter().for_each(|(labels, own)| own.bytes.print(page, name, labels));
        self.first.print(page);
        self.lists.print(page);
    }
}

/// The events of one watch since they were last told: many watchers share the counters, and each event is quick.
pub struct Tally {
    events: Arc<Events>,
    count: u64,
    buckets: [u64; EVENT_BYTES.len() + 1],
    bytes: u64,
}

impl Tally {
    /// Nothing so far.
    pub fn new(events: Arc<Events>) -> Self {
        Self { events, count: 0, buckets: [0; EVENT_BYTES.len() + 1], bytes: 0 }
    }

    /// An event of so many bytes.
    pub fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes as u64;
        self.buckets[EVENT_BYTES.partition_point(|bound| *bound < bytes as f64)] += 1;
    }

    /// Adds what there was to the counters.
    pub fn tell(&mut self) {
        if self.count > 0 {
            self.events.count.fetch_add(self.count, Ordering::Relaxed);
            self.events.bytes.add(&self.buckets, self.bytes as f64);
            (self.count, self.bytes, self.buckets) = (0, 0, [0; EVENT_BYTES.len() + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_info::Query;

    #[test]
    fn events_are_told_together() {
        let watches = Watches::default();
        let info = RequestInfo::parse(&http::Method::GET, "/api/v1/pods", &Query::default());
        let mut tally = Tally::new(watches.of(&info));
        [100, 2000, 9_000_000].into_iter().for_each(|bytes| tally.add(bytes));
        tally.tell();
        tally.tell();
        watches.began(&info, 7);
        let (listed, began) = watches.listing(&info);
        listed.time(began.elapsed());
        let mut page = Page::default();
        watches.print(&mut page);
        for line in [
            "watch_events_total{group=\"\",resource=\"pods\",version=\"v1\"} 3\n",
            "watch_events_sizes_bucket{group=\"\",resource=\"pods\",version=\"v1\",le=\"2048\"} 2\n",
            "watch_events_sizes_sum{group=\"\",resource=\"pods\",version=\"v1\"} 9002100\n",
            "init_events_total{group=\"\",resource=\"pods\"} 7\n",
            "watch_list_duration_seconds_count{group=\"\",resource=\"pods\",scope=\"cluster\",version=\"v1\"} 1\n",
        ] {
            assert!(page.text.contains(line), "{line}: {}", page.text);
        }
    }
}
