//! The wire form of SPDY/3.1 frames.
//!
//! Header blocks we send are deflate "stored" blocks: valid zlib for every peer, without a compressor's memory.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;
use tokio_util::codec::{Decoder, Encoder};

use super::inflate::Inflater;

const VERSION: u16 = 3;
const FLAG_FIN: u8 = 1;
/// The length field has 24 bits; a peer that sends more than this in one frame is not ours.
const MAX_FRAME: usize = 4 * 1024 * 1024;

/// Names (lower case) and values of a stream's headers.
pub type Headers = Vec<(String, String)>;

/// Why a connection cannot go on.
#[derive(Debug, Error)]
pub enum SpdyError {
    /// The control frame names another protocol version.
    #[error("frame of SPDY version {0}, expected 3")]
    Version(u16),
    /// Shorter than its type requires.
    #[error("truncated frame of type {0}")]
    Truncated(u16),
    /// Longer than we accept.
    #[error("frame of {0} bytes is too long")]
    TooLong(usize),
    /// Not zlib, or not the header form.
    #[error("malformed header block")]
    HeaderBlock,
    /// The connection failed.
    #[error("connection")]
    Io(#[from] std::io::Error),
}

/// One frame. Windows and settings are decoded only so that they can be ignored knowingly.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the protocol's own names")]
pub enum Frame {
    SynStream { stream: u32, headers: Headers, fin: bool },
    SynReply { stream: u32, headers: Headers, fin: bool },
    RstStream { stream: u32, status: u32 },
    Settings,
    Ping(u32),
    GoAway { last_good: u32, status: u32 },
    Headers { stream: u32, headers: Headers, fin: bool },
    WindowUpdate { stream: u32, delta: u32 },
    Data { stream: u32, data: Bytes, fin: bool },
}

/// Encodes and decodes the frames of one connection (or of one direction of it).
pub struct Codec {
    inflater: Option<Inflater>,
    sent_zlib_header: bool,
}

impl Codec {
    /// A codec for a fresh connection.
    pub fn new() -> Self {
        Self { inflater: None, sent_zlib_header: false }
    }

    fn headers(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        let text = self.inflater.get_or_insert_with(Inflater::new).block(block)?;
        let mut rest = text.as_slice();
        let count = take_u32(&mut rest)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            let name = take_string(&mut rest)?;
            let value = take_string(&mut rest)?;
            // One name with several values joins them with NUL.
            for part in value.split('\0') {
                headers.push((name.to_ascii_lowercase(), part.to_owned()));
            }
        }
        Ok(headers)
    }

    fn put_headers(&mut self, headers: &Headers, out: &mut BytesMut) {
        let mut text = BytesMut::new();
        let mut joined: Vec<(&str, String)> = Vec::new();
        for (name, value) in headers {
            match joined.iter_mut().find(|(known, _)| known == name) {
                Some((_, values)) => {
                    values.push('\0');
                    values.push_str(value);
                }
                None => joined.push((name, value.clone())),
            }
        }
        text.put_u32(joined.len() as u32);
        for (name, value) in joined {
            text.put_u32(name.len() as u32);
            text.put_slice(name.to_ascii_lowercase().as_bytes());
            text.put_u32(value.len() as u32);
            text.put_slice(value.as_bytes());
        }
        if !self.sent_zlib_header {
            self.sent_zlib_header = true;
            out.put_slice(&[0x78, 0x01]);
        }
        for chunk in text.chunks(u16::MAX as usize) {
            out.put_u8(0);
            out.put_u16_le(chunk.len() as u16);
            out.put_u16_le(!(chunk.len() as u16));
            out.put_slice(chunk);
        }
        // An empty block ends the frame, as zlib's sync flush does: Go's inflater hands out what it has only when it
        // meets one, and would otherwise read on past the end of the frame and give up for good.
        out.put_slice(&[0, 0, 0, 0xff, 0xff]);
    }

