//! A learner: a second server that keeps a copy of everything, for the day on which the first is lost.
//!
//! The path: [`learner`] opens one call to the deciding member's peer port ([`leader`]) and says how far its own log goes. If the log there
//! still has what comes next, the records follow as they become durable, read back from the log's files ([`tail`]); if not, a snapshot comes
//! first. The learner writes the same records under the same indexes into its own log and says when they are durable.
//!
//! What must stay true: a learner holds nothing that the deciding member could lose in a crash, for only durable records are sent; its state is
//! what replaying its log gives, as everywhere; it decides nothing, so leases do not expire by its clock. Writing never waits for a learner:
//! what was acknowledged in the last moments before a disk is lost may be missing from the copy.

pub mod leader;
pub mod learner;
mod tail;

use bytes::Bytes;
use prost::Message;

/// The only call.
pub const FOLLOW: &str = "/kelson.replication.v1.Replication/Follow";

/// First who the learner is and how far it has come, then how far it has come since.
#[derive(Clone, PartialEq, Message)]
pub struct FollowRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub peer_urls: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub client_urls: Vec<String>,
    /// The cluster that it has data of; 0 if none.
    #[prost(uint64, tag = "4")]
    pub cluster_id: u64,
    /// What it was told when it first came; 0 if it never did.
    #[prost(uint64, tag = "5")]
    pub member_id: u64,
    /// Its last record.
    #[prost(uint64, tag = "6")]
    pub index: u64,
    /// Whether it wants everything from the beginning.
    #[prost(bool, tag = "7")]
    pub wants_snapshot: bool,
}

/// First who is who, then records or a snapshot, and now and then how far the deciding member is.
#[derive(Clone, PartialEq, Message)]
pub struct FollowResponse {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(uint64, tag = "3")]
    pub leader_id: u64,
    /// The last durable record there.
    #[prost(uint64, tag = "4")]
    pub leader_index: u64,
    /// What comes next is not in the log any more: ask for a snapshot.
    #[prost(bool, tag = "5")]
    pub needs_snapshot: bool,
    /// The next piece of a snapshot file.
    #[prost(bytes = "bytes", tag = "6")]
    pub snapshot: Bytes,
    /// Set in the message after the last piece: the snapshot's last record.
    #[prost(uint64, tag = "7")]
    pub snapshot_index: u64,
    /// Of the records that follow.
    #[prost(uint64, tag = "8")]
    pub first_index: u64,
    /// Records as a batch of the log has them.
    #[prost(bytes = "bytes", tag = "9")]
    pub records: Bytes,
}
