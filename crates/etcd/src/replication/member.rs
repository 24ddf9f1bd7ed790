//! What a data directory is: that of a lone server, or of one of several members.
//!
//! The file `member` beside the log says which member of which cluster this is, for whom it voted, and how much of its log is known to be
//! committed. The vote is durable before it is given; the commit may be old, which only means that less is shown until the leader is heard.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use lifecycle::{Stop, Tasks};
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::disk::{Directory, Disk, DiskFile};
use crate::log::{segment, snapshot};
use crate::mutation::State;
use crate::raft::Electorate;
use crate::raft::node::Vote;
use crate::remote::channel::CallError;
use crate::remote::{Channel, RemoteConfig, RemoteError};
use crate::replication::bootstrap::Founder;
use crate::replication::{DESCRIBE, DescribeRequest, DescribeResponse, Hello, SNAPSHOT, SnapshotPiece};
use crate::store::StoreError;
use crate::v3::cluster::{self, Reform};
use crate::v3::frame::status_in;
use crate::v3::frame::{self, Messages};
use crate::v3::messages::Member;
use crate::v3::status::{Status, code};

const FILE: &str = "member";
/// What the file begins with; then come the checksum of the rest, and the rest.
const MAGIC: &[u8; 8] = b"KELSNMBR";
/// The pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Why a member cannot go on.
#[derive(Debug, Error)]
pub enum MemberError {
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
    /// The file that says who this is does not say it.
    #[error("{} is damaged; remove the member from the cluster and add it again with an empty data directory", .0.display())]
    Damaged(PathBuf),
    /// The directory is in use.
    #[error("the data directory {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The other members' URLs.
    #[error("the URLs of the other members cannot be used")]
    Peers(#[from] RemoteError),
    /// It will never be let in.
    #[error("the other members refuse this one")]
    Refused(#[source] Status),
    /// It is not of their cluster.
    #[error(
        "the other members are of another cluster: cluster ID mismatch; compare --initial-cluster and --initial-cluster-token with theirs, \
         and restore every member from the same backup with the same of both; a data directory of another cluster stays as it is, give this member a new one"
    )]
    OtherCluster,
    /// An attempt failed; the next one may not.
    #[error("the other members do not answer")]
    Lost(#[source] Status),
    /// The own log.
    #[error("the log cannot be used")]
    Store(#[from] StoreError),
    /// What came does not fit.
    #[error("what the leader sent cannot be taken over")]
    TakeOver(#[from] crate::engine::TakeOverError),
    /// The own log cannot be read.
    #[error("the log cannot be cut back")]
    Recovery(#[from] crate::log::recovery::RecoveryError),
    /// Not a member any more.
    #[error(
        "the member has been permanently removed from the cluster; \
         to make it one again, add it (etcdctl member add) and start it with an empty data directory and --initial-cluster-state existing"
    )]
    Removed,
    /// It has lost its data.
    #[error(
        "member {0:x} has already been bootstrapped, but its data directory is empty; \
         remove it (etcdctl member remove {0:x}), add it again (etcdctl member add NAME --peer-urls=URL) and start it with --initial-cluster-state existing"
    )]
    Bootstrapped(u64),
    /// It has something else than the others.
    #[error(
        "{id:x} found data inconsistency with peers: at revision {revision} it has something else than {differ} of them; \
         remove the member (etcdctl member remove {id:x}), add it again and start it with an empty data directory and --initial-cluster-state existing"
    )]
    Inconsistent {
        /// Which member.
        id: u64,
        /// Where.
        revision: i64,
        /// How many have something else.
        differ: usize,
    },
    /// Somebody else answers.
    #[error(
        "at {url}, where another member of the new cluster should be, member {id:x} answers; the flags of all members have to say the same"
    )]
    Stranger {
        /// Where.
        url: String,
        /// Who.
        id: u64,
    },
}

impl MemberError {
    /// Refused for good; why it can be mended is said where it can.
    pub fn refused(status: Status) -> Self {
        if status == crate::v3::status::CLUSTER_MISMATCH { Self::OtherCluster } else { Self::Refused(status) }
    }

    /// Whether trying again makes no sense.
    fn is_final(&self) -> bool {
        !matches!(self, Self::Lost(_))
    }
}

impl From<Status> for MemberError {
    fn from(status: Status) -> Self {
        match status.code {
            code::FAILED_PRECONDITION if status == crate::v3::status::MEMBER_REMOVED => Self::Removed,
            code::FAILED_PRECONDITION | code::NOT_FOUND | code::UNIMPLEMENTED => Self::refused(status),
            _ => Self::Lost(status),
        }
    }
}

