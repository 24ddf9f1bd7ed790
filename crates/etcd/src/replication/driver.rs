//! Drives one member: brings time, messages and commands to its [`Participant`], and sends what that has to say. One task does all of it, one thing after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lifecycle::{Stop, Tasks};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::raft::{Electorate, Id, Index, Message};
use crate::replication::links::Links;
use crate::replication::member::{Kept, MemberError};
use crate::replication::participant::{News, Participant};
use crate::replication::records::{self, Records};
use crate::replication::relay::{Replica, Standing};
use crate::v3::cluster::{self, TERM};
use crate::v3::messages::Member;
use crate::v3::service::Service;
use crate::v3::status::{self, Status};

/// How often what is committed is noted in the member's file.
const NOTE: Duration = Duration::from_secs(1);
/// How many messages are looked at before anything is sent.
const AT_ONCE: usize = 64;

/// What others want of the driver.
pub enum Command {
    /// Be one of several from now on.
    Wake(oneshot::Sender<Result<(), Status>>),
    /// What is committed now?
    Read(oneshot::Sender<Result<Index, Status>>),
    /// Let another member lead.
    Bequeath(Id, oneshot::Sender<Result<(), Status>>),
    /// How are the others?
    Report(oneshot::Sender<Report>),
}

/// What a leader knows of the others.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The last record of the leader.
    pub last: Index,
    /// How far each member's log is known to go, and whether it was heard of lately.
    pub members: BTreeMap<Id, (Index, bool)>,
}

/// How driving ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// By the stop.
    Stopped,
    /// The leader's log does not go back far enough.
    NeedsSnapshot,
}

/// What a driver needs.
pub struct Driver {
    pub service: Arc<Service>,
    pub replica: Arc<Replica>,
    /// Which member this is, unless it is a lone server.
    pub kept: Option<Kept>,
    /// The members as others told them, until the log says it.
    pub told: Vec<Member>,
    pub inbox: mpsc::Receiver<Message>,
    pub commands: mpsc::UnboundedReceiver<Command>,
    pub tasks: Tasks,
}

/// One of several members at work.
struct Active {
    member: Participant,
    links: Links,
    records: Records,
    reads: BTreeMap<u64, oneshot::Sender<Result<Index, Status>>>,
    next_read: u64,
    bequest: Option<(Id, oneshot::Sender<Result<(), Status>>)>,
    noted: Instant,
    /// The members' entries as they were looked at last.
    known: Vec<Member>,
    announcing: Arc<AtomicBool>,
}

impl Driver {
    /// Drives until the stop.
    pub async fn run(mut self, stop: &Stop) -> Result<Ended, MemberError> {
        let mut active = self.kept.take().map(|kept| self.begin(kept));
        let mut ticks = tokio::time::interval(self.replica.timing.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = self.service.etcd.shared.clone();
        if let Some(active) = &mut active {
            let node = &mut active.member.node;
            if node.members().is_only(node.id()) {
                node.stand_now();
            }
            self.settle(active).await?;
        }
        loop {
            let removed = active.as_ref().map(|active| active.links.removed.clone());
            // Every arm may be dropped: nothing is taken out of a queue that is not handled.
            tokio::select! {
                () = stop.requested() => break,
                Some(message) = self.inbox.recv() => {
                    if let Some(active) = &mut active
                        && self.messages(active, message)?
                    {
                        return Ok(Ended::NeedsSnapshot);
                    }
                }
                Some(command) = self.commands.recv() => {
                    self.command(&mut active, command).await?;
                    // One question to the others answers all who ask now.
                    for _ in 0..AT_ONCE {
                        let Ok(command) = self.commands.try_recv() else { break };
                        self.command(&mut active, command).await?;
                    }
                }
                () = shared.stirred.notified() => {}
                _ = ticks.tick(), if active.is_some() => {
                    if let Some(active) = &mut active {
                        self.tick(active);
                    }
                }
                () = async {
                    match &removed {
                        Some(removed) => removed.notified().await,
                        None => std::future::pending().await,
                    }
                } => return Err(MemberError::Removed),
            }
            if let Some(active) = &mut active {
                self.settle(active).await?;
            }
        }
        if let Some(active) = &mut active {
            self.hand_over(active).await?;
            active.member.keep_commit(true)?;
        }
        Ok(Ended::Stopped)
    }

    /// Lets another member lead before this one ends, so that nobody has to notice its absence first.
    async fn hand_over(&mut self, active: &mut Active) -> Result<(), MemberError> {
        let node = &active.member.node;
        let others = node.progress().filter(|(id, _)| node.members().has_voter(*id) && node.is_active(*id));
        let heir = others.max_by_key(|(_, matched)| *matched).map(|(id, _)| id);
        let Some(heir) = heir.filter(|_| node.is_leader() && active.member.is_in_office()) else {
            return Ok(());
        };
        let shared = self.service.etcd.shared.clone();
        active.member.bequeath(heir);
        let deadline = tokio::time::Instant::now() + self.replica.timing.election;
        self.settle(active).await?;
        while active.member.node.is_leader() {
            // Every arm may be dropped: nothing is taken out of a queue that is not handled.
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                message = self.inbox.recv() => match message {
                    Some(message) => drop(self.messages(active, message)?),
                    None => break,
                },
                () = shared.stirred.notified() => {}
            }
            self.settle(active).await?;
        }
        Ok(())
    }

