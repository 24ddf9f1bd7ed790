//! PodDisruptionBudgets: how many pods may be evicted now. The eviction itself is checked by the API server, which takes
//! from `disruptionsAllowed` and notes the pod in `disruptedPods`.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use controller_runtime::{
    Caches, Change, Context, Controller, Key, Kind, Meta, Plan, Selector, difference, time,
};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kinds::{
    Condition, Deployment, IntOrString, Pod, ReplicaSet, ReplicationController, StatefulSet, kind, none,
    set_condition,
};

/// An evicted pod that is still there after this long was not deleted after all.
const FORGET: SignedDuration = SignedDuration::from_secs(120);

/// A PodDisruptionBudget.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    /// Metadata.
    pub metadata: Meta,
    /// What is wanted.
    pub spec: BudgetSpec,
    /// What is.
    pub status: BudgetStatus,
}
kind!(PodDisruptionBudget, POD_DISRUPTION_BUDGETS, keep none);

/// Of `spec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetSpec {
    /// How many pods must stay.
    pub min_available: Option<IntOrString>,
    /// How many pods may be missing.
    pub max_unavailable: Option<IntOrString>,
    /// Which pods are meant.
    pub selector: Selector,
}

/// Of `status`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetStatus {
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// Pods whose eviction was granted, and when.
    pub disrupted_pods: BTreeMap<Box<str>, Timestamp>,
    /// How many more may be evicted.
    pub disruptions_allowed: i64,
    /// Healthy pods.
    pub current_healthy: i64,
    /// Healthy pods that must stay.
    pub desired_healthy: i64,
    /// Pods that should be there.
    pub expected_pods: i64,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// What one budget may depend on.
