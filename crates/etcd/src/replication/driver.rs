//! Drives one member: time, messages and the engine's log go into [`Node`], which asks the `raft` library, and what it says is done.
//!
//! One task does all of it, one thing after the other. Transactions run beside it, so a leader's log may have more records than the node was told of; before
//! anything that can end its office is looked at, the engine is put on standby, and the node told how far the log goes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lifecycle::{Stop, Tasks};
use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use crate::engine::Shared;
use crate::mutation::Mutation;
use crate::raft::node::Node;
use crate::raft::terms::Terms;
use crate::raft::{Electorate, Id, Index, Membership, Message};
use crate::replication::links::Links;
use crate::replication::member::{Kept, MemberError};
use crate::replication::records::{self, Records};
use crate::replication::relay::{Replica, Standing};
use crate::store::StoreError;
use crate::v3::cluster::{self, MEMBERSHIP, TERM, TERMS};
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
    pub directory: PathBuf,
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
    node: Node,
    kept: Kept,
    links: Links,
    records: Records,
    reads: BTreeMap<u64, oneshot::Sender<Result<Index, Status>>>,
    next_read: u64,
    bequest: Option<(Id, oneshot::Sender<Result<(), Status>>)>,
    /// The term in which this member took office, as long as it has it.
    office: Option<u64>,
    /// The change of the members by which it goes, if it leads until the others know of it.
    leaving: Option<Index>,
    noted: Instant,
    /// The members' entries as they were looked at last.
    known: Vec<Member>,
    announcing: Arc<AtomicBool>,
}

fn unknown_outcome() -> StoreError {
    StoreError::Unavailable(status::TIMEOUT_LEADER_FAILED.message.into_owned())
}

/// The terms of the engine's log.
fn terms_of(shared: &Shared) -> Terms {
    let state = shared.read();
    let last = state.index;
    let read = state.settings.get(TERMS).and_then(|bytes| Terms::read(bytes, last));
    read.unwrap_or_else(|| Terms::of(TERM, last))
}

