//! What works in a pod spec but should not be relied on.

use std::collections::{HashMap, HashSet};

use apimachinery::meta::{Meta, get_list, get_str};
use apimachinery::quantity::Quantity;
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
    let part = |pointer: &str| change.new.pointer(pointer).unwrap_or(&Value::Null);
    let beside = |text: &str, end: &str| format!("{}{end}", text.strip_suffix("spec").unwrap_or(text));
    let annotations = &part(&beside(pointer, "metadata"))["annotations"];
    let about = Annotations { annotations, path: beside(path, "metadata.annotations") };
    of(part(pointer), path, &about)
}

/// What is noted on a pod or template, and where.
struct Annotations<'a> {
    annotations: &'a Value,
    path: String,
}

impl Annotations<'_> {
    fn warn(&self, out: &mut Vec<String>, key: &str, why: &str) {
        if self.annotations.get(key).is_some() {
            out.push(format!("{}[{key}]: {why}", self.path));
        }
    }
}

/// Annotations of old that do nothing any more.
const FADING_ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
const SECCOMP: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_OF: &str = "container.seccomp.security.alpha.kubernetes.io/";
const APP_ARMOR_OF: &str = "container.apparmor.security.beta.kubernetes.io/";
const NO_SECCOMP: &str = "non-functional in v1.27+; use the \"seccompProfile\" field instead";
const OLD_APP_ARMOR: &str = "deprecated since v1.30; use the \"appArmorProfile\" field instead";

/// Labels of nodes that have a newer name, and since when.
const FADING_LABELS: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
];

fn fading_label(key: &str) -> Option<String> {
    let (_, since, newer) = FADING_LABELS.iter().find(|(old, ..)| *old == key)?;
    Some(format!("deprecated since {since}; use \"{newer}\" instead"))
}

/// Whether a number of bytes is not a whole one.
fn is_fractional(text: &str) -> bool {
    text.parse::<Quantity>().is_ok_and(|amount| !amount.is_whole())
}

/// That a name that becomes that of hosts should be a label; `used` says by what it is used.
pub fn of_name(change: &Change<'_>, used: &str) -> Vec<String> {
    let complaints = apimachinery::names::is_dns1123_label(change.new.name());
    if change.old.is_some() || complaints.is_empty() {
        return Vec::new();
    }
    let complaints: Vec<String> = complaints.into_iter().map(|one| one.to_string()).collect();
    vec![format!(
        "metadata.name: this is used in {used}, which can result in surprising behavior; a DNS label is recommended: [{}]",
        complaints.join(" ")
    )]
}

/// What names of owners of pods are used for.
pub const OF_PODS: &str = "Pod names and hostnames";

