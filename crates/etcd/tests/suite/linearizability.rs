//! Concurrent histories have an order in which they could have happened one by one.
//!
//! Clients read, write and compare-and-swap a few keys; begin and end of each operation are recorded. For every key a search
//! looks for an order that respects real time and in which every answer is right (Wing and Gong's, with memory of the
//! states seen).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use etcd::{Committed, Precondition, Store};
use lifecycle::Tasks;

const CLIENTS: usize = 4;
const OPERATIONS: usize = 12;
const KEYS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    /// Found this value (0: none).
    Read(u64),
    /// Wrote this value.
    Write(u64),
    /// Replaced one value by another.
    Swap(u64, u64),
    /// Deleted whatever there was.
    Delete,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    begun: Instant,
    ended: Instant,
    operation: Operation,
}

/// The value after an operation on a value, or `None` if the answer cannot be right.
fn apply(value: u64, operation: Operation) -> Option<u64> {
    match operation {
        Operation::Read(seen) => (seen == value).then_some(value),
        Operation::Write(written) => Some(written),
        Operation::Swap(from, to) => (from == value).then_some(to),
        Operation::Delete => Some(0),
    }
}

/// Whether an order exists.
fn linearizable(history: &[Entry]) -> bool {
    assert!(history.len() <= 64, "the search keeps what is done in 64 bits");
    fn search(history: &[Entry], done: u64, value: u64, seen: &mut HashSet<(u64, u64)>) -> bool {
        if done.count_ones() as usize == history.len() {
            return true;
        }
        if !seen.insert((done, value)) {
            return false;
        }
        let open = || history.iter().enumerate().filter(|(index, _)| done >> index & 1 == 0);
        // Whatever ended first must come before everything that began after it.
        let first_end = open().map(|(_, entry)| entry.ended).min();
        open().filter(|(_, entry)| first_end.is_none_or(|end| entry.begun <= end)).any(|(index, entry)| {
            apply(value, entry.operation).is_some_and(|next| search(history, done | 1 << index, next, seen))
        })
    }
    search(history, 0, 0, &mut HashSet::new())
}

fn number(value: &Bytes) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("a number")
}

async fn client(store: Arc<dyn Store>, base: &str, client: usize) -> Vec<(usize, Entry)> {
    let mut history = Vec::new();
    for round in 0..OPERATIONS {
        let target = (client * 7 + round * 3 + round / 2) % KEYS;
        let key = Bytes::from(format!("{base}{target}"));
        let fresh = (client * 1000 + round + 1) as u64;
        let value = Bytes::from(fresh.to_string());
        let begun = Instant::now();
        let operation = match (client + round) % 4 {
            0 => {
                let found = store.get(&key, 0).await.expect("get").0;
                Some(Operation::Read(found.map_or(0, |kv| number(&kv.value))))
            }
            1 => {
                store.put(key, value, 0, Precondition::None).await.expect("put");
                Some(Operation::Write(fresh))
            }
            2 => {
                let found = store.get(&key, 0).await.expect("get").0;
                let when = found
                    .as_ref()
                    .map_or(Precondition::Absent, |kv| Precondition::ModRevision(kv.mod_revision));
                let before = found.map_or(0, |kv| number(&kv.value));
                match store.put(key, value, 0, when).await.expect("put") {
                    Committed::Done { .. } => Some(Operation::Swap(before, fresh)),
                    // What the conflict shows was read at some point during the call.
                    Committed::Conflict { current, .. } => {
                        Some(Operation::Read(current.map_or(0, |kv| number(&kv.value))))
                    }
                }
            }
            _ if round % 3 == 0 => {
                store.delete(key, Precondition::None).await.expect("delete");
                Some(Operation::Delete)
            }
            _ => None,
        };
        if let Some(operation) = operation {
            history.push((target, Entry { begun, ended: Instant::now(), operation }));
        }
        tokio::task::yield_now().await;
    }
    history
}

/// Records histories on keys of their own, and checks them.
pub async fn check(store: Arc<dyn Store>, name: &str, rounds: usize) {
    for round in 0..rounds {
        let base = format!("/linear/{name}/{round}/");
        let tasks = Tasks::new();
        let (sender, mut receiver) = tokio::sync::mpsc::channel(CLIENTS);
        for number in 0..CLIENTS {
            let (store, base, sender) = (store.clone(), base.clone(), sender.clone());
            tasks.spawn("client", move |_| async move {
                let history = client(store, &base, number).await;
                sender.send(history).await.expect("the test waits");
            });
        }
        drop(sender);
        let mut histories = vec![Vec::new(); KEYS];
        let mut clients = 0;
        while let Some(history) = receiver.recv().await {
            clients += 1;
            for (key, entry) in history {
                histories[key].push(entry);
            }
        }
        assert_eq!(clients, CLIENTS, "a client failed");
        for history in &histories {
            assert!(linearizable(history), "no order explains {history:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_in_process_are_linearizable() {
    let directory = tempfile::tempdir().expect("directory");
    let (store, tasks) = crate::durability::open(directory.path());
    check(store, "local", 30).await;
    crate::durability::close(tasks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_histories_over_grpc_are_linearizable() {
    let directory = tempfile::tempdir().expect("directory");
    let server = crate::server::Server::start(directory.path(), &[]);
    let (store, tasks) = crate::server::remote(std::slice::from_ref(&server.endpoint), None).await;
    check(store, "remote", 20).await;
    tasks.drain(std::time::Duration::from_secs(5)).await;
    server.end().await;
}

#[test]
fn the_checker_tells_right_from_wrong() {
    let start = Instant::now();
    let at = |millis: u64| start + std::time::Duration::from_millis(millis);
    let entry = |begun, ended, operation| Entry { begun: at(begun), ended: at(ended), operation };
    let right = [
        entry(0, 10, Operation::Write(1)),
        entry(5, 15, Operation::Read(0)),
        entry(11, 20, Operation::Read(1)),
        entry(12, 30, Operation::Swap(1, 2)),
        entry(31, 32, Operation::Read(2)),
    ];
    assert!(linearizable(&right));
    let stale = [entry(0, 10, Operation::Write(1)), entry(11, 12, Operation::Read(0))];
    assert!(!linearizable(&stale));
    let lost = [
        entry(0, 1, Operation::Write(1)),
        entry(2, 10, Operation::Swap(1, 2)),
        entry(3, 9, Operation::Swap(1, 3)),
    ];
    assert!(!linearizable(&lost));
}
