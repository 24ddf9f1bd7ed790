//! Serving on a Unix socket: one task per connection, one per call.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use lifecycle::{Stop, Tasks};
use tokio::net::{UnixListener, UnixStream};

use crate::frame::{self, Messages};
use crate::status::Status;

/// Calls at a time on one connection.
const STREAMS: u32 = 1024;
/// Bytes of a request.
const MAX_REQUEST: usize = 16 << 20;
/// How long a peer may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
const WINDOW: u32 = 1 << 20;

/// What a call is answered with: framed messages.
pub enum Answer {
    /// One message.
    One(Bytes),
    /// Messages until the stream ends.
    Many(BoxStream<'static, Result<Bytes, Status>>),
}

/// What is served.
pub trait Service: Send + Sync + 'static {
    /// Answers a call of `path` (`/runtime.v1.RuntimeService/Version`) with a request's bytes.
    fn call(&self, path: &str, request: Bytes) -> BoxFuture<'static, Result<Answer, Status>>;
}

/// Makes the socket, for its owner only. A socket that is left over is replaced; one that is answered is not.
pub async fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Ok(meta) = std::fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on it"));
        }
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// Accepts connections until the stop.
pub async fn serve(listener: UnixListener, service: Arc<dyn Service>, tasks: Tasks, stop: Stop) {
    loop {
        // Dropping accept loses nothing: the connection stays in the backlog.
        let Some(accepted) = stop.or(listener.accept()).await else { return };
        match accepted {
            Ok((stream, _)) => {
                let (service, calls) = (service.clone(), tasks.clone());
                tasks.spawn("grpc/connection", move |stop| async move {
                    if let Err(error) = connection(stream, service, calls, &stop).await {
                        tracing::debug!(error = %telemetry::chain(&error), "connection ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(error = %telemetry::chain(&error), "connection not accepted");
                stop.or(tokio::time::sleep(Duration::from_millis(100))).await;
            }
        }
    }
}

async fn connection(
    stream: UnixStream,
    service: Arc<dyn Service>,
    tasks: Tasks,
    stop: &Stop,
) -> Result<(), h2::Error> {
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS).initial_window_size(WINDOW).max_header_list_size(64 << 10);
    let handshake = tokio::time::timeout(HANDSHAKE, builder.handshake::<_, Bytes>(stream));
    let Ok(connection) = handshake.await else { return Ok(()) };
    let mut connection = connection?;
    while let Some(Some(accepted)) = stop.or(connection.accept()).await {
        let (request, respond) = accepted?;
        let service = service.clone();
        tasks.spawn("grpc/call", move |stop| async move {
            stop.or(call(service.as_ref(), request, respond)).await;
        });
    }
    Ok(())
}

async fn call(
    service: &dyn Service,
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
) {
    let path = request.uri().path().to_owned();
    let mut messages = Messages::new(request.into_body(), MAX_REQUEST);
    let answered = async {
        let body = messages.next_bytes().await?.unwrap_or_default();
        service.call(&path, body).await
    };
    // Who gave up need not be answered: dropping the work is what cancelling means.
    let gone = std::future::poll_fn(|context| respond.poll_reset(context));
    let outcome = futures::select_biased! {
        outcome = answered.fuse() => outcome,
        _ = gone.fuse() => return,
    };
    let mut stream = match outcome {
        Ok(Answer::One(message)) => return send_one(respond, message).await,
        Err(status) => return frame::answer(respond, Err(status)),
        Ok(Answer::Many(stream)) => stream,
    };
    let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
    loop {
        let next = {
            let gone = std::future::poll_fn(|context| out.poll_reset(context));
            futures::select_biased! {
                next = stream.next().fuse() => next,
                _ = gone.fuse() => return,
            }
        };
        match next {
            Some(Ok(message)) => {
                if frame::send(&mut out, message).await.is_err() {
                    return;
                }
            }
            Some(Err(status)) => return frame::finish(out, Err(status)),
            None => return frame::finish(out, Ok(())),
        }
    }
}

async fn send_one(mut respond: h2::server::SendResponse<Bytes>, message: Bytes) {
    let Ok(mut out) = respond.send_response(frame::opening(), false) else { return };
    if frame::send(&mut out, message).await.is_ok() {
        frame::finish(out, Ok(()));
    }
}
