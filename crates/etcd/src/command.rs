//! `etcd` as a command: listening where [`crate::flags`] say, and stopping in order.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};

use crate::backup::{self, BackupError};
use crate::compactor::{self, Retention};
use crate::config_file::ConfigFileError;
use crate::engine::{self, OpenError};
use crate::flags::ServerArgs;
use crate::replication::learner::{self, Ended, Following, Joining, Kept, LearnerError, Peering, Start};
use crate::tls::{ServerTls, TlsError};
use crate::v3::cluster::Reform;
use crate::v3::server::{self, Limits, Serves};
use crate::v3::service::{Options, Role, Service, VERSION};
use crate::v3::status::Status;

/// The store as a server with etcd's v3 API, and backups of it.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, disable_version_flag = true)]
pub struct EtcdArgs {
    #[command(subcommand)]
    command: Option<EtcdCommand>,
    #[command(flatten)]
    server: ServerArgs,
}

impl EtcdArgs {
    /// What to log, as `telemetry` takes it.
    pub fn log_filter(&self) -> &'static str {
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
    /// The file with the flags.
    #[error(transparent)]
    File(#[from] ConfigFileError),
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
    /// A learner cannot go on.
    #[error(transparent)]
    Learner(#[from] LearnerError),
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
    pub(crate) joining: Joining,
    pub(crate) max_learners: usize,
    /// How a learner connects.
    pub(crate) peer_client_tls: Option<Arc<rustls::ClientConfig>>,
    /// Flags that were given and have no effect, and why not.
    pub(crate) notes: Vec<(&'static str, &'static str)>,
}

/// Runs what the arguments say: the server until the stop, or one of the other commands.
pub async fn run(args: EtcdArgs, stop: Stop) -> Result<(), CommandError> {
    match args.command {
        Some(EtcdCommand::Snapshot(command)) => Ok(backup::run(command, &stop).await?),
        None if args.server.version => {
            println!("etcd Version: {VERSION}\nkelson Version: {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
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

/// Serves until the stop.
pub async fn serve(config: Config, stop: Stop) -> Result<(), CommandError> {
    for (flag, why) in &config.notes {
        tracing::info!(flag, "taken without effect: {why}");
    }
    let Some(directory) = config.store.data_dir.clone() else { return Err(CommandError::Drain) };
    match learner::standing(&directory, &config.joining)? {
        Start::Decides(reform) => {
            let running = start(&config, Role::Decides(reform), &stop).await?;
            if let Reform::TakeOver(_) = reform {
                // Not before the new identity is durable: a crash in between does it all again.
                learner::leave(&directory)?;
                tracing::warn!("this learner has taken over and decides from now on");
            }
            stop.requested().await;
            running.end().await
        }
        Start::Follows(kept) => follow(config, &directory, kept, &stop).await,
    }
}

/// Serves as a learner until the stop. When a whole new copy is needed, the server is closed, and opened again with it.
async fn follow(
    mut config: Config,
    directory: &Path,
    mut kept: Kept,
    stop: &Stop,
) -> Result<(), CommandError> {
    config.store.follows = true;
    config.retention = None;
    let peering = Peering {
        name: config.name.clone(),
        peer_urls: config.peer_urls.clone(),
        client_urls: config.client_urls.clone(),
        tls: config.peer_client_tls.clone(),
    };
    let mut needs_copy = !learner::has_data(directory);
    loop {
        if needs_copy {
            let Some(got) = learner::receive(directory, &kept, &peering, stop).await? else { return Ok(()) };
            kept = got;
        }
        let round = stop.child();
        let following = Arc::new(Following::new(&kept));
        let running = start(&config, Role::Follows(following.clone()), &round).await?;
        let ended = learner::follow(&running.service, &following, &kept, &peering, stop).await;
        round.request();
        running.end().await?;
        match ended? {
            Ended::Stopped => return Ok(()),
            Ended::NeedsSnapshot => needs_copy = true,
        }
    }
}

/// A server at work.
struct Running {
    service: Arc<Service>,
    connections: Tasks,
    store: Tasks,
}

impl Running {
    /// Closes connections before the store.
    async fn end(self) -> Result<(), CommandError> {
        let late = self.connections.drain(Duration::from_secs(5)).await;
        if !late.is_empty() {
            tracing::warn!(connections = late.len(), "connections cut");
        }
        if self.store.drain(Duration::from_secs(30)).await.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Drain)
        }
    }
}

async fn start(config: &Config, role: Role, stop: &Stop) -> Result<Running, CommandError> {
    let store = Tasks::new();
    let etcd = engine::open(config.store.clone(), &store)?;
    let service = Service::new(etcd.clone(), service_options(config, role)).await?;
    let service = Arc::new(service);
    let connections = Tasks::under(stop);
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
        connections.spawn("etcd/compactor", move |stop| compactor::run(etcd, retention, stop));
    }
    Ok(Running { service, connections, store })
}

fn service_options(config: &Config, role: Role) -> Options {
    Options {
        name: config.name.clone(),
        client_urls: config.client_urls.clone(),
        peer_urls: config.peer_urls.clone(),
        role,
        max_learners: config.max_learners,
        progress_interval: config.progress,
        max_txn_ops: config.max_txn_ops,
        token_life: config.token_life,
        extensive_metrics: config.extensive_metrics,
        bcrypt_cost: config.bcrypt_cost,
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    /// As the `kelson` binary has it: its own version is that of all commands.
    #[derive(Parser)]
    #[command(version = "1", propagate_version = true)]
    enum Cli {
        #[command(name = "etcd")]
        Etcd(Box<super::EtcdArgs>),
    }

    #[test]
    fn the_command_fits_into_one_that_has_a_version() {
        Cli::command().debug_assert();
        let Cli::Etcd(args) = Cli::parse_from(["kelson", "etcd", "--version"]);
        assert!(args.server.version);
    }
}
