//! The whole state in one file: what the log before it amounts to.
//!
//! ```text
//! file  = magic "KELSNSNP"  version u32  zero u32  log index u64  revision u64  compacted u64  checksum u32  zero u32
//!         block*  end
//! block = length u32  checksum u32  payload
//! end   = a block of length 0 whose checksum field is that of the 16 bytes after it: keys u64, blocks u64
//! ```
//! The first block has leases and settings, the others keys in order with their versions. A [`Dump`] makes it in pieces,
//! so that the state is locked for a moment at a time: the history up to the captured revision does not change while
//! compaction is held. The same form goes over the wire for backups.

use bytes::Bytes;

use crate::disk::DiskFile;
use crate::log::codec::{LARGE, Reader, put_bytes, put_number};
use crate::log::segment::{ReadError, read_full};
use crate::log::{Corruption, Damage};
use crate::mutation::State;
use crate::mvcc::keyspace::{Keyspace, Version};
use crate::store::Revision;

const MAGIC: &[u8; 8] = b"KELSNSNP";
const VERSION: u32 = 2;
/// Without the checkpoints of leases; still read.
const VERSION_1: u32 = 1;
const HEADER: usize = 48;
/// About how big the blocks are; one key with a long history may make a bigger one.
const BLOCK: usize = 128 << 10;
/// No block is longer.
const MAX_BLOCK: usize = 1 << 30;

/// The name of the snapshot that covers the log up to this index.
pub fn name(index: u64) -> String {
    format!("snapshot-{index:016x}")
}

/// The index in a snapshot's name.
pub fn parse_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("snapshot-").filter(|digits| digits.len() == 16)?, 16).ok()
}

/// What a snapshot shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    /// The last log record in it.
    pub index: u64,
    /// The last revision in it.
    pub revision: Revision,
    /// The oldest revision in it.
    pub compacted: Revision,
    /// Id, seconds granted, and seconds left as the log knows them (0: all).
    pub leases: Vec<(i64, i64, i64)>,
    /// The server's own settings.
    pub settings: Vec<(Bytes, Bytes)>,
}

impl Capture {
    /// The state as it is now. Compaction must be held until the dump is done.
    pub fn of(state: &State) -> Self {
        Self {
            index: state.index,
            revision: state.keys.revision(),
            compacted: state.keys.compacted(),
            leases: leases_of(state),
            settings: state.settings.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        }
    }
}

fn leases_of(state: &State) -> Vec<(i64, i64, i64)> {
    let leases = state.leases.iter();
    leases.map(|(id, lease)| (id, lease.ttl, lease.checkpoint.unwrap_or(0))).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Header,
    Keys,
    Done,
}

/// Makes a snapshot piece by piece.
#[derive(Debug)]
pub struct Dump {
    capture: Capture,
    stage: Stage,
    after: Option<Bytes>,
    keys: u64,
    blocks: u64,
}

impl Dump {
    /// A dump of what was captured.
    pub fn new(capture: Capture) -> Self {
        Self { capture, stage: Stage::Header, after: None, keys: 0, blocks: 0 }
    }

    /// What it shows.
    pub fn capture(&self) -> &Capture {
        &self.capture
    }

    /// The next piece of the file; `None` after the last.
    pub fn next(&mut self, keys: &Keyspace) -> Option<Vec<u8>> {
        match self.stage {
            Stage::Header => {
                self.stage = Stage::Keys;
                Some(self.beginning())
            }
            Stage::Keys => {
                let mut out = vec![0; 8];
                let mut last = None;
                for (key, versions) in keys.dump(self.after.as_deref(), self.capture.revision, usize::MAX) {
                    last = Some(key.clone());
                    let mut versions = versions.peekable();
                    if versions.peek().is_some() {
                        put_key(&mut out, key, versions);
                        self.keys += 1;
                    }
                    if out.len() >= BLOCK {
                        break;
                    }
                }
                match last {
                    Some(last) => self.after = Some(last),
                    None => self.stage = Stage::Done,
                }
                if out.len() > 8 {
                    self.seal(&mut out);
                }
                if self.stage == Stage::Done {
                    out.truncate(if out.len() > 8 { out.len() } else { 0 });
                    out.extend(self.ending());
                }
                Some(if out.len() == 8 { Vec::new() } else { out })
            }
            Stage::Done => None,
        }
    }

