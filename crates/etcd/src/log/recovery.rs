//! Start-up: the newest snapshot, then the log after it.
//!
//! A torn end of the last log file is cut off with a warning: nobody was told that it had been written. Anything else
//! that does not fit refuses to start, naming file and offset; guessing would lose acknowledged writes.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use thiserror::Error;

use crate::disk::{Disk, DiskFile};
use crate::engine::draft::Draft;
use crate::log::codec::Record;
use crate::log::segment::{self, End, ReadError};
use crate::log::torn::{self, Rest};
use crate::log::{Corruption, Damage, snapshot};
use crate::mutation::{Mutation, State};

/// Why the state could not be rebuilt.
#[derive(Debug, Error)]
pub enum RecoveryError {
    /// The disk failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The content is damaged.
    #[error(
        "the store's data is damaged and nothing was changed; \
         if there are other members, remove this one from the cluster, add it again and start it with an empty data directory \
         and --initial-cluster-state existing; if not, restore a backup into an empty data directory (etcd snapshot restore)"
    )]
    Corruption(#[from] Corruption),
}

/// The log file that is being written to.
pub struct Active {
    /// The file.
    pub file: Box<dyn DiskFile>,
    /// Where the next batch goes.
    pub offset: u64,
    /// The index of the file's first record.
    pub first_index: u64,
}

/// What was found on the disk.
pub struct Recovered {
    /// The state: what is committed.
    pub state: State,
    /// The records after it.
    pub draft: Draft,
    /// Where to go on.
    pub active: Active,
    /// The size of the snapshot that was read, or 0.
    pub snapshot_bytes: u64,
}

/// Rebuilds the state from what is on the disk; begins a log on an empty one. What comes after `commit` has not been agreed on yet,
/// and is not applied.
pub fn recover(disk: &dyn Disk, now: Instant, commit: u64) -> Result<Recovered, RecoveryError> {
    let io = |action, name: &str| {
        let path = disk.path(name);
        move |source| RecoveryError::Io { action, path, source }
    };
    let names = disk.list().map_err(io("list", ""))?;
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        disk.remove(name).map_err(io("remove", name))?;
    }
    let newest = names.iter().filter_map(|name| snapshot::parse_name(name)).max();
    let mut snapshot_bytes = 0;
    let mut state = match newest {
        Some(index) => {
            let name = snapshot::name(index);
            let file = disk.open(&name).map_err(io("open", &name))?;
            snapshot_bytes = file.len().map_err(io("read", &name))?;
            snapshot::load(&*file, disk.path(&name), now).map_err(|error| convert(error, disk.path(&name)))?
        }
        None => State::default(),
    };
    // Only what is committed gets into a snapshot.
    let mut draft = None;
    let mut last_index = state.index;
    let mut logs: Vec<u64> = names.iter().filter_map(|name| segment::parse_name(name)).collect();
    logs.sort_unstable();
    // The last log that begins at or before the record after the snapshot is the first one needed.
    let needed = logs.iter().rposition(|first| *first <= state.index + 1).unwrap_or(0);
    let mut active = None;
    for (position, first) in logs.iter().enumerate().skip(needed) {
        let name = segment::name(*first);
        let last = position + 1 == logs.len();
        let mut file = disk.open(&name).map_err(io("open", &name))?;
        if last && unfinished(&*file).map_err(io("read", &name))? {
            // The crash came between making the file and its header: it never held a record.
            drop(file);
            disk.remove(&name).map_err(io("remove", &name))?;
            break;
        }
        if *first > last_index + 1 {
            let damage = Damage::Gap { expected: last_index + 1, found: *first };
            return Err(Corruption { file: disk.path(&name), offset: 0, damage }.into());
        }
        // What a later file begins with takes the place of what this one has there: see `cut`.
        let void = logs.get(position + 1).copied().unwrap_or(u64::MAX);
        let end = segment::read(&*file, disk.path(&name), |index, record| {
            if index <= last_index || index >= void {
                return Ok(());
            }
            last_index = index;
            if index <= commit {
                replay(&mut state, record, now)?;
                state.index = index;
                return Ok(());
            }
            draft.get_or_insert_with(|| Draft::after(&state)).add(&state, record)
        })
        .map_err(|error| convert(error, disk.path(&name)))?;
        if end.torn && !last {
            let damage = Damage::Checksum;
            return Err(Corruption { file: disk.path(&name), offset: end.offset, damage }.into());
        }
        if last {
            finish(&mut *file, &end).map_err(io("mend", &name))?;
            if end.torn {
                tracing::warn!(file = %disk.path(&name).display(), offset = end.offset, "cut off an unfinished write");
            }
            // A snapshot that came from elsewhere begins a log of its own: what is here ends before it.
            if end.next_index > last_index {
                active = Some(Active { file, offset: end.offset, first_index: *first });
            }
        }
    }
    state.leases.restart(now);
    let active = match active {
        Some(active) => active,
        None => begin(disk, last_index + 1).map_err(io("create a log in", ""))?,
    };
    remove_obsolete(disk, &names, newest.unwrap_or(0), active.first_index);
    let draft = draft.unwrap_or_else(|| Draft::after(&state));
    Ok(Recovered { state, draft, active, snapshot_bytes })
}

