//! The trait's operations in etcd's messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use lifecycle::Tasks;
use prost::Message;

use crate::remote::channel::{Channel, RemoteConfig, RemoteError};
use crate::remote::watch::RemoteWatch;
use crate::store::{
    Committed, KeyValue, ListOptions, Listing, Precondition, Revision, Store, StoreError, Watch, prefix_end,
};
use crate::v3::messages as wire;
use crate::v3::messages::{RequestOp, RequestOpRequest, ResponseOpResponse, TargetUnion};
use crate::v3::status::{self, Status, code};

/// How long reads, and writes that cannot have happened, are tried again.
const PATIENCE: Duration = Duration::from_secs(15);
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// The first releases that answer progress requests in order with events.
const RELIABLE: [(u32, u32, u32); 2] = [(3, 4, 31), (3, 5, 13)];

/// A store on an etcd cluster.
pub struct Remote {
    pub(crate) channel: Arc<Channel>,
    tasks: Tasks,
    reliable: AtomicBool,
}

/// A store on an etcd cluster. Nothing is connected until it is used, but for one look at the server's version.
pub async fn connect(config: &RemoteConfig, tasks: &Tasks) -> Result<Arc<Remote>, RemoteError> {
    let channel = Arc::new(Channel::new(config, tasks)?);
    let remote = Remote { channel, tasks: tasks.clone(), reliable: AtomicBool::new(false) };
    remote.learn_version().await;
    Ok(Arc::new(remote))
}

