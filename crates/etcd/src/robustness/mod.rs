//! Real members under faults, and whether everything that clients and watches were told can be true.
//!
//! A run is a row of histories. In each, clients and watches use three real processes while some faults happen; then everything is healed, and what was
//! seen is checked: the calls have an order in which they could have happened one by one ([`checker`], [`model`], [`history`]), every watch has
//! brought what watches promise ([`watches`]), and the members have the same. `docs/decisions/0013-linearizability-checker.md` says why it is our own.

pub mod checker;
mod cluster;
pub mod faults;
pub mod history;
pub mod model;
pub mod random;
mod relay;
mod traffic;
pub mod watches;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use lifecycle::{Stop, Tasks};
use thiserror::Error;

use crate::remote::RemoteError;
use crate::robustness::cluster::{Cluster, DEADLINE};
use crate::robustness::faults::{Fault, Writer};
use crate::robustness::history::{Operation, Renewals, Reply, Stretch};
use crate::robustness::model::State;
use crate::robustness::random::Random;
use crate::robustness::traffic::{Client, Seen, Time, Watcher, everything};
use crate::robustness::watches::{Stream, Truth};
use crate::v3::messages::*;

/// How many clients there are.
const CLIENTS: usize = 6;
/// How many watches begin anew in each history, besides the one on each member.
const WATCHES: usize = 4;

/// Why a run ended early.
#[derive(Debug, Error)]
pub enum RobustnessError {
    /// Files or processes.
    #[error("cannot {action}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// The endpoints.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Something that has to happen did not.
    #[error("{0}")]
    Stuck(String),
    /// A member has ended.
    #[error("{name} has ended by itself; it said: {said}")]
    Ended {
        /// Which.
        name: String,
        /// Its last words.
        said: String,
    },
    /// A promise was broken.
    #[error("history {history} of seed {seed} breaks a promise: {first} ({count} in all; the members' data and logs are in {})", directory.display())]
    Broken {
        /// Which history.
        history: usize,
        /// Of which run.
        seed: u64,
        /// The first.
        first: String,
        /// How many.
        count: usize,
        /// Where to look.
        directory: PathBuf,
    },
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The members' program.
    pub program: PathBuf,
    /// Which of its commands a member is, if it has others.
    pub command: Option<&'static str>,
    /// Where the members live. What is in it when the run has ended well is removed.
    pub directory: PathBuf,
    /// What the faults and the calls are drawn from.
    pub seed: u64,
    /// How long, if the number of histories does not say it.
    pub time: Duration,
    /// The faults of each history; drawn if there are none.
    pub faults: Vec<Vec<Fault>>,
}

/// What a run has done.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Histories that were checked.
    pub histories: usize,
    /// How often each fault happened.
    pub faults: BTreeMap<Fault, usize>,
    /// Calls that were answered.
    pub answered: usize,
    /// Calls that were refused.
    pub refused: usize,
    /// Calls of which nobody could say what came of them.
    pub unknown: usize,
    /// Reads at given revisions.
    pub observed: usize,
    /// Streams of watches.
    pub watches: usize,
    /// What they brought.
    pub events: usize,
    /// The last revision.
    pub revision: i64,
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let injected: usize = self.faults.values().sum();
        writeln!(out, "{} histories checked: linearizable, members equal after each", self.histories)?;
        writeln!(
            out,
            "{} operations: {} answered, {} refused, {} without an answer; {} reads at given revisions",
            self.answered + self.refused + self.unknown,
            self.answered,
            self.refused,
            self.unknown,
            self.observed
        )?;
        writeln!(out, "{} watch streams with {} events, every rule kept", self.watches, self.events)?;
        writeln!(out, "{injected} faults injected:")?;
        for (fault, count) in &self.faults {
            writeln!(out, "  {count:4} {}", fault.name())?;
        }
        write!(out, "nothing lost, up to revision {}", self.revision)
    }
}

struct Run {
    plan: Plan,
    cluster: Cluster,
    tasks: Tasks,
    random: Random,
    time: Time,
    newest: Arc<AtomicI64>,
    recorders: Vec<Watcher>,
    /// What happened since the history before the last one began.
    truth: Truth,
    seen: BTreeMap<i64, u64>,
    states: BTreeMap<i64, State>,
    before: State,
    /// Calls that may still take effect.
    open: Vec<Operation>,
    renewals: Renewals,
    clients: usize,
    report: Report,
}

