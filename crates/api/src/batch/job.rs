//! Jobs.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str, set},
    names, time,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    Change, Column, Definition, MetaCheck, Rules,
    apps::workload,
    batch::job_update,
    checks,
    core::pod_spec,
    defaults::{Constant, Default, apply},
    print,
};

/// Runs pods until enough of them succeed.
pub fn definition() -> Definition {
    let mut columns = vec![
        Column::new("Status", |job, _| status(job).into()),
        Column::new("Completions", |job, _| completions(job).into()),
        Column::new("Duration", |job, now| duration(job, now).into()),
        Column::age(),
    ];
    columns.extend(workload::wide_columns(true));
    let mut definition = Definition::namespaced("batch", "v1", "Job", "jobs")
        .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
        .orphans()
        .categories(&["all"])
        .status()
        .generation()
        .label_fn("status.successful", &["status.succeeded"], |job| {
            print::count(job, "status.succeeded").to_string().into()
        })
        .columns(columns)
        .pod_at("spec.template.spec")
        .rules(Job);
    definition.orphan_warning = Some(
        "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
    );
    definition
}

fn status(job: &Value) -> &'static str {
    let has = |kind: &str| print::has_condition(job, kind);
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if job.is_terminating() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn completions(job: &Value) -> String {
    let succeeded = print::count(job, "status.succeeded");
    match (get(job, "spec.completions"), print::count(job, "spec.parallelism")) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallel) if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn duration(job: &Value, now: Timestamp) -> String {
    let Some(start) = time::parse(get_str(job, "status.startTime")) else { return String::new() };
    let end = time::parse(get_str(job, "status.completionTime")).unwrap_or(now);
    time::human_duration(end.as_second() - start.as_second())
}

struct Job;

const DEFAULTS: &[Default] = &[
    ("spec.parallelism", Constant::Number(1)),
    ("spec.completionMode", Constant::Text("NonIndexed")),
    ("spec.suspend", Constant::Bool(false)),
    ("spec.manualSelector", Constant::Bool(false)),
];

/// The status of a condition is always written, so that an empty one counts as absent.
pub(super) const CONDITION: &[Default] =
    &[("spec.podFailurePolicy.rules.*.onPodConditions.*.status", Constant::Text("True"))];

/// Defaults of a job's spec.
fn spec_defaults(object: &mut Value) {
    let spec = &object["spec"];
    if !spec.is_object() {
        return;
    }
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        object["spec"]["completions"] = 1.into();
    }
    let per_index = object["spec"].get("backoffLimitPerIndex").is_some();
    let limit = if per_index { i64::from(i32::MAX) } else { 6 };
    apply(object, &[("spec.backoffLimit", Constant::Number(limit))]);
    apply(object, DEFAULTS);
    crate::defaults::apply_over_zero(object, CONDITION);
    let replacement =
        if object["spec"].get("podFailurePolicy").is_some() { "Failed" } else { "TerminatingOrFailed" };
    apply(object, &[("spec.podReplacementPolicy", Constant::Text(replacement))]);
    workload::template_defaults(object);
}

impl Rules for Job {
    fn set_defaults(&self, job: &mut Value) {
        spec_defaults(job);
        labels_of_template(job);
    }

