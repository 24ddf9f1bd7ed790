//! Every key with its history, ordered by key; and every change, ordered by revision.
//!
//! Two structures tell the same story: `index` maps a key to its versions (newest inline, older ones in a vector
//! that is empty for most keys after a compaction), `changes` lists which key changed at which revision. Reads
//! use the first, watches that catch up and compaction use the second.
//!
//! A large value is a slice of the file that it stands in, once it is durable ([`Keyspace::rehome`]), so that it takes no
//! memory; it moves on when a snapshot takes that file's place.
//!
//! Invariants: a key's versions have strictly growing mod revisions; `changes` is ordered by revision and holds
//! exactly the revisions from `compacted` on (plus none before it); within a revision it has the order in which
//! the transaction made its changes. A key is changed at most once per revision.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::log::codec::LARGE;
use crate::mvcc::range::KeyRange;
use crate::store::{Event, EventKind, KeyValue, Revision, StoreError};

/// What a key costs beyond its key and value bytes; counted into the size that the quota limits.
const OVERHEAD: u64 = 96;

/// One state of a key. A deletion is a version with the number 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The revision of the change.
    pub mod_revision: Revision,
    /// The revision at which the key came into being.
    pub create_revision: Revision,
    /// 1 for the creation, 0 for a deletion.
    pub version: i64,
    /// The lease or 0.
    pub lease: i64,
    /// The value.
    pub value: Bytes,
}

impl Version {
    /// A deletion.
    pub fn tombstone(revision: Revision) -> Self {
        Self { mod_revision: revision, create_revision: 0, version: 0, lease: 0, value: Bytes::new() }
    }

    /// Whether the key was deleted by this change.
    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// What comes of a put, after a version before it if the key existed.
    pub fn following(previous: Option<&Self>, revision: Revision, value: Bytes, lease: i64) -> Self {
        let (create_revision, version) =
            previous.map_or((revision, 1), |before| (before.create_revision, before.version + 1));
        Self { mod_revision: revision, create_revision, version, lease, value }
    }

    /// What it counts for the quota.
    pub fn size(&self, key: &[u8]) -> u64 {
        key.len() as u64 + self.value.len() as u64 + OVERHEAD
    }

    /// The version with its key; a large value as memory of its own, not as part of a file that it would keep from being
    /// freed. For whoever may hold it for long.
    pub fn owned(&self, key: &Bytes) -> KeyValue {
        owned(self.with_key(key))
    }

