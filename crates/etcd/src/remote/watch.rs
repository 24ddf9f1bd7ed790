//! A watch on a remote etcd that survives the loss of its connection.
//!
//! A task holds the stream; when it breaks, it opens another one at the revision after the last whole one that was
//! delivered, at the next endpoint. Fragments are put together, so a revision is never split. The queue to the reader is
//! short: a slow reader stops the task, the stream's window fills, and etcd waits.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::Stream;
use lifecycle::{Stop, Tasks};
use tokio::sync::{Notify, mpsc};

use crate::remote::channel::{Call, Channel};
use crate::remote::store::{error_of, kv_of};
use crate::store::{
    Event, EventKind, ProgressRequester, Revision, StoreError, WatchMessage, WatchSource, prefix_end,
};
use crate::v3::frame;
use crate::v3::messages as wire;
use crate::v3::messages::RequestUnion;
use crate::v3::status::{Status, code};

const QUEUE: usize = 16;
const PAUSE: Duration = Duration::from_millis(200);
/// How long the first stream may take to open.
const PATIENCE: Duration = Duration::from_secs(15);

type Message = Result<WatchMessage, StoreError>;

pub(crate) struct RemoteWatch {
    queue: mpsc::Receiver<Message>,
    progress: Arc<Notify>,
}

/// The task's side.
struct Pump {
    channel: Arc<Channel>,
    prefix: Bytes,
    /// The first revision not yet delivered.
    next: Revision,
    out: mpsc::Sender<Message>,
    progress: Arc<Notify>,
}

/// Why one stream ended.
enum End {
    /// The reader is gone.
    Dropped,
    /// To be opened again.
    Broken(Status),
    /// For good.
    Failed(StoreError),
}

impl RemoteWatch {
    pub async fn open(
        channel: Arc<Channel>,
        tasks: &Tasks,
        prefix: Bytes,
        from: Revision,
    ) -> Result<Self, StoreError> {
        let (out, queue) = mpsc::channel(QUEUE);
        let progress = Arc::<Notify>::default();
        let mut pump = Pump { channel, prefix, next: from, out, progress: progress.clone() };
        // The first stream is opened here, so that "from now" is settled before the caller goes on.
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let call = loop {
            match pump.open().await {
                Ok(call) => break call,
                Err(End::Broken(status)) if tokio::time::Instant::now() >= deadline => {
                    return Err(error_of(&status, from));
                }
                Err(End::Broken(_)) => tokio::time::sleep(PAUSE).await,
                Err(End::Failed(error)) => return Err(error),
                Err(End::Dropped) => return Err(StoreError::Closed),
            }
        };
        tasks.spawn("etcd/remote-watch", |stop| async move { pump.run(call, stop).await });
        Ok(Self { queue, progress })
    }
}

impl Pump {
    async fn run(mut self, first: Call, stop: Stop) {
        let mut call = Some(first);
        loop {
            let attempt = async {
                let opened = match call.take() {
                    Some(call) => Ok(call),
                    None => self.open().await,
                };
                match opened {
                    Ok(call) => self.pump(call).await,
                    Err(end) => end,
                }
            };
            match stop.or(attempt).await {
                None | Some(End::Dropped) => return,
                Some(End::Failed(error)) => {
                    // A reader that has gone needs no last word.
                    let _ = self.out.send(Err(error)).await;
                    return;
                }
                Some(End::Broken(status)) => {
                    tracing::debug!(error = %telemetry::chain(&status), next = self.next, "watch is opened again");
                    self.channel.move_on().await;
                    tokio::select! {
                        () = self.out.closed() => return,
                        waited = stop.or(tokio::time::sleep(PAUSE)) => if waited.is_none() { return },
                    }
                }
            }
        }
    }

