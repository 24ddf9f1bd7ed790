//! The requests of each flow schema: how many run and wait, for how long, and who was sent away.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::family::Family;
use super::histogram::{FLOW_SECONDS, Histogram};
use super::page::Page;
use crate::flowcontrol::demand::Lasting;
use crate::flowcontrol::{Classification, Figures, FlowControl, Queue, Refused};

const REASONS: [&str; 3] = ["concurrency-limit", "time-out", "queue-full"];
/// Bounds of the seats that a request takes.
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];

/// The requests of one flow schema.
pub struct Flow {
    /// Those that wait.
    pub queue: Queue,
    dispatched: AtomicU64,
    requests: AtomicI64,
    seats: AtomicI64,
    /// By reason.
    refused: [AtomicU64; REASONS.len()],
    /// In vain, and not.
    waited: [Histogram; 2],
    /// Other requests, and watches until they began.
    ran: [Histogram; 2],
    widths: Histogram,
}

/// All flow schemas that requests came by.
pub struct Flows(Family<Flow, 2>);

impl Default for Flows {
    fn default() -> Self {
        let make = |_: [&str; 2]| Flow {
            queue: Queue::default(),
            dispatched: AtomicU64::new(0),
            requests: AtomicI64::new(0),
            seats: AtomicI64::new(0),
            refused: Default::default(),
            waited: [0, 1].map(|_| Histogram::new(FLOW_SECONDS)),
            ran: [0, 1].map(|_| Histogram::new(FLOW_SECONDS)),
            widths: Histogram::new(SEATS),
        };
        Self(Family::new("", "", ["flow_schema", "priority_level"], make))
    }
}

/// A request that has its seats; dropping it gives them back.
pub struct Running {
    flow: Arc<Flow>,
    width: i64,
    watches: bool,
    began: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.flow.requests.fetch_sub(1, Ordering::Relaxed);
        self.flow.seats.fetch_sub(self.width, Ordering::Relaxed);
        self.flow.ran[usize::from(self.watches)].time(self.began.elapsed());
    }
}

impl Flow {
    /// A request got its seats, after a while.
    pub fn dispatched(self: Arc<Self>, width: usize, watches: bool, waited: Duration) -> Running {
        self.dispatched.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.seats.fetch_add(width as i64, Ordering::Relaxed);
        self.widths.observe(width as f64);
        self.waited[1].time(waited);
        Running { flow: self, width: width as i64, watches, began: Instant::now() }
    }

    /// A request got none, after a while.
    pub fn refused(&self, why: Refused, waited: Duration) {
        let index = match why {
            Refused::Full => 0,
            Refused::TimedOut => 1,
            Refused::QueueFull => 2,
        };
        self.refused[index].fetch_add(1, Ordering::Relaxed);
        self.waited[0].time(waited);
    }
}

impl Flows {
    /// The one of a request.
    pub fn of(&self, class: &Classification) -> Arc<Flow> {
        self.0.of([&class.schema.0, &class.level.0])
    }

    /// Everything that is counted here, and how the levels are.
    pub fn print(&self, page: &mut Page, control: &FlowControl) {
        let flows = self.0.all();
        let gauges: [(&str, &str, fn(&Flow) -> i64); 4] = [
            ("current_executing_requests", "Requests that have their seats.", |own| {
                own.requests.load(Ordering::Relaxed)
            }),
            ("current_executing_seats", "Seats that are taken now.", |own| own.seats.load(Ordering::Relaxed)),
            ("current_inqueue_requests", "Requests that wait for their seats.", |own| waiting(own).sum()),
            ("current_inqueue_seats", "Seats that are waited for.", |own| {
                own.queue.seats.load(Ordering::Relaxed)
            }),
        ];
        for (name, help, pick) in gauges {
            let lines = flows.iter().map(|(labels, own)| (labels.clone(), pick(own)));
            page.many(&format!("apiserver_flowcontrol_{name}"), "gauge", help, lines);
        }
        let kinds = ["readOnly", "mutating"].iter().enumerate().map(|(index, kind)| {
            let all = flows.iter().map(|(_, own)| own.queue.requests[index].load(Ordering::Relaxed));
            (format!("request_kind=\"{kind}\""), all.sum::<i64>())
        });
        page.many("apiserver_current_inqueue_requests", "gauge", "Requests that wait now.", kinds);
        page.many(
            "apiserver_flowcontrol_dispatched_requests_total",
            "counter",
            "Requests that got their seats.",
            flows.iter().map(|(labels, own)| (labels.clone(), own.dispatched.load(Ordering::Relaxed))),
        );
        let refused = flows.iter().flat_map(|(labels, own)| {
            let counted = REASONS.iter().zip(&own.refused);
            counted.filter_map(move |(reason, count)| {
                let count = count.load(Ordering::Relaxed);
                (count > 0).then(|| (format!("{labels},reason=\"{reason}\""), count))
            })
        });
        let name = "apiserver_flowcontrol_rejected_requests_total";
        page.many(name, "counter", "Requests refused so far.", refused);
        let histograms: [(&str, &str, [&str; 2], fn(&Flow) -> [&Histogram; 2]); 2] = [
            (
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "How long requests waited for their seats, by whether they got them.",
                ["execute=\"false\",", "execute=\"true\","],
                |own| own.waited.each_ref(),
            ),
            (
                "apiserver_flowcontrol_request_execution_seconds",
                "How long requests had their seats; watches have them until they begin.",
                ["type=\"regular\",", "type=\"watch\","],
                |own| own.ran.each_ref(),
            ),
        ];
        for (name, help, more, pick) in histograms {
            page.head(name, "histogram", help);
            for (labels, own) in &flows {
                for (more, histogram) in more.iter().zip(pick(own)).filter(|(_, own)| own.count() > 0) {
                    histogram.print(page, name, &format!("{more}{labels}"));
                }
            }
        }
        let name = "apiserver_flowcontrol_request_queue_length_after_enqueue";
        page.head(name, "histogram", "How long a queue was when a request had come into it.");
        for (labels, own) in flows.iter().filter(|(_, own)| own.queue.lengths.count() > 0) {
            own.queue.lengths.print(page, name, labels);
        }
        let name = "apiserver_flowcontrol_work_estimated_seats";
        page.head(name, "histogram", "How many seats requests took.");
        flows.iter().for_each(|(labels, own)| own.widths.print(page, name, labels));
        levels(page, control);
    }
}

