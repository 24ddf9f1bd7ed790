//! One member's part in the agreement: the `raft` library's [`RawNode`], told of the engine's log and asked what to do.
//!
//! The library decides who leads and what is committed; it sees the log as terms only. Records go from the engine's log to messages and back beside it
//! ([`crate::replication`]). The driver keeps [`Node::vote`] on the disk before it sends what [`Node::take_messages`] gives; performs [`Effects`] before it tells anything
//! else; writes the record that begins a term when the node has begun to lead; and tells with [`Node::note_log`] how far the log goes and how much of it is durable: what
//! has to wait for the disk is held back here until then. Time is counted in ticks, one of which is the interval between two heartbeats.

use std::collections::VecDeque;

use ::raft::eraftpb::{ConfChangeType, ConfChangeV2, Entry, Message as RaftMessage, MessageType};
use ::raft::{Config, INVALID_ID, RawNode, ReadOnlyOption, SnapshotStatus, StateRole};
use slog::{Discard, Logger, o};

use super::storage::Storage;
use super::terms::Terms;
use super::{Electorate, Id, Index, Message, Term};

/// The most messages with records on their way to one member.
const IN_FLIGHT: usize = 64;
/// What bounds the records of one message: the library counts what it sees of them, about a dozen bytes each.
const MESSAGE: u64 = 1024;

/// What has to be on the disk before anybody hears of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vote {
    /// The newest term known.
    pub term: Term,
    /// Who got the vote in it; 0 is nobody.
    pub given_to: Id,
}

/// What to do with the log because of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Cut off what comes after this record.
    pub truncate: Option<Index>,
    /// Add the message's records but for so many at their beginning.
    pub take: Option<u64>,
    /// The leader's log does not go back far enough: get a snapshot.
    pub needs_snapshot: bool,
}

/// Something that may be said once the log is durable up to a record.
struct Persisting {
    number: u64,
    index: Index,
    messages: Vec<RaftMessage>,
}

/// One member.
pub struct Node {
    id: Id,
    raw: RawNode<Storage>,
    members: Electorate,
    /// Members that a leader among those who go does not act on yet: see [`Node::set_members`].
    leaving: Option<(Electorate, Index)>,
    durable: Index,
    persisting: VecDeque<Persisting>,
    out: Vec<Message>,
    /// Questions what is committed that cannot be asked before a record of the own term is committed.
    unasked: Vec<u64>,
    /// Those that were asked: all that came in the meantime by one question to the others.
    asked: VecDeque<(u64, Vec<u64>)>,
    questions: u64,
    answered: Vec<(u64, Index)>,
    /// Whether the record that begins the term is in the log.
    begun: bool,
    /// What a leader that offers a snapshot was told instead: how far this member has come.
    said: Option<Index>,
    random: u64,
}

impl Node {
    /// A member that has just been started: with what was kept on the disk, and the log as it is there.
    pub fn new(id: Id, vote: Vote, log: Terms, commit: Index, members: Electorate, election: u32) -> Self {
        let durable = log.last();
        let commit = commit.min(durable);
        let election_tick = election.max(2) as usize;
        let config = Config {
            id,
            election_tick,
            heartbeat_tick: 1,
            applied: commit,
            max_size_per_msg: MESSAGE,
            max_inflight_msgs: IN_FLIGHT,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            ..Config::default()
        };
        let storage = Storage::new(log, vote, commit, &members);
        let raw = RawNode::new(&config, storage, &Logger::root(Discard, o!()))
            .expect("the configuration is right and the storage does not fail");
        Self {
            id,
            raw,
            members,
            leaving: None,
            durable,
            persisting: VecDeque::new(),
            out: Vec::new(),
            unasked: Vec::new(),
            asked: VecDeque::new(),
            questions: 0,
            answered: Vec::new(),
            begun: false,
            said: None,
            random: id ^ vote.term.rotate_left(17) ^ 0x9e37_79b9_7f4a_7c15,
        }
    }

    pub fn id(&self) -> Id {
        self.id
    }

    pub fn vote(&self) -> Vote {
        let hard = self.raw.raft.hard_state();
        Vote { term: hard.term, given_to: hard.vote }
    }

    pub fn term(&self) -> Term {
        self.raw.raft.term
    }