    fn prepare_create(&self, job: &mut Value) {
        job["status"] = json!({});
        if job["spec"]["manualSelector"] != true {
            generate_selector(job);
        }
        labels_of_template(job);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let job = change.new;
        if let Some(old) = change.old.filter(|_| change.subresource == "status") {
            job_update::validate_status(job, old, problems);
            return;
        }
        generated_selector(job, change.old, problems);
        let before = problems.len();
        let path = Path::new("spec");
        validate_spec(&job["spec"], change.old.map(|old| &old["spec"]), &path, problems);
        selector(job, &path, problems);
        if let Some(old) = change.old {
            // Upstream judges the spec as that of a job, and again as that of a changed one.
            problems.repeat_since(before);
            pod_hostname(job, problems);
            job_update::validate(job, old, problems);
        } else {
            pod_hostname(job, problems);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out = workload::name_warnings(change);
        out.extend(size_warnings(change, "spec"));
        out.extend(workload::warnings(change));
        out
    }
}

/// A warning of the spec of a job, at a dotted path, that has more indexes than can be kept account of.
pub fn size_warnings(change: &Change<'_>, path: &str) -> Vec<String> {
    const COMPLETIONS: i64 = 100_000;
    const PARALLELISM: i64 = 10_000;
    if change.old.is_some_and(|old| old.generation() == change.new.generation()) {
        return Vec::new();
    }
    let spec = get(change.new, path).unwrap_or(&Value::Null);
    let more = |field: &str, limit: i64| spec[field].as_i64().is_some_and(|number| number > limit);
    let indexed = get_str(spec, "completionMode") == "Indexed";
    if !indexed || !more("completions", COMPLETIONS) || !more("parallelism", PARALLELISM) {
        return Vec::new();
    }
    vec![format!(
        "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
    )]
}

/// A job without labels has those of its pods.
///
/// One that is being made gets here also those that are generated for its pods: later nobody can tell a copy from labels
/// that the client wrote, which stay as they are.
fn labels_of_template(job: &mut Value) {
    let own = get(job, "metadata.labels").and_then(Value::as_object);
    if own.is_some_and(|own| !own.is_empty()) {
        return;
    }
    let Some(mut labels) = get(job, "spec.template.metadata.labels").cloned() else { return };
    let is_new = job["spec"].get("selector").is_none() && !job.uid().is_empty();
    if let (true, Value::Object(labels)) = (is_new && job["spec"]["manualSelector"] != true, &mut labels) {
        add_generated(labels, job);
    }
    set(job, "metadata.labels", labels);
}

/// The labels by which a job knows its pods. Other words of the client's own stay, and are refused in the template.
fn add_generated(labels: &mut Map<String, Value>, job: &Value) {
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", job.uid()),
        ("controller-uid", job.uid()),
        ("batch.kubernetes.io/job-name", job.name()),
        ("job-name", job.name()),
    ] {
        labels.entry(key).or_insert_with(|| value.into());
    }
}

/// The selector finds the pods that the template makes.
fn selector(job: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("selector");
    let wanted = job["spec"].get("selector");
    match wanted {
        None => problems.required(&at, ""),
        Some(wanted) => apimachinery::selector::validate_object(wanted, &at, problems),
    }
    let labels = get(job, "spec.template.metadata.labels").and_then(Value::as_object);
    // No selector finds nothing.
    let finds = match wanted.map(apimachinery::selector::LabelSelector::from_object) {
        None => false,
        Some(Ok(selector)) => selector.matches(labels),
        Some(Err(_)) => true,
    };
    if !finds {
        let shown = labels.map(checks::sorted).unwrap_or_default();
        let template = path.child("template");
        let meta = template.child("metadata");
        problems.invalid(&meta.child("labels"), shown, "`selector` does not match template `labels`");
    }
}

/// The pods of an indexed job are called after it and their index.
fn pod_hostname(job: &Value, problems: &mut Problems) {
    let last = job["spec"]["completions"].as_i64().filter(|completions| *completions > 0);
    let Some(last) = last.filter(|_| job["spec"]["completionMode"] == "Indexed") else { return };
    let hostname = format!("{}-{}", job.name(), last - 1);
    if !names::is_dns1123_label(&hostname).is_empty() {
        let path = Path::new("metadata");
        let why = format!("will not able to create pod with invalid DNS label: {hostname}");
        problems.invalid(&path.child("name"), job.name(), why);
    }
}

/// A selector that the server makes finds the pods that it will make, and nobody else's: the template has the labels
/// by which a job knows its pods. Jobs of old lack the newer two.
fn generated_selector(job: &Value, old: Option<&Value>, problems: &mut Problems) {
    let Some(wanted) = job["spec"].get("selector") else { return };
    if job["spec"]["manualSelector"] == true {
        return;
    }
    let labels_of = |job: &Value| checks::sorted_map(get(job, "spec.template.metadata.labels"));
    let template = labels_of(job);
    let prefixed = ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];
    let with_prefixed = old.is_none_or(|old| prefixed.iter().all(|key| labels_of(old).contains_key(*key)));
    let path = Path::new("spec");
    let path = path.child("template");
    let path = path.child("metadata");
    let path = path.child("labels");
    let mut labels = Map::new();
    for (key, value) in [
        ("controller-uid", job.uid()),
        ("job-name", job.name()),
        (prefixed[0], job.uid()),
        (prefixed[1], job.name()),
    ] {
        if !with_prefixed && prefixed.contains(&key) {
            continue;
        }
        labels.insert(key.into(), value.into());
        let why = format!("must be '{value}'");
        match template.get(key) {
            None => problems.required(&path.key(key), why),
            Some(own) if own != value => problems.invalid(&path.key(key), template.clone(), why),
            Some(_) => {}
        }
    }
    let selector = apimachinery::selector::LabelSelector::from_object(wanted);
    if selector.is_ok_and(|selector| !selector.matches(Some(&labels))) {
        let at = Path::new("spec");
        let shown = crate::go_form::shown(wanted, "LabelSelector");
        problems.invalid(&at.child("selector"), shown, "`selector` not auto-generated");
    }
}

