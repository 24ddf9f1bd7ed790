//! Pods that wait for a node: ready to be tried, backing off, or set aside until something changes.
//!
//! ```text
//! add ─► active ─pop─► (cycle) ─failed─► unschedulable ─a change that may help─► backoff or active
//! ```
//!
//! The order is the profile's (priority, then age, by default). A pod that changed while its cycle ran, or while
//! events came that might help it, goes straight to backoff, so no wake-up is lost. Only set-aside pods are walked
//! over when something changes, never the active ones.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::cache::Cache;
use crate::events::{ClusterEvent, Events};
use crate::framework::{Framework, Queued};
use crate::types::Pod;

/// Set-aside pods are tried again after this long even if nothing seems to have changed.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(300);

/// Which profile a pod is of.
pub type Profile = usize;

/// A pod in the queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub pod: Arc<Pod>,
    pub profile: Profile,
    pub attempts: u32,
    /// When the scheduler first saw the pod.
    pub since: Timestamp,
    /// Since when no plugin holds it back.
    pub free_since: Option<Timestamp>,
    sequence: u64,
    place: Place,
}

/// Who refused a pod, and what may help it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Refusal {
    pub plugins: u64,
    pub wakes_on: Events,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Active,
    Backoff {
        until: Timestamp,
    },
    Unschedulable {
        refusal: Refusal,
        set_aside: Timestamp,
    },
    /// Held back by a plugin; a change of the pod, or of something that the plugin names, helps.
    Gated,
    InCycle {
        /// How many changes there had been when the cycle began.
        changes: u64,
    },
}

impl Place {
    /// The part of the queue, as metrics name it; none while the pod's cycle runs.
    fn part(&self) -> Option<&'static str> {
        match self {
            Self::Active => Some("active"),
            Self::Backoff { .. } => Some("backoff"),
            Self::Unschedulable { .. } | Self::Gated => Some("unschedulable"),
            Self::InCycle { .. } => None,
        }
    }
}

/// How many pods are where.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sizes {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
    pub gated: usize,
}

/// A pod's place in the order.
#[derive(Clone)]
struct Turn {
    order: Arc<Framework>,
    pod: Arc<Pod>,
    since: Timestamp,
    sequence: u64,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let queued = |turn: &'_ Self| turn.since;
        let one = Queued { pod: &self.pod, since: queued(self) };
        let two = Queued { pod: &other.pod, since: queued(other) };
        self.order.compare(one, two).then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

/// The queue of one scheduler.
pub struct Queue {
    first_backoff: SignedDuration,
    longest_backoff: SignedDuration,
    longest_wait: SignedDuration,
    profiles: Vec<Arc<Framework>>,
    pods: HashMap<Box<str>, Waiting>,
    active: BTreeSet<Turn>,
    backoff: BTreeSet<(Timestamp, Box<str>)>,
    /// By when they were set aside.
    unschedulable: BTreeSet<(Timestamp, Box<str>)>,
    gated: BTreeSet<Box<str>>,
    /// Counts changes in the cluster: a cycle that sees it move was overtaken by one.
    changes: u64,
    next_sequence: u64,
    /// How many pods came into which part because of what.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

impl Queue {
    /// An empty queue for these profiles, with these pauses after failed attempts.
    pub fn new(
        profiles: Vec<Arc<Framework>>,
        first_backoff_seconds: i64,
        longest_backoff_seconds: i64,
    ) -> Self {
        Self {
            first_backoff: SignedDuration::from_secs(first_backoff_seconds),
            longest_backoff: SignedDuration::from_secs(longest_backoff_seconds),
            longest_wait: LONGEST_WAIT,
            profiles,
            pods: HashMap::new(),
            active: BTreeSet::new(),
            backoff: BTreeSet::new(),
            unschedulable: BTreeSet::new(),
            gated: BTreeSet::new(),
            changes: 1,
            next_sequence: 0,
            incoming: BTreeMap::new(),
        }
    }

    /// The same queue, in which a pod is set aside no longer than this.
    #[must_use]
    pub fn waiting_at_most(mut self, longest: SignedDuration) -> Self {
        self.longest_wait = longest;
        self
    }

    /// The first pause, doubled with each attempt, up to the longest.
    fn pause(&self, attempts: u32) -> SignedDuration {
        let doublings = attempts.saturating_sub(1).min(16);
        let pause = self.first_backoff.checked_mul(1 << doublings).unwrap_or(self.longest_backoff);
        pause.min(self.longest_backoff)
    }

