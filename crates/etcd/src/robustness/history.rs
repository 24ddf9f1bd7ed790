//! From what clients and watches have seen to a history that can be checked.
//!
//! Answers that say nothing ("timed out", a broken connection) are settled by what happened: every value is written once, so a value that appears
//! tells which call has written it and at which revision. What appears though it was refused, what nobody has done, and a lease that ends before its
//! time are faults by themselves.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::robustness::checker::{self, Entry, Verdict};
use crate::robustness::model::{Answer, Call, Etcd, Outcome, Request, Span, State, Step};
use crate::robustness::watches::{Event, Truth};

/// How many placements a search may try before it counts as undecided.
const STEPS: u64 = 5_000_000;
/// A leader that has lost its office may go on renewing leases for as long as it takes it to notice: twice the election timeout.
const NOTICE: u64 = 2_000_000;

/// What a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was done, with this result.
    Done {
        /// The revision after it.
        revision: i64,
        /// Which branch.
        succeeded: bool,
        /// What each step has brought.
        outcomes: Vec<Outcome>,
    },
    /// A lease was revoked.
    Revoked,
    /// It was refused: nothing has happened and nothing will.
    Refused(String),
    /// Nobody knows.
    Unknown(String),
}

/// A call that a client has made.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Who.
    pub client: usize,
    /// What.
    pub request: Request,
    /// When it was made, in microseconds of the run.
    pub begun: u64,
    /// When the answer came.
    pub ended: u64,
    /// The answer.
    pub reply: Reply,
}

/// A read that need not be current: at an older revision, or of whatever the asked member had.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Of which revision.
    pub revision: i64,
    /// What was asked for.
    pub span: Span,
    /// What was found.
    pub found: Outcome,
}

/// Leases: when one was last certainly renewed, and for how long, in microseconds.
pub type Renewals = HashMap<i64, (u64, u64)>;

/// What is known of one stretch of the run.
pub struct Stretch<'a> {
    /// The state before it.
    pub before: &'a State,
    /// What happened in it, without a gap.
    pub truth: &'a Truth,
    /// When each revision was first seen.
    pub seen: &'a BTreeMap<i64, u64>,
    /// The calls in it, and those from before that were not settled.
    pub operations: &'a [Operation],
    /// Leases.
    pub renewals: &'a Renewals,
}

/// What came of a check.
#[derive(Debug, Default)]
pub struct Findings {
    /// What must not be.
    pub faults: Vec<String>,
    /// Which operations are not settled yet: they may still take effect.
    pub open: Vec<usize>,
    /// How many calls were put in order.
    pub ordered: usize,
}

/// The states after each revision, or why there are none.
pub fn replay(before: &State, truth: &Truth) -> Result<BTreeMap<i64, State>, String> {
    let mut states = BTreeMap::from([(before.revision, before.clone())]);
    let mut state = before.clone();
    for (revision, events) in truth {
        if *revision != state.revision + 1 {
            return Err(format!("after revision {} comes {revision}", state.revision));
        }
        let mut keys = (*state.keys).clone();
        for event in events {
            let was = keys.remove(&event.key);
            if was != event.previous {
                return Err(format!(
                    "{:?} at {revision} says that it was {:?}, and it was {was:?}",
                    event.key, event.previous
                ));
            }
            if let Some(version) = &event.version {
                keys.insert(event.key.clone(), version.clone());
            }
        }
        state = State { revision: *revision, keys: keys.into() };
        states.insert(*revision, state.clone());
    }
    Ok(states)
}

fn steps(request: &Request) -> impl Iterator<Item = &Step> {
    let (then, otherwise): (&[Step], &[Step]) = match request {
        Request::Txn { then, otherwise, .. } => (then, otherwise),
        Request::Revoke(_) => (&[], &[]),
    };
    then.iter().chain(otherwise)
}

fn values(request: &Request) -> impl Iterator<Item = &Bytes> {
    steps(request).filter_map(|step| match step {
        Step::Put { value, .. } => Some(value),
        Step::Delete(_) | Step::Range(..) => None,
    })
}

