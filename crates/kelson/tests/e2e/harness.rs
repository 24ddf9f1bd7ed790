//! A cluster to test against, and waiting for things with a deadline.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// Long enough for a loaded two-core machine; a healthy cluster needs a fraction of it.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// No test takes longer, whatever hangs.
const TEST_DEADLINE: Duration = Duration::from_secs(420);

/// A data directory with a cluster in it, torn down at the end of the test however that ends.
pub struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    pub fn new() -> Self {
        Self { dir: tempfile::Builder::new().prefix("kelson-e2e-").tempdir().expect("a temporary directory") }
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Runs one of our own commands on this cluster's directory.
    pub fn kelson(&self, command: &str, more: &[&str]) -> Output {
        let mut process = Command::new(env!("CARGO_BIN_EXE_kelson"));
        process.arg(command).arg("--data-dir").arg(self.data_dir()).args(more);
        process.output().expect("kelson runs")
    }

    pub fn up(&self) {
        self.up_with(&[]);
    }

    pub fn up_with(&self, more: &[&str]) {
        let kubeconfig = self.kubeconfig();
        let mut flags = vec!["--detach", "--kubeconfig", kubeconfig.to_str().expect("UTF-8 path")];
        flags.extend(more);
        let output = self.kelson("up", &flags);
        assert!(output.status.success(), "up failed: {}\n{}", text(&output), self.log());
    }

    pub fn status(&self) -> Value {
        let output = self.kelson("status", &["-o", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    }

    pub fn pid(&self) -> i32 {
        self.status()["instance"]["pid"].as_i64().expect("a running instance has a pid") as i32
    }

    /// The end of the cluster's log, for the message of a failed test.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.data_dir().join("kelson.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    pub async fn client(&self) -> Client {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).expect("the kubeconfig is valid");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Client::try_from(config.expect("the kubeconfig is complete")).expect("a client")
    }

    /// Runs the real kubectl, or returns `None` where there is none.
    pub fn kubectl(&self, arguments: &[&str]) -> Option<Output> {
        self.kubectl_command(arguments)?.output().ok()
    }

    pub fn kubectl_command(&self, arguments: &[&str]) -> Option<Command> {
        let mut command = Command::new(testing::program("kubectl")?);
        command.arg("--kubeconfig").arg(self.kubeconfig()).args(arguments).env("HOME", self.dir.path());
        Some(command)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let output = self.kelson("down", &["--purge"]);
        if !output.status.success() && !std::thread::panicking() {
            panic!("down --purge failed: {}", text(&output));
        }
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a test in a network namespace of its own, with a loopback device, on a runtime that stays in it.
pub fn in_own_network<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send) {
    if !testing::root() {
        return;
    }
    netlink::netns::fresh(|| {
        let routing = netlink::route::Routing::open().expect("netlink answers");
        let loopback = routing.link("lo").expect("links can be listed").expect("a loopback device");
        routing.set_up(loopback.index, &[]).expect("loopback comes up");
        // One thread: namespaces belong to threads, and a worker of its own would be in the host's.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let outcome = runtime.block_on(async { tokio::time::timeout(TEST_DEADLINE, test()).await });
        outcome.expect("the test ends within its deadline");
    })
    .expect("a network namespace");
}

/// Asks again until there is an answer, or fails with the last word of what was missing.
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + DEADLINE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(missing) if Instant::now() > deadline => panic!("{what}: {missing}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Lists what a cluster may leave behind on a host: mounts and processes that name its directory.
pub fn leftovers(root: &Path) -> Vec<String> {
    let root = root.to_string_lossy().into_owned();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<String> =
        mounts.lines().filter(|line| line.contains(&root)).map(|line| format!("mount {line}")).collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(&root) {
            found.push(format!("process {} {command}", entry.file_name().to_string_lossy()));
        }
    }
    found
}
