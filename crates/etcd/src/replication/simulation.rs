//! Whole members, each a [`Participant`] with its engine, its log and its snapshots on a disk that loses what was not synced and fails in the middle of
//! anything, on a network that loses, repeats and reorders. One thread and one seed: a run repeats itself.
//!
//! What is checked: nobody who has applied as much as another one has anything else; in one life nothing that was applied goes away; no two lead in a term; what
//! was acknowledged is there at the end; and when everything is mended the members agree and go on.
//!
//! `KELSON_MEMBER_SEEDS=100000 cargo test --release -p etcd whole_members` runs more seeds than CI does, `KELSON_MEMBER_FIRST` says where to begin.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use self::faulty::FaultyDisk;
use super::member::{self, Kept, MemberError};
use super::participant::Participant;
use super::records;
use crate::engine::{self, Config, Shared, Ticket, Transaction};
use crate::log::journal::Answer;
use crate::log::snapshot::{Capture, Dump};
use crate::log::writer;
use crate::mutation::{Mutation, State};
use crate::raft::{Id, Message};
use crate::store::{Revision, StoreError};
use crate::v3::messages::Member;

#[allow(dead_code, reason = "the tests outside use the rest of it")]
#[path = "../../tests/suite/faulty.rs"]
mod faulty;

const CLUSTER: u64 = 77;

/// A put whose answer somebody waits for.
struct Asked {
    put: Put,
    answer: oneshot::Receiver<Answer>,
}

#[derive(Clone)]
struct Put {
    index: u64,
    revision: Revision,
    key: Bytes,
    value: Bytes,
}

struct Up {
    shared: Arc<Shared>,
    member: Participant,
    asked: Vec<Asked>,
    applied: u64,
}

struct Machine {
    disk: FaultyDisk,
    up: Option<Up>,
}

struct World {
    random: u64,
    machines: BTreeMap<Id, Machine>,
    network: Vec<Message>,
    cut_off: BTreeSet<Id>,
    leaders: BTreeMap<u64, Id>,
    /// What those have who have applied so many records.
    contents: BTreeMap<u64, u32>,
    acknowledged: Vec<Put>,
    number: u64,
    /// How often what happened, so that a simulation in which nothing does is noticed.
    told: BTreeMap<&'static str, u64>,
}

/// Everything that a state has.
fn content(state: &State) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let mut dump = Dump::new(Capture::of(state));
    while let Some(piece) = dump.next(&state.keys) {
        hasher.update(&piece);
    }
    hasher.finalize()
}

impl World {
    fn new(seed: u64, voters: u64) -> Self {
        let mut world = Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            machines: BTreeMap::new(),
            network: Vec::new(),
            cut_off: BTreeSet::new(),
            leaders: BTreeMap::new(),
            contents: BTreeMap::new(),
            acknowledged: Vec::new(),
            number: 0,
            told: BTreeMap::new(),
        };
        let members: Vec<Member> = (1..=voters).map(|id| Member { id, ..Member::default() }).collect();
        for id in 1..=voters {
            let disk = FaultyDisk::new();
            let mut state = State::default();
            member::settle(&mut state, CLUSTER, &members);
            member::first(CLUSTER, id, state.index).write_on(&disk, true).expect("a new disk");
            member::write_state(&disk, &state).expect("a new disk");
            world.machines.insert(id, Machine { disk, up: None });
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

    fn tell(&mut self, what: &'static str) {
        *self.told.entry(what).or_default() += 1;
    }

    fn start(&mut self, id: Id) {
        let machine = self.machines.get_mut(&id).expect("known");
        let begin = || -> Result<Up, String> {
            let disk = machine.disk.handle();
            let kept = Kept::read_on(&*disk).map_err(|error| error.to_string())?.ok_or("no file `member`")?;
            // Snapshots after some dozens of records.
            let config = Config { agreed: Some(kept.commit), snapshot_log_bytes: 3000, ..Config::default() };
            let shared =
                engine::open_by_hand(disk, config).map_err(|error| telemetry::chain(&error).to_string())?;
            let member = Participant::new(shared.clone(), kept, 5);
            Ok(Up { applied: shared.committed_index(), shared, member, asked: Vec::new() })
        };
        match begin() {
            Ok(up) => machine.up = Some(up),
            // The disk ended before it could be mended.
            Err(error) => assert!(error.contains("injected"), "{id} does not start: {error}"),
        }
        self.settle(id);
    }

    /// The process is gone. With the machine, so is what was not synced, in part.
    fn crash(&mut self, id: Id, with_power: bool) {
        let mut random = self.random;
        let machine = self.machines.get_mut(&id).expect("known");
        machine.up = None;
        machine.disk.heal();
        if !with_power {
            machine.disk.lose(|| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.is_multiple_of(2)
            });
        }
        self.below(2);
        self.tell("crashes");
    }

