//! The smallest steps by which the state changes: what a log record is made of.
//!
//! A transaction decides which mutations to make; they go to the log, and to the state once they are committed. Whoever applies them,
//! now or when the log is replayed, decides nothing again, so a decision may depend on the clock or on limits that have changed since.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;

use crate::mvcc::keyspace::{Keyspace, Version};
use crate::mvcc::lease::Leases;
use crate::store::Revision;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Sets a key, attached to a lease (0 is none).
    Put {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
        /// Its lease.
        lease: i64,
    },
    /// Deletes a key that exists.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Adds a lease.
    GrantLease {
        /// Its id.
        id: i64,
        /// Its time to live in seconds.
        ttl: i64,
    },
    /// Records how much time a lease has left.
    CheckpointLease {
        /// Its id.
        id: i64,
        /// The seconds; `None` takes an earlier record back.
        seconds: Option<i64>,
    },
    /// Removes a lease; its keys are deleted by mutations of their own.
    RevokeLease {
        /// Its id.
        id: i64,
    },
    /// Forgets history.
    Compact {
        /// The oldest revision to keep.
        revision: Revision,
    },
    /// Sets or removes one of the server's own settings (users, roles, alarms, identity).
    Setting {
        /// Its name.
        name: Bytes,
        /// Its value; `None` removes it.
        value: Option<Bytes>,
    },
}

/// Everything that the log and the snapshots keep.
#[derive(Debug, Default)]
pub struct State {
    /// The keys.
    pub keys: Keyspace,
    /// The leases.
    pub leases: Leases,
    /// The server's own settings.
    pub settings: BTreeMap<Bytes, Bytes>,
    /// How many records have been applied since the beginning of time: those that are committed.
    pub index: u64,
    /// How many snapshots are being read: until they are done, compaction frees nothing.
    pub holds: usize,
}

impl State {
    /// Applies one mutation. `revision` is that of the transaction it belongs to. Returns the version of the key
    /// before it.
    pub fn apply(&mut self, revision: Revision, mutation: Mutation, now: Instant) -> Option<Version> {
        match mutation {
            Mutation::Put { key, value, lease } => {
                let previous = self.keys.put(revision, key.clone(), value, lease);
                let before = previous.as_ref().map_or(0, |version| version.lease);
                self.leases.move_key(&key, before, lease);
                previous
            }
            Mutation::Delete { key } => {
                let previous = self.keys.delete(revision, &key);
                if let Some(version) = &previous {
                    self.leases.move_key(&key, version.lease, 0);
                }
                previous
            }
            Mutation::GrantLease { id, ttl } => {
                self.leases.grant(id, ttl, now);
                None
            }
            Mutation::CheckpointLease { id, seconds } => {
                self.leases.checkpoint(id, seconds);
                None
            }
            Mutation::RevokeLease { id } => {
                self.leases.revoke(id);
                None
            }
            Mutation::Compact { revision } => {
                // Freeing the memory takes a while and is done in small steps: `State::prune`.
                self.keys.note_compaction(revision);
                None
            }
            Mutation::Setting { name, value } => {
                match value {
                    Some(value) => self.settings.insert(name, value),
                    None => self.settings.remove(&name),
                };
                None
            }
        }
    }

    /// Frees some of what compaction has made superfluous; returns whether there is more to do now.
    pub fn prune(&mut self, limit: usize) -> bool {
        self.holds == 0 && self.keys.prune(limit)
    }
}
