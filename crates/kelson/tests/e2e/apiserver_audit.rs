//! Audit events of `kelson kube-apiserver` as they arrive: at a webhook in batches or one by one, in a log that is
//! packed, cut to size, or in the older form; and requests that are refused when their event cannot be kept.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::apiserver::{Bench, refs};
use crate::apiserver_files::eventually;
use crate::harness::in_own_network;
use crate::https::{self, Curl};
use testing::has;

const POLICY: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n  resources: [{group: '', resources: [configmaps]}]\n- level: None\n";

/// The lists that a sink was sent, whether it takes any, and how many it did not take.
struct Sink {
    lists: Arc<Mutex<Vec<Value>>>,
    open: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    port: u16,
}

impl Sink {
    fn new(bench: &Bench) -> Self {
        let lists: Arc<Mutex<Vec<Value>>> = Arc::default();
        let open = Arc::new(AtomicBool::new(true));
        let refused: Arc<AtomicUsize> = Arc::default();
        let (kept, takes, not_taken) = (lists.clone(), open.clone(), refused.clone());
        let port = https::serve_coded(&bench.pki, move |_, list| {
            if !takes.load(Ordering::SeqCst) {
                not_taken.fetch_add(1, Ordering::SeqCst);
                return (503, json!({}));
            }
            kept.lock().unwrap().push(list.clone());
            (200, json!({}))
        });
        Self { lists, open, refused, port }
    }

    fn events(&self) -> Vec<Value> {
        let lists = self.lists.lock().unwrap();
        lists.iter().flat_map(|list| list["items"].as_array().cloned().unwrap_or_default()).collect()
    }

    fn has(&self, name: &str, stage: &str) -> bool {
        self.events().iter().any(|event| event["objectRef"]["name"] == name && event["stage"] == stage)
    }
}

fn make(curl: &Curl, admin: &[&str], name: &str, bytes: usize) -> u16 {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x".repeat(bytes)}});
    curl.post("/api/v1/namespaces/default/configmaps", &map, admin).0
}

