//! The command lines.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::backup::RestoreArgs;

/// How answers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// For people.
    Simple,
    /// One field per line.
    Fields,
    /// For programs.
    Json,
    /// Framed.
    Table,
    /// The message itself.
    Protobuf,
}

/// Talks to etcd servers
#[derive(Parser, Debug)]
#[command(name = "etcdctl", disable_version_flag = true, disable_help_subcommand = false)]
pub struct Ctl {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What all commands understand.
#[derive(Args, Debug, Clone)]
pub struct Global {
    /// gRPC endpoints
    #[arg(
        long,
        global = true,
        env = "ETCDCTL_ENDPOINTS",
        value_delimiter = ',',
        default_value = "127.0.0.1:2379"
    )]
    pub endpoints: Vec<String>,
    /// verify certificates of TLS-enabled secure servers using this CA bundle
    #[arg(long, global = true, env = "ETCDCTL_CACERT")]
    pub cacert: Option<PathBuf>,
    /// identify secure client using this TLS certificate file
    #[arg(long, global = true, env = "ETCDCTL_CERT")]
    pub cert: Option<PathBuf>,
    /// identify secure client using this TLS key file
    #[arg(long, global = true, env = "ETCDCTL_KEY")]
    pub key: Option<PathBuf>,
    /// username[:password] for authentication
    #[arg(long, global = true, env = "ETCDCTL_USER")]
    pub user: Option<String>,
    /// password for authentication (then --user must not include one)
    #[arg(long, global = true, env = "ETCDCTL_PASSWORD")]
    pub password: Option<String>,
    /// timeout for short running command (excluding dial timeout)
    #[arg(long, global = true, env = "ETCDCTL_COMMAND_TIMEOUT", default_value = "5s", value_parser = duration)]
    pub command_timeout: std::time::Duration,
    /// dial timeout for client connections
    #[arg(long, global = true, env = "ETCDCTL_DIAL_TIMEOUT", default_value = "2s", value_parser = duration)]
    pub dial_timeout: std::time::Duration,
    /// disable transport security for client connections; an http:// endpoint says so by itself
    #[arg(long, global = true, env = "ETCDCTL_INSECURE_TRANSPORT", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub insecure_transport: bool,
    /// print byte strings as hex encoded strings
    #[arg(long, global = true, env = "ETCDCTL_HEX")]
    pub hex: bool,
    /// set the output format
    #[arg(long, short = 'w', global = true, env = "ETCDCTL_WRITE_OUT", value_enum, default_value = "simple")]
    pub write_out: Form,
}

