//! The heart of the store: decides, applies, makes durable, publishes.
//!
//! The order is log, commit, apply. A write is decided under the draft's lock, on what the state will be when everything before it is committed
//! ([`draft`]); its record is queued for the log, and that is all. Once it is committed, by being durable here or, with several voters, by a
//! majority's having it, it is applied to the state, watches are told, and then the writer gets its answer. So the state never has
//! anything that a crash or another leader could take back, and nobody waits for the disk but writers. A transaction that changes nothing, or is
//! refused, may have been decided on what is not committed yet, so its answer waits as well.
//!
//! Lock order: draft, then state, then the log's queue; state, then hub.

pub mod draft;
mod transaction;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};

use self::draft::{Draft, Keys};
pub use self::transaction::Transaction;
use self::transaction::{Decided, large_bytes};
use crate::alarm;
use crate::counters::Counters;
use crate::disk::{Directory, Disk};
use crate::local::Etcd;
use crate::log::Damage;
use crate::log::codec::{LARGE, Reader, Record};
use crate::log::journal::{Answer, Journal};
use crate::log::recovery::{self, Recovered, RecoveryError};
use crate::log::snapshot::Capture;
use crate::log::writer;
use crate::mapping;
use crate::mutation::{Mutation, State};
use crate::mvcc::hub::Hub;
use crate::mvcc::lease::CHECKPOINT;
use crate::store::{Revision, StoreError};

/// How many records are applied under one lock.
const APPLY_STEP: usize = 256;

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
    /// How long the log gets at least before a snapshot takes its place.
    pub snapshot_log_bytes: u64,
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
            snapshot_log_bytes: 16 << 20,
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

/// Told of settings that have been changed: the state, and whether this server has decided it.
type OnSettings = Box<dyn Fn(&State, bool) + Send + Sync>;

pub(crate) struct Shared {
    /// What is committed.
    state: RwLock<State>,
    /// What is not.
    draft: Mutex<Draft>,
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
    closed: AtomicBool,
    out_of_space: AtomicBool,
    /// The size of the largest write that the quota refused; 0 if none since it had room.
    refused_bytes: AtomicU64,
    /// The alarms of the state's settings, a bit for each kind.
    alarms: AtomicU32,
    on_settings: OnceLock<OnSettings>,
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
    let durable = disk.is_some();
    let shared = prepare(disk, config)?;
    let log_ended = durable.then(|| writer::start(shared.clone())).transpose().map_err(OpenError::Thread)?;
    let keeper = shared.clone();
    tasks.spawn("etcd/housekeeping", |stop| async move {
        keeper.keep_house(stop).await;
        keeper.close(log_ended).await;
    });
    Ok(Arc::new(Etcd { shared }))
}

/// The same without threads and tasks: whoever has it does the log's work ([`writer::step`]).
#[cfg(test)]
pub(crate) fn open_by_hand(disk: Arc<dyn Disk>, config: Config) -> Result<Arc<Shared>, OpenError> {
    let shared = prepare(Some(disk), config)?;
    if let Some(journal) = shared.journal() {
        *journal.by_hand.lock().expect("not poisoned") = Some(None);
    }
    Ok(shared)
}

