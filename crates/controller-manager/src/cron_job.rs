//! CronJobs: start a Job whenever the schedule says so.

mod schedule;

use std::sync::Arc;

use controller_runtime::{Context, Controller, Kind, Plan, Propagation, difference, time};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kinds::{CronJob, Job, JobReference, labels_json, whole_second};
use schedule::{Schedule, ScheduleError};

const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";
/// With more missed starts than this something is wrong with the clock or the deadline.
const MANY: i64 = 100;

/// What one CronJob may depend on.
pub struct View {
    /// The CronJob.
    pub cron: Arc<CronJob>,
    /// The Jobs that it controls.
    pub jobs: Vec<Arc<Job>>,
    /// The time.
    pub now: Timestamp,
}

/// Decides on one CronJob.
pub fn reconcile(view: &View) -> Plan {
    let cron = &*view.cron;
    let mut plan = Plan::default();
    tell_completed(view, &mut plan);
    let mut started = None;
    if !cron.metadata.is_terminating() {
        clean_up(view, &mut plan);
        started = start(view, &mut plan);
    }
    // What this plan replaces is not missed when it is gone.
    let replaced = plan.deletes();
    let active = active(view).into_iter().filter(|job| !replaced.contains(&&*job.metadata.name));
    let status = json!({
        "active": active.map(|job| reference(job)).collect::<Vec<_>>(),
        "lastScheduleTime": started.or(cron.status.last_schedule_time).map(time),
        "lastSuccessfulTime": last_success(view).map(time),
    });
    let before = json!({
        "active": cron.status.active,
        "lastScheduleTime": cron.status.last_schedule_time.map(time),
        "lastSuccessfulTime": cron.status.last_successful_time.map(time),
    });
    if let Some(change) = difference(&before, &status) {
        plan.set_status(cron, change);
    }
    plan
}

/// Whether a Job bears the name of one that the schedule starts. Others were made by hand from the template.
fn is_scheduled(cron: &CronJob, job: &Job) -> bool {
    let rest = job.metadata.name.strip_prefix(&*cron.metadata.name).and_then(|rest| rest.strip_prefix('-'));
    rest.is_some_and(|minutes| !minutes.is_empty() && minutes.bytes().all(|byte| byte.is_ascii_digit()))
}

fn active(view: &View) -> Vec<&Arc<Job>> {
    let is_active = |job: &&Arc<Job>| job.finished().is_none() && is_scheduled(&view.cron, job);
    let mut jobs: Vec<&Arc<Job>> = view.jobs.iter().filter(is_active).collect();
    jobs.sort_by_key(|job| (job.metadata.created(), job.metadata.name.clone()));
    jobs
}

/// A running Job as the status names it. The revision is the one first noted: each new one would only make noise.
fn reference(job: &Job) -> JobReference {
    JobReference {
        api_version: "batch/v1".into(),
        kind: "Job".into(),
        name: job.metadata.name.clone(),
        namespace: (&job.metadata.namespace).into(),
        resource_version: "".into(),
        uid: job.metadata.uid.clone(),
    }
}

fn last_success(view: &View) -> Option<Timestamp> {
    let succeeded = |job: &&Arc<Job>| job.finished().is_some_and(|end| &*end.kind == "Complete");
    let ends = view.jobs.iter().filter(succeeded).filter_map(|job| job.status.completion_time);
    ends.chain(view.cron.status.last_successful_time).max()
}

fn tell_completed(view: &View, plan: &mut Plan) {
    for job in view.jobs.iter().filter(|job| job.finished().is_none() && !is_scheduled(&view.cron, job)) {
        let text = format!("Saw a job that the controller did not create or forgot: {}", job.metadata.name);
        plan.warn(&*view.cron, "UnexpectedJob", text);
    }
    for old in &view.cron.status.active {
        let job = view.jobs.iter().find(|job| job.metadata.uid == old.uid);
        match job.map(|job| job.finished()) {
            Some(Some(end)) => {
                let text = format!("Saw completed job: {}, condition: {}", old.name, end.kind);
                plan.event(&*view.cron, "SawCompletedJob", text);
            }
            Some(None) => {}
            None => {
                plan.event(&*view.cron, "MissingJob", format!("Active job went missing: {}", old.name));
            }
        }
    }
}

