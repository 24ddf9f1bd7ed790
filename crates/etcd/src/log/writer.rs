//! The thread that makes writes durable.
//!
//! Transactions leave their records in [`Pending`]; the thread takes all that wait, writes them as one batch, calls
//! fdatasync once, publishes them and wakes the writers. Whoever comes meanwhile forms the next batch.
//!
//! - Disk space is reserved ahead. When that fails for lack of space, writes that need more are refused *before* they
//!   change anything, and the reservation is tried again every second.
//! - A failed fdatasync is final: nobody knows what reached the disk, so the log takes no more writes until a restart
//!   has read it again. Reads go on.
//! - A failed write for lack of space (no reservation possible) is undone: the file is cut back and the state is
//!   rebuilt from the disk.
//! - Once the log has outgrown the data it begins a new file, and a snapshot replaces the old ones.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::engine::Shared;
use crate::log::recovery::{self, Active};
use crate::log::segment::{self, BATCH_HEADER, MAX_BATCH};
use crate::log::snapshot::{self, Capture, Dump};
use crate::store::{Revision, StoreError};

/// How much room is reserved at a time.
const RESERVE: u64 = 8 << 20;
/// Reserve again when less than this is left.
const LOW: u64 = 2 << 20;
/// No snapshot before the log is this long.
const MIN_LOG: u64 = 16 << 20;
/// How often a full disk is looked at again.
const RETRY: Duration = Duration::from_secs(1);
/// A snapshot is flushed this often, so that it does not hold up the log's own flushes in one big wave.
const FLUSH: u64 = 4 << 20;

/// Who waits for which record to be durable.
type Waiter = oneshot::Sender<Result<(), StoreError>>;

/// Records on their way to the disk.
#[derive(Default)]
pub struct Pending {
    batch: Vec<u8>,
    first_index: u64,
    last_index: u64,
    revision: Revision,
    waiters: VecDeque<(u64, Waiter)>,
    closed: bool,
}

/// The side of the log that transactions see.
pub struct Journal {
    pending: Mutex<Pending>,
    wake: Condvar,
    pub(crate) disk: Arc<dyn Disk>,
}

