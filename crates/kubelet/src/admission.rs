//! Whether this node can run a pod at all: the same questions the scheduler asked, asked again by the one who knows.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::pod::{NodeRequirement, NodeSelectorTerm, Pod};
use crate::resources;
use crate::state::Verdict;

/// The node as admission sees it.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Milli-cores for `cpu`, whole units for the rest.
    pub allocatable: BTreeMap<String, i64>,
    /// Sysctls beyond the safe ones that pods may set.
    pub allowed_unsafe_sysctls: Vec<String>,
}

/// Sysctls that are namespaced and cannot harm a neighbour.
const SAFE_SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Refuses a pod with the reason that its status will show.
pub fn admit(pod: &Pod, others: &[Arc<Pod>], node: &NodeView) -> Result<(), Verdict> {
    let refuse = |reason: &str, message: String| Err(Verdict { reason: reason.into(), message });
    if pod.spec.os.as_ref().is_some_and(|os| !os.name.is_empty() && os.name != "linux") {
        return refuse(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS".into(),
        );
    }
    if !pod.is_static() && !matches_node(pod, node) {
        let text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
        return refuse("NodeAffinity", text.into());
    }
    if let Some(name) = forbidden_sysctl(pod, node) {
        return refuse("SysctlForbidden", format!("forbidden sysctl: {name:?} not allowlisted"));
    }
    if let Some(port) = taken_port(pod, others) {
        let text = format!(
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports ({port})"
        );
        return refuse("NodePorts", text);
    }
    if pod.is_static() {
        // Static pods carry the node itself: they are not refused for lack of room.
        return Ok(());
    }
    let pods = node.allocatable.get("pods").copied().unwrap_or(i64::MAX);
    if others.len() as i64 + 1 > pods {
        let text = format!(
            "Node didn't have enough resource: pods, requested: 1, used: {}, capacity: {pods}",
            others.len()
        );
        return refuse("OutOfpods", text);
    }
    for (name, capacity) in &node.allocatable {
        if name == "pods" {
            continue;
        }
        let requested = resources::requested(pod, name);
        let used: i64 = others.iter().map(|other| resources::requested(other, name)).sum();
        if requested > 0 && requested + used > *capacity {
            let text = format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return refuse(&format!("OutOf{name}"), text);
        }
    }
    Ok(())
}

fn forbidden_sysctl<'a>(pod: &'a Pod, node: &NodeView) -> Option<&'a str> {
    let allowed = |name: &str| {
        SAFE_SYSCTLS.contains(&name)
            || node.allowed_unsafe_sysctls.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => pattern == name,
            })
    };
    let mut names = pod.spec.security_context.sysctls.iter().map(|one| one.name.as_str());
    names.find(|name| !allowed(&name.replace('/', ".")))
}

fn taken_port(pod: &Pod, others: &[Arc<Pod>]) -> Option<u16> {
    let ports = |pod: &Pod| -> Vec<(u16, String, String)> {
        let host_network = pod.spec.host_network;
        pod.containers()
            .flat_map(|(_, container)| &container.ports)
            .map(|port| {
                let number =
                    if host_network && port.host_port == 0 { port.container_port } else { port.host_port };
                let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
                let ip =
                    if matches!(port.host_ip.as_str(), "" | "0.0.0.0" | "::") { "" } else { &port.host_ip };
                (number, protocol.to_owned(), ip.to_owned())
            })
            .filter(|(number, ..)| *number != 0)
            .collect()
    };
    let wanted = ports(pod);
    if wanted.is_empty() {
        return None;
    }
    for other in others.iter().filter(|other| other.metadata.uid != pod.metadata.uid) {
        for (number, protocol, ip) in ports(other) {
            let clash = wanted.iter().any(|(wanted, of, at)| {
                *wanted == number && *of == protocol && (at.is_empty() || ip.is_empty() || *at == ip)
            });
            if clash {
                return Some(number);
            }
        }
    }
    None
}

fn matches_node(pod: &Pod, node: &NodeView) -> bool {
    let selected = pod.spec.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
    let required = pod
        .spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let affine = required
        .is_none_or(|selector| selector.node_selector_terms.iter().any(|term| matches_term(term, node)));
    selected && affine
}

fn matches_term(term: &NodeSelectorTerm, node: &NodeView) -> bool {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    let labels =
        term.match_expressions.iter().all(|one| matches(one, node.labels.get(&one.key).map(String::as_str)));
    let fields =
        term.match_fields.iter().all(|one| one.key == "metadata.name" && matches(one, Some(&node.name)));
    labels && fields
}

fn matches(one: &NodeRequirement, value: Option<&str>) -> bool {
    let listed = value.is_some_and(|value| one.values.iter().any(|known| known == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = one.values.first().and_then(|text| number(text));
    match one.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value > bound),
        "Lt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(uid: &str, spec: Value) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "spec": spec})).unwrap())
    }

    fn reason(pod: &Pod, others: &[Arc<Pod>]) -> String {
        let node = NodeView {
            name: "n".into(),
            labels: [("zone".to_owned(), "a".to_owned()), ("size".to_owned(), "5".to_owned())].into(),
            allocatable: [("cpu".to_owned(), 1000), ("memory".to_owned(), 1 << 30), ("pods".to_owned(), 2)]
                .into(),
            allowed_unsafe_sysctls: vec!["net.core.*".into()],
        };
        admit(pod, others, &node).err().map(|verdict| verdict.reason).unwrap_or_default()
    }

    #[test]
    fn pods_that_do_not_fit_are_refused() {
        let port = json!({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]});
        let other = pod(
            "o",
            json!({"containers": [{"resources": {"requests": {"cpu": "600m"}}, "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
        );
        let affinity = |term: Value| {
            json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}})
        };
        for (spec, wanted) in [
            (json!({}), ""),
            (json!({"nodeSelector": {"zone": "b"}}), "NodeAffinity"),
            (json!({"nodeSelector": {"zone": "a"}}), ""),
            (affinity(json!({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}]})), ""),
            (
                affinity(json!({"matchExpressions": [{"key": "size", "operator": "Lt", "values": ["4"]}]})),
                "NodeAffinity",
            ),
            (
                affinity(
                    json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
                ),
                "",
            ),
            (affinity(json!({})), "NodeAffinity"),
            (port, "NodePorts"),
            (json!({"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}), "OutOfcpu"),
            (json!({"containers": [{"resources": {"requests": {"cpu": "400m"}}}]}), ""),
            (json!({"os": {"name": "windows"}}), "PodOSNotSupported"),
            (json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}}), ""),
            (json!({"securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}), ""),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}),
                "SysctlForbidden",
            ),
        ] {
            assert_eq!(reason(&pod("p", spec.clone()), std::slice::from_ref(&other)), wanted, "{spec}");
        }
        let two = [pod("a", json!({})), pod("b", json!({}))];
        assert_eq!(reason(&pod("p", json!({})), &two), "OutOfpods");
    }
}
