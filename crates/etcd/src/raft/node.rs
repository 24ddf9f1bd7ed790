//! One member's part in the agreement: a state machine that is told things and says what to do.
//!
//! The driver keeps [`Node::vote`] on the disk before it sends what [`Node::take_messages`] gives; performs [`Effects`] before it tells anything else;
//! and tells with [`Node::note_log`] how far the log goes and how much of it is durable. Time is counted in ticks, one of which is the
//! interval between two signs of life of a leader.

use std::collections::{BTreeMap, VecDeque};

use super::terms::Terms;
use super::{Electorate, Id, Index, Kind, Message, Term};

/// The most messages with records on their way to one member.
const IN_FLIGHT: usize = 32;

/// What a member is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It takes over what the leader says.
    Follower,
    /// It asks whether an election could be won.
    Canvasser,
    /// It asks for votes.
    Candidate,
    /// It leads.
    Leader,
}

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

/// What the leader knows of another member.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Its log is the leader's up to here, durably.
    pub matched: Index,
    /// What to send next.
    next: Index,
    /// Whether its log is known to agree before `next`; until then one message at a time is sent.
    agrees: bool,
    /// A question is on its way.
    asked: bool,
    /// The last records of messages on their way.
    in_flight: VecDeque<Index>,
    /// Whether it was heard of since the last look.
    active: bool,
    /// The last round that it answered.
    round: u64,
    round_sent: u64,
    commit_sent: Index,
    /// A sign of life is due.
    due: bool,
}

/// What to send to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Records from here on, `up_to` at most; none if `up_to` is before it.
    pub from: Index,
    /// The last that may be sent.
    pub up_to: Index,
}

/// One member.
#[derive(Clone, Debug)]
pub struct Node {
    id: Id,
    vote: Vote,
    role: Role,
    leader: Id,
    log: Terms,
    durable: Index,
    commit: Index,
    members: Electorate,
    /// It was a voter and knows that it is none any more.
    left: bool,
    /// Up to here the log is known to be the leader's.
    verified: Index,
    /// What the leader was told of that.
    told: Index,
    /// Ticks since the leader was heard, or since a leader looked whether it is heard.
    elapsed: u32,
    timeout: u32,
    election: u32,
    votes: BTreeMap<Id, bool>,
    peers: BTreeMap<Id, Progress>,
    /// The first record of the leader's own term.
    begun: Index,
    round: u64,
    /// Questions what is committed: answered when a majority has answered the round.
    reads: VecDeque<(u64, Index, u64)>,
    /// Who is to lead next, and for how many ticks more that is tried.
    heir: Option<(Id, u32)>,
    random: u64,
    out: Vec<Message>,
}

impl Node {
    /// A member that has just been started: with what was kept on the disk, and the log as it is there.
    pub fn new(id: Id, vote: Vote, log: Terms, commit: Index, members: Electorate, election: u32) -> Self {
        let durable = log.last();
        let mut node = Self {
            id,
            vote,
            role: Role::Follower,
            leader: 0,
            log,
            durable,
            commit,
            members,
            left: false,
            verified: 0,
            told: 0,
            elapsed: 0,
            timeout: 0,
            election: election.max(2),
            votes: BTreeMap::new(),
            peers: BTreeMap::new(),
            begun: 0,
            round: 0,
            reads: VecDeque::new(),
            heir: None,
            random: id ^ vote.term.rotate_left(17) ^ 0x9e37_79b9_7f4a_7c15,
            out: Vec::new(),
        };
        node.verified = node.commit;
        node.draw_timeout();
        node
    }

    pub fn id(&self) -> Id {
        self.id
    }

    pub fn vote(&self) -> Vote {
        self.vote
    }

    pub fn term(&self) -> Term {
        self.vote.term
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Who leads; 0 if nobody is known to.
    pub fn leader(&self) -> Id {
        self.leader
    }

    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }

    pub fn log(&self) -> &Terms {
        &self.log
    }

    /// Up to here the log is committed.
    pub fn commit(&self) -> Index {
        self.commit
    }

    pub fn members(&self) -> &Electorate {
        &self.members
    }

    /// What a leader knows of the others.
    pub fn progress(&self) -> impl Iterator<Item = (Id, &Progress)> {
        self.peers.iter().map(|(id, progress)| (*id, progress))
    }

