//! The contract between the API server and whatever keeps its state.
//!
//! [`Store`] has two implementations behind one conformance suite: [`crate::Etcd`] in process, and
//! [`crate::remote`] over gRPC to any etcd v3. What every implementation promises:
//!
//! - Every change of the keyspace has a revision; revisions grow without gaps in order, one per transaction.
//! - `get` and `list` with revision 0, and `progress`, are linearizable: they see every write acknowledged before
//!   the call began. A `Committed` answer is given only after the write is durable.
//! - A watch yields every event of its prefix from its first revision on, in revision order, once each, and
//!   never splits one revision across two messages. It ends with an error rather than with a gap.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::Stream;
use thiserror::Error;

/// A point in the store's history. 0 stands for "now" in requests.
pub type Revision = i64;

/// One key as it was at some revision.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value; empty in delete events and keys-only listings.
    pub value: Bytes,
    /// The revision at which the key last came into being.
    pub create_revision: i64,
    /// The revision of this change.
    pub mod_revision: i64,
    /// How many times the key was put since it came into being.
    pub version: i64,
    /// The lease that the key is attached to, or 0.
    pub lease: i64,
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets: only their length is shown.
        out.debug_struct("KeyValue")
            .field("key", &self.key)
            .field("value_len", &self.value.len())
            .field("create", &self.create_revision)
            .field("mod", &self.mod_revision)
            .field("version", &self.version)
            .field("lease", &self.lease)
            .finish()
    }
}

/// What to list below a prefix.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// The first key wanted, inclusive and within the prefix.
    pub start: Option<Bytes>,
    /// The most items to return; 0 is all.
    pub limit: usize,
    /// The revision to list at; 0 is now.
    pub revision: Revision,
    /// Leave out the values.
    pub keys_only: bool,
}

/// The answer to a list.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The keys found, in order.
    pub items: Vec<KeyValue>,
    /// The revision that the listing shows.
    pub revision: Revision,
    /// Whether the limit cut the listing short.
    pub more: bool,
    /// All keys in the range from the start key on, including those beyond the limit.
    pub count: i64,
}

/// What must hold for a write to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    None,
    /// The key does not exist.
    Absent,
    /// The key exists and was last changed at this revision.
    ModRevision(i64),
}

/// The outcome of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Committed {
    /// The write is durable. A delete of a missing key is `Done` with no `previous` and the current revision.
    Done {
        /// The revision of the write.
        revision: Revision,
        /// The key before it.
        previous: Option<KeyValue>,
    },
    /// The precondition did not hold; nothing changed.
    Conflict {
        /// The revision at which the condition was looked at.
        revision: Revision,
        /// The key as it is.
        current: Option<KeyValue>,
    },
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It was created or changed.
    Put,
    /// It was deleted.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The key after the change; for a delete only key and `mod_revision` are set.
    pub kv: KeyValue,
    /// The key before the change, unless it did not exist or is compacted away.
    pub previous: Option<KeyValue>,
}

/// What a watch yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// Changes of one or several whole revisions, in order.
    Events {
        /// Every event up to this revision has now been delivered.
        revision: Revision,
        /// The changes; never empty.
        events: Vec<Event>,
    },
    /// Nothing to tell, but every event up to `revision` has been delivered.
    Progress {
        /// The revision reached.
        revision: Revision,
    },
}

/// Why the store did not do what was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The revision asked for is no longer kept.
    #[error("revision {requested} has been compacted; the oldest one kept is {compacted}")]
    Compacted {
        /// The revision asked for.
        requested: Revision,
        /// The oldest revision that can be read.
        compacted: Revision,
    },
    /// The revision asked for has not happened yet.
    #[error("revision {requested} is in the future; the current one is {current}")]
    FutureRevision {
        /// The revision asked for.
        requested: Revision,
        /// The newest revision.
        current: Revision,
    },
    /// The disk is full or the quota is used up: reads work, writes do not.
    #[error("the store is out of space")]
    NoSpace,
    /// The lease does not exist or has expired.
    #[error("lease {0:x} not found")]
    LeaseNotFound(i64),
    /// A lease with that id exists already.
    #[error("lease {0:x} exists already")]
    LeaseExists(i64),
    /// The lease's time to live is not acceptable.
    #[error("a lease cannot live for {0} seconds")]
    LeaseTtl(i64),
    /// The write is bigger than the store takes.
    #[error("the request of {size} bytes is larger than the {limit} allowed")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The store cannot be reached, or its disk failed; whether a write happened is not known.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The watch was too slow and has to be started anew.
    #[error("the watch fell too far behind")]
    WatchLagged,
    /// The store refused the request as malformed or not permitted.
    #[error("the store refused the request: {0}")]
    Refused(String),
    /// The store has been closed.
    #[error("the store is closed")]
    Closed,
}

