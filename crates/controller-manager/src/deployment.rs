//! Deployments: roll a set of pods from one template to the next by shifting replicas between ReplicaSets.
//!
//! A decision makes at most one move (adopt, note the revision, make the new ReplicaSet, or scale) and always tells the
//! status; the ReplicaSets' own changes call for the next one. `rollout` decides the sizes, `status` what is told.

mod rollout;
mod status;

use std::sync::Arc;

use controller_runtime::{Change, Context, Controller, Failure, Key, Kind, Labels, Plan, Raw, Selector};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::claims::Claims;
use crate::kinds::{Deployment, Pod, ReplicaSet, condition};
use crate::pods;

pub(crate) const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(crate) const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
pub(crate) const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";
const HASH_LABEL: &str = "pod-template-hash";
/// Annotations of the Deployment that say nothing about its ReplicaSets.
const OWN_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    "deprecated.deployment.rollback.to",
];
/// A revision history is cut at the front beyond this many characters.
const HISTORY_LENGTH: usize = 2000;

/// What one Deployment may depend on.
pub struct View {
    /// The Deployment.
    pub deployment: Arc<Deployment>,
    /// Its ReplicaSets.
    pub sets: Claims<ReplicaSet>,
    /// Whether pods of other ReplicaSets than the named one still run; asked only to recreate.
    pub pods: Vec<Arc<Pod>>,
    /// The ReplicaSet that has the name which a new one would get.
    pub namesake: Option<Arc<ReplicaSet>>,
    /// What went wrong last time.
    pub failure: Option<Arc<Failure>>,
    /// The time.
    pub now: Timestamp,
}

/// The ReplicaSets of a Deployment by role.
pub(crate) struct Sets {
    /// Has the Deployment's template.
    pub new: Option<Arc<ReplicaSet>>,
    /// All others.
    pub old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> + Clone {
        self.old.iter().chain(&self.new)
    }
}

