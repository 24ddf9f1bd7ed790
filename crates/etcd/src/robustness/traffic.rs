//! Clients that read, write, compare and watch, and write down what they were told.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::{Stop, Tasks};

use crate::remote::channel::CallError;
use crate::remote::{Channel, RemoteConfig, RemoteError};
use crate::robustness::history::{Observation, Operation, Renewals, Reply};
use crate::robustness::model::{Guard, Outcome, Request, Span, Step, pair};
use crate::robustness::random::Random;
use crate::robustness::watches::{Response, Stream, event};
use crate::v3::messages::*;
use crate::v3::status::code;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_millis(2500);
/// Between two calls of one client: the searches stay short, and so do the logs.
const PAUSE: (u64, u64) = (2, 12);
/// How many keys there are.
const KEYS: u64 = 12;
/// Seconds that a lease lives.
const LEASE: i64 = 4;

/// The time of one run.
#[derive(Clone, Copy, Debug)]
pub struct Time(Instant);

impl Time {
    /// Begins now.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Microseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

/// All keys that the clients use.
pub fn everything() -> Span {
    Span { key: Bytes::from_static(b"\0"), end: Bytes::from_static(b"\xff") }
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("k/{number:02}"))
}

fn one(key: Bytes) -> Span {
    Span { key, end: Bytes::new() }
}

/// Some of the keys.
pub fn part(random: &mut Random) -> Span {
    let from = random.below(KEYS);
    let to = from + 1 + random.below(KEYS - from);
    Span { key: key(from), end: key(to) }
}

/// What clients have seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// Calls that have to be current.
    pub operations: Vec<Operation>,
    /// Reads that need not be.
    pub observations: Vec<Observation>,
    /// When leases were last renewed.
    pub renewals: Renewals,
}

/// One of them.
pub struct Client {
    number: usize,
    channel: Channel,
    random: Random,
    time: Time,
    /// Counts the values that this client has written.
    written: u64,
    lease: i64,
    /// The last change of a key that was read, for comparisons.
    known: Option<(Bytes, i64)>,
    /// The newest revision that any client has heard of.
    newest: Arc<AtomicI64>,
    seen: Seen,
}

fn outcome_of(response: &ResponseOp) -> Option<Outcome> {
    Some(match response.response.as_ref()? {
        ResponseOpResponse::Range(found) => found_in(found),
        ResponseOpResponse::Put(put) => Outcome::Put(put.prev_kv.as_ref().map(pair)),
        ResponseOpResponse::DeleteRange(gone) => Outcome::Deleted(gone.prev_kvs.iter().map(pair).collect()),
        ResponseOpResponse::Txn(_) => return None,
    })
}

fn found_in(response: &RangeResponse) -> Outcome {
    Outcome::Found(response.kvs.iter().map(pair).collect(), response.count)
}

fn range_of(span: &Span, limit: i64) -> RangeRequest {
    RangeRequest { key: span.key.clone(), range_end: span.end.clone(), limit, ..RangeRequest::default() }
}

fn delete_of(span: &Span) -> DeleteRangeRequest {
    DeleteRangeRequest { key: span.key.clone(), range_end: span.end.clone(), prev_kv: true }
}

fn put_of(key: &Bytes, value: &Bytes, lease: i64) -> PutRequest {
    PutRequest { key: key.clone(), value: value.clone(), lease, prev_kv: true, ..PutRequest::default() }
}

fn op_of(step: &Step) -> RequestOp {
    let request = match step {
        Step::Put { key, value, lease } => RequestOpRequest::Put(put_of(key, value, *lease)),
        Step::Delete(span) => RequestOpRequest::DeleteRange(delete_of(span)),
        Step::Range(span, limit) => RequestOpRequest::Range(range_of(span, *limit)),
    };
    RequestOp { request: Some(request) }
}

/// Whether an error says that nothing has happened and nothing will.
fn refused(error: &CallError) -> bool {
    error.unsent
        || matches!(
            error.status.code,
            code::INVALID_ARGUMENT
                | code::NOT_FOUND
                | code::FAILED_PRECONDITION
                | code::OUT_OF_RANGE
                | code::RESOURCE_EXHAUSTED
        )
}

fn reply_of(error: &CallError) -> Reply {
    let why = error.status.message.to_string();
    if refused(error) { Reply::Refused(why) } else { Reply::Unknown(why) }
}

