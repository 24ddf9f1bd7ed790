//! The thread that makes writes durable.
//!
//! Transactions leave their records in the [`Journal`]; the thread takes all that wait, writes them as one batch, calls
//! fdatasync once, lets them be applied if nobody else has a say in it, and wakes the writers. Whoever comes meanwhile forms the next batch.
//!
//! A writer that is alone does all that on the spot ([`lead`]): two hand-offs between threads would cost it more than
//! the disk does. It is alone if nothing else waits and the batches before had one record each; as soon as they have
//! more, or the disk is slow, the thread takes over. Whoever holds the [`Writer`] writes: batches stay in order.
//!
//! - Disk space is reserved ahead. When that fails for lack of space, writes that need more are refused *before* they
//!   change anything, and the reservation is tried again every second.
//! - A failed fdatasync is final: nobody knows what reached the disk, so the log takes no more writes until a restart
//!   has read it again. Reads go on.
//! - A failed write for lack of space (no reservation possible) is undone: the file is cut back and the records are forgotten. The state has
//!   not seen them.
//! - Large values of durable batches are looked up in the log's file from then on, a megabyte at a time.
//! - Once the log has outgrown the data it begins a new file, and a snapshot replaces the old ones.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::disk::{Disk, DiskFile};
use crate::engine::Shared;
use crate::log::codec::LARGE;
use crate::log::journal::{Journal, Others, Waiter};
use crate::log::recovery::{self, Active};
use crate::log::segment::{self, MAX_BATCH};
use crate::log::snapshot::{self, Capture, Dump};
use crate::mapping;
use crate::mutation::Mutation;
use crate::replication::records::Recent;
use crate::store::StoreError;

/// How much room is reserved at a time.
const RESERVE: u64 = 8 << 20;
/// Reserve again when less than this is left.
const LOW: u64 = 2 << 20;
/// How often a full disk is looked at again.
const RETRY: Duration = Duration::from_secs(1);
/// A snapshot is flushed this often, so that it does not hold up the log's own flushes in one big wave.
const FLUSH: u64 = 4 << 20;

/// How many bytes of large values of the last batches may be in memory.
const HOMED_AT_ONCE: u64 = 1 << 20;
/// How much of the log is looked through for them at once.
const LOOKED_AT: u64 = 8 << 20;

/// How many writers are woken by one of them: a wake from the log's thread costs far more than one from a task to another
/// of the same thread, and the next batch waits for it.
const WOKEN_BY_ONE: usize = 16;

/// Writes what is queued, on the caller's thread; or wakes the thread, if it is at work.
pub(crate) fn lead(shared: &Arc<Shared>) {
    let Some(journal) = shared.journal() else { return };
    let Ok(mut writer) = journal.writer.try_lock() else { return journal.leave_to_thread() };
    let Some(writer) = writer.as_mut() else {
        // The thread has ended, and nobody else will answer.
        for waiter in waiters_up_to(journal, u64::MAX) {
            let _ = waiter.send(Err(StoreError::Closed));
        }
        return;
    };
    if !writer.failed {
        writer.commit(shared, journal);
    }
    let has_chores = writer.has_chores(shared);
    let mut pending = journal.pending();
    pending.chores |= has_chores;
    if pending.chores || pending.closed {
        journal.wake.notify_one();
    }
}

/// What it takes to write.
pub(crate) struct Writer {
    active: Active,
    reserved: u64,
    /// Bytes in logs that a snapshot would make superfluous.
    log_bytes: u64,
    snapshot_due: u64,
    snapshot: Option<JoinHandle<()>>,
    /// Up to here no large value of the file is in memory, and how many bytes of them are in what follows.
    homed: u64,
    large: u64,
    /// The buffer of the last batch.
    spare: Vec<u8>,
    /// Nothing is written any more.
    failed: bool,
}

/// Makes everything ready to be written.
pub(crate) fn install(shared: &Arc<Shared>, active: Active) {
    let log_offset = active.offset;
    let mut writer = Writer {
        reserved: active.offset,
        log_bytes: active.offset,
        active,
        snapshot_due: 0,
        snapshot: None,
        homed: log_offset,
        large: 0,
        spare: Vec::new(),
        failed: false,
    };
    writer.reserve(shared);
    writer.plan_snapshot(shared);
    if let Some(journal) = shared.journal() {
        *journal.writer() = Some(writer);
    }
}

