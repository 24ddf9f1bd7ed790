//! `etcd` as a command: listening where [`crate::flags`] say, and stopping in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};

use crate::backup::{self, BackupError};
use crate::compactor::{self, Retention};
use crate::engine::{self, OpenError};
use crate::flags::ServerArgs;
use crate::tls::{ServerTls, TlsError};
use crate::v3::server::{self, Limits, Serves};
use crate::v3::service::{Options, Service};
use crate::v3::status::Status;

/// The store as a server with etcd's v3 API, and backups of it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct EtcdArgs {
    #[command(subcommand)]
    command: Option<EtcdCommand>,
    #[command(flatten)]
    server: ServerArgs,
}

impl EtcdArgs {
    /// What to log, as `telemetry` takes it.
    pub fn log_filter(&self) -> &str {
        self.server.log_filter()
    }
}

/// What else than serving there is to do.
#[derive(Subcommand, Debug)]
pub enum EtcdCommand {
    /// Save, look at and restore backups.
    #[command(subcommand)]
    Snapshot(backup::SnapshotCommand),
}

/// Why the command cannot do its work.
#[derive(Debug, Error)]
pub enum CommandError {
    /// A flag's value makes no sense.
    #[error("--{flag} {value}: {problem}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The store.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The identity could not be stored.
    #[error("cannot start the service")]
    Service(#[from] Status),
    /// An address cannot be listened on.
    #[error("cannot listen on {url}")]
    Listen {
        /// Which.
        url: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A backup.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// Stopping took too long.
    #[error("did not stop in time")]
    Drain,
}

/// One URL to listen on.
#[derive(Clone, Debug)]
pub struct Listen {
    pub(crate) url: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) secure: bool,
}

/// A server ready to be started; [`crate::flags`] makes it.
#[derive(Debug)]
pub struct Config {
    pub(crate) store: engine::Config,
    pub(crate) name: String,
    pub(crate) client_urls: Vec<String>,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) clients: Vec<Listen>,
    pub(crate) http: Vec<Listen>,
    pub(crate) metrics: Vec<Listen>,
    pub(crate) peers: Vec<Listen>,
    pub(crate) client_tls: Option<ServerTls>,
    pub(crate) peer_tls: Option<ServerTls>,
    pub(crate) retention: Option<Retention>,
    pub(crate) progress: Duration,
    pub(crate) max_txn_ops: usize,
    pub(crate) token_life: Duration,
    pub(crate) extensive_metrics: bool,
    pub(crate) bcrypt_cost: u32,
    pub(crate) limits: Limits,
    pub(crate) reuse_port: bool,
    /// Flags that were given and have no effect, and why not.
    pub(crate) notes: Vec<(&'static str, &'static str)>,
}

/// Runs what the arguments say: the server until the stop, or one of the other commands.
pub async fn run(args: EtcdArgs, stop: Stop) -> Result<(), CommandError> {
    match args.command {
        Some(EtcdCommand::Snapshot(command)) => Ok(backup::run(command, &stop).await?),
        None => serve(args.server.complete()?, stop).await,
    }
}

async fn bind(listen: &Listen, reuse_port: bool) -> Result<TcpListener, CommandError> {
    let failed = |source| CommandError::Listen { url: listen.url.clone(), source };
    let mut addresses = tokio::net::lookup_host((listen.host.as_str(), listen.port)).await.map_err(failed)?;
    let address: SocketAddr = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(failed)?;
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.set_reuseport(reuse_port).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    socket.listen(1024).map_err(failed)
}

/// Serves until the stop, then closes connections before the store.
pub async fn serve(config: Config, stop: Stop) -> Result<(), CommandError> {
    for (flag, why) in &config.notes {
        tracing::info!(flag, "taken without effect: {why}");
    }
    let store_tasks = Tasks::new();
    let etcd = engine::open(config.store.clone(), &store_tasks)?;
    let service = Service::new(etcd.clone(), service_options(&config)).await?;
    let service = Arc::new(service);
    let connections = Tasks::under(&stop);
    let client_serves = if config.http.is_empty() { Serves::Everything } else { Serves::Grpc };
    let all = [
        (&config.clients, client_serves, &config.client_tls),
        (&config.http, Serves::Http, &config.client_tls),
        (&config.metrics, Serves::Http, &config.client_tls),
        (&config.peers, Serves::Members, &config.peer_tls),
    ];
    for (listens, serves, tls) in all {
        for listen in listens {
            let listener = bind(listen, config.reuse_port).await?;
            let tls = tls.clone().filter(|_| listen.secure);
            let (service, tasks, limits) = (service.clone(), connections.clone(), config.limits.clone());
            tracing::info!(url = %listen.url, ?serves, "listening");
            connections.spawn("etcd/listener", move |stop| async move {
                server::serve(listener, serves, tls, limits, service, &tasks, stop).await;
            });
        }
    }
    if let Some(retention) = config.retention {
        let etcd = etcd.clone();
        connections.spawn("etcd/compactor", move |stop| compactor::run(etcd, retention, stop));
    }
    stop.requested().await;
    let late = connections.drain(Duration::from_secs(5)).await;
    if !late.is_empty() {
        tracing::warn!(connections = late.len(), "connections cut");
    }
    if store_tasks.drain(Duration::from_secs(30)).await.is_empty() {
        Ok(())
    } else {
        Err(CommandError::Drain)
    }
}

fn service_options(config: &Config) -> Options {
    Options {
        name: config.name.clone(),
        client_urls: config.client_urls.clone(),
        peer_urls: config.peer_urls.clone(),
        progress_interval: config.progress,
        max_txn_ops: config.max_txn_ops,
        token_life: config.token_life,
        extensive_metrics: config.extensive_metrics,
        bcrypt_cost: config.bcrypt_cost,
    }
}