impl From<CallError> for MemberError {
    fn from(error: CallError) -> Self {
        error.status.into()
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> MemberError {
    let path = path.to_owned();
    move |source| MemberError::File { action, path, source }
}

/// Which member a data directory is of.
#[derive(Clone, PartialEq, Message)]
pub struct Kept {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(uint64, tag = "2")]
    pub member_id: u64,
    #[prost(uint64, tag = "3")]
    pub term: u64,
    #[prost(uint64, tag = "4")]
    pub given_to: u64,
    /// How much of the log is known to be committed.
    #[prost(uint64, tag = "5")]
    pub commit: u64,
    /// If it has founded the cluster: what it told the others with which it did, and what they told.
    #[prost(uint64, tag = "6")]
    pub incarnation: u64,
    #[prost(message, repeated, tag = "7")]
    pub founders: Vec<Founder>,
}

impl Kept {
    /// The vote.
    pub fn vote(&self) -> Vote {
        Vote { term: self.term, given_to: self.given_to }
    }

    /// What a directory says.
    pub fn read(directory: &Path) -> Result<Option<Self>, MemberError> {
        let path = directory.join(FILE);
        match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file("read", &path)(error)),
            Ok(bytes) => Self::parse(&bytes).map(Some).ok_or(MemberError::Damaged(path)),
        }
    }

    /// What a file says. One of before there were checksums must at least be to the byte what was written then.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let kept = match bytes.strip_prefix(MAGIC) {
            Some(rest) => {
                let (checksum, content) = rest.split_at_checked(4)?;
                let right = checksum == crc32fast::hash(content).to_le_bytes();
                Self::decode(content).ok().filter(|_| right)?
            }
            None => Self::decode(bytes).ok().filter(|kept| kept.encode_to_vec() == bytes)?,
        };
        (kept.member_id != 0 && kept.cluster_id != 0).then_some(kept)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let content = self.encode_to_vec();
        [&MAGIC[..], &crc32fast::hash(&content).to_le_bytes(), &content].concat()
    }

    /// What a disk says.
    pub fn read_on(disk: &dyn Disk) -> Result<Option<Self>, MemberError> {
        let path = disk.path(FILE);
        let found = match disk.open(FILE) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(file("open", &path))?,
        };
        let mut bytes = vec![0; found.len().map_err(file("read", &path))? as usize];
        segment::read_full(&*found, 0, &mut bytes).map_err(file("read", &path))?;
        Self::parse(&bytes).map(Some).ok_or(MemberError::Damaged(path))
    }

    /// Like [`Kept::write`], on the disk of a store that is open.
    pub fn write_on(&self, disk: &dyn Disk, durably: bool) -> Result<(), MemberError> {
        let partial = "member.tmp";
        let write = || {
            let mut out = disk.create(partial)?;
            out.write_at(0, &self.to_bytes())?;
            out.sync()?;
            disk.rename(partial, FILE)?;
            if durably { disk.sync_directory() } else { Ok(()) }
        };
        write().map_err(file("write", &disk.path(FILE)))
    }

    /// Writes it: the file is the old one or the new one, whatever happens; after a loss of power the new one if `durably`.
    pub fn write(&self, directory: &Path, durably: bool) -> Result<(), MemberError> {
        let (path, partial) = (directory.join(FILE), directory.join("member.tmp"));
        let synced = |out: &std::fs::File| if durably { out.sync_all() } else { out.sync_data() };
        let written = std::fs::File::create(&partial)
            .and_then(|mut out| out.write_all(&self.to_bytes()).and_then(|()| synced(&out)))
            .and_then(|()| std::fs::rename(&partial, &path))
            .and_then(|()| if durably { std::fs::File::open(directory)?.sync_all() } else { Ok(()) });
        written.map_err(file("write", &path))
    }
}

/// Makes a directory that of a lone server, durably.
pub fn leave(directory: &Path) -> Result<(), MemberError> {
    let path = directory.join(FILE);
    let removed = match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    removed.and_then(|()| std::fs::File::open(directory)?.sync_all()).map_err(file("remove", &path))
}

/// What the flags say about the members.
#[derive(Clone, Debug, Default)]
pub struct Joining {
    /// The cluster is there already.
    pub existing: bool,
    /// All members: names and where they are reached, this one included.
    pub members: Vec<(String, Vec<String>)>,
    /// Where the others are reached.
    pub others: Vec<String>,
    /// What makes the ids of this cluster others than those of a cluster with the same members.
    pub token: String,
    /// Go on without the others.
    pub alone: bool,
}

