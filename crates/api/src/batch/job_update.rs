//! What may change in a Job, and in its status.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str, same},
    time,
};
use serde_json::Value;

use super::job::count_indexes;
use crate::{checks, go_form, metadata::IMMUTABLE, prepare::copy_field, print::has_condition};

/// Checks an update of the spec.
pub fn validate(job: &Value, old: &Value, problems: &mut Problems) {
    completions(job, old, problems);
    checks::immutable_struct(job, old, "spec.selector", "LabelSelector", problems);
    template(job, old, problems);
    checks::immutable(job, old, "spec.completionMode", problems);
    checks::immutable_struct(job, old, "spec.podFailurePolicy", "batch.PodFailurePolicy", problems);
    checks::immutable(job, old, "spec.backoffLimitPerIndex", problems);
    checks::immutable(job, old, "spec.managedBy", problems);
    checks::immutable_struct(job, old, "spec.successPolicy", "batch.SuccessPolicy", problems);
}

/// An indexed job grows and shrinks with its parallelism.
fn completions(job: &Value, old: &Value, problems: &mut Problems) {
    if get_str(job, "spec.completionMode") != "Indexed" {
        checks::immutable(job, old, "spec.completions", problems);
        return;
    }
    let Some(wanted) = get(job, "spec.completions") else { return };
    if get(old, "spec.completions") != Some(wanted) && get(job, "spec.parallelism") != Some(wanted) {
        problems.invalid(
            &Path::new("spec.completions"),
            wanted.clone(),
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// The template of a job whose pods all stopped may change in where they run and what they get.
fn template(job: &Value, old: &Value, problems: &mut Problems) {
    let suspended = old["spec"]["suspend"] == true;
    let stopped = (get(old, "status.startTime").is_none() || has_condition(old, "Suspended"))
        && old["status"]["active"].as_i64().unwrap_or(0) == 0;
    let path = Path::new("spec");
    let path = path.child("template");
    let new = &job["spec"]["template"];
    let mut before = old["spec"]["template"].clone();
    if !(suspended && stopped) {
        if !same(new, &before) {
            problems.invalid(&path, go_form::shown(new, "PodTemplateSpec"), IMMUTABLE);
        }
        return;
    }
    for field in ["nodeSelector", "tolerations", "schedulingGates"] {
        copy_field(&mut before["spec"], &new["spec"], field);
    }
    node_affinity(&mut before["spec"], &new["spec"]);
    for list in ["containers", "initContainers"] {
        let containers = get_list(&new["spec"], list);
        let Some(Value::Array(kept)) = before["spec"].get_mut(list) else { continue };
        if kept.len() == containers.len() {
            for (kept, new) in
                kept.iter_mut().zip(containers).filter(|(kept, new)| kept["name"] == new["name"])
            {
                copy_field(kept, new, "resources");
            }
        }
    }
    // Of the metadata anything goes.
    if !same(&new["spec"], &before["spec"]) {
        problems.invalid(&path.child("spec"), go_form::shown(&new["spec"], "PodSpec"), IMMUTABLE);
    }
}

fn node_affinity(before: &mut Value, new: &Value) {
    match (before.get("affinity").is_some(), new.get("affinity").is_some()) {
        (true, false) => {
            copy_field(&mut before["affinity"], &Value::Null, "nodeAffinity");
            if before["affinity"].as_object().is_some_and(serde_json::Map::is_empty) {
                copy_field(before, &Value::Null, "affinity");
            }
        }
        (_, true) => {
            if before.get("affinity").is_none() {
                before["affinity"] = Value::Object(serde_json::Map::new());
            }
            copy_field(&mut before["affinity"], &new["affinity"], "nodeAffinity");
        }
        (false, false) => {}
    }
}

/// Before and after of what the rules of the status look at. A rule speaks when something that it looks at changed: what
/// was wrong already may stay so.
struct Turn<'a> {
    job: &'a Value,
    old: &'a Value,
}

impl Turn<'_> {
    fn changed(&self, field: &str) -> bool {
        self.job["status"].get(field) != self.old["status"].get(field)
    }

    fn number_changed(&self, field: &str) -> bool {
        let number = |job: &Value| job["status"][field].as_i64().unwrap_or(0);
        number(self.job) != number(self.old)
    }

    fn turned(&self, condition: &str) -> bool {
        has_condition(self.job, condition) != has_condition(self.old, condition)
    }

    fn is(&self, condition: &str) -> bool {
        has_condition(self.job, condition)
    }

    fn was(&self, condition: &str) -> bool {
        has_condition(self.old, condition)
    }
}

/// Checks a write of the status.
pub fn validate_status(job: &Value, old: &Value, problems: &mut Problems) {
    let path = Path::new("status");
    let status = &job["status"];
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        checks::non_negative(status, field, &path, problems);
    }
    uncounted(status, &path, problems);
    let turn = Turn { job, old };
    conditions_and_times(&turn, &path, problems);
    finished(&turn, &path, problems);
    indexes(&turn, &path, problems);
    let number = |status: &Value, field: &str| status[field].as_i64().unwrap_or(0);
    let is_finished = turn.is("Complete") || turn.is("Failed");
    let finish_turned = is_finished != (turn.was("Complete") || turn.was("Failed"));
    if (finish_turned || turn.changed("terminating")) && is_finished && number(status, "terminating") > 0 {
        let shown = number(status, "terminating");
        problems.invalid(&path.child("terminating"), shown, "terminating>0 is invalid for finished job");
    }
    if (turn.changed("ready") || turn.number_changed("active"))
        && status.get("ready").is_some()
        && number(status, "ready") > number(status, "active")
    {
        let shown = number(status, "ready");
        problems.invalid(&path.child("ready"), shown, "cannot set more ready pods than active");
    }
    let conditions = path.child("conditions");
    for other in ["Failed", "FailureTarget"] {
        if turn.is("SuccessCriteriaMet") && turn.is(other) {
            problems.invalid_unshown(
                &conditions,
                format!("cannot set SuccessCriteriaMet=True and {other}=true conditions"),
            );
        }
    }
    if get(job, "spec.successPolicy").is_some() && !turn.is("SuccessCriteriaMet") && turn.is("Complete") {
        problems.invalid_unshown(
            &conditions,
            "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
        );
    }
    backwards(&turn, &path, problems);
}