    /// The version with its key.
    pub fn with_key(&self, key: &Bytes) -> KeyValue {
        KeyValue {
            key: key.clone(),
            value: self.value.clone(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// A key whose value, if large, is memory of its own.
pub fn owned(kv: KeyValue) -> KeyValue {
    let value = if kv.value.len() >= LARGE { Bytes::copy_from_slice(&kv.value) } else { kv.value };
    KeyValue { value, ..kv }
}

/// A key's versions.
#[derive(Clone, Debug)]
pub struct History {
    newest: Version,
    older: Vec<Version>,
}

impl History {
    /// That of a key that had none.
    pub fn of(newest: Version) -> Self {
        Self { newest, older: Vec::new() }
    }

    /// The newest version.
    pub fn newest(&self) -> &Version {
        &self.newest
    }

    /// Forgets the versions up to a revision, of which the newest is not one. Returns their size.
    pub fn forget_up_to(&mut self, revision: Revision, key: &[u8]) -> u64 {
        let count = self.older.partition_point(|version| version.mod_revision <= revision);
        self.older.drain(..count).map(|version| version.size(key)).sum()
    }

    /// The version that was in force at a revision.
    pub fn at(&self, revision: Revision) -> Option<&Version> {
        if self.newest.mod_revision <= revision {
            return Some(&self.newest);
        }
        let after = self.older.partition_point(|version| version.mod_revision <= revision);
        after.checked_sub(1).map(|index| &self.older[index])
    }

    fn live_at(&self, revision: Revision) -> Option<&Version> {
        self.at(revision).filter(|version| !version.is_tombstone())
    }

    /// Adds a newer version.
    pub fn push(&mut self, version: Version) {
        debug_assert!(version.mod_revision > self.newest.mod_revision);
        self.older.push(std::mem::replace(&mut self.newest, version));
    }

    /// All versions, oldest first.
    pub fn versions(&self) -> impl Iterator<Item = &Version> {
        self.older.iter().chain(std::iter::once(&self.newest))
    }
}

/// How many of a key's versions, oldest first, nobody can see after a compaction. The newest one at or before the
/// compacted revision stays, unless it is a deletion from before it: a deletion at the revision itself is still an event
/// that a watch may ask for.
fn superfluous(older: &[Version], newest: &Version, compacted: Revision) -> usize {
    let visible = |version: &Version| !version.is_tombstone() || version.mod_revision == compacted;
    if newest.mod_revision <= compacted {
        return older.len() + usize::from(!visible(newest));
    }
    let after = older.partition_point(|version| version.mod_revision <= compacted);
    match after.checked_sub(1) {
        Some(last) if visible(&older[last]) => last,
        _ => after,
    }
}

/// Which key changed when.
#[derive(Clone, Debug)]
struct Change {
    revision: Revision,
    key: Bytes,
}

/// All keys and their history since the last compaction.
#[derive(Debug)]
pub struct Keyspace {
    index: BTreeMap<Bytes, History>,
    changes: VecDeque<Change>,
    revision: Revision,
    compacted: Revision,
    bytes: u64,
}

impl Default for Keyspace {
    fn default() -> Self {
        // An empty etcd is at revision 1: the first write gets revision 2.
        Self { index: BTreeMap::new(), changes: VecDeque::new(), revision: 1, compacted: 0, bytes: 0 }
    }
}

impl Keyspace {
    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The oldest revision that can be read; 0 if nothing was compacted.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The size of all versions kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many keys have a history, deleted ones included.
    pub fn keys(&self) -> usize {
        self.index.len()
    }

    /// Whether a revision can be read.
    pub fn check_revision(&self, requested: Revision, current: Revision) -> Result<(), StoreError> {
        if requested > current {
            return Err(StoreError::FutureRevision { requested, current });
        }
        if requested < self.compacted {
            return Err(StoreError::Compacted { requested, compacted: self.compacted });
        }
        Ok(())
    }

    /// A key at a revision.
    pub fn get(&self, key: &[u8], at: Revision) -> Option<KeyValue> {
        let (key, history) = self.index.get_key_value(key)?;
        Some(history.live_at(at)?.with_key(key))
    }

    /// The revision of a key's last change, a deletion included.
    pub fn last_change(&self, key: &[u8]) -> Option<Revision> {
        Some(self.index.get(key)?.newest.mod_revision)
    }

    /// The version of a key at a revision, without copying anything.
    pub fn version(&self, key: &[u8], at: Revision) -> Option<&Version> {
        self.index.get(key)?.live_at(at)
    }

    /// The keys of a range that exist at a revision, in order.
    pub fn range<'a>(
        &'a self,
        range: &'a KeyRange,
        at: Revision,
    ) -> impl DoubleEndedIterator<Item = (&'a Bytes, &'a Version)> + 'a {
        // BTreeMap::range panics on reversed bounds; such a range holds nothing.
        let found = (!range.is_empty()).then(|| self.index.range::<[u8], _>(range.bounds()));
        found.into_iter().flatten().filter_map(move |(key, history)| Some((key, history.live_at(at)?)))
    }

    /// Begins a change of the keyspace: the revision that it gets.
    pub fn next_revision(&self) -> Revision {
        self.revision + 1
    }

    /// Puts a key at a revision, which becomes the newest one. Returns the version before, if the key existed.
    pub fn put(&mut self, revision: Revision, key: Bytes, value: Bytes, lease: i64) -> Option<Version> {
        self.revision = revision;
        let mut previous = None;
        let key = match self.index.entry(key) {
            Entry::Occupied(mut entry) => {
                let history = entry.get_mut();
                previous = Some(history.newest.clone()).filter(|version| !version.is_tombstone());
                let fresh = Version::following(previous.as_ref(), revision, value, lease);
                self.bytes += fresh.size(entry.key());
                entry.get_mut().push(fresh);
                // The change shares the index's bytes of the key, not the caller's.
                entry.key().clone()
            }
            Entry::Vacant(entry) => {
                let key = entry.key().clone();
                let fresh = Version::following(None, revision, value, lease);
                self.bytes += fresh.size(&key);
                entry.insert(History::of(fresh));
                key
            }
        };
        self.changes.push_back(Change { revision, key });
        previous
    }

    /// Deletes a key at a revision. Does nothing (and returns `None`) if it does not exist.
    pub fn delete(&mut self, revision: Revision, key: &[u8]) -> Option<Version> {
        let known = self.index.get_key_value(key)?.0.clone();
        let history = self.index.get_mut(key)?;
        if history.newest.is_tombstone() {
            return None;
        }
        let previous = history.newest.clone();
        let tombstone = Version::tombstone(revision);
        self.bytes += tombstone.size(key);
        history.push(tombstone);
        self.revision = revision;
        self.changes.push_back(Change { revision, key: known });
        Some(previous)
    }

    /// Says where else the value of a version is: there it is read from now on. A version that is not there any more, or is
    /// another one, is left alone.
    pub fn rehome(&mut self, key: &[u8], revision: Revision, value: Bytes) {
        let Some(history) = self.index.get_mut(key) else { return };
        let version = if history.newest.mod_revision == revision {
            Some(&mut history.newest)
        } else {
            let found = history.older.binary_search_by_key(&revision, |version| version.mod_revision);
            found.ok().map(|index| &mut history.older[index])
        };
        if let Some(version) = version.filter(|version| version.value.len() == value.len()) {
            debug_assert_eq!(version.value, value);
            version.value = value;
        }
    }

    /// Refuses reads before a revision from now on, but keeps the memory until [`Keyspace::compact`].
    pub fn note_compaction(&mut self, revision: Revision) {
        self.compacted = self.compacted.max(revision);
    }

    /// Forgets what no reader at `revision` or later can see.
    pub fn compact(&mut self, revision: Revision) {
        self.note_compaction(revision);
        while self.prune(usize::MAX) {}
    }

    /// Frees memory that compaction has made superfluous, looking at up to `limit` changes. Returns whether there is
    /// more to do.
    pub fn prune(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            match self.changes.front() {
                Some(change) if change.revision < self.compacted => {}
                _ => break,
            }
            let Some(change) = self.changes.pop_front() else { break };
            self.prune_key(&change.key);
        }
        if self.changes.capacity() > 64 && self.changes.len() * 4 < self.changes.capacity() {
            self.changes.shrink_to(self.changes.len() * 2);
        }
        self.has_superfluous()
    }

    /// Whether there is something to prune.
    pub fn has_superfluous(&self) -> bool {
        self.changes.front().is_some_and(|change| change.revision < self.compacted)
    }

    fn prune_key(&mut self, key: &Bytes) {
        let Some(history) = self.index.get_mut(key) else { return };
        let mut freed = 0;
        let superfluous = superfluous(&history.older, &history.newest, self.compacted);
        if superfluous > 0 {
            let older = history.older.len();
            freed +=
                history.older.drain(..superfluous.min(older)).map(|version| version.size(key)).sum::<u64>();
            history.older.shrink_to_fit();
            if superfluous > older {
                freed += history.newest.size(key);
                self.index.remove(key);
            }
        }
        self.bytes = self.bytes.saturating_sub(freed);
    }

    /// The events of a range with revisions in `from..=to`, in order: as many whole revisions as fit into about
    /// `limit` changes looked at. Returns the events and the last revision that they cover.
    pub fn events(
        &self,
        range: &KeyRange,
        from: Revision,
        to: Revision,
        limit: usize,
    ) -> (Vec<Event>, Revision) {
        let start = self.changes.partition_point(|change| change.revision < from);
        let mut events = Vec::new();
        for (seen, change) in self.changes.range(start..).enumerate() {
            if change.revision > to {
                break;
            }
            let last = start + seen;
            if seen >= limit && self.changes[last - 1].revision != change.revision {
                return (events, change.revision - 1);
            }
            if range.contains(&change.key) {
                events.extend(self.event(&change.key, change.revision));
            }
        }
        (events, to)
    }

    /// All changes with revisions in `from..=to`, in order.
    pub fn all_events(&self, from: Revision, to: Revision) -> impl Iterator<Item = Event> + '_ {
        let start = self.changes.partition_point(|change| change.revision < from);
        self.changes
            .range(start..)
            .take_while(move |change| change.revision <= to)
            .filter_map(|change| self.event(&change.key, change.revision))
    }

