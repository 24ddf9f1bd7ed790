//! Leases.

use apimachinery::field::{Path, Problems};
use serde_json::Value;

use crate::{Change, Column, Definition, Rules};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("coordination.k8s.io", "v1", "Lease", "leases")
            .any_finalizers()
            .versioned_updates()
            .create_on_update()
            .columns(vec![Column::path("Holder", "spec.holderIdentity"), Column::age()])
            .gated(&["spec.preferredHolder", "spec.strategy"])
            .rules(Lease),
    ]
}

struct Lease;

impl Rules for Lease {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        if spec["leaseDurationSeconds"].as_i64().is_some_and(|seconds| seconds <= 0) {
            problems.invalid(
                &path.child("leaseDurationSeconds"),
                spec["leaseDurationSeconds"].clone(),
                "must be greater than 0",
            );
        }
        crate::checks::non_negative(spec, "leaseTransitions", &path, problems);
        if spec.get("preferredHolder").is_some_and(|holder| holder != "")
            && spec.get("strategy").is_none_or(Value::is_null)
        {
            problems
                .forbidden(&path.child("preferredHolder"), "may only be specified if `strategy` is defined");
        }
    }
}
