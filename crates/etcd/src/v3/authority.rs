//! Lets clients in that send a whole URL where HTTP/2 wants a host.
//!
//! etcdctl 3.4 and other old Go clients put the endpoint as it was given (`http://127.0.0.1:2379`) into `:authority`.
//! The HTTP/2 library resets such requests, as it may; etcd never looks at the field. So on plain connections the first
//! request's header is looked at before the library sees it, and a malformed host gets its odd characters replaced one by
//! one. The length stays, so both ends' tables of known headers stay equal, and later requests, which refer to the table,
//! are right as well. Everything after the first header passes through untouched.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use http::uri::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What an HTTP/2 connection begins with.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// No frame is longer unless we have said so.
const MAX_FRAME: usize = 1 << 14;
/// The field's place in HPACK's table of common headers.
const AUTHORITY: usize = 1;

/// A connection whose first request is mended.
pub struct Mended<T> {
    inner: T,
    /// What has come and is not looked at yet.
    raw: BytesMut,
    /// What has been looked at.
    ready: BytesMut,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Preface,
    Frames,
    Open,
}

impl<T> Mended<T> {
    /// A connection of which nothing has been read.
    pub fn new(inner: T) -> Self {
        Self { inner, raw: BytesMut::new(), ready: BytesMut::new(), stage: Stage::Preface }
    }

    /// Moves on what can be judged.
    fn sift(&mut self) {
        loop {
            match self.stage {
                Stage::Preface if self.raw.len() >= PREFACE => {
                    self.ready.unsplit(self.raw.split_to(PREFACE));
                    self.stage = Stage::Frames;
                }
                Stage::Frames => {
                    let Some(head) = self.raw.get(..FRAME_HEAD) else { return };
                    let length =
                        usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
                    if length > MAX_FRAME {
                        // The library will refuse it.
                        self.stage = Stage::Open;
                        continue;
                    }
                    let (kind, flags) = (head[3], head[4]);
                    if self.raw.len() < FRAME_HEAD + length {
                        return;
                    }
                    let mut frame = self.raw.split_to(FRAME_HEAD + length);
                    if kind == HEADERS {
                        self.stage = Stage::Open;
                        if let Some(mended) = mend(&frame, flags) {
                            frame = mended;
                        }
                    }
                    self.ready.extend_from_slice(&frame);
                }
                Stage::Open => {
                    let rest = self.raw.split();
                    self.ready.extend_from_slice(&rest);
                    return;
                }
                Stage::Preface => return,
            }
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Mended<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.ready.is_empty() {
                let count = this.ready.len().min(out.remaining());
                out.put_slice(&this.ready[..count]);
                this.ready.advance(count);
                return Poll::Ready(Ok(()));
            }
            if this.stage == Stage::Open {
                return Pin::new(&mut this.inner).poll_read(context, out);
            }
            let mut piece = [0; 1024];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.raw.extend_from_slice(piece.filled());
            this.sift();
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Mended<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// A HEADERS frame with a usable host; `None` if it has one, or if the frame is none that we can read.
fn mend(frame: &[u8], flags: u8) -> Option<BytesMut> {
    let mut at = FRAME_HEAD;
    let mut end = frame.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*frame.get(at)?))?;
        at += 1;
    }
    if flags & PRIORITY != 0 {
        at += 5;
    }
    let block = frame.get(at..end)?;
    let (value, text) = find_authority(block)?;
    if Authority::try_from(&text[..]).is_ok() {
        return None;
    }
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
    let host: Vec<u8> = text.iter().map(|byte| if usable(*byte) { *byte } else { b'-' }).collect();
    // One byte of length, for which the first bit means a code that we do not use.
    let length = u8::try_from(host.len()).ok().filter(|length| *length < 0x7f)?;
    let mut out = BytesMut::from(&frame[..at + value.start]);
    out.extend_from_slice(&[length]);
    out.extend_from_slice(&host);
    out.extend_from_slice(&frame[at + value.end..]);
    let payload = out.len() - FRAME_HEAD;
    if payload > MAX_FRAME {
        return None;
    }
    out[..3].copy_from_slice(&(payload as u32).to_be_bytes()[1..]);
    Some(out)
}