    fn control(&mut self, kind: u16, fin: bool, mut body: Bytes) -> Result<Option<Frame>, SpdyError> {
        let need = |count: usize, body: &Bytes| {
            if body.len() < count { Err(SpdyError::Truncated(kind)) } else { Ok(()) }
        };
        Ok(Some(match kind {
            1 => {
                need(10, &body)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                body.advance(6);
                Frame::SynStream { stream, headers: self.headers(&body)?, fin }
            }
            2 | 8 => {
                need(4, &body)?;
                let stream = body.get_u32() & 0x7fff_ffff;
                let headers = self.headers(&body)?;
                if kind == 2 {
                    Frame::SynReply { stream, headers, fin }
                } else {
                    Frame::Headers { stream, headers, fin }
                }
            }
            3 => {
                need(8, &body)?;
                Frame::RstStream { stream: body.get_u32() & 0x7fff_ffff, status: body.get_u32() }
            }
            4 => Frame::Settings,
            6 => {
                need(4, &body)?;
                Frame::Ping(body.get_u32())
            }
            7 => {
                need(8, &body)?;
                Frame::GoAway { last_good: body.get_u32() & 0x7fff_ffff, status: body.get_u32() }
            }
            9 => {
                need(8, &body)?;
                Frame::WindowUpdate {
                    stream: body.get_u32() & 0x7fff_ffff,
                    delta: body.get_u32() & 0x7fff_ffff,
                }
            }
            // The specification has receivers skip control frames they do not know.
            _ => return Ok(None),
        }))
    }
}

impl Default for Codec {
    fn default() -> Self {
        Self::new()
    }
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, SpdyError> {
    let (head, tail) = rest.split_first_chunk::<4>().ok_or(SpdyError::HeaderBlock)?;
    *rest = tail;
    Ok(u32::from_be_bytes(*head))
}

fn take_string(rest: &mut &[u8]) -> Result<String, SpdyError> {
    let length = take_u32(rest)? as usize;
    if length > rest.len() {
        return Err(SpdyError::HeaderBlock);
    }
    let (head, tail) = rest.split_at(length);
    *rest = tail;
    Ok(String::from_utf8_lossy(head).into_owned())
}

impl Decoder for Codec {
    type Item = Frame;
    type Error = SpdyError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frame>, SpdyError> {
        loop {
            if source.len() < 8 {
                return Ok(None);
            }
            let flags = source[4];
            let length = u32::from_be_bytes([0, source[5], source[6], source[7]]) as usize;
            if length > MAX_FRAME {
                return Err(SpdyError::TooLong(length));
            }
            if source.len() < 8 + length {
                return Ok(None);
            }
            let head = source.get_u32();
            source.advance(4);
            let body = source.split_to(length).freeze();
            let fin = flags & FLAG_FIN != 0;
            if head & 0x8000_0000 == 0 {
                return Ok(Some(Frame::Data { stream: head, data: body, fin }));
            }
            let version = (head >> 16) as u16 & 0x7fff;
            if version != VERSION {
                return Err(SpdyError::Version(version));
            }
            if let Some(frame) = self.control(head as u16, fin, body)? {
                return Ok(Some(frame));
            }
        }
    }
}

impl Encoder<Frame> for Codec {
    type Error = SpdyError;

