//! Several members of ours as programs of their own: they lose nothing when some of them are killed or stopped, say so when there are too few, and are
//! added, promoted, moved and removed as etcd's are.

#![allow(clippy::disallowed_methods, reason = "waits for programs outside of this process")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcd::remote::{Channel, RemoteConfig};
use etcd::replication::Hello;
use etcd::v3::messages::*;
use etcd::{Committed, Precondition};
use lifecycle::Tasks;

use crate::learner::{DEADLINE, Member, wait_for_a_snapshot};
use crate::server::{Running, program, remote};
use crate::{conformance, linearizability};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// Members of one new cluster, with the flags to start them with.
pub fn members(directory: &Path, tasks: &Tasks) -> (Vec<Member>, String) {
    let members: Vec<Member> = NAMES.iter().map(|name| Member::new(name, directory, None, tasks)).collect();
    let all: Vec<String> = members.iter().map(|member| format!("{}={}", member.name, member.peer)).collect();
    (members, format!("--initial-cluster={}", all.join(",")))
}

async fn started(directory: &Path, tasks: &Tasks) -> (Vec<Member>, String) {
    let (mut members, flag) = members(directory, tasks);
    start_all(&mut members, &[&flag]).await;
    leader(&members).await;
    (members, flag)
}

/// Starts members of a new cluster: none of them answers before all have been asked.
pub async fn start_all(members: &mut [Member], flags: &[&str]) {
    for member in members.iter_mut() {
        member.launch(flags);
    }
    for member in members {
        member.answers().await;
    }
}

/// Which one leads, by all that answer.
pub async fn leader(members: &[Member]) -> usize {
    let deadline = Instant::now() + DEADLINE;
    loop {
        assert!(Instant::now() < deadline, "nobody leads");
        let mut leaders = BTreeSet::new();
        let mut found = None;
        for (number, member) in members.iter().enumerate().filter(|(_, member)| member.running.is_some()) {
            let Some(status) = member.status().await else { continue };
            let own = status.header.expect("header").member_id;
            leaders.insert(status.leader);
            if status.leader == own {
                found = Some(number);
            }
        }
        if let (1, Some(found)) = (leaders.len(), found) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn endpoints(members: &[Member]) -> Vec<String> {
    members.iter().map(|member| member.client.clone()).collect()
}

/// Waits until all have the same, and returns it.
pub async fn agreed(members: &[Member]) -> BTreeMap<String, Vec<u8>> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut contents = Vec::new();
        for member in members.iter().filter(|member| member.running.is_some()) {
            contents.push(member.content_if_it_answers().await);
        }
        if contents.windows(2).all(|pair| pair[0] == pair[1])
            && let Some(Some((_, keys))) = contents.pop()
        {
            let pair = |kv: KeyValue| (String::from_utf8_lossy(&kv.key).into_owned(), kv.value.to_vec());
            return keys.into_iter().map(pair).collect();
        }
        assert!(Instant::now() < deadline, "the members do not agree");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn signal(member: &Member, signal: &str) {
    let pid = member.running.as_ref().expect("running").0.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
}

/// Writes until told to stop; returns what was acknowledged.
async fn writer(endpoints: Vec<String>, name: String, done: &AtomicBool) -> Vec<String> {
    let (store, tasks) = remote(&endpoints, None).await;
    let mut acknowledged = Vec::new();
    for number in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{name}/{number:05}");
        let value = vec![number as u8; if number % 3 == 0 { 3000 } else { 30 }];
        if let Ok(Committed::Done { .. }) =
            store.put(key.clone().into(), value.into(), 0, Precondition::None).await
        {
            acknowledged.push(key);
        }
    }
    tasks.drain(Duration::from_secs(1)).await;
    acknowledged
}

/// The way to a member's peer port, which can be cut.
struct Way {
    port: u16,
    cut: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Way {
    async fn to(url: &str, tasks: &Tasks) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("address").port();
        let cut = std::sync::Arc::new(AtomicBool::new(false));
        let (target, is_cut) = (url.trim_start_matches("http://").to_owned(), cut.clone());
        let all = tasks.clone();
        tasks.spawn("way", move |stop| async move {
            while let Some(Ok((mut near, _))) = stop.or(listener.accept()).await {
                let (target, is_cut) = (target.clone(), is_cut.clone());
                all.spawn("connection", move |stop| async move {
                    let Ok(mut far) = tokio::net::TcpStream::connect(target).await else { return };
                    let until = async {
                        while !is_cut.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    };
                    // Dropping both sides is the cut.
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        () = until => {}
                        () = stop.requested() => {}
                    }
                });
            }
        });
        Self { port, cut }
    }
}

