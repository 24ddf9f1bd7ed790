//! ControllerRevisions: the templates that a StatefulSet or DaemonSet has had.

use std::sync::Arc;

use controller_runtime::{Kind, Plan, Raw};
use serde_json::{Value, json};

use crate::kinds::{ControllerRevision, labels_json};
use crate::pods;

/// The present template among the recorded ones.
pub enum Present {
    /// It is recorded, and the latest.
    Known(Arc<ControllerRevision>),
    /// A write was planned, after which it will be known.
    Planned,
}

/// What a revision records: a patch that puts the template back.
pub fn record(template: &Raw) -> Value {
    let mut template = template.value();
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// The template that a revision records.
pub fn template_of(revision: &ControllerRevision) -> Raw {
    let mut data = revision.data.value();
    let mut template = data.pointer_mut("/spec/template").map(Value::take).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.shift_remove("$patch");
    }
    Raw::from(&template)
}

/// Finds the present template, or plans to record it. `label` is the name under which the hash is filed.
pub fn ensure<O: Kind>(
    owner: &O,
    template: &Raw,
    label: &str,
    collisions: Option<i64>,
    history: &[Arc<ControllerRevision>],
    plan: &mut Plan,
) -> Present {
    let data = record(template);
    let newest = history.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let equal = history
        .iter()
        .filter(|revision| revision.data.value() == data)
        .max_by_key(|revision| revision.revision);
    if let Some(found) = equal {
        if found.revision == newest {
            return Present::Known(found.clone());
        }
        plan.update(&**found, json!({"revision": newest + 1}));
        return Present::Planned;
    }
    let hash = pods::hash(&data, collisions);
    let mut labels = labels_json(&pods::template_labels(template));
    labels[label] = json!(hash);
    let annotations = labels_json(&owner.meta().annotations);
    let revision = json!({
        "metadata": {
            "name": format!("{}-{hash}", owner.meta().name),
            "namespace": owner.meta().namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner.controller_ref()],
        },
        "data": data,
        "revision": newest + 1,
    });
    plan.create(&ControllerRevision::RESOURCE, revision);
    Present::Planned
}

/// Deletes the oldest revisions that are not in use, beyond the limit.
pub fn clean_up(
    history: &[Arc<ControllerRevision>],
    in_use: impl Fn(&ControllerRevision) -> bool,
    limit: Option<i64>,
    plan: &mut Plan,
) {
    let mut idle: Vec<&Arc<ControllerRevision>> =
        history.iter().filter(|revision| !in_use(revision)).collect();
    let excess = idle.len().saturating_sub(usize::try_from(limit.unwrap_or(10)).unwrap_or(0));
    idle.sort_by_key(|revision| revision.revision);
    for revision in idle.into_iter().take(excess) {
        plan.delete(&**revision);
    }
}
