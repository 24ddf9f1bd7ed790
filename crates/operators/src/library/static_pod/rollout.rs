//! Which node gets which revision, one node at a time.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{MANIFEST_DIR, RESOURCE_DIR, StaticPod, View, by_name, is_true, name_of, node_condition};
use crate::library::conditions::Condition;
use crate::library::driver::Round;

/// The first pause before an installer is tried again, and the longest.
const BACK_OFF: (i64, i64) = (10, 600);

/// What the operator's object says of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeStatus {
    pub node_name: String,
    pub current_revision: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub target_revision: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub last_failed_revision: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failed_time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failed_reason: String,
    #[serde(skip_serializing_if = "is_zero")]
    pub last_failed_count: i64,
    #[serde(skip_serializing_if = "is_zero")]
    pub last_fallback_count: i64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last_failed_revision_errors: Vec<String>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl NodeStatus {
    /// How often its target has failed.
    fn failures(&self) -> i64 {
        if self.last_failed_revision == self.target_revision { self.last_failed_count } else { 0 }
    }

    fn installer(&self) -> String {
        match self.failures() {
            0 => format!("installer-{}-{}", self.target_revision, self.node_name),
            count => format!("installer-{}-{}-retry-{count}", self.target_revision, self.node_name),
        }
    }

    fn aim(&mut self, revision: i64) {
        self.target_revision = revision;
    }

    fn arrive(&mut self, revision: i64) {
        *self = Self {
            node_name: std::mem::take(&mut self.node_name),
            current_revision: revision,
            last_fallback_count: self.last_fallback_count,
            ..Self::default()
        };
    }

    fn fail(&mut self, reason: &str, errors: Vec<String>, now: Timestamp) {
        self.last_failed_count = self.failures() + 1;
        self.last_failed_revision = self.target_revision;
        self.last_failed_time = Some(now.to_string());
        self.last_failed_reason = reason.to_owned();
        self.last_failed_revision_errors = errors;
    }

    /// How long it is still to be waited before the next try.
    fn wait(&self, now: Timestamp) -> Duration {
        let failures = self.failures();
        let failed = self.last_failed_time.as_ref().and_then(|time| time.parse::<Timestamp>().ok());
        let (Some(failed), 1..) = (failed, failures) else { return Duration::ZERO };
        let pause = BACK_OFF.0.saturating_mul(1 << (failures - 1).min(10)).min(BACK_OFF.1);
        let passed = now.duration_since(failed).as_secs();
        Duration::from_secs(u64::try_from(pause - passed).unwrap_or(0))
    }
}

/// The static pod of a node, as its kubelet mirrors it.
pub fn mirror<'a>(table: &StaticPod, view: &View<'a>, node: &str) -> Option<&'a Value> {
    by_name(view.pods, &format!("{}-{node}", table.name))
}

