//! Work that ends.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get_list, get_str},
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Rules, checks,
    columns::age,
    core::pod_spec,
    defaults::{Constant, Default, apply},
    print,
};

pub mod cron;
pub mod job;
mod job_update;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![cron_job(), job::definition()]
}

fn cron_job() -> Definition {
    Definition::namespaced("batch", "v1", "CronJob", "cronjobs")
        .checks_status(&[])
        .short(&["cj"])
        .categories(&["all"])
        .status()
        .generation()
        .columns(vec![
            Column::path("Schedule", "spec.schedule"),
            Column::new("Timezone", |object, _| print::or(get_str(object, "spec.timeZone"), "<none>").into()),
            Column {
                kind: "boolean".into(),
                ..Column::new("Suspend", |object, _| {
                    if object["spec"]["suspend"] == true { "True" } else { "False" }.into()
                })
            },
            Column::new("Active", |object, _| get_list(object, "status.active").len().into()).integer(),
            Column::new("Last Schedule", |object, now| match get_str(object, "status.lastScheduleTime") {
                "" => "<none>".into(),
                time => age(time, now).into(),
            }),
            Column::age(),
            Column::new("Containers", |object, _| {
                print::containers(object, "spec.jobTemplate.spec.template.spec.containers")
            })
            .wide(),
            Column::new("Images", |object, _| {
                print::images(object, "spec.jobTemplate.spec.template.spec.containers")
            })
            .wide(),
            Column::new("Selector", |object, _| {
                print::selector(apimachinery::meta::get(object, "spec.jobTemplate.spec.selector")).into()
            })
            .wide(),
        ])
        .pod_at("spec.jobTemplate.spec.template.spec")
        .rules(CronJob)
}

struct CronJob;

const DEFAULTS: &[Default] = &[
    ("spec.concurrencyPolicy", Constant::Text("Allow")),
    ("spec.suspend", Constant::Bool(false)),
    ("spec.successfulJobsHistoryLimit", Constant::Number(3)),
    ("spec.failedJobsHistoryLimit", Constant::Number(1)),
];

impl Rules for CronJob {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, DEFAULTS);
        // Only the pod template inside gets defaults here, and what pods fail by; the job's own are set when the job
        // is made.
        if let Some(template) = object["spec"].get_mut("jobTemplate") {
            crate::defaults::apply_over_zero(template, job::CONDITION);
        }
        let template = object.get_mut("spec").and_then(|spec| spec.get_mut("jobTemplate")?.get_mut("spec"));
        if let Some(spec) = template.and_then(|spec| spec.get_mut("template")?.get_mut("spec")) {
            pod_spec::set_template_defaults(spec);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({});
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            return;
        }
        let object = change.new;
        let path = Path::new("spec");
        let spec = &object["spec"];
        let schedule = get_str(spec, "schedule");
        let at = path.child("schedule");
        if schedule.is_empty() {
            problems.required(&at, "");
        } else {
            if let Some(text) = cron::problem(schedule) {
                problems.invalid(&at, schedule, text);
            }
            // A zone in the schedule is older than the field, and stays where it was.
            let had_zone = change.old.is_some_and(|old| get_str(old, "spec.schedule").contains("TZ"));
            let why = match (schedule.contains("TZ"), had_zone, spec.get("timeZone")) {
                (true, true, Some(_)) => "cannot use both timeZone field and TZ or CRON_TZ in schedule",
                (true, false, _) => "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
                _ => "",
            };
            if !why.is_empty() {
                problems.invalid(&at, schedule, why);
            }
        }
        checks::non_negative(spec, "startingDeadlineSeconds", &path, problems);
        let unchanged = change.old.is_some_and(|old| old["spec"].get("timeZone") == spec.get("timeZone"));
        if let Some(zone) = spec.get("timeZone").and_then(Value::as_str).filter(|_| !unchanged) {
            time_zone(zone, &path.child("timeZone"), problems);
        }
        checks::one_of(spec, "concurrencyPolicy", true, &["Allow", "Forbid", "Replace"], &path, problems);
        let before = change.old.map(|old| &old["spec"]["jobTemplate"]);
        job_template(&spec["jobTemplate"], before, &path.child("jobTemplate"), problems);
        for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"] {
            checks::non_negative(spec, field, &path, problems);
        }
        let name = object.name();
        if change.old.is_none() && name.len() > job::CRON_JOB_NAME {
            problems.invalid(
                &Path::new("metadata").child("name"),
                name,
                format!("must be no more than {} characters", job::CRON_JOB_NAME),
            );
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let pointer = "/spec/jobTemplate/spec/template/spec";
        let mut out = pod_spec::warnings::of_name(change, pod_spec::warnings::OF_PODS);
        out.extend(job::size_warnings(change, "spec.jobTemplate.spec"));
        out.extend(pod_spec::warnings::of_change(change, pointer, "spec.jobTemplate.spec.template.spec"));
        out
    }
}

fn job_template(template: &Value, old: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("spec");
    let spec = &template["spec"];
    job::validate_spec(spec, old.map(|old| &old["spec"]), &at, problems);
    if let Some(selector) = spec.get("selector") {
        let shown = crate::go_form::shown(selector, "LabelSelector");
        problems.invalid(&at.child("selector"), shown, "`selector` will be auto-generated");
    }
    if spec["manualSelector"] == true {
        problems.not_one_of(&at.child("manualSelector"), true, &["nil", "false"]);
    }
}

/// The name of a time zone is one of the database, in its spelling.
fn time_zone(zone: &str, path: &Path<'_>, problems: &mut Problems) {
    if zone.is_empty() {
        problems.invalid(path, zone, "timeZone must be nil or non-empty string");
        return;
    }
    let sound = |part: &str| {
        let word = |c: u8| c.is_ascii_alphanumeric() || b".-_+".contains(&c);
        (1..=14).contains(&part.len())
            && part != "."
            && part != ".."
            && !part.starts_with('-')
            && part.bytes().all(word)
    };
    if zone.eq_ignore_ascii_case("Local") {
        problems.invalid(
            path,
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
        if zone == "Local" {
            return;
        }
    }
    let known = || jiff::tz::db().get(zone).is_ok_and(|known| known.iana_name() == Some(zone));
    if !zone.split('/').all(sound) || !known() {
        problems.invalid(path, zone, format!("unknown time zone {zone}"));
    }
}
