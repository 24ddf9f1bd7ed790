//! `kelson create cluster` with `platform: {local: {}}`, from outside: machines boot, the bootstrap machine carries a control
//! plane, masters register, and `destroy cluster` leaves nothing of it on the host.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, ResourceExt};
use serde_json::Value;

use crate::harness::{eventually, in_own_network, leftovers, text};

fn install_config(name: &str, masters: usize, workers: usize) -> String {
    format!(
        "apiVersion: v1\nbaseDomain: example.com\nmetadata: {{name: {name}}}\n\
         networking:\n  machineNetwork: [{{cidr: 192.168.126.0/24}}]\n\
         platform: {{local: {{}}}}\ncontrolPlane: {{replicas: {masters}}}\ncompute: [{{replicas: {workers}}}]\n\
         pullSecret: '{{\"auths\":{{}}}}'\n"
    )
}

/// An installation in a directory of its own, destroyed at the end of the test however that ends.
struct Installation {
    dir: tempfile::TempDir,
    name: &'static str,
    installer: Option<Child>,
}

impl Installation {
    fn new(name: &'static str, masters: usize) -> Self {
        Self::with_workers(name, masters, 0)
    }

    fn with_workers(name: &'static str, masters: usize, workers: usize) -> Self {
        let dir = tempfile::Builder::new().prefix("kelson-e2e-").tempdir().unwrap();
        std::fs::write(dir.path().join("install-config.yaml"), install_config(name, masters, workers))
            .unwrap();
        Self { dir, name, installer: None }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn kelson(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.args(arguments).arg("--dir").arg(self.path());
        command
    }

    fn output(&self) -> PathBuf {
        self.path().join("create.log")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.output()).unwrap_or_default()
    }

    /// Starts `create cluster`, or goes on with it.
    fn create(&mut self) {
        let log = || std::fs::File::options().create(true).append(true).open(self.output()).unwrap();
        let mut command = self.kelson(&["create", "cluster"]);
        command.stdin(Stdio::null()).stdout(log()).stderr(log());
        self.installer = Some(command.spawn().unwrap());
    }

    fn kill_installer(&mut self) {
        if let Some(mut child) = self.installer.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Waits until the installer has said something.
    async fn says(&self, what: &str) {
        eventually(what, || async {
            let said = self.said();
            if said.contains(what) { Ok(()) } else { Err(said) }
        })
        .await;
    }

    fn infra_id(&self) -> String {
        let text = std::fs::read(self.path().join("metadata.json")).unwrap();
        let metadata: Value = serde_json::from_slice(&text).unwrap();
        metadata["infraID"].as_str().unwrap().to_owned()
    }

    async fn client(&self) -> Result<Client, String> {
        let text = |error: kube::config::KubeconfigError| error.to_string();
        let kubeconfig = Kubeconfig::read_from(self.path().join("auth/kubeconfig")).map_err(text)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Client::try_from(config.map_err(text)?).map_err(|error| error.to_string())
    }

    fn node_names(&self, masters: usize) -> Vec<String> {
        (0..masters).map(|index| format!("master-{index}.{}.example.com", self.name)).collect()
    }

    /// Every master has registered, and the cluster can speak to it: both of its certificates are issued.
    async fn masters_register(&self, count: usize) {
        let expected = self.node_names(count);
        eventually("the masters register", || async {
            let client = self.client().await?;
            let (nodes, all) = (Api::<Node>::all(client.clone()), ListParams::default());
            let nodes = nodes.list(&all).await.map_err(|error| format!("{error}; {}", self.said()))?;
            let mut names: Vec<String> = nodes.items.iter().map(ResourceExt::name_any).collect();
            names.sort();
            if names != expected {
                return Err(format!("nodes are {names:?}; {}", self.said()));
            }
            let requests = Api::<CertificateSigningRequest>::all(client);
            let requests = requests.list(&all).await.map_err(|error| error.to_string())?;
            let is_issued = |one: &&CertificateSigningRequest| {
                one.status.as_ref().is_some_and(|status| status.certificate.is_some())
            };
            let issued = requests.items.iter().filter(is_issued).count();
            if issued >= 2 * count { Ok(()) } else { Err(format!("{issued} certificates are issued")) }
        })
        .await;
    }

    fn destroy(&mut self) {
        self.kill_installer();
        let output = self.kelson(&["destroy", "cluster"]).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.name, self.said());
            let list = self.kelson(&["machine", "list"]).output();
            eprintln!("{}", list.as_ref().map(text).unwrap_or_default());
        }
        self.kill_installer();
        let _ = self.kelson(&["destroy", "cluster"]).output();
    }
}

