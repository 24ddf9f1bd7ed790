//! PersistentVolumes and PersistentVolumeClaims.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Value, json};

use super::{
    pod_spec::{affinity::node_selector, defaults::SOURCES},
    volume_sources, volume_update,
};
use crate::{
    Change, Column, Definition, MetaCheck, Rules, checks,
    defaults::{Constant, Default, apply},
    print,
};

/// A piece of storage.
pub fn persistent_volume() -> Definition {
    Definition::cluster("", "v1", "PersistentVolume", "persistentvolumes")
        .checks_update(&[MetaCheck::Whole, MetaCheck::Whole])
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
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
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

struct Volume;

/// Sources that nothing serves any more, as they are written and as they are shown, and since when.
const OLD_SOURCES: [(&str, &str, &str); 6] = [
    ("cephfs", "cephfs", "v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "photonPersistentDisk", "v1.11, non-functional in v1.16+"),
    ("scaleIO", "scaleIO", "v1.16, non-functional in v1.22+"),
    ("storageos", "storageOS", "v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "v1.25, non-functional in v1.26+"),
    ("rbd", "rbd", "v1.28, non-functional in v1.31+"),
];

/// Warnings about annotations that fields have taken the place of.
fn old_annotations(object: &Value) -> Vec<String> {
    let known = [("storage-class", "v1.8", "storageClassName"), ("mount-options", "v1.31", "mountOptions")];
    let used = known
        .iter()
        .filter(|(name, ..)| object.annotation(&format!("volume.beta.kubernetes.io/{name}")).is_some());
    used.map(|(name, since, field)| {
        let place = format!("metadata.annotations[volume.beta.kubernetes.io/{name}]");
        format!("{place}: deprecated since {since}; use \"{field}\" attribute instead")
    })
    .collect()
}

const VOLUME_DEFAULTS: &[Default] = &[
    ("spec.persistentVolumeReclaimPolicy", Constant::Text("Retain")),
    ("spec.volumeMode", Constant::Text("Filesystem")),
    ("status", Constant::Empty),
    ("status.phase", Constant::Text("Pending")),
];

impl Rules for Volume {
    fn set_defaults(&self, volume: &mut Value) {
        apply(volume, VOLUME_DEFAULTS);
        if let Some(spec) = volume.get_mut("spec") {
            apply(spec, SOURCES);
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let (volume, mut out) = (change.new, old_annotations(change.new));
        if get_str(volume, "spec.persistentVolumeReclaimPolicy") == "Recycle" {
            let better = "Instead, the recommended approach is to use dynamic provisioning.";
            out.push(format!(
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. {better}"
            ));
        }
        for (source, shown, since) in OLD_SOURCES {
            if volume["spec"].get(source).is_some() {
                out.push(format!("spec.{shown}: deprecated in {since}"));
            }
        }
        out
    }

    fn prepare_create(&self, volume: &mut Value) {
        volume["status"] = json!({"phase": "Pending"});
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            return;
        }
        let found = problems.len();
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
                    problems.not_supported(&path, checks::sorted(capacity), &["storage"]);
                }
                for (name, value) in capacity {
                    let text = value.as_str().unwrap_or_default();
                    if text.parse::<Quantity>().is_ok_and(|quantity| quantity.sign() <= 0) {
                        problems.invalid(&path.key(name), text, "must be greater than zero");
                    }
                }
            }
        }
        mount_options(volume, problems);
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
        let portal = format!("{}:{}", volume.name(), get_str(volume, "spec.iscsi.targetPortal"));
        if get(volume, "spec.iscsi.initiatorName").is_some() && portal.len() > 64 {
            problems.invalid(
                &spec.child("iscsi.targetportal"),
                get_str(volume, "spec.iscsi.targetPortal"),
                "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.",
            );
        }
        let first = volume_sources::validate(&volume["spec"], volume_sources::PERSISTENT, &spec, problems);
        if first == Some("local") && affinity.is_none() {
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
            problems.repeat_since(found);
            volume_update::volume(volume, old, problems);
        }
    }
}

struct Claim;

impl Rules for Claim {
    fn set_defaults(&self, claim: &mut Value) {
        apply(
            claim,
            &[
                ("spec.volumeMode", Constant::Text("Filesystem")),
                ("status", Constant::Empty),
                ("status.phase", Constant::Text("Pending")),
            ],
        );
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let mut out = old_annotations(change.new);
        out.retain(|text| text.contains("storage-class"));
        for kind in ["requests", "limits"] {
            let text = get_str(change.new, &format!("spec.resources.{kind}.storage"));
            if text.parse::<Quantity>().is_ok_and(|amount| amount.millis() % 1000 != 0) {
                let place = format!("spec.resources.{kind}[storage]");
                out.push(format!("{place}: fractional byte value {text:?} is invalid, must be an integer"));
            }
        }
        out
    }

