//! Volumes, their classes and drivers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, MetaMut, get, get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, MetaCheck, Rules, StatusKeeps, checks,
    defaults::{Constant, Default, apply},
    print,
};

const GROUP: &str = "storage.k8s.io";

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    let flag = |name: &'static str, path: &'static str| Column {
        kind: "boolean".into(),
        ..Column::path(name, path)
    };
    let mut class = Definition::cluster(GROUP, "v1", "StorageClass", "storageclasses")
        .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
        .answers_with_object()
        .short(&["sc"])
        .columns(vec![
            Column::path("Provisioner", "provisioner"),
            Column::path("ReclaimPolicy", "reclaimPolicy"),
            Column::path("VolumeBindingMode", "volumeBindingMode"),
            Column::new("AllowVolumeExpansion", |class, _| (class["allowVolumeExpansion"] == true).into()),
            Column::age(),
        ])
        .rules(Class);
    class.name_cell = |class| match class.annotation("storageclass.kubernetes.io/is-default-class") {
        Some("true") => format!("{} (default)", class.name()).into(),
        _ => class.name().into(),
    };
    vec![
        Definition::cluster(GROUP, "v1", "CSIDriver", "csidrivers")
            .gated(&["spec.preventPodSchedulingIfMissing"])
            .answers_with_object()
            .versioned_updates()
            .columns(vec![
                flag("AttachRequired", "spec.attachRequired"),
                flag("PodInfoOnMount", "spec.podInfoOnMount"),
                flag("StorageCapacity", "spec.storageCapacity"),
                Column::new("TokenRequests", |driver, _| {
                    let list = get_list(driver, "spec.tokenRequests").iter();
                    let texts = list.map(|request| get_str(request, "audience"));
                    match print::join(texts).as_str() {
                        "" => "<unset>".into(),
                        text => text.into(),
                    }
                }),
                flag("RequiresRepublish", "spec.requiresRepublish"),
                Column::new("Modes", |driver, _| {
                    let modes =
                        get_list(driver, "spec.volumeLifecycleModes").iter().filter_map(Value::as_str);
                    print::join(modes).into()
                }),
                Column::age(),
            ])
            .rules(Driver),
        Definition::cluster(GROUP, "v1", "CSINode", "csinodes")
            .checks_update(&[MetaCheck::Whole])
            .answers_with_object()
            .versioned_updates()
            .columns(vec![
                Column::new("Drivers", |node, _| get_list(node, "spec.drivers").len().into()).integer(),
                Column::age(),
            ])
            .rules(Node),
        Definition::namespaced(GROUP, "v1", "CSIStorageCapacity", "csistoragecapacities")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .versioned_updates()
            .columns(vec![Column::created_at()])
            .rules(Capacity),
        class,
        Definition::cluster(GROUP, "v1", "VolumeAttachment", "volumeattachments")
            .checks_update(&[MetaCheck::Whole])
            .checks_status(&[MetaCheck::Whole])
            .answers_with_object()
            .versioned_updates()
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .columns(vec![
                Column { format: "name".into(), ..Column::path("Attacher", "spec.attacher") },
                Column::path("PV", "spec.source.persistentVolumeName"),
                Column::path("Node", "spec.nodeName"),
                flag("Attached", "status.attached"),
                Column::age(),
            ])
            .rules(Attachment),
        Definition::cluster(GROUP, "v1", "VolumeAttributesClass", "volumeattributesclasses")
            .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
            .answers_with_object()
            .short(&["vac"])
            .columns(vec![Column::path("DriverName", "driverName"), Column::age()])
            .rules(AttributesClass),
    ]
}

struct Class;

impl Rules for Class {
    fn set_defaults(&self, class: &mut Value) {
        apply(
            class,
            &[
                ("reclaimPolicy", Constant::Text("Delete")),
                ("volumeBindingMode", Constant::Text("Immediate")),
            ],
        );
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let class = change.new;
        provisioner(class, "provisioner", problems);
        parameters(class, problems);
        if !get_str(class, "reclaimPolicy").is_empty() {
            checks::one_of(class, "reclaimPolicy", false, &["Delete", "Retain"], &Path::ROOT, problems);
        }
        let modes = ["Immediate", "WaitForFirstConsumer"];
        checks::one_of_given(class, "volumeBindingMode", &modes, &Path::ROOT, problems);
        topologies(class, problems);
        if let Some(old) = change.old {
            for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
                checks::immutable(class, old, field, problems);
            }
        }
    }
}

