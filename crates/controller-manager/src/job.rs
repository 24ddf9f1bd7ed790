//! Jobs: run pods until enough have succeeded or too many have failed, and count each exactly once.
//!
//! Every pod carries a finalizer until its end is counted. Counting takes two decisions: the first notes the pod's uid in
//! the status and then takes its finalizer away; the next one, which sees the finalizer gone, moves the uid into the
//! counters. A crash in between repeats a step and counts nothing twice. A job ends in two steps likewise: first the
//! condition that says how it will end, then, when all pods are counted and gone, the final one.

mod indexes;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use controller_runtime::{Change, Context, Controller, Key, Kind, PatchForm, Plan, difference};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::claims::Claims;
use crate::kinds::{Condition, Job, JobStatus, Pod, condition, whole_second};
use crate::pods;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const CONTROLLER: &str = "kubernetes.io/job-controller";
/// More pods than this are not created, deleted or counted in one go.
const BURST: usize = 500;
const FIRST_BACKOFF: i64 = 10;
const LAST_BACKOFF: i64 = 600;

/// What one Job may depend on.
pub struct View {
    /// The Job.
    pub job: Arc<Job>,
    /// Its pods.
    pub pods: Claims<Pod>,
    /// The time.
    pub now: Timestamp,
}

/// What the pods of a Job amount to.
struct Tally<'a> {
    job: &'a Job,
    pods: Vec<&'a Pod>,
    active: Vec<&'a Pod>,
    terminating: i64,
    succeeded: i64,
    failed: i64,
    succeeded_indexes: BTreeSet<i64>,
    failed_indexes: Option<BTreeSet<i64>>,
    /// Failed pods that have to stay until their successor knows how often the index failed.
    kept: BTreeMap<i64, &'a Pod>,
    now: Timestamp,
}

impl Job {
    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Whether a pod is replaced only when it has ended, not while it is ending.
    fn waits_for_end(&self) -> bool {
        match self.spec.pod_replacement_policy.as_deref() {
            Some(policy) => policy == "Failed",
            None => self.spec.pod_failure_policy.is_some(),
        }
    }

    fn completions(&self) -> i64 {
        self.spec.completions.unwrap_or(1)
    }
}

impl Pod {
    fn is_tracked(&self) -> bool {
        self.metadata.has_finalizer(FINALIZER)
    }

    fn has_failed_for(&self, job: &Job) -> bool {
        let ending = self.metadata.is_terminating() && &*self.status.phase != "Succeeded";
        &*self.status.phase == "Failed" || (ending && !job.waits_for_end())
    }

    /// When it ended, as well as can be told: with the last of its containers, when it was no longer ready, or when
    /// its deletion was asked for.
    fn finished_at(&self) -> Timestamp {
        let ends = self.status.container_statuses.iter();
        let ends: Option<Vec<Timestamp>> =
            ends.map(|status| status.terminated.as_ref()?.finished_at).collect();
        let unready = || self.status.turned_ready.filter(|_| !self.is_ready());
        let deleted = || {
            let grace = self.metadata.deletion_grace_period_seconds.unwrap_or(0);
            self.metadata.deletion_timestamp?.checked_sub(SignedDuration::from_secs(grace)).ok()
        };
        ends.and_then(|all| all.into_iter().max())
            .or_else(unready)
            .or_else(deleted)
            .unwrap_or(self.metadata.created())
    }
}

