//! `kelson etcd` as a program of its own, and its backups.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The server; it ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn start(data: &Path, url: &str) -> Server {
    let child = Command::new(env!("CARGO_BIN_EXE_kelson"))
        .arg("etcd")
        // Flags and variables alike, as etcd takes them.
        .env("ETCD_DATA_DIR", data)
        .env("ETCD_LISTEN_CLIENT_URLS", url)
        .args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())])
        .stderr(Stdio::null())
        .spawn();
    Server(child.expect("kelson runs"))
}

fn snapshot(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kelson"))
        .args(["etcd", "snapshot"])
        .args(arguments)
        .output()
        .expect("kelson runs")
}

/// Saves a backup as soon as the server answers.
fn save(url: &str, file: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = snapshot(&["save", file, "--endpoints", url]);
        if output.status.success() {
            return;
        }
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(Instant::now() < deadline, "no backup: {error}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_store_runs_alone_and_its_backup_becomes_a_store_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let url = format!("http://127.0.0.1:{}", free_port());
    let server = start(&directory.path().join("data"), &url);
    save(&url, &path("first.db"));
    let etcdctl = |arguments: &[&str]| {
        Command::new("etcdctl")
            .args(["--endpoints", &url])
            .args(arguments)
            .env("ETCDCTL_API", "3")
            .output()
            .ok()
    };
    match etcdctl(&["put", "key", "value"]) {
        Some(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        None => eprintln!("etcdctl is not installed: only an empty store is saved"),
    }
    save(&url, &path("second.db"));
    drop(server);
    let before = snapshot(&["status", &path("second.db")]);
    assert!(before.status.success());
    assert!(snapshot(&["restore", &path("second.db"), "--data-dir", &path("restored")]).status.success());
    let url = format!("http://127.0.0.1:{}", free_port());
    let _server = start(&directory.path().join("restored"), &url);
    save(&url, &path("third.db"));
    let hash = |output: &Output| String::from_utf8_lossy(&output.stdout).split(',').next().map(str::to_owned);
    assert_eq!(hash(&snapshot(&["status", &path("third.db")])), hash(&before));
}