    fn prepare_create(&self, claim: &mut Value) {
        claim["status"] = json!({"phase": "Pending"});
        volume_update::drop_far_source(&mut claim["spec"], &Value::Null);
        volume_update::drop_odd_source(&mut claim["spec"], &Value::Null);
        mirror_data_source(claim);
    }

    fn prepare_update(&self, claim: &mut Value, old: &Value, _subresource: &str) {
        volume_update::drop_far_source(&mut claim["spec"], &old["spec"]);
        volume_update::drop_odd_source(&mut claim["spec"], &old["spec"]);
        mirror_data_source(claim);
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if change.subresource == "status" {
            volume_update::claim_status(change.new, problems);
            return;
        }
        let spec = Path::new("spec");
        let named = |field: &str| change.old.is_some_and(|old| get(old, field).is_some());
        let any_group = named("spec.dataSource.apiGroup") || named("spec.dataSourceRef.apiGroup");
        validate_claim_spec(&change.new["spec"], any_group, &spec, problems);
        if let Some(old) = change.old {
            volume_update::claim(change.new, old, problems);
        }
    }
}

/// Volumes that are mounted with options; the others may not have the annotation of old.
const TAKE_OPTIONS: &[&str] = &[
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
    "flocker",
    "scaleIO",
    "fc",
    "portworxVolume",
    "storageos",
    "csi",
];

fn mount_options(volume: &Value, problems: &mut Problems) {
    const ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
    let takes = TAKE_OPTIONS.iter().any(|source| !volume["spec"][*source].is_null());
    if !takes && volume.annotation(ANNOTATION).is_some() {
        let at = Path::new("metadata");
        let at = at.child("annotations");
        problems.forbidden(&at.child(ANNOTATION), "may not specify mount options for this volume type");
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

/// Rules of a claim's spec, also used for ephemeral volumes and StatefulSets. `any_group`: whatever it calls the group of
/// its source was taken once.
pub fn validate_claim_spec(spec: &Value, any_group: bool, path: &Path<'_>, problems: &mut Problems) {
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
        if !get_str(source, "apiGroup").is_empty() && !any_group {
            checks::syntax(source, "apiGroup", names::is_dns1123_subdomain, &at, problems);
        }
        if field == "dataSourceRef" && !get_str(source, "namespace").is_empty() {
            checks::syntax(source, "namespace", names::is_dns1123_label, &at, problems);
        }
    }
    data_sources(spec, path, problems);
    let attributes = get_str(spec, "volumeAttributesClassName");
    if !attributes.is_empty() {
        let at = path.child("volumeAttributesClassName");
        problems.invalid_each(&at, attributes, names::is_dns1123_subdomain(attributes));
    }
}

/// The two ways to name a source name the same one. Upstream shows a path that shows as nothing.
fn data_sources(spec: &Value, path: &Path<'_>, problems: &mut Problems) {
    let (Some(source), Some(reference)) = (spec.get("dataSource"), spec.get("dataSourceRef")) else { return };
    if !get_str(reference, "namespace").is_empty() {
        let why = "may not be specified when dataSourceRef.namespace is specified";
        problems.invalid(path, json!({}), why);
    } else if ["apiGroup", "kind", "name"].iter().any(|field| source.get(field) != reference.get(field)) {
        problems.invalid(path, json!({}), "must match dataSourceRef");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_date_is_warned_of() {
        let warned = |definition: Definition, object: Value| {
            definition.warnings(&Change { new: &object, old: None, subresource: "" })
        };
        assert_eq!(
            warned(
                persistent_volume(),
                json!({
                    "metadata": {"annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}},
                    "spec": {"storageos": {}, "persistentVolumeReclaimPolicy": "Recycle"},
                })
            ),
            [
                "metadata.annotations[volume.beta.kubernetes.io/mount-options]: deprecated since v1.31; use \"mountOptions\" attribute instead",
                "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
                "spec.storageOS: deprecated in v1.22, non-functional in v1.25+",
            ]
        );
        assert_eq!(
            warned(
                claim(),
                json!({
                    "metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "x"}},
                    "spec": {"resources": {"requests": {"storage": "1500m"}, "limits": {"storage": "2"}}},
                })
            ),
            [
                "metadata.annotations[volume.beta.kubernetes.io/storage-class]: deprecated since v1.8; use \"storageClassName\" attribute instead",
                "spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer",
            ]
        );
        let mut volume = json!({"spec": {"azureDisk": {"diskName": "a"}, "iscsi": {}}});
        persistent_volume().set_defaults(&mut volume);
        assert_eq!(volume["spec"]["azureDisk"]["readOnly"], false);
        assert_eq!(volume["spec"]["iscsi"]["iscsiInterface"], "default");
    }
}
