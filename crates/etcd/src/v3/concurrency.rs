//! Locks and elections: a queue of keys below a name, ordered by when they came into being.
//!
//! Whoever has the oldest key below the name holds it. The others wait for the keys before theirs to go; the keys hang
//! on leases, so a holder that dies lets go.

use bytes::Bytes;
use h2::SendStream;

use crate::mvcc::range::KeyRange;
use crate::store::{Committed, KeyValue as StoreKeyValue, Precondition, Revision, Store, StoreError};
use crate::v3::auth::{Access, Caller};
use crate::v3::frame::{self, Messages};
use crate::v3::messages::*;
use crate::v3::service::{Service, decode};
use crate::v3::status::{self, Status, code};

const NO_LEADER: Status =
    Status { code: code::UNKNOWN, message: std::borrow::Cow::Borrowed("election: no leader") };
const NOT_LEADER: Status =
    Status { code: code::UNKNOWN, message: std::borrow::Cow::Borrowed("election: not leader") };

fn below(name: &Bytes) -> Bytes {
    [name, &b"/"[..]].concat().into()
}

/// The oldest key below a prefix, other than those from `before` on.
fn oldest(service: &Service, prefix: &Bytes, before: Revision) -> Option<StoreKeyValue> {
    let shared = &service.etcd.shared;
    let range = KeyRange::prefix(prefix.clone());
    let state = shared.read();
    let found = state.keys.range(&range, shared.visible());
    let mine = found.filter(|(_, version)| version.create_revision < before);
    mine.min_by_key(|(_, version)| version.create_revision).map(|(key, version)| version.with_key(key))
}

/// Takes a place in the queue and waits until it is the first. Returns the key and its revision.
async fn enqueue(
    service: &Service,
    caller: &Caller,
    name: &Bytes,
    lease: i64,
    value: Bytes,
) -> Result<(Bytes, Revision), Status> {
    if name.is_empty() {
        return Err(status::EMPTY_KEY);
    }
    let lease = match lease {
        // A lock without a lease gets a short one of its own, as etcd's sessions do.
        0 => service.etcd.grant_lease(60).await?,
        lease => lease,
    };
    let prefix = below(name);
    let key: Bytes = [&prefix[..], format!("{lease:x}").as_bytes()].concat().into();
    service.check(caller, &key, &Bytes::new(), Access::Write)?;
    service.check(caller, &key, &Bytes::new(), Access::Read)?;
    let placed = service.etcd.put(key.clone(), value.clone(), lease, Precondition::Absent).await?;
    let revision = match placed {
        Committed::Done { revision, .. } => revision,
        Committed::Conflict { current: Some(current), .. } => {
            if current.value != value {
                let when = Precondition::ModRevision(current.mod_revision);
                service.etcd.put(key.clone(), value, lease, when).await?;
            }
            current.create_revision
        }
        Committed::Conflict { current: None, .. } => return Err(status::LEASE_NOT_FOUND),
    };
    let mut place = Place { service, key: key.clone(), revision, kept: false };
    loop {
        // Watched from before the look, so that a deletion in between is seen.
        let mut watch = service.etcd.watch(prefix.clone(), service.etcd.revision() + 1).await?;
        if service.etcd.get_now(&key).is_none_or(|current| current.create_revision != revision) {
            return Err(status::LEASE_NOT_FOUND);
        }
        if oldest(service, &prefix, revision).is_none() {
            place.kept = true;
            return Ok((key, revision));
        }
        watch.next().await.unwrap_or(Err(StoreError::Closed))?;
    }
}

/// A place in a queue, given up if the wait is abandoned.
struct Place<'a> {
    service: &'a Service,
    key: Bytes,
    revision: Revision,
    kept: bool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Durable soon enough: if the process dies first, the lease removes the key.
            let given_up = self.service.etcd.shared.transact(|transaction| -> Result<(), StoreError> {
                let current = transaction.keys().version(&self.key, Revision::MAX);
                if current.is_some_and(|version| version.create_revision == self.revision) {
                    transaction.delete(&self.key);
                }
                Ok(())
            });
            if let Err(error) = given_up {
                tracing::debug!(error = %telemetry::chain(&error), "place in a queue not given up");
            }
        }
    }
}

