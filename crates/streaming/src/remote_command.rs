//! One exec or attach session, whichever wire it came on.
//!
//! [`accept`] takes the upgraded connection and answers with the client's streams. The command's end is told by
//! [`Finish::report`], in the form that the negotiated protocol version has for it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use crate::channels::{ChannelWriter, Encoding};
use crate::upgrade::Wire;
use crate::websocket::{self, Message, Role};
use crate::{BoxRead, BoxWrite, Driver, spdy};

/// What SPDY clients may ask for, best first.
pub const SPDY_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v3.channel.k8s.io",
    "v2.channel.k8s.io",
    "channel.k8s.io",
    "",
];
/// What websocket clients may ask for, best first.
pub const WEBSOCKET_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
    "",
];

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// How long a SPDY client may take to open its streams.
const STREAMS_TIMEOUT: Duration = Duration::from_secs(30);

/// Which streams the request asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the query's own names")]
pub struct Options {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub tty: bool,
}

/// Rows and columns of the client's terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "width and height")]
pub struct TerminalSize {
    #[serde(rename = "Width")]
    pub width: u16,
    #[serde(rename = "Height")]
    pub height: u16,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0, or an attach that ended.
    Success,
    /// The command's exit code.
    ExitCode(i32),
    /// It could not be run; the sentence for the client.
    Failed(String),
}

impl Outcome {
    /// The `Status` object that protocol v4 and later put on the error stream.
    pub fn status(&self) -> serde_json::Value {
        match self {
            Self::Success => json!({"metadata": {}, "status": "Success"}),
            Self::ExitCode(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Self::Failed(message) => json!({
                "metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500,
                "details": {"causes": [{"message": message}]},
            }),
        }
    }

    fn encode(&self, protocol: &str) -> Vec<u8> {
        if protocol.starts_with("v4.") || protocol.starts_with("v5.") {
            return self.status().to_string().into_bytes();
        }
        match self {
            Self::Success => Vec::new(),
            Self::ExitCode(code) => {
                format!("command terminated with non-zero exit code: exit status {code}").into_bytes()
            }
            Self::Failed(message) => message.clone().into_bytes(),
        }
    }
}

/// Why a session did not come about.
#[derive(Debug, Error)]
pub enum RemoteError {
    /// The client did not open the streams it announced.
    #[error("timed out waiting for client to create streams")]
    StreamsMissing,
    /// The connection ended before the streams were there.
    #[error("connection ended before its streams were open")]
    Closed,
}

/// The client's side of a session.
pub struct Session {
    /// What the client types; ends when it closes stdin.
    pub stdin: Option<BoxRead>,
    /// Where output goes.
    pub stdout: Option<BoxWrite>,
    /// Where errors go; absent with a terminal.
    pub stderr: Option<BoxWrite>,
    /// Changes of the terminal's size.
    pub resize: Option<mpsc::Receiver<TerminalSize>>,
    /// Where the end is reported.
    pub finish: Finish,
}

/// Reports the end of the session.
pub struct Finish {
    error: BoxWrite,
    protocol: String,
}

impl Finish {
    /// Tells the client how it ended and closes its error stream. Write all output before.
    pub async fn report(mut self, outcome: &Outcome) {
        let text = outcome.encode(&self.protocol);
        // A client that went away does not hear how its command ended.
        if !text.is_empty() && self.error.write_all(&text).await.is_err() {
            return;
        }
        let _ = self.error.shutdown().await;
    }
}

/// Takes an upgraded connection and waits for its streams. The driver must be polled until it ends.
pub async fn accept<T>(
    io: T,
    wire: Wire,
    protocol: &str,
    options: Options,
) -> Result<(Session, Driver), RemoteError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    match wire {
        Wire::WebSocket => Ok(over_websocket(io, protocol, options).await),
        Wire::Spdy => over_spdy(io, protocol, options).await,
    }
}

