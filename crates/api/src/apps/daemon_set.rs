//! DaemonSets.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, MetaMut, get, get_str, set},
};
use serde_json::{Value, json};

use super::workload;
use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, Default, apply},
    print,
};

/// Runs a pod on every node.
pub fn definition() -> Definition {
    let mut columns = vec![
        Column::path("Desired", "status.desiredNumberScheduled").integer(),
        Column::path("Current", "status.currentNumberScheduled").integer(),
        Column::path("Ready", "status.numberReady").integer(),
        Column::path("Up-to-date", "status.updatedNumberScheduled").integer(),
        Column::path("Available", "status.numberAvailable").integer(),
        Column::new("Node Selector", |object, _| {
            print::labels(get(object, "spec.template.spec.nodeSelector").and_then(Value::as_object)).into()
        }),
        Column::age(),
    ];
    columns.extend(workload::wide_columns(true));
    Definition::namespaced("apps", "v1", "DaemonSet", "daemonsets")
        .short(&["ds"])
        .categories(&["all"])
        .status()
        .generation()
        .columns(columns)
        .pod_at("spec.template.spec")
        .annotated_fields(&[TEMPLATE_GENERATION])
        .rules(DaemonSet)
}

struct DaemonSet;

/// Counts the changes of the pod template; older clients read it from here.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Value) -> Option<i64> {
    object.annotation(TEMPLATE_GENERATION)?.parse().ok()
}

fn set_template_generation(object: &mut Value, generation: i64) {
    let annotations = apimachinery::meta::entry_map(object.metadata_mut(), "annotations");
    annotations.insert(TEMPLATE_GENERATION.into(), generation.to_string().into());
}

const DEFAULTS: &[Default] = &[
    ("spec.updateStrategy", Constant::Empty),
    ("spec.updateStrategy.type", Constant::Text("RollingUpdate")),
    ("spec.revisionHistoryLimit", Constant::Number(10)),
];

impl Rules for DaemonSet {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, DEFAULTS);
        if get_str(object, "spec.updateStrategy.type") == "RollingUpdate" {
            apply(
                object,
                &[
                    ("spec.updateStrategy.rollingUpdate", Constant::Empty),
                    ("spec.updateStrategy.rollingUpdate.maxUnavailable", Constant::Number(1)),
                    ("spec.updateStrategy.rollingUpdate.maxSurge", Constant::Number(0)),
                ],
            );
        }
        workload::template_defaults(object);
        if template_generation(object).is_none() {
            set_template_generation(object, 0);
        }
    }

    fn unreadable(&self, object: &Value) -> Option<String> {
        let text = object.annotation(TEMPLATE_GENERATION)?;
        let error = text.parse::<i64>().err()?;
        let why = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Some(format!("strconv.ParseInt: parsing {}: {why}", apimachinery::field::go_quote(text)))
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        if subresource.is_empty() {
            let before = template_generation(old).unwrap_or(0);
            let changed = i64::from(new["spec"]["template"] != old["spec"]["template"]);
            set_template_generation(new, before.wrapping_add(changed));
        } else {
            set_template_generation(new, template_generation(old).unwrap_or(0));
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        set_template_generation(object, template_generation(object).unwrap_or(0).max(1));
        set(
            object,
            "status",
            json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberMisscheduled": 0, "numberReady": 0}),
        );
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            const COUNTS: [&str; 9] = [
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ];
            workload::status_counts(change, &COUNTS, problems);
            return;
        }
        if let Some(old) = change.old {
            checks::immutable_struct(change.new, old, "spec.selector", "LabelSelector", problems);
        }
        workload::counts(change.new, problems);
        workload::selector_and_template(change.new, change.old, "DaemonSet", "daemonset", problems);
        strategy(&change.new["spec"]["updateStrategy"], problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        workload::warnings(change)
    }
}

fn strategy(strategy: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    let path = path.child("updateStrategy");
    match (get_str(strategy, "type"), strategy.get("rollingUpdate")) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => problems.required(&path.child("rollingUpdate"), ""),
        ("RollingUpdate", Some(rolling)) => {
            let at = path.child("rollingUpdate");
            for field in ["maxUnavailable", "maxSurge"] {
                if let Some(value) = rolling.get(field) {
                    checks::count_or_percent(value, &at.child(field), problems);
                    checks::at_most_100_percent(value, &at.child(field), problems);
                }
            }
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            match (checks::is_zero_amount(unavailable), checks::is_zero_amount(surge)) {
                (false, false) => problems.invalid(
                    &at.child("maxSurge"),
                    surge.cloned().unwrap_or_default(),
                    "may not be set when maxUnavailable is non-zero",
                ),
                (true, true) => {
                    problems.required(&at.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
                }
                _ => {}
            }
        }
        (_, _) => {
            let shown = crate::go_form::shown(strategy, "apps.DaemonSetUpdateStrategy");
            problems.not_one_of(&path, shown, &["RollingUpdate", "OnDelete"]);
        }
    }
}
