//! The methods: which request goes where, who may call it, and what the answer looks like.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Request;
use prost::Message;

use crate::alarm;
use crate::engine::Transaction;
use crate::local::Etcd;
use crate::mvcc::range::KeyRange;
use crate::remote::channel::CallError;
use crate::replication::member::Kept;
use crate::replication::relay::{Replica, Standing};
use crate::replication::{IDENTIFY, KEEP_ALIVE, PUBLISH, Published, Text};
use crate::store::{Revision, Store, StoreError};
use crate::v3::auth::{self, Access, Auth, Caller};
use crate::v3::cluster::{self, Reform};
use crate::v3::frame::{self, Messages};
use crate::v3::messages::*;
use crate::v3::metrics::GrpcCounters;
use crate::v3::status::{self, Status};
use crate::v3::{concurrency, kv, maintenance, watch};

/// The release of etcd whose behaviour is served; clients decide by it what they may use.
pub const VERSION: &str = "3.6.8";
/// The release whose form the data has.
pub const STORAGE_VERSION: &str = "3.6.0";

/// Who this server says it is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: u64,
    /// The member.
    pub member_id: u64,
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most learners.
    pub max_learners: usize,
    /// How often quiet watches are told their progress.
    pub progress_interval: Duration,
    /// The most operations in one transaction.
    pub max_txn_ops: usize,
    /// How long an unused token lives.
    pub token_life: Duration,
    /// Whether to measure how long calls take.
    pub extensive_metrics: bool,
    /// How hard passwords are to guess: doubled with each one more.
    pub bcrypt_cost: u32,
}

/// The service behind all connections.
pub struct Service {
    pub(crate) etcd: Arc<Etcd>,
    pub(crate) identity: Identity,
    pub(crate) auth: Arc<Auth>,
    pub(crate) counters: GrpcCounters,
    pub(crate) progress_interval: Duration,
    /// How it stands among the members.
    pub(crate) replica: Arc<Replica>,
    pub(crate) max_learners: usize,
    max_txn_ops: usize,
    bcrypt_cost: u32,
    /// How many calls have come, and how many had when the last write came.
    calls: AtomicU64,
    calls_at_write: AtomicU64,
}

/// What a learner answers; of ranges, the serializable ones.
const LEARNER_SERVES: &[&str] = &[
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Snapshot",
];

/// What every member answers by itself.
const ANY_SERVES: &[&str] = &[
    "/etcdserverpb.Maintenance/Status",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/MoveLeader",
];

/// What the leader answers from its state, once it knows that it leads.
const LEADER_READS: &[&str] = &[
    "/etcdserverpb.Lease/LeaseTimeToLive",
    "/etcdserverpb.Lease/LeaseLeases",
    "/etcdserverpb.Auth/AuthStatus",
    "/etcdserverpb.Auth/UserGet",
    "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Auth/RoleGet",
    "/etcdserverpb.Auth/RoleList",
    "/v3electionpb.Election/Leader",
];

/// Between two looks at who leads.
const LOOK: Duration = Duration::from_millis(100);

/// What a connection knows about its client.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The common name in a verified client certificate.
    pub certificate_name: Option<String>,
}

/// No client gets a lease for fewer seconds, as with etcd's usual election timeout.
const MIN_LEASE: i64 = 2;
/// So many calls from one write to the next, itself included, leave the server idle in between.
const IDLE_CALLS: u64 = 2;

/// A call as it is counted.
struct Call {
    method: Option<usize>,
    began: Option<Instant>,
}

impl Service {
    /// A service for a store and a member.
    pub fn new(etcd: Arc<Etcd>, identity: Identity, replica: Arc<Replica>, options: Options) -> Self {
        let auth = Arc::new(Auth::new(&etcd.shared.read(), options.token_life));
        let follower = auth.clone();
        etcd.shared.on_settings(move |state, own| follower.refresh(state, own));
        Self {
            etcd,
            identity,
            auth,
            counters: GrpcCounters::new(options.extensive_metrics),
            progress_interval: options.progress_interval.max(Duration::from_millis(1)),
            replica,
            max_learners: options.max_learners,
            max_txn_ops: options.max_txn_ops,
            bcrypt_cost: options.bcrypt_cost,
            calls: AtomicU64::new(0),
            calls_at_write: AtomicU64::new(0),
        }
    }

