//! What upstream's flags do to `kelson kube-apiserver`, seen by curl: the command line that kubeadm writes with more flags
//! added, two servers behind one Service, a gentle stop.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::apiserver::{Bench, Running, refs};
use crate::harness::in_own_network;
use crate::https::Curl;
use testing::has;

fn flags(list: &[&str]) -> Vec<String> {
    list.iter().map(|flag| (*flag).to_owned()).collect()
}

/// curl's own view of an answer: the head and the body.
fn raw(curl: &Curl, path: &str, more: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "--max-time", "20", "--cacert"]).arg(&curl.ca).args(more);
    let output = command.arg(format!("{}{path}", curl.server)).output().expect("curl runs");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "x"}], "automountServiceAccountToken": false},
    })
}

#[test]
fn serving_storing_and_admitting_follow_the_flags() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(true);
        let labels =
            bench.write("labels.yaml", "allowListMapping:\n  \"apiserver_request_total,verb\": \"GET\"\n");
        let (_api, curl) = bench.api(&flags(&[
            // What kubeadm writes besides the files.
            "--advertise-address=10.0.0.7",
            "--allow-privileged=true",
            "--enable-admission-plugins=NodeRestriction",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-bootstrap-token-auth=true",
            "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            // And more.
            "--cors-allowed-origins=//example\\.org(:|$)",
            "--strict-transport-security-directives=max-age=31536000,includeSubDomains",
            "--external-hostname=api.example.org",
            "--default-not-ready-toleration-seconds=17",
            "--default-unreachable-toleration-seconds=18",
            "--delete-collection-workers=4",
            "--kubernetes-service-node-port=30443",
            "--enable-priority-and-fairness=false",
            "--max-mutating-requests-inflight=0",
            "--disabled-metrics=apiserver_request_duration_seconds",
            &format!("--allow-metric-labels-manifest={labels}"),
            "--profiling=false",
            "--http2-max-streams-per-connection=7",
            "--goaway-chance=0.02",
            "--min-request-timeout=1",
            "--tls-curve-preferences=23",
            "--watch-cache-sizes=pods#0",
            "--emulated-version=1.36",
        ]));
        let admin = bench.admin();
        let admin = refs(&admin);
        let with = |more: &[&'static str]| -> Vec<&str> {
            admin.iter().copied().chain(more.iter().copied()).collect()
        };

        let flight = raw(&curl, "/api/v1/pods", &["-X", "OPTIONS", "-H", "Origin: https://example.org"]);
        assert!(
            flight.contains(" 204") && flight.contains("access-control-allow-origin: https://example.org"),
            "{flight}"
        );
        assert!(
            flight.contains("strict-transport-security: max-age=31536000; includeSubDomains"),
            "{flight}"
        );
        let stranger = raw(&curl, "/version", &["-H", "Origin: https://example.com"]);
        assert!(!stranger.contains("access-control-allow-origin"), "{stranger}");

        let (_, versions) = curl.ask("/api", &admin);
        assert_eq!(versions["serverAddressByClientCIDRs"][0]["serverAddress"], "api.example.org:6443");
        let (_, discovery) = curl.ask("/.well-known/openid-configuration", &admin);
        assert_eq!(discovery["jwks_uri"], "https://api.example.org:6443/openid/v1/jwks");

        let (_, service) = curl.ask("/api/v1/namespaces/default/services/kubernetes", &admin);
        assert_eq!(
            (&service["spec"]["type"], &service["spec"]["ports"][0]["nodePort"]),
            (&json!("NodePort"), &json!(30443))
        );

        for name in ["a", "b", "c", "d", "e"] {
            let (code, made) = curl.post("/api/v1/namespaces/default/pods", &pod(name), &admin);
            assert_eq!(code, 201, "{made}");
            let seconds: Vec<_> = made["spec"]["tolerations"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|one| one["tolerationSeconds"].as_i64())
                .collect();
            assert_eq!(seconds, [17, 18]);
        }
        let (code, _) = curl.ask("/api/v1/namespaces/default/pods", &with(&["-X", "DELETE"]));
        assert_eq!(code, 200);
        assert_eq!(
            curl.ask("/api/v1/namespaces/default/pods", &admin).1["items"].as_array().map(Vec::len),
            Some(0)
        );

        let head = raw(&curl, "/api/v1/namespaces", &admin);
        assert!(!head.contains("x-kubernetes-pf-"), "{head}");
        assert!(!raw(&curl, "/readyz?verbose", &admin).contains("priority-and-fairness"));
        let metrics = raw(&curl, "/metrics", &admin);
        assert!(!metrics.contains("apiserver_request_duration_seconds"), "{metrics}");
        assert!(metrics.contains("verb=\"unexpected\"") && metrics.contains("verb=\"GET\""), "{metrics}");
        assert!(metrics.contains("apiserver_storage_size_bytes"), "{metrics}");
        assert!(raw(&curl, "/debug/pprof/", &admin).contains(" 404"));

        let began = Instant::now();
        let watch = raw(&curl, "/api/v1/namespaces?watch=true", &admin);
        assert!(watch.contains("ADDED") && began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        let other = raw(&curl, "/version", &["--curves", "X25519", "--tlsv1.3"]);
        assert!(!other.contains("gitVersion"), "a curve that is not allowed was taken: {other}");

        // Of many requests on one connection, some make the client connect anew.
        let many = ["https://127.0.0.1:6443/version"; 600].join("\n");
        let list = bench.write(
            "urls",
            &many.lines().map(|url| format!("url = \"{url}\"\noutput = /dev/null\n")).collect::<String>(),
        );
        let mut command = Command::new("curl");
        command.args(["-sS", "--http2", "-w", "%{num_connects}\n", "-K", &list, "--cacert"]).arg(&curl.ca);
        let connects = String::from_utf8_lossy(&command.output().unwrap().stdout)
            .lines()
            .filter(|line| line.trim() == "1")
            .count();
        assert!(connects > 1, "{connects} connections");
    });
}