/// The faults' own writes, by a client like the others.
struct Bulk(Client);

impl Writer for Bulk {
    async fn write(&mut self, size: usize) -> Option<i64> {
        self.0.put_large(size).await
    }
}

/// Runs a plan; `each` is told of every history.
pub async fn run(plan: Plan, stop: &Stop, mut each: impl FnMut(&str)) -> Result<Report, RobustnessError> {
    let tasks = Tasks::under(stop);
    let outcome = run_on(plan, stop, &tasks, &mut each).await;
    tasks.drain(Duration::from_secs(5)).await;
    outcome
}

async fn run_on(
    plan: Plan,
    stop: &Stop,
    tasks: &Tasks,
    each: &mut impl FnMut(&str),
) -> Result<Report, RobustnessError> {
    let failed = |source| RobustnessError::Io { action: "make the members' directory", source };
    std::fs::create_dir_all(&plan.directory).map_err(failed)?;
    let mut random = Random::new(plan.seed);
    let cluster = Cluster::new((&plan.program, plan.command), &plan.directory, &mut random, tasks).await?;
    let mut run = Run {
        cluster,
        tasks: tasks.clone(),
        random,
        time: Time::begin(),
        newest: Arc::new(AtomicI64::new(1)),
        recorders: Vec::new(),
        truth: Truth::new(),
        seen: BTreeMap::new(),
        states: BTreeMap::new(),
        before: State { revision: 1, ..State::default() },
        open: Vec::new(),
        renewals: Renewals::new(),
        clients: 0,
        report: Report::default(),
        plan,
    };
    run.cluster.found().await?;
    for member in &run.cluster.members[..3] {
        let label = format!("the watch on {}", member.name);
        let watcher = Watcher::start(&label, vec![member.client.clone()], everything(), 2, run.time, tasks)?;
        run.recorders.push(watcher);
    }
    let until = Instant::now() + run.plan.time;
    while !stop.is_requested() {
        let faults = match run.plan.faults.get(run.report.histories) {
            Some(faults) => faults.clone(),
            None if !run.plan.faults.is_empty() || Instant::now() >= until => break,
            None => {
                let count = 1 + run.random.below(3);
                let draw = |random: &mut Random| Fault::ALL[random.below(Fault::ALL.len() as u64) as usize];
                (0..count).map(|_| draw(&mut run.random)).collect()
            }
        };
        let line = run.history(&faults).await?;
        each(&line);
    }
    let (mut report, directory) = (run.report.clone(), run.plan.directory.clone());
    report.unknown += run.open.len();
    drop(run);
    // All went well: nobody needs the members' data.
    std::fs::remove_dir_all(&directory)
        .map_err(|source| RobustnessError::Io { action: "remove the members' directory", source })?;
    Ok(report)
}

impl Run {
    fn client(&mut self) -> Result<Client, RobustnessError> {
        let number = self.clients;
        self.clients += 1;
        let mut endpoints = self.cluster.endpoints();
        let turn = number % endpoints.len().max(1);
        endpoints.rotate_left(turn);
        let random = self.random.fork();
        Ok(Client::new(number, endpoints, random, self.time, &self.newest, &self.tasks)?)
    }

    /// Watches that begin somewhere in what is still known, each on members in another order.
    fn watches(&mut self, tasks: &Tasks) -> Result<Vec<Watcher>, RobustnessError> {
        let oldest = self.truth.keys().next().copied().unwrap_or(self.before.revision + 1);
        let newest = self.newest.load(Ordering::Relaxed).max(oldest);
        let mut watchers = Vec::new();
        for number in 0..WATCHES {
            let mut endpoints = self.cluster.endpoints();
            let turn = number % endpoints.len().max(1);
            endpoints.rotate_left(turn);
            let start = oldest + self.random.below((newest - oldest + 1) as u64) as i64;
            let span = if number % 2 == 0 { everything() } else { traffic::part(&mut self.random) };
            let label = format!("watch {number} from {start}");
            watchers.push(Watcher::start(&label, endpoints, span, start, self.time, tasks)?);
        }
        Ok(watchers)
    }

