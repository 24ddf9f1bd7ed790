//! What the log has, or is being told, and nobody has agreed on yet.
//!
//! The state is what is committed, and nothing else. A transaction is decided on what the state will be once everything before it is
//! committed: the state, and over it the changes of the records here. Only [`Draft::next_up_to`] lets a record through to the state; when another
//! member's log says otherwise, [`Draft::truncate`] forgets records as if they had never been: the state has seen none of them.

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::log::Damage;
use crate::log::codec::Record;
use crate::mutation::{Mutation, State};
use crate::mvcc::keyspace::{History, Keyspace, Version};
use crate::mvcc::range::KeyRange;
use crate::store::{Revision, StoreError};

/// A record that is not committed.
#[derive(Debug)]
pub struct Entry {
    /// Its place in the log.
    pub index: u64,
    /// What it changes.
    pub record: Record,
    /// Whether this server has decided it, since it was started.
    pub own: bool,
}

/// What records do to a lease, and which of them did it last.
#[derive(Debug)]
struct Fate {
    index: u64,
    lives: bool,
}

/// The records that are not committed, and what will be once they are.
#[derive(Debug, Default)]
pub struct Draft {
    records: VecDeque<Entry>,
    /// The last record of the log.
    index: u64,
    /// The newest revision, theirs included.
    revision: Revision,
    compacted: Revision,
    keys: BTreeMap<Bytes, History>,
    bytes: u64,
    leases: BTreeMap<i64, Fate>,
    /// Of which leases the time left is recorded (or taken back), and by which record.
    checkpoints: BTreeMap<i64, (u64, bool)>,
    /// All settings as they will be, and the last record that changes one.
    settings: Option<(u64, BTreeMap<Bytes, Bytes>)>,
    /// Why no transaction is taken, if so.
    pub refusal: Option<StoreError>,
    /// The same, because another member decides.
    pub standby: Option<StoreError>,
}

impl Draft {
    /// Nothing beyond a state.
    pub fn after(state: &State) -> Self {
        Self { index: state.index, revision: state.keys.revision(), ..Self::default() }
    }

    /// The last record of the log.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Whether everything in the log is in the state.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The settings as they will be.
    pub fn settings<'a>(&'a self, state: &'a State) -> &'a BTreeMap<Bytes, Bytes> {
        self.settings.as_ref().map_or(&state.settings, |(_, settings)| settings)
    }

    /// Whether a lease's time left is recorded.
    pub fn is_checkpointed(&self, state: &State, id: i64) -> bool {
        match self.checkpoints.get(&id) {
            Some((_, recorded)) => *recorded,
            None => state.leases.get(id).is_some_and(|lease| lease.checkpoint.is_some()),
        }
    }

    /// Whether there will be a lease.
    pub fn has_lease(&self, state: &State, id: i64) -> bool {
        self.leases.get(&id).map_or_else(|| state.leases.get(id).is_some(), |fate| fate.lives)
    }

    /// The keys that a lease will have.
    pub fn lease_keys(&self, state: &State, id: i64) -> BTreeSet<Bytes> {
        let known = state.leases.get(id).into_iter().flat_map(|lease| &lease.keys);
        let mut keys: BTreeSet<Bytes> = known.filter(|key| !self.keys.contains_key(*key)).cloned().collect();
        let changed = self.keys.iter().filter(|(_, history)| history.newest().lease == id);
        keys.extend(changed.map(|(key, _)| key.clone()));
        keys
    }

    /// Whether a record can follow those that are here.
    fn check(&self, state: &State, record: &Record) -> Result<(), Damage> {
        let mut seen = BTreeSet::new();
        for mutation in &record.mutations {
            let (Mutation::Put { key, .. } | Mutation::Delete { key }) = mutation else { continue };
            if record.mutations.len() > 1 && !seen.insert(key) {
                return Err(Damage::Malformed("change of each key once"));
            }
            let drafted = self.keys.get(key).map(|history| history.newest().mod_revision);
            let known = drafted.or_else(|| state.keys.last_change(key));
            if record.revision < self.revision || known.is_some_and(|known| known >= record.revision) {
                return Err(Damage::Malformed("list of revisions in order"));
            }
        }
        Ok(())
    }

    /// Adds a record that was decided elsewhere or before.
    pub fn add(&mut self, state: &State, record: Record) -> Result<(), Damage> {
        self.check(state, &record)?;
        for mutation in &record.mutations {
            self.note(state, record.revision, mutation);
        }
        self.push(record, false);
        Ok(())
    }

