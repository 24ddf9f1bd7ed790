//! The Maintenance service: status, alarms, hashes, backups.

use std::io::{self, BufWriter, Write};

use bytes::Bytes;
use h2::SendStream;

use crate::alarm;
use crate::bolt::{self, Content, Layout};
use crate::engine::{Shared, Transaction};
use crate::mvcc::keyspace::Keyspace;
use crate::mvcc::range::KeyRange;
use crate::replication::serve::captured;
use crate::store::Revision;
use crate::v3::auth::{self, Caller};
use crate::v3::messages::*;
use crate::v3::service::{STORAGE_VERSION, Service, VERSION, decode};
use crate::v3::status::{self, Status};
use crate::v3::{downgrade, frame};

const ACTIVATE: i32 = 1;
const DEACTIVATE: i32 = 2;

pub async fn unary(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    let shared = &service.etcd.shared;
    // As with etcd: everyone may see the alarms, nothing else of this.
    if method != "Alarm" {
        auth::check_root(&shared.read(), caller)?;
    }
    match method {
        "Status" => Ok(frame::framed(&status_of(service))),
        "Alarm" => alarms(service, decode(body)?).await,
        // Snapshots keep the files small by themselves: there is nothing to do.
        "Defragment" => Ok(frame::framed(&HeaderOnly { header: service.header() })),
        "Hash" => {
            let revision = service.etcd.revision();
            let hash = hash_of(&shared.read().keys, revision);
            Ok(frame::framed(&HashResponse { header: service.header(), hash }))
        }
        "HashKV" => {
            let revision = decode::<HashKvRequest>(body)?.revision;
            Ok(frame::framed(&hash_kv(service, revision)?))
        }
        "MoveLeader" => {
            let to = decode::<MemberIdRequest>(body)?.id;
            service.replica.bequeath(to).await?;
            Ok(frame::framed(&HeaderOnly { header: None }))
        }
        "Downgrade" => downgrade::answer(service, decode(body)?).await,
        _ => Err(status::UNKNOWN_METHOD),
    }
}

/// What can be read at a revision (0 is the newest), as a hash.
pub fn hash_kv(service: &Service, revision: Revision) -> Result<HashKvResponse, Status> {
    let current = service.etcd.revision();
    let revision = if revision == 0 { current } else { revision };
    let state = service.etcd.shared.read();
    state.keys.check_revision(revision, current)?;
    let hash = hash_of(&state.keys, revision);
    let compact_revision = state.keys.compacted();
    Ok(HashKvResponse { header: service.header(), hash, compact_revision, hash_revision: revision })
}

/// Shows, raises or ends alarms.
async fn alarms(service: &Service, request: AlarmRequest) -> Result<Bytes, Status> {
    let shared = &service.etcd.shared;
    let asked = AlarmMember { member_id: request.member_id, alarm: request.alarm };
    let listed = match request.action {
        ACTIVATE if ![alarm::NOSPACE, alarm::CORRUPT].contains(&request.alarm) => Vec::new(),
        ACTIVATE => {
            let raise = |transaction: &mut Transaction<'_>| -> Result<(), Status> {
                alarm::raise(transaction, &asked);
                Ok(())
            };
            service.etcd.transact(raise).await?;
            vec![asked]
        }
        DEACTIVATE => {
            let disarm = |transaction: &mut Transaction<'_>| -> Result<Vec<AlarmMember>, Status> {
                Ok(alarm::disarm(transaction, &asked))
            };
            let ended = service.etcd.transact(disarm).await?;
            // The next write that does not fit raises it again.
            shared.end_quota_alarm();
            ended
        }
        _ => current_alarms(service),
    };
    Ok(frame::framed(&AlarmResponse { header: service.header(), alarms: listed }))
}

/// The alarms of the log, and what this member has noticed and not written there yet.
fn current_alarms(service: &Service) -> Vec<AlarmMember> {
    let noticed = service.etcd.shared.has_space_alarm();
    let mut alarms = alarm::all(&service.etcd.shared.read().settings);
    if noticed && !alarms.iter().any(|raised| raised.alarm == alarm::NOSPACE) {
        alarms.push(AlarmMember { member_id: service.identity.member_id, alarm: alarm::NOSPACE });
    }
    alarms
}

