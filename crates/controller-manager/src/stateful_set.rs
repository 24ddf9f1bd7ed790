//! StatefulSets: pods with names, an order, and storage of their own.
//!
//! A decision goes through the ordinals in order and, unless the set is parallel, stops at the first pod that is not
//! ready: one step at a time. `shape` makes pods and claims; here is the order of steps.

mod shape;

use std::collections::HashMap;
use std::sync::Arc;

use controller_runtime::{Caches, Change, Context, Controller, Key, Kind, Labels, Plan, Raw, difference};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::claims::Claims;
use crate::kinds::{ControllerRevision, PersistentVolumeClaim, Pod, StatefulSet, StatefulSetStatus};
use crate::revisions::{self, Present};

pub(crate) const REVISION_LABEL: &str = "controller-revision-hash";
const HISTORY_LABEL: &str = "controller.kubernetes.io/hash";

/// What one set may depend on.
pub struct View {
    /// The set.
    pub set: Arc<StatefulSet>,
    /// Its pods.
    pub pods: Claims<Pod>,
    /// Its recorded templates.
    pub history: Vec<Arc<ControllerRevision>>,
    /// Its annotations, all of them, if the present template is yet to be recorded.
    pub annotations: Option<Labels>,
    /// The claims of its namespace that bear its pods' names.
    pub claims: HashMap<Box<str>, Arc<PersistentVolumeClaim>>,
    /// The time.
    pub now: Timestamp,
}

impl StatefulSet {
    pub(crate) fn wanted(&self) -> i64 {
        self.spec.replicas.unwrap_or(1)
    }

    pub(crate) fn first(&self) -> i64 {
        self.spec.ordinals.as_ref().map_or(0, |ordinals| ordinals.start)
    }

    pub(crate) fn is_in_range(&self, ordinal: i64) -> bool {
        (self.first()..self.first() + self.wanted()).contains(&ordinal)
    }

    fn is_ordered(&self) -> bool {
        &*self.spec.pod_management_policy != "Parallel"
    }

    fn is_rolling(&self) -> bool {
        &*self.spec.update_strategy.kind != "OnDelete"
    }

    fn partition(&self) -> i64 {
        self.spec.update_strategy.rolling_update.as_ref().and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    fn max_unavailable(&self) -> i64 {
        let rolling = self.spec.update_strategy.rolling_update.as_ref();
        let bound = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()?.scaled(self.wanted(), true));
        bound.unwrap_or(1).max(1)
    }

    /// The number at the end of a member's name.
    pub(crate) fn ordinal_of(&self, pod: &str) -> Option<i64> {
        let number = pod.strip_prefix(&*self.metadata.name)?.strip_prefix('-')?;
        // `01` is no name that the set gives.
        number.parse::<i64>().ok().filter(|ordinal| ordinal.to_string() == number)
    }
}

/// The two templates in play.
struct Templates {
    current: Raw,
    current_name: Box<str>,
    update: Raw,
    update_name: Box<str>,
}

/// Decides on one set.
pub fn reconcile(view: &View) -> Plan {
    let set = &*view.set;
    let mut plan = Plan::default();
    if !set.metadata.is_terminating() {
        view.pods.settle(set, &mut plan);
    }
    let template = &set.spec.template;
    let wanted = revisions::Wanted {
        owner: set,
        template,
        label: HISTORY_LABEL,
        collisions: set.status.collision_count,
        annotations: view.annotations.as_ref(),
    };
    let update = match revisions::ensure(&wanted, &view.history, &mut plan) {
        Present::Known(revision) => revision,
        Present::Planned => return plan,
    };
    let current = view
        .history
        .iter()
        .find(|revision| revision.metadata.name == set.status.current_revision)
        .unwrap_or(&update);
    let templates = Templates {
        current: revisions::template_of(current),
        current_name: current.metadata.name.clone(),
        update: template.clone(),
        update_name: update.metadata.name.clone(),
    };
    let mut members: Vec<(i64, &Arc<Pod>)> =
        view.pods.mine.iter().filter_map(|pod| Some((set.ordinal_of(&pod.metadata.name)?, pod))).collect();
    members.sort_by_key(|(ordinal, _)| *ordinal);
    if !set.metadata.is_terminating() {
        shape::keep_claims(view, &members, &mut plan);
        step(view, &templates, &members, &mut plan);
    }
    let status = status_of(view, &templates, &members);
    if let Some(change) = difference(&status_json(&set.status), &status_json(&status)) {
        plan.set_status(set, change);
    }
    let label_of = |pod: &Arc<Pod>| pod.metadata.label(REVISION_LABEL).map(str::to_owned);
    let used: Vec<String> = members.iter().filter_map(|(_, pod)| label_of(pod)).collect();
    let in_use = |revision: &ControllerRevision| {
        let name = &revision.metadata.name;
        *name == templates.current_name
            || *name == templates.update_name
            || used.iter().any(|own| **own == **name)
    };
    revisions::clean_up(&view.history, in_use, set.spec.revision_history_limit, &mut plan);
    look_again(view, &members, &mut plan);
    plan
}

