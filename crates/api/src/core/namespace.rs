//! Namespaces.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, MetaMut, get_list, set},
    names,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Effect, MetaCheck, Rules, Subresource, Verb, Verbs,
    defaults::{Constant, apply},
};

/// A scope for names.
pub fn definition() -> Definition {
    Definition::cluster("", "v1", "Namespace", "namespaces")
        .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
        .answers_with_object()
        .short(&["ns"])
        .verbs(Verbs::of(&[
            Verb::Create,
            Verb::Delete,
            Verb::Get,
            Verb::List,
            Verb::Patch,
            Verb::Update,
            Verb::Watch,
        ]))
        .with(Subresource::Finalize)
        .status()
        .named(names::is_dns1123_label)
        .label("status.phase")
        .effects(&[Effect::FinalizeNamespace])
        .columns(vec![Column::path("Status", "status.phase"), Column::age()])
        .rules(Namespace)
}

struct Namespace;

impl Rules for Namespace {
    fn set_defaults(&self, namespace: &mut Value) {
        apply(namespace, &[("status", Constant::Empty), ("status.phase", Constant::Text("Active"))]);
        let name = namespace.name().to_owned();
        if !name.is_empty() {
            namespace.set_label("kubernetes.io/metadata.name", &name);
        }
    }

    fn prepare_create(&self, namespace: &mut Value) {
        namespace["status"] = json!({"phase": "Active"});
        let finalizers = get_list(namespace, "spec.finalizers");
        if !finalizers.iter().any(|name| name == "kubernetes") {
            let mut finalizers = finalizers.to_vec();
            finalizers.push("kubernetes".into());
            set(namespace, "spec.finalizers", finalizers.into());
        }
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        // Finalizers change through their own subresource only.
        if subresource != "finalize" {
            crate::prepare::copy_field(new, old, "spec");
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let spec = Path::new("spec");
        let list = spec.child("finalizers");
        for (index, finalizer) in get_list(change.new, "spec.finalizers").iter().enumerate() {
            // Only who finalizes is told which one it is.
            let at = if change.subresource == "finalize" { list.index(index) } else { list };
            let text = finalizer.as_str().unwrap_or_default();
            problems.invalid_each(&at, text, names::is_qualified_name(text));
            if !text.contains('/') && text != "kubernetes" {
                problems.invalid(
                    &at,
                    text,
                    "name is neither a standard finalizer name nor is it fully qualified",
                );
            }
        }
        if change.subresource == "status" {
            let phase = apimachinery::meta::get_str(change.new, "status.phase");
            let terminating = change.new.is_terminating();
            if !terminating && phase != "Active" {
                problems.invalid(
                    &Path::new("status").child("Phase"),
                    phase,
                    "may only be 'Active' if `deletionTimestamp` is empty",
                );
            }
            if terminating && phase != "Terminating" {
                problems.invalid(
                    &Path::new("status").child("Phase"),
                    phase,
                    "may only be 'Terminating' if `deletionTimestamp` is not empty",
                );
            }
        }
    }
}