/// What a cluster may leave on a host outside its directory: all of it carries the cluster's id.
fn traces(id: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(id)).map(|line| format!("mount {line}")));
    let groups = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup").then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or_default()))
    });
    found.extend(
        groups
            .map(|root| root.join("kelson").join(id))
            .filter(|path| path.exists())
            .map(|path| format!("control group {}", path.display())),
    );
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        // One that has ended, and that its parent has not asked after yet, has no command line any more.
        let command = read("cmdline").replace('\0', " ");
        if read("cgroup").contains(&format!("/kelson/{id}")) && !command.is_empty() {
            found.push(format!("process {} {command}", entry.file_name().to_string_lossy()));
        }
    }
    let run = Path::new("/run/kelson/clusters").join(id);
    found.extend(run.exists().then(|| run.display().to_string()));
    found
}

/// Links of this network namespace, which is the host's as far as the clusters know.
fn links() -> Vec<String> {
    let routing = netlink::route::Routing::open().unwrap();
    routing.links().unwrap().into_iter().map(|link| link.name).collect()
}

#[test]
fn masters_of_two_clusters_register_side_by_side_and_destroy_leaves_nothing() {
    in_own_network(|| async {
        let (mut first, mut second) = (Installation::new("one", 1), Installation::new("two", 1));
        first.create();
        // Killed as soon as a machine boots, it goes on where it was.
        first.says("bootstrap: booting").await;
        first.kill_installer();
        assert!(!traces(&first.infra_id()).is_empty(), "machines outlive the installer");
        first.create();
        second.create();
        first.masters_register(1).await;
        second.masters_register(1).await;
        // The cause of the wait is told by name, not by a time-out.
        first.says("master-0.one.example.com is not ready").await;
        let (one, two) = (first.infra_id(), second.infra_id());
        assert_eq!(links(), ["lo"], "the host's network is not touched");

        first.destroy();
        assert_eq!(traces(&one), Vec::<String>::new());
        assert_eq!(leftovers(first.path()), Vec::<String>::new());
        // The other cluster has the same addresses, and notices nothing.
        second.masters_register(1).await;
        second.destroy();
        assert_eq!(traces(&two), Vec::<String>::new());
        assert_eq!(leftovers(second.path()), Vec::<String>::new());
        assert_eq!(links(), ["lo"]);
    });
}