impl Driver {
    /// Drives until the stop.
    pub async fn run(mut self, stop: &Stop) -> Result<Ended, MemberError> {
        let mut active = self.kept.take().map(|kept| self.begin(kept));
        let mut ticks = tokio::time::interval(self.replica.timing.heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let shared = self.service.etcd.shared.clone();
        if let Some(active) = &mut active {
            if active.node.members().is_only(active.node.id()) {
                active.node.stand_now();
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
                        && self.messages(active, message).await?
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
            let commit = active.node.commit().min(shared.durable_index());
            active.kept.commit = active.kept.commit.max(commit);
            active.kept.write(&self.directory, true)?;
        }
        Ok(Ended::Stopped)
    }

    /// Lets another member lead before this one ends, so that nobody has to notice its absence first.
    async fn hand_over(&mut self, active: &mut Active) -> Result<(), MemberError> {
        let node = &mut active.node;
        let others = node.progress().filter(|(id, _)| node.members().has_voter(*id) && node.is_active(*id));
        let heir = others.max_by_key(|(_, matched)| *matched).map(|(id, _)| id);
        let Some(heir) = heir.filter(|_| node.is_leader() && active.office.is_some()) else { return Ok(()) };
        let shared = self.service.etcd.shared.clone();
        let last = shared.set_standby(true);
        node.note_log(last, shared.durable_index());
        node.bequeath(heir);
        let deadline = tokio::time::Instant::now() + self.replica.timing.election;
        self.settle(active).await?;
        while active.node.is_leader() {
            // Every arm may be dropped: nothing is taken out of a queue that is not handled.
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => break,
                message = self.inbox.recv() => match message {
                    Some(message) => drop(self.messages(active, message).await?),
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
        let terms = terms_of(shared);
        let commit = shared.committed_index();
        let membership = cluster::membership(&shared.read().settings);
        let members = membership.map_or_else(Electorate::default, |membership| membership.at(commit));
        let election = self.replica.timing.election_ticks();
        let node = Node::new(kept.member_id, kept.vote(), terms, commit, members, election);
        let peering = self.replica.peering.clone();
        let links = Links::new(peering, kept.cluster_id, kept.member_id, &self.tasks);
        self.replica.begin();
        Active {
            node,
            kept,
            links,
            records: Records::default(),
            reads: BTreeMap::new(),
            next_read: 0,
            bequest: None,
            office: None,
            leaving: None,
            noted: Instant::now(),
            known: Vec::new(),
            announcing: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Looks at messages that have come; returns whether a snapshot is needed.
    async fn messages(&mut self, active: &mut Active, first: Message) -> Result<bool, MemberError> {
        let mut next = Some(first);
        for _ in 0..AT_ONCE {
            let Some(message) = next else { break };
            let led = active.node.is_leader();
            if self.message(active, message).await? {
                return Ok(true);
            }
            if active.node.is_leader() != led {
                // The record that begins a term comes before anything else.
                break;
            }
            next = self.inbox.try_recv().ok();
        }
        Ok(false)
    }

    async fn message(&mut self, active: &mut Active, message: Message) -> Result<bool, MemberError> {
        let shared = &self.service.etcd.shared;
        let node = &mut active.node;
        let whole =
            || records::count(&message.records).is_some_and(|count| count == message.terms.len() as u64);
        if message.to != node.id() || message.from == node.id() || message.is_append() && !whole() {
            return Ok(false);
        }
        let may_depose = node.is_leader() && message.may_depose(node.term());
        if may_depose {
            let last = shared.set_standby(true);
            node.note_log(last, shared.durable_index());
        }
        let agreed = node.log().last();
        let mut effects = node.receive(&message);
        if !node.is_leader() && shared.read().index > agreed {
            // What came to the log while another one was being made leader was told to nobody.
            effects.truncate = Some(effects.truncate.unwrap_or(agreed).min(agreed));
        }
        if may_depose && !node.is_leader() {
            self.lose_office(active);
        } else if may_depose && active.bequest.is_none() {
            shared.set_standby(false);
        }
        if effects.needs_snapshot {
            return Ok(true);
        }
        if let Some(after) = effects.truncate {
            self.rewind(after).await?;
            active.records.clear();
        }
        if effects.take.is_some() {
            let shared = &self.service.etcd.shared;
            drop(shared.take_over(message.index + 1, &message.records)?);
            self.service.auth.refresh(&shared.read());
        }
        Ok(false)
    }

    /// Cuts the log back. What is cut off was never shown to anybody.
    async fn rewind(&self, after: Index) -> Result<(), MemberError> {
        let shared = self.service.etcd.shared.clone();
        loop {
            if let Some(error) = shared.failure() {
                return Err(error.into());
            }
            if shared.durable_index() >= shared.read().index {
                break;
            }
            // A moment at most: told when the log's thread is done.
            let _ = tokio::time::timeout(Duration::from_millis(10), shared.stirred.notified()).await;
        }
        tracing::info!(after, "records that were not agreed on are dropped");
        let worker = shared.clone();
        let done = tokio::task::spawn_blocking(move || worker.rewind(after, &unknown_outcome())).await;
        done.map_err(|_| MemberError::Store(StoreError::Closed))??;
        self.service.auth.refresh(&shared.read());
        Ok(())
    }

    fn tick(&mut self, active: &mut Active) {
        let shared = &self.service.etcd.shared;
        if active.node.is_leader() {
            active.node.note_log(shared.read().index, shared.durable_index());
        }
        active.node.tick();
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
        let own = active.known.iter().find(|member| member.id == active.node.id());
        let Some(own) = own.filter(|_| active.node.leader() != 0) else { return };
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
                kept.write(&self.directory, true)?;
                shared.attend();
                shared.hold();
                let mut begun = self.begin(kept);
                let alone = Electorate { voters: vec![identity.member_id], learners: Vec::new() };
                begun.node.set_members(alone, 0);
                begun.node.stand_now();
                self.settle(&mut begun).await?;
                *active = Some(begun);
                let _ = answer.send(Ok(()));
            }
            (Command::Read(answer), Some(active)) if active.node.is_leader() => {
                active.next_read += 1;
                active.node.read(active.next_read);
                active.reads.insert(active.next_read, answer);
            }
            (Command::Read(answer), Some(_)) => drop(answer.send(Err(status::NOT_LEADER))),
            (Command::Read(answer), None) => drop(answer.send(Ok(shared.committed_index()))),
            (Command::Bequeath(to, answer), active) => {
                let own = self.service.identity.member_id;
                let leads = active.as_ref().is_none_or(|active| active.node.is_leader());
                match active {
                    _ if !leads => drop(answer.send(Err(status::NOT_LEADER))),
                    _ if to == own => drop(answer.send(Ok(()))),
                    Some(active) if active.node.members().has_voter(to) && active.bequest.is_none() => {
                        // Nothing new until it is decided: the heir must have everything.
                        let last = shared.set_standby(true);
                        active.node.note_log(last, shared.durable_index());
                        active.node.bequeath(to);
                        active.bequest = Some((to, answer));
                    }
                    _ => drop(answer.send(Err(status::BAD_LEADER_TRANSFEREE))),
                }
            }
            (Command::Report(answer), active) => {
                let mut report = Report::default();
                if let Some(active) = active {
                    let node = &active.node;
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

    /// Another one leads, or nobody: nobody here knows what comes of what is not committed. The engine is on standby.
    fn lose_office(&self, active: &mut Active) {
        if active.office.take().is_none() {
            return;
        }
        let shared = &self.service.etcd.shared;
        tracing::info!(term = active.node.term(), leader = %format_args!("{:x}", active.node.leader()), "leads no more");
        shared.abandon(&unknown_outcome());
        active.records.clear();
        for (_, read) in std::mem::take(&mut active.reads) {
            let _ = read.send(Err(status::NOT_LEADER));
        }
    }

    fn take_office(&self, active: &mut Active) -> Result<(), MemberError> {
        let shared = &self.service.etcd.shared;
        let node = &mut active.node;
        let term = node.term();
        // The library has begun the term in its log; it begins in the engine's with this record.
        let terms = node.log().clone();
        let own = node.id();
        let index = shared.take_office(|transaction| {
            let name = Bytes::from_static(TERMS);
            transaction.apply(Mutation::Setting { name, value: Some(terms.encode().into()) });
            if cluster::membership(transaction.settings()).is_none() {
                let alone = Electorate { voters: vec![own], learners: Vec::new() };
                let membership = Membership {
                    index: transaction.next_index(),
                    current: Some(alone.clone()),
                    previous: Some(alone),
                };
                let value = Some(prost::Message::encode_to_vec(&membership).into());
                transaction.apply(Mutation::Setting { name: Bytes::from_static(MEMBERSHIP), value });
            }
        })?;
        node.begin_term(index);
        active.office = Some(term);
        active.records.clear();
        tracing::info!(term, index, "leads");
        Ok(())
    }

    /// Who counts by what is committed. Before it acts on a change, the member notes that it was committed.
    fn follow_membership(&self, active: &mut Active) -> Result<(), MemberError> {
        let shared = &self.service.etcd.shared;
        loop {
            let membership = cluster::membership(&shared.read().settings);
            let Some(membership) = membership else { return Ok(()) };
            let node = &mut active.node;
            // What is not durable here could be forgotten.
            let commit = node.commit().min(shared.durable_index());
            let members = membership.at(commit);
            if members == *node.members() || active.leaving == Some(membership.index) {
                // One that has been removed stays until the others say so: they may need it to learn of it.
                return Ok(());
            }
            tracing::info!(
                voters = members.voters.len(),
                learners = members.learners.len(),
                "the members have changed"
            );
            active.kept.commit = commit;
            active.kept.write(&self.directory, true)?;
            node.set_members(members.clone(), membership.index);
            active.leaving = (members != *node.members()).then_some(membership.index);
            let entries = cluster::members(&shared.read().settings);
            active.links.keep(&entries);
            self.replica.set_traffic(active.links.traffic());
            active.known = entries;
        }
    }

    /// Does what the node says.
    async fn settle(&mut self, active: &mut Active) -> Result<(), MemberError> {
        let shared = self.service.etcd.shared.clone();
        if let Some(error) = shared.failure() {
            // As etcd: the others go on without it.
            return Err(error.into());
        }
        if active.office.is_some_and(|term| !active.node.is_leader() || active.node.term() != term) {
            // By itself: what came to the log meanwhile was told to nobody.
            let last = shared.set_standby(true);
            self.lose_office(active);
            let agreed = active.node.log().last();
            if last > agreed {
                self.rewind(agreed).await?;
            }
        }
        if active.node.is_leader() && active.office.is_none() {
            // The vote for itself must be durable before it acts on it.
            self.keep_vote(active)?;
            self.take_office(active)?;
        }
        let last = shared.read().index;
        active.node.note_log(last, shared.durable_index());
        if active.node.log().last() != last && !active.node.is_leader() {
            // Must not be: better no member than one that believes something else than it has.
            let differ = format!("the log ends at {last}, and not at {}", active.node.log().last());
            return Err(StoreError::Unavailable(differ).into());
        }
        self.follow_membership(active)?;
        self.keep_vote(active)?;
        let commit = active.node.commit();
        shared.commit_to(commit);
        if commit > active.kept.commit && active.noted.elapsed() >= NOTE {
            active.noted = Instant::now();
            active.kept.commit = commit.min(shared.durable_index());
            active.kept.write(&self.directory, false)?;
        }
        for (number, index) in active.node.take_reads() {
            if let Some(read) = active.reads.remove(&number) {
                let _ = read.send(Ok(index));
            }
        }
        self.send(active).await;
        self.end_bequest(active);
        self.tell(active);
        Ok(())
    }

    fn keep_vote(&self, active: &mut Active) -> Result<(), MemberError> {
        let vote = active.node.vote();
        if vote == active.kept.vote() {
            return Ok(());
        }
        (active.kept.term, active.kept.given_to) = (vote.term, vote.given_to);
        active.kept.write(&self.directory, true)
    }

    /// Sends what the node has to say, and the records with it.
    async fn send(&self, active: &mut Active) {
        loop {
            let messages = active.node.take_messages();
            if messages.is_empty() {
                return;
            }
            for message in messages {
                let to = message.to;
                if !self.send_one(active, message).await {
                    active.node.note_unsent(to);
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
                    active.node.note_first(records::first(shared).max(from + 1));
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
        if active.node.leader() == to {
            let _ = answer.send(Ok(()));
        } else if active.node.is_leader() && active.node.heir().is_none() {
            self.service.etcd.shared.set_standby(false);
            let _ = answer.send(Err(status::TIMEOUT));
        } else if active.node.leader() != 0 && !active.node.is_leader() {
            let _ = answer.send(Err(status::BAD_LEADER_TRANSFEREE));
        } else {
            active.bequest = Some((to, answer));
        }
    }

    fn tell(&self, active: &Active) {
        let node = &active.node;
        self.replica.tell(Standing {
            leader: node.leader(),
            term: node.term(),
            leads: active.office.is_some(),
            learner: !node.members().has_voter(node.id()),
        });
    }
}
