//! Several nodes, the library's agreement in each, on a network that loses, repeats and reorders, with machines that crash and forget what was not durable. After every step it is
//! checked that no two lead in one term, that nobody commits anything else than the others at the same place, that every leader has all that
//! was committed, and that reads see it. At the end everything is mended, and then the members must agree and go on.

use std::collections::{BTreeMap, BTreeSet};

use super::node::{Node, Vote};
use super::terms::Terms;
use super::{Electorate, Id, Membership, Message};

#[derive(Clone, Debug, PartialEq)]
enum Payload {
    Begin,
    Data(u64),
    Members(Electorate),
}

type Entry = (u64, Payload);

struct Machine {
    node: Option<Node>,
    log: Vec<Entry>,
    durable: usize,
    vote: Vote,
    /// What is known after a crash: some commit of before.
    commit_kept: u64,
    commit_seen: u64,
    reads: BTreeMap<u64, usize>,
}

struct World {
    random: u64,
    machines: BTreeMap<Id, Machine>,
    network: Vec<(Message, Vec<Entry>)>,
    leaders: BTreeMap<u64, Id>,
    committed: Vec<Entry>,
    cut_off: BTreeSet<Id>,
    number: u64,
    started: Electorate,
}

fn electorate(voters: &[Id]) -> Electorate {
    Electorate { voters: voters.to_vec(), learners: Vec::new() }
}

fn membership(log: &[Entry], initial: &Electorate) -> Membership {
    let mut found = Membership { index: 0, current: Some(initial.clone()), previous: None };
    for (at, (_, payload)) in log.iter().enumerate() {
        if let Payload::Members(members) = payload {
            let previous = found.current.take();
            found = Membership { index: at as u64 + 1, current: Some(members.clone()), previous };
        }
    }
    found
}

impl World {
    fn new(seed: u64, voters: &[Id]) -> Self {
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            machines: BTreeMap::new(),
            network: Vec::new(),
            leaders: BTreeMap::new(),
            committed: Vec::new(),
            cut_off: BTreeSet::new(),
            number: 0,
            started: electorate(voters),
        };
        for id in 1..=6 {
            let machine = Machine {
                node: None,
                log: Vec::new(),
                durable: 0,
                vote: Vote::default(),
                commit_kept: 0,
                commit_seen: 0,
                reads: BTreeMap::new(),
            };
            world.machines.insert(id, machine);
            world.start(id);
        }
        world
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn start(&mut self, id: Id) {
        let initial = self.started.clone();
        let machine = self.machines.get_mut(&id).expect("known");
        let mut terms = Terms::of(2, 0);
        for (term, _) in &machine.log {
            terms.append(*term, 1);
        }
        let commit = machine.commit_kept.min(machine.log.len() as u64);
        let members = membership(&machine.log, &initial).at(commit);
        machine.node = Some(Node::new(id, machine.vote, terms, commit, members, 5));
        machine.commit_seen = commit;
    }

    /// The machine loses what was not durable.
    fn crash(&mut self, id: Id) {
        let kept = self.machines[&id].commit_seen;
        let kept = self.below(kept + 1);
        let machine = self.machines.get_mut(&id).expect("known");
        machine.node = None;
        machine.reads.clear();
        machine.log.truncate(machine.durable);
        machine.commit_kept = machine.commit_kept.max(kept).min(machine.durable as u64);
    }

    /// What a driver does after everything that a node was told.
    fn settle(&mut self, id: Id) {
        let initial = self.started.clone();
        let machine = self.machines.get_mut(&id).expect("known");
        let Some(node) = machine.node.as_mut() else { return };
        loop {
            let known = membership(&machine.log, &initial);
            let members = known.at(node.commit());
            if members != *node.members() {
                // Who acts on a change must not forget that it was committed: those who are gone cannot be asked any more.
                machine.commit_kept = node.commit();
                machine.durable = machine.durable.max(node.commit() as usize);
            }
            node.set_members(members.clone(), known.index);
            let stays = *node.members() != members;
            if node.is_leader() && node.log().last() > machine.log.len() as u64 {
                machine.log.push((node.term(), Payload::Begin));
                node.begin_term(machine.log.len() as u64);
                let had = self.leaders.insert(node.term(), id);
                assert!(had.is_none_or(|other| other == id), "two leaders in term {}", node.term());
                assert!(machine.log.starts_with(&self.committed), "a leader lacks what was committed");
            }
            node.note_log(machine.log.len() as u64, machine.durable as u64);
            let members = membership(&machine.log, &initial).at(node.commit());
            if members == *node.members() || stays {
                break;
            }
        }
        if !node.is_leader() {
            // What was proposed to nobody.
            machine.log.truncate(node.log().last() as usize);
            machine.durable = machine.durable.min(machine.log.len());
        }
        machine.vote = node.vote();
        assert_eq!(node.log().last(), machine.log.len() as u64);
        let commit = node.commit();
        assert!(commit <= machine.log.len() as u64 && commit >= machine.commit_seen);
        machine.commit_seen = commit;
        for at in 0..commit as usize {
            match self.committed.get(at) {
                Some(known) => assert_eq!(known, &machine.log[at], "{id} commits something else at {at}"),
                None => self.committed.push(machine.log[at].clone()),
            }
        }
        for (number, index) in node.take_reads() {
            let known = machine.reads.remove(&number).expect("asked");
            assert!(index >= known as u64, "a read misses what was committed when it was asked");
        }
        for message in node.take_messages() {
            let from = message.index as usize;
            let records = match message.terms.len() {
                0 => Vec::new(),
                count => machine.log[from..from + count].to_vec(),
            };
            let terms: Vec<u64> = records.iter().map(|record| record.0).collect();
            assert_eq!(terms, message.terms);
            self.network.push((message, records));
        }
    }