/// Decides on one Job.
pub fn reconcile(view: &View) -> Plan {
    let job = &*view.job;
    let mut plan = Plan::default();
    if job.spec.managed_by.as_deref().is_some_and(|manager| manager != CONTROLLER) {
        return plan;
    }
    if job.finished().is_some() {
        // Nothing is counted any more: what still has a finalizer may go.
        untrack(view.pods.mine.iter().map(|pod| &**pod), &mut plan);
        return plan;
    }
    view.pods.settle(job, &mut plan);
    let tally = count(job, &view.pods, view.now);
    // The next pod is like the last one; what ended in between makes it another step.
    plan.progress = (tally.succeeded + tally.failed).unsigned_abs();
    let mut status = job.status.clone();
    if status.start_time.is_none() && !job.is_suspended() {
        status.start_time = Some(whole_second(view.now));
    }
    let end = how_it_ends(&tally, &status);
    track(&tally, end.as_ref(), &mut status);
    status.active = tally.active.len() as i64;
    status.ready = Some(tally.active.iter().filter(|pod| pod.is_ready()).count() as i64);
    status.terminating = Some(tally.terminating);
    if end.is_none() && !job.metadata.is_terminating() {
        note_suspension(job, &mut status, &mut plan, view.now);
    }
    let finished = end.as_ref().and_then(|end| finish(&tally, end, &mut status));
    let change = difference(&status_json(&job.status), &status_json(&status));
    if let Some(change) = change {
        plan.then().update_sub(job, "status", json!({"status": change}));
    }
    if let Some(finished) = &finished {
        match &*finished.kind {
            "Complete" => plan.event(job, "Completed", "Job completed"),
            _ => plan.warn(job, &finished.reason, finished.message.to_string()),
        };
    }
    plan.then();
    untrack(removable(&tally, end.as_ref(), &status), &mut plan);
    plan.then();
    if let Some(end) = &end {
        if &*end.kind == "SuccessCriteriaMet" {
            // What is not needed any more did not fail.
            dismiss(job, tally.active.iter().copied(), &mut plan);
        } else {
            tally.active.iter().for_each(|pod| delete(job, pod, &mut plan));
        }
    } else if !job.metadata.is_terminating() {
        manage(&tally, &mut plan);
        look_at_deadline(job, &status, view.now, &mut plan);
    }
    plan
}

fn status_json(status: &JobStatus) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// Sums up the pods.
fn count<'a>(job: &'a Job, claims: &'a Claims<Pod>, now: Timestamp) -> Tally<'a> {
    let adopted = |pod: &Pod| claims.adopt.iter().any(|other| other.metadata.uid == pod.metadata.uid);
    let pods: Vec<&Pod> = claims.mine.iter().map(|pod| &**pod).collect();
    let uncounted = job.status.uncounted_terminated_pods.clone().unwrap_or_default();
    let is_noted = |pod: &Pod| {
        uncounted.succeeded.contains(&pod.metadata.uid) || uncounted.failed.contains(&pod.metadata.uid)
    };
    let in_range =
        |pod: &Pod| !job.is_indexed() || indexes::of(pod).is_some_and(|index| index < job.completions());
    let fresh = |pod: &&&Pod| (pod.is_tracked() || adopted(pod)) && !is_noted(pod) && in_range(pod);
    let succeeded = pods.iter().filter(fresh).filter(|pod| &*pod.status.phase == "Succeeded").count();
    let failed = pods
        .iter()
        .filter(fresh)
        .filter(|pod| pod.has_failed_for(job) && policy::verdict(job, pod).counts())
        .count();
    let mut tally = Tally {
        job,
        active: pods.iter().copied().filter(|pod| pod.is_active()).collect(),
        terminating: pods.iter().filter(|pod| pod.metadata.is_terminating() && !pod.is_finished()).count()
            as i64,
        succeeded: job.status.succeeded + (succeeded + uncounted.succeeded.len()) as i64,
        failed: job.status.failed + (failed + uncounted.failed.len()) as i64,
        succeeded_indexes: BTreeSet::new(),
        failed_indexes: None,
        kept: BTreeMap::new(),
        pods,
        now,
    };
    if job.is_indexed() {
        indexes::count(&mut tally);
        tally.succeeded = tally.succeeded_indexes.len() as i64;
    }
    tally
}

