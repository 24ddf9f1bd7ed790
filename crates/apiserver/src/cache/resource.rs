//! The cache of one resource: its objects now, the changes of the last minutes, and who watches.
//!
//! One task (the hub's) applies changes in revision order; everything else only reads or subscribes. A watcher
//! owns a bounded queue of pointers; one that does not keep up is cut and told so by the end of its queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::task::AtomicWaker;

use super::entry::{ChangeKind, Delivery, Entry, Lines};
use super::measured::{Asked, Lists};

/// The most events that may wait for one watcher,
const QUEUE_LIMIT: usize = 8192;
/// and the most bytes, of which one event may have more if it is the only one.
const QUEUE_BYTES: usize = 32 << 20;
/// Changes are kept this long for watchers that come back,
const KEEP_FOR: Duration = Duration::from_secs(15 * 60);
/// unless they hold more bytes than this.
const KEEP_BYTES: usize = 12 << 20;
/// So many are kept longer,
const KEEP_AT_LEAST: usize = 256;
/// unless they are this large.
const KEEP_BYTES_AT_MOST: usize = 24 << 20;

/// Decides which objects a watcher or list sees.
pub type Filter = Arc<dyn Fn(&Entry) -> bool + Send + Sync>;

/// A change as it was applied.
struct Change {
    kind: ChangeKind,
    /// The object after the change; before it for a deletion.
    entry: Arc<Entry>,
    previous: Option<Arc<Entry>>,
    revision: i64,
    at: Instant,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Bytes, Arc<Entry>>,
    history: VecDeque<Change>,
    history_bytes: usize,
    /// Every change after this revision is in `history`.
    history_from: i64,
    /// The last change applied.
    revision: i64,
    watchers: Vec<Arc<Watcher>>,
    received: u64,
    dispatched: u64,
    unreadable: u64,
    /// How often everything was loaded,
    fills: u64,
    /// and how many watches were cut because they did not keep up.
    cut: u64,
}

/// What happened in a cache so far, and what is in it.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the numbers are explained where they are shown")]
pub struct Counts {
    pub objects: u64,
    pub bytes: u64,
    pub received: u64,
    pub dispatched: u64,
    pub unreadable: u64,
    pub fills: u64,
    pub cut: u64,
    pub history: u64,
    pub revision: u64,
}

/// Objects, history and watchers of one resource.
pub struct ResourceCache {
    prefix: Bytes,
    /// What the store was asked about them.
    pub asked: Asked,
    /// Who listed them.
    pub lists: Lists,
    state: Mutex<State>,
}

/// The objects of a cache at one revision.
pub struct Snapshot {
    /// In key order.
    pub entries: Vec<Arc<Entry>>,
    /// The revision that they show.
    pub revision: i64,
}

impl ResourceCache {
    /// An empty cache that knows all changes after `revision`.
    pub fn new(prefix: Bytes, revision: i64) -> Self {
        let state = State { history_from: revision, revision, ..State::default() };
        Self { prefix, asked: Asked::default(), lists: Lists::default(), state: Mutex::new(state) }
    }

    /// The keys that it holds start with this.
    pub fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Replaces everything; watchers are cut, since what happened in between is not known.
    pub fn reset(&self, entries: impl IntoIterator<Item = Entry>, revision: i64) {
        let mut state = self.lock();
        for watcher in state.watchers.drain(..) {
            watcher.close();
        }
        state.objects = entries.into_iter().map(|entry| (entry.key.clone(), Arc::new(entry))).collect();
        state.history.clear();
        state.history_bytes = 0;
        state.history_from = revision;
        state.revision = revision;
        state.fills += 1;
    }

    /// Applies a write.
    pub fn put(&self, entry: Entry) {
        let revision = entry.revision;
        let entry = Arc::new(entry);
        let mut state = self.lock();
        let previous = state.objects.insert(entry.key.clone(), entry.clone());
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        state.apply(Change { kind, entry, previous, revision, at: Instant::now() });
    }

    /// Applies a deletion.
    pub fn delete(&self, key: &[u8], revision: i64) {
        let mut state = self.lock();
        let Some(entry) = state.objects.remove(key) else { return };
        let previous = Some(entry.clone());
        state.apply(Change { kind: ChangeKind::Deleted, entry, previous, revision, at: Instant::now() });
    }

