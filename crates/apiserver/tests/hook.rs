//! A small HTTPS server beside the API server, for webhooks.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pki::ClusterPki;
use pki::table::names;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

/// A server and what its clients trust it by.
pub struct Hook {
    pub port: u16,
    /// Base64, as it stands in a `caBundle`.
    pub ca: String,
}

/// Serves `answer` (path and body in, JSON out). Ends with the process.
pub fn serve(pki: &ClusterPki, answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> Hook {
    let pair = pki.pair(names::APISERVER).unwrap();
    let chain = CertificateDer::pem_slice_iter(pair.certificate_pem().as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(pair.key_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let (config, answer) = (Arc::new(config), Arc::new(answer));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, answer) = (config.clone(), answer.clone());
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let _ = exchange(&mut stream, &*answer); // a client that goes away is its own business
                stream.conn.send_close_notify();
                let _ = stream.flush();
            });
        }
    });
    let ca = pki.pair(names::SERVER_CA).unwrap().certificate_pem();
    Hook { port, ca: STANDARD.encode(ca) }
}

fn exchange(stream: &mut (impl Read + Write), answer: &dyn Fn(&str, &Value) -> Value) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let said = answer(&path, &serde_json::from_slice(&body).unwrap_or(Value::Null)).to_string();
    let stream = reader.into_inner();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        said.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(said.as_bytes())?;
    stream.flush()
}