/// Starts the thread. The receiver resolves when it has ended.
pub(crate) fn start(shared: Arc<Shared>) -> io::Result<oneshot::Receiver<()>> {
    let (ended, receiver) = oneshot::channel();
    std::thread::Builder::new().name("etcd-log".into()).spawn(move || {
        if let Some(journal) = shared.journal() {
            run(&shared, journal);
            end(journal);
        }
        // Nobody waiting for the end is fine.
        let _ = ended.send(());
    })?;
    Ok(receiver)
}

/// What the thread does until the log is closed and all is written, or cannot be written any more.
fn run(shared: &Arc<Shared>, journal: &Journal) {
    while wait(shared, journal) {
        let mut writer = journal.writer();
        let Some(writer) = writer.as_mut() else { return };
        if !writer.failed {
            writer.commit(shared, journal);
        }
        if !writer.failed {
            writer.chores(shared, journal);
        }
        if writer.failed {
            return;
        }
    }
    // Give back what was reserved and not used; the next start reserves again.
    if let Some(writer) = journal.writer().as_mut().filter(|writer| !writer.failed) {
        let active = &mut writer.active;
        if let Err(error) = active.file.truncate(active.offset).and_then(|()| active.file.sync()) {
            tracing::warn!(error = %telemetry::chain(&error), "reserved log space not given back");
        }
    }
}

/// Waits for the snapshot (it gives up when the store is closed) and lets go of the disk.
fn end(journal: &Journal) {
    let writer = journal.writer().take();
    if let Some(snapshot) = writer.and_then(|writer| writer.snapshot) {
        // Its panic has been printed; there is nothing to clean up after it.
        let _ = snapshot.join();
    }
    journal.wait_until_closed();
    journal.disk.release();
}

