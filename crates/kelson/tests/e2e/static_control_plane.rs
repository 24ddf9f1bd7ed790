//! The first minutes of an installation, from outside: a kubelet alone turns a directory of static pods, as the installer
//! writes it, into a control plane; a second kubelet joins it with nothing but a bootstrap kubeconfig.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::harness::{eventually, in_own_network, leftovers, text};

const BOOTSTRAP: [u8; 4] = [192, 168, 126, 100];
const MASTER: [u8; 4] = [192, 168, 126, 101];

const INSTALL_CONFIG: &str = r#"
apiVersion: v1
baseDomain: example.com
metadata: {name: ocp4}
networking:
  networkType: OVNKubernetes
  clusterNetwork: [{cidr: 10.128.0.0/14, hostPrefix: 23}]
  serviceNetwork: [172.30.0.0/16]
  machineNetwork: [{cidr: 192.168.126.0/24}]
platform: {none: {}}
controlPlane: {replicas: 3}
compute: [{replicas: 2}]
pullSecret: '{"auths":{"example.com":{"auth":"YTpi"}}}'
"#;

fn kelson(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
    command.args(arguments);
    command
}

/// A machine's files, with a kubelet that runs on them.
struct Machine {
    root: PathBuf,
    name: &'static str,
    process: Option<Child>,
    flags: Vec<String>,
}

impl Machine {
    fn new(root: PathBuf, name: &'static str, address: [u8; 4], number: u16, more: &[String]) -> Self {
        std::fs::create_dir_all(&root).unwrap();
        let path = |name: &str| root.join(name).display().to_string();
        // Two kubelets of one host differ in these.
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "podLogsDir": path("logs"), "failSwapOn": false, "cgroupRoot": format!("/kelson-e2e-{}-{name}", std::process::id()),
            "port": 10250 + number, "healthzPort": 10348 + number,
        });
        std::fs::write(root.join("kubelet.yaml"), config.to_string()).unwrap();
        let mut flags = vec![
            format!("--config={}", path("kubelet.yaml")),
            format!("--root-dir={}", path("kubelet")),
            format!("--cert-dir={}", path("kubelet/pki")),
            format!("--hostname-override={name}"),
            format!("--node-ip={}", IpAddr::from(address)),
        ];
        flags.extend(more.iter().cloned());
        Self { root, name, process: None, flags }
    }

    fn start(&mut self) {
        let log =
            std::fs::File::options().create(true).append(true).open(self.root.join("kubelet.log")).unwrap();
        let child = kelson(&["kubelet"])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.process = Some(child.unwrap());
    }

    fn kill(&mut self) {
        let mut child = self.process.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn log(&self) -> String {
        let mut text = std::fs::read_to_string(self.root.join("kubelet.log")).unwrap_or_default();
        for pod in std::fs::read_dir(self.root.join("logs")).into_iter().flatten().flatten() {
            for container in std::fs::read_dir(pod.path()).into_iter().flatten().flatten() {
                for log in std::fs::read_dir(container.path()).into_iter().flatten().flatten() {
                    let lines = std::fs::read_to_string(log.path()).unwrap_or_default();
                    let lines: Vec<&str> = lines.lines().collect();
                    let end = lines[lines.len().saturating_sub(5)..].join("\n");
                    text.push_str(&format!("\n--- {}\n{end}", log.path().display()));
                }
            }
        }
        format!("--- {}\n{text}", self.name)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if self.process.is_some() {
            self.kill();
        }
        // The pods outlive the kubelet. A kubelet of an empty directory ends them all, as upstream's does.
        let empty = self.root.join("empty");
        let _ = std::fs::create_dir_all(&empty);
        self.flags.retain(|flag| !flag.contains("kubeconfig=") && !flag.starts_with("--pod-manifest-path"));
        self.flags.push(format!("--pod-manifest-path={}", empty.display()));
        self.start();
        let runtime = self.root.join("kubelet/runtime");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let is_empty = || std::fs::read_dir(&runtime).map_or(true, |mut entries| entries.next().is_none());
        while !is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        self.kill();
        if !std::thread::panicking() {
            assert!(is_empty(), "pods are left: {}", self.log());
        }
    }
}

