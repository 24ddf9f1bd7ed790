//! Listening: TLS, the choice between gRPC and plain HTTP, and one task per connection.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lifecycle::{Stop, Tasks};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::v3::service::{Peer, Service, VERSION};

/// How much a client may send before we have read it.
const WINDOW: u32 = 1 << 20;
/// How long a client may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Accepts connections until the stop.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    service: Arc<Service>,
    tasks: &Tasks,
    stop: Stop,
) {
    let acceptor = tls.map(TlsAcceptor::from);
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
        let (service, acceptor) = (service.clone(), acceptor.clone());
        tasks.spawn("etcd/connection", |stop| async move {
            if let Err(error) = connection(stream, acceptor, &service, &stop).await {
                tracing::debug!(client = %address, error = %telemetry::chain(&error), "connection ended");
            }
        });
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let Some(acceptor) = acceptor else {
        let mut first = [0; 3];
        let peeked = tokio::time::timeout(HANDSHAKE, peek(&stream, &mut first)).await;
        return match peeked {
            Ok(Ok(true)) if &first == b"PRI" => grpc(stream, Peer::default(), service, stop).await,
            Ok(Ok(true)) => plain(stream, service, stop).await,
            Ok(Ok(false)) => Ok(()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
    };
    let accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
    let stream = accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let session = stream.get_ref().1;
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer { certificate_name: certificate.and_then(|der| common_name(der)) };
    if session.alpn_protocol() == Some(b"h2") {
        grpc(stream, peer, service, stop).await
    } else {
        plain(stream, service, stop).await
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
    peer: Peer,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW * 4)
        .max_concurrent_streams(u32::MAX)
        .max_send_buffer_size(1 << 20);
    let handshake = tokio::time::timeout(HANDSHAKE, builder.handshake::<_, Bytes>(io)).await;
    let mut connection =
        handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?.map_err(io::Error::other)?;
    let mut calls = FuturesUnordered::new();
    let mut stopping = Box::pin(stop.requested());
    let mut stop_seen = false;
    poll_fn(|context| {
        loop {
            if !stop_seen && stopping.as_mut().poll(context).is_ready() {
                stop_seen = true;
                connection.graceful_shutdown();
            }
            loop {
                match connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => {
                        calls.push(service.serve(&peer, request, respond));
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
            // Once more around to write what the calls have left to send.
            if !finished {
                return Poll::Pending;
            }
        }
    })
    .await
}

/// Serves health, version and metrics.
async fn plain(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: &Arc<Service>,
    stop: &Stop,
) -> io::Result<()> {
    let handler = hyper::service::service_fn(|request: Request<Incoming>| {
        let response = answer(service, request.uri().path());
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), handler);
    match stop.or(serving).await {
        Some(served) => served.map_err(io::Error::other),
        None => Ok(()),
    }
}

/// The answer to a plain HTTP request.
fn answer(service: &Service, path: &str) -> Response<Full<Bytes>> {
    let alarm = service.etcd.shared.has_space_alarm();
    let open = service.etcd.shared.check_open().is_ok();
    let (status, kind, body) = match path {
        "/health" if open && !alarm => (StatusCode::OK, JSON, r#"{"health":"true","reason":""}"#.to_owned()),
        "/health" => {
            let reason = if alarm { "ALARM NOSPACE" } else { "server stopped" };
            (StatusCode::SERVICE_UNAVAILABLE, JSON, format!(r#"{{"health":"false","reason":"{reason}"}}"#))
        }
        "/livez" | "/readyz" if open => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/livez" | "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, TEXT, "server stopped\n".to_owned()),
        "/version" => {
            let body = format!(r#"{{"etcdserver":"{VERSION}","etcdcluster":"3.6.0","storage":"3.6.0"}}"#);
            (StatusCode::OK, JSON, body)
        }
        "/metrics" => (StatusCode::OK, METRICS, metrics(service)),
        _ => (StatusCode::NOT_FOUND, TEXT, "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind));
    response
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What there is to count, under etcd's names.
fn metrics(service: &Service) -> String {
    use std::fmt::Write;
    let shared = &service.etcd.shared;
    let state = shared.read();
    let counters = &service.counters;
    let size = state.keys.bytes();
    let rows: [(&str, &str, u64); 13] = [
        ("etcd_server_has_leader", "gauge", 1),
        ("etcd_server_is_leader", "gauge", 1),
        ("etcd_server_leader_changes_seen_total", "counter", 0),
        ("etcd_server_proposals_applied_total", "gauge", state.index),
        ("etcd_server_proposals_committed_total", "gauge", shared.durable_index()),
        ("etcd_server_quota_backend_bytes", "gauge", shared.config.quota_bytes),
        ("etcd_mvcc_db_total_size_in_bytes", "gauge", size),
        ("etcd_mvcc_db_total_size_in_use_in_bytes", "gauge", size),
        ("etcd_debugging_mvcc_current_revision", "gauge", shared.visible() as u64),
        ("etcd_debugging_mvcc_compact_revision", "gauge", state.keys.compacted() as u64),
        ("etcd_debugging_mvcc_watcher_total", "gauge", shared.hub().attached() as u64),
        (
            "etcd_network_client_grpc_received_bytes_total",
            "counter",
            counters.received.load(Ordering::Relaxed),
        ),
        ("etcd_network_client_grpc_sent_bytes_total", "counter", counters.sent.load(Ordering::Relaxed)),
    ];
    let mut out = String::new();
    for (name, kind, value) in rows {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# TYPE {name} {kind}\n{name} {value}");
    }
    let calls = counters.calls.load(Ordering::Relaxed);
    let failures = counters.failures.load(Ordering::Relaxed);
    let _ = writeln!(out, "# TYPE grpc_server_started_total counter\ngrpc_server_started_total {calls}");
    let _ = writeln!(out, "# TYPE grpc_server_failed_total counter\ngrpc_server_failed_total {failures}");
    let _ = writeln!(
        out,
        "# TYPE etcd_server_version gauge\netcd_server_version{{server_version=\"{VERSION}\"}} 1"
    );
    out
}
