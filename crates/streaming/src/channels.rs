//! Numbered channels inside websocket messages: `[channel, payload…]`, or a digit and base64 text.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use crate::websocket::Message;

/// The largest payload we put in one message.
const MAX_PAYLOAD: usize = 16 * 1024;

/// How channel and payload are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Binary,
    Base64,
}

impl Encoding {
    /// The encoding that a subprotocol's name asks for.
    pub fn of(protocol: &str) -> Self {
        if protocol.contains("base64") { Self::Base64 } else { Self::Binary }
    }

    pub fn message(self, channel: u8, payload: &[u8]) -> Message {
        match self {
            Self::Binary => {
                let mut data = BytesMut::with_capacity(1 + payload.len());
                data.put_u8(channel);
                data.put_slice(payload);
                Message::Binary(data.freeze())
            }
            Self::Base64 => {
                let mut text = String::with_capacity(1 + payload.len() * 4 / 3 + 4);
                text.push(char::from(b'0' + channel % 10));
                STANDARD.encode_string(payload, &mut text);
                Message::Text(text.into())
            }
        }
    }

    /// Channel and payload of a peer's message; `None` for what is neither.
    pub fn parse(self, message: &Message) -> Option<(u8, Bytes)> {
        let (Message::Binary(data) | Message::Text(data)) = message else { return None };
        let channel = *data.first()?;
        match self {
            Self::Binary => Some((channel, data.slice(1..))),
            Self::Base64 => {
                let payload = STANDARD.decode(&data[1..]).ok()?;
                Some((channel.checked_sub(b'0')?, payload.into()))
            }
        }
    }
}

/// A byte sink that writes to one channel.
pub struct ChannelWriter {
    channel: u8,
    encoding: Encoding,
    sender: PollSender<Message>,
}

impl ChannelWriter {
    pub fn new(channel: u8, encoding: Encoding, sender: mpsc::Sender<Message>) -> Self {
        Self { channel, encoding, sender: PollSender::new(sender) }
    }
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.sender.poll_reserve(cx)).map_err(|_| gone())?;
        let count = data.len().min(MAX_PAYLOAD);
        let message = self.encoding.message(self.channel, &data[..count]);
        self.sender.send_item(message).map_err(|_| gone())?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_round_trip() {
        for encoding in [Encoding::Binary, Encoding::Base64] {
            let message = encoding.message(4, b"\x00\xff");
            assert_eq!(encoding.parse(&message), Some((4, Bytes::from_static(b"\x00\xff"))));
        }
        assert_eq!(Encoding::of("v4.base64.channel.k8s.io"), Encoding::Base64);
        assert_eq!(Encoding::Base64.parse(&Message::Text("1@@".into())), None);
    }
}
