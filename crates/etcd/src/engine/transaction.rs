//! A write while it is being decided.

use std::time::Instant;

use bytes::Bytes;

use crate::log::codec::{LARGE, put_mutation, put_number};
use crate::mutation::{Mutation, State};
use crate::mvcc::keyspace::{Keyspace, Version};
use crate::mvcc::lease::Leases;
use crate::store::{Revision, StoreError};

/// A write in the making: sees the newest state and its own changes.
pub struct Transaction<'a> {
    pub(super) state: &'a mut State,
    pub(super) revision: Revision,
    pub(super) now: Instant,
    /// The log record so far; empty until something changes.
    pub(super) record: Vec<u8>,
    /// The bytes of large values in it.
    pub(super) large: usize,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) settings: u64,
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

    /// One of the server's own settings.
    pub fn setting(&self, name: &[u8]) -> Option<&Bytes> {
        self.state.settings.get(name)
    }

    /// The server's own settings.
    pub fn settings(&self) -> &std::collections::BTreeMap<Bytes, Bytes> {
        &self.state.settings
    }

    /// The newest revision; that of this transaction once it has changed a key.
    pub fn revision(&self) -> Revision {
        self.state.keys.revision()
    }

    /// The index that its record gets.
    pub fn next_index(&self) -> u64 {
        self.state.index + 1
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
        if self.record.is_empty() {
            put_number(&mut self.record, self.revision as u64);
        }
        self.large += large_bytes(&mutation);
        match &mutation {
            Mutation::Put { .. } => self.puts += 1,
            Mutation::Delete { .. } => self.deletes += 1,
            Mutation::Setting { .. } => self.settings += 1,
            _ => {}
        }
        put_mutation(&mut self.record, &mutation);
        self.state.apply(self.revision, mutation, self.now)
    }
}

/// The bytes of a value that is kept in a file only.
pub(super) fn large_bytes(mutation: &Mutation) -> usize {
    match mutation {
        Mutation::Put { value, .. } if value.len() >= LARGE => value.len(),
        _ => 0,
    }
}
