//! What requests cost without a network: `cost SCENARIO[,SCENARIO] [TURNS]` drives an API server over a store in memory, in
//! process and on one thread, and prints the CPU time per request. Meant for `valgrind --tool=callgrind --toggle-collect='*measured*'`,
//! whose counts do not depend on what else the machine does. `all` runs every scenario.

use std::sync::Arc;

use apiserver::body::Body;
use apiserver::config::KeyPair;
use apiserver::user::UserInfo;
use apiserver::{ApiServer, Config};
use http::{Method, Request, StatusCode};
use lifecycle::Tasks;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use serde_json::{Value, json};

const SCENARIOS: [&str; 10] = [
    "configmap-create",
    "configmap-get",
    "configmap-put",
    "configmap-patch",
    "configmap-apply",
    "pod-create",
    "pod-get",
    "pod-put",
    "pod-patch",
    "pod-apply",
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().ok_or("usage: cost SCENARIO[,SCENARIO]|all [TURNS]")?;
    let turns: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let dir = std::env::temp_dir().join(format!("kelson-cost-{}", std::process::id()));
    let spec = ClusterSpec {
        node_name: "local".to_owned(),
        node_ips: vec!["127.0.0.1".parse()?],
        service_ips: vec!["172.30.0.1".parse()?],
        api_sans: vec!["localhost".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm: Algorithm::EcdsaP256,
    };
    let pki = ClusterPki::ensure(&dir, &spec)?;
    let pair = pki.pair(names::APISERVER)?;
    let tasks = Tasks::new();
    let store = etcd::open(etcd::Config::default(), &tasks)?;
    let key = KeyPair { certificate: pair.certificate_pem().into_bytes(), key: pair.key_pem().into_bytes() };
    let mut config = Config::new(store, key);
    config.service_accounts.signing_key = Some(pki.service_account().to_pem().into_bytes());
    config.service_cidrs = vec!["172.30.0.0/16".parse()?];
    let server = ApiServer::start(config, &tasks).await?;
    std::fs::remove_dir_all(&dir)?;
    let load = Load { server };
    load.ask(
        Method::POST,
        "/api/v1/namespaces/default/serviceaccounts",
        "",
        json!({"metadata": {"name": "default"}}),
    )
    .await;
    for scenario in
        SCENARIOS.iter().filter(|name| wanted == "all" || wanted.split(',').any(|one| one == **name))
    {
        load.run(scenario, turns.min(50)).await?; // warm
        let began = cpu_us();
        load.run(scenario, turns).await?;
        println!("{scenario}: {:.1} µs", (cpu_us() - began) as f64 / turns as f64);
    }
    Ok(())
}

struct Load {
    server: Arc<ApiServer>,
}

impl Load {
    async fn run(&self, scenario: &str, turns: usize) -> Result<(), Box<dyn std::error::Error>> {
        let (kind, verb) = scenario.split_once('-').ok_or("a scenario is KIND-VERB")?;
        let collection = format!("/api/v1/namespaces/default/{kind}s");
        let one = format!("{collection}/x?fieldManager=cost");
        let object = |name: &str| if kind == "pod" { pod(name) } else { config_map(name) };
        if verb != "create" {
            self.ask(Method::DELETE, &format!("{one}&gracePeriodSeconds=0"), "", Value::Null).await;
            self.ask(Method::POST, &format!("{collection}?fieldManager=cost"), "", object("x")).await;
        }
        for turn in 0..turns {
            let count = format!("{turn:012}");
            let answer = match verb {
                "create" => {
                    let name = format!("c-{}-{turn}", cpu_us());
                    self.measured(Method::POST, &collection, "", object(&name).to_string()).await
                }
                "get" => self.measured(Method::GET, &one, "", String::new()).await,
                "put" => {
                    let text = self.ask(Method::GET, &one, "", Value::Null).await.1;
                    let mut new: Value = serde_json::from_slice(&text)?;
                    *counted(&mut new, kind) = json!(count);
                    self.measured(Method::PUT, &one, "", new.to_string()).await
                }
                "patch" if kind == "pod" => {
                    let image = "registry.example.com/team/service:1.2.3";
                    let patch = json!({
                        "metadata": {"annotations": {"count": count}},
                        "spec": {"containers": [{"name": "main", "image": image}]},
                    });
                    let form = "application/strategic-merge-patch+json";
                    self.measured(Method::PATCH, &one, form, patch.to_string()).await
                }
                "patch" => {
                    let patch = json!({"data": {"count": count}});
                    self.measured(Method::PATCH, &one, "application/merge-patch+json", patch.to_string())
                        .await
                }
                _ => {
                    let mut new = object("x");
                    *counted(&mut new, kind) = json!(count);
                    let url = format!("{one}&force=true");
                    self.measured(Method::PATCH, &url, "application/apply-patch+yaml", new.to_string()).await
                }
            };
            if !answer.0.is_success() {
                return Err(format!("{scenario}: {}", String::from_utf8_lossy(&answer.1)).into());
            }
        }
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str, form: &str, body: Value) -> (StatusCode, bytes::Bytes) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.measured(method, path, form, body).await
    }

    async fn measured(
        &self,
        method: Method,
        path: &str,
        form: &str,
        body: String,
    ) -> (StatusCode, bytes::Bytes) {
        let form = if form.is_empty() { "application/json" } else { form };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, form)
            .body(Body::from(body))
            .unwrap_or_default();
        let admin = UserInfo {
            name: "admin".to_owned(),
            groups: vec!["system:masters".to_owned()],
            ..UserInfo::default()
        };
        let response = self.server.handle(admin, request).await;
        (response.status(), response.into_body().read(64 << 20).await.unwrap_or_default())
    }
}

/// The value that every change changes.
fn counted<'a>(object: &'a mut Value, kind: &str) -> &'a mut Value {
    match kind {
        "pod" => &mut object["metadata"]["annotations"]["count"],
        _ => &mut object["data"]["count"],
    }
}

/// User and system time of this process.
fn cpu_us() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) / 1000
}

/// The objects of `kelson bench api`.
fn config_map(name: &str) -> Value {
    json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"count": "000000000000", "text": "x".repeat(880)},
    })
}

fn pod(name: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/name": "bench", "app.kubernetes.io/component": "load"},
            "annotations": {"count": "000000000000"},
        },
        "spec": {
            "schedulerName": "kelson-bench",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": "registry.example.com/team/service:1.2.3",
                "args": ["--config=/etc/service/config.yaml"],
                "env": [{"name": "LEVEL", "value": "info"}],
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
                "volumeMounts": [{"name": "config", "mountPath": "/etc/service"}],
            }],
            "volumes": [{"name": "config", "configMap": {"name": "service"}}],
        },
    })
}
