//! Raft: how several members agree on one log, as a state machine without clocks, files or sockets.
//!
//! [`node::Node`] gets ticks, messages and news about its log, and says which messages to send, what to cut off or take over, and how far
//! the log is committed. Whoever drives it ([`crate::replication`]) keeps the log and the vote on the disk and moves the messages;
//! the simulation drives several of them with everything that can go wrong.
//!
//! What is agreed on are records of the log as it always was. A record has no term of its own: a leader begins its term with a record that says so,
//! and [`terms::Terms`] are the places where that happened.
//!
//! What must stay true: at most one leader in a term; two logs that have the same term at an index are the same up to it; what is committed is in
//! the log of every later leader; members are changed one at a time, and a change counts once it is committed.

pub mod node;
#[cfg(test)]
mod simulation;
pub mod terms;

use prost::Message as _;

/// A member.
pub type Id = u64;
/// A place in the log; the first record has 1.
pub type Index = u64;
/// A reign; 0 is before all.
pub type Term = u64;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Kind {
    /// Not a message.
    None = 0,
    /// Would you vote for me?
    Canvass = 1,
    /// The answer.
    CanvassReply = 2,
    /// Vote for me.
    Vote = 3,
    /// The answer.
    VoteReply = 4,
    /// From the leader: records, or that it is there.
    Append = 5,
    /// The answer: how far the log agrees with the leader's and is durable.
    AppendReply = 6,
    /// From the leader: stand for election now.
    Stand = 7,
    /// From the leader: what comes next for you is not in my log any more.
    NeedsSnapshot = 8,
}

/// What members say to each other.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    #[prost(enumeration = "Kind", tag = "1")]
    pub kind: i32,
    #[prost(uint64, tag = "2")]
    pub from: Id,
    #[prost(uint64, tag = "3")]
    pub to: Id,
    #[prost(uint64, tag = "4")]
    pub term: Term,
    /// Of the record before those that come; of the last record of who wants a vote; how far a log agrees.
    #[prost(uint64, tag = "5")]
    pub index: Index,
    /// The term of that record.
    #[prost(uint64, tag = "6")]
    pub index_term: Term,
    /// The term of the records that come: all have the same.
    #[prost(uint64, tag = "7")]
    pub records_term: Term,
    /// How many records come.
    #[prost(uint64, tag = "8")]
    pub count: u64,
    /// How far the leader's log is committed.
    #[prost(uint64, tag = "9")]
    pub commit: Index,
    /// The leader's question whether it still leads; answers repeat it.
    #[prost(uint64, tag = "10")]
    pub round: u64,
    /// The answer is no.
    #[prost(bool, tag = "11")]
    pub refused: bool,
    /// The leader wants it: no loyalty to it is needed.
    #[prost(bool, tag = "12")]
    pub forced: bool,
    /// The records, as a batch of the log has them.
    #[prost(bytes = "bytes", tag = "13")]
    pub records: bytes::Bytes,
}

/// Who votes and who only listens.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Electorate {
    /// Those that decide.
    #[prost(uint64, repeated, tag = "1")]
    pub voters: Vec<Id>,
    /// Those that get everything and decide nothing.
    #[prost(uint64, repeated, tag = "2")]
    pub learners: Vec<Id>,
}

impl Electorate {
    /// How many make a majority.
    pub fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Whether a member votes.
    pub fn has_voter(&self, id: Id) -> bool {
        self.voters.contains(&id)
    }

    /// Whether it is a member at all.
    pub fn has(&self, id: Id) -> bool {
        self.has_voter(id) || self.learners.contains(&id)
    }

    /// Everybody.
    pub fn all(&self) -> impl Iterator<Item = Id> {
        self.voters.iter().chain(&self.learners).copied()
    }

    /// Whether this member decides alone.
    pub fn is_only(&self, id: Id) -> bool {
        self.voters == [id]
    }

    /// What a majority of the voters has reached at least.
    pub fn reached(&self, of: impl Fn(Id) -> u64) -> u64 {
        let mut all: Vec<u64> = self.voters.iter().map(|id| of(*id)).collect();
        all.sort_unstable_by(|left, right| right.cmp(left));
        all.get(self.majority() - 1).copied().unwrap_or(0)
    }
}

/// The members as the log has them: since when, and who they were before. A change counts once it is committed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Membership {
    /// The record that changed them last.
    #[prost(uint64, tag = "1")]
    pub index: Index,
    #[prost(message, optional, tag = "2")]
    pub current: Option<Electorate>,
    #[prost(message, optional, tag = "3")]
    pub previous: Option<Electorate>,
}

impl Membership {
    /// Reads one.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes).ok()
    }

    /// Who counts when the log is committed so far. Only the last change can be uncommitted: the next one waits for it.
    pub fn at(&self, commit: Index) -> Electorate {
        let counts = if commit >= self.index { &self.current } else { &self.previous };
        counts.clone().unwrap_or_default()
    }

    /// Whether the last change took this voter out, and is committed.
    pub fn has_left(&self, id: Id, commit: Index) -> bool {
        let voted = self.previous.as_ref().is_some_and(|before| before.has_voter(id));
        commit >= self.index && voted && !self.current.as_ref().is_some_and(|now| now.has(id))
    }
}
