//! A write while it is being decided.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::draft::{Draft, Keys};
use crate::log::codec::{LARGE, Record, put_mutation, put_number};
use crate::mutation::{Mutation, State};
use crate::mvcc::keyspace::Version;
use crate::store::{Revision, StoreError};

/// A write in the making: sees the state as it will be when everything before it is committed, and its own changes.
pub struct Transaction<'a> {
    state: &'a State,
    draft: &'a mut Draft,
    revision: Revision,
    now: Instant,
    /// The log record so far; empty until something changes.
    record: Vec<u8>,
    mutations: Vec<Mutation>,
    /// The bytes of large values in it.
    large: usize,
}

/// What was decided.
pub(super) struct Decided {
    /// The log record; empty if nothing is changed.
    pub record: Vec<u8>,
    pub content: Record,
    pub large: usize,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(state: &'a State, draft: &'a mut Draft) -> Self {
        let revision = draft.revision() + 1;
        let now = Instant::now();
        Self { state, draft, revision, now, record: Vec::new(), mutations: Vec::new(), large: 0 }
    }

    pub(super) fn decided(self) -> Decided {
        let content = Record { revision: self.revision, mutations: self.mutations };
        Decided { record: self.record, content, large: self.large }
    }

    /// The keys, with this transaction's changes so far.
    pub fn keys(&self) -> Keys<'_> {
        self.draft.keys(&self.state.keys)
    }

    /// Whether there is a lease.
    pub fn has_lease(&self, id: i64) -> bool {
        self.draft.has_lease(self.state, id)
    }

    /// Checks that a lease may be granted.
    pub fn check_grant(&self, id: i64, ttl: i64) -> Result<(), StoreError> {
        let exists = if self.has_lease(id) { Err(StoreError::LeaseExists(id)) } else { Ok(()) };
        crate::mvcc::lease::check_ttl(ttl).and(exists)
    }

    /// Whether a lease is there and its time is over.
    pub fn is_expired(&self, id: i64) -> bool {
        let over = |id| self.state.leases.get(id).is_some_and(|lease| lease.expires <= self.now);
        self.has_lease(id) && over(id)
    }

    /// The checkpoints of leases to write: see [`crate::mvcc::lease::Leases::due_checkpoints`].
    pub fn due_checkpoints(&self, tolerance: Duration) -> Vec<(i64, i64)> {
        let mut due = self.state.leases.due_checkpoints(self.now, tolerance);
        due.retain(|(id, _)| self.has_lease(*id));
        due
    }

    /// One of the server's own settings.
    pub fn setting(&self, name: &[u8]) -> Option<&Bytes> {
        self.settings().get(name)
    }

    /// The server's own settings.
    pub fn settings(&self) -> &BTreeMap<Bytes, Bytes> {
        self.draft.settings(self.state)
    }

    /// The newest revision; that of this transaction once it has changed a key.
    pub fn revision(&self) -> Revision {
        self.draft.revision()
    }

    /// The index that its record gets.
    pub fn next_index(&self) -> u64 {
        self.draft.index() + 1
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
        self.keys().version(key, Revision::MAX)?;
        self.apply(Mutation::Delete { key: key.clone() })
    }

    /// Deletes a lease's keys and the lease.
    pub fn revoke_lease(&mut self, id: i64) -> Result<(), StoreError> {
        if !self.has_lease(id) {
            return Err(StoreError::LeaseNotFound(id));
        }
        let keys: BTreeSet<Bytes> = self.draft.lease_keys(self.state, id);
        for key in keys {
            self.delete(&key);
        }
        self.apply(Mutation::RevokeLease { id });
        Ok(())
    }

    /// Makes any mutation.
    pub fn apply(&mut self, mutation: Mutation) -> Option<Version> {
        if self.record.is_empty() {
            put_number(&mut self.record, self.revision as u64);
        }
        self.large += large_bytes(&mutation);
        put_mutation(&mut self.record, &mutation);
        let previous = self.draft.note(self.state, self.revision, &mutation);
        self.mutations.push(mutation);
        previous
    }
}

/// The bytes of a value that is kept in a file only.
pub(super) fn large_bytes(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::Put { value, .. } if value.len() >= LARGE => value.len(),
        _ => 0,
    }
}
