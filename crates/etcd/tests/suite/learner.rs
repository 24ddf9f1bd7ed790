//! A learner beside the deciding member, both as programs: it follows, comes back after its own death and the other's, gets a new copy when it
//! has missed too much, and takes over.

#![allow(clippy::disallowed_methods, reason = "waits for programs outside of this process")]

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd::remote::{Channel, RemoteConfig};
use etcd::v3::messages::*;
use lifecycle::Tasks;

use crate::cluster::{Certificates, certificates};
use crate::crash::server_program;
use crate::server::{Running, free_port};

/// How long anything may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// One of the servers.
pub struct Member {
    pub name: &'static str,
    pub client: String,
    pub peer: String,
    pub data: String,
    pub flags: Vec<String>,
    pub channel: Channel,
    pub running: Option<Running>,
}

impl Member {
    pub fn new(name: &'static str, directory: &Path, tls: Option<&Certificates>, tasks: &Tasks) -> Self {
        let client = format!("http://127.0.0.1:{}", free_port());
        let scheme = if tls.is_some() { "https" } else { "http" };
        let config = RemoteConfig { endpoints: vec![client.clone()], tls: None };
        let mut flags = Vec::new();
        if let Some(files) = tls {
            flags.push(format!("--peer-cert-file={}", files.cert.display()));
            flags.push(format!("--peer-key-file={}", files.key.display()));
            flags.push(format!("--peer-trusted-ca-file={}", files.ca.display()));
            flags.push("--peer-client-cert-auth".to_owned());
        }
        Self {
            name,
            peer: format!("{scheme}://127.0.0.1:{}", free_port()),
            data: directory.join(name).display().to_string(),
            flags,
            channel: Channel::new(&config, tasks).expect("channel"),
            running: None,
            client,
        }
    }

    pub fn spawn(&self, more: &[&str]) -> Child {
        let log = match std::env::var("KELSON_TEST_LOGS") {
            Ok(directory) => log_in(&directory, self.name),
            Err(_) => Stdio::null(),
        };
        self.spawn_with(more, log)
    }

    pub fn spawn_with(&self, more: &[&str], log: Stdio) -> Child {
        Command::new(server_program())
            .args(["etcd", "--name", self.name, "--data-dir", &self.data])
            .args(["--listen-client-urls", &self.client, "--listen-peer-urls", &self.peer])
            .args(&self.flags)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start the server")
    }

    /// Starts it, and waits until it answers.
    pub async fn start(&mut self, more: &[&str]) {
        self.launch(more);
        self.answers().await;
    }

    /// Starts it.
    pub fn launch(&mut self, more: &[&str]) {
        self.running = Some(Running(self.spawn(more)));
    }