/// Who makes volumes, in small letters.
fn provisioner(class: &Value, field: &str, problems: &mut Problems) {
    let name = get_str(class, field).to_lowercase();
    if name.is_empty() {
        problems.required(&Path::new(field), "");
    } else {
        problems.invalid_each(&Path::new(field), &name, names::is_qualified_name(&name));
    }
}

fn parameters(class: &Value, problems: &mut Problems) {
    let Some(map) = checks::map(class, "parameters") else { return };
    let path = Path::new("parameters");
    if map.len() > 512 {
        problems.too_long(&path, 512);
    }
    let mut total = 0;
    for (key, value) in map {
        if key.is_empty() {
            problems.invalid(&path, key.as_str(), "field can not be empty.");
        }
        total += key.len() + value.as_str().map_or(0, str::len);
    }
    if total > 256 * 1024 {
        problems.too_long(&path, 256 * 1024);
    }
}

/// How often one term is told to be like others.
const MOST_REPEATS: usize = 16;

fn topologies(class: &Value, problems: &mut Problems) {
    let list = Path::new("allowedTopologies");
    let terms = get_list(class, "allowedTopologies");
    // What a term asks for, whatever the order of its parts.
    let meaning = |term: &Value| {
        let expressions = get_list(term, "matchLabelExpressions").iter();
        let one = |expression: &Value| {
            let values = get_list(expression, "values").iter().filter_map(Value::as_str);
            (get_str(expression, "key").to_owned(), values.map(str::to_owned).collect::<BTreeSet<_>>())
        };
        expressions.map(one).collect::<BTreeMap<_, _>>()
    };
    let mut known: HashMap<_, usize> = HashMap::new();
    for (index, term) in terms.iter().enumerate() {
        let at = list.index(index);
        let expressions = at.child("matchLabelExpressions");
        let mut seen = HashSet::new();
        for (number, expression) in get_list(term, "matchLabelExpressions").iter().enumerate() {
            let at = expressions.index(number);
            let key = get_str(expression, "key");
            let values = get_list(expression, "values");
            if values.is_empty() {
                problems.required(&at.child("values"), "");
            }
            let list = at.child("values");
            let mut given = HashSet::new();
            for (number, value) in values.iter().enumerate() {
                if !given.insert(value.as_str()) {
                    problems.duplicate(&list.index(number), value.clone());
                }
            }
            problems.invalid_each(&at.child("key"), key, names::is_label_key(key));
            if !seen.insert(key) {
                problems.duplicate(&at.child("key"), key);
            }
        }
        // Each empty term is like all those that upstream starts its comparison with.
        let own = meaning(term);
        let more = if own.is_empty() { terms.len() } else { 0 };
        let before = known.entry(own).or_default();
        // Upstream says it once for each that is alike; nobody counts them when they are many.
        for _ in 0..(*before + more).min(MOST_REPEATS) {
            problems.duplicate(&expressions, "");
        }
        *before += 1;
    }
}

struct Driver;

const DRIVER: &[Default] = &[
    ("spec.attachRequired", Constant::Bool(true)),
    ("spec.podInfoOnMount", Constant::Bool(false)),
    ("spec.storageCapacity", Constant::Bool(false)),
    ("spec.fsGroupPolicy", Constant::Text("ReadWriteOnceWithFSType")),
    ("spec.requiresRepublish", Constant::Bool(false)),
    ("spec.seLinuxMount", Constant::Bool(false)),
];

