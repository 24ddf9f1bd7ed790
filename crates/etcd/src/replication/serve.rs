//! What a member answers on its peer port: the others' messages, snapshots, and calls that were passed on to it.

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request};
use lifecycle::Stop;

use crate::log::snapshot::{Capture, Dump};
use crate::raft::Message;
use crate::replication::bootstrap::{self, Founder};
use crate::replication::{
    BOOTSTRAP, DESCRIBE, DescribeRequest, DescribeResponse, HASH_KV, Hello, IDENTIFY, KEEP_ALIVE, PUBLISH,
    Position, Published, READ_INDEX, SNAPSHOT, SnapshotPiece, TALK, Text,
};
use crate::v3::auth::Caller;
use crate::v3::cluster;
use crate::v3::frame::{self, Messages};
use crate::v3::maintenance::{Hold, hash_kv};
use crate::v3::messages::{HashKvRequest, LeaseId, LeaseKeepAliveResponse};
use crate::v3::service::{Service, decode};
use crate::v3::status::{self, Status};

/// How often it is looked whether a quiet member is still one.
const LOOK: std::time::Duration = std::time::Duration::from_secs(1);
/// On whose behalf a call was passed on.
pub const USER: &str = "kelson-user";
/// Of which cluster the caller is, who it is and whom it means: etcd's names.
const CLUSTER_ID: &str = "x-etcd-cluster-id";
const FROM: &str = "x-server-from";
const TO: &str = "x-raft-to";
/// How far the log was committed when it was answered.
pub const INDEX: &str = "kelson-index";

impl Hello {
    /// As a call's headers.
    pub fn headers(&self) -> [(&'static str, String); 3] {
        [(CLUSTER_ID, self.cluster_id), (FROM, self.from), (TO, self.to)]
            .map(|(name, id)| (name, format!("{id:x}")))
    }

    /// What a call's headers say.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let id = |name| u64::from_str_radix(headers.get(name)?.to_str().ok()?, 16).ok();
        Some(Self { cluster_id: id(CLUSTER_ID)?, from: id(FROM)?, to: id(TO)? })
    }
}

/// Serves one call on the peer port.
pub async fn serve(
    service: &Service,
    stop: &Stop,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let (head, body) = request.into_parts();
    let mut messages = Messages::new(body, 0);
    match head.uri.path() {
        path @ (TALK | SNAPSHOT) => {
            // The other side comes again: dropping the call at any point loses nothing.
            let hello = match stop.or(messages.only::<Hello>()).await.unwrap_or(Err(status::STOPPED)) {
                Ok(hello) => hello,
                Err(status) => return frame::answer(respond, Err(status)),
            };
            if let Err(status) = admit(service, &hello) {
                return frame::answer(respond, Err(status));
            }
            let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
            let outcome = if path == TALK {
                stop.or(talk(service, hello.from, &mut messages)).await
            } else {
                stop.or(snapshot(service, &mut out)).await
            };
            frame::finish(out, outcome.unwrap_or(Err(status::STOPPED)));
        }
        path => {
            // Some of them wait for others: a caller that has gone must not leave its place in a queue taken.
            let outcome = tokio::select! {
                outcome = stop.or(unary(service, &head.headers, path, &mut messages)) => outcome,
                _ = std::future::poll_fn(|context| respond.poll_reset(context)) => return,
            };
            answer(service, respond, outcome.unwrap_or(Err(status::STOPPED)));
        }
    }
}

fn answer(service: &Service, mut respond: SendResponse<Bytes>, outcome: Result<Bytes, Status>) {
    let Ok(message) = outcome else { return frame::answer(respond, outcome) };
    let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
    if out.send_data(message, false).is_ok() {
        let mut trailers = frame::closing(&Ok(()));
        trailers.insert(INDEX, HeaderValue::from(service.etcd.shared.committed_index()));
        // The peer may be gone already.
        let _ = out.send_trailers(trailers);
    }
}

/// Whether a member is one, and means this one.
fn admit(service: &Service, hello: &Hello) -> Result<(), Status> {
    if !service.replica.is_one_of_several() {
        return Err(status::NO_LEADER);
    }
    if hello.cluster_id != service.identity.cluster_id {
        return Err(status::CLUSTER_MISMATCH);
    }
    if hello.to != 0 && hello.to != service.identity.member_id {
        return Err(status::CLUSTER_MISMATCH);
    }
    check_not_removed(service, hello.from)
}

fn check_not_removed(service: &Service, id: u64) -> Result<(), Status> {
    // Until the removal is committed, and so in the state, its own vote may be needed for it.
    if cluster::was_removed(&service.etcd.shared.read().settings, id) {
        Err(status::MEMBER_REMOVED)
    } else {
        Ok(())
    }
}

