//! One connection to one of several endpoints.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use h2::client::SendRequest;
use http::{Method, Request, Uri};
use lifecycle::Tasks;
use prost::Message;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::replication::Hello;
use crate::v3::frame::{self, Messages, status_in};
use crate::v3::status::{Status, code};

/// How long one attempt may take: connecting, and a call.
const ATTEMPT: Duration = Duration::from_secs(5);
/// How often a quiet connection is checked.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
const WINDOW: u32 = 4 << 20;

/// Where the etcd is and how to talk to it.
#[derive(Clone, Debug)]
pub struct RemoteConfig {
    /// Its members' client URLs, `http://host:port` or `https://host:port`.
    pub endpoints: Vec<String>,
    /// Needed for https.
    pub tls: Option<Arc<ClientConfig>>,
}

/// Why the endpoints cannot be used.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// No endpoint was given.
    #[error("no etcd endpoint is given")]
    NoEndpoint,
    /// An endpoint is no URL of the expected form.
    #[error("the etcd endpoint {0} is not of the form http://host:port or https://host:port")]
    Endpoint(String),
    /// https without certificates.
    #[error("the etcd endpoint {0} needs a certificate authority")]
    NoTls(String),
}

#[derive(Clone, Debug)]
struct Endpoint {
    host: String,
    port: u16,
    secure: bool,
}

impl Endpoint {
    fn parse(text: &str) -> Result<Self, RemoteError> {
        let wrong = || RemoteError::Endpoint(text.to_owned());
        let uri: Uri = if text.contains("://") { text.parse() } else { format!("http://{text}").parse() }
            .map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
        Ok(Self { host, port: uri.port_u16().unwrap_or(2379), secure })
    }
}

/// A connection that is made when needed and again when lost.
pub struct Channel {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    tasks: Tasks,
    /// Which endpoint to try next.
    turn: AtomicUsize,
    /// What says who calls.
    token: std::sync::OnceLock<http::HeaderValue>,
    connection: Mutex<Option<SendRequest<Bytes>>>,
}

/// A call whose answer is a stream.
pub struct Call {
    /// Requests go here.
    pub requests: SendStream<Bytes>,
    /// Answers come from here.
    pub answers: Messages,
}

fn unavailable(error: impl std::fmt::Display) -> Status {
    Status { code: code::UNAVAILABLE, message: error.to_string().into() }
}

/// Whether a call failed before it can have had an effect.
#[derive(Debug)]
pub struct CallError {
    /// What went wrong.
    pub status: Status,
    /// Whether the server cannot have seen the call.
    pub unsent: bool,
}

impl Channel {
    /// A channel to some endpoints; its connections live on `tasks`.
    pub fn new(config: &RemoteConfig, tasks: &Tasks) -> Result<Self, RemoteError> {
        let endpoints: Vec<Endpoint> =
            config.endpoints.iter().map(|text| Endpoint::parse(text)).collect::<Result<_, _>>()?;
        let first = endpoints.first().ok_or(RemoteError::NoEndpoint)?;
        if config.tls.is_none() && endpoints.iter().any(|endpoint| endpoint.secure) {
            return Err(RemoteError::NoTls(first.host.clone()));
        }
        Ok(Self {
            endpoints,
            tls: config.tls.clone(),
            tasks: tasks.clone(),
            turn: AtomicUsize::new(0),
            token: std::sync::OnceLock::new(),
            connection: Mutex::new(None),
        })
    }