    fn encode(&mut self, frame: Frame, out: &mut BytesMut) -> Result<(), SpdyError> {
        let start = out.len();
        let head = |kind: u16, fin: bool, out: &mut BytesMut| {
            out.put_u16(0x8000 | VERSION);
            out.put_u16(kind);
            out.put_u8(if fin { FLAG_FIN } else { 0 });
            out.put_slice(&[0; 3]);
        };
        match frame {
            Frame::Data { stream, data, fin } => {
                out.reserve(8 + data.len());
                out.put_u32(stream & 0x7fff_ffff);
                out.put_u8(if fin { FLAG_FIN } else { 0 });
                out.put_slice(&[0; 3]);
                out.put_slice(&data);
            }
            Frame::SynStream { stream, headers, fin } => {
                head(1, fin, out);
                out.put_u32(stream);
                out.put_slice(&[0; 6]);
                self.put_headers(&headers, out);
            }
            Frame::SynReply { stream, headers, fin } => {
                head(2, fin, out);
                out.put_u32(stream);
                self.put_headers(&headers, out);
            }
            Frame::Headers { stream, headers, fin } => {
                head(8, fin, out);
                out.put_u32(stream);
                self.put_headers(&headers, out);
            }
            Frame::RstStream { stream, status } => {
                head(3, false, out);
                out.put_u32(stream);
                out.put_u32(status);
            }
            Frame::Settings => {
                head(4, false, out);
                out.put_u32(0);
            }
            Frame::Ping(id) => {
                head(6, false, out);
                out.put_u32(id);
            }
            Frame::GoAway { last_good, status } => {
                head(7, false, out);
                out.put_u32(last_good);
                out.put_u32(status);
            }
            Frame::WindowUpdate { stream, delta } => {
                head(9, false, out);
                out.put_u32(stream);
                out.put_u32(delta);
            }
        }
        let length = out.len() - start - 8;
        if length > MAX_FRAME {
            return Err(SpdyError::TooLong(length));
        }
        out[start + 5..start + 8].copy_from_slice(&(length as u32).to_be_bytes()[1..]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(frames: &[Frame]) -> Vec<Frame> {
        let mut wire = BytesMut::new();
        let mut writer = Codec::new();
        for frame in frames {
            writer.encode(frame.clone(), &mut wire).unwrap();
        }
        let mut reader = Codec::new();
        let mut seen = Vec::new();
        // One byte at a time, so that every cut inside a frame is tried.
        let mut partial = BytesMut::new();
        for byte in wire {
            partial.put_u8(byte);
            while let Some(frame) = reader.decode(&mut partial).unwrap() {
                seen.push(frame);
            }
        }
        seen
    }

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn each_header_block_ends_with_a_flush() {
        let mut wire = BytesMut::new();
        let mut writer = Codec::new();
        for stream in [1, 3] {
            writer.encode(Frame::SynReply { stream, headers: Vec::new(), fin: false }, &mut wire).unwrap();
            assert!(wire.ends_with(&[0, 0, 0, 0xff, 0xff]), "{wire:x?}");
        }
    }

    #[test]
    fn every_frame_survives_the_wire() {
        let frames = [
            Frame::SynStream {
                stream: 1,
                headers: headers(&[("streamtype", "error"), ("port", "80")]),
                fin: true,
            },
            Frame::SynReply { stream: 1, headers: Vec::new(), fin: false },
            Frame::SynStream { stream: 3, headers: headers(&[("streamtype", "data")]), fin: false },
            Frame::Headers { stream: 3, headers: headers(&[("a", "1"), ("a", "2")]), fin: false },
            Frame::Data { stream: 3, data: Bytes::from_static(b"hello"), fin: false },
            Frame::Data { stream: 3, data: Bytes::new(), fin: true },
            Frame::RstStream { stream: 3, status: 5 },
            Frame::Ping(7),
            Frame::WindowUpdate { stream: 3, delta: 100 },
            Frame::Settings,
            Frame::GoAway { last_good: 3, status: 0 },
        ];
        assert_eq!(round_trip(&frames), frames);
    }

    /// Two header blocks as a zlib compressor with the SPDY dictionary writes them (Python's zlib: level 9,
    /// `zdict`, `Z_SYNC_FLUSH` after each): the second refers back into the first.
    #[test]
    fn blocks_of_a_real_compressor_inflate_in_sequence() {
        let first = unhex(FIRST_BLOCK);
        let second = unhex(SECOND_BLOCK);
        let mut codec = Codec::new();
        assert_eq!(
            codec.headers(&first).unwrap(),
            headers(&[("streamtype", "error"), ("port", "8080"), ("requestid", "0")])
        );
        assert_eq!(
            codec.headers(&second).unwrap(),
            headers(&[("streamtype", "data"), ("port", "8080"), ("requestid", "0")])
        );
    }

    #[test]
    fn rubbish_is_an_error_not_a_panic() {
        let mut codec = Codec::new();
        let mut wire = BytesMut::from(&[0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1][..]);
        assert!(matches!(codec.decode(&mut wire), Err(SpdyError::Truncated(1))));
        assert!(codec.headers(b"\x78\x01\xff\xff\xff\xff").is_err());
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    const FIRST_BLOCK: &str = "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e01c6061606100a4398b20d198094ade8c0600000000ffff";
    const SECOND_BLOCK: &str = "c2aa19540e2512d60b000000ffff";
}