    /// One history: traffic, faults, and the check. Returns a line about it.
    async fn history(&mut self, faults: &[Fault]) -> Result<String, RobustnessError> {
        let clients = (0..CLIENTS).map(|_| self.client()).collect::<Result<Vec<_>, _>>()?;
        let mut bulk = Bulk(self.client()?);
        let watching = Tasks::under(&self.tasks.stop());
        let watches = self.watches(&watching)?;
        let enough = AtomicBool::new(false);
        let mut suffered = Vec::new();
        let (cluster, random) = (&mut self.cluster, &mut self.random);
        let disturb = async {
            let outcome = async {
                for fault in faults {
                    tokio::time::sleep(random.between(200, 600)).await;
                    if cluster.suffer(*fault, random, &mut bulk).await? {
                        suffered.push(*fault);
                    }
                }
                tokio::time::sleep(random.between(200, 600)).await;
                Ok::<_, RobustnessError>(())
            }
            .await;
            enough.store(true, Ordering::Relaxed);
            outcome
        };
        let runs = futures::future::join_all(clients.into_iter().map(|client| client.run(&enough)));
        let (mut seen, outcome) = futures::future::join(runs, disturb).await;
        outcome?;
        self.cluster.network.heal();
        self.cluster.settled().await?;
        let mut last = self.client()?;
        let Some(revision) = last.barrier(Instant::now() + DEADLINE).await else {
            return Err(RobustnessError::Stuck("nothing can be written after all is healed".to_owned()));
        };
        seen.extend([last.into_seen(), bulk.0.into_seen()]);
        self.caught_up(revision).await?;
        watching.drain(Duration::from_secs(2)).await;
        let streams: Vec<Stream> = watches.iter().flat_map(Watcher::take).collect();
        let mut problems = self.same(revision).await?;
        problems.extend(self.check(revision, seen, streams));
        for fault in &suffered {
            *self.report.faults.entry(*fault).or_default() += 1;
        }
        self.report.revision = revision;
        if let Some(first) = problems.first() {
            let file = self.plan.directory.join("problems.txt");
            // The first of them is in the error in any case.
            let _ = std::fs::write(file, problems.join("\n"));
            return Err(RobustnessError::Broken {
                history: self.report.histories,
                seed: self.plan.seed,
                first: first.chars().take(2000).collect(),
                count: problems.len(),
                directory: self.plan.directory.clone(),
            });
        }
        self.report.histories += 1;
        let names: Vec<&str> = suffered.iter().map(|fault| fault.name()).collect();
        Ok(format!("history {}: {}; revision {revision}", self.report.histories, names.join(", ")))
    }