/// The revision that a pod is of.
pub fn revision_of(pod: &Value) -> i64 {
    pod["metadata"]["labels"]["revision"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub fn plan(table: &StaticPod, view: &View<'_>, latest: i64, round: &mut Round) -> Vec<NodeStatus> {
    let known: Vec<NodeStatus> =
        serde_json::from_value(view.resource["status"]["nodeStatuses"].clone()).unwrap_or_default();
    let mut nodes: Vec<NodeStatus> = Vec::with_capacity(view.nodes.len());
    for node in view.nodes {
        let name = name_of(node);
        let found = known.iter().find(|status| status.node_name == name).cloned();
        nodes.push(found.unwrap_or_else(|| NodeStatus { node_name: name.to_owned(), ..Default::default() }));
    }
    round.conditions.push(node_condition(view.nodes));
    // What runs already is not installed again: a status may have been lost, or never written.
    for node in nodes.iter_mut().filter(|node| node.current_revision == 0 && node.target_revision == 0) {
        if let Some(pod) = mirror(table, view, &node.node_name).filter(|pod| is_true(pod, "Ready")) {
            node.current_revision = revision_of(pod).min(latest);
        }
    }
    let in_transition = nodes.iter().position(|node| node.target_revision != 0);
    match in_transition {
        Some(index) => {
            // Only one may be under way, whatever someone wrote into the status.
            for (_, node) in nodes.iter_mut().enumerate().filter(|(other, _)| *other != index) {
                node.target_revision = 0;
            }
            let node = &mut nodes[index];
            proceed(table, view, node, latest, round);
        }
        None if latest > 0 => {
            let next = next_node(table, view, &nodes, latest);
            if let Some(index) = next {
                match &view.hold {
                    Some(_) => round.look_again(Duration::from_secs(2)),
                    None => {
                        let node = &mut nodes[index];
                        node.aim(latest);
                        let message = format!(
                            "Updated node {:?} from revision {} to {latest} because {}",
                            node.node_name,
                            node.current_revision,
                            if node.current_revision == 0 { "static pod is missing" } else { "it is older" }
                        );
                        round.events.push(("NodeTargetRevisionChanged", message));
                        proceed(table, view, node, latest, round);
                    }
                }
            }
        }
        None => {}
    }
    let failing: Vec<String> = nodes
        .iter()
        .filter(|node| node.target_revision != 0 && node.failures() > 0)
        .map(|node| {
            format!(
                "1 nodes are failing on revision {}:\nnode {:?}: {}",
                node.target_revision,
                node.node_name,
                node.last_failed_revision_errors.join(", ")
            )
        })
        .collect();
    round.conditions.push(Condition::of_errors("NodeInstallerDegraded", "InstallerPodFailed", &failing));
    let held: Vec<String> = view.hold.iter().cloned().collect();
    let waiting = nodes.iter().any(|node| node.current_revision != latest);
    let held = if waiting { held } else { Vec::new() };
    round.conditions.push(Condition::of_errors("InstallerControllerDegraded", "Waiting", &held));
    nodes
}

/// The node to change next: one without a working pod, else the one that is furthest behind.
fn next_node(table: &StaticPod, view: &View<'_>, nodes: &[NodeStatus], latest: i64) -> Option<usize> {
    let works =
        |node: &NodeStatus| mirror(table, view, &node.node_name).is_some_and(|pod| is_true(pod, "Ready"));
    let behind = nodes.iter().enumerate().filter(|(_, node)| node.current_revision != latest);
    behind.min_by_key(|(_, node)| (works(node), node.current_revision)).map(|(index, _)| index)
}

/// Brings the node that is under way one step further.
fn proceed(table: &StaticPod, view: &View<'_>, node: &mut NodeStatus, latest: i64, round: &mut Round) {
    let pod = mirror(table, view, &node.node_name);
    let of_target = pod.filter(|pod| revision_of(pod) == node.target_revision);
    let Some(installer) = by_name(view.pods, &node.installer()) else {
        // Its installer may have been cleaned away after it had worked.
        if of_target.is_some_and(|pod| is_true(pod, "Ready")) {
            return arrive(table, view, node, round);
        }
        if latest > node.target_revision {
            node.aim(latest);
        }
        let wait = node.wait(view.now);
        match wait.is_zero() {
            true => round.create.push(installer_pod(table, view, node)),
            false => round.look_again(wait),
        }
        return;
    };
    match installer["status"]["phase"].as_str().unwrap_or("Pending") {
        "Succeeded" => match of_target {
            Some(pod) if is_true(pod, "Ready") => arrive(table, view, node, round),
            // A pod that never becomes ready does not stand in the way of the revision that repairs it.
            _ if latest > node.target_revision => {
                node.aim(latest);
                round.create.push(installer_pod(table, view, node));
            }
            Some(pod) if pod["status"]["phase"] == "Failed" => {
                let message = format!("static pod {:?} failed", name_of(pod));
                node.fail("OperandFailed", vec![message], view.now);
                round.look_again(node.wait(view.now));
            }
            _ => {}
        },
        "Failed" => {
            round.write.extend(with_status(table, view, node.target_revision, "Failed"));
            node.fail("InstallerFailed", installer_errors(installer), view.now);
            let message = format!(
                "{} on node {:?}: {}",
                name_of(installer),
                node.node_name,
                node.last_failed_revision_errors.join(", ")
            );
            round.events.push(("InstallerPodFailed", message));
            if latest > node.target_revision {
                node.aim(latest);
            }
            round.look_again(node.wait(view.now).max(Duration::from_millis(1)));
        }
        _ => {}
    }
}

fn arrive(table: &StaticPod, view: &View<'_>, node: &mut NodeStatus, round: &mut Round) {
    let (from, to) = (node.current_revision, node.target_revision);
    let name = node.node_name.clone();
    node.arrive(to);
    let message = format!("Updated node {name:?} from revision {from} to {to} because static pod is ready");
    round.events.push(("NodeCurrentRevisionChanged", message));
    round.write.extend(with_status(table, view, to, "Succeeded"));
}

/// The object that says how a revision does, saying this.
fn with_status(table: &StaticPod, view: &View<'_>, revision: i64, status: &str) -> Option<Value> {
    let name = format!("revision-status-{revision}");
    let mut data = by_name(view.config_maps, &name)?["data"].clone();
    data["status"] = json!(status);
    Some(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": table.namespace}, "data": data,
    }))
}

