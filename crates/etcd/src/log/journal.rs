//! Records on their way to the disk, and who waits for them.
//!
//! Transactions queue here under the draft's lock, in the order of their indexes; whoever holds the
//! [`Writer`](super::writer::Writer) takes what waits and writes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::oneshot;

use super::writer::Writer;
use crate::disk::Disk;
use crate::log::segment::BATCH_HEADER;
use crate::replication::records::Recent;
use crate::store::StoreError;

/// A writer may lead after this many batches with one record.
pub(super) const ALONE: u32 = 4;
/// Nobody leads on a disk that takes longer than this many microseconds: whoever leads holds up its thread.
pub(super) const FAST_SYNC: u64 = 500;

/// Who waits for which record to be durable.
pub(super) type Waiter = oneshot::Sender<Answer>;

/// What a writer is told.
pub type Answer = Result<Others, StoreError>;

/// Writers whose records are durable as well: whoever gets or drops this tells them.
#[derive(Default)]
pub struct Others(pub(super) Vec<Waiter>);

impl Drop for Others {
    fn drop(&mut self) {
        for waiter in self.0.drain(..) {
            // A writer that no longer waits has its write all the same.
            let _ = waiter.send(Ok(Others::default()));
        }
    }
}

/// Records on their way to the disk.
#[derive(Default)]
pub struct Pending {
    pub(super) batch: Vec<u8>,
    pub(super) first_index: u64,
    pub(super) last_index: u64,
    /// The bytes of large values in the batch.
    pub(super) large: u64,
    pub(super) waiters: VecDeque<(u64, Waiter)>,
    /// Whether one of the writers will write the batch itself: the thread leaves it alone.
    pub(super) led: bool,
    /// Whether the thread has something else to do than to write a batch.
    pub(super) chores: bool,
    /// How many batches in a row had one record only.
    pub(super) alone: u32,
    pub(super) closed: bool,
    /// With several voters: what is durable is not committed yet.
    pub(super) held: bool,
    /// With several members: the last records.
    pub(super) recent: Recent,
}

impl Pending {
    /// Whether a writer that comes now may write its record itself.
    fn may_lead(&self) -> bool {
        self.batch.is_empty() && self.waiters.is_empty() && self.alone >= ALONE
    }
}

/// The side of the log that transactions see.
pub struct Journal {
    pub(super) pending: Mutex<Pending>,
    pub(super) wake: Condvar,
    /// Who writes holds this; before the thread is started and after it has ended there is none.
    pub(super) writer: Mutex<Option<Writer>>,
    /// How long fdatasync takes: a moving average, in microseconds.
    pub(super) sync_micros: AtomicU64,
    pub(crate) disk: Arc<dyn Disk>,
    /// In a simulation, which has no threads: the snapshot that is due, if one is.
    #[cfg(test)]
    pub(crate) by_hand: Mutex<Option<Option<u64>>>,
}

impl Journal {
    /// A log on a disk.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self {
            pending: Mutex::default(),
            wake: Condvar::new(),
            writer: Mutex::default(),
            sync_micros: AtomicU64::new(u64::from(u32::MAX)),
            disk,
            #[cfg(test)]
            by_hand: Mutex::default(),
        }
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("a record was half queued: the log must not be used any more")
    }

    pub(super) fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().expect("a batch was half written: the log must not be used any more")
    }

    /// Queues a record. Called under the draft's lock, so that records queue in the order of their indexes. Returns also
    /// whether the caller has to [`lead`](super::writer::lead): asked for, and alone.
    pub fn append(
        &self,
        index: u64,
        record: &[u8],
        large: usize,
        would_lead: bool,
    ) -> (oneshot::Receiver<Answer>, bool) {
        let (sender, receiver) = oneshot::channel();
        let mut pending = self.pending();
        let leads = would_lead && self.sync_micros.load(Ordering::Relaxed) <= FAST_SYNC && pending.may_lead();
        if pending.batch.is_empty() {
            pending.batch.resize(BATCH_HEADER, 0);
            pending.first_index = index;
            pending.led = leads;
            if !leads {
                self.wake.notify_one();
            }
        }
        crate::log::codec::put_bytes(&mut pending.batch, record);
        pending.last_index = index;
        pending.large += large as u64;
        pending.waiters.push_back((index, sender));
        if pending.held {
            pending.recent.push(index, record);
        }
        (receiver, leads)
    }

    /// From now on durable records are not committed by that alone.
    pub fn hold(&self) {
        self.pending().held = true;
    }

    /// Records from one to another, as many as a message has, if they are in memory.
    pub fn recent(&self, from: u64, up_to: u64) -> Option<(bytes::Bytes, u64)> {
        self.pending().recent.batch(from, up_to)
    }

    /// Whether that is so; records up to this one are durable.
    pub fn is_held(&self, durable: u64) -> bool {
        let mut pending = self.pending();
        pending.recent.note_durable(durable);
        pending.held
    }

    pub(super) fn note_sync(&self, took: Duration) {
        let took = took.as_micros() as u64;
        let before = self.sync_micros.load(Ordering::Relaxed);
        // The first one counts whole.
        let next = if before > u64::from(u16::MAX) { took } else { (before * 7 + took) / 8 };
        self.sync_micros.store(next.min(u64::from(u16::MAX)), Ordering::Relaxed);
    }

    /// The first record that is queued.
    pub(super) fn first_queued(&self) -> Option<u64> {
        let pending = self.pending();
        (!pending.batch.is_empty()).then_some(pending.first_index)
    }

    /// Leaves what is queued to the thread.
    pub(super) fn leave_to_thread(&self) {
        self.pending().led = false;
        self.wake.notify_one();
    }

    /// Waits for a record that was queued before. Called under the draft's lock.
    pub fn wait_for(&self, index: u64) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.pending().waiters.push_back((index, sender));
        receiver
    }

    /// Keeps the directory to ourselves after a failure, until the store is closed.
    pub(super) fn wait_until_closed(&self) {
        let mut pending = self.pending();
        while !pending.closed {
            pending = match self.wake.wait(pending) {
                Ok(guard) => guard,
                Err(_) => return,
            };
        }
    }

    /// Lets the thread end once everything queued is durable.
    pub fn close(&self) {
        self.pending().closed = true;
        self.wake.notify_one();
    }
}