/// Makes the records after one void: a new file begins there. Until it is durable the log is as it was or ends where a file did.
pub fn cut(disk: &dyn Disk, after: u64) -> io::Result<Active> {
    let mut logs: Vec<u64> = disk.list()?.iter().filter_map(|name| segment::parse_name(name)).collect();
    logs.sort_unstable();
    for first in logs.into_iter().rev().filter(|first| *first > after) {
        disk.remove(&segment::name(first))?;
        disk.sync_directory()?;
    }
    begin(disk, after + 1)
}

/// Does again what a record says. What no transaction can have done is refused: it would break the state's invariants.
pub fn replay(state: &mut State, record: Record, now: Instant) -> Result<(), Damage> {
    apply(state, record, now)?;
    state.prune(usize::MAX);
    Ok(())
}

/// The same, leaving it to others to free memory.
pub fn apply(state: &mut State, record: Record, now: Instant) -> Result<(), Damage> {
    for mutation in record.mutations {
        if let Mutation::Put { key, .. } | Mutation::Delete { key } = &mutation {
            let known = state.keys.last_change(key);
            if record.revision < state.keys.revision() || known.is_some_and(|known| known >= record.revision)
            {
                return Err(Damage::Malformed("list of revisions in order"));
            }
        }
        state.apply(record.revision, mutation, now);
    }
    Ok(())
}

/// Makes a new log file, durable and empty.
pub fn begin(disk: &dyn Disk, first_index: u64) -> io::Result<Active> {
    let mut file = disk.create(&segment::name(first_index))?;
    file.write_at(0, &segment::header(first_index))?;
    file.sync()?;
    disk.sync_directory()?;
    Ok(Active { file, offset: segment::HEADER as u64, first_index })
}

/// Makes sure that a log file that could not be begun is not there, now or after a loss of power.
pub fn take_back(disk: &dyn Disk, first_index: u64) -> io::Result<()> {
    match disk.remove(&segment::name(first_index)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    disk.sync_directory()
}

/// Removes what the snapshot at `index` has made superfluous: older snapshots, and logs that begin before `keep_log` and end
/// before the snapshot does. Failing is harmless: the next start tries again.
/// Oldest first.
pub fn remove_obsolete(disk: &dyn Disk, names: &[String], index: u64, keep_log: u64) {
    let mut logs: Vec<u64> = names.iter().filter_map(|name| segment::parse_name(name)).collect();
    logs.sort_unstable();
    let covered = logs
        .windows(2)
        .filter(|pair| pair[1] <= index + 1 && pair[0] < keep_log)
        .map(|pair| segment::name(pair[0]));
    let snapshots = names.iter().filter_map(|name| snapshot::parse_name(name));
    let older = snapshots.filter(|found| *found < index).map(snapshot::name);
    for name in covered.chain(older) {
        if let Err(error) = disk.remove(&name) {
            tracing::warn!(%name, error = %telemetry::chain(&error), "superfluous file not removed");
            // Those after it stay as well: one of them may say that records of this one are void, which followers would be sent otherwise.
            break;
        }
    }
}

/// Whether a log file lacks its header altogether. Nothing is written to one before its header is durable.
fn unfinished(file: &dyn DiskFile) -> io::Result<bool> {
    let mut head = [0; segment::HEADER];
    let got = segment::read_full(file, 0, &mut head)?;
    let absent = got == head.len() && head.iter().all(|byte| *byte == 0);
    Ok(got < head.len() || absent && torn::rest_of(file, 0, 0)? == Rest::Nothing)
}

/// Cuts off what is torn, and writes the last batch once more: if its fdatasync had failed before the restart, the bytes
/// just read may exist in the page cache only.
fn finish(file: &mut dyn DiskFile, end: &End) -> io::Result<()> {
    if end.torn {
        file.truncate(end.offset)?;
    }
    let mut batch = vec![0; (end.offset - end.last_batch) as usize];
    if !batch.is_empty() {
        segment::read_full(file, end.last_batch, &mut batch)?;
        file.write_at(end.last_batch, &batch)?;
    }
    file.sync()
}

fn convert(error: ReadError, path: PathBuf) -> RecoveryError {
    match error {
        ReadError::Io(source) => RecoveryError::Io { action: "read", path, source },
        ReadError::Corruption(corruption) => corruption.into(),
    }
}