/// Warnings about a pod spec at a path, in upstream's order: only the first of many are seen.
fn of(spec: &Value, path: &str, about: &Annotations<'_>) -> Vec<String> {
    let mut out = Vec::new();
    for key in spec["nodeSelector"].as_object().into_iter().flat_map(|selector| selector.keys()) {
        if let Some(why) = fading_label(key) {
            out.push(format!("{path}.nodeSelector[{key}]: {why}"));
        }
    }
    node_affinity(&mut out, &spec["affinity"], &format!("{path}.affinity"));
    for (index, constraint) in get_list(spec, "topologySpreadConstraints").iter().enumerate() {
        let key = get_str(constraint, "topologyKey");
        if let Some(why) = fading_label(key) {
            out.push(format!("{path}.topologySpreadConstraints[{index}].topologyKey: {key} is {why}"));
        }
        if constraint.get("labelSelector").is_none() {
            out.push(format!(
                "{path}.topologySpreadConstraints[{index}].labelSelector: a null labelSelector results in matching no pod"
            ));
        }
    }
    for (key, why) in FADING_ANNOTATIONS {
        about.warn(&mut out, key, why);
    }
    let volumes = get_list(spec, "volumes");
    for (index, volume) in volumes.iter().enumerate() {
        for (source, why) in FADING_VOLUMES {
            // `storageos` is a path of its own in upstream's words.
            let shown = if *source == "storageos" { "storageOS" } else { source };
            if volume.get(source).is_some() {
                out.push(format!("{path}.volumes[{index}].{shown}: deprecated in {why}"));
            }
        }
    }
    for volume in volumes {
        overlaps(&mut out, volume);
        let sources = get_list(&volume["projected"], "sources").iter();
        for _ in sources.filter(|source| source.as_object().is_some_and(serde_json::Map::is_empty)) {
            out.push(format!("volume \"{}\" (Projected) has no sources provided", get_str(volume, "name")));
        }
    }
    let mut seen = HashSet::new();
    for (index, alias) in get_list(spec, "hostAliases").iter().enumerate() {
        let ip = get_str(alias, "ip");
        if !seen.insert(ip) {
            out.push(format!("{path}.hostAliases[{index}].ip: duplicate ip \"{ip}\""));
        }
    }
    let mut seen = HashSet::new();
    for (index, secret) in get_list(spec, "imagePullSecrets").iter().enumerate() {
        let name = get_str(secret, "name");
        if name.is_empty() {
            out.push(format!("{path}.imagePullSecrets[{index}].name: invalid empty name \"\""));
        } else if !seen.insert(name) {
            out.push(format!("{path}.imagePullSecrets[{index}].name: duplicate name \"{name}\""));
        }
    }
    let fractional = |out: &mut Vec<String>, amounts: &Value, at: &str, name: &str| {
        let text = amounts[name].as_str().unwrap_or_default();
        if is_fractional(text) {
            out.push(format!(
                "{at}[{name}]: fractional byte value \"{text}\" is invalid, must be an integer"
            ));
        }
    };
    for name in ["memory", "ephemeral-storage"] {
        fractional(&mut out, &spec["overhead"], &format!("{path}.overhead"), name);
    }
    if spec["securityContext"]["seccompProfile"].is_null() {
        about.warn(&mut out, SECCOMP, NO_SECCOMP);
    }
    let armored = !spec["securityContext"]["appArmorProfile"].is_null();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let at = format!("{path}.{list}[{index}]");
            let (name, security) = (get_str(container, "name"), &container["securityContext"]);
            if security["seccompProfile"].is_null() {
                about.warn(&mut out, &format!("{SECCOMP_OF}{name}"), NO_SECCOMP);
            }
            if !armored && security["appArmorProfile"].is_null() {
                about.warn(&mut out, &format!("{APP_ARMOR_OF}{name}"), OLD_APP_ARMOR);
            }
            for name in ["memory", "ephemeral-storage"] {
                for part in ["limits", "requests"] {
                    let place = format!("{at}.resources.{part}");
                    fractional(&mut out, &container["resources"][part], &place, name);
                }
            }
            duplicates(&mut out, get_list(container, "env"), "name", &format!("{at}.env"));
        }
    }
    all_ports(&mut out, spec, path);
    if spec["terminationGracePeriodSeconds"].as_i64().is_some_and(|seconds| seconds < 0) {
        let why = "must be >= 0; negative values are invalid and will be treated as 1";
        out.push(format!("{path}.terminationGracePeriodSeconds: {why}"));
    }
    pod_affinity(&mut out, &spec["affinity"], &format!("{path}.affinity"));
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
        let mut seen = HashSet::new();
        for path in get_list(source, "items").iter().map(|item| get_str(item, "path")) {
            if !seen.insert(path) {
                out.push(format!(
                    "volume \"{name}\" ({owner}): overlapping paths: \"{path}\" with \"{path}\""
                ));
            }
        }
    }
}

