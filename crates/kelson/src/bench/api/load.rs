//! The load generator: HTTP/2 over TLS, with bodies that were encoded before.
//!
//! It shares the machine with the server, so it does as little as it can: no parsing, no copying of answers that
//! nobody reads, one task per client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use client::{Endpoint, HttpsConfig};
use h2::RecvStream;
use h2::client::SendRequest;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use lifecycle::Tasks;
use measure::Latencies;

/// What a stream may receive before the generator says that it has read it.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// Connections to one server.
#[derive(Clone)]
pub struct Load {
    connections: Arc<[SendRequest<Bytes>]>,
    authority: Authority,
    authorization: Option<HeaderValue>,
    tasks: Tasks,
}

/// What a server said.
pub struct Answer {
    pub code: StatusCode,
    pub body: Bytes,
}

impl Answer {
    /// The body of a good answer.
    pub fn expect(self) -> anyhow::Result<Bytes> {
        if !self.code.is_success() {
            let text = String::from_utf8_lossy(&self.body).chars().take(300).collect::<String>();
            bail!("{}: {}", self.code, text.trim());
        }
        Ok(self.body)
    }
}

/// How much work there is.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Time(Duration),
    Count(u64),
}

/// What a number of clients did.
#[derive(Default)]
pub struct Done {
    pub times: Latencies,
    pub errors: u64,
    pub first_error: Option<String>,
    pub seconds: f64,
}

impl Load {
    pub async fn connect(config: &HttpsConfig, connections: usize, tasks: &Tasks) -> anyhow::Result<Self> {
        let endpoint = Endpoint::new(config)?;
        let mut open = Vec::new();
        for _ in 0..connections.max(1) {
            open.push(dial(&endpoint, tasks).await?);
        }
        Ok(Self {
            connections: open.into(),
            authority: endpoint.authority().parse()?,
            authorization: config.credentials.authorization()?,
            tasks: tasks.clone(),
        })
    }

    /// The n-th client; clients share the connections evenly.
    pub fn caller(&self, client: usize) -> Caller {
        Caller {
            connection: self.connections[client % self.connections.len()].clone(),
            authority: self.authority.clone(),
            authorization: self.authorization.clone(),
        }
    }

    /// Lets `clients` repeat `work` until the limit. Each call gets its client and a number that no other call gets.
    pub async fn run<F, W>(&self, clients: usize, limit: Limit, work: F) -> Done
    where
        F: Fn(Caller, usize, u64) -> W + Clone + Send + 'static,
        W: Future<Output = anyhow::Result<()>> + Send,
    {
        let began = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        let (sender, mut receiver) = tokio::sync::mpsc::channel(clients.max(1));
        for client in 0..clients {
            let (caller, work, sender, next) =
                (self.caller(client), work.clone(), sender.clone(), next.clone());
            self.tasks.spawn("bench/client", move |stop| async move {
                let mut done = Done::default();
                while !stop.is_requested() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let started = Instant::now();
                    let over = match limit {
                        Limit::Time(time) => started.duration_since(began) >= time,
                        Limit::Count(count) => number >= count,
                    };
                    if over {
                        break;
                    }
                    match work(caller.clone(), client, number).await {
                        Ok(()) => done.times.push(started.elapsed()),
                        Err(error) => {
                            done.errors += 1;
                            done.first_error.get_or_insert_with(|| format!("{error:#}"));
                        }
                    }
                }
                // The receiver waits for all clients.
                let _ = sender.send(done).await;
            });
        }
        drop(sender);
        let mut all = Done::default();
        while let Some(one) = receiver.recv().await {
            all.times.extend(&one.times);
            all.errors += one.errors;
            all.first_error = all.first_error.or(one.first_error);
        }
        all.seconds = began.elapsed().as_secs_f64();
        all
    }
}

async fn dial(endpoint: &Endpoint, tasks: &Tasks) -> anyhow::Result<SendRequest<Bytes>> {
    let stream = endpoint.connect().await?;
    let (connection, driver) = h2::client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(64 << 10)
        .handshake::<_, Bytes>(stream)
        .await?;
    tasks.spawn("bench/connection", |stop| async move {
        // Ends with the server; whoever waits for an answer is told.
        let _ = stop.or(driver).await;
    });
    Ok(connection)
}

/// One client on its connection.
#[derive(Clone)]
pub struct Caller {
    connection: SendRequest<Bytes>,
    authority: Authority,
    authorization: Option<HeaderValue>,
}

impl Caller {
    /// Sends a request and waits for the head of the answer.
    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, RecvStream)> {
        let mut connection = self.connection.clone().ready().await?;
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(PathAndQuery::try_from(path)?);
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = Uri::from_parts(parts)?;
        let headers = request.headers_mut();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static("kelson-bench"));
        if !body.is_empty() {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(value) = &self.authorization {
            headers.insert(header::AUTHORIZATION, value.clone());
        }
        let (answer, mut stream) = connection.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            stream.send_data(body, true)?;
        }
        let answer = answer.await?;
        Ok((answer.status(), answer.into_body()))
    }

    /// Sends a request and reads the answer.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        body: Bytes,
    ) -> anyhow::Result<Answer> {
        let (code, mut stream) = self.send(method, path, content_type, body).await?;
        let mut first: Option<Bytes> = None;
        let mut rest = BytesMut::new();
        while let Some(piece) = stream.data().await {
            let piece = piece?;
            stream.flow_control().release_capacity(piece.len())?;
            match first.take() {
                None if rest.is_empty() => first = Some(piece),
                None => rest.extend_from_slice(&piece),
                Some(earlier) => {
                    rest.extend_from_slice(&earlier);
                    rest.extend_from_slice(&piece);
                }
            }
        }
        Ok(Answer { code, body: first.unwrap_or_else(|| rest.freeze()) })
    }

    /// GET.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.call(Method::GET, path, "", Bytes::new()).await
    }

    /// GET that only counts the bytes.
    pub async fn get_size(&self, path: &str) -> anyhow::Result<usize> {
        let mut stream = self.open(path).await?;
        let mut size = 0;
        while let Some(piece) = stream.data().await {
            let piece = piece?;
            stream.flow_control().release_capacity(piece.len())?;
            size += piece.len();
        }
        Ok(size)
    }

    /// GET of a stream.
    pub async fn open(&self, path: &str) -> anyhow::Result<RecvStream> {
        let (code, stream) = self.send(Method::GET, path, "", Bytes::new()).await?;
        if !code.is_success() {
            bail!("{path} answered {code}");
        }
        Ok(stream)
    }

    /// POST of JSON; whether it exists now is all that matters.
    pub async fn ensure(&self, path: &str, body: Bytes) -> anyhow::Result<()> {
        let answer = self.call(Method::POST, path, "application/json", body).await?;
        if answer.code == StatusCode::CONFLICT {
            return Ok(());
        }
        answer.expect().map(drop).with_context(|| format!("cannot create at {path}"))
    }
}
