//! A log file: a header, then batches of records.
//!
//! ```text
//! file   = magic "KELSNLOG"  version u32  zero u32  first record's index u64  checksum u32  zero u32
//! batch  = magic u32  payload length u32  first record's index u64  payload checksum u32  sectors of zeros u32  checksum of these u32  payload
//! payload = (length, record)*
//! ```
//! One batch is one write followed by one fdatasync, and the next batch is written only after it. Space is reserved ahead and reads as zeros: a
//! zero magic is the end of what was written. What a crash leaves of the last batch, and what is damage, tells [`torn`](super::torn). Batches of
//! before have another magic and no count of sectors.

use std::path::PathBuf;

use bytes::Bytes;

use crate::disk::DiskFile;
use crate::log::codec::{Reader, Record};
use crate::log::torn::{self, Rest};
use crate::log::{Corruption, Damage};

/// The first bytes of a log file.
pub const MAGIC: &[u8; 8] = b"KELSNLOG";
/// The format that this program reads and writes.
pub const VERSION: u32 = 1;
/// The length of a file header.
pub const HEADER: usize = 32;
/// The length of a batch header.
pub const BATCH_HEADER: usize = 28;
/// The length of one without a count of sectors.
const OLD_BATCH_HEADER: usize = 24;
/// The first bytes of a batch.
const BATCH_MAGIC: u32 = 0x4b54_4232;
/// The same without a count of sectors.
const OLD_BATCH_MAGIC: u32 = 0x4b54_4142;
/// No batch is longer: the writer starts a new one beyond it.
pub const MAX_BATCH: usize = 256 << 20;

/// The name of the file whose first record has this index.
pub fn name(first_index: u64) -> String {
    format!("log-{first_index:016x}")
}

/// The index in a log file's name.
pub fn parse_name(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("log-").filter(|digits| digits.len() == 16)?, 16).ok()
}

/// A file header.
pub fn header(first_index: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&first_index.to_le_bytes());
    let checksum = crc32fast::hash(&out[..24]);
    out[24..28].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// Fills in the header of a batch whose payload stands after [`BATCH_HEADER`] bytes of room, and which goes to an offset of the file.
pub fn seal(batch: &mut [u8], first_index: u64, offset: u64) {
    let (head, payload) = batch.split_at_mut(BATCH_HEADER);
    let zeros = torn::zero_sectors(payload, offset + BATCH_HEADER as u64);
    head[..4].copy_from_slice(&BATCH_MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&first_index.to_le_bytes());
    head[16..20].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    head[20..24].copy_from_slice(&zeros.to_le_bytes());
    let checksum = crc32fast::hash(&head[..24]);
    head[24..28].copy_from_slice(&checksum.to_le_bytes());
}

/// What stands before a batch's payload.
pub(super) struct BatchHeader {
    /// Its own length.
    pub size: usize,
    /// The payload's.
    pub length: usize,
    pub first_index: u64,
    checksum: u32,
    /// How many sectors of the payload have nothing but zeros.
    pub zero_sectors: u32,
}

