//! The programs of a control plane, each a process of its own with upstream's flags.

use std::process::Command;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use pki::table::names;
use serde_json::{Value, json};

use crate::apiserver::{API, Bench, Running};
use crate::https::{self, Curl};
use crate::scenes::extenders;

pub const NODES: usize = 3;

/// As many nodes as the scene in a large cluster has.
const LARGE: usize = 120;

/// More scenes than there are.
pub const SCENES: usize = 200;

const SERVICES: &str = "10.0.0.0/24,fd00:10::/112";

/// How the leaders of this test are chosen: quickly.
const ELECTION: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=1s",
];

pub struct Programs {
    bench: Bench,
    kubeconfig: String,
    _running: Vec<Running>,
}

/// The profiles that scenes choose among.
const PROFILES: &str = include_str!("scheduler.yaml");

impl Programs {
    pub fn start() -> Self {
        let bench = Bench::new(false);
        let (api, _) = bench.api(&[
            format!("--service-cluster-ip-range={SERVICES}"),
            "--enable-bootstrap-token-auth=true".to_owned(),
            format!("--proxy-client-cert-file={}", bench.certificate(names::FRONT_PROXY_CLIENT)),
            format!("--proxy-client-key-file={}", bench.key(names::FRONT_PROXY_CLIENT)),
        ]);
        let kubeconfig = |name: &str| {
            let config = bench.pki.kubeconfig(name, "scenes", API).expect("the row is there");
            bench.write(&format!("{name}.kubeconfig"), &config.to_yaml().expect("text"))
        };
        let [admin, manager, scheduler] =
            [names::ADMIN, names::CONTROLLER_MANAGER, names::SCHEDULER].map(kubeconfig);
        let accounts = bench.write("sa.key", &bench.pki.service_account().to_pem());
        let mut running = vec![api];
        let mut start = |log: &str, words: Vec<String>| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
            command.args(&words);
            running.push(Running::start(command, &bench.dir.path().join(log)));
        };
        let mut controllers = vec!["kube-controller-manager".to_owned()];
        controllers.extend(ELECTION.map(str::to_owned));
        let trusted = format!("--client-ca-file={}", bench.certificate(names::CLIENT_CA));
        controllers.push(trusted.clone());
        for (flag, value) in [
            ("kubeconfig", manager.clone()),
            ("controllers", "*,bootstrap-signer-controller,token-cleaner-controller".to_owned()),
            ("use-service-account-credentials", "true".to_owned()),
            ("service-account-private-key-file", accounts),
            ("root-ca-file", bench.certificate(names::SERVER_CA)),
            ("cluster-signing-cert-file", bench.certificate(names::CLIENT_CA)),
            ("cluster-signing-key-file", bench.key(names::CLIENT_CA)),
            ("allocate-node-cidrs", "true".to_owned()),
            ("cluster-cidr", "10.128.0.0/14,fd00:20::/48".to_owned()),
            ("service-cluster-ip-range", SERVICES.to_owned()),
            ("terminated-pod-gc-threshold", "12".to_owned()),
            ("legacy-service-account-token-clean-up-period", "1s".to_owned()),
            ("horizontal-pod-autoscaler-sync-period", "1s".to_owned()),
            ("node-monitor-grace-period", "600s".to_owned()),
            ("node-startup-grace-period", "5s".to_owned()),
        ] {
            controllers.push(format!("--{flag}={value}"));
        }
        start("controllers.log", controllers);
        let mut scheduling = vec!["kube-scheduler".to_owned()];
        scheduling.extend(ELECTION.map(str::to_owned));
        scheduling.push(trusted.clone());
        let config = PROFILES
            .replace("$EXTENDER", &extenders::serve(&bench))
            .replace("$AUTHORITY", &bench.certificate(names::SERVER_CA));
        scheduling.push(format!("--config={}", bench.write("scheduler.yaml", &config)));
        scheduling.push(format!("--kubeconfig={scheduler}"));
        start("scheduler.log", scheduling);
        let machines = bench.dir.path().join("machines");
        std::fs::create_dir(&machines).expect("a new directory");
        let machine = json!({"providerID": "local://m1", "instanceType": "small", "zone": "zone-a", "region": "region-a",
            "addresses": [{"type": "InternalIP", "address": "192.0.2.77"}]});
        std::fs::write(machines.join("cloud-new.json"), machine.to_string()).expect("a file");
        let off = json!({"providerID": "local://m2", "shutDown": true});
        std::fs::write(machines.join("cloud-off.json"), off.to_string()).expect("a file");
        // Of the nodes that scenes make, only those named otherwise have no machine.
        let own = (0..SCENES).flat_map(|scene| ["", "-a", "-b"].map(|end| format!("scene-{scene}{end}")));
        let large = (0..LARGE).map(|node| format!("scene-{SCENES}-{node}"));
        for name in (0..NODES).map(|node| format!("fake-node-{node}")).chain(own).chain(large) {
            let known = json!({"providerID": format!("local://{name}")});
            std::fs::write(machines.join(format!("{name}.json")), known.to_string()).expect("a file");
        }
        let cloud =
            json!({"loadBalancers": {"pools": [{"addresses": ["192.0.2.16/28"]}]}, "machines": machines});
        let mut clouds = vec!["cloud-controller-manager".to_owned(), "--cloud-provider=local".to_owned()];
        clouds.extend(ELECTION.map(str::to_owned));
        clouds.push(trusted);
        clouds.push(format!("--cloud-config={}", bench.write("cloud.yaml", &cloud.to_string())));
        clouds.push(format!("--kubeconfig={manager}"));
        clouds.push("--use-service-account-credentials=true".to_owned());
        start("cloud.log", clouds);
        let nodes = format!("bench fake-nodes --zones 2 --nodes {NODES} --kubeconfig {admin}");
        start("nodes.log", nodes.split(' ').map(str::to_owned).collect());
        Self { kubeconfig: admin, _running: running, bench }
    }

    pub async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("the kubeconfig is valid");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let mut config = config.expect("the kubeconfig is complete");
        // The client asks again fifteen times, three to five minutes in all, where the answer is 429: what a budget says to
        // an eviction, and what scenes want to see.
        config.default_retry = false;
        Client::try_from(config).expect("a client")
    }

    /// Each program tells how it is to all, and its metrics to those who may ask.
    pub fn tell_how_they_are(&self) {
        for (port, metric) in [
            (10257, "workqueue_adds_total"),
            (10258, "workqueue_adds_total"),
            (10259, "scheduler_schedule_attempts_total"),
        ] {
            let curl = Curl { server: format!("https://127.0.0.1:{port}"), ..self.bench.curl() };
            assert_eq!(curl.ask("/healthz", &["-k"]), (200, json!("ok")), "{port}");
            assert_eq!(curl.ask("/metrics", &["-k"]).0, 403, "{port}");
            let admin = self.bench.admin();
            let known: Vec<&str> = ["-k"].into_iter().chain(admin.iter().map(String::as_str)).collect();
            let (code, metrics) = curl.ask("/metrics", &known);
            assert!(code == 200 && metrics.to_string().contains(metric), "{port}: {code} {metrics}");
        }
    }

    /// No controller asked for what its role does not allow, and none panicked.
    pub fn say_nothing_bad(&self) {
        for log in ["controllers.log", "scheduler.log", "cloud.log"] {
            let said = std::fs::read_to_string(self.bench.dir.path().join(log)).expect("a log");
            let bad: Vec<&str> = said
                .lines()
                .filter(|line| line.contains("is forbidden: User") || line.contains("panicked"))
                .collect();
            assert!(bad.is_empty(), "{log}: {bad:#?}");
        }
    }
}