/// Takes in another member's messages.
async fn talk(service: &Service, from: u64, messages: &mut Messages) -> Result<(), Status> {
    loop {
        // Looked at also when nothing comes: one that has been removed may have nothing to say. Taking a message can be broken off.
        let next = tokio::time::timeout(LOOK, messages.next_bytes()).await;
        check_not_removed(service, from)?;
        let Ok(next) = next else { continue };
        let Some(bytes) = next? else { return Ok(()) };
        if let Some(traffic) = service.replica.traffic().get(&from) {
            traffic.received.add(bytes.len() as u64);
        }
        let message: Message = decode(bytes)?;
        if message.from != from {
            return Err(status::MALFORMED);
        }
        service.replica.inbox.send(message).await.map_err(|_| status::STOPPED)?;
    }
}

/// Sends everything that is committed, as a snapshot file.
async fn snapshot(service: &Service, out: &mut SendStream<Bytes>) -> Result<(), Status> {
    let (capture, hold) = captured(service);
    let index = capture.index;
    let mut dump = Dump::new(capture);
    loop {
        let piece = dump.next(&service.etcd.shared.read().keys);
        let Some(piece) = piece else { break };
        let piece = SnapshotPiece { bytes: piece.into(), index: 0 };
        frame::send(out, frame::framed(&piece)).await?;
    }
    drop(hold);
    frame::send(out, frame::framed(&SnapshotPiece { bytes: Bytes::new(), index })).await?;
    tracing::info!(index, "snapshot sent to a member");
    Ok(())
}

/// What the state is, all of it committed; compaction is held until the second is dropped.
pub(crate) fn captured(service: &Service) -> (Capture, Hold<'_>) {
    let shared = &service.etcd.shared;
    (shared.capture_and_hold(), Hold(shared))
}

async fn unary(
    service: &Service,
    headers: &HeaderMap,
    path: &str,
    messages: &mut Messages,
) -> Result<Bytes, Status> {
    if path != DESCRIBE && path != BOOTSTRAP {
        // Who joins or founds does not know the ids yet.
        admit(service, &Hello::of(headers).ok_or(status::CLUSTER_MISMATCH)?)?;
    }
    let body = messages.next_bytes().await?.ok_or(status::MALFORMED)?;
    let caller = match headers.get(USER).map(|name| name.to_str()) {
        Some(Ok(name)) => Caller::User(name.to_owned()),
        Some(Err(_)) => return Err(status::PERMISSION_DENIED),
        None => Caller::Anyone,
    };
    match path {
        DESCRIBE => {
            let request: DescribeRequest = decode(body)?;
            let members = cluster::members(&service.etcd.shared.read().settings);
            let own = cluster::at(&members, &request.peer_urls).ok_or(status::MEMBER_NOT_ADDED)?;
            let (member_id, cluster_id) = (own.id, service.identity.cluster_id);
            // It has said its name: it has been at work, and may have voted for what it does not remember.
            let bootstrapped = !own.name.is_empty() && request.member_id != member_id;
            Ok(frame::framed(&DescribeResponse { cluster_id, member_id, members, bootstrapped }))
        }
        BOOTSTRAP => Ok(frame::framed(&bootstrap::answer(service, &decode::<Founder>(body)?)?)),
        HASH_KV => {
            let revision = decode::<HashKvRequest>(body)?.revision;
            Ok(frame::framed(&hash_kv(service, revision)?))
        }
        READ_INDEX => {
            let index = service.replica.read_index().await?;
            Ok(frame::framed(&Position { index }))
        }
        PUBLISH => {
            let said = decode::<Published>(body)?.member.ok_or(status::MALFORMED)?;
            let published = service.etcd.transact(|transaction| cluster::publish(transaction, said));
            published.await?;
            Ok(frame::framed(&Position::default()))
        }
        IDENTIFY => {
            let token = decode::<Text>(body)?.text;
            let text = service.auth.user_of(&token).ok_or(status::INVALID_AUTH_TOKEN)?;
            Ok(frame::framed(&Text { text }))
        }
        KEEP_ALIVE => {
            let id = decode::<LeaseId>(body)?.id;
            service.replica.read_index().await?;
            let ttl = service.etcd.keep_lease_alive(id).await.unwrap_or(0);
            // It may have been stopped in between, and another leader have ended the lease.
            service.replica.read_index().await?;
            Ok(frame::framed(&LeaseKeepAliveResponse { header: service.header(), id, ttl }))
        }
        _ => service.lead(&caller, path, body).await,
    }
}
