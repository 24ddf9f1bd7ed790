//! Inflating header blocks: one zlib stream per connection and direction, primed with the SPDY dictionary.
//!
//! The decompressor's output ring starts with the dictionary in it, which is what "preset dictionary" means to
//! deflate. The ring stays for the life of the connection because later blocks refer back into earlier ones.

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use super::dictionary;
use super::frame::SpdyError;

/// Deflate looks back at most this far.
const RING: usize = 32 * 1024;
/// More header text than any honest peer sends in one frame.
const MAX_BLOCK: usize = 256 * 1024;

pub struct Inflater {
    state: Box<DecompressorOxide>,
    ring: Box<[u8]>,
    position: usize,
    /// Zlib's two header bytes and the dictionary's four, collected before raw deflate begins.
    prelude: Vec<u8>,
    started: bool,
}

impl Inflater {
    pub fn new() -> Self {
        let dictionary = dictionary::bytes();
        let mut ring = vec![0; RING].into_boxed_slice();
        ring[..dictionary.len()].copy_from_slice(&dictionary);
        Self {
            state: Box::default(),
            ring,
            position: dictionary.len(),
            prelude: Vec::with_capacity(6),
            started: false,
        }
    }

    /// Inflates one sync-flushed block.
    pub fn block(&mut self, mut input: &[u8]) -> Result<Vec<u8>, SpdyError> {
        if !self.started {
            input = self.skip_prelude(input)?;
            if !self.started {
                return Ok(Vec::new());
            }
        }
        let mut out = Vec::new();
        loop {
            let (status, read, written) =
                decompress(&mut self.state, input, &mut self.ring, self.position, TINFL_FLAG_HAS_MORE_INPUT);
            out.extend_from_slice(&self.ring[self.position..self.position + written]);
            self.position = (self.position + written) % RING;
            input = &input[read..];
            if out.len() > MAX_BLOCK {
                return Err(SpdyError::HeaderBlock);
            }
            match status {
                TINFLStatus::HasMoreOutput => continue,
                TINFLStatus::NeedsMoreInput | TINFLStatus::Done => return Ok(out),
                _ => return Err(SpdyError::HeaderBlock),
            }
        }
    }

    fn skip_prelude<'a>(&mut self, input: &'a [u8]) -> Result<&'a [u8], SpdyError> {
        let mut rest = input;
        loop {
            let wanted = match self.prelude.get(1) {
                None => 2,
                Some(flags) if flags & 0x20 != 0 => 6,
                Some(_) => 2,
            };
            if self.prelude.len() >= wanted && self.prelude.len() >= 2 {
                if self.prelude[0] & 0x0f != 8 {
                    return Err(SpdyError::HeaderBlock);
                }
                self.started = true;
                return Ok(rest);
            }
            let Some((first, tail)) = rest.split_first() else { return Ok(rest) };
            self.prelude.push(*first);
            rest = tail;
        }
    }
}
