//! The other end of [`crate::urls`]: dials the URL that a runtime answered with and gives live endpoints.
//!
//! SPDY, as upstream's kubelet speaks to runtimes: its streams can be closed one by one, which stdin needs.

use std::io;
use std::time::Duration;

use cri::{Duplex, Session, TerminalSize};
use lifecycle::Tasks;
use streaming::spdy;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::debug;

const CONNECT: Duration = Duration::from_secs(10);
const LONGEST_HEAD: usize = 16 << 10;
/// The longest report of how a command ended.
const LONGEST_REPORT: u64 = 64 << 10;

#[derive(Debug, Error)]
pub enum DialError {
    #[error("the runtime's stream is at {0:?}, which is no http URL")]
    Url(String),
    #[error("cannot connect to the runtime's stream at {at}")]
    Connect {
        at: String,
        #[source]
        source: io::Error,
    },
    #[error("the runtime did not agree to a stream: {0}")]
    Refused(String),
    #[error("the connection of the stream broke")]
    Broken(#[from] io::Error),
}

/// Which streams to open.
#[derive(Debug, Clone, Copy)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Connects and agrees on SPDY. What is read beyond the answer belongs to the session, so the head is read byte by byte.
async fn upgrade(url: &str, protocol: &str) -> Result<TcpStream, DialError> {
    let bad = || DialError::Url(url.to_owned());
    let uri: http::Uri = url.parse().map_err(|_| bad())?;
    let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?;
    let at = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    let failed = |source| DialError::Connect { at: at.clone(), source };
    let connecting = tokio::time::timeout(CONNECT, TcpStream::connect(&at)).await;
    let mut stream = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {at}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let answered = async {
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= LONGEST_HEAD {
                return Err(io::Error::other("the answer's head does not end"));
            }
            head.push(stream.read_u8().await?);
        }
        Ok(())
    };
    let answered = tokio::time::timeout(CONNECT, answered).await;
    answered.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    let text = String::from_utf8_lossy(&head);
    let first = text.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) == Some("101") {
        Ok(stream)
    } else {
        Err(DialError::Refused(first.to_owned()))
    }
}

fn headers(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A command's or a container's streams.
pub async fn session(url: &str, wanted: Streams, tasks: &Tasks) -> Result<Session, DialError> {
    let io = upgrade(url, "v4.channel.k8s.io").await?;
    let (session, driver) = spdy::Session::new(io, false);
    tasks.spawn("cri/stream", |stop| async move {
        stop.or(driver).await;
    });
    let open = async |kind: &str| session.open(headers(&[("streamType", kind)])).await;
    let mut report = open("error").await?;
    // Nothing is ever said on it from here; its end would be taken for the end of the session.
    let stdin = if wanted.stdin { Some(open("stdin").await?) } else { None };
    let stdout = if wanted.stdout { Some(open("stdout").await?) } else { None };
    let stderr = if wanted.stderr && !wanted.tty { Some(open("stderr").await?) } else { None };
    let mut resize = None;
    if wanted.tty {
        let mut sizes = open("resize").await?;
        let (sender, mut receiver) = mpsc::channel::<TerminalSize>(4);
        tasks.spawn("cri/resize", |stop| async move {
            while let Some(Some(size)) = stop.or(receiver.recv()).await {
                let text = format!("{{\"Width\":{},\"Height\":{}}}\n", size.width, size.height);
                if sizes.write_all(text.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        resize = Some(sender);
    }
    let exit = async move {
        // Keeps the connection until the end is told.
        let _session = session;
        let mut text = Vec::new();
        let read = (&mut report).take(LONGEST_REPORT).read_to_end(&mut text).await;
        read.map_err(|error| cri::Error::failed("reading how the command ended", error))?;
        outcome(&text)
    };
    Ok(Session {
        stdin: stdin.map(|one| Box::pin(one) as cri::Writer),
        stdout: stdout.map(|one| Box::pin(one) as cri::Reader),
        stderr: stderr.map(|one| Box::pin(one) as cri::Reader),
        resize,
        exit: Box::pin(exit),
    })
}

/// The exit code in a report: nothing or success is 0.
fn outcome(report: &[u8]) -> cri::Result<i32> {
    if report.is_empty() {
        return Ok(0);
    }
    let failed = |text: String| Err(cri::Error::failed("running the command", text));
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(report) else {
        return failed(String::from_utf8_lossy(report).into_owned());
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
    let code = causes.iter().find(|cause| cause["reason"] == "ExitCode");
    match code.and_then(|cause| cause["message"].as_str()?.parse().ok()) {
        Some(code) if status["reason"] == "NonZeroExitCode" => Ok(code),
        _ => failed(status["message"].as_str().unwrap_or("no reason was given").to_owned()),
    }
}

/// One connection to a port of a pod.
pub async fn port(url: &str, port: u16, tasks: &Tasks) -> Result<Duplex, DialError> {
    let io = upgrade(url, "portforward.k8s.io").await?;
    let (session, driver) = spdy::Session::new(io, false);
    tasks.spawn("cri/port-forward", |stop| async move {
        stop.or(driver).await;
    });
    let number = port.to_string();
    let of = |kind: &str| headers(&[("streamType", kind), ("port", &number), ("requestID", "0")]);
    let mut report = session.open(of("error")).await?;
    report.shutdown().await?;
    let data = session.open(of("data")).await?;
    tasks.spawn("cri/port-forward-report", |stop| async move {
        // Keeps the connection until the runtime has said its last word.
        let _session = session;
        let mut text = Vec::new();
        let mut report = report.take(LONGEST_REPORT);
        if let Some(Ok(length)) = stop.or(report.read_to_end(&mut text)).await
            && length > 0
        {
            debug!(port, problem = %String::from_utf8_lossy(&text), "a forwarded connection ended");
        }
    });
    Ok(Box::pin(data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_an_exit_code_or_a_reason() {
        assert_eq!(outcome(b"").unwrap(), 0);
        assert_eq!(outcome(br#"{"status":"Success"}"#).unwrap(), 0);
        let text = br#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(outcome(text).unwrap(), 7);
        assert!(outcome(br#"{"status":"Failure","message":"no such file"}"#).is_err());
        assert!(outcome(b"plain words").is_err());
    }
}
