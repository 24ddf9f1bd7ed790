//! Several members with one log: what the raft library in [`crate::raft`] decides, done with the engine's log and the peer port.
//!
//! The path of a write: a client asks any member; one that does not lead passes the call on ([`relay`]). The leader decides as a lone server does, on the
//! draft, and the record goes to its log and, by [`driver`] and [`links`], to the other members' logs ([`serve`] takes it in). When a majority has it on the disk,
//! it is committed: only then is it applied and shown, on the leader and by and by on the others. A read that must be current asks the leader what is committed.
//!
//! A lone server has none of this: it begins with the first `member add` ([`driver::Command::Wake`]), and what stands in [`member`]'s file says that a
//! directory belongs to one of several.
//!
//! What must stay true: a record is acknowledged to the leader only when it is durable; nothing that is not committed is applied; a leader that loses its office refuses transactions before anything else is looked at ([`driver`]); votes are durable
//! before they are given.

pub mod bootstrap;
pub(crate) mod corruption;
pub mod driver;
pub mod links;
pub mod member;
pub(crate) mod participant;
pub mod records;
pub mod relay;
pub mod serve;
#[cfg(test)]
mod simulation;
mod tail;

use bytes::Bytes;
use prost::Message;

use crate::v3::messages::Member;

/// Raft's messages to one member: a stream, of which the first message says from whom.
pub const TALK: &str = "/kelson.replication.v1.Replication/Raft";
/// Everything there is, as a snapshot file.
pub const SNAPSHOT: &str = "/kelson.replication.v1.Replication/Snapshot";
/// Who is who, for one that joins.
pub const DESCRIBE: &str = "/kelson.replication.v1.Replication/Describe";
/// Who else founds a new cluster.
pub const BOOTSTRAP: &str = "/kelson.replication.v1.Replication/Bootstrap";
/// How far the log is committed now.
pub const READ_INDEX: &str = "/kelson.replication.v1.Replication/ReadIndex";
/// What a member says about itself.
pub const PUBLISH: &str = "/kelson.replication.v1.Replication/Publish";
/// What a member has at a revision, as a hash.
pub const HASH_KV: &str = "/kelson.replication.v1.Replication/HashKV";
/// Whose token this is.
pub const IDENTIFY: &str = "/kelson.replication.v1.Replication/Identify";
/// Keeps one lease alive.
pub const KEEP_ALIVE: &str = "/kelson.replication.v1.Replication/KeepAlive";

/// Who talks to whom, and of which cluster both are.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub from: u64,
    #[prost(uint64, tag = "3")]
    pub to: u64,
}

/// One that joins says where it is reached.
#[derive(Clone, PartialEq, Message)]
pub struct DescribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub peer_urls: Vec<String>,
    /// Which member it is, if it has been told before.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
}

/// And is told who it is.
#[derive(Clone, PartialEq, Message)]
pub struct DescribeResponse {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(message, repeated, tag = "3")]
    pub members: Vec<Member>,
    /// It has been started before, and must have data.
    #[prost(bool, tag = "4")]
    pub bootstrapped: bool,
}

/// A piece of a snapshot file; after the last one comes the index of its last record.
#[derive(Clone, PartialEq, Message)]
pub struct SnapshotPiece {
    #[prost(bytes = "bytes", tag = "1")]
    pub bytes: Bytes,
    #[prost(uint64, tag = "2")]
    pub index: u64,
}

/// A place in the log.
#[derive(Clone, PartialEq, Message)]
pub struct Position {
    #[prost(uint64, tag = "1")]
    pub index: u64,
}

/// A token, or whose it is.
#[derive(Clone, PartialEq, Message)]
pub struct Text {
    #[prost(string, tag = "1")]
    pub text: String,
}

/// What a member says about itself.
#[derive(Clone, PartialEq, Message)]
pub struct Published {
    #[prost(message, optional, tag = "1")]
    pub member: Option<Member>,
}
