//! The extension points of a scheduling cycle.
//!
//! A [`Plugin`] has a name and says at which points it works by handing out itself as that point's trait. Everything
//! up to [`Permit`] is plain computation over the [`Cache`], under the scheduler's lock; [`PreBind`] and [`Bind`]
//! wait and write, outside of it. What a plugin works out once per cycle it keeps in the [`Cycle`] under a type of
//! its own. The framework that is tested is the framework that runs.

mod cycle;
mod failure;
mod measures;

use std::any::{Any, TypeId};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use jiff::Timestamp;

use crate::cache::{Cache, NodeInfo, PlacedPod};
use crate::events::{ClusterEvent, Events};
use crate::handle::Handle;
use crate::preemption::Preemption;
use crate::types::Pod;

pub use cycle::{Decision, Filters, Fit, Found, Framework};
pub use failure::Failure;
pub use measures::{Code, Measures, Point};

/// The best score that a plugin gives a node.
pub const MAX_SCORE: i64 = 100;

/// Why not, in words for users. Nearly always one, known at build time: then it costs nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum Reasons {
    One(Cow<'static, str>),
    More(Box<[Cow<'static, str>]>),
}

impl Reasons {
    /// These and one more.
    pub fn and(self, reason: Cow<'static, str>) -> Self {
        let mut all = match self {
            Self::One(one) => vec![one],
            Self::More(more) => more.into_vec(),
        };
        all.push(reason);
        Self::More(all.into())
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::More(more) => more,
        };
        all.iter().map(|reason| &**reason)
    }
}

impl std::fmt::Display for Reasons {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, reason) in self.iter().enumerate() {
            write!(out, "{}{reason}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl From<&'static str> for Reasons {
    fn from(reason: &'static str) -> Self {
        Self::One(reason.into())
    }
}

impl From<String> for Reasons {
    fn from(reason: String) -> Self {
        Self::One(reason.into())
    }
}

/// What a filter says of a pod and a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Fits,
    /// Not now; removing pods from the node may help.
    Refused(Reasons),
    /// Not on this node, whatever happens to its pods.
    Never(Reasons),
}

impl Verdict {
    pub fn refused(reason: impl Into<Reasons>) -> Self {
        Self::Refused(reason.into())
    }

    pub fn never(reason: impl Into<Reasons>) -> Self {
        Self::Never(reason.into())
    }
}

/// What a plugin found before the nodes are looked at.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    /// Every node has to be looked at.
    Check,
    /// The pod asks for nothing that the plugin guards: its filter is left out.
    Skip,
    /// Only these nodes are worth a look.
    Only(HashSet<Box<str>>),
    /// No node at all; removing pods may help.
    Refused(Reasons),
    /// No node at all.
    Never(Reasons),
}

/// Scratch data of one cycle, one value per type.
#[derive(Default)]
pub struct Cycle {
    values: Vec<(TypeId, Box<dyn Any + Send + Sync>)>,
    /// Filters and scores that this pod does not need, by place in the framework's lists.
    skipped_filters: u64,
    skipped_scores: u64,
    /// Whether calls of plugins are timed.
    sampled: bool,
}

impl Cycle {
    /// When a call of a plugin begins, if it is to be timed.
    pub(crate) fn clock(&self) -> Option<Instant> {
        self.sampled.then(Instant::now)
    }

    pub fn keep<T: Any + Send + Sync>(&mut self, value: T) {
        let kind = TypeId::of::<T>();
        self.values.retain(|(known, _)| *known != kind);
        self.values.push((kind, Box::new(value)));
    }

    pub fn get<T: Any>(&self) -> Option<&T> {
        let kind = TypeId::of::<T>();
        let (_, value) = self.values.iter().find(|(known, _)| *known == kind)?;
        value.downcast_ref()
    }

    pub fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        let kind = TypeId::of::<T>();
        let (_, value) = self.values.iter_mut().find(|(known, _)| *known == kind)?;
        value.downcast_mut()
    }
}

/// A part of the scheduler with a name. It overrides the points at which it works.
pub trait Plugin: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// The kinds of changes after which a pod that this plugin refused may be worth another try.
    fn wakes_on(&self) -> Events {
        Events::ALL
    }

    /// Whether a change of such a kind really may help this pod.
    fn may_help(&self, _pod: &Pod, _event: &ClusterEvent) -> bool {
        true
    }

    fn pre_enqueue(&self) -> Option<&dyn PreEnqueue> {
        None
    }
    fn queue_sort(&self) -> Option<&dyn QueueSort> {
        None
    }
    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        None
    }
    fn filter(&self) -> Option<&dyn Filter> {
        None
    }
    fn post_filter(&self) -> Option<&dyn PostFilter> {
        None
    }
    fn pre_score(&self) -> Option<&dyn PreScore> {
        None
    }
    fn score(&self) -> Option<&dyn Score> {
        None
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        None
    }
    fn permit(&self) -> Option<&dyn Permit> {
        None
    }
    fn pre_bind(&self) -> Option<&dyn PreBind> {
        None
    }
    fn bind(&self) -> Option<&dyn Bind> {
        None
    }
    fn post_bind(&self) -> Option<&dyn PostBind> {
        None
    }
}

/// Holds a pod back before it is tried at all.
pub trait PreEnqueue: Send + Sync {
    /// Why the pod may not be tried yet; it is asked again when the pod changes.
    fn holds_back(&self, pod: &Pod, cache: &Cache) -> Option<Reasons>;
}

