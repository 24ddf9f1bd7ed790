//! A cache of projections that follows the server: list, then watch, then watch on.
//!
//! Handlers are called in order, on the informer's task, after the map has changed; they only take note (mark a
//! key as dirty) and return. A handler added late first sees every object that is there. What must stay true:
//! each handler sees each object's states in revision order, and after a lost watch the differences to a fresh
//! list are told as changes, so that nothing is missed.

use std::any::{Any, TypeId};
use std::borrow::Borrow;
use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot, watch};
use tracing::{debug, warn};

use crate::{Client, Encoded, Error, Key, ListOptions, Metadata, Projection, Resource, WatchEvent, read};

/// The server ends a watch after about this long; the spread keeps many informers from returning together.
const WATCH_SECONDS: std::ops::Range<u32> = 300..600;
const LIST_PAGE: u32 = 500;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What happened to one object. At least one side is there.
#[derive(Debug)]
pub struct Change<P> {
    pub old: Option<Arc<P>>,
    pub new: Option<Arc<P>>,
}

impl<P: Projection> Change<P> {
    /// The object as it is, or as it was before it went.
    pub fn latest(&self) -> &Arc<P> {
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a side")
    }

    pub fn key(&self) -> Key {
        self.latest().metadata().key()
    }
}

type Handler<P> = Box<dyn Fn(&Change<P>) + Send + Sync>;

/// A cache of one resource. Cheap to clone; all clones are the same cache.
pub struct Informer<P>(Arc<Shared<P>>);

impl<P> Clone for Informer<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<P> {
    resource: Resource,
    objects: Mutex<Objects<P>>,
    handlers: Mutex<Vec<Handler<P>>>,
    progress: Mutex<Progress>,
    /// How many fresh lists were asked for, and up to which wish they were made.
    wanted: AtomicU64,
    listed: watch::Sender<u64>,
    wish: Notify,
}

impl<P: Projection> Informer<P> {
    /// Starts following a resource; `which` narrows it by labels, fields, or a namespace.
    pub fn start(
        client: &Client,
        resource: &Resource,
        namespace: &str,
        which: ListOptions,
        tasks: &Tasks,
    ) -> Self {
        let shared = Arc::new(Shared {
            resource: resource.clone(),
            objects: Mutex::default(),
            handlers: Mutex::default(),
            progress: Mutex::default(),
            wanted: AtomicU64::new(0),
            listed: watch::Sender::new(0),
            wish: Notify::new(),
        });
        let api = client.api(resource).within(namespace);
        let informer = Self(shared);
        let follower = informer.clone();
        tasks.keep(format!("informer/{resource}"), move |stop| {
            let (follower, api, which) = (follower.clone(), api.clone(), which.clone());
            async move { follower.follow(&api, &which, &stop).await }
        });
        informer
    }

    pub fn get(&self, key: &Key) -> Option<Arc<P>> {
        lock(&self.0.objects).get(key).cloned()
    }

    /// All objects, in key order.
    pub fn list(&self) -> Vec<Arc<P>> {
        lock(&self.0.objects).all.iter().map(|held| held.0.clone()).collect()
    }