    fn deliver(&mut self, message: Message, records: &[Entry]) {
        if self.cut_off.contains(&message.to) != self.cut_off.contains(&message.from) {
            return;
        }
        let copy = self.machines[&message.from].log.clone();
        let machine = self.machines.get_mut(&message.to).expect("known");
        let Some(node) = machine.node.as_mut() else { return };
        let effects = node.receive(&message);
        if let Some(after) = effects.truncate {
            machine.log.truncate(after as usize);
            machine.durable = machine.durable.min(after as usize);
        }
        if let Some(skip) = effects.take {
            machine.log.extend_from_slice(&records[skip as usize..]);
        }
        if effects.needs_snapshot {
            // What is committed there, durably.
            let end = self.machines[&message.from].commit_seen;
            let machine = self.machines.get_mut(&message.to).expect("known");
            if end > machine.commit_seen {
                machine.log = copy[..end as usize].to_vec();
                machine.durable = machine.log.len();
                machine.commit_kept = end;
                machine.vote = machine.node.as_ref().expect("up").vote();
                self.start(message.to);
            }
        }
        self.settle(message.to);
    }

    fn step(&mut self) {
        let id = self.below(6) + 1;
        match self.below(100) {
            0..50 if !self.network.is_empty() => {
                let at = self.below(self.network.len() as u64) as usize;
                let (message, records) = match self.below(20) {
                    0 => self.network[at].clone(),
                    _ => self.network.swap_remove(at),
                };
                if self.below(15) > 0 {
                    self.deliver(message, &records);
                }
            }
            0..72 => {
                if let Some(node) = self.machines.get_mut(&id).and_then(|machine| machine.node.as_mut()) {
                    node.tick();
                }
                self.settle(id);
            }
            72..86 => {
                let machine = self.machines.get_mut(&id).expect("known");
                if machine.node.is_some() {
                    let more = machine.log.len() - machine.durable;
                    let more = self.below(more as u64 + 1) as usize;
                    self.machines.get_mut(&id).expect("known").durable += more;
                }
                self.settle(id);
            }
            86..92 => self.propose(id),
            92 => {
                if self.machines[&id].node.is_some() {
                    self.crash(id);
                } else {
                    self.start(id);
                }
            }
            93..95 => self.start_one_that_is_down(),
            95 => {
                self.cut_off = (1..=6).filter(|_| self.below(3) == 0).collect();
            }
            96 => {
                self.cut_off.clear();
                // A snapshot has taken the place of what is committed.
                if let Some(node) = self.machines.get_mut(&id).and_then(|machine| machine.node.as_mut()) {
                    node.note_first(node.commit());
                }
            }
            97 => self.change_members(id),
            98 => {
                let to = self.below(6) + 1;
                if let Some(node) = self.machines.get_mut(&id).and_then(|machine| machine.node.as_mut()) {
                    node.bequeath(to);
                }
                self.settle(id);
            }
            _ => {
                self.number += 1;
                let (number, known) = (self.number, self.committed.len());
                let machine = self.machines.get_mut(&id).expect("known");
                if let Some(node) = machine.node.as_mut().filter(|node| node.is_leader()) {
                    node.read(number);
                    machine.reads.insert(number, known);
                }
                self.settle(id);
            }
        }
        if self.network.len() > 400 {
            self.network.drain(..200);
        }
    }

    fn start_one_that_is_down(&mut self) {
        if let Some(id) = (1..=6).find(|id| self.machines[id].node.is_none()) {
            self.start(id);
        }
    }