/// A store of ordered keys with history.
pub trait Store: Send + Sync + 'static {
    /// One key at a revision (0 is now, linearizable), and the store's current revision.
    fn get(
        &self,
        key: &[u8],
        revision: Revision,
    ) -> BoxFuture<'_, Result<(Option<KeyValue>, Revision), StoreError>>;

    /// The keys with a prefix, in order.
    fn list(&self, prefix: &[u8], options: ListOptions) -> BoxFuture<'_, Result<Listing, StoreError>>;

    /// Writes a key if the condition holds; `lease` 0 is none.
    fn put(
        &self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        when: Precondition,
    ) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Deletes a key if the condition holds.
    fn delete(&self, key: Bytes, when: Precondition) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// The changes below a prefix from a revision on (inclusive; 0 is from now).
    fn watch(&self, prefix: Bytes, from: Revision) -> BoxFuture<'_, Result<Watch, StoreError>>;

    /// The current revision, linearizable.
    fn progress(&self) -> BoxFuture<'_, Result<Revision, StoreError>>;

    /// Forgets the history before a revision; reads at it and after stay possible.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>>;

    /// Makes a lease; its keys are deleted when it expires.
    fn grant_lease(&self, ttl_seconds: i64) -> BoxFuture<'_, Result<i64, StoreError>>;

    /// Ends a lease and deletes its keys.
    fn revoke_lease(&self, lease: i64) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The size of the data kept, history included.
    fn size_in_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Whether [`ProgressRequester::request`] on a watch is answered reliably. Where it is not (etcd before 3.5.8),
    /// a consistent view of a cache needs a read from the store instead.
    fn watch_progress_is_reliable(&self) -> bool;
}

/// A running watch. Dropping it cancels it.
pub struct Watch {
    source: Pin<Box<dyn WatchSource>>,
}

/// Where a watch's messages come from.
pub trait WatchSource: Stream<Item = Result<WatchMessage, StoreError>> + Send {
    /// A handle that asks for a progress message.
    fn progress_requester(&self) -> ProgressRequester;
}

impl Watch {
    /// A watch over a source.
    pub fn new(source: impl WatchSource + 'static) -> Self {
        Self { source: Box::pin(source) }
    }

    /// The next message; `None` after an error or when the store is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<WatchMessage, StoreError>> {
        std::future::poll_fn(|context| self.source.as_mut().poll_next(context)).await
    }

    /// A handle with which others ask this watch for a [`WatchMessage::Progress`].
    pub fn progress_requester(&self) -> ProgressRequester {
        self.source.progress_requester()
    }
}

impl Stream for Watch {
    type Item = Result<WatchMessage, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.source.as_mut().poll_next(context)
    }
}

/// Asks one watch to say how far it is. Cheap to clone; asking a watch that is gone does nothing.
#[derive(Clone)]
pub struct ProgressRequester(std::sync::Arc<dyn Fn() + Send + Sync>);

impl ProgressRequester {
    /// A requester that calls `ask`.
    pub fn new(ask: impl Fn() + Send + Sync + 'static) -> Self {
        Self(std::sync::Arc::new(ask))
    }

    /// Makes the watch yield a progress message whose revision is at least the store's revision at this call.
    pub fn request(&self) {
        (self.0)()
    }
}

/// The first key after all keys with the prefix; `None` if there is none (the prefix is empty or all 0xff).
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_possible_sibling() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"a", Some(b"b")),
            (b"/registry/", Some(b"/registry0")),
            (b"a\xff", Some(b"b")),
            (b"\xff\xff", None),
            (b"", None),
        ];
        for (prefix, end) in cases {
            assert_eq!(prefix_end(prefix).as_deref(), end, "{prefix:?}");
        }
    }
}