    /// Waits until the watch on each member has come to a revision.
    async fn caught_up(&self, revision: i64) -> Result<(), RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        while let Some(behind) = self.recorders.iter().position(|recorder| recorder.reached() < revision) {
            if Instant::now() >= deadline {
                let name = &self.cluster.members[behind].name;
                let reached = self.recorders[behind].reached();
                return Err(RobustnessError::Stuck(format!(
                    "the watch on {name} has come to {reached} only, not to {revision}"
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Whether all members have the same at a revision.
    async fn same(&self, revision: i64) -> Result<Vec<String>, RobustnessError> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let mut hashes = Vec::new();
            for member in &self.cluster.members[..3] {
                let request = HashKvRequest { revision };
                let hash =
                    member.channel.call::<HashKvResponse>("/etcdserverpb.Maintenance/HashKV", &request);
                if let Ok(answer) = hash.await {
                    hashes.push((answer.compact_revision, answer.hash, &member.name));
                }
            }
            // Members forget old versions at their own pace, and only equal histories have equal hashes.
            if hashes.len() == 3 && hashes.windows(2).all(|pair| pair[0].0 == pair[1].0) {
                let equal = hashes.windows(2).all(|pair| pair[0].1 == pair[1].1);
                return Ok(if equal { Vec::new() } else { vec![format!("the members differ: {hashes:?}")] });
            }
            if Instant::now() >= deadline {
                return Err(RobustnessError::Stuck(format!("hashes cannot be compared: {hashes:?}")));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn check(&mut self, revision: i64, seen: Vec<Seen>, mut streams: Vec<Stream>) -> Vec<String> {
        let mut problems = Vec::new();
        let mut recorded: Vec<Stream> = self.recorders.iter().flat_map(Watcher::take).collect();
        let compacted = self.cluster.compacted;
        for response in recorded.iter().flat_map(|stream| &stream.responses) {
            let mut rest = response.events.as_slice();
            while let Some(first) = rest.first() {
                let count = rest.iter().take_while(|event| event.revision == first.revision).count();
                let (events, after) = rest.split_at(count);
                // Within a revision nothing is promised about the order, and a member that was restored from a copy has another one.
                let mut events = events.to_vec();
                events.sort_by(|one, other| one.key.cmp(&other.key));
                let known = self.truth.entry(first.revision).or_insert_with(|| events.clone());
                if first.revision <= compacted {
                    known.iter_mut().zip(&mut events).for_each(|(one, other)| watches::complete(one, other));
                }
                if *known != events {
                    problems.push(format!(
                        "members tell revision {} differently: {known:?} {events:?}",
                        first.revision
                    ));
                }
                let at = self.seen.entry(first.revision).or_insert(response.at);
                *at = response.at.min(*at);
                rest = after;
            }
        }
        // What came after the end of this history is looked at in the next one.
        for stream in &mut streams {
            stream.responses.retain(|response| {
                response.revision <= revision
                    || !response.events.is_empty()
                        && response.events.iter().all(|event| event.revision <= revision)
            });
        }
        for event in recorded.iter_mut().chain(&mut streams).flat_map(Stream::events_mut) {
            let known = self.truth.get_mut(&event.revision).filter(|_| event.revision <= compacted);
            if let Some(real) = known.and_then(|known| known.iter_mut().find(|real| real.key == event.key)) {
                watches::complete(real, event);
            }
        }
        for stream in recorded.iter().chain(&streams) {
            problems.extend(watches::broken(stream, &self.truth));
            self.report.watches += 1;
            self.report.events +=
                stream.responses.iter().map(|response| response.events.len()).sum::<usize>();
        }
        let mut operations = std::mem::take(&mut self.open);
        let mut observations = Vec::new();
        for client in seen {
            operations.extend(client.operations);
            observations.extend(client.observations);
            self.renewals.extend(client.renewals);
        }
        for operation in &operations {
            match &operation.reply {
                Reply::Done { .. } | Reply::Revoked => self.report.answered += 1,
                Reply::Refused(_) => self.report.refused += 1,
                Reply::Unknown(_) => {}
            }
        }
        let truth: Truth = self
            .truth
            .range(self.before.revision + 1..=revision)
            .map(|(revision, events)| (*revision, events.clone()))
            .collect();
        let states = match history::replay(&self.before, &truth) {
            Ok(states) => states,
            Err(why) => {
                problems.push(why);
                return problems;
            }
        };
        let findings = history::check(&Stretch {
            before: &self.before,
            truth: &truth,
            seen: &self.seen,
            operations: &operations,
            renewals: &self.renewals,
        });
        problems.extend(findings.faults);
        let unsettled: std::collections::BTreeSet<usize> = findings.open.into_iter().collect();
        let is_unknown = |operation: &Operation| matches!(operation.reply, Reply::Unknown(_));
        self.report.unknown += operations.iter().filter(|operation| is_unknown(operation)).count();
        self.report.unknown -= unsettled.len();
        self.open = unsettled.into_iter().map(|number| operations[number].clone()).collect();
        let after = states.get(&revision).cloned().unwrap_or_else(|| self.before.clone());
        let oldest = self.before.revision;
        self.states = self.states.split_off(&(oldest - 1000));
        self.states.extend(states);
        problems.extend(history::observed(&observations, &self.states));
        self.report.observed += observations.len();
        self.truth = self.truth.split_off(&(oldest + 1));
        self.seen = self.seen.split_off(&(oldest + 1));
        self.before = after;
        problems
    }
}

/// The program itself, for a run by command.
pub fn own_program() -> Result<PathBuf, RobustnessError> {
    std::env::current_exe().map_err(|source| RobustnessError::Io { action: "find this program", source })
}

/// A directory of its own for a run.
pub fn directory_in(parent: &Path, seed: u64) -> PathBuf {
    parent.join(format!("robustness-{seed}-{}", std::process::id()))
}