fn release(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

fn is_reliable(version: &str) -> bool {
    let Some(found) = release(version) else { return false };
    let same_minor = RELIABLE.iter().find(|first| (first.0, first.1) == (found.0, found.1));
    match same_minor {
        Some(first) => found >= *first,
        None => found >= (3, 6, 0),
    }
}

/// What an etcd's error is to a user of the trait.
pub(crate) fn error_of(status: &Status, requested: Revision) -> StoreError {
    if *status == status::COMPACTED {
        return StoreError::Compacted { requested, compacted: 0 };
    }
    if *status == status::FUTURE_REVISION {
        return StoreError::FutureRevision { requested, current: 0 };
    }
    if *status == status::NO_SPACE {
        return StoreError::NoSpace;
    }
    if *status == status::LEASE_NOT_FOUND {
        return StoreError::LeaseNotFound(0);
    }
    if *status == status::REQUEST_TOO_LARGE {
        return StoreError::TooLarge { size: 0, limit: 0 };
    }
    match status.code {
        code::UNAVAILABLE | code::UNKNOWN | code::CANCELED | code::DEADLINE_EXCEEDED => {
            StoreError::Unavailable(status.to_string())
        }
        _ => StoreError::Refused(status.to_string()),
    }
}

/// What came, in room of its own: a slice would keep all that was read from the connection with it, for as long as a cache keeps the object.
pub(crate) fn kv_of(kv: wire::KeyValue) -> KeyValue {
    KeyValue {
        key: Bytes::copy_from_slice(&kv.key),
        value: Bytes::copy_from_slice(&kv.value),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    }
}

fn revision_of(header: &Option<wire::ResponseHeader>) -> Revision {
    header.as_ref().map_or(0, |header| header.revision)
}

impl Remote {
    async fn learn_version(&self) {
        let status: Result<wire::StatusResponse, _> =
            self.channel.call("/etcdserverpb.Maintenance/Status", &wire::Empty {}).await;
        match status {
            Ok(status) => self.reliable.store(is_reliable(&status.version), Ordering::Relaxed),
            Err(error) => {
                tracing::warn!(error = %telemetry::chain(&error.status), "etcd cannot be reached yet");
            }
        }
    }

    /// Calls until an endpoint answers; `repeatable` calls also after failures that may have had an effect.
    async fn call<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
        repeatable: bool,
    ) -> Result<M, Status> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match self.channel.call(path, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => {
                    let again = error.status.code == code::UNAVAILABLE && (repeatable || error.unsent);
                    if !again || tokio::time::Instant::now() >= deadline {
                        return Err(error.status);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn range(&self, request: wire::RangeRequest) -> Result<wire::RangeResponse, StoreError> {
        let requested = request.revision;
        self.call("/etcdserverpb.KV/Range", &request, true)
            .await
            .map_err(|status| error_of(&status, requested))
    }

    /// Does `operation` if the condition holds, otherwise reads the key.
    async fn conditionally(
        &self,
        key: Bytes,
        when: Precondition,
        operation: RequestOpRequest,
    ) -> Result<Committed, StoreError> {
        let compare = |target, union| wire::Compare {
            result: 0,
            target,
            key: key.clone(),
            target_union: Some(union),
            range_end: Bytes::new(),
        };
        let look = wire::RangeRequest { key: key.clone(), ..wire::RangeRequest::default() };
        let request = wire::TxnRequest {
            compare: match when {
                Precondition::None => Vec::new(),
                Precondition::Absent => vec![compare(1, TargetUnion::CreateRevision(0))],
                Precondition::ModRevision(revision) => vec![compare(2, TargetUnion::ModRevision(revision))],
            },
            success: vec![RequestOp { request: Some(operation) }],
            failure: vec![RequestOp { request: Some(RequestOpRequest::Range(look)) }],
        };
        let answer: wire::TxnResponse = self
            .call("/etcdserverpb.KV/Txn", &request, false)
            .await
            .map_err(|status| error_of(&status, 0))?;
        let revision = revision_of(&answer.header);
        let kv = match answer.responses.into_iter().next().and_then(|response| response.response) {
            Some(ResponseOpResponse::Put(put)) => put.prev_kv,
            Some(ResponseOpResponse::DeleteRange(delete)) => delete.prev_kvs.into_iter().next(),
            Some(ResponseOpResponse::Range(range)) => range.kvs.into_iter().next(),
            Some(ResponseOpResponse::Txn(_)) | None => None,
        };
        let kv = kv.map(kv_of);
        Ok(if answer.succeeded {
            Committed::Done { revision, previous: kv }
        } else {
            Committed::Conflict { revision, current: kv }
        })
    }
}

impl Store for Remote {
    fn get(
        &self,
        key: &[u8],
        revision: Revision,
    ) -> BoxFuture<'_, Result<(Option<KeyValue>, Revision), StoreError>> {
        let key = Bytes::copy_from_slice(key);
        async move {
            let request = wire::RangeRequest { key, revision, ..wire::RangeRequest::default() };
            let answer = self.range(request).await?;
            Ok((answer.kvs.into_iter().next().map(kv_of), revision_of(&answer.header)))
        }
        .boxed()
    }

    fn list(&self, prefix: &[u8], options: ListOptions) -> BoxFuture<'_, Result<Listing, StoreError>> {
        let prefix = Bytes::copy_from_slice(prefix);
        async move {
            let zero = Bytes::from_static(b"\0");
            let range_end = prefix_end(&prefix).unwrap_or(zero.clone());
            let start = options.start.filter(|start| *start > prefix).unwrap_or(prefix);
            let request = wire::RangeRequest {
                // etcd wants a key; the smallest possible one stands for "from the beginning".
                key: if start.is_empty() { zero } else { start },
                range_end,
                limit: i64::try_from(options.limit).unwrap_or(i64::MAX),
                revision: options.revision,
                keys_only: options.keys_only,
                ..wire::RangeRequest::default()
            };
            let answer = self.range(request).await?;
            Ok(Listing {
                revision: revision_of(&answer.header),
                more: answer.more,
                count: answer.count,
                items: answer.kvs.into_iter().map(kv_of).collect(),
            })
        }
        .boxed()
    }

    fn put(
        &self,
        key: Bytes,
        value: Bytes,
        lease: i64,
        when: Precondition,
    ) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let put =
            wire::PutRequest { key: key.clone(), value, lease, prev_kv: true, ..wire::PutRequest::default() };
        self.conditionally(key, when, RequestOpRequest::Put(put)).boxed()
    }

    fn delete(&self, key: Bytes, when: Precondition) -> BoxFuture<'_, Result<Committed, StoreError>> {
        let delete = wire::DeleteRangeRequest {
            key: key.clone(),
            prev_kv: true,
            ..wire::DeleteRangeRequest::default()
        };
        self.conditionally(key, when, RequestOpRequest::DeleteRange(delete)).boxed()
    }

    fn watch(&self, prefix: Bytes, from: Revision) -> BoxFuture<'_, Result<Watch, StoreError>> {
        async move {
            let watch = RemoteWatch::open(self.channel.clone(), &self.tasks, prefix, from).await?;
            Ok(Watch::new(watch))
        }
        .boxed()
    }

    fn progress(&self) -> BoxFuture<'_, Result<Revision, StoreError>> {
        async move {
            // A read that finds nothing, but from a quorum: its header has the revision.
            let key = Bytes::from_static(b"\0");
            let request = wire::RangeRequest { key, count_only: true, ..wire::RangeRequest::default() };
            Ok(revision_of(&self.range(request).await?.header))
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let request = wire::CompactionRequest { revision, physical: false };
            let answer: Result<wire::HeaderOnly, Status> =
                self.call("/etcdserverpb.KV/Compact", &request, false).await;
            answer.map(|_| ()).map_err(|status| error_of(&status, revision))
        }
        .boxed()
    }

    fn grant_lease(&self, ttl_seconds: i64) -> BoxFuture<'_, Result<i64, StoreError>> {
        async move {
            let request = wire::LeaseGrantRequest { ttl: ttl_seconds, id: 0 };
            // Granted twice is harmless: the lease that nobody knows expires.
            let answer: Result<wire::LeaseGrantResponse, Status> =
                self.call("/etcdserverpb.Lease/LeaseGrant", &request, true).await;
            answer.map(|answer| answer.id).map_err(|status| error_of(&status, 0))
        }
        .boxed()
    }

    fn revoke_lease(&self, lease: i64) -> BoxFuture<'_, Result<(), StoreError>> {
        async move {
            let request = wire::LeaseId { id: lease };
            let answer: Result<wire::HeaderOnly, Status> =
                self.call("/etcdserverpb.Lease/LeaseRevoke", &request, false).await;
            answer.map(|_| ()).map_err(|status| match error_of(&status, 0) {
                StoreError::LeaseNotFound(_) => StoreError::LeaseNotFound(lease),
                other => other,
            })
        }
        .boxed()
    }

    fn size_in_bytes(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        async move {
            let answer: Result<wire::StatusResponse, Status> =
                self.call("/etcdserverpb.Maintenance/Status", &wire::Empty {}, true).await;
            answer.map(|answer| answer.db_size.max(0) as u64).map_err(|status| error_of(&status, 0))
        }
        .boxed()
    }

    fn watch_progress_is_reliable(&self) -> bool {
        self.reliable.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_requests_are_trusted_from_the_releases_that_order_them() {
        for (version, expected) in [
            ("3.4.23", false),
            ("3.4.31", true),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.6.0", true),
            ("3.6.8-rc.1", true),
            ("4.0.0", true),
            ("3.3.99", false),
            ("what", false),
        ] {
            assert_eq!(is_reliable(version), expected, "{version}");
        }
    }

    #[test]
    fn what_is_kept_does_not_keep_what_came_with_it() {
        let read = Bytes::from(vec![b'x'; 4096]);
        let kv = wire::KeyValue { key: read.slice(..9), value: read.slice(10..90), ..Default::default() };
        let kept = kv_of(kv);
        assert!(kept.key.is_unique() && kept.value.is_unique());
    }
}