    /// The member has said that it cannot go on: its disk was made to fail.
    fn ended(&mut self, id: Id, error: &MemberError) {
        let text = telemetry::chain(error).to_string();
        assert!(
            text.contains("injected") || text.contains("cannot be written"),
            "{id} ends without a reason: {text}"
        );
        self.tell("failed disks");
        self.crash(id, false);
    }

    /// What a driver does after everything that a member was told.
    fn settle(&mut self, id: Id) {
        let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) else { return };
        let settled = up.member.settle();
        let news = match settled {
            Ok(news) => news,
            Err(error) => return self.ended(id, &error),
        };
        if up.member.is_in_office() {
            let (term, had) = (up.member.node.term(), self.leaders.get(&up.member.node.term()));
            assert!(had.is_none_or(|other| *other == id), "{had:?} and {id} lead in term {term}");
            self.leaders.insert(term, id);
        }
        if news.lost_office {
            *self.told.entry("lost offices").or_default() += 1;
        }
        let mut messages = Vec::new();
        for mut message in up.member.node.take_messages() {
            if !message.terms.is_empty() {
                let (from, up_to) = (message.index + 1, message.index + message.terms.len() as u64);
                match records::read_now(&up.shared, from, up_to) {
                    Ok(Some((records, count))) if count > 0 => {
                        message.terms.truncate(count as usize);
                        message.records = records;
                    }
                    Ok(Some(_)) => continue,
                    Ok(None) => {
                        let first = records::first(&up.shared).max(from + 1);
                        up.member.node.note_first(first);
                        up.member.node.note_unsent(message.to);
                        continue;
                    }
                    Err(error) => panic!("the log cannot be read: {error}"),
                }
            }
            messages.push(message);
        }
        self.network.extend(messages);
        self.look(id);
    }

    /// What is applied is what the others applied, and what is acknowledged is applied.
    fn look(&mut self, id: Id) {
        let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) else { return };
        let state = up.shared.read();
        assert!(state.index >= up.applied, "{id} has taken back what it had applied");
        assert!(state.index <= up.shared.durable_index(), "{id} has applied what could be forgotten");
        if state.index > up.applied {
            up.applied = state.index;
            let found = content(&state);
            let known = *self.contents.entry(state.index).or_insert(found);
            assert_eq!(known, found, "{id} has something else at {}", state.index);
        }
        drop(state);
        let (mut acknowledged, mut gone) = (Vec::new(), 0);
        let applied = up.applied;
        up.asked.retain_mut(|asked| match asked.answer.try_recv() {
            Ok(Ok(_)) => {
                assert!(asked.put.index <= applied, "acknowledged before it is applied");
                acknowledged.push(asked.put.clone());
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => true,
            Ok(Err(_)) | Err(_) => {
                gone += 1;
                false
            }
        });
        *self.told.entry("acknowledged").or_default() += acknowledged.len() as u64;
        *self.told.entry("unknown").or_default() += gone;
        self.acknowledged.extend(acknowledged);
    }

    fn deliver(&mut self, message: &Message) {
        if self.cut_off.contains(&message.to) != self.cut_off.contains(&message.from) {
            return;
        }
        let machine = self.machines.get_mut(&message.to).expect("known");
        let Some(up) = machine.up.as_mut() else { return };
        match up.member.message(message) {
            Ok(news) => {
                if news.log_changed {
                    self.tell("logs cut back");
                }
                if news.needs_snapshot {
                    return self.copy(message.to);
                }
                self.settle(message.to);
            }
            Err(error) => self.ended(message.to, &error),
        }
    }

    /// Gets everything from another member, as the program does: the store is closed, the copy is written beside it and checked.
    fn copy(&mut self, to: Id) {
        let last = self.machines[&to].up.as_ref().map_or(0, |up| up.shared.last_index());
        let others: Vec<Id> = self
            .machines
            .iter()
            .filter(|(id, machine)| **id != to && machine.up.is_some())
            .map(|(id, _)| *id)
            .collect();
        if others.is_empty() {
            return;
        }
        let from = others[self.below(others.len() as u64) as usize];
        let (mut bytes, index) = {
            let shared = &self.machines[&from].up.as_ref().expect("up").shared;
            let state = shared.read();
            let mut dump = Dump::new(Capture::of(&state));
            let mut bytes = Vec::new();
            while let Some(piece) = dump.next(&state.keys) {
                bytes.extend(piece);
            }
            (bytes, state.index)
        };
        self.machines.get_mut(&to).expect("known").up = None;
        let damaged = self.below(4) == 0;
        if damaged {
            let at = self.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1;
        }
        if index > last {
            let disk = self.machines[&to].disk.handle();
            let before: BTreeSet<String> = disk.list().expect("list").into_iter().collect();
            let taken = disk.create("incoming.tmp").map_err(StoreErrorOrIo::from).and_then(|mut out| {
                out.write_at(0, &bytes)?;
                Ok(member::take_copy(&*disk, &mut *out, "incoming.tmp", index)?)
            });
            match taken {
                Ok(()) => {
                    assert!(!damaged, "a damaged copy is taken");
                    self.tell("copies");
                }
                Err(_) if damaged => {
                    let after: BTreeSet<String> = disk.list().expect("list").into_iter().collect();
                    assert!(after.is_superset(&before), "what was there is gone for a damaged copy");
                }
                Err(StoreErrorOrIo(text)) => {
                    assert!(text.contains("injected"), "no copy: {text}");
                    self.crash(to, false);
                }
            }
        }
        self.start(to);
    }

    fn propose(&mut self, id: Id) {
        self.number += 1;
        let number = self.number;
        let kind = self.below(10);
        let key = Bytes::from(format!("key-{}", self.below(8)));
        let value = Bytes::from(vec![number as u8; if number.is_multiple_of(9) { 700 } else { 20 }]);
        let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) else { return };
        let (name, wanted) = (key.clone(), value.clone());
        let decide = |transaction: &mut Transaction<'_>| -> Result<Revision, StoreError> {
            match kind {
                0 => drop(transaction.delete(&key)),
                1 => {
                    let name = Bytes::from(format!("setting-{}", number % 5));
                    transaction.apply(Mutation::Setting { name, value: Some(value) });
                }
                2 if !transaction.has_lease(number as i64 % 5 + 1) => {
                    transaction.apply(Mutation::GrantLease { id: number as i64 % 5 + 1, ttl: 1000 });
                }
                2 => transaction.revoke_lease(number as i64 % 5 + 1)?,
                _ => {
                    let lease = number as i64 % 5 + 1;
                    let lease = if transaction.has_lease(lease) { lease } else { 0 };
                    transaction.put(key, value, lease);
                }
            }
            Ok(transaction.revision())
        };
        // Refused on standby.
        let Ok((Ok(revision), Ticket::Waiting(answer))) = up.shared.transact(decide) else { return };
        if kind > 2 {
            let put = Put { index: up.shared.last_index(), revision, key: name, value: wanted };
            up.asked.push(Asked { put, answer });
        }
        self.tell("proposed");
        self.settle(id);
    }

    /// The log's thread has its turn.
    fn write(&mut self, id: Id) {
        if let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) {
            writer::step(&up.shared);
        }
        self.settle(id);
    }

    fn snapshot(&mut self, id: Id) {
        let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) else { return };
        let running = up.shared.snapshot_running();
        writer::step_snapshot(&up.shared);
        if running && !up.shared.snapshot_running() {
            self.tell("snapshots");
        }
        self.settle(id);
    }

    fn step(&mut self) {
        let voters = self.machines.len() as u64;
        let id = self.below(voters) + 1;
        match self.below(200) {
            0..80 if !self.network.is_empty() => {
                let at = self.below(self.network.len() as u64) as usize;
                let message = match self.below(20) {
                    0 => self.network[at].clone(),
                    _ => self.network.swap_remove(at),
                };
                if self.below(15) > 0 {
                    self.deliver(&message);
                }
            }
            0..115 => {
                if let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) {
                    up.member.tick();
                }
                self.settle(id);
            }
            115..150 => self.write(id),
            150..156 => self.snapshot(id),
            156..182 => {
                let leads =
                    |machine: &Machine| machine.up.as_ref().is_some_and(|up| up.member.is_in_office());
                let leader = self.machines.iter().find(|(_, machine)| leads(machine)).map(|(id, _)| *id);
                self.propose(leader.unwrap_or(id));
            }
            182..185 => {
                if self.machines[&id].up.is_some() {
                    let with_power = self.below(2) == 0;
                    self.crash(id, with_power);
                }
            }
            185..190 => {
                let down = self.machines.iter().find(|(_, machine)| machine.up.is_none()).map(|(id, _)| *id);
                if let Some(id) = down {
                    self.start(id);
                }
            }
            190..192 => {
                let after = self.below(30);
                let disk = self.machines[&id].disk.clone();
                if self.below(2) == 0 { disk.fail_after(after) } else { disk.fail_once_after(after) }
            }
            192..194 => self.cut_off = (1..=voters).filter(|_| self.below(3) == 0).collect(),
            194..197 => self.cut_off.clear(),
            197 => {
                let to = self.below(voters) + 1;
                if let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut())
                    && up.member.is_in_office()
                    && to != id
                    && !up.member.bequeaths
                {
                    up.member.bequeath(to);
                }
                self.settle(id);
            }
            _ => {
                let Some(up) = self.machines.get_mut(&id).and_then(|machine| machine.up.as_mut()) else {
                    return;
                };
                if up.member.bequeaths && up.member.node.heir().is_none() {
                    up.member.end_bequest();
                }
                if let Err(error) = up.member.keep_commit(false) {
                    self.ended(id, &error);
                }
                self.settle(id);
            }
        }
        if self.network.len() > 300 {
            self.network.drain(..150);
        }
    }

    /// Mends everything; then there must be a leader soon, and what it is told must be applied everywhere.
    fn heal(&mut self) {
        self.cut_off.clear();
        let mut wanted = None;
        for round in 0..4000 {
            for id in 1..=self.machines.len() as u64 {
                let machine = self.machines.get_mut(&id).expect("known");
                machine.disk.heal();
                match machine.up.as_mut() {
                    None => self.start(id),
                    // The log was told that the disk has failed: it starts again.
                    Some(up) if up.shared.failure().is_some() => self.crash(id, false),
                    Some(up) => {
                        if round % 3 == 0 {
                            up.member.tick();
                        }
                        if up.member.bequeaths && up.member.node.heir().is_none() {
                            up.member.end_bequest();
                        }
                        self.write(id);
                        self.snapshot(id);
                    }
                }
            }
            for message in std::mem::take(&mut self.network) {
                self.deliver(&message);
            }
            let ups: Vec<&Up> = self.machines.values().filter_map(|machine| machine.up.as_ref()).collect();
            match wanted {
                Some(index)
                    if ups.len() == self.machines.len() && ups.iter().all(|up| up.applied >= index) =>
                {
                    return;
                }
                Some(_) if round % 800 == 0 => wanted = None,
                None if round > 200 => {
                    let leader =
                        ups.iter().find(|up| up.member.node.is_settled()).map(|up| up.member.node.id());
                    if let Some(id) = leader {
                        let before = self.machines[&id].up.as_ref().map_or(0, |up| up.shared.last_index());
                        self.propose(id);
                        let after = self.machines[&id].up.as_ref().map_or(0, |up| up.shared.last_index());
                        wanted = (after > before).then_some(after);
                    }
                }
                _ => {}
            }
        }
        for (id, machine) in &self.machines {
            if let Some(up) = &machine.up {
                let node = &up.member.node;
                println!(
                    "{id}: leads {} term {} last {} durable {} commit {} applied {}",
                    up.member.is_in_office(),
                    node.term(),
                    up.shared.last_index(),
                    up.shared.durable_index(),
                    node.commit(),
                    up.applied
                );
            }
        }
        panic!("no agreement after everything was mended: {:?}", self.told);
    }

    /// Everybody has what was acknowledged.
    fn check_acknowledged(&self) {
        for (id, machine) in &self.machines {
            let up = machine.up.as_ref().expect("up");
            let state = up.shared.read();
            for put in &self.acknowledged {
                let found = state.keys.version(&put.key, put.revision);
                let there = found.is_some_and(|version| {
                    version.value == put.value && version.mod_revision == put.revision
                });
                assert!(there, "{id} has lost {:?} of revision {}", put.key, put.revision);
            }
        }
    }
}

