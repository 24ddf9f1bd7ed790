//! TLS with client certificates, and a real etcd cluster of three that loses members while it is used.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd::remote::{RemoteConfig, connect};
use etcd::{Committed, Precondition, Store, StoreError, WatchMessage};
use lifecycle::Tasks;
use pki::{Algorithm, Pair, PrivateKey, Request, San, Subject, Usages};

use crate::conformance;
use crate::server::{Running, Server, free_port, program, remote};

/// A certificate authority and one certificate for servers and clients alike.
pub struct Certificates {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

pub fn certificates(directory: &Path, name: &str) -> Certificates {
    let now = jiff::Timestamp::now();
    let request = |name: &str, usages, is_ca| Request {
        subject: Subject::new(name, &[]),
        sans: vec![San::parse("localhost"), San::parse("127.0.0.1")],
        usages,
        is_ca,
        not_before: now - jiff::SignedDuration::from_hours(1),
        not_after: now + jiff::SignedDuration::from_hours(24),
    };
    let key = || Arc::new(PrivateKey::generate(Algorithm::EcdsaP256).expect("key"));
    let authority = request("test authority", Usages::authority(), true);
    let authority = Pair::self_signed(&Request { sans: Vec::new(), ..authority }, key()).expect("authority");
    let pair = authority.issue(&request(name, Usages::peer(), false), key()).expect("certificate");
    let write = |file: &str, text: String| {
        let path = directory.join(file);
        std::fs::write(&path, text).expect("write");
        path
    };
    Certificates {
        ca: write("ca.pem", authority.certificate_pem()),
        cert: write("cert.pem", pair.certificate_pem()),
        key: write("key.pem", pair.key.to_pem()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_certificate_are_refused_and_those_with_one_served() {
    let directory = tempfile::tempdir().expect("directory");
    let files = certificates(directory.path(), "tester");
    let flags = [
        format!("--cert-file={}", files.cert.display()),
        format!("--key-file={}", files.key.display()),
        format!("--trusted-ca-file={}", files.ca.display()),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let server = Server::start(&directory.path().join("data"), &flags);
    let (store, tasks) =
        remote(std::slice::from_ref(&server.endpoint), Some((&files.ca, &files.cert, &files.key))).await;
    conformance::all(store).await;
    let anonymous = RemoteConfig {
        endpoints: vec![server.endpoint.clone()],
        tls: Some(etcd::tls::client(&files.ca, None).expect("TLS")),
    };
    let channel = etcd::remote::Channel::new(&anonymous, &tasks).expect("channel");
    let range = etcd::v3::messages::RangeRequest { key: "a".into(), ..Default::default() };
    let refused = channel.call::<etcd::v3::messages::RangeResponse>("/etcdserverpb.KV/Range", &range).await;
    assert!(refused.is_err(), "served without a certificate");
    tasks.drain(Duration::from_secs(5)).await;
    server.end().await;
}

struct Member {
    arguments: Vec<String>,
    running: Option<Running>,
}

impl Member {
    fn start(&mut self, program: &Path) {
        let child = Command::new(program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start etcd");
        self.running = Some(Running(child));
    }
}

fn members(directory: &Path, files: &Certificates) -> (Vec<Member>, Vec<String>) {
    let ports: Vec<(u16, u16)> = (0..3).map(|_| (free_port(), free_port())).collect();
    let peers: Vec<String> = ports
        .iter()
        .enumerate()
        .map(|(number, (_, peer))| format!("m{number}=https://127.0.0.1:{peer}"))
        .collect();
    let endpoints: Vec<String> =
        ports.iter().map(|(client, _)| format!("https://127.0.0.1:{client}")).collect();
    let members = ports
        .iter()
        .enumerate()
        .map(|(number, (client, peer))| {
            let (client, peer) = (format!("https://127.0.0.1:{client}"), format!("https://127.0.0.1:{peer}"));
            let data = directory.join(format!("m{number}")).display().to_string();
            let (cert, key, ca) = (
                files.cert.display().to_string(),
                files.key.display().to_string(),
                files.ca.display().to_string(),
            );
            let arguments = [
                ("name", format!("m{number}")),
                ("data-dir", data),
                ("listen-client-urls", client.clone()),
                ("advertise-client-urls", client),
                ("listen-peer-urls", peer.clone()),
                ("initial-advertise-peer-urls", peer),
                ("initial-cluster", peers.join(",")),
                ("cert-file", cert.clone()),
                ("key-file", key.clone()),
                ("trusted-ca-file", ca.clone()),
                ("client-cert-auth", "true".to_owned()),
                ("peer-cert-file", cert),
                ("peer-key-file", key),
                ("peer-trusted-ca-file", ca),
                ("peer-client-cert-auth", "true".to_owned()),
                ("heartbeat-interval", "50".to_owned()),
                ("election-timeout", "500".to_owned()),
            ];
            let arguments = arguments.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
            Member { arguments, running: None }
        })
        .collect();
    (members, endpoints)
}

/// Writes numbers until told to stop; returns those acknowledged. Failures with an unknown outcome are allowed, silence is not.
async fn write_on(store: Arc<dyn Store>, done: &AtomicBool) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let mut number = 0;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let put = store.put(format!("/on/{number:06}").into(), Bytes::new(), 0, Precondition::None);
        match tokio::time::timeout(Duration::from_secs(25), put).await.expect("an answer in time") {
            Ok(Committed::Done { .. }) => acknowledged.push(number),
            Ok(other) => panic!("{other:?}"),
            Err(StoreError::Unavailable(_)) => {}
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    acknowledged
}

async fn wait_for_progress(store: &dyn Store, what: &str) {
    let before = store.progress().await.expect("progress");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(25);
    while store.progress().await.unwrap_or(0) < before + 20 {
        assert!(tokio::time::Instant::now() < deadline, "no writes {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_cluster_keeps_serving_while_members_die_and_the_leader_moves() {
    let (Some(etcd), Some(_)) = (program("etcd"), program("etcdctl")) else { return };
    keeps_serving(&etcd, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_ours_keeps_serving_while_members_die_and_the_leader_moves() {
    let Some(_) = program("etcdctl") else { return };
    keeps_serving(&crate::crash::server_program(), Some("etcd")).await;
}

/// Members of a program, which may have to be told to be an etcd.
async fn keeps_serving(etcd: &Path, command: Option<&str>) {
    let directory = tempfile::tempdir().expect("directory");
    let files = certificates(directory.path(), "tester");
    let (mut cluster, endpoints) = members(directory.path(), &files);
    for member in &mut cluster {
        member.arguments.splice(0..0, command.map(str::to_owned));
        member.start(etcd);
    }
    let (store, tasks) = remote(&endpoints, Some((&files.ca, &files.cert, &files.key))).await;
    let mut watch = store.watch(Bytes::from_static(b"/on/"), 0).await.expect("watch");
    let done = AtomicBool::new(false);
    let disturb = async {
        wait_for_progress(&*store, "at first").await;
        for member in &mut cluster {
            member.running = None;
            wait_for_progress(&*store, "with a member dead").await;
            member.start(etcd);
            wait_for_progress(&*store, "with the member back").await;
        }
        let ctl = |arguments: &[&str]| {
            Command::new("timeout")
                .args(["15", "etcdctl", "--endpoints", &endpoints.join(",")])
                .arg(format!("--cacert={}", files.ca.display()))
                .arg(format!("--cert={}", files.cert.display()))
                .arg(format!("--key={}", files.key.display()))
                .args(arguments)
                .env("ETCDCTL_API", "3")
                .stdin(Stdio::null())
                .output()
                .expect("etcdctl")
        };
        let status = ctl(&["endpoint", "status"]);
        let lines = String::from_utf8_lossy(&status.stdout).into_owned();
        let follower =
            lines.lines().find(|line| line.contains(", false, ")).and_then(|line| line.split(", ").nth(1));
        let moved = ctl(&["move-leader", follower.expect("a follower")]);
        assert!(moved.status.success(), "{}", String::from_utf8_lossy(&moved.stderr));
        wait_for_progress(&*store, "with another leader").await;
        done.store(true, Ordering::Relaxed);
    };
    let (acknowledged, ()) = futures::future::join(write_on(store.clone(), &done), disturb).await;
    assert!(acknowledged.len() > 100, "only {} writes", acknowledged.len());
    // The watch has come through all of it without a gap.
    let last = *acknowledged.last().expect("writes");
    let mut seen = std::collections::BTreeSet::new();
    while !seen.contains(&last) {
        let message = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("in time");
        if let WatchMessage::Events { events, .. } = message.expect("open").expect("no error") {
            for event in events {
                let number = String::from_utf8_lossy(&event.kv.key[4..]).parse::<u64>().expect("a number");
                assert!(seen.insert(number), "{number} came twice");
            }
        }
    }
    let missing: Vec<&u64> = acknowledged.iter().filter(|number| !seen.contains(number)).collect();
    assert!(missing.is_empty(), "acknowledged but not seen: {missing:?}");
    tasks.drain(Duration::from_secs(5)).await;
    drop(
        connect(&RemoteConfig { endpoints, tls: None }, &Tasks::new()).await.err().expect("https needs TLS"),
    );
}