const MUST: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const MAY: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Values that no label has.
fn node_affinity(out: &mut Vec<String>, affinity: &Value, path: &str) {
    let keys = |out: &mut Vec<String>, term: &Value, at: &str| {
        for (number, expression) in get_list(term, "matchExpressions").iter().enumerate() {
            let key = get_str(expression, "key");
            if let Some(why) = fading_label(key) {
                out.push(format!("{at}.matchExpressions[{number}].key: {key} is {why}"));
            }
        }
    };
    let terms = get_list(&affinity["nodeAffinity"][MUST], "nodeSelectorTerms");
    for (index, term) in terms.iter().enumerate() {
        keys(out, term, &format!("{path}.nodeAffinity.{MUST}.nodeSelectorTerms[{index}]"));
    }
    for (index, term) in get_list(&affinity["nodeAffinity"], MAY).iter().enumerate() {
        keys(out, &term["preference"], &format!("{path}.nodeAffinity.{MAY}[{index}].preference"));
    }
    for (index, term) in get_list(&affinity["nodeAffinity"], MAY).iter().enumerate() {
        for (number, expression) in get_list(&term["preference"], "matchExpressions").iter().enumerate() {
            for (place, value) in get_list(expression, "values").iter().enumerate() {
                let text = value.as_str().unwrap_or_default();
                for complaint in apimachinery::names::is_label_value(text) {
                    out.push(format!(
                        "{path}.nodeAffinity.{MAY}[{index}].preference.matchExpressions[{number}].values[{place}]: \
                         {text} is invalid, {complaint}"
                    ));
                }
            }
        }
    }
}

/// Terms that select nothing.
fn pod_affinity(out: &mut Vec<String>, affinity: &Value, path: &str) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let none = "labelSelector: a null labelSelector results in matching no pod";
        for (index, term) in get_list(&affinity[kind], MUST).iter().enumerate() {
            if term.get("labelSelector").is_none() {
                out.push(format!("{path}.{kind}.{MUST}[{index}].{none}"));
            }
        }
        for (index, term) in get_list(&affinity[kind], MAY).iter().enumerate() {
            if term["podAffinityTerm"].get("labelSelector").is_none() {
                out.push(format!("{path}.{kind}.{MAY}[{index}].podAffinityTerm.{none}"));
            }
        }
    }
}

fn duplicates(out: &mut Vec<String>, list: &[Value], key: &str, path: &str) {
    let mut seen = HashSet::new();
    for (index, item) in list.iter().enumerate() {
        let name = get_str(item, key);
        if !seen.insert(name) {
            out.push(format!(
                "{path}[{index}]: hides previous definition of \"{name}\", which may be dropped when using apply"
            ));
        }
    }
}

/// Warnings beyond this many bytes do not fit into an answer.
const SEEN: usize = 8 * 1024;
/// Pairs of ports that are compared; nobody means to have more.
const PAIRS: usize = 100_000;

/// Ports that mean the same, or have the same name, over all containers.
///
/// A warning tells of a pair, and of n ports that are alike there are n² pairs: no more are told than can be seen.
fn all_ports(out: &mut Vec<String>, spec: &Value, path: &str) {
    let mut ports: Vec<(String, &Value)> = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in get_list(spec, list).iter().enumerate() {
            let own = get_list(container, "ports").iter().enumerate();
            ports.extend(own.map(|(at, port)| (format!("{path}.{list}[{index}].ports[{at}]"), port)));
        }
    }
    let (mut told, mut pairs) = (0, 0);
    let mut groups: HashMap<(i64, &str), Vec<usize>> = HashMap::new();
    for (index, (place, port)) in ports.iter().enumerate() {
        let host_ip = get_str(port, "hostIP");
        if !host_ip.is_empty() && number(port, "hostPort") == 0 {
            out.push(format!(
                "{place}: hostIP set without hostPort: {{Name:{} HostPort:0 ContainerPort:{} Protocol:{} HostIP:{host_ip}}}",
                get_str(port, "name"),
                number(port, "containerPort"),
                get_str(port, "protocol"),
            ));
        }
        let key = (number(port, "containerPort"), get_str(port, "protocol"));
        let alike = groups.entry(key).or_default();
        for (other_place, other) in alike.iter().map(|other| &ports[*other]) {
            if told >= SEEN || pairs >= PAIRS {
                break;
            }
            pairs += 1;
            if let Some(what) = clash(port, other) {
                let text = format!("{place}: {what} port definition with {other_place}");
                told += text.len();
                out.push(text);
            }
        }
        alike.push(index);
    }
    let mut first: HashMap<&str, &str> = HashMap::new();
    for (place, port) in &ports {
        let name = get_str(port, "name");
        if name.is_empty() {
            continue;
        }
        let first = *first.entry(name).or_insert(place);
        if first != place {
            out.push(format!(
                "{place}: duplicate port name {name:?} with {first}, services and probes that select ports by name will use {first}"
            ));
        }
    }
}