async fn over_spdy<T>(io: T, protocol: &str, options: Options) -> Result<(Session, Driver), RemoteError>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut session, mut driver) = spdy::Session::new(io, true);
    let resizes = options.tty && !matches!(protocol, "" | "channel.k8s.io" | "v2.channel.k8s.io");
    let wanted = 1
        + usize::from(options.stdin)
        + usize::from(options.stdout)
        + usize::from(options.stderr && !options.tty)
        + usize::from(resizes);
    let (mut stdin, mut stdout, mut stderr, mut error, mut resize) = (None, None, None, None, None);
    let collect = async {
        for _ in 0..wanted {
            let stream = session.accept().await.ok_or(RemoteError::Closed)?;
            match stream.header("streamType") {
                Some("stdin") => stdin = Some(stream),
                Some("stdout") => stdout = Some(stream),
                Some("stderr") => stderr = Some(stream),
                Some("error") => error = Some(stream),
                Some("resize") => resize = Some(stream),
                _ => {}
            }
        }
        Ok(session)
    };
    let session = tokio::select! {
        collected = tokio::time::timeout(STREAMS_TIMEOUT, collect) => {
            collected.map_err(|_| RemoteError::StreamsMissing)??
        }
        () = &mut driver => return Err(RemoteError::Closed),
    };
    let error = error.ok_or(RemoteError::StreamsMissing)?;
    let (sizes_in, sizes) = mpsc::channel(4);
    let driver = async move {
        let sizes = async move {
            let Some(resize) = resize else { return };
            let mut lines = BufReader::with_capacity(256, resize).split(b'}');
            while let Ok(Some(mut text)) = lines.next_segment().await {
                text.push(b'}');
                if let Ok(size) = serde_json::from_slice(&text)
                    && sizes_in.send(size).await.is_err()
                {
                    return;
                }
            }
        };
        // The session handle lives as long as the streams may; dropping it early would not close them.
        let _session = session;
        tokio::join!(driver, sizes);
    };
    Ok((
        Session {
            stdin: stdin.map(|stream| Box::pin(stream) as BoxRead),
            stdout: stdout.map(|stream| Box::pin(stream) as BoxWrite),
            stderr: stderr.map(|stream| Box::pin(stream) as BoxWrite),
            resize: resizes.then_some(sizes),
            finish: Finish { error: Box::pin(error), protocol: protocol.to_owned() },
        },
        Box::pin(driver),
    ))
}

