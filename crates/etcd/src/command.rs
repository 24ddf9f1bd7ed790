//! `etcd` as a command: its flags and environment variables, and running it.
//!
//! Flags that only matter to several members are taken, so that existing command lines work, as long as they describe one
//! member; what cannot be honoured is refused, not ignored.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use http::Uri;
use lifecycle::{Stop, Tasks};
use rustls::ServerConfig;
use thiserror::Error;
use tokio::net::TcpListener;

use crate::backup::{self, BackupError};
use crate::compactor::{self, Retention};
use crate::engine::{self, OpenError};
use crate::tls::{self, TlsError};
use crate::v3::server;
use crate::v3::service::Service;
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
        &self.server.log_level
    }
}

/// What else than serving there is to do.
#[derive(Subcommand, Debug)]
pub enum EtcdCommand {
    /// Save, look at and restore backups.
    #[command(subcommand)]
    Snapshot(backup::SnapshotCommand),
}

/// etcd's flags.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// Name of this member.
    #[arg(long, env = "ETCD_NAME", default_value = "default")]
    name: String,
    /// Where the data is [default: NAME.etcd].
    #[arg(long, env = "ETCD_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// URLs to listen on for clients.
    #[arg(
        long,
        env = "ETCD_LISTEN_CLIENT_URLS",
        value_delimiter = ',',
        default_value = "http://localhost:2379"
    )]
    listen_client_urls: Vec<String>,
    /// URLs that clients are told [default: those listened on].
    #[arg(long, env = "ETCD_ADVERTISE_CLIENT_URLS", value_delimiter = ',')]
    advertise_client_urls: Vec<String>,
    /// Additional URLs for /metrics and /health.
    #[arg(long, env = "ETCD_LISTEN_METRICS_URLS", value_delimiter = ',')]
    listen_metrics_urls: Vec<String>,
    /// URLs for other members: told to clients; there are no other members.
    #[arg(
        long,
        env = "ETCD_LISTEN_PEER_URLS",
        value_delimiter = ',',
        default_value = "http://localhost:2380"
    )]
    listen_peer_urls: Vec<String>,
    /// URLs that other members would be told.
    #[arg(long, env = "ETCD_INITIAL_ADVERTISE_PEER_URLS", value_delimiter = ',')]
    initial_advertise_peer_urls: Vec<String>,
    /// The members: this one only.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER", value_delimiter = ',')]
    initial_cluster: Vec<String>,
    /// Whether the cluster is new or existing: makes no difference to one member.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_STATE", default_value = "new")]
    initial_cluster_state: String,
    /// A name for the cluster: makes no difference to one member.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_TOKEN", default_value = "etcd-cluster")]
    initial_cluster_token: String,
    /// Certificate for clients to see.
    #[arg(long, env = "ETCD_CERT_FILE")]
    cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, env = "ETCD_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Ask clients for certificates.
    #[arg(long, env = "ETCD_CLIENT_CERT_AUTH", num_args = 0..=1, default_missing_value = "true", default_value_t = false)]
    client_cert_auth: bool,
    /// The authority of clients' certificates.
    #[arg(long, env = "ETCD_TRUSTED_CA_FILE")]
    trusted_ca_file: Option<PathBuf>,
    /// Refuse writes beyond this many bytes of data; 0 is the default of 2 GiB.
    #[arg(long, env = "ETCD_QUOTA_BACKEND_BYTES", default_value_t = 0)]
    quota_backend_bytes: i64,
    /// The largest request taken.
    #[arg(long, env = "ETCD_MAX_REQUEST_BYTES", default_value_t = 3 << 19)]
    max_request_bytes: usize,
    /// Forget history by time (periodic) or by number of revisions (revision).
    #[arg(long, env = "ETCD_AUTO_COMPACTION_MODE", default_value = "periodic")]
    auto_compaction_mode: String,
    /// How much history to keep; 0 is all.
    #[arg(long, env = "ETCD_AUTO_COMPACTION_RETENTION", default_value = "0")]
    auto_compaction_retention: String,
    /// How often quiet watches are told their progress.
    #[arg(
        long,
        env = "ETCD_WATCH_PROGRESS_NOTIFY_INTERVAL",
        alias = "experimental-watch-progress-notify-interval"
    )]
    watch_progress_notify_interval: Option<String>,
    /// What to log: debug, info, warn, error.
    #[arg(long, env = "ETCD_LOG_LEVEL", default_value = "info")]
    log_level: String,
    /// Taken for compatibility: there are no other members to elect or to send snapshots to.
    #[arg(long, env = "ETCD_HEARTBEAT_INTERVAL", hide = true)]
    heartbeat_interval: Option<u64>,
    /// Taken for compatibility.
    #[arg(long, env = "ETCD_ELECTION_TIMEOUT", hide = true)]
    election_timeout: Option<u64>,
    /// Taken for compatibility: snapshots are taken by size.
    #[arg(long, env = "ETCD_SNAPSHOT_COUNT", hide = true)]
    snapshot_count: Option<u64>,
    /// Taken for compatibility: logs go to standard error.
    #[arg(long, env = "ETCD_LOGGER", hide = true)]
    logger: Option<String>,
    /// Taken for compatibility: logs go to standard error.
    #[arg(long, env = "ETCD_LOG_OUTPUTS", hide = true)]
    log_outputs: Option<String>,
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
    url: String,
    host: String,
    port: u16,
    secure: bool,
}

