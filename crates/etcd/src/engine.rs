//! The heart of the store: decides, applies, makes durable, publishes.
//!
//! A write runs under the state's write lock: it looks at the newest state, makes its mutations, queues its record and
//! leaves. It becomes *visible* only once the record is durable: readers read at the visible revision (the history makes
//! that free), watches are told, and then the writer gets its answer. So nothing is ever shown that a crash could take
//! back, and nobody waits for the disk but writers. A transaction that changes nothing may have seen what is not durable
//! yet, so its answer waits as well.
//!
//! Lock order: state, then the log's queue; state, then hub.

mod transaction;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};

pub use self::transaction::Transaction;
use self::transaction::large_bytes;
use crate::alarm;
use crate::counters::Counters;
use crate::disk::{Directory, Disk};
use crate::local::Etcd;
use crate::log::Damage;
use crate::log::codec::{LARGE, Reader, Record};
use crate::log::journal::{Answer, Journal};
use crate::log::recovery::{self, Committed, Recovered, RecoveryError};
use crate::log::snapshot::Capture;
use crate::log::writer;
use crate::mapping;
use crate::mutation::{Mutation, State};
use crate::mvcc::hub::Hub;
use crate::mvcc::keyspace::Keyspace;
use crate::mvcc::lease::CHECKPOINT;
use crate::store::{Revision, StoreError};

/// How many changes are looked at under one lock while memory is freed after a compaction.
const PRUNE_STEP: usize = 500;

/// How many values get another home under one lock.
const REHOME_STEP: usize = 64;
/// How many bytes of large values are read before the memory that their files' pages take is given back.
const UNLOAD_AFTER: u64 = 4 << 20;

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the log and the snapshots are; `None` keeps everything in memory only.
    pub data_dir: Option<PathBuf>,
    /// The most bytes of data (history included) before writes are refused.
    pub quota_bytes: u64,
    /// The largest write taken.
    pub max_request_bytes: usize,
    /// How often the log is told how much time leases have left: after a crash a lease may have this much more.
    pub lease_checkpoints: Duration,
    /// Whether a used-up quota refuses writes until somebody has said that there is room, as etcd's does; else until there is.
    pub alarm_stays: bool,
    /// For one of several members: how far its log is known to be agreed on. Nothing after that is shown until it is.
    pub agreed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: None,
            quota_bytes: 2 << 30,
            max_request_bytes: 3 << 19,
            lease_checkpoints: CHECKPOINT,
            alarm_stays: false,
            agreed: None,
        }
    }
}