    /// Adds a record whose mutations have been noted.
    pub fn push(&mut self, record: Record, own: bool) {
        self.index += 1;
        self.records.push_back(Entry { index: self.index, record, own });
    }

    /// A mutation of the record that comes next. Returns the version of the key before it.
    pub fn note(&mut self, state: &State, revision: Revision, mutation: &Mutation) -> Option<Version> {
        let index = self.index + 1;
        match mutation {
            Mutation::Put { key, value, lease } => {
                let previous = self.keys(&state.keys).version(key, Revision::MAX).cloned();
                let fresh = Version::following(previous.as_ref(), revision, value.clone(), *lease);
                self.change(revision, key, fresh);
                previous
            }
            Mutation::Delete { key } => {
                let previous = self.keys(&state.keys).version(key, Revision::MAX).cloned()?;
                self.change(revision, key, Version::tombstone(revision));
                Some(previous)
            }
            Mutation::GrantLease { id, .. } | Mutation::RevokeLease { id } => {
                let lives = matches!(mutation, Mutation::GrantLease { .. });
                self.leases.insert(*id, Fate { index, lives });
                self.checkpoints.insert(*id, (index, false));
                None
            }
            Mutation::CheckpointLease { id, seconds } => {
                self.checkpoints.insert(*id, (index, seconds.is_some()));
                None
            }
            Mutation::Compact { revision } => {
                self.compacted = self.compacted.max(*revision);
                None
            }
            Mutation::Setting { name, value } => {
                let (last, settings) = self.settings.get_or_insert_with(|| (0, state.settings.clone()));
                *last = index;
                match value {
                    Some(value) => settings.insert(name.clone(), value.clone()),
                    None => settings.remove(name),
                };
                None
            }
        }
    }

    fn change(&mut self, revision: Revision, key: &Bytes, fresh: Version) {
        self.revision = revision;
        self.bytes += fresh.size(key);
        match self.keys.entry(key.clone()) {
            MapEntry::Occupied(mut entry) => entry.get_mut().push(fresh),
            MapEntry::Vacant(entry) => {
                entry.insert(History::of(fresh));
            }
        }
    }

    /// Whether one of the records up to this one changes a setting.
    pub fn changes_setting(&self, name: &[u8], index: u64) -> bool {
        let changes = |entry: &Entry| {
            let mut mutations = entry.record.mutations.iter();
            mutations.any(|mutation| matches!(mutation, Mutation::Setting { name: set, .. } if set == name))
        };
        self.settings.is_some() && self.records.iter().take_while(|entry| entry.index <= index).any(changes)
    }

    /// The next record, if it is not after one: it is committed, and goes to the state under the same lock.
    pub fn next_up_to(&mut self, index: u64) -> Option<Entry> {
        let entry = self.records.pop_front_if(|entry| entry.index <= index)?;
        for mutation in &entry.record.mutations {
            match mutation {
                Mutation::Put { key, .. } | Mutation::Delete { key } => {
                    self.forget_change(key, entry.record.revision);
                }
                Mutation::GrantLease { id, .. }
                | Mutation::RevokeLease { id }
                | Mutation::CheckpointLease { id, .. } => {
                    if self.leases.get(id).is_some_and(|fate| fate.index <= entry.index) {
                        self.leases.remove(id);
                    }
                    if self.checkpoints.get(id).is_some_and(|(last, _)| *last <= entry.index) {
                        self.checkpoints.remove(id);
                    }
                }
                Mutation::Setting { .. } => {
                    self.settings.take_if(|(last, _)| *last <= entry.index);
                }
                Mutation::Compact { .. } => {}
            }
        }
        Some(entry)
    }

