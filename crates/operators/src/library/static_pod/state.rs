//! What the static pods themselves say.

use std::collections::BTreeMap;

use serde_json::Value;

use super::rollout::{NodeStatus, mirror};
use super::{StaticPod, View, is_true, name_of};
use crate::library::conditions::Condition;
use crate::library::driver::Round;

pub fn conditions(table: &StaticPod, view: &View<'_>, nodes: &[NodeStatus], latest: i64, round: &mut Round) {
    let mut at: BTreeMap<i64, usize> = BTreeMap::new();
    for node in nodes {
        *at.entry(node.current_revision).or_default() += 1;
    }
    let counts: Vec<String> = at.iter().map(|(revision, count)| nodes_at(*count, *revision)).collect();
    let counts = counts.join("; ");
    let done = at.keys().all(|revision| *revision == latest) && latest > 0 && !nodes.is_empty();
    round.conditions.push(if done {
        Condition::new("NodeInstallerProgressing", "False", "AllNodesAtLatestRevision", counts.clone())
    } else {
        let reached = at.get(&latest).copied().unwrap_or(0);
        let message = match latest {
            0 => "there is no revision yet".to_owned(),
            latest => format!("{counts}; {reached} nodes have achieved new revision {latest}"),
        };
        Condition::not_fine("NodeInstallerProgressing", "NodeInstaller", message)
    });
    let ready = nodes
        .iter()
        .filter(|node| mirror(table, view, &node.node_name).is_some_and(|pod| is_true(pod, "Ready")))
        .count();
    round.conditions.push(match ready {
        0 => {
            let message = format!("0 nodes are active; {counts}");
            Condition::not_fine("StaticPodsAvailable", "ZeroNodesActive", message)
        }
        ready => {
            let message = format!("{ready} nodes are active; {counts}");
            Condition::new("StaticPodsAvailable", "True", "AsExpected", message)
        }
    });
    let mut errors: Vec<String> = Vec::new();
    for node in nodes {
        match mirror(table, view, &node.node_name) {
            Some(pod) => errors.extend(troubles(pod)),
            None if node.current_revision != 0 => {
                errors.push(format!("pod/{}-{} is missing", table.name, node.node_name));
            }
            None => {}
        }
    }
    round.conditions.push(Condition::of_errors("StaticPodsDegraded", "Error", &errors));
}

fn nodes_at(count: usize, revision: i64) -> String {
    match count {
        1 => format!("1 node is at revision {revision}"),
        count => format!("{count} nodes are at revision {revision}"),
    }
}

/// What keeps a pod from being ready, container by container.
fn troubles(pod: &Value) -> Vec<String> {
    if is_true(pod, "Ready") {
        return Vec::new();
    }
    let name = name_of(pod);
    let containers = ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|field| pod["status"][field].as_array().into_iter().flatten());
    let found: Vec<String> = containers
        .filter_map(|container| {
            let of = container["name"].as_str().unwrap_or_default();
            let text =
                |state: &Value, field: &str| state[field].as_str().unwrap_or_default().trim().to_owned();
            let (waiting, ended) = (&container["state"]["waiting"], &container["state"]["terminated"]);
            // Why it ended before says more than that it is not started again yet.
            let last = &container["lastState"]["terminated"];
            if !waiting.is_null() {
                let before = match last.is_null() {
                    true => String::new(),
                    false => format!(", after it ended with {}: {}", last["exitCode"], text(last, "message")),
                };
                let (reason, message) = (text(waiting, "reason"), text(waiting, "message"));
                return Some(format!("pod/{name} container {of:?} is waiting: {reason}: {message}{before}"));
            }
            if !ended.is_null() && ended["exitCode"] != 0 {
                let (reason, message) = (text(ended, "reason"), text(ended, "message"));
                return Some(format!("pod/{name} container {of:?} is terminated: {reason}: {message}"));
            }
            None
        })
        .collect();
    match (found.is_empty(), pod["status"]["phase"].as_str()) {
        (true, Some("Running")) => vec![format!("pod/{name} is running but not ready")],
        (true, phase) => vec![format!("pod/{name} is {}", phase.unwrap_or("unknown").to_lowercase())],
        (false, _) => found,
    }
}
