//! What becomes of a pod in a situation, in the words of upstream's v1.36 scheduler, which was run in the same ones.

use serde_json::{Value, json};

use std::sync::Arc;

use super::*;
use client::Key;

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";

/// Puts an object where the informers would.
fn put(cache: &mut Cache, kind: &str, object: Value) {
    let name: Box<str> = object["metadata"]["name"].as_str().unwrap().into();
    let key = Key::new("n", &name);
    macro_rules! read {
        () => {
            Arc::new(serde_json::from_value(object).unwrap())
        };
    }
    match kind {
        "Node" => cache.set_node(read!()),
        "Pod" => cache.set_pod(read!()),
        "PVC" => drop(cache.storage.claims.insert(key, read!())),
        "PV" => drop(cache.storage.volumes.insert(name, read!())),
        "StorageClass" => drop(cache.storage.classes.insert(name, read!())),
        "CSINode" => drop(cache.storage.csi_nodes.insert(name, read!())),
        "CSIDriver" => drop(cache.storage.csi_drivers.insert(name, read!())),
        "ResourceClaim" => drop(cache.devices.claims.insert(key, read!())),
        "ResourceSlice" => drop(cache.devices.slices.insert(name, read!())),
        "DeviceClass" => drop(cache.devices.classes.insert(name, read!())),
        other => panic!("{other}?"),
    }
}

/// The node that a pod comes to, or why it comes to none; with what preemption and others have to say.
fn outcome(objects: &[(&str, Value)], spec: Value) -> Result<String, String> {
    let mut cache = Cache::default();
    for (kind, object) in objects {
        put(&mut cache, kind, object.clone());
    }
    let (framework, pod) = (plugins::default_framework(), pod(spec));
    match framework.find(&pod, &mut cache, 0) {
        Ok(found) => {
            let (best, mut cycle) = framework.choose(found, &pod, &mut cache, &[]);
            let node = cache.nodes()[best].name().to_owned();
            framework.reserve(&mut cycle, &pod, &node, &mut cache).unwrap();
            Ok(node)
        }
        Err(refused) => {
            let (mut failure, cycle) = *refused;
            framework.remedy(&cycle, &pod, &mut failure, &mut cache, 0, false);
            Err(failure.to_string())
        }
    }
}

fn node(name: &str, more: Value) -> (&'static str, Value) {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
    });
    merge(&mut node, more);
    ("Node", node)
}

fn object(kind: &'static str, name: &str, more: Value) -> (&'static str, Value) {
    let mut object = json!({"metadata": {"name": name, "namespace": "n"}});
    merge(&mut object, more);
    (kind, object)
}

fn placed(node: &str, more: Value) -> (&'static str, Value) {
    let mut pod = json!({"metadata": {"uid": "x", "labels": {"app": "web"}}, "spec": {"nodeName": node}});
    merge(&mut pod, more);
    object("Pod", "x", pod)
}

fn with_claim(name: &str) -> Value {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": name}});
    json!({"containers": [{}], "volumes": [volume]})
}

fn pvc(name: &str, class: &str, volume: &str, mode: &str) -> (&'static str, Value) {
    object(
        "PVC",
        name,
        json!({"spec": {"storageClassName": class, "volumeName": volume, "accessModes": [mode],
        "resources": {"requests": {"storage": "1Gi"}}}}),
    )
}

fn class(name: &str, mode: &str, provisioner: &str) -> (&'static str, Value) {
    object("StorageClass", name, json!({"volumeBindingMode": mode, "provisioner": provisioner}))
}

fn slice(node: &str, devices: Value) -> (&'static str, Value) {
    object(
        "ResourceSlice",
        node,
        json!({"spec": {"driver": "drv", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}),
    )
}

fn gpu_class() -> (&'static str, Value) {
    let selector = json!({"cel": {"expression": "device.driver == \"drv\""}});
    object(
        "DeviceClass",
        "gpu",
        json!({"spec": {"selectors": [selector], "extendedResourceName": "example.com/gpu"}}),
    )
}

fn claim_for(request: Value) -> (&'static str, Value) {
    let mut exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
    merge(&mut exactly, request);
    object(
        "ResourceClaim",
        "c",
        json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}}),
    )
}