#[test]
fn switches_that_take_away_do_so() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(false);
        let told = bench.write("admission.yaml", ADMISSION);
        let (_api, curl) = bench.api(&flags(&[
            "--allow-privileged=false",
            "--disable-admission-plugins=ServiceAccount",
            "--storage-media-type=application/vnd.kubernetes.protobuf",
            "--logging-format=json",
            "--vmodule=server=6",
            "--feature-gates=AllAlpha=true",
            &format!("--admission-control-config-file={told}"),
            "--disable-http2-serving",
            "--enable-garbage-collector=false",
            "--etcd-db-metric-poll-interval=0s",
            "--etcd-count-metric-poll-period=0s",
            "--permit-port-sharing=true",
        ]));
        let admin = bench.admin();
        let admin = refs(&admin);
        let log = std::fs::read_to_string(bench.dir.path().join("api.log")).unwrap();
        let first: Value = serde_json::from_str(log.lines().next().unwrap()).expect("log lines are JSON");
        assert!(first["ts"].is_f64() && first["gates"] == "AllAlpha=true", "{first}");
        let mut bad = pod("q");
        bad["spec"]["hostNetwork"] = json!(true);
        let (code, refused) = curl.post("/api/v1/namespaces/default/pods", &bad, &admin);
        assert!(code == 403 && refused["message"].as_str().unwrap().contains("baseline:latest"), "{refused}");
        assert_eq!(curl.post("/api/v1/namespaces/kube-system/pods", &bad, &admin).0, 201, "exempt");
        let mut bad = pod("p");
        bad["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        let (code, refused) = curl.post("/api/v1/namespaces/default/pods", &bad, &admin);
        assert_eq!(code, 422, "{refused}");
        assert_eq!(refused["details"]["causes"][0]["field"], "spec.containers[0].securityContext.privileged");
        assert!(raw(&curl, "/version", &["--http2"]).starts_with("HTTP/1.1 200"));
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        assert_eq!(curl.post("/api/v1/namespaces/default/configmaps", &map, &admin).0, 201);
        let mut delete = admin.clone();
        delete.extend(["-X", "DELETE"]);
        assert_eq!(
            curl.ask("/api/v1/namespaces/default/configmaps/m?propagationPolicy=Foreground", &delete).0,
            200
        );
        assert_eq!(curl.ask("/api/v1/namespaces/default/configmaps/m", &admin).0, 404);
        let metrics = raw(&curl, "/metrics", &admin);
        for name in
            ["apiserver_storage_objects", "apiserver_resource_objects", "apiserver_storage_size_bytes"]
        {
            assert!(!metrics.contains(name), "{name} is counted though that was turned off");
        }
    });
}