    /// A pod that needs a node, new or changed.
    pub fn set(&mut self, pod: Arc<Pod>, profile: Profile, gated: bool, now: Timestamp) {
        let uid = pod.metadata.uid.clone();
        let old = self.take(&uid);
        let (attempts, since, sequence) = match &old {
            Some(old) => (old.attempts, old.since, old.sequence),
            None => {
                self.next_sequence += 1;
                (0, now, self.next_sequence)
            }
        };
        let free_since = old.as_ref().and_then(|old| old.free_since).or((!gated).then_some(now));
        let event = if old.is_some() { "UnschedulablePodUpdate" } else { "UnschedulablePodAdd" };
        let part = old.as_ref().and_then(|old| old.place.part());
        let before = old.map(|old| (old.place, old.pod));
        let place = match before {
            _ if gated => Place::Gated,
            None | Some((Place::Active | Place::Gated, _)) => Place::Active,
            // The pod that the cycle looks at is not the one that there is now.
            Some((Place::InCycle { .. }, _)) => Place::InCycle { changes: 0 },
            Some((backoff @ Place::Backoff { .. }, _)) => backoff,
            // A new condition or nomination is the scheduler's own word; only a change of the wish itself helps.
            Some((aside, old)) if !wish_changed(&old, &pod) => aside,
            Some(_) => Place::Active,
        };
        if place.part() != part {
            self.count(&place, event);
        }
        self.put(Waiting { pod, profile, attempts, since, free_since, sequence, place });
    }

    /// The pod is bound, deleted or someone else's.
    pub fn remove(&mut self, uid: &str) {
        self.take(uid);
    }

    /// The next pod to try.
    pub fn pop(&mut self, now: Timestamp) -> Option<Waiting> {
        self.promote(now);
        let uid = self.active.first()?.pod.metadata.uid.clone();
        let mut waiting = self.take(&uid)?;
        waiting.attempts += 1;
        waiting.place = Place::InCycle { changes: self.changes };
        self.put(waiting.clone());
        Some(waiting)
    }

    /// The cycle found no node.
    pub fn failed(&mut self, uid: &str, refusal: Refusal, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        waiting.place = match waiting.place {
            Place::InCycle { changes } if changes != self.changes => {
                Place::Backoff { until: now + self.pause(waiting.attempts) }
            }
            Place::InCycle { .. } => Place::Unschedulable { refusal, set_aside: now },
            elsewhere => elsewhere,
        };
        self.count(&waiting.place, "ScheduleAttemptFailure");
        self.put(waiting);
    }

    fn count(&mut self, place: &Place, event: &'static str) {
        if let Some(part) = place.part() {
            *self.incoming.entry((part, event)).or_insert(0) += 1;
        }
    }

    /// How many pods came into each part, by what brought them there.
    pub fn incoming(&self) -> &BTreeMap<(&'static str, &'static str), u64> {
        &self.incoming
    }