impl Rules for Driver {
    fn set_defaults(&self, driver: &mut Value) {
        apply(driver, DRIVER);
        if driver["spec"].is_object() && get_list(driver, "spec.volumeLifecycleModes").is_empty() {
            driver["spec"]["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    }

    /// The generation counts changes, from none at all.
    fn prepare_update(&self, new: &mut Value, old: &Value, _subresource: &str) {
        if !apimachinery::meta::same(&new["spec"], &old["spec"]) {
            new.put_meta("generation", (old.generation() + 1).into());
        }
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        let spec = &change.new["spec"];
        let unchanged = |old: &Value| get(old, "spec.tokenRequests") == get(change.new, "spec.tokenRequests");
        if change.old.is_some_and(unchanged)
            || get_list(spec, "tokenRequests").is_empty()
            || spec["serviceAccountTokenInSecrets"].is_boolean()
        {
            return Vec::new();
        }
        vec!["spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".into()]
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let driver = change.new;
        let path = Path::new("spec");
        checks::one_of(
            &driver["spec"],
            "fsGroupPolicy",
            false,
            &["File", "None", "ReadWriteOnceWithFSType"],
            &path,
            problems,
        );
        let list = path.child("tokenRequests");
        let mut seen: Vec<&str> = Vec::new();
        for (index, request) in get_list(driver, "spec.tokenRequests").iter().enumerate() {
            let at = list.index(index);
            let audience = get_str(request, "audience");
            if seen.contains(&audience) {
                problems.duplicate(&at.child("audience"), audience);
            }
            seen.push(audience);
            if request["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
                problems.invalid(
                    &at.child("expirationSeconds"),
                    request["expirationSeconds"].clone(),
                    "may not specify a duration less than 10 minutes",
                );
            }
        }
        for mode in get_list(driver, "spec.volumeLifecycleModes") {
            let text = mode.as_str().unwrap_or_default();
            if !["Persistent", "Ephemeral"].contains(&text) {
                problems.not_one_of(&path.child("volumeLifecycleModes"), text, &["Persistent", "Ephemeral"]);
            }
        }
        if let Some(seconds) = driver["spec"]["nodeAllocatableUpdatePeriodSeconds"].as_i64()
            && seconds < 10
        {
            problems.invalid(
                &path.child("nodeAllocatableUpdatePeriodSeconds"),
                seconds,
                "must be greater than or equal to 10 seconds",
            );
        }
        if let Some(in_secrets) = driver["spec"].get("serviceAccountTokenInSecrets")
            && get_list(driver, "spec.tokenRequests").is_empty()
        {
            problems.invalid(
                &path.child("serviceAccountTokenInSecrets"),
                in_secrets.clone(),
                "serviceAccountTokenInSecrets is set but no tokenRequests are specified",
            );
        }
        if let Some(old) = change.old {
            let (after, before) = (&driver["spec"]["attachRequired"], &old["spec"]["attachRequired"]);
            if after != before {
                // Upstream spells it so.
                problems.invalid(&path.child("attachedRequired"), after.clone(), crate::metadata::IMMUTABLE);
            }
            checks::immutable(driver, old, "spec.volumeLifecycleModes", problems);
        }
    }
}

fn driver_name(name: &str, path: &Path<'_>, problems: &mut Problems) {
    if name.is_empty() {
        problems.required(path, "");
        return;
    }
    if name.len() > 63 {
        problems.too_long(path, 63);
    }
    problems.invalid_each(path, name, names::is_dns1123_subdomain(&name.to_lowercase()));
}

struct Node;

impl Rules for Node {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let list = path.child("drivers");
        let mut seen: Vec<&str> = Vec::new();
        for (index, driver) in get_list(change.new, "spec.drivers").iter().enumerate() {
            let at = list.index(index);
            let name = get_str(driver, "name");
            driver_name(name, &at.child("name"), problems);
            if seen.contains(&name) {
                problems.duplicate(&at.child("name"), name);
            }
            seen.push(name);
            let id = get_str(driver, "nodeID");
            if id.is_empty() {
                problems.required(&at.child("nodeID"), "");
            } else if id.len() > 256 {
                problems.invalid(&at.child("nodeID"), id, "must be 256 characters or less");
            }
            let mut keys: Vec<&str> = Vec::new();
            for key in get_list(driver, "topologyKeys") {
                let key = key.as_str().unwrap_or_default();
                if key.is_empty() {
                    problems.required(&at, "");
                }
                if keys.contains(&key) {
                    problems.duplicate(&at, key);
                }
                keys.push(key);
                problems.invalid_each(&at, key, names::is_qualified_name(key));
            }
            if let Some(allocatable) = driver.get("allocatable") {
                checks::non_negative(allocatable, "count", &at.child("allocatable"), problems);
            }
        }
        let fixed = |driver: &Value| {
            let keys = driver.get("topologyKeys").cloned().unwrap_or_default();
            json!({
                "Name": driver["name"], "NodeID": get_str(driver, "nodeID"), "TopologyKeys": keys, "Allocatable": null,
            })
        };
        for before in change.old.into_iter().flat_map(|old| get_list(old, "spec.drivers")) {
            let same_name = |driver: &&Value| driver["name"] == before["name"];
            for after in get_list(change.new, "spec.drivers").iter().filter(same_name) {
                if fixed(after) != fixed(before) {
                    problems.invalid(&list, fixed(after), crate::metadata::IMMUTABLE);
                }
            }
        }
    }
}

struct Capacity;

impl Rules for Capacity {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let object = change.new;
        if let Some(topology) = object.get("nodeTopology") {
            apimachinery::selector::validate_object(topology, &Path::new("nodeTopology"), problems);
        }
        let class = get_str(object, "storageClassName");
        problems.invalid_each(&Path::new("storageClassName"), class, names::is_dns1123_subdomain(class));
        let text = get_str(object, "capacity");
        if text.parse::<Quantity>().is_ok_and(|quantity| quantity.sign() < 0) {
            problems.invalid(&Path::new("capacity"), text, checks::NEGATIVE);
        }
        if let Some(old) = change.old {
            for field in ["nodeTopology", "storageClassName"] {
                checks::immutable(object, old, field, problems);
            }
        }
    }
}

struct Attachment;

impl Rules for Attachment {
    fn set_defaults(&self, object: &mut Value) {
        if let Some(volume) = object.pointer_mut("/spec/source/inlineVolumeSpec") {
            apply(volume, crate::core::pod_spec::defaults::SOURCES);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({"attached": false});
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let spec = &change.new["spec"];
        let status = Path::new("status");
        for field in ["attachError", "detachError"] {
            let most = i64::from(i32::MAX);
            checks::in_range(
                &change.new["status"][field],
                "errorCode",
                0,
                most,
                &status.child(field),
                problems,
            );
        }
        driver_name(get_str(spec, "attacher"), &path.child("attacher"), problems);
        let source = &spec["source"];
        let at = path.child("source");
        match (get(source, "inlineVolumeSpec"), source.get("persistentVolumeName")) {
            (None, None) => {
                problems
                    .required(&at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
            }
            (Some(_), Some(_)) => {
                problems
                    .forbidden(&at, "must specify exactly one of inlineVolumeSpec and persistentVolumeName");
            }
            (None, Some(name)) if name == "" => {
                problems.required(
                    &at.child("persistentVolumeName"),
                    "must specify non empty persistentVolumeName",
                );
            }
            _ => {}
        }
        let node = get_str(spec, "nodeName");
        problems.invalid_each(&path.child("nodeName"), node, names::is_dns1123_subdomain(node));
        checks::syntax(source, "persistentVolumeName", names::is_dns1123_subdomain, &at, problems);
        if let Some(old) = change.old {
            checks::immutable_struct(change.new, old, "spec", "storage.VolumeAttachmentSpec", problems);
        }
    }
}

struct AttributesClass;

impl Rules for AttributesClass {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        if let Some(old) = change.old {
            for field in ["driverName", "parameters"] {
                if old.get(field) != change.new.get(field) {
                    problems.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
                }
            }
        }
        provisioner(change.new, "driverName", problems);
        parameters(change.new, problems);
        if checks::map(change.new, "parameters").is_none_or(serde_json::Map::is_empty) {
            problems.required(&Path::new("parameters"), "must contain at least one key/value pair");
        }
    }
}