fn uncounted(status: &Value, path: &Path<'_>, problems: &mut Problems) {
    let path = path.child("uncountedTerminatedPods");
    let mut seen = Vec::new();
    for field in ["succeeded", "failed"] {
        let list = path.child(field);
        for (index, uid) in get_list(&status["uncountedTerminatedPods"], field).iter().enumerate() {
            let uid = uid.as_str().unwrap_or_default();
            if uid.is_empty() {
                problems.invalid(&list.index(index), "", "must not be empty");
            } else if seen.contains(&uid) {
                problems.duplicate(&list.index(index), uid);
            } else {
                seen.push(uid);
            }
        }
    }
}

fn conditions_and_times(turn: &Turn<'_>, path: &Path<'_>, problems: &mut Problems) {
    let conditions = path.child("conditions");
    let status = &turn.job["status"];
    for other in ["Failed", "FailureTarget"] {
        if (turn.turned("Complete") || turn.turned(other)) && turn.is("Complete") && turn.is(other) {
            problems.invalid_unshown(
                &conditions,
                format!("cannot set Complete=True and {other}=true conditions"),
            );
        }
    }
    let at = path.child("completionTime");
    let (start, end) = (get_str(status, "startTime"), get_str(status, "completionTime"));
    if turn.turned("Complete") || turn.changed("completionTime") {
        if !end.is_empty() && !turn.is("Complete") {
            problems.invalid(&at, end, "cannot set completionTime when there is no Complete=True condition");
        }
        if end.is_empty() && turn.is("Complete") {
            problems.required(&at, "completionTime is required for Complete jobs");
        }
    }
    if (turn.changed("startTime") || turn.changed("completionTime"))
        && let (Some(start), Some(last)) = (time::parse(start), time::parse(end))
        && last < start
    {
        problems.invalid(&at, end, "must be equal to or after `startTime`");
    }
    if (turn.turned("Failed") || turn.changed("failedIndexes"))
        && turn.is("Failed")
        && !turn.is("FailureTarget")
    {
        problems.invalid_unshown(
            &conditions,
            "cannot set Failed=True condition without the FailureTarget=true condition",
        );
    }
    if (turn.turned("Complete") || turn.turned("SuccessCriteriaMet"))
        && turn.is("Complete")
        && !turn.is("SuccessCriteriaMet")
    {
        problems.invalid_unshown(
            &conditions,
            "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
        );
    }
}

/// A job that is over has nothing left to do.
fn finished(turn: &Turn<'_>, path: &Path<'_>, problems: &mut Problems) {
    let status = &turn.job["status"];
    if !turn.is("Complete") && !turn.is("Failed") {
        return;
    }
    let turned = !(turn.was("Complete") || turn.was("Failed"));
    let active = status["active"].as_i64().unwrap_or(0);
    if (turned || turn.number_changed("active")) && active > 0 {
        problems.invalid(&path.child("active"), active, "active>0 is invalid for finished job");
    }
    let spec = &turn.job["spec"];
    let nothing_to_do = spec["suspend"] == true && spec["completions"] == 0;
    if (turned || turn.changed("startTime")) && !nothing_to_do && status.get("startTime").is_none() {
        problems.required(&path.child("startTime"), "startTime is required for finished job");
    }
    let pods = &status["uncountedTerminatedPods"];
    let uncounted = |field| get_list(pods, field);
    if (turned || turn.changed("uncountedTerminatedPods"))
        && !(uncounted("succeeded").is_empty() && uncounted("failed").is_empty())
    {
        let list = |field| pods.get(field).cloned().unwrap_or_default();
        let shown = serde_json::json!({"Succeeded": list("succeeded"), "Failed": list("failed")});
        problems.invalid(&path.child("uncountedTerminatedPods"), shown, "must be empty for finished job");
    }
}