impl Client {
    /// A client that asks the given members, the first of them first.
    pub fn new(
        number: usize,
        endpoints: Vec<String>,
        random: Random,
        time: Time,
        newest: &Arc<AtomicI64>,
        tasks: &Tasks,
    ) -> Result<Self, RemoteError> {
        let channel = Channel::new(&RemoteConfig { endpoints, tls: None }, tasks)?;
        let newest = newest.clone();
        let seen = Seen::default();
        Ok(Self { number, channel, random, time, written: 0, lease: 0, known: None, newest, seen })
    }

    async fn call<M: prost::Message + Default>(
        &self,
        path: &'static str,
        request: &impl prost::Message,
    ) -> Result<M, CallError> {
        match tokio::time::timeout(PATIENCE, self.channel.call(path, request)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.channel.move_on().await;
                let message = "no answer in time".into();
                let status = crate::v3::status::Status { code: code::DEADLINE_EXCEEDED, message };
                Err(CallError { status, unsent: false })
            }
        }
    }

    fn fresh(&mut self) -> Bytes {
        self.written += 1;
        // The start of the run is in it, so that no two clients of a run write the same.
        Bytes::from(format!("{}.{}.{}", self.number, self.time.now(), self.written))
    }

    fn any_key(&mut self) -> Bytes {
        key(self.random.below(KEYS))
    }

    fn any_span(&mut self) -> Span {
        part(&mut self.random)
    }

    /// Makes a call and writes down what comes of it.
    async fn perform(&mut self, request: Request) -> bool {
        let begun = self.time.now();
        let reply = match self.send(&request).await {
            Ok(reply) => reply,
            Err(error) => reply_of(&error),
        };
        let ended = self.time.now();
        if let Reply::Done { revision, outcomes, .. } = &reply {
            self.newest.fetch_max(*revision, Ordering::Relaxed);
            if let Some(Outcome::Found(found, _)) = outcomes.first()
                && let Some((key, version)) = found.first()
            {
                self.known = Some((key.clone(), version.modified));
            }
        }
        let done = matches!(reply, Reply::Done { .. } | Reply::Revoked);
        let answered = done || matches!(reply, Reply::Refused(_));
        self.seen.operations.push(Operation { client: self.number, request, begun, ended, reply });
        if !answered || !done {
            // A server that is away is not asked in a tight loop.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        done
    }

    async fn send(&self, request: &Request) -> Result<Reply, CallError> {
        let done = |header: Option<ResponseHeader>, succeeded, outcomes| Reply::Done {
            revision: header.map_or(0, |header| header.revision),
            succeeded,
            outcomes,
        };
        Ok(match request {
            Request::Revoke(id) => {
                self.call::<HeaderOnly>("/etcdserverpb.Lease/LeaseRevoke", &LeaseId { id: *id }).await?;
                Reply::Revoked
            }
            Request::Txn { guards, then, .. } if guards.is_empty() && then.len() == 1 => match &then[0] {
                Step::Put { key, value, lease } => {
                    let answer: PutResponse =
                        self.call("/etcdserverpb.KV/Put", &put_of(key, value, *lease)).await?;
                    done(answer.header, true, vec![Outcome::Put(answer.prev_kv.as_ref().map(pair))])
                }
                Step::Delete(span) => {
                    let answer: DeleteRangeResponse =
                        self.call("/etcdserverpb.KV/DeleteRange", &delete_of(span)).await?;
                    let gone = answer.prev_kvs.iter().map(pair).collect();
                    done(answer.header, true, vec![Outcome::Deleted(gone)])
                }
                Step::Range(span, limit) => {
                    let answer: RangeResponse =
                        self.call("/etcdserverpb.KV/Range", &range_of(span, *limit)).await?;
                    let found = found_in(&answer);
                    done(answer.header, true, vec![found])
                }
            },
            Request::Txn { guards, then, otherwise } => {
                let compare = guards.iter().map(|guard| Compare {
                    result: 0,
                    target: 2,
                    key: guard.key.clone(),
                    target_union: Some(TargetUnion::ModRevision(guard.modified)),
                    range_end: Bytes::new(),
                });
                let txn = TxnRequest {
                    compare: compare.collect(),
                    success: then.iter().map(op_of).collect(),
                    failure: otherwise.iter().map(op_of).collect(),
                };
                let answer: TxnResponse = self.call("/etcdserverpb.KV/Txn", &txn).await?;
                let outcomes = answer.responses.iter().filter_map(outcome_of).collect();
                done(answer.header, answer.succeeded, outcomes)
            }
        })
    }

    async fn step(&mut self, step: Step) -> bool {
        self.perform(Request::Txn { guards: Vec::new(), then: vec![step], otherwise: Vec::new() }).await
    }

    /// A put that tells how far everything before it is; repeated until it is acknowledged. Returns its revision.
    pub async fn barrier(&mut self, deadline: Instant) -> Option<i64> {
        while Instant::now() < deadline {
            let step = Step::Put { key: Bytes::from_static(b"k/barrier"), value: self.fresh(), lease: 0 };
            if self.step(step).await
                && let Some(Operation { reply: Reply::Done { revision, .. }, .. }) =
                    self.seen.operations.last()
            {
                return Some(*revision);
            }
        }
        None
    }

    /// Writes a large value; returns the revision if it is known.
    pub async fn put_large(&mut self, size: usize) -> Option<i64> {
        let text = self.fresh();
        let value = crate::robustness::faults::padded(&String::from_utf8_lossy(&text), size);
        self.step(Step::Put { key: Bytes::from_static(b"k/large"), value, lease: 0 }).await;
        match &self.seen.operations.last()?.reply {
            Reply::Done { revision, .. } => Some(*revision),
            Reply::Revoked | Reply::Refused(_) | Reply::Unknown(_) => None,
        }
    }

    /// Any call.
    async fn act(&mut self) {
        match self.random.below(100) {
            0..30 => {
                let (key, value) = (self.any_key(), self.fresh());
                let lease = if self.random.chance(25) { self.lease } else { 0 };
                self.step(Step::Put { key, value, lease }).await;
            }
            30..37 => {
                let span = one(self.any_key());
                self.step(Step::Delete(span)).await;
            }
            37..40 => {
                let span = self.any_span();
                self.step(Step::Delete(span)).await;
            }
            40..56 => {
                let span = one(self.any_key());
                self.step(Step::Range(span, 0)).await;
            }
            56..64 => {
                let (span, limit) = (self.any_span(), self.random.below(4) as i64);
                self.step(Step::Range(span, limit)).await;
            }
            64..82 => self.compare().await,
            82..88 => self.look(true).await,
            88..93 => self.look(false).await,
            _ => self.leases().await,
        }
    }

    /// Changes two keys if one is as it was last seen, otherwise reads or deletes.
    async fn compare(&mut self) {
        let (guarded, modified) = match self.known.take() {
            Some(known) => known,
            None => (self.any_key(), 0),
        };
        let mut other = self.any_key();
        while other == guarded {
            other = self.any_key();
        }
        let then = vec![
            Step::Put { key: guarded.clone(), value: self.fresh(), lease: 0 },
            Step::Range(one(guarded.clone()), 0),
            Step::Put { key: other.clone(), value: self.fresh(), lease: 0 },
        ];
        let otherwise = vec![Step::Range(one(guarded.clone()), 0), Step::Range(one(other), 0)];
        self.perform(Request::Txn { guards: vec![Guard { key: guarded, modified }], then, otherwise }).await;
    }

    /// A read that need not be current.
    async fn look(&mut self, serializable: bool) {
        let span = self.any_span();
        let newest = self.newest.load(Ordering::Relaxed);
        let revision = if serializable { 0 } else { (newest - self.random.below(60) as i64).max(1) };
        let request = RangeRequest { serializable, revision, ..range_of(&span, 0) };
        let Ok(answer) = self.call::<RangeResponse>("/etcdserverpb.KV/Range", &request).await else { return };
        let told = answer.header.as_ref().map_or(0, |header| header.revision);
        let revision = if serializable { told } else { revision };
        self.seen.observations.push(Observation { revision, span, found: found_in(&answer) });
    }

    async fn leases(&mut self) {
        let begun = self.time.now();
        let time = LEASE as u64 * 1_000_000;
        if self.lease == 0 {
            let id = (self.random.number() >> 2) as i64;
            let request = LeaseGrantRequest { ttl: LEASE, id };
            let granted = self.call::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &request).await;
            if granted.is_ok() {
                self.seen.renewals.insert(id, (begun, time));
                self.lease = id;
            }
        } else if self.random.chance(60) {
            let request = LeaseId { id: self.lease };
            let renewed = async {
                let mut call =
                    self.channel.stream("/etcdserverpb.Lease/LeaseKeepAlive", &request).await.ok()?;
                call.answers.next::<LeaseKeepAliveResponse>().await.ok().flatten()
            };
            match tokio::time::timeout(PATIENCE, renewed).await.ok().flatten() {
                Some(answer) if answer.ttl > 0 => {
                    self.seen.renewals.insert(self.lease, (begun, time));
                }
                Some(_) => self.lease = 0,
                None => {}
            }
        } else {
            self.perform(Request::Revoke(self.lease)).await;
            self.lease = 0;
        }
    }

    /// Goes on until it is told that it is enough.
    pub async fn run(mut self, enough: &AtomicBool) -> Seen {
        while !enough.load(Ordering::Relaxed) {
            self.act().await;
            tokio::time::sleep(self.random.between(PAUSE.0, PAUSE.1)).await;
        }
        self.seen
    }

    /// What it has seen.
    pub fn into_seen(self) -> Seen {
        self.seen
    }
}

