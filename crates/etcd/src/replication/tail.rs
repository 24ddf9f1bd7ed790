//! Reads the log's files from a record on, while they are being written.
//!
//! Only what is durable is looked at, and while a member leads that does not change any more. A file that has been read to its end is followed by the one
//! whose name is the next record's index; if there is one before the end, the rest is void ([`crate::log::recovery::cut`]). Files that a snapshot
//! has replaced are gone: then there is nothing to go on with.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::log::codec::Reader;
use crate::log::segment;

/// A place in the log.
pub struct Tail {
    disk: Arc<dyn Disk>,
    file: Box<dyn DiskFile>,
    /// The index of the file's first record.
    first: u64,
    /// The first records of the files that were there at the beginning.
    files: Vec<u64>,
    offset: u64,
    /// The index of the record at the offset.
    next: u64,
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A batch, and the index of its first record.
    Batch(u64, Bytes),
    /// Nothing that is durable yet.
    End,
    /// It is not in the log any more.
    Gone,
}

/// How many records a batch has.
fn count(payload: &[u8]) -> io::Result<u64> {
    let mut reader = Reader::new(payload);
    let mut count = 0;
    while !reader.is_empty() {
        reader.slice().map_err(io::Error::other)?;
        count += 1;
    }
    Ok(count)
}

/// The bytes that so many records of a batch take.
fn length_of(payload: &[u8], records: u64) -> io::Result<usize> {
    let mut reader = Reader::new(payload);
    for _ in 0..records {
        reader.slice().map_err(io::Error::other)?;
    }
    Ok(payload.len() - reader.remaining())
}

impl Tail {
    /// The place of a record, or of the batch with it; `None` if the log does not go back that far.
    pub fn open(disk: Arc<dyn Disk>, index: u64, durable: u64) -> io::Result<Option<Self>> {
        let names = disk.list()?;
        let files: Vec<u64> = names.iter().filter_map(|name| segment::parse_name(name)).collect();
        let Some(first) = files.iter().copied().filter(|first| *first <= index).max() else {
            return Ok(None);
        };
        let Some(file) = found(disk.open(&segment::name(first)))? else { return Ok(None) };
        let mut tail = Self { disk, file, first, files, offset: segment::HEADER as u64, next: first };
        while tail.next < index {
            let batch = match tail.look(durable)? {
                Look::Batch(batch) => batch,
                Look::End => break,
                Look::Gone => return Ok(None),
            };
            let after = tail.next + count(&batch.payload)?;
            if after > index {
                break;
            }
            (tail.offset, tail.next) = (batch.end, after);
        }
        Ok(Some(tail))
    }

    /// What comes next, as far as it is durable.
    pub fn next(&mut self, durable: u64) -> io::Result<Next> {
        let batch = match self.look(durable)? {
            Look::Batch(batch) => batch,
            Look::End => return Ok(Next::End),
            Look::Gone => return Ok(Next::Gone),
        };
        self.next += count(&batch.payload)?;
        self.offset = batch.end;
        let mut payload = Bytes::from(batch.payload);
        if let Some(void) = self.void().filter(|void| *void < self.next) {
            payload.truncate(length_of(&payload, void - batch.first_index)?);
            self.next = void;
        }
        Ok(Next::Batch(batch.first_index, payload))
    }

    /// The first record of this file that another file has in its place, or that comes after it.
    fn void(&self) -> Option<u64> {
        self.files.iter().copied().filter(|first| *first > self.first).min()
    }

    /// The batch at this place, which stays.
    fn look(&mut self, durable: u64) -> io::Result<Look> {
        if self.next > durable {
            return Ok(Look::End);
        }
        loop {
            let replaced = self.void().is_some_and(|void| void <= self.next);
            let batch = if replaced { None } else { segment::batch_at(&*self.file, self.offset)? };
            match batch {
                Some(batch) if batch.first_index == self.next => return Ok(Look::Batch(batch)),
                Some(_) => return Err(io::Error::other("the log's records are not in order")),
                None if self.first == self.next => {
                    return Err(io::Error::other("a durable record cannot be read from the log"));
                }
                None => {}
            }
            let Some(file) = found(self.disk.open(&segment::name(self.next)))? else { return Ok(Look::Gone) };
            (self.file, self.first, self.offset) = (file, self.next, segment::HEADER as u64);
        }
    }
}

enum Look {
    Batch(segment::Batch),
    End,
    Gone,
}

fn found<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Directory;
    use crate::log::codec::put_bytes;

    /// Writes a log file with batches of so many records each.
    fn file(disk: &dyn Disk, first: u64, batches: &[u64]) {
        let mut bytes = segment::header(first).to_vec();
        let mut index = first;
        for count in batches {
            let mut batch = vec![0; segment::BATCH_HEADER];
            for number in 0..*count {
                put_bytes(&mut batch, format!("record {}", index + number).as_bytes());
            }
            segment::seal(&mut batch, index, bytes.len() as u64);
            index += count;
            bytes.extend(batch);
        }
        // Reserved room reads as zeros.
        bytes.extend([0; 100]);
        disk.create(&segment::name(first)).and_then(|mut file| file.write_at(0, &bytes)).expect("write");
    }

    #[test]
    fn records_are_read_from_any_index_across_files_and_never_beyond_what_is_durable() {
        let directory = tempfile::tempdir().expect("directory");
        let disk: Arc<dyn Disk> =
            Arc::new(Directory::open(directory.path()).expect("open").expect("not in use"));
        file(&*disk, 11, &[1, 3, 2]);
        file(&*disk, 17, &[2, 2]);
        // Where to begin, what is durable, and the first indexes of the batches that come.
        let cases: &[(u64, u64, &[u64])] = &[
            (11, 20, &[11, 12, 15, 17, 19]),
            (12, 20, &[12, 15, 17, 19]),
            (13, 20, &[12, 15, 17, 19]),
            (15, 18, &[15, 17]),
            (17, 20, &[17, 19]),
            (17, 16, &[]),
            (20, 20, &[19]),
            (21, 20, &[]),
        ];
        for (index, durable, expected) in cases {
            let mut tail =
                Tail::open(disk.clone(), *index, *durable).expect("read").expect("still in the log");
            let mut seen = Vec::new();
            while let Next::Batch(first, _) = tail.next(*durable).expect("read") {
                seen.push(first);
            }
            assert_eq!(seen, *expected, "from {index} to {durable}");
        }
        // Records from 18 on were made void, in the middle of a batch.
        file(&*disk, 18, &[1, 2]);
        let mut tail = Tail::open(disk.clone(), 15, 20).expect("read").expect("in the log");
        let mut seen = Vec::new();
        while let Next::Batch(first, payload) = tail.next(20).expect("read") {
            seen.push((first, count(&payload).expect("records")));
        }
        assert_eq!(seen, [(15, 2), (17, 1), (18, 1), (19, 2)]);
        disk.remove(&segment::name(18)).expect("remove");
        assert!(Tail::open(disk.clone(), 10, 20).expect("read").is_none(), "before the log begins");
        let mut tail = Tail::open(disk.clone(), 11, 16).expect("read").expect("in the log");
        disk.remove(&segment::name(17)).expect("remove");
        while let Next::Batch(..) = tail.next(16).expect("read") {}
        assert_eq!(tail.next(20).expect("read"), Next::Gone);
    }
}