fn waiting(flow: &Flow) -> impl Iterator<Item = i64> {
    flow.queue.requests.iter().map(|count| count.load(Ordering::Relaxed))
}

/// What each priority level has and wants.
fn levels(page: &mut Page, control: &FlowControl) {
    let levels: Vec<(String, Figures)> = control
        .levels()
        .into_iter()
        .map(|(name, figures)| (format!("priority_level=\"{}\"", super::clean(&name)), figures))
        .collect();
    let gauges: [(&str, &str, fn(&Figures) -> f64); 8] = [
        ("nominal_limit_seats", "Seats of each priority level.", |own| own.nominal as f64),
        ("lower_limit_seats", "Seats that a level has when it lent all that it may.", |own| own.lower as f64),
        ("upper_limit_seats", "Seats that a level has when it borrowed all that it may.", |own| {
            own.upper as f64
        }),
        ("current_limit_seats", "Seats of a level and those that it has borrowed now.", |own| {
            own.current as f64
        }),
        ("demand_seats_average", "Seats that were wanted in the last ten seconds, on average.", |own| {
            own.demand.last.average
        }),
        ("demand_seats_stdev", "How much that went up and down.", |own| own.demand.last.deviation),
        ("demand_seats_high_watermark", "The most seats that were wanted in the last ten seconds.", |own| {
            own.demand.last.peak
        }),
        ("demand_seats_smoothed", "Wanted seats; follows a rise at once and a fall slowly.", |own| {
            own.demand.smoothed
        }),
    ];
    for (name, help, pick) in gauges {
        let lines = levels.iter().map(|(labels, own)| (labels.clone(), pick(own)));
        page.many(&format!("apiserver_flowcontrol_{name}"), "gauge", help, lines);
    }
    let lasting: [(&str, &str, &str, fn(&Figures) -> &Lasting); 2] = [
        (
            "apiserver_flowcontrol_demand_seats",
            "Nanoseconds in which such a part of the nominal seats was wanted.",
            "",
            |own| &own.demand.wanted_for,
        ),
        (
            "apiserver_flowcontrol_priority_level_seat_utilization",
            "Nanoseconds in which such a part of the nominal seats was taken.",
            "phase=\"executing\",",
            |own| &own.demand.taken_for,
        ),
    ];
    for (name, help, more, pick) in lasting {
        page.head(name, "histogram", help);
        for (labels, own) in &levels {
            let (labels, own) = (format!("{more}{labels}"), pick(own));
            page.buckets(name, &labels, own.bounds, &own.nanoseconds, own.sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_while_they_run() {
        let flows = Flows::default();
        let class = Classification {
            schema: ("s".into(), String::new()),
            level: ("l".into(), String::new()),
            ..Classification::default()
        };
        let took = Duration::from_millis(3);
        let running = flows.of(&class).dispatched(3, false, took);
        drop(flows.of(&class).dispatched(1, true, took));
        flows.of(&class).refused(Refused::QueueFull, took);
        let mut page = Page::default();
        flows.print(&mut page, &FlowControl::new(600));
        drop(running);
        flows.print(&mut page, &FlowControl::new(600));
        let of = "flow_schema=\"s\",priority_level=\"l\"";
        for line in [
            format!("current_executing_requests{{{of}}} 1\n"),
            format!("current_executing_seats{{{of}}} 3\n"),
            format!("current_executing_seats{{{of}}} 0\n"),
            format!("dispatched_requests_total{{{of}}} 2\n"),
            format!("rejected_requests_total{{{of},reason=\"queue-full\"}} 1\n"),
            format!("request_wait_duration_seconds_count{{execute=\"false\",{of}}} 1\n"),
            format!("request_execution_seconds_count{{type=\"watch\",{of}}} 1\n"),
            format!("work_estimated_seats_sum{{{of}}} 4\n"),
            "upper_limit_seats{priority_level=\"workload-low\"} 845\n".to_owned(),
            "lower_limit_seats{priority_level=\"workload-low\"} 24\n".to_owned(),
            "seat_utilization_bucket{phase=\"executing\",priority_level=\"system\",le=\"0.95\"}".to_owned(),
        ] {
            assert!(page.text.contains(&line), "{line}: {}", page.text);
        }
    }
}
