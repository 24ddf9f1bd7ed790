//! Listening: TLS, the choice between gRPC and plain HTTP, and one task per connection.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::Either;
use futures::stream::{FuturesUnordered, StreamExt};
use lifecycle::{Stop, Tasks};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::replication::serve as members;
use crate::tls::ServerTls;
use crate::v3::authority::Mended;
use crate::v3::gather::Gathered;
use crate::v3::http;
use crate::v3::service::{Peer, Service};
use crate::v3::shards::Shards;

/// How much a client may send before we have read it.
const WINDOW: u32 = 1 << 20;
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// gRPC and HTTP.
    Everything,
    /// gRPC only.
    Grpc,
    /// Health, version and metrics.
    Http,
    /// What members tell each other.
    Members,
}

/// What a connection may do.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The most calls at a time.
    pub streams: u32,
    /// How often it is asked whether it is alive; zero is never.
    pub ping_every: Duration,
    /// How long it may take to answer that.
    pub ping_timeout: Duration,
}

/// Accepts connections until the stop.
pub async fn serve(
    listener: TcpListener,
    serves: Serves,
    tls: Option<ServerTls>,
    limits: Limits,
    service: Arc<Service>,
    tasks: &Tasks,
    stop: Stop,
) {
    let shards = match serves {
        Serves::Everything | Serves::Grpc => Shards::start(tasks)
            .inspect_err(|error| tracing::warn!(error = %telemetry::chain(error), "no threads of its own"))
            .ok(),
        Serves::Http | Serves::Members => None,
    };
    loop {
        // Dropping accept loses nothing: the connection stays in the backlog.
        let Some(accepted) = stop.or(listener.accept()).await else { return };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or a connection that was gone before we took it.
                tracing::warn!(error = %telemetry::chain(&error), "connection not accepted");
                stop.or(tokio::time::sleep(Duration::from_millis(100))).await;
                continue;
            }
        };
        let (service, tls, limits) = (service.clone(), tls.clone(), limits.clone());
        let ended = move |outcome: io::Result<()>| {
            if let Err(error) = outcome {
                tracing::debug!(client = %address, error = %telemetry::chain(&error), "connection ended");
            }
        };
        let Some(shards) = &shards else {
            tasks.spawn("etcd/connection", move |stop| async move {
                ended(connection(stream, serves, tls, &limits, &service, &stop).await);
            });
            continue;
        };
        // The thread's own runtime has to wait for it from now on.
        let Ok(stream) = stream.into_std() else { continue };
        shards.run(move |tasks| {
            tasks.spawn("etcd/connection", move |stop| async move {
                let served = match TcpStream::from_std(stream) {
                    Ok(stream) => connection(stream, serves, tls, &limits, &service, &stop).await,
                    Err(error) => Err(error),
                };
                ended(served);
            });
        });
    }
}

async fn connection(
    stream: TcpStream,
    serves: Serves,
    tls: Option<ServerTls>,
    limits: &Limits,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let http = serves != Serves::Grpc;
    let grpc_too = serves != Serves::Http;
    let Some(tls) = tls else {
        let mut first = [0; 3];
        let peeked = tokio::time::timeout(HANDSHAKE, peek(&stream, &mut first)).await;
        return match peeked {
            Ok(Ok(true)) if &first == b"PRI" && grpc_too => {
                grpc(Mended::new(stream), serves, Peer::default(), limits, service, stop).await
            }
            Ok(Ok(true)) if http => http::serve(stream, serves, service, stop).await,
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
    };
    let accepted =
        tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(tls.config.clone()).accept(stream)).await;
    let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    if !tls.admits(certificate) {
        return Err(io::Error::other("the client's certificate has none of the allowed host names"));
    }
    let peer = Peer { certificate_name: certificate.and_then(|der| common_name(der)) };
    match session.alpn_protocol() {
        Some(b"h2") if grpc_too => grpc(stream, serves, peer, limits, service, stop).await,
        _ if http => http::serve(stream, serves, service, stop).await,
        _ => Ok(()),
    }
}