    /// How many pods each plugin refuses or holds back, by the profile's name and its own.
    pub fn refused(
        &self,
        names: &[&'static str],
        cache: &Cache,
    ) -> BTreeMap<(&'static str, &'static str), usize> {
        let mut counts = BTreeMap::new();
        for waiting in self.pods.values() {
            let framework = &self.profiles[waiting.profile];
            let mut count = |plugin| *counts.entry((names[waiting.profile], plugin)).or_insert(0) += 1;
            match &waiting.place {
                Place::Unschedulable { refusal, .. } => {
                    let refused = |place: usize| refusal.plugins & (1 << place) != 0;
                    let all = framework.plugins.iter().enumerate();
                    all.filter(|(place, _)| refused(*place)).for_each(|(_, plugin)| count(plugin.name()));
                }
                Place::Gated => {
                    framework.holds_back(&waiting.pod, cache).into_iter().for_each(|(name, _)| count(name));
                }
                _ => {}
            }
        }
        counts
    }

    /// The cycle ended in an error that has nothing to do with the cluster's state: try again after a pause.
    pub fn retry(&mut self, uid: &str, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        waiting.place = Place::Backoff { until: now + self.pause(waiting.attempts) };
        self.count(&waiting.place, "ScheduleAttemptFailure");
        self.put(waiting);
    }

    /// Something changed in the cluster: whoever it may help is tried again. Says whether there is anybody.
    pub fn wake(&mut self, event: &ClusterEvent, now: Timestamp) -> bool {
        self.changes += 1;
        if self.unschedulable.is_empty() {
            return false;
        }
        let kind = event.kind();
        let helped = |uid: &str| {
            let waiting = self.pods.get(uid)?;
            let Place::Unschedulable { refusal, .. } = &waiting.place else { return None };
            let may = refusal.plugins == 0 || refusal.wakes_on.contains(kind);
            (may && self.profiles[waiting.profile].may_help(refusal.plugins, &waiting.pod, event))
                .then(|| Box::from(uid))
        };
        let woken: Vec<Box<str>> = self.unschedulable.iter().filter_map(|(_, uid)| helped(uid)).collect();
        for uid in &woken {
            self.release(uid, event.label(), now);
        }
        !woken.is_empty()
    }

    /// Pods that a plugin holds back; it may have changed its mind.
    pub fn gated(&self) -> Vec<(Arc<Pod>, Profile)> {
        let waiting = self.gated.iter().filter_map(|uid| self.pods.get(uid));
        waiting.map(|waiting| (waiting.pod.clone(), waiting.profile)).collect()
    }

    /// When the queue next has something to do by itself.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let backoff = self.backoff.first().map(|(until, _)| *until);
        let aside = self.unschedulable.first().map(|(set_aside, _)| *set_aside + self.longest_wait);
        backoff.into_iter().chain(aside).min()
    }

    pub fn sizes(&self) -> Sizes {
        Sizes {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: self.unschedulable.len(),
            gated: self.gated.len(),
        }
    }

    fn promote(&mut self, now: Timestamp) {
        while let Some((until, uid)) = self.backoff.first().cloned() {
            if until > now {
                break;
            }
            if let Some(mut waiting) = self.take(&uid) {
                waiting.place = Place::Active;
                self.count(&waiting.place, "BackoffComplete");
                self.put(waiting);
            }
        }
        while let Some((set_aside, uid)) = self.unschedulable.first().cloned() {
            if set_aside + self.longest_wait > now {
                break;
            }
            self.release(&uid, "UnschedulableTimeout", now);
        }
    }

    /// Out of the unschedulable: active at once if its back-off is over already.
    fn release(&mut self, uid: &str, event: &'static str, now: Timestamp) {
        let Some(mut waiting) = self.take(uid) else { return };
        let Place::Unschedulable { set_aside, .. } = waiting.place else { return self.put(waiting) };
        let until = set_aside + self.pause(waiting.attempts);
        waiting.place = if until <= now { Place::Active } else { Place::Backoff { until } };
        self.count(&waiting.place, event);
        self.put(waiting);
    }

    fn turn(&self, waiting: &Waiting) -> Turn {
        Turn {
            // All profiles sort alike, as upstream demands.
            order: self.profiles[waiting.profile].clone(),
            pod: waiting.pod.clone(),
            since: waiting.since,
            sequence: waiting.sequence,
        }
    }

    fn take(&mut self, uid: &str) -> Option<Waiting> {
        let waiting = self.pods.remove(uid)?;
        let _was_there = match &waiting.place {
            Place::Active => self.active.remove(&self.turn(&waiting)),
            Place::Backoff { until } => self.backoff.remove(&(*until, uid.into())),
            Place::Unschedulable { set_aside, .. } => self.unschedulable.remove(&(*set_aside, uid.into())),
            Place::Gated => self.gated.remove(uid),
            Place::InCycle { .. } => true,
        };
        Some(waiting)
    }

