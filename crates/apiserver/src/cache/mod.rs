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
pub mod resource;
mod sparse;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use bytes::Bytes;
use etcd::{EventKind, ListOptions, ProgressRequester, Store, StoreError, WatchMessage};
use lifecycle::Stop;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, warn};

use entry::Entry;
use resource::ResourceCache;

/// Turns stored bytes into served ones (decryption, defaults of a custom resource).
pub type Open = Arc<dyn Fn(&[u8], Bytes) -> Result<Bytes, String> + Send + Sync>;

/// A change that an observer is told of.
pub enum Observed<'a> {
    /// Everything that was there may be outdated; what follows is all there is.
    Reset,
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
}

impl Slot {
    fn entry(&self, key: Bytes, value: Bytes, revision: i64) -> Option<Entry> {
        let prefix_len = self.cache.prefix().len();
        let value = match &self.open {
            None => value,
            Some(open) => match open(&key, value) {
                Ok(value) => value,
                Err(error) => {
                    warn!(key = %String::from_utf8_lossy(&key), error, "cannot read a stored object");
                    return None;
                }
            },
        };
        Some(Entry::new(prefix_len, key, value, revision))
    }

    fn tell(&self, what: Observed<'_>) {
        for observer in &self.observers {
            match &what {
                Observed::Reset => observer(Observed::Reset),
                Observed::Put(entry) => observer(Observed::Put(entry)),
                Observed::Gone(entry) => observer(Observed::Gone(entry)),
            }
        }
    }
}

enum Command {
    Add { prefix: Bytes, open: Option<Open>, observers: Vec<Observer>, done: oneshot::Sender<()> },
    Remove { prefix: Bytes },
}

/// All caches and the task that feeds them.
pub struct Hub {
    store: Arc<dyn Store>,
    root: Bytes,
    slots: RwLock<HashMap<Bytes, Arc<Slot>>>,
    reached: watch::Sender<i64>,
    progress: Mutex<Option<ProgressRequester>>,
    commands: mpsc::UnboundedSender<Command>,
    inbox: Mutex<Option<mpsc::UnboundedReceiver<Command>>>,
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
            progress: Mutex::new(None),
            commands,
            inbox: Mutex::new(Some(inbox)),
        })
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Declares a resource before the hub runs.
    pub fn declare(&self, prefix: Bytes, open: Option<Open>, observers: Vec<Observer>) {
        let cache = Arc::new(ResourceCache::new(prefix.clone(), 0));
        self.slots_mut().insert(prefix, Arc::new(Slot { cache, open, observers }));
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

    /// Loads everything and follows the store until stopped. After a break it loads anew and cuts all watches.
    pub async fn run(self: Arc<Self>, stop: Stop) {
        let inbox = self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(mut inbox) = inbox else { return };
        while !stop.is_requested() {
            let Some(outcome) = stop.or(self.follow(&mut inbox)).await else { break };
            if let Err(error) = outcome {
                warn!(error = %telemetry::chain(&error), "the watch of the store broke, loading anew");
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
            slot.tell(Observed::Reset);
            for entry in &entries {
                slot.tell(Observed::Put(entry));
            }
            slot.cache.reset(entries, revision);
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
                let cache = Arc::new(ResourceCache::new(prefix.clone(), revision));
                let slot = Arc::new(Slot { cache, open, observers });
                let options = ListOptions { revision, ..ListOptions::default() };
                let listing = self.store.list(&prefix, options).await?;
                let entries: Vec<Entry> = listing
                    .items
                    .into_iter()
                    .filter_map(|item| slot.entry(item.key, item.value, item.mod_revision))
                    .collect();
                for entry in &entries {
                    slot.tell(Observed::Put(entry));
                }
                slot.cache.reset(entries, revision);
                let old = self.slots_mut().insert(prefix, slot);
                if let Some(old) = old {
                    old.cache.close_watchers();
                }
                let _ = done.send(()); // whoever asked may have given up
            }
        }
        Ok(())
    }
}
