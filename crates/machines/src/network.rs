//! The services of a switch, in one small process per cluster: names for the machines, the load balancer, and ports of
//! the host's loopback that lead to the machines' network.
//!
//! Two threads: one in the host's network that accepts, one in the switch's that does everything else. A socket belongs
//! to the namespace it was made in, so handing over an accepted connection is all that crosses.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use rustix::fs::{FlockOperation, flock};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::cluster::{Cluster, ClusterError, Forward};
use crate::machine::ProcessId;
use crate::names::Names;
use crate::switch::Switch;
use crate::sys::{self, Preparation};

/// The word that makes the binary this process.
pub const WORD: &str = "machine-network";

/// Why the services do not run.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum NetworkError {
    #[error("cannot use {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the services of the machines' network did not start: {0}")]
    Failed(String),
    #[error("port {0} of the host cannot be used")]
    Listen(SocketAddr, #[source] io::Error),
    #[error("the machines' network cannot be entered")]
    Namespace(#[from] netlink::Error),
    #[error("address {0} of the machines' network cannot be used")]
    Bind(SocketAddr, #[source] io::Error),
    #[error("the load balancer's configuration cannot be used")]
    LoadBalancer(#[from] crate::load_balancer::ConfigError),
    #[error(transparent)]
    Cluster(Box<ClusterError>),
    #[error("the network process does not end")]
    Stubborn,
}

fn at<'a>(path: &'a Path) -> impl FnOnce(io::Error) -> NetworkError + 'a {
    move |source| NetworkError::Io { path: path.to_owned(), source }
}

fn lock(base: &Path) -> Result<Option<fs::File>, NetworkError> {
    let path = base.join("network.lock");
    let file = fs::OpenOptions::new().create(true).append(true).open(&path).map_err(at(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(at(&path)(errno.into())),
    }
}

/// Starts the process unless it runs.
pub fn ensure(base: &Path, program: &Path) -> Result<(), NetworkError> {
    if lock(base)?.is_none() {
        return Ok(());
    }
    let log_path = base.join("network.log");
    let log = fs::OpenOptions::new().create(true).append(true).open(&log_path).map_err(at(&log_path))?;
    let mut command = Command::new(program);
    command.args([OsString::from(WORD), base.into()]);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    sys::prepare(&mut command, Preparation { new_session: true, umask: 0o077, ..Preparation::default() });
    let mut child = command.spawn().map_err(at(program))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        io::BufReader::new(stdout.take(1 << 16)).read_line(&mut line).map_err(at(program))?;
    }
    match line.trim() {
        "started" => Ok(()),
        reason => {
            let _ = child.wait();
            let reason = if reason.is_empty() { "see network.log" } else { reason };
            Err(NetworkError::Failed(reason.to_owned()))
        }
    }
}

/// Ends the process if it runs.
pub fn stop(base: &Path) -> Result<(), NetworkError> {
    if lock(base)?.is_some() {
        return Ok(());
    }
    let path = base.join("network.json");
    let text = crate::files::read_bounded(&path, 1 << 16).map_err(at(&path))?.unwrap_or_default();
    let Ok(process) = serde_json::from_slice::<ProcessId>(&text) else { return Ok(()) };
    if process.lives() {
        sys::kill(process.pid, libc::SIGTERM).map_err(at(&path))?;
        if !crate::cluster::wait_gone(process, Duration::from_secs(10)) {
            sys::kill(process.pid, libc::SIGKILL).map_err(at(&path))?;
            if !crate::cluster::wait_gone(process, Duration::from_secs(10)) {
                return Err(NetworkError::Stubborn);
            }
        }
    }
    Ok(())
}

/// Tells the process that what it reads has changed.
pub fn reload(base: &Path) -> Result<(), NetworkError> {
    let path = base.join("network.json");
    let text = crate::files::read_bounded(&path, 1 << 16).map_err(at(&path))?.unwrap_or_default();
    match serde_json::from_slice::<ProcessId>(&text) {
        Ok(process) if process.lives() => sys::kill(process.pid, libc::SIGHUP).map_err(at(&path)),
        _ => Ok(()),
    }
}

/// Is the process: `machine-network BASE`.
pub fn main(args: &[OsString]) -> ExitCode {
    let [base] = args else {
        eprintln!("error: {WORD} is started by `kelson machine start`");
        return ExitCode::FAILURE;
    };
    telemetry::log_to_stderr("info");
    match run(Path::new(base)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let text = telemetry::chain(&error).to_string();
            let _ = writeln!(io::stdout(), "{}", text.replace('\n', " "));
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(base: &Path) -> Result<(), NetworkError> {
    let Some(_lock) = lock(base)? else { return Ok(()) };
    let directory = base.parent().unwrap_or(base);
    let cluster = Cluster::open(directory).map_err(|error| NetworkError::Cluster(Box::new(error)))?;
    let shared = cluster.shared().clone();
    let own = ProcessId::of(std::process::id().cast_signed());
    let path = base.join("network.json");
    let text = serde_json::to_vec(&own).unwrap_or_default();
    crate::files::replace(&path, &text, 0o600).map_err(at(&path))?;
    // Made here, in the host's network, and served there.
    let listeners = listen(&shared.forwards, &[])?;
    let stop = Stop::new();
    let (accepted, streams) = mpsc::channel::<(TcpStream, SocketAddr)>(64);
    let namespace = Switch::of(&shared.id).namespace();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(at(base));
    let outside = runtime()?;
    let inner_stop = stop.clone();
    std::thread::scope(|scope| {
        let inside = scope.spawn(move || {
            netlink::netns::within(&namespace, move || {
                let runtime = runtime()?;
                runtime.block_on(serve(directory, &shared, streams, inner_stop))
            })?
        });
        let outcome = outside.block_on(accept(directory, listeners, accepted, &stop));
        stop.request();
        match inside.join() {
            Ok(inner) => inner.and(outcome.map_err(at(base))),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Listens for the forwards that are not served yet.
fn listen(forwards: &[Forward], served: &[Forward]) -> Result<Vec<(TcpListener, Forward)>, NetworkError> {
    let missing = forwards.iter().filter(|forward| !served.contains(forward));
    missing
        .map(|forward| match TcpListener::bind(forward.listen) {
            Ok(listener) => Ok((listener, *forward)),
            Err(error) => Err(NetworkError::Listen(forward.listen, error)),
        })
        .collect()
}

/// In the host's network: takes connections and hands them over.
async fn accept(
    directory: &Path,
    listeners: Vec<(TcpListener, Forward)>,
    accepted: mpsc::Sender<(TcpStream, SocketAddr)>,
    stop: &Stop,
) -> io::Result<()> {
    let tasks = Tasks::under(stop);
    let mut served: Vec<Forward> = Vec::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut listeners = listeners;
    loop {
        served.extend(listeners.iter().map(|(_, forward)| *forward));
        take_connections(std::mem::take(&mut listeners), &accepted, &tasks)?;
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = stop.requested() => break,
            _ = hangup.recv() => {}
        }
        let fresh = Cluster::open(directory).map_err(|error| NetworkError::Cluster(Box::new(error)));
        match fresh.and_then(|cluster| listen(&cluster.shared().forwards, &served)) {
            Ok(fresh) => listeners = fresh,
            Err(error) => warn!(error = %telemetry::chain(&error), "ports of the host stay as they were"),
        }
    }
    tasks.drain(Duration::from_secs(1)).await;
    Ok(())
}

fn take_connections(
    listeners: Vec<(TcpListener, Forward)>,
    accepted: &mpsc::Sender<(TcpStream, SocketAddr)>,
    tasks: &Tasks,
) -> io::Result<()> {
    for (listener, forward) in listeners {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let accepted = accepted.clone();
        tasks.spawn(format!("accept/{}", forward.listen), move |stop| async move {
            while let Some(connection) = stop.or(listener.accept()).await {
                match connection.map(|(stream, _)| stream.into_std()) {
                    Ok(Ok(stream)) => {
                        if accepted.send((stream, forward.to)).await.is_err() {
                            break;
                        }
                    }
                    Ok(Err(error)) | Err(error) => {
                        warn!(%error, "cannot accept a connection");
                        // Out of descriptors: trying at once would only spin.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
    }
    Ok(())
}

/// In the switch's network: names, load balancer, and the other ends of the host's connections.
async fn serve(
    directory: &Path,
    shared: &crate::cluster::Shared,
    mut streams: mpsc::Receiver<(TcpStream, SocketAddr)>,
    stop: Stop,
) -> Result<(), NetworkError> {
    let tasks = Tasks::under(&stop);
    let names = Arc::new(Names::new(&shared.domain, &shared.records));
    if let Some(address) = shared.addresses.first().map(|net| net.addr()) {
        serve_names(&tasks, names.clone(), address).await?;
    }
    let balancer = match &shared.load_balancer {
        Some(path) => {
            let path = directory.join(path);
            Some(crate::load_balancer::Balancer::start(&path, &tasks).await?)
        }
        None => None,
    };
    info!(cluster = shared.id, "the machines' network is served");
    let _ = writeln!(io::stdout(), "started");
    let _ = io::stdout().flush();
    let mut reload = signal(SignalKind::hangup()).map_err(at(directory))?;
    loop {
        tokio::select! {
            () = stop.requested() => break,
            _ = reload.recv() => {
                match Cluster::open(directory) {
                    Ok(cluster) => names.set(&cluster.shared().records),
                    Err(error) => warn!(error = %telemetry::chain(&error), "names stay as they were"),
                }
                if let Some(balancer) = &balancer
                    && let Err(error) = balancer.reload().await
                {
                    warn!(error = %telemetry::chain(&error), "the load balancer goes on as it was");
                }
            }
            stream = streams.recv() => match stream {
                Some((stream, to)) => tasks.spawn("forward", move |stop| async move {
                    stop.or(forward(stream, to)).await;
                }),
                None => break,
            },
        }
    }
    tasks.drain(Duration::from_secs(2)).await;
    Ok(())
}

async fn forward(stream: TcpStream, to: SocketAddr) {
    let outcome = async {
        let mut from = tokio::net::TcpStream::from_std(stream)?;
        let mut there = tokio::net::TcpStream::connect(to).await?;
        from.set_nodelay(true)?;
        there.set_nodelay(true)?;
        tokio::io::copy_bidirectional(&mut from, &mut there).await
    };
    if let Err(error) = outcome.await {
        tracing::debug!(%to, %error, "a forwarded connection ended");
    }
}

async fn serve_names(tasks: &Tasks, names: Arc<Names>, address: IpAddr) -> Result<(), NetworkError> {
    let listen = SocketAddr::new(address, 53);
    let fail = |error| NetworkError::Bind(listen, error);
    let datagrams = tokio::net::UdpSocket::bind(listen).await.map_err(fail)?;
    let connections = tokio::net::TcpListener::bind(listen).await.map_err(fail)?;
    let (one, two) = (names.clone(), names);
    tasks.spawn("names/udp", move |stop| async move { one.serve_udp(datagrams, stop).await });
    tasks.spawn("names/tcp", move |stop| async move { two.serve_tcp(connections, stop).await });
    Ok(())
}
