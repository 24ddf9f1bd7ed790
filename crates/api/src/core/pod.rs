//! Pods.

use std::collections::{HashMap, VecDeque};

use apimachinery::{
    field::Problems,
    meta::{Meta, get, get_list, get_str, set},
    time,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{pod_resize, pod_spec};
use crate::{
    Change, Column, Definition, Effect, MetaCheck, Rules, StatusKeeps, Subresource,
    columns::age,
    prepare::{copy_field, keep_metadata},
    print::{has_condition, or},
};

/// A group of containers on one node.
pub fn definition() -> Definition {
    let mut definition = Definition::namespaced("", "v1", "Pod", "pods")
        .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
        .answers_with_object()
        .short(&["po"])
        .categories(&["all"])
        .with(Subresource::Attach)
        .with(Subresource::Binding)
        .with(Subresource::EphemeralContainers)
        .with(Subresource::Eviction)
        .with(Subresource::Exec)
        .with(Subresource::Log)
        .with(Subresource::PortForward)
        .with(Subresource::Proxy)
        .with(Subresource::Resize)
        .status()
        .generation()
        .label("spec.nodeName")
        .label("spec.restartPolicy")
        .label("spec.schedulerName")
        .label("spec.serviceAccountName")
        .label_or("spec.hostNetwork", "false")
        .label("status.phase")
        .label("status.podIP")
        .label_fn("status.podIPs", &["status.podIPs"], |pod| {
            let ips = get_list(pod, "status.podIPs");
            ips.iter().map(|ip| get_str(ip, "ip")).collect::<Vec<_>>().join(",").into()
        })
        .label("status.nominatedNodeName")
        .effects(&[Effect::BindPod, Effect::EvictPod, Effect::GracefulPodDeletion, Effect::Connect])
        .columns(vec![
            Column::new("Ready", |pod, now| Summary::of(pod, now).ready.into()),
            Column::new("Status", |pod, now| Summary::of(pod, now).reason.into()),
            Column::new("Restarts", |pod, now| Summary::of(pod, now).restarts.into()),
            Column::age(),
            Column::new("IP", |pod, _| {
                or(get_list(pod, "status.podIPs").first().map_or("", |ip| get_str(ip, "ip")), "<none>").into()
            })
            .wide(),
            Column::new("Node", |pod, _| or(get_str(pod, "spec.nodeName"), "<none>").into()).wide(),
            Column::new("Nominated Node", |pod, _| {
                or(get_str(pod, "status.nominatedNodeName"), "<none>").into()
            })
            .wide(),
            Column::new("Readiness Gates", |pod, _| readiness_gates(pod).into()).wide(),
        ])
        .pod_at("spec")
        .gated(&[
            "status.containerStatuses|initContainerStatuses|ephemeralContainerStatuses.*.volumeMounts.*.volumeStatus",
            "status.nodeAllocatableResourceClaimStatuses",
        ])
        .rules(Pod);
    definition.created_with_status = true;
    definition
}

struct Pod;

impl Rules for Pod {
    fn set_defaults(&self, pod: &mut Value) {
        if let Some(spec) = pod.get_mut("spec") {
            pod_spec::set_pod_defaults(spec);
        }
        mirror_ips(pod);
    }

    fn prepare_create(&self, pod: &mut Value) {
        // Who says what it is, is believed.
        let qos = match get_str(pod, "status.qosClass") {
            "" => pod_spec::qos::class(&pod["spec"]).to_owned(),
            given => given.to_owned(),
        };
        pod["status"] = json!({"phase": "Pending", "qosClass": qos});
        if !get_list(pod, "spec.schedulingGates").is_empty() {
            let made = get_str(pod, "metadata.creationTimestamp").to_owned();
            pod["status"]["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "lastProbeTime": null, "lastTransitionTime": made,
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
        merge_match_label_keys(pod);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, subresource: &str) {
        match subresource {
            "status" => {
                // A kubelet may not change who owns the pod.
                keep_metadata(new, old, &["ownerReferences", "deletionTimestamp"]);
                keep_generations(new, old);
                if get(new, "status.qosClass").is_none()
                    && let Some(qos) = get(old, "status.qosClass")
                {
                    set(new, "status.qosClass", qos.clone());
                }
            }
            "ephemeralcontainers" => {
                let added = get(new, "spec.ephemeralContainers").cloned();
                copy_field(new, old, "spec");
                match added {
                    Some(added) => set(new, "spec.ephemeralContainers", added),
                    None => {
                        apimachinery::meta::remove(new, "spec.ephemeralContainers");
                    }
                }
                keep_metadata(new, old, StatusKeeps::Metadata.fields());
            }
            "resize" => pod_resize::prepare(new, old),
            _ => {}
        }
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        super::pod_rules::validate(change, problems);
    }

    fn warnings(&self, change: &Change<'_>) -> Vec<String> {
        // Pods are changed by controllers, who do not read warnings.
        if change.old.is_some() {
            return Vec::new();
        }
        let mut out = pod_spec::warnings::of_name(change, "the Pod's hostname");
        out.extend(pod_spec::warnings::of_change(change, "/spec", "spec"));
        out
    }
}

/// A writer that does not know of generations does not take back which one was seen.
fn keep_generations(new: &mut Value, old: &Value) {
    const SEEN: &str = "observedGeneration";
    let known = |value: &Value| value.get(SEEN).filter(|seen| **seen != 0).cloned();
    if known(&new["status"]).is_none()
        && let Some(seen) = known(&old["status"])
    {
        set(new, "status.observedGeneration", seen);
    }
    // There may be several conditions of a type: the first follows the first.
    let mut before: HashMap<&str, VecDeque<&Value>> = HashMap::new();
    for condition in get_list(old, "status.conditions") {
        before.entry(get_str(condition, "type")).or_default().push_back(condition);
    }
    let list = new.get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in list.and_then(Value::as_array_mut).into_iter().flatten() {
        let before = before.get_mut(get_str(condition, "type")).and_then(VecDeque::pop_front);
        if known(condition).is_none()
            && let Some(seen) = before.and_then(known)
        {
            condition[SEEN] = seen;
        }
    }
}

fn mirror_ips(pod: &mut Value) {
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else { return };
    let ip = status.get("podIP").cloned();
    let first = status.get("podIPs").and_then(|ips| ips.get(0)).and_then(|first| first.get("ip")).cloned();
    match (ip, first) {
        (Some(ip), first) if first.as_ref() != Some(&ip) => {
            status.insert("podIPs".into(), json!([{"ip": ip}]));
        }
        (None, Some(first)) => {
            status.insert("podIP".into(), first);
        }
        _ => {}
    }
}

/// `matchLabelKeys` of spread constraints and pod affinity become terms of their selectors, once, at creation.
fn merge_match_label_keys(pod: &mut Value) {
    let labels = pod.labels().cloned().unwrap_or_default();
    let add = |term: &mut Value, keys: &str, operator: &str| {
        let Some(keys) = term.get(keys).and_then(Value::as_array).cloned() else { return };
        let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut) else { return };
        for key in keys.iter().filter_map(Value::as_str) {
            let Some(value) = labels.get(key) else { continue };
            let list = selector.entry("matchExpressions").or_insert_with(|| json!([]));
            if let Value::Array(list) = list {
                list.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    };
    if let Some(Value::Array(constraints)) = pod["spec"].get_mut("topologySpreadConstraints") {
        constraints.iter_mut().for_each(|constraint| add(constraint, "matchLabelKeys", "In"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = pod["spec"].get_mut("affinity").and_then(|affinity| affinity.get_mut(kind))
        else {
            continue;
        };
        if let Some(Value::Array(terms)) = affinity.get_mut("requiredDuringSchedulingIgnoredDuringExecution")
        {
            for term in terms {
                add(term, "matchLabelKeys", "In");
                add(term, "mismatchLabelKeys", "NotIn");
            }
        }
        if let Some(Value::Array(terms)) = affinity.get_mut("preferredDuringSchedulingIgnoredDuringExecution")
        {
            for term in terms.iter_mut().filter_map(|term| term.get_mut("podAffinityTerm")) {
                add(term, "matchLabelKeys", "In");
                add(term, "mismatchLabelKeys", "NotIn");
            }
        }
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = get_list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates.iter().filter(|gate| has_condition(pod, get_str(gate, "conditionType"))).count();
    format!("{met}/{}", gates.len())
}

/// What `kubectl get pods` says about a pod in its first columns.
struct Summary {
    ready: String,
    reason: String,
    restarts: String,
}

/// Why a container ended, in a word.
fn ended(terminated: &Value) -> String {
    match (get_str(terminated, "reason"), terminated["signal"].as_i64()) {
        ("", Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        ("", _) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
        (reason, _) => reason.into(),
    }
}

impl Summary {
    fn of(pod: &Value, now: Timestamp) -> Self {
        let init = get_list(pod, "spec.initContainers");
        let is_sidecar = |name: &str| {
            init.iter().any(|container| container["name"] == name && container["restartPolicy"] == "Always")
        };
        let sidecars = init.iter().filter(|container| container["restartPolicy"] == "Always").count();
        let total = get_list(pod, "spec.containers").len() + sidecars;
        let phase = get_str(pod, "status.phase");
        let mut reason = or(get_str(pod, "status.reason"), phase).to_owned();
        let gated = |condition: &Value| {
            condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated"
        };
        if get_list(pod, "status.conditions").iter().any(gated) {
            reason = "SchedulingGated".into();
        }

        let (mut ready, mut restarts, mut last) = (0, 0, "");
        let (mut sidecar_restarts, mut sidecar_last) = (0, "");
        let mut initializing = false;
        for (index, status) in get_list(pod, "status.initContainerStatuses").iter().enumerate() {
            let name = get_str(status, "name");
            let count = status["restartCount"].as_i64().unwrap_or(0);
            let finished = get_str(status, "lastState.terminated.finishedAt");
            restarts += count;
            last = last.max(finished);
            if is_sidecar(name) {
                sidecar_restarts += count;
                sidecar_last = sidecar_last.max(finished);
            }
            let terminated = get(status, "state.terminated");
            if terminated.is_some_and(|ended| ended["exitCode"].as_i64().unwrap_or(0) == 0) {
                continue;
            }
            if is_sidecar(name) && status["started"] == true {
                ready += usize::from(status["ready"] == true);
                continue;
            }
            let waiting = get_str(status, "state.waiting.reason");
            reason = match terminated {
                Some(terminated) => format!("Init:{}", ended(terminated)),
                None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
                None => format!("Init:{index}/{}", init.len()),
            };
            initializing = true;
            break;
        }
        if !initializing || has_condition(pod, "Initialized") {
            (restarts, last) = (sidecar_restarts, sidecar_last);
            let (mut running, mut error) = (false, String::new());
            for status in get_list(pod, "status.containerStatuses").iter().rev() {
                restarts += status["restartCount"].as_i64().unwrap_or(0);
                last = last.max(get_str(status, "lastState.terminated.finishedAt"));
                let waiting = get_str(status, "state.waiting.reason");
                if !waiting.is_empty() {
                    reason = waiting.into();
                } else if let Some(terminated) = get(status, "state.terminated") {
                    reason = ended(terminated);
                    if terminated["exitCode"].as_i64().unwrap_or(0) != 0 {
                        error.clone_from(&reason);
                    }
                } else if status["ready"] == true && get(status, "state.running").is_some() {
                    running = true;
                    ready += 1;
                }
            }
            if reason == "Completed" {
                if running && has_condition(pod, "Ready") {
                    reason = "Running".into();
                } else if !error.is_empty() {
                    reason = error;
                } else if running {
                    reason = "NotReady".into();
                }
            }
        }
        if pod.is_terminating() {
            if get_str(pod, "status.reason") == "NodeLost" {
                reason = "Unknown".into();
            } else if phase != "Succeeded" && phase != "Failed" {
                reason = "Terminating".into();
            }
        }
        let restarts = if restarts != 0 && time::parse(last).is_some() {
            format!("{restarts} ({} ago)", age(last, now))
        } else {
            restarts.to_string()
        };
        Self { ready: format!("{ready}/{total}"), reason, restarts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_column_tells_the_story() {
        let now = Timestamp::UNIX_EPOCH;
        let waiting = json!({"spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Pending",
            "containerStatuses": [{"name": "a", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]}});
        assert_eq!(Summary::of(&waiting, now).reason, "ImagePullBackOff");
        let init = json!({"spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]},
            "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}});
        assert_eq!(Summary::of(&init, now).reason, "Init:0/1");
        let going = json!({"metadata": {"deletionTimestamp": "2024-05-01T12:00:00Z"},
            "spec": {"containers": [{"name": "a"}]}, "status": {"phase": "Running",
            "containerStatuses": [{"name": "a", "ready": true, "restartCount": 2, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "1969-12-31T23:59:00Z"}}}]}});
        let summary = Summary::of(&going, now);
        assert_eq!((summary.ready.as_str(), summary.reason.as_str()), ("1/1", "Terminating"));
        assert_eq!(summary.restarts, "2 (60s ago)");
    }

    #[test]
    fn conditions_of_one_type_keep_their_generations_in_order() {
        let condition = |seen: Option<i64>| match seen {
            Some(seen) => json!({"type": "A", "observedGeneration": seen}),
            None => json!({"type": "A"}),
        };
        let old =
            json!({"status": {"conditions": [condition(Some(1)), condition(Some(2)), condition(Some(3))]}});
        let mut new = json!({"status": {"conditions": [condition(None), condition(Some(9)), condition(None), condition(None)]}});
        keep_generations(&mut new, &old);
        let wanted = [Some(1), Some(9), Some(3), None].map(condition);
        assert_eq!(new["status"]["conditions"], json!(wanted));
        let mut new = json!({"metadata": {}});
        keep_generations(&mut new, &old);
        assert_eq!(new, json!({"metadata": {}}));
    }
}