/// Nobody reaches the leader, while it reaches the others: it must notice by itself that it hears of nobody, and give way.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hears_nobody_gives_way_and_comes_back_without_a_trace() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, _) = members(directory.path(), &tasks);
    let mut ways = Vec::new();
    for member in &members {
        ways.push(Way::to(&member.peer, &tasks).await);
    }
    let url = |number: usize| format!("http://127.0.0.1:{}", ways[number].port);
    let all: Vec<String> = (0..3).map(|number| format!("{}={}", NAMES[number], url(number))).collect();
    let flag = format!("--initial-cluster={}", all.join(","));
    for (number, member) in members.iter_mut().enumerate() {
        member.launch(&[&flag, &format!("--initial-advertise-peer-urls={}", url(number))]);
    }
    for member in &mut members {
        member.answers().await;
    }
    let mut expected = BTreeSet::new();
    for round in 0..3 {
        let leads = leader(&members).await;
        let done = AtomicBool::new(false);
        let writers: Vec<_> =
            (0..3).map(|number| writer(endpoints(&members), format!("cut{round}-{number}"), &done)).collect();
        let disturb = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            ways[leads].cut.store(true, Ordering::Relaxed);
            let deadline = Instant::now() + DEADLINE;
            let others = [(leads + 1) % 3, (leads + 2) % 3];
            let old = id_of(&members[leads]).await;
            while members[others[0]].status().await.is_none_or(|status| [0, old].contains(&status.leader)) {
                assert!(Instant::now() < deadline, "nobody else leads");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
            ways[leads].cut.store(false, Ordering::Relaxed);
            leader(&members).await;
            done.store(true, Ordering::Relaxed);
        };
        let (acknowledged, ()) = futures::future::join(futures::future::join_all(writers), disturb).await;
        expected.extend(acknowledged.into_iter().flatten());
        let content = agreed(&members).await;
        let lost: Vec<&String> = expected.iter().filter(|key| !content.contains_key(*key)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
    assert!(expected.len() > 30, "only {} writes", expected.len());
    tasks.drain(Duration::from_secs(2)).await;
}

fn rounds(usual: usize) -> usize {
    std::env::var("KELSON_CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_leaders_are_killed_or_stopped() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = started(directory.path(), &tasks).await;
    let mut expected = BTreeSet::new();
    for round in 0..rounds(4) {
        let done = AtomicBool::new(false);
        let names = (0..4).map(|number| format!("round{round:03}-{number}"));
        let writers: Vec<_> = names.map(|name| writer(endpoints(&members), name, &done)).collect();
        let disturb = async {
            tokio::time::sleep(Duration::from_millis(300 + 50 * (round as u64 % 7))).await;
            let victim = leader(&members).await;
            if round % 2 == 0 {
                members[victim].die();
                leader(&members).await;
                tokio::time::sleep(Duration::from_millis(300)).await;
                members[victim].start(&[&flag]).await;
            } else {
                // It does not know that its time is over when it wakes up.
                signal(&members[victim], "-STOP");
                tokio::time::sleep(Duration::from_millis(3500)).await;
                signal(&members[victim], "-CONT");
            }
            leader(&members).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            done.store(true, Ordering::Relaxed);
        };
        let (acknowledged, ()) = futures::future::join(futures::future::join_all(writers), disturb).await;
        let before = expected.len();
        expected.extend(acknowledged.into_iter().flatten());
        assert!(expected.len() > before + 20, "only {} writes in a round", expected.len() - before);
        let content = agreed(&members).await;
        let lost: Vec<&String> = expected.iter().filter(|key| !content.contains_key(*key)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    }
    let mut hashes = BTreeSet::new();
    for member in &members {
        let request = HashKvRequest::default();
        let answer: HashKvResponse =
            member.channel.call("/etcdserverpb.Maintenance/HashKV", &request).await.expect("hash");
        hashes.insert((answer.hash, answer.hash_revision));
    }
    assert_eq!(hashes.len(), 1, "{hashes:?}");
    tasks.drain(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_over_all_members_are_linearizable_and_the_contract_holds() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, _) = started(directory.path(), &tasks).await;
    let (store, clients) = remote(&endpoints(&members), None).await;
    conformance::all(store.clone()).await;
    let leads = leader(&members).await;
    // Each client asks another member, and those that do not lead are asked too.
    for turn in 0..3 {
        let mut order = endpoints(&members);
        order.rotate_left((leads + turn) % 3);
        let (store, clients) = remote(&order, None).await;
        linearizability::check(store, &format!("turn{turn}"), 5).await;
        clients.drain(Duration::from_secs(1)).await;
    }
    // What is written through one member is seen through all others at once.
    for number in 0..30 {
        let key = format!("seen/{number}");
        members[number % 3].put(key.clone(), b"now".to_vec()).await;
        let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
        for member in &members {
            let found: RangeResponse =
                member.channel.call("/etcdserverpb.KV/Range", &request).await.expect("range");
            assert_eq!(found.count, 1, "{} does not see what {} wrote", member.name, number % 3);
            assert_eq!(found.header.expect("header").member_id, id_of(member).await, "signed by another");
        }
    }
    // One that ends in order lets another lead first: nobody waits for an election.
    let term = members[leads].status().await.expect("status").raft_term;
    signal(&members[leads], "-TERM");
    let mut ending = members[leads].running.take().expect("running");
    let now = leader(&members).await;
    assert_eq!(members[now].status().await.expect("status").raft_term, term + 1, "more than one election");
    assert!(ending.0.wait().expect("wait").success());
    linearizability::check(store, "two", 3).await;
    clients.drain(Duration::from_secs(1)).await;
    tasks.drain(Duration::from_secs(2)).await;
}

async fn id_of(member: &Member) -> u64 {
    member.status().await.expect("status").header.expect("header").member_id
}

/// A call with a longer patience than the channel's own.
pub async fn patiently<M: prost::Message + Default>(
    member: &Member,
    path: &'static str,
    request: &impl prost::Message,
) -> Result<M, String> {
    let tasks = Tasks::new();
    let config = RemoteConfig { endpoints: vec![member.client.clone()], tls: None };
    let channel = Channel::new(&config, &tasks).expect("channel");
    let body = request.encode_to_vec().into();
    let answer = channel.relay(&Hello::default(), path, None, body, Duration::from_secs(20)).await;
    tasks.drain(Duration::from_secs(1)).await;
    answer
        .map(|(bytes, _)| M::decode(bytes).expect("decodes"))
        .map_err(|error| error.status.message.into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_written_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = started(directory.path(), &tasks).await;
    members[0].put("kept".to_owned(), b"1".to_vec()).await;
    let before = agreed(&members).await;
    members[1].die();
    members[2].die();
    let put = PutRequest { key: "lost".into(), ..PutRequest::default() };
    let why = patiently::<PutResponse>(&members[0], "/etcdserverpb.KV/Put", &put).await.expect_err("refused");
    assert!(why.contains("timed out"), "{why}");
    let range = RangeRequest { key: "kept".into(), ..RangeRequest::default() };
    let why = patiently::<RangeResponse>(&members[0], "/etcdserverpb.KV/Range", &range).await;
    assert_eq!(why.expect_err("refused"), "etcdserver: request timed out");
    let status = members[0].status().await.expect("status");
    assert_eq!((status.leader, status.errors), (0, vec!["etcdserver: no leader".to_owned()]));
    assert!(members[0].http("/health").contains("RAFT NO LEADER"));
    assert!(members[0].http("/readyz").contains("503"));
    assert_eq!(members[0].content().await.1.len(), before.len(), "reads that need not be current go on");
    members[0].die();
    members[0].start(&[&flag]).await;
    assert_eq!(members[0].content().await.1.len(), before.len(), "also after a restart");
    members[1].start(&[&flag]).await;
    leader(&members).await;
    members[0].put("again".to_owned(), b"2".to_vec()).await;
    members[2].start(&[&flag]).await;
    let after = agreed(&members).await;
    assert!(after.contains_key("kept") && after.contains_key("again"), "{after:?}");
    tasks.drain(Duration::from_secs(2)).await;
}

fn etcdctl(endpoints: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("timeout")
        .args(["20", "etcdctl", "--endpoints", endpoints])
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .output()
        .expect("etcdctl");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn says(endpoints: &str, arguments: &[&str]) -> String {
    let (fine, text) = etcdctl(endpoints, arguments);
    assert!(fine, "etcdctl {arguments:?}: {text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_added_promoted_moved_and_removed_with_etcdctl() {
    let Some(_) = program("etcdctl") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = members(directory.path(), &tasks);
    let (alone, joins) = (members[0].client.clone(), [flag.as_str(), "--initial-cluster-state=existing"]);
    // A lone server, with some data, becomes one of three: one comes as a learner, one as a voter.
    members[0].start(&[]).await;
    for number in 0..20 {
        members[0].put(format!("before/{number}"), vec![7; 100]).await;
    }
    let added =
        says(&alone, &["member", "add", "two", "--learner", &format!("--peer-urls={}", members[1].peer)]);
    let second = added.split_whitespace().nth(1).expect("an id").to_owned();
    let (fine, why) = etcdctl(&alone, &["member", "promote", &second]);
    assert!(!fine && why.contains("can only promote a learner member which is in sync with leader"), "{why}");
    members[1].start(&joins).await;
    let deadline = Instant::now() + DEADLINE;
    while !etcdctl(&alone, &["member", "promote", &second]).0 {
        assert!(Instant::now() < deadline, "the learner never gets in sync");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let deadline = Instant::now() + DEADLINE;
    while members[1].status().await.is_none_or(|status| status.is_learner) {
        assert!(Instant::now() < deadline, "the learner does not know that it votes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_until_started(&alone, 2).await;
    let added = says(&alone, &["member", "add", "three", &format!("--peer-urls={}", members[2].peer)]);
    let third = added.split_whitespace().nth(1).expect("an id").to_owned();
    // Two of three are there: all goes on.
    members[1].put("meanwhile".to_owned(), b"1".to_vec()).await;
    members[2].start(&joins).await;
    agreed(&members).await;
    wait_until_started(&alone, 3).await;
    says(&alone, &["endpoint", "health", "--cluster"]);
    let status = says(&alone, &["endpoint", "status", "--cluster"]);
    assert_eq!(status.lines().filter(|line| line.contains(", true, false, ")).count(), 1, "{status}");
    let hashes = says(&alone, &["endpoint", "hashkv", "--cluster"]);
    let hashes: BTreeSet<&str> = hashes.lines().filter_map(|line| line.split(", ").nth(1)).collect();
    assert_eq!(hashes.len(), 1, "{hashes:?}");
    let all = endpoints(&members).join(",");
    assert!(says(&all, &["move-leader", &third]).contains("Leadership transferred"));
    assert_eq!(leader(&members).await, 2);
    let (fine, why) = etcdctl(&alone, &["move-leader", &second]);
    assert!(!fine && why.contains("no leader endpoint"), "{why}");
    locks_and_leases(&members).await;
    // The leader is removed: another one leads, and its process ends.
    assert!(says(&alone, &["member", "remove", &third]).contains("removed from cluster"));
    let mut running = members[2].running.take().expect("running");
    let deadline = Instant::now() + DEADLINE;
    while running.0.try_wait().expect("wait").is_none() {
        assert!(Instant::now() < deadline, "a removed member goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    members[0].put("with two".to_owned(), b"1".to_vec()).await;
    let (fine, _) = etcdctl(&alone, &["member", "remove", &third]);
    assert!(!fine, "it is gone already");
    assert!(says(&alone, &["member", "remove", &second]).contains("removed from cluster"));
    members[0].put("alone again".to_owned(), b"1".to_vec()).await;
    members[0].die();
    members[0].start(&[]).await;
    members[0].put("and after a restart".to_owned(), b"1".to_vec()).await;
    assert_eq!(members[0].content().await.1.len(), 24);
    tasks.drain(Duration::from_secs(2)).await;
}

/// Waits until so many members have said who they are.
async fn wait_until_started(endpoint: &str, count: usize) {
    let deadline = Instant::now() + DEADLINE;
    while says(endpoint, &["member", "list"]).matches(", started, ").count() < count {
        assert!(Instant::now() < deadline, "{}", says(endpoint, &["member", "list"]));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What is counted by the leader, asked through others.
async fn locks_and_leases(members: &[Member]) {
    let follower = &members[0];
    let grant = LeaseGrantRequest { ttl: 30, id: 77 };
    let granted: LeaseGrantResponse =
        follower.channel.call("/etcdserverpb.Lease/LeaseGrant", &grant).await.expect("grant");
    assert_eq!((granted.id, granted.ttl), (77, 30));
    let mut kept = follower
        .channel
        .server_stream("/etcdserverpb.Lease/LeaseKeepAlive", &LeaseId { id: 77 })
        .await
        .expect("keep alive");
    let answer: LeaseKeepAliveResponse = kept.next().await.expect("an answer").expect("an answer");
    assert_eq!(answer.ttl, 30);
    let lock = LockRequest { name: "door".into(), lease: 77 };
    let locked: LockResponse = follower.channel.call("/v3lockpb.Lock/Lock", &lock).await.expect("locked");
    assert!(locked.key.starts_with(b"door/"), "{locked:?}");
    let left = LeaseTimeToLiveRequest { id: 77, keys: true };
    let left: LeaseTimeToLiveResponse =
        members[1].channel.call("/etcdserverpb.Lease/LeaseTimeToLive", &left).await.expect("time to live");
    assert_eq!((left.granted_ttl, left.keys.len()), (30, 1));
    let revoked: Result<HeaderOnly, _> =
        members[1].channel.call("/etcdserverpb.Lease/LeaseRevoke", &LeaseId { id: 77 }).await;
    revoked.expect("revoked");
    // One that nobody keeps alive ends, on all members.
    let grant = LeaseGrantRequest { ttl: 2, id: 78 };
    follower
        .channel
        .call::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &grant)
        .await
        .expect("grant");
    let put = PutRequest { key: "short".into(), lease: 78, ..PutRequest::default() };
    follower.channel.call::<PutResponse>("/etcdserverpb.KV/Put", &put).await.expect("put");
    let deadline = Instant::now() + DEADLINE;
    while agreed(members).await.contains_key("short") {
        assert!(Instant::now() < deadline, "the lease does not end");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_missed_too_much_gets_a_copy_and_a_backup_becomes_three_members() {
    let Some(_) = program("etcdctl") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = started(directory.path(), &tasks).await;
    let leads = leader(&members).await;
    let away = (leads + 1) % 3;
    members[away].die();
    for number in 0..44_u8 {
        members[leads].put(format!("big/{}", number % 4), vec![number; 1 << 20]).await;
    }
    let revision = members[leads].content().await.0;
    let compact = CompactionRequest { revision, ..CompactionRequest::default() };
    let compacted = members[leads].channel.call::<HeaderOnly>("/etcdserverpb.KV/Compact", &compact).await;
    compacted.expect("compacted");
    wait_for_a_snapshot(&members[leads]).await;
    members[away].start(&[&flag]).await;
    agreed(&members).await;
    // By its log as well.
    members[away].die();
    members[leads].put("last".to_owned(), vec![3]).await;
    members[away].start(&[&flag]).await;
    let content = agreed(&members).await;
    let backup = directory.path().join("backup").display().to_string();
    says(&members[away].client, &["snapshot", "save", &backup]);
    drop(members);

    let fresh = directory.path().join("fresh");
    std::fs::create_dir(&fresh).expect("directory");
    let (mut members, flag) = self::members(&fresh, &tasks);
    for member in &members {
        let restored = Command::new(crate::crash::server_program())
            .args(["etcd", "snapshot", "restore", &backup, "--name", member.name, "--data-dir", &member.data])
            .args([&flag, &format!("--initial-advertise-peer-urls={}", member.peer)])
            .output()
            .expect("restore");
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    }
    for member in &mut members {
        member.start(&[&flag]).await;
    }
    leader(&members).await;
    assert!(agreed(&members).await == content, "the new cluster has something else");
    members[0].put("more".to_owned(), vec![1]).await;
    assert_eq!(agreed(&members).await.len(), content.len() + 1);
    tasks.drain(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_are_known_to_all_members_and_an_equal_version_is_no_downgrade() {
    let Some(_) = program("etcdctl") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, _) = started(directory.path(), &tasks).await;
    let leads = leader(&members).await;
    let all = endpoints(&members);
    let (first, second) = (all[(leads + 1) % 3].clone(), all[(leads + 2) % 3].clone());
    says(&first, &["user", "add", "root:secret"]);
    says(&second, &["user", "grant-role", "root", "root"]);
    says(&first, &["user", "add", "reader:words"]);
    says(&second, &["role", "add", "readers"]);
    says(&first, &["role", "grant-permission", "readers", "read", "public/", "--prefix=true"]);
    says(&first, &["user", "grant-role", "reader", "readers"]);
    says(&first, &["auth", "enable"]);
    for endpoint in &all {
        says(endpoint, &["--user=root:secret", "put", "public/a", "1"]);
        assert!(says(endpoint, &["--user=reader:words", "get", "public/a"]).contains("public/a"));
        for arguments in [
            &["put", "public/a", "2"][..],
            &["--user=reader:words", "put", "public/a", "2"],
            &["--user=reader:words", "get", "other"],
            &["--user=root:wrong", "get", "public/a"],
        ] {
            assert!(!etcdctl(endpoint, arguments).0, "{endpoint} lets {arguments:?} pass");
        }
    }
    // With another leader too, though tokens lived at the one before.
    members[leads].die();
    let deadline = Instant::now() + DEADLINE;
    while !etcdctl(&first, &["--user=root:secret", "put", "public/b", "1"]).0 {
        assert!(Instant::now() < deadline, "nobody leads");
    }
    assert!(says(&second, &["--user=reader:words", "get", "public/b"]).contains("public/b"));
    says(&second, &["--user=root:secret", "auth", "disable"]);
    says(&first, &["put", "free", "1"]);
    for (action, version, expected) in [
        (0, "3.6.0", Err("etcdserver: invalid downgrade target version")),
        (1, "3.6.0", Err("etcdserver: invalid downgrade target version")),
        (0, "3.5.0", Ok("3.6")),
        (1, "3.5.0", Ok("3.6")),
        (1, "3.5.0", Err("etcdserver: cluster has a downgrade job in progress")),
        (2, "", Ok("3.5")),
        (2, "", Ok("3.6")),
    ] {
        let request = DowngradeRequest { action, version: version.to_owned() };
        let path = "/etcdserverpb.Maintenance/Downgrade";
        let member = &members[(leads + 1) % 3];
        let answer = patiently::<DowngradeResponse>(member, path, &request).await;
        let answer = answer.as_ref().map(|answer| answer.version.as_str()).map_err(String::as_str);
        assert_eq!(answer, expected, "{action} {version}");
    }
    tasks.drain(Duration::from_secs(2)).await;
}

/// Runs a member that is to end by itself; what it said.
fn said(member: &Member, flags: &[&str]) -> String {
    let mut log = tempfile::tempfile().expect("temporary file");
    let mut running = Running(member.spawn_with(flags, log.try_clone().expect("file").into()));
    let deadline = Instant::now() + DEADLINE;
    let ended = loop {
        match running.0.try_wait().expect("wait") {
            Some(ended) => break Some(ended),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut text = String::new();
    log.rewind().and_then(|()| log.read_to_string(&mut text)).expect("read");
    assert!(ended.is_some_and(|ended| !ended.success()), "{ended:?}: {text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_comes_back_empty_is_refused_and_nothing_acknowledged_is_lost() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = started(directory.path(), &tasks).await;
    members[2].die();
    members[0].put("acknowledged".to_owned(), b"by two".to_vec()).await;
    let id = id_of(&members[1]).await;
    let cluster = members[1].status().await.expect("status").header.expect("header").cluster_id;
    assert_ne!(cluster, 0);
    members[0].die();
    members[1].die();
    std::fs::remove_dir_all(&members[1].data).expect("wiped");
    // Nobody is there to be asked, then only one that has missed the write: it waits, and is refused.
    let wiped = members[1].spawn(&[&flag]);
    let mut wiped = Running(wiped);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(wiped.0.try_wait().expect("wait").is_none(), "it does not wait for the others");
    members[2].launch(&[&flag]);
    let deadline = Instant::now() + DEADLINE;
    while wiped.0.try_wait().expect("wait").is_none() {
        assert!(Instant::now() < deadline, "it is not refused");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let text = said(&members[1], &[&flag]);
    assert!(text.contains(&format!("member {id:x} has already been bootstrapped")), "{text}");
    assert!(text.contains("member remove") && text.contains("--initial-cluster-state existing"), "{text}");
    // Neither as one that joins: it may have voted for what it does not remember.
    std::fs::remove_dir_all(&members[1].data).expect("wiped");
    members[0].start(&[&flag]).await;
    leader(&members).await;
    let text = said(&members[1], &[&flag, "--initial-cluster-state=existing"]);
    assert!(text.contains(&format!("member {id:x} has already been bootstrapped")), "{text}");
    assert!(agreed(&members).await.contains_key("acknowledged"));
    // The way out.
    let path = "/etcdserverpb.Cluster/MemberRemove";
    patiently::<MembersResponse>(&members[0], path, &MemberIdRequest { id }).await.expect("removed");
    let request = MemberAddRequest { peer_urls: vec![members[1].peer.clone()], is_learner: false };
    patiently::<MemberAddResponse>(&members[0], "/etcdserverpb.Cluster/MemberAdd", &request)
        .await
        .expect("added");
    members[1].start(&[&flag, "--initial-cluster-state=existing"]).await;
    assert!(agreed(&members).await.contains_key("acknowledged"));
    tasks.drain(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_removed_while_it_was_away_says_so() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = started(directory.path(), &tasks).await;
    let id = id_of(&members[1]).await;
    members[1].die();
    leader(&members).await;
    let path = "/etcdserverpb.Cluster/MemberRemove";
    patiently::<MembersResponse>(&members[0], path, &MemberIdRequest { id }).await.expect("removed");
    let text = said(&members[1], &[&flag]);
    assert!(text.contains("the member has been permanently removed from the cluster"), "{text}");
    std::fs::remove_dir_all(&members[1].data).expect("wiped");
    let text = said(&members[1], &[&flag]);
    assert!(text.contains("the member has been permanently removed from the cluster"), "{text}");
    tasks.drain(Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_from_another_cluster_or_for_another_member_are_refused() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (members, _) = started(directory.path(), &tasks).await;
    let header = members[0].status().await.expect("status").header.expect("header");
    let right = Hello { cluster_id: header.cluster_id, from: id_of(&members[1]).await, to: header.member_id };
    let config = RemoteConfig { endpoints: vec![members[0].peer.clone()], tls: None };
    let channel = Channel::new(&config, &tasks).expect("channel");
    let cases = [
        (right.clone(), true),
        (Hello { cluster_id: 1, ..right.clone() }, false),
        (Hello { to: 1, ..right.clone() }, false),
        (Hello::default(), false),
    ];
    for (hello, welcome) in cases {
        let path = "/etcdserverpb.Cluster/MemberList";
        let answer = channel.relay(&hello, path, None, Default::default(), DEADLINE).await;
        let refused = answer.err().map(|error| error.status.message.into_owned());
        let mismatch = refused.as_deref() == Some("etcdserver: cluster ID mismatch");
        assert_eq!(mismatch, !welcome, "{hello:?}: {refused:?}");
    }
    tasks.drain(Duration::from_secs(2)).await;
}

/// Five writes are acknowledged, the process is killed, and a bit of the last record flips.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_in_the_last_record_is_not_cut_off_as_torn() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let mut member = Member::new("one", directory.path(), None, &tasks);
    member.start(&[]).await;
    for number in 0..5 {
        member.put(format!("key-{number}"), b"value".to_vec()).await;
    }
    member.die();
    let path = Path::new(&member.data).join("log-0000000000000001");
    let mut bytes = std::fs::read(&path).expect("read");
    let last = bytes.iter().rposition(|byte| *byte != 0).expect("records");
    bytes[last - 2] ^= 0x10;
    std::fs::write(&path, &bytes).expect("write");
    let text = said(&member, &[]);
    assert!(text.contains("log-0000000000000001 is damaged at offset"), "{text}");
    assert!(text.contains("restore a backup"), "{text}");
    assert_eq!(std::fs::read(&path).expect("read"), bytes, "what is refused is left alone");
    // The bit flips back.
    bytes[last - 2] ^= 0x10;
    std::fs::write(&path, &bytes).expect("write");
    member.start(&[]).await;
    assert_eq!(member.content().await.1.len(), 5);
    tasks.drain(Duration::from_secs(2)).await;
}

/// A backup of a store with one key.
async fn backup_of(directory: &Path, name: &'static str, value: &str, tasks: &Tasks) -> String {
    let mut lone = Member::new(name, directory, None, tasks);
    lone.start(&[]).await;
    lone.put("key".to_owned(), value.as_bytes().to_vec()).await;
    let file = directory.join(format!("{name}.db")).display().to_string();
    let saved = Command::new(crate::crash::server_program())
        .args(["etcd", "snapshot", "save", &file, "--endpoints", &lone.client])
        .output()
        .expect("save");
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    file
}

async fn alarms(member: &Member) -> Vec<AlarmMember> {
    let answer: Result<AlarmResponse, _> =
        member.channel.call("/etcdserverpb.Maintenance/Alarm", &AlarmRequest::default()).await;
    answer.map(|answer| answer.alarms).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_whose_data_differs_is_found_and_nothing_more_is_served() {
    const CORRUPT: i32 = 2;
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let right = backup_of(directory.path(), "right", "1", &tasks).await;
    let wrong = backup_of(directory.path(), "wrong", "2", &tasks).await;
    let fresh = directory.path().join("fresh");
    std::fs::create_dir(&fresh).expect("directory");
    let (mut members, flag) = self::members(&fresh, &tasks);
    for (member, file) in members.iter().zip([&right, &right, &wrong]) {
        let restored = Command::new(crate::crash::server_program())
            .args(["etcd", "snapshot", "restore", file, "--name", member.name, "--data-dir", &member.data])
            .args([&flag, &format!("--initial-advertise-peer-urls={}", member.peer)])
            .output()
            .expect("restore");
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    }
    // Those that have the same start with the check; the third finds that it has something else.
    let check = "--feature-gates=InitialCorruptCheck=true";
    members[0].launch(&[&flag, check, "--corrupt-check-time=300ms"]);
    members[1].launch(&[&flag, check, "--corrupt-check-time=300ms"]);
    leader(&members[..2]).await;
    let text = said(&members[2], &[&flag, check]);
    assert!(text.contains("found data inconsistency with peers"), "{text}");
    // Without it, the leader finds it.
    members[2].start(&[&flag, "--corrupt-check-time=300ms"]).await;
    let id = id_of(&members[2]).await;
    let deadline = Instant::now() + DEADLINE;
    while !alarms(&members[0]).await.contains(&AlarmMember { member_id: id, alarm: CORRUPT }) {
        assert!(Instant::now() < deadline, "nobody notices: {:?}", alarms(&members[0]).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    assert_eq!(members[0].refuses("/etcdserverpb.KV/Put", &put).await, "etcdserver: corrupt cluster");
    assert!(members[1].http("/health").contains("ALARM CORRUPT"));
    assert!(members[1].http("/readyz").contains("[-]data_corruption failed: alarm activated: CORRUPT"));
    // The one that differs goes, and somebody says that it has been looked after.
    members[2].die();
    let path = "/etcdserverpb.Cluster/MemberRemove";
    patiently::<MembersResponse>(&members[0], path, &MemberIdRequest { id }).await.expect("removed");
    let disarm = AlarmRequest { action: 2, member_id: id, alarm: CORRUPT };
    let ended: AlarmResponse =
        patiently(&members[0], "/etcdserverpb.Maintenance/Alarm", &disarm).await.expect("disarmed");
    assert_eq!(ended.alarms.len(), 1);
    members[0].put("k".to_owned(), b"v".to_vec()).await;
    assert!(alarms(&members[0]).await.is_empty());
    tasks.drain(Duration::from_secs(2)).await;
}

/// What is wrong with the flags is said before anything is written, and a stranger is told that it is one.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_do_not_belong_together_are_told_so() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let (mut members, flag) = members(directory.path(), &tasks);
    let said = |member: &Member, flags: &[&str]| {
        let mut child = member.spawn_with(flags, std::process::Stdio::piped());
        let deadline = Instant::now() + DEADLINE;
        while child.try_wait().expect("wait").is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // One that has not ended by now is ended, and what it said is shown.
        let _ = child.kill();
        let output = child.wait_with_output().expect("output");
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let twice = format!("--initial-cluster=one={0},two={0}", members[0].peer);
    let text = said(&members[0], &[&twice]);
    assert!(text.contains("has a URL twice; every member needs one of its own"), "{text}");
    assert!(!Path::new(&members[0].data).exists(), "something was written");
    members[0].launch(&[&flag]);
    let text = said(&members[1], &[&flag, "--initial-cluster-token=another"]);
    assert!(text.contains("cluster ID mismatch") && text.contains("--initial-cluster-token"), "{text}");
    // With the right one all are let in: nothing that was wrong has stayed.
    start_all(&mut members, &[&flag]).await;
    leader(&members).await;
    tasks.drain(Duration::from_secs(2)).await;
}