/// What a server is.
#[derive(Debug, PartialEq)]
pub enum Start {
    /// It decides alone.
    Alone(Reform),
    /// One of several.
    Member(Kept),
    /// One of several that begin together.
    Founds,
    /// It is to be told by the others which member it is.
    Joins,
}

/// Whether a directory holds a store.
pub fn has_data(directory: &Path) -> bool {
    let is_data = |name: &str| segment::parse_name(name).or_else(|| snapshot::parse_name(name)).is_some();
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_data))
}

/// What the server is, by what is in its directory and, if that is empty, by its flags.
pub fn standing(directory: &Path, joining: &Joining) -> Result<Start, MemberError> {
    let kept = Kept::read(directory)?;
    // From before learners were members like others: it must not be taken for a lone server's.
    let learner = directory.join("learner");
    if kept.is_none() && !joining.alone && learner.exists() {
        return Err(MemberError::Damaged(learner));
    }
    let founds = !joining.existing && !joining.others.is_empty();
    Ok(match kept {
        Some(kept) if joining.alone => Start::Alone(Reform::TakeOver(kept.member_id)),
        // The founding was not finished.
        Some(_) if founds && !has_data(directory) => Start::Founds,
        Some(kept) => Start::Member(kept),
        None if joining.alone => Start::Alone(Reform::Alone),
        None if has_data(directory) || joining.others.is_empty() => Start::Alone(Reform::Keep),
        None if founds => Start::Founds,
        None => Start::Joins,
    })
}

fn hashed(parts: &[&[u8]]) -> u64 {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    let mut eight = [0; 8];
    eight.copy_from_slice(&digest.finalize()[..8]);
    u64::from_le_bytes(eight).max(1)
}

/// The members of a new cluster as all of them compute them, and the cluster's id.
pub fn founders(joining: &Joining) -> (u64, Vec<Member>) {
    let id_of = |urls: &[String]| {
        let mut urls = urls.to_vec();
        urls.sort();
        hashed(&[urls.join("").as_bytes(), joining.token.as_bytes()])
    };
    let mut members: Vec<Member> = joining
        .members
        .iter()
        .map(|(name, urls)| Member {
            id: id_of(urls),
            name: name.clone(),
            peer_urls: urls.clone(),
            ..Member::default()
        })
        .collect();
    members.sort_by_key(|member| member.id);
    let ids: Vec<u8> = members.iter().flat_map(|member| member.id.to_be_bytes()).collect();
    (hashed(&[&ids]), members)
}

/// Puts a new cluster's members into a state: the same on all of them. Its records, if there are any, are as those of a lone server.
pub fn settle(state: &mut State, cluster_id: u64, members: &[Member]) {
    let voters =
        Electorate { voters: members.iter().map(|member| member.id).collect(), learners: Vec::new() };
    state.index += 1;
    for (name, value) in cluster::founding(cluster_id, members, voters, state.index) {
        state.settings.insert(name, value);
    }
}

/// The first state of a new cluster's member, in a directory that has none.
pub fn found(directory: &Path, joining: &Joining, kept: Kept) -> Result<Kept, MemberError> {
    let (cluster_id, members) = founders(joining);
    let mut state = State::default();
    settle(&mut state, cluster_id, &members);
    let kept = Kept { commit: state.index, ..kept };
    let disk = open(directory)?;
    // Before there is any data: without it the data would be taken for a lone server's.
    kept.write(directory, true)?;
    write_state(&disk, &state).map_err(file("write", directory))?;
    Ok(kept)
}

/// What a member of a new cluster keeps at first.
pub fn first(cluster_id: u64, member_id: u64, commit: u64) -> Kept {
    Kept { cluster_id, member_id, term: cluster::TERM, commit, ..Kept::default() }
}

pub(super) fn open(directory: &Path) -> Result<Directory, MemberError> {
    Directory::open(directory)
        .map_err(file("open", directory))?
        .ok_or_else(|| MemberError::InUse(directory.to_owned()))
}

/// Writes a state as the snapshot of a directory.
pub fn write_state(disk: &dyn Disk, state: &State) -> std::io::Result<()> {
    let name = snapshot::name(state.index);
    let partial = format!("{name}.tmp");
    let mut out = disk.create(&partial)?;
    let mut dump = snapshot::Dump::new(snapshot::Capture::of(state));
    let mut at = 0;
    while let Some(piece) = dump.next(&state.keys) {
        out.write_at(at, &piece)?;
        at += piece.len() as u64;
    }
    out.sync()?;
    disk.rename(&partial, &name)?;
    disk.sync_directory()
}

