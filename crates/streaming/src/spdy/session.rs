//! Many streams on one SPDY connection.
//!
//! [`Session::new`] returns the handle and the driver. The driver reads frames into each stream's bounded queue
//! and writes what the streams send; it ends when the connection does, and every stream then reads its end.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::codec::{FramedRead, FramedWrite};
use tokio_util::sync::PollSender;
use tracing::debug;

use super::frame::{Codec, Frame, Headers};
use crate::Driver;

/// Data frames a stream may hold unread before the whole connection waits for it.
const STREAM_QUEUE: usize = 16;
/// Frames waiting to be written.
const WRITE_QUEUE: usize = 16;
/// Streams the peer opened and nobody accepted yet.
const ACCEPT_QUEUE: usize = 32;
/// The largest data frame we make of one write.
const MAX_DATA: usize = 16 * 1024;

type Streams = Arc<Mutex<HashMap<u32, mpsc::Sender<Bytes>>>>;

/// The handle of a connection: accepts the peer's streams and opens our own.
pub struct Session {
    accepted: mpsc::Receiver<Stream>,
    frames: mpsc::Sender<Frame>,
    streams: Streams,
    next: AtomicU32,
}

impl Session {
    /// A session on an upgraded connection. `server` decides who uses even stream numbers.
    pub fn new<T>(io: T, server: bool) -> (Self, Driver)
    where
        T: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (frames, to_write) = mpsc::channel(WRITE_QUEUE);
        let (accept, accepted) = mpsc::channel(ACCEPT_QUEUE);
        let streams = Streams::default();
        let driver = drive(io, accept, frames.clone(), to_write, streams.clone());
        let session = Self { accepted, frames, streams, next: AtomicU32::new(if server { 2 } else { 1 }) };
        (session, Box::pin(driver))
    }

    /// The next stream of the peer; `None` once the connection ended.
    pub async fn accept(&mut self) -> Option<Stream> {
        self.accepted.recv().await
    }

    /// Opens a stream with these headers.
    pub async fn open(&self, headers: Headers) -> io::Result<Stream> {
        let id = self.next.fetch_add(2, Ordering::Relaxed);
        let stream = Stream::enter(id, headers.clone(), &self.streams, &self.frames);
        self.frames
            .send(Frame::SynStream { stream: id, headers, fin: false })
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(stream)
    }

    /// Tells the peer that no more streams are taken.
    pub async fn go_away(&self) {
        // A closed queue means the connection is gone already, which is what was asked for.
        let _ = self.frames.send(Frame::GoAway { last_good: 0, status: 0 }).await;
    }
}

async fn drive<T>(
    io: T,
    accept: mpsc::Sender<Stream>,
    frames: mpsc::Sender<Frame>,
    mut to_write: mpsc::Receiver<Frame>,
    streams: Streams,
) where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, writer) = tokio::io::split(io);
    let mut incoming = FramedRead::with_capacity(reader, Codec::new(), 8 * 1024);
    let mut outgoing = FramedWrite::new(writer, Codec::new());
    // The read side keeps only a weak sender, so that the queue closes when the last stream and handle are gone.
    let weak = frames.downgrade();
    drop(frames);
    let read = async {
        while let Some(frame) = incoming.next().await {
            match frame {
                Ok(frame) => take(frame, &accept, &weak, &streams).await,
                Err(error) => {
                    debug!(%error, "spdy connection ends");
                    break;
                }
            }
        }
    };
    let write = async {
        while let Some(frame) = to_write.recv().await {
            if outgoing.feed(frame).await.is_err() {
                return;
            }
            while let Ok(frame) = to_write.try_recv() {
                if outgoing.feed(frame).await.is_err() {
                    return;
                }
            }
            if outgoing.flush().await.is_err() {
                return;
            }
        }
        // Everything was sent; an error in closing changes nothing for anyone.
        let _ = outgoing.close().await;
    };
    // Either end of the connection ends both: the peer's close drops what we would still write to it.
    tokio::select! { () = read => {}, () = write => {} }
    streams.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

async fn take(
    frame: Frame,
    accept: &mpsc::Sender<Stream>,
    frames: &mpsc::WeakSender<Frame>,
    streams: &Streams,
) {
    match frame {
        Frame::SynStream { stream, headers, fin } => {
            let Some(frames) = frames.upgrade() else { return };
            let entered = Stream::enter(stream, headers, streams, &frames);
            if fin {
                forget(streams, stream);
            }
            if frames.send(Frame::SynReply { stream, headers: Vec::new(), fin: false }).await.is_err() {
                return;
            }
            // Nobody accepts any more: dropping the stream ends it.
            let _ = accept.send(entered).await;
        }
        Frame::Data { stream, data, fin } => {
            let queue = streams.lock().unwrap_or_else(PoisonError::into_inner).get(&stream).cloned();
            if let Some(queue) = queue
                && !data.is_empty()
                && queue.send(data).await.is_err()
            {
                forget(streams, stream);
            }
            if fin {
                forget(streams, stream);
            }
        }
        Frame::RstStream { stream, .. } => forget(streams, stream),
        Frame::SynReply { stream, fin: true, .. } | Frame::Headers { stream, fin: true, .. } => {
            forget(streams, stream)
        }
        Frame::Ping(id) => {
            if let Some(frames) = frames.upgrade() {
                // The queue is closed only when the connection is.
                let _ = frames.send(Frame::Ping(id)).await;
            }
        }
        Frame::SynReply { .. }
        | Frame::Headers { .. }
        | Frame::Settings
        | Frame::GoAway { .. }
        | Frame::WindowUpdate { .. } => {}
    }
}