fn with_devices() -> Value {
    json!({"containers": [{}], "resourceClaims": [{"name": "d", "resourceClaimName": "c"}]})
}

fn refused(nodes: usize, why: &str, helps: &str, preemption: &str) -> Result<String, String> {
    let head = format!("0/{nodes} nodes are available");
    Err(format!("{head}: {why}. {helps}, preemption: {head}: {nodes} {preemption}."))
}

#[test]
fn volumes_decide_as_upstream_does() {
    let nodes = [node("n0", json!({})), node("n1", json!({}))];
    let on = |more: &[(&'static str, Value)]| [&nodes[..], more].concat();
    let none = "no new claims to deallocate";
    let in_zone = |zone: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    let waits = class("w", "WaitForFirstConsumer", "kubernetes.io/no-provisioner");
    let early = class("i", "Immediate", "kubernetes.io/no-provisioner");
    let at = |host: &str| {
        let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [host]});
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}});
        json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "w",
            "nodeAffinity": affinity}, "status": {"phase": "Available"}})
    };
    let csi = |handle: &str| json!({"spec": {"csi": {"driver": "d", "volumeHandle": handle}}});
    let one_only =
        object("CSINode", "n0", json!({"spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}));
    let disk = json!({"containers": [{}], "volumes": [{"name": "v", "iscsi": {"iqn": "iqn.x"}}]});
    let drv = class("csi", "WaitForFirstConsumer", "drv");
    let tells_room = object("CSIDriver", "drv", json!({"spec": {"storageCapacity": true}}));
    let rwop = "ReadWriteOncePod";
    for (objects, spec, wanted) in [
        (
            on(&[]),
            with_claim("nope"),
            Err("0/2 nodes are available: persistentvolumeclaim \"nope\" not found. not found".to_owned()),
        ),
        (
            on(&[]),
            json!({"containers": [{}], "volumes": [{"name": "v", "ephemeral": {}}]}),
            Err("0/2 nodes are available: waiting for ephemeral volume controller to create the \
                 persistentvolumeclaim \"p-v\". not found"
                .to_owned()),
        ),
        (
            on(&[early.clone(), pvc("c", "i", "", "ReadWriteOnce")]),
            with_claim("c"),
            Err("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
                .to_owned()),
        ),
        (
            on(&[waits.clone(), pvc("c", "w", "", "ReadWriteOnce")]),
            with_claim("c"),
            refused(2, "2 node(s) didn't find available persistent volumes to bind", none, NOT_HELPFUL),
        ),
        (
            on(&[waits.clone(), pvc("c", "w", "", "ReadWriteOnce"), object("PV", "v", at("n1"))]),
            with_claim("c"),
            Ok("n1".to_owned()),
        ),
        (
            on(&[waits.clone(), pvc("c", "w", "v", "ReadWriteOnce"), object("PV", "v", at("elsewhere"))]),
            with_claim("c"),
            refused(2, "2 node(s) didn't match PersistentVolume's node affinity", none, NOT_HELPFUL),
        ),
        (
            vec![
                node("n0", in_zone("a")),
                node("n1", in_zone("a")),
                early.clone(),
                pvc("c", "i", "v", "ReadWriteOnce"),
                object("PV", "v", in_zone("b")),
            ],
            with_claim("c"),
            refused(2, "2 node(s) had no available volume zone", none, NOT_HELPFUL),
        ),
        (
            on(&[
                early.clone(),
                pvc("c", "i", "v", rwop),
                object("PV", "v", csi("h")),
                placed("n0", json!({"spec": with_claim("c")})),
            ]),
            with_claim("c"),
            refused(
                2,
                "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use \
                 by another pod",
                none,
                NO_VICTIMS,
            ),
        ),
        (
            vec![nodes[0].clone(), placed("n0", json!({"spec": disk}))],
            disk.clone(),
            refused(1, "1 node(s) had no available disk", none, NO_VICTIMS),
        ),
        (
            vec![
                nodes[0].clone(),
                one_only,
                early.clone(),
                pvc("c", "i", "v", "ReadWriteOnce"),
                object("PV", "v", csi("h")),
                pvc("e", "i", "u", "ReadWriteOnce"),
                object("PV", "u", csi("g")),
                placed("n0", json!({"spec": with_claim("e")})),
            ],
            with_claim("c"),
            refused(1, "1 node(s) exceed max volume count", none, NO_VICTIMS),
        ),
        (
            vec![nodes[0].clone(), drv.clone(), tells_room, pvc("c", "csi", "", "ReadWriteOnce")],
            with_claim("c"),
            refused(1, "1 node(s) did not have enough free storage", none, NOT_HELPFUL),
        ),
        (
            vec![nodes[0].clone(), drv, pvc("c", "csi", "", "ReadWriteOnce")],
            with_claim("c"),
            Ok("n0".to_owned()),
        ),
    ] {
        assert_eq!(outcome(&objects, spec.clone()), wanted, "{objects:?} {spec}");
    }
}

#[test]
fn devices_decide_as_upstream_does() {
    let (one, two) = (node("n0", json!({})), node("n1", json!({})));
    let still = "still not schedulable";
    let none = "no new claims to deallocate";
    let plain = |name: &str| json!({"name": name});
    let tainted = json!([{"name": "d0", "taints": [{"key": "k", "effect": "NoSchedule"}]}]);
    let tolerates = json!({"tolerations": [{"key": "k", "operator": "Exists"}]});
    let selects = |model: &str| {
        let expression = format!("device.attributes[\"drv\"].m == \"{model}\"");
        json!({"selectors": [{"cel": {"expression": expression}}]})
    };
    let models = json!([{"name": "d0", "attributes": {"m": {"string": "x"}}}]);
    let shared =
        json!([{"name": "d0", "allowMultipleAllocations": true, "capacity": {"mem": {"value": "10Gi"}}}]);
    let wants = |amount: &str| json!({"capacity": {"requests": {"mem": amount}}});
    let used = |amount: &str| {
        let result = json!({"request": "r", "driver": "drv", "pool": "n0", "device": "d0", "shareID": "s",
            "consumedCapacity": {"mem": amount}});
        object(
            "ResourceClaim",
            "other",
            json!({"status": {"allocation": {"devices": {"results": [result]}}}}),
        )
    };
    let impossible =
        |nodes: usize| refused(nodes, &format!("{nodes} cannot allocate all claims"), still, NOT_HELPFUL);
    let extended =
        json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]});
    let owned = json!({"metadata": {"ownerReferences": [{"kind": "Pod", "name": "p", "uid": "p", "controller": true}]}});
    for (objects, spec, wanted) in [
        (
            vec![one.clone(), two.clone(), claim_for(json!({}))],
            with_devices(),
            refused(2, "request r: device class gpu does not exist", none, NOT_HELPFUL),
        ),
        (vec![one.clone(), two.clone(), gpu_class(), claim_for(json!({}))], with_devices(), impossible(2)),
        (
            vec![
                one.clone(),
                two.clone(),
                gpu_class(),
                claim_for(json!({})),
                slice("n1", json!([plain("d0")])),
            ],
            with_devices(),
            Ok("n1".to_owned()),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(json!({"count": 2})), slice("n0", json!([plain("d0")]))],
            with_devices(),
            impossible(1),
        ),
        (
            vec![
                one.clone(),
                gpu_class(),
                claim_for(json!({"allocationMode": "All"})),
                slice("n0", json!([plain("a"), plain("b")])),
            ],
            with_devices(),
            Ok("n0".to_owned()),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(selects("x")), slice("n0", models.clone())],
            with_devices(),
            Ok("n0".to_owned()),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(selects("y")), slice("n0", models)],
            with_devices(),
            impossible(1),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(json!({})), slice("n0", tainted.clone())],
            with_devices(),
            impossible(1),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(tolerates), slice("n0", tainted)],
            with_devices(),
            Ok("n0".to_owned()),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(wants("6Gi")), used("6Gi"), slice("n0", shared.clone())],
            with_devices(),
            impossible(1),
        ),
        (
            vec![one.clone(), gpu_class(), claim_for(wants("4Gi")), used("6Gi"), slice("n0", shared)],
            with_devices(),
            Ok("n0".to_owned()),
        ),
        (
            vec![one.clone(), gpu_class(), slice("n0", json!([plain("d0")]))],
            extended.clone(),
            Ok("n0".to_owned()),
        ),
        (vec![one.clone(), gpu_class()], extended.clone(), impossible(1)),
        (
            vec![one.clone()],
            extended.clone(),
            refused(1, "1 Insufficient example.com/gpu", none, NOT_HELPFUL),
        ),
        (
            vec![
                one.clone(),
                gpu_class(),
                slice("n0", json!([plain("d0")])),
                object("ResourceClaim", "p-extended-resources-1", owned),
            ],
            extended,
            refused(
                1,
                "1 cannot schedule extended resource claim",
                "deletion of ResourceClaim completed",
                NOT_HELPFUL,
            ),
        ),
    ] {
        assert_eq!(outcome(&objects, spec.clone()), wanted, "{objects:?} {spec}");
    }
}

