//! What a Deployment tells of itself.

use controller_runtime::{Plan, difference};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Sets, View, progress_reason};
use crate::kinds::{
    Condition, Deployment, DeploymentStatus, condition, put_condition, remove_condition, whole_second,
};

const AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";

/// Adds the status to the plan if it changes, and says when to look again at a rollout that may get stuck.
pub fn tell(view: &View, sets: &Sets, plan: &mut Plan) {
    let deployment = &*view.deployment;
    let mut status = count(deployment, sets);
    availability(deployment, &mut status, view.now);
    progress(view, sets, plan, &mut status);
    replica_failure(sets, &mut status);
    if let Some(change) = difference(&as_json(&deployment.status), &as_json(&status)) {
        plan.set_status(deployment, change);
    } else if let Some(at) = deadline(deployment) {
        plan.look_again(at);
    }
}

/// Whether the rollout is done, by the ReplicaSets' own counts.
pub fn is_complete_now(deployment: &Deployment, sets: &Sets) -> bool {
    is_complete(deployment, &count(deployment, sets))
}

fn count(deployment: &Deployment, sets: &Sets) -> DeploymentStatus {
    let sum =
        |number: &dyn Fn(&crate::kinds::ReplicaSet) -> i64| sets.all().map(|set| number(set)).sum::<i64>();
    let available = sum(&|set| set.status.available_replicas);
    DeploymentStatus {
        observed_generation: deployment.metadata.generation.max(deployment.status.observed_generation),
        replicas: sum(&|set| set.status.replicas),
        updated_replicas: sets.new.as_ref().map_or(0, |new| new.status.replicas),
        ready_replicas: sum(&|set| set.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: (sum(&|set| set.replicas()) - available).max(0),
        terminating_replicas: Some(sum(&|set| set.status.terminating_replicas.unwrap_or(0))),
        conditions: deployment.status.conditions.clone(),
        collision_count: deployment.status.collision_count,
    }
}

fn availability(deployment: &Deployment, status: &mut DeploymentStatus, now: Timestamp) {
    let (_, unavailable) = deployment.bounds();
    let (answer, reason, text) = if status.available_replicas >= deployment.wanted() - unavailable {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    put(&mut status.conditions, "Available", answer, reason, text.into(), now);
}

fn put(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: &str,
    reason: &str,
    text: String,
    now: Timestamp,
) {
    let mut new = Condition::new(kind, status, reason, text, now);
    new.last_update_time = Some(whole_second(now));
    put_condition(conditions, new);
}

fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = deployment.wanted();
    status.updated_replicas == wanted
        && status.replicas == wanted
        && status.available_replicas == wanted
        && status.observed_generation >= deployment.metadata.generation
}

fn progress(view: &View, sets: &Sets, plan: &Plan, status: &mut DeploymentStatus) {
    let (deployment, now) = (&*view.deployment, view.now);
    let Some(seconds) = deployment.progress_deadline() else {
        return remove_condition(&mut status.conditions, "Progressing");
    };
    let reason = progress_reason(deployment);
    let set_name = sets.new.as_ref().map(|set| &*set.metadata.name);
    let subject = set_name.map_or_else(
        || format!("Deployment \"{}\"", deployment.metadata.name),
        |name| format!("ReplicaSet \"{name}\""),
    );
    let mut put = |status_word: &str, reason: &str, text: String| {
        put(&mut status.conditions, "Progressing", status_word, reason, text, now);
    };
    if let Some(failure) = view.failure.as_ref().filter(|failure| failure.reason == "ReplicaSetCreateError") {
        return put("False", "ReplicaSetCreateError", failure.message.clone());
    }
    if deployment.metadata.is_terminating() {
        return;
    }
    if deployment.spec.paused {
        if reason != Some("DeploymentPaused") {
            put("Unknown", "DeploymentPaused", "Deployment is paused".into());
        }
        return;
    }
    if reason == Some("DeploymentPaused") {
        return put("Unknown", "DeploymentResumed", "Deployment is resumed".into());
    }
    let creates = plan.creates().first().and_then(|set| set["metadata"]["name"].as_str()).map(str::to_owned);
    if let Some(name) = creates {
        return put("True", "NewReplicaSetCreated", format!("Created new replica set \"{name}\""));
    }
    let old = condition(&deployment.status.conditions, "Progressing");
    if let (None, Some(name)) = (old, set_name) {
        put("True", "FoundNewReplicaSet", format!("Found new replica set \"{name}\""));
    }
    if status.replicas == status.updated_replicas && reason == Some(AVAILABLE) {
        // A finished rollout stays finished, also while pods are lost later.
        return;
    }
    if is_complete(deployment, status) {
        let text = format!("{subject} has successfully progressed.");
        set_progress(&mut status.conditions, "True", AVAILABLE, text, now);
    } else if is_progressing(&deployment.status, status) {
        let text = format!("{subject} is progressing.");
        set_progress(&mut status.conditions, "True", "ReplicaSetUpdated", text, now);
    } else if has_timed_out(old, seconds, now) {
        let text = format!("{subject} has timed out progressing.");
        set_progress(&mut status.conditions, "False", TIMED_OUT, text, now);
    }
}

/// Each sign of progress renews the update time, from which the deadline is counted.
fn set_progress(conditions: &mut Vec<Condition>, status: &str, reason: &str, text: String, now: Timestamp) {
    let old = condition(conditions, "Progressing").cloned();
    if old.as_ref().is_some_and(|old| {
        *old.status == *status
            && *old.reason == *reason
            && *old.message == *text
            && reason != "ReplicaSetUpdated"
    }) {
        return;
    }
    let mut new = Condition::new("Progressing", status, reason, text, now);
    new.last_update_time = Some(whole_second(now));
    if let Some(old) = old.filter(|old| *old.status == *status) {
        new.last_transition_time = old.last_transition_time;
    }
    remove_condition(conditions, "Progressing");
    conditions.push(new);
}

fn is_progressing(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    new.updated_replicas > old.updated_replicas
        || new.replicas - new.updated_replicas < old.replicas - old.updated_replicas
        || new.ready_replicas > old.ready_replicas
        || new.available_replicas > old.available_replicas
}

fn has_timed_out(progressing: Option<&Condition>, seconds: i64, now: Timestamp) -> bool {
    let Some(condition) = progressing else { return false };
    match &*condition.reason {
        AVAILABLE => false,
        TIMED_OUT => true,
        _ => condition.last_update_time.is_some_and(|since| since.as_second() + seconds < now.as_second()),
    }
}

/// When a rollout that shows no progress has to be looked at again.
fn deadline(deployment: &Deployment) -> Option<Timestamp> {
    let seconds = deployment.progress_deadline()?;
    let condition = condition(&deployment.status.conditions, "Progressing")?;
    if deployment.spec.paused || matches!(&*condition.reason, AVAILABLE | TIMED_OUT) {
        return None;
    }
    condition.last_update_time?.checked_add(SignedDuration::from_secs(seconds + 1)).ok()
}

fn replica_failure(sets: &Sets, status: &mut DeploymentStatus) {
    let failing = |set: &crate::kinds::ReplicaSet| {
        condition(&set.status.conditions, "ReplicaFailure").filter(|condition| condition.is_true()).cloned()
    };
    let found = sets
        .new
        .as_ref()
        .and_then(|new| failing(new))
        .or_else(|| sets.old.iter().find_map(|old| failing(old)));
    match found {
        Some(mut failure) => {
            failure.last_update_time = failure.last_transition_time;
            put_condition(&mut status.conditions, failure);
        }
        None => remove_condition(&mut status.conditions, "ReplicaFailure"),
    }
}

fn as_json(status: &DeploymentStatus) -> Value {
    let mut fields = json!({});
    let numbers = [
        ("observedGeneration", status.observed_generation),
        ("replicas", status.replicas),
        ("updatedReplicas", status.updated_replicas),
        ("readyReplicas", status.ready_replicas),
        ("availableReplicas", status.available_replicas),
        ("unavailableReplicas", status.unavailable_replicas),
    ];
    for (name, number) in numbers.into_iter().filter(|(_, number)| *number != 0) {
        fields[name] = json!(number);
    }
    if let Some(number) = status.terminating_replicas {
        fields["terminatingReplicas"] = json!(number);
    }
    if let Some(number) = status.collision_count {
        fields["collisionCount"] = json!(number);
    }
    if !status.conditions.is_empty() {
        fields["conditions"] = json!(status.conditions);
    }
    fields
}
