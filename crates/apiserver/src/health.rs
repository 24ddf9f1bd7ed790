//! `/healthz`, `/livez` and `/readyz`: a list of checks under upstream's names, each owned by the part that it names.
//!
//! A check passes while its owner does what the name says, and not because the server has started once: a task that panicked,
//! a watch of the store that broke, or a default object that was never written fails its own lines.

use std::sync::atomic::{AtomicU32, Ordering};

use http::{Response, StatusCode};

use crate::body::Body;
use crate::endpoints::{no_page, text};
use crate::request_info::Query;
use crate::server::ApiServer;

/// What the server writes once, at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Written {
    Policy,
    PriorityClasses,
    FlowControl,
    ServiceRange,
    ExtensionAuthentication,
    ApiServices,
    /// Not written but read: the CRDs that were stored are served.
    CustomResources,
}

/// What was written so far.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU32);

impl Progress {
    /// Notes a thing as written.
    pub fn note(&self, what: Written) {
        self.0.fetch_or(1 << what as u32, Ordering::AcqRel);
    }

    fn has(&self, what: Written) -> bool {
        self.0.load(Ordering::Acquire) & (1 << what as u32) != 0
    }
}

/// Who answers for a check.
enum Owner {
    /// The watch cache, loaded and following the store: what informers are upstream.
    Caches,
    /// A task of this name.
    Task(&'static str),
    Written(Written),
    /// Nothing of its own runs here: it is part of each request, and there once the server has started.
    Start,
}

use Owner::{Caches, Start, Task};

/// In upstream's order.
const HOOKS: &[(&str, Owner)] = &[
    ("poststarthook/start-apiserver-admission-initializer", Caches),
    ("poststarthook/generic-apiserver-start-informers", Caches),
    ("poststarthook/priority-and-fairness-config-consumer", Caches),
    ("poststarthook/priority-and-fairness-filter", Start),
    ("poststarthook/start-apiextensions-informers", Caches),
    ("poststarthook/start-apiextensions-controllers", Task("crds")),
    ("poststarthook/crd-informer-synced", Owner::Written(Written::CustomResources)),
    ("poststarthook/start-system-namespaces-controller", Task("system-namespaces")),
    (
        "poststarthook/start-cluster-authentication-info-controller",
        Owner::Written(Written::ExtensionAuthentication),
    ),
    ("poststarthook/start-kube-apiserver-identity-lease-controller", Task("identity")),
    ("poststarthook/start-kube-apiserver-identity-lease-garbage-collector", Task("identity")),
    ("poststarthook/start-legacy-token-tracking-controller", Task("legacy-tokens")),
    ("poststarthook/start-service-ip-repair-controllers", Task("service-repair")),
    ("poststarthook/rbac/bootstrap-roles", Owner::Written(Written::Policy)),
    ("poststarthook/scheduling/bootstrap-system-priority-classes", Owner::Written(Written::PriorityClasses)),
    ("poststarthook/priority-and-fairness-config-producer", Owner::Written(Written::FlowControl)),
    ("poststarthook/bootstrap-controller", Task("service-repair")),
    ("poststarthook/start-kubernetes-service-cidr-controller", Owner::Written(Written::ServiceRange)),
    ("poststarthook/aggregator-reload-proxy-client-cert", Start),
    ("poststarthook/start-kube-aggregator-informers", Caches),
    ("poststarthook/apiservice-status-local-available-controller", Task("own-conditions")),
    ("poststarthook/apiservice-status-remote-available-controller", Task("own-conditions")),
    ("poststarthook/apiservice-registration-controller", Owner::Written(Written::ApiServices)),
    ("poststarthook/apiservice-discovery-controller", Caches),
    ("poststarthook/kube-apiserver-autoregistration", Owner::Written(Written::ApiServices)),
    ("autoregister-completion", Owner::Written(Written::ApiServices)),
    ("poststarthook/apiservice-openapi-controller", Caches),
    ("poststarthook/apiservice-openapiv3-controller", Caches),
];

/// What the store answered.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stored {
    healthy: bool,
    ready: bool,
}

