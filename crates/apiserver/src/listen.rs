//! Listeners: accept, TLS, HTTP/1.1 and HTTP/2, and a stop that lets requests finish.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use etcd::v3::gather::Gathered;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use lifecycle::Stop;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::authn::x509::Verdict;
use crate::body::{Answer, Arriving, Body};

/// What is known of a connection before its first request.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Where it comes from.
    pub remote: SocketAddr,
    /// The client's certificates, its own first; not judged yet.
    pub certificates: Arc<[CertificateDer<'static>]>,
    /// What they were found to mean.
    pub verdict: Arc<Verdict>,
    /// Asks the client to connect anew; what runs is finished.
    pub leave: Stop,
}

#[cfg(test)]
impl Connection {
    pub(crate) fn for_tests() -> Self {
        let remote = SocketAddr::from(([127, 0, 0, 1], 1));
        Self { remote, certificates: Arc::new([]), verdict: Arc::default(), leave: Stop::new() }
    }
}

/// How HTTP is spoken.
#[derive(Clone, Copy, Debug)]
pub struct Speech {
    /// Whether HTTP/2 is.
    pub http2: bool,
    /// Streams of one of its connections; 0 for the usual number.
    pub streams: u32,
}

/// Answers requests of connections.
pub trait Service: Send + Sync + 'static {
    /// A connection did not come to be.
    fn handshake_failed(&self) {}

    /// Answers one request.
    fn call(
        self: Arc<Self>,
        connection: Connection,
        request: http::Request<Body>,
    ) -> impl Future<Output = http::Response<Body>> + Send;
}

/// A client has this long to finish the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Running requests have this long after the stop.
const DRAIN: Duration = Duration::from_secs(10);
/// Streams of a connection, if nobody says otherwise.
const STREAMS: u32 = 250;
/// The largest set of headers.
const HEADER_LIMIT: usize = 64 << 10;

/// Accepts connections until stopped, then waits for the running requests.
pub async fn serve<S: Service>(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    speech: Speech,
    service: Arc<S>,
    stop: Stop,
) {
    let acceptor = TlsAcceptor::from(tls);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.requested() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => {
                    connections.spawn(connection(stream, remote, acceptor.clone(), speech, service.clone(), stop.child()));
                }
                Err(error) => {
                    // Out of descriptors, mostly: leave the others time to end.
                    debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            // Ended connections are forgotten as they end.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drained).await.is_err() {
        connections.shutdown().await;
    }
}

async fn connection<S: Service>(
    stream: TcpStream,
    remote: SocketAddr,
    acceptor: TlsAcceptor,
    speech: Speech,
    service: Arc<S>,
    leave: Stop,
) {
    let _ = stream.set_nodelay(true); // only costs latency if refused
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            service.handshake_failed();
            return debug!(%remote, %error, "TLS handshake failed");
        }
        Err(_) => {
            service.handshake_failed();
            return debug!(%remote, "TLS handshake took too long");
        }
    };
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = certificates.iter().map(|one| one.clone().into_owned()).collect();
    let connection = Connection { remote, certificates, verdict: Arc::default(), leave: leave.clone() };
    let busy = Arc::new(());
    let among = busy.clone();
    let handler = service_fn(move |request: http::Request<hyper::body::Incoming>| {
        let (head, body) = request.into_parts();
        let (body, mut rest) = Arriving::of(body);
        // Who asks whether to send at all is answered without having to.
        let asks_first = head.headers.contains_key(http::header::EXPECT);
        // In a box, since what waits for it is moved several times on the way to its task, and twice as large.
        let answer =
            Box::pin(service.clone().call(connection.clone(), http::Request::from_parts(head, body)));
        let busy = among.clone();
        async move {
            let answer = answer.await;
            if !asks_first {
                rest.skip().await;
            }
            Ok::<_, Infallible>(answer.map(|body| Answer { body, rest, busy }))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if !speech.http2 {
        builder = builder.http1_only();
    }
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(32))
        .max_buf_size(HEADER_LIMIT * 2);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(if speech.streams == 0 { STREAMS } else { speech.streams })
        .max_header_list_size(HEADER_LIMIT as u32)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .max_frame_size(64 << 10)
        .max_send_buf_size(128 << 10)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(15));
    // Without this each frame would be a TLS record and a system call of its own.
    let io = Gathered::new(stream);
    let mut serving =
        std::pin::pin!(builder.serve_connection_with_upgrades(TokioIo::new(io.clone()), handler));
    let mut stopping = std::pin::pin!(leave.requested());
    let (mut stopped, mut rested) = (false, false);
    let outcome = poll_fn(|waker| {
        if !stopped && stopping.as_mut().poll(waker).is_ready() {
            stopped = true;
            serving.as_mut().graceful_shutdown();
        }
        let outcome = serving.as_mut().poll(waker);
        // Whoever else is about to answer on this connection (an event goes to all of its watches) goes first. A lone request is
        // answered at once: two of those that hold this are the connection's own.
        if outcome.is_pending() && !rested && Arc::strong_count(&busy) > 3 && io.waits() {
            rested = true;
            waker.waker().wake_by_ref();
            return outcome;
        }
        rested = false;
        let _ = io.send(waker); // what fails here fails the next read too
        outcome
    })
    .await;
    // After an upgrade the stream has another owner; what waits until now is still ours to send.
    io.pass_on();
    let _ = tokio::time::timeout(DRAIN, poll_fn(|waker| io.send(waker))).await;
    if let Err(error) = outcome {
        debug!(%remote, %error, "connection ended");
    }
}