    /// Whether another member has been heard of lately.
    pub fn is_active(&self, id: Id) -> bool {
        id == self.id || self.peers.get(&id).is_some_and(|progress| progress.active)
    }

    /// Whether a change of leaders is on its way.
    pub fn heir(&self) -> Option<Id> {
        self.heir.map(|(id, _)| id)
    }

    /// Whether a leader has committed a record of its own term: before that it does not know what is committed.
    pub fn is_settled(&self) -> bool {
        self.is_leader() && self.begun != 0 && self.commit >= self.begun
    }

    /// The messages to send.
    pub fn take_messages(&mut self) -> Vec<Message> {
        std::mem::take(&mut self.out)
    }

    fn draw_timeout(&mut self) {
        // xorshift: it only has to differ between members.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.timeout = self.election + (self.random % u64::from(self.election)) as u32;
    }

    fn send(&mut self, kind: Kind, to: Id, rest: Message) {
        let term = if rest.term == 0 { self.vote.term } else { rest.term };
        self.out.push(Message { kind: kind.into(), from: self.id, to, term, ..rest });
    }

    fn follow(&mut self, term: Term, leader: Id) {
        let newer = term > self.vote.term;
        if newer {
            self.vote = Vote { term, given_to: 0 };
        }
        if newer || self.role != Role::Follower || self.leader != leader {
            self.verified = self.commit;
            self.told = 0;
        }
        self.role = Role::Follower;
        self.leader = leader;
        self.elapsed = 0;
        self.votes.clear();
        self.peers.clear();
        self.reads.clear();
        self.heir = None;
        self.begun = 0;
        self.draw_timeout();
    }

    /// Time goes on.
    pub fn tick(&mut self) {
        self.elapsed += 1;
        if self.role != Role::Leader {
            if self.elapsed >= self.timeout {
                self.elapsed = 0;
                self.draw_timeout();
                if self.members.has_voter(self.id) {
                    self.stand(false, false);
                } else {
                    self.leader = 0;
                }
            }
            return;
        }
        for progress in self.peers.values_mut() {
            progress.due = true;
            progress.asked = false;
        }
        if let Some((id, left)) = self.heir {
            self.heir = left.checked_sub(1).filter(|left| *left > 0).map(|left| (id, left));
        }
        if self.elapsed >= self.election {
            self.elapsed = 0;
            let heard = self.members.voters.iter().filter(|id| self.is_active(**id)).count();
            if heard < self.members.majority() {
                // Nobody listens: somebody else may lead by now.
                return self.follow(self.vote.term, 0);
            }
            for progress in self.peers.values_mut() {
                progress.active = false;
            }
        }
    }

    /// Stands for election: first asks whether it could be won, so that who was cut off does not disturb the others.
    fn stand(&mut self, for_real: bool, forced: bool) {
        self.leader = 0;
        self.votes = BTreeMap::from([(self.id, true)]);
        if self.members.is_only(self.id) {
            self.vote = Vote { term: self.vote.term + 1, given_to: self.id };
            return self.lead();
        }
        let (kind, term) = if for_real {
            self.role = Role::Candidate;
            self.vote = Vote { term: self.vote.term + 1, given_to: self.id };
            (Kind::Vote, self.vote.term)
        } else {
            self.role = Role::Canvasser;
            (Kind::Canvass, self.vote.term + 1)
        };
        let (index, index_term) = (self.log.last(), self.log.last_term());
        for to in self.members.voters.clone() {
            if to != self.id {
                let rest = Message { term, index, index_term, forced, ..Message::default() };
                self.send(kind, to, rest);
            }
        }
    }

    /// Leads at once: for the only voter, that nobody has to be asked.
    pub fn stand_now(&mut self) {
        if self.members.has_voter(self.id) {
            self.stand(false, false);
        }
    }

    fn lead(&mut self) {
        self.role = Role::Leader;
        self.leader = self.id;
        self.elapsed = 0;
        self.begun = 0;
        self.heir = None;
        self.votes.clear();
        self.reads.clear();
        self.peers.clear();
        self.meet();
    }

