//! ReplicaSets.

use apimachinery::{field::Problems, meta::set};
use serde_json::{Value, json};

use super::workload;
use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, apply},
};

/// Keeps a number of identical pods running.
pub fn definition() -> Definition {
    let mut columns = vec![
        Column::path("Desired", "spec.replicas").integer(),
        Column::path("Current", "status.replicas").integer(),
        Column::path("Ready", "status.readyReplicas").integer(),
        Column::age(),
    ];
    columns.extend(workload::wide_columns(true));
    Definition::namespaced("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .categories(&["all"])
        .scale()
        .status()
        .generation()
        .columns(columns)
        .pod_at("spec.template.spec")
        .rules(ReplicaSet)
}

struct ReplicaSet;

impl Rules for ReplicaSet {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, &[("spec.replicas", Constant::Number(1))]);
        workload::template_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        set(object, "status", json!({"replicas": 0}));
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            workload::status_counts(change, workload::REPLICA_COUNTS, problems);
            return;
        }
        workload::counts(change.new, problems);
        workload::selector_and_template(change.new, change.old, "ReplicaSet", "deployment", problems);
        if let Some(old) = change.old {
            checks::immutable_struct(change.new, old, "spec.selector", "LabelSelector", problems);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out = workload::name_warnings(change);
        out.extend(workload::warnings(change));
        out
    }
}