/// Namespaces without labels are judged by `baseline`, the system's are not.
const ADMISSION: &str = "apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline}
    exemptions: {namespaces: [kube-system]}
";

fn endpoints(curl: &Curl, admin: &[&str]) -> [Vec<String>; 2] {
    let (_, slice) =
        curl.ask("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", admin);
    let (_, old) = curl.ask("/api/v1/namespaces/default/endpoints/kubernetes", admin);
    let texts = |list: &Value, pointer: &str| -> Vec<String> {
        let all = list.as_array().into_iter().flatten();
        all.filter_map(|one| one.pointer(pointer)?.as_str()).map(str::to_owned).collect()
    };
    // Both forms, one after the other: while they change they may differ.
    [texts(&slice["endpoints"], "/addresses/0"), texts(&old["subsets"][0]["addresses"], "/ip")]
}

#[test]
fn two_servers_stand_behind_the_service_and_one_leaves_gently() {
    in_own_network(|| async {
        if !has("curl") {
            return;
        }
        let bench = Bench::new(true);
        let (first, curl) = bench.api(&flags(&["--advertise-address=10.0.0.7"]));
        let admin = bench.admin();
        let admin = refs(&admin);
        assert_eq!(endpoints(&curl, &admin), [["10.0.0.7"], ["10.0.0.7"]]);
        let second = Running::start(
            bench.command(&flags(&[
                "--advertise-address=10.0.0.8",
                "--secure-port=6444",
                "--shutdown-send-retry-after=true",
                "--shutdown-watch-termination-grace-period=3s",
                "--shutdown-delay-duration=1s",
            ])),
            &bench.dir.path().join("second.log"),
        );
        let deadline = Instant::now() + Duration::from_secs(60);
        let until = |wanted: &[&str]| {
            while endpoints(&curl, &admin).iter().any(|one| one != wanted) {
                assert!(Instant::now() < deadline, "{:?} instead of {wanted:?}", endpoints(&curl, &admin));
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        until(&["10.0.0.7", "10.0.0.8"]);
        let other = Curl { server: "https://127.0.0.1:6444".to_owned(), ca: curl.ca.clone() };
        while other.ask("/readyz", &[]).0 != 200 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(50));
        }
        let mut watching = Command::new("curl");
        watching.args(["-sSN", "--max-time", "30", "--cacert"]).arg(&curl.ca).args(&admin);
        watching
            .arg("https://127.0.0.1:6444/api/v1/namespaces?watch=true")
            .stdout(std::process::Stdio::null());
        let mut watching = watching.spawn().unwrap();
        second.signal(rustix::process::Signal::TERM);
        until(&["10.0.0.7"]);
        let refused = loop {
            let (code, _) = other.ask("/version", &[]);
            if code != 200 {
                break code;
            }
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(refused, 429, "while its watches end, a stopping server asks clients to come back");
        assert!(watching.wait().unwrap().success(), "the watch ended as if its time had come");
        drop((first, second));
    });
}
