//! How a member stands among the others, for everyone in the process who asks; and calls to the one that leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::Tasks;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::Shared;
use crate::raft::{Id, Index, Message, Term};
use crate::remote::Channel;
use crate::remote::channel::CallError;
use crate::replication::driver::{Command, Report};
use crate::replication::links::Traffic;
use crate::replication::member::{Kept, Peering};
use crate::replication::{Hello, Position, READ_INDEX};
use crate::v3::auth::Caller;
use crate::v3::cluster;
use crate::v3::messages::Member;
use crate::v3::status::{self, Status};

/// The time that things take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Between a leader's signs of life.
    pub heartbeat: Duration,
    /// Without them for so long, another one stands for election.
    pub election: Duration,
}

impl Timing {
    /// The election's time in heartbeats.
    pub fn election_ticks(&self) -> u32 {
        let heartbeat = self.heartbeat.as_millis().max(1);
        u32::try_from(self.election.as_millis() / heartbeat).unwrap_or(u32::MAX).clamp(2, 1000)
    }

    /// How long a request may take before its outcome is unknown, as with etcd.
    pub fn request(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election
    }
}

/// How a member stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Who leads; 0 if nobody is known to.
    pub leader: Id,
    pub term: Term,
    /// Whether it is this one.
    pub leads: bool,
    /// Whether this one has no vote.
    pub learner: bool,
}

/// A member among others, or a lone server that may become one.
pub struct Replica {
    /// What it says about itself.
    pub own: Member,
    /// What its directory said when it was started.
    pub kept: Kept,
    pub peering: Peering,
    pub timing: Timing,
    /// Whether changes of the members that endanger the majority are refused.
    pub strict: bool,
    /// Messages from other members.
    pub inbox: mpsc::Sender<Message>,
    commands: mpsc::UnboundedSender<Command>,
    several: AtomicBool,
    term: AtomicU64,
    standing: watch::Sender<Standing>,
    /// How often another one began to lead.
    changes: AtomicU64,
    traffic: Mutex<BTreeMap<Id, Arc<Traffic>>>,
    leader: Mutex<Option<(Id, Vec<String>, Arc<Channel>)>>,
    tasks: Tasks,
}

/// The other ends of a replica's queues.
pub struct Queues {
    pub inbox: mpsc::Receiver<Message>,
    pub commands: mpsc::UnboundedReceiver<Command>,
}

/// The most messages that wait to be looked at.
const INBOX: usize = 1024;

impl Replica {
    /// A lone server, until [`Replica::begin`].
    pub fn new(
        own: Member,
        kept: Kept,
        peering: Peering,
        timing: Timing,
        strict: bool,
        tasks: &Tasks,
    ) -> (Self, Queues) {
        let (inbox, messages) = mpsc::channel(INBOX);
        let (sender, commands) = mpsc::unbounded_channel();
        let term = cluster::TERM;
        let standing = Standing { leader: own.id, term, leads: true, learner: false };
        let replica = Self {
            own,
            kept,
            peering,
            timing,
            strict,
            inbox,
            commands: sender,
            several: AtomicBool::new(false),
            term: AtomicU64::new(term),
            standing: watch::Sender::new(standing),
            changes: AtomicU64::new(0),
            traffic: Mutex::default(),
            leader: Mutex::default(),
            tasks: tasks.clone(),
        };
        (replica, Queues { inbox: messages, commands })
    }

    /// It is one of several from now on.
    pub fn begin(&self) {
        self.several.store(true, Ordering::Release);
        self.standing.send_replace(Standing::default());
    }