fn duration(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || format!("{text} is not a time such as 5s, 500ms or 1m");
    let split = text.find(|char: char| !char.is_ascii_digit() && char != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    std::time::Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

#[derive(Subcommand, Debug)]
pub enum CtlCommand {
    /// Gets the key or a range of keys
    Get(Get),
    /// Puts the given key into the store
    Put(Put),
    /// Removes the specified key or range of keys [key, range_end)
    Del(Del),
    /// Txn processes all the requests in one transaction, read from standard input
    Txn,
    /// Compacts the event history in etcd
    Compaction {
        revision: Vec<String>,
        /// wait for compaction to physically remove all old revisions
        #[arg(long)]
        physical: bool,
    },
    /// Watches events stream on keys or prefixes
    Watch(Watch),
    /// Lease related commands
    #[command(subcommand)]
    Lease(Lease),
    /// Membership related commands
    #[command(subcommand)]
    Member(Member),
    /// Endpoint related commands
    Endpoint(EndpointArgs),
    /// Alarm related commands
    #[command(subcommand)]
    Alarm(Alarm),
    /// Defragments the storage of the etcd members with given endpoints
    Defrag {
        /// use all endpoints from the cluster member list
        #[arg(long)]
        cluster: bool,
    },
    /// Transfers leadership to another etcd cluster member
    MoveLeader { target: Vec<String> },
    /// Enable or disable authentication
    #[command(subcommand)]
    Auth(Auth),
    /// User related commands
    #[command(subcommand)]
    User(User),
    /// Role related commands
    #[command(subcommand)]
    Role(Role),
    /// Manages etcd node snapshots
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Acquires a named lock
    Lock {
        name: String,
        /// timeout for session
        #[arg(long, default_value_t = 10)]
        ttl: i64,
        /// runs while the lock is held
        #[arg(trailing_var_arg = true)]
        command: Vec<String>,
    },
    /// Observes and participates in leader election
    Elect {
        name: String,
        proposal: Option<String>,
        /// observation mode
        #[arg(long, short = 'l')]
        listen: bool,
    },
    /// Commands for checking properties of the etcd cluster
    #[command(subcommand)]
    Check(Check),
    /// Prints the version of etcdctl
    Version,
}

#[derive(Args, Debug)]
pub struct Get {
    pub keys: Vec<String>,
    /// Linearizable(l) or Serializable(s)
    #[arg(long, default_value = "l")]
    pub consistency: String,
    /// order of results; ASCEND or DESCEND
    #[arg(long, default_value = "")]
    pub order: String,
    /// sort target; CREATE, KEY, MODIFY, VALUE, or VERSION
    #[arg(long, default_value = "")]
    pub sort_by: String,
    /// maximum number of results
    #[arg(long, default_value_t = 0)]
    pub limit: i64,
    /// get keys with matching prefix
    #[arg(long)]
    pub prefix: bool,
    /// get keys that are greater than or equal to the given key using byte compare
    #[arg(long)]
    pub from_key: bool,
    /// specify the kv revision
    #[arg(long, default_value_t = 0)]
    pub rev: i64,
    /// get only the keys
    #[arg(long)]
    pub keys_only: bool,
    /// get only the count
    #[arg(long)]
    pub count_only: bool,
    /// only write values when using the "simple" output format
    #[arg(long)]
    pub print_value_only: bool,
}

#[derive(Args, Debug)]
pub struct Put {
    #[arg(allow_hyphen_values = false)]
    pub words: Vec<String>,
    /// lease ID (in hexadecimal) to attach to the key
    #[arg(long, default_value = "0")]
    pub lease: String,
    /// return the previous key-value pair before modification
    #[arg(long)]
    pub prev_kv: bool,
    /// updates the key using its current value
    #[arg(long)]
    pub ignore_value: bool,
    /// updates the key using its current lease
    #[arg(long)]
    pub ignore_lease: bool,
}

#[derive(Args, Debug)]
pub struct Del {
    pub keys: Vec<String>,
    /// delete keys with matching prefix
    #[arg(long)]
    pub prefix: bool,
    /// delete keys that are greater than or equal to the given key using byte compare
    #[arg(long)]
    pub from_key: bool,
    /// return deleted key-value pairs
    #[arg(long)]
    pub prev_kv: bool,
}

#[derive(Args, Debug)]
pub struct Watch {
    pub keys: Vec<String>,
    /// watch on a prefix if prefix is set
    #[arg(long)]
    pub prefix: bool,
    /// revision to start watching
    #[arg(long, default_value_t = 0)]
    pub rev: i64,
    /// get the previous key-value pair before the event happens
    #[arg(long)]
    pub prev_kv: bool,
    /// get periodic watch progress notification from server
    #[arg(long)]
    pub progress_notify: bool,
}

#[derive(Subcommand, Debug)]
pub enum Lease {
    /// Creates leases
    Grant { ttl: Vec<String> },
    /// Revokes leases
    Revoke { id: Vec<String> },
    /// Get lease information
    Timetolive {
        id: Vec<String>,
        /// get keys attached to this lease
        #[arg(long)]
        keys: bool,
    },
    /// List all active leases
    List,
    /// Keeps leases alive (renew)
    KeepAlive {
        id: Vec<String>,
        /// resets the keep-alive time to its original value and exits immediately
        #[arg(long)]
        once: bool,
    },
}

#[derive(Subcommand, Debug)]
pub enum Member {
    /// Lists all members in the cluster
    List,
    /// Adds a member into the cluster
    Add {
        name: Vec<String>,
        /// comma separated peer URLs for the new member
        #[arg(long, value_delimiter = ',')]
        peer_urls: Vec<String>,
        /// indicates if the new member is raft learner
        #[arg(long)]
        learner: bool,
    },
    /// Removes a member from the cluster
    Remove { id: Vec<String> },
    /// Updates a member in the cluster
    Update {
        id: Vec<String>,
        /// comma separated peer URLs for the updated member
        #[arg(long, value_delimiter = ',')]
        peer_urls: Vec<String>,
    },
    /// Promotes a non-voting member in the cluster
    Promote { id: Vec<String> },
}

#[derive(Args, Debug)]
pub struct EndpointArgs {
    /// use all endpoints from the cluster member list
    #[arg(long, global = true)]
    pub cluster: bool,
    #[command(subcommand)]
    pub command: Endpoint,
}

#[derive(Subcommand, Debug)]
pub enum Endpoint {
    /// Checks the healthiness of endpoints specified in `--endpoints` flag
    Health,
    /// Prints out the status of endpoints specified in `--endpoints` flag
    Status,
    /// Prints the KV history hash for each endpoint in --endpoints
    Hashkv {
        /// maximum revision to hash (default: all revisions)
        #[arg(long, default_value_t = 0)]
        rev: i64,
    },
}

#[derive(Subcommand, Debug)]
pub enum Alarm {
    /// Lists all alarms
    List,
    /// Disarms all alarms
    Disarm,
}

#[derive(Subcommand, Debug)]
pub enum Auth {
    /// Enables authentication
    Enable,
    /// Disables authentication
    Disable,
}

#[derive(Subcommand, Debug)]
pub enum User {
    /// Adds a new user
    Add {
        /// name, or name:password
        name: Vec<String>,
        /// read password from stdin instead of interactive terminal
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
        interactive: bool,
        /// password of the new user
        #[arg(long)]
        new_user_password: Option<String>,
        /// create a user without password (CN based auth only)
        #[arg(long)]
        no_password: bool,
    },
    /// Deletes a user
    Delete { name: Vec<String> },
    /// Gets detailed information of a user
    Get {
        name: Vec<String>,
        /// show permissions of roles granted to the user
        #[arg(long)]
        detail: bool,
    },
    /// Lists all users
    List,
    /// Changes password of user
    Passwd {
        name: Vec<String>,
        /// if true, read password from stdin
        #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
        interactive: bool,
    },
    /// Grants a role to a user
    GrantRole { words: Vec<String> },
    /// Revokes a role from a user
    RevokeRole { words: Vec<String> },
}

#[derive(Subcommand, Debug)]
pub enum Role {
    /// Adds a new role
    Add { name: Vec<String> },
    /// Deletes a role
    Delete { name: Vec<String> },
    /// Gets detailed information of a role
    Get { name: Vec<String> },
    /// Lists all roles
    List,
    /// Grants a key to a role
    GrantPermission {
        words: Vec<String>,
        #[command(flatten)]
        range: PermissionRange,
    },
    /// Revokes a key from a role
    RevokePermission {
        words: Vec<String>,
        #[command(flatten)]
        range: PermissionRange,
    },
}

#[derive(Args, Debug)]
pub struct PermissionRange {
    /// a prefix permission
    #[arg(long)]
    pub prefix: bool,
    /// a permission of keys that are greater than or equal to the given key using byte compare
    #[arg(long)]
    pub from_key: bool,
}

#[derive(Subcommand, Debug)]
pub enum Snapshot {
    /// Stores an etcd node backend snapshot to a given file
    Save { file: Vec<PathBuf> },
    /// Gets backend snapshot status of a given file
    Status { file: Vec<PathBuf> },
    /// Restores an etcd member snapshot to an etcd directory
    Restore(Restore),
}

#[derive(Args, Debug)]
pub struct Restore {
    pub file: PathBuf,
    /// Path to the output data directory
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    #[command(flatten)]
    pub options: RestoreArgs,
}

#[derive(Subcommand, Debug)]
pub enum Check {
    /// Check the performance of the etcd cluster
    Perf {
        /// The performance check's workload model: s(small), m(medium), l(large), xl(xLarge)
        #[arg(long, default_value = "s")]
        load: String,
        /// The prefix for writing the performance check's keys
        #[arg(long, default_value = "/etcdctl-check-perf/")]
        prefix: String,
        /// Compact storage with last revision after test is finished
        #[arg(long)]
        auto_compact: bool,
    },
}

/// Works on etcd's files
#[derive(Parser, Debug)]
#[command(name = "etcdutl", disable_version_flag = true)]
pub struct Util {
    /// set the output format
    #[arg(long, short = 'w', global = true, value_enum, default_value = "simple")]
    pub write_out: Form,
    #[command(subcommand)]
    pub command: UtilCommand,
}

#[derive(Subcommand, Debug)]
pub enum UtilCommand {
    /// Manages etcd node snapshots
    #[command(subcommand)]
    Snapshot(UtilSnapshot),
    /// Prints the KV history hash of a given file
    Hashkv {
        file: PathBuf,
        /// maximum revision to hash (default: the newest)
        #[arg(long, default_value_t = 0)]
        rev: i64,
    },
    /// Prints the version of etcdutl
    Version,
}

#[derive(Subcommand, Debug)]
pub enum UtilSnapshot {
    /// Gets backend snapshot status of a given file
    Status { file: PathBuf },
    /// Restores an etcd member snapshot to an etcd directory
    Restore(Restore),
}