/// Deletes finished Jobs beyond the history limits, oldest first.
fn clean_up(view: &View, plan: &mut Plan) {
    let cron = &*view.cron;
    let limits = [
        ("Complete", cron.spec.successful_jobs_history_limit),
        ("Failed", cron.spec.failed_jobs_history_limit),
    ];
    for (end, limit) in limits {
        let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
        let ended = |job: &&Arc<Job>| job.finished().is_some_and(|condition| &*condition.kind == end);
        let mut jobs: Vec<&Arc<Job>> = view.jobs.iter().filter(ended).collect();
        jobs.sort_by_key(|job| (job.status.start_time, job.metadata.name.clone()));
        let excess = jobs.len().saturating_sub(limit);
        for job in jobs.into_iter().take(excess).filter(|job| !job.metadata.is_terminating()) {
            delete(cron, job, plan);
        }
    }
}

fn delete(cron: &CronJob, job: &Job, plan: &mut Plan) {
    plan.delete_meta(&Job::RESOURCE, &job.metadata, Some(Propagation::Background)).announce(
        cron,
        Some(("SuccessfulDelete", "Deleted job {name}".into())),
        Some(("FailedDelete", "Deleted job: {error}".into())),
    );
}

/// Starts a Job if one is due; returns the time that it was due at.
fn start(view: &View, plan: &mut Plan) -> Option<Timestamp> {
    let (cron, now) = (&*view.cron, view.now);
    if cron.spec.suspend == Some(true) {
        return None;
    }
    let schedule = match Schedule::new(&cron.spec.schedule, cron.spec.time_zone.as_deref()) {
        Ok(schedule) => schedule,
        Err(ScheduleError::Zone(zone)) => {
            plan.warn(
                cron,
                "UnknownTimeZone",
                format!("invalid timeZone: {zone:?}: unknown time zone {zone}"),
            );
            return None;
        }
        Err(error) => {
            let text = format!("unparseable schedule: {:?} : {error}", cron.spec.schedule);
            plan.warn(cron, "UnparseableSchedule", text);
            return None;
        }
    };
    let mut since = cron.status.last_schedule_time.unwrap_or(cron.metadata.created());
    let deadline = cron.spec.starting_deadline_seconds;
    if let Some(seconds) = deadline {
        let oldest = now.checked_sub(SignedDuration::from_secs(seconds)).unwrap_or(since);
        since = since.max(oldest);
    }
    let due = schedule.latest(since, now);
    match due.next {
        Some(next) => {
            plan.look_again(next);
        }
        // A day that never comes, such as 31 February.
        None if due.latest.is_none() => {
            let text = format!(
                "invalid schedule: {} : time difference between two schedules is less than 1 second",
                cron.spec.schedule
            );
            plan.warn(cron, "InvalidSchedule", text);
        }
        None => {}
    }
    let at = due.latest?;
    if due.missed > MANY {
        let text =
            "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.warn(cron, "TooManyMissedTimes", text);
    }
    let too_late = deadline.is_some_and(|seconds| at.as_second() + seconds < now.as_second());
    if too_late {
        plan.warn(cron, "MissSchedule", format!("Missed scheduled time to start a job: {at}"));
        return None;
    }
    let name = format!("{}-{}", cron.metadata.name, at.as_second() / 60);
    if view.jobs.iter().any(|job| *job.metadata.name == *name) || cron.status.last_schedule_time == Some(at) {
        return None;
    }
    let running = active(view);
    match &*cron.spec.concurrency_policy {
        "Forbid" if !running.is_empty() => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.event(cron, "JobAlreadyActive", text);
            return None;
        }
        "Replace" => {
            running.into_iter().for_each(|job| delete(cron, job, plan));
            plan.then();
        }
        _ => {}
    }
    plan.create(&Job::RESOURCE, new_job(cron, &schedule, &name, at)).tolerant().announce(
        cron,
        Some(("SuccessfulCreate", "Created job {name}".into())),
        Some(("FailedCreate", "Error creating job: {error}".into())),
    );
    Some(whole_second(at))
}

fn new_job(cron: &CronJob, schedule: &Schedule, name: &str, at: Timestamp) -> Value {
    let template = &cron.spec.job_template;
    let mut annotations = labels_json(&template.metadata.annotations);
    annotations[SCHEDULED_AT] = json!(schedule.local(at));
    json!({
        "metadata": {
            "name": name,
            "namespace": cron.metadata.namespace,
            "labels": labels_json(&template.metadata.labels),
            "annotations": annotations,
            "ownerReferences": [cron.controller_ref()],
        },
        "spec": template.spec.value(),
    })
}

fn gather(context: &Context) -> Option<View> {
    let cron = context.object::<CronJob>()?;
    let jobs = context.caches.controlled_by::<Job>(&cron.metadata.uid);
    Some(View { cron, jobs, now: context.now })
}

