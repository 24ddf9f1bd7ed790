//! Rules for the metadata that every object has.

use std::collections::BTreeSet;

use apimachinery::{
    field::{Path, Problems, go_quote},
    meta::{Meta, get_str},
    names, selector,
};
use serde_json::Value;

use crate::{Change, Definition, Scope};

const TOTAL_ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// How the strategy of a kind looks at the metadata of an update, after the server looked at it for all kinds. What is
/// found twice is told twice among the causes, as upstream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaCheck {
    /// As at a creation.
    Whole,
    /// What must not change, and what may.
    Change,
}

/// Checks `metadata` of a write.
pub fn validate(definition: &Definition, change: &Change<'_>, problems: &mut Problems) {
    let path = Path::new("metadata");
    let new = change.new;
    let Some(old) = change.old else {
        whole(definition, new, &path, problems);
        return;
    };
    let generate = new.generate_name();
    problems.invalid_each(&path.child("generateName"), generate, path_segment_prefix(generate));
    labels_annotations_owners(new, &path, problems);
    finalizer_syntax(new, &path, problems);
    update(new, old, &path, problems);
    let checks = match change.subresource {
        "status" | "finalize" => definition.checks_status,
        _ => definition.checks_update,
    };
    for check in checks {
        match check {
            MetaCheck::Whole => whole(definition, new, &path, problems),
            MetaCheck::Change => {
                update(new, old, &path, problems);
                finalizer_names(definition, new, &path, problems);
            }
        }
    }
}

/// The beginning of a name has to fit into a URL for every kind.
fn path_segment_prefix(text: &str) -> impl Iterator<Item = String> {
    let within = ['/', '%'].into_iter().filter(|letter| text.contains(*letter));
    within.map(|letter| format!("may not contain '{letter}'"))
}

fn whole(definition: &Definition, new: &Value, path: &Path<'_>, problems: &mut Problems) {
    names_of(definition, new, path, problems);
    labels_annotations_owners(new, path, problems);
    finalizer_syntax(new, path, problems);
    finalizer_names(definition, new, path, problems);
}

fn names_of(definition: &Definition, object: &Value, path: &Path<'_>, problems: &mut Problems) {
    let generate = object.generate_name();
    if !generate.is_empty() {
        // The suffix is appended later; a trailing dash is fine.
        let trial = generate.strip_suffix('-').map_or_else(|| generate.to_owned(), |rest| format!("{rest}a"));
        problems.invalid_each(&path.child("generateName"), generate, (definition.name_rule)(&trial));
    }
    let name = object.name();
    if name.is_empty() {
        problems.required(&path.child("name"), "name or generateName is required");
    } else {
        problems.invalid_each(&path.child("name"), name, (definition.name_rule)(name));
    }
    let namespace = object.namespace();
    match definition.scope {
        Scope::Namespaced if namespace.is_empty() => problems.required(&path.child("namespace"), ""),
        Scope::Namespaced => {
            problems.invalid_each(&path.child("namespace"), namespace, names::is_dns1123_label(namespace));
        }
        Scope::Cluster if !namespace.is_empty() => {
            problems.forbidden(&path.child("namespace"), "not allowed on this type");
        }
        Scope::Cluster => {}
    }
}

fn labels_annotations_owners(object: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Some(labels) = object.labels() {
        selector::validate_labels(labels, &path.child("labels"), problems);
    }
    if let Some(annotations) = object.annotations() {
        validate_annotations(annotations, &path.child("annotations"), problems);
    }
    owners(object, path, problems);
}

/// Checks the metadata of a template: it has labels and annotations, and nothing else.
pub fn of_template(metadata: &Value, path: &Path<'_>, problems: &mut Problems) {
    let map = |field| metadata.get(field).and_then(Value::as_object);
    if let Some(annotations) = map("annotations") {
        validate_annotations(annotations, &path.child("annotations"), problems);
    }
    if let Some(labels) = map("labels") {
        selector::validate_labels(labels, &path.child("labels"), problems);
    }
    let go = ["name", "generateName", "namespace", "selfLink", "uid", "resourceVersion", "generation"];
    let order = |name: &str| go.iter().position(|have| *have == name).unwrap_or(go.len());
    let mut others: Vec<&str> =
        metadata.as_object().into_iter().flat_map(|map| map.keys()).map(String::as_str).collect();
    others.retain(|name| {
        !matches!(*name, "labels" | "annotations")
            && metadata.get(*name).is_some_and(|value| !value.is_null())
    });
    others.sort_by_key(|name| order(name));
    for name in others {
        // Upstream makes the name of Go's field, and this one has two capitals.
        let name = if name == "uid" { "uID" } else { name };
        problems.forbidden(&path.child(name), "cannot be set");
    }
}