/// Waits until the thread has something to do; `false` when the log is closed and all is written.
fn wait(shared: &Shared, journal: &Journal) -> bool {
    let mut pending = journal.pending();
    loop {
        if std::mem::take(&mut pending.chores) || !pending.batch.is_empty() && !pending.led {
            return true;
        }
        if pending.closed && pending.batch.is_empty() {
            return false;
        }
        pending = if shared.is_out_of_space() {
            match journal.wake.wait_timeout(pending, RETRY) {
                // The disk is looked at again even if there is nothing to write.
                Ok((_, timeout)) if timeout.timed_out() => return true,
                Ok((guard, _)) => guard,
                Err(_) => return false,
            }
        } else {
            match journal.wake.wait(pending) {
                Ok(guard) => guard,
                Err(_) => return false,
            }
        };
    }
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
    /// Makes what is queued durable and visible, if there is something.
    fn commit(&mut self, shared: &Shared, journal: &Journal) {
        let (mut batch, first, last) = {
            let mut pending = journal.pending();
            pending.led = false;
            if pending.batch.is_empty() {
                return;
            }
            let single = pending.first_index == pending.last_index;
            pending.alone = if single { pending.alone.saturating_add(1) } else { 0 };
            let batch = std::mem::replace(&mut pending.batch, std::mem::take(&mut self.spare));
            self.large += std::mem::take(&mut pending.large);
            (batch, pending.first_index, pending.last_index)
        };
        let began = Instant::now();
        match self.write(shared, &mut batch, first) {
            Written::Durable => {
                publish(shared, journal, last);
                shared.counters.commit.observe(began.elapsed());
            }
            Written::NoSpace => self.undo(shared, journal),
            Written::Unknown(error) => self.fail(shared, journal, &error),
        }
        shared.stir();
        batch.clear();
        batch.shrink_to(64 << 10);
        self.spare = batch;
    }

    /// Whether [`Writer::chores`] would do something.
    fn has_chores(&self, shared: &Shared) -> bool {
        self.failed
            || self.reserved < self.active.offset + LOW
            || self.large >= HOMED_AT_ONCE
            || self.log_bytes >= self.snapshot_due && !shared.snapshot_running()
    }

    /// What comes after a batch now and then: more room, less memory, a new file.
    fn chores(&mut self, shared: &Arc<Shared>, journal: &Journal) {
        if self.large >= HOMED_AT_ONCE || self.active.offset - self.homed >= LOOKED_AT {
            self.rehome(shared);
        }
        if self.reserved < self.active.offset + LOW || shared.is_out_of_space() {
            self.reserve(shared);
        }
        if self.log_bytes >= self.snapshot_due && !shared.snapshot_running() {
            self.rotate(shared, journal);
        }
    }

    fn write(&mut self, shared: &Shared, batch: &mut [u8], first_index: u64) -> Written {
        if batch.len() > MAX_BATCH {
            return Written::Unknown(io::Error::other("batch too long"));
        }
        segment::seal(batch, first_index, self.active.offset);
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
        let took = began.elapsed();
        shared.counters.sync.observe(took);
        shared.counters.log_bytes.add(batch.len() as u64);
        if let Some(journal) = shared.journal() {
            journal.note_sync(took);
        }
        self.active.offset += batch.len() as u64;
        self.log_bytes += batch.len() as u64;
        Written::Durable
    }

    /// Lets the large values that were written last be read from the file instead of keeping them in memory.
    fn rehome(&mut self, shared: &Shared) {
        let (from, to) = (self.homed, self.active.offset);
        self.homed = to;
        if std::mem::take(&mut self.large) == 0 {
            return;
        }
        let mut batches = vec![0; (to - from) as usize];
        let file = &*self.active.file;
        let found = match (segment::read_full(file, from, &mut batches), file.map(from, batches.len())) {
            (Ok(count), Ok(Some(mapping))) if count == batches.len() => {
                segment::mapped_records(&batches, &mapping).ok()
            }
            _ => None,
        };
        // They are in memory, as they are without a disk that can map files.
        let Some(records) = found else { return };
        let mut values = Vec::new();
        for record in records {
            for mutation in record.mutations {
                if let Mutation::Put { key, value, .. } = mutation
                    && value.len() >= LARGE
                {
                    values.push((key, record.revision, value));
                }
            }
        }
        shared.rehome(values);
    }

    fn reserve(&mut self, shared: &Shared) {
        match self.active.file.reserve(self.active.offset + RESERVE) {
            Ok(()) => {
                self.reserved = self.active.offset + RESERVE;
                if shared.set_out_of_space(false) {
                    tracing::info!("the disk has space again: writes are taken");
                }
            }
            Err(error) if is_full(&error) => {
                if !shared.set_out_of_space(true) {
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

    /// Forgets what a write that found the disk full would have written, and what came after it.
    fn undo(&mut self, shared: &Shared, journal: &Journal) {
        if shared.is_attended() {
            // Other members may have these records already.
            return self.fail(shared, journal, &io::Error::from(io::ErrorKind::StorageFull));
        }
        tracing::error!(
            "the disk is full: the last writes are undone and writes are refused until there is space"
        );
        shared.set_out_of_space(true);
        let dropped = forget_after(shared, journal, shared.durable_index());
        shared.counters.failed.add(dropped.len() as u64);
        for (_, waiter) in dropped {
            let _ = waiter.send(Err(StoreError::NoSpace));
        }
    }

    /// Refuses all writes from now on.
    fn fail(&mut self, shared: &Shared, journal: &Journal, error: &(dyn std::error::Error + 'static)) {
        self.failed = true;
        let reason = format!("the log cannot be written: {}", telemetry::chain(error));
        tracing::error!(%reason, "writes are refused until a restart; reads go on");
        let refusal = StoreError::Unavailable(reason);
        shared.block(Some(refusal.clone()));
        for waiter in waiters_up_to(journal, u64::MAX) {
            let _ = waiter.send(Err(refusal.clone()));
        }
    }

    fn plan_snapshot(&mut self, shared: &Shared) {
        let data = shared.read().keys.bytes();
        self.snapshot_due = shared.config.snapshot_log_bytes.max(data / 2);
    }

    /// Begins a new log file and starts the snapshot that replaces the ones before it.
    fn rotate(&mut self, shared: &Arc<Shared>, journal: &Journal) {
        // Everything written is durable. What is queued goes to the new file.
        let last = shared.durable_index();
        let begun = recovery::begin(&*journal.disk, last + 1);
        let old_offset = self.active.offset;
        match begun {
            Ok(active) => {
                let mut old = std::mem::replace(&mut self.active, active);
                // The room behind the end of the finished file is wasted otherwise. Not being able to is harmless.
                let _ = old.file.truncate(old_offset);
                self.reserved = self.active.offset;
                // What the old file had last gets its home in the snapshot.
                (self.homed, self.large) = (self.active.offset, 0);
                self.log_bytes = self.active.offset;
                self.reserve(shared);
                self.plan_snapshot(shared);
                self.snapshot = start_snapshot(shared.clone(), last);
            }
            Err(error) => {
                // What is written to the old file from here on would be void for whoever finds a new one that begins there.
                if let Err(left) = recovery::take_back(&*journal.disk, last + 1) {
                    return self.fail(shared, journal, &left);
                }
                tracing::warn!(error = %telemetry::chain(&error), "no new log file: the snapshot is put off");
                self.snapshot_due = self.log_bytes + shared.config.snapshot_log_bytes;
            }
        }
    }
}

/// A batch is durable: it is committed, unless others have a say in it.
fn publish(shared: &Shared, journal: &Journal, last_index: u64) {
    shared.set_durable(last_index);
    if !journal.is_held(last_index) {
        show(shared, journal, last_index);
    }
}

/// Applies what is committed up to a record that is durable here, shows it to readers and watches, then wakes its writers.
pub(crate) fn show(shared: &Shared, journal: &Journal, last_index: u64) {
    shared.apply_to(last_index);
    // Who waits for the index reads what has been applied.
    shared.set_committed(last_index);
    let mut waiters = waiters_up_to(journal, last_index);
    while let Some(first) = waiters.pop() {
        let others = Others(waiters.split_off(waiters.len().saturating_sub(WOKEN_BY_ONE - 1)));
        // One that no longer waits drops the others with its answer, and so tells them.
        let _ = first.send(Ok(others));
    }
}

/// Tells everybody who waits that nobody knows what came of it.
pub(crate) fn abandon(journal: &Journal, error: &StoreError) {
    for waiter in waiters_up_to(journal, u64::MAX) {
        let _ = waiter.send(Err(error.clone()));
    }
}

/// Goes back to a record: those after it, which are not committed, are void. Nothing may be queued meanwhile.
pub(crate) fn rewind(
    shared: &Shared,
    journal: &Journal,
    after: u64,
    error: &StoreError,
) -> Result<(), recovery::RecoveryError> {
    let mut guard = journal.writer();
    let Some(writer) = guard.as_mut() else { return Ok(()) };
    let path = || journal.disk.path(&segment::name(after + 1));
    // What is queued and stays is written first; what does not stay, never.
    if journal.first_queued().is_some_and(|first| first <= after) {
        writer.commit(shared, journal);
    }
    if writer.failed {
        let source = io::Error::other("the log cannot be written");
        return Err(recovery::RecoveryError::Io { action: "write", path: path(), source });
    }
    let begun = recovery::cut(&*journal.disk, after);
    writer.active =
        begun.map_err(|source| recovery::RecoveryError::Io { action: "begin", path: path(), source })?;
    writer.reserved = writer.active.offset;
    (writer.homed, writer.large) = (writer.active.offset, 0);
    let dropped = forget_after(shared, journal, after);
    shared.set_durable(after);
    for (_, waiter) in dropped {
        let _ = waiter.send(Err(error.clone()));
    }
    Ok(())
}

/// Forgets the records after one, queued ones included. Returns who waits for any.
fn forget_after(shared: &Shared, journal: &Journal, index: u64) -> VecDeque<(u64, Waiter)> {
    let mut dropped = VecDeque::new();
    shared.forget_after(index, || {
        let mut pending = journal.pending();
        pending.batch.clear();
        pending.large = 0;
        pending.recent = Recent::default();
        dropped = std::mem::take(&mut pending.waiters);
    });
    dropped
}

fn waiters_up_to(journal: &Journal, index: u64) -> Vec<Waiter> {
    let mut pending = journal.pending();
    let count = pending.waiters.partition_point(|(wanted, _)| *wanted <= index);
    pending.waiters.drain(..count).map(|(_, waiter)| waiter).collect()
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::WriteZero
    )
}

/// Writes a snapshot with everything up to a record at least, on a thread of its own, which lives only for it.
fn start_snapshot(shared: Arc<Shared>, last: u64) -> Option<JoinHandle<()>> {
    shared.set_snapshot_running(true);
    #[cfg(test)]
    if let Some(journal) = shared.journal()
        && journal.by_hand.lock().expect("not poisoned").is_some()
    {
        *journal.by_hand.lock().expect("not poisoned") = Some(Some(last));
        return None;
    }
    let for_thread = shared.clone();
    let spawned = std::thread::Builder::new().name("etcd-snapshot".into()).spawn(move || {
        take_snapshot(&for_thread, last);
    });
    spawned
        .inspect_err(|error| {
            tracing::warn!(error = %telemetry::chain(error), "no thread for a snapshot");
            shared.set_snapshot_running(false);
        })
        .ok()
}

fn take_snapshot(shared: &Shared, last: u64) {
    // What is not committed does not get into a snapshot, and the log before it is kept until one has all of it.
    if shared.wait_until_applied(last) {
        let started = Instant::now();
        let capture = shared.capture_and_hold();
        let index = capture.index;
        match write_snapshot(shared, capture) {
            Ok(bytes) => {
                shared.set_snapshot_bytes(bytes);
                shared.counters.snapshot.observe(started.elapsed());
                tracing::debug!(index, bytes, took = ?started.elapsed(), "snapshot written");
            }
            Err(error) => tracing::warn!(index, error = %telemetry::chain(&error), "snapshot not written"),
        }
        shared.release_hold();
    }
    shared.set_snapshot_running(false);
}

/// One round of the thread's work, for a simulation, which has no threads.
#[cfg(test)]
pub(crate) fn step(shared: &Arc<Shared>) {
    let Some(journal) = shared.journal() else { return };
    let mut guard = journal.writer();
    let Some(writer) = guard.as_mut().filter(|writer| !writer.failed) else { return };
    writer.commit(shared, journal);
    if !writer.failed {
        writer.chores(shared, journal);
    }
}

/// The snapshot that is due, likewise.
#[cfg(test)]
pub(crate) fn step_snapshot(shared: &Shared) {
    let Some(journal) = shared.journal() else { return };
    let due = journal.by_hand.lock().expect("not poisoned").flatten();
    if let Some(last) = due.filter(|last| *last <= shared.committed_index()) {
        *journal.by_hand.lock().expect("not poisoned") = Some(None);
        take_snapshot(shared, last);
    }
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
    let (bytes, file) = written?;
    disk.rename(&temporary, &snapshot::name(index))?;
    disk.sync_directory()?;
    // The files that go had the large values until now.
    if let Err(error) = snapshot::large_values(&*file, |values| shared.rehome(values)) {
        tracing::warn!(index, error = %telemetry::chain(&error), "values not looked up in the snapshot");
    }
    mapping::unload_all();
    recovery::remove_obsolete(disk, &disk.list()?, index, u64::MAX);
    Ok(bytes)
}

fn fill_snapshot(
    shared: &Shared,
    disk: &dyn Disk,
    name: &str,
    capture: Capture,
) -> io::Result<(u64, Box<dyn DiskFile>)> {
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
    Ok((offset, file))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::engine::{self, Config, Ticket};
    use crate::log::journal::{ALONE, FAST_SYNC};
    use crate::store::Revision;
    use bytes::Bytes;
    use lifecycle::Tasks;

    fn open(directory: &std::path::Path, tasks: &Tasks) -> Arc<crate::Etcd> {
        let config = Config { data_dir: Some(directory.to_owned()), ..Config::default() };
        engine::open(config, tasks).expect("opens")
    }

    /// Puts a key; returns whether the caller was asked to write the log, and how to wait for it.
    fn put(shared: &Arc<Shared>, key: &'static str) -> (bool, Ticket) {
        let put = |transaction: &mut engine::Transaction<'_>| {
            transaction.put(key.into(), Bytes::from_static(b"value"), 0);
            Ok::<(), StoreError>(())
        };
        let (_, ticket) = shared.transact_here(put).expect("taken");
        (matches!(ticket, Ticket::Leading(_)), ticket)
    }

    /// As after a while with one writer on a fast disk.
    fn make_quiet(shared: &Shared) {
        let journal = shared.journal().expect("a log");
        // Until the thread has done with the batch before.
        drop(journal.writer());
        journal.pending().alone = ALONE;
        journal.sync_micros.store(100, Ordering::Relaxed);
    }

    #[tokio::test]
    async fn a_writer_that_is_alone_writes_the_log_itself() {
        let directory = tempfile::tempdir().expect("a directory");
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        let (led, ticket) = put(&etcd.shared, "first");
        assert!(!led, "nobody knows yet how the store is used");
        ticket.durable().await.expect("durable");

        make_quiet(&etcd.shared);
        let (led, ticket) = put(&etcd.shared, "second");
        assert!(led);
        assert!(etcd.get_now(b"second").is_some(), "visible without waiting for anybody");
        ticket.durable().await.expect("durable");

        // With others waiting, or a slow disk, it is the thread's work.
        let journal = etcd.shared.journal().expect("a log");
        make_quiet(&etcd.shared);
        journal.sync_micros.store(FAST_SYNC + 1, Ordering::Relaxed);
        let (led, slow) = put(&etcd.shared, "third");
        assert!(!led);
        slow.durable().await.expect("durable");
        make_quiet(&etcd.shared);
        let other = journal.wait_for(u64::MAX);
        let (led, ticket) = put(&etcd.shared, "fourth");
        assert!(!led);
        ticket.durable().await.expect("durable");
        drop(other);

        assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
        drop(etcd);
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        for key in ["first", "second", "third", "fourth"] {
            assert!(etcd.get_now(key.as_bytes()).is_some(), "{key} is lost");
        }
        assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
    }

    #[tokio::test]
    async fn everybody_is_told_even_if_the_first_has_gone() {
        let directory = tempfile::tempdir().expect("a directory");
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        let journal = etcd.shared.journal().expect("a log");
        // Held, so that all are in one batch; some give up before it is written.
        let at_work = journal.writer();
        let mut tickets: Vec<Ticket> = (0..100).map(|_| put(&etcd.shared, "key").1).collect();
        let mut number = 0;
        tickets.retain(|_| {
            number += 1;
            number % 7 != 0 && number < 95
        });
        drop(at_work);
        let all = futures::future::try_join_all(tickets.into_iter().map(Ticket::durable));
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("told").expect("durable");
        assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
    }

    #[tokio::test]
    async fn a_leader_leaves_its_batch_to_a_thread_at_work() {
        let directory = tempfile::tempdir().expect("a directory");
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        make_quiet(&etcd.shared);
        let journal = etcd.shared.journal().expect("a log");
        let at_work = journal.writer();
        let (led, ticket) = put(&etcd.shared, "key");
        assert!(led);
        assert!(etcd.get_now(b"key").is_none(), "not durable yet");
        drop(at_work);
        ticket.durable().await.expect("durable");
        assert!(etcd.get_now(b"key").is_some());
        assert!(tasks.drain(Duration::from_secs(10)).await.is_empty());
    }

    fn value(number: i64) -> Bytes {
        Bytes::from(vec![number as u8; 2048 + (number % 100) as usize])
    }

    /// How many of the values written at revisions from 2 on are in memory; all must be right.
    fn in_memory(etcd: &crate::Etcd, newest: Revision, keys: i64) -> usize {
        let state = etcd.shared.read();
        let mut count = 0;
        for revision in 2..=newest {
            let key = format!("key-{}", revision % keys);
            let version = state.keys.version(key.as_bytes(), revision).expect("kept");
            assert!(version.value == value(revision), "the value at {revision} is another one");
            count += usize::from(!mapping::is_mapped(&version.value));
        }
        count
    }

    #[tokio::test]
    async fn large_values_live_in_the_files_through_snapshots_and_restarts() {
        let directory = tempfile::tempdir().expect("a directory");
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        let (keys, newest) = (500, 12_000);
        for first in (2..=newest).step_by(200) {
            let put = |revision: Revision| {
                let key = Bytes::from(format!("key-{}", revision % keys));
                etcd.transact(move |transaction| {
                    transaction.put(key, value(revision), 0);
                    Ok::<(), StoreError>(())
                })
            };
            let last = newest.min(first + 199);
            futures::future::try_join_all((first..=last).map(put)).await.expect("durable");
        }
        let has_snapshot = || {
            let files = etcd.shared.journal().expect("a log").disk.list().expect("files");
            files.iter().any(|name| snapshot::parse_name(name).is_some())
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_snapshot() || etcd.shared.snapshot_running() {
            assert!(Instant::now() < deadline, "no snapshot");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let most = HOMED_AT_ONCE as usize / 2048 + 200;
        assert!(in_memory(&etcd, newest, keys) <= most);
        let old = etcd.get_at(b"key-7", 1007).expect("readable").0.expect("kept");
        assert_eq!((old.mod_revision, old.value.clone()), (1007, value(1007)));
        assert!(!mapping::is_mapped(&old.value), "what is handed out keeps a file");
        mapping::unload_all();
        assert!(in_memory(&etcd, newest, keys) <= most);

        assert!(tasks.drain(Duration::from_secs(30)).await.is_empty());
        drop(etcd);
        let tasks = Tasks::new();
        let etcd = open(directory.path(), &tasks);
        assert_eq!(in_memory(&etcd, newest, keys), 0);
        assert!(tasks.drain(Duration::from_secs(30)).await.is_empty());
    }
}
