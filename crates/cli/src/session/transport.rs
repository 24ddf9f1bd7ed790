//! Connections to the server, and requests on them: plain or TLS, direct or through a proxy, HTTP/2 where the server has it.

use std::cell::RefCell;
use std::error::Error as _;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Trust, tls_client};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lifecycle::Tasks;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::exec_plugin;
use super::kubeconfig::Access;
use crate::error::{CliError, message};

/// A connection, whatever lies under it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}
pub type BoxStream = Pin<Box<dyn Stream>>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The head of a proxy's answer is not longer.
const MAX_PROXY_HEAD: usize = 16 << 10;
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// One request.
pub struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    pub headers: Vec<(HeaderName, String)>,
    pub body: Bytes,
}

/// Where the server is and how to reach it.
pub struct Transport {
    tls: Option<Arc<rustls::ClientConfig>>,
    name: Option<ServerName<'static>>,
    host: String,
    port: u16,
    /// What stands before every path.
    prefix: String,
    proxy: Option<Proxy>,
    headers: HeaderMap,
    shared: RefCell<Option<http2::SendRequest<Full<Bytes>>>>,
    tasks: Tasks,
}

struct Proxy {
    host: String,
    port: u16,
    kind: ProxyKind,
    authorization: Option<String>,
}

#[derive(PartialEq)]
enum ProxyKind {
    Http,
    Socks5,
}

