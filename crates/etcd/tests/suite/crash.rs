//! `kill -9` under load, again and again: what was acknowledged is there, what was not is whole or absent, and a watch
//! that resumes misses nothing.
//!
//! `KELSON_CRASH_ROUNDS=300` makes it a soak.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd::remote::{Channel, RemoteConfig, connect};
use etcd::v3::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseId, LeaseKeepAliveResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, PutRequest, RequestOp, RequestOpRequest, TxnRequest, TxnResponse,
};
use etcd::{Committed, ListOptions, Precondition, Store, WatchMessage};
use lifecycle::Tasks;

use crate::server::{Running, free_port};

/// The server as a program: cargo builds the examples with the tests.
pub fn server_program() -> PathBuf {
    let test = std::env::current_exe().expect("this program");
    let program = test.parent().and_then(Path::parent).expect("a target directory").join("examples/etcd");
    assert!(program.exists(), "{} is missing: run the whole `cargo test -p etcd` once", program.display());
    program
}

pub fn start(directory: &Path, port: u16) -> Running {
    start_with(directory, port, &[])
}

fn start_with(directory: &Path, port: u16, more: &[&str]) -> Running {
    let child = Command::new(server_program())
        .arg("etcd")
        .arg("--data-dir")
        .arg(directory)
        .args(["--listen-client-urls", &format!("http://127.0.0.1:{port}")])
        .args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())])
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start the server");
    Running(child)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_left_of_a_lease_survives_the_death_of_the_process() {
    let directory = tempfile::tempdir().expect("directory");
    let port = free_port();
    let config = RemoteConfig { endpoints: vec![format!("http://127.0.0.1:{port}")], tls: None };
    let flags = ["--lease-checkpoint-interval=1s"];
    let running = start_with(directory.path(), port, &flags);
    let tasks = Tasks::new();
    let channel = Channel::new(&config, &tasks).expect("channel");
    // Until it serves.
    connect(&config, &tasks).await.expect("connect").progress().await.expect("the server answers");
    let granted: LeaseGrantResponse = channel
        .call("/etcdserverpb.Lease/LeaseGrant", &LeaseGrantRequest { ttl: 1000, id: 0 })
        .await
        .expect("grant");
    let left = async || {
        let request = LeaseTimeToLiveRequest { id: granted.id, keys: false };
        channel.call::<LeaseTimeToLiveResponse>("/etcdserverpb.Lease/LeaseTimeToLive", &request).await
    };
    // Until five seconds have gone: a checkpoint of at most 998 seconds is in the log by then.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while left().await.expect("time to live").ttl > 995 {
        assert!(tokio::time::Instant::now() < deadline, "time stands still");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = left().await.expect("time to live").ttl;
    drop(running);
    let running = start_with(directory.path(), port, &flags);
    let after = loop {
        match left().await {
            Ok(answer) => break answer,
            Err(_) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(after.granted_ttl, 1000);
    assert!(after.ttl <= 998, "the lease started again with {} seconds", after.ttl);
    assert!(after.ttl + 1 >= before, "the lease lost time: {before} seconds became {}", after.ttl);
    // Kept alive it has all its time again, and that survives as well.
    let mut kept = channel
        .server_stream("/etcdserverpb.Lease/LeaseKeepAlive", &LeaseId { id: granted.id })
        .await
        .expect("keep alive");
    let answer: LeaseKeepAliveResponse = kept.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.ttl, 1000);
    drop(running);
    let _running = start_with(directory.path(), port, &flags);
    let again = loop {
        match left().await {
            Ok(answer) => break answer,
            Err(_) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    };
    assert!(again.ttl >= 998, "a restart took time from a lease just kept alive: {}", again.ttl);
    tasks.drain(Duration::from_secs(2)).await;
}

/// What the writers of one round were told.
#[derive(Default)]
struct Acknowledged {
    puts: BTreeMap<String, i64>,
    pair: u64,
}

/// The value of a key, told by its name. Every other one is large, and so read from the log's file after a while.
fn value_of(key: &str) -> Bytes {
    let number = key.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    Bytes::from(vec![number; if number % 2 == 0 { 200 } else { 5000 }])
}

async fn writer(config: &RemoteConfig, name: String, done: &AtomicBool) -> Acknowledged {
    let tasks = Tasks::new();
    let channel = Channel::new(config, &tasks).expect("channel");
    let store = connect(config, &tasks).await.expect("connect");
    let mut acknowledged = Acknowledged::default();
    let mut number = 0_u64;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let key = format!("{name}/{number:06}");
        let put = store.put(key.clone().into(), value_of(&key), 0, Precondition::None);
        match tokio::time::timeout(Duration::from_secs(2), put).await {
            Ok(Ok(Committed::Done { revision, .. })) => acknowledged.puts.insert(key, revision),
            _ => break,
        };
        // Two keys in one transaction: never one without the other.
        let operation = |suffix: &str| RequestOp {
            request: Some(RequestOpRequest::Put(PutRequest {
                key: format!("{name}-{suffix}").into(),
                value: number.to_string().into(),
                ..PutRequest::default()
            })),
        };
        let request =
            TxnRequest { success: vec![operation("left"), operation("right")], ..TxnRequest::default() };
        match channel.call::<TxnResponse>("/etcdserverpb.KV/Txn", &request).await {
            Ok(_) => acknowledged.pair = number,
            Err(_) => break,
        }
    }
    tasks.drain(Duration::from_secs(1)).await;
    acknowledged
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let rounds: u64 =
        std::env::var("KELSON_CRASH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let directory = tempfile::tempdir().expect("directory");
    let port = free_port();
    let config = RemoteConfig { endpoints: vec![format!("http://127.0.0.1:{port}")], tls: None };
    let mut running = start(directory.path(), port);
    // One watch for the whole test: it must see every revision once, across all the deaths of its server.
    let tasks = Tasks::new();
    let store = connect(&config, &tasks).await.expect("connect");
    let mut watch = store.watch(Bytes::from_static(b"round"), 1).await.expect("watch");
    let mut expected = BTreeMap::new();
    for round in 0..rounds {
        let done = AtomicBool::new(false);
        let writers = futures::future::join_all(
            (0..6).map(|number| writer(&config, format!("round{round:04}-{number}"), &done)),
        );
        let killer = async {
            // A different moment each time, spread by the round's number; the wait is the load itself.
            tokio::time::sleep(Duration::from_millis(40 + round * 37 % 160)).await;
            running.0.kill().expect("kill");
            running.0.wait().expect("wait");
            done.store(true, Ordering::Relaxed);
        };
        let (acknowledged, ()) = futures::future::join(writers, killer).await;
        running = start(directory.path(), port);
        for (number, told) in acknowledged.into_iter().enumerate() {
            let prefix = format!("round{round:04}-{number}");
            let listing = store.list(prefix.as_bytes(), ListOptions::default()).await.expect("list");
            let found: BTreeMap<String, _> =
                listing.items.iter().map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv)).collect();
            for (key, revision) in told.puts {
                let kv = found.get(&key).unwrap_or_else(|| panic!("{key} was acknowledged and is lost"));
                assert_eq!(kv.mod_revision, revision);
                assert!(kv.value == value_of(&key), "{key} has another value");
            }
            let side = |suffix: &str| {
                let kv = found.get(&format!("{prefix}-{suffix}"))?;
                Some((String::from_utf8_lossy(&kv.value).parse::<u64>().ok()?, kv.mod_revision))
            };
            assert_eq!(side("left"), side("right"), "half a transaction");
            assert!(
                side("left").map_or(0, |(value, _)| value) >= told.pair,
                "an acknowledged transaction is lost"
            );
        }
    }
    // The whole history, read afresh, is what the surviving watch has seen.
    let last = store.progress().await.expect("progress");
    let mut fresh = store.watch(Bytes::from_static(b"round"), 1).await.expect("watch");
    collect(&mut fresh, last, &mut expected).await;
    let mut seen = BTreeMap::new();
    collect(&mut watch, last, &mut seen).await;
    assert!(!expected.is_empty());
    assert!(seen == expected, "the resumed watch saw {} changes of {}", seen.len(), expected.len());
    tasks.drain(Duration::from_secs(2)).await;
}

/// Reads a watch until a revision; every event once.
async fn collect(watch: &mut etcd::Watch, last: i64, seen: &mut BTreeMap<(i64, Bytes), Bytes>) {
    let newest_of = |events: &[etcd::Event]| events.last().map_or(0, |event| event.kv.mod_revision);
    loop {
        let message = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
        match message.expect("a message in time").expect("open").expect("no error") {
            WatchMessage::Events { events, .. } => {
                let newest = newest_of(&events);
                for event in events {
                    let place = (event.kv.mod_revision, event.kv.key.clone());
                    assert!(seen.insert(place, event.kv.value).is_none(), "an event came twice");
                }
                if newest >= last {
                    return;
                }
            }
            WatchMessage::Progress { revision } if revision >= last => return,
            WatchMessage::Progress { .. } => {}
        }
    }
}
