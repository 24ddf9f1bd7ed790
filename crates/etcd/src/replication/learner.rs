//! The learner's side: gets a copy, keeps it up to date, and remembers that it is one.
//!
//! The data directory of a learner has a file `learner` beside the log: whose learner it is. Everything else is the same as in the deciding
//! member's, so taking over (`--force-new-cluster`) is opening it without that file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use lifecycle::{Stop, Tasks};
use prost::Message;
use rustls::ClientConfig;
use thiserror::Error;

use crate::counters::Counter;
use crate::disk::{Directory, Disk};
use crate::engine::TakeOverError;
use crate::log::{segment, snapshot};
use crate::remote::channel::status_in;
use crate::remote::{Channel, RemoteConfig, RemoteError};
use crate::replication::{FOLLOW, FollowRequest, FollowResponse};
use crate::store::StoreError;
use crate::v3::cluster::Reform;
use crate::v3::frame::{self, Messages};
use crate::v3::service::Service;
use crate::v3::status::{Status, code};

const FILE: &str = "learner";
/// The pause between attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a learner cannot go on.
#[derive(Debug, Error)]
pub enum LearnerError {
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
    /// The file that says whose learner this is does not say it.
    #[error("{} is damaged; move the data directory away to get a new copy", .0.display())]
    Damaged(PathBuf),
    /// The directory is in use.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The other member's URLs.
    #[error("the URLs of the other member cannot be used")]
    Peers(#[from] RemoteError),
    /// It will never be let in.
    #[error("the deciding member refuses this learner")]
    Refused(#[source] Status),
    /// An attempt failed; the next one may not.
    #[error("the deciding member does not answer")]
    Lost(#[source] Status),
    /// What came cannot be stored.
    #[error("cannot take over what the deciding member sent")]
    TakeOver(#[from] TakeOverError),
    /// The log.
    #[error("cannot store what the deciding member sent")]
    Store(#[from] StoreError),
}

impl LearnerError {
    /// Whether trying again makes no sense.
    fn is_final(&self) -> bool {
        !matches!(self, Self::Lost(_) | Self::TakeOver(_) | Self::Store(_))
    }
}

impl From<Status> for LearnerError {
    fn from(status: Status) -> Self {
        match status.code {
            code::FAILED_PRECONDITION | code::NOT_FOUND | code::UNIMPLEMENTED => Self::Refused(status),
            _ => Self::Lost(status),
        }
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> LearnerError {
    let path = path.to_owned();
    move |source| LearnerError::File { action, path, source }
}

/// Whose learner a data directory is.
#[derive(Clone, PartialEq, Message)]
pub struct Kept {
    /// The cluster; 0 as long as it has not been there.
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    /// The learner.
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    /// The member that decides.
    #[prost(uint64, tag = "3")]
    pub leader_id: u64,
    /// Where that is reached.
    #[prost(string, repeated, tag = "4")]
    pub peers: Vec<String>,
}

impl Kept {
    fn read(directory: &Path) -> Result<Option<Self>, LearnerError> {
        let path = directory.join(FILE);
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file("read", &path)(error)),
            Ok(bytes) => match Self::decode(&bytes[..]) {
                Ok(kept) if kept.member_id != 0 => Ok(Some(kept)),
                _ => Err(LearnerError::Damaged(path)),
            },
        }
    }

    fn write(&self, directory: &Path) -> Result<(), LearnerError> {
        let (path, partial) = (directory.join(FILE), directory.join("learner.tmp"));
        let written = std::fs::File::create(&partial)
            .and_then(|mut out| out.write_all(&self.encode_to_vec()).and_then(|()| out.sync_all()))
            .and_then(|()| std::fs::rename(&partial, &path))
            .and_then(|()| std::fs::File::open(directory)?.sync_all());
        written.map_err(file("write", &path))
    }
}

/// Makes a directory that of a deciding member, durably.
pub fn leave(directory: &Path) -> Result<(), LearnerError> {
    let path = directory.join(FILE);
    let removed = match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    removed.and_then(|()| std::fs::File::open(directory)?.sync_all()).map_err(file("remove", &path))
}

/// What the flags say about the other members.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// The cluster is there already.
    pub existing: bool,
    /// Where its members are reached.
    pub others: Vec<String>,
    /// Go on without the others.
    pub alone: bool,
}

/// What a server is.
#[derive(Debug, PartialEq)]
pub enum Start {
    /// The member that decides.
    Decides(Reform),
    /// A learner.
    Follows(Kept),
}

/// Whether a directory holds a store.
pub fn has_data(directory: &Path) -> bool {
    let is_data = |name: &str| segment::parse_name(name).or_else(|| snapshot::parse_name(name)).is_some();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_data))
}

/// What the server is, by what is in its directory and, if that is empty, by its flags.
pub fn standing(directory: &Path, joining: &Joining) -> Result<Start, LearnerError> {
    let kept = Kept::read(directory)?;
    Ok(match kept {
        Some(kept) if joining.alone => Start::Decides(Reform::TakeOver(kept.member_id)),
        Some(kept) if joining.others.is_empty() => Start::Follows(kept),
        Some(kept) => Start::Follows(Kept { peers: joining.others.clone(), ..kept }),
        None if joining.alone => Start::Decides(Reform::Alone),
        None if joining.existing && !joining.others.is_empty() && !has_data(directory) => {
            Start::Follows(Kept { peers: joining.others.clone(), ..Kept::default() })
        }
        None => Start::Decides(Reform::Keep),
    })
}

/// How a learner stands to the member that decides, for those who ask.
#[derive(Debug, Default)]
pub struct Following {
    /// The learner.
    pub member_id: u64,
    /// The member that decides.
    pub leader_id: u64,
    leader_index: AtomicU64,
    connected: AtomicBool,
    /// Bytes that came from there.
    pub received: Counter,
    /// Bytes sent there.
    pub sent: Counter,
}

impl Following {
    /// As the directory says.
    pub fn new(kept: &Kept) -> Self {
        Self { member_id: kept.member_id, leader_id: kept.leader_id, ..Self::default() }
    }

    /// The last durable record there, as far as it is known.
    pub fn leader_index(&self) -> u64 {
        self.leader_index.load(Ordering::Relaxed)
    }

    /// Whether it is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

/// Who the learner says it is, and how it connects.
#[derive(Clone, Debug)]
pub struct Peering {
    /// Its name.
    pub name: String,
    /// Where it is reached by members.
    pub peer_urls: Vec<String>,
    /// Where it is reached by clients.
    pub client_urls: Vec<String>,
    /// The TLS to connect with.
    pub tls: Option<Arc<ClientConfig>>,
}

impl Peering {
    fn request(&self, kept: &Kept) -> FollowRequest {
        FollowRequest {
            name: self.name.clone(),
            peer_urls: self.peer_urls.clone(),
            client_urls: self.client_urls.clone(),
            cluster_id: kept.cluster_id,
            member_id: kept.member_id,
            ..FollowRequest::default()
        }
    }

    fn channel(&self, kept: &Kept, tasks: &Tasks) -> Result<Channel, LearnerError> {
        let config = RemoteConfig { endpoints: kept.peers.clone(), tls: self.tls.clone() };
        Ok(Channel::new(&config, tasks)?)
    }
}

/// The next message; the end of the call is an error, since it has none.
async fn next(answers: &mut Messages) -> Result<FollowResponse, LearnerError> {
    if let Some(answer) = answers.next::<FollowResponse>().await? {
        return Ok(answer);
    }
    let trailers = answers.trailers().await.map_err(frame::broken)?;
    let status = trailers.as_ref().and_then(status_in);
    Err(status.unwrap_or(Status { code: code::UNAVAILABLE, message: "the call has ended".into() }).into())
}

/// Tries until it works, the stop, or an error that will not go away. `None` is the stop.
async fn again<'a, T>(
    stop: &Stop,
    what: &'static str,
    mut attempt: impl FnMut(Tasks) -> BoxFuture<'a, Result<T, LearnerError>> + Send,
) -> Result<Option<T>, LearnerError> {
    loop {
        let tasks = Tasks::under(stop);
        // An attempt that is dropped has stored what it has stored: the next one begins there.
        let outcome = stop.or(attempt(tasks.clone())).await;
        tasks.drain(PAUSE).await;
        match outcome {
            None => return Ok(None),
            Some(Ok(done)) => return Ok(Some(done)),
            Some(Err(error)) if error.is_final() => return Err(error),
            Some(Err(error)) => tracing::warn!(error = %telemetry::chain(&error), "{what}: trying again"),
        }
        stop.or(tokio::time::sleep(PAUSE)).await;
    }
}

/// Gets a copy of everything into a data directory whose store is not open. `None` is the stop.
pub async fn receive(
    directory: &Path,
    kept: &Kept,
    peering: &Peering,
    stop: &Stop,
) -> Result<Option<Kept>, LearnerError> {
    if has_data(directory) && kept.cluster_id != 0 {
        tracing::warn!("what comes next is not in the deciding member's log any more: getting a new copy");
    }
    again(stop, "no copy from the deciding member", |tasks| {
        async move { receive_once(directory, kept, peering, &tasks).await }.boxed()
    })
    .await
}

async fn receive_once(
    directory: &Path,
    kept: &Kept,
    peering: &Peering,
    tasks: &Tasks,
) -> Result<Kept, LearnerError> {
    let disk = Directory::open(directory)
        .map_err(file("open", directory))?
        .ok_or_else(|| LearnerError::InUse(directory.to_owned()))?;
    let channel = peering.channel(kept, tasks)?;
    let request = FollowRequest { wants_snapshot: true, ..peering.request(kept) };
    let mut call = channel.stream(FOLLOW, &request).await?;
    let hello = next(&mut call.answers).await?;
    let kept = Kept {
        cluster_id: hello.cluster_id,
        member_id: hello.member_id,
        leader_id: hello.leader_id,
        peers: kept.peers.clone(),
    };
    // Before there is any data: without it the data would be taken for a deciding member's.
    kept.write(directory)?;
    let partial = "incoming.tmp";
    let written = |error| file("write", &disk.path(partial))(error);
    let mut out = disk.create(partial).map_err(written)?;
    let mut offset = 0;
    let index = loop {
        let message = next(&mut call.answers).await?;
        if message.snapshot_index != 0 {
            break message.snapshot_index;
        }
        out.write_at(offset, &message.snapshot).map_err(written)?;
        offset += message.snapshot.len() as u64;
    };
    out.sync().map_err(written)?;
    replace(&disk, partial, index).map_err(written)?;
    tracing::info!(index, bytes = offset, "got a copy from the deciding member");
    Ok(kept)
}

/// Puts a snapshot in the place of all that was there. Until the rename is durable the old data is whole.
fn replace(disk: &dyn Disk, partial: &str, index: u64) -> std::io::Result<()> {
    let name = snapshot::name(index);
    disk.rename(partial, &name)?;
    disk.sync_directory()?;
    for old in disk.list()? {
        let is_log = segment::parse_name(&old).is_some();
        if is_log || (snapshot::parse_name(&old).is_some() && old != name) {
            disk.remove(&old)?;
        }
    }
    disk.sync_directory()
}

/// How following ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// By the stop.
    Stopped,
    /// The log there does not go back far enough.
    NeedsSnapshot,
}

/// Keeps a store up to date until the stop.
pub async fn follow(
    service: &Service,
    following: &Following,
    kept: &Kept,
    peering: &Peering,
    stop: &Stop,
) -> Result<Ended, LearnerError> {
    let ended = again(stop, "not connected to the deciding member", |tasks| {
        let attempt = async move {
            let outcome = follow_once(service, following, kept, peering, &tasks).await;
            following.connected.store(false, Ordering::Relaxed);
            outcome
        };
        attempt.boxed()
    })
    .await?;
    Ok(ended.unwrap_or(Ended::Stopped))
}

async fn follow_once(
    service: &Service,
    following: &Following,
    kept: &Kept,
    peering: &Peering,
    tasks: &Tasks,
) -> Result<Ended, LearnerError> {
    let shared = &service.etcd.shared;
    let channel = peering.channel(kept, tasks)?;
    let index = shared.read().index;
    let mut call = channel.stream(FOLLOW, &FollowRequest { index, ..peering.request(kept) }).await?;
    let hello = next(&mut call.answers).await?;
    if hello.needs_snapshot {
        return Ok(Ended::NeedsSnapshot);
    }
    following.leader_index.store(hello.leader_index, Ordering::Relaxed);
    following.connected.store(true, Ordering::Relaxed);
    tracing::info!(index, behind = hello.leader_index.saturating_sub(index), "following the deciding member");
    loop {
        let message = next(&mut call.answers).await?;
        following.received.add(message.encoded_len() as u64);
        following.leader_index.store(message.leader_index, Ordering::Relaxed);
        if message.records.is_empty() {
            continue;
        }
        shared.take_over(message.first_index, &message.records)?.durable().await?;
        service.auth.refresh(&shared.read());
        let said = FollowRequest { index: shared.durable_index(), ..FollowRequest::default() };
        let said = frame::framed(&said);
        following.sent.add(said.len() as u64);
        frame::send(&mut call.requests, said).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_what_its_directory_says_and_only_an_empty_one_asks_the_flags() {
        let empty = tempfile::tempdir().expect("directory");
        let old = tempfile::tempdir().expect("directory");
        std::fs::write(old.path().join(segment::name(1)), b"").expect("write");
        let learner = tempfile::tempdir().expect("directory");
        let kept =
            Kept { cluster_id: 1, member_id: 2, leader_id: 3, peers: vec!["http://127.0.0.1:1".to_owned()] };
        kept.write(learner.path()).expect("write");
        let others = vec!["http://127.0.0.1:2".to_owned()];
        let moved = Kept { peers: others.clone(), ..kept.clone() };
        let fresh = Kept { peers: others.clone(), ..Kept::default() };
        let joining =
            |existing, others: &[String], alone| Joining { existing, others: others.to_vec(), alone };
        let cases = [
            (&empty, joining(false, &[], false), Start::Decides(Reform::Keep)),
            (&empty, joining(true, &[], false), Start::Decides(Reform::Keep)),
            (&empty, joining(true, &others, false), Start::Follows(fresh)),
            (&empty, joining(true, &others, true), Start::Decides(Reform::Alone)),
            (&old, joining(true, &others, false), Start::Decides(Reform::Keep)),
            (&old, joining(false, &[], true), Start::Decides(Reform::Alone)),
            (&learner, joining(false, &[], false), Start::Follows(kept)),
            (&learner, joining(true, &others, false), Start::Follows(moved)),
            (&learner, joining(true, &others, true), Start::Decides(Reform::TakeOver(2))),
        ];
        for (directory, joining, expected) in cases {
            assert_eq!(standing(directory.path(), &joining).expect("readable"), expected, "{joining:?}");
        }
        std::fs::write(learner.path().join(FILE), b"x").expect("write");
        assert!(standing(learner.path(), &Joining::default()).is_err(), "a damaged file is taken for none");
        leave(learner.path()).expect("leave");
        assert_eq!(
            standing(learner.path(), &Joining::default()).expect("readable"),
            Start::Decides(Reform::Keep)
        );
    }
}
