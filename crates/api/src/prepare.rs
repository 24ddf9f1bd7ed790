//! The part of create and update strategies that all kinds share.

use apimachinery::meta::{Meta, MetaMut, same};
use serde_json::Value;

use crate::Definition;

impl Definition {
    /// Makes a client's object fit for creation: server-owned fields go, the kind's own hook runs, generation starts.
    ///
    /// The caller has set name, namespace, uid and creationTimestamp before: some kinds derive labels from them.
    pub fn prepare_create(&self, object: &mut Value) {
        let clears_status = self.subresource("status").is_some() && !self.created_with_status;
        if let Some(map) = object.as_object_mut()
            && clears_status
        {
            map.shift_remove("status");
        }
        let metadata = object.metadata_mut();
        for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.shift_remove(field);
        }
        if self.generation {
            object.put_meta("generation", 1.into());
        }
        crate::gates::drop_closed(&self.gated, object, None);
        self.rules.prepare_create(object);
        self.always_present(object);
    }

    /// Makes a client's object fit for an update: what the addressed part does not own is taken from the old object,
    /// and the generation counts when the desired state changed.
    pub fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        let metadata = new.metadata_mut();
        metadata.shift_remove("selfLink");
        // What is there stays; what is not there and should not come is told by the rules of metadata.
        for field in
            ["generation", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
        {
            let own = metadata.get(field).is_some_and(|own| own != "");
            match old.metadata().and_then(|meta| meta.get(field)) {
                Some(_) if own && matches!(field, "uid" | "deletionGracePeriodSeconds") => {}
                Some(value) => {
                    metadata.insert(field.into(), value.clone());
                }
                None if field.starts_with("deletion") => {}
                None => {
                    metadata.shift_remove(field);
                }
            }
        }
        if subresource == "status" {
            keep_all_but_status(new, old);
            keep_metadata(new, old, self.status_keeps.fields());
        } else if !matches!(subresource, "approval" | "binding") && self.subresource("status").is_some() {
            // An approval writes conditions of the status; which ones, its kind's rules decide. A binding is the
            // server's own write: it says in the status that the pod has its node.
            copy_field(new, old, "status");
        }
        crate::gates::drop_closed(&self.gated, new, Some(old));
        self.rules.prepare_update(new, old, subresource);
        // Where a pod runs is no new wish of its owner.
        let counts = |field| {
            let own = |object: &Value| object.metadata().and_then(|meta| meta.get(field)).cloned();
            own(new) != own(old)
        };
        if self.generation
            && subresource != "binding"
            && (desired_state_differs(new, old)
                || subresource.is_empty() && self.generation_counts.is_some_and(counts))
        {
            new.put_meta("generation", (old.generation() + 1).into());
        }
        self.always_present(new);
    }

    /// Go writes empty spec and status structs, and what they always have; so do we, for the kinds that have them by
    /// value.
    fn always_present(&self, object: &mut Value) {
        let node = self.schema.node();
        let Some(map) = object.as_object_mut() else { return };
        for name in ["spec", "status"] {
            let Some(field) = node.field(name).filter(|field| field.always) else { continue };
            let below = map.entry(name).or_insert(Value::Null);
            if below.is_null() {
                *below = Value::Object(serde_json::Map::new());
            }
            if let Value::Object(below) = below {
                node.at(field.node).add_zeroes(below, false);
            }
        }
    }
}

/// Takes some of the metadata over from the old object, or removes it.
pub(crate) fn keep_metadata(new: &mut Value, old: &Value, fields: &[&str]) {
    for field in fields {
        match old.metadata().and_then(|meta| meta.get(*field)) {
            Some(value) => new.put_meta(field, value.clone()),
            None => {
                new.metadata_mut().shift_remove(*field);
            }
        }
    }
}

/// Copies a top-level field from the old object, or removes it.
pub(crate) fn copy_field(new: &mut Value, old: &Value, field: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(value) if map.get(field).is_some_and(|own| same(own, value)) => {}
        Some(value) => {
            map.insert(field.into(), value.clone());
        }
        None => {
            map.shift_remove(field);
        }
    }
}

/// A status write changes status and metadata, nothing else.
fn keep_all_but_status(new: &mut Value, old: &Value) {
    let Some(map) = new.as_object_mut() else { return };
    let keep = |name: &str| matches!(name, "status" | "metadata" | "apiVersion" | "kind");
    map.retain(|name, value| keep(name) || old.get(name).is_some_and(|own| same(own, value)));
    for (name, value) in old.as_object().into_iter().flatten() {
        if !keep(name) && !map.contains_key(name) {
            map.insert(name.clone(), value.clone());
        }
    }
}

fn desired_state_differs(new: &Value, old: &Value) -> bool {
    let outside = |name: &str| matches!(name, "status" | "metadata" | "apiVersion" | "kind");
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    let changed = |(name, value): (&String, &Value)| {
        !outside(name) && !old.get(name).is_some_and(|own| same(own, value))
    };
    let removed = |name: &String| !outside(name) && !new.contains_key(name);
    new.iter().any(changed) || old.keys().any(removed)
}