/// A pod in the queue, as sorting sees it.
#[derive(Clone, Copy)]
pub struct Queued<'a> {
    pub pod: &'a Pod,
    /// Since when it waits for its turn.
    pub since: Timestamp,
}

/// Says which pod is tried first. There is exactly one of these.
pub trait QueueSort: Send + Sync {
    fn compare(&self, one: Queued<'_>, other: Queued<'_>) -> Ordering;
}

/// Looks at the pod once per cycle, before any node.
pub trait PreFilter: Send + Sync {
    fn pre_filter(&self, cycle: &mut Cycle, pod: &PlacedPod, cache: &mut Cache) -> Prepared;
}

/// Says which nodes can take a pod.
pub trait Filter: Send + Sync {
    fn filter(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> Verdict;

    /// Whether the answer may differ with the pods on the node. Those who look at the node alone are not asked
    /// again while preemption tries one pod after the other.
    fn heeds_pods(&self) -> bool {
        true
    }
}

/// Something that a plugin has done outside the cycle.
pub type Action = Box<dyn FnOnce(Handle) -> BoxFuture<'static, ()> + Send>;

/// What a plugin does for a pod that fits nowhere.
pub enum Remedy {
    /// Some pods leave a node for the pod. The first is the one to carry out; others stand by if all were wanted.
    Preempt(Vec<Preemption>),
    /// Something is done that may help; the pod is tried again when it shows. Others may help as well.
    Act(String, Action),
    /// It cannot help, and says why.
    None(String),
    /// It does not know enough to help, and nobody after it is asked.
    Unknown(String),
}

/// What came of asking all who may help.
#[derive(Default)]
pub struct Help {
    /// Pods that leave a node; the first is the one to carry out. None if nobody has to.
    pub preempt: Vec<Preemption>,
    pub actions: Vec<Action>,
}

/// What a post filter may look at.
pub struct Hopeless<'a> {
    pub framework: &'a Framework,
    pub cycle: &'a Cycle,
    pub pod: &'a PlacedPod,
    /// What the filters said of each node, by place; empty if no node was looked at.
    pub fits: &'a [Fit],
    /// Where to begin among the nodes.
    pub start: usize,
    /// Whether others have a say in who leaves, so that the best alone is not enough.
    pub every_candidate: bool,
}

/// Tries to help a pod that fits nowhere.
pub trait PostFilter: Send + Sync {
    fn post_filter(&self, hopeless: &Hopeless<'_>, cache: &mut Cache) -> Remedy;
}

/// Looks at the feasible nodes once per cycle, before any is scored.
pub trait PreScore: Send + Sync {
    /// Whether there is anything to score for this pod; `feasible` are places in the cache.
    fn pre_score(&self, cycle: &mut Cycle, pod: &PlacedPod, feasible: &[usize], cache: &mut Cache) -> bool;
}

/// Prefers some of the nodes that can take a pod.
pub trait Score: Send + Sync {
    /// The higher the better, on any scale that [`Score::normalize`] brings to 0..=[`MAX_SCORE`].
    fn score(&self, cycle: &Cycle, pod: &PlacedPod, node: &NodeInfo, cache: &Cache) -> i64;

    fn normalize(&self, _cycle: &Cycle, _scores: &mut [i64]) {}
}

/// Sets things aside for a pod whose node is chosen.
pub trait Reserve: Send + Sync {
    fn reserve(
        &self,
        cycle: &mut Cycle,
        pod: &PlacedPod,
        node: &str,
        cache: &mut Cache,
    ) -> Result<(), Reasons>;

    /// Gives back what was set aside. It is called for every plugin if any later step fails, and must bear being
    /// called for a plugin that has set nothing aside.
    fn unreserve(&self, cycle: &Cycle, pod: &Pod, node: &str, cache: &mut Cache);
}

/// What is to be done with a pod whose node is chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Permission {
    Granted,
    /// Not before [`Handle::allow`] is called for the pod, or not at all if that takes longer.
    Wait(Duration),
    Denied(Reasons),
}

/// Lets a binding go ahead, now or later.
pub trait Permit: Send + Sync {
    fn permit(&self, cycle: &Cycle, pod: &PlacedPod, node: &str) -> Permission;
}

/// Does what has to be done before a pod is bound, such as binding its volumes.
pub trait PreBind: Send + Sync {
    fn pre_bind<'a>(
        &'a self,
        cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<(), Reasons>>;

    /// Whether that takes more than a moment: then the API is told beforehand for which node it is done.
    fn takes_time(&self, _cycle: &Cycle, _pod: &Pod) -> bool {
        false
    }
}

/// Whether a pod was bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    Yes,
    /// Not by this plugin; the next may.
    NotMine,
}

/// Binds a pod to its node.
pub trait Bind: Send + Sync {
    fn bind<'a>(
        &'a self,
        cycle: &'a Cycle,
        pod: &'a Pod,
        node: &'a str,
        handle: &'a Handle,
    ) -> BoxFuture<'a, Result<Bound, client::Error>>;
}

/// Hears of a pod that was bound.
pub trait PostBind: Send + Sync {
    fn post_bind(&self, cycle: &Cycle, pod: &Pod, node: &str);
}

/// Brings scores to 0..=[`MAX_SCORE`] by the largest; with `reverse`, less is better.
pub fn normalize_by_largest(scores: &mut [i64], reverse: bool) {
    let largest = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = if largest == 0 { 0 } else { *score * MAX_SCORE / largest };
        if reverse {
            *score = MAX_SCORE - *score;
        }
    }
}

#[cfg(test)]
mod tests;