/// The files of a machine, from its ignition file; paths on the machine are below `root`.
fn unpack(ignition: &Path, root: &Path) {
    let config: Value = serde_json::from_slice(&std::fs::read(ignition).unwrap()).unwrap();
    for file in config["storage"]["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let source = file["contents"]["source"].as_str().unwrap_or("data:,");
        let (head, payload) = source.split_once(',').unwrap();
        assert!(
            file["contents"]["compression"].as_str().unwrap_or_default().is_empty(),
            "{path} is compressed"
        );
        let mut content = if head.ends_with(";base64") {
            base64::engine::general_purpose::STANDARD.decode(payload).unwrap()
        } else {
            percent_decoded(payload)
        };
        // bootkube gives these to the kubelet.
        let path = &path.replace("/opt/openshift/bootstrap-manifests/", "/etc/kubernetes/manifests/");
        if path.starts_with("/etc/kubernetes/manifests/") {
            content = moved(&content, root);
        }
        if path.ends_with(".kubeconfig") {
            // There is no DNS here; the server's certificate has this name too.
            let text = String::from_utf8(content).unwrap();
            content = text
                .replace("https://api-int.ocp4.example.com:6443", "https://localhost:6443")
                .replace("https://api.ocp4.example.com:6443", "https://localhost:6443")
                .into_bytes();
        }
        let place = root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, content).unwrap();
    }
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                out.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            other => out.push(other),
        }
    }
    out
}

/// The manifest with its host paths below `root`; nothing else of it is touched.
fn moved(manifest: &[u8], root: &Path) -> Vec<u8> {
    let mut pod: Value = serde_yaml_ng::from_slice(manifest).unwrap();
    for volume in pod["spec"]["volumes"].as_array_mut().unwrap() {
        let path = volume["hostPath"]["path"].as_str().unwrap().to_owned();
        if !path.starts_with("/etc/ssl") {
            volume["hostPath"]["path"] = json!(root.join(path.trim_start_matches('/')));
        }
    }
    serde_json::to_vec(&pod).unwrap()
}

async fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

async fn readyz(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.map(drop).map_err(|error| error.to_string())
}

/// Applies the manifests of these names, as the machine's own scripts would.
async fn apply(client: &Client, directory: &Path, prefix: &str) {
    let discovery = kube::Discovery::new(client.clone()).run().await.unwrap();
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let object: DynamicObject = serde::Deserialize::deserialize(document).unwrap();
            let types = object.types.clone().unwrap();
            let kind = kube::core::GroupVersionKind::try_from(&types).unwrap();
            let (resource, _) = discovery.resolve_gvk(&kind).unwrap();
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            let how = PatchParams::apply("e2e").force();
            api.patch(&object.name_any(), &how, &Patch::Apply(&object)).await.unwrap();
        }
    }
}

async fn approve(requests: &Api<CertificateSigningRequest>, name: &str) {
    let mut request = requests.get(name).await.unwrap();
    let condition =
        json!({"type": "Approved", "status": "True", "reason": "Test", "message": "known machine"});
    request.status.get_or_insert_default().conditions =
        Some(vec![serde_json::from_value(condition).unwrap()]);
    requests.replace_subresource("approval", name, &PostParams::default(), &request).await.unwrap();
}

/// The request of this signer that nobody has decided.
async fn pending(requests: &Api<CertificateSigningRequest>, signer: &str) -> String {
    eventually(signer, || async {
        let all = requests.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let undecided = |one: &&CertificateSigningRequest| {
            one.spec.signer_name == signer
                && one
                    .status
                    .as_ref()
                    .is_none_or(|status| status.conditions.as_ref().is_none_or(Vec::is_empty))
        };
        all.items.iter().find(undecided).map(ResourceExt::name_any).ok_or_else(|| "no request".to_owned())
    })
    .await
}