/// Whether and how the job ends: the condition that announces it.
fn how_it_ends(tally: &Tally<'_>, status: &JobStatus) -> Option<Condition> {
    let job = tally.job;
    let announced = ["SuccessCriteriaMet", "FailureTarget"]
        .iter()
        .filter_map(|kind| condition(&job.status.conditions, kind))
        .find(|condition| condition.is_true());
    if let Some(announced) = announced {
        return Some(announced.clone());
    }
    let fail = |reason: &str, message: &str| Some(ending("FailureTarget", reason, message, tally.now));
    if let Some(message) = policy::fails_job(job, &tally.pods) {
        return fail("PodFailurePolicy", &message);
    }
    let limit = job.spec.backoff_limit.unwrap_or(6);
    if tally.failed > limit || restarts_exceed(tally, limit) {
        return fail("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if deadline(job, status).is_some_and(|at| at <= tally.now) {
        return fail("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    if let Some(failed) = &tally.failed_indexes {
        let (failed, succeeded) = (failed.len() as i64, tally.succeeded_indexes.len() as i64);
        if job.spec.max_failed_indexes.is_some_and(|max| failed > max) {
            let text = "Job has exceeded the specified maximal number of failed indexes";
            return fail("MaxFailedIndexesExceeded", text);
        }
        if failed > 0 && failed + succeeded >= job.completions() {
            return fail("FailedIndexes", "Job has failed indexes");
        }
    }
    if let Some(message) = indexes::success_policy(tally) {
        return Some(ending("SuccessCriteriaMet", "SuccessPolicy", &message, tally.now));
    }
    let enough = match job.spec.completions {
        // Any success means done; the others are left to end by themselves.
        None => tally.succeeded > 0,
        Some(wanted) => tally.succeeded >= wanted,
    };
    if enough && tally.active.is_empty() {
        let text = "Reached expected number of succeeded pods";
        return Some(ending("SuccessCriteriaMet", "CompletionsReached", text, tally.now));
    }
    None
}

fn ending(kind: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    let mut condition = Condition::new(kind, "True", reason, message, now);
    condition.last_probe_time = Some(whole_second(now));
    condition
}

/// Pods that restart in place count their restarts against the limit.
fn restarts_exceed(tally: &Tally<'_>, limit: i64) -> bool {
    let restarts: i64 = tally
        .pods
        .iter()
        .filter(|pod| {
            &*pod.spec.restart_policy == "OnFailure" && matches!(&*pod.status.phase, "Running" | "Pending")
        })
        .map(|pod| pod.restarts())
        .sum();
    if limit == 0 { restarts > 0 } else { restarts >= limit }
}

fn deadline(job: &Job, status: &JobStatus) -> Option<Timestamp> {
    let seconds = job.spec.active_deadline_seconds.filter(|_| !job.is_suspended())?;
    status.start_time?.checked_add(SignedDuration::from_secs(seconds)).ok()
}

fn look_at_deadline(job: &Job, status: &JobStatus, now: Timestamp, plan: &mut Plan) {
    if let Some(at) = deadline(job, status).filter(|at| *at > now) {
        plan.look_again(at);
    }
}

/// Moves pods whose finalizer is gone into the counters, and notes newly ended ones.
fn track(tally: &Tally<'_>, end: Option<&Condition>, status: &mut JobStatus) {
    let job = tally.job;
    let tracked: BTreeSet<&str> =
        tally.pods.iter().filter(|pod| pod.is_tracked()).map(|pod| &*pod.metadata.uid).collect();
    let mut uncounted = status.uncounted_terminated_pods.take().unwrap_or_default();
    for (noted, counter) in
        [(&mut uncounted.succeeded, &mut status.succeeded), (&mut uncounted.failed, &mut status.failed)]
    {
        let before = noted.len();
        noted.retain(|uid| tracked.contains(&**uid));
        *counter += (before - noted.len()) as i64;
    }
    let failing = end.is_some_and(|end| &*end.kind == "FailureTarget");
    for pod in removable_in_order(tally, end) {
        if uncounted.succeeded.len() + uncounted.failed.len() >= BURST {
            break;
        }
        let uid = &pod.metadata.uid;
        let in_range = !job.is_indexed() || indexes::of(pod).is_some_and(|index| index < job.completions());
        if &*pod.status.phase == "Succeeded" && !uncounted.failed.contains(uid) {
            // The index itself says that an indexed pod was counted.
            if !job.is_indexed() && !uncounted.succeeded.contains(uid) {
                uncounted.succeeded.push(uid.clone());
            }
        } else if (pod.has_failed_for(job) || failing)
            && !uncounted.failed.contains(uid)
            && in_range
            && policy::verdict(job, pod).counts()
        {
            uncounted.failed.push(uid.clone());
        }
    }
    if job.is_indexed() {
        status.succeeded = tally.succeeded_indexes.len() as i64;
        status.completed_indexes = indexes::to_text(&tally.succeeded_indexes).into();
        status.failed_indexes = tally.failed_indexes.as_ref().map(|failed| indexes::to_text(failed).into());
    }
    status.uncounted_terminated_pods = Some(uncounted);
    if let Some(end) = end.filter(|end| condition(&status.conditions, &end.kind).is_none()) {
        status.conditions.push(end.clone());
    }
}

/// Tracked pods whose end can be counted, whether or not it is noted yet.
fn removable_in_order<'a>(tally: &Tally<'a>, end: Option<&Condition>) -> Vec<&'a Pod> {
    let job = tally.job;
    let may_go = |pod: &Pod| {
        if job.metadata.is_terminating() || &*pod.status.phase == "Succeeded" {
            return true;
        }
        if end.is_some() {
            // It was deleted, or will be by this plan; a pod that still runs is counted when it has ended.
            return pod.is_finished() || pod.metadata.is_terminating();
        }
        let is_kept = || tally.kept.values().any(|kept| kept.metadata.uid == pod.metadata.uid);
        pod.has_failed_for(job) && !is_kept()
    };
    tally.pods.iter().copied().filter(|pod| pod.is_tracked() && may_go(pod)).collect()
}