impl Journal {
    /// A log on a disk.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { pending: Mutex::default(), wake: Condvar::new(), disk }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().expect("a record was half queued: the log must not be used any more")
    }

    /// Queues a record. Called under the state's lock, so that records queue in the order of their indexes.
    pub fn append(
        &self,
        index: u64,
        revision: Revision,
        record: &[u8],
    ) -> oneshot::Receiver<Result<(), StoreError>> {
        let (sender, receiver) = oneshot::channel();
        let mut pending = self.pending();
        if pending.batch.is_empty() {
            pending.batch.resize(BATCH_HEADER, 0);
            pending.first_index = index;
            self.wake.notify_one();
        }
        crate::log::codec::put_bytes(&mut pending.batch, record);
        pending.last_index = index;
        pending.revision = revision;
        pending.waiters.push_back((index, sender));
        receiver
    }

    /// Waits for a record that was queued before. Called under the state's lock.
    pub fn wait_for(&self, index: u64) -> oneshot::Receiver<Result<(), StoreError>> {
        let (sender, receiver) = oneshot::channel();
        self.pending().waiters.push_back((index, sender));
        receiver
    }

    /// Keeps the directory to ourselves after a failure, until the store is closed.
    fn wait_until_closed(&self) {
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

/// The thread's own things.
struct Writer {
    shared: Arc<Shared>,
    active: Active,
    reserved: u64,
    /// Bytes in logs that a snapshot would make superfluous.
    log_bytes: u64,
    snapshot_due: u64,
    snapshot: Option<JoinHandle<()>>,
}

/// Starts the thread. The receiver resolves when it has ended.
pub(crate) fn start(shared: Arc<Shared>, active: Active) -> io::Result<oneshot::Receiver<()>> {
    let (ended, receiver) = oneshot::channel();
    let log_bytes = active.offset;
    let mut writer =
        Writer { shared, reserved: active.offset, active, log_bytes, snapshot_due: 0, snapshot: None };
    writer.reserve();
    writer.plan_snapshot();
    std::thread::Builder::new().name("etcd-log".into()).spawn(move || {
        writer.run();
        writer.end();
        // Nobody waiting for the end is fine.
        let _ = ended.send(());
    })?;
    Ok(receiver)
}

/// What came of one attempt to write.
enum Written {
    Durable,
    /// Not written for lack of space, and nothing of it is in the file.
    NoSpace,
    /// Nobody knows.
    Unknown(io::Error),
}

impl Writer {
    fn run(&mut self) {
        let mut spare = Vec::new();
        while let Some((mut batch, first, last, revision)) = self.take(std::mem::take(&mut spare)) {
            let began = Instant::now();
            match self.write(&mut batch, first) {
                Written::Durable => {
                    self.publish(last, revision);
                    self.shared.counters.commit.observe(began.elapsed());
                }
                Written::NoSpace => {
                    if !self.undo() {
                        return;
                    }
                }
                Written::Unknown(error) => return self.fail(&error),
            }
            batch.clear();
            batch.shrink_to(64 << 10);
            spare = batch;
            if self.reserved < self.active.offset + LOW {
                self.reserve();
            }
            let due = self.log_bytes >= self.snapshot_due && !self.shared.snapshot_running();
            if due && !self.rotate() {
                return;
            }
        }
        // Give back what was reserved and not used; the next start reserves again.
        if let Err(error) =
            self.active.file.truncate(self.active.offset).and_then(|()| self.active.file.sync())
        {
            tracing::warn!(error = %telemetry::chain(&error), "reserved log space not given back");
        }
    }

    /// Waits for the snapshot (it gives up when the store is closed) and lets go of the disk.
    fn end(self) {
        if let Some(snapshot) = self.snapshot {
            // Its panic has been printed; there is nothing to clean up after it.
            let _ = snapshot.join();
        }
        if let Some(journal) = self.shared.journal() {
            journal.wait_until_closed();
            journal.disk.release();
        }
    }

    /// The records that wait, leaving an empty buffer; `None` when the log is closed and all is written.
    fn take(&mut self, spare: Vec<u8>) -> Option<(Vec<u8>, u64, u64, Revision)> {
        let shared = self.shared.clone();
        let journal = shared.journal()?;
        let mut pending = journal.pending();
        while pending.batch.is_empty() {
            if pending.closed {
                return None;
            }
            if shared.is_out_of_space() {
                pending = match journal.wake.wait_timeout(pending, RETRY) {
                    Ok((guard, _)) => guard,
                    Err(_) => return None,
                };
                if pending.batch.is_empty() {
                    drop(pending);
                    self.reserve();
                    pending = journal.pending();
                }
            } else {
                pending = journal.wake.wait(pending).ok()?;
            }
        }
        let batch = std::mem::replace(&mut pending.batch, spare);
        Some((batch, pending.first_index, pending.last_index, pending.revision))
    }

    fn write(&mut self, batch: &mut [u8], first_index: u64) -> Written {
        if batch.len() > MAX_BATCH {
            return Written::Unknown(io::Error::other("batch too long"));
        }
        segment::seal(batch, first_index);
        if let Err(error) = self.active.file.write_at(self.active.offset, batch) {
            let full = is_full(&error);
            // What has been written of it must not be taken for a record later.
            let cut = self.active.file.truncate(self.active.offset).and_then(|()| self.active.file.sync());
            self.reserved = self.active.offset;
            return match cut {
                Ok(()) if full => Written::NoSpace,
                _ => Written::Unknown(error),
            };
        }
        let began = Instant::now();
        if let Err(error) = self.active.file.sync() {
            return Written::Unknown(error);
        }
        self.shared.counters.sync.observe(began.elapsed());
        self.shared.counters.log_bytes.add(batch.len() as u64);
        self.active.offset += batch.len() as u64;
        self.log_bytes += batch.len() as u64;
        Written::Durable
    }

    /// Shows a durable batch to readers and watches, then wakes its writers.
    fn publish(&self, last_index: u64, revision: Revision) {
        self.shared.set_durable(last_index);
        self.shared.publish(revision);
        for waiter in self.waiters_up_to(last_index) {
            // A writer that no longer waits has its write all the same.
            let _ = waiter.send(Ok(()));
        }
    }

    fn waiters_up_to(&self, index: u64) -> Vec<Waiter> {
        let Some(journal) = self.shared.journal() else { return Vec::new() };
        let mut pending = journal.pending();
        let count = pending.waiters.partition_point(|(wanted, _)| *wanted <= index);
        pending.waiters.drain(..count).map(|(_, waiter)| waiter).collect()
    }

    fn reserve(&mut self) {
        match self.active.file.reserve(self.active.offset + RESERVE) {
            Ok(()) => {
                self.reserved = self.active.offset + RESERVE;
                if self.shared.set_out_of_space(false) {
                    tracing::info!("the disk has space again: writes are taken");
                }
            }
            Err(error) if is_full(&error) => {
                if !self.shared.set_out_of_space(true) {
                    tracing::error!("the disk is full: writes are refused until there is space");
                }
            }
            Err(error) => {
                // Reserving is a convenience; writing will show whether the disk works.
                tracing::warn!(error = %telemetry::chain(&error), "log space not reserved");
                self.reserved = self.active.offset + RESERVE;
            }
        }
    }

    /// Goes back to what is on the disk after a write that found it full. Returns whether the log goes on.
    fn undo(&mut self) -> bool {
        let shared = self.shared.clone();
        let Some(journal) = shared.journal() else { return false };
        tracing::error!(
            "the disk is full: the last writes are undone and writes are refused until there is space"
        );
        self.shared.set_out_of_space(true);
        self.shared.block(Some(StoreError::NoSpace));
        let recovered = match recovery::recover(&*journal.disk, Instant::now()) {
            Ok(recovered) => recovered,
            Err(error) => {
                self.fail(&error);
                return false;
            }
        };
        self.active = recovered.active;
        self.reserved = self.active.offset;
        let mut dropped = VecDeque::new();
        self.shared.replace_state(recovered.state, || {
            let mut pending = journal.pending();
            pending.batch.clear();
            dropped = std::mem::take(&mut pending.waiters);
        });
        self.shared.block(None);
        self.shared.counters.failed.add(dropped.len() as u64);
        for (_, waiter) in dropped {
            let _ = waiter.send(Err(StoreError::NoSpace));
        }
        true
    }

    /// Refuses all writes from now on.
    fn fail(&self, error: &(dyn std::error::Error + 'static)) {
        let reason = format!("the log cannot be written: {}", telemetry::chain(error));
        tracing::error!(%reason, "writes are refused until a restart; reads go on");
        let refusal = StoreError::Unavailable(reason);
        self.shared.block(Some(refusal.clone()));
        for waiter in self.waiters_up_to(u64::MAX) {
            let _ = waiter.send(Err(refusal.clone()));
        }
    }

    fn plan_snapshot(&mut self) {
        let data = self.shared.read().keys.bytes();
        self.snapshot_due = MIN_LOG.max(data / 2);
    }

    /// Begins a new log file and starts the snapshot that replaces the ones before it. Returns whether the log goes on.
    fn rotate(&mut self) -> bool {
        let shared = self.shared.clone();
        let Some(journal) = shared.journal() else { return false };
        // Between the capture and the last record before it nothing may come: the state's lock is held for both.
        let mut taken = None;
        let capture = self.shared.capture(|| {
            let mut pending = journal.pending();
            if !pending.batch.is_empty() {
                let batch = std::mem::take(&mut pending.batch);
                taken = Some((batch, pending.first_index, pending.last_index, pending.revision));
            }
        });
        if let Some((mut batch, first, last, revision)) = taken {
            match self.write(&mut batch, first) {
                Written::Durable => self.publish(last, revision),
                Written::NoSpace => {
                    self.shared.release_compaction();
                    return self.undo();
                }
                Written::Unknown(error) => {
                    self.shared.release_compaction();
                    self.fail(&error);
                    return false;
                }
            }
        }
        let begun = recovery::begin(&*journal.disk, capture.index + 1);
        let old_offset = self.active.offset;
        match begun {
            Ok(active) => {
                let mut old = std::mem::replace(&mut self.active, active);
                // The room behind the end of the finished file is wasted otherwise. Not being able to is harmless.
                let _ = old.file.truncate(old_offset);
                self.reserved = self.active.offset;
                self.log_bytes = self.active.offset;
                self.reserve();
                self.plan_snapshot();
                self.snapshot = start_snapshot(self.shared.clone(), capture);
            }
            Err(error) => {
                tracing::warn!(error = %telemetry::chain(&error), "no new log file: the snapshot is put off");
                self.shared.release_compaction();
                self.snapshot_due = self.log_bytes + MIN_LOG;
            }
        }
        true
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero
    )
}

/// Writes a snapshot on a thread of its own, which lives only for it.
fn start_snapshot(shared: Arc<Shared>, capture: Capture) -> Option<JoinHandle<()>> {
    let index = capture.index;
    let for_thread = shared.clone();
    let spawned = std::thread::Builder::new().name("etcd-snapshot".into()).spawn(move || {
        let started = Instant::now();
        match write_snapshot(&for_thread, capture) {
            Ok(bytes) => {
                for_thread.set_snapshot_bytes(bytes);
                for_thread.counters.snapshot.observe(started.elapsed());
                tracing::debug!(index, bytes, took = ?started.elapsed(), "snapshot written");
            }
            Err(error) => tracing::warn!(index, error = %telemetry::chain(&error), "snapshot not written"),
        }
        for_thread.release_compaction();
    });
    spawned
        .inspect_err(|error| {
            tracing::warn!(error = %telemetry::chain(error), "no thread for a snapshot");
            shared.release_compaction();
        })
        .ok()
}

/// Writes the snapshot file and removes what it replaces.
fn write_snapshot(shared: &Shared, capture: Capture) -> io::Result<u64> {
    let Some(journal) = shared.journal() else { return Ok(0) };
    let disk = &*journal.disk;
    let index = capture.index;
    let temporary = format!("{}.tmp", snapshot::name(index));
    let written = fill_snapshot(shared, disk, &temporary, capture);
    if written.is_err() {
        // Half a snapshot only takes space; the next start would remove it too.
        let _ = disk.remove(&temporary);
    }
    let bytes = written?;
    disk.rename(&temporary, &snapshot::name(index))?;
    disk.sync_directory()?;
    recovery::remove_obsolete(disk, &disk.list()?, index, u64::MAX);
    Ok(bytes)
}

fn fill_snapshot(shared: &Shared, disk: &dyn Disk, name: &str, capture: Capture) -> io::Result<u64> {
    let mut file = disk.create(name)?;
    let mut dump = Dump::new(capture);
    let (mut offset, mut flushed) = (0, 0);
    loop {
        let piece = dump.next(&shared.read().keys);
        let Some(piece) = piece else { break };
        if shared.check_open().is_err() {
            return Err(io::Error::other("the store is being closed"));
        }
        file.write_at(offset, &piece)?;
        offset += piece.len() as u64;
        if offset - flushed >= FLUSH {
            file.sync()?;
            flushed = offset;
        }
    }
    file.sync()?;
    Ok(offset)
}
