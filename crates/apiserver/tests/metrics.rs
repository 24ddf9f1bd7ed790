//! The pages of metrics hold what `names.txt` says, with these labels, and values after a little work.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use apiserver::{Body, UserInfo};
use http::{Method, Request};
use serde_json::json;

use crate::harness::{Server, config_map, pod};

const NAMES: &str = include_str!("../src/metrics/names.txt");

/// What this test does not bring about.
const RARE: &[&str] = &[
    "aggregator_unavailable_apiservice_total",
    "apiserver_audit_error_total",
    "apiserver_flowcontrol_rejected_requests_total",
    "apiserver_flowcontrol_request_queue_length_after_enqueue",
    "apiserver_nodeport_repair_reconcile_errors_total",
    "apiserver_request_aborts_total",
    "apiserver_request_terminations_total",
    "apiserver_storage_decode_errors_total",
    "apiserver_terminated_watchers_total",
    "authenticated_user_requests",
    "authentication_attempts",
    "authentication_duration_seconds",
    "etcd_request_errors_total",
    "kube_apiserver_clusterip_allocator_allocation_errors_total",
    "pod_security_exemptions_total",
    "rest_client_response_size_bytes",
];

#[derive(Default)]
struct Metric {
    kind: String,
    labels: Option<BTreeSet<String>>,
}

/// The metrics of a page by name.
fn read(page: &str) -> BTreeMap<String, Metric> {
    let mut found: BTreeMap<String, Metric> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let new = found.insert(name.to_owned(), Metric { kind: kind.to_owned(), labels: None });
            assert!(new.is_none(), "{name} comes twice");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let bare = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = if found.contains_key(name) { name } else { bare.unwrap_or(name) };
            let labels =
                labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once("=\""));
            let labels = labels.map(|(label, _)| label.to_owned()).filter(|label| label != "le");
            let metric = found.get_mut(name).unwrap_or_else(|| panic!("{name} has no type"));
            let labels: BTreeSet<String> = labels.collect();
            assert!(metric.labels.as_ref().is_none_or(|own| *own == labels), "{line}");
            metric.labels = Some(labels);
        }
    }
    found
}

/// No series may stand on a page twice.
fn assert_unique(page: &str) {
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut labels: Vec<&str> = labels.split("\",").collect();
        labels.sort_unstable();
        assert!(seen.insert((name, labels)), "{line}");
    }
}

