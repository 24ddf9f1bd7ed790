//! The commands as a user types them.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use clap::{Parser, Subcommand};
use installer::cli::{AnalyzeArgs, CliError, CreateArgs, ExplainArgs, GatherArgs, GraphArgs, PkiArgs};

use crate::configs;

#[derive(Parser)]
struct Kelson {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(CreateArgs),
    Graph(GraphArgs),
    Explain(ExplainArgs),
    Pki(PkiArgs),
    Gather(GatherArgs),
    Analyze(AnalyzeArgs),
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn kelson(dir: &Path, line: &str) -> Result<String, CliError> {
    let dir = dir.to_str().unwrap();
    let words = std::iter::once("kelson").chain(line.split(' ')).map(|word| word.replace("DIR", dir));
    let mut out = Vec::new();
    match Kelson::try_parse_from(words).unwrap().command {
        Command::Create(args) => drop(args.run(&mut out)?),
        Command::Graph(args) => args.run(&mut out)?,
        Command::Explain(args) => args.run(&mut out)?,
        Command::Pki(args) => args.run(&mut out)?,
        Command::Gather(args) => block_on(args.run(&mut out))?,
        Command::Analyze(args) => block_on(args.run(&mut out))?,
    }
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn flags_alone_make_a_cluster_from_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    let error = kelson(dir.path(), "create install-config --dir DIR").unwrap_err().to_string();
    assert!(error.contains("give --name"), "{error}");
    let line = "create install-config --dir DIR --name one --base-domain example.com --platform local --compute-replicas 0 --control-plane-replicas 1";
    assert_eq!(kelson(dir.path(), line).unwrap(), "wrote install-config.yaml\n");
    let text = kelson(dir.path(), "create manifests --dir DIR").unwrap();
    assert!(text.starts_with("consumed install-config.yaml\n"), "{text}");
    kelson(dir.path(), "create cluster --dir DIR").unwrap();
    assert!(dir.path().join("nodes/master-0.ign").exists());
    // What whoever makes the machines reads.
    let plan = installer::local::Plan::read(dir.path()).unwrap();
    assert!(plan.infra_id.starts_with("one-") && plan.domain == "one.example.com", "{plan:?}");
    assert!(plan.records().iter().any(|(name, _)| name == "*.apps"));
    assert!(plan.switch_addresses().iter().any(|net| Some(net.addr()) == plan.api().map(|api| api.ip())));
    let files: Vec<String> = plan.nodes.nodes.iter().map(|node| plan.ignition_of(node)).collect();
    assert_eq!(files, ["bootstrap.ign", "nodes/master-0.ign"]);
    installer::local::lead_kubeconfig(dir.path(), &plan.domain, 7443).unwrap();
    let kubeconfig = fs::read_to_string(dir.path().join("auth/kubeconfig")).unwrap();
    assert!(
        kubeconfig.contains("https://127.0.0.1:7443") && kubeconfig.contains("api.one.example.com"),
        "{kubeconfig}"
    );
    // A second run keeps it all.
    kelson(dir.path(), "create cluster --dir DIR").unwrap();
    assert!(kelson(dir.path(), "pki verify --dir DIR").unwrap().contains("are sound"));
}

#[test]
fn rsa_by_choice_stays_the_choice() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::single_node());
    kelson(dir.path(), "create manifests --key-algorithm rsa --dir DIR").unwrap();
    kelson(dir.path(), "create manifests --dir DIR").unwrap();
    let text = fs::read_to_string(dir.path().join("manifests/kube-system-configmap-root-ca.yaml")).unwrap();
    let object: serde_json::Value = serde_yaml_ng::from_str(&text).unwrap();
    let certificate =
        pki::Certificate::from_pem(object["data"]["ca.crt"].as_str().unwrap().as_bytes()).unwrap();
    assert_eq!(certificate.public_key().jwk().unwrap().kty, "RSA");
}

#[test]
fn a_release_description_names_the_images() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::single_node());
    let mut release = installer::release::Release::built_in();
    release.version = "4.18.3".to_owned();
    release.images.insert("etcd".to_owned(), "registry.example.com/etcd@sha256:00".to_owned());
    fs::write(dir.path().join("release.yaml"), serde_yaml_ng::to_string(&release).unwrap()).unwrap();
    kelson(dir.path(), "create manifests --release DIR/release.yaml --dir DIR").unwrap();
    let pod = fs::read_to_string(dir.path().join("bootstrap-manifests/etcd-pod.yaml")).unwrap();
    assert!(pod.contains("image: registry.example.com/etcd@sha256:00"));
    let version = fs::read_to_string(dir.path().join("manifests/cvo-overrides.yaml")).unwrap();
    assert!(version.contains("channel: stable-4.18"));
    release.images.remove("etcd");
    fs::write(dir.path().join("release.yaml"), serde_yaml_ng::to_string(&release).unwrap()).unwrap();
    let error = kelson(dir.path(), "create manifests --release DIR/release.yaml --dir DIR").unwrap_err();
    assert!(error.to_string().contains("no image for etcd"), "{error}");
}

