//! What the library sees of the log: which term each record is of, and no more.

use ::raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use ::raft::{Error, GetEntriesContext, NO_LIMIT, RaftState, Result, StorageError};

use super::node::Vote;
use super::terms::Terms;
use super::{Electorate, Index};

/// The log of a member.
pub struct Storage {
    pub log: Terms,
    /// The log goes back to this record.
    pub first: Index,
    /// And is committed up to this one.
    pub commit: Index,
    initial: RaftState,
}

impl Storage {
    /// As it is on the disk.
    pub fn new(log: Terms, vote: Vote, commit: Index, members: &Electorate) -> Self {
        let hard = HardState { term: vote.term, vote: vote.given_to, commit, ..HardState::default() };
        let mut conf = ConfState::default();
        conf.set_voters(members.voters.clone());
        conf.set_learners(members.learners.clone());
        // The term of the record before the first one has to be known.
        let known = log.first_known();
        let first = if known <= 1 { 1 } else { known + 1 };
        Self { log, first, commit, initial: RaftState::new(hard, conf) }
    }
}

impl ::raft::Storage for Storage {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low < self.first {
            return Err(Error::Store(StorageError::Compacted));
        }
        let max_size = max_size.into();
        // None is smaller than this; a log can be long.
        let most = max_size.filter(|size| *size != NO_LIMIT).map_or(u64::MAX, |size| size / 2 + 2);
        let mut entries = Vec::new();
        for index in low..high.min(low.saturating_add(most)) {
            let term = self.term(index)?;
            entries.push(Entry { term, index, ..Entry::default() });
        }
        ::raft::util::limit_size(&mut entries, max_size);
        Ok(entries)
    }

    fn term(&self, index: u64) -> Result<u64> {
        if index + 1 < self.first {
            return Err(Error::Store(StorageError::Compacted));
        }
        self.log.term(index).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.first)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.log.last())
    }

    /// Only says that one is needed: who does gets it by itself, from the state as it is then.
    fn snapshot(&self, request_index: u64, _to: u64) -> Result<Snapshot> {
        let term = self.log.term(self.commit).filter(|term| *term > 0 && self.commit >= request_index);
        let term = term.ok_or(Error::Store(StorageError::SnapshotTemporarilyUnavailable))?;
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.commit, term);
        Ok(snapshot)
    }
}
