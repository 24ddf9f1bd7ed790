//! `kelson coredns`: the server as a program, with CoreDNS' flags and file.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use client::{Client, Https, HttpsConfig, HttpsError};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::corefile::{self, Corefile, CorefileError};
use crate::{Config, Observed};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long a caller may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers for the cluster's names, with CoreDNS' flags: -conf FILE, -dns.port PORT
#[derive(Args, Clone, Debug)]
pub struct CorednsArgs {
    /// -conf FILE, -dns.port PORT (or -p PORT), as CoreDNS has them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Why the server does not run.
#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("flag provided but not defined: {0}")]
    Flag(String),
    #[error("flag {0} needs a value")]
    Value(String),
    #[error("cannot read {path}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    #[error("the Corefile has no kubernetes: this server answers for a cluster")]
    NoCluster,
    #[error("cannot reach the API server")]
    Https(#[from] HttpsError),
    #[error("cannot listen on {address} for {what}")]
    Listen {
        what: &'static str,
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Server(#[from] crate::Error),
}

#[derive(Debug, PartialEq, Eq)]
struct Flags {
    conf: PathBuf,
    port: Option<u16>,
}

/// Go's flags: one dash or two, the value after a blank or an equals sign.
fn flags(arguments: &[String]) -> Result<Flags, ProgramError> {
    let mut flags = Flags { conf: "Corefile".into(), port: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let name = argument.strip_prefix("--").or(argument.strip_prefix('-'));
        let name = name.ok_or_else(|| ProgramError::Flag(argument.clone()))?;
        let (name, given) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (name, None),
        };
        let mut value = || {
            given
                .clone()
                .or_else(|| rest.next().cloned())
                .ok_or_else(|| ProgramError::Value(argument.clone()))
        };
        match name {
            "conf" => flags.conf = value()?.into(),
            "dns.port" | "p" => {
                let text = value()?;
                flags.port = Some(text.parse().map_err(|_| ProgramError::Value(argument.clone()))?);
            }
            _ => return Err(ProgramError::Flag(argument.clone())),
        }
    }
    Ok(flags)
}

fn read(path: &Path, port: Option<u16>) -> Result<Corefile, ProgramError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ProgramError::Read { path: path.to_owned(), source })?;
    Ok(corefile::parse(&text, port)?)
}

impl CorednsArgs {
    /// Answers until the stop, and for as long after it as the file says.
    pub async fn run(self, stop: Stop) -> Result<(), ProgramError> {
        let flags = flags(&self.arguments)?;
        let file = read(&flags.conf, flags.port)?;
        let Some(domain) = file.domain.clone() else { return Err(ProgramError::NoCluster) };
        let client = Client::new(Https::new(HttpsConfig::in_cluster()?)?, "coredns");
        let (forwards, changes) = watch::channel(Arc::new(file.forwards.clone()));
        let listen = vec![SocketAddr::new(unspecified(), file.port)];
        let config = Config { forwards: Some(changes), log: file.log, ..Config::new(listen, domain, client) };
        let tasks = Tasks::new();
        let is_leaving = Arc::new(AtomicBool::new(false));
        show(&file, &config.observed, &is_leaving, &tasks).await?;
        let work = Stop::new();
        let (ended, leaving, lameduck) = (work.clone(), is_leaving.clone(), file.lameduck);
        tasks.spawn("dns/lameduck", move |_| async move {
            stop.requested().await;
            // Whoever sends questions here learns of the end before it comes.
            leaving.store(true, Ordering::Release);
            info!(seconds = lameduck.as_secs(), "ending after the time that others need to notice");
            tokio::time::sleep(lameduck).await;
            ended.request();
        });
        if file.reload {
            tasks.spawn("dns/reload", move |stop| async move {
                stop.or(reload(flags, file, forwards)).await;
            });
        }
        let outcome = crate::run(config, work).await;
        tasks.drain(PATIENCE).await;
        Ok(outcome?)
    }
}

/// All addresses of both families, where the machine has both.
fn unspecified() -> IpAddr {
    let has_v6 = std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    if has_v6 { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() }
}

