//! DaemonSets: one pod on every node that fits.
//!
//! `placement` decides on which nodes a pod may start or stay; here is how many are replaced at a time.

mod placement;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use controller_runtime::{
    Caches, Change, Context, Controller, Key, Kind, Labels, Pace, Plan, Write, difference,
};
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::claims::Claims;
use crate::kinds::{ControllerRevision, DaemonSet, DaemonSetStatus, Node, Pod};
use crate::revisions::{self, Present};
use placement::{Daemon, Fit};

const HASH: &str = "controller-revision-hash";
const GENERATION: &str = "pod-template-generation";
const GENERATION_ANNOTATION: &str = "deprecated.daemonset.template.generation";
/// More than this is not created or deleted in one go.
const BURST: usize = 250;
/// Failed pods of a node are removed at this pace, so that a node that refuses every pod is not flooded with them.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LAST_BACKOFF: Duration = Duration::from_mins(15);

/// What one set may depend on.
pub struct View {
    /// The set.
    pub set: Arc<DaemonSet>,
    /// Its pods.
    pub pods: Claims<Pod>,
    /// Its recorded templates.
    pub history: Vec<Arc<ControllerRevision>>,
    /// Its annotations, all of them, if the present template is yet to be recorded.
    pub annotations: Option<Labels>,
    /// All nodes.
    pub nodes: Vec<Arc<Node>>,
    /// The time.
    pub now: Timestamp,
}

/// A node and the set's pods on it.
struct Place<'a> {
    node: &'a Node,
    fit: Fit,
    pods: Vec<&'a Pod>,
}

/// Decides on one set.
pub fn reconcile(view: &View) -> Plan {
    let set = &*view.set;
    let mut plan = Plan::default();
    if set.spec.selector.is_everything() {
        let text = "This daemon set is selecting all pods. A non-empty selector is required.";
        plan.warn(set, "SelectingAll", text);
        return plan;
    }
    if set.metadata.is_terminating() {
        return plan;
    }
    view.pods.settle(set, &mut plan);
    let wanted = revisions::Wanted {
        owner: set,
        template: &set.spec.template,
        label: HASH,
        collisions: set.status.collision_count,
        annotations: view.annotations.as_ref(),
    };
    let revision = match revisions::ensure(&wanted, &view.history, &mut plan) {
        Present::Known(revision) => revision,
        Present::Planned => return plan,
    };
    let hash = revision.metadata.label(HASH).unwrap_or("").to_owned();
    let places = places(view);
    let creates = manage(view, &places, &mut plan);
    if &*set.spec.update_strategy.kind != "OnDelete" {
        update(view, &places, &hash, &creates, &mut plan);
    }
    for node in creates.iter().take(BURST) {
        create(set, node, &hash, &mut plan);
    }
    let live: Vec<&str> = view.pods.mine.iter().filter_map(|pod| pod.metadata.label(HASH)).collect();
    let in_use = |old: &ControllerRevision| {
        old.metadata.name == revision.metadata.name
            || old.metadata.label(HASH).is_some_and(|hash| live.contains(&hash))
    };
    revisions::clean_up(&view.history, in_use, set.spec.revision_history_limit, &mut plan);
    let status = status_of(view, &places, &hash);
    if let Some(change) = difference(&status_json(&set.status), &status_json(&status)) {
        plan.set_status(set, change);
    }
    let seconds = set.spec.min_ready_seconds;
    let waiting = view.pods.mine.iter().filter(|pod| !pod.is_available(seconds, view.now));
    if let Some(at) = waiting.filter_map(|pod| pod.available_at(seconds)).min() {
        plan.look_again(at);
    }
    plan
}

fn places(view: &View) -> Vec<Place<'_>> {
    let daemon = Daemon::of(&view.set.spec.template);
    let mut by_node: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in &view.pods.mine {
        if let Some(node) = pod.node() {
            by_node.entry(node).or_default().push(pod);
        }
    }
    view.nodes
        .iter()
        .map(|node| Place {
            node,
            fit: daemon.fits(node),
            pods: by_node.remove(&*node.metadata.name).unwrap_or_default(),
        })
        .collect()
}

fn is_available(view: &View, pod: &Pod) -> bool {
    pod.is_available(view.set.spec.min_ready_seconds, view.now)
}

fn is_new(pod: &Pod, hash: &str) -> bool {
    pod.metadata.label(HASH) == Some(hash)
}