    /// One object as last applied.
    pub fn get(&self, key: &[u8]) -> Option<Arc<Entry>> {
        self.lock().objects.get(key).cloned()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects whose keys start with `prefix`. `reached` is what the hub has applied everywhere.
    pub fn snapshot(&self, prefix: &[u8], reached: i64) -> Snapshot {
        let state = self.lock();
        let entries = state.below(prefix);
        Snapshot { entries, revision: reached.max(state.revision) }
    }

    /// Counts a stored object that could not be read.
    pub fn unreadable(&self) {
        self.lock().unreadable += 1;
    }

    /// For the metrics.
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        Counts {
            objects: state.objects.len() as u64,
            bytes: state.objects.values().map(|entry| entry.value.len() as u64).sum(),
            received: state.received,
            dispatched: state.dispatched,
            unreadable: state.unreadable,
            fills: state.fills,
            cut: state.cut,
            history: state.history.len() as u64,
            revision: state.revision.max(0) as u64,
        }
    }

    /// Starts a watch with the objects as they are: the snapshot, then everything after it.
    pub fn watch_from_now(&self, prefix: Bytes, filter: Filter, reached: i64) -> (Snapshot, Subscription) {
        let mut state = self.lock();
        let mut entries = state.below(&prefix);
        entries.retain(|entry| filter(entry));
        let snapshot = Snapshot { entries, revision: reached.max(state.revision) };
        (snapshot, state.subscribe(prefix, filter, 0))
    }

    /// Starts a watch after `revision`, which may be yet to come: nothing up to it is delivered. `None` if changes
    /// after it are no longer kept here; `Err` with the oldest usable revision is the caller's to make.
    pub fn watch_after(&self, prefix: Bytes, filter: Filter, revision: i64) -> Option<Subscription> {
        let mut state = self.lock();
        if revision < state.history_from {
            return None;
        }
        let first = state.history.partition_point(|change| change.revision <= revision);
        let missed: Vec<Delivery> =
            state.history.range(first..).filter_map(|change| change.seen_by(&prefix, &filter)).collect();
        let subscription = state.subscribe(prefix, filter, revision);
        {
            let mut queue = subscription.watcher.queue();
            queue.bytes = missed.iter().map(|delivery| delivery.entry.value.len()).sum();
            queue.events = missed;
        }
        Some(subscription)
    }

    /// Every watch from before this revision would miss something.
    pub fn history_from(&self) -> i64 {
        self.lock().history_from
    }

    /// How many watches run.
    pub fn watchers(&self) -> usize {
        let mut state = self.lock();
        state.watchers.retain(|watcher| !watcher.is_closed());
        state.watchers.len()
    }

    /// Ends every watch.
    pub fn close_watchers(&self) {
        for watcher in self.lock().watchers.drain(..) {
            watcher.close();
        }
    }
}

impl State {
    fn below(&self, prefix: &[u8]) -> Vec<Arc<Entry>> {
        use std::ops::Bound;
        let mut found = Vec::new();
        for (key, entry) in self.objects.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            found.push(entry.clone());
        }
        found
    }

    fn subscribe(&mut self, prefix: Bytes, filter: Filter, after: i64) -> Subscription {
        let watcher = Arc::new(Watcher {
            prefix,
            filter,
            after,
            queue: Mutex::default(),
            reader: AtomicWaker::new(),
            closed: AtomicBool::new(false),
        });
        self.watchers.push(watcher.clone());
        Subscription { watcher }
    }

    fn apply(&mut self, change: Change) {
        self.revision = change.revision;
        self.received += 1;
        let mut gone = false;
        let lines = Arc::new(Lines::default());
        for watcher in &self.watchers {
            if watcher.is_closed() {
                gone = true;
            } else if change.revision > watcher.after
                && let Some(delivery) = change.seen_by(&watcher.prefix, &watcher.filter)
            {
                if watcher.push(Delivery { lines: Some(lines.clone()), ..delivery }) {
                    self.dispatched += 1;
                } else {
                    self.cut += 1;
                }
            }
        }
        if gone {
            self.watchers.retain(|watcher| !watcher.is_closed());
        }
        self.history_bytes += change.entry.value.len();
        let now = change.at;
        self.history.push_back(change);
        while let Some(oldest) = self.history.front() {
            let recent = self.history_bytes <= KEEP_BYTES && now.duration_since(oldest.at) <= KEEP_FOR;
            let few = self.history.len() <= KEEP_AT_LEAST && self.history_bytes <= KEEP_BYTES_AT_MOST;
            if recent || few {
                break;
            }
            self.history_bytes -= oldest.entry.value.len();
            self.history_from = oldest.revision;
            self.history.pop_front();
        }
    }
}

