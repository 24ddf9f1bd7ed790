//! Requests: how many, how long, how large, by what they ask for.
//!
//! A request's series is looked up when it comes, by what it borrows, and kept until it is answered. What nothing is
//! served for has none: strangers may ask for any path, and make no series by it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use super::family::{Family, Gauges, Histograms};
use super::histogram::{ANSWER_BYTES, BODY_BYTES, Histogram, REQUEST_SECONDS, SLI_SECONDS};
use super::page::Page;
use crate::request_info::{Query, RequestInfo};

/// Paths outside of resources that are counted: what they begin with, upstream's name of them and of what answers.
const PLACES: [(&str, &str, &str); 8] = [
    ("/api", "api", "apiserver"),
    ("/apis", "apis", "apiserver"),
    ("/healthz", "/healthz", ""),
    ("/livez", "/livez", ""),
    ("/readyz", "/readyz", ""),
    ("/version", "version", "apiserver"),
    ("/openapi/v2", "openapi/v2", ""),
    ("/openapi/v3", "openapi/v3", ""),
];

/// What tells requests apart: the values of upstream's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort<'a> {
    component: &'static str,
    dry_run: &'static str,
    group: &'a str,
    resource: &'a str,
    scope: &'static str,
    subresource: &'a str,
    verb: &'static str,
    version: &'a str,
}

impl<'a> Sort<'a> {
    /// Of a request; `applies` if its patch is one of server-side apply. None is counted that asks for nothing known.
    pub fn of(info: &'a RequestInfo, query: &Query, applies: bool) -> Option<Self> {
        let mut sort = Self {
            component: "apiserver",
            dry_run: if query.get("dryRun") == Some("All") { "All" } else { "" },
            group: &info.group,
            resource: &info.resource,
            scope: scope(info),
            subresource: &info.subresource,
            verb: verb(info, applies),
            version: &info.version,
        };
        if !info.is_resource {
            let path = info.path.trim_end_matches('/');
            let below = |own: &str| path.strip_prefix(own).is_some_and(|rest| rest.starts_with('/'));
            let (_, name, component) = PLACES.iter().find(|(own, _, _)| path == *own || below(own))?;
            (sort.group, sort.version) = ("", "");
            (sort.subresource, sort.component) = (name, component);
        }
        Some(sort)
    }

    fn values(self) -> [&'a str; 8] {
        [
            self.component,
            self.dry_run,
            self.group,
            self.resource,
            self.scope,
            self.subresource,
            self.verb,
            self.version,
        ]
    }
}

/// Whether one object is meant, a namespace, or all.
pub fn scope(info: &RequestInfo) -> &'static str {
    match () {
        () if !info.is_resource => "",
        () if !info.name.is_empty() || info.verb == "create" => "resource",
        () if !info.namespace.is_empty() => "namespace",
        () => "cluster",
    }
}

/// Upstream counts by HTTP's words, but for those that have none.
fn verb(info: &RequestInfo, applies: bool) -> &'static str {
    if info.is_resource && matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy") {
        return "CONNECT";
    }
    match info.verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" | "post" => "POST",
        "update" | "put" => "PUT",
        "patch" if applies => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}

/// How often, by status code. There are few, so they are looked for one after the other.
#[derive(Default)]
struct Codes(RwLock<Vec<(u16, AtomicU64)>>);

impl Codes {
    fn count(&self, code: u16) {
        let find = |all: &[(u16, AtomicU64)]| {
            let found = all.iter().find(|(own, _)| *own == code);
            found.map(|(_, count)| count.fetch_add(1, Ordering::Relaxed)).is_some()
        };
        if find(&self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner())) {
            return;
        }
        let mut all = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !find(&all) {
            all.push((code, AtomicU64::new(1)));
            all.sort_by_key(|(code, _)| *code);
        }
    }

    fn print(&self, page: &mut Page, name: &str, labels: &str) {
        for (code, count) in &*self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner()) {
            page.line(name, &format!("code=\"{code}\",{labels}"), count.load(Ordering::Relaxed));
        }
    }
}

/// Requests of one sort.
pub struct Served {
    codes: Codes,
    durations: Histogram,
    common: Arc<Common>,
}

