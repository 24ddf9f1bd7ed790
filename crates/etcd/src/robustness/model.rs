//! What etcd promises for one call after the other: keys with their revisions, transactions, leases.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::robustness::checker::Model;
use crate::v3::messages as wire;

/// One version of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Its value.
    pub value: Bytes,
    /// When the key came to be.
    pub created: i64,
    /// When this version came to be.
    pub modified: i64,
    /// How many versions since it came to be.
    pub version: i64,
    /// What it depends on; 0 for nothing.
    pub lease: i64,
}

/// A key and its version, as answers carry them.
pub type Pair = (Bytes, Version);

/// A key and its version from the wire.
pub fn pair(kv: &wire::KeyValue) -> Pair {
    let version = Version {
        value: kv.value.clone(),
        created: kv.create_revision,
        modified: kv.mod_revision,
        version: kv.version,
        lease: kv.lease,
    };
    (kv.key.clone(), version)
}

/// All keys at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The revision.
    pub revision: i64,
    /// The keys.
    pub keys: Arc<BTreeMap<Bytes, Version>>,
}

/// A key, or all from one to before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first key.
    pub key: Bytes,
    /// The key after the last; empty for the first alone.
    pub end: Bytes,
}

impl Span {
    /// Whether a key is in it.
    pub fn has(&self, key: &Bytes) -> bool {
        if self.end.is_empty() { *key == self.key } else { *key >= self.key && *key < self.end }
    }

    fn of<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (&'a Bytes, &'a Version)> {
        state.keys.iter().filter(|(key, _)| self.has(key))
    }

    /// What is in it.
    pub fn pairs(&self, state: &State) -> Vec<Pair> {
        self.of(state).map(|(key, version)| (key.clone(), version.clone())).collect()
    }
}

/// A step of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a key.
    Put {
        /// Which.
        key: Bytes,
        /// What.
        value: Bytes,
        /// For as long as this lease lives.
        lease: i64,
    },
    /// Removes keys.
    Delete(Span),
    /// Reads keys, at most so many (0: all).
    Range(Span, i64),
}

/// What must be so for a transaction's first branch: the key's last change, 0 if it is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Which key.
    pub key: Bytes,
    /// Its last change.
    pub modified: i64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Reads and writes at once. A put, a deletion and a read are one step without guards.
    Txn {
        /// All have to hold for `then`.
        guards: Vec<Guard>,
        /// Done if they hold.
        then: Vec<Step>,
        /// Done if not.
        otherwise: Vec<Step>,
    },
    /// A lease ends, by its owner's wish or because its time is over: its keys go.
    Revoke(i64),
}

/// What a step has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was there before.
    Put(Option<Pair>),
    /// What was removed.
    Deleted(Vec<Pair>),
    /// What was found, and how much there is.
    Found(Vec<Pair>, i64),
}

/// What is known of the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All of it.
    Known {
        /// The revision after it.
        revision: i64,
        /// Which branch.
        succeeded: bool,
        /// What each step has brought.
        outcomes: Vec<Outcome>,
    },
    /// Nothing but at which revisions it may have changed something.
    ChangedAt(Vec<i64>),
    /// It was done; it may have changed nothing, or something at these revisions.
    DoneAt(Vec<i64>),
}

/// A call and what is known of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who asked.
    pub client: usize,
    /// What was asked.
    pub request: Request,
    /// What was answered.
    pub answer: Answer,
}

/// What a call does to a state.
pub struct Effect {
    /// The state after it.
    pub state: State,
    /// Which branch.
    pub succeeded: bool,
    /// What each step has brought.
    pub outcomes: Vec<Outcome>,
}

/// Does what a request asks for.
pub fn apply(before: &State, request: &Request) -> Effect {
    let mut keys = before.keys.clone();
    let revision = before.revision + 1;
    let mut changed = false;
    let mut outcomes = Vec::new();
    let mut succeeded = true;
    match request {
        Request::Revoke(lease) => {
            if keys.values().any(|version| version.lease == *lease) {
                Arc::make_mut(&mut keys).retain(|_, version| version.lease != *lease);
                changed = true;
            }
        }
        Request::Txn { guards, then, otherwise } => {
            succeeded = guards.iter().all(|guard| {
                before.keys.get(&guard.key).map_or(0, |version| version.modified) == guard.modified
            });
            for step in if succeeded { then } else { otherwise } {
                match step {
                    Step::Put { key, value, lease } => {
                        let old = keys.get(key).cloned();
                        let new = Version {
                            value: value.clone(),
                            created: old.as_ref().map_or(revision, |old| old.created),
                            modified: revision,
                            version: old.as_ref().map_or(0, |old| old.version) + 1,
                            lease: *lease,
                        };
                        Arc::make_mut(&mut keys).insert(key.clone(), new);
                        changed = true;
                        outcomes.push(Outcome::Put(old.map(|old| (key.clone(), old))));
                    }
                    Step::Delete(span) => {
                        let gone = span.pairs(&State { revision, keys: keys.clone() });
                        if !gone.is_empty() {
                            Arc::make_mut(&mut keys).retain(|key, _| !span.has(key));
                            changed = true;
                        }
                        outcomes.push(Outcome::Deleted(gone));
                    }
                    Step::Range(span, limit) => {
                        let mut found = span.pairs(&State { revision, keys: keys.clone() });
                        let count = found.len() as i64;
                        if *limit > 0 {
                            found.truncate(*limit as usize);
                        }
                        outcomes.push(Outcome::Found(found, count));
                    }
                }
            }
        }
    }
    let revision = if changed { revision } else { before.revision };
    Effect { state: State { revision, keys }, succeeded, outcomes }
}

/// The store as one program that does one call after the other.
pub struct Etcd;

impl Model for Etcd {
    type State = State;
    type Call = Call;

    fn step(&self, state: &State, call: &Call) -> Option<State> {
        // Most candidates fail by their revision, which needs no copy of anything.
        let next = state.revision + 1;
        let possible = match &call.answer {
            Answer::Known { revision, .. } => *revision == state.revision || *revision == next,
            Answer::ChangedAt(revisions) => revisions.contains(&next),
            Answer::DoneAt(_) => true,
        };
        if !possible {
            return None;
        }
        let effect = apply(state, &call.request);
        let fits = match &call.answer {
            Answer::Known { revision, succeeded, outcomes } => {
                *revision == effect.state.revision
                    && *succeeded == effect.succeeded
                    && *outcomes == effect.outcomes
            }
            Answer::ChangedAt(revisions) => revisions.contains(&effect.state.revision),
            Answer::DoneAt(revisions) => {
                effect.state.revision == state.revision || revisions.contains(&effect.state.revision)
            }
        };
        fits.then_some(effect.state)
    }
}