    /// Keeps what is known of others to those who are members.
    fn meet(&mut self) {
        let next = self.log.last() + 1;
        let others: Vec<Id> = self.members.all().filter(|id| *id != self.id).collect();
        self.peers.retain(|id, _| others.contains(id));
        for id in others {
            let fresh = || Progress { next, active: true, due: true, ..Progress::default() };
            self.peers.entry(id).or_insert_with(fresh);
        }
    }

    /// The members are others now.
    pub fn set_members(&mut self, members: Electorate) {
        if members == self.members {
            return;
        }
        self.members = members;
        if self.is_leader() {
            self.meet();
            self.advance();
        }
    }

    /// Whether this member was taken out, by [`super::Membership::has_left`].
    pub fn note_left(&mut self, left: bool) {
        self.left = left;
    }

    /// The leader has added the record that begins its term.
    pub fn begin_term(&mut self, index: Index) {
        self.log.append(self.vote.term, index.saturating_sub(self.log.last()));
        self.begun = index;
        self.advance();
    }

    /// How far the log goes, for who leads, and how much of it is durable.
    pub fn note_log(&mut self, last: Index, durable: Index) {
        if self.is_leader() && self.begun != 0 {
            self.log.append(self.vote.term, last.saturating_sub(self.log.last()));
        }
        self.durable = durable.min(self.log.last());
        if self.is_leader() {
            return self.advance();
        }
        let agreed = self.verified.min(self.durable);
        if self.leader != 0 && agreed > self.told {
            self.told = agreed;
            self.send(Kind::AppendReply, self.leader, Message { index: agreed, ..Message::default() });
        }
    }

    /// The log had more records, of the term that was its last, when this member lost its office.
    pub fn adopt(&mut self, last: Index) {
        let term = self.log.last_term();
        self.log.append(term, last.saturating_sub(self.log.last()));
    }

    fn matched(&self, id: Id) -> Index {
        if id == self.id { self.durable } else { self.peers.get(&id).map_or(0, |progress| progress.matched) }
    }

    /// Commits what a majority has. Only a record of the own term proves that those before it cannot be lost.
    fn advance(&mut self) {
        if !self.is_leader() || self.begun == 0 {
            return;
        }
        let reached = self.members.reached(|id| self.matched(id)).min(self.log.last());
        if reached > self.commit && reached >= self.begun {
            self.commit = reached;
        }
    }

    /// Asks what is committed now; [`Node::take_reads`] answers with the number given.
    pub fn read(&mut self, number: u64) {
        self.round += 1;
        self.reads.push_back((self.round, self.commit, number));
    }

    /// The questions that are answered: the number, and how far the log was committed.
    pub fn take_reads(&mut self) -> Vec<(u64, Index)> {
        if !self.is_settled() {
            return Vec::new();
        }
        let own = self.round;
        let answered = self.members.reached(|id| {
            if id == self.id { own } else { self.peers.get(&id).map_or(0, |progress| progress.round) }
        });
        let mut ready = Vec::new();
        while let Some((round, commit, number)) = self.reads.front().copied() {
            if round > answered {
                break;
            }
            self.reads.pop_front();
            // A question from before the first commit is answered by what was committed then.
            ready.push((number, commit.max(self.begun)));
        }
        ready
    }

    /// Lets another member lead. Returns whether it can.
    pub fn bequeath(&mut self, to: Id) -> bool {
        if !self.is_leader() || !self.members.has_voter(to) || to == self.id {
            return false;
        }
        self.heir = Some((to, self.election));
        self.urge();
        true
    }

    /// Tells the heir to stand once it has everything.
    fn urge(&mut self) {
        if let Some((to, _)) = self.heir
            && self.matched(to) == self.log.last()
        {
            self.send(Kind::Stand, to, Message::default());
        }
    }

    /// What to send to a member now, if anything.
    pub fn wanted(&self, to: Id) -> Option<Wanted> {
        let progress = self.peers.get(&to).filter(|_| self.is_leader() && self.begun != 0)?;
        // One that decides alone sends nothing that it could lose.
        let end = if self.members.is_only(self.id) { self.durable } else { self.log.last() };
        let from = progress.next;
        let has_records = from <= end;
        let may = if progress.agrees { progress.in_flight.len() < IN_FLIGHT } else { !progress.asked };
        if has_records && may {
            return Some(Wanted { from, up_to: self.log.end_of_term(from).min(end) });
        }
        let news = progress.due
            || progress.round_sent < self.round && !self.reads.is_empty()
            || progress.commit_sent < self.commit && progress.matched > progress.commit_sent;
        news.then(|| Wanted { from, up_to: from - 1 })
    }

