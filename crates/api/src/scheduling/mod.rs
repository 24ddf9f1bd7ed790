//! Priorities.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, MetaMut, get_str},
};
use serde_json::Value;

use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, apply},
};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
            .short(&["pc"])
            .columns(vec![
                Column::path("Value", "value").integer(),
                Column {
                    kind: "boolean".into(),
                    ..Column::new("Global-Default", |class, _| (class["globalDefault"] == true).into())
                },
                Column::age(),
                Column::path("PreemptionPolicy", "preemptionPolicy"),
            ])
            .rules(Class),
    ]
}

/// The highest value that users may give.
pub const HIGHEST_USER_PRIORITY: i64 = 1_000_000_000;
/// The classes that the system makes, with their values.
pub const SYSTEM_CLASSES: &[(&str, i64)] =
    &[("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

struct Class;

impl Rules for Class {
    fn set_defaults(&self, class: &mut Value) {
        apply(class, &[("preemptionPolicy", Constant::Text("PreemptLowerPriority"))]);
    }

    /// It has a generation, which nothing counts.
    fn prepare_create(&self, class: &mut Value) {
        class.put_meta("generation", 1.into());
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let class = change.new;
        let name = class.name();
        let value = class["value"].as_i64().unwrap_or(0);
        if name.starts_with("system-") {
            let known = SYSTEM_CLASSES.iter().find(|(have, _)| *have == name);
            let why = match known {
                None => Some(format!("{name} is not a known system priority class")),
                Some((_, number)) if *number != value => {
                    Some(format!("value of {name} PriorityClass must be {number}"))
                }
                Some(_) if class["globalDefault"] == true => {
                    Some(format!("globalDefault of {name} PriorityClass must be false"))
                }
                Some(_) => None,
            };
            if let Some(why) = why {
                let reserved =
                    "priority class names with 'system-' prefix are reserved for system use only. error:";
                problems.forbidden(&Path::new("metadata").child("name"), format!("{reserved} {why}"));
            }
        } else if value > HIGHEST_USER_PRIORITY {
            problems.forbidden(
                &Path::new("value"),
                format!("maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"),
            );
        }
        if change.old.is_none() {
            let policies = ["PreemptLowerPriority", "Never"];
            checks::one_of_ordered(class, "preemptionPolicy", true, &policies, &Path::ROOT, problems);
        }
        if let Some(old) = change.old {
            if old["value"] != class["value"] {
                problems.forbidden(&Path::new("value"), "may not be changed in an update.");
            }
            if get_str(old, "preemptionPolicy") != get_str(class, "preemptionPolicy") {
                problems.invalid(
                    &Path::new("preemptionPolicy"),
                    get_str(class, "preemptionPolicy"),
                    crate::metadata::IMMUTABLE,
                );
            }
        }
    }
}
