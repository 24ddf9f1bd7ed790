//! Bad objects across all kinds, as data: each is refused with the expected field path and kind of problem.

use std::collections::HashMap;

use apimachinery::{
    decode::{self, FieldValidation},
    field::{Problem, Problems},
    meta::MetaMut,
};
use serde_json::{Value, json};

use crate::{Change, Definition, builtins};

static TABLE: &str = include_str!("../testdata/bad-objects.txt");
static UPDATES: &str = include_str!("../testdata/updates.txt");

/// The object as it would be judged: decoded, defaulted, prepared.
fn prepared(definition: &Definition, object: Value) -> Value {
    let mut object = decode::value(object, &definition.schema, FieldValidation::Strict)
        .unwrap_or_else(|err| panic!("{} does not decode: {err}", definition.names.kind))
        .value;
    definition.set_defaults(&mut object);
    if object["metadata"].get("uid").is_none() {
        object.put_meta("uid", "u".into());
    }
    definition.prepare_create(&mut object);
    object
}

fn edit(object: &mut Value, text: &str) {
    if let Some(path) = text.strip_prefix('-') {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (parent, last) = pointer.rsplit_once('/').expect("a pointer has a slash");
        let parent = object.pointer_mut(parent).expect("the parent is there");
        parent.as_object_mut().expect("the parent is an object").shift_remove(last);
        return;
    }
    let (path, value) = text.split_once('=').expect("an edit has a value");
    let value: Value = serde_json::from_str(value).unwrap_or_else(|err| panic!("{text}: {err}"));
    let mut at = object;
    for step in path.split('.') {
        at = match step.parse::<usize>() {
            Ok(index) => &mut at[index],
            Err(_) => &mut at[step],
        };
    }
    *at = value;
}

fn edited(object: &Value, edits: &str) -> Value {
    let mut object = object.clone();
    edits.split(" & ").filter(|text| !text.is_empty()).for_each(|text| edit(&mut object, text));
    object
}

/// The object as it would be read back, with a version.
fn decoded(definition: &Definition, object: Value) -> Value {
    let mut object =
        decode::value(object, &definition.schema, FieldValidation::Strict).expect("decodes").value;
    definition.set_defaults(&mut object);
    object
}

fn problems(definition: &Definition, base: &Value, edits: &str, update: Option<&str>) -> Problems {
    match update {
        None => definition.validate(&Change::create(&prepared(definition, edited(base, edits)))),
        Some(subresource) => update_problems(definition, base, "", edits, subresource),
    }
}

fn update_problems(
    definition: &Definition,
    base: &Value,
    state: &str,
    edits: &str,
    subresource: &str,
) -> Problems {
    let mut old = prepared(definition, base.clone());
    old.put_meta("resourceVersion", "1".into());
    let old = if state.is_empty() { old } else { decoded(definition, edited(&old, state)) };
    let mut new = decoded(definition, edited(&old, edits));
    definition.prepare_update(&mut new, &old, subresource);
    definition.validate(&Change { new: &new, old: Some(&old), subresource })
}

/// Whether a problem is of a kind, and shows and says a text if one is given.
fn is_wanted(problem: &Problem, wanted: &str) -> bool {
    let (kind, text) = wanted.split_once(": ").unwrap_or((wanted, ""));
    format!("{:?}", problem.kind) == kind && problem.body().contains(text)
}

