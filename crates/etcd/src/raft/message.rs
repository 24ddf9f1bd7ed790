//! What members say to each other: the library's messages, without its own encoding and with the records beside them.
//!
//! The library stops the process when it is told what cannot be. So a message that no member can have sent is not passed on to it.

use ::raft::RawNode;
use ::raft::eraftpb::{Entry, Message as RaftMessage, MessageType};
use bytes::Bytes;

use super::storage::Storage;
use super::{Id, Index, Term};

/// One message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// The library's kind of message.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(uint64, tag = "2")]
    pub from: Id,
    #[prost(uint64, tag = "3")]
    pub to: Id,
    #[prost(uint64, tag = "4")]
    pub term: Term,
    #[prost(uint64, tag = "5")]
    pub log_term: Term,
    #[prost(uint64, tag = "6")]
    pub index: Index,
    #[prost(uint64, tag = "7")]
    pub commit: Index,
    #[prost(uint64, tag = "8")]
    pub commit_term: Term,
    #[prost(bool, tag = "9")]
    pub reject: bool,
    #[prost(uint64, tag = "10")]
    pub reject_hint: Index,
    #[prost(bytes = "bytes", tag = "11")]
    pub context: Bytes,
    /// The terms of the records that come, which follow the one at `index`.
    #[prost(uint64, repeated, tag = "12")]
    pub terms: Vec<Term>,
    /// The records, as a batch of the log has them.
    #[prost(bytes = "bytes", tag = "13")]
    pub records: Bytes,
    /// What a snapshot would have at least.
    #[prost(uint64, tag = "14")]
    pub snapshot_index: Index,
}

/// What one member says to another; the library has more kinds, for itself.
const BETWEEN_MEMBERS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

impl Message {
    /// As the library has it.
    pub(super) fn of(message: RaftMessage) -> Self {
        Self {
            kind: message.get_msg_type() as i32,
            from: message.from,
            to: message.to,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            reject: message.reject,
            reject_hint: message.reject_hint,
            terms: message.entries.iter().map(|entry| entry.term).collect(),
            records: Bytes::new(),
            snapshot_index: message.get_snapshot().get_metadata().index,
            context: message.context,
        }
    }

    fn message_type(&self) -> Option<MessageType> {
        BETWEEN_MEMBERS.into_iter().find(|kind| *kind as i32 == self.kind)
    }

    /// Whether it has records.
    pub fn is_append(&self) -> bool {
        self.message_type() == Some(MessageType::MsgAppend)
    }

    /// Whether a leader that gets it may have to give way.
    pub fn may_depose(&self, term: Term) -> bool {
        self.term > term && self.message_type() != Some(MessageType::MsgRequestPreVote)
    }

    /// For the library of a member; `None` if no member can have sent it.
    pub(super) fn to_raft(&self, node: &RawNode<Storage>) -> Option<RaftMessage> {
        let kind = self.message_type()?;
        let log = &node.store().log;
        let committed = node.raft.raft_log.committed;
        if self.term == 0 || self.from == 0 || self.from == node.raft.id {
            return None;
        }
        let mut message = RaftMessage {
            from: self.from,
            to: self.to,
            term: self.term,
            log_term: self.log_term,
            index: self.index,
            commit: self.commit,
            commit_term: self.commit_term,
            reject: self.reject,
            reject_hint: self.reject_hint,
            context: self.context.clone(),
            ..RaftMessage::default()
        };
        message.set_msg_type(kind);
        match kind {
            MessageType::MsgAppend => {
                let end = self.index.checked_add(self.terms.len() as u64)?;
                let rising = self.terms.windows(2).all(|pair| pair[0] <= pair[1]);
                let least = self.terms.first().copied().unwrap_or(self.term);
                let fits = rising
                    && least > 0
                    && (self.index == 0) == (self.log_term == 0)
                    && least >= self.log_term
                    && self.log_term <= self.term
                    && self.terms.last().copied().unwrap_or(0) <= self.term;
                // What is committed here is so everywhere.
                let agrees = |(term, index): (&Term, Index)| {
                    index > committed || log.term(index).is_none_or(|known| known == *term)
                };
                if !fits || end == u64::MAX || !self.terms.iter().zip(self.index + 1..).all(agrees) {
                    return None;
                }
                let entry = |(term, index): (&Term, Index)| Entry { term: *term, index, ..Entry::default() };
                let entries: Vec<Entry> = self.terms.iter().zip(self.index + 1..).map(entry).collect();
                message.set_entries(entries.into());
            }
            _ if !self.terms.is_empty() => return None,
            MessageType::MsgHeartbeat => message.commit = self.commit.min(node.raft.raft_log.last_index()),
            MessageType::MsgAppendResponse => {
                // Nobody can have more of a leader's log than there is of it.
                message.index = self.index.min(node.raft.raft_log.last_index());
            }
            MessageType::MsgSnapshot => {
                let metadata = message.mut_snapshot().mut_metadata();
                metadata.index = self.snapshot_index;
                metadata.term = self.log_term;
            }
            _ => {}
        }
        Some(message)
    }
}