/// The pods whose finalizer goes after the status was written.
fn removable<'a>(tally: &Tally<'a>, end: Option<&Condition>, status: &JobStatus) -> Vec<&'a Pod> {
    let job = tally.job;
    let noted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let is_noted =
        |pod: &Pod| noted.succeeded.contains(&pod.metadata.uid) || noted.failed.contains(&pod.metadata.uid);
    let needs_no_note = |pod: &Pod| {
        job.metadata.is_terminating()
            || (&*pod.status.phase == "Succeeded" && job.is_indexed())
            || !policy::verdict(job, pod).counts()
            || (end.is_some_and(|end| &*end.kind == "SuccessCriteriaMet") && &*pod.status.phase != "Failed")
            || (job.is_indexed() && indexes::of(pod).is_none_or(|index| index >= job.completions()))
    };
    removable_in_order(tally, end).into_iter().filter(|pod| is_noted(pod) || needs_no_note(pod)).collect()
}

fn untrack<'a>(pods: impl IntoIterator<Item = &'a Pod>, plan: &mut Plan) {
    for pod in pods.into_iter().filter(|pod| pod.is_tracked()) {
        let body = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
        plan.patch_meta(&Pod::RESOURCE, &pod.metadata, None, PatchForm::Strategic, body).tolerant();
    }
}