    fn beginning(&mut self) -> Vec<u8> {
        let mut out = vec![0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..24].copy_from_slice(&self.capture.index.to_le_bytes());
        out[24..32].copy_from_slice(&self.capture.revision.to_le_bytes());
        out[32..40].copy_from_slice(&self.capture.compacted.to_le_bytes());
        let checksum = crc32fast::hash(&out[..40]);
        out[40..44].copy_from_slice(&checksum.to_le_bytes());
        let mut block = vec![0; 8];
        put_number(&mut block, self.capture.leases.len() as u64);
        for (id, ttl, left) in &self.capture.leases {
            put_number(&mut block, *id as u64);
            put_number(&mut block, *ttl as u64);
            put_number(&mut block, *left as u64);
        }
        for (name, value) in &self.capture.settings {
            put_bytes(&mut block, name);
            put_bytes(&mut block, value);
        }
        self.seal(&mut block);
        out.extend(block);
        out
    }

    fn seal(&mut self, block: &mut [u8]) {
        self.blocks += 1;
        let (head, payload) = block.split_at_mut(8);
        head[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    }

    fn ending(&self) -> [u8; 24] {
        let mut out = [0; 24];
        out[8..16].copy_from_slice(&self.keys.to_le_bytes());
        out[16..].copy_from_slice(&self.blocks.to_le_bytes());
        let checksum = crc32fast::hash(&out[8..]);
        out[4..8].copy_from_slice(&checksum.to_le_bytes());
        out
    }
}

fn put_key<'a>(out: &mut Vec<u8>, key: &[u8], versions: impl Iterator<Item = &'a Version>) {
    put_bytes(out, key);
    for version in versions {
        // Revisions start at 1, so a zero ends the list.
        put_number(out, version.mod_revision as u64);
        put_number(out, version.create_revision as u64);
        put_number(out, version.version as u64);
        put_number(out, version.lease as u64);
        put_bytes(out, &version.value);
    }
    put_number(out, 0);
}

/// A whole snapshot around any payloads, with all checksums right, so that tests and fuzzers get to what is inside.
#[doc(hidden)]
pub fn around(payloads: &[&[u8]], index: u64, revision: Revision, compacted: Revision) -> Vec<u8> {
    let capture = Capture { index, revision, compacted, ..Capture::default() };
    let mut dump = Dump::new(capture);
    let mut out = dump.beginning();
    if !payloads.is_empty() {
        out.truncate(HEADER);
        dump.blocks = 0;
    }
    for (number, payload) in payloads.iter().enumerate() {
        let mut block = [&[0; 8][..], payload].concat();
        dump.seal(&mut block);
        out.extend(block);
        let mut reader = Reader::new(payload);
        while number > 0 && !reader.is_empty() && read_key(&mut reader).is_ok() {
            dump.keys += 1;
        }
    }
    out.extend(dump.ending());
    out
}

fn read_key(reader: &mut Reader<'_>) -> Result<(Bytes, Vec<Version>), Damage> {
    let key = reader.bytes()?;
    let mut versions: Vec<Version> = Vec::with_capacity(1);
    loop {
        let mod_revision = reader.signed()?;
        if mod_revision == 0 {
            break;
        }
        if mod_revision < 0 || versions.last().is_some_and(|before| before.mod_revision >= mod_revision) {
            return Err(Damage::Malformed("history in order"));
        }
        versions.push(Version {
            mod_revision,
            create_revision: reader.signed()?,
            version: reader.signed()?,
            lease: reader.signed()?,
            value: reader.value()?,
        });
    }
    Ok((key, versions))
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

fn short_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

/// What the header says, and the version of what follows.
fn read_header(bytes: &[u8]) -> Result<(Capture, u32), Damage> {
    if bytes.len() < HEADER {
        return Err(Damage::Short);
    }
    if &bytes[..8] != MAGIC {
        return Err(Damage::Malformed("snapshot"));
    }
    let found = short_at(bytes, 8);
    if found != VERSION && found != VERSION_1 {
        return Err(Damage::Version { found, expected: VERSION });
    }
    if short_at(bytes, 40) != crc32fast::hash(&bytes[..40]) {
        return Err(Damage::Checksum);
    }
    let capture = Capture {
        index: number_at(bytes, 16),
        revision: number_at(bytes, 24) as i64,
        compacted: number_at(bytes, 32) as i64,
        ..Capture::default()
    };
    Ok((capture, found))
}

fn read_extras(mut reader: Reader<'_>, version: u32, capture: &mut Capture) -> Result<(), Damage> {
    for _ in 0..reader.number()? {
        let (id, ttl) = (reader.signed()?, reader.signed()?);
        let left = if version == VERSION_1 { 0 } else { reader.signed()? };
        capture.leases.push((id, ttl, left));
    }
    while !reader.is_empty() {
        let setting = (reader.bytes()?, reader.bytes()?);
        capture.settings.push(setting);
    }
    Ok(())
}

/// Reads a file block by block.
struct Blocks<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
    blocks: u64,
    payload: Vec<u8>,
    /// The whole file, if it can be mapped.
    mapping: Option<Bytes>,
}