/// How long a header is that begins like this.
pub(super) fn header_length(bytes: &[u8]) -> usize {
    let old = bytes.get(..4) == Some(&OLD_BATCH_MAGIC.to_le_bytes());
    if old { OLD_BATCH_HEADER } else { BATCH_HEADER }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(super) fn batch_header(bytes: &[u8]) -> Option<BatchHeader> {
    let size = header_length(bytes);
    let bytes = bytes.get(..size)?;
    let magic = if size == OLD_BATCH_HEADER { OLD_BATCH_MAGIC } else { BATCH_MAGIC };
    let valid = u32_at(bytes, 0) == magic && u32_at(bytes, size - 4) == crc32fast::hash(&bytes[..size - 4]);
    valid.then(|| BatchHeader {
        size,
        length: u32_at(bytes, 4) as usize,
        first_index: u64_at(bytes, 8),
        checksum: u32_at(bytes, 16),
        zero_sectors: if size == OLD_BATCH_HEADER { 0 } else { u32_at(bytes, 20) },
    })
}

/// Checks a file header; returns the first record's index.
pub fn check_header(bytes: &[u8]) -> Result<u64, Damage> {
    let bytes = bytes.get(..HEADER).ok_or(Damage::Short)?;
    if &bytes[..8] != MAGIC {
        return Err(Damage::Malformed("log file"));
    }
    let found = u32_at(bytes, 8);
    if found != VERSION {
        return Err(Damage::Version { found, expected: VERSION });
    }
    if u32_at(bytes, 24) != crc32fast::hash(&bytes[..24]) {
        return Err(Damage::Checksum);
    }
    Ok(u64_at(bytes, 16))
}

/// The records of one batch's payload.
pub fn records(payload: &[u8]) -> Result<Vec<Record>, Damage> {
    records_in(Reader::new(payload))
}

fn records_in(mut reader: Reader<'_>) -> Result<Vec<Record>, Damage> {
    let mut records = Vec::new();
    while !reader.is_empty() {
        records.push(Record::read(reader.nested()?)?);
    }
    Ok(records)
}

/// The records of whole batches, with large values as slices of a mapping of the same bytes.
pub fn mapped_records(batches: &[u8], mapping: &Bytes) -> Result<Vec<Record>, Damage> {
    let (mut at, mut found) = (0, Vec::new());
    while at < batches.len() {
        let header = batch_header(&batches[at..]).ok_or(Damage::Malformed("batch"))?;
        let start = at + header.size;
        let payload = batches.get(start..start + header.length).ok_or(Damage::Short)?;
        found.extend(records_in(Reader::mapped(payload, Some(mapping), start))?);
        at = start + header.length;
    }
    Ok(found)
}

/// One batch in a file.
pub struct Batch {
    /// The index of its first record.
    pub first_index: u64,
    /// Its records.
    pub payload: Vec<u8>,
    /// Where it ends.
    pub end: u64,
}

/// The batch at an offset; `None` if there is no whole one.
pub fn batch_at(file: &dyn DiskFile, offset: u64) -> std::io::Result<Option<Batch>> {
    let mut head = [0; BATCH_HEADER];
    let got = read_full(file, offset, &mut head)?;
    let Some(header) = batch_header(&head[..got]).filter(|header| header.length <= MAX_BATCH) else {
        return Ok(None);
    };
    let start = offset + header.size as u64;
    let mut payload = vec![0; header.length];
    let got = read_full(file, start, &mut payload)?;
    let whole = got == header.length && crc32fast::hash(&payload) == header.checksum;
    let end = start + header.length as u64;
    Ok(whole.then_some(Batch { first_index: header.first_index, payload, end }))
}

/// How the reading of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// After the last whole batch.
    pub offset: u64,
    /// Where the last whole batch begins.
    pub last_batch: u64,
    /// The index of the next record.
    pub next_index: u64,
    /// Whether something follows that is not a whole batch.
    pub torn: bool,
}

/// Reads a log file from its beginning and hands its records to `apply`, with their indexes; it says whether they fit. What follows the last
/// whole batch must be nothing or an unfinished write.
pub fn read(
    file: &dyn DiskFile,
    path: PathBuf,
    mut apply: impl FnMut(u64, Record) -> Result<(), Damage>,
) -> Result<End, ReadError> {
    let broken =
        |offset: u64, damage| ReadError::Corruption(Corruption { file: path.clone(), offset, damage });
    let mut head = [0; HEADER];
    let got = read_full(file, 0, &mut head)?;
    let mut index = check_header(&head[..got]).map_err(|damage| broken(0, damage))?;
    let mut offset = HEADER as u64;
    let mut last_batch = offset;
    let mut payload = Vec::new();
    // Without it large values are kept in memory, which is no reason not to start.
    let mapping = file.map(0, file.len()? as usize).unwrap_or_default();
    loop {
        let mut head = [0; BATCH_HEADER];
        let got = read_full(file, offset, &mut head)?;
        let Some(header) = batch_header(&head[..got]) else { break };
        if header.first_index != index {
            let damage = Damage::Gap { expected: index, found: header.first_index };
            return Err(broken(offset, damage));
        }
        let start = offset + header.size as u64;
        if header.length > MAX_BATCH || start + header.length as u64 > file.len()? {
            break;
        }
        payload.resize(header.length, 0);
        let got = read_full(file, start, &mut payload)?;
        if got < header.length || crc32fast::hash(&payload) != header.checksum {
            break;
        }
        // The checksum was right: what cannot be decoded now was never written by this program.
        let reader = Reader::mapped(&payload, mapping.as_ref(), start as usize);
        for record in records_in(reader).map_err(|damage| broken(offset, damage))? {
            apply(index, record).map_err(|damage| broken(offset, damage))?;
            index += 1;
        }
        last_batch = offset;
        offset = start + header.length as u64;
        payload.shrink_to(1 << 20);
    }
    let torn = match torn::rest_of(file, offset, index)? {
        Rest::Nothing => false,
        Rest::Torn => true,
        Rest::Damaged => return Err(broken(offset, Damage::Checksum)),
    };
    Ok(End { offset, last_batch, next_index: index, torn })
}

