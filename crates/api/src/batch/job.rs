//! Jobs.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str, set},
    names, time,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Rules,
    apps::workload,
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
        .orphans()
        .categories(&["all"])
        .status()
        .generation()
        .label_fn("status.successful", &["status.succeeded"], |job| {
            print::count(job, "status.succeeded").to_string().into()
        })
        .columns(columns)
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
const CONDITION: &[Default] =
    &[("spec.podFailurePolicy.rules.*.onPodConditions.*.status", Constant::Text("True"))];

/// Defaults of a job's spec, here and in CronJob templates.
pub fn spec_defaults(object: &mut Value) {
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
        if change.subresource == "status" {
            status_rules(change, problems);
            return;
        }
        let path = Path::new("spec");
        if job["spec"].get("selector").is_none() {
            problems.required(&path.child("selector"), "");
        }
        validate_spec(&job["spec"], &path, problems);
        if let Some(wanted) = job["spec"].get("selector") {
            apimachinery::selector::validate_object(wanted, &path.child("selector"), problems);
            let labels = get(job, "spec.template.metadata.labels").and_then(Value::as_object);
            let selector = apimachinery::selector::LabelSelector::from_object(wanted);
            if selector.is_ok_and(|selector| !selector.matches(labels)) {
                let shown = labels.cloned().map(Value::Object).unwrap_or_default();
                let template = path.child("template");
                let meta = template.child("metadata");
                problems.invalid(&meta.child("labels"), shown, "`selector` does not match template `labels`");
            }
        }
        if let Some(old) = change.old {
            update(job, old, problems);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        workload::warnings(change)
    }
}

/// A job without labels has those of its pods, the generated ones too.
fn labels_of_template(job: &mut Value) {
    if get(job, "metadata.labels").is_none()
        && let Some(labels) = get(job, "spec.template.metadata.labels").cloned()
    {
        set(job, "metadata.labels", labels);
    }
}

/// The labels by which a job knows its pods. The uid must be set already.
fn generate_selector(job: &mut Value) {
    let (uid, name) = (job.uid().to_owned(), job.name().to_owned());
    let labels = [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ];
    let Some(template) = job["spec"].get_mut("template").and_then(Value::as_object_mut) else { return };
    let meta = apimachinery::meta::entry_map(template, "metadata");
    let map = apimachinery::meta::entry_map(meta, "labels");
    for (key, value) in labels {
        map.insert(key.into(), value.as_str().into());
    }
    if job["spec"].get("selector").is_none() {
        job["spec"]["selector"] = json!({});
    }
    if let Some(selector) = job["spec"]["selector"].as_object_mut() {
        let map = apimachinery::meta::entry_map(selector, "matchLabels");
        map.insert("batch.kubernetes.io/controller-uid".into(), uid.into());
    }
}