#[test]
fn updates_are_judged_by_what_was_there() {
    let kinds = builtins();
    let mut bases: HashMap<&str, (&Definition, Value)> = HashMap::new();
    for line in TABLE.lines().filter_map(|line| line.strip_prefix("base ")) {
        let (kind, text) = line.split_once(' ').expect("a base has an object");
        let base: Value = serde_json::from_str(text).expect("a base is JSON");
        let version = base["apiVersion"].as_str().unwrap_or_default();
        let is_it = |have: &&Definition| have.names.kind == kind && have.names.api_version() == version;
        bases.insert(kind, (kinds.iter().find(is_it).expect("a known kind"), base));
    }
    let mut failures = Vec::new();
    for line in UPDATES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<&str> = line.split("; ").map(str::trim).collect();
        let [kind, state, edits, path, wanted] = parts[..] else { panic!("five parts: {line}") };
        let (kind, subresource) = kind.split_once('~').expect("an update");
        let (definition, base) = &bases[kind];
        let found = update_problems(definition, base, state, edits, subresource);
        let hit = |problem: &Problem| problem.path == path && is_wanted(problem, wanted);
        if if path == "-" { !found.is_empty() } else { !found.iter().any(hit) } {
            failures.push(format!("{line}\n    got: {}", found.summary()));
        }
    }
    assert!(failures.is_empty(), "{} rows failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn bad_objects_are_refused_where_they_are_bad() {
    let kinds = builtins();
    let mut bases: HashMap<&str, (&Definition, Value)> = HashMap::new();
    let (mut count, mut failures) = (0, Vec::new());
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(rest) = line.strip_prefix("base ") {
            let (kind, text) = rest.split_once(' ').expect("a base has an object");
            let base: Value = serde_json::from_str(text).unwrap_or_else(|err| panic!("{kind}: {err}"));
            let version = base["apiVersion"].as_str().unwrap_or_default();
            let definition = kinds
                .iter()
                .find(|have| have.names.kind == kind && have.names.api_version() == version)
                .unwrap_or_else(|| panic!("no kind {kind}"));
            let found = problems(definition, &base, "", None);
            assert!(found.is_empty(), "the good {kind} is refused: {}", found.summary());
            let found = problems(definition, &base, "", Some(""));
            assert!(found.is_empty(), "the good {kind} cannot be updated: {}", found.summary());
            bases.insert(kind, (definition, base));
            continue;
        }
        let parts: Vec<&str> = line.split("; ").collect();
        let [kind, edits, path, wanted] = parts[..] else { panic!("four parts: {line}") };
        let (kind, update) = kind.split_once('~').map_or((kind, None), |(kind, sub)| (kind, Some(sub)));
        let (definition, base) = &bases[kind];
        let found = problems(definition, base, edits, update);
        let hit = |problem: &Problem| problem.path == path && is_wanted(problem, wanted);
        if !found.iter().any(hit) {
            failures.push(format!("{line}\n    got: {}", found.summary()));
        }
        count += 1;
    }
    assert!(failures.is_empty(), "{} of {count} rows failed:\n{}", failures.len(), failures.join("\n"));
    assert!(count >= 300, "only {count} rows");
}

fn kind(name: &str) -> Definition {
    builtins().into_iter().find(|kind| kind.names.kind == name).expect("a known kind")
}

#[test]
fn updates_lose_what_no_object_has_and_get_what_all_have() {
    let map = kind("ConfigMap");
    let mut new = json!({"metadata": {"name": "a", "selfLink": "/x"}});
    map.prepare_update(&mut new, &json!({"metadata": {"name": "a"}}), "");
    assert_eq!(new["metadata"], json!({"name": "a"}));

    let request = kind("CertificateSigningRequest");
    let old = json!({"metadata": {"name": "a"}, "spec": {}, "status": {}});
    let mut new = json!({"metadata": {"name": "a"}, "spec": {}});
    request.prepare_update(&mut new, &old, "status");
    assert_eq!(new["status"], json!({}));
    let mut new = json!({"metadata": {"name": "a"}, "spec": {}, "status": null});
    request.prepare_update(&mut new, &old, "status");
    assert_eq!(new["status"], json!({}));
}

#[test]
fn the_template_of_what_is_scaled_is_warned_of() {
    let deployment = kind("Deployment");
    let new = json!({"metadata": {"generation": 2}, "spec": {"template": {"spec": {"terminationGracePeriodSeconds": -1}}}});
    let old = json!({"metadata": {"generation": 1}});
    let change = Change { new: &new, old: Some(&old), subresource: "scale" };
    assert_eq!(deployment.warnings(&change).len(), 1);
}

#[test]
fn warnings_are_of_what_upstream_looks_at() {
    let controller = kind("ReplicationController");
    let of = |generation: i64, seconds: i64| {
        json!({"metadata": {"generation": generation},
            "spec": {"template": {"spec": {"terminationGracePeriodSeconds": seconds}}}})
    };
    let (old, new) = (of(1, -1), of(2, 0));
    let told =
        |new: &Value, old: Option<&Value>| controller.warnings(&Change { new, old, subresource: "" }).len();
    assert_eq!(told(&old, None), 1);
    // An update is judged by the template that goes.
    assert_eq!((told(&new, Some(&old)), told(&of(2, -1), Some(&of(1, 0)))), (1, 0));
    assert_eq!(told(&old, Some(&old)), 0);

    let slice = json!({"spec": {"driver": "Driver.io"}});
    assert_eq!(
        kind("ResourceSlice").warnings(&Change::create(&slice)),
        ["spec.driver: driver names should be lowercase; \"Driver.io\" contains uppercase characters"]
    );
    let node = json!({"spec": {"externalID": "x"}});
    assert_eq!(
        kind("Node").warnings(&Change::create(&node)),
        ["spec.externalID: this field is deprecated, and is unused by Kubernetes"]
    );
}

