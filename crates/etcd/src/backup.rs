//! Backups: save one from a running server, look at it, restore it into a new data directory.
//!
//! A backup has etcd's form ([`crate::bolt`]), followed by the SHA-256 of it: etcd's tools and ours read each other's.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, Subcommand};
use lifecycle::{Stop, Tasks};
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::bolt::{self, BoltError};
use crate::disk::{Directory, Disk};
use crate::mutation::State;
use crate::remote::{Channel, RemoteConfig, RemoteError};
use crate::replication::member::{self, Joining, MemberError};
use crate::store::Revision;
use crate::tls::{self, TlsError};
use crate::v3::cluster::is_of_one_cluster;
use crate::v3::maintenance::hash_of;
use crate::v3::messages::{Empty, SnapshotResponse};
use crate::v3::status::Status;

/// The length of the checksum at the end.
const SHA: usize = 32;

/// What to do with backups.
#[derive(Subcommand, Debug)]
pub enum SnapshotCommand {
    /// Save a backup of a running server to a file.
    Save {
        /// The file.
        file: PathBuf,
        #[command(flatten)]
        server: ClientArgs,
    },
    /// Check a backup and show what is in it.
    Status {
        /// The file.
        file: PathBuf,
    },
    /// Make a data directory from a backup, of this server or of etcd.
    Restore {
        /// The file.
        file: PathBuf,
        /// The new data directory; it must not hold data.
        #[arg(long, default_value = "default.etcd")]
        data_dir: PathBuf,
        #[command(flatten)]
        options: RestoreArgs,
    },
}

/// How to restore, with etcdutl's flags.
#[derive(Args, Debug, Default)]
pub struct RestoreArgs {
    /// Take a file without a checksum, such as one copied from a data directory.
    #[arg(long)]
    pub skip_hash_check: bool,
    /// Raise the revision by so many, so that clients which saw later ones than the backup has notice.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..=1 << 60), requires = "mark_compacted")]
    pub bump_revision: i64,
    /// Make everything before the raised revision unreadable.
    #[arg(long, requires = "bump_revision")]
    pub mark_compacted: bool,
    /// The name of this member in --initial-cluster.
    #[arg(long, default_value = "default")]
    pub name: String,
    /// The members of the new cluster, if there are several: NAME=URL. Each is restored from the same file, with the same flags but --name and --data-dir.
    #[arg(long, value_delimiter = ',')]
    pub initial_cluster: Vec<String>,
    /// What tells the new cluster from others with the same members.
    #[arg(long, default_value = "etcd-cluster")]
    pub initial_cluster_token: String,
    /// Where this member is reached by others; must be what --initial-cluster says.
    #[arg(long, value_delimiter = ',')]
    pub initial_advertise_peer_urls: Vec<String>,
}

impl RestoreArgs {
    /// The members, if there are several.
    fn joining(&self) -> Result<Option<Joining>, BackupError> {
        let wrong = |problem| BackupError::Members(self.initial_cluster.join(","), problem);
        let mut members: Vec<(String, Vec<String>)> = Vec::new();
        for entry in self.initial_cluster.iter().filter(|entry| !entry.is_empty()) {
            let (name, url) = entry.split_once('=').ok_or_else(|| wrong("must be NAME=URL"))?;
            if members.iter().any(|(_, urls)| urls.iter().any(|known| known == url)) {
                return Err(wrong("has a URL twice; every member needs one of its own"));
            }
            match members.iter_mut().find(|(known, _)| known == name) {
                Some((_, urls)) => urls.push(url.to_owned()),
                None => members.push((name.to_owned(), vec![url.to_owned()])),
            }
        }
        if members.len() < 2 {
            return Ok(None);
        }
        let own = members.iter().find(|(name, _)| *name == self.name);
        let (_, urls) = own.ok_or_else(|| wrong("does not have this member's --name"))?;
        let sorted = |urls: &[String]| urls.iter().cloned().collect::<std::collections::BTreeSet<_>>();
        let said = &self.initial_advertise_peer_urls;
        if !said.is_empty() && sorted(said) != sorted(urls) {
            return Err(wrong("does not have the --initial-advertise-peer-urls"));
        }
        Ok(Some(Joining { members, token: self.initial_cluster_token.clone(), ..Joining::default() }))
    }
}