/// Metrics of every kind that an autoscaler may ask for: of pods `web-0`, `web-1` and so on, of a Service, and of nothing
/// in the cluster.
fn measured(path: &str) -> Value {
    let now = jiff::Timestamp::now().to_string();
    let path = path.split('?').next().unwrap_or(path);
    let parts: Vec<&str> = path.split('/').skip(2).collect();
    let of_pods =
        |item: &dyn Fn(String) -> Value| (0..9).map(|pod| item(format!("web-{pod}"))).collect::<Vec<_>>();
    match parts[..] {
        ["metrics.k8s.io", version, "namespaces", namespace, "pods"] => {
            let item = |pod| {
                json!({"metadata": {"name": pod, "namespace": namespace}, "timestamp": now, "window": "30s",
                    "containers": [{"name": "c", "usage": {"cpu": "60m", "memory": "60Mi"}}]})
            };
            json!({"kind": "PodMetricsList", "apiVersion": format!("metrics.k8s.io/{version}"), "items": of_pods(&item)})
        }
        ["custom.metrics.k8s.io", version, "namespaces", _, resource, name, metric] => {
            let item = |pod: String| {
                json!({"describedObject": {"kind": "Pod", "name": pod}, "metric": {"name": metric}, "timestamp": now,
                    "value": if resource == "pods" { "10" } else { "45" }})
            };
            let items = if resource == "pods" { of_pods(&item) } else { vec![item(name.to_owned())] };
            json!({"kind": "MetricValueList", "apiVersion": format!("custom.metrics.k8s.io/{version}"), "items": items})
        }
        ["external.metrics.k8s.io", version, "namespaces", _, metric] => {
            json!({"kind": "ExternalMetricValueList", "apiVersion": format!("external.metrics.k8s.io/{version}"),
                "items": [{"metricName": metric, "metricLabels": {}, "timestamp": now, "value": "50"}]})
        }
        [group, version] => {
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"), "resources": []})
        }
        _ => json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []}),
    }
}

impl Programs {
    /// Puts the metrics behind the API server's aggregation.
    pub async fn publish_metrics(&self, client: &Client) {
        let port = https::serve(&self.bench.pki, |path, _| measured(path));
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "metrics", "namespace": "kube-system"},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
        let mut all = vec![("/api/v1/namespaces/kube-system/services".to_owned(), service)];
        for (group, version) in [
            ("metrics.k8s.io", "v1beta1"),
            ("custom.metrics.k8s.io", "v1beta2"),
            ("external.metrics.k8s.io", "v1beta1"),
        ] {
            let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("{version}.{group}")},
                "spec": {"group": group, "version": version, "insecureSkipTLSVerify": true, "groupPriorityMinimum": 100,
                    "versionPriority": 100, "service": {"namespace": "kube-system", "name": "metrics", "port": port}}});
            all.push(("/apis/apiregistration.k8s.io/v1/apiservices".to_owned(), service));
        }
        for (path, object) in all {
            let request = http::Request::post(path).header("content-type", "application/json");
            let request = request.body(object.to_string().into_bytes()).expect("a request");
            client.request_text(request).await.expect("it is made");
        }
    }
}