impl Transport {
    pub fn new(access: &Access, agent: &str) -> Result<Self, CliError> {
        let server = match access.server.as_str() {
            "" => "http://localhost:8080".to_owned(),
            named if named.contains("://") => named.to_owned(),
            named => format!("http://{named}"),
        };
        let bad = |reason: &str| message(format!("the server address {server:?} cannot be used: {reason}"));
        let uri: Uri = server.trim_end_matches('/').parse().map_err(|_| bad("it is not a URL"))?;
        let host = uri.host().ok_or_else(|| bad("it names no host"))?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("it is neither http nor https")),
        };
        let plugin = match &access.exec {
            Some(exec) if access.token.is_none() => exec_plugin::run(exec, access)?,
            _ => exec_plugin::Credential::default(),
        };
        let mut headers = HeaderMap::new();
        let mut add = |name: HeaderName, value: String| -> Result<(), CliError> {
            let value = HeaderValue::from_str(&value)
                .map_err(|_| message(format!("{name} cannot be sent as a header")))?;
            headers.append(name, value);
            Ok(())
        };
        add(header::USER_AGENT, agent.to_owned())?;
        let token = match &access.token_file {
            Some(file) => Some(std::fs::read_to_string(file).map_err(|error| {
                message(format!("failed to read token file {:?}: {error}", file.display()))
            })?),
            None => access.token.clone().or(plugin.token),
        };
        if let Some(token) = token {
            add(header::AUTHORIZATION, format!("Bearer {}", token.trim()))?;
        } else if let Some((name, password)) = &access.basic {
            use base64::Engine as _;
            let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
            add(header::AUTHORIZATION, format!("Basic {encoded}"))?;
        }
        for (name, value) in &access.impersonate {
            let name = HeaderName::try_from(name.as_str())
                .map_err(|_| message(format!("{name} cannot be a header's name")))?;
            add(name, value.clone())?;
        }
        let (mut tls, mut name) = (None, None);
        if secure {
            let identity = match (&access.certificate, &access.key) {
                (Some(certificate), Some(key)) => {
                    Some((certificate.read("client-cert")?, key.read("client-key")?))
                }
                _ => plugin.certificate,
            };
            let authority = match &access.authority {
                Some(material) if !access.insecure => Some(material.read("certificate-authority")?),
                _ => None,
            };
            let trust = match &authority {
                _ if access.insecure => Trust::Anyone,
                Some(pem) => Trust::Authorities(pem),
                None => Trust::System,
            };
            let identity = identity.as_ref().map(|(chain, key)| (&chain[..], &key[..]));
            let mut config = tls_client(trust, identity, "h2").map_err(|error| message(chain(&error)))?;
            config.alpn_protocols.push(b"http/1.1".to_vec());
            tls = Some(Arc::new(config));
            let expected = access.tls_server_name.clone().unwrap_or_else(|| host.clone());
            name = Some(ServerName::try_from(expected).map_err(|_| bad("its host is not a name"))?);
        }
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let proxy = proxy_for(access.proxy.as_deref(), secure, &host, port)?;
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Self {
            tls,
            name,
            host,
            port,
            prefix,
            proxy,
            headers,
            shared: RefCell::new(None),
            tasks: Tasks::new(),
        })
    }

    /// `host:port`, as messages show it.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// `https://host:port/prefix`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.prefix)
    }

    pub async fn send(&self, call: Call) -> Result<http::Response<Incoming>, CliError> {
        let known = self.shared.borrow().clone().filter(|sender| !sender.is_closed());
        let mut sender = match known {
            Some(sender) => sender,
            None => {
                let (stream, http2) = self.connect(false).await.map_err(|error| self.refused(&error))?;
                if !http2 {
                    return self.send_alone(stream, call).await;
                }
                let (sender, driver) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .handshake(TokioIo::new(stream))
                    .await
                    .map_err(|error| self.broken(&error))?;
                self.tasks.spawn("connection", |stop| async move {
                    // Requests in flight tell of a broken connection themselves.
                    let _ = stop.or(driver).await;
                });
                *self.shared.borrow_mut() = Some(sender.clone());
                sender
            }
        };
        sender.ready().await.map_err(|error| self.broken(&error))?;
        let request = self.request(call, true)?;
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    /// One request on a connection of its own, which HTTP/1.1 needs.
    async fn send_alone(&self, stream: BoxStream, call: Call) -> Result<http::Response<Incoming>, CliError> {
        let request = self.request(call, false)?;
        let (mut sender, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        self.tasks.spawn("connection", |stop| async move {
            // The request itself tells of a broken connection.
            let _ = stop.or(driver.with_upgrades()).await;
        });
        sender.send_request(request).await.map_err(|error| self.broken(&error))
    }

    /// A request that turns its connection into something else.
    pub async fn upgrade(&self, call: Call) -> Result<http::Response<Incoming>, CliError> {
        let (stream, _) = self.connect(true).await.map_err(|error| self.refused(&error))?;
        self.send_alone(stream, call).await
    }

    fn request(&self, call: Call, http2: bool) -> Result<Request<Full<Bytes>>, CliError> {
        let path = format!("{}{}", self.prefix, call.path);
        let uri = if http2 { format!("{}{}", self.url(), call.path) } else { path };
        let mut request = Request::builder().method(call.method).uri(uri);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
            if !http2 {
                headers.insert(
                    header::HOST,
                    HeaderValue::from_str(&self.authority()).unwrap_or(HeaderValue::from_static("")),
                );
            }
        }
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        request
            .body(Full::new(call.body))
            .map_err(|error| message(format!("the request cannot be made: {error}")))
    }

    /// A stream to the server, and whether HTTP/2 was agreed on.
    async fn connect(&self, only_http1: bool) -> io::Result<(BoxStream, bool)> {
        let connect = async {
            let stream = match &self.proxy {
                None => dial(&self.host, self.port).await?,
                Some(proxy) => proxy.connect(&self.host, self.port).await?,
            };
            let (Some(tls), Some(name)) = (&self.tls, &self.name) else {
                return Ok((Box::pin(stream) as BoxStream, false));
            };
            let mut tls = tls.clone();
            if only_http1 {
                Arc::make_mut(&mut tls).alpn_protocols = vec![b"http/1.1".to_vec()];
            }
            let stream = TlsConnector::from(tls).connect(name.clone(), stream).await?;
            let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Box::pin(stream) as BoxStream, http2))
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "i/o timeout")))
    }

    fn refused(&self, error: &io::Error) -> CliError {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            return CliError::Plain(format!(
                "The connection to the server {} was refused - did you specify the right host or port?",
                self.authority()
            ));
        }
        CliError::Plain(format!("Unable to connect to the server: {error}"))
    }

    fn broken(&self, error: &hyper::Error) -> CliError {
        CliError::Plain(format!("Unable to connect to the server: {}", chain(error)))
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.tasks.stop().request();
    }
}