async fn over_websocket<T>(io: T, protocol: &str, options: Options) -> (Session, Driver)
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let encoding = Encoding::of(protocol);
    let (mut socket, inner) = websocket::split(io, Role::Server);
    let writer =
        |channel| Box::pin(ChannelWriter::new(channel, encoding, socket.outgoing.clone())) as BoxWrite;
    let stderr_wanted = options.stderr && !options.tty;
    let session = Session {
        stdin: None,
        stdout: options.stdout.then(|| writer(STDOUT)),
        stderr: stderr_wanted.then(|| writer(STDERR)),
        resize: None,
        finish: Finish { error: writer(ERROR), protocol: protocol.to_owned() },
    };
    // An empty message on the first output channel tells the client that the session stands.
    let first = if options.stdout {
        STDOUT
    } else if stderr_wanted {
        STDERR
    } else {
        ERROR
    };
    // The queue is new and empty; it only refuses when the connection is gone, which the driver will notice.
    let _ = socket.outgoing.try_send(encoding.message(first, &[]));
    drop(socket.outgoing);
    let (stdin, mut stdin_writer) = match options.stdin {
        true => {
            let (ours, theirs) = tokio::io::duplex(16 * 1024);
            (Some(Box::pin(ours) as BoxRead), Some(theirs))
        }
        false => (None, None),
    };
    let (sizes_in, sizes) = mpsc::channel(4);
    let demultiplex = async move {
        while let Some(message) = socket.incoming.recv().await {
            if let Message::Close(_) = message {
                return;
            }
            let Some((channel, payload)) = encoding.parse(&message) else { continue };
            match channel {
                STDIN => {
                    if let Some(stdin) = &mut stdin_writer
                        && stdin.write_all(&payload).await.is_err()
                    {
                        stdin_writer = None;
                    }
                }
                RESIZE => {
                    if let Ok(size) = serde_json::from_slice(&payload) {
                        // A full queue drops a size; the next one corrects it.
                        let _ = sizes_in.try_send(size);
                    }
                }
                CLOSE if payload.first() == Some(&STDIN) => stdin_writer = None,
                _ => {}
            }
        }
    };
    let driver = async move {
        tokio::join!(inner, demultiplex);
    };
    let session = Session { stdin, resize: options.tty.then_some(sizes), ..session };
    (session, Box::pin(driver))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::split;
    use tokio::io::AsyncReadExt;

    const ALL: Options = Options { stdin: true, stdout: true, stderr: true, tty: false };

    #[tokio::test]
    async fn a_websocket_session_carries_all_channels() {
        let (client, server) = tokio::io::duplex(1024);
        let (mut socket, client_driver) = split(client, Role::Client);
        let (session, server_driver) =
            accept(server, Wire::WebSocket, "v5.channel.k8s.io", ALL).await.unwrap();
        let serve = async move {
            let mut input = String::new();
            session.stdin.unwrap().read_to_string(&mut input).await.unwrap();
            session.stdout.unwrap().write_all(input.to_uppercase().as_bytes()).await.unwrap();
            session.stderr.unwrap().write_all(b"oops").await.unwrap();
            session.finish.report(&Outcome::ExitCode(3)).await;
        };
        let talk = async move {
            socket.outgoing.send(Message::Binary("\0hello".into())).await.unwrap();
            socket.outgoing.send(Message::Binary(vec![CLOSE, STDIN].into())).await.unwrap();
            let mut seen = Vec::new();
            while let Some(Message::Binary(data)) = socket.incoming.recv().await {
                seen.push(data);
            }
            assert_eq!(seen[0], [STDOUT][..]);
            assert_eq!(seen[1], &b"\x01HELLO"[..]);
            assert_eq!(seen[2], &b"\x02oops"[..]);
            let status: serde_json::Value = serde_json::from_slice(&seen[3][1..]).unwrap();
            assert_eq!(status["details"]["causes"][0]["message"], "3");
        };
        tokio::join!(serve, talk, client_driver, server_driver);
    }

    #[tokio::test]
    async fn a_spdy_session_waits_for_its_streams_and_reports_the_end() {
        let (client, server) = tokio::io::duplex(1024);
        let (session, client_driver) = spdy::Session::new(client, false);
        let tty = Options { stdin: true, stdout: true, stderr: false, tty: true };
        let serve = async move {
            let (session, driver) = accept(server, Wire::Spdy, "v4.channel.k8s.io", tty).await.unwrap();
            let work = async move {
                let mut session = session;
                let size = session.resize.as_mut().unwrap().recv().await.unwrap();
                let text = format!("{}x{}", size.width, size.height);
                session.stdout.unwrap().write_all(text.as_bytes()).await.unwrap();
                session.finish.report(&Outcome::Success).await;
            };
            tokio::join!(work, driver);
        };
        let talk = async move {
            let kind = |name: &str| vec![("streamType".to_owned(), name.to_owned())];
            let mut error = session.open(kind("error")).await.unwrap();
            let _stdin = session.open(kind("stdin")).await.unwrap();
            let mut stdout = session.open(kind("stdout")).await.unwrap();
            let mut resize = session.open(kind("resize")).await.unwrap();
            resize.write_all(b"{\"Width\":80,\"Height\":24}\n").await.unwrap();
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "80x24");
            text.clear();
            error.read_to_string(&mut text).await.unwrap();
            assert!(text.contains("Success"), "{text}");
        };
        tokio::join!(serve, talk, client_driver);
    }

    #[test]
    fn old_protocols_get_plain_text() {
        assert!(Outcome::Success.encode("v3.channel.k8s.io").is_empty());
        assert_eq!(Outcome::Failed("no".into()).encode("channel.k8s.io"), b"no");
        assert!(Outcome::Success.encode("v4.channel.k8s.io").starts_with(b"{"));
    }
}