#[test]
fn the_graph_has_every_asset_and_only_known_parents() {
    let text = kelson(Path::new("."), "graph").unwrap();
    assert!(text.starts_with("digraph assets {") && text.ends_with("}\n"));
    assert!(text.contains("\"install-config\" -> \"nodes\";"));
    assert!(text.contains("\"tls/root-ca\" -> \"tls/machine-config-server\";"));
    let graph = installer::assets::graph(Default::default());
    let mut known = Vec::new();
    for asset in graph.assets() {
        for parent in &asset.parents {
            assert!(known.contains(parent), "{} is made from {parent}, which stands after it", asset.name);
        }
        known.push(asset.name.clone());
    }
}

#[test]
fn verify_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    assert!(kelson(dir.path(), "pki verify --dir DIR").is_err());
    configs::write(dir.path(), &configs::ha());
    kelson(dir.path(), "create ignition-configs --dir DIR").unwrap();
    assert!(
        kelson(dir.path(), "pki inspect --dir DIR").unwrap().contains("O=system:masters, CN=system:admin")
    );
    let json = kelson(dir.path(), "pki inspect -o json --dir DIR").unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), pki::table::INSTALL.len());
    // Someone swaps two certificates in the state.
    let path = dir.path().join(".kelson_install_state.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut state: serde_json::Value = serde_json::from_str(&text).unwrap();
    let other = state["assets"]["tls/kube-scheduler"][0]["text"].clone();
    state["assets"]["tls/admin"][0]["text"] = other;
    fs::write(&path, state.to_string()).unwrap();
    let error = kelson(dir.path(), "pki verify --dir DIR").unwrap_err().to_string();
    assert!(error.contains("admin: its private key belongs to another certificate"), "{error}");
    assert!(error.contains("admin: it is not signed by admin-kubeconfig-signer"), "{error}");
}

#[test]
fn a_bundle_tells_much_and_no_secret() {
    let dir = tempfile::tempdir().unwrap();
    configs::write(dir.path(), &configs::baremetal());
    kelson(dir.path(), "create manifests --dir DIR").unwrap();
    fs::write(
        dir.path().join("openshift/mine.yaml"),
        "apiVersion: v1\nkind: Secret\nmetadata: {name: mine, namespace: default}\nstringData: {a: my-own-secret}\n",
    )
    .unwrap();
    kelson(dir.path(), "create ignition-configs --per-node --dir DIR").unwrap();
    fs::write(dir.path().join("install.log"), "a line of a log\n").unwrap();
    let password = fs::read_to_string(dir.path().join("auth/kubeadmin-password")).unwrap();
    // A machine that could not read its ignition file.
    let machine = dir.path().join("local/machines/master-0");
    fs::create_dir_all(machine.join("shared")).unwrap();
    fs::write(machine.join("state.json"), r#"{"phase":"running","boots":1}"#).unwrap();
    fs::write(machine.join("shared/status.json"), r#"{"phase":"ignition","detail":"cannot fetch it"}"#)
        .unwrap();
    let text = kelson(dir.path(), "gather --dir DIR --output DIR/bundle.tar.gz").unwrap();
    assert!(text.contains("secrets were left out"), "{text}");
    let file = fs::File::open(dir.path().join("bundle.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut names = Vec::new();
    let mut all = String::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        names.push(entry.path().unwrap().to_string_lossy().into_owned());
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        all.push_str(&String::from_utf8(content).unwrap());
    }
    for name in [
        "install-config.yaml",
        "directory/install.log",
        "directory/haproxy.cfg",
        "state/tls/root-ca.crt",
        "withheld.txt",
        "control-plane/master-0/status.json",
    ] {
        assert!(names.contains(&format!("log-bundle/{name}")), "{name} in {names:?}");
    }
    for secret in
        [password.as_str(), "bmc-secret", "dXNlcjpwYXNz", "PRIVATE KEY", "my-own-secret", "client-key-data"]
    {
        assert!(!all.contains(secret), "{secret}");
    }
    let wanted = "first: master-0: it does not get past its ignition file: cannot fetch it\n";
    for line in ["analyze --dir DIR", "analyze --file DIR/bundle.tar.gz"] {
        let text = kelson(dir.path(), line).unwrap();
        assert!(text.starts_with(wanted), "{line}: {text}");
    }
}

#[test]
fn a_cluster_on_this_host_needs_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let error = kelson(dir.path(), "create cluster --dir DIR").unwrap_err().to_string();
    assert!(error.contains("give --name"), "{error}");
    let line = "create cluster --dir DIR --single-node -o json";
    assert_eq!(kelson(dir.path(), line).unwrap(), "", "what follows is for a program");
    let plan = installer::local::Plan::read(dir.path()).unwrap();
    assert_eq!(plan.domain, "single-node.kelson.local");
    assert_eq!(plan.nodes.nodes.len(), 2, "a bootstrap machine and a master");
    // The same command goes on; another one is refused.
    kelson(dir.path(), line).unwrap();
    let error = kelson(dir.path(), "create cluster --dir DIR --name other").unwrap_err().to_string();
    assert!(error.contains("--name does not fit"), "{error}");
}
