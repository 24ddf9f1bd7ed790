//! Runs what probes and hooks ask for: a command, an HTTP request, a TCP connection, a gRPC health check.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderName, HeaderValue, Method, Request, Version, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::host::Host;
use crate::pod::{Container, Grpc, Handler, HttpGet, TcpSocket};

/// How much of an answer is read for the event's text.
const MAX_BODY: usize = 10 * 1024;
/// Redirects that stay on the same host are followed this often.
const MAX_REDIRECTS: usize = 10;

/// Why the check could not be made at all, or what it found.
#[derive(Debug, Error)]
pub enum HandlerError {
    /// The check was made and failed: the text says how.
    #[error("{0}")]
    Failed(String),
    #[error("command {command:?} timed out")]
    TimedOut { command: String },
    #[error("could not be run")]
    Runtime(#[from] cri::Error),
    #[error("has nothing to do")]
    Empty,
    #[error("port {0} is not a port of the container")]
    Port(String),
    #[error("the pod has no address")]
    NoAddress,
}

/// Where and on what a handler runs.
pub struct Target<'a> {
    pub container: &'a Container,
    pub container_id: &'a str,
    pub pod_ip: Option<IpAddr>,
    pub timeout: Duration,
}

/// Runs a handler to its end.
pub async fn run(host: &Host, handler: &Handler, target: &Target<'_>) -> Result<(), HandlerError> {
    if let Some(exec) = &handler.exec {
        return run_exec(host, &exec.command, target).await;
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(sleep.seconds.max(0) as u64)).await;
        return Ok(());
    }
    let check = async {
        if let Some(get) = &handler.http_get {
            http_get(get, target).await
        } else if let Some(socket) = &handler.tcp_socket {
            tcp_socket(socket, target).await
        } else if let Some(grpc) = &handler.grpc {
            grpc_health(grpc, target).await
        } else {
            Err(HandlerError::Empty)
        }
    };
    match tokio::time::timeout(target.timeout, check).await {
        Ok(result) => result,
        Err(_) => Err(HandlerError::Failed(timeout_text(handler, target))),
    }
}

fn timeout_text(handler: &Handler, target: &Target<'_>) -> String {
    match &handler.http_get {
        Some(get) => {
            let url = url_of(get, target).map(|(url, _)| url).unwrap_or_default();
            format!("Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)")
        }
        None => "command timed out: context deadline exceeded".into(),
    }
}

async fn run_exec(host: &Host, command: &[String], target: &Target<'_>) -> Result<(), HandlerError> {
    match host.config.runtime.exec_sync(target.container_id, command, target.timeout).await {
        Ok(output) if output.exit_code == 0 => Ok(()),
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            text.truncate(text.floor_char_boundary(MAX_BODY));
            Err(HandlerError::Failed(text))
        }
        Err(cri::Error::DeadlineExceeded { .. }) => {
            Err(HandlerError::TimedOut { command: format!("{} ", command.join(" ")).trim_end().to_owned() })
        }
        Err(error) => Err(error.into()),
    }
}

/// The address and where it is asked: the host that the probe names, or the pod.
fn url_of(get: &HttpGet, target: &Target<'_>) -> Result<(String, String), HandlerError> {
    let port =
        get.port.resolve(target.container).ok_or_else(|| HandlerError::Port(format!("{:?}", get.port)))?;
    let authority = match (get.host.as_str(), get.host.parse::<IpAddr>()) {
        ("", _) => SocketAddr::new(target.pod_ip.ok_or(HandlerError::NoAddress)?, port).to_string(),
        (_, Ok(ip)) => SocketAddr::new(ip, port).to_string(),
        (name, Err(_)) => format!("{name}:{port}"),
    };
    let scheme = if get.scheme.eq_ignore_ascii_case("https") { "https" } else { "http" };
    let slash = if get.path.starts_with('/') { "" } else { "/" };
    Ok((format!("{scheme}://{authority}{slash}{}", get.path), authority))
}

async fn http_get(get: &HttpGet, target: &Target<'_>) -> Result<(), HandlerError> {
    let (url, authority) = url_of(get, target)?;
    let tls = url.starts_with("https:");
    let failed = |text: String| HandlerError::Failed(format!("Get {url:?}: {text}"));
    let uri: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| failed(error.to_string()))?;
    // A name may have several addresses, and a server need not listen on the first: `localhost` is often ::1, too.
    let addresses: Vec<SocketAddr> = match tokio::net::lookup_host(&authority).await {
        Ok(found) => found.collect(),
        Err(error) => return Err(failed(format!("dial tcp: lookup {authority}: {error}"))),
    };
    let mut path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    for _ in 0..=MAX_REDIRECTS {
        let (stream, address) = connect_any(&addresses).await.map_err(&failed)?;
        let request = http_request(get, &uri, &path).map_err(|error| failed(error.to_string()))?;
        let answer = if tls {
            let connector = tokio_rustls::TlsConnector::from(trusting_tls());
            let name = ServerName::IpAddress(address.ip().into());
            let stream = connector.connect(name, stream).await.map_err(|error| failed(error.to_string()))?;
            send(stream, request).await.map_err(&failed)?
        } else {
            send(stream, request).await.map_err(&failed)?
        };
        let status = answer.0;
        if status.is_redirection()
            && let Some(next) = answer.1.filter(|next| next.starts_with('/'))
        {
            path = next;
            continue;
        }
        // A redirect to elsewhere counts as success: the container answered.
        return if (200..400).contains(&status.as_u16()) {
            Ok(())
        } else {
            Err(HandlerError::Failed(format!("HTTP probe failed with statuscode: {}", status.as_u16())))
        };
    }
    Err(failed(format!("stopped after {MAX_REDIRECTS} redirects")))
}

