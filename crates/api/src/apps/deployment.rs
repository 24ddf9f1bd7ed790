//! Deployments.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_str, set},
};
use serde_json::{Value, json};

use super::workload;
use crate::{
    Change, Column, Definition, Rules, StatusKeeps, checks,
    defaults::{Constant, Default, apply},
    print::count,
};

/// Keeps a set of identical pods running and rolls them from one template to the next.
pub fn definition() -> Definition {
    let mut columns = vec![
        Column::new("Ready", |object, _| {
            format!("{}/{}", count(object, "status.readyReplicas"), count(object, "spec.replicas")).into()
        }),
        Column::count("Up-to-date", "status.updatedReplicas"),
        Column::count("Available", "status.availableReplicas"),
        Column::age(),
    ];
    columns.extend(workload::wide_columns(true));
    Definition::namespaced("apps", "v1", "Deployment", "deployments")
        .status_keeps(StatusKeeps::Labels)
        .generation_counts("annotations")
        .short(&["deploy"])
        .categories(&["all"])
        .scale()
        .status()
        .generation()
        .columns(columns)
        .pod_at("spec.template.spec")
        .rules(Deployment)
}

struct Deployment;

const DEFAULTS: &[Default] = &[
    ("spec.replicas", Constant::Number(1)),
    ("spec.strategy", Constant::Empty),
    ("spec.strategy.type", Constant::Text("RollingUpdate")),
    ("spec.revisionHistoryLimit", Constant::Number(10)),
    ("spec.progressDeadlineSeconds", Constant::Number(600)),
];

impl Rules for Deployment {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, DEFAULTS);
        if get_str(object, "spec.strategy.type") == "RollingUpdate" {
            apply(
                object,
                &[
                    ("spec.strategy.rollingUpdate", Constant::Empty),
                    ("spec.strategy.rollingUpdate.maxUnavailable", Constant::Text("25%")),
                    ("spec.strategy.rollingUpdate.maxSurge", Constant::Text("25%")),
                ],
            );
        }
        workload::template_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        set(object, "status", json!({}));
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let object = change.new;
        if change.subresource == "status" {
            const COUNTS: [&str; 8] = [
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "terminatingReplicas",
                "collisionCount",
            ];
            workload::status_counts(change, &COUNTS, problems);
            return;
        }
        workload::counts(object, problems);
        workload::selector_and_template(object, change.old, "Deployment", "deployment", problems);
        strategy(object, problems);
        let path = Path::new("spec");
        let deadline = object["spec"]["progressDeadlineSeconds"].as_i64();
        let ready = object["spec"]["minReadySeconds"].as_i64().unwrap_or(0);
        if deadline.is_some_and(|deadline| deadline <= ready) {
            problems.invalid(
                &path.child("progressDeadlineSeconds"),
                deadline.unwrap_or(0),
                "must be greater than minReadySeconds",
            );
        }
        if let Some(old) = change.old {
            checks::immutable_struct(object, old, "spec.selector", "LabelSelector", problems);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out = workload::name_warnings(change);
        out.extend(workload::warnings(change));
        out
    }
}

fn strategy(object: &Value, problems: &mut Problems) {
    let path = Path::new("spec");
    let path = path.child("strategy");
    let strategy = &object["spec"]["strategy"];
    let rolling = strategy.get("rollingUpdate");
    match (get_str(strategy, "type"), rolling) {
        ("Recreate", Some(_)) => problems.forbidden(
            &path.child("rollingUpdate"),
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        ("Recreate", None) => {}
        ("RollingUpdate", None) => {
            problems.required(&path.child("rollingUpdate"), "this should be defaulted and never be nil");
        }
        ("RollingUpdate", Some(rolling)) => {
            let at = path.child("rollingUpdate");
            for field in ["maxUnavailable", "maxSurge"] {
                if let Some(value) = rolling.get(field) {
                    checks::count_or_percent(value, &at.child(field), problems);
                }
            }
            let unavailable = rolling.get("maxUnavailable");
            if checks::is_zero_amount(unavailable) && checks::is_zero_amount(rolling.get("maxSurge")) {
                problems.invalid(
                    &at.child("maxUnavailable"),
                    unavailable.cloned().unwrap_or_default(),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            if let Some(value) = unavailable {
                checks::at_most_100_percent(value, &at.child("maxUnavailable"), problems);
            }
        }
        (_, _) => {
            let shown = crate::go_form::shown(strategy, "apps.DeploymentStrategy");
            problems.not_supported(&path, shown, &["Recreate", "RollingUpdate"]);
        }
    }
}