/// The final condition, once every pod is counted and gone.
fn finish(tally: &Tally<'_>, end: &Condition, status: &mut JobStatus) -> Option<Condition> {
    let uncounted = status.uncounted_terminated_pods.as_ref();
    let open = uncounted.is_some_and(|open| !open.succeeded.is_empty() || !open.failed.is_empty());
    let tracked = tally.pods.iter().any(|pod| pod.is_tracked());
    if open || tracked || !tally.active.is_empty() || tally.terminating > 0 {
        return None;
    }
    let kind = if &*end.kind == "FailureTarget" { "Failed" } else { "Complete" };
    let finished = ending(kind, &end.reason, &end.message, tally.now);
    if kind == "Complete" {
        status.completion_time = Some(whole_second(tally.now));
    }
    status.conditions.push(finished.clone());
    Some(finished)
}

fn note_suspension(job: &Job, status: &mut JobStatus, plan: &mut Plan, now: Timestamp) {
    let was = condition(&status.conditions, "Suspended").map(|condition| condition.is_true());
    let (wanted, reason, text, event) = if job.is_suspended() {
        (true, "JobSuspended", "Job suspended", "Suspended")
    } else {
        (false, "JobResumed", "Job resumed", "Resumed")
    };
    // A job that was never suspended does not say that it was resumed.
    if was == Some(wanted) || (was.is_none() && !wanted) {
        return;
    }
    let word = if wanted { "True" } else { "False" };
    let mut new = ending("Suspended", reason, text, now);
    new.status = word.into();
    match status.conditions.iter_mut().find(|condition| &*condition.kind == "Suspended") {
        Some(old) => *old = new,
        None => status.conditions.push(new),
    }
    // The deadline counts from the resumption.
    status.start_time = (!wanted).then(|| whole_second(now));
    plan.event(job, event, text);
}

/// Creates or deletes pods so that as many run as should.
fn manage(tally: &Tally<'_>, plan: &mut Plan) {
    let job = tally.job;
    let active = tally.active.len() as i64;
    let parallelism = job.spec.parallelism.unwrap_or(1);
    let wanted = if job.is_suspended() {
        0
    } else {
        match job.spec.completions {
            None if tally.succeeded > 0 => active,
            None => parallelism,
            Some(completions) => (completions - tally.succeeded).clamp(0, parallelism),
        }
    };
    let surplus = surplus(tally, usize::try_from(active - wanted).unwrap_or(0));
    if !surplus.is_empty() {
        return dismiss(job, surplus.into_iter().take(BURST), plan);
    }
    let ending = if job.waits_for_end() { tally.terminating } else { 0 };
    let missing = usize::try_from(wanted - ending - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return;
    }
    if job.spec.backoff_limit_per_index.is_none()
        && let Some(at) = backoff_until(&tally.pods, job).filter(|at| *at > tally.now)
    {
        plan.look_again(at);
        return;
    }
    let made: Vec<Value> = if job.is_indexed() {
        indexes::to_create(tally, missing, plan)
    } else {
        (0..missing).map(|_| new_pod(job)).collect()
    };
    for pod in made {
        plan.create(&Pod::RESOURCE, pod).announce(
            job,
            Some(("SuccessfulCreate", "Created pod: {name}".into())),
            Some(("FailedCreate", "Error creating: {error}".into())),
        );
    }
}

fn new_pod(job: &Job) -> Value {
    let mut pod = pods::from_template(job, &job.spec.template);
    let mut finalizers = pod["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !finalizers.contains(&json!(FINALIZER)) {
        finalizers.push(json!(FINALIZER));
    }
    pod["metadata"]["finalizers"] = json!(finalizers);
    pod
}

/// Deletes pods whose end is not to be counted: the finalizer goes first.
fn dismiss<'a>(job: &Job, pods: impl Iterator<Item = &'a Pod> + Clone, plan: &mut Plan) {
    plan.then();
    untrack(pods.clone(), plan);
    plan.then();
    pods.for_each(|pod| delete(job, pod, plan));
}

fn delete(job: &Job, pod: &Pod, plan: &mut Plan) {
    plan.delete(pod).announce(
        job,
        Some(("SuccessfulDelete", "Deleted pod: {name}".into())),
        Some(("FailedDelete", "Error deleting: {error}".into())),
    );
}