pub struct View {
    /// The budget.
    pub budget: Arc<PodDisruptionBudget>,
    /// The pods that it selects.
    pub pods: Vec<Arc<Pod>>,
    /// How many pods their controllers want, or why that cannot be told.
    pub expected: Result<i64, String>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one budget.
pub fn reconcile(view: &View) -> Plan {
    let budget = &*view.budget;
    let mut plan = Plan::default();
    if view.pods.is_empty() {
        plan.event(budget, "NoPods", "No matching pods found");
    }
    let (mut disrupted, mut again) = (BTreeMap::new(), None);
    for (name, since) in &budget.status.disrupted_pods {
        // An entry counts until the pod is seen going, or for a while at most.
        let pending =
            view.pods.iter().any(|pod| pod.metadata.name == *name && !pod.metadata.is_terminating());
        let until = since.checked_add(FORGET).unwrap_or(view.now);
        if pending && until > view.now {
            disrupted.insert(name.clone(), time(*since));
            again = Some(again.map_or(until, |other: Timestamp| other.min(until)));
        } else if pending {
            plan.warn(
                budget,
                "NotDeleted",
                format!("Pod {name} was expected by PDB to be deleted but it wasn't"),
            );
        }
    }
    let healthy = view
        .pods
        .iter()
        .filter(|pod| pod.is_active() && pod.is_ready() && !disrupted.contains_key(&pod.metadata.name))
        .count() as i64;
    let (expected, desired) = match bounds(view) {
        Ok(bounds) => bounds,
        Err(why) => {
            plan.warn(
                budget,
                "CalculateExpectedPodCountFailed",
                format!("Failed to calculate the number of expected pods: {why}"),
            );
            let mut conditions = budget.status.conditions.clone();
            set_condition(&mut conditions, told(budget, "False", "SyncFailed", why, view.now));
            if conditions != budget.status.conditions {
                plan.set_status(budget, json!({"conditions": conditions, "disruptionsAllowed": 0}));
            }
            return plan;
        }
    };
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let mut conditions = budget.status.conditions.clone();
    let (word, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    set_condition(&mut conditions, told(budget, word, reason, String::new(), view.now));
    let status = json!({
        "observedGeneration": budget.metadata.generation.max(budget.status.observed_generation),
        "disruptedPods": disrupted,
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": conditions,
    });
    if let Some(change) = difference(&status_json(&budget.status), &status) {
        plan.set_status(budget, change);
    }
    if let Some(again) = again {
        plan.look_again(again);
    }
    plan
}

fn told(
    budget: &PodDisruptionBudget,
    status: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> Condition {
    let mut condition = Condition::new("DisruptionAllowed", status, reason, message, now);
    condition.observed_generation = Some(budget.metadata.generation);
    condition
}

/// Expected pods, and how many of them must be healthy.
fn bounds(view: &View) -> Result<(i64, i64), String> {
    let spec = &view.budget.spec;
    if let Some(max) = &spec.max_unavailable {
        let expected = view.expected.clone()?;
        let missing =
            max.scaled(expected, true).ok_or("maxUnavailable is neither a number nor a percentage")?;
        return Ok((expected, (expected - missing).max(0)));
    }
    match &spec.min_available {
        Some(IntOrString::Int(number)) => Ok((view.pods.len() as i64, *number)),
        Some(percent) => {
            let expected = view.expected.clone()?;
            let desired =
                percent.scaled(expected, true).ok_or("minAvailable is neither a number nor a percentage")?;
            Ok((expected, desired))
        }
        None => Ok((view.pods.len() as i64, 1)),
    }
}

fn status_json(status: &BudgetStatus) -> Value {
    let disrupted: BTreeMap<_, _> =
        status.disrupted_pods.iter().map(|(name, at)| (name, time(*at))).collect();
    json!({
        "observedGeneration": status.observed_generation,
        "disruptedPods": disrupted,
        "disruptionsAllowed": status.disruptions_allowed,
        "currentHealthy": status.current_healthy,
        "desiredHealthy": status.desired_healthy,
        "expectedPods": status.expected_pods,
        "conditions": status.conditions,
    })
}

/// How many pods a controller wants; nothing if its kind is not known here.
fn scale_of(caches: &Caches, namespace: &str, owner: &client::OwnerReference) -> Option<(Box<str>, i64)> {
    let key = Key::new(namespace, &owner.name);
    match &*owner.kind {
        "ReplicaSet" => {
            let set = caches.of::<ReplicaSet>().get(&key).filter(|set| set.metadata.uid == owner.uid)?;
            let deployment = set.metadata.controller().filter(|owner| &*owner.kind == "Deployment");
            let found = deployment.and_then(|owner| {
                let found = caches.of::<Deployment>().get(&Key::new(namespace, &owner.name));
                found.filter(|found| found.metadata.uid == owner.uid)
            });
            Some(match found {
                Some(found) => (found.metadata.uid.clone(), found.wanted()),
                None => (set.metadata.uid.clone(), set.replicas()),
            })
        }
        "StatefulSet" => {
            let set = caches.of::<StatefulSet>().get(&key).filter(|set| set.metadata.uid == owner.uid)?;
            Some((set.metadata.uid.clone(), set.wanted()))
        }
        "ReplicationController" => {
            let set =
                caches.of::<ReplicationController>().get(&key).filter(|set| set.metadata.uid == owner.uid)?;
            Some((set.metadata.uid.clone(), set.spec.replicas.unwrap_or(1)))
        }
        _ => None,
    }
}

fn gather(context: &Context) -> Option<View> {
    let budget = context.object::<PodDisruptionBudget>()?;
    let mut pods = context.caches.of::<Pod>().in_namespace(&budget.metadata.namespace);
    pods.retain(|pod| budget.spec.selector.matches(&pod.metadata.labels));
    let (mut seen, mut total, mut expected) = (HashSet::new(), 0, Ok(()));
    for pod in &pods {
        // Pods without a controller, or of one that cannot be scaled, leave the total unknown.
        match pod.metadata.controller() {
            None => continue,
            Some(owner) => match scale_of(&context.caches, &pod.metadata.namespace, owner) {
                Some((uid, count)) => {
                    if seen.insert(uid) {
                        total += count;
                    }
                }
                None => {
                    expected = Err(format!("{} {} does not tell its scale", owner.kind, owner.name));
                }
            },
        }
    }
    Some(View { budget, pods, expected: expected.map(|()| total), now: context.now })
}

/// The budgets that a pod's change may concern.
fn of_pod(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let matters = match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.is_ready() != new.is_ready()
                || old.is_active() != new.is_active()
                || old.metadata.labels != new.metadata.labels
        }
        _ => true,
    };
    if !matters {
        return Vec::new();
    }
    let budgets = caches.of::<PodDisruptionBudget>().in_namespace(&change.latest().metadata.namespace);
    let selects = |budget: &&Arc<PodDisruptionBudget>| {
        let mut sides = change.old.iter().chain(change.new.iter());
        sides.any(|pod| budget.spec.selector.matches(&pod.metadata.labels))
    };
    budgets.iter().filter(selects).map(|budget| budget.key()).collect()
}

/// Scaling changes what percentages mean.
fn of_namespace<K: Kind>(caches: &Caches, change: &Change<K>) -> Vec<Key> {
    if change
        .old
        .as_ref()
        .zip(change.new.as_ref())
        .is_some_and(|(old, new)| old.meta().generation == new.meta().generation)
    {
        return Vec::new();
    }
    let budgets = caches.of::<PodDisruptionBudget>().in_namespace(&change.latest().meta().namespace);
    budgets.iter().map(|budget| budget.key()).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::new("disruption-controller", gather, reconcile)
        .acting_as("disruption-controller")
        .events_from("controllermanager")
        .for_kind::<PodDisruptionBudget>()
        .watching::<Pod>(of_pod)
        .watching::<ReplicaSet>(of_namespace)
        .watching::<Deployment>(of_namespace)
        .watching::<StatefulSet>(of_namespace)
        .watching::<ReplicationController>(of_namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};

    fn plan(spec: Value, status: Value, healthy: usize, sick: usize, expected: Result<i64, String>) -> Plan {
        let budget =
            Arc::new(object(json!({"metadata":{"name":"b","generation":1},"spec":spec,"status":status})));
        let make = |index: usize, ready: &str| {
            Arc::new(pod(
                &format!("p{index}"),
                json!({"status":{"phase":"Running",
            "conditions":[{"type":"Ready","status":ready}]}}),
            ))
        };
        let pods =
            (0..healthy).map(|i| make(i, "True")).chain((0..sick).map(|i| make(100 + i, "False"))).collect();
        reconcile(&View { budget, pods, expected, now: now() })
    }

    #[test]
    fn what_may_go_follows_from_the_bounds() {
        let cases = [
            (json!({"minAvailable":2}), 3, 0, Ok(3), 1),
            (json!({"minAvailable":2}), 2, 1, Ok(3), 0),
            (json!({"minAvailable":"50%"}), 4, 0, Ok(4), 2),
            (json!({"maxUnavailable":1}), 4, 0, Ok(4), 1),
            (json!({"maxUnavailable":1}), 3, 1, Ok(4), 0),
            (json!({"maxUnavailable":"30%"}), 10, 0, Ok(10), 3),
        ];
        for (spec, healthy, sick, expected, wanted) in cases {
            let plan = plan(spec.clone(), json!({}), healthy, sick, expected);
            let got = plan.status_change().unwrap().get("disruptionsAllowed").cloned().unwrap_or(json!(0));
            assert_eq!(got, wanted, "{spec} with {healthy} healthy and {sick} sick");
        }
    }

    #[test]
    fn a_granted_eviction_counts_until_the_pod_goes_or_two_minutes_pass() {
        let noted =
            |at: &str| plan(json!({"minAvailable":1}), json!({"disruptedPods":{"p0":at}}), 3, 0, Ok(3));
        let fresh = noted("2026-01-01T11:59:00Z");
        assert_eq!(fresh.status_change().unwrap()["currentHealthy"], 2);
        assert_eq!(fresh.requeue_at.unwrap().to_string(), "2026-01-01T12:01:00Z");
        let stale = noted("2026-01-01T11:00:00Z");
        assert_eq!(stale.status_change().unwrap()["currentHealthy"], 3);
        assert_eq!(stale.events()[0].reason, "NotDeleted");
    }

    #[test]
    fn a_percentage_of_the_unknown_is_told() {
        let plan = plan(json!({"maxUnavailable":1}), json!({}), 1, 0, Err("no scale".into()));
        assert_eq!(plan.status_change().unwrap()["conditions"][0]["reason"], "SyncFailed");
    }
}
