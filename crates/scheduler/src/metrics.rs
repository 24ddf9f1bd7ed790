//! What the scheduler counts, under upstream's names.

mod histogram;

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::framework::{Code, Measures, Point};
use crate::queue::Sizes;
pub use histogram::{Bounds, Histogram};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    Scheduled,
    Unschedulable,
    Error,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Unschedulable => "unschedulable",
            Self::Error => "error",
        }
    }
}

#[derive(Debug)]
struct Counts {
    attempts: BTreeMap<(&'static str, Outcome), Histogram>,
    algorithm: Histogram,
    /// From when the scheduler saw a pod until it was bound, by attempts (capped, as upstream does).
    to_bound: BTreeMap<u32, Histogram>,
    tries: Histogram,
    victims: Histogram,
    permit_waits: BTreeMap<Code, Histogram>,
}

/// How large everything is at the moment.
#[derive(Debug, Default)]
pub struct Standing {
    pub queue: Sizes,
    /// How many pods came into each part of the queue, by what brought them there.
    pub incoming: BTreeMap<(&'static str, &'static str), u64>,
    /// What the plugins of each profile did.
    pub measures: Vec<(&'static str, Arc<Measures>)>,
    /// Bindings under way.
    pub binding: usize,
    pub nodes: usize,
    pub pods: usize,
    pub assumed: usize,
    /// How many pods each plugin of each profile refuses or holds back.
    pub refused: BTreeMap<(&'static str, &'static str), usize>,
}

type Look = Box<dyn Fn() -> Standing + Send + Sync>;

/// Counters of one scheduler; what can be looked up is looked up when someone asks.
pub struct Metrics {
    counts: Mutex<Counts>,
    look: OnceLock<Look>,
}

impl Default for Metrics {
    fn default() -> Self {
        let counts = Counts {
            attempts: BTreeMap::new(),
            algorithm: Histogram::new(Bounds::ATTEMPT),
            to_bound: BTreeMap::new(),
            tries: Histogram::new(Bounds::TRIES),
            victims: Histogram::new(Bounds::VICTIMS),
            permit_waits: BTreeMap::new(),
        };
        Self { counts: Mutex::new(counts), look: OnceLock::new() }
    }
}

impl Metrics {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node was chosen, or found to be missing.
    pub fn decided(&self, took: Duration) {
        self.lock().algorithm.took(took);
    }

    /// An attempt has ended, the binding included.
    pub fn attempted(&self, profile: &'static str, outcome: Outcome, took: Duration) {
        let mut counts = self.lock();
        let histogram = counts.attempts.entry((profile, outcome));
        histogram.or_insert_with(|| Histogram::new(Bounds::ATTEMPT)).took(took);
    }

    pub fn bound(&self, attempts: u32, took: Duration) {
        let mut counts = self.lock();
        counts.tries.observe(f64::from(attempts));
        let histogram = counts.to_bound.entry(attempts.min(16));
        histogram.or_insert_with(|| Histogram::new(Bounds::TO_BOUND)).took(took);
    }

    pub fn preempted(&self, victims: usize) {
        self.lock().victims.observe(victims as f64);
    }

    /// A pod has waited for a permission.
    pub fn permitted(&self, code: Code, took: Duration) {
        let mut counts = self.lock();
        let histogram = counts.permit_waits.entry(code);
        histogram.or_insert_with(|| Histogram::new(Bounds::ATTEMPT)).took(took);
    }