/// Where the value of `:authority` stands in a block of headers, its length included, and what it is.
fn find_authority(block: &[u8]) -> Option<(std::ops::Range<usize>, Vec<u8>)> {
    let mut at = 0;
    while let Some(first) = block.get(at) {
        // Indexed; literal to be remembered; table size; literal not to be remembered.
        let (bits, literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let name = integer(block, &mut at, bits)?;
        if !literal {
            continue;
        }
        if name == 0 {
            at += string(block, at)?.1;
        }
        let ((coded, text), length) = string(block, at)?;
        if name == AUTHORITY {
            let text = if coded { decode(text)? } else { text.to_vec() };
            return Some((at..at + length, text));
        }
        at += length;
    }
    None
}

/// A number whose first bits share a byte with something else.
fn integer(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let mask = (1 << bits) - 1;
    let mut value = usize::from(*block.get(*at)?) & mask;
    *at += 1;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// A string, whether it is coded, and how many bytes it takes with its length.
fn string(block: &[u8], start: usize) -> Option<((bool, &[u8]), usize)> {
    let coded = block.get(start)? & 0x80 != 0;
    let mut at = start;
    let length = integer(block, &mut at, 7)?;
    let text = block.get(at..at.checked_add(length)?)?;
    Some(((coded, text), at + length - start))
}

/// HPACK's Huffman code up to 15 bits: symbols by length of their code. The code is canonical, so this is all of it.
const SYMBOLS: [(u32, &[u8]); 10] = [
    (5, b"012aceiost"),
    (6, b" %-./3456789=A_bdfghlmnpru"),
    (7, b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, b"&*,;XZ"),
    (10, b"!\"()?"),
    (11, b"'+|"),
    (12, b"#>"),
    (13, b"\0$@[]~"),
    (14, b"^}"),
    (15, b"<`{"),
];

/// A string out of its Huffman code; `None` for symbols that no host has.
fn decode(coded: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let bit = |number: usize| Some(u32::from(*coded.get(number / 8)?) >> (7 - number % 8) & 1);
    let mut at = 0;
    'symbols: loop {
        let (mut code, mut length, mut first) = (0, 0, 0);
        for (bits, symbols) in SYMBOLS {
            while length < bits {
                let Some(next) = bit(at + length as usize) else {
                    // What is left must be padding: fewer than eight ones.
                    let padding = length < 8 && code == (1 << length) - 1;
                    return padding.then_some(out);
                };
                code = code << 1 | next;
                first <<= 1;
                length += 1;
            }
            if let Some(symbol) = code.checked_sub(first).and_then(|offset| symbols.get(offset as usize)) {
                out.push(*symbol);
                at += length as usize;
                continue 'symbols;
            }
            first += symbols.len() as u32;
        }
        return None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    /// What etcdctl 3.4 sends for `--endpoints http://127.0.0.1:23799 endpoint status`.
    const ETCDCTL: &str = "8386459760a924882d9dcb6571afa066a925a87510ac6e48d36a3f41909d29aee30c044eae05c0b86e09975f7f\
        5f8b1d75d0620d263d4c4d65647a8b9acac8b4c7602bb2caecff40027465864d833505b11f40899acac8b24d494f6a7f8613efb8d36fdb\
        408d25062d495875996ee5b1063d5f03332e34";

    fn block() -> Vec<u8> {
        let digits: Vec<u8> = ETCDCTL.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
        pairs.map(|pair| u8::from_str_radix(pair, 16).expect("digits")).collect()
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        out.extend([kind, 4, 0, 0, 0, 1]);
        out.extend(payload);
        out
    }

    #[test]
    fn the_host_is_found_among_other_headers() {
        let (_, text) = find_authority(&block()).expect("there is one");
        assert_eq!(text, b"http://127.0.0.1:23799");
    }

    #[test]
    fn only_a_malformed_host_is_changed_and_keeps_its_length() {
        let mended = mend(&frame(HEADERS, &block()), 4).expect("mended");
        let (_, text) = find_authority(&mended[FRAME_HEAD..]).expect("still there");
        assert_eq!(text, b"http---127.0.0.1-23799");
        assert_eq!(mend(&mended, 4), None);
        let plain = [&[0x41, 14][..], b"127.0.0.1:2379"].concat();
        assert_eq!(mend(&frame(HEADERS, &plain), 4), None);
    }

    #[tokio::test]
    async fn a_connection_comes_through_however_it_is_cut() {
        let mut sent = vec![b'P'; PREFACE];
        sent.extend(frame(4, &[]));
        sent.extend(frame(HEADERS, &block()));
        sent.extend(frame(0, b"data"));
        let mut expected = sent[..PREFACE + FRAME_HEAD].to_vec();
        expected.extend_from_slice(&mend(&frame(HEADERS, &block()), 4).expect("mended"));
        expected.extend(frame(0, b"data"));
        for cut in 0..sent.len() {
            let (left, right) = sent.split_at(cut);
            let mut got = Vec::new();
            Mended::new(AsyncReadExt::chain(left, right)).read_to_end(&mut got).await.expect("read");
            assert!(got == expected, "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_without_a_panic(input in proptest::collection::vec(any::<u8>(), 0..300), flags: u8) {
            let _ = mend(&frame(HEADERS, &input), flags);
            let mut mended = Mended::new(());
            mended.raw.extend_from_slice(&input);
            mended.sift();
        }
    }
}
