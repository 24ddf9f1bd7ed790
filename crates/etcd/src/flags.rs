//! etcd's flags and environment variables.
//!
//! Those that are honoured are fields of [`ServerArgs`]; [`crate::passive`] has those that mean nothing to an engine of its
//! own. Anything else is refused, not ignored. A file ([`crate::config_file`]) stands for all flags at once.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use http::Uri;

use crate::command::{CommandError, Config, Listen};
use crate::compactor::{self, Retention};
use crate::config_file;
use crate::engine;
use crate::passive::Passive;
use crate::replication::member::Joining;
use crate::replication::relay::Timing;
use crate::tls::{self, Listener as TlsListener};
use crate::v3::server::Limits;

/// etcd's flags that are honoured.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// A file in etcd's form that says everything; other flags and the environment are then not looked at.
    #[arg(long, env = "ETCD_CONFIG_FILE")]
    config_file: Option<PathBuf>,
    /// Print the version of etcd whose behaviour this is.
    #[arg(long)]
    pub(crate) version: bool,
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
    /// URLs for /health, /version and /metrics; those for clients then serve gRPC only.
    #[arg(long, env = "ETCD_LISTEN_CLIENT_HTTP_URLS", value_delimiter = ',')]
    listen_client_http_urls: Vec<String>,
    /// URLs that clients are told [default: those listened on].
    #[arg(long, env = "ETCD_ADVERTISE_CLIENT_URLS", value_delimiter = ',')]
    advertise_client_urls: Vec<String>,
    /// Additional URLs for /metrics and /health.
    #[arg(long, env = "ETCD_LISTEN_METRICS_URLS", value_delimiter = ',')]
    listen_metrics_urls: Vec<String>,
    /// URLs for other members, /members and /version.
    #[arg(
        long,
        env = "ETCD_LISTEN_PEER_URLS",
        value_delimiter = ',',
        default_value = "http://localhost:2380"
    )]
    listen_peer_urls: Vec<String>,
    /// URLs that other members are told, until `member update` changes them [default: those listened on].
    #[arg(long, env = "ETCD_INITIAL_ADVERTISE_PEER_URLS", value_delimiter = ',')]
    initial_advertise_peer_urls: Vec<String>,
    /// The members: NAME=URL, several times; counts while the data directory is empty.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER", value_delimiter = ',')]
    initial_cluster: Vec<String>,
    /// Whether the cluster is new or, for a member that was added to it, existing.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_STATE", default_value = "new", value_parser = ["new", "existing"])]
    initial_cluster_state: String,
    /// What tells a new cluster from others with the same members.
    #[arg(long, env = "ETCD_INITIAL_CLUSTER_TOKEN", default_value = "etcd-cluster")]
    initial_cluster_token: String,
    /// Milliseconds between a leader's signs of life.
    #[arg(long, env = "ETCD_HEARTBEAT_INTERVAL", default_value_t = 100)]
    heartbeat_interval: u64,
    /// Milliseconds without them before another member stands for election.
    #[arg(long, env = "ETCD_ELECTION_TIMEOUT", default_value_t = 1000)]
    election_timeout: u64,
    /// Refuse changes of the members that endanger the majority.
    #[arg(long, env = "ETCD_STRICT_RECONFIG_CHECK", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    strict_reconfig_check: bool,

    /// Go on without the other members: they are forgotten, and this one decides alone.
    #[arg(long, env = "ETCD_FORCE_NEW_CLUSTER", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    force_new_cluster: bool,
    /// The most learners that may be added.
    #[arg(long, env = "ETCD_MAX_LEARNERS", default_value_t = 1)]
    max_learners: usize,

    /// Certificate for clients to see.
    #[arg(long, env = "ETCD_CERT_FILE")]
    cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, env = "ETCD_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Ask clients for certificates.
    #[arg(long, env = "ETCD_CLIENT_CERT_AUTH", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    client_cert_auth: bool,
    /// The authority of clients' certificates.
    #[arg(long, env = "ETCD_TRUSTED_CA_FILE")]
    trusted_ca_file: Option<PathBuf>,
    /// Certificates of clients that are no longer accepted.
    #[arg(long, env = "ETCD_CLIENT_CRL_FILE")]
    client_crl_file: Option<PathBuf>,
    /// Host names of which a client's certificate must have one.
    #[arg(long, env = "ETCD_CLIENT_CERT_ALLOWED_HOSTNAME", value_delimiter = ',')]
    client_cert_allowed_hostname: Vec<String>,
    /// Make a certificate for clients to see; it is kept in the data directory.
    #[arg(long, env = "ETCD_AUTO_TLS", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    auto_tls: bool,
    /// Certificate for other members to see.
    #[arg(long, env = "ETCD_PEER_CERT_FILE")]
    peer_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, env = "ETCD_PEER_KEY_FILE")]
    peer_key_file: Option<PathBuf>,
    /// Certificate to show to other members when connecting [default: --peer-cert-file].
    #[arg(long, env = "ETCD_PEER_CLIENT_CERT_FILE")]
    peer_client_cert_file: Option<PathBuf>,
    /// Its private key.
    #[arg(long, env = "ETCD_PEER_CLIENT_KEY_FILE")]
    peer_client_key_file: Option<PathBuf>,
    /// Ask other members for certificates.
    #[arg(long, env = "ETCD_PEER_CLIENT_CERT_AUTH", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    peer_client_cert_auth: bool,
    /// The authority of other members' certificates.
    #[arg(long, env = "ETCD_PEER_TRUSTED_CA_FILE")]
    peer_trusted_ca_file: Option<PathBuf>,
    /// Certificates of members that are no longer accepted.
    #[arg(long, env = "ETCD_PEER_CRL_FILE")]
    peer_crl_file: Option<PathBuf>,
    /// Host names of which another member's certificate must have one.
    #[arg(long, env = "ETCD_PEER_CERT_ALLOWED_HOSTNAME", value_delimiter = ',')]
    peer_cert_allowed_hostname: Vec<String>,
    /// Make a certificate for other members to see.
    #[arg(long, env = "ETCD_PEER_AUTO_TLS", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    peer_auto_tls: bool,
    /// Years that a certificate made here is valid.
    #[arg(long, env = "ETCD_SELF_SIGNED_CERT_VALIDITY", default_value_t = 1)]
    self_signed_cert_validity: u16,
    /// The cipher suites to offer, by their TLS names [default: all that are safe].
    #[arg(long, env = "ETCD_CIPHER_SUITES", value_delimiter = ',')]
    cipher_suites: Vec<String>,
    /// The oldest version of TLS: TLS1.2 or TLS1.3.
    #[arg(long, env = "ETCD_TLS_MIN_VERSION", default_value = "TLS1.2")]
    tls_min_version: String,
    /// The newest version of TLS: TLS1.2 or TLS1.3.
    #[arg(long, env = "ETCD_TLS_MAX_VERSION", default_value = "")]
    tls_max_version: String,

    /// Refuse writes beyond this many bytes of data; 0 is the default of 2 GiB.
    #[arg(long, env = "ETCD_QUOTA_BACKEND_BYTES", default_value_t = 0)]
    quota_backend_bytes: i64,
    /// The largest request taken.
    #[arg(long, env = "ETCD_MAX_REQUEST_BYTES", default_value_t = 3 << 19)]
    max_request_bytes: usize,
    /// The most operations in one transaction.
    #[arg(long, env = "ETCD_MAX_TXN_OPS", default_value_t = crate::v3::kv::MAX_TXN_OPS)]
    max_txn_ops: usize,
    /// The most calls that one connection may have open.
    #[arg(long, env = "ETCD_MAX_CONCURRENT_STREAMS", default_value_t = u32::MAX)]
    max_concurrent_streams: u32,
    /// How often quiet connections are asked whether they are alive; 0 is never.
    #[arg(long, env = "ETCD_GRPC_KEEPALIVE_INTERVAL", default_value = "2h")]
    grpc_keepalive_interval: String,
    /// How long they may take to answer.
    #[arg(long, env = "ETCD_GRPC_KEEPALIVE_TIMEOUT", default_value = "20s")]
    grpc_keepalive_timeout: String,
    /// Let several processes listen on the same port.
    #[arg(long, env = "ETCD_SOCKET_REUSE_PORT", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    socket_reuse_port: bool,
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
        alias = "experimental-watch-progress-notify-interval",
        default_value = "10m"
    )]
    watch_progress_notify_interval: String,
    /// How often the members' data is compared; 0 is never.
    #[arg(
        long,
        env = "ETCD_CORRUPT_CHECK_TIME",
        alias = "experimental-corrupt-check-time",
        default_value = "0s"
    )]
    corrupt_check_time: String,
    /// Compare the data with the other members' before serving: the feature gate InitialCorruptCheck by its old name.
    #[arg(long, env = "ETCD_EXPERIMENTAL_INITIAL_CORRUPT_CHECK", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value_t = false)]
    experimental_initial_corrupt_check: bool,
    /// Features to switch: NAME=true or NAME=false, several times.
    #[arg(long, env = "ETCD_FEATURE_GATES", value_delimiter = ',')]
    feature_gates: Vec<String>,
    /// How often the log is told how much time leases have left (not one of etcd's flags).
    #[arg(long, env = "ETCD_LEASE_CHECKPOINT_INTERVAL", default_value = "1m")]
    lease_checkpoint_interval: String,
    /// Seconds that an unused token of a user lives.
    #[arg(long, env = "ETCD_AUTH_TOKEN_TTL", default_value_t = 300)]
    auth_token_ttl: u64,
    /// How hard the hashes of passwords are to compute.
    #[arg(long, env = "ETCD_BCRYPT_COST", default_value_t = 10, value_parser = clap::value_parser!(u32).range(4..=31))]
    bcrypt_cost: u32,
    /// How much /metrics tells: basic, or extensive with the time that calls took.
    #[arg(long, env = "ETCD_METRICS", default_value = "basic", value_parser = ["basic", "extensive"])]
    metrics: String,
    /// What to log: debug, info, warn, error.
    #[arg(long, env = "ETCD_LOG_LEVEL", default_value = "info", value_parser = ["debug", "info", "warn", "error", "panic", "fatal"])]
    log_level: String,

    #[command(flatten)]
    passive: Passive,
}

