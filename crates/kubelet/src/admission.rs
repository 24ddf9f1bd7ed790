//! Whether this node can run a pod at all: the same questions the scheduler asked, asked again by the one who knows.
//! Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::Taint;
use crate::eviction::Pressure;
use crate::pod::{NodeRequirement, NodeSelectorTerm, Pod, Profile, Toleration};
use crate::resize::Pending;
use crate::state::Verdict;
use crate::{qos, resources};

/// The node as admission sees it.
#[derive(Debug, Clone, Default)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Milli-cores for `cpu`, whole units for the rest.
    pub allocatable: BTreeMap<String, i64>,
    /// Sysctls beyond the safe ones that pods may set.
    pub allowed_unsafe_sysctls: Vec<String>,
    pub taints: Vec<Taint>,
    /// What the node is short of.
    pub pressures: Vec<Pressure>,
    /// What the kernel has, and this node's runtime does not use.
    pub has_selinux: bool,
    pub has_apparmor: bool,
}

/// From this priority on a pod is critical.
const CRITICAL: i32 = 2_000_000_000;

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
    let refuse =
        |reason: &str, message: String| Err(Verdict { reason: reason.into(), message, ..Verdict::default() });
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
    if !pod.is_static()
        && let Some(taint) =
            node.taints.iter().find(|taint| taint.effect == "NoExecute" && !is_tolerated(pod, taint))
    {
        tracing::debug!(pod = %pod.key(), taint = taint.key, "not tolerated");
        let text = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
        return refuse("TaintToleration", text.into());
    }
    if !is_critical(pod) && is_unwelcome(pod, &node.pressures) {
        let names: Vec<&str> = node.pressures.iter().map(|one| one.condition()).collect();
        return refuse("Evicted", format!("The node had condition: [{}]. ", names.join(" ")));
    }
    if let Some(verdict) = unsupported(pod, node) {
        return Err(verdict);
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
    has_room(pod, others, node)
}

/// Whether a pod that runs here can have what it asks for now: not ever, or not yet.
pub fn resize(pod: &Pod, others: &[Arc<Pod>], node: &NodeView) -> Result<(), Pending> {
    for name in ["cpu", "memory"] {
        let (requested, capacity) = (resources::requested(pod, name), node.allocatable.get(name));
        if let Some(capacity) = capacity.filter(|capacity| requested > **capacity) {
            let message = format!(
                "Node didn't have enough capacity: {name}, requested: {requested}, capacity: {capacity}"
            );
            return Err(Pending { reason: "Infeasible", message });
        }
    }
    has_room(pod, others, node).map_err(|verdict| Pending { reason: "Deferred", message: verdict.message })
}

/// Whether there is enough of everything that is counted.
fn has_room(pod: &Pod, others: &[Arc<Pod>], node: &NodeView) -> Result<(), Verdict> {
    let refuse =
        |reason: &str, message: String| Err(Verdict { reason: reason.into(), message, ..Verdict::default() });
    let pods = node.allocatable.get("pods").copied().unwrap_or(i64::MAX);
    if others.len() as i64 + 1 > pods {
        let text = format!(
            "Node didn't have enough resource: pods, requested: 1, used: {}, capacity: {pods}",
            others.len()
        );
        return refuse("OutOfpods", text);
    }
    let hugepages = huge_pages(pod);
    let none = hugepages.iter().filter(|name| !node.allocatable.contains_key(**name)).map(|name| (*name, &0));
    for (name, capacity) in
        node.allocatable.iter().map(|(name, capacity)| (name.as_str(), capacity)).chain(none)
    {
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

/// Whether a shortage keeps the pod away. That of memory alone keeps away only who asks for none.
fn is_unwelcome(pod: &Pod, pressures: &[Pressure]) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".into(),
        effect: "NoSchedule".into(),
        ..Taint::default()
    };
    match pressures {
        [] => false,
        [Pressure::Memory] => qos::class(pod) == qos::Class::BestEffort && !is_tolerated(pod, &taint),
        _ => true,
    }
}

