//! Whether what follows the last whole batch of a log file is an unfinished write or damage.
//!
//! A batch is one write and one fdatasync into room that reads as zeros, and the next one is written only after it. A disk writes whole sectors,
//! in any order. So a crash leaves of the last batch some sectors as they should be and others as zeros, or the file ends in the middle of it, and
//! nothing follows: that was never acknowledged and may go. Everything else had been durable once: a batch that is there to its last sector and
//! whose checksum is wrong, or one with something written after it. Cutting that off would lose acknowledged writes.
//!
//! Data may contain sectors of zeros of its own. How many a batch has stands in its header, so one that is missing shows as one too many.

use std::io;

use crate::disk::DiskFile;
use crate::log::segment::{self, BATCH_HEADER, BatchHeader, MAX_BATCH};

/// What a disk writes whole or not at all.
pub const SECTOR: usize = 512;
/// How much is looked at at once.
const CHUNK: usize = 64 << 10;

/// What follows the last whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Nothing,
    /// A write that a crash has broken off.
    Torn,
    /// What had been durable.
    Damaged,
}

/// How many of the sectors that begin within some bytes of a file have nothing but zeros, as far as the bytes go.
pub fn zero_sectors(bytes: &[u8], offset: u64) -> u32 {
    let skip = (SECTOR - (offset % SECTOR as u64) as usize) % SECTOR;
    let sectors = bytes.get(skip..).unwrap_or_default().chunks(SECTOR);
    sectors.filter(|sector| sector.iter().all(|byte| *byte == 0)).count() as u32
}

/// Looks at what is at `offset`, where the last whole batch ends; the next record would have `index`.
pub fn rest_of(file: &dyn DiskFile, offset: u64, index: u64) -> io::Result<Rest> {
    let mut head = [0; BATCH_HEADER];
    let got = segment::read_full(file, offset, &mut head)?;
    let length = file.len()?;
    if let Some(header) = segment::batch_header(&head[..got]) {
        return broken(file, offset, &header, length);
    }
    if last_written(file, offset, length)?.is_none() {
        return Ok(Rest::Nothing);
    }
    if segment::has_later_batch(file, offset, index)? {
        return Ok(Rest::Damaged);
    }
    // The sectors that the header is in: those that were written are not zero from here on.
    let header = offset + segment::header_length(&head) as u64;
    let sectors_end = header.next_multiple_of(SECTOR as u64);
    if header > length {
        return Ok(Rest::Torn);
    }
    let mut sectors = vec![0; (sectors_end - offset) as usize];
    let got = segment::read_full(file, offset, &mut sectors)?;
    sectors.truncate(got);
    let first = (SECTOR as u64 - offset % SECTOR as u64) as usize;
    let (own, next) = sectors.split_at(first.min(got));
    let missing = |part: &[u8]| part.iter().all(|byte| *byte == 0);
    let torn = missing(own) || header > offset + first as u64 && missing(next);
    Ok(if torn { Rest::Torn } else { Rest::Damaged })
}

/// A batch whose header is right and whose payload is not.
fn broken(file: &dyn DiskFile, offset: u64, header: &BatchHeader, length: u64) -> io::Result<Rest> {
    if header.length > MAX_BATCH {
        return Ok(Rest::Damaged);
    }
    let start = offset + header.size as u64;
    let end = start + header.length as u64;
    if end > length {
        return Ok(Rest::Torn);
    }
    if last_written(file, end, length)?.is_some() {
        return Ok(Rest::Damaged);
    }
    let mut payload = vec![0; header.length];
    segment::read_full(file, start, &mut payload)?;
    let missing = zero_sectors(&payload, start) > header.zero_sectors;
    Ok(if missing { Rest::Torn } else { Rest::Damaged })
}