/// The gates of etcd that change nothing here: what they are about is always so, or there is no such thing.
const GATES: [&str; 6] = [
    "CompactHashCheck",
    "LeaseCheckpoint",
    "LeaseCheckpointPersist",
    "SetMemberLocalAddr",
    "StopGRPCServiceOnDefrag",
    "TxnModeWriteWithSharedBuffer",
];

pub(crate) fn wrong(flag: &'static str, value: impl ToString, problem: &'static str) -> CommandError {
    CommandError::Flag { flag, value: value.to_string(), problem }
}

fn duration(name: &'static str, text: &str) -> Result<std::time::Duration, CommandError> {
    if text == "0" {
        return Ok(std::time::Duration::ZERO);
    }
    compactor::duration(text).ok_or_else(|| wrong(name, text, "wanted: a duration such as 5s or 10m"))
}

fn parse_url(name: &'static str, url: &str) -> Result<Listen, CommandError> {
    let wrong = || wrong(name, url, "must be http://host:port or https://host:port");
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(wrong()),
    };
    let host = uri.host().ok_or_else(wrong)?.trim_matches(['[', ']']).to_owned();
    Ok(Listen { url: url.to_owned(), host, port: uri.port_u16().ok_or_else(wrong)?, secure })
}

fn parse_urls(name: &'static str, urls: &[String]) -> Result<Vec<Listen>, CommandError> {
    urls.iter().filter(|url| !url.is_empty()).map(|url| parse_url(name, url)).collect()
}

