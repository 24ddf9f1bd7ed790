//! What [`Store`] promises, checked through the trait only.
//!
//! Every case works below a prefix of its own, so the suite can run on a store that has other data.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd::{Committed, EventKind, ListOptions, Precondition, Store, StoreError, Watch, WatchMessage};

type Shared = Arc<dyn Store>;

/// Long enough for any healthy store; only a failure takes this long.
const DEADLINE: Duration = Duration::from_secs(20);

pub async fn all(store: Shared) {
    create_update_delete(&store).await;
    preconditions(&store).await;
    lists(&store).await;
    history_and_compaction(&store).await;
    watches(&store).await;
    a_watch_from_the_past_meets_the_present(&store).await;
    progress(&store).await;
    leases(&store).await;
    concurrent_increments(&store).await;
}

fn prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("/conformance/{}-{}/", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn put(store: &Shared, key: &str, value: &str) -> i64 {
    match store
        .put(
            Bytes::copy_from_slice(key.as_bytes()),
            Bytes::copy_from_slice(value.as_bytes()),
            0,
            Precondition::None,
        )
        .await
    {
        Ok(Committed::Done { revision, .. }) => revision,
        other => panic!("put {key}: {other:?}"),
    }
}

async fn delete(store: &Shared, key: &str) -> Committed {
    store.delete(Bytes::copy_from_slice(key.as_bytes()), Precondition::None).await.expect("delete")
}

pub async fn next(watch: &mut Watch) -> Result<WatchMessage, StoreError> {
    tokio::time::timeout(DEADLINE, watch.next()).await.expect("a message in time").expect("an open watch")
}

/// Events as (kind, key, value, revision), skipping progress, until `count` have come.
pub async fn collect(watch: &mut Watch, count: usize) -> Vec<(EventKind, String, String, i64)> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let WatchMessage::Events { revision, events } = next(watch).await.expect("events") else { continue };
        assert!(!events.is_empty());
        for event in events {
            assert!(event.kv.mod_revision <= revision);
            seen.push((
                event.kind,
                String::from_utf8(event.kv.key.to_vec()).expect("text"),
                String::from_utf8(event.kv.value.to_vec()).expect("text"),
                event.kv.mod_revision,
            ));
        }
    }
    seen
}

