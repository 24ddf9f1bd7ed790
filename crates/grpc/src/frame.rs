//! gRPC's framing on h2 streams: one flag byte, the length, the message.

use std::future::poll_fn;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use prost::Message;

use crate::status::{self, Status, code};

/// The bytes before each message.
pub const PREFIX: usize = 5;

/// No message that comes in is longer; what the engine accepts is less.
const MAX_MESSAGE: usize = 512 << 20;

/// A message with its frame.
pub fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut out = BytesMut::with_capacity(PREFIX + length);
    out.put_u8(0);
    out.put_u32(length as u32);
    message.encode_raw(&mut out);
    out.freeze()
}

/// A message's bytes with their frame.
pub fn wrapped(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(PREFIX + message.len());
    out.put_u8(0);
    out.put_u32(message.len() as u32);
    out.extend_from_slice(message);
    out.freeze()
}

/// Fills in the frame of a message that stands after [`PREFIX`] bytes of room.
pub fn seal(mut buffer: Vec<u8>) -> Bytes {
    let length = (buffer.len() - PREFIX) as u32;
    buffer[0] = 0;
    buffer[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    buffer.into()
}

/// Takes messages out of a stream.
pub struct Messages {
    stream: RecvStream,
    buffered: BytesMut,
    limit: usize,
    /// The other direction, kept open as long as this one is read.
    _requests: Option<SendStream<Bytes>>,
}

impl Messages {
    /// The messages of a request's or response's body, none longer than `limit` bytes (0: any).
    pub fn new(stream: RecvStream, limit: usize) -> Self {
        let limit = if limit == 0 { MAX_MESSAGE } else { limit };
        Self { stream, buffered: BytesMut::new(), limit, _requests: None }
    }

    /// Keeps the other direction of the call open as long as this one is read.
    pub fn keep(&mut self, requests: SendStream<Bytes>) {
        self._requests = Some(requests);
    }

    /// The trailers, after the last message.
    pub async fn trailers(&mut self) -> Result<Option<HeaderMap>, h2::Error> {
        self.stream.trailers().await
    }

    /// The next message as bytes; `None` at the end of the stream. Cancel-safe.
    pub async fn next_bytes(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = split(&mut self.buffered, self.limit)? {
                return Ok(Some(message));
            }
            let Some(chunk) = poll_fn(|context| self.stream.poll_data(context)).await else {
                return Ok(None);
            };
            let mut chunk = chunk.map_err(broken)?;
            // Given back at once: what is buffered is bounded by the largest message.
            let _ = self.stream.flow_control().release_capacity(chunk.len());
            if self.buffered.is_empty() {
                // The usual case: a frame is exactly one message, which is then not copied.
                if let Some(length) = whole(&chunk, self.limit)? {
                    chunk.advance(PREFIX);
                    debug_assert_eq!(chunk.len(), length);
                    return Ok(Some(chunk));
                }
            }
            self.buffered.extend_from_slice(&chunk);
        }
    }

    /// The next message.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        match self.next_bytes().await? {
            Some(bytes) => M::decode(bytes).map(Some).map_err(|_| status::MALFORMED),
            None => Ok(None),
        }
    }

    /// The only message of a unary call.
    pub async fn only<M: Message + Default>(&mut self) -> Result<M, Status> {
        self.next().await?.ok_or(status::MALFORMED)
    }
}

fn length(buffer: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some(prefix) = buffer.get(..PREFIX) else { return Ok(None) };
    if prefix[0] != 0 {
        return Err(status::COMPRESSED);
    }
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if length > limit {
        return Err(Status {
            code: code::RESOURCE_EXHAUSTED,
            message: format!("grpc: received message larger than max ({length} vs. {limit})").into(),
        });
    }
    Ok(Some(length))
}

/// The length of the message if the buffer is exactly one.
fn whole(buffer: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    Ok(length(buffer, limit)?.filter(|length| buffer.len() == PREFIX + length))
}

fn split(buffer: &mut BytesMut, limit: usize) -> Result<Option<Bytes>, Status> {
    match length(buffer, limit)? {
        Some(length) if buffer.len() >= PREFIX + length => {
            buffer.advance(PREFIX);
            Ok(Some(buffer.split_to(length).freeze()))
        }
        _ => Ok(None),
    }
}

