//! Calling over a Unix socket: one connection, made when needed and again when lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Uri};
use lifecycle::Tasks;
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use crate::frame::{self, Messages, status_in};
use crate::status::{Status, code};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of an answer, as upstream's clients of runtimes and drivers allow.
const MAX_ANSWER: usize = 16 << 20;
const WINDOW: u32 = 4 << 20;

/// A client of one socket.
#[derive(Debug)]
pub struct Channel {
    path: PathBuf,
    tasks: Tasks,
    connection: Mutex<Option<SendRequest<Bytes>>>,
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status::new(code::UNAVAILABLE, error.to_string())
}

impl Channel {
    /// A client of the socket at `path`; nothing is connected yet. Its connections live on `tasks`.
    pub fn new(path: &Path, tasks: &Tasks) -> Self {
        Self { path: path.to_owned(), tasks: tasks.clone(), connection: Mutex::new(None) }
    }

    async fn ready(&self) -> Result<SendRequest<Bytes>, Status> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.clone() {
            match connection.ready().await {
                Ok(ready) => return Ok(ready),
                Err(_) => *held = None,
            }
        }
        let at = |error: std::io::Error| unavailable(format!("{}: {error}", self.path.display()));
        let connecting = async {
            let stream = UnixStream::connect(&self.path).await.map_err(at)?;
            h2::client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .handshake::<_, Bytes>(stream)
                .await
                .map_err(unavailable)
        };
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        let (connection, driver) = connected.map_err(|_| unavailable("connecting took too long"))??;
        // Its error is its calls' too.
        self.tasks.spawn("grpc/client", |stop| async move { drop(stop.or(driver).await) });
        *held = Some(connection.clone());
        connection.ready().await.map_err(unavailable)
    }

    async fn open(&self, path: &str, request: &impl Message) -> Result<Messages, Status> {
        let mut connection = self.ready().await?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(http::uri::Scheme::HTTP);
        // gRPC's name for a peer without one.
        parts.authority = Some(http::uri::Authority::from_static("localhost"));
        parts.path_and_query = path.parse().ok();
        let request_head = Request::builder()
            .method(Method::POST)
            .uri(Uri::from_parts(parts).map_err(unavailable)?)
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers")
            .body(())
            .map_err(unavailable)?;
        let (response, mut out) = connection.send_request(request_head, false).map_err(frame::broken)?;
        drop(connection);
        out.send_data(frame::framed(request), true).map_err(frame::broken)?;
        let (head, body) = response.await.map_err(frame::broken)?.into_parts();
        match status_in(&head.headers) {
            Some(status) => Err(status),
            None => Ok(Messages::new(body, MAX_ANSWER)),
        }
    }

    /// One call with one answer, within a time.
    pub async fn call<M: Message + Default>(
        &self,
        path: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<M, Status> {
        let attempt = async {
            let mut answers = self.open(path, request).await?;
            let answer = answers.next::<M>().await?;
            let trailers = answers.trailers().await.map_err(frame::broken)?;
            match (answer, trailers.as_ref().and_then(status_in)) {
                (_, Some(status)) => Err(status),
                (Some(answer), None) => Ok(answer),
                (None, None) => Err(unavailable("an answer without a message")),
            }
        };
        let outcome = tokio::time::timeout(limit, attempt).await;
        outcome.unwrap_or_else(|_| Err(Status::new(code::DEADLINE_EXCEEDED, "context deadline exceeded")))
    }

    /// One call whose answers are a stream.
    pub async fn stream(&self, path: &str, request: &impl Message) -> Result<Messages, Status> {
        self.open(path, request).await
    }
}