/// Why a store could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The directory cannot be used.
    #[error("cannot open the data directory {}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process has it.
    #[error("the data directory {} is in use by another process", path.display())]
    InUse {
        /// Which one.
        path: PathBuf,
    },
    /// Its content cannot be read.
    #[error("cannot read the store's data")]
    Recovery(#[from] RecoveryError),
    /// No thread could be started.
    #[error("cannot start the log's thread")]
    Thread(#[source] std::io::Error),
}

/// Why another server's records cannot be taken over.
#[derive(Debug, Error)]
pub enum TakeOverError {
    /// The store takes none.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// They do not fit to what is here.
    #[error("the records that came do not fit")]
    Damage(#[from] Damage),
}

pub(crate) struct Shared {
    state: RwLock<State>,
    hub: Mutex<Hub>,
    visible: AtomicI64,
    durable: AtomicU64,
    /// What is durable, or with several voters what they have agreed on.
    committed: watch::Sender<u64>,
    /// Whether somebody tells other members what becomes durable.
    attended: AtomicBool,
    /// For threads that wait for it.
    waiting: Mutex<()>,
    more_committed: Condvar,
    /// How often records were made void.
    rewinds: AtomicU64,
    closed: AtomicBool,
    out_of_space: AtomicBool,
    /// The size of the largest write that the quota refused; 0 if none since it had room.
    refused_bytes: AtomicU64,
    /// The alarms of the state's settings, a bit for each kind.
    alarms: AtomicU32,
    /// Told when the quota has refused a write and the alarm for it should be raised.
    pub quota_refused: Notify,
    snapshotting: AtomicBool,
    snapshot_bytes: AtomicU64,
    mapped_reads: AtomicU64,
    housekeeping: Notify,
    /// Told when records have come or have become durable, if attended.
    pub stirred: Notify,
    journal: Option<Journal>,
    pub config: Config,
    pub counters: Counters,
}

/// Opens a store; its background work runs on `tasks`, and it closes when they stop.
pub fn open(config: Config, tasks: &Tasks) -> Result<Arc<Etcd>, OpenError> {
    let disk: Option<Arc<dyn Disk>> = match &config.data_dir {
        Some(path) => match Directory::open(path) {
            Ok(Some(directory)) => Some(Arc::new(directory)),
            Ok(None) => return Err(OpenError::InUse { path: path.clone() }),
            Err(source) => return Err(OpenError::Directory { path: path.clone(), source }),
        },
        None => None,
    };
    open_on(disk, config, tasks)
}

/// Opens a store on any disk; without one it lives in memory.
pub fn open_on(disk: Option<Arc<dyn Disk>>, config: Config, tasks: &Tasks) -> Result<Arc<Etcd>, OpenError> {
    let agreed = config.agreed.unwrap_or(u64::MAX);
    let recovered =
        disk.as_ref().map(|disk| recovery::recover(&**disk, Instant::now(), agreed)).transpose()?;
    let (mut state, active, snapshot_bytes, committed) = match recovered {
        Some(Recovered { state, active, snapshot_bytes, committed }) => {
            (state, Some(active), snapshot_bytes, committed)
        }
        None => (State::default(), None, 0, Committed::default()),
    };
    let revision = if disk.is_some() { committed.revision } else { state.keys.revision() };
    let journal = disk.map(Journal::new);
    if let Some(journal) = journal.as_ref().filter(|_| config.agreed.is_some()) {
        journal.hold(committed.after);
        state.standby = Some(not_leader());
    }
    let shared = Arc::new(Shared {
        hub: Mutex::new(Hub::new(revision)),
        visible: AtomicI64::new(revision),
        durable: AtomicU64::new(state.index),
        committed: watch::Sender::new(committed.index),
        attended: AtomicBool::new(config.agreed.is_some()),
        waiting: Mutex::new(()),
        more_committed: Condvar::new(),
        rewinds: AtomicU64::new(0),
        alarms: AtomicU32::new(alarm::kinds(&state.settings)),
        quota_refused: Notify::new(),
        state: RwLock::new(state),
        closed: AtomicBool::new(false),
        out_of_space: AtomicBool::new(false),
        refused_bytes: AtomicU64::new(0),
        snapshotting: AtomicBool::new(false),
        snapshot_bytes: AtomicU64::new(snapshot_bytes),
        mapped_reads: AtomicU64::new(0),
        housekeeping: Notify::new(),
        stirred: Notify::new(),
        journal,
        config,
        counters: Counters::default(),
    });
    let log_ended =
        active.map(|active| writer::start(shared.clone(), active)).transpose().map_err(OpenError::Thread)?;
    let keeper = shared.clone();
    tasks.spawn("etcd/housekeeping", |stop| async move {
        keeper.keep_house(stop).await;
        keeper.close(log_ended).await;
    });
    Ok(Arc::new(Etcd { shared }))
}

/// Resolves when a write, and everything it may have seen, is durable.
pub enum Ticket {
    /// It is already.
    Ready,
    /// The log will tell.
    Waiting(oneshot::Receiver<Answer>),
    /// The log will tell once whoever has this has called [`writer::lead`].
    Leading(oneshot::Receiver<Answer>),
}

impl Ticket {
    /// Waits for it.
    pub async fn durable(self) -> Result<(), StoreError> {
        match self {
            Self::Ready => Ok(()),
            Self::Waiting(receiver) | Self::Leading(receiver) => {
                // The others are told now, on this thread.
                receiver.await.unwrap_or(Err(StoreError::Closed)).map(drop)
            }
        }
    }
}

impl Shared {
    /// The newest durable revision.
    pub fn visible(&self) -> Revision {
        self.visible.load(Ordering::Acquire)
    }

    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("a change was half applied: the state must not be used any more")
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("a change was half applied: the state must not be used any more")
    }

    pub fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().expect("a delivery was half made: the watches must not be used any more")
    }

    pub fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Whether `more` bytes may be added: the disk has space and the quota is not used up. Once the quota has
    /// refused a write, a smaller one does not slip past it: all wait until there is room for the refused one.
    pub fn check_space(&self, keys: &Keyspace, more: usize) -> Result<(), StoreError> {
        if self.is_out_of_space() || self.has_alarm(alarm::NOSPACE) {
            return Err(StoreError::NoSpace);
        }
        let refused = self.refused_bytes.load(Ordering::Acquire);
        if refused > 0 && self.config.alarm_stays {
            return Err(StoreError::NoSpace);
        }
        let needed = refused.max(more as u64);
        if keys.bytes() + needed > self.config.quota_bytes {
            self.refused_bytes.store(needed, Ordering::Release);
            if refused == 0 {
                tracing::error!(quota = self.config.quota_bytes, "the quota is used up: writes are refused");
            }
            if self.config.alarm_stays {
                self.quota_refused.notify_one();
            }
            return Err(StoreError::NoSpace);
        }
        if refused > 0 {
            self.end_quota_alarm();
        }
        Ok(())
    }

    /// Forgets that the quota refused a write; the next one that does not fit raises the alarm again.
    pub fn end_quota_alarm(&self) {
        self.refused_bytes.store(0, Ordering::Release);
    }

    /// Whether writes are refused for lack of space. A quota that has room again ends its alarm.
    pub fn has_space_alarm(&self) -> bool {
        let refused = self.refused_bytes.load(Ordering::Acquire);
        if self.has_alarm(alarm::NOSPACE) || refused > 0 && self.config.alarm_stays {
            return true;
        }
        let over_quota = refused > 0 && self.read().keys.bytes() + refused > self.config.quota_bytes;
        if refused > 0 && !over_quota {
            self.end_quota_alarm();
        }
        self.is_out_of_space() || over_quota
    }

    /// Whether there is an alarm of a kind, for any member.
    pub fn has_alarm(&self, kind: i32) -> bool {
        self.alarms.load(Ordering::Acquire) >> kind & 1 == 1
    }

    /// The state's settings may have other alarms than before.
    fn note_alarms(&self, state: &State) {
        self.alarms.store(alarm::kinds(&state.settings), Ordering::Release);
    }

    /// Runs a transaction. An error that comes after a change does not undo the change.
    pub fn transact<T, E: From<StoreError>>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<(T, Ticket), E> {
        let (answer, ticket) = self.run(decide, false, false)?;
        Ok((answer?, ticket))
    }

    /// Takes office: the first transaction of a leader, before anybody else's. Returns the index of its record.
    pub fn take_office(&self, decide: impl FnOnce(&mut Transaction<'_>)) -> Result<u64, StoreError> {
        let decide = |transaction: &mut Transaction<'_>| -> Result<u64, StoreError> {
            decide(transaction);
            Ok(transaction.next_index())
        };
        let (index, _) = self.run(decide, false, true)?;
        self.wake_housekeeping();
        index
    }

    /// Like [`Shared::transact`], but a caller that is the only one to write does the log's work itself instead of waiting
    /// for the log's thread; its own thread is then held up by the disk.
    pub fn transact_here<T, E: From<StoreError>>(
        self: &Arc<Self>,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<(T, Ticket), E> {
        let (answer, ticket) = self.run(decide, true, false)?;
        if let Ticket::Leading(_) = &ticket {
            writer::lead(self);
        }
        Ok((answer?, ticket))
    }

    fn run<T, E: From<StoreError>>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
        would_lead: bool,
        takes_office: bool,
    ) -> Result<(Result<T, E>, Ticket), E> {
        self.check_open()?;
        let mut state = self.write();
        if takes_office {
            state.standby = None;
            state.leases.restart(Instant::now());
        }
        if let Some(refusal) = state.refusal.as_ref().or(state.standby.as_ref()) {
            return Err(refusal.clone().into());
        }
        let revision = state.keys.next_revision();
        let mut transaction = Transaction {
            state: &mut state,
            revision,
            now: Instant::now(),
            record: Vec::new(),
            large: 0,
            puts: 0,
            deletes: 0,
            settings: 0,
        };
        let answer = decide(&mut transaction);
        let settings = transaction.settings;
        let (record, large) = (transaction.record, transaction.large);
        self.counters.puts.add(transaction.puts);
        self.counters.deletes.add(transaction.deletes);
        let revision = state.keys.revision();
        let changed = !record.is_empty();
        if changed {
            state.index += 1;
        }
        if settings > 0 {
            self.note_alarms(&state);
        }
        let ticket = match &self.journal {
            Some(journal) if changed => {
                match journal.append(state.index, revision, &record, large, would_lead) {
                    (receiver, true) => Ticket::Leading(receiver),
                    (receiver, false) => Ticket::Waiting(receiver),
                }
            }
            Some(journal) if state.index > self.committed_index() => {
                Ticket::Waiting(journal.wait_for(state.index))
            }
            _ => Ticket::Ready,
        };
        drop(state);
        if changed {
            self.stir();
        }
        if changed && self.journal.is_none() {
            self.publish(revision);
        }
        Ok((answer, ticket))
    }

    /// Takes over records that another server has decided on: a batch as the log has it, from an index on. Those that are here
    /// already are passed over.
    pub fn take_over(&self, first_index: u64, batch: &[u8]) -> Result<Ticket, TakeOverError> {
        self.check_open()?;
        let now = Instant::now();
        let mut reader = Reader::new(batch);
        let mut ticket = Ticket::Ready;
        let mut state = self.write();
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone().into());
        }
        let mut index = first_index;
        while !reader.is_empty() {
            let bytes = reader.slice()?;
            if index > state.index + 1 {
                return Err(Damage::Gap { expected: state.index + 1, found: index }.into());
            }
            if index > state.index {
                let record = Record::decode(bytes)?;
                let large = record.mutations.iter().map(large_bytes).sum();
                recovery::apply(&mut state, record, now)?;
                state.index = index;
                let revision = state.keys.revision();
                if let Some(journal) = &self.journal {
                    ticket = Ticket::Waiting(journal.append(index, revision, bytes, large, false).0);
                }
            }
            index += 1;
        }
        let superfluous = state.keys.has_superfluous();
        self.note_alarms(&state);
        drop(state);
        if superfluous {
            self.wake_housekeeping();
        }
        Ok(ticket)
    }

    /// Makes everything up to a revision visible and tells the watches.
    pub fn publish(&self, revision: Revision) {
        self.visible.fetch_max(revision, Ordering::AcqRel);
        let state = self.read();
        let mut hub = self.hub();
        let from = hub.dispatched() + 1;
        if from <= revision {
            hub.dispatch(state.keys.all_events(from, revision), revision);
        }
    }

    /// Says where values that are in memory also are on the disk, a few at a time so that nobody waits for long.
    pub fn rehome(&self, values: Vec<(Bytes, Revision, Bytes)>) {
        let mut values = values.into_iter().peekable();
        while values.peek().is_some() {
            let mut state = self.write();
            for (key, revision, value) in values.by_ref().take(REHOME_STEP) {
                state.keys.rehome(&key, revision, value);
            }
        }
    }

    /// Counts bytes of large values that were read, which may be in mapped files: what has come into memory that way is
    /// given back now and then.
    pub fn note_read(&self, bytes: usize) {
        if bytes >= LARGE && self.mapped_reads.fetch_add(bytes as u64, Ordering::Relaxed) > UNLOAD_AFTER {
            self.mapped_reads.store(0, Ordering::Relaxed);
            mapping::unload_all();
        }
    }

    /// Tells housekeeping to look again: a lease may end earlier, or there is something to free.
    pub fn wake_housekeeping(&self) {
        self.housekeeping.notify_one();
    }

    async fn keep_house(&self, stop: Stop) {
        let interval = self.config.lease_checkpoints;
        let mut checkpoint_at = Instant::now() + interval;
        while !stop.is_requested() {
            // Registered before looking, so that a grant in between is not missed.
            let woken = self.housekeeping.notified();
            while self.prune_some() {
                tokio::task::yield_now().await;
            }
            let (next, checkpoints) = {
                let state = self.read();
                (state.leases.next_expiry(), state.leases.wants_checkpoints(interval))
            };
            // The member that decides counts the time.
            let next = next.filter(|_| !self.is_standby());
            let next = next.map(|next| if checkpoints { next.min(checkpoint_at) } else { next });
            let expiry = async {
                match next {
                    Some(when) => tokio::time::sleep_until(when.into()).await,
                    None => std::future::pending().await,
                }
            };
            // Every arm may be dropped: nothing is held across the wait.
            tokio::select! {
                () = stop.requested() => return,
                () = woken => continue,
                () = expiry => {}
            }
            let now = Instant::now();
            if checkpoint_at <= now {
                checkpoint_at = now + interval;
                self.checkpoint_leases(interval);
            }
            let expired = self.read().leases.expired(now);
            for id in expired {
                if let Err(error) = self.revoke_expired(id).await {
                    tracing::warn!(lease = id, error = %telemetry::chain(&error), "expired lease not revoked");
                    stop.or(tokio::time::sleep(Duration::from_secs(1))).await;
                }
            }
        }
    }

    fn prune_some(&self) -> bool {
        let wanted = self.read().keys.has_superfluous();
        wanted && self.write().prune(PRUNE_STEP)
    }

    /// Records how much time leases have left, if the log overstates it by `tolerance`. Nobody waits for it.
    fn checkpoint_leases(&self, tolerance: Duration) {
        let due = self.read().leases.due_checkpoints(Instant::now(), tolerance);
        if due.is_empty() {
            return;
        }
        let recorded = self.transact(|transaction| -> Result<(), StoreError> {
            // Looked at again: a lease may have been kept alive since.
            for (id, seconds) in transaction.leases().due_checkpoints(transaction.now(), tolerance) {
                transaction.apply(Mutation::CheckpointLease { id, seconds: Some(seconds) });
            }
            Ok(())
        });
        if let Err(error) = recorded {
            tracing::warn!(error = %telemetry::chain(&error), "remaining time of leases not recorded");
        }
    }

    async fn revoke_expired(&self, id: i64) -> Result<(), StoreError> {
        let ((), ticket) = self.transact(|transaction| match transaction.leases().get(id) {
            Some(lease) if lease.expires <= transaction.now() => transaction.revoke_lease(id),
            // Kept alive in the meantime, or revoked by someone else.
            _ => Ok(()),
        })?;
        self.counters.leases_expired.increment();
        ticket.durable().await
    }

    async fn close(&self, log_ended: Option<oneshot::Receiver<()>>) {
        if self.journal.is_some() && !self.is_standby() {
            self.checkpoint_leases(Duration::ZERO);
        }
        self.closed.store(true, Ordering::Release);
        if let Some(journal) = &self.journal {
            journal.close();
        }
        if let Some(ended) = log_ended {
            // An error means that the thread is gone: that is what is waited for.
            let _ = ended.await;
        }
        self.hub().close();
    }
}