    fn forget_change(&mut self, key: &Bytes, revision: Revision) {
        let MapEntry::Occupied(mut entry) = self.keys.entry(key.clone()) else { return };
        if entry.get().newest().mod_revision > revision {
            self.bytes = self.bytes.saturating_sub(entry.get_mut().forget_up_to(revision, key));
        } else {
            let history = entry.remove();
            let bytes: u64 = history.versions().map(|version| version.size(key)).sum();
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// Forgets the records after one: the log does not have them any more.
    pub fn truncate(&mut self, state: &State, after: u64) {
        let mut records = std::mem::take(&mut self.records);
        let kept = records.partition_point(|entry| entry.index <= after);
        records.truncate(kept);
        let (refusal, standby) = (self.refusal.take(), self.standby.take());
        *self = Self { refusal, standby, ..Self::after(state) };
        for Entry { record, own, .. } in records {
            for mutation in &record.mutations {
                self.note(state, record.revision, mutation);
            }
            self.push(record, own);
        }
    }

    /// The keys as they will be.
    pub fn keys<'a>(&'a self, applied: &'a Keyspace) -> Keys<'a> {
        Keys { applied, draft: self }
    }
}

/// The keys as they will be once every record of the log is committed.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    applied: &'a Keyspace,
    draft: &'a Draft,
}

impl<'a> Keys<'a> {
    /// The newest revision.
    pub fn revision(&self) -> Revision {
        self.draft.revision
    }

    /// The oldest revision that can be read; 0 if nothing was compacted.
    pub fn compacted(&self) -> Revision {
        self.applied.compacted().max(self.draft.compacted)
    }

    /// The size of all versions kept.
    pub fn bytes(&self) -> u64 {
        self.applied.bytes() + self.draft.bytes
    }

    /// Whether a revision can be read.
    pub fn check_revision(&self, requested: Revision, current: Revision) -> Result<(), StoreError> {
        let compacted = self.draft.compacted;
        if requested < compacted {
            return Err(StoreError::Compacted { requested, compacted });
        }
        self.applied.check_revision(requested, current)
    }

    /// The version of a key at a revision, without copying anything.
    pub fn version(&self, key: &[u8], at: Revision) -> Option<&'a Version> {
        match self.draft.keys.get(key).and_then(|history| history.at(at)) {
            Some(version) => Some(version).filter(|version| !version.is_tombstone()),
            None => self.applied.version(key, at),
        }
    }

