//! Every command of the real etcdctl against our server as a program: in plain text with an `http://` endpoint, and with TLS,
//! client certificates and users.

#![allow(clippy::disallowed_methods, reason = "waits for programs outside of this process")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::{Certificates, certificates};
use crate::crash::server_program;
use crate::server::{Running, free_port, program};

/// How long anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A server, and how etcdctl reaches it.
struct Ctl {
    url: String,
    flags: Vec<String>,
    _server: Running,
}

impl Ctl {
    fn start(directory: &Path, tls: Option<&Certificates>, more: &[&str]) -> Self {
        let ctl = Self::launch(directory, tls, more);
        ctl.wait_until_it_answers(&[]);
        ctl
    }

    /// A server that asks for users from the beginning.
    fn start_locked(directory: &Path, user: &str) -> Self {
        let ctl = Self::launch(directory, None, &[]);
        ctl.wait_until_it_answers(&[user]);
        ctl
    }

    fn launch(directory: &Path, tls: Option<&Certificates>, more: &[&str]) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", free_port());
        let mut server = Command::new(server_program());
        server.arg("etcd").arg("--data-dir").arg(directory).args(["--listen-client-urls", &url]);
        server.args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())]).args(more);
        let mut flags = vec!["--endpoints".to_owned(), url.clone()];
        if let Some(files) = tls {
            let path = |path: &Path| path.display().to_string();
            server.args(["--cert-file", &path(&files.cert), "--key-file", &path(&files.key)]);
            server.args(["--trusted-ca-file", &path(&files.ca), "--client-cert-auth"]);
            flags.push(format!("--cacert={}", path(&files.ca)));
            flags.push(format!("--cert={}", path(&files.cert)));
            flags.push(format!("--key={}", path(&files.key)));
        }
        let child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { url, flags, _server: Running(child.expect("start the server")) }
    }

    fn wait_until_it_answers(&self, flags: &[&str]) {
        let deadline = Instant::now() + DEADLINE;
        while !self.run(&[flags, &["endpoint", "health"]].concat()).status.success() {
            assert!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["25", "etcdctl"]).args(&self.flags).args(arguments).env("ETCDCTL_API", "3");
        command
    }

    /// The same without a limit of time, for what is ended by whoever began it: a killed `timeout` leaves its child behind.
    fn endless(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.args(&self.flags).args(arguments).env("ETCDCTL_API", "3");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().expect("run etcdctl")
    }

    /// What it says, which must be a success.
    fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it complains about, which must be a failure.
    fn refuses(&self, arguments: &[&str], expected: &str) {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "etcdctl {arguments:?} succeeded");
        assert!(errors.contains(expected), "etcdctl {arguments:?}: {errors}");
    }

    /// What it says to some input.
    fn told(&self, arguments: &[&str], input: &str) -> String {
        let mut child =
            self.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("etcdctl");
        child.stdin.take().expect("stdin").write_all(input.as_bytes()).expect("write");
        let output = child.wait_with_output().expect("etcdctl");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Its first lines, while it goes on running.
    fn begins(&self, arguments: &[&str], input: &str, count: usize) -> (Vec<String>, Running) {
        let mut child = self
            .endless(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcdctl");
        child.stdin.as_mut().expect("stdin").write_all(input.as_bytes()).expect("write");
        let out = child.stdout.take().expect("stdout");
        let running = Running(child);
        let lines = BufReader::new(out).lines().take(count).map(|line| line.expect("text")).collect();
        (lines, running)
    }
}

fn member(ctl: &Ctl) {
    let listed = ctl.says(&["member", "list"]);
    let id = listed.split(',').next().expect("an id").to_owned();
    assert!(listed.contains("started, default"), "{listed}");
    let updated = ctl.says(&["member", "update", &id, "--peer-urls=http://127.0.0.1:9,http://127.0.0.1:10"]);
    assert!(updated.contains("updated in cluster"), "{updated}");
    assert!(ctl.says(&["member", "list"]).contains("http://127.0.0.1:9,http://127.0.0.1:10"));
    ctl.refuses(&["member", "update", "1234", "--peer-urls=http://127.0.0.1:9"], "member not found");
    ctl.refuses(&["member", "remove", &id], "not enough started members");
    ctl.refuses(&["member", "remove", "1234"], "member not found");
    ctl.refuses(&["member", "promote", &id], "can only promote a learner member");
    ctl.refuses(&["member", "add", "two", "--peer-urls=http://127.0.0.1:9"], "Peer URLs already exists");
    let added = ctl.says(&["member", "add", "two", "--learner", "--peer-urls=http://127.0.0.1:11"]);
    assert!(added.contains("ETCD_INITIAL_CLUSTER_STATE=\"existing\""), "{added}");
    let learner = added.split_whitespace().nth(1).expect("an id").to_owned();
    let listed = ctl.says(&["member", "list"]);
    let entry = format!("{learner}, unstarted, , http://127.0.0.1:11, , true");
    assert!(listed.contains(&entry), "{listed}");
    ctl.refuses(
        &["member", "add", "three", "--learner", "--peer-urls=http://127.0.0.1:12"],
        "too many learner members",
    );
    ctl.refuses(&["member", "promote", &learner], "in sync with leader");
    ctl.refuses(&["move-leader", &learner], "bad leader transferee");
    ctl.says(&["member", "update", &learner, "--peer-urls=http://127.0.0.1:12"]);
    assert!(ctl.says(&["member", "list"]).contains("unstarted, , http://127.0.0.1:12"));
    ctl.refuses(&["member", "remove", &id], "not enough started members");
    assert!(ctl.says(&["member", "remove", &learner]).contains("removed from cluster"));
    assert!(!ctl.says(&["member", "list"]).contains(&learner));
    assert!(ctl.says(&["move-leader", &id]).contains("Leadership transferred"));
    ctl.refuses(&["move-leader", "1234"], "bad leader transferee");
}

fn endpoints(ctl: &Ctl) {
    assert!(ctl.says(&["endpoint", "status"]).contains("3.6."));
    assert!(ctl.says(&["endpoint", "status", "--cluster", "-w", "json"]).contains(&ctl.url));
    assert!(
        ctl.says(&["endpoint", "health", "--cluster"]).is_empty(),
        "it tells of health on standard error"
    );
    assert!(ctl.says(&["endpoint", "hashkv"]).contains(&ctl.url));
    assert!(ctl.says(&["defrag"]).contains("Finished defragmenting"));
    assert_eq!(ctl.says(&["alarm", "list"]), "");
    assert_eq!(ctl.says(&["alarm", "disarm"]), "");
    assert!(ctl.says(&["version"]).contains("API version"));
    let status = ctl.says(&["endpoint", "status", "-w", "json"]);
    assert!(!status.contains("\"dbSize\":0"), "etcdctl divides by the size of an empty store: {status}");
}

fn keys(ctl: &Ctl) {
    for number in 1..=4 {
        assert_eq!(ctl.says(&["put", &format!("walk/{number}"), &format!("value {}", 5 - number)]), "OK\n");
    }
    let ordered = |by: &str, order: &str| {
        let (by, order) = (format!("--sort-by={by}"), format!("--order={order}"));
        ctl.says(&["get", "walk/", "--prefix", "--keys-only", &by, &order]).replace("\n\n", " ")
    };
    let ascending = "walk/1 walk/2 walk/3 walk/4 ";
    let descending = "walk/4 walk/3 walk/2 walk/1 ";
    for by in ["KEY", "CREATE", "MODIFY"] {
        assert_eq!(ordered(by, "ASCEND"), ascending, "by {by}");
        assert_eq!(ordered(by, "DESCEND"), descending, "by {by}");
    }
    assert_eq!(ordered("VALUE", "ASCEND"), descending);
    assert_eq!(ctl.says(&["get", "walk/", "--prefix", "--limit=1", "--consistency=s"]), "walk/1\nvalue 4\n");
    assert_eq!(ctl.says(&["get", "walk/2", "walk/4", "--print-value-only"]), "value 3\nvalue 2\n");
    assert!(ctl.says(&["get", "walk/1", "--hex"]).contains("\\x77\\x61\\x6c\\x6b"));
    assert!(ctl.says(&["get", "walk/1", "-w", "fields"]).contains("\"Version\" : 1"));
    assert_eq!(ctl.says(&["put", "walk/1", "--ignore-lease", "again", "--prev-kv"]), "OK\nwalk/1\nvalue 4\n");
    ctl.refuses(&["put", "walk/none", "--ignore-value"], "key not found");
    let said =
        ctl.told(&["txn"], "value(\"walk/2\") = \"value 3\"\n\nput walk/5 t\nget walk/5\n\nput walk/6 f\n\n");
    assert!(said.contains("SUCCESS") && said.contains("walk/5\nt"), "{said}");
    let said = ctl.told(&["txn", "-i"], "ver(\"walk/2\") > \"7\"\n\nput walk/5 t\n\ndel walk/5\n\n");
    assert!(said.contains("FAILURE") && said.contains('1'), "{said}");
    assert_eq!(ctl.says(&["del", "walk/3", "walk/5", "--prev-kv"]), "2\nwalk/3\nvalue 2\nwalk/4\nvalue 1\n");
    let revision = ctl.says(&["get", "walk/1", "-w", "fields"]);
    let line = revision.lines().find(|line| line.starts_with("\"Revision\"")).expect("a revision");
    let revision = line.rsplit(' ').next().expect("a number").to_owned();
    assert!(ctl.says(&["compaction", &revision]).contains("compacted revision"));
}

fn leases(ctl: &Ctl) {
    let granted = ctl.says(&["lease", "grant", "500"]);
    let id = granted.split_whitespace().nth(1).expect("an id").to_owned();
    ctl.says(&["put", "leased", "v", &format!("--lease={id}")]);
    assert!(ctl.says(&["lease", "timetolive", &id, "--keys"]).contains("attached keys([leased])"));
    assert!(ctl.says(&["lease", "keep-alive", "--once", &id]).contains("TTL(500)"));
    assert!(ctl.says(&["lease", "list"]).contains(&id));
    assert!(ctl.says(&["lease", "revoke", &id]).contains("revoked"));
    assert_eq!(ctl.says(&["get", "leased"]), "");
    ctl.refuses(&["lease", "revoke", &id], "requested lease not found");
    assert!(ctl.says(&["lock", "door", "echo", "held"]).contains("held"));
    // A leader, a follower that is told of it, and a candidate that waits until it is gone.
    let (leads, leader) = ctl.begins(&["elect", "boss", "first"], "", 2);
    assert_eq!(leads[1], "first");
    let (heard, _listener) = ctl.begins(&["elect", "--listen", "boss"], "", 2);
    assert_eq!(heard, leads);
    let waiting = std::thread::scope(|scope| {
        let candidate = scope.spawn(|| ctl.begins(&["elect", "boss", "second"], "", 2).0);
        ctl.says(&["del", &leads[0]]);
        candidate.join().expect("candidate")
    });
    assert_eq!(waiting[1], "second");
    drop(leader);
}

fn watches(ctl: &Ctl) {
    ctl.says(&["put", "seen", "one"]);
    let revision = ctl.says(&["get", "seen", "-w", "fields"]);
    let line = revision.lines().find(|line| line.starts_with("\"ModRevision\"")).expect("a revision");
    let from = format!("--rev={}", line.rsplit(' ').next().expect("a number"));
    ctl.says(&["put", "seen", "two"]);
    ctl.says(&["del", "seen"]);
    let (lines, _) = ctl.begins(&["watch", "seen", &from, "--prev-kv"], "", 12);
    let expected =
        ["PUT", "seen", "one", "PUT", "seen", "one", "seen", "two", "DELETE", "seen", "two", "seen"];
    assert_eq!(lines, expected);
    let (lines, _) = ctl.begins(&["watch", "-i"], &format!("watch seen {from}\n"), 3);
    assert_eq!(lines, ["PUT", "seen", "one"]);
    let (lines, _) = ctl.begins(&["watch", "see", "sef", &from, "--", "echo", "changed"], "", 10);
    assert!(lines.contains(&"changed".to_owned()), "{lines:?}");
}

/// Copies everything to a second server and on.
fn mirror(ctl: &Ctl, directory: &Path) {
    let other = Ctl::start(directory, None, &[]);
    ctl.says(&["put", "mirrored/before", "1"]);
    let child = ctl
        .endless(&["make-mirror", "--prefix=mirrored/", "--dest-insecure-transport=true", &other.url])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _mirror = Running(child.expect("etcdctl"));
    let deadline = Instant::now() + DEADLINE;
    let wait_for = |key: &str, value: &str| {
        while other.says(&["get", key, "--print-value-only"]) != value {
            assert!(Instant::now() < deadline, "{key} is not mirrored");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    wait_for("mirrored/before", "1\n");
    ctl.says(&["put", "mirrored/after", "2"]);
    wait_for("mirrored/after", "2\n");
}

fn users(ctl: &Ctl) {
    for arguments in [
        &["user", "add", "tester:secret"][..],
        &["user", "add", "ann:secret"],
        &["user", "add", "nobody", "--no-password"],
        &["user", "passwd", "ann", "--interactive=false"],
        &["role", "add", "some"],
        &["role", "grant-permission", "some", "readwrite", "a", "c"],
        &["role", "grant-permission", "some", "read", "z", "--prefix"],
        &["user", "grant-role", "ann", "some"],
    ] {
        if arguments[1] == "passwd" {
            ctl.told(arguments, "other\n");
        } else {
            ctl.says(arguments);
        }
    }
    assert!(ctl.says(&["role", "get", "some"]).contains("[a, c)"));
    assert!(ctl.says(&["user", "get", "ann", "--detail"]).contains("Role some"));
    assert_eq!(ctl.says(&["role", "list"]), "some\n");
    assert_eq!(ctl.says(&["user", "list"]), "ann\nnobody\ntester\n");
    ctl.refuses(&["user", "add", "ann:x"], "user name already exists");
    ctl.refuses(&["auth", "enable"], "root user does not exist");
    ctl.says(&["user", "add", "root:secret"]);
    ctl.says(&["role", "add", "root"]);
    ctl.says(&["user", "grant-role", "root", "root"]);
    ctl.says(&["auth", "enable"]);
    let ann = |arguments: &[&str]| ctl.run(&[&["--user=ann", "--password=other"], arguments].concat());
    assert!(ann(&["put", "b", "1"]).status.success());
    assert!(ann(&["get", "zz"]).status.success());
    assert!(!ann(&["put", "zz", "1"]).status.success());
    assert!(!ann(&["user", "list"]).status.success());
    let root = |arguments: &[&str]| ctl.says(&[&["--user=root:secret"], arguments].concat());
    root(&["role", "revoke-permission", "some", "a", "c"]);
    assert!(!ann(&["put", "b", "1"]).status.success(), "a permission that was taken away still counts");
    root(&["user", "revoke-role", "ann", "some"]);
    root(&["user", "delete", "ann"]);
    root(&["role", "delete", "some"]);
    root(&["member", "list"]);
    root(&["endpoint", "status"]);
    root(&["defrag"]);
    root(&["auth", "disable"]);
}

fn walk(ctl: &Ctl, directory: &Path) {
    endpoints(ctl);
    member(ctl);
    keys(ctl);
    leases(ctl);
    watches(ctl);
    mirror(ctl, &directory.join("mirror"));
    users(ctl);
}

#[test]
fn etcdctl_does_every_command_in_plain_text() {
    if program("etcdctl").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let ctl = Ctl::start(&directory.path().join("data"), None, &[]);
    walk(&ctl, directory.path());
    mover(&ctl);
    snapshots(&ctl, directory.path());
}

#[test]
fn a_used_up_quota_refuses_every_put_until_space_was_made() {
    if program("etcdctl").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let ctl = Ctl::start(&directory.path().join("data"), None, &["--quota-backend-bytes", "4194304"]);
    let megabyte = "x".repeat(1 << 20);
    for number in 0..3 {
        assert_eq!(ctl.told(&["put", &format!("big/{number}")], &megabyte), "OK\n");
    }
    assert_eq!(ctl.told(&["put", "big/3"], &megabyte), "", "the quota does not hold");
    assert!(ctl.says(&["alarm", "list"]).contains("alarm:NOSPACE"));
    ctl.refuses(&["put", "small", "1"], "etcdserver: mvcc: database space exceeded");
    assert_eq!(
        ctl.says(&["get", "big/", "--prefix", "--keys-only"]).matches("big/").count(),
        3,
        "reads go on"
    );
    assert_eq!(ctl.says(&["del", "big/", "--prefix"]), "3\n");
    ctl.says(&["compact", "5"]);
    ctl.refuses(&["put", "small", "1"], "etcdserver: mvcc: database space exceeded");
    assert!(ctl.says(&["alarm", "list"]).contains("alarm:NOSPACE"), "the alarm stays until it is disarmed");
    assert!(ctl.says(&["alarm", "disarm"]).contains("alarm:NOSPACE"));
    assert_eq!(ctl.told(&["put", "big/3"], &megabyte), "OK\n");
    assert_eq!(ctl.says(&["alarm", "list"]), "");
}

#[test]
fn etcdctl_does_every_command_with_tls_and_client_certificates() {
    if program("etcdctl").is_none() {
        return;
    }
    let directory = tempfile::tempdir().expect("directory");
    let files = certificates(directory.path(), "tester");
    let ctl = Ctl::start(&directory.path().join("data"), Some(&files), &[]);
    walk(&ctl, directory.path());
    // With users, a certificate's common name is a user: etcdctl needs no password.
    ctl.says(&["auth", "enable"]);
    ctl.refuses(&["put", "k", "v"], "permission denied");
    ctl.says(&["--user=root:secret", "user", "grant-role", "tester", "root"]);
    assert_eq!(ctl.says(&["put", "k", "v"]), "OK\n");
}

/// `etcdctl snapshot save`, and our own `snapshot status`, `restore` and `save`.
fn snapshots(ctl: &Ctl, directory: &Path) {
    let ours = |arguments: &[&str]| -> Result<String, String> {
        let output = Command::new(server_program()).args(["etcd", "snapshot"]).args(arguments).output();
        let output = output.expect("run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let path = |name: &str| -> (PathBuf, String) {
        let path = directory.join(name);
        (path.clone(), path.display().to_string())
    };
    let hash = |hashkv: &str| -> String {
        let number = hashkv.trim().rsplit(' ').next().and_then(|text| text.parse::<u32>().ok());
        format!("{:x}", number.expect("a hash"))
    };
    let expected = hash(&ctl.says(&["endpoint", "hashkv"]));
    let (_, theirs) = path("theirs.db");
    ctl.says(&["snapshot", "save", &theirs]);
    let (file, saved) = path("ours.db");
    ours(&["save", &saved, "--endpoints", &ctl.url]).expect("save");
    for backup in [&theirs, &saved] {
        let status = ours(&["status", backup]).expect("status");
        assert!(status.starts_with(&format!("{expected},")), "{status} is not of {expected}");
    }
    let (restored, restored_text) = path("restored");
    ours(&["restore", &saved, "--data-dir", &restored_text]).expect("restore");
    let again = ours(&["restore", &saved, "--data-dir", &restored_text]).expect_err("occupied");
    assert!(again.contains("holds data already"), "{again}");
    let back = Ctl::start(&restored, None, &[]);
    assert_eq!(
        hash(&back.says(&["endpoint", "hashkv"])),
        expected,
        "the restored server has the same content"
    );
    raised(ctl, &back, &saved, &path("raised").0);
    to_etcd_and_back(ctl, &saved, directory);
    let bytes = std::fs::read(&file).expect("read");
    let (_, unused) = path("unused");
    let cut = &bytes[..bytes.len() - 32];
    std::fs::write(&file, cut).expect("write");
    let refused = ours(&["restore", &saved, "--data-dir", &unused]).expect_err("no checksum");
    assert!(refused.contains("--skip-hash-check"), "{refused}");
    ours(&["restore", &saved, "--data-dir", &path("unchecked").1, "--skip-hash-check"]).expect("restore");
    let mut damaged = bytes;
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&file, damaged).expect("write");
    assert!(ours(&["status", &saved]).is_err(), "damage goes unnoticed");
    let refused = ours(&["restore", &saved, "--data-dir", &unused]).expect_err("damaged");
    assert!(refused.contains("checksum does not match"), "{refused}");
}

/// A backup restored with a raised revision: the same keys, and clients that saw later revisions have to look again.
fn raised(ctl: &Ctl, restored: &Ctl, saved: &str, data: &Path) {
    let output = Command::new(server_program())
        .args(["etcd", "snapshot", "restore", saved, "--bump-revision=1000000", "--mark-compacted"])
        .args(["--name=default", "--initial-cluster=default=http://127.0.0.1:9", "--data-dir"])
        .arg(data)
        .output()
        .expect("run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let raised = Ctl::start(data, None, &[]);
    let keys = ["get", "", "--from-key", "--keys-only"];
    assert_eq!(raised.says(&keys), ctl.says(&keys));
    let revision = |ctl: &Ctl| -> i64 {
        let fields = ctl.says(&["get", "nothing", "-w", "fields"]);
        let line = fields.lines().find(|line| line.starts_with("\"Revision\"")).expect("a revision");
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let old = revision(restored);
    assert_eq!(revision(&raised), old + 1_000_000);
    raised.refuses(&["get", "nothing", &format!("--rev={old}")], "has been compacted");
}

/// A backup moves to the real etcd with etcd's own tools, and one of the real etcd becomes a store of ours.
fn to_etcd_and_back(ctl: &Ctl, saved: &str, directory: &Path) {
    let path = |name: &str| directory.join(name).display().to_string();
    let ours = |arguments: &[&str]| {
        let output = Command::new(server_program()).args(["etcd", "snapshot"]).args(arguments).output();
        let output = output.expect("run");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let data = path("real-etcd");
    ctl.says(&["snapshot", "status", saved]);
    ctl.says(&["snapshot", "restore", saved, "--data-dir", &data]);
    let Some(etcd) = program("etcd") else { return };
    let (url, peer) =
        (format!("http://127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
    let child = Command::new(etcd)
        .args(["--data-dir", &data, "--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let flags = vec!["--endpoints".to_owned(), url.clone()];
    let real = Ctl { url, flags, _server: Running(child.expect("start etcd")) };
    let deadline = Instant::now() + DEADLINE;
    while !real.run(&["endpoint", "health"]).status.success() {
        assert!(Instant::now() < deadline, "etcd does not start with our data");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Everything but the header, which names another cluster.
    let everything = |ctl: &Ctl| {
        let fields = ctl.says(&["get", "", "--from-key", "-w", "fields"]);
        let lines: Vec<String> = fields.lines().skip(4).map(str::to_owned).collect();
        lines
    };
    let expected = everything(ctl);
    assert!(expected.len() > 10);
    assert_eq!(everything(&real), expected);
    // The users have come along with their passwords, roles and permissions, and go back with what etcd made of them.
    users_moved(&real);
    real.says(&["user", "add", "from-etcd:made there"]);
    real.says(&["auth", "enable"]);
    let root = |ctl: &Ctl, arguments: &[&str]| ctl.says(&[&["--user=root:secret"], arguments].concat());
    root(&real, &["put", "from-etcd", "yes"]);
    let back = path("back.db");
    root(&real, &["snapshot", "save", &back]);
    let restored = directory.join("from-etcd");
    ours(&["restore", &back, "--data-dir", &restored.display().to_string()]);
    let again = Ctl::start_locked(&restored, "--user=root:secret");
    again.refuses(&["get", "from-etcd"], "user name is empty");
    let from_etcd = ["--user=from-etcd", "--password=made there", "get", "from-etcd"];
    again.refuses(&from_etcd, "permission denied");
    for ctl in [&again, &real] {
        root(ctl, &["auth", "disable"]);
    }
    users_moved(&again);
    assert_eq!(everything(&again), everything(&real));
}

/// Users that [`mover`] made are here, and only with the right password.
fn users_moved(ctl: &Ctl) {
    assert!(ctl.says(&["user", "get", "mover", "--detail"]).contains("Role movers"));
    assert!(ctl.says(&["role", "get", "movers"]).contains("[m, n)"));
    ctl.says(&["auth", "enable"]);
    let mover = |password: &str, arguments: &[&str]| {
        let password = format!("--password={password}");
        ctl.run(&[&["--user=mover", &password], arguments].concat()).status.success()
    };
    assert!(mover("moved along", &["get", "mine"]));
    assert!(!mover("moved along", &["get", "other"]), "no permission for that");
    assert!(!mover("something else", &["get", "mine"]), "the wrong password is taken");
    ctl.says(&["--user=root:secret", "auth", "disable"]);
}

/// A user with a password and a permission, to be moved with backups.
fn mover(ctl: &Ctl) {
    for arguments in [
        &["user", "add", "mover:moved along"][..],
        &["role", "add", "movers"],
        &["role", "grant-permission", "movers", "read", "m", "n"],
        &["user", "grant-role", "mover", "movers"],
    ] {
        ctl.says(arguments);
    }
}
