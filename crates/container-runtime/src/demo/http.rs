//! The demo's web server and client: HTTP/1.1, one request per connection or several.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{dns, in_background, invalid, number};

const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_LINE: u64 = 16 * 1024;

/// Whether /healthz is happy.
struct Health {
    started: Instant,
    until: Option<Duration>,
    switched_off: AtomicBool,
}

impl Health {
    fn is_good(&self) -> bool {
        !self.switched_off.load(Ordering::Relaxed)
            && self.until.is_none_or(|until| self.started.elapsed() < until)
    }
}

struct Request {
    method: String,
    path: String,
    headers: Vec<String>,
    keep_alive: bool,
}

/// Serves until the process ends.
pub fn serve(port: u16, unhealthy_after: Option<u64>) -> io::Result<()> {
    let listener =
        TcpListener::bind((IpAddr::from([0; 8]), port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    writeln!(io::stdout(), "{} serves on port {port}", hostname())?;
    #[allow(clippy::disallowed_methods)] // a clock for a demonstration of time
    let health = Arc::new(Health {
        started: Instant::now(),
        until: unhealthy_after.map(Duration::from_secs),
        switched_off: AtomicBool::new(false),
    });
    for connection in listener.incoming() {
        let Ok(connection) = connection else { continue }; // the client went away before we looked
        let health = health.clone();
        in_background(move || {
            let _ = converse(connection, &health); // the client went away
        })?;
    }
    Ok(())
}

fn converse(connection: TcpStream, health: &Health) -> io::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let peer = connection.peer_addr()?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut writer = connection;
    while let Some(request) = read_request(&mut reader)? {
        let (status, body) = respond(&request, &peer.to_string(), health);
        writeln!(io::stdout(), "{peer} {} {} {}", request.method, request.path, &status[..3])?;
        let connection = if request.keep_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
            body.len()
        );
        writer.write_all(head.as_bytes())?;
        if request.method != "HEAD" {
            writer.write_all(body.as_bytes())?;
        }
        if !request.keep_alive {
            break;
        }
    }
    Ok(())
}

fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.take(MAX_LINE).read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(None) };
    let mut request = Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers: Vec::new(),
        keep_alive: words.next() == Some("HTTP/1.1"),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.take(MAX_LINE).read_line(&mut line)? == 0 || request.headers.len() > 200 {
            return Ok(None);
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "connection" if value.trim().eq_ignore_ascii_case("close") => request.keep_alive = false,
                _ => {}
            }
        }
        request.headers.push(line.to_owned());
    }
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some(request))
}

fn respond(request: &Request, peer: &str, health: &Health) -> (&'static str, String) {
    let environment = || {
        let mut all: Vec<String> = std::env::vars_os()
            .map(|(name, value)| format!("{}={}", name.to_string_lossy(), value.to_string_lossy()))
            .collect();
        all.sort();
        all.join("\n")
    };
    match request.path.split('?').next().unwrap_or_default() {
        "/healthz" | "/readyz" if health.is_good() => ("200 OK", "ok\n".into()),
        "/healthz" | "/readyz" => ("503 Service Unavailable", "unhealthy\n".into()),
        "/unhealthy" => {
            health.switched_off.store(true, Ordering::Relaxed);
            ("200 OK", "unhealthy from now on\n".into())
        }
        "/healthy" => {
            health.switched_off.store(false, Ordering::Relaxed);
            ("200 OK", "healthy again\n".into())
        }
        "/hostname" => ("200 OK", format!("{}\n", hostname())),
        "/env" => ("200 OK", format!("{}\n", environment())),
        "/headers" => ("200 OK", format!("{}\n", request.headers.join("\n"))),
        "/clientip" => ("200 OK", format!("{peer}\n")),
        "/" => {
            let text = format!(
                "Hostname: {}\nClient: {peer}\nRequest: {} {}\n\nHeaders:\n{}\n\nEnvironment:\n{}\n",
                hostname(),
                request.method,
                request.path,
                request.headers.join("\n"),
                environment()
            );
            ("200 OK", text)
        }
        path => ("404 Not Found", format!("nothing at {path}\n")),
    }
}

/// The name of this host, as the kernel has it.
pub fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() {
        fs::read_to_string("/etc/hostname").unwrap_or_default().trim().to_owned()
    } else {
        name
    }
}

/// Fetches a page of plain HTTP and prints its body; a status of 400 and more is a failure.
pub fn get(url: &str, out: &mut impl Write) -> io::Result<ExitCode> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    if rest.contains("://") {
        return Err(invalid(format!("{url}: only http:// is known here")));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, number("the port", port)?),
        _ => (authority, 80),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let mut reason = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in dns::lookup(host)? {
        match TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(5)) {
            Ok(connection) => return fetch(connection, authority, path, out),
            Err(error) => reason = io::Error::new(error.kind(), format!("{address}:{port}: {error}")),
        }
    }
    Err(reason)
}

fn fetch(
    mut connection: TcpStream,
    authority: &str,
    path: &str,
    out: &mut impl Write,
) -> io::Result<ExitCode> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let request = format!(
        "GET /{path} HTTP/1.0\r\nHost: {authority}\r\nUser-Agent: kelson-demo\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(connection);
    let mut status = String::new();
    (&mut reader).take(MAX_LINE).read_line(&mut status)?;
    let code: u16 = status.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    loop {
        let mut line = String::new();
        if (&mut reader).take(MAX_LINE).read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
    }
    io::copy(&mut reader, out)?;
    if !(200..400).contains(&code) {
        writeln!(io::stderr(), "status: {}", status.trim())?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
