//! ReplicaSets and ReplicationControllers: as many pods as wanted, no more, no less.

use std::collections::HashMap;
use std::sync::Arc;

use controller_runtime::{
    Change, Context, Controller, Failure, Key, Kind, Labels, Plan, Raw, Selector, difference,
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::claims::Claims;
use crate::kinds::{
    Condition, Pod, ReplicaSet, ReplicaSetStatus, ReplicationController, put_condition, remove_condition,
};
use crate::pods;

/// More than this is not created or deleted in one go.
const BURST: usize = 500;

/// What ReplicaSet and ReplicationController have in common.
pub trait Replicated: Kind {
    /// Wanted pods.
    fn wanted(&self) -> i64;
    /// Which pods belong to it.
    fn selector(&self) -> Selector;
    /// What pods are made from.
    fn template(&self) -> &Raw;
    /// How long a pod must be ready.
    fn min_ready_seconds(&self) -> i64;
    /// Its status.
    fn status(&self) -> &ReplicaSetStatus;
}

impl Replicated for ReplicaSet {
    fn wanted(&self) -> i64 {
        self.replicas()
    }
    fn selector(&self) -> Selector {
        self.spec.selector.clone()
    }
    fn template(&self) -> &Raw {
        &self.spec.template
    }
    fn min_ready_seconds(&self) -> i64 {
        self.spec.min_ready_seconds
    }
    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
}

impl Replicated for ReplicationController {
    fn wanted(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }
    fn selector(&self) -> Selector {
        // The server fills it from the template's labels, so an empty one selects nothing.
        if self.spec.selector.is_empty() {
            Selector::default()
        } else {
            Selector::of_labels(&self.spec.selector)
        }
    }
    fn template(&self) -> &Raw {
        &self.spec.template
    }
    fn min_ready_seconds(&self) -> i64 {
        self.spec.min_ready_seconds
    }
    fn status(&self) -> &ReplicaSetStatus {
        &self.status
    }
}

/// What one set may depend on.
pub struct View<S> {
    /// The set.
    pub set: Arc<S>,
    /// Its pods.
    pub pods: Claims<Pod>,
    /// How many pods of the same family (the owner's other sets) are on each node.
    pub crowd: HashMap<Box<str>, usize>,
    /// What went wrong last time.
    pub failure: Option<Arc<Failure>>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one set.
pub fn reconcile<S: Replicated>(view: &View<S>) -> Plan {
    let set = &*view.set;
    let mut plan = Plan::default();
    let active: Vec<&Pod> = view.pods.mine.iter().map(|pod| &**pod).filter(|pod| pod.is_active()).collect();
    if !set.meta().is_terminating() {
        view.pods.settle(set, &mut plan);
        let wanted = usize::try_from(set.wanted()).unwrap_or(0);
        if active.len() < wanted {
            for _ in 0..(wanted - active.len()).min(BURST) {
                plan.create(&Pod::RESOURCE, pods::from_template(set, set.template())).announce(
                    set,
                    Some(("SuccessfulCreate", "Created pod: {name}".into())),
                    Some(("FailedCreate", "Error creating: {error}".into())),
                );
            }
        } else {
            let mut ordered = active.clone();
            let excess = (active.len() - wanted).min(BURST);
            if excess > 0 {
                let crowd = |pod: &Pod| view.crowd.get(&*pod.spec.node_name).copied().unwrap_or(0);
                pods::deletion_order(&mut ordered, view.now, crowd);
            }
            for pod in ordered.into_iter().take(excess) {
                plan.delete(pod).announce(
                    set,
                    Some(("SuccessfulDelete", "Deleted pod: {name}".into())),
                    Some(("FailedDelete", "Error deleting: {error}".into())),
                );
            }
        }
    }
    let status = status_of(view, &active);
    if let Some(change) = difference(&status_json(set.status()), &status_json(&status)) {
        plan.set_status(set, change);
    }
    let min_ready = set.min_ready_seconds();
    if let Some(at) = active
        .iter()
        .filter(|pod| !pod.is_available(min_ready, view.now))
        .filter_map(|pod| pod.available_at(min_ready))
        .min()
    {
        plan.look_again(at);
    }
    plan
}

fn status_of<S: Replicated>(view: &View<S>, active: &[&Pod]) -> ReplicaSetStatus {
    let set = &*view.set;
    let labels = pods::template_labels(set.template());
    let has_all = |pod: &Pod| labels.iter().all(|(name, value)| pod.metadata.label(name) == Some(value));
    let count = |wanted: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| wanted(pod)).count() as i64;
    let mut conditions = set.status().conditions.clone();
    match &view.failure {
        Some(failure) if matches!(failure.reason, "FailedCreate" | "FailedDelete") => put_condition(
            &mut conditions,
            Condition::new("ReplicaFailure", "True", failure.reason, failure.message.clone(), view.now),
        ),
        _ => remove_condition(&mut conditions, "ReplicaFailure"),
    }
    let terminating =
        view.pods.mine.iter().filter(|pod| pod.metadata.is_terminating() && !pod.is_finished()).count()
            as i64;
    ReplicaSetStatus {
        replicas: active.len() as i64,
        fully_labeled_replicas: count(&has_all),
        ready_replicas: count(&Pod::is_ready),
        available_replicas: count(&|pod| pod.is_available(set.min_ready_seconds(), view.now)),
        // ReplicationControllers have no such field.
        terminating_replicas: (S::RESOURCE.kind == "ReplicaSet").then_some(terminating),
        observed_generation: set.meta().generation.max(set.status().observed_generation),
        conditions,
    }
}

fn status_json(status: &ReplicaSetStatus) -> Value {
    let mut fields = json!({"replicas": status.replicas});
    let optional = [
        ("fullyLabeledReplicas", status.fully_labeled_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
        ("observedGeneration", status.observed_generation),
    ];
    for (name, number) in optional.into_iter().filter(|(_, number)| *number != 0) {
        fields[name] = json!(number);
    }
    if let Some(number) = status.terminating_replicas {
        fields["terminatingReplicas"] = json!(number);
    }
    if !status.conditions.is_empty() {
        fields["conditions"] = json!(status.conditions);
    }
    fields
}

fn gather<S: Replicated>(context: Context) -> BoxFuture<'static, Result<Option<View<S>>, client::Error>> {
    Box::pin(async move {
        let Some(set) = context.object::<S>() else { return Ok(None) };
        let pods = Claims::find(&context, &*set, &set.selector()).await?;
        let crowd = crowd(&context, &*set, &pods);
        Ok(Some(View { set, pods, crowd, failure: context.failure.clone(), now: context.now }))
    })
}

/// Counts the active pods per node of all sets that have the same controller as this one. Only needed to shrink.
fn crowd<S: Replicated>(context: &Context, set: &S, pods: &Claims<Pod>) -> HashMap<Box<str>, usize> {
    let active = pods.mine.iter().filter(|pod| pod.is_active()).count();
    let mut crowd = HashMap::new();
    if active <= usize::try_from(set.wanted()).unwrap_or(0) {
        return crowd;
    }
    let mut sets = vec![set.meta().uid.clone()];
    if let Some(owner) = set.meta().controller() {
        sets =
            context.caches.controlled_by::<S>(&owner.uid).iter().map(|set| set.meta().uid.clone()).collect();
    }
    for uid in sets {
        for pod in context.caches.controlled_by::<Pod>(&uid) {
            if pod.is_active() && !pod.spec.node_name.is_empty() {
                *crowd.entry((&pod.spec.node_name).into()).or_insert(0) += 1;
            }
        }
    }
    crowd
}

/// The sets that may want to adopt a pod that nothing controls.
fn candidates<S: Replicated>(caches: &controller_runtime::Caches, change: &Change<Pod>) -> Vec<Key> {
    let Some(pod) = &change.new else { return Vec::new() };
    if pod.metadata.controller().is_some() {
        return Vec::new();
    }
    let labels: &Labels = &pod.metadata.labels;
    let sets = caches.of::<S>().in_namespace(&pod.metadata.namespace);
    sets.iter().filter(|set| set.selector().matches(labels)).map(|set| set.key()).collect()
}

/// The controller of ReplicaSets.
pub fn controller() -> Controller {
    make::<ReplicaSet>("replicaset-controller", "replicaset-controller")
}

/// The controller of ReplicationControllers.
pub fn replication_controller() -> Controller {
    make::<ReplicationController>("replicationcontroller-controller", "replication-controller")
}

fn make<S: Replicated>(name: &'static str, identity: &'static str) -> Controller {
    Controller::reading(name, gather::<S>, reconcile::<S>)
        .telling_failures()
        .acting_as(identity)
        .workers(5)
        .for_kind::<S>()
        .owning::<Pod>()
        .watching::<Pod>(candidates::<S>)
}

#[cfg(test)]
mod tests;
