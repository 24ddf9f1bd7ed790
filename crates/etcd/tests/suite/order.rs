//! Log, commit, apply: what is not committed is seen by nobody, whatever it is and however one looks.

#![allow(clippy::disallowed_methods, reason = "waits for programs outside of this process")]

use std::process::Command;
use std::time::{Duration, Instant};

use etcd::v3::messages::*;
use lifecycle::Tasks;

use crate::crash::server_program;
use crate::learner::{DEADLINE, Member};
use crate::members::{agreed, leader, members, patiently, start_all};
use crate::server::remote;

const NOSPACE: i32 = 1;

async fn hash(member: &Member) -> HashKvResponse {
    let request = HashKvRequest::default();
    member.channel.call("/etcdserverpb.Maintenance/HashKV", &request).await.expect("hash")
}

/// What a member says of itself without asking anybody.
async fn seen(member: &Member) -> (i64, u32, usize, Vec<String>, usize) {
    let (revision, keys) = member.content().await;
    let status = member.status().await.expect("status");
    let members: MembersResponse =
        member.channel.call("/etcdserverpb.Cluster/MemberList", &Empty {}).await.expect("members");
    (revision, hash(member).await.hash, keys.len(), status.errors, members.members.len())
}

/// The others are killed, and the leader does not know yet that it is alone: it takes writes, and shows none of them. It dies, the others go on
/// without them, and when it comes back it has what they have.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_leader_without_its_majority_takes_is_seen_by_nobody_and_gone_after_it() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = members(directory.path(), &tasks);
    // Long enough for all of this to happen before it gives way.
    let flags = [&flag[..], "--election-timeout=5000", "--heartbeat-interval=200"];
    start_all(&mut members, &flags).await;
    let leads = leader(&members).await;
    members[leads].put("kept".to_owned(), b"1".to_vec()).await;
    agreed(&members).await;
    // Nothing is on its way: all have said who they are, and everybody knows.
    let deadline = Instant::now() + DEADLINE;
    loop {
        let listed: MembersResponse = members[leads]
            .channel
            .call("/etcdserverpb.Cluster/MemberList", &Empty {})
            .await
            .expect("members");
        let status = members[leads].status().await.expect("status");
        let named = listed.members.iter().all(|member| !member.name.is_empty());
        if named && status.raft_applied_index == status.raft_index {
            break;
        }
        assert!(Instant::now() < deadline, "not all say who they are: {listed:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (store, clients) = remote(&[members[leads].client.clone()], None).await;
    let others = [(leads + 1) % 3, (leads + 2) % 3];
    let before = seen(&members[leads]).await;
    let mut watch = store.watch(Default::default(), before.0 + 1).await.expect("watch");
    for other in others {
        members[other].die();
    }
    let last = members[leads].status().await.expect("status").raft_index;
    let put = PutRequest { key: "never".into(), value: "seen".into(), ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: "kept".into(), ..DeleteRangeRequest::default() };
    let alarm = AlarmRequest { action: 1, member_id: 7, alarm: NOSPACE };
    let grant = LeaseGrantRequest { id: 7, ttl: 1000 };
    let compact = CompactionRequest { revision: before.0, ..CompactionRequest::default() };
    let leader_member = &members[leads];
    let taken = async {
        let put = patiently::<Empty>(leader_member, "/etcdserverpb.KV/Put", &put);
        let delete = patiently::<Empty>(leader_member, "/etcdserverpb.KV/DeleteRange", &delete);
        let alarm = patiently::<Empty>(leader_member, "/etcdserverpb.Maintenance/Alarm", &alarm);
        let grant = patiently::<Empty>(leader_member, "/etcdserverpb.Lease/LeaseGrant", &grant);
        let compact = patiently::<Empty>(leader_member, "/etcdserverpb.KV/Compact", &compact);
        futures::join!(put, delete, alarm, grant, compact)
    };
    let look = async {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let status = leader_member.status().await.expect("status");
            assert_eq!(status.leader, status.header.expect("header").member_id, "it has given way too early");
            if status.raft_index >= last + 5 {
                assert_eq!(status.raft_applied_index, last, "applied before it is committed");
                break;
            }
            assert!(Instant::now() < deadline, "the writes are not taken");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(seen(leader_member).await, before, "what is not committed is seen");
        let metrics = leader_member.http("/metrics");
        assert!(metrics.contains("\netcd_server_proposals_pending 5\n"), "{metrics}");
        // A backup has what is committed, and does not wait for what is not.
        let file = directory.path().join("backup").display().to_string();
        let saved = Command::new(server_program())
            .args(["etcd", "snapshot", "save", &file, "--endpoints", &leader_member.client])
            .output()
            .expect("run");
        assert!(saved.status.success(), "{saved:?}");
        let backup = std::fs::read(&file).expect("backup");
        let has = |text: &[u8]| backup.windows(text.len()).any(|part| part == text);
        assert!(has(b"kept") && !has(b"never"), "a backup has what is not committed");
        let event = tokio::time::timeout(Duration::from_millis(100), watch.next()).await;
        assert!(event.is_err(), "a watch has seen {event:?}");
    };
    tokio::select! {
        answers = taken => panic!("answered without a majority: {answers:?}"),
        () = look => {}
    }
    members[leads].die();
    for other in others {
        members[other].launch(&flags);
    }
    for other in others {
        members[other].answers().await;
    }
    let now = leader(&members).await;
    members[now].put("after".to_owned(), b"2".to_vec()).await;
    members[leads].start(&flags).await;
    let content = agreed(&members).await;
    assert!(content.contains_key("kept") && content.contains_key("after"), "{content:?}");
    assert!(!content.contains_key("never"), "what was never committed has come back");
    let expected = hash(&members[now]).await;
    let found = hash(&members[leads]).await;
    assert_eq!((found.hash, found.hash_revision), (expected.hash, expected.hash_revision));
    assert_eq!(found.compact_revision, 0, "compacted by what was never committed");
    let alarms = members[leads].status().await.expect("status").errors;
    assert!(alarms.iter().all(|error| !error.contains("NOSPACE")), "{alarms:?}");
    let again: LeaseGrantResponse = patiently(&members[leads], "/etcdserverpb.Lease/LeaseGrant", &grant)
        .await
        .expect("the lease is free");
    assert_eq!(again.id, 7);
    clients.drain(Duration::from_secs(1)).await;
    tasks.drain(Duration::from_secs(2)).await;
}