    /// Whether it is one of several.
    pub fn is_one_of_several(&self) -> bool {
        self.several.load(Ordering::Acquire)
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// The newest term known.
    pub fn term(&self) -> Term {
        self.term.load(Ordering::Relaxed)
    }

    /// Notes how it stands.
    pub fn tell(&self, standing: Standing) {
        self.term.store(standing.term, Ordering::Relaxed);
        self.standing.send_if_modified(|before| {
            if before.leader != standing.leader && standing.leader != 0 {
                self.changes.fetch_add(1, Ordering::Relaxed);
            }
            let differs = *before != standing;
            *before = standing;
            differs
        });
    }

    /// Waits until it stands otherwise, or some time has gone.
    pub async fn changed(&self, before: Standing, at_most: Duration) {
        let mut standing = self.standing.subscribe();
        let _ = tokio::time::timeout(at_most, standing.wait_for(|now| *now != before)).await;
    }

    /// Waits until nobody has led for a while.
    pub async fn leaderless(&self) {
        let mut standing = self.standing.subscribe();
        loop {
            let _ = standing.wait_for(|now| now.leader == 0).await;
            let found = standing.wait_for(|now| now.leader != 0);
            if tokio::time::timeout(3 * self.timing.election, found).await.is_err() {
                return;
            }
        }
    }

    /// How often another one began to lead.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// What is counted of the traffic with the others.
    pub fn traffic(&self) -> BTreeMap<Id, Arc<Traffic>> {
        self.traffic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    pub(crate) fn set_traffic(&self, traffic: BTreeMap<Id, Arc<Traffic>>) {
        *self.traffic.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = traffic;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).map_err(|_| status::STOPPED)?;
        answered.await.map_err(|_| status::STOPPED)
    }

    /// Becomes one of several.
    pub async fn wake(&self) -> Result<(), Status> {
        self.ask(Command::Wake).await?
    }

    /// How far the log is committed, asked of a majority; for the leader.
    pub async fn read_index(&self) -> Result<Index, Status> {
        let asked = tokio::time::timeout(self.timing.request(), self.ask(Command::Read)).await;
        asked.map_err(|_| status::TIMEOUT)??
    }

    /// Lets another member lead.
    pub async fn bequeath(&self, to: Id) -> Result<(), Status> {
        let asked =
            tokio::time::timeout(self.timing.request(), self.ask(|answer| Command::Bequeath(to, answer)));
        asked.await.map_err(|_| status::TIMEOUT)??
    }

    /// What the leader knows of the others.
    pub async fn report(&self) -> Result<Report, Status> {
        self.ask(Command::Report).await
    }

    /// A way to the member that leads.
    fn leader_channel(&self, shared: &Shared, leader: Id) -> Result<Arc<Channel>, Status> {
        let member = cluster::member(&shared.read().settings, leader).ok_or(status::NO_LEADER)?;
        let mut kept = self.leader.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((id, urls, channel)) = kept.as_ref()
            && *id == leader
            && *urls == member.peer_urls
        {
            return Ok(channel.clone());
        }
        let channel = self.peering.channel(&member.peer_urls, &self.tasks).map_err(|_| status::NO_LEADER)?;
        let channel = Arc::new(channel);
        *kept = Some((leader, member.peer_urls, channel.clone()));
        Ok(channel)
    }

    /// Asks the leader for what a client wants, or for what a member does. What was done there has been done here too when it answers.
    pub(crate) async fn relay(
        &self,
        shared: &Shared,
        leader: Id,
        caller: &Caller,
        path: &str,
        body: Bytes,
        at_most: Duration,
    ) -> Result<Bytes, CallError> {
        let unsent = |status| CallError { status, unsent: true };
        let channel = self.leader_channel(shared, leader).map_err(unsent)?;
        let user = match caller {
            Caller::User(name) => Some(name.as_str()),
            Caller::Anyone => None,
        };
        let hello = Hello { cluster_id: self.kept.cluster_id, from: self.own.id, to: leader };
        let deadline = Instant::now() + at_most;
        let (answer, index) = channel.relay(&hello, path, user, body, at_most).await?;
        let left = deadline.saturating_duration_since(Instant::now());
        // It is done there, whether it is seen here in time or not.
        let _ = tokio::time::timeout(left, shared.committed_up_to(index)).await;
        Ok(answer)
    }

    /// Waits until what is committed now is seen here.
    pub(crate) async fn current(&self, shared: &Shared) -> Result<(), Status> {
        let deadline = Instant::now() + self.timing.request();
        loop {
            let standing = self.standing();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(status::TIMEOUT);
            }
            let asked = match standing.leader {
                0 => Err(status::NO_LEADER),
                leader if leader == self.own.id => self.read_index().await,
                leader => {
                    let asked =
                        self.relay(shared, leader, &Caller::Anyone, READ_INDEX, Bytes::new(), left).await;
                    let position = asked.map(|bytes| Position::decode(bytes).unwrap_or_default().index);
                    position.map_err(|error| error.status)
                }
            };
            if let Ok(index) = asked {
                let left = deadline.saturating_duration_since(Instant::now());
                let seen = tokio::time::timeout(left, shared.committed_up_to(index)).await;
                return seen.map_err(|_| status::TIMEOUT);
            }
            self.changed(standing, left.min(Duration::from_millis(100))).await;
        }
    }
}
