//! Our API server, started with the installation's own certificates and asked through its own kubeconfig, takes
//! every object that the installation writes, and refuses what its schemas forbid.

use std::collections::BTreeMap;

use apiserver::config::{KeyPair, RequestHeaderConfig};
use apiserver::{ApiServer, Config};
use client::{Client, Https, HttpsConfig};
use http_body_util::BodyExt as _;
use installer::assets::Target;
use lifecycle::Tasks;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::configs;

/// Files of bootstrap.ign by path.
pub fn bootstrap_files(config: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), config);
    configs::create(dir.path(), Target::IgnitionConfigs { per_node: false });
    let text = std::fs::read(dir.path().join("bootstrap.ign")).unwrap();
    let (config, _) = ignition::parse(&text).unwrap();
    let files = config.storage.files.iter().filter(|file| file.contents.source.is_some());
    files
        .map(|file| {
            (file.path.clone(), ignition::decode_data_url(file.contents.source.as_deref().unwrap()).unwrap())
        })
        .collect()
}

pub async fn start(files: &BTreeMap<String, Vec<u8>>, tasks: &Tasks) -> (Client, u16) {
    let secret = |name: &str| files[&format!("/etc/kubernetes/bootstrap-secrets/{name}")].clone();
    let pair = |name: &str| KeyPair {
        certificate: secret(&format!("{name}.crt")),
        key: secret(&format!("{name}.key")),
    };
    let store = etcd::open(etcd::Config::default(), tasks).unwrap();
    let mut config = Config::new(store, pair("kube-apiserver-service-network-server"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    config.listeners = vec![listener];
    config.named_serving = vec![("localhost".to_owned(), pair("kube-apiserver-localhost-server"))];
    config.client_ca = Some(secret("kube-apiserver-client-ca.crt"));
    config.request_header = Some(RequestHeaderConfig {
        ca: secret("aggregator-ca.crt"),
        allowed_names: vec![pki::table::FRONT_PROXY_NAME.to_owned()],
        ..RequestHeaderConfig::default()
    });
    config.service_accounts.signing_key = Some(secret("bound-service-account-signing-key.key"));
    config.service_accounts.verifying_keys =
        vec![secret("service-account.pub"), secret("bound-service-account-signing-key.pub")];
    config.service_cidrs = vec!["172.30.0.0/16".parse().unwrap()];
    ApiServer::start(config, tasks).await.unwrap();
    (connect(files, "localhost", port), port)
}

/// A kubeconfig of the installation, sent to this test's port.
pub fn kubeconfig(files: &BTreeMap<String, Vec<u8>>, name: &str, port: u16) -> pki::Kubeconfig {
    let text = &files[&format!("/etc/kubernetes/kubeconfigs/{name}.kubeconfig")];
    let mut kubeconfig = pki::Kubeconfig::parse(std::str::from_utf8(text).unwrap()).unwrap();
    kubeconfig.clusters[0].cluster.server = format!("https://localhost:{port}");
    kubeconfig
}

/// A client with an identity of the installation.
pub fn connect(files: &BTreeMap<String, Vec<u8>>, name: &str, port: u16) -> Client {
    let kubeconfig = kubeconfig(files, name, port);
    let config = HttpsConfig::from_kubeconfig(&kubeconfig, None).unwrap();
    Client::new(Https::new(config).unwrap(), "installer-test")
}

pub fn objects(files: &BTreeMap<String, Vec<u8>>) -> Vec<(String, Value)> {
    let mut out = Vec::new();
    for folder in ["/opt/openshift/manifests/", "/opt/openshift/openshift/"] {
        for (path, content) in files.iter().filter(|(path, _)| path.starts_with(folder)) {
            let text = std::str::from_utf8(content).unwrap();
            for document in serde_yaml_ng::Deserializer::from_str(text) {
                out.push((path.clone(), Value::deserialize(document).unwrap()));
            }
        }
    }
    out
}

/// The path to create an object at, from the server's own discovery.
async fn collection(client: &Client, object: &Value) -> Result<String, String> {
    let version = object["apiVersion"].as_str().unwrap();
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let list: Value = client.get_path(&root).await.map_err(|error| error.to_string())?;
    let found = list["resources"].as_array().into_iter().flatten().find(|resource| {
        resource["kind"] == object["kind"] && !resource["name"].as_str().unwrap_or("/").contains('/')
    });
    let resource = found.ok_or_else(|| format!("{version} serves no {}", object["kind"]))?;
    let plural = resource["name"].as_str().unwrap();
    Ok(match object["metadata"]["namespace"].as_str() {
        Some(namespace) if resource["namespaced"] == true => {
            format!("{root}/namespaces/{namespace}/{plural}")
        }
        _ => format!("{root}/{plural}"),
    })
}

/// Creates an object, waiting for its kind to be served; what exists already is fine.
pub async fn create(client: &Client, object: &Value) -> Result<(), String> {
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let path = loop {
        match collection(client, object).await {
            Ok(path) => break path,
            Err(error) if tokio::time::Instant::now() > end => return Err(error),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
        }
    };
    loop {
        match client.post_path::<Value>(&path, object).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_already_exists() => return Ok(()),
            Err(error) if error.is_not_found() && tokio::time::Instant::now() < end => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_object_is_accepted_by_our_api_server() {
    for (name, config) in configs::ALL {
        let files = bootstrap_files(&config());
        let tasks = Tasks::new();
        let (client, _) = start(&files, &tasks).await;
        let mut failures = Vec::new();
        let all = objects(&files);
        let (definitions, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, object)| object["kind"] == "CustomResourceDefinition");
        for (path, definition) in &definitions {
            create(&client, definition).await.unwrap_or_else(|error| panic!("{name}: {path}: {error}"));
        }
        assert!(are_served(&client).await, "{name}: the API server does not serve custom resources");
        for (path, object) in others {
            if let Err(error) = create(&client, &object).await {
                failures.push(format!("{path}: {error}"));
            }
        }
        assert!(failures.is_empty(), "{name}: {}", failures.join("\n"));
        // What bootkube.sh sends to the status subresources.
        for (path, content) in files.iter().filter(|(path, _)| path.starts_with("/opt/openshift/status/")) {
            let file = path.rsplit('/').next().unwrap().trim_end_matches(".json");
            let (resource, object) = file.split_once('_').unwrap();
            let plural = resource.split_once('.').unwrap().0;
            let patch: Value = serde_json::from_slice(content).unwrap();
            let version = patch["apiVersion"].as_str().unwrap();
            let url = match object.split_once('_') {
                Some((namespace, object)) => {
                    format!("/apis/{version}/namespaces/{namespace}/{plural}/{object}/status")
                }
                None => format!("/apis/{version}/{plural}/{object}/status"),
            };
            let (code, answer) = patch_status(&client, &url, &patch).await;
            assert_eq!(code, 200, "{name}: {url}: {answer}");
        }
        let infrastructure: Value =
            client.get_path("/apis/config.openshift.io/v1/infrastructures/cluster").await.unwrap();
        let status = &infrastructure["status"];
        assert!(status["apiServerInternalURI"].as_str().unwrap().starts_with("https://api-int."), "{status}");
        // The schema refuses the name that the examples use.
        let url = "/apis/config.openshift.io/v1/infrastructures/cluster/status";
        let wrong = json!({"status": {"controlPlaneTopology": "SingleNode"}});
        let (code, answer) = patch_status(&client, url, &wrong).await;
        assert_eq!(code, 422, "{name}: {answer}");
        tasks.stop().request();
    }
}

/// Whether definitions make their kinds appear.
pub async fn are_served(client: &Client) -> bool {
    let end = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    let probe = json!({"apiVersion": "config.openshift.io/v1", "kind": "Infrastructure"});
    while tokio::time::Instant::now() < end {
        if collection(client, &probe).await.is_ok() {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    false
}

async fn patch_status(client: &Client, url: &str, patch: &Value) -> (u16, String) {
    let request = http::Request::builder()
        .method("PATCH")
        .uri(url)
        .header("content-type", "application/merge-patch+json")
        .body(serde_json::to_vec(patch).unwrap().into())
        .unwrap();
    let answer = client.raw(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

/// Who a machine is before it has a certificate: it may ask for one, and may not read secrets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bootstrap_identity_may_ask_for_a_certificate_and_no_more() {
    let files = bootstrap_files(&configs::ha());
    let tasks = Tasks::new();
    let (admin, _) = start(&files, &tasks).await;
    for (path, object) in objects(&files).into_iter().filter(|(path, _)| path.contains("_rbac-")) {
        create(&admin, &object).await.unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let review = |user: &str, verb: &str, group: &str, resource: &str| {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": {"verb": verb, "group": group, "resource": resource}},
        })
    };
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let cases = [
        ("system:bootstrapper", "create", "certificates.k8s.io", "certificatesigningrequests", true),
        ("system:bootstrapper", "list", "", "services", true),
        ("system:bootstrapper", "get", "", "secrets", false),
        ("system:bootstrapper", "create", "", "pods", false),
        ("system:kube-proxy", "watch", "discovery.k8s.io", "endpointslices", true),
        ("system:kube-apiserver", "get", "", "nodes/proxy", true),
        ("system:admin", "delete", "", "nodes", true),
    ];
    for (user, verb, group, resource, allowed) in cases {
        let (resource, sub) = resource.split_once('/').unwrap_or((resource, ""));
        let mut object = review(user, verb, group, resource);
        object["spec"]["resourceAttributes"]["subresource"] = json!(sub);
        let end = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
        loop {
            let answer: Value = admin.post_path(path, &object).await.unwrap();
            if (answer["status"]["allowed"] == true) == allowed {
                break;
            }
            assert!(tokio::time::Instant::now() < end, "{user} {verb} {resource}: {answer}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
    tasks.stop().request();
}
