//! The records to send to other members: the last ones from memory, older ones from the log's files.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::disk::Disk;
use crate::engine::Shared;
use crate::log::codec::{Reader, put_bytes};
use crate::log::segment;
use crate::raft::{Id, Index};
use crate::replication::tail::{Next, Tail};

/// About how many bytes of records one message has.
const MESSAGE: usize = 1 << 20;
/// How many bytes of the last records are kept in memory.
const RECENT: usize = 2 << 20;

/// The last records, as they were added.
#[derive(Debug, Default)]
pub struct Recent {
    records: VecDeque<Bytes>,
    /// The index of the first.
    first: Index,
    bytes: usize,
    /// What comes after it cannot be had from the files yet.
    durable: Index,
}

impl Recent {
    /// Records up to this one are in the files.
    pub fn note_durable(&mut self, index: Index) {
        self.durable = index;
    }

    /// Adds the next one.
    pub fn push(&mut self, index: Index, record: &[u8]) {
        if self.first + self.records.len() as u64 != index {
            *self = Self { first: index, durable: self.durable, ..Self::default() };
        }
        self.records.push_back(Bytes::copy_from_slice(record));
        self.bytes += record.len();
        while self.bytes > RECENT && self.records.len() > 1 && self.first <= self.durable {
            if let Some(old) = self.records.pop_front() {
                self.bytes -= old.len();
                self.first += 1;
            }
        }
    }

    /// Records from one to another, as many as a message has; `None` if they are not here.
    pub fn batch(&self, from: Index, up_to: Index) -> Option<(Bytes, u64)> {
        let start = usize::try_from(from.checked_sub(self.first)?).ok()?;
        let wanted = usize::try_from(up_to - from + 1).ok()?;
        (start < self.records.len()).then(|| batch(self.records.iter().skip(start).take(wanted)))
    }
}

/// As many records as a message has, at least one, as a batch has them.
fn batch<'a>(records: impl Iterator<Item = &'a Bytes>) -> (Bytes, u64) {
    let (mut out, mut count) = (Vec::new(), 0);
    for record in records {
        if count > 0 && out.len() + record.len() > MESSAGE {
            break;
        }
        put_bytes(&mut out, record);
        count += 1;
    }
    (BytesMut::from(&out[..]).freeze(), count)
}

/// How many records a batch has, if it is one.
pub fn count(batch: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(batch);
    let mut count = 0;
    while !reader.is_empty() {
        reader.slice().ok()?;
        count += 1;
    }
    Some(count)
}

/// The first record that is in the log's files.
pub(crate) fn first(shared: &Shared) -> Index {
    let names = shared.journal().and_then(|journal| journal.disk.list().ok()).unwrap_or_default();
    names.iter().filter_map(|name| segment::parse_name(name)).min().unwrap_or(1)
}

/// A place in the log's files.
struct Reading {
    tail: Tail,
    records: VecDeque<Bytes>,
    next: Index,
}

impl Reading {
    fn open(disk: Arc<dyn Disk>, from: Index, durable: Index) -> io::Result<Option<Self>> {
        let tail = Tail::open(disk, from, durable)?;
        Ok(tail.map(|tail| Self { tail, records: VecDeque::new(), next: from }))
    }

    /// Records from the place on; `None` if they are gone.
    fn batch(&mut self, up_to: Index, durable: Index) -> io::Result<Option<(Bytes, u64)>> {
        while self.records.is_empty() {
            let (first, payload) = match self.tail.next(durable)? {
                Next::Batch(first, payload) => (first, payload),
                Next::End => return Ok(Some((Bytes::new(), 0))),
                Next::Gone => return Ok(None),
            };
            let mut reader = Reader::new(&payload);
            let mut index = first;
            while !reader.is_empty() {
                let record = reader.slice().map_err(io::Error::other)?;
                if index >= self.next {
                    self.records.push_back(payload.slice_ref(record));
                }
                index += 1;
            }
        }
        let wanted = usize::try_from((up_to + 1).saturating_sub(self.next)).unwrap_or(usize::MAX);
        let (bytes, count) = batch(self.records.iter().take(wanted));
        self.records.drain(..count as usize);
        self.next += count;
        Ok(Some((bytes, count)))
    }
}

/// Records from one to another, as many as a message has; `None` if they are gone. Holds up the thread.
#[cfg(test)]
pub(crate) fn read_now(shared: &Shared, from: Index, up_to: Index) -> io::Result<Option<(Bytes, u64)>> {
    let Some(journal) = shared.journal() else { return Ok(None) };
    if let Some(found) = journal.recent(from, up_to) {
        return Ok(Some(found));
    }
    let durable = shared.durable_index();
    match Reading::open(journal.disk.clone(), from, durable)? {
        Some(mut reading) => reading.batch(up_to, durable),
        None => Ok(None),
    }
}

/// What is being sent to whom from the files.
#[derive(Default)]
pub struct Records {
    readings: BTreeMap<Id, Reading>,
}

impl Records {
    /// Forgets the places: the log is not the same any more.
    pub fn clear(&mut self) {
        self.readings.clear();
    }

    /// Records for a member; `None` if they are gone.
    pub(crate) async fn batch(
        &mut self,
        shared: &Shared,
        to: Id,
        from: Index,
        up_to: Index,
    ) -> io::Result<Option<(Bytes, u64)>> {
        let Some(journal) = shared.journal() else { return Ok(None) };
        if let Some(found) = journal.recent(from, up_to) {
            self.readings.remove(&to);
            return Ok(Some(found));
        }
        let (disk, durable) = (journal.disk.clone(), shared.durable_index());
        let known = self.readings.remove(&to).filter(|reading| reading.next == from);
        let read = tokio::task::spawn_blocking(move || {
            let reading = match known {
                Some(reading) => Some(reading),
                None => Reading::open(disk, from, durable)?,
            };
            let Some(mut reading) = reading else { return Ok(None) };
            let found = reading.batch(up_to, durable)?;
            Ok(found.map(|found| (reading, found)))
        });
        let read: io::Result<Option<(Reading, (Bytes, u64))>> = read.await.map_err(io::Error::other)?;
        Ok(read?.map(|(reading, found)| {
            self.readings.insert(to, reading);
            found
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_records_are_had_from_memory_and_messages_are_not_too_long() {
        let mut recent = Recent::default();
        for index in 5..=9_u64 {
            recent.push(index, &[index as u8; 3]);
        }
        assert!(recent.batch(4, 9).is_none() && recent.batch(10, 10).is_none());
        assert_eq!(recent.batch(8, 9).map(|(_, count)| count), Some(2));
        assert_eq!(
            recent.batch(6, 7).map(|(bytes, _)| bytes),
            Some(Bytes::from_static(&[3, 6, 6, 6, 3, 7, 7, 7]))
        );
        // Something else comes in their place.
        recent.push(7, &[1]);
        assert!(recent.batch(6, 7).is_none());
        assert_eq!(recent.batch(7, 9).map(|(_, count)| count), Some(1));
        recent.note_durable(17);
        for index in 8..18 {
            recent.push(index, &vec![0; MESSAGE / 2]);
        }
        assert!(recent.bytes <= RECENT && recent.first > 7);
        assert_eq!(recent.batch(recent.first, 17).map(|(_, count)| count), Some(1));
    }
}