/// A number on the page `/metrics`.
fn metric(curl: &Curl, admin: &[&str], name: &str) -> u64 {
    let page = curl.ask("/metrics", admin).1;
    let line = page.as_str().and_then(|text| text.lines().find(|line| line.starts_with(&format!("{name} "))));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn events_arrive_at_a_webhook() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let sink = Sink::new(&bench);
        let admin = bench.admin();
        let admin = refs(&admin);
        let flags = |more: &[&str]| {
            let mut all = vec![
                format!("--audit-policy-file={}", bench.write("policy.yaml", POLICY)),
                format!(
                    "--audit-webhook-config-file={}",
                    bench.webhook("sink.kubeconfig", sink.port, "/events")
                ),
            ];
            all.extend(more.iter().map(|&own| own.to_owned()));
            all
        };

        // In batches: several events in one list, cut to size, sent again after a failure, the rest on a stop.
        let (mut api, curl) = bench.api(&flags(&[
            "--audit-webhook-batch-max-size=6",
            "--audit-webhook-batch-max-wait=2s",
            "--audit-webhook-initial-backoff=100ms",
            "--audit-webhook-truncate-enabled=true",
            "--audit-webhook-truncate-max-event-size=6000",
        ]));
        for name in ["a", "b", "c"] {
            assert_eq!(make(&curl, &admin, name, 10), 201);
        }
        assert_eq!(make(&curl, &admin, "large", 20_000), 201);
        eventually("events arrive", || sink.has("large", "ResponseComplete"));
        let lists = sink.lists.lock().unwrap().clone();
        assert!(lists.iter().any(|list| list["items"].as_array().unwrap().len() > 1), "in batches");
        assert!(
            lists.iter().all(|list| list["kind"] == "EventList" && list["apiVersion"] == "audit.k8s.io/v1")
        );
        let events = sink.events();
        let of = |name: &str, stage: &str| {
            events
                .iter()
                .find(|one| one["objectRef"]["name"] == name && one["stage"] == stage)
                .cloned()
                .unwrap()
        };
        assert_eq!(of("a", "ResponseComplete")["responseObject"]["metadata"]["name"], "a");
        let large = of("large", "ResponseComplete");
        assert!(
            large.get("requestObject").is_none() && large["annotations"]["audit.k8s.io/truncated"] == "true"
        );
        sink.open.store(false, Ordering::SeqCst);
        assert_eq!(make(&curl, &admin, "later", 10), 201, "nobody waits for the sink");
        eventually("the sink is asked in vain", || sink.refused.load(Ordering::SeqCst) > 0);
        sink.open.store(true, Ordering::SeqCst);
        eventually("what failed is sent again", || sink.has("later", "ResponseComplete"));
        assert!(metric(&curl, &admin, "apiserver_audit_event_total") >= 10);
        assert!(metric(&curl, &admin, "apiserver_audit_level_total{level=\"RequestResponse\"}") >= 5);
        assert_eq!(make(&curl, &admin, "last", 10), 201);
        api.signal(rustix::process::Signal::TERM);
        api.0.wait().unwrap();
        assert!(sink.has("last", "ResponseComplete"), "a stop sends what is left");
        drop(api);

        // One by one: the answer comes after the event.
        let (api, curl) =
            bench.api(&flags(&["--audit-webhook-mode=blocking", "--audit-webhook-initial-backoff=10ms"]));
        assert_eq!(make(&curl, &admin, "waits", 10), 201);
        assert!(sink.has("waits", "ResponseComplete"));
        sink.open.store(false, Ordering::SeqCst);
        assert_eq!(make(&curl, &admin, "goes-on", 10), 201);
        assert!(metric(&curl, &admin, "apiserver_audit_error_total{plugin=\"webhook\"}") >= 2);
        drop(api);
        sink.open.store(true, Ordering::SeqCst);
        let (_api, curl) = bench
            .api(&flags(&["--audit-webhook-mode=blocking-strict", "--audit-webhook-initial-backoff=10ms"]));
        assert_eq!(make(&curl, &admin, "strict", 10), 201);
        sink.open.store(false, Ordering::SeqCst);
        assert_eq!(make(&curl, &admin, "refused", 10), 500, "what cannot be audited is not done");
        assert_eq!(metric(&curl, &admin, "apiserver_audit_requests_rejected_total"), 1);
        sink.open.store(true, Ordering::SeqCst);
        assert_eq!(curl.ask("/api/v1/namespaces/default/configmaps/refused", &admin).0, 404);
    });
}

#[test]
fn the_log_is_written_as_asked() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let admin = bench.admin();
        let admin = refs(&admin);
        let log = bench.dir.path().join("audit.log");
        let flags = |more: &[&str]| {
            let mut all = vec![
                format!("--audit-policy-file={}", bench.write("policy.yaml", POLICY)),
                format!("--audit-log-path={}", log.display()),
            ];
            all.extend(more.iter().map(|&own| own.to_owned()));
            all
        };
        let (api, curl) =
            bench.api(&flags(&["--audit-log-format=legacy", "--audit-log-mode=blocking-strict"]));
        assert_eq!(make(&curl, &admin, "old", 10), 201);
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains(" AUDIT: id=\"") && text.contains("method=\"create\""), "{text}");
        drop(api);
        std::fs::remove_file(&log).unwrap();
        let (_api, curl) = bench.api(&flags(&[
            "--audit-log-mode=batch",
            "--audit-log-batch-max-size=10",
            "--audit-log-batch-max-wait=100ms",
            "--audit-log-maxsize=1",
            "--audit-log-maxbackup=2",
            "--audit-log-compress=true",
        ]));
        let mut number = 0;
        let packed = || {
            let names = std::fs::read_dir(bench.dir.path()).unwrap();
            names
                .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().ends_with(".log.gz"))
                .count()
        };
        eventually("full logs are packed, and two are kept", || {
            number += 1;
            make(&curl, &admin, &format!("big-{number}"), 100_000);
            packed() == 2 && number > 25
        });
        assert_eq!(packed(), 2);
    });
}
