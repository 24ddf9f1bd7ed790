//! What the bootstrap machine's units run, on our API server.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::{Parser, Subcommand};
use installer::bootstrap::BootstrapArgs;
use installer::cli::WaitForArgs;
use lifecycle::Tasks;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api_server;
use crate::configs;

#[derive(Parser)]
struct Kelson {
    #[command(subcommand)]
    command: Waiting,
}

#[derive(Subcommand)]
enum Waiting {
    WaitFor(WaitForArgs),
    Bootstrap(Box<BootstrapArgs>),
}

/// Runs a command of the bootstrap machine's units in the background.
fn run(name: &str, dir: &Path, tasks: &Tasks) {
    let (config, assets) = (dir.join("auth/kubeconfig"), dir.to_owned());
    let (config, assets) = (config.to_str().unwrap(), assets.to_str().unwrap());
    let words = ["kelson", "bootstrap", name, "--kubeconfig", config, "--asset-dir", assets];
    let mut words: Vec<&str> = words.to_vec();
    if name == "progress" {
        words.extend(["--masters-to-complete", "1"]);
    }
    let Waiting::Bootstrap(args) = Kelson::try_parse_from(words).unwrap().command else { unreachable!() };
    let stop = tasks.stop();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        if let Some(outcome) = runtime.block_on(stop.or(args.run())) {
            outcome.unwrap();
        }
    });
}

async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let end = Instant::now() + Duration::from_secs(90);
    while !check().await {
        assert!(Instant::now() < end, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_join_and_the_end_of_bootstrapping_is_seen() {
    let files = api_server::bootstrap_files(&configs::single_node());
    let tasks = Tasks::new();
    let (admin, port) = api_server::start(&files, &tasks).await;
    for (_, object) in api_server::objects(&files).into_iter().filter(|(path, _)| path.contains("_rbac-")) {
        api_server::create(&admin, &object).await.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("auth")).unwrap();
    api_server::kubeconfig(&files, "localhost", port).write(&dir.path().join("auth/kubeconfig")).unwrap();

    // A machine asks for its certificate with the identity from its ignition file.
    let machine = api_server::connect(&files, "kubelet-bootstrap", port);
    let key = pki::PrivateKey::generate(pki::Algorithm::EcdsaP256).unwrap();
    let subject = pki::Subject::new("system:node:master-0", &["system:nodes"]);
    use base64::Engine as _;
    let request =
        base64::engine::general_purpose::STANDARD.encode(pki::Csr::create(&key, &subject, &[]).unwrap());
    let csr = |name: &str, signer: &str| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"request": request, "signerName": signer, "usages": ["digital signature", "client auth"]},
        })
    };
    const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    until("the machine may ask", || async {
        let asked = machine
            .post_path::<Value>(PATH, &csr("node", "kubernetes.io/kube-apiserver-client-kubelet"))
            .await;
        asked.is_ok()
    })
    .await;
    machine.post_path::<Value>(PATH, &csr("other", "example.com/other")).await.unwrap();
    let approver = Tasks::new();
    run("approve-csr", dir.path(), &approver);
    let conditions = |name: &'static str| {
        let admin = admin.clone();
        async move {
            let object: Value = admin.get_path(&format!("{PATH}/{name}")).await.unwrap();
            object["status"]["conditions"].as_array().map_or(0, Vec::len)
        }
    };
    until("the request is approved", || async { conditions("node").await == 1 }).await;
    approver.drain(Duration::from_secs(5)).await;
    assert_eq!(conditions("other").await, 0, "only what kubelets ask for is approved");

    // The machine joins, bootkube ends, and whoever waits hears of it.
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "master-0", "labels": {"node-role.kubernetes.io/master": ""}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    admin.post_path::<Value>("/api/v1/nodes", &node).await.unwrap();
    fs::write(dir.path().join(".bootkube.done"), "").unwrap();
    run("progress", dir.path(), &tasks);
    let words = ["kelson", "wait-for", "bootstrap-complete", "--dir", dir.path().to_str().unwrap()];
    let Waiting::WaitFor(args) = Kelson::try_parse_from(words).unwrap().command else { unreachable!() };
    let mut out = Vec::new();
    tokio::time::timeout(Duration::from_secs(90), args.run(&mut out)).await.unwrap().unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("the bootstrap machine is no longer needed"), "{text}");
    tasks.stop().request();
}
