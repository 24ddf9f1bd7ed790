//! Workloads that keep pods running.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get_str},
};

use crate::{Change, Column, Definition, MetaCheck, Rules};

mod daemon_set;
mod deployment;
mod replica_set;
mod stateful_set;
pub mod workload;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("apps", "v1", "ControllerRevision", "controllerrevisions")
            .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
            .columns(vec![
                Column::new("Controller", |revision, _| match revision.controller() {
                    Some(owner) => {
                        let group =
                            get_str(owner, "apiVersion").split_once('/').map_or("", |(group, _)| group);
                        let kind = get_str(owner, "kind").to_lowercase();
                        let kind = if group.is_empty() { kind } else { format!("{kind}.{group}") };
                        format!("{kind}/{}", get_str(owner, "name")).into()
                    }
                    None => "<none>".into(),
                }),
                Column::count("Revision", "revision"),
                Column::age(),
            ])
            .rules(Revision),
        daemon_set::definition(),
        deployment::definition(),
        replica_set::definition(),
        stateful_set::definition(),
    ]
}

struct Revision;

impl Rules for Revision {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        crate::checks::non_negative(change.new, "revision", &Path::ROOT, problems);
        match change.old {
            None => match change.new.get("data") {
                None | Some(serde_json::Value::Null) => {
                    problems.required(&Path::new("data"), "data is mandatory");
                }
                Some(data) if !data.is_object() => {
                    problems.required(&Path::new("data"), "data must be a valid JSON object");
                }
                Some(_) => {}
            },
            Some(old) => crate::checks::immutable(change.new, old, "data", problems),
        }
    }
}