/// What is not told apart by whether it was a dry run.
struct Common {
    resource: Box<str>,
    /// Without what was spent waiting for a seat.
    own_durations: Histogram,
    /// Of what is read.
    answers: Histogram,
    terminated: Codes,
    aborted: AtomicU64,
    running: AtomicI64,
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
    /// Bytes of the answer, if it is no stream.
    pub answered: Option<u64>,
    /// It may not do what it asked for, and came no further.
    pub refused: bool,
    /// It took too long.
    pub terminated: bool,
}

/// See the module.
pub struct Requests {
    served: Family<Served, 8>,
    common: Arc<Family<Common, 7>>,
    bodies: Histograms<3>,
    deprecated: Gauges<5>,
    reading: AtomicI64,
    writing: AtomicI64,
}

impl Default for Requests {
    fn default() -> Self {
        let labels = ["component", "group", "resource", "scope", "subresource", "verb", "version"];
        let common = Arc::new(Family::new("", "", labels, |[_, _, resource, ..]: [&str; 7]| Common {
            resource: resource.into(),
            own_durations: Histogram::new(SLI_SECONDS),
            answers: Histogram::new(ANSWER_BYTES),
            terminated: Codes::default(),
            aborted: AtomicU64::new(0),
            running: AtomicI64::new(0),
        }));
        let labels = ["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"];
        let below = common.clone();
        let served =
            Family::new("", "", labels, move |[component, _, group, resource, scope, sub, verb, version]| {
                let common = below.of([component, group, resource, scope, sub, verb, version]);
                Served { codes: Codes::default(), durations: Histogram::new(REQUEST_SECONDS), common }
            });
        Self {
            served,
            common,
            bodies: Histograms::histograms(
                "apiserver_request_body_size_bytes",
                "Bytes of bodies that were sent.",
                ["group", "resource", "verb"],
                BODY_BYTES,
            ),
            deprecated: Gauges::gauges(
                "apiserver_requested_deprecated_apis",
                "Deprecated APIs that somebody asked for.",
                ["group", "removed_release", "resource", "subresource", "version"],
            ),
            reading: AtomicI64::new(0),
            writing: AtomicI64::new(0),
        }
    }
}

/// A request in flight. Dropped before it is finished, its client went away.
pub struct InFlight<'a> {
    gauge: &'a AtomicI64,
    served: Option<Arc<Served>>,
    long: bool,
    finished: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.gauge.fetch_sub(1, Ordering::Relaxed);
        if let Some(served) = self.served.as_ref().filter(|_| !self.finished) {
            served.common.aborted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl InFlight<'_> {
    /// What is asked for.
    pub fn resource(&self) -> &str {
        self.served.as_ref().map_or("", |served| &served.common.resource)
    }

    /// Where it is counted, if it is.
    pub fn served(&self) -> Option<&Arc<Served>> {
        self.served.as_ref()
    }

    /// Counts it.
    pub fn finish(mut self, done: &Finished) {
        self.finished = true;
        let Some(served) = self.served.as_ref().filter(|_| !done.refused) else { return };
        served.codes.count(done.code);
        let common = &served.common;
        if done.terminated {
            common.terminated.count(done.code);
        }
        if let Some(bytes) = done.answered {
            common.answers.observe(bytes as f64);
        }
        if !self.long {
            served.durations.time(done.took);
            common.own_durations.time(done.took.saturating_sub(done.waited));
        }
    }
}

/// A watch or a stream, for as long as it lasts.
pub struct LongRunning {
    served: Arc<Served>,
    began: Instant,
}

impl LongRunning {
    /// From now on.
    pub fn new(served: &Arc<Served>) -> Self {
        served.common.running.fetch_add(1, Ordering::Relaxed);
        Self { served: served.clone(), began: Instant::now() }
    }
}

impl Drop for LongRunning {
    fn drop(&mut self) {
        self.served.common.running.fetch_sub(1, Ordering::Relaxed);
        self.served.durations.time(self.began.elapsed());
    }
}

