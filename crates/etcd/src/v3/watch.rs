//! The Watch service: many watches on one stream.
//!
//! A watch of the stream is attached to the hub or reads history, like every watch (see [`crate::mvcc::hub`]); all
//! attached ones share the stream's queue. The stream takes from its queue only as fast as the client reads, so a slow
//! client makes its watches fall back to history instead of filling memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use tokio::sync::mpsc;

use crate::engine::Shared;
use crate::mvcc::hub::{Batch, Delivery, MemberId};
use crate::mvcc::range::KeyRange;
use crate::store::{Event, EventKind, KeyValue as StoreKeyValue, Revision};
use crate::v3::auth::{self, Access, Caller};
use crate::v3::frame::{self, Messages};
use crate::v3::messages::{
    Event as WireEvent, KeyValue, RequestUnion, ResponseHeader, WatchCreateRequest, WatchRequest,
    WatchResponse,
};
use crate::v3::service::Service;
use crate::v3::status::{self, Status};

/// How many deliveries a stream may have waiting.
const QUEUE: usize = 256;
/// How many changes one reading of history looks at.
const CATCH_UP: usize = 1000;
/// A fragmented response is about this long.
const FRAGMENT: usize = 3 << 19;
/// Responses that are ready together leave together, up to about this many bytes: an HTTP/2 frame.
const TOGETHER: usize = 16 << 10;
/// Events longer than this are not copied for each watch but sent as they are.
const SHARED: usize = 8 << 10;
/// The id in messages that concern no watch, or all.
const NO_WATCH: i64 = -1;

struct Watcher {
    range: KeyRange,
    /// The first revision not yet sent.
    next: Revision,
    member: Option<MemberId>,
    no_put: bool,
    no_delete: bool,
    prev_kv: bool,
    fragment: bool,
    progress_notify: bool,
    /// Whether something was sent since the last progress notification.
    busy: bool,
}

/// One stream with its watches.
pub struct Stream<'a> {
    service: &'a Service,
    shared: &'a Arc<Shared>,
    caller: Caller,
    out: SendStream<Bytes>,
    /// Responses not yet handed to the connection.
    unsent: BytesMut,
    watchers: BTreeMap<i64, Watcher>,
    next_id: i64,
    sender: mpsc::Sender<(i64, Delivery)>,
    queue: mpsc::Receiver<(i64, Delivery)>,
    /// Set by the hub when the queue was too full for one of the watches.
    lost: Arc<AtomicBool>,
}

/// A stream as it is counted.
struct Open<'a>(&'a crate::counters::Counter);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.decrement();
    }
}

enum Turn {
    Request(Option<WatchRequest>),
    Delivery(i64, Delivery),
    ProgressDue,
    History,
}

impl<'a> Stream<'a> {
    pub fn new(service: &'a Service, caller: Caller, out: SendStream<Bytes>) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE);
        let shared = &service.etcd.shared;
        let lost = Arc::default();
        Self {
            service,
            shared,
            caller,
            out,
            unsent: BytesMut::new(),
            watchers: BTreeMap::new(),
            next_id: 0,
            sender,
            queue,
            lost,
        }
    }

    /// Serves the stream until the client has closed its side or is gone, or there has been no leader for too long.
    pub async fn run(
        mut self,
        mut requests: Messages,
        leaderless: impl Future<Output = ()>,
    ) -> (SendStream<Bytes>, Result<(), Status>) {
        let mut leaderless = std::pin::pin!(leaderless);
        let mut progress = tokio::time::interval(self.service.progress_interval);
        progress.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        progress.tick().await;
        let mut requests_open = true;
        self.service.counters.watch_streams.increment();
        let _open = Open(&self.service.counters.watch_streams);
        let outcome = loop {
            if self.lost.swap(false, Ordering::AcqRel) {
                self.find_lost();
            }
            let behind = self.watchers.values().any(|watcher| watcher.member.is_none());
            if self.queue.is_empty()
                && !behind
                && let Err(status) = self.flush().await
            {
                break Err(status);
            }
            // Every arm is cancel-safe: a message is taken whole or stays where it is.
            let turn = tokio::select! {
                biased;
                request = requests.next::<WatchRequest>(), if requests_open => match request {
                    Ok(request) => Turn::Request(request),
                    Err(status) => break Err(status),
                },
                Some((id, delivery)) = self.queue.recv() => Turn::Delivery(id, delivery),
                () = std::future::ready(()), if behind => Turn::History,
                _ = progress.tick() => Turn::ProgressDue,
                () = &mut leaderless => break Err(status::NO_LEADER),
            };
            let done = match turn {
                // The client sends no more requests, but may go on listening.
                Turn::Request(None) => {
                    requests_open = false;
                    if self.watchers.is_empty() {
                        break Ok(());
                    }
                    Ok(())
                }
                Turn::Request(Some(request)) => self.take(request).await,
                Turn::Delivery(id, delivery) => self.deliver(id, delivery).await,
                Turn::History => self.catch_up().await,
                Turn::ProgressDue => self.notify_progress().await,
            };
            if let Err(status) = done {
                break Err(status);
            }
            if let Err(error) = self.shared.check_open() {
                break Err(error.into());
            }
        };
        if outcome.is_ok() {
            // A client that is gone gets nothing.
            let _ = self.flush().await;
        }
        let mut hub = self.shared.hub();
        for watcher in self.watchers.values() {
            if let Some(member) = watcher.member {
                hub.detach(&watcher.range, member);
            }
        }
        drop(hub);
        (self.out, outcome)
    }

