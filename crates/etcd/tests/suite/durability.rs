//! What survives: restarts, torn writes, damage, full and failing disks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd::{Committed, Config, Etcd, ListOptions, OpenError, Precondition, Store, StoreError};
use lifecycle::Tasks;

use crate::conformance;
use crate::faulty::{Fault, FaultyDisk};

pub fn config(directory: &Path) -> Config {
    Config { data_dir: Some(directory.to_owned()), ..Config::default() }
}

pub fn open(directory: &Path) -> (Arc<Etcd>, Tasks) {
    let tasks = Tasks::new();
    let store = etcd::open(config(directory), &tasks).expect("open");
    (store, tasks)
}

pub async fn close(tasks: Tasks) {
    assert!(tasks.drain(Duration::from_secs(10)).await.is_empty(), "the store did not close");
}

async fn put(store: &Etcd, key: &str, value: &str) -> Result<i64, StoreError> {
    let key = Bytes::copy_from_slice(key.as_bytes());
    let value = Bytes::copy_from_slice(value.as_bytes());
    match store.put(key, value, 0, Precondition::None).await? {
        Committed::Done { revision, .. } => Ok(revision),
        other => panic!("{other:?}"),
    }
}

/// Everything that can be seen at the current revision.
async fn contents(store: &Etcd) -> Vec<(String, String, i64, i64)> {
    let listing = store.list(b"", ListOptions::default()).await.expect("list");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    listing.items.iter().map(|kv| (text(&kv.key), text(&kv.value), kv.version, kv.mod_revision)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_durable_store_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("directory");
    let (store, tasks) = open(directory.path());
    conformance::all(store).await;
    close(tasks).await;
    // Once more on what the first run left behind.
    let (store, tasks) = open(directory.path());
    conformance::all(store).await;
    close(tasks).await;
}

#[tokio::test]
async fn a_restart_keeps_data_history_compaction_and_leases() {
    let directory = tempfile::tempdir().expect("directory");
    let (store, tasks) = open(directory.path());
    let first = put(&store, "a", "1").await.expect("put");
    let second = put(&store, "a", "2").await.expect("put");
    put(&store, "b", "1").await.expect("put");
    let lease = store.grant_lease(1000).await.expect("grant");
    store.put("c".into(), "leased".into(), lease, Precondition::None).await.expect("put");
    store.compact(second).await.expect("compact");
    store.delete("b".into(), Precondition::None).await.expect("delete");
    let (before, revision) = (contents(&store).await, store.revision());
    close(tasks).await;

    let (store, tasks) = open(directory.path());
    assert_eq!(contents(&store).await, before);
    assert_eq!(store.revision(), revision);
    assert!(matches!(store.get(b"a", first).await, Err(StoreError::Compacted { .. })));
    let mut watch = store.watch("b".into(), second).await.expect("watch");
    assert_eq!(conformance::collect(&mut watch, 2).await.len(), 2, "history can still be watched");
    store.revoke_lease(lease).await.expect("the lease survived");
    assert_eq!(store.get_now(b"c"), None, "and so did its hold on the key");
    close(tasks).await;
}

#[tokio::test]
async fn a_second_opener_is_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let (_store, tasks) = open(directory.path());
    let second = etcd::open(config(directory.path()), &Tasks::new());
    assert!(matches!(second.map(|_| ()), Err(OpenError::InUse { .. })));
    close(tasks).await;
}

#[test]
fn a_lock_is_free_although_the_holder_was_just_starting_a_process() {
    let directory = tempfile::tempdir().expect("directory");
    let started = std::thread::spawn(|| {
        for _ in 0..300 {
            std::process::Command::new("/bin/true").status().expect("run");
        }
    });
    while !started.is_finished() {
        drop(etcd::disk::Directory::open(directory.path()).expect("open").expect("nobody has it"));
    }
    started.join().expect("processes");
}

fn log_file(directory: &Path) -> std::path::PathBuf {
    let mut logs: Vec<_> = std::fs::read_dir(directory)
        .expect("list")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")))
        .collect();
    logs.sort();
    logs.pop().expect("a log")
}

