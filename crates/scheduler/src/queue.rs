//! Pods that wait for a node: ready to be tried, backing off, or set aside until something changes.
//!
//! ```text
//! add ─► active ─pop─► (cycle) ─failed─► unschedulable ─a change that may help─► backoff or active
//! ```
//!
//! The order is priority, then age in the queue. A pod that changed while its cycle ran, or while events came
//! that might help it, goes straight to backoff, so no wake-up is lost.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::framework::WakeUp;
use crate::types::Pod;

/// Set-aside pods are tried again after this long even if nothing seems to have changed.
pub const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(300);

/// A pod in the queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub pod: Arc<Pod>,
    pub attempts: u32,
    sequence: u64,
    place: Place,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Active,
    Backoff {
        until: Timestamp,
    },
    /// Which changes may help, as the plugins that refused the pod said.
    Unschedulable {
        wakes_on: Vec<WakeUp>,
        set_aside: Timestamp,
    },
    /// Held back by scheduling gates; only a change of the pod itself helps.
    Gated,
    InCycle {
        woken: bool,
    },
}

type Order = (Reverse<i32>, u64, Box<str>);

/// The queue of one scheduler.
#[derive(Debug)]
pub struct Queue {
    first_backoff: SignedDuration,
    longest_backoff: SignedDuration,
    pods: HashMap<Box<str>, Waiting>,
    active: BTreeSet<Order>,
    backoff: BTreeSet<(Timestamp, Box<str>)>,
    next_sequence: u64,
}

impl Queue {
    /// An empty queue with these pauses after failed attempts.
    pub fn new(first_backoff_seconds: i64, longest_backoff_seconds: i64) -> Self {
        Self {
            first_backoff: SignedDuration::from_secs(first_backoff_seconds),
            longest_backoff: SignedDuration::from_secs(longest_backoff_seconds),
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            next_sequence: 0,
        }
    }

    /// The first pause, doubled with each attempt, up to the longest.
    fn pause(&self, attempts: u32) -> SignedDuration {
        let doublings = attempts.saturating_sub(1).min(16);
        let pause = self.first_backoff.checked_mul(1 << doublings).unwrap_or(self.longest_backoff);
        pause.min(self.longest_backoff)
    }

    /// A pod that needs a node, new or changed.
    pub fn set(&mut self, pod: Arc<Pod>, gated: bool) {
        let uid = pod.metadata.uid.clone();
        let (attempts, sequence, place) = match self.take(&uid) {
            Some(old) => (old.attempts, old.sequence, old.place),
            None => {
                self.next_sequence += 1;
                (0, self.next_sequence, Place::Active)
            }
        };
        let place = match place {
            _ if gated => Place::Gated,
            Place::InCycle { .. } => Place::InCycle { woken: true },
            backoff @ Place::Backoff { .. } => backoff,
            Place::Active | Place::Unschedulable { .. } | Place::Gated => Place::Active,
        };
        self.put(Waiting { pod, attempts, sequence, place });
    }