/// What is on a disk, ready to be worked on.
fn prepare(disk: Option<Arc<dyn Disk>>, config: Config) -> Result<Arc<Shared>, OpenError> {
    let agreed = config.agreed.unwrap_or(u64::MAX);
    let recovered =
        disk.as_ref().map(|disk| recovery::recover(&**disk, Instant::now(), agreed)).transpose()?;
    let (state, mut draft, active, snapshot_bytes) = match recovered {
        Some(Recovered { state, draft, active, snapshot_bytes }) => {
            (state, draft, Some(active), snapshot_bytes)
        }
        None => {
            let state = State::default();
            let draft = Draft::after(&state);
            (state, draft, None, 0)
        }
    };
    let revision = state.keys.revision();
    let journal = disk.map(Journal::new);
    if let Some(journal) = journal.as_ref().filter(|_| config.agreed.is_some()) {
        journal.hold();
        draft.standby = Some(not_leader());
    }
    let shared = Arc::new(Shared {
        hub: Mutex::new(Hub::new(revision)),
        visible: AtomicI64::new(revision),
        durable: AtomicU64::new(draft.index()),
        committed: watch::Sender::new(state.index),
        attended: AtomicBool::new(config.agreed.is_some()),
        waiting: Mutex::new(()),
        more_committed: Condvar::new(),
        alarms: AtomicU32::new(alarm::kinds(&state.settings)),
        on_settings: OnceLock::new(),
        quota_refused: Notify::new(),
        state: RwLock::new(state),
        draft: Mutex::new(draft),
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
    if let Some(active) = active {
        writer::install(&shared, active);
    }
    Ok(shared)
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

    /// What is not committed. Locked before the state.
    pub fn draft(&self) -> MutexGuard<'_, Draft> {
        self.draft.lock().expect("a transaction was half decided: the log must not be used any more")
    }

    pub fn hub(&self) -> MutexGuard<'_, Hub> {
        self.hub.lock().expect("a delivery was half made: the watches must not be used any more")
    }

    pub fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Whether `more` bytes may be added: the disk has space and the quota is not used up. Once the quota has
    /// refused a write, a smaller one does not slip past it: all wait until there is room for the refused one.
    pub fn check_space(&self, keys: Keys<'_>, more: usize) -> Result<(), StoreError> {
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

    /// Lets somebody know of every change of the settings, before anybody else sees it. Once.
    pub fn on_settings(&self, told: impl Fn(&State, bool) + Send + Sync + 'static) {
        let state = self.read();
        told(&state, false);
        // Nobody is told twice.
        let _ = self.on_settings.set(Box::new(told));
    }

    /// The state's settings are others than before.
    fn note_settings(&self, state: &State, own: bool) {
        self.alarms.store(alarm::kinds(&state.settings), Ordering::Release);
        if let Some(told) = self.on_settings.get() {
            told(state, own);
        }
    }

    /// Runs a transaction: what came of it, which nobody may be told before the ticket says so. An error that comes after a change does not undo
    /// the change.
    pub fn transact<T, E: From<StoreError>>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
    ) -> Result<(Result<T, E>, Ticket), E> {
        self.run(decide, false, false)
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
    ) -> Result<(Result<T, E>, Ticket), E> {
        let (answer, ticket) = self.run(decide, true, false)?;
        if let Ticket::Leading(_) = &ticket {
            writer::lead(self);
        }
        Ok((answer, ticket))
    }

    fn run<T, E: From<StoreError>>(
        &self,
        decide: impl FnOnce(&mut Transaction<'_>) -> Result<T, E>,
        would_lead: bool,
        takes_office: bool,
    ) -> Result<(Result<T, E>, Ticket), E> {
        self.check_open()?;
        let mut draft = self.draft();
        if takes_office {
            draft.standby = None;
            self.write().leases.restart(Instant::now());
        }
        if let Some(refusal) = draft.refusal.as_ref().or(draft.standby.as_ref()) {
            return Err(refusal.clone().into());
        }
        let state = self.read();
        let mut transaction = Transaction::new(&state, &mut draft);
        let answer = decide(&mut transaction);
        let Decided { record, content, large } = transaction.decided();
        drop(state);
        let changed = !record.is_empty();
        if changed {
            draft.push(content, true);
        }
        let ticket = match &self.journal {
            Some(journal) if changed => match journal.append(draft.index(), &record, large, would_lead) {
                (receiver, true) => Ticket::Leading(receiver),
                (receiver, false) => Ticket::Waiting(receiver),
            },
            // Under the draft's lock, as applying is: whoever applies what it waits for answers it.
            Some(journal) if !draft.is_empty() => Ticket::Waiting(journal.wait_for(draft.index())),
            _ => Ticket::Ready,
        };
        drop(draft);
        if changed && self.journal.is_none() {
            self.apply_to(u64::MAX);
        }
        if changed {
            self.stir();
        }
        Ok((answer, ticket))
    }

    /// Takes over records that another server has decided on: a batch as the log has it, from an index on. Those that are here
    /// already are passed over.
    pub fn take_over(&self, first_index: u64, batch: &[u8]) -> Result<Ticket, TakeOverError> {
        self.check_open()?;
        let mut reader = Reader::new(batch);
        let mut ticket = Ticket::Ready;
        let mut draft = self.draft();
        if let Some(refusal) = &draft.refusal {
            return Err(refusal.clone().into());
        }
        let state = self.read();
        let mut index = first_index;
        while !reader.is_empty() {
            let bytes = reader.slice()?;
            if index > draft.index() + 1 {
                return Err(Damage::Gap { expected: draft.index() + 1, found: index }.into());
            }
            if index > draft.index() {
                let record = Record::decode(bytes)?;
                let large = record.mutations.iter().map(large_bytes).sum();
                draft.add(&state, record)?;
                if let Some(journal) = &self.journal {
                    ticket = Ticket::Waiting(journal.append(index, bytes, large, false).0);
                }
            }
            index += 1;
        }
        Ok(ticket)
    }

    /// Applies the records up to one, which are committed, and tells the watches.
    pub fn apply_to(&self, index: u64) {
        while self.apply_some(index) {}
        self.publish(self.visible());
    }

    /// A few at a time, so that nobody waits for long. Returns whether there are more.
    fn apply_some(&self, index: u64) -> bool {
        let now = Instant::now();
        let mut draft = self.draft();
        if draft.is_empty() {
            return false;
        }
        let mut state = self.write();
        let (mut puts, mut deletes, mut settings, mut own) = (0, 0, 0, true);
        let mut left = APPLY_STEP;
        while left > 0
            && let Some(entry) = draft.next_up_to(index)
        {
            left -= 1;
            for mutation in entry.record.mutations {
                match &mutation {
                    Mutation::Put { .. } => puts += 1,
                    Mutation::Delete { .. } => deletes += 1,
                    Mutation::Setting { .. } => (settings, own) = (settings + 1, own && entry.own),
                    _ => {}
                }
                state.apply(entry.record.revision, mutation, now);
            }
            state.index = entry.index;
        }
        self.visible.fetch_max(state.keys.revision(), Ordering::AcqRel);
        if settings > 0 {
            self.note_settings(&state, own);
        }
        if state.keys.has_superfluous() {
            self.wake_housekeeping();
        }
        self.counters.puts.add(puts);
        self.counters.deletes.add(deletes);
        left == 0
    }

    /// Tells the watches of everything up to a revision.
    pub fn publish(&self, revision: Revision) {
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
            for (id, seconds) in transaction.due_checkpoints(tolerance) {
                transaction.apply(Mutation::CheckpointLease { id, seconds: Some(seconds) });
            }
            Ok(())
        });
        if let Err(error) = recorded {
            tracing::warn!(error = %telemetry::chain(&error), "remaining time of leases not recorded");
        }
    }

    async fn revoke_expired(&self, id: i64) -> Result<(), StoreError> {
        let (revoked, ticket) = self.transact(|transaction| -> Result<(), StoreError> {
            // Or it was kept alive in the meantime, or revoked by someone else.
            if transaction.is_expired(id) { transaction.revoke_lease(id) } else { Ok(()) }
        })?;
        self.counters.leases_expired.increment();
        ticket.durable().await?;
        revoked
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
        self.draft().refusal = refusal;
    }

    /// Forgets the records after one, which are not committed and not in the log any more; `also` runs under the same lock.
    pub fn forget_after(&self, index: u64, also: impl FnOnce()) {
        let mut draft = self.draft();
        draft.truncate(&self.read(), index);
        also();
    }

    pub fn snapshot_running(&self) -> bool {
        self.snapshotting.load(Ordering::Acquire)
    }

    pub fn set_snapshot_bytes(&self, bytes: u64) {
        self.snapshot_bytes.store(bytes, Ordering::Release);
    }

    /// Whether the log's own snapshot is being written.
    pub fn set_snapshot_running(&self, running: bool) {
        self.snapshotting.store(running, Ordering::Release);
    }

    /// The state, all of it committed; compaction is held until [`Shared::release_hold`].
    pub fn capture_and_hold(&self) -> Capture {
        let mut state = self.write();
        state.holds += 1;
        Capture::of(&state)
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

    /// From now on durable records are committed only once [`Shared::commit_to`] says so.
    pub fn hold(&self) {
        let _draft = self.draft();
        if let Some(journal) = &self.journal {
            journal.hold();
        }
    }

    /// The last record of the log, committed or not.
    pub fn last_index(&self) -> u64 {
        self.draft().index()
    }

    /// A setting as it will be once everything in the log is committed.
    pub fn future_setting(&self, name: &[u8]) -> Option<Bytes> {
        let draft = self.draft();
        draft.settings(&self.read()).get(name).cloned()
    }

    /// Whether a setting is changed by what is applied when the log is committed up to a record.
    pub fn will_change(&self, name: &[u8], index: u64) -> bool {
        self.draft().changes_setting(name, index.min(self.durable_index()))
    }

    /// Up to this record everything is agreed on.
    pub fn commit_to(&self, index: u64) {
        let index = index.min(self.durable_index());
        if let Some(journal) = &self.journal
            && index > self.committed_index()
        {
            writer::show(self, journal, index);
        }
    }

    /// The last record that is committed and applied.
    pub fn committed_index(&self) -> u64 {
        *self.committed.borrow()
    }

    /// Waits until a record is applied.
    pub async fn committed_up_to(&self, index: u64) {
        // The sender lives as long as this does.
        let _ = self.committed.subscribe().wait_for(|committed| *committed >= index).await;
    }

    /// Waits, holding up the thread, until a record is applied; `false` if the store closes.
    pub fn wait_until_applied(&self, index: u64) -> bool {
        while self.committed_index() < index {
            if self.check_open().is_err() {
                return false;
            }
            let waiting = self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            // Told when more is committed; the store may also be closed.
            drop(self.more_committed.wait_timeout(waiting, Duration::from_millis(100)));
        }
        true
    }

    /// Whether another member decides.
    pub fn is_standby(&self) -> bool {
        self.draft().standby.is_some()
    }

    /// Lets another member decide, or this one again. Returns the last record.
    pub fn set_standby(&self, standby: bool) -> u64 {
        let mut draft = self.draft();
        draft.standby = standby.then(not_leader);
        let index = draft.index();
        drop(draft);
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
        self.draft().refusal.clone()
    }
}