/// Why an installer failed, as its container said.
fn installer_errors(pod: &Value) -> Vec<String> {
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let mut errors: Vec<String> = statuses
        .filter_map(|container| {
            let ended = &container["state"]["terminated"];
            let text = |field: &str| ended[field].as_str().unwrap_or_default();
            let message = text("message").trim();
            (!ended.is_null())
                .then(|| format!("{}: {message}", container["name"].as_str().unwrap_or_default()))
        })
        .collect();
    if errors.is_empty() {
        let text = |field: &str| pod["status"][field].as_str().unwrap_or_default().to_owned();
        errors.push(format!("{}: {}", text("reason"), text("message")));
    }
    errors
}

/// The pod that lays a revision down on a node.
fn installer_pod(table: &StaticPod, view: &View<'_>, node: &NodeStatus) -> Value {
    let revision = node.target_revision;
    let mut args = vec![
        "installer".to_owned(),
        "-v=2".to_owned(),
        format!("--revision={revision}"),
        format!("--namespace={}", table.namespace),
        format!("--pod={}", table.pod_config_map()),
        format!("--resource-dir={RESOURCE_DIR}"),
        format!("--pod-manifest-dir={MANIFEST_DIR}"),
        format!("--cert-dir={}", table.cert_dir()),
    ];
    for (flag, inputs) in [
        ("configmaps", table.config_maps),
        ("secrets", table.secrets),
        ("cert-configmaps", table.cert_config_maps),
        ("cert-secrets", table.cert_secrets),
    ] {
        for input in inputs {
            let optional = if input.optional { "optional-" } else { "" };
            args.push(format!("--{optional}{flag}={}", input.name));
        }
    }
    machine_pod(table, view, &node.installer(), &node.node_name, "installer", args)
}

/// A pod that works on a machine's files and ends.
pub fn machine_pod(
    table: &StaticPod,
    view: &View<'_>,
    name: &str,
    node: &str,
    app: &str,
    args: Vec<String>,
) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": table.namespace, "labels": {"app": app},
        },
        "spec": {
            "serviceAccountName": "installer-sa",
            "nodeName": node,
            // Machines get their control plane before they have a pod network.
            "hostNetwork": true,
            "restartPolicy": "Never",
            "priorityClassName": "system-node-critical",
            "terminationGracePeriodSeconds": 600,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": {"runAsUser": 0},
            "containers": [{
                "name": app,
                "image": view.operator_image,
                "imagePullPolicy": "IfNotPresent",
                "command": [table.program],
                "args": args,
                "env": [
                    {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                    {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                ],
                "resources": {"requests": {"cpu": "15m", "memory": "20M"}},
                "securityContext": {"privileged": true, "runAsUser": 0},
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "kubelet-dir", "mountPath": "/etc/kubernetes/"}],
            }],
            "volumes": [{"name": "kubelet-dir", "hostPath": {"path": "/etc/kubernetes/", "type": ""}}],
        },
    })
}