    /// Who leads; 0 if nobody is known to.
    pub fn leader(&self) -> Id {
        self.raw.raft.leader_id
    }

    pub fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub fn log(&self) -> &Terms {
        &self.raw.store().log
    }

    /// Up to here the log is committed.
    pub fn commit(&self) -> Index {
        self.raw.raft.raft_log.committed
    }

    pub fn members(&self) -> &Electorate {
        &self.members
    }

    /// What a leader knows of the others: how far their logs are known to be its own, durably.
    pub fn progress(&self) -> impl Iterator<Item = (Id, Index)> {
        let all = self.raw.raft.prs().iter().filter(|(id, _)| **id != self.id);
        all.map(|(id, progress)| (*id, progress.matched))
    }

    /// Whether another member has been heard of lately.
    pub fn is_active(&self, id: Id) -> bool {
        id == self.id || self.raw.raft.prs().get(id).is_some_and(|progress| progress.recent_active)
    }

    /// Whether a change of leaders is on its way.
    pub fn heir(&self) -> Option<Id> {
        self.raw.raft.lead_transferee
    }

    /// Whether a leader has committed a record of its own term: before that it does not know what is committed.
    pub fn is_settled(&self) -> bool {
        self.is_leader() && self.raw.raft.commit_to_current_term()
    }