impl Deployment {
    pub(crate) fn wanted(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    fn is_rolling(&self) -> bool {
        &*self.spec.strategy.kind != "Recreate"
    }

    /// How many pods there may be too many, and how many may be missing.
    pub(crate) fn bounds(&self) -> (i64, i64) {
        if !self.is_rolling() || self.wanted() == 0 {
            return (0, 0);
        }
        let rolling = self.spec.strategy.rolling_update.clone().unwrap_or_default();
        let part = |bound: Option<crate::kinds::IntOrString>, up| {
            bound.and_then(|bound| bound.scaled(self.wanted(), up)).unwrap_or(0)
        };
        let surge = part(rolling.max_surge, true);
        let mut unavailable = part(rolling.max_unavailable, false);
        if surge == 0 && unavailable == 0 {
            // Both can round to nothing; then nothing could ever move.
            unavailable = 1;
        }
        (surge, unavailable.min(self.wanted()))
    }

    /// A deadline of this size is how the API spells "none".
    pub(crate) fn progress_deadline(&self) -> Option<i64> {
        self.spec.progress_deadline_seconds.filter(|seconds| *seconds != i64::from(i32::MAX))
    }
}

pub(crate) fn revision_of(set: &ReplicaSet) -> i64 {
    set.metadata.annotation(REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Decides on one Deployment.
pub fn reconcile(view: &View) -> Plan {
    let deployment = &*view.deployment;
    let mut plan = Plan::default();
    if deployment.spec.selector.is_everything() {
        plan.warn(
            deployment,
            "SelectingAll",
            "This deployment is selecting all pods. A non-empty selector is required.",
        );
        if deployment.status.observed_generation < deployment.metadata.generation {
            plan.set_status(deployment, json!({"observedGeneration": deployment.metadata.generation}));
        }
        return plan;
    }
    let sets = by_role(deployment, &view.sets.mine);
    if deployment.metadata.is_terminating() {
        status::tell(view, &sets, &mut plan);
        return plan;
    }
    view.sets.settle(deployment, &mut plan);
    if note_revision(view, &sets, &mut plan) {
        return plan;
    }
    if deployment.spec.paused || is_scaling(deployment, &sets) {
        rollout::scale(deployment, &sets, &mut plan);
        if deployment.spec.paused {
            clean_up(deployment, &sets, &mut plan);
        }
    } else if deployment.is_rolling() {
        match &sets.new {
            None => create(view, &sets, &mut plan),
            Some(new) => rollout::roll(deployment, new, &sets, &mut plan),
        }
    } else {
        recreate(view, &sets, &mut plan);
    }
    if plan.stages().iter().all(Vec::is_empty) && status::is_complete_now(deployment, &sets) {
        clean_up(deployment, &sets, &mut plan);
    }
    status::tell(view, &sets, &mut plan);
    plan
}

/// Without surge: first all old pods go, then the new ones come.
fn recreate(view: &View, sets: &Sets, plan: &mut Plan) {
    let deployment = &*view.deployment;
    let mut shrinks = false;
    for old in sets.old.iter().filter(|set| set.replicas() > 0) {
        rollout::resize(deployment, old, 0, plan);
        shrinks = true;
    }
    let new_uid = sets.new.as_ref().map(|set| &*set.metadata.uid);
    let still_running = view
        .pods
        .iter()
        .any(|pod| !pod.is_finished() && pod.metadata.controller().map(|owner| &*owner.uid) != new_uid);
    if shrinks || still_running {
        return;
    }
    match &sets.new {
        None => create(view, sets, plan),
        Some(new) => rollout::resize(deployment, new, deployment.wanted(), plan),
    }
}

/// A size was asked for that the ReplicaSets were not told of.
fn is_scaling(deployment: &Deployment, sets: &Sets) -> bool {
    sets.all().filter(|set| set.replicas() > 0).any(|set| {
        let told = set.metadata.annotation(DESIRED_REPLICAS).and_then(|text| text.parse::<i64>().ok());
        told.is_some_and(|told| told != deployment.wanted())
    })
}

/// Sorts the ReplicaSets into the oldest one with the present template and the others.
pub(crate) fn by_role(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Sets {
    let wanted = without_hash(&deployment.spec.template);
    let mut sorted: Vec<&Arc<ReplicaSet>> = sets.iter().collect();
    sorted.sort_by_key(|set| (set.metadata.created(), set.metadata.name.clone()));
    let new = sorted.iter().find(|set| without_hash(&set.spec.template) == wanted).map(|set| (*set).clone());
    let is_new = |set: &ReplicaSet| new.as_ref().is_some_and(|new| new.metadata.uid == set.metadata.uid);
    let old = sorted.into_iter().filter(|set| !is_new(set)).cloned().collect();
    Sets { new, old }
}

fn without_hash(template: &Raw) -> Value {
    let mut value = template.value();
    if let Some(labels) = value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut) {
        labels.shift_remove(HASH_LABEL);
    }
    // The server writes it in some versions and leaves it out in others; it means nothing here.
    if let Some(metadata) = value.pointer_mut("/metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("creationTimestamp");
    }
    value
}

fn next_revision(sets: &Sets) -> i64 {
    sets.old.iter().map(|set| revision_of(set)).max().unwrap_or(0) + 1
}

/// Keeps the revision annotations of the new ReplicaSet and of the Deployment right. Returns whether the Deployment
/// itself is written, after which everything is looked at anew.
fn note_revision(view: &View, sets: &Sets, plan: &mut Plan) -> bool {
    let deployment = &*view.deployment;
    let Some(new) = &sets.new else { return false };
    let revision = next_revision(sets);
    let mut change = json!({});
    let annotations = set_annotations(deployment, &new.metadata.annotations, revision);
    if !annotations.is_empty() {
        change["metadata"]["annotations"] = Value::Object(annotations);
    }
    if new.spec.min_ready_seconds != deployment.spec.min_ready_seconds {
        change["spec"]["minReadySeconds"] = json!(deployment.spec.min_ready_seconds);
    }
    if change.as_object().is_some_and(|change| !change.is_empty()) {
        plan.update(&**new, change);
        // The sizes are decided when the write is seen: two writes to one object would disturb each other.
        status::tell(view, sets, plan);
        return true;
    }
    let noted = revision_of(new).max(revision).to_string();
    if deployment.metadata.annotation(REVISION) != Some(&noted) {
        // By the status, as upstream: a plain update would count as a new generation of the owner's wish.
        plan.update_sub(deployment, "status", json!({"metadata": {"annotations": {REVISION: noted}}}));
        return true;
    }
    false
}

/// The annotations of a ReplicaSet that have to change: the Deployment's own, and the revision with its history.
fn set_annotations(
    deployment: &Deployment,
    present: &Labels,
    revision: i64,
) -> serde_json::Map<String, Value> {
    let mut change = serde_json::Map::new();
    for (name, value) in deployment.metadata.annotations.iter() {
        if !OWN_ANNOTATIONS.contains(&name) && present.get(name) != Some(value) {
            change.insert(name.into(), json!(value));
        }
    }
    let old = present.get(REVISION).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    if old < revision {
        change.insert(REVISION.into(), json!(revision.to_string()));
        if old > 0 {
            let mut history: Vec<&str> =
                present.get(REVISION_HISTORY).into_iter().flat_map(|h| h.split(',')).collect();
            let old = old.to_string();
            history.push(&old);
            while history.iter().map(|part| part.len() + 1).sum::<usize>() > HISTORY_LENGTH {
                history.remove(0);
            }
            change.insert(REVISION_HISTORY.into(), json!(history.join(",")));
        }
    }
    change
}

fn new_name(deployment: &Deployment) -> (String, String) {
    let hash = pods::hash(&without_hash(&deployment.spec.template), deployment.status.collision_count);
    (format!("{}-{hash}", deployment.metadata.name), hash)
}

/// Makes the ReplicaSet of the present template.
fn create(view: &View, sets: &Sets, plan: &mut Plan) {
    let deployment = &*view.deployment;
    if view.namesake.is_some() {
        // Another template has the same hash, or the name belongs to someone else: a counter makes another name.
        let count = deployment.status.collision_count.unwrap_or(0) + 1;
        plan.then().update_sub(deployment, "status", json!({"status": {"collisionCount": count}}));
        return;
    }
    let (name, hash) = new_name(deployment);
    let mut template = without_hash(&deployment.spec.template);
    template["metadata"]["labels"][HASH_LABEL] = json!(hash);
    let mut annotations = set_annotations(deployment, &Labels::default(), next_revision(sets));
    let (surge, _) = deployment.bounds();
    annotations.insert(DESIRED_REPLICAS.into(), json!(deployment.wanted().to_string()));
    annotations.insert(MAX_REPLICAS.into(), json!((deployment.wanted() + surge).to_string()));
    let replicas = rollout::new_size(deployment, None, sets);
    let mut selector = deployment.spec.selector.to_json();
    selector["matchLabels"][HASH_LABEL] = json!(hash);
    let set = json!({
        "metadata": {
            "name": name,
            "namespace": deployment.metadata.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "ownerReferences": [deployment.controller_ref()],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": template,
        },
    });
    let success = (replicas > 0)
        .then(|| ("ScalingReplicaSet", format!("Scaled up replica set {{name}} from 0 to {replicas}")));
    plan.create(&ReplicaSet::RESOURCE, set).announce(
        deployment,
        success,
        Some(("ReplicaSetCreateError", format!("Failed to create new replica set \"{name}\": {{error}}"))),
    );
}

/// Deletes the ReplicaSets beyond the history limit, oldest revision first.
fn clean_up(deployment: &Deployment, sets: &Sets, plan: &mut Plan) {
    let Some(limit) = deployment.spec.revision_history_limit else { return };
    let mut old: Vec<&Arc<ReplicaSet>> =
        sets.old.iter().filter(|set| !set.metadata.is_terminating()).collect();
    let excess = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    old.sort_by_key(|set| (revision_of(set), set.metadata.created()));
    for set in old.into_iter().take(excess) {
        let status = &set.status;
        let is_empty = status.replicas == 0 && set.replicas() == 0;
        if is_empty && set.metadata.generation <= status.observed_generation {
            plan.delete(&**set);
        }
    }
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, client::Error>> {
    Box::pin(async move {
        let Some(deployment) = context.object::<Deployment>() else { return Ok(None) };
        let selector: &Selector = &deployment.spec.selector;
        let sets: Claims<ReplicaSet> = Claims::find(&context, &*deployment, selector).await?;
        let mut pods = Vec::new();
        if !deployment.is_rolling() {
            for set in &sets.mine {
                pods.extend(context.caches.controlled_by::<Pod>(&set.metadata.uid));
            }
        }
        let key = Key::new(&deployment.metadata.namespace, &new_name(&deployment).0);
        let namesake = context.caches.of::<ReplicaSet>().get(&key);
        let (failure, now) = (context.failure.clone(), context.now);
        Ok(Some(View { deployment, sets, pods, namesake, failure, now }))
    })
}

/// The Deployments that may want a ReplicaSet which nothing controls.
fn candidates(caches: &controller_runtime::Caches, change: &Change<ReplicaSet>) -> Vec<Key> {
    let Some(set) = change.new.as_ref().filter(|set| set.metadata.controller().is_none()) else {
        return Vec::new();
    };
    let deployments = caches.of::<Deployment>().in_namespace(&set.metadata.namespace);
    deployments.iter().filter(|d| d.spec.selector.matches(&set.metadata.labels)).map(|d| d.key()).collect()
}

/// With the Recreate strategy the last pod's end lets the new ones come.
fn recreating(caches: &controller_runtime::Caches, change: &Change<Pod>) -> Vec<Key> {
    let ended = change.new.as_ref().is_none_or(|pod| pod.is_finished());
    let Some(owner) =
        change.latest().metadata.controller().filter(|owner| ended && &*owner.kind == "ReplicaSet")
    else {
        return Vec::new();
    };
    let namespace = &change.latest().metadata.namespace;
    let set = caches.of::<ReplicaSet>().get(&Key::new(namespace, &owner.name));
    let deployment = set.as_ref().and_then(|set| set.metadata.controller());
    let key = deployment.map(|owner| Key::new(namespace, &owner.name));
    let is_recreated = |key: &Key| caches.of::<Deployment>().get(key).is_some_and(|d| !d.is_rolling());
    key.into_iter().filter(is_recreated).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::reading("deployment-controller", gather, reconcile)
        .telling_failures()
        .acting_as("deployment-controller")
        .workers(5)
        .for_kind::<Deployment>()
        .owning::<ReplicaSet>()
        .watching::<ReplicaSet>(candidates)
        .watching::<Pod>(recreating)
}

/// The Progressing condition's reason.
pub(crate) fn progress_reason(deployment: &Deployment) -> Option<&str> {
    condition(&deployment.status.conditions, "Progressing").map(|condition| &*condition.reason)
}

#[cfg(test)]
mod tests;
