//! WebSocket (RFC 6455): framing, and a connection of whole messages.
//!
//! [`Codec`] is the pure framing. [`split`] turns an upgraded connection into a receiver and a sender of
//! messages plus the driver between them; pings are answered by the driver. [`byte_stream`] makes the binary
//! messages one stream of bytes again, which is how port-forward tunnels SPDY.

use std::io;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio_util::codec::{Decoder, Encoder, FramedRead, FramedWrite};
use tracing::debug;

use crate::Driver;

/// The largest message taken from a peer.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;
const QUEUE: usize = 16;

/// Why a connection cannot go on.
#[derive(Debug, Error)]
pub enum WebSocketError {
    /// A reserved bit, opcode or length that the protocol forbids.
    #[error("malformed frame: {0}")]
    Malformed(&'static str),
    /// More than we accept in one message.
    #[error("message of {0} bytes is too long")]
    TooLong(u64),
    /// The connection failed.
    #[error("connection")]
    Io(#[from] io::Error),
}

/// One whole message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// UTF-8 text.
    Text(Bytes),
    /// Bytes.
    Binary(Bytes),
    /// Answered with a pong of the same bytes.
    Ping(Bytes),
    /// Ignored.
    Pong(Bytes),
    /// The end, with a status code.
    Close(u16),
}

/// Which side of the connection this is: clients mask what they send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Sends masked frames and takes plain ones.
    Client,
    /// Sends plain frames and takes masked ones.
    Server,
}

/// Frames to messages and back.
pub struct Codec {
    role: Role,
    fragments: Option<(bool, BytesMut)>,
    mask: u32,
}

impl Codec {
    /// A codec for one connection or one direction of it.
    pub fn new(role: Role) -> Self {
        Self { role, fragments: None, mask: 0x9e37_79b9 }
    }
}

impl Decoder for Codec {
    type Item = Message;
    type Error = WebSocketError;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Message>, WebSocketError> {
        loop {
            let Some(frame) = next_frame(source)? else { return Ok(None) };
            match frame.opcode {
                0 => {
                    let Some((_, whole)) = &mut self.fragments else {
                        return Err(WebSocketError::Malformed("continuation of nothing"));
                    };
                    if whole.len() + frame.payload.len() > MAX_MESSAGE {
                        return Err(WebSocketError::TooLong((whole.len() + frame.payload.len()) as u64));
                    }
                    whole.extend_from_slice(&frame.payload);
                }
                1 | 2 => self.fragments = Some((frame.opcode == 1, frame.payload)),
                8 => {
                    let code = match frame.payload.first_chunk::<2>() {
                        Some(code) => u16::from_be_bytes(*code),
                        None => 1005,
                    };
                    return Ok(Some(Message::Close(code)));
                }
                9 => return Ok(Some(Message::Ping(frame.payload.freeze()))),
                10 => return Ok(Some(Message::Pong(frame.payload.freeze()))),
                _ => return Err(WebSocketError::Malformed("unknown opcode")),
            }
            if frame.last
                && let Some((text, whole)) = self.fragments.take()
            {
                let whole = whole.freeze();
                return Ok(Some(if text { Message::Text(whole) } else { Message::Binary(whole) }));
            }
        }
    }
}

struct RawFrame {
    last: bool,
    opcode: u8,
    payload: BytesMut,
}

fn next_frame(source: &mut BytesMut) -> Result<Option<RawFrame>, WebSocketError> {
    if source.len() < 2 {
        return Ok(None);
    }
    let (first, second) = (source[0], source[1]);
    if first & 0x70 != 0 {
        return Err(WebSocketError::Malformed("reserved bits"));
    }
    let (extended, short) = match second & 0x7f {
        126 => (2, 0),
        127 => (8, 0),
        length => (0, u64::from(length)),
    };
    let masked = second & 0x80 != 0;
    let head = 2 + extended + if masked { 4 } else { 0 };
    if source.len() < head {
        return Ok(None);
    }
    let length = match extended {
        2 => u64::from(u16::from_be_bytes([source[2], source[3]])),
        8 => {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&source[2..10]);
            u64::from_be_bytes(bytes)
        }
        _ => short,
    };
    if length > MAX_MESSAGE as u64 {
        return Err(WebSocketError::TooLong(length));
    }
    if source.len() < head + length as usize {
        return Ok(None);
    }
    let mut mask = [0; 4];
    if masked {
        mask.copy_from_slice(&source[head - 4..head]);
    }
    source.advance(head);
    let mut payload = source.split_to(length as usize);
    if masked {
        apply_mask(&mut payload, mask);
    }
    Ok(Some(RawFrame { last: first & 0x80 != 0, opcode: first & 0x0f, payload }))
}

fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    for (index, byte) in payload.iter_mut().enumerate() {
        *byte ^= mask[index % 4];
    }
}

impl Encoder<Message> for Codec {
    type Error = WebSocketError;

    fn encode(&mut self, message: Message, out: &mut BytesMut) -> Result<(), WebSocketError> {
        let (opcode, payload) = match message {
            Message::Text(data) => (1, data),
            Message::Binary(data) => (2, data),
            Message::Ping(data) => (9, data),
            Message::Pong(data) => (10, data),
            Message::Close(code) => (8, Bytes::copy_from_slice(&code.to_be_bytes())),
        };
        out.reserve(14 + payload.len());
        out.put_u8(0x80 | opcode);
        let masked = if self.role == Role::Client { 0x80 } else { 0 };
        match payload.len() {
            length @ 0..126 => out.put_u8(masked | length as u8),
            length @ 126..=0xffff => {
                out.put_u8(masked | 126);
                out.put_u16(length as u16);
            }
            length => {
                out.put_u8(masked | 127);
                out.put_u64(length as u64);
            }
        }
        if self.role == Role::Client {
            // The mask keeps old proxies from reading payloads as requests; inside TLS it need not be secret.
            self.mask = self.mask.wrapping_mul(0x01000193).rotate_left(13) ^ payload.len() as u32;
            let mask = self.mask.to_be_bytes();
            out.put_slice(&mask);
            let start = out.len();
            out.put_slice(&payload);
            apply_mask(&mut out[start..], mask);
        } else {
            out.put_slice(&payload);
        }
        Ok(())
    }
}

/// Messages of one connection: those of the peer, and where to put ours.
pub struct WebSocket {
    /// The peer's text, binary and close messages; ends with the connection.
    pub incoming: mpsc::Receiver<Message>,
    /// Our messages. When every clone is dropped, a close is sent and the connection ends.
    pub outgoing: mpsc::Sender<Message>,
}

/// A message connection on an upgraded one, and its driver.
pub fn split<T>(io: T, role: Role) -> (WebSocket, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (to_user, incoming) = mpsc::channel(QUEUE);
    let (outgoing, mut from_user) = mpsc::channel::<Message>(QUEUE);
    let pongs = outgoing.downgrade();
    let (reader, writer) = tokio::io::split(io);
    let driver = async move {
        let mut reader = FramedRead::with_capacity(reader, Codec::new(role), 8 * 1024);
        let mut writer = FramedWrite::new(writer, Codec::new(role));
        let read = async {
            while let Some(message) = reader.next().await {
                match message {
                    Ok(Message::Ping(data)) => {
                        if let Some(pongs) = pongs.upgrade() {
                            // Closed only when the connection is being closed.
                            let _ = pongs.send(Message::Pong(data)).await;
                        }
                    }
                    Ok(Message::Pong(_)) => {}
                    Ok(close @ Message::Close(_)) => {
                        // The user may have stopped listening; the end of the queue tells the same.
                        let _ = to_user.send(close).await;
                        break;
                    }
                    Ok(message) => {
                        if to_user.send(message).await.is_err() {
                            // Nobody reads any more, but the peer's close is still worth waiting for.
                            continue;
                        }
                    }
                    Err(error) => {
                        debug!(%error, "websocket ends");
                        break;
                    }
                }
            }
            drop(to_user);
        };
        let write = async {
            while let Some(message) = from_user.recv().await {
                let last = matches!(message, Message::Close(_));
                if writer.send(message).await.is_err() || last {
                    return;
                }
            }
            // The peer may be gone; then there is nobody to say goodbye to.
            let _ = writer.send(Message::Close(1000)).await;
            let _ = writer.close().await;
        };
        tokio::select! { () = read => {}, () = write => {} }
    };
    (WebSocket { incoming, outgoing }, Box::pin(driver))
}

