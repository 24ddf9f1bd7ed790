//! What happens between the API server and others, seen from outside: seats that one priority level borrows from
//! another, an aggregated server that becomes available, the log of a pod over a WebSocket; and the page of metrics.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use pki::table::names;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};

use crate::apiserver::{API, Bench, refs};
use crate::apiserver_files::eventually;
use crate::harness::in_own_network;
use crate::https::{self, Curl};
use testing::has;

/// The value of a metric with these labels among its own.
fn metric(curl: &Curl, admin: &[&str], name: &str, labels: &[&str]) -> Option<f64> {
    let page = curl.ask("/metrics", admin).1;
    let line = page.as_str()?.lines().find(|line| {
        let bare = line.split(['{', ' ']).next() == Some(name);
        bare && labels.iter().all(|label| line.contains(label))
    })?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Requests that hold their seats because their bodies do not end.
struct Slow(Vec<Child>);

impl Slow {
    fn start(bench: &Bench, token: &str, count: usize) -> Self {
        let ca = bench.certificate(names::SERVER_CA);
        let bearer = format!("Authorization: Bearer {token}");
        let url = format!("{API}/api/v1/namespaces/default/configmaps");
        let one = |_| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "--max-time", "50", "--cacert", &ca, "-H", &bearer, "-X", "POST"]);
            curl.args(["-H", "Content-Type: application/json", "-T", "-", "-o", "/dev/null", &url]);
            // Its input stays open for as long as the child is there.
            curl.stdin(Stdio::piped()).spawn().unwrap()
        };
        Self((0..count).map(one).collect())
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

#[test]
fn a_full_priority_level_borrows_seats() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let (_api, curl) = bench.api(&[
            "--max-requests-inflight=20".to_owned(),
            "--max-mutating-requests-inflight=20".to_owned(),
            format!("--token-auth-file={}", bench.write("tokens.csv", "b,bob,1,\"system:masters-not\"\n")),
        ]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
        let level = |borrow: Value| {
            json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "narrow"},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "borrowingLimitPercent": borrow, "limitResponse": {"type": "Reject"}}}})
        };
        let schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "narrow"},
            "spec": {"matchingPrecedence": 50, "priorityLevelConfiguration": {"name": "narrow"}, "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "bob"}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"]}]}]}});
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "bob"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]});
        for (path, object) in [
            (format!("{group}/prioritylevelconfigurations"), &level(json!(0))),
            (format!("{group}/flowschemas"), &schema),
            ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".to_owned(), &role),
        ] {
            let (code, said) = curl.post(&path, object, &admin);
            assert_eq!(code, 201, "{said}");
        }
        let bob = ["-H", "Authorization: Bearer b"];
        let ask = || curl.ask("/api/v1/namespaces/default/configmaps", &bob).0;
        eventually("bob is let in", || ask() == 200);
        let label = ["priority_level=\"narrow\""];
        let taken = || metric(&curl, &admin, "apiserver_flowcontrol_current_executing_seats", &label);
        assert_eq!(metric(&curl, &admin, "apiserver_flowcontrol_nominal_limit_seats", &label), Some(1.0));
        {
            let _one = Slow::start(&bench, "b", 1);
            eventually("the only seat is taken", || taken() == Some(1.0));
            assert_eq!(ask(), 429, "there is no other, and none may be borrowed");
        }
        eventually("the seat is free", || taken() == Some(0.0));
        let path = format!("{group}/prioritylevelconfigurations/narrow");
        let patch = level(json!(400)).to_string();
        let mut more =
            vec!["-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "--data-binary", &patch];
        more.extend(&admin);
        assert_eq!(curl.ask(&path, &more).0, 200);
        let _several = Slow::start(&bench, "b", 3);
        eventually("seats of others are borrowed", || taken() == Some(3.0));
        assert_eq!(ask(), 200, "and one more");
        assert!(
            metric(
                &curl,
                &admin,
                "apiserver_flowcontrol_rejected_requests_total",
                &["flow_schema=\"narrow\""]
            ) >= Some(1.0)
        );
    });
}