/// Whether there is the header of a later batch than that of record `index` somewhere after `offset`.
pub(super) fn has_later_batch(file: &dyn DiskFile, mut offset: u64, index: u64) -> std::io::Result<bool> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let got = read_full(file, offset, &mut chunk)?;
        let bytes = &chunk[..got];
        let later = |at: usize| batch_header(&bytes[at..]).is_some_and(|header| header.first_index > index);
        if bytes.iter().any(|byte| *byte != 0) && (0..got.saturating_sub(OLD_BATCH_HEADER - 1)).any(later) {
            return Ok(true);
        }
        if got < chunk.len() {
            return Ok(false);
        }
        // Overlap, so that a header across the border of two chunks is seen.
        offset += (got - BATCH_HEADER) as u64;
    }
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The disk failed.
    #[error("reading failed")]
    Io(#[from] std::io::Error),
    /// The content is damaged.
    #[error(transparent)]
    Corruption(#[from] Corruption),
}

/// Fills the buffer as far as the file goes.
pub fn read_full(file: &dyn DiskFile, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(offset + filled as u64, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::codec::put_bytes;
    use crate::mutation::Mutation;

    fn record(number: u64) -> Record {
        let key = bytes::Bytes::from(format!("key-{number}"));
        Record { revision: number as i64 + 1, mutations: vec![Mutation::Delete { key }] }
    }

    /// A file with records 1, 2..=3, 4, a batch each group; and where the batches begin.
    fn sample() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(1).to_vec();
        let mut starts = Vec::new();
        for (first, count) in [(1, 1), (2, 2), (4, 1)] {
            let mut batch = vec![0; BATCH_HEADER];
            for number in first..first + count {
                put_bytes(&mut batch, &record(number).encode());
            }
            starts.push(bytes.len());
            seal(&mut batch, first, bytes.len() as u64);
            bytes.extend(batch);
        }
        (bytes, starts)
    }

    fn read_bytes(bytes: &[u8]) -> (Vec<u64>, Result<End, ReadError>) {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("write");
        let mut seen = Vec::new();
        let end = read(&file, "log".into(), |index, found| {
            assert_eq!(found, record(index));
            seen.push(index);
            Ok(())
        });
        (seen, end)
    }

    fn damage(result: Result<End, ReadError>) -> Option<(u64, Damage)> {
        match result {
            Err(ReadError::Corruption(corruption)) => Some((corruption.offset, corruption.damage)),
            _ => None,
        }
    }

    #[test]
    fn a_whole_file_is_read_to_its_end() {
        let (mut bytes, starts) = sample();
        let offset = bytes.len() as u64;
        bytes.extend([0; 5000]);
        let (seen, end) = read_bytes(&bytes);
        assert_eq!(seen, [1, 2, 3, 4]);
        let expected = End { offset, last_batch: starts[2] as u64, next_index: 5, torn: false };
        assert_eq!(end.expect("readable"), expected);
    }

    #[test]
    fn batches_of_before_are_read_too() {
        let (bytes, starts) = sample();
        let mut old = bytes[..HEADER].to_vec();
        for (number, start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied().unwrap_or(bytes.len());
            let mut head = bytes[*start..start + 20].to_vec();
            head[..4].copy_from_slice(&OLD_BATCH_MAGIC.to_le_bytes());
            head.extend(crc32fast::hash(&head).to_le_bytes());
            old.extend(head);
            old.extend(&bytes[start + BATCH_HEADER..end]);
        }
        let (seen, end) = read_bytes(&old);
        assert_eq!(seen, [1, 2, 3, 4]);
        assert!(!end.expect("readable").torn);
        let last = old.len() - 1;
        old[last] ^= 1;
        assert!(
            damage(read_bytes(&old).1).is_some(),
            "a flipped bit in the last one is taken for a torn write"
        );
    }

    #[test]
    fn any_flipped_bit_before_the_last_batch_is_corruption_at_its_batch() {
        let (bytes, starts) = sample();
        for at in HEADER..starts[2] {
            for bit in [1, 0x80] {
                let mut flipped = bytes.clone();
                flipped[at] ^= bit;
                let (_, end) = read_bytes(&flipped);
                let (offset, _) = damage(end).unwrap_or_else(|| panic!("bit flipped at {at} not noticed"));
                let batch = if at < starts[1] { starts[0] } else { starts[1] };
                assert_eq!(offset, batch as u64, "flipped at {at}");
            }
        }
    }

    #[test]
    fn a_header_of_another_kind_is_refused() {
        let (bytes, _) = sample();
        for (at, expected) in [
            (0, Damage::Malformed("log file")),
            (8, Damage::Version { found: 0, expected: 1 }),
            (16, Damage::Checksum),
        ] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(damage(read_bytes(&other).1), Some((0, expected)));
        }
        assert_eq!(damage(read_bytes(&bytes[..10]).1), Some((0, Damage::Short)));
    }
}
