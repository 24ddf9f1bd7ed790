//! Random operations on the store and on a model so simple that it is obviously right: after each, both must agree.

use std::collections::BTreeMap;

use bytes::Bytes;
use etcd::{
    Committed, Config, Event, EventKind, KeyValue, ListOptions, Precondition, Store, StoreError, WatchMessage,
};
use lifecycle::Tasks;
use proptest::prelude::*;

use crate::faulty::FaultyDisk;

/// Every revision as a whole map: no sharing, no pruning, no cleverness.
struct Model {
    /// Index 0 is revision 1, the empty beginning.
    revisions: Vec<BTreeMap<Bytes, KeyValue>>,
    events: Vec<Event>,
    compacted: i64,
}

impl Model {
    fn new() -> Self {
        Self { revisions: vec![BTreeMap::new()], events: Vec::new(), compacted: 0 }
    }

    fn revision(&self) -> i64 {
        self.revisions.len() as i64
    }

    fn now(&self) -> &BTreeMap<Bytes, KeyValue> {
        self.revisions.last().expect("the beginning")
    }

    fn at(&self, revision: i64) -> Result<&BTreeMap<Bytes, KeyValue>, StoreError> {
        let (requested, current) = (revision, self.revision());
        if requested > current {
            return Err(StoreError::FutureRevision { requested, current });
        }
        if requested < self.compacted {
            return Err(StoreError::Compacted { requested, compacted: self.compacted });
        }
        Ok(&self.revisions[revision as usize - 1])
    }

    fn holds(&self, key: &Bytes, when: Precondition) -> bool {
        let current = self.now().get(key);
        match when {
            Precondition::None => true,
            Precondition::Absent => current.is_none(),
            Precondition::ModRevision(revision) => current.is_some_and(|kv| kv.mod_revision == revision),
        }
    }

    fn put(&mut self, key: &Bytes, value: &Bytes, when: Precondition) -> Committed {
        let previous = self.now().get(key).cloned();
        if !self.holds(key, when) {
            return Committed::Conflict { revision: self.revision(), current: previous };
        }
        let revision = self.revision() + 1;
        let kv = KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: previous.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: previous.as_ref().map_or(1, |kv| kv.version + 1),
            lease: 0,
        };
        let mut next = self.now().clone();
        next.insert(key.clone(), kv.clone());
        self.revisions.push(next);
        self.events.push(Event { kind: EventKind::Put, kv, previous: previous.clone() });
        Committed::Done { revision, previous }
    }

    fn delete(&mut self, key: &Bytes, when: Precondition) -> Committed {
        let previous = self.now().get(key).cloned();
        if !self.holds(key, when) {
            return Committed::Conflict { revision: self.revision(), current: previous };
        }
        if previous.is_some() {
            let mut next = self.now().clone();
            next.remove(key);
            self.revisions.push(next);
            let kv = KeyValue { key: key.clone(), mod_revision: self.revision(), ..KeyValue::default() };
            self.events.push(Event { kind: EventKind::Delete, kv, previous: previous.clone() });
        }
        Committed::Done { revision: self.revision(), previous }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, When),
    Delete(u8, When),
    Get(u8, u8),
    List { prefix: u8, start: Option<u8>, limit: usize, back: u8 },
    Compact(u8),
    Watch(u8),
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum When {
    Always,
    Absent,
    Current,
    Stale,
}

fn step() -> impl Strategy<Value = Step> {
    let when = prop_oneof![4 => Just(When::Always), 2 => Just(When::Absent), 2 => Just(When::Current), 1 => Just(When::Stale)];
    prop_oneof![
        8 => (0..12_u8, any::<u8>(), when.clone()).prop_map(|(key, value, when)| Step::Put(key, value, when)),
        3 => (0..12_u8, when).prop_map(|(key, when)| Step::Delete(key, when)),
        3 => (0..12_u8, 0..12_u8).prop_map(|(key, back)| Step::Get(key, back)),
        3 => (0..3_u8, proptest::option::of(0..12_u8), 0..4_usize, 0..12_u8)
            .prop_map(|(prefix, start, limit, back)| Step::List { prefix, start, limit, back }),
        1 => (0..8_u8).prop_map(Step::Compact),
        2 => (0..12_u8).prop_map(Step::Watch),
        1 => Just(Step::Reopen),
    ]
}