/// Checks keys and total size of annotations.
pub fn validate_annotations(
    annotations: &serde_json::Map<String, Value>,
    path: &Path<'_>,
    problems: &mut Problems,
) {
    let mut total = 0;
    for (key, value) in annotations {
        let lower = key.to_lowercase();
        problems.invalid_each(path, key, names::is_qualified_name(&lower));
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > TOTAL_ANNOTATIONS_LIMIT {
        problems.too_long(path, TOTAL_ANNOTATIONS_LIMIT);
    }
}

fn owners(object: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("ownerReferences");
    let mut controller: Option<String> = None;
    for owner in object.owner_references() {
        // Upstream does not say which owner of the list it means.
        for field in ["apiVersion", "kind", "name", "uid"] {
            if get_str(owner, field).is_empty() {
                let detail =
                    if field == "apiVersion" { "version must not be empty" } else { "must not be empty" };
                problems.invalid(&list.child(field), "", detail);
            }
        }
        if get_str(owner, "apiVersion") == "v1" && get_str(owner, "kind") == "Event" {
            problems.invalid(&list, owner.clone(), "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner["controller"] == true {
            let name = format!("{}/{}", get_str(owner, "kind"), get_str(owner, "name"));
            match &controller {
                None => controller = Some(name),
                Some(first) => problems.invalid(
                    &list,
                    Value::Array(object.owner_references().to_vec()),
                    format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    ),
                ),
            }
        }
    }
}

fn finalizer_syntax(object: &Value, path: &Path<'_>, problems: &mut Problems) {
    let list = path.child("finalizers");
    let finalizers = object.finalizers();
    for finalizer in &finalizers {
        problems.invalid_each(&list, finalizer, names::is_qualified_name(finalizer));
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        problems.invalid(
            &list,
            Value::from(finalizers),
            "finalizer orphan and foregroundDeletion cannot be both set",
        );
    }
}

fn finalizer_names(definition: &Definition, object: &Value, path: &Path<'_>, problems: &mut Problems) {
    if definition.any_finalizers {
        return;
    }
    let list = path.child("finalizers");
    for (index, finalizer) in object.finalizers().iter().enumerate() {
        let standard = matches!(*finalizer, "orphan" | "foregroundDeletion" | "kubernetes");
        if !finalizer.contains('/') && !standard {
            problems.invalid(
                &list.index(index),
                *finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

/// "field is immutable"
pub const IMMUTABLE: &str = "field is immutable";

fn update(new: &Value, old: &Value, path: &Path<'_>, problems: &mut Problems) {
    if old.is_terminating() {
        let before = old.finalizers();
        let added: BTreeSet<&str> =
            new.finalizers().into_iter().filter(|name| !before.contains(name)).collect();
        if !added.is_empty() {
            let added: Vec<String> = added.into_iter().map(go_quote).collect();
            problems.forbidden(
                &path.child("finalizers"),
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                    added.join(", ")
                ),
            );
        }
    }
    if new.resource_version().is_empty() {
        problems.invalid(&path.child("resourceVersion"), 0, "must be specified for an update");
    }
    for field in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        let own =
            |object: &Value| object.metadata().and_then(|meta| meta.get(field)).cloned().unwrap_or_default();
        let (after, before) = (own(new), own(old));
        // Absent text and empty text are the same.
        if after != before && !(after == "" && before.is_null()) {
            let shown =
                if after.is_null() && !field.starts_with("deletion") { Value::from("") } else { after };
            problems.invalid(&path.child(field), shown, IMMUTABLE);
        }
    }
    labels_annotations_owners(new, path, problems);
}