    fn put(&mut self, waiting: Waiting) {
        let uid = waiting.pod.metadata.uid.clone();
        let _is_new = match &waiting.place {
            Place::Active => self.active.insert(self.turn(&waiting)),
            Place::Backoff { until } => self.backoff.insert((*until, uid.clone())),
            Place::Unschedulable { set_aside, .. } => self.unschedulable.insert((*set_aside, uid.clone())),
            Place::Gated => self.gated.insert(uid.clone()),
            Place::InCycle { .. } => true,
        };
        self.pods.insert(uid, waiting);
    }
}

/// Whether a pod asks for something else than before.
fn wish_changed(old: &Pod, new: &Pod) -> bool {
    old.metadata.generation != new.metadata.generation
        || old.metadata.generation == 0
        || old.metadata.labels != new.metadata.labels
        || old.status.resource_claim_statuses != new.status.resource_claim_statuses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins;
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

    fn queue() -> Queue {
        Queue::new(vec![Arc::new(plugins::default_framework())], 1, 10)
    }

    fn pop(queue: &mut Queue, now: Timestamp) -> Option<String> {
        queue.pop(now).map(|waiting| waiting.pod.metadata.uid.to_string())
    }

    fn refused_by(queue: &Queue, plugin: &str) -> Refusal {
        let framework = &queue.profiles[0];
        let place = framework.plugins.iter().position(|other| other.name() == plugin).unwrap();
        Refusal { plugins: 1 << place, wakes_on: framework.plugins[place].wakes_on() }
    }

    fn node(cpu: &str) -> ClusterEvent {
        let value = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": cpu}}});
        ClusterEvent::NodeAdded(Arc::new(serde_json::from_value(value).unwrap()))
    }

    #[test]
    fn priority_comes_before_age() {
        let mut queue = queue();
        for (uid, priority) in [("old", 0), ("urgent", 5), ("new", 0)] {
            queue.set(pod(uid, priority), 0, false, at(0));
        }
        let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue, at(0))).collect();
        assert_eq!(order, ["urgent", "old", "new"]);
    }

    #[test]
    fn only_a_helpful_change_wakes_a_pod() {
        let mut queue = queue();
        let asking = json!({"metadata": {"uid": "p", "generation": 1},
            "spec": {"containers": [{"resources": {"requests": {"cpu": "2"}}}]}});
        queue.set(Arc::new(serde_json::from_value(asking).unwrap()), 0, false, at(0));
        pop(&mut queue, at(0));
        let refusal = refused_by(&queue, "NodeResourcesFit");
        queue.failed("p", refusal, at(0));
        queue.wake(&ClusterEvent::NamespaceChanged, at(5));
        queue.wake(&node("1"), at(5));
        assert_eq!(pop(&mut queue, at(5)), None, "too small a node does not help");
        queue.wake(&node("2"), at(5));
        assert_eq!(pop(&mut queue, at(5)), Some("p".into()));
        let incoming: Vec<_> =
            queue.incoming().iter().map(|((part, event), n)| (*part, *event, *n)).collect();
        let wanted = [
            ("active", "NodeAdd", 1),
            ("active", "UnschedulablePodAdd", 1),
            ("unschedulable", "ScheduleAttemptFailure", 1),
        ];
        assert_eq!(incoming, wanted);
    }

    #[test]
    fn a_change_during_the_cycle_is_not_lost() {
        let mut queue = queue();
        queue.set(pod("p", 0), 0, false, at(0));
        pop(&mut queue, at(0));
        queue.wake(&node("1"), at(0));
        queue.failed("p", Refusal::default(), at(0));
        assert_eq!(pop(&mut queue, at(0)), None, "it backs off first");
        assert_eq!(pop(&mut queue, at(1)), Some("p".into()));
    }

    #[test]
    fn gates_hold_a_pod_until_they_are_gone() {
        let mut queue = queue();
        queue.set(pod("p", 0), 0, true, at(0));
        queue.wake(&node("1"), at(0));
        assert_eq!((pop(&mut queue, at(0)), queue.sizes().gated), (None, 1));
        queue.set(pod("p", 0), 0, false, at(0));
        assert_eq!(pop(&mut queue, at(1)), Some("p".into()));
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut queue = queue();
        queue.set(pod("p", 0), 0, false, at(0));
        pop(&mut queue, at(0));
        let refusal = refused_by(&queue, "NodeName");
        queue.failed("p", refusal, at(0));
        assert_eq!(queue.next_deadline(), Some(at(300)));
        let mut queue = queue.waiting_at_most(SignedDuration::from_secs(60));
        assert_eq!((queue.next_deadline(), pop(&mut queue, at(59))), (Some(at(60)), None));
        assert_eq!(pop(&mut queue, at(60)), Some("p".into()));
    }

    #[test]
    fn back_off_doubles_up_to_ten_seconds() {
        let seconds: Vec<i64> = (1..=6).map(|attempt| queue().pause(attempt).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 10, 10]);
    }
}