/// The lease whose end a revision may be: all its events are deletions of keys of that lease.
fn ended_lease(events: &[Event]) -> Option<i64> {
    let mut leases = events.iter().map(|event| match (&event.version, &event.previous) {
        (None, Some(previous)) => previous.lease,
        _ => 0,
    });
    let first = leases.next()?;
    (first != 0 && leases.all(|lease| lease == first)).then_some(first)
}

/// Whether a request's deletions may have made these events.
fn may_have_deleted(request: &Request, events: &[Event]) -> bool {
    events.iter().all(|event| {
        event.version.is_none()
            && steps(request).any(|step| matches!(step, Step::Delete(span) if span.has(&event.key)))
    })
}

/// Checks one stretch.
pub fn check(stretch: &Stretch<'_>) -> Findings {
    let mut findings = Findings::default();
    let mut by_value: HashMap<&Bytes, i64> = HashMap::new();
    for (revision, events) in stretch.truth {
        for version in events.iter().filter_map(|event| event.version.as_ref()) {
            by_value.insert(&version.value, *revision);
        }
    }
    let mut explained: BTreeMap<i64, usize> = BTreeMap::new();
    for operation in stretch.operations {
        if let Reply::Done { revision, outcomes, .. } = &operation.reply {
            let changed = outcomes.iter().any(|outcome| match outcome {
                Outcome::Put(_) => true,
                Outcome::Deleted(gone) => !gone.is_empty(),
                Outcome::Found(..) => false,
            });
            if changed {
                *explained.entry(*revision).or_default() += 1;
            }
        }
        if let Some(revision) = values(&operation.request).find_map(|value| by_value.get(value)) {
            match &operation.reply {
                Reply::Refused(why) => findings.faults.push(format!(
                    "client {} was refused ({why}), but its write is revision {revision}",
                    operation.client
                )),
                Reply::Unknown(_) => *explained.entry(*revision).or_default() += 1,
                Reply::Done { .. } | Reply::Revoked => {}
            }
        }
    }
    let unexplained: Vec<(i64, &Vec<Event>)> = stretch
        .truth
        .iter()
        .filter(|(revision, _)| !explained.contains_key(revision))
        .map(|(revision, events)| (*revision, events))
        .collect();
    let mut claimed: Vec<i64> = Vec::new();
    let mut entries = Vec::new();
    for (number, operation) in stretch.operations.iter().enumerate() {
        let mut entry = |answer, ended, optional| {
            let call = Call { client: operation.client, request: operation.request.clone(), answer };
            entries.push(Entry { call, begun: operation.begun, ended, optional });
        };
        let ended = |revisions: &mut dyn Iterator<Item = i64>| -> Vec<i64> { revisions.collect() };
        match (&operation.reply, &operation.request) {
            (Reply::Refused(_), _) => {}
            (Reply::Done { revision, succeeded, outcomes }, _) => entry(
                Answer::Known { revision: *revision, succeeded: *succeeded, outcomes: outcomes.clone() },
                Some(operation.ended),
                false,
            ),
            (Reply::Revoked | Reply::Unknown(_), Request::Revoke(lease)) => {
                let revisions = ended(
                    &mut unexplained
                        .iter()
                        .filter(|(_, events)| ended_lease(events) == Some(*lease))
                        .map(|(revision, _)| *revision),
                );
                claimed.extend(&revisions);
                if operation.reply == Reply::Revoked {
                    entry(Answer::DoneAt(revisions), Some(operation.ended), false);
                } else if revisions.is_empty() {
                    findings.open.push(number);
                } else {
                    entry(Answer::ChangedAt(revisions), None, true);
                }
            }
            (Reply::Revoked, Request::Txn { .. }) => {}
            (Reply::Unknown(_), Request::Txn { .. }) => {
                if let Some(revision) = values(&operation.request).find_map(|value| by_value.get(value)) {
                    entry(Answer::ChangedAt(vec![*revision]), None, false);
                    continue;
                }
                let revisions = ended(
                    &mut unexplained
                        .iter()
                        .filter(|(_, events)| may_have_deleted(&operation.request, events))
                        .map(|(revision, _)| *revision),
                );
                claimed.extend(&revisions);
                if !revisions.is_empty() {
                    entry(Answer::ChangedAt(revisions), None, true);
                }
                // A read that nobody answered tells nothing and does nothing.
                if steps(&operation.request).any(|step| !matches!(step, Step::Range(..))) {
                    findings.open.push(number);
                }
            }
        }
    }
    for (revision, events) in unexplained {
        let Some(lease) = ended_lease(events) else {
            if !claimed.contains(&revision) {
                findings.faults.push(format!("nobody has done revision {revision}: {events:?}"));
            }
            continue;
        };
        if stretch.operations.iter().any(|operation| {
            operation.request == Request::Revoke(lease) && !matches!(operation.reply, Reply::Refused(_))
        }) {
            continue;
        }
        let (renewed, time) = stretch.renewals.get(&lease).copied().unwrap_or_default();
        let seen = stretch.seen.get(&revision).copied().unwrap_or(u64::MAX);
        let due = (renewed + time).saturating_sub(NOTICE);
        // A leader that was deposed while it slept may renew once more before it knows; what had ended by then has not ended early.
        if due > seen && renewed <= seen {
            findings.faults.push(format!(
                "lease {lease:x}, renewed at {renewed} µs for {time} µs, ended before {seen} µs"
            ));
        }
        let call = Call {
            client: usize::MAX,
            request: Request::Revoke(lease),
            answer: Answer::ChangedAt(vec![revision]),
        };
        entries.push(Entry { call, begun: due.min(seen), ended: Some(seen), optional: true });
    }
    findings.ordered = entries.len();
    match checker::check(&Etcd, stretch.before.clone(), &entries, STEPS) {
        Verdict::Linearizable(_) => {}
        Verdict::Undecided => {
            findings.faults.push(format!("{} calls: no order found in time", entries.len()))
        }
        Verdict::Illegal { placed, stuck } => {
            let stuck: Vec<String> =
                stuck.iter().take(12).map(|number| format!("{:?}", entries[*number])).collect();
            findings.faults.push(format!(
                "not linearizable: after {placed} of {} calls none of these fits:\n  {}",
                entries.len(),
                stuck.join("\n  ")
            ));
        }
    }
    findings
}

