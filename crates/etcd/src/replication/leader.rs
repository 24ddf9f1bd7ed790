//! The deciding member's side: sends a learner what it lacks, and goes on with what becomes durable.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::Request;
use lifecycle::Stop;

use crate::disk::Disk;
use crate::log::snapshot::{Capture, Dump};
use crate::replication::tail::{Next, Tail};
use crate::replication::{FOLLOW, FollowRequest, FollowResponse};
use crate::v3::cluster;
use crate::v3::frame::{self, Messages};
use crate::v3::maintenance::Hold;
use crate::v3::messages::Member;
use crate::v3::service::Service;
use crate::v3::status::{self, Status, code};

/// How often a learner that has everything is told so.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The largest message that a learner has to say.
const MAX_REQUEST: usize = 64 << 10;

/// What is known of one learner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Follower {
    /// How many calls it has open.
    pub calls: usize,
    /// The last record that it says is durable there.
    pub durable: u64,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes that came from it.
    pub received: u64,
}

/// The learners that have come since the start.
#[derive(Debug, Default)]
pub struct Followers(Mutex<BTreeMap<u64, Follower>>);

impl Followers {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Follower>> {
        // Numbers for monitoring: each is right whatever happened to the others.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What is known of them.
    pub fn list(&self) -> Vec<(u64, Follower)> {
        self.all().iter().map(|(id, follower)| (*id, *follower)).collect()
    }

    fn note(&self, id: u64, change: impl FnOnce(&mut Follower)) {
        change(self.all().entry(id).or_default());
    }
}

/// Counts a call while it lasts.
struct Present<'a>(&'a Followers, u64);

impl<'a> Present<'a> {
    fn new(followers: &'a Followers, id: u64) -> Self {
        followers.note(id, |follower| follower.calls += 1);
        Self(followers, id)
    }
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.0.note(self.1, |follower| follower.calls -= 1);
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
    if head.uri.path() != FOLLOW {
        return frame::answer(respond, Err(status::UNKNOWN_METHOD));
    }
    let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
    let mut messages = Messages::new(body, MAX_REQUEST);
    // The learner comes again: dropping the call at any point loses nothing.
    let outcome = stop.or(follow(service, &mut messages, &mut out)).await;
    frame::finish(out, outcome.unwrap_or(Err(status::STOPPED)));
}

fn broken_log(error: std::io::Error) -> Status {
    Status { code: code::UNAVAILABLE, message: format!("the log cannot be read: {error}").into() }
}

async fn follow(
    service: &Service,
    messages: &mut Messages,
    out: &mut SendStream<Bytes>,
) -> Result<(), Status> {
    if service.following.is_some() {
        return Err(status::NOT_LEADER);
    }
    let shared = &service.etcd.shared;
    let first: FollowRequest = messages.only().await?;
    let learner = admit(service, &first).await?;
    let _present = Present::new(&service.followers, learner.id);
    service.followers.note(learner.id, |follower| follower.durable = first.index);
    let hello = FollowResponse {
        cluster_id: service.identity.cluster_id,
        member_id: learner.id,
        leader_id: service.identity.member_id,
        leader_index: shared.durable_index(),
        ..FollowResponse::default()
    };
    let mut link = Link { service, learner: learner.id, out };
    if first.wants_snapshot {
        link.send(hello).await?;
        return snapshot(&mut link).await;
    }
    let disk = shared.journal().ok_or(status::NOT_LEADER)?.disk.clone();
    let Some(tail) = open(disk, first.index + 1, shared.durable_index()).await? else {
        return link.send(FollowResponse { needs_snapshot: true, ..hello }).await;
    };
    tracing::info!(learner = %format_args!("{:x}", learner.id), index = first.index, "a learner follows");
    link.send(hello).await?;
    records(&mut link, messages, tail).await
}