fn number(port: &Value, field: &str) -> i64 {
    port[field].as_i64().unwrap_or(0)
}

/// How two ports of one number and protocol are in each other's way.
fn clash(port: &Value, other: &Value) -> Option<&'static str> {
    let (ip, host) = (get_str(port, "hostIP"), number(port, "hostPort"));
    let (other_ip, other_host) = (get_str(other, "hostIP"), number(other, "hostPort"));
    if ip == other_ip && host == other_host {
        Some("duplicate")
    } else if host == 0 || other_host == 0 {
        Some("overlapping")
    } else if host == other_host && ip.is_empty() != other_ip.is_empty() {
        Some("dangerously ambiguous")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(spec: &Value) -> Vec<String> {
        let none = Annotations { annotations: &Value::Null, path: "metadata.annotations".into() };
        of(spec, "spec", &none)
    }

    #[test]
    fn what_is_old_or_without_effect_is_told() {
        let object = json!({"metadata": {"name": "a.b"}, "spec": {"template": {
            "metadata": {"annotations": {
                "scheduler.alpha.kubernetes.io/critical-pod": "", "seccomp.security.alpha.kubernetes.io/pod": "x",
                "container.apparmor.security.beta.kubernetes.io/c": "x", "other": "y"}},
            "spec": {
                "nodeSelector": {"beta.kubernetes.io/instance-type": "big"},
                "containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "1500m", "memory": "1Gi"}}}],
            },
        }}});
        let change = Change { new: &object, old: None, subresource: "" };
        let at = "spec.template.metadata.annotations";
        assert_eq!(
            of_change(&change, "/spec/template/spec", "spec.template.spec"),
            [
                "spec.template.spec.nodeSelector[beta.kubernetes.io/instance-type]: deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead".to_owned(),
                format!("{at}[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead"),
                format!("{at}[seccomp.security.alpha.kubernetes.io/pod]: non-functional in v1.27+; use the \"seccompProfile\" field instead"),
                format!("{at}[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead"),
                "spec.template.spec.containers[0].resources.limits[ephemeral-storage]: fractional byte value \"1500m\" is invalid, must be an integer".to_owned(),
            ]
        );
        assert!(
            of_name(&change, OF_PODS)[0]
                .starts_with("metadata.name: this is used in Pod names and hostnames, which")
        );
    }

    #[test]
    fn ports_are_compared_over_all_containers() {
        let port = |name: &str, host: i64| json!({"containerPort": 80, "protocol": "TCP", "hostPort": host, "name": name});
        let spec =
            json!({"containers": [{"ports": [port("a", 0)]}, {"ports": [port("a", 0), port("b", 5)]}]});
        assert_eq!(
            told(&spec),
            [
                "spec.containers[1].ports[0]: duplicate port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
                "spec.containers[1].ports[1]: overlapping port definition with spec.containers[1].ports[0]",
                "spec.containers[1].ports[0]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
            ]
        );
    }

    #[test]
    fn many_equal_ports_are_not_told_pair_by_pair() {
        let ports: Vec<Value> = (0..2000).map(|_| json!({"containerPort": 80, "protocol": "TCP"})).collect();
        let out = told(&json!({"containers": [{"ports": ports}]}));
        assert!((50..200).contains(&out.len()), "{}", out.len());
        assert_eq!(
            out[1],
            "spec.containers[0].ports[2]: duplicate port definition with spec.containers[0].ports[0]"
        );
    }

    #[test]
    fn ports_come_before_grace_and_affinity() {
        let spec = json!({
            "terminationGracePeriodSeconds": -1,
            "containers": [{"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]}],
            "affinity": {"podAffinity": {MUST: [{}]}},
            "topologySpreadConstraints": [{}],
        });
        let out = told(&spec);
        let told: Vec<&str> =
            out.iter().map(|text| text.split([':', '[']).next().unwrap_or_default()).collect();
        let affinity = format!("spec.affinity.podAffinity.{MUST}");
        let wanted = [
            "spec.topologySpreadConstraints",
            "spec.containers",
            "spec.terminationGracePeriodSeconds",
            affinity.as_str(),
        ];
        assert_eq!(told, wanted);
    }
}