    /// The keys of a range that exist at a revision, in order.
    pub fn range(
        &self,
        range: &'a KeyRange,
        at: Revision,
    ) -> impl Iterator<Item = (&'a Bytes, &'a Version)> + 'a {
        let mut applied = self.applied.range(range, at).peekable();
        let drafted = (!range.is_empty()).then(|| self.draft.keys.range::<[u8], _>(range.bounds()));
        let drafted = drafted.into_iter().flatten();
        let mut drafted = drafted.filter_map(move |(key, history)| Some((key, history.at(at)?))).peekable();
        std::iter::from_fn(move || {
            loop {
                let Some((key, _)) = drafted.peek() else { return applied.next() };
                match applied.peek() {
                    Some((before, _)) if before < key => return applied.next(),
                    Some((same, _)) if same == key => drop(applied.next()),
                    _ => {}
                }
                let (key, version) = drafted.next()?;
                if !version.is_tombstone() {
                    return Some((key, version));
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::*;

    fn mutation() -> impl Strategy<Value = Mutation> {
        let key = || (0..6_u8).prop_map(|key| Bytes::from(vec![b'a' + key]));
        prop_oneof![
            4 => (key(), 0..4_usize, 0..3_i64)
                .prop_map(|(key, size, lease)| Mutation::Put { key, value: vec![1; size].into(), lease }),
            2 => key().prop_map(|key| Mutation::Delete { key }),
            1 => (1..3_i64).prop_map(|id| Mutation::GrantLease { id, ttl: 10 }),
            1 => (1..3_i64).prop_map(|id| Mutation::RevokeLease { id }),
            1 => (1..3_i64, any::<bool>()).prop_map(|(id, some)| Mutation::CheckpointLease {
                id,
                seconds: some.then_some(3)
            }),
            1 => (key(), any::<bool>()).prop_map(|(name, some)| Mutation::Setting {
                name,
                value: some.then(|| Bytes::from_static(b"x"))
            }),
        ]
    }

    /// What there is, however it is looked at.
    fn look(state: &State, draft: &Draft) -> String {
        let keys = draft.keys(&state.keys);
        let all = KeyRange::From(Bytes::new());
        let part = KeyRange::Span(Bytes::from_static(b"b"), Bytes::from_static(b"e"));
        let mut out = format!("{} {} {}\n", keys.revision(), keys.bytes(), draft.index());
        for at in 0..=keys.revision() {
            let found: Vec<_> = keys.range(&all, at).collect();
            out.push_str(&format!("{at}: {found:?} {:?}\n", keys.range(&part, at).collect::<Vec<_>>()));
            for (key, version) in found {
                assert_eq!(keys.version(key, at), Some(version));
            }
        }
        for id in 0..3 {
            let known = (draft.has_lease(state, id), draft.is_checkpointed(state, id));
            out.push_str(&format!("{id}: {known:?} {:?}\n", known.0.then(|| draft.lease_keys(state, id))));
        }
        out.push_str(&format!("{:?}", draft.settings(state)));
        out
    }

    /// A state to which records go at once.
    fn applied(records: &[Vec<Mutation>]) -> State {
        let mut state = State::default();
        for record in records {
            let revision = state.keys.next_revision();
            for mutation in record {
                state.apply(revision, mutation.clone(), Instant::now());
            }
            state.index += 1;
        }
        state
    }

    /// Leaves out what no transaction does: a second change of a key, deleting what is not there, or anything with a lease that is not.
    fn possible(records: Vec<Vec<Mutation>>) -> Vec<Vec<Mutation>> {
        let mut state = State::default();
        let mut out = Vec::new();
        for record in records {
            let revision = state.keys.next_revision();
            let mut seen = BTreeSet::new();
            let mut kept = Vec::new();
            for mutation in record {
                let possible = match &mutation {
                    Mutation::Put { key, lease, .. } => {
                        (*lease == 0 || state.leases.get(*lease).is_some()) && seen.insert(key.clone())
                    }
                    Mutation::Delete { key } => {
                        state.keys.version(key, Revision::MAX).is_some() && seen.insert(key.clone())
                    }
                    Mutation::GrantLease { id, .. } => state.leases.get(*id).is_none(),
                    Mutation::CheckpointLease { id, .. } => state.leases.get(*id).is_some(),
                    Mutation::RevokeLease { id } => {
                        state.leases.get(*id).is_some_and(|lease| lease.keys.is_empty())
                    }
                    Mutation::Setting { .. } | Mutation::Compact { .. } => true,
                };
                if possible {
                    state.apply(revision, mutation.clone(), Instant::now());
                    kept.push(mutation);
                }
            }
            out.push(kept);
        }
        out
    }

    fn record(revision: Revision, mutations: &[Mutation]) -> Record {
        Record { revision, mutations: mutations.to_vec() }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Whatever is committed and whatever is not, who decides sees the same; and what is forgotten leaves no trace.
        #[test]
        fn the_state_and_the_draft_together_are_what_the_state_will_be(
            records in proptest::collection::vec(proptest::collection::vec(mutation(), 1..4), 1..12),
            steps in proptest::collection::vec(any::<bool>(), 0..24),
            cut in 0..12_u64,
        ) {
            let records = possible(records);
            let (mut state, mut draft) = (State::default(), Draft::after(&State::default()));
            let mut steps = steps.into_iter();
            for (at, mutations) in records.iter().enumerate() {
                draft.add(&state, record(draft.revision() + 1, mutations)).expect("in order");
                while steps.next().unwrap_or(false) {
                    let Some(entry) = draft.next_up_to(u64::MAX) else { break };
                    for mutation in entry.record.mutations {
                        state.apply(entry.record.revision, mutation, Instant::now());
                    }
                    state.index = entry.index;
                }
                let expected = applied(&records[..=at]);
                prop_assert_eq!(look(&state, &draft), look(&expected, &Draft::after(&expected)));
            }
            let after = cut.clamp(state.index, draft.index());
            draft.truncate(&state, after);
            let expected = applied(&records[..after as usize]);
            prop_assert_eq!(look(&state, &draft), look(&expected, &Draft::after(&expected)));
        }
    }

    #[test]
    fn a_record_that_does_not_follow_is_refused() {
        let state = State::default();
        let mut draft = Draft::after(&state);
        let put = |key: &'static str| Mutation::Put { key: key.into(), value: Bytes::new(), lease: 0 };
        assert!(draft.add(&state, record(2, &[put("a")])).is_ok());
        assert!(draft.add(&state, record(2, &[put("a")])).is_err(), "a key changes once in a revision");
        assert!(draft.add(&state, record(1, &[put("b")])).is_err());
        assert!(draft.add(&state, record(3, &[put("b"), put("b")])).is_err());
        assert_eq!(draft.index(), 1);
        assert!(draft.add(&state, record(3, &[put("a")])).is_ok());
    }
}