/// Every process of the pods, with its start: what must not change while a kubelet dies.
fn control_plane(root: &Path) -> Vec<String> {
    let logs = std::fs::read_dir(root.join("logs")).into_iter().flatten().flatten();
    let mut all: Vec<String> = logs
        .flat_map(|pod| std::fs::read_dir(pod.path()).into_iter().flatten().flatten())
        .flat_map(|container| std::fs::read_dir(container.path()).into_iter().flatten().flatten())
        .map(|log| log.path().display().to_string())
        .collect();
    all.sort();
    all
}

#[test]
fn static_pods_become_a_control_plane_and_a_machine_joins_it() {
    in_own_network(|| async {
        let routing = netlink::route::Routing::open().unwrap();
        let loopback = routing.link("lo").unwrap().unwrap().index;
        for address in [BOOTSTRAP, MASTER] {
            let net = ipnet::IpNet::new(IpAddr::from(Ipv4Addr::from(address)), 32).unwrap();
            routing.add_address(loopback, net).unwrap();
        }
        let dir = tempfile::Builder::new().prefix("kelson-e2e-").tempdir().unwrap();
        let assets = dir.path().join("assets");
        std::fs::create_dir_all(&assets).unwrap();
        std::fs::write(assets.join("install-config.yaml"), INSTALL_CONFIG).unwrap();
        let made = kelson(&["create", "ignition-configs", "--dir"]).arg(&assets).output().unwrap();
        assert!(made.status.success(), "{}", text(&made));
        let root = dir.path().join("bootstrap");
        unpack(&assets.join("bootstrap.ign"), &root);
        // Of the five pods this one waits for an image that only a release has.
        std::fs::remove_file(root.join("etc/kubernetes/manifests/cluster-version-operator-pod.yaml"))
            .unwrap();

        let manifests = format!("--pod-manifest-path={}", root.join("etc/kubernetes/manifests").display());
        let mut bootstrap = Machine::new(root.clone(), "bootstrap", BOOTSTRAP, 1, &[manifests]);
        bootstrap.start();
        let kubeconfigs = root.join("etc/kubernetes/kubeconfigs");
        let admin = client(&kubeconfigs.join("localhost.kubeconfig")).await;
        eventually("the API server is ready", || readyz(&admin)).await;
        let leases: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(admin.clone(), "kube-system");
        for name in ["kube-controller-manager", "kube-scheduler"] {
            eventually(name, || async {
                leases.get(name).await.map(drop).map_err(|error| error.to_string())
            })
            .await;
        }

        // A kubelet that dies takes nothing with it, and the next one adopts all of it.
        let before = control_plane(&root);
        assert_eq!(before.len(), 4, "one container of each: {before:?}");
        bootstrap.kill();
        readyz(&admin).await.unwrap();
        bootstrap.start();
        let health = "http://127.0.0.1:10349/healthz";
        eventually("the kubelet is healthy", || async { get(health).await }).await;
        readyz(&admin).await.unwrap();
        assert_eq!(control_plane(&root), before, "nothing was started again");

        apply(&admin, &root.join("opt/openshift/manifests"), "01_").await;
        apply(&admin, &root.join("opt/openshift/manifests"), "02_").await;

        // A machine that only has the bootstrap identity.
        let place = dir.path().join("master-0");
        let kubeconfig = place.join("kubelet/kubeconfig");
        let mut master = Machine::new(
            place.clone(),
            "master-0",
            MASTER,
            2,
            &[
                format!(
                    "--bootstrap-kubeconfig={}",
                    kubeconfigs.join("kubelet-bootstrap.kubeconfig").display()
                ),
                format!("--kubeconfig={}", kubeconfig.display()),
                format!(
                    "--client-ca-file={}",
                    root.join("etc/kubernetes/bootstrap-secrets/kubelet-client-ca.crt").display()
                ),
                "--rotate-certificates".to_owned(),
                "--rotate-server-certificates".to_owned(),
                "--node-labels=node-role.kubernetes.io/master=,example.com/rack=7".to_owned(),
                "--register-with-taints=node-role.kubernetes.io/master=:NoSchedule".to_owned(),
            ],
        );
        master.start();
        let requests: Api<CertificateSigningRequest> = Api::all(admin.clone());
        let nodes: Api<Node> = Api::all(admin.clone());
        let first = pending(&requests, "kubernetes.io/kube-apiserver-client-kubelet").await;
        assert!(first.starts_with("node-csr-"), "{first}");
        // Killed while it waits, it goes on with the same request.
        master.kill();
        master.start();
        assert!(nodes.get_opt("master-0").await.unwrap().is_none(), "unapproved there is no node");
        approve(&requests, &first).await;
        let node = eventually("the node registers", || async {
            nodes
                .get_opt("master-0")
                .await
                .map_err(|error| error.to_string())?
                .ok_or_else(|| "no node".to_owned())
        })
        .await;
        assert_eq!(
            requests
                .list(&ListParams::default())
                .await
                .unwrap()
                .items
                .iter()
                .filter(|one| one.name_any().starts_with("node-csr-"))
                .count(),
            1
        );
        assert!(node.labels().contains_key("node-role.kubernetes.io/master"), "{:?}", node.labels());
        assert_eq!(node.spec.unwrap().taints.unwrap()[0].key, "node-role.kubernetes.io/master");
        let target = std::fs::read_link(place.join("kubelet/pki/kubelet-client-current.pem")).unwrap();
        assert!(target.to_string_lossy().starts_with("kubelet-client-"), "{target:?}");
        assert!(kubeconfig.exists());

        // Until its serving certificate is approved nobody can speak to it.
        let second = pending(&requests, "kubernetes.io/kubelet-serving").await;
        let asked = requests.get(&second).await.unwrap();
        assert_eq!(asked.spec.username.as_deref(), Some("system:node:master-0"));
        let logs = "/api/v1/nodes/master-0/proxy/healthz";
        let ask = || async {
            let request = http::Request::get(logs).body(Vec::new()).unwrap();
            admin.request_text(request).await.map_err(|error| error.to_string())
        };
        // The client itself asks again and again when it hears that nobody can be reached.
        let early = tokio::time::timeout(std::time::Duration::from_secs(3), ask()).await;
        assert!(!matches!(early, Ok(Ok(_))), "no handshake without a certificate: {early:?}");
        approve(&requests, &second).await;
        let said = eventually("the API server reaches the node", ask).await;
        assert_eq!(said, "ok");
        assert!(place.join("kubelet/pki/kubelet-server-current.pem").exists());

        // As upstream: not ready for want of a pod network, and for nothing else.
        let why = eventually("the node says why it is not ready", || async {
            let node = nodes.get("master-0").await.map_err(|error| error.to_string())?;
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.into_iter().find(|one| one.type_ == "Ready");
            ready.and_then(|one| one.message).ok_or_else(|| "no condition".to_owned())
        })
        .await;
        assert!(why.contains("NetworkReady=false reason:NetworkPluginNotReady"), "{why}");

        drop(master);
        drop(bootstrap);
        let left = leftovers(dir.path());
        assert!(left.is_empty(), "{left:?}");
    });
}

/// Plain HTTP, without a client for it.
async fn get(url: &str) -> Result<(), String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = tokio::net::TcpStream::connect(host).await.map_err(|error| error.to_string())?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(|error| error.to_string())?;
    if answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok") { Ok(()) } else { Err(answer) }
}
