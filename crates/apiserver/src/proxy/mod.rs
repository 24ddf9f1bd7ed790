//! Carrying requests on to another server: kubelets, pods, services, aggregated API servers.
//!
//! A plain request is streamed both ways. A request to upgrade (SPDY/3.1 or WebSocket) is sent on as it is; once
//! both sides switched, bytes are copied until either ends. Nothing here knows what the streams carry.

pub mod rewrite;
pub mod tunnel;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tracing::debug;

use crate::body::Body;

/// How long a backend may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Where to carry a request.
#[derive(Clone)]
pub struct Backend {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The TLS to speak, or none.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// The name to expect in the backend's certificate, if not the host.
    pub server_name: Option<String>,
    /// How it is reached.
    pub reach: Reach,
}

/// How a backend is reached.
#[derive(Clone, Debug)]
pub struct Reach {
    /// How long it may take to accept a connection.
    pub patience: Duration,
    /// The most bytes per second in each direction of a stream; 0 for no bound.
    pub rate: u64,
    /// The proxy on the way; none: directly.
    pub tunnel: Option<Arc<tunnel::Tunnel>>,
}

impl Default for Reach {
    fn default() -> Self {
        Self { patience: CONNECT, rate: 0, tunnel: None }
    }
}

/// Why a backend did not answer.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// No connection.
    #[error("dial tcp {host}:{port}: {}", why(.error))]
    Connect {
        /// Where to.
        host: String,
        /// Which port.
        port: u16,
        /// Why.
        error: io::Error,
    },
    /// The name cannot be in a certificate.
    #[error("{0:?} is no server name")]
    ServerName(String),
    /// The connection broke.
    #[error("the backend did not answer")]
    Http(#[from] hyper::Error),
}

/// Why there is no connection, in the words that people know from Go programs.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

impl ProxyError {
    /// The answer for the client.
    pub fn to_status(&self, what: &str) -> Status {
        Status::unavailable(format!("error trying to reach {what}: {}", telemetry::chain(self)))
    }
}