/// Names of huge page sizes that the pod asks for.
fn huge_pages(pod: &Pod) -> Vec<&str> {
    let of_containers = pod.containers().map(|(_, container)| &container.resources);
    let mut names: Vec<&str> = of_containers
        .chain(&pod.spec.resources)
        .flat_map(|wanted| wanted.limits.keys().chain(wanted.requests.keys()))
        .map(String::as_str)
        .filter(|name| name.starts_with("hugepages-"))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the pod asks for and this node would not give it. A pod that would run as if it had not asked is refused.
fn unsupported(pod: &Pod, node: &NodeView) -> Option<Verdict> {
    let refuse = |reason: &str, message: &str| {
        Some(Verdict { reason: reason.into(), message: message.into(), ..Verdict::default() })
    };
    let confined = |profile: &Option<Profile>| profile.as_ref().is_some_and(|one| one.r#type != "Unconfined");
    let contexts: Vec<_> = pod.containers().map(|(_, container)| &container.security_context).collect();
    if confined(&pod.spec.security_context.app_armor_profile)
        || contexts.iter().any(|own| confined(&own.app_armor_profile))
    {
        let problem = match node.has_apparmor {
            true => "the container runtime does not support AppArmor",
            false => "AppArmor is not enabled on the host",
        };
        return refuse("AppArmor", &format!("Cannot enforce AppArmor: {problem}"));
    }
    if node.has_selinux
        && (pod.spec.security_context.se_linux_options.is_some()
            || contexts.iter().any(|own| own.se_linux_options.is_some()))
    {
        return refuse(
            "SELinux",
            "Cannot enforce SELinux options: the container runtime does not label processes",
        );
    }
    if contexts
        .iter()
        .any(|own| own.proc_mount.as_deref() == Some("Unmasked") && own.privileged != Some(true))
    {
        let text = "procMount Unmasked is not supported by the runtime";
        return refuse("ProcMount", text);
    }
    if !pod.spec.resource_claims.is_empty() {
        let text = "Allocate failed due to dynamic resource allocation is not supported by this node, which is unexpected";
        return refuse("UnexpectedAdmissionError", text);
    }
    let mut rules = pod.containers().flat_map(|(_, container)| &container.restart_policy_rules);
    if let Some(rule) = rules.find(|rule| rule.action != "Restart") {
        let text = format!(
            "Allocate failed due to the restart rule's action {:?} is not supported by this node, which is unexpected",
            rule.action
        );
        return refuse("UnexpectedAdmissionError", &text);
    }
    None
}

fn is_tolerated(pod: &Pod, taint: &Taint) -> bool {
    let tolerates = |one: &Toleration| {
        (one.effect.is_empty() || one.effect == taint.effect)
            && (one.key.is_empty() || one.key == taint.key)
            && match one.operator.as_str() {
                "Exists" => true,
                "" | "Equal" => one.value == taint.value && !one.key.is_empty(),
                _ => false,
            }
    };
    pod.spec.tolerations.iter().any(tolerates)
}

/// Whether the node should rather end other pods than refuse this one.
pub fn is_critical(pod: &Pod) -> bool {
    pod.is_static() || pod.spec.priority.is_some_and(|priority| priority >= CRITICAL)
}

/// The pods to end so that a critical one fits: those of the lowest class first, as few and as small as will do. None if
/// that does not help.
pub fn victims(pod: &Pod, others: &[Arc<Pod>], node: &NodeView) -> Option<Vec<Arc<Pod>>> {
    let priority = |pod: &Pod| pod.spec.priority.unwrap_or(0);
    let preemptable = |other: &&Arc<Pod>| {
        !is_critical(other) || !other.is_static() && !pod.is_static() && priority(pod) > priority(other)
    };
    let rank = |other: &Arc<Pod>| {
        let class = match qos::class(other) {
            qos::Class::BestEffort => 0,
            qos::Class::Burstable => 1,
            qos::Class::Guaranteed => 2,
        };
        (class, priority(other), resources::requested(other, "memory"), resources::requested(other, "cpu"))
    };
    let fits = |ended: &[Arc<Pod>]| {
        let left: Vec<Arc<Pod>> =
            others.iter().filter(|one| !ended.iter().any(|gone| Arc::ptr_eq(gone, one))).cloned().collect();
        has_room(pod, &left, node).is_ok()
    };
    let mut candidates: Vec<Arc<Pod>> = others.iter().filter(preemptable).cloned().collect();
    candidates.sort_by_key(rank);
    let mut chosen = Vec::new();
    for candidate in candidates {
        if fits(&chosen) {
            break;
        }
        chosen.push(candidate);
    }
    if !fits(&chosen) {
        return None;
    }
    // Those that turned out not to be needed are spared, the most valuable first.
    for index in (0..chosen.len()).rev() {
        let mut fewer = chosen.clone();
        fewer.remove(index);
        if fits(&fewer) {
            chosen = fewer;
        }
    }
    Some(chosen)
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

    fn node() -> NodeView {
        NodeView {
            pressures: Vec::new(),
            name: "n".into(),
            labels: [("zone".to_owned(), "a".to_owned()), ("size".to_owned(), "5".to_owned())].into(),
            allocatable: [("cpu".to_owned(), 1000), ("memory".to_owned(), 1 << 30), ("pods".to_owned(), 2)]
                .into(),
            allowed_unsafe_sysctls: vec!["net.core.*".into()],
            taints: vec![Taint { key: "k".into(), value: "v".into(), effect: "NoExecute".into() }],
            has_selinux: true,
            has_apparmor: false,
        }
    }

    /// Why a pod that tolerates the node's taint is refused.
    fn reason(pod: &Pod, others: &[Arc<Pod>]) -> String {
        let mut pod = pod.clone();
        pod.spec.tolerations = vec![Toleration { operator: "Exists".into(), ..Toleration::default() }];
        admit(&pod, others, &node()).err().map(|verdict| verdict.reason).unwrap_or_default()
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        let own = |context: Value| json!({"containers": [{"name": "c", "securityContext": context}]});
        let wants = |name: &str| json!({"containers": [{"resources": {"limits": {name: "4Mi"}}}]});
        for (spec, wanted) in [
            (own(json!({"appArmorProfile": {"type": "RuntimeDefault"}})), "AppArmor"),
            (own(json!({"appArmorProfile": {"type": "Unconfined"}})), ""),
            (json!({"securityContext": {"appArmorProfile": {"type": "Localhost"}}}), "AppArmor"),
            (own(json!({"seLinuxOptions": {"level": "s0"}})), "SELinux"),
            (own(json!({"procMount": "Unmasked"})), "ProcMount"),
            (own(json!({"procMount": "Unmasked", "privileged": true})), ""),
            (json!({"resourceClaims": [{"name": "gpu"}]}), "UnexpectedAdmissionError"),
            (wants("hugepages-2Mi"), "OutOfhugepages-2Mi"),
            (wants("example.com/device"), ""),
            (
                json!({"containers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]}),
                "UnexpectedAdmissionError",
            ),
            (json!({"containers": [{"restartPolicyRules": [{"action": "Restart"}]}]}), ""),
            (json!({"overhead": {"cpu": "2"}}), "OutOfcpu"),
        ] {
            assert_eq!(reason(&pod("p", spec.clone()), &[]), wanted, "{spec}");
        }
        let untolerant = pod("p", json!({"tolerations": [{"key": "k", "value": "other"}]}));
        assert_eq!(admit(&untolerant, &[], &node()).unwrap_err().reason, "TaintToleration");
        let tolerant = pod("p", json!({"tolerations": [{"key": "k", "value": "v", "effect": "NoExecute"}]}));
        assert!(admit(&tolerant, &[], &node()).is_ok());
    }

    #[test]
    fn a_critical_pod_ends_the_least_that_makes_room() {
        let cpu = |uid: &str, millis: u32, priority: i32| {
            let wanted = json!({"requests": {"cpu": format!("{millis}m")}});
            pod(uid, json!({"priority": priority, "containers": [{"resources": wanted}]}))
        };
        let mut node = node();
        node.allocatable.insert("pods".into(), 10);
        let (small, large, critical) = (cpu("s", 200, 0), cpu("l", 500, 0), cpu("c", 300, CRITICAL));
        let others = [pod("b", json!({"containers": [{}]})), small, large.clone(), critical];
        let names = |wanted: Option<Vec<Arc<Pod>>>| -> Option<Vec<String>> {
            Some(wanted?.iter().map(|one| one.metadata.uid.clone()).collect())
        };
        assert_eq!(names(victims(&cpu("p", 100, CRITICAL), &others, &node)), Some(vec!["s".into()]));
        assert_eq!(names(victims(&cpu("p", 400, CRITICAL), &others, &node)), Some(vec!["l".into()]));
        assert_eq!(names(victims(&cpu("p", 900, CRITICAL), &others, &node)), None, "the critical one stays");
        let above = cpu("p", 900, CRITICAL + 1);
        assert_eq!(names(victims(&above, &others, &node)).map(|all| all.len()), Some(3));
        assert!(is_critical(&above) && !is_critical(&large));
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

    #[test]
    fn a_shortage_keeps_pods_away_but_not_critical_ones() {
        let mut node = NodeView { taints: Vec::new(), ..node() };
        let free = pod("p", json!({"containers": [{"name": "a"}]}));
        let asks =
            pod("p", json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "1Mi"}}}]}));
        node.pressures = vec![Pressure::Memory];
        assert_eq!(admit(&free, &[], &node).unwrap_err().reason, "Evicted");
        assert_eq!(admit(&asks, &[], &node), Ok(()));
        node.pressures = vec![Pressure::Memory, Pressure::Disk];
        let refused = admit(&asks, &[], &node).unwrap_err();
        assert_eq!(refused.message, "The node had condition: [MemoryPressure DiskPressure]. ");
        let critical = pod("p", json!({"priority": 2_000_000_000, "containers": [{"name": "a"}]}));
        assert_eq!(admit(&critical, &[], &node), Ok(()));
    }
}
