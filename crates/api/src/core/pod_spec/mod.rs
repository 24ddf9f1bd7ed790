//! What is true of every pod spec, whether it stands in a Pod or in the template of a workload.

use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    selector,
};
use serde_json::Value;

use crate::{Change, Rules, metadata};

pub mod affinity;
pub mod amounts;
pub mod containers;
pub mod defaults;
pub mod env;
pub mod image;
pub mod os;
pub mod probes;
pub mod qos;
pub mod resources;
pub mod security;
pub mod validate;
pub mod volumes;
pub mod warnings;

pub use defaults::{set_pod_defaults, set_template_defaults};
pub use validate::{Home, validate_spec};

/// What is refused today, but may stay where the stored spec has it: it was taken once.
#[derive(Clone, Copy, Default)]
pub struct Kept {
    /// Every SELinux change policy that there is.
    pub selinux_policies: bool,
    /// Tolerations that compare numbers.
    pub comparisons: bool,
    /// Huge pages that are no whole number of pages.
    pub broken_pages: bool,
    /// Init containers that are restarted to be resized.
    pub init_restarts: bool,
}

impl Kept {
    /// What an old pod spec has of these.
    pub fn of(old: Option<&Value>) -> Self {
        let Some(old) = old else { return Self::default() };
        let compares = |toleration: &Value| matches!(get_str(toleration, "operator"), "Lt" | "Gt");
        Self {
            selinux_policies: get(old, "securityContext.seLinuxChangePolicy").is_some(),
            comparisons: get_list(old, "tolerations").iter().any(compares),
            broken_pages: resources::have_broken_pages(old),
            init_restarts: get_list(old, "initContainers").iter().any(|container| {
                !containers::is_sidecar(container)
                    && get_list(container, "resizePolicy").iter().any(containers::is_restarting)
            }),
        }
    }
}

/// Checks a pod template: labels, annotations and the spec. `old` is the stored template, if there is one.
pub fn validate_template(template: &Value, old: Option<&Value>, path: &Path<'_>, problems: &mut Problems) {
    if let Some(labels) = get(template, "metadata.labels").and_then(Value::as_object) {
        selector::validate_labels(labels, &path.child("labels"), problems);
    }
    if let Some(annotations) = get(template, "metadata.annotations").and_then(Value::as_object) {
        metadata::validate_annotations(annotations, &path.child("annotations"), problems);
    }
    let spec = path.child("spec");
    validate_spec(&template["spec"], old.map(|old| &old["spec"]), Home::Template, &spec, problems);
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
        validate_template(&change.new[self.path], change.old.map(|old| &old[self.path]), &path, problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        warnings::of_change(change, &format!("/{}/spec", self.path), &format!("{}.spec", self.path))
    }
}
