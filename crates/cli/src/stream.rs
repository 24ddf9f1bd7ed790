//! Upgraded connections: exec, attach and port-forward over websockets.
//!
//! The server's subprotocol `v5.channel.k8s.io` numbers its channels: 0 to 2 are the standard streams, 3 the outcome, 4 the
//! terminal's size, and 255 closes another.

use std::io::{IsTerminal, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderName, Method, header};
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::Value;
use streaming::websocket::{Message, Role, WebSocket, split};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{CliError, Failure, message};
use crate::session::transport::{Call, whole};
use crate::session::{Session, escape};

const PROTOCOLS: &str = "v5.channel.k8s.io, v4.channel.k8s.io";
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const OUTCOME: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Upgrades a request to a websocket of one of the subprotocols; also the one that was chosen.
pub async fn open(
    session: &Session,
    path: &str,
    query: &[(&str, &str)],
    protocols: &str,
) -> Result<(hyper::upgrade::Upgraded, String), CliError> {
    let mut target = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(&format!("{}={}", escape(name), escape(value)));
    }
    let mut nonce = [0; 16];
    rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    let headers: Vec<(HeaderName, String)> = vec![
        (header::CONNECTION, "Upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_VERSION, "13".to_owned()),
        (header::SEC_WEBSOCKET_KEY, STANDARD.encode(nonce)),
        (header::SEC_WEBSOCKET_PROTOCOL, protocols.to_owned()),
    ];
    let call = Call { method: Method::GET, path: target, headers, body: Bytes::new() };
    let answer = session.transport()?.upgrade(call).await?;
    if answer.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        let code = answer.status().as_u16();
        let body = whole(answer.into_body()).await?;
        let status: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        return Err(if status["kind"] == "Status" {
            CliError::Status(Box::new(Failure { status }))
        } else {
            message(format!("unable to upgrade connection: {code} {}", String::from_utf8_lossy(&body).trim()))
        });
    }
    let chosen = answer.headers().get(header::SEC_WEBSOCKET_PROTOCOL);
    let chosen = chosen.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let upgraded = hyper::upgrade::on(answer)
        .await
        .map_err(|error| message(format!("unable to upgrade connection: {error}")))?;
    Ok((upgraded, chosen))
}

/// Which streams a session has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    pub stdin: bool,
    pub tty: bool,
}

/// Runs one exec or attach session to its end, with this process's own streams.
pub async fn remote_command(
    session: &Session,
    path: &str,
    query: &[(&str, &str)],
    streams: Streams,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let (upgraded, protocol) = open(session, path, query, PROTOCOLS).await?;
    let (mut socket, driver) = split(TokioIo::new(upgraded), Role::Client);
    let tasks = Tasks::new();
    tasks.spawn("websocket", |stop| async move {
        stop.or(driver).await;
    });
    let raw = Raw::enter(streams.tty && streams.stdin);
    if streams.stdin {
        let outgoing = socket.outgoing.clone();
        let closes = protocol == "v5.channel.k8s.io";
        tasks.spawn("stdin", move |stop| async move {
            stop.or(send_stdin(outgoing, closes)).await;
        });
    }
    if streams.tty && std::io::stdin().is_terminal() {
        let outgoing = socket.outgoing.clone();
        tasks.spawn("resize", move |stop| async move {
            stop.or(send_sizes(outgoing)).await;
        });
    }
    let outcome = receive(&mut socket, out).await;
    drop(raw);
    tasks.stop().request();
    outcome
}

async fn send_stdin(outgoing: tokio::sync::mpsc::Sender<Message>, closes: bool) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let count = stdin.read(&mut buffer).await.unwrap_or(0);
        let message = if count > 0 {
            framed(STDIN, &buffer[..count])
        } else if closes {
            Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))
        } else {
            return;
        };
        if outgoing.send(message).await.is_err() || count == 0 {
            return;
        }
    }
}

async fn send_sizes(outgoing: tokio::sync::mpsc::Sender<Message>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Ok(size) = tcgetwinsize(std::io::stdin()) {
            let text = format!("{{\"Width\":{},\"Height\":{}}}", size.ws_col, size.ws_row);
            if outgoing.send(framed(RESIZE, text.as_bytes())).await.is_err() {
                return;
            }
        }
        changes.recv().await;
    }
}

fn framed(channel: u8, payload: &[u8]) -> Message {
    let mut data = Vec::with_capacity(payload.len() + 1);
    data.push(channel);
    data.extend_from_slice(payload);
    Message::Binary(data.into())
}

async fn receive(socket: &mut WebSocket, out: &mut dyn Write) -> Result<(), CliError> {
    let mut status = Vec::new();
    while let Some(received) = socket.incoming.recv().await {
        let data = match received {
            Message::Binary(data) | Message::Text(data) => data,
            Message::Close(_) => break,
            _ => continue,
        };
        match data.split_first() {
            Some((&STDOUT, text)) => {
                out.write_all(text)?;
                out.flush()?;
            }
            Some((&STDERR, text)) => std::io::stderr().write_all(text)?,
            Some((&OUTCOME, text)) => status.extend_from_slice(text),
            _ => {}
        }
    }
    if status.is_empty() {
        return Ok(());
    }
    let status: Value = serde_json::from_slice(&status)
        .map_err(|_| message(String::from_utf8_lossy(&status).into_owned()))?;
    ended(&status)
}

/// What the last message says of the command's end.
fn ended(status: &Value) -> Result<(), CliError> {
    if status["status"] == "Success" {
        return Ok(());
    }
    if status["reason"] == "NonZeroExitCode" {
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let code = causes
            .filter(|cause| cause["reason"] == "ExitCode")
            .find_map(|cause| cause["message"].as_str()?.parse::<u8>().ok());
        if let Some(code) = code {
            eprintln!("command terminated with exit code {code}");
            return Err(CliError::Exit(code));
        }
    }
    Err(message(status["message"].as_str().unwrap_or("the command ended in an unknown way")))
}

/// The terminal without its own ideas about what is typed, until dropped.
struct Raw(Option<Termios>);

impl Raw {
    fn enter(wanted: bool) -> Self {
        let stdin = std::io::stdin();
        if !wanted || !stdin.is_terminal() {
            return Self(None);
        }
        let Ok(before) = tcgetattr(&stdin) else { return Self(None) };
        let mut raw = before.clone();
        raw.make_raw();
        // A terminal that cannot be changed still works, only less well.
        let _ = tcsetattr(&stdin, OptionalActions::Now, &raw);
        Self(Some(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // Nothing better can be done for a terminal that is gone.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_outcome_carries_the_exit_code() {
        assert!(ended(&json!({"status": "Success"})).is_ok());
        let failed = json!({"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        assert_eq!(ended(&failed).expect_err("failed").exit_code(), 3);
        let error = ended(&json!({"status": "Failure", "message": "no such container"})).expect_err("failed");
        assert_eq!(error.to_string(), "no such container");
    }
}
