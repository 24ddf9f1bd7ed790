//! Keeps a controller whose writes are undone at once from writing for ever as fast as it can.
//!
//! A kubelet that refuses a pod, a webhook that reverts a field, a second controller of another opinion: each of them
//! makes the same decision necessary again. What counts is that the same write of the same key comes back, in the same
//! state of the key's own object, soon after it was done. A few times that is usual and goes through at once (somebody
//! empties a node); then each further one waits twice as long as the one before, as upstream's work queues do after
//! failures, up to a limit. Who is left in peace for longer than that starts afresh. A write may also have a
//! [`Pace`] of its own, such as upstream's back-off of failed daemon pods.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use client::Key;
use serde_json::Value;
use tokio::time::Instant;

use crate::plan::{Plan, Verb, Write};

/// So often a write may come back before it has to wait.
const FREE: u32 = 10;
const FIRST: Duration = Duration::from_millis(5);
/// The longest pause before something is made again.
const LAST_CREATE: Duration = Duration::from_secs(15);
/// The longest pause before something is changed or removed again.
const LAST_CHANGE: Duration = Duration::from_secs(1);
/// A write that comes back later than this after its pause is a new matter.
const CALM: Duration = Duration::from_secs(1);
/// Beyond so many writes the calm ones are forgotten.
const REMEMBERED: usize = 4096;

/// How fast a write may be repeated: the first repetition waits `first`, each further one twice as long, at most `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// What is repeated, within the key.
    pub subject: String,
    /// The first pause.
    pub first: Duration,
    /// The longest pause; after twice as long without a repetition everything is forgotten.
    pub last: Duration,
}

/// What is remembered of the writes of one controller.
#[derive(Default)]
pub(crate) struct Paces {
    seen: Mutex<HashMap<(Key, u64), Seen>>,
}

struct Seen {
    at: Instant,
    times: u32,
    pause: Duration,
    forgotten_after: Duration,
}

impl Seen {
    fn is_calm(&self, now: Instant) -> bool {
        now.duration_since(self.at) > self.forgotten_after
    }

    /// How long it has to wait still.
    fn rest(&self, now: Instant) -> Duration {
        if self.is_calm(now) { Duration::ZERO } else { (self.at + self.pause).saturating_duration_since(now) }
    }

    fn repeated(&mut self, now: Instant, pace: Option<&Pace>, last: Duration) {
        if self.is_calm(now) {
            self.times = 0;
        }
        self.times = self.times.saturating_add(1);
        self.at = now;
        let doubled =
            |first: Duration, times: u32| first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX));
        match pace {
            Some(pace) => {
                self.pause = doubled(pace.first, self.times - 1).min(pace.last);
                self.forgotten_after = pace.last * 2;
            }
            None => {
                let beyond = self.times.checked_sub(FREE);
                self.pause = beyond.map_or(Duration::ZERO, |times| doubled(FIRST, times)).min(last);
                self.forgotten_after = self.pause * 2 + CALM;
            }
        }
    }
}

impl Paces {
    /// Takes out of a plan what has to wait, with the stages that would follow it, and notes the rest as done. Returns
    /// when to decide again. `state` tells the states of the key's own object apart: a wish that changed is a new one.
    pub fn hold(&self, plan: &mut Plan, key: &Key, state: u64, now: Instant) -> Option<Duration> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() > REMEMBERED {
            seen.retain(|_, one| !one.is_calm(now));
        }
        let state = (state, plan.progress);
        let mut decided: HashMap<u64, bool> = HashMap::new();
        let mut wait: Option<Duration> = None;
        let mut may = |write: &Write| {
            let print = fingerprint(write, state);
            *decided.entry(print).or_insert_with(|| {
                let one = seen.entry((key.clone(), print)).or_insert(Seen {
                    at: now,
                    times: 0,
                    pause: Duration::ZERO,
                    forgotten_after: CALM,
                });
                let rest = one.rest(now);
                if rest.is_zero() {
                    let last = if matches!(write.verb, Verb::Create(_)) { LAST_CREATE } else { LAST_CHANGE };
                    one.repeated(now, write.pace.as_ref(), last);
                    return true;
                }
                wait = Some(wait.map_or(rest, |earlier| earlier.min(rest)));
                false
            })
        };
        plan.retain(&mut may);
        wait
    }
}