#[test]
fn an_idle_claim_elsewhere_is_taken_back() {
    let result = json!({"request": "r", "driver": "drv", "pool": "n0", "device": "d0"});
    let on_n0 = json!({"key": "metadata.name", "operator": "In", "values": ["n0"]});
    let allocated = |users: Value| {
        let (kind, mut claim) = claim_for(json!({}));
        merge(
            &mut claim,
            json!({"status": {"reservedFor": users, "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [on_n0]}]}}}}),
        );
        (kind, claim)
    };
    let objects = |users: Value| vec![node("n1", json!({})), gpu_class(), allocated(users)];
    let why = "1 resourceclaim not available on the node";
    let idle = refused(1, why, "deallocation of ResourceClaim completed", NOT_HELPFUL);
    assert_eq!(outcome(&objects(json!([])), with_devices()), idle);
    let busy = refused(1, why, "still not schedulable", NOT_HELPFUL);
    assert_eq!(
        outcome(&objects(json!([{"resource": "pods", "name": "q", "uid": "q"}])), with_devices()),
        busy
    );
}

#[test]
fn an_earlier_alternative_and_a_present_image_attract() {
    let alternatives = json!({"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": [
        {"name": "best", "deviceClassName": "big", "allocationMode": "ExactCount", "count": 1},
        {"name": "ok", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}]}]}}});
    let big = object(
        "DeviceClass",
        "big",
        json!({"spec": {"selectors": [{"cel": {"expression": "device.attributes[\"drv\"].big"}}]}}),
    );
    let large = json!([{"name": "d0", "attributes": {"big": {"bool": true}}}]);
    let small = json!([{"name": "d0", "attributes": {"big": {"bool": false}}}]);
    let objects = [
        node("n0", json!({})),
        node("n1", json!({})),
        gpu_class(),
        big,
        slice("n0", small),
        slice("n1", large),
        object("ResourceClaim", "c", alternatives),
    ];
    assert_eq!(outcome(&objects, with_devices()).as_deref(), Ok("n1"));
    let image = json!({"status": {"images": [{"names": ["big:1"], "sizeBytes": 900_000_000}]}});
    let objects = [node("n0", json!({})), node("n1", image)];
    assert_eq!(outcome(&objects, json!({"containers": [{"image": "big:1"}]})).as_deref(), Ok("n1"));
}

#[test]
fn only_who_narrows_the_nodes_down_is_named() {
    let nodes: Vec<_> = ["n0", "n1", "n2"].map(|name| node(name, json!({}))).into();
    let named = |name: &str, cpu: &str| {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        json!({"containers": [{"resources": {"requests": {"cpu": cpu}}}],
            "affinity": {"nodeAffinity": {REQUIRED: terms}}})
    };
    let none = "no new claims to deallocate";
    let narrowed = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
    assert_eq!(outcome(&nodes, named("n1", "1")).as_deref(), Ok("n1"));
    assert_eq!(
        outcome(&nodes, named("n1", "99")),
        refused(3, &format!("1 Insufficient cpu, 2 {narrowed}"), none, NOT_HELPFUL)
    );
    assert_eq!(outcome(&nodes, named("nope", "1")), refused(3, &format!("3 {narrowed}"), none, NOT_HELPFUL));
}