    /// The pod is bound, deleted or someone else's.
    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
    }

    /// The next pod to try.
    pub fn pop(&mut self, now: Timestamp) -> Option<Waiting> {
        self.promote(now);
        let (_, _, uid) = self.active.first()?.clone();
        let mut waiting = self.take(&uid)?;
        waiting.attempts += 1;
        waiting.place = Place::InCycle { woken: false };
        self.put(waiting.clone());
        Some(waiting)
    }

    /// The cycle found no node; `wakes_on` are the changes that may help.
    pub fn failed(&mut self, uid: &str, wakes_on: Vec<WakeUp>, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        waiting.place = match waiting.place {
            Place::InCycle { woken: true } => Place::Backoff { until: now + self.pause(waiting.attempts) },
            Place::InCycle { woken: false } => Place::Unschedulable { wakes_on, set_aside: now },
            elsewhere => elsewhere,
        };
        self.put(waiting);
    }

    /// The cycle ended in an error that has nothing to do with the cluster's state: try again after a pause.
    pub fn retry(&mut self, uid: &str, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        waiting.place = Place::Backoff { until: now + self.pause(waiting.attempts) };
        self.put(waiting);
    }

    /// Something changed in the cluster: whoever it may help is tried again.
    pub fn wake(&mut self, change: WakeUp, now: Timestamp) {
        let mut woken = Vec::new();
        for (uid, waiting) in &mut self.pods {
            match &mut waiting.place {
                Place::Unschedulable { wakes_on, .. } if wakes_on.contains(&change) => {
                    woken.push(uid.clone())
                }
                Place::InCycle { woken } => *woken = true,
                _ => {}
            }
        }
        for uid in woken {
            self.release(&uid, now);
        }
    }

    /// When the queue next has something to do by itself.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let backoff = self.backoff.first().map(|(until, _)| *until);
        let aside = self.pods.values().filter_map(|waiting| match waiting.place {
            Place::Unschedulable { set_aside, .. } => Some(set_aside + LONGEST_WAIT),
            _ => None,
        });
        backoff.into_iter().chain(aside).min()
    }

    fn promote(&mut self, now: Timestamp) {
        while let Some((until, uid)) = self.backoff.first().cloned() {
            if until > now {
                break;
            }
            if let Some(mut waiting) = self.take(&uid) {
                waiting.place = Place::Active;
                self.put(waiting);
            }
        }
        let overdue = |waiting: &Waiting| matches!(waiting.place, Place::Unschedulable { set_aside, .. } if set_aside + LONGEST_WAIT <= now);
        let stale: Vec<Box<str>> =
            self.pods.iter().filter(|(_, waiting)| overdue(waiting)).map(|(uid, _)| uid.clone()).collect();
        for uid in stale {
            self.release(&uid, now);
        }
    }

    /// Out of the unschedulable: active at once if its back-off is over already.
    fn release(&mut self, uid: &str, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        let Place::Unschedulable { set_aside, .. } = waiting.place else { return self.put(waiting) };
        let until = set_aside + self.pause(waiting.attempts);
        waiting.place = if until <= now { Place::Active } else { Place::Backoff { until } };
        self.put(waiting);
    }

    fn take(&mut self, uid: &str) -> Option<Waiting> {
        let waiting = self.pods.remove(uid)?;
        match &waiting.place {
            Place::Active => {
                self.active.remove(&order(&waiting));
            }
            Place::Backoff { until } => {
                self.backoff.remove(&(*until, uid.into()));
            }
            _ => {}
        }
        Some(waiting)
    }

    fn put(&mut self, waiting: Waiting) {
        let uid = waiting.pod.metadata.uid.clone();
        match &waiting.place {
            Place::Active => {
                self.active.insert(order(&waiting));
            }
            Place::Backoff { until } => {
                self.backoff.insert((*until, uid.clone()));
            }
            _ => {}
        }
        self.pods.insert(uid, waiting);
    }
}

fn order(waiting: &Waiting) -> Order {
    (Reverse(waiting.pod.spec.priority), waiting.sequence, waiting.pod.metadata.uid.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, priority: i32) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": {"priority": priority}}))
                .unwrap(),
        )
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn pop(queue: &mut Queue, now: Timestamp) -> Option<String> {
        queue.pop(now).map(|waiting| waiting.pod.metadata.uid.to_string())
    }

    #[test]
    fn priority_comes_before_age() {
        let mut queue = Queue::new(1, 10);
        for (uid, priority) in [("old", 0), ("urgent", 5), ("new", 0)] {
            queue.set(pod(uid, priority), false);
        }
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, at(0))).collect();
        assert_eq!(order, ["urgent", "old", "new"]);
    }

    #[test]
    fn only_a_helpful_change_wakes_a_pod() {
        let mut queue = Queue::new(1, 10);
        queue.set(pod("p", 0), false);
        pop(&mut queue, at(0));
        queue.failed("p", vec![WakeUp::NodeChanged], at(0));
        queue.wake(WakeUp::PodGone, at(5));
        assert_eq!(pop(&mut queue, at(5)), None);
        queue.wake(WakeUp::NodeChanged, at(5));
        assert_eq!(pop(&mut queue, at(5)), Some("p".into()));
    }

    #[test]
    fn a_change_during_the_cycle_is_not_lost() {
        let mut queue = Queue::new(1, 10);
        queue.set(pod("p", 0), false);
        pop(&mut queue, at(0));
        queue.wake(WakeUp::NodeChanged, at(0));
        queue.failed("p", vec![WakeUp::NodeChanged], at(0));
        assert_eq!(pop(&mut queue, at(0)), None, "it backs off first");
        assert_eq!(pop(&mut queue, at(1)), Some("p".into()));
    }

    #[test]
    fn gates_hold_a_pod_until_they_are_gone() {
        let mut queue = Queue::new(1, 10);
        queue.set(pod("p", 0), true);
        queue.wake(WakeUp::NodeChanged, at(0));
        assert_eq!(pop(&mut queue, at(0)), None);
        queue.set(pod("p", 0), false);
        assert_eq!(pop(&mut queue, at(1)), Some("p".into()));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut queue = Queue::new(1, 10);
        queue.set(pod("p", 0), false);
        pop(&mut queue, at(0));
        queue.failed("p", vec![], at(0));
        assert_eq!(queue.next_deadline(), Some(at(300)));
        assert_eq!(pop(&mut queue, at(300)), Some("p".into()));
    }

    #[test]
    fn back_off_doubles_up_to_ten_seconds() {
        let seconds: Vec<i64> = (1..=6).map(|attempt| Queue::new(1, 10).pause(attempt).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
    }
}