/// Deletes pods that must not be where they are; returns the nodes that lack one.
fn manage<'a>(view: &View, places: &[Place<'a>], plan: &mut Plan) -> Vec<&'a Node> {
    let set = &*view.set;
    let mut creates = Vec::new();
    for place in places {
        let alive: Vec<&&Pod> = place.pods.iter().filter(|pod| !pod.metadata.is_terminating()).collect();
        if !place.fit.may_stay {
            alive.iter().for_each(|pod| {
                let _ = delete(set, pod, plan);
            });
            continue;
        }
        if place.pods.is_empty() && place.fit.may_start {
            creates.push(place.node);
            continue;
        }
        let mut running = Vec::new();
        for pod in alive {
            let (verb, reason) = match &*pod.status.phase {
                "Failed" => ("failed", "FailedDaemonPod"),
                "Succeeded" => ("succeeded", "SucceededDaemonPod"),
                _ => {
                    running.push(*pod);
                    continue;
                }
            };
            let (pod_name, node) = (pod.metadata.key(), &place.node.metadata.name);
            let text = format!("Found {verb} daemon pod {pod_name} on node {node}, will try to kill it");
            let failed = verb == "failed";
            let Some(write) = delete(set, pod, plan) else { continue };
            write.telling(set, failed, reason, text);
            if failed {
                let metadata = &set.metadata;
                let subject = format!("{}/{}/{node}", metadata.uid, metadata.generation);
                write.paced(Pace { subject, first: FIRST_BACKOFF, last: LAST_BACKOFF });
            }
        }
        if max_surge(view, places) == 0 && running.len() > 1 {
            // The oldest stays.
            running.sort_by_key(|pod| (pod.spec.node_name.is_empty(), pod.metadata.created()));
            running.drain(1..).for_each(|pod| {
                let _ = delete(set, pod, plan);
            });
        }
    }
    creates
}