/// A server ready to be started.
#[derive(Debug)]
pub struct Config {
    store: engine::Config,
    name: String,
    listen: Vec<Listen>,
    client_urls: Vec<String>,
    peer_urls: Vec<String>,
    tls: Option<Arc<ServerConfig>>,
    retention: Option<Retention>,
    progress: Option<Duration>,
}

fn flag(flag: &'static str, value: impl ToString, problem: &'static str) -> CommandError {
    CommandError::Flag { flag, value: value.to_string(), problem }
}

fn parse_url(name: &'static str, url: &str) -> Result<Listen, CommandError> {
    let wrong = || flag(name, url, "must be http://host:port or https://host:port");
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    Ok(Listen { url: url.to_owned(), host, port: uri.port_u16().ok_or_else(wrong)?, secure })
}

impl ServerArgs {
    /// Checks the flags against each other.
    pub fn complete(self) -> Result<Config, CommandError> {
        if self.initial_cluster.len() > 1 {
            let problem = "this server has one member; for several, run the API server on an etcd cluster";
            return Err(flag("initial-cluster", self.initial_cluster.join(","), problem));
        }
        let mut listen = Vec::new();
        for url in &self.listen_client_urls {
            listen.push(parse_url("listen-client-urls", url)?);
        }
        for url in &self.listen_metrics_urls {
            listen.push(parse_url("listen-metrics-urls", url)?);
        }
        let tls = match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => {
                let ca = self.trusted_ca_file.as_deref().filter(|_| self.client_cert_auth);
                if self.client_cert_auth && ca.is_none() {
                    return Err(flag("client-cert-auth", true, "needs --trusted-ca-file"));
                }
                Some(tls::server(cert, key, ca)?)
            }
            (None, None) => None,
            (Some(cert), None) => return Err(flag("cert-file", cert.display(), "needs --key-file")),
            (None, Some(key)) => return Err(flag("key-file", key.display(), "needs --cert-file")),
        };
        if let Some(secure) = listen.iter().find(|listen| listen.secure && tls.is_none()) {
            return Err(flag("listen-client-urls", &secure.url, "needs --cert-file and --key-file"));
        }
        let data_dir = self.data_dir.unwrap_or_else(|| PathBuf::from(format!("{}.etcd", self.name)));
        let defaults = engine::Config::default();
        let quota_bytes = match self.quota_backend_bytes {
            0 => defaults.quota_bytes,
            // As etcd: no limit.
            negative if negative < 0 => u64::MAX,
            bytes => bytes as u64,
        };
        let retention = Retention::parse(&self.auto_compaction_mode, &self.auto_compaction_retention)
            .ok_or_else(|| {
                let given = format!("{} {}", self.auto_compaction_mode, self.auto_compaction_retention);
                flag(
                    "auto-compaction-retention",
                    given,
                    "wanted: periodic with hours or 5m, or revision with a number",
                )
            })?;
        let progress = match &self.watch_progress_notify_interval {
            Some(text) => Some(compactor::duration(text).ok_or_else(|| {
                flag("watch-progress-notify-interval", text, "wanted: a duration such as 5s or 10m")
            })?),
            None => None,
        };
        let or =
            |given: Vec<String>, default: &[String]| if given.is_empty() { default.to_vec() } else { given };
        Ok(Config {
            store: engine::Config {
                data_dir: Some(data_dir),
                quota_bytes,
                max_request_bytes: self.max_request_bytes,
            },
            name: self.name,
            client_urls: or(self.advertise_client_urls, &self.listen_client_urls),
            peer_urls: or(self.initial_advertise_peer_urls, &self.listen_peer_urls),
            listen,
            tls,
            retention: Some(retention).filter(|retention| !retention.keeps_everything()),
            progress,
        })
    }
}

/// Runs what the arguments say: the server until the stop, or one of the other commands.
pub async fn run(args: EtcdArgs, stop: Stop) -> Result<(), CommandError> {
    match args.command {
        Some(EtcdCommand::Snapshot(command)) => Ok(backup::run(command, &stop).await?),
        None => serve(args.server.complete()?, stop).await,
    }
}

async fn bind(listen: &Listen) -> Result<TcpListener, CommandError> {
    let failed = |source| CommandError::Listen { url: listen.url.clone(), source };
    let mut addresses = tokio::net::lookup_host((listen.host.as_str(), listen.port)).await.map_err(failed)?;
    let address: SocketAddr = addresses.next().ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
    TcpListener::bind(address).await.map_err(failed)
}

/// Serves until the stop, then closes connections before the store.
pub async fn serve(config: Config, stop: Stop) -> Result<(), CommandError> {
    let store_tasks = Tasks::new();
    let etcd = engine::open(config.store.clone(), &store_tasks)?;
    let mut service =
        Service::new(etcd.clone(), config.name.clone(), config.client_urls.clone(), config.peer_urls.clone())
            .await?;
    if let Some(interval) = config.progress {
        service.progress_interval = interval;
    }
    let service = Arc::new(service);
    let connections = Tasks::under(&stop);
    for listen in &config.listen {
        let listener = bind(listen).await?;
        let tls = config.tls.clone().filter(|_| listen.secure);
        let (service, tasks) = (service.clone(), connections.clone());
        tracing::info!(url = %listen.url, "serving clients");
        connections.spawn("etcd/listener", |stop| async move {
            server::serve(listener, tls, service, &tasks, stop).await;
        });
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