    fn header(&self, revision: Revision) -> ResponseHeader {
        self.service.header_at(revision)
    }

    /// Leaves a response to be sent: at once if much waits, otherwise when the stream has nothing else to do.
    async fn send(&mut self, response: &WatchResponse) -> Result<(), Status> {
        self.open_message(response, 0);
        if self.unsent.len() >= TOGETHER { self.flush().await } else { Ok(()) }
    }

    /// Begins a message of which `more` bytes follow what is given here.
    fn open_message(&mut self, head: &WatchResponse, more: usize) {
        let length = head.encoded_len();
        self.unsent.reserve(frame::PREFIX + length + if more <= SHARED { more } else { 0 });
        self.unsent.put_u8(0);
        self.unsent.put_u32((length + more) as u32);
        head.encode_raw(&mut self.unsent);
    }

    /// Hands what waits to the connection, as fast as the client reads.
    async fn flush(&mut self) -> Result<(), Status> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let bytes = self.unsent.split().freeze();
        frame::send(&mut self.out, bytes).await
    }

    async fn take(&mut self, request: WatchRequest) -> Result<(), Status> {
        match request.request_union {
            Some(RequestUnion::Create(create)) => self.create(create).await,
            Some(RequestUnion::Cancel(cancel)) => {
                let Some(watcher) = self.watchers.remove(&cancel.watch_id) else { return Ok(()) };
                if let Some(member) = watcher.member {
                    self.shared.hub().detach(&watcher.range, member);
                }
                let header = Some(self.header(self.shared.visible()));
                let response = WatchResponse {
                    header,
                    watch_id: cancel.watch_id,
                    canceled: true,
                    ..WatchResponse::default()
                };
                self.send(&response).await
            }
            Some(RequestUnion::Progress(_)) => self.answer_progress().await,
            None => Ok(()),
        }
    }

    async fn create(&mut self, mut create: WatchCreateRequest) -> Result<(), Status> {
        // An empty key means the first one, as etcd has it.
        if create.key.is_empty() {
            create.key = Bytes::from_static(b"\0");
        }
        let range = KeyRange::from_wire(create.key, create.range_end);
        let visible = self.shared.visible();
        let refused = |reason: &str, id: i64, header| WatchResponse {
            header: Some(header),
            watch_id: id,
            created: true,
            canceled: true,
            cancel_reason: reason.to_owned(),
            ..WatchResponse::default()
        };
        let allowed = auth::check(&self.shared.read(), &self.caller, &range, Access::Read);
        if let Err(status) = allowed {
            // As etcd's client library has it, which compares these texts.
            let reason = format!("rpc error: code = PermissionDenied desc = {}", status.message);
            let response = refused(&reason, NO_WATCH, self.header(visible));
            return self.send(&response).await;
        }
        let id = match create.watch_id {
            0 => {
                while self.watchers.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id
            }
            id if self.watchers.contains_key(&id) => {
                let response = refused(
                    "mvcc: duplicate watch ID provided on the WatchStream",
                    NO_WATCH,
                    self.header(visible),
                );
                return self.send(&response).await;
            }
            id => id,
        };
        let next = if create.start_revision > 0 { create.start_revision } else { visible + 1 };
        let watcher = Watcher {
            range,
            next,
            member: None,
            no_put: create.filters.contains(&0),
            no_delete: create.filters.contains(&1),
            prev_kv: create.prev_kv,
            fragment: create.fragment,
            progress_notify: create.progress_notify,
            busy: false,
        };
        self.watchers.insert(id, watcher);
        let header = Some(self.header(visible));
        let response = WatchResponse { header, watch_id: id, created: true, ..WatchResponse::default() };
        self.send(&response).await?;
        self.attach_if_caught_up(id);
        Ok(())
    }

    /// Attaches a watch that has no history left to read.
    fn attach_if_caught_up(&mut self, id: i64) -> bool {
        let Some(watcher) = self.watchers.get_mut(&id) else { return true };
        let mut hub = self.shared.hub();
        if watcher.next <= hub.dispatched() {
            return false;
        }
        let member = hub.attach(&watcher.range, id, self.sender.clone(), self.lost.clone());
        watcher.member = Some(member);
        true
    }

    /// Finds the watches that the hub has detached. What is still in the queue comes before what they will read.
    fn find_lost(&mut self) {
        let hub = self.shared.hub();
        for watcher in self.watchers.values_mut() {
            if watcher.member.is_some_and(|member| !hub.is_attached(&watcher.range, member)) {
                watcher.member = None;
            }
        }
    }

    /// Lets every watch that is behind read a piece of history.
    async fn catch_up(&mut self) -> Result<(), Status> {
        let behind: Vec<i64> =
            self.watchers.iter().filter(|(_, watcher)| watcher.member.is_none()).map(|(id, _)| *id).collect();
        for id in behind {
            if self.attach_if_caught_up(id) {
                continue;
            }
            let Some(watcher) = self.watchers.get(&id) else { continue };
            let read = {
                let state = self.shared.read();
                let compacted = state.keys.compacted();
                if watcher.next < compacted {
                    Err(compacted)
                } else {
                    let to = self.shared.hub().dispatched();
                    Ok(state.keys.events(&watcher.range, watcher.next, to, CATCH_UP))
                }
            };
            match read {
                Ok((events, revision)) => {
                    if let Some(watcher) = self.watchers.get_mut(&id) {
                        watcher.next = revision + 1;
                    }
                    if !events.is_empty() {
                        self.send_events(id, &Batch::new(events, revision), 0).await?;
                    }
                }
                Err(compacted) => {
                    self.watchers.remove(&id);
                    let response = WatchResponse {
                        header: Some(self.header(self.shared.visible())),
                        watch_id: id,
                        canceled: true,
                        compact_revision: compacted,
                        cancel_reason: "mvcc: required revision has been compacted".to_owned(),
                        ..WatchResponse::default()
                    };
                    self.send(&response).await?;
                }
            }
        }
        Ok(())
    }

    async fn deliver(&mut self, id: i64, delivery: Delivery) -> Result<(), Status> {
        let Some(watcher) = self.watchers.get_mut(&id) else { return Ok(()) };
        match delivery {
            Delivery::Events(batch) => {
                let first = watcher.next;
                if batch.revision < first {
                    return Ok(());
                }
                watcher.next = batch.revision + 1;
                self.send_events(id, &batch, first).await
            }
            // Progress is answered for the whole stream.
            Delivery::Progress(_) => Ok(()),
        }
    }

    /// Sends the events of a batch with revisions from `first` on.
    async fn send_events(&mut self, id: i64, batch: &Batch, first: Revision) -> Result<(), Status> {
        let Some(watcher) = self.watchers.get_mut(&id) else { return Ok(()) };
        watcher.busy = true;
        let wanted = |event: &Event| {
            event.kv.mod_revision >= first
                && !(watcher.no_put && event.kind == EventKind::Put)
                && !(watcher.no_delete && event.kind == EventKind::Delete)
        };
        let whole = !watcher.no_put
            && !watcher.no_delete
            && batch.events.first().is_some_and(|event| event.kv.mod_revision >= first);
        let prev_kv = watcher.prev_kv;
        let fragment = watcher.fragment;
        let events = if whole {
            batch.encoded[usize::from(prev_kv)]
                .get_or_init(|| encode_events(batch.events.iter(), prev_kv))
                .clone()
        } else {
            encode_events(batch.events.iter().filter(|event| wanted(event)), prev_kv)
        };
        if events.is_empty() {
            return Ok(());
        }
        self.service.counters.events.add(batch.events.len() as u64);
        let header = self.header(self.shared.visible().max(batch.revision));
        let pieces = if fragment { split_events(events, FRAGMENT) } else { vec![events] };
        let last = pieces.len() - 1;
        for (number, piece) in pieces.into_iter().enumerate() {
            let head = WatchResponse {
                header: Some(header.clone()),
                watch_id: id,
                fragment: number < last,
                ..WatchResponse::default()
            };
            self.open_message(&head, piece.len());
            if piece.len() <= SHARED {
                // One frame more would cost more than copying.
                self.unsent.extend_from_slice(&piece);
            } else {
                // The events are shared by all watches of this range: sent as they are.
                self.flush().await?;
                frame::send(&mut self.out, piece).await?;
            }
            if self.unsent.len() >= TOGETHER {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Answers a progress request: only once no watch of the stream has anything left to send up to the revision told.
    async fn answer_progress(&mut self) -> Result<(), Status> {
        let revision = self.shared.visible();
        self.shared.publish(revision);
        loop {
            while let Ok((id, delivery)) = self.queue.try_recv() {
                self.deliver(id, delivery).await?;
            }
            if self.lost.swap(false, Ordering::AcqRel) {
                self.find_lost();
            }
            let behind = |watcher: &Watcher| watcher.member.is_none() && watcher.next <= revision;
            if !self.watchers.values().any(behind) {
                break;
            }
            self.catch_up().await?;
        }
        let header = Some(self.header(revision));
        self.send(&WatchResponse { header, watch_id: NO_WATCH, ..WatchResponse::default() }).await
    }

    /// Tells quiet watches that asked for it how far they are.
    async fn notify_progress(&mut self) -> Result<(), Status> {
        let revision = self.shared.hub().dispatched();
        let mut told = Vec::new();
        for (id, watcher) in &mut self.watchers {
            if watcher.progress_notify && !std::mem::take(&mut watcher.busy) && watcher.member.is_some() {
                told.push(*id);
            }
        }
        if !told.is_empty() {
            // What is queued for them comes first.
            while let Ok((id, delivery)) = self.queue.try_recv() {
                self.deliver(id, delivery).await?;
            }
        }
        for id in told {
            let header = Some(self.header(revision));
            self.send(&WatchResponse { header, watch_id: id, ..WatchResponse::default() }).await?;
        }
        Ok(())
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

/// Events as fields of a watch response.
fn encode_events<'a>(events: impl Iterator<Item = &'a Event>, prev_kv: bool) -> Bytes {
    const EVENTS: u8 = 11 << 3 | 2;
    let mut out = BytesMut::new();
    for event in events {
        let event = WireEvent {
            kind: i32::from(event.kind == EventKind::Delete),
            kv: Some(wire(&event.kv)),
            prev_kv: event.previous.as_ref().filter(|_| prev_kv).map(wire),
        };
        let length = event.encoded_len();
        out.reserve(1 + encoded_len_varint(length as u64) + length);
        out.put_u8(EVENTS);
        encode_varint(length as u64, &mut out);
        event.encode_raw(&mut out);
    }
    out.freeze()
}

/// Cuts encoded events into pieces of about `size` bytes, between events.
fn split_events(events: Bytes, size: usize) -> Vec<Bytes> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < events.len() {
        let mut rest = &events[at + 1..];
        let before = rest.len();
        let length = prost::encoding::decode_varint(&mut rest).unwrap_or(0) as usize;
        let end = (at + 1 + before - rest.len() + length).min(events.len());
        if end - start > size && at > start {
            pieces.push(events.slice(start..at));
            start = at;
        }
        at = end;
    }
    pieces.push(events.slice(start..));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(size: usize) -> Event {
        let kv = StoreKeyValue { value: vec![1; size].into(), mod_revision: 5, ..StoreKeyValue::default() };
        Event { kind: EventKind::Put, kv, previous: None }
    }

    #[test]
    fn fragments_are_cut_between_events_and_hold_all_of_them() {
        let events = [event(10), event(300), event(10), event(10), event(500)];
        let whole = encode_events(events.iter(), false);
        let pieces = split_events(whole.clone(), 200);
        assert_eq!(pieces.concat(), whole);
        assert_eq!(pieces.len(), 4);
        for piece in pieces {
            WatchResponse::decode(piece).expect("whole events");
        }
    }
}
