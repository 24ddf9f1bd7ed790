//! Any bytes for whatever reads what was stored: the fuzz targets and property tests call these. Each panics if a promise is
//! broken; input that is refused is fine.

use std::io;
use std::time::Instant;

use prost::Message as _;

use crate::disk::DiskFile;
use crate::log::codec::Record;
use crate::log::recovery::replay;
use crate::log::segment::{self, BATCH_HEADER};
use crate::log::snapshot::{self, Capture, Dump};
use crate::mutation::State;
use crate::mvcc::range::KeyRange;
use crate::raft::node::{Node, Vote};
use crate::raft::terms::Terms;
use crate::raft::{Electorate, Message};

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

/// A backup: what is read can be looked at.
pub fn backup(input: &[u8]) {
    if let Ok(state) = crate::bolt::read(input, Instant::now(), 0) {
        look_at(&state);
        assert!(crate::bolt::digest(input).is_ok(), "what can be read can be counted");
    }
}

/// Messages of other members, one after the other, to one of three that has a log and has voted.
pub fn messages(input: &[u8]) {
    let mut log = Terms::of(2, 3);
    log.append(3, 2);
    let members = Electorate { voters: vec![1, 2, 3], learners: Vec::new() };
    let mut node = Node::new(1, Vote { term: 3, given_to: 0 }, log, 2, members, 3);
    for piece in pieces(input).into_iter().take(64) {
        node.tick();
        let Ok(message) = Message::decode(piece) else { continue };
        node.receive(&message);
        let mut last = node.log().last();
        if node.is_leader() {
            node.begin_term(last);
            last += 1;
            node.read(7);
        }
        node.note_log(last, last);
        node.take_messages();
    }
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
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::mutation::Mutation;
    use crate::robustness::random::Random;

    /// Something good for each reader, to be spoiled.
    fn good() -> Vec<(fn(&[u8]), Vec<u8>)> {
        let mut state = State::default();
        let mut records = Vec::new();
        for number in 0..40_i64 {
            let key = bytes::Bytes::from(format!("key-{:02}", number % 17));
            let mutation = match number % 7 {
                6 => Mutation::Delete { key },
                _ => Mutation::Put { key, value: vec![number as u8; 5 * number as usize].into(), lease: 0 },
            };
            let record = Record { revision: number + 2, mutations: vec![mutation.clone()] };
            records.push(record.encode());
            state.apply(number + 2, mutation, Instant::now());
        }
        let mut dump = Dump::new(Capture::of(&state));
        let snapshot: Vec<u8> = std::iter::from_fn(|| dump.next(&state.keys)).flatten().collect();
        let mut backup = Vec::new();
        let mut content = crate::bolt::Content::new(Capture::of(&state));
        while content.gather(&state.keys) {}
        let layout = crate::bolt::Layout::of(&content).expect("a layout");
        crate::bolt::write(&content, &layout, &mut backup).expect("a backup");
        let framed = |parts: &[Vec<u8>]| -> Vec<u8> {
            parts.iter().flat_map(|part| [&[part.len() as u8], &part[..]].concat()).collect()
        };
        let message = |kind: i32, from: u64, term: u64, index: u64| {
            let message = Message { kind, from, to: 1, term, index, log_term: 3, ..Message::default() };
            message.encode_to_vec()
        };
        let talk: Vec<Vec<u8>> =
            (0..20).map(|number| message(number % 20, 2 + u64::from(number % 2 == 0), 3, 4)).collect();
        vec![
            (record, records[5].clone()),
            (log, [&[1], &framed(&records[..8])[..]].concat()),
            (super::snapshot, [&[0], &snapshot[..]].concat()),
            (super::backup, backup),
            (messages, framed(&talk)),
        ]
    }

    /// Spoils good files and messages in the ways in which they get spoiled; `KELSON_FUZZ_SECONDS=60` does it for that long.
    #[test]
    fn nothing_that_was_good_once_breaks_what_reads_it() {
        let seconds = std::env::var("KELSON_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
        let good = good();
        let mut random = Random::new(5);
        let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let mut rounds = 0_u64;
        while until.map_or(rounds < 400, |until| Instant::now() < until) {
            rounds += 1;
            for (read, bytes) in &good {
                let mut bytes = bytes.clone();
                for _ in 0..1 + random.below(4) {
                    let at = random.below(bytes.len() as u64) as usize;
                    let other = random.below(bytes.len() as u64) as usize;
                    match random.below(5) {
                        0 => bytes[at] ^= 1 << random.below(8),
                        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                        2 => bytes.truncate(at.max(1)),
                        3 => bytes.insert(at, random.below(256) as u8),
                        _ => {
                            let end = bytes.len().min(other + 8);
                            let to = at.min(bytes.len() - (end - other));
                            bytes.copy_within(other..end, to);
                        }
                    }
                }
                read(&bytes);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_bytes_break_what_reads_them(input in proptest::collection::vec(any::<u8>(), 0..300)) {
            super::record(&input);
            super::log(&input);
            super::snapshot(&input);
            super::backup(&input);
            super::messages(&input);
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
