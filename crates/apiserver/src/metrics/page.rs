//! The page `/metrics`: what is counted, and what is so at the moment, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{clean, process};
use crate::authz::Authorizer;
use crate::cache::entry::Entry;
use crate::reload::Reloads;
use crate::server::ApiServer;

/// The text form that Prometheus reads, as it is written.
#[derive(Default)]
pub struct Page {
    /// So far.
    pub text: String,
}

/// All names with type, how settled upstream has them, and labels; sorted.
const NAMES: &str = include_str!("names.txt");

impl Page {
    /// Begins a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes everything
    }

    /// One value; `labels` are `a="b",c="d"` or nothing.
    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = match labels {
            "" => writeln!(self.text, "{name} {value}"),
            _ => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
    }

    /// The lines of a histogram: how many were at most as large as each bound, and how many there are.
    pub fn buckets(&mut self, name: &str, labels: &str, bounds: &[f64], buckets: &[u64], sum: f64) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        for (bucket, bound) in buckets.iter().zip(bounds) {
            below += bucket;
            self.line(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"{bound}\""), below);
        }
        let count: u64 = buckets.iter().sum();
        self.line(&format!("{name}_bucket"), &format!("{labels}{comma}le=\"+Inf\""), count);
        self.line(&format!("{name}_sum"), labels, sum);
        self.line(&format!("{name}_count"), labels, count);
    }

    /// How many metrics there are, by how settled their names are.
    fn registered(&mut self) {
        let name = "registered_metrics_total";
        self.head(name, "counter", "Metrics by how settled they are.");
        let mut levels: BTreeMap<&str, u64> = BTreeMap::new();
        for line in NAMES.lines() {
            let mut words = line.split(' ');
            let (own, level) = (words.next().unwrap_or_default(), words.nth(1).unwrap_or_default());
            if self.text.contains(&format!("\n# TYPE {own} ")) {
                *levels.entry(level).or_default() += 1;
            }
        }
        for (level, count) in levels {
            self.line(name, &format!("deprecated_version=\"\",stability_level=\"{level}\""), count);
        }
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
        let (size, ports) = (self.store_size().await, self.taken_ports().await);
        self.settings.metrics.apply(self.all_metrics(size, ports))
    }

    fn all_metrics(&self, size: Option<u64>, ports: Option<(u64, u64)>) -> String {
        let mut page = Page { text: String::with_capacity(64 << 10) };
        self.metrics.print(&mut page);
        self.admission.print(&mut page);
        self.stored_objects(&mut page);
        if let Some(size) = size {
            let lines = [("storage_cluster_id=\"etcd-0\"".to_owned(), size)];
            page.many("apiserver_storage_size_bytes", "gauge", "Size of the store.", lines);
        }
        if let Some((taken, all)) = ports {
            let name = "kube_apiserver_nodeport_allocator_allocated_ports";
            page.one(name, "gauge", "Node ports in use.", taken);
            let name = "kube_apiserver_nodeport_allocator_available_ports";
            page.one(name, "gauge", "Node ports that are free.", all.saturating_sub(taken));
        }
        self.metrics.chain.flows.print(&mut page, &self.flow);
        self.audited(&mut page);
        self.reloads(&mut page);
        self.deciders(&mut page);
        super::calls::CALLS.print(&mut page);
        self.itself(&mut page);
        process::print(&mut page);
        let disabled = self.settings.metrics.disabled.len();
        page.one(
            "disabled_metrics_total",
            "counter",
            "Metrics that are not shown because of a flag.",
            disabled,
        );
        page.registered();
        page.text
    }

    /// Who said yes or no, and what becomes of requests for other servers.
    fn deciders(&self, page: &mut Page) {
        let mut decisions: Vec<(String, u64)> = self.metrics.chain.decisions().collect();
        for authorizer in self.authorizers().iter() {
            if let Authorizer::Webhook(webhook) = authorizer {
                let name = clean(webhook.name());
                for (decision, count) in ["allowed", "denied"].iter().zip(webhook.decisions()) {
                    let labels = format!("decision=\"{decision}\",name=\"{name}\",type=\"Webhook\"");
                    decisions.push((labels, count));
                }
            }
        }
        page.many(
            "apiserver_authorization_decisions_total",
            "counter",
            "What each authorizer decided.",
            decisions,
        );
        let Ok(services) = self.builtin("apiregistration.k8s.io", "apiservices") else { return };
        let Some(cache) = self.hub.cache(&services.prefix) else { return };
        let unavailable = |entry: &Arc<Entry>| {
            let object = entry.parse();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let good = conditions.iter().any(|one| one["type"] == "Available" && one["status"] == "True");
            (format!("name=\"{}\"", clean(entry.name())), u64::from(!good))
        };
        let entries = cache.snapshot(&services.prefix, 0).entries;
        page.many(
            "aggregator_unavailable_apiservice",
            "gauge",
            "APIServices that cannot be used now.",
            entries.iter().map(unavailable),
        );
    }

    /// What the server is.
    fn itself(&self, page: &mut Page) {
        let version = crate::endpoints::version();
        let text = |field: &str| version[field].as_str().unwrap_or_default().to_owned();
        let labels = [
            ("build_date", "buildDate"),
            ("compiler", "compiler"),
            ("git_commit", "gitCommit"),
            ("git_tree_state", "gitTreeState"),
            ("git_version", "gitVersion"),
            ("go_version", "goVersion"),
            ("major", "major"),
            ("minor", "minor"),
            ("platform", "platform"),
        ]
        .map(|(label, field)| format!("{label}=\"{}\"", clean(&text(field))));
        let help = "Of what the program was built.";
        page.many("kubernetes_build_info", "gauge", help, [(labels.join(","), 1)]);
        let labels = format!(
            "binary=\"{0}.{1}\",component=\"kube\",emulation=\"{0}.{2}\",min_compat=\"{0}.{3}\"",
            text("major"),
            text("minor"),
            text("emulationMinor"),
            text("minCompatibilityMinor")
        );
        page.many("version_info", "gauge", "The versions that it speaks.", [(labels, 1)]);
        let accounts = &self.authenticator.service_accounts;
        let name = "apiserver_client_certificate_expiration_seconds";
        page.head(name, "histogram", "How long client certificates were still good when they were shown.");
        self.authenticator.certificate_ends.print(page, name, "");
        for (name, help, count) in [
            ("serviceaccount_valid_tokens_total", "Service account tokens that were good.", &accounts.valid),
            (
                "serviceaccount_stale_tokens_total",
                "Those that should have been renewed before.",
                &accounts.stale,
            ),
            ("serviceaccount_legacy_tokens_total", "Those that live in a Secret.", &accounts.legacy),
            (
                "serviceaccount_invalid_legacy_auto_token_uses_total",
                "Tokens of Secrets that were marked as invalid because nobody used them.",
                &accounts.invalid_legacy,
            ),
        ] {
            page.one(name, "counter", help, count.load(Ordering::Relaxed));
        }
        if let Some(encryption) = &self.encryption {
            encryption.print(page);
        }
        if let Ok(addresses) = self.builtin("networking.k8s.io", "ipaddresses")
            && let Some(cache) = self.hub.cache(&addresses.prefix)
        {
            let entries = cache.snapshot(&addresses.prefix, 0).entries;
            let taken = |cidr: &ipnet::IpNet| {
                let inside =
                    |entry: &&Arc<Entry>| entry.name().parse().is_ok_and(|ip: IpAddr| cidr.contains(&ip));
                entries.iter().filter(inside).count() as u64
            };
            let label = |cidr: &ipnet::IpNet| format!("cidr=\"{cidr}\"");
            page.many(
                "kube_apiserver_clusterip_allocator_allocated_ips",
                "gauge",
                "Cluster IPs in use.",
                self.service_cidrs.iter().map(|cidr| (label(cidr), taken(cidr))),
            );
            let free = |cidr: &ipnet::IpNet| {
                let bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len()).min(62);
                // The first and, of the fourth version, the last one are nobody's.
                let reserved = if cidr.addr().is_ipv4() { 2 } else { 1 };
                (1u64 << bits).saturating_sub(reserved + taken(cidr))
            };
            page.many(
                "kube_apiserver_clusterip_allocator_available_ips",
                "gauge",
                "Cluster IPs that are free.",
                self.service_cidrs.iter().map(|cidr| (label(cidr), free(cidr))),
            );
        }
    }

    fn audited(&self, page: &mut Page) {
        let none = crate::audit::Counted::default();
        let counted = self.audit.as_ref().map_or(&none, |audit| &audit.counted);
        let value = |own: &AtomicU64| own.load(Ordering::Relaxed);
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
        let own = crate::identity::hash();
        let labels = |status: &str| format!("status=\"{status}\",apiserver_id_hash=\"{own}\"");
        let mut both = |what: &str, reloads: &Reloads| {
            let value = |own: &AtomicU64| own.load(Ordering::Relaxed);
            let name = format!("apiserver_{what}_config_controller_automatic_reloads_total");
            let outcomes = [("failure", value(&reloads.bad)), ("success", value(&reloads.good))];
            let help = "How often the file was read again, by outcome.";
            let lines = outcomes.into_iter().filter(|(_, count)| *count > 0);
            page.many(&name, "counter", help, lines.map(|(status, count)| (labels(status), count)));
            let name = format!("apiserver_{what}_config_controller_automatic_reload_last_timestamp_seconds");
            let times = [("failure", &reloads.last_bad), ("success", &reloads.last)];
            let times = times.map(|(status, time)| (status, time.load(Ordering::Relaxed)));
            let lines = times.into_iter().filter(|(_, time)| *time > 0);
            let help = "When the file was read again the last time, by outcome.";
            page.many(&name, "gauge", help, lines.map(|(status, time)| (labels(status), time)));
        };
        both("authentication", &self.metrics.authentication_reloads);
        both("authorization", &self.metrics.authorization_reloads);
        both("encryption", &self.metrics.encryption_reloads);
    }
}
