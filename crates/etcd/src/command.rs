//! `etcd` as a command: listening where [`crate::flags`] say, and stopping in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};

use crate::alarm;
use crate::backup::{self, BackupError};
use crate::compactor::{self, Retention};
use crate::config_file::ConfigFileError;
use crate::engine::{self, OpenError};
use crate::flags::ServerArgs;
use crate::replication::driver::{Driver, Ended};
use crate::replication::member::{self, Joining, Kept, MemberError, Peering, Start};
use crate::replication::relay::{Replica, Timing};
use crate::replication::{bootstrap, corruption};
use crate::tls::{ServerTls, TlsError};
use crate::v3::cluster::{self, Reform};
use crate::v3::messages::{AlarmMember, Member};
use crate::v3::server::{self, Limits, Serves};
use crate::v3::service::{Options, Service, VERSION};
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
    /// A member cannot go on.
    #[error(transparent)]
    Member(#[from] MemberError),
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
    pub(crate) timing: Timing,
    /// Whether changes of the members that endanger the majority are refused.
    pub(crate) strict: bool,
    /// How often the members' data is compared; zero is never.
    pub(crate) corrupt_check: Duration,
    /// Whether it is before anybody is served.
    pub(crate) initial_check: bool,
    /// How a member connects to others.
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

/// Serves until the stop. When a whole new copy is needed, the server is closed, and opened again with it.
pub async fn serve(config: Config, stop: Stop) -> Result<(), CommandError> {
    for (flag, why) in &config.notes {
        tracing::info!(flag, "taken without effect: {why}");
    }
    let Some(directory) = config.store.data_dir.clone() else { return Err(CommandError::Drain) };
    let peering = Peering { peer_urls: config.peer_urls.clone(), tls: config.peer_client_tls.clone() };
    let joining = &config.joining;
    let mut told = Vec::new();
    let (mut kept, reform) = match member::standing(&directory, joining)? {
        Start::Alone(reform) => (None, reform),
        Start::Founds => {
            let mut listeners = Vec::new();
            for listen in &config.peers {
                let listener = bind(listen, config.reuse_port).await?;
                listeners.push((listener, config.peer_tls.clone().filter(|_| listen.secure)));
            }
            let name = &config.name;
            let founded = bootstrap::bootstrap(&directory, joining, name, &peering, listeners, &stop).await?;
            let Some(founded) = founded else { return Ok(()) };
            (Some(founded), Reform::Keep)
        }
        Start::Member(kept) if member::has_data(&directory) || joining.others.is_empty() => {
            (Some(kept), Reform::Keep)
        }
        // It has nothing yet, and so does not know the others.
        Start::Member(kept) => {
            let joined = member::join(&directory, &joining.others, kept.member_id, &peering, &stop).await?;
            let Some((_, members)) = joined else { return Ok(()) };
            told = members;
            (Some(kept), Reform::Keep)
        }
        Start::Joins => {
            let joined = member::join(&directory, &joining.others, 0, &peering, &stop).await?;
            let Some((joined, members)) = joined else { return Ok(()) };
            joined.write(&directory, true)?;
            told = members;
            (Some(joined), Reform::Keep)
        }
    };
    loop {
        // Connections and the ways to others end after the driver: it may have to say something at the end.
        let round = Stop::new();
        let (running, driver) = start(&config, kept.clone(), told.clone(), reform, &round).await?;
        if let Reform::TakeOver(_) = reform {
            // Not before the new identity is durable: a crash in between does it all again.
            member::leave(&directory)?;
            tracing::warn!("this member has taken over and decides alone from now on");
        }
        let service = running.service.clone();
        let ended = driver.run(&stop).await;
        let (members, last) = {
            let shared = &service.etcd.shared;
            (cluster::members(&shared.read().settings), shared.last_index())
        };
        drop(service);
        round.request();
        running.end().await?;
        match ended? {
            Ended::Stopped => return Ok(()),
            Ended::NeedsSnapshot => {
                let known = Kept::read(&directory)?.ok_or(CommandError::Drain)?;
                let members = if members.is_empty() { &told } else { &members };
                tracing::warn!("what comes next is not in the leader's log any more: getting a new copy");
                let got = member::receive(&directory, &known, last, members, &peering, &stop).await?;
                if got.is_none() {
                    return Ok(());
                }
                kept = Some(known);
            }
        }
    }
}

/// A server at work.
struct Running {
    service: Arc<Service>,
    connections: Tasks,
    /// The ways to other members.
    members: Tasks,
    store: Tasks,
}

impl Running {
    /// Closes connections before the store.
    async fn end(self) -> Result<(), CommandError> {
        let late = self.connections.drain(Duration::from_secs(5)).await;
        if !late.is_empty() {
            tracing::warn!(connections = late.len(), "connections cut");
        }
        self.members.drain(Duration::from_secs(2)).await;
        if self.store.drain(Duration::from_secs(30)).await.is_empty() {
            Ok(())
        } else {
            Err(CommandError::Drain)
        }
    }
}

async fn start(
    config: &Config,
    kept: Option<Kept>,
    told: Vec<Member>,
    reform: Reform,
    stop: &Stop,
) -> Result<(Running, Driver), CommandError> {
    let store = Tasks::new();
    let agreed = kept.as_ref().map(|kept| kept.commit);
    let etcd = engine::open(engine::Config { agreed, ..config.store.clone() }, &store)?;
    let own = Member {
        name: config.name.clone(),
        client_urls: config.client_urls.clone(),
        peer_urls: config.peer_urls.clone(),
        ..Member::default()
    };
    let identity = Service::identify(&etcd, kept.as_ref(), own.clone(), reform).await?;
    let peering = Peering { peer_urls: config.peer_urls.clone(), tls: config.peer_client_tls.clone() };
    let own = Member { id: identity.member_id, ..own };
    let members = Tasks::under(stop);
    let lone = || member::first(identity.cluster_id, identity.member_id, 0);
    let said = kept.clone().unwrap_or_else(lone);
    let (replica, queues) = Replica::new(own, said, peering, config.timing, config.strict, &members);
    let replica = Arc::new(replica);
    let service = Arc::new(Service::new(etcd.clone(), identity, replica.clone(), service_options(config)));
    let driver = Driver {
        service: service.clone(),
        replica,
        kept,
        told,
        inbox: queues.inbox,
        commands: queues.commands,
        tasks: members.clone(),
    };
    let connections = Tasks::under(stop);
    if config.initial_check && driver.kept.is_some() {
        corruption::initial(&service, &members).await?;
    }
    if !config.corrupt_check.is_zero() {
        let (service, every) = (service.clone(), config.corrupt_check);
        connections.spawn("etcd/corruption", move |stop| corruption::watch(service, every, stop));
    }
    let alarmed = service.clone();
    connections.spawn("etcd/alarms", move |stop| raise_alarms(alarmed, stop));
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
    Ok((Running { service, connections, members, store }, driver))
}

/// Writes to the log that the quota has refused something, so that all members know, until somebody has made room and says so.
async fn raise_alarms(service: Arc<Service>, stop: Stop) {
    let shared = &service.etcd.shared;
    while stop.or(shared.quota_refused.notified()).await.is_some() {
        let raised = AlarmMember { member_id: service.identity.member_id, alarm: alarm::NOSPACE };
        let raise = |transaction: &mut engine::Transaction<'_>| -> Result<(), Status> {
            alarm::raise(transaction, &raised);
            Ok(())
        };
        match stop.or(service.etcd.transact(raise)).await {
            Some(Ok(())) => shared.end_quota_alarm(),
            // Another one leads by now: it has a quota of its own.
            Some(Err(error)) => tracing::warn!(%error, "the alarm NOSPACE was not written to the log"),
            None => return,
        }
    }
}

fn service_options(config: &Config) -> Options {
    Options {
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
