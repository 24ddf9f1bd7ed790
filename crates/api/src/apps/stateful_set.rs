//! StatefulSets.

use std::collections::HashSet;

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str, set},
    names,
};
use serde_json::{Value, json};

use super::workload;
use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, Default, apply},
    print::count,
};

/// Keeps pods with stable names and storage.
pub fn definition() -> Definition {
    let mut columns = vec![
        Column::new("Ready", |object, _| {
            format!("{}/{}", count(object, "status.readyReplicas"), count(object, "spec.replicas")).into()
        }),
        Column::age(),
    ];
    columns.extend(workload::wide_columns(false));
    Definition::namespaced("apps", "v1", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .categories(&["all"])
        .scale()
        .status()
        .generation()
        .named(names::is_dns1123_label)
        .columns(columns)
        .pod_at("spec.template.spec")
        .rules(StatefulSet)
}

struct StatefulSet;

const DEFAULTS: &[Default] = &[
    ("spec.podManagementPolicy", Constant::Text("OrderedReady")),
    ("spec.updateStrategy", Constant::Empty),
    ("spec.persistentVolumeClaimRetentionPolicy", Constant::Empty),
    ("spec.persistentVolumeClaimRetentionPolicy.whenDeleted", Constant::Text("Retain")),
    ("spec.persistentVolumeClaimRetentionPolicy.whenScaled", Constant::Text("Retain")),
    ("spec.replicas", Constant::Number(1)),
    ("spec.revisionHistoryLimit", Constant::Number(10)),
    ("spec.volumeClaimTemplates.*.spec.volumeMode", Constant::Text("Filesystem")),
    ("spec.volumeClaimTemplates.*.status", Constant::Empty),
    ("spec.volumeClaimTemplates.*.status.phase", Constant::Text("Pending")),
];

impl Rules for StatefulSet {
    fn set_defaults(&self, object: &mut Value) {
        apply(object, DEFAULTS);
        if get_str(object, "spec.updateStrategy.type").is_empty() {
            apply(
                object,
                &[
                    ("spec.updateStrategy.type", Constant::Text("RollingUpdate")),
                    ("spec.updateStrategy.rollingUpdate", Constant::Empty),
                ],
            );
        }
        if get_str(object, "spec.updateStrategy.type") == "RollingUpdate" {
            apply(object, &[("spec.updateStrategy.rollingUpdate.partition", Constant::Number(0))]);
        }
        if let Some(Value::Array(templates)) = object["spec"].get_mut("volumeClaimTemplates") {
            for template in templates {
                // Whatever the client calls it.
                template["apiVersion"] = "v1".into();
                template["kind"] = "PersistentVolumeClaim".into();
            }
        }
        workload::template_defaults(object);
    }

    fn prepare_create(&self, object: &mut Value) {
        set(object, "status", json!({"replicas": 0, "availableReplicas": 0}));
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let object = change.new;
        if change.subresource == "status" {
            const COUNTS: [&str; 7] = [
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ];
            workload::status_counts(change, &COUNTS, problems);
            return;
        }
        let path = Path::new("spec");
        let spec = &object["spec"];
        match get_str(spec, "podManagementPolicy") {
            "OrderedReady" | "Parallel" => {}
            "" => problems.required(&path.child("podManagementPolicy"), ""),
            other => {
                problems.invalid(
                    &path.child("podManagementPolicy"),
                    other,
                    "must be 'OrderedReady' or 'Parallel'",
                );
            }
        }
        strategy(spec, &path, problems);
        let at = path.child("persistentVolumeClaimRetentionPolicy");
        for field in ["whenDeleted", "whenScaled"] {
            checks::one_of_ordered(
                &spec["persistentVolumeClaimRetentionPolicy"],
                field,
                true,
                &["Retain", "Delete"],
                &at,
                problems,
            );
        }
        // Templates that were taken once stay as they are.
        if change.old.is_none() {
            let list = path.child("volumeClaimTemplates");
            for (index, claim) in get_list(spec, "volumeClaimTemplates").iter().enumerate() {
                let at = list.index(index);
                crate::core::volumes::validate_claim_spec(&claim["spec"], false, &at.child("spec"), problems);
            }
        }
        for field in ["replicas", "minReadySeconds"] {
            checks::non_negative(spec, field, &path, problems);
        }
        if let Some(ordinals) = spec.get("ordinals") {
            checks::non_negative(ordinals, "start", &path.child("ordinals"), problems);
        }
        if change.old.is_none() && !get_str(spec, "serviceName").is_empty() {
            checks::syntax(spec, "serviceName", names::is_dns1123_label, &path, problems);
        }
        template(object, change.old, problems);
        if let Some(old) = change.old {
            update(object, old, problems);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out = workload::name_warnings(change);
        out.extend(workload::warnings(change));
        if change.new["spec"]["revisionHistoryLimit"].as_i64().is_some_and(|limit| limit < 0) {
            out.push(
                "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                    .into(),
            );
        }
        out
    }
}

/// The volumes that the claim templates will make count as present, before all others, and what the controller gives
/// each pod itself is not looked at.
fn template(object: &Value, old: Option<&Value>, problems: &mut Problems) {
    let mut made = object.clone();
    if let Some(Value::Object(spec)) = made.pointer_mut("/spec/template/spec") {
        for field in ["hostname", "subdomain"] {
            spec.shift_remove(field);
        }
        let claims = get_list(&object["spec"], "volumeClaimTemplates").iter();
        let mut taken = HashSet::new();
        let mut volumes: Vec<Value> = claims
            .map(|claim| get_str(claim, "metadata.name"))
            .filter(|name| taken.insert(*name))
            .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
            .collect();
        if !volumes.is_empty() {
            if let Some(Value::Array(own)) = spec.shift_remove("volumes") {
                volumes.extend(own.into_iter().filter(|volume| !taken.contains(get_str(volume, "name"))));
            }
            spec.insert("volumes".into(), volumes.into());
        }
    }
    workload::selector_and_template(&made, old, "StatefulSet", "statefulset", problems);
}

fn strategy(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let at = path.child("updateStrategy");
    let strategy = &spec["updateStrategy"];
    match (get_str(strategy, "type"), strategy.get("rollingUpdate")) {
        ("", _) => problems.required(&at, ""),
        ("OnDelete", Some(rolling)) => problems.invalid(
            &at.child("rollingUpdate"),
            crate::go_form::shown(rolling, "apps.RollingUpdateStatefulSetStrategy"),
            "only allowed for updateStrategy 'RollingUpdate'",
        ),
        ("OnDelete", None) | ("RollingUpdate", None) => {}
        ("RollingUpdate", Some(rolling)) => {
            let at = at.child("rollingUpdate");
            checks::non_negative(rolling, "partition", &at, problems);
            if let Some(most) = rolling.get("maxUnavailable") {
                let at = at.child("maxUnavailable");
                checks::count_or_percent(most, &at, problems);
                if checks::is_zero_amount(Some(most)) {
                    problems.invalid(&at, most.clone(), "cannot be 0");
                }
                checks::at_most_100_percent(most, &at, problems);
            }
        }
        (_, _) => {
            let shown = crate::go_form::shown(strategy, "apps.StatefulSetUpdateStrategy");
            problems.invalid(&at, shown, "must be 'RollingUpdate' or 'OnDelete'");
        }
    }
}

fn update(object: &Value, old: &Value, problems: &mut Problems) {
    const MUTABLE: &[&str] = &[
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "minReadySeconds",
        "persistentVolumeClaimRetentionPolicy",
        "revisionHistoryLimit",
    ];
    let fixed = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(map) = spec.as_object_mut() {
            map.retain(|name, _| !MUTABLE.contains(&name.as_str()));
            // What a template calls itself says nothing.
            for template in
                map.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut).into_iter().flatten()
            {
                for field in ["apiVersion", "kind"] {
                    crate::prepare::copy_field(template, &Value::Null, field);
                }
            }
        }
        spec
    };
    if fixed(object) != fixed(old) {
        problems.forbidden(
            &Path::new("spec"),
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
             'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}
