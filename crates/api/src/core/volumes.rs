//! PersistentVolumes and PersistentVolumeClaims.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Value, json};

use super::{pod_spec::affinity::node_selector, volume_sources};
use crate::{
    Change, Column, Definition, Rules, checks,
    defaults::{Constant, Default, apply},
    metadata::IMMUTABLE,
    print,
};

/// A piece of storage.
pub fn persistent_volume() -> Definition {
    Definition::cluster("", "v1", "PersistentVolume", "persistentvolumes")
        .answers_with_object()
        .short(&["pv"])
        .status()
        .columns(vec![
            Column::path("Capacity", "spec.capacity.storage"),
            Column::new("Access Modes", |volume, _| {
                print::access_modes(get_list(volume, "spec.accessModes")).into()
            }),
            Column::path("Reclaim Policy", "spec.persistentVolumeReclaimPolicy"),
            Column::new("Status", |volume, _| phase(volume).into()),
            Column::new("Claim", |volume, _| match get(volume, "spec.claimRef") {
                Some(claim) => format!("{}/{}", get_str(claim, "namespace"), get_str(claim, "name")).into(),
                None => "".into(),
            }),
            Column::path("StorageClass", "spec.storageClassName"),
            Column::new("VolumeAttributesClass", |volume, _| attributes_class(volume).into()),
            Column::path("Reason", "status.reason"),
            Column::age(),
            Column::new("VolumeMode", |volume, _| {
                print::or(get_str(volume, "spec.volumeMode"), "<unset>").into()
            })
            .wide(),
        ])
        .rules(Volume)
}

