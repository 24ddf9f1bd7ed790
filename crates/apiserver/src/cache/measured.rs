//! The store as the server uses it: each request is counted and timed for the resource that it is about.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use etcd::{Committed, KeyValue, ListOptions, Listing, Precondition, Revision, Store, StoreError};

use super::Hub;
use super::resource::ResourceCache;
use crate::metrics::histogram::{Histogram, REQUEST_SECONDS};

/// What is asked of the store, in upstream's words.
pub const OPERATIONS: [&str; 5] = ["create", "delete", "get", "list", "update"];

/// Requests of one sort.
pub struct Requests {
    /// How long each took.
    pub seconds: Histogram,
    /// How many failed.
    pub failed: AtomicU64,
}

/// The requests about one resource, by operation. What was never asked takes no room.
#[derive(Default)]
pub struct Asked([OnceLock<Box<Requests>>; OPERATIONS.len()]);

impl Asked {
    fn add(&self, operation: usize, began: Instant, failed: bool) {
        let own = self.0[operation].get_or_init(|| {
            Box::new(Requests { seconds: Histogram::new(REQUEST_SECONDS), failed: AtomicU64::new(0) })
        });
        own.seconds.time(began.elapsed());
        if failed {
            own.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What was asked.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Requests)> {
        OPERATIONS.iter().zip(&self.0).filter_map(|(name, own)| Some((*name, &**own.get()?)))
    }
}

/// The store of a hub. What is not counted goes straight to it.
#[derive(Clone, Copy)]
pub struct Measured<'a>(pub(super) &'a Hub);

impl Deref for Measured<'_> {
    type Target = Arc<dyn Store>;

    fn deref(&self) -> &Self::Target {
        &self.0.store
    }
}

impl<'a> Measured<'a> {
    fn cache_of(self, key: &[u8]) -> Option<Arc<ResourceCache>> {
        self.0.slot_of(key).map(|slot| slot.cache.clone())
    }

    fn add(self, cache: Option<Arc<ResourceCache>>, operation: usize, began: Instant, failed: bool) {
        let asked = cache.as_ref().map_or(&self.0.others, |cache| &cache.asked);
        asked.add(operation, began, failed);
    }

    /// See [`Store::get`].
    pub async fn get(
        self,
        key: &[u8],
        revision: Revision,
    ) -> Result<(Option<KeyValue>, Revision), StoreError> {
        let (cache, began) = (self.cache_of(key), Instant::now());
        let outcome = self.0.store.get(key, revision).await;
        self.add(cache, 2, began, outcome.is_err());
        outcome
    }

    /// See [`Store::list`].
    pub async fn list(self, prefix: &[u8], options: ListOptions) -> Result<Listing, StoreError> {
        let (cache, began) = (self.cache_of(prefix), Instant::now());
        let outcome = self.0.store.list(prefix, options).await;
        self.add(cache, 3, began, outcome.is_err());
        outcome
    }

    /// See [`Store::put`].
    pub async fn put(
        self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        when: Precondition,
    ) -> Result<Committed, StoreError> {
        let (cache, began) = (self.cache_of(&key), Instant::now());
        let operation = if when == Precondition::Absent { 0 } else { 4 };
        let outcome = self.0.store.put(key, value, lease, when).await;
        self.add(cache, operation, began, outcome.is_err());
        outcome
    }

    /// See [`Store::delete`].
    pub async fn delete(self, key: Bytes, when: Precondition) -> Result<Committed, StoreError> {
        let (cache, began) = (self.cache_of(&key), Instant::now());
        let outcome = self.0.store.delete(key, when).await;
        self.add(cache, 1, began, outcome.is_err());
        outcome
    }
}