    /// Opens a stream and waits until the watch on it exists.
    async fn open(&mut self) -> Result<Call, End> {
        let zero = Bytes::from_static(b"\0");
        let create = wire::WatchCreateRequest {
            key: if self.prefix.is_empty() { zero.clone() } else { self.prefix.clone() },
            range_end: prefix_end(&self.prefix).unwrap_or(zero),
            start_revision: self.next,
            progress_notify: true,
            prev_kv: true,
            fragment: true,
            ..wire::WatchCreateRequest::default()
        };
        let request = wire::WatchRequest { request_union: Some(RequestUnion::Create(create)) };
        let mut call =
            self.channel.stream("/etcdserverpb.Watch/Watch", &request).await.map_err(End::Broken)?;
        let answer = tokio::time::timeout(PATIENCE, call.answers.next::<wire::WatchResponse>()).await;
        let answer = match answer {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return Err(End::Broken(broken("the stream ended at once"))),
            Ok(Err(status)) => return Err(End::Broken(status)),
            Err(_) => return Err(End::Broken(broken("no answer to a watch request"))),
        };
        if answer.canceled {
            return Err(self.canceled(&answer));
        }
        if self.next == 0 {
            self.next = answer.header.as_ref().map_or(0, |header| header.revision) + 1;
        }
        Ok(call)
    }

    fn canceled(&self, answer: &wire::WatchResponse) -> End {
        if answer.compact_revision != 0 {
            let compacted = answer.compact_revision;
            return End::Failed(StoreError::Compacted { requested: self.next, compacted });
        }
        End::Failed(StoreError::Refused(answer.cancel_reason.clone()))
    }

    /// Hands on what the stream brings.
    async fn pump(&mut self, mut call: Call) -> End {
        let mut fragments: Vec<wire::Event> = Vec::new();
        loop {
            // Every arm is cancel-safe.
            let answer = tokio::select! {
                () = self.out.closed() => return End::Dropped,
                () = self.progress.notified() => {
                    let request = wire::WatchRequest { request_union: Some(RequestUnion::Progress(wire::Empty {})) };
                    if let Err(error) = call.requests.send_data(frame::framed(&request), false) {
                        // Asked again on the next stream.
                        self.progress.notify_one();
                        return End::Broken(frame::broken(error));
                    }
                    continue;
                }
                answer = call.answers.next::<wire::WatchResponse>() => answer,
            };
            let mut answer = match answer {
                Ok(Some(answer)) => answer,
                Ok(None) => return End::Broken(broken("the stream ended")),
                Err(status) => return End::Broken(status),
            };
            if answer.canceled {
                return self.canceled(&answer);
            }
            fragments.append(&mut answer.events);
            if answer.fragment {
                continue;
            }
            let message = self.message(&answer, std::mem::take(&mut fragments));
            if let Some(message) = message
                && self.out.send(Ok(message)).await.is_err()
            {
                return End::Dropped;
            }
        }
    }

    fn message(&mut self, answer: &wire::WatchResponse, events: Vec<wire::Event>) -> Option<WatchMessage> {
        let first = self.next;
        let events: Vec<Event> = events
            .into_iter()
            .filter_map(|event| {
                let kv = kv_of(event.kv?);
                let kind = if event.kind == 1 { EventKind::Delete } else { EventKind::Put };
                Some(Event { kind, kv, previous: event.prev_kv.map(kv_of) })
            })
            .filter(|event| event.kv.mod_revision >= first)
            .collect();
        match events.last() {
            // The header's revision may be later than what this message covers.
            Some(last) => {
                let revision = last.kv.mod_revision;
                self.next = revision + 1;
                Some(WatchMessage::Events { revision, events })
            }
            None => {
                let revision = answer.header.as_ref().map_or(0, |header| header.revision);
                self.next = self.next.max(revision + 1);
                Some(WatchMessage::Progress { revision })
            }
        }
    }
}

fn broken(text: &'static str) -> Status {
    Status { code: code::UNAVAILABLE, message: text.into() }
}

impl Stream for RemoteWatch {
    type Item = Message;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Message>> {
        self.queue.poll_recv(context)
    }
}

impl WatchSource for RemoteWatch {
    fn progress_requester(&self) -> ProgressRequester {
        let progress = Arc::downgrade(&self.progress);
        ProgressRequester::new(move || {
            if let Some(progress) = progress.upgrade() {
                progress.notify_one();
            }
        })
    }
}
