//! Whether all members have the same: their hashes at one revision are compared.
//!
//! `--corrupt-check-time`: the leader asks the others now and then, and raises the alarm CORRUPT for those that differ from most of them. With
//! `--feature-gates InitialCorruptCheck=true` a member compares before it serves anybody, and ends if it differs. One that does not answer, or has not come
//! so far, or has forgotten the revision, is not compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::{Stop, Tasks};

use crate::alarm;
use crate::replication::member::MemberError;
use crate::replication::{HASH_KV, Hello};
use crate::store::Revision;
use crate::v3::maintenance::hash_kv;
use crate::v3::messages::*;
use crate::v3::service::Service;
use crate::v3::status::Status;

/// How long one that is asked may take: it reads everything it has.
const ANSWER: Duration = Duration::from_secs(30);

/// What the other members have at a revision, as far as they say it.
async fn others(service: &Service, revision: Revision, tasks: &Tasks) -> BTreeMap<u64, u32> {
    let own = service.identity.member_id;
    let members = crate::v3::cluster::members(&service.etcd.shared.read().settings);
    let asked = members.into_iter().filter(|member| member.id != own).map(|member| async move {
        let channel = service.replica.peering.channel(&member.peer_urls, tasks).ok()?;
        let hello = Hello { cluster_id: service.identity.cluster_id, from: own, to: member.id };
        let request = prost::Message::encode_to_vec(&HashKvRequest { revision }).into();
        let (bytes, _) = channel.relay(&hello, HASH_KV, None, request, ANSWER).await.ok()?;
        let answer = <HashKvResponse as prost::Message>::decode(bytes).ok()?;
        (answer.hash_revision == revision).then_some((member.id, answer.hash))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// Those that differ from what most of all members have; 0 if nobody knows who is right.
fn differing(hashes: &BTreeMap<u64, u32>, members: usize) -> Vec<u64> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for hash in hashes.values() {
        *counts.entry(*hash).or_default() += 1;
    }
    if counts.len() < 2 {
        return Vec::new();
    }
    match counts.iter().find(|(_, count)| **count > members / 2) {
        Some((right, _)) => hashes.iter().filter(|(_, hash)| *hash != right).map(|(id, _)| *id).collect(),
        None => vec![0],
    }
}

/// Compares once; for the leader. Returns whom it has raised the alarm for.
pub(crate) async fn check(service: &Service, tasks: &Tasks) -> Result<Vec<u64>, Status> {
    service.replica.current(&service.etcd.shared).await?;
    let revision = service.etcd.revision();
    let own = hash_kv(service, revision)?;
    let mut hashes = others(service, revision, tasks).await;
    hashes.insert(service.identity.member_id, own.hash);
    let members = crate::v3::cluster::members(&service.etcd.shared.read().settings).len();
    let mut raised = Vec::new();
    for id in differing(&hashes, members) {
        let alarm = AlarmMember { member_id: id, alarm: alarm::CORRUPT };
        let raise = |transaction: &mut crate::engine::Transaction<'_>| -> Result<bool, Status> {
            Ok(alarm::raise(transaction, &alarm))
        };
        if service.etcd.transact(raise).await? {
            tracing::error!(member = %format_args!("{id:x}"), revision, ?hashes, "the members' data differs: alarm CORRUPT");
            raised.push(id);
        }
    }
    Ok(raised)
}

/// Compares as long as this member leads, every so often.
pub(crate) async fn watch(service: Arc<Service>, every: Duration, stop: Stop) {
    while stop.or(tokio::time::sleep(every)).await.is_some() {
        if !service.replica.is_one_of_several() || !service.replica.standing().leads {
            continue;
        }
        let tasks = Tasks::under(&stop);
        if let Some(Err(error)) = stop.or(check(&service, &tasks)).await {
            tracing::warn!(%error, "the members' data could not be compared");
        }
        tasks.stop().request();
        tasks.drain(Duration::from_secs(1)).await;
    }
}

/// Compares before anybody is served.
pub(crate) async fn initial(service: &Service, tasks: &Tasks) -> Result<(), MemberError> {
    let revision = service.etcd.revision();
    let Ok(own) = hash_kv(service, revision) else { return Ok(()) };
    let hashes = others(service, revision, tasks).await;
    let differ: Vec<u64> = hashes.iter().filter(|(_, hash)| **hash != own.hash).map(|(id, _)| *id).collect();
    if differ.is_empty() {
        tracing::info!(revision, compared = hashes.len(), "the data is that of the other members");
        return Ok(());
    }
    Err(MemberError::Inconsistent { id: service.identity.member_id, revision, differ: differ.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_differs_from_most_is_wrong_and_without_most_nobody_knows() {
        let cases: [(&[u32], usize, &[u64]); 7] = [
            (&[5, 5, 5], 3, &[]),
            (&[5, 5, 6], 3, &[3]),
            (&[6, 5, 5], 3, &[1]),
            (&[5, 6], 3, &[0]),
            (&[5, 5], 3, &[]),
            (&[4, 5, 6], 3, &[0]),
            (&[5, 5, 6, 7, 5], 5, &[3, 4]),
        ];
        for (hashes, members, expected) in cases {
            let hashes = hashes.iter().zip(1..).map(|(hash, id)| (id, *hash)).collect();
            assert_eq!(differing(&hashes, members), expected, "{hashes:?} of {members}");
        }
    }
}
