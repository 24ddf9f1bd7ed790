//! Defaults of pod specs.

use std::collections::btree_map::Entry;

use apimachinery::quantity::Quantity;
use serde_json::{Map, Value, json};

use super::{amounts, image::pull_policy};
use crate::defaults::{Constant, Default, apply};

/// The three lists of containers of a pod.
pub const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

const SPEC: &[Default] = &[
    ("dnsPolicy", Constant::Text("ClusterFirst")),
    ("restartPolicy", Constant::Text("Always")),
    ("securityContext", Constant::Empty),
    ("terminationGracePeriodSeconds", Constant::Number(30)),
    ("schedulerName", Constant::Text("default-scheduler")),
];

const CONTAINER: &[Default] = &[
    ("terminationMessagePath", Constant::Text("/dev/termination-log")),
    ("terminationMessagePolicy", Constant::Text("File")),
    ("ports.*.protocol", Constant::Text("TCP")),
    ("env.*.valueFrom.fieldRef.apiVersion", Constant::Text("v1")),
    ("env.*.valueFrom.fileKeyRef.optional", Constant::Bool(false)),
];

const PROBE: &[Default] = &[
    ("timeoutSeconds", Constant::Number(1)),
    ("periodSeconds", Constant::Number(10)),
    ("successThreshold", Constant::Number(1)),
    ("failureThreshold", Constant::Number(3)),
    ("grpc.service", Constant::Text("")),
];

const HTTP_GET: &[Default] =
    &[("httpGet.path", Constant::Text("/")), ("httpGet.scheme", Constant::Text("HTTP"))];

const VOLUME: &[Default] = &[
    ("secret.defaultMode", Constant::Number(0o644)),
    ("configMap.defaultMode", Constant::Number(0o644)),
    ("downwardAPI.defaultMode", Constant::Number(0o644)),
    ("downwardAPI.items.*.fieldRef.apiVersion", Constant::Text("v1")),
    ("projected.defaultMode", Constant::Number(0o644)),
    ("projected.sources.*.serviceAccountToken.expirationSeconds", Constant::Number(3600)),
    ("projected.sources.*.downwardAPI.items.*.fieldRef.apiVersion", Constant::Text("v1")),
    ("ephemeral.volumeClaimTemplate.spec.volumeMode", Constant::Text("Filesystem")),
];

/// Defaults of sources that pods and PersistentVolumes name alike.
pub const SOURCES: &[Default] = &[
    ("hostPath.type", Constant::Text("")),
    ("iscsi.iscsiInterface", Constant::Text("default")),
    ("rbd.pool", Constant::Text("rbd")),
    ("rbd.user", Constant::Text("admin")),
    ("rbd.keyring", Constant::Text("/etc/ceph/keyring")),
    ("azureDisk.cachingMode", Constant::Text("ReadWrite")),
    ("azureDisk.kind", Constant::Text("Shared")),
    ("azureDisk.fsType", Constant::Text("ext4")),
    ("azureDisk.readOnly", Constant::Bool(false)),
    ("scaleIO.storageMode", Constant::Text("ThinProvisioned")),
    ("scaleIO.fsType", Constant::Text("xfs")),
];

/// Defaults of the pod spec in a template.
pub fn set_template_defaults(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    apply(spec, SPEC);
    mirror_service_account(spec);
    for list in CONTAINER_LISTS {
        if let Some(Value::Array(containers)) = spec.get_mut(list) {
            containers.iter_mut().for_each(container);
        }
    }
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        volumes.iter_mut().for_each(volume);
    }
    if let Some(overhead) = spec.get_mut("overhead") {
        round_up(overhead);
    }
    if let Some(resources) = spec.get_mut("resources") {
        round_resources(resources);
    }
}

/// Defaults of the spec of a Pod itself: templates do not get these, the pods made from them do.
pub fn set_pod_defaults(spec: &mut Value) {
    set_template_defaults(spec);
    apply(spec, &[("enableServiceLinks", Constant::Bool(true))]);
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    let host_network = spec["hostNetwork"] == true;
    for list in ["initContainers", "containers"] {
        let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
        for container in containers {
            if let Some(resources) = container.get_mut("resources") {
                requests_from_limits(resources);
            }
            if host_network && let Some(Value::Array(ports)) = container.get_mut("ports") {
                for port in ports {
                    if port.get("hostPort").is_none_or(|port| port == 0) {
                        port["hostPort"] = port["containerPort"].clone();
                    }
                }
            }
        }
    }
    if spec.get("resources").is_some() {
        complete_pod_level(spec);
    }
}

