//! Ways out of the server that lead through a proxy: the file of `--egress-selector-config-file`.
//!
//! `cluster` is for nodes, pods, Services and aggregated servers, `controlplane` for webhooks that judge tokens and requests. A
//! proxy is asked with HTTP's CONNECT, over TCP, TLS or a socket of this machine; then it is not seen any more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::Stream;
use crate::outbound::{CallError, Target};
use crate::tls::{self, TlsError};

/// The longest head of a proxy's answer.
const HEAD: usize = 8 << 10;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// A file.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not YAML, or not in the right form.
    #[error("it is malformed")]
    Malformed(#[from] serde_yaml_ng::Error),
    /// Something that is not done.
    #[error("the selection {name:?}: {why}")]
    Selection {
        /// Which one.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// The proxy's URL.
    #[error("the proxy cannot be addressed")]
    Address(#[from] CallError),
    /// Its certificates.
    #[error("TLS with the proxy cannot be set up")]
    Tls(#[from] TlsError),
}

/// The proxies for each kind of traffic; none: directly.
#[derive(Clone, Debug, Default)]
pub struct Egress {
    /// To nodes, pods, Services and aggregated servers.
    pub cluster: Option<Arc<Tunnel>>,
    /// To webhooks.
    pub control_plane: Option<Arc<Tunnel>>,
}

/// A proxy.
#[derive(Clone, Debug)]
pub enum Tunnel {
    /// At an address, perhaps over TLS.
    Tcp(Target, Option<Arc<rustls::ClientConfig>>),
    /// At a socket.
    Unix(PathBuf),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    egress_selections: Vec<Selection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selection {
    name: String,
    connection: Connection,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Connection {
    proxy_protocol: String,
    #[serde(default)]
    transport: Transport,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Transport {
    tcp: Option<Tcp>,
    uds: Option<Uds>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Tcp {
    url: String,
    tls_config: Option<TlsFiles>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TlsFiles {
    ca_bundle: Option<PathBuf>,
    client_key: Option<PathBuf>,
    client_cert: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Uds {
    uds_name: PathBuf,
}

fn read(path: &Path) -> Result<Vec<u8>, EgressError> {
    std::fs::read(path).map_err(|source| EgressError::Read { path: path.to_owned(), source })
}

impl Egress {
    /// Reads the file and the certificates that it names.
    pub fn load(path: &Path) -> Result<Self, EgressError> {
        let file: File = serde_yaml_ng::from_slice(&read(path)?)?;
        let mut all = Self::default();
        for Selection { name, connection } in file.egress_selections {
            let tunnel = Tunnel::new(&name, connection)?.map(Arc::new);
            match name.as_str() {
                "cluster" => all.cluster = tunnel,
                "controlplane" | "master" => all.control_plane = tunnel,
                "etcd" if tunnel.is_none() => {}
                "etcd" => return Err(EgressError::Selection { name, why: "etcd is reached directly" }),
                _ => return Err(EgressError::Selection { name, why: "there is no such traffic" }),
            }
        }
        Ok(all)
    }
}

impl Tunnel {
    fn new(name: &str, connection: Connection) -> Result<Option<Self>, EgressError> {
        let wrong = |why| Err(EgressError::Selection { name: name.to_owned(), why });
        match connection.proxy_protocol.as_str() {
            "Direct" => return Ok(None),
            "HTTPConnect" => {}
            "GRPC" => return wrong("the protocol GRPC is not spoken; HTTPConnect is"),
            _ => return wrong("proxyProtocol must be Direct or HTTPConnect"),
        }
        match connection.transport {
            Transport { tcp: None, uds: Some(uds) } => Ok(Some(Self::Unix(uds.uds_name))),
            Transport { tcp: Some(tcp), uds: None } => {
                let target = Target::parse(&tcp.url)?;
                if !target.secure {
                    return Ok(Some(Self::Tcp(target, None)));
                }
                let files = tcp.tls_config;
                let path = |pick: fn(&TlsFiles) -> &Option<PathBuf>| {
                    files.as_ref().and_then(|own| pick(own).as_deref())
                };
                let roots = match path(|own| &own.ca_bundle) {
                    Some(ca) => tls::roots(&read(ca)?, "the proxy's CA")?,
                    None => client::system_roots(),
                };
                let identity = match (path(|own| &own.client_cert), path(|own| &own.client_key)) {
                    (Some(certificate), Some(key)) => Some(tls::certified_key(
                        &read(certificate)?,
                        &read(key)?,
                        "the identity towards the proxy",
                    )?),
                    (None, None) => None,
                    _ => return wrong("clientCert and clientKey go together"),
                };
                Ok(Some(Self::Tcp(target, Some(Arc::new(tls::client_config(roots, identity)?)))))
            }
            _ => wrong("the transport is either tcp or uds"),
        }
    }

    /// Opens a connection to `authority` through the proxy.
    pub async fn open(&self, authority: &str) -> io::Result<Box<dyn Stream>> {
        let mut stream: Box<dyn Stream> = match self {
            Self::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Self::Tcp(target, None) => {
                Box::new(TcpStream::connect((target.host.as_str(), target.port)).await?)
            }
            Self::Tcp(target, Some(tls)) => {
                let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
                let plain = TcpStream::connect((target.host.as_str(), target.port)).await?;
                Box::new(tokio_rustls::TlsConnector::from(tls.clone()).connect(name, plain).await?)
            }
        };
        let ask = format!(
            "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: kube-apiserver\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).await?;
        stream.flush().await?;
        // Byte by byte: what follows the head belongs to the one behind the proxy.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == HEAD {
                return Err(io::Error::other("the proxy's answer has no end"));
            }
            head.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
        match line.split(' ').nth(1) {
            Some("200") => Ok(stream),
            _ => Err(io::Error::other(format!("the proxy refused to connect: {line}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(selection: &str) -> Result<Egress, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("egress.yaml");
        let head =
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n";
        std::fs::write(&path, format!("{head}{selection}")).unwrap();
        Egress::load(&path).map_err(|error| telemetry::chain(&error).to_string())
    }

    #[test]
    fn ways_are_read_and_unknown_ones_refused() {
        let uds =
            "- {name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /x}}}}";
        assert!(
            matches!(load(uds).unwrap().cluster.as_deref(), Some(Tunnel::Unix(path)) if path == Path::new("/x"))
        );
        let direct = "- {name: etcd, connection: {proxyProtocol: Direct}}";
        assert!(load(direct).unwrap().cluster.is_none());
        for (text, want) in [
            (uds.replace("cluster", "etcd"), "directly"),
            (uds.replace("cluster", "moon"), "moon"),
            (uds.replace("HTTPConnect", "GRPC"), "GRPC"),
            (direct.replace("Direct", "HTTPConnect"), "tcp or uds"),
        ] {
            assert!(load(&text).unwrap_err().contains(want), "{text}");
        }
    }

    #[tokio::test]
    async fn a_tunnel_is_asked_for_and_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let proxy = async {
            for answer in
                ["HTTP/1.1 200 Connection established\r\n\r\nhello", "HTTP/1.1 403 Forbidden\r\n\r\n"]
            {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 512];
                let count = stream.read(&mut asked).await.unwrap();
                assert!(asked[..count].starts_with(b"CONNECT 10.0.0.9:10250 HTTP/1.1\r\n"));
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let client = async {
            let tunnel = Tunnel::Unix(path.clone());
            let mut got = String::new();
            tunnel.open("10.0.0.9:10250").await.unwrap().read_to_string(&mut got).await.unwrap();
            assert_eq!(got, "hello");
            assert!(tunnel.open("10.0.0.9:10250").await.err().unwrap().to_string().contains("403"));
        };
        tokio::join!(proxy, client);
    }
}
