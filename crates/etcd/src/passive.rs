//! Those of etcd's flags that have no effect here: taken and noted in the log, or, where some values ask for what this server does not
//! have, taken with the others only.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::command::CommandError;
use crate::flags::wrong;

/// A flag of etcd that is taken without effect. With a list of values, only those are: others ask for what is not there.
struct PassiveFlag {
    name: &'static str,
    variable: &'static str,
    values: Option<&'static [&'static str]>,
    why: &'static str,
}

const fn taken(name: &'static str, variable: &'static str, why: &'static str) -> PassiveFlag {
    PassiveFlag { name, variable, values: None, why }
}

const fn only(
    name: &'static str,
    variable: &'static str,
    values: &'static [&'static str],
    why: &'static str,
) -> PassiveFlag {
    PassiveFlag { name, variable, values: Some(values), why }
}

const OWN_MEMBERS: &str = "the members' own way to agree needs no such setting";
const ALWAYS: &str = "it is always so";
const OWN_ENGINE: &str = "the engine needs no such setting";
const OWN_LOGS: &str = "logs go to standard error";
const NO_TRACING: &str = "there is no tracing";
const NO_V2: &str = "the second version of the API is gone";
const NO_PROXY: &str = "there is no proxy";
const NO_SANS: &str = "the addresses in certificates of members are not looked at";
const NO_DISCOVERY: &str = "members are not discovered: name them in --initial-cluster";