#[test]
fn what_follows_from_another_problem_is_not_told() {
    let places = |name: &str, object: Value| -> Vec<String> {
        let definition = kind(name);
        let found = definition.validate(&Change::create(&decoded(&definition, object)));
        found.iter().map(|problem| problem.path.clone()).collect()
    };
    let meta = json!({"name": "a", "namespace": "n"});
    let peer = json!({"ipBlock": {"cidr": "x", "except": ["y"]}});
    let policy = json!({"metadata": meta, "spec": {"ingress": [{"from": [peer]}]}});
    assert_eq!(places("NetworkPolicy", policy), ["spec.ingress[0].from[0].ipBlock.cidr"]);
    let port = json!({"port": "Bad_", "endPort": 3});
    let policy = json!({"metadata": meta, "spec": {"ingress": [{"ports": [port]}]}});
    assert_eq!(
        places("NetworkPolicy", policy)[..2],
        ["spec.ingress[0].ports[0].endPort", "spec.ingress[0].ports[0].port"]
    );
    let limited = json!({"limitResponse": {"type": "Reject"}});
    let level = json!({"metadata": {"name": "a"},
        "spec": {"type": "Limited", "limited": limited, "exempt": {"lendablePercent": -1}}});
    assert_eq!(places("PriorityLevelConfiguration", level), ["spec.exempt"]);
    let term = json!({"topologyKey": "k", "matchLabelKeys": ["Bad!"]});
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    let pod = json!({"metadata": meta,
        "spec": {"containers": [{"name": "c", "image": "i"}], "affinity": affinity}});
    assert_eq!(
        places("Pod", pod),
        ["spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys"]
    );
}

#[test]
fn volumes_have_their_defaults_wherever_they_are() {
    let mut attachment = json!({"spec": {"source": {"inlineVolumeSpec": {"rbd": {"image": "i"}}}}});
    kind("VolumeAttachment").set_defaults(&mut attachment);
    assert_eq!(attachment["spec"]["source"]["inlineVolumeSpec"]["rbd"]["pool"], "rbd");
}

#[test]
fn a_pod_may_bring_its_class_of_service_and_nothing_else() {
    let mut pod = json!({"spec": {}, "status": {"qosClass": "X", "phase": "Running"}});
    kind("Pod").prepare_create(&mut pod);
    assert_eq!((&pod["status"]["qosClass"], &pod["status"]["phase"]), (&json!("X"), &json!("Pending")));
}

#[test]
fn the_generation_of_a_template_goes_round() {
    let set = kind("DaemonSet");
    let last = i64::MAX.to_string();
    let of = |image: &str| {
        json!({"metadata": {"annotations": {"deprecated.daemonset.template.generation": last.as_str()}},
            "spec": {"template": {"spec": {"containers": [{"image": image}]}}}})
    };
    let mut new = of("b");
    set.prepare_update(&mut new, &of("a"), "");
    let generation = &new["metadata"]["annotations"]["deprecated.daemonset.template.generation"];
    assert_eq!(generation, &json!(i64::MIN.to_string()));
}

#[test]
fn many_terms_that_are_alike_are_not_told_by_the_square() {
    let class = kind("StorageClass");
    let terms = vec![json!({}); 1000];
    let object = json!({"metadata": {"name": "a"}, "provisioner": "a.io/b", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate", "allowedTopologies": terms});
    let found = class.validate(&Change::create(&object));
    assert!((1000..50_000).contains(&found.len()), "{}", found.len());
}

/// What a new object of a kind is refused for, with the words.
fn refused(kind: &str, object: Value) -> Vec<String> {
    let definition = builtins().into_iter().find(|one| one.names.kind == kind).expect("a built-in kind");
    let object = prepared(&definition, object);
    definition.validate(&Change::create(&object)).iter().map(|problem| problem.to_string()).collect()
}

#[test]
fn addresses_options_and_reserved_names_are_judged_strictly() {
    let slice = |address: &str, kind: &str| json!({"metadata": {"name": "a", "namespace": "n"}, "addressType": kind, "endpoints": [{"addresses": [address]}]});
    for (address, kind, why) in [
        ("010.0.0.1", "IPv4", "must not have leading 0s"),
        ("::ffff:10.0.0.1", "IPv6", "must not be an IPv4-mapped IPv6 address"),
    ] {
        let said = refused("EndpointSlice", slice(address, kind)).join("; ");
        assert!(said.contains(why), "{address}: {said}");
    }
    assert!(refused("EndpointSlice", slice("10.0.0.1", "IPv4")).is_empty());
    let volume = json!({"metadata": {"name": "a", "annotations": {"volume.beta.kubernetes.io/mount-options": "ro"}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}});
    let said = refused("PersistentVolume", volume).join("; ");
    assert!(said.contains("may not specify mount options for this volume type"), "{said}");
    for (name, value, why) in [
        ("system-mine", 5, "error: system-mine is not a known system priority class"),
        ("system-node-critical", 5, "error: value of system-node-critical PriorityClass must be 2000001000"),
    ] {
        let said = refused("PriorityClass", json!({"metadata": {"name": name}, "value": value})).join("; ");
        assert!(said.contains(why), "{said}");
    }
}
