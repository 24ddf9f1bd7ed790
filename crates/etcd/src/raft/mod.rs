//! Raft: how several members agree on one log. The agreement itself is the `raft` library's, TiKV's port of etcd's (`docs/decisions/0014-raft.md`).
//!
//! [`node::Node`] gets ticks, messages and news about the engine's log, and says which messages to send, what to cut off or take over, and how far
//! the log is committed; [`storage`] shows the library the log. Whoever drives it ([`crate::replication`]) keeps the log and the vote on the disk and moves the messages;
//! the simulation drives several of them with everything that can go wrong.
//!
//! What is agreed on are records of the log as it always was. A record has no term of its own: a leader begins its term with a record that says so,
//! and [`terms::Terms`] are the places where that happened.
//!
//! What must stay true: at most one leader in a term; two logs that have the same term at an index are the same up to it; what is committed is in
//! the log of every later leader; members are changed one at a time, and a change counts once it is committed.

mod message;
pub mod node;
#[cfg(test)]
mod simulation;
mod storage;
pub mod terms;

pub use self::message::Message;

use prost::Message as _;

/// A member.
pub type Id = u64;
/// A place in the log; the first record has 1.
pub type Index = u64;
/// A reign; 0 is before all.
pub type Term = u64;

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
}