fn forget(streams: &Streams, stream: u32) {
    streams.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream);
}

/// One stream: bytes both ways. Shutting it down, or dropping it, ends our direction of it.
pub struct Stream {
    id: u32,
    headers: Headers,
    queue: mpsc::Receiver<Bytes>,
    unread: Bytes,
    sender: PollSender<Frame>,
    closing: mpsc::WeakSender<Frame>,
    finished: bool,
    streams: Streams,
}

impl Stream {
    fn enter(id: u32, headers: Headers, streams: &Streams, frames: &mpsc::Sender<Frame>) -> Self {
        let (queue_in, queue) = mpsc::channel(STREAM_QUEUE);
        streams.lock().unwrap_or_else(PoisonError::into_inner).insert(id, queue_in);
        Self {
            id,
            headers,
            queue,
            unread: Bytes::new(),
            sender: PollSender::new(frames.clone()),
            closing: frames.downgrade(),
            finished: false,
            streams: streams.clone(),
        }
    }

    /// The stream's number on its connection.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The value of one of the headers that opened the stream.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>, frame: impl FnOnce() -> Frame) -> Poll<io::Result<()>> {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.sender.poll_reserve(cx)).map_err(|_| closed())?;
        Poll::Ready(self.sender.send_item(frame()).map_err(|_| closed()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            match ready!(self.queue.poll_recv(cx)) {
                Some(data) => self.unread = data,
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread[..count]);
        self.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let (stream, count) = (self.id, data.len().min(MAX_DATA));
        ready!(self.poll_frame(cx, || Frame::Data {
            stream,
            data: Bytes::copy_from_slice(&data[..count]),
            fin: false
        }))?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.finished {
            let stream = self.id;
            ready!(self.poll_frame(cx, || Frame::Data { stream, data: Bytes::new(), fin: true }))?;
            self.finished = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        forget(&self.streams, self.id);
        if !self.finished
            && let Some(frames) = self.closing.upgrade()
        {
            // An orderly end: kubectl reports a reset stream as an error. A full queue loses it; the peer then
            // learns of the end from the connection's.
            let _ = frames.try_send(Frame::Data { stream: self.id, data: Bytes::new(), fin: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn streams_carry_bytes_both_ways_and_end_separately() {
        let (left, right) = tokio::io::duplex(4096);
        let (client, client_driver) = Session::new(left, false);
        let (mut server, server_driver) = Session::new(right, true);
        let talk = async move {
            let mut first = client.open(vec![("streamType".into(), "data".into())]).await.unwrap();
            let mut second = client.open(vec![("streamType".into(), "error".into())]).await.unwrap();
            let mut first_there = server.accept().await.unwrap();
            let mut second_there = server.accept().await.unwrap();
            assert_eq!(first_there.header("streamtype"), Some("data"));
            assert_eq!(second_there.header("streamType"), Some("error"));
            first.write_all(b"ping").await.unwrap();
            first.shutdown().await.unwrap();
            let mut text = String::new();
            first_there.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "ping");
            first_there.write_all(&vec![b'x'; 100_000]).await.unwrap();
            first_there.shutdown().await.unwrap();
            let mut answer = Vec::new();
            first.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer.len(), 100_000);
            second_there.write_all(b"late").await.unwrap();
            second_there.shutdown().await.unwrap();
            text.clear();
            second.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "late");
        };
        tokio::select! {
            () = talk => {}
            ((), ()) = async { tokio::join!(client_driver, server_driver) } => panic!("the drivers ended first"),
        }
    }

    #[tokio::test]
    async fn the_end_of_the_connection_ends_every_stream() {
        let (left, right) = tokio::io::duplex(4096);
        let (client, client_driver) = Session::new(left, false);
        let (mut server, server_driver) = Session::new(right, true);
        let opened = async {
            let stream = client.open(Vec::new()).await.unwrap();
            (stream, server.accept().await.unwrap())
        };
        let mut client_driver = client_driver;
        let mut server_driver = server_driver;
        let (_stream, mut there) = tokio::select! {
            pair = opened => pair,
            () = &mut client_driver => panic!("ended"),
            () = &mut server_driver => panic!("ended"),
        };
        drop(client_driver);
        server_driver.await;
        let mut rest = Vec::new();
        there.read_to_end(&mut rest).await.unwrap();
        assert!(server.accept().await.is_none());
    }
}