/// What a broken stream is to a caller.
pub fn broken(error: h2::Error) -> Status {
    Status { code: code::UNAVAILABLE, message: error.to_string().into() }
}

/// Sends bytes as the peer's window allows, so that a slow reader does not make us buffer.
pub async fn send(stream: &mut SendStream<Bytes>, mut bytes: Bytes) -> Result<(), Status> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let granted = match stream.capacity() {
            0 => match poll_fn(|context| stream.poll_capacity(context)).await {
                Some(granted) => granted.map_err(broken)?,
                None => return Err(Status { code: code::CANCELED, message: "the stream was closed".into() }),
            },
            granted => granted,
        };
        let piece = bytes.split_to(granted.min(bytes.len()));
        stream.send_data(piece, false).map_err(broken)?;
    }
    Ok(())
}

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// The headers before the first message.
pub fn opening() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert(http::header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// The trailers after the last message.
pub fn closing(outcome: &Result<(), Status>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    match outcome {
        Ok(()) => {
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
        }
        Err(status) => {
            trailers.insert(GRPC_STATUS, HeaderValue::from(status.code));
            let text = percent_encoded(&status.message);
            if let Ok(value) = HeaderValue::from_str(&text) {
                trailers.insert(GRPC_MESSAGE, value);
            }
        }
    }
    trailers
}

/// Answers a call with one message or an error. A peer that has gone is not told.
pub fn answer(mut respond: h2::server::SendResponse<Bytes>, outcome: Result<Bytes, Status>) {
    let mut response = opening();
    match outcome {
        Ok(message) => {
            let Ok(mut stream) = respond.send_response(response, false) else { return };
            if stream.send_data(message, false).is_ok() {
                let _ = stream.send_trailers(closing(&Ok(())));
            }
        }
        Err(status) => {
            response.headers_mut().extend(closing(&Err(status)));
            let _ = respond.send_response(response, true);
        }
    }
}

/// Ends a stream of messages.
pub fn finish(mut stream: SendStream<Bytes>, outcome: Result<(), Status>) {
    match &outcome {
        Err(status) if status.code == code::CANCELED => stream.send_reset(Reason::CANCEL),
        _ => {
            // The peer may be gone already.
            let _ = stream.send_trailers(closing(&outcome));
        }
    }
}

fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The outcome in trailers, if it is not a success.
pub fn status_in(headers: &HeaderMap) -> Option<Status> {
    let number: u16 = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    if number == 0 {
        return None;
    }
    let text = headers.get("grpc-message").and_then(|value| value.to_str().ok()).unwrap_or_default();
    Some(Status { code: number, message: percent_decoded(text).into() })
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_wherever_the_chunks_end() {
        let mut wire = Vec::new();
        for text in ["one", "", "three"] {
            wire.push(0);
            wire.extend((text.len() as u32).to_be_bytes());
            wire.extend(text.as_bytes());
        }
        for cut in 0..wire.len() {
            let mut buffer = BytesMut::from(&wire[..cut]);
            let mut seen = Vec::new();
            while let Some(message) = split(&mut buffer, 100).expect("valid") {
                seen.push(message);
            }
            buffer.extend_from_slice(&wire[cut..]);
            while let Some(message) = split(&mut buffer, 100).expect("valid") {
                seen.push(message);
            }
            assert_eq!(seen, ["one", "", "three"], "cut at {cut}");
        }
    }

    #[test]
    fn too_long_and_compressed_messages_are_refused() {
        let long = [0, 0, 0, 1, 0];
        assert!(split(&mut BytesMut::from(&long[..]), 255).is_err());
        assert_eq!(split(&mut BytesMut::from(&long[..]), 256), Ok(None));
        assert_eq!(split(&mut BytesMut::from(&[1, 0, 0, 0, 0][..]), 256), Err(status::COMPRESSED));
    }

    #[test]
    fn texts_outside_of_ascii_are_escaped_in_trailers() {
        assert_eq!(percent_encoded("a b%ä\n"), "a b%25%C3%A4%0A");
    }

    #[test]
    fn escaped_texts_are_read_back() {
        assert_eq!(percent_decoded("a%20b%C3%A4%"), "a bä%");
    }
}
