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
    let secrets = get_list(spec, "imagePullSecrets");
    for (index, secret) in secrets.iter().enumerate() {
        let name = get_str(secret, "name");
        if name.is_empty() {
            out.push(format!("{path}.imagePullSecrets[{index}].name: invalid empty name \"\""));
        } else if secrets[..index].iter().any(|other| get_str(other, "name") == name) {
            out.push(format!("{path}.imagePullSecrets[{index}].name: duplicate name \"{name}\""));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            duplicates(&mut out, get_list(container, "env"), "name", &format!("{at}.env"));
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
        if let Some(projected) = volume.get("projected")
            && get_list(projected, "sources").is_empty()
        {
            out.push(format!("volume \"{}\" (Projected) has no sources provided", get_str(volume, "name")));
        }
        overlaps(&mut out, volume);
    }
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        out.push(format!("{path}.terminationGracePeriodSeconds: {why}"));
    }
    affinities(&mut out, &spec["affinity"], &format!("{path}.affinity"));
    for (index, constraint) in get_list(spec, "topologySpreadConstraints").iter().enumerate() {
        if constraint.get("labelSelector").is_none() {
            out.push(format!(
                "{path}.topologySpreadConstraints[{index}].labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }
    all_ports(&mut out, spec, path);
    out
}

/// Two files of a volume at one path, of which one will hide the other.
fn overlaps(out: &mut Vec<String>, volume: &Value) {
    let name = get_str(volume, "name");
    for (field, kind, of) in [
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("downwardAPI", "DownwardAPI", ""),
    ] {
        let Some(source) = volume.get(field) else { continue };
        let owner = match of {
            "" => kind.to_owned(),
            of => format!("{kind} \"{}\"", get_str(source, of)),
        };
        let paths: Vec<&str> = get_list(source, "items").iter().map(|item| get_str(item, "path")).collect();
        for (index, path) in paths.iter().enumerate() {
            if paths[..index].contains(path) {
                out.push(format!(
                    "volume \"{name}\" ({owner}): overlapping paths: \"{path}\" with \"{path}\""
                ));
            }
        }
    }
}

/// Terms that select nothing, or values that no label has.
fn affinities(out: &mut Vec<String>, affinity: &Value, path: &str) {
    let (must, may) =
        ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
    for (index, term) in get_list(&affinity["nodeAffinity"], may).iter().enumerate() {
        for (number, expression) in get_list(&term["preference"], "matchExpressions").iter().enumerate() {
            for (place, value) in get_list(expression, "values").iter().enumerate() {
                let text = value.as_str().unwrap_or_default();
                for complaint in apimachinery::names::is_label_value(text) {
                    out.push(format!(
                        "{path}.nodeAffinity.{may}[{index}].preference.matchExpressions[{number}].values[{place}]: \
                         {text} is invalid, {complaint}"
                    ));
                }
            }
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let none = "labelSelector: a null labelSelector results in matching no pod";
        for (index, term) in get_list(&affinity[kind], must).iter().enumerate() {
            if term.get("labelSelector").is_none() {
                out.push(format!("{path}.{kind}.{must}[{index}].{none}"));
            }
        }
        for (index, term) in get_list(&affinity[kind], may).iter().enumerate() {
            if term["podAffinityTerm"].get("labelSelector").is_none() {
                out.push(format!("{path}.{kind}.{may}[{index}].podAffinityTerm.{none}"));
            }
        }
    }
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

/// Ports that mean the same, or have the same name, over all containers.
fn all_ports(out: &mut Vec<String>, spec: &Value, path: &str) {
    let mut ports: Vec<(String, &Value)> = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let own = get_list(container, "ports").iter().enumerate();
            ports.extend(own.map(|(at, port)| (format!("{path}.{list}[{index}].ports[{at}]"), port)));
        }
    }
    let number = |port: &Value| port["hostPort"].as_i64().unwrap_or(0);
    for (place, port) in ports.iter().filter(|(_, port)| number(port) == 0) {
        if !get_str(port, "hostIP").is_empty() {
            out.push(format!(
                "{place}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{}}}",
                get_str(port, "name"),
                port["containerPort"],
                get_str(port, "protocol"),
                get_str(port, "hostIP"),
            ));
        }
    }
    for (index, (place, port)) in ports.iter().enumerate() {
        let (ip, host) = (get_str(port, "hostIP"), number(port));
        for (other_place, other) in &ports[..index] {
            if other["containerPort"] != port["containerPort"] || other["protocol"] != port["protocol"] {
                continue;
            }
            let (other_ip, other_host) = (get_str(other, "hostIP"), number(other));
            let what = if ip == other_ip && host == other_host {
                "duplicate"
            } else if host == 0 || other_host == 0 {
                "overlapping"
            } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
                "dangerously ambiguous"
            } else {
                continue;
            };
            out.push(format!("{place}: {what} port definition with {other_place}"));
        }
    }
    for (index, (place, port)) in ports.iter().enumerate() {
        let name = get_str(port, "name");
        let first = ports[..index].iter().find(|(_, other)| get_str(other, "name") == name);
        if let (false, Some((first, _))) = (name.is_empty(), first) {
            out.push(format!(
                "{place}: duplicate port name {name:?} with {first}, services and probes that select ports by name will use {first}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_are_compared_over_all_containers() {
        let port = |name: &str, host: i64| json!({"containerPort": 80, "protocol": "TCP", "hostPort": host, "name": name});
        let spec =
            json!({"containers": [{"ports": [port("a", 0)]}, {"ports": [port("a", 0), port("b", 5)]}]});
        assert_eq!(
            of(&spec, "spec"),
            [
                "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[1].ports[0]",
                "spec.containers[1].ports[0]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
            ]
        );
    }
}
