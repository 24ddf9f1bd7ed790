//! `/exec`, `/attach` and `/portForward`: upgrades the connection and ties the client's streams to the runtime's.

use std::sync::Arc;

use cri::{AttachOptions, ExecOptions, TerminalSize};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use streaming::port_forward::{self, Connection};
use streaming::remote_command::{self, Options, Outcome};
use streaming::upgrade::{self, Accepted};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tracing::debug;

use super::query::{self, Query};
use super::{Answer, endpoints, full, text};
use crate::host::SharedHost;
use crate::pods::Pods;

enum What {
    Exec { container: String, command: Vec<String> },
    Attach { container: String },
    PortForward { sandbox: String, ports: Vec<u16> },
}

pub async fn serve(
    host: SharedHost,
    pods: &Arc<Pods>,
    tasks: &Tasks,
    path: Vec<String>,
    mut request: Request<Incoming>,
) -> Answer {
    let query = query::parse(request.uri().query().unwrap_or(""));
    let what = match find(pods, &path, &query) {
        Ok(what) => what,
        Err((code, problem)) => return text(code, problem),
    };
    let (spdy, websocket) = match what {
        What::PortForward { .. } => (port_forward::SPDY_PROTOCOLS, port_forward::WEBSOCKET_PROTOCOLS),
        _ => (remote_command::SPDY_PROTOCOLS, remote_command::WEBSOCKET_PROTOCOLS),
    };
    let accepted = match upgrade::negotiate(request.headers(), spdy, websocket) {
        Ok(accepted) => accepted,
        Err(upgrade::UpgradeError::NotAnUpgrade) => {
            return text(StatusCode::BAD_REQUEST, "Upgrade request required");
        }
        Err(error) => return text(StatusCode::FORBIDDEN, error.to_string()),
    };
    let options = Options {
        stdin: query.flag("input") || query.flag("stdin"),
        stdout: query.flag("output") || query.flag("stdout"),
        stderr: query.flag("error") || query.flag("stderr"),
        tty: query.flag("tty"),
    };
    let upgraded = hyper::upgrade::on(&mut request);
    let Accepted { wire, protocol, response } = accepted;
    tasks.spawn("kubelet/stream", |stop| async move {
        let work = async {
            let io = match upgraded.await {
                Ok(io) => TokioIo::new(io),
                Err(error) => return debug!(%error, "the connection was not upgraded"),
            };
            match what {
                What::PortForward { sandbox, ports } => {
                    let (connections, driver) = port_forward::accept(io, wire, &protocol, &ports);
                    forward(&host, &sandbox, connections, driver).await;
                }
                what => match remote_command::accept(io, wire, &protocol, options).await {
                    Ok((session, driver)) => run(&host, what, options, session, driver).await,
                    Err(error) => debug!(%error, "no session came about"),
                },
            }
        };
        stop.or(work).await;
    });
    let (parts, ()) = response.into_parts();
    Response::from_parts(parts, full(""))
}

/// `exec/ns/pod[/uid]/container`, `attach/…`, `portForward/ns/pod[/uid]`.
fn find(pods: &Arc<Pods>, path: &[String], query: &Query) -> Result<What, (StatusCode, String)> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (kind, namespace, name, uid, container) = match path.as_slice() {
        [kind @ ("exec" | "attach"), namespace, name, container] => {
            (*kind, *namespace, *name, None, *container)
        }
        [kind @ ("exec" | "attach"), namespace, name, uid, container] => {
            (*kind, *namespace, *name, Some(*uid), *container)
        }
        [kind @ "portForward", namespace, name] => (*kind, *namespace, *name, None, ""),
        [kind @ "portForward", namespace, name, uid] => (*kind, *namespace, *name, Some(*uid), ""),
        _ => return Err((StatusCode::NOT_FOUND, "404 page not found\n".into())),
    };
    let missing =
        || (StatusCode::NOT_FOUND, format!("pod {name:?} in namespace {namespace:?} does not exist"));
    let reports = pods.find(namespace, name, uid).ok_or_else(missing)?;
    let report = reports.borrow();
    if kind == "portForward" {
        let no_sandbox = || (StatusCode::BAD_REQUEST, format!("pod {name:?} is not running"));
        let sandbox = report.sandbox.clone().ok_or_else(no_sandbox)?;
        let all = query.all("ports").chain(query.all("port")).flat_map(|list| list.split(','));
        let ports = all.map(|port| {
            port.parse().map_err(|_| (StatusCode::BAD_REQUEST, format!("{port:?} is not a port")))
        });
        return Ok(What::PortForward { sandbox, ports: ports.collect::<Result<_, _>>()? });
    }
    let id = endpoints::running(&report, container)
        .ok_or_else(|| (StatusCode::NOT_FOUND, format!("container not found ({container:?})")))?;
    Ok(match kind {
        "exec" => {
            let command: Vec<String> = query.all("command").map(str::to_owned).collect();
            if command.is_empty() {
                return Err((
                    StatusCode::BAD_REQUEST,
                    "you must specify at least 1 of stdin, stdout, stderr and a command".into(),
                ));
            }
            What::Exec { container: id, command }
        }
        _ => What::Attach { container: id },
    })
}

async fn run(
    host: &SharedHost,
    what: What,
    options: Options,
    client: remote_command::Session,
    driver: streaming::Driver,
) {
    let runtime = host.config.runtime.as_ref();
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

async fn forward(
    host: &SharedHost,
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
                Some(connection) => open.push(forward_one(host, sandbox, connection)),
                None => more = false,
            },
            Some(()) = open.next(), if !open.is_empty() => {}
            () = &mut driver => return,
        }
    }
}

async fn forward_one(host: &SharedHost, sandbox: &str, connection: Connection) {
    let Connection { port, mut reader, mut writer, mut error } = connection;
    match host.config.runtime.port_forward(sandbox, port).await {
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