/// Checks reads of given revisions against what was there.
pub fn observed(observations: &[Observation], states: &BTreeMap<i64, State>) -> Vec<String> {
    let wrong = |observation: &&Observation| {
        let Some(state) = states.get(&observation.revision) else { return false };
        let pairs = observation.span.pairs(state);
        let count = pairs.len() as i64;
        observation.found != Outcome::Found(pairs, count)
    };
    observations
        .iter()
        .filter(wrong)
        .map(|observation| format!("a read of revision {} was wrong: {observation:?}", observation.revision))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::robustness::model::{self, Version};

    /// A short run, as it really was: put a=1 under a lease, put b=2, a read, a transaction, and the end of the lease.
    struct Story {
        truth: Truth,
        operations: Vec<Operation>,
        renewals: Renewals,
    }

    fn put(key: &'static str, value: &'static str, lease: i64) -> Request {
        let step = Step::Put { key: key.into(), value: value.into(), lease };
        Request::Txn { guards: Vec::new(), then: vec![step], otherwise: Vec::new() }
    }

    fn read(key: &'static str) -> Request {
        let span = Span { key: key.into(), end: Bytes::new() };
        Request::Txn { guards: Vec::new(), then: vec![Step::Range(span, 0)], otherwise: Vec::new() }
    }

    fn story() -> Story {
        let mut state = State { revision: 1, ..State::default() };
        let mut truth = Truth::new();
        let mut operations = Vec::new();
        let requests =
            [put("a", "1", 9), put("b", "2", 0), read("a"), put("b", "3", 0), Request::Revoke(9), read("a")];
        for (number, request) in requests.into_iter().enumerate() {
            let effect = model::apply(&state, &request);
            if effect.state.revision > state.revision {
                let keys: std::collections::BTreeSet<&Bytes> =
                    state.keys.keys().chain(effect.state.keys.keys()).collect();
                let events = keys
                    .into_iter()
                    .filter(|key| state.keys.get(*key) != effect.state.keys.get(*key))
                    .map(|key| Event {
                        key: key.clone(),
                        revision: effect.state.revision,
                        version: effect.state.keys.get(key).cloned(),
                        previous: state.keys.get(key).cloned(),
                    });
                truth.insert(effect.state.revision, events.collect());
            }
            let reply = Reply::Done {
                revision: effect.state.revision,
                succeeded: effect.succeeded,
                outcomes: effect.outcomes,
            };
            let begun = number as u64 * 10_000_000;
            // The lease ends by itself: no client has done that.
            if !matches!(request, Request::Revoke(_)) {
                operations.push(Operation { client: number, request, begun, ended: begun + 5, reply });
            }
            state = effect.state;
        }
        Story { truth, operations, renewals: Renewals::from([(9, (0, 4_000_000))]) }
    }

    fn faults(story: &Story) -> Vec<String> {
        let before = State { revision: 1, ..State::default() };
        if let Err(why) = replay(&before, &story.truth) {
            return vec![why];
        }
        let seen = story.truth.keys().map(|revision| (*revision, 40_000_000)).collect();
        let stretch = Stretch {
            before: &before,
            truth: &story.truth,
            seen: &seen,
            operations: &story.operations,
            renewals: &story.renewals,
        };
        check(&stretch).faults
    }

    #[test]
    fn what_really_happened_is_accepted_also_when_answers_are_missing() {
        let mut story = story();
        assert_eq!(faults(&story), [""; 0]);
        story.operations[1].reply = Reply::Unknown("timed out".to_owned());
        assert_eq!(faults(&story), [""; 0]);
        // One that never took effect stays open.
        let mut never = story.operations[1].clone();
        never.request = put("b", "never", 0);
        story.operations.push(never);
        assert_eq!(faults(&story), [""; 0]);
    }

    /// Each of these is a bug that a store could have.
    #[test]
    fn every_kind_of_broken_history_is_found() {
        let found = |change: fn(&mut Story), what: &str| {
            let mut story = story();
            change(&mut story);
            let faults = faults(&story);
            assert!(faults.iter().any(|fault| fault.contains(what)), "{what}: {faults:?}");
        };
        // An acknowledged write is gone, and the next one has its revision.
        found(|story| story.operations[3].reply = story.operations[1].reply.clone(), "not linearizable");
        // A read shows what was not there any more.
        found(
            |story| {
                story.operations[4].reply = story.operations[2].reply.clone();
            },
            "not linearizable",
        );
        // A write that was refused took effect.
        found(|story| story.operations[1].reply = Reply::Refused("no leader".to_owned()), "was refused");
        // Something that nobody wrote.
        found(|story| drop(story.operations.remove(1)), "nobody has done revision 3");
        // A lease that ended too early.
        found(|story| story.renewals = Renewals::from([(9, (39_000_000, 60_000_000))]), "ended before");
        // A revision is missing.
        found(|story| drop(story.truth.remove(&3)), "after revision 2 comes 4");
        // A version that cannot be.
        found(
            |story| {
                if let Some(event) = story.truth.get_mut(&4).and_then(|events| events.first_mut()) {
                    event.previous =
                        Some(Version { value: "x".into(), created: 2, modified: 2, version: 1, lease: 0 });
                }
            },
            "says that it was",
        );
        // An answer with another revision than the write has.
        found(
            |story| {
                if let Reply::Done { revision, .. } = &mut story.operations[3].reply {
                    *revision += 1;
                }
            },
            "not linearizable",
        );
    }

    #[test]
    fn reads_of_old_revisions_are_compared_with_what_was_there() {
        let story = story();
        let states = replay(&State { revision: 1, ..State::default() }, &story.truth).expect("a history");
        let span = Span { key: "b".into(), end: Bytes::new() };
        let right = |revision: i64| Observation {
            revision,
            found: Outcome::Found(
                span.pairs(&states[&revision]),
                span.pairs(&states[&revision]).len() as i64,
            ),
            span: span.clone(),
        };
        assert_eq!(observed(&[right(2), right(3), right(4)], &states), [""; 0]);
        let stale = Observation { revision: 4, ..right(3) };
        assert_eq!(observed(&[stale], &states).len(), 1);
    }
}