impl ServerArgs {
    /// What to log, as `telemetry` takes it.
    pub fn log_filter(&self) -> &'static str {
        // A file that cannot be read is complained about later.
        let in_file = self.config_file.as_deref().and_then(|path| config_file::read(path).ok());
        let level = in_file.as_ref().map_or(&self.log_level, |args| &args.log_level);
        match level.as_str() {
            "debug" => "debug",
            "warn" => "warn",
            "error" | "panic" | "fatal" => "error",
            _ => "info",
        }
    }

    /// What `--initial-cluster` says.
    fn joining(&self) -> Result<Joining, CommandError> {
        let given = || self.initial_cluster.join(",");
        let mut members: Vec<(String, Vec<String>)> = Vec::new();
        for entry in self.initial_cluster.iter().filter(|entry| !entry.is_empty()) {
            let Some((name, url)) = entry.split_once('=') else {
                return Err(wrong("initial-cluster", given(), "must be NAME=URL"));
            };
            parse_url("initial-cluster", url)?;
            if members.iter().any(|(_, urls)| urls.iter().any(|known| known == url)) {
                return Err(wrong(
                    "initial-cluster",
                    given(),
                    "has a URL twice; every member needs one of its own",
                ));
            }
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, urls)) => urls.push(url.to_owned()),
                None => members.push((name.to_owned(), vec![url.to_owned()])),
            }
        }
        if !members.is_empty() && !members.iter().any(|(name, _)| *name == self.name) {
            return Err(wrong("initial-cluster", given(), "does not have this member's --name"));
        }
        let others = members.iter().filter(|(name, _)| *name != self.name);
        let others = others.flat_map(|(_, urls)| urls.clone()).collect();
        Ok(Joining {
            existing: self.initial_cluster_state == "existing",
            members,
            others,
            token: self.initial_cluster_token.clone(),
            alone: self.force_new_cluster,
        })
    }

    /// Whether the data is compared before anybody is served, by the gates and the flag of before there were any.
    fn initial_check(&self) -> Result<bool, CommandError> {
        let mut check = self.experimental_initial_corrupt_check;
        for gate in self.feature_gates.iter().filter(|gate| !gate.is_empty()) {
            let problem = "wanted: NAME=true or NAME=false, with a name that etcd has";
            let Some((name, value)) = gate.split_once('=') else {
                return Err(wrong("feature-gates", gate, problem));
            };
            let on: bool = value.parse().map_err(|_| wrong("feature-gates", gate, problem))?;
            match name.trim() {
                "InitialCorruptCheck" => check = on,
                "AllAlpha" | "AllBeta" => {}
                name if GATES.contains(&name) => {}
                _ => return Err(wrong("feature-gates", gate, problem)),
            }
        }
        Ok(check)
    }

    fn timing(&self) -> Result<Timing, CommandError> {
        let (heartbeat, election) = (self.heartbeat_interval, self.election_timeout);
        if heartbeat == 0 || election < 5 * heartbeat {
            return Err(wrong(
                "election-timeout",
                election,
                "must be at least five times the --heartbeat-interval",
            ));
        }
        if election > 50_000 {
            return Err(wrong("election-timeout", election, "is too long: 50000 at most"));
        }
        let millis = std::time::Duration::from_millis;
        Ok(Timing { heartbeat: millis(heartbeat), election: millis(election) })
    }

    /// The TLS with which a member connects to others.
    fn peer_client_tls(&self) -> Result<Option<Arc<rustls::ClientConfig>>, CommandError> {
        let Some(authority) = &self.peer_trusted_ca_file else { return Ok(None) };
        let (cert, key) = match (&self.peer_client_cert_file, &self.peer_client_key_file) {
            (None, None) => (&self.peer_cert_file, &self.peer_key_file),
            own => own,
        };
        Ok(Some(tls::client(authority, cert.as_deref().zip(key.as_deref()))?))
    }

    fn client_tls(&self) -> TlsListener<'_> {
        TlsListener {
            flags: ["cert-file", "key-file", "client-cert-auth", "trusted-ca-file"],
            cert: self.cert_file.as_deref(),
            key: self.key_file.as_deref(),
            ask_clients: self.client_cert_auth,
            authority: self.trusted_ca_file.as_deref(),
            revoked: self.client_crl_file.as_deref(),
            hostnames: &self.client_cert_allowed_hostname,
            automatic: self.auto_tls.then_some("client"),
        }
    }

    fn peer_tls(&self) -> TlsListener<'_> {
        TlsListener {
            flags: ["peer-cert-file", "peer-key-file", "peer-client-cert-auth", "peer-trusted-ca-file"],
            cert: self.peer_cert_file.as_deref(),
            key: self.peer_key_file.as_deref(),
            ask_clients: self.peer_client_cert_auth,
            authority: self.peer_trusted_ca_file.as_deref(),
            revoked: self.peer_crl_file.as_deref(),
            hostnames: &self.peer_cert_allowed_hostname,
            automatic: self.peer_auto_tls.then_some("peer"),
        }
    }

    /// Checks the flags against each other.
    pub fn complete(mut self) -> Result<Config, CommandError> {
        if let Some(path) = self.config_file.take().filter(|path| !path.as_os_str().is_empty()) {
            return config_file::read(&path)?.complete();
        }
        let notes = self.passive.check()?;
        let joining = self.joining()?;
        let timing = self.timing()?;
        let corrupt_check = duration("corrupt-check-time", &self.corrupt_check_time)?;
        let initial_check = self.initial_check()?;
        let peer_client_tls = self.peer_client_tls()?;
        if let Some(url) = joining.others.iter().find(|url| url.starts_with("https:"))
            && peer_client_tls.is_none()
        {
            return Err(wrong(
                "initial-cluster",
                url,
                "needs --peer-trusted-ca-file: members check each other",
            ));
        }
        let data_dir = self.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.etcd", self.name)));
        let clients = parse_urls("listen-client-urls", &self.listen_client_urls)?;
        let http = parse_urls("listen-client-http-urls", &self.listen_client_http_urls)?;
        let metrics = parse_urls("listen-metrics-urls", &self.listen_metrics_urls)?;
        let peers = parse_urls("listen-peer-urls", &self.listen_peer_urls)?;
        let hosts: Vec<&str> = clients.iter().chain(&peers).map(|listen| listen.host.as_str()).collect();
        let policy = tls::Policy {
            suites: &self.cipher_suites,
            oldest: &self.tls_min_version,
            newest: &self.tls_max_version,
            data_dir: &data_dir,
            hosts: &hosts,
            years: self.self_signed_cert_validity,
        };
        let client_tls = self.client_tls().complete(&policy)?;
        let peer_tls = self.peer_tls().complete(&policy)?;
        let unkeyed = |listen: &&Listen| listen.secure && client_tls.is_none();
        if let Some(secure) = clients.iter().chain(&http).chain(&metrics).find(unkeyed) {
            return Err(wrong("listen-client-urls", &secure.url, "needs --cert-file and --key-file"));
        }
        if let Some(secure) = peers.iter().find(|listen| listen.secure && peer_tls.is_none()) {
            return Err(wrong("listen-peer-urls", &secure.url, "needs --peer-cert-file and --peer-key-file"));
        }
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
                let problem = "wanted: periodic with hours or 5m, or revision with a number";
                wrong("auto-compaction-retention", given, problem)
            })?;
        let or =
            |given: Vec<String>, default: &[String]| if given.is_empty() { default.to_vec() } else { given };
        let limits = Limits {
            streams: self.max_concurrent_streams,
            ping_every: duration("grpc-keepalive-interval", &self.grpc_keepalive_interval)?,
            ping_timeout: duration("grpc-keepalive-timeout", &self.grpc_keepalive_timeout)?,
        };
        Ok(Config {
            store: engine::Config {
                data_dir: Some(data_dir),
                quota_bytes,
                max_request_bytes: self.max_request_bytes,
                lease_checkpoints: duration("lease-checkpoint-interval", &self.lease_checkpoint_interval)?,
                alarm_stays: true,
                ..engine::Config::default()
            },
            name: self.name,
            client_urls: or(self.advertise_client_urls, &self.listen_client_urls),
            peer_urls: or(self.initial_advertise_peer_urls, &self.listen_peer_urls),
            clients,
            http,
            metrics,
            peers,
            client_tls,
            peer_tls,
            retention: Some(retention).filter(|retention| !retention.keeps_everything()),
            progress: duration("watch-progress-notify-interval", &self.watch_progress_notify_interval)?,
            max_txn_ops: self.max_txn_ops,
            token_life: std::time::Duration::from_secs(self.auth_token_ttl),
            extensive_metrics: self.metrics == "extensive",
            bcrypt_cost: self.bcrypt_cost,
            limits,
            reuse_port: self.socket_reuse_port,
            joining,
            max_learners: self.max_learners,
            timing,
            strict: self.strict_reconfig_check,
            corrupt_check,
            initial_check,
            peer_client_tls,
            notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ServerArgs,
    }

    fn complete(flags: &[&str]) -> Result<Config, String> {
        let parsed = Cli::try_parse_from(["etcd"].iter().chain(flags)).map_err(|error| error.to_string())?;
        parsed.args.complete().map_err(|error| error.to_string())
    }

    #[test]
    fn what_means_nothing_is_taken_and_what_cannot_be_had_is_refused() {
        let fine = [
            &["--heartbeat-interval=100", "--election-timeout", "1000", "--pre-vote", "--logger=zap"][..],
            &["--unsafe-no-fsync=false", "--discovery-srv", ""],
            &["--initial-cluster", "default=http://a:1,default=http://b:1"],
            &["--name=m1", "--initial-cluster=m1=http://a:1", "--initial-cluster-state=existing"],
            &[
                "--name=m2",
                "--initial-cluster=m1=http://a:1,m2=http://b:1",
                "--initial-cluster-state=existing",
            ],
            &["--name=m1", "--initial-cluster=m1=http://a:1,m2=http://b:1,m3=http://c:1"],
            &["--force-new-cluster", "--max-learners=3", "--strict-reconfig-check=false"],
            &["--quota-backend-bytes=-1", "--client-cert-auth=false", "--auto-compaction-mode=revision"],
        ];
        for flags in fine {
            complete(flags).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
        }
        let refused = [
            (&["--unsafe-no-fsync"][..], "--unsafe-no-fsync true: what is acknowledged is on the disk"),
            (&["--initial-cluster=a=http://a:1,b=http://b:1"], "--name"),
            (&["--heartbeat-interval=300"], "five times"),
            (&["--initial-cluster=default=a:1"], "must be http://"),
            (&["--initial-cluster=a=http://a:1"], "--name"),
            (&["--initial-cluster=http://a:1"], "NAME=URL"),
            (&["--initial-cluster=default=http://a:1,b=http://a:1"], "has a URL twice"),
            (&["--discovery=https://x"], "--initial-cluster"),
            (&["--initial-cluster=default=https://a:1,b=https://b:1"], "--peer-trusted-ca-file"),
            (&["--wal-dir=/x"], "data directory"),
            (&["--no-such-flag"], "unexpected argument"),
            (&["--listen-client-urls=localhost:1"], "must be http://"),
            (&["--listen-client-urls=https://localhost:1"], "needs --cert-file"),
            (&["--listen-peer-urls=https://localhost:1"], "needs --peer-cert-file"),
            (&["--cert-file=/x"], "needs --key-file"),
            (&["--auth-token=jwt,sign-method=RS256"], "simple"),
            (&["--grpc-keepalive-interval=often"], "duration"),
            (&["--tls-min-version=TLS1.1", "--auto-tls"], "TLS1.2 or TLS1.3"),
            (&["--cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "--auto-tls"], "not supported"),
        ];
        for (flags, expected) in refused {
            let error = complete(flags).map(|_| ()).expect_err("refused");
            assert!(error.contains(expected), "{flags:?}: {error}");
        }
    }

    /// The flags of etcd 3.4.23 and 3.6.8.
    const UPSTREAM: &str = "
                advertise-client-urls auth-token auth-token-ttl auto-compaction-mode
                auto-compaction-retention auto-tls backend-batch-interval backend-batch-limit
                backend-bbolt-freelist-type bcrypt-cost bootstrap-defrag-threshold-megabytes cert-file
                cipher-suites client-cert-allowed-hostname client-cert-auth client-cert-file
                client-crl-file client-key-file compact-hash-check-time compaction-batch-limit
                compaction-sleep-interval config-file corrupt-check-time cors data-dir debug discovery
                discovery-cacert discovery-cert discovery-dial-timeout discovery-endpoints
                discovery-fallback discovery-insecure-skip-tls-verify discovery-insecure-transport
                discovery-keepalive-time discovery-keepalive-timeout discovery-key discovery-password
                discovery-proxy discovery-request-timeout discovery-srv discovery-srv-name
                discovery-token discovery-user distributed-tracing-address
                distributed-tracing-instance-id distributed-tracing-sampling-rate
                distributed-tracing-service-name downgrade-check-time election-timeout
                enable-distributed-tracing enable-grpc-gateway enable-log-rotation enable-pprof
                enable-v2 experimental-backend-bbolt-freelist-type
                experimental-bootstrap-defrag-threshold-megabytes
                experimental-compact-hash-check-enabled experimental-compact-hash-check-time
                experimental-compaction-batch-limit experimental-compaction-sleep-interval
                experimental-corrupt-check-time experimental-distributed-tracing-address
                experimental-distributed-tracing-instance-id
                experimental-distributed-tracing-sampling-rate
                experimental-distributed-tracing-service-name experimental-downgrade-check-time
                experimental-enable-distributed-tracing experimental-enable-lease-checkpoint
                experimental-enable-lease-checkpoint-persist experimental-enable-v2v3
                experimental-initial-corrupt-check experimental-memory-mlock
                experimental-peer-skip-client-san-verification experimental-snapshot-catchup-entries
                experimental-stop-grpc-service-on-defrag experimental-txn-mode-write-with-shared-buffer
                experimental-warning-apply-duration experimental-warning-unary-request-duration
                experimental-watch-progress-notify-interval feature-gates force-new-cluster
                grpc-keepalive-interval grpc-keepalive-min-time grpc-keepalive-timeout
                heartbeat-interval host-whitelist initial-advertise-peer-urls initial-cluster
                initial-cluster-state initial-cluster-token initial-election-tick-advance key-file
                listen-client-http-urls listen-client-urls listen-metrics-urls listen-peer-urls
                log-format log-level log-outputs log-package-levels log-rotation-config-json logger
                max-concurrent-streams max-learners max-request-bytes max-snapshots max-txn-ops
                max-wals memory-mlock metrics name peer-auto-tls peer-cert-allowed-cn
                peer-cert-allowed-hostname peer-cert-file peer-client-cert-auth peer-client-cert-file
                peer-client-key-file peer-crl-file peer-key-file peer-skip-client-san-verification
                peer-trusted-ca-file pre-vote proxy proxy-dial-timeout proxy-failure-wait
                proxy-read-timeout proxy-refresh-interval proxy-write-timeout quota-backend-bytes
                raft-read-timeout raft-write-timeout self-signed-cert-validity snapshot-catchup-entries
                snapshot-count socket-reuse-address socket-reuse-port strict-reconfig-check
                tls-max-version tls-min-version trusted-ca-file unsafe-no-fsync v2-deprecation version
                wal-dir warning-apply-duration warning-unary-request-duration
                watch-progress-notify-interval";

    #[test]
    fn every_flag_of_etcd_is_known_with_its_environment_variable() {
        use clap::CommandFactory;
        let command = Cli::command();
        for name in UPSTREAM.split_whitespace() {
            let known = command.get_arguments().find(|arg| {
                arg.get_long() == Some(name)
                    || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
            });
            let Some(arg) = known else { panic!("--{name} is not known") };
            let variable = format!("ETCD_{}", name.to_uppercase().replace('-', "_"));
            let is_alias = arg.get_long() != Some(name);
            let named = arg.get_env().is_some_and(|env| env.to_str() == Some(&variable));
            assert!(named || is_alias || name == "version", "--{name} has not {variable}");
        }
    }
}