/// What the log's thread needs.
impl Shared {
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    pub fn set_durable(&self, index: u64) {
        self.durable.store(index, Ordering::Release);
    }

    pub fn set_committed(&self, index: u64) {
        self.committed.send_if_modified(|committed| {
            let higher = index > *committed;
            *committed = index.max(*committed);
            higher
        });
        self.more_committed.notify_all();
    }

    pub fn durable_index(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub fn is_out_of_space(&self) -> bool {
        self.out_of_space.load(Ordering::Acquire)
    }

    /// Returns what it was before.
    pub fn set_out_of_space(&self, value: bool) -> bool {
        self.out_of_space.swap(value, Ordering::AcqRel)
    }

    /// Refuses transactions, or takes them again.
    pub fn block(&self, refusal: Option<StoreError>) {
        self.write().refusal = refusal;
    }

    /// Puts another state in place of the current one; `also` runs under the same lock.
    pub fn replace_state(&self, replacement: State, also: impl FnOnce()) {
        let mut state = self.write();
        let holds = state.holds;
        let refusal = state.refusal.take();
        let standby = state.standby.take();
        *state = State { holds, refusal, standby, ..replacement };
        self.note_alarms(&state);
        also();
    }

    pub fn snapshot_running(&self) -> bool {
        self.snapshotting.load(Ordering::Acquire)
    }

    pub fn set_snapshot_bytes(&self, bytes: u64) {
        self.snapshot_bytes.store(bytes, Ordering::Release);
    }

    /// Captures the state for the log's own snapshot and holds compaction; `also` runs under the same lock.
    pub fn capture(&self, also: impl FnOnce()) -> Capture {
        let mut state = self.write();
        state.holds += 1;
        self.snapshotting.store(true, Ordering::Release);
        also();
        Capture::of(&state)
    }

    /// Ends what [`Shared::capture`] began.
    pub fn release_compaction(&self) {
        self.release_hold();
        self.snapshotting.store(false, Ordering::Release);
    }

    /// Lets compaction free memory again.
    pub fn release_hold(&self) {
        let mut state = self.write();
        state.holds = state.holds.saturating_sub(1);
        drop(state);
        self.wake_housekeeping();
    }
}

/// Why a member that does not lead takes no transaction. Nothing has come of it: it may be sent to the one that does.
pub(crate) fn not_leader() -> StoreError {
    StoreError::Unavailable("not leader".to_owned())
}

/// What a member among several needs: [`crate::replication`] decides.
impl Shared {
    /// Tells whoever looks after the other members, if anybody does.
    pub fn stir(&self) {
        if self.is_attended() {
            self.stirred.notify_one();
        }
    }

