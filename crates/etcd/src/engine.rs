//! The store in process: decides, applies, publishes.
//!
//! A write runs under the state's write lock: it looks at the newest state, makes its mutations, and leaves. It
//! becomes *visible* only once it is durable: readers read at the visible revision (the history makes that free),
//! watches are told, and then the writer gets its answer. So nothing is ever shown that a crash could take back,
//! and nobody waits for the disk but writers.
//!
//! Lock order: state, then hub.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::sync::{Notify, oneshot};

use crate::local_watch::LocalWatch;
use crate::mutation::{Mutation, State};
use crate::mvcc::hub::Hub;
use crate::mvcc::keyspace::{Keyspace, Version};
use crate::mvcc::lease::Leases;
use crate::mvcc::range::KeyRange;
use crate::store::{
    Committed, KeyValue, ListOptions, Listing, Precondition, Revision, Store, StoreError, Watch,
};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the log and the snapshots are; `None` keeps everything in memory only.
    pub data_dir: Option<PathBuf>,
    /// The most bytes of data (history included) before writes are refused.
    pub quota_bytes: u64,
    /// The largest value taken in one write.
    pub max_request_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { data_dir: None, quota_bytes: 2 << 30, max_request_bytes: 3 << 19 }
    }
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {}

/// The store in process. Cheap to clone through its `Arc`; closes with the tasks it was opened with.
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    state: RwLock<State>,
    hub: Mutex<Hub>,
    visible: AtomicI64,
    closed: AtomicBool,
    leases_changed: Notify,
    config: Config,
}

/// Opens a store; its background work runs on `tasks`.
pub fn open(config: Config, tasks: &Tasks) -> Result<Arc<Etcd>, OpenError> {
    let state = State::default();
    let revision = state.keys.revision();
    let shared = Arc::new(Shared {
        state: RwLock::new(state),
        hub: Mutex::new(Hub::new(revision)),
        visible: AtomicI64::new(revision),
        closed: AtomicBool::new(false),
        leases_changed: Notify::new(),
        config,
    });
    let for_leases = shared.clone();
    tasks.spawn("etcd/leases", |stop| async move { for_leases.expire_leases(stop).await });
    Ok(Arc::new(Etcd { shared }))
}

/// A write in the making: sees the newest state and its own changes.
pub struct Transaction<'a> {
    state: &'a mut State,
    revision: Revision,
    now: Instant,
    changed: bool,
}

impl Transaction<'_> {
    /// The keys, with this transaction's changes so far.
    pub fn keys(&self) -> &Keyspace {
        &self.state.keys
    }

    /// The leases.
    pub fn leases(&self) -> &Leases {
        &self.state.leases
    }

    /// The server's own settings.
    pub fn setting(&self, name: &[u8]) -> Option<&Bytes> {
        self.state.settings.get(name)
    }

    /// The newest revision; that of this transaction once it has changed a key.
    pub fn revision(&self) -> Revision {
        self.state.keys.revision()
    }

    /// The instant of the transaction.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Puts a key.
    pub fn put(&mut self, key: Bytes, value: Bytes, lease: i64) -> Option<Version> {
        self.apply(Mutation::Put { key, value, lease })
    }

    /// Deletes a key; a missing one is left alone.
    pub fn delete(&mut self, key: &Bytes) -> Option<Version> {
        self.state.keys.version(key, Revision::MAX)?;
        self.apply(Mutation::Delete { key: key.clone() })
    }

    /// Deletes a lease's keys and the lease.
    pub fn revoke_lease(&mut self, id: i64) -> Result<(), StoreError> {
        let lease = self.state.leases.get(id).ok_or(StoreError::LeaseNotFound(id))?;
        for key in lease.keys.clone() {
            self.delete(&key);
        }
        self.apply(Mutation::RevokeLease { id });
        Ok(())
    }

    /// Makes any mutation.
    pub fn apply(&mut self, mutation: Mutation) -> Option<Version> {
        self.changed = true;
        self.state.apply(self.revision, mutation, self.now)
    }
}

/// Resolves when a write, and everything it may have seen, is durable.
pub enum Ticket {
    /// It is already.
    Ready,
    /// The log will tell.
    Waiting(oneshot::Receiver<Result<(), StoreError>>),
}

impl Ticket {
    /// Waits for it.
    pub async fn durable(self) -> Result<(), StoreError> {
        match self {
            Self::Ready => Ok(()),
            Self::Waiting(receiver) => receiver.await.unwrap_or(Err(StoreError::Closed)),
        }
    }
}

impl Shared {
    /// The newest durable revision.
    pub fn visible(&self) -> Revision {
        self.visible.load(Ordering::Acquire)
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("a change was half applied: the state must not be used any more")
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("a change was half applied: the state must not be used any more")
    }

