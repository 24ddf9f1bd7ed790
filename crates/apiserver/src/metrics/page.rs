//! The page `/metrics`: what is counted, and what is so at the moment, under upstream's names.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::clean;
use crate::reload::Reloads;
use crate::server::ApiServer;

/// The text form that Prometheus reads, as it is written.
#[derive(Default)]
pub struct Page {
    /// So far.
    pub text: String,
    /// How many names are on it.
    pub names: usize,
}

impl Page {
    /// Begins a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.names += 1;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes everything
    }

    /// One value; `labels` are `a="b",c="d"` or nothing.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    /// A metric with one value.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }

    /// A metric with a value for each set of labels.
    pub fn many<V: Display>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        lines: impl IntoIterator<Item = (String, V)>,
    ) {
        self.head(name, kind, help);
        for (labels, value) in lines {
            self.line(name, &labels, value);
        }
    }
}

impl ApiServer {
    /// The whole page, as far as it is wanted.
    pub(crate) async fn metrics_text(&self) -> String {
        let size = self.store_size().await;
        self.settings.metrics.apply(self.all_metrics(size))
    }

    fn all_metrics(&self, size: Option<u64>) -> String {
        let mut page = Page { text: self.metrics.text(), names: 3 };
        self.objects(&mut page);
        if let Some(size) = size {
            let lines = [("storage_cluster_id=\"etcd-0\"".to_owned(), size)];
            page.many("apiserver_storage_size_bytes", "gauge", "Size of the store.", lines);
        }
        self.fairness(&mut page);
        self.audited(&mut page);
        self.reloads(&mut page);
        page.text
    }

    fn objects(&self, page: &mut Page) {
        let table = self.registry.table();
        let mut objects = Vec::new();
        let mut watchers = Vec::new();
        for resource in table.all().filter(|resource| resource.definition.is_stored()) {
            let Some(cache) = self.hub.cache(&resource.prefix) else { continue };
            objects.push((
                format!("resource=\"{}\"", resource.definition.names.group_resource()),
                cache.len() as u64,
            ));
            let count = cache.watchers() as u64;
            if count > 0 {
                watchers.push((
                    format!(
                        "group=\"{}\",kind=\"{}\",version=\"{}\"",
                        resource.group(),
                        resource.kind(),
                        resource.version()
                    ),
                    count,
                ));
            }
        }
        if self.settings.count_objects {
            page.many("apiserver_storage_objects", "gauge", "Stored objects by resource.", objects);
        }
        page.many("apiserver_longrunning_requests", "gauge", "Watches that run now.", watchers);
    }

    fn fairness(&self, page: &mut Page) {
        let levels = self.flow.levels();
        let pick = |index: usize| -> Vec<(String, u64)> {
            let one = |(name, values): (&String, &[u64; 4])| {
                (format!("priority_level=\"{}\"", clean(name)), values[index])
            };
            levels.iter().map(one).collect()
        };
        for (name, kind, help, index) in [
            ("nominal_limit_seats", "gauge", "Seats of each priority level.", 0),
            ("current_executing_requests", "gauge", "Requests that run now.", 1),
            ("current_inqueue_requests", "gauge", "Requests that wait for a seat.", 2),
            ("rejected_requests_total", "counter", "Requests refused so far.", 3),
        ] {
            page.many(&format!("apiserver_flowcontrol_{name}"), kind, help, pick(index));
        }
    }

    fn audited(&self, page: &mut Page) {
        let Some(audit) = &self.audit else { return };
        let counted = &audit.counted;
        let value = |own: &std::sync::atomic::AtomicU64| own.load(Ordering::Relaxed);
        page.one(
            "apiserver_audit_event_total",
            "counter",
            "Audit events that were made and handed to the outputs.",
            value(&counted.events),
        );
        page.one(
            "apiserver_audit_requests_rejected_total",
            "counter",
            "Requests refused because their audit event could not be kept.",
            value(&counted.rejected),
        );
        let levels = ["None", "Metadata", "Request", "RequestResponse"].iter().zip(&counted.levels);
        page.many(
            "apiserver_audit_level_total",
            "counter",
            "Requests by the level of their audit events.",
            levels.map(|(level, count)| (format!("level=\"{level}\""), value(count))),
        );
        let lost = &counted.lost;
        let plugins = [
            ("buffered", &lost.buffered),
            ("log", &lost.log),
            ("truncate", &lost.truncate),
            ("webhook", &lost.webhook),
        ];
        page.many(
            "apiserver_audit_error_total",
            "counter",
            "Audit events that were lost, by the part that lost them.",
            plugins.map(|(plugin, count)| (format!("plugin=\"{plugin}\""), value(count))),
        );
    }

    fn reloads(&self, page: &mut Page) {
        let mut both = |what: &str, reloads: &Reloads| {
            let (good, bad) = (reloads.good.load(Ordering::Relaxed), reloads.bad.load(Ordering::Relaxed));
            let name = format!("apiserver_{what}_config_controller_automatic_reloads_total");
            let help = "How often the file was read again, by outcome.";
            let outcomes = [("failure", bad), ("success", good)].into_iter().filter(|(_, count)| *count > 0);
            page.many(
                &name,
                "counter",
                help,
                outcomes.map(|(status, count)| (format!("status=\"{status}\""), count)),
            );
            let last = reloads.last.load(Ordering::Relaxed);
            if last > 0 {
                let name =
                    format!("apiserver_{what}_config_controller_automatic_reload_last_timestamp_seconds");
                let labels = "status=\"success\"".to_owned();
                page.many(&name, "gauge", "When the file was taken over the last time.", [(labels, last)]);
            }
        };
        both("authentication", &self.metrics.authentication_reloads);
        both("authorization", &self.metrics.authorization_reloads);
        both("encryption", &self.metrics.encryption_reloads);
    }
}