/// Why a store does not open.
fn refusal(directory: &Path) -> String {
    let error = etcd::open(config(directory), &Tasks::new()).map(|_| ()).expect_err("damage goes unnoticed");
    telemetry::chain(&error).to_string()
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_damage_refuses_to_start() {
    let directory = tempfile::tempdir().expect("directory");
    let (store, tasks) = open(directory.path());
    for number in 0..10 {
        put(&store, &format!("key-{number}"), "value").await.expect("put");
    }
    let before = contents(&store).await;
    let path = log_file(directory.path());
    close(tasks).await;
    let length = std::fs::metadata(&path).expect("there").len() as usize;
    let (store, tasks) = open(directory.path());
    put(&store, "one", "more").await.expect("put");
    close(tasks).await;

    let whole = std::fs::read(&path).expect("read");
    assert!(whole.len() > length + 40);
    // The machine stopped in the middle of the last write: the file had grown by half of it.
    std::fs::write(&path, &whole[..length + 40]).expect("write");
    let (store, tasks) = open(directory.path());
    assert_eq!(contents(&store).await, before, "half a batch after the end changes nothing");
    put(&store, "after", "the cut").await.expect("put");
    close(tasks).await;

    let whole = std::fs::read(&path).expect("read");
    let mut damaged = whole.clone();
    damaged[60] ^= 1;
    std::fs::write(&path, &damaged).expect("write");
    let text = refusal(directory.path());
    assert!(text.contains("log-0000000000000001 is damaged at offset 32"), "{text}");

    // Bytes that no crash can have left there.
    std::fs::write(&path, [&whole[..], &[1, 2, 3]].concat()).expect("write");
    let (_, tasks) = open(directory.path());
    close(tasks).await;
    std::fs::write(&path, [&whole[..], &[1; 40], &[0; 9000]].concat()).expect("write");
    let text = refusal(directory.path());
    assert!(text.contains(&format!("damaged at offset {}", whole.len())), "{text}");
    assert_eq!(
        std::fs::read(&path).expect("read").len(),
        whole.len() + 9040,
        "what is refused is left alone"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_the_last_acknowledged_write_refuses_to_start() {
    let disk = FaultyDisk::reserving();
    let (store, tasks) = open_faulty(&disk);
    for number in 0..5 {
        put(&store, &format!("key-{number}"), "value").await.expect("put");
    }
    disk.lose_unsynced();
    let log =
        disk.handle().list().expect("list").into_iter().find(|name| name.starts_with("log-")).expect("a log");
    let whole = disk.content(&log);
    let end = whole.iter().rposition(|byte| *byte != 0).expect("records");
    for at in [end, end - 3, end - 10] {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        let damaged = FaultyDisk::reserving();
        damaged.put(&log, flipped);
        let opened = etcd::engine::open_on(Some(damaged.handle()), Config::default(), &Tasks::new());
        let text =
            telemetry::chain(&opened.map(|_| ()).expect_err("an acknowledged write is dropped")).to_string();
        assert!(text.contains(&format!("{log} is damaged at offset")), "{text}");
        assert!(text.contains("restore a backup") && text.contains("remove this one"), "{text}");
    }
    close(tasks).await;
}

/// A small generator: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[tokio::test]
async fn whatever_a_loss_of_power_leaves_of_the_last_write_the_acknowledged_ones_are_there() {
    for seed in 1..25_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let disk = if seed % 3 == 0 { FaultyDisk::new() } else { FaultyDisk::reserving() };
        let mut acknowledged: Vec<(String, String)> = Vec::new();
        for round in 0..6 {
            let (store, tasks) = open_faulty(&disk);
            for (key, value) in &acknowledged {
                let found = store.get_now(key.as_bytes()).map(|kv| kv.value);
                assert_eq!(
                    found.as_deref(),
                    Some(value.as_bytes()),
                    "seed {seed}, round {round}: {key} is lost"
                );
            }
            for number in 0..random.below(4) {
                let zeros = "\0".repeat(random.below(3000) as usize);
                let (key, value) = (format!("{round}-{number}"), format!("{number}{zeros}{round}"));
                put(&store, &key, &value).await.expect("put");
                acknowledged.push((key, value));
            }
            // The next ones are written and not synced when the power goes.
            disk.inject(Fault::Sync);
            let unsynced: Vec<String> =
                (0..random.below(4)).map(|number| format!("{round}-unsynced-{number}")).collect();
            let value = "x\0".repeat(random.below(1500) as usize);
            let writes = unsynced.iter().map(|key| put(&store, key, &value));
            for outcome in futures::future::join_all(writes).await {
                assert!(outcome.is_err());
            }
            close(tasks).await;
            let share = random.below(5);
            disk.lose(|| random.below(4) < share);
            disk.heal();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endless_churn_stays_within_three_times_the_data() {
    let directory = tempfile::tempdir().expect("directory");
    let (store, tasks) = open(directory.path());
    let value = Bytes::from(vec![7; 64 << 10]);
    let mut largest = 0;
    for _ in 0..40 {
        let writes = (0..32)
            .map(|number| store.put(format!("key-{number:02}").into(), value.clone(), 0, Precondition::None));
        for outcome in futures::future::join_all(writes).await {
            outcome.expect("put");
        }
        store.compact(store.revision()).await.expect("compact");
        let on_disk: u64 = std::fs::read_dir(directory.path())
            .expect("list")
            .filter_map(|entry| entry.expect("entry").metadata().ok())
            .map(|data| data.len())
            .sum();
        largest = largest.max(on_disk);
    }
    // 2 MiB of data: the log's minimum of 16 MiB, room reserved, and a snapshot or two.
    assert!(largest < 64 << 20, "{largest} bytes on disk for 2 MiB of data");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while store.size_in_bytes().await.expect("size") > 4 << 20 {
        assert!(tokio::time::Instant::now() < deadline, "compacted history stays in memory");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = contents(&store).await;
    close(tasks).await;
    let names: Vec<String> = std::fs::read_dir(directory.path())
        .expect("list")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
    let (store, tasks) = open(directory.path());
    assert_eq!(contents(&store).await, before);
    close(tasks).await;
}

#[tokio::test]
async fn the_quota_refuses_puts_until_there_is_room_again() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let limited = Config { quota_bytes: 10_000, ..config(directory.path()) };
    let store = etcd::open(limited, &tasks).expect("open");
    let mut written = 0;
    while put(&store, &format!("key-{written}"), &"v".repeat(500)).await.is_ok() {
        written += 1;
        assert!(written < 100, "the quota does not hold");
    }
    assert_eq!(put(&store, "more", "x".repeat(500).as_str()).await, Err(StoreError::NoSpace));
    assert_eq!(
        put(&store, "less", "x").await,
        Err(StoreError::NoSpace),
        "a small write slips past the alarm"
    );
    assert!(store.get_now(b"key-0").is_some(), "reads go on");
    assert!(store.has_space_alarm());
    for number in 0..written {
        store.delete(format!("key-{number}").into(), Precondition::None).await.expect("deletes are taken");
    }
    store.compact(store.revision()).await.expect("compact");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while put(&store, "again", "x").await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "no room after compaction");
        tokio::task::yield_now().await;
    }
    assert!(!store.has_space_alarm());
    close(tasks).await;
}

fn open_faulty(disk: &FaultyDisk) -> (Arc<Etcd>, Tasks) {
    let tasks = Tasks::new();
    let store = etcd::engine::open_on(Some(disk.handle()), Config::default(), &tasks).expect("open");
    (store, tasks)
}

#[tokio::test]
async fn a_failed_fsync_is_final_and_unacknowledged() {
    let disk = FaultyDisk::new();
    let (store, tasks) = open_faulty(&disk);
    put(&store, "a", "1").await.expect("put");
    disk.inject(Fault::Sync);
    assert!(matches!(put(&store, "a", "2").await, Err(StoreError::Unavailable(_))));
    disk.heal();
    assert!(matches!(put(&store, "a", "3").await, Err(StoreError::Unavailable(_))), "nothing is retried");
    assert_eq!(&store.get_now(b"a").expect("readable").value[..], b"1", "reads show what is durable");
    close(tasks).await;
    // The machine loses what was never synced.
    disk.lose_unsynced();
    let (store, tasks) = open_faulty(&disk);
    assert_eq!(&store.get_now(b"a").expect("there").value[..], b"1");
    put(&store, "a", "4").await.expect("a restart takes writes again");
    close(tasks).await;
}

#[tokio::test]
async fn a_failed_or_short_write_is_not_acknowledged_and_not_found_later() {
    for fault in [Fault::Write, Fault::ShortWrite] {
        let disk = FaultyDisk::new();
        let (store, tasks) = open_faulty(&disk);
        put(&store, "a", "1").await.expect("put");
        disk.inject(fault);
        assert!(matches!(put(&store, "a", "2").await, Err(StoreError::Unavailable(_))), "{fault:?}");
        close(tasks).await;
        disk.heal();
        let (store, tasks) = open_faulty(&disk);
        assert_eq!(&store.get_now(b"a").expect("there").value[..], b"1", "{fault:?}");
        put(&store, "a", "3").await.expect("put");
        close(tasks).await;
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_recovers_when_there_is_space() {
    let disk = FaultyDisk::new();
    let (store, tasks) = open_faulty(&disk);
    let first = put(&store, "a", "1").await.expect("put");
    disk.inject(Fault::NoSpace);
    assert_eq!(put(&store, "a", "2").await, Err(StoreError::NoSpace));
    assert_eq!(put(&store, "b", "1").await, Err(StoreError::NoSpace));
    assert!(store.has_space_alarm());
    assert_eq!(&store.get_now(b"a").expect("readable").value[..], b"1");
    assert_eq!(store.revision(), first, "a refused write leaves no revision");
    disk.heal();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let next = loop {
        match put(&store, "a", "3").await {
            Ok(revision) => break revision,
            Err(StoreError::NoSpace) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(other) => panic!("{other}"),
        }
        assert!(tokio::time::Instant::now() < deadline, "no recovery");
    };
    assert_eq!(next, first + 1);
    close(tasks).await;
    let (store, tasks) = open_faulty(&disk);
    assert_eq!(&store.get_now(b"a").expect("there").value[..], b"3");
    assert_eq!(store.get_now(b"b"), None);
    close(tasks).await;
}

/// Whatever fails once, what was acknowledged is there. A new log file that could not be begun must not make void what goes on to be written to the old one.
#[tokio::test]
async fn nothing_acknowledged_is_lost_whichever_change_of_the_disk_fails() {
    // More than it takes to write what is written here.
    for changes in 0..100 {
        let disk = FaultyDisk::new();
        let config = || Config { snapshot_log_bytes: 2000, ..Config::default() };
        let (tasks, mut acknowledged) = (Tasks::new(), Vec::new());
        let store = etcd::engine::open_on(Some(disk.handle()), config(), &tasks).expect("open");
        disk.fail_once_after(changes);
        for number in 0..30 {
            let key = format!("key-{number}");
            if put(&store, &key, &"v".repeat(100)).await.is_ok() {
                acknowledged.push(key);
            }
        }
        close(tasks).await;
        disk.heal();
        // All that was written has reached the disk, or nothing but what was synced.
        disk.lose(|| changes % 2 == 0);
        let tasks = Tasks::new();
        let store = etcd::engine::open_on(Some(disk.handle()), config(), &tasks).expect("open");
        let lost: Vec<&String> =
            acknowledged.iter().filter(|key| store.get_now(key.as_bytes()).is_none()).collect();
        assert!(lost.is_empty(), "after {changes} changes: {lost:?} of {}", acknowledged.len());
        close(tasks).await;
    }
}