const PASSIVE: &[PassiveFlag] = &[
    taken("initial-election-tick-advance", "ETCD_INITIAL_ELECTION_TICK_ADVANCE", OWN_MEMBERS),
    taken("pre-vote", "ETCD_PRE_VOTE", ALWAYS),
    taken("raft-read-timeout", "ETCD_RAFT_READ_TIMEOUT", OWN_MEMBERS),
    taken("raft-write-timeout", "ETCD_RAFT_WRITE_TIMEOUT", OWN_MEMBERS),
    taken("snapshot-catchup-entries", "ETCD_SNAPSHOT_CATCHUP_ENTRIES", OWN_MEMBERS),
    taken("compact-hash-check-time", "ETCD_COMPACT_HASH_CHECK_TIME", OWN_MEMBERS),
    taken("downgrade-check-time", "ETCD_DOWNGRADE_CHECK_TIME", OWN_MEMBERS),
    taken("client-cert-file", "ETCD_CLIENT_CERT_FILE", OWN_MEMBERS),
    taken("client-key-file", "ETCD_CLIENT_KEY_FILE", OWN_MEMBERS),
    taken("peer-skip-client-san-verification", "ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION", NO_SANS),
    taken("snapshot-count", "ETCD_SNAPSHOT_COUNT", "snapshots are taken by size"),
    taken("max-snapshots", "ETCD_MAX_SNAPSHOTS", "one snapshot is kept"),
    taken("max-wals", "ETCD_MAX_WALS", "logs are removed when a snapshot has replaced them"),
    taken("backend-bbolt-freelist-type", "ETCD_BACKEND_BBOLT_FREELIST_TYPE", OWN_ENGINE),
    taken("backend-batch-interval", "ETCD_BACKEND_BATCH_INTERVAL", OWN_ENGINE),
    taken("backend-batch-limit", "ETCD_BACKEND_BATCH_LIMIT", OWN_ENGINE),
    taken("compaction-batch-limit", "ETCD_COMPACTION_BATCH_LIMIT", OWN_ENGINE),
    taken("compaction-sleep-interval", "ETCD_COMPACTION_SLEEP_INTERVAL", OWN_ENGINE),
    taken("bootstrap-defrag-threshold-megabytes", "ETCD_BOOTSTRAP_DEFRAG_THRESHOLD_MEGABYTES", OWN_ENGINE),
    taken("warning-apply-duration", "ETCD_WARNING_APPLY_DURATION", OWN_ENGINE),
    taken("warning-unary-request-duration", "ETCD_WARNING_UNARY_REQUEST_DURATION", OWN_ENGINE),
    taken(
        "grpc-keepalive-min-time",
        "ETCD_GRPC_KEEPALIVE_MIN_TIME",
        "clients may ping as often as they like",
    ),
    taken("socket-reuse-address", "ETCD_SOCKET_REUSE_ADDRESS", ALWAYS),
    taken("enable-grpc-gateway", "ETCD_ENABLE_GRPC_GATEWAY", "there is no JSON gateway"),
    taken("logger", "ETCD_LOGGER", OWN_LOGS),
    taken("log-outputs", "ETCD_LOG_OUTPUTS", OWN_LOGS),
    taken("log-format", "ETCD_LOG_FORMAT", OWN_LOGS),
    only("enable-log-rotation", "ETCD_ENABLE_LOG_ROTATION", &["false"], OWN_LOGS),
    taken("log-rotation-config-json", "ETCD_LOG_ROTATION_CONFIG_JSON", OWN_LOGS),
    only("cors", "ETCD_CORS", &["*", ""], "other origins cannot be told apart"),
    only("host-whitelist", "ETCD_HOST_WHITELIST", &["*", ""], "hosts cannot be told apart"),
    only("peer-cert-allowed-cn", "ETCD_PEER_CERT_ALLOWED_CN", &[""], "use --peer-cert-allowed-hostname"),
    only("wal-dir", "ETCD_WAL_DIR", &[""], "the log is in the data directory"),
    only("memory-mlock", "ETCD_MEMORY_MLOCK", &["false"], "memory is not locked"),
    only("unsafe-no-fsync", "ETCD_UNSAFE_NO_FSYNC", &["false"], "what is acknowledged is on the disk"),
    only("auth-token", "ETCD_AUTH_TOKEN", &["simple", ""], "tokens are simple ones"),
    only("enable-pprof", "ETCD_ENABLE_PPROF", &["false"], "there is no Go profile"),
    only("enable-distributed-tracing", "ETCD_ENABLE_DISTRIBUTED_TRACING", &["false"], NO_TRACING),
    only("discovery", "ETCD_DISCOVERY", &[""], NO_DISCOVERY),
    only("discovery-token", "ETCD_DISCOVERY_TOKEN", &[""], NO_DISCOVERY),
    only("discovery-endpoints", "ETCD_DISCOVERY_ENDPOINTS", &[""], NO_DISCOVERY),
    only("discovery-srv", "ETCD_DISCOVERY_SRV", &[""], NO_DISCOVERY),
    taken("discovery-cacert", "ETCD_DISCOVERY_CACERT", NO_DISCOVERY),
    taken("discovery-cert", "ETCD_DISCOVERY_CERT", NO_DISCOVERY),
    taken("discovery-key", "ETCD_DISCOVERY_KEY", NO_DISCOVERY),
    taken("discovery-user", "ETCD_DISCOVERY_USER", NO_DISCOVERY),
    taken("discovery-password", "ETCD_DISCOVERY_PASSWORD", NO_DISCOVERY),
    taken("discovery-dial-timeout", "ETCD_DISCOVERY_DIAL_TIMEOUT", NO_DISCOVERY),
    taken("discovery-request-timeout", "ETCD_DISCOVERY_REQUEST_TIMEOUT", NO_DISCOVERY),
    taken("discovery-keepalive-time", "ETCD_DISCOVERY_KEEPALIVE_TIME", NO_DISCOVERY),
    taken("discovery-keepalive-timeout", "ETCD_DISCOVERY_KEEPALIVE_TIMEOUT", NO_DISCOVERY),
    taken("discovery-insecure-transport", "ETCD_DISCOVERY_INSECURE_TRANSPORT", NO_DISCOVERY),
    taken("discovery-insecure-skip-tls-verify", "ETCD_DISCOVERY_INSECURE_SKIP_TLS_VERIFY", NO_DISCOVERY),
    taken("discovery-fallback", "ETCD_DISCOVERY_FALLBACK", NO_DISCOVERY),
    only("discovery-proxy", "ETCD_DISCOVERY_PROXY", &[""], NO_DISCOVERY),
    only("discovery-srv-name", "ETCD_DISCOVERY_SRV_NAME", &[""], NO_DISCOVERY),
    taken("distributed-tracing-address", "ETCD_DISTRIBUTED_TRACING_ADDRESS", NO_TRACING),
    taken("distributed-tracing-instance-id", "ETCD_DISTRIBUTED_TRACING_INSTANCE_ID", NO_TRACING),
    taken("distributed-tracing-sampling-rate", "ETCD_DISTRIBUTED_TRACING_SAMPLING_RATE", NO_TRACING),
    taken("distributed-tracing-service-name", "ETCD_DISTRIBUTED_TRACING_SERVICE_NAME", NO_TRACING),
    taken(
        "experimental-distributed-tracing-address",
        "ETCD_EXPERIMENTAL_DISTRIBUTED_TRACING_ADDRESS",
        NO_TRACING,
    ),
    taken(
        "experimental-distributed-tracing-instance-id",
        "ETCD_EXPERIMENTAL_DISTRIBUTED_TRACING_INSTANCE_ID",
        NO_TRACING,
    ),
    taken(
        "experimental-distributed-tracing-sampling-rate",
        "ETCD_EXPERIMENTAL_DISTRIBUTED_TRACING_SAMPLING_RATE",
        NO_TRACING,
    ),
    taken(
        "experimental-distributed-tracing-service-name",
        "ETCD_EXPERIMENTAL_DISTRIBUTED_TRACING_SERVICE_NAME",
        NO_TRACING,
    ),
    only(
        "experimental-enable-distributed-tracing",
        "ETCD_EXPERIMENTAL_ENABLE_DISTRIBUTED_TRACING",
        &["false"],
        NO_TRACING,
    ),
    only("debug", "ETCD_DEBUG", &["false"], "use --log-level=debug"),
    only("enable-v2", "ETCD_ENABLE_V2", &["false"], NO_V2),
    only("experimental-enable-v2v3", "ETCD_EXPERIMENTAL_ENABLE_V2V3", &[""], NO_V2),
    taken("v2-deprecation", "ETCD_V2_DEPRECATION", NO_V2),
    only("proxy", "ETCD_PROXY", &["off", ""], NO_PROXY),
    taken("proxy-dial-timeout", "ETCD_PROXY_DIAL_TIMEOUT", NO_PROXY),
    taken("proxy-failure-wait", "ETCD_PROXY_FAILURE_WAIT", NO_PROXY),
    taken("proxy-read-timeout", "ETCD_PROXY_READ_TIMEOUT", NO_PROXY),
    taken("proxy-refresh-interval", "ETCD_PROXY_REFRESH_INTERVAL", NO_PROXY),
    taken("proxy-write-timeout", "ETCD_PROXY_WRITE_TIMEOUT", NO_PROXY),
    taken("log-package-levels", "ETCD_LOG_PACKAGE_LEVELS", OWN_LOGS),
    taken(
        "experimental-backend-bbolt-freelist-type",
        "ETCD_EXPERIMENTAL_BACKEND_BBOLT_FREELIST_TYPE",
        OWN_ENGINE,
    ),
    taken(
        "experimental-bootstrap-defrag-threshold-megabytes",
        "ETCD_EXPERIMENTAL_BOOTSTRAP_DEFRAG_THRESHOLD_MEGABYTES",
        OWN_ENGINE,
    ),
    taken("experimental-compaction-batch-limit", "ETCD_EXPERIMENTAL_COMPACTION_BATCH_LIMIT", OWN_ENGINE),
    taken(
        "experimental-compaction-sleep-interval",
        "ETCD_EXPERIMENTAL_COMPACTION_SLEEP_INTERVAL",
        OWN_ENGINE,
    ),
    taken(
        "experimental-txn-mode-write-with-shared-buffer",
        "ETCD_EXPERIMENTAL_TXN_MODE_WRITE_WITH_SHARED_BUFFER",
        OWN_ENGINE,
    ),
    taken("experimental-warning-apply-duration", "ETCD_EXPERIMENTAL_WARNING_APPLY_DURATION", OWN_ENGINE),
    taken(
        "experimental-warning-unary-request-duration",
        "ETCD_EXPERIMENTAL_WARNING_UNARY_REQUEST_DURATION",
        OWN_ENGINE,
    ),
    taken(
        "experimental-compact-hash-check-enabled",
        "ETCD_EXPERIMENTAL_COMPACT_HASH_CHECK_ENABLED",
        OWN_MEMBERS,
    ),
    taken("experimental-compact-hash-check-time", "ETCD_EXPERIMENTAL_COMPACT_HASH_CHECK_TIME", OWN_MEMBERS),
    taken("experimental-downgrade-check-time", "ETCD_EXPERIMENTAL_DOWNGRADE_CHECK_TIME", OWN_MEMBERS),
    taken("experimental-snapshot-catchup-entries", "ETCD_EXPERIMENTAL_SNAPSHOT_CATCHUP_ENTRIES", OWN_MEMBERS),
    only("experimental-memory-mlock", "ETCD_EXPERIMENTAL_MEMORY_MLOCK", &["false"], "memory is not locked"),
    taken(
        "experimental-peer-skip-client-san-verification",
        "ETCD_EXPERIMENTAL_PEER_SKIP_CLIENT_SAN_VERIFICATION",
        NO_SANS,
    ),
    taken(
        "experimental-stop-grpc-service-on-defrag",
        "ETCD_EXPERIMENTAL_STOP_GRPC_SERVICE_ON_DEFRAG",
        "there is nothing to defragment",
    ),
    taken("experimental-enable-lease-checkpoint", "ETCD_EXPERIMENTAL_ENABLE_LEASE_CHECKPOINT", ALWAYS),
    taken(
        "experimental-enable-lease-checkpoint-persist",
        "ETCD_EXPERIMENTAL_ENABLE_LEASE_CHECKPOINT_PERSIST",
        ALWAYS,
    ),
];

