//! ReplicationControllers.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_str},
    selector::LabelSelector,
};
use serde_json::{Map, Value};

use super::pod_spec;
use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, apply},
    print,
};

/// The first generation of ReplicaSets.
pub fn definition() -> Definition {
    Definition::namespaced("", "v1", "ReplicationController", "replicationcontrollers")
        .short(&["rc"])
        .categories(&["all"])
        .stored_at("/registry/controllers")
        .scale()
        .status()
        .generation()
        .orphans()
        .label_or("status.replicas", "0")
        .columns(vec![
            Column::path("Desired", "spec.replicas").integer(),
            Column::path("Current", "status.replicas").integer(),
            Column::path("Ready", "status.readyReplicas").integer(),
            Column::age(),
            Column::new("Containers", |object, _| print::containers(object, "spec.template.spec.containers"))
                .wide(),
            Column::new("Images", |object, _| print::images(object, "spec.template.spec.containers")).wide(),
            Column::new("Selector", |object, _| print::labels(object["spec"]["selector"].as_object()).into())
                .wide(),
        ])
        .pod_at("spec.template.spec")
        .rules(ReplicationController)
}

struct ReplicationController;

impl Rules for ReplicationController {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, &[("spec.replicas", Constant::Number(1))]);
        if let Some(spec) = object.get_mut("spec").and_then(|spec| spec.get_mut("template")?.get_mut("spec"))
        {
            pod_spec::set_template_defaults(spec);
        }
        let labels = get(object, "spec.template.metadata.labels").cloned();
        if let Some(labels) = labels {
            if object["spec"].get("selector").is_none() {
                object["spec"]["selector"] = labels.clone();
            }
            if get(object, "metadata.labels").is_none() {
                apimachinery::meta::set(object, "metadata.labels", labels);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = serde_json::json!({"replicas": 0});
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            use crate::apps::workload;
            workload::status_counts(change, workload::REPLICA_COUNTS, problems);
            return;
        }
        let spec = Path::new("spec");
        let object = change.new;
        checks::non_negative(&object["spec"], "minReadySeconds", &spec, problems);
        checks::non_negative(&object["spec"], "replicas", &spec, problems);
        let empty = Map::new();
        let wanted = object["spec"]["selector"].as_object().unwrap_or(&empty);
        if wanted.is_empty() {
            problems.required(&spec.child("selector"), "");
        }
        let path = spec.child("template");
        let Some(template) = object["spec"].get("template") else {
            problems.required(&path, "");
            return;
        };
        let labels = get(template, "metadata.labels").and_then(Value::as_object);
        if !wanted.is_empty() && !LabelSelector::from_map(wanted).matches(labels) {
            let shown = labels.cloned().map(Value::Object).unwrap_or_default();
            let meta = path.child("metadata");
            problems.invalid(&meta.child("labels"), shown, "`selector` does not match template `labels`");
        }
        let before = change.old.map(|old| &old["spec"]["template"]);
        pod_spec::validate_template(template, before, &path, problems);
        restart_always(template, &path, "ReplicationController", problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        // Upstream takes the old template for the new one here.
        let judged = match change.old {
            Some(old) if old.generation() == change.new.generation() => return Vec::new(),
            Some(old) => old,
            None => change.new,
        };
        pod_spec::warnings::of_change(&Change::create(judged), "/spec/template/spec", "spec.template.spec")
    }
}

/// Templates of workloads that keep pods running.
pub fn restart_always(template: &Value, path: &Path<'_>, kind: &str, problems: &mut Problems) {
    let spec = path.child("spec");
    let policy = get_str(template, "spec.restartPolicy");
    if !policy.is_empty() && policy != "Always" {
        problems.not_supported(&spec.child("restartPolicy"), policy, &["Always"]);
    }
    if template["spec"].get("activeDeadlineSeconds").is_some() {
        problems.forbidden(
            &spec.child("activeDeadlineSeconds"),
            format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}