/// A request for storage.
pub fn claim() -> Definition {
    Definition::namespaced("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .answers_with_object()
        .short(&["pvc"])
        .status()
        .columns(vec![
            Column::new("Status", |claim, _| phase(claim).into()),
            Column::path("Volume", "spec.volumeName"),
            Column::new("Capacity", |claim, _| match get_str(claim, "spec.volumeName") {
                "" => "".into(),
                _ => get_str(claim, "status.capacity.storage").into(),
            }),
            Column::new("Access Modes", |claim, _| match get_str(claim, "spec.volumeName") {
                "" => "".into(),
                _ => print::access_modes(get_list(claim, "status.accessModes")).into(),
            }),
            Column::path("StorageClass", "spec.storageClassName"),
            Column::new("VolumeAttributesClass", |claim, _| attributes_class(claim).into()),
            Column::age(),
            Column::new("VolumeMode", |claim, _| {
                print::or(get_str(claim, "spec.volumeMode"), "<unset>").into()
            })
            .wide(),
        ])
        .rules(Claim)
}

fn phase(object: &Value) -> &str {
    if object.is_terminating() { "Terminating" } else { get_str(object, "status.phase") }
}

fn attributes_class(object: &Value) -> &str {
    print::or(get_str(object, "spec.volumeAttributesClassName"), "<unset>")
}

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(modes: &[Value], none: &str, path: &Path<'_>, problems: &mut Problems) {
    if modes.is_empty() {
        problems.required(path, none);
    }
    let (mut once_pod, mut others) = (false, false);
    for mode in modes {
        let text = mode.as_str().unwrap_or_default();
        once_pod |= text == "ReadWriteOncePod";
        others |= text != "ReadWriteOncePod" && ACCESS_MODES.contains(&text);
        if !ACCESS_MODES.contains(&text) {
            problems.not_supported(path, text, ACCESS_MODES);
        }
    }
    if once_pod && others {
        problems.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

fn class_name(object: &Value, path: &Path<'_>, problems: &mut Problems) {
    let name = get_str(object, "spec.storageClassName");
    if !name.is_empty() {
        problems.invalid_each(&path.child("storageClassName"), name, names::is_dns1123_subdomain(name));
    }
}

fn volume_mode(object: &Value, path: &Path<'_>, problems: &mut Problems) {
    checks::one_of(&object["spec"], "volumeMode", false, &["Block", "Filesystem"], path, problems);
}

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

struct Volume;

const VOLUME_DEFAULTS: &[Default] = &[
    ("spec.persistentVolumeReclaimPolicy", Constant::Text("Retain")),
    ("spec.volumeMode", Constant::Text("Filesystem")),
    ("spec.hostPath.type", Constant::Text("")),
    ("spec.iscsi.iscsiInterface", Constant::Text("default")),
];

impl Rules for Volume {
    fn set_defaults(&self, volume: &mut Value) {
        apply(volume, VOLUME_DEFAULTS);
    }

    fn prepare_create(&self, volume: &mut Value) {
        volume["status"] = json!({"phase": "Pending"});
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let volume = change.new;
        let spec = Path::new("spec");
        access_modes(get_list(volume, "spec.accessModes"), "", &spec.child("accessModes"), problems);
        match get(volume, "spec.capacity").and_then(Value::as_object) {
            None => {
                problems.required(&spec.child("capacity"), "");
                problems.not_supported(&spec.child("capacity"), Value::Null, &["storage"]);
            }
            Some(capacity) => {
                let path = spec.child("capacity");
                if !capacity.contains_key("storage") || capacity.len() > 1 {
                    problems.not_supported(&path, Value::Object(capacity.clone()), &["storage"]);
                }
                for (name, value) in capacity {
                    let text = value.as_str().unwrap_or_default();
                    if text.parse::<Quantity>().is_ok_and(|quantity| quantity.sign() <= 0) {
                        problems.invalid(&path.key(name), text, "must be greater than zero");
                    }
                }
            }
        }
        let policy = get_str(volume, "spec.persistentVolumeReclaimPolicy");
        if !["", "Retain", "Delete", "Recycle"].contains(&policy) {
            problems.not_supported(
                &spec.child("persistentVolumeReclaimPolicy"),
                policy,
                &["Delete", "Recycle", "Retain"],
            );
        }
        let affinity = get(volume, "spec.nodeAffinity");
        if let Some(affinity) = affinity {
            let at = spec.child("nodeAffinity");
            match affinity.get("required") {
                Some(required) => node_selector(required, &at.child("required"), problems),
                None => problems.required(&at.child("required"), "must specify required node constraints"),
            }
        }
        volume_sources::validate(&volume["spec"], volume_sources::PERSISTENT, &spec, problems);
        if get(volume, "spec.local").is_some() && affinity.is_none() {
            problems.required(&spec.child("nodeAffinity"), "Local volume requires node affinity");
        }
        if policy == "Recycle" && get_str(volume, "spec.hostPath.path") == "/" {
            problems.forbidden(
                &spec.child("persistentVolumeReclaimPolicy"),
                "may not be 'recycle' for a hostPath mount of '/'",
            );
        }
        class_name(volume, &spec, problems);
        volume_mode(volume, &spec, problems);
        if let Some(name) = get(volume, "spec.volumeAttributesClassName").and_then(Value::as_str) {
            let at = spec.child("volumeAttributesClassName");
            if name.is_empty() {
                problems.required(&at, "an empty string is disallowed");
            } else {
                problems.invalid_each(&at, name, names::is_dns1123_subdomain(name));
            }
            if get(volume, "spec.csi").is_none() {
                problems
                    .required(&spec.child("csi"), "has to be specified when using volumeAttributesClassName");
            }
        }
        if let Some(old) = change.old {
            for name in old["spec"].as_object().into_iter().flat_map(|map| map.keys()) {
                if !NOT_SOURCES.contains(&name.as_str()) && old["spec"].get(name) != volume["spec"].get(name)
                {
                    problems.forbidden(
                        &spec.child("persistentvolumesource"),
                        "spec.persistentvolumesource is immutable after creation",
                    );
                }
            }
            if change.differs("spec.volumeMode") {
                problems.invalid(&spec.child("volumeMode"), get_str(volume, "spec.volumeMode"), IMMUTABLE);
            }
            if get(old, "spec.nodeAffinity").is_some() && change.differs("spec.nodeAffinity") {
                problems.invalid(
                    &spec.child("nodeAffinity"),
                    get(volume, "spec.nodeAffinity").cloned().unwrap_or_default(),
                    "field is immutable, except for updating from beta label to GA",
                );
            }
        }
    }
}

struct Claim;

impl Rules for Claim {
    fn set_defaults(&self, claim: &mut Value) {
        apply(claim, &[("spec.volumeMode", Constant::Text("Filesystem"))]);
    }

    fn prepare_create(&self, claim: &mut Value) {
        claim["status"] = json!({"phase": "Pending"});
        mirror_data_source(claim);
    }

    fn prepare_update(&self, claim: &mut Value, _old: &Value, _subresource: &str) {
        mirror_data_source(claim);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let spec = Path::new("spec");
        validate_claim_spec(&change.new["spec"], &spec, problems);
        let Some(old) = change.old else { return };
        if change.subresource == "status" {
            return;
        }
        claim_update(change, old, &spec, problems);
    }
}

fn mirror_data_source(claim: &mut Value) {
    let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) else { return };
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => {
            spec.insert("dataSourceRef".into(), source);
        }
        (None, Some(reference)) if reference.get("namespace").is_none() => {
            spec.insert("dataSource".into(), reference);
        }
        _ => {}
    }
}

/// Rules of a claim's spec, also used for ephemeral volumes and StatefulSets.
pub fn validate_claim_spec(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    access_modes(
        get_list(spec, "accessModes"),
        "at least 1 access mode is required",
        &path.child("accessModes"),
        problems,
    );
    if let Some(selector) = spec.get("selector") {
        apimachinery::selector::validate_object(selector, &path.child("selector"), problems);
    }
    let resources = path.child("resources");
    let at = resources.key("storage");
    match get_str(spec, "resources.requests.storage") {
        "" => problems.required(&at, ""),
        text => {
            if text.parse::<Quantity>().is_ok_and(|quantity| quantity.sign() <= 0) {
                problems.invalid(&at, text, "must be greater than zero");
            }
        }
    }
    let whole = json!({"spec": spec});
    class_name(&whole, path, problems);
    volume_mode(&whole, path, problems);
    for field in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.get(field) else { continue };
        let at = path.child(field);
        for name in ["name", "kind"] {
            if get_str(source, name).is_empty() {
                problems.required(&at.child(name), "");
            }
        }
        if get_str(source, "apiGroup").is_empty() && get_str(source, "kind") != "PersistentVolumeClaim" {
            problems.invalid(
                &at,
                get_str(source, "kind"),
                "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
            );
        }
    }
}

fn claim_update(change: &Change<'_>, old: &Value, spec: &Path<'_>, problems: &mut Problems) {
    let strip = |claim: &Value| {
        let mut spec = claim.get("spec").cloned().unwrap_or_default();
        if let Some(map) = spec.as_object_mut() {
            map.shift_remove("resources");
            map.shift_remove("volumeAttributesClassName");
            if get_str(old, "spec.volumeName").is_empty() {
                map.shift_remove("volumeName");
            }
        }
        spec
    };
    if strip(change.new) != strip(old) {
        problems.forbidden(
            spec,
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims",
        );
    }
    let amount = |claim: &Value| get_str(claim, "spec.resources.requests.storage").parse::<Quantity>().ok();
    if let (Some(before), Some(after)) = (amount(old), amount(change.new)) {
        let resources = spec.child("resources");
        let requests = resources.child("requests");
        let status: Option<Quantity> = get_str(old, "status.capacity.storage").parse().ok();
        if after < before && status.is_none_or(|capacity| after <= capacity) {
            problems.forbidden(&requests.child("storage"), "field can not be less than status.capacity");
        }

        if after != before && get_str(old, "status.phase") != "Bound" {
            problems.forbidden(spec, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims");
        }
    }
}