/// An error with what caused it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = match host.parse() {
        Ok(ip) => TcpStream::connect(SocketAddr::new(ip, port)).await?,
        Err(_) => TcpStream::connect((host, port)).await?,
    };
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The proxy that the kubeconfig or the environment names for this server.
fn proxy_for(given: Option<&str>, secure: bool, host: &str, port: u16) -> Result<Option<Proxy>, CliError> {
    let variable = |name: &str| {
        std::env::var(name)
            .or_else(|_| std::env::var(name.to_lowercase()))
            .ok()
            .filter(|value| !value.is_empty())
    };
    let named = match given {
        Some(url) => url.to_owned(),
        None => {
            let local =
                host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
            let Some(url) = variable(if secure { "HTTPS_PROXY" } else { "HTTP_PROXY" }) else {
                return Ok(None);
            };
            if local || spared(&variable("NO_PROXY").unwrap_or_default(), host, port) {
                return Ok(None);
            }
            url
        }
    };
    let bad = || {
        message(format!(
            "the proxy {named:?} is not a URL of the form http://host:port or socks5://host:port"
        ))
    };
    let full = if named.contains("://") { named.clone() } else { format!("http://{named}") };
    let uri: Uri = full.parse().map_err(|_| bad())?;
    let kind = match uri.scheme_str() {
        Some("http") => ProxyKind::Http,
        Some("socks5" | "socks5h") => ProxyKind::Socks5,
        _ => return Err(bad()),
    };
    let authority = uri.authority().ok_or_else(bad)?;
    let authorization = authority.as_str().rsplit_once('@').map(|(user, _)| {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(user)
    });
    let port = uri.port_u16().unwrap_or(if kind == ProxyKind::Http { 80 } else { 1080 });
    Ok(Some(Proxy { host: authority.host().trim_matches(['[', ']']).to_owned(), port, kind, authorization }))
}

/// Whether `NO_PROXY` names the host: a name, the end of one, an address, or `*`.
fn spared(list: &str, host: &str, port: u16) -> bool {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let (entry, wanted) = match entry.rsplit_once(':') {
            Some((name, number)) if number.parse::<u16>().is_ok() && !name.contains(':') => {
                (name, number.parse().ok())
            }
            _ => (entry, None),
        };
        if wanted.is_some_and(|wanted: u16| wanted != port) {
            return false;
        }
        let suffix = entry.trim_start_matches('*').trim_start_matches('.');
        entry == "*"
            || host.eq_ignore_ascii_case(suffix)
            || host.to_lowercase().ends_with(&format!(".{}", suffix.to_lowercase()))
    })
}

impl Proxy {
    async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let mut stream = dial(&self.host, self.port).await?;
        let refused = |what: String| io::Error::other(format!("proxyconnect tcp: {what}"));
        if self.kind == ProxyKind::Socks5 {
            stream.write_all(&[5, 1, 0]).await?;
            let mut answer = [0; 2];
            stream.read_exact(&mut answer).await?;
            if answer != [5, 0] {
                return Err(refused("the SOCKS server wants credentials".to_owned()));
            }
            let length =
                u8::try_from(host.len()).map_err(|_| refused("the host's name is too long".to_owned()))?;
            let mut ask = vec![5, 1, 0, 3, length];
            ask.extend_from_slice(host.as_bytes());
            ask.extend_from_slice(&port.to_be_bytes());
            stream.write_all(&ask).await?;
            let mut head = [0; 4];
            stream.read_exact(&mut head).await?;
            if head[1] != 0 {
                return Err(refused(format!("the SOCKS server answered {}", head[1])));
            }
            let rest = match head[3] {
                1 => 4,
                4 => 16,
                _ => usize::from(stream.read_u8().await?),
            } + 2;
            let mut address = vec![0; rest];
            stream.read_exact(&mut address).await?;
            return Ok(stream);
        }
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let mut ask = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(authorization) = &self.authorization {
            ask.push_str(&format!("Proxy-Authorization: Basic {authorization}\r\n"));
        }
        ask.push_str("\r\n");
        stream.write_all(ask.as_bytes()).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() > MAX_PROXY_HEAD {
                return Err(refused("the proxy's answer is too long".to_owned()));
            }
            head.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head);
        let line = line.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(refused(line.split_once(' ').map_or(line, |(_, status)| status).to_owned())),
        }
    }
}

/// The whole body of an answer.
pub async fn whole(body: Incoming) -> Result<Bytes, CliError> {
    Ok(body
        .collect()
        .await
        .map_err(|error| {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            message(format!("the answer broke off: {error}{cause}"))
        })?
        .to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_names_hosts_domains_and_ports() {
        for (list, host, port, is) in [
            ("example.com", "example.com", 443, true),
            ("example.com", "api.example.com", 443, true),
            (".example.com", "api.example.com", 443, true),
            ("*.example.com", "api.example.com", 443, true),
            ("example.com:80", "example.com", 443, false),
            ("ample.com", "example.com", 443, false),
            ("a, *", "example.com", 443, true),
            ("", "example.com", 443, false),
        ] {
            assert_eq!(spared(list, host, port), is, "{list} {host}");
        }
    }
}