    /// The message with so many records from a place that was [`Node::wanted`]; the driver adds them.
    pub fn append_to(&mut self, to: Id, from: Index, count: u64) -> Option<Message> {
        let index = from - 1;
        let index_term = self.log.term(index);
        let records_term = if count == 0 { 0 } else { self.log.term(from)? };
        let (term, commit, round) = (self.vote.term, self.commit, self.round);
        let progress = self.peers.get_mut(&to)?;
        progress.due = false;
        progress.round_sent = round;
        progress.commit_sent = commit;
        let Some(index_term) = index_term else {
            progress.asked = true;
            return Some(self.snapshot_for(to));
        };
        if count > 0 {
            progress.next = from + count;
            if progress.agrees {
                progress.in_flight.push_back(from + count - 1);
            }
        }
        progress.asked = !progress.agrees;
        let kind = Kind::Append.into();
        let head = Message { kind, from: self.id, to, term, index, index_term, ..Message::default() };
        Some(Message { records_term, count, commit, round, ..head })
    }

    /// Says that a member has to get a snapshot.
    pub fn snapshot_for(&mut self, to: Id) -> Message {
        let mut index = 0;
        if let Some(progress) = self.peers.get_mut(&to) {
            index = progress.next;
            progress.asked = true;
            progress.due = false;
            progress.agrees = false;
            progress.in_flight.clear();
        }
        let kind = Kind::NeedsSnapshot.into();
        Message { kind, from: self.id, to, term: self.vote.term, index, ..Message::default() }
    }

    fn hears_leader(&self) -> bool {
        self.is_leader() || self.leader != 0 && self.elapsed < self.election
    }

    /// A message has come.
    pub fn receive(&mut self, message: &Message) -> Effects {
        let kind = message.kind();
        if message.term > self.vote.term {
            match kind {
                // They are about a term that may never come.
                Kind::Canvass => {}
                Kind::CanvassReply if !message.refused => {}
                // Loyal to a leader that is there: who was cut off must not unseat it.
                Kind::Vote if !message.forced && self.hears_leader() => return Effects::default(),
                Kind::Append | Kind::NeedsSnapshot => self.follow(message.term, message.from),
                _ => self.follow(message.term, 0),
            }
        } else if message.term < self.vote.term {
            let refused = Message { refused: true, index: self.log.last(), ..Message::default() };
            match kind {
                // It does not know yet that its time is over.
                Kind::Append | Kind::NeedsSnapshot => self.send(Kind::AppendReply, message.from, refused),
                Kind::Canvass => self.send(Kind::CanvassReply, message.from, refused),
                _ => {}
            }
            return Effects::default();
        }
        match kind {
            Kind::Canvass => self.canvassed(message),
            Kind::Vote => self.asked_for_vote(message),
            Kind::CanvassReply | Kind::VoteReply => self.counted(message),
            Kind::Append => return self.append(message),
            Kind::AppendReply => self.answered(message),
            Kind::Stand if self.members.has_voter(self.id) && !self.is_leader() => self.stand(true, true),
            Kind::NeedsSnapshot => {
                self.heard(message.from);
                if message.index <= self.commit {
                    // It has it already: the leader does not know yet.
                    let rest = Message { index: self.commit, refused: true, ..Message::default() };
                    self.send(Kind::AppendReply, message.from, rest);
                    return Effects::default();
                }
                return Effects { needs_snapshot: true, ..Effects::default() };
            }
            Kind::Stand | Kind::None => {}
        }
        Effects::default()
    }

    /// Whether who wants a vote lacks what may be committed.
    ///
    /// One that has left looks only at what it knows to be committed, its leaving included. What its log has beyond that counts for nothing, since
    /// it can no longer help to commit it; but who does not know yet that it has left may need its vote, and would be refused for ever. Whoever is
    /// elected so has the change itself, and any majority of before, less the one that left, has somebody in common with any majority of now.
    fn is_behind(&self, message: &Message) -> bool {
        let known = match self.log.term(self.commit) {
            Some(term) if self.left => (term, self.commit),
            _ => (self.log.last_term(), self.log.last()),
        };
        (message.index_term, message.index) < known
    }

