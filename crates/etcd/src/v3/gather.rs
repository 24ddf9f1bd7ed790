//! One write for everything that a connection has to say at a moment.
//!
//! The HTTP/2 library writes each frame above 256 bytes by itself, and flushes before the next one. A profile of gets and
//! of watches showed most of the time in the kernel, sending small pieces. So its writes go into a buffer here, its
//! flushes do nothing, and the connection's task calls [`Gathered::send`] when it has nothing else to do.
//!
//! Long pieces are not copied: what waits is sent, and then they are. Beyond [`FULL`] bytes writing waits for the peer, as
//! it would without the buffer. A connection that is handed to somebody who writes and flushes himself (after an upgrade)
//! is told so with [`Gathered::pass_on`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Nothing is taken while this much waits.
const FULL: usize = 64 << 10;
/// Pieces from this size on are written as they are.
const LONG: usize = 8 << 10;
/// A buffer that has grown beyond this is not kept.
const KEEP: usize = 16 << 10;

struct Inner<T> {
    io: T,
    gathered: Vec<u8>,
    /// How much of it has been sent.
    sent: usize,
    /// Flushes send.
    direct: bool,
}

impl<T: AsyncWrite + Unpin> Inner<T> {
    /// Writes until `left` bytes or fewer wait.
    fn drain(&mut self, context: &mut Context<'_>, left: usize) -> Poll<io::Result<()>> {
        while self.gathered.len() - self.sent > left {
            let written = ready!(Pin::new(&mut self.io).poll_write(context, &self.gathered[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        if self.sent == self.gathered.len() {
            self.sent = 0;
            self.gathered.clear();
            self.gathered.shrink_to(KEEP);
        } else if self.sent >= FULL {
            self.gathered.drain(..self.sent);
            self.sent = 0;
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection whose writes are gathered. Clones are the same connection.
pub struct Gathered<T>(Arc<Mutex<Inner<T>>>);

impl<T> Clone for Gathered<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: AsyncWrite + Unpin> Gathered<T> {
    /// Gathers what is written to `io`.
    pub fn new(io: T) -> Self {
        Self(Arc::new(Mutex::new(Inner { io, gathered: Vec::new(), sent: 0, direct: false })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether something waits to be sent.
    pub fn waits(&self) -> bool {
        !self.inner().gathered.is_empty()
    }

    /// From now on flushes send: nobody calls [`Gathered::send`] any more once what waits now is gone.
    pub fn pass_on(&self) {
        self.inner().direct = true;
    }

    /// Sends what was gathered, as far as the peer takes it; the task is woken when it takes more.
    pub fn send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.inner();
        if inner.gathered.is_empty() {
            return Poll::Ready(Ok(()));
        }
        ready!(inner.drain(context, 0))?;
        Pin::new(&mut inner.io).poll_flush(context)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner().io).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.inner();
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if length >= LONG {
            ready!(inner.drain(context, 0))?;
            return Pin::new(&mut inner.io).poll_write_vectored(context, slices);
        }
        ready!(inner.drain(context, FULL))?;
        for slice in slices {
            inner.gathered.extend_from_slice(slice);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.inner();
        if !inner.direct {
            return Poll::Ready(Ok(()));
        }
        ready!(inner.drain(context, 0))?;
        Pin::new(&mut inner.io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.inner();
        ready!(inner.drain(context, 0))?;
        Pin::new(&mut inner.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn writes_arrive_together_when_flushed() {
        let (near, mut far) = tokio::io::duplex(1000);
        let gathered = Gathered::new(near);
        let mut writer = gathered.clone();
        for piece in ["one ", "two ", "three"] {
            writer.write_all(piece.as_bytes()).await.expect("taken");
            writer.flush().await.expect("nothing to do");
        }
        let mut buffer = [0; 100];
        let early = tokio::time::timeout(std::time::Duration::from_millis(1), far.read(&mut buffer)).await;
        assert!(early.is_err(), "sent before the flush");
        poll_fn(|context| gathered.send(context)).await.expect("sent");
        let count = far.read(&mut buffer).await.expect("read");
        assert_eq!(&buffer[..count], b"one two three");
        gathered.pass_on();
        writer.write_all(b"four").await.expect("taken");
        writer.flush().await.expect("sent");
        let count = far.read(&mut buffer).await.expect("read");
        assert_eq!(&buffer[..count], b"four");
    }

    #[tokio::test]
    async fn a_peer_that_does_not_read_makes_writers_wait_and_loses_nothing() {
        let (near, mut far) = tokio::io::duplex(1000);
        let gathered = Gathered::new(near);
        let content: Vec<u8> = (0..FULL * 3).map(|number| (number / 3) as u8).collect();
        let mut writer = gathered.clone();
        let sent = content.clone();
        let write = async move {
            // Short and long ones in turn.
            let (mut rest, mut size) = (&sent[..], 1);
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(size.min(rest.len()));
                writer.write_all(piece).await.expect("taken");
                assert!(writer.inner().gathered.len() <= 2 * FULL + 3 * LONG);
                (rest, size) = (after, size * 7 % (2 * LONG));
            }
            writer.shutdown().await.expect("sent");
        };
        let read = async {
            let mut received = Vec::new();
            far.read_to_end(&mut received).await.expect("read");
            received
        };
        let ((), received) = tokio::join!(write, read);
        assert!(received == content);
    }
}