    /// Who the server is: one of several by its file, or a lone one, whose ids are made once and kept with the data.
    pub async fn identify(
        etcd: &Etcd,
        kept: Option<&Kept>,
        own: Member,
        reform: Reform,
    ) -> Result<Identity, Status> {
        if let Some(kept) = kept {
            return Ok(Identity { cluster_id: kept.cluster_id, member_id: kept.member_id });
        }
        let prepared = etcd
            .transact(|transaction| -> Result<_, Status> { Ok(cluster::prepare(transaction, own, reform)) });
        let (cluster_id, member_id) = prepared.await?;
        Ok(Identity { cluster_id, member_id })
    }

    /// The header of an answer at a revision.
    pub fn header_at(&self, revision: Revision) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.replica.term(),
        }
    }

    /// The header of an answer now.
    pub fn header(&self) -> Option<ResponseHeader> {
        Some(self.header_at(self.etcd.revision()))
    }

    /// Serves one call.
    pub async fn serve(&self, peer: &Peer, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        let caller = self.caller(path, &head.headers, peer).await;
        let needs_leader = head.headers.get("hasleader").is_some_and(|value| value == "true");
        let call = Call {
            method: self.counters.started(path),
            began: self.counters.is_extensive().then(Instant::now),
        };
        let limit = match path {
            "/etcdserverpb.Watch/Watch" => 0,
            // As etcd: the limit for requests and room for what surrounds them.
            _ => self.etcd.shared.config.max_request_bytes + (512 << 10),
        };
        let mut messages = Messages::new(body, limit);
        match path {
            "/etcdserverpb.Watch/Watch"
            | "/etcdserverpb.Lease/LeaseKeepAlive"
            | "/etcdserverpb.Maintenance/Snapshot"
            | "/v3electionpb.Election/Observe" => {
                let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
                let leaderless = needs_leader && self.replica.standing().leader == 0;
                let outcome = match caller {
                    Err(status) => Err(status),
                    Ok(_) if leaderless => Err(status::NO_LEADER),
                    Ok(caller) => match path {
                        "/etcdserverpb.Watch/Watch" => {
                            let until = async {
                                match needs_leader && self.replica.is_one_of_several() {
                                    true => self.replica.leaderless().await,
                                    false => std::future::pending().await,
                                }
                            };
                            let watching = watch::Stream::new(self, caller, out);
                            let (stream, outcome) = watching.run(messages, until).await;
                            out = stream;
                            outcome
                        }
                        "/etcdserverpb.Lease/LeaseKeepAlive" => {
                            self.keep_alive(&mut messages, &mut out).await
                        }
                        "/v3electionpb.Election/Observe" => {
                            concurrency::observe(self, &caller, &mut messages, &mut out).await
                        }
                        _ => maintenance::snapshot(self, &caller, &mut out).await,
                    },
                };
                self.count(&call, outcome.as_ref().err());
                frame::finish(out, outcome);
            }
            "/v3lockpb.Lock/Lock" | "/v3electionpb.Election/Campaign" => {
                // These wait for others: a caller that has gone must not leave its place in the queue taken.
                let outcome = tokio::select! {
                    outcome = self.unary(caller, path, needs_leader, &mut messages) => outcome,
                    _ = std::future::poll_fn(|context| respond.poll_reset(context)) => return,
                };
                self.finish_unary(&call, respond, outcome);
            }
            _ => {
                let outcome = self.unary(caller, path, needs_leader, &mut messages).await;
                self.finish_unary(&call, respond, outcome);
            }
        }
    }

    fn count(&self, call: &Call, failure: Option<&Status>) {
        let code = failure.map_or(0, |status| status.code);
        self.counters.handled(call.method, code, call.began.map(|began| began.elapsed()));
    }

    fn finish_unary(&self, call: &Call, respond: SendResponse<Bytes>, outcome: Result<Bytes, Status>) {
        if let Ok(bytes) = &outcome {
            self.counters.sent.add(bytes.len() as u64);
        }
        self.count(call, outcome.as_ref().err());
        frame::answer(respond, outcome);
    }

    /// Who calls. A token that is not known here may be known to the leader.
    async fn caller(&self, path: &str, headers: &http::HeaderMap, peer: &Peer) -> Result<Caller, Status> {
        let found = self.auth.identify(headers, peer.certificate_name.as_deref());
        if !self.replica.is_one_of_several() {
            return found;
        }
        let standing = self.replica.standing();
        if standing.learner && !LEARNER_SERVES.contains(&path) {
            return Err(status::NOT_FOR_LEARNER);
        }
        let token = Auth::token_in(headers).filter(|_| !standing.leads);
        match (found, token) {
            (Err(refused), Some(token)) if refused == status::INVALID_AUTH_TOKEN => {
                let body = Text { text: token.to_owned() }.encode_to_vec().into();
                let asked =
                    self.relay(standing, &Caller::Anyone, IDENTIFY, body, self.replica.timing.request());
                let user =
                    Text::decode(asked.await.map_err(|error| error.status)?).map_err(|_| refused)?.text;
                self.auth.note(token, &user);
                Ok(Caller::User(user))
            }
            (found, _) => found,
        }
    }

    async fn unary(
        &self,
        caller: Result<Caller, Status>,
        path: &str,
        needs_leader: bool,
        messages: &mut Messages,
    ) -> Result<Bytes, Status> {
        let body = messages.next_bytes().await?.ok_or(status::MALFORMED)?;
        self.counters.received.add(body.len() as u64);
        let caller = match caller {
            // Authenticating is what callers without a token do.
            Err(_) if path == "/etcdserverpb.Auth/Authenticate" => Caller::Anyone,
            caller => caller?,
        };
        if !self.replica.is_one_of_several() {
            return self.here(&caller, path, body).await;
        }
        if needs_leader && self.replica.standing().leader == 0 {
            return Err(status::NO_LEADER);
        }
        self.among_members(&caller, path, body).await
    }

    /// Answers what any member can, and passes on what only the leader may.
    async fn among_members(&self, caller: &Caller, path: &str, body: Bytes) -> Result<Bytes, Status> {
        if ANY_SERVES.contains(&path) {
            return self.here(caller, path, body).await;
        }
        match path {
            "/etcdserverpb.KV/Range" => {
                if !decode::<RangeRequest>(body.clone())?.serializable {
                    if self.replica.standing().learner {
                        return Err(status::NOT_FOR_LEARNER);
                    }
                    self.replica.current(&self.etcd.shared).await?;
                }
                return self.here(caller, path, body).await;
            }
            "/etcdserverpb.Cluster/MemberList" => {
                if decode::<MemberListRequest>(body.clone())?.linearizable {
                    self.replica.current(&self.etcd.shared).await?;
                }
                return self.here(caller, path, body).await;
            }
            _ => {}
        }
        let waits = matches!(path, "/v3lockpb.Lock/Lock" | "/v3electionpb.Election/Campaign");
        let request = self.replica.timing.request();
        let deadline = Instant::now() + request;
        loop {
            let standing = self.replica.standing();
            let left = if waits {
                Duration::from_secs(1 << 30)
            } else {
                deadline.saturating_duration_since(Instant::now())
            };
            let outcome = match standing.leader {
                0 => Err(CallError { status: status::NO_LEADER, unsent: true }),
                _ if standing.leads => {
                    let done = self.lead(caller, path, body.clone()).await;
                    done.map_err(|status| CallError { unsent: status == status::NOT_LEADER, status })
                }
                _ => self
                    .relay(standing, caller, path, body.clone(), left)
                    .await
                    .map(|answer| self.signed(&answer)),
            };
            match outcome {
                Err(error) if error.unsent && Instant::now() < deadline => {
                    self.replica.changed(standing, LOOK).await;
                }
                Err(error) if error.unsent => return Err(status::TIMEOUT),
                outcome => return outcome.map_err(|error| error.status),
            }
        }
    }

    /// Answers as the leader.
    pub(crate) async fn lead(&self, caller: &Caller, path: &str, body: Bytes) -> Result<Bytes, Status> {
        if LEADER_READS.contains(&path) {
            self.replica.current(&self.etcd.shared).await?;
        }
        self.here(caller, path, body).await
    }

    /// Passes a call on to the leader. If another one leads before it answers, nobody knows what came of it.
    async fn relay(
        &self,
        standing: Standing,
        caller: &Caller,
        path: &str,
        body: Bytes,
        at_most: Duration,
    ) -> Result<Bytes, CallError> {
        let replaced = async {
            loop {
                self.replica.changed(self.replica.standing(), Duration::from_secs(3600)).await;
                let leader = self.replica.standing().leader;
                if leader != 0 && leader != standing.leader {
                    // The one before may still answer, if it lives.
                    tokio::time::sleep(self.replica.timing.election).await;
                    return;
                }
            }
        };
        let shared = &self.etcd.shared;
        // Dropping the call gives it up; what it did there stays done.
        tokio::select! {
            outcome = self.replica.relay(shared, standing.leader, caller, path, body, at_most) => outcome,
            () = replaced => Err(CallError { status: status::TIMEOUT_LEADER_FAILED, unsent: false }),
        }
    }

    /// An answer of the leader as one of this member: later fields of a message override earlier ones.
    fn signed(&self, answer: &Bytes) -> Bytes {
        let header = ResponseHeader { member_id: self.identity.member_id, ..ResponseHeader::default() };
        let mut out = answer.to_vec();
        out.extend(HeaderOnly { header: Some(header) }.encode_to_vec());
        frame::wrapped(&out)
    }

    /// Tells the members what this one is called and where clients reach it.
    pub(crate) async fn announce(&self) -> Result<(), Status> {
        let standing = self.replica.standing();
        let member = Member { id: self.identity.member_id, ..self.replica.own.clone() };
        if standing.leads {
            return self.etcd.transact(|transaction| cluster::publish(transaction, member)).await;
        }
        let body = Published { member: Some(member) }.encode_to_vec().into();
        let told = self.relay(standing, &Caller::Anyone, PUBLISH, body, self.replica.timing.request());
        told.await.map(drop).map_err(|error| error.status)
    }

    /// Answers a call here, whoever leads; a member that does not refuses what changes anything.
    pub(crate) async fn here(&self, caller: &Caller, path: &str, body: Bytes) -> Result<Bytes, Status> {
        let (service, method) = path.trim_start_matches('/').split_once('/').ok_or(status::UNKNOWN_METHOD)?;
        if self.etcd.shared.has_alarm(alarm::CORRUPT)
            && !matches!(service, "etcdserverpb.Cluster" | "etcdserverpb.Maintenance")
        {
            return Err(status::CORRUPT);
        }
        match service {
            "etcdserverpb.KV" => self.kv(caller, method, body).await,
            "etcdserverpb.Lease" => self.lease(caller, method, body).await,
            "etcdserverpb.Cluster" => cluster::unary(self, caller, method, body).await,
            "etcdserverpb.Maintenance" => maintenance::unary(self, caller, method, body).await,
            "etcdserverpb.Auth" => self.auth_method(caller, method, body).await,
            "v3lockpb.Lock" | "v3electionpb.Election" => match method {
                "Lock" | "Campaign" => concurrency::acquire(self, caller, method, body).await,
                _ => concurrency::unary(self, caller, method, body).await,
            },
            _ => Err(status::UNKNOWN_METHOD),
        }
    }

    async fn kv(&self, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
        let shared = &self.etcd.shared;
        let too_large = body.len() > shared.config.max_request_bytes;
        let idle = self.is_idle(method);
        match method {
            "Range" => {
                let request: RangeRequest = decode(body)?;
                shared.counters.ranges.increment();
                self.check(caller, &request.key, &request.range_end, Access::Read)?;
                let out = kv::range(shared, self.header_at(0), &request)?;
                Ok(frame::seal(out))
            }
            "Put" => {
                let request: PutRequest = decode(body)?;
                if too_large {
                    return Err(status::REQUEST_TOO_LARGE);
                }
                let none = Bytes::new();
                self.check(caller, &request.key, &none, Access::Write)?;
                if request.prev_kv {
                    self.check(caller, &request.key, &none, Access::Read)?;
                }
                let mut response = self
                    .etcd
                    .transact_here(idle, |transaction| kv::put(shared, transaction, request))
                    .await?;
                self.complete(&mut response.header);
                Ok(frame::framed(&response))
            }
            "DeleteRange" => {
                let request: DeleteRangeRequest = decode(body)?;
                self.check(caller, &request.key, &request.range_end, Access::Write)?;
                if request.prev_kv {
                    self.check(caller, &request.key, &request.range_end, Access::Read)?;
                }
                let mut response = self
                    .etcd
                    .transact_here(idle, |transaction| kv::delete_range(transaction, &request))
                    .await?;
                self.complete(&mut response.header);
                Ok(frame::framed(&response))
            }
            "Txn" => {
                let request: TxnRequest = decode(body)?;
                if too_large && !kv::is_read_only(&request) {
                    return Err(status::REQUEST_TOO_LARGE);
                }
                kv::check_txn(&request, self.max_txn_ops)?;
                shared.counters.transactions.increment();
                self.check_txn_access(caller, &request)?;
                let mut response = self
                    .etcd
                    .transact_here(idle, |transaction| kv::txn(shared, transaction, request))
                    .await?;
                self.complete(&mut response.header);
                Ok(frame::framed(&response))
            }
            "Compact" => {
                // As with etcd any user may: the API server does it with its own.
                let request: CompactionRequest = decode(body)?;
                self.etcd.compact(request.revision).await?;
                Ok(frame::framed(&HeaderOnly { header: self.header() }))
            }
            _ => Err(status::UNKNOWN_METHOD),
        }
    }

    /// Counts a call. Whether it is a write with next to nothing since the write before it: then nobody is held up while
    /// the thread waits for the disk.
    fn is_idle(&self, method: &str) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        if method == "Range" {
            return false;
        }
        let before = self.calls_at_write.swap(calls, Ordering::Relaxed);
        calls.saturating_sub(before) <= IDLE_CALLS
    }

    /// Adds who we are to a header that so far only has the revision.
    fn complete(&self, header: &mut Option<ResponseHeader>) {
        let revision = header.as_ref().map_or(0, |header| header.revision);
        *header = Some(self.header_at(revision));
    }

    /// Whether the caller may touch a range.
    pub fn check(&self, caller: &Caller, key: &Bytes, end: &Bytes, access: Access) -> Result<(), Status> {
        if *caller == Caller::Anyone {
            return Ok(());
        }
        let range = KeyRange::from_wire(key.clone(), end.clone());
        auth::check(&self.etcd.shared.read(), caller, &range, access)
    }

    fn check_txn_access(&self, caller: &Caller, request: &TxnRequest) -> Result<(), Status> {
        if *caller == Caller::Anyone {
            return Ok(());
        }
        for compare in &request.compare {
            self.check(caller, &compare.key, &compare.range_end, Access::Read)?;
        }
        for operation in request.success.iter().chain(&request.failure) {
            match &operation.request {
                Some(RequestOpRequest::Range(range)) => {
                    self.check(caller, &range.key, &range.range_end, Access::Read)?;
                }
                Some(RequestOpRequest::Put(put)) => {
                    self.check(caller, &put.key, &Bytes::new(), Access::Write)?;
                    if put.prev_kv {
                        self.check(caller, &put.key, &Bytes::new(), Access::Read)?;
                    }
                }
                Some(RequestOpRequest::DeleteRange(delete)) => {
                    self.check(caller, &delete.key, &delete.range_end, Access::Write)?;
                    if delete.prev_kv {
                        self.check(caller, &delete.key, &delete.range_end, Access::Read)?;
                    }
                }
                Some(RequestOpRequest::Txn(nested)) => self.check_txn_access(caller, nested)?,
                None => {}
            }
        }
        Ok(())
    }

    async fn lease(&self, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
        let shared = &self.etcd.shared;
        match method {
            "LeaseGrant" => {
                let request: LeaseGrantRequest = decode(body)?;
                let ttl = request.ttl.max(MIN_LEASE);
                let id = self.etcd.grant_lease_as(request.id, ttl).await?;
                Ok(frame::framed(&LeaseGrantResponse {
                    header: self.header(),
                    id,
                    ttl,
                    error: String::new(),
                }))
            }
            "LeaseRevoke" => {
                let request: LeaseId = decode(body)?;
                self.check_lease_keys(caller, request.id)?;
                self.etcd.revoke_lease(request.id).await?;
                Ok(frame::framed(&HeaderOnly { header: self.header() }))
            }
            "LeaseTimeToLive" => {
                let request: LeaseTimeToLiveRequest = decode(body)?;
                let state = shared.read();
                let now = Instant::now();
                let lease = state.leases.get(request.id).filter(|lease| lease.expires > now);
                let response = match lease {
                    Some(lease) => LeaseTimeToLiveResponse {
                        header: self.header(),
                        id: request.id,
                        ttl: lease.remaining(now),
                        granted_ttl: lease.ttl,
                        keys: if request.keys { lease.keys.iter().cloned().collect() } else { Vec::new() },
                    },
                    None => LeaseTimeToLiveResponse {
                        header: self.header(),
                        id: request.id,
                        ttl: -1,
                        ..LeaseTimeToLiveResponse::default()
                    },
                };
                drop(state);
                for key in &response.keys {
                    self.check(caller, key, &Bytes::new(), Access::Read)?;
                }
                Ok(frame::framed(&response))
            }
            "LeaseLeases" => {
                let leases = shared.read().leases.iter().map(|(id, _)| LeaseId { id }).collect();
                Ok(frame::framed(&LeaseLeasesResponse { header: self.header(), leases }))
            }
            _ => Err(status::UNKNOWN_METHOD),
        }
    }

    fn check_lease_keys(&self, caller: &Caller, id: i64) -> Result<(), Status> {
        if *caller == Caller::Anyone {
            return Ok(());
        }
        let state = self.etcd.shared.read();
        let keys = state.leases.get(id).map(|lease| lease.keys.clone()).unwrap_or_default();
        keys.into_iter().try_for_each(|key| auth::check(&state, caller, &KeyRange::One(key), Access::Write))
    }

    async fn keep_alive(
        &self,
        messages: &mut Messages,
        out: &mut h2::SendStream<Bytes>,
    ) -> Result<(), Status> {
        while let Some(request) = messages.next::<LeaseId>().await? {
            // A lease that is gone answers with no time left, as etcd does; the stream goes on.
            let response = if self.replica.is_one_of_several() {
                let body = LeaseId { id: request.id }.encode_to_vec().into();
                self.keep_alive_among_members(body).await?
            } else {
                let ttl = self.etcd.keep_lease_alive(request.id).await.unwrap_or(0);
                frame::framed(&LeaseKeepAliveResponse { header: self.header(), id: request.id, ttl })
            };
            frame::send(out, response).await?;
        }
        Ok(())
    }

    /// Keeps a lease alive where its time is counted. Whoever renewed it makes sure afterwards that it still leads: it may have been
    /// stopped in between, and another have ended the lease.
    async fn keep_alive_among_members(&self, body: Bytes) -> Result<Bytes, Status> {
        let deadline = Instant::now() + self.replica.timing.request();
        loop {
            let standing = self.replica.standing();
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = match standing.leader {
                0 => Err(status::NO_LEADER),
                _ if standing.leads => {
                    let id = decode::<LeaseId>(body.clone())?.id;
                    let current = self.replica.current(&self.etcd.shared).await;
                    let ttl = self.etcd.keep_lease_alive(id).await;
                    let still = self.replica.read_index().await;
                    match (current, still, ttl) {
                        (Err(status), ..) | (_, Err(status), _) => Err(status),
                        (.., Err(StoreError::Unavailable(_))) => Err(status::NOT_LEADER),
                        (.., ttl) => Ok(frame::framed(&LeaseKeepAliveResponse {
                            header: self.header(),
                            id,
                            ttl: ttl.unwrap_or(0),
                        })),
                    }
                }
                _ => {
                    let asked = self.relay(standing, &Caller::Anyone, KEEP_ALIVE, body.clone(), left).await;
                    asked.map(|answer| self.signed(&answer)).map_err(|error| error.status)
                }
            };
            match asked {
                Ok(answer) => return Ok(answer),
                Err(_) if left > LOOK => self.replica.changed(standing, LOOK).await,
                Err(_) => return Err(status::TIMEOUT),
            }
        }
    }

    async fn auth_method(&self, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
        let shared = &self.etcd.shared;
        if method == "Authenticate" {
            let request: AuthenticateRequest = decode(body)?;
            let token = self.auth.authenticate(shared, &request.name, request.password).await?;
            return Ok(frame::framed(&AuthenticateResponse { header: self.header(), token }));
        }
        match method {
            "UserGet" => {
                let request: NameRequest = decode(body)?;
                let state = shared.read();
                if *caller != Caller::User(request.name.clone()) {
                    auth::check_root(&state, caller)?;
                }
                let names = auth::user_roles(&state, &request.name)?;
                return Ok(frame::framed(&NamesResponse { header: self.header(), names }));
            }
            "RoleGet" => {
                let request: NameRequest = decode(body)?;
                let state = shared.read();
                let own = match caller {
                    Caller::User(user) => auth::user_roles(&state, user)?.contains(&request.name),
                    Caller::Anyone => true,
                };
                if !own {
                    auth::check_root(&state, caller)?;
                }
                let perm = auth::role_permissions(&state, &request.name)?;
                return Ok(frame::framed(&RoleGetResponse { header: self.header(), perm }));
            }
            _ => {}
        }
        auth::check_root(&shared.read(), caller)?;
        if method == "AuthStatus" {
            let auth_revision = Auth::revision(&shared.read());
            let enabled = self.auth.is_enabled();
            let answer = AuthStatusResponse { header: self.header(), enabled, auth_revision };
            return Ok(frame::framed(&answer));
        }
        if let "UserList" | "RoleList" = method {
            let state = shared.read();
            let names = if method == "UserList" { auth::users(&state) } else { auth::roles(&state) };
            return Ok(frame::framed(&NamesResponse { header: self.header(), names }));
        }
        let password = match method {
            "UserAdd" => {
                let request: UserAddRequest = decode(body.clone())?;
                let none = request.options.is_some_and(|options| options.no_password);
                if none { None } else { Some(auth::hashed(request.password, self.bcrypt_cost).await?) }
            }
            "UserChangePassword" => {
                let request: UserPasswordRequest = decode(body.clone())?;
                Some(auth::hashed(request.password, self.bcrypt_cost).await?)
            }
            _ => None,
        };
        self.etcd.transact(|transaction| self.change_auth(transaction, method, body, password)).await?;
        Ok(frame::framed(&HeaderOnly { header: self.header() }))
    }

    fn change_auth(
        &self,
        transaction: &mut Transaction<'_>,
        method: &str,
        body: Bytes,
        password: Option<Bytes>,
    ) -> Result<(), Status> {
        let auth = &self.auth;
        match method {
            "AuthEnable" => auth.enable(transaction),
            "AuthDisable" => {
                auth.disable(transaction);
                Ok(())
            }
            "UserAdd" => auth::add_user(transaction, &decode::<UserAddRequest>(body)?.name, password),
            "UserDelete" => auth::delete_user(auth, transaction, &decode::<NameRequest>(body)?.name),
            "UserChangePassword" => {
                let request: UserPasswordRequest = decode(body)?;
                auth::change_password(auth, transaction, &request.name, password.unwrap_or_default())
            }
            "UserGrantRole" => {
                let request: UserRoleRequest = decode(body)?;
                auth::grant_role(transaction, &request.user, &request.role)
            }
            "UserRevokeRole" => {
                let request: UserRoleRequest = decode(body)?;
                auth::revoke_role(auth, transaction, &request.user, &request.role)
            }
            "RoleAdd" => auth::add_role(transaction, &decode::<NameRequest>(body)?.name),
            "RoleDelete" => auth::delete_role(auth, transaction, &decode::<NameRequest>(body)?.name),
            "RoleGrantPermission" => {
                let request: RoleGrantRequest = decode(body)?;
                auth::grant_permission(transaction, &request.name, request.perm)
            }
            "RoleRevokePermission" => {
                let request: RoleRevokeRequest = decode(body)?;
                auth::revoke_permission(transaction, &request.role, &request.key, &request.range_end)
            }
            _ => Err(status::UNKNOWN_METHOD),
        }
    }
}

/// A message from a request's bytes.
pub fn decode<M: Message + Default>(body: Bytes) -> Result<M, Status> {
    M::decode(body).map_err(|_| status::MALFORMED)
}