/// The first that answers; if none does, what the last one said.
async fn connect_any(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), String> {
    let mut last = "no such host".to_owned();
    for address in addresses {
        match connect(*address).await {
            Ok(stream) => return Ok((stream, *address)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn connect(address: SocketAddr) -> Result<TcpStream, String> {
    TcpStream::connect(address)
        .await
        .map_err(|error| format!("dial tcp {address}: connect: {}", io_text(&error)))
}

fn io_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        std::io::ErrorKind::HostUnreachable => "no route to host".into(),
        _ => error.to_string(),
    }
}

fn http_request(get: &HttpGet, uri: &http::Uri, path: &str) -> Result<Request<Full<Bytes>>, http::Error> {
    let mut host = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    let mut request = Request::builder().method(Method::GET).uri(path);
    let mut agent = Some("kube-probe/1.36");
    let mut accept = Some("*/*");
    for one in &get.http_headers {
        let (Ok(name), Ok(value)) =
            (HeaderName::try_from(one.name.as_str()), HeaderValue::from_str(&one.value))
        else {
            continue;
        };
        match name {
            header::HOST => host = one.value.clone(),
            name => {
                if name == header::USER_AGENT {
                    agent = None;
                }
                if name == header::ACCEPT {
                    accept = None;
                }
                request = request.header(name, value);
            }
        }
    }
    if let Some(agent) = agent {
        request = request.header(header::USER_AGENT, agent);
    }
    if let Some(accept) = accept {
        request = request.header(header::ACCEPT, accept);
    }
    request.header(header::HOST, host).header(header::CONNECTION, "close").body(Full::default())
}

/// One request on a fresh connection; answers with the status and where a redirect leads.
async fn send<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<(http::StatusCode, Option<String>), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| chain(&error))?;
        let (parts, body) = answer.into_parts();
        // The body is read, within limits, because some servers report a reset as an error of their own.
        let _ = Limited::new(body, MAX_BODY).collect().await;
        let location =
            parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok((parts.status, location))
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection may end before the exchange has read everything it was sent.
        _ = connection => exchange.await,
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    telemetry::chain(error).to_string()
}

async fn tcp_socket(socket: &TcpSocket, target: &Target<'_>) -> Result<(), HandlerError> {
    let port = socket
        .port
        .resolve(target.container)
        .ok_or_else(|| HandlerError::Port(format!("{:?}", socket.port)))?;
    let result = match (socket.host.as_str(), target.pod_ip) {
        ("", None) => return Err(HandlerError::NoAddress),
        ("", Some(ip)) => connect(SocketAddr::new(ip, port)).await,
        (host, _) => TcpStream::connect((host, port)).await.map_err(|error| io_text(&error)),
    };
    result.map(drop).map_err(HandlerError::Failed)
}

/// `grpc.health.v1.Health/Check` over plain HTTP/2, by hand: one string in, one number out.
async fn grpc_health(grpc: &Grpc, target: &Target<'_>) -> Result<(), HandlerError> {
    let address = SocketAddr::new(target.pod_ip.ok_or(HandlerError::NoAddress)?, grpc.port);
    let failed = |text: String| HandlerError::Failed(format!("service unhealthy: {text}"));
    let stream = connect(address).await.map_err(|text| {
        HandlerError::Failed(format!(
            "timeout: failed to connect service {:?} within {:?}: {text}",
            address.to_string(),
            target.timeout
        ))
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| failed(chain(&error)))?;
    let service = grpc.service.clone().unwrap_or_default();
    let mut message = BytesMut::new();
    message.put_u8(0);
    let mut inner = BytesMut::new();
    if !service.is_empty() {
        inner.put_u8(0x0a);
        put_varint(&mut inner, service.len() as u64);
        inner.put_slice(service.as_bytes());
    }
    message.put_u32(inner.len() as u32);
    message.put_slice(&inner);
    let request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, "kube-probe/1.36")
        .body(Full::new(message.freeze()))
        .map_err(|error| failed(error.to_string()))?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| failed(chain(&error)))?;
        let collected = Limited::new(answer.into_body(), MAX_BODY)
            .collect()
            .await
            .map_err(|error| failed(error.to_string()))?;
        let code = collected.trailers().and_then(|trailers| trailers.get("grpc-status")).cloned();
        let data = collected.to_bytes();
        match code.as_ref().map(HeaderValue::as_bytes) {
            Some(b"0") | None if data.len() >= 5 => match health_status(&data[5..]) {
                Some(1) => Ok(()),
                status => Err(failed(format!("responded with {:?}", status_name(status)))),
            },
            Some(b"12") => Err(failed(
                "this server does not implement the grpc health protocol (grpc.health.v1.Health)".into(),
            )),
            code => {
                Err(failed(format!("grpc status {}", code.map_or("missing".into(), String::from_utf8_lossy))))
            }
        }
    };
    tokio::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        _ = connection => Err(failed("connection closed".into())),
    }
}

fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Field 1 of a HealthCheckResponse; 0 when absent.
fn health_status(message: &[u8]) -> Option<u64> {
    match message {
        [] => Some(0),
        [0x08, value, ..] => Some(u64::from(*value)),
        _ => None,
    }
}

fn status_name(status: Option<u64>) -> &'static str {
    match status {
        Some(0) => "UNKNOWN",
        Some(2) => "NOT_SERVING",
        Some(3) => "SERVICE_UNKNOWN",
        _ => "an unreadable answer",
    }
}

/// Probes do not verify certificates: the kubelet does not know the pod's CA, and asks only whether it answers.
fn trusting_tls() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();
    CONFIG
        .get_or_init(|| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = rustls::ClientConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions();
            let config = builder
                .expect("ring supports the default protocol versions")
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Trusting(provider)))
                .with_no_client_auth();
            Arc::new(config)
        })
        .clone()
}

#[derive(Debug)]
struct Trusting(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::PortRef;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn serve_once(answer: &'static str) -> (u16, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        #[allow(clippy::disallowed_methods, reason = "a test's server, awaited by the test")]
        let handle = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 2048];
            let count = stream.read(&mut buffer).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        });
        (port, handle)
    }

    fn target(container: &Container) -> Target<'_> {
        Target {
            container,
            container_id: "c",
            pod_ip: Some("127.0.0.1".parse().unwrap()),
            timeout: Duration::from_secs(5),
        }
    }

    #[tokio::test]
    async fn an_http_probe_asks_the_host_that_it_names() {
        let container = Container::default();
        for host in ["localhost", "127.0.0.1"] {
            let (port, server) = serve_once("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            let get = HttpGet { port: PortRef::Number(port), host: host.into(), ..HttpGet::default() };
            // A pod that is somewhere else.
            let elsewhere = Target { pod_ip: Some("192.0.2.1".parse().unwrap()), ..target(&container) };
            http_get(&get, &elsewhere).await.unwrap();
            let request = server.await.unwrap().to_lowercase();
            assert!(request.contains(&format!("host: {host}:{port}")), "{request}");
        }
    }

    #[tokio::test]
    async fn an_http_probe_sends_its_headers_and_reads_the_code() {
        let container = Container::default();
        for (answer, wanted) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", None),
            ("HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", None),
            (
                "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
                Some("HTTP probe failed with statuscode: 503"),
            ),
        ] {
            let (port, server) = serve_once(answer).await;
            let get = HttpGet {
                path: "/healthz?x=1".into(),
                port: PortRef::Number(port),
                http_headers: vec![
                    crate::pod::HttpHeader { name: "Host".into(), value: "web".into() },
                    crate::pod::HttpHeader { name: "X-A".into(), value: "b".into() },
                ],
                ..HttpGet::default()
            };
            let result = http_get(&get, &target(&container)).await.map_err(|error| error.to_string());
            assert_eq!(result.err().as_deref(), wanted);
            let seen = server.await.unwrap().to_lowercase();
            assert!(seen.starts_with("get /healthz?x=1 http/1.1"), "{seen}");
            assert!(
                seen.contains("host: web") && seen.contains("x-a: b") && seen.contains("kube-probe"),
                "{seen}"
            );
        }
    }

    #[tokio::test]
    async fn a_closed_port_fails_with_upstreams_words() {
        let container = Container::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = TcpSocket { port: PortRef::Number(port), host: String::new() };
        tcp_socket(&socket, &target(&container)).await.unwrap();
        drop(listener);
        let error = tcp_socket(&socket, &target(&container)).await.unwrap_err().to_string();
        assert_eq!(error, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    }

    #[test]
    fn health_answers_are_read() {
        assert_eq!(health_status(&[0x08, 1]), Some(1));
        assert_eq!(health_status(&[]), Some(0));
        assert_eq!(health_status(&[0x12, 1]), None);
    }
}
