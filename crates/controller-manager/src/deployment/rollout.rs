//! The sizes of a Deployment's ReplicaSets.

use std::sync::Arc;

use controller_runtime::Plan;
use serde_json::json;

use super::{DESIRED_REPLICAS, MAX_REPLICAS, Sets};
use crate::kinds::{Deployment, ReplicaSet};

/// Gives a ReplicaSet a size and tells it how large the Deployment is, if it does not have and know that.
pub fn resize(deployment: &Deployment, set: &ReplicaSet, size: i64, plan: &mut Plan) {
    let (surge, _) = deployment.bounds();
    let desired = deployment.wanted().to_string();
    let max = (deployment.wanted() + surge).to_string();
    let knows = set.metadata.annotation(DESIRED_REPLICAS) == Some(&desired)
        && set.metadata.annotation(MAX_REPLICAS) == Some(&max);
    let present = set.replicas();
    if size == present && knows {
        return;
    }
    let mut change = json!({"metadata": {"annotations": {DESIRED_REPLICAS: desired, MAX_REPLICAS: max}}});
    if size != present {
        change["spec"]["replicas"] = json!(size);
    }
    let write = plan.update(set, change);
    if size != present {
        let direction = if size > present { "up" } else { "down" };
        let text = format!("Scaled {direction} replica set {} from {present} to {size}", set.metadata.name);
        write.announce(deployment, Some(("ScalingReplicaSet", text)), None);
    }
}

/// The size that the new ReplicaSet may have now.
pub fn new_size(deployment: &Deployment, new: Option<&ReplicaSet>, sets: &Sets) -> i64 {
    let present = new.map_or(0, ReplicaSet::replicas);
    if !deployment.is_rolling() {
        return deployment.wanted();
    }
    let (surge, _) = deployment.bounds();
    let total: i64 = sets.all().map(|set| set.replicas()).sum();
    let room = deployment.wanted() + surge - total;
    if room <= 0 { present } else { present + room.min(deployment.wanted() - present).max(0) }
}

/// One step of a rolling update: first the new one grows, then the old ones shrink as far as enough stay available.
pub fn roll(deployment: &Deployment, new: &ReplicaSet, sets: &Sets, plan: &mut Plan) {
    let target = if new.replicas() > deployment.wanted() {
        deployment.wanted()
    } else {
        new_size(deployment, Some(new), sets)
    };
    if target != new.replicas() {
        return resize(deployment, new, target, plan);
    }
    shrink_old(deployment, new, sets, plan);
}

/// The pods of a ReplicaSet that are sure to stay available. Its status counts those that are still to be deleted when it
/// was just told to shrink, and one of before the last change of size may count pods that are gone.
fn sure(set: &ReplicaSet) -> i64 {
    if is_observed(set) { set.status.available_replicas.min(set.replicas()) } else { 0 }
}

fn is_observed(set: &ReplicaSet) -> bool {
    set.status.observed_generation >= set.metadata.generation
}

fn shrink_old(deployment: &Deployment, new: &ReplicaSet, sets: &Sets, plan: &mut Plan) {
    // An old one whose status is of before its last change of size: what it has is known when it has been looked at.
    if sets.old.iter().any(|set| set.replicas() > 0 && !is_observed(set)) {
        return;
    }
    let (_, unavailable) = deployment.bounds();
    let least = deployment.wanted() - unavailable;
    let total: i64 = sets.all().map(|set| set.replicas()).sum();
    let new_unavailable = new.replicas() - sure(new);
    let budget = total - least - new_unavailable;
    if budget <= 0 || sets.old.iter().all(|set| set.replicas() == 0) {
        return;
    }
    let mut sizes: Vec<(&Arc<ReplicaSet>, i64)> = sets.old.iter().map(|set| (set, set.replicas())).collect();
    // Pods that serve nobody go first: losing them costs nothing.
    let mut removed = 0;
    for (set, size) in &mut sizes {
        let unhealthy = (*size - set.status.available_replicas).max(0);
        let step = unhealthy.min(budget - removed);
        *size -= step;
        removed += step;
    }
    let available: i64 = sets.all().map(|set| sure(set)).sum();
    let mut spare = available - least;
    for (_, size) in &mut sizes {
        let step = (*size).min(spare).max(0);
        *size -= step;
        spare -= step;
    }
    for (set, size) in sizes.into_iter().filter(|(set, size)| set.replicas() != *size) {
        resize(deployment, set, size, plan);
    }
}

