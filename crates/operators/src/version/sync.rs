//! Applies a whole release: the objects of its graph, side by side where they may be, each tried several times.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tracing::{debug, warn};

use super::State;
use super::apply::Applier;
use super::failure::{Effect, Failure, summarize};
use super::graph::{Graph, Order};
use super::include::Criteria;
use super::manifest::Manifest;
use super::payload::Payload;

/// How far the work is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub done: usize,
    pub total: usize,
    pub failure: Option<Failure>,
}

/// How often an object is tried in one go, and the pauses between.
struct Backoff {
    steps: u32,
    first: Duration,
    factor: f64,
}

const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Attempts that share a permutation.
const ATTEMPTS_PER_SEED: u64 = 8;

impl State {
    fn order(self, attempt: u64) -> Order {
        match self {
            State::Initializing => Order::Flat,
            State::Updating => Order::Levels,
            State::Reconciling => Order::Permuted { seed: attempt / ATTEMPTS_PER_SEED },
        }
    }

    fn side_by_side(self) -> usize {
        match self {
            State::Initializing => usize::MAX,
            State::Updating => 16,
            State::Reconciling => 2,
        }
    }

    fn backoff(self) -> Backoff {
        match self {
            State::Initializing => Backoff { steps: 4, first: Duration::from_secs(1), factor: 2.0 },
            _ => Backoff { steps: 3, first: Duration::from_secs(10), factor: 1.3 },
        }
    }
}

/// Applies `payload` once and returns what was reached. `criteria` may have changed since it was loaded; `report` is
/// told of every step.
pub async fn sync(
    applier: &Applier,
    payload: &Payload,
    criteria: &Criteria,
    state: State,
    attempt: u64,
    report: impl Fn(Progress) + Sync,
) -> Progress {
    let manifests: Vec<&Manifest> = payload.manifests.iter().collect();
    let total = manifests.len();
    let graph = Graph::new(&manifests, state.order(attempt));
    let done = AtomicUsize::new(0);
    let reported = Mutex::new(Vec::new());
    let tell = |failure: Option<Failure>| Progress { done: done.load(Ordering::Relaxed), total, failure };
    let one = |task: usize| {
        let title = format!("{} ({} of {total})", manifests[task].title(), task + 1);
        let manifest = manifests[task];
        async move { persist(state, || applier.apply(manifest, &title, state)).await }
    };
    let failures = run(&graph, state.side_by_side(), |tasks: &[usize]| {
        let (wanted, skipped): (Vec<usize>, Vec<usize>) =
            tasks.iter().partition(|task| belongs(manifests[**task], criteria));
        done.fetch_add(skipped.len(), Ordering::Relaxed);
        let (manifests, done, reported, report, tell, one) =
            (&manifests, &done, &reported, &report, &tell, &one);
        async move {
            for task in
                wanted.iter().filter(|task| manifests[**task].is("config.openshift.io", "ClusterOperator"))
            {
                if let Err(error) = applier.precreate(manifests[*task]).await {
                    debug!(object = manifests[*task].title(), %error, "not created ahead of its turn");
                }
            }
            for task in wanted {
                report(tell(None));
                match one(task).await {
                    Ok(()) => {}
                    Err(failure) if failure.effect == Effect::Report => {
                        reported.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                    }
                    Err(failure) => return Err(failure),
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        }
    })
    .await;
    let reported = reported.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failure = summarize(if failures.is_empty() { reported } else { failures });
    Progress { done: done.into_inner(), total, failure }
}

fn belongs(manifest: &Manifest, criteria: &Criteria) -> bool {
    match criteria.include(manifest) {
        Ok(()) => true,
        Err(reason) => {
            debug!(object = manifest.title(), %reason, "skipped");
            false
        }
    }
}

/// Tries until it succeeds, until the failure is one that trying again does not mend, or a few times.
async fn persist<F>(state: State, mut attempt: impl FnMut() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let backoff = state.backoff();
    let mut pause = backoff.first;
    let mut left = backoff.steps;
    loop {
        left -= 1;
        match attempt().await {
            Ok(()) => return Ok(()),
            Err(failure) => {
                let of_requests = failure.reason.starts_with("UpdatePayload");
                if left == 0 || !of_requests {
                    return Err(failure);
                }
                warn!(%failure, "trying again");
            }
        }
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(backoff.factor).min(LONGEST_PAUSE);
    }
}

/// Runs the nodes of a graph, each after those that it waits for, at most `limit` at once. Behind a node that failed
/// nothing is begun; the rest goes on.
async fn run<F>(graph: &Graph, limit: usize, work: impl Fn(&[usize]) -> F) -> Vec<Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let mut waiting: BTreeSet<usize> = (0..graph.nodes.len()).collect();
    let mut succeeded = BTreeSet::new();
    let mut failures = Vec::new();
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < limit {
            let ready = waiting.iter().copied().find(|node| graph.nodes[*node].after.is_subset(&succeeded));
            let Some(node) = ready else { break };
            waiting.remove(&node);
            let outcome = work(&graph.nodes[node].tasks);
            running.push(async move { (node, outcome.await) });
        }
        match running.next().await {
            Some((node, Ok(()))) => {
                succeeded.insert(node);
            }
            Some((_, Err(failure))) => failures.push(failure),
            None => return failures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::graph::Node;

    fn graph(nodes: &[&[usize]]) -> Graph {
        let node = |(at, after): (usize, &&[usize])| Node {
            tasks: vec![at],
            after: after.iter().copied().collect(),
        };
        Graph { nodes: nodes.iter().enumerate().map(node).collect() }
    }

    #[tokio::test]
    async fn nothing_behind_a_failure_is_begun_and_the_rest_goes_on() {
        let begun = Mutex::new(Vec::new());
        let failures = run(&graph(&[&[], &[], &[0], &[1], &[2, 3]]), 16, |tasks: &[usize]| {
            begun.lock().unwrap().push(tasks[0]);
            std::future::ready(match tasks[0] {
                0 => Err(Failure::new(Effect::Fail, "UpdatePayloadFailed", "no".to_owned(), "")),
                _ => Ok(()),
            })
        })
        .await;
        assert_eq!(failures.len(), 1);
        assert_eq!(begun.into_inner().unwrap(), [0, 1, 3]);
    }

    #[tokio::test]
    async fn no_more_run_at_once_than_may() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let nodes: Vec<&[usize]> = vec![&[]; 10];
        run(&graph(&nodes), 3, |_: &[usize]| async {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            now.fetch_sub(1, Ordering::Relaxed);
            Ok(())
        })
        .await;
        assert_eq!(most.into_inner(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_failed_is_tried_again_and_an_operator_is_not() {
        let tries = AtomicUsize::new(0);
        let fail = |reason: &'static str| {
            tries.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Err(Failure::new(Effect::Fail, reason, "no".to_owned(), "")))
        };
        persist(State::Initializing, || fail("UpdatePayloadClusterDown")).await.unwrap_err();
        assert_eq!(tries.swap(0, Ordering::Relaxed), 4);
        persist(State::Initializing, || fail("ClusterOperatorNotAvailable")).await.unwrap_err();
        assert_eq!(tries.into_inner(), 1);
    }
}