/// Whether a flag stands for true when it has no value, as Go's boolean flags do.
const SWITCHES: &[&str] = &[
    "debug",
    "enable-v2",
    "discovery-insecure-transport",
    "discovery-insecure-skip-tls-verify",
    "experimental-enable-distributed-tracing",
    "experimental-txn-mode-write-with-shared-buffer",
    "experimental-compact-hash-check-enabled",
    "experimental-memory-mlock",
    "experimental-peer-skip-client-san-verification",
    "experimental-stop-grpc-service-on-defrag",
    "experimental-enable-lease-checkpoint",
    "experimental-enable-lease-checkpoint-persist",
    "initial-election-tick-advance",
    "pre-vote",
    "peer-skip-client-san-verification",
    "socket-reuse-address",
    "enable-grpc-gateway",
    "enable-log-rotation",
    "memory-mlock",
    "unsafe-no-fsync",
    "enable-pprof",
    "enable-distributed-tracing",
];

/// Which flags without effect were given, and how.
#[derive(Debug, Default)]
pub struct Passive(Vec<(&'static str, String)>);

impl Args for Passive {
    fn augment_args(command: Command) -> Command {
        command.args(PASSIVE.iter().map(|flag| {
            let arg =
                Arg::new(flag.name).long(flag.name).env(flag.variable).hide(true).action(ArgAction::Set);
            if SWITCHES.contains(&flag.name) {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            } else {
                arg
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Passive {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |flag: &PassiveFlag| Some((flag.name, matches.get_one::<String>(flag.name)?.clone()));
        Ok(Self(PASSIVE.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Passive {
    /// Refuses what cannot be had; returns what to say about the rest.
    pub fn check(&self) -> Result<Vec<(&'static str, &'static str)>, CommandError> {
        let mut notes = Vec::new();
        for (name, value) in &self.0 {
            let Some(flag) = PASSIVE.iter().find(|flag| flag.name == *name) else { continue };
            if flag.values.is_some_and(|values| !values.contains(&value.as_str())) {
                return Err(wrong(flag.name, value, flag.why));
            }
            notes.push((flag.name, flag.why));
        }
        Ok(notes)
    }
}