/// Who dies at a kill point.
#[derive(Debug, Clone, Copy)]
enum Victim {
    /// `kelson create cluster`.
    Installer,
    /// A machine loses its power.
    Machine(&'static str),
    /// A process on a machine, by a part of its command line.
    Process(&'static str),
}

/// When it dies.
#[derive(Debug, Clone, Copy)]
enum When {
    /// As soon as the installer says this.
    Says(&'static str),
    /// As soon as a file is there: below the directory of the machines.
    File(&'static str),
}

use Victim::{Installer, Machine, Process};
use When::{File, Says};

/// Every stage of bootkube, each machine's boot, and the installer itself, in the order in which they come.
const KILL_POINTS: &[(When, Victim)] = &[
    (Says("wrote bootstrap.ign"), Installer),
    (Says("bootstrap: booting"), Installer),
    (File("bootstrap/config.ign"), Installer),
    (File("bootstrap/shared/status.json"), Machine("bootstrap")),
    (File("bootstrap/etc/.ignition-result.json"), Machine("bootstrap")),
    (File("master-0/shared/status.json"), Machine("master-0")),
    (File("master-0/etc/.ignition-result.json"), Machine("master-0")),
    (Says("master-0: booting"), Installer),
    (File("bootstrap/var/opt/openshift/.done/openshift-manifests"), Process("bootstrap bootkube")),
    (File("bootstrap/var/opt/openshift/.done/etcd-bootstrap"), Machine("bootstrap")),
    (File("bootstrap/var/opt/openshift/.done/resolve-api-int-url"), Process("bootstrap bootkube")),
    (File("bootstrap/var/opt/openshift/.done/wait-for-etcd"), Process("bootstrap bootkube")),
    (File("bootstrap/var/opt/openshift/.done/wait-for-etcd"), Machine("bootstrap")),
    (File("bootstrap/var/log/pods"), Process("kubelet --config")),
    (Says("bootkube at cb-bootstrap"), Process("etcd --")),
    (Says("bootkube at cb-bootstrap"), Process("kube-apiserver --")),
    (Says("bootkube at cb-bootstrap"), Process("kube-controller-manager --")),
    (Says("bootkube at cb-bootstrap"), Installer),
    (Says("waits for its client certificate"), Machine("master-0")),
    (Says("waits for its client certificate"), Process("bootstrap approve-csr")),
    (Says("waits for its serving certificate"), Machine("master-0")),
    (Says("is not ready"), Machine("bootstrap")),
    (Says("is not ready"), Machine("master-0")),
    (Says("is not ready"), Installer),
];

/// Those that every run of the tests goes through, one after the other, in one installation. `KELSON_KILL_POINTS=all` goes
/// through all, each in an installation of its own.
const SHORT: &[usize] = &[1, 4, 11, 21];

impl Installation {
    async fn reach(&self, when: When) {
        match when {
            Says(text) => self.says(text).await,
            File(path) => {
                let path = self.path().join("local/machines").join(path);
                eventually("a file", || async {
                    if path.exists() { Ok(()) } else { Err(format!("{}; {}", path.display(), self.said())) }
                })
                .await;
            }
        }
    }

    /// Kills, and goes on with the same command as somebody would.
    fn kill(&mut self, victim: Victim) {
        match victim {
            Installer => self.kill_installer(),
            Machine(name) => {
                let output = self.kelson(&["machine", "kill", name]).output().unwrap();
                // It may be down already, as what was killed before it may have taken it along.
                assert!(
                    output.status.success() || text(&output).contains("is not running"),
                    "{}",
                    text(&output)
                );
                self.kill_installer();
            }
            Process(words) => {
                let group = format!("/kelson/{}/", self.infra_id());
                for entry in std::fs::read_dir("/proc").unwrap().flatten() {
                    let read =
                        |name: &str| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
                    let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                    let is_it =
                        read("cgroup").contains(&group) && read("cmdline").replace('\0', " ").contains(words);
                    if let (true, Some(pid)) = (is_it, pid.and_then(rustix::process::Pid::from_raw)) {
                        // It may have ended by itself in the meantime.
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    }
                }
                return;
            }
        }
        self.create();
    }

    /// The state that every installation is in at the end, whatever died on the way.
    async fn is_whole(&self) {
        self.masters_register(1).await;
        eventually("what the installer says of the cluster is there", || async {
            let client = self.client().await?;
            let get = async |path: &str| {
                let request = http::Request::get(path).body(Vec::new()).unwrap();
                client.request::<Value>(request).await.map_err(|error| format!("{path}: {error}"))
            };
            get("/api/v1/namespaces/kube-system/configmaps/cluster-config-v1").await?;
            let infrastructure = get("/apis/config.openshift.io/v1/infrastructures/cluster").await?;
            match infrastructure["status"]["infrastructureName"].as_str() {
                Some(name) if name == self.infra_id() => {}
                other => return Err(format!("Infrastructure says {other:?}")),
            }
            let node = get(&format!("/api/v1/nodes/{}", self.node_names(1)[0])).await?;
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            // A node that lost its kubelet says Unknown until the next one speaks.
            let ready = conditions.iter().find(|one| one["type"] == "Ready");
            match ready.and_then(|one| one["status"].as_str()) {
                Some("True" | "False") => Ok(()),
                other => Err(format!("the node is {other:?}")),
            }
        })
        .await;
    }
}

#[test]
fn killed_at_any_point_an_installation_ends_in_the_same_state() {
    let all = std::env::var("KELSON_KILL_POINTS").is_ok_and(|value| value == "all");
    let runs: Vec<Vec<usize>> =
        if all { (0..KILL_POINTS.len()).map(|point| vec![point]).collect() } else { vec![SHORT.to_vec()] };
    for run in runs {
        in_own_network(|| async move {
            let mut installation = Installation::new("killed", 1);
            installation.create();
            for point in run {
                let (when, victim) = KILL_POINTS[point];
                eprintln!("kill point {point}: {victim:?} when {when:?}");
                installation.reach(when).await;
                installation.kill(victim);
            }
            installation.is_whole().await;
            let id = installation.infra_id();
            installation.destroy();
            assert_eq!(traces(&id), Vec::<String>::new());
        });
    }
}

#[test]
fn a_master_takes_over_from_the_bootstrap_machine() {
    in_own_network(|| async {
        let mut installation = Installation::with_workers("whole", 1, 1);
        installation.create();
        installation.says("bootkube at cb-bootstrap").await;
        installation.says("bootstrap: powered off").await;
        // What answers now runs on the master.
        eventually("the master is ready", || async {
            let client = installation.client().await?;
            let (nodes, all) = (Api::<Node>::all(client), ListParams::default());
            let nodes = nodes.list(&all).await.map_err(|error| error.to_string())?;
            let is_ready = |node: &&Node| {
                let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
                conditions
                    .is_some_and(|list| list.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
            };
            let ready: Vec<String> = nodes.items.iter().filter(is_ready).map(ResourceExt::name_any).collect();
            let wanted = "master-0.whole.example.com".to_owned();
            if ready.contains(&wanted) {
                Ok(())
            } else {
                Err(format!("ready: {ready:?}; {}", installation.said()))
            }
        })
        .await;
        let id = installation.infra_id();
        installation.destroy();
        assert_eq!(traces(&id), Vec::<String>::new());
    });
}