/// Where the last byte from `offset` on is that is not zero.
fn last_written(file: &dyn DiskFile, mut offset: u64, length: u64) -> io::Result<Option<u64>> {
    let mut chunk = vec![0; CHUNK];
    let mut last = None;
    while offset < length {
        let got = segment::read_full(file, offset, &mut chunk)?;
        if got == 0 {
            break;
        }
        if let Some(at) = chunk[..got].iter().rposition(|byte| *byte != 0) {
            last = Some(offset + at as u64);
        }
        offset += got as u64;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::codec::{Record, put_bytes};
    use crate::log::segment::{HEADER, ReadError, header, read, seal};
    use crate::mutation::Mutation;

    /// A log of two batches, the second with a value that has sectors of zeros, and room after them; and where the second begins and ends.
    fn log(padding: usize) -> (Vec<u8>, usize, usize) {
        let mut bytes = header(1).to_vec();
        let mut begin = 0;
        for (index, value) in
            [(1, vec![7; padding]), (2, [vec![1; 700], vec![0; 2000], vec![2; 700]].concat())]
        {
            let put = Mutation::Put { key: format!("key-{index}").into(), value: value.into(), lease: 0 };
            let record = Record { revision: index as i64 + 1, mutations: vec![put] };
            let mut batch = vec![0; BATCH_HEADER];
            put_bytes(&mut batch, &record.encode());
            begin = bytes.len();
            seal(&mut batch, index, begin as u64);
            bytes.extend(batch);
        }
        let end = bytes.len();
        bytes.resize(end + 8192, 0);
        (bytes, begin, end)
    }

    /// How many records there are and whether the rest was torn; `None` is damage.
    fn outcome(bytes: &[u8]) -> Option<(u64, bool)> {
        use std::io::Write;
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(bytes).expect("write");
        match read(&file, "log".into(), |_, _| Ok(())) {
            Ok(end) => Some((end.next_index - 1, end.torn)),
            Err(ReadError::Corruption(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Every place of the second batch among the sectors, its header across two of them included.
    const PADDINGS: std::ops::Range<usize> = 380..460;

    #[test]
    fn whichever_sectors_of_the_last_batch_are_missing_it_is_an_unfinished_write() {
        for padding in PADDINGS {
            let (whole, begin, end) = log(padding);
            assert_eq!(outcome(&whole), Some((2, false)));
            let sectors: Vec<(usize, usize)> = (begin / SECTOR..end.div_ceil(SECTOR))
                .map(|sector| ((sector * SECTOR).max(begin), ((sector + 1) * SECTOR).min(end)))
                .collect();
            for missing in 1_u32..1 << sectors.len() {
                let mut torn = whole.clone();
                for (number, (from, to)) in sectors.iter().enumerate() {
                    if missing >> number & 1 == 1 {
                        torn[*from..*to].fill(0);
                    }
                }
                if torn == whole {
                    continue;
                }
                let nothing = torn[begin..].iter().all(|byte| *byte == 0);
                assert_eq!(outcome(&torn), Some((1, !nothing)), "padding {padding}, missing {missing:b}");
            }
        }
    }

    #[test]
    fn wherever_the_file_ends_within_the_last_batch_it_is_an_unfinished_write() {
        let (whole, begin, end) = log(400);
        for cut in begin + 1..end {
            assert_eq!(outcome(&whole[..cut]), Some((1, true)), "cut at {cut}");
        }
    }

    #[test]
    fn any_flipped_bit_of_a_whole_last_batch_is_damage() {
        for padding in PADDINGS.step_by(7) {
            let (whole, begin, end) = log(padding);
            for at in HEADER..end {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << (at % 8);
                let number = if at < begin { "first" } else { "last" };
                assert_eq!(outcome(&flipped), None, "bit of the {number} batch at {at}");
            }
        }
    }

    #[test]
    fn what_stands_after_a_broken_batch_says_that_it_had_been_durable() {
        let (mut whole, begin, end) = log(400);
        // A sector is missing, but something came later.
        let sector = (begin / SECTOR + 2) * SECTOR;
        whole[sector..sector + SECTOR].fill(0);
        assert_eq!(outcome(&whole), Some((1, true)));
        whole[end + 5000] = 1;
        assert_eq!(outcome(&whole), None);
    }
}
