//! The network transport: one HTTP/2 connection over TLS, made again when it breaks.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use lifecycle::Tasks;
use pki::{Kubeconfig, PkiError};
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::debug;

use crate::tls::{Trust, tls_client};
use crate::{Body, Transport, TransportError};

/// Room for what a stream, and a connection, may send ahead of its reader. Small windows cut busy watches into small frames,
/// of which the HTTP/2 library takes only as many as fit into half of the connection's window.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection that answers no ping is dead even if nobody said so.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Who the client is.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    #[default]
    Anonymous,
    Certificate {
        chain_pem: Vec<u8>,
        key_pem: Vec<u8>,
    },
    Token(String),
    /// Read again for every connection and request, because projected tokens rotate.
    TokenFile(PathBuf),
}

impl Credentials {
    /// The header that carries them, if they are not in the certificate.
    pub fn authorization(&self) -> Result<Option<HeaderValue>, TransportError> {
        let token = match self {
            Self::Token(token) => token.clone(),
            Self::TokenFile(path) => std::fs::read_to_string(path).map_err(TransportError::broken)?,
            Self::Anonymous | Self::Certificate { .. } => return Ok(None),
        };
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", token.trim())).map_err(TransportError::broken)?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Where the server is and how to trust it.
#[derive(Clone, Debug, Default)]
pub struct HttpsConfig {
    /// `https://host:port`
    pub server: String,
    /// Authorities to believe; none: those that the machine believes.
    pub ca_pem: Vec<u8>,
    /// Believes whoever answers.
    pub insecure: bool,
    pub credentials: Credentials,
    /// The name to expect in the server's certificate, if not the host in `server`.
    pub server_name: Option<String>,
}

/// Where a pod finds who it is.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl HttpsConfig {
    /// What a pod knows of its cluster: its service account, and the API server's address from the environment, as every
    /// client of Kubernetes reads them.
    pub fn in_cluster() -> Result<Self, HttpsError> {
        // Names of Services are not known on a host's network, nor before there is a DNS.
        const HOST: &str = "KUBERNETES_SERVICE_HOST";
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable(HOST).ok_or(HttpsError::NotInCluster { what: HOST })?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let ca = PathBuf::from(SERVICE_ACCOUNT).join("ca.crt");
        let ca_pem = std::fs::read(&ca).map_err(|_| HttpsError::NotInCluster { what: SERVICE_ACCOUNT })?;
        Ok(Self {
            server: format!("https://{host}:{port}"),
            ca_pem,
            credentials: Credentials::TokenFile(PathBuf::from(SERVICE_ACCOUNT).join("token")),
            ..Self::default()
        })
    }

    /// The current context of a kubeconfig, or the named one.
    pub fn from_kubeconfig(kubeconfig: &Kubeconfig, context: Option<&str>) -> Result<Self, HttpsError> {
        let access = kubeconfig.access(context).map_err(HttpsError::Kubeconfig)?;
        let certificate = access.client_certificate.zip(access.client_key);
        let credentials = match (certificate, access.token_file, access.token) {
            (Some((chain_pem, key_pem)), ..) => Credentials::Certificate { chain_pem, key_pem },
            (_, Some(file), _) => Credentials::TokenFile(file),
            (_, _, Some(token)) => Credentials::Token(token),
            _ => Credentials::Anonymous,
        };
        Ok(Self {
            server: access.server,
            ca_pem: access.certificate_authority.unwrap_or_default(),
            insecure: access.insecure_skip_tls_verify,
            credentials,
            server_name: access.tls_server_name,
        })
    }
}

/// A client configuration that cannot work.
#[derive(Debug, Error)]
pub enum HttpsError {
    #[error("server address {server:?} is not of the form https://host:port")]
    Server { server: String },
    #[error("the {what} is not valid PEM")]
    Pem { what: &'static str, source: rustls::pki_types::pem::Error },
    #[error("the {what} holds no usable entry")]
    Empty { what: &'static str },
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[source] PkiError),
    #[error("this is no pod of a cluster: there is no {what}; say where the API server is with --kubeconfig")]
    NotInCluster { what: &'static str },
    #[error("the client certificate cannot be used")]
    Tls(#[source] rustls::Error),
}

/// Where a server is and how to reach it securely: what a connection needs before it speaks HTTP.
#[derive(Clone)]
pub struct Endpoint {
    address: (String, u16),
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl Endpoint {
    pub fn new(config: &HttpsConfig) -> Result<Self, HttpsError> {
        let bad_server = || HttpsError::Server { server: config.server.clone() };
        let uri: Uri = config.server.parse().map_err(|_| bad_server())?;
        let host = uri.host().ok_or_else(bad_server)?.trim_matches(['[', ']']).to_owned();
        if uri.scheme_str() != Some("https") {
            return Err(bad_server());
        }
        let expected = config.server_name.clone().unwrap_or_else(|| host.clone());
        let name = ServerName::try_from(expected).map_err(|_| bad_server())?;
        let identity = match &config.credentials {
            Credentials::Certificate { chain_pem, key_pem } => Some((&chain_pem[..], &key_pem[..])),
            _ => None,
        };
        let trust = match &config.ca_pem[..] {
            _ if config.insecure => Trust::Anyone,
            [] => Trust::System,
            authorities => Trust::Authorities(authorities),
        };
        let tls = tls_client(trust, identity, "h2")?;
        let tls = TlsConnector::from(Arc::new(tls));
        Ok(Self { address: (host, uri.port_u16().unwrap_or(443)), name, tls })
    }

    /// The port at the server.
    pub fn port(&self) -> u16 {
        self.address.1
    }

    /// Host and port as they stand in a URL.
    pub fn authority(&self) -> String {
        let (host, port) = &self.address;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Connects and shakes hands, for HTTP/2.
    pub async fn connect(&self) -> io::Result<TlsStream<TcpStream>> {
        let (host, port) = &self.address;
        let stream = match host.parse() {
            Ok(ip) => TcpStream::connect(SocketAddr::new(ip, *port)).await?,
            Err(_) => TcpStream::connect((host.as_str(), *port)).await?,
        };
        stream.set_nodelay(true)?;
        self.tls.connect(self.name.clone(), stream).await
    }
}

/// HTTPS to one server.
pub struct Https {
    server: String,
    endpoint: Endpoint,
    credentials: Credentials,
    connection: Mutex<Option<SendRequest<Full<Bytes>>>>,
    drivers: Tasks,
}

impl Https {
    pub fn new(config: HttpsConfig) -> Result<Arc<Self>, HttpsError> {
        Ok(Arc::new(Self {
            endpoint: Endpoint::new(&config)?,
            server: config.server,
            credentials: config.credentials,
            connection: Mutex::new(None),
            drivers: Tasks::new(),
        }))
    }

    /// A connection that can take a request, made now if there is none.
    async fn connection(&self) -> Result<SendRequest<Full<Bytes>>, TransportError> {
        let mut slot = self.connection.lock().await;
        if let Some(live) = slot.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(live.clone());
        }
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| TransportError::Connect {
            server: self.server.clone(),
            source,
        };
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, self.connect())
            .await
            .map_err(|_| failed("no answer within 10 s".into()))?
            .map_err(failed)?;
        Ok(slot.insert(connection).clone())
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = self.endpoint.connect().await?;
        let (sender, driver) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        self.drivers.spawn("https-connection", |stop| async move {
            if let Some(Err(error)) = stop.or(driver).await {
                debug!(%error, "connection ended");
            }
        });
        Ok(sender)
    }
}

impl Drop for Https {
    fn drop(&mut self) {
        self.drivers.stop().request();
    }
}

impl Transport for Https {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, TransportError>> {
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            if let Some(value) = self.credentials.authorization()? {
                parts.headers.insert(header::AUTHORIZATION, value);
            }
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            parts.uri = Uri::builder()
                .scheme("https")
                .authority(self.endpoint.authority())
                .path_and_query(path)
                .build()
                .map_err(TransportError::broken)?;
            let mut connection = self.connection().await?;
            connection.ready().await.map_err(TransportError::broken)?;
            let answer = connection
                .send_request(Request::from_parts(parts, Full::new(body)))
                .await
                .map_err(TransportError::broken)?;
            Ok(answer.map(|body| body.map_err(TransportError::broken).boxed_unsync()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_configuration_says_what_is_bad() {
        let error = |server: &str, ca: &str| {
            let config =
                HttpsConfig { server: server.into(), ca_pem: ca.as_bytes().to_vec(), ..Default::default() };
            Https::new(config).err().expect("refused").to_string()
        };
        assert_eq!(
            error("http://127.0.0.1:1", ""),
            "server address \"http://127.0.0.1:1\" is not of the form https://host:port"
        );
        assert_eq!(error("https://127.0.0.1:1", "x"), "the certificate authority holds no usable entry");
    }

    #[test]
    fn a_kubeconfig_may_trust_the_machine_or_anyone_and_rotate_its_token() {
        let directory = std::env::temp_dir().join(format!("kelson-client-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("directory");
        let token = directory.join("token");
        std::fs::write(&token, "one").expect("token");
        for (cluster, insecure) in [("", false), (", insecure-skip-tls-verify: true", true)] {
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:1'{cluster}}}}}]\n\
                 users: [{{name: u, user: {{tokenFile: {token:?}}}}}]\n\
                 contexts: [{{name: k, context: {{cluster: c, user: u}}}}]\ncurrent-context: k"
            );
            let kubeconfig = Kubeconfig::parse(&text).expect("kubeconfig");
            let config = HttpsConfig::from_kubeconfig(&kubeconfig, None).expect("usable");
            assert_eq!(config.insecure, insecure);
            Endpoint::new(&config).expect("an endpoint");
            for current in ["one", "two"] {
                std::fs::write(&token, current).expect("token");
                let header = config.credentials.authorization().expect("readable").expect("a header");
                assert_eq!(header.to_str().expect("text"), format!("Bearer {current}"));
            }
        }
        std::fs::remove_dir_all(&directory).expect("cleaned");
    }
}