/// Looks at the first bytes without taking them; `false` if the client has gone.
async fn peek(stream: &TcpStream, first: &mut [u8; 3]) -> io::Result<bool> {
    loop {
        match stream.peek(first).await? {
            0 => return Ok(false),
            3 => return Ok(true),
            // Readable already, so there is nothing to wait for but time; the caller's deadline bounds it.
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

fn common_name(der: &[u8]) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    Some(name.as_str().ok()?.to_owned())
}

/// Serves gRPC. All calls of the connection are futures of this one task: answers that become ready together are written
/// together, and no call costs a task.
async fn grpc(
    io: impl AsyncRead + AsyncWrite + Unpin,
    serves: Serves,
    peer: Peer,
    limits: &Limits,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4)
        .max_concurrent_streams(limits.streams)
        .max_send_buffer_size(1 << 20);
    let io = Gathered::new(io);
    let mut handshake = Box::pin(builder.handshake::<_, Bytes>(io.clone()));
    let handshake = poll_fn(|context| {
        let outcome = handshake.as_mut().poll(context);
        // What fails here fails the handshake too.
        let _ = io.send(context);
        outcome
    });
    let handshake = tokio::time::timeout(HANDSHAKE, handshake).await;
    let mut connection =
        handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?;
    let mut calls = FuturesUnordered::new();
    let mut stopping = Box::pin(stop.requested());
    let mut stop_seen = false;
    let mut pings = Pings::new(connection.ping_pong(), limits);
    poll_fn(|context| {
        if let Poll::Ready(error) = pings.poll(context) {
            return Poll::Ready(Err(error));
        }
        loop {
            if !stop_seen && stopping.as_mut().poll(context).is_ready() {
                stop_seen = true;
                connection.graceful_shutdown();
            }
            loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        calls.push(match serves {
                            Serves::Members => {
                                Either::Right(members::serve(service, stop, request, respond).boxed())
                            }
                            _ => Either::Left(service.serve(&peer, request, respond)),
                        });
                    }
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                    Poll::Ready(None) => return Poll::Ready(Ok(())),
                    Poll::Pending => break,
                }
            }
            let mut finished = false;
            while let Poll::Ready(Some(())) = calls.poll_next_unpin(context) {
                finished = true;
            }
            // Once more around to make frames of what the calls have left to send.
            if !finished {
                return match io.send(context) {
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    _ => Poll::Pending,
                };
            }
        }
    })
    .await
}

/// Asks a connection now and then whether its other end is alive.
struct Pings {
    frames: Option<h2::PingPong>,
    timer: Pin<Box<tokio::time::Sleep>>,
    waiting: bool,
    every: Duration,
    timeout: Duration,
}

impl Pings {
    fn new(frames: Option<h2::PingPong>, limits: &Limits) -> Self {
        Self {
            frames: frames.filter(|_| !limits.ping_every.is_zero()),
            timer: Box::pin(tokio::time::sleep(limits.ping_every)),
            waiting: false,
            every: limits.ping_every,
            timeout: limits.ping_timeout,
        }
    }

    /// Ready when the other end has been silent for too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let Some(frames) = &mut self.frames else { return Poll::Pending };
        loop {
            if self.waiting {
                match frames.poll_pong(context) {
                    Poll::Ready(Ok(_)) => {
                        self.waiting = false;
                        self.timer.as_mut().reset(tokio::time::Instant::now() + self.every);
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(io::Error::other(error)),
                    Poll::Pending => {}
                }
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            if self.waiting {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            if let Err(error) = frames.send_ping(h2::Ping::opaque()) {
                return Poll::Ready(io::Error::other(error));
            }
            self.waiting = true;
            self.timer.as_mut().reset(tokio::time::Instant::now() + self.timeout);
        }
    }
}