fn generate_selector(job: &mut Value) {
    let template = get(job, "spec.template.metadata.labels").and_then(Value::as_object);
    let mut labels = template.cloned().unwrap_or_default();
    add_generated(&mut labels, job);
    if !job["spec"]["template"].is_object() {
        return;
    }
    set(job, "spec.template.metadata.labels", Value::Object(labels));
    let uid = job.uid().to_owned();
    if job["spec"].get("selector").is_none() {
        job["spec"]["selector"] = json!({});
    }
    if let Some(selector) = job["spec"]["selector"].as_object_mut() {
        let map = apimachinery::meta::entry_map(selector, "matchLabels");
        map.entry("batch.kubernetes.io/controller-uid").or_insert_with(|| uid.into());
    }
}

/// Rules of a job's spec, here and in CronJob templates. `old` is the stored one, if there is one.
pub fn validate_spec(spec: &Value, old: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    for field in [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ] {
        checks::non_negative(spec, field, path, problems);
    }
    if spec.get("maxFailedIndexes").is_some() && spec.get("backoffLimitPerIndex").is_none() {
        problems.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    managed_by(spec, path, problems);
    completion_mode(spec, path, problems);
    failure_policy(spec, path, problems);
    success_policy(spec, path, problems);
    let replacements: &[&str] =
        if spec.get("podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    checks::one_of(spec, "podReplacementPolicy", false, replacements, path, problems);
    let at = path.child("template");
    match spec.get("template") {
        None => problems.required(&at, ""),
        Some(template) => {
            pod_spec::validate_template(template, old.map(|old| &old["template"]), &at, problems);
            let policy = get_str(template, "spec.restartPolicy");
            let spec_path = at.child("spec");
            let at = spec_path.child("restartPolicy");
            if policy.is_empty() || policy == "Always" {
                problems.required(&at, "valid values: \"OnFailure\", \"Never\"");
            } else if policy != "OnFailure" && policy != "Never" {
                problems.not_one_of(&at, policy, &["OnFailure", "Never"]);
            } else if policy != "Never" && spec.get("podFailurePolicy").is_some() {
                problems.invalid(
                    &at,
                    policy,
                    "only \"Never\" is supported when podFailurePolicy is specified",
                );
            }
        }
    }
}

/// More completions than this ask for bounds of what may fail.
const MANY_COMPLETIONS: i64 = 100_000;

/// What goes with each way of counting what is done.
fn completion_mode(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let mode = spec.get("completionMode").and_then(Value::as_str).unwrap_or("NonIndexed");
    if !["NonIndexed", "Indexed"].contains(&mode) {
        problems.not_one_of(&path.child("completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if mode == "NonIndexed" {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(value) = spec.get(field) {
                problems.invalid(&path.child(field), value.clone(), "requires indexed completion mode");
            }
        }
    }
    if mode != "Indexed" {
        return;
    }
    let number = |field: &str| spec[field].as_i64();
    let at_most = |field: &str, most: i64, when: &str, problems: &mut Problems| {
        if let Some(value) = number(field).filter(|value| *value > most) {
            let why = format!("must be less than or equal to {most}{when}");
            problems.invalid(&path.child(field), value, why);
        }
    };
    let completions = number("completions");
    if completions.is_none() {
        problems.required(&path.child("completions"), "when completion mode is Indexed");
    }
    at_most("parallelism", 100_000, " when completion mode is Indexed", problems);
    if completions.is_some_and(|all| number("maxFailedIndexes").is_some_and(|failed| failed > all)) {
        let why = "must be less than or equal to completions";
        problems.invalid(&path.child("maxFailedIndexes"), spec["maxFailedIndexes"].clone(), why);
    }
    at_most("maxFailedIndexes", 100_000, "", problems);
    if completions.is_some_and(|all| all > MANY_COMPLETIONS) && spec.get("backoffLimitPerIndex").is_some() {
        if spec.get("maxFailedIndexes").is_none() {
            problems.required(
                &path.child("maxFailedIndexes"),
                format!("must be specified when completions is above {MANY_COMPLETIONS}"),
            );
        }
        let when =
            format!(" when completions are above {MANY_COMPLETIONS} and used with backoff limit per index");
        at_most("parallelism", 10_000, &when, problems);
        at_most("maxFailedIndexes", 10_000, &when, problems);
    }
}

/// Who looks after the job, if it is not the job controller.
fn managed_by(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(name) = spec.get("managedBy").and_then(Value::as_str) else { return };
    let at = path.child("managedBy");
    checks::domain_path(name, &at, problems);
    if name.len() > 63 {
        problems.too_long(&at, 63);
    }
}

/// How many indexes a text like `0-3,7` names, or what is wrong with it.
pub(super) fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
    let mut count = 0;
    let mut last = -1;
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let number = |text: &str| {
            let number: i64 =
                text.parse().map_err(|_| format!("cannot convert string to integer for index: {text:?}"))?;
            if number >= completions { Err(format!("too large index: {text:?}")) } else { Ok(number) }
        };
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (number(from)?, number(to)?);
        if from <= last {
            return Err(format!("non-increasing order, previous: {last}, current: {from}"));
        }
        if part.contains('-') && to <= from {
            return Err(format!("non-increasing order, previous: {from}, current: {to}"));
        }
        count += to - from + 1;
        last = to;
    }
    Ok(count)
}