#[test]
fn an_aggregated_server_becomes_available() {
    in_own_network(|| async {
        if !has("curl") || !has("ip") {
            return;
        }
        let bench = Bench::new(false);
        // The cluster IP leads to this machine, as kube-proxy would see to.
        let address = "10.0.0.77";
        let added =
            Command::new("ip").args(["address", "add", &format!("{address}/32"), "dev", "lo"]).status();
        assert!(added.unwrap().success());
        let port = https::serve_on(&bench.pki, address, |path, _| match path {
            "/apis/test.example.com/v1" => (
                200,
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "test.example.com/v1",
                "resources": [{"name": "things", "singularName": "thing", "namespaced": false, "kind": "Thing", "verbs": ["get"]}]}),
            ),
            "/apis/test.example.com/v1/things/a" => (
                200,
                json!({"kind": "Thing", "apiVersion": "test.example.com/v1", "metadata": {"name": "a"}}),
            ),
            _ => (404, json!({})),
        });
        let (_api, curl) = bench.api(&[]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let service = |wanted: u16| {
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.test.example.com"},
            "spec": {"group": "test.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true,
                "service": {"namespace": "default", "name": "far", "port": wanted}}})
        };
        let available = || {
            let (_, found) =
                curl.ask("/apis/apiregistration.k8s.io/v1/apiservices/v1.test.example.com", &admin);
            let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.into_iter().find(|one| one["type"] == "Available").unwrap_or_default()
        };
        assert_eq!(curl.post("/apis/apiregistration.k8s.io/v1/apiservices", &service(port), &admin).0, 201);
        eventually("it says that there is no Service", || available()["reason"] == "ServiceNotFound");
        let label = ["name=\"v1.test.example.com\""];
        let unavailable = || metric(&curl, &admin, "aggregator_unavailable_apiservice", &label);
        assert_eq!(unavailable(), Some(1.0));
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "far"},
            "spec": {"clusterIP": address, "ports": [{"port": port, "protocol": "TCP"}]}});
        let (code, said) = curl.post("/api/v1/namespaces/default/services", &object, &admin);
        assert_eq!(code, 201, "{said}");
        let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "far-1", "labels": {"kubernetes.io/service-name": "far"}},
            "ports": [{"port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
        let (code, said) =
            curl.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice, &admin);
        assert_eq!(code, 201, "{said}");
        eventually("it passes", || {
            let condition = available();
            condition["status"] == "True" && condition["reason"] == "Passed"
        });
        assert_eq!(available()["message"], "all checks passed");
        assert_eq!(unavailable(), Some(0.0));
        assert_eq!(curl.ask("/apis/test.example.com/v1/things/a", &admin).1["kind"], "Thing");
        eventually("its group is discovered", || {
            curl.ask("/apis", &admin).1.to_string().contains("test.example.com")
        });
    });
}

/// A client of one WebSocket.
struct Socket(rustls::StreamOwned<rustls::ClientConnection, TcpStream>);

impl Socket {
    /// Asks for an upgrade with the administrator's certificate; gives the head of the answer too.
    fn open(bench: &Bench, path: &str, protocol: &str) -> (Self, String) {
        let pem = |path: String| std::fs::read(path).unwrap();
        let chain = CertificateDer::pem_slice_iter(&pem(bench.certificate(names::ADMIN)))
            .map(Result::unwrap)
            .collect();
        let key = PrivateKeyDer::from_pem_slice(&pem(bench.key(names::ADMIN))).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        for ca in CertificateDer::pem_slice_iter(&pem(bench.certificate(names::SERVER_CA))) {
            roots.add(ca.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(API.trim_start_matches("https://")).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, stream);
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
        .unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        (Self(stream), String::from_utf8(head).unwrap())
    }

    /// All messages until the other end closes.
    fn messages(mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let mut head = [0; 2];
            if self.0.read_exact(&mut head).is_err() || head[0] & 0x0f == 8 {
                return all;
            }
            let mut length = u64::from(head[1] & 0x7f);
            let more = match length {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            if more > 0 {
                let mut bytes = [0; 8];
                self.0.read_exact(&mut bytes[8 - more..]).unwrap();
                length = u64::from_be_bytes(bytes);
            }
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).unwrap();
            if matches!(head[0] & 0x0f, 0..=2) {
                all.extend(payload);
            }
        }
    }
}