impl Change {
    /// The event that a watcher gets of this change.
    fn seen_by(&self, prefix: &[u8], filter: &Filter) -> Option<Delivery> {
        if !self.entry.key.starts_with(prefix) {
            return None;
        }
        let before = self.previous.as_ref().filter(|previous| filter(previous));
        let now = Some(&self.entry).filter(|entry| self.kind != ChangeKind::Deleted && filter(entry));
        Delivery::of(before.cloned(), now.cloned(), self.revision)
    }
}

#[derive(Default)]
struct Queue {
    events: Vec<Delivery>,
    bytes: usize,
}

struct Watcher {
    prefix: Bytes,
    filter: Filter,
    /// The watch begins after this revision.
    after: i64,
    queue: Mutex<Queue>,
    reader: AtomicWaker,
    closed: AtomicBool,
}

impl Watcher {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Queues an event, or ends the watch because too much waits already.
    fn push(&self, delivery: Delivery) -> bool {
        let mut queue = self.queue();
        let bytes = queue.bytes + delivery.entry.value.len();
        let too_large = bytes > QUEUE_BYTES && !queue.events.is_empty();
        if queue.events.len() >= QUEUE_LIMIT || too_large {
            drop(queue);
            self.close();
            return false;
        }
        queue.bytes = bytes;
        queue.events.push(delivery);
        let first = queue.events.len() == 1;
        drop(queue);
        if first {
            self.reader.wake();
        }
        true
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.reader.wake();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// A running watch. Dropping it ends it.
pub struct Subscription {
    watcher: Arc<Watcher>,
}

impl Subscription {
    /// Takes everything that waits, without waiting.
    pub fn take(&self) -> Vec<Delivery> {
        std::mem::take(&mut *self.watcher.queue()).events
    }

    /// Whether something waits.
    pub fn has_some(&self) -> bool {
        !self.watcher.queue().events.is_empty()
    }

    /// Ready if something waits or the watch was cut. One task may wait at a time.
    pub fn poll_some(&self, context: &mut Context<'_>) -> Poll<()> {
        let some = || self.has_some() || self.watcher.is_closed();
        if !some() {
            self.watcher.reader.register(context.waker());
        }
        // What came before the waker was there woke nobody.
        if some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes everything that waits. Pending until there is something, `None` when the watch was cut and everything
    /// before that was taken. One task may wait at a time.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Vec<Delivery>>> {
        if let ready @ Poll::Ready(_) = self.look() {
            return ready;
        }
        self.watcher.reader.register(context.waker());
        // What came before the waker was there woke nobody.
        self.look()
    }

    fn look(&self) -> Poll<Option<Vec<Delivery>>> {
        // Read first: what was queued before the end is seen before it.
        let closed = self.watcher.is_closed();
        match self.take() {
            events if !events.is_empty() => Poll::Ready(Some(events)),
            _ if closed => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.watcher.closed.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::entry::encode_for_store;
    use serde_json::json;

    const PREFIX: &str = "/registry/things/";

    fn entry(name: &str, color: &str, revision: i64) -> Entry {
        let object = json!({"kind": "Thing", "apiVersion": "v1", "metadata": {"name": name, "labels": {"color": color}}});
        Entry::new(PREFIX.len(), format!("{PREFIX}ns/{name}").into(), encode_for_store(&object), revision)
    }

    fn cache() -> ResourceCache {
        ResourceCache::new(PREFIX.into(), 1)
    }

    fn red() -> Filter {
        Arc::new(|entry| entry.labels().iter().any(|(_, value)| &**value == "red"))
    }

    fn seen(events: &[Delivery]) -> Vec<(&'static str, String, i64)> {
        events
            .iter()
            .map(|event| (event.kind.as_str(), event.entry.name().to_owned(), event.revision))
            .collect()
    }

    #[test]
    fn entering_and_leaving_a_selection_is_added_and_deleted() {
        let cache = cache();
        let watch = cache.watch_after(PREFIX.into(), red(), 1).unwrap();
        cache.put(entry("a", "blue", 2));
        cache.put(entry("a", "red", 3));
        cache.put(entry("a", "red", 4));
        cache.put(entry("a", "blue", 5));
        cache.put(entry("a", "red", 6));
        cache.delete(b"/registry/things/ns/a", 7);
        let events = watch.take();
        let want = [("ADDED", 3), ("MODIFIED", 4), ("DELETED", 5), ("ADDED", 6), ("DELETED", 7)];
        assert_eq!(seen(&events), want.map(|(kind, revision)| (kind, "a".to_owned(), revision)));
        assert_eq!(&*events[2].entry.labels()[0].1, "red", "the last state inside the selection is shown");
    }

    #[test]
    fn a_watch_from_an_old_revision_replays_and_joins() {
        let cache = cache();
        cache.put(entry("a", "red", 2));
        cache.put(entry("b", "red", 3));
        let watch = cache.watch_after(PREFIX.into(), red(), 2).unwrap();
        cache.put(entry("c", "red", 4));
        assert_eq!(seen(&watch.take()), [("ADDED", "b".to_owned(), 3), ("ADDED", "c".to_owned(), 4)]);
        assert!(cache.watch_after(PREFIX.into(), red(), 0).is_none(), "older than the history");
    }

    #[test]
    fn what_watchers_are_sent_of_a_change_is_written_once() {
        let cache = cache();
        let watches = [(); 2].map(|()| cache.watch_after(PREFIX.into(), red(), 1).unwrap());
        let all = cache.watch_after(PREFIX.into(), Arc::new(|_| true), 1).unwrap();
        for (color, revision) in [("red", 2), ("blue", 3)] {
            cache.put(entry("a", color, revision));
        }
        let [one, other, all] = [&watches[0], &watches[1], &all].map(Subscription::take);
        for (mine, yours) in one.iter().zip(&other) {
            assert_eq!(mine.line().as_ptr(), yours.line().as_ptr());
        }
        let kinds = |events: &[Delivery]| -> Vec<String> {
            let lines = events.iter().map(Delivery::line);
            lines.map(|line| String::from_utf8_lossy(&line[9..14]).into_owned()).collect()
        };
        assert_eq!(
            (kinds(&one), kinds(&all)),
            (vec!["ADDED".into(), "DELET".into()], vec!["ADDED".into(), "MODIF".into()])
        );
    }

    #[test]
    fn a_watch_of_the_future_sees_nothing_before_it() {
        let cache = cache();
        let watch = cache.watch_after(PREFIX.into(), red(), 3).unwrap();
        for (name, revision) in [("a", 2), ("b", 3), ("c", 4)] {
            cache.put(entry(name, "red", revision));
        }
        assert_eq!(seen(&watch.take()), [("ADDED", "c".to_owned(), 4)]);
    }

    #[test]
    fn a_watch_of_one_namespace_sees_no_other() {
        let cache = cache();
        let watch = cache.watch_after("/registry/things/other/".into(), red(), 1).unwrap();
        cache.put(entry("a", "red", 2));
        assert!(watch.take().is_empty());
    }

    #[tokio::test]
    async fn a_slow_watcher_is_cut_after_what_it_missed_nothing_of() {
        let cache = cache();
        let watch = cache.watch_after(PREFIX.into(), red(), 1).unwrap();
        for revision in 0..=QUEUE_LIMIT as i64 {
            cache.put(entry("a", "red", 2 + revision));
        }
        let next = || std::future::poll_fn(|context| watch.poll_next(context));
        assert_eq!(next().await.map(|events| events.len()), Some(QUEUE_LIMIT));
        assert!(next().await.is_none());
        assert_eq!(cache.watchers(), 0);
    }

    #[tokio::test]
    async fn large_objects_fill_neither_a_queue_nor_the_history() {
        let cache = cache();
        let large = |name: &str, revision: i64| {
            let object = json!({"kind": "Thing", "apiVersion": "v1", "metadata": {"name": name, "labels": {"color": "red"}},
                "data": "x".repeat(1 << 20)});
            Entry::new(PREFIX.len(), format!("{PREFIX}ns/{name}").into(), encode_for_store(&object), revision)
        };
        let watch = cache.watch_after(PREFIX.into(), red(), 1).unwrap();
        for revision in 2..42 {
            cache.put(large("a", revision));
        }
        assert_eq!(watch.take().len(), 31, "what fits, in order");
        let next = std::future::poll_fn(|context| watch.poll_next(context)).await;
        assert!(next.is_none(), "and then the end");
        assert_eq!(cache.counts().history, 23);
        assert!(cache.watch_after(PREFIX.into(), red(), 17).is_none(), "that is forgotten");
        let resumed = cache.watch_after(PREFIX.into(), red(), 18).unwrap();
        assert_eq!(resumed.take().len(), 23);
    }
}