/// Takes the next steps, in order.
fn step(view: &View, templates: &Templates, members: &[(i64, &Arc<Pod>)], plan: &mut Plan) {
    let set = &*view.set;
    let ordered = set.is_ordered();
    let serves = |pod: &Pod| {
        &*pod.status.phase == "Running"
            && pod.is_available(set.spec.min_ready_seconds, view.now)
            && pod.is_ready()
    };
    let found: HashMap<i64, &Arc<Pod>> = members.iter().copied().collect();
    for ordinal in set.first()..set.first() + set.wanted() {
        match found.get(&ordinal) {
            None => {
                create(view, templates, ordinal, plan);
                if ordered {
                    return;
                }
            }
            Some(pod) if pod.is_finished() => {
                if !pod.metadata.is_terminating() {
                    let verb = if &*pod.status.phase == "Failed" { "Failed" } else { "Terminated" };
                    let text = format!(
                        "StatefulSet {}/{} is recreating {} Pod {}",
                        set.metadata.namespace,
                        set.metadata.name,
                        verb.to_lowercase(),
                        pod.metadata.name
                    );
                    plan.warn(
                        set,
                        if verb == "Failed" { "RecreatingFailedPod" } else { "RecreatingTerminatedPod" },
                        text,
                    );
                    delete(set, pod, plan);
                }
                if ordered {
                    return;
                }
            }
            Some(pod) => {
                shape::missing_claims(view, ordinal, plan);
                shape::keep_identity(set, pod, plan);
                if ordered && (pod.metadata.is_terminating() || !serves(pod)) {
                    return;
                }
            }
        }
    }
    let unhealthy =
        members.iter().map(|(_, pod)| *pod).find(|pod| !serves(pod) || pod.metadata.is_terminating());
    let condemned = members.iter().rev().filter(|(ordinal, _)| !set.is_in_range(*ordinal));
    for (_, pod) in condemned {
        if pod.metadata.is_terminating() {
            if ordered {
                return;
            }
            continue;
        }
        // A pod may go while another one is unhealthy only if it is the unhealthy one itself.
        let is_first = unhealthy.is_some_and(|first| first.metadata.uid == pod.metadata.uid);
        if ordered && !serves(pod) && !is_first {
            return;
        }
        delete(set, pod, plan);
        if ordered {
            return;
        }
    }
    if set.is_rolling() {
        update(view, templates, &found, &serves, plan);
    }
}

/// Replaces pods of old templates, from the last to the partition, a few at a time.
fn update(
    view: &View,
    templates: &Templates,
    found: &HashMap<i64, &Arc<Pod>>,
    serves: &dyn Fn(&Pod) -> bool,
    plan: &mut Plan,
) {
    let set = &*view.set;
    let range = set.first() + set.partition()..set.first() + set.wanted();
    let down = |pod: &Pod| pod.metadata.is_terminating() || !serves(pod);
    let is_old = |pod: &Pod| pod.metadata.label(REVISION_LABEL) != Some(&templates.update_name);
    let mut unavailable = 0;
    for ordinal in range.rev() {
        let Some(pod) = found.get(&ordinal) else {
            unavailable += 1;
            continue;
        };
        if unavailable >= set.max_unavailable() {
            return;
        }
        if is_old(pod) && !pod.metadata.is_terminating() {
            delete(set, pod, plan);
            unavailable += 1;
        } else if down(pod) {
            unavailable += 1;
        }
    }
}

/// Whether a new pod of this ordinal has the old template still.
fn is_current(set: &StatefulSet, ordinal: i64) -> bool {
    if !set.is_rolling() {
        return false;
    }
    ordinal < set.first() + set.partition()
}

fn create(view: &View, templates: &Templates, ordinal: i64, plan: &mut Plan) {
    let set = &*view.set;
    let (template, revision) = if is_current(set, ordinal) {
        (&templates.current, &templates.current_name)
    } else {
        (&templates.update, &templates.update_name)
    };
    shape::missing_claims(view, ordinal, plan);
    let name = &set.metadata.name;
    let pod = format!("{name}-{ordinal}");
    plan.create(&Pod::RESOURCE, shape::pod(set, template, revision, ordinal)).announce(
        set,
        Some(("SuccessfulCreate", format!("Create Pod {pod} in StatefulSet {name} successful"))),
        Some(("FailedCreate", format!("Create Pod {pod} in StatefulSet {name} failed error: {{error}}"))),
    );
}

fn delete(set: &StatefulSet, pod: &Pod, plan: &mut Plan) {
    let (name, pod_name) = (&set.metadata.name, &pod.metadata.name);
    plan.delete(pod).announce(
        set,
        Some(("SuccessfulDelete", format!("Delete Pod {pod_name} in StatefulSet {name} successful"))),
        Some((
            "FailedDelete",
            format!("Delete Pod {pod_name} in StatefulSet {name} failed error: {{error}}"),
        )),
    );
}