/// Rules of a job's spec, here and in CronJob templates.
pub fn validate_spec(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
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
    let mode = get_str(spec, "completionMode");
    if !["NonIndexed", "Indexed"].contains(&mode) {
        problems.not_supported(&path.child("completionMode"), mode, &["Indexed", "NonIndexed"]);
    }
    if mode == "Indexed" {
        if spec.get("completions").is_none() {
            problems.required(&path.child("completions"), "when completion mode is Indexed");
        }
        if let (Some(failed), Some(all)) = (spec["maxFailedIndexes"].as_i64(), spec["completions"].as_i64())
            && failed > all
        {
            let why = "must be less than or equal to completions";
            problems.invalid(&path.child("maxFailedIndexes"), failed, why);
        }
        if spec["parallelism"].as_i64().is_some_and(|parallel| parallel > 100_000) {
            problems.invalid(
                &path.child("parallelism"),
                spec["parallelism"].clone(),
                "must be less than or equal to 100000 when completion mode is Indexed",
            );
        }
    } else {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
            if let Some(value) = spec.get(field) {
                problems.invalid(&path.child(field), value.clone(), "requires indexed completion mode");
            }
        }
    }
    if spec.get("maxFailedIndexes").is_some() && spec.get("backoffLimitPerIndex").is_none() {
        problems.required(&path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    let replacements: &[&str] =
        if spec.get("podFailurePolicy").is_some() { &["Failed"] } else { &["Failed", "TerminatingOrFailed"] };
    checks::one_of(spec, "podReplacementPolicy", false, replacements, path, problems);
    failure_policy(spec, path, problems);
    success_policy(spec, path, problems);
    managed_by(spec, path, problems);
    let at = path.child("template");
    match spec.get("template") {
        None => problems.required(&at, ""),
        Some(template) => {
            pod_spec::validate_template(template, &at, problems);
            let policy = get_str(template, "spec.restartPolicy");
            let spec_path = at.child("spec");
            let at = spec_path.child("restartPolicy");
            if policy.is_empty() || policy == "Always" {
                problems.required(&at, "valid values: \"OnFailure\", \"Never\"");
            } else if policy != "OnFailure" && policy != "Never" {
                problems.not_supported(&at, policy, &["Never", "OnFailure"]);
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

/// Who looks after the job, if it is not the job controller.
fn managed_by(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let Some(name) = spec.get("managedBy").and_then(Value::as_str) else { return };
    let at = path.child("managedBy");
    match name.split_once('/') {
        _ if name.is_empty() => problems.required(&at, ""),
        Some((domain, rest)) if !domain.is_empty() && !rest.is_empty() => {
            problems.invalid_each(&at, domain, names::is_dns1123_subdomain(domain));
        }
        _ => problems.invalid(&at, name, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
    }
    if name.len() > 63 {
        problems.too_long(&at, 63);
    }
}

/// How many indexes a text like `0-3,7` names, or what is wrong with it.
fn count_indexes(text: &str, completions: i64) -> Result<i64, String> {
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
                Err(why) => problems.invalid(
                    &at.child("succeededIndexes"),
                    text,
                    format!("error parsing succeededIndexes: {why}"),
                ),
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
        match (rule.get("onExitCodes"), !get_list(rule, "onPodConditions").is_empty()) {
            (Some(_), true) => problems.invalid(
                &at,
                rule.clone(),
                "specifying both OnExitCodes and OnPodConditions is not supported",
            ),
            (None, false) => problems.invalid(
                &at,
                rule.clone(),
                "specifying one of OnExitCodes and OnPodConditions is required",
            ),
            (Some(codes), false) => {
                let at = at.child("onExitCodes");
                checks::one_of(codes, "operator", true, &["In", "NotIn"], &at, problems);
                let values = get_list(codes, "values");
                if values.is_empty() {
                    problems.invalid(
                        &at.child("values"),
                        Value::Array(Vec::new()),
                        "at least one value is required",
                    );
                }
                let list = at.child("values");
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
                if let Some(name) = codes.get("containerName").and_then(Value::as_str) {
                    let template = &spec["template"]["spec"];
                    let known = ["containers", "initContainers"]
                        .iter()
                        .any(|field| get_list(template, field).iter().any(|have| have["name"] == name));
                    if !known {
                        problems.invalid(
                            &at.child("containerName"),
                            name,
                            "must be one of the container or initContainer names in the pod template",
                        );
                    }
                }
            }
            (None, true) => {
                let list = at.child("onPodConditions");
                for (number, condition) in get_list(rule, "onPodConditions").iter().enumerate() {
                    let at = list.index(number);
                    let kind = get_str(condition, "type");
                    problems.invalid_each(&at.child("type"), kind, names::is_qualified_name(kind));
                    checks::one_of(condition, "status", true, &["False", "True", "Unknown"], &at, problems);
                }
            }
        }
    }
}

fn update(job: &Value, old: &Value, problems: &mut Problems) {
    let mut compare = |path: &str| checks::immutable(job, old, path, problems);
    compare("spec.selector");
    compare("spec.completionMode");
    compare("spec.podFailurePolicy");
    compare("spec.backoffLimitPerIndex");
    compare("spec.managedBy");
    compare("spec.successPolicy");
    let indexed_scale = get_str(job, "spec.completionMode") == "Indexed"
        && get(job, "spec.completions") == get(job, "spec.parallelism");
    if !indexed_scale {
        compare("spec.completions");
    }
    // Scheduling directives of a suspended job that never started may change.
    let suspended = old["spec"]["suspend"] == true && get(old, "status.startTime").is_none();
    let template = |job: &Value| {
        let mut template = job["spec"]["template"].clone();
        if suspended {
            for path in [
                "spec.affinity",
                "spec.nodeSelector",
                "spec.tolerations",
                "spec.schedulingGates",
                "metadata.labels",
                "metadata.annotations",
            ] {
                apimachinery::meta::remove(&mut template, path);
            }
            for container in template["spec"]["containers"].as_array_mut().into_iter().flatten() {
                if let Some(map) = container.as_object_mut() {
                    map.shift_remove("resources");
                }
            }
        }
        template
    };
    if template(job) != template(old) {
        problems.invalid(
            &Path::new("spec").child("template"),
            job["spec"]["template"].clone(),
            crate::metadata::IMMUTABLE,
        );
    }
}

fn status_rules(change: &Change<'_>, problems: &mut Problems) {
    let path = Path::new("status");
    let job = change.new;
    for field in ["active", "succeeded", "failed", "ready", "terminating"] {
        checks::non_negative(&job["status"], field, &path, problems);
    }
    let Some(old) = change.old else { return };
    for field in ["failed", "succeeded"] {
        let (after, before) =
            (job["status"][field].as_i64().unwrap_or(0), old["status"][field].as_i64().unwrap_or(0));
        if after < before && field == "failed" {
            problems.invalid(&path.child(field), after, "cannot decrease the failed counter");
        } else if after < before && get_str(job, "spec.completionMode") != "Indexed" {
            problems.invalid(&path.child(field), after, "cannot decrease the succeeded counter");
        }
    }
    for kind in ["Complete", "Failed", "FailureTarget"] {
        if print::has_condition(old, kind) && !print::has_condition(job, kind) {
            problems.invalid(
                &path.child("conditions"),
                Value::Null,
                format!("cannot disable the terminal {kind}=True condition"),
            );
        }
    }
    if print::has_condition(job, "Complete") && print::has_condition(job, "Failed") {
        problems.invalid(
            &path.child("conditions"),
            Value::Null,
            "cannot set Complete=True and Failed=true conditions",
        );
    }
}

/// The longest name of a CronJob: its jobs get eleven characters more.
pub const CRON_JOB_NAME: usize = 63 - 11;