    /// Waits until it answers.
    pub async fn answers(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        while self.status().await.is_none() {
            assert!(Instant::now() < deadline, "{} does not answer", self.name);
            let ended = self.running.as_mut().and_then(|running| running.0.try_wait().expect("wait"));
            assert!(ended.is_none(), "{} has ended: {ended:?}", self.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// `kill -9`.
    pub fn die(&mut self) {
        self.running = None;
    }

    pub async fn status(&self) -> Option<StatusResponse> {
        self.channel.call("/etcdserverpb.Maintenance/Status", &Empty {}).await.ok()
    }

    pub async fn put(&self, key: String, value: Vec<u8>) {
        put(&self.channel, key, value).await;
    }

    /// What plain HTTP answers on the client port: the whole of it.
    pub fn http(&self, path: &str) -> String {
        let address = self.client.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("write");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("read");
        answer
    }

    /// Everything, without asking anybody else; and at which revision.
    pub async fn content(&self) -> (i64, Vec<KeyValue>) {
        self.content_if_it_answers().await.expect("an answer")
    }

    pub async fn content_if_it_answers(&self) -> Option<(i64, Vec<KeyValue>)> {
        let request = RangeRequest {
            key: b"\0"[..].into(),
            range_end: b"\0"[..].into(),
            serializable: true,
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.channel.call("/etcdserverpb.KV/Range", &request).await.ok()?;
        Some((answer.header.expect("header").revision, answer.kvs))
    }

    /// Why a call fails.
    pub async fn refuses(&self, path: &'static str, request: &impl prost::Message) -> String {
        let refused = self.channel.call::<Empty>(path, request).await;
        refused.expect_err("refused").status.message.into_owned()
    }
}

/// Where a server's log goes, for who looks for a mistake.
fn log_in(directory: &str, name: &str) -> Stdio {
    let path = Path::new(directory).join(format!("{name}.log"));
    std::fs::File::options().create(true).append(true).open(path).map_or_else(|_| Stdio::null(), Stdio::from)
}

/// Writes until it is acknowledged, whoever dies meanwhile.
pub async fn put(channel: &Channel, key: String, value: Vec<u8>) {
    let request = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
    let deadline = Instant::now() + DEADLINE;
    while channel.call::<PutResponse>("/etcdserverpb.KV/Put", &request).await.is_err() {
        assert!(Instant::now() < deadline, "no writes are taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What to start a learner with.
fn joining(leader: &Member, learner: &Member) -> Vec<String> {
    let members = format!("{}={},{}={}", leader.name, leader.peer, learner.name, learner.peer);
    vec![format!("--initial-cluster={members}"), "--initial-cluster-state=existing".to_owned()]
}

async fn add(leader: &Member, learner: &Member) -> u64 {
    let request = MemberAddRequest { peer_urls: vec![learner.peer.clone()], is_learner: true };
    let added: MemberAddResponse =
        leader.channel.call("/etcdserverpb.Cluster/MemberAdd", &request).await.expect("added");
    let added = added.member.expect("member");
    assert!(added.is_learner && added.name.is_empty(), "{added:?}");
    added.id
}

/// Waits until both have the same.
pub async fn wait_until_equal(leader: &Member, learner: &Member) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        // A learner that gets a new copy is away for a moment.
        let (expected, found) = (leader.content().await, learner.content_if_it_answers().await);
        if Some(&expected) == found.as_ref() {
            return;
        }
        let behind = (found.map(|found| (found.0, found.1.len())), expected.0, expected.1.len());
        assert!(Instant::now() < deadline, "the learner stays behind: {behind:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn strs(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_follows_comes_back_and_takes_over() {
    let directory = tempfile::tempdir().expect("directory");
    let tasks = Tasks::new();
    let mut leader = Member::new("one", directory.path(), None, &tasks);
    let mut learner = Member::new("two", directory.path(), None, &tasks);
    let join = joining(&leader, &learner);
    leader.start(&[]).await;
    assert!(!leader.http("/metrics").contains("_peer"), "there are no peers to tell of");
    let uninvited = learner.spawn(&strs(&join)).wait().expect("wait");
    assert!(!uninvited.success(), "a learner that nobody has added must not start");
    for number in 0..50 {
        leader.put(format!("before/{number:03}"), vec![number; 100]).await;
    }
    let id = add(&leader, &learner).await;
    let why = leader.refuses("/etcdserverpb.Cluster/MemberPromote", &MemberIdRequest { id }).await;
    assert_eq!(why, "etcdserver: can only promote a learner member which is in sync with leader");
    learner.start(&strs(&join)).await;
    wait_until_equal(&leader, &learner).await;
    refusals(&learner).await;
    watch(&leader, &learner).await;
    probes(&leader, &learner);
    let config = RemoteConfig { endpoints: vec![leader.client.clone()], tls: None };
    let writer = Channel::new(&config, &tasks).expect("channel");
    for round in 0..rounds() {
        // Now one and now the other dies while something is being written.
        let writes = async {
            for number in 0..40 {
                put(&writer, format!("round/{round}/{number:03}"), vec![number; 100 * usize::from(number)])
                    .await;
            }
        };
        let deaths = async {
            tokio::time::sleep(Duration::from_millis(7 * (round % 5))).await;
            if round % 2 == 0 {
                learner.die();
                tokio::time::sleep(Duration::from_millis(20)).await;
                learner.start(&[]).await;
            } else {
                leader.die();
                let alone = learner.content().await.1.len();
                assert!(alone > 50, "a learner goes on answering without the other");
                leader.start(&[]).await;
            }
        };
        futures::future::join(writes, deaths).await;
        wait_until_equal(&leader, &learner).await;
    }
    // Now it misses more than the log keeps.
    learner.die();
    for number in 0..44 {
        leader.put(format!("big/{}", number % 4), vec![number; 1 << 20]).await;
    }
    let compact = CompactionRequest { revision: leader.content().await.0, ..CompactionRequest::default() };
    let compacted = leader.channel.call::<HeaderOnly>("/etcdserverpb.KV/Compact", &compact).await;
    compacted.expect("compacted");
    wait_for_a_snapshot(&leader).await;
    learner.start(&[]).await;
    wait_until_equal(&leader, &learner).await;
    leader.put("last".to_owned(), vec![3]).await;
    wait_until_equal(&leader, &learner).await;
    let status = learner.status().await.expect("status");
    assert!(status.is_learner && status.leader != id && status.raft_index >= status.raft_applied_index);

    // The first is lost. The second goes on with everything, and knows nobody else.
    let content = leader.content().await;
    (leader.running, learner.running) = (None, None);
    learner.start(&["--force-new-cluster"]).await;
    assert_eq!(learner.content().await, content);
    learner.put("decided".to_owned(), vec![4]).await;
    learner.die();
    learner.start(&strs(&join)).await;
    let listed: MembersResponse =
        learner.channel.call("/etcdserverpb.Cluster/MemberList", &Empty {}).await.expect("members");
    let members: Vec<(u64, bool)> =
        listed.members.iter().map(|member| (member.id, member.is_learner)).collect();
    assert_eq!(members, [(id, false)]);
    assert_eq!(learner.content().await.1.len(), content.1.len() + 1);
    tasks.drain(Duration::from_secs(2)).await;
}

/// How often one of them dies.
fn rounds() -> u64 {
    std::env::var("KELSON_CRASH_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

/// What monitoring sees of the two.
fn probes(leader: &Member, learner: &Member) {
    assert!(leader.http("/readyz").contains("200 OK"));
    let ready = learner.http("/readyz");
    assert!(ready.contains("503") && ready.contains("[-]non_learner"), "{ready}");
    assert!(learner.http("/livez").contains("200 OK") && learner.http("/health").contains("200 OK"));
    let (leads, learns) = (leader.http("/metrics"), learner.http("/metrics"));
    for metric in ["etcd_network_active_peers{", "etcd_network_peer_sent_bytes_total{To="] {
        assert!(leads.contains(metric) && learns.contains(metric), "{metric} is missing");
    }
    assert!(leads.contains("\netcd_server_is_leader 1\n") && leads.contains("\netcd_server_is_learner 0\n"));
    assert!(
        learns.contains("\netcd_server_is_leader 0\n") && learns.contains("\netcd_server_is_learner 1\n")
    );
    assert!(learns.contains("\netcd_server_has_leader 1\n"));
}

/// Waits until the log that a learner would go on with is gone.
pub async fn wait_for_a_snapshot(leader: &Member) {
    let deadline = Instant::now() + DEADLINE;
    let first_log = Path::new(&leader.data).join("log-0000000000000001");
    while first_log.exists() {
        assert!(Instant::now() < deadline, "no snapshot replaces the log");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn refusals(learner: &Member) {
    let range = RangeRequest { key: "x".into(), ..RangeRequest::default() };
    let put = PutRequest { key: "x".into(), ..PutRequest::default() };
    let grant = LeaseGrantRequest { ttl: 10, ..LeaseGrantRequest::default() };
    let refused = [
        learner.refuses("/etcdserverpb.KV/Range", &range).await,
        learner.refuses("/etcdserverpb.KV/Put", &put).await,
        learner.refuses("/etcdserverpb.Lease/LeaseGrant", &grant).await,
        learner.refuses("/etcdserverpb.Cluster/MemberList", &Empty {}).await,
        learner.refuses("/etcdserverpb.Auth/UserList", &Empty {}).await,
    ];
    for why in refused {
        assert_eq!(why, "etcdserver: rpc not supported for learner");
    }
}

/// A watch on the learner sees what is written elsewhere.
async fn watch(leader: &Member, learner: &Member) {
    let create = WatchCreateRequest { key: "watched".into(), ..WatchCreateRequest::default() };
    let request = WatchRequest { request_union: Some(RequestUnion::Create(create)) };
    let mut call = learner.channel.stream("/etcdserverpb.Watch/Watch", &request).await.expect("watch");
    let created = call.answers.next::<WatchResponse>().await.expect("answer").expect("created");
    assert!(created.created);
    leader.put("watched".to_owned(), b"now".to_vec()).await;
    let seen = tokio::time::timeout(DEADLINE, call.answers.next::<WatchResponse>()).await;
    let seen = seen.expect("in time").expect("answer").expect("open");
    let value = seen.events.first().and_then(|event| event.kv.as_ref()).map(|kv| kv.value.clone());
    assert_eq!(value.as_deref(), Some(&b"now"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_needs_the_right_certificate_and_ends_when_it_is_removed() {
    let directory = tempfile::tempdir().expect("directory");
    let files = certificates(directory.path(), "member");
    let strangers = directory.path().join("strangers");
    std::fs::create_dir(&strangers).expect("directory");
    let strange = certificates(&strangers, "member");
    let tasks = Tasks::new();
    let mut leader = Member::new("one", directory.path(), Some(&files), &tasks);
    let mut learner = Member::new("two", directory.path(), Some(&files), &tasks);
    leader.start(&[]).await;
    leader.put("secret".to_owned(), b"1".to_vec()).await;
    let id = add(&leader, &learner).await;
    let join = joining(&leader, &learner);
    let mut stranger = Member::new("two", &strangers, Some(&strange), &tasks);
    stranger.peer.clone_from(&learner.peer);
    stranger.running = Some(Running(stranger.spawn(&strs(&join))));
    learner.start(&strs(&join)).await;
    wait_until_equal(&leader, &learner).await;
    assert!(stranger.status().await.is_none(), "a stranger gets the data");
    stranger.die();

    let deadline = Instant::now() + DEADLINE;
    loop {
        let listed: MembersResponse =
            leader.channel.call("/etcdserverpb.Cluster/MemberList", &Empty {}).await.expect("members");
        if listed.members.iter().any(|member| member.name == "two") {
            break;
        }
        assert!(Instant::now() < deadline, "the learner does not say who it is");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let moved = vec!["https://127.0.0.1:9".to_owned()];
    let update = MemberUpdateRequest { id, peer_urls: moved.clone() };
    let updated: MembersResponse =
        leader.channel.call("/etcdserverpb.Cluster/MemberUpdate", &update).await.expect("updated");
    let entry = updated.members.into_iter().find(|member| member.id == id).expect("the learner");
    assert_eq!((entry.name.as_str(), &entry.peer_urls, entry.is_learner), ("two", &moved, true));
    let removed = leader
        .channel
        .call::<MembersResponse>("/etcdserverpb.Cluster/MemberRemove", &MemberIdRequest { id })
        .await
        .expect("removed");
    assert_eq!(removed.members.len(), 1);
    let mut running = learner.running.take().expect("running");
    let deadline = Instant::now() + DEADLINE;
    let ended = loop {
        if let Some(ended) = running.0.try_wait().expect("wait") {
            break ended;
        }
        assert!(Instant::now() < deadline, "a removed learner goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(!ended.success());
    tasks.drain(Duration::from_secs(2)).await;
}