fn status_of(view: &View, templates: &Templates, members: &[(i64, &Arc<Pod>)]) -> StatefulSetStatus {
    let set = &*view.set;
    let count = |wanted: &dyn Fn(&Pod) -> bool| members.iter().filter(|(_, pod)| wanted(pod)).count() as i64;
    let runs = |pod: &Pod| &*pod.status.phase == "Running" && pod.is_ready();
    let lives = |pod: &Pod| !pod.metadata.is_terminating() && !pod.is_finished();
    let of = |pod: &Pod, revision: &str| lives(pod) && pod.metadata.label(REVISION_LABEL) == Some(revision);
    let mut status = StatefulSetStatus {
        observed_generation: set.metadata.generation.max(set.status.observed_generation),
        replicas: count(&|pod| !pod.is_finished()),
        ready_replicas: count(&|pod| runs(pod)),
        available_replicas: count(&|pod| runs(pod) && pod.is_available(set.spec.min_ready_seconds, view.now)),
        current_replicas: count(&|pod| of(pod, &templates.current_name)),
        updated_replicas: count(&|pod| of(pod, &templates.update_name)),
        current_revision: templates.current_name.clone(),
        update_revision: templates.update_name.clone(),
        collision_count: set.status.collision_count.or(Some(0)),
        conditions: set.status.conditions.clone(),
    };
    let wanted = set.wanted();
    let complete =
        status.updated_replicas == wanted && status.ready_replicas == wanted && status.replicas == wanted;
    if set.is_rolling() && complete {
        status.current_revision = status.update_revision.clone();
        status.current_replicas = status.updated_replicas;
    }
    status
}

fn status_json(status: &StatefulSetStatus) -> Value {
    let mut fields = json!({"replicas": status.replicas, "availableReplicas": status.available_replicas});
    let numbers = [
        ("observedGeneration", status.observed_generation),
        ("readyReplicas", status.ready_replicas),
        ("currentReplicas", status.current_replicas),
        ("updatedReplicas", status.updated_replicas),
    ];
    for (name, number) in numbers.into_iter().filter(|(_, number)| *number != 0) {
        fields[name] = json!(number);
    }
    for (name, text) in
        [("currentRevision", &status.current_revision), ("updateRevision", &status.update_revision)]
    {
        if !text.is_empty() {
            fields[name] = json!(text);
        }
    }
    if let Some(count) = status.collision_count {
        fields["collisionCount"] = json!(count);
    }
    if !status.conditions.is_empty() {
        fields["conditions"] = json!(status.conditions);
    }
    fields
}

fn look_again(view: &View, members: &[(i64, &Arc<Pod>)], plan: &mut Plan) {
    let seconds = view.set.spec.min_ready_seconds;
    let waiting = members.iter().filter(|(_, pod)| !pod.is_available(seconds, view.now));
    if let Some(at) = waiting.filter_map(|(_, pod)| pod.available_at(seconds)).min() {
        plan.look_again(at);
    }
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, client::Error>> {
    Box::pin(async move {
        let Some(set) = context.object::<StatefulSet>() else { return Ok(None) };
        let pods: Claims<Pod> = Claims::find(&context, &*set, &set.spec.selector).await?;
        let history = context.caches.controlled_by::<ControllerRevision>(&set.metadata.uid);
        let mut claims = HashMap::new();
        if !set.spec.volume_claim_templates.is_empty() {
            let cache = context.caches.of::<PersistentVolumeClaim>();
            let members = pods.mine.iter().filter_map(|pod| set.ordinal_of(&pod.metadata.name));
            for ordinal in (set.first()..set.first() + set.wanted()).chain(members) {
                for name in shape::claim_names(&set, ordinal) {
                    if let Some(claim) = cache.get(&Key::new(&set.metadata.namespace, &name)) {
                        claims.insert(name.into(), claim);
                    }
                }
            }
        }
        let annotations = revisions::annotations(
            &context,
            &*set,
            &set.spec.template,
            &history,
            set.metadata.is_terminating(),
        )
        .await?;
        Ok(Some(View { set, pods, history, annotations, claims, now: context.now }))
    })
}

fn candidates(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let Some(pod) = change.new.as_ref().filter(|pod| pod.metadata.controller().is_none()) else {
        return Vec::new();
    };
    let sets = caches.of::<StatefulSet>().in_namespace(&pod.metadata.namespace);
    sets.iter().filter(|set| set.spec.selector.matches(&pod.metadata.labels)).map(|set| set.key()).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::reading("statefulset-controller", gather, reconcile)
        .telling_failures()
        .acting_as("statefulset-controller")
        .workers(5)
        .for_kind::<StatefulSet>()
        .owning::<Pod>()
        .owning::<ControllerRevision>()
        .watching::<Pod>(candidates)
        .reading_kind::<PersistentVolumeClaim>()
}

#[cfg(test)]
mod tests;