fn status_of(service: &Service) -> StatusResponse {
    let shared = &service.etcd.shared;
    let alarms = current_alarms(service);
    let last = shared.last_index();
    let state = shared.read();
    let bytes = state.keys.bytes() as i64;
    let standing = service.replica.standing();
    let downgrade = downgrade::target(&state.settings);
    StatusResponse {
        header: service.header(),
        version: VERSION.to_owned(),
        db_size: size_in_pages(state.keys.bytes()) as i64,
        leader: standing.leader,
        raft_index: last,
        raft_term: standing.term,
        raft_applied_index: state.index,
        errors: {
            let said = |raised: &AlarmMember| {
                format!("memberID:{} alarm:{} ", raised.member_id, alarm::name(raised.alarm))
            };
            let leaderless = (standing.leader == 0).then(|| "etcdserver: no leader".to_owned());
            alarms.iter().map(said).chain(leaderless).collect()
        },
        db_size_in_use: bytes,
        is_learner: standing.learner,
        storage_version: downgrade::cluster_version(&state.settings),
        db_size_quota: shared.config.quota_bytes as i64,
        downgrade_info: Some(DowngradeInfo {
            enabled: downgrade.is_some(),
            target_version: downgrade.unwrap_or_default(),
        }),
    }
}

/// The size of a database with so much data: in whole pages and never none, for etcdctl divides by it.
pub fn size_in_pages(bytes: u64) -> u64 {
    const PAGE: u64 = 4096;
    (bytes / PAGE + 1) * PAGE
}

/// A hash of what can be read at a revision: equal content has an equal hash, whatever its history.
pub fn hash_of(keys: &Keyspace, revision: Revision) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    for (key, version) in keys.range(&KeyRange::From(Bytes::new()), revision) {
        for number in [
            key.len() as i64,
            version.value.len() as i64,
            version.create_revision,
            version.mod_revision,
            version.version,
            version.lease,
        ] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(key);
        hasher.update(&version.value);
    }
    hasher.finalize()
}

/// Streams a backup in etcd's form, so that etcd's own tools read it.
pub async fn snapshot(service: &Service, caller: &Caller, out: &mut SendStream<Bytes>) -> Result<(), Status> {
    let shared = &service.etcd.shared;
    auth::check_root(&shared.read(), caller)?;
    let (capture, hold) = captured(service);
    let header = Some(service.header_at(capture.revision));
    let mut content = Content::new(capture);
    while content.gather(&shared.read().keys) {
        tokio::task::yield_now().await;
    }
    drop(hold);
    send_backup(header, content, out).await
}

/// Lets compaction go on when the backup is done, or its client gone.
pub(crate) struct Hold<'a>(pub(crate) &'a Shared);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.release_hold();
    }
}

/// Makes the pages beside the runtime's threads, only so far ahead as the client takes them.
async fn send_backup(
    header: Option<ResponseHeader>,
    content: Content,
    out: &mut SendStream<Bytes>,
) -> Result<(), Status> {
    let (pieces, mut made) = tokio::sync::mpsc::channel::<Piece>(PIECES_AHEAD);
    let making = tokio::task::spawn_blocking(move || {
        let layout = Layout::of(&content)?;
        let pieces = BufWriter::with_capacity(PIECE, Pieces { left: layout.length(), to: pieces });
        bolt::write(&content, &layout, pieces)
    });
    while let Some(Piece { blob, remaining_bytes }) = made.recv().await {
        let header = header.clone();
        let response =
            SnapshotResponse { header, remaining_bytes, blob, version: STORAGE_VERSION.to_owned() };
        frame::send(out, frame::framed(&response)).await?;
    }
    let unmade = |error: &dyn std::fmt::Display| Status {
        code: status::code::UNKNOWN,
        message: format!("the backup cannot be made: {error}").into(),
    };
    making.await.map_err(|error| unmade(&error))?.map_err(|error| unmade(&error))
}

/// Bytes of one message.
const PIECE: usize = 64 << 10;
/// Messages that wait for the client.
const PIECES_AHEAD: usize = 4;

struct Piece {
    blob: Bytes,
    remaining_bytes: u64,
}

/// Hands over what is written to it.
struct Pieces {
    left: u64,
    to: tokio::sync::mpsc::Sender<Piece>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.saturating_sub(bytes.len() as u64);
        let piece = Piece { blob: Bytes::copy_from_slice(bytes), remaining_bytes: self.left };
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client has gone");
        self.to.blocking_send(piece).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_database_is_smaller_than_its_data() {
        for bytes in [0, 1, 4095, 4096, 1 << 30] {
            assert!(size_in_pages(bytes) > bytes);
        }
    }
}
