//! One exchange with an extender, over HTTP or HTTPS.

use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use client::{Trust, tls_client};
use http::{Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::ExtenderError;

/// An answer names every node of the cluster at most.
const LONGEST_ANSWER: usize = 64 << 20;

/// How an extender is trusted and who the scheduler is to it. What stands in `…Data` (base64) goes before files.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFile {
    insecure: bool,
    server_name: String,
    cert_file: String,
    key_file: String,
    ca_file: String,
    cert_data: String,
    key_data: String,
    ca_data: String,
}

impl TlsFile {
    fn part(field: &str, data: &str, file: &str) -> Result<Option<Vec<u8>>, String> {
        if !data.is_empty() {
            let read = BASE64_STANDARD.decode(data);
            return read.map(Some).map_err(|error| format!("tlsConfig.{field}Data: Invalid value: {error}"));
        }
        if file.is_empty() {
            return Ok(None);
        }
        let read = std::fs::read(Path::new(file));
        read.map(Some).map_err(|error| format!("tlsConfig.{field}File: Invalid value: {file:?}: {error}"))
    }
}

/// How an extender is reached.
pub struct Link {
    tls: Option<TlsConnector>,
    /// The name to expect in its certificate, if not the one in the address.
    name: Option<String>,
}

impl Link {
    pub fn new(address: &str, enable_https: bool, file: Option<&TlsFile>) -> Result<Self, String> {
        let uri: Uri = address.parse().map_err(|_| format!("urlPrefix: Invalid value: {address:?}"))?;
        match uri.scheme_str() {
            Some("http") => return Ok(Self { tls: None, name: None }),
            Some("https") => {}
            _ => return Err(format!("urlPrefix: Invalid value: {address:?}: neither http nor https")),
        }
        let none = TlsFile::default();
        let file = file.unwrap_or(&none);
        let authorities = TlsFile::part("ca", &file.ca_data, &file.ca_file)?;
        let trust = match &authorities {
            Some(_) if file.insecure => {
                return Err(
                    "tlsConfig: specifying a root certificates file with the insecure flag is not allowed"
                        .into(),
                );
            }
            Some(pem) => Trust::Authorities(pem),
            // As upstream has it: who asks for HTTPS and names no authority trusts whoever answers.
            None if file.insecure || enable_https => Trust::Anyone,
            None => return Err("tlsConfig.caFile: Required value: for an address with https".to_owned()),
        };
        let chain = TlsFile::part("cert", &file.cert_data, &file.cert_file)?;
        let key = TlsFile::part("key", &file.key_data, &file.key_file)?;
        let identity = match (&chain, &key) {
            (Some(chain), Some(key)) => Some((&chain[..], &key[..])),
            (None, None) => None,
            _ => return Err("tlsConfig: a certificate and its key are given together".to_owned()),
        };
        let tls = tls_client(trust, identity, "http/1.1");
        let tls = tls.map_err(|error| format!("tlsConfig: {}", telemetry::chain(&error)))?;
        let name = (!file.server_name.is_empty()).then(|| file.server_name.clone());
        Ok(Self { tls: Some(TlsConnector::from(Arc::new(tls))), name })
    }

    /// Asks one question.
    pub async fn post(&self, url: &str, question: &Value) -> Result<Value, ExtenderError> {
        let bad_address = || ExtenderError::Address { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad_address())?;
        let authority = uri.authority().ok_or_else(bad_address)?;
        let host = authority.host().trim_matches(['[', ']']);
        let port = authority.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let failed = |source| ExtenderError::Connect { url: url.to_owned(), source };
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::post(path)
            .header(header::HOST, authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(question.to_string())))
            .map_err(|_| bad_address())?;
        match &self.tls {
            None => exchange(url, stream, request).await,
            Some(tls) => {
                let name = self.name.clone().unwrap_or_else(|| host.to_owned());
                let name = ServerName::try_from(name).map_err(|_| bad_address())?;
                exchange(url, tls.connect(name, stream).await.map_err(failed)?, request).await
            }
        }
    }
}

async fn exchange<S>(url: &str, stream: S, request: Request<Full<Bytes>>) -> Result<Value, ExtenderError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let failed = |source| ExtenderError::Http { url: url.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        let code = answer.status().as_u16();
        if code != 200 {
            return Err(ExtenderError::Code { url: url.to_owned(), code });
        }
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|_| ExtenderError::Code { url: url.to_owned(), code })?.to_bytes();
        serde_json::from_slice(&body).map_err(|source| ExtenderError::Decode { url: url.to_owned(), source })
    };
    // The connection serves this one exchange and is driven beside it.
    tokio::select! {
        answer = exchange => answer,
        Err(source) = connection => Err(failed(source)),
    }
}