/// Spreads a new total over the ReplicaSets, in proportion while a rollout is under way.
pub fn scale(deployment: &Deployment, sets: &Sets, plan: &mut Plan) {
    let wanted = deployment.wanted();
    if let Some(only) = active_or_latest(sets) {
        if only.replicas() != wanted || told(only) != Some(wanted) {
            resize(deployment, only, wanted, plan);
        }
        return;
    }
    let active: Vec<&Arc<ReplicaSet>> = sets.all().filter(|set| set.replicas() > 0).collect();
    if sets.new.as_ref().is_some_and(|new| is_saturated(deployment, new)) {
        for old in sets.old.iter().filter(|set| set.replicas() > 0) {
            resize(deployment, old, 0, plan);
        }
        return;
    }
    if !deployment.is_rolling() {
        return;
    }
    let (surge, _) = deployment.bounds();
    let total: i64 = active.iter().map(|set| set.replicas()).sum();
    let allowed = if wanted > 0 { wanted + surge } else { 0 };
    for (set, size) in in_proportion(deployment, active, allowed - total, surge) {
        resize(deployment, set, size, plan);
    }
}

/// The size that a ReplicaSet was told the Deployment has.
fn told(set: &ReplicaSet) -> Option<i64> {
    set.metadata.annotation(DESIRED_REPLICAS).and_then(|text| text.parse().ok())
}

/// The only ReplicaSet that counts: the one with pods, or the latest if none has.
fn active_or_latest(sets: &Sets) -> Option<&Arc<ReplicaSet>> {
    let mut active = sets.all().filter(|set| set.replicas() > 0);
    match (active.next(), active.next()) {
        (None, _) => sets.new.as_ref().or_else(|| sets.old.iter().max_by_key(|set| set.metadata.created())),
        (Some(only), None) => Some(only),
        _ => None,
    }
}

fn is_saturated(deployment: &Deployment, new: &ReplicaSet) -> bool {
    let wanted = deployment.wanted();
    new.replicas() == wanted && told(new) == Some(wanted) && sure(new) == wanted
}

/// Distributes `delta` by size; what rounding leaves goes to the first: the largest, and of equals the newest when
/// growing and the oldest when shrinking.
fn in_proportion<'a>(
    deployment: &Deployment,
    mut sets: Vec<&'a Arc<ReplicaSet>>,
    delta: i64,
    surge: i64,
) -> Vec<(&'a Arc<ReplicaSet>, i64)> {
    sets.sort_by(|a, b| {
        let by_age = a.metadata.created().cmp(&b.metadata.created());
        b.replicas().cmp(&a.replicas()).then(if delta > 0 { by_age.reverse() } else { by_age })
    });
    let mut added = 0;
    let mut sizes: Vec<(&Arc<ReplicaSet>, i64)> = sets
        .into_iter()
        .map(|set| {
            let share = if delta == 0 { 0 } else { share(deployment, set, surge) };
            let rest = delta - added;
            let step = if delta > 0 { share.min(rest) } else { share.max(rest) };
            added += step;
            (set, set.replicas() + step)
        })
        .collect();
    if let Some((_, first)) = sizes.first_mut() {
        *first = (*first + delta - added).max(0);
    }
    sizes
}

/// How much a ReplicaSet would grow if all grew by the same factor.
fn share(deployment: &Deployment, set: &ReplicaSet, surge: i64) -> i64 {
    let size = set.replicas();
    if deployment.wanted() == 0 {
        return -size;
    }
    let before = set
        .metadata
        .annotation(MAX_REPLICAS)
        .and_then(|text| text.parse::<i64>().ok())
        .filter(|max| *max > 0)
        .unwrap_or(deployment.status.replicas);
    if before == 0 {
        return 0;
    }
    let after = (size * (deployment.wanted() + surge)) as f64 / before as f64;
    after.round() as i64 - size
}