impl<'a> Blocks<'a> {
    /// The blocks of a file, from the first one on.
    fn new(file: &'a dyn DiskFile) -> Result<Self, Failure> {
        // Without it large values are kept in memory, which is no reason not to load.
        let mapping = file.map(0, file.len()? as usize).unwrap_or_default();
        Ok(Self { file, offset: HEADER as u64, blocks: 0, payload: Vec::new(), mapping })
    }
}

impl Blocks<'_> {
    /// The next block; `None` at the end, which must fit to what came before.
    fn next(&mut self, keys: u64) -> Result<Option<Reader<'_>>, Failure> {
        let mut head = [0; 8];
        if read_full(self.file, self.offset, &mut head)? < head.len() {
            return Err(Damage::Short.into());
        }
        let length = short_at(&head, 0) as usize;
        if length == 0 {
            let mut end = [0; 16];
            if read_full(self.file, self.offset + 8, &mut end)? < end.len() {
                return Err(Damage::Short.into());
            }
            let matches = number_at(&end, 0) == keys && number_at(&end, 8) == self.blocks;
            if !matches || crc32fast::hash(&end) != short_at(&head, 4) {
                return Err(Damage::Checksum.into());
            }
            return Ok(None);
        }
        // Looked at before allocating: a broken length must not ask for a gigabyte.
        if length > MAX_BLOCK || self.offset + 8 + length as u64 > self.file.len()? {
            return Err(Damage::Short.into());
        }
        self.payload.resize(length, 0);
        if read_full(self.file, self.offset + 8, &mut self.payload)? < length {
            return Err(Damage::Short.into());
        }
        if crc32fast::hash(&self.payload) != short_at(&head, 4) {
            return Err(Damage::Checksum.into());
        }
        self.blocks += 1;
        let start = self.offset as usize + 8;
        Ok(Some(Reader::mapped(&self.payload, self.mapping.as_ref(), start)))
    }
}

