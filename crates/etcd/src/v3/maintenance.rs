//! The Maintenance service: status, alarms, hashes, backups.

use bytes::Bytes;
use h2::SendStream;
use sha2::{Digest, Sha256};

use crate::engine::Shared;
use crate::log::snapshot::{Capture, Dump};
use crate::mvcc::keyspace::Keyspace;
use crate::mvcc::range::KeyRange;
use crate::store::Revision;
use crate::v3::auth::{self, Caller};
use crate::v3::frame;
use crate::v3::messages::*;
use crate::v3::service::{Service, TERM, VERSION, decode};
use crate::v3::status::{self, Status};

const NO_SPACE: i32 = 1;
const ACTIVATE: i32 = 1;

pub async fn unary(service: &Service, caller: &Caller, method: &str, body: Bytes) -> Result<Bytes, Status> {
    let shared = &service.etcd.shared;
    if method == "Status" {
        return Ok(frame::framed(&status_of(service)));
    }
    auth::check_root(&shared.read(), caller)?;
    match method {
        "Alarm" => {
            let request: AlarmRequest = decode(body)?;
            if request.action == ACTIVATE {
                // Alarms here say what is so; one that is only claimed would refuse writes for no reason.
                return Err(Status {
                    code: status::code::UNIMPLEMENTED,
                    message: "etcdserver: alarms are raised by the server itself".into(),
                });
            }
            // Disarming an alarm whose cause lasts would raise it again with the next write: it goes when the cause does.
            let alarms = if shared.has_space_alarm() {
                vec![AlarmMember { member_id: service.identity.member_id, alarm: NO_SPACE }]
            } else {
                Vec::new()
            };
            Ok(frame::framed(&AlarmResponse { header: service.header(), alarms }))
        }
        // Snapshots keep the files small by themselves: there is nothing to do.
        "Defragment" => Ok(frame::framed(&HeaderOnly { header: service.header() })),
        "Hash" => {
            let revision = service.etcd.revision();
            let hash = hash_of(&shared.read().keys, revision);
            Ok(frame::framed(&HashResponse { header: service.header(), hash }))
        }
        "HashKV" => {
            let request: HashKvRequest = decode(body)?;
            let current = service.etcd.revision();
            let revision = if request.revision == 0 { current } else { request.revision };
            let state = shared.read();
            state.keys.check_revision(revision, current)?;
            let hash = hash_of(&state.keys, revision);
            let compact_revision = state.keys.compacted();
            let header = service.header();
            Ok(frame::framed(&HashKvResponse { header, hash, compact_revision, hash_revision: revision }))
        }
        // The only member leads already; there is nobody else to lead.
        "MoveLeader" if decode::<MemberIdRequest>(body.clone())?.id == service.identity.member_id => {
            Ok(frame::framed(&HeaderOnly { header: service.header() }))
        }
        "MoveLeader" => Err(status::BAD_LEADER_TRANSFEREE),
        _ => Err(status::UNKNOWN_METHOD),
    }
}

fn status_of(service: &Service) -> StatusResponse {
    let shared = &service.etcd.shared;
    let alarm = shared.has_space_alarm();
    let state = shared.read();
    let bytes = state.keys.bytes() as i64;
    StatusResponse {
        header: service.header(),
        version: VERSION.to_owned(),
        db_size: bytes,
        leader: service.identity.member_id,
        raft_index: state.index,
        raft_term: TERM,
        raft_applied_index: state.index,
        errors: if alarm {
            vec![format!("memberID:{} alarm:NOSPACE ", service.identity.member_id)]
        } else {
            Vec::new()
        },
        db_size_in_use: bytes,
        is_learner: false,
        storage_version: "3.6.0".to_owned(),
        db_size_quota: shared.config.quota_bytes as i64,
    }
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

/// Streams a backup: the same form as the snapshots on disk, followed by its SHA-256.
pub async fn snapshot(service: &Service, caller: &Caller, out: &mut SendStream<Bytes>) -> Result<(), Status> {
    let shared = &service.etcd.shared;
    auth::check_root(&shared.read(), caller)?;
    let mut hold = None;
    // What has not become durable yet must not be in a backup either: the transaction's answer waits for it.
    let capture = service
        .etcd
        .transact(|transaction| -> Result<Capture, Status> {
            hold = Some(Hold(shared));
            Ok(transaction.capture_and_hold())
        })
        .await?;
    send_dump(service, capture, out).await
}

/// Lets compaction go on when the backup is done, or its client gone.
struct Hold<'a>(&'a Shared);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.release_hold();
    }
}

async fn send_dump(service: &Service, capture: Capture, out: &mut SendStream<Bytes>) -> Result<(), Status> {
    let header = Some(service.header_at(capture.revision));
    let mut dump = Dump::new(capture);
    let mut digest = Sha256::new();
    let mut length = 0;
    let mut padded = false;
    loop {
        let piece = dump.next(&service.etcd.shared.read().keys);
        let piece = match piece {
            Some(piece) => piece,
            // etcdctl tells by the length whether a backup has a checksum: whole pages of 512 bytes, and 32 more.
            None if !padded => {
                padded = true;
                vec![0; (512 - length % 512) % 512]
            }
            None => break,
        };
        length += piece.len();
        digest.update(&piece);
        let response = SnapshotResponse {
            header: header.clone(),
            // How much is to come is not known in advance; clients only look whether it is the last piece.
            remaining_bytes: 32,
            blob: piece.into(),
            version: VERSION.to_owned(),
        };
        frame::send(out, frame::framed(&response)).await?;
    }
    let blob = Bytes::copy_from_slice(&digest.finalize());
    let response = SnapshotResponse { header, remaining_bytes: 0, blob, version: VERSION.to_owned() };
    frame::send(out, frame::framed(&response)).await
}