/// What a pod that asks for something as a whole does not say, its containers do.
fn complete_pod_level(spec: &mut Value) {
    let said = |spec: &Value, kind: &str| amounts::read(&spec["resources"][kind]);
    let (mut limits, mut requests) = (said(spec, "limits"), said(spec, "requests"));
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, amount) in amounts::of_containers(spec, "limits") {
        if name.starts_with("hugepages-") && !requests.contains_key(&name) && !limits.contains_key(&name) {
            spec["resources"]["limits"][name.as_str()] = amount.to_string().into();
            limits.insert(name, amount);
        }
    }
    if limits.is_empty() {
        return;
    }
    let shared = |name: &str| matches!(name, "cpu" | "memory");
    let mut needed = amounts::of_containers(spec, "requests");
    needed.retain(|name, _| shared(name));
    let of_pod = limits.into_iter().filter(|(name, _)| shared(name) || name.starts_with("hugepages-"));
    for (name, amount) in needed.into_iter().chain(of_pod) {
        if let Entry::Vacant(place) = requests.entry(name) {
            spec["resources"]["requests"][place.key().as_str()] = amount.to_string().into();
            place.insert(amount);
        }
    }
}

fn mirror_service_account(spec: &mut Value) {
    let Some(map) = spec.as_object_mut() else { return };
    let name = map.get("serviceAccountName").or_else(|| map.get("serviceAccount")).cloned();
    match name {
        Some(name) => {
            map.insert("serviceAccountName".into(), name.clone());
            map.insert("serviceAccount".into(), name);
        }
        None => {
            map.shift_remove("serviceAccount");
        }
    }
}

fn container(container: &mut Value) {
    if !container.is_object() {
        return;
    }
    apply(container, CONTAINER);
    if container.get("imagePullPolicy").is_none() {
        let image = container["image"].as_str().unwrap_or_default();
        container["imagePullPolicy"] = pull_policy(image).into();
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(name) {
            apply(probe, PROBE);
            apply(probe, HTTP_GET);
        }
    }
    for name in ["postStart", "preStop"] {
        if let Some(hook) = container.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(name)) {
            apply(hook, HTTP_GET);
        }
    }
    if let Some(resources) = container.get_mut("resources") {
        round_resources(resources);
    }
}

fn volume(volume: &mut Value) {
    let Some(map) = volume.as_object_mut() else { return };
    if !map.keys().any(|key| key != "name") {
        map.insert("emptyDir".into(), Value::Object(Map::new()));
    }
    apply(volume, VOLUME);
    apply(volume, SOURCES);
    if let Some(image) = volume.get_mut("image")
        && image.get("pullPolicy").is_none()
    {
        image["pullPolicy"] = pull_policy(image["reference"].as_str().unwrap_or_default()).into();
    }
}

fn requests_from_limits(resources: &mut Value) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    if resources.get("requests").is_none() {
        resources["requests"] = json!({});
    }
    let Some(requests) = resources["requests"].as_object_mut() else { return };
    for (name, limit) in limits {
        requests.entry(name).or_insert(limit);
    }
}

fn round_resources(resources: &mut Value) {
    for list in ["limits", "requests"] {
        if let Some(list) = resources.get_mut(list) {
            round_up(list);
        }
    }
}

/// Resource amounts are kept in thousandths at the finest.
pub fn round_up(list: &mut Value) {
    for value in list.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
        let Some(text) = value.as_str() else { continue };
        // Only these suffixes are finer than a thousandth.
        if text.ends_with(['n', 'u'])
            && let Ok(quantity) = text.parse::<Quantity>()
        {
            *value = Quantity::from_millis(quantity.millis()).to_string().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_pod_gets_what_upstream_gives() {
        let mut spec = json!({
            "containers": [{"name": "a", "image": "x:1", "resources": {"limits": {"cpu": "1"}},
                "livenessProbe": {"httpGet": {"port": 80}}}],
            "volumes": [{"name": "v"}, {"name": "s", "secret": {"secretName": "x"}}],
        });
        set_pod_defaults(&mut spec);
        assert_eq!(
            spec,
            json!({
                "containers": [{"name": "a", "image": "x:1",
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                    "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1,
                        "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                    "imagePullPolicy": "IfNotPresent"}],
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "s", "secret": {"secretName": "x", "defaultMode": 420}}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "securityContext": {},
                "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler", "enableServiceLinks": true,
            })
        );
    }
}