/// Which learner this is, if it is one and belongs here; what it says about itself is recorded.
async fn admit(service: &Service, first: &FollowRequest) -> Result<Member, Status> {
    let shared = &service.etcd.shared;
    if first.cluster_id != 0 && first.cluster_id != service.identity.cluster_id {
        return Err(status::CLUSTER_MISMATCH);
    }
    let found = cluster::learner(&shared.read().settings, first.member_id, &first.peer_urls)?;
    if first.index > shared.durable_index() {
        return Err(status::LEARNER_AHEAD);
    }
    let told = Member { name: first.name.clone(), client_urls: first.client_urls.clone(), ..found.clone() };
    if told == found {
        return Ok(found);
    }
    service
        .etcd
        .transact(|transaction| {
            // It may have been removed or moved a moment ago.
            let known = cluster::learner(transaction.settings(), found.id, &[])?;
            cluster::record(transaction, &Member { peer_urls: known.peer_urls, ..told.clone() });
            Ok(told)
        })
        .await
}

/// The way to one learner.
struct Link<'a> {
    service: &'a Service,
    learner: u64,
    out: &'a mut SendStream<Bytes>,
}

impl Link<'_> {
    async fn send(&mut self, response: FollowResponse) -> Result<(), Status> {
        let bytes = frame::framed(&response);
        self.service.followers.note(self.learner, |follower| follower.sent += bytes.len() as u64);
        frame::send(self.out, bytes).await
    }
}

async fn open(disk: Arc<dyn Disk>, index: u64, durable: u64) -> Result<Option<Tail>, Status> {
    let opened = tokio::task::spawn_blocking(move || Tail::open(disk, index, durable)).await;
    opened.map_err(|_| status::STOPPED)?.map_err(broken_log)
}

/// Sends what the log has, and goes on with what becomes durable, until the learner is gone or removed.
async fn records(link: &mut Link<'_>, messages: &mut Messages, mut tail: Tail) -> Result<(), Status> {
    let service = link.service;
    let shared = &service.etcd.shared;
    loop {
        // Registered before looking, so that nothing in between is missed.
        let mut advanced = std::pin::pin!(shared.advanced.notified());
        advanced.as_mut().enable();
        if cluster::member(&shared.read().settings, link.learner).is_none() {
            return Err(status::MEMBER_REMOVED);
        }
        loop {
            let durable = shared.durable_index();
            let read = tokio::task::spawn_blocking(move || {
                let next = tail.next(durable);
                (tail, next)
            });
            let next;
            (tail, next) = read.await.map_err(|_| status::STOPPED)?;
            let (first_index, records) = match next.map_err(broken_log)? {
                Next::Batch(first_index, records) => (first_index, records),
                Next::End => break,
                // The learner comes again and is told to ask for a snapshot.
                Next::Gone => return Ok(()),
            };
            let leader_index = durable;
            link.send(FollowResponse { leader_index, first_index, records, ..FollowResponse::default() })
                .await?;
        }
        // Every arm may be dropped: messages are taken whole or not at all.
        tokio::select! {
            () = advanced => {}
            () = tokio::time::sleep(HEARTBEAT) => {
                let leader_index = shared.durable_index();
                link.send(FollowResponse { leader_index, ..FollowResponse::default() }).await?;
            }
            said = messages.next_bytes() => {
                let Some(said) = said? else { return Ok(()) };
                let length = said.len() as u64;
                let said: FollowRequest = prost::Message::decode(said).map_err(|_| status::MALFORMED)?;
                service.followers.note(link.learner, |follower| {
                    follower.durable = follower.durable.max(said.index);
                    follower.received += length;
                });
            }
        }
    }
}

/// Sends everything there is, as a snapshot file.
async fn snapshot(link: &mut Link<'_>) -> Result<(), Status> {
    let service = link.service;
    let mut hold = None;
    // What is not durable yet must not be sent: the transaction's answer waits for it.
    let capture = service
        .etcd
        .transact(|transaction| -> Result<Capture, Status> {
            hold = Some(Hold(&service.etcd.shared));
            Ok(transaction.capture_and_hold())
        })
        .await?;
    let snapshot_index = capture.index;
    let mut dump = Dump::new(capture);
    loop {
        let piece = dump.next(&service.etcd.shared.read().keys);
        let Some(piece) = piece else { break };
        let leader_index = service.etcd.shared.durable_index();
        link.send(FollowResponse { leader_index, snapshot: piece.into(), ..FollowResponse::default() })
            .await?;
    }
    drop(hold);
    link.send(FollowResponse { snapshot_index, ..FollowResponse::default() }).await?;
    tracing::info!(learner = %format_args!("{:x}", link.learner), index = snapshot_index, "snapshot sent to a learner");
    Ok(())
}