    /// Whether anybody does.
    pub fn is_attended(&self) -> bool {
        self.attended.load(Ordering::Relaxed)
    }

    /// Somebody looks after other members from now on.
    pub fn attend(&self) {
        self.attended.store(true, Ordering::Relaxed);
    }

    /// From now on durable records are shown only once [`Shared::commit_to`] says so.
    pub fn hold(&self) {
        let state = self.write();
        if let Some(journal) = &self.journal {
            let uncommitted =
                (state.index > self.committed_index()).then(|| (state.index, state.keys.revision()));
            journal.hold(uncommitted.into_iter().collect());
        }
    }

    /// Up to this record everything is agreed on.
    pub fn commit_to(&self, index: u64) {
        let index = index.min(self.durable_index());
        if let Some(journal) = &self.journal
            && index > self.committed_index()
        {
            writer::commit(self, journal, index);
        }
    }

    /// The last record that is shown.
    pub fn committed_index(&self) -> u64 {
        *self.committed.borrow()
    }

    /// Waits until a record is shown.
    pub async fn committed_up_to(&self, index: u64) {
        // The sender lives as long as this does.
        let _ = self.committed.subscribe().wait_for(|committed| *committed >= index).await;
    }

    /// How often records were made void. Changes only while the writer is held.
    pub fn rewinds(&self) -> u64 {
        self.rewinds.load(Ordering::Acquire)
    }

