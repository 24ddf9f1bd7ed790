//! The store as the server uses it: each request is counted and timed for the resource that it is about.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use etcd::{Committed, KeyValue, ListOptions, Listing, Precondition, Revision, Store, StoreError};

use super::Hub;
use super::resource::ResourceCache;
use crate::metrics::histogram::{Histogram, REQUEST_SECONDS, WAIT_SECONDS};

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

/// LIST requests that were answered from one place.
#[derive(Default)]
#[allow(missing_docs, reason = "the numbers are explained where they are shown")]
pub struct Listed {
    pub lists: AtomicU64,
    pub fetched: AtomicU64,
    pub evaluated: AtomicU64,
    pub returned: AtomicU64,
}

impl Listed {
    /// Counts one.
    pub fn add(&self, fetched: usize, evaluated: usize, returned: usize) {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.fetched.fetch_add(fetched as u64, Ordering::Relaxed);
        self.evaluated.fetch_add(evaluated as u64, Ordering::Relaxed);
        self.returned.fetch_add(returned as u64, Ordering::Relaxed);
    }
}

/// LIST requests about one resource.
#[derive(Default)]
pub struct Lists {
    /// From the cache.
    pub cache: Listed,
    /// From the store.
    pub store: Listed,
    /// Those that wanted the newest and waited for it: in vain, and not.
    pub consistent: [AtomicU64; 2],
    waits: OnceLock<Box<Histogram>>,
}

impl Lists {
    /// Counts how long the cache was waited for.
    pub fn waited(&self, began: Instant) {
        self.waits.get_or_init(|| Box::new(Histogram::new(WAIT_SECONDS))).time(began.elapsed());
    }

    /// How long the cache was waited for, if it ever was.
    pub fn waits(&self) -> Option<&Histogram> {
        self.waits.get().map(|own| &**own)
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