    /// The objects of one namespace, in name order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<P>> {
        let objects = lock(&self.0.objects);
        let first: &dyn Named = &(namespace, "");
        let range = objects.all.range::<dyn Named, _>((Bound::Included(first), Bound::Unbounded));
        range.take_while(|held| held.place().0 == namespace).map(|held| held.0.clone()).collect()
    }

    /// The objects for which [`Projection::indices`] named `value` in `index`, in no order.
    pub fn indexed(&self, index: &str, value: &str) -> Vec<Arc<P>> {
        let objects = lock(&self.0.objects);
        let list = objects.lists.get(&*list_name(index, value));
        list.map(|list| list.values().cloned().collect()).unwrap_or_default()
    }

    pub fn len(&self) -> usize {
        lock(&self.0.objects).all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn resource(&self) -> &Resource {
        &self.0.resource
    }

    /// Calls `handler` for every change from now on, and first for every object that is there.
    pub fn on_change(&self, handler: impl Fn(&Change<P>) + Send + Sync + 'static) {
        // Holding the list of handlers keeps new changes out until the replay is done.
        let mut handlers = lock(&self.0.handlers);
        for object in self.list() {
            handler(&Change { old: None, new: Some(object) });
        }
        handlers.push(Box::new(handler));
    }

    /// The newest revision that the cache reflects; 0 before the first list.
    pub fn revision(&self) -> u64 {
        lock(&self.0.progress).now.unwrap_or(0)
    }

    /// Resolves once the cache reflects `revision` or a newer one.
    pub async fn reached(&self, revision: u64) {
        let Some(come) = lock(&self.0.progress).wait(revision) else { return };
        // The sender lives in the same Shared that we hold, so waiting cannot fail.
        let _ = come.await;
    }

    /// Resolves once `enough` holds of what the cache has under `key`. It is asked again when that changes.
    pub async fn until(&self, key: &Key, enough: impl Fn(Option<&P>) -> bool) {
        loop {
            let changed = {
                let mut objects = lock(&self.0.objects);
                if enough(objects.get(key).map(|object| &**object)) {
                    return;
                }
                let (sender, changed) = oneshot::channel();
                objects.awaited.entry(key.clone()).or_default().push(sender);
                changed
            };
            // As above: somebody always answers.
            let _ = changed.await;
        }
    }

    /// Resolves once the first list is in.
    pub async fn synced(&self) {
        self.reached(0).await
    }

    /// Resolves once a list that began after this call is in: then the cache reflects whatever was done before it.
    pub async fn refreshed(&self) {
        let wish = self.0.wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.wish.notify_one();
        let mut listed = self.0.listed.subscribe();
        let _ = listed.wait_for(|done| *done >= wish).await;
    }

    async fn follow(&self, api: &crate::Api, which: &ListOptions, stop: &Stop) {
        let mut pause = FIRST_PAUSE;
        let mut from = None;
        while !stop.is_requested() {
            let round = async {
                let start = match from.take() {
                    Some(revision) => revision,
                    None => self.relist(api, which).await?,
                };
                self.watch(api, which, start).await
            };
            match stop.or(round).await {
                None => return,
                Some(Ok(resume)) => {
                    from = resume;
                    pause = FIRST_PAUSE;
                }
                Some(Err((resume, error))) => {
                    // An expired revision is healed by a new list at once; anything else waits a little.
                    if error.is_expired() {
                        debug!(resource = %self.0.resource, "watch expired, listing again");
                        continue;
                    }
                    warn!(resource = %self.0.resource, error = %chain(&error), "watch failed, will retry");
                    from = resume;
                    stop.or(tokio::time::sleep(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    async fn relist(&self, api: &crate::Api, which: &ListOptions) -> Result<String, Interrupted> {
        let mut options = ListOptions { limit: LIST_PAGE, ..which.clone() };
        let wish = self.0.wanted.load(Ordering::SeqCst);
        let mut objects = Objects::default();
        // Each page is read and let go before the next one comes: what was sent is many times as large as what is kept.
        let revision = loop {
            let page = api.list::<Box<RawValue>>(&options).await.map_err(|error| (None, error))?;
            for raw in &page.items {
                if let Some(object) =
                    self.decode(read(raw.get().as_bytes()), || serde_json::from_str(raw.get()).ok())
                {
                    objects.insert(Arc::new(object));
                }
            }
            if page.metadata.continue_token.is_empty() {
                break page.metadata.resource_version;
            }
            options = options.next_page(page.metadata.continue_token);
        };
        let fresh: Vec<Arc<P>> = objects.all.iter().map(|held| held.0.clone()).collect();
        let handlers = lock(&self.0.handlers);
        let before = std::mem::replace(&mut *lock(&self.0.objects), objects);
        let Objects { all: before, awaited, .. } = before;
        for old in &before {
            if self.get(&old.0.metadata().key()).is_none() {
                notify(&handlers, &Change { old: Some(old.0.clone()), new: None });
            }
        }
        for new in fresh {
            let old = before.get(&Held(new.clone())).map(|old| old.0.clone());
            let unchanged = old.as_ref().is_some_and(|old| {
                old.metadata().resource_version == new.metadata().resource_version
                    && old.metadata().uid == new.metadata().uid
            });
            if !unchanged {
                notify(&handlers, &Change { old, new: Some(new) });
            }
        }
        drop(handlers);
        awaited.into_values().flatten().for_each(tell);
        self.advance(&revision);
        self.0.listed.send_replace(wish);
        Ok(revision)
    }

    /// Follows the watch until the server ends it or a fresh list is wanted; returns where to go on from, if anywhere.
    async fn watch(
        &self,
        api: &crate::Api,
        which: &ListOptions,
        from: String,
    ) -> Result<Option<String>, Interrupted> {
        let mut revision = from;
        let options = ListOptions { resource_version: revision.clone(), ..which.clone() };
        let mut stream = match api.watch(&options, spread(WATCH_SECONDS)).await {
            Ok(stream) => stream,
            Err(error) => return Err((Some(revision), error)),
        };
        loop {
            let event = tokio::select! {
                event = stream.next() => event,
                () = self.0.wish.notified() => {
                    if *self.0.listed.borrow() < self.0.wanted.load(Ordering::SeqCst) {
                        return Ok(None);
                    }
                    continue;
                }
            };
            let Some(event) = event else { return Ok(Some(revision)) };
            let (raw, gone) = match event {
                Ok(WatchEvent::Added(raw) | WatchEvent::Modified(raw)) => (raw, false),
                Ok(WatchEvent::Deleted(raw)) => (raw, true),
                Ok(WatchEvent::Bookmark(raw)) => {
                    if let Some(seen) = revision_of(&raw) {
                        self.advance(&seen);
                        revision = seen;
                    }
                    continue;
                }
                Err(error) => return Err((Some(revision), error)),
            };
            let seen = match self.decode(raw.decode(), || raw.decode().ok()) {
                Some(object) => {
                    let seen = object.metadata().resource_version.to_string();
                    self.apply(object, gone);
                    Some(seen)
                }
                None => revision_of(&raw),
            };
            if let Some(seen) = seen {
                self.advance(&seen);
                revision = seen;
            }
        }
    }

    fn apply(&self, object: P, gone: bool) {
        let key = object.metadata().key();
        let object = Arc::new(object);
        let handlers = lock(&self.0.handlers);
        let (old, awaiting) = {
            let mut objects = lock(&self.0.objects);
            let awaiting = objects.awaited.remove(&key);
            let old = if gone { objects.remove(&key) } else { objects.insert(object.clone()) };
            (old, awaiting)
        };
        let change = if gone {
            Change { old: old.or(Some(object)), new: None }
        } else {
            Change { old, new: Some(object) }
        };
        notify(&handlers, &change);
        awaiting.into_iter().flatten().for_each(tell);
    }

    fn advance(&self, revision: &str) {
        let come = lock(&self.0.progress).advance(revision.parse().unwrap_or(0));
        come.into_iter().for_each(tell);
    }

    /// An object that does not decode is left out, loudly: one odd object must not blind us to the others.
    fn decode(&self, read: serde_json::Result<P>, named: impl FnOnce() -> Option<Unread>) -> Option<P> {
        match read {
            Ok(mut object) => {
                object.shrink();
                Some(object)
            }
            Err(error) => {
                let name = named().map(|object| object.metadata.key().to_string());
                warn!(resource = %self.0.resource, object = name.as_deref(), %error, "cannot decode object");
                None
            }
        }
    }
}

/// How far the cache is, and who waits for it to be further. Only those are woken whose revision has come: in a burst
/// there may be a hundred, and as many revisions.
#[derive(Default)]
struct Progress {
    /// The newest revision that the map reflects; `None` until the first list is in.
    now: Option<u64>,
    waiting: BTreeMap<(u64, u64), oneshot::Sender<()>>,
    serial: u64,
}

impl Progress {
    fn wait(&mut self, revision: u64) -> Option<oneshot::Receiver<()>> {
        if self.now.is_some_and(|now| now >= revision) {
            return None;
        }
        let (sender, come) = oneshot::channel();
        self.serial += 1;
        self.waiting.insert((revision, self.serial), sender);
        Some(come)
    }

    fn advance(&mut self, revision: u64) -> Vec<oneshot::Sender<()>> {
        if self.now.is_some_and(|now| now >= revision) {
            return Vec::new();
        }
        self.now = Some(revision);
        let mut come = Vec::new();
        while let Some(first) = self.waiting.first_entry()
            && first.key().0 <= revision
        {
            come.push(first.remove());
        }
        come
    }
}

/// Whoever asked may have gone.
fn tell(waiting: oneshot::Sender<()>) {
    let _ = waiting.send(());
}

/// What has a namespace and a name, and is found by them.
trait Named {
    fn place(&self) -> (&str, &str);
}

impl Named for (&str, &str) {
    fn place(&self) -> (&str, &str) {
        *self
    }
}

impl Named for Key {
    fn place(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl<P: Projection> Named for Held<P> {
    fn place(&self) -> (&str, &str) {
        let metadata = self.0.metadata();
        (&metadata.namespace, &metadata.name)
    }
}

impl<'a, P: Projection> Borrow<dyn Named + 'a> for Held<P> {
    fn borrow(&self) -> &(dyn Named + 'a) {
        self
    }
}

impl PartialEq for dyn Named + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for dyn Named + '_ {}

impl PartialOrd for dyn Named + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Named + '_ {
    fn cmp(&self, other: &Self) -> Order {
        self.place().cmp(&other.place())
    }
}

/// An object in the order of the keys, which it carries itself: a second copy of them would take as much room as it does.
struct Held<P>(Arc<P>);

impl<P: Projection> PartialEq for Held<P> {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl<P: Projection> Eq for Held<P> {}

impl<P: Projection> PartialOrd for Held<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl<P: Projection> Ord for Held<P> {
    fn cmp(&self, other: &Self) -> Order {
        self.place().cmp(&other.place())
    }
}

/// The cached objects by key, and the lists that their indices name.
struct Objects<P> {
    all: BTreeSet<Held<P>>,
    /// Who wants to hear of the next change of a key.
    awaited: HashMap<Key, Vec<oneshot::Sender<()>>>,
    /// Each list is ordered by the objects' addresses: cheap to keep, and no second copy of the keys.
    lists: HashMap<Box<str>, BTreeMap<usize, Arc<P>>>,
}

impl<P> Default for Objects<P> {
    fn default() -> Self {
        Self { all: BTreeSet::new(), awaited: HashMap::new(), lists: HashMap::new() }
    }
}

impl<P: Projection> Objects<P> {
    fn insert(&mut self, object: Arc<P>) -> Option<Arc<P>> {
        let key = object.metadata().key();
        let old = self.remove(&key);
        object.indices(&mut |index, value| {
            let list = self.lists.entry(list_name(index, value)).or_default();
            list.insert(Arc::as_ptr(&object) as usize, object.clone());
        });
        self.all.insert(Held(object));
        old
    }

    fn get(&self, key: &Key) -> Option<&Arc<P>> {
        self.all.get::<dyn Named>(key).map(|held| &held.0)
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<P>> {
        let Held(old) = self.all.take::<dyn Named>(key)?;
        old.indices(&mut |index, value| {
            let name = list_name(index, value);
            if let Some(list) = self.lists.get_mut(&name) {
                list.remove(&(Arc::as_ptr(&old) as usize));
                if list.is_empty() {
                    self.lists.remove(&name);
                }
            }
        });
        Some(old)
    }
}

fn list_name(index: &str, value: &str) -> Box<str> {
    [index, "=", value].concat().into()
}

/// Where to resume, if anywhere, and what went wrong.
type Interrupted = (Option<String>, Error);

fn notify<P>(handlers: &[Handler<P>], change: &Change<P>) {
    for handler in handlers {
        handler(change);
    }
}

/// The least that is known of an object.
#[derive(Deserialize)]
struct Unread {
    metadata: Metadata,
}

fn revision_of(raw: &Encoded) -> Option<String> {
    #[derive(Deserialize)]
    struct Holder {
        metadata: Revision,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Revision {
        resource_version: String,
    }
    raw.decode().ok().map(|holder: Holder| holder.metadata.resource_version)
}

/// A number in the range that differs from caller to caller; randomness of any quality would do.
fn spread(range: std::ops::Range<u32>) -> u32 {
    use std::hash::{BuildHasher, RandomState};
    let hash = RandomState::new().hash_one(0) as u32;
    range.start + hash % (range.end - range.start)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

type Started = HashMap<(Resource, TypeId), Box<dyn Any + Send>>;

/// One informer per resource and projection for the whole process.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    tasks: Tasks,
    started: Arc<Mutex<Started>>,
}

impl Informers {
    pub fn new(client: Client, tasks: Tasks) -> Self {
        Self { client, tasks, started: Arc::default() }
    }

    /// The informer of a resource, started at the first call.
    pub fn of<P: Projection>(&self, resource: &Resource) -> Informer<P> {
        let mut started = lock(&self.started);
        let entry = started.entry((resource.clone(), TypeId::of::<P>())).or_insert_with(|| {
            let all = ListOptions::default();
            Box::new(Informer::<P>::start(&self.client, resource, "", all, &self.tasks))
        });
        entry.downcast_ref::<Informer<P>>().expect("the key holds the type").clone()
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }
}

#[cfg(test)]
mod tests;
