//! One member's part in the agreement on the engine's log: what the raft library says, done with the log and the file `member`.
//!
//! Without tasks, clocks and network: [`super::driver`] brings time and messages, and takes those that are to be sent; the simulation does the same with a disk that
//! fails, so what runs there is what runs here. Transactions run beside it, so a leader's log may have more records than the node was told of; before
//! anything that can end its office is looked at, the engine is put on standby, and the node told how far the log goes.

use std::sync::Arc;

use bytes::Bytes;

use crate::engine::Shared;
use crate::mutation::Mutation;
use crate::raft::node::Node;
use crate::raft::terms::Terms;
use crate::raft::{Electorate, Id, Index, Membership, Message};
use crate::replication::member::{Kept, MemberError};
use crate::replication::records;
use crate::store::StoreError;
use crate::v3::cluster::{self, MEMBERSHIP, TERM, TERMS};
use crate::v3::status;

/// One of several members.
pub(crate) struct Participant {
    pub node: Node,
    pub kept: Kept,
    shared: Arc<Shared>,
    /// The term in which this member took office, as long as it has it.
    office: Option<u64>,
    /// The change of the members by which it goes, if it leads until the others know of it.
    leaving: Option<Index>,
    /// Nothing new is taken: another one is being made leader.
    pub bequeaths: bool,
}

/// What has happened, for who drives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The leader's log does not go back far enough.
    pub needs_snapshot: bool,
    /// It leads no more.
    pub lost_office: bool,
    /// The log has other records than before, or another one to tell of them.
    pub log_changed: bool,
    /// There are other members than before.
    pub members_changed: bool,
}

fn unknown_outcome() -> StoreError {
    StoreError::Unavailable(status::TIMEOUT_LEADER_FAILED.message.into_owned())
}

/// The terms of the engine's log, of what is not committed too.
fn terms_of(shared: &Shared) -> Terms {
    let last = shared.last_index();
    let read = shared.future_setting(TERMS).and_then(|bytes| Terms::read(&bytes, last));
    read.unwrap_or_else(|| Terms::of(TERM, last))
}

impl Participant {
    /// As the log and the file say.
    pub fn new(shared: Arc<Shared>, kept: Kept, election_ticks: u32) -> Self {
        let commit = shared.committed_index();
        let membership = cluster::membership(&shared.read().settings);
        let members = membership.map_or_else(Electorate::default, |membership| membership.at(commit));
        let node = Node::new(kept.member_id, kept.vote(), terms_of(&shared), commit, members, election_ticks);
        Self { node, kept, shared, office: None, leaving: None, bequeaths: false }
    }

    /// Whether it leads, and has begun to.
    pub fn is_in_office(&self) -> bool {
        self.office.is_some()
    }

    /// Time goes on.
    pub fn tick(&mut self) {
        if self.node.is_leader() {
            self.node.note_log(self.shared.last_index(), self.shared.durable_index());
        }
        self.node.tick();
    }

    /// Takes nothing new, so that another one can be made leader that has everything.
    pub fn bequeath(&mut self, to: Id) {
        let last = self.shared.set_standby(true);
        self.node.note_log(last, self.shared.durable_index());
        self.node.bequeath(to);
        self.bequeaths = true;
    }

    /// Goes on to lead, since no other one came to it.
    pub fn end_bequest(&mut self) {
        self.bequeaths = false;
        if self.node.is_leader() {
            self.shared.set_standby(false);
        }
    }

    /// A message has come.
    pub fn message(&mut self, message: &Message) -> Result<News, MemberError> {
        let mut news = News::default();
        let shared = self.shared.clone();
        let node = &mut self.node;
        let whole =
            || records::count(&message.records).is_some_and(|count| count == message.terms.len() as u64);
        if message.to != node.id() || message.from == node.id() || message.is_append() && !whole() {
            return Ok(news);
        }
        let may_depose = node.is_leader() && message.may_depose(node.term());
        if may_depose {
            let last = shared.set_standby(true);
            node.note_log(last, shared.durable_index());
        }
        let agreed = node.log().last();
        let mut effects = node.receive(message);
        if !node.is_leader() && shared.last_index() > agreed {
            // What came to the log while another one was being made leader was told to nobody.
            effects.truncate = Some(effects.truncate.unwrap_or(agreed).min(agreed));
        }
        if may_depose && !node.is_leader() {
            self.lose_office(&mut news);
        } else if may_depose && !self.bequeaths {
            shared.set_standby(false);
        }
        if effects.needs_snapshot {
            news.needs_snapshot = true;
            return Ok(news);
        }
        if let Some(after) = effects.truncate {
            self.rewind(after, &mut news)?;
        }
        if effects.take.is_some() {
            drop(shared.take_over(message.index + 1, &message.records)?);
        }
        Ok(news)
    }