fn success_policy(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(policy) = spec.get("successPolicy") else { return };
    let at = path.child("successPolicy");
    if spec["completionMode"] != "Indexed" {
        let shown = crate::go_form::shown(policy, "batch.SuccessPolicy");
        problems.invalid(&at, shown, "requires indexed completion mode");
        return;
    }
    let list = at.child("rules");
    let rules = get_list(policy, "rules");
    if rules.is_empty() {
        problems.required(&list, "at least one rules must be specified when the successPolicy is specified");
    }
    if rules.len() > 20 {
        problems.too_many(&list, rules.len(), 20);
    }
    let completions = spec["completions"].as_i64().unwrap_or(0);
    for (index, rule) in rules.iter().enumerate() {
        let at = list.index(index);
        let (indexes, wanted) = (rule.get("succeededIndexes"), rule["succeededCount"].as_i64());
        if indexes.is_none() && wanted.is_none() {
            problems.required(&at, "at least one of succeededCount or succeededIndexes must be specified");
        }
        let mut named = None;
        if let Some(text) = indexes.and_then(Value::as_str) {
            match count_indexes(text, completions) {
                Ok(count) => named = Some(count),
                Err(why) => {
                    named = Some(0);
                    problems.invalid(
                        &at.child("succeededIndexes"),
                        text,
                        format!("error parsing succeededIndexes: {why}"),
                    );
                }
            }
        }
        checks::non_negative(rule, "succeededCount", &at, problems);
        if let Some(wanted) = wanted {
            if wanted > completions {
                let why = format!(
                    "must be less than or equal to {completions} (the number of specified completions)"
                );
                problems.invalid(&at.child("succeededCount"), wanted, why);
            }
            if let Some(count) = named.filter(|count| wanted > *count) {
                let why = format!(
                    "must be less than or equal to {count} (the number of indexes in the specified succeededIndexes field)"
                );
                problems.invalid(&at.child("succeededCount"), wanted, why);
            }
        }
    }
}

