//! Runtime classes.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list},
    names, selector,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, MetaCheck, Rules, checks,
    core::pod_spec::{Kept, affinity, resources},
};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .any_finalizers()
            .versioned_updates()
            .create_on_update()
            .columns(vec![Column::path("Handler", "handler"), Column::age()])
            .rules(Class),
    ]
}

struct Class;

impl Rules for Class {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        checks::required_syntax(change.new, "handler", names::is_dns1123_label, &Path::ROOT, problems);
        if let Some(fixed) = get(change.new, "overhead.podFixed") {
            resources::validate(
                &json!({"limits": fixed}),
                &[],
                Kept::default(),
                &Path::new("overhead"),
                problems,
            );
        }
        let path = Path::new("scheduling");
        if let Some(labels) = get(change.new, "scheduling.nodeSelector").and_then(Value::as_object) {
            selector::validate_labels(labels, &path.child("nodeSelector"), problems);
        }
        let tolerations = get_list(change.new, "scheduling.tolerations");
        let list = path.child("tolerations");
        affinity::tolerations(tolerations, Kept::default(), &list, problems);
        for (index, toleration) in tolerations.iter().enumerate() {
            if tolerations[..index].contains(toleration) {
                problems.duplicate(&list.index(index), affinity::shown_toleration(toleration));
            }
        }
        if let Some(old) = change.old {
            checks::immutable(change.new, old, "handler", problems);
        }
    }
}