enum Failure {
    Io(std::io::Error),
    Damage(Damage),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

/// Reads a snapshot into a state.
pub fn load(
    file: &dyn DiskFile,
    path: std::path::PathBuf,
    now: std::time::Instant,
) -> Result<State, ReadError> {
    let mut offset = 0;
    load_at(file, now, &mut offset).map_err(|failure| match failure {
        Failure::Io(error) => ReadError::Io(error),
        Failure::Damage(damage) => ReadError::Corruption(Corruption { file: path, offset, damage }),
    })
}

fn load_at(file: &dyn DiskFile, now: std::time::Instant, offset: &mut u64) -> Result<State, Failure> {
    let mut head = [0; HEADER];
    let got = read_full(file, 0, &mut head)?;
    let (mut capture, version) = read_header(&head[..got])?;
    let mut blocks = Blocks::new(file)?;
    *offset = blocks.offset;
    let extras = blocks.next(0)?.ok_or(Damage::Malformed("snapshot"))?;
    let length = extras.remaining() as u64;
    read_extras(extras, version, &mut capture)?;
    blocks.offset += 8 + length;

    let mut failure = None;
    let mut count = 0;
    let mut last: Option<Bytes> = None;
    let mut ready: std::vec::IntoIter<(Bytes, Vec<Version>)> = Vec::new().into_iter();
    let entries = std::iter::from_fn(|| {
        loop {
            if let Some(entry) = ready.next() {
                return Some(entry);
            }
            *offset = blocks.offset;
            match next_entries(&mut blocks, &mut count, &mut last) {
                Ok(Some(entries)) => ready = entries.into_iter(),
                Ok(None) => return None,
                Err(error) => {
                    failure = Some(error);
                    return None;
                }
            }
        }
    });
    let keys = Keyspace::restore(entries, capture.revision, capture.compacted);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let mut state = State { keys, index: capture.index, ..State::default() };
    state.settings.extend(capture.settings);
    for (id, ttl, left) in capture.leases {
        state.leases.grant(id, ttl, now);
        state.leases.checkpoint(id, Some(left).filter(|left| *left != 0));
    }
    state.leases.restart(now);
    let everything = crate::mvcc::range::KeyRange::From(Bytes::new());
    for (key, version) in state.keys.range(&everything, Revision::MAX) {
        state.leases.move_key(key, 0, version.lease);
    }
    Ok(state)
}

/// Hands out the large values of a snapshot just written, with key and revision, as slices of its mapping.
pub fn large_values(
    file: &dyn DiskFile,
    mut take: impl FnMut(Vec<(Bytes, Revision, Bytes)>),
) -> Result<(), ReadError> {
    let failed = |failure| match failure {
        Failure::Io(error) => ReadError::Io(error),
        Failure::Damage(damage) => ReadError::Io(std::io::Error::other(damage)),
    };
    let mut blocks = Blocks::new(file).map_err(failed)?;
    if blocks.mapping.is_none() {
        return Ok(());
    }
    // The first block has no keys.
    let extras = blocks.next(0).map_err(failed)?.map_or(0, |extras| extras.remaining());
    blocks.offset += 8 + extras as u64;
    let (mut count, mut last) = (0, None);
    while let Some(entries) = next_entries(&mut blocks, &mut count, &mut last).map_err(failed)? {
        let mut found = Vec::new();
        for (key, versions) in entries {
            let large = versions.into_iter().filter(|version| version.value.len() >= LARGE);
            found.extend(large.map(|version| (key.clone(), version.mod_revision, version.value)));
        }
        if !found.is_empty() {
            take(found);
        }
    }
    Ok(())
}

type Entries = Vec<(Bytes, Vec<Version>)>;

fn next_entries(
    blocks: &mut Blocks<'_>,
    count: &mut u64,
    last: &mut Option<Bytes>,
) -> Result<Option<Entries>, Failure> {
    let Some(mut reader) = blocks.next(*count)? else { return Ok(None) };
    let length = reader.remaining() as u64;
    let mut entries = Vec::new();
    while !reader.is_empty() {
        let (key, versions) = read_key(&mut reader)?;
        if last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Damage::Malformed("list of keys in order").into());
        }
        *last = Some(key.clone());
        *count += 1;
        entries.push((key, versions));
    }
    blocks.offset += 8 + length;
    Ok(Some(entries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;
    use std::io::Write;
    use std::time::Instant;

    fn sample() -> State {
        let mut state = State::default();
        let now = Instant::now();
        state.apply(2, Mutation::GrantLease { id: 77, ttl: 600 }, now);
        state.apply(2, Mutation::CheckpointLease { id: 77, seconds: Some(470) }, now);
        for number in 0..2000_i64 {
            let key = Bytes::from(format!("key-{:04}", number % 700));
            let value = Bytes::from(vec![number as u8; 150]);
            state.apply(number + 2, Mutation::Put { key, value, lease: 77 * (number % 2) }, now);
        }
        state.apply(2002, Mutation::Delete { key: "key-0003".into() }, now);
        state.apply(0, Mutation::Compact { revision: 900 }, now);
        state.apply(0, Mutation::Setting { name: "a".into(), value: Some("b".into()) }, now);
        state.prune(usize::MAX);
        state.index = 4711;
        state
    }

    fn dump(state: &State) -> Vec<u8> {
        let mut dump = Dump::new(Capture::of(state));
        std::iter::from_fn(|| dump.next(&state.keys)).flatten().collect()
    }

    fn load_bytes(bytes: &[u8]) -> Result<State, ReadError> {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("write");
        load(&file, "snapshot".into(), Instant::now())
    }

    #[test]
    fn a_snapshot_loads_to_the_same_state() {
        let state = sample();
        let bytes = dump(&state);
        let back = load_bytes(&bytes).expect("loads");
        assert_eq!(Capture::of(&back), Capture::of(&state));
        assert!(dump(&back) == bytes, "the second dump differs");
        let now = Instant::now();
        assert!((469..=470).contains(&back.leases.get(77).expect("the lease").remaining(now)));
        assert_eq!(
            back.leases.get(77).map(|lease| &lease.keys),
            state.leases.get(77).map(|lease| &lease.keys)
        );
        assert_eq!(back.keys.bytes(), state.keys.bytes());
    }

    #[test]
    fn later_writes_do_not_show_in_a_dump() {
        let mut state = sample();
        let whole = dump(&state);
        let mut dump = Dump::new(Capture::of(&state));
        let mut pieces = Vec::new();
        let mut revision = state.keys.revision();
        while let Some(piece) = dump.next(&state.keys) {
            pieces.extend(piece);
            for key in ["aaa", "key-0001", "key-0500", "zzz"] {
                revision += 1;
                let value = Bytes::from_static(b"new");
                state.apply(revision, Mutation::Put { key: key.into(), value, lease: 0 }, Instant::now());
            }
        }
        assert!(pieces == whole);
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let bytes = dump(&sample());
        for at in (0..bytes.len()).step_by(997).chain(bytes.len() - 24..bytes.len()) {
            if (12..16).contains(&at) || (44..48).contains(&at) {
                continue; // Unused bytes of the header.
            }
            let mut broken = bytes.clone();
            broken[at] ^= 4;
            assert!(load_bytes(&broken).is_err(), "flipped bit at {at} not noticed");
        }
        for cut in (0..bytes.len()).step_by(1009) {
            assert!(load_bytes(&bytes[..cut]).is_err(), "cut at {cut} not noticed");
        }
    }
}
