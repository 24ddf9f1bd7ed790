//! Deletes finished Jobs when the time that they ask for has passed.

use std::sync::Arc;

use controller_runtime::{Context, Controller, Kind, Plan, Propagation};
use jiff::{SignedDuration, Timestamp};

use crate::kinds::Job;

/// What one Job's stay depends on.
pub struct View {
    /// The Job.
    pub job: Arc<Job>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one Job.
pub fn reconcile(view: &View) -> Plan {
    let mut plan = Plan::default();
    let job = &*view.job;
    let (Some(seconds), Some(end)) = (job.spec.ttl_seconds_after_finished, job.finished()) else {
        return plan;
    };
    let Some(at) = end.last_transition_time else { return plan };
    if job.metadata.is_terminating() {
        return plan;
    }
    let due = at.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    if due > view.now {
        plan.look_again(due);
    } else {
        plan.delete_meta(&Job::RESOURCE, &job.metadata, Some(Propagation::Foreground))
            .at_revision(&job.metadata);
    }
    plan
}

/// The controller.
pub fn controller() -> Controller {
    let gather = |context: &Context| Some(View { job: context.object::<Job>()?, now: context.now });
    Controller::new("ttl-after-finished-controller", gather, reconcile)
        .acting_as("ttl-after-finished-controller")
        .for_kind::<Job>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};
    use serde_json::json;

    #[test]
    fn a_job_goes_when_its_time_is_up() {
        let plan = |seconds: i64, end: &str| {
            let job =
                object(json!({"metadata":{"name":"j"},"spec":{"ttlSecondsAfterFinished":seconds},"status":{
                "conditions":[{"type":end,"status":"True","lastTransitionTime":"2026-01-01T11:59:00Z"}]}}));
            reconcile(&View { job: Arc::new(job), now: now() })
        };
        assert_eq!(plan(30, "Complete").deletes(), ["j"]);
        assert_eq!(plan(90, "Failed").requeue_at.unwrap().to_string(), "2026-01-01T12:00:30Z");
        assert!(plan(30, "Suspended").is_empty());
    }
}