fn indexes(turn: &Turn<'_>, path: &Path<'_>, problems: &mut Problems) {
    let (spec, status) = (&turn.job["spec"], &turn.job["status"]);
    let completions = spec["completions"].as_i64();
    let completed = get_str(status, "completedIndexes");
    let failed = status.get("failedIndexes").and_then(Value::as_str);
    let limited = spec.get("backoffLimitPerIndex").is_some();
    let (completed_turned, failed_turned) = (turn.changed("completedIndexes"), turn.changed("failedIndexes"));
    let (completed_at, failed_at) = (path.child("completedIndexes"), path.child("failedIndexes"));
    if let Some(completions) = completions {
        if completed_turned && let Err(why) = count_indexes(completed, completions) {
            problems.invalid(&completed_at, completed, format!("error parsing completedIndexes: {why}"));
        }
        if failed_turned
            && limited
            && let Some(failed) = failed
            && let Err(why) = count_indexes(failed, completions)
        {
            problems.invalid(&failed_at, failed, format!("error parsing failedIndexes: {why}"));
        }
    }
    if completed_turned && !completed.is_empty() && spec["completionMode"] != "Indexed" {
        problems.invalid(
            &completed_at,
            completed,
            "cannot set non-empty completedIndexes when non-indexed completion mode",
        );
    }
    let Some(failed) = failed else { return };
    if failed_turned && !limited {
        problems.invalid(
            &failed_at,
            failed,
            "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
        );
    }
    if (failed_turned || completed_turned)
        && let Some(index) = completions.and_then(|most| overlap(completed, failed, most))
    {
        problems.invalid(
            &failed_at,
            failed,
            format!("failedIndexes and completedIndexes overlap at index: {index}"),
        );
    }
}

/// The first index that both lists have. What cannot be read is told elsewhere.
fn overlap(left: &str, right: &str, completions: i64) -> Option<i64> {
    let parts = |text: &str| -> Vec<(i64, i64)> {
        let read = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (from.parse().ok()?, to.parse().ok()?);
            (from <= to && to < completions).then_some((from, to))
        };
        text.split(',').filter_map(read).collect()
    };
    let (left, right) = (parts(left), parts(right));
    left.iter()
        .flat_map(|own| right.iter().map(move |other| (own.0.max(other.0), own.1.min(other.1))))
        .find(|(from, to)| from <= to)
        .map(|(from, _)| from)
}

/// What a job has reached it does not lose again.
fn backwards(turn: &Turn<'_>, path: &Path<'_>, problems: &mut Problems) {
    let (job, old) = (turn.job, turn.old);
    let conditions = path.child("conditions");
    for kind in ["Failed", "Complete", "FailureTarget"] {
        if turn.was(kind) && !turn.is(kind) {
            problems
                .invalid_unshown(&conditions, format!("cannot disable the terminal {kind}=True condition"));
        }
    }
    let scales = job["spec"]["completionMode"] == "Indexed"
        && job["spec"].get("completions") == job["spec"].get("parallelism");
    for field in ["failed", "succeeded"] {
        let number = |job: &Value| job["status"][field].as_i64().unwrap_or(0);
        if number(job) < number(old) && !(field == "succeeded" && scales) {
            problems.invalid(&path.child(field), number(job), format!("cannot decrease the {field} counter"));
        }
    }
    let time = |job: &Value, field: &str| job["status"].get(field).cloned();
    if let (Some(after), Some(before)) = (time(job, "completionTime"), time(old, "completionTime"))
        && after != before
    {
        problems.invalid(&path.child("completionTime"), after, IMMUTABLE);
    }
    let resumes = turn.was("Suspended")
        && get_list(job, "status.conditions")
            .iter()
            .any(|condition| condition["type"] == "Suspended" && condition["status"] == "False");
    if time(old, "startTime").is_some()
        && turn.changed("startTime")
        && !resumes
        && job["spec"]["suspend"] != true
    {
        problems.invalid(
            &path.child("startTime"),
            time(job, "startTime").unwrap_or_default(),
            "field is immutable for unsuspended job once set",
        );
    }
    if turn.was("SuccessCriteriaMet") && !turn.is("SuccessCriteriaMet") {
        problems.invalid_unshown(&conditions, "cannot disable the SuccessCriteriaMet=True condition");
    }
    if turn.was("Complete") && !turn.was("SuccessCriteriaMet") && turn.is("SuccessCriteriaMet") {
        problems.invalid_unshown(
            &conditions,
            "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
        );
    }
}