/// Follows the file. What cannot change in a running server is told; what cannot be read leaves everything as it was.
async fn reload(flags: Flags, first: Corefile, forwards: watch::Sender<Arc<Vec<corefile::Forward>>>) {
    let mut known = std::fs::read(&flags.conf).ok();
    loop {
        tokio::time::sleep(LOOK).await;
        let now = std::fs::read(&flags.conf).ok();
        if now == known {
            continue;
        }
        known = now;
        match read(&flags.conf, flags.port) {
            Ok(file) => {
                let fixed = |file: &Corefile| Corefile { forwards: Vec::new(), ..file.clone() };
                if fixed(&file) != fixed(&first) {
                    warn!("the Corefile changed in more than its resolvers; that takes a restart");
                }
                forwards.send_replace(Arc::new(file.forwards));
            }
            Err(error) => warn!(error = %telemetry::chain(&error), "the Corefile changed and cannot be used"),
        }
    }
}

async fn show(
    file: &Corefile,
    observed: &Arc<Observed>,
    is_leaving: &Arc<AtomicBool>,
    tasks: &Tasks,
) -> Result<(), ProgramError> {
    let port = file.port;
    let pages: [(&'static str, Option<SocketAddr>, Page); 3] = [
        ("health", file.health, {
            let is_leaving = is_leaving.clone();
            Arc::new(move |path| match path {
                "/health" if is_leaving.load(Ordering::Acquire) => {
                    Some((503, "Service Unavailable".to_owned()))
                }
                "/health" => Some((200, "OK".to_owned())),
                _ => None,
            })
        }),
        ("ready", file.ready, {
            let observed = observed.clone();
            Arc::new(move |path| match path {
                "/ready" if observed.is_complete() => Some((200, "OK".to_owned())),
                "/ready" => Some((503, "kubernetes".to_owned())),
                _ => None,
            })
        }),
        ("prometheus", file.prometheus, {
            let observed = observed.clone();
            Arc::new(move |path| (path == "/metrics").then(|| (200, observed.metrics(port))))
        }),
    ];
    for (what, address, page) in pages {
        let Some(address) = address else { continue };
        let listener = TcpListener::bind(address).await.map_err(|source| ProgramError::Listen {
            what,
            address,
            source,
        })?;
        let inner = tasks.clone();
        tasks.spawn(format!("dns/{what}"), move |stop| async move {
            while let Some(accepted) = stop.or(listener.accept()).await {
                match accepted {
                    Ok((stream, _)) => {
                        let page = page.clone();
                        inner.spawn("dns/page", move |stop| async move {
                            // Who does not ask in time gets nothing.
                            let _ = stop.or(tokio::time::timeout(PATIENCE, respond(stream, page))).await;
                        });
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                }
            }
        });
    }
    Ok(())
}

/// Code and body of a path.
type Page = Arc<dyn Fn(&str) -> Option<(u16, String)> + Send + Sync>;

/// One request, one answer: probes and scrapers need no more of HTTP.
async fn respond(mut stream: TcpStream, page: Page) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).await?;
        if count == 0 || head.len() > 16 << 10 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..count]);
    }
    let line = String::from_utf8_lossy(&head);
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (code, body) = match method {
        "GET" | "HEAD" => page(path).unwrap_or((404, "404 page not found\n".to_owned())),
        _ => (405, String::new()),
    };
    let head = format!(
        "HTTP/1.1 {code} \r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if method != "HEAD" {
        stream.write_all(body.as_bytes()).await?;
    }
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_gos() {
        let read = |text: &str| flags(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let wanted = Flags { conf: "/etc/coredns/Corefile".into(), port: Some(5353) };
        assert_eq!(read("-conf /etc/coredns/Corefile -dns.port=5353").unwrap(), wanted);
        assert_eq!(read("--conf=/etc/coredns/Corefile -p 5353").unwrap(), wanted);
        assert!(read("-quiet").is_err() && read("-conf").is_err() && read("file").is_err());
    }
}
