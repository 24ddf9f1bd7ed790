//! Any bytes for whatever reads what was stored: the fuzz targets and property tests call these. Each panics if a promise is
//! broken; input that is refused is fine.

use std::io;
use std::time::Instant;

use crate::disk::DiskFile;
use crate::log::codec::Record;
use crate::log::recovery::replay;
use crate::log::segment::{self, BATCH_HEADER};
use crate::log::snapshot::{self, Capture, Dump};
use crate::mutation::State;
use crate::mvcc::range::KeyRange;

/// A file that can only be read.
struct Bytes<'a>(&'a [u8]);

impl DiskFile for Bytes<'_> {
    fn write_at(&mut self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let rest = &self.0[start..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn reserve(&mut self, _end: u64) -> io::Result<()> {
        Ok(())
    }

    fn truncate(&mut self, _end: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Cuts input into pieces, each with its length in a byte before it.
fn pieces(mut input: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some((length, rest)) = input.split_first() {
        let (piece, after) = rest.split_at(usize::from(*length).min(rest.len()));
        pieces.push(piece);
        input = after;
    }
    pieces
}

/// A record reads back as it was written, if it is one.
pub fn record(input: &[u8]) {
    if let Ok(record) = Record::decode(input) {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
}

/// A log: indexes come in order, and what can be read can be done again. The first byte says whether the rest are batches
/// with right checksums or just bytes after a good header.
pub fn log(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    let mut file = segment::header(1).to_vec();
    if kind % 2 == 0 {
        file.extend(input);
    } else {
        let mut index = 1;
        for piece in pieces(input) {
            let mut batch = vec![0; BATCH_HEADER];
            batch.extend(piece);
            segment::seal(&mut batch, index, file.len() as u64);
            index += segment::records(piece).map_or(0, |records| records.len() as u64);
            file.extend(batch);
        }
    }
    let mut state = State::default();
    let mut next = 1;
    let read = segment::read(&Bytes(&file), "fed".into(), |index, record| {
        assert_eq!(index, next, "indexes have gaps");
        next += 1;
        replay(&mut state, record, Instant::now())
    });
    if read.is_ok() {
        look_at(&state);
    }
}

/// A snapshot: what loads can be looked at, and dumped and loaded again.
pub fn snapshot(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    let sealed;
    let file = if kind % 2 == 0 {
        input
    } else {
        sealed = snapshot::around(&pieces(input), 1, i64::from(*kind), i64::from(*kind / 3));
        &sealed
    };
    let Ok(state) = snapshot::load(&Bytes(file), "fed".into(), Instant::now()) else { return };
    look_at(&state);
    let mut dump = Dump::new(Capture::of(&state));
    let again: Vec<u8> = std::iter::from_fn(|| dump.next(&state.keys)).flatten().collect();
    assert!(snapshot::load(&Bytes(&again), "again".into(), Instant::now()).is_ok(), "a dump does not load");
}

fn look_at(state: &State) {
    let everything = KeyRange::From(bytes::Bytes::new());
    let revision = state.keys.revision();
    let found = state.keys.range(&everything, revision).count();
    assert!(found <= state.keys.keys());
    state.keys.events(&everything, state.keys.compacted(), revision, 1000);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_bytes_break_what_reads_them(input in proptest::collection::vec(any::<u8>(), 0..300)) {
            super::record(&input);
            super::log(&input);
            super::snapshot(&input);
        }

        /// Small numbers make lengths and tags that fit, so this gets deeper than noise does.
        #[test]
        fn no_small_bytes_break_what_reads_them(input in proptest::collection::vec(0_u8..12, 0..200)) {
            super::record(&input);
            super::log(&[&[1], &input[..]].concat());
            super::snapshot(&[&[7], &input[..]].concat());
        }
    }
}
