//! Limits on voluntary disruption.

use apimachinery::{
    field::{Path, Problems},
    meta::get,
    names, selector,
};
use serde_json::Value;

use crate::{Change, Column, Definition, Rules, checks, print};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
            .checks_update(&[])
            .checks_status(&[])
            .named(names::is_path_segment_name)
            .any_finalizers()
            .metadata_last()
            .versioned_updates()
            .short(&["pdb"])
            .status()
            .generation()
            .columns(vec![
                Column::new("Min Available", |budget, _| amount(budget, "spec.minAvailable")),
                Column::new("Max Unavailable", |budget, _| amount(budget, "spec.maxUnavailable")),
                Column::new("Allowed Disruptions", |budget, _| {
                    print::count(budget, "status.disruptionsAllowed").into()
                })
                .integer(),
                Column::age(),
            ])
            .rules(Budget),
    ]
}

fn amount(budget: &Value, path: &str) -> Value {
    match get(budget, path) {
        Some(Value::Number(number)) => number.to_string().into(),
        Some(other) => other.clone(),
        None => "N/A".into(),
    }
}

struct Budget;

impl Rules for Budget {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        if change.subresource == "status" {
            let path = Path::new("status");
            checks::conditions(&change.new["status"], &path, problems);
            for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
                checks::non_negative(&change.new["status"], field, &path, problems);
            }
            return;
        }
        if spec.get("minAvailable").is_some() && spec.get("maxUnavailable").is_some() {
            let shown = crate::go_form::shown(spec, "policy.PodDisruptionBudgetSpec");
            problems.invalid(&path, shown, "minAvailable and maxUnavailable cannot be both set");
        }
        for field in ["minAvailable", "maxUnavailable"] {
            if let Some(value) = spec.get(field) {
                checks::count_or_percent(value, &path.child(field), problems);
                checks::at_most_100_percent(value, &path.child(field), problems);
            }
        }
        if let Some(value) = spec.get("selector") {
            selector::validate_object(value, &path.child("selector"), problems);
        }
        checks::one_of(
            spec,
            "unhealthyPodEvictionPolicy",
            false,
            &["AlwaysAllow", "IfHealthyBudget"],
            &path,
            problems,
        );
    }
}