/// Keys with shared and with tricky prefixes.
fn key(number: u8) -> Bytes {
    let prefix = [&b"a/"[..], b"a0", b"\xff\xff"][usize::from(number % 3)];
    [prefix, &[number]].concat().into()
}

fn precondition(model: &Model, key: &Bytes, when: When) -> Precondition {
    let current = model.now().get(key).map_or(1, |kv| kv.mod_revision);
    match when {
        When::Always => Precondition::None,
        When::Absent => Precondition::Absent,
        When::Current => Precondition::ModRevision(current),
        When::Stale => Precondition::ModRevision(current - 1),
    }
}

async fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let disk = FaultyDisk::new();
    let mut tasks = Tasks::new();
    let open =
        |tasks: &Tasks| etcd::engine::open_on(Some(disk.handle()), Config::default(), tasks).expect("open");
    let mut store = open(&tasks);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Put(number, value, when) => {
                let (key, value) = (key(number), Bytes::from(vec![value; usize::from(value % 5) * 200]));
                let when = precondition(&model, &key, when);
                let expected = model.put(&key, &value, when);
                prop_assert_eq!(store.put(key, value, 0, when).await, Ok(expected));
            }
            Step::Delete(number, when) => {
                let key = key(number);
                let when = precondition(&model, &key, when);
                let expected = model.delete(&key, when);
                prop_assert_eq!(store.delete(key, when).await, Ok(expected));
            }
            Step::Get(number, back) => {
                let revision = (model.revision() + 2 - i64::from(back)).max(1);
                let expected =
                    model.at(revision).map(|map| (map.get(&key(number)).cloned(), model.revision()));
                prop_assert_eq!(store.get(&key(number), revision).await, expected);
            }
            Step::List { prefix, start, limit, back } => {
                let prefix = [&b"a"[..], b"a/", b"\xff"][usize::from(prefix)];
                let revision = (model.revision() - i64::from(back)).max(1);
                let start = start.map(key).filter(|start| start.starts_with(prefix));
                let from = start.clone().unwrap_or_else(|| Bytes::from_static(prefix));
                let found = model.at(revision).map(|map| {
                    map.values()
                        .filter(|kv| kv.key.starts_with(prefix) && kv.key >= from)
                        .cloned()
                        .collect::<Vec<_>>()
                });
                let options = ListOptions { start, limit, revision, keys_only: false };
                match (store.list(prefix, options).await, found) {
                    (Ok(listing), Ok(found)) => {
                        let shown = if limit == 0 { found.len() } else { found.len().min(limit) };
                        prop_assert_eq!(&listing.items[..], &found[..shown]);
                        prop_assert_eq!(listing.count, found.len() as i64);
                        prop_assert_eq!(listing.more, shown < found.len());
                        prop_assert_eq!(listing.revision, model.revision());
                    }
                    (listing, found) => prop_assert_eq!(listing.map(|_| ()), found.map(|_| ())),
                }
            }
            Step::Compact(back) => {
                let revision = model.revision() - i64::from(back);
                let expected = if revision <= model.compacted {
                    Err(StoreError::Compacted { requested: revision, compacted: model.compacted })
                } else {
                    model.compacted = revision;
                    Ok(())
                };
                prop_assert_eq!(store.compact(revision).await, expected);
            }
            Step::Watch(back) => {
                let from = (model.revision() - i64::from(back)).max(model.compacted).max(1);
                let mut watch = store.watch(Bytes::new(), from).await.expect("watch");
                let expected: Vec<(EventKind, KeyValue)> = model
                    .events
                    .iter()
                    .filter(|event| event.kv.mod_revision >= from)
                    .map(|event| (event.kind, event.kv.clone()))
                    .collect();
                let mut seen = Vec::new();
                while seen.len() < expected.len() {
                    match watch.next().await {
                        Some(Ok(WatchMessage::Events { events, .. })) => {
                            seen.extend(events.into_iter().map(|event| (event.kind, event.kv)));
                        }
                        other => return Err(TestCaseError::fail(format!("{other:?}"))),
                    }
                }
                prop_assert_eq!(seen, expected);
            }
            Step::Reopen => {
                tasks.drain(std::time::Duration::from_secs(10)).await;
                tasks = Tasks::new();
                store = open(&tasks);
            }
        }
        prop_assert_eq!(store.revision(), model.revision());
    }
    tasks.drain(std::time::Duration::from_secs(10)).await;
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(check(steps))?;
    }
}