/// Why no copy was taken.
struct StoreErrorOrIo(String);

impl<E: std::error::Error + 'static> From<E> for StoreErrorOrIo {
    fn from(error: E) -> Self {
        Self(telemetry::chain(&error).to_string())
    }
}

fn run(seed: u64, steps: usize) -> BTreeMap<&'static str, u64> {
    let mut world = World::new(seed, [1, 3, 3, 5][seed as usize % 4]);
    for _ in 0..steps {
        world.step();
    }
    world.heal();
    world.check_acknowledged();
    world.told
}

#[test]
fn whole_members_lose_nothing_on_disks_and_networks_that_fail() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("KELSON_MEMBER_FIRST").unwrap_or(0);
    let seeds = number("KELSON_MEMBER_SEEDS").unwrap_or(60);
    let mut told: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in first..first + seeds {
        let ran = std::panic::catch_unwind(|| run(seed, 3000));
        let ran = ran.unwrap_or_else(|_| panic!("seed {seed}"));
        for (what, count) in ran {
            *told.entry(what).or_default() += count;
        }
    }
    println!("{seeds} seeds: {told:?}");
    if seeds >= 20 {
        for what in [
            "acknowledged",
            "copies",
            "crashes",
            "failed disks",
            "logs cut back",
            "lost offices",
            "snapshots",
        ] {
            assert!(told.get(what).is_some_and(|count| *count > 0), "{what} did not happen: {told:?}");
        }
    }
}
