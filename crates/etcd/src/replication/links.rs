//! The ways to the other members: one stream to each, made again when it breaks. What cannot be sent is lost; raft says it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lifecycle::{Stop, Tasks};
use tokio::sync::{Notify, mpsc};

use crate::counters::Counter;
use crate::raft::{Id, Message};
use crate::replication::member::Peering;
use crate::replication::{Hello, TALK};
use crate::v3::frame;
use crate::v3::messages::Member;
use crate::v3::status::{self, Status, code};

/// Messages that wait for one member.
const QUEUE: usize = 512;
/// The pauses between attempts to connect.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(1000),
];

/// What is counted of the traffic with one member.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Whether there is a way to it.
    pub connected: AtomicBool,
    /// Bytes sent to it.
    pub sent: Counter,
    /// Bytes that came from it.
    pub received: Counter,
    /// How often a message was lost for want of a way.
    pub lost: AtomicU64,
}

struct Link {
    urls: Vec<String>,
    queue: mpsc::Sender<Message>,
    traffic: Arc<Traffic>,
    stop: Stop,
}

/// All ways.
pub struct Links {
    peering: Peering,
    hello: Hello,
    links: BTreeMap<Id, Link>,
    traffic: BTreeMap<Id, Arc<Traffic>>,
    tasks: Tasks,
    /// Told when another member says that this one has been removed.
    pub removed: Arc<Notify>,
}

impl Links {
    /// None yet.
    pub fn new(peering: Peering, cluster_id: u64, id: Id, tasks: &Tasks) -> Self {
        Self {
            peering,
            hello: Hello { cluster_id, from: id, to: 0 },
            links: BTreeMap::new(),
            traffic: BTreeMap::new(),
            tasks: tasks.clone(),
            removed: Arc::new(Notify::new()),
        }
    }

    /// Keeps ways to these members and no others.
    pub fn keep(&mut self, members: &[Member]) {
        self.links.retain(|id, link| {
            let stays = members.iter().any(|member| member.id == *id && member.peer_urls == link.urls);
            if !stays {
                link.stop.request();
            }
            stays
        });
        self.traffic.retain(|id, _| members.iter().any(|member| member.id == *id));
        for member in members {
            if member.id != self.hello.from && !self.links.contains_key(&member.id) {
                self.open(member);
            }
        }
    }

    fn open(&mut self, member: &Member) {
        let (queue, messages) = mpsc::channel(QUEUE);
        let stop = self.tasks.stop().child();
        let traffic = self.traffic.entry(member.id).or_default().clone();
        let link =
            Link { urls: member.peer_urls.clone(), queue, traffic: traffic.clone(), stop: stop.clone() };
        self.links.insert(member.id, link);
        let hello = Hello { to: member.id, ..self.hello.clone() };
        let talk = Talk {
            peering: self.peering.clone(),
            urls: member.peer_urls.clone(),
            hello,
            traffic,
            removed: self.removed.clone(),
        };
        self.tasks.spawn("etcd/link", |_| async move { talk.run(messages, stop).await });
    }

    /// What is counted, by member.
    pub fn traffic(&self) -> BTreeMap<Id, Arc<Traffic>> {
        self.traffic.clone()
    }

    /// Whether a message to a member would not be lost at once.
    pub fn has_room(&self, to: Id) -> bool {
        self.links
            .get(&to)
            .is_some_and(|link| link.traffic.connected.load(Ordering::Relaxed) && link.queue.capacity() > 0)
    }

    /// Sends a message; `false` if it is lost.
    pub fn send(&self, message: Message) -> bool {
        let Some(link) = self.links.get(&message.to) else { return false };
        let sent = link.queue.try_send(message).is_ok();
        if !sent {
            link.traffic.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}

struct Talk {
    peering: Peering,
    urls: Vec<String>,
    hello: Hello,
    traffic: Arc<Traffic>,
    removed: Arc<Notify>,
}

impl Talk {
    async fn run(&self, mut messages: mpsc::Receiver<Message>, stop: Stop) {
        let mut failures = 0;
        while !stop.is_requested() {
            let tasks = Tasks::under(&stop);
            let ended = stop.or(self.once(&mut messages, &tasks, &mut failures)).await;
            self.traffic.connected.store(false, Ordering::Relaxed);
            tasks.stop().request();
            tasks.drain(Duration::from_millis(100)).await;
            let Some(status) = ended else { return };
            if status == status::MEMBER_REMOVED {
                self.removed.notify_one();
            }
            if failures == 1 {
                let to = format_args!("{:x}", self.hello.to).to_string();
                if status == status::CLUSTER_MISMATCH {
                    tracing::warn!(%to, "a member is of another cluster: the data of one of the two does not belong here");
                } else {
                    tracing::info!(%to, error = %status, "no way to a member");
                }
            }
            while messages.try_recv().is_ok() {}
            stop.or(tokio::time::sleep(PAUSES[failures.min(PAUSES.len()) - 1])).await;
        }
    }

    async fn once(
        &self,
        messages: &mut mpsc::Receiver<Message>,
        tasks: &Tasks,
        failures: &mut usize,
    ) -> Status {
        *failures += 1;
        let unavailable = |text: String| Status { code: code::UNAVAILABLE, message: text.into() };
        let channel = match self.peering.channel(&self.urls, tasks) {
            Ok(channel) => channel,
            Err(error) => return unavailable(error.to_string()),
        };
        let mut call = match channel.stream(TALK, &self.hello).await {
            Ok(call) => call,
            Err(status) => return status,
        };
        *failures = 1;
        while messages.try_recv().is_ok() {}
        self.traffic.connected.store(true, Ordering::Relaxed);
        loop {
            // Every arm may be dropped: a message is taken whole, and an answer is the end.
            let message = tokio::select! {
                message = messages.recv() => message,
                ended = call.answers.next::<Hello>() => {
                    let trailers = call.answers.trailers().await.ok().flatten();
                    let told = trailers.as_ref().and_then(crate::v3::frame::status_in);
                    let ended = ended.err();
                    return told.or(ended).unwrap_or_else(|| unavailable("the call has ended".to_owned()));
                }
            };
            let Some(message) = message else { return status::STOPPED };
            let bytes = frame::framed(&message);
            self.traffic.sent.add(bytes.len() as u64);
            if let Err(status) = frame::send(&mut call.requests, bytes).await {
                return status;
            }
        }
    }
}