impl ApiServer {
    /// What is looked at for one of the three questions, in upstream's order, and whether it is well.
    pub(crate) fn checks(&self, kind: &str, store: Stored) -> Vec<(&'static str, bool)> {
        // Who asks whether it lives waits for the start; what breaks afterwards counts at once.
        let early = kind == "livez" && !self.started() && self.began.elapsed() < self.settings.livez_grace;
        // That it answers at all is what the first two tell.
        let mut checks = vec![("ping", true), ("log", true), ("etcd", store.healthy)];
        if kind == "readyz" {
            checks.extend([("etcd-readiness", store.ready), ("informer-sync", self.hub.is_following())]);
        }
        let fair = self.in_flight.is_none();
        let hooks = HOOKS.iter().filter(|(name, _)| fair || !name.contains("priority-and-fairness"));
        checks.extend(hooks.map(|(name, owner)| (*name, early || self.is_well(owner))));
        if kind == "readyz" {
            checks.push(("shutdown", !self.is_leaving()));
        }
        checks
    }

    fn is_well(&self, owner: &Owner) -> bool {
        match owner {
            Caches => self.hub.is_following(),
            // Tasks end when the server is told to stop; `shutdown` tells of that.
            Task(name) => self.tasks.works(name) || self.stop.is_requested(),
            Owner::Written(what) => self.written.has(*what),
            Start => self.started(),
        }
    }

    /// Whether the store answers in time. What was not asked about is not looked at.
    async fn stored(&self, kind: &str, only: &str) -> Stored {
        let answers = |wanted: bool, at_most| async move {
            let asking = self.hub.store().get(b"/registry/health", 0);
            !wanted || tokio::time::timeout(at_most, asking).await.is_ok_and(|answer| answer.is_ok())
        };
        let (healthy, ready) = tokio::join!(
            answers(matches!(only, "" | "etcd"), self.settings.store_health),
            answers(kind == "readyz" && matches!(only, "" | "etcd-readiness"), self.settings.store_ready),
        );
        Stored { healthy, ready }
    }

    /// Answers one of the three questions, or one check of it.
    pub(crate) async fn health(&self, kind: &str, only: &str, query: &Query) -> Response<Body> {
        let kind = kind.trim_start_matches('/');
        let checks = self.checks(kind, self.stored(kind, only).await);
        if !only.is_empty() {
            let Some((_, good)) = checks.iter().find(|(name, _)| *name == only) else {
                return no_page();
            };
            self.metrics.health.checked(only, kind, *good);
            let code = if *good { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            return text(
                code,
                if *good { "ok".to_owned() } else { "internal server error: failed\n".to_owned() },
            );
        }
        let excluded: Vec<&str> = query.all("exclude").collect();
        let mut good = true;
        let mut lines = String::new();
        for (name, passed) in &checks {
            if !excluded.contains(name) {
                self.metrics.health.checked(name, kind, *passed);
            }
            if excluded.contains(name) {
                lines.push_str(&format!("[+]{name} excluded: ok\n"));
            } else if *passed {
                lines.push_str(&format!("[+]{name} ok\n"));
            } else {
                good = false;
                lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
            }
        }
        let unknown: Vec<String> = excluded
            .iter()
            .filter(|name| !checks.iter().any(|(own, _)| own == *name))
            .map(|name| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            lines.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                unknown.join(", ")
            ));
        }
        if !good {
            lines.push_str(&format!("{kind} check failed\n"));
            return text(StatusCode::INTERNAL_SERVER_ERROR, lines);
        }
        if query.get("verbose").is_some() {
            lines.push_str(&format!("{kind} check passed\n"));
            return text(StatusCode::OK, lines);
        }
        text(StatusCode::OK, "ok".to_owned())
    }
}