    fn canvassed(&mut self, message: &Message) {
        let refused = self.is_behind(message) || self.hears_leader() || message.term <= self.vote.term;
        let term = if refused { self.vote.term } else { message.term };
        self.send(Kind::CanvassReply, message.from, Message { term, refused, ..Message::default() });
    }

    fn asked_for_vote(&mut self, message: &Message) {
        let free = self.vote.given_to == message.from || self.vote.given_to == 0 && self.leader == 0;
        let refused = !free || self.is_behind(message);
        if !refused {
            self.vote.given_to = message.from;
            self.elapsed = 0;
        }
        self.send(Kind::VoteReply, message.from, Message { refused, ..Message::default() });
    }

    fn counted(&mut self, message: &Message) {
        let (expected, for_real) = match message.kind() {
            Kind::CanvassReply => (Role::Canvasser, false),
            _ => (Role::Candidate, true),
        };
        let right_term = message.refused || for_real || message.term == self.vote.term + 1;
        if self.role != expected || !self.members.has_voter(message.from) || !right_term {
            return;
        }
        self.votes.insert(message.from, !message.refused);
        let granted = self.votes.iter().filter(|(id, yes)| **yes && self.members.has_voter(**id)).count();
        let denied = self.votes.values().filter(|yes| !**yes).count();
        if granted >= self.members.majority() {
            if for_real { self.lead() } else { self.stand(true, false) }
        } else if denied >= self.members.majority() {
            self.follow(self.vote.term, 0);
        }
    }

    fn heard(&mut self, leader: Id) {
        if self.role != Role::Follower || self.leader != leader {
            self.follow(self.vote.term, leader);
        }
        self.elapsed = 0;
    }

    /// Records from the leader of this term.
    fn append(&mut self, message: &Message) -> Effects {
        if self.is_leader() {
            return Effects::default();
        }
        self.heard(message.from);
        let before = message.index;
        // What is committed agrees, however long ago it was.
        let agrees = before <= self.commit || self.log.term(before) == Some(message.index_term);
        if !agrees {
            let index = self.log.last_up_to(before.saturating_sub(1), message.index_term).max(self.commit);
            let round = message.round;
            let refused = Message { index, round, refused: true, ..Message::default() };
            self.send(Kind::AppendReply, message.from, refused);
            return Effects::default();
        }
        let mut effects = Effects::default();
        let end = before + message.count;
        let differs =
            |index: &Index| *index > self.commit && self.log.term(*index) != Some(message.records_term);
        if let Some(first) = (before + 1..=end).find(differs) {
            if first <= self.log.last() {
                effects.truncate = Some(first - 1);
                self.log.truncate(first - 1);
                self.durable = self.durable.min(first - 1);
                self.verified = self.verified.min(first - 1);
                self.told = self.told.min(first - 1);
            }
            let skip = self.log.last() - before;
            effects.take = Some(skip);
            self.log.append(message.records_term, message.count - skip);
        }
        self.verified = self.verified.max(end);
        self.commit = self.commit.max(message.commit.min(self.verified));
        let index = self.verified.min(self.durable);
        self.told = index;
        self.send(
            Kind::AppendReply,
            message.from,
            Message { index, round: message.round, ..Message::default() },
        );
        effects
    }

    /// What a member says to records.
    fn answered(&mut self, message: &Message) {
        let Some(progress) = self.peers.get_mut(&message.from).filter(|_| self.role == Role::Leader) else {
            return;
        };
        progress.active = true;
        progress.round = progress.round.max(message.round);
        progress.asked = false;
        if message.refused {
            progress.agrees = false;
            progress.in_flight.clear();
            progress.next = (message.index + 1).max(progress.matched + 1).min(self.log.last() + 1);
            progress.due = true;
            return;
        }
        progress.agrees = true;
        progress.matched = progress.matched.max(message.index);
        progress.next = progress.next.max(progress.matched + 1);
        while progress.in_flight.front().is_some_and(|last| *last <= message.index) {
            progress.in_flight.pop_front();
        }
        self.advance();
        self.urge();
    }
}
