//! A watch on the store in process: reads history until it has caught up, then gets changes pushed.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use futures::stream::Stream;
use tokio::sync::mpsc;

use crate::engine::Shared;
use crate::mvcc::hub::{Delivery, MemberId};
use crate::mvcc::keyspace;
use crate::mvcc::range::KeyRange;
use crate::store::{Event, ProgressRequester, Revision, StoreError, WatchMessage, WatchSource};

/// How many deliveries an attached watch may have waiting before it has to read history instead.
const QUEUE: usize = 128;

/// How many changes one reading of history looks at.
const CATCH_UP: usize = 1000;

/// What the watch and its progress requesters share.
#[derive(Default)]
struct Attachment {
    member: Mutex<Option<MemberId>>,
    progress_wanted: AtomicBool,
}

impl Attachment {
    fn member(&self) -> std::sync::MutexGuard<'_, Option<MemberId>> {
        self.member.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The source of an in-process [`crate::store::Watch`].
pub(crate) struct LocalWatch {
    shared: Arc<Shared>,
    range: KeyRange,
    /// The first revision not yet delivered.
    next: Revision,
    queue: Option<mpsc::Receiver<(i64, Delivery)>>,
    attachment: Arc<Attachment>,
    ended: bool,
}

impl LocalWatch {
    pub fn open(shared: Arc<Shared>, range: KeyRange, from: Revision) -> Result<Self, StoreError> {
        shared.check_open()?;
        let compacted = shared.read().keys.compacted();
        if from != 0 && from < compacted {
            return Err(StoreError::Compacted { requested: from, compacted });
        }
        let mut watch =
            Self { shared, range, next: from, queue: None, attachment: Arc::default(), ended: false };
        if from == 0 {
            watch.next = watch.shared.visible() + 1;
        }
        // Attached at once if there is no history to read, so that "from now" means the moment of the call.
        let _history_first = watch.attach_if_caught_up();
        Ok(watch)
    }

    /// Attaches if no history is left to read; returns the revision reached.
    fn attach_if_caught_up(&mut self) -> Option<Revision> {
        let mut hub = self.shared.hub();
        let reached = hub.dispatched();
        if self.next <= reached {
            return None;
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        *self.attachment.member() = Some(hub.attach(&self.range, 0, sender, Arc::default()));
        self.queue = Some(receiver);
        Some(reached)
    }

    /// Reads the next piece of history; `None` if there is nothing in it for this watch.
    fn read_history(&mut self) -> Result<Option<WatchMessage>, StoreError> {
        let state = self.shared.read();
        let compacted = state.keys.compacted();
        if self.next < compacted {
            return Err(StoreError::Compacted { requested: self.next, compacted });
        }
        let to = self.shared.hub().dispatched();
        let (events, revision) = state.keys.events(&self.range, self.next, to, CATCH_UP);
        self.next = revision + 1;
        drop(state);
        let events: Vec<Event> = events.into_iter().map(owned).collect();
        Ok((!events.is_empty()).then_some(WatchMessage::Events { revision, events }))
    }

    /// What of a delivery is still wanted.
    fn take(&mut self, delivery: Delivery) -> Option<WatchMessage> {
        match delivery {
            Delivery::Events(batch) => {
                let first = self.next;
                if batch.revision < first {
                    return None;
                }
                self.next = batch.revision + 1;
                let wanted = batch.events.iter().filter(|event| event.kv.mod_revision >= first);
                // What has just been written is in memory; what was there before may be in a file.
                let events: Vec<Event> = wanted
                    .map(|event| Event {
                        previous: event.previous.clone().map(keyspace::owned),
                        ..event.clone()
                    })
                    .collect();
                (!events.is_empty()).then_some(WatchMessage::Events { revision: batch.revision, events })
            }
            Delivery::Progress(revision) => {
                self.attachment.progress_wanted.store(false, Ordering::Release);
                Some(WatchMessage::Progress { revision })
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<WatchMessage, StoreError>>> {
        loop {
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(queue) = &mut self.queue {
                match ready!(queue.poll_recv(context)) {
                    Some((_, delivery)) => {
                        if let Some(message) = self.take(delivery) {
                            return Poll::Ready(Some(Ok(message)));
                        }
                    }
                    None => {
                        // Detached: the queue overflowed (everything in it has now been read) or the store closed.
                        *self.attachment.member() = None;
                        self.queue = None;
                    }
                }
                continue;
            }
            if let Err(error) = self.shared.check_open() {
                self.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            if let Some(revision) = self.attach_if_caught_up() {
                if self.attachment.progress_wanted.swap(false, Ordering::AcqRel) {
                    return Poll::Ready(Some(Ok(WatchMessage::Progress { revision })));
                }
                continue;
            }
            match self.read_history() {
                Ok(Some(message)) => return Poll::Ready(Some(Ok(message))),
                Ok(None) => {}
                Err(error) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
    }
}

/// An event that may be held for long.
fn owned(event: Event) -> Event {
    Event { kv: keyspace::owned(event.kv), previous: event.previous.map(keyspace::owned), ..event }
}

impl Stream for LocalWatch {
    type Item = Result<WatchMessage, StoreError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(context)
    }
}

impl WatchSource for LocalWatch {
    fn progress_requester(&self) -> ProgressRequester {
        let shared = Arc::downgrade(&self.shared);
        let attachment = self.attachment.clone();
        let range = self.range.clone();
        ProgressRequester::new(move || {
            let Some(shared) = shared.upgrade() else { return };
            // What readers can see by now must be covered by the answer, so it is handed out first.
            shared.publish(shared.visible());
            // Remembered before asking: a watch that is reading history tells its progress when it has caught up.
            attachment.progress_wanted.store(true, Ordering::Release);
            let member = *attachment.member();
            if let Some(member) = member {
                shared.hub().tell_progress(&range, member);
            }
        })
    }
}

impl Drop for LocalWatch {
    fn drop(&mut self) {
        if let Some(member) = self.attachment.member().take() {
            self.shared.hub().detach(&self.range, member);
        }
    }
}
