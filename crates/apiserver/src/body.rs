//! Request and response bodies: nothing, bytes, several shared pieces, or a stream.
//!
//! A LIST answers with shared pieces and never copies them together; a watch answers with a stream.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// Of a body that is too large, this much more is read and forgotten.
const SKIP_AT_MOST: usize = 16 << 20;

/// A stream of body pieces.
pub type Pieces = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// A body of this server, in either direction.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// All of it.
    Full(Bytes),
    /// Pieces in order.
    Shared(VecDeque<Bytes>),
    /// Pieces as they come.
    Stream(Pieces),
    /// What a network client sends.
    Incoming(Arriving),
}

/// What a network client sends, shared with the [`Rest`] of it.
pub struct Arriving(Arc<Mutex<Incoming>>);

/// What was not read of a request. An HTTP/2 client whose stream is given up while it sends may see an error instead of the answer, so
/// the rest is read before the answer goes out, and what is too long for that stays until it is out.
pub struct Rest(Option<Arc<Mutex<Incoming>>>);

/// So long is waited for the rest of a request that was refused.
const REST_WITHIN: Duration = Duration::from_secs(1);

impl Rest {
    /// Reads on without keeping anything, if whoever had the body has let go of it.
    pub async fn skip(&mut self) {
        let Some(body) = self.0.as_mut().and_then(Arc::get_mut) else { return };
        let body = body.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !HttpBody::is_end_stream(body) {
            let _ = tokio::time::timeout(REST_WITHIN, skip(body, SKIP_AT_MOST)).await;
        }
    }
}

impl Arriving {
    /// A request's body, and where what is left of it goes.
    pub fn of(body: Incoming) -> (Body, Rest) {
        if HttpBody::is_end_stream(&body) {
            return (Body::Empty, Rest(None));
        }
        let body = Arc::new(Mutex::new(body));
        (Body::Incoming(Self(Arc::clone(&body))), Rest(Some(body)))
    }

    fn body(&self) -> MutexGuard<'_, Incoming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer, with what was not read of its request.
pub struct Answer {
    pub body: Body,
    pub rest: Rest,
    /// Held by every request that its connection is busy with.
    pub busy: Arc<()>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Body {
    /// How many bytes it has, if that is known.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Empty => Some(0),
            Self::Full(bytes) => Some(bytes.len() as u64),
            Self::Shared(pieces) => Some(pieces.iter().map(|piece| piece.len() as u64).sum()),
            Self::Stream(_) | Self::Incoming(_) => None,
        }
    }

    /// A body from a stream.
    pub fn stream(stream: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::Stream(Box::pin(stream))
    }

    /// Reads everything, up to `limit` bytes.
    pub async fn read(self, limit: usize) -> Result<Bytes, ReadError> {
        match self {
            Self::Empty => Ok(Bytes::new()),
            Self::Full(bytes) if bytes.len() <= limit => Ok(bytes),
            Self::Full(_) => Err(ReadError::TooLarge { limit }),
            mut other => {
                let mut first: Option<Bytes> = None;
                let mut all = BytesMut::new();
                while let Some(frame) = other.frame().await {
                    let Ok(data) = frame.map_err(ReadError::Io)?.into_data() else { continue };
                    let have = first.as_ref().map_or(0, Bytes::len) + all.len();
                    if have + data.len() > limit {
                        skip(&mut other, SKIP_AT_MOST).await;
                        return Err(ReadError::TooLarge { limit });
                    }
                    match first.take() {
                        None if all.is_empty() => first = Some(data),
                        Some(earlier) => {
                            all.extend_from_slice(&earlier);
                            all.extend_from_slice(&data);
                        }
                        None => all.extend_from_slice(&data),
                    }
                }
                Ok(first.unwrap_or_else(|| all.freeze()))
            }
        }
    }
}

/// Reads on without keeping anything: many clients listen only after they have said everything, and would see
/// a broken stream instead of the answer.
async fn skip(body: &mut (impl HttpBody<Data = Bytes> + Unpin), at_most: usize) {
    let mut left = at_most;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len);
        if size > left {
            return;
        }
        left -= size;
    }
}

/// Why a body could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// More than the server takes.
    #[error("the body is larger than {limit} bytes")]
    TooLarge {
        /// The limit that was passed.
        limit: usize,
    },
    /// The connection broke.
    #[error("the body did not arrive")]
    Io(#[source] io::Error),
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::Empty } else { Self::Full(bytes) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<Incoming> for Body {
    fn from(body: Incoming) -> Self {
        Self::Incoming(Arriving(Arc::new(Mutex::new(body))))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *self = Self::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Self::Shared(pieces) => Poll::Ready(pieces.pop_front().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(stream) => {
                stream.as_mut().poll_next(context).map(|next| next.map(|piece| piece.map(Frame::data)))
            }
            Self::Incoming(arriving) => {
                Pin::new(&mut *arriving.body()).poll_frame(context).map_err(io::Error::other)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Full(bytes) => bytes.is_empty(),
            Self::Shared(pieces) => pieces.is_empty(),
            Self::Stream(_) => false,
            Self::Incoming(arriving) => arriving.body().is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Shared(pieces) => SizeHint::with_exact(pieces.iter().map(|piece| piece.len() as u64).sum()),
            Self::Stream(_) => SizeHint::default(),
            Self::Incoming(arriving) => arriving.body().size_hint(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Empty => "Empty",
            Self::Full(_) => "Full",
            Self::Shared(_) => "Shared",
            Self::Stream(_) => "Stream",
            Self::Incoming(_) => "Incoming",
        };
        out.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_are_read_in_order_and_the_limit_holds() {
        let pieces = || Body::Shared([Bytes::from("ab"), Bytes::from("cd"), Bytes::from("e")].into());
        assert_eq!(pieces().read(5).await.unwrap(), "abcde");
        assert!(matches!(pieces().read(4).await, Err(ReadError::TooLarge { limit: 4 })));
        assert_eq!(Body::Empty.read(0).await.unwrap(), "");
    }
}
