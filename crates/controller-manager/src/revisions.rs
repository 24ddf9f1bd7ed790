//! ControllerRevisions: the templates that a StatefulSet or DaemonSet has had.

use std::sync::Arc;

use controller_runtime::{Context, Kind, Labels, Plan, Raw};
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

/// What a revision records: a patch that puts the template back. Its fields are sorted, because kubectl compares the bytes
/// with those that it makes itself, to see whether there is anything to roll back.
pub fn record(template: &Raw) -> Value {
    let mut template = template.value();
    template["$patch"] = json!("replace");
    template.sort_all_objects();
    json!({"spec": {"template": template}})
}

/// All annotations of an owner whose present template is yet to be recorded, as the record has them: the caches leave out
/// what kubectl applied last.
pub async fn annotations<O: Kind>(
    context: &Context,
    owner: &O,
    template: &Raw,
    history: &[Arc<ControllerRevision>],
    is_terminating: bool,
) -> Result<Option<Labels>, client::Error> {
    let data = record(template);
    if is_terminating || history.iter().any(|revision| revision.data.value() == data) {
        return Ok(None);
    }
    let meta = owner.meta();
    let found: Option<Value> =
        context.reader.api(&O::RESOURCE).within(&meta.namespace).find(&meta.name).await?;
    let annotations = found.as_ref().and_then(|object| object.pointer("/metadata/annotations")?.as_object());
    Ok(annotations
        .map(|all| all.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect()))
}

/// Whose template is to be recorded, and under which names.
pub struct Wanted<'a, O> {
    /// The owner.
    pub owner: &'a O,
    /// Its present template.
    pub template: &'a Raw,
    /// The label under which the hash is filed.
    pub label: &'a str,
    /// How often a hash was taken.
    pub collisions: Option<i64>,
    /// All annotations of the owner, if they are known.
    pub annotations: Option<&'a Labels>,
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

/// Finds the present template, or plans to record it.
pub fn ensure<O: Kind>(
    wanted: &Wanted<'_, O>,
    history: &[Arc<ControllerRevision>],
    plan: &mut Plan,
) -> Present {
    let Wanted { owner, template, label, collisions, annotations } = *wanted;
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
    let annotations = labels_json(annotations.unwrap_or(&owner.meta().annotations));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_what_kubectl_would_write() {
        let template = Raw::from(
            &json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": []}, "metadata": {}}),
        );
        assert_eq!(
            record(&template).to_string(),
            r#"{"spec":{"template":{"$patch":"replace","metadata":{},"spec":{"containers":[],"volumes":[{"emptyDir":{},"name":"v"}]}}}}"#
        );
    }
}