async fn work(server: &Server) {
    let maps = "/api/v1/namespaces/default/configmaps";
    server.post(maps, &config_map("a")).await.expect(201);
    server.post(&format!("{maps}?dryRun=All"), &config_map("b")).await.expect(201);
    server.get(maps).await.expect(200);
    server.get(&format!("{maps}?limit=1&resourceVersion=1&resourceVersionMatch=Exact")).await;
    let page = server.get("/api/v1/namespaces?limit=1").await.expect(200);
    let token = page["metadata"]["continue"].as_str().unwrap();
    server.get(&format!("/api/v1/namespaces?limit=1&continue={token}")).await.expect(200);
    server.get(&format!("{maps}/nothing")).await.expect(404);
    server.get("/api/v1/namespaces/default/endpoints").await.expect(200);
    let apply = format!("{maps}/s?fieldManager=m");
    server.patch(&apply, "apply", &config_map("s")).await.expect(201);
    let stranger = UserInfo::new("nobody", &["system:authenticated"]);
    server.ask_as(&stranger, Method::GET, maps, "", Vec::new()).await.expect(403);
    let someone = Request::builder().uri("/version").header("impersonate-user", "ann").body(Body::Empty);
    let admin = UserInfo::new("admin", &["system:masters"]);
    assert_eq!(server.api.handle(admin, someone.unwrap()).await.status(), 200);
    let service = |name: &str, port: u16| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}})
    };
    let services = "/api/v1/namespaces/default/services";
    server.post(services, &service("one", 0)).await.expect(201);
    server.post(services, &service("two", 30_100)).await.expect(201);
    server.post(services, &service("three", 30_100)).await.expect(422);

    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/audit": "baseline", "pod-security.kubernetes.io/warn": "restricted"});
    let label = json!({"metadata": {"labels": labels}});
    server.patch("/api/v1/namespaces/default", "merge", &label).await.expect(200);
    let mut bad = pod("p");
    bad["spec"]["hostNetwork"] = json!(true);
    server.post("/api/v1/namespaces/default/pods", &bad).await.expect(403);

    let group = "/apis/admissionregistration.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "object.metadata.name != 'bad'"}]}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let change = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "m"}, "spec": {"matchConstraints": {"resourceRules": rules}, "reinvocationPolicy": "Never",
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration":
                {"expression": "Object{metadata: Object.metadata{labels: {'m': 'y'}}}"}}]}});
    let bound = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "m"}, "spec": {"policyName": "m"}});
    // Nobody listens on the port of a listener that is gone.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hook = |name: &str, policy: &str| {
        json!({"name": name, "failurePolicy": policy, "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/")}, "rules": rules,
            "objectSelector": {"matchLabels": {"ask": policy}}})
    };
    let hooks = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "h"}, "webhooks": [hook("a.example.com", "Ignore"), hook("b.example.com", "Fail")]});
    for (plural, object) in [
        ("validatingadmissionpolicies", &policy),
        ("validatingadmissionpolicybindings", &binding),
        ("mutatingadmissionpolicies", &change),
        ("mutatingadmissionpolicybindings", &bound),
        ("validatingwebhookconfigurations", &hooks),
    ] {
        server.post(&format!("{group}/{plural}"), object).await.expect(201);
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    while server.post(&format!("{maps}?dryRun=All"), &config_map("bad")).await.code != 422 {
        assert!(tokio::time::Instant::now() < until, "the policy is not in force");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (policy, code) in [("Ignore", 201), ("Fail", 500)] {
        let mut map = config_map(&policy.to_lowercase());
        map["metadata"]["labels"] = json!({"ask": policy});
        server.post(maps, &map).await.expect(code);
    }
    server.get("/readyz").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_holds_the_names_and_labels_of_the_table() {
    let server = Server::start().await;
    work(&server).await;
    let mut watch = server
        .watch("/api/v1/configmaps?watch=1&allowWatchBookmarks=1&sendInitialEvents=1&resourceVersionMatch=NotOlderThan")
        .await;
    watch.until(b"initial-events-end").await;
    let page = server.text("/metrics").await;
    assert_unique(&page);
    let found = read(&page);
    let mut known = BTreeSet::new();
    let mut wrong = Vec::new();
    for line in NAMES.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, kind, _, labels, when] = words[..] else { panic!("{line}") };
        assert!(known.insert(name), "{name} stands twice");
        let labels: BTreeSet<String> =
            labels.split(',').filter(|own| *own != "-").map(str::to_owned).collect();
        match found.get(name) {
            None if when == "sometimes" => {}
            None => wrong.push(format!("{name} is not there")),
            Some(metric) if metric.kind != kind => wrong.push(format!("{name} is a {}", metric.kind)),
            Some(Metric { labels: Some(own), .. }) if *own != labels => {
                wrong.push(format!("{name}: {own:?}"))
            }
            Some(Metric { labels: None, .. }) if when == "always" && !RARE.contains(&name) => {
                wrong.push(format!("{name} has no values"));
            }
            Some(_) => {}
        }
    }
    let more = found.keys().filter(|name| !known.contains(name.as_str()));
    wrong.extend(more.map(|name| format!("{name} is not in the table")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    for line in [
        "apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"All\",group=\"\",resource=\"configmaps\",scope=\"resource\",subresource=\"\",verb=\"POST\",version=\"v1\"} 1\n",
        "apiserver_request_total{code=\"201\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"resource\",subresource=\"\",verb=\"APPLY\",version=\"v1\"} 1\n",
        "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"cluster\",subresource=\"\",verb=\"WATCH\",version=\"v1\"} 1\n",
        "kube_apiserver_nodeport_allocator_allocated_ports 2\n",
        "kube_apiserver_nodeport_allocator_allocation_total{scope=\"dynamic\"} 1\n",
        "kube_apiserver_nodeport_allocator_allocation_errors_total{scope=\"static\"} 1\n",
        "apiserver_admission_webhook_fail_open_count{name=\"a.example.com\",type=\"validating\"} 1\n",
        "apiserver_admission_webhook_rejection_count{error_type=\"calling_webhook_error\",name=\"b.example.com\",operation=\"CREATE\",rejection_code=\"503\",type=\"validating\"} 1\n",
        "pod_security_evaluations_total{decision=\"deny\",mode=\"audit\",policy_level=\"baseline\",policy_version=\"latest\",request_operation=\"create\",resource=\"pod\",subresource=\"\"} 1\n",
        "mode=\"enforce\",policy_level=\"restricted\",policy_version=\"latest\",request_operation=\"create\",resource=\"pod\",subresource=\"\"} 1\n",
    ] {
        assert!(page.contains(line), "{line}");
    }
    assert!(!page.contains("mode=\"warn\""), "who is refused is not warned");
    let health = server.text("/metrics/slis").await;
    for line in [
        "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"readyz\"} 1\n",
    ] {
        assert!(health.contains(line), "{line}: {health}");
    }
    drop(watch);
    server.stop().await;
}