    /// The messages to send.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.out)
    }

    /// How long to wait for a leader: drawn here instead of in the library, so that a simulation can be repeated.
    fn draw_timeout(&mut self) {
        // xorshift: it only has to differ between members.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let least = self.raw.raft.election_timeout();
        let timeout = least + (self.random % least as u64) as usize;
        self.raw.raft.set_randomized_election_timeout(timeout);
    }

    /// Time goes on.
    pub fn tick(&mut self) {
        if !self.is_leader() && self.durable < self.log().last() {
            // Who cannot say yet what it has cannot stand for election.
            return;
        }
        if self.raw.raft.election_elapsed == 0 {
            self.draw_timeout();
        }
        self.raw.tick();
        self.absorb();
    }

    /// Leads at once: for the only voter, that nobody has to be asked.
    pub fn stand_now(&mut self) {
        if self.members.has_voter(self.id) && self.durable >= self.log().last() {
            // Refused if it leads already.
            let _ = self.raw.campaign();
            self.absorb();
        }
    }

    /// Takes what the library has to say. Returns the first of the records that are new in its log.
    fn absorb(&mut self) -> Option<Index> {
        let mut first = None;
        loop {
            while self.raw.has_ready() {
                self.take_ready(&mut first);
            }
            if !self.is_leader() {
                self.begun = false;
                self.unasked.clear();
                self.asked.clear();
            }
            self.ask();
            self.leave();
            if !self.raw.has_ready() {
                return first;
            }
        }
    }

    fn take_ready(&mut self, first: &mut Option<Index>) {
        let mut ready = self.raw.ready();
        let at_once = ready.take_messages();
        let when_durable = ready.take_persisted_messages();
        for state in ready.take_read_states() {
            let asked =
                self.asked.iter().position(|(question, _)| question.to_le_bytes() == state.request_ctx[..]);
            if let Some((_, numbers)) = asked.and_then(|at| self.asked.remove(at)) {
                self.answered.extend(numbers.into_iter().map(|number| (number, state.index)));
            }
        }
        let mut index = 0;
        for entry in ready.entries() {
            if entry.index <= self.log().last() {
                self.truncate(entry.index - 1);
            }
            self.raw.mut_store().log.append(entry.term, 1);
            first.get_or_insert(entry.index);
            index = entry.index;
        }
        let (number, commit) = (ready.number(), self.commit());
        self.raw.mut_store().commit = commit;
        self.raw.advance_append_async(ready);
        // The driver shows nothing that is not durable here.
        self.raw.advance_apply();
        self.persisting.push_back(Persisting { number, index, messages: when_durable });
        self.send(at_once);
        self.note_persisted();
    }

    /// Forgets the records after one. Who waits to say that it has them does not have to wait any more, and must not say it.
    fn truncate(&mut self, after: Index) {
        self.raw.mut_store().log.truncate(after);
        self.durable = self.durable.min(after);
        for waits in self.persisting.iter_mut().filter(|waits| waits.index > after) {
            waits.index = after;
            let is_void = |message: &RaftMessage| {
                message.get_msg_type() == MessageType::MsgAppendResponse
                    && !message.reject
                    && message.index > after
            };
            waits.messages.retain(|message| !is_void(message));
        }
    }

    /// Tells the library what has become durable, and says what waited for it.
    fn note_persisted(&mut self) {
        while self.persisting.front().is_some_and(|waits| waits.index <= self.durable) {
            if let Some(persisted) = self.persisting.pop_front() {
                self.raw.on_persist_ready(persisted.number);
                self.send(persisted.messages);
            }
        }
    }

    fn send(&mut self, messages: Vec<RaftMessage>) {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                // Who needs one gets it by itself; whether it has got it shows in what it says next.
                self.raw.report_snapshot(message.to, SnapshotStatus::Failure);
            }
            self.out.push(Message::of(message));
        }
    }

    /// The members are others now, by a change that is committed at `index`.
    ///
    /// A leader that is not among them leads until the others know that it was committed: one that does not may need its vote to lead, and would not get it, since
    /// its log ends before the leader's.
    pub fn set_members(&mut self, members: Electorate, index: Index) {
        self.leaving = Some((members, index));
        self.absorb();
    }

    fn leave(&mut self) {
        let Some((members, index)) = self.leaving.take() else { return };
        if members == self.members {
            return;
        }
        if self.is_leader() && !members.has_voter(self.id) {
            let knows = |id: &Id| self.raw.raft.prs().get(*id).is_some_and(|of| of.committed_index >= index);
            if !members.voters.iter().all(knows) {
                self.leaving = Some((members, index));
                return;
            }
            let term = self.term();
            self.raw.raft.become_follower(term, INVALID_ID);
        }
        // Those who come first: the library wants a voter at all times.
        let added = members.voters.iter().filter(|id| !self.members.has_voter(**id));
        let mut changes: Vec<(Id, ConfChangeType)> = added.map(|id| (*id, ConfChangeType::AddNode)).collect();
        let learners = members.learners.iter().filter(|id| !self.members.learners.contains(id));
        changes.extend(learners.map(|id| (*id, ConfChangeType::AddLearnerNode)));
        let gone = self.members.all().filter(|id| !members.has(*id));
        changes.extend(gone.map(|id| (id, ConfChangeType::RemoveNode)));
        for (id, kind) in changes {
            let mut change = ConfChangeV2::default();
            let mut single = ::raft::eraftpb::ConfChangeSingle::default();
            single.set_change_type(kind);
            single.node_id = id;
            change.set_changes(vec![single].into());
            self.raw.apply_conf_change(&change).expect("a change of one member, not the last voter");
        }
        self.members = members;
    }

    /// The leader has added the record that begins its term, as the library has it in its log.
    pub fn begin_term(&mut self, index: Index) {
        self.begun = self.is_leader() && index >= self.log().begin_of_last();
        self.note_log(index, self.durable);
    }

    /// How far the log goes, for who leads, and how much of it is durable.
    pub fn note_log(&mut self, last: Index, durable: Index) {
        let more = last.saturating_sub(self.log().last());
        if self.begun && self.is_leader() && more > 0 {
            let mut proposal = RaftMessage::default();
            proposal.set_msg_type(MessageType::MsgPropose);
            proposal.from = self.id;
            proposal.set_entries(vec![Entry::default(); more as usize].into());
            // Refused while another one is being made leader; nothing is added to the log then, and what was is cut off by the driver.
            let _ = self.raw.raft.step(proposal);
            self.absorb();
        }
        self.durable = durable.min(self.log().last());
        self.note_persisted();
        self.absorb();
    }

    /// Asks what is committed now, with the next news of the log; [`Node::take_reads`] answers with the number given.
    pub fn read(&mut self, number: u64) {
        if self.is_leader() {
            self.unasked.push(number);
        }
    }

    fn ask(&mut self) {
        if self.unasked.is_empty() || !self.is_settled() {
            return;
        }
        self.questions += 1;
        self.asked.push_back((self.questions, std::mem::take(&mut self.unasked)));
        self.raw.read_index(self.questions.to_le_bytes().to_vec());
    }

    /// The questions that are answered: the number, and how far the log was committed.
    pub fn take_reads(&mut self) -> Vec<(u64, Index)> {
        std::mem::take(&mut self.answered)
    }

    /// Lets another member lead. Returns whether it can.
    pub fn bequeath(&mut self, to: Id) -> bool {
        if !self.is_leader() || !self.members.has_voter(to) || to == self.id {
            return false;
        }
        self.raw.transfer_leader(to);
        self.absorb();
        self.heir().is_some() || !self.is_leader()
    }

    /// A message could not be sent.
    pub fn note_unsent(&mut self, to: Id) {
        self.raw.report_unreachable(to);
        self.absorb();
    }

    /// The log does not go back further than this record any more.
    pub fn note_first(&mut self, first: Index) {
        let commit = self.commit();
        let storage = self.raw.mut_store();
        storage.first = storage.first.max(first.min(commit));
    }

    /// A message has come.
    pub fn receive(&mut self, message: &Message) -> Effects {
        let Some(mut raft) = message.to_raft(&self.raw) else { return Effects::default() };
        if raft.get_msg_type() == MessageType::MsgSnapshot && message.snapshot_index > self.commit() {
            let obeys = message.term >= self.term() && !self.is_leader();
            if !obeys || self.commit() == 0 || self.said == Some(self.commit()) {
                return Effects { needs_snapshot: obeys, ..Effects::default() };
            }
            // The leader may not know how far this member has come: it has got a copy meanwhile, and the snapshot that is offered gets newer with every
            // write. It is told once; if its log does not go back that far, it offers one again.
            self.said = Some(self.commit());
        }
        if raft.get_msg_type() == MessageType::MsgTimeoutNow && self.durable < self.log().last() {
            // A leader says this to who has everything. One that has lost its office meanwhile cannot say what it has.
            return Effects::default();
        }
        if raft.get_msg_type() == MessageType::MsgSnapshot {
            // It has that already: said as an answer to records from the beginning.
            raft = RaftMessage { from: raft.from, to: raft.to, term: raft.term, ..RaftMessage::default() };
            raft.set_msg_type(MessageType::MsgAppend);
        }
        let last = self.log().last();
        // Refused: of a member that is none any more, or of none that was asked.
        let _ = self.raw.step(raft);
        let leads = self.is_leader();
        let first = self.absorb();
        if leads || self.is_leader() {
            return Effects::default();
        }
        let Some(first) = first else { return Effects::default() };
        let truncate = (first <= last).then(|| first - 1);
        Effects { truncate, take: Some((first - 1).saturating_sub(message.index)), needs_snapshot: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let numbers = (0..21_i32, 0..5_u64, 0..6_u64, 0..6_u64, 0..9_u64, 0..9_u64);
        let more =
            (0..6_u64, any::<bool>(), 0..9_u64, 0..3_u8, proptest::collection::vec(0..6_u64, 0..4), 0..9_u64);
        (numbers, more).prop_map(|((kind, from, term, log_term, index, commit), more)| {
            let (commit_term, reject, reject_hint, context, terms, snapshot_index) = more;
            let context = match context {
                0 => bytes::Bytes::new(),
                1 => bytes::Bytes::from_static(b"CampaignTransfer"),
                _ => bytes::Bytes::from(1_u64.to_le_bytes().to_vec()),
            };
            Message {
                kind,
                from,
                to: 1,
                term,
                log_term,
                index,
                commit,
                commit_term,
                reject,
                reject_hint,
                context,
                terms,
                snapshot_index,
                ..Message::default()
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// The library stops the process when it is told what cannot be: whatever a member says, it is not told that.
        #[test]
        fn no_message_of_another_member_stops_this_one(
            voters in 1..4_u64,
            messages in proptest::collection::vec((message(), 0..6_usize, any::<bool>()), 0..40),
        ) {
            let mut log = Terms::of(2, 3);
            log.append(3, 2);
            let members = Electorate { voters: (1..=voters).collect(), learners: Vec::new() };
            let mut node = Node::new(1, Vote { term: 3, given_to: 0 }, log, 2, members, 3);
            for (message, ticks, read) in messages {
                for _ in 0..ticks {
                    node.tick();
                }
                node.receive(&message);
                let mut last = node.log().last();
                if node.is_leader() {
                    node.begin_term(last);
                    last += 1;
                    if read {
                        node.read(7);
                    }
                }
                node.note_log(last, last);
                node.take_messages();
            }
        }
    }
}