/// Lock and Campaign: the calls that wait.
pub async fn acquire(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    if method == "Lock" {
        let request: LockRequest = decode(body)?;
        let (key, _) = enqueue(service, caller, &request.name, request.lease, Bytes::new()).await?;
        return Ok(frame::framed(&LockResponse { header: service.header(), key }));
    }
    let request: CampaignRequest = decode(body)?;
    let value = Bytes::copy_from_slice(&request.value);
    let (key, rev) = enqueue(service, caller, &request.name, request.lease, value).await?;
    let leader = Some(LeaderKey { name: request.name, key, rev, lease: request.lease });
    Ok(frame::framed(&CampaignResponse { header: service.header(), leader }))
}

pub async fn unary(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    match method {
        "Unlock" => {
            let request: UnlockRequest = decode(body)?;
            service.check(caller, &request.key, &Bytes::new(), Access::Write)?;
            service.etcd.delete(request.key, Precondition::None).await?;
            Ok(frame::framed(&HeaderOnly { header: service.header() }))
        }
        "Leader" => {
            let request: ElectionNameRequest = decode(body)?;
            let prefix = below(&request.name);
            service.check(caller, &prefix, &Bytes::new(), Access::Read)?;
            let leader = oldest(service, &prefix, Revision::MAX).ok_or(NO_LEADER)?;
            Ok(frame::framed(&LeaderResponse { header: service.header(), kv: Some(wire(&leader)) }))
        }
        "Proclaim" => {
            let request: ProclaimRequest = decode(body)?;
            let leader = request.leader.ok_or(NO_LEADER)?;
            service.check(caller, &leader.key, &Bytes::new(), Access::Write)?;
            let value = Bytes::copy_from_slice(&request.value);
            let proclaimed = service
                .etcd
                .transact(|transaction| -> Result<bool, Status> {
                    let current = transaction.keys().version(&leader.key, Revision::MAX);
                    let holds = current.is_some_and(|version| version.create_revision == leader.rev);
                    if holds {
                        transaction.put(Bytes::copy_from_slice(&leader.key), value, leader.lease);
                    }
                    Ok(holds)
                })
                .await?;
            if !proclaimed {
                return Err(NOT_LEADER);
            }
            Ok(frame::framed(&HeaderOnly { header: service.header() }))
        }
        "Resign" => {
            let request: ResignRequest = decode(body)?;
            let leader = request.leader.ok_or(NO_LEADER)?;
            service.check(caller, &leader.key, &Bytes::new(), Access::Write)?;
            service
                .etcd
                .transact(|transaction| -> Result<(), Status> {
                    let current = transaction.keys().version(&leader.key, Revision::MAX);
                    if current.is_some_and(|version| version.create_revision == leader.rev) {
                        transaction.delete(&leader.key);
                    }
                    Ok(())
                })
                .await?;
            Ok(frame::framed(&HeaderOnly { header: service.header() }))
        }
        _ => Err(status::UNKNOWN_METHOD),
    }
}

fn wire(kv: &StoreKeyValue) -> KeyValue {
    KeyValue {
        key: kv.key.clone(),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value.clone(),
        lease: kv.lease,
    }
}

/// Tells of every leader of an election, from the current one on.
pub async fn observe(
    service: &Service,
    caller: &Caller,
    messages: &mut Messages,
    out: &mut SendStream<Bytes>,
) -> Result<(), Status> {
    let request: ElectionNameRequest = messages.only().await?;
    let prefix = below(&request.name);
    service.check(caller, &prefix, &Bytes::new(), Access::Read)?;
    let mut told = 0;
    loop {
        let mut watch = service.etcd.watch(prefix.clone(), service.etcd.revision() + 1).await?;
        if let Some(leader) =
            oldest(service, &prefix, Revision::MAX).filter(|leader| leader.mod_revision > told)
        {
            told = leader.mod_revision;
            let response = LeaderResponse { header: service.header(), kv: Some(wire(&leader)) };
            frame::send(out, frame::framed(&response)).await?;
        }
        tokio::select! {
            changed = watch.next() => { changed.unwrap_or(Err(StoreError::Closed))?; }
            reset = std::future::poll_fn(|context| out.poll_reset(context)) => {
                return Err(Status { code: code::CANCELED, message: format!("{reset:?}").into() });
            }
        }
    }
}
