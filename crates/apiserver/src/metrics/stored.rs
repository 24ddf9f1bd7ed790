//! The objects of each resource: how many there are, what the cache did with them, what the store was asked.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::page::Page;
use crate::cache::measured::Lists;
use crate::cache::resource::{Counts, ResourceCache};
use crate::server::ApiServer;

/// One resource, whatever versions it has.
struct Stored {
    /// `resource="pods"`, or with the group behind a dot.
    dotted: String,
    labels: String,
    cache: Arc<ResourceCache>,
    counts: Counts,
}

impl ApiServer {
    pub(super) fn stored_objects(&self, page: &mut Page) {
        let table = self.registry.table();
        let mut seen = HashSet::new();
        let all: Vec<Stored> = table
            .all()
            .filter(|resource| resource.definition.is_stored() && seen.insert(resource.prefix.clone()))
            .filter_map(|resource| {
                let cache = self.hub.cache(&resource.prefix)?;
                Some(Stored {
                    dotted: format!("resource=\"{}\"", resource.definition.names.group_resource()),
                    labels: format!("group=\"{}\",resource=\"{}\"", resource.group(), resource.plural()),
                    counts: cache.counts(),
                    cache,
                })
            })
            .collect();
        if self.settings.count_objects {
            let objects = all.iter().map(|own| (own.dotted.clone(), own.counts.objects));
            page.many("apiserver_storage_objects", "gauge", "Stored objects by resource.", objects);
            let objects = all.iter().map(|own| (own.labels.clone(), own.counts.objects));
            page.many("apiserver_resource_objects", "gauge", "Objects by group and resource.", objects);
        }
        cached(&all, page);
        listed(&all, page);
        self.asked(&all, page);
    }

    /// What the store was asked.
    fn asked(&self, all: &[Stored], page: &mut Page) {
        let all = || {
            let others = ("group=\"\",resource=\"\"", self.hub.others());
            let caches = all.iter().map(|own| (own.labels.as_str(), &own.cache.asked));
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
}

/// What the caches hold and did.
fn cached(all: &[Stored], page: &mut Page) {
    let metrics: [(&str, &str, &str, fn(&Counts) -> u64); 9] = [
        (
            "apiserver_resource_size_estimate_bytes",
            "gauge",
            "Bytes of the objects, as they are stored.",
            |own| own.bytes,
        ),
        (
            "apiserver_watch_cache_events_received_total",
            "counter",
            "Changes that the cache was told of.",
            |own| own.received,
        ),
        ("apiserver_storage_events_received_total", "counter", "Changes that the store told of.", |own| {
            own.received
        }),
        (
            "apiserver_watch_cache_events_dispatched_total",
            "counter",
            "Changes that were handed to watchers.",
            |own| own.dispatched,
        ),
        (
            "apiserver_watch_cache_initializations_total",
            "counter",
            "How often the cache was filled.",
            |own| own.fills,
        ),
        (
            "apiserver_watch_cache_resource_version",
            "gauge",
            "The last change that the cache has seen.",
            |own| own.revision,
        ),
        ("watch_cache_capacity", "gauge", "Changes that are kept for watchers.", |own| own.history),
        (
            "apiserver_storage_decode_errors_total",
            "counter",
            "Stored objects that could not be read.",
            |own| own.unreadable,
        ),
        (
            "apiserver_terminated_watchers_total",
            "counter",
            "Watches that were ended because they did not keep up.",
            |own| own.cut,
        ),
    ];
    for (name, kind, help, pick) in metrics {
        // What goes wrong is shown where it does.
        let rare = name.ends_with("errors_total") || name.contains("terminated");
        let lines = all.iter().map(|own| (own.labels.clone(), pick(&own.counts)));
        page.many(name, kind, help, lines.filter(|(_, count)| !rare || *count > 0));
    }
}

/// LIST requests.
fn listed(all: &[Stored], page: &mut Page) {
    let metrics: [(&str, &str, fn(&Lists) -> &AtomicU64); 7] = [
        ("apiserver_cache_list_total", "Lists from the cache.", |own| &own.cache.lists),
        ("apiserver_cache_list_fetched_objects_total", "Objects that those lists looked at.", |own| {
            &own.cache.fetched
        }),
        ("apiserver_cache_list_returned_objects_total", "Objects that those lists showed.", |own| {
            &own.cache.returned
        }),
        ("apiserver_storage_list_total", "Lists from the store.", |own| &own.store.lists),
        ("apiserver_storage_list_fetched_objects_total", "Objects that those lists read.", |own| {
            &own.store.fetched
        }),
        ("apiserver_storage_list_evaluated_objects_total", "Objects that those lists looked at.", |own| {
            &own.store.evaluated
        }),
        ("apiserver_storage_list_returned_objects_total", "Objects that those lists showed.", |own| {
            &own.store.returned
        }),
    ];
    for (name, help, pick) in metrics {
        let lines = all.iter().map(|own| {
            // Lists go through no index but that of the namespaces, which has no name.
            let indexed = name.starts_with("apiserver_cache") && !name.contains("returned");
            let index = if indexed { ",index=\"\"" } else { "" };
            (format!("{}{index}", own.labels), pick(&own.cache.lists).load(Ordering::Relaxed))
        });
        page.many(name, "counter", help, lines.filter(|(_, count)| *count > 0));
    }
    let outcomes = all.iter().flat_map(|own| {
        ["false", "true"].iter().zip(&own.cache.lists.consistent).map(|(success, count)| {
            let labels = format!("fallback=\"false\",{},success=\"{success}\"", own.labels);
            (labels, count.load(Ordering::Relaxed))
        })
    });
    page.many(
        "apiserver_watch_cache_consistent_read_total",
        "counter",
        "Lists that waited until the cache was as new as the store.",
        outcomes.filter(|(_, count)| *count > 0),
    );
    let name = "apiserver_watch_cache_read_wait_seconds";
    page.head(name, "histogram", "How long they waited.");
    for own in all {
        if let Some(waits) = own.cache.lists.waits() {
            waits.print(page, name, &own.labels);
        }
    }
}