async fn create_update_delete(store: &Shared) {
    let key = prefix() + "a";
    assert_eq!(store.get(key.as_bytes(), 0).await.expect("get").0, None);
    let first = put(store, &key, "one").await;
    let second = put(store, &key, "two").await;
    assert!(second > first);
    let (found, now) = store.get(key.as_bytes(), 0).await.expect("get");
    let found = found.expect("exists");
    assert_eq!(
        (&found.value[..], found.create_revision, found.mod_revision, found.version),
        (&b"two"[..], first, second, 2)
    );
    assert!(now >= second);
    let (old, _) = store.get(key.as_bytes(), first).await.expect("get the past");
    assert_eq!(&old.expect("existed").value[..], b"one");
    match delete(store, &key).await {
        Committed::Done { revision, previous } => {
            assert!(revision > second);
            assert_eq!(previous, Some(found));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.get(key.as_bytes(), 0).await.expect("get").0, None);
    assert!(matches!(delete(store, &key).await, Committed::Done { previous: None, .. }));
    let again = put(store, &key, "three").await;
    let found = store.get(key.as_bytes(), 0).await.expect("get").0.expect("exists");
    assert_eq!((found.create_revision, found.version), (again, 1), "a new life begins at version 1");
}

async fn preconditions(store: &Shared) {
    let key = Bytes::from(prefix() + "a");
    let write = |when| store.put(key.clone(), "v".into(), 0, when);
    assert!(matches!(
        write(Precondition::ModRevision(1)).await.expect("put"),
        Committed::Conflict { current: None, .. }
    ));
    let Committed::Done { revision, previous: None } = write(Precondition::Absent).await.expect("put") else {
        panic!("creation failed")
    };
    let Committed::Conflict { current: Some(current), .. } = write(Precondition::Absent).await.expect("put")
    else {
        panic!("a second creation succeeded")
    };
    assert_eq!(current.mod_revision, revision);
    let Committed::Done { revision: updated, previous: Some(previous) } =
        write(Precondition::ModRevision(revision)).await.expect("put")
    else {
        panic!("update failed")
    };
    assert_eq!(previous.mod_revision, revision);
    let stale = store.delete(key.clone(), Precondition::ModRevision(revision)).await.expect("delete");
    assert!(matches!(stale, Committed::Conflict { current: Some(kv), .. } if kv.mod_revision == updated));
    let done = store.delete(key.clone(), Precondition::ModRevision(updated)).await.expect("delete");
    assert!(matches!(done, Committed::Done { previous: Some(_), .. }));
}

async fn lists(store: &Shared) {
    let base = prefix();
    for name in ["a", "b", "c", "d"] {
        put(store, &format!("{base}{name}"), name).await;
    }
    // A neighbour that shares all but the end of the prefix.
    put(store, &format!("{}0", base.trim_end_matches('/')), "outside").await;
    let list = |options: ListOptions| {
        let base = base.clone();
        async move {
            let listing = store.list(base.as_bytes(), options).await.expect("list");
            let names: Vec<String> = listing
                .items
                .iter()
                .map(|kv| String::from_utf8_lossy(&kv.key[base.len()..]).into_owned())
                .collect();
            (names.join(""), listing.more, listing.count, listing)
        }
    };
    let (names, more, count, all) = list(ListOptions::default()).await;
    assert_eq!((names.as_str(), more, count), ("abcd", false, 4));
    let (names, more, count, _) = list(ListOptions { limit: 3, ..ListOptions::default() }).await;
    assert_eq!((names.as_str(), more, count), ("abc", true, 4));
    let start = Some(Bytes::from(format!("{base}c")));
    let (names, more, count, _) = list(ListOptions { start, limit: 3, ..ListOptions::default() }).await;
    assert_eq!((names.as_str(), more, count), ("cd", false, 2));
    let (_, _, _, listing) = list(ListOptions { keys_only: true, ..ListOptions::default() }).await;
    assert!(listing.items.iter().all(|kv| kv.value.is_empty() && kv.mod_revision > 0));
    put(store, &format!("{base}b2"), "later").await;
    delete(store, &format!("{base}a")).await;
    let (names, ..) = list(ListOptions { revision: all.revision, ..ListOptions::default() }).await;
    assert_eq!(names, "abcd", "the past does not change");
    let (names, ..) = list(ListOptions::default()).await;
    assert_eq!(names, "bb2cd");
}

async fn history_and_compaction(store: &Shared) {
    let key = prefix() + "a";
    let first = put(store, &key, "one").await;
    let second = put(store, &key, "two").await;
    let third = put(store, &key, "three").await;
    store.compact(second).await.expect("compact");
    let gone = StoreError::Compacted { requested: first, compacted: second };
    match store.get(key.as_bytes(), first).await {
        // Over the wire etcd does not say which revision is the oldest one kept.
        Err(StoreError::Compacted { .. }) => {}
        other => panic!("{other:?}, wanted {gone:?}"),
    }
    let (kept, _) = store.get(key.as_bytes(), second).await.expect("get");
    assert_eq!(&kept.expect("kept").value[..], b"two");
    assert!(matches!(store.get(key.as_bytes(), third + 1000).await, Err(StoreError::FutureRevision { .. })));
    assert!(matches!(
        store.list(key.as_bytes(), ListOptions { revision: first, ..ListOptions::default() }).await,
        Err(StoreError::Compacted { .. })
    ));
    let outcome = match store.watch(key.clone().into(), first).await {
        Ok(mut watch) => next(&mut watch).await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert_eq!(outcome, Err(gone));
    let mut watch = store.watch(key.clone().into(), third).await.expect("watch");
    assert_eq!(collect(&mut watch, 1).await[0].3, third);
}

async fn watches(store: &Shared) {
    let base = prefix();
    let mut watch = store.watch(base.clone().into(), 0).await.expect("watch");
    let a = put(store, &format!("{base}a"), "1").await;
    put(store, &format!("{}0", base.trim_end_matches('/')), "outside").await;
    let b = put(store, &format!("{base}b"), "2").await;
    let Committed::Done { revision: gone, .. } = delete(store, &format!("{base}a")).await else {
        panic!("delete")
    };
    let expected = [
        (EventKind::Put, format!("{base}a"), "1".to_owned(), a),
        (EventKind::Put, format!("{base}b"), "2".to_owned(), b),
        (EventKind::Delete, format!("{base}a"), String::new(), gone),
    ];
    assert_eq!(collect(&mut watch, 3).await, expected);
    // The same from the past, and from the middle of it.
    let mut watch = store.watch(base.clone().into(), a).await.expect("watch");
    assert_eq!(collect(&mut watch, 3).await, expected);
    let mut watch = store.watch(base.clone().into(), b).await.expect("watch");
    let WatchMessage::Events { events, .. } = next(&mut watch).await.expect("events") else {
        panic!("progress")
    };
    assert_eq!(events[0].kv.mod_revision, b);
    let last = if events.len() == 2 {
        events[1].clone()
    } else {
        let WatchMessage::Events { events, .. } = next(&mut watch).await.expect("events") else {
            panic!("progress")
        };
        events[0].clone()
    };
    assert_eq!(last.kind, EventKind::Delete);
    assert_eq!(&last.previous.expect("the value before").value[..], b"1");
}

/// Writers run while watches start at random points of the past: each must see every revision once, in order.
async fn a_watch_from_the_past_meets_the_present(store: &Shared) {
    const WRITES: usize = 300;
    let base = prefix();
    let first = put(store, &format!("{base}k"), "start").await;
    let writer = async {
        let mut revisions = vec![first];
        for number in 0..WRITES {
            revisions.push(put(store, &format!("{base}k{}", number % 7), &number.to_string()).await);
        }
        revisions
    };
    let watcher = async {
        let mut seen = Vec::new();
        let mut from = first;
        while seen.len() < WRITES + 1 {
            let mut watch = store.watch(base.clone().into(), from).await.expect("watch");
            // A few events, then a new watch from where this one was.
            let missing = (WRITES + 1 - seen.len()).min(37);
            for (_, _, _, revision) in collect(&mut watch, missing).await {
                seen.push(revision);
            }
            from = seen.last().expect("events") + 1;
        }
        seen
    };
    let (written, seen) = tokio::join!(writer, watcher);
    assert_eq!(seen, written);
}

async fn progress(store: &Shared) {
    let base = prefix();
    let mut watch = store.watch(base.clone().into(), 0).await.expect("watch");
    let elsewhere = put(store, &(prefix() + "x"), "1").await;
    let now = store.progress().await.expect("progress");
    assert!(now >= elsewhere);
    if !store.watch_progress_is_reliable() {
        return;
    }
    watch.progress_requester().request();
    match next(&mut watch).await.expect("progress") {
        WatchMessage::Progress { revision } => assert!(revision >= now, "{revision} < {now}"),
        other => panic!("{other:?}"),
    }
}

async fn leases(store: &Shared) {
    let key = prefix() + "leased";
    assert!(matches!(
        store.put(key.clone().into(), "v".into(), 4711, Precondition::None).await,
        Err(StoreError::LeaseNotFound(_))
    ));
    let lease = store.grant_lease(600).await.expect("grant");
    store.put(key.clone().into(), "v".into(), lease, Precondition::None).await.expect("put");
    assert_eq!(store.get(key.as_bytes(), 0).await.expect("get").0.expect("there").lease, lease);
    let mut watch = store.watch(key.clone().into(), 0).await.expect("watch");
    store.revoke_lease(lease).await.expect("revoke");
    assert_eq!(collect(&mut watch, 1).await[0].0, EventKind::Delete);
    assert_eq!(store.get(key.as_bytes(), 0).await.expect("get").0, None);
    assert!(matches!(store.revoke_lease(lease).await, Err(StoreError::LeaseNotFound(_))));

    let short = store.grant_lease(1).await.expect("grant");
    store.put(key.clone().into(), "v".into(), short, Precondition::None).await.expect("put");
    assert_eq!(collect(&mut watch, 2).await[1].0, EventKind::Delete, "an expired lease takes its keys");
}

/// Compare-and-swap from many tasks: no increment may be lost.
async fn concurrent_increments(store: &Shared) {
    let key = Bytes::from(prefix() + "counter");
    put(store, std::str::from_utf8(&key).expect("text"), "0").await;
    let increment = |_| {
        let key = key.clone();
        async move {
            for _ in 0..10 {
                loop {
                    let found = store.get(&key, 0).await.expect("get").0.expect("exists");
                    let value: u64 =
                        std::str::from_utf8(&found.value).expect("text").parse().expect("number");
                    let when = Precondition::ModRevision(found.mod_revision);
                    let next = Bytes::from((value + 1).to_string());
                    if let Committed::Done { .. } = store.put(key.clone(), next, 0, when).await.expect("put")
                    {
                        break;
                    }
                }
            }
        }
    };
    futures::future::join_all((0..8).map(increment)).await;
    let found = store.get(&key, 0).await.expect("get").0.expect("exists");
    assert_eq!(&found.value[..], b"80");
}