/// The controller.
pub fn controller() -> Controller {
    Controller::new("cronjob-controller", gather, reconcile)
        .acting_as("cronjob-controller")
        .workers(5)
        .for_kind::<CronJob>()
        .owning::<Job>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{now, object};

    fn plan(more: Value, jobs: Vec<Value>) -> Plan {
        let mut value = json!({"metadata":{"name":"c","namespace":"n","uid":"c1","creationTimestamp":"2026-01-01T11:58:30Z"},
            "spec":{"schedule":"* * * * *","concurrencyPolicy":"Allow","successfulJobsHistoryLimit":1,"failedJobsHistoryLimit":1,
                "jobTemplate":{"metadata":{"labels":{"a":"b"}},"spec":{"template":{"spec":{}}}}}});
        controller_runtime::merge(&mut value, &more);
        let jobs = jobs.into_iter().map(|job| Arc::new(object(job))).collect();
        reconcile(&View { cron: Arc::new(object(value)), jobs, now: now() })
    }

    fn job(name: &str, end: Option<&str>) -> Value {
        let conditions: Vec<Value> = end.iter().map(|kind| json!({"type":kind,"status":"True"})).collect();
        json!({"metadata":{"name":name,"namespace":"n","uid":name},"status":{"startTime":"2026-01-01T10:00:00Z",
            "completionTime":"2026-01-01T10:00:10Z","conditions":conditions}})
    }

    #[test]
    fn the_latest_due_time_starts_one_job() {
        let plan = plan(json!({}), vec![]);
        let job = plan.creates()[0];
        assert_eq!(job["metadata"]["name"], format!("c-{}", now().as_second() / 60));
        assert_eq!(job["metadata"]["annotations"][SCHEDULED_AT], "2026-01-01T12:00:00Z");
        assert_eq!(plan.creates().len(), 1);
        assert_eq!(plan.status_change().unwrap()["lastScheduleTime"], "2026-01-01T12:00:00Z");
        assert_eq!(plan.requeue_at.map(|at| at.to_string()).as_deref(), Some("2026-01-01T12:01:00Z"));
    }

    #[test]
    fn concurrency_is_as_asked() {
        let running = || vec![job("c-1", None)];
        assert_eq!(plan(json!({"spec":{"concurrencyPolicy":"Allow"}}), running()).creates().len(), 1);
        let forbidden = plan(json!({"spec":{"concurrencyPolicy":"Forbid"}}), running());
        assert_eq!((forbidden.creates().len(), &*forbidden.events()[0].reason), (0, "JobAlreadyActive"));
        let replaced = plan(json!({"spec":{"concurrencyPolicy":"Replace"}}), running());
        assert_eq!((replaced.deletes(), replaced.creates().len()), (vec!["c-1"], 1));
        assert!(
            replaced.status_change().unwrap().get("active").is_none(),
            "what is replaced is not missed later"
        );
    }

    #[test]
    fn a_job_by_hand_is_told_and_does_not_stand_in_the_way() {
        let forbidden = plan(json!({"spec":{"concurrencyPolicy":"Forbid"}}), vec![job("byhand", None)]);
        assert_eq!((forbidden.creates().len(), &*forbidden.events()[0].reason), (1, "UnexpectedJob"));
    }

    #[test]
    fn a_suspended_or_unreadable_one_starts_nothing() {
        assert!(plan(json!({"spec":{"suspend":true}}), vec![]).creates().is_empty());
        assert_eq!(
            plan(json!({"spec":{"schedule":"nonsense"}}), vec![]).events()[0].reason,
            "UnparseableSchedule"
        );
        assert_eq!(
            plan(json!({"spec":{"timeZone":"No/Where"}}), vec![]).events()[0].reason,
            "UnknownTimeZone"
        );
        let never = plan(json!({"spec":{"schedule":"59 23 31 2 *"}}), vec![]);
        assert_eq!((never.creates().len(), &*never.events()[0].reason), (0, "InvalidSchedule"));
    }

    #[test]
    fn history_is_cut_and_success_noted() {
        let jobs = vec![job("a", Some("Complete")), job("b", Some("Complete")), job("f", Some("Failed"))];
        let done = plan(json!({"spec":{"suspend":true},"status":{"active":[{"name":"a","uid":"a"}]}}), jobs);
        assert_eq!(done.deletes(), ["a"]);
        assert_eq!(done.status_change().unwrap()["lastSuccessfulTime"], "2026-01-01T10:00:10Z");
        assert_eq!(done.events()[0].reason, "SawCompletedJob");
    }
}