impl Requests {
    /// Counts a request in flight. `known` says whether something is served for what it asks.
    pub fn enter(
        &self,
        info: &RequestInfo,
        query: &Query,
        applies: bool,
        known: impl FnOnce() -> bool,
    ) -> InFlight<'_> {
        let gauge = if info.is_read_only() { &self.reading } else { &self.writing };
        gauge.fetch_add(1, Ordering::Relaxed);
        let served = Sort::of(info, query, applies).and_then(|sort| {
            let found = self.served.find(sort.values());
            found.or_else(|| (!info.is_resource || known()).then(|| self.served.of(sort.values())))
        });
        InFlight { gauge, served, long: info.is_resource && info.is_long_running(query), finished: false }
    }

    /// Counts a body that was sent.
    pub fn body(&self, info: &RequestInfo, bytes: u64) {
        let verb = match info.verb {
            "deletecollection" => "delete",
            verb @ ("create" | "update" | "patch" | "delete") => verb,
            _ => return,
        };
        self.bodies.of([&info.group, &info.resource, verb]).observe(bytes as f64);
    }

    /// Somebody asked for what will go.
    pub fn deprecated(&self, info: &RequestInfo) {
        let (group, version) = (&info.group, &info.version);
        let gauge = self.deprecated.of([group, "", &info.resource, &info.subresource, version]);
        gauge.store(1, Ordering::Relaxed);
    }

    /// How many requests are being answered.
    pub fn in_flight(&self) -> i64 {
        self.reading.load(Ordering::Relaxed) + self.writing.load(Ordering::Relaxed)
    }

    /// Everything that is counted here.
    pub fn print(&self, page: &mut Page) {
        let (served, common) = (self.served.all(), self.common.all());
        let name = "apiserver_request_total";
        page.head(name, "counter", "Requests by verb, resource and HTTP status code.");
        served.iter().for_each(|(labels, own)| own.codes.print(page, name, labels));
        let name = "apiserver_request_duration_seconds";
        page.head(
            name,
            "histogram",
            "Time until the answer began; of watches and streams, until they ended.",
        );
        for (labels, own) in served.iter().filter(|(_, own)| own.durations.count() > 0) {
            own.durations.print(page, name, labels);
        }
        let sorts: [(&str, &str, fn(&Common) -> &Histogram); 2] = [
            ("apiserver_request_sli_duration_seconds", "The same without waiting for a seat.", |own| {
                &own.own_durations
            }),
            ("apiserver_response_sizes", "Bytes of answers.", |own| &own.answers),
        ];
        for (name, help, pick) in sorts {
            page.head(name, "histogram", help);
            for (labels, own) in common.iter().filter(|(_, own)| pick(own).count() > 0) {
                pick(own).print(page, name, labels);
            }
        }
        let name = "apiserver_request_terminations_total";
        page.head(name, "counter", "Requests that the server gave up.");
        common.iter().for_each(|(labels, own)| own.terminated.print(page, name, labels));
        let name = "apiserver_request_aborts_total";
        page.head(name, "counter", "Requests whose clients went away before the answer.");
        for (labels, own) in &common {
            let count = own.aborted.load(Ordering::Relaxed);
            // Upstream does not say which component it was.
            let (_, labels) = labels.split_once(',').unwrap_or_default();
            if count > 0 {
                page.line(name, labels, count);
            }
        }
        let running =
            common.iter().map(|(labels, own)| (labels.clone(), own.running.load(Ordering::Relaxed)));
        page.many(
            "apiserver_longrunning_requests",
            "gauge",
            "Watches and streams that run now.",
            running.filter(|(_, count)| *count > 0),
        );
        self.bodies.print(page);
        self.deprecated.print(page);
        let kinds = [("readOnly", &self.reading), ("mutating", &self.writing)];
        page.many(
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests being answered now.",
            kinds.map(|(kind, gauge)| (format!("request_kind=\"{kind}\""), gauge.load(Ordering::Relaxed))),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: http::Method, path: &str, query: &Query) -> RequestInfo {
        RequestInfo::parse(&method, path, query)
    }

    #[test]
    fn labels_are_upstreams() {
        use http::Method;
        for (method, path, query, applies, want) in [
            (Method::GET, "/api/v1/pods", "", false, "LIST cluster pods  apiserver"),
            (Method::GET, "/api/v1/namespaces/a/pods", "", false, "LIST namespace pods  apiserver"),
            (Method::GET, "/api/v1/namespaces/a/pods/b", "", false, "GET resource pods  apiserver"),
            (Method::GET, "/api/v1/pods", "watch=1", false, "WATCH cluster pods  apiserver"),
            (Method::POST, "/api/v1/namespaces/a/pods", "", false, "POST resource pods  apiserver"),
            (
                Method::POST,
                "/api/v1/namespaces/a/pods/b/exec",
                "",
                false,
                "CONNECT resource pods exec apiserver",
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/a/pods/b/status",
                "",
                false,
                "PUT resource pods status apiserver",
            ),
            (Method::PATCH, "/api/v1/nodes/b", "", true, "APPLY resource nodes  apiserver"),
            (Method::PATCH, "/api/v1/nodes/b", "", false, "PATCH resource nodes  apiserver"),
            (Method::DELETE, "/api/v1/nodes", "", false, "DELETECOLLECTION cluster nodes  apiserver"),
            (Method::GET, "/readyz/ping", "", false, "GET   /readyz "),
            (Method::GET, "/apis/apps", "", false, "GET   apis apiserver"),
            (Method::GET, "/apiserver", "", false, ""),
            (Method::GET, "/metrics", "", false, ""),
        ] {
            let query = Query::parse(Some(query));
            let info = info(method, path, &query);
            let found = Sort::of(&info, &query, applies).map_or(String::new(), |own| {
                format!("{} {} {} {} {}", own.verb, own.scope, own.resource, own.subresource, own.component)
            });
            assert_eq!(found, want, "{path}");
        }
    }

    #[test]
    fn requests_are_counted_by_code_and_duration() {
        let requests = Requests::default();
        let none = Query::default();
        let get = info(http::Method::GET, "/api/v1/namespaces/a/pods/b", &none);
        let done = |millis: u64| Finished {
            code: 200,
            took: Duration::from_millis(millis),
            waited: Duration::from_millis(millis / 2),
            answered: Some(2000),
            ..Finished::default()
        };
        requests.enter(&get, &none, false, || true).finish(&done(60));
        requests.enter(&get, &none, false, || false).finish(&done(1));
        requests.enter(&get, &none, false, || true).finish(&Finished { refused: true, code: 403, ..done(1) });
        drop(requests.enter(&get, &none, false, || true));
        let dry = Query::parse(Some("dryRun=All"));
        let post = info(http::Method::POST, "/api/v1/namespaces/a/pods", &dry);
        requests.body(&post, 60_000);
        let late = Finished { code: 504, terminated: true, ..done(1) };
        requests.enter(&post, &dry, false, || true).finish(&late);
        let stranger = info(http::Method::GET, "/api/v1/nothings", &none);
        requests.enter(&stranger, &none, false, || false).finish(&done(1));
        let watching = Query::parse(Some("watch=1"));
        let watch = info(http::Method::GET, "/api/v1/pods", &watching);
        let entered = requests.enter(&watch, &watching, false, || true);
        let running = entered.served().map(LongRunning::new);
        entered.finish(&Finished { answered: None, ..done(1) });
        let open = requests.enter(&get, &none, false, || true);
        let mut page = Page::default();
        requests.print(&mut page);
        let of_get =
            "group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"GET\",version=\"v1\"";
        for line in [
            format!("request_total{{code=\"200\",component=\"apiserver\",dry_run=\"\",{of_get}}} 2\n"),
            format!(
                "request_duration_seconds_bucket{{component=\"apiserver\",dry_run=\"\",{of_get},le=\"0.005\"}} 1\n"
            ),
            format!("sli_duration_seconds_bucket{{component=\"apiserver\",{of_get},le=\"0.05\"}} 2\n"),
            format!("response_sizes_sum{{component=\"apiserver\",{of_get}}} 4000\n"),
            format!("request_aborts_total{{{of_get}}} 1\n"),
            "terminations_total{code=\"504\",component=\"apiserver\",group=\"\",resource=\"pods\"".to_owned(),
            "request_body_size_bytes_bucket{group=\"\",resource=\"pods\",verb=\"create\",le=\"150000\"} 1\n"
                .to_owned(),
            "dry_run=\"All\",group=\"\",resource=\"pods\",scope=\"resource\",subresource=\"\",verb=\"POST\""
                .to_owned(),
            "longrunning_requests{component=\"apiserver\",group=\"\",resource=\"pods\",scope=\"cluster\""
                .to_owned(),
            "inflight_requests{request_kind=\"readOnly\"} 1\n".to_owned(),
        ] {
            assert!(page.text.contains(&line), "{line}: {}", page.text);
        }
        assert!(!page.text.contains("nothings") && !page.text.contains("403"), "{}", page.text);
        drop((running, open));
        let mut page = Page::default();
        requests.print(&mut page);
        assert!(!page.text.contains("\napiserver_longrunning_requests{"), "{}", page.text);
    }
}
