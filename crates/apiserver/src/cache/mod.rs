//! The watch cache: every object once, as encoded bytes shared with the store, and one dispatcher for all changes.
//!
//! ```text
//! store.watch("/registry/") ─► Hub::run ─► ResourceCache::put/delete ─► watcher queues ─► response bodies
//!                                   └────► observers (RBAC policy, CRDs, …), called in order
//! ```
//!
//! What must stay true: one task applies changes, in revision order; [`Hub::reached`] is published only after
//! everything up to it was applied everywhere, so a snapshot taken later shows at least that revision. A read is
//! consistent when it waits for the revision that the store had after the read began.

pub mod entry;
pub mod measured;
pub mod resource;
pub mod sparse;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use etcd::{EventKind, ListOptions, ProgressRequester, Store, StoreError, WatchMessage};
use futures::FutureExt;
use lifecycle::Stop;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, error, warn};

use entry::Entry;
use measured::{Asked, Measured};
use resource::ResourceCache;

/// Turns stored bytes into served ones (decryption, defaults of a custom resource).
pub type Open = Arc<dyn Fn(&[u8], Bytes) -> Result<Bytes, String> + Send + Sync>;

/// A change that an observer is told of.
#[derive(Clone, Copy)]
pub enum Observed<'a> {
    /// An object was written.
    Put(&'a Entry),
    /// The object at this namespace and name is gone.
    Gone(&'a Entry),
}

/// Is told of every change of a resource, in order, on the dispatcher: it must be quick.
pub type Observer = Arc<dyn Fn(Observed<'_>) + Send + Sync>;

struct Slot {
    cache: Arc<ResourceCache>,
    open: Option<Open>,
    observers: Vec<Observer>,
    /// Something that is stored could not be opened, and the cache goes without it.
    lacking: AtomicBool,
}

impl Slot {
    fn new(prefix: Bytes, revision: i64, open: Option<Open>, observers: Vec<Observer>) -> Arc<Self> {
        let cache = Arc::new(ResourceCache::new(prefix, revision));
        Arc::new(Self { cache, open, observers, lacking: AtomicBool::new(false) })
    }

    fn entry(&self, key: Bytes, value: Bytes, revision: i64) -> Option<Entry> {
        let prefix_len = self.cache.prefix().len();
        let value = match &self.open {
            None => value,
            Some(open) => match open(&key, value) {
                Ok(value) => value,
                Err(error) => {
                    warn!(key = %String::from_utf8_lossy(&key), error, "cannot read a stored object");
                    self.lacking.store(true, Ordering::Relaxed);
                    self.cache.unreadable();
                    return None;
                }
            },
        };
        Some(Entry::new(prefix_len, key, value, revision))
    }

    fn tell(&self, what: Observed<'_>) {
        for observer in &self.observers {
            observer(what);
        }
    }

    /// Puts what was read anew in the place of what was there. Observers are told of it, and of what went unseen.
    fn reset(&self, entries: Vec<Entry>, revision: i64) {
        let left: HashSet<&Bytes> = entries.iter().map(|entry| &entry.key).collect();
        let before = self.cache.snapshot(self.cache.prefix(), revision).entries;
        for gone in before.iter().filter(|entry| !left.contains(&entry.key)) {
            self.tell(Observed::Gone(gone));
        }
        for entry in &entries {
            self.tell(Observed::Put(entry));
        }
        self.cache.reset(entries, revision);
    }
}

enum Command {
    Add { prefix: Bytes, open: Option<Open>, observers: Vec<Observer>, done: oneshot::Sender<()> },
    Remove { prefix: Bytes },
    Reread,
}

/// All caches and the task that feeds them.
pub struct Hub {
    store: Arc<dyn Store>,
    root: Bytes,
    slots: RwLock<HashMap<Bytes, Arc<Slot>>>,
    reached: watch::Sender<i64>,
    following: AtomicBool,
    progress: Mutex<Option<ProgressRequester>>,
    commands: mpsc::UnboundedSender<Command>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Command>>>,
    others: Asked,
}

/// Holds while the store is followed, however that ends.
struct Following<'a>(&'a AtomicBool);

impl<'a> Following<'a> {
    fn begin(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Release);
        Self(flag)
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The wanted revision did not come in time.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("revision {wanted} has not been reached; the current one is {reached}")]
pub struct TooFarAhead {
    /// What was waited for.
    pub wanted: i64,
    /// What there is.
    pub reached: i64,
}

impl Hub {
    /// A hub over everything below `root` (`/registry/`). Nothing is loaded before [`Hub::run`].
    pub fn new(store: Arc<dyn Store>, root: Bytes) -> Arc<Self> {
        let (commands, inbox) = mpsc::unbounded_channel();
        Arc::new(Self {
            store,
            root,
            slots: RwLock::default(),
            reached: watch::channel(0).0,
            following: AtomicBool::new(false),
            progress: Mutex::new(None),
            commands,
            inbox: Mutex::new(Some(inbox)),
            others: Asked::default(),
        })
    }

    /// The store below.
    pub fn store(&self) -> Measured<'_> {
        Measured(self)
    }

    /// What the store was asked outside of all resources.
    pub fn others(&self) -> &Asked {
        &self.others
    }

    /// Declares a resource before the hub runs.
    pub fn declare(&self, prefix: Bytes, open: Option<Open>, observers: Vec<Observer>) {
        let slot = Slot::new(prefix.clone(), 0, open, observers);
        self.slots_mut().insert(prefix, slot);
    }

    /// Adds or replaces a resource while the hub runs; returns when its objects are loaded.
    pub async fn add(&self, prefix: Bytes, open: Option<Open>, observers: Vec<Observer>) {
        let (done, loaded) = oneshot::channel();
        if self.commands.send(Command::Add { prefix, open, observers, done }).is_ok() {
            let _ = loaded.await; // an error means that the hub stopped; nobody reads its caches then
        }
    }

    /// Forgets a resource; its watches end.
    pub fn remove(&self, prefix: Bytes) {
        let _ = self.commands.send(Command::Remove { prefix }); // fails only when the hub has stopped
    }

    /// Reads again what could not be opened before: the keys are others now.
    pub fn reread(&self) {
        let _ = self.commands.send(Command::Reread); // fails only when the hub has stopped
    }

    /// The cache of a prefix.
    pub fn cache(&self, prefix: &[u8]) -> Option<Arc<ResourceCache>> {
        self.slots().get(prefix).map(|slot| slot.cache.clone())
    }

    /// Makes an entry of a stored value, as the dispatcher would.
    pub fn open(&self, prefix: &[u8], key: Bytes, value: Bytes, revision: i64) -> Option<Entry> {
        let slot = self.slots().get(prefix).cloned()?;
        slot.entry(key, value, revision)
    }

    /// All caches.
    pub fn caches(&self) -> Vec<Arc<ResourceCache>> {
        self.slots().values().map(|slot| slot.cache.clone()).collect()
    }

    /// Everything up to this revision is in the caches.
    pub fn reached(&self) -> i64 {
        *self.reached.borrow()
    }

    /// Whether everything is loaded and the store is being followed.
    pub fn is_following(&self) -> bool {
        self.following.load(Ordering::Acquire)
    }

    /// Waits until the caches show everything that the store had when this was called.
    pub async fn catch_up(&self) -> Result<i64, StoreError> {
        let wanted = self.store.progress().await?;
        match self.wait_for(wanted, Duration::from_secs(10)).await {
            Ok(()) => Ok(wanted),
            Err(behind) => Err(StoreError::Unavailable(behind.to_string())),
        }
    }

    /// Waits until the caches show `wanted`.
    pub async fn wait_for(&self, wanted: i64, at_most: Duration) -> Result<(), TooFarAhead> {
        if self.reached() >= wanted {
            return Ok(());
        }
        let mut reached = self.reached.subscribe();
        // Events nearly always bring the revision along; only a silent watch has to be asked.
        let quick = Duration::from_millis(20).min(at_most);
        if tokio::time::timeout(quick, reached.wait_for(|reached| *reached >= wanted)).await.is_ok() {
            return Ok(());
        }
        let requester = self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        if let Some(requester) = requester {
            requester.request();
        }
        let outcome = tokio::time::timeout(at_most, reached.wait_for(|reached| *reached >= wanted)).await;
        match outcome {
            Ok(Ok(_)) => Ok(()),
            _ => Err(TooFarAhead { wanted, reached: self.reached() }),
        }
    }

    fn slots(&self) -> std::sync::RwLockReadGuard<'_, HashMap<Bytes, Arc<Slot>>> {
        self.slots.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn slots_mut(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Bytes, Arc<Slot>>> {
        self.slots.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The slot of a key: its prefix ends after the second or the third part (`/registry/pods/`,
    /// `/registry/services/specs/`, `/registry/example.com/things/`).
    fn slot_of(&self, key: &[u8]) -> Option<Arc<Slot>> {
        let tail = key.get(self.root.len()..)?;
        let slots = self.slots();
        let mut at = 0;
        for _ in 0..2 {
            at += tail[at..].iter().position(|byte| *byte == b'/')? + 1;
            if let Some(slot) = slots.get(&key[..self.root.len() + at]) {
                return Some(slot.clone());
            }
        }
        None
    }

    /// Loads everything and follows the store until stopped. After a break it loads anew and cuts all watches. So it does
    /// after a panic, of an observer for one: what is derived from the objects is then made anew too, and until that
    /// has worked nobody is told that the caches follow.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let inbox = self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(mut inbox) = inbox else { return };
        while !stop.is_requested() {
            let following = AssertUnwindSafe(self.follow(&mut inbox)).catch_unwind();
            let outcome = stop.or(following).await;
            match outcome {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => {
                    warn!(error = %telemetry::chain(&error), "the watch of the store broke, loading anew");
                }
                Some(Err(_)) => error!("following the store panicked, loading anew"),
            }
            stop.or(tokio::time::sleep(Duration::from_millis(200))).await;
        }
        for cache in self.caches() {
            cache.close_watchers();
        }
    }

    async fn follow(&self, inbox: &mut mpsc::UnboundedReceiver<Command>) -> Result<(), StoreError> {
        let revision = self.load().await?;
        let mut watch = self.store.watch(self.root.clone(), revision + 1).await?;
        *self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
            Some(watch.progress_requester());
        self.reached.send_replace(revision);
        let _following = Following::begin(&self.following);
        loop {
            tokio::select! {
                message = watch.next() => match message {
                    Some(message) => self.apply(message?),
                    None => return Err(StoreError::Closed),
                },
                command = inbox.recv() => match command {
                    Some(command) => self.obey(command).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn load(&self) -> Result<i64, StoreError> {
        const PAGE: usize = 5000;
        let slots: Vec<Arc<Slot>> = self.slots().values().cloned().collect();
        let mut found: HashMap<Bytes, Vec<Entry>> = HashMap::new();
        let mut options = ListOptions { limit: PAGE, ..ListOptions::default() };
        let revision = loop {
            let page = self.store.list(&self.root, options.clone()).await?;
            options.revision = page.revision;
            let more = page.more;
            for item in page.items {
                options.start = Some([&item.key[..], &[0]].concat().into());
                let Some(slot) = self.slot_of(&item.key) else { continue };
                if let Some(entry) = slot.entry(item.key, item.value, item.mod_revision) {
                    found.entry(slot.cache.prefix().clone()).or_default().push(entry);
                }
            }
            if !more {
                break page.revision;
            }
        };
        debug!(revision, resources = slots.len(), "loaded the watch cache");
        for slot in slots {
            let entries = found.remove(slot.cache.prefix()).unwrap_or_default();
            slot.reset(entries, revision);
        }
        Ok(revision)
    }

    fn apply(&self, message: WatchMessage) {
        let revision = match message {
            WatchMessage::Progress { revision } => revision,
            WatchMessage::Events { revision, events } => {
                for event in events {
                    let Some(slot) = self.slot_of(&event.kv.key) else { continue };
                    match event.kind {
                        EventKind::Put => {
                            let kv = event.kv;
                            if let Some(entry) = slot.entry(kv.key, kv.value, kv.mod_revision) {
                                slot.tell(Observed::Put(&entry));
                                slot.cache.put(entry);
                            }
                        }
                        EventKind::Delete => {
                            if let Some(entry) = slot.cache.get(&event.kv.key) {
                                slot.cache.delete(&event.kv.key, event.kv.mod_revision);
                                slot.tell(Observed::Gone(&entry));
                            }
                        }
                    }
                }
                revision
            }
        };
        self.reached.send_if_modified(|reached| {
            let newer = revision > *reached;
            *reached = revision.max(*reached);
            newer
        });
    }

    async fn obey(&self, command: Command) -> Result<(), StoreError> {
        match command {
            Command::Remove { prefix } => {
                let gone = self.slots_mut().remove(&prefix);
                if let Some(slot) = gone {
                    slot.cache.close_watchers();
                }
            }
            Command::Add { prefix, open, observers, done } => {
                let revision = self.reached();
                let slot = Slot::new(prefix.clone(), revision, open, observers);
                let entries = self.entries(&slot, revision).await?;
                slot.reset(entries, revision);
                let old = self.slots_mut().insert(prefix, slot);
                if let Some(old) = old {
                    old.cache.close_watchers();
                }
                let _ = done.send(()); // whoever asked may have given up
            }
            Command::Reread => {
                let slots: Vec<Arc<Slot>> = self.slots().values().cloned().collect();
                for slot in slots.into_iter().filter(|slot| slot.lacking.swap(false, Ordering::Relaxed)) {
                    let revision = self.reached();
                    let entries = self.entries(&slot, revision).await?;
                    let known = |entry: &Entry| {
                        slot.cache.get(&entry.key).is_some_and(|own| own.revision == entry.revision)
                    };
                    let found: Vec<&Entry> = entries.iter().filter(|entry| !known(entry)).collect();
                    if found.is_empty() {
                        continue;
                    }
                    found.into_iter().for_each(|entry| slot.tell(Observed::Put(entry)));
                    // What appears now was written long ago: no event can tell of it. Watchers are cut and list again.
                    slot.cache.reset(entries, revision);
                }
            }
        }
        Ok(())
    }

    /// What can be read below a slot's prefix.
    async fn entries(&self, slot: &Slot, revision: i64) -> Result<Vec<Entry>, StoreError> {
        let options = ListOptions { revision, ..ListOptions::default() };
        let listing = self.store.list(slot.cache.prefix(), options).await?;
        let read = |item: etcd::KeyValue| slot.entry(item.key, item.value, item.mod_revision);
        Ok(listing.items.into_iter().filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU8;
    use std::sync::atomic::AtomicUsize;

    use etcd::Precondition;
    use lifecycle::Tasks;

    use super::*;

    const PREFIX: Bytes = Bytes::from_static(b"/registry/things/");
    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn what_went_unseen_is_told_when_everything_is_read_anew() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = told.clone();
        let observer: Observer = Arc::new(move |observed| {
            let (word, entry) = match observed {
                Observed::Put(entry) => ("put", entry),
                Observed::Gone(entry) => ("gone", entry),
            };
            log.lock().unwrap().push(format!("{word} {}", entry.name()));
        });
        let slot = Slot::new(PREFIX, 1, None, vec![observer]);
        let entry = |name: &str| {
            let key = [&PREFIX[..], name.as_bytes()].concat().into();
            Entry::new(PREFIX.len(), key, Bytes::from_static(b"{}"), 1)
        };
        slot.reset(vec![entry("a"), entry("b")], 1);
        slot.reset(vec![entry("b"), entry("c")], 5);
        assert_eq!(*told.lock().unwrap(), ["put a", "put b", "gone a", "put b", "put c"]);
    }

    #[tokio::test]
    async fn what_could_not_be_opened_is_read_with_other_keys() {
        let tasks = Tasks::new();
        let store = etcd::open(etcd::Config::default(), &tasks).unwrap();
        let put = |key: &'static [u8], value: &'static [u8]| {
            let (key, value) = (Bytes::from_static(key), Bytes::from_static(value));
            store.put(key, value, 0, Precondition::None)
        };
        put(b"/registry/things/a", b"1{}").await.unwrap();
        // What begins with another digit than that of the moment is sealed.
        let digit = Arc::new(AtomicU8::new(b'0'));
        let now = digit.clone();
        let open: Open = Arc::new(move |_, value| match value.first() {
            Some(first) if *first == now.load(Ordering::Relaxed) => Ok(value.slice(1..)),
            _ => Err("sealed".to_owned()),
        });
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = seen.clone();
        let observer: Observer = Arc::new(move |what| {
            if let Observed::Put(entry) = what {
                told.lock().unwrap().push(entry.name().to_owned());
            }
        });
        let hub = Hub::new(store.clone(), Bytes::from_static(b"/registry/"));
        hub.declare(PREFIX, Some(open), vec![observer]);
        let run = hub.clone();
        tasks.spawn("hub", |stop| run.run(stop));
        let mut reached = hub.reached.subscribe();
        tokio::time::timeout(PATIENCE, reached.wait_for(|own| *own > 0)).await.unwrap().unwrap();
        put(b"/registry/things/b", b"1{}").await.unwrap();
        hub.catch_up().await.unwrap();
        let cache = hub.cache(&PREFIX).unwrap();
        assert!(cache.is_empty());
        assert_eq!(cache.counts().unreadable, 2);

        hub.reread();
        digit.store(b'1', Ordering::Relaxed);
        hub.reread();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while cache.len() < 2 {
            assert!(tokio::time::Instant::now() < deadline, "the objects stay away");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(*seen.lock().unwrap(), ["a", "b"]);
        // With nothing to find, watchers stay.
        let (_, watch) = cache.watch_from_now(PREFIX, Arc::new(|_| true), hub.reached());
        hub.reread();
        put(b"/registry/things/c", b"1{}").await.unwrap();
        hub.catch_up().await.unwrap();
        assert_eq!(watch.take().len(), 1);
        tasks.stop().request();
    }

    #[tokio::test]
    async fn a_panic_of_an_observer_is_a_break_and_not_the_end() {
        let tasks = lifecycle::Tasks::new();
        let store: Arc<dyn Store> = etcd::open(etcd::Config::default(), &tasks).unwrap();
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let observer: Observer = Arc::new(move |what| {
            if let Observed::Put(entry) = what
                && entry.name() == "bad"
            {
                assert!(count.fetch_add(1, Ordering::SeqCst) > 0, "the first time");
            }
        });
        let hub = Hub::new(store.clone(), Bytes::from_static(b"/registry/"));
        hub.declare(PREFIX, None, vec![observer]);
        let run = hub.clone();
        tasks.spawn("hub", |stop| run.run(stop));
        let following = async {
            while !hub.is_following() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, following).await.unwrap();
        let cache = hub.cache(&PREFIX).unwrap();
        let (_, watch) = cache.watch_from_now(PREFIX, Arc::new(|_| true), hub.reached());
        let key = Bytes::from_static(b"/registry/things/bad");
        store.put(key, Bytes::from_static(b"{}"), 0, Precondition::None).await.unwrap();
        hub.catch_up().await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2, "it was told again when everything was loaded anew");
        assert!(hub.is_following());
        assert_eq!(cache.len(), 1);
        let cut = std::future::poll_fn(|context| watch.poll_next(context));
        let cut = tokio::time::timeout(PATIENCE, cut).await.unwrap();
        assert!(cut.is_none(), "watches are cut: they may have missed something");
        tasks.stop().request();
    }
}