    /// Makes all calls from now on those of a user, by the token that authenticating has given.
    pub fn authorize(&self, token: &str) -> Result<(), &'static str> {
        let mut value =
            http::HeaderValue::from_str(token).map_err(|_| "the token is not a header's value")?;
        value.set_sensitive(true);
        self.token.set(value).map_err(|_| "the channel is a user's already")
    }

    /// A call's head.
    fn head(&self, path: &str) -> http::request::Builder {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path_uri(path))
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .header(http::header::TE, "trailers");
        match self.token.get() {
            Some(token) => request.header("token", token),
            None => request,
        }
    }

    /// How many endpoints there are.
    pub fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    /// A ready connection: the current one, or a new one to the endpoint whose turn it is.
    async fn ready(&self) -> Result<SendRequest<Bytes>, Status> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.clone() {
            match connection.ready().await {
                Ok(ready) => return Ok(ready),
                Err(_) => *held = None,
            }
        }
        let mut last = unavailable("no endpoint");
        for _ in 0..self.endpoints.len() {
            let turn = self.turn.load(Ordering::Relaxed) % self.endpoints.len();
            match tokio::time::timeout(ATTEMPT, self.dial(&self.endpoints[turn])).await {
                Ok(Ok(connection)) => {
                    *held = Some(connection.clone());
                    return connection.ready().await.map_err(unavailable);
                }
                Ok(Err(status)) => last = status,
                Err(_) => last = unavailable("connecting took too long"),
            }
            self.turn.fetch_add(1, Ordering::Relaxed);
        }
        Err(last)
    }

    /// Gives up the current connection: the next call uses the next endpoint.
    pub async fn move_on(&self) {
        *self.connection.lock().await = None;
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    async fn dial(&self, endpoint: &Endpoint) -> Result<SendRequest<Bytes>, Status> {
        let stream =
            TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await.map_err(unavailable)?;
        stream.set_nodelay(true).map_err(unavailable)?;
        match &self.tls {
            Some(config) if endpoint.secure => {
                let name = ServerName::try_from(endpoint.host.clone()).map_err(unavailable)?;
                let stream =
                    TlsConnector::from(config.clone()).connect(name, stream).await.map_err(unavailable)?;
                self.start(stream).await
            }
            _ => self.start(stream).await,
        }
    }

    async fn start(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<SendRequest<Bytes>, Status> {
        let (connection, mut driver) = h2::client::Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW * 4)
            .max_send_buffer_size(1 << 20)
            .handshake::<_, Bytes>(stream)
            .await
            .map_err(unavailable)?;
        let pings = driver.ping_pong();
        self.tasks.spawn("etcd/remote-connection", |stop| async move {
            // All arms may be dropped: ending the connection is what dropping the driver does.
            tokio::select! {
                () = stop.requested() => {}
                ended = driver => {
                    if let Err(error) = ended {
                        tracing::debug!(error = %telemetry::chain(&error), "connection to etcd ended");
                    }
                }
                () = keep_alive(pings) => tracing::debug!("etcd does not answer pings"),
            }
        });
        Ok(connection)
    }

    async fn open(&self, path: &'static str, message: Option<Bytes>) -> Result<Call, CallError> {
        let unsent = |status| CallError { status, unsent: true };
        let mut connection = self.ready().await.map_err(unsent)?;
        let request = self.head(path).body(()).map_err(|error| unsent(unavailable(error)))?;
        let (response, mut requests) =
            connection.send_request(request, false).map_err(|error| unsent(frame::broken(error)))?;
        drop(connection);
        let sent = |status| CallError { status, unsent: false };
        let closes = message.is_some();
        let written = message.map(|message| requests.send_data(message, closes));
        let response = response.await.map_err(|error| {
            // A server that is going away says which calls it has not looked at.
            let unsent = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            CallError { status: frame::broken(error), unsent }
        });
        let response = match (response, written) {
            // A server need not wait for the request where it needs none: it may have answered and closed the stream before the message was written.
            (Ok(response), _) => response,
            (Err(_), Some(Err(error))) => return Err(sent(frame::broken(error))),
            (Err(error), _) => return Err(error),
        };
        let (head, body) = response.into_parts();
        if let Some(status) = status_in(&head.headers) {
            return Err(CallError { unsent: never_proposed(&status), status });
        }
        Ok(Call { requests, answers: Messages::new(body, 0) })
    }

    /// Opens a stream of messages both ways.
    pub async fn stream(&self, path: &'static str, first: &impl Message) -> Result<Call, Status> {
        let opened = tokio::time::timeout(ATTEMPT, self.open_stream(path, frame::framed(first))).await;
        match opened {
            Ok(call) => call,
            Err(_) => Err(unavailable("opening a stream took too long")),
        }
    }

    async fn open_stream(&self, path: &'static str, first: Bytes) -> Result<Call, Status> {
        let mut connection = self.ready().await?;
        let request = self.head(path).body(()).map_err(unavailable)?;
        let (response, mut requests) = connection.send_request(request, false).map_err(frame::broken)?;
        requests.send_data(first, false).map_err(frame::broken)?;
        let (head, body) = response.await.map_err(frame::broken)?.into_parts();
        match status_in(&head.headers) {
            Some(status) => Err(status),
            None => Ok(Call { requests, answers: Messages::new(body, 0) }),
        }
    }

    /// Opens a stream of answers to one request.
    pub async fn server_stream(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<Messages, Status> {
        let call = self.open(path, Some(frame::framed(request))).await.map_err(|error| error.status)?;
        Ok(call.answers)
    }

    /// Passes a call on to another member, on behalf of a user. Returns the answer's bytes, and how far the log was committed there.
    pub async fn relay(
        &self,
        hello: &Hello,
        path: &str,
        user: Option<&str>,
        body: Bytes,
        at_most: Duration,
    ) -> Result<(Bytes, u64), CallError> {
        let attempt = async {
            let unsent = |status| CallError { status, unsent: true };
            let mut connection = self.ready().await.map_err(unsent)?;
            let mut request = Request::builder()
                .method(Method::POST)
                .uri(path_uri(path))
                .header(http::header::CONTENT_TYPE, "application/grpc")
                .header(http::header::TE, "trailers");
            for (name, value) in hello.headers() {
                request = request.header(name, value);
            }
            if let Some(user) = user {
                request = request.header(crate::replication::serve::USER, user);
            }
            let request = request.body(()).map_err(|error| unsent(unavailable(error)))?;
            let (response, mut requests) =
                connection.send_request(request, false).map_err(|error| unsent(frame::broken(error)))?;
            drop(connection);
            let sent = |status: Status| CallError { unsent: never_proposed(&status), status };
            requests.send_data(frame::wrapped(&body), true).map_err(|error| sent(frame::broken(error)))?;
            let (head, body) = response.await.map_err(|error| sent(frame::broken(error)))?.into_parts();
            if let Some(status) = status_in(&head.headers) {
                return Err(sent(status));
            }
            let mut answers = Messages::new(body, 0);
            let answer = answers.next_bytes().await.map_err(sent)?;
            let trailers = answers.trailers().await.map_err(|error| sent(frame::broken(error)))?;
            if let Some(status) = trailers.as_ref().and_then(status_in) {
                return Err(sent(status));
            }
            let index = trailers.as_ref().and_then(|trailers| trailers.get(crate::replication::serve::INDEX));
            let index = index.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
            answer
                .map(|answer| (answer, index))
                .ok_or_else(|| sent(unavailable("an answer without a message")))
        };
        let outcome = tokio::time::timeout(at_most, attempt)
            .await
            .unwrap_or_else(|_| Err(CallError { status: crate::v3::status::TIMEOUT, unsent: false }));
        if let Err(error) = &outcome
            && error.status.code == code::UNAVAILABLE
            && !never_proposed(&error.status)
        {
            self.move_on().await;
        }
        outcome
    }

    /// One call, one attempt.
    pub async fn call<M: Message + Default>(
        &self,
        path: &'static str,
        request: &impl Message,
    ) -> Result<M, CallError> {
        let attempt = async {
            let mut call = self.open(path, Some(frame::framed(request))).await?;
            let sent = |status: Status| CallError { unsent: never_proposed(&status), status };
            let answer = call.answers.next::<M>().await.map_err(sent)?;
            let trailers = call.answers.trailers().await.map_err(|error| sent(frame::broken(error)))?;
            match (answer, trailers.as_ref().and_then(status_in)) {
                (_, Some(status)) => Err(sent(status)),
                (Some(answer), None) => Ok(answer),
                (None, None) => Err(sent(unavailable("an answer without a message"))),
            }
        };
        let outcome = tokio::time::timeout(ATTEMPT, attempt).await.unwrap_or_else(|_| {
            Err(CallError { status: unavailable("the call took too long"), unsent: false })
        });
        if let Err(error) = &outcome
            && error.status.code == code::UNAVAILABLE
        {
            self.move_on().await;
        }
        outcome
    }
}

fn path_uri(path: &str) -> Uri {
    // h2 wants an absolute form; the authority is of no interest to etcd.
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = Some(http::uri::Authority::from_static("etcd"));
    parts.path_and_query = path.parse().ok();
    Uri::from_parts(parts).unwrap_or_default()
}

/// Whether the server says that it has not taken the request further.
fn never_proposed(status: &Status) -> bool {
    matches!(
        &*status.message,
        "etcdserver: no leader" | "etcdserver: not leader" | "etcdserver: too many requests"
    )
}

async fn keep_alive(pings: Option<h2::PingPong>) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        tokio::time::sleep(KEEP_ALIVE).await;
        match tokio::time::timeout(ATTEMPT, pings.ping(h2::Ping::opaque())).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_or_host_and_port() {
        let parsed =
            |text: &str| Endpoint::parse(text).ok().map(|found| (found.host, found.port, found.secure));
        assert_eq!(parsed("http://127.0.0.1:2379"), Some(("127.0.0.1".into(), 2379, false)));
        assert_eq!(parsed("https://[::1]:1"), Some(("::1".into(), 1, true)));
        assert_eq!(parsed("etcd-0:2379"), Some(("etcd-0".into(), 2379, false)));
        assert_eq!(parsed("ftp://x"), None);
        assert_eq!(parsed(""), None);
    }
}