    pub fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().expect("a delivery was half made: the watches must not be used any more")
    }

    pub fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Runs a transaction. An error leaves the state as it was only if the transaction made no change before it.
    pub fn transact<T>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<(T, Ticket), StoreError> {
        self.check_open()?;
        let mut state = self.write();
        let revision = state.keys.next_revision();
        let mut transaction =
            Transaction { state: &mut state, revision, now: Instant::now(), changed: false };
        let answer = decide(&mut transaction)?;
        let changed = transaction.changed;
        if changed {
            state.index += 1;
        }
        let revision = state.keys.revision();
        drop(state);
        if changed {
            self.publish(revision);
        }
        Ok((answer, Ticket::Ready))
    }

    /// Makes everything up to a revision visible and tells the watches.
    pub fn publish(&self, revision: Revision) {
        self.visible.fetch_max(revision, Ordering::AcqRel);
        let state = self.read();
        let mut hub = self.hub();
        let from = hub.dispatched() + 1;
        if from <= revision {
            hub.dispatch(state.keys.all_events(from, revision), revision);
        }
    }

    async fn expire_leases(&self, stop: Stop) {
        loop {
            // Registered before looking, so that a grant in between is not missed.
            let changed = self.leases_changed.notified();
            let next = self.read().leases.next_expiry();
            let wait = async {
                match next {
                    Some(when) => tokio::time::sleep_until(when.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Every arm may be dropped: nothing is held across the wait.
            tokio::select! {
                () = stop.requested() => break,
                () = changed => continue,
                () = wait => {}
            }
            let expired = self.read().leases.expired(Instant::now());
            for id in expired {
                let revoked = self.transact(|transaction| {
                    // Kept alive in the meantime, or revoked by someone else.
                    match transaction.leases().get(id) {
                        Some(lease) if lease.expires <= transaction.now() => transaction.revoke_lease(id),
                        _ => Ok(()),
                    }
                });
                match revoked {
                    Ok(((), ticket)) => {
                        if let Err(error) = ticket.durable().await {
                            tracing::warn!(lease = id, error = %telemetry::chain(&error), "expired lease not revoked");
                        }
                    }
                    Err(error) => {
                        tracing::warn!(lease = id, error = %telemetry::chain(&error), "expired lease not revoked");
                        stop.or(tokio::time::sleep(std::time::Duration::from_secs(1))).await;
                    }
                }
            }
        }
        self.closed.store(true, Ordering::Release);
        self.hub().close();
    }
}

impl Etcd {
    /// A key now, without a future: the visible state never waits for anything.
    pub fn get_now(&self, key: &[u8]) -> Option<KeyValue> {
        let state = self.shared.read();
        state.keys.get(key, self.shared.visible())
    }

    /// The current revision.
    pub fn revision(&self) -> Revision {
        self.shared.visible()
    }

    /// A key at a revision (0 is now), and the current revision.
    pub fn get_at(&self, key: &[u8], revision: Revision) -> Result<(Option<KeyValue>, Revision), StoreError> {
        self.shared.check_open()?;
        let state = self.shared.read();
        let current = self.shared.visible();
        let at = if revision == 0 { current } else { revision };
        state.keys.check_revision(at, current)?;
        Ok((state.keys.get(key, at), current))
    }

    /// A listing, without a future.
    pub fn list_at(&self, prefix: &[u8], options: &ListOptions) -> Result<Listing, StoreError> {
        self.shared.check_open()?;
        let range = narrowed(prefix, options.start.as_ref());
        let state = self.shared.read();
        let current = self.shared.visible();
        let at = if options.revision == 0 { current } else { options.revision };
        state.keys.check_revision(at, current)?;
        let mut listing = Listing { revision: current, ..Listing::default() };
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        for (key, version) in state.keys.range(&range, at) {
            listing.count += 1;
            if listing.items.len() < limit {
                let mut item = version.with_key(key);
                if options.keys_only {
                    item.value = Bytes::new();
                }
                listing.items.push(item);
            }
        }
        listing.more = listing.count > listing.items.len() as i64;
        Ok(listing)
    }

    /// Runs a transaction and waits until it is durable.
    pub async fn transact<T>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (answer, ticket) = self.shared.transact(decide)?;
        ticket.durable().await?;
        Ok(answer)
    }

    /// Starts a lease's time again. Returns the seconds granted.
    pub fn keep_lease_alive(&self, lease: i64) -> Result<i64, StoreError> {
        self.shared.check_open()?;
        let ttl = self.shared.write().leases.keep_alive(lease, Instant::now());
        ttl.ok_or(StoreError::LeaseNotFound(lease))
    }

    fn check_size(&self, size: usize) -> Result<(), StoreError> {
        let limit = self.shared.config.max_request_bytes;
        if size > limit { Err(StoreError::TooLarge { size, limit }) } else { Ok(()) }
    }

    fn check_quota(&self, keys: &Keyspace, more: usize) -> Result<(), StoreError> {
        if keys.bytes() + more as u64 > self.shared.config.quota_bytes {
            Err(StoreError::NoSpace)
        } else {
            Ok(())
        }
    }
}

/// The keys with a prefix from a start key on.
fn narrowed(prefix: &[u8], start: Option<&Bytes>) -> KeyRange {
    let whole = KeyRange::prefix(Bytes::copy_from_slice(prefix));
    let Some(start) = start.filter(|start| &start[..] > prefix) else { return whole };
    match whole {
        KeyRange::Span(_, end) => KeyRange::Span(start.clone(), end),
        KeyRange::From(_) | KeyRange::One(_) => KeyRange::From(start.clone()),
    }
}

/// Whether a condition holds for a key; otherwise the answer to give.
fn check(when: Precondition, key: &Bytes, keys: &Keyspace) -> Result<(), Committed> {
    let current = keys.version(key, Revision::MAX);
    let holds = match when {
        Precondition::None => true,
        Precondition::Absent => current.is_none(),
        Precondition::ModRevision(revision) => {
            current.is_some_and(|version| version.mod_revision == revision)
        }
    };
    if holds {
        return Ok(());
    }
    Err(Committed::Conflict {
        revision: keys.revision(),
        current: current.map(|version| version.with_key(key)),
    })
}

impl Store for Etcd {
    fn get(
        &self,
        key: &[u8],
        revision: Revision,
    ) -> BoxFuture<'_, Result<(Option<KeyValue>, Revision), StoreError>> {
        std::future::ready(self.get_at(key, revision)).boxed()
    }

    fn list(&self, prefix: &[u8], options: ListOptions) -> BoxFuture<'_, Result<Listing, StoreError>> {
        std::future::ready(self.list_at(prefix, &options)).boxed()
    }

    fn put(
        &self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        when: Precondition,
    ) -> BoxFuture<'_, Result<Committed, StoreError>> {
        async move {
            let size = key.len() + value.len();
            self.check_size(size)?;
            self.transact(|transaction| {
                if let Err(conflict) = check(when, &key, transaction.keys()) {
                    return Ok(conflict);
                }
                if lease != 0 && transaction.leases().get(lease).is_none() {
                    return Err(StoreError::LeaseNotFound(lease));
                }
                self.check_quota(transaction.keys(), size)?;
                let previous = transaction.put(key.clone(), value, lease);
                Ok(Committed::Done {
                    revision: transaction.revision(),
                    previous: previous.map(|version| version.with_key(&key)),
                })
            })
            .await
        }
        .boxed()
    }

    fn delete(&self, key: Bytes, when: Precondition) -> BoxFuture<'_, Result<Committed, StoreError>> {
        async move {
            self.transact(|transaction| {
                if let Err(conflict) = check(when, &key, transaction.keys()) {
                    return Ok(conflict);
                }
                let previous = transaction.delete(&key);
                Ok(Committed::Done {
                    revision: transaction.revision(),
                    previous: previous.map(|version| version.with_key(&key)),
                })
            })
            .await
        }
        .boxed()
    }

    fn watch(&self, prefix: Bytes, from: Revision) -> BoxFuture<'_, Result<Watch, StoreError>> {
        let opened = LocalWatch::open(self.shared.clone(), KeyRange::prefix(prefix), from);
        std::future::ready(opened.map(Watch::new)).boxed()
    }

    fn progress(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        std::future::ready(self.shared.check_open().map(|()| self.shared.visible())).boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.transact(|transaction| {
                let current = self.shared.visible();
                let compacted = transaction.keys().compacted();
                if revision > current {
                    return Err(StoreError::FutureRevision { requested: revision, current });
                }
                if revision <= compacted {
                    return Err(StoreError::Compacted { requested: revision, compacted });
                }
                transaction.apply(Mutation::Compact { revision });
                Ok(())
            })
            .await
        }
        .boxed()
    }

    fn grant_lease(&self, ttl_seconds: i64) -> BoxFuture<'_, Result<i64, StoreError>> {
        async move {
            let granted = self
                .transact(|transaction| {
                    let id = free_lease_id(transaction.leases());
                    transaction.leases().check_grant(id, ttl_seconds)?;
                    transaction.apply(Mutation::GrantLease { id, ttl: ttl_seconds });
                    Ok(id)
                })
                .await?;
            self.shared.leases_changed.notify_one();
            Ok(granted)
        }
        .boxed()
    }

    fn revoke_lease(&self, lease: i64) -> BoxFuture<'_, Result<(), StoreError>> {
        async move { self.transact(|transaction| transaction.revoke_lease(lease)).await }.boxed()
    }

    fn size_in_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        std::future::ready(self.shared.check_open().map(|()| self.shared.read().keys.bytes())).boxed()
    }

    fn watch_progress_is_reliable(&self) -> bool {
        true
    }
}

/// An id that no lease has: random, as etcd's are, so that ids of one cluster mean nothing in another.
pub(crate) fn free_lease_id(leases: &Leases) -> i64 {
    use std::hash::{BuildHasher, RandomState};
    let mut salt = 0_u64;
    loop {
        let id = (RandomState::new().hash_one(salt) >> 1) as i64;
        if id != 0 && leases.get(id).is_none() {
            return id;
        }
        salt += 1;
    }
}