    fn event(&self, key: &Bytes, revision: Revision) -> Option<Event> {
        let history = self.index.get(key)?;
        let version = history.at(revision).filter(|version| version.mod_revision == revision)?;
        let previous = history.live_at(revision - 1).map(|version| version.with_key(key));
        let kind = if version.is_tombstone() { EventKind::Delete } else { EventKind::Put };
        Some(Event { kind, kv: version.with_key(key), previous })
    }

    /// The versions of up to `limit` keys after `after`, for a snapshot: only those at or before `at`.
    pub fn dump<'a>(
        &'a self,
        after: Option<&'a [u8]>,
        at: Revision,
        limit: usize,
    ) -> impl Iterator<Item = (&'a Bytes, impl Iterator<Item = &'a Version>)> + 'a {
        use std::ops::Bound;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.index.range::<[u8], _>((start, Bound::Unbounded)).take(limit).map(move |(key, history)| {
            (key, history.versions().take_while(move |version| version.mod_revision <= at))
        })
    }

    /// Builds a keyspace from what [`Keyspace::dump`] gave: keys in order, each with its versions in order.
    pub fn restore(
        keys: impl Iterator<Item = (Bytes, Vec<Version>)>,
        revision: Revision,
        compacted: Revision,
    ) -> Self {
        let mut changes = Vec::new();
        let mut bytes = 0;
        let index: BTreeMap<Bytes, History> = keys
            .filter_map(|(key, mut older)| {
                let newest = older.pop()?;
                let gone = superfluous(&older, &newest, compacted);
                if gone > older.len() {
                    return None;
                }
                older.drain(..gone);
                for version in older.iter().chain([&newest]) {
                    bytes += version.size(&key);
                    if version.mod_revision >= compacted {
                        changes.push(Change { revision: version.mod_revision, key: key.clone() });
                    }
                }
                older.shrink_to_fit();
                Some((key, History { newest, older }))
            })
            .collect();
        // Stable, so the changes of one revision are ordered by key: their order within the transaction is not
        // kept by a snapshot, and nothing may depend on it.
        changes.sort_by_key(|change| change.revision);
        Self { index, changes: changes.into(), revision, compacted, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Bytes {
        Bytes::copy_from_slice(value.as_bytes())
    }

    fn all() -> KeyRange {
        KeyRange::From(Bytes::new())
    }

    /// a=1@2 b=1@3 a=2@4 -a@5 a=3@6
    fn sample() -> Keyspace {
        let mut keys = Keyspace::default();
        keys.put(2, text("a"), text("1"), 0);
        keys.put(3, text("b"), text("1"), 7);
        keys.put(4, text("a"), text("2"), 0);
        keys.delete(5, b"a");
        keys.put(6, text("a"), text("3"), 0);
        keys
    }

    #[test]
    fn every_revision_can_be_read() {
        let keys = sample();
        let value = |at| keys.get(b"a", at).map(|kv| (kv.value, kv.create_revision, kv.version));
        assert_eq!(value(1), None);
        assert_eq!(value(2), Some((text("1"), 2, 1)));
        assert_eq!(value(3), Some((text("1"), 2, 1)));
        assert_eq!(value(4), Some((text("2"), 2, 2)));
        assert_eq!(value(5), None);
        assert_eq!(value(6), Some((text("3"), 6, 1)));
        assert_eq!(keys.range(&all(), 5).map(|(key, _)| key.clone()).collect::<Vec<_>>(), [text("b")]);
    }

    #[test]
    fn deleting_what_is_not_there_changes_nothing() {
        let mut keys = sample();
        assert_eq!(keys.delete(7, b"zz"), None);
        assert_eq!(keys.revision(), 6);
    }

    #[test]
    fn compaction_keeps_what_is_visible_from_its_revision_on() {
        for compacted in 2..=6 {
            let mut keys = sample();
            keys.compact(compacted);
            let full = sample();
            for at in compacted..=6 {
                for key in [b"a", b"b"] {
                    assert_eq!(keys.get(key, at), full.get(key, at), "compacted {compacted}, at {at}");
                }
            }
            let kinds = |keys: &Keyspace| {
                let (events, to) = keys.events(&all(), compacted, 6, 100);
                assert_eq!(to, 6);
                events.into_iter().map(|event| (event.kind, event.kv)).collect::<Vec<_>>()
            };
            assert_eq!(kinds(&keys), kinds(&full), "events after compaction at {compacted}");
            assert!(keys.check_revision(compacted - 1, 6).is_err());
            assert!(keys.check_revision(compacted, 6).is_ok());
        }
    }

    #[test]
    fn the_size_returns_to_nothing_when_all_is_deleted_and_compacted() {
        let mut keys = sample();
        keys.delete(7, b"a");
        keys.delete(8, b"b");
        keys.put(9, text("c"), text("x"), 0);
        keys.delete(10, b"c");
        keys.put(11, text("d"), text(""), 0);
        keys.compact(11);
        assert_eq!(keys.bytes(), 1 + OVERHEAD);
        assert_eq!(keys.keys(), 1);
    }

    #[test]
    fn events_are_cut_between_revisions_only() {
        let mut keys = Keyspace::default();
        for key in ["a", "b", "c"] {
            keys.put(2, text(key), text(""), 0);
        }
        keys.put(3, text("a"), text(""), 0);
        let (events, to) = keys.events(&all(), 2, 3, 1);
        assert_eq!((events.len(), to), (3, 2));
        let (events, to) = keys.events(&all(), 3, 3, 1);
        assert_eq!((events.len(), to), (1, 3));
    }

    #[test]
    fn a_dump_restores_to_the_same_history() {
        let mut keys = sample();
        keys.compact(4);
        let dump: Vec<_> = keys
            .dump(None, 6, usize::MAX)
            .map(|(key, versions)| (key.clone(), versions.cloned().collect::<Vec<_>>()))
            .collect();
        let back = Keyspace::restore(dump.into_iter(), 6, 4);
        for at in 4..=6 {
            assert_eq!(back.get(b"a", at), keys.get(b"a", at));
        }
        assert_eq!(back.events(&all(), 4, 6, 100), keys.events(&all(), 4, 6, 100));
        assert_eq!(back.bytes(), keys.bytes());
    }
}