/// The binary messages of a connection as one stream of bytes, and the driver.
pub fn byte_stream<T>(io: T, role: Role) -> (DuplexStream, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut socket, inner) = split(io, role);
    let (ours, theirs) = tokio::io::duplex(16 * 1024);
    let (mut from_user, mut to_user) = tokio::io::split(theirs);
    let driver = async move {
        let receive = async {
            while let Some(message) = socket.incoming.recv().await {
                match message {
                    Message::Binary(data) | Message::Text(data) => {
                        if to_user.write_all(&data).await.is_err() {
                            break;
                        }
                    }
                    Message::Close(_) => break,
                    Message::Ping(_) | Message::Pong(_) => {}
                }
            }
            // The user may have dropped its end already.
            let _ = to_user.shutdown().await;
        };
        let outgoing = socket.outgoing;
        let send = async move {
            let mut buffer = BytesMut::with_capacity(8 * 1024);
            loop {
                buffer.reserve(4 * 1024);
                match from_user.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {
                        if outgoing.send(Message::Binary(buffer.split().freeze())).await.is_err() {
                            return;
                        }
                    }
                }
            }
        };
        // The sender's end drops `outgoing`, whereupon the inner driver says goodbye and ends; the connection's
        // end drops the sender, for nobody hears it any more.
        let connection = async {
            tokio::join!(inner, receive);
        };
        tokio::select! {
            () = connection => {}
            () = async { send.await; std::future::pending().await } => {}
        }
    };
    (ours, Box::pin(driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_length_survive_both_roles() {
        for (from, to) in [(Role::Client, Role::Server), (Role::Server, Role::Client)] {
            let mut wire = BytesMut::new();
            let mut encoder = Codec::new(from);
            let messages: Vec<Message> = [0, 1, 125, 126, 70_000]
                .into_iter()
                .map(|length| Message::Binary(Bytes::from(vec![7; length])))
                .chain([Message::Text("hi".into()), Message::Ping("p".into()), Message::Close(1000)])
                .collect();
            for message in &messages {
                encoder.encode(message.clone(), &mut wire).unwrap();
            }
            let mut decoder = Codec::new(to);
            let mut seen = Vec::new();
            while let Some(message) = decoder.decode(&mut wire).unwrap() {
                seen.push(message);
            }
            assert_eq!(seen, messages);
        }
    }

    #[test]
    fn fragments_join_around_a_ping() {
        let mut wire = BytesMut::from(&b"\x02\x01a\x89\x01p\x80\x01b"[..]);
        let mut codec = Codec::new(Role::Client);
        assert_eq!(codec.decode(&mut wire).unwrap(), Some(Message::Ping("p".into())));
        assert_eq!(codec.decode(&mut wire).unwrap(), Some(Message::Binary("ab".into())));
    }

    #[test]
    fn forbidden_frames_are_errors() {
        for wire in [&b"\xf2\x00"[..], b"\x80\x00", b"\x83\x00", b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            assert!(Codec::new(Role::Client).decode(&mut BytesMut::from(wire)).is_err(), "{wire:?}");
        }
    }

    #[tokio::test]
    async fn byte_streams_meet_and_end() {
        let (left, right) = tokio::io::duplex(1024);
        let (mut client, client_driver) = byte_stream(left, Role::Client);
        let (mut server, server_driver) = byte_stream(right, Role::Server);
        let talk = async {
            client.write_all(&vec![1; 50_000]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all.len(), 50_000);
            drop(server);
        };
        tokio::join!(talk, client_driver, server_driver);
    }
}
