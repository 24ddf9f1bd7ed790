//! A session's streams, both ways, until one side ends.

use cri::{AttachOptions, ExecOptions, RuntimeService, TerminalSize};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use streaming::port_forward::Connection;
use streaming::remote_command::{self, Options, Outcome};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::What;

pub async fn run(
    runtime: &dyn RuntimeService,
    what: What,
    options: Options,
    client: remote_command::Session,
    driver: streaming::Driver,
) {
    let is_exec = matches!(what, What::Exec { .. });
    let session = match what {
        What::Exec { container, command } => {
            let wanted = ExecOptions {
                tty: options.tty,
                stdin: options.stdin,
                stdout: options.stdout,
                stderr: options.stderr && !options.tty,
            };
            runtime.exec(&container, &command, wanted).await
        }
        What::Attach { container } => {
            let wanted =
                AttachOptions { stdin: options.stdin, stdout: options.stdout, stderr: options.stderr };
            runtime.attach(&container, wanted).await
        }
        What::PortForward { .. } => return,
    };
    let work = async move {
        match session {
            Ok(session) => connect(session, client, is_exec).await,
            Err(error) => {
                let message = telemetry::chain(&error).to_string();
                client
                    .finish
                    .report(&Outcome::Failed(format!("error executing command in container: {message}")))
                    .await;
            }
        }
    };
    // The driver carries the last words out and ends when all of the session is dropped; a client that leaves ends it
    // first, and with it the session.
    tokio::pin!(work);
    let mut driver = driver;
    tokio::select! {
        () = &mut work => driver.await,
        () = &mut driver => {}
    }
}

async fn connect(session: cri::Session, client: remote_command::Session, is_exec: bool) {
    let remote_command::Session { stdin, stdout, stderr, resize, finish } = client;
    let input = async move {
        if let (Some(mut from), Some(mut to)) = (stdin, session.stdin) {
            // A command that closed its stdin just does not read any more.
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }
        std::future::pending::<()>().await
    };
    let sizes = async move {
        if let (Some(mut from), Some(to)) = (resize, session.resize) {
            while let Some(size) = from.recv().await {
                if to.send(TerminalSize { width: size.width, height: size.height }).await.is_err() {
                    break;
                }
            }
        }
        std::future::pending::<()>().await
    };
    let outputs = async { tokio::join!(copy_out(session.stdout, stdout), copy_out(session.stderr, stderr)) };
    let end = async { tokio::join!(session.exit, outputs).0 };
    let exit = tokio::select! {
        exit = end => exit,
        () = input => return,
        () = sizes => return,
    };
    let outcome = match exit {
        Ok(0) => Outcome::Success,
        Ok(_) if !is_exec => Outcome::Success,
        Ok(code) => Outcome::ExitCode(code),
        Err(error) => Outcome::Failed(telemetry::chain(&error).to_string()),
    };
    finish.report(&outcome).await;
}

async fn copy_out(from: Option<cri::Reader>, to: Option<streaming::BoxWrite>) {
    match (from, to) {
        (Some(mut from), Some(mut to)) => {
            // A client that left does not need the rest.
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        }
        (Some(mut from), None) => {
            let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        }
        (None, Some(mut to)) => {
            let _ = to.shutdown().await;
        }
        (None, None) => {}
    }
}

pub async fn forward(
    runtime: &dyn RuntimeService,
    sandbox: &str,
    mut connections: tokio::sync::mpsc::Receiver<Connection>,
    mut driver: streaming::Driver,
) {
    let mut open = FuturesUnordered::new();
    let mut more = true;
    loop {
        // Each arm is a queue or a set of its own; none loses anything when another is ready first.
        tokio::select! {
            connection = connections.recv(), if more => match connection {
                Some(connection) => open.push(forward_one(runtime, sandbox, connection)),
                None => more = false,
            },
            Some(()) = open.next(), if !open.is_empty() => {}
            () = &mut driver => return,
        }
    }
}

async fn forward_one(runtime: &dyn RuntimeService, sandbox: &str, connection: Connection) {
    let Connection { port, mut reader, mut writer, mut error } = connection;
    match runtime.port_forward(sandbox, port).await {
        Ok(stream) => {
            let (mut from_pod, mut to_pod) = tokio::io::split(stream);
            tokio::join!(pass(&mut reader, &mut to_pod), pass(&mut from_pod, &mut writer));
        }
        Err(problem) => {
            let text =
                format!("error forwarding port {port} to pod {sandbox}: {}", telemetry::chain(&problem));
            // The client may be gone; then there is nobody to tell.
            let _ = error.write_all(text.as_bytes()).await;
            let _ = writer.shutdown().await;
        }
    }
    let _ = error.shutdown().await;
}

/// One direction: everything, then the end.
async fn pass(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) {
    // An error in one direction is an end of it; the other side sees its own.
    let _ = tokio::io::copy(from, to).await;
    let _ = to.shutdown().await;
}