/// Where the server is, with etcdctl's flags.
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// Its URLs.
    #[arg(long, env = "ETCDCTL_ENDPOINTS", value_delimiter = ',', default_value = "http://127.0.0.1:2379")]
    pub endpoints: Vec<String>,
    /// The authority that its certificate must be of.
    #[arg(long, env = "ETCDCTL_CACERT")]
    pub cacert: Option<PathBuf>,
    /// Our certificate.
    #[arg(long, env = "ETCDCTL_CERT")]
    pub cert: Option<PathBuf>,
    /// Our key.
    #[arg(long, env = "ETCDCTL_KEY")]
    pub key: Option<PathBuf>,
}

impl ClientArgs {
    /// How to connect.
    pub fn complete(&self) -> Result<RemoteConfig, TlsError> {
        let own = self.cert.as_deref().zip(self.key.as_deref());
        let tls = self.cacert.as_deref().map(|ca| tls::client(ca, own)).transpose()?;
        Ok(RemoteConfig { endpoints: self.endpoints.clone(), tls })
    }
}

/// Why a backup cannot be made or used.
#[derive(Debug, Error)]
pub enum BackupError {
    /// The endpoint.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server.
    #[error("the server did not give a backup")]
    Server(#[from] Status),
    /// A file.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The backup is not whole.
    #[error("{} is not a whole backup: its checksum does not match", .0.display())]
    Checksum(PathBuf),
    /// The backup has no checksum.
    #[error("{} has no checksum: it was cut, or copied from a data directory; --skip-hash-check takes it all the same", .0.display())]
    Unchecked(PathBuf),
    /// It has the checksum of a backup, or none, but not its form.
    #[error("{} is no backup that can be read", path.display())]
    Bolt {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: BoltError,
    },
    /// There is something already.
    #[error("{} holds data already", .0.display())]
    Occupied(PathBuf),
    /// Someone uses it.
    #[error("{} is in use", .0.display())]
    InUse(PathBuf),
    /// The flags about the members.
    #[error("--initial-cluster {0}: {1}")]
    Members(String, &'static str),
    /// The member's file.
    #[error(transparent)]
    Member(#[from] MemberError),
}

/// What is in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Of the content, as the server's HashKV.
    pub hash: u32,
    /// The newest revision.
    pub revision: Revision,
    /// How many keys.
    pub keys: usize,
    /// Bytes.
    pub size: u64,
    /// Of the file's content, as etcd's tools compute it.
    pub file_hash: u32,
    /// How many entries the file has, versions of keys and all else, as etcd's tools count.
    pub entries: usize,
    /// Bytes without the checksum at the end.
    pub content: u64,
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::File { action, path, source }
}

/// Runs a command; what it tells goes to standard output.
pub async fn run(command: SnapshotCommand, stop: &Stop) -> Result<(), BackupError> {
    match command {
        SnapshotCommand::Save { file, server } => {
            let tasks = Tasks::under(stop);
            save(&server.complete()?, &file, &tasks).await?;
            println!("Snapshot saved at {}", file.display());
        }
        SnapshotCommand::Status { file } => {
            let found = inspect(&file)?;
            println!("{:x}, {}, {}, {} B", found.hash, found.revision, found.keys, found.size);
        }
        SnapshotCommand::Restore { file, data_dir, options } => {
            let found = restore(&file, &data_dir, &options)?;
            println!(
                "Restored {} keys at revision {} into {}",
                found.keys,
                found.revision,
                data_dir.display()
            );
        }
    }
    Ok(())
}

/// Saves a backup of a running server. The file appears only when it is whole and durable.
pub async fn save(config: &RemoteConfig, path: &Path, tasks: &Tasks) -> Result<(), BackupError> {
    save_from(&Channel::new(config, tasks)?, path).await
}

/// Saves a backup of the server that a channel leads to.
pub async fn save_from(channel: &Channel, path: &Path) -> Result<(), BackupError> {
    let partial = path.with_extension("part");
    let mut out = std::fs::File::create(&partial).map_err(file("create", &partial))?;
    let mut answers = channel.server_stream("/etcdserverpb.Maintenance/Snapshot", &Empty {}).await?;
    while let Some(answer) = answers.next::<SnapshotResponse>().await? {
        out.write_all(&answer.blob).map_err(file("write", &partial))?;
    }
    let end = answers.trailers().await.map_err(crate::v3::frame::broken)?;
    if let Some(status) = end.as_ref().and_then(crate::v3::frame::status_in) {
        return Err(status.into());
    }
    out.sync_all().map_err(file("write", &partial))?;
    checked(&partial)?;
    std::fs::rename(&partial, path).map_err(file("create", path))
}

/// Checks that a backup has the checksum at its end that it should have.
fn checked(path: &Path) -> Result<(), BackupError> {
    let mut backup = std::fs::File::open(path).map_err(file("open", path))?;
    let length = backup.metadata().map_err(file("read", path))?.len();
    let content = length.checked_sub(SHA as u64).ok_or_else(|| BackupError::Checksum(path.to_owned()))?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut left = content;
    while left > 0 {
        let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        backup.read_exact(&mut buffer[..wanted]).map_err(file("read", path))?;
        digest.update(&buffer[..wanted]);
        left -= wanted as u64;
    }
    let mut stored = [0; SHA];
    backup.read_exact(&mut stored).map_err(file("read", path))?;
    if digest.finalize()[..] != stored {
        return Err(BackupError::Checksum(path.to_owned()));
    }
    Ok(())
}

/// Reads a backup; one may lack the checksum, if it was copied from a data directory.
fn load(path: &Path, options: &RestoreArgs) -> Result<(State, Vec<u8>), BackupError> {
    let bytes = std::fs::read(path).map_err(file("read", path))?;
    if bytes.len() % 512 == SHA {
        checked(path)?;
    } else if !options.skip_hash_check {
        return Err(BackupError::Unchecked(path.to_owned()));
    }
    let state = bolt::read(&bytes, Instant::now(), options.bump_revision)
        .map_err(|source| BackupError::Bolt { path: path.to_owned(), source })?;
    Ok((state, bytes))
}

fn summary(path: &Path, state: &State, bytes: &[u8]) -> Result<Summary, BackupError> {
    let revision = state.keys.revision();
    let everything = crate::mvcc::range::KeyRange::From(bytes::Bytes::new());
    let keys = state.keys.range(&everything, revision).count();
    let (file_hash, entries) =
        bolt::digest(bytes).map_err(|source| BackupError::Bolt { path: path.to_owned(), source })?;
    let size = bytes.len() as u64;
    let content = if bytes.len() % 512 == SHA { size - SHA as u64 } else { size };
    Ok(Summary { hash: hash_of(&state.keys, revision), revision, keys, size, file_hash, entries, content })
}

/// The hash of a backup's keys at a revision (0: the newest) as the server's HashKV, with that revision and the compacted one.
pub fn hash(path: &Path, revision: Revision) -> Result<(u32, Revision, Revision), BackupError> {
    let (state, _) = load(path, &RestoreArgs { skip_hash_check: true, ..RestoreArgs::default() })?;
    let revision = if revision > 0 { revision } else { state.keys.revision() };
    if revision > state.keys.revision() {
        return Err(crate::v3::status::FUTURE_REVISION.into());
    }
    Ok((hash_of(&state.keys, revision), revision, state.keys.compacted()))
}

/// Checks a backup and says what is in it.
pub fn inspect(path: &Path) -> Result<Summary, BackupError> {
    // As etcd's tools: looking at a file without a checksum does no harm.
    let (state, bytes) = load(path, &RestoreArgs { skip_hash_check: true, ..RestoreArgs::default() })?;
    summary(path, &state, &bytes)
}

/// Makes a data directory from a backup.
pub fn restore(path: &Path, data_dir: &Path, options: &RestoreArgs) -> Result<Summary, BackupError> {
    let joining = options.joining()?;
    let (mut state, bytes) = load(path, options)?;
    let found = summary(path, &state, &bytes)?;
    drop(bytes);
    // What comes of a backup is a cluster of its own, as with etcd: nobody who was of the old one may be of it.
    state.settings.retain(|name, _| !is_of_one_cluster(name));
    let directory = Directory::open(data_dir)
        .map_err(file("open", data_dir))?
        .ok_or_else(|| BackupError::InUse(data_dir.to_owned()))?;
    let names = directory.list().map_err(file("read", data_dir))?;
    if names.iter().any(|name| name != "LOCK") {
        return Err(BackupError::Occupied(data_dir.to_owned()));
    }
    if let Some(joining) = joining {
        let (cluster_id, members) = member::founders(&joining);
        member::settle(&mut state, cluster_id, &members);
        let own = members.iter().find(|member| member.name == options.name).map_or(0, |member| member.id);
        member::first(cluster_id, own, state.index).write(data_dir, true)?;
    }
    member::write_state(&directory, &state).map_err(file("write", data_dir))?;
    Ok(found)
}
