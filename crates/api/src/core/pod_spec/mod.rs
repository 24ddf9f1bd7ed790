//! What is true of every pod spec, whether it stands in a Pod or in the template of a workload.

use apimachinery::{
    field::{Path, Problems},
    meta::get,
    selector,
};
use serde_json::Value;

use crate::{Change, Rules, metadata};

pub mod affinity;
pub mod amounts;
pub mod containers;
pub mod defaults;
pub mod env;
pub mod os;
pub mod probes;
pub mod qos;
pub mod resources;
pub mod security;
pub mod validate;
pub mod volumes;
pub mod warnings;

pub use defaults::{set_pod_defaults, set_template_defaults};
pub use validate::validate_spec;

/// Checks a pod template: labels, annotations and the spec.
pub fn validate_template(template: &Value, path: &Path<'_>, problems: &mut Problems) {
    if let Some(labels) = get(template, "metadata.labels").and_then(Value::as_object) {
        selector::validate_labels(labels, &path.child("labels"), problems);
    }
    if let Some(annotations) = get(template, "metadata.annotations").and_then(Value::as_object) {
        metadata::validate_annotations(annotations, &path.child("annotations"), problems);
    }
    let spec = path.child("spec");
    validate_spec(&template["spec"], &spec, problems);
    if template["spec"].get("ephemeralContainers").is_some() {
        problems.forbidden(
            &spec.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Rules of a kind that is little more than a pod template at a path.
pub struct TemplateRules {
    /// Where the template is.
    pub path: &'static str,
    /// Restart policies that the template may have; empty allows all.
    pub restart: &'static [&'static str],
}

impl Rules for TemplateRules {
    fn set_defaults(&self, object: &mut Value) {
        if let Some(spec) = object.get_mut(self.path).and_then(|template| template.get_mut("spec")) {
            set_template_defaults(spec);
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new(self.path);
        validate_template(&change.new[self.path], &path, problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        warnings::of_change(change, &format!("/{}/spec", self.path), &format!("{}.spec", self.path))
    }
}
