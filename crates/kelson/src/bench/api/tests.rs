//! The whole benchmark, in small, against a server in this process.

use std::net::TcpListener;

use apiserver::config::KeyPair;
use apiserver::{ApiServer, Config};
use clap::Parser;
use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: ApiBench,
}

#[tokio::test(flavor = "multi_thread")]
async fn every_scenario_runs_without_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let spec = ClusterSpec {
        node_name: "local".to_owned(),
        node_ips: vec!["127.0.0.1".parse().unwrap()],
        service_ips: vec!["10.0.0.1".parse().unwrap()],
        api_sans: vec!["127.0.0.1".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm: Algorithm::EcdsaP256,
    };
    let pki = ClusterPki::ensure(&dir.path().join("pki"), &spec).unwrap();
    let pair = |name: &str| {
        let pair = pki.pair(name).unwrap();
        KeyPair { certificate: pair.certificate_pem().into_bytes(), key: pair.key_pem().into_bytes() }
    };
    let tasks = Tasks::new();
    let mut config =
        Config::new(etcd::open(etcd::Config::default(), &tasks).unwrap(), pair(names::APISERVER));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    config.listeners.push(listener);
    config.client_ca = Some(pair(names::CLIENT_CA).certificate);
    config.service_accounts.signing_key = Some(pki.service_account().to_pem().into_bytes());
    ApiServer::start(config, &tasks).await.unwrap();
    let file = dir.path().join("kubeconfig");
    pki.kubeconfig(names::ADMIN, "local", &format!("https://{address}")).unwrap().write(&file).unwrap();

    let file = file.to_str().unwrap();
    let line = [
        "bench",
        "--kubeconfig",
        &format!("ours={file}"),
        "--quick",
        "--clients=4",
        "--connections=2",
        "-ojson",
    ];
    let mut out = Vec::new();
    Line::parse_from(line).bench.run(Stop::new(), &mut out).await.unwrap();
    let figures: Vec<serde_json::Value> = serde_json::from_slice(&out).unwrap();
    assert_eq!(figures.len(), 14, "{figures:#?}");
    for figure in &figures {
        assert_eq!(figure["errors"], 0, "{figure}");
        assert!(figure["count"].as_u64().unwrap() > 0, "{figure}");
        assert_eq!(figure["server"], "ours");
        assert!(figure["memoryBytes"].as_u64().unwrap() > 0, "{figure}");
        if figure["scenario"].as_str().unwrap().starts_with("watch") {
            let remark = figure["remark"].as_str().unwrap();
            assert!(remark.ends_with("lost 0, duplicate 0, out of order 0, cut 0"), "{figure}");
        }
    }
    let config = HttpsConfig::from_kubeconfig(&Kubeconfig::load(file.as_ref()).unwrap(), None).unwrap();
    let load = Load::connect(&config, 1, &tasks).await.unwrap();
    let namespaces = load.caller(0).get("/api/v1/namespaces").await.unwrap().expect().unwrap();
    assert!(!String::from_utf8_lossy(&namespaces).contains("bench-"), "the namespace is gone");
    drop(load);
    tasks.drain(Duration::from_secs(10)).await;
}