fn failure_policy(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(policy) = spec.get("podFailurePolicy") else { return };
    let at = path.child("podFailurePolicy");
    let list = at.child("rules");
    let rules = get_list(policy, "rules");
    if rules.len() > 20 {
        problems.too_many(&list, rules.len(), 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = list.index(index);
        let actions = ["Count", "FailIndex", "FailJob", "Ignore"];
        match get_str(rule, "action") {
            "" => problems.required(
                &at.child("action"),
                "valid values: [\"Count\" \"FailIndex\" \"FailJob\" \"Ignore\"]",
            ),
            "FailIndex" if spec.get("backoffLimitPerIndex").is_none() => {
                problems.invalid(
                    &at.child("action"),
                    "FailIndex",
                    "requires the backoffLimitPerIndex to be set",
                );
            }
            action if actions.contains(&action) => {}
            action => problems.not_supported(&at.child("action"), action, &actions),
        }
        let (codes, conditions) = (rule.get("onExitCodes"), get_list(rule, "onPodConditions"));
        if let Some(codes) = codes {
            exit_codes(codes, &spec["template"]["spec"], &at.child("onExitCodes"), problems);
        }
        let list = at.child("onPodConditions");
        if conditions.len() > 20 {
            problems.too_many(&list, conditions.len(), 20);
        }
        for (number, condition) in conditions.iter().enumerate() {
            let at = list.index(number);
            let kind = get_str(condition, "type");
            problems.invalid_each(&at.child("type"), kind, names::is_qualified_name(kind));
            one_of_told(condition, "status", &["False", "True", "Unknown"], &at, problems);
        }
        match (codes, conditions) {
            (Some(_), [_, ..]) => problems
                .invalid_unshown(&at, "specifying both OnExitCodes and OnPodConditions is not supported"),
            (None, []) => {
                problems.invalid_unshown(&at, "specifying one of OnExitCodes and OnPodConditions is required")
            }
            _ => {}
        }
    }
}

/// Text must be one of a few words; who says nothing is told which.
fn one_of_told(value: &Value, field: &str, allowed: &[&str], path: &Path<'_>, problems: &mut Problems) {
    if get_str(value, field).is_empty() {
        let quoted: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        problems.required(&path.child(field), format!("valid values: [{}]", quoted.join(" ")));
    } else {
        checks::one_of(value, field, true, allowed, path, problems);
    }
}

fn exit_codes(codes: &Value, pod: &Value, path: &Path<'_>, problems: &mut Problems) {
    one_of_told(codes, "operator", &["In", "NotIn"], path, problems);
    if let Some(name) = codes.get("containerName").and_then(Value::as_str) {
        let known = ["containers", "initContainers"]
            .iter()
            .any(|field| get_list(pod, field).iter().any(|have| have["name"] == name));
        if !known {
            problems.invalid(
                &path.child("containerName"),
                name,
                "must be one of the container or initContainer names in the pod template",
            );
        }
    }
    let list = path.child("values");
    let values = get_list(codes, "values");
    if values.is_empty() {
        let shown = codes.get("values").cloned().unwrap_or_default();
        problems.invalid(&list, shown, "at least one value is required");
    } else if values.len() > 255 {
        problems.too_many(&list, values.len(), 255);
    }
    for (number, value) in values.iter().enumerate() {
        if codes["operator"] == "In" && value == 0 {
            problems.invalid(&list.index(number), 0, "must not be 0 for the In operator");
        }
        if values[..number].contains(value) {
            problems.duplicate(&list.index(number), value.clone());
        }
    }
    if !values.is_sorted_by_key(|value| value.as_i64().unwrap_or(0)) {
        problems.invalid(&list, Value::from(values), "must be ordered");
    }
}

/// The longest name of a CronJob: its jobs get eleven characters more.
pub const CRON_JOB_NAME: usize = 63 - 11;

#[cfg(test)]
mod tests {
    use super::*;

    fn made(labels: Option<Value>) -> Value {
        let mut job = json!({"metadata": {"name": "j", "uid": "u"},
            "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
        if let Some(labels) = labels {
            job["metadata"]["labels"] = labels;
        }
        for _ in 0..2 {
            Job.set_defaults(&mut job);
        }
        Job.prepare_create(&mut job);
        job
    }

    #[test]
    fn only_a_job_without_labels_gets_those_of_its_pods() {
        for job in [made(None), made(Some(json!({})))] {
            let labels = job["metadata"]["labels"].clone();
            assert_eq!(labels, job["spec"]["template"]["metadata"]["labels"]);
            assert_eq!((&labels["a"], &labels["job-name"]), (&json!("b"), &json!("j")));
        }
        let job = made(Some(json!({"a": "b"})));
        assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["controller-uid"], "u");
    }
}