    /// Records are made void now.
    pub fn note_rewind(&self) {
        self.rewinds.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits, holding up the thread, until a record is agreed on; `false` if records have been made void since there were so many `rewinds`, or
    /// the store closes.
    pub fn wait_until_committed(&self, index: u64, rewinds: u64) -> bool {
        while self.rewinds() == rewinds && self.committed_index() < index {
            if self.check_open().is_err() {
                return false;
            }
            let waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Told when more is committed; the store may also be closed or rewound.
            drop(self.more_committed.wait_timeout(waiting, Duration::from_millis(100)));
        }
        self.rewinds() == rewinds
    }

    /// Whether another member decides.
    pub fn is_standby(&self) -> bool {
        self.read().standby.is_some()
    }

    /// Lets another member decide, or this one again. Returns the last record.
    pub fn set_standby(&self, standby: bool) -> u64 {
        let mut state = self.write();
        state.standby = standby.then(not_leader);
        let index = state.index;
        drop(state);
        self.wake_housekeeping();
        index
    }

    /// Tells everybody who waits for a record that nobody knows what came of it.
    pub fn abandon(&self, error: &StoreError) {
        if let Some(journal) = &self.journal {
            writer::abandon(journal, error);
        }
    }

    /// Makes the records after one void, once all are durable. Holds up the thread.
    pub fn rewind(&self, after: u64, error: &StoreError) -> Result<(), RecoveryError> {
        match &self.journal {
            Some(journal) => writer::rewind(self, journal, after, error),
            None => Ok(()),
        }
    }

    /// Why the log cannot be written, if so.
    pub fn failure(&self) -> Option<StoreError> {
        self.read().refusal.clone()
    }

    /// Captures the state and holds compaction until [`Shared::release_hold`]. The ticket tells when all of it is shown: only then may it be used.
    pub fn capture_and_hold(&self) -> (Capture, Ticket) {
        let mut state = self.write();
        state.holds += 1;
        let ticket = match &self.journal {
            Some(journal) if state.index > self.committed_index() => {
                Ticket::Waiting(journal.wait_for(state.index))
            }
            _ => Ticket::Ready,
        };
        (Capture::of(&state), ticket)
    }
}