/// A watch that goes on when its stream breaks, and writes down each stream by itself.
#[derive(Clone)]
pub struct Watcher {
    streams: Arc<Mutex<Vec<Stream>>>,
}

impl Watcher {
    /// Watches through the given members, the next one whenever a stream breaks.
    pub fn start(
        label: &str,
        endpoints: Vec<String>,
        span: Span,
        start: i64,
        time: Time,
        tasks: &Tasks,
    ) -> Result<Self, RemoteError> {
        let channel = Channel::new(&RemoteConfig { endpoints, tls: None }, tasks)?;
        let watcher = Self { streams: Arc::default() };
        let (label, streams) = (label.to_owned(), watcher.streams.clone());
        tasks.spawn("robustness/watch", move |stop| async move {
            let mut next = start;
            while !stop.is_requested() {
                next = watch(&label, &channel, &span, next, time, &streams, &stop).await;
                channel.move_on().await;
                if stop.or(tokio::time::sleep(Duration::from_millis(50))).await.is_none() {
                    return;
                }
            }
        });
        Ok(watcher)
    }

    /// How far it has come.
    pub fn reached(&self) -> i64 {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.iter().map(Stream::reached).max().unwrap_or(0)
    }

    /// Takes what has come.
    pub fn take(&self) -> Vec<Stream> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = streams.iter_mut().map(Stream::take).collect();
        let from = streams.len().saturating_sub(1);
        streams.drain(..from);
        taken
    }
}