/// The active pods that have to go: doubles and strays of indexed jobs, then those that are least far.
fn surplus<'a>(tally: &Tally<'a>, at_least: usize) -> Vec<&'a Pod> {
    let (mut go, mut stay) = (Vec::new(), tally.active.clone());
    if tally.job.is_indexed() {
        (go, stay) = indexes::doubles(tally.job, stay, tally.now);
    }
    if go.len() < at_least {
        pods::deletion_order(&mut stay, tally.now, |_| 0);
        go.extend(stay.into_iter().take(at_least - go.len()));
    }
    go
}

/// After failures new pods wait: ten seconds, doubled with each failure since the last success.
fn backoff_until(pods: &[&Pod], job: &Job) -> Option<Timestamp> {
    let last_success =
        pods.iter().filter(|pod| &*pod.status.phase == "Succeeded").map(|pod| pod.finished_at()).max();
    let failures: Vec<Timestamp> = pods
        .iter()
        .filter(|pod| pod.has_failed_for(job))
        .map(|pod| pod.finished_at())
        .filter(|at| last_success.is_none_or(|success| *at > success))
        .collect();
    backoff(failures.len(), failures.into_iter().max()?)
}

fn backoff(failures: usize, last: Timestamp) -> Option<Timestamp> {
    let doublings = u32::try_from(failures.checked_sub(1)?).unwrap_or(u32::MAX).min(10);
    let seconds = FIRST_BACKOFF.saturating_mul(1 << doublings).min(LAST_BACKOFF);
    last.checked_add(SignedDuration::from_secs(seconds)).ok()
}

fn gather(context: Context) -> BoxFuture<'static, Result<Option<View>, client::Error>> {
    Box::pin(async move {
        let Some(job) = context.object::<Job>() else { return Ok(None) };
        let pods = Claims::find(&context, &*job, &job.spec.selector).await?;
        Ok(Some(View { job, pods, now: context.now }))
    })
}

/// What becomes of one tracked pod that lost its job.
pub struct Orphan {
    pod: Arc<Pod>,
}

fn release(orphan: &Orphan) -> Plan {
    let mut plan = Plan::default();
    untrack([&*orphan.pod], &mut plan);
    plan
}

/// A tracked pod is free once its job is gone.
fn lost(context: &Context) -> Option<Orphan> {
    let pod = context.object::<Pod>().filter(|pod| pod.is_tracked())?;
    let owner = pod.metadata.controller();
    if owner.is_some_and(|owner| &*owner.kind != "Job") {
        return None;
    }
    let job = owner.and_then(|owner| {
        let job = context.caches.of::<Job>().get(&Key::new(&pod.metadata.namespace, &owner.name))?;
        (job.metadata.uid == owner.uid).then_some(job)
    });
    job.is_none().then_some(Orphan { pod })
}

fn of_deleted(caches: &controller_runtime::Caches, change: &Change<Job>) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    caches.controlled_by::<Pod>(&change.latest().metadata.uid).iter().map(|pod| pod.key()).collect()
}

/// The controller, and the one that frees pods of vanished jobs.
pub fn controllers() -> [Controller; 2] {
    let jobs = Controller::reading("job-controller", gather, reconcile)
        .acting_as("job-controller")
        .workers(5)
        .for_kind::<Job>()
        .owning::<Pod>();
    let orphans = Controller::new("job-orphan-controller", lost, release)
        .acting_as("job-controller")
        .watching::<Pod>(|_, change| match &change.new {
            Some(pod)
                if pod.is_tracked() && (change.old.is_none() || pod.metadata.controller().is_none()) =>
            {
                vec![change.key()]
            }
            _ => Vec::new(),
        })
        .watching::<Job>(of_deleted);
    [jobs, orphans]
}

#[cfg(test)]
mod tests;