impl Backend {
    /// Opens a connection.
    pub async fn connect(&self) -> Result<Box<dyn Stream>, ProxyError> {
        let failed = |error| ProxyError::Connect { host: self.host.clone(), port: self.port, error };
        let connecting = async {
            if let Some(tunnel) = &self.reach.tunnel {
                return tunnel.open(&self.authority()).await;
            }
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
            let _ = stream.set_nodelay(true); // only costs latency if refused
            Ok(Box::new(stream) as Box<dyn Stream>)
        };
        let stream = match tokio::time::timeout(self.reach.patience, connecting).await {
            Ok(outcome) => outcome.map_err(failed)?,
            Err(_) => return Err(failed(io::ErrorKind::TimedOut.into())),
        };
        let Some(tls) = &self.tls else { return Ok(stream) };
        let name = self.server_name.clone().unwrap_or_else(|| self.host.clone());
        let server = ServerName::try_from(name.clone()).map_err(|_| ProxyError::ServerName(name))?;
        let connector = tokio_rustls::TlsConnector::from(tls.clone());
        match tokio::time::timeout(self.reach.patience, connector.connect(server, stream)).await {
            Ok(outcome) => Ok(Box::new(outcome.map_err(failed)?)),
            Err(_) => Err(failed(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Sends a request over a connection of its own and returns the answer, whose body streams.
    pub async fn send(&self, request: Request<Body>, tasks: &Tasks) -> Result<Response<Body>, ProxyError> {
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tasks.spawn("proxy-connection", |_| async move {
            if let Err(error) = connection.with_upgrades().await {
                debug!(%error, "proxied connection ended");
            }
        });
        Ok(sender.send_request(request).await?.map(Body::from))
    }

    /// The authority of a URL to it.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// A byte stream in both directions.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Headers that concern one connection only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Whether the client wants to leave HTTP.
pub fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(header::UPGRADE)
        && headers.get_all(header::CONNECTION).iter().any(|value| {
            value
                .to_str()
                .is_ok_and(|text| text.to_ascii_lowercase().split(',').any(|word| word.trim() == "upgrade"))
        })
}

/// Carries `request` to `path` (with query) of the backend. Credentials of the client are not passed on.
pub async fn forward(
    mut request: Request<Body>,
    backend: &Backend,
    path: &str,
    tasks: &Tasks,
) -> Result<Response<Body>, ProxyError> {
    let identity: Vec<HeaderName> =
        request.headers().keys().filter(|name| name.as_str().starts_with("x-remote-")).cloned().collect();
    identity.iter().for_each(|name| drop(request.headers_mut().remove(name)));
    forward_identified(request, backend, path, tasks).await
}

/// The same for a request that says in `X-Remote-` headers who the user is.
pub async fn forward_identified(
    mut request: Request<Body>,
    backend: &Backend,
    path: &str,
    tasks: &Tasks,
) -> Result<Response<Body>, ProxyError> {
    let upgrading = wants_upgrade(request.headers());
    let client = upgrading.then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let mut onward = Request::builder().method(parts.method).uri(uri(path));
    if let Some(headers) = onward.headers_mut() {
        *headers = parts.headers;
        if !upgrading {
            HOP_BY_HOP.iter().for_each(|name| drop(headers.remove(name)));
        }
        for name in [header::AUTHORIZATION, header::HOST] {
            headers.remove(name);
        }
        let identity: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
        identity.iter().for_each(|name| drop(headers.remove(name)));
        if let Ok(host) = HeaderValue::from_str(&backend.authority()) {
            headers.insert(header::HOST, host);
        }
    }
    let body = if upgrading { Body::Empty } else { body };
    let onward = onward.body(body).unwrap_or_default();
    let mut answer = backend.send(onward, tasks).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let server = hyper::upgrade::on(&mut answer);
        let rate = backend.reach.rate;
        tasks.spawn("proxy-stream", |stop| async move {
            let copying = async {
                let (client, server) = tokio::join!(client, server);
                let (Ok(client), Ok(server)) = (client, server) else { return };
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Either side may end at any time; that is how streams finish.
                let _ = carry(&mut client, &mut server, rate).await;
            };
            stop.or(copying).await;
        });
        let (parts, _) = answer.into_parts();
        return Ok(Response::from_parts(parts, Body::Empty));
    }
    HOP_BY_HOP.iter().for_each(|name| drop(answer.headers_mut().remove(name)));
    Ok(answer)
}

/// Copies both ways, not faster than `rate` bytes per second each.
async fn carry(one: &mut impl Stream, two: &mut impl Stream, rate: u64) -> io::Result<()> {
    if rate == 0 {
        return tokio::io::copy_bidirectional(one, two).await.map(drop);
    }
    let ((from_one, to_one), (from_two, to_two)) = (tokio::io::split(one), tokio::io::split(two));
    tokio::try_join!(paced(from_one, to_two, rate), paced(from_two, to_one, rate)).map(drop)
}

async fn paced(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    rate: u64,
) -> io::Result<()> {
    // About ten pieces a second, so that a slow stream still flows.
    let mut piece = vec![0; usize::try_from(rate / 10).unwrap_or(usize::MAX).clamp(1, 32 << 10)];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..count]).await?;
        to.flush().await?;
        tokio::time::sleep(Duration::from_secs_f64(count as f64 / rate as f64)).await;
    }
}

fn uri(path: &str) -> Uri {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    path.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_bounded_stream_takes_its_time() {
        let (mut near, mut one) = tokio::io::duplex(1 << 20);
        let (mut two, mut far) = tokio::io::duplex(1 << 20);
        let began = tokio::time::Instant::now();
        let sending = async {
            near.write_all(&[7; 300]).await.unwrap();
            near.shutdown().await.unwrap();
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.unwrap();
            far.shutdown().await.unwrap();
            got.len()
        };
        let (_, got) = tokio::join!(carry(&mut one, &mut two, 1000), sending);
        assert_eq!(got, 300);
        assert!(began.elapsed() >= Duration::from_millis(290), "{:?}", began.elapsed());
    }
}
