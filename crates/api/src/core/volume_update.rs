//! What may change in PersistentVolumes and in claims of them.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_str, remove, same},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value};

use crate::{difference, go_form, metadata::IMMUTABLE, prepare::copy_field};

/// Names of the fields of a PersistentVolumeSpec that are not volume sources.
const NOT_SOURCES: &[&str] = &[
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

/// Checks an update of a volume.
pub fn volume(volume: &Value, old: &Value, problems: &mut Problems) {
    let source = |volume: &Value| {
        let mut spec = volume["spec"].as_object().cloned().unwrap_or_default();
        spec.retain(|name, _| !NOT_SOURCES.contains(&name.as_str()));
        Value::Object(spec)
    };
    let (mut after, before) = (source(volume), source(old));
    // How to expand may be said later, once.
    if before.get("csi").is_some() && get(&before, "csi.controllerExpandSecretRef").is_none() {
        remove(&mut after, "csi.controllerExpandSecretRef");
    }
    if !same(&after, &before) {
        let shown = |source: &Value| go_form::shown(source, "PersistentVolumeSource");
        problems.forbidden(
            &Path::new("spec.persistentvolumesource"),
            format!(
                "spec.persistentvolumesource is immutable after creation\n{}",
                difference::lines(&shown(&before), &shown(&after))
            ),
        );
    }
    unchanged(volume, old, "volumeMode", IMMUTABLE, problems);
    if get(old, "spec.nodeAffinity").is_some() && without_beta(volume) != without_beta(old) {
        problems.invalid(
            &Path::new("nodeAffinity"),
            go_form::shown_or_null(get(volume, "spec.nodeAffinity"), "VolumeNodeAffinity"),
            "field is immutable, except for updating from beta label to GA",
        );
    }
    let class = |volume: &Value| get(volume, "spec.volumeAttributesClassName").is_some();
    if class(old) && !class(volume) {
        problems.forbidden(
            &Path::new("spec.volumeAttributesClassName"),
            "update from non-nil value to nil is forbidden",
        );
    }
}

/// A field of the spec, which upstream names without saying where it stands.
fn unchanged(new: &Value, old: &Value, field: &str, why: &str, problems: &mut Problems) {
    let (after, before) = (new["spec"].get(field), old["spec"].get(field));
    if after != before {
        problems.invalid(&Path::new(field), after.cloned().unwrap_or_default(), why);
    }
}

/// The node affinity in today's words: who still has those of the past may say them anew.
fn without_beta(volume: &Value) -> String {
    const WORDS: &[(&str, &str)] = &[
        ("\"beta.kubernetes.io/os\"", "\"kubernetes.io/os\""),
        ("\"beta.kubernetes.io/arch\"", "\"kubernetes.io/arch\""),
        ("\"beta.kubernetes.io/instance-type\"", "\"node.kubernetes.io/instance-type\""),
        ("\"failure-domain.beta.kubernetes.io/zone\"", "\"topology.kubernetes.io/zone\""),
        ("\"failure-domain.beta.kubernetes.io/region\"", "\"topology.kubernetes.io/region\""),
    ];
    let text = get(volume, "spec.nodeAffinity").map(Value::to_string).unwrap_or_default();
    WORDS.iter().fold(text, |text, (past, today)| text.replace(past, today))
}

/// A source in another namespace is behind a gate that is closed, unless the claim has a source already.
pub fn drop_far_source(spec: &mut Value, old: &Value) {
    if old.get("dataSourceRef").is_none() && !get_str(spec, "dataSourceRef.namespace").is_empty() {
        copy_field(spec, &Value::Null, "dataSourceRef");
    }
}

/// A claim that has no data source does not get an odd one by the field of old: it was always ignored.
pub fn drop_odd_source(spec: &mut Value, old: &Value) {
    if old.get("dataSource").is_some()
        || old.get("dataSourceRef").is_some()
        || spec.get("dataSourceRef").is_some()
    {
        return;
    }
    let known = spec.get("dataSource").is_some_and(|source| {
        matches!(
            (get_str(source, "kind"), get_str(source, "apiGroup")),
            ("PersistentVolumeClaim", "") | ("VolumeSnapshot", "snapshot.storage.k8s.io")
        )
    });
    if !known {
        copy_field(spec, &Value::Null, "dataSource");
    }
}

const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Checks an update of a claim.
pub fn claim(claim: &Value, old: &Value, problems: &mut Problems) {
    let spec = Path::new("spec");
    let (mut after, mut before) = (claim["spec"].clone(), old["spec"].clone());
    if get_str(old, "spec.volumeName").is_empty() {
        copy_field(&mut before, &after, "volumeName");
    }
    storage_class(claim, old, &mut after, problems);
    if get_str(claim, "status.phase") == "Bound" {
        if let Some(Value::Object(requests)) =
            after.get_mut("resources").and_then(|resources| resources.get_mut("requests"))
        {
            let storage = get(old, "spec.resources.requests.storage").cloned().unwrap_or_default();
            requests.insert("storage".into(), storage);
        }
        copy_field(&mut after, &before, "volumeAttributesClassName");
    }
    if !same(&after, &before) {
        let shown = |spec: &Value| go_form::shown(spec, "PersistentVolumeClaimSpec");
        problems.forbidden(
            &spec,
            format!(
                "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{}",
                difference::lines(&shown(&before), &shown(&after))
            ),
        );
    }
    let amount = |claim: &Value, path: &str| get_str(claim, path).parse::<Quantity>().ok();
    let asked = |claim: &Value| amount(claim, "spec.resources.requests.storage");
    let has = amount(old, "status.capacity.storage");
    let less = match (asked(claim), asked(old)) {
        // Without a capacity there is nothing that a claim could have been too large for, but it is not for nothing.
        (Some(after), Some(before)) => after < before && has.map_or(after.sign() <= 0, |has| after <= has),
        (None, before) => before.is_some(),
        (Some(_), None) => false,
    };
    if less {
        problems.forbidden(
            &Path::new("spec.resources.requests.storage"),
            "field can not be less than status.capacity",
        );
    }
    unchanged(claim, old, "volumeMode", IMMUTABLE, problems);
    if get(old, "status.currentVolumeAttributesClassName").is_some() {
        let at = Path::new("spec.volumeAttributesClassName");
        let told = match (
            get(claim, "spec.volumeAttributesClassName"),
            get(old, "spec.volumeAttributesClassName"),
        ) {
            (after, before) if after == before => None,
            (None, _) => Some("nil"),
            (Some(after), _) => (after == "").then_some("empty string"),
        };
        if let Some(what) = told {
            problems.forbidden(
                &at,
                format!(
                    "update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil"
                ),
            );
        }
    }
}

/// The class of a claim may be said once: by who moves it from the annotation of old, or by who fills in a default.
fn storage_class(claim: &Value, old: &Value, after: &mut Value, problems: &mut Problems) {
    let (new_note, old_note) = (claim.annotation(CLASS), old.annotation(CLASS));
    let new_name = get(claim, "spec.storageClassName").and_then(Value::as_str);
    let unnamed = get(old, "spec.storageClassName").is_none();
    let moved =
        old_note.is_some() && unnamed && new_name == old_note && (new_note.is_none() || new_note == old_note);
    if moved {
        copy_field(after, &Value::Null, "storageClassName");
        return;
    }
    if new_note.unwrap_or_default() != old_note.unwrap_or_default() {
        let path = Path::new("metadata.annotations");
        problems.invalid(&path.child(CLASS), new_note.unwrap_or_default(), IMMUTABLE);
    }
    if unnamed && new_name.is_some() && (old_note.is_none() || old_note == new_name) {
        copy_field(after, &Value::Null, "storageClassName");
    }
}

const RESIZING: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

/// Checks a write of a claim's status.
pub fn claim_status(claim: &Value, problems: &mut Problems) {
    let status = Path::new("status");
    let map = |field: &str| -> Map<String, Value> {
        claim["status"].get(field).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let path = status.child("capacity");
    for (name, amount) in map("capacity") {
        positive(&amount, &path.key(&name), problems);
    }
    let path = status.child("allocatedResourceStatuses");
    for (name, word) in map("allocatedResourceStatuses") {
        resource_name(&name, &path, problems);
        if !RESIZING.iter().any(|known| word == *known) {
            problems.not_supported(&path, name.as_str(), RESIZING);
        }
    }
    let path = status.child("allocatedResources");
    for (name, amount) in map("allocatedResources") {
        if resource_name(&name, &path, problems) {
            positive(&amount, &path.key(&name), problems);
        }
    }
}

fn positive(amount: &Value, path: &Path<'_>, problems: &mut Problems) {
    let text = amount.as_str().unwrap_or_default();
    if text.parse::<Quantity>().is_ok_and(|quantity| quantity.sign() < 0) {
        problems.invalid(path, text, "must be a valid resource quantity");
    }
}

/// Of the resources without a domain, only storage can grow.
fn resource_name(name: &str, path: &Path<'_>, problems: &mut Problems) -> bool {
    let complaints = names::is_qualified_name(name);
    let fine = complaints.is_empty();
    problems.invalid_each(path, name, complaints);
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    if fine && native && name != "storage" {
        problems.not_supported(path, name, &["storage"]);
        return false;
    }
    fine
}