/// How a member reaches the others.
#[derive(Clone, Debug)]
pub struct Peering {
    /// Where it is reached by them.
    pub peer_urls: Vec<String>,
    /// The TLS to connect with.
    pub tls: Option<std::sync::Arc<rustls::ClientConfig>>,
}

impl Peering {
    /// A channel to some of them.
    pub fn channel(&self, urls: &[String], tasks: &Tasks) -> Result<Channel, RemoteError> {
        Channel::new(&RemoteConfig { endpoints: urls.to_vec(), tls: self.tls.clone() }, tasks)
    }
}

/// Tries until it works, the stop, or an error that will not go away. `None` is the stop.
async fn again<'a, T>(
    stop: &Stop,
    what: &'static str,
    mut attempt: impl FnMut(Tasks) -> BoxFuture<'a, Result<T, MemberError>> + Send,
) -> Result<Option<T>, MemberError> {
    loop {
        let tasks = Tasks::under(stop);
        // An attempt that is dropped has changed nothing that matters.
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

/// Asks the others which member this is, and who they are; it has been told before if `member_id` is not 0. `None` is the stop.
pub async fn join(
    directory: &Path,
    others: &[String],
    member_id: u64,
    peering: &Peering,
    stop: &Stop,
) -> Result<Option<(Kept, Vec<Member>)>, MemberError> {
    drop(open(directory)?);
    again(stop, "not told by the other members who this is", |tasks| {
        let attempt = async move {
            let channel = peering.channel(others, &tasks)?;
            let request = DescribeRequest { peer_urls: peering.peer_urls.clone(), member_id };
            let told: DescribeResponse = channel.call(DESCRIBE, &request).await?;
            if told.bootstrapped {
                return Err(MemberError::Bootstrapped(told.member_id));
            }
            Ok((first(told.cluster_id, told.member_id, 0), told.members))
        };
        attempt.boxed()
    })
    .await
}

/// The next message; the end of the call is an error, since there is always one more.
async fn next(answers: &mut Messages) -> Result<SnapshotPiece, MemberError> {
    if let Some(answer) = answers.next::<SnapshotPiece>().await? {
        return Ok(answer);
    }
    let trailers = answers.trailers().await.map_err(frame::broken)?;
    let status = trailers.as_ref().and_then(status_in);
    Err(status.unwrap_or(Status { code: code::UNAVAILABLE, message: "the call has ended".into() }).into())
}

/// Gets a copy of everything into a data directory whose store is not open and ends at `last`. `None` is the stop.
pub async fn receive(
    directory: &Path,
    kept: &Kept,
    last: u64,
    members: &[Member],
    peering: &Peering,
    stop: &Stop,
) -> Result<Option<()>, MemberError> {
    let others: Vec<String> = members
        .iter()
        .filter(|member| member.id != kept.member_id)
        .flat_map(|member| member.peer_urls.clone())
        .collect();
    let mut urls = others;
    again(stop, "no copy from the other members", |tasks| {
        if !urls.is_empty() {
            urls.rotate_left(1);
        }
        receive_once(directory, kept, last, urls.clone(), peering, tasks).boxed()
    })
    .await
}

async fn receive_once(
    directory: &Path,
    kept: &Kept,
    last: u64,
    urls: Vec<String>,
    peering: &Peering,
    tasks: Tasks,
) -> Result<(), MemberError> {
    let disk = open(directory)?;
    let channel = peering.channel(&urls, &tasks)?;
    let hello = Hello { cluster_id: kept.cluster_id, from: kept.member_id, to: 0 };
    let mut answers = channel.server_stream(SNAPSHOT, &hello).await?;
    let partial = "incoming.tmp";
    let written = |error| file("write", &disk.path(partial))(error);
    let mut out = disk.create(partial).map_err(written)?;
    let mut offset = 0;
    let index = loop {
        let piece = next(&mut answers).await?;
        if piece.index != 0 {
            break piece.index;
        }
        out.write_at(offset, &piece.bytes).map_err(written)?;
        offset += piece.bytes.len() as u64;
    };
    if index <= last {
        // What was acknowledged here must not be exchanged for less.
        let status = Status { code: code::UNAVAILABLE, message: "the copy is too old".into() };
        return Err(MemberError::Lost(status));
    }
    take_copy(&disk, &mut *out, partial, index)?;
    tracing::info!(index, bytes = offset, "got a copy from another member");
    Ok(())
}

/// Makes a snapshot that came, and is written to a file, the content of a directory. What was there goes only when it is known to be right and durable.
pub(super) fn take_copy(
    disk: &dyn Disk,
    out: &mut dyn DiskFile,
    partial: &str,
    index: u64,
) -> Result<(), MemberError> {
    let path = disk.path(partial);
    out.sync().map_err(file("write", &path))?;
    check(out, &path, index)?;
    replace(disk, partial, index).map_err(file("write", &path))
}

/// Whether a snapshot that came is whole and has what it should: what was here goes only then.
fn check(file: &dyn DiskFile, path: &Path, index: u64) -> Result<(), MemberError> {
    let damaged = |text: String| Status { code: code::UNAVAILABLE, message: text.into() };
    match snapshot::load(file, path.to_owned(), std::time::Instant::now()) {
        Ok(state) if state.index == index => Ok(()),
        Ok(state) => {
            Err(damaged(format!("the copy ends at record {} instead of {index}", state.index)).into())
        }
        Err(error) => Err(damaged(format!("the copy is damaged: {}", telemetry::chain(&error))).into()),
    }
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

/// Names and values of settings.
pub type Settings = std::collections::BTreeMap<Bytes, Bytes>;

#[cfg(test)]
mod tests {
    use super::*;

    fn joining(existing: bool, several: bool, alone: bool) -> Joining {
        let member = |name: &str, port: u16| (name.to_owned(), vec![format!("http://127.0.0.1:{port}")]);
        let members = if several { vec![member("a", 1), member("b", 2)] } else { vec![member("a", 1)] };
        let others = members.iter().skip(1).flat_map(|(_, urls)| urls.clone()).collect();
        Joining { existing, members, others, token: "t".to_owned(), alone }
    }

    #[test]
    fn a_server_is_what_its_directory_says_and_only_an_empty_one_asks_the_flags() {
        let empty = tempfile::tempdir().expect("directory");
        let old = tempfile::tempdir().expect("directory");
        std::fs::write(old.path().join(segment::name(1)), b"").expect("write");
        let member = tempfile::tempdir().expect("directory");
        let kept = Kept { cluster_id: 1, member_id: 2, term: 3, given_to: 2, commit: 9, ..Kept::default() };
        kept.write(member.path(), true).expect("write");
        let begun = tempfile::tempdir().expect("directory");
        kept.write(begun.path(), false).expect("write");
        std::fs::write(member.path().join(segment::name(1)), b"").expect("write");
        let cases = [
            (&empty, joining(false, false, false), Start::Alone(Reform::Keep)),
            (&empty, joining(true, false, false), Start::Alone(Reform::Keep)),
            (&empty, joining(false, true, false), Start::Founds),
            (&empty, joining(true, true, false), Start::Joins),
            (&empty, joining(true, true, true), Start::Alone(Reform::Alone)),
            (&old, joining(false, true, false), Start::Alone(Reform::Keep)),
            (&old, joining(false, false, true), Start::Alone(Reform::Alone)),
            (&member, joining(false, false, false), Start::Member(kept.clone())),
            (&member, joining(false, true, false), Start::Member(kept.clone())),
            (&member, joining(true, true, true), Start::Alone(Reform::TakeOver(2))),
            (&begun, joining(false, true, false), Start::Founds),
            (&begun, joining(true, true, false), Start::Member(kept)),
        ];
        for (directory, joining, expected) in cases {
            assert_eq!(standing(directory.path(), &joining).expect("readable"), expected, "{joining:?}");
        }
        let path = member.path().join(FILE);
        let whole = std::fs::read(&path).expect("read");
        for at in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            std::fs::write(&path, flipped).expect("write");
            assert!(Kept::read(member.path()).is_err(), "a flipped bit at {at} goes unnoticed");
        }
        std::fs::write(&path, Kept::read(begun.path()).expect("readable").expect("there").encode_to_vec())
            .expect("write");
        assert!(Kept::read(member.path()).expect("a file of before").is_some());
        std::fs::write(&path, b"x").expect("write");
        assert!(standing(member.path(), &Joining::default()).is_err(), "a damaged file is taken for none");
        leave(member.path()).expect("leave");
        assert_eq!(
            standing(member.path(), &Joining::default()).expect("readable"),
            Start::Alone(Reform::Keep)
        );
    }

    #[test]
    fn all_founders_compute_the_same_ids_and_another_token_gives_others() {
        let one = joining(false, true, false);
        let mut other = joining(false, true, false);
        other.members.reverse();
        assert_eq!(founders(&one), founders(&other));
        other.token = "u".to_owned();
        assert_ne!(founders(&one).0, founders(&other).0);
    }
}