    /// Cuts the log back. What is cut off was never applied.
    fn rewind(&self, after: Index, news: &mut News) -> Result<(), MemberError> {
        tracing::info!(after, "records that were not agreed on are dropped");
        news.log_changed = true;
        Ok(self.shared.rewind(after, &unknown_outcome())?)
    }

    /// Another one leads, or nobody: nobody here knows what comes of what is not committed. The engine is on standby.
    fn lose_office(&mut self, news: &mut News) {
        if self.office.take().is_none() {
            return;
        }
        let leader = self.node.leader();
        tracing::info!(term = self.node.term(), leader = %format_args!("{leader:x}"), "leads no more");
        self.shared.abandon(&unknown_outcome());
        (news.lost_office, news.log_changed) = (true, true);
    }

    fn take_office(&mut self) -> Result<(), MemberError> {
        let node = &mut self.node;
        let term = node.term();
        // The library has begun the term in its log; it begins in the engine's with this record.
        let terms = node.log().clone();
        let own = node.id();
        let index = self.shared.take_office(|transaction| {
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
        self.office = Some(term);
        self.bequeaths = false;
        tracing::info!(term, index, "leads");
        Ok(())
    }

    /// Applies what is committed; who counts follows from it. Before anybody hears of a change of the members, this one notes that it was committed:
    /// those who are gone by it could not be asked any more.
    fn apply(&mut self, news: &mut News) -> Result<(), MemberError> {
        let shared = self.shared.clone();
        loop {
            // What is not durable here could be forgotten.
            let commit = self.node.commit().min(shared.durable_index());
            if shared.will_change(MEMBERSHIP, commit) {
                self.kept.commit = commit;
                self.keep(true)?;
            }
            shared.commit_to(commit);
            let membership = cluster::membership(&shared.read().settings);
            let Some(membership) = membership else { return Ok(()) };
            let members = membership.current.clone().unwrap_or_default();
            if members == *self.node.members() || self.leaving == Some(membership.index) {
                // One that has been removed stays until the others say so: they may need it to learn of it.
                return Ok(());
            }
            tracing::info!(
                voters = members.voters.len(),
                learners = members.learners.len(),
                "the members have changed"
            );
            self.node.set_members(members.clone(), membership.index);
            self.leaving = (members != *self.node.members()).then_some(membership.index);
            news.members_changed = true;
        }
    }

    /// Does what the node says, but for sending.
    pub fn settle(&mut self) -> Result<News, MemberError> {
        let mut news = News::default();
        let shared = self.shared.clone();
        if let Some(error) = shared.failure() {
            // As etcd: the others go on without it.
            return Err(error.into());
        }
        if self.office.is_some_and(|term| !self.node.is_leader() || self.node.term() != term) {
            // By itself: what came to the log meanwhile was told to nobody.
            let last = shared.set_standby(true);
            self.lose_office(&mut news);
            let agreed = self.node.log().last();
            if last > agreed {
                self.rewind(agreed, &mut news)?;
            }
        }
        if self.node.is_leader() && self.office.is_none() {
            // The vote for itself must be durable before it acts on it.
            self.keep_vote()?;
            self.take_office()?;
            news.log_changed = true;
        }
        let last = shared.last_index();
        self.node.note_log(last, shared.durable_index());
        if self.node.log().last() != last && !self.node.is_leader() {
            // Must not be: better no member than one that believes something else than it has.
            let differ = format!("the log ends at {last}, and not at {}", self.node.log().last());
            return Err(StoreError::Unavailable(differ).into());
        }
        self.apply(&mut news)?;
        self.keep_vote()?;
        Ok(news)
    }

    fn keep_vote(&mut self) -> Result<(), MemberError> {
        let vote = self.node.vote();
        if vote == self.kept.vote() {
            return Ok(());
        }
        (self.kept.term, self.kept.given_to) = (vote.term, vote.given_to);
        self.keep(true)
    }

    /// Notes how far the log is committed, if that is further than was noted.
    pub fn keep_commit(&mut self, durably: bool) -> Result<(), MemberError> {
        self.kept.commit = self.kept.commit.max(self.node.commit().min(self.shared.durable_index()));
        self.keep(durably)
    }

    fn keep(&self, durably: bool) -> Result<(), MemberError> {
        let Some(journal) = self.shared.journal() else { return Ok(()) };
        self.kept.write_on(&*journal.disk, durably)
    }
}