    /// Becomes one of several.
    fn begin(&self, kept: Kept) -> Active {
        let shared = &self.service.etcd.shared;
        let (cluster_id, member_id) = (kept.cluster_id, kept.member_id);
        let member = Participant::new(shared.clone(), kept, self.replica.timing.election_ticks());
        let peering = self.replica.peering.clone();
        let links = Links::new(peering, cluster_id, member_id, &self.tasks);
        self.replica.begin();
        Active {
            member,
            links,
            records: Records::default(),
            reads: BTreeMap::new(),
            next_read: 0,
            bequest: None,
            noted: Instant::now(),
            known: Vec::new(),
            announcing: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Looks at messages that have come; returns whether a snapshot is needed.
    fn messages(&mut self, active: &mut Active, first: Message) -> Result<bool, MemberError> {
        let mut next = Some(first);
        for _ in 0..AT_ONCE {
            let Some(message) = next else { break };
            let led = active.member.node.is_leader();
            let news = active.member.message(&message)?;
            self.digest(active, news);
            if news.needs_snapshot {
                return Ok(true);
            }
            if active.member.node.is_leader() != led {
                // The record that begins a term comes before anything else.
                break;
            }
            next = self.inbox.try_recv().ok();
        }
        Ok(false)
    }

    /// Tells whoever has to know what has happened.
    fn digest(&self, active: &mut Active, news: News) {
        if news.log_changed {
            active.records.clear();
        }
        if news.lost_office {
            for (_, read) in std::mem::take(&mut active.reads) {
                let _ = read.send(Err(status::NOT_LEADER));
            }
        }
        if news.members_changed {
            active.known = cluster::members(&self.service.etcd.shared.read().settings);
            active.links.keep(&active.known);
            self.replica.set_traffic(active.links.traffic());
        }
    }

    fn tick(&mut self, active: &mut Active) {
        let shared = &self.service.etcd.shared;
        active.member.tick();
        let members = cluster::members(&shared.read().settings);
        let members = if members.is_empty() { self.told.clone() } else { members };
        if members != active.known {
            active.links.keep(&members);
            self.replica.set_traffic(active.links.traffic());
            active.known = members;
        }
        self.announce(active);
    }

    /// Says what this member is called and where clients reach it, if the others do not know it.
    fn announce(&self, active: &Active) {
        let node = &active.member.node;
        let own = active.known.iter().find(|member| member.id == node.id());
        let Some(own) = own.filter(|_| node.leader() != 0) else { return };
        let said = &self.replica.own;
        let right = own.name == said.name && own.client_urls == said.client_urls;
        if right || active.announcing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (service, announcing) = (self.service.clone(), active.announcing.clone());
        self.tasks.spawn("etcd/announce", |stop| async move {
            let announced = stop.or(service.announce()).await;
            if let Some(Err(status)) = announced {
                tracing::debug!(error = %status, "not announced");
                stop.or(tokio::time::sleep(Duration::from_millis(500))).await;
            }
            announcing.store(false, Ordering::Release);
        });
    }

    async fn command(&mut self, active: &mut Option<Active>, command: Command) -> Result<(), MemberError> {
        let shared = self.service.etcd.shared.clone();
        match (command, active.as_mut()) {
            (Command::Wake(answer), Some(_)) => drop(answer.send(Ok(()))),
            (Command::Wake(answer), None) => {
                let identity = self.service.identity;
                let kept = Kept {
                    cluster_id: identity.cluster_id,
                    member_id: identity.member_id,
                    term: TERM,
                    commit: shared.committed_index(),
                    ..Kept::default()
                };
                if let Some(journal) = shared.journal() {
                    kept.write_on(&*journal.disk, true)?;
                }
                shared.attend();
                shared.hold();
                let mut begun = self.begin(kept);
                let alone = Electorate { voters: vec![identity.member_id], learners: Vec::new() };
                begun.member.node.set_members(alone, 0);
                begun.member.node.stand_now();
                self.settle(&mut begun).await?;
                *active = Some(begun);
                let _ = answer.send(Ok(()));
            }
            (Command::Read(answer), Some(active)) if active.member.node.is_leader() => {
                active.next_read += 1;
                active.member.node.read(active.next_read);
                active.reads.insert(active.next_read, answer);
            }
            (Command::Read(answer), Some(_)) => drop(answer.send(Err(status::NOT_LEADER))),
            (Command::Read(answer), None) => drop(answer.send(Ok(shared.committed_index()))),
            (Command::Bequeath(to, answer), active) => {
                let own = self.service.identity.member_id;
                let leads = active.as_ref().is_none_or(|active| active.member.node.is_leader());
                match active {
                    _ if !leads => drop(answer.send(Err(status::NOT_LEADER))),
                    _ if to == own => drop(answer.send(Ok(()))),
                    Some(active)
                        if active.member.node.members().has_voter(to) && active.bequest.is_none() =>
                    {
                        // Nothing new until it is decided: the heir must have everything.
                        active.member.bequeath(to);
                        active.bequest = Some((to, answer));
                    }
                    _ => drop(answer.send(Err(status::BAD_LEADER_TRANSFEREE))),
                }
            }
            (Command::Report(answer), active) => {
                let mut report = Report::default();
                if let Some(active) = active {
                    let node = &active.member.node;
                    report.last = node.log().last();
                    let others = node.progress();
                    report.members =
                        others.map(|(id, matched)| (id, (matched, node.is_active(id)))).collect();
                    report.members.insert(node.id(), (shared.durable_index(), true));
                }
                let _ = answer.send(report);
            }
        }
        Ok(())
    }

    /// Does what the member has to do, and sends what it has to say.
    async fn settle(&mut self, active: &mut Active) -> Result<(), MemberError> {
        let news = active.member.settle()?;
        self.digest(active, news);
        if active.member.node.commit() > active.member.kept.commit && active.noted.elapsed() >= NOTE {
            active.noted = Instant::now();
            active.member.keep_commit(false)?;
        }
        for (number, index) in active.member.node.take_reads() {
            if let Some(read) = active.reads.remove(&number) {
                let _ = read.send(Ok(index));
            }
        }
        self.send(active).await;
        self.end_bequest(active);
        self.tell(active);
        Ok(())
    }

    /// Sends what the node has to say, and the records with it.
    async fn send(&self, active: &mut Active) {
        loop {
            let messages = active.member.node.take_messages();
            if messages.is_empty() {
                return;
            }
            for message in messages {
                let to = message.to;
                if !self.send_one(active, message).await {
                    active.member.node.note_unsent(to);
                }
            }
        }
    }

    /// Sends a message, in pieces if its records are too long for one; returns whether it was sent.
    async fn send_one(&self, active: &mut Active, mut message: Message) -> bool {
        let shared = &self.service.etcd.shared;
        if !active.links.has_room(message.to) {
            return false;
        }
        while !message.terms.is_empty() {
            let (from, up_to) = (message.index + 1, message.index + message.terms.len() as u64);
            let (records, count) = match active.records.batch(shared, message.to, from, up_to).await {
                Ok(Some((records, count))) if count > 0 => (records, count as usize),
                Ok(Some(_)) => return false,
                Ok(None) => {
                    // Gone: the library finds that what is missing takes a snapshot.
                    active.member.node.note_first(records::first(shared).max(from + 1));
                    return false;
                }
                Err(error) => {
                    tracing::warn!(error = %telemetry::chain(&error), "the log cannot be read");
                    return false;
                }
            };
            let rest = message.terms.split_off(count.min(message.terms.len()));
            let last_term = message.terms.last().copied().unwrap_or(message.log_term);
            let next = Message {
                index: message.index + count as u64,
                log_term: last_term,
                terms: rest,
                ..message.clone()
            };
            if !active.links.send(Message { records, ..message }) {
                return false;
            }
            if next.terms.is_empty() {
                return true;
            }
            message = next;
        }
        active.links.send(message)
    }

    fn end_bequest(&self, active: &mut Active) {
        let Some((to, answer)) = active.bequest.take() else { return };
        let node = &active.member.node;
        if node.leader() == to {
            active.member.end_bequest();
            let _ = answer.send(Ok(()));
        } else if node.is_leader() && node.heir().is_none() {
            active.member.end_bequest();
            let _ = answer.send(Err(status::TIMEOUT));
        } else if node.leader() != 0 && !node.is_leader() {
            active.member.end_bequest();
            let _ = answer.send(Err(status::BAD_LEADER_TRANSFEREE));
        } else {
            active.bequest = Some((to, answer));
        }
    }

    fn tell(&self, active: &Active) {
        let node = &active.member.node;
        self.replica.tell(Standing {
            leader: node.leader(),
            term: node.term(),
            leads: active.member.is_in_office(),
            learner: !node.members().has_voter(node.id()),
        });
    }
}