fn wanted_count(places: &[Place<'_>]) -> i64 {
    places.iter().filter(|place| place.fit.may_start).count() as i64
}

fn max_surge(view: &View, places: &[Place<'_>]) -> i64 {
    let rolling = view.set.spec.update_strategy.rolling_update.as_ref();
    rolling.and_then(|rolling| rolling.max_surge.as_ref()?.scaled(wanted_count(places), true)).unwrap_or(0)
}

fn max_unavailable(view: &View, places: &[Place<'_>]) -> i64 {
    let rolling = view.set.spec.update_strategy.rolling_update.as_ref();
    let bound =
        rolling.and_then(|rolling| rolling.max_unavailable.as_ref()?.scaled(wanted_count(places), true));
    match bound {
        Some(bound) if bound > 0 => bound,
        _ if max_surge(view, places) > 0 => 0,
        _ => 1,
    }
}

/// Replaces pods of old templates, within the bounds.
fn update(view: &View, places: &[Place<'_>], hash: &str, creates: &[&Node], plan: &mut Plan) {
    let set = &*view.set;
    let (surge, unavailable) = (max_surge(view, places), max_unavailable(view, places));
    let wanted = places.iter().filter(|place| place.fit.may_stay && place.fit.may_start);
    let mut missing = creates.len() as i64;
    let mut surging = 0;
    let (mut idle, mut serving, mut to_surge): (Vec<&Pod>, Vec<&Pod>, Vec<(bool, &Node)>) =
        Default::default();
    for place in wanted.filter(|place| !place.pods.is_empty()) {
        let alive =
            || place.pods.iter().copied().filter(|pod| !pod.metadata.is_terminating() && !pod.is_finished());
        let new = alive().find(|pod| is_new(pod, hash));
        let old = alive().find(|pod| !is_new(pod, hash));
        match (new, old) {
            (Some(new), Some(old)) => {
                // While surging, the old one goes when the new one serves (or when it does not serve itself).
                if is_available(view, new) || !is_available(view, old) {
                    delete(set, old, plan);
                } else {
                    surging += 1;
                }
            }
            (Some(new), None) => missing += i64::from(!is_available(view, new)),
            (None, Some(old)) if surge > 0 => to_surge.push((is_available(view, old), place.node)),
            (None, Some(old)) if is_available(view, old) => serving.push(old),
            (None, Some(old)) => {
                missing += 1;
                idle.push(old);
            }
            (None, None) => missing += 1,
        }
    }
    idle.into_iter().for_each(|pod| {
        let _ = delete(set, pod, plan);
    });
    let room = usize::try_from(unavailable - missing).unwrap_or(0);
    serving.into_iter().take(room).for_each(|pod| {
        let _ = delete(set, pod, plan);
    });
    // Nodes where nothing serves do not count as surge: nothing is lost there.
    to_surge.sort_by_key(|(available, node)| (*available, node.metadata.name.clone()));
    let free = to_surge.iter().filter(|(available, _)| !available).count();
    let room = usize::try_from(surge - surging).unwrap_or(0) + free;
    for (_, node) in to_surge.into_iter().take(room) {
        create(set, node, hash, plan);
    }
}

fn create(set: &DaemonSet, node: &Node, hash: &str, plan: &mut Plan) {
    let mut pod = placement::pod_for(set, &node.metadata.name);
    pod["metadata"]["labels"][HASH] = json!(hash);
    if let Some(generation) = set.metadata.annotation(GENERATION_ANNOTATION) {
        pod["metadata"]["labels"][GENERATION] = json!(generation);
    }
    plan.create(&Pod::RESOURCE, pod).announce(
        set,
        Some(("SuccessfulCreate", "Created pod: {name}".into())),
        Some(("FailedCreate", "Error creating: {error}".into())),
    );
}

/// Deletes a pod, unless that is planned already.
fn delete<'a>(set: &DaemonSet, pod: &Pod, plan: &'a mut Plan) -> Option<&'a mut Write> {
    if plan.deletes().contains(&&*pod.metadata.name) {
        return None;
    }
    Some(plan.delete(pod).announce(
        set,
        Some(("SuccessfulDelete", "Deleted pod: {name}".into())),
        Some(("FailedDelete", "Error deleting: {error}".into())),
    ))
}

fn status_of(view: &View, places: &[Place<'_>], hash: &str) -> DaemonSetStatus {
    let set = &*view.set;
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation.max(set.status.observed_generation),
        collision_count: set.status.collision_count,
        ..DaemonSetStatus::default()
    };
    for place in places {
        let first = place.pods.iter().min_by_key(|pod| pod.metadata.created());
        if !place.fit.may_start {
            status.number_misscheduled += i64::from(first.is_some());
            continue;
        }
        status.desired_number_scheduled += 1;
        if place.pods.is_empty() {
            continue;
        }
        status.current_number_scheduled += 1;
        let any = |wanted: &dyn Fn(&Pod) -> bool| i64::from(place.pods.iter().any(|pod| wanted(pod)));
        status.number_ready += any(&|pod| pod.is_ready() && !pod.metadata.is_terminating());
        status.number_available += any(&|pod| is_available(view, pod) && !pod.metadata.is_terminating());
        status.updated_number_scheduled += any(&|pod| is_new(pod, hash));
    }
    status.number_unavailable = status.desired_number_scheduled - status.number_available;
    status
}

fn status_json(status: &DaemonSetStatus) -> Value {
    let mut fields = json!({
        "currentNumberScheduled": status.current_number_scheduled,
        "numberMisscheduled": status.number_misscheduled,
        "desiredNumberScheduled": status.desired_number_scheduled,
        "numberReady": status.number_ready,
    });
    let numbers = [
        ("observedGeneration", status.observed_generation),
        ("updatedNumberScheduled", status.updated_number_scheduled),
        ("numberAvailable", status.number_available),
        ("numberUnavailable", status.number_unavailable),
    ];
    for (name, number) in numbers.into_iter().filter(|(_, number)| *number != 0) {
        fields[name] = json!(number);
    }
    if let Some(count) = status.collision_count {
        fields["collisionCount"] = json!(count);
    }
    fields
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, client::Error>> {
    Box::pin(async move {
        let Some(set) = context.object::<DaemonSet>() else { return Ok(None) };
        let pods = Claims::find(&context, &*set, &set.spec.selector).await?;
        let history = context.caches.controlled_by::<ControllerRevision>(&set.metadata.uid);
        let annotations = revisions::annotations(
            &context,
            &*set,
            &set.spec.template,
            &history,
            set.metadata.is_terminating(),
        )
        .await?;
        let nodes = context.caches.of::<Node>().list();
        Ok(Some(View { set, pods, history, annotations, nodes, now: context.now }))
    })
}

/// What of a node decides about daemon pods; everything else may change unheeded.
fn of_node(caches: &Caches, change: &Change<Node>) -> Vec<Key> {
    let same = match (&change.old, &change.new) {
        (Some(old), Some(new)) => {
            old.metadata.labels == new.metadata.labels && old.spec.taints == new.spec.taints
        }
        _ => false,
    };
    if same {
        return Vec::new();
    }
    caches.of::<DaemonSet>().list().iter().map(|set| set.key()).collect()
}

fn candidates(caches: &Caches, change: &Change<Pod>) -> Vec<Key> {
    let Some(pod) = change.new.as_ref().filter(|pod| pod.metadata.controller().is_none()) else {
        return Vec::new();
    };
    let sets = caches.of::<DaemonSet>().in_namespace(&pod.metadata.namespace);
    sets.iter().filter(|set| set.spec.selector.matches(&pod.metadata.labels)).map(|set| set.key()).collect()
}

/// The controller.
pub fn controller() -> Controller {
    Controller::reading("daemonset-controller", gather, reconcile)
        .telling_failures()
        .acting_as("daemon-set-controller")
        .events_from("daemonset-controller")
        .for_kind::<DaemonSet>()
        .owning::<Pod>()
        .owning::<ControllerRevision>()
        .watching::<Pod>(candidates)
        .watching::<Node>(of_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object, pod};

    fn set(more: Value) -> DaemonSet {
        let mut value = json!({"metadata":{"name":"d","namespace":"n","uid":"d1","generation":1},
            "spec":{"selector":{"matchLabels":{"app":"web"}},"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"maxUnavailable":1}},
                "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"c"}]}}}});
        controller_runtime::merge(&mut value, &more);
        object(value)
    }

    fn on(node: &str, hash: &str, ready: bool) -> Arc<Pod> {
        let condition = json!({"type":"Ready","status":if ready { "True" } else { "False" },"lastTransitionTime":"2026-01-01T00:00:00Z"});
        Arc::new(pod(
            &format!("{node}-{hash}"),
            json!({"metadata":{"labels":{HASH:hash}},"spec":{"nodeName":node},
            "status":{"phase":"Running","conditions":[condition]}}),
        ))
    }

    fn plan(set: DaemonSet, nodes: &[&str], pods: Vec<Arc<Pod>>) -> Plan {
        let data = revisions::record(&set.spec.template);
        let history = vec![Arc::new(object(
            json!({"metadata":{"name":"d-h","uid":"r","labels":{HASH:"h"}},"data":data,"revision":1}),
        ))];
        let nodes = nodes.iter().map(|name| Arc::new(object(json!({"metadata":{"name":name}})))).collect();
        reconcile(&View {
            set: Arc::new(set),
            pods: Claims { mine: pods, ..Claims::default() },
            history,
            annotations: None,
            nodes,
            now: now(),
        })
    }

    #[test]
    fn every_node_gets_a_pod_that_is_pinned_to_it() {
        let plan = plan(set(json!({})), &["a", "b"], vec![on("a", "h", true)]);
        assert_eq!(plan.creates().len(), 1);
        let terms = &plan.creates()[0]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["b"]));
        assert_eq!(plan.creates()[0]["metadata"]["labels"][HASH], "h");
        let status = plan.status_change().unwrap();
        assert_eq!((&status["desiredNumberScheduled"], &status["numberReady"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn old_pods_are_replaced_one_by_one() {
        let pods = vec![on("a", "old", true), on("b", "old", true), on("c", "h", true)];
        assert_eq!(plan(set(json!({})), &["a", "b", "c"], pods).deletes().len(), 1);
        let busy = vec![on("a", "old", true), on("b", "old", true), on("c", "h", false)];
        assert!(plan(set(json!({})), &["a", "b", "c"], busy).deletes().is_empty());
        let broken = vec![on("a", "old", false), on("b", "old", true), on("c", "h", false)];
        assert_eq!(
            plan(set(json!({})), &["a", "b", "c"], broken).deletes(),
            ["a-old"],
            "one that serves nobody may go"
        );
    }

    #[test]
    fn a_surge_starts_the_new_before_the_old_goes() {
        let surge =
            || set(json!({"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}}}));
        let first = plan(surge(), &["a", "b"], vec![on("a", "old", true), on("b", "old", true)]);
        assert_eq!((first.creates().len(), first.deletes().len()), (1, 0));
        let second =
            plan(surge(), &["a", "b"], vec![on("a", "old", true), on("a", "h", true), on("b", "old", true)]);
        assert_eq!(second.deletes(), ["a-old"]);
    }

    #[test]
    fn failed_pods_are_killed_and_told() {
        let mut failed = (*on("a", "h", false)).clone();
        failed.status.phase = "Failed".into();
        let plan = plan(set(json!({})), &["a"], vec![Arc::new(failed)]);
        assert_eq!(plan.deletes(), ["a-h"]);
        let write = plan.writes().next().unwrap();
        assert_eq!(write.telling[0].reason, "FailedDaemonPod");
        let pace = write.pace.as_ref().unwrap();
        assert_eq!((pace.subject.as_str(), pace.first.as_secs(), pace.last.as_secs()), ("d1/1/a", 1, 900));
    }
}
