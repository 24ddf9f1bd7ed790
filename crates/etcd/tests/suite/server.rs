//! The gRPC API: our server under the conformance suite, under etcdctl, and beside the real etcd.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Parser;
use etcd::Store;
use etcd::remote::{RemoteConfig, connect};
use lifecycle::{Stop, Tasks};

use crate::conformance;

/// A free port of the loopback interface.
/// A port that nobody listens on, out of those that the system does not give to connections: a server can have it a moment later.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 12_000 + (number % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: etcd::EtcdArgs,
}

/// Our server in this process.
pub struct Server {
    pub endpoint: String,
    stop: Stop,
    tasks: Tasks,
}

impl Server {
    pub fn start(directory: &Path, more: &[&str]) -> Self {
        let scheme = if more.iter().any(|flag| flag.starts_with("--cert-file")) { "https" } else { "http" };
        let endpoint = format!("{scheme}://127.0.0.1:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let directory = directory.to_string_lossy();
        let base = [
            "etcd",
            "--data-dir",
            &directory,
            "--listen-client-urls",
            &endpoint,
            "--listen-peer-urls",
            &peer,
        ];
        let cli = Cli::parse_from(base.iter().chain(more));
        let (stop, tasks) = (Stop::new(), Tasks::new());
        let for_run = stop.clone();
        tasks.spawn("server", |_| async move {
            if let Err(error) = etcd::run(cli.args, for_run).await {
                panic!("{}", telemetry::chain(&error));
            }
        });
        Self { endpoint, stop, tasks }
    }

    /// Host and port, as etcdctl's own default has it.
    pub fn address(&self) -> &str {
        self.endpoint.split_once("://").expect("a URL").1
    }

    pub async fn end(self) {
        self.stop.request();
        assert!(self.tasks.drain(Duration::from_secs(20)).await.is_empty(), "the server did not stop");
    }
}

pub async fn remote(endpoints: &[String], tls: Option<(&Path, &Path, &Path)>) -> (Arc<dyn Store>, Tasks) {
    let tasks = Tasks::new();
    let tls = tls.map(|(ca, cert, key)| etcd::tls::client(ca, Some((cert, key))).expect("TLS"));
    let config = RemoteConfig { endpoints: endpoints.to_vec(), tls };
    let store = connect(&config, &tasks).await.expect("connect");
    // Starting takes a moment: until the first answer.
    store.progress().await.expect("the server answers");
    // Once more, now that the server can be asked for its version.
    let store = connect(&config, &tasks).await.expect("connect");
    (store, tasks)
}

pub use testing::program;

/// A child process that dies with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_keeps_the_contract_over_grpc() {
    let directory = tempfile::tempdir().expect("directory");
    let server = Server::start(directory.path(), &[]);
    let (store, tasks) = remote(std::slice::from_ref(&server.endpoint), None).await;
    assert!(store.watch_progress_is_reliable());
    conformance::all(store).await;
    tasks.drain(Duration::from_secs(5)).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_etcd_keeps_the_same_contract() {
    let Some(program) = program("etcd") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let (client, peer) = (free_port(), free_port());
    let endpoint = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let child = Command::new(program)
        .args(["--data-dir", &directory.path().to_string_lossy()])
        .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start etcd");
    let _running = Running(child);
    let (store, tasks) = remote(&[endpoint], None).await;
    conformance::all(store).await;
    tasks.drain(Duration::from_secs(5)).await;
}

fn etcdctl(address: &str, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .args(["20", "etcdctl", "--endpoints", address])
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .stdin(Stdio::null())
        .output()
        .expect("run etcdctl")
}

/// What etcdctl says, which must be a success.
fn says(address: &str, arguments: &[&str]) -> String {
    let output = etcdctl(address, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What etcdctl complains about, which must be a failure.
fn refuses(address: &str, arguments: &[&str]) -> String {
    let output = etcdctl(address, arguments);
    assert!(!output.status.success(), "etcdctl {arguments:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_does_its_commands_on_our_server() {
    if program("etcdctl").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let server = Server::start(&directory.path().join("data"), &[]);
    let (store, tasks) = remote(std::slice::from_ref(&server.endpoint), None).await;
    let address = server.address().to_owned();
    let backup = directory.path().join("backup.db");
    let for_thread = backup.clone();
    tokio::task::spawn_blocking(move || {
        let at = address.as_str();
        keys(at);
        leases(at);
        maintenance(at, &for_thread);
        users(at);
    })
    .await
    .expect("etcdctl");
    let revision = store.progress().await.expect("progress");
    tasks.drain(Duration::from_secs(5)).await;
    server.end().await;
    let saved = etcd::backup::inspect(&backup).expect("etcdctl saved a whole backup");
    assert!(saved.revision > 1 && saved.revision <= revision);
    let restored = directory.path().join("restored");
    assert_eq!(etcd::backup::restore(&backup, &restored, &Default::default()).expect("restore"), saved);
    let (store, tasks) = crate::durability::open(&restored);
    assert_eq!(store.revision(), saved.revision);
    crate::durability::close(tasks).await;
}

fn keys(at: &str) {
    assert_eq!(says(at, &["put", "k1", "one"]), "OK\n");
    assert_eq!(says(at, &["put", "k1", "two", "--prev-kv"]), "OK\nk1\none\n");
    says(at, &["put", "k2", "x"]);
    says(at, &["put", "k3", "y"]);
    assert_eq!(says(at, &["get", "k1"]), "k1\ntwo\n");
    assert_eq!(
        says(
            at,
            &["get", "--prefix", "k", "--order=DESCEND", "--sort-by=MODIFY", "--keys-only", "--limit=2"]
        ),
        "k3\n\nk2\n\n"
    );
    assert_eq!(says(at, &["get", "k1", "k3", "--print-value-only"]), "two\nx\n");
    assert_eq!(says(at, &["get", "--from-key", "k2", "--keys-only"]), "k2\n\nk3\n\n");
    assert_eq!(says(at, &["get", "k1", "--rev=2"]), "k1\none\n");
    assert!(refuses(at, &["get", "k1", "--rev=999"]).contains("required revision is a future revision"));
    let transaction = "mod(\"k1\") > \"0\"\n\nput k4 z\nget k4\n\nput k5 no\n\n";
    let mut child = Command::new("etcdctl")
        .args(["--endpoints", at, "txn"])
        .env("ETCDCTL_API", "3")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("etcdctl txn");
    use std::io::Write;
    child.stdin.take().expect("stdin").write_all(transaction.as_bytes()).expect("write");
    let output = child.wait_with_output().expect("etcdctl txn");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("SUCCESS") && said.contains("k4\nz"), "{said}");
    // A watch from the past until its first three changes, then one beyond a compaction.
    let watched = watch_lines(at, &["watch", "k1", "--rev=2"], 6);
    assert_eq!(watched, ["PUT", "k1", "one", "PUT", "k1", "two"]);
    assert_eq!(says(at, &["del", "--prefix", "k2", "--prev-kv"]), "1\nk2\nx\n");
    assert_eq!(says(at, &["compact", "5"]), "compacted revision 5\n");
    assert!(refuses(at, &["get", "k1", "--rev=2"]).contains("required revision has been compacted"));
    assert!(refuses(at, &["watch", "k1", "--rev=2"]).contains("watch is canceled by the server"));
}

fn watch_lines(at: &str, arguments: &[&str], count: usize) -> Vec<String> {
    use std::io::{BufRead, BufReader};
    let child = Command::new("etcdctl")
        .args(["--endpoints", at])
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcdctl watch");
    let mut running = Running(child);
    let out = running.0.stdout.take().expect("stdout");
    BufReader::new(out).lines().take(count).map(|line| line.expect("text")).collect()
}

fn leases(at: &str) {
    let granted = says(at, &["lease", "grant", "500"]);
    let id = granted.split_whitespace().nth(1).expect("an id").to_owned();
    says(at, &["put", "leased", "v", &format!("--lease={id}")]);
    let shown = says(at, &["lease", "timetolive", &id, "--keys"]);
    assert!(shown.contains("granted with TTL(500s)") && shown.contains("attached keys([leased])"), "{shown}");
    assert!(says(at, &["lease", "keep-alive", "--once", &id]).contains("keepalived with TTL(500)"));
    assert!(says(at, &["lease", "list"]).contains(&id));
    says(at, &["lease", "revoke", &id]);
    assert_eq!(says(at, &["get", "leased"]), "");
    assert!(says(at, &["lock", "name", "echo", "held"]).contains("held"));
}

fn maintenance(at: &str, backup: &Path) {
    says(at, &["endpoint", "health"]);
    assert!(says(at, &["endpoint", "status"]).contains("3.6."));
    assert!(says(at, &["endpoint", "hashkv"]).contains(at));
    assert!(says(at, &["member", "list"]).contains("started, default"));
    assert!(refuses(at, &["member", "remove", "1"]).contains("member not found"));
    says(at, &["defrag"]);
    assert_eq!(says(at, &["alarm", "list"]), "");
    says(at, &["snapshot", "save", &backup.to_string_lossy()]);
}

fn users(at: &str) {
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "bob:builder"],
        &["role", "add", "some"],
        &["role", "grant-permission", "some", "readwrite", "a", "c"],
        &["role", "grant-permission", "--prefix=true", "some", "read", "z"],
        &["user", "grant-role", "bob", "some"],
        &["auth", "enable"],
    ] {
        says(at, arguments);
    }
    assert!(refuses(at, &["put", "a", "1"]).contains("user name is empty"));
    assert!(refuses(at, &["--user", "bob:wrong", "get", "a"]).contains("authentication failed"));
    assert_eq!(says(at, &["--user", "bob:builder", "put", "a", "1"]), "OK\n");
    assert!(refuses(at, &["--user", "bob:builder", "put", "d", "1"]).contains("permission denied"));
    assert!(refuses(at, &["--user", "bob:builder", "put", "zz", "1"]).contains("permission denied"));
    assert_eq!(says(at, &["--user", "bob:builder", "get", "zz"]), "");
    assert!(refuses(at, &["--user", "bob:builder", "get", "--prefix", ""]).contains("permission denied"));
    assert_eq!(says(at, &["--user", "root:secret", "user", "list"]), "bob\nroot\n");
    assert!(refuses(at, &["--user", "bob:builder", "user", "list"]).contains("permission denied"));
    says(at, &["--user", "root:secret", "auth", "disable"]);
    says(at, &["put", "d", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_version_and_metrics_are_served_beside_grpc() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let directory = tempfile::tempdir().expect("directory");
    let server = Server::start(directory.path(), &[]);
    let (_store, tasks) = remote(std::slice::from_ref(&server.endpoint), None).await;
    for (path, expected) in [
        ("/health", r#""health":"true""#),
        ("/livez", "ok"),
        ("/readyz", "ok"),
        ("/version", r#""etcdserver":"3.6"#),
        ("/metrics", "etcd_mvcc_db_total_size_in_bytes"),
        ("/nothing", "404"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        assert!(answer.contains(expected), "{path}: {answer}");
    }
    tasks.drain(Duration::from_secs(5)).await;
    server.end().await;
}