/// A number that is equal for writes that do the same. Times and revisions do not count: they always differ.
fn fingerprint(write: &Write, state: (u64, u64)) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    if let Some(pace) = &write.pace {
        pace.subject.hash(&mut hasher);
        return hasher.finish();
    }
    (&*write.resource.group, &*write.resource.plural, &write.key, write.subresource).hash(&mut hasher);
    std::mem::discriminant(&write.verb).hash(&mut hasher);
    match &write.verb {
        Verb::Create(body) | Verb::Replace(body) | Verb::Patch { body, .. } => shape(body, &mut hasher),
        Verb::Update { change, .. } => shape(change, &mut hasher),
        Verb::Delete { .. } | Verb::DeleteCollection => {}
    }
    hasher.finish()
}

fn shape(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(fields) => {
            fields.len().hash(hasher);
            for (name, value) in fields.iter().filter(|(name, _)| *name != "resourceVersion") {
                name.hash(hasher);
                shape(value, hasher);
            }
        }
        Value::Array(items) => {
            items.len().hash(hasher);
            items.iter().for_each(|item| shape(item, hasher));
        }
        Value::String(text) if is_time(text) => {}
        Value::String(text) => text.hash(hasher),
        other => other.to_string().hash(hasher),
    }
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    matches!(bytes.len(), 20..=35) && bytes[10] == b'T' && bytes[4] == b'-' && bytes[bytes.len() - 1] == b'Z'
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Resource;
    use serde_json::json;

    fn pods() -> Resource {
        Resource::namespaced("", "v1", "pods", "Pod")
    }

    fn create(more: &Value) -> Plan {
        let mut plan = Plan::default();
        plan.create(&pods(), json!({"metadata": {"namespace": "n", "generateName": "web-"}, "spec": more}));
        plan
    }

    /// How many of the runs that follow at once may write within `minutes`.
    async fn runs(paces: &Paces, minutes: u64, plan: impl Fn(u64) -> Plan) -> u64 {
        let (begin, mut number) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs(60 * minutes) {
            let mut plan = plan(number);
            match paces.hold(&mut plan, &Key::new("n", "web"), 1, Instant::now()) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => number += 1,
            }
            assert!(number < 10_000, "it spins");
        }
        number
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_back_at_once_comes_ever_slower() {
        let paces = Paces::default();
        let first = runs(&paces, 1, |_| create(&json!({"at": "2026-01-01T00:00:00Z"}))).await;
        assert!((10..=30).contains(&first), "{first} in the first minute");
        let later = runs(&paces, 1, |_| create(&json!({"at": "2026-01-01T00:00:01Z"}))).await;
        assert!((3..=5).contains(&later), "{later} in a later minute");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let mut plan = create(&json!({"at": "2026-01-01T00:00:01Z"}));
        for _ in 0..FREE {
            assert_eq!(paces.hold(&mut plan, &Key::new("n", "web"), 1, Instant::now()), None, "it was calm");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn progress_is_not_slowed_down() {
        let paces = Paces::default();
        let now = Instant::now();
        for number in 0..1000 {
            let mut plan = create(&json!({}));
            plan.progress = number;
            assert_eq!(paces.hold(&mut plan, &Key::new("n", "job"), 1, now), None);
            let mut plan = create(&json!({}));
            assert_eq!(paces.hold(&mut plan, &Key::new("n", "set"), number, now), None, "another wish");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_with_its_own_pace_keeps_it_and_stops_what_follows() {
        let paces = Paces::default();
        let plan = || {
            let mut plan = Plan::default();
            let pace = Pace {
                subject: "uid/1/node".into(),
                first: Duration::from_secs(1),
                last: Duration::from_secs(900),
            };
            plan.create(&pods(), json!({"metadata": {"namespace": "n", "name": "a"}})).pace = Some(pace);
            plan.create(&pods(), json!({"metadata": {"namespace": "n", "name": "b"}}));
            plan.then().create(&pods(), json!({"metadata": {"namespace": "n", "name": "c"}}));
            plan
        };
        let hold = |plan: &mut Plan| paces.hold(plan, &Key::new("n", "d"), 1, Instant::now());
        let mut first = plan();
        assert_eq!((hold(&mut first), first.creates().len()), (None, 3));
        for seconds in [1, 2, 4] {
            let mut again = plan();
            assert_eq!((hold(&mut again), again.creates().len()), (Some(Duration::from_secs(seconds)), 1));
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            assert_eq!(hold(&mut plan()), None);
        }
    }
}