/// One stream, until it breaks; returns where the next one begins.
async fn watch(
    label: &str,
    channel: &Channel,
    span: &Span,
    start: i64,
    time: Time,
    streams: &Mutex<Vec<Stream>>,
    stop: &Stop,
) -> i64 {
    let create = WatchCreateRequest {
        key: span.key.clone(),
        range_end: span.end.clone(),
        start_revision: start,
        progress_notify: true,
        prev_kv: true,
        fragment: true,
        ..WatchCreateRequest::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
    let Some(Ok(mut call)) = stop.or(channel.stream("/etcdserverpb.Watch/Watch", &request)).await else {
        return start;
    };
    let all = || streams.lock().unwrap_or_else(PoisonError::into_inner);
    let mut fragments = Vec::new();
    let mut begun = false;
    let mut ask = tokio::time::interval(Duration::from_millis(150));
    loop {
        // Both arms may be dropped: a message is taken whole or not at all.
        let answer = tokio::select! {
            answer = call.answers.next::<WatchResponse>() => answer,
            _ = ask.tick() => {
                let request = WatchRequest { request_union: Some(RequestUnion::Progress(Empty {})) };
                if call.requests.send_data(crate::v3::frame::framed(&request), false).is_err() {
                    break;
                }
                continue;
            }
            () = stop.requested() => break,
        };
        let Ok(Some(answer)) = answer else { break };
        if answer.compact_revision > 0 {
            return answer.compact_revision.max(start);
        }
        if answer.canceled {
            break;
        }
        if answer.created {
            begun = true;
            all().push(Stream { label: label.to_owned(), span: span.clone(), start, responses: Vec::new() });
            continue;
        }
        fragments.extend(answer.events.iter().filter_map(event));
        if answer.fragment {
            continue;
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let response = Response { at: time.now(), revision, events: std::mem::take(&mut fragments) };
        if let Some(stream) = all().last_mut() {
            stream.responses.push(response);
        }
    }
    if begun { all().last().map_or(start, |stream| stream.reached() + 1) } else { start }
}
