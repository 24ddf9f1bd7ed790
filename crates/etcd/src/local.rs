//! The store in process, as the API server uses it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::engine::draft::Keys;
use crate::engine::{Shared, Transaction};
use crate::local_watch::LocalWatch;
use crate::mutation::Mutation;
use crate::mvcc::keyspace;
use crate::mvcc::range::KeyRange;
use crate::store::{
    Committed, KeyValue, ListOptions, Listing, Precondition, Revision, Store, StoreError, Watch,
};

/// The store in process. Cheap to clone through its `Arc`; closes with the tasks it was opened with.
pub struct Etcd {
    pub(crate) shared: Arc<Shared>,
}

impl Etcd {
    /// A key now, without a future: the visible state never waits for anything.
    pub fn get_now(&self, key: &[u8]) -> Option<KeyValue> {
        let state = self.shared.read();
        let found = state.keys.get(key, self.shared.visible());
        drop(state);
        self.owned(found)
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
        let found = state.keys.get(key, at);
        drop(state);
        Ok((self.owned(found), current))
    }

    fn owned(&self, found: Option<KeyValue>) -> Option<KeyValue> {
        let found = found?;
        self.shared.note_read(found.value.len());
        Some(keyspace::owned(found))
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
        drop(state);
        // Copied without the lock: the values may have to come from the disk.
        for item in &mut listing.items {
            self.shared.note_read(item.value.len());
            *item = keyspace::owned(std::mem::take(item));
        }
        listing.more = listing.count > listing.items.len() as i64;
        Ok(listing)
    }

    /// Runs a transaction and waits until it, and whatever it was decided on, is committed.
    pub async fn transact<T, E: From<StoreError>>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let (answer, ticket) = self.shared.transact(decide)?;
        ticket.durable().await?;
        answer
    }

    /// Like [`Etcd::transact`]. A caller whose thread has nothing else to do (`idle`) and that is the only one to write does
    /// not wait for another thread to write the log but does so itself.
    pub async fn transact_here<T, E: From<StoreError>>(
        &self,
        idle: bool,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        if !idle {
            return self.transact(decide).await;
        }
        let (answer, ticket) = self.shared.transact_here(decide)?;
        ticket.durable().await?;
        answer
    }

    /// Makes a lease with an id; 0 chooses one.
    pub async fn grant_lease_as(&self, id: i64, ttl_seconds: i64) -> Result<i64, StoreError> {
        let granted = self
            .transact(|transaction| -> Result<i64, StoreError> {
                let id = if id == 0 { free_lease_id(transaction) } else { id };
                transaction.check_grant(id, ttl_seconds)?;
                self.shared.check_space(transaction.keys(), 0)?;
                transaction.apply(Mutation::GrantLease { id, ttl: ttl_seconds });
                Ok(id)
            })
            .await?;
        self.shared.counters.leases_granted.increment();
        self.shared.wake_housekeeping();
        Ok(granted)
    }

    /// Starts a lease's time again. Returns the seconds granted.
    pub async fn keep_lease_alive(&self, lease: i64) -> Result<i64, StoreError> {
        self.shared.check_open()?;
        let (ttl, recorded) = {
            let draft = self.shared.draft();
            let mut state = self.shared.write();
            let ttl = state.leases.keep_alive(lease, Instant::now());
            (ttl, draft.is_checkpointed(&state, lease))
        };
        let ttl = ttl.ok_or(StoreError::LeaseNotFound(lease))?;
        self.shared.counters.leases_renewed.increment();
        if recorded {
            // The log says that less is left. That must not be what a restart believes once the caller is told otherwise.
            self.transact(|transaction| -> Result<(), StoreError> {
                transaction.apply(Mutation::CheckpointLease { id: lease, seconds: None });
                Ok(())
            })
            .await?;
        }
        Ok(ttl)
    }

    /// Whether writes are refused for lack of space on the disk or in the quota.
    pub fn has_space_alarm(&self) -> bool {
        self.shared.has_space_alarm()
    }

    fn check_size(&self, size: usize) -> Result<(), StoreError> {
        let limit = self.shared.config.max_request_bytes;
        if size > limit { Err(StoreError::TooLarge { size, limit }) } else { Ok(()) }
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
fn check(when: Precondition, key: &Bytes, keys: Keys<'_>) -> Result<(), Committed> {
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
    Err(Committed::Conflict { revision: keys.revision(), current: current.map(|version| version.owned(key)) })
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
            // With nobody else writing, waiting for the disk costs less than waking a thread to do so.
            self.transact_here(true, |transaction| {
                if let Err(conflict) = check(when, &key, transaction.keys()) {
                    return Ok(conflict);
                }
                if lease != 0 && !transaction.has_lease(lease) {
                    return Err(StoreError::LeaseNotFound(lease));
                }
                self.shared.check_space(transaction.keys(), size)?;
                let previous = transaction.put(key.clone(), value, lease);
                Ok(Committed::Done {
                    revision: transaction.revision(),
                    previous: previous.map(|version| version.owned(&key)),
                })
            })
            .await
        }
        .boxed()
    }

    fn delete(&self, key: Bytes, when: Precondition) -> BoxFuture<'_, Result<Committed, StoreError>> {
        async move {
            self.transact_here(true, |transaction| {
                if let Err(conflict) = check(when, &key, transaction.keys()) {
                    return Ok(conflict);
                }
                let previous = transaction.delete(&key);
                Ok(Committed::Done {
                    revision: transaction.revision(),
                    previous: previous.map(|version| version.owned(&key)),
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
            .await?;
            self.shared.wake_housekeeping();
            Ok(())
        }
        .boxed()
    }

    fn grant_lease(&self, ttl_seconds: i64) -> BoxFuture<'_, Result<i64, StoreError>> {
        self.grant_lease_as(0, ttl_seconds).boxed()
    }

    fn revoke_lease(&self, lease: i64) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            self.transact(|transaction| transaction.revoke_lease(lease)).await?;
            self.shared.counters.leases_revoked.increment();
            Ok(())
        }
        .boxed()
    }

    fn size_in_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        std::future::ready(self.shared.check_open().map(|()| self.shared.read().keys.bytes())).boxed()
    }

    fn watch_progress_is_reliable(&self) -> bool {
        true
    }
}

/// An id that no lease has: random, as etcd's are, so that ids of one cluster mean nothing in another.
pub(crate) fn free_lease_id(transaction: &Transaction<'_>) -> i64 {
    use std::hash::{BuildHasher, RandomState};
    let mut salt = 0_u64;
    loop {
        let id = (RandomState::new().hash_one(salt) >> 1) as i64;
        if id != 0 && !transaction.has_lease(id) {
            return id;
        }
        salt += 1;
    }
}
