//! Small servers that the tests put beside the API server (issuers, webhooks), and the real curl as a client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use pki::table::names;
use pki::{Algorithm, ClusterPki, ClusterSpec};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;

/// The certificates of a cluster on this machine, in files.
pub fn certificates(dir: &std::path::Path) -> ClusterPki {
    let spec = ClusterSpec {
        node_name: "local".to_owned(),
        node_ips: vec!["127.0.0.1".parse().unwrap()],
        service_ips: vec!["10.0.0.1".parse().unwrap()],
        api_sans: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        algorithm: Algorithm::EcdsaP256,
    };
    ClusterPki::ensure(dir, &spec).unwrap()
}

/// Serves `answer` (path and body in, JSON out) over HTTPS with the API server's certificate. Ends with the process.
pub fn serve(pki: &ClusterPki, answer: impl Fn(&str, &Value) -> Value + Send + Sync + 'static) -> u16 {
    serve_coded(pki, move |path, body| (200, answer(path, body)))
}

/// The same, with a code for every answer.
pub fn serve_coded(
    pki: &ClusterPki,
    answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> u16 {
    serve_on(pki, "127.0.0.1", answer)
}

/// The same at another address of this machine.
pub fn serve_on(
    pki: &ClusterPki,
    address: &str,
    answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> u16 {
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
    let config = Arc::new(config);
    listen(address, move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let _ = exchange(&mut stream, &answer); // a client that goes away is its own business
        stream.conn.send_close_notify();
        let _ = stream.flush();
    })
}

/// The same without TLS.
pub fn serve_plain(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> u16 {
    listen("127.0.0.1", move |mut stream| drop(exchange(&mut stream, &answer)))
}

/// Gives every connection a thread.
fn listen(address: &str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

fn exchange(
    stream: &mut (impl Read + Write),
    answer: &dyn Fn(&str, &Value) -> (u16, Value),
) -> std::io::Result<()> {
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
    let (code, said) = answer(&path, &serde_json::from_slice(&body).unwrap_or(Value::Null));
    let said = said.to_string();
    let stream = reader.into_inner();
    let head = format!(
        "HTTP/1.1 {code} Said\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        said.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(said.as_bytes())?;
    stream.flush()
}

/// The real curl towards one server.
pub struct Curl {
    pub server: String,
    pub ca: PathBuf,
}

impl Curl {
    /// The command, for those who want to keep it running.
    pub fn command(&self, path: &str, more: &[&str]) -> Command {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", "--cacert"]).arg(&self.ca);
        command.args(more).arg(format!("{}{path}", self.server));
        command
    }

    /// Code and body of an answer; what is no JSON comes as a string.
    pub fn ask(&self, path: &str, more: &[&str]) -> (u16, Value) {
        let output = self.command(path, more).args(["-w", "\n%{http_code}"]).output().expect("curl runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let (body, code) = text.rsplit_once('\n').unwrap_or(("", "0"));
        let body = serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned()));
        (code.trim().parse().unwrap_or(0), body)
    }

    /// POST of an object.
    pub fn post(&self, path: &str, object: &Value, more: &[&str]) -> (u16, Value) {
        let text = object.to_string();
        let mut all = vec!["-H", "Content-Type: application/json", "--data-binary", &text];
        all.extend(more);
        self.ask(path, &all)
    }
}