#[test]
fn the_log_of_a_pod_comes_over_a_websocket() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let kubelet = https::serve(&bench.pki, |path, _| match path {
            path if path.starts_with("/containerLogs/default/talks/c") && path.contains("tailLines=2") => {
                json!("one\ntwo\n")
            }
            _ => json!("unexpected"),
        });
        let (_api, curl) = bench.api(&["--disable-admission-plugins=ServiceAccount".to_owned()]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"},
            "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet}}}});
        assert_eq!(curl.post("/api/v1/nodes", &node, &admin).0, 201);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "talks"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
        let (code, said) = curl.post("/api/v1/namespaces/default/pods", &pod, &admin);
        assert_eq!(code, 201, "{said}");
        let path = "/api/v1/namespaces/default/pods/talks/log?container=c&tailLines=2";
        let plain = curl.ask(path, &admin);
        assert_eq!((plain.0, &plain.1), (200, &json!("one\ntwo\n")), "without a socket");
        let (socket, head) = Socket::open(&bench, path, "binary.k8s.io");
        assert!(head.starts_with("HTTP/1.1 101") && head.to_lowercase().contains("binary.k8s.io"), "{head}");
        assert_eq!(String::from_utf8(socket.messages()).unwrap(), "\"one\\ntwo\\n\"");
        let (socket, head) = Socket::open(&bench, path, "base64.binary.k8s.io");
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.decode(socket.messages()).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "\"one\\ntwo\\n\"");
    });
}

#[test]
fn the_page_of_metrics_has_upstreams_names() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let (_api, curl) = bench.api(&[]);
        let admin = bench.admin();
        let admin = refs(&admin);
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        assert_eq!(
            curl.post("/api/v1/namespaces/default/configmaps?fieldValidation=Strict", &map, &admin).0,
            201
        );
        assert_eq!(curl.ask("/api/v1/namespaces/default/configmaps", &admin).0, 200);
        assert_eq!(curl.ask("/api/v1/pods", &[]).0, 403);
        let of = |name: &str, labels: &[&str]| metric(&curl, &admin, name, labels);
        let maps = ["group=\"\"", "resource=\"configmaps\""];
        for (name, labels, least) in [
            (
                "apiserver_request_total",
                &["code=\"201\"", "verb=\"POST\"", "dry_run=\"\"", "resource=\"configmaps\""][..],
                1.0,
            ),
            (
                "apiserver_request_sli_duration_seconds_count",
                &["verb=\"POST\"", "resource=\"configmaps\""],
                1.0,
            ),
            ("apiserver_request_body_size_bytes_count", &["verb=\"create\"", "resource=\"configmaps\""], 1.0),
            ("apiserver_response_sizes_sum", &["verb=\"LIST\"", "resource=\"configmaps\""], 100.0),
            ("apiserver_resource_objects", &maps, 1.0),
            ("apiserver_resource_size_estimate_bytes", &maps, 100.0),
            ("apiserver_watch_cache_events_received_total", &maps, 1.0),
            ("apiserver_cache_list_total", &maps, 1.0),
            ("authentication_attempts", &["result=\"success\""], 2.0),
            ("authorization_attempts_total", &["result=\"allowed\""], 2.0),
            ("authorization_attempts_total", &["result=\"no-opinion\""], 1.0),
            (
                "apiserver_admission_step_admission_duration_seconds_count",
                &["operation=\"CREATE\"", "type=\"admit\""],
                1.0,
            ),
            (
                "apiserver_admission_controller_admission_duration_seconds_count",
                &["name=\"LimitRanger\"", "type=\"validate\""],
                1.0,
            ),
            ("field_validation_request_duration_seconds_count", &["field_validation=\"Strict\""], 1.0),
            ("apiserver_flowcontrol_dispatched_requests_total", &["priority_level=\"exempt\""], 1.0),
            ("kubernetes_build_info", &["major=\"1\"", "minor=\"36\""], 1.0),
            ("process_resident_memory_bytes", &[], 1_000_000.0),
            ("registered_metrics_total", &[], 50.0),
            ("kube_apiserver_clusterip_allocator_available_ips", &["cidr=\"10.0.0.0/24\""], 200.0),
        ] {
            let found = of(name, labels);
            assert!(found >= Some(least), "{name} {labels:?}: {found:?}");
        }
        // Every metric has a type, and none comes twice.
        let page = curl.ask("/metrics", &admin).1;
        let mut types: Vec<&str> =
            page.as_str().unwrap().lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        let count = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!(types.len(), count);
    });
}
