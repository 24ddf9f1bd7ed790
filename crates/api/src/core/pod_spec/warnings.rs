//! What works in a pod spec but should not be relied on.

use apimachinery::meta::{Meta, get_list, get_str};
use serde_json::Value;

use crate::Change;

/// Volume sources that no longer work, or soon will not, and since when.
const FADING_VOLUMES: &[(&str, &str)] = &[
    ("photonPersistentDisk", "v1.11, non-functional in v1.16+"),
    ("gitRepo", "v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "v1.16, non-functional in v1.22+"),
    ("flocker", "v1.22, non-functional in v1.25+"),
    ("storageos", "v1.22, non-functional in v1.25+"),
    ("quobyte", "v1.22, non-functional in v1.25+"),
    ("glusterfs", "v1.25, non-functional in v1.26+"),
    ("cephfs", "v1.28, non-functional in v1.31+"),
    ("rbd", "v1.28, non-functional in v1.31+"),
];

/// Warnings about the pod spec of a write; an update that leaves the desired state alone gets none.
pub fn of_change(change: &Change<'_>, pointer: &str, path: &str) -> Vec<String> {
    if change.old.is_some_and(|old| old.generation() == change.new.generation()) {
        return Vec::new();
    }
    of(change.new.pointer(pointer).unwrap_or(&Value::Null), path)
}

/// Warnings about a pod spec at a path.
fn of(spec: &Value, path: &str) -> Vec<String> {
    let mut out = Vec::new();
    for key in ["beta.kubernetes.io/os", "beta.kubernetes.io/arch"] {
        if spec["nodeSelector"].get(key).is_some() {
            let newer = key.trim_start_matches("beta.");
            out.push(format!("{path}.nodeSelector[{key}]: deprecated since v1.14; use \"{newer}\" instead"));
        }
    }
    let mut seen_hosts: Vec<&str> = Vec::new();
    for (index, alias) in get_list(spec, "hostAliases").iter().enumerate() {
        let ip = get_str(alias, "ip");
        if seen_hosts.contains(&ip) {
            out.push(format!("{path}.hostAliases[{index}].ip: duplicate ip \"{ip}\""));
        }
        seen_hosts.push(ip);
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            duplicates(&mut out, get_list(container, "env"), "name", &format!("{at}.env"));
            container_ports(&mut out, get_list(container, "ports"), &at);
            for name in ["limits", "requests"] {
                let memory = get_str(container, &format!("resources.{name}.memory"));
                if memory.ends_with('m') {
                    out.push(format!(
                        "{at}.resources.{name}[memory]: fractional byte value \"{memory}\" is invalid, must be an integer"
                    ));
                }
            }
        }
    }
    for (index, volume) in get_list(spec, "volumes").iter().enumerate() {
        for (source, why) in FADING_VOLUMES {
            // `storageos` is a path of its own in upstream's words.
            let shown = if *source == "storageos" { "storageOS" } else { source };
            if volume.get(source).is_some() {
                out.push(format!("{path}.volumes[{index}].{shown}: deprecated in {why}"));
            }
        }
    }
    for (index, constraint) in get_list(spec, "topologySpreadConstraints").iter().enumerate() {
        if constraint.get("labelSelector").is_none() {
            out.push(format!(
                "{path}.topologySpreadConstraints[{index}].labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }
    out
}

fn duplicates(out: &mut Vec<String>, list: &[Value], key: &str, path: &str) {
    for (index, item) in list.iter().enumerate() {
        let name = get_str(item, key);
        if list[..index].iter().any(|other| get_str(other, key) == name) {
            out.push(format!(
                "{path}[{index}]: hides previous definition of \"{name}\", which may be dropped when using apply"
            ));
        }
    }
}

fn container_ports(out: &mut Vec<String>, ports: &[Value], at: &str) {
    for (index, port) in ports.iter().enumerate() {
        let same = |other: &Value| {
            other["containerPort"] == port["containerPort"]
                && other["protocol"] == port["protocol"]
                && other.get("hostPort") == port.get("hostPort")
                && other.get("hostIP") == port.get("hostIP")
        };
        if let Some(first) = ports[..index].iter().position(same) {
            out.push(format!("{at}.ports[{index}]: duplicate port definition with {at}.ports[{first}]"));
        }
    }
}