    /// Says where to look things up; only the first one is heard.
    pub fn look_up(&self, look: impl Fn() -> Standing + Send + Sync + 'static) {
        let _ = self.look.set(Box::new(look));
    }
}

/// How often somebody thought about sending pods away.
fn preemption_attempts(standing: &Standing) -> u64 {
    let asked = |measures: &Measures| -> u64 {
        let book = measures.lock();
        let plugins = book.asked.get(&Point::PostFilter).into_iter().flatten();
        plugins.filter(|(name, _)| *name == "DefaultPreemption").map(|(_, times)| times).sum()
    };
    standing.measures.iter().map(|(_, measures)| asked(measures)).sum()
}

/// What the extension points and their plugins did.
fn write_measures(text: &mut String, standing: &Standing) -> fmt::Result {
    let name = "scheduler_framework_extension_point_duration_seconds";
    writeln!(text, "# TYPE {name} histogram")?;
    for (profile, measures) in &standing.measures {
        for ((point, code), histogram) in &measures.lock().points {
            let (point, code) = (point.label(), code.label());
            let labels = format!("extension_point=\"{point}\",profile=\"{profile}\",status=\"{code}\"");
            histogram.write(text, name, &labels);
        }
    }
    // No label tells profiles apart here: a plugin's calls of all profiles are one series.
    let mut plugins: BTreeMap<_, Histogram> = BTreeMap::new();
    for (_, measures) in &standing.measures {
        for (key, histogram) in &measures.lock().plugins {
            plugins.entry(*key).or_insert_with(|| Histogram::new(Bounds::PLUGIN)).add(histogram);
        }
    }
    let name = "scheduler_plugin_execution_duration_seconds";
    writeln!(text, "# TYPE {name} histogram")?;
    for ((plugin, point, code), histogram) in &plugins {
        let (point, code) = (point.label(), code.label());
        let labels = format!("extension_point=\"{point}\",plugin=\"{plugin}\",status=\"{code}\"");
        histogram.write(text, name, &labels);
    }
    let name = "scheduler_plugin_evaluation_total";
    writeln!(text, "# TYPE {name} counter")?;
    for (profile, measures) in &standing.measures {
        for (point, plugins) in &measures.lock().asked {
            if *point == Point::PostFilter {
                continue;
            }
            for (plugin, times) in plugins.iter().filter(|(_, times)| *times > 0) {
                let point = point.label();
                let labels = format!("extension_point=\"{point}\",plugin=\"{plugin}\",profile=\"{profile}\"");
                writeln!(text, "{name}{{{labels}}} {times}")?;
            }
        }
    }
    Ok(())
}

impl fmt::Display for Metrics {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = self.look.get().map(|look| look()).unwrap_or_default();
        let counts = self.lock();
        let mut text = String::new();
        text.push_str("# TYPE scheduler_schedule_attempts_total counter\n");
        for ((profile, outcome), histogram) in &counts.attempts {
            let labels = format!("profile=\"{profile}\",result=\"{}\"", outcome.label());
            writeln!(text, "scheduler_schedule_attempts_total{{{labels}}} {}", histogram.count())?;
        }
        text.push_str("# TYPE scheduler_scheduling_attempt_duration_seconds histogram\n");
        for ((profile, outcome), histogram) in &counts.attempts {
            let labels = format!("profile=\"{profile}\",result=\"{}\"", outcome.label());
            histogram.write(&mut text, "scheduler_scheduling_attempt_duration_seconds", &labels);
        }
        text.push_str("# TYPE scheduler_scheduling_algorithm_duration_seconds histogram\n");
        counts.algorithm.write(&mut text, "scheduler_scheduling_algorithm_duration_seconds", "");
        text.push_str("# TYPE scheduler_pod_scheduling_sli_duration_seconds histogram\n");
        for (attempts, histogram) in &counts.to_bound {
            let attempts = if *attempts >= 16 { "16+".to_owned() } else { attempts.to_string() };
            let labels = format!("attempts=\"{attempts}\"");
            histogram.write(&mut text, "scheduler_pod_scheduling_sli_duration_seconds", &labels);
        }
        text.push_str("# TYPE scheduler_pod_scheduling_attempts histogram\n");
        counts.tries.write(&mut text, "scheduler_pod_scheduling_attempts", "");
        text.push_str("# TYPE scheduler_preemption_victims histogram\n");
        counts.victims.write(&mut text, "scheduler_preemption_victims", "");
        writeln!(text, "# TYPE scheduler_preemption_attempts_total counter")?;
        writeln!(text, "scheduler_preemption_attempts_total {}", preemption_attempts(&standing))?;
        text.push_str("# TYPE scheduler_permit_wait_duration_seconds histogram\n");
        for (code, histogram) in &counts.permit_waits {
            let labels = format!("result=\"{}\"", code.label());
            histogram.write(&mut text, "scheduler_permit_wait_duration_seconds", &labels);
        }
        write_measures(&mut text, &standing)?;
        text.push_str("# TYPE scheduler_goroutines gauge\n");
        writeln!(text, "scheduler_goroutines{{operation=\"binding\"}} {}", standing.binding)?;
        text.push_str("# TYPE scheduler_queue_incoming_pods_total counter\n");
        for ((queue, event), count) in &standing.incoming {
            writeln!(
                text,
                "scheduler_queue_incoming_pods_total{{event=\"{event}\",queue=\"{queue}\"}} {count}"
            )?;
        }
        let Sizes { active, backoff, unschedulable, gated } = standing.queue;
        text.push_str("# TYPE scheduler_pending_pods gauge\n");
        for (queue, size) in
            [("active", active), ("backoff", backoff), ("unschedulable", unschedulable), ("gated", gated)]
        {
            writeln!(text, "scheduler_pending_pods{{queue=\"{queue}\"}} {size}")?;
        }
        text.push_str("# TYPE scheduler_unschedulable_pods gauge\n");
        for ((profile, plugin), count) in &standing.refused {
            writeln!(
                text,
                "scheduler_unschedulable_pods{{plugin=\"{plugin}\",profile=\"{profile}\"}} {count}"
            )?;
        }
        text.push_str("# TYPE scheduler_cache_size gauge\n");
        let Standing { nodes, pods, assumed, .. } = standing;
        for (kind, size) in [("assumed_pods", assumed), ("nodes", nodes), ("pods", pods)] {
            writeln!(text, "scheduler_cache_size{{type=\"{kind}\"}} {size}")?;
        }
        out.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_counted_once_and_in_its_buckets() {
        let metrics = Metrics::default();
        metrics.attempted("default-scheduler", Outcome::Scheduled, Duration::from_millis(3));
        metrics.permitted(Code::Success, Duration::from_millis(3));
        let measures = [(); 2].map(|()| Arc::new(Measures::default()));
        for measures in &measures {
            let mut book = measures.lock();
            book.took(Point::PreFilter, Code::Never, Duration::from_micros(150));
            book.asked(Point::Filter, [(1, "NodePorts", 3)].into_iter());
            book.asked(Point::PostFilter, [(0, "DefaultPreemption", 2)].into_iter());
            drop(book);
            measures.spent("NodePorts", Point::Filter, Code::Refused, Duration::from_micros(20));
        }
        let profiles = ["default-scheduler", "other"].into_iter().zip(measures).collect::<Vec<_>>();
        metrics.bound(1, Duration::from_millis(15));
        metrics.look_up(move || Standing {
            queue: Sizes { active: 2, ..Sizes::default() },
            nodes: 5,
            binding: 4,
            incoming: [(("backoff", "NodeAdd"), 2)].into(),
            measures: profiles.clone(),
            refused: [(("default-scheduler", "NodePorts"), 3)].into(),
            ..Standing::default()
        });
        let text = metrics.to_string();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.002\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{profile=\"default-scheduler\",result=\"scheduled\",le=\"0.004\"} 1",
            "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"0.02\"} 1",
            "scheduler_permit_wait_duration_seconds_bucket{result=\"Success\",le=\"0.004\"} 1",
            "scheduler_framework_extension_point_duration_seconds_bucket{extension_point=\"PreFilter\",profile=\"other\",status=\"UnschedulableAndUnresolvable\",le=\"0.0001\"} 0",
            "scheduler_framework_extension_point_duration_seconds_bucket{extension_point=\"PreFilter\",profile=\"other\",status=\"UnschedulableAndUnresolvable\",le=\"0.0002\"} 1",
            "scheduler_plugin_execution_duration_seconds_bucket{extension_point=\"Filter\",plugin=\"NodePorts\",status=\"Unschedulable\",le=\"0.000015\"} 0",
            "scheduler_plugin_execution_duration_seconds_bucket{extension_point=\"Filter\",plugin=\"NodePorts\",status=\"Unschedulable\",le=\"0.0000225\"} 2",
            "scheduler_plugin_evaluation_total{extension_point=\"Filter\",plugin=\"NodePorts\",profile=\"other\"} 3",
            "scheduler_preemption_attempts_total 4",
            "scheduler_goroutines{operation=\"binding\"} 4",
            "scheduler_queue_incoming_pods_total{event=\"NodeAdd\",queue=\"backoff\"} 2",
            "scheduler_pending_pods{queue=\"active\"} 2",
            "scheduler_cache_size{type=\"nodes\"} 5",
            "scheduler_unschedulable_pods{plugin=\"NodePorts\",profile=\"default-scheduler\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
