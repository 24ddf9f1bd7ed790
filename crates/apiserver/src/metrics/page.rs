//! The page `/metrics`: what is counted, and what is so at the moment, under upstream's names.

use std::collections::HashSet;
use std::fmt::{Display, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{clean, process};
use crate::authz::Authorizer;
use crate::cache::entry::Entry;
use crate::cache::resource::{Counts as CacheCounts, ResourceCache};
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
        let mut page = Page { text: String::with_capacity(64 << 10), names: 0 };
        self.metrics.print(&mut page);
        self.admission.print(&mut page);
        self.objects(&mut page);
        self.asked_of_the_store(&mut page);
        if let Some(size) = size {
            let lines = [("storage_cluster_id=\"etcd-0\"".to_owned(), size)];
            page.many("apiserver_storage_size_bytes", "gauge", "Size of the store.", lines);
        }
        self.fairness(&mut page);
        self.audited(&mut page);
        self.reloads(&mut page);
        self.deciders(&mut page);
        self.itself(&mut page);
        process::print(&mut page);
        page.head("registered_metrics_total", "counter", "Metrics by how settled they are.");
        let names = page.names;
        page.line("registered_metrics_total", "deprecated_version=\"\",stability_level=\"ALPHA\"", names);
        page.text
    }

    /// What the store was asked.
    fn asked_of_the_store(&self, page: &mut Page) {
        let table = self.registry.table();
        let mut seen = HashSet::new();
        let caches: Vec<(String, Arc<ResourceCache>)> = table
            .all()
            .filter(|resource| resource.definition.is_stored() && seen.insert(resource.prefix.clone()))
            .filter_map(|resource| {
                let labels = format!("group=\"{}\",resource=\"{}\"", resource.group(), resource.plural());
                Some((labels, self.hub.cache(&resource.prefix)?))
            })
            .collect();
        let all = || {
            let others = ("group=\"\",resource=\"\"", self.hub.others());
            let caches = caches.iter().map(|(labels, cache)| (labels.as_str(), &cache.asked));
            caches.chain([others]).flat_map(|(labels, asked)| {
                asked.all().map(move |(name, own)| (format!("operation=\"{name}\",{labels}"), own))
            })
        };
        let name = "etcd_request_duration_seconds";
        page.head(name, "histogram", "How long the store took, by operation and resource.");
        all().for_each(|(labels, own)| own.seconds.print(page, name, &labels));
        let help = "What the store was asked, by operation and resource.";
        page.many("etcd_requests_total", "counter", help, all().map(|(l, own)| (l, own.seconds.count())));
        let failed = all().map(|(labels, own)| (labels, own.failed.load(Ordering::Relaxed)));
        let help = "What the store could not do, by operation and resource.";
        page.many("etcd_request_errors_total", "counter", help, failed.filter(|(_, count)| *count > 0));
    }

    fn objects(&self, page: &mut Page) {
        let table = self.registry.table();
        let mut objects = Vec::new();
        let mut counts: Vec<(String, CacheCounts)> = Vec::new();
        for resource in table.all().filter(|resource| resource.definition.is_stored()) {
            let Some(cache) = self.hub.cache(&resource.prefix) else { continue };
            objects.push((
                format!("resource=\"{}\"", resource.definition.names.group_resource()),
                cache.len() as u64,
            ));
            let labels = format!("group=\"{}\",resource=\"{}\"", resource.group(), resource.plural());
            if !counts.iter().any(|(own, _)| *own == labels) {
                counts.push((labels, cache.counts()));
            }
        }
        let of = |pick: fn(&CacheCounts) -> u64| {
            counts.iter().map(move |(labels, own)| (labels.clone(), pick(own))).collect::<Vec<_>>()
        };
        if self.settings.count_objects {
            page.many("apiserver_storage_objects", "gauge", "Stored objects by resource.", objects);
            let objects = of(|own| own.objects);
            page.many("apiserver_resource_objects", "gauge", "Objects by group and resource.", objects);
        }
        for (name, kind, help, lines) in [
            (
                "apiserver_resource_size_estimate_bytes",
                "gauge",
                "Bytes of the objects, as they are stored.",
                of(|own| own.bytes),
            ),
            (
                "apiserver_watch_cache_events_received_total",
                "counter",
                "Changes that the cache was told of.",
                of(|own| own.received),
            ),
            (
                "apiserver_storage_events_received_total",
                "counter",
                "Changes that the store told of.",
                of(|own| own.received),
            ),
            (
                "apiserver_watch_cache_events_dispatched_total",
                "counter",
                "Changes that were handed to watchers.",
                of(|own| own.dispatched),
            ),
            (
                "apiserver_storage_decode_errors_total",
                "counter",
                "Stored objects that could not be read.",
                of(|own| own.unreadable).into_iter().filter(|(_, count)| *count > 0).collect(),
            ),
            ("apiserver_cache_list_total", "counter", "Lists from the cache.", of(|own| own.lists)),
            (
                "apiserver_cache_list_fetched_objects_total",
                "counter",
                "Objects that lists took from the cache.",
                of(|own| own.listed),
            ),
            (
                "apiserver_watch_cache_resource_version",
                "gauge",
                "The last change that the cache has seen.",
                of(|own| own.revision),
            ),
            ("watch_cache_capacity", "gauge", "Changes that are kept for watchers.", of(|own| own.history)),
        ] {
            page.many(name, kind, help, lines);
        }
        let one = counts.iter().map(|(labels, _)| (labels.clone(), 1));
        page.many("apiserver_watch_cache_initializations_total", "counter", "Caches that were filled.", one);
    }

    /// Who said yes or no, and what becomes of requests for other servers.
    fn deciders(&self, page: &mut Page) {
        let mut decisions = Vec::new();
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
            "Requests that an authorization webhook decided.",
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
        page.one(
            "serviceaccount_valid_tokens_total",
            "counter",
            "Service account tokens that were good.",
            accounts.valid.load(Ordering::Relaxed),
        );
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
            ("current_executing_seats", "gauge", "Seats that are taken now.", 1),
            ("current_inqueue_requests", "gauge", "Requests that wait for a seat.", 2),
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