    fn propose(&mut self, id: Id) {
        self.number += 1;
        let number = self.number;
        let machine = self.machines.get_mut(&id).expect("known");
        // While another one is being made leader nothing is taken.
        if let Some(node) = machine.node.as_ref().filter(|node| node.is_leader() && node.heir().is_none()) {
            machine.log.push((node.term(), Payload::Data(number)));
        }
        self.settle(id);
    }

    fn change_members(&mut self, id: Id) {
        let whom = self.below(6) + 1;
        let initial = self.started.clone();
        let machine = self.machines.get_mut(&id).expect("known");
        let Some(node) = machine.node.as_ref().filter(|node| node.is_settled() && node.heir().is_none())
        else {
            return;
        };
        let now = membership(&machine.log, &initial);
        if node.commit() < now.index {
            return;
        }
        let mut members = now.current.unwrap_or_default();
        // One that was taken out leaves further changes to others.
        if !members.has_voter(id) {
            return;
        }
        if members.learners.contains(&whom) && self.random.is_multiple_of(2) {
            members.learners.retain(|learner| *learner != whom);
            members.voters.push(whom);
            members.voters.sort_unstable();
        } else if members.learners.contains(&whom) {
            members.learners.retain(|learner| *learner != whom);
        } else if members.has_voter(whom) {
            // A leader does not remove itself: it lets another lead, and that one does.
            if members.voters.len() == 1 || whom == id {
                return;
            }
            members.voters.retain(|voter| *voter != whom);
        } else if self.random.is_multiple_of(3) {
            members.learners.push(whom);
        } else {
            members.voters.push(whom);
            members.voters.sort_unstable();
        }
        machine.log.push((node.term(), Payload::Members(members)));
        self.settle(id);
    }

    /// Mends everything; then there must be a leader soon, and what it is told must be committed everywhere.
    fn heal(&mut self) {
        self.cut_off.clear();
        for id in 1..=6 {
            if self.machines[&id].node.is_none() {
                self.start(id);
            }
        }
        let mut proposed = None;
        for round in 0..3000 {
            for id in 1..=6 {
                if round % 3 == 0
                    && let Some(node) = self.machines.get_mut(&id).and_then(|machine| machine.node.as_mut())
                {
                    node.tick();
                }
                let machine = self.machines.get_mut(&id).expect("known");
                machine.durable = machine.log.len();
                self.settle(id);
            }
            for (message, records) in std::mem::take(&mut self.network) {
                self.deliver(message, &records);
            }
            match proposed {
                None if round > 200 => {
                    let leads = |id: &Id| self.machines[id].node.as_ref().is_some_and(Node::is_settled);
                    if let Some(id) = (1..=6).find(leads) {
                        self.propose(id);
                        proposed = Some(self.number);
                    }
                }
                Some(number) => {
                    let entry = |entry: &Entry| entry.1 == Payload::Data(number);
                    let found = self.committed.iter().any(entry);
                    let voters =
                        membership(&self.committed, &self.started).current.unwrap_or_default().voters;
                    let all = |id: &Id| self.machines[id].commit_seen == self.committed.len() as u64;
                    if found && voters.iter().all(all) {
                        return;
                    }
                    if round % 500 == 0 {
                        proposed = None;
                    }
                }
                None => {}
            }
        }
        for (id, machine) in &self.machines {
            let node = machine.node.as_ref().expect("up");
            println!(
                "{id}: leads {} term {} leader {} last {:?} commit {} voters {:?} of {:?}",
                node.is_leader(),
                node.term(),
                node.leader(),
                (node.log().last(), node.log().last_term()),
                node.commit(),
                node.members().voters,
                membership(&machine.log, &self.started),
            );
        }
        panic!("no agreement after everything was mended: {:?}", membership(&self.committed, &self.started));
    }
}

fn run(seed: u64, steps: usize) -> usize {
    let voters: &[Id] = match seed % 3 {
        0 => &[1],
        1 => &[1, 2, 3],
        _ => &[1, 2, 3, 4, 5],
    };
    let mut world = World::new(seed, voters);
    for _ in 0..steps {
        world.step();
    }
    world.heal();
    world.committed.len()
}

#[test]
fn nothing_that_was_agreed_on_is_lost_or_changed_whatever_goes_wrong() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, seeds) =
        (number("KELSON_RAFT_FIRST").unwrap_or(0), number("KELSON_RAFT_SEEDS").unwrap_or(150));
    let mut committed = 0;
    for seed in first..first + seeds {
        committed += run(seed, 4000);
    }
    assert!(committed as u64 > seeds * 20, "hardly anything was agreed on: {committed}");
}
